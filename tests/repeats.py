"""What gives the same bytes again: repeated samples of large batches, any number of threads.

And calls from several threads of Python at once.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from tests.tolerance import assert_same_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt


def call_at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Call each from a thread of its own; fail if one fails or does not end."""
    failures: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # raised below, in the test's own thread
            failures.append(error)

    workers = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    if failures:
        raise failures[0]
    assert not any(worker.is_alive() for worker in workers), "a thread does not end"


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Have the CPU device use so many threads, and after the block as many as before."""
    before = mg.get_num_threads()
    mg.set_num_threads(count)
    try:
        assert mg.get_num_threads() == count
        yield
    finally:
        mg.set_num_threads(before)


def check_thread_independence(
    run: Callable[[], Iterable[npt.NDArray[Any]]], counts: Sequence[int] = (1, 2, 3, 2)
) -> list[npt.NDArray[Any]]:
    """Compare the arrays that `run` makes on these numbers of threads; return the first ones.

    A number given twice compares runs. All results are kept, so that none is where another was.
    """
    results = []
    for count in counts:
        with threads(count):
            results.append(list(run()))
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            assert_same_bytes(actual, expected)
    return results[0]


def check_repeats(
    forward: Any,
    backward: Any,
    rng: np.random.Generator,
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    *,
    samples: int,
    repeat: int,
) -> int:
    """Compare a batch of samples (H, W, C) with each of them alone; return the results' bytes."""
    x, g = (
        np.tile(rng.standard_normal((samples, *shape)), (repeat, 1, 1, 1)).astype(dtype)
        for _ in range(2)
    )
    y, states = forward(x, with_state=True)
    dx = backward(g, x, states)
    for i in range(samples):
        one, state = forward(x[i], with_state=True)
        slope = backward(g[i], x[i], state)
        for at in range(i, len(x), samples):
            assert_same_bytes(y[at], one)
            assert_same_bytes(dx[at], slope)
    return y.nbytes
