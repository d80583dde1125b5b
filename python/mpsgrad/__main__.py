"""The command line: `mpsgrad` and `python -m mpsgrad`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import mpsgrad
from mpsgrad._command_line import bench, devices, probe, train
from mpsgrad._command_line.report import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = {"train": train, "devices": devices, "bench": bench, "probe": probe}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Returns
    -------
    int
        Exit code: 0; 1 if a benchmark finds a wrong result; 2 for bad input, after one line that
        says what is wrong; 130 if interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="mpsgrad",
        description="Gradient kernels of MetalPerformanceShaders for NumPy.",
        epilog="`mpsgrad COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"mpsgrad {mpsgrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        summary, _, details = (module.__doc__ or "").partition("\n\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n\n{details}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        return int(_COMMANDS[options.command].run(options))
    except UserError as error:
        print(f"mpsgrad {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mpsgrad {options.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
