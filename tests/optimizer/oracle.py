"""One step of every optimizer in float64: new values and new history from the old ones.

Settings a descriptor stores as float are rounded to float32; decay, beta1 and beta2 are doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tests.core.oracle import Array


def _single(value: float) -> float:
    return float(np.float32(value))


@dataclass(frozen=True)
class Settings:
    """An optimizer descriptor. `clip` is (min, max), or None when clipping is off."""

    learning_rate: float = 0.001
    gradient_rescale: float = 1.0
    clip: tuple[float, float] | None = None
    regularization: str = "NONE"  # or "L1", "L2"
    regularization_scale: float = 0.0

    def __post_init__(self) -> None:
        """Round to what a descriptor stores."""
        for name in ("learning_rate", "gradient_rescale", "regularization_scale"):
            object.__setattr__(self, name, _single(getattr(self, name)))
        if self.clip is not None:
            object.__setattr__(self, "clip", (_single(self.clip[0]), _single(self.clip[1])))


def preprocess(s: Settings, gradient: npt.ArrayLike, values: npt.ArrayLike) -> Array:
    """Clip, rescale, then add the regularization term, which is neither clipped nor rescaled."""
    g, w = np.asarray(gradient, np.float64), np.asarray(values, np.float64)
    if s.clip is not None:
        g = np.minimum(np.maximum(g, s.clip[0]), s.clip[1])
    g = g * s.gradient_rescale
    match s.regularization:
        case "NONE":
            return g
        case "L1":
            return g + s.regularization_scale  # whatever the sign of the value
        case "L2":
            return g + s.regularization_scale * w
    raise ValueError(f"regularization {s.regularization!r}")


def sgd(
    s: Settings,
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    momentum: npt.ArrayLike | None = None,
    *,
    momentum_scale: float = 0.0,
    nesterov: bool = False,
) -> tuple[Array, Array | None]:
    """Return new values and new momentum (None without storage for it)."""
    g, w = preprocess(s, gradient, values), np.asarray(values, np.float64)
    if momentum is None:
        return w - s.learning_rate * g, None
    scale, m = _single(momentum_scale), np.asarray(momentum, np.float64)
    if nesterov:
        m = scale * m + g
        return w - s.learning_rate * (g + scale * m), m
    m = scale * m + s.learning_rate * g
    return w - m, m


def rmsprop(
    s: Settings,
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    sum_of_squares: npt.ArrayLike,
    *,
    decay: float = 0.9,
    epsilon: float = 1e-8,
) -> tuple[Array, Array]:
    """Return new values and the new sum of squares."""
    g, w = preprocess(s, gradient, values), np.asarray(values, np.float64)
    squares = decay * np.asarray(sum_of_squares, np.float64) + (1 - decay) * g * g
    return w - s.learning_rate * g / (np.sqrt(squares) + _single(epsilon)), squares


def adam_rate(learning_rate: float, step: int, beta1: float, beta2: float) -> float:
    """Learning rate with the bias corrections of step 1, 2, ... folded in."""
    return learning_rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)


def adam(
    s: Settings,
    gradient: npt.ArrayLike,
    values: npt.ArrayLike,
    momentum: npt.ArrayLike,
    velocity: npt.ArrayLike,
    maximum_velocity: npt.ArrayLike | None = None,
    *,
    step: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Array, Array, Array, Array | None]:
    """Return new values, momentum, velocity and maximum velocity (None for plain Adam).

    `step` is the time step of this update: 1 for the first.
    """
    g, w = preprocess(s, gradient, values), np.asarray(values, np.float64)
    m = beta1 * np.asarray(momentum, np.float64) + (1 - beta1) * g
    v = beta2 * np.asarray(velocity, np.float64) + (1 - beta2) * g * g
    largest = None if maximum_velocity is None else np.maximum(maximum_velocity, v)
    spread = np.sqrt(v if largest is None else largest) + _single(epsilon)
    w = w - adam_rate(s.learning_rate, step, beta1, beta2) * m / spread
    return w, m, v, largest


# --- Magnitudes --------------------------------------------------------------


def preprocess_scale(s: Settings, gradient: npt.ArrayLike, values: npt.ArrayLike) -> Array:
    """Sum of the magnitudes that `preprocess` adds."""
    bare = Settings(s.learning_rate, s.gradient_rescale, s.clip)
    term = {"NONE": 0.0, "L1": 1.0, "L2": np.abs(np.asarray(values, np.float64))}[s.regularization]
    return np.abs(preprocess(bare, gradient, values)) + abs(s.regularization_scale) * term


def step_scale(values: npt.ArrayLike, new_values: npt.ArrayLike) -> Array:
    """Magnitude to which the error of an update is relative: the value plus the step taken."""
    w, new = np.asarray(values, np.float64), np.asarray(new_values, np.float64)
    return np.abs(w) + np.abs(new - w)
