"""Copies and their transposes, in float64: indices of every axis, and one addition an element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.core.oracle import Array

    Indices = npt.NDArray[np.int64]

OUTSIDE = -1


def indices(edge: str, length: int, first: int, count: int) -> Indices:
    """What `count` positions from `first` on read of an axis, `OUTSIDE` for nothing."""

    def one(position: int) -> int:
        if 0 <= position < length:
            return position
        if edge in ("zero", "constant"):
            return OUTSIDE
        if edge == "clamp" or length == 1:
            return 0 if position < 0 else length - 1
        # The image, and behind it what is seen on the way back: a pattern without an end.
        back = range(length - 1, -1, -1) if edge == "mirror_with_edge" else range(length - 2, 0, -1)
        pattern = [*range(length), *back]
        return pattern[position % len(pattern)]

    return np.array([one(position) for position in range(first, first + count)], np.int64)


def around(
    source: npt.ArrayLike,
    offset: Sequence[int],
    size: Sequence[int],
    edge: str,
    fill: npt.ArrayLike = 0.0,
) -> Array:
    """A box of (N, H, W, C) images that may reach outside.

    Parameters
    ----------
    offset : (y, x, channel)
        Where it begins.
    size : (height, width, channels)
    fill : float or array of channels
        What is outside with edge "constant".
    """
    source = np.asarray(source, np.float64)
    rows, columns, channels = (
        indices(edge, *where) for where in zip(source.shape[1:], offset, size, strict=True)
    )
    result = source[:, rows][:, :, columns][..., channels]
    outside = (
        (rows == OUTSIDE)[:, None, None] | (columns == OUTSIDE)[:, None] | (channels == OUTSIDE)
    )
    filling = np.asarray(fill if edge == "constant" else 0.0, np.float64)
    return np.where(outside, filling, result)


def pad(
    source: npt.ArrayLike,
    before: Sequence[int],
    after: Sequence[int],
    edge: str,
    fill: npt.ArrayLike = 0.0,
) -> Array:
    """Images with a border; sizes are (x, y, channel)."""
    shape = np.shape(source)[1:]
    offset = [-before[axis] for axis in (1, 0, 2)]
    size = [shape[i] + before[axis] + after[axis] for i, axis in enumerate((1, 0, 2))]
    return around(source, offset, size, edge, fill)


def around_gradient(
    gradient: npt.ArrayLike, shape: Sequence[int], offset: Sequence[int], edge: str
) -> Array:
    """Gradient of `around` with respect to its source (N, H, W, C): every place gives its own."""
    gradient = np.asarray(gradient, np.float64)
    result = np.zeros(shape)
    rows, columns, channels = (
        indices(edge, *where) for where in zip(shape[1:], offset, gradient.shape[1:], strict=True)
    )
    for j, y in enumerate(rows):
        for i, x in enumerate(columns):
            if y != OUTSIDE and x != OUTSIDE:
                inside = channels != OUTSIDE
                for n in range(len(gradient)):
                    np.add.at(result[n, y, x], channels[inside], gradient[n, j, i][inside])
    return result


def pad_gradient(
    gradient: npt.ArrayLike,
    shape: Sequence[int],
    before: Sequence[int],
    edge: str,
) -> Array:
    """Gradient of `pad` with respect to its source of that shape."""
    return around_gradient(gradient, shape, [-before[axis] for axis in (1, 0, 2)], edge)


def copies(edge: str, shape: Sequence[int], before: Sequence[int], size: Sequence[int]) -> Array:
    """How many places each element of a source (H, W, C) was copied to."""
    ones = np.ones((1, *size))
    return pad_gradient(ones, (1, *shape), before, edge)[0]
