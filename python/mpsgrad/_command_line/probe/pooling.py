"""Poolings: equal pixels, taps outside the image, norms of 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]

_MAX = (mg.PoolingMax, mg.PoolingMaxGradient)
_DILATED = (mg.DilatedPoolingMax, mg.DilatedPoolingMaxGradient)
_NORM = (mg.PoolingL2Norm, mg.PoolingL2NormGradient)
_CLAMP = mg.EdgeMode.CLAMP


def _pool(
    on: mg.Device,
    classes: tuple[Any, Any],
    window: tuple[int, ...],
    source: list[float],
    incoming: list[float],
    *,
    offset: int = 0,
    edge_mode: mg.EdgeMode = mg.EdgeMode.ZERO,
) -> Any:
    """Return the result of a pooling one pixel high, and after it the gradient."""
    forward, gradient = (cls(*window, device=on) for cls in classes)
    forward.offset = (offset, 0)
    forward.edge_mode = edge_mode
    rows = [np.asarray(values, np.float32).reshape(1, 1, -1, 1) for values in (source, incoming)]
    sources, gradients = (mg.ImageBatch.from_array(on, row) for row in rows)
    results = mg.ImageBatch.allocate(
        on,
        mg.ImageDescriptor(width=len(incoming), height=1, feature_channels=1),
        1,
    )
    states = forward.result_state(sources, results)
    with on.command_queue().command_buffer() as work:
        forward.encode(work, sources, results, destination_state=states)
        dx = gradient.encode(work, gradients, sources, states, allocator=mg.DEFAULT)
        mg.synchronize(results, work)
        mg.synchronize(dx, work)
    work.wait_until_completed()
    return np.concatenate([results.to_array().ravel(), dx.to_array().ravel()])


QUESTIONS: list[Question] = [
    OnBoth(
        "pooling 1",
        "a max pooling of equal pixels, 7 7 7 2: which of them gets the gradient",
        lambda on: _pool(on, _MAX, (3, 1, 1, 1), [7, 7, 7, 2], [10, 20], offset=1)[2:],
    ),
    OnBoth(
        "pooling 2",
        "a max pooling of 0 -1 with zeros outside: whether the zero inside wins",
        lambda on: _pool(on, _MAX, (3, 1, 1, 1), [0, -1], [1, 2])[2:],
    ),
    OnBoth(
        "pooling 3",
        "a dilated max pooling that clamped: taps beyond the edge read the edge pixel",
        lambda on: _pool(
            on, _DILATED, (2, 1, 3, 1, 1, 1), [9, 1, 2, 3], [1, 2], offset=1, edge_mode=_CLAMP
        ),
    ),
    OnBoth(
        "pooling 4",
        "a max pooling whose window lies wholly outside, clamped",
        lambda on: _pool(on, _MAX, (2, 1, 1, 1), [5, 6, 7], [1], offset=9, edge_mode=_CLAMP)[:1],
    ),
    OnBoth(
        "pooling 5",
        "an L2 norm pooling of 3 4, clamped: repeats of the edge pixels count",
        lambda on: _pool(on, _NORM, (3, 1, 1, 1), [3, 4], [1, 0], edge_mode=_CLAMP),
    ),
    OnBoth(
        "pooling 6",
        "an L2 norm pooling of zeros: the gradient where the norm is 0",
        lambda on: _pool(on, _NORM, (2, 1, 2, 1), [0, 0, 0, 0], [7, 7], offset=1)[2:],
    ),
]
