"""Time every kernel on layers of real networks, against the machine and other libraries.

Each case checks its result first: nothing wrong is ever timed. The machine's limits are measured
before anything else; a case is reported as its time, as a fraction of the least time that its
operations or its bytes take on this machine, and as the ratio to each other library that is
installed, timed in turn with it on the same arrays with the same number of threads. A ratio above 1
means that mpsgrad is faster.

Examples
--------
  mpsgrad bench --quick                           # does it run? one or two minutes
  mpsgrad bench --filter "convolution resnet50"   # names that have both words
  mpsgrad bench --batch 1,32 --dtype float16 --peers torch --json new.jsonl --plots out
  mpsgrad bench compare old.jsonl new.jsonl
  mpsgrad bench scaling --json scaling.jsonl --plots out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsgrad._command_line.report import UserError
from mpsgrad.benchmarks import command

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    command.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the benchmarks, or look at results."""
    try:
        return int(command.run(options))
    except command.BenchError as error:
        raise UserError(str(error)) from error
