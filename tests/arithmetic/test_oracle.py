"""The arithmetic oracle against the printed examples, NumPy's broadcasting, central differences."""

import numpy as np
import pytest

from tests.arithmetic import cases, oracle
from tests.arithmetic.oracle import Operation, Source
from tests.central import assert_derivative
from tests.tolerance import assert_exact


@pytest.mark.parametrize("kind", cases.PRINTED)
def test_printed_values(kind):
    scales, bias, result, dx, dy = cases.PRINTED[kind]
    operation = Operation(kind, scales, bias)
    first, second = Source(), Source(strides=(0, 0, 1))
    x, y = first.read(cases.X, (2, 1), 2), second.read(cases.Y, (2, 1), 2)
    assert_exact(operation.apply(x, y)[0, 0], np.array(result))
    mask, ones = operation.mask(x, y), np.ones((1, 1, 2, 2))
    t = oracle.terms(kind, ones, y, mask, *oracle.gradient_scales(operation, False))
    assert_exact(first.scatter(t, cases.X.shape)[0, 0], np.array(dx))
    t = oracle.terms(kind, ones, x, mask, *oracle.gradient_scales(operation, True))
    assert_exact(second.scatter(t, cases.Y.shape)[0, 0, 0], np.array(dy))


@pytest.mark.parametrize("broadcast", cases.BROADCASTS)
def test_reading_is_numpys_broadcasting(broadcast, rng):
    shape = (2, 3, 4, 5)
    for strides in cases.BROADCASTS[broadcast]:
        values = rng.standard_normal(cases.source_shape(shape, strides))
        seen = Source(strides=strides).read(values, (4, 3), 5)
        assert_exact(seen, np.broadcast_to(values, shape))


def test_a_size_of_one_is_not_broadcast():
    values = np.ones((1, 1, 1, 2))
    assert_exact(Source().read(values, (2, 1), 2)[0, 0], np.array([[1.0, 1], [0, 0]]))
    assert_exact(Source(edge="clamp").read(values, (2, 1), 2)[0, 0], np.ones((2, 2)))


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("broadcast", cases.BROADCASTS)
@pytest.mark.parametrize("kind", oracle.DIFFERENTIABLE)
def test_gradients_are_derivatives(kind, broadcast, edge, rng):
    """With offsets, so that some pixels are read often and others never."""
    operation = Operation(kind, (1.5, -0.75), 0.25, (-0.5, 0.75))
    first, second = (
        Source(offset, strides, edge)
        for offset, strides in zip([(1, -1), (-2, 1)], cases.BROADCASTS[broadcast], strict=True)
    )
    x, y = (rng.standard_normal((2, 3, 4, 2)) for _ in range(2))
    size, channels = (4, 3), 2
    while True:  # clear of the limits by more than a central difference moves
        seen = operation.unlimited(first.read(x, size, channels), second.read(y, size, channels))
        if np.abs(seen[..., None] - operation.limits).min() > 0.02:
            break
        x, y = (rng.standard_normal((2, 3, 4, 2)) for _ in range(2))
    weights = rng.standard_normal(seen.shape)
    sources = first, second
    for secondary in (False, True):

        def forward(values, secondary=secondary):
            pair = (x, values) if secondary else (values, y)
            return operation.apply(
                *(s.read(v, size, channels) for s, v in zip(sources, pair, strict=True))
            )

        mask = operation.mask(first.read(x, size, channels), second.read(y, size, channels))
        other = sources[not secondary].read((x, y)[not secondary], size, channels)
        scales = oracle.gradient_scales(operation, secondary)
        t = oracle.terms(kind, weights, other, mask, *scales)
        at = (x, y)[secondary]
        assert_derivative(forward, at, weights, sources[secondary].scatter(t, at.shape))


def test_comparisons():
    x, y = np.array([1.0, 2, 3, 2.5]), np.full(4, 2.0)
    expected = {
        "EQUAL": [0, 1, 0, 1],
        "NOT_EQUAL": [1, 0, 1, 0],
        "LESS": [1, 0, 0, 0],
        "LESS_OR_EQUAL": [1, 1, 0, 1],
        "GREATER": [0, 0, 1, 1],
        "GREATER_OR_EQUAL": [0, 1, 1, 1],
    }
    for comparison, holds in expected.items():
        assert_exact(oracle.compare(comparison, x, y, 0.5), np.array(holds))


def test_clamping():
    with np.errstate(divide="ignore"):
        got = Operation("Divide").apply(np.array([1.0, -1, 0]), np.zeros(3))
    assert_exact(got, np.array([oracle.FLT_MAX, -oracle.FLT_MAX, np.nan]))
    mask = Operation("Add", limits=(-1, 1)).mask(np.array([-1.0, 0, 1, 2]), np.zeros(4))
    assert mask.tolist() == [False, True, False, False]
