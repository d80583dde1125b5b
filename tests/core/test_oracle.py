"""The reference geometry against the worked tables."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import oracle, tables
from tests.tolerance import assert_exact, rng_for


@pytest.mark.parametrize("row", tables.PACKING, ids=lambda row: f"C{row.channels}")
def test_packing(row):
    assert oracle.slices(row.channels) == row.slices
    assert oracle.lanes(row.channels) == row.lanes
    assert oracle.is_array(row.channels) == row.is_array
    assert oracle.is_array(row.channels, images=2)
    assert oracle.locate(row.channels - 1, row.channels) == (row.last_slice, row.last_lane)


def test_packed_sizes_and_slices_of_a_batch():
    assert oracle.texel_bytes(1, 2, 3, 5, item=2) == 96
    assert [oracle.locate(c, 8, image=2)[0] for c in (0, 7)] == [4, 5]
    assert [oracle.locate(c, 8, image=3)[0] for c in (0, 7)] == [6, 7]
    assert oracle.pack(np.ones((5, 1, 1, 8))).shape == (10, 1, 1, 4)


@pytest.mark.parametrize("channels", range(1, 10))
def test_pack_puts_every_channel_where_locate_says(channels):
    images = rng_for(f"pack {channels}").standard_normal((3, 2, 5, channels))
    texels = oracle.pack(images)
    assert texels.size == 3 * 2 * 5 * oracle.lanes(channels)
    for n in range(3):
        for c in range(channels):
            where, lane = oracle.locate(c, channels, n)
            assert_exact(texels[where, :, :, lane], images[n, :, :, c])
    assert np.count_nonzero(texels) == images.size
    assert_exact(oracle.unpack(texels, channels), images)


@pytest.mark.parametrize("row", tables.LAYOUTS, ids=lambda row: f"{row.layout} {row.dtype}")
def test_buffer_layouts(row):
    image = np.arange(30).reshape(2, 3, 5).astype(row.dtype)
    buffer = oracle.to_chw(image) if row.layout == "CHW" else image
    y, x, c = (1, 2, 0) if row.layout == "CHW" else (0, 1, 2)
    assert buffer.strides[x] == row.bytes_per_column
    assert buffer.strides[y] == row.bytes_per_row
    assert buffer.nbytes == row.bytes_per_image
    flat = buffer.reshape(-1)
    expected = (3 * 2 + 1) * 3 + 2 if row.layout == "CHW" else (1 * 3 + 2) * 5 + 3
    assert flat[expected] == image[1, 2, 3]
    assert buffer.strides[c] == row.item * (6 if row.layout == "CHW" else 1)


def test_store_rounds_to_nearest_even_and_clamps():
    half_codes = np.array([0.5, 1.5, 2.5]) / 255
    assert oracle.store(half_codes, "unorm8").tolist() == [0, 2, 2]
    edge = [-1, 0, 1, 2, np.nan, np.inf, -np.inf]
    assert oracle.store(edge, "unorm8").tolist() == [0, 0, 255, 255, 0, 255, 0]
    assert oracle.store(edge, "unorm16").tolist() == [0, 0, 65535, 65535, 0, 65535, 0]
    halves = oracle.store([2049, 2051, 65519, 65520, -65520, np.nan], "float16")
    assert_exact(halves, [2048, 2052, 65504, np.inf, -np.inf, np.nan])
    assert oracle.store([0.1], "float32").dtype == np.float32


@pytest.mark.parametrize("channel_format", oracle.DTYPES)
def test_load_undoes_store(channel_format):
    values = oracle.load(oracle.store(np.linspace(0, 1, 77), channel_format))
    assert_exact(oracle.store(values, channel_format), oracle.store(values, channel_format))
    assert_exact(oracle.load(oracle.store(values, channel_format)), values)
    assert np.abs(values - np.linspace(0, 1, 77)).max() <= 0.5 / 255


@pytest.mark.parametrize("row", tables.WINDOWS, ids=lambda row: f"k{row.kernel}d{row.dilation}")
def test_window_taps(row):
    assert oracle.extent(row.kernel, row.dilation) == row.extent
    assert tuple(oracle.taps(row.kernel, row.dilation)) == row.taps
    read = oracle.positions(2, row.kernel, 3, row.dilation, 7)
    assert_exact(read, [np.add(row.taps, 7), np.add(row.taps, 10)])


def test_sample_at_the_edges():
    source = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)
    rows, columns = np.array([-1, 0]), np.array([1, 5])
    assert_exact(oracle.sample(source, rows, columns, "zero")[0, ..., 0], [[0, 0], [2, 0]])
    assert_exact(oracle.sample(source, rows, columns, "clamp")[0, ..., 0], [[2, 2], [2, 2]])
    with pytest.raises(ValueError, match="mirror"):
        oracle.sample(source, rows, columns, "mirror")


@pytest.mark.parametrize("row", tables.POLICIES, ids=lambda row: "-".join(map(str, row[:5])))
@pytest.mark.parametrize("axis", ["x", "y"])
def test_policies(row, axis):
    for remainder, offset in [
        (oracle.REMAINDER_TOP_LEFT, row.offset_top_left),
        (oracle.REMAINDER_BOTTOM_RIGHT, row.offset_bottom_right),
    ]:
        method = row.size_field | remainder
        placement = oracle.place(row.length, row.kernel, row.stride, row.dilation, method, axis)
        assert placement == (row.size, row.span, row.missing, offset)


def test_remainder_sides_are_per_axis():
    def offsets(method):
        return [oracle.place(5, 2, 1, 1, oracle.SIZE_SAME | method, axis).offset for axis in "xy"]

    assert offsets(oracle.REMAINDER_TOP_LEFT) == [0, 0]
    assert offsets(oracle.REMAINDER_TOP_RIGHT) == [1, 0]
    assert offsets(oracle.REMAINDER_BOTTOM_LEFT) == [0, 1]
    assert offsets(oracle.REMAINDER_BOTTOM_RIGHT) == [1, 1]


@pytest.mark.parametrize(("length", "kernel", "stride"), tables.REFUSED)
def test_refused_policies(length, kernel, stride):
    with pytest.raises(ValueError, match="no window"):
        oracle.place(length, kernel, stride, 1, oracle.SIZE_VALID_ONLY)


@pytest.mark.parametrize("method", [0x13, 0x30, 0x40])
def test_reserved_method_bits_are_refused(method):
    with pytest.raises(ValueError, match="reserved"):
        oracle.place(5, 3, 1, 1, method)


@pytest.mark.parametrize("row", tables.ALIGNMENTS)
def test_alignments(row):
    for alignment, offset in [
        (oracle.ALIGN_TOP_LEFT, row.offset_top_left),
        (oracle.ALIGN_BOTTOM_RIGHT, row.offset_bottom_right),
    ]:
        method = row.size_field | alignment
        assert oracle.place(row.length, row.kernel, row.stride, 1, method).offset == offset


@given(
    length=st.integers(1, 40),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 5),
    dilation=st.integers(1, 3),
    size=st.sampled_from([oracle.SIZE_SAME, oracle.SIZE_FULL]),
    far=st.booleans(),
)
def test_centred_padding_is_split_evenly(length, kernel, stride, dilation, size, far):
    method = size | (oracle.REMAINDER_BOTTOM_RIGHT if far else oracle.REMAINDER_TOP_LEFT)
    placement = oracle.place(length, kernel, stride, dilation, method)
    read = oracle.positions(placement.size, kernel, stride, dilation, placement.offset)
    left, right = -read.min(), read.max() - (length - 1)
    assert left + right == placement.missing
    # The remainder goes to the named side; a negative total is split toward zero.
    assert right - left in ((0, 1) if far else (-1, 0)) or placement.missing < 0
    assert abs(right - left) <= 2


@given(
    length=st.integers(1, 30),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad=st.integers(0, 4),
)
def test_symmetric_padding_of_other_frameworks(length, kernel, stride, dilation, pad):
    window = oracle.extent(kernel, dilation)
    if length + 2 * pad < window:
        with pytest.raises(ValueError, match="no window"):
            oracle.place_explicit(length, kernel, stride, dilation, pad, pad)
        return
    placement = oracle.place_explicit(length, kernel, stride, dilation, pad, pad)
    assert placement.size == math.floor((length + 2 * pad - window) / stride) + 1
    assert (
        oracle.positions(placement.size, kernel, stride, dilation, placement.offset).min() == -pad
    )


def test_explicit_padding_keeps_the_last_window():
    assert oracle.place_explicit(5, 3, 3, 1, 1, 1).size == 2


@given(length=st.integers(1, 30), kernel=st.integers(1, 6), stride=st.integers(1, 3))
def test_same_with_remainder_bottom_right_is_tensorflow_same(length, kernel, stride):
    placement = oracle.place(length, kernel, stride, 1, 0x1C)
    if placement.missing < 0:
        return
    total = max((math.ceil(length / stride) - 1) * stride + kernel - length, 0)
    assert placement.size == math.ceil(length / stride)
    assert oracle.reach(kernel) - placement.offset == total // 2


@given(length=st.integers(1, 40), kernel=st.integers(1, 6), stride=st.integers(1, 8))
def test_valid_starts_at_the_corner_unless_enough_pixels_are_left_over(length, kernel, stride):
    if length < kernel:
        return
    leftover = (length - kernel) % stride
    for remainder, first in [(0x0, 3), (0xC, 2)]:
        offset = oracle.place(length, kernel, stride, 1, remainder).offset
        assert (offset > oracle.reach(kernel)) == (leftover >= first)


@pytest.mark.parametrize("row", tables.REVERSES)
def test_reverse_sizes(row):
    assert oracle.place_reverse(row.length, row.kernel, row.stride, row.size_field)[0] == row.size


@given(
    length=st.integers(1, 12),
    kernel=st.integers(1, 6),
    stride=st.integers(1, 4),
    size=st.sampled_from([oracle.SIZE_VALID_ONLY, oracle.SIZE_SAME, oracle.SIZE_FULL]),
    remainder=st.sampled_from([0x0, 0xC]),
)
def test_the_inverse_policy_undoes_a_forward_filter(length, kernel, stride, size, remainder):
    if size == oracle.SIZE_VALID_ONLY and length < kernel:
        return
    forward = oracle.place(length, kernel, stride, 1, size | remainder)
    undo = oracle.inverse(size | remainder)
    assert oracle.inverse(undo) == size | remainder
    if size == oracle.SIZE_SAME and kernel % 2 == 0:
        undo ^= 0xC  # the mirrored window leans the other way
    if (forward.size - 1) * stride + 1 + oracle.style(undo) * (kernel - 1) <= 0:
        return  # the strided division lost so much that the inverse has nothing left
    back, kernel_offset = oracle.place_reverse(forward.size, kernel, stride, undo)
    if size == oracle.SIZE_SAME:
        assert back == length - (length - 1) % stride
    if stride == 1:
        assert back == length
        assert kernel_offset == oracle.gradient_offsets(forward.offset, kernel)[0]


@pytest.mark.parametrize(
    "row", tables.GRADIENT_OFFSETS, ids=lambda row: "-".join(map(str, row[:6]))
)
def test_gradient_offsets(row):
    method = row.size_field | row.remainder
    placement = oracle.place(row.length, row.kernel, row.stride, row.dilation, method)
    assert (placement.size, placement.offset) == (row.size, row.offset)
    offsets = oracle.gradient_offsets(row.offset, row.kernel, row.dilation)
    assert offsets == (row.kernel_offset, row.secondary_offset)


def test_clip_is_intersected_with_the_destination():
    assert oracle.clip((2, 1), (100, 1), (5, 4)) == ((2, 1), (3, 1))
    assert oracle.clip((7, 0), (1, 9), (5, 4)) == ((5, 0), (0, 4))


@pytest.mark.parametrize(
    "row",
    tables.CONVOLUTION_RELU_READS + tables.BATCH_NORMALIZATION_READS,
    ids=lambda row: row.item,
)
def test_read_counts_are_the_number_of_readers(row):
    assert row.count == len(set(row.readers))
