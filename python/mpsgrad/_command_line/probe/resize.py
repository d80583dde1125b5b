"""Resizing, crops and grid samples: units of positions, and what is outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _resize(on: mg.Device, *, align_corners: bool) -> Any:
    row = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4, 1)
    return mg.ResizeBilinear(3, 1, align_corners, device=on)(row)


def _crop(on: mg.Device, *region: float) -> Any:
    nine = np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)
    return mg.CropAndResizeBilinear(2, 2, [region], device=on)(nine)


def _sample(on: mg.Device, places: list[list[float]], *, positions: bool) -> Any:
    square = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2, 1)
    kernel = mg.GridSample(device=on)
    kernel.use_grid_value_as_input_coordinate = positions
    return kernel(square, np.array(places, np.float32).reshape(1, 1, -1, 2))


QUESTIONS: list[Question] = [
    OnBoth(
        "resize 1",
        "1 2 3 4 resized to 3, corners not aligned: positions",
        lambda on: _resize(on, align_corners=False),
    ),
    OnBoth(
        "resize 2",
        "the same with corners aligned",
        lambda on: _resize(on, align_corners=True),
    ),
    OnBoth(
        "resize 3",
        "the first quarter of 3x3 cropped to 2x2: what normalised coordinates are parts of",
        lambda on: _crop(on, 0.0, 0.0, 0.5, 0.5),
    ),
    OnBoth(
        "resize 4",
        "a crop of which all but a corner is outside: the extrapolation value",
        lambda on: _crop(on, 0.25, 0.25, 1.0, 1.0),
    ),
    OnBoth(
        "resize 5",
        "1 2 over 3 4 sampled at (0.5, 0.5), (1.5, 0) and (0, 1): units, outside, x before y",
        lambda on: _sample(on, [[0.5, 0.5], [1.5, 0.0], [0.0, 1.0]], positions=True),
    ),
    OnBoth(
        "resize 6",
        "the same image half a pixel to the right of each of its first row",
        lambda on: _sample(on, [[0.5, 0.0], [0.5, 0.0]], positions=False),
    ),
]
