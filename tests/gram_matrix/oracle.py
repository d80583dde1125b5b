"""Gram matrices in float64: products of every two channels, summed over the pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array


def _pixels(x: npt.ArrayLike) -> Array:
    x = np.asarray(x, np.float64)
    return x.reshape(len(x), -1, x.shape[-1])


def gram_matrix(x: npt.ArrayLike, alpha: float = 1.0) -> Array:
    """(N, H, W, C) to (N, 1, C, C): alpha * sum over (y, x) of x[f] * x[c] at (0, f, c)."""
    rows = _pixels(x)
    return alpha * (rows.transpose(0, 2, 1) @ rows)[:, np.newaxis]


def gram_matrix_gradient(gradient: npt.ArrayLike, x: npt.ArrayLike, alpha: float = 1.0) -> Array:
    """Gradient with respect to x: every channel is a factor in a row and in a column."""
    g = np.asarray(gradient, np.float64)[:, 0]
    return (alpha * (_pixels(x) @ (g + g.transpose(0, 2, 1)))).reshape(np.shape(x))


# Magnitudes that an evaluation adds up.


def gram_matrix_scale(x: npt.ArrayLike, alpha: float = 1.0) -> Array:
    """Magnitude to which the roundings of `gram_matrix` are relative."""
    return gram_matrix(np.abs(np.asarray(x, np.float64)), abs(alpha))


def gram_matrix_gradient_scale(
    gradient: npt.ArrayLike, x: npt.ArrayLike, alpha: float = 1.0
) -> Array:
    """Magnitude to which the roundings of `gram_matrix_gradient` are relative."""
    g, wide = np.abs(np.asarray(gradient, np.float64)), np.abs(np.asarray(x, np.float64))
    return gram_matrix_gradient(g, wide, abs(alpha))
