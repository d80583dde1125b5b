"""Two results files side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Record

__all__ = ["compare", "differences"]


def compare(
    before: Sequence[Record], after: Sequence[Record]
) -> list[tuple[str, str, float, float, float, bool]]:
    """Return (name, family, seconds before, seconds after, speed-up, clear), the worst first.

    A change is clear if the middle halves of the two sets of rounds do not overlap.
    """
    old = {record["name"]: record for record in before}
    rows = []
    for record in after:
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
    names = [{record["name"] for record in records} for records in (before, after)]
    for which, missing in (("second", names[0] - names[1]), ("first", names[1] - names[0])):
        if missing:
            found.append(f"{len(missing)} cases are not in the {which} file")
    a, b = before[0], after[0]
    for key in ("device", "threads", "caches", "quick"):
        if a.get(key) != b.get(key):
            found.append(f"{key}: {a.get(key)}, then {b.get(key)}")
    for key in ("name", "instruction_set"):
        one, other = (record["machine"].get(key) for record in (a, b))
        if one != other:
            found.append(f"machine: {one}, then {other}")
    if a.get("commit") != b.get("commit"):
        found.append(f"commit: {a.get('commit')}, then {b.get('commit')}")
    return found
