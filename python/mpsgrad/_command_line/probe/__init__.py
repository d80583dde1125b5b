"""Ask the Metal device what Apple's documentation leaves open.

For each question: what mpsgrad assumes, which is also what the CPU device does, and what this
machine's framework answered. Without a Metal device there is nobody to ask: exit code 2.

Examples
--------
  mpsgrad probe
  mpsgrad probe --json > answers.json
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
from mpsgrad._command_line.probe import (
    convolution,
    core,
    dropout,
    geometry,
    graphs,
    normalization,
    optimizer,
    pooling,
    reshape,
    resize,
    softmax,
    upsampling,
)
from mpsgrad._command_line.report import UserError, open_device, print_json

if TYPE_CHECKING:
    import argparse

    from mpsgrad._command_line.probe.question import Question

__all__ = ["add_arguments", "run"]

_QUESTIONS: list[Question] = [
    *geometry.QUESTIONS,
    *core.QUESTIONS,
    *graphs.QUESTIONS,
    *pooling.QUESTIONS,
    *softmax.QUESTIONS,
    *dropout.QUESTIONS,
    *upsampling.QUESTIONS,
    *resize.QUESTIONS,
    *reshape.QUESTIONS,
    *optimizer.QUESTIONS,
    *convolution.QUESTIONS,
    *normalization.QUESTIONS,
    *graphs.QUESTIONS_OF_OURS,
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Ask every question and print the answers."""
    device = open_device("metal")
    if not options.json:
        console, table = _table(device)
    answers = [answer for question in _QUESTIONS for answer in question.ask(device)]
    if options.json:
        print_json(
            {
                "version": mg.__version__,
                "device": device.name,
                "system": _system(),
                "answers": [asdict(answer) for answer in answers],
            }
        )
        return 0
    for answer in answers:
        mark = {True: "yes", False: "NO", None: "not asked"}[answer.agrees]
        table.add_row(answer.id, answer.question, answer.assumed, answer.answered, mark)
    console.print(table)
    count = sum(answer.agrees is False for answer in answers)
    asked = sum(answer.agrees is not None for answer in answers)
    console.print(f"{asked} answers, {count} other than assumed.")
    return 0


def _system() -> str:
    version = platform.mac_ver()[0]
    return f"macOS {version}" if version else platform.platform(terse=True)


def _table(device: mg.Device) -> tuple[Any, Any]:
    try:
        from rich import box, console, table
    except ModuleNotFoundError:
        raise UserError(
            "the table needs rich, which is not installed; run: pip install rich, or give --json"
        ) from None
    result = table.Table(
        title=f"{device.name}, {_system()}, mpsgrad {mg.__version__}", box=box.SIMPLE_HEAD
    )
    result.add_column("", no_wrap=True)
    result.add_column("question", ratio=1, overflow="fold")
    for name in ("assumed", "answered", "as assumed"):
        result.add_column(name, max_width=18, overflow="fold")
    return console.Console(), result
