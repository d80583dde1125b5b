"""The instance normalization oracle: the worked example, central differences, its relatives."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.group_normalization import cases
from tests.group_normalization import instance_oracle as oracle
from tests.group_normalization import oracle as group
from tests.tolerance import assert_close, assert_exact, ulps_for


def test_worked_example():
    x = np.array([1.0, 3]).reshape(1, 1, 2, 1)
    y = oracle.forward(x, [2.0], [1.0], epsilon=3)
    assert_exact(y.reshape(-1), [0, 2])
    g = np.array([1.0, 0]).reshape(1, 1, 2, 1)
    result = oracle.gradients(g, x, [2.0], epsilon=3)
    assert (result.beta, result.gamma) == (1, -0.5)
    assert_exact(result.data.reshape(-1), [0.375, -0.375])


@pytest.mark.parametrize("shape", cases.INSTANCE_SHAPES, ids=str)
def test_gradients_are_derivatives(shape, rng):
    x, g = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[3]))

    def y(x=x, gamma=gamma, beta=beta):
        return oracle.forward(x, gamma, beta, epsilon=0.25)

    result = oracle.gradients(g, x, gamma, epsilon=0.25)
    assert_derivative(lambda x: y(x=x), x, g, result.data)
    assert_derivative(lambda gamma: y(gamma=gamma), gamma, g, result.gamma.sum(axis=0))
    assert_derivative(lambda beta: y(beta=beta), beta, g, result.beta.sum(axis=0))


@pytest.mark.parametrize("shape", cases.INSTANCE_SHAPES, ids=str)
def test_one_group_per_channel_is_instance_normalization(shape, rng):
    x, g = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[3]))
    given = {"groups": shape[3], "epsilon": 0.5}
    close = {"rtol": 1e-12, "atol": 1e-13}
    y = group.forward(x, gamma, beta, **given)
    np.testing.assert_allclose(oracle.forward(x, gamma, beta, epsilon=0.5), y, **close)
    single = oracle.gradients(g, x, gamma, epsilon=0.5)
    for one, other in zip(single, group.gradients(g, x, gamma, **given), strict=True):
        np.testing.assert_allclose(one, other, **close)


def test_one_pixel_has_nothing_but_its_offset(rng):
    x, g = rng.standard_normal((2, 2, 1, 1, 5))
    gamma, beta = rng.standard_normal((2, 5))
    assert_exact(oracle.forward(x, gamma, beta)[0, 0, 0], beta)
    result = oracle.gradients(g, x, gamma)
    assert not result.data.any()
    assert not result.gamma.any()
    assert_exact(result.beta, g[:, 0, 0])


def test_scales_cover_a_float32_evaluation(rng):
    x, g = rng.standard_normal((2, 2, 5, 7, 3)).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 3)).astype(np.float32)

    def mean(values):
        return values.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)

    centred = x - mean(x)
    r = np.float32(1) / np.sqrt(mean(centred.astype(float) ** 2) + np.float32(1e-3))
    assert_close(
        centred * r * gamma + beta,
        oracle.forward(x, gamma, beta, epsilon=1e-3),
        ulps=ulps_for(10),
        scale=oracle.forward_scale(x, gamma, beta, epsilon=1e-3),
    )
    data = gamma * r * (g - mean(g) - centred * r * mean(g * centred * r))
    exact, scales = (
        f(g, x, gamma, epsilon=1e-3) for f in (oracle.gradients, oracle.gradient_scales)
    )
    assert_close(data, exact.data, ulps=ulps_for(16), scale=scales.data)
