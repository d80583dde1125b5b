"""Convolution and its gradients against the float64 oracle, by objects and by arrays."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys

import hypothesis
import mpsgrad as mg
import numpy as np
import pytest

from tests.convolution import cases, fuzz, kernels, oracle
from tests.core.oracle import store
from tests.core.support import python_of_little_memory
from tests.neuron import oracle as neurons
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import Guarded, assert_close, assert_exact, assert_same_bytes, grid, ulps_for

pytestmark = pytest.mark.filterwarnings(
    "ignore:ConvolutionGradient. after a forward pass with edge mode CLAMP:RuntimeWarning"
)

EVERY_CASE = [
    *cases.CASES, *cases.CHANNELS, *cases.FLAT, *cases.APART, *cases.WIDE, *cases.DENSE
]  # fmt: skip


def real_arrays(case, rng):
    shapes = case.shape, case.weights_shape, (case.outputs,), case.result_shape
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


def expected(case, x, w, b, g):
    """The oracle's (y, dx, dw, db)."""
    p = case.convolution()
    return (
        oracle.forward(p, x, w, b, size=case.size),
        oracle.data_gradient(p, g, w, source_size=case.source_size),
        oracle.weight_gradient(p, g, x, kernel=case.kernel, depthwise=case.depthwise),
        oracle.bias_gradient(g),
    )


def computed(queue, case, x, w, b, g):
    """The kernels' (y, dx, dw, db)."""
    data_source = kernels.source(case, w, b)
    _, sources, y, states = kernels.forward(queue, case, data_source, x)
    kernels.spoil(states)
    _, dx, dw, db = kernels.backward(queue, data_source, g, sources, states)
    return y, dx, dw.reshape(case.weights_shape), db


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_exact_sums_are_exact(queue, case, rng):
    arrays = kernels.exact_arrays(case, rng)
    names = "y", "dx", "dw", "db"
    for name, got, want in zip(
        names, computed(queue, case, *arrays), expected(case, *arrays), strict=True
    ):
        np.testing.assert_array_equal(got, want, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("case", [*cases.CASES, *cases.FLAT, *cases.APART], ids=str)
def test_errors_are_those_of_the_additions(queue, case, rng):
    arrays = real_arrays(case, rng)
    scales = expected(case, *map(np.abs, arrays))
    counts = (
        case.products + 1,
        case.gradient_products,
        case.weight_products,
        case.weight_products,
    )
    results = zip(
        computed(queue, case, *arrays), expected(case, *arrays), scales, counts, strict=True
    )
    for got, want, scale, count in results:
        # A product and an addition each; a fused multiply-add rounds less.
        assert_close(got, want, ulps=ulps_for(2 * count), scale=scale, nonzero=0.0)


def mixed(weights):
    """Return the most of each tap's neighbours and itself that F(2x2, 3x3) puts in its place.

    Along an axis, results are (m0 + m1 + m2, m1 - m2 - m3) of products m of the pixels
    (d0 - d2, d1 + d2, d2 - d1, d1 - d3) and the weights
    (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2). Of the magnitudes the first tap's pixel meets
    g0 + g1 + 2 g2 at most, and so on; the gradient of the weights, the transpose of that, mixes
    them in the same way.
    """
    most = np.array([[1, 1, 2], [1, 1, 1], [2, 1, 1]])
    return np.einsum("qr,orsc,st->oqtc", most, weights, most)


@pytest.mark.parametrize("case", cases.DENSE, ids=str)
def test_errors_are_those_of_fewer_multiplications(queue, case, rng):
    arrays = real_arrays(case, rng)
    x, w, b, g = map(np.abs, arrays)
    y, dx, _, db = expected(case, x, mixed(w), b, g)
    scales = y, dx, mixed(expected(case, x, w, b, g)[2]), db
    # Transforms add up to four numbers along each of two axes, on the way in and on the way out.
    transforms = 2 * 2 * 3
    inputs, outputs, positions = case.shape[3], case.outputs, case.weight_products
    counts = (
        2 * inputs + 2 * transforms + 1,
        2 * outputs + 2 * transforms,
        2 * positions + 2 * transforms,
        positions,
    )
    results = zip(
        computed(queue, case, *arrays), expected(case, *arrays), scales, counts, strict=True
    )
    for got, want, scale, count in results:
        assert_close(got, want, ulps=ulps_for(count), scale=scale, nonzero=0.0)


@pytest.mark.parametrize("case", cases.DENSE, ids=str)
def test_what_is_not_finite_stays_in_its_windows(queue, case, rng):
    """Infinities and NaN of a source or a gradient reach what they reach by the definition."""
    x, w, b, g = kernels.exact_arrays(case, rng)
    x[-1, 0, 0, 3] = np.inf
    x[-1, -1, -2, 5] = -np.inf
    x[0, 4, 3, 7] = np.nan
    # Where every tap reads a pixel: one outside is left out or counts as zero.
    row, column = g.shape[1] // 2, g.shape[2] // 2
    g[0, row, column, 2] = np.nan
    g[-1, row, column + 1, 4] = np.inf
    with np.errstate(invalid="ignore"):
        want = expected(case, x, w, b, g)
    for got, exact in zip(computed(queue, case, x, w, b, g), want, strict=True):
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("case", cases.FLAT, ids=str)
def test_what_is_not_finite_stays_in_flat_windows(queue, case, rng):
    x, w, b, g = kernels.exact_arrays(case, rng)
    x[0, 0, 0, 0] = np.nan
    x[-1, -1, -1, 0] = np.inf
    g[0, -1, 0, 0] = np.nan
    g[-1, 0, -1, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        want = expected(case, x, w, b, g)
    for got, exact in zip(computed(queue, case, x, w, b, g)[:2], want[:2], strict=True):
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("case", cases.DENSE, ids=str)
def test_large_numbers_do_not_overflow_on_the_way(queue, case, rng):
    x, w, b, g = kernels.exact_arrays(case, rng)
    x, w, b, g = x * 2.0**125, w * 2.0**-30, b * 2.0**95, g * 2.0**125
    x, w, b, g = (a.astype(np.float32) for a in (x, w, b, g))
    assert np.isfinite(x).all()
    y, dx, _, _ = expected(case, x, w, b, g)
    results = computed(queue, case, x, w, b, g)
    np.testing.assert_array_equal(results[0], y)
    np.testing.assert_array_equal(results[1], dx)
    small = (g * 2.0**-155).astype(np.float32)
    *_, dw, db = computed(queue, case, x, w, b, small)
    want = expected(case, x, w, b, small)
    np.testing.assert_array_equal(dw, want[2])
    np.testing.assert_array_equal(db, want[3])


@pytest.mark.parametrize("case", cases.DENSE, ids=str)
def test_windows_of_zeros_give_the_bias(queue, case, rng):
    """A pixel leaves no rounding in results whose windows it is not in."""
    x, w, b, g = real_arrays(case, rng)
    x[:, :, x.shape[2] // 2 :] = 0
    g[:, g.shape[1] // 2 :] = 0
    y, dx, *_ = computed(queue, case, x, w, b, g)
    reached, reached_back, *_ = expected(case, x != 0, np.ones_like(w), np.zeros_like(b), g != 0)
    untouched, untouched_back = reached == 0, reached_back == 0
    assert untouched.any()
    assert untouched_back.any()
    np.testing.assert_array_equal(y[untouched], np.broadcast_to(b, y.shape)[untouched])
    np.testing.assert_array_equal(dx[untouched_back], 0)


def test_neighbours_that_cancel_do_not_overflow(queue):
    """Sums of a few large numbers, and of their opposites, are finite in one order only."""
    case = cases.DENSE[0]
    x, w, b, g = (
        np.zeros(shape, np.float32)
        for shape in (case.shape, case.weights_shape, (16,), case.result_shape)
    )
    g[0, 2:4, 2, 3] = 3e38
    g[0, 2:4, 3, 3] = -3e38
    x[0, 4, 4, 5] = 1e-30
    *_, db = computed(queue, case, x, w, b, g)
    assert_exact(db, np.zeros(16), nonzero=0)


def test_the_smallest_weights_count(queue):
    case = cases.DENSE[0]
    x, w, b, g = (
        np.zeros(shape, np.float32)
        for shape in (case.shape, case.weights_shape, (16,), case.result_shape)
    )
    tiny = np.float32(2.0**-149)
    w[:, 1, 1, 2] = tiny
    x[0, 4, 4, 2] = 2.0**100
    y, *_ = computed(queue, case, x, w, b, g)
    assert_exact(y, expected(case, x, w, b, g)[0], nonzero=0)
    assert y.max() == 2.0**-49


def forward_and_backward(device, case, weights, biases):
    data_source = kernels.source(case, weights, biases)
    return (
        mg.Convolution(data_source, device=device),
        mg.ConvolutionGradient(data_source, device=device),
    )


def test_sums_are_zero_before_a_gradient_is_written(queue, rng):
    """Also where memory had other values before, and where a predicate skips the first encode."""
    case = cases.DENSE[1]
    x, w, b, g = kernels.exact_arrays(case, rng)
    forward, backward = forward_and_backward(queue.device, case, w, b)
    sources, gradients = kernels.batch(queue.device, x), kernels.batch(queue.device, g)
    for used in (w, b):
        mg.Buffer(queue.device, np.full(used.shape, np.nan, np.float32))
    command_buffer = queue.command_buffer()
    _, states = forward.encode_batch(command_buffer, sources, with_state=True, allocator=mg.DEFAULT)
    command_buffer.predicate = mg.Predicate(mg.Buffer(queue.device, np.uint32([0])))
    backward.encode_batch(command_buffer, gradients, sources, states, allocator=mg.DEFAULT)
    command_buffer.predicate = None
    states[0].synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert not states[0].gradient_for_weights.to_numpy().any()
    assert not states[0].gradient_for_biases.to_numpy().any()
    kernels.run(
        queue,
        lambda cb: (
            backward.encode_batch(cb, gradients, sources, states, allocator=mg.DEFAULT),
            states[0].synchronize(cb),
        ),
    )
    dw = states[0].gradient_for_weights.to_numpy().reshape(case.weights_shape)
    assert_exact(dw, expected(case, x, w, b, g)[2])


OUT_OF_MEMORY = """
import numpy as np
device = mg.Device("cpu")
queue = device.command_queue()
weights, biases = np.ones((128, 3, 3, 64), np.float32), np.ones(128, np.float32)
source = mg.ArrayConvolutionDataSource(weights, biases)
forward = mg.Convolution(source, device=device)
backward = mg.ConvolutionGradient(source, device=device)
backward.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
x, g = (
    mg.ImageBatch.from_array(device, np.ones((1, 32, 32, channels), np.float32))
    for channels in (64, 128)
)

def attempt(looks, more):
    for used in (weights, biases):
        mg.Buffer(device, np.full(used.shape, np.nan, np.float32))
    work, failing, after = (queue.command_buffer() for _ in range(3))
    _, states = forward.encode_batch(work, x, with_state=True, allocator=mg.DEFAULT)
    work.commit()
    work.wait_until_completed()
    if looks:
        states[0].gradient_for_weights.to_numpy()
    backward.encode_batch(failing, g, x, states, allocator=mg.DEFAULT)
    states[0].synchronize(after)
    result = "completed"
    with limited_memory(more):
        failing.commit()
        try:
            failing.wait_until_completed()
        except mg.errors.CommandBufferError as error:
            result = str(error)
    after.commit()
    after.wait_until_completed()
    buffers = states[0].gradient_for_weights, states[0].gradient_for_biases
    print(result, *(np.count_nonzero(buffer.to_numpy()) for buffer in buffers))

for threads in (1, 2):
    mg.set_num_threads(threads)
    for more in (1 << 16, 300_000, 400_000, 1 << 19, 600_000):
        attempt(False, more)
        attempt(True, more)
"""


@pytest.mark.not_sanitized(reason="its own memory has no room under the limit")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_sums_are_zero_after_a_first_gradient_that_failed():
    """Also where memory had other values before, and where somebody has looked at the sums."""
    done = python_of_little_memory(OUT_OF_MEMORY).stdout.splitlines()
    failed = re.compile(r"CommandBuffer: execution failed: the CPU device has no room for .* 0 0")
    completed = f"completed {128 * 9 * 64} 128"
    assert all(line == completed or failed.fullmatch(line) for line in done)
    assert failed.fullmatch(done[0])
    assert failed.fullmatch(done[1])


def test_weight_gradients_are_added_where_one_is_not_finite(queue, rng):
    """A state keeps what was in it: sums over two encodes, one of them with an infinity."""
    case = cases.DENSE[1]
    x, w, b, g = kernels.exact_arrays(case, rng)
    forward, backward = forward_and_backward(queue.device, case, w, b)
    y, state = forward(x, with_state=True)
    backward(g, x, state)
    first = state.gradient_for_weights.to_numpy().reshape(case.weights_shape)
    assert_exact(first, expected(case, x, w, b, g)[2])
    x[0, 5, 5, 9] = np.inf
    g[0, 1, 1, 30] = np.nan
    backward(g, x, state)
    with np.errstate(invalid="ignore"):
        want = first + expected(case, x, w, b, g)[2]
    assert y.shape == g.shape
    both = state.gradient_for_weights.to_numpy().reshape(case.weights_shape)
    np.testing.assert_array_equal(both, want)


@pytest.mark.fuzz
@hypothesis.settings(max_examples=150)
@hypothesis.given(case=fuzz.convolutions(), seed=hypothesis.strategies.integers(0, 2**32 - 1))
def test_any_geometry(device, case, seed):
    queue = device.command_queue()
    arrays = kernels.exact_arrays(case, np.random.default_rng(seed))
    for got, want in zip(computed(queue, case, *arrays), expected(case, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- the chapter's worked examples ---------------------------------------------------------------


def row(values):
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


def one_row(weights, **options):
    return mg.ConvolutionDescriptor(
        len(weights), 1, input_feature_channels=1, output_feature_channels=1, **options
    )


EXAMPLES = {
    # x, w, bias, options, offset (None: by policy), size, y,
    # e, dx, dw, db, kernel offset, first tap
    "A": ([1, 2, 3, 4, 5], [1, 2, 3], 0.5, {"stride_in_pixels_x": 2}, None, 3, [8.5, 20.5, 14.5],
          [1, 10, 100], [2, 13, 20, 130, 200], [420, 531, 42], 111, 0, -1),
    "B": ([1, 2, 3], [1, 10], 0, {}, 1, 2, [21, 32], [1, 2], [1, 12, 20], [5, 8], 3, 0, 0),
    "B, offset 0": ([1, 2, 3], [1, 10], 0, {}, 0, 3, [10, 21, 32], [1, 1, 1], [11, 11, 10],
                    [3, 6], 3, 1, -1),
    "C": ([1, 2, 3, 4, 5], [1, 10, 100], 0, {"dilation_rate_x": 2}, None, 5,
          [310, 420, 531, 42, 53], [1, 0, 0, 0, 0], [10, 0, 100, 0, 0], [0, 1, 3], 1, 0, -2),
    "C, even extent": ([1, 2, 3, 4, 5], [1, 10], 0, {"dilation_rate_x": 3}, 1, 5,
                       [30, 41, 52, 3, 4], [1, 0, 0, 0, 0], [0, 0, 10, 0, 0], [0, 3], 1, 0, -1),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_worked_examples(queue, example):
    x, w, bias, options, offset, size, y, e, dx, dw, db, kernel_offset, first_tap = example
    data_source = mg.ArrayConvolutionDataSource(row(w), [bias], descriptor=one_row(w, **options))
    forward = mg.Convolution(data_source, device=queue.device)
    sources = kernels.batch(queue.device, row(x))
    if offset is None:
        found = forward.destination_descriptor(sources[0])
        assert (found.width, found.height) == (size, 1)
    else:
        forward.offset = offset, 0
    destinations = kernels.empty(queue.device, (1, 1, size, 1))
    states = forward.result_state_batch(sources, destinations)
    kernels.run(
        queue, lambda cb: forward.encode_batch(cb, sources, destinations, destination_states=states)
    )
    assert_exact(kernels.read(queue, destinations).ravel(), y)

    gradient, got_dx, got_dw, got_db = kernels.backward(queue, data_source, row(e), sources, states)
    assert got_dx.ravel().tolist() == dx
    assert got_dw.tolist() == dw
    assert got_db.tolist() == [db]
    assert gradient.kernel_offset_x == kernel_offset
    assert gradient.secondary_offset.x == first_tap


def test_a_state_sums_over_encodes_and_images(queue):
    data_source = mg.ArrayConvolutionDataSource(
        row([1, 2, 3]), [0.5], descriptor=one_row([1, 2, 3], stride_in_pixels_x=2)
    )
    forward = mg.Convolution(data_source, device=queue.device)
    backward = mg.ConvolutionGradient(data_source, device=queue.device)
    _, state = forward(row([1, 2, 3, 4, 5]), with_state=True)
    backward(row([1, 10, 100]), row([1, 2, 3, 4, 5]), state)
    dx = backward(row([1, 1, 1]), row([1, 1, 1, 1, 1]), state)
    assert dx.ravel().tolist() == [2, 4, 2, 4, 2]
    assert state.gradient_for_weights.to_numpy().tolist() == [422, 534, 44]
    assert state.gradient_for_biases.to_numpy().tolist() == [114]


def test_depthwise_example(queue):
    x = np.array([[1, 10], [2, 20], [3, 30]], np.float32).reshape(1, 1, 3, 2)
    w = np.array([[[1, 2]], [[3, 4]]], np.float32)
    data_source = mg.ArrayConvolutionDataSource(w)
    forward = mg.Convolution(data_source, device=queue.device)
    assert (forward.channel_multiplier, forward.groups) == (1, 1)
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    y, state = forward(x, with_state=True)
    assert y.ravel().tolist() == [5, 110, 8, 180]
    dx = mg.ConvolutionGradient(data_source, device=queue.device)(np.ones_like(y), x, state)
    assert dx.ravel().tolist() == [1, 3, 3, 7, 2, 4]
    assert state.gradient_for_weights.to_numpy().tolist() == [3, 5, 30, 50]
    assert state.gradient_for_biases.to_numpy().tolist() == [2, 2]


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_depthwise_taps_outside_add_nothing(queue, size, stride, axis, rng):
    case = cases.ConvolutionCase(
        "", (2, 9, 17, 37), 37, (size, size), (stride, stride), depthwise=True
    )
    x, w = grid(rng, case.shape), np.abs(grid(rng, case.weights_shape)) + 1
    before = np.arange(size) < size // 2  # taps that the first windows have outside the image
    w[:, *np.ix_(*(before if a == axis else ~before | before for a in (1, 2)))] = np.inf
    y = mg.Convolution(kernels.source(case, w), device=queue.device)(x)
    w[np.isinf(w)] = 0
    finite = mg.Convolution(kernels.source(case, w), device=queue.device)(x)
    assert not np.isfinite(np.take(y, 3, axis)).all()
    if queue.device.kind == "cpu":  # others may multiply by the zeros outside
        first = np.take(y, 0, axis)
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, np.take(finite, 0, axis))


@pytest.mark.parametrize("moved", [-64, -16, 0, 16, 64, 1024])
@pytest.mark.parametrize("rows", [9, 15, 16, 31])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
def test_depthwise_wherever_images_begin(queue, size, stride, rows, moved, rng):
    """Pixels 2 KB apart, and results at the operands' place of their page or `moved` bytes away."""
    case = cases.ConvolutionCase(
        "", (2, rows, 17, 512), 512, (size, size), (stride, stride), depthwise=True
    )
    x, w = grid(rng, case.shape), grid(rng, case.weights_shape)
    neuron = mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.0) if rows == 15 else None
    d = kernels.descriptor(case, fused_neuron_descriptor=neuron)
    data_source = mg.ArrayConvolutionDataSource(w, descriptor=d)

    def placed(values, offset):
        values = np.asarray(values, np.float32)
        memory = np.empty(values.nbytes + 3 * 4096, np.uint8)
        first = -memory.ctypes.data % 4096 + 4096 + offset
        array = memory[first : first + values.nbytes].view(np.float32).reshape(values.shape)
        array[:] = values
        return mg.ImageBatch.from_array(queue.device, array)

    kernel = mg.Convolution(data_source, device=queue.device)
    kernel.offset = case.offset
    sources = placed(x, 0)
    destinations = placed(np.full(case.result_shape, np.nan), moved)
    kernels.run(queue, lambda buffer: kernel.encode_batch(buffer, sources, destinations))
    want = oracle.forward(
        case.convolution(),
        x,
        w,
        size=case.size,
        neuron=None if neuron is None else lambda y: np.maximum(y, 0),
    )
    np.testing.assert_array_equal(kernels.read(queue, destinations), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_fused_neuron(queue, stride, dtype, rng):
    case = cases.ConvolutionCase("", (2, 15, 9, 300), 300, (3, 3), (stride, stride), depthwise=True)
    slopes = np.arange(300) % 7 - 3.0
    x, w = grid(rng, case.shape), grid(rng, case.weights_shape)
    neuron = mg.NeuronDescriptor(mg.NeuronType.PRELU, data=slopes.tolist())
    d = kernels.descriptor(case, fused_neuron_descriptor=neuron)
    data_source = mg.ArrayConvolutionDataSource(w, descriptor=d)
    _, _, y, _ = kernels.forward(queue, case, data_source, x.astype(dtype), dtype)
    _, rows, columns, _ = case.result_shape
    window = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    left, top = case.offset
    plain = sum(
        window[:, top + q :: stride, left + p :: stride][:, :rows, :columns] * w[:, q, p]
        for q in range(3)
        for p in range(3)
    )
    np.testing.assert_array_equal(y, np.where(plain >= 0, plain, slopes * plain))


# ---- formats, windows of images, kinds of batches ------------------------------------------------


@pytest.mark.parametrize("name", ["3x3 s2", "flat, many channels"])
@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.uint16], ids=lambda t: np.dtype(t).name)
def test_formats_round_once_on_store(queue, dtype, name, rng):
    case = next(c for c in cases.CASES + cases.FLAT if c.name == name)
    device = queue.device
    if dtype == np.float16:
        x = rng.standard_normal(case.shape).astype(dtype)
        values = x.astype(np.float64)
    else:
        x = rng.integers(0, np.iinfo(dtype).max, case.shape, dtype, endpoint=True)
        values = x / np.iinfo(dtype).max
    w = (rng.uniform(0, 0.02, case.weights_shape)).astype(np.float32)
    data_source = kernels.source(case, w)
    kernel = mg.Convolution(data_source, device=device)
    kernel.offset = case.offset
    sources = kernels.batch(device, x)
    destinations = kernels.batch(device, np.zeros(case.result_shape, dtype))
    kernels.run(queue, lambda cb: kernel.encode_batch(cb, sources, destinations))
    exact = oracle.forward(case.convolution(), values, w, size=case.size)
    scale = oracle.forward(case.convolution(), np.abs(values), np.abs(w), size=case.size)
    # Loading a unorm value rounds it once more.
    ulps = ulps_for(3 * case.products, dtype)
    assert_close(kernels.read(queue, destinations), exact, ulps=ulps, scale=scale)


@pytest.mark.parametrize("name", ["3x3", "flat, many channels"])
def test_float16_gradients_round_once(queue, name, rng):
    case = next(c for c in cases.CASES + cases.FLAT if c.name == name)
    x, w, b, g = real_arrays(case, rng)
    x, g = x.astype(np.float16), g.astype(np.float16)
    data_source = kernels.source(case, w, b)
    _, sources, _, states = kernels.forward(queue, case, data_source, x, np.float16)
    _, dx, dw, db = kernels.backward(queue, data_source, g, sources, states)
    assert dx.dtype == np.float16
    want = expected(case, x, w, b, g)
    scale = expected(case, *map(np.abs, (x, w, b, g)))
    assert_close(dx, want[1], ulps=ulps_for(2 * case.gradient_products, np.float16), scale=scale[1])
    count = 2 * case.weight_products
    assert_close(dw.reshape(w.shape), want[2], ulps=ulps_for(count), scale=scale[2])
    assert_close(db, want[3], ulps=ulps_for(count), scale=scale[3])


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_float16_is_rounded_after_bias_and_neuron(queue, case, rng):
    """Both move sums off the middle of two numbers; rounded before, these fall on either side."""
    x, w, b, _ = kernels.half_way(*kernels.exact_arrays(case, rng))
    d = kernels.descriptor(case, fused_neuron_descriptor=kernels.LINEAR)
    data_source = mg.ArrayConvolutionDataSource(w, b, descriptor=d)
    _, _, y, _ = kernels.forward(queue, case, data_source, x.astype(np.float16), np.float16)
    exact = oracle.forward(case.convolution(), x, w, b, size=case.size, neuron=kernels.linear)
    assert_exact(y, store(exact, "float16"), nonzero=0)


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_float16_data_gradients_are_rounded_after_the_sum(queue, case, rng):
    x, w, b, g = kernels.half_way(*kernels.exact_arrays(case, rng))
    data_source = kernels.source(case, w, b)
    halves = x.astype(np.float16)
    _, sources, _, states = kernels.forward(queue, case, data_source, halves, np.float16)
    _, dx, _, _ = kernels.backward(queue, data_source, g.astype(np.float16), sources, states)
    exact = oracle.data_gradient(case.convolution(), g, w, source_size=case.source_size)
    assert_exact(dx, store(exact, "float16"), nonzero=0)


@pytest.mark.parametrize(
    "case",
    [c for c in cases.CASES + cases.WIDE + cases.VECTORS if c.depthwise or c.groups > 1],
    ids=lambda c: c.name,
)
def test_few_operands_in_float16(queue, case, rng):
    """Loops that take float16 as it lies give float32's results, here without rounding."""
    x, w, b, g = (
        rng.integers(-2, 3, shape).astype(np.float32)
        for shape in (case.shape, case.weights_shape, (case.outputs,), case.result_shape)
    )
    data_source = kernels.source(case, w, b)
    results = []
    for dtype in (np.float32, np.float16):
        _, sources, y, states = kernels.forward(queue, case, data_source, x.astype(dtype), dtype)
        dx = kernels.backward(queue, data_source, g.astype(dtype), sources, states)[1]
        assert y.dtype == dx.dtype == dtype
        results.append((y, dx))
    for single, half in zip(*results, strict=True):
        assert np.abs(single).max() <= 2048
        np.testing.assert_array_equal(half, single)


def test_the_layout_of_weights_is_apples_only_one(device):
    source = mg.ArrayConvolutionDataSource(np.ones((2, 1, 1, 3), np.float32))
    assert source.weights_layout() is mg.ConvolutionWeightsLayout.OHWI
    kernel = mg.Convolution(source, device=device)
    _, state = kernel(np.ones((1, 1, 1, 3), np.float32), with_state=True)
    assert state.gradient_for_weights_layout is mg.ConvolutionWeightsLayout.OHWI
    assert mg.ConvolutionWeightsLayout.OHWI == 0


def test_half_kernel_weights_are_rounded(queue):
    one = np.full((1, 1, 1, 1), 0.1, np.float32)
    x = np.ones((1, 1, 1, 1), np.float32)
    for kind, value in [(mg.DataType.FLOAT16, 0.0999755859375), (mg.DataType.FLOAT32, 0.1)]:
        data_source = mg.ArrayConvolutionDataSource(one, [0.1], kernel_weights_data_type=kind)
        kernel = mg.Convolution(data_source, device=queue.device)
        y = kernel(x)
        assert y.item() == pytest.approx(value + np.float32(0.1), rel=1e-7)
        exported = kernels.run(queue, kernel.export_weights_and_biases)
        assert exported.weights.to_numpy()[0] == np.float32(value)


@pytest.mark.parametrize("kind", ["separate", "container"])
def test_images_need_not_be_one_allocation(queue, kind, rng):
    case = next(c for c in cases.CASES if c.name == "3x3 full")
    x, w, b, _ = kernels.exact_arrays(case, rng)
    device = queue.device
    kernel = mg.Convolution(kernels.source(case, w, b), device=device)
    kernel.offset = case.offset
    n, _h, _wide, _c = case.result_shape
    if kind == "separate":
        sources, destinations = (
            [mg.Image(device, mg.ImageDescriptor(s[2], s[1], s[3])) for _ in range(n)]
            for s in (case.shape, case.result_shape)
        )
        for image, array in zip(sources, x, strict=True):
            image.write(array)
        kernels.run(queue, lambda cb: kernel.encode_batch(cb, sources, destinations))
        kernels.run(queue, lambda cb: mg.synchronize(destinations, cb))
        got = np.stack([image.read() for image in destinations])
    else:
        sizes = (case.shape, case.result_shape)
        source, destination = (
            mg.Image(device, mg.ImageDescriptor(s[2], s[1], s[3], number_of_images=n))
            for s in sizes
        )
        source.write(x)
        kernels.run(queue, lambda cb: kernel.encode(cb, source, destination))
        kernels.run(queue, destination.synchronize)
        got = destination.read()
    np.testing.assert_array_equal(got, oracle.forward(case.convolution(), x, w, b, size=case.size))


@pytest.mark.parametrize("cls", [mg.Convolution, mg.FullyConnected])
def test_states_know_how_many_images_a_clip_rectangle_covers(queue, cls):
    source = mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1), np.float32))
    kernel = cls(source, device=queue.device)
    kernel.clip_rect = mg.Region((0, 0, 0), (1, 1, 2))
    images, results = (
        kernels.batch(queue.device, np.ones((3, 1, 1, 1), np.float32)) for _ in range(2)
    )
    states = kernel.result_state(images, results)
    words = "clip_rect covers 1 images, but 2 when destination_state was made"

    def encode(command_buffer):
        with pytest.raises(mg.errors.StateError, match=words):
            kernel.encode(command_buffer, images[0], results[0], destination_state=states[0])
        kernel.encode(command_buffer, images, results, destination_state=states)

    kernels.run(queue, encode)


def test_gradients_as_wide_as_what_was_concatenated(device, queue):
    data_source = mg.ArrayConvolutionDataSource(np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4))
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    x, y = (kernels.batch(device, np.zeros((1, 1, 1, n), np.float32)) for n in (4, 8))
    g = kernels.batch(device, np.float32([7] * 4 + [1] * 4).reshape(1, 1, 1, 8))
    (first,) = forward.result_state_batch(x, y)
    forward.destination_feature_channel_offset = 4
    (second,) = forward.result_state_batch(x, y)

    def encode(command_buffer):
        forward.encode_batch(command_buffer, x, y, destination_states=[second])
        with pytest.raises(ValueError, match="has 8 channels, but the forward pass wrote 4"):
            backward.encode_batch(command_buffer, g, x, second, allocator=mg.DEFAULT)
        forward.destination_feature_channel_offset = 0
        forward.encode_batch(command_buffer, x, y, destination_states=[first])
        return backward.encode_batch(command_buffer, g, x, first, allocator=mg.DEFAULT)

    assert_exact(kernels.read(queue, kernels.run(queue, encode)).ravel(), [7] * 4)


@pytest.mark.parametrize("window", [(3, 3), (1, 9)], ids=["3x3", "flat"])
def test_channel_windows_and_clip_rectangles(queue, window, rng):
    device = queue.device
    x = grid(rng, (2, 6, 7, 12))
    w, b = grid(rng, (5, *window, 4)), grid(rng, 5)
    data_source = mg.ArrayConvolutionDataSource(w, b)
    kernel = mg.Convolution(data_source, device=device)
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    kernel.offset = 2, 1
    kernel.clip_rect = mg.Region((1, 2), (3, 4))
    before = grid(rng, (2, 7, 6, 17))
    sources, destinations = kernels.batch(device, x), kernels.batch(device, before.copy())
    states = kernel.result_state_batch(sources, destinations)
    kernels.run(
        queue, lambda cb: kernel.encode_batch(cb, sources, destinations, destination_states=states)
    )
    got = kernels.read(queue, destinations)
    p = oracle.Convolution(offset=(2, 1))
    want = before.astype(np.float64)
    want[:, 2:6, 1:4, 8:13] = oracle.forward(p, x[..., 4:8], w, b, size=(3, 4))
    # Whole groups of four are stored; what a GPU stores after those produced is its business.
    rest = np.s_[:, 2:6, 1:4, 13:16]
    want[rest] = 0 if device.kind == "cpu" else got[rest]
    np.testing.assert_array_equal(got, want)

    g = grid(rng, (2, 4, 3, 5))
    backward, dx, dw, db = kernels.backward(queue, data_source, g, sources, states)
    assert dx.shape == (2, 6, 7, 4)
    np.testing.assert_array_equal(dx, oracle.data_gradient(p, g, w, source_size=(7, 6)))
    want = oracle.weight_gradient(p, g, x[..., 4:8], kernel=window[::-1])
    np.testing.assert_array_equal(dw.reshape(w.shape), want)
    np.testing.assert_array_equal(db, oracle.bias_gradient(g))
    assert backward.secondary_source_feature_channel_offset == 4


def test_gradient_by_properties(queue, rng):
    case = next(c for c in cases.CASES if c.name == "4x3 s2x1 remainder top right")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = kernels.source(case, w, b)
    _, sources, _, states = kernels.forward(queue, case, data_source, x)
    kernel = mg.ConvolutionGradient(data_source, device=queue.device)
    kernel.gradient_option = mg.ConvolutionGradientOption.DATA
    kernel.primary_offset, kernel.kernel_offset_x, kernel.kernel_offset_y = (1, -1), 2, -1
    gradients, destinations = (
        kernels.batch(queue.device, g),
        kernels.empty(queue.device, case.shape),
    )
    kernels.run(
        queue,
        lambda cb: kernel.encode_batch(
            cb, gradients, sources, states, destinations, configure=False
        ),
    )
    properties = oracle.GradientProperties(
        primary_offset=(1, -1), primary_stride=case.stride, kernel_offset=(2, -1),
        secondary_stride=case.stride, secondary_dilation=case.dilation,
    )  # fmt: skip
    want = oracle.data_gradient_from(properties, g, w, size=case.source_size)
    np.testing.assert_array_equal(kernels.read(queue, destinations), want)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_data_gradient_takes_its_gradient_out_of_a_larger_image(queue, stride, rng):
    """From `primary_offset` on, if there are zeros around it."""
    device = queue.device
    case = cases.ConvolutionCase("", (2, 5, 6, 5), 6, (4, 3), (stride, stride))
    x, w = grid(rng, case.shape), grid(rng, case.weights_shape)
    data_source = kernels.source(case, w)
    forward = mg.Convolution(data_source, device=device)
    forward.offset = case.offset
    forward.clip_rect = mg.Region((1, 2), (3, 2))
    sources, results = kernels.batch(device, x), kernels.empty(device, (2, 6, 5, 6))
    states = forward.result_state_batch(sources, results)
    g = grid(rng, (2, 2, 3, 6))
    larger = np.zeros((2, 6, 5, 6), np.float32)
    larger[:, 2:4, 1:4] = g
    backward = mg.ConvolutionGradient(data_source, device=device)
    backward.gradient_option = mg.ConvolutionGradientOption.DATA
    gradients, dx = kernels.batch(device, larger), kernels.empty(device, case.shape)
    backward.configure(gradients, sources, states)

    def encode(command_buffer):
        forward.encode_batch(command_buffer, sources, results, destination_states=states)
        arguments = command_buffer, gradients, sources, states, dx
        with rejects(ValueError, "source_gradient is 5x6, but the forward pass wrote 3x2"):
            backward.encode_batch(*arguments, configure=False)
        backward.primary_offset = 1, 2
        backward.encode_batch(*arguments, configure=False)

    kernels.run(queue, encode)
    want = oracle.data_gradient(case.convolution(), g, w, source_size=case.source_size)
    assert_exact(kernels.read(queue, dx), want)


@pytest.mark.parametrize("option", [1, 2, 3])
def test_gradient_options(queue, option, rng):
    case = next(c for c in cases.CASES if c.name == "3x3")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = kernels.source(case, w, b)
    _, sources, _, states = kernels.forward(queue, case, data_source, x)
    kernels.poison(queue.device, case.shape)
    _, dx, dw, db = kernels.backward(queue, data_source, g, sources, states, option)
    _, want_dx, want_dw, want_db = expected(case, x, w, b, g)
    kernels.check_data_gradient(queue.device, option, dx, want_dx)
    np.testing.assert_array_equal(dw.reshape(w.shape), want_dw if option & 2 else 0 * want_dw)
    np.testing.assert_array_equal(db, want_db if option & 2 else 0 * want_db)


def test_a_weight_gradient_leaves_a_given_destination_alone(queue, rng):
    case = next(c for c in cases.CASES if c.name == "3x3")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = kernels.source(case, w, b)
    _, sources, _, states = kernels.forward(queue, case, data_source, x)
    kernel = mg.ConvolutionGradient(data_source, device=queue.device)
    kernel.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
    gradients = kernels.batch(queue.device, g)
    dx = kernels.batch(queue.device, np.full(case.shape, 0.5, np.float32))
    kernel.configure(gradients, sources, states)

    def encode(command_buffer):
        kernel.encode_batch(command_buffer, gradients, sources, states, dx)
        states[0].synchronize(command_buffer)

    kernels.run(queue, encode)
    assert_exact(kernels.read(queue, dx), np.full(case.shape, 0.5))
    dw = states[0].gradient_for_weights.to_numpy().reshape(w.shape)
    assert_exact(dw, expected(case, x, w, b, g)[2])


def test_a_data_gradient_leaves_the_sums_alone(queue, rng):
    case = next(c for c in cases.CASES if c.name == "3x3")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = kernels.source(case, w, b)
    _, sources, _, states = kernels.forward(queue, case, data_source, x)
    for option in (mg.ConvolutionGradientOption.ALL, mg.ConvolutionGradientOption.DATA):
        _, _, dw, db = kernels.backward(queue, data_source, g, sources, states, option)
        _, _, want_dw, want_db = expected(case, x, w, b, g)
        assert_exact(dw.reshape(w.shape), want_dw)
        assert_exact(db, want_db)


# ---- weights: precision, folding, quantisation, reload, export -----------------------------------


def test_batch_normalization_is_folded(queue):
    d = mg.ConvolutionDescriptor(1, 1, input_feature_channels=1, output_feature_channels=1)
    d.set_batch_normalization_parameters_for_inference([3], [1], [2], [5], 0.0)
    source = mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), 2, np.float32), [1], descriptor=d)
    kernel = mg.Convolution(source, device=queue.device)
    assert kernel(np.full((1, 1, 1, 1), 10, np.float32)).item() == 41
    assert pickle.loads(pickle.dumps(kernel))(np.zeros((1, 1, 1, 1), np.float32)).item() == 1


FOLDED = {
    "mean": [3.0, -1.0, 0.5, 2.0],
    "variance": [2.0, 0.5, 0.125, 8.0],
    "gamma": [3.0, -2.0, 0.75, 1.5],
    "beta": [5.0, 7.0, -4.0, 1.0],
}


@pytest.mark.parametrize("missing", ["nothing", *FOLDED])
def test_batch_normalization_divides_by_the_root_of_variance_and_epsilon(device, missing, rng):
    """None stands for mean 0, variance 1, gamma 1 and beta 0."""
    given = {name: values for name, values in FOLDED.items() if name != missing}
    x, w, b = grid(rng, (2, 3, 3, 5)), grid(rng, (4, 1, 1, 5)), grid(rng, 4)
    d = mg.ConvolutionDescriptor(1, 1, input_feature_channels=5, output_feature_channels=4)
    d.set_batch_normalization_parameters_for_inference(*map(given.get, FOLDED), 0.25)
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, b, descriptor=d), device=device)

    def folded(x, w, b, **parameters):
        new = oracle.fold_batch_normalization(w, b, epsilon=0.25, **parameters)
        return oracle.forward(oracle.Convolution(), x, *new, size=(3, 3))

    sizes = {name: np.abs(values) for name, values in given.items()}
    sizes["mean"] = -np.abs(given.get("mean", 0.0))  # is subtracted
    scale = folded(np.abs(x), np.abs(w), np.abs(b), **sizes)
    # A root, a quotient and the weight; five products and additions; a bias of two of each.
    assert_close(kernel(x), folded(x, w, b, **given), ulps=ulps_for(3 + 2 * 5 + 4), scale=scale)


def test_nothing_to_fold_undoes_folding(device):
    d = mg.ConvolutionDescriptor(1, 1, input_feature_channels=1, output_feature_channels=1)
    d.set_batch_normalization_parameters_for_inference([3], [1], [2], [5], 0.25)
    d.set_batch_normalization_parameters_for_inference(None, None, None, None, 0.25)
    weights = np.full((1, 1, 1, 1), 2, np.float32)
    source = mg.ArrayConvolutionDataSource(weights, [1], descriptor=d)
    y, state = mg.Convolution(source, device=device)(np.full_like(weights, 10), with_state=True)
    assert y.item() == 21
    assert mg.ConvolutionGradient(source, device=device)(y, weights, state).item() == 42


@pytest.mark.parametrize(("columns", "rows", "dilation"), [(3, 3, 1), (7, 1, 1), (3, 3, 3)])
def test_fused_neuron(queue, columns, rows, dilation, rng):
    d = mg.ConvolutionDescriptor(
        columns, rows, input_feature_channels=5, output_feature_channels=6,
        dilation_rate_x=dilation, dilation_rate_y=dilation,
        fused_neuron_descriptor=mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0, 1, 2, 3, -1, -2]),
    )  # fmt: skip
    x, w = grid(rng, (2, 5, 4, 5)), grid(rng, (6, rows, columns, 5))
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, descriptor=d), device=queue.device)
    slopes = np.array([0, 1, 2, 3, -1, -2])
    want = oracle.forward(
        oracle.Convolution(dilation=(dilation, dilation)),
        x,
        w,
        size=(4, 5),
        neuron=lambda v: np.where(v >= 0, v, slopes * v),
    )
    np.testing.assert_array_equal(kernel(x), want)
    assert kernel.fused_neuron_descriptor.neuron_type == mg.NeuronType.PRELU


SUB_PIXEL = [(2, 8), (3, 9), (3, 27), (4, 80)]


@pytest.mark.parametrize(("factor", "outputs"), SUB_PIXEL)
@pytest.mark.parametrize(("columns", "rows"), [(3, 3), (7, 1)])
def test_sub_pixel(queue, factor, outputs, columns, rows, rng):
    d = mg.SubPixelConvolutionDescriptor(
        columns,
        rows,
        input_feature_channels=3,
        output_feature_channels=outputs,
        sub_pixel_scale_factor=factor,
    )
    x, w, b = grid(rng, (2, 5, 4, 3)), grid(rng, (outputs, rows, columns, 3)), grid(rng, outputs)
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, b, descriptor=d), device=queue.device)
    want = oracle.sub_pixel(
        oracle.Convolution(), x, w, b, factor=factor, size=(4 * factor, 5 * factor)
    )
    np.testing.assert_array_equal(kernel(x), want)
    # A destination that cuts the last blocks.
    size = 4 * factor - 1, 5 * factor - 1
    out = np.full((2, size[1], size[0], outputs // factor**2), np.nan, np.float32)
    kernel.offset = 0, 0
    destinations = kernels.batch(queue.device, out)
    kernels.run(
        queue, lambda cb: kernel.encode_batch(cb, kernels.batch(queue.device, x), destinations)
    )
    want = oracle.sub_pixel(oracle.Convolution(), x, w, b, factor=factor, size=size)
    np.testing.assert_array_equal(kernels.read(queue, destinations), want)


@pytest.mark.parametrize(("factor", "outputs"), SUB_PIXEL)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("cut", [0, 1])
def test_sub_pixel_into_some_channels(queue, factor, outputs, dtype, cut, rng):
    d = mg.SubPixelConvolutionDescriptor(
        3,
        3,
        input_feature_channels=3,
        output_feature_channels=outputs,
        sub_pixel_scale_factor=factor,
    )
    x, w = grid(rng, (2, 3, 37, 3)), grid(rng, (outputs, 3, 3, 3))
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, descriptor=d), device=queue.device)
    size = 37 * factor - cut, 3 * factor - cut
    produced = outputs // factor**2
    kernel.destination_feature_channel_offset = 4
    out = np.full((2, size[1], size[0], produced + 8), 7, dtype)
    destinations = kernels.batch(queue.device, out)
    kernels.run(
        queue, lambda cb: kernel.encode_batch(cb, kernels.batch(queue.device, x), destinations)
    )
    got = kernels.read(queue, destinations)
    want = oracle.sub_pixel(oracle.Convolution(), x, w, np.zeros(outputs), factor=factor, size=size)
    np.testing.assert_array_equal(got[..., 4 : 4 + produced], want.astype(dtype))
    assert (got[..., :4] == 7).all()


SHUFFLED = {
    "plain": ("NONE", {}),
    "prelu": ("PRELU", {"data": np.arange(16) % 5 - 2.5}),
    "relun": ("RELUN", {"a": 0.5, "b": 64.0}),
}


@pytest.mark.parametrize(("kind", "parameters"), SHUFFLED.values(), ids=SHUFFLED)
@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sub_pixel_of_strides_in_a_clip_rectangle(queue, edge, kind, parameters, dtype, rng):
    """Blocks count from the rectangle's origin, and a fused PReLU's slopes before the shuffle."""
    p = oracle.Convolution(stride=(2, 1), dilation=(1, 2), offset=(-1, 2), edge=edge)
    d = mg.SubPixelConvolutionDescriptor(
        3, 2, input_feature_channels=4, output_feature_channels=16, sub_pixel_scale_factor=2,
        stride_in_pixels_x=2, dilation_rate_y=2,
        fused_neuron_descriptor=mg.NeuronDescriptor(getattr(mg.NeuronType, kind), **parameters),
    )  # fmt: skip
    x, w, b = grid(rng, (2, 6, 9, 12), dtype=dtype), grid(rng, (16, 2, 3, 4)), grid(rng, 16)
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, b, descriptor=d), device=queue.device)
    kernel.offset, kernel.clip_rect = p.offset, mg.Region((3, 1), (11, 9))
    kernel.edge_mode = mg.EdgeMode.CLAMP if edge == "clamp" else mg.EdgeMode.ZERO
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    destinations = kernels.batch(queue.device, np.full((2, 12, 15, 13), 0.5, dtype))
    kernels.run(
        queue, lambda cb: kernel.encode_batch(cb, kernels.batch(queue.device, x), destinations)
    )
    want = np.full((2, 12, 15, 13), 0.5)
    want[:, 1:10, 3:14, 8:12] = oracle.sub_pixel(
        p, x[..., 4:8], w, b, factor=2, size=(11, 9),
        neuron=lambda v: neurons.forward(kind, v, **parameters),
    )  # fmt: skip
    assert_exact(kernels.read(queue, destinations), want)


def test_sub_pixel_of_groups(queue, rng):
    d = mg.SubPixelConvolutionDescriptor(
        3, 3, input_feature_channels=8, output_feature_channels=32, groups=2,
        sub_pixel_scale_factor=2,
    )  # fmt: skip
    x, w, b = grid(rng, (2, 5, 4, 8)), grid(rng, (32, 3, 3, 4)), grid(rng, 32)
    kernel = mg.Convolution(mg.ArrayConvolutionDataSource(w, b, descriptor=d), device=queue.device)
    p = oracle.Convolution(groups=2)
    assert_exact(kernel(x), oracle.sub_pixel(p, x, w, b, factor=2, size=(8, 10)))


def test_quantized_weights(queue, rng):
    codes = np.array([0, 255, 51, 128], np.uint8).reshape(2, 1, 1, 2)
    x = rng.standard_normal((1, 3, 3, 2), dtype=np.float32)
    ranges = np.array([[-1, 1], [0, 2]], np.float32)
    table = rng.standard_normal(256).astype(np.float32)
    for options, w in [
        ({"quantization": mg.WeightsQuantizationType.LINEAR, "ranges": ranges},
         oracle.dequantize_linear(codes, ranges)),
        ({"quantization": mg.WeightsQuantizationType.LOOKUP_TABLE, "lookup_table": table},
         oracle.dequantize_table(codes, table)),
    ]:  # fmt: skip
        data_source = mg.ArrayConvolutionDataSource(codes, **options)
        kernel = mg.Convolution(data_source, device=queue.device)
        half = w.astype(np.float32).astype(np.float16)
        want = oracle.forward(oracle.Convolution(), x, half, size=(3, 3))
        scale = oracle.forward(oracle.Convolution(), np.abs(x), np.abs(half), size=(3, 3))
        # Dequantisation may fall on either side of a rounding boundary of the half format.
        assert_close(kernel(x), want, ulps=ulps_for(4) + 2.0**13, scale=scale)
        with pytest.raises(ValueError, match="uint8 weights cannot be trained"):
            mg.ConvolutionGradient(data_source, device=queue.device)


@pytest.mark.parametrize(
    "name",
    ["3x3 s2", "groups of 4", "depthwise 5x5", "dense, odd channels", "flat, many channels"],
)
def test_float16_weights_are_those_numbers(queue, name, rng):
    """To the bit what a source of the same numbers in float32 gives, gradients included."""
    case = next(c for c in EVERY_CASE if c.name == name)
    x, w, b, g = real_arrays(case, rng)
    results = []
    for weights in (w.astype(np.float16), w.astype(np.float16).astype(np.float32)):
        data_source = kernels.source(case, weights, b)
        forward, sources, y, states = kernels.forward(queue, case, data_source, x)
        _, dx, dw, db = kernels.backward(queue, data_source, g, sources, states)
        exported = kernels.run(queue, forward.export_weights_and_biases)
        results.append((y, dx, dw, db, exported.weights.to_numpy(), exported.biases.to_numpy()))
    for half, single in zip(*results, strict=True):
        assert_same_bytes(half, single)
    assert_same_bytes(results[0][4], w.astype(np.float16).astype(np.float32).ravel())


def test_float16_weights_of_a_source_of_ones_own(device):
    source = changed(
        weights=row([0.1, 2, 3]).astype(np.float16),
        data_type=mg.DataType.FLOAT16,
        bias_terms=np.float32([0.1]),  # float32, whatever the weights are
    )
    kernel = mg.Convolution(source, device=device)
    assert kernel(row([1])).item() == 2 + np.float32(0.1)


@pytest.mark.parametrize("how", ["linear", "table"])
@pytest.mark.parametrize("name", ["3x3 s2", "groups of 4", "depthwise 5x5"])
def test_bytes_that_stand_for_float16_numbers_are_those_numbers(queue, name, how, rng):
    case = next(c for c in EVERY_CASE if c.name == name)
    x, b = grid(rng, case.shape), grid(rng, case.outputs)
    codes = rng.integers(0, 255, case.weights_shape, np.uint8, endpoint=True)
    if how == "linear":  # steps of 1 from the least, which differs from channel to channel
        least = -np.arange(case.outputs) / 2
        ranges = np.stack([least, least + 255], axis=-1).astype(np.float32)
        options = {"quantization": mg.WeightsQuantizationType.LINEAR, "ranges": ranges}
        weights = codes + least.reshape(-1, *[1] * (codes.ndim - 1))
    else:
        table = grid(rng, 256, step=0.125, reach=256)
        options = {"quantization": mg.WeightsQuantizationType.LOOKUP_TABLE, "lookup_table": table}
        weights = table[codes]
    source = kernels.source(case, codes, b, **options)
    _, _, y, _ = kernels.forward(queue, case, source, x)
    assert_exact(y, oracle.forward(case.convolution(), x, weights, b, size=case.size))


def pointwise(value, bias=0.0):
    return mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), value, np.float32), [bias])


ONE = np.ones((1, 1, 1, 1), np.float32)


def test_reload_from_the_data_source_spares_encoded_work(queue):
    data_source = pointwise(2)
    kernel = mg.Convolution(data_source, device=queue.device)
    x, first, second = (kernels.batch(queue.device, ONE.copy()) for _ in range(3))
    command_buffer = queue.command_buffer()
    kernel.encode_batch(command_buffer, x, first)
    data_source.weights_array = data_source.weights_array * 5
    kernel.reload_weights_and_biases_from_data_source()
    kernel.encode_batch(command_buffer, x, second)
    mg.synchronize(first, command_buffer)
    mg.synchronize(second, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert (first.to_array().item(), second.to_array().item()) == (2, 10)


def test_reload_on_a_command_buffer_takes_its_turn(queue):
    kernel = mg.Convolution(pointwise(2), device=queue.device)
    x, first, second = (kernels.batch(queue.device, ONE.copy()) for _ in range(3))
    weights = mg.Buffer(queue.device, np.float32([7]))
    state = mg.ConvolutionWeightsAndBiasesState(weights, mg.Buffer(queue.device, np.float32([1])))
    command_buffer = queue.command_buffer()
    kernel.encode_batch(command_buffer, x, first)
    kernel.reload_weights_and_biases(command_buffer, state)
    kernel.encode_batch(command_buffer, x, second)
    weights.write(np.float32([8]))  # read when the command runs
    mg.synchronize(first, command_buffer)
    mg.synchronize(second, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert (first.to_array().item(), second.to_array().item()) == (2, 9)


def test_reloads_are_folded(queue):
    d = mg.ConvolutionDescriptor(1, 1, input_feature_channels=1, output_feature_channels=1)
    d.set_batch_normalization_parameters_for_inference([3], [1], [2], [5], 0.0)
    source = mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), 2, np.float32), [1], descriptor=d)
    kernel = mg.Convolution(source, device=queue.device)
    weights = mg.Buffer(queue.device, np.float32([4]))
    state = mg.ConvolutionWeightsAndBiasesState(weights, mg.Buffer(queue.device, np.float32([6])))
    kernels.run(queue, lambda cb: kernel.reload_weights_and_biases(cb, state))
    assert kernel(np.full((1, 1, 1, 1), 10, np.float32)).item() == 2 * (4 * 10 + 6 - 3) + 5


def test_reloads_are_folded_by_output_channel(queue, rng):
    """As the same weights from a data source, channel by channel."""
    w, b = grid(rng, (5, 3, 3, 4)), grid(rng, (5,))
    d = mg.ConvolutionDescriptor(3, 3, input_feature_channels=4, output_feature_channels=5)
    mean, variance = np.arange(5, dtype=np.float32), np.float32([1, 4, 16, 0.25, 1])
    gamma, beta = np.float32([2, 1, -4, 1, 8]), np.float32([0, 1, 2, 3, -4])
    d.set_batch_normalization_parameters_for_inference(mean, variance, gamma, beta, 0.0)
    x = grid(rng, (2, 6, 7, 4))
    want = mg.Convolution(mg.ArrayConvolutionDataSource(w, b, descriptor=d), device=queue.device)(x)
    kernel = mg.Convolution(
        mg.ArrayConvolutionDataSource(np.ones_like(w), np.ones_like(b), descriptor=d),
        device=queue.device,
    )
    state = mg.ConvolutionWeightsAndBiasesState(
        mg.Buffer(queue.device, w), mg.Buffer(queue.device, b)
    )
    kernels.run(queue, lambda cb: kernel.reload_weights_and_biases(cb, state))
    assert_exact(kernel(x), want)


def test_reloads_of_float16_weights_are_rounded(queue, rng):
    """The kernel's copy, in runs of 1024, whatever the state holds."""
    w = rng.standard_normal((33, 3, 3, 8), np.float32)  # 2376 numbers that float16 has not
    d = mg.ConvolutionDescriptor(3, 3, input_feature_channels=8, output_feature_channels=33)
    source = mg.ArrayConvolutionDataSource(
        np.ones_like(w), descriptor=d, kernel_weights_data_type=mg.DataType.FLOAT16
    )
    kernel = mg.Convolution(source, device=queue.device)
    state = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(queue.device, w))
    exported = []

    def encode(command_buffer):
        kernel.reload_weights_and_biases(command_buffer, state)
        exported.append(kernel.export_weights_and_biases(command_buffer))
        exported[0].synchronize(command_buffer)

    kernels.run(queue, encode)
    halves = w.astype(np.float16).astype(np.float32)
    assert_same_bytes(exported[0].weights.to_numpy(), halves.ravel())
    x = grid(rng, (1, 6, 7, 8))
    rounded = mg.Convolution(
        mg.ArrayConvolutionDataSource(halves, descriptor=d), device=queue.device
    )
    assert_same_bytes(kernel(x), rounded(x))
    assert_same_bytes(state.weights.to_numpy(), w.ravel())


@pytest.mark.parametrize("trained", [False, True])
def test_an_update_reads_both_states(queue, trained):
    optimizer = mg.SGD(0.5, device=queue.device) if trained else None
    w = np.ones((1, 1, 1, 1), np.float32)
    source = mg.ArrayConvolutionDataSource(w, optimizer=optimizer)
    forward = mg.Convolution(source, device=queue.device)
    backward = mg.ConvolutionGradient(source, device=queue.device)

    def encode(command_buffer):
        y, states = forward.encode_batch(
            command_buffer, kernels.batch(queue.device, ONE), with_state=True, temporary_state=True,
            allocator=mg.DEFAULT,
        )  # fmt: skip
        mg.increment_read_count(states, 1)
        backward.encode_batch(command_buffer, y, y, states, allocator=mg.DEFAULT)
        old = forward.export_weights_and_biases(command_buffer, temporary_ok=True)
        new = source.update(command_buffer, states[0], old)
        assert (new is None) is not trained
        assert (states[0].read_count, old.read_count) == (0, 0)

    kernels.run(queue, encode)


def test_a_predicate_skips_reloads_and_exports(queue):
    kernel = mg.Convolution(pointwise(2), device=queue.device)
    state = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(queue.device, np.float32([10])))
    command_buffer = queue.command_buffer()
    command_buffer.predicate = mg.Predicate(mg.Buffer(queue.device, np.uint32([0])))
    kernel.reload_weights_and_biases(command_buffer, state)
    exported = kernel.export_weights_and_biases(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert exported.weights.to_numpy().tolist() == [0]
    assert kernel(ONE).item() == 2


def test_one_state_for_batches_in_parts(queue, rng):
    case = next(c for c in cases.CASES if c.name == "3x3")
    x, w, b, g = kernels.exact_arrays(case, rng)
    x, g = (np.repeat(a, 2, axis=0) for a in (x, g))
    data_source = kernels.source(case, w, b)
    forward = mg.Convolution(data_source, device=queue.device)
    forward.offset = case.offset
    backward = mg.ConvolutionGradient(data_source, device=queue.device)
    sources, gradients = kernels.batch(queue.device, x), kernels.batch(queue.device, g)
    y, dx = kernels.empty(queue.device, g.shape), kernels.empty(queue.device, x.shape)
    states = forward.result_state_batch(sources, y)
    lists = [list(images) for images in (sources, y, states, gradients, dx)]
    parts = [[images[:1] for images in lists], [images[1:] for images in lists]]

    def encode(command_buffer):
        for x_part, y_part, state_part, _, _ in parts:
            forward.encode_batch(command_buffer, x_part, y_part, destination_states=state_part)
        for x_part, _, state_part, g_part, dx_part in parts:
            backward.configure(g_part, x_part, state_part)
            backward.encode_batch(command_buffer, g_part, x_part, state_part, dx_part)
        states[0].synchronize(command_buffer)

    kernels.run(queue, encode)
    want_y, want_dx, want_dw, want_db = expected(case, x, w, b, g)
    np.testing.assert_array_equal(kernels.read(queue, y), want_y)
    np.testing.assert_array_equal(kernels.read(queue, dx), want_dx)
    dw = states[0].gradient_for_weights.to_numpy().reshape(w.shape)
    np.testing.assert_array_equal(dw, want_dw)
    np.testing.assert_array_equal(states[0].gradient_for_biases.to_numpy(), want_db)


def test_reload_without_biases_keeps_them(queue):
    kernel = mg.Convolution(pointwise(2, bias=3), device=queue.device)
    state = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(queue.device, np.float32([10])))
    assert state.biases is None
    kernels.run(queue, lambda cb: kernel.reload_weights_and_biases(cb, state))
    assert kernel(ONE).item() == 13


def test_gradient_kernel_has_weights_of_its_own(queue):
    data_source = pointwise(2)
    forward = mg.Convolution(data_source, device=queue.device)
    backward = mg.ConvolutionGradient(data_source, device=queue.device)
    _, state = forward(ONE, with_state=True)
    assert backward(ONE, ONE, state).item() == 2
    state = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(queue.device, np.float32([10])))
    kernels.run(queue, lambda cb: forward.reload_weights_and_biases(cb, state))
    y, gradient_state = forward(ONE, with_state=True)
    assert y.item() == 10
    assert backward(ONE, ONE, gradient_state).item() == 2
    kernels.run(queue, lambda cb: backward.reload_weights_and_biases(cb, state))
    assert backward(ONE, ONE, gradient_state).item() == 10


def test_first_weights_come_from_the_states_convolution(queue):
    own, other = pointwise(2), pointwise(3)
    forward = mg.Convolution(other, device=queue.device)
    backward = mg.ConvolutionGradient(own, device=queue.device)
    _, state = forward(ONE, with_state=True)
    assert backward(ONE, ONE, state).item() == 3
    backward.reload_weights_and_biases_from_data_source()
    assert backward(ONE, ONE, state).item() == 2


def test_a_reload_keeps_the_descriptor(device):
    """What changes in a descriptor after a kernel was made does not reach the kernel."""
    descriptor = mg.ConvolutionDescriptor(1, 1, input_feature_channels=1, output_feature_channels=1)
    data_source = mg.ArrayConvolutionDataSource(
        np.full((1, 1, 1, 1), 3, np.float32), [1.0], descriptor=descriptor
    )
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    data_source.descriptor().set_batch_normalization_parameters_for_inference(
        None, None, [10.0], None, 0.0
    )
    data_source.weights_array = data_source.weights_array * 2
    y, state = forward(ONE, with_state=True)
    assert y.item() == 4
    assert backward(ONE, ONE, state).item() == 6  # read when first used
    forward.reload_weights_and_biases_from_data_source()
    backward.reload_weights_and_biases_from_data_source()
    assert forward(ONE).item() == 7
    assert backward(ONE, ONE, state).item() == 6


def test_a_reload_may_bring_biases_or_take_them(queue):
    data_source = pointwise(2)
    kernel = mg.Convolution(data_source, device=queue.device)
    for bias in ([5.0], None):
        data_source.bias_array = None if bias is None else np.array(bias, np.float32)
        kernel.reload_weights_and_biases_from_data_source()
        assert kernel(ONE).item() == 2 + (0 if bias is None else 5)
        exported = kernels.run(queue, kernel.export_weights_and_biases)
        assert (None if exported.biases is None else exported.biases.to_numpy().tolist()) == bias


def test_a_reload_cannot_contradict_the_accumulator(device):
    recorder = Recorder()
    kernel = mg.Convolution(recorder, device=device)
    kernel.accumulator_precision = mg.ConvolutionAccumulatorPrecision.HALF
    recorder.kernel_weights_data_type = lambda: mg.DataType.FLOAT32
    with pytest.raises(ValueError, match="FLOAT32 need accumulator_precision FLOAT"):
        kernel.reload_weights_and_biases_from_data_source()
    kernel.accumulator_precision = mg.ConvolutionAccumulatorPrecision.FLOAT
    kernel.reload_weights_and_biases_from_data_source()
    with pytest.raises(ValueError, match="FLOAT32 need accumulator_precision FLOAT"):
        kernel.accumulator_precision = mg.ConvolutionAccumulatorPrecision.HALF


def test_first_weights_cannot_be_bytes(device):
    class Bytes(mg.ConvolutionDataSource):
        def descriptor(self):
            return pointwise(1).descriptor()

        def data_type(self):
            return mg.DataType.UINT8

        def weights(self):
            return np.ones((1, 1, 1, 1), np.uint8)

        def bias_terms(self):
            return None

        def weights_quantization_type(self):
            return mg.WeightsQuantizationType.LOOKUP_TABLE

        def lookup_table_for_uint8_kernel(self):
            return np.arange(256, dtype=np.float32)

    _, state = mg.Convolution(Bytes(), device=device)(ONE, with_state=True)
    backward = mg.ConvolutionGradient(pointwise(2), device=device)
    with pytest.raises(ValueError, match="uint8 weights cannot be trained"):
        backward(ONE, ONE, state)


def test_a_state_is_of_one_kernel(queue):
    first, second = (mg.Convolution(pointwise(w), device=queue.device) for w in (1, 100))
    x = mg.ImageBatch.from_array(queue.device, ONE)
    y = mg.ImageBatch.allocate(queue.device, x[0].descriptor, 1)
    states = first.result_state_batch(x, y)
    with pytest.raises(ValueError, match="Convolution: destination_state was made by another"):
        second.encode_batch(queue.command_buffer(), x, y, destination_states=states)


@pytest.mark.parametrize("cls", [mg.ConvolutionGradient, mg.FullyConnectedGradient])
def test_gradients_have_the_channels_of_the_result(device, cls):
    data_source = mg.ArrayConvolutionDataSource(np.ones((5, 1, 1, 2), np.float32))
    forward = {
        mg.ConvolutionGradient: mg.Convolution,
        mg.FullyConnectedGradient: mg.FullyConnected,
    }[cls](data_source, device=device)
    x = np.ones((1, 1, 1, 2), np.float32)
    _, state = forward(x, with_state=True)
    wide = np.ones((1, 1, 1, 8), np.float32)
    backward = cls(data_source, device=device)
    with pytest.raises(ValueError, match="has 8 channels, but the forward pass wrote 5"):
        backward(wide, x, state)
    backward.primary_source_feature_channel_max_count = 5
    assert backward(wide, x, state).ravel().tolist() == [5, 5]


def test_export_and_offsets(queue):
    data_source = mg.ArrayConvolutionDataSource(np.arange(6, dtype=np.float32).reshape(2, 1, 3, 1))
    kernel = mg.Convolution(data_source, device=queue.device)
    exported = kernels.run(queue, kernel.export_weights_and_biases)
    assert exported.weights.to_numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert exported.biases is None
    both = mg.Buffer(queue.device, np.float32([9, 9, 5, 4, 3, 2, 1, 0, 7, 8]))
    state = mg.ConvolutionWeightsAndBiasesState.with_offsets(
        both, 8, both, 32, data_source.descriptor()
    )
    kernels.run(queue, lambda cb: kernel.reload_weights_and_biases(cb, state))
    x = np.zeros((1, 1, 3, 1), np.float32)
    x[0, 0, 1] = 1
    assert kernel(x)[0, 0, 1].tolist() == [11, 9]


def test_temporary_export_is_spent_by_the_reload(queue):
    kernel = mg.Convolution(pointwise(2), device=queue.device)
    command_buffer = queue.command_buffer()
    state = kernel.export_weights_and_biases(command_buffer, temporary_ok=True)
    assert state.is_temporary
    assert state.read_count == 1
    kernel.reload_weights_and_biases(command_buffer, state)
    assert state.read_count == 0
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        kernel.reload_weights_and_biases(command_buffer, state)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert kernel(ONE).item() == 2


def test_temporary_sums_and_weights_are_private(queue):
    data_source = pointwise(2)
    forward = mg.Convolution(data_source, device=queue.device)
    backward = mg.ConvolutionGradient(data_source, device=queue.device)
    x = kernels.batch(queue.device, ONE)
    command_buffer = queue.command_buffer()
    y, states = forward.encode_batch(
        command_buffer, x, with_state=True, temporary_state=True, allocator=mg.DEFAULT
    )
    states[0].read_count = 2
    backward.encode_batch(command_buffer, y, x, states, allocator=mg.DEFAULT)
    exported = forward.export_weights_and_biases(command_buffer, temporary_ok=True)
    temporaries = {
        "ConvolutionGradientState.gradient_for_weights": states[0].gradient_for_weights,
        "ConvolutionGradientState.gradient_for_biases": states[0].gradient_for_biases,
        "Buffer": exported.weights,
        "": exported.biases,
    }
    command_buffer.commit()
    command_buffer.wait_until_completed()
    for name, buffer in temporaries.items():
        with rejects(RuntimeError, f"{name}: the contents are private to the device and cannot be"):
            buffer.to_numpy()
    states[0].read_count = exported.read_count = 0


# ---- data sources in Python ----------------------------------------------------------------------


class Recorder(mg.ConvolutionDataSource):
    """Notes every call."""

    def __init__(self, loads=True, fail_in=None):
        self.calls = []
        self.loads = loads
        self.fail_in = fail_in

    def _note(self, name):
        self.calls.append(name)
        if name == self.fail_in:
            raise KeyError(name)

    def load(self):
        self._note("load")
        return self.loads

    def purge(self):
        self._note("purge")

    def descriptor(self):
        self._note("descriptor")
        return one_row([1, 1, 1])

    def weights(self):
        self._note("weights")
        return row([1, 2, 3])

    def bias_terms(self):
        self._note("bias_terms")

    def label(self):
        return "third layer"


def test_call_order(device):
    recorder = Recorder()
    kernel = mg.Convolution(recorder, device=device)
    assert recorder.calls[0] == "load"
    assert recorder.calls[-1] == "purge"
    assert recorder.calls.count("load") == recorder.calls.count("purge") == 1
    assert kernel.label == "third layer"
    recorder.calls.clear()
    kernel.reload_weights_and_biases_from_data_source()
    assert recorder.calls[0] == "load"
    assert recorder.calls[-1] == "purge"


def test_a_source_needs_six_methods(device):
    class Plain:
        """What kernels cannot do without."""

    source = Plain()
    for name in ("load", "purge", "descriptor", "data_type", "weights", "bias_terms"):
        with rejects(TypeError, f"Plain has no {name}()"):
            mg.Convolution(source, device=device)
        setattr(source, name, getattr(pointwise(3, bias=1), name))
    kernel = mg.Convolution(source, device=device)
    assert kernel.label == ""
    assert kernel(ONE).item() == 4


def test_apples_default_is_half_weights(device):
    recorder = Recorder()
    recorder.weights = lambda: row([0.1, 0.1, 0.1])
    kernel = mg.Convolution(recorder, device=device)
    assert kernel(row([1])).item() == np.float32(np.float16(0.1))


@pytest.mark.parametrize("loaded", [False, None])
def test_sources_that_do_not_load(device, loaded):
    with rejects(RuntimeError, f"load() of Recorder must return True, got {loaded}"):
        mg.Convolution(Recorder(loads=loaded), device=device)


@pytest.mark.parametrize("cls", [mg.Convolution, mg.ConvolutionTranspose])
def test_arrays_of_more_channels_than_the_weights_take(device, rng, cls):
    """An array of channels, rows and columns would pass for one of rows, columns and channels."""
    weights = rng.standard_normal((4, 1, 1, 3)).astype(np.float32)
    kernel = cls(mg.ArrayConvolutionDataSource(weights), device=device)
    x = rng.standard_normal((2, 3, 5, 8)).astype(np.float32)
    words = (
        f"{cls.__name__}: source must have 3 channels on its last axis, got 8 (shape (2, 3, 5, 8))"
    )
    with rejects(ValueError, words):
        kernel(x)
    with rejects(ValueError, "; np.moveaxis(source, -3, -1) makes one of (N, C, H, W) fit; or set"):
        kernel(x)
    kernel(np.moveaxis(x, -3, -1))
    kernel(np.moveaxis(x[0], -3, -1))
    expected = kernel(x[..., :3].copy())
    kernel.source_feature_channel_max_count = 3
    assert_same_bytes(kernel(x), expected)
    kernel.source_feature_channel_max_count = None
    kernel.source_feature_channel_offset = 4
    assert_same_bytes(
        kernel(x), cls(mg.ArrayConvolutionDataSource(weights), device=device)(x[..., 4:7].copy())
    )


def test_failing_sources(device):
    recorder = Recorder(fail_in="weights")
    with pytest.raises(KeyError, match="weights"):
        mg.Convolution(recorder, device=device)
    assert recorder.calls[-1] == "purge"
    recorder = Recorder(fail_in="purge")
    with pytest.raises(KeyError, match="purge"):
        mg.Convolution(recorder, device=device)
    assert recorder.calls.count("purge") == 1


class Copied(mg.ConvolutionDataSource):
    """Notes how it was copied."""

    how = "not"

    def descriptor(self):
        return pointwise(1).descriptor()

    def weights(self):
        return np.ones((1, 1, 1, 1), np.float32)

    def bias_terms(self):
        return None

    def noted(self, how):
        other = type(self)()
        other.how = how
        return other


class ForDevice(Copied):
    def copy(self, device=None):
        return self.noted(f"for {device.kind}")


class Plainly(Copied):
    def copy(self):
        return self.noted("plainly")


class ByPython(Copied):
    def __copy__(self):
        return self.noted("by Python")


def test_data_sources_are_copied_as_they_can_be(device):
    ways = {ForDevice: f"for {device.kind}", Plainly: "plainly", ByPython: "by Python"}
    for cls, how in ways.items():
        kernel = mg.Convolution(cls(), device=device)
        assert kernel.copy(device).data_source.how == how
    shared = Copied()
    assert mg.Convolution(shared, device=device).copy().data_source is shared
    own = mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1), np.float32))
    assert mg.Convolution(own, device=device).copy(device).data_source is not own


def test_copies_do_not_share_weights(device):
    data_source = pointwise(2)
    kernel = mg.Convolution(data_source, device=device)
    kernel.offset = 1, 0
    twin = copy.copy(kernel)
    data_source.weights_array = data_source.weights_array * 5
    twin.reload_weights_and_biases_from_data_source()
    assert twin.data_source is not data_source
    assert twin(ONE).item() == 2
    assert kernel.offset == mg.Offset(1, 0, 0)
    assert mg.Convolution.from_bytes(kernel.to_bytes(), device).offset == mg.Offset(1, 0, 0)


# ---- fully connected -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 4, 5, 6), (2, 7, 1, 3), (5, 8, 8, 2)], ids=str)
@pytest.mark.parametrize("outputs", [1, 10])
def test_fully_connected(queue, shape, outputs, rng):
    n, h, w, c = shape
    x, weights, b = grid(rng, shape), grid(rng, (outputs, h, w, c)), grid(rng, outputs)
    g = grid(rng, (n, 1, 1, outputs))
    data_source = mg.ArrayConvolutionDataSource(weights, b)
    forward = mg.FullyConnected(data_source, device=queue.device)
    forward.offset = 3, -2  # ignored
    y, state = forward(x, with_state=True)
    np.testing.assert_array_equal(y, oracle.fully_connected(x, weights, b))
    dx = mg.FullyConnectedGradient(data_source, device=queue.device)(g, x, state)
    np.testing.assert_array_equal(dx, oracle.fully_connected_data_gradient(g, weights))
    dw = state.gradient_for_weights.to_numpy().reshape(weights.shape)
    np.testing.assert_array_equal(dw, oracle.fully_connected_weight_gradient(g, x))
    np.testing.assert_array_equal(state.gradient_for_biases.to_numpy(), oracle.bias_gradient(g))


# One chunk of pixels, two of them, and pixels that are no whole lines.
@pytest.mark.parametrize("shape", [(3, 2, 2, 1024), (600, 2, 2, 1024), (3, 2, 2, 1030)], ids=str)
def test_weight_gradients_that_go_past_the_caches(device, shape, rng):
    if device.kind != "cpu":
        pytest.skip("of the CPU device's stores")
    outputs = 2100
    x, g = grid(rng, shape), grid(rng, (shape[0], 1, 1, outputs))
    data_source = mg.ArrayConvolutionDataSource(np.zeros((outputs, *shape[1:]), np.float32))
    forward = mg.FullyConnected(data_source, device=device)
    kernel = mg.FullyConnectedGradient(data_source, device=device)
    kernel.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
    _, state = forward(x, with_state=True)
    kernels.spoil([state])
    exact = oracle.fully_connected_weight_gradient(g, x)
    assert exact.size * 4 > 32 << 20
    for times in (1, 2):  # written, then added to
        kernel(g, x, state)
        dw = state.gradient_for_weights.to_numpy().reshape(exact.shape)
        np.testing.assert_array_equal(dw, times * exact)


def test_fully_connected_is_a_convolution(device):
    kernel = mg.FullyConnected(mg.ArrayConvolutionDataSource(np.ones((2, 3, 3, 1))), device=device)
    assert isinstance(kernel, mg.UnaryKernel)
    assert kernel.padding.padding_method() == mg.PaddingMethod.SIZE_VALID_ONLY
    with pytest.raises(ValueError, match="source is 4x3, but the weights cover 3x3"):
        kernel(np.zeros((1, 3, 4, 1), np.float32))


def test_fully_connected_into_one_pixel_of_a_larger_image(queue, rng):
    device = queue.device
    x, w = grid(rng, (2, 3, 3, 4)), grid(rng, (8, 3, 3, 4))
    kernel = mg.FullyConnected(mg.ArrayConvolutionDataSource(w), device=device)
    sources = kernels.batch(device, x)
    results = kernels.batch(device, np.full((2, 2, 2, 8), 0.5, np.float32))
    words = "FullyConnected: the destination must be 1x1 within clip_rect, got 2x2"

    def encode(command_buffer):
        with rejects(ValueError, words):
            kernel.encode_batch(command_buffer, sources, results)
        kernel.clip_rect = mg.Region((0, 1), (1, 1))
        kernel.encode_batch(command_buffer, sources, results)

    kernels.run(queue, encode)
    want = np.full((2, 2, 2, 8), 0.5)
    want[:, 1:, :1] = oracle.fully_connected(x, w)
    assert_exact(kernels.read(queue, results), want)


FULLY_CONNECTED_REJECTED = {
    "stride": (one_row([1, 2], stride_in_pixels_x=2), "strides must be 1, got 2 and 1"),
    "dilation": (one_row([1, 2], dilation_rate_y=2), "dilation rates must be 1, got 1 and 2"),
    "groups": (
        mg.ConvolutionDescriptor(
            1, 1, input_feature_channels=8, output_feature_channels=8, groups=2
        ),
        "groups must be 1, got 2",
    ),
    "depthwise": (
        mg.DepthWiseConvolutionDescriptor(
            1, 1, input_feature_channels=8, output_feature_channels=8
        ),
        "the descriptor must be a plain ConvolutionDescriptor",
    ),
    "sub-pixel": (
        mg.SubPixelConvolutionDescriptor(
            1, 1, input_feature_channels=8, output_feature_channels=8, sub_pixel_scale_factor=2
        ),
        "the descriptor must be a plain ConvolutionDescriptor",
    ),
}


@pytest.mark.parametrize("cls", [mg.FullyConnected, mg.FullyConnectedGradient])
@pytest.mark.parametrize(
    ("d", "words"), FULLY_CONNECTED_REJECTED.values(), ids=FULLY_CONNECTED_REJECTED
)
def test_fully_connected_is_of_plain_descriptors(device, cls, d, words):
    source = mg.ArrayConvolutionDataSource(np.ones(d.weight_shape, np.float32), descriptor=d)
    with rejects(ValueError, f"{cls.__name__}: {words}"):
        cls(source, device=device)


# ---- arrays, determinism, read counts ------------------------------------------------------------


def test_out(device, rng):
    case = next(c for c in cases.CASES if c.name == "3x3")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = kernels.source(case, w, b)
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    want = expected(case, x, w, b, g)
    with Guarded(case.result_shape) as out:
        y, state = forward(x, with_state=True, out=out)
        assert y is out
        np.testing.assert_array_equal(out, want[0])
    with Guarded(case.shape, skew=1) as out:
        assert backward(g, x, state, out=out) is out
        np.testing.assert_array_equal(out, want[1])


# Small ones, and ones whose gradient channels are shared out.
THREAD_CASES = [
    *(
        c
        for c in cases.CASES
        if c.name in {"channels 17 to 13", "depthwise", "groups 3 s2", "3x3 s2"}
    ),
    *cases.FLAT[:2],
    *cases.DENSE,
    cases.ConvolutionCase("3x3, 64 to 256 channels", (1, 7, 7, 64), 256, (3, 3)),
    cases.ConvolutionCase("depthwise 170", (1, 14, 14, 170), 170, (3, 3), depthwise=True),
]


@pytest.mark.parametrize("case", THREAD_CASES, ids=lambda case: case.name)
def test_same_bits_for_any_number_of_threads(queue, case, rng):
    x, w, b, g = real_arrays(case, rng)
    x, g = (np.repeat(a, 9, axis=0) for a in (x, g))
    data_source = kernels.source(case, w, b)

    def run():
        forward = mg.Convolution(data_source, device=queue.device)
        backward = mg.ConvolutionGradient(data_source, device=queue.device)
        y, state = forward(x, with_state=True)
        gradient = g[:, : y.shape[1], : y.shape[2]]
        dx = backward(np.resize(gradient, y.shape), x, state)
        return y, dx, state.gradient_for_weights.to_numpy(), state.gradient_for_biases.to_numpy()

    check_thread_independence(run, (1, 2, 5, 2))


def test_read_counts_of_a_training_step(queue):
    device = queue.device
    data_source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    command_buffer = queue.command_buffer()
    d = mg.ImageDescriptor(5, 5, 4)
    x = mg.ImageBatch.temporary(command_buffer, d, 3)
    mg.increment_read_count(x, 1)
    y, states = forward.encode_batch(command_buffer, x, with_state=True, temporary_state=True)
    assert [image.read_count for image in x] == [1, 1, 1]
    assert all(state is states[0] for state in states)
    assert mg.increment_read_count(states, 1) == 1
    assert states[0].read_count == 2
    dx = backward.encode_batch(command_buffer, y, x, states)
    assert states[0].read_count == 1
    assert [image.read_count for image in x] == [0, 0, 0]
    assert [image.read_count for image in y] == [0, 0, 0]
    mg.increment_read_count(dx, -1)
    states[0].read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_clamp_warns_once():
    program = """
import warnings, numpy as np, mpsgrad as mg
x = np.ones((1, 3, 3, 1), np.float32)
source = mg.ArrayConvolutionDataSource(np.ones((1, 3, 3, 1), np.float32))
forward = mg.Convolution(source, device="cpu")
backward = mg.ConvolutionGradient(source, device="cpu")
_, plain_state = forward(x, with_state=True)
forward.edge_mode = mg.EdgeMode.CLAMP
_, state = forward(x, with_state=True)
whole = mg.FullyConnected(source, device="cpu")
whole.edge_mode = mg.EdgeMode.CLAMP
one, whole_state = whole(x, with_state=True)
with warnings.catch_warnings():
    warnings.simplefilter("error")  # a border of zeros, or none, or no data gradient
    mg.ConvolutionGradient(source, device="cpu")(x, x, plain_state)
    mg.FullyConnectedGradient(source, device="cpu")(one, x, whole_state)
    backward.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
    backward(x, x, state)
backward.gradient_option = mg.ConvolutionGradientOption.ALL
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    backward(x, x, state)
    backward(x, x, state)
print([(w.category.__name__, str(w.message)[:40]) for w in caught])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    words = "ConvolutionGradient: after a forward pass"[:40]
    assert result.stdout.strip() == f"[('RuntimeWarning', '{words}')]"


# ---- rejections ----------------------------------------------------------------------------------


def plain(**changes):
    arguments = {"kernel_width": 3, "kernel_height": 3, "input_feature_channels": 8,
                 "output_feature_channels": 8, **changes}  # fmt: skip
    return mg.ConvolutionDescriptor(**arguments)


DESCRIPTORS = {
    "division": ({"groups": 3}, "groups 3 must divide 8 input and 8 output channels"),
    "small groups": ({"groups": 4}, "multiples of 4, got 2 inputs and 2 outputs"),
}


@pytest.mark.parametrize(("changes", "words"), DESCRIPTORS.values(), ids=DESCRIPTORS)
def test_rejected_descriptors(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        plain(**changes)


@pytest.mark.parametrize("position", range(4))
def test_rejected_batch_normalization_changes_nothing(position):
    d, zeros = plain(), np.zeros(8, np.float32)
    arrays = [zeros] * 4
    arrays[position] = "abc"
    name = ("mean", "variance", "gamma", "beta")[position]
    with pytest.raises(TypeError, match=f"{name} must be an array of numbers, got str"):
        d.set_batch_normalization_parameters_for_inference(*arrays, 0.1)
    assert d._batch_normalization is None


COUNTS = (
    *("kernel_width", "kernel_height", "input_feature_channels", "output_feature_channels"),
    *("stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "dilation_rate_y", "groups"),
)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_a_descriptor_are_at_least_1(name, value):
    d = plain()
    for refused in (lambda: plain(**{name: value}), lambda: setattr(d, name, value)):
        with rejects(ValueError, f"ConvolutionDescriptor: {name} must be at least 1, got {value}"):
            refused()
    assert d == plain()


def test_a_fused_prelu_has_a_slope_for_each_output():
    def prelu(slopes):
        return mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.5] * slopes)

    few = "ConvolutionDescriptor: PRELU data has {} values for {} channels"
    with rejects(ValueError, few.format(7, 8)):
        plain(fused_neuron_descriptor=prelu(7))
    d = plain()
    with rejects(ValueError, few.format(7, 8)):
        d.fused_neuron_descriptor = prelu(7)
    assert d == plain()
    d.fused_neuron_descriptor = prelu(8)
    with rejects(ValueError, few.format(8, 9)):
        d.output_feature_channels = 9
    assert d == plain(fused_neuron_descriptor=prelu(8))
    d.fused_neuron_descriptor = prelu(9)  # more do no harm
    d.output_feature_channels = 9


def test_rejected_assignment_changes_nothing():
    d = plain()
    with pytest.raises(ValueError, match="groups 3 must divide"):
        d.groups = 3
    assert d.groups == 1


def test_rejected_special_descriptors():
    with pytest.raises(ValueError, match="as many outputs as inputs, got 4 inputs and 8 outputs"):
        mg.DepthWiseConvolutionDescriptor(input_feature_channels=4, output_feature_channels=8)
    with pytest.raises(ValueError, match="must have groups 1, got 2"):
        mg.DepthWiseConvolutionDescriptor(
            input_feature_channels=8, output_feature_channels=8, groups=2
        )
    with pytest.raises(ValueError, match="needs a multiple of 4 output channels, got 6"):
        mg.SubPixelConvolutionDescriptor(
            input_feature_channels=1, output_feature_channels=6, sub_pixel_scale_factor=2
        )
    with pytest.raises(ValueError, match="must produce a multiple of 4 channels, got 2"):
        mg.SubPixelConvolutionDescriptor(
            input_feature_channels=8,
            output_feature_channels=8,
            groups=2,
            sub_pixel_scale_factor=2,
        )
    with pytest.raises(ValueError, match="sub_pixel_scale_factor must be at least 1, got 0"):
        mg.SubPixelConvolutionDescriptor(
            input_feature_channels=8, output_feature_channels=8, sub_pixel_scale_factor=0
        )
    for factor in (16385, 2**32, 3037000500, 2**62):
        with pytest.raises(ValueError, match=f"must be at most 16384, got {factor}"):
            mg.SubPixelConvolutionDescriptor(
                input_feature_channels=4, output_feature_channels=4, sub_pixel_scale_factor=factor
            )
    for sizes in ((2**62 + 1, 1, 1), (2**24, 2**24, 1), (1, 2**40, 2**40), (4, 2**46, 1)):
        with pytest.raises(ValueError, match="are more than any memory holds"):
            mg.ConvolutionDescriptor(
                sizes[2], 1, input_feature_channels=sizes[0], output_feature_channels=sizes[1]
            )


def test_descriptors_with_the_same_settings_are_equal():
    d = plain()
    assert d == d.copy() == plain()
    assert d != plain(stride_in_pixels_x=2)
    changed = d.copy()
    changed.set_batch_normalization_parameters_for_inference(np.ones(8), None, None, None, 0.1)
    assert changed != d
    assert changed == changed.copy()


def test_rejected_descriptor_of_another_kind():
    source = mg.ArrayConvolutionDataSource(np.zeros((1, 1, 1, 1), np.float32))
    with pytest.raises(TypeError, match="must be a ConvolutionDescriptor or None, got method"):
        mg.ArrayConvolutionDataSource(source.weights_array, descriptor=source.descriptor)


def changed(**methods):
    recorder = Recorder()
    for name, value in methods.items():
        setattr(recorder, name, lambda value=value: value)
    return recorder


def eight_bit(**methods):
    return changed(weights=np.zeros(3, np.uint8), data_type=mg.DataType.UINT8, **methods)


SOURCES = {
    "length": (changed(weights=row([1, 2])), ValueError, "weights() must have 3 values"),
    "axes in another order": (
        changed(descriptor=mg.ConvolutionDescriptor(3, 3, input_feature_channels=4,
                                                    output_feature_channels=8),
                weights=np.zeros((8, 4, 3, 3), np.float32)),
        ValueError, "weights() must have shape (8, 3, 3, 4) or be flat, got (8, 4, 3, 3)"),
    "dtype": (changed(weights=row([1, 2, 3]).astype(np.float64)), TypeError,
              "weights() must be float32 as data_type() says, got float64"),
    "bias length": (changed(bias_terms=np.zeros(2, np.float32)), ValueError,
                    "bias_terms() must have 1 values, got 2"),
    "bias dtype": (changed(bias_terms=np.zeros(1)), TypeError, "bias_terms() must be float32"),
    "no quantization": (eight_bit(), ValueError, "uint8 weights need weights_quantization_type()"),
    "float kernel, half weights": (
        changed(weights=np.zeros(3, np.float16), data_type=mg.DataType.FLOAT16,
                kernel_weights_data_type=mg.DataType.FLOAT32),
        ValueError, "kernel weights of FLOAT32 need a data_type() of FLOAT32"),
    "weights layout": (changed(weights_layout=1), ValueError,
                       "weights_layout() must be OHWI, Apple's only one, got 1"),
    "data type": (changed(data_type=mg.DataType.INT8), ValueError,
                  "must be FLOAT32, FLOAT16 or UINT8"),
    "no data type": (changed(data_type="float32"), TypeError,
                     "data_type() must be an integer, got str"),
    "quantization": (changed(weights_quantization_type=7), ValueError,
                     "weights_quantization_type() must be NONE, LINEAR or LOOKUP_TABLE, got 7"),
    "no table": (eight_bit(weights_quantization_type=2, lookup_table_for_uint8_kernel="abc"),
                 TypeError, "lookup_table_for_uint8_kernel() must be an array of numbers, got str"),
    "no ranges": (eight_bit(weights_quantization_type=1, ranges_for_uint8_kernel=[object()]),
                  TypeError, "ranges_for_uint8_kernel() must be an array of numbers, got list"),
    "number of ranges": (
        eight_bit(weights_quantization_type=1, ranges_for_uint8_kernel=np.zeros((2, 2))),
        ValueError, "ranges_for_uint8_kernel() must have a (minimum, maximum) pair for each of 1 "
        "output channels, got 4 numbers"),
    "length of the table": (
        eight_bit(weights_quantization_type=2, lookup_table_for_uint8_kernel=np.zeros(255)),
        ValueError, "lookup_table_for_uint8_kernel() must have 256 values, got 255"),
    "kernel weights of bytes": (changed(kernel_weights_data_type=mg.DataType.UINT8), ValueError,
                                "kernel_weights_data_type() must be FLOAT16 or FLOAT32"),
    "float kernel, bytes": (
        eight_bit(weights_quantization_type=2, lookup_table_for_uint8_kernel=np.zeros(256),
                  kernel_weights_data_type=mg.DataType.FLOAT32),
        ValueError, "kernel weights of FLOAT32 need a data_type() of FLOAT32"),
    "label": (changed(label=3), TypeError, "label() must be a str or None, got int"),
    "descriptor": (changed(descriptor=3), TypeError,
                   "descriptor() must return a ConvolutionDescriptor, got int"),
    "no source": (object(), TypeError, "object has no load()"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "error", "words"), SOURCES.values(), ids=SOURCES)
def test_rejected_sources(device, source, error, words):
    with pytest.raises(error, match=re.escape(words)):
        mg.Convolution(source, device=device)


OF_WEIGHTS = "an array of float32, float16 or uint8"


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("weights_array", np.ones((4, 3, 3, 2)), f"{OF_WEIGHTS}, got ndarray of float64"),
        ("weights_array", np.ones((4, 3, 3, 2)).tolist(), f"{OF_WEIGHTS}, got list"),
        ("bias_array", np.ones(4), "an array of float32 or None, got ndarray of float64"),
        ("bias_array", [1.0] * 4, "an array of float32 or None, got list"),
    ],
)
def test_array_source_checks_what_was_put_into_it(device, attribute, value, words):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 2), np.float32), np.ones(4))
    kernel = mg.Convolution(source, device=device)
    setattr(source, attribute, value)
    assert repr(source).startswith("ArrayConvolutionDataSource(float")
    with rejects(TypeError, f"ArrayConvolutionDataSource: {attribute} must be {words}"):
        kernel.reload_weights_and_biases_from_data_source()


def test_array_source_checks_the_shape_of_what_was_put_into_it(device):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 2), np.float32))
    kernel = mg.Convolution(source, device=device)
    source.weights_array = np.ones((4, 2, 3, 3), np.float32)
    words = "weights_array must have shape (4, 3, 3, 2), got (4, 2, 3, 3)"
    with rejects(ValueError, f"ArrayConvolutionDataSource: {words}"):
        kernel.reload_weights_and_biases_from_data_source()


def test_weights_in_the_order_of_other_frameworks(device):
    kernel = mg.Convolution(
        mg.ArrayConvolutionDataSource(np.ones((16, 8, 3, 3), np.float32)), device=device
    )
    with rejects(ValueError, "are the weights (O, I, H, W)? Theirs is (O, H, W, I); or set"):
        kernel(np.ones((2, 5, 5, 8), np.float32))


def test_weights_of_a_source_of_ones_own_may_be_flat_or_rows(device):
    descriptor = mg.ConvolutionDescriptor(3, 3, input_feature_channels=4, output_feature_channels=8)
    weights = np.arange(288, dtype=np.float32).reshape(8, 3, 3, 4)
    x = np.ones((1, 5, 5, 4), np.float32)
    expected = mg.Convolution(mg.ArrayConvolutionDataSource(weights), device=device)(x)
    for shape in ((288,), (8, 36), (8, 3, 3, 4), (8, 1, 3, 3, 4), (8, 9, 4), (2, 4, 3, 3, 4)):
        own = changed(
            descriptor=descriptor,
            weights=weights.reshape(shape),
            bias_terms=None,
            kernel_weights_data_type=mg.DataType.FLOAT32,
        )
        assert_same_bytes(mg.Convolution(own, device=device)(x), expected)


def test_methods_of_array_sources_are_not_arrays():
    array = np.ones((4, 3, 3, 2), np.float32)
    source = mg.ArrayConvolutionDataSource(array)
    words = "ArrayConvolutionDataSource: {} must be a method, got {}"
    with rejects(TypeError, words.format("weights", "ndarray; did you mean weights_array?")):
        source.weights = array
    with rejects(TypeError, words.format("bias_terms", "ndarray; did you mean bias_array?")):
        source.bias_terms = array[:, 0, 0, 0]
    with rejects(TypeError, words.format("label", "str")):
        source.label = "first"
    source.label = lambda: "first"
    assert mg.Convolution(source).label == "first"
    source.note = "an attribute of the user's"


def test_members_of_own_sources_must_be_methods(device):
    class Own(Recorder):
        pass

    source = Own()
    kernel = mg.Convolution(source, device=device)
    source.label = "first"
    words = "label of the data source Own must be a method, got str"
    for make in (mg.Convolution, mg.ConvolutionGradient, mg.FullyConnected):
        with rejects(TypeError, f"{make.__name__}: {words}"):
            make(source, device=device)
    with rejects(TypeError, f"Convolution: {words}"):
        kernel.reload_weights_and_biases_from_data_source()


def test_array_source_checks_its_shape():
    with pytest.raises(
        ValueError, match=re.escape("must have shape (1, 1, 2, 1), got (1, 1, 3, 1)")
    ):
        mg.ArrayConvolutionDataSource(row([1, 2, 3]), descriptor=one_row([1, 2]))
    with pytest.raises(ValueError, match=re.escape("must have shape (O, H, W, I)")):
        mg.ArrayConvolutionDataSource(np.zeros(3))


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (3,), ()], ids=str)
def test_array_source_checks_the_shape_of_biases(shape):
    words = f"ArrayConvolutionDataSource: biases must have shape (2,), got {shape}"
    with pytest.raises(ValueError, match=re.escape(words)):
        mg.ArrayConvolutionDataSource(np.zeros((2, 1, 1, 1)), np.zeros(shape))
    with pytest.raises(ValueError, match=re.escape("must have shape (1,), got ()")):
        mg.ArrayConvolutionDataSource(np.zeros((1, 1, 1, 1)), 1.0)


class OwnArrays(mg.ArrayConvolutionDataSource):
    """A source whose name messages must show, not that of its base."""


OWN_REJECTED = {
    "descriptor": (row([1]), {"descriptor": 3}, TypeError, "descriptor must be a Convolution"),
    "axes": (np.zeros(3), {}, ValueError, "weights must have shape (O, H, W, I)"),
    "weights": (row([1]), {"descriptor": one_row([1, 2])}, ValueError,
                "weights must have shape (1, 1, 2, 1), got (1, 1, 1, 1)"),
    "biases": (row([1]), {"biases": [1, 2]}, ValueError,
               "biases must have shape (1,), got (2,)"),
    "optimizer": (row([1]), {"optimizer": 3}, TypeError, "optimizer must be an Optimizer"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "options", "error", "words"), OWN_REJECTED.values(), ids=OWN_REJECTED
)
def test_messages_of_array_sources_name_the_subclass(weights, options, error, words):
    with pytest.raises(error, match=f"^OwnArrays: {re.escape(words)}"):
        OwnArrays(weights, **options)


UNTRAINABLE = {
    "fused neuron": plain(fused_neuron_descriptor=mg.NeuronDescriptor(mg.NeuronType.RELU)),
    "folded batch normalization": plain(),
    "sub-pixel": mg.SubPixelConvolutionDescriptor(
        input_feature_channels=8, output_feature_channels=8, sub_pixel_scale_factor=2
    ),
}
UNTRAINABLE["folded batch normalization"].set_batch_normalization_parameters_for_inference(
    np.zeros(8), np.ones(8), None, None, 1e-3
)


@pytest.mark.parametrize(("reason", "d"), UNTRAINABLE.items(), ids=UNTRAINABLE)
def test_untrainable(device, reason, d):
    source = mg.ArrayConvolutionDataSource(np.ones((8, 3, 3, 8), np.float32), descriptor=d)
    with pytest.raises(ValueError, match=reason):
        mg.ConvolutionGradient(source, device=device)
    forward = mg.Convolution(source, device=device)
    x = np.ones((1, 3, 3, 8), np.float32)
    _y, state = forward(x, with_state=True)  # legal: inference may want the state
    plain_source = mg.ArrayConvolutionDataSource(np.ones((8, 3, 3, 8), np.float32))
    backward = mg.ConvolutionGradient(plain_source, device=device)
    gradient = np.ones((1, 3, 3, 8), np.float32)
    with pytest.raises(ValueError, match=reason):
        backward(gradient, x, state)


def test_rejected_encodes(queue):
    device = queue.device
    data_source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 8), np.float32))
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    x = np.ones((2, 5, 5, 8), np.float32)
    with pytest.raises(ValueError, match="offers 4 channels from offset 0, but the kernel reads 8"):
        forward(x[..., :4])
    y, state = forward(x, with_state=True)
    with pytest.raises(ValueError, match="source_gradient is 4x5, but the forward pass wrote 5x5"):
        backward(np.ascontiguousarray(y[:, :, :4]), x, state)
    with pytest.raises(ValueError, match="but the kernel reads 4"):
        backward(np.ascontiguousarray(y[..., :3]), x, state)
    with pytest.raises(ValueError, match="source is 4x5, but the state was made for"):
        backward(y, np.ascontiguousarray(x[:, :, :4]), state)
    with pytest.raises(TypeError, match="state must be a State or a list of states, got int"):
        backward(y, x, 3)
    other = mg.Convolution(
        mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 8), np.float32)), device=device
    )
    _, wrong = other(x, with_state=True)
    with pytest.raises(ValueError, match="made by a convolution of another shape"):
        backward(y, x, wrong)
    neuron = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    _, wrong = neuron(x, with_state=True)
    with pytest.raises(TypeError, match="it was made by Neuron"):
        backward(y, x, wrong)
    _, first = forward(x[:1], with_state=True)
    _, second = forward(x[:1], with_state=True)
    with pytest.raises(ValueError, match="must be one and the same object"):
        backward(y, x, [first, second])
    for option in (0, 4):
        with pytest.raises(ValueError, match="gradient_option must be DATA"):
            backward.gradient_option = option
    assert backward.gradient_option == 3
    with pytest.raises(ValueError, match="FLOAT32 need accumulator_precision FLOAT"):
        forward.accumulator_precision = mg.ConvolutionAccumulatorPrecision.HALF


def test_stale_properties_are_refused(queue):
    device = queue.device
    data_source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    forward = mg.Convolution(data_source, device=device)
    backward = mg.ConvolutionGradient(data_source, device=device)
    x, y, dx = (kernels.batch(device, np.ones((1, 5, 5, 4), np.float32)) for _ in range(3))
    states = forward.result_state_batch(x, y)
    command_buffer = queue.command_buffer()
    with pytest.raises(mg.errors.StateError, match="no forward encode has filled this state"):
        backward.encode_batch(command_buffer, y, x, states)
    forward.encode_batch(command_buffer, x, y, destination_states=states)
    forward.offset = 1, 0
    with pytest.raises(mg.errors.StateError, match=re.escape("changed after result_state()")):
        forward.encode_batch(command_buffer, x, y, destination_states=states)
    with pytest.raises(mg.errors.StateError, match=re.escape("call configure(")):
        backward.encode_batch(command_buffer, y, x, states, dx)
    forward.offset = 0, 0
    forward.options = mg.KernelOptions.ALLOW_REDUCED_PRECISION
    with pytest.raises(mg.errors.StateError, match=re.escape("changed after result_state()")):
        forward.encode_batch(command_buffer, x, y, destination_states=states)
    backward.configure(y, x, states)
    backward.encode_batch(command_buffer, y, x, states, dx)
    backward.primary_offset = 1, 0
    with pytest.raises(ValueError, match="primary_offset must be 0"):
        backward.encode_batch(command_buffer, y, x, states, dx)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_what_a_dropped_command_buffer_was_to_do_is_not_done(device, queue):
    """Its states were never filled, and gradients that it was to sum are not there."""
    x = mg.ImageBatch.from_array(device, np.ones((1, 4, 4, 4), np.float32))
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    forward = mg.Convolution(source, device=device)
    backward = mg.ConvolutionGradient(source, device=device)
    dropped = queue.command_buffer()
    _, state = forward.encode_batch(dropped, x, with_state=True, allocator=mg.DEFAULT)
    del dropped
    command_buffer = queue.command_buffer()
    with pytest.raises(mg.errors.StateError, match="no forward encode has filled this state"):
        backward.encode_batch(command_buffer, x, x, state, allocator=mg.DEFAULT)
    _, state = forward.encode_batch(command_buffer, x, with_state=True, allocator=mg.DEFAULT)
    dropped = queue.command_buffer()
    backward.encode_batch(dropped, x, x, state, allocator=mg.DEFAULT)
    del dropped
    weights = mg.ConvolutionWeightsAndBiasesState.for_descriptor(device, source.descriptor())
    rule = mg.StochasticGradientDescent(0.5, device=device)
    with pytest.raises(mg.errors.StateError, match="no gradients yet"):
        rule.encode_convolution(command_buffer, state[0], weights, None, weights)


def test_gradients_are_refused_before_they_are_done(queue):
    data_source = pointwise(2)
    forward = mg.Convolution(data_source, device=queue.device)
    backward = mg.ConvolutionGradient(data_source, device=queue.device)
    x = kernels.batch(queue.device, ONE)
    command_buffer = queue.command_buffer()
    y, states = forward.encode_batch(command_buffer, x, with_state=True, allocator=mg.DEFAULT)
    dx = backward.encode_batch(command_buffer, y, x, states, allocator=mg.DEFAULT)
    states[0].synchronize(command_buffer)
    mg.synchronize(dx, command_buffer)
    for array in (states[0].gradient_for_weights, states[0].gradient_for_biases):
        with pytest.raises(RuntimeError, match="has not been committed"):
            array.to_numpy()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert states[0].gradient_for_weights.to_numpy().tolist() == [2]
    assert dx[0].read().item() == 4


def test_reload_is_checked(queue):
    kernel = mg.Convolution(pointwise(2), device=queue.device)
    command_buffer = queue.command_buffer()
    state = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(queue.device, np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="the state holds 2 weights, but the kernel has 1"):
        kernel.reload_weights_and_biases(command_buffer, state)
    weights = mg.Buffer(queue.device, np.zeros(1, np.float32))
    biases = mg.Buffer(queue.device, np.zeros(2, np.float32))
    state = mg.ConvolutionWeightsAndBiasesState(weights, biases)
    with pytest.raises(ValueError, match="the state holds 2 biases"):
        kernel.reload_weights_and_biases(command_buffer, state)
    d = kernel.data_source.descriptor()
    with pytest.raises(ValueError, match="multiple of 4 and not negative, got 2"):
        mg.ConvolutionWeightsAndBiasesState.with_offsets(biases, 2, biases, 4, d)
    with pytest.raises(ValueError, match="biases needs 4 bytes from biases_offset 8 on"):
        mg.ConvolutionWeightsAndBiasesState.with_offsets(biases, 0, biases, 8, d)
    with pytest.raises(ValueError, match="weights needs 4 bytes from weights_offset"):
        mg.ConvolutionWeightsAndBiasesState.with_offsets(biases, 2**63 - 4, biases, 4, d)
    with pytest.raises(TypeError, match="made by a kernel"):
        mg.ConvolutionGradientState()
