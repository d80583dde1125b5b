"""Results as tables of a Markdown page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .results import ALONE, ResultsError, geometric_mean, peers_of
from .scaling import fits
from .tables import amount, duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .results import Record

__all__ = ["BEGIN", "END", "insert", "markdown"]

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(record: Record) -> str:
    machine = record["machine"]
    size, one, every = machine["bandwidth"][-1]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    commit = f", commit {record['commit']}" if record["commit"] else ""
    return (
        f"{machine['name']}, {machine['instruction_set']}, {machine['threads']} of "
        f"{machine['cores']} processors; {versions}{commit}; caches {record['caches']}.\n"
        f"Multiply-adds: {machine['multiply_add'] / 1e9:.0f} GFLOP/s, "
        f"{machine['multiply_add_one'] / 1e9:.0f} on one thread. Copies of {amount(size)}: "
        f"{every / 1e9:.1f} GB/s, {one / 1e9:.1f} on one thread. An empty command buffer: "
        f"{duration(machine['empty_encode'])}."
    )


def _kernels(records: Sequence[Record]) -> str:
    peers = peers_of(records)
    several = len({record["batch"] for record in records} - {None}) > 1
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["calls_a_run"] == 1:
            batch = f", batch {record['batch']}" if several and record["batch"] is not None else ""
            kind = f"{record['family']}/{record['kernel']}", f"{record['dtype']}{batch}"
            groups[kind].append(record)
    rows = []
    for (kernel, dtype), group in groups.items():
        row = [kernel, dtype, str(len(group))]
        for name in ("fraction", "fraction_now"):
            fractions = [record[name] for record in group if name in record]
            row.append(f"{statistics.median(fractions):.0%}" if fractions else "")
        for peer in peers:
            found = {r["name"]: r["ratios"][peer] for r in group if peer in r["ratios"]}
            if found:
                row += [f"{geometric_mean(found.values()):.2f}", f"{min(found.values()):.2f}"]
            else:
                row += ["", ""]
        rows.append(row)
    heads = ["kernel", "type", "cases", "of floor", "now"]
    for peer in peers:
        heads += [f"x {peer}", "least"]
    return _table(heads, rows)


def _means(records: Sequence[Record]) -> str:
    peers = peers_of(records)
    rows = []
    for peer in peers:
        found = {r["name"]: r["ratios"][peer] for r in records if peer in r["ratios"]}
        worst = min(found, key=lambda name: found[name])
        slower = sum(value < 1 for value in found.values())
        rows.append(
            [
                peer,
                str(len(found)),
                f"{geometric_mean(found.values()):.2f}",
                str(slower),
                f"{found[worst]:.2f} ({worst})",
            ]
        )
    return _table(["peer", "cases", "geometric mean", "slower", "worst"], rows)


def _encodes(records: Sequence[Record]) -> str:
    each = {
        record["kernel"]: duration(record["seconds"]["median"] / record["calls_a_run"])
        for record in records
        if record["calls_a_run"] > 1
    }
    names = dict.fromkeys(name.removeprefix(ALONE) for name in each)
    rows = [[name, each.get(ALONE + name, ""), each.get(name, "")] for name in names]
    return _table(["one encode of one pixel", "alone", "with its run"], rows) if rows else ""


def _notes(records: Sequence[Record]) -> str:
    lines = [f"* {record['name']}: {note}" for record in records for note in record["notes"]]
    return "\n".join(["Peers that could not:", "", *lines]) if lines else ""


def _scaling(points: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            row["kernel"],
            row["axis"],
            f"{row['values'][0]:g} to {row['values'][-1]:g}",
            f"{row['exponent']:.2f}",
            f"{row['upper_exponent']:.2f}",
            f"{row['last_share']:.1%}",
        ]
        for row in fits(points)
    ]
    heads = ["kernel", "against", "range", "exponent", "upper half", "scratch at the end"]
    where = {(point.get("processor"), point.get("commit")) for point in points}
    told = [f"{name}, commit {commit}." for name, commit in where if name and commit]
    return "\n\n".join([*told, _table(heads, rows)])


def markdown(records: Sequence[Record], points: Sequence[dict[str, Any]]) -> str:
    """Return the tables; `points` may be empty. Of a case that is there twice the last counts."""
    records = list({record["name"]: record for record in records}.values())
    parts = [_machine(records[0])]
    if records[0]["quick"]:
        parts.append("**A trial with small layers and short times.**")
    if peers_of(records):
        parts.append(_means(records))
    parts.append(_kernels(records))
    parts += [part for part in (_encodes(records), _notes(records)) if part]
    if points:
        parts += ["### Scaling", _scaling(points)]
    return "\n\n".join(parts)


def insert(page: Path, text: str) -> None:
    """Replace what stands between the markers of a page.

    Raises
    ------
    ResultsError
        If the page cannot be read or written, or has not one of each marker, in order.
    """
    try:
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ResultsError(f"{page}: must have the lines {BEGIN!r} and {END!r}")
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{page}: cannot be written ({error.strerror})") from error
