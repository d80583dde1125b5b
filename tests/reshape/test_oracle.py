"""The oracle of the kernels that copy, against the printed examples, NumPy and differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.reshape import cases, oracle
from tests.tolerance import assert_exact


def line(*values):
    return np.array(values, np.float64).reshape(1, 1, -1, 1)


def pixel(*values):
    return np.array(values, np.float64).reshape(1, 1, 1, -1)


def test_printed_mirror():
    padded = oracle.pad(line(0, 1, 2), (3, 0, 0), (2, 0, 0), "mirror")
    assert_exact(padded.ravel(), [1, 2, 1, 0, 1, 2, 1, 0])


def test_printed_channels():
    """Channels 2 to 4 of eight, one more before and two after."""
    window = pixel(2, 3, 4)
    assert_exact(oracle.pad(window, (0, 0, 1), (0, 0, 2), "zero").ravel(), [0, 2, 3, 4, 0, 0])
    mirrored = oracle.pad(window, (0, 0, 1), (0, 0, 2), "mirror_with_edge")
    assert_exact(mirrored.ravel(), [2, 2, 3, 4, 4, 3])


def test_printed_channels_of_the_header():
    window = pixel(1, 2, 3)
    padded = oracle.pad(window, (0, 0, 2), (0, 0, 3), "mirror_with_edge")
    assert_exact(padded.ravel(), [2, 1, 1, 2, 3, 3, 2, 1])


def test_printed_gradients():
    d = 2.0 ** np.arange(8)  # sums say which of them they are of

    def gradient(edge, before, count):
        return oracle.pad_gradient(line(*d[:count]), (1, 1, 3, 1), (before, 0, 0), edge).ravel()

    assert_exact(gradient("clamp", 1, 6), [d[0] + d[1], d[2], d[3] + d[4] + d[5]])
    assert_exact(
        gradient("mirror", 3, 8),
        [d[3] + d[7], d[0] + d[2] + d[4] + d[6], d[1] + d[5]],
    )
    # The header's own.
    assert_exact(gradient("clamp", 2, 8), [d[:3].sum(), d[3], d[4:].sum()])
    assert_exact(gradient("mirror", 4, 8), [d[0] + d[4], d[1] + d[3] + d[5] + d[7], d[2] + d[6]])


NUMPY = {
    "zero": {"mode": "constant"},
    "clamp": {"mode": "edge"},
    "mirror": {"mode": "reflect"},
    "mirror_with_edge": {"mode": "symmetric"},
    "constant": {"mode": "constant", "constant_values": 2.5},
}


@pytest.mark.parametrize("edge", cases.EDGES)
@pytest.mark.parametrize(("shape", "before", "after"), cases.PADS, ids=str)
def test_padding_is_numpys(shape, before, after, edge, rng):
    x = rng.standard_normal(shape)
    width = [(0, 0), *((before[axis], after[axis]) for axis in (1, 0, 2))]
    assert_exact(
        oracle.pad(x, before, after, edge, 2.5), np.pad(x, width, **NUMPY[edge]), nonzero=0
    )


@pytest.mark.parametrize("edge", cases.EDGES)
@pytest.mark.parametrize(("shape", "before", "after"), cases.PADS[1:4] + cases.PADS[-1:], ids=str)
def test_gradient_is_the_derivative(shape, before, after, edge, rng):
    shape = (1, *shape[1:])
    x = rng.standard_normal(shape)
    weights = rng.standard_normal(oracle.pad(x, before, after, edge).shape)
    assert_derivative(
        lambda x: oracle.pad(x, before, after, edge, 3.0),
        x,
        weights,
        oracle.pad_gradient(weights, shape, before, edge),
    )


def test_copies_count_every_place():
    counted = oracle.copies("clamp", (1, 3, 2), (2, 1, 1), (2, 7, 3))
    assert_exact(counted[0, :, 0], np.array([3, 1, 3]) * 2 * 2)
