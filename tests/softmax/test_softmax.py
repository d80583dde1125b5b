"""Softmax kernels against the oracle, the printed example, and the rules of their encodes."""

import copy
import inspect
import pickle

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.oracle import DTYPES, load
from tests.images import Work, channel_window, empty, filled, moved, read
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.softmax import cases, oracle
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    ulps_for,
)

PAIRS = {"plain": (mg.SoftMax, mg.SoftMaxGradient), "log": (mg.LogSoftMax, mg.LogSoftMaxGradient)}
FORWARD = {
    "plain": (oracle.softmax, oracle.softmax_scale),
    "log": (oracle.log_softmax, oracle.log_softmax_scale),
}
GRADIENT = {
    "plain": (oracle.softmax_gradient, oracle.softmax_gradient_scale),
    "log": (oracle.log_softmax_gradient, oracle.log_softmax_gradient_scale),
}
names = pytest.mark.parametrize("name", PAIRS)


def check_forward(name, actual, x):
    """Compare: difference, exponential, additions; reciprocal and product, or log and difference.

    An exponential or a logarithm is within one ULP.
    """
    exact, scale = FORWARD[name]
    ulps = ulps_for(x.shape[-1] + 3, actual.dtype, functions=2)
    # One class is certain: its logarithm is 0.
    nonzero = 0 if name == "log" and x.shape[-1] == 1 else 0.25
    assert_close(actual, exact(x), ulps=ulps, scale=scale(x), nonzero=nonzero, floor=1e-30)


def check_gradient(name, actual, incoming, result):
    """Compare: an exponential or a product, the additions, a difference and a product."""
    exact, scale = GRADIENT[name]
    ulps = ulps_for(result.shape[-1] + 3, actual.dtype, functions=1)
    expected = exact(incoming, result)
    assert_close(
        actual,
        expected,
        ulps=ulps,
        scale=scale(incoming, result),
        floor=1e-30,
        nonzero=0 if result.shape[-1] == 1 else 0.25,
    )


@names
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("reach", [1.0, 30.0], ids=["central", "spread"])
def test_forward_and_gradient(device, name, shape, reach, rng):
    x = rng.uniform(-reach, reach, shape).astype(np.float32)
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    result, states = forward(x, with_state=True)
    check_forward(name, result, x)
    incoming = rng.standard_normal(shape, dtype=np.float32)
    check_gradient(name, gradient(incoming, result, states), incoming, result)


# Few pixels, and more than the loops take at once; neither fills vectors.
@pytest.mark.parametrize("size", [(3, 5), (47, 45)], ids=str)
@pytest.mark.parametrize("channels", [*range(1, 20), 31, 33, 63, 64, 65, 255, 256, 300])
def test_any_number_of_channels(device, size, channels, rng):
    for name in PAIRS:
        x = rng.uniform(-2, 2, (1, *size, channels)).astype(np.float32)
        forward, gradient = (cls(device=device) for cls in PAIRS[name])
        result, states = forward(x, with_state=True)
        check_forward(name, result, x)
        incoming = rng.standard_normal(x.shape, dtype=np.float32)
        check_gradient(name, gradient(incoming, result, states), incoming, result)


def test_printed_values(device):
    x = np.array([1.0, 2, 3], np.float32).reshape(1, 1, 1, 3)
    g = np.array([1.0, 0, 0], np.float32).reshape(1, 1, 1, 3)
    printed = {
        "plain": ([0.090031, 0.244728, 0.665241], [0.081925, -0.022033, -0.059892]),
        "log": ([-2.407606, -1.407606, -0.407606], [0.909969, -0.244728, -0.665241]),
    }
    for name, (forward, gradient) in printed.items():  # half a digit, and roundings below 1e-7
        result, states = PAIRS[name][0](device=device)(x, with_state=True)
        np.testing.assert_allclose(result.ravel(), forward, atol=6e-7)
        dx = PAIRS[name][1](device=device)(g, result, states)
        np.testing.assert_allclose(dx.ravel(), gradient, atol=6e-7)


def test_equal_channels_share_equally(device):
    x = np.full((1, 2, 2, 4), 3.0, np.float32)
    assert_exact(mg.SoftMax(device=device)(x), np.full(x.shape, 0.25))
    one = np.full((1, 2, 2, 1), -7.0, np.float32)
    result, states = mg.SoftMax(device=device)(one, with_state=True)
    assert_exact(result, np.ones(one.shape))
    assert not mg.SoftMaxGradient(device=device)(one, result, states).any()
    result, states = mg.LogSoftMax(device=device)(one, with_state=True)
    assert not result.any()
    assert not mg.LogSoftMaxGradient(device=device)(one, result, states).any()


def test_large_values_do_not_overflow(device):
    if device.kind != "cpu":
        pytest.skip("whether MPS subtracts the maximum is not documented")
    x = np.array([1e4, 1e4 - 1, -1e4, 88.0], np.float32).reshape(1, 1, 1, 4)
    for name in PAIRS:
        check_forward(name, PAIRS[name][0](device=device)(x), x)


INF, NAN = np.inf, np.nan
UNUSUAL = {
    "one of minus infinity": [1, -INF, 2, 0.5],
    "first of minus infinity": [-INF, 1, 2, 0.5],
    "all of minus infinity": [-INF, -INF, -INF, -INF],
    "all but one of minus infinity": [-INF, -INF, 3, -INF],
    "one of infinity": [1, INF, 2, 0.5],
    "all of infinity": [INF, INF, INF, INF],
    "both infinities": [1, INF, -INF, 0.5],
    "not a number": [1, NAN, 2, 0.5],
    "not a number, and infinity": [NAN, INF, 2, 0.5],
    "not a number, and minus infinity": [-INF, -INF, -INF, NAN],
    "huge": [60000, 60000, 60000, 60000],
    "huge and negative": [-60000, -60000, -60000, -60000],
    "huge, and the opposite": [60000, -60000, 0, 60000],
}


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [4, 5, 16, 33, 300])
def test_unusual_channels_are_as_in_the_formula(device, name, channels, dtype, rng):
    """Of which one takes the maximum off first; pixels beside them have their own bits."""
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    unusual = np.array(list(UNUSUAL.values()))
    usual = rng.uniform(-2, 2, (1, 1, 2 * len(unusual), channels)).astype(dtype)
    incoming = rng.uniform(0.5, 2, usual.shape).astype(dtype)
    x = usual.copy()
    x[0, 0, ::2] = np.resize(unusual.T, (channels, len(unusual))).T
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    y, states = forward(x, with_state=True)
    dx = gradient(incoming, y, states)
    alone, states = forward(usual, with_state=True)
    assert_same_bytes(y[:, :, 1::2], alone[:, :, 1::2])
    assert_same_bytes(dx[:, :, 1::2], gradient(incoming, alone, states)[:, :, 1::2])
    with np.errstate(invalid="ignore"):
        check_forward(name, y, x)
        check_gradient(name, dx, incoming, y)


@names
@pytest.mark.parametrize("value", [3.4e38, -3.4e38])
def test_the_largest_equal_values(device, name, value):
    if device.kind != "cpu":
        pytest.skip("whether MPS subtracts the maximum is not documented")
    x = np.full((1, 3, 5, 8), value, np.float32)
    incoming = np.zeros_like(x)
    incoming[..., 3] = 1
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    y, states = forward(x, with_state=True)
    check_forward(name, y, x)
    check_gradient(name, gradient(incoming, y, states), incoming, y)


@names
@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, name, fmt, kind, rng):
    x = load(read(filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt)))
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    sources, results = filled(device, x, fmt, kind=kind), empty(device, x.shape, fmt, kind=kind)
    if name == "log" and DTYPES[fmt].kind != "f":  # the results are negative
        results = empty(device, x.shape, "float32", kind=kind)
    states = forward.result_state(sources, results)
    g = load(read(filled(device, rng.uniform(0, 1, x.shape), fmt)))
    incoming, destinations = filled(device, g, fmt, kind=kind), empty(device, x.shape, kind=kind)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, results, states[0] if isinstance(states, list) else states)
        gradient.encode(work.buffer, incoming, results, states, work.result(destinations))
    check_forward(name, read(results), x)
    check_gradient(name, read(destinations), g, load(read(results)))


@names
def test_channel_windows(device, name, rng):
    """The sum runs over the channels that are read, wherever they lie."""
    x = rng.uniform(-3, 3, (2, 3, 2, 13)).astype(np.float32)
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    g = rng.standard_normal((2, 3, 2, 6), dtype=np.float32)
    y, dx, _ = channel_window(device, forward, gradient, x, g, takes_result=True)
    check_forward(name, y, x[..., 4:10])
    check_gradient(name, dx, g, y)


@names
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_offsets_and_edges(device, name, edge, rng):
    """Pixels outside are 0, or the nearest, before the exponential."""
    x = rng.uniform(-3, 3, (2, 4, 5, 6)).astype(np.float32)
    forward = PAIRS[name][0](device=device)
    check_forward(name, *moved(device, forward, x, edge))


@names
def test_created_gradients_lie_where_their_pixels_do(device, name, rng):
    x = rng.uniform(-3, 3, (1, 4, 5, 3)).astype(np.float32)
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    forward.offset = (1, -2)
    sources, results = filled(device, x), empty(device, x.shape)
    states = forward.result_state(sources, results)
    g = rng.standard_normal(x.shape, dtype=np.float32)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        dx = gradient.encode(work.buffer, filled(device, g), results, states, allocator=mg.DEFAULT)
        work.result(dx)
    expected = np.zeros(x.shape)
    expected[:, :2, 1:] = GRADIENT[name][0](g, read(results))[:, 2:, :4]
    assert_close(read(dx), expected, ulps=ulps_for(8), scale=np.maximum(np.abs(expected), 1))


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, name, dtype, rng):
    x = rng.uniform(-3, 3, (2, 3, 5, 7)).astype(dtype)
    g = grid(rng, x.shape, dtype=dtype)
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    result, states = forward(x, with_state=True)
    dx = gradient(g, forward_result=result, state=states)
    assert (result.dtype, dx.dtype) == (dtype, dtype)
    check_forward(name, result, x.astype(np.float32))
    with Guarded(x.shape, dtype, skew=1) as out:
        again, states = forward(x, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, result)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert gradient(g, result, states, out=out) is out
        assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert_same_bytes(one, result[0])
    assert_same_bytes(gradient(g[0], one, state), dx[0])


@names
def test_the_second_array_is_called_forward_result(name):
    parameters = list(inspect.signature(PAIRS[name][1].__call__).parameters)
    assert parameters == ["self", "source_gradient", "forward_result", "state", "out"]


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_do_not_depend_on_threads_or_runs(device, name, dtype, rng):
    x = rng.uniform(-3, 3, (5, 41, 37, 21)).astype(dtype)
    g = rng.standard_normal(x.shape).astype(dtype)
    forward, gradient = (cls(device=device) for cls in PAIRS[name])

    def run():
        result, states = forward(x, with_state=True)
        return result, gradient(g, result, states)

    check_thread_independence(run)


def test_a_pixel_has_the_same_bits_wherever_it_lies(device, rng):
    x = rng.uniform(-3, 3, (1, 7, 11, 9)).astype(np.float32)
    for name in PAIRS:
        kernel = PAIRS[name][0](device=device)
        whole = kernel(x)
        assert_same_bytes(kernel(np.ascontiguousarray(x[:, 2:3, 3:4])), whole[:, 2:3, 3:4])


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward, gradient = mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)
    with Work(device) as work:
        result, states = forward.encode(work.buffer, source, with_state=True, temporary_state=True)
        incoming = forward.encode(work.buffer, source)
        assert [image.read_count for image in result] == [1, 1]
        dx = work.result(
            gradient.encode(work.buffer, incoming, result, states, allocator=mg.DEFAULT)
        )
        assert [image.read_count for image in (*result, *incoming)] == [0, 0, 0, 0]
        assert [state.read_count for state in states] == [0, 0]
    assert_close(read(dx), np.zeros((2, 4, 4, 3)), ulps=4, scale=1, nonzero=0)


def test_work_runs_when_it_is_committed(device):
    kernel = mg.SoftMax(device=device)
    sources, results = empty(device, (1, 1, 1, 2)), empty(device, (1, 1, 1, 2))
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
        kernel.offset = (5, 5)
        sources[0].write(np.array([0, 200], np.float32).reshape(1, 1, 2))
    assert_exact(read(results).ravel(), [0, 1])


@pytest.mark.parametrize("cls", [cls for pair in PAIRS.values() for cls in pair])
def test_copies(device, cls):
    kernel = cls(device=device)
    assert repr(kernel) == f"{cls.__name__}(device='{device.kind}')"
    kernel.clip_rect = mg.Region((1, 2), (3, 4))
    kernel.label = "last layer"
    for twin in (
        copy.copy(kernel),
        copy.deepcopy(kernel),
        kernel.copy(),
        pickle.loads(pickle.dumps(kernel)),
        cls.from_bytes(kernel.to_bytes()),
    ):
        assert type(twin) is cls
        assert twin is not kernel
        assert (twin.clip_rect, twin.label) == (kernel.clip_rect, kernel.label)


# --- Rejections ---------------------------------------------------------------------------

X = np.zeros((2, 3, 5, 4), np.float32)


REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "dtype of the result": (X, X.astype(np.int32), TypeError, "forward_result must be float32"),
    "rank": (X[0, 0], X, ValueError, "source_gradient must have shape (N, H, W, C)"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "width": (
        X[:, :, :4].copy(),
        X,
        ValueError,
        "source_gradient is 4x3, but source is 5x3",
    ),
    "size of the result": (
        X,
        X[:, :, :4].copy(),
        ValueError,
        "source is 4x3, but the state was made for a forward result of 5x3",
    ),
    "too few channels": (
        X[..., :3].copy(),
        X,
        ValueError,
        "source_gradient offers 3 channels from offset 0, but the kernel reads 4",
    ),
    "too many channels": (
        np.zeros((2, 3, 5, 6), np.float32),
        X,
        ValueError,
        "source_gradient has 6 channels, but source has 4",
    ),
    "channels of the result": (
        X,
        X[..., :3].copy(),
        ValueError,
        "source offers 3 channels from offset 0, but the kernel reads 4",
    ),
}


@names
@pytest.mark.parametrize(("g", "result", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, name, g, result, error, words):
    forward, gradient = (cls(device=device) for cls in PAIRS[name])
    _, states = forward(X, with_state=True)
    gradient(X, X, states)
    with rejects(error, words):
        gradient(g, result, states)


def test_rejects_states_of_the_other_kernel(device):
    result, states = mg.SoftMax(device=device)(X, with_state=True)
    with rejects(TypeError, "state must come from LogSoftMax, but it was made by SoftMax"):
        mg.LogSoftMaxGradient(device=device)(X, result, states)
    with rejects(ValueError, "state has 3 entries, expected 2"):
        mg.SoftMaxGradient(device=device)(X, result, [*states, states[0]])
