"""Instance normalization in float64: statistics per image and channel over the pixels.

Epsilon is a float32. Weight gradients are per image: (N, C), summing over images is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.group_normalization import oracle as group
from tests.group_normalization.oracle import FLT_MIN, Gradients

if TYPE_CHECKING:
    from tests.core.oracle import Array

PIXELS = (1, 2)


def _standardize(source: npt.ArrayLike, epsilon: float) -> tuple[Array, Array]:
    """Return the standardized source and the reciprocal deviation (N, 1, 1, C)."""
    x = np.asarray(source, np.float64)
    centred = x - x.mean(axis=PIXELS, keepdims=True)
    variance = (centred**2).mean(axis=PIXELS, keepdims=True)
    r = 1 / np.sqrt(variance + float(np.float32(epsilon)))
    return centred * r, r


def forward(
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Array:
    """Normalize each channel of each image, scale and shift it."""
    y, _ = _standardize(source, epsilon)
    if gamma is not None:
        y = y * np.asarray(gamma, np.float64)
    return y if beta is None else y + np.asarray(beta, np.float64)


def gradients(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Gradients:
    """Gradients with respect to the source, gamma and beta."""
    g = np.asarray(gradient, np.float64)
    x_hat, r = _standardize(source, epsilon)
    mean = g.mean(axis=PIXELS, keepdims=True)
    covariance = (g * x_hat).mean(axis=PIXELS, keepdims=True)
    data = r * (g - mean - x_hat * covariance)
    if gamma is not None:
        data = data * np.asarray(gamma, np.float64)
    return Gradients(data, (g * x_hat).sum(axis=PIXELS), g.sum(axis=PIXELS))


# Magnitudes are those of one group per channel.


def forward_scale(
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Array:
    """Sum of the magnitudes in (x - mean) * r * gamma + beta."""
    channels = np.shape(source)[3]
    return group.forward_scale(source, gamma, beta, groups=channels, epsilon=epsilon)


def gradient_scales(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Gradients:
    """Sums of the magnitudes in `gradients`."""
    channels = np.shape(source)[3]
    return group.gradient_scales(gradient, source, gamma, groups=channels, epsilon=epsilon)
