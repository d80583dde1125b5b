"""Results files: one JSON object a line, and what is computed from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ALONE",
    "Record",
    "ResultsError",
    "geometric_mean",
    "peers_of",
    "read",
    "worst_first",
    "worst_ratio",
]

Record = dict[str, Any]

ALONE = "encoding_"  # before the name of a kernel whose encode is timed without its run


class ResultsError(Exception):
    """A file is not what it should be; its text is one line."""


def read(path: str) -> list[Record]:
    """Return the records of a results file.

    Raises
    ------
    ResultsError
        If it cannot be read, or holds something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ResultsError(f"{path}: cannot be read ({reason})") from error
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not record["name"] or not float(record["seconds"]["median"]) > 0:
                raise ValueError
        except (ValueError, TypeError, KeyError) as error:
            raise ResultsError(f"{path}, line {number}: not a benchmark result") from error
        records.append(record)
    if not records:
        raise ResultsError(f"{path}: holds no results")
    return records


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers; NaN if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def peers_of(records: Sequence[Record]) -> list[str]:
    """Return the names of all peers, PyTorch first."""
    names = {name for record in records for name in record["ratios"]}
    return sorted(names, key=lambda name: (name != "torch", name))


def worst_ratio(record: Record) -> float:
    """Return the time of the fastest peer over ours; infinity without peers."""
    return min(record["ratios"].values(), default=math.inf)


def worst_first(records: Sequence[Record]) -> list[Record]:
    """Return the records by ratio; those without peers last, by the fraction of their floor."""
    return sorted(records, key=lambda record: (worst_ratio(record), record.get("fraction", 1.0)))
