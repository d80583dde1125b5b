"""The dropout oracle against the printed example and against central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.dropout import cases, oracle
from tests.tolerance import assert_exact

X = np.array([2.0, 4, 6, 8])
MASK = np.array([1.0, 0, 0, 1])


def test_printed_values():
    assert_exact(oracle.forward(X, MASK, 0.5), [4, 0, 0, 16])
    assert_exact(oracle.gradient(np.ones(4), MASK, 0.5), [2, 0, 0, 2])


@pytest.mark.parametrize(
    ("stride", "mask_shape"),
    [
        ((1, 1, 1), (2, 3, 4, 5)),
        ((0, 0, 1), (2, 1, 1, 5)),
        ((1, 0, 0), (2, 1, 4, 1)),
        ((0, 1, 0), (2, 3, 1, 1)),
        ((0, 0, 0), (2, 1, 1, 1)),
    ],
)
def test_mask_shapes(stride, mask_shape):
    assert oracle.mask_shape((2, 3, 4, 5), stride) == mask_shape


@pytest.mark.parametrize("stride", cases.MASK_STRIDES, ids=str)
def test_gradient_is_the_derivative(stride, rng):
    shape = (2, 3, 4, 5)
    mask = rng.integers(0, 2, oracle.mask_shape(shape, stride)).astype(np.float32)
    x, weights = rng.standard_normal((2, *shape))
    gradient = oracle.gradient(weights, mask, 0.7)
    assert_derivative(lambda x: oracle.forward(x, mask, 0.7), x, weights, gradient)


def test_the_probability_is_a_float32():
    assert oracle.forward(1.0, 1.0, 0.1) == 1 / float(np.float32(0.1))


@pytest.mark.parametrize(
    ("counter", "key", "numbers"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_published_numbers(counter, key, numbers):
    """Known answers of Random123, the authors' own implementation."""
    assert tuple(oracle.philox(counter, key)) == numbers


def test_shared_values_reach_outside_a_mask():
    mask = np.ones((1, 2, 1, 1))
    rows, columns = np.arange(-1, 3), np.arange(-2, 3)
    assert oracle.laid(mask, (0, 1, 0), rows, columns)[0, :, :, 0].tolist() == [
        [0] * 5,
        [1] * 5,
        [1] * 5,
        [0] * 5,
    ]
    assert oracle.laid(mask, (1, 1, 0), rows, columns).sum() == 2


def test_sampling_error_shrinks_with_the_count():
    assert oracle.sampling_error(100, 0.5) == pytest.approx(0.25)
    assert oracle.sampling_error(10_000, 0.5) == pytest.approx(0.025)
