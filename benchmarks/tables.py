"""Results as tables for people, in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .results import geometric_mean, peers_of, worst_first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .results import Record

__all__ = ["console", "duration", "show_comparison", "show_machine", "show_results"]


def console() -> Console:
    """Return a console on standard output that does not cut tables short in files and pipes."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=160)


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
    out.print(
        f"multiply-adds {machine['multiply_add'] / 1e9:.0f} GFLOP/s "
        f"({machine['multiply_add_one'] / 1e9:.0f} on one thread); copies {rate / 1e9:.1f} GB/s "
        f"over {amount(size)}; an empty command buffer {duration(machine['empty_encode'])}"
    )


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    style = "red" if value < 1 else "green"
    return f"[{style}]{value:.2f}[/{style}]"


def _spread(seconds: Mapping[str, float]) -> str:
    return f"{(seconds['q3'] - seconds['q1']) / seconds['median']:.0%}"


def show_results(records: Sequence[Record], out: Console) -> None:
    """Print every case, the worst ratio first, and the means."""
    peers = peers_of(records)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case", no_wrap=True)
    for name in ("time", "spread", "of floor", "now", "limit", *(f"x {peer}" for peer in peers)):
        table.add_column(name, justify="right", no_wrap=True)
    for record in worst_first(records):
        seconds = record["seconds"]
        calls = record["calls_a_run"]
        each = f"{duration(seconds['median'] / calls)}{' a call' if calls > 1 else ''}"
        shares = [
            f"{record[name]:.0%}" if name in record else "-"
            for name in ("fraction", "fraction_now")
        ]
        ratios = [_ratio(record["ratios"].get(peer)) for peer in peers]
        limit = record.get("limit", "-")
        table.add_row(record["name"], each, _spread(seconds), *shares, limit, *ratios)
    out.print(table)
    _show_means(records, peers, out)
    notes = [f"{record['name']}: {note}" for record in records for note in record["notes"]]
    if notes:
        out.print("\nPeers that could not:")
        for note in notes:
            out.print(f"  {note}", markup=False, highlight=False)


def _show_means(records: Sequence[Record], peers: Sequence[str], out: Console) -> None:
    if not peers:
        return
    table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    table.add_column("geometric mean", no_wrap=True)
    for peer in peers:
        table.add_column(f"x {peer}", justify="right")
        table.add_column("slower", justify="right")
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
    out.print(table)


def show_comparison(
    rows: Sequence[tuple[str, str, float, float, float, bool]], out: Console
) -> None:
    """Print rows of `compare.compare`, the worst first."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case", no_wrap=True)
    for name in ("before", "after", "speed", "beyond spread"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, _, before, after, speed, clear in rows:
        marked = _ratio(speed) if clear else f"{speed:.2f}"
        table.add_row(name, duration(before), duration(after), marked, "yes" if clear else "")
    out.print(table)
    families = list(dict.fromkeys(family for _, family, *_ in rows))
    out.print()
    for family in (*families, "all"):
        speeds = [speed for _, of, _, _, speed, _ in rows if family in ("all", of)]
        out.print(
            f"{family}: {geometric_mean(speeds):.3f} times as fast "
            f"(geometric mean of {len(speeds)} cases)"
        )
