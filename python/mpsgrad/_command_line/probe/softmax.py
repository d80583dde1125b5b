"""Softmax of large numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _of_large_numbers(on: mg.Device) -> Any:
    x = np.array([1e4, 1e4 - 1, -1e4, 88.0], np.float32).reshape(1, 1, 1, 4)
    return np.nan_to_num(mg.SoftMax(device=on)(x), nan=-1.0)


QUESTIONS: list[Question] = [
    OnBoth(
        "softmax 1",
        "softmax of 10000 9999 -10000 88: whether the maximum is subtracted first",
        _of_large_numbers,
    ),
]
