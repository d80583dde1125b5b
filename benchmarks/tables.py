"""Results as tables for people, in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from .results import geometric_mean, is_clear, peers_of, worst_first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .results import Record
    from .targets import Target

__all__ = [
    "console",
    "duration",
    "new_table",
    "show_comparison",
    "show_machine",
    "show_results",
    "show_table",
    "show_targets",
]

LIMITS = {"arithmetic": "ops", "memory": "bytes"}  # as the table has them


WIDEST = 1000  # columns of a file or a pipe
NAMES = 24  # columns that names have at least


def console() -> Console:
    """Return a console on standard output that does not cut tables short in files and pipes."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=WIDEST)


def new_table(first: str, *numbers: str) -> Table:
    """Return a table in which names fold where a terminal is narrow, and numbers never do."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, overflow="fold", min_width=NAMES)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show_table(table: Table, out: Console) -> None:
    """Print a table; a terminal too narrow for its numbers breaks the lines, but cuts none."""
    whole = Measurement.get(out, out.options.update(max_width=WIDEST), table).maximum
    names = max(map(cell_len, map(str, table.columns[0].cells)), default=NAMES)
    least = whole - max(0, names - NAMES)
    width = out.width
    out.width = max(width, least)
    out.print(table)
    out.width = width


def _versus(peers: Sequence[str]) -> list[str]:
    return [f"x {peer}" for peer in peers]


def duration(seconds: float) -> str:
    """Return a time with a unit and three digits."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def amount(size: float) -> str:
    """Return a number of bytes with a unit."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**exponent:
            return f"{size / 2**exponent:.3g} {unit}"
    return f"{size:.0f} B"


def show_machine(machine: Mapping[str, Any], out: Console) -> None:
    """Print the limits of the machine."""
    out.print(
        f"{machine['name']}, {machine['instruction_set']}, {machine['threads']} of "
        f"{machine['cores']} processors; {machine['system']}"
    )
    size, _, rate = machine["bandwidth"][-1]
    reading = machine["reading"][-1][2]
    out.print(
        f"multiply-adds {machine['multiply_add'] / 1e9:.0f} GFLOP/s "
        f"({machine['multiply_add_one'] / 1e9:.0f} on one thread); copies {rate / 1e9:.1f} GB/s "
        f"over {amount(size)}, "
        f"reading alone {reading / 1e9:.1f}; an empty command buffer "
        f"{duration(machine['empty_encode'])}"
    )


def _ratio(value: float | None, *, clear: bool = True) -> str:
    if value is None:
        return "-"
    if not clear:
        return f"~{value:.2f}"
    style = "red" if value < 1 else "green"
    return f"[{style}]{value:.2f}[/{style}]"


def _spread(seconds: Mapping[str, float]) -> str:
    return f"{(seconds['q3'] - seconds['q1']) / seconds['median']:.0%}"


def show_results(records: Sequence[Record], out: Console) -> None:
    """Print every case, the worst ratio first, and the means."""
    peers = peers_of(records)
    table = new_table("case", "time", "spread", "of floor", "now", "limit", *_versus(peers))
    for record in worst_first(records):
        seconds = record["seconds"]
        calls = record["calls_a_run"]
        each = f"{duration(seconds['median'] / calls)}{'/call' if calls > 1 else ''}"
        shares = [
            f"{record[name]:.0%}" if name in record else "-"
            for name in ("fraction", "fraction_now")
        ]
        ratios = [
            _ratio(record["ratios"].get(peer), clear=is_clear(record, peer)) for peer in peers
        ]
        limit = LIMITS.get(record.get("limit", ""), "-")
        table.add_row(record["name"], each, _spread(seconds), *shares, limit, *ratios)
    show_table(table, out)
    if any(not is_clear(record, peer) for record in records for peer in record["ratios"]):
        out.print("~ before a ratio: the middle halves of both times overlap")
    _show_means(records, peers, out)
    notes = [f"{record['name']}: {note}" for record in records for note in record["notes"]]
    if notes:
        out.print("\nPeers that could not:")
        for note in notes:
            out.print(f"  {note}", markup=False, highlight=False)


def _show_means(records: Sequence[Record], peers: Sequence[str], out: Console) -> None:
    if not peers:
        return
    heads = [head for peer in peers for head in (f"x {peer}", "slower")]
    table = new_table("geometric mean", *heads)
    families = list(dict.fromkeys(record["family"] for record in records))
    for family in (*families, "all"):
        row = []
        for peer in peers:
            ratios = [
                record["ratios"][peer]
                for record in records
                if peer in record["ratios"] and family in ("all", record["family"])
            ]
            mean = geometric_mean(ratios)
            row.append("-" if math.isnan(mean) else _ratio(mean))
            row.append(f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}")
        table.add_row(family, *row)
    out.print()
    show_table(table, out)


def show_targets(targets: Sequence[Target], out: Console) -> None:
    """Print what the device is held to and what a run has reached."""
    table = new_table("target", "wanted", "reached")
    for target in targets:
        style = "green" if target.met else "red"
        table.add_row(target.what, target.wanted, f"[{style}]{target.reached}[/{style}]")
    if targets:
        out.print()
        show_table(table, out)


def show_comparison(
    rows: Sequence[tuple[str, str, float, float, float, bool]], out: Console
) -> None:
    """Print rows of `compare.compare`, the worst first."""
    table = new_table("case", "before", "after", "speed", "beyond spread")
    for name, _, before, after, speed, clear in rows:
        marked = _ratio(speed) if clear else f"{speed:.2f}"
        table.add_row(name, duration(before), duration(after), marked, "yes" if clear else "")
    show_table(table, out)
    families = list(dict.fromkeys(family for _, family, *_ in rows))
    out.print()
    for family in (*families, "all"):
        speeds = [speed for _, of, _, _, speed, _ in rows if family in ("all", of)]
        out.print(
            f"{family}: {geometric_mean(speeds):.3f} times as fast "
            f"(geometric mean of {len(speeds)} cases)"
        )
