"""Dropout with a given mask, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array


def mask_shape(
    shape: tuple[int, int, int, int], stride: tuple[int, int, int]
) -> tuple[int, int, int, int]:
    """Shape (N, Hm, Wm, Cm) of a mask; a stride (width, height, depth) of 0 shares one value."""
    count, height, width, channels = shape
    return (
        count,
        height if stride[1] else 1,
        width if stride[0] else 1,
        channels if stride[2] else 1,
    )


def forward(source: npt.ArrayLike, mask: npt.ArrayLike, keep_probability: float) -> Array:
    """Keep where the mask is 1, scaled up by 1 / keep_probability (a float32); 0 elsewhere."""
    keep = float(np.float32(keep_probability))
    return np.asarray(source, np.float64) * np.asarray(mask, np.float64) / keep


def gradient(source_gradient: npt.ArrayLike, mask: npt.ArrayLike, keep_probability: float) -> Array:
    """Gradient with respect to the source: the same linear map."""
    return forward(source_gradient, mask, keep_probability)


def sampling_error(count: int, keep_probability: float) -> float:
    """Five standard deviations of the fraction kept among `count` independent elements."""
    return float(5 * np.sqrt(keep_probability * (1 - keep_probability) / count))


def rounded(source: npt.ArrayLike, keep_probability: float) -> npt.NDArray[np.float32]:
    """Return what an element that is kept becomes, in float32."""
    return np.divide(np.asarray(source, np.float32), np.float32(keep_probability))


def laid(
    mask: Array,
    stride: tuple[int, int, int],
    rows: npt.NDArray[np.intp],
    columns: npt.NDArray[np.intp],
) -> Array:
    """Values of a mask at rows and columns of it: shared ones everywhere, the others 0 outside."""
    height, width = mask.shape[1:3]
    there = np.ones((len(rows), len(columns), 1))
    if stride[1]:
        there *= ((rows >= 0) & (rows < height))[:, None, None]
    if stride[0]:
        there *= ((columns >= 0) & (columns < width))[None, :, None]
    near = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    return mask[:, near[0][:, None], near[1][None, :]] * there


# --- The CPU device's random numbers -------------------------------------------------

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter: npt.ArrayLike, key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10: four numbers below 2^32 for each counter of shape (..., 4)."""
    words = np.array(counter, np.uint64)
    a, b, c, d = (words[..., i] for i in range(4))
    k, m = (np.uint64(word) for word in key)
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (second >> HALF) ^ b ^ k, second & LOW, (first >> HALF) ^ d ^ m, first & LOW
        k = (k + np.uint64(0x9E3779B9)) & LOW
        m = (m + np.uint64(0xBB67AE85)) & LOW
    return np.stack([a, b, c, d], -1)


def drawn_mask(
    shape: tuple[int, int, int, int],
    stride: tuple[int, int, int],
    keep_probability: float,
    seed: int,
    encode: int,
) -> Array:
    """Return the mask that the CPU device draws for the encode of a number, from 0 on.

    Element e of image n is kept if the number that belongs to it, taken as signed, is less than
    ``2^32 p - 2^31``: word ``e // 16 % 4`` of counter ``e // 64 * 16 + e % 16``.
    """
    size = mask_shape(shape, stride)
    element = np.arange(int(np.prod(size[1:])), dtype=np.uint64)
    sixteen, four, sixty_four = np.uint64(16), np.uint64(4), np.uint64(64)
    index = element // sixty_four * sixteen + element % sixteen
    word = (element // sixteen % four).astype(np.intp)
    masks = []
    for image in range(size[0]):
        counters = np.zeros((len(element), 4), np.uint64)
        counters[:, 0], counters[:, 1] = index & LOW, index >> HALF
        counters[:, 2], counters[:, 3] = image, encode
        numbers = philox(counters, (seed & 0xFFFFFFFF, seed >> 32))
        drawn = numbers[np.arange(len(element)), word].astype(np.uint32).view(np.int32)
        limit = round(float(np.float32(keep_probability)) * 2.0**32) - 2**31
        masks.append((drawn < limit).reshape(size[1:]))
    return np.array(masks, np.float64)
