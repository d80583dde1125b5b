"""Dropout: the values it gives, and when it draws another mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _values(on: mg.Device) -> Any:
    x = np.full((1, 8, 8, 16), 3, np.float32)
    return np.unique(mg.Dropout(0.75, 1, device=on)(x))


def _of_infinities(on: mg.Device) -> Any:
    x = np.full((1, 8, 8, 16), np.inf, np.float32)
    y = mg.Dropout(0.75, 1, device=on)(x)
    return [float(np.isnan(y).any())]


def _masks(on: mg.Device, *seeds: int) -> list[Any]:
    """Return the masks of two encodes of each of some kernels."""
    x = np.ones((2, 4, 4, 16), np.float32)
    kernels = [mg.Dropout(0.5, seed, device=on) for seed in seeds]
    return [[kernel(x, with_state=True)[1].mask for _ in range(2)] for kernel in kernels]


def _sequences(on: mg.Device) -> Any:
    (first, second), again = _masks(on, 1, 1)
    return [float(np.array_equal(*both)) for both in (([first, second], again), (first, second))]


def _images(on: mg.Device) -> Any:
    ((mask, _),) = _masks(on, 1)
    return [float(np.array_equal(mask[0], mask[1]))]


QUESTIONS: list[Question] = [
    OnBoth("dropout 1", "which values a dropout of threes that keeps 3 of 4 gives", _values),
    OnBoth("dropout 2", "whether one of infinities gives NaN", _of_infinities),
    OnBoth(
        "dropout 3",
        "whether equal kernels draw equal masks, and two encodes of one equal ones",
        _sequences,
    ),
    OnBoth("dropout 4", "whether two images of a batch get equal masks", _images),
]
