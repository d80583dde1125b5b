"""The kernels that copy against NumPy, the oracle and the printed examples; copies are exact."""

import hypothesis
import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, store
from tests.images import Work, empty, filled, read
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.reshape import cases, oracle
from tests.tolerance import Guarded, assert_close, assert_exact, assert_same_bytes, grid, ulps_for

edges = pytest.mark.parametrize("edge", cases.EDGES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16])
pads = pytest.mark.parametrize(("shape", "before", "after"), cases.PADS, ids=str)


def every_bit(device, shape, dtype, rng):
    """Random bits: infinities, zeros of both signs and denormals; NaN where bits are moved."""
    bits = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), shape, np.uint64)
    x = bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    x.flat[:: max(2, x.size // 7)] = -0.0
    if device.kind != "cpu":
        x[np.isnan(x)] = -np.inf  # what Metal makes of a NaN's payload is not documented
    return x


def make_pad(device, before, after, edge, fill=0.0):
    fills = fill if np.ndim(fill) else None
    kernel = mg.Pad(before, after, fills, device=device)
    kernel.edge_mode = getattr(mg.EdgeMode, edge.upper())
    if fills is None:
        kernel.fill_value = fill
    return kernel


# --- Reshape --------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(("shape", "result"), cases.RESHAPES, ids=str)
def test_reshape_is_numpys(device, shape, result, dtype, rng):
    x, g = (every_bit(device, shape, dtype, rng) for _ in range(2))
    g = g.reshape(-1, *result)
    forward, backward = mg.Reshape(device=device), mg.ReshapeGradient(device=device)
    y, states = forward(x, result, with_state=True)
    assert_same_bytes(y, x.reshape(-1, *result))
    assert_same_bytes(backward(g, x, states), g.reshape(shape))
    with Guarded(x[0].shape, dtype, skew=1) as out:
        out[...] = 0
        one, state = forward(x[0], result, with_state=True)
        assert_same_bytes(one, y[0])
        backward(g[0], x[0], state, out=out)
        assert_same_bytes(out, g[0].reshape(shape[1:]))
        out[np.isnan(out)] = 0


def test_a_call_within_a_reshape_has_a_shape_of_its_own(device, rng):
    """An allocator of the user's own may have the kernel do something else."""
    x, other = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 3, 8), (4, 1, 4)))
    kernel = mg.Reshape(device=device)
    made = []
    with Work(device) as work:

        def allocate(_command_buffer, descriptor, kernel):
            if not made:
                made.append(None)
                made[0] = kernel.encode(work.buffer, filled(device, other[None])[0], **own)
            return mg.Image(device, descriptor)

        own = {"allocator": mg.DEFAULT}
        result = kernel.encode(
            work.buffer,
            filled(device, x[None])[0],
            reshaped_width=4,
            reshaped_height=3,
            reshaped_feature_channels=4,
            allocator=allocate,
        )
        work.result([result, made[0]])
    assert_same_bytes(result.read(), x.reshape(3, 4, 4))
    assert_same_bytes(made[0].read(), other)


def test_reshape_takes_its_shape_as_numpy_does(device, rng):
    x = rng.standard_normal((2, 3, 4, 10), dtype=np.float32)
    kernel = mg.Reshape(device=device)
    assert_same_bytes(kernel(x, (1, 1, -1)), x.reshape(2, 1, 1, 120))
    assert_same_bytes(kernel(x, [-1, 5, 6]), x.reshape(2, 4, 5, 6))
    with Guarded((2, 6, 4, 5), skew=3) as out:
        assert kernel(x, out=out) is out
        assert_same_bytes(out, x.reshape(out.shape))
    half = np.empty((2, 6, 4, 5), np.float16)
    assert_same_bytes(kernel(x, (6, -1, 5), out=half), x.reshape(half.shape).astype(np.float16))


def test_reshape_with_apples_words(device, rng):
    x = grid(rng, (2, 2, 3, 4))
    forward, backward = mg.Reshape(device=device), mg.ReshapeGradient(device=device)
    sources = filled(device, x)
    words = {"reshaped_width": 4, "reshaped_height": 1, "reshaped_feature_channels": 6}
    with Work(device) as work:
        one = work.result(forward.encode(work.buffer, sources[0], allocator=mg.DEFAULT, **words))
        all_of_them, states = forward.encode_batch(
            work.buffer, sources, with_state=True, allocator=mg.DEFAULT, **words
        )
        copy = work.result(forward.encode(work.buffer, sources, allocator=mg.DEFAULT))
        back = work.result(
            backward.encode(work.buffer, all_of_them, sources, states, allocator=mg.DEFAULT)
        )
        work.result(all_of_them)
    assert (one.width, one.height, one.feature_channels) == (4, 1, 6)
    assert_exact(read(one), x[:1].reshape(1, 1, 4, 6))
    assert_exact(read(all_of_them), x.reshape(2, 1, 4, 6))
    assert_exact(read(copy), x)
    assert_exact(read(back), x)


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("from_format", DTYPES)
@pytest.mark.parametrize("to_format", DTYPES)
def test_reshape_between_formats(device, from_format, to_format, kind, rng):
    """Read exactly, or as the nearest float32, and rounded once."""
    sources = filled(device, rng.uniform(0, 1, (3, 5, 4, 6)), from_format, kind=kind)
    results = empty(device, (3, 2, 15, 4), to_format, kind=kind)
    with Work(device) as work:
        mg.Reshape(device=device).encode(work.buffer, sources, work.result(results))
    x = read(sources).reshape(3, 2, 15, 4)
    if from_format == to_format:
        assert_same_bytes(read(results), x)
    else:
        assert_close(read(results), load(x), ulps=ulps_for(1, DTYPES[to_format]) + 0.01)


def test_reshape_of_some_channels(device, rng):
    """Views of some of the channels have gaps between pixels."""
    x = grid(rng, (2, 3, 5, 12))
    sources, results = filled(device, x), empty(device, (2, 4, 5, 10), fill=0.5)
    parts, places = (
        [image.sub_image_with_feature_channel_range(4, 8) for image in images]
        for images in (sources, results)
    )
    back = empty(device, (2, 3, 5, 8))
    forward, backward = mg.Reshape(device=device), mg.ReshapeGradient(device=device)
    states = forward.result_state_batch(parts, places)
    with Work(device) as work:
        forward.encode(work.buffer, parts, places, destination_state=states)
        backward.configure(places, parts, states[0])
        backward.encode(work.buffer, places, parts, states, work.result(back))
        work.result(results)
    texels = read(results)
    assert_exact(texels[..., 4:], x[..., 4:].reshape(2, 4, 5, 6))
    assert_exact(texels[..., :4], np.full((2, 4, 5, 4), 0.5))
    assert_exact(read(back), x[..., 4:])


def test_reshape_rejects(device):
    x = np.zeros((2, 3, 5, 4), np.float32)
    kernel = mg.Reshape(device=device)
    with rejects(TypeError, "Reshape: a call needs the shape (height, width, channels), or out"):
        kernel(x)
    with rejects(ValueError, "Reshape: shape must be (height, width, channels), got (3, 20)"):
        kernel(x, (3, 20))
    with rejects(ValueError, "Reshape: source has 60 elements an image, shape (7, -1, 1) does not"):
        kernel(x, (7, -1, 1))
    with rejects(
        ValueError,
        "Reshape: source is 5x3x4, which is 60 elements, but destination is 5x3x5, which is 75",
    ):
        kernel(x, (3, 5, 5))
    with rejects(
        ValueError,
        "reshaped_width, reshaped_height and reshaped_feature_channels must be at least 1, got -1",
    ):
        kernel(x, (-1, -1, 4))
    with rejects(ValueError, "out must have shape (2, 6, 5, 2), got (2, 5, 6, 2)"):
        kernel(x, (6, 5, 2), out=np.zeros((2, 5, 6, 2), np.float32))
    sources = filled(device, x)
    with Work(device) as work:
        with rejects(
            TypeError, "reshaped_width, reshaped_height and reshaped_feature_channels go together"
        ):
            kernel.encode(work.buffer, sources, reshaped_width=60)
        words = {"reshaped_width": 60, "reshaped_height": 1, "reshaped_feature_channels": 1}
        with rejects(TypeError, "the shape of a given destination is its own"):
            kernel.encode(work.buffer, sources, empty(device, (2, 1, 60, 1)), **words)
        with rejects(TypeError, "Reshape: reshaped_width must be an integer, got float"):
            kernel.encode(work.buffer, sources, **{**words, "reshaped_width": 60.0})
        with rejects(ValueError, "which is 60 elements, but destination is 2x1x4, which is 8"):
            kernel.encode(work.buffer, sources, empty(device, (2, 1, 2, 4)))


def test_a_failed_reshape_leaves_nothing_behind(device, rng):
    """The next encode without a shape is a copy again."""
    x = grid(rng, (1, 2, 3, 4))
    kernel, sources = mg.Reshape(device=device), filled(device, x)
    with Work(device) as work:
        with rejects(ValueError, "which is 24 elements, but destination is 5x5x5"):
            kernel.encode(
                work.buffer,
                sources,
                reshaped_width=5,
                reshaped_height=5,
                reshaped_feature_channels=5,
            )
        same = work.result(kernel.encode(work.buffer, sources, allocator=mg.DEFAULT))
    assert_exact(read(same), x)


WINDOWS = {
    "offset": ({"offset": (1, 0, 0)}, "offset must be (0, 0, 0), got (1, 0, 0)"),
    "clip": ({"clip_rect": mg.Region((0, 0), (2, 2))}, "clip_rect must be NO_CLIP"),
    "source channels": (
        {"source_feature_channel_offset": 4},
        "source_feature_channel_offset must be 0",
    ),
    "fewer channels": (
        {"source_feature_channel_max_count": 4},
        "source_feature_channel_offset must be 0 and source_feature_channel_max_count without",
    ),
    "destination channels": (
        {"destination_feature_channel_offset": 4},
        "destination_feature_channel_offset must be 0, got 4",
    ),
}


@pytest.mark.parametrize(("settings", "words"), WINDOWS.values(), ids=WINDOWS)
def test_reshape_takes_images_whole(device, settings, words):
    kernel = mg.Reshape(device=device)
    for name, value in settings.items():
        setattr(kernel, name, value)
    sources, results = empty(device, (1, 2, 2, 8)), empty(device, (1, 2, 2, 8))
    with Work(device) as work, rejects(ValueError, f"Reshape: {words}"):
        kernel.encode(work.buffer, sources, results)


GRADIENT_WINDOWS = {
    "offset": ({"primary_offset": (1, 0, 0)}, "primary_offset must be (0, 0, 0)"),
    "channels": (
        {"primary_source_feature_channel_max_count": 4},
        "source_gradient offers 4 channels from offset 0, but the kernel reads 8",
    ),
    "clip": ({"clip_rect": mg.Region((0, 0), (2, 2))}, "clip_rect must be NO_CLIP"),
    "destination channels": (
        {"destination_feature_channel_offset": 4},
        "destination_feature_channel_offset must be 0, got 4",
    ),
}


@pytest.mark.parametrize(("settings", "words"), GRADIENT_WINDOWS.values(), ids=GRADIENT_WINDOWS)
def test_gradients_of_reshape_take_images_whole(device, settings, words):
    forward, backward = mg.Reshape(device=device), mg.ReshapeGradient(device=device)
    x, g = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 1, 8), np.float32)
    _, states = forward(x, (1, 1, 8), with_state=True)
    for name, value in settings.items():
        setattr(backward, name, value)
    with rejects(ValueError, f"ReshapeGradient: {words}"):
        backward(g, x, states)


def test_gradients_of_reshape_reject(device):
    forward, backward = mg.Reshape(device=device), mg.ReshapeGradient(device=device)
    x, g = np.zeros((2, 3, 5, 4), np.float32), np.zeros((2, 1, 6, 10), np.float32)
    _, states = forward(x, (1, 6, 10), with_state=True)
    backward(g, x, states)
    with rejects(ValueError, "source_gradient is 6x2, but the forward result was 6x1"):
        backward(np.zeros((2, 2, 6, 10), np.float32), x, states)
    with rejects(ValueError, "source_gradient has 12 channels, but the forward result had 10"):
        backward(np.zeros((2, 1, 6, 12), np.float32), x, states)
    with rejects(ValueError, "source is 4x3, but the state was made for a forward source of 5x3"):
        backward(g, np.zeros((2, 3, 4, 4), np.float32), states)
    with rejects(ValueError, "source has 8 channels, but the state was made for a forward source"):
        backward(g, np.zeros((2, 3, 5, 8), np.float32), states)
    _, other = mg.SoftMax(device=device)(x, with_state=True)
    with rejects(TypeError, "state must come from Reshape, but it was made by SoftMax"):
        backward(g, x, other)
    gradients, sources = filled(device, g), filled(device, x)
    with Work(device) as work:
        backward.configure(gradients, sources, states[0])
        with rejects(ValueError, "destination is 3x5x4, but source is 5x3x4"):
            backward.encode(work.buffer, gradients, sources, states, empty(device, (2, 5, 3, 4)))


# --- Slice ----------------------------------------------------------------------------------


@dtypes
def test_slice_is_numpys(device, dtype, rng):
    x = every_bit(device, (2, 6, 7, 24), dtype, rng)
    kernel = mg.Slice(device=device)
    assert_same_bytes(kernel(x), x)
    kernel.offset = (3, 1)
    assert_same_bytes(kernel(x), x[:, 1:, 3:])
    kernel.clip_rect = mg.Region((0, 0), (2, 4))
    assert_same_bytes(kernel(x), x[:, 1:5, 3:5])
    kernel.source_feature_channel_offset = 8
    assert_same_bytes(kernel(x), x[:, 1:5, 3:5, 8:])
    kernel.source_feature_channel_max_count = 5
    expected = x[:, 1:5, 3:5, 8:13]
    assert_same_bytes(kernel(x), expected)
    assert_same_bytes(kernel(x[1]), expected[1])
    assert kernel.offset == mg.Offset(3, 1)
    with Guarded(expected.shape, dtype, skew=1) as out:
        assert kernel(x, out=out) is out
        assert_same_bytes(out, expected)
        out[np.isnan(out)] = 0


def test_slice_puts_its_box_where_the_clip_rectangle_is(device, rng):
    x = grid(rng, (2, 4, 5, 9))
    kernel = mg.Slice(device=device)
    kernel.offset, kernel.clip_rect = (1, 2), mg.Region((3, 1), (2, 2))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 3
    results = empty(device, (2, 4, 6, 5), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    expected = np.full((2, 4, 6, 5), 0.5)
    expected[:, 1:3, 3:5, :3] = x[:, 2:4, 1:3, 4:7]
    expected[:, 1:3, 3:5, 3] = 0  # the rest of the last group of four
    texels = read(results)
    assert_exact(texels[..., [0, 1, 2, 4]], expected[..., [0, 1, 2, 4]])
    created = kernel(x)
    assert created.shape == (2, 3, 5, 3)
    assert_exact(created[:, 1:, 3:], expected[:, 1:3, 3:5, :3])
    assert not created[:, :1].any()
    assert not created[:, :, :3].any()


@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_slices_may_reach_outside(device, edge, rng):
    x = grid(rng, (2, 4, 5, 6))
    kernel = mg.Slice(device=device)
    kernel.edge_mode = getattr(mg.EdgeMode, edge.upper())
    kernel.offset, kernel.clip_rect = (-2, 1), mg.Region((0, 0), (9, 6))
    assert_exact(kernel(x), oracle.around(x, (1, -2, 0), (6, 9, 6), edge), nonzero=0)


@pytest.mark.parametrize("to_format", DTYPES)
def test_slices_between_formats(device, to_format, rng):
    sources = filled(device, rng.uniform(0, 1, (2, 4, 5, 8)), "float16")
    results = empty(device, (2, 3, 3, 4), to_format)
    kernel = mg.Slice(device=device)
    kernel.offset, kernel.source_feature_channel_offset = (1, 1), 4
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
    assert_same_bytes(read(results), store(load(read(sources))[:, 1:4, 1:4, 4:], to_format))


def test_slice_has_no_state(device):
    x = np.ones((2, 3, 3, 4), np.float32)
    kernel = mg.Slice(device=device)
    y, state = kernel(x, with_state=True)
    assert state is None
    assert_exact(y, x)
    sources, results = filled(device, x), empty(device, x.shape)
    assert kernel.result_state(sources[0], results[0]) is None
    assert kernel.result_state_batch(sources, results) is None


def test_slice_rejects(device):
    x = np.zeros((1, 3, 5, 4), np.float32)
    kernel = mg.Slice(device=device)
    kernel.offset = (5, 0)
    with rejects(ValueError, "Slice: offset (5, 0, 0) and clip_rect leave no column of a source"):
        kernel(x)
    kernel.offset = (0, 7)
    with rejects(ValueError, "leave no row of a source of 5x3"):
        kernel(x)
    assert kernel.offset == mg.Offset(0, 7)
    kernel.offset, kernel.destination_feature_channel_offset = (0, 0), 4
    with rejects(ValueError, "slices start at the destination's first channel, got 4"):
        kernel(x)
    with rejects(ValueError, "edge_mode must be ZERO or CLAMP (the other modes belong to Pad)"):
        kernel.edge_mode = mg.EdgeMode.MIRROR
    with rejects(ValueError, "source_feature_channel_offset must be a multiple of 4"):
        kernel.source_feature_channel_offset = 2


# --- Pad ------------------------------------------------------------------------------------


@edges
@dtypes
@pads
def test_pad(device, shape, before, after, edge, dtype, rng):
    x = every_bit(device, shape, dtype, rng)
    actual = make_pad(device, before, after, edge, -2.5)(x)
    # Bits, looked up as numbers.
    places = oracle.pad(np.arange(x.size).reshape(shape) + 1, before, after, edge, -2.5)
    expected = np.full(places.shape, -2.5 if edge == "constant" else 0.0, dtype)
    expected[places > 0] = x.ravel()[places[places > 0].astype(int) - 1]
    assert_same_bytes(actual, expected)


def test_printed_pads(device):
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    mirrored = make_pad(device, (3, 0, 0), (2, 0, 0), "mirror")(x)
    assert_exact(mirrored.ravel(), [1, 2, 1, 0, 1, 2, 1, 0])
    sources = filled(device, np.arange(8).reshape(1, 1, 1, 8))
    for edge, printed in {
        "zero": [0, 2, 3, 4, 0, 0],
        "mirror_with_edge": [2, 2, 3, 4, 4, 3],
    }.items():
        kernel = make_pad(device, (0, 0, 1), (0, 0, 2), edge)
        kernel.source_feature_channel_offset = 2
        kernel.source_feature_channel_max_count = 3
        kernel.destination_feature_channel_offset = 4
        results = empty(device, (1, 1, 1, 16), fill=9)
        with Work(device) as work:
            kernel.encode(work.buffer, sources, work.result(results))
        texels = read(results).ravel()
        assert_exact(texels[4:10], printed)
        assert_exact(texels[:4], [9] * 4)
        assert_exact(texels[12:], [9] * 4)


@edges
def test_a_given_destination_decides_along_x_and_y(device, edge, rng):
    """Sizes along channels still count, those along x and y do not."""
    x = grid(rng, (2, 3, 4, 5))
    kernel = make_pad(device, (7, 8, 1), (9, 1, 2), edge, 0.25)
    kernel.offset, kernel.clip_rect = (-6, 2), mg.Region((1, 2), (14, 9))
    results = empty(device, (2, 12, 16, 8), fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    expected = oracle.around(x, (2, -6, -1), (9, 14, 8), edge, 0.25)
    assert_exact(texels[:, 2:11, 1:15], expected, nonzero=0)
    texels[:, 2:11, 1:15] = 0.5
    assert (texels == 0.5).all()
    assert kernel.offset == mg.Offset(-6, 2)


@edges
def test_a_created_destination_sets_the_offset(device, edge, rng):
    x = grid(rng, (1, 3, 4, 2))
    kernel = make_pad(device, (1, 2, 0), (3, 0, 0), edge)
    kernel.offset = (5, 5)
    assert_exact(kernel(x), oracle.pad(x, (1, 2, 0), (3, 0, 0), edge), nonzero=0)
    assert kernel.offset == mg.Offset(-1, -2)


@dtypes
def test_fill_values(device, dtype, rng):
    x = grid(rng, (2, 2, 3, 3), dtype=dtype)
    before, after = (1, 0, 1), (0, 2, 1)
    each = [0.5, -1.5, 2.5, 3.5, -4.5, 99]  # one more than there are channels
    kernel = make_pad(device, before, after, "constant", each)
    kernel.fill_value = 7  # not looked at
    assert_exact(kernel(x), oracle.pad(x, before, after, "constant", each[:5]))
    assert kernel.fill_value_array == tuple(each)
    kernel.edge_mode = mg.EdgeMode.ZERO
    assert_exact(kernel(x), oracle.pad(x, before, after, "zero"), nonzero=0)
    plain = make_pad(device, before, after, "constant", 0.1)
    nearest = np.float64(np.float32(0.1).astype(dtype))
    assert_exact(plain(x), oracle.pad(x, before, after, "constant", nearest))
    plain.fill_value = np.nan
    y, states = plain(x, with_state=True)  # a NaN is one and the same value for states
    assert_exact(y, oracle.pad(x, before, after, "constant", np.nan))
    assert len(states) == 2
    assert mg.Pad((1, 1, 0), device=device).fill_value == 0
    assert mg.Pad(device=device).fill_value_array is None


@edges
@pytest.mark.parametrize("from_format", DTYPES)
@pytest.mark.parametrize("to_format", DTYPES)
def test_pads_between_formats(device, from_format, to_format, edge, rng):
    sources = filled(device, rng.uniform(0, 1, (2, 3, 4, 6)), from_format)
    results = empty(device, (2, 6, 8, 7), to_format)
    kernel = make_pad(device, (0, 0, 1), (0, 0, 0), edge, 0.75)
    kernel.offset = (-2, -1)
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
    expected = oracle.around(load(read(sources)), (-1, -2, -1), (6, 8, 7), edge, 0.75)
    if from_format == to_format:
        assert_same_bytes(read(results), store(expected, to_format))
    else:
        ulps = ulps_for(1, DTYPES[to_format]) + 0.01
        assert_close(read(results), expected, ulps=ulps, nonzero=0)


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
def test_pads_of_some_images(device, kind, rng):
    """z chooses images."""
    x = grid(rng, (3, 2, 3, 4))
    kernel = make_pad(device, (0, 0, 0), (0, 0, 0), "mirror")
    kernel.offset, kernel.clip_rect = (-1, -1, 1), mg.Region((0, 0, 0), (5, 4, 2))
    results = empty(device, (3, 4, 5, 4), kind=kind, fill=0.5)
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x, kind=kind), work.result(results))
    assert_exact(read(results)[:2], oracle.pad(x[1:], (1, 1, 0), (1, 1, 0), "mirror"))
    assert (read(results)[2] == 0.5).all()


def test_pad_rejects(device):
    x = np.zeros((1, 3, 5, 4), np.float32)
    with rejects(ValueError, "Pad: padding_size_before must not be negative, nor beyond"):
        mg.Pad((-1, 0, 0), device=device)
    with rejects(ValueError, "Pad: padding_size_after must be (x, y, channel), got 2 numbers"):
        mg.Pad((1, 1, 1), (1, 2), device=device)
    with rejects(TypeError, "Pad: padding_size_after must be (x, y, channel), got int"):
        mg.Pad((1, 1, 1), 4, device=device)
    with rejects(TypeError, "Pad: padding_size_before must be an integer, got float"):
        mg.Pad((1, 1.5, 1), device=device)
    for shape in ((), (0,), (2, 2)):
        with rejects(ValueError, "fill_value_array must have one axis, and a value for each"):
            mg.Pad(fill_value_array=np.zeros(shape), device=device)
    kernel = mg.Pad((0, 0, 1), (0, 0, 0), [1, 2, 3, 4], device=device)
    with rejects(ValueError, "fill_value_array has 4 values, but 5 channels are written"):
        kernel(x)
    with rejects(ValueError, "padding_size_after must not be negative"):
        kernel.padding_size_after = (0, 0, -1)
    assert kernel.padding_size_after == (0, 0, 0)
    kernel = mg.Pad((16384, 0, 0), device=device)
    with rejects(ValueError, "Pad: width must be between 1 and 16384, got 16389"):
        kernel(x)
    assert kernel.offset == mg.Offset()
    with rejects(ValueError, "source_feature_channel_offset must be between 0 and 8191, got -1"):
        kernel.source_feature_channel_offset = -1
    with rejects(ValueError, "destination_feature_channel_offset must be a multiple of 4"):
        kernel.destination_feature_channel_offset = 1
    kernel = mg.Pad(device=device)
    kernel.source_feature_channel_offset = 4
    with rejects(ValueError, "source has 4 channels, none at channel offset 4"):
        kernel(x)
    with rejects(ValueError, "channels 0 to 6 do not fit a destination of 5 channels"):
        kernel = mg.Pad((0, 0, 2), device=device)
        with Work(device) as work:
            kernel.encode(work.buffer, filled(device, x), empty(device, (1, 3, 5, 5)))


# --- The gradient of pad --------------------------------------------------------------------


@edges
@dtypes
@pads
def test_pad_gradient(device, shape, before, after, edge, dtype, rng):
    """Of small integers every sum is exact."""
    x = grid(rng, shape, dtype=dtype)
    y, states = make_pad(device, before, after, edge, 3)(x, with_state=True)
    g = grid(rng, y.shape, reach=8, dtype=dtype)
    backward = mg.PadGradient(device=device)
    dx = backward(g, x, states)
    assert dx.dtype == dtype
    assert_exact(dx, oracle.pad_gradient(g, shape, before, edge), nonzero=0.2)
    one, state = make_pad(device, before, after, edge, 3)(x[0], with_state=True)
    assert_same_bytes(one, y[0])
    with Guarded(shape[1:], dtype, skew=1) as out:
        backward(g[0], x[0], state, out=out)
        assert_same_bytes(out, dx[0])


@edges
@dtypes
def test_pad_gradients_of_any_numbers(device, edge, dtype, rng):
    shape, before, after = (2, 5, 6, 19), (9, 4, 0), (3, 7, 0)
    x = rng.standard_normal(shape).astype(dtype)
    y, states = make_pad(device, before, after, edge)(x, with_state=True)
    g = rng.standard_normal(y.shape).astype(dtype)
    copies = oracle.copies(edge, shape[1:], before, y.shape[1:]).max()
    assert_close(
        mg.PadGradient(device=device)(g, x, states),
        oracle.pad_gradient(g, shape, before, edge),
        ulps=ulps_for(copies, dtype),
        scale=oracle.pad_gradient(np.abs(g), shape, before, edge),
        nonzero=0.2,
    )


def test_printed_pad_gradients(device):
    d = 2.0 ** np.arange(8)
    x = np.ones((1, 3, 1), np.float32)

    def gradient(edge, before, after):
        kernel = make_pad(device, (before, 0, 0), (after, 0, 0), edge)
        y, state = kernel(x, with_state=True)
        g = d[: y.size].astype(np.float32).reshape(y.shape)
        return mg.PadGradient(device=device)(g, x, state).ravel()

    assert_exact(gradient("clamp", 1, 2), [d[0] + d[1], d[2], d[3] + d[4] + d[5]])
    assert_exact(gradient("mirror", 3, 2), [d[3] + d[7], d[[0, 2, 4, 6]].sum(), d[1] + d[5]])
    assert_exact(gradient("clamp", 2, 3), [d[:3].sum(), d[3], d[4:].sum()])
    assert_exact(gradient("mirror", 4, 1), [d[0] + d[4], d[[1, 3, 5, 7]].sum(), d[2] + d[6]])


@dtypes
def test_gradients_of_one_copy_are_bits(device, dtype, rng):
    x = np.zeros((2, 3, 4, 7), dtype)
    y, states = make_pad(device, (2, 1, 0), (3, 1, 0), "constant", 1)(x, with_state=True)
    g = every_bit(device, y.shape, dtype, rng)
    assert_same_bytes(mg.PadGradient(device=device)(g, x, states), g[:, 1:4, 2:6])


@edges
def test_gradients_of_channels_that_were_not_read_are_zero(device, edge, rng):
    x = grid(rng, (2, 2, 3, 11))
    forward = make_pad(device, (1, 1, 2), (0, 1, 1), edge)
    forward.source_feature_channel_offset, forward.source_feature_channel_max_count = 3, 5
    y, states = forward(x, with_state=True)
    assert_exact(y, oracle.pad(x[..., 3:8], (1, 1, 2), (0, 1, 1), edge), nonzero=0)
    g = grid(rng, y.shape)
    expected = np.zeros(x.shape)
    expected[..., 3:8] = oracle.pad_gradient(g, (2, 2, 3, 5), (1, 1, 2), edge)
    backward = mg.PadGradient(device=device)
    assert_exact(backward(g, x, states), expected, nonzero=0.2)
    # What it has been configured for may be copied with it.
    assert backward.secondary_edge_mode == forward.edge_mode
    assert backward.secondary_source_feature_channel_offset == 3
    twin = backward.copy()
    assert twin.secondary_source_feature_channel_offset == 3
    assert_exact(twin(g, x, states), expected, nonzero=0.2)


@edges
def test_gradients_into_a_given_destination(device, edge, rng):
    """The clip rectangle begins with the pixel of the source that secondary_offset names."""
    x = grid(rng, (2, 4, 5, 6))
    forward, backward = make_pad(device, (2, 3, 0), (4, 1, 0), edge), mg.PadGradient(device=device)
    sources, results = filled(device, x), empty(device, (2, 9, 13, 6))
    forward.offset, forward.clip_rect = (-2, -3), mg.Region((2, 1), (11, 8))
    states = forward.result_state_batch(sources, results)
    g = grid(rng, (2, 9, 13, 6))
    gradients, destinations = filled(device, g), empty(device, (2, 5, 6, 12), fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, sources, results, destination_state=states)
        backward.configure(gradients, sources, states[0])
        assert backward.primary_offset == mg.Offset(4, 4)
        backward.secondary_offset, backward.clip_rect = (1, 2), mg.Region((1, 0), (4, 4))
        backward.destination_feature_channel_offset = 4
        backward.encode(work.buffer, gradients, sources, states, work.result(destinations))
    whole = np.zeros((2, 8, 9, 6))  # and what lies beside the source is nobody's gradient
    whole[:, :4, :5] = oracle.around_gradient(g[:, 1:, 2:], x.shape, (-3, -2, 0), edge)
    texels = read(destinations)
    assert_exact(texels[:, :4, 1:5, 4:10], whole[:, 2:6, 1:5], nonzero=0)
    texels[:, :4, 1:5, 4:12] = 0.5
    assert (texels == 0.5).all()


@pytest.mark.parametrize("from_format", DTYPES)
@pytest.mark.parametrize("to_format", DTYPES)
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_gradients_between_formats(device, from_format, to_format, edge, rng):
    x = np.zeros((2, 3, 4, 5), np.float32)
    forward, backward = make_pad(device, (1, 1, 0), (1, 0, 0), edge), mg.PadGradient(device=device)
    _, states = forward(x, with_state=True)
    gradients = filled(device, rng.uniform(0, 0.25, (2, 4, 6, 5)), from_format)
    sources, destinations = filled(device, x), empty(device, x.shape, to_format)
    with Work(device) as work:
        backward.configure(gradients, sources, states[0])
        backward.encode(work.buffer, gradients, sources, states, work.result(destinations))
    expected = oracle.pad_gradient(load(read(gradients)), x.shape, (1, 1, 0), edge)
    ulps = ulps_for(5, DTYPES[to_format]) + 0.01
    assert_close(read(destinations), expected, ulps=ulps)


def test_pad_gradients_reject(device):
    forward, backward = mg.Pad((1, 2, 0), device=device), mg.PadGradient(device=device)
    x, g = np.zeros((2, 3, 5, 4), np.float32), np.zeros((2, 5, 6, 4), np.float32)
    _, states = forward(x, with_state=True)
    backward(g, x, states)
    with rejects(ValueError, "source_gradient is 5x5, but the forward result was 6x5"):
        backward(g[:, :, :5].copy(), x, states)
    with rejects(ValueError, "source_gradient offers 3 channels from offset 0, but the kernel"):
        backward(g[..., :3].copy(), x, states)
    with rejects(ValueError, "source_gradient has 8 channels, but the forward pass wrote 4"):
        backward(np.zeros((2, 5, 6, 8), np.float32), x, states)
    with rejects(ValueError, "source is 4x3, but the state was made for a forward source of 5x3"):
        backward(g, x[:, :, :4].copy(), states)
    with rejects(ValueError, "source has 5 channels, but the state was made for a forward source"):
        backward(g, np.zeros((2, 3, 5, 5), np.float32), states)
    _, other = mg.Reshape(device=device)(x, (3, 5, 4), with_state=True)
    with rejects(TypeError, "state must come from Pad, but it was made by Reshape"):
        backward(g, x, other)
    with rejects(ValueError, "state has 3 entries, expected 2"):
        backward(g, x, [*states, states[0]])


# --- What all of them share -----------------------------------------------------------------


@st.composite
def padded(draw):
    """Everything that decides what a pad and its gradient are, for small images."""
    sides = st.integers(1, 6)
    shape = draw(sides), draw(sides), draw(st.integers(1, 20))
    first = draw(st.integers(0, shape[2] - 1))
    return (
        (draw(st.integers(1, 2)), *shape),
        (first, draw(st.integers(1, shape[2] - first))),
        *(tuple(draw(st.integers(0, most)) for most in (9, 9, 5)) for _ in range(2)),
        draw(st.sampled_from(cases.EDGES)),
        draw(st.sampled_from([np.float32, np.float16])),
    )


@hypothesis.settings(max_examples=80)
@hypothesis.given(case=padded(), seed=st.integers(0, 2**32 - 1))
def test_any_pad_and_its_gradient(device, case, seed):
    shape, (first, count), before, after, edge, dtype = case
    rng = np.random.default_rng(seed)
    x = grid(rng, shape, dtype=dtype)
    kernel = make_pad(device, before, after, edge, 0.5)
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = first, count
    y, states = kernel(x, with_state=True)
    part = x[..., first : first + count]
    assert_exact(y, oracle.pad(part, before, after, edge, 0.5), nonzero=0)
    g = grid(rng, y.shape, reach=2, dtype=dtype)
    expected = np.zeros(shape)
    expected[..., first : first + count] = oracle.pad_gradient(g, part.shape, before, edge)
    assert_exact(mg.PadGradient(device=device)(g, x, states), expected, nonzero=0)


@dtypes
@pytest.mark.parametrize("name", ["reshape", "slice", *cases.EDGES])
def test_results_do_not_depend_on_threads_or_runs(device, name, dtype, rng):
    shape = (3, 41, 37, 21) if device.kind == "cpu" else (2, 9, 7, 5)
    x = rng.standard_normal(shape).astype(dtype)

    def run():
        if name == "reshape":
            turned = shape[2], shape[3], shape[1]
            y, states = mg.Reshape(device=device)(x, turned, with_state=True)
            return [y, mg.ReshapeGradient(device=device)(y, x, states)]
        if name == "slice":
            kernel = mg.Slice(device=device)
            kernel.offset = (3, 2)
            return [kernel(x)]
        y, states = make_pad(device, (9, 5, 0), (7, 8, 0), name, 3)(x, with_state=True)
        return [y, mg.PadGradient(device=device)(y, x, states)]

    check_thread_independence(run)


@dtypes
@pytest.mark.parametrize(("edge", "channels"), [("zero", 0), ("mirror", 0), ("mirror", 5)])
def test_a_large_batch_gives_the_bytes_of_its_samples(device, edge, channels, dtype, rng):
    """Results past the caches take another way into memory."""
    if device.kind != "cpu":
        pytest.skip("only the CPU device has two ways")
    kernel = make_pad(device, (5, 3, channels), (6, 4, 0), edge)
    shape = (61, 83, 27)
    repeat = 24 if dtype == np.float16 else 12
    x = np.tile(rng.standard_normal((5, *shape)).astype(dtype), (repeat, 1, 1, 1))
    y, states = kernel(x, with_state=True)
    g = np.tile(rng.standard_normal((5, *y.shape[1:])).astype(dtype), (repeat, 1, 1, 1))
    dx = mg.PadGradient(device=device)(g, x, states)
    flat, _ = mg.Reshape(device=device)(x, (83, 27, 61), with_state=True)
    assert_same_bytes(flat, x.reshape(flat.shape))
    box = mg.Slice(device=device)
    box.offset = (1, 2)
    assert_same_bytes(box(x), x[:, 2:, 1:])
    other = np.empty(flat.shape, np.float16 if dtype == np.float32 else np.float32)
    assert_same_bytes(
        mg.Reshape(device=device)(x, out=other), x.reshape(flat.shape).astype(other.dtype)
    )
    assert y.nbytes + x.nbytes > 32 << 20
    for results in (y, dx):
        bits = results.view(f"u{results.itemsize}").reshape(repeat, -1)
        assert (bits == bits[0]).all()
    for i in range(5):
        one, state = kernel(x[i], with_state=True)
        assert_same_bytes(y[i], one)
        assert_same_bytes(dx[i], mg.PadGradient(device=device)(g[i], x[i], state))


def test_work_runs_when_it_is_committed(device):
    kernel = make_pad(device, (1, 0, 0), (0, 0, 0), "constant", 4)
    sources = empty(device, (1, 1, 1, 1))
    with Work(device) as work:
        result = work.result(kernel.encode(work.buffer, sources, allocator=mg.DEFAULT))
        kernel.fill_value = 5
        kernel.padding_size_before = (2, 2, 2)
        sources[0].write(np.full((1, 1, 1), 3, np.float32))
    assert_exact(read(result).ravel(), [4, 3])


def test_states_belong_to_the_settings_they_were_made_with(device):
    x = filled(device, np.ones((1, 2, 2, 4)))
    kernel = make_pad(device, (0, 0, 0), (0, 0, 0), "constant", 1)
    results = empty(device, (1, 2, 2, 4))
    state = kernel.result_state(x, results)
    kernel.fill_value = 2
    with Work(device) as work, rejects(mg.errors.StateError, "properties changed"):
        kernel.encode(work.buffer, x, results, destination_state=state)


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward = make_pad(device, (1, 1, 0), (1, 1, 0), "mirror")
    backward, box, reshape = (cls(device=device) for cls in (mg.PadGradient, mg.Slice, mg.Reshape))
    with Work(device) as work:
        copy = reshape.encode(work.buffer, source)
        y, states = forward.encode(work.buffer, copy, with_state=True, temporary_state=True)
        assert [image.read_count for image in (*copy, *y)] == [0, 0, 1, 1]
        dx = backward.encode(work.buffer, y, source, states)
        assert [state.read_count for state in states] == [0, 0]
        last = work.result(box.encode(work.buffer, dx, allocator=mg.DEFAULT))
        assert [image.read_count for image in (*y, *dx)] == [0, 0, 0, 0]
    assert read(last).sum() == 2 * 6 * 6 * 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["Reshape", "ReshapeGradient", "Slice", "Pad", "PadGradient"])
def test_copies(device, name, way):
    cls = getattr(mg, name)
    if name == "Pad":
        kernel = cls((1, 2, 3), (4, 5, 6), [7.5] * 9, device=device)
        kernel.edge_mode = mg.EdgeMode.MIRROR_WITH_EDGE
        kernel.source_feature_channel_offset = 7
        kernel.fill_value = -3.25
        kernel.padding_size_after = (0, 1, 0)
        words = "padding_size_before=(1, 2, 3), padding_size_after=(0, 1, 0), fill_value_array="
        assert repr(kernel).startswith(f"Pad({words}(7.5, 7.5")
    else:
        kernel = cls(device=device)
        assert repr(kernel) == f"{name}(device='{device.kind}')"
    kernel.clip_rect = mg.Region((1, 2), (3, 4))
    kernel.label = "border"
    twin = WAYS[way](kernel)
    assert type(twin) is cls
    assert twin is not kernel
    names = ["clip_rect", "label"]
    if name == "Pad":
        names += ["padding_size_before", "padding_size_after", "fill_value", "fill_value_array"]
        names += ["edge_mode", "source_feature_channel_offset"]
    for each in names:
        assert getattr(twin, each) == getattr(kernel, each)


# --- States and sizes -----------------------------------------------------------------------


def images(device, *shape):
    return empty(device, (1, *shape))[0]


def test_states_of_reshapes_hold_as_many_elements(device):
    """A gradient that believed them would write beside its result."""
    words = "Reshape: source is 1x1x1, which is 1 elements, but destination is 100x100x4, which is"
    with rejects(ValueError, words):
        mg.Reshape(device=device).result_state(images(device, 1, 1, 1), images(device, 100, 100, 4))


@pytest.mark.parametrize("name", ["Reshape", "Pad"])
def test_states_belong_to_the_images_they_were_made_for(device, name):
    kernel = getattr(mg, name)(device=device)
    source, other = images(device, 4, 4, 4), images(device, 4, 4, 8)
    state = kernel.result_state(source, images(device, 4, 4, 4))
    with Work(device) as work:
        words = f"{name}: destination_state was made for a source of 4x4x4, not 4x4x8"
        with rejects(ValueError, words):
            kernel.encode(work.buffer, other, images(device, 4, 4, 8), destination_state=state)
        words = f"{name}: destination_state was made for a destination of 4x4x4, not 2x8x4"
        with rejects(ValueError, words):
            kernel.encode(work.buffer, source, images(device, 8, 2, 4), destination_state=state)


def test_states_of_a_batch_are_of_one_size(device):
    """The source of the second is another one's, though the settings are the same."""
    kernel, destination = mg.Reshape(device=device), images(device, 16, 1, 1)
    states = [kernel.result_state(images(device, h, 16 // h, 1), destination) for h in (4, 2)]
    g, x = filled(device, np.ones((2, 16, 1, 1))), filled(device, np.ones((2, 4, 4, 1)))
    with Work(device) as work:
        words = "ReshapeGradient: the states of a batch must come from one encode"
        with rejects(ValueError, words):
            mg.ReshapeGradient(device=device).encode(work.buffer, g, x, states)


@pytest.mark.parametrize("name", ["ReshapeGradient", "PadGradient"])
def test_gradients_take_single_steps(device, name):
    forward = getattr(mg, name.removesuffix("Gradient"))(device=device)
    x, g = images(device, 2, 2, 4), images(device, 2, 2, 4)
    state = forward.result_state(x, g)
    settings = {
        "kernel_offset_x": (1, "kernel_offset_x and kernel_offset_y must be 0, got (1, 0)"),
        "secondary_stride_in_pixels_y": (
            2,
            "secondary_stride_in_pixels must be (1, 1), got (1, 2)",
        ),
    }
    if name == "ReshapeGradient":
        words = "secondary_offset must be (0, 0, 0), got (1, 0, 0)"
        settings["secondary_offset"] = (mg.Offset(1, 0, 0), words)
    for setting, (value, words) in settings.items():
        backward = getattr(mg, name)(device=device)
        with Work(device) as work:
            backward.configure(g, x, state)
            setattr(backward, setting, value)
            with rejects(ValueError, f"{name}: {words}"):
                backward.encode(work.buffer, g, x, state, images(device, 2, 2, 4), configure=False)


def test_the_incoming_gradient_is_read_like_any_image(device):
    """Only of the forward source, of which the gradient kernel is told, anything may be set."""
    backward = mg.PadGradient(device=device)
    backward.secondary_edge_mode = mg.EdgeMode.MIRROR
    backward.secondary_source_feature_channel_offset = 1
    with rejects(ValueError, "PadGradient: primary_edge_mode must be ZERO or CLAMP"):
        backward.primary_edge_mode = mg.EdgeMode.MIRROR
    words = "PadGradient: primary_source_feature_channel_offset must be a multiple of 4"
    with rejects(ValueError, words):
        backward.primary_source_feature_channel_offset = 1


@pytest.mark.parametrize("fmt", ["float32", "unorm8"])
@pytest.mark.parametrize("before", [(32, 32, 0), (2000, 0, 0), (32, 32, 3)])
def test_gradients_of_many_copies_that_all_add_up(device, before, fmt):
    """Equal numbers round alike: one long sum of them would not meet the bound."""
    pad = make_pad(device, before, (0, 0, 0), "clamp")
    x = np.zeros((1, 1, 1, 4), np.float32)
    y, states = pad(x, with_state=True)
    incoming = filled(device, np.full(y.shape, 0.1, np.float32), fmt)
    results = empty(device, x.shape)
    backward = mg.PadGradient(device=device)
    with Work(device) as work:
        backward.configure(incoming, filled(device, x), states)
        backward.encode(
            work.buffer, incoming, filled(device, x), states, work.result(results), configure=False
        )
    each = float(load(read(incoming))[0, 0, 0, 0])
    copies = (before[0] + 1) * (before[1] + 1)
    exact = each * copies * np.array([before[2] + 1, 1, 1, 1], np.float64).reshape(x.shape)
    assert_close(read(results), exact, ulps=ulps_for(copies * (before[2] + 1)))


def test_a_failed_slice_leaves_the_kernel_as_it_was(device):
    class Changing(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, _source_images, _source_states, kernel, suggested):
            kernel.edge_mode = mg.EdgeMode.CLAMP
            kernel.source_feature_channel_offset = 4
            return suggested

    def failing(*_):
        raise RuntimeError("no memory")

    kernel = mg.Slice(device=device)
    kernel.padding, kernel.offset = Changing(), (1, 2)
    with Work(device) as work, pytest.raises(RuntimeError, match="no memory"):
        kernel.encode(work.buffer, images(device, 4, 4, 8), allocator=failing)
    assert kernel.edge_mode == mg.EdgeMode.ZERO
    assert kernel.source_feature_channel_offset == 0
    assert kernel.offset == mg.Offset(1, 2, 0)


@pytest.mark.parametrize("shape", [5, (2, 2, None), "abc"])
def test_shapes_are_three_integers(device, shape):
    words = f"Reshape: shape must be (height, width, channels), three integers, got {shape!r}"
    with rejects(TypeError, words):
        mg.Reshape(device=device)(np.zeros((1, 2, 2, 1), np.float32), shape)
