"""Transposed convolution and its gradients against the float64 oracle, by objects and by arrays."""

from __future__ import annotations

import copy
import pickle
import re

import hypothesis
import mpsgrad as mg
import numpy as np
import pytest

from tests.convolution import cases, fuzz, kernels, oracle
from tests.convolution.cases import FULL, VALID, TransposeCase
from tests.core import oracle as core
from tests.images import Work
from tests.repeats import check_thread_independence
from tests.tolerance import Guarded, assert_close, assert_exact, grid, ulps_for

# What the CPU device does in ways of its own: fewer multiplications, columns in place of rows,
# vectors shared by groups, whole images as one row, weights of more than a thread's share.
WAYS = [
    TransposeCase("dense", (2, 9, 11, 16), 17, (3, 3)),
    TransposeCase("dense, full", (1, 12, 9, 35), 18, (3, 3), method=FULL),
    TransposeCase("flat", (2, 9, 9, 20), 19, (7, 1)),
    TransposeCase("flat s2", (1, 9, 8, 16), 33, (5, 1), (2, 1)),
    TransposeCase("1x1", (2, 5, 7, 6), 5, (1, 1)),
    TransposeCase("1x1 s2", (1, 4, 3, 17), 9, (1, 1), (2, 2)),
    TransposeCase("groups of 4", (2, 4, 5, 20), 20, (3, 3), (2, 2), groups=5),
    TransposeCase("groups of 8", (1, 5, 4, 24), 24, (2, 2), (2, 2), groups=3, method=FULL),
    TransposeCase("groups, more outputs", (1, 3, 4, 8), 24, (4, 4), (2, 2), groups=2),
    TransposeCase("one pixel to an image", (5, 1, 1, 20), 18, (4, 3), method=FULL),
    TransposeCase("an image to one pixel", (3, 4, 3, 7), 6, (3, 4), method=VALID),
    TransposeCase("2x2 s2, many channels", (1, 3, 2, 130), 70, (2, 2), (2, 2), method=FULL),
    TransposeCase("4x4 s2, to 3 channels", (2, 5, 6, 33), 3, (4, 4), (2, 2), grow=(1, 1)),
    TransposeCase("from 3 channels", (2, 5, 6, 3), 33, (4, 4), (2, 2), grow=(1, 1)),
    TransposeCase("4x4 s2, few classes", (1, 5, 4, 21), 21, (4, 4), (2, 2), method=FULL),
    TransposeCase("align top left", (1, 4, 5, 6), 7, (4, 3), (2, 2), method=0x11),
    TransposeCase("align bottom right", (1, 4, 5, 6), 7, (4, 3), (2, 2), method=0x12),
    TransposeCase("3x3 s2, 40 to 36 channels", (2, 5, 6, 40), 36, (3, 3), (2, 2)),
    TransposeCase("rows of three, many channels", (3, 22, 3, 40), 36, (3, 3), (2, 2)),
    TransposeCase("groups of many channels", (1, 4, 5, 80), 72, (3, 3), (2, 2), groups=2),
    TransposeCase("wide, many channels", (1, 2, 530, 33), 34, (2, 1), (2, 1), shift=(-3, 0)),
    TransposeCase("far outside, many channels", (1, 3, 3, 33), 32, (3, 3), (2, 2), shift=(-9, 4)),
    TransposeCase("far outside", (1, 3, 3, 4), 4, (3, 3), (2, 2), shift=(-9, 4), grow=(9, 1)),
]
EVERY_CASE = [*cases.TRANSPOSES, *WAYS]


def descriptor(case, **changes):
    arguments = {
        "input_feature_channels": case.shape[3],
        "output_feature_channels": case.outputs,
        "stride_in_pixels_x": case.stride[0],
        "stride_in_pixels_y": case.stride[1],
        "groups": case.groups,
    }
    return mg.ConvolutionDescriptor(*case.kernel, **{**arguments, **changes})


def source_of(case, weights, biases=None, **changes):
    return mg.ArrayConvolutionDataSource(weights, biases, descriptor=descriptor(case, **changes))


def place(kernel, case):
    """Put the window where the case has it."""
    kernel.offset = case.offset
    kernel.kernel_offset_x, kernel.kernel_offset_y = case.kernel_offset


def expected(case, x, w, b, g):
    """The oracle's (y, dx, dw, db)."""
    p = case.transpose()
    return (
        oracle.transpose(p, x, w, b, size=case.size),
        oracle.transpose_data_gradient(p, g, w, source_size=case.source_size),
        oracle.transpose_weight_gradient(p, g, x, kernel=case.kernel),
        oracle.bias_gradient(g),
    )


def forward(queue, case, data_source, x, dtype=np.float32):
    """Run the forward pass into a destination of the case's size; (kernel, sources, y, states)."""
    kernel = mg.ConvolutionTranspose(data_source, device=queue.device)
    place(kernel, case)
    sources = kernels.batch(queue.device, x)
    destinations = kernels.empty(queue.device, case.result_shape, dtype)
    states = kernel.result_state_batch(sources, destinations)
    kernels.run(
        queue,
        lambda buffer: kernel.encode_batch(
            buffer, sources, destinations, destination_states=states
        ),
    )
    return kernel, sources, kernels.read(queue, destinations), states


def backward(queue, data_source, gradient, sources, states, option=3):
    """Run the gradient kernel; return (kernel, dx, dw, db), the last two flat."""
    kernel = mg.ConvolutionTransposeGradient(data_source, device=queue.device)
    kernel.gradient_option = option
    gradients = kernels.batch(queue.device, gradient)

    def encode(buffer):
        images = kernel.encode_batch(buffer, gradients, sources, states, allocator=mg.DEFAULT)
        states[0].synchronize(buffer)
        return images

    images = kernels.run(queue, encode)
    dw = states[0].gradient_for_weights.to_numpy()
    db = states[0].gradient_for_biases.to_numpy()
    return kernel, kernels.read(queue, images), dw, db


def computed(queue, case, x, w, b, g):
    """The kernels' (y, dx, dw, db)."""
    data_source = source_of(case, w, b)
    _, sources, y, states = forward(queue, case, data_source, x)
    kernels.spoil(states)
    _, dx, dw, db = backward(queue, data_source, g, sources, states)
    return y, dx, dw.reshape(case.weights_shape), db


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_exact_sums_are_exact(queue, case, rng):
    arrays = kernels.exact_arrays(case, rng)
    names = "y", "dx", "dw", "db"
    results = zip(names, computed(queue, case, *arrays), expected(case, *arrays), strict=True)
    for name, got, want in results:
        np.testing.assert_array_equal(got, want, err_msg=f"{case}: {name}")


@pytest.mark.parametrize("case", [c for c in EVERY_CASE if not c.name.startswith("dense")], ids=str)
def test_errors_are_those_of_the_additions(queue, case, rng):
    arrays = cases.arrays(rng, case)
    scales = expected(case, *map(np.abs, arrays))
    positions = case.shape[0] * case.size[0] * case.size[1]
    gradients = case.kernel[0] * case.kernel[1] * case.outputs // case.groups
    counts = case.products + 1, gradients, positions, positions
    results = zip(
        computed(queue, case, *arrays), expected(case, *arrays), scales, counts, strict=True
    )
    for got, want, scale, count in results:
        # A product and an addition each; a fused multiply-add rounds less.
        assert_close(got, want, ulps=ulps_for(2 * count), scale=scale, nonzero=0.0)


@pytest.mark.fuzz
@hypothesis.settings(max_examples=100)
@hypothesis.given(case=fuzz.transposes(), seed=hypothesis.strategies.integers(0, 2**32 - 1))
def test_any_geometry(device, case, seed):
    queue = device.command_queue()
    arrays = kernels.exact_arrays(case, np.random.default_rng(seed))
    for got, want in zip(computed(queue, case, *arrays), expected(case, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def row(values):
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


def one_row(weights, biases=None, **options):
    d = mg.ConvolutionDescriptor(
        len(weights), 1, input_feature_channels=1, output_feature_channels=1, **options
    )
    return mg.ArrayConvolutionDataSource(row(weights), biases, descriptor=d)


def test_the_chapters_example(device):
    data_source = one_row([1, 2, 3], stride_in_pixels_x=2)
    up = mg.ConvolutionTranspose(data_source, device=device)
    x = row([1, 2, 3, 4])
    y, state = up(x, with_state=True)
    assert y.ravel().tolist() == [2, 7, 4, 11, 6, 15, 8]
    assert (up.kernel_offset_x, up.kernel_offset_y, up.offset) == (0, 0, mg.Offset(0, 0, 0))
    dx = mg.ConvolutionTransposeGradient(data_source, device=device)(np.ones_like(y), x, state)
    assert dx.ravel().tolist() == [3, 6, 6, 5]
    assert state.gradient_for_weights.to_numpy().tolist() == [6, 10, 9]
    assert state.gradient_for_biases.to_numpy().tolist() == [7]
    up.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    assert up(x).ravel().tolist() == [3, 2, 7, 4, 11, 6, 15, 8, 4]
    assert up.kernel_offset_x == -1


@pytest.mark.parametrize("case", [c for c in EVERY_CASE if c.offset == (0, 0)], ids=str)
def test_policies_set_size_and_offsets(device, case, rng):
    w = grid(rng, case.weights_shape)
    kernel = mg.ConvolutionTranspose(source_of(case, w), device=device)
    kernel.padding = mg.DefaultPadding(case.method)
    kernel.offset = 3, -4
    source = mg.Image(device, mg.ImageDescriptor(case.shape[2], case.shape[1], case.shape[3]))
    found = kernel.destination_descriptor(source)
    bare = TransposeCase("", case.shape, case.outputs, case.kernel, case.stride, method=case.method)
    assert (found.width, found.height) == bare.size
    assert found.feature_channels == case.outputs
    assert (kernel.kernel_offset_x, kernel.kernel_offset_y) == bare.kernel_offset
    assert kernel.offset == mg.Offset(0, 0, 0)


def test_a_window_too_large_is_refused_and_changes_nothing(device):
    kernel = mg.ConvolutionTranspose(one_row([1, 2, 3, 4]), device=device)
    kernel.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    kernel.kernel_offset_x, kernel.offset = 7, (1, 2)
    with pytest.raises(ValueError, match="too small for a window of 4x1"):
        kernel(row([1, 2, 3]))
    assert (kernel.kernel_offset_x, kernel.offset) == (7, mg.Offset(1, 2, 0))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("method", [0x10, 0x00, 0x20, 0x1C])
def test_it_undoes_a_convolution(device, size, stride, method, rng):
    """With rotated weights and the convolution's state it is the convolution's data gradient."""
    x, w = grid(rng, (2, 8, 7, 3)), grid(rng, (4, size, size, 3))
    options = {"stride_in_pixels_x": stride, "stride_in_pixels_y": stride}
    down_source = mg.ArrayConvolutionDataSource(
        w, descriptor=mg.ConvolutionDescriptor(
            size, size, input_feature_channels=3, output_feature_channels=4, **options
        ),
    )  # fmt: skip
    up_source = mg.ArrayConvolutionDataSource(
        w[:, ::-1, ::-1].transpose(3, 1, 2, 0).copy(),
        descriptor=mg.ConvolutionDescriptor(
            size, size, input_feature_channels=4, output_feature_channels=3, **options
        ),
    )
    down = mg.Convolution(down_source, device=device)
    down.padding = mg.DefaultPadding(method)
    up = mg.ConvolutionTranspose(up_source, device=device)
    small, state = down(x, with_state=True)
    large, up_state = up(small, with_state=True, convolution_gradient_state=state)
    assert large.shape == x.shape
    backward = mg.ConvolutionGradient(down_source, device=device)
    assert_exact(large, backward(small, x, state))
    assert up_state.convolution is down
    assert up_state.convolution_transpose is up
    assert up.kernel_offset_x == core.gradient_offsets(down.offset.x, size)[0]
    assert_exact(up(small, convolution_gradient_state=[state, state]), large)


def test_it_undoes_a_fully_connected_kernel(device, rng):
    x, w = grid(rng, (2, 3, 4, 5)), grid(rng, (6, 3, 4, 5))
    down = mg.FullyConnected(mg.ArrayConvolutionDataSource(w), device=device)
    down.offset = 9, 9  # ignored
    y, state = down(x, with_state=True)
    weights = w[:, ::-1, ::-1].transpose(3, 1, 2, 0).copy()
    up = mg.ConvolutionTranspose(mg.ArrayConvolutionDataSource(weights), device=device)
    got = up(y, convolution_gradient_state=state)
    assert_exact(got, oracle.fully_connected_data_gradient(y, w))


def test_rotated_weights_are_those_of_other_frameworks(device, rng):
    """W[o, q, p, c] = w[c, o, k - 1 - q, k - 1 - p], and x is scattered into every s-th pixel."""
    size, stride, pad = 4, 2, 1
    x, w = grid(rng, (2, 3, 5, 6)), grid(rng, (6, 7, size, size))  # w is (I, O, kH, kW)
    want = np.zeros((2, 2 * 3 + 2, 2 * 5 + 2, 7))
    for y, column in np.ndindex(3, 5):
        spread = np.einsum("nc,cohw->nhwo", x[:, y, column], w)
        want[:, y * stride : y * stride + size, column * stride : column * stride + size] += spread
    d = mg.ConvolutionDescriptor(
        size, size, input_feature_channels=6, output_feature_channels=7,
        stride_in_pixels_x=stride, stride_in_pixels_y=stride,
    )  # fmt: skip
    weights = w.transpose(1, 2, 3, 0)[:, ::-1, ::-1]
    up = mg.ConvolutionTranspose(
        mg.ArrayConvolutionDataSource(weights, descriptor=d), device=device
    )
    up.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    assert_exact(up(x), want)
    assert up.kernel_offset_x == size // 2 - size + 1  # pad 0
    up.padding = mg.ExplicitPadding(pad)
    assert_exact(up(x), want[:, pad:-pad, pad:-pad])


# Of each axis: window, stride, and what PyTorch calls padding and output_padding.
CUTS = [
    ((3, 2, 1, 1), (4, 2, 1, 0)),
    ((3, 2, 0, 1), (2, 2, 0, 0)),
    ((1, 3, 0, 2), (5, 1, 3, 0)),
    ((2, 3, 1, 2), (7, 4, 3, 3)),
]


@pytest.mark.parametrize(("across", "down"), CUTS)
def test_explicit_padding_is_cut_off(device, across, down, rng):
    """The full result without the padding, or with what the bias alone reaches; and gradients."""
    d = mg.ConvolutionDescriptor(
        across[0], down[0], input_feature_channels=3, output_feature_channels=5,
        stride_in_pixels_x=across[1], stride_in_pixels_y=down[1],
    )  # fmt: skip
    x, w, b = grid(rng, (2, 4, 5, 3)), grid(rng, (5, down[0], across[0], 3)), grid(rng, (5,))
    source = mg.ArrayConvolutionDataSource(w, b, descriptor=d)
    up = mg.ConvolutionTranspose(source, device=device)
    up.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    full, state = up(x, with_state=True)
    back = mg.ConvolutionTransposeGradient(source, device=device)

    far = [axis[2] - axis[3] for axis in (across, down)]
    grown = [(0, 0), *[(0, max(0, -pad)) for pad in reversed(far)], (0, 0)]
    height, width = (n - max(0, pad) for n, pad in zip(full.shape[1:3], reversed(far), strict=True))
    kept = (slice(None), slice(down[2], height), slice(across[2], width))
    want = np.pad(full - b, grown)[:, down[2] :, across[2] :] + b
    want = want[:, : want.shape[1] - max(0, far[1]), : want.shape[2] - max(0, far[0])]
    up.padding = policy = mg.ExplicitPadding(across[2], far[0], down[2], far[1])
    assert up.result_shape(x.shape) == want.shape
    got, cut_state = up(x, with_state=True)
    assert_exact(got, want)
    assert policy.padding_method() == mg.PaddingMethod.CUSTOM

    g = grid(rng, got.shape)
    spread = np.zeros_like(full)
    spread[kept] = g[:, : height - down[2], : width - across[2]]
    assert_exact(back(g, x, cut_state), back(spread, x, state))
    dw, dw_full = (s.gradient_for_weights.to_numpy() for s in (cut_state, state))
    assert_exact(dw, dw_full)
    assert_exact(cut_state.gradient_for_biases.to_numpy(), g.sum((0, 1, 2)))


def test_explicit_padding_leaves_the_size_to_a_convolution_that_is_undone(device, rng):
    up, _, _ = two_sizes(device)
    down = mg.Convolution(
        mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32)), device=device
    )
    small, state = down(grid(rng, (1, 6, 6, 4)), with_state=True)
    want = up(small, convolution_gradient_state=state)
    up.padding = mg.ExplicitPadding(1)
    assert_exact(up(small, convolution_gradient_state=state), want)


def test_explicit_padding_that_leaves_nothing_is_refused(device):
    kernel = mg.ConvolutionTranspose(one_row([1, 2, 3, 4]), device=device)
    kernel.padding = mg.ExplicitPadding(3, 3)
    kernel.kernel_offset_x, kernel.offset = 7, (1, 2)
    with pytest.raises(ValueError, match="too small for a window of 4x1 under padding 'explicit"):
        kernel(row([1, 2, 3]))
    assert (kernel.kernel_offset_x, kernel.offset) == (7, mg.Offset(1, 2, 0))


# ---- formats, windows of images, kinds of batches ------------------------------------------------


@pytest.mark.parametrize("name", ["4x4 s2", "groups of 4", "2x2 s2, many channels"])
def test_float16_images_round_once_on_store(queue, name, rng):
    case = next(c for c in EVERY_CASE if c.name == name)
    x, w, b, g = cases.arrays(rng, case)
    x, g = x.astype(np.float16), g.astype(np.float16)
    data_source = source_of(case, w, b)
    _, sources, y, states = forward(queue, case, data_source, x, np.float16)
    assert y.dtype == np.float16
    _, dx, dw, _ = backward(queue, data_source, g, sources, states)
    assert dx.dtype == np.float16
    want = expected(case, x, w, b, g)
    scales = expected(case, *map(np.abs, (x, w, b, g)))
    gradients = case.kernel[0] * case.kernel[1] * case.outputs // case.groups
    ulps = ulps_for(2 * case.products + 2, np.float16)
    assert_close(y, want[0], ulps=ulps, scale=scales[0], nonzero=0.0)
    ulps = ulps_for(2 * gradients, np.float16)
    assert_close(dx, want[1], ulps=ulps, scale=scales[1], nonzero=0.0)
    positions = case.shape[0] * case.size[0] * case.size[1]
    ulps = ulps_for(2 * positions)
    assert_close(dw.reshape(w.shape), want[2], ulps=ulps, scale=scales[2], nonzero=0.0)
    exact = x.astype(np.float64).round(), np.round(w), np.round(b), g.astype(np.float64).round()
    whole = tuple(np.asarray(a, np.float32) for a in exact)
    _, _, y, _ = forward(
        queue, case, source_of(case, *whole[1:3]), whole[0].astype(np.float16), np.float16
    )
    np.testing.assert_array_equal(y, expected(case, *whole)[0])


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_float16_is_rounded_after_bias_and_neuron(queue, case, rng):
    x, w, b, _ = kernels.half_way(*kernels.exact_arrays(case, rng))
    data_source = source_of(case, w, b, fused_neuron_descriptor=kernels.LINEAR)
    _, _, y, _ = forward(queue, case, data_source, x.astype(np.float16), np.float16)
    exact = kernels.linear(oracle.transpose(case.transpose(), x, w, b, size=case.size))
    assert_exact(y, core.store(exact, "float16"), nonzero=0)


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_float16_data_gradients_are_rounded_after_the_sum(queue, case, rng):
    x, w, b, g = kernels.half_way(*kernels.exact_arrays(case, rng))
    data_source = source_of(case, w, b)
    halves = x.astype(np.float16)
    _, sources, _, states = forward(queue, case, data_source, halves, np.float16)
    _, dx, _, _ = backward(queue, data_source, g.astype(np.float16), sources, states)
    exact = oracle.transpose_data_gradient(case.transpose(), g, w, source_size=case.source_size)
    assert_exact(dx, core.store(exact, "float16"), nonzero=0)


@pytest.mark.parametrize("kind", ["separate", "container"])
def test_images_need_not_be_one_allocation(queue, kind, rng):
    case = next(c for c in EVERY_CASE if c.name == "2x2 s2 full")
    x, w, b, _ = kernels.exact_arrays(case, rng)
    device = queue.device
    kernel = mg.ConvolutionTranspose(source_of(case, w, b), device=device)
    place(kernel, case)
    sizes = (case.shape, case.result_shape)
    if kind == "separate":
        sources, destinations = (
            [mg.Image(device, mg.ImageDescriptor(s[2], s[1], s[3])) for _ in range(s[0])]
            for s in sizes
        )
        for image, array in zip(sources, x, strict=True):
            image.write(array)
        kernels.run(queue, lambda cb: kernel.encode_batch(cb, sources, destinations))
        kernels.run(queue, lambda cb: mg.synchronize(destinations, cb))
        got = np.stack([image.read() for image in destinations])
    else:
        source, destination = (
            mg.Image(device, mg.ImageDescriptor(s[2], s[1], s[3], number_of_images=s[0]))
            for s in sizes
        )
        source.write(x)
        kernels.run(queue, lambda cb: kernel.encode(cb, source, destination))
        kernels.run(queue, destination.synchronize)
        got = destination.read()
    np.testing.assert_array_equal(got, expected(case, x, w, b, np.zeros(case.result_shape))[0])


@pytest.mark.parametrize("stride", [1, 2])
def test_channel_windows_and_clip_rectangles(queue, stride, rng):
    device = queue.device
    x, w, b = grid(rng, (2, 4, 3, 12)), grid(rng, (5, 3, 3, 4)), grid(rng, 5)
    d = mg.ConvolutionDescriptor(
        3, 3, input_feature_channels=4, output_feature_channels=5,
        stride_in_pixels_x=stride, stride_in_pixels_y=stride,
    )  # fmt: skip
    data_source = mg.ArrayConvolutionDataSource(w, b, descriptor=d)
    kernel = mg.ConvolutionTranspose(data_source, device=device)
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    kernel.offset, kernel.kernel_offset_x, kernel.kernel_offset_y = (1, 0), -1, 1
    kernel.clip_rect = mg.Region((1, 2), (3, 4))
    before = grid(rng, (2, 7, 6, 17))
    sources, destinations = kernels.batch(device, x), kernels.batch(device, before.copy())
    states = kernel.result_state_batch(sources, destinations)
    kernels.run(
        queue, lambda cb: kernel.encode_batch(cb, sources, destinations, destination_states=states)
    )
    got = kernels.read(queue, destinations)
    p = oracle.Transpose((stride, stride), (1, 0), (-1, 1))
    want = before.astype(np.float64)
    # Windows count from the clip rectangle's corner.
    want[:, 2:6, 1:4, 8:13] = oracle.transpose(p, x[..., 4:8], w, b, size=(3, 4))
    # Whole groups of four are stored; what a GPU stores after those produced is its business.
    rest = np.s_[:, 2:6, 1:4, 13:16]
    want[rest] = 0 if device.kind == "cpu" else got[rest]
    np.testing.assert_array_equal(got, want)

    g = grid(rng, (2, 4, 3, 5))
    gradient, dx, dw, db = backward(queue, data_source, g, sources, states)
    assert dx.shape == (2, 4, 3, 4)
    np.testing.assert_array_equal(dx, oracle.transpose_data_gradient(p, g, w, source_size=(3, 4)))
    want = oracle.transpose_weight_gradient(p, g, x[..., 4:8], kernel=(3, 3))
    np.testing.assert_array_equal(dw.reshape(w.shape), want)
    np.testing.assert_array_equal(db, oracle.bias_gradient(g))
    assert gradient.secondary_source_feature_channel_offset == 4


@pytest.mark.parametrize("option", [1, 2, 3])
def test_gradient_options(queue, option, rng):
    case = next(c for c in EVERY_CASE if c.name == "3x3 s2")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = source_of(case, w, b)
    _, sources, _, states = forward(queue, case, data_source, x)
    kernels.poison(queue.device, case.shape)
    _, dx, dw, db = backward(queue, data_source, g, sources, states, option)
    _, want_dx, want_dw, want_db = expected(case, x, w, b, g)
    kernels.check_data_gradient(queue.device, option, dx, want_dx)
    np.testing.assert_array_equal(dw.reshape(w.shape), want_dw if option & 2 else 0 * want_dw)
    np.testing.assert_array_equal(db, want_db if option & 2 else 0 * want_db)


def test_a_state_sums_over_encodes(device, rng):
    case = next(c for c in EVERY_CASE if c.name == "4x4 s2, to 3 channels")
    x, w, b, _ = kernels.exact_arrays(case, rng)
    data_source = source_of(case, w, b)
    up = mg.ConvolutionTranspose(data_source, device=device)
    down = mg.ConvolutionTransposeGradient(data_source, device=device)
    y, state = up(x, with_state=True)
    g = grid(rng, y.shape)
    dx = down(g, x, state)
    assert_exact(down(g[1], x[1], state), dx[1])
    first = state.gradient_for_weights.to_numpy(), state.gradient_for_biases.to_numpy()
    p = oracle.Transpose(case.stride, kernel_offset=(up.kernel_offset_x, up.kernel_offset_y))
    want = oracle.transpose_weight_gradient(p, g, x, kernel=case.kernel)
    want += oracle.transpose_weight_gradient(p, g[1:], x[1:], kernel=case.kernel)
    assert_exact(first[0].reshape(w.shape), want)
    assert_exact(first[1], oracle.bias_gradient(g) + oracle.bias_gradient(g[1:]))
    assert isinstance(state, mg.ConvolutionTransposeGradientState)
    assert isinstance(state, mg.ConvolutionGradientState)


def test_out(device, rng):
    case = next(c for c in EVERY_CASE if c.name == "3x3 s2 full")
    x, w, b, g = kernels.exact_arrays(case, rng)
    data_source = source_of(case, w, b)
    up = mg.ConvolutionTranspose(data_source, device=device)
    up.padding = mg.DefaultPadding(case.method)
    down = mg.ConvolutionTransposeGradient(data_source, device=device)
    want = expected(case, x, w, b, g)
    with Guarded(case.result_shape) as out:
        y, state = up(x, with_state=True, out=out)
        assert y is out
        np.testing.assert_array_equal(out, want[0])
    with Guarded(case.shape, skew=1) as out:
        assert down(g, x, state, out=out) is out
        np.testing.assert_array_equal(out, want[1])
    assert up(x[0]).shape == case.result_shape[1:]


# Whose weight gradients are put in order by one thread, and by several.
THREAD_CASES = [
    *(c for c in EVERY_CASE if c.name in {"3x3 s2", "groups of 4", "dense", "flat s2"}),
    TransposeCase("256 to 128 channels", (2, 4, 4, 256), 128, (2, 2), (2, 2), method=FULL),
]


@pytest.mark.parametrize("case", THREAD_CASES, ids=str)
def test_same_bits_for_any_number_of_threads(queue, case, rng):
    x, w, b, g = cases.arrays(rng, case)
    check_thread_independence(lambda: computed(queue, case, x, w, b, g), (1, 2, 5, 2))


# ---- weights: neuron, folding, precision, reload, export -----------------------------------------


def test_fused_neuron_and_batch_normalization(device, rng):
    case = TransposeCase("", (2, 4, 3, 5), 6, (3, 3), (2, 2))
    x, w, b, _ = kernels.exact_arrays(case, rng)
    slopes = np.array([0, 1, 2, 3, -1, -2], np.float32)
    d = descriptor(
        case, fused_neuron_descriptor=mg.NeuronDescriptor(mg.NeuronType.PRELU, data=slopes.tolist())
    )
    d.set_batch_normalization_parameters_for_inference(None, np.full(6, 0.25), None, [1] * 6, 0.0)
    data_source = mg.ArrayConvolutionDataSource(w, b, descriptor=d)
    y = mg.ConvolutionTranspose(data_source, device=device)(x)
    folded, shifted = oracle.fold_batch_normalization(w, b, variance=0.25, beta=1.0)
    plain = oracle.transpose(case.transpose(), x, folded, shifted, size=case.size)
    assert_exact(y, np.where(plain >= 0, plain, slopes * plain))


def pointwise(value, bias=0.0):
    return mg.ArrayConvolutionDataSource(np.full((1, 1, 1, 1), value, np.float32), [bias])


ONE = np.ones((1, 1, 1, 1), np.float32)


def test_half_kernel_weights_are_rounded(device):
    source = mg.ArrayConvolutionDataSource(
        np.full((1, 1, 1, 1), 0.1, np.float32), kernel_weights_data_type=mg.DataType.FLOAT16
    )
    kernel = mg.ConvolutionTranspose(source, device=device)
    assert kernel(ONE).item() == np.float32(np.float16(0.1))
    kernel.accumulator_precision = mg.ConvolutionAccumulatorPrecision.HALF
    assert copy.copy(kernel).accumulator_precision == mg.ConvolutionAccumulatorPrecision.HALF


def test_reloads_and_exports(queue):
    data_source = pointwise(2, 3)
    up = mg.ConvolutionTranspose(data_source, device=queue.device)
    down = mg.ConvolutionTransposeGradient(data_source, device=queue.device)
    y, state = up(ONE, with_state=True)
    assert y.item() == 5
    weights = mg.Buffer(queue.device, np.float32([7]))
    new = mg.ConvolutionWeightsAndBiasesState(weights, mg.Buffer(queue.device, np.float32([1])))
    assert down(ONE, ONE, state).item() == 2
    kernels.run(queue, lambda cb: up.reload_weights_and_biases(cb, new))
    assert up(ONE).item() == 8
    assert down(ONE, ONE, state).item() == 2  # weights of its own
    kernels.run(queue, lambda cb: down.reload_weights_and_biases(cb, new))
    assert down(ONE, ONE, state).item() == 7
    exported = kernels.run(queue, up.export_weights_and_biases)
    assert exported.weights.to_numpy().tolist() == [7]
    assert exported.biases.to_numpy().tolist() == [1]
    data_source.weights_array = data_source.weights_array * 5
    up.reload_weights_and_biases_from_data_source()
    down.reload_weights_and_biases_from_data_source()
    assert up(ONE).item() == 13
    assert down(ONE, ONE, state).item() == 10


def test_first_weights_come_from_the_states_kernel(device):
    up = mg.ConvolutionTranspose(pointwise(3), device=device)
    down = mg.ConvolutionTransposeGradient(pointwise(2), device=device)
    _, state = up(ONE, with_state=True)
    assert down(ONE, ONE, state).item() == 3
    down.reload_weights_and_biases_from_data_source()
    assert down(ONE, ONE, state).item() == 2


def test_an_optimizer_takes_its_state(queue):
    data_source = pointwise(2, 3)
    up = mg.ConvolutionTranspose(data_source, device=queue.device)
    down = mg.ConvolutionTransposeGradient(data_source, device=queue.device)
    _, state = up(ONE, with_state=True)
    down(ONE * 4, ONE, state)
    sgd = mg.StochasticGradientDescent(0.5, device=queue.device)

    def encode(command_buffer):
        weights = up.export_weights_and_biases(command_buffer)
        sgd.encode_convolution(command_buffer, state, weights, None, weights)
        up.reload_weights_and_biases(command_buffer, weights)

    kernels.run(queue, encode)
    assert up(ONE).item() == (2 - 0.5 * 4) + (3 - 0.5 * 4)


def test_copies_keep_offsets(device):
    data_source = pointwise(2)
    kernel = mg.ConvolutionTranspose(data_source, device=device)
    kernel.kernel_offset_x, kernel.kernel_offset_y, kernel.offset = 3, -2, (1, 1)
    for twin in (
        copy.copy(kernel),
        pickle.loads(pickle.dumps(kernel)),
        mg.ConvolutionTranspose.from_bytes(kernel.to_bytes(), device),
    ):
        assert (twin.kernel_offset_x, twin.kernel_offset_y) == (3, -2)
        assert twin.offset == mg.Offset(1, 1, 0)
        assert twin.data_source is not data_source
    assert repr(kernel).startswith("ConvolutionTranspose(weights=ArrayConvolutionDataSource(")


def test_properties(device):
    case = TransposeCase("", (1, 2, 2, 8), 16, (3, 2), (2, 3), groups=2)
    data_source = source_of(case, np.ones(case.weights_shape, np.float32))
    up = mg.ConvolutionTranspose(data_source, device=device)
    down = mg.ConvolutionTransposeGradient(data_source, device=device)
    assert (up.input_feature_channels, up.output_feature_channels, up.groups) == (8, 16, 2)
    assert (up.kernel_width, up.kernel_height, up.stride_in_pixels_x) == (3, 2, 2)
    assert up.is_backwards
    assert up.is_result_state_reused_across_batch
    assert not down.is_backwards
    assert down.source_gradient_feature_channels == 16
    assert down.source_image_feature_channels == 8
    assert up.data_source is data_source
    assert not isinstance(up, mg.Convolution)
    assert not isinstance(down, mg.ConvolutionGradient)


# ---- states and read counts ----------------------------------------------------------------------


def test_read_counts_of_a_training_step(queue):
    """A temporary state of the convolution is read by the encode that undoes it."""
    device = queue.device
    data_source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    down = mg.Convolution(data_source, device=device)
    up = mg.ConvolutionTranspose(data_source, device=device)
    gradient = mg.ConvolutionTransposeGradient(data_source, device=device)
    command_buffer = queue.command_buffer()
    x = kernels.batch(device, np.ones((3, 5, 5, 4), np.float32))
    y, states = down.encode_batch(command_buffer, x, with_state=True, temporary_state=True)
    mg.increment_read_count(states, 2)
    mg.increment_read_count(y, 3)
    z, up_states = up.encode_batch(
        command_buffer, y, convolution_gradient_states=states, with_state=True,
        temporary_state=True,
    )  # fmt: skip
    assert (states[0].read_count, y[0].read_count) == (2, 3)
    assert all(state is up_states[0] for state in up_states)
    gradient.encode_batch(command_buffer, z, y, up_states, allocator=mg.DEFAULT)
    assert up_states[0].read_count == 0
    # A destination state knows its convolution state; one given by itself is read as well.
    results = kernels.empty(device, (3, 5, 5, 4))
    made = up.result_state_batch(y, results, states)
    up.encode_batch(command_buffer, y, results, destination_states=made)
    assert states[0].read_count == 1
    up.encode_batch(command_buffer, y, results, convolution_gradient_states=states)
    assert (states[0].read_count, y[0].read_count) == (0, 0)
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        up.encode_batch(command_buffer, x, results, convolution_gradient_states=states)
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        up.encode_batch(command_buffer, x, results, destination_states=made)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_states_of_other_kernels_are_refused(queue):
    device = queue.device
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    x = np.ones((2, 5, 5, 4), np.float32)
    convolution, up = (
        cls(source, device=device) for cls in (mg.Convolution, mg.ConvolutionTranspose)
    )
    backward, down = (
        cls(source, device=device)
        for cls in (mg.ConvolutionGradient, mg.ConvolutionTransposeGradient)
    )
    _, state = convolution(x, with_state=True)
    _, up_state = up(x, with_state=True)
    assert up_state.convolution is None
    with pytest.raises(TypeError, match="must come from ConvolutionTranspose, but it was made by"):
        down(x, x, state)
    with pytest.raises(TypeError, match="must come from Convolution, but it was made by"):
        backward(x, x, up_state)
    words = "must come from Convolution, got ConvolutionTransposeGradientState"
    with pytest.raises(TypeError, match=words):
        up(x, convolution_gradient_state=up_state)
    _, other = convolution(x, with_state=True)
    with pytest.raises(ValueError, match="must be one and the same object"):
        up(x, convolution_gradient_state=[state, other])
    with pytest.raises(ValueError, match="has 3 entries, expected 2, one an image"):
        up(x, convolution_gradient_state=[state] * 3)
    images, results = kernels.batch(device, x), kernels.batch(device, x.copy())
    made = up.result_state_batch(images, results)
    command_buffer = queue.command_buffer()
    with pytest.raises(ValueError, match="give one of them"):
        up.encode_batch(
            command_buffer, images, results, destination_states=made,
            convolution_gradient_states=[state] * 2,
        )  # fmt: skip
    with pytest.raises(TypeError, match="made by a kernel"):
        mg.ConvolutionTransposeGradientState()


def test_stale_properties_are_refused(queue):
    device = queue.device
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    up = mg.ConvolutionTranspose(source, device=device)
    down = mg.ConvolutionTransposeGradient(source, device=device)
    x, y, dx = (kernels.batch(device, np.ones((1, 5, 5, 4), np.float32)) for _ in range(3))
    states = up.result_state_batch(x, y)
    command_buffer = queue.command_buffer()
    with pytest.raises(mg.errors.StateError, match="no forward encode has filled this state"):
        down.encode_batch(command_buffer, y, x, states)
    up.kernel_offset_x = 1
    with pytest.raises(mg.errors.StateError, match=re.escape("changed after result_state()")):
        up.encode_batch(command_buffer, x, y, destination_states=states)
    up.kernel_offset_x = 0
    up.encode_batch(command_buffer, x, y, destination_states=states)
    down.configure(y, x, states)
    for name, value in {
        "primary_offset": (1, 0),
        "secondary_offset": (0, 1),
        "kernel_offset_x": 1,
        "kernel_offset_y": -1,
    }.items():
        usual = getattr(down, name)
        setattr(down, name, value)
        with pytest.raises(ValueError, match="kernel_offset must be 0"):
            down.encode_batch(command_buffer, y, x, states, dx)
        setattr(down, name, usual)
    down.primary_stride_in_pixels_x = 2
    with pytest.raises(ValueError, match="strides must be those of the weights' descriptor, 1"):
        down.encode_batch(command_buffer, y, x, states, dx)
    down.primary_stride_in_pixels_x = 1
    large = kernels.batch(device, np.ones((1, 5, 6, 4), np.float32))
    with pytest.raises(ValueError, match="destination is 6x5, but the forward source was 5x5"):
        down.encode_batch(command_buffer, y, x, states, large)
    down.encode_batch(command_buffer, y, x, states, dx)
    command_buffer.commit()
    command_buffer.wait_until_completed()


# ---- what is refused -----------------------------------------------------------------------------


def plain(**changes):
    return mg.ConvolutionDescriptor(input_feature_channels=8, output_feature_channels=8, **changes)


@pytest.mark.parametrize("cls", [mg.ConvolutionTranspose, mg.ConvolutionTransposeGradient])
@pytest.mark.parametrize(
    ("d", "words"),
    [
        (plain(dilation_rate_x=2), "dilation rates must be 1, got 2 and 1"),
        (
            mg.SubPixelConvolutionDescriptor(
                input_feature_channels=8, output_feature_channels=8, sub_pixel_scale_factor=2
            ),
            "the descriptor must be a plain ConvolutionDescriptor",
        ),
        (
            mg.DepthWiseConvolutionDescriptor(input_feature_channels=8, output_feature_channels=8),
            "the descriptor must be a plain ConvolutionDescriptor",
        ),
    ],
    ids=["dilation", "sub-pixel", "depthwise"],
)
def test_rejected_descriptors(device, cls, d, words):
    source = mg.ArrayConvolutionDataSource(np.ones(d.weight_shape, np.float32), descriptor=d)
    with pytest.raises(ValueError, match=f"{cls.__name__}: {words}"):
        cls(source, device=device)


@pytest.mark.parametrize("cls", [mg.ConvolutionTranspose, mg.ConvolutionTransposeGradient])
@pytest.mark.parametrize("dtype", [np.float16, np.uint8])
def test_only_float32_weights(device, cls, dtype):
    source = mg.ArrayConvolutionDataSource(np.ones((1, 2, 2, 1), dtype))
    with pytest.raises(TypeError, match=re.escape("data_type() must be FLOAT32")):
        cls(source, device=device)


@pytest.mark.parametrize("reason", ["fused neuron", "folded batch normalization"])
def test_untrainable(device, reason):
    neuron = mg.NeuronDescriptor(mg.NeuronType.RELU) if reason == "fused neuron" else None
    d = plain(fused_neuron_descriptor=neuron)
    if neuron is None:
        d.set_batch_normalization_parameters_for_inference(np.zeros(8), None, None, None, 0.0)
    w = np.ones((8, 3, 3, 8), np.float32)
    source = mg.ArrayConvolutionDataSource(w, descriptor=d)
    with pytest.raises(ValueError, match=reason):
        mg.ConvolutionTransposeGradient(source, device=device)
    x = np.ones((1, 3, 3, 8), np.float32)
    y, state = mg.ConvolutionTranspose(source, device=device)(x, with_state=True)
    down = mg.ConvolutionTransposeGradient(mg.ArrayConvolutionDataSource(w), device=device)
    with pytest.raises(ValueError, match=reason):
        down(y, x, state)


def test_rejected_encodes(queue):
    device = queue.device
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 8), np.float32))
    up = mg.ConvolutionTranspose(source, device=device)
    down = mg.ConvolutionTransposeGradient(source, device=device)
    x = np.ones((2, 5, 5, 8), np.float32)
    with pytest.raises(ValueError, match="offers 4 channels from offset 0, but the kernel reads 8"):
        up(np.ascontiguousarray(x[..., :4]))
    up.edge_mode = mg.EdgeMode.CLAMP
    with pytest.raises(ValueError, match="edge_mode must be ZERO"):
        up(x)
    up.edge_mode = mg.EdgeMode.ZERO
    y, state = up(x, with_state=True)
    with pytest.raises(ValueError, match="source_gradient is 4x5, but the forward pass wrote 5x5"):
        down(np.ascontiguousarray(y[:, :, :4]), x, state)
    with pytest.raises(ValueError, match="source is 4x5, but the state was made for"):
        down(y, np.ascontiguousarray(x[:, :, :4]), state)
    other = mg.ConvolutionTranspose(
        mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 8), np.float32)), device=device
    )
    _, wrong = other(x, with_state=True)
    with pytest.raises(ValueError, match="another shape"):
        down(y, x, wrong)
    images = kernels.batch(device, x)
    command_buffer = queue.command_buffer()
    with pytest.raises(ValueError, match="make it with result_state"):
        up.encode_batch(command_buffer, images, images, with_state=True)
    with pytest.raises(TypeError, match="both be single images or both be batches"):
        up.encode(command_buffer, images, images[0])
    with pytest.raises(TypeError, match="destination_state without destination"):
        up.encode_batch(command_buffer, images, destination_states=[state, state])
    with pytest.raises(ValueError, match="kernel_offset_x"):
        up.kernel_offset_x = 2**40
    with pytest.raises(ValueError, match="FLOAT32 need accumulator_precision FLOAT"):
        up.accumulator_precision = mg.ConvolutionAccumulatorPrecision.HALF
    with pytest.raises(TypeError, match=re.escape("weights must be a ConvolutionDataSource")):
        mg.ConvolutionTranspose(3, device=device)


def two_sizes(device):
    """A kernel of 3x3 taps, its gradient kernel, and a function that makes images of n x n x 4."""
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    kernels = (
        cls(source, device=device)
        for cls in (mg.ConvolutionTranspose, mg.ConvolutionTransposeGradient)
    )
    return *kernels, lambda n: mg.Image(device, mg.ImageDescriptor(n, n, 4))


def test_a_state_belongs_to_the_destination_it_was_made_for(device):
    up, _, image = two_sizes(device)
    state = up.result_state(image(5), image(7))
    words = "ConvolutionTranspose: destination_state was made for a destination of 7x7x4, not 3x3x4"
    with Work(device) as work, pytest.raises(ValueError, match=words):
        up.encode(work.buffer, image(5), image(3), destination_state=state)


def test_gradients_refuse_edge_modes(device):
    up, down, image = two_sizes(device)
    x, y = image(5), image(5)
    state = up.result_state(x, y)
    words = "ConvolutionTransposeGradient: primary_edge_mode and secondary_edge_mode must be ZERO"
    with Work(device) as work:
        up.encode(work.buffer, x, y, destination_state=state)
        down.configure(y, x, state)
        down.secondary_edge_mode = mg.EdgeMode.CLAMP
        with pytest.raises(ValueError, match=words):
            down.encode(work.buffer, y, x, state, image(5), configure=False)


def test_a_policy_of_ones_own_is_told_of_the_convolution(device):
    class Told(mg.Padding):
        seen = ()

        def padding_method(self):
            return mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, sources, states, _kernel, suggested):
            self.seen += ((len(sources), tuple(states)),)
            return suggested

    up, _, image = two_sizes(device)
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    down = mg.Convolution(source, device=device)
    up.padding = policy = Told()
    images = mg.ImageBatch([image(6), image(6)])
    with Work(device) as work:
        small, states = down.encode_batch(
            work.buffer, images, with_state=True, allocator=mg.DEFAULT
        )
        up.destination_descriptor([small[0]], [states[0]])
        for count, undone in ((1, states[:1]), (2, states)):
            up.encode_batch(
                work.buffer,
                mg.ImageBatch(list(small)[:count]),
                convolution_gradient_states=undone,
                allocator=mg.DEFAULT,
            )
        up.encode(work.buffer, small[0], convolution_gradient_state=states[0], allocator=mg.DEFAULT)
        up.encode(work.buffer, small[0], allocator=mg.DEFAULT)
    assert policy.seen == (*[(1, (states[0],))] * 4, (1, ()))


def test_a_call_within_a_call_leaves_the_convolution_to_undo(device):
    """An allocator of the user's own may ask the kernel for something."""
    up, _, image = two_sizes(device)
    down = mg.Convolution(
        mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32)), device=device
    )
    x = image(6)

    def allocate(_command_buffer, descriptor, kernel):
        kernel.result_state(image(6), image(6))
        return mg.Image(device, descriptor)

    with Work(device) as work:
        y, undone = down.encode(work.buffer, x, with_state=True, allocator=mg.DEFAULT)
        _, state = up.encode(
            work.buffer, y, with_state=True, convolution_gradient_state=undone, allocator=allocate
        )
        assert state.convolution is not None
