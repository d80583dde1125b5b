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
