"""Upsampling and its gradient in float64, as one matrix an axis.

Pairs are (x, y), images (N, H, W, C). Every channel and every image is upsampled on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array, Pair

KINDS = ("nearest", "bilinear", "aligned")


@dataclass(frozen=True)
class Upsampling:
    """What an upsampling kernel is told; "aligned" is bilinear with aligned corners."""

    kind: str
    factor: Pair
    offset: Pair = (0, 0)  # source pixel under the first result
    edge: str = "zero"


def position(kind: str, i: int, length: int, factor: int) -> float:
    """Where result i lies, in source pixels from the offset."""
    if kind == "nearest":
        return i // factor
    if kind == "bilinear":
        return i / factor
    return 0.0 if length * factor == 1 else i * (length - 1) / (length * factor - 1)


def matrix(u: Upsampling, axis: int, results: int, length: int) -> Array:
    """Return the weights of an axis, shape (results, source pixels)."""
    weights = np.zeros((results, length))
    for i in range(results):
        where = position(u.kind, i, length, u.factor[axis])
        low = math.floor(where)
        part = where - low
        low += u.offset[axis]
        # The upper neighbour of the last pixel is the last pixel, in any edge mode.
        high = low if low == length - 1 else low + 1
        for pixel, weight in ((low, 1.0 - part), (high, part)):
            if u.edge == "clamp":
                weights[i, min(max(pixel, 0), length - 1)] += weight
            elif 0 <= pixel < length:
                weights[i, pixel] += weight
    return weights


def matrices(u: Upsampling, size: Pair, source: Pair) -> tuple[Array, Array]:
    """Return the weights along x and along y; both sizes are (width, height)."""
    x, y = (matrix(u, axis, size[axis], source[axis]) for axis in (0, 1))
    return x, y


def forward(u: Upsampling, source: npt.ArrayLike, size: Pair | None = None) -> Array:
    """Upsample into a clip rectangle of `size` pixels, by default into all of the result."""
    source = np.asarray(source, np.float64)
    height, width = source.shape[1:3]
    if size is None:
        size = width * u.factor[0], height * u.factor[1]
    x, y = matrices(u, size, (width, height))
    result: Array = np.einsum("ih,jw,nhwc->nijc", y, x, source, optimize=True)
    return result


def gradient(u: Upsampling, incoming: npt.ArrayLike, source: Pair) -> Array:
    """Gradient with respect to a source of (width, height), of all results in `incoming`."""
    incoming = np.asarray(incoming, np.float64)
    height, width = incoming.shape[1:3]
    x, y = matrices(u, (width, height), source)
    result: Array = np.einsum("ih,jw,nijc->nhwc", y, x, incoming, optimize=True)
    return result


def taps(u: Upsampling, size: Pair, source: Pair) -> Pair:
    """Most results that one source pixel has part in, along x and along y."""
    x, y = (int(np.count_nonzero(m, axis=0).max()) for m in matrices(u, size, source))
    return x, y
