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
    "is_clear",
    "is_gradient",
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
            records.append(_checked(json.loads(line)))
        except KeyError as error:
            reason = f"not a benchmark result, {error} is missing"
            raise ResultsError(f"{path}, line {number}: {reason}") from error
        except (ValueError, TypeError) as error:
            raise ResultsError(f"{path}, line {number}: not a benchmark result") from error
    if not records:
        raise ResultsError(f"{path}: holds no results")
    return records


TEXTS = ("name", "family", "kernel", "layer", "dtype", "time", "caches", "device")
NUMBERS = ("flops", "bytes", "calls_a_run")
OF_MACHINE = ("multiply_add", "multiply_add_one", "empty_encode", "threads", "cores")


def _checked(record: Any) -> Record:
    """Return a record that has what tables, drawings and comparisons read."""
    texts = [record[key] for key in TEXTS]
    texts += [record["machine"][key] for key in ("name", "instruction_set", "system")]
    numbers = [record[key] for key in NUMBERS]
    numbers += [record["machine"][key] for key in OF_MACHINE]
    numbers += [number for row in record["machine"]["bandwidth"] for number in row]
    numbers += [number for row in record["machine"].get("reading", []) for number in row]
    positive = [record["seconds"][key] for key in ("q1", "median", "q3")]
    positive += record["ratios"].values()
    positive += [peer[key] for peer in record["peers"].values() for key in ("q1", "median", "q3")]
    lists = [record["notes"], record["machine"]["bandwidth"]]
    right = (
        all(isinstance(text, str) and text for text in texts)
        and all(isinstance(number, (int, float)) for number in (*numbers, *positive))
        and all(0 < number < math.inf for number in positive)
        and all(isinstance(found, list) for found in lists)
        and isinstance(record["versions"], dict)
        and isinstance(record["quick"], bool)
        and isinstance(record["commit"], (str, type(None)))
    )
    if not right:
        raise ValueError
    return dict(record)


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers; NaN if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def peers_of(records: Sequence[Record]) -> list[str]:
    """Return the names of all peers, PyTorch first."""
    names = {name for record in records for name in record["ratios"]}
    return sorted(names, key=lambda name: (name != "torch", name))


def is_gradient(record: Record) -> bool:
    """Whether a case is of gradients alone, without a forward pass."""
    return "gradient" in record["kernel"] or record["kernel"] == "backward"


def worst_ratio(record: Record) -> float:
    """Return the time of the fastest peer over ours; infinity without peers."""
    return min(record["ratios"].values(), default=math.inf)


def is_clear(record: Record, peer: str) -> bool:
    """Whether the middle halves of our rounds and of the peer's fastest variant are apart."""
    own = record["seconds"]
    variants = [summary for name, summary in record["peers"].items() if name.split()[0] == peer]
    best = min(variants, key=lambda summary: summary["median"], default=None)
    return best is None or best["q3"] < own["q1"] or own["q3"] < best["q1"]


def worst_first(records: Sequence[Record]) -> list[Record]:
    """Return the records by ratio; those without peers last, by the fraction of their floor."""
    return sorted(records, key=lambda record: (worst_ratio(record), record.get("fraction", 1.0)))
