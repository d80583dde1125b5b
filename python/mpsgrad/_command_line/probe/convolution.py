"""Convolutions: sums over batches and encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _weight_gradients(on: mg.Device, *, encodes: int) -> Any:
    x = np.array([1, 2, 3, 4], np.float32).reshape(2, 1, 2, 1)
    source = mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), 2, np.float32))
    forward = mg.Convolution(source, device=on)
    gradient = mg.ConvolutionGradient(source, device=on)
    y, state = forward(x, with_state=True)
    for _ in range(encodes):
        gradient(np.ones_like(y), x, state)
    return np.concatenate([state.gradient_for_weights.to_numpy().ravel()[:1], y[0, 0, :1, 0]])


QUESTIONS: list[Question] = [
    OnBoth(
        "convolution 1",
        "weight gradient of a batch, 1 2 and 3 4 with gradients of 1: the sum; and a result",
        lambda on: _weight_gradients(on, encodes=1),
    ),
    OnBoth(
        "convolution 2",
        "the same after a second gradient encode with the same state: added",
        lambda on: _weight_gradients(on, encodes=2),
    ),
]
