"""Upsampling kernels against the oracle, the printed examples, and the rules of their encodes."""

import itertools

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, store
from tests.images import Work, empty, filled, read
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
from tests.upsampling import cases, oracle
from tests.upsampling.oracle import Upsampling

PAIRS = {
    "nearest": (mg.UpsamplingNearest, mg.UpsamplingNearestGradient),
    "bilinear": (mg.UpsamplingBilinear, mg.UpsamplingBilinearGradient),
}
CLASSES = [cls for pair in PAIRS.values() for cls in pair]
kinds = pytest.mark.parametrize("kind", oracle.KINDS)


# --- Running kernels ------------------------------------------------------------


def kernels(u, device):
    """Return the forward kernel, with every property set, and a fresh gradient kernel."""
    if u.kind == "aligned":
        forward = mg.UpsamplingBilinear(*u.factor, align_corners=True, device=device)
    else:
        forward = PAIRS[u.kind][0](*u.factor, device=device)
    forward.offset = u.offset
    forward.edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[u.edge]
    gradient = PAIRS["nearest" if u.kind == "nearest" else "bilinear"][1]
    return forward, gradient(*u.factor, device=device)


def check_forward(u, actual, source, size=None, *, nonzero=0.25):
    """Compare: copies exactly; else two weights, two products and a sum along each axis."""
    exact = oracle.forward(u, source, size)
    if u.kind == "nearest":
        fmt = next(name for name, dtype in DTYPES.items() if dtype == actual.dtype)
        return assert_exact(actual, store(exact, fmt), nonzero=nonzero)
    scale = oracle.forward(u, np.abs(source), size)
    ulps = ulps_for(10, actual.dtype)
    return assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)


def check_gradient(u, actual, incoming, source, *, nonzero=0.25):
    """Compare: the additions, and in bilinear ones the weights and products along each axis.

    All products of a sum together, whose magnitudes make up the scale, cost one ULP at most: as
    much as two roundings. So do the weights.
    """
    exact = oracle.gradient(u, incoming, source)
    scale = oracle.gradient(u, np.abs(incoming), source)
    across, down = oracle.taps(u, incoming.shape[2:0:-1], source)
    gathered = down <= 4 and actual.shape[-1] >= 4  # one by one, not rows first
    additions = across * down if gathered else across + down
    ulps = ulps_for(additions + (0 if u.kind == "nearest" else 8), actual.dtype)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)


# --- Against the oracle ---------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_forward_and_gradient(device, case, kind, dtype, rng):
    u = Upsampling(kind, case.factor)
    forward, gradient = kernels(u, device)
    x = rng.standard_normal(case.shape).astype(dtype)
    g = rng.standard_normal(case.result_shape).astype(dtype)
    y, states = forward(x, with_state=True)
    assert (y.dtype, y.shape) == (dtype, case.result_shape)
    check_forward(u, y, x.astype(np.float64))
    dx = gradient(g, x, states)
    assert (dx.dtype, dx.shape) == (dtype, case.shape)
    check_gradient(u, dx, g.astype(np.float64), case.source)


def test_sums_of_many_pixels(device):
    """Ones of rows first: a sum of all of them one by one would stop at 2 ** 24."""
    if device.kind != "cpu":
        pytest.skip("Apple does not say in which order it adds")
    size = 4500
    forward, gradient = kernels(Upsampling("nearest", (size, size)), device)
    y, states = forward(np.zeros((1, 1, 1), np.float32), with_state=True)
    y.fill(1)
    assert gradient(y, np.zeros((1, 1, 1), np.float32), states).item() == size**2


@pytest.mark.parametrize("channels", [*range(1, 20), 31, 33, 63, 64, 65, 130])
def test_any_number_of_channels(device, channels, rng):
    for kind, factor in itertools.product(oracle.KINDS, [(2, 3), (3, 2)]):
        u = Upsampling(kind, factor)
        forward, gradient = kernels(u, device)
        x = rng.standard_normal((1, 3, 4, channels), dtype=np.float32)
        g = rng.standard_normal((1, 3 * factor[1], 4 * factor[0], channels), dtype=np.float32)
        y, states = forward(x, with_state=True)
        check_forward(u, y, x)
        check_gradient(u, gradient(g, x, states), g, (4, 3))


@pytest.mark.parametrize("factor", [(1, 1), (2, 2), (4, 2), (1, 8)], ids=str)
@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
def test_weights_of_powers_of_two_are_exact(device, kind, factor, rng):
    """Small integers times halves, quarters and eighths: nothing is ever rounded."""
    u = Upsampling(kind, factor)
    forward, gradient = kernels(u, device)
    for channels in (3, 20):
        x = grid(rng, (2, 3, 5, channels))
        y, states = forward(x, with_state=True)
        assert_exact(y, oracle.forward(u, x))
        g = grid(rng, y.shape)
        assert_exact(gradient(g, x, states), oracle.gradient(u, g, (5, 3)), nonzero=0.02)


def test_copies_are_copies_of_bits(device, rng):
    """Whatever the bits mean: also payloads of NaNs."""
    if device.kind != "cpu":
        pytest.skip("other devices may change the payload of a NaN")
    for dtype, bits in ((np.float32, np.uint32), (np.float16, np.uint16)):
        for channels in (1, 3, 5, 8, 40):
            x = rng.integers(0, np.iinfo(bits).max, (2, 3, 4, channels), bits, endpoint=True)
            y = mg.UpsamplingNearest(3, 2, device=device)(x.view(dtype))
            assert_same_bytes(y.view(bits), x.repeat(2, axis=1).repeat(3, axis=2))


def test_a_result_on_a_pixel_is_that_pixel(device):
    """What lies beside it is not read, were it infinite."""
    if device.kind != "cpu":
        pytest.skip("whether MPS multiplies by a weight of 0 is not documented")
    x = np.array([1, np.inf, 3], np.float32).reshape(1, 1, 3, 1)
    y = mg.UpsamplingBilinear(2, 2, device=device)(x)
    assert_exact(y[0, 0].ravel(), [1, np.inf, np.inf, np.inf, 3, 3])


@pytest.mark.parametrize("channels", [1, 3, 8, 37])
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_the_largest_halves_do_not_overflow(device, kind, channels):
    """Neither as means, nor as gradients whose sums are half as large, but not on the way."""
    u = Upsampling(kind, (3, 2))
    forward, gradient = kernels(u, device)
    x = np.full((1, 5, 4, channels), 65504, np.float16)
    y, states = forward(x, with_state=True)
    assert_exact(y, np.full((1, 10, 12, channels), 65504.0))
    g = y.copy()
    g[:, 1::2] *= np.float16(-0.75)
    g[:, :, 2::3] = 0
    exact = oracle.gradient(u, g, (4, 5))
    assert (np.abs(exact) < 40000).mean() > 0.2
    check_gradient(u, gradient(g, x, states), g.astype(np.float64), (4, 5))


def test_printed_values(device):
    row = np.array([1, 2, 4], np.float32).reshape(1, 1, 3, 1)

    def check(kind, expected, slope):
        forward, gradient = kernels(Upsampling(kind, (2, 1)), device)
        y, states = forward(row, with_state=True)
        np.testing.assert_allclose(y.ravel(), expected, rtol=3e-7)
        dx = gradient(np.ones_like(y), row, states)
        np.testing.assert_allclose(dx.ravel(), slope, rtol=3e-7)

    check("nearest", [1, 1, 2, 2, 4, 4], [2, 2, 2])
    check("bilinear", [1, 1.5, 2, 3, 4, 4], [1.5, 2, 2.5])
    check("aligned", [1, 1.4, 1.8, 2.4, 3.2, 4], [1.8, 2.4, 1.8])


def weights_along(u, device, length, axis):
    """Return the matrix of an axis and the transposed one, both as the kernels have them.

    Every channel of the source, and of the incoming gradient, is a unit vector.
    """
    forward, gradient = kernels(u, device)
    results = length * u.factor[axis]

    def units(count):
        return np.eye(count, dtype=np.float32).reshape(
            (1, 1, count, count) if axis == 0 else (1, count, 1, count)
        )

    y = forward(units(length))
    # A gradient of so many channels needs a state of a source that has them.
    many = np.zeros((*units(length).shape[:3], results), np.float32)
    dx = gradient(units(results), many, forward(many, with_state=True)[1])
    return y.reshape(results, length), dx.reshape(length, results)


@kinds
@pytest.mark.parametrize("axis", [0, 1], ids="xy")
def test_the_gradient_is_the_exact_transpose(device, kind, axis, rng):
    """With the same float32 weights, whose sums may then differ by their roundings alone."""
    for length, factor in ((1, 3), (4, 2), (5, 3), (7, 7), (3, 10)):
        # The other axis has one pixel, whose result is the pixel: its factor must be 1.
        along = (factor, 1) if axis == 0 else (1, factor)
        u = Upsampling(kind, along)
        square = Upsampling(kind, (factor, factor))
        matrix, transposed = weights_along(u, device, length, axis)
        if device.kind == "cpu":
            assert_same_bytes(np.ascontiguousarray(transposed.T), matrix)
        else:
            assert_close(transposed.T, matrix.astype(np.float64), ulps=2, scale=1, nonzero=0)
        # <forward(x), g> == <x, gradient(g)>, in float64 of those weights.
        x = rng.standard_normal((length, length))
        g = rng.standard_normal((length * factor, length * factor))
        m = matrix.astype(np.float64)
        back = transposed.astype(np.float64)
        np.testing.assert_allclose(
            np.sum((m @ x @ m.T) * g), np.sum(x * (back @ g @ back.T)), rtol=1e-12, atol=1e-12
        )
        # And the kernels have those weights along both axes at once.
        forward, gradient = kernels(square, device)
        y, states = forward(x.astype(np.float32)[None, :, :, None], with_state=True)
        image = m @ x.astype(np.float32) @ m.T
        size = m @ np.abs(x) @ m.T
        assert_close(y[0, ..., 0], image, ulps=ulps_for(6), scale=size, floor=1e-30)
        dx = gradient(g.astype(np.float32)[None, ..., None], x[None, ..., None].astype("f"), states)
        image = back @ g.astype(np.float32) @ back.T
        size = back @ np.abs(g) @ back.T
        additions = sum(oracle.taps(square, g.shape, x.shape))
        assert_close(dx[0, ..., 0], image, ulps=ulps_for(additions + 4), scale=size, floor=1e-30)


@kinds
@pytest.mark.parametrize("holder", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, kind, fmt, holder, rng):
    u = Upsampling(kind, (2, 3))
    forward, gradient = kernels(u, device)
    x = load(store(rng.uniform(0, 1, (3, 4, 5, 6)), fmt))
    g = load(store(rng.uniform(0, 1, (3, 12, 10, 6)), fmt))
    sources, results = (
        filled(device, x, fmt, kind=holder),
        empty(device, g.shape, fmt, kind=holder),
    )
    states = forward.result_state(sources, results)
    incoming, destinations = (
        filled(device, g, fmt, kind=holder),
        empty(device, x.shape, kind=holder),
    )
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, sources, states[0] if isinstance(states, list) else states)
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    check_forward(u, read(results), x)
    check_gradient(u, read(destinations), g, (5, 4))


@kinds
@pytest.mark.parametrize(("source", "result"), [("float16", "float32"), ("float32", "float16")])
def test_a_destination_may_be_of_another_format(device, kind, source, result, rng):
    u = Upsampling(kind, (2, 2))
    forward, gradient = kernels(u, device)
    x = load(store(rng.standard_normal((2, 3, 4, 5)), source))
    g = load(store(rng.standard_normal((2, 6, 8, 5)), source))
    sources, results = filled(device, x, source), empty(device, g.shape, result)
    states = forward.result_state(sources, results)
    incoming, destinations = filled(device, g, source), empty(device, x.shape, result)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, sources, states[0])
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    check_forward(u, read(results), x)
    check_gradient(u, read(destinations), g, (4, 3))


@kinds
@pytest.mark.parametrize("down", [2, 3])
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_channel_windows(device, kind, down, fmt, rng):
    u = Upsampling(kind, (2, down))
    forward, gradient = kernels(u, device)
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 6
    forward.destination_feature_channel_offset = 8
    x = load(store(rng.standard_normal((2, 3, 2, 13)), fmt))
    sources = filled(device, x, fmt)
    results = empty(device, (2, 3 * down, 4, 20), fmt, fill=0.5)
    states = forward.result_state(sources, results)
    wide = load(store(rng.standard_normal((2, 3 * down, 4, 13)), fmt))
    g = wide[..., 4:10]
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        incoming = filled(device, g, fmt)
        dx = gradient.encode(work.buffer, incoming, sources, states, allocator=mg.DEFAULT)
        gradient.primary_source_feature_channel_offset = 4
        gradient.primary_source_feature_channel_max_count = 6
        incoming = filled(device, wide, fmt)
        windowed = gradient.encode(work.buffer, incoming, sources, states, allocator=mg.DEFAULT)
        work.result(dx)
        work.result(windowed)
    assert_same_bytes(read(windowed), read(dx))
    texels = read(results)
    check_forward(u, texels[..., 8:14], x[..., 4:10])
    assert (texels[..., :8] == 0.5).all()
    assert (texels[..., 16:] == 0.5).all()
    check_gradient(u, read(dx), g, (2, 3))


@settings(max_examples=60)
@given(cases.upsamplings())
def test_random_offsets_edges_and_clip_rectangles(device, drawn):
    """Results that the clip rectangle leaves out give no gradient."""
    case, u, size, origin, extent = drawn
    rng = rng_for(str(drawn))
    clip = tuple(min(extent[a], size[a] - origin[a]) for a in (0, 1))
    inside = np.s_[:, origin[1] : origin[1] + clip[1], origin[0] : origin[0] + clip[0]]
    forward, gradient = kernels(u, device)
    forward.clip_rect = mg.Region(origin, extent)
    x = grid(rng, case.shape)
    shape = case.shape[0], size[1], size[0], case.shape[3]
    sources, results = filled(device, x), empty(device, shape, fill=0.5)
    states = forward.result_state(sources, results)
    g = grid(rng, shape)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        incoming = filled(device, g)
        dx = gradient.encode(work.buffer, incoming, sources, states, allocator=mg.DEFAULT)
        work.result(dx)
    texels = read(results)
    check_forward(u, texels[inside], x, clip, nonzero=0)
    texels[inside] = 0.5
    assert (texels == 0.5).all()
    check_gradient(u, read(dx), g[inside], case.source, nonzero=0)


@kinds
@pytest.mark.parametrize("channels", [3, 16])
def test_explicit_destinations_start_at_the_first_pixel(device, kind, channels, rng):
    """Those larger than the source get zeros behind it, smaller ones a part."""
    u = Upsampling(kind, (2, 3), (1, -1))
    forward, gradient = kernels(u, device)
    x = rng.standard_normal((2, 4, 5, channels), dtype=np.float32)
    g = rng.standard_normal((2, 12, 10, channels), dtype=np.float32)
    sources, results = filled(device, x), empty(device, g.shape)
    states = forward.result_state(sources, results)
    incoming = filled(device, g)
    gradient.configure(incoming, sources, states[0])
    assert tuple(gradient.secondary_offset) == (1, -1, 0)
    whole = oracle.gradient(u, g, (5, 4))
    wide = np.zeros((2, 9, 9, channels))
    wide[:, :4, :5] = whole
    for origin, size in (((1, 2), (3, 1)), ((0, 0), (9, 9)), ((2, 1), (7, 8))):
        gradient.clip_rect = mg.Region(origin, size)
        destinations = empty(device, wide.shape, fill=0.5)
        with Work(device) as work:
            gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
        texels = read(destinations)
        there = np.s_[:, origin[1] : origin[1] + size[1], origin[0] : origin[0] + size[0]]
        expected = wide[:, : size[1], : size[0]]
        scale = np.maximum(np.abs(expected), 20)
        assert_close(texels[there], expected, ulps=ulps_for(20), scale=scale, nonzero=0)
        texels[there] = 0.5
        assert (texels == 0.5).all()


def test_primary_offset_moves_the_incoming_gradient(device):
    """Incoming pixels that are not there count nothing."""
    forward, gradient = kernels(Upsampling("nearest", (2, 1)), device)
    x = np.zeros((1, 1, 3, 1), np.float32)
    sources, results = filled(device, x), empty(device, (1, 1, 6, 1))
    states = forward.result_state(sources, results)
    incoming = filled(device, np.array([1, 2, 4, 8, 16, 32], np.float32).reshape(1, 1, 6, 1))
    for first, expected in ((0, [3, 12, 48]), (3, [24, 32, 0]), (-1, [1, 6, 24])):
        gradient.configure(incoming, sources, states[0])
        gradient.primary_offset = (first, 0)
        dx = empty(device, x.shape)
        with Work(device) as work:
            gradient.encode(work.buffer, incoming, sources, states, work.result(dx))
        assert_exact(read(dx).ravel(), expected, nonzero=0)


def test_images_are_chosen_by_z(device, rng):
    u = Upsampling("bilinear", (2, 2))
    forward, _ = kernels(u, device)
    x = rng.standard_normal((4, 2, 3, 5), dtype=np.float32)
    forward.offset = (0, 0, 2)
    forward.clip_rect = mg.Region((0, 0, 1), (6, 4, 2))
    results = empty(device, (4, 4, 6, 5), fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    check_forward(u, texels[1:3], x[2:])
    assert (texels[[0, 3]] == 0.5).all()


def test_created_results_have_the_scaled_size(device):
    for kind in PAIRS:
        forward = PAIRS[kind][0](3, 2, device=device)
        source = filled(device, np.zeros((1, 4, 5, 6)))
        found = forward.destination_descriptor(source[0])
        assert (found.width, found.height, found.feature_channels) == (15, 8, 6)
        assert tuple(forward.offset) == (0, 0, 0)


def test_a_state_serves_without_a_forward_encode(device, rng):
    """And records whether corners were aligned, which the gradient's constructor does not say."""
    g = rng.standard_normal((1, 4, 6, 2), dtype=np.float32)
    sources, results = filled(device, np.zeros((1, 2, 3, 2))), empty(device, g.shape)
    gradient = mg.UpsamplingBilinearGradient(2, 2, device=device)
    for kind in ("bilinear", "aligned"):
        u = Upsampling(kind, (2, 2))
        states = kernels(u, device)[0].result_state(sources, results)
        with Work(device) as work:
            incoming = filled(device, g)
            dx = gradient.encode(work.buffer, incoming, sources, states, allocator=mg.DEFAULT)
            work.result(dx)
        check_gradient(u, read(dx), g, (3, 2))


def test_the_source_of_a_gradient_is_not_read(device, rng):
    forward, gradient = kernels(Upsampling("bilinear", (2, 2)), device)
    x = rng.standard_normal((1, 3, 4, 5), dtype=np.float32)
    g = rng.standard_normal((1, 6, 8, 5), dtype=np.float32)
    _, states = forward(x, with_state=True)
    assert_same_bytes(gradient(g, np.full_like(x, np.nan), states), gradient(g, x, states))


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, kind, dtype, rng):
    forward, gradient = kernels(Upsampling(kind, (2, 3)), device)
    x = rng.standard_normal((2, 3, 5, 7)).astype(dtype)
    g = rng.standard_normal((2, 9, 10, 7)).astype(dtype)
    y, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    with Guarded(y.shape, dtype, skew=1) as out:
        again, states = forward(x, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, y)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert gradient(g, x, states, out=out) is out
        assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert_same_bytes(one, y[0])
    assert_same_bytes(gradient(g[0], x[0], state), dx[0])


@kinds
@pytest.mark.parametrize("factor", [(2, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_do_not_depend_on_threads_or_runs(device, kind, factor, dtype, rng):
    forward, gradient = kernels(Upsampling(kind, factor), device)
    x = rng.standard_normal((3, 21, 17, 19)).astype(dtype)
    g = rng.standard_normal((3, 21 * factor[1], 17 * factor[0], 19)).astype(dtype)

    def run():
        y, states = forward(x, with_state=True)
        return y, gradient(g, x, states)

    check_thread_independence(run)


@pytest.mark.parametrize("kind", ["nearest", "aligned"])
@pytest.mark.parametrize("down", [2, 3])
@pytest.mark.parametrize(
    ("channels", "dtype"), [(27, np.float32), (32, np.float16), (1044, np.float32)]
)
def test_large_results(device, kind, down, dtype, channels, rng):
    """Those that go past the caches: all that a sample gives, it gives everywhere."""
    if device.kind != "cpu":
        pytest.skip("only the CPU device has caches to pass by")
    forward, gradient = kernels(Upsampling(kind, (2, down)), device)
    shape = 9, 7, channels
    repeat = (10 << 20) // (9 * 7 * channels * np.dtype(dtype).itemsize) + 1
    x = rng.standard_normal((1, *shape)).astype(dtype)
    g = rng.standard_normal((1, 9 * down, 14, channels)).astype(dtype)
    y, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    many, many_states = forward(np.tile(x, (repeat, 1, 1, 1)), with_state=True)
    assert many.nbytes > 32 << 20
    assert_same_bytes(many, np.tile(y, (repeat, 1, 1, 1)))
    slopes = gradient(np.tile(g, (repeat, 1, 1, 1)), np.tile(x, (repeat, 1, 1, 1)), many_states)
    assert_same_bytes(slopes, np.tile(dx, (repeat, 1, 1, 1)))


def test_work_runs_when_it_is_committed(device):
    kernel = mg.UpsamplingNearest(2, 1, device=device)
    sources, results = empty(device, (1, 1, 2, 1)), empty(device, (1, 1, 4, 1))
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
        kernel.offset = (-9, -9)  # changes later encodes only
        sources[0].write(np.array([3, 4], np.float32).reshape(1, 2, 1))
    assert_exact(read(results).ravel(), [3, 3, 4, 4])


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 2, 3, 5)))
    forward, gradient = kernels(Upsampling("nearest", (2, 2)), device)
    same, large = (mg.UpsamplingNearest(1, 1, device=device) for _ in range(2))
    with Work(device) as work:
        images = same.encode(work.buffer, source)
        mg.increment_read_count(images, 1)  # the forward pass and the gradient read it
        result, states = forward.encode(work.buffer, images, with_state=True, temporary_state=True)
        incoming = large.encode(work.buffer, result)
        assert [image.read_count for image in (*images, *result)] == [1, 1, 0, 0]
        dx = gradient.encode(work.buffer, incoming, images, states, allocator=mg.DEFAULT)
        work.result(dx)
        assert [image.read_count for image in (*images, *incoming)] == [0, 0, 0, 0]
        assert [state.read_count for state in states] == [0, 0]
    assert_exact(read(dx), np.full((2, 2, 3, 5), 4.0))


# --- Parameters and copies ------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_constructors(device, cls):
    kernel = cls(integer_scale_factor_x=3, integer_scale_factor_y=2, device=device)
    assert (kernel.scale_factor_x, kernel.scale_factor_y) == (3.0, 2.0)
    assert isinstance(kernel.scale_factor_x, float)
    assert isinstance(
        kernel, mg.UpsamplingGradient if "Gradient" in cls.__name__ else mg.Upsampling
    )
    corners = "align_corners=False, " if cls is mg.UpsamplingBilinear else ""
    assert repr(kernel) == (
        f"{cls.__name__}(integer_scale_factor_x=3, integer_scale_factor_y=2, "
        f"{corners}device='{device.kind}')"
    )
    assert cls(np.int64(3), 2.0, device=device).scale_factor_x == 3


def test_align_corners_is_of_bilinear_kernels(device):
    assert mg.UpsamplingBilinear(2, 2, True, device=device).align_corners is True
    assert mg.UpsamplingBilinear(2, 2, device=device).align_corners is False
    assert mg.UpsamplingNearest(2, 2, device=device).align_corners is False
    with rejects(AttributeError, "UpsamplingBilinear.align_corners is read-only"):
        mg.UpsamplingBilinear(2, 2, device=device).align_corners = True


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
def test_copies_have_every_setting(device, duplicate):
    kernel = mg.UpsamplingBilinear(3, 2, True, device=device)
    kernel.offset, kernel.edge_mode = (1, -2, 0), mg.EdgeMode.CLAMP
    twin = duplicate(kernel)
    assert twin is not kernel
    assert (tuple(twin.offset), twin.edge_mode) == ((1, -2, 0), mg.EdgeMode.CLAMP)
    assert twin.align_corners
    assert repr(twin) == repr(kernel)
    for cls in CLASSES:
        kernel = cls(5, 4, device=device)
        kernel.label = "up"
        twin = duplicate(kernel)
        assert (type(twin), twin.label, repr(twin)) == (cls, "up", repr(kernel))


# --- Rejections -----------------------------------------------------------------

X = np.zeros((2, 3, 5, 4), np.float32)
G = np.zeros((2, 6, 10, 4), np.float32)


@pytest.mark.parametrize("axis", "xy")
@pytest.mark.parametrize("value", [0, -1, 1.5, 65537, float("nan"), float("inf")])
@pytest.mark.parametrize("cls", CLASSES)
def test_rejects_factors(device, cls, value, axis):
    factors = {"integer_scale_factor_x": 2, "integer_scale_factor_y": 2}
    factors[f"integer_scale_factor_{axis}"] = value
    words = f"{cls.__name__}: integer_scale_factor_{axis} must be a whole number from 1 to 65536"
    with rejects(ValueError, words):
        cls(**factors, device=device)


@pytest.mark.parametrize("cls", CLASSES)
def test_rejects_factors_that_are_not_numbers(device, cls):
    with pytest.raises(TypeError, match="integer_scale_factor_x must be a float, got str"):
        cls("2", 2, device=device)


@pytest.mark.parametrize("cls", [mg.Upsampling, mg.UpsamplingGradient])
def test_base_classes_cannot_be_made(cls):
    with pytest.raises(TypeError, match="No constructor defined"):
        cls()


def test_rejects_results_that_no_image_holds(device):
    kernel = mg.UpsamplingNearest(8192, 1, device=device)
    with rejects(ValueError, "width must be"):
        kernel(X)
    assert tuple(kernel.offset) == (0, 0, 0)


REJECTED = {
    "dtype": (G.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "rank": (G[0, 0], X, ValueError, "source_gradient must have shape (N, H, W, C)"),
    "batch": (G[:1], X, ValueError, "both must be one image, or batches of one length"),
    "width": (
        G[:, :, :9].copy(),
        X,
        ValueError,
        "source_gradient is 9x6, but the forward result was 10x6",
    ),
    "height": (
        np.zeros((2, 7, 10, 4), np.float32),
        X,
        ValueError,
        "source_gradient is 10x7, but the forward result was 10x6",
    ),
    "source": (
        G,
        X[:, :, :4].copy(),
        ValueError,
        "source is 4x3, but the state was made for a forward source of 5x3",
    ),
    "too few channels": (
        G[..., :3].copy(),
        X,
        ValueError,
        "source_gradient offers 3 channels from offset 0, but the kernel reads 4",
    ),
    "too many channels": (
        np.zeros((2, 6, 10, 6), np.float32),
        X,
        ValueError,
        "source_gradient has 6 channels, but source has 4",
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize(("g", "x", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects_gradient_calls(device, kind, g, x, error, words):
    forward, gradient = (cls(2, 2, device=device) for cls in PAIRS[kind])
    _, states = forward(X, with_state=True)
    gradient(G, X, states)
    with rejects(error, words):
        gradient(g, x, states)


def test_rejects_states_of_other_kernels(device):
    _, states = mg.UpsamplingNearest(2, 2, device=device)(X, with_state=True)
    words = "state must come from UpsamplingBilinear, but it was made by UpsamplingNearest"
    with rejects(TypeError, words):
        mg.UpsamplingBilinearGradient(2, 2, device=device)(G, X, states)
    for factors in ((1, 2), (2, 4)):
        words = f"the kernel's scale factors are {factors}, but the state was made with (2, 2)"
        with rejects(ValueError, words):
            mg.UpsamplingNearestGradient(*factors, device=device)(G, X, states)
    with rejects(TypeError, "state must be what the forward call returned with with_state=True"):
        mg.UpsamplingNearestGradient(2, 2, device=device)(G, X, None)


def test_rejects_geometry_that_has_no_meaning(device):
    forward, gradient = kernels(Upsampling("bilinear", (2, 2)), device)
    sources, results = filled(device, X), empty(device, G.shape)
    states = forward.result_state(sources, results)
    incoming, destinations = filled(device, G), empty(device, X.shape)

    def encode():
        with Work(device) as work:
            gradient.encode(work.buffer, incoming, sources, states, destinations)

    with rejects(mg.errors.StateError, "call configure("):
        encode()
    for name, words in (
        ("kernel_offset_x", "kernel_offset_x and kernel_offset_y must be 0, got (3, 0)"),
        ("kernel_offset_y", "kernel_offset_x and kernel_offset_y must be 0, got (0, 3)"),
        ("primary_stride_in_pixels_x", "primary_stride_in_pixels must be (1, 1), got (3, 1)"),
        ("secondary_stride_in_pixels_y", "secondary_stride_in_pixels must be (1, 1), got (1, 3)"),
    ):
        gradient.configure(incoming, sources, states[0])
        before = getattr(gradient, name)
        setattr(gradient, name, 3)
        with rejects(ValueError, words):
            encode()
        setattr(gradient, name, before)
        encode()


def test_rejects_aliasing(device):
    images = empty(device, (1, 4, 4, 4))
    words = "UpsamplingNearest: destination shares memory with source"
    with Work(device) as work, rejects(ValueError, words):
        mg.UpsamplingNearest(1, 1, device=device).encode(work.buffer, images, images)
