"""Kernels called with arrays: what is accepted, what is refused, whose memory a result is."""

import array
import re
from functools import partial

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import counting, linear, linear_gradient
from tests.rejects import rejects
from tests.repeats import call_at_once, check_thread_independence, threads


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 3, 4), (3, 2, 3, 5)], ids=str)
def test_results_have_the_sources_shape_and_dtype(device, shape, dtype):
    x = counting(*shape, dtype=dtype)
    y = linear(device, 2.0)(x)
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.dtype) == (shape, dtype)
    assert np.array_equal(y, 2 * x)
    assert np.array_equal(x, counting(*shape, dtype=dtype))


def test_results_are_the_callers(device):
    y = linear(device)(counting(3, 2, 3, 5))
    assert y.flags.writeable
    assert y.flags.c_contiguous
    assert y.ctypes.data % 64 == 0
    assert memoryview(y).format == "f"
    y[...] = 0
    again = linear(device)(counting(3, 2, 3, 5))
    assert again[0, 0, 0, 0] == 1
    assert not y.any()


def test_results_travel_by_dlpack(device):
    y = linear(device)(counting(2, 3, 4))
    shared = np.from_dlpack(y)
    assert np.shares_memory(shared, y)
    assert np.array_equal(shared, counting(2, 3, 4))


class Exporter:
    """An array of another library: DLPack is all it has."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_sources_of_other_kinds(device):
    expected = 2 * counting(2, 3, 4)
    kernel = linear(device, 2.0)
    x = counting(2, 3, 4)
    assert np.array_equal(kernel(Exporter(x)), expected)
    assert np.array_equal(kernel(memoryview(x)), expected)
    flat = array.array("f", x.ravel().tolist())
    assert np.array_equal(kernel(memoryview(flat).cast("b").cast("f", (2, 3, 4))), expected)

    class Subclass(np.ndarray):
        pass

    assert np.array_equal(kernel(x.view(Subclass)), expected)


MEMORY = {
    "contiguous": lambda x: x,
    "Fortran order": np.asfortranarray,
    "every second channel": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "transposed": lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "4 bytes beyond alignment": lambda x: (
        np.concatenate([[0], x.ravel()]).astype(x.dtype)[1:].reshape(x.shape)
    ),
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_sources_in_any_memory(device, memory, dtype):
    x = MEMORY[memory](counting(2, 3, 5, 6, dtype=dtype))
    before = x.copy()
    assert np.array_equal(linear(device, 2.0)(x), 2 * before)
    assert np.array_equal(x, before)


WRONG = [
    (np.zeros((2, 3, 4)), TypeError, "Neuron: source must be float32 or float16, got float64"),
    (np.zeros((2, 3, 4), int), TypeError, "source must be float32 or float16, got int64"),
    (np.zeros((2, 3, 4), np.uint8), TypeError, "source must be float32 or float16, got uint8"),
    (
        np.zeros((2, 3, 4), np.complex64),
        TypeError,
        "source must be float32 or float16, got complex64",
    ),
    (np.zeros((2, 3, 4), object), TypeError, "source must be float32 or float16, got object"),
    (np.zeros((2, 3, 4), ">f4"), TypeError, "source must be float32 or float16, got >f4"),
    (np.ones((2, 3, 4)), TypeError, "got float64; np.asarray(source, np.float32) makes it one"),
    ([[[1.0]]], TypeError, "got float64; np.asarray(source, np.float32) makes it one"),
    (None, TypeError, "Neuron: source must be an array of numbers, got NoneType"),
    ("image", TypeError, "source must be an array of numbers, got str"),
    ([[[1.0], [2.0, 3.0]]], ValueError, "Neuron: source is no array: "),
    (np.float32(1), ValueError, "Neuron: source must have shape (N, H, W, C), or (H, W, C)"),
    (np.zeros((3, 4), np.float32), ValueError, "(H, W, C) for one image, got (3, 4)"),
    (np.zeros((1, 1, 1, 1, 1), np.float32), ValueError, "got (1, 1, 1, 1, 1)"),
    (
        np.zeros((0, 2, 3, 4), np.float32),
        ValueError,
        "source must not be empty, got shape (0, 2, 3, 4)",
    ),
    (
        np.zeros((2, 0, 3, 4), np.float32),
        ValueError,
        "source must not be empty, got shape (2, 0, 3, 4)",
    ),
    (np.zeros((2, 3, 0), np.float32), ValueError, "must not be empty, got shape (2, 3, 0)"),
]


@pytest.mark.parametrize(("x", "error", "words"), WRONG, ids=lambda value: str(value)[:28])
def test_wrong_sources(device, x, error, words):
    kernel = linear(device)
    kernel.offset = (1, 1, 0)
    with pytest.raises(error, match=re.escape(words)):
        kernel(x)
    assert kernel.offset == mg.Offset(1, 1, 0)
    words = words.replace("Neuron:", "NeuronGradient:").replace("source", "source_gradient")
    with rejects(error, words):
        linear_gradient(device)(x, x, kernel.result_state)


# --- out= ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 2, 3, 5)], ids=str)
def test_out(device, shape, dtype):
    guard = np.full((np.prod(shape) + 32,), np.nan, dtype)
    out = guard[16:-16].reshape(shape)
    result = linear(device, 2.0)(counting(*shape), out=out)
    assert result is out or (result.base is out.base and result.shape == out.shape)
    assert np.shares_memory(result, out)
    assert np.array_equal(out, 2 * counting(*shape))
    assert np.isnan(guard[:16]).all()
    assert np.isnan(guard[-16:]).all()


def test_out_of_a_gradient(device):
    x = counting(2, 2, 3, 4)
    y, states = linear(device, 2.0)(x, with_state=True)
    out = np.full_like(x, np.nan)
    kernel = linear_gradient(device, 2.0)
    result = kernel(y, x, states, out=out)
    assert np.shares_memory(result, out)
    assert np.array_equal(out, 4 * x)
    assert np.array_equal(kernel(y, x, states), 4 * x)


def frozen(*shape):
    """An array that must not be written."""
    result = np.zeros(shape, np.float32)
    result.flags.writeable = False
    return result


OUTS = [
    ([[[1.0]]], TypeError, "out must be an ndarray, got list"),
    (3, TypeError, "out must be an ndarray, got int"),
    (np.zeros((2, 3, 4)), TypeError, "out must be float32 or float16, got float64"),
    (np.zeros((2, 3, 4), np.uint8), TypeError, "out must be float32 or float16, got uint8"),
    (
        np.zeros((2, 3, 5), np.float32),
        ValueError,
        "out must have shape (1, 2, 3, 4), got (1, 2, 3, 5)",
    ),
    (
        np.zeros((3, 2, 4), np.float32),
        ValueError,
        "out must have shape (1, 2, 3, 4), got (1, 3, 2, 4)",
    ),
    (
        np.zeros((1, 2, 3, 4), np.float32),
        ValueError,
        "out must have shape (H, W, C), got (1, 2, 3, 4)",
    ),
    (np.zeros((3, 4), np.float32), ValueError, "out must have shape (H, W, C), got (3, 4)"),
    (np.zeros((2, 3, 8), np.float32)[..., ::2], ValueError, "got one that is not C-contiguous"),
    (
        np.zeros((4, 3, 2), np.float32).T,
        ValueError,
        "out must be writable, aligned and C-contiguous, got one that is not C-contiguous",
    ),
    (
        np.zeros(97, np.uint8)[1:].view(np.float32).reshape(2, 3, 4),
        ValueError,
        "got one that is not aligned",
    ),
    (
        frozen(2, 3, 4),
        ValueError,
        "out must be writable, aligned and C-contiguous, got one that is not writable",
    ),
    (frozen(2, 3, 8)[..., ::2], ValueError, "got one that is not writable and not C-contiguous"),
]


@pytest.mark.parametrize(("out", "error", "words"), OUTS, ids=lambda value: str(value)[:28])
def test_wrong_outs(device, out, error, words):
    kernel, gradient = linear(device), linear_gradient(device)
    x = counting(2, 3, 4)
    y, state = kernel(x, with_state=True)
    kernel.offset, gradient.primary_offset = (1, 1, 0), (2, 2, 0)
    with pytest.raises(error, match=re.escape(words)):
        kernel(x, out=out)
    with pytest.raises(error, match=re.escape(words)):
        gradient(y, x, state, out=out)
    assert kernel.offset == mg.Offset(1, 1, 0)
    assert gradient.primary_offset == mg.Offset(2, 2, 0)


def test_out_must_not_be_the_source(device):
    x = counting(2, 3, 4)
    if device.kind == "cpu":  # elsewhere the arrays are copies, and nothing is shared
        with pytest.raises(ValueError, match="shares memory with source"):
            linear(device)(x, out=x)
        both = counting(2, 2, 3, 4)
        with pytest.raises(ValueError, match="shares memory with source"):
            linear(device)(both, out=both)
        parts = counting(3, 2, 3, 4)
        linear(device, 2.0)(parts[0], out=parts[2])  # two rows of one array are two arrays
        assert np.array_equal(parts[2], 2 * parts[0])
    assert np.array_equal(x, counting(2, 3, 4))


def test_out_outside_the_clip_rectangle(device):
    kernel = linear(device, 2.0)
    kernel.clip_rect = mg.Region((0, 0), (1, 1))
    out = np.full((2, 3, 4), 9, np.float32)
    kernel(counting(2, 3, 4), out=out)
    expected = np.full((2, 3, 4), 9, np.float32)
    expected[0, 0] = [2, 4, 6, 8]
    assert np.array_equal(out, expected)


# --- states -------------------------------------------------------------------


def test_states_of_calls(device):
    y, state = linear(device)(counting(2, 3, 4), with_state=True)
    assert isinstance(state, mg.GradientState)
    y, states = linear(device)(counting(1, 2, 3, 4), with_state=True)
    assert [type(state) for state in states] == [mg.GradientState]
    y, states = linear(device)(counting(3, 2, 3, 4), with_state=True)
    assert y.shape == (3, 2, 3, 4)
    assert len(states) == 3


def test_gradients_of_calls(device):
    kernel, gradient = linear(device, 3.0), linear_gradient(device, 3.0)
    for shape in [(2, 3, 4), (3, 2, 3, 4)]:
        x = counting(*shape)
        y, state = kernel(x, with_state=True)
        dx = gradient(np.ones_like(y), x, state)
        assert np.array_equal(dx, np.full(shape, 3))
        assert dx.dtype == np.float32
        assert gradient(np.ones(shape, np.float16), x, state).dtype == np.float16
    x = counting(3, 2, 3, 4)
    y, states = kernel(x, with_state=True)
    with pytest.raises(ValueError, match="both must be one image, or batches of one length"):
        gradient(y[:2], x, states)
    with pytest.raises(ValueError, match="both must be one image"):
        gradient(y[0], x[:1], states[0])
    with pytest.raises(ValueError, match="state has 2 entries, expected 3"):
        gradient(y, x, states[:2])
    for wrong, kind in ((3, "int"), ("state", "str")):
        words = f"NeuronGradient: state must be a State or a list of states, got {kind}"
        with rejects(TypeError, words):
            gradient(y, x, wrong)


def test_calls_from_many_threads(device):
    def work(seed):
        kernel = linear(device, float(seed))
        for _ in range(20):
            y = kernel(counting(2, 3, 4, 5))
            assert np.array_equal(y, seed * counting(2, 3, 4, 5))

    call_at_once(partial(work, seed) for seed in range(1, 7))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 17, 31, 5), (64, 8, 8, 16)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(device, rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    descriptor = mg.NeuronDescriptor(mg.NeuronType.TANH, 1.5, 0.7)
    forward = mg.Neuron(descriptor, device=device)
    backward = mg.NeuronGradient(descriptor, device=device)

    def run():
        y, states = forward(x, with_state=True)
        return y, backward(y, x, states)

    check_thread_independence(run, (1, 2, 3, 8, 1))


@pytest.mark.parametrize(
    ("count", "error", "words"),
    [
        (0, ValueError, "count must be at least 1, got 0"),
        (-1, ValueError, "count must be at least 1, got -1"),
        (1025, ValueError, "count must be at most 1024, got 1025"),
        (2**31, ValueError, "count is out of range: 2147483648"),  # no number of C's int
        (2**40, ValueError, "count is out of range: 1099511627776"),
    ],
)
def test_numbers_of_threads_out_of_range(count, error, words):
    before = mg.get_num_threads()
    with rejects(error, f"set_num_threads: {words}"):
        mg.set_num_threads(count)
    assert mg.get_num_threads() == before


def test_more_threads_than_the_machine_has(device):
    with threads(300):
        x = counting(8, 64, 64, 8)
        assert np.array_equal(linear(device, 2.0)(x), 2 * x)


def test_a_gradient_needs_the_state_of_the_forward_call(device):
    x = counting(2, 2, 3, 4)
    words = "NeuronGradient: state must be what the forward call returned with with_state=True, got"
    with pytest.raises(TypeError, match=f"^{words} None$"):
        linear_gradient(device)(x, x, None)


# --- shapes of results ----------------------------------------------------------


def of_weights(*shape, **options):
    outputs, height, width, inputs = shape
    descriptor = mg.ConvolutionDescriptor(
        width, height, input_feature_channels=inputs, output_feature_channels=outputs, **options
    )
    return mg.ArrayConvolutionDataSource(np.ones(shape, np.float32), descriptor=descriptor)


SIZED = {
    "neuron": linear,
    "convolution": lambda d: mg.Convolution(of_weights(8, 3, 3, 4, stride_in_pixels_x=2), device=d),
    "transposed": lambda d: mg.ConvolutionTranspose(
        of_weights(8, 3, 3, 4, stride_in_pixels_y=2), device=d
    ),
    "fully connected": lambda d: mg.FullyConnected(of_weights(8, 7, 9, 4), device=d),
    "pooling": lambda d: mg.PoolingMax(3, 2, 2, 2, device=d),
    "reduction": lambda d: mg.ReduceRowSum(device=d),
    "channels": lambda d: mg.ReduceFeatureChannelsMax(device=d),
    "upsampling": lambda d: mg.UpsamplingBilinear(3, 2, device=d),
    "pad": lambda d: mg.Pad((1, 2, 0), (0, 1, 4), device=d),
    "Gram matrix": lambda d: mg.GramMatrixCalculation(device=d),
}


@pytest.mark.parametrize("shape", [(7, 9, 4), (3, 7, 9, 4)], ids=str)
@pytest.mark.parametrize("make", SIZED.values(), ids=SIZED)
def test_the_shape_of_a_result_is_known_before(device, make, shape):
    kernel = make(device)
    kernel.offset = (1, 2, 0)
    assert kernel.result_shape(shape) == make(device)(np.ones(shape, np.float32)).shape
    assert kernel.offset == mg.Offset(1, 2, 0)


def test_asking_for_a_shape_changes_no_property(device):
    """Not those either that padding policies set beside the offset."""
    average = mg.PoolingAverage(3, 3, device=device)
    caffe = mg.DefaultPadding(mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.EXCLUDE_EDGES)
    up = mg.ConvolutionTranspose(of_weights(8, 3, 3, 4), device=device)
    up.kernel_offset_x = 7
    for kernel, policy, names in (
        (average, caffe, ("edge_mode", "zero_pad_size_x", "zero_pad_size_y", "offset")),
        (average, mg.DefaultPadding.tensorflow_average_pooling(), ("edge_mode", "offset")),
        (up, up.padding, ("kernel_offset_x", "kernel_offset_y", "offset")),
        (up, mg.ExplicitPadding(1), ("kernel_offset_x", "kernel_offset_y", "offset")),
    ):
        kernel.padding = policy
        before = [getattr(kernel, name) for name in names]
        kernel.result_shape((1, 7, 9, 4))
        assert [getattr(kernel, name) for name in names] == before
        kernel.destination_descriptor(mg.Image(kernel.device, mg.ImageDescriptor(9, 7, 4)))
        assert [getattr(kernel, name) for name in names] != before
        for name, value in zip(names, before, strict=True):
            setattr(kernel, name, value)


def test_the_shape_of_a_sum_is_known_before(device):
    kernel = mg.Add(device=device)
    kernel.secondary_offset = (1, 2, 0)
    assert kernel.result_shape((2, 3, 4, 5), (2, 3, 4, 5)) == (2, 3, 4, 5)
    assert kernel.result_shape((3, 4, 5), [3, 4, 5]) == (3, 4, 5)
    assert kernel.secondary_offset == mg.Offset(1, 2, 0)
    with rejects(ValueError, "Add: primary_shape and secondary_shape must be shapes of one image"):
        kernel.result_shape((2, 3, 4, 5), (1, 3, 4, 5))


@pytest.mark.parametrize(
    ("shape", "error", "words"),
    [
        ((3, 4), TypeError, "must be a shape (N, H, W, C), or (H, W, C) of one image, got (3, 4)"),
        (np.ones((3, 4, 5)), TypeError, "must be a shape (N, H, W, C)"),
        ((3, 4.0, 5), TypeError, "got (3, 4.0, 5)"),
        (None, TypeError, "got None"),
        ((3, 0, 4), ValueError, "source_shape must have lengths of 1 and more, got (3, 0, 4)"),
        ((-1, 3, 3, 4), ValueError, "lengths of 1 and more, got (-1, 3, 3, 4)"),
        ((2**20, 3, 4), ValueError, "height must be between 1"),
        ((9, 9, 8), ValueError, "Convolution: source must have 4 channels on its last axis, got 8"),
        ((9, 9, 2), ValueError, "Convolution: source offers 2 channels"),
    ],
    ids=str,
)
def test_shapes_that_no_source_has(device, shape, error, words):
    kernel = mg.Convolution(of_weights(8, 3, 3, 4), device=device)
    kernel.offset = (1, 2, 0)
    with rejects(error, words):
        kernel.result_shape(shape)
    assert kernel.offset == mg.Offset(1, 2, 0)
