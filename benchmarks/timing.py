"""Timing of several ways to do the same work, side by side."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Effort", "Prepared", "Reported", "Timing", "keep_freed_memory", "measure"]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes
    ----------
    seconds : float
        Time of each candidate's timed calls, about.
    rounds : int
        How often every candidate gets its turn.
    cold : bool
        Whether the caches are emptied before every timed call.
    """

    seconds: float = 0.5
    rounds: int = 7
    cold: bool = False


@dataclass(frozen=True)
class Prepared:
    """A call that needs something done before it, every time, which `measure` does not time."""

    prepare: Callable[[], object]
    run: Callable[[], object]

    def __call__(self) -> object:
        """Do both."""
        self.prepare()
        return self.run()


@dataclass(frozen=True)
class Reported:
    """A candidate that says itself how many seconds a call takes."""

    seconds: Callable[[], float]

    def __call__(self) -> object:
        """Ask it."""
        return self.seconds()


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one value a round."""

    rounds: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        """Of the rounds."""
        return float(np.median(self.rounds))

    def summary(self) -> dict[str, float | int]:
        """Return what a report needs: median, minimum, quartiles and the number of calls."""
        low, high = np.quantile(self.rounds, [0.25, 0.75])
        return {
            "median": self.median,
            "min": min(self.rounds),
            "q1": float(low),
            "q3": float(high),
            "rounds": len(self.rounds),
            "calls": self.calls,
        }


def keep_freed_memory() -> bool:
    """Tell glibc to keep what it has freed, so that no library's results cost page faults.

    Returns whether that was possible: it is not on other systems.
    """
    import ctypes

    trim_threshold, mmap_max = -1, -4
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(mmap_max, 0) and mallopt(trim_threshold, 2**31 - 1))


_scratch: np.ndarray | None = None


def _empty_caches(size: int) -> None:
    global _scratch
    if _scratch is None or _scratch.nbytes != size:
        _scratch = np.zeros(size, np.uint8)
    _scratch += 1


def _settle() -> None:
    """Wait until the threads of the candidate before no longer spin; OpenMP's do so for a while."""
    pause, most = 0.002, 0.1
    for _ in range(round(most / pause)):
        spent = time.process_time()
        time.sleep(pause)
        if time.process_time() - spent < pause / 10:
            return


def _block(run: Callable[[], object], calls: int, cold: bool, cache: int) -> float:
    """Return the mean time of some calls."""
    if isinstance(run, Reported):
        return run.seconds()
    prepare = None
    if isinstance(run, Prepared):
        prepare, run = run.prepare, run.run
    if not cold:
        for _ in range(1 + calls // 2):  # caches as this candidate leaves them, its threads awake
            if prepare is not None:
                prepare()
            run()
    if cold or prepare is not None:
        total = 0.0
        for _ in range(calls):
            if prepare is not None:
                prepare()
            if cold:
                _empty_caches(2 * cache)
            start = time.perf_counter()
            run()
            total += time.perf_counter() - start
        return total / calls
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def measure(
    candidates: Mapping[str, Callable[[], object]], effort: Effort, cache: int = 2**25
) -> dict[str, Timing]:
    """Time calls of every candidate in turn, round after round.

    Parameters
    ----------
    candidates : mapping of str to callable
        Each has been called before.
    effort : Effort
    cache : int
        Bytes of the largest cache.

    Returns
    -------
    dict of str to Timing
        A candidate whose call takes longer than ``effort.seconds`` has fewer rounds.
    """
    calls, rounds = {}, {}
    for name, run in candidates.items():
        once = _block(run, 1, effort.cold, cache)
        calls[name] = max(1, min(100_000, round(effort.seconds / effort.rounds / max(once, 1e-9))))
        rounds[name] = max(2, min(effort.rounds, int(8 * effort.seconds / max(once, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(effort.rounds):
            for name, run in candidates.items():
                if turn >= rounds[name]:
                    continue
                if len(candidates) > 1:
                    _settle()
                times[name].append(_block(run, calls[name], effort.cold, cache))
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(tuple(values), calls[name] * len(values)) for name, values in times.items()
    }
