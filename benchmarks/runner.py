"""Runs cases: checks, peers, timing, and the record of each."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mpsgrad as mg

from .check import WrongResult
from .machine import commit
from .suite import Context
from .timing import Reported, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .machine import Machine
    from .suite import Case, Work
    from .timing import Effort, Timing

__all__ = ["Outcome", "Runner"]

LIMIT = "limit"  # the candidate that stands for what the machine can do at best


@dataclass
class Outcome:
    """What became of a case: a record for the results file, or the reason why there is none."""

    case: Case
    record: dict[str, Any] | None = None
    wrong: str | None = None
    unsupported: str | None = None
    notes: list[str] = field(default_factory=list)


class Runner:
    """Runs cases on one device against peers.

    Parameters
    ----------
    device : Device
    machine : Machine
    peers : list
        Loaded ones.
    effort : Effort
    quick : bool
        Whether cases are cut down, which the records then say.
    load : float, optional
        How many other programs were running at the start, which they say too.
    """

    def __init__(
        self,
        device: mg.Device,
        machine: Machine,
        peers: Sequence[Any],
        effort: Effort,
        *,
        quick: bool = False,
        load: float | None = None,
    ) -> None:
        self.device = device
        self.machine = machine
        self.peers = peers
        self.effort = effort
        self.common: dict[str, Any] = {
            "device": device.kind,
            "threads": machine.threads,
            "caches": "cold" if effort.cold else "warm",
            "quick": quick,
            "effort": effort.seconds,
            "load": load,
            "commit": commit(),
            "versions": {"mpsgrad": mg.__version__, **{peer.name: peer.version for peer in peers}},
            "machine": machine.as_dict(),
        }

    def run(self, case: Case) -> Outcome:
        """Check a case, then time it and its peers side by side."""
        outcome = Outcome(case)
        try:
            work = case.build(Context(self.device, case.name))
            work.run()
            for output in work.outputs:
                output.samples.compare(output.name, output.read())
        except mg.errors.UnsupportedError as error:
            outcome.unsupported = str(error)
            return outcome
        except WrongResult as error:
            outcome.wrong = str(error)
            return outcome
        except Exception as error:  # a broken kernel must not end a long run
            outcome.wrong = f"{type(error).__name__}: {_line(error)}"
            return outcome
        candidates: dict[str, Callable[[], object]] = {}
        if self._has_floor(work):
            floor_now = self.machine.floor_now
            candidates[LIMIT] = Reported(lambda: floor_now(work.flops, work.bytes))
        candidates["mpsgrad"] = work.run
        for peer in self.peers:
            if peer.name in work.peers:
                candidates.update(self._variants(peer, work, outcome))
        try:
            timings = measure(candidates, self.effort, self.machine.cache)
        except Exception as error:
            outcome.wrong = f"when repeated: {type(error).__name__}: {_line(error)}"
            return outcome
        outcome.record = self._record(case, work, timings, outcome.notes)
        return outcome

    def _has_floor(self, work: Work) -> bool:
        """Whether the machine's limits say something: they are those of warm caches."""
        is_limited = self.device.kind == "cpu" and not self.effort.cold
        return is_limited and bool(work.flops or work.bytes)

    def _variants(self, peer: Any, work: Work, outcome: Outcome) -> dict[str, Any]:
        """Return the calls of a peer that run and give the same result."""
        found = {}
        try:
            variants = work.peers[peer.name](peer)
        except Exception as error:  # whatever a library raises where it cannot do the work
            outcome.notes.append(f"{peer.name}: {_line(error)}")
            return {}
        for variant, call in variants.items():
            name = f"{peer.name} {variant}".strip()
            try:
                results = call()
                if not isinstance(results, (tuple, list)):
                    results = (results,)
                for output, result in zip(work.outputs, results, strict=True):
                    shape = output.read().shape
                    output.samples.compare_peer(output.name, peer.read(result, shape))
            except Exception as error:
                outcome.notes.append(f"{name}: {_line(error)}")
            else:
                found[name] = call
        return found

    def _record(
        self, case: Case, work: Work, timings: dict[str, Timing], notes: list[str]
    ) -> dict[str, Any]:
        own = timings["mpsgrad"]
        peers, ratios = {}, {}
        for name, timing in timings.items():
            if name in ("mpsgrad", LIMIT):
                continue
            peers[name] = timing.summary()
            best = ratios.get(name.split()[0])
            ratio = timing.median / own.median
            ratios[name.split()[0]] = ratio if best is None else min(best, ratio)
        floor: dict[str, Any] = {}
        if self._has_floor(work):
            seconds, limit = self.machine.floor(work.flops, work.bytes)
            floor = {
                "floor": seconds,
                "limit": limit,
                "fraction": seconds / own.median,
                "fraction_now": timings[LIMIT].median / own.median,
            }
        return {
            "name": case.name,
            "family": case.family,
            "kernel": case.kernel,
            "layer": case.layer,
            "batch": case.batch,
            "dtype": case.dtype,
            "shape": list(case.shape),
            "flops": work.flops,
            "bytes": work.bytes,
            "arrays": work.arrays,
            "calls_a_run": work.calls,
            "seconds": own.summary(),
            **floor,
            "peers": peers,
            "ratios": ratios,
            "notes": notes,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **self.common,
        }


def _line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
