"""Image descriptors and images: what they report, and how texels travel to the CPU and back."""

import copy
import pickle
import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core import oracle, tables
from tests.core.support import (
    DTYPES,
    FORMATS,
    PRECISIONS,
    blank,
    counting,
    descriptor,
    finish,
    image_of,
    linear,
    spend,
)
from tests.rejects import rejects

# --- descriptors --------------------------------------------------------------


def test_descriptors_pickle():
    d = mg.ImageDescriptor(3, 2, 5, 1, mg.ChannelFormat.FLOAT16, mg.StorageMode.PRIVATE, usage=7)
    d.cpu_cache_mode = 1
    pickled = [pickle.loads(pickle.dumps(d, protocol)) for protocol in range(6)]
    for again in (*pickled, copy.deepcopy(d)):
        assert again == d
        assert again is not d
        assert (again.storage_mode, again.usage) == (mg.StorageMode.PRIVATE, 7)
    with rejects(ValueError, "ImageDescriptor: width must be between 1"):
        pickle.loads(pickle.dumps(mg.ImageDescriptor(width=7)).replace(b"K\x07", b"K\x00", 1))


def test_descriptor_defaults():
    d = mg.ImageDescriptor()
    assert (d.width, d.height, d.feature_channels, d.number_of_images) == (1, 1, 1, 1)
    assert d.channel_format == mg.ChannelFormat.FLOAT32
    assert d.storage_mode == mg.StorageMode.MANAGED
    assert d.usage == mg.TextureUsage.SHADER_READ | mg.TextureUsage.SHADER_WRITE
    assert d.cpu_cache_mode == 0


FIELDS = {
    "width": ([1, 2, 16384], [0, -1, 16385, 2**62]),
    "height": ([1, 2, 16384], [0, -1, 16385, 2**62]),
    "feature_channels": ([1, 5, 8192], [0, -4, 8193, 2**62]),
    "number_of_images": ([1, 7, 2048], [0, -1, 2049, 2**62]),
    "channel_format": ([*FORMATS.values()], [mg.ChannelFormat.NONE]),
    "usage": ([3, 7, 19], [0, 1, 2, 8 + 3, 2**40 + 3]),
    "cpu_cache_mode": ([0, 1], [-1, 2]),
    "storage_mode": ([mg.StorageMode.PRIVATE, mg.StorageMode.SHARED], []),
}


@pytest.mark.parametrize("field", FIELDS)
def test_descriptor_ranges(field):
    good, bad = FIELDS[field]
    for value in good:
        d = mg.ImageDescriptor()
        setattr(d, field, value)
        assert getattr(d, field) == value
    for value in bad:
        d = mg.ImageDescriptor()
        before = getattr(d, field)
        words = rf"ImageDescriptor: ({field}|number_of_images \* ceil\(feature_channels)"
        with pytest.raises(ValueError, match=words):
            setattr(d, field, value)
        assert getattr(d, field) == before
        if field != "cpu_cache_mode":
            with pytest.raises(ValueError, match=words):
                mg.ImageDescriptor(**{field: value})


def test_descriptor_slices_are_limited_as_a_whole():
    d = mg.ImageDescriptor(feature_channels=12)
    d.number_of_images = 682
    with pytest.raises(
        ValueError, match=r"number_of_images \* ceil\(feature_channels / 4\) must be"
    ):
        d.number_of_images = 683
    with pytest.raises(ValueError, match="at most 2048 slices, got 682 images of 13 channels"):
        d.feature_channels = 13
    assert (d.feature_channels, d.number_of_images) == (12, 682)


@pytest.mark.parametrize("wrong", [None, "3", 1.5, np.nan, [3], 2**64], ids=str)
def test_descriptor_fields_of_wrong_kinds(wrong):
    for field in FIELDS:
        of_number = wrong == 2**64 and field not in ("channel_format", "storage_mode")
        error = ValueError if of_number else TypeError
        if field != "cpu_cache_mode":  # no argument
            with pytest.raises(error, match="ImageDescriptor"):
                mg.ImageDescriptor(**{field: wrong})
        with pytest.raises(error, match="ImageDescriptor"):
            setattr(mg.ImageDescriptor(), field, wrong)


def test_descriptor_is_a_value():
    d = descriptor(5, 4, 3, channel_format="float16")
    for twin in (d.copy(), copy.copy(d), copy.deepcopy(d)):
        assert twin == d
        twin.width = 6
        assert twin != d
    assert d.width == 5
    assert repr(d) == "ImageDescriptor(5x4x3 float16)"


PIXEL_FORMATS = {  # of one, two, more channels
    "unorm8": (10, 30, 70),
    "unorm16": (20, 60, 110),
    "float16": (25, 65, 115),
    "float32": (55, 105, 125),
}


@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("row", tables.PACKING, ids=lambda row: f"C{row.channels}")
def test_packing(device, row, channel_format):
    item = np.dtype(DTYPES[channel_format]).itemsize
    d = descriptor(3, 2, row.channels, channel_format=channel_format)
    image = mg.Image(device, d)
    assert d.slices == row.slices
    assert d.array_length == row.slices
    assert image.texture_type == d.texture_type == (3 if row.is_array else 2)
    expected = PIXEL_FORMATS[channel_format][min(row.channels, 3) - 1]
    assert image.pixel_format == d.pixel_format == expected
    assert image.pixel_size == min(row.lanes, 4) * item
    assert image.feature_channel_format == FORMATS[channel_format]
    assert image.precision == PRECISIONS[channel_format]
    if device.kind == "cpu":  # elsewhere the driver's own alignment is part of it
        assert image.resource_size == 6 * row.lanes * item
    assert image.resource_size >= 6 * row.lanes * item


def test_packing_of_several_images(device):
    image = mg.Image(device, descriptor(3, 2, 8, 5))
    assert image.descriptor.array_length == 10
    assert image.texture_type == 3
    assert mg.Image(device, descriptor(3, 2, 1, 2)).texture_type == 3
    assert mg.Image(device, descriptor(3, 2, 5, channel_format="float16")).resource_size >= 96


def test_image_reports_its_descriptor(device):
    d = descriptor(5, 4, 3, 2, channel_format="float16")
    image = mg.Image(device, d)
    assert image.device == device
    assert image.descriptor == d
    image.descriptor.width = 9  # of a copy
    d.height = 9
    assert (image.width, image.height, image.feature_channels, image.number_of_images) == (
        5,
        4,
        3,
        2,
    )
    assert image.usage == 3
    assert image.parent is None
    assert image.is_temporary is False
    assert image.label == ""
    image.label = "activations"
    assert image.label == "activations"
    assert repr(image) == "Image(5x4x3 float16 x 2 images)"


def test_images_need_a_device_and_a_descriptor(device):
    for arguments, words in (
        ((None, descriptor()), "device must be a Device, got NoneType"),
        (("cpu", descriptor()), "device must be a Device, got str"),
        ((device, None), "descriptor must be an ImageDescriptor, got NoneType"),
        ((device,), "descriptor is missing, which must be an ImageDescriptor"),
    ):
        with rejects(TypeError, f"Image: {words}"):
            mg.Image(*arguments)


# --- transfer -----------------------------------------------------------------


def texels(rng, shape, channel_format):
    """Every bit pattern that a transfer must not touch, NaN and negative zero included."""
    item = np.dtype(DTYPES[channel_format]).itemsize
    bits = rng.integers(0, 256, size=(*shape[:-1], shape[-1] * item), dtype=np.uint8)
    return bits.view(DTYPES[channel_format])


@pytest.mark.parametrize("channel_format", FORMATS)
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 9])
def test_write_and_read_keep_every_bit(device, rng, channel_format, layout, channels):
    array = texels(rng, (2, 3, channels), channel_format)
    image = mg.Image(device, descriptor(3, 2, channels, channel_format=channel_format))
    here = getattr(mg.DataLayout, layout)
    image.write(array if layout == "HWC" else oracle.to_chw(array), here)
    hwc, chw = image.read(), image.read(mg.DataLayout.CHW)
    assert hwc.dtype == chw.dtype == array.dtype
    assert hwc.flags.c_contiguous
    assert hwc.tobytes() == array.tobytes()
    assert chw.tobytes() == oracle.to_chw(array).tobytes()
    assert image.read(layout=here, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("row", tables.LAYOUTS, ids=lambda row: f"{row.layout} {row.dtype}")
def test_layouts_of_the_cpus_buffer(device, row):
    array = counting(2, 3, 5, dtype=row.dtype)
    result = image_of(device, array).read(getattr(mg.DataLayout, row.layout))
    column = 2 if row.layout == "CHW" else 1
    assert result.strides[column] == row.bytes_per_column
    assert result.strides[column - 1] == row.bytes_per_row
    assert result.nbytes == row.bytes_per_image


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_containers(device, rng, layout):
    layout = getattr(mg.DataLayout, layout)
    array = texels(rng, (4, 2, 3, 5), "float16")
    image = mg.Image(device, descriptor(3, 2, 5, 4, channel_format="float16"))
    order = (0, 3, 1, 2) if layout == mg.DataLayout.CHW else (0, 1, 2, 3)
    placed = np.ascontiguousarray(array.transpose(order))
    image.write(placed, layout)
    assert image.read().tobytes() == array.tobytes()
    assert image.read(layout).tobytes() == placed.tobytes()
    for index in range(4):
        assert image.read(image_index=index).tobytes() == array[index].tobytes()
    image.write(placed[3], layout, image_index=1)
    assert image.read(layout, 1).tobytes() == placed[3].tobytes()
    assert image.read(layout, 2).tobytes() == placed[2].tobytes()


def test_new_images_are_zero(device):
    for channel_format in FORMATS:
        image = mg.Image(device, descriptor(7, 5, 3, 2, channel_format=channel_format))
        assert not image.read().any()


def test_write_takes_any_memory_order(device):
    array = counting(3, 2, 8)
    image = blank(device, 3, 2, 4)
    image.write(array[..., ::2])
    assert np.array_equal(image.read(), array[..., ::2])
    image = blank(device, 2, 3, 8)
    image.write(array.transpose(1, 0, 2))
    assert np.array_equal(image.read(), array.transpose(1, 0, 2))


WRITES = [
    (np.zeros((2, 3, 4)), TypeError, "Image: array must be float32, got float64"),
    (np.zeros((2, 3, 4), np.float16), TypeError, "Image: array must be float32, got float16"),
    (np.zeros((2, 3, 4), ">f4"), TypeError, "Image: array must be float32, got >f4"),
    (np.zeros((3, 2, 4), np.float32), ValueError, "must have shape (2, 3, 4), got (3, 2, 4)"),
    (np.zeros((1, 2, 3, 4), np.float32), ValueError, "must have shape (2, 3, 4), got (1, 2, 3, 4)"),
    (np.zeros((4, 2, 3), np.float32), ValueError, "must have shape (2, 3, 4), got (4, 2, 3)"),
    (np.zeros(24, np.float32), ValueError, "must have shape (2, 3, 4), got (24,)"),
    (
        [[[0.0]]],
        TypeError,
        "Image.write: array must be a NumPy array, or have a buffer or DLPack, got list",
    ),
    (
        None,
        TypeError,
        "Image.write: array must be a NumPy array, or have a buffer or DLPack, got NoneType",
    ),
]


@pytest.mark.parametrize(("array", "error", "words"), WRITES, ids=lambda value: str(value)[-24:])
def test_writes_of_wrong_arrays(device, array, error, words):
    image = image_of(device, counting(2, 3, 4))
    with pytest.raises(error, match=re.escape(words)):
        image.write(array)
    assert np.array_equal(image.read(), counting(2, 3, 4))


@pytest.mark.parametrize("index", [-1, 2, 2**62, -(2**63)])
def test_image_index_outside_the_container(device, index):
    image = blank(device, 2, 2, 3, 4)
    with pytest.raises(IndexError, match="outside a container of 2"):
        image.read(image_index=index)
    with pytest.raises(IndexError, match="outside a container of 2"):
        image.write(np.zeros((2, 3, 4), np.float32), image_index=index)


@pytest.mark.parametrize(
    ("index", "error"), [("0", TypeError), (0.0, TypeError), (2**70, ValueError)]
)
def test_image_index_of_a_wrong_kind(device, index, error):
    with pytest.raises(error, match=r"^Image: image_index "):
        blank(device, 2, 2, 3, 4).read(image_index=index)


def test_integers_may_be_numpys(device):
    image = image_of(device, counting(2, 2, 3, 4))
    assert np.array_equal(image.read(image_index=np.int64(1)), counting(2, 2, 3, 4)[1])


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_an_image_over_an_array(device, dtype):
    array = counting(2, 3, 5, dtype=dtype)
    image = mg.Image.from_array(device, array)
    assert isinstance(image, mg.Image)
    assert (image.height, image.width, image.feature_channels) == array.shape
    assert np.array_equal(image.read(), array)
    array[...] = 1
    assert (image.read() == 1).all() == (device.kind == "cpu")  # others copy


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.zeros((1, 2, 3, 4), np.float32), ValueError, "Image: array must have shape (H, W, C)"),
        (np.zeros((2, 3, 4)), TypeError, "Image: array must be float32, float16, uint8 or uint16"),
        (
            np.zeros((2, 3, 8), np.float32)[..., ::2],
            ValueError,
            "Image: array must be C-contiguous",
        ),
    ],
    ids=["batch", "dtype", "strides"],
)
def test_no_image_over_other_arrays(device, array, error, words):
    with rejects(error, words):
        mg.Image.from_array(device, array)


def test_conversion_to_an_array(device):
    array = counting(2, 3, 4, dtype=np.float16)
    image = image_of(device, array)
    assert np.asarray(image).dtype == np.float16
    assert np.array_equal(np.asarray(image), array)
    assert np.array(image, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(image, copy=False)


def test_what_is_read_is_a_copy(device):
    image = image_of(device, counting(2, 3, 4))
    image.read()[:] = 0
    assert np.array_equal(image.read(), counting(2, 3, 4))


def test_private_images_are_hidden_from_the_cpu(device):
    d = descriptor()
    d.storage_mode = mg.StorageMode.PRIVATE
    image = mg.Image(device, d)
    with pytest.raises(RuntimeError, match=r"Image: read\(\) is impossible"):
        image.read()
    with pytest.raises(RuntimeError, match=r"Image: write\(\) is impossible"):
        image.write(np.zeros((2, 3, 4), np.float32))
    batch = mg.ImageBatch.allocate(device, d, 2)
    with pytest.raises(RuntimeError, match=r"read\(\) is impossible"):
        batch.to_array()


# --- when texels may travel ---------------------------------------------------


def test_a_write_between_encode_and_commit_is_visible(device, queue):
    source = image_of(device, np.zeros((2, 3, 4), np.float32))
    command_buffer = queue.command_buffer()
    result = linear(device, 2.0).encode(command_buffer, source, allocator=mg.DEFAULT)
    source.write(counting(2, 3, 4))
    finish(command_buffer, result)
    assert np.array_equal(result.read(), 2 * counting(2, 3, 4))


def test_a_property_changed_after_the_encode_has_no_effect(device, queue):
    source = image_of(device, counting(2, 3, 4))
    kernel = linear(device)
    results = [blank(device, 2, 3, 4) for _ in range(3)]
    command_buffer = queue.command_buffer()
    kernel.encode(command_buffer, source, results[0])
    kernel.offset = (1, 0, 0)
    kernel.clip_rect = mg.Region((0, 0, 0), (2, 2, 1))
    kernel.encode(command_buffer, source, results[1])
    kernel.offset = (0, 1, 0)
    kernel.clip_rect = mg.NO_CLIP
    kernel.encode(command_buffer, source, results[2])
    kernel.offset = (2, 2, 0)
    finish(command_buffer, *results)
    array = counting(2, 3, 4)
    shifted = np.zeros_like(array)
    shifted[:, :2] = array[:, 1:3]
    lowered = np.zeros_like(array)
    lowered[0] = array[1]
    assert np.array_equal(results[0].read(), array)
    assert np.array_equal(results[1].read(), shifted)
    assert np.array_equal(results[2].read(), lowered)


def test_nothing_is_readable_before_completion(device, queue):
    source = image_of(device, counting(2, 3, 4))
    gate = queue.command_buffer()
    gate.enqueue()
    command_buffer = queue.command_buffer()
    result = linear(device).encode(command_buffer, source, allocator=mg.DEFAULT)
    result.synchronize(command_buffer)
    with pytest.raises(
        RuntimeError, match="Image is written by a command buffer that has not been"
    ):
        result.read()
    assert np.array_equal(source.read(), counting(2, 3, 4))  # only read by the work
    command_buffer.commit()
    with pytest.raises(RuntimeError, match="nobody has waited for"):
        result.read()
    with pytest.raises(RuntimeError, match="nobody has waited for"):
        np.asarray(result)
    with pytest.raises(RuntimeError, match="in use by a committed command buffer"):
        source.write(counting(2, 3, 4))
    with pytest.raises(RuntimeError, match="in use by a committed command buffer"):
        result.write(counting(2, 3, 4))
    gate.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(result.read(), counting(2, 3, 4))
    source.write(np.zeros((2, 3, 4), np.float32))


def test_a_missing_wait_fails_even_after_completion(device, queue):
    import threading

    ended = threading.Event()
    command_buffer = queue.command_buffer()
    result = linear(device).encode(
        command_buffer, image_of(device, counting(2, 3, 4)), allocator=mg.DEFAULT
    )
    result.synchronize(command_buffer)
    command_buffer.commit()
    probe = queue.command_buffer()
    probe.enqueue()
    watcher = threading.Timer(0.05, ended.set)
    watcher.start()
    assert ended.wait(10)
    with pytest.raises(RuntimeError, match="nobody has waited for"):
        result.read()
    command_buffer.wait_until_completed()
    assert np.array_equal(result.read(), counting(2, 3, 4))
    watcher.join()


def test_polling_the_status_is_as_good_as_waiting(device, queue):
    kernel, source = linear(device), image_of(device, counting(2, 3, 4))
    for _ in range(300):  # the end may come at any moment of a poll
        command_buffer = queue.command_buffer()
        result = kernel.encode(command_buffer, source, allocator=mg.DEFAULT)
        result.synchronize(command_buffer)
        command_buffer.commit()
        while command_buffer.status < mg.CommandBufferStatus.COMPLETED:
            pass
        assert np.array_equal(result.read(), counting(2, 3, 4))


def test_waiting_for_a_later_buffer_is_waiting_for_the_earlier_ones(device, queue):
    first, second = queue.command_buffer(), queue.command_buffer()
    result = linear(device).encode(first, image_of(device, counting(2, 3, 4)), allocator=mg.DEFAULT)
    result.synchronize(first)
    first.commit()
    second.commit()
    second.wait_until_completed()
    assert np.array_equal(result.read(), counting(2, 3, 4))


def test_images_of_other_devices_cannot_be_synchronized(queue, device):
    image = image_of(device, counting(2, 3, 4))
    with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer, got NoneType"):
        image.synchronize(None)
    command_buffer = queue.command_buffer()
    image.synchronize(command_buffer)
    finish(command_buffer)


# --- views --------------------------------------------------------------------


def test_batch_representation(device):
    array = counting(4, 2, 3, 5)
    image = image_of(device, array)
    views = image.batch_representation()
    assert len(views) == 4
    for view, expected in zip(views, array, strict=True):
        assert view.parent is image
        assert (view.number_of_images, view.feature_channels) == (1, 5)
        assert view.resource_size == 0
        assert np.array_equal(view.read(), expected)
    views[2].write(np.zeros((2, 3, 5), np.float32))
    assert not image.read(image_index=2).any()
    middle = image.batch_representation(1, 2)
    assert [int(view.read()[0, 0, 0]) for view in middle] == [31, 0]


@pytest.mark.parametrize(
    "arguments", [(4,), (-1,), (0, 5), (3, 2), (1, 0), (1, -1), (1, 2**63 - 1), (2**63 - 1, 1)]
)
def test_batch_representation_outside_the_container(device, arguments):
    with pytest.raises(ValueError, match="outside a container of 4"):
        blank(device, 4, 2, 3, 5).batch_representation(*arguments)


@pytest.mark.parametrize("channel_format", FORMATS)
def test_sub_image_with_feature_channel_range(device, channel_format):
    # Some channels of several images are no range of a texture's slices.
    count = 1 if device.kind == "metal" else 2
    array = counting(count, 2, 3, 10, dtype=DTYPES[channel_format])
    image = image_of(device, array)
    for first, length, expected in [(0, 4, 4), (4, 4, 4), (4, 8, 6), (8, 4, 2), (8, 2**62, 2)]:
        view = image.sub_image_with_feature_channel_range(first, length)
        assert view.parent is image
        assert (view.feature_channels, view.number_of_images) == (expected, count)
        assert view.resource_size == 0
        shown = array[..., first : first + expected]
        assert np.array_equal(view.read().reshape(shown.shape), shown)
        chw = view.read(mg.DataLayout.CHW, count - 1)
        assert np.array_equal(chw, oracle.to_chw(shown[-1]))
    view = image.sub_image_with_feature_channel_range(4, 4)
    view.write(np.zeros_like(view.read()))
    array[..., 4:8] = 0
    assert np.array_equal(image.read().reshape(array.shape), array)


@pytest.mark.parametrize(
    ("first", "count", "words"),
    [
        (2, 4, "first channel must be a multiple of 4, got 2"),
        (-4, 4, "first channel must be a multiple of 4, got -4"),
        (0, 3, "channel count must be a positive multiple of 4, got 3"),
        (0, 0, "channel count must be a positive multiple of 4, got 0"),
        (12, 4, "first channel 12 is outside an image of 10 channels"),
        (2**62, 4, "is outside an image of 10 channels"),
    ],
)
def test_sub_images_of_wrong_channels(device, first, count, words):
    with pytest.raises(ValueError, match=words):
        blank(device, 2, 3, 10).sub_image_with_feature_channel_range(first, count)


def test_views_of_views(device):
    array = counting(3, 2, 3, 12)
    image = image_of(device, array)
    if device.kind == "metal":  # there channels are those of one image
        view = image.batch_representation()[2].sub_image_with_feature_channel_range(4, 8)
    else:
        view = image.sub_image_with_feature_channel_range(4, 8).batch_representation()[2]
    deep = view.sub_image_with_feature_channel_range(4, 4)
    assert np.array_equal(deep.read(), array[2, ..., 8:])
    del image, view
    assert np.array_equal(deep.read(), array[2, ..., 8:])


def test_views_know_the_work_of_their_image(device, queue):
    image = image_of(device, np.zeros((2, 3, 8), np.float32))
    view = image.sub_image_with_feature_channel_range(4, 4)
    command_buffer = queue.command_buffer()
    linear(device, 2.0).encode(command_buffer, image_of(device, counting(2, 3, 4)), view)
    with pytest.raises(RuntimeError, match="has not been committed"):
        image.read()
    finish(command_buffer, image)
    expected = np.zeros((2, 3, 8), np.float32)
    expected[..., 4:] = 2 * counting(2, 3, 4)
    assert np.array_equal(image.read(), expected)


def test_a_view_as_source(device, queue):
    array = counting(3, 2, 3, 12)
    view = (
        image_of(device, array).batch_representation()[1].sub_image_with_feature_channel_range(8, 4)
    )
    command_buffer = queue.command_buffer()
    result = linear(device, 2.0).encode(command_buffer, view, allocator=mg.DEFAULT)
    finish(command_buffer, result)
    assert np.array_equal(result.read(), 2 * array[1, ..., 8:])


def test_a_batch_of_a_whole_image_and_a_view(device, queue):
    wide = counting(2, 3, 8)
    views = [image_of(device, wide).sub_image_with_feature_channel_range(4, 4)]
    sources = [image_of(device, counting(2, 3, 4)), *views]
    command_buffer = queue.command_buffer()
    if device.kind == "cpu":
        words = "Neuron: source mixes images that lie differently in memory, as a whole image and"
        with pytest.raises(ValueError, match=words):
            linear(device, 2.0).encode_batch(command_buffer, sources, allocator=mg.DEFAULT)
        sources = views
    result = linear(device, 2.0).encode_batch(command_buffer, sources, allocator=mg.DEFAULT)
    finish(command_buffer, *result)
    assert np.array_equal(result[len(result) - 1].read(), 2 * wide[..., 4:])


# --- how kernels store --------------------------------------------------------


@pytest.mark.parametrize("channel_format", FORMATS)
def test_kernels_round_once_on_store(device, queue, channel_format, rng):
    values = np.concatenate(
        [
            rng.uniform(-0.5, 1.5, 3000).astype(np.float32),
            np.float32([0, -0.0, 1, 65504, 65519, 65520, -65520, 2049, 2051, np.inf, -np.inf]),
            (np.arange(256, dtype=np.float32) + 0.5) / np.float32(255),
        ]
    )
    result = blank(device, 1, len(values), 1, channel_format=channel_format)
    command_buffer = queue.command_buffer()
    linear(device).encode(command_buffer, image_of(device, values.reshape(1, -1, 1)), result)
    finish(command_buffer, result)
    expected = oracle.store(values, channel_format)
    got = result.read().ravel()
    if channel_format.startswith("unorm"):
        # The product with 255 or 65535 is rounded to float32 before it is rounded to an integer.
        codes = np.iinfo(expected.dtype).max
        exact = np.clip(values.astype(np.float64), 0, 1) * codes
        near_tie = np.abs(exact - np.floor(exact) - 0.5) <= np.spacing(np.float32(codes))
        assert np.array_equal(got[~near_tie], expected[~near_tie])
        assert (np.abs(got[near_tie].astype(int) - expected[near_tie].astype(int)) <= 1).all()
    else:
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("channel_format", ["unorm8", "unorm16"])
def test_unorm_sources_are_fractions(device, queue, channel_format):
    codes = np.iinfo(DTYPES[channel_format]).max
    array = np.linspace(0, codes, 64).astype(DTYPES[channel_format]).reshape(4, 4, 4)
    result = blank(device, 4, 4, 4)
    command_buffer = queue.command_buffer()
    linear(device).encode(command_buffer, image_of(device, array), result)
    finish(command_buffer, result)
    assert np.abs(result.read() * codes - array).max() <= codes * np.finfo(np.float32).eps


def test_nan_becomes_zero_in_unorm(device, queue):
    source = np.full((1, 1, 4), np.nan, np.float32)
    results = [blank(device, 1, 1, 4, channel_format=name) for name in ("unorm8", "unorm16")]
    command_buffer = queue.command_buffer()
    for result in results:
        linear(device).encode(command_buffer, image_of(device, source), result)
    finish(command_buffer, *results)
    assert [result.read().any() for result in results] == [False, False]


def test_huge_images_are_refused_where_memory_ends(device, queue):
    """More than any machine has, within the descriptor's limits: an exception, not an abort."""
    d = mg.ImageDescriptor(width=16384, height=16384, feature_channels=8192)
    image = mg.Image(device, d)  # lazy
    source = image_of(device, counting(2, 3, 4))
    command_buffer = queue.command_buffer()
    with rejects(MemoryError, "device has no room for"):
        linear(device).encode(command_buffer, source, image)
    with rejects(MemoryError, "device has no room for"):
        mg.TemporaryImage(command_buffer, d)
    finish(command_buffer)


def test_labels_of_temporaries(queue):
    command_buffer = queue.command_buffer()
    temporary = mg.TemporaryImage(command_buffer, descriptor())
    temporary.label = "scratch"
    assert temporary.label == "scratch"
    spend(temporary)
