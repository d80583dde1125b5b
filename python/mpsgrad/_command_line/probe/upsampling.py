"""Bilinear upsampling: positions, edges, and what its gradient knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _bilinear(on: mg.Device, align_corners: bool) -> list[Any]:
    """Return the result of a row, and the gradient of ones."""
    forward = mg.UpsamplingBilinear(2, 1, align_corners, device=on)
    x = np.array([1, 2, 4], np.float32).reshape(1, 1, 3, 1)
    y, states = forward(x, with_state=True)
    dx = mg.UpsamplingBilinearGradient(2, 1, device=on)(np.ones_like(y), x, states)
    return [y.ravel(), dx.ravel()]


QUESTIONS: list[Question] = [
    OnBoth(
        "upsampling 1",
        "bilinear upsampling of 1 2 4 by 2, corners not aligned: positions, and the right edge",
        lambda on: _bilinear(on, False)[0],
    ),
    OnBoth(
        "upsampling 2",
        "the gradient of that for ones",
        lambda on: _bilinear(on, False)[1],
    ),
    OnBoth(
        "upsampling 3",
        "bilinear upsampling of 1 2 4 by 2, corners aligned",
        lambda on: _bilinear(on, True)[0],
    ),
    OnBoth(
        "upsampling 4",
        "the gradient of that for ones: whether its kernel finds the alignment in the state",
        lambda on: _bilinear(on, True)[1],
    ),
]
