"""Gram matrix kernels against the oracle, the printed example, and the rules of their encodes."""

import math

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load
from tests.gram_matrix import cases, oracle
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

PAIR = mg.GramMatrixCalculation, mg.GramMatrixCalculationGradient
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float16])


# --- Running kernels ------------------------------------------------------------


def kernels(device, alpha=1.0):
    """Return both kernels; the gradient's own alpha must not matter."""
    return PAIR[0](alpha, device=device), PAIR[1](-3.0, device=device)


def matrix_shape(shape):
    return (shape[0], 1, shape[-1], shape[-1])


def check_forward(actual, x, alpha=1.0):
    """Compare: the products, an addition for each but the first, and alpha.

    An ULP of what is multiplied may be twice as large, relative to it, as one of the result, so all
    count twice.
    """
    assert_close(
        actual,
        oracle.gram_matrix(x, alpha),
        ulps=ulps_for(2 * (x.shape[1] * x.shape[2] + 1), actual.dtype),
        scale=oracle.gram_matrix_scale(x, alpha),
    )


def check_gradient(actual, g, x, alpha=1.0):
    """Compare: the sum of two elements, alpha, the products and an addition for all but one.

    They count twice, as above.
    """
    assert_close(
        actual,
        oracle.gram_matrix_gradient(g, x, alpha),
        ulps=ulps_for(2 * (x.shape[3] + 2), actual.dtype),
        scale=oracle.gram_matrix_gradient_scale(g, x, alpha),
    )


def check_integers(device, shape, rng, *, dtype=np.float32, alpha=0.5):
    """Run both kernels on small integers, whose sums are exact in any order."""
    x, g = grid(rng, shape, dtype=dtype), grid(rng, matrix_shape(shape), dtype=dtype)
    forward, gradient = kernels(device, alpha)
    y, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    assert (y.dtype, dx.dtype) == (dtype, dtype)
    # What lies beyond float16 is infinite in both.
    with np.errstate(over="ignore"):
        assert_exact(y, oracle.gram_matrix(x, alpha).astype(dtype))
        assert_exact(dx, oracle.gram_matrix_gradient(g, x, alpha).astype(dtype), nonzero=0.2)


# --- Against the oracle -----------------------------------------------------------


@pytest.mark.parametrize("shape", cases.SHAPES + cases.SEGMENTS, ids=str)
def test_forward_and_gradient(device, shape, rng):
    x = rng.standard_normal(shape, dtype=np.float32)
    g = rng.standard_normal(matrix_shape(shape), dtype=np.float32)
    forward, gradient = kernels(device, 0.75)
    y, states = forward(x, with_state=True)
    check_forward(y, x, 0.75)
    check_gradient(gradient(g, x, states), g, x, 0.75)


@dtypes
@pytest.mark.parametrize("shape", cases.SHAPES + cases.SEGMENTS, ids=str)
def test_sums_that_are_exact(device, shape, dtype, rng):
    check_integers(device, shape, rng, dtype=dtype)


@pytest.mark.parametrize("channels", cases.CHANNELS)
def test_any_number_of_channels(device, channels, rng):
    for shape in ((1, 3, 5, channels), (9, 1, 2, channels)):
        check_integers(device, shape, rng)


@pytest.mark.parametrize("pixels", cases.PIXELS)
def test_any_number_of_pixels(device, pixels, rng):
    for shape in ((1, pixels, 1, 6), (8, 1, pixels, 17)):
        check_integers(device, shape, rng, alpha=1.0)


def test_images_in_groups(device, rng):
    """Sums of so many segments are not kept for all images at once."""
    if device.kind != "cpu":
        pytest.skip("the images are large, for the CPU device's sake")
    x = grid(rng, cases.GROUPS)
    assert_exact(mg.GramMatrixCalculation(device=device)(x), oracle.gram_matrix(x))


@pytest.mark.parametrize("shape", [(3, 1, 1, 2048), (4, 1, 2, 1502)], ids=str)
def test_matrices_that_go_past_the_caches(device, shape, rng):
    if device.kind != "cpu":
        pytest.skip("of the CPU device's stores")
    x = grid(rng, shape)
    y = mg.GramMatrixCalculation(device=device)(x)
    assert y.nbytes > 32 << 20
    assert_exact(y, oracle.gram_matrix(x))


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), *[st.integers(1, 20)] * 2, st.integers(1, 40)),
    dtype=st.sampled_from([np.float32, np.float16]),
    alpha=st.sampled_from([1.0, -2.0, 0.125]),
)
def test_random_shapes(device, shape, dtype, alpha):
    check_integers(device, shape, rng_for(f"{shape}"), dtype=dtype, alpha=alpha)


@dtypes
def test_float16_is_rounded_once(device, dtype, rng):
    """Whatever the sources are: float16 ones are computed with as float32."""
    x = rng.standard_normal((2, 9, 7, 21)).astype(dtype)
    g = rng.standard_normal(matrix_shape(x.shape)).astype(dtype)
    forward, gradient = kernels(device, 0.25)
    y, states = forward(x, with_state=True)
    check_forward(y, x, 0.25)
    check_gradient(gradient(g, x, states), g, x, 0.25)
    out = np.empty(y.shape, np.float32)
    forward(x, out=out)
    check_forward(out, x, 0.25)


def test_printed_values(device):
    x = np.array([1.0, 2, 3, 4], np.float32).reshape(1, 1, 2, 2)
    forward, gradient = PAIR[0](device=device), PAIR[1](device=device)
    y, states = forward(x, with_state=True)
    assert_exact(y[0, 0], [[10, 14], [14, 20]])
    for place, expected in (((0, 0), [[2, 0], [6, 0]]), ((0, 1), [[2, 1], [4, 3]])):
        g = np.zeros((1, 1, 2, 2), np.float32)
        g[0, 0][place] = 1
        assert_exact(gradient(g, x, states)[0, 0], expected)


def test_matrices_are_symmetric(device, rng):
    """To the last bit: half of each is the mirror image of the other."""
    for shape in ((1, 7, 9, 37), (8, 5, 5, 131), (1, 40, 40, 21)):
        x = rng.standard_normal(shape, dtype=np.float32)
        y = mg.GramMatrixCalculation(0.3, device=device)(x)
        assert_same_bytes(y, np.ascontiguousarray(y.transpose(0, 1, 3, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_among_its_channels(device, value):
    """Channels that fill up a vector, or a block, are no channels."""
    x = np.ones((1, 2, 3, 5), np.float32)
    x[0, 1, 1, 4] = value
    g = np.ones((1, 1, 5, 5), np.float32)
    forward, gradient = kernels(device)
    y, states = forward(x, with_state=True)
    assert np.isfinite(y[0, 0, :4, :4]).all()
    assert not np.isfinite(y[0, 0, 4]).any()
    assert not np.isfinite(y[0, 0, :, 4]).any()
    dx = gradient(g, x, states)
    finite = np.isfinite(dx).all(axis=3)
    assert not finite[0, 1, 1]
    assert finite.sum() == 5


# --- Images of all kinds ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, fmt, kind, rng):
    alpha = 1 / 32  # so that everything fits into the normalised formats
    x = load(read(filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt)))
    g = load(read(filled(device, rng.uniform(0, 1, (3, 1, 6, 6)), fmt)))
    forward, gradient = kernels(device, alpha)
    sources, results = filled(device, x, fmt, kind=kind), empty(device, g.shape, fmt, kind=kind)
    incoming, destinations = (
        filled(device, g, fmt, kind=kind),
        empty(device, x.shape, fmt, kind=kind),
    )
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, sources, states[0] if isinstance(states, list) else states)
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    check_forward(read(results), x, alpha)
    check_gradient(read(destinations), g, x, alpha)


@pytest.mark.parametrize("fmt", ["float32", "float16", "unorm8"])
def test_formats_may_differ(device, fmt, rng):
    x = load(read(filled(device, rng.uniform(0, 1, (2, 5, 5, 35)), fmt)))
    g = grid(rng, matrix_shape(x.shape))
    forward, gradient = kernels(device)
    sources = filled(device, x, fmt)
    results, destinations = empty(device, g.shape), empty(device, x.shape)
    with Work(device) as work:
        _, states = forward.encode_batch(
            work.buffer, sources, with_state=True, allocator=work.result(results)
        )
        gradient.encode_batch(
            work.buffer, filled(device, g), sources, states, allocator=work.result(destinations)
        )
    check_forward(read(results), x)
    check_gradient(read(destinations), g, x)


@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_channel_windows(device, fmt, rng):
    """The matrix is that of the channels which are read, wherever they lie."""
    x = grid(rng, (2, 3, 7, 31))
    forward, gradient = kernels(device)
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 18
    forward.destination_feature_channel_offset = 8
    sources = filled(device, x, fmt)
    results = empty(device, (2, 1, 18, 40), fmt, fill=0.5)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
    texels = read(results)
    assert_exact(texels[..., 8:26], oracle.gram_matrix(x[..., 4:22]))
    assert (texels[..., :8] == 0.5).all()
    assert (texels[..., 28:] == 0.5).all()

    g = grid(rng, (2, 1, 18, 24), reach=2)
    gradient.primary_source_feature_channel_offset = 4
    gradient.primary_source_feature_channel_max_count = 18
    gradient.destination_feature_channel_offset = 4
    destinations = empty(device, (2, 3, 7, 27), fmt, fill=0.5)
    incoming = filled(device, g, fmt)
    gradient.configure(incoming, sources, states[0])
    with Work(device) as work:
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    texels = read(destinations)
    expected = oracle.gram_matrix_gradient(g[..., 4:22], x[..., 4:22])
    assert_exact(texels[..., 4:22], expected, nonzero=0.2)
    assert (texels[..., :4] == 0.5).all()
    assert (texels[..., 24:] == 0.5).all()
    if device.kind == "cpu":  # the rest of a group of four channels
        assert not texels[..., 22:24].any()
        assert not read(results)[..., 26:28].any()


def test_whole_vectors_of_a_window_leave_the_rest_alone(device, rng):
    """Results in their own place, 16 channels of 21."""
    x, g = grid(rng, (1, 5, 8, 16)), grid(rng, (1, 1, 16, 16))
    forward, gradient = kernels(device)
    _, states = forward(x, with_state=True)
    gradient.destination_feature_channel_offset = 4
    sources, incoming = filled(device, x), filled(device, g)
    destinations = empty(device, (1, 5, 8, 21), fill=0.5)
    gradient.configure(incoming, sources, states[0])
    with Work(device) as work:
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    texels = read(destinations)
    assert_exact(texels[..., 4:20], oracle.gram_matrix_gradient(g, x))
    assert (texels[..., :4] == 0.5).all()
    assert (texels[..., 20:] == 0.5).all()


@dtypes
def test_arrays_with_and_without_out(device, dtype, rng):
    x = rng.standard_normal((2, 3, 5, 7)).astype(dtype)
    g = rng.standard_normal((2, 1, 7, 7)).astype(dtype)
    forward, gradient = kernels(device, 0.5)
    y, states = forward(x, with_state=True)
    dx = gradient(g, source=x, state=states)
    with Guarded(y.shape, dtype, skew=1) as out:
        again, states = forward(x, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, y)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert gradient(g, x, states, out=out) is out
        assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert one.shape == (1, 7, 7)
    assert_same_bytes(one, y[0])
    assert_same_bytes(gradient(g[0], x[0], state), dx[0])


# --- The same bits everywhere -------------------------------------------------------


@dtypes
@pytest.mark.parametrize("shape", [(1, 61, 67, 12), (2, 13, 11, 70), (1, 9, 9, 200)], ids=str)
def test_results_do_not_depend_on_threads_or_runs(device, shape, dtype, rng):
    x = rng.standard_normal(shape).astype(dtype)
    g = rng.standard_normal(matrix_shape(shape)).astype(dtype)
    forward, gradient = kernels(device)

    def run():
        y, states = forward(x, with_state=True)
        return y, gradient(g, x, states)

    check_thread_independence(run)


@dtypes
@pytest.mark.parametrize("shape", [(33, 41, 9), (11, 12, 67), (3, 4, 150)], ids=str)
def test_an_image_has_the_same_bits_in_any_batch(device, shape, dtype, rng):
    x = rng.standard_normal((12, *shape)).astype(dtype)
    g = rng.standard_normal(matrix_shape(x.shape)).astype(dtype)
    forward, gradient = kernels(device)
    y, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    for i in (0, 11):
        one, state = forward(x[i], with_state=True)
        assert_same_bytes(one, y[i])
        assert_same_bytes(gradient(g[i], x[i], state), dx[i])


def test_scratch_is_small(device, rng):
    """Neither kernel makes an array of the size of its images, or of all its matrices."""
    if device.kind != "cpu":
        pytest.skip("memory_statistics() counts the CPU device's storage")
    x = rng.standard_normal((4, 96, 96, 64), dtype=np.float32)
    g = rng.standard_normal(matrix_shape(x.shape), dtype=np.float32)
    forward, gradient = kernels(device)
    y, states = forward(x, with_state=True)
    dx = np.empty_like(x)
    mg.release_cached_memory()
    held = mg.memory_statistics()["in_use"]
    forward(x, out=y)
    gradient(g, x, states, out=dx)
    statistics = mg.memory_statistics()
    assert statistics["in_use"] + statistics["cached"] - held < x.nbytes // 4


# --- States -------------------------------------------------------------------------


def test_the_gradient_takes_alpha_from_the_state(device, rng):
    x, g = grid(rng, (2, 3, 3, 5)), grid(rng, (2, 1, 5, 5))
    forward, gradient = PAIR[0](0.5, device=device), PAIR[1](device=device)
    assert (forward.alpha, gradient.alpha) == (0.5, 1.0)
    _, states = forward(x, with_state=True)
    forward.alpha = 8
    gradient.alpha = 4
    expected = oracle.gram_matrix_gradient(g, x, 0.5)
    assert_exact(gradient(g, x, states), expected)
    assert gradient.alpha == 0.5
    # With a destination of one's own too, where nothing else is taken from it.
    gradient.alpha = 4
    sources, incoming, destinations = filled(device, x), filled(device, g), empty(device, x.shape)
    with Work(device) as work:
        gradient.encode(
            work.buffer, incoming, sources, states, work.result(destinations), configure=False
        )
    assert_exact(read(destinations), expected)
    assert gradient.alpha == 0.5


def test_a_failed_encode_leaves_alpha(device):
    x, g = np.ones((1, 2, 2, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    forward, gradient = kernels(device, 2.0)
    _, states = forward(x, with_state=True)
    gradient.alpha = 7
    with rejects(ValueError, "source_gradient is 2x1"):
        gradient(g[:, :, :2].copy(), x, states)
    assert gradient.alpha == 7
    with rejects(ValueError, "alpha must be a finite float32 number, got inf"):
        gradient.alpha = math.inf
    assert gradient.alpha == 7


def test_alpha_is_that_of_the_encode(device, rng):
    x = grid(rng, (1, 2, 3, 4))
    kernel = mg.GramMatrixCalculation(2.0, device=device)
    results = empty(device, (1, 1, 4, 4))
    sources = filled(device, x)
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
        kernel.alpha = 5.0
        sources[0].write(2 * x[0])
    assert_exact(read(results), 8 * oracle.gram_matrix(x))


def test_a_state_belongs_to_the_alpha_it_was_made_with(device):
    kernel = mg.GramMatrixCalculation(device=device)
    sources, results = empty(device, (1, 2, 2, 3)), empty(device, (1, 1, 3, 3))
    states = kernel.result_state(sources, results)
    kernel.alpha = 2
    work = Work(device)
    with rejects(mg.errors.StateError, "the kernel's properties changed after result_state()"):
        kernel.encode(work.buffer, sources, results, destination_state=states)


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward, gradient = kernels(device)
    with Work(device) as work:
        result, states = forward.encode(work.buffer, source, with_state=True, temporary_state=True)
        descriptor = result[0].descriptor
        assert (descriptor.width, descriptor.height, descriptor.feature_channels) == (3, 1, 3)
        assert [image.read_count for image in result] == [1, 1]
        dx = work.result(gradient.encode(work.buffer, result, source, states, allocator=mg.DEFAULT))
        assert [image.read_count for image in result] == [0, 0]
        assert [state.read_count for state in states] == [0, 0]
    assert_exact(read(dx), np.full((2, 4, 4, 3), 2 * 16 * 3))


def test_a_descriptor_is_that_of_the_matrix(device):
    kernel = mg.GramMatrixCalculation(device=device)
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    made = kernel.destination_descriptor(empty(device, (1, 5, 7, 10), "float16"))
    assert (made.width, made.height, made.feature_channels) == (6, 1, 14)
    assert made.channel_format == mg.ChannelFormat.FLOAT16
    assert tuple(kernel.offset) == (0, 0, 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", PAIR)
def test_copies(device, cls, way):
    kernel = cls(0.25, device=device)
    assert repr(kernel) == f"{cls.__name__}(alpha=0.25, device='{device.kind}')"
    kernel.alpha = 0.1
    kernel.destination_feature_channel_offset = 4
    kernel.label = "style"
    twin = WAYS[way](kernel)
    assert type(twin) is cls
    assert twin is not kernel
    assert twin.alpha == kernel.alpha == float(np.float32(0.1))
    assert (twin.label, twin.destination_feature_channel_offset) == ("style", 4)
    twin.alpha = 3
    assert kernel.alpha == float(np.float32(0.1))


# --- Rejections ---------------------------------------------------------------------


X = np.ones((2, 3, 5, 4), np.float32)
G = np.ones((2, 1, 4, 4), np.float32)


@pytest.mark.parametrize("cls", PAIR)
def test_rejects_alpha(device, cls):
    kernel = cls(device=device)
    for value in (math.nan, math.inf, 1e39):
        with rejects(ValueError, f"{cls.__name__}: alpha must be a finite float32 number, got "):
            cls(value, device=device)
        with rejects(ValueError, f"{cls.__name__}: alpha must be a finite float32 number, got "):
            kernel.alpha = value
    for value in ("1", None):
        with pytest.raises(TypeError, match="alpha must be a float"):
            cls(value, device=device)
        with pytest.raises(TypeError, match="alpha must be a float"):
            kernel.alpha = value
    assert kernel.alpha == 1


FORWARD_SETTINGS = {
    "offset": mg.Offset(1, 0, 0),
    "clip_rect": mg.Region((0, 0), (4, 1)),
}


@pytest.mark.parametrize("name", FORWARD_SETTINGS)
def test_rejects_a_forward_setting(device, name):
    kernel = mg.GramMatrixCalculation(device=device)
    setattr(kernel, name, FORWARD_SETTINGS[name])
    work = Work(device)
    with rejects(ValueError, f"GramMatrixCalculation: {name} must have its default value"):
        kernel.encode(work.buffer, filled(device, X), empty(device, G.shape))
    if name == "clip_rect":  # an offset is set by the encode itself
        with rejects(ValueError, f"GramMatrixCalculation: {name} must have its default value"):
            kernel(X)


def test_rejects_the_z_of_an_offset(device):
    kernel = mg.GramMatrixCalculation(device=device)
    kernel.offset = (0, 0, 1)
    with rejects(ValueError, "GramMatrixCalculation: offset must have its default value"):
        kernel.encode(
            Work(device).buffer,
            filled(device, X, kind="container"),
            empty(device, G[:1].shape, kind="container"),
        )


@pytest.mark.parametrize("shape", [(2, 1, 5, 4), (2, 2, 4, 4), (2, 3, 5, 4)], ids=str)
def test_rejects_a_destination(device, shape):
    kernel = mg.GramMatrixCalculation(device=device)
    words = f"destination is {shape[2]}x{shape[1]}, but the matrix of 4 channels is 4x1"
    with rejects(ValueError, f"GramMatrixCalculation: {words}"):
        kernel.encode(Work(device).buffer, filled(device, X), empty(device, shape))


def test_rejects_padding_that_asks_for_another_size(device):
    kernel = mg.GramMatrixCalculation(device=device)
    kernel.padding = mg.ExplicitPadding(1, 1, 1, 1)
    with rejects(ValueError, "must have its default value"):
        kernel(X)
    assert tuple(kernel.offset) == (0, 0, 0)


GRADIENT_SETTINGS = {
    "primary_offset": mg.Offset(1, 0, 0),
    "secondary_offset": mg.Offset(0, 1, 0),
    "clip_rect": mg.Region((0, 0), (5, 3)),
    "kernel_offset_x": 1,
    "kernel_offset_y": -1,
    "primary_stride_in_pixels_x": 2,
    "secondary_stride_in_pixels_y": 2,
}


@pytest.mark.parametrize("name", GRADIENT_SETTINGS)
def test_rejects_a_gradient_setting(device, name):
    forward, gradient = kernels(device)
    _, states = forward(X, with_state=True)
    setattr(gradient, name, GRADIENT_SETTINGS[name])
    words = f"GramMatrixCalculationGradient: {name} must have its default value, got "
    with rejects(ValueError, words):
        gradient.encode(
            Work(device).buffer,
            filled(device, G),
            filled(device, X),
            states,
            empty(device, X.shape),
            configure=False,
        )


REJECTED = {
    "width": (
        np.ones((2, 1, 3, 4), np.float32),
        X,
        "source_gradient is 3x1, but the matrix of 4 channels is 4x1",
    ),
    "height": (
        np.ones((2, 2, 4, 4), np.float32),
        X,
        "source_gradient is 4x2, but the matrix of 4 channels is 4x1",
    ),
    "too few channels": (
        np.ones((2, 1, 4, 3), np.float32),
        X,
        "source_gradient offers 3 channels from offset 0, but the kernel reads 4",
    ),
    "too many channels": (
        np.ones((2, 1, 4, 5), np.float32),
        X,
        "source_gradient has 5 channels, but source has 4",
    ),
    "size of the source": (
        G,
        np.ones((2, 3, 4, 4), np.float32),
        "source is 4x3, but the state was made for a forward source of 5x3",
    ),
    "channels of the source": (
        G,
        np.ones((2, 3, 5, 3), np.float32),
        "source offers 3 channels from offset 0, but the kernel reads 4",
    ),
    "batch": (G[:1], X, "both must be one image, or batches of one length"),
}


@pytest.mark.parametrize(("g", "x", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, g, x, words):
    forward, gradient = kernels(device)
    _, states = forward(X, with_state=True)
    with rejects(ValueError, words):
        gradient(g, x, states)


def test_rejects_a_gradient_destination(device):
    forward, gradient = kernels(device)
    _, states = forward(X, with_state=True)
    with rejects(ValueError, "destination is 4x3, but source is 5x3"):
        gradient.encode(
            Work(device).buffer,
            filled(device, G),
            filled(device, X),
            states,
            empty(device, (2, 3, 4, 4)),
            configure=False,
        )


def test_rejects_out_of_another_shape(device):
    words = "GramMatrixCalculation: out must have shape (2, 1, 4, 4), got (2, 1, 4, 5)"
    with rejects(ValueError, words):
        mg.GramMatrixCalculation(device=device)(X, out=np.empty((2, 1, 4, 5), np.float32))


def test_rejects_states_of_another_kernel(device):
    result, states = mg.SoftMax(device=device)(X, with_state=True)
    words = "state must come from GramMatrixCalculation, but it was made by SoftMax"
    with rejects(TypeError, words):
        mg.GramMatrixCalculationGradient(device=device)(result, X, states)


def test_rejects_states_of_two_encodes(device):
    forward, gradient = kernels(device)
    _, first = forward(X, with_state=True)
    forward.alpha = 2
    _, second = forward(X, with_state=True)
    with rejects(ValueError, "the states of a batch must come from one encode"):
        gradient(G, X, [first[0], second[1]])


def test_rejects_a_source_of_other_channels(device):
    forward, backward = kernels(device)
    state = forward.result_state(empty(device, (1, 2, 3, 4))[0], empty(device, (1, 1, 4, 4))[0])
    g, x = empty(device, (1, 1, 4, 4))[0], empty(device, (1, 2, 3, 8))[0]
    words = "source has 8 channels, but the state was made for a forward source of 4"
    with Work(device) as work, pytest.raises(ValueError, match=words):
        backward.encode(work.buffer, g, x, state)
