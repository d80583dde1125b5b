"""Batches: several images as one argument, and the functions over their distinct objects."""

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    FORMATS,
    blank,
    counting,
    descriptor,
    finish,
    image_of,
    images_of,
    linear,
    spend,
)
from tests.rejects import rejects


def test_a_batch_is_a_sequence_of_images(device):
    images = images_of(device, counting(3, 2, 3, 4))
    batch = mg.ImageBatch(images)
    assert len(batch) == 3
    assert list(batch) == images
    assert batch[0] is images[0]
    assert batch[-1] is images[2]
    for index in (3, -4, 2**62):
        with pytest.raises(IndexError, match="outside a batch of 3"):
            batch[index]
    assert repr(batch) == "ImageBatch(3 x Image(3x2x4 float32))"
    assert mg.ImageBatch(tuple(images))[1] is images[1]


@pytest.mark.parametrize("wrong", [None, 3, "abc", [None], [3], [mg.ImageDescriptor()]])
def test_batches_of_other_things(wrong):
    with pytest.raises(TypeError, match="images must"):
        mg.ImageBatch(wrong)


def test_slices_are_batches(device):
    arrays = counting(5, 2, 3, 4)
    batch = mg.ImageBatch.from_array(device, arrays)
    for part in (slice(1, 3), slice(None), slice(4, None, -2), slice(-2, 100)):
        images = batch[part]
        assert isinstance(images, mg.ImageBatch)
        assert list(images) == list(batch)[part]
        assert np.array_equal(images, arrays[part])
        assert images.shape == arrays[part].shape
    with rejects(ValueError, "ImageBatch: a slice must hold at least one image, got slice(3, 3"):
        batch[3:3]
    with rejects(ValueError, "slice step cannot be zero"):
        batch[::0]
    with rejects(ValueError, "ImageBatch: an array holds images of one kind"):
        _ = mg.ImageBatch([batch[0], blank(device, 1, 1, 4)]).shape


def test_batches_are_not_empty(device):
    with pytest.raises(ValueError, match="must hold at least one image"):
        mg.ImageBatch([])
    for count in (0, -1, 2**40):
        with pytest.raises(ValueError, match="count must be between 1 and"):
            mg.ImageBatch.allocate(device, descriptor(), count)
    with pytest.raises(ValueError, match="number_of_images must be 1 in a batch, got 2"):
        mg.ImageBatch.allocate(device, descriptor(images=2), 2)


@pytest.mark.parametrize("channel_format", FORMATS)
def test_allocated_batches_are_zero_and_independent(device, channel_format):
    batch = mg.ImageBatch.allocate(device, descriptor(channel_format=channel_format), 3)
    assert not batch.to_array().any()
    one = np.ones((2, 3, 4), batch.to_array().dtype)
    batch[1].write(one)
    assert [int(image.read().sum()) for image in batch] == [0, 24, 0]
    assert all(image.descriptor == descriptor(channel_format=channel_format) for image in batch)


def test_from_array_and_back(device):
    for dtype in (np.float32, np.float16, np.uint8, np.uint16):
        array = counting(3, 2, 3, 5, dtype=dtype)
        batch = mg.ImageBatch.from_array(device, array)
        assert len(batch) == 3
        assert batch[0].feature_channels == 5
        result = batch.to_array()
        assert result.dtype == dtype
        assert np.array_equal(result, array)
        assert np.shares_memory(result, array) == (device.kind == "cpu")


def test_arrays_of_a_batch_outlive_it(device):
    result = mg.ImageBatch.allocate(device, descriptor(), 2).to_array()
    result[...] = 7
    assert (result == 7).all()
    assert result.flags.writeable
    assert result.ctypes.data % 64 == 0


def test_a_batch_of_separate_images_is_copied(device):
    images = images_of(device, counting(3, 2, 3, 4))
    result = mg.ImageBatch(images[::-1]).to_array()
    assert np.array_equal(result, counting(3, 2, 3, 4)[::-1])
    result[...] = 0
    assert images[0].read().all()


@pytest.mark.parametrize(
    "others",
    [
        lambda device: blank(device, 64, 4096, 4),
        lambda device: blank(device, 1, 1, 4),
        lambda device: blank(device, 2, 3, 8),
        lambda device: blank(device, 2, 3, 4, channel_format="float16"),
    ],
    ids=["larger", "smaller", "channels", "format"],
)
@pytest.mark.parametrize("call", [mg.ImageBatch.to_array, np.asarray, np.from_dlpack])
def test_there_is_no_array_of_images_that_differ(device, others, call):
    batch = mg.ImageBatch([blank(device, 2, 3, 4), others(device)])
    with rejects(ValueError, "ImageBatch: an array holds images of one kind"):
        call(batch)


def test_there_is_no_array_of_containers(device):
    with rejects(ValueError, "that hold one image each"):
        mg.ImageBatch([blank(device, 2, 2, 3, 4)]).to_array()


def test_a_batch_of_results_lies_in_memory_of_its_own(device, queue):
    """Two threads would write to it at once."""
    array = counting(1, 2, 3, 8)
    sources = images_of(device, counting(2, 2, 3, 8))
    whole = blank(device, 2, 3, 8)
    command_buffer = queue.command_buffer()
    if device.kind == "cpu":  # another device copies the array, and tells no views from others
        container = blank(device, 2, 2, 3, 8)
        for same in (
            [mg.ImageBatch.from_array(device, array)[0] for _ in range(2)],
            [container.batch_representation()[0] for _ in range(2)],
        ):
            with rejects(ValueError, "Neuron: destination holds two images of the same memory"):
                linear(device).encode(command_buffer, sources, same)
    assert np.array_equal(array, counting(1, 2, 3, 8))
    halves = [whole.sub_image_with_feature_channel_range(first, 4) for first in (4, 0)]
    pairs = images_of(device, counting(2, 2, 3, 4))
    linear(device).encode(command_buffer, pairs, halves)
    finish(command_buffer, whole)
    assert np.array_equal(whole.read(), np.concatenate(counting(2, 2, 3, 4)[::-1], axis=2))


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (
            np.zeros((2, 3, 4), np.float32),
            ValueError,
            r"must have shape \(N, H, W, C\), got \(2, 3, 4\)",
        ),
        (np.zeros((2, 3, 4, 8), np.float32)[..., ::2], ValueError, "must be C-contiguous"),
        (np.zeros((2, 3, 4, 5)), TypeError, "float32, float16, uint8 or uint16, got float64"),
        (np.zeros((2, 3, 4, 5), ">f4"), TypeError, "got >f4"),
        (np.zeros((0, 3, 4, 5), np.float32), ValueError, "count must be between 1"),
        (np.zeros((2, 0, 4, 5), np.float32), ValueError, "height must be between 1"),
        (np.zeros((2, 3, 4, 0), np.float32), ValueError, "feature_channels must be at least 1"),
        (np.zeros((1, 1, 1, 20000), np.float32)[..., :8196], ValueError, "at most 2048 slices"),
        (np.zeros(81, np.uint8)[1:].view(np.float32).reshape(1, 1, 4, 5), ValueError, "aligned"),
        (
            [[[[1.0]]]],
            TypeError,
            "from_array: array must be a NumPy array, or have a buffer or DLPack, got list",
        ),
        (
            None,
            TypeError,
            "from_array: array must be a NumPy array, or have a buffer or DLPack, got NoneType",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_from_array_of_wrong_arrays(device, array, error, words):
    with pytest.raises(error, match=words):
        mg.ImageBatch.from_array(device, array)


def test_read_only_arrays_are_sources_only(device, queue):
    array = counting(2, 2, 3, 8)
    array.flags.writeable = False
    batch = mg.ImageBatch.from_array(device, array)
    with pytest.raises(ValueError, match=r"write\(\) into an image over a read-only array"):
        batch[0].write(np.zeros((2, 3, 8), np.float32))
    view = batch[1].sub_image_with_feature_channel_range(4, 4)
    with pytest.raises(ValueError, match="read-only"):
        view.write(np.zeros((2, 3, 4), np.float32))
    command_buffer = queue.command_buffer()
    sources = mg.ImageBatch.allocate(device, batch[0].descriptor, 2)
    with pytest.raises(ValueError, match="Neuron: destination is over a read-only array"):
        linear(device).encode(command_buffer, sources, batch)
    with pytest.raises(ValueError, match="Neuron: destination is over a read-only array"):
        linear(device).encode(command_buffer, blank(device, 2, 3, 4), view)
    result = linear(device, 2.0).encode(command_buffer, batch, allocator=mg.DEFAULT)
    finish(command_buffer, *result)
    assert np.array_equal(result.to_array(), 2 * array)
    back = batch.to_array()
    assert np.array_equal(back, array)
    assert not (np.shares_memory(back, array) and back.flags.writeable)


def test_one_encode_for_a_batch_is_many_for_its_images(device, queue):
    arrays = counting(5, 2, 3, 4)
    kernel = linear(device, 3.0, 1.0)
    forms = {
        "one allocation": mg.ImageBatch.from_array(device, arrays),
        "separate images": images_of(device, arrays),
        "tuple": tuple(images_of(device, arrays)),
        "container's images": image_of(device, arrays).batch_representation(),
    }
    command_buffer = queue.command_buffer()
    results = {
        name: kernel.encode(command_buffer, sources, allocator=mg.DEFAULT)
        for name, sources in forms.items()
    }
    results["encode_batch"] = kernel.encode_batch(
        command_buffer, forms["one allocation"], allocator=mg.DEFAULT
    )
    destinations = images_of(device, np.zeros_like(arrays))
    same = kernel.encode(command_buffer, forms["separate images"], destinations)
    assert same is destinations
    results["given"] = mg.ImageBatch(destinations)
    finish(command_buffer, *(image for result in results.values() for image in result))
    for name, result in results.items():
        assert isinstance(result, mg.ImageBatch), name
        assert np.array_equal(result.to_array(), 3 * arrays + 1), name


def test_a_batch_of_one_stays_a_batch(device, queue):
    command_buffer = queue.command_buffer()
    result = linear(device).encode(
        command_buffer, [image_of(device, counting(2, 3, 4))], allocator=mg.DEFAULT
    )
    assert isinstance(result, mg.ImageBatch)
    finish(command_buffer, *result)
    assert result.to_array().shape == (1, 2, 3, 4)


# --- functions over distinct objects ------------------------------------------


def test_iterate_visits_distinct_images_once(device):
    a, b, c = images_of(device, counting(3, 1, 1, 1))
    seen = []
    assert mg.iterate([a, b, a, c, b], lambda image, index: seen.append((image, index))) is None
    assert seen == [(a, 0), (b, 1), (c, 3)]


def test_iterate_stops_at_the_first_number(device):
    images = images_of(device, counting(4, 1, 1, 1))
    seen = []

    def visit(_, index):
        seen.append(index)
        return -5 if index == 2 else None

    assert mg.iterate(mg.ImageBatch(images), visit) == -5
    assert seen == [0, 1, 2]
    assert mg.iterate(images, lambda *_: 0) == 0  # any number stops, 0 too


def test_iterate_passes_errors_on(device):
    images = images_of(device, counting(2, 1, 1, 1))
    with pytest.raises(ZeroDivisionError):
        mg.iterate(images, lambda *_: 1 // 0)
    with pytest.raises(TypeError, match="visit's result must be an integer, got str"):
        mg.iterate(images, lambda *_: "stop")
    with pytest.raises(ValueError, match="out of range"):
        mg.iterate(images, lambda *_: 2**64)
    with pytest.raises(TypeError, match="visit must be a Callable, got NoneType"):
        mg.iterate(images, None)


def test_increment_read_count_counts_distinct_objects(device, queue):
    command_buffer = queue.command_buffer()
    a, b = (mg.TemporaryImage(command_buffer, descriptor()) for _ in range(2))
    ordinary = blank(device, 2, 3, 4)
    assert mg.increment_read_count([a, b, a, ordinary, a], 2) == 3
    assert (a.read_count, b.read_count) == (3, 3)
    b.read_count = 0
    assert mg.increment_read_count([a, b], 1) == 2  # those at 0 are counted and left alone
    assert (a.read_count, b.read_count) == (4, 0)
    assert mg.increment_read_count([a], -4) == 1
    assert a.read_count == 0
    with pytest.raises(mg.errors.ReadCountError, match="contents are gone"):
        linear(device).encode(command_buffer, a, ordinary)


@pytest.mark.parametrize(
    "function",
    [
        lambda batch, _: mg.increment_read_count(batch, 1),
        lambda batch, _: mg.resource_size(batch),
        mg.synchronize,
    ],
)
def test_functions_of_batches_name_what_they_take(device, queue, function):
    with pytest.raises(TypeError, match=r"batch must be an Image, an ImageBatch or a list .* int"):
        function(3, queue.command_buffer())
    function(blank(device, 2, 3, 4), queue.command_buffer())


def test_increment_read_count_changes_all_or_nothing(queue):
    command_buffer = queue.command_buffer()
    images = [mg.TemporaryImage(command_buffer, descriptor()) for _ in range(3)]
    images[0].read_count = 5
    for amount in (-2, -(2**63)):
        with pytest.raises(mg.errors.ReadCountError, match=r"cannot lower read count [15] by"):
            mg.increment_read_count(images, amount)
    with pytest.raises(ValueError, match="cannot raise read count 5 by"):
        mg.increment_read_count(images, 2**63 - 1)
    assert [image.read_count for image in images] == [5, 1, 1]
    spend(*images)


def test_functions_take_states_and_nothing(device, queue):
    command_buffer = queue.command_buffer()
    state = mg.State.temporary(command_buffer, 16)
    ordinary = mg.State(device, 32)
    assert mg.increment_read_count([state, ordinary, state], 3) == 2
    assert state.read_count == 4
    assert mg.increment_read_count(None, 1) == 0
    assert mg.resource_size(None) == 0
    assert mg.resource_size([ordinary, ordinary]) == 32
    mg.synchronize([ordinary, ordinary], command_buffer)
    mg.synchronize(None, command_buffer)
    state.read_count = 0
    finish(command_buffer)


def test_a_batch_that_no_memory_holds(device, queue):
    d = mg.ImageDescriptor(16384, 16384, 8192)
    words = "images of 16384x16384x8192 float32 are more than any memory holds (2^48 bytes)"
    for make, of in ((mg.ImageBatch.allocate, device), (mg.ImageBatch.temporary, queue)):
        with rejects(ValueError, words):
            make(of if of is device else of.command_buffer(), d, 2**20)


def test_resource_size_sums_distinct_images(device):
    a, b = images_of(device, counting(2, 2, 3, 4))
    assert mg.resource_size([a, b, a]) == a.resource_size + b.resource_size
    assert mg.resource_size(mg.ImageBatch([a])) == a.resource_size > 0
    assert mg.resource_size([a.sub_image_with_feature_channel_range(0, 4)]) == 0


def test_synchronize_needs_an_open_buffer(device, queue):
    image = image_of(device, counting(2, 3, 4))
    command_buffer = queue.command_buffer()
    mg.synchronize([image, image], command_buffer)
    finish(command_buffer)
    with pytest.raises(mg.errors.CommandBufferError, match="already completed"):
        mg.synchronize([image], command_buffer)
    with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer, got NoneType"):
        mg.synchronize([image], None)


@pytest.mark.parametrize("wrong", [3, [3], "image", [None]])
def test_functions_of_other_things(queue, wrong):
    command_buffer = queue.command_buffer()
    with pytest.raises(TypeError, match="increment_read_count: batch must"):
        mg.increment_read_count(wrong, 1)
    with pytest.raises(TypeError, match="resource_size: batch must"):
        mg.resource_size(wrong)
    with pytest.raises(TypeError, match="synchronize: batch must"):
        mg.synchronize(wrong, command_buffer)
    with pytest.raises(TypeError, match="iterate: batch must"):
        mg.iterate(wrong, print)


def test_mixed_lists_are_refused(device):
    image, state = blank(device, 1, 1, 1), mg.State(device, 16)
    for mixed in ([image, state], [state, image]):
        with pytest.raises(TypeError, match="increment_read_count: batch must"):
            mg.increment_read_count(mixed, 1)
