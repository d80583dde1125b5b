"""Losses and their gradients in float64; y are predictions, t labels, both (N, H, W, C).

Names of types and reductions are those of the enumerations' members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.neuron.oracle import logistic
from tests.softmax.oracle import log_softmax, softmax

if TYPE_CHECKING:
    from tests.core.oracle import Array

TYPES = (
    "MEAN_ABSOLUTE_ERROR",
    "MEAN_SQUARED_ERROR",
    "SOFT_MAX_CROSS_ENTROPY",
    "SIGMOID_CROSS_ENTROPY",
    "CATEGORICAL_CROSS_ENTROPY",
    "HINGE",
    "HUBER",
    "COSINE_DISTANCE",
    "LOG",
    "KULLBACK_LEIBLER_DIVERGENCE",
)

REDUCTIONS = ("NONE", "SUM", "MEAN", "SUM_BY_NON_ZERO_WEIGHTS")

PIXELS = (1, 2, 3)  # axes of one image


@dataclass(frozen=True)
class Loss:
    """A loss descriptor; its numbers are float32."""

    type: str
    reduction: str = "SUM"
    reduce_across_batch: bool = False
    weight: float = 1.0
    label_smoothing: float = 0.0
    number_of_classes: int = 1
    epsilon: float = 1e-7
    delta: float = 1.0

    def __post_init__(self) -> None:
        """Round to what a descriptor stores."""
        for name in ("weight", "label_smoothing", "epsilon", "delta"):
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))

    @property
    def smoothing(self) -> float:
        """Label smoothing, for the types that have it."""
        smooth = self.type in ("SOFT_MAX_CROSS_ENTROPY", "SIGMOID_CROSS_ENTROPY")
        return self.label_smoothing if smooth else 0.0


def smooth(loss: Loss, t: npt.ArrayLike) -> Array:
    """Labels after smoothing."""
    t = np.asarray(t, np.float64)
    s = loss.smoothing
    classes = loss.number_of_classes if loss.type == "SOFT_MAX_CROSS_ENTROPY" else 2
    return t * (1 - s) + s / classes


def _times(t: Array, factor: Array) -> Array:
    """Multiply by the labels; 0 where the label is 0, whatever the factor."""
    return np.where(t == 0, 0.0, t * np.where(t == 0, 0.0, factor))


def _sign(t: Array) -> Array:
    """Map labels 0 and 1 to -1 and +1."""
    return 2 * t - 1


def elements(loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Losses of the elements before weights; for cosine distance, -y t (1 is added per image)."""
    y, t = np.asarray(y, np.float64), smooth(loss, t)
    e, eps = loss.delta, loss.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        match loss.type:
            case "MEAN_ABSOLUTE_ERROR":
                return np.abs(y - t)
            case "MEAN_SQUARED_ERROR":
                return (y - t) ** 2
            case "SOFT_MAX_CROSS_ENTROPY":
                return -_times(t, log_softmax(y))
            case "SIGMOID_CROSS_ENTROPY":
                return np.maximum(y, 0) - y * t + np.log1p(np.exp(-np.abs(y)))
            case "CATEGORICAL_CROSS_ENTROPY":
                return -_times(t, np.log(y))
            case "HINGE":
                return np.maximum(1 - _sign(t) * y, 0)
            case "HUBER":
                distance = np.abs(y - t)
                return np.where(distance <= e, distance**2 / 2, e**2 / 2 + e * (distance - e))
            case "COSINE_DISTANCE":
                return -y * t
            case "LOG":
                return -_times(t, np.log(y + eps)) - _times(1 - t, np.log(1 - y + eps))
            case "KULLBACK_LEIBLER_DIVERGENCE":
                return _times(t, np.log(t) - y)
    raise ValueError(f"loss type {loss.type!r}")


def derivative(loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Derivatives of the elements with respect to the predictions, before weights."""
    y, t = np.asarray(y, np.float64), smooth(loss, t)
    eps = loss.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        match loss.type:
            case "MEAN_ABSOLUTE_ERROR":
                return np.sign(y - t)
            case "MEAN_SQUARED_ERROR":
                return 2 * (y - t)
            case "SOFT_MAX_CROSS_ENTROPY":
                return softmax(y) - t
            case "SIGMOID_CROSS_ENTROPY":
                return logistic(y) - t
            case "CATEGORICAL_CROSS_ENTROPY":
                return -_times(t, 1 / y)
            case "HINGE":
                return np.where(1 - _sign(t) * y > 0, -_sign(t), 0.0)
            case "HUBER":
                return np.clip(y - t, -loss.delta, loss.delta)
            case "COSINE_DISTANCE" | "KULLBACK_LEIBLER_DIVERGENCE":
                return -t
            case "LOG":
                both = (y - t + eps - 2 * eps * t) / (y * (1 - y) + eps * (eps + 1))
                return np.where(t == 0, 1 / (1 - y + eps), np.where(t == 1, -1 / (y + eps), both))
    raise ValueError(f"loss type {loss.type!r}")


def label_derivative(loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Derivatives of the elements with respect to the labels, before weights."""
    y, raw = np.asarray(y, np.float64), np.asarray(t, np.float64)
    t, kept, eps = smooth(loss, raw), 1 - loss.smoothing, loss.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        match loss.type:
            case "MEAN_ABSOLUTE_ERROR" | "MEAN_SQUARED_ERROR" | "HUBER":
                return -derivative(loss, y, raw)
            case "SOFT_MAX_CROSS_ENTROPY":
                return -kept * log_softmax(y)
            case "SIGMOID_CROSS_ENTROPY":
                return -kept * y
            case "CATEGORICAL_CROSS_ENTROPY":
                return -np.log(y)
            case "HINGE":
                return np.where(1 - _sign(t) * y > 0, -2 * y, 0.0)
            case "COSINE_DISTANCE":
                return -y
            case "LOG":
                return np.log((1 - y + eps) / (y + eps))
            case "KULLBACK_LEIBLER_DIVERGENCE":
                return np.log(t) - y + 1
    raise ValueError(f"loss type {loss.type!r}")


# --- Weights and reduction ---------------------------------------------------


def element_weights(loss: Loss, shape: tuple[int, ...], weights: npt.ArrayLike | None) -> Array:
    """Scalar weight times the weights image, which is 1 when absent."""
    image = np.ones(shape) if weights is None else np.asarray(weights, np.float64)
    return loss.weight * image


def divisors(loss: Loss, weights: Array) -> Array:
    """What the sum over each image is divided by, shape (N,); `weights` are those of the elements.

    With a reduction across the batch every entry is the divisor of the whole batch. Where nothing
    counts it is infinite, so that the loss is 0.
    """
    count, height, width, channels = weights.shape
    match loss.reduction:
        case "MEAN":
            per_pixel = 1 if loss.type == "SOFT_MAX_CROSS_ENTROPY" else channels
            result = np.full(count, float(height * width * per_pixel))
        case "SUM_BY_NON_ZERO_WEIGHTS":
            result = np.count_nonzero(weights, axis=PIXELS).astype(np.float64)
        case _:
            return np.ones(count)
    if loss.reduce_across_batch:
        result = np.full(count, result.sum())
    return np.where(result == 0, np.inf, result)


def reduce(loss: Loss, weighted: Array, weights: Array) -> Array:
    """Loss images: (N, H, W, C) for no reduction, (N, 1, 1, 1) for any other."""
    if loss.reduction == "NONE":
        return weighted
    sums = weighted.sum(axis=PIXELS) / divisors(loss, weights)
    if loss.reduce_across_batch:
        sums = np.concatenate([sums.sum(keepdims=True), np.zeros(len(sums) - 1)])
    return sums[:, None, None, None]


def loss_images(
    loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Reduced losses, as the combined and the separate forward kernel report them."""
    values = elements(loss, y, t)
    w = element_weights(loss, values.shape, weights)
    if loss.type == "COSINE_DISTANCE":
        _check_cosine(loss, weights)
        values = values.copy()
        values[:, 0, 0, 0] += 1  # one minus the product, once per image
    return reduce(loss, _weigh(w, values), w)


def _weigh(w: Array, values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return w * values


def _check_cosine(loss: Loss, weights: npt.ArrayLike | None) -> None:
    if loss.reduction != "SUM" or weights is not None:
        raise ValueError("cosine distance has the reduction SUM and no weights image")


def combined_gradient(
    loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """What the combined kernel writes: weighted derivatives, without any reduction factor."""
    values = derivative(loss, y, t)
    return _weigh(element_weights(loss, values.shape, weights), values)


def separate_gradient(
    loss: Loss,
    g: npt.ArrayLike,
    y: npt.ArrayLike,
    t: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    *,
    labels: bool = False,
) -> Array:
    """Chain rule through the separate forward kernel; `g` has the shape of the loss images."""
    g = np.asarray(g, np.float64)
    values = (label_derivative if labels else derivative)(loss, y, t)
    w = element_weights(loss, values.shape, weights)
    if loss.type == "COSINE_DISTANCE":
        _check_cosine(loss, weights)
    if loss.reduction != "NONE" and loss.reduce_across_batch:
        g = np.broadcast_to(g[:1], g.shape)
    return g * _weigh(w, values) / divisors(loss, w)[:, None, None, None]


def initial_gradient(source: npt.ArrayLike) -> Array:
    """Ones in the shape of the source."""
    return np.ones(np.shape(source))


# --- Magnitudes --------------------------------------------------------------
# Sums of the magnitudes that an evaluation as printed adds up, for tolerances.


def elements_scale(loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `elements` are relative."""
    y, labels = np.asarray(y, np.float64), np.abs(smooth(loss, t))
    eps = loss.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        match loss.type:
            case "SOFT_MAX_CROSS_ENTROPY":
                below = np.abs(y - y.max(axis=-1, keepdims=True))
                return labels * (1 + below + np.abs(log_softmax(y)))
            case "SIGMOID_CROSS_ENTROPY":
                return np.abs(y) * (1 + labels) + np.log1p(np.exp(-np.abs(y)))
            case "CATEGORICAL_CROSS_ENTROPY":
                return np.where(labels == 0, 0, labels * np.abs(np.log(y)))
            case "HINGE":
                return 1 + np.abs(y) * np.abs(_sign(labels))
            case "HUBER":
                return np.abs(elements(loss, y, t)) + loss.delta * (np.abs(y) + labels)
            case "LOG":
                first = np.abs(np.log(y + eps)) + 1
                second = np.abs(np.log(1 - y + eps)) + 1 / (1 - y + eps)
                return labels * first + np.abs(1 - labels) * second
            case "KULLBACK_LEIBLER_DIVERGENCE":
                return np.where(labels == 0, 0, labels * (np.abs(np.log(labels)) + np.abs(y)))
            case "MEAN_SQUARED_ERROR":
                return (np.abs(y) + labels) * np.abs(y - smooth(loss, t))
            case "MEAN_ABSOLUTE_ERROR":
                return np.abs(y) + labels
    return np.abs(elements(loss, y, t))


def derivative_scale(loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `derivative` are relative."""
    y, labels = np.asarray(y, np.float64), np.abs(smooth(loss, t))
    eps = loss.epsilon
    match loss.type:
        case "MEAN_SQUARED_ERROR" | "HUBER":
            return 2 * (np.abs(y) + labels)
        case "SOFT_MAX_CROSS_ENTROPY":
            below = np.abs(y - y.max(axis=-1, keepdims=True))
            s = softmax(y)
            return s * (1 + below + (s * below).sum(axis=-1, keepdims=True)) + labels
        case "SIGMOID_CROSS_ENTROPY":
            return logistic(y) * (1 + np.abs(y)) + labels
        case "LOG":
            upper = np.abs(y) + labels + eps + 2 * eps * labels
            lower = np.abs(y * (1 - y)) + eps * (eps + 1)
            return upper / lower * (1 + np.abs(y) / lower)
    return np.abs(derivative(loss, y, t))


def loss_scale(
    loss: Loss, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Magnitude to which the roundings of `loss_images` are relative."""
    values = elements_scale(loss, y, t)
    w = np.abs(element_weights(loss, values.shape, weights))
    if loss.type == "COSINE_DISTANCE":
        values[:, 0, 0, 0] += 1
    return reduce(loss, _weigh(w, values), w)
