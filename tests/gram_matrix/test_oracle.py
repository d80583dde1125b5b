"""The Gram matrix oracle against the printed example and against central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.gram_matrix import cases, oracle
from tests.tolerance import assert_close, assert_exact, ulps_for

X = np.array([[1.0, 2], [3, 4]]).reshape(1, 1, 2, 2)


def at(row, column):
    gradient = np.zeros((1, 1, 2, 2))
    gradient[0, 0, row, column] = 1
    return gradient


def test_printed_values():
    assert_exact(oracle.gram_matrix(X)[0, 0], [[10, 14], [14, 20]])
    assert_exact(oracle.gram_matrix_gradient(at(0, 0), X)[0, 0], [[2, 0], [6, 0]])
    assert_exact(oracle.gram_matrix_gradient(at(0, 1), X)[0, 0], [[2, 1], [4, 3]])


def test_definition(rng):
    """Every element is what the documentation's sum says."""
    x = rng.standard_normal((2, 3, 4, 5))
    expected = 0.5 * np.einsum("nyxf,nyxc->nfc", x, x)[:, np.newaxis]
    np.testing.assert_allclose(oracle.gram_matrix(x, 0.5), expected, rtol=1e-12)
    g = rng.standard_normal(expected.shape)
    both = g[:, 0] + np.swapaxes(g[:, 0], 1, 2)
    expected = 0.5 * np.einsum("nkc,nyxc->nyxk", both, x)
    np.testing.assert_allclose(oracle.gram_matrix_gradient(g, x, 0.5), expected, rtol=1e-10)


@pytest.mark.parametrize("shape", cases.SHAPES[:6], ids=str)
@pytest.mark.parametrize("alpha", [1.0, -0.25])
def test_gradient_is_the_derivative(shape, alpha, rng):
    x = rng.standard_normal(shape)
    weights = rng.standard_normal((shape[0], 1, shape[3], shape[3]))
    gradient = oracle.gram_matrix_gradient(weights, x, alpha)
    assert_derivative(lambda moved: oracle.gram_matrix(moved, alpha), x, weights, gradient)


def test_scales_cover_a_float32_evaluation(rng):
    x = rng.standard_normal((2, 9, 7, 5), dtype=np.float32)
    g = rng.standard_normal((2, 1, 5, 5), dtype=np.float32)
    rows = x.reshape(2, -1, 5)
    alpha = np.float32(0.3)
    y = alpha * np.einsum("npf,npc->nfc", rows, rows, dtype=np.float32)[:, np.newaxis]
    exact, scale = oracle.gram_matrix(x, float(alpha)), oracle.gram_matrix_scale(x, float(alpha))
    assert_close(y, exact, ulps=ulps_for(2 * (63 + 1)), scale=scale)
    dx = (rows @ (alpha * (g + np.swapaxes(g, 2, 3))[:, 0])).reshape(x.shape)
    assert_close(
        dx,
        oracle.gram_matrix_gradient(g, x, float(alpha)),
        ulps=ulps_for(2 * (5 + 2)),
        scale=oracle.gram_matrix_gradient_scale(g, x, float(alpha)),
    )
