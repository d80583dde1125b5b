"""Reductions in float64, of arrays (N, H, W, C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array

FUNCTIONS = {
    "Min": np.min,
    "Max": np.max,
    "Mean": np.mean,
    "Sum": np.sum,
    "ArgumentMin": np.argmin,
    "ArgumentMax": np.argmax,
}


def reduce(source: npt.ArrayLike, axis: int, kind: str) -> Array:
    """One axis made 1 long."""
    values = np.asarray(source, np.float64)
    return np.asarray(FUNCTIONS[kind](values, axis=axis, keepdims=True), np.float64)  # type: ignore[operator]


def weighted(source: npt.ArrayLike, weights: npt.ArrayLike, divide_by: str | None = None) -> Array:
    """Sum products over channels; over their "number", or that of the "non-zero" weights."""
    values, factors = np.asarray(source, np.float64), np.asarray(weights, np.float64)
    sums = (values * factors).sum(axis=-1, keepdims=True)
    if divide_by is None:
        return np.asarray(sums)
    if divide_by == "number":
        return np.asarray(sums / values.shape[-1])
    count = np.count_nonzero(factors, axis=-1, keepdims=True)
    return np.where(count == 0, 0.0, sums / np.maximum(count, 1))


def correlation(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    window: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    edge: str = "zero",
) -> Array:
    """Products with shifted copies; `window` and `stride` are (x, y), and x runs fastest."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    height, width = a.shape[1:3]
    border = window[0] * stride[0], window[1] * stride[1]
    pad = (0, 0), (border[1], border[1]), (border[0], border[0]), (0, 0)
    wide = np.pad(b, pad, mode="edge" if edge == "clamp" else "constant")
    shifts = []
    for k in range(2 * window[1] + 1):
        for m in range(2 * window[0] + 1):
            y, x = k * stride[1], m * stride[0]
            shifts.append((a * wide[:, y : y + height, x : x + width]).sum(axis=-1))
    return np.stack(shifts, axis=-1)
