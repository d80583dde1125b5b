"""Dropout against the oracle, its masks against what random numbers must be, and its rules.

Where masks are the device's own, a test reads them from the state. What the CPU device draws is
known bit by bit.
"""

import math
import pickle
import threading

import mpsgrad as mg
import numpy as np
import pytest

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, sample
from tests.dropout import cases, oracle
from tests.images import Work, channel_window, empty, filled, read
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

SEED = 0x0123_4567_89AB_CDEF
strides = pytest.mark.parametrize("stride", cases.MASK_STRIDES, ids=str)


def pair(device, keep=0.5, stride=(1, 1, 1), seed=SEED):
    return (
        mg.Dropout(keep, seed, stride, device=device),
        mg.DropoutGradient(keep, seed, stride, device=device),
    )


def check(device, actual, source, mask, keep):
    """Compare: the quotient, rounded once; exactly, but for a GPU's division.

    Metal's documentation allows a division 2.5 ULPs.
    """
    mask = np.broadcast_to(mask, np.shape(source))
    if device.kind == "cpu" and actual.dtype.kind == "f":
        expected = np.where(mask != 0, oracle.rounded(source, keep), np.float32(0))
        assert_exact(actual, expected.astype(actual.dtype), nonzero=0)
        return
    exact = oracle.forward(source, mask, keep)
    ulps = ulps_for(1, actual.dtype, functions=2.5)
    assert_close(actual, exact, ulps=ulps, nonzero=0)


def check_is_mask(mask, shape):
    assert mask.shape == shape
    assert mask.dtype == np.float32
    assert ((mask == 0) | (mask == 1)).all()


def draw(kernel, shape, times=1):
    """Masks of encodes of ones of a shape, one after the other."""
    masks = []
    for _ in range(times):
        _, state = kernel(np.ones(shape, np.float32), with_state=True)
        masks.append(state.mask)
    return np.stack(masks)


# --- Values ----------------------------------------------------------------------------


@strides
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("keep", cases.KEEP_PROBABILITIES)
def test_forward_and_gradient(device, shape, stride, keep, rng):
    forward, gradient = pair(device, keep, stride)
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    y, state = forward(x, with_state=True)
    mask = state.mask
    check_is_mask(mask, oracle.mask_shape(shape, stride))
    check(device, y, x, mask, keep)
    check(device, gradient(g, x, state), g, mask, keep)


def test_printed_values(device):
    """Where a mask can be given; the printed one comes up soon where not."""
    x = np.array([2.0, 4, 6, 8], np.float32).reshape(1, 1, 4)
    forward, gradient = pair(device)
    for _ in range(1000):
        y, state = forward(x, with_state=True)
        if state.mask.ravel().tolist() == [1, 0, 0, 1]:
            break
    else:
        pytest.fail("one of sixteen masks never came up")
    assert_exact(y.ravel(), [4, 0, 0, 16])
    assert_exact(gradient(np.ones_like(x), x, state).ravel(), [2, 0, 0, 2])


def test_a_third_is_rounded_as_a_quotient(device):
    """Not as a product with the rounded reciprocal, which differs for one element in six."""
    if device.kind != "cpu":
        pytest.skip("how a GPU divides is not documented")
    x = np.arange(1, 20001, dtype=np.float32).reshape(1, 20, 1000)
    quotient, product = x / np.float32(0.3), x * (np.float32(1) / np.float32(0.3))
    assert (quotient != product).mean() > 0.1
    y, state = pair(device, 0.3)[0](x, with_state=True)
    assert_exact(y, quotient * state.mask[0])


@pytest.mark.parametrize("stride", [(1, 1, 1), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("keep", [0.3, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_is_dropped_is_zero_whatever_it_was(device, dtype, keep, stride):
    if device.kind != "cpu":
        pytest.skip("MPS may multiply with the mask")
    row = np.array([np.nan, np.inf, -np.inf, -1, 1, -0.0, 0], dtype)
    x = np.tile(row, (8, 16, 9))
    y, state = pair(device, keep, stride)[0](x, with_state=True)
    mask = np.broadcast_to(state.mask[0], x.shape)
    dropped = y[mask == 0]
    assert dropped.size > 100
    assert_same_bytes(dropped, np.zeros_like(dropped))
    expected = oracle.rounded(x, keep).astype(dtype)
    assert_exact(y[mask == 1], expected[mask == 1])
    signs = mask * ~np.isnan(x) == 1
    np.testing.assert_array_equal(np.signbit(y[signs]), np.signbit(expected[signs]))


@pytest.mark.parametrize("stride", [(1, 1, 1), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("keep", [1e-45, 1e-40, 2.0**-126, 1e-30, 0.3])
def test_any_probability_divides(device, keep, stride, rng):
    """Also one whose reciprocal no float32 is; numbers so that results are normal ones."""
    if device.kind != "cpu":
        pytest.skip("masks are given, and how a GPU divides is not documented")
    forward, gradient = pair(device, keep, stride)
    g = rng.standard_normal((3, 5, 40), dtype=np.float32)
    g *= np.float32(keep) ** np.float32(0.5)
    _, state = forward(g, with_state=True)
    state.mask = np.ones_like(state.mask)
    assert_exact(gradient(g, g, state), oracle.rounded(g, keep))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float16_is_rounded_once(device, dtype, rng):
    x = rng.standard_normal((2, 5, 7, 9)).astype(np.float16)
    out = np.empty(x.shape, dtype)
    _, state = forward_state = pair(device, 0.3)[0](x, with_state=True, out=out)
    assert forward_state[0] is out
    check(device, out, x, state.mask, 0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("stride", [(1, 1, 1), (1, 1, 0), (0, 0, 1)], ids=str)
def test_results_that_go_past_the_caches(device, dtype, stride, rng):
    if device.kind != "cpu":
        pytest.skip("of the CPU device's stores")
    forward, gradient = pair(device, 0.75, stride)
    x = rng.standard_normal((2, 251, 331, 24), dtype=np.float32).astype(dtype)
    assert x.nbytes > 7 << 20
    y, state = forward(x, with_state=True)
    mask = oracle.drawn_mask(x.shape, stride, 0.75, SEED, 0)
    assert_exact(state.mask, mask)
    check(device, y, x, mask, 0.75)
    check(device, gradient(x, x, state), x, mask, 0.75)


# --- Masks of the CPU device --------------------------------------------------------------


@strides
@pytest.mark.parametrize("seed", [0, 1, 2**32, SEED, 2**64 - 1])
def test_the_cpu_draws_philox(device, seed, stride):
    if device.kind != "cpu":
        pytest.skip("Apple's random numbers are not documented")
    for shape in ((3, 5, 7, 11), (2, 1, 1, 300), (1, 1, 1, 1), (1, 40, 33, 3)):
        kernel = mg.Dropout(0.6, seed, stride, device=device)
        for encode, mask in enumerate(draw(kernel, shape, 3)):
            assert_exact(mask, oracle.drawn_mask(shape, stride, 0.6, seed, encode), nonzero=0)


@pytest.mark.parametrize("channels", [*range(1, 20), 31, 63, 64, 65, 127, 1000, 1024, 1025, 3333])
def test_runs_begin_and_end_anywhere_in_a_mask(device, channels):
    if device.kind != "cpu":
        pytest.skip("of the CPU device's loops")
    shape = (2, 5, 13, channels)
    for dtype in (np.float32, np.float16):
        y = mg.Dropout(0.5, SEED, device=device)(np.ones(shape, dtype))
        assert_exact(y, 2 * oracle.drawn_mask(shape, (1, 1, 1), 0.5, SEED, 0), nonzero=0)


@pytest.mark.parametrize("keep", [1e-30, 1e-6, 2.0**-24, 0.1, 0.999, 1 - 2.0**-24])
def test_any_probability_is_drawn(device, keep):
    if device.kind != "cpu":
        pytest.skip("Apple's random numbers are not documented")
    shape = (1, 8, 8, 64)
    mask = draw(mg.Dropout(keep, 5, device=device), shape)[0]
    assert_exact(mask, oracle.drawn_mask(shape, (1, 1, 1), keep, 5, 0), nonzero=0)


def test_a_mask_is_the_same_with_and_without_a_state(device, rng):
    x = rng.standard_normal((3, 6, 5, 21), dtype=np.float32)
    first, second = (mg.Dropout(0.5, 7, device=device) for _ in range(2))
    for _ in range(3):
        y, _ = first(x, with_state=True)
        assert_same_bytes(second(x), y)


# --- Randomness ---------------------------------------------------------------------------


@pytest.mark.parametrize("keep", cases.KEEP_PROBABILITIES)
@strides
def test_the_fraction_kept(device, keep, stride):
    masks = draw(mg.Dropout(keep, 11, stride, device=device), (250, 3, 4, 5), 2)
    assert abs(masks.mean() - keep) <= oracle.sampling_error(masks.size, keep)


def correlation(a, b, keep):
    """Return the correlation of two masks, and what independent ones may have.

    Of n products with mean 0 and variance 1 the mean has a variance of 1 / n: five standard
    deviations are allowed.
    """
    scale = math.sqrt(keep * (1 - keep))
    return ((a - keep) / scale * ((b - keep) / scale)).mean(), 5 / math.sqrt(a.size)


def assert_independent(a, b, keep):
    found, allowed = correlation(a, b, keep)
    assert abs(found) <= allowed


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.75])
def test_elements_encodes_images_and_seeds_are_independent(device, keep):
    shape = (4, 24, 24, 16)
    first, second = draw(mg.Dropout(keep, 11, device=device), shape, 2)
    assert_independent(first, second, keep)  # encodes
    assert_independent(first[0], first[1], keep)  # images
    assert_independent(first[0], second[1], keep)
    # Of Apple's seeds only the lower half may count.
    for seed in (12, 11 + 2**32) if device.kind == "cpu" else (12,):
        assert_independent(first, draw(mg.Dropout(keep, seed, device=device), shape)[0], keep)
    flat = first.reshape(4, -1)
    for lag in (1, 2, 4, 8, 15, 16, 17, 32, 64, 16 * 24, 1024):  # elements of one image
        assert_independent(flat[:, lag:], flat[:, :-lag], keep)


def test_masks_of_few_elements_take_all_their_values(device):
    """Of 2^4 masks, each a sixteenth of the time, by a chi-square test with 15 degrees."""
    masks = draw(mg.Dropout(0.5, 3, device=device), (40, 1, 1, 4), 40)
    codes = (masks.reshape(-1, 4) @ [1, 2, 4, 8]).astype(int)
    counts = np.bincount(codes, minlength=16)
    expected = len(codes) / 16
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic <= 15 + 5 * math.sqrt(2 * 15)  # its mean, and five standard deviations


def test_equal_kernels_draw_equal_masks_and_never_the_same_again(device):
    shape = (2, 4, 4, 8)
    first, second = (draw(mg.Dropout(0.5, 9, device=device), shape, 4) for _ in range(2))
    assert_same_bytes(first, second)
    other = draw(mg.Dropout(0.5, 10, device=device), shape, 4)
    masks = [mask.tobytes() for mask in np.concatenate([first, other]).reshape(16, -1)]
    assert len(set(masks)) == 16


def test_an_encode_that_fails_draws_nothing(device):
    shape = (1, 4, 4, 8)
    kernel = mg.Dropout(0.5, 9, device=device)
    first = draw(kernel, shape)
    with rejects(ValueError, "Dropout: out must have shape (N, H, W, C), got (1, 4, 4)"):
        kernel(np.ones(shape, np.float32), out=np.ones((1, 4, 4), np.float32))
    kernel.source_feature_channel_offset = 16
    with rejects(ValueError, "Dropout: source has 8 channels, none at channel offset 16"):
        kernel(np.ones(shape, np.float32))
    kernel.source_feature_channel_offset = 0
    both = draw(mg.Dropout(0.5, 9, device=device), shape, 2)
    assert_same_bytes(both, np.concatenate([first, draw(kernel, shape)]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("stride", [(1, 1, 1), (1, 1, 0), (1, 0, 1)], ids=str)
def test_results_do_not_depend_on_threads(device, stride, dtype, rng):
    x = rng.standard_normal((3, 41, 37, 21)).astype(dtype)

    def run():
        forward, gradient = pair(device, 0.7, stride)
        y, state = forward(x, with_state=True)
        return y, state.mask, gradient(x, x, state)

    check_thread_independence(run)


# --- Images, offsets, clips, channels --------------------------------------------------


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, fmt, kind, rng):
    shape = (3, 4, 5, 6)
    forward, gradient = pair(device, 0.75)
    x = load(read(filled(device, rng.uniform(0, 0.7, shape), fmt)))
    sources, results = filled(device, x, fmt, kind=kind), empty(device, shape, kind=kind)
    g = load(read(filled(device, rng.uniform(0, 0.7, shape), fmt)))
    incoming, destinations = filled(device, g, fmt, kind=kind), empty(device, shape, fmt, kind=kind)
    states = forward.result_state(sources, results)
    state = states[0] if isinstance(states, list) else states
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, sources, state)
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    mask = state.mask
    check_is_mask(mask, shape)
    check(device, read(results), x, mask, 0.75)
    if DTYPES[fmt].kind == "f":
        check(device, read(destinations), g, mask, 0.75)
    else:
        exact = oracle.gradient(g, mask, 0.75)
        ulps = ulps_for(1, read(destinations).dtype, functions=2.5)
        assert_close(read(destinations), exact, ulps=ulps)


def test_channel_windows(device, rng):
    x = rng.uniform(1, 3, (2, 3, 2, 13)).astype(np.float32)
    forward, gradient = pair(device)
    g = rng.standard_normal((2, 3, 2, 6), dtype=np.float32)
    y, dx, states = channel_window(device, forward, gradient, x, g)
    mask = states[0].mask
    check_is_mask(mask, (2, 3, 2, 6))
    check(device, y, x[..., 4:10], mask, 0.5)
    check(device, dx, g, mask, 0.5)


@strides
@pytest.mark.parametrize("number", range(12))
def test_masks_lie_over_the_clipped_result(device, stride, number):
    """Any offset, clip and edge mode; and gradients lie where their pixels do."""
    rng = rng_for(f"{stride} {number}")
    height, width, channels, to_height, to_width = rng.integers(2, 8, 5).tolist()
    offset = tuple(rng.integers(-3, 4, 2).tolist())
    origin = int(rng.integers(0, to_width - 1)), int(rng.integers(0, to_height - 1))
    size = (
        int(rng.integers(1, to_width - origin[0], endpoint=True)),
        int(rng.integers(1, to_height - origin[1], endpoint=True)),
    )
    edge = ("zero", "clamp")[number % 2]
    half = number % 4 > 1
    dtype, fmt = (np.float16, "float16") if half else (np.float32, "float32")
    x = rng.uniform(1, 3, (2, height, width, channels)).astype(dtype)
    forward, gradient = pair(device, 0.7, stride)
    forward.offset = offset
    forward.edge_mode = getattr(mg.EdgeMode, edge.upper())
    forward.clip_rect = mg.Region(origin, size)
    sources = filled(device, x, fmt)
    results = empty(device, (2, to_height, to_width, channels), fmt, fill=0.5)
    g = rng.standard_normal((2, to_height, to_width, channels)).astype(dtype)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        dx = gradient.encode(
            work.buffer, filled(device, g, fmt), sources, states, allocator=mg.DEFAULT
        )
        work.result(dx)
    mask = states[0].mask
    check_is_mask(mask, oracle.mask_shape((2, size[1], size[0], channels), stride))
    rows, columns = np.arange(size[1]) + offset[1], np.arange(size[0]) + offset[0]
    texels = read(results)
    there = np.s_[:, origin[1] : origin[1] + size[1], origin[0] : origin[0] + size[0]]
    seen = sample(x.astype(np.float64), rows, columns, edge).astype(np.float32)
    check(device, texels[there], seen, mask, 0.7)
    texels[there] = 0.5
    assert (texels == 0.5).all()
    rows, columns = np.arange(height) - offset[1], np.arange(width) - offset[0]
    arriving = sample(g.astype(np.float64), rows + origin[1], columns + origin[0], "zero")
    over = oracle.laid(mask, stride, rows, columns)
    check(device, read(dx), arriving.astype(np.float32), over, 0.7)


@strides
def test_secondary_offsets_shift_the_mask(device, stride, rng):
    forward, gradient = pair(device, 0.5, stride)
    x = rng.uniform(1, 2, (2, 6, 7, 5)).astype(np.float32)
    _, state = forward(x, with_state=True)
    gradient.primary_offset = (1, 2)
    gradient.secondary_offset = (3, -1)
    gradient.clip_rect = mg.Region((2, 1), (4, 5))
    results = empty(device, x.shape, fill=0.5)
    with Work(device) as work:
        gradient.encode(
            work.buffer,
            filled(device, x),
            filled(device, x),
            [state] * 2,
            work.result(results),
            configure=False,
        )
    texels = read(results)
    rows, columns = np.arange(5), np.arange(4)
    arriving = sample(x.astype(np.float64), rows + 2, columns + 1, "zero").astype(np.float32)
    mask = oracle.laid(state.mask, stride, rows - 1, columns + 3)
    check(device, texels[:, 1:6, 2:6], arriving, mask, 0.5)
    texels[:, 1:6, 2:6] = 0.5
    assert (texels == 0.5).all()


def test_some_images_of_a_batch(device, rng):
    """Masks are those of the images in the clip."""
    x = rng.uniform(1, 2, (4, 2, 3, 5)).astype(np.float32)
    forward, gradient = pair(device)
    forward.offset = (0, 0, 1)
    forward.clip_rect = mg.Region((0, 0, 2), (3, 2, 2))
    sources, results = filled(device, x), empty(device, x.shape, fill=0.5)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
    texels, mask = read(results), states[0].mask
    check_is_mask(mask, (2, 2, 3, 5))
    check(device, texels[2:], x[1:3], mask, 0.5)
    assert (texels[:2] == 0.5).all()
    with Work(device) as work:
        dx = gradient.encode(
            work.buffer,
            filled(device, x[:2]),
            filled(device, x[:2]),
            states[:2],
            allocator=mg.DEFAULT,
        )
        work.result(dx)
    check(device, read(dx), x[:2], mask, 0.5)
    with rejects(ValueError, "the state has masks for 2 images, not 4"), Work(device) as work:
        gradient.encode(work.buffer, sources, sources, states, allocator=mg.DEFAULT)


# --- Arrays and states --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, dtype, rng):
    x = rng.uniform(-3, 3, (2, 3, 5, 7)).astype(dtype)
    g = grid(rng, x.shape, dtype=dtype)
    forward, gradient = pair(device)
    y, state = forward(x, with_state=True)
    assert isinstance(state, mg.DropoutGradientState)
    dx = gradient(g, x, state)
    assert (y.dtype, dx.dtype) == (dtype, dtype)
    same = mg.Dropout(0.5, SEED, device=device)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert same(x, with_state=True, out=out)[0] is out
        assert_same_bytes(out, y)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert gradient(g, x, state, out=out) is out
        assert_same_bytes(out, dx)
    one, state = mg.Dropout(0.5, SEED, device=device)(x[0], with_state=True)
    assert_same_bytes(one, y[0])
    assert_same_bytes(gradient(g[0], x[0], state), dx[0])
    assert state.mask.shape == (1, 3, 5, 7)


def test_one_state_serves_a_batch(device):
    x = np.ones((3, 2, 2, 4), np.float32)
    forward, gradient = pair(device, stride=(1, 0, 1))
    assert forward.is_result_state_reused_across_batch
    sources, results = filled(device, x), empty(device, x.shape)
    states = forward.result_state(sources, results)
    assert len(states) == 3
    assert states[1] is states[2] is states[0]
    assert states[0].keep_probability == 0.5
    assert states[0].mask_stride_in_pixels == (1, 0, 1)
    other = forward.result_state(sources, results)
    with rejects(ValueError, "the states of a batch must be one and the same object"):
        forward.encode(
            device.command_queue().command_buffer(),
            sources,
            results,
            destination_state=[states[0], other[0], states[0]],
        )
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        forward.encode(work.buffer, sources, empty(device, x.shape), destination_state=other)
    with rejects(ValueError, "the states of a batch must be one and the same object"):
        gradient.encode(
            device.command_queue().command_buffer(),
            results,
            sources,
            [states[0], other[0], states[0]],
            allocator=mg.DEFAULT,
        )


def test_a_mask_takes_a_bit_an_element(device):
    if device.kind != "cpu":
        pytest.skip("Apple's states do not tell their size")
    x = np.ones((4, 32, 32, 64), np.float32)
    _, state = pair(device)[0](x, with_state=True)
    assert x.size // 8 <= state.resource_size <= x.size // 8 + 8
    assert mg.resource_size([state] * 4) == state.resource_size
    _, state = pair(device, stride=(0, 0, 1))[0](x, with_state=True)
    assert state.resource_size <= 4 * 8 + 8


def test_gradients_encoded_before_another_forward_pass_keep_their_mask(device, rng):
    x = rng.uniform(1, 2, (1, 8, 8, 8)).astype(np.float32)
    forward, gradient = pair(device)
    sources, results = filled(device, x), [empty(device, x.shape) for _ in range(2)]
    states = forward.result_state(sources, results[0])
    gradients = []
    with Work(device) as work:
        for result in results:
            forward.encode(work.buffer, sources, work.result(result), destination_state=states)
            dx = gradient.encode(work.buffer, sources, sources, states, allocator=mg.DEFAULT)
            gradients.append(work.result(dx))
    first, second = (read(result) for result in results)
    assert (first != second).any()
    assert_same_bytes(read(gradients[0]), first)
    assert_same_bytes(read(gradients[1]), second)
    assert_same_bytes((second != 0).astype(np.float32), states[0].mask)


def test_the_source_of_a_gradient_is_not_read(device, rng):
    x, g = rng.standard_normal((2, 1, 4, 4, 8), dtype=np.float32)
    forward, gradient = pair(device)
    _, state = forward(x, with_state=True)
    assert_same_bytes(gradient(g, np.full_like(x, np.nan), state), gradient(g, x, state))


def test_masks_can_be_given_on_the_cpu(device, rng):
    x, g = rng.standard_normal((2, 2, 3, 4, 5), dtype=np.float32)
    for stride in cases.MASK_STRIDES:
        forward, gradient = pair(device, 0.5, stride)
        _, state = forward(x, with_state=True)
        mask = rng.integers(0, 2, oracle.mask_shape(x.shape, stride))
        if device.kind != "cpu":
            with rejects(mg.errors.UnsupportedError, "'metal' draws its masks itself"):
                state.mask = mask
            continue
        for dtype in (np.float32, np.float64, np.int64, np.uint8, bool):
            state.mask = np.zeros_like(mask)
            state.mask = mask.astype(dtype)
            assert_exact(state.mask, mask, nonzero=0)
            check(device, gradient(g, x, state), g, mask, 0.5)


def test_a_given_mask_is_there_for_work_that_is_committed_later(device, rng):
    if device.kind != "cpu":
        pytest.skip("of the CPU device")
    x = rng.uniform(1, 2, (1, 8, 8, 8)).astype(np.float32)
    given = rng.integers(0, 2, x.shape)
    forward, gradient = pair(device)
    sources, results = filled(device, x), empty(device, x.shape)
    states = forward.result_state(sources, results)
    states[0].mask = np.ones_like(x)
    with Work(device) as work:
        dx = gradient.encode(work.buffer, sources, sources, states, allocator=mg.DEFAULT)
        work.result(dx)
        states[0].mask = given
    check(device, read(dx), x, given, 0.5)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        states[0].mask = given
    assert_exact(states[0].mask, oracle.drawn_mask(x.shape, (1, 1, 1), 0.5, SEED, 0))
    work = device.command_queue().command_buffer()
    gradient.encode(work, sources, sources, states, allocator=mg.DEFAULT)
    work.commit()
    with rejects(RuntimeError, "DropoutGradientState.mask"):
        states[0].mask = given
    work.wait_until_completed()
    states[0].mask = given


def test_a_given_mask_makes_do_for_a_forward_encode(device):
    if device.kind != "cpu":
        pytest.skip("of the CPU device")
    x = np.array([2.0, 4, 6, 8], np.float32).reshape(1, 1, 1, 4)
    forward, gradient = pair(device)
    state = forward.result_state(filled(device, x), empty(device, x.shape))[0]
    state.mask = [[[[1, 0, 0, 1]]]]
    assert_exact(gradient(x, x, state).ravel(), [4, 0, 0, 16])


GIVEN = np.zeros((2, 3, 4, 5), np.float32)
BAD_MASKS = {
    "shape": (GIVEN[0], ValueError, "must have shape (2, 3, 4, 5), got (3, 4, 5)"),
    "size": (GIVEN[:1], ValueError, "must have shape (2, 3, 4, 5), got (1, 3, 4, 5)"),
    "values": (GIVEN + 0.5, ValueError, "must hold zeros and ones"),
    "NaN": (GIVEN * np.nan, ValueError, "must hold zeros and ones"),
    "kind": (GIVEN.astype(complex), TypeError, "must hold numbers, got complex128"),
    "words": ("kept", TypeError, "must hold numbers"),
}


@pytest.mark.parametrize(("mask", "error", "words"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_rejects_masks(device, mask, error, words):
    _, state = pair(device)[0](GIVEN, with_state=True)
    before = state.mask
    with rejects(error, "DropoutGradientState.mask " + words):
        state.mask = mask
    assert_same_bytes(state.mask, before)


def test_read_counts_of_temporaries(device):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward, gradient = pair(device)
    with Work(device) as work:
        result, states = forward.encode(work.buffer, source, with_state=True, temporary_state=True)
        with rejects(RuntimeError, "the mask of a temporary state cannot be read by the CPU"):
            _ = states[0].mask
        with rejects(RuntimeError, "the mask of a temporary state cannot be written by the CPU"):
            states[0].mask = np.ones((2, 4, 4, 3))
        incoming = forward.encode(work.buffer, source)
        assert states[0].read_count == 1
        dx = gradient.encode(work.buffer, incoming, source, states, allocator=mg.DEFAULT)
        work.result(dx)
        assert [image.read_count for image in incoming] == [0, 0]
        assert states[0].read_count == 0
        for image in result:
            image.read_count = 0
    texels = read(dx)
    assert set(np.unique(texels)) == {0, 4}


def test_work_runs_when_it_is_committed(device):
    forward = pair(device)[0]
    sources, results = empty(device, (1, 8, 8, 8)), empty(device, (1, 8, 8, 8))
    states = forward.result_state(sources, results)
    with rejects(mg.errors.StateError, "no forward encode has filled this state"):
        _ = states[0].mask
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        with rejects(RuntimeError, "DropoutGradientState.mask"):
            _ = states[0].mask
        forward.offset = (5, 5)
        sources[0].write(np.ones((8, 8, 8), np.float32))
    check(device, read(results), np.ones((1, 8, 8, 8)), states[0].mask, 0.5)


def test_a_forward_pass_that_a_predicate_skips_keeps_nothing(device):
    if device.kind != "cpu":
        pytest.skip("Apple's mask is then undefined")
    x = np.ones((1, 4, 4, 8), np.float32)
    forward, gradient = pair(device)
    sources = filled(device, x)
    with Work(device) as work:
        work.buffer.predicate = mg.Predicate(mg.Buffer(device, 4))
        _, states = forward.encode(work.buffer, sources, with_state=True, allocator=mg.DEFAULT)
        work.buffer.predicate = None
        dx = gradient.encode(work.buffer, sources, sources, states, allocator=mg.DEFAULT)
        work.result(dx)
    assert not states[0].mask.any()
    assert not read(dx).any()


# --- Kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", [mg.Dropout, mg.DropoutGradient])
def test_copies(device, cls, way):
    kernel = cls(0.1, SEED, (1, 0, 1), device=device)
    assert repr(kernel) == (
        f"{cls.__name__}(keep_probability=0.1, seed={SEED}, mask_stride_in_pixels=(1, 0, 1), "
        f"device='{device.kind}')"
    )
    kernel.clip_rect = mg.Region((1, 2), (3, 4))
    kernel.label = "last layer"
    twin = WAYS[way](kernel)
    assert type(twin) is cls
    assert twin is not kernel
    assert repr(twin) == repr(kernel)
    assert twin.keep_probability == float(np.float32(0.1))
    assert (twin.clip_rect, twin.label) == (kernel.clip_rect, kernel.label)


def test_copies_begin_at_the_start_of_their_sequence(device):
    kernel = mg.Dropout(0.5, 3, device=device)
    masks = draw(kernel, (1, 4, 4, 8), 2)
    for way in WAYS.values():
        assert_same_bytes(draw(way(kernel), (1, 4, 4, 8), 2), masks)


def test_seeds_from_a_generator(device):
    kernels = [mg.Dropout(0.5, rng=np.random.default_rng(5), device=device) for _ in range(2)]
    assert kernels[0].seed == kernels[1].seed
    assert mg.Dropout(0.5, rng=5, device=device).seed == kernels[0].seed
    rng = np.random.default_rng(5)
    first, second = (mg.Dropout(0.5, rng=rng, device=device).seed for _ in range(2))
    assert first == kernels[0].seed != second
    for arguments in ({}, {"seed": 1, "rng": 1}):
        with rejects(TypeError, "Dropout: give either a seed or an rng"):
            mg.Dropout(0.5, **arguments, device=device)


def test_states_are_made_by_kernels():
    with rejects(TypeError, "DropoutGradientState is made by a kernel"):
        mg.DropoutGradientState()
    _, state = mg.Dropout(0.5, 1, device="cpu")(np.ones((1, 1, 1), np.float32), with_state=True)
    with rejects(TypeError, "cannot pickle 'DropoutGradientState' object"):
        pickle.dumps(state)


# --- Rejections ---------------------------------------------------------------------------


ARGUMENTS = {
    "p = 0": ((0.0, 1), ValueError, "keep_probability must lie between 0 and 1, both excluded"),
    "p = 1": ((1.0, 1), ValueError, "keep_probability must lie between 0 and 1, both excluded"),
    "p = NaN": ((np.nan, 1), ValueError, "both excluded, got nan"),
    "p < 0": ((-0.5, 1), ValueError, "both excluded, got -0.5"),
    "p rounds to 1": ((1 - 1e-12, 1), ValueError, "both excluded, got 1"),
    "p rounds to 0": ((1e-60, 1), ValueError, "both excluded, got 0"),
    "p is a word": (("half", 1), TypeError, "keep_probability"),
    "seed < 0": ((0.5, -1), ValueError, "seed must lie between 0 and 2^64 - 1, got -1"),
    "seed too large": ((0.5, 2**64), ValueError, "seed must lie between 0 and 2^64 - 1, got 18446"),
    "seed is a float": ((0.5, 1.5), TypeError, "seed must be an integer, got float"),
    "stride of 2": (
        (0.5, 1, (1, 2, 1)),
        ValueError,
        "mask_stride_in_pixels must hold zeros and ones, got (1, 2, 1)",
    ),
    "stride of -1": ((0.5, 1, (1, 1, -1)), ValueError, "must hold zeros and ones, got (1, 1, -1)"),
    "two strides": ((0.5, 1, (1, 1)), ValueError, "must be (width, height, depth), got 2 numbers"),
    "one stride": ((0.5, 1, 1), TypeError, "must be (width, height, depth), got int"),
    "strides are floats": (
        (0.5, 1, (1.0, 1, 1)),
        TypeError,
        "mask_stride_in_pixels must be an integer, got float",
    ),
}


@pytest.mark.parametrize("cls", [mg.Dropout, mg.DropoutGradient])
@pytest.mark.parametrize(("arguments", "error", "words"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_rejects_arguments(device, cls, arguments, error, words):
    with rejects(error, words) as caught:
        cls(*arguments, device=device)
    assert cls.__name__ in str(caught.value)


X = np.zeros((2, 3, 5, 4), np.float32)

REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "rank": (X[0, 0], X, ValueError, "source_gradient must have shape (N, H, W, C)"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "longer batch": (
        np.zeros((3, 3, 5, 4), np.float32),
        np.zeros((3, 3, 5, 4), np.float32),
        ValueError,
        "the state has masks for 2 images, not 3",
    ),
    "width": (
        X[:, :, :4].copy(),
        X,
        ValueError,
        "source_gradient is 4x3, but the forward result was 5x3",
    ),
    "size of the source": (
        X,
        X[:, :, :4].copy(),
        ValueError,
        "source is 4x3, but the state was made for a forward source of 5x3",
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
}


@pytest.mark.parametrize(("g", "x", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, g, x, error, words):
    forward, gradient = pair(device)
    _, state = forward(X, with_state=True)
    gradient(X, X, state)
    with rejects(error, words):
        gradient(g, x, state)


def test_a_state_may_be_filled_with_another_seed(device):
    x = np.ones((2, 3, 5, 4), np.float32)
    sources, results = filled(device, x), empty(device, x.shape)
    states = mg.Dropout(0.5, 1, device=device).result_state(sources, results)
    with Work(device) as work:
        mg.Dropout(0.5, 2, device=device).encode(
            work.buffer, sources, work.result(results), destination_state=states
        )
    assert_exact(read(results), mg.Dropout(0.5, 2, device=device)(x))


def test_rejects_states(device):
    forward, gradient = pair(device)
    _, state = forward(X, with_state=True)
    _, foreign = mg.SoftMax(device=device)(X, with_state=True)
    with rejects(TypeError, "DropoutGradient: state must come from Dropout, but it was made by"):
        gradient(X, X, foreign)
    with rejects(ValueError, "keep_probability is 0.25, but the state was made by a Dropout with"):
        mg.DropoutGradient(0.25, device=device)(X, X, state)
    with rejects(ValueError, "mask_stride_in_pixels is (0, 1, 1), but the state was made by a"):
        mg.DropoutGradient(0.5, 0, (0, 1, 1), device=device)(X, X, state)
    mg.DropoutGradient(0.5, 99, device=device)(X, X, state)  # whose seed says nothing
    sources, results = filled(device, X), empty(device, X.shape)
    unfilled = forward.result_state(sources, results)
    buffer = device.command_queue().command_buffer()
    with rejects(mg.errors.StateError, "DropoutGradient: no forward encode has filled this state"):
        gradient.encode(buffer, results, sources, unfilled, allocator=mg.DEFAULT)
    with rejects(mg.errors.StateError, "the kernel's properties changed after result_state()"):
        mg.Dropout(0.25, 1, device=device).encode(
            buffer, sources, results, destination_state=unfilled
        )
    with rejects(ValueError, "destination_state was made for 2 images, not 1"):
        forward.encode(buffer, sources[0], results[0], destination_state=unfilled[0])
    larger = empty(device, (2, 4, 5, 4))
    with rejects(ValueError, "destination_state was made for a destination of 5x3x4, not 5x4x4"):
        forward.encode(buffer, sources, larger, destination_state=unfilled)
    wide = filled(device, np.zeros((2, 3, 5, 8))), empty(device, (2, 3, 5, 8))
    with rejects(ValueError, "destination_state was made for a source of 5x3x4, not 5x3x8"):
        forward.encode(buffer, *wide, destination_state=unfilled)


# --- Masks that somebody else may be using --------------------------------------------------


def test_a_mask_that_was_never_drawn_is_not_there(device):
    """The command buffer of its encode was dropped."""
    forward = mg.Dropout(0.5, 1, device=device)
    sources, results = empty(device, (1, 4, 4, 8)), empty(device, (1, 4, 4, 8))
    states = forward.result_state(sources, results)
    command_buffer = device.command_queue().command_buffer()
    forward.encode(command_buffer, sources, results, destination_state=states)
    del command_buffer
    with pytest.raises(mg.errors.StateError, match="no forward encode has filled this state"):
        _ = states[0].mask


def test_a_mask_is_read_whole(device):
    """Another thread may be giving the state a new one."""
    if device.kind != "cpu":
        pytest.skip("Metal takes no masks")
    sources, results = empty(device, (1, 32, 32, 64)), empty(device, (1, 32, 32, 64))
    state = mg.Dropout(0.5, 1, device=device).result_state(sources, results)[0]
    masks = [np.full((1, 32, 32, 64), value, np.float32) for value in (0, 1)]
    state.mask = masks[0]
    done = threading.Event()

    def give():
        while not done.is_set():
            for mask in masks:
                state.mask = mask

    giver = threading.Thread(target=give)
    giver.start()
    try:
        means = {float(state.mask.mean()) for _ in range(200)}
    finally:
        done.set()
        giver.join()
    assert means <= {0.0, 1.0}
