"""The pooling oracle against the worked examples and against central differences."""

import math

import numpy as np
import pytest
from hypothesis import given

from tests.central import assert_derivative
from tests.pooling import cases, fuzz, oracle
from tests.pooling.oracle import Pooling
from tests.tolerance import assert_exact, rng_for

RAMP = np.arange(1.0, 17).reshape(1, 4, 4, 1)
SQUARE = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)


def row(*values):
    """One image of one row and one channel."""
    return np.array(values, np.float64).reshape(1, 1, -1, 1)


def flat(image):
    return image[0, ..., 0].squeeze()


def test_offset_decides_everything():
    p = Pooling("MAX", (2, 2), (2, 2), offset=(1, 1))
    assert_exact(flat(oracle.forward(p, RAMP, (2, 2))), [[6, 8], [14, 16]])
    p = Pooling("MAX", (2, 2), (2, 2))
    assert_exact(flat(oracle.forward(p, RAMP, (2, 2))), [[1, 3], [9, 11]])


def test_zero_hides_negatives():
    p = Pooling("MAX", (3, 3), (2, 2))
    assert_exact(flat(oracle.forward(p, -RAMP, (2, 2))), [[0, 0], [0, -6]])
    p = Pooling("MAX", (3, 3), (2, 2), edge="clamp")
    assert_exact(flat(oracle.forward(p, -RAMP, (2, 2))), [[-1, -2], [-5, -6]])


@pytest.mark.parametrize(
    ("kernel", "edge", "zero_pad", "value"),
    [
        (3, "zero", 0, 10 / 9),
        (3, "clamp", 0, 10 / 4),
        (3, "clamp", 1, 10 / 9),
        (5, "clamp", 1, 10 / 16),
    ],
)
def test_divisors_of_averages(kernel, edge, zero_pad, value):
    p = Pooling("AVERAGE", (kernel, kernel), edge=edge, zero_pad=(zero_pad, zero_pad))
    assert_exact(flat(oracle.forward(p, SQUARE, (2, 2))), np.full((2, 2), value))


@pytest.mark.parametrize(
    ("edge", "expected"),
    [("clamp", [0.833333, 1.166667, 1.166667, 0.833333]), ("zero", [0.666667, 1, 1, 0.666667])],
)
def test_average_gradient(edge, expected):
    p = Pooling("AVERAGE", (3, 1), edge=edge)
    result = flat(oracle.gradient(p, row(1, 1, 1, 1), row(9, 9, 9, 9)))
    np.testing.assert_allclose(result, expected, atol=5e-7)


def test_max_gradient_with_a_tie_goes_to_the_first_tap():
    p = Pooling("MAX", (3, 1), offset=(1, 0))
    assert_exact(flat(oracle.gradient(p, row(10, 20), row(7, 7, 7, 2))), [10, 20, 0, 0])


def test_dropped_gradients():
    source, ones = row(-1, -2, -3, -4), row(1, 1, 1, 1)
    p = Pooling("MAX", (3, 1))
    assert_exact(flat(oracle.forward(p, source, (4, 1))), [0, -1, -2, 0])
    assert_exact(flat(oracle.gradient(p, ones, source)), [1, 1, 0, 0])
    p = Pooling("MAX", (3, 1), edge="clamp")
    assert_exact(flat(oracle.gradient(p, ones, source)), [2, 1, 1, 0])


def test_an_inside_zero_beats_a_padding_zero():
    p = Pooling("MAX", (3, 1))
    assert_exact(flat(oracle.gradient(p, row(1, 2), row(0, -1))), [3, 0])


def test_l2():
    p = Pooling("L2_NORM", (2, 1), (2, 1), offset=(1, 0))
    source = row(3, 4, 0, 0)
    assert_exact(flat(oracle.forward(p, source, (2, 1))), [5, 0])
    result = flat(oracle.gradient(p, row(1, 1), source))
    np.testing.assert_allclose(result, [0.6, 0.8, 0, 0], rtol=1e-15)


def test_l2_at_a_border():
    source = row(3, 4)
    assert_exact(flat(oracle.forward(Pooling("L2_NORM", (3, 1)), source, (2, 1))), [5, 5])
    p = Pooling("L2_NORM", (3, 1), edge="clamp")
    result = flat(oracle.forward(p, source, (2, 1)))
    np.testing.assert_allclose(result, [math.sqrt(34), math.sqrt(41)], rtol=1e-15)
    np.testing.assert_allclose(result, [5.830952, 6.403124], atol=5e-7)
    result = flat(oracle.gradient(p, row(1, 0), source))
    np.testing.assert_allclose(result, [1.028992, 0.685994], atol=5e-7)


def test_dilation():
    p = Pooling("MAX", (2, 1), dilation=(3, 1), offset=(2, 0))
    source = row(1, 5, 2, 9, 3, 9, 4, 0)
    assert_exact(flat(oracle.forward(p, source, (5, 1))), [9, 5, 9, 9, 3])
    result = flat(oracle.gradient(p, row(1, 2, 3, 4, 5), source))
    assert_exact(result, [0, 2, 0, 5, 5, 3, 0, 0])


def test_source_size_and_primary_offset_select_pixels():
    p = Pooling("AVERAGE", (2, 1), (2, 1), offset=(1, 0))
    result = oracle.gradient(
        p, row(1, 2, 3, 4, 5), np.zeros((1, 1, 6, 1)), primary_offset=(1, 0), source_size=(2, 1)
    )
    assert_exact(flat(result), [1, 1, 1.5, 1.5, 0, 0])


@pytest.mark.parametrize("limit", [(0, 1), (1, 0)])
def test_empty_source_size_gives_zeros(limit):
    for kind in oracle.KINDS:
        p = Pooling(kind, (2, 1))
        result = oracle.gradient(p, row(1, 2), row(1, 2), source_size=limit)
        assert not result.any()


def test_negative_primary_offset_skips_windows():
    p = Pooling("AVERAGE", (1, 1))
    result = oracle.gradient(p, row(1, 2, 3), row(0, 0, 0, 0), primary_offset=(-1, 0))
    assert_exact(flat(result), [0, 1, 2, 3])
    result = oracle.gradient(
        p, row(1, 2, 3), row(0, 0, 0, 0), primary_offset=(-1, 0), source_size=(2, 1)
    )
    assert_exact(flat(result), [0, 1, 0, 0])


def test_an_explicit_destination_starts_at_the_first_window():
    p = Pooling("AVERAGE", (3, 1), offset=(3, 0))
    assert oracle.first_pixel(p) == (2, 0)
    result = oracle.gradient(p, row(3, 6), row(0, 0, 0, 0, 0))
    assert_exact(flat(result), [0, 0, 1, 3, 3])
    destination = np.full((1, 1, 6, 1), 9.0)
    written = oracle.write(p, result, destination, origin=(1, 0), size=(4, 1))
    assert_exact(flat(written), [9, 1, 3, 3, 0, 9])
    assert_exact(flat(oracle.write(p, result, destination)), [1, 3, 3, 0, 0, 0])


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_windows_wholly_outside(kind, edge):
    p = Pooling(kind, (2, 1), offset=(-5, 0), edge=edge)
    source = row(3, 4)
    value = {"MAX": 3.0, "AVERAGE": 0.0, "L2_NORM": math.sqrt(18)}[kind] * (edge == "clamp")
    assert_exact(flat(oracle.forward(p, source, (1, 1))), value)
    gradient = {"MAX": 1.0, "AVERAGE": 0.0, "L2_NORM": 6 / math.sqrt(18)}[kind] * (edge == "clamp")
    np.testing.assert_allclose(flat(oracle.gradient(p, row(1), source)), [gradient, 0])


def test_a_window_wholly_in_the_zero_border_averages_to_zero():
    p = Pooling("AVERAGE", (2, 1), offset=(-1, 0), edge="clamp", zero_pad=(2, 0))
    assert_exact(flat(oracle.forward(p, row(3, 4), (1, 1))), 0)


@pytest.mark.parametrize("case", cases.CASES + cases.DILATED, ids=str)
def test_gradient_is_the_derivative(case):
    height, width = case.shape[1:3]
    shape = (1, height, width, 2 if height * width < 40 else 1)
    for p in cases.kernels(case):
        rng = rng_for(f"{case} {p}")
        source = 10.0 * cases.untied(rng, shape)
        weights = rng.standard_normal(oracle.forward(p, source, case.size).shape)
        assert_derivative(
            lambda x, p=p: oracle.forward(p, x, case.size),
            source,
            weights,
            oracle.gradient(p, weights, source),
        )


def by_definition(p, source, size):
    """Pool one pixel at a time, reading the rules aloud."""
    count, height, width, channels = source.shape
    result = np.zeros((count, size[1], size[0], channels))
    for n, j, i, c in np.ndindex(result.shape):
        taps = []
        for ty in range(p.kernel[1]):
            for tx in range(p.kernel[0]):
                x, y = (
                    p.offset[a]
                    + p.stride[a] * at
                    - ((p.kernel[a] - 1) * p.dilation[a] + 1) // 2
                    + p.dilation[a] * t
                    for a, at, t in ((0, i, tx), (1, j, ty))
                )
                inside = 0 <= x < width and 0 <= y < height
                border = (
                    -p.zero_pad[0] <= x < width + p.zero_pad[0]
                    and -p.zero_pad[1] <= y < height + p.zero_pad[1]
                )
                if p.kind == "AVERAGE" and p.edge == "clamp" and not border:
                    continue
                near = source[n, min(max(y, 0), height - 1), min(max(x, 0), width - 1), c]
                clamps = p.edge == "clamp" and p.kind != "AVERAGE"
                taps.append(near if inside or clamps else 0.0)
        if p.kind == "MAX":
            result[n, j, i, c] = max(taps)
        elif p.kind == "L2_NORM":
            result[n, j, i, c] = math.sqrt(sum(t * t for t in taps))
        elif taps:
            result[n, j, i, c] = sum(taps) / len(taps)
    return result


@pytest.mark.parametrize("case", cases.CASES + cases.DILATED, ids=str)
def test_forward_follows_the_definition(case):
    for p in cases.kernels(case):
        source = rng_for(f"{case}").standard_normal((1, *case.shape[1:3], 2))
        np.testing.assert_allclose(
            oracle.forward(p, source, case.size),
            by_definition(p, source, case.size),
            rtol=1e-13,
            atol=1e-15,
        )


@given(fuzz.poolings())
def test_any_pooling_is_homogeneous(drawn):
    """Scaling the source scales the result, so <G, x> = <g, pool(x)> for every kind."""
    case, p = drawn
    rng = rng_for(repr(drawn))
    source = cases.untied(rng, case.shape).astype(np.float64)
    result = oracle.forward(p, source, case.size)
    g = rng.standard_normal(result.shape)
    inner = np.sum(oracle.gradient(p, g, source) * source)
    np.testing.assert_allclose(inner, np.sum(g * result), rtol=1e-10, atol=1e-10)


def test_excluding_edges_counts_the_padding_on_the_near_side():
    p = Pooling("AVERAGE", (3, 2), (2, 2), offset=(0, 1))
    changed = oracle.excluding_edges(p)
    assert (changed.edge, changed.zero_pad) == ("clamp", (1, 0))
    assert oracle.excluding_edges(Pooling("AVERAGE", (1, 1), offset=(3, 0))).zero_pad == (0, 0)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 1, 2), (2, 3, 5, 7), (1, 16, 16, 8)])
def test_untied_values_are_distinct_and_exact(shape, rng):
    values = cases.untied(rng, shape)
    assert len(np.unique(values)) == values.size
    assert np.count_nonzero(values) == values.size
    assert_exact(values.astype(np.float16), values)
    assert np.abs(values).max() <= 1
