"""Pooling kernels against the oracle, the worked examples, and the rules of their encodes."""

import math
from dataclasses import replace

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings

from tests.copies import WAYS
from tests.core.oracle import DTYPES, inside, load, positions, store
from tests.images import Work, descriptor, empty, filled, read
from tests.pooling import cases, fuzz, oracle
from tests.pooling.oracle import Pooling
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    rng_for,
    ulps_for,
)

CLASSES = {
    "MAX": (mg.PoolingMax, mg.PoolingMaxGradient),
    "AVERAGE": (mg.PoolingAverage, mg.PoolingAverageGradient),
    "L2_NORM": (mg.PoolingL2Norm, mg.PoolingL2NormGradient),
    "DILATED": (mg.DilatedPoolingMax, mg.DilatedPoolingMaxGradient),
}
PLAIN = [*oracle.KINDS]
ALL = cases.CASES + cases.PAGES + cases.WIDE + cases.DILATED


# --- Running kernels ------------------------------------------------------------


def kernels(p, device, *, dilated=False):
    """Return the forward kernel, with every property set, and a fresh gradient kernel."""
    if dilated or p.dilation != (1, 1):
        assert p.kind == "MAX"
        arguments = (*p.kernel, *p.dilation, *p.stride)
        classes = CLASSES["DILATED"]
    else:
        arguments = (*p.kernel, *p.stride)
        classes = CLASSES[p.kind]
    forward, gradient = (cls(*arguments, device=device) for cls in classes)
    forward.offset = p.offset
    forward.edge_mode = edge_mode(p)
    if p.kind == "AVERAGE":
        forward.zero_pad_size_x, forward.zero_pad_size_y = p.zero_pad
    return forward, gradient


def edge_mode(p):
    return {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[p.edge]


def pool(device, kernel, source, shape, fmt="float32", *, kind="batch"):
    """Encode into a destination of (N, H, W, C): its texels, and the states."""
    sources = filled(device, source, fmt, kind=kind)
    destinations = empty(device, shape, fmt, kind=kind, fill=0.75)
    states = kernel.result_state(sources, destinations)
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(destinations), destination_state=states)
    return read(destinations), states


def pool_gradient(device, kernel, incoming, source, states, fmt="float32", *, kind="batch"):
    """Encode a gradient that creates its destination: its texels."""
    gradients = filled(device, incoming, fmt, kind=kind)
    sources = filled(device, source, fmt, kind=kind)
    with Work(device) as work:
        result = kernel.encode(work.buffer, gradients, sources, states, allocator=mg.DEFAULT)
        work.result(result)
    return read(result)


def check_forward(p, actual, source, size, *, nonzero=0.25):
    """Compare with the oracle: maxima exactly, sums to the roundings of their additions."""
    exact = oracle.forward(p, source, size)
    taps = min(p.kernel[0], source.shape[2] + 2) * min(p.kernel[1], source.shape[1] + 2)
    if p.kind == "MAX":
        fmt = next(name for name, dtype in DTYPES.items() if dtype == actual.dtype)
        assert_exact(actual, store(exact, fmt), nonzero=nonzero)
    elif p.kind == "AVERAGE":  # the additions, and a division
        scale = oracle.forward(p, np.abs(source), size)
        ulps = ulps_for(taps + 1, actual.dtype)
        assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)
    else:  # squares, additions, the weight of a clamped pixel, and a root that halves their error
        ulps = ulps_for(taps + 3, actual.dtype)
        assert_close(actual, exact, ulps=ulps, nonzero=nonzero)


def check_gradient(p, actual, incoming, source, **where):
    """Compare with the oracle; `incoming` is made of small integers, so sums of them are exact."""
    exact = oracle.gradient(p, incoming, source, **where)
    # How many windows read the same pixel, and the taps of a window that lie in the source.
    windows = math.prod(
        int(reads(p, axis, incoming.shape[2 - axis], source.shape[2 - axis]).max(initial=1))
        for axis in (0, 1)
    )
    taps = min(p.kernel[0], source.shape[2] + 2) * min(p.kernel[1], source.shape[1] + 2)
    if p.kind == "MAX":  # most pixels win nothing
        assert_exact(actual, exact, nonzero=1e-9 if exact.any() else 0)
    elif p.kind == "AVERAGE":  # a reciprocal, a product, the additions
        scale = oracle.gradient(p, np.abs(incoming), source, **where)
        ulps = ulps_for(windows + 2, actual.dtype)
        assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=0.02)
    else:  # the squares, the root and the quotient; a weight, the additions and a product
        scale = np.abs(source) * np.divide(
            oracle.gradient(p, np.abs(incoming), np.abs(source), **where),
            np.abs(source),
            out=np.zeros(source.shape),
            where=source != 0,
        )
        ulps = ulps_for(taps + windows + 6, actual.dtype)
        assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=0.02)


def check_kernels(device, case, seed, *, nonzero=0.25):
    """Compare all kernels that a case is for, forward and gradient, with the oracle."""
    for p in cases.kernels(case):
        rng = rng_for(f"{seed} {p}")
        source = cases.untied(rng, case.shape)
        forward, gradient = kernels(p, device)
        result, states = pool(device, forward, source, case.result_shape)
        check_forward(p, result, source, case.size, nonzero=nonzero)
        incoming = grid(rng, case.result_shape)
        actual = pool_gradient(device, gradient, incoming, source, states)
        check_gradient(p, actual, incoming, source)


def reads(p, axis, count, length):
    """How many windows read each pixel of an axis, clamped ones included."""
    at = positions(
        np.arange(count), p.kernel[axis], p.stride[axis], p.dilation[axis], p.offset[axis]
    )
    if p.edge == "zero":
        at = at[inside(at, length)]
    return np.bincount(np.clip(at, 0, length - 1).ravel(), minlength=length)


# --- Against the oracle ---------------------------------------------------------


@pytest.mark.parametrize("case", ALL, ids=str)
def test_forward_and_gradient(device, case):
    # Zeros stand for windows outside the source, and hide negative maxima.
    check_kernels(device, case, case, nonzero=0.02)


@pytest.mark.parametrize("fmt", ["float32", "float16"])
@pytest.mark.parametrize("case", cases.WIDE, ids=str)
def test_wide_pixels(device, case, fmt):
    for p in cases.kernels(case):
        source = grid(rng_for(f"{case} {p}"), case.shape)
        forward, _ = kernels(p, device)
        result, _ = pool(device, forward, source, case.result_shape, fmt)
        check_forward(p, result, source, case.size)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 64])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_any_number_of_channels(device, channels, stride):
    case = cases.PoolingCase("channels", (2, 5, 6, channels), (3, 2), (stride, 2))
    check_kernels(device, case, f"{channels} {stride}")


@pytest.mark.parametrize("channels", range(1, 17))
@pytest.mark.parametrize("side", [2, 3, 5])
def test_windows_side_by_side(device, side, channels):
    """Whose pixels fill no vector, and a column that no window reads."""
    window = (side, side), (side, side)
    shape = (1, 2 * side, 19 * side + 1, channels)
    case = cases.PoolingCase("side by side", shape, *window, method=cases.VALID)
    check_kernels(device, case, f"{side} {channels}")


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_formats_and_ways_to_hold_images(device, fmt, kind, name):
    case = cases.PoolingCase("formats", (3, 6, 5, 6), (3, 3), (2, 2))
    p = case.pooling(name, edge="clamp")
    rng = rng_for(f"{fmt} {kind} {name}")
    # Distinct sixteenths from 0 to 1 serve every format once they are rounded to it.
    source = load(filled_codes(rng, case.shape, fmt))
    forward, gradient = kernels(p, device)
    if name == "L2_NORM" and DTYPES[fmt].kind != "f":
        source = source / 8 // (1 / 255) / 255  # the norms must not exceed 1
    result, states = pool(device, forward, source, case.result_shape, fmt, kind=kind)
    check_forward(p, result, source, case.size)
    if kind == "container":
        states = [states]
        incoming = grid(rng, case.result_shape, step=2.0**-6, reach=4)
        gradients, sources = (filled(device, a, fmt, kind=kind) for a in (np.abs(incoming), source))
        destination = empty(device, case.shape, fmt, kind=kind, fill=0.5)
        gradient.configure(gradients, sources, states[0])
        with Work(device) as work:
            gradient.encode(work.buffer, gradients, sources, states[0], work.result(destination))
        actual = read(destination)
        incoming = load(read(gradients))
    else:
        gradients = np.abs(grid(rng, case.result_shape, step=2.0**-6, reach=4))
        incoming = load(read(filled(device, gradients, fmt)))
        actual = pool_gradient(device, gradient, incoming, source, states, fmt, kind=kind)
    exact = oracle.gradient(p, incoming, source)
    assert_close(actual, exact, ulps=ulps_for(16, actual.dtype), nonzero=0.05)


def filled_codes(rng, shape, fmt):
    """Stored values in random order, distinct as far as the format has so many."""
    count = math.prod(shape)
    if DTYPES[fmt].kind == "f":
        return (rng.permutation(count).reshape(shape) / 1024).astype(DTYPES[fmt])
    codes = np.iinfo(DTYPES[fmt]).max
    values = rng.permutation(count) * max(1, codes // count) % (codes + 1)
    return values.reshape(shape).astype(DTYPES[fmt])


@settings(max_examples=60)
@given(fuzz.poolings())
def test_random_poolings(device, drawn):
    case, p = drawn
    rng = rng_for(repr(drawn))
    source = cases.untied(rng, case.shape)
    forward, gradient = kernels(p, device)
    result, states = pool(device, forward, source, case.result_shape)
    check_forward(p, result, source, case.size, nonzero=0)
    incoming = grid(rng, case.result_shape)
    actual = pool_gradient(device, gradient, incoming, source, states)
    exact = oracle.gradient(p, incoming, source)
    assert_close(
        actual,
        exact,
        ulps=ulps_for(2 * math.prod(p.kernel) + 2 * math.prod(case.size) + 8),
        scale=np.maximum(np.abs(exact), np.abs(incoming).sum()),
        nonzero=0,
    )


# --- Worked examples --------------------------------------------------------------

RAMP = np.arange(1.0, 17).reshape(1, 4, 4, 1)
SQUARE = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)


def row(*values):
    """One image of one row and one channel."""
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


FORWARD = {
    "familiar": (Pooling("MAX", (2, 2), (2, 2), offset=(1, 1)), RAMP, [[6, 8], [14, 16]]),
    "offset 0": (Pooling("MAX", (2, 2), (2, 2)), RAMP, [[1, 3], [9, 11]]),
    "zero hides": (Pooling("MAX", (3, 3), (2, 2)), -RAMP, [[0, 0], [0, -6]]),
    "clamp": (Pooling("MAX", (3, 3), (2, 2), edge="clamp"), -RAMP, [[-1, -2], [-5, -6]]),
    "average, zero": (Pooling("AVERAGE", (3, 3)), SQUARE, np.full((2, 2), 10 / 9)),
    "average, clamp": (Pooling("AVERAGE", (3, 3), edge="clamp"), SQUARE, np.full((2, 2), 2.5)),
    "average, border": (
        Pooling("AVERAGE", (3, 3), edge="clamp", zero_pad=(1, 1)),
        SQUARE,
        np.full((2, 2), 10 / 9),
    ),
    "average, wide": (
        Pooling("AVERAGE", (5, 5), edge="clamp", zero_pad=(1, 1)),
        SQUARE,
        np.full((2, 2), 0.625),
    ),
    "dropped": (Pooling("MAX", (3, 1)), row(-1, -2, -3, -4), [[0, -1, -2, 0]]),
    "l2": (Pooling("L2_NORM", (2, 1), (2, 1), offset=(1, 0)), row(3, 4, 0, 0), [[5, 0]]),
    "l2, zero": (Pooling("L2_NORM", (3, 1)), row(3, 4), [[5, 5]]),
    "l2, clamp": (
        Pooling("L2_NORM", (3, 1), edge="clamp"),
        row(3, 4),
        [[5.830952, 6.403124]],
    ),
    "dilation": (
        Pooling("MAX", (2, 1), dilation=(3, 1), offset=(2, 0)),
        row(1, 5, 2, 9, 3, 9, 4, 0),
        [[9, 5, 9, 9, 3]],
    ),
}


@pytest.mark.parametrize(("p", "source", "expected"), FORWARD.values(), ids=FORWARD)
def test_printed_forward_values(device, p, source, expected):
    expected = np.asarray(expected, np.float64)
    result, _ = pool(device, kernels(p, device)[0], source, (1, *expected.shape, 1))
    # Half of the last printed digit.
    np.testing.assert_allclose(result[0, ..., 0], expected, atol=5e-7, rtol=2**-23)


GRADIENT = {
    "average, clamp": (
        Pooling("AVERAGE", (3, 1), edge="clamp"),
        row(9, 9, 9, 9),
        row(1, 1, 1, 1),
        [0.833333, 1.166667, 1.166667, 0.833333],
    ),
    "average, zero": (
        Pooling("AVERAGE", (3, 1)),
        row(9, 9, 9, 9),
        row(1, 1, 1, 1),
        [0.666667, 1, 1, 0.666667],
    ),
    "dropped": (Pooling("MAX", (3, 1)), row(-1, -2, -3, -4), row(1, 1, 1, 1), [1, 1, 0, 0]),
    "kept by clamp": (
        Pooling("MAX", (3, 1), edge="clamp"),
        row(-1, -2, -3, -4),
        row(1, 1, 1, 1),
        [2, 1, 1, 0],
    ),
    "l2": (
        Pooling("L2_NORM", (2, 1), (2, 1), offset=(1, 0)),
        row(3, 4, 0, 0),
        row(1, 1),
        [0.6, 0.8, 0, 0],
    ),
    "l2, clamp": (
        Pooling("L2_NORM", (3, 1), edge="clamp"),
        row(3, 4),
        row(1, 0),
        [1.028992, 0.685994],
    ),
    "dilation": (
        Pooling("MAX", (2, 1), dilation=(3, 1), offset=(2, 0)),
        row(1, 5, 2, 8, 3, 9, 4, 0),
        row(1, 2, 3, 4, 5),
        [0, 2, 0, 5, 5, 3, 0, 0],
    ),
}


@pytest.mark.parametrize(("p", "source", "incoming", "expected"), GRADIENT.values(), ids=GRADIENT)
def test_printed_gradients(device, p, source, incoming, expected):
    forward, gradient = kernels(p, device)
    _, states = pool(device, forward, source, incoming.shape)
    result = pool_gradient(device, gradient, incoming, source, states)
    # Half of the last printed digit.
    np.testing.assert_allclose(result[0, 0, :, 0], expected, atol=5e-7, rtol=0)


TIES = {
    "first of three": (
        Pooling("MAX", (3, 1), offset=(1, 0)),
        row(7, 7, 7, 2),
        row(10, 20),
        [10, 20, 0, 0],
    ),
    "dilated": (
        Pooling("MAX", (2, 1), dilation=(3, 1), offset=(2, 0)),
        row(1, 5, 2, 9, 3, 9, 4, 0),
        row(1, 2, 3, 4, 5),
        [0, 2, 0, 5, 5, 3, 0, 0],
    ),
    "minus infinity": (
        Pooling("MAX", (2, 1), (2, 1), offset=(1, 0)),
        row(-np.inf, -np.inf, 1, -np.inf),
        row(3, 4),
        [3, 0, 4, 0],
    ),
}


@pytest.mark.parametrize(("p", "source", "incoming", "expected"), TIES.values(), ids=TIES)
def test_the_whole_gradient_goes_to_one_of_equal_pixels(device, p, source, incoming, expected):
    forward, gradient = kernels(p, device)
    _, states = pool(device, forward, source, incoming.shape)
    result = pool_gradient(device, gradient, incoming, source, states)[0, 0, :, 0]
    if device.kind == "cpu":  # the first one, in row-major order
        assert_exact(result, expected)
    else:
        for value in np.unique(source):
            tied = source.ravel() == value
            assert result[tied].sum() == np.asarray(expected)[tied].sum()


def test_ties_over_rows_go_to_the_first_row(device):
    p = Pooling("MAX", (2, 2), (2, 2), offset=(1, 1))
    forward, gradient = kernels(p, device)
    source = np.array([[1.0, 5], [5, 5]]).reshape(1, 2, 2, 1)
    _, states = pool(device, forward, source, (1, 1, 1, 1))
    result = pool_gradient(device, gradient, np.full((1, 1, 1, 1), 3.0), source, states)
    assert result.sum() == 3
    if device.kind == "cpu":
        assert_exact(result[0, ..., 0], [[0, 3], [0, 0]])


@pytest.mark.parametrize("channels", [1, 3, 16, 37])
@pytest.mark.parametrize("dilated", [False, True])
def test_nan_is_no_maximum_wherever_it_lies(device, dilated, channels):
    if device.kind != "cpu":
        pytest.skip("another device's rule is its own")
    p = Pooling("MAX", (3, 3), (3, 3), offset=(1, 1))
    forward, gradient = kernels(p, device, dilated=dilated)
    places = list(np.ndindex(3, 3))
    numbers = np.arange(1.0, 10.0).reshape(3, 3)
    source = np.broadcast_to(numbers, (10, channels, 3, 3)).transpose(0, 2, 3, 1).copy()
    for i, place in enumerate(places):
        source[(i, *place)] = np.nan
    source[9] = np.nan
    y, states = pool(device, forward, source, (10, 1, 1, channels))
    dx = pool_gradient(device, gradient, np.ones_like(y), source, states)
    assert_exact(y[:8], np.full((8, 1, 1, channels), 9.0))
    assert_exact(y[8], np.full((1, 1, channels), 8.0))
    assert_exact(y[9], np.full((1, 1, channels), -np.inf))
    winners = [*[(2, 2)] * 8, (2, 1), (0, 0)]
    for i, place in enumerate(winners):
        expected = np.zeros((3, 3, channels))
        expected[place] = 1
        assert_exact(dx[i], expected, nonzero=0.1)  # one of nine pixels


TIED = {
    "3x3": ((3, 3), (1, 1), (1, 1)),
    "3x3 stride 2": ((3, 3), (2, 2), (1, 1)),
    "3x3 strides 1 and 2": ((3, 3), (1, 2), (1, 1)),
    "3x3 stride 3": ((3, 3), (3, 3), (1, 1)),
    "3x3 dilated": ((3, 3), (1, 1), (2, 2)),
    "3x3 dilated, stride 2": ((3, 3), (2, 1), (3, 1)),
    "2x2": ((2, 2), (2, 2), (1, 1)),
    "2x3": ((2, 3), (1, 1), (1, 1)),
    "5x4": ((5, 4), (1, 1), (1, 1)),
    "4x4 stride 2": ((4, 4), (2, 2), (1, 1)),
    "4x5 dilated": ((4, 5), (1, 1), (2, 1)),
    "7x7 stride 3": ((7, 7), (3, 3), (1, 1)),
    "9x9": ((9, 9), (1, 1), (1, 1)),
    "1x10 stride 4": ((1, 10), (1, 4), (1, 1)),
    "10x1 stride 4": ((10, 1), (4, 1), (1, 1)),
    "11x10": ((11, 10), (1, 1), (1, 1)),
    "5x5 stride 5": ((5, 5), (5, 5), (1, 1)),
    "1x1 stride 2": ((1, 1), (2, 2), (1, 1)),
}


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("channels", [3, 6, 16, 37, 150])
@pytest.mark.parametrize("method", [cases.SAME, cases.VALID])
@pytest.mark.parametrize("fmt", ["float32", "float16"])
@pytest.mark.parametrize("window", TIED.values(), ids=TIED)
def test_the_first_of_equal_pixels_in_any_window(window, fmt, method, channels, edge):
    """Few values, so that most windows have ties, and some that are no numbers."""
    device = mg.Device("cpu")
    case = cases.PoolingCase("ties", (2, 10, 11, channels), *window, method=method)
    rng = rng_for(f"{window} {channels}")
    source = rng.choice(
        [-2, -1, 0, 1, np.nan, -np.inf], case.shape, p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1]
    )
    source[0, :4] = rng.choice([np.nan, -np.inf], source[0, :4].shape)
    incoming = rng.integers(1, 9, case.result_shape).astype(np.float64)
    p = case.pooling("MAX", edge=edge)
    forward, gradient = kernels(p, device)
    _, states = pool(device, forward, source, case.result_shape, fmt)
    actual = pool_gradient(device, gradient, incoming, source, states, fmt)
    assert_exact(actual, first_of_equal_pixels(p, incoming, source), nonzero=1e-3)


@pytest.mark.parametrize("fmt", ["float32", "float16"])
@pytest.mark.parametrize("channels", [3, 150])
@pytest.mark.parametrize("window", TIED.values(), ids=TIED)
def test_gradients_do_not_depend_on_the_number_of_threads(device, window, channels, fmt):
    case = cases.PoolingCase("threads", (1, 23, 11, channels), *window)
    p = case.pooling("MAX")
    rng = rng_for(f"threads {window} {channels}")
    source, incoming = (rng.standard_normal(s) for s in (case.shape, case.result_shape))
    forward, gradient = kernels(p, device)
    _, states = pool(device, forward, source, case.result_shape, fmt)

    def run():
        return [pool_gradient(device, gradient, incoming, source, states, fmt)]

    (result,) = check_thread_independence(run, (1, 2, 5))
    assert result.any()


def first_of_equal_pixels(p, incoming, source):
    """Give each window's gradient to the first pixel of which none that is a number is larger."""
    xs, ys = oracle.window_positions(p, *(np.arange(incoming.shape[a]) for a in (2, 1)))
    height, width = source.shape[1:3]
    best = np.full(incoming.shape, -np.inf)
    winner = np.full((*incoming.shape, 2), -1)
    hidden = np.zeros(incoming.shape[1:3], bool)
    for rows, columns in oracle.each_tap(xs, ys):
        outside = ~(inside(rows, height)[:, None] & inside(columns, width)[None, :])
        near = [np.clip(at, 0, n - 1) for at, n in ((rows, height), (columns, width))]
        values = source[:, near[0][:, None], near[1][None, :]]
        if p.edge == "zero":
            hidden |= outside
            values = np.where(outside[:, :, None], np.nan, values)
        ahead = values > best
        ahead |= (winner[..., 0] < 0) & ~(outside[:, :, None] & (p.edge == "zero"))
        winner[ahead] = np.broadcast_to(
            np.stack(np.meshgrid(*near, indexing="ij"), -1)[:, :, None], winner.shape
        )[ahead]
        best = np.fmax(best, values)
    winner[hidden[:, :, None] & (best < 0)] = -1
    result = np.zeros(source.shape)
    n, _, _, c = np.indices(incoming.shape)
    given = winner[..., 0] >= 0
    np.add.at(
        result, (n[given], winner[given][:, 0], winner[given][:, 1], c[given]), incoming[given]
    )
    return result


def test_an_inside_zero_beats_a_padding_zero(device):
    p = Pooling("MAX", (3, 1))
    forward, gradient = kernels(p, device)
    _, states = pool(device, forward, row(0, -1), (1, 1, 2, 1))
    result = pool_gradient(device, gradient, row(1, 2), row(0, -1), states)
    if device.kind == "cpu":
        assert_exact(result[0, 0, :, 0], [3, 0])


LARGEST = np.float16(65504)  # of float16


@pytest.mark.parametrize("channels", [1, 3, 8, 37])
@pytest.mark.parametrize(("side", "stride"), [(2, 2), (3, 1), (3, 3), (5, 2), (9, 1), (9, 9)])
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_averages_of_the_largest_halves_do_not_overflow(device, edge, side, stride, channels):
    """Their sum would, and so would the incoming gradients that are shared out."""
    case = cases.PoolingCase("large", (1, 11, 12, channels), (side, side), (stride, stride))
    p = case.pooling("AVERAGE", edge=edge)
    source = np.full(case.shape, LARGEST)
    source[..., 1::2] *= -1
    forward, gradient = kernels(p, device)
    y, states = pool(device, forward, source, case.result_shape, "float16")
    check_forward(p, y, source.astype(np.float64), case.size)
    assert np.isfinite(y).all()
    incoming = np.full(case.result_shape, LARGEST)
    dx = pool_gradient(device, gradient, incoming, source, states, "float16")
    check_gradient(p, dx, incoming.astype(np.float64), source)
    assert np.isfinite(dx[:, side:-side, side:-side]).all()


@pytest.mark.parametrize("side", [2, 3, 9])
@pytest.mark.parametrize("value", [LARGEST, np.float16(2.0**-24)])
def test_squares_of_halves_neither_overflow_nor_vanish(device, value, side):
    """One pixel a window is not zero: its norm is its magnitude, the slope there its sign."""
    case = cases.PoolingCase("one", (1, 2 * side, 3 * side, 5), (side, side), (side, side))
    p = replace(case.pooling("L2_NORM"), offset=(side // 2, side // 2))
    source = np.zeros(case.shape, np.float16)
    source[:, ::side, ::side] = -value
    forward, gradient = kernels(p, device)
    y, states = pool(device, forward, source, case.result_shape, "float16")
    assert_exact(y, np.full(case.result_shape, value))
    incoming = np.full(case.result_shape, 3.0)
    dx = pool_gradient(device, gradient, incoming, source, states, "float16")
    assert_exact(dx, -3.0 * (source != 0), nonzero=0)


def test_a_zero_norm_gives_no_gradient(device):
    p = Pooling("L2_NORM", (2, 2), (2, 2), offset=(1, 1))
    forward, gradient = kernels(p, device)
    source = np.zeros((1, 4, 4, 5), np.float32)
    _, states = pool(device, forward, source, (1, 2, 2, 5))
    result = pool_gradient(device, gradient, np.full((1, 2, 2, 5), 7.0), source, states)
    assert not result.any()


def test_one_tap_of_a_dilation_is_plain_pooling(device):
    case = cases.CASES[7]
    p = case.pooling("MAX")
    source = cases.untied(rng_for("dilation 1"), case.shape)
    plain, dilated = (kernels(p, device, dilated=d)[0] for d in (False, True))
    expected = pool(device, plain, source, case.result_shape)[0]
    assert_same_bytes(pool(device, dilated, source, case.result_shape)[0], expected)


# --- Padding policies -------------------------------------------------------------

SIZES = [  # n, k, s, method, size, offset
    (7, 2, 2, 0x10, 4, 0),
    (7, 2, 2, 0x1C, 4, 1),
    (7, 3, 2, 0x10, 4, 0),
    (7, 3, 2, 0x1C, 4, 0),
    (6, 3, 2, 0x10, 3, 0),
    (6, 3, 2, 0x1C, 3, 1),
    (6, 2, 2, 0x10, 3, 1),
    (7, 2, 2, 0x00, 3, 1),
    (7, 2, 2, 0x0C, 3, 1),
    (9, 3, 4, 0x00, 2, 1),
    (9, 3, 4, 0x0C, 2, 2),
    (5, 2, 1, 0x20, 6, 0),
    (5, 2, 1, 0x2C, 6, 0),
]


@pytest.mark.parametrize(("n", "k", "s", "method", "size", "offset"), SIZES)
@pytest.mark.parametrize("name", PLAIN)
def test_policies_place_the_windows(device, name, n, k, s, method, size, offset):
    kernel = CLASSES[name][0](k, k, s, s, device=device)
    kernel.padding = mg.DefaultPadding(method)
    source = cases.untied(rng_for(f"{n} {k}"), (2, n, n, 3))
    result, states = kernel(source, with_state=True)
    assert result.shape == (2, size, size, 3)
    assert tuple(kernel.offset) == (offset, offset, 0)
    p = Pooling(name, (k, k), (s, s), offset=(offset, offset))
    check_forward(p, result, source, (size, size))
    incoming = grid(rng_for("incoming"), result.shape)
    gradient = CLASSES[name][1](k, k, s, s, device=device)
    actual = gradient(incoming, source, states)
    check_gradient(p, actual, incoming, source)
    assert gradient.source_size == (size, size, None)
    assert tuple(gradient.secondary_offset) == (offset, offset, 0)


@pytest.mark.parametrize("method", [0x8010, 0x801C, 0x8000, 0x8020])
@pytest.mark.parametrize("shape", [(1, 6, 7, 2), (2, 5, 5, 4)], ids=str)
def test_excluding_edges_counts_padding_as_caffe_does(device, method, shape):
    kernel = mg.PoolingAverage(3, 2, 2, 2, device=device)
    kernel.padding = mg.DefaultPadding(method)
    case = cases.PoolingCase("caffe", shape, (3, 2), (2, 2), method=method & 0x7FFF)
    p = oracle.excluding_edges(case.pooling("AVERAGE"))
    source = rng_for("caffe").standard_normal(shape).astype(np.float32)
    result, states = kernel(source, with_state=True)
    assert kernel.edge_mode == mg.EdgeMode.CLAMP
    assert (kernel.zero_pad_size_x, kernel.zero_pad_size_y) == p.zero_pad
    check_forward(p, result, source, case.size)
    gradient = mg.PoolingAverageGradient(3, 2, 2, 2, device=device)
    incoming = grid(rng_for("caffe"), result.shape)
    check_gradient(p, gradient(incoming, source, states), incoming, source)
    assert (gradient.zero_pad_size_x, gradient.zero_pad_size_y) == p.zero_pad


def test_only_averages_heed_exclude_edges(device):
    for name in ("MAX", "L2_NORM"):
        kernel = CLASSES[name][0](3, 3, device=device)
        kernel.padding = mg.DefaultPadding(0x8010)
        kernel(np.ones((4, 4, 1), np.float32))
        assert kernel.edge_mode == mg.EdgeMode.ZERO


def test_a_failed_encode_leaves_the_zero_border_alone(device):
    kernel = mg.PoolingAverage(3, 3, device=device)
    kernel.padding = mg.DefaultPadding(0x8000)  # valid only: 2x2 is too small
    kernel.zero_pad_size_x = 5
    with pytest.raises(ValueError, match="too small"):
        kernel(np.ones((2, 2, 1), np.float32))
    assert (kernel.zero_pad_size_x, kernel.edge_mode) == (5, mg.EdgeMode.ZERO)


def test_tensorflow_average_policy_clamps(device):
    kernel = mg.PoolingAverage(2, 2, 2, 2, device=device)
    kernel.padding = mg.DefaultPadding.tensorflow_average_pooling()
    source = np.arange(9, dtype=np.float32).reshape(3, 3, 1)
    assert_exact(kernel(source)[..., 0], [[2, 3.5], [6.5, 8]])


# --- Where results are read from and written to -------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_clip_rectangles(device, name, edge):
    p = Pooling(name, (3, 2), (2, 1), offset=(1, -1), edge=edge)
    forward, gradient = kernels(p, device)
    rng = rng_for(f"clip {name} {edge}")
    source = cases.untied(rng, (2, 6, 7, 5))
    forward.clip_rect = mg.Region((2, 1), (3, 4))
    result, states = pool(device, forward, source, (2, 7, 6, 5))
    check_forward(p, result[:, 1:5, 2:5], source, (3, 4), nonzero=0.02)
    outside = np.ones((7, 6), bool)
    outside[1:5, 2:5] = False
    assert (result[:, outside] == 0.75).all()

    # Only the clip rectangle of the forward pass holds gradients of windows.
    incoming = grid(rng, result.shape)
    actual = pool_gradient(device, gradient, incoming, source, states)
    check_gradient(p, actual, incoming, source, primary_offset=(2, 1), source_size=(3, 4))
    assert tuple(gradient.primary_offset) == (2, 1, 0)
    assert gradient.source_size == (3, 4, None)


@pytest.mark.parametrize("fmt", ["float32", "float16", "unorm8"])
@pytest.mark.parametrize("columns", [3, 12])
@pytest.mark.parametrize("rows", [1, 2, 5, 13])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("channels", [2, 21, 131])
def test_some_rows_of_what_large_windows_give(device, channels, stride, rows, columns, fmt):
    p = Pooling("MAX", (5, 7), (stride, stride), offset=(4, 5), edge="clamp")
    forward, gradient = kernels(p, device)
    rng = rng_for(f"rows {channels} {stride} {rows} {columns}")
    source = filled_codes(rng, (2, 13, 12, channels), fmt)
    sources = filled(device, load(source), fmt)
    size = (2, -(-13 // stride), -(-12 // stride), channels)
    destinations = empty(device, size, fmt)
    incoming = filled(device, rng.integers(0, 2, size).astype(np.float64), fmt)
    whole, part = (empty(device, source.shape, fmt, fill=0.75) for _ in range(2))
    top, left = (13 - rows) // 2, (12 - columns) // 2
    states = forward.result_state_batch(sources, destinations)
    gradient.configure(incoming, sources, states[0])
    with Work(device) as work:
        forward.encode_batch(work.buffer, sources, destinations, destination_states=states)
        gradient.encode_batch(work.buffer, incoming, sources, states, work.result(whole))
    gradient.clip_rect = mg.Region((left, top), (columns, rows))
    with Work(device) as work:
        gradient.encode_batch(work.buffer, incoming, sources, states, work.result(part))
    clip = read(part)[:, top : top + rows, left : left + columns]
    assert_same_bytes(clip, read(whole)[:, :rows, :columns])
    assert read(whole).any()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("offset", [(3, 2), (1, 1), (-2, 4)], ids=str)
@pytest.mark.parametrize(
    ("origin", "size"), [((0, 0), None), ((1, 2), (4, 3)), ((2, 0), (20, 20))], ids=str
)
def test_explicit_destinations_start_at_the_first_window(device, name, offset, origin, size):
    p = Pooling(name, (3, 3), (1, 2), offset=offset, edge="clamp")
    forward, gradient = kernels(p, device)
    rng = rng_for(f"{name} {offset} {origin}")
    source = cases.untied(rng, (2, 6, 7, 5))
    result, states = pool(device, forward, source, (2, 3, 5, 5))
    incoming = grid(rng, result.shape)
    gradients, sources = filled(device, incoming), filled(device, source)
    destinations = empty(device, (2, 8, 9, 5), fill=0.75)
    if size is not None or origin != (0, 0):
        gradient.clip_rect = mg.Region(origin, size)
    gradient.configure(gradients, sources, states[0])
    with Work(device) as work:
        gradient.encode(work.buffer, gradients, sources, states, work.result(destinations))
    before = np.full((2, 8, 9, 5), 0.75)
    whole = oracle.gradient(p, incoming, source)
    expected = oracle.write(p, whole, before, origin, size)
    assert_close(
        read(destinations),
        expected,
        ulps=ulps_for(40),
        scale=np.maximum(np.abs(expected), np.abs(incoming).max()),
        nonzero=0.02,
    )
    # A created destination with a clip rectangle is written alike, and 0 around it.
    if gradient.clip_rect != mg.NO_CLIP:
        created = pool_gradient(device, gradient, incoming, source, states)
        expected = oracle.write(p, whole, np.zeros(source.shape), origin, size)
        assert_close(
            created,
            expected,
            ulps=ulps_for(40),
            scale=np.maximum(np.abs(expected), np.abs(incoming).max()),
            nonzero=0.02,
        )


def test_created_gradients_lie_where_their_pixels_do(device):
    """Shifted windows move only what is written into a destination of the caller."""
    p = Pooling("AVERAGE", (3, 1), offset=(3, 0))
    forward, gradient = kernels(p, device)
    source, incoming = row(1, 1, 1, 1, 1), row(3, 6)
    _, state = pool(device, forward, source, (1, 1, 2, 1))
    assert_exact(gradient(incoming, source, state)[0, 0, :, 0], [0, 0, 1, 3, 3])
    with Guarded(source.shape) as out:
        assert gradient(incoming, source, state, out=out) is out
        assert_exact(out[0, 0, :, 0], [0, 0, 1, 3, 3])


def test_primary_offset_and_source_size_select_windows(device):
    p = Pooling("AVERAGE", (2, 1), (2, 1), offset=(1, 0))
    forward, gradient = kernels(p, device)
    source, incoming = np.ones((1, 1, 6, 1)), row(1, 2, 3, 4, 5)
    _, states = pool(device, forward, source, (1, 1, 3, 1))

    def run(offset, size):
        gradient.primary_offset, gradient.source_size = offset, size
        gradient.secondary_offset = (1, 0)
        gradients, sources = filled(device, incoming), filled(device, source)
        destination = empty(device, source.shape, fill=0.5)
        with Work(device) as work:
            work.result(destination)
            gradient.encode(work.buffer, gradients, sources, states, destination, configure=False)
        return read(destination)[0, 0, :, 0]

    assert_exact(run((1, 0), (2, 1)), [1, 1, 1.5, 1.5, 0, 0])
    assert_exact(run((1, 0), (2, None)), [1, 1, 1.5, 1.5, 0, 0])
    assert_exact(run((-1, 0), (2, 1, 1)), [0, 0, 0.5, 0.5, 0, 0])
    assert_exact(run((-1, 0), None), [0, 0, 0.5, 0.5, 1, 1])
    assert_exact(run((4, 0), None), [2.5, 2.5, 0, 0, 0, 0])
    for empty_set in [(0, 1), (1, 0), (1, 1, 0)]:
        assert not run((0, 0), empty_set).any()
    for beyond in [(5, 0), (0, 1), (-9, 0), (0, -1)]:
        assert not run(beyond, (2, 1)).any()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_channel_windows(device, name, fmt):
    p = Pooling(name, (2, 2), (2, 2), offset=(1, 1))
    forward, gradient = kernels(p, device)
    rng = rng_for(f"channels {name} {fmt}")
    source = load(cases.untied(rng, (2, 4, 5, 13)).astype(DTYPES[fmt]))
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 6
    forward.destination_feature_channel_offset = 8
    result, states = pool(device, forward, source, (2, 2, 3, 20), fmt)
    check_forward(p, result[..., 8:14], source[..., 4:10], (3, 2))
    assert (result[..., :8] == 0.75).all()
    if device.kind == "cpu":  # the rest of the last slice that was written; MPS may leave anything
        assert (result[..., 14:16] == 0).all()
    assert (result[..., 16:] == 0.75).all()

    incoming = grid(rng, (2, 2, 3, 6))
    actual = pool_gradient(device, gradient, incoming, source, states, fmt)
    assert actual.shape == (2, 4, 5, 6)
    if fmt == "float32":
        check_gradient(p, actual, incoming, source[..., 4:10])
    exact = oracle.gradient(p, incoming, source[..., 4:10])
    assert_close(actual, exact, ulps=ulps_for(12, actual.dtype), nonzero=0.02)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("offset", [(4, 3), (1, 5)], ids=str)
def test_a_created_result_lies_as_the_source_wherever_windows_begin(device, name, offset):
    p = Pooling(name, (2, 2), (2, 2), offset=offset)
    forward, gradient = kernels(p, device)
    source = cases.untied(rng_for(f"begin {name}"), (2, 6, 7, 5)).astype(np.float32)
    _, states = pool(device, forward, source, (2, 2, 2, 5))
    incoming = grid(rng_for("begin"), (2, 2, 2, 5))
    check_gradient(p, pool_gradient(device, gradient, incoming, source, states), incoming, source)

    gradient.destination_feature_channel_offset = 4
    with Guarded((2, 6, 7, 9), np.float32) as out:
        out[:] = 0.75
        gradient(incoming, source, states, out=out)
    assert (out[..., :4] == 0.75).all()
    check_gradient(p, out[..., 4:], incoming, source)


@pytest.mark.parametrize("name", PLAIN)
def test_windows_beyond_the_source_give_no_gradient(device, name):
    forward, gradient = kernels(Pooling(name, (2, 2), (2, 2), offset=(40, 40)), device)
    source = np.ones((2, 6, 7, 5), np.float32)
    _, states = pool(device, forward, source, (2, 2, 2, 5))
    assert not pool_gradient(device, gradient, np.ones((2, 2, 2, 5)), source, states).any()


@pytest.mark.parametrize("before", [0, 4], ids="{} channels before".format)
@pytest.mark.parametrize("name", CLASSES)
def test_a_clip_may_go_on_where_no_window_reads(device, name, before):
    """Below the source, and in images that source_size leaves out: zeros, whatever was there."""
    p = Pooling("MAX" if name == "DILATED" else name, (2, 2), (2, 2), offset=(1, 1), edge="clamp")
    forward, gradient = kernels(p, device, dilated=name == "DILATED")
    source = cases.untied(rng_for(f"no window {name}"), (2, 3, 3, 5))
    _, states = pool(device, forward, source, (2, 2, 2, 5))
    incoming = grid(rng_for("no window"), (2, 2, 2, 5))
    gradients, sources = filled(device, incoming), filled(device, source)
    gradient.configure(gradients, sources, states[0])
    gradient.destination_feature_channel_offset = before

    def run():
        destinations = empty(device, (2, 6, 3, before + 5), fill=0.75)
        with Work(device) as work:
            work.result(destinations)
            gradient.encode(work.buffer, gradients, sources, states, destinations, configure=False)
        assert (read(destinations)[..., :before] == 0.75).all()
        return read(destinations)[..., before:]

    whole = run()
    check_gradient(p, whole[:, :3], incoming, source)
    assert not whole[:, 3:].any()
    gradient.source_size = (2, 2, 1)
    first = run()
    assert_same_bytes(first[0], whole[0])
    assert not first[1].any()


@pytest.mark.parametrize("temporary", [False, True])
def test_a_state_serves_without_a_forward_encode(device, temporary):
    """It describes a forward pass; that the pass was run is not needed."""
    p = Pooling("AVERAGE", (3, 2), (2, 1), offset=(1, 0), edge="clamp", zero_pad=(2, 1))
    forward, gradient = kernels(p, device)
    source = cases.untied(rng_for("no forward"), (2, 5, 7, 6)).astype(np.float32)
    incoming = grid(rng_for("no forward"), (2, 5, 4, 6))
    sources, results = filled(device, source), empty(device, incoming.shape)
    with Work(device) as work:
        if temporary:
            states = forward.temporary_result_state(work.buffer, sources, results)
        else:
            states = forward.result_state(sources, results)
        forward.zero_pad_size_x = 0  # the state keeps what it was made with
        gradients = filled(device, incoming)
        result = gradient.encode(work.buffer, gradients, sources, states, allocator=mg.DEFAULT)
        work.result(result)
    check_gradient(p, read(result), incoming, source)


def test_images_are_chosen_by_z(device):
    p = Pooling("MAX", (2, 2), (2, 2), offset=(1, 1))
    forward, gradient = kernels(p, device)
    source = cases.untied(rng_for("z"), (4, 4, 4, 3))
    forward.offset = (1, 1, 1)
    forward.clip_rect = mg.Region((0, 0, 2), (2, 2, 2))
    result, states = pool(device, forward, source, (4, 2, 2, 3))
    assert_exact(result[2:], oracle.forward(p, source[1:3], (2, 2)))
    assert (result[:2] == 0.75).all()

    incoming = grid(rng_for("z"), result.shape)
    gradients, sources = filled(device, incoming), filled(device, source)
    destinations = empty(device, source.shape, fill=0.75)
    gradient.clip_rect = mg.Region((0, 0, 1), (4, 4, 2))
    gradient.configure(gradients, sources, states[0])
    with Work(device) as work:
        gradient.encode(work.buffer, gradients, sources, states, work.result(destinations))
    expected = np.full(source.shape, 0.75)
    expected[1:3] = oracle.gradient(p, incoming[2:], source[1:3])
    assert_exact(read(destinations), expected)


def test_average_gradients_do_not_read_the_source(device):
    p = Pooling("AVERAGE", (3, 3), (2, 2), edge="clamp")
    forward, gradient = kernels(p, device)
    source = np.full((1, 5, 4, 3), np.nan, np.float32)
    _, states = pool(device, forward, source, (1, 3, 2, 3))
    incoming = grid(rng_for("nan"), (1, 3, 2, 3))
    check_gradient(p, gradient(incoming, source, states), incoming, np.ones(source.shape))


# --- Arrays, order and repetition ------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, name, dtype):
    p = Pooling(name, (3, 3), (2, 2))
    kernel, gradient = kernels(p, device)
    rng = rng_for(f"arrays {name} {dtype}")
    source = cases.untied(rng, (2, 6, 7, 5)).astype(dtype)
    result, states = kernel(source, with_state=True)
    assert result.dtype == dtype
    with Guarded(result.shape, dtype, skew=1) as out:
        again, more = kernel(source, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, result)
    incoming = grid(rng, result.shape, dtype=dtype)
    actual = gradient(incoming, source, states)
    assert actual.dtype == dtype
    with Guarded(source.shape, dtype, skew=1) as out:
        assert gradient(incoming, source, more, out=out) is out
        assert_same_bytes(out, actual)
    one, state = kernel(source[0], with_state=True)
    assert_same_bytes(one, result[0])
    assert_same_bytes(gradient(incoming[0], source[0], state), actual[0])


@pytest.mark.parametrize("fmt", ["float32", "float16"])
@pytest.mark.parametrize("window", [((3, 3), (2, 2)), ((7, 5), (2, 2))], ids=["3x3", "7x5"])
@pytest.mark.parametrize("name", PLAIN)
def test_results_do_not_depend_on_threads_or_runs(device, name, window, fmt):
    p = Pooling(name, *window, edge="clamp")
    rng = rng_for(f"threads {name}")
    source = rng.standard_normal((3, 61, 47, 19)).astype(DTYPES[fmt])
    incoming = rng.standard_normal((3, 31, 24, 19)).astype(DTYPES[fmt])

    def run():
        kernel, gradient = kernels(p, device)
        result, states = kernel(source, with_state=True)
        return result, gradient(incoming, source, states)

    check_thread_independence(run)


def test_work_runs_when_it_is_committed(device):
    kernel = mg.PoolingMax(2, 2, 2, 2, device=device)
    kernel.offset = (1, 1)
    sources, destinations = empty(device, (1, 2, 2, 1)), empty(device, (1, 1, 1, 1))
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(destinations))
        kernel.offset = (-9, -9)  # changes later encodes only
        kernel.edge_mode = mg.EdgeMode.CLAMP
        sources[0].write(np.array([[1, 2], [4, 3]], np.float32).reshape(2, 2, 1))
    assert read(destinations).item() == 4


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    kernel, gradient = kernels(Pooling("MAX", (2, 2), (2, 2), offset=(1, 1)), device)
    first, second = mg.PoolingMax(1, 1, device=device), mg.PoolingMax(1, 1, device=device)
    with Work(device) as work:
        images = first.encode(work.buffer, source)
        mg.increment_read_count(images, 1)  # the forward pass and the gradient read it
        result, states = kernel.encode(work.buffer, images, with_state=True, temporary_state=True)
        assert [image.read_count for image in images] == [1, 1]
        incoming = second.encode(work.buffer, result)
        assert [image.read_count for image in result] == [0, 0]
        assert [state.read_count for state in states] == [1, 1]
        dx = gradient.encode(work.buffer, incoming, images, states, allocator=mg.DEFAULT)
        work.result(dx)
        assert [image.read_count for image in (*images, *incoming)] == [0, 0, 0, 0]
        assert [state.read_count for state in states] == [0, 0]
        with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
            gradient.encode(work.buffer, incoming, images, states)
    assert read(dx).sum() == 2 * 4 * 3


# --- Parameters, copies and states -------------------------------------------------------


@pytest.mark.parametrize("cls", [*CLASSES["MAX"], *CLASSES["AVERAGE"], *CLASSES["L2_NORM"]])
def test_constructors(device, cls):
    short = cls(3, 2, device=device)
    assert (short.stride_in_pixels_x, short.stride_in_pixels_y) == (1, 1)
    kernel = cls(
        kernel_width=3, kernel_height=2, stride_in_pixels_x=4, stride_in_pixels_y=5, device=device
    )
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (4, 5)
    prefix = "secondary_" if isinstance(kernel, mg.PoolingGradient) else ""
    assert getattr(kernel, f"{prefix}kernel_width") == 3
    assert getattr(kernel, f"{prefix}kernel_height") == 2
    assert getattr(kernel, f"{prefix}dilation_rate_x") == 1
    assert isinstance(kernel, mg.PoolingGradient if prefix else mg.Pooling)
    assert repr(kernel) == (
        f"{cls.__name__}(kernel_width=3, kernel_height=2, stride_in_pixels_x=4, "
        f"stride_in_pixels_y=5, device='{device.kind}')"
    )


@pytest.mark.parametrize("cls", CLASSES["DILATED"])
def test_dilation_comes_before_stride(device, cls):
    kernel = cls(3, 2, 4, 5, 6, 7, device=device)
    prefix = "secondary_" if isinstance(kernel, mg.PoolingGradient) else ""
    assert getattr(kernel, f"{prefix}dilation_rate_x") == 4
    assert getattr(kernel, f"{prefix}dilation_rate_y") == 5
    assert (kernel.stride_in_pixels_x, kernel.stride_in_pixels_y) == (6, 7)


def test_defaults(device):
    average = mg.PoolingAverage(2, 2, device=device)
    assert (average.zero_pad_size_x, average.zero_pad_size_y) == (0, 0)
    assert average.edge_mode == mg.EdgeMode.ZERO
    assert tuple(average.offset) == (0, 0, 0)
    gradient = mg.PoolingAverageGradient(2, 2, device=device)
    assert gradient.source_size is None
    assert (gradient.zero_pad_size_x, gradient.zero_pad_size_y) == (0, 0)


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
def test_copies_have_every_setting(device, duplicate):
    average = mg.PoolingAverage(3, 2, 2, 1, device=device)
    average.zero_pad_size_x, average.zero_pad_size_y = 2, 5
    average.offset, average.edge_mode = (1, -2, 0), mg.EdgeMode.CLAMP
    average.padding = mg.DefaultPadding(0x1C)
    twin = duplicate(average)
    assert twin is not average
    assert (twin.zero_pad_size_x, twin.zero_pad_size_y) == (2, 5)
    assert (tuple(twin.offset), twin.edge_mode) == ((1, -2, 0), mg.EdgeMode.CLAMP)
    assert twin.padding.padding_method() == 0x1C
    assert repr(twin) == repr(average)

    gradient = mg.DilatedPoolingMaxGradient(3, 2, 4, 5, 2, 1, device=device)
    gradient.source_size = (4, None)
    gradient.primary_offset = (1, 2)
    twin = duplicate(gradient)
    assert twin.source_size == (4, None, None)
    assert tuple(twin.primary_offset) == (1, 2, 0)
    assert repr(twin) == repr(gradient)
    averages = mg.PoolingAverageGradient(3, 2, device=device)
    averages.zero_pad_size_y = 7
    assert duplicate(averages).zero_pad_size_y == 7


def test_states_carry_the_zero_border(device):
    p = Pooling("AVERAGE", (3, 3), edge="clamp", zero_pad=(1, 0))
    forward, gradient = kernels(p, device)
    source = np.ones((1, 4, 4, 2), np.float32)
    _, states = pool(device, forward, source, source.shape)
    gradient.zero_pad_size_x = 9
    incoming = grid(rng_for("border"), source.shape)
    check_gradient(p, gradient(incoming, source, states), incoming, source)
    assert (gradient.zero_pad_size_x, gradient.zero_pad_size_y) == (1, 0)
    assert gradient.secondary_edge_mode == mg.EdgeMode.CLAMP


def test_a_failed_gradient_leaves_the_settings_alone(device):
    forward, gradient = kernels(Pooling("AVERAGE", (3, 3), zero_pad=(1, 1)), device)
    source = np.ones((1, 4, 4, 2), np.float32)
    _, states = pool(device, forward, source, source.shape)
    gradient.source_size = (3, 3)
    gradient.kernel_offset_x = 1
    with pytest.raises(ValueError, match="kernel_offset"):
        gradient(source, source, states)
    assert (gradient.source_size, gradient.zero_pad_size_x) == ((3, 3, None), 0)


# --- Rejections ---------------------------------------------------------------------------

X = np.zeros((2, 4, 4, 8), np.float32)


@pytest.mark.parametrize(
    "name", ["kernel_width", "kernel_height", *(f"stride_in_pixels_{axis}" for axis in "xy")]
)
@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("cls", [*CLASSES["MAX"], *CLASSES["AVERAGE"], *CLASSES["L2_NORM"]])
def test_rejects_windows(device, cls, name, value):
    with rejects(ValueError, f"{cls.__name__}: {name} must be at least 1, got {value}"):
        cls(**{"kernel_width": 2, "kernel_height": 2, name: value}, device=device)


@pytest.mark.parametrize("name", ["dilation_rate_x", "dilation_rate_y"])
@pytest.mark.parametrize("cls", CLASSES["DILATED"])
def test_rejects_dilations(device, cls, name):
    arguments = {"kernel_width": 2, "kernel_height": 2, "dilation_rate_x": 1, "dilation_rate_y": 1}
    with rejects(ValueError, f"{cls.__name__}: {name} must be at least 1, got 0"):
        cls(**{**arguments, name: 0}, device=device)


@pytest.mark.parametrize("cls", [mg.Pooling, mg.PoolingGradient])
def test_base_classes_cannot_be_made(cls):
    with pytest.raises(TypeError, match="No constructor"):
        cls()


def test_rejects_settings(device):
    for kernel in (
        mg.PoolingAverage(2, 2, device=device),
        mg.PoolingAverageGradient(2, 2, device=device),
    ):
        for axis in "xy":
            name = f"zero_pad_size_{axis}"
            for value in (-1, 2**53 + 1, 2**63 - 1):
                words = f"{type(kernel).__name__}: {name} must be 0 to {2**53}, got {value}"
                with rejects(ValueError, words):
                    setattr(kernel, name, value)
            setattr(kernel, name, 2**53)
            assert getattr(kernel, name) == 2**53
            with pytest.raises(TypeError, match="must be an int, got float"):
                setattr(kernel, name, 1.5)
    gradient = mg.PoolingMaxGradient(2, 2, device=device)
    with rejects(ValueError, "source_size must not be negative, got (-1, 2"):
        gradient.source_size = (-1, 2)
    with rejects(ValueError, "PoolingMaxGradient: source_size must have 2 or 3 numbers, got 1"):
        gradient.source_size = (1,)
    with rejects(TypeError, "PoolingMaxGradient: source_size must be an integer, got float"):
        gradient.source_size = (0.5, 0.5)
    with rejects(TypeError, "PoolingMaxGradient: source_size must be None or (width, height)"):
        gradient.source_size = 4
    for mode in (mg.EdgeMode.MIRROR, mg.EdgeMode.MIRROR_WITH_EDGE, mg.EdgeMode.CONSTANT):
        with rejects(ValueError, "edge_mode must be ZERO or CLAMP"):
            mg.PoolingMax(2, 2, device=device).edge_mode = mode
        with rejects(ValueError, "secondary_edge_mode must be ZERO or CLAMP"):
            gradient.secondary_edge_mode = mode
    with rejects(ValueError, "must be a multiple of 4"):
        gradient.secondary_source_feature_channel_offset = 2


def state_of(device, cls, *arguments, source=X):
    kernel = cls(*arguments, device=device)
    return kernel(source, with_state=True)


MISMATCHED = {
    "kernel": ((3, 2, 2, 2), "kernel size is (2, 2), but the state was made with (3, 2)"),
    "stride": ((2, 2, 2, 1), "stride is (2, 2), but the state was made with (2, 1)"),
}


@pytest.mark.parametrize(("arguments", "words"), MISMATCHED.values(), ids=MISMATCHED)
@pytest.mark.parametrize("name", PLAIN)
def test_rejects_states_of_other_windows(device, name, arguments, words):
    forward, backward = CLASSES[name]
    result, states = state_of(device, forward, *arguments)
    gradient = backward(2, 2, 2, 2, device=device)
    with rejects(ValueError, f"{backward.__name__}: the kernel's {words}"):
        gradient(result, X, states)


def test_rejects_states_of_other_dilations(device):
    result, states = state_of(device, mg.DilatedPoolingMax, 2, 2, 2, 3)
    gradient = mg.DilatedPoolingMaxGradient(2, 2, 3, 2, device=device)
    with rejects(ValueError, "dilation rate is (3, 2), but the state was made with (2, 3)"):
        gradient(result, X, states)


def test_rejects_states_of_other_classes(device):
    result, states = state_of(device, mg.PoolingAverage, 2, 2, 2, 2)
    with rejects(TypeError, "state must come from PoolingMax, but it was made by PoolingAverage"):
        mg.PoolingMaxGradient(2, 2, 2, 2, device=device)(result, X, states)
    with rejects(TypeError, "state must be a State"):
        mg.PoolingAverageGradient(2, 2, 2, 2, device=device)(result, X, "state")


def call(device, gradient_shape, source_shape, prepare=None, states=None):
    result, own = state_of(device, mg.PoolingMax, 2, 2, 2, 2)
    kernel = mg.PoolingMaxGradient(2, 2, 2, 2, device=device)
    if prepare is not None:
        prepare(kernel)
    gradients = filled(device, np.zeros(gradient_shape or result.shape))
    sources = filled(device, np.zeros(source_shape or X.shape))
    with Work(device) as work:
        kernel.encode(
            work.buffer, gradients, sources, own if states is None else states, allocator=mg.DEFAULT
        )


CALLS = {
    "size of the gradient": (
        {"gradient_shape": (2, 3, 2, 8)},
        "source_gradient is 2x3, but the forward result was 2x2",
    ),
    "size of the source": (
        {"source_shape": (2, 4, 5, 8)},
        "source is 5x4, but the state was made for a forward source of 4x4",
    ),
    "too few channels": (
        {"gradient_shape": (2, 2, 2, 4)},
        "source_gradient offers 4 channels from offset 0, but the kernel reads 8",
    ),
    "too many channels": (
        {"gradient_shape": (2, 2, 2, 12)},
        "source_gradient has 12 channels, but source has 8",
    ),
    "batch": ({"gradient_shape": (3, 2, 2, 8)}, "source_gradient has 3 images, but source has 2"),
    "states": ({"states": []}, "state has 0 entries, expected 2"),
    "kernel offset": (
        {"prepare": lambda kernel: setattr(kernel, "kernel_offset_y", -1)},
        "kernel_offset_x and kernel_offset_y must be 0, got (0, -1)",
    ),
}


@pytest.mark.parametrize(("changes", "words"), CALLS.values(), ids=CALLS)
def test_rejects_gradient_calls(device, changes, words):
    call(device, None, None)
    with rejects(ValueError, words):
        call(device, **{"gradient_shape": None, "source_shape": None, **changes})


def test_rejects_other_strides_in_explicit_encodes(device):
    result, states = state_of(device, mg.PoolingMax, 2, 2, 2, 2)
    kernel = mg.PoolingMaxGradient(2, 2, 2, 2, device=device)
    gradients, sources, out = filled(device, result), filled(device, X), empty(device, X.shape)
    for name in ("primary", "secondary"):
        kernel.configure(gradients, sources, states[0])
        setattr(kernel, f"{name}_stride_in_pixels_x", 3)
        with (
            Work(device) as work,
            rejects(
                ValueError,
                f"{name}_stride_in_pixels is (3, 2), but the kernel was made with (2, 2)",
            ),
        ):
            kernel.encode(work.buffer, gradients, sources, states, out)


def test_rejects_explicit_encodes_that_nobody_configured(device):
    result, states = state_of(device, mg.PoolingMax, 2, 2, 2, 2)
    kernel = mg.PoolingMaxGradient(2, 2, 2, 2, device=device)
    gradients, sources, out = filled(device, result), filled(device, X), empty(device, X.shape)
    with Work(device) as work, rejects(mg.errors.StateError, "call configure("):
        kernel.encode(work.buffer, gradients, sources, states, out)


def test_rejects_aliasing(device):
    images = filled(device, np.zeros((1, 4, 4, 4)))
    kernel = mg.PoolingMax(1, 1, device=device)
    with Work(device) as work, rejects(ValueError, "destination shares memory with source"):
        kernel.encode(work.buffer, images, images)


def test_rejects_states_of_changed_kernels(device):
    kernel = mg.PoolingAverage(2, 2, device=device)
    sources, destinations = filled(device, X), empty(device, X.shape)
    states = kernel.result_state(sources, destinations)
    kernel.zero_pad_size_x = 1
    with Work(device) as work, rejects(mg.errors.StateError, "properties changed after"):
        kernel.encode(work.buffer, sources, destinations, destination_state=states)


def test_a_destination_may_be_of_another_format(device):
    p = Pooling("AVERAGE", (2, 2), (2, 2), offset=(1, 1))
    forward, _ = kernels(p, device)
    source = cases.untied(rng_for("mixed"), (1, 4, 4, 3))
    sources, destination = filled(device, source), empty(device, (1, 2, 2, 3), "float16")
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(destination))
    check_forward(p, read(destination), source, (2, 2))


def test_shapes_of_layers_are_described(device):
    case = cases.PoolingCase("pool", (2, 112, 112, 64), (3, 3), (2, 2), pads=(1, 1, 1, 1))
    kernel = mg.PoolingMax(*case.kernel, *case.stride, device=device)
    kernel.padding = mg.ExplicitPadding(1, 1, 1, 1)
    image = mg.Image(device, descriptor(case.shape))
    result = kernel.destination_descriptor(image)
    assert (result.width, result.height) == case.size
    assert tuple(kernel.offset)[:2] == case.offset
    assert replace(case, pads=None).size == case.size  # SAME gives as many
