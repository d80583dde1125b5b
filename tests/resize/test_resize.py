"""Resize, crop and grid sample kernels against the oracle, and the rules of their encodes."""

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, store
from tests.images import Work, empty, filled, read
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.resize import cases, oracle
from tests.resize.oracle import Resize
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    rng_for,
    ulps_for,
)

EDGES = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}
FEW = cases.REGIONS[:3]
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16])


# --- Running kernels ------------------------------------------------------------


def resizer(r, device):
    """Return the kernel, with every property set."""
    kernel = mg.ResizeBilinear(*r.size, r.align_corners, device=device)
    kernel.offset, kernel.edge_mode = r.offset, EDGES[r.edge]
    return kernel


def check(actual, exact, scale, *, nonzero=0.25):
    """Compare: two weights, two products and a sum along each axis, or four of each at once.

    `scale` is the same result of magnitudes.
    """
    ulps = ulps_for(10, actual.dtype)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=nonzero)


def check_resize(r, actual, source, size=None, *, nonzero=0.25):
    exact, scale = oracle.resize(r, source, size), oracle.resize(r, np.abs(source), size)
    check(actual, exact, scale, nonzero=nonzero)


def check_crops(actual, source, size, regions, offset=(0, 0), *, nonzero=0.25):
    exact, scale = (
        oracle.crop_and_resize(x, size, regions, offset) for x in (source, np.abs(source))
    )
    check(actual, exact, scale, nonzero=nonzero)


def check_samples(actual, image, places, *, nonzero=0.25, **how):
    exact, scale = (oracle.grid_sample(x, places, **how) for x in (image, np.abs(image)))
    check(actual, exact, scale, nonzero=nonzero)


def places_in(rng, shape, size, beyond=1.5):
    """Positions, some outside an image of `size`; every fifth on a pixel."""
    places = rng.uniform(-beyond, np.array(size) - 1 + beyond, (*shape, 2)).astype(np.float32)
    places[..., ::5, :] = np.rint(places[..., ::5, :])
    return places


# --- Resize ---------------------------------------------------------------------


@pytest.mark.parametrize("align", [False, True], ids=["positions", "aligned"])
@dtypes
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_resize(device, case, dtype, align, rng):
    r = Resize(case.size, align)
    x = rng.standard_normal(case.shape).astype(dtype)
    y, state = resizer(r, device)(x, with_state=True)
    assert (y.dtype, y.shape, state) == (dtype, case.result_shape, None)
    check_resize(r, y, x.astype(np.float64))


def test_printed_values_of_resize(device):
    row = np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1)
    for align, expected in ((False, [1, 7 / 3, 11 / 3]), (True, [1, 2.5, 4])):
        y = mg.ResizeBilinear(3, 1, align, device=device)(row)
        # A place and a weight in float32, two products and their sum: five halves of an ULP.
        np.testing.assert_allclose(y.ravel(), expected, rtol=3e-7)


@pytest.mark.parametrize("align", [False, True])
@dtypes
def test_whole_factors_are_upsampling(device, dtype, align, rng):
    x = rng.standard_normal((2, 5, 4, 7)).astype(dtype)
    expected = mg.UpsamplingBilinear(3, 7, align, device=device)(x)
    y = mg.ResizeBilinear(12, 35, align, device=device)(x)
    if device.kind == "cpu":
        assert_same_bytes(y, expected)
    else:
        check_resize(Resize((12, 35), align), y, x.astype(np.float64))


def test_sizes_that_divide_pick_pixels(device, rng):
    x = rng.standard_normal((2, 6, 12, 5), dtype=np.float32)
    assert_exact(mg.ResizeBilinear(4, 2, device=device)(x), x[:, ::3, ::3])
    assert_exact(mg.ResizeBilinear(12, 6, device=device)(x), x)
    y = mg.ResizeBilinear(12, 6, True, device=device)(x)
    assert_exact(y, x)


def test_a_result_on_a_pixel_is_that_pixel(device):
    """What lies beside it is not read, were it infinite."""
    if device.kind != "cpu":
        pytest.skip("whether MPS multiplies by a weight of 0 is not documented")
    x = np.array([[1, np.inf, 3], [np.nan, np.inf, 5]], np.float32).reshape(1, 2, 3, 1)
    y = mg.ResizeBilinear(2, 1, True, device=device)(x)
    assert_exact(y.ravel(), [1, 3])
    crops = mg.CropAndResizeBilinear(2, 2, [(0, 0, 1, 1)], device=device)(x)
    assert_exact(crops.ravel(), [1, 3, np.nan, 5])
    places = np.array([[0, 0], [2, 1], [3, 0], [-1, 0]], np.float32).reshape(1, 1, 4, 2)
    assert_exact(mg.GridSample(device=device)(x, places).ravel(), [1, 5, 0, 0])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 9])
def test_a_pixel_whose_weight_is_too_small_is_not_read(device, channels):
    """The product of two weights may be 0 in float32, were the pixel infinite."""
    if device.kind != "cpu":
        pytest.skip("whether MPS multiplies by a weight of 0 is not documented")
    x = np.ones((1, 2, 2, channels), np.float32)
    x[0, 1, 1] = np.inf
    places = np.float32([[1e-23, 1e-23], [1e-22, 1e-22]]).reshape(1, 1, 2, 2)
    y = mg.GridSample(device=device)(x, places)
    assert_exact(y[0, 0], np.repeat([[1], [np.inf]], channels, axis=1))


@pytest.mark.parametrize("channels", [1, 3, 8, 37])
def test_means_of_the_largest_halves_do_not_overflow(device, channels, rng):
    x = np.full((1, 9, 7, channels), 65504, np.float16)
    places = rng.uniform(0, 6, (1, 5, 6, 2)).astype(np.float32)
    for y in (
        mg.ResizeBilinear(11, 14, device=device)(x),
        mg.ResizeBilinear(5, 13, True, device=device)(x),
        mg.CropAndResizeBilinear(5, 6, [(0.1, 0.1, 0.7, 0.8)], device=device)(x),
        mg.GridSample(device=device)(x, places),
    ):
        assert_exact(y, np.full(y.shape, 65504.0))


@settings(max_examples=50)
@given(cases.resizes())
def test_random_offsets_edges_and_clip_rectangles(device, drawn):
    shape, r, size, origin, extent = drawn
    rng = rng_for(str(drawn))
    clip = tuple(min(extent[a], size[a] - origin[a]) for a in (0, 1))
    inside = np.s_[:, origin[1] : origin[1] + clip[1], origin[0] : origin[0] + clip[0]]
    kernel = resizer(r, device)
    kernel.clip_rect = mg.Region(origin, extent)
    x = grid(rng, shape)
    results = empty(device, (shape[0], size[1], size[0], shape[3]), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    check_resize(r, texels[inside], x, clip, nonzero=0)
    texels[inside] = 0.5
    assert (texels == 0.5).all()


# --- Crop and resize ------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 3), (1, 9), (16, 17)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 8, 21, 70])
def test_crop_and_resize(device, size, dtype, channels, rng):
    x = rng.standard_normal((2, 9, 17, channels)).astype(dtype)
    y = mg.CropAndResizeBilinear(*size, cases.REGIONS, device=device)(x)
    assert (y.dtype, y.shape) == (dtype, (12, *size[::-1], channels))
    check_crops(y, x.astype(np.float64), size, cases.REGIONS)


def test_printed_values_of_crops(device):
    x = np.arange(9, dtype=np.float32).reshape(3, 3, 1)
    regions = [(0, 0, 0.5, 0.5), (0.25, 0.25, 1, 1)]
    y = mg.CropAndResizeBilinear(2, 2, regions, device=device)(x)
    assert_exact(y[..., 0], [[[0, 1], [3, 4]], [[2, 0], [0, 0]]])


def test_any_regions(device, rng):
    """Also those whose numbers are not exact, of which the far edge is."""
    regions = [(0.1, 0.3, 0.9, 0.7), *rng.uniform(-0.5, 1, (40, 4)).tolist()]
    x = rng.standard_normal((1, 7, 12, 3), dtype=np.float32)
    y = mg.CropAndResizeBilinear(7, 5, regions, device=device)(x)
    check_crops(y, x, (7, 5), regions)
    assert_exact(y[0, -1, -1], x[0, -1, -1])


def test_crops_are_in_the_order_of_sources(device, rng):
    """Encoded into images of the caller's, and one image on its own."""
    x = rng.standard_normal((3, 5, 9, 6), dtype=np.float32)
    kernel = mg.CropAndResizeBilinear(4, 3, FEW, device=device)
    sources, results = filled(device, x), empty(device, (9, 3, 4, 6))
    with Work(device) as work:
        assert kernel.encode(work.buffer, sources, work.result(results)) is results
        created = work.result(kernel.encode(work.buffer, sources[1], allocator=mg.DEFAULT))
        listed = work.result(kernel.encode_batch(work.buffer, list(sources), allocator=mg.DEFAULT))
        pair = kernel.encode(work.buffer, sources[1], with_state=True, allocator=mg.DEFAULT)
    check_crops(read(results), x, (4, 3), FEW)
    assert isinstance(created, mg.ImageBatch)
    assert len(created) == 3
    assert_same_bytes(read(created), read(results)[3:6])
    assert_same_bytes(read(listed), read(results))
    assert (len(pair[0]), pair[1]) == (3, None)
    one = mg.CropAndResizeBilinear(4, 3, FEW[1:2], device=device)
    single = empty(device, (1, 3, 4, 6))[0]
    with Work(device) as work:
        one.encode(work.buffer, sources[2], work.result(single))
    assert_same_bytes(read(single), read(results)[7:8])


def test_crops_are_chosen_by_z(device, rng):
    """The z of offset and clip rectangle counts results."""
    x = rng.standard_normal((3, 5, 9, 6), dtype=np.float32)
    kernel = mg.CropAndResizeBilinear(4, 3, FEW, device=device)
    kernel.offset, kernel.clip_rect = (0, 0, 2), mg.Region((0, 0, 1), (4, 3, 6))
    results = empty(device, (9, 3, 4, 6), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    exact = oracle.crop_and_resize(x, (4, 3), FEW)[2:8]
    check(texels[1:7], exact, np.maximum(np.abs(exact), 2))
    assert (texels[[0, 7, 8]] == 0.5).all()


def test_crops_with_an_offset_and_a_clip_rectangle(device, rng):
    """The clip rectangle's origin is the region's first corner, also beyond a result's size."""
    x = rng.standard_normal((2, 9, 9, 5), dtype=np.float32)
    kernel = mg.CropAndResizeBilinear(5, 3, FEW, device=device)
    kernel.offset, kernel.clip_rect = (1, -2), mg.Region((2, 1), (4, 2))
    results = empty(device, (6, 4, 7, 5), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    inside = np.s_[:, 1:3, 2:6]
    exact, scale = (
        oracle.crop_and_resize(s, (5, 3), FEW, (1, -2))[:, :2, :4] for s in (x, np.abs(x))
    )
    check(texels[inside], exact, scale)
    texels[inside] = 0.5
    assert (texels == 0.5).all()


# --- Grid sample ----------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("positions", [True, False], ids=["positions", "displacements"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 8, 17, 33, 1100])
def test_grid_sample(device, channels, positions, edge, dtype, rng):
    kernel = mg.GridSample(device=device)
    kernel.primary_edge_mode = EDGES[edge]
    kernel.use_grid_value_as_input_coordinate = positions
    x = rng.standard_normal((2, 5, 6, channels)).astype(dtype)
    size = (2, 3, 4) if channels > 1000 else (2, 4, 11)
    places = places_in(rng, size, (6, 5))
    if not positions:
        places -= np.stack(np.broadcast_arrays(np.arange(size[2]), np.arange(size[1])[:, None]), -1)
    y, state = kernel(x, places, with_state=True)
    assert (y.dtype, y.shape, state) == (dtype, (*size, channels), None)
    check_samples(y, x.astype(np.float64), places, positions=positions, edge=edge)


@pytest.mark.parametrize("channels", range(2, 9))
def test_channels_that_are_alike_are_sampled_alike(device, channels, rng):
    image = np.repeat(rng.standard_normal((1, 20, 30, 1)).astype(np.float32), channels, axis=3)
    grid = rng.uniform(-3, 33, (1, 40, 50, 2)).astype(np.float32)
    y = mg.GridSample(device=device)(image, grid)
    assert_exact(y, np.repeat(y[..., :1], channels, axis=3))


def test_printed_values_of_grid_sample(device):
    x = np.array([[1, 2], [3, 4]], np.float32).reshape(2, 2, 1)
    places = np.array([[0.5, 0.5], [1.5, 0]], np.float32).reshape(1, 2, 2)
    assert_exact(mg.GridSample(device=device)(x, places).ravel(), [2.5, 1])


@pytest.mark.parametrize("width", [1, 5, 255, 256, 257, 700])
@pytest.mark.parametrize("edge", EDGES)
def test_long_rows_of_results(device, width, edge, rng):
    """Runs of results are worked on together, vectors of them where the processor can."""
    kernel = mg.GridSample(device=device)
    kernel.primary_edge_mode = EDGES[edge]
    x = rng.standard_normal((1, 6, 300, 3), dtype=np.float32)
    places = places_in(rng, (1, 2, width), (300, 6))
    check_samples(kernel(x, places), x, places, edge=edge)
    kernel.use_grid_value_as_input_coordinate = False
    y = kernel(x, places)
    check_samples(y, x, places, edge=edge, positions=False, nonzero=0.05)


def test_displacements_keep_their_digits_far_from_the_origin(device):
    """A position that rounds to float32 would be wrong by thousandths there."""
    if device.kind != "cpu":
        pytest.skip("how MPS adds them is not documented")
    x = np.zeros((1, 1, 16384, 1), np.float32)
    x[0, 0, 1::2] = 1
    places = np.zeros((1, 1, 16384, 2), np.float32)
    places[..., 0] = 0.7890123
    kernel = mg.GridSample(device=device)
    kernel.use_grid_value_as_input_coordinate = False
    y = kernel(x, places)
    assert_close(y[0, 0, 16000, 0], np.float64(places[0, 0, 0, 0]), ulps=2)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("positions", [True, False], ids=["positions", "displacements"])
def test_positions_far_away_and_not_a_number(device, edge, positions):
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3, 1)
    far = [1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**63, np.nan]
    places = np.zeros((1, 1, 2 * len(far), 2), np.float32)
    places[0, 0, : len(far), 0] = places[0, 0, len(far) :, 1] = far
    kernel = mg.GridSample(device=device)
    kernel.primary_edge_mode = EDGES[edge]
    kernel.use_grid_value_as_input_coordinate = positions
    y = kernel(x, places)
    assert_exact(y, oracle.grid_sample(x, places, positions=positions, edge=edge), nonzero=0)
    assert np.isnan(y).sum() == 2
    for offset in (2**31 - 1, -(2**31) + 1):
        primary, secondary = filled(device, x), filled(device, places[:, :, :1])
        result = empty(device, (1, 1, 1, 1))
        kernel.primary_offset = (offset, 0)
        with Work(device) as work:
            kernel.encode(work.buffer, primary, secondary, work.result(result))
        assert read(result).item() in ({0.0} if edge == "zero" else {1.0, 3.0})


def test_offsets_and_edges_of_both_sources(device, rng):
    x = rng.standard_normal((2, 5, 6, 3), dtype=np.float32)
    places = places_in(rng, (2, 4, 5), (6, 5), beyond=0)
    kernel = mg.GridSample(device=device)
    kernel.primary_offset, kernel.secondary_offset = (1, -2), (-1, 2)
    kernel.clip_rect = mg.Region((1, 2), (5, 3))
    for edge, filler in (("zero", "constant"), ("clamp", "edge")):
        kernel.secondary_edge_mode = EDGES[edge]
        results = empty(device, (2, 6, 7, 3), fill=0.5)
        with Work(device) as work:
            primary, secondary = filled(device, x), filled(device, places)
            kernel.encode(work.buffer, primary, secondary, work.result(results))
        texels = read(results)
        read_places = np.pad(places, ((0, 0), (0, 1), (1, 0), (0, 0)), filler)[:, 2:5, :5]
        inside = np.s_[:, 2:5, 1:6]
        check_samples(texels[inside], x, read_places, offset=(1, -2), nonzero=0.1)
        texels[inside] = 0.5
        assert (texels == 0.5).all()


@dtypes
def test_grids_of_either_dtype(device, dtype, rng):
    x = rng.standard_normal((2, 5, 6, 3)).astype(dtype)
    for of_grid in (np.float32, np.float16):
        places = places_in(rng, (2, 4, 5), (6, 5)).astype(of_grid)
        y = mg.GridSample(device=device)(x, places)
        assert y.dtype == dtype
        check_samples(y, x.astype(np.float64), places)


# --- All of them ----------------------------------------------------------------


def everything(device):
    """Name, kernel, sources, and the check of a result of each class, for (N, 5, 9, C) images."""

    def places(x):
        return places_in(rng_for(str(x.shape)), (len(x), 4, 5), (9, 5))

    def load_places(x, fmt):
        return load(store(places(x), fmt))

    yield (
        "resize",
        mg.ResizeBilinear(7, 4, device=device),
        lambda _x: (),
        (4, 7),
        1,
        lambda y, x: check_resize(Resize((7, 4)), y, x),
    )
    yield (
        "crop",
        mg.CropAndResizeBilinear(4, 3, FEW, device=device),
        lambda _x: (),
        (3, 4),
        3,
        lambda y, x: check_crops(y, x, (4, 3), FEW),
    )
    yield (
        "grid",
        mg.GridSample(device=device),
        lambda x: (load_places(x, "float32"),),
        (4, 5),
        1,
        lambda y, x: check_samples(y, x, load_places(x, "float32")),
    )


NAMES = ["resize", "crop", "grid"]
names = pytest.mark.parametrize("name", NAMES)


def one(device, name):
    """Return all but the name of one of `everything`."""
    return next(found[1:] for found in everything(device) if found[0] == name)


@names
@pytest.mark.parametrize("holder", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, name, fmt, holder, rng):
    kernel, more, size, regions, compare = one(device, name)
    if name == "crop" and holder == "container":
        pytest.skip("see the rejections")
    x = load(store(rng.uniform(0, 1, (3, 5, 9, 6)), fmt))
    sources = [filled(device, x, fmt, kind=holder)]
    sources += [filled(device, y, kind=holder) for y in more(x)]
    results = empty(device, (3 * regions, *size, 6), fmt, kind=holder)
    with Work(device) as work:
        kernel.encode(work.buffer, *sources, work.result(results))
    compare(read(results), x)


@names
@pytest.mark.parametrize(
    ("source", "result"), [("float16", "float32"), ("float32", "float16"), ("unorm8", "float32")]
)
def test_a_destination_may_be_of_another_format(device, name, source, result, rng):
    kernel, more, size, regions, compare = one(device, name)
    for channels in (5, 32):
        x = load(store(rng.uniform(0, 1, (2, 5, 9, channels)), source))
        sources = [filled(device, x, source), *(filled(device, y) for y in more(x))]
        results = empty(device, (2 * regions, *size, channels), result)
        with Work(device) as work:
            kernel.encode(work.buffer, *sources, work.result(results))
        compare(read(results), x)


@names
@pytest.mark.parametrize("fmt", ["float32", "float16", "unorm8"])
def test_channel_windows(device, name, fmt, rng):
    kernel, more, size, regions, compare = one(device, name)
    prefix = "primary_" if name == "grid" else ""
    setattr(kernel, f"{prefix}source_feature_channel_offset", 4)
    setattr(kernel, f"{prefix}source_feature_channel_max_count", 6)
    kernel.destination_feature_channel_offset = 8
    x = load(store(rng.uniform(0, 1, (2, 5, 9, 13)), fmt))
    used = x[..., 4:10]
    sources = [filled(device, x, fmt), *(filled(device, y) for y in more(used))]
    results = empty(device, (2 * regions, *size, 20), "float32", fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, *sources, work.result(results))
    texels = read(results)
    compare(texels[..., 8:14], used)
    assert (texels[..., :8] == 0.5).all()
    assert (texels[..., 16:] == 0.5).all()


@names
@dtypes
def test_arrays_with_and_without_out(device, name, dtype, rng):
    kernel, more, size, regions, _ = one(device, name)
    x = rng.standard_normal((2, 5, 9, 7)).astype(dtype)
    sources = x, *(y.astype(np.float32) for y in more(x))
    y = kernel(*sources)
    assert y.shape == (2 * regions, *size, 7)
    with Guarded(y.shape, dtype, skew=1) as out:
        assert kernel(*sources, out=out) is out
        assert_same_bytes(out, y)
    single = kernel(*(s[1] for s in sources))
    assert_same_bytes(single, y[regions:] if name == "crop" else y[1])


@names
@dtypes
def test_results_do_not_depend_on_threads_or_runs(device, name, dtype, rng):
    kernel, more, *_ = one(device, name)
    x = rng.standard_normal((16, 5, 9, 140)).astype(dtype)
    sources = x, *(y.astype(np.float32) for y in more(x))
    check_thread_independence(lambda: [kernel(*sources)])


@names
@pytest.mark.parametrize(
    ("channels", "dtype"), [(27, np.float32), (32, np.float16), (1044, np.float32)]
)
def test_large_results(device, name, dtype, channels, rng):
    """Those that go past the caches: all that a sample gives, it gives everywhere."""
    if device.kind != "cpu":
        pytest.skip("only the CPU device has caches to pass by")
    kernel, more, size, regions, _ = one(device, name)
    x = rng.standard_normal((1, 5, 9, channels)).astype(dtype)
    sources = x, *(y.astype(np.float32) for y in more(x))
    y = kernel(*sources)
    assert y.any()
    repeat = (34 << 20) // y.nbytes + 1
    many = kernel(*(np.tile(s, (repeat, 1, 1, 1)) for s in sources))
    assert many.nbytes > 32 << 20
    assert_same_bytes(many, np.tile(y, (repeat, 1, 1, 1)))
    assert many.shape == (repeat * regions, *size, channels)


def test_work_runs_when_it_is_committed(device):
    """With the properties of the encode and the pixels of the commit."""
    resize = mg.ResizeBilinear(4, 1, device=device)
    sample = mg.GridSample(device=device)
    x, places = empty(device, (1, 1, 2, 1)), filled(device, [[[[1, 0], [0, 0]]]])
    resized, sampled = empty(device, (1, 1, 4, 1)), empty(device, (1, 1, 2, 1))
    with Work(device) as work:
        resize.encode(work.buffer, x, work.result(resized))
        sample.encode(work.buffer, x, places, work.result(sampled))
        resize.offset = (-9, -9)
        sample.use_grid_value_as_input_coordinate = False
        x[0].write(np.array([3, 4], np.float32).reshape(1, 2, 1))
    assert_exact(read(resized).ravel(), [3, 3.5, 4, 4])
    assert_exact(read(sampled).ravel(), [4, 3])


def test_images_are_chosen_by_z(device, rng):
    x = rng.standard_normal((4, 5, 9, 5), dtype=np.float32)
    places = places_in(rng, (4, 3, 4), (9, 5))
    resize, sample = mg.ResizeBilinear(4, 3, device=device), mg.GridSample(device=device)
    resize.offset = sample.primary_offset = (0, 0, 2)
    sample.secondary_offset = (0, 0, 1)
    resize.clip_rect = sample.clip_rect = mg.Region((0, 0, 1), (4, 3, 2))
    results = [empty(device, (4, 3, 4, 5), fill=0.5) for _ in range(2)]
    with Work(device) as work:
        source = filled(device, x)
        resize.encode(work.buffer, source, work.result(results[0]))
        sample.encode(work.buffer, source, filled(device, places), work.result(results[1]))
    resized, sampled = (read(images) for images in results)
    check_resize(Resize((4, 3)), resized[1:3], x[2:])
    check_samples(sampled[1:3], x[2:], places[1:3])
    assert (resized[[0, 3]] == 0.5).all()
    assert (sampled[[0, 3]] == 0.5).all()


def test_read_counts_of_temporaries(device):
    """A source is read once by an encode, however many its regions."""
    ones = filled(device, np.ones((2, 3, 3, 5)))
    places = filled(device, np.ones((4, 1, 1, 2)))
    same = mg.ResizeBilinear(3, 3, device=device)
    crop = mg.CropAndResizeBilinear(2, 2, [(0, 0, 1, 1), (0, 0, 0.5, 0.5)], device=device)
    sample = mg.GridSample(device=device)
    with Work(device) as work:
        images = same.encode(work.buffer, ones)
        crops = crop.encode(work.buffer, images)
        assert [image.read_count for image in (*images, *crops)] == [0, 0, 1, 1, 1, 1]
        y = work.result(sample.encode(work.buffer, crops, places, allocator=mg.DEFAULT))
        assert [image.read_count for image in crops] == [0, 0, 0, 0]
    assert_exact(read(y), np.ones((4, 1, 1, 5)))


def test_created_results_have_the_size(device):
    source = filled(device, np.zeros((1, 4, 5, 6)))[0]
    grid_image = filled(device, np.zeros((1, 7, 8, 2)))[0]
    for kernel in (
        mg.ResizeBilinear(15, 8, device=device),
        mg.CropAndResizeBilinear(15, 8, FEW, device=device),
    ):
        found = kernel.destination_descriptor(source)
        assert (found.width, found.height, found.feature_channels) == (15, 8, 6)
        assert found.number_of_images == 1
        assert tuple(kernel.offset) == (0, 0, 0)
    found = mg.GridSample(device=device).destination_descriptor([source, grid_image])
    assert (found.width, found.height, found.feature_channels) == (8, 7, 6)


def test_no_kernel_has_a_state(device):
    x, places = filled(device, np.zeros((1, 2, 2, 3))), filled(device, np.zeros((1, 2, 2, 2)))
    assert mg.ResizeBilinear(2, 2, device=device).result_state(x, x) is None
    assert mg.CropAndResizeBilinear(2, 2, FEW[:1], device=device).result_state(x, x) is None
    assert mg.GridSample(device=device).result_state(x, places, x) is None


# --- Parameters and copies ------------------------------------------------------


def test_parameters(device):
    kernel = mg.ResizeBilinear(resize_width=5, resize_height=4, device=device)
    assert (kernel.resize_width, kernel.resize_height, kernel.align_corners) == (5, 4, False)
    assert repr(kernel) == (
        f"ResizeBilinear(resize_width=5, resize_height=4, align_corners=False, "
        f"device='{device.kind}')"
    )
    crop = mg.CropAndResizeBilinear(5, np.int64(4), np.array([[0, 0.25, 0.5, 1]]), device=device)
    assert (crop.resize_width, crop.resize_height, crop.number_of_regions) == (5, 4, 1)
    assert repr(crop) == (
        f"CropAndResizeBilinear(resize_width=5, resize_height=4, "
        f"regions={crop.regions!r}, device='{device.kind}')"
    )
    assert np.array_equal(crop.regions, [(0, 0.25, 0.5, 1)])
    sample = mg.GridSample(device=device)
    assert sample.use_grid_value_as_input_coordinate is True
    assert repr(sample) == f"GridSample(device='{device.kind}')"
    for kernel, name in (
        (crop, "regions"),
        (crop, "resize_width"),
        (mg.ResizeBilinear(1, 1, device=device), "align_corners"),
    ):
        with rejects(AttributeError, f"{type(kernel).__name__}.{name} is read-only"):
            setattr(kernel, name, 1)


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
def test_copies_have_every_setting(device, duplicate):
    kernel = mg.ResizeBilinear(3, 2, True, device=device)
    kernel.offset, kernel.edge_mode = (1, -2, 0), mg.EdgeMode.CLAMP
    twin = duplicate(kernel)
    assert (tuple(twin.offset), twin.edge_mode) == ((1, -2, 0), mg.EdgeMode.CLAMP)
    assert repr(twin) == repr(kernel)
    kernel = mg.CropAndResizeBilinear(3, 2, cases.REGIONS, device=device)
    kernel.label = "crop"
    twin = duplicate(kernel)
    assert (twin.label, twin.regions) == ("crop", kernel.regions)
    assert repr(twin) == repr(kernel)
    kernel = mg.GridSample(device=device)
    kernel.use_grid_value_as_input_coordinate = False
    kernel.primary_offset, kernel.secondary_edge_mode = (1, -2, 0), mg.EdgeMode.CLAMP
    twin = duplicate(kernel)
    assert twin is not kernel
    assert twin.use_grid_value_as_input_coordinate is False
    assert tuple(twin.primary_offset) == (1, -2, 0)
    assert twin.secondary_edge_mode == mg.EdgeMode.CLAMP


# --- Rejections -----------------------------------------------------------------

X = np.zeros((2, 5, 9, 4), np.float32)


@pytest.mark.parametrize("name", ["resize_width", "resize_height"])
@pytest.mark.parametrize("value", [0, -1, 16385])
def test_rejects_sizes(device, name, value):
    sizes = {"resize_width": 2, "resize_height": 2, name: value}
    words = f"{name} must be from 1 to 16384, got {value}"
    with rejects(ValueError, f"ResizeBilinear: {words}"):
        mg.ResizeBilinear(**sizes, device=device)
    with rejects(ValueError, f"CropAndResizeBilinear: {words}"):
        mg.CropAndResizeBilinear(**sizes, regions=FEW, device=device)


def test_rejects_sizes_that_are_not_integers(device):
    for value in ("2", 1.5, None):
        with pytest.raises(TypeError, match="resize_width must be an int"):
            mg.ResizeBilinear(value, 2, device=device)
        with pytest.raises(TypeError, match="resize_height must be an int"):
            mg.CropAndResizeBilinear(2, value, FEW, device=device)


REGIONS_REJECTED = {
    "none": ([], "regions must have shape (R, 4), of each x, y, width and height, got (0,)"),
    "empty": (np.zeros((0, 4)), "regions must hold at least one"),
    "one": ((0, 0, 1, 1), "regions must have shape (R, 4)"),
    "three numbers": ([(0, 0, 1)], "height, got (1, 3)"),
    "nan": ([(0, 0, 1, 1), (0, np.nan, 1, 1)], "region 1 must be finite, got (0, nan, 1, 1)"),
    "infinite": ([(0, 0, np.inf, 1)], "region 0 must be finite"),
    "infinite edge": ([(1.7e308, 0, 1.7e308, 1)], "region 0 must be finite"),
}


@pytest.mark.parametrize(("regions", "words"), REGIONS_REJECTED.values(), ids=REGIONS_REJECTED)
def test_rejects_regions(device, regions, words):
    with rejects(ValueError, f"CropAndResizeBilinear: {words}" if "R, 4" in words else words):
        mg.CropAndResizeBilinear(2, 2, regions, device=device)


def test_rejects_arrays(device):
    sample = mg.GridSample(device=device)
    places = np.zeros((2, 3, 3, 2), np.float32)
    for kernel, arguments, error, words in (
        (mg.ResizeBilinear(2, 2, device=device), (X.astype(np.float64),), TypeError, "source must"),
        (mg.CropAndResizeBilinear(2, 2, FEW, device=device), (X[0, 0],), ValueError, "source must"),
        (sample, (X, places[..., :1].copy()), ValueError, "a grid of 2 channels, x and y, but it "),
        (sample, (X, X), ValueError, "secondary is a grid of 2 channels, x and y, but it offers 4"),
        (sample, (X, places[:1]), ValueError, "both must be one image, or batches of one length"),
    ):
        with rejects(error, words):
            kernel(*arguments)
    with rejects(ValueError, "out must have shape (6, 2, 2, 4), got (2, 2, 2, 4)"):
        mg.CropAndResizeBilinear(2, 2, FEW, device=device)(X, out=X[:, :2, :2].copy())


def test_rejects_crops_into_the_wrong_images(device):
    kernel = mg.CropAndResizeBilinear(2, 2, FEW, device=device)
    sources, results = filled(device, X), empty(device, (6, 2, 2, 4))
    container = empty(device, (3, 2, 2, 4), kind="container")

    def encode(error, words, *arguments, **options):
        with Work(device) as work, rejects(error, words):
            kernel.encode(work.buffer, *arguments, **options)

    words = "2 source images and 3 regions make 6 results, but destination has 5 images"
    encode(ValueError, words, sources, list(results)[:5])
    encode(ValueError, "1 source images and 3 regions make 3 results", sources[0], results)
    encode(ValueError, "3 results, but destination has 1 images", sources[0], container)
    few = list(results)[:3]
    encode(ValueError, "every image of a batch must hold one", container, few)
    encode(ValueError, "every image of a batch must hold one", container)
    encode(ValueError, "with_state goes with", sources, results, with_state=True)
    encode(TypeError, "destination_state must be None", sources, results, destination_state=[])
    kernel.edge_mode = mg.EdgeMode.CLAMP
    encode(ValueError, "edge_mode must be ZERO, for what lies outside", sources, results)
    with rejects(ValueError, "edge_mode must be ZERO"):
        kernel(X)


@pytest.mark.parametrize("axis", "xy")
@pytest.mark.parametrize("source", ["primary", "secondary"])
def test_rejects_strides_of_grid_samples(device, source, axis):
    kernel = mg.GridSample(device=device)
    name = f"{source}_stride_in_pixels_{axis}"
    for value in (0, 2):
        with rejects(ValueError, f"GridSample: {name} must be 1, got {value}"):
            setattr(kernel, name, value)
    assert getattr(kernel, name) == 1


def test_rejects_aliasing(device):
    images = empty(device, (1, 4, 4, 4))
    words = "destination shares memory with"
    with Work(device) as work, rejects(ValueError, f"ResizeBilinear: {words} source"):
        mg.ResizeBilinear(4, 4, device=device).encode(work.buffer, images, images)
    with Work(device) as work, rejects(ValueError, f"CropAndResizeBilinear: {words} source"):
        kernel = mg.CropAndResizeBilinear(4, 4, FEW[:1], device=device)
        kernel.encode(work.buffer, images, images)
    places = empty(device, (1, 4, 4, 2))
    with Work(device) as work, rejects(ValueError, f"GridSample: {words} primary"):
        mg.GridSample(device=device).encode(work.buffer, images, places, images)
