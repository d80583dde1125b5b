"""What this machine can do at best, measured before anything else."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Machine", "commit", "measure_machine", "use_threads"]


@dataclass(frozen=True)
class Machine:
    """Limits of this machine.

    Attributes
    ----------
    name, instruction_set : str
        Of the processor.
    cores, threads : int
        Processors that this process may use, and how many threads it does use.
    cache : int
        Bytes of the largest cache.
    multiply_add, multiply_add_one : float
        Floating-point operations a second in registers, of all threads and of one.
    bandwidth : list of (int, float, float)
        Bytes read and written by a copy, and how many a second one thread and all threads move.
    reading : list of (int, float, float)
        The same of arrays that are only read.
    empty_encode : float
        Seconds to make, commit and await a command buffer without work.
    """

    name: str
    system: str
    instruction_set: str
    cores: int
    threads: int
    cache: int
    multiply_add: float
    multiply_add_one: float
    bandwidth: list[tuple[int, float, float]]
    reading: list[tuple[int, float, float]]
    empty_encode: float

    def copy_rate(self, size: float) -> float:
        """Return bytes a second that all threads move in a copy which touches ``size`` bytes."""
        sizes = np.log([row[0] for row in self.bandwidth])
        rates = np.log([row[2] for row in self.bandwidth])
        return float(np.exp(np.interp(np.log(max(size, 1.0)), sizes, rates)))

    def floor(self, flops: float, size: float) -> tuple[float, str]:
        """Return the least seconds that work can take, and what limits it."""
        arithmetic = flops / self.multiply_add
        memory = size / self.copy_rate(size)
        return (arithmetic, "arithmetic") if arithmetic > memory else (memory, "memory")

    def floor_now(self, flops: float, size: float) -> float:
        """Return the same seconds at the speed that the machine has just now.

        Others may use it, so the limit of what a case does is measured again beside the case.
        """
        from mpsgrad import _core

        if self.floor(flops, size)[1] == "memory":
            return size / _best_copy(self.threads, int(size), 1e-9)

        def usual() -> float:
            return float(np.median([_core.fma_peak(1e-9) for _ in range(9)]))

        return flops / _together(self.threads, usual)

    def as_dict(self) -> dict[str, Any]:
        """Return what belongs into a results file."""
        return asdict(self)


def use_threads(count: int) -> None:
    """Let this process, and every library that it loads later, use that many processors."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:count])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)
    import mpsgrad as mg

    mg.set_num_threads(count)


def available_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _together(count: int, work: Callable[[], float]) -> float:
    """Run the same measurement on several threads at once; return the sum.

    An interrupt is raised when all have ended: the process must not end under them.
    """
    barrier = threading.Barrier(count)

    def one() -> float:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        futures = []
        try:
            futures += [pool.submit(one) for _ in range(count)]
            return sum(future.result() for future in futures)
        except BaseException:
            barrier.abort()
            wait(futures)
            raise


def _best_copy(count: int, size: int, seconds: float) -> float:
    """Return bytes a second that threads move which share ``size`` bytes, with the better store."""
    from mpsgrad import _core

    array = max(4, size // (2 * count))
    return max(
        _together(count, lambda s=streaming: _core.copy_bandwidth(array, s, seconds))
        for streaming in (False, True)
    )


def _best_read(count: int, size: int, seconds: float) -> float:
    """Return bytes a second that threads read which share ``size`` bytes."""
    from mpsgrad import _core

    return _together(count, lambda: _core.read_bandwidth(max(4, size // count), seconds))


def _empty_encode(repeats: int) -> float:
    import mpsgrad as mg

    queue = mg.Device("cpu").command_queue()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        buffer = queue.command_buffer()
        buffer.commit()
        buffer.wait_until_completed()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure_machine(threads: int, *, cores: int | None = None, quick: bool = False) -> Machine:
    """Measure peaks of arithmetic and of memory, and the cost of an empty command buffer.

    `cores` is how many processors there were before `use_threads` left fewer.
    """
    import mpsgrad as mg
    from mpsgrad import _core

    seconds = 0.01 if quick else 0.1
    cache = largest_cache()
    largest = 2**22 if quick else 2**29
    sizes = [2**exponent for exponent in range(14, 40, 2) if 2**exponent < largest] + [largest]

    def rates(best: Callable[[int, int, float], float]) -> list[tuple[int, float, float]]:
        return [(n, best(1, n, seconds / 2), best(threads, n, seconds / 2)) for n in sizes]

    return Machine(
        name=processor_name(),
        system=f"{platform.system()} {platform.release()}",
        instruction_set=mg.cpu_instruction_set(),
        cores=cores or available_processors(),
        threads=threads,
        cache=cache,
        multiply_add=_together(threads, lambda: _core.fma_peak(seconds)),
        multiply_add_one=_core.fma_peak(seconds),
        bandwidth=rates(_best_copy),
        reading=rates(_best_read),
        empty_encode=_empty_encode(200 if quick else 5000),
    )


def processor_name() -> str:
    """Return what the processor calls itself."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return result.stdout.strip()
    return platform.processor() or platform.machine()


def largest_cache() -> int:
    """Return the bytes of the largest cache; 32 MiB where the system does not say."""
    units = {"K": 2**10, "M": 2**20}
    found = [2**25]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text[-1:] in units and text[:-1].isdigit():
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found)


def commit() -> str | None:
    """Return the commit of the checkout that this file lies in, with a plus sign for changes."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git(
            "status", "--porcelain", "--untracked-files=no", "--", "csrc", "python", "benchmarks"
        )
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
