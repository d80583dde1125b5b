"""The batch normalization oracle against the worked example and against central differences."""

import numpy as np
import pytest

from tests.batch_normalization import cases, oracle
from tests.central import STEP, assert_derivative
from tests.neuron import oracle as neurons
from tests.neuron.cases import Neuron
from tests.tolerance import assert_close, assert_exact, ulps_for


def row(*values):
    return np.array(values, np.float64).reshape(1, 1, -1, 1)


def flat(image):
    return image.reshape(-1)


def test_worked_example():
    a, b = row(1, 2), row(3, 6)
    g_a, g_b = row(1, 2), row(3, -1)
    gamma, beta = np.array([2.0]), np.array([1.0])
    given = {"epsilon": 0.5, "neuron": Neuron("RELU", a=0.0)}

    first = oracle.statistics(a)
    assert (first.mean, first.variance, first.count) == (1.5, 0.25, 2)
    batch = oracle.merge(first, oracle.statistics(b))
    assert (batch.mean, batch.variance, batch.count) == (3, 3.5, 4)
    statistics = batch.mean, batch.variance

    assert_exact(flat(oracle.forward(a, *statistics, gamma, beta, **given)), [0, 0])
    assert_exact(flat(oracle.forward(b, *statistics, gamma, beta, **given)), [1, 4])
    assert_exact(flat(oracle.forward(a, *statistics, gamma, beta, epsilon=0.5)), [-1, 0])

    partial = oracle.weight_gradients(g_a, a, *statistics, gamma, beta, **given)
    assert (partial.beta, partial.gamma) == (2, -1)
    rest = oracle.weight_gradients(g_b, b, *statistics, gamma, beta, **given)
    sums = oracle.Sums(partial.gamma + rest.gamma, partial.beta + rest.beta)
    assert (sums.beta, sums.gamma) == (4, -2.5)

    dx_a = flat(oracle.data_gradient(g_a, a, batch, sums, gamma, beta, **given))
    dx_b = flat(oracle.data_gradient(g_b, b, batch, sums, gamma, beta, **given))
    assert_exact(dx_a, [-1.625, 0.6875])
    assert_exact(dx_b, [2, -1.0625])
    assert dx_a.sum() + dx_b.sum() == 0
    by_mean, by_variance = oracle.statistics_gradients(sums, batch.variance, gamma, epsilon=0.5)
    assert (by_mean, by_variance) == (-4, 0.625)


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_statistics_do_not_depend_on_the_partition(case, rng):
    parts = [1e3 + rng.standard_normal(shape) for shape in case.shapes]
    merged = oracle.statistics(parts[0])
    for part in parts[1:]:
        merged = oracle.merge(merged, oracle.statistics(part))
    whole = oracle.statistics(np.concatenate(parts))
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(merged.variance, whole.variance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(whole.variance, np.concatenate(parts).var(axis=(0, 1, 2)))


def off_kinks(x, neuron, forward):
    """Move inputs whose activation sits next to a kink."""
    for _ in range(20):
        z = forward(x)
        near = np.zeros(x.shape, bool)
        for kink in neurons.kinks(neuron.kind, **neuron.parameters):
            near |= np.abs(z - kink) < 20 * STEP
        if not near.any():
            return x
        x = np.where(near, x + 0.25, x)
    raise AssertionError("inputs stay next to a kink")


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_gradients_are_derivatives(case, neuron, rng):
    neuron = cases.neuron_for(neuron, case.channels)
    given = {"epsilon": 0.25, "neuron": neuron}
    gamma = rng.uniform(0.5, 2, case.channels)
    beta = rng.standard_normal(case.channels)
    g = rng.standard_normal(case.shape)

    def train(x=None, gamma=gamma, beta=beta, neuron=neuron):
        s = oracle.statistics(x)
        return oracle.forward(x, s.mean, s.variance, gamma, beta, epsilon=0.25, neuron=neuron)

    x = rng.standard_normal(case.shape)
    if neuron is not None:
        x = off_kinks(x, neuron, lambda x: train(x, neuron=None))
    batch = oracle.statistics(x)
    sums = oracle.weight_gradients(g, x, batch.mean, batch.variance, gamma, beta, **given)
    dx = oracle.data_gradient(g, x, batch, sums, gamma, beta, **given)
    assert_derivative(train, x, g, dx)
    assert_derivative(lambda gamma: train(x, gamma=gamma), gamma, g, sums.gamma)
    assert_derivative(lambda beta: train(x, beta=beta), beta, g, sums.beta)
    np.testing.assert_allclose(dx.sum(axis=(0, 1, 2)), 0, atol=1e-11)

    by_mean, by_variance = oracle.statistics_gradients(sums, batch.variance, gamma, epsilon=0.25)
    assert_derivative(
        lambda mean: oracle.forward(x, mean, batch.variance, gamma, beta, **given),
        batch.mean,
        g,
        by_mean,
    )
    assert_derivative(
        lambda variance: oracle.forward(x, batch.mean, variance, gamma, beta, **given),
        batch.variance,
        g,
        by_variance,
    )


def test_absent_weights_are_one_and_zero(rng):
    x, g = rng.standard_normal((2, 2, 3, 4, 5))
    s = oracle.statistics(x)
    ones, zeros = np.ones(5), np.zeros(5)
    assert_exact(
        oracle.forward(x, s.mean, s.variance), oracle.forward(x, s.mean, s.variance, ones, zeros)
    )
    bare = oracle.weight_gradients(g, x, s.mean, s.variance)
    full = oracle.weight_gradients(g, x, s.mean, s.variance, ones, zeros)
    assert_exact(bare.gamma, full.gamma)
    assert_exact(
        oracle.data_gradient(g, x, s, bare), oracle.data_gradient(g, x, s, full, ones, zeros)
    )


def test_epsilon_is_a_float32_inside_the_root():
    x = oracle.forward(row(1.0), [0.0], [0.0], epsilon=0.1)
    assert flat(x) == 1 / np.sqrt(np.float64(np.float32(0.1)))
    assert oracle.reciprocal_deviation([0.0], oracle.FLT_MIN) == pytest.approx(9.2e18, rel=0.01)


@pytest.mark.parametrize("shift", [0, 100])
def test_scales_cover_a_float32_evaluation(shift, rng):
    x = (shift + rng.standard_normal((4, 5, 7, 6))).astype(np.float32)
    g = rng.standard_normal(x.shape).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 6)).astype(np.float32)
    exact = oracle.statistics(x)
    mean, variance = exact.mean.astype(np.float32), exact.variance.astype(np.float32)
    stored = oracle.Statistics(exact.count, mean.astype(float), variance.astype(float))
    epsilon = np.float32(1e-3)
    r = np.float32(1) / np.sqrt(variance + epsilon)
    assert_close(
        (x - mean) * (gamma * r) + beta,
        oracle.forward(x, mean, variance, gamma, beta, epsilon=1e-3),
        ulps=ulps_for(8),
        scale=oracle.forward_scale(x, mean, variance, gamma, beta, epsilon=1e-3),
    )
    sums = oracle.weight_gradients(g, x, mean, variance, gamma, beta, epsilon=1e-3)
    sums = oracle.Sums(*(s.astype(np.float32) for s in sums))
    count = np.float32(stored.count)
    dx = gamma * r * (g - sums.beta / count - (x - mean) * r * (sums.gamma / count))
    assert dx.dtype == np.float32
    assert_close(
        dx,
        oracle.data_gradient(g, x, stored, sums, gamma, beta, epsilon=1e-3),
        ulps=ulps_for(14),
        scale=oracle.data_gradient_scale(g, x, stored, sums, gamma, epsilon=1e-3),
    )
