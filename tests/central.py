"""Derivatives by central differences in float64: what every gradient oracle is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[np.float64]

# Five-point stencil: truncation error step**4 / 30 times the fifth derivative, rounding error about
# 1e-16 / step. Arguments must keep two steps away from every kink.
STEP = 1e-3


def derivative(function: Callable[[Array], Array], at: npt.ArrayLike, weights: Array) -> Array:
    """Gradient of ``sum(weights * function(at))`` with respect to `at`, element by element."""
    at = np.array(at, np.float64)
    result = np.empty_like(at)

    def value(index: tuple[int, ...], shift: float) -> float:
        moved = at.copy()
        moved[index] += shift
        return float(np.sum(weights * function(moved)))

    for index in np.ndindex(at.shape):
        near = value(index, STEP) - value(index, -STEP)
        far = value(index, 2 * STEP) - value(index, -2 * STEP)
        result[index] = (8 * near - far) / (12 * STEP)
    return result


def assert_derivative(
    function: Callable[[Array], Array],
    at: npt.ArrayLike,
    weights: npt.ArrayLike,
    gradient: npt.ArrayLike,
    *,
    tolerance: float = 1e-8,
) -> None:
    """Fail unless `gradient` is the gradient of ``sum(weights * function(at))`` at `at`.

    `tolerance` is relative to the largest element of the gradient, or to 1 if that is smaller.
    """
    expected = derivative(function, at, np.asarray(weights, np.float64))
    gradient = np.asarray(gradient, np.float64)
    assert gradient.shape == expected.shape, f"shape {gradient.shape}, expected {expected.shape}"
    error = np.abs(gradient - expected)
    allowed = tolerance * max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not np.all(error <= allowed):
        worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
        raise AssertionError(
            f"not the derivative: at {[int(i) for i in worst]} gradient {gradient[worst]!r}, "
            f"central difference {expected[worst]!r}, allowed error {allowed:.3g}"
        )
