"""What the CPU device is held to, and how much of it a run has reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .results import ALONE, geometric_mean, is_gradient
from .tables import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .results import Record

__all__ = ["Target", "targets"]

LEAST_RATIO = 1.5  # times as fast as PyTorch
LEAST_SHARES = {"arithmetic": (0.75, "the multiply-add peak"), "memory": (0.85, "a copy's speed")}
MOST_ENCODE = 2e-6  # seconds that a call takes beyond its arithmetic


@dataclass(frozen=True)
class Target:
    """A line of the table: what is held to what, what it should be, what it is."""

    what: str
    wanted: str
    reached: str
    met: bool


def targets(records: Sequence[Record]) -> list[Target]:
    """Return the targets that a run says something of; none for small layers of a trial."""
    if records[0]["quick"] or records[0]["device"] != "cpu":
        return []
    return [*_against_pytorch(records), *_against_limits(records), *_encodes(records)]


def _against_pytorch(records: Sequence[Record]) -> Iterator[Target]:
    timed = [record for record in records if "torch" in record["ratios"]]
    if not timed:
        return
    means = {f"geometric mean of {len(timed)} cases": timed}
    means |= {record["name"]: [record] for record in timed if record["family"] == "training"}
    for what, group in means.items():
        mean = geometric_mean(record["ratios"]["torch"] for record in group)
        title = f"times as fast as PyTorch, {what}"
        yield Target(title, f"{LEAST_RATIO:g}", f"{mean:.2f}", mean >= LEAST_RATIO)
    gradients = [record for record in timed if is_gradient(record)]
    if gradients:
        slower = sum(record["ratios"]["torch"] < 1 for record in gradients)
        reached = f"{slower} of {len(gradients)}"
        yield Target("gradients slower than PyTorch", "none", reached, slower == 0)


def _against_limits(records: Sequence[Record]) -> Iterator[Target]:
    for limit, (least, name) in LEAST_SHARES.items():
        shares = [
            record["fraction_now"]
            for record in records
            if record.get("limit") == limit and "fraction_now" in record
        ]
        enough = sum(share >= least for share in shares)
        if shares:
            yield Target(
                f"bound by {limit}, at {least:.0%} of {name} or more",
                "all",
                f"{enough} of {len(shares)}",
                enough == len(shares),
            )


def _encodes(records: Sequence[Record]) -> Iterator[Target]:
    alone = [
        record["seconds"]["median"] / record["calls_a_run"]
        for record in records
        if record["kernel"].startswith(ALONE)
    ]
    if alone:
        yield Target(
            f"longest of {len(alone)} encodes",
            f"{duration(MOST_ENCODE)} at most",
            duration(max(alone)),
            max(alone) <= MOST_ENCODE,
        )
