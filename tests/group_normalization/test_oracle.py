"""The group normalization oracle against the worked example and against central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.group_normalization import cases, oracle
from tests.tolerance import assert_close, assert_exact, ulps_for


def test_worked_example():
    x = np.array([1.0, 3, 7, 9]).reshape(1, 1, 1, 4)
    gamma, beta = np.array([2.0, 2, 4, 2]), np.array([0.0, 0, 1, 1])
    y = oracle.forward(x, gamma, beta, groups=2, epsilon=3)
    assert_exact(y.reshape(-1), [-1, 1, -1, 2])
    g = np.array([1.0, 0, 1, 1]).reshape(1, 1, 1, 4)
    result = oracle.gradients(g, x, gamma, groups=2, epsilon=3)
    assert_exact(result.gamma, [[-0.5, 0, -0.5, 0.5]])
    assert_exact(result.beta, [[1, 0, 1, 1]])
    assert_exact(result.data.reshape(-1), [0.375, -0.375, 0.375, -0.375])


@pytest.mark.parametrize(("shape", "groups"), cases.CASES, ids=str)
def test_gradients_are_derivatives(shape, groups, rng):
    x, g = rng.standard_normal((2, *shape))
    gamma, beta = rng.standard_normal((2, shape[3]))

    def y(x=x, gamma=gamma, beta=beta):
        return oracle.forward(x, gamma, beta, groups=groups, epsilon=0.25)

    result = oracle.gradients(g, x, gamma, groups=groups, epsilon=0.25)
    assert_derivative(lambda x: y(x=x), x, g, result.data)
    assert_derivative(lambda gamma: y(gamma=gamma), gamma, g, result.gamma.sum(axis=0))
    assert_derivative(lambda beta: y(beta=beta), beta, g, result.beta.sum(axis=0))
    plain = oracle.gradients(g, x, groups=groups, epsilon=0.25).data
    assert_derivative(lambda x: oracle.forward(x, groups=groups, epsilon=0.25), x, g, plain)


def test_every_image_is_normalized_on_its_own(rng):
    x, g = rng.standard_normal((2, 3, 4, 5, 6))
    whole = oracle.gradients(g, x, groups=2, epsilon=1)
    for n in range(3):
        single = oracle.gradients(g[n : n + 1], x[n : n + 1], groups=2, epsilon=1)
        for one, batch in zip(single, whole, strict=True):
            assert_exact(one[0], batch[n])


def test_groups_have_mean_0_and_variance_1(rng):
    x = 3 + 2 * rng.standard_normal((2, 3, 4, 6))
    y = oracle.forward(x, groups=3).reshape(2, 3, 4, 3, 2)
    np.testing.assert_allclose(y.mean(axis=(1, 2, 4)), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(axis=(1, 2, 4)), 1, rtol=1e-13)


def test_scales_cover_a_float32_evaluation(rng):
    shape, groups = (2, 5, 7, 12), 3
    x, g = rng.standard_normal((2, *shape)).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 12)).astype(np.float32)

    def mean(values):
        return oracle.group_mean(values, groups).astype(np.float32)

    centred = x - mean(x)
    r = np.float32(1) / np.sqrt(mean(centred.astype(float) ** 2) + np.float32(1e-3))
    given = {"groups": groups, "epsilon": 1e-3}
    # The mean's own rounding counts like two of the others.
    assert_close(
        centred * r * gamma + beta,
        oracle.forward(x, gamma, beta, **given),
        ulps=ulps_for(10),
        scale=oracle.forward_scale(x, gamma, beta, **given),
    )
    h = gamma * g
    data = r * (h - mean(h) - centred * r * mean(h * centred * r))
    exact, scales = (f(g, x, gamma, **given) for f in (oracle.gradients, oracle.gradient_scales))
    assert_close(data, exact.data, ulps=ulps_for(16), scale=scales.data)
    sums = (g * centred * r).sum(axis=(1, 2))
    assert_close(sums, exact.gamma, ulps=ulps_for(35 + 10), scale=scales.gamma)
    assert_close(g.sum(axis=(1, 2)), exact.beta, ulps=ulps_for(35), scale=scales.beta)
