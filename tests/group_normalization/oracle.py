"""Group normalization in float64: statistics per image and group of consecutive channels.

Epsilon is a float32. Weight gradients are per image: (N, C), summing over images is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array

FLT_MIN = float(np.finfo(np.float32).tiny)  # epsilon of a data source that names none


class Gradients(NamedTuple):
    """Results of a gradient encode."""

    data: Array  # (N, H, W, C)
    gamma: Array  # (N, C)
    beta: Array  # (N, C)


def group_mean(values: npt.ArrayLike, groups: int) -> Array:
    """Mean over the pixels and channels of each group, repeated in the shape of `values`."""
    values = np.asarray(values, np.float64)
    grouped = values.reshape(*values.shape[:3], groups, -1)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
    return np.broadcast_to(mean, grouped.shape).reshape(values.shape)


def _standardize(source: npt.ArrayLike, groups: int, epsilon: float) -> tuple[Array, Array]:
    """Return the standardized source and the reciprocal deviation, both (N, H, W, C)."""
    x = np.asarray(source, np.float64)
    centred = x - group_mean(x, groups)
    r = 1 / np.sqrt(group_mean(centred**2, groups) + float(np.float32(epsilon)))
    return centred * r, r


def _scale(channels: int, gamma: npt.ArrayLike | None) -> Array:
    return np.ones(channels) if gamma is None else np.asarray(gamma, np.float64)


def forward(
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    groups: int,
    epsilon: float = FLT_MIN,
) -> Array:
    """Normalize each group of each image, scale and shift each channel."""
    x_hat, _ = _standardize(source, groups, epsilon)
    scaled = x_hat * _scale(x_hat.shape[3], gamma)
    return scaled if beta is None else scaled + np.asarray(beta, np.float64)


def gradients(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    groups: int,
    epsilon: float = FLT_MIN,
) -> Gradients:
    """Gradients with respect to the source, gamma and beta."""
    g = np.asarray(gradient, np.float64)
    x_hat, r = _standardize(source, groups, epsilon)
    # Gamma varies within a group, so it belongs inside the means.
    h = _scale(g.shape[3], gamma) * g
    data = r * (h - group_mean(h, groups) - x_hat * group_mean(h * x_hat, groups))
    return Gradients(data, (g * x_hat).sum(axis=(1, 2)), g.sum(axis=(1, 2)))


# --- Magnitudes --------------------------------------------------------------
# Of what an evaluation adds up once mean and variance are known.


def forward_scale(
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    groups: int,
    epsilon: float = FLT_MIN,
) -> Array:
    """Sum of the magnitudes in (x - mean) * r * gamma + beta."""
    x = np.asarray(source, np.float64)
    _, r = _standardize(x, groups, epsilon)
    spread = (np.abs(x) + np.abs(group_mean(x, groups))) * r
    scaled = spread * np.abs(_scale(x.shape[3], gamma))
    return scaled if beta is None else scaled + np.abs(np.asarray(beta, np.float64))


def gradient_scales(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    groups: int,
    epsilon: float = FLT_MIN,
) -> Gradients:
    """Sums of the magnitudes in `gradients`."""
    g, x = np.abs(np.asarray(gradient, np.float64)), np.asarray(source, np.float64)
    _, r = _standardize(x, groups, epsilon)
    spread = (np.abs(x) + np.abs(group_mean(x, groups))) * r
    h = np.abs(_scale(g.shape[3], gamma)) * g
    data = r * (h + group_mean(h, groups) + spread * group_mean(h * spread, groups))
    return Gradients(data, (g * spread).sum(axis=(1, 2)), g.sum(axis=(1, 2)))
