"""Two results files side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Record

__all__ = ["compare", "differences"]

NOISE = 1.1  # peaks of one machine differ by less, if nobody else uses it


def compare(
    before: Sequence[Record], after: Sequence[Record]
) -> list[tuple[str, str, float, float, float, bool]]:
    """Return (name, family, seconds before, seconds after, speed-up, clear), the worst first.

    A change is clear if the middle halves of the two sets of rounds do not overlap. Of a case that
    a file holds several times the last counts.
    """
    old, new = ({record["name"]: record for record in records} for records in (before, after))
    rows = []
    for record in new.values():
        if record["name"] not in old:
            continue
        a, b = old[record["name"]]["seconds"], record["seconds"]
        clear = a["q3"] < b["q1"] or b["q3"] < a["q1"]
        speed = a["median"] / b["median"]
        rows.append((record["name"], record["family"], a["median"], b["median"], speed, clear))
    return sorted(rows, key=lambda row: row[4])


def differences(before: Sequence[Record], after: Sequence[Record]) -> list[str]:
    """Return what else differs between the runs, a line each."""
    found = []
    both = before, after
    names = [{record["name"] for record in records} for records in both]
    for which, missing in (("second", names[0] - names[1]), ("first", names[1] - names[0])):
        if missing:
            found.append(f"{len(missing)} cases are not in the {which} file")
    for key in ("device", "threads", "caches", "quick", "commit"):
        found += _unlike(key, *([record.get(key) for record in records] for records in both))
    for key in ("name", "instruction_set"):
        machines = ([record["machine"][key] for record in records] for records in both)
        found += _unlike("machine", *machines)
    for library in sorted({name for records in both for r in records for name in r["versions"]}):
        versions = ([record["versions"].get(library) for record in records] for records in both)
        found += _unlike(library, *versions)
    peaks = [[record["machine"]["multiply_add"] / 1e9 for record in records] for records in both]
    if max(map(max, peaks)) > NOISE * min(map(min, peaks)):
        one, other = (f"{min(of):.0f} to {max(of):.0f}" for of in peaks)
        found.append(f"multiply-adds: {one} GFLOP/s, then {other}")
    return found


def _unlike(what: str, before: Sequence[object], after: Sequence[object]) -> list[str]:
    """Return a line if two runs, or the records of one of them, do not agree on something."""
    one, other = (", ".join(map(str, dict.fromkeys(values))) for values in (before, after))
    return [f"{what}: {one}, then {other}"] if one != other or ", " in one else []
