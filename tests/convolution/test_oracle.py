"""The convolution oracle against worked examples, the printed sums and central differences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.central import assert_derivative, derivative
from tests.convolution import cases, fuzz, oracle
from tests.convolution.oracle import Convolution, GradientProperties, Transpose
from tests.core import oracle as core
from tests.core import tables
from tests.tolerance import assert_exact, rng_for


def row(*values):
    """One image of one row; values are pixels, or tuples of channels."""
    return np.array(values, np.float64).reshape(1, 1, len(values), -1)


def filters(*weights):
    """One output and one input channel, one row of weights."""
    return np.array(weights, np.float64).reshape(1, 1, -1, 1)


def flat(array):
    return np.asarray(array).reshape(-1)


def check_row(p, x, w, b, y, e, dx, dw, db):
    """Check a worked example of one row and one channel."""
    kernel, size = (len(w), 1), (len(y), 1)
    assert_exact(flat(oracle.forward(p, row(*x), filters(*w), [b], size=size)), y)
    gradient = row(*e)
    source_size = (len(x), 1)
    data = oracle.data_gradient(p, gradient, filters(*w), source_size=source_size)
    assert_exact(flat(data), dx)
    assert_exact(flat(oracle.weight_gradient(p, gradient, row(*x), kernel=kernel)), dw)
    assert_exact(oracle.bias_gradient(gradient), [db])


# --- Worked examples ----------------------------------------------------------


def test_worked_stride_2():
    p = Convolution(stride=(2, 1))
    x, w = [1, 2, 3, 4, 5], [1, 2, 3]
    e, dx, dw = [1, 10, 100], [2, 13, 20, 130, 200], [420, 531, 42]
    check_row(p, x, w, 0.5, [8.5, 20.5, 14.5], e, dx, dw, 111)
    assert (core.place(5, 3, 2, 1, 0x10).size, core.place(5, 3, 2, 1, 0x10).offset) == (3, 0)
    derived = oracle.properties(p, (3, 1))
    assert (derived.kernel_offset[0], derived.secondary_offset[0]) == (0, -1)


def test_worked_batch_sums():
    p = Convolution(stride=(2, 1))
    x = np.concatenate([row(1, 2, 3, 4, 5), row(1, 1, 1, 1, 1)])
    e = np.concatenate([row(1, 10, 100), row(1, 1, 1)])
    assert_exact(flat(oracle.weight_gradient(p, e, x, kernel=(3, 1))), [422, 534, 44])
    assert_exact(oracle.bias_gradient(e), [114])
    dx = oracle.data_gradient(p, e, filters(1, 2, 3), source_size=(5, 1))
    assert_exact(flat(dx[1]), [2, 4, 2, 4, 2])


def test_worked_even_window():
    p = Convolution(offset=(1, 0))
    check_row(p, [1, 2, 3], [1, 10], 0, [21, 32], [1, 2], [1, 12, 20], [5, 8], 3)
    derived = oracle.properties(p, (2, 1))
    assert (derived.kernel_offset[0], derived.secondary_offset[0]) == (0, 0)
    y = oracle.forward(Convolution(), row(1, 2, 3), filters(1, 10), size=(3, 1))
    assert_exact(flat(y), [10, 21, 32])
    derived = oracle.properties(Convolution(), (2, 1))
    assert (derived.kernel_offset[0], derived.secondary_offset[0]) == (1, -1)


@pytest.mark.parametrize(
    ("weights", "dilation", "offset", "y", "secondary", "kernel_offset"),
    [
        ((1, 10, 100), 2, 0, [310, 420, 531, 42, 53], -2, 0),
        ((1, 10), 3, 1, [30, 41, 52, 3, 4], -1, 0),
    ],
)
def test_worked_dilation(weights, dilation, offset, y, secondary, kernel_offset):
    p = Convolution(dilation=(dilation, 1), offset=(offset, 0))
    assert_exact(flat(oracle.forward(p, row(1, 2, 3, 4, 5), filters(*weights), size=(5, 1))), y)
    derived = oracle.properties(p, (len(weights), 1))
    assert (derived.kernel_offset[0], derived.secondary_offset[0]) == (kernel_offset, secondary)


def test_worked_depthwise():
    p = Convolution(offset=(1, 0))
    x = row((1, 10), (2, 20), (3, 30))
    w = np.array([[[1.0, 2]], [[3, 4]]])
    assert_exact(oracle.forward(p, x, w, size=(2, 1)), row((5, 110), (8, 180)))
    e = np.ones((1, 1, 2, 2))
    dx = oracle.data_gradient(p, e, w, source_size=(3, 1))
    assert_exact(dx, row((1, 3), (3, 7), (2, 4)))
    dw = oracle.weight_gradient(p, e, x, kernel=(2, 1), depthwise=True)
    assert_exact(dw, [[[3, 5]], [[30, 50]]])
    assert_exact(oracle.bias_gradient(e), [2, 2])


def test_worked_data_gradient_of_the_base_rules():
    # w = (1, 10, 100) and g = (1, 2, 3) tell every product apart.
    p = Convolution(stride=(2, 1))
    assert core.place(6, 3, 2, 1, 0x10)[::3] == (3, 0)
    dx = oracle.data_gradient(p, row(1, 2, 3), filters(1, 10, 100), source_size=(6, 1))
    assert_exact(flat(dx), [10, 100 + 2, 20, 200 + 3, 30, 300])
    dw = oracle.weight_gradient(p, row(1, 2, 3), row(*[1, 10, 100, 1e3, 1e4, 1e5]), kernel=(3, 1))
    assert flat(dw)[0] == 2 * 10 + 3 * 1000  # w0 meets x1 and x3


def test_worked_even_data_gradient_of_the_base_rules():
    p = Convolution()
    y = oracle.forward(p, row(1, 2, 3, 4, 5), filters(10, 1), size=(5, 1))
    assert_exact(flat(y), [1, 12, 23, 34, 45])
    dx = oracle.data_gradient(p, row(1, 2, 3, 4, 5), filters(10, 1), source_size=(5, 1))
    assert_exact(flat(dx), [1 + 20, 2 + 30, 3 + 40, 4 + 50, 5])


def test_worked_sub_pixel():
    block = np.arange(8.0).reshape(1, 1, 1, 8)
    spread = oracle.depth_to_space(block, 2, (2, 2))
    assert_exact(spread[0], [[[0, 1], [2, 3]], [[4, 5], [6, 7]]])


def test_sub_pixel_of_a_clipped_destination(rng):
    x, w = rng.standard_normal((2, 3, 4, 2)), rng.standard_normal((12, 3, 3, 2))
    p = Convolution()
    inner = oracle.forward(p, x, w, size=(4, 3))
    spread = oracle.sub_pixel(p, x, w, factor=2, size=(7, 5))
    assert spread.shape == (2, 5, 7, 3)
    for v, u, c in np.ndindex(5, 7, 3):
        expected = inner[:, v // 2, u // 2, 3 * (2 * (v % 2) + u % 2) + c]
        assert_exact(spread[:, v, u, c], expected)


def test_worked_fully_connected():
    x = np.array([[3.0, 4]]).reshape(1, 1, 2, 1)
    w = np.array([[1.0, 2], [3, 4]]).reshape(2, 1, 2, 1)
    y = oracle.fully_connected(x, w, [0.5, -0.5])
    assert_exact(y, row((11.5, 24.5)))
    e = row((1, 2))
    assert_exact(flat(oracle.fully_connected_data_gradient(e, w)), [7, 10])
    assert_exact(oracle.fully_connected_weight_gradient(e, x).reshape(2, 2), [[3, 4], [6, 8]])
    assert_exact(oracle.bias_gradient(e), [1, 2])


@pytest.mark.parametrize("case", cases.FULLY_CONNECTED, ids=str)
def test_fully_connected_is_a_convolution_of_the_whole_image(case, rng):
    x, w = rng.standard_normal(case.shape), rng.standard_normal(case.weights_shape)
    b, e = (
        rng.standard_normal(case.outputs),
        rng.standard_normal((case.shape[0], 1, 1, case.outputs)),
    )
    height, width = case.shape[1:3]
    p = Convolution(offset=(width // 2, height // 2))
    same = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(
        oracle.fully_connected(x, w, b, neuron=np.tanh),
        oracle.forward(p, x, w, b, size=(1, 1), neuron=np.tanh),
        **same,
    )
    np.testing.assert_allclose(
        oracle.fully_connected_data_gradient(e, w),
        oracle.data_gradient(p, e, w, source_size=(width, height)),
        **same,
    )
    np.testing.assert_allclose(
        oracle.fully_connected_weight_gradient(e, x),
        oracle.weight_gradient(p, e, x, kernel=(width, height)),
        **same,
    )


def test_worked_transpose():
    x, w = row(1, 2, 3, 4), filters(1, 2, 3)
    p = Transpose(stride=(2, 1))
    assert_exact(flat(oracle.transpose(p, x, w, size=(7, 1))), [2, 7, 4, 11, 6, 15, 8])
    e = np.ones((1, 1, 7, 1))
    dx = oracle.transpose_data_gradient(p, e, w, source_size=(4, 1))
    assert_exact(flat(dx), [3, 6, 6, 5])
    assert_exact(flat(oracle.transpose_weight_gradient(p, e, x, kernel=(3, 1))), [6, 10, 9])
    assert_exact(oracle.bias_gradient(e), [7])
    full = Transpose(stride=(2, 1), kernel_offset=(-1, 0))
    assert_exact(flat(oracle.transpose(full, x, w, size=(9, 1))), [3, 2, 7, 4, 11, 6, 15, 8, 4])
    assert core.place_reverse(4, 3, 2, 0x20) == (9, -1)
    assert core.place_reverse(4, 3, 2, 0x10) == (7, 0)


def test_worked_batch_normalization_folding():
    w, b = oracle.fold_batch_normalization(
        filters(2), [1], mean=[3], variance=[1], gamma=[2], beta=[5], epsilon=0
    )
    assert_exact(flat(w), [4])
    assert_exact(b, [1])


def test_folded_batch_normalization_normalizes_the_result(rng):
    mean, beta, b = rng.standard_normal((3, 3))
    gamma, variance = rng.uniform(0.5, 2, (2, 3))
    x, w = rng.standard_normal((2, 4, 5, 3)), rng.standard_normal((3, 3, 3, 3))
    given = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta, "epsilon": 0.25}
    for weights, biases in ((w, b), (w, None), (w[..., 0], b)):
        plain = oracle.forward(Convolution(), x, weights, biases, size=(5, 4))
        folded = oracle.fold_batch_normalization(weights, biases, **given)
        result = oracle.forward(Convolution(), x, *folded, size=(5, 4))
        expected = (plain - mean) * gamma / np.sqrt(variance + 0.25) + beta
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def test_worked_dequantization():
    codes = np.array([[0, 255, 51]], np.uint8)
    result = oracle.dequantize_linear(codes, [(-1, 1)])
    np.testing.assert_allclose(result, [[-1, 1, -0.6]], rtol=1e-15)
    two = oracle.dequantize_linear(np.full((2, 1, 1, 1), 255, np.uint8), [(-1, 1), (0, 3)])
    assert_exact(flat(two), [1, 3])
    assert_exact(oracle.dequantize_table(codes, np.arange(256) / 4), [[0, 63.75, 12.75]])


def test_kernel_weights_are_rounded_to_half_by_default():
    assert oracle.kernel_weights([0.1]).astype(np.float64) == 0.0999755859375
    assert oracle.kernel_weights([0.1], np.float32) == np.float32(0.1)


# --- Against the printed sums -------------------------------------------------


def sums(p, x, w, b, e):
    """Evaluate the printed sums one product at a time: result, dX, dW, dB."""
    height, width = x.shape[1:3]
    outputs, rows, columns, inputs = w.shape
    per_group = outputs // p.groups
    first = [p.offset[a] - ((n - 1) * p.dilation[a] + 1) // 2 for a, n in ((0, columns), (1, rows))]
    y, dx = np.zeros(e.shape) + b, np.zeros(x.shape)
    dw, db = np.zeros(w.shape), np.zeros(outputs)
    for n, j, i, o in np.ndindex(e.shape):
        db[o] += e[n, j, i, o]
        for q, r, c in np.ndindex(rows, columns, inputs):
            sy = p.stride[1] * j + first[1] + p.dilation[1] * q
            sx = p.stride[0] * i + first[0] + p.dilation[0] * r
            channel = o // per_group * inputs + c
            inside = 0 <= sy < height and 0 <= sx < width
            if inside:
                dx[n, sy, sx, channel] += w[o, q, r, c] * e[n, j, i, o]
            if inside or p.edge == "clamp":
                seen = x[n, min(max(sy, 0), height - 1), min(max(sx, 0), width - 1), channel]
                y[n, j, i, o] += w[o, q, r, c] * seen
                dw[o, q, r, c] += e[n, j, i, o] * seen
    return y, dx, dw, db


@pytest.mark.parametrize("case", cases.CASES + cases.CHANNELS + cases.FLAT, ids=str)
def test_every_case_follows_the_printed_sums(case, rng):
    # Few channels: the sums are quadratic in them, and slow.
    group = min(case.shape[3] // case.groups, 2)
    channels = case.shape[3] if case.depthwise else group * case.groups
    outputs = channels if case.depthwise else min(case.outputs // case.groups, 2) * case.groups
    p = case.convolution()
    x = rng.standard_normal((1, *case.shape[1:3], channels))
    w = rng.standard_normal((outputs, *case.kernel[::-1], 1 if case.depthwise else group))
    b, e = rng.standard_normal(outputs), rng.standard_normal((1, *case.size[::-1], outputs))
    wide = Convolution(p.stride, p.dilation, p.offset, channels, p.edge) if case.depthwise else p
    y, dx, dw, db = sums(wide, x, w, b, e)
    stored = w[..., 0] if case.depthwise else w
    expected = dw[..., 0] if case.depthwise else dw
    same = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(oracle.forward(p, x, stored, b, size=case.size), y, **same)
    data = oracle.data_gradient(p, e, stored, source_size=case.source_size)
    np.testing.assert_allclose(data, dx, **same)
    given = {"kernel": case.kernel, "depthwise": case.depthwise}
    np.testing.assert_allclose(oracle.weight_gradient(p, e, x, **given), expected, **same)
    np.testing.assert_allclose(oracle.bias_gradient(e), db, **same)
    # The form with properties computes the same from the geometry of the state.
    derived = oracle.properties(p, case.kernel)
    data = oracle.data_gradient_from(derived, e, stored, size=case.source_size)
    np.testing.assert_allclose(data, dx, **same)
    np.testing.assert_allclose(
        oracle.weight_gradient_from(derived, e, x, **given), expected, **same
    )


def transpose_sums(p, x, w, b, e):
    """Evaluate the printed sums of a transpose one product at a time: result, dX, dW."""
    outputs, rows, columns, inputs = w.shape
    per_group = outputs // p.groups
    total = [p.offset[a] * p.stride[a] + p.kernel_offset[a] for a in (0, 1)]
    y, dx, dw = np.zeros(e.shape) + b, np.zeros(x.shape), np.zeros(w.shape)
    for n, j, i, o in np.ndindex(e.shape):
        for q, r, c in np.ndindex(rows, columns, inputs):
            zy, zx = j + total[1] - rows // 2 + q, i + total[0] - columns // 2 + r
            if zy % p.stride[1] or zx % p.stride[0]:
                continue
            sy, sx = zy // p.stride[1], zx // p.stride[0]
            if not (0 <= sy < x.shape[1] and 0 <= sx < x.shape[2]):
                continue
            channel = o // per_group * inputs + c
            y[n, j, i, o] += w[o, q, r, c] * x[n, sy, sx, channel]
            dw[o, q, r, c] += e[n, j, i, o] * x[n, sy, sx, channel]
    for n, sy, sx, channel in np.ndindex(x.shape):
        for q, r, o in np.ndindex(rows, columns, per_group):
            out = channel // inputs * per_group + o
            j = p.stride[1] * sy - total[1] + rows // 2 - q
            i = p.stride[0] * sx - total[0] + columns // 2 - r
            if 0 <= j < e.shape[1] and 0 <= i < e.shape[2]:
                dx[n, sy, sx, channel] += w[out, q, r, channel % inputs] * e[n, j, i, out]
    return y, dx, dw


@pytest.mark.parametrize("case", cases.TRANSPOSES, ids=str)
def test_every_transpose_follows_the_printed_sums(case, rng):
    x, w, b, e = (a.astype(np.float64) for a in cases.arrays(rng, case))
    p = case.transpose()
    y, dx, dw = transpose_sums(p, x, w, b, e)
    same = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(oracle.transpose(p, x, w, b, size=case.size), y, **same)
    data = oracle.transpose_data_gradient(p, e, w, source_size=case.source_size)
    np.testing.assert_allclose(data, dx, **same)
    weights = oracle.transpose_weight_gradient(p, e, x, kernel=case.kernel)
    np.testing.assert_allclose(weights, dw, **same)


# --- Central differences ------------------------------------------------------


@pytest.mark.parametrize("case", cases.CHANNELS[:6] + cases.CASES[19:37:2], ids=str)
def test_gradients_are_derivatives(case, rng):
    x, w, b, e = (a.astype(np.float64) for a in cases.arrays(rng, case))
    p = case.convolution()

    def y(x=x, w=w, b=b):
        return oracle.forward(p, x, w, b, size=case.size)

    dw = oracle.weight_gradient(p, e, x, kernel=case.kernel, depthwise=case.depthwise)
    assert_derivative(lambda w: y(w=w), w, e, dw)
    assert_derivative(lambda b: y(b=b), b, e, oracle.bias_gradient(e))
    if case.edge == "zero":
        data = oracle.data_gradient(p, e, w, source_size=case.source_size)
        assert_derivative(lambda x: y(x=x), x, e, data)


def test_clamped_data_gradient_is_exact_away_from_the_border(rng):
    p = Convolution(edge="clamp")
    x, w = rng.standard_normal((1, 5, 6, 2)), rng.standard_normal((3, 3, 3, 2))
    e = rng.standard_normal((1, 5, 6, 3))
    data = oracle.data_gradient(p, e, w, source_size=(6, 5))
    exact = derivative(lambda x: oracle.forward(p, x, w, size=(6, 5)), x, e)
    wrong = np.abs(data - exact).max(axis=(0, 3)) > 1e-8
    border = np.ones((5, 6), bool)
    border[1:-1, 1:-1] = False
    assert_exact(wrong, border)


@pytest.mark.parametrize("case", cases.TRANSPOSES, ids=str)
def test_transpose_gradients_are_derivatives(case, rng):
    x, w, b, e = (a.astype(np.float64) for a in cases.arrays(rng, case))
    p = case.transpose()
    data = oracle.transpose_data_gradient(p, e, w, source_size=case.source_size)
    assert_derivative(lambda x: oracle.transpose(p, x, w, b, size=case.size), x, e, data)
    weights = oracle.transpose_weight_gradient(p, e, x, kernel=case.kernel)
    assert_derivative(lambda w: oracle.transpose(p, x, w, b, size=case.size), w, e, weights)


# --- Geometry -----------------------------------------------------------------


@pytest.mark.parametrize("case", tables.GRADIENT_OFFSETS, ids=lambda case: "-".join(map(str, case)))
def test_the_table_of_gradient_offsets_gives_gradients(case, rng):
    length = min(case.length, 24)
    placed = core.place(
        length, case.kernel, case.stride, case.dilation, case.size_field | case.remainder
    )
    p = Convolution((case.stride, 1), (case.dilation, 1), (placed.offset, 0))
    x, w = rng.standard_normal((2, 1, length, 1)), rng.standard_normal((1, 1, case.kernel, 1))
    e = rng.standard_normal((2, 1, placed.size, 1))
    table = GradientProperties(
        primary_stride=(case.stride, 1),
        kernel_offset=(case.kernel_offset, 0),
        secondary_offset=(case.secondary_offset, 0),
        secondary_stride=(case.stride, 1),
        secondary_dilation=(case.dilation, 1),
    )
    size = (placed.size, 1)
    data = oracle.data_gradient_from(table, e, w, size=(length, 1))
    assert_derivative(lambda x: oracle.forward(p, x, w, size=size), x, e, data)
    weights = oracle.weight_gradient_from(table, e, x, kernel=(case.kernel, 1))
    assert_derivative(lambda w: oracle.forward(p, x, w, size=size), w, e, weights)


@given(
    primary=st.integers(-3, 4),
    stride=st.integers(1, 3),
    offset=st.integers(-3, 3),
    kernel=st.integers(1, 5),
    dilation=st.integers(1, 3),
    size=st.integers(1, 12),
)
def test_data_gradient_from_any_properties(primary, stride, offset, kernel, dilation, size):
    """The printed sum of the property-driven form, for properties that undo nothing."""
    rng = rng_for(f"{primary, stride, offset, kernel, dilation, size}")
    e, w = rng.standard_normal(5), rng.standard_normal(kernel)
    p = GradientProperties(
        primary_offset=(primary, 0),
        primary_stride=(stride, 1),
        kernel_offset=(offset, 0),
        secondary_dilation=(dilation, 1),
    )
    result = flat(oracle.data_gradient_from(p, row(*e), filters(*w), size=(size, 1)))
    reach = ((kernel - 1) * dilation + 1) // 2
    for x in range(size):
        total = 0.0
        for q in range(kernel):
            at = x + primary * stride + offset - reach + dilation * q
            if at % stride == 0 and 0 <= at // stride < 5:
                total += w[kernel - 1 - q] * e[at // stride]
        np.testing.assert_allclose(result[x], total, rtol=1e-12, atol=1e-12)


def test_offsets_of_the_gradient_start_in_the_stuffed_image():
    # Kernel offset -1 starts one pixel left of the stuffed image, primary offset 2 at its pixel 4.
    one = GradientProperties(primary_stride=(2, 1), kernel_offset=(-1, 0))
    result = oracle.data_gradient_from(one, row(1, 2, 3), filters(1), size=(6, 1))
    assert_exact(flat(result), [0, 1, 0, 2, 0, 3])
    two = GradientProperties(primary_stride=(2, 1), primary_offset=(2, 0))
    result = oracle.data_gradient_from(two, row(1, 2, 3), filters(1), size=(3, 1))
    assert_exact(flat(result), [3, 0, 0])


@given(
    length=st.integers(1, 8),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    pad=st.integers(0, 3),
    extra=st.integers(0, 2),
)
def test_transpose_reproduces_the_scattering_definition(length, kernel, stride, pad, extra):
    """Rotated weights at kernel offset k/2 - k + 1 + pad scatter x into every stride-th pixel."""
    size = (length - 1) * stride - 2 * pad + kernel + extra
    if size < 1:
        return
    rng = rng_for(f"{length, kernel, stride, pad}")
    x, w = rng.standard_normal(length), rng.standard_normal(kernel)
    scattered = np.zeros(size)
    for at, tap in np.ndindex(length, kernel):
        if 0 <= at * stride + tap - pad < size:
            scattered[at * stride + tap - pad] += x[at] * w[tap]
    p = Transpose((stride, 1), kernel_offset=(kernel // 2 - kernel + 1 + pad, 0))
    result = oracle.transpose(p, row(*x), filters(*w[::-1]), size=(size, 1))
    np.testing.assert_allclose(flat(result), scattered, rtol=1e-12, atol=1e-12)


@given(
    length=st.integers(1, 9),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    offset=st.integers(-3, 4),
)
def test_a_transpose_sized_by_a_state_is_the_data_gradient(length, kernel, stride, offset):
    """The kernel offset a state gives undoes a convolution once the weights are rotated."""
    rng = rng_for(f"{length, kernel, stride, offset}")
    e, w = rng.standard_normal(length), rng.standard_normal(kernel)
    source = 4 * length
    forward = Convolution((stride, 1), offset=(offset, 0))
    undo = Transpose((stride, 1), kernel_offset=(core.gradient_offsets(offset, kernel)[0], 0))
    result = oracle.transpose(undo, row(*e), filters(*w[::-1]), size=(source, 1))
    expected = oracle.data_gradient(forward, row(*e), filters(*w), source_size=(source, 1))
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@given(case=fuzz.convolutions())
def test_gradients_are_adjoint_to_the_forward_pass(case):
    """A linear map and its transpose: <e, conv(x)> = <dX, x>, and the same for the weights."""
    x, w, _, e = (a.astype(np.float64) for a in cases.arrays(rng_for(repr(case)), case))
    p = case.convolution()
    product = np.sum(e * oracle.forward(p, x, w, size=case.size))
    dw = oracle.weight_gradient(p, e, x, kernel=case.kernel, depthwise=case.depthwise)
    np.testing.assert_allclose(np.sum(dw * w), product, rtol=1e-10, atol=1e-10)
    zero = case.convolution(edge="zero")
    product = np.sum(e * oracle.forward(zero, x, w, size=case.size))
    dx = oracle.data_gradient(p, e, w, source_size=case.source_size)
    np.testing.assert_allclose(np.sum(dx * x), product, rtol=1e-10, atol=1e-10)


@given(case=fuzz.transposes())
def test_transpose_gradients_are_adjoint_to_the_forward_pass(case):
    x, w, _, e = (a.astype(np.float64) for a in cases.arrays(rng_for(repr(case)), case))
    p = case.transpose()
    product = np.sum(e * oracle.transpose(p, x, w, size=case.size))
    dw = oracle.transpose_weight_gradient(p, e, x, kernel=case.kernel)
    dx = oracle.transpose_data_gradient(p, e, w, source_size=case.source_size)
    np.testing.assert_allclose(np.sum(dw * w), product, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.sum(dx * x), product, rtol=1e-10, atol=1e-10)


def test_neuron_is_applied_last():
    y = oracle.forward(
        Convolution(),
        row(1, -2),
        filters(1),
        [-0.5],
        size=(2, 1),
        neuron=lambda z: np.maximum(z, 0),
    )
    assert_exact(flat(y), [0.5, 0])


# --- Cases --------------------------------------------------------------------


@pytest.mark.parametrize("case", [*cases.CASES, *cases.CHANNELS, *cases.FLAT], ids=str)
def test_cases_are_legal(case):
    inputs, outputs = case.shape[3], case.outputs
    assert min(case.result_shape) >= 1
    assert inputs % case.groups == outputs % case.groups == 0
    if case.groups > 1:
        assert inputs // case.groups % 4 == outputs // case.groups % 4 == 0
    if case.depthwise:
        assert case.groups == 1
        assert inputs == outputs
