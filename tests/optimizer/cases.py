"""Settings and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import mpsgrad as mg

from tests.optimizer.oracle import Settings

# Lengths of vectors; shapes (rows, columns) of matrices.
LENGTHS = [1, 2, 3, 7, 8, 31, 64, 1009]
MATRICES = [(1, 1), (1, 13), (5, 3), (17, 8)]


SETTINGS = {
    "plain": Settings(0.1),
    "clipped": Settings(0.1, clip=(-0.25, 0.5)),
    "rescaled": Settings(0.05, gradient_rescale=0.125),
    "L1": Settings(0.1, regularization="L1", regularization_scale=0.1),
    "L2": Settings(0.1, regularization="L2", regularization_scale=0.01),
    "everything": Settings(0.2, 2.0, (-0.25, 0.5), "L2", 0.1),
    "running average": Settings(-(1 - 0.9), regularization="L2", regularization_scale=-1.0),
    "no rate": Settings(0.0),
}

# Each setting has its part in a step of small whole numbers.
DESCRIPTOR = mg.OptimizerDescriptor(
    0.25,
    gradient_rescale=0.5,
    apply_gradient_clipping=True,
    gradient_clip_max=1.5,
    gradient_clip_min=-0.75,
    regularization_type=mg.RegularizationType.L2,
    regularization_scale=0.125,
)


@dataclass(frozen=True)
class Step:
    """A printed step: gradient in, value and history out."""

    gradient: float
    value: float
    history: tuple[float, ...] = ()


# All start from value 1 and zero history, with rate 0.1.
SGD_STEPS = [Step(0.5, 0.95), Step(0.5, 0.90), Step(0.5, 0.85)]
MOMENTUM_STEPS = [
    Step(0.5, 0.95, (0.05,)),
    Step(0.5, 0.855, (0.095,)),
    Step(0.5, 0.7195, (0.1355,)),
]
NESTEROV_STEPS = [
    Step(0.5, 0.905, (0.5,)),
    Step(0.5, 0.7695, (0.95,)),
    Step(0.5, 0.59755, (1.355,)),
]
RMSPROP_STEPS = [Step(0.5, 0.68377225, (0.025,)), Step(0.5, 0.45435653, (0.0475,))]
ADAM_STEPS = [
    Step(0.5, 0.90000006, (0.05, 0.00025)),
    Step(0.5, 0.80000011, (0.095, 0.00049975)),
    Step(-0.1, 0.73241433, (0.0755, 0.00050925025)),
]
# With beta2 = 0.5.
QUICK_ADAM_STEPS = [Step(1, 0.9, (0.1, 0.5)), Step(0.1, 0.80973759, (0.1, 0.255))]
AMSGRAD_STEPS = [Step(1, 0.9, (0.1, 0.5, 0.5)), Step(0.1, 0.83553975, (0.1, 0.255, 0.5))]

# Learning rate of Adam with default betas, relative to the set one.
ADAM_RATES = {
    1: 0.316228,
    2: 0.235317,
    3: 0.202011,
    10: 0.153189,
    100: 0.308566,
    1000: 0.795176,
}
