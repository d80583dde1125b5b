"""Large batches of a few samples, repeated: all that a sample gives it gives everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.tolerance import assert_same_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


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
