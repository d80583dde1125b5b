"""Resizing, cropping and grid sampling in float64.

Pairs are (x, y), images (N, H, W, C). Every channel of every image is treated on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.core.oracle import Array, Pair

Region = tuple[float, float, float, float]  # x, y, width, height, in parts of the source


@dataclass(frozen=True)
class Resize:
    """What a resize kernel is told."""

    size: Pair
    align_corners: bool = False
    offset: Pair = (0, 0)  # source pixel under the first result
    edge: str = "zero"


def add_tap(weights: Array, pixel: int, weight: float, edge: str) -> None:
    """Give a pixel of a row a weight, or what the edge mode reads in its place."""
    if edge == "clamp":
        weights[min(max(pixel, 0), len(weights) - 1)] += weight
    elif 0 <= pixel < len(weights):
        weights[pixel] += weight


def matrix(r: Resize, axis: int, results: int, length: int) -> Array:
    """Return the weights of an axis, shape (results, source pixels)."""
    weights = np.zeros((results, length))
    size = r.size[axis]
    for i in range(results):
        if not r.align_corners:
            position = i * length / size
        else:
            position = 0.0 if size == 1 else i * (length - 1) / (size - 1)
        low = math.floor(position)
        part = position - low
        low += r.offset[axis]
        add_tap(weights[i], low, 1 - part, r.edge)
        # The upper neighbour of the last pixel is the last pixel, in any edge mode.
        add_tap(weights[i], low if low == length - 1 else low + 1, part, r.edge)
    return weights


def resize(r: Resize, source: npt.ArrayLike, size: Pair | None = None) -> Array:
    """Resize into a clip rectangle of `size` pixels, by default into all of the result."""
    source = np.asarray(source, np.float64)
    height, width = source.shape[1:3]
    size = size or r.size
    x, y = (matrix(r, axis, size[axis], (width, height)[axis]) for axis in (0, 1))
    result: Array = np.einsum("ih,jw,nhwc->nijc", y, x, source, optimize=True)
    return result


def crop_positions(begin: float, extent: float, size: int, length: int) -> Array:
    """Return where the results of an axis lie, in source pixels."""
    parts = np.array([0.5]) if size == 1 else np.arange(size) / (size - 1)
    return (begin + extent * parts) * (length - 1)


def crop_and_resize(
    source: npt.ArrayLike, size: Pair, regions: Sequence[Region], offset: Pair = (0, 0)
) -> Array:
    """Return all regions of the first image, then those of the second, and so on."""
    source = np.asarray(source, np.float64)
    count, height, width, channels = source.shape
    result = np.zeros((count, len(regions), size[1], size[0], channels))
    for r, (x, y, region_width, region_height) in enumerate(regions):
        xs = crop_positions(x, region_width, size[0], width) + offset[0]
        ys = crop_positions(y, region_height, size[1], height) + offset[1]
        for i, j in np.ndindex(size[1], size[0]):
            if 0 <= ys[i] <= height - 1 and 0 <= xs[j] <= width - 1:
                result[:, r, i, j] = interpolate(source, xs[j], ys[i], "clamp")
    return result.reshape(-1, size[1], size[0], channels)


def interpolate(source: Array, x: float, y: float, edge: str) -> Array:
    """Return every image's value at a position, shape (N, C)."""
    if math.isnan(x) or math.isnan(y):
        return np.full((len(source), source.shape[3]), np.nan)
    weights = []
    for position, length in ((y, source.shape[1]), (x, source.shape[2])):
        position = min(max(position, -4.0), length + 4.0)  # so far away all are alike
        low = math.floor(position)
        axis = np.zeros(length)
        add_tap(axis, low, 1 - (position - low), edge)
        add_tap(axis, low + 1, position - low, edge)
        weights.append(axis)
    result: Array = np.einsum("h,w,nhwc->nc", *weights, source)
    return result


def grid_sample(
    image: npt.ArrayLike,
    grid: npt.ArrayLike,
    *,
    positions: bool = True,
    edge: str = "zero",
    offset: Pair = (0, 0),
) -> Array:
    """Read images where grids of shape (N, h, w, 2) say."""
    image, grid = np.asarray(image, np.float64), np.asarray(grid, np.float64)
    result = np.zeros((*grid.shape[:3], image.shape[3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        x, y = grid[n, i, j] + offset + (0 if positions else np.array([j, i]))
        result[n, i, j] = interpolate(image[n : n + 1], x, y, edge)[0]
    return result
