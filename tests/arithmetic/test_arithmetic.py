"""Arithmetic kernels against the oracle, the printed examples, and the rules of their encodes."""

import copy
import pickle

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arithmetic import cases, oracle
from tests.arithmetic.oracle import COMPARISONS, DIFFERENTIABLE, FLT_MAX, KINDS, Operation, Source
from tests.core.fuzz import pairs
from tests.core.oracle import DTYPES, load
from tests.images import Work, empty, filled, read
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    ulps_for,
)

StateError = mg.errors.StateError
EDGES = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}
SIDES = ("primary", "secondary")
PLAIN = Source(), Source()


def configured(device, operation, sources=PLAIN):
    """A kernel with the settings of an operation and of how its sources are read."""
    kernel = getattr(mg, operation.kind)(device=device)
    kernel.primary_scale, kernel.secondary_scale = operation.scales
    kernel.bias = operation.bias
    kernel.minimum_value, kernel.maximum_value = operation.limits
    for side, source in zip(SIDES, sources, strict=True):
        setattr(kernel, f"{side}_offset", source.offset)
        setattr(kernel, f"{side}_edge_mode", EDGES[source.edge])
        x, y, channels = source.strides
        setattr(kernel, f"{side}_stride_in_pixels_x", x)
        setattr(kernel, f"{side}_stride_in_pixels_y", y)
        setattr(kernel, f"{side}_stride_in_feature_channels", channels)
    return kernel


def gradient_kernel(device, operation, secondary):
    """The gradient kernel of an operation, with the scales that a caller has to set."""
    kernel = getattr(mg, f"{operation.kind}Gradient")(secondary, device=device)
    kernel.primary_scale, kernel.secondary_scale = oracle.gradient_scales(operation, secondary)
    return kernel


def passed(operation, secondary, x, y):
    """The image that a gradient kernel takes as its source."""
    return (x, y)[secondary != (operation.kind == "Multiply")]


def check_forward(actual, operation, x, y):
    """Compare: two loads, two products, two operations; sources as they are read."""
    assert_close(
        actual,
        operation.apply(x, y),
        ulps=ulps_for(6, actual.dtype),
        scale=operation.scale(x, y),
        floor=1e-30,
    )


def check_gradient(actual, operation, secondary, g, x, y, sources, shape):
    """Compare: two loads and three products a term, sums in double, one rounding."""
    size, channels = (g.shape[2], g.shape[1]), g.shape[3]
    seen = [s.read(v, size, channels) for s, v in zip(sources, (x, y), strict=True)]
    scales = oracle.gradient_scales(operation, secondary)
    t = oracle.terms(operation.kind, g, seen[not secondary], operation.mask(*seen), *scales)
    own = sources[secondary]
    assert_close(
        actual,
        own.scatter(t, shape),
        ulps=ulps_for(6, actual.dtype),
        scale=own.scatter(np.abs(t), shape),
        floor=1e-30,
        nonzero=0,
    )


def check_exact_gradients(device, operation, g, x, y, states):
    """Compare both gradients of sources of one shape, whose products are exact."""
    mask = operation.mask(x, y)
    for secondary in (False, True):
        scales = oracle.gradient_scales(operation, secondary)
        expected = oracle.terms(operation.kind, g, (y, x)[secondary], mask, *scales)
        source = passed(operation, secondary, x, y)
        got = gradient_kernel(device, operation, secondary)(g, source, states)
        assert_exact(got, expected, nonzero=0)


def random_sources(rng, shape, broadcast, dtype=np.float32):
    """Two sources clear of 0, and how they are read."""
    strides = cases.BROADCASTS[broadcast]
    values = [
        (rng.uniform(0.5, 2, cases.source_shape(shape, s)) * rng.choice([-1, 1])).astype(dtype)
        for s in strides
    ]
    return *values, tuple(Source(strides=s) for s in strides)


# --- Values -------------------------------------------------------------------


@pytest.mark.parametrize("kind", cases.PRINTED)
def test_printed_values(device, kind):
    scales, bias, result, dx, dy = cases.PRINTED[kind]
    operation = Operation(kind, scales, bias)
    kernel = configured(device, operation, (Source(), Source(strides=(0, 0, 1))))
    z, states = kernel(cases.X, cases.Y, with_state=True)
    assert_exact(z[0, 0], np.array(result))
    ones = np.ones_like(z)
    for secondary, expected in ((False, dx), (True, [dy])):
        source = passed(operation, secondary, cases.X, cases.Y)
        got = gradient_kernel(device, operation, secondary)(ones, source, states)
        assert_exact(got[0, 0], np.array(expected))


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("broadcast", cases.BROADCASTS)
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_gradients(device, kind, broadcast, shape, rng):
    x, y, sources = random_sources(rng, shape, broadcast)
    operation = Operation(kind, (1.5, -0.75), 0.125)
    kernel = configured(device, operation, sources)
    z, states = kernel(x, y, with_state=True)
    produced = (*shape[:3], shape[3] if any(s.strides[2] for s in sources) else 1)
    size, channels = (shape[2], shape[1]), produced[3]
    assert z.shape == produced
    seen = [s.read(v, size, channels) for s, v in zip(sources, (x, y), strict=True)]
    check_forward(z, operation, *seen)
    assert_same_bytes(z, kernel(x, y))
    if kind not in DIFFERENTIABLE:
        return
    g = rng.standard_normal(z.shape, dtype=np.float32)
    for secondary in (False, True):
        source = passed(operation, secondary, x, y)
        got = gradient_kernel(device, operation, secondary)(g, source, states)
        check_gradient(got, operation, secondary, g, x, y, sources, (x, y)[secondary].shape)


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_sums_are_wide(device, kind, rng):
    """Large numbers cancel each other; what remains is small, and lost in float32."""
    operation = Operation(kind)
    kernel = configured(device, operation, (Source(), Source(strides=(0, 0, 1))))
    x = np.ones((2, 64, 32, 3), np.float32)
    y = np.ones((2, 1, 1, 3), np.float32)
    _, states = kernel(x, y, with_state=True)
    g = rng.choice([2.0**30, 1.0], x.shape).astype(np.float32)
    g[:, 1::2] = np.where(g[:, ::2] == 1, 0, -g[:, ::2])
    got = gradient_kernel(device, operation, True)(g, passed(operation, True, x, y), states)
    sign = -1 if kind == "Subtract" else 1
    assert_exact(got, sign * g.astype(np.float64).sum(axis=(1, 2), keepdims=True))


# x, y, settings, and the result, which a rounding to float16 on the way would change.
ROUNDED_ONCE = {
    "a sum": ("Add", 1, 2**-11, {"bias": 2**-20}, 1 + 2**-10),
    "a difference": ("Subtract", 1, -(2**-11), {"bias": 2**-20}, 1 + 2**-10),
    "a scaled source": ("Add", 1, 2**-20, {"primary_scale": 1 + 2**-11}, 1 + 2**-10),
    "another": ("Subtract", 2**-20, 1, {"secondary_scale": -1 - 2**-11}, 1 + 2**-10),
    "a product": ("Multiply", 1 + 2**-10, 1 + 2**-10, {"bias": 2**-11}, 1 + 3 * 2**-10),
    "a quotient": ("Divide", 1, 3, {"bias": 2**-14}, 1366 / 4096),  # a third is 1365.33 of these
    "a product that is too large": ("Multiply", 2**10, 2**7, {"bias": 2**10 - 2**17}, 2**10),
    "a sum that is too large": ("Add", 65504, 65504, {"bias": -65504}, 65504),
}


@pytest.mark.parametrize(
    ("operation", "x", "y", "changes", "expected"), ROUNDED_ONCE.values(), ids=ROUNDED_ONCE
)
def test_float16_is_rounded_once(device, operation, x, y, changes, expected):
    kernel = getattr(mg, operation)(device=device)
    for name, value in changes.items():
        setattr(kernel, name, value)
    x, y, expected = (np.full((1, 3, 5, 37), value) for value in (x, y, expected))
    assert_exact(kernel(x.astype(np.float16), y.astype(np.float16)), expected)


def test_clamping_and_its_mask(device, rng):
    """Exact numbers, many of them on the limits: those pass nothing back."""
    x, y = grid(rng, (2, 5, 7, 6)), grid(rng, (2, 5, 7, 6))
    for kind in DIFFERENTIABLE:
        operation = Operation(kind, limits=(-2, 3))
        z, states = configured(device, operation)(x, y, with_state=True)
        assert_exact(z, operation.apply(x, y), nonzero=0)
        assert 0.1 < operation.mask(x, y).mean() < 0.9
        check_exact_gradients(device, operation, grid(rng, x.shape), x, y, states)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_few_results_are_clamped(device, kind, dtype, rng):
    """One in a long stretch of others, at its ends, and at those of an image."""
    operation = Operation(kind, limits=(-4, 4))
    shape = (3, 61, 53, 7)
    x, y, g = (rng.integers(-1, 2, shape).astype(dtype) for _ in range(3))
    image = x[0].size
    for place in (0, 9, 1023, 1024, 1040, 5000, image - 1, image, 2 * image + 2047, x.size - 1):
        x.flat[place], y.flat[place], g.flat[place] = 8, 1, 1
    assert np.count_nonzero(~operation.mask(x, y)) == 10
    z, states = configured(device, operation)(x, y, with_state=True)
    assert_exact(z, operation.apply(x, y), nonzero=0)
    check_exact_gradients(device, operation, g, x, y, states)


@pytest.mark.parametrize("limits", [None, (-3, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("broadcast", ["bias", "bias first", "scalar"])
@pytest.mark.parametrize("channels", [1, 3, 21, 64, 96, 257, 1024, 1030, 3001])
def test_a_pixel_for_long_runs(device, channels, broadcast, dtype, limits, rng):
    """Exact numbers: the pixel is gone through again and again, and no run is a multiple of it."""
    height, width = 7, max(1, 10001 // channels)
    shape = (2, height, width, channels)
    strides = cases.BROADCASTS[broadcast]
    x, y = (rng.integers(-2, 3, cases.source_shape(shape, s)).astype(dtype) for s in strides)
    sources = tuple(Source(strides=s) for s in strides)
    for kind in DIFFERENTIABLE:
        operation = Operation(kind, **({} if limits is None else {"limits": limits}))
        z, states = configured(device, operation, sources)(x, y, with_state=True)
        seen = [
            np.broadcast_to(s.read(v, (width, height), channels), shape)
            for s, v in zip(sources, (x, y), strict=True)
        ]
        assert_exact(z, operation.apply(*seen), nonzero=0)
        g = rng.integers(-1, 2, shape).astype(dtype)
        whole = 0 if strides[0] == (1, 1, 1) else 1  # which source was not broadcast
        mask = operation.mask(*seen)
        terms = oracle.terms(
            kind, g, seen[not whole], mask, *oracle.gradient_scales(operation, whole)
        )
        source = passed(operation, bool(whole), x, y)
        got = gradient_kernel(device, operation, bool(whole))(g, source, states)
        assert_exact(got, terms, nonzero=0)


def test_what_is_clamped_passes_nothing_back_not_even_nan(device):
    x = np.array([1, 5], np.float32).reshape(1, 1, 1, 2)
    kernel = configured(device, Operation("Add", limits=(-2, 3)))
    _, states = kernel(x, np.zeros_like(x), with_state=True)
    g = np.array([2, np.inf], np.float32).reshape(x.shape)
    assert_exact(mg.AddGradient(False, device=device)(g, x, states).ravel(), [2, 0])


def test_infinite_results(device):
    """The default limits make them finite, unless the format cannot hold those."""
    x = np.array([1, -1, 0, np.nan], np.float32).reshape(1, 1, 1, 4)
    zero = np.zeros_like(x)
    kernel = mg.Divide(device=device)
    finite = np.array([FLT_MAX, -FLT_MAX])
    assert_exact(kernel(x, zero).ravel()[:2], finite)
    assert_exact(kernel(x.astype(np.float16), zero).ravel()[:2], np.copysign(np.inf, finite))
    if device.kind == "cpu":  # not portable
        assert np.isnan(kernel(x, zero).ravel()[2:]).all()
    kernel.minimum_value, kernel.maximum_value = -np.inf, np.inf
    assert_exact(kernel(x, zero).ravel()[:2], np.copysign(np.inf, finite))


@pytest.mark.parametrize("count", [3, 16, 37])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_results_beyond_the_limits_have_no_gradient(device, dtype, count):
    """Infinities of sums, in any place of a vector; with a state the same bytes."""
    most = np.finfo(dtype).max
    x = np.resize(np.array([most, 1, -most, 2, np.inf, -np.inf, 0], dtype), (1, 1, 1, count))
    kernel = mg.Add(device=device)
    kernel.minimum_value, kernel.maximum_value = -float(most), float(most)
    result, states = kernel(x, x, with_state=True)
    assert_exact(result, np.clip(2 * x.astype(np.float64), -float(most), float(most)), nonzero=0)
    assert_same_bytes(kernel(x, x), result)
    gradient = mg.AddGradient(False, device=device)(np.ones_like(x), x, states)
    assert_exact(gradient, np.abs(x.astype(np.float64)) < most, nonzero=0)


def test_a_result_that_is_no_number_has_no_gradient(device):
    if device.kind != "cpu":
        pytest.skip("not portable")
    x = np.where(np.arange(37) % 5 == 3, np.nan, 1).astype(np.float32).reshape(1, 1, 1, 37)
    result, states = mg.Add(device=device)(x, x, with_state=True)
    np.testing.assert_array_equal(result, 2 * x)
    gradient = mg.AddGradient(False, device=device)(np.ones_like(x), x, states)
    assert_exact(gradient, ~np.isnan(x), nonzero=0)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons(device, comparison, threshold, rng):
    kernel = mg.Compare(device=device)
    assert (kernel.comparison_type, kernel.threshold) == (mg.ComparisonType.EQUAL, 0)
    kernel.comparison_type = getattr(mg.ComparisonType, comparison)
    kernel.threshold = threshold
    kernel.primary_scale, kernel.bias, kernel.maximum_value = 3.0, 7.0, 0.25  # not used
    kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
    x = grid(rng, (2, 3, 5, 7), step=0.25)
    y = grid(rng, (2, 1, 1, 7), step=0.25)
    expected = oracle.compare(comparison, x, np.broadcast_to(y, x.shape), threshold)
    assert_exact(kernel(x, y), expected, nonzero=0)
    result, states = kernel(x, y, with_state=True)
    assert states is None
    assert_exact(result, expected, nonzero=0)


def test_comparisons_with_nan_and_infinities(device):
    if device.kind != "cpu":
        pytest.skip("how MPS compares NaN is not documented")
    x = np.array([np.nan, np.inf, np.inf, -np.inf], np.float32).reshape(1, 1, 1, 4)
    y = np.array([0, 0, np.inf, np.inf], np.float32).reshape(1, 1, 1, 4)
    kernel = mg.Compare(device=device)
    for comparison in COMPARISONS:
        kernel.comparison_type = getattr(mg.ComparisonType, comparison)
        with np.errstate(invalid="ignore"):
            assert_exact(kernel(x, y), oracle.compare(comparison, x, y))


# --- Formats, offsets, windows --------------------------------------------------


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, fmt, kind, rng):
    shape = (3, 4, 5, 6)
    sources = Source(), Source(strides=(0, 0, 1))
    operation = Operation("Multiply", (0.5, 1.5), 0.125)
    values = [rng.uniform(0.1, 0.9, s) for s in (shape, (3, 1, 1, 6), shape)]
    images = [filled(device, v, fmt, kind=kind) for v in values]
    x, y, g = (load(read(image)) for image in images)
    kernel = configured(device, operation, sources)
    results = empty(device, shape, fmt, kind=kind)
    states = kernel.result_state(*images[:2], results)
    destinations = [empty(device, v.shape, kind=kind) for v in (x, y)]
    with Work(device) as work:
        kernel.encode(work.buffer, *images[:2], work.result(results), destination_state=states)
        for secondary, destination in enumerate(destinations):
            gradient = gradient_kernel(device, operation, bool(secondary))
            source = passed(operation, bool(secondary), *images[:2])
            gradient.configure(images[2], source, states[0] if kind != "container" else states)
            gradient.encode(work.buffer, images[2], source, states, work.result(destination))
    seen = [s.read(v, (5, 4), 6) for s, v in zip(sources, (x, y), strict=True)]
    check_forward(read(results), operation, *seen)
    for secondary, destination in enumerate(destinations):
        check_gradient(
            read(destination), operation, bool(secondary), g, x, y, sources, (x, y)[secondary].shape
        )


def placed(device, operation, sources, x, y, clip, size, rng):
    """Forward into a given destination, then both gradients: what came, and the clip's gradient."""
    (left, top), (width, height) = clip
    kernel = configured(device, operation, sources)
    kernel.clip_rect = mg.Region((left, top), (width, height))
    primary, secondary = filled(device, x), filled(device, y)
    results = empty(device, (x.shape[0], size[1], size[0], x.shape[3]), fill=0.5)
    states = kernel.result_state(primary, secondary, results)
    g = rng.standard_normal((x.shape[0], size[1], size[0], x.shape[3]), dtype=np.float32)
    gradients = []
    with Work(device) as work:
        kernel.encode(
            work.buffer, primary, secondary, work.result(results), destination_state=states
        )
        for second in (False, True):
            source = passed(operation, second, primary, secondary)
            gradient = gradient_kernel(device, operation, second)
            gradients.append(
                work.result(
                    gradient.encode(
                        work.buffer, filled(device, g), source, states, allocator=mg.DEFAULT
                    )
                )
            )
    cut = np.s_[:, top : top + height, left : left + width]
    return read(results), [read(image) for image in gradients], g[cut], cut


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("broadcast", cases.BROADCASTS)
@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_offsets_edges_and_clips(device, kind, broadcast, edge, rng):
    operation = Operation(kind, (0.5, 2.0), 0.25, (-1, 2))
    sources = tuple(
        Source(offset, strides, edge)
        for offset, strides in zip([(-2, 1), (3, -1)], cases.BROADCASTS[broadcast], strict=True)
    )
    x, y = grid(rng, (2, 4, 5, 3)), grid(rng, (2, 3, 6, 3))
    clip = (1, 1), (6, 4)
    result, gradients, g, cut = placed(device, operation, sources, x, y, clip, (8, 6), rng)
    channels = 3 if any(s.strides[2] for s in sources) else 1
    seen = [s.read(v, clip[1], channels) for s, v in zip(sources, (x, y), strict=True)]
    assert_exact(result[cut][..., :channels], operation.apply(*seen), nonzero=0)
    result[cut][..., :channels] = 0.5
    assert (result == 0.5).all()
    for secondary, got in enumerate(gradients):
        check_gradient(got, operation, bool(secondary), g, x, y, sources, (x, y)[secondary].shape)


@settings(max_examples=60)
@given(st.data())
def test_any_geometry(device, data):
    """Random sizes, offsets, strides, edges and clips."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    draw = data.draw
    operation = Operation(draw(st.sampled_from(DIFFERENTIABLE)), (1.5, -0.5), 0.25, (-2, 2))
    stride = st.sampled_from([0, 1])
    strides = [(draw(stride), draw(stride), 1) for _ in SIDES]
    if draw(st.booleans()):
        strides[draw(st.integers(0, 1))] = (draw(stride), draw(stride), 0)
    sources = tuple(
        Source(draw(pairs(-9, 9)), s, draw(st.sampled_from(list(EDGES)))) for s in strides
    )
    count, channels = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    sizes = [draw(pairs(1, 9)) for _ in SIDES]
    x, y = (grid(rng, (count, h, w, channels), step=0.5) for w, h in sizes)
    size = draw(pairs(1, 20))
    clip = draw(pairs(0, 3)), draw(pairs(1, 20))
    clip = (
        clip[0],
        tuple(
            min(extent, length - origin)
            for extent, length, origin in zip(clip[1], size, clip[0], strict=True)
        ),
    )
    if min(clip[1]) < 1:
        clip = (0, 0), size
    result, gradients, g, cut = placed(device, operation, sources, x, y, clip, size, rng)
    seen = [s.read(v, clip[1], channels) for s, v in zip(sources, (x, y), strict=True)]
    assert_exact(result[cut], operation.apply(*seen), nonzero=0)
    for secondary, got in enumerate(gradients):
        check_gradient(got, operation, bool(secondary), g, x, y, sources, (x, y)[secondary].shape)


def test_channel_windows(device, rng):
    x, y = grid(rng, (2, 3, 2, 13)), grid(rng, (2, 3, 2, 10))
    kernel = mg.Add(device=device)
    kernel.primary_source_feature_channel_offset = 4
    kernel.primary_source_feature_channel_max_count = 6
    kernel.secondary_source_feature_channel_offset = 8
    kernel.secondary_stride_in_feature_channels = 0
    kernel.destination_feature_channel_offset = 8
    results = empty(device, (2, 3, 2, 20), fill=0.5)
    sources = filled(device, x), filled(device, y)
    states = kernel.result_state(*sources, results)
    g = grid(rng, (2, 3, 2, 6))
    with Work(device) as work:
        kernel.encode(work.buffer, *sources, work.result(results), destination_state=states)
        dx, dy = (
            work.result(
                mg.AddGradient(second, device=device).encode(
                    work.buffer, filled(device, g), sources[second], states, allocator=mg.DEFAULT
                )
            )
            for second in (False, True)
        )
    texels = read(results)
    assert_exact(texels[..., 8:14], x[..., 4:10] + y[..., 8:9], nonzero=0)
    assert (texels[..., :8] == 0.5).all()
    assert (texels[..., 16:] == 0.5).all()
    assert_exact(read(dx), g)
    total = g.astype(np.float64).sum(axis=-1, keepdims=True)
    assert_exact(read(dy), np.concatenate([total, np.zeros_like(total)], axis=-1), nonzero=0)


def test_a_broadcast_source_keeps_its_offset(device, rng):
    """Where a source does not move there is no window that a policy could place."""
    x, y = grid(rng, (1, 3, 4, 2)), grid(rng, (1, 5, 6, 2))
    kernel = mg.Add(device=device)
    kernel.primary_offset = (1, 1)
    kernel.secondary_offset = (2, 3)
    kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
    z, states = kernel(x, y, with_state=True)
    assert_exact(z, x + y[:, 3:4, 2:3], nonzero=0)
    assert kernel.primary_offset == mg.Offset()
    assert kernel.secondary_offset == mg.Offset(2, 3)
    g = grid(rng, x.shape)
    expected = np.zeros(y.shape)
    expected[0, 3, 2] = g.sum(axis=(0, 1, 2))
    assert_exact(mg.AddGradient(True, device=device)(g, y, states), expected, nonzero=0)


# --- Arrays, threads, order -----------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, dtype, rng):
    x, y = grid(rng, (2, 3, 5, 7), dtype=dtype), grid(rng, (2, 3, 5, 7), dtype=dtype)
    kernel, gradient = mg.Add(device=device), mg.AddGradient(False, device=device)
    z, states = kernel(x, y, with_state=True)
    assert z.dtype == dtype
    assert_exact(z, x + y, nonzero=0)
    with Guarded(x.shape, dtype) as out:
        assert kernel(x, y, out=out) is out
        assert_same_bytes(out, z)
    single, state = kernel(x[0], y[0], with_state=True)
    assert isinstance(state, mg.ArithmeticGradientState)
    assert_same_bytes(single, z[0])
    assert isinstance(states, list)
    assert_exact(gradient(z, x, states), z, nonzero=0)
    assert_exact(gradient(z[0], x[0], state), z[0], nonzero=0)
    assert_exact(kernel(x, x), 2 * x)  # one array may be both sources


def test_results_do_not_depend_on_the_number_of_threads(device):
    shape = (2, 61, 53, 24)

    def everything():
        numbers = np.random.default_rng(1)
        for broadcast in cases.BROADCASTS:
            x, y, sources = random_sources(numbers, shape, broadcast)
            operation = Operation("Multiply", (1.5, 0.3), 0.1)
            z, states = configured(device, operation, sources)(x, y, with_state=True)
            yield z
            g = numbers.standard_normal(z.shape, dtype=np.float32)
            for second in (False, True):
                kernel = gradient_kernel(device, operation, second)
                yield kernel(g, passed(operation, second, x, y), states)

    check_thread_independence(everything, (1, 5))


def test_a_state_holds_the_mask_of_the_encode_before(device):
    """Every forward encode makes a new mask; a gradient encoded before it keeps the old one."""
    kernel = configured(device, Operation("Add", limits=(-2, 3)))
    x, zero = np.array([1, 5], np.float32).reshape(1, 1, 1, 2), np.zeros((1, 1, 1, 2), np.float32)
    first, second = filled(device, x), filled(device, x[..., ::-1])
    other, results = filled(device, zero), empty(device, x.shape)
    g = filled(device, np.ones_like(x))
    gradient = mg.AddGradient(False, device=device)
    states = kernel.result_state(first, other, results)
    with Work(device) as work:
        got = []
        for source in (first, second):
            kernel.encode(work.buffer, source, other, results, destination_state=states)
            got.append(
                work.result(gradient.encode(work.buffer, g, source, states, allocator=mg.DEFAULT))
            )
    assert [read(image).ravel().tolist() for image in got] == [[1, 0], [0, 1]]


def test_what_a_predicate_skips_passes_nothing_back(device):
    kernel, gradient = mg.Add(device=device), mg.AddGradient(False, device=device)
    x, results = filled(device, np.ones((1, 2, 3, 4))), empty(device, (1, 2, 3, 4))
    states = kernel.result_state(x, x, results)
    with Work(device) as work:
        work.buffer.predicate = mg.Predicate(mg.Buffer(device, 4))
        kernel.encode(work.buffer, x, x, results, destination_state=states)
        work.buffer.predicate = None
        dx = work.result(gradient.encode(work.buffer, x, x, states, allocator=mg.DEFAULT))
    if device.kind == "cpu":  # what Apple's state holds then is not documented
        assert not read(dx).any()


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward, gradient = mg.Multiply(device=device), mg.MultiplyGradient(True, device=device)
    with Work(device) as work:
        x = forward.encode(work.buffer, source, source)
        mg.increment_read_count(x, 2)
        y, states = forward.encode(
            work.buffer, x, x, with_state=True, temporary_state=True
        )  # one count for each side
        assert [image.read_count for image in (*x, *y)] == [1, 1, 1, 1]
        assert [state.read_count for state in states] == [1, 1]
        dx = work.result(gradient.encode(work.buffer, y, x, states, allocator=mg.DEFAULT))
        assert [image.read_count for image in (*x, *y)] == [0, 0, 0, 0]
        assert [state.read_count for state in states] == [0, 0]
    assert_exact(read(dx), np.ones((2, 4, 4, 3)))


def test_work_runs_when_it_is_committed(device):
    kernel = mg.Add(device=device)
    x, y, results = (empty(device, (1, 1, 1, 2)) for _ in range(3))
    with Work(device) as work:
        kernel.encode(work.buffer, x, y, work.result(results))
        kernel.primary_scale = 100.0
        x[0].write(np.array([1, 2], np.float32).reshape(1, 1, 2))
        y[0].write(np.array([10, 20], np.float32).reshape(1, 1, 2))
    assert_exact(read(results).ravel(), [11, 22])


# --- Properties -----------------------------------------------------------------

FORWARD = (*KINDS, "Compare")


@pytest.mark.parametrize("name", FORWARD)
def test_defaults(device, name):
    kernel = getattr(mg, name)(device=device)
    assert isinstance(kernel, mg.Arithmetic)
    assert (kernel.primary_scale, kernel.secondary_scale, kernel.bias) == (1, 1, 0)
    assert (kernel.minimum_value, kernel.maximum_value) == (-FLT_MAX, FLT_MAX)
    for side in SIDES:
        for axis in ("pixels_x", "pixels_y", "feature_channels"):
            assert getattr(kernel, f"{side}_stride_in_{axis}") == 1
    assert not kernel.is_backwards
    assert not kernel.is_state_modified


@pytest.mark.parametrize("secondary", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_defaults_of_gradients(device, name, secondary):
    kernel = getattr(mg, f"{name}Gradient")(secondary, device=device)
    assert isinstance(kernel, mg.ArithmeticGradient)
    assert kernel.is_secondary_source_filter is secondary
    assert kernel.primary_scale == (-1 if name == "Subtract" and secondary else 1)
    assert (kernel.secondary_scale, kernel.bias) == (1, 0)
    assert (kernel.minimum_value, kernel.maximum_value) == (-FLT_MAX, FLT_MAX)
    assert kernel.secondary_stride_in_feature_channels == 1
    assert kernel.is_backwards
    assert not hasattr(kernel, "primary_stride_in_feature_channels")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        kernel(cases.X, cases.X)


def test_copies(device):
    kernel = configured(
        device,
        Operation("Add", (2.0, 3.0), 4.0, (-5, 6)),
        (Source(), Source((1, 2), (0, 1, 0), "clamp")),
    )
    compare = mg.Compare(device=device)
    compare.comparison_type, compare.threshold = mg.ComparisonType.GREATER, 0.5
    gradient = mg.SubtractGradient(True, device=device)
    gradient.primary_scale, gradient.secondary_stride_in_pixels_x = -3.0, 0
    for one in (kernel, compare, gradient):
        for twin in (
            copy.copy(one),
            copy.deepcopy(one),
            pickle.loads(pickle.dumps(one)),
            type(one).from_bytes(one.to_bytes()),
        ):
            assert type(twin) is type(one)
            assert twin is not one
            for name, value in one._settings().items():
                assert name == "padding" or getattr(twin, name) == value
    assert repr(kernel) == f"Add(device='{device.kind}')"
    assert repr(gradient) == (
        f"SubtractGradient(is_secondary_source_filter=True, device='{device.kind}')"
    )


# --- Rejections -----------------------------------------------------------------


def test_abstract_classes():
    for cls in (mg.Arithmetic, mg.ArithmeticGradient):
        with rejects(TypeError, "No constructor defined"):
            cls()
    for cls in (mg.ArithmeticGradientState, mg.BinaryGradientState):
        with rejects(TypeError, "is made by a kernel"):
            cls()


@pytest.mark.parametrize("value", [-1, 2, 65536])
def test_rejects_strides(device, value):
    kernel, gradient = mg.Add(device=device), mg.AddGradient(False, device=device)
    for side in SIDES:
        for axis in ("pixels_x", "pixels_y", "feature_channels"):
            name = f"{side}_stride_in_{axis}"
            with rejects(ValueError, f"Add: {name} must be 0 (one element for all) or 1, got"):
                setattr(kernel, name, value)
            assert getattr(kernel, name) == 1
            if side == "secondary":
                with rejects(ValueError, f"AddGradient: {name} must be 0 (one element for all)"):
                    setattr(gradient, name, value)
    for value in (0, 2):
        with rejects(ValueError, "must be 1, since the incoming gradient is never broadcast"):
            gradient.primary_stride_in_pixels_x = value


@pytest.mark.parametrize(
    "name", ["primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value"]
)
def test_rejects_nan(device, name):
    for kernel in (mg.Divide(device=device), mg.MultiplyGradient(True, device=device)):
        before = getattr(kernel, name)
        with rejects(ValueError, f"{name} must not be NaN"):
            setattr(kernel, name, np.nan)
        with pytest.raises(TypeError, match="must be a float, got str"):
            setattr(kernel, name, "1")
        assert getattr(kernel, name) == before


def test_rejects_a_threshold_that_is_nan(device):
    kernel = mg.Compare(device=device)
    with rejects(ValueError, "Compare: threshold must not be NaN"):
        kernel.threshold = np.nan
    assert kernel.threshold == 0


def test_rejects_crossed_limits(device):
    kernel = mg.Add(device=device)
    kernel.minimum_value, kernel.maximum_value = 2.0, 1.0
    with rejects(ValueError, "Add: minimum_value 2 is above maximum_value 1"):
        kernel(cases.X, cases.X)
    kernel.maximum_value = 2.0
    _, states = kernel(cases.X, cases.X, with_state=True)
    gradient = mg.AddGradient(False, device=device)
    gradient.minimum_value, gradient.maximum_value = 2.0, 1.0
    with rejects(ValueError, "AddGradient: minimum_value 2 is above maximum_value 1"):
        gradient(cases.X, cases.X, states)


X = np.zeros((2, 3, 5, 4), np.float32)
REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "primary must be float32 or float16"),
    "dtype of the second": (X, X.astype(np.int32), TypeError, "secondary must be float32"),
    "rank": (X[0, 0], X, ValueError, "primary must have shape (N, H, W, C)"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "width": (X[:, :, :1], X, ValueError, "Add: the primary width is 1, but the secondary width"),
    "height": (X, X[:, :1], ValueError, "the primary height is 3, but the secondary height is 1"),
    "channels": (X, X[..., :1], ValueError, "primary offers 4 channels, but secondary offers 1"),
}


@pytest.mark.parametrize(("x", "y", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects_arrays(device, x, y, error, words):
    kernel = mg.Add(device=device)
    kernel(X, X)
    with rejects(error, words):
        kernel(x, y)
    with rejects(ValueError, "out must have shape (2, 3, 5, 4)"):
        kernel(X, X, out=np.zeros((2, 3, 5, 5), np.float32))


WRONG_GRADIENTS = {
    "width": (X[:, :, :4], X, "source_gradient is 4x3, but the forward result was 5x3"),
    "few channels": (X[..., :3], X, "source_gradient offers 3 channels from offset 0"),
    "many channels": (
        np.zeros((2, 3, 5, 6), np.float32),
        X,
        "source_gradient has 6 channels, but the forward kernel produced 4",
    ),
    "source": (
        X,
        X[:, :, :4],
        "source is 4x3, but the state was made for a forward primary source of 5x3",
    ),
}


@pytest.mark.parametrize(("g", "x", "words"), WRONG_GRADIENTS.values(), ids=WRONG_GRADIENTS)
def test_rejects_gradients(device, g, x, words):
    _, states = mg.Add(device=device)(X, X, with_state=True)
    gradient = mg.AddGradient(False, device=device)
    gradient(X, X, states)
    with rejects(ValueError, words):
        gradient(g, x, states)


def test_rejects_states(device):
    _, sums = mg.Add(device=device)(X, X, with_state=True)
    _, quotients = mg.Divide(device=device)(X, X, with_state=True)
    gradient = mg.AddGradient(False, device=device)
    with rejects(TypeError, "MultiplyGradient: state must come from Multiply, but it was made by"):
        mg.MultiplyGradient(False, device=device)(X, X, sums)
    with rejects(TypeError, "AddGradient: state must come from Add, but it was made by Divide"):
        gradient(X, X, quotients)
    relu = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    _, others = relu(X, with_state=True)
    with rejects(TypeError, "AddGradient: state must come from Add, got GradientState"):
        gradient(X, X, others)
    with rejects(TypeError, "state must come from Neuron, got ArithmeticGradientState"):
        mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)(X, X, sums)
    with rejects(ValueError, "holds a state twice; each of the 2 images needs one of its own"):
        gradient(X, X, sums[0])
    with rejects(ValueError, "state has 3 entries, expected 2"):
        gradient(X, X, [*sums, sums[0]])
    _, small = mg.Add(device=device)(X[:, :2], X[:, :2], with_state=True)
    with rejects(ValueError, "the states of a batch must come from one encode"):
        gradient(X, X, [sums[0], small[0]])


def test_rejects_states_that_no_encode_has_filled(device):
    kernel, gradient = mg.Add(device=device), mg.AddGradient(False, device=device)
    image, result = empty(device, (1, 2, 3, 4)), empty(device, (1, 2, 3, 4))
    states = kernel.result_state(image, filled(device, np.ones((1, 2, 3, 4))), result)
    buffer = device.command_queue().command_buffer()
    with rejects(StateError, "no forward encode has filled this state"):
        gradient.encode(buffer, result, image, states)


def test_rejects_states_of_a_dropped_command_buffer(device):
    kernel, gradient = mg.Add(device=device), mg.AddGradient(False, device=device)
    x = mg.ImageBatch.from_array(device, np.ones((1, 2, 3, 4), np.float32))
    dropped = device.command_queue().command_buffer()
    _, state = kernel.encode_batch(dropped, x, x, with_state=True, allocator=mg.DEFAULT)
    del dropped
    buffer = device.command_queue().command_buffer()
    with rejects(StateError, "no forward encode has filled this state"):
        gradient.encode_batch(buffer, x, x, state, allocator=mg.DEFAULT)


def test_rejects_one_state_of_a_batch_for_a_container(device):
    """It knows the elements of its own image alone."""
    x = np.ones((3, 2, 3, 4), np.float32)
    _, states = mg.Add(device=device)(x, x, with_state=True)
    g = filled(device, x, kind="container")
    source, result = (empty(device, x.shape, kind="container") for _ in range(2))
    gradient = mg.AddGradient(False, device=device)
    for state in states:
        gradient.configure(g, source, state)
        buffer = device.command_queue().command_buffer()
        with rejects(ValueError, "AddGradient: the state is of one image of a batch of 3"):
            gradient.encode(buffer, g, source, state, result)


def test_rejects_strides_that_are_not_the_forward_ones(device):
    kernel, gradient = mg.Add(device=device), mg.AddGradient(True, device=device)
    kernel.secondary_stride_in_pixels_x = 0
    x, y = filled(device, np.ones((1, 2, 3, 4))), filled(device, np.ones((1, 2, 1, 4)))
    results, destination = empty(device, (1, 2, 3, 4)), empty(device, (1, 2, 1, 4))
    states = kernel.result_state(x, y, results)
    with Work(device) as work:
        kernel.encode(work.buffer, x, y, results, destination_state=states)
        with rejects(ValueError, "must be those of the forward secondary source"):
            gradient.encode(work.buffer, results, y, states, destination, configure=False)
        gradient.secondary_stride_in_pixels_x = 0
        gradient.encode(work.buffer, results, y, states, work.result(destination), configure=False)
    assert_exact(read(destination), np.full((1, 2, 1, 4), 6.0))


def test_rejects_kernels_of_a_device_without_them(device):
    with pytest.raises(TypeError, match=r"^Add: device must be a Device, a kind or None"):
        mg.Add(device=3)
    with pytest.raises(TypeError, match="is_secondary_source_filter must be a bool, got str"):
        mg.AddGradient("yes", device=device)
