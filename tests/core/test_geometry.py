"""Offsets, edges, clip rectangles, channel windows and z, seen through a window of one pixel."""

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.copies import WAYS
from tests.core import oracle
from tests.core.support import (
    FORMATS,
    blank,
    counting,
    finish,
    image_of,
    images_of,
    linear,
    linear_gradient,
)
from tests.rejects import rejects

HUGE = 2**31 - 1


def shifted(source, shape, offset, edge):
    """What a window of one pixel at `offset` reads from (N, H, W, C) for each pixel of a result."""
    rows = np.arange(shape[0]) + offset[1]
    columns = np.arange(shape[1]) + offset[0]
    return oracle.sample(source, rows, columns, edge)


def encoded(queue, kernel, source, destination):
    """Run one encode into a destination; return all of its texels."""
    command_buffer = queue.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer, *(destination if isinstance(destination, list) else [destination]))
    if isinstance(destination, list):
        return np.stack([image.read() for image in destination])
    return destination.read()


OFFSETS = [(0, 0), (1, 0), (0, 1), (-1, -2), (2, 3), (-9, 0), (0, -9), (5, 0), (40, 40), (-3, 2)]


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@pytest.mark.parametrize("offset", [*OFFSETS, (HUGE, -HUGE), (-HUGE, HUGE)], ids=str)
def test_offset_and_edges(device, queue, offset, edge):
    source = counting(4, 5, 3)
    kernel = linear(device)
    kernel.offset = (*offset, 0)
    kernel.edge_mode = getattr(mg.EdgeMode, edge.upper())
    for shape in [(4, 5), (2, 9), (7, 1)]:
        destination = blank(device, *shape, 3)
        result = encoded(queue, kernel, image_of(device, source), destination)
        assert np.array_equal(result, shifted(source[np.newaxis], shape, offset, edge)[0])


@pytest.mark.parametrize("channel_format", FORMATS)
def test_edges_in_every_format(device, queue, channel_format):
    source = counting(
        3,
        3,
        5,
        dtype={"unorm8": np.uint8, "unorm16": np.uint16}.get(channel_format, channel_format),
    )
    for edge in ("zero", "clamp"):
        kernel = linear(device)
        kernel.offset = (-2, 1, 0)
        kernel.edge_mode = getattr(mg.EdgeMode, edge.upper())
        destination = blank(device, 4, 7, 5, channel_format=channel_format)
        result = encoded(queue, kernel, image_of(device, source), destination)
        expected = shifted(source[np.newaxis].astype(np.float64), (4, 7), (-2, 1), edge)[0]
        assert np.array_equal(result, expected)


CLIPS = [
    ((0, 0), (None, None)),
    ((1, 2), (2, 1)),
    ((0, 0), (1, 1)),
    ((3, 3), (100, 100)),
    ((4, 0), (None, 2)),
    ((5, 0), (1, 1)),  # outside
    ((0, 0), (0, 3)),  # empty
    ((2**40, 0), (2**60, 1)),
]


@pytest.mark.parametrize(("origin", "size"), CLIPS, ids=str)
def test_clip_rectangles(device, queue, origin, size):
    source = counting(4, 5, 3)
    kernel = linear(device)
    kernel.offset = (1, -1, 0)
    kernel.clip_rect = mg.Region(origin, size)
    result = encoded(
        queue,
        kernel,
        image_of(device, source),
        image_of(device, np.full((4, 5, 3), 99, np.float32)),
    )
    limit = [2**61 if part is None else part for part in size]
    start, extent = oracle.clip(origin, tuple(limit), (5, 4))
    expected = np.full((4, 5, 3), 99, np.float32)
    inside = shifted(source[np.newaxis], (extent[1], extent[0]), (1, -1), "zero")[0]
    expected[start[1] : start[1] + extent[1], start[0] : start[0] + extent[0]] = inside
    assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    "region",
    [
        ((-1, 0), (1, 1)),
        ((0, -1), (1, 1)),
        ((0, 0, -1), (1, 1, 1)),
        ((0, 0), (-1, 1)),
        ((0, 0), (1, -(2**63))),
    ],
)
def test_clip_rectangles_are_not_negative(device, region):
    for kernel in (linear(device), linear_gradient(device)):
        with pytest.raises(ValueError, match="clip_rect must not have negative parts, got origin"):
            kernel.clip_rect = mg.Region(*region)
        assert kernel.clip_rect == mg.NO_CLIP


# --- channels -----------------------------------------------------------------


@pytest.mark.parametrize("channel_format", ["float32", "float16"])
@pytest.mark.parametrize(
    ("channels", "offset", "maximum", "read"),
    [
        (10, 0, None, slice(0, 10)),
        (10, 4, None, slice(4, 10)),
        (10, 8, None, slice(8, 10)),
        (10, 4, 3, slice(4, 7)),
        (10, 4, 100, slice(4, 10)),
        (10, 0, 1, slice(0, 1)),
        (10, 0, 2**64 - 1, slice(0, 10)),
    ],
)
def test_source_channels(device, queue, channel_format, channels, offset, maximum, read):
    source = counting(2, 3, channels, dtype=channel_format)
    kernel = linear(device, 2.0)
    kernel.source_feature_channel_offset = offset
    kernel.source_feature_channel_max_count = maximum
    command_buffer = queue.command_buffer()
    result = kernel.encode(command_buffer, image_of(device, source), allocator=mg.DEFAULT)
    finish(command_buffer, result)
    assert np.array_equal(result.read(), 2 * source[..., read])


@pytest.mark.parametrize("channel_format", ["float32", "float16"])
@pytest.mark.parametrize(
    ("produced", "offset", "total"), [(8, 8, 24), (3, 4, 9), (5, 0, 12), (4, 8, 12)]
)
def test_destination_channels(device, queue, channel_format, produced, offset, total):
    """Whole slices are stored: up to the next multiple of four, what is not produced becomes 0.

    On the CPU device, that is; MPS may leave anything there.
    """
    source = counting(2, 3, produced, dtype=channel_format)
    kernel = linear(device)
    kernel.destination_feature_channel_offset = offset
    before = np.full((2, 3, total), 99, channel_format)
    result = encoded(queue, kernel, image_of(device, source), image_of(device, before))
    expected = before
    disturbed = slice(offset + produced, offset + 4 * -(-produced // 4))
    expected[..., disturbed] = 0 if device.kind == "cpu" else result[..., disturbed]
    expected[..., offset : offset + produced] = source
    assert np.array_equal(result, expected, equal_nan=True)
    assert np.isfinite(np.delete(result, np.r_[disturbed], axis=-1)).all()


def test_concatenation(device, queue):
    """5 + 3 channels at offsets 0 and 8 of an image of 12."""
    first, second = counting(2, 3, 5), counting(2, 3, 3, start=100)
    destination = blank(device, 2, 3, 12)
    command_buffer = queue.command_buffer()
    for source, offset in [(first, 0), (second, 8)]:
        kernel = linear(device)
        kernel.destination_feature_channel_offset = offset
        kernel.encode(command_buffer, image_of(device, source), destination)
    finish(command_buffer, destination)
    result = destination.read()
    assert np.array_equal(result[..., :5], first)
    assert np.array_equal(result[..., 8:11], second)
    if device.kind == "cpu":  # behind what was produced; MPS may leave anything there
        assert not result[..., [5, 6, 7, 11]].any()


def test_a_created_destination_is_zero_where_nothing_is_written(device, queue):
    for _ in range(3):  # over memory that held something else
        command_buffer = queue.command_buffer()
        dirty = linear(device, 1.0, 5.0).encode(
            command_buffer, image_of(device, counting(2, 3, 8)), allocator=mg.DEFAULT
        )
        finish(command_buffer, dirty)
        del dirty
        kernel = linear(device)
        kernel.destination_feature_channel_offset = 4
        kernel.clip_rect = mg.Region((1, 0), (1, 1))
        command_buffer = queue.command_buffer()
        result = kernel.encode(
            command_buffer, image_of(device, counting(2, 3, 4)), allocator=mg.DEFAULT
        )
        finish(command_buffer, result)
        expected = np.zeros((2, 3, 8), np.float32)
        expected[0, 1, 4:] = counting(2, 3, 4)[0, 0]  # windows count from the clip's corner
        assert np.array_equal(result.read(), expected)


CHANNELS = [
    ("source_feature_channel_offset", 2, "must be a multiple of 4 and not negative, got 2"),
    ("source_feature_channel_offset", -4, "must be a multiple of 4 and not negative, got -4"),
    ("source_feature_channel_offset", 2**63 - 4, "is beyond the 8192 channels"),
    ("destination_feature_channel_offset", 5, "must be a multiple of 4 and not negative, got 5"),
    ("destination_feature_channel_offset", -(2**63), "must be a multiple of 4 and not negative"),
    ("destination_feature_channel_offset", 2**63 - 4, "is beyond the 8192 channels"),
    ("source_feature_channel_max_count", 0, "must be at least 1, got 0"),
    ("source_feature_channel_max_count", -1, "must be at least 1, got -1"),
    ("source_feature_channel_max_count", 2**65, "is out of range"),
]


@pytest.mark.parametrize(("name", "value", "words"), CHANNELS, ids=lambda value: str(value)[:24])
def test_channel_properties_out_of_range(device, name, value, words):
    kernel, gradient = linear(device), linear_gradient(device)
    before = getattr(kernel, name)
    with pytest.raises(ValueError, match=words):
        setattr(kernel, name, value)
    assert getattr(kernel, name) == before
    names = [name] if name.startswith("dest") else [f"primary_{name}", f"secondary_{name}"]
    for own in names:
        with pytest.raises(ValueError, match=words):
            setattr(gradient, own, value)
        assert getattr(gradient, own) == before


def test_channel_windows_that_do_not_fit(device, queue):
    command_buffer = queue.command_buffer()
    kernel = linear(device)
    eight = image_of(device, counting(2, 3, 8))
    kernel.destination_feature_channel_offset = 20
    with pytest.raises(
        ValueError, match="channels 20 to 28 do not fit a destination of 24 channels"
    ):
        kernel.encode(command_buffer, eight, blank(device, 2, 3, 24))
    kernel.destination_feature_channel_offset = 8188
    with pytest.raises(ValueError, match="channels 8188 to 8196 do not fit"):
        kernel.encode(command_buffer, eight, blank(device, 2, 3, 24))
    kernel.destination_feature_channel_offset = 0
    kernel.source_feature_channel_offset = 8
    with pytest.raises(ValueError, match="source has 8 channels, none at channel offset 8"):
        kernel.encode(command_buffer, eight, blank(device, 2, 3, 24))
    with pytest.raises(ValueError, match="none at channel offset 8"):
        kernel.destination_descriptor(eight)
    finish(command_buffer)


# --- containers and batches: z ------------------------------------------------


@pytest.mark.parametrize("form", ["container", "batch"])
@pytest.mark.parametrize(
    ("first", "origin", "depth", "moved"),
    [(0, 0, None, 4), (1, 0, 3, 3), (0, 2, None, 2), (2, 1, 2, 2), (4, 4, None, 0), (0, 1, 1, 1)],
)
def test_z_ranges(device, queue, form, first, origin, depth, moved):
    source = counting(4, 2, 3, 4)
    kernel = linear(device)
    kernel.offset = (0, 0, first)
    kernel.clip_rect = mg.Region((0, 0, origin), (None, None, depth))
    before = np.full((4, 2, 3, 4), 99, np.float32)
    make = image_of if form == "container" else images_of
    result = encoded(queue, kernel, make(device, source), make(device, before))
    expected = before
    expected[origin : origin + moved] = source[first : first + moved]
    assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("first", "clip", "words"),
    [
        (-1, mg.NO_CLIP, "the z offset of source must not be negative, got -1"),
        (1, mg.NO_CLIP, "asks for 2 images of source from 1 on, but it has 2"),
        (HUGE, mg.NO_CLIP, "asks for 2 images of source from 2147483647 on"),
        (2, mg.Region((0, 0, 1), (None, None)), "asks for 1 images of source from 2 on"),
    ],
)
def test_z_ranges_outside_the_source(device, queue, first, clip, words):
    kernel = linear(device)
    kernel.offset = (0, 0, first)
    kernel.clip_rect = clip
    command_buffer = queue.command_buffer()
    for make in (image_of, images_of):
        with pytest.raises(ValueError, match=words):
            kernel.encode(
                command_buffer,
                make(device, counting(2, 2, 3, 4)),
                make(device, counting(2, 2, 3, 4)),
            )
    finish(command_buffer)


def test_there_is_no_broadcasting_over_images(device, queue):
    command_buffer = queue.command_buffer()
    with pytest.raises(ValueError, match="asks for 2 images of source from 0 on, but it has 1"):
        linear(device).encode(command_buffer, blank(device, 2, 3, 4), blank(device, 2, 2, 3, 4))
    finish(command_buffer)


def test_containers_of_different_lengths(device, queue):
    kernel = linear(device)
    kernel.offset = (0, 0, 3)
    result = encoded(
        queue, kernel, image_of(device, counting(5, 2, 3, 4)), blank(device, 2, 2, 3, 4)
    )
    assert np.array_equal(result, counting(5, 2, 3, 4)[3:])


# --- all at once --------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data())
def test_random_geometry(device, data):
    small = st.integers(1, 6)
    images, height, width = (data.draw(small) for _ in range(3))
    channels = data.draw(st.integers(1, 11))
    rows, columns = data.draw(small), data.draw(small)
    offset = data.draw(st.tuples(st.integers(-8, 8), st.integers(-8, 8)))
    first = data.draw(st.integers(0, images - 1))
    origin = data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    size = data.draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))
    skip = 4 * data.draw(st.integers(0, (channels - 1) // 4))
    maximum = data.draw(st.integers(1, 12))
    place = 4 * data.draw(st.integers(0, 2))
    edge = data.draw(st.sampled_from(["zero", "clamp"]))
    formats = [data.draw(st.sampled_from(["float32", "float16"])) for _ in range(2)]
    form = data.draw(st.sampled_from([image_of, images_of]))

    source = counting(images, height, width, channels, dtype=formats[0])
    read = source[..., skip : skip + maximum]
    produced = read.shape[-1]
    before = np.full((images, rows, columns, place + produced), 99, formats[1])
    kernel = linear(device)
    kernel.offset = (*offset, first)
    kernel.clip_rect = mg.Region(origin, (*size, images - first))
    kernel.edge_mode = getattr(mg.EdgeMode, edge.upper())
    kernel.source_feature_channel_offset = skip
    kernel.source_feature_channel_max_count = maximum
    kernel.destination_feature_channel_offset = place
    result = encoded(
        device.command_queue(), kernel, form(device, source), form(device, before)
    ).reshape(before.shape)
    expected = before.copy()
    start, extent = oracle.clip(origin, size, (columns, rows))
    window = slice(start[1], start[1] + extent[1]), slice(start[0], start[0] + extent[0])
    expected[: images - first, *window, place:] = shifted(
        read[first:].astype(np.float64), extent[::-1], offset, edge
    )
    assert np.array_equal(result, expected)


# --- values -------------------------------------------------------------------


def test_offsets():
    assert mg.Offset() == mg.Offset(0, 0, 0)
    assert tuple(mg.Offset(1, -2, 3)) == (1, -2, 3)
    assert mg.Offset((1, 2)) == mg.Offset(1, 2)
    assert repr(mg.Offset(1, -2, 3)) == "Offset(1, -2, 3)"
    assert mg.Offset(1) != mg.Offset(2)
    for wrong in [(1,), (1, 2, 3, 4), ()]:
        with pytest.raises(ValueError, match="must have 2 or 3 numbers"):
            mg.Offset(wrong)
    for wrong in [("a", 0), (0.5, 0), ([], 0)]:
        with pytest.raises(TypeError, match="must be an integer"):
            mg.Offset(wrong)
    with pytest.raises(ValueError, match="out of range"):
        mg.Offset((2**64, 0))


def test_regions():
    region = mg.Region((1, 2), (3, 4))
    assert (region.origin, region.size) == ((1, 2, 0), (3, 4, None))
    assert mg.Region((0, 0, 0), (None, None, None)) == mg.NO_CLIP
    assert mg.Region(origin=(1, 2, 3), size=(4, None, 6)).size == (4, None, 6)
    assert repr(region) == "Region(origin=(1, 2, 0), size=(3, 4, None))"
    assert region != mg.NO_CLIP
    for wrong in [((1,), (1, 1)), ((1, 1), (1, 1, 1, 1))]:
        with pytest.raises(ValueError, match="must have 2 or 3 numbers"):
            mg.Region(*wrong)
    with pytest.raises(TypeError, match="Region: size must be an integer, got float"):
        mg.Region((0, 0), (1.5, 1))
    with pytest.raises(TypeError, match="origin must be a Sequence, got NoneType"):
        mg.Region(None, (1, 1))


@pytest.mark.parametrize("place", [(1, 0, 0), (0, -1, 0), (0, 0, 2)])
def test_offsets_far_outside_any_image(device, place):
    kernel, gradient = linear(device), linear_gradient(device)
    for owner, name, last in [
        (kernel, "offset", HUGE),
        (gradient, "primary_offset", 2 * HUGE),
        (gradient, "secondary_offset", 2 * HUGE),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be between -{last} and {last} pixels"):
            setattr(owner, name, tuple((last + 1) * step for step in place))
        assert getattr(owner, name) == mg.Offset()
    for name in ("kernel_offset_x", "kernel_offset_y"):
        with pytest.raises(ValueError, match=f"{name} must be between"):
            setattr(gradient, name, (2 * HUGE + 1) * max(place, key=abs))
        assert getattr(gradient, name) == 0


def convolution_pair(device):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    return mg.Convolution(source, device=device), mg.ConvolutionGradient(source, device=device)


PAIRS = {
    "neuron": lambda device: (linear(device), linear_gradient(device)),
    "softmax": lambda device: (mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)),
    "pad": lambda device: (mg.Pad(device=device), mg.PadGradient(device=device)),
    "pooling": lambda device: (
        mg.PoolingMax(3, 3, device=device),
        mg.PoolingMaxGradient(3, 3, device=device),
    ),
    "convolution": convolution_pair,
}
PLACED = ("primary_offset", "secondary_offset", "kernel_offset_x", "kernel_offset_y")


@pytest.mark.parametrize("clip", [((2, 1), (2, 2)), ((2**60, 1), (2, 2)), ((1, 2**40), (2, 2))])
@pytest.mark.parametrize("offset", [(-HUGE, -HUGE), (HUGE, HUGE)])
@pytest.mark.parametrize("pair", PAIRS)
def test_copies_of_gradient_kernels_placed_far_outside(device, pair, offset, clip):
    """What a forward kernel accepts its gradient takes over, and a copy of that accepts."""
    forward, gradient = PAIRS[pair](device)
    forward.offset = offset
    forward.clip_rect = mg.Region(*clip)
    image, result = blank(device, 5, 5, 4), blank(device, 5, 5, 4)
    gradient.configure(result, image, forward.result_state(image, result))
    for way in WAYS.values():
        copied = way(gradient)
        assert [getattr(copied, name) for name in PLACED] == [
            getattr(gradient, name) for name in PLACED
        ]


@pytest.mark.parametrize("offset", [-2 * HUGE, 2 * HUGE])
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_gradients_as_far_away_as_can_be(device, queue, offset, edge):
    source = image_of(device, counting(2, 3, 4))
    state = linear(device).result_state(source, blank(device, 2, 3, 4))
    gradient = linear_gradient(device, 2.0)
    gradient.configure(source, source, state)
    gradient.primary_offset = (offset, 0)
    gradient.primary_edge_mode = getattr(mg.EdgeMode, edge.upper())
    result = blank(device, 2, 3, 4)
    command_buffer = queue.command_buffer()
    gradient.encode(command_buffer, source, source, state, result)
    finish(command_buffer, result)
    expected = 2 * counting(2, 3, 4)[:, [0 if offset < 0 else 2] * 3] * (edge == "clamp")
    assert np.array_equal(result.read(), expected)


@pytest.mark.parametrize(
    "mode", [mg.EdgeMode.MIRROR, mg.EdgeMode.MIRROR_WITH_EDGE, mg.EdgeMode.CONSTANT]
)
def test_edge_modes_of_pad_alone(device, mode):
    for owner, name in [
        (linear(device), "edge_mode"),
        (linear_gradient(device), "primary_edge_mode"),
        (linear_gradient(device), "secondary_edge_mode"),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be ZERO or CLAMP .*, got {mode.name}"):
            setattr(owner, name, mode)
        with pytest.raises(TypeError, match="must be an EdgeMode, got int"):
            setattr(owner, name, 1)
        assert getattr(owner, name) == mg.EdgeMode.ZERO


def test_properties_of_wrong_kinds(device):
    kernel, gradient = linear(device), linear_gradient(device)
    for wrong in (None, "x", 1.5, np.nan):
        for owner, name, kind in [
            (kernel, "offset", "an Offset"),
            (kernel, "clip_rect", "a Region"),
            (kernel, "edge_mode", "an EdgeMode"),
            (kernel, "source_feature_channel_offset", "an int"),
            (kernel, "destination_feature_channel_offset", "an int"),
            (kernel, "options", "an int"),
            (gradient, "primary_stride_in_pixels_x", "an int"),
            (gradient, "kernel_offset_x", "an int"),
            (gradient, "secondary_offset", "an Offset"),
        ]:
            words = f"{type(owner).__name__}.{name} must be {kind}, got {type(wrong).__name__}"
            with rejects(TypeError, words):
                setattr(owner, name, wrong)
    for wrong in ("x", 1.5):
        words = r": source_feature_channel_max_count must be an integer, got (str|float)$"
        with pytest.raises(TypeError, match=rf"^{type(kernel).__name__}{words}"):
            kernel.source_feature_channel_max_count = wrong
        words = words.replace("source", "secondary_source")
        with pytest.raises(TypeError, match=rf"^{type(gradient).__name__}{words}"):
            gradient.secondary_source_feature_channel_max_count = wrong


def test_fixed_properties_of_a_neuron(device):
    kernel, gradient = linear(device), linear_gradient(device)
    for name in (
        "kernel_width",
        "kernel_height",
        "stride_in_pixels_x",
        "stride_in_pixels_y",
        "dilation_rate_x",
        "dilation_rate_y",
    ):
        assert getattr(kernel, name) == 1
        with rejects(AttributeError, f"Neuron.{name} is read-only"):
            setattr(kernel, name, 2)
        assert getattr(gradient, f"secondary_{name}") == 1
    assert not kernel.is_backwards
    assert gradient.is_backwards
    for owner in (kernel, gradient):
        assert not owner.is_state_modified
        assert not owner.is_result_state_reused_across_batch
        assert not owner.append_batch_barrier
        assert owner.device == device
    image = blank(device, 1, 1, 1)
    assert kernel.encoding_storage_size(image, image) >= 0
    for wrong in (0, -1, 2**62):
        with pytest.raises(ValueError, match="secondary_stride_in_pixels_y must be at"):
            gradient.secondary_stride_in_pixels_y = wrong
