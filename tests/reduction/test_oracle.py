"""The oracle against the printed examples, and against sums written out."""

import numpy as np
import pytest

from tests.reduction import cases, oracle


def test_printed_values():
    x = np.array([1.0, 3, 3]).reshape(1, 1, 1, 3)
    assert oracle.reduce(x, 3, "ArgumentMax") == 1
    assert oracle.reduce(x, 3, "ArgumentMin") == 0
    assert 0.5 * oracle.reduce(x, 3, "Sum") == 3.5
    np.testing.assert_allclose(oracle.reduce(x, 3, "Mean"), 2.333333, atol=4e-7)


@pytest.mark.parametrize("axis", cases.AXES)
def test_one_value_per_row_or_column(axis):
    """A row's value is made along x."""
    x = np.arange(24.0).reshape(1, 2, 3, 4)
    number = cases.AXES[axis]
    shape = {"Row": (1, 2, 1, 4), "Column": (1, 1, 3, 4), "FeatureChannels": (1, 2, 3, 1)}[axis]
    for kind in cases.KINDS:
        assert oracle.reduce(x, number, kind).shape == shape
    total = sum(np.take(x, [i], axis=number) for i in range(x.shape[number]))
    np.testing.assert_array_equal(oracle.reduce(x, number, "Sum"), total)


def test_weighted_sums_written_out():
    x = np.array([1.0, 2, 3, 4]).reshape(1, 1, 2, 2)
    w = np.array([5.0, 0, 0, 0]).reshape(1, 1, 2, 2)
    assert oracle.weighted(x, w).ravel().tolist() == [5, 0]
    assert oracle.weighted(x, w, "number").ravel().tolist() == [2.5, 0]
    assert oracle.weighted(x, w, "non-zero").ravel().tolist() == [5, 0]


@pytest.mark.parametrize(("edge", "beyond"), [("zero", 0.0), ("clamp", 1.0)])
def test_correlation_written_out(edge, beyond, rng):
    """Every element, by its definition."""
    a, b = rng.standard_normal((2, 1, 3, 4, 2))
    (wx, wy), (sx, sy) = (1, 2), (2, 1)
    result = oracle.correlation(a, b, (wx, wy), (sx, sy), edge)
    assert result.shape == (1, 3, 4, 15)
    for y, x, k, m in np.ndindex(3, 4, 2 * wy + 1, 2 * wx + 1):
        row, column = y + (k - wy) * sy, x + (m - wx) * sx
        inside = 0 <= row < 3 and 0 <= column < 4
        pixel = b[0, np.clip(row, 0, 2), np.clip(column, 0, 3)]
        expected = (a[0, y, x] * pixel).sum() * (1.0 if inside else beyond)
        np.testing.assert_allclose(result[0, y, x, k * (2 * wx + 1) + m], expected, atol=1e-14)
