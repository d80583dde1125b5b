"""Reductions against the oracle, and the rules of their encodes."""

import copy
import pickle
import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.oracle import DTYPES, load
from tests.images import Work, empty, filled, read
from tests.reduction import cases, oracle
from tests.repeats import check_thread_independence, threads
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    ulps_for,
)

names = pytest.mark.parametrize("name", cases.UNARY)


def check(name, actual, x, nonzero=0.25, decoded=False):
    """Sums: as many additions as there are elements, and a division; the rest is exact.

    Additions round at the magnitude of the sum, where the distance of numbers is less than twice
    that at the mean times as many. `decoded`: the elements are integers made fractions.
    """
    axis, kind = cases.UNARY[name]
    exact = oracle.reduce(x, axis, kind)
    if kind not in ("Mean", "Sum"):
        # Of the values themselves, or of places; a first place is 0.
        expected = exact.astype(actual.dtype)
        assert_exact(actual, expected, nonzero=0 if "Argument" in kind else nonzero)
        return
    count = np.shape(x)[axis]
    roundings = (2 if decoded else 1) * count - 1
    if kind == "Mean":
        roundings = 2 * roundings + 1
    scale = oracle.reduce(np.abs(x), axis, kind)
    ulps = ulps_for(roundings, actual.dtype)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)


@names
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_shape(device, name, shape, dtype, rng):
    x = rng.uniform(-2, 2, shape).astype(dtype)
    kernel = getattr(mg, name)(device=device)
    check(name, kernel(x), x)


@names
def test_exact_sums(device, name, rng):
    """Small integers add up exactly, in any order."""
    for shape in [(1, 64, 65, 3), (2, 33, 20, 40)]:
        x = grid(rng, shape)
        axis, kind = cases.UNARY[name]
        result = getattr(mg, name)(device=device)(x)
        if kind == "Mean":
            assert_exact(result, (oracle.reduce(x, axis, "Sum") / shape[axis]).astype(np.float32))
        else:
            assert_exact(result, oracle.reduce(x, axis, kind), nonzero=0)


@pytest.mark.parametrize("name", [name for name in cases.UNARY if name.endswith("Mean")])
@pytest.mark.parametrize("shape", [(1, 9, 13, 37), (2, 100, 3, 4), (1, 3, 300, 8)], ids=str)
def test_means_of_the_largest_halves_do_not_overflow(device, name, shape):
    y = getattr(mg, name)(device=device)(np.full(shape, 65504, np.float16))
    assert_exact(y, np.full(y.shape, 65504.0))


def test_printed_values(device):
    x = np.array([1.0, 3, 3], np.float32).reshape(1, 1, 1, 3)
    assert mg.ReduceFeatureChannelsArgumentMax(device=device)(x) == 1
    assert mg.ReduceFeatureChannelsArgumentMin(device=device)(x) == 0
    kernel = mg.ReduceFeatureChannelsSum(device=device)
    assert kernel.weight == 1
    kernel.weight = 0.5
    assert kernel(x) == 3.5
    np.testing.assert_allclose(mg.ReduceFeatureChannelsMean(device=device)(x), 2.333333, atol=4e-7)


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 40, 64, 100])
def test_the_first_of_equal_channels_wins(device, channels, rng):
    x = rng.integers(0, 3, (1, 4, 5, channels)).astype(np.float32)
    for name in ("ReduceFeatureChannelsArgumentMin", "ReduceFeatureChannelsArgumentMax"):
        check(name, getattr(mg, name)(device=device)(x), x)


def test_a_nan_is_the_result(device, rng):
    if device.kind != "cpu":
        pytest.skip("what MPS makes of NaN is not documented")
    x = rng.standard_normal((1, 6, 7, 37), dtype=np.float32)
    x[0, 2, 3, 20] = x[0, 2, 3, 30] = np.nan
    for name, (axis, kind) in cases.UNARY.items():
        result = getattr(mg, name)(device=device)(x)
        if "Argument" in kind:
            assert result[0, 2, 3, 0] == 20
        else:
            assert_exact(np.isnan(result), np.isnan(oracle.reduce(x, axis, kind)), nonzero=0)
            assert np.isnan(result).any()


@pytest.mark.parametrize("channels", [4, 8, 16, 32, 48, 64])
def test_a_nan_in_any_pixel_of_a_row_is_the_result(device, channels, rng):
    if device.kind != "cpu":
        pytest.skip("what MPS makes of NaN is not documented")
    x = rng.standard_normal((11, 1, 11, channels), dtype=np.float32)
    images, places = np.arange(11), rng.integers(channels, size=11)
    x[images, 0, images, places] = np.nan  # another pixel of every image
    expected = np.arange(channels) == places[:, None]
    for kind in cases.KINDS:
        result = getattr(mg, f"ReduceRow{kind}")(device=device)(x)
        np.testing.assert_array_equal(np.isnan(result[:, 0, 0]), expected)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 12, 16, 24, 32])
def test_errors_of_long_rows_are_short_chains(device, channels):
    """Equal numbers round the same way again and again: one chain of 16384 is off by 2 ** -12.7.

    Pieces of 2048 elements are added up by fours, then their pixels; or segments of 256 pixels by
    quarters, then these. Eight additions join them, and what is left over.
    """
    if device.kind != "cpu":
        pytest.skip("Apple does not say in which order it adds")
    count, value = 16384, np.float32(0.1)
    chain = value
    for _ in range(count - 1):
        chain += value
    exact = count * float(value)
    piece = 2048 // channels
    additions = max(count // piece // 4 + piece // 4, 64 + 64) + 8
    limit = additions * 2.0**-24 * exact
    assert abs(float(chain) - exact) > 4 * limit
    x = np.full((1, count, channels), value)
    assert np.abs(mg.ReduceRowSum(device=device)(x).astype(np.float64) - exact).max() < limit


@names
@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, name, kind, fmt, rng):
    sources = filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt, kind=kind)
    x = load(read(sources))
    axis = cases.UNARY[name][0]
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    results = empty(device, shape, kind=kind)
    with Work(device) as work:
        getattr(mg, name)(device=device).encode(work.buffer, sources, work.result(results))
    check(name, read(results), x, decoded="unorm" in fmt)


@names
@pytest.mark.parametrize("fmt", ["float32", "float16", "unorm8"])
@pytest.mark.parametrize("region", cases.REGIONS, ids=lambda case: str(case[0].origin))
def test_regions_and_channel_windows(device, name, fmt, region, rng):
    """Only what `clip_rect_source` names is read, whatever the offset; the rest stays as it was."""
    sources = filled(device, rng.uniform(0, 1, (2, 6, 7, 13)), fmt)
    clip, rows, columns = region
    kernel = getattr(mg, name)(device=device)
    kernel.clip_rect_source = clip
    kernel.offset = (3, -2)
    kernel.source_feature_channel_offset = 4
    kernel.source_feature_channel_max_count = 5
    kernel.destination_feature_channel_offset = 4
    seen = load(read(sources))[:, rows, columns, 4:9]
    axis = cases.UNARY[name][0]
    shape = [1 if i == axis else n for i, n in enumerate(seen.shape)]
    kernel.clip_rect = mg.Region((1, 2), (shape[2], shape[1]))
    results = empty(device, (2, shape[1] + 3, shape[2] + 2, 16), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
    texels = read(results)
    part = texels[:, 2 : 2 + shape[1], 1 : 1 + shape[2]]
    check(name, part[..., 4 : 4 + shape[3]], seen, decoded="unorm" in fmt)
    part[..., 4 : 4 + (shape[3] + 3) // 4 * 4] = 0.5
    assert (texels == 0.5).all()


@names
def test_fewer_results_than_there_are(device, name, rng):
    """A clip rectangle takes the first ones."""
    x = rng.standard_normal((1, 6, 7, 3), dtype=np.float32)
    kernel = getattr(mg, name)(device=device)
    axis = cases.UNARY[name][0]
    width, height = 1 if axis == 2 else 3, 1 if axis == 1 else 2
    kernel.clip_rect = mg.Region((0, 0), (width, height))
    with Work(device) as work:
        result = work.result(kernel.encode(work.buffer, filled(device, x), allocator=mg.DEFAULT))
    texels = read(result)
    assert not texels[:, height:].any()
    assert not texels[:, :, width:].any()
    rows = slice(None) if axis == 1 else slice(height)
    columns = slice(None) if axis == 2 else slice(width)
    check(name, texels[:, :height, :width], x[:, rows, columns])


def test_an_image_of_a_batch_by_the_offset(device, rng):
    x = rng.standard_normal((4, 3, 5, 2), dtype=np.float32)
    kernel = mg.ReduceRowSum(device=device)
    kernel.offset = (0, 0, 1)
    results = empty(device, (4, 3, 1, 2), fill=0.5)
    kernel.clip_rect = mg.Region((0, 0, 2), (1, 3, 2))
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    check("ReduceRowSum", texels[2:], x[1:3])
    assert (texels[:2] == 0.5).all()


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_out(device, name, dtype, rng):
    x = rng.standard_normal((2, 9, 8, 12)).astype(dtype)
    shape = [1 if i == cases.UNARY[name][0] else n for i, n in enumerate(x.shape)]
    kernel = getattr(mg, name)(device=device)
    with Guarded(tuple(shape), dtype, skew=1) as out:
        assert kernel(x, out=out) is out
        check(name, out, x)
    assert_same_bytes(kernel(x[0]), out[0])


def test_threads_do_not_matter(device, rng):
    x = rng.standard_normal((2, 65, 67, 24), dtype=np.float32)
    kernels = [getattr(mg, name)(device=device) for name in cases.UNARY]
    check_thread_independence(lambda: [kernel(x) for kernel in kernels])


# ---- two sources

BINARY = {
    "mean": (lambda device: mg.ReduceFeatureChannelsAndWeightsMean(device=device), "number"),
    "sum": (lambda device: mg.ReduceFeatureChannelsAndWeightsSum(device=device), None),
    "non-zero": (
        lambda device: mg.ReduceFeatureChannelsAndWeightsSum(True, device=device),
        "non-zero",
    ),
}
kinds = pytest.mark.parametrize("kind", BINARY)


def of_two_sources(device):
    """One kernel of each kind."""
    return [*(make(device) for make, _ in BINARY.values()), mg.LocalCorrelation(device=device)]


def check_products(kind, actual, x, w, nonzero=0.25):
    """A product and an addition for each channel, and a division."""
    divide_by = BINARY[kind][1]
    scale = oracle.weighted(np.abs(x), np.abs(w), divide_by)
    ulps = ulps_for(2 * x.shape[-1] + 1, actual.dtype)
    exact = oracle.weighted(x, w, divide_by)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)


@kinds
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products(device, kind, shape, dtype, rng):
    x = rng.uniform(-2, 2, shape).astype(dtype)
    w = (rng.uniform(-2, 2, shape) * rng.integers(0, 2, shape)).astype(dtype)
    check_products(kind, BINARY[kind][0](device)(x, w), x, w, nonzero=0)


def test_weights_of_zeros(device, rng):
    """Where no weight counts the result is 0."""
    x = rng.standard_normal((1, 2, 3, 5), dtype=np.float32)
    w = np.zeros_like(x)
    w[0, 0, 0, 2] = 4
    result = mg.ReduceFeatureChannelsAndWeightsSum(True, device=device)(x, w)
    assert result[0, 0, 0, 0] == 4 * x[0, 0, 0, 2]
    assert np.count_nonzero(result) == 1


@pytest.mark.parametrize("channels", [1, 3, 4, 17, 70])
def test_the_weight_of_a_sum_of_channels(device, channels, rng):
    x = grid(rng, (2, 3, 5, channels))
    kernel = mg.ReduceFeatureChannelsSum(device=device)
    kernel.weight = -0.5
    assert_exact(kernel(x), -0.5 * x.sum(axis=3, keepdims=True, dtype=np.float64))


@kinds
def test_regions_of_two_sources(device, kind, rng):
    x = rng.standard_normal((2, 6, 7, 9), dtype=np.float32)
    w = rng.standard_normal((2, 8, 5, 12), dtype=np.float32)
    kernel = BINARY[kind][0](device)
    kernel.primary_source_clip_rect = mg.Region((3, 1), (None, 4))
    kernel.secondary_source_clip_rect = mg.Region((1, 3), (4, 4))
    kernel.primary_source_feature_channel_offset = 4
    kernel.secondary_source_feature_channel_max_count = 5
    kernel.primary_offset = kernel.secondary_offset = (2, 5)
    with Work(device) as work:
        result = kernel.encode_batch(
            work.buffer, filled(device, x), filled(device, w), allocator=mg.DEFAULT
        )
        work.result(result)
    check_products(kind, read(result), x[:, 1:5, 3:, 4:], w[:, 3:7, 1:, :5])


def check_correlation(actual, x, y, window, stride=(1, 1), edge="zero"):
    """A product and an addition for each channel."""
    exact = oracle.correlation(x, y, window, stride, edge)
    scale = oracle.correlation(np.abs(x), np.abs(y), window, stride, edge)
    ulps = ulps_for(2 * x.shape[-1], actual.dtype)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=0)


@pytest.mark.parametrize("shifts", cases.WINDOWS, ids=str)
@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_local_correlation(device, shifts, edge, dtype, rng):
    kernel = mg.LocalCorrelation(*shifts, device=device)
    kernel.secondary_edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[edge]
    for shape in [(2, 5, 6, 3), (1, 3, 2, 20)]:
        x, y = rng.uniform(-1, 1, (2, *shape)).astype(dtype)
        check_correlation(kernel(x, y), x, y, shifts[:2], shifts[2:], edge)


def test_local_correlation_within_regions(device, rng):
    """Outside the secondary region lies its edge, whatever the image holds there."""
    x = rng.standard_normal((1, 6, 7, 4), dtype=np.float32)
    y = rng.standard_normal((1, 6, 7, 4), dtype=np.float32)
    for edge in ("zero", "clamp"):
        kernel = mg.LocalCorrelation(2, 1, device=device)
        kernel.secondary_edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[edge]
        kernel.primary_source_clip_rect = mg.Region((0, 2), (4, 3))
        kernel.secondary_source_clip_rect = mg.Region((2, 1), (4, 3))
        with Work(device) as work:
            result = kernel.encode(
                work.buffer, filled(device, x)[0], filled(device, y)[0], allocator=mg.DEFAULT
            )
            work.result(result)
        check_correlation(read(result), x[:, 2:5, :4], y[:, 1:4, 2:6], (2, 1), edge=edge)


def test_wide_correlations_in_pieces(device, rng):
    """More results in a row than are made together."""
    x, y = rng.standard_normal((2, 1, 2, 420, 2), dtype=np.float32)
    check_correlation(mg.LocalCorrelation(4, 4, device=device)(x, y), x, y, (4, 4))


@pytest.mark.parametrize(
    "shifts", [(1, 2, 1, 1), (4, 3, 2, 2), (2, 1, 3, 7), (0, 1, 1, 20)], ids=str
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tall_correlations_in_bands(device, shifts, dtype, rng):
    """A row of the secondary serves several rows of results, which one thread makes."""
    x, y = rng.uniform(-1, 1, (2, 2, 41, 10, 13)).astype(dtype)
    kernel = mg.LocalCorrelation(*shifts, device=device)
    with threads(1):
        check_correlation(kernel(x, y), x, y, shifts[:2], shifts[2:])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 16, 21])
def test_equal_correlations_have_equal_bits(device, channels, rng):
    """Wherever a pixel lies: no product is fused or joined otherwise at an end of a row."""
    a, b = rng.standard_normal((2, 20, 1, 1, channels), dtype=np.float32)
    kernel = mg.LocalCorrelation(2, 1, device=device)
    kernel.secondary_edge_mode = mg.EdgeMode.CLAMP
    result = kernel(*(np.tile(constant, (1, 2, 11, 1)) for constant in (a, b)))
    assert_same_bytes(result, np.broadcast_to(result[:, :1, :1, :1], result.shape))


@pytest.mark.parametrize("shifts", [(3, 0, 5, 1), (2, 1, 60000, 7), (1, 1, 3, 65536)], ids=str)
def test_shifts_that_lie_apart(device, shifts, rng):
    """Nothing between them is read, so far ones take no more memory than near ones."""
    kernel = mg.LocalCorrelation(*shifts, device=device)
    x, y = rng.standard_normal((2, 1, 4, 5, 6), dtype=np.float32)
    near = shifts[:2], tuple(min(stride, 8) for stride in shifts[2:])  # as good as anywhere outside
    check_correlation(kernel(x, y), x, y, *near)


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_two_sources_of_any_format(device, kind, fmt, rng):
    shape = 3, 4, 5, 6
    sources = [filled(device, rng.uniform(0, 1, shape), fmt, kind=kind) for _ in range(2)]
    x, y = (load(read(images)) for images in sources)
    kernels = [*of_two_sources(device)[:3], mg.LocalCorrelation(1, 1, device=device)]
    for name, kernel in zip([*BINARY, "shifts"], kernels, strict=True):
        results = empty(device, (*shape[:3], 9 if name == "shifts" else 1), kind=kind)
        with Work(device) as work:
            kernel.encode(work.buffer, *sources, work.result(results))
        if name == "shifts":
            # An integer made a fraction rounds once more, in both factors.
            exact = oracle.correlation(x, y, (1, 1))
            ulps = ulps_for(4 * shape[3])
            assert_close(read(results), exact, ulps=ulps, scale=exact, floor=1e-30, nonzero=0)
        else:
            exact = oracle.weighted(x, y, BINARY[name][1])
            assert_close(read(results), exact, ulps=ulps_for(4 * shape[3] + 1), scale=exact)


def test_two_sources_on_any_number_of_threads(device, rng):
    x, y = rng.standard_normal((2, 2, 33, 35, 20), dtype=np.float32)
    kernels = [*of_two_sources(device), mg.LocalCorrelation(2, 2, device=device)]
    check_thread_independence(lambda: [kernel(x, y) for kernel in kernels])


# ---- rules


def error(kernel, words):
    return pytest.raises(ValueError, match=f"{type(kernel).__name__}: {re.escape(words)}")


@names
def test_empty_regions(device, name):
    kernel = getattr(mg, name)(device=device)
    x = np.ones((1, 6, 7, 2), np.float32)
    kernel.clip_rect_source = mg.Region((7, 0), (2, 2))
    with error(kernel, "clip_rect_source leaves nothing of a source that is 7 pixels wide"):
        kernel(x)
    kernel.clip_rect_source = mg.Region((0, 0), (2, 0))
    with error(kernel, "clip_rect_source leaves nothing of a source that is 6 pixels high"):
        kernel(x)


@names
def test_regions_that_are_refused(device, name):
    kernel = getattr(mg, name)(device=device)
    before = kernel.clip_rect_source
    with error(kernel, "clip_rect_source must not have negative parts, got origin (-1, 0, 0)"):
        kernel.clip_rect_source = mg.Region((-1, 0), (2, 2))
    with error(kernel, "clip_rect_source selects pixels; images are selected by clip_rect"):
        kernel.clip_rect_source = mg.Region((0, 0, 1), (2, 2, 1))
    assert kernel.clip_rect_source == before == mg.NO_CLIP


@pytest.mark.parametrize("name", ["primary_source_clip_rect", "secondary_source_clip_rect"])
def test_regions_of_two_sources_that_are_refused(device, name):
    for kernel in of_two_sources(device):
        with error(kernel, f"{name} must not have negative parts, got origin (0, -1, 0)"):
            setattr(kernel, name, mg.Region((0, -1), (2, 2)))
        with error(kernel, f"{name} selects pixels; images are selected by clip_rect"):
            setattr(kernel, name, mg.Region((0, 0, 1), (2, 2, 1)))
        assert getattr(kernel, name) == mg.NO_CLIP


@names
def test_regions_without_an_end(device, name, rng):
    """As wide as can be said is as wide as the image."""
    x = rng.standard_normal((1, 6, 7, 2), dtype=np.float32)
    kernel = getattr(mg, name)(device=device)
    expected = kernel(x)
    kernel.clip_rect_source = mg.Region((0, 0), (2**63 - 2, 2**62))
    assert_same_bytes(kernel(x), expected)


@names
def test_more_room_than_results(device, name):
    kernel = getattr(mg, name)(device=device)
    x = filled(device, np.ones((1, 3, 3, 2)))
    results = empty(device, (1, 4, 4, 2), fill=0.5)
    with Work(device) as work:
        work.result(results)
        with pytest.raises(ValueError, match=f"{name}: the result is .* clip_rect covers 4x4"):
            kernel.encode(work.buffer, x, results)
    assert (read(results) == 0.5).all()


def test_sources_that_do_not_match(device):
    x = np.ones((1, 3, 4, 5), np.float32)
    for kernel in [
        *(make(device) for make, _ in BINARY.values()),
        mg.LocalCorrelation(device=device),
    ]:
        with error(kernel, "the primary offers 5 feature channels, but the secondary 4"):
            kernel(x, x[..., :4])
        with error(kernel, "the width read of the primary is 4, but of the secondary 3"):
            kernel(x, x[:, :, :3])
        with error(kernel, "secondary_stride_in_pixels_x must be 1, got 2"):
            kernel.secondary_stride_in_pixels_x = 2
        kernel.secondary_source_clip_rect = mg.Region((0, 3), (4, 4))
        with error(kernel, "secondary_source_clip_rect leaves nothing of a source that is 3"):
            kernel(x, x)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("window_in_x", -1, "must not be negative, got -1"),
        ("window_in_y", 65537, "must be at most 65536, got 65537"),
        ("stride_in_x", 0, "must be at least 1, got 0"),
        ("stride_in_y", 65537, "must be at most 65536, got 65537"),
    ],
)
def test_shifts_that_are_refused(device, name, value, words):
    kernel = mg.LocalCorrelation(1, 2, 3, 4, device=device)
    with error(kernel, f"{name} {words}"):
        setattr(kernel, name, value)
    with error(kernel, f"{name} {words}"):
        mg.LocalCorrelation(**{name: value}, device=device)
    assert (kernel.window_in_x, kernel.window_in_y) == (1, 2)
    assert (kernel.stride_in_x, kernel.stride_in_y) == (3, 4)


def test_too_many_shifts_for_an_image(device):
    kernel = mg.LocalCorrelation(60000, 0, device=device)
    with pytest.raises(ValueError, match=r"LocalCorrelation: .* slices, got 1 images of 120001"):
        kernel(np.ones((1, 1, 1, 1), np.float32), np.ones((1, 1, 1, 1), np.float32))


def test_there_is_no_state(device):
    x = np.ones((1, 2, 2, 2), np.float32)
    for name in cases.UNARY:
        assert getattr(mg, name)(device=device)(x, with_state=True)[1] is None
    for kernel in of_two_sources(device):
        assert kernel(x, x, with_state=True)[1] is None


def test_copies_and_pickles(device, rng):
    x, y = rng.standard_normal((2, 1, 5, 6, 3), dtype=np.float32)
    unary = mg.ReduceFeatureChannelsSum(device=device)
    unary.weight = 0.25
    unary.clip_rect_source = mg.Region((1, 1), (3, None))
    binary = mg.LocalCorrelation(2, 1, 1, 3, device=device)
    binary.secondary_source_clip_rect = mg.Region((0, 0), (6, 5))
    weighted = mg.ReduceFeatureChannelsAndWeightsSum(True, device=device)
    for kernel, sources in [(unary, (x,)), (binary, (x, y)), (weighted, (x, y))]:
        expected = kernel(*sources)
        for twin in (copy.copy(kernel), pickle.loads(pickle.dumps(kernel)).copy(device)):
            assert repr(twin) == repr(kernel)
            assert_same_bytes(twin(*sources), expected)
    assert repr(weighted).startswith(
        "ReduceFeatureChannelsAndWeightsSum(do_weighted_sum_by_non_zero_weights=True, "
    )
    assert "window_in_x=2, window_in_y=1, stride_in_x=1, stride_in_y=3" in repr(binary)


def test_bases_are_not_made(device):
    for base in (mg.ReduceUnary, mg.ReduceBinary):
        with pytest.raises(TypeError, match="No constructor defined"):
            base(device=device)
