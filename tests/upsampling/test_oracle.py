"""The upsampling oracle against the printed examples, NumPy, and central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.tolerance import assert_exact
from tests.upsampling import cases, oracle
from tests.upsampling.oracle import Upsampling


def line(values):
    return np.array(values, np.float64).reshape(1, 1, -1, 1)


def test_printed_values():
    row, ones = line([1, 2, 4]), line(np.ones(6))

    def check(kind, forward, gradient):
        u = Upsampling(kind, (2, 1))
        np.testing.assert_allclose(oracle.forward(u, row).ravel(), forward)
        np.testing.assert_allclose(oracle.gradient(u, ones, (3, 1)).ravel(), gradient)

    check("nearest", [1, 1, 2, 2, 4, 4], [2, 2, 2])
    check("bilinear", [1, 1.5, 2, 3, 4, 4], [1.5, 2, 2.5])
    check("aligned", [1, 1.4, 1.8, 2.4, 3.2, 4], [1.8, 2.4, 1.8])


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_nearest_repeats_and_bilinear_interpolates(case, rng):
    x = rng.standard_normal(case.shape)
    repeated = x.repeat(case.factor[1], axis=1).repeat(case.factor[0], axis=2)
    assert_exact(oracle.forward(Upsampling("nearest", case.factor), x), repeated)
    for kind in ("bilinear", "aligned"):
        expected = x
        for axis, factor in ((1, case.factor[1]), (2, case.factor[0])):
            n = x.shape[axis]
            last = n - 1 if kind == "aligned" else n - 1 / factor
            at = np.linspace(0, last, n * factor)
            expected = np.apply_along_axis(
                lambda values, at=at, n=n: np.interp(at, np.arange(n), values), axis, expected
            )
        u = Upsampling(kind, case.factor)
        np.testing.assert_allclose(oracle.forward(u, x), expected, atol=1e-12)


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_gradient_is_the_derivative(kind, edge, rng):
    u = Upsampling(kind, (3, 2), (-1, 1), edge)
    x, weights = rng.standard_normal((1, 3, 4, 2)), rng.standard_normal((1, 5, 9, 2))
    slope = oracle.gradient(u, weights, (4, 3))
    assert_derivative(lambda values: oracle.forward(u, values, (9, 5)), x, weights, slope)


def test_edges():
    row = line([1, 2])

    def check(kind, edge, expected):
        u = Upsampling(kind, (2, 1), (-1, 0), edge)
        np.testing.assert_allclose(oracle.forward(u, row, (8, 1)).ravel(), expected)

    check("nearest", "zero", [0, 0, 1, 1, 2, 2, 0, 0])
    check("nearest", "clamp", [1, 1, 1, 1, 2, 2, 2, 2])
    check("bilinear", "zero", [0, 0.5, 1, 1.5, 2, 2, 0, 0])
    check("bilinear", "clamp", [1, 1, 1, 1.5, 2, 2, 2, 2])
