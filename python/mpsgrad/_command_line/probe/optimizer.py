"""Optimizers: regularization, and who counts steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad import _core
from mpsgrad._command_line.probe.question import OfFramework, OnBoth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _regularized_step(on: mg.Device) -> Any:
    descriptor = mg.OptimizerDescriptor(
        1.0, regularization_type=mg.RegularizationType.L1, regularization_scale=0.1
    )
    optimizer = mg.StochasticGradientDescent(optimizer_descriptor=descriptor, device=on)
    before = np.array([1.0, -1.0], np.float32)
    values, gradients = (
        mg.Vector.from_array(on, array.copy()) for array in (before, np.full_like(before, 0.2))
    )
    result = mg.Vector.from_array(on, np.zeros_like(before))
    with on.command_queue().command_buffer() as work:
        optimizer.encode_vector(work, gradients, values, None, result)
        result.synchronize(work)
    work.wait_until_completed()
    return before - result.to_numpy()


def _steps_of_state_encode(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    yield (
        "by how much timeStep of an Adam grows with one encode of weights and biases",
        1,
        _core._probe_steps_of_state_encode(device),
    )


QUESTIONS: list[Question] = [
    OnBoth(
        "optimizer 1",
        "gradient 0.2 after L1 regularization by 0.1 of a value 1 and of a value -1",
        _regularized_step,
    ),
    OfFramework("optimizer 2", _steps_of_state_encode),
]
