"""The softmax oracle against the printed example and against central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.softmax import cases, oracle
from tests.tolerance import assert_close, assert_exact, ulps_for

X = np.array([1.0, 2, 3]).reshape(1, 1, 1, 3)
G = np.array([1.0, 0, 0]).reshape(1, 1, 1, 3)
PAIRS = {
    "softmax": (oracle.softmax, oracle.softmax_gradient),
    "log": (oracle.log_softmax, oracle.log_softmax_gradient),
}


def test_printed_values():
    def check(actual, expected):
        np.testing.assert_allclose(actual.reshape(-1), expected, atol=5.1e-7)

    s, logs = oracle.softmax(X), oracle.log_softmax(X)
    check(s, [0.090031, 0.244728, 0.665241])
    check(oracle.softmax_gradient(G, s), [0.081925, -0.022033, -0.059892])
    check(logs, [-2.407606, -1.407606, -0.407606])
    check(oracle.log_softmax_gradient(G, logs), [0.909969, -0.244728, -0.665241])


@pytest.mark.parametrize("shape", cases.SHAPES[:-1], ids=str)
@pytest.mark.parametrize("kind", PAIRS)
def test_gradient_is_the_derivative(kind, shape, rng):
    forward, gradient = PAIRS[kind]
    x, weights = rng.standard_normal((2, *shape))
    assert_derivative(forward, x, weights, gradient(weights, forward(x)))


def test_one_channel():
    x = np.array([3.0]).reshape(1, 1, 1, 1)
    assert oracle.softmax(x) == 1
    assert oracle.log_softmax(x) == 0
    assert oracle.softmax_gradient(x, oracle.softmax(x)) == 0
    assert oracle.log_softmax_gradient(x, oracle.log_softmax(x)) == 0


def test_large_inputs_do_not_overflow():
    x = np.array([1e4, 0, -1e4]).reshape(1, 1, 1, 3)
    assert_exact(oracle.softmax(x).reshape(-1), [1, 0, 0])
    assert_exact(oracle.log_softmax(x).reshape(-1), [0, -1e4, -2e4])


@pytest.mark.parametrize("spread", [1, 30])
@pytest.mark.parametrize("channels", [1, 3, 64, 1000])
def test_scales_cover_a_float32_evaluation(channels, spread, rng):
    x = (spread * rng.standard_normal((4, 2, 3, channels))).astype(np.float32)
    g = rng.standard_normal(x.shape).astype(np.float32)
    below = x - x.max(axis=-1, keepdims=True)
    powers = np.exp(below)
    s = powers / powers.sum(axis=-1, keepdims=True)
    logs = below - np.log(powers.sum(axis=-1, keepdims=True))
    allowed = ulps_for(channels + 4, functions=4)

    def check(actual, exact, scale):
        assert_close(actual, exact, ulps=allowed, scale=scale, floor=1e-30, nonzero=0)

    check(s, oracle.softmax(x), oracle.softmax_scale(x))
    check(logs, oracle.log_softmax(x), oracle.log_softmax_scale(x))
    check(
        s * (g - (g * s).sum(axis=-1, keepdims=True)),
        oracle.softmax_gradient(g, s),
        oracle.softmax_gradient_scale(g, s),
    )
    check(
        g - np.exp(logs) * g.sum(axis=-1, keepdims=True),
        oracle.log_softmax_gradient(g, logs),
        oracle.log_softmax_gradient_scale(g, logs),
    )
