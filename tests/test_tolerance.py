"""The comparison tools themselves: what passes, what fails, and with which words."""

import re

import numpy as np
import pytest

from tests.central import assert_derivative, derivative
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    require_telling,
    rng_for,
    ulp,
    ulps_for,
)

ONE = np.ones((2, 2))


def step(count, dtype=np.float32, start=1.0):
    """Return `start` moved up by `count` representable values of `dtype`."""
    return np.asarray(start + count * np.spacing(np.dtype(dtype).type(start)), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_ulp_is_the_spacing_of_the_format(dtype):
    values = np.array([0.0, 1.0, 1.5, 1.99, 2.0, 1e-3, 1e-7, 6e-8, 60000.0], dtype)
    np.testing.assert_array_equal(ulp(values.astype(np.float64), dtype), np.spacing(values))


def test_ulp_of_normalised_integers_is_one_code():
    np.testing.assert_array_equal(ulp([0.0, 0.5, 1.0], np.uint8), 1 / 255)
    np.testing.assert_array_equal(ulp([0.0], np.uint16), 1 / 65535)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_close_counts_ulps(dtype):
    actual = np.full((2, 2), step(3, dtype), dtype)
    assert_close(actual, ONE, ulps=3)
    with pytest.raises(AssertionError, match="4 of 4 elements differ, allowed 2 ULPs"):
        assert_close(actual, ONE, ulps=2)


def test_report_names_the_worst_element():
    actual = np.ones((2, 3), np.float32)
    actual[0, 1] = step(2)
    actual[1, 2] = step(5)
    with pytest.raises(AssertionError) as failure:
        assert_close(actual, np.ones((2, 3)), ulps=1)
    text = str(failure.value)
    assert "2 of 6 elements differ" in text
    assert "worst at [1, 2]: 5 ULPs" in text
    assert "expected 1\n" in text
    assert "one ULP  1.19209e-07" in text


def test_scale_replaces_the_magnitude_of_the_result():
    exact = np.full(4, 1e-6)
    actual = (exact + 1e-7).astype(np.float32)
    with pytest.raises(AssertionError, match="ULPs"):
        assert_close(actual, exact, ulps=1)
    assert_close(actual, exact, ulps=1, scale=1.0)
    assert_close(actual, exact, ulps=1, floor=1.0)
    with pytest.raises(AssertionError, match="scale: given"):
        assert_close(actual + np.float32(3e-7), exact, ulps=1, scale=1.0)


def test_flushed_denormals_need_a_floor():
    exact = np.full(3, 1e-40)
    with pytest.raises(AssertionError, match="ULPs"):
        assert_close(np.zeros(3, np.float32), exact, ulps=4)
    # The largest denormal is one part in 2**23 short of the smallest normal number.
    assert_close(np.zeros(3, np.float32), exact, ulps=2.0**23, floor=float(np.finfo("f4").tiny))


@pytest.mark.parametrize(
    ("actual", "exact"),
    [
        ([np.nan], [np.nan]),
        ([np.inf], [np.inf]),
        ([np.inf], [1e39]),
        ([-np.inf], [-1e300]),
        ([0.0], [-0.0]),
    ],
    ids=["nan", "inf", "overflow", "negative overflow", "zeros"],
)
def test_special_values_agree(actual, exact):
    assert_close(np.array(actual, np.float32), exact, ulps=0)


@pytest.mark.parametrize(
    ("actual", "exact"),
    [
        ([np.nan], [1.0]),
        ([1.0], [np.nan]),
        ([np.inf], [1.0]),
        ([np.inf], [-np.inf]),
        ([3e38], [np.inf]),
        ([0.0], [np.nan]),
        ([1e38], [1e39]),
    ],
    ids=["nan", "missing nan", "inf", "sign", "missing inf", "zero for nan", "no overflow"],
)
def test_special_values_differ(actual, exact):
    with pytest.raises(AssertionError, match="1 of 1 elements differ"):
        assert_close(np.array(actual, np.float32), exact, ulps=100)


def test_overflow_of_a_value_next_to_the_largest_is_a_rounding_error():
    largest = float(np.finfo(np.float16).max)
    assert_close(np.array([np.inf], np.float16), [largest], ulps=1)
    assert_close(np.array([largest], np.float16), [largest + 17], ulps=1)
    with pytest.raises(AssertionError, match="ULPs"):
        assert_close(np.array([np.inf], np.float16), [largest - 200], ulps=1)


def test_normalised_integers():
    actual = np.array([0, 128, 255, 255], np.uint8)
    exact = np.array([-0.2, 0.5, 0.999, 3.0])
    assert_close(actual, exact, ulps=0.51)
    with pytest.raises(AssertionError, match=r"worst at \[1\]: 2\.5 ULPs"):
        assert_close(actual + np.array([0, 2, 0, 0], np.uint8), exact, ulps=0.51)


def test_shapes_and_dtypes_are_compared_too():
    with pytest.raises(AssertionError, match=re.escape("shape (4,), expected (2, 2)")):
        assert_close(np.ones(4, np.float32), ONE, ulps=1)
    with pytest.raises(TypeError, match="no ULP is defined for results of dtype float64"):
        assert_close(ONE, ONE, ulps=1)
    with pytest.raises(AssertionError, match=re.escape("shape (4,), expected (2, 2)")):
        assert_exact(np.ones(4, np.float32), ONE)


def test_exact():
    assert_exact(np.float32([1, np.nan, np.inf]), [1, np.nan, np.inf])
    with pytest.raises(AssertionError, match="1 of 2 elements differ, allowed exactly 0"):
        assert_exact(np.float32([1, 2]), [1, np.nextafter(2, 3)])
    with pytest.raises(AssertionError, match="worst at \\[1\\]"):
        assert_exact(np.float32([1, np.nan]), [1, 2])


def test_same_bytes():
    assert_same_bytes(np.float32([1, np.nan]), np.float32([1, np.nan]))
    with pytest.raises(AssertionError, match="1 of 2 elements differ in their bytes"):
        assert_same_bytes(np.float32([1, 0.0]), np.float32([1, -0.0]))
    with pytest.raises(AssertionError, match="float32"):
        assert_same_bytes(np.float32([1]), np.float64([1]))


def test_mostly_zero_results_are_invalid_cases():
    result = np.zeros(100)
    result[:24] = 1
    with pytest.raises(AssertionError, match="invalid case: only 24% of the 100"):
        assert_close(result.astype(np.float32), result, ulps=1)
    with pytest.raises(AssertionError, match="invalid case"):
        assert_exact(result, result)
    assert_close(result.astype(np.float32), result, ulps=1, nonzero=0.2)
    require_telling(np.zeros(31))
    result[24] = 1
    require_telling(result)


def test_ulps_from_a_count_of_roundings():
    assert ulps_for(1) == 0.5
    assert ulps_for(8) == 4
    assert ulps_for(36) == 18
    assert ulps_for(10_000) == 300
    assert ulps_for(2, functions=1.5) == 2.5
    assert ulps_for(8, np.float16) == 0.5 + 4 / 2**13
    assert ulps_for(8, np.uint8) == pytest.approx(0.5 + 4 * 255 / 2**23)


@pytest.mark.parametrize("terms", [1, 7, 36, 4096])
def test_a_float32_sum_stays_within_its_derived_tolerance(terms):
    rng = rng_for(f"sum of {terms}")
    numbers = rng.standard_normal((64, terms)).astype(np.float32)
    running = np.zeros(64, np.float32)
    for column in numbers.T:
        running += column
    exact = numbers.astype(np.float64)
    scale = np.abs(exact).sum(axis=1)
    assert_close(running, exact.sum(axis=1), ulps=ulps_for(terms), scale=scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8], ids=lambda d: d.__name__)
@pytest.mark.parametrize("skew", [0, 1, 5])
def test_guard_aligns_and_passes_when_filled(dtype, skew):
    with Guarded((3, 5), dtype, skew=skew) as out:
        assert out.flags.c_contiguous
        assert out.ctypes.data % 64 == skew * out.dtype.itemsize % 64
        out[...] = 1


@pytest.mark.parametrize("place", [-1, 6, -64, 69])
def test_guard_reports_writes_outside(place):
    guarded = Guarded((2, 3))
    guarded.array[...] = 0
    guarded._raw[guarded._start + place] = 7
    with pytest.raises(AssertionError, match=re.escape(f"element(s) [{place}] of 6")):
        guarded.check()


def test_guard_reports_unwritten_elements():
    guarded = Guarded((2, 3))
    guarded.array[0] = 0
    with pytest.raises(AssertionError, match=re.escape("first at [1, 0]")):
        guarded.check()
    guarded.check(complete=False)


def test_guard_does_not_hide_the_error_of_its_block():
    with pytest.raises(KeyError), Guarded((2, 3)):
        raise KeyError


def test_generators_repeat_by_name():
    assert rng_for("a").random() == rng_for("a").random()
    assert rng_for("a").random() != rng_for("b").random()


def test_grid_sums_are_exact():
    values = grid(rng_for("grid"), (64, 64), step=0.25)
    assert np.count_nonzero(values) == values.size
    assert np.abs(values).max() == 1
    product = values @ values
    assert_exact(product, values.astype(np.float64) @ values.astype(np.float64))


def test_central_differences():
    at = np.array([[0.3, -1.2], [2.0, 0.7]])
    weights = np.array([[1.0, -2.0], [0.5, 3.0]])
    expected = weights * 3 * at**2
    np.testing.assert_allclose(derivative(lambda x: x**3, at, weights), expected, rtol=1e-11)
    assert_derivative(np.exp, at, weights, weights * np.exp(at))
    with pytest.raises(AssertionError, match="not the derivative: at \\[1, 0\\]"):
        assert_derivative(np.exp, at, weights, weights * np.exp(at) * [[1, 1], [1.0001, 1]])
    with pytest.raises(AssertionError, match="not the derivative"):
        assert_derivative(np.exp, at, weights, np.full(at.shape, np.nan))
