"""Results as tables of a Markdown page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .results import (
    ALONE,
    ResultsError,
    geometric_mean,
    is_clear,
    is_gradient,
    peers_of,
    worst_first,
    worst_ratio,
)
from .scaling import fits
from .tables import amount, duration
from .targets import targets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .results import Record

__all__ = ["KERNELS", "RESULTS", "insert", "markdown", "markers"]

# Sections of a page. One that has no place for kernels has them among the results.
RESULTS, KERNELS = "results", "kernels"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _reading(machine: dict[str, Any]) -> str:
    """Return the clause on arrays that are only read; former versions have not measured it."""
    if "reading" not in machine:
        return ""
    _, one, every = machine["reading"][-1]
    return f"; reading alone: {every / 1e9:.1f}, {one / 1e9:.1f} on one thread"


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
        f"{every / 1e9:.1f} GB/s, {one / 1e9:.1f} on one thread{_reading(machine)}. An empty "
        "command buffer: "
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


def _targets(records: Sequence[Record]) -> str:
    rows = [
        [target.what, target.wanted, f"{target.reached}{'' if target.met else ' (not met)'}"]
        for target in targets(records)
    ]
    return _table(["target", "wanted", "reached"], rows) if rows else ""


def _of_peer(records: Sequence[Record], peer: str) -> list[str]:
    """Return how many times as fast as a peer, and how many cases are slower."""
    ratios = [record["ratios"][peer] for record in records if peer in record["ratios"]]
    slower = sum(ratio < 1 for ratio in ratios)
    return [f"{geometric_mean(ratios):.2f}", f"{slower} of {len(ratios)}"] if ratios else ["", ""]


def _families(records: Sequence[Record]) -> str:
    peers = peers_of(records)
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record["family"].replace("_", " ")].append(record)
    groups["all"] = list(records)
    groups["gradients alone"] = [record for record in records if is_gradient(record)]
    rows = [
        [name, str(len(group)), *(cell for peer in peers for cell in _of_peer(group, peer))]
        for name, group in groups.items()
        if any(record["ratios"] for record in group)
    ]
    heads = [head for peer in peers for head in (f"x {peer}", "slower")]
    return _table(["family", "cases", *heads], rows)


def _slower(records: Sequence[Record]) -> str:
    peers = peers_of(records)
    rows = []
    for record in worst_first(records):
        if worst_ratio(record) >= 1:
            break
        row = [record["name"], duration(record["seconds"]["median"] / record["calls_a_run"])]
        for peer in peers:
            about = "" if is_clear(record, peer) else "~"
            ratio = record["ratios"].get(peer)
            row.append("" if ratio is None else f"{about}{ratio:.2f}")
        rows.append(row)
    heads = ["slower than a peer", "time", *(f"x {peer}" for peer in peers)]
    return _table(heads, rows) if rows else ""


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


def markdown(records: Sequence[Record], points: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the text of each section; `points` may be empty.

    Of a case that is there twice the last counts.
    """
    records = list({record["name"]: record for record in records}.values())
    results = [_machine(records[0])]
    if records[0]["quick"]:
        results.append("**A trial with small layers and short times.**")
    results.append(_targets(records))
    if peers_of(records):
        results.append(_families(records))
    results += [_encodes(records), _notes(records)]
    if points:
        results += ["### Scaling", _scaling(points)]
    kernels = [_kernels(records), _slower(records)]
    return {
        name: "\n\n".join(part for part in parts if part)
        for name, parts in ((RESULTS, results), (KERNELS, kernels))
    }


def markers(section: str) -> tuple[str, str]:
    """Return the lines of a page between which a section goes."""
    return f"<!-- {section}: begin -->", f"<!-- {section}: end -->"


def _replaced(text: str, section: str, new: str) -> str | None:
    """Return the text with another section; None if it has not one of each marker, in order."""
    begin, end = markers(section)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{begin}\n\n{new}\n\n{end}{after}" if found and closed else None


def insert(page: Path, sections: dict[str, str]) -> None:
    """Replace what stands between the markers of a page.

    Raises
    ------
    ResultsError
        If the page cannot be read or written, or has no place for the results.
    """
    try:
        text = page.read_text(encoding="utf-8")
        with_kernels = _replaced(text, KERNELS, sections[KERNELS])
        results = sections[RESULTS]
        if with_kernels is None:
            results = f"{results}\n\n{sections[KERNELS]}"
        whole = _replaced(with_kernels or text, RESULTS, results)
        if whole is None:
            begin, end = markers(RESULTS)
            raise ResultsError(f"{page}: must have the lines {begin!r} and {end!r}")
        page.write_text(whole, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{page}: cannot be written ({error.strerror})") from error
