"""The neuron oracle against the printed values and against central differences."""

import numpy as np
import pytest

from tests.central import STEP, assert_derivative
from tests.neuron import cases, oracle
from tests.tolerance import assert_close, rng_for, ulps_for


@pytest.mark.parametrize("row", cases.VALUES, ids=lambda row: f"{row.neuron}({row.x:g})")
def test_printed_values(row):
    half = 0.51 * 10.0**-row.digits
    assert abs(oracle.forward(row.neuron.kind, row.x, **row.neuron.parameters) - row.value) <= half
    assert abs(oracle.slope(row.neuron.kind, row.x, **row.neuron.parameters) - row.slope) <= half


def test_every_kind_has_cases():
    assert {neuron.kind for neuron in cases.STANDARD} == set(oracle.KINDS)
    assert len(oracle.KINDS) == 16


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
def test_slope_is_the_derivative(neuron):
    # Away from the ends: the fifth derivative of a logarithm or a power explodes at its pole.
    low, high = np.clip(neuron.interval, -6, 6)
    x = rng_for(str(neuron)).uniform(low + 0.1 * (high - low), high, (1, 3, 4, 5))
    for kink in oracle.kinks(neuron.kind, **neuron.parameters):
        x = np.where(np.abs(x - kink) < 4 * STEP, x + 0.1, x)
    weights = rng_for("weights").standard_normal(x.shape)
    gradient = oracle.gradient(neuron.kind, weights, x, **neuron.parameters)
    assert_derivative(
        lambda x: oracle.forward(neuron.kind, x, **neuron.parameters), x, weights, gradient
    )


@pytest.mark.parametrize(
    ("neuron", "x", "slope"),
    [
        (cases.Neuron("RELU", a=0.25), 0.0, 1.0),
        (cases.Neuron("RELU", a=0.25), -0.0, 1.0),
        (cases.Neuron("PRELU", data=(0.25,)), 0.0, 1.0),
        (cases.Neuron("ELU", a=0.25), 0.0, 1.0),
        (cases.Neuron("RELUN", a=0.25, b=6), 0.0, 1.0),
        (cases.Neuron("RELUN", a=0.25, b=6), 6.0, 0.0),
        (cases.Neuron("RELUN", a=-2, b=6), -3.0, 0.0),
        (cases.Neuron("RELUN", a=-2, b=6), -2.5, -2.0),
        (cases.Neuron("ABSOLUTE"), 0.0, 0.0),
        (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), -2.0, 0.25),
        (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), 2.0, 0.25),
        (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), 2.001, 0.0),
    ],
    ids=str,
)
def test_slope_at_kinks(neuron, x, slope):
    assert oracle.slope(neuron.kind, [x], **neuron.parameters) == slope


def test_parameters_are_float32():
    assert oracle.forward("LINEAR", 1.0, a=0.1, b=0.0) == np.float32(0.1)
    assert oracle.forward("PRELU", [-1.0], data=[0.1]) == -np.float32(0.1)


def test_prelu_ignores_extra_values():
    x = np.full((1, 1, 1, 2), -1.0)
    assert oracle.forward("PRELU", x, data=[2.0, 3.0, 4.0]).tolist() == [[[[-2.0, -3.0]]]]


def test_minus_one_selects_base_e_and_is_an_ordinary_exponent():
    assert oracle.forward("EXPONENTIAL", 2.0, c=-1) == np.exp(2.0)
    assert oracle.forward("LOGARITHM", 2.0, c=-1) == np.log(2.0)
    assert oracle.forward("POWER", 2.0, c=-1) == 0.5


@pytest.mark.parametrize(
    ("kind", "x", "given", "expected"),
    [
        ("POWER", -1.0, {"c": 0.5}, np.nan),
        ("POWER", 0.0, {"c": -1.0}, np.inf),
        ("LOGARITHM", 0.0, {}, -np.inf),
        ("LOGARITHM", -1.0, {}, np.nan),
        ("EXPONENTIAL", 1.0, {"c": -2.0}, np.nan),
        ("EXPONENTIAL", 1.0, {"c": 0.0}, 0.0),
        ("SIGMOID", -1e4, {}, 0.0),
        ("SIGMOID", 1e4, {}, 1.0),
        ("SOFT_PLUS", 1e4, {}, 1e4),
        ("SOFT_PLUS", -1e4, {}, 0.0),
    ],
)
def test_extreme_inputs(kind, x, given, expected):
    np.testing.assert_equal(oracle.forward(kind, x, **given), expected)


def test_default_relun_does_not_rectify():
    assert oracle.forward("RELUN", [-3.0, 3.0, 9.0]).tolist() == [-3.0, 3.0, 6.0]


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
def test_scales_cover_a_float32_evaluation_of_the_formula(neuron):
    """Evaluate the printed formulas in float32 NumPy: their errors must fit the stated scales."""
    x = rng_for(f"scale {neuron}").uniform(*neuron.interval, 2000).astype(np.float32)
    x = x.reshape(-1, 20)
    a, b, c = (np.float32(p) for p in oracle.parameters(neuron.kind, **neuron.parameters))
    a = a[:20] if a.ndim else a
    value, slope = formulas(neuron.kind, x, a, b, c)
    assert value.dtype == slope.dtype == np.float32
    away = np.ones(x.shape, bool)
    for kink in oracle.kinks(neuron.kind, **neuron.parameters):
        away &= np.abs(x - kink) > 1e-5
    x, value, slope = (v[away] if neuron.kind != "PRELU" else v for v in (x, value, slope))
    # Four roundings and two library functions of at most two ULPs each.
    allowed = ulps_for(4, functions=4)
    given = neuron.parameters
    assert_close(
        value,
        oracle.forward(neuron.kind, x, **given),
        ulps=allowed,
        scale=oracle.forward_scale(neuron.kind, x, **given),
        floor=1e-30,
    )
    one = np.ones(x.shape)
    assert_close(
        slope,
        oracle.gradient(neuron.kind, one, x, **given),
        ulps=allowed,
        scale=oracle.gradient_scale(neuron.kind, one, x, **given),
        floor=1e-30,
        nonzero=0.1,
    )


def formulas(kind, x, a, b, c):
    """Value and slope as the rules print them, in the precision of the arguments."""
    one, half = np.float32(1), np.float32(0.5)
    z = a * x + b
    if kind == "NONE":
        return x, np.ones_like(x)
    if kind in ("RELU", "PRELU"):
        return np.where(x >= 0, x, a * x), np.where(x >= 0, one, a * np.ones_like(x))
    if kind == "LINEAR":
        return z, a * np.ones_like(x)
    if kind == "SIGMOID":
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, one, small) / (one + small), small / (one + small) ** 2
    if kind == "HARD_SIGMOID":
        inside = (z >= 0) & (z <= 1)
        return np.clip(z, 0 * one, one), np.where(inside, a, 0 * one)
    if kind == "TANH":
        return a * np.tanh(b * x), a * b * (one - np.tanh(b * x) ** 2)
    if kind == "ABSOLUTE":
        return np.abs(x), np.sign(x)
    if kind == "SOFT_PLUS":
        small = np.exp(-np.abs(b * x))
        return (
            a * (np.maximum(b * x, 0 * one) + np.log1p(small)),
            a * b * (np.where(b * x >= 0, one, small) / (one + small)),
        )
    if kind == "SOFT_SIGN":
        return x / (one + np.abs(x)), one / (one + np.abs(x)) ** 2
    if kind == "ELU":
        power = np.exp(np.minimum(x, 0 * one))
        return np.where(x >= 0, x, a * (power - one)), np.where(x >= 0, one, a * power)
    if kind == "RELUN":
        rectified = np.where(x >= 0, x, a * x)
        slope = np.where(rectified >= b, 0 * one, np.where(x >= 0, one, a))
        return np.minimum(rectified, b), slope
    if kind == "POWER":
        return z**c, a * c * z ** (c - one)
    if kind == "GELU":
        bell = oracle.erf(x * np.float32(np.sqrt(0.5))).astype(np.float32)
        density = np.float32(np.sqrt(2 / np.pi)) * np.exp(-(x**2) * half)
        return half * x * (one + bell), half * (one + bell + x * density)
    log_base = one if c == -1 else np.log(c)
    if kind == "EXPONENTIAL":
        return np.exp(log_base * z), a * log_base * np.exp(log_base * z)
    return np.log(z) / log_base, a / (log_base * z)
