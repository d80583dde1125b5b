"""Batch normalization in float64: statistics, the transform, and the two gradient kernels.

Images are (N, H, W, C); statistics, weights and their gradients are (C,). Epsilon is a float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.neuron import oracle as neurons

if TYPE_CHECKING:
    from tests.core.oracle import Array
    from tests.neuron.cases import Neuron

FLT_MIN = float(np.finfo(np.float32).tiny)  # epsilon of a data source that names none

SAMPLES = (0, 1, 2)  # axes that statistics run over


class Statistics(NamedTuple):
    """What has been accumulated over some images."""

    count: int  # samples per channel
    mean: Array
    variance: Array  # biased, without epsilon


class Sums(NamedTuple):
    """Gradients of the weights over some images."""

    gamma: Array
    beta: Array


def statistics(source: npt.ArrayLike) -> Statistics:
    """Mean and biased variance of each channel over all images and pixels."""
    x = np.asarray(source, np.float64)
    mean = x.mean(axis=SAMPLES)
    return Statistics(x[..., 0].size, mean, ((x - mean) ** 2).mean(axis=SAMPLES))


def merge(a: Statistics, b: Statistics) -> Statistics:
    """Statistics of two disjoint sets of images."""
    m, d = a.count + b.count, b.mean - a.mean
    moments = a.count * a.variance + b.count * b.variance + d**2 * (a.count * b.count / m)
    return Statistics(m, a.mean + d * (b.count / m), moments / m)


def reciprocal_deviation(variance: npt.ArrayLike, epsilon: float) -> Array:
    """1 / sqrt(variance + epsilon)."""
    return 1 / np.sqrt(np.asarray(variance, np.float64) + float(np.float32(epsilon)))


def _weights(channels: int, gamma: Any, beta: Any) -> tuple[Array, Array]:
    """Scale and offset; 1 and 0 where there are none."""
    scale = np.ones(channels) if gamma is None else np.asarray(gamma, np.float64)
    return scale, np.zeros(channels) if beta is None else np.asarray(beta, np.float64)


def _standardize(
    source: npt.ArrayLike, mean: npt.ArrayLike, variance: npt.ArrayLike, epsilon: float
) -> Array:
    x = np.asarray(source, np.float64)
    return (x - np.asarray(mean, np.float64)) * reciprocal_deviation(variance, epsilon)


def forward(
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
    neuron: Neuron | None = None,
) -> Array:
    """Normalize with given statistics, scale, shift, and apply the neuron."""
    x_hat = _standardize(source, mean, variance, epsilon)
    scale, shift = _weights(x_hat.shape[-1], gamma, beta)
    z = x_hat * scale + shift
    return z if neuron is None else neurons.forward(neuron.kind, z, **neuron.parameters)


def _before_neuron(
    gradient: npt.ArrayLike, x_hat: Array, scale: Array, shift: Array, neuron: Neuron | None
) -> Array:
    """Gradient at the neuron's input, which is recomputed."""
    g = np.asarray(gradient, np.float64)
    if neuron is None:
        return g
    return neurons.gradient(neuron.kind, g, x_hat * scale + shift, **neuron.parameters)


def weight_gradients(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
    neuron: Neuron | None = None,
) -> Sums:
    """Sums over these images; those of several sub-batches add up."""
    x_hat = _standardize(source, mean, variance, epsilon)
    g = _before_neuron(gradient, x_hat, *_weights(x_hat.shape[-1], gamma, beta), neuron)
    return Sums((g * x_hat).sum(axis=SAMPLES), g.sum(axis=SAMPLES))


def statistics_gradients(
    sums: Sums,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> tuple[Array, Array]:
    """Gradients with respect to mean and variance, the source held fixed."""
    r = reciprocal_deviation(variance, epsilon)
    scale, _ = _weights(len(r), gamma, None)
    return -scale * r * sums.beta, -0.5 * scale * r**2 * sums.gamma


def data_gradient(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    batch: Statistics,
    sums: Sums,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
    neuron: Neuron | None = None,
) -> Array:
    """Gradient with respect to images of the batch; `batch` and `sums` are of the whole batch."""
    x_hat = _standardize(source, batch.mean, batch.variance, epsilon)
    scale, shift = _weights(x_hat.shape[-1], gamma, beta)
    g = _before_neuron(gradient, x_hat, scale, shift, neuron)
    centred = g - sums.beta / batch.count - x_hat * (sums.gamma / batch.count)
    return scale * reciprocal_deviation(batch.variance, epsilon) * centred


# --- Magnitudes --------------------------------------------------------------
# Of what a float32 evaluation adds up, given statistics that are float32 themselves.


def forward_scale(
    source: npt.ArrayLike,
    mean: npt.ArrayLike,
    variance: npt.ArrayLike,
    gamma: npt.ArrayLike | None = None,
    beta: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Array:
    """Sum of the magnitudes in (x - mean) * gamma * r + beta, without a neuron."""
    x = np.abs(np.asarray(source, np.float64)) + np.abs(np.asarray(mean, np.float64))
    scale, shift = _weights(x.shape[-1], gamma, beta)
    return x * np.abs(scale) * reciprocal_deviation(variance, epsilon) + np.abs(shift)


def data_gradient_scale(
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    batch: Statistics,
    sums: Sums,
    gamma: npt.ArrayLike | None = None,
    *,
    epsilon: float = FLT_MIN,
) -> Array:
    """Sum of the magnitudes in `data_gradient`; `gradient` is that at the neuron's input."""
    r = reciprocal_deviation(batch.variance, epsilon)
    x_hat = (np.abs(np.asarray(source, np.float64)) + np.abs(batch.mean)) * r
    scale, _ = _weights(x_hat.shape[-1], gamma, None)
    sums_scale = np.abs(sums.beta) + x_hat * np.abs(sums.gamma)
    return np.abs(scale) * r * (np.abs(np.asarray(gradient, np.float64)) + sums_scale / batch.count)
