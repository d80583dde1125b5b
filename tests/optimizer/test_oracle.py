"""The optimizer oracle against the printed steps and against the literature's definitions."""

import numpy as np
import pytest

from tests.optimizer import cases, oracle
from tests.optimizer.oracle import Settings
from tests.tolerance import assert_close, assert_exact, ulps_for

RATE = Settings(0.1)


def printed(actual, expected, digits=8):
    """Compare with a printed decimal; settings are float32, so one digit more is allowed for."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1.01 * 10.0**-digits)


def test_printed_preprocessing():
    s = Settings(0.1, 2.0, (-0.25, 0.5), "L2", 0.1)
    g = oracle.preprocess(s, [3, -3, 0.1], [10, 10, -10])
    printed(g, [2.0, 0.5, -0.8], digits=6)


def test_printed_l1_ignores_the_sign_of_the_value():
    s = Settings(0.1, regularization="L1", regularization_scale=0.1)
    printed(oracle.preprocess(s, [0.2, 0.2], [1, -1]), [0.3, 0.3])


def test_clipping_lets_nan_through():
    assert np.isnan(oracle.preprocess(Settings(clip=(0, 1)), [np.nan], [0.0])).all()


@pytest.mark.parametrize(
    ("steps", "given"),
    [
        (cases.SGD_STEPS, None),
        (cases.MOMENTUM_STEPS, {"nesterov": False}),
        (cases.NESTEROV_STEPS, {"nesterov": True}),
    ],
    ids=["plain", "momentum", "nesterov"],
)
def test_printed_sgd(steps, given):
    w, m = 1.0, None if given is None else 0.0
    for step in steps:
        w, m = oracle.sgd(RATE, step.gradient, w, m, momentum_scale=0.9, **(given or {}))
        printed(w, step.value, digits=7)
        if given is None:
            assert m is None
        else:
            printed(m, step.history[0], digits=7)


def test_printed_momentum_holds_the_rate_of_its_step():
    w, m = oracle.sgd(Settings(0.1), 0.5, 1.0, 0.0, momentum_scale=0.9)
    w, m = oracle.sgd(Settings(0.01), 0.5, w, m, momentum_scale=0.9)
    printed([w, m], [0.90, 0.05], digits=7)


def test_printed_running_average():
    w, _ = oracle.sgd(cases.SETTINGS["running average"], 10.0, 2.0)
    printed(w, 2.8, digits=6)


def test_printed_rmsprop():
    w, s = 1.0, 0.0
    for step in cases.RMSPROP_STEPS:
        w, s = oracle.rmsprop(RATE, step.gradient, w, s)
        printed(w, step.value)
        printed(s, step.history[0])


@pytest.mark.parametrize(
    ("steps", "beta2", "maximum"),
    [
        (cases.ADAM_STEPS, 0.999, None),
        (cases.QUICK_ADAM_STEPS, 0.5, None),
        (cases.AMSGRAD_STEPS, 0.5, 0.0),
    ],
    ids=["adam", "quick", "amsgrad"],
)
def test_printed_adam(steps, beta2, maximum):
    w, m, v, x = 1.0, 0.0, 0.0, maximum
    for t, step in enumerate(steps, start=1):
        w, m, v, x = oracle.adam(RATE, step.gradient, w, m, v, x, step=t, beta2=beta2)
        printed(w, step.value)
        printed((m, v) if x is None else (m, v, x), step.history, digits=10)
    assert (x is None) == (maximum is None)


def test_printed_adam_with_a_visible_epsilon():
    w, *_ = oracle.adam(RATE, 0.5, 1.0, 0.0, 0.0, step=1, epsilon=0.01)
    printed(w, 0.93874259)
    # With the velocity corrected first, the same epsilon is 31.6 times weaker.
    corrected = 1 - 0.1 * 0.5 / (0.5 + 0.01)
    printed(corrected, 0.90196, digits=5)
    weak, *_ = oracle.adam(RATE, 0.5, 1.0, 0.0, 0.0, step=1, epsilon=0.01 * np.sqrt(1 - 0.999))
    printed(weak, corrected)


@pytest.mark.parametrize("step", cases.ADAM_RATES)
def test_printed_adam_rates(step):
    printed(oracle.adam_rate(1.0, step, 0.9, 0.999), cases.ADAM_RATES[step], digits=6)


def test_adam_is_the_published_algorithm_when_epsilon_vanishes(rng):
    g = rng.standard_normal((20, 50))
    w = m = v = published = pm = pv = np.zeros(50)
    for t in range(1, 21):
        w, m, v, _ = oracle.adam(RATE, g[t - 1], w, m, v, step=t, epsilon=0)
        pm = 0.9 * pm + 0.1 * g[t - 1]
        pv = 0.999 * pv + 0.001 * g[t - 1] ** 2
        corrected = (pm / (1 - 0.9**t)) / np.sqrt(pv / (1 - 0.999**t))
        published = published - RATE.learning_rate * corrected
    np.testing.assert_allclose(w, published, rtol=1e-12)


def test_momentum_scale_of_zero_still_writes_momentum():
    g = np.array([2.0])
    w, m = oracle.sgd(RATE, g, [1.0], [7.0], momentum_scale=0)
    assert_exact(m, RATE.learning_rate * g)
    w_nesterov, m = oracle.sgd(RATE, g, [1.0], [7.0], momentum_scale=0, nesterov=True)
    assert_exact(m, g)
    assert_exact(w, w_nesterov)


def test_arguments_are_not_changed(rng):
    arrays = [rng.standard_normal(5) for _ in range(5)]
    before = [array.copy() for array in arrays]
    s = cases.SETTINGS["everything"]
    oracle.sgd(s, *arrays[:3], momentum_scale=0.9, nesterov=True)
    oracle.rmsprop(s, *arrays[:2], np.abs(arrays[2]))
    oracle.adam(s, *arrays[:3], np.abs(arrays[3]), np.abs(arrays[4]), step=1)
    for array, copy in zip(arrays, before, strict=True):
        assert_exact(array, copy)


@pytest.mark.parametrize("name", cases.SETTINGS)
def test_scales_cover_a_float32_step(name, rng):
    s = cases.SETTINGS[name]
    g, w, m = (rng.standard_normal(1009).astype(np.float32) for _ in range(3))
    rate, rescale, regular, scale = (
        np.float32(v) for v in (s.learning_rate, s.gradient_rescale, s.regularization_scale, 0.9)
    )
    clipped = g if s.clip is None else np.clip(g, *np.float32(s.clip))
    added = {"NONE": 0 * w, "L1": regular + 0 * w, "L2": regular * w}[s.regularization]
    ready = clipped * rescale + added
    ready_scale = oracle.preprocess_scale(s, g, w)
    exact = oracle.preprocess(s, g, w)
    assert_close(ready, exact, ulps=ulps_for(3), scale=ready_scale)

    momentum = scale * m + rate * ready
    new_w, new_m = oracle.sgd(s, g, w, m, momentum_scale=0.9)
    momentum_scale = np.abs(0.9 * m) + abs(s.learning_rate) * ready_scale
    assert momentum.dtype == np.float32
    assert_close(momentum, new_m, ulps=ulps_for(6), scale=momentum_scale)
    assert_close(
        w - momentum, new_w, ulps=ulps_for(7), scale=oracle.step_scale(w, new_w) + momentum_scale
    )
