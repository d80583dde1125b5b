"""Softmax and log-softmax over the channels of each pixel, in float64.

Both gradients take the forward *result*, not the forward source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array


def _total(values: Array) -> Array:
    return values.sum(axis=-1, keepdims=True)


def _below_peak(x: npt.ArrayLike) -> Array:
    x = np.asarray(x, np.float64)
    return x - x.max(axis=-1, keepdims=True)


def softmax(x: npt.ArrayLike) -> Array:
    """exp(x) / sum of exp(x) over channels."""
    powers = np.exp(_below_peak(x))
    return powers / _total(powers)


def log_softmax(x: npt.ArrayLike) -> Array:
    """x - log(sum of exp(x) over channels)."""
    below = _below_peak(x)
    return below - np.log(_total(np.exp(below)))


def softmax_gradient(gradient: npt.ArrayLike, result: npt.ArrayLike) -> Array:
    """Gradient with respect to the source, from the softmax itself."""
    g, s = np.asarray(gradient, np.float64), np.asarray(result, np.float64)
    return s * (g - _total(g * s))


def log_softmax_gradient(gradient: npt.ArrayLike, result: npt.ArrayLike) -> Array:
    """Gradient with respect to the source, from the log-softmax itself."""
    g, logs = np.asarray(gradient, np.float64), np.asarray(result, np.float64)
    return g - np.exp(logs) * _total(g)


# Magnitudes that an evaluation adds up; an exponential multiplies the rounding of its argument,
# unless that is minus infinity.


def _finite(x: npt.ArrayLike) -> Array:
    x = np.asarray(x, np.float64)
    return np.where(np.isfinite(x), x, 0.0)


def softmax_scale(x: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `softmax` are relative."""
    below = np.abs(_finite(_below_peak(x)))
    return softmax(x) * (1.0 + below + _total(softmax(x) * below))


def log_softmax_scale(x: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `log_softmax` are relative."""
    below = np.abs(_finite(_below_peak(x)))
    return below + np.log(_total(np.exp(-below))) + 1.0 + _total(softmax(x) * below)


def softmax_gradient_scale(gradient: npt.ArrayLike, result: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `softmax_gradient` are relative."""
    g, s = np.abs(np.asarray(gradient, np.float64)), np.abs(np.asarray(result, np.float64))
    return s * (g + _total(g * s))


def log_softmax_gradient_scale(gradient: npt.ArrayLike, result: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `log_softmax_gradient` are relative."""
    g, logs = np.abs(np.asarray(gradient, np.float64)), np.asarray(result, np.float64)
    return g + np.exp(logs) * (1.0 + np.abs(_finite(logs))) * _total(g)
