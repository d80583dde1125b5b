"""Temporary images: read counts, recycled memory, and who may see them."""

import gc
import warnings

import mpsgrad as mg
import numpy as np
import pytest

from tests.core import tables
from tests.core.support import (
    blank,
    counting,
    descriptor,
    drop,
    finish,
    image_of,
    images_of,
    linear,
    linear_gradient,
    read,
    spend,
)
from tests.graph.test_nodes import ONE_SOURCE
from tests.rejects import rejects

ReadCountError, StateError = mg.errors.ReadCountError, mg.errors.StateError


@pytest.fixture
def command_buffer(queue):
    return queue.command_buffer()


def test_a_temporary_starts_with_one_read(command_buffer):
    image = mg.TemporaryImage(command_buffer, descriptor())
    assert isinstance(image, mg.Image)
    assert image.is_temporary
    assert image.read_count == 1
    assert image.descriptor == descriptor()
    image.read_count = 7
    assert image.read_count == 7
    spend(image)
    assert image.read_count == 0
    assert image.width == 3  # the object outlives the texels


def test_every_encode_that_reads_takes_one(device, command_buffer):
    image = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    assert isinstance(image, mg.TemporaryImage)
    image.read_count = 3
    results = []
    for left in (2, 1, 0):
        results.append(linear(device, 2.0).encode(command_buffer, image, allocator=mg.DEFAULT))
        assert image.read_count == left
    with pytest.raises(ReadCountError, match="Neuron: this TemporaryImage has read count 0"):
        linear(device).encode(command_buffer, image, allocator=mg.DEFAULT)
    finish(command_buffer, *results)
    for result in results:
        assert np.array_equal(result.read(), 2 * counting(2, 3, 4))


def test_writing_takes_none(device, command_buffer):
    image = mg.TemporaryImage(command_buffer, descriptor())
    source = image_of(device, counting(2, 3, 4))
    linear(device, 5.0).encode(command_buffer, source, image)
    linear(device, 2.0).encode(command_buffer, source, image)
    assert image.read_count == 1
    result = linear(device).encode(command_buffer, image, allocator=mg.DEFAULT)
    assert np.array_equal(read(command_buffer, result), 2 * counting(2, 3, 4))


def test_at_zero_everything_is_an_error(device, command_buffer):
    image = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    spend(image)
    ordinary = image_of(device, counting(2, 3, 8))
    with pytest.raises(ReadCountError, match="read count 0"):
        linear(device).encode(command_buffer, image, ordinary)
    with pytest.raises(ReadCountError, match="read count 0"):
        linear(device).encode(command_buffer, image)
    with pytest.raises(ReadCountError, match="read count 0"):
        linear(device).encode(command_buffer, ordinary, image)
    for value in (0, 1):
        with pytest.raises(ReadCountError, match="read count is 0 and cannot be changed"):
            image.read_count = value
    with pytest.raises(ReadCountError, match="read count 0"):
        image.sub_image_with_feature_channel_range(0, 4)
    with pytest.raises(ReadCountError, match="read count 0"):
        image.batch_representation()
    assert image.resource_size == 0


@pytest.mark.parametrize("value", [-1, -(2**63)])
def test_read_counts_are_not_negative(command_buffer, value):
    image = mg.TemporaryImage(command_buffer, descriptor())
    with pytest.raises(ValueError, match="read_count must not be negative"):
        image.read_count = value
    assert image.read_count == 1
    image.read_count = 2**63 - 1
    spend(image)


@pytest.mark.parametrize("value", [None, "1", 1.0, 2**63])
def test_read_counts_of_wrong_kinds(command_buffer, value):
    image = mg.TemporaryImage(command_buffer, descriptor())
    with pytest.raises(ValueError if value == 2**63 else TypeError, match="TemporaryImage"):
        image.read_count = value
    spend(image)


def test_a_temporary_is_hidden_from_the_cpu(command_buffer):
    image = mg.TemporaryImage(command_buffer, descriptor())
    batch = mg.ImageBatch.temporary(command_buffer, descriptor(), 2)
    for call in (image.read, image.__array__, lambda: np.asarray(image), batch.to_array):
        with pytest.raises(RuntimeError, match=r"TemporaryImage: read\(\) is impossible"):
            call()
    with pytest.raises(RuntimeError, match=r"TemporaryImage: write\(\) is impossible"):
        image.write(counting(2, 3, 4))
    spend(image, *batch)


def test_a_temporary_belongs_to_its_command_buffer(device, queue, command_buffer):
    image = mg.TemporaryImage(command_buffer, descriptor())
    other = queue.command_buffer()
    ordinary = image_of(device, counting(2, 3, 4))
    with pytest.raises(ValueError, match="Neuron: this TemporaryImage belongs to another command"):
        linear(device).encode(other, image, ordinary)
    with pytest.raises(ValueError, match="belongs to another command buffer"):
        linear(device).encode(other, ordinary, image)
    assert image.read_count == 1
    spend(image)


def test_a_temporarys_texels_start_at_zero(device, queue):
    for _ in range(3):
        command_buffer = queue.command_buffer()
        dirty = linear(device, 1.0, 9.0).encode(command_buffer, image_of(device, counting(2, 3, 4)))
        linear(device).encode(command_buffer, dirty, blank(device, 2, 3, 4))
        clean = mg.TemporaryImage(command_buffer, descriptor())  # over the memory of `dirty`
        result = linear(device).encode(command_buffer, clean, allocator=mg.DEFAULT)
        assert not read(command_buffer, result).any()


@pytest.mark.parametrize(
    "written", ["all", "continued", "clip", "channels", "one of two", "skipped"]
)
def test_a_temporary_is_zero_where_nothing_was_written(device, queue, written):
    """Over recycled memory, whether or not the first command overwrites everything."""
    source = counting(2, 3, 4) + 1
    kernel = linear(device)
    command_buffer = queue.command_buffer()
    dirty = mg.ImageBatch.temporary(command_buffer, descriptor(channels=8), 2)
    for image in dirty:
        fill = linear(device, 0.0, 9.0)
        fill.encode(command_buffer, image_of(device, counting(2, 3, 8)), image)
        linear(device).encode(command_buffer, image, blank(device, 2, 3, 8))
    channels = 8 if written == "channels" else 4
    clean = mg.ImageBatch.temporary(command_buffer, descriptor(channels=channels), 2)
    expected = np.zeros((2, 2, 3, channels), np.float32)
    if written == "continued":  # what clears them may be running
        command_buffer.commit_and_continue()
    if written == "clip":
        kernel.clip_rect = mg.Region((1, 0, 0), (2, 1, 2))
        expected[:, :1, 1:] = source[:1, :2]  # a clip reads from its own corner on
    elif written == "channels":
        kernel.destination_feature_channel_offset = 4
        expected[..., 4:] = source
    elif written == "skipped":
        buffer = mg.Buffer(device, np.zeros(1, np.uint32))
        command_buffer.predicate = mg.Predicate(buffer)
    elif written == "one of two":
        expected[1] = source
    else:
        expected[:] = source
    if written == "one of two":
        kernel.encode(command_buffer, image_of(device, source), clean[1])
    else:
        kernel.encode_batch(command_buffer, images_of(device, np.stack([source] * 2)), clean)
    command_buffer.predicate = None
    result = linear(device).encode_batch(command_buffer, clean, allocator=mg.DEFAULT)
    finish(command_buffer, *result)
    assert np.array_equal(np.stack([image.read() for image in result]), expected)


def test_recycled_memory_keeps_commands_apart(device, command_buffer):
    """Every image of this chain lives in one of two blocks; each command sees its own values."""
    source = image_of(device, counting(2, 3, 4))
    image = linear(device, 1.0, 1.0).encode(command_buffer, source)
    kept = []
    for step in range(20):
        image.read_count = 2
        kept.append(linear(device).encode(command_buffer, image, allocator=mg.DEFAULT))
        image = linear(device, 1.0, float(step)).encode(command_buffer, image)
    spend(image)
    finish(command_buffer, *kept)
    expected = counting(2, 3, 4) + 1
    for step, result in enumerate(kept):
        assert np.array_equal(result.read(), expected)
        expected = expected + step


def test_temporaries_are_recycled_within_a_buffer(device, queue):
    if device.kind != "cpu":
        pytest.skip("counts the CPU device's memory")
    source = image_of(device, np.ones((64, 64, 16), np.float32))
    kernel = linear(device, 1.0, 1.0)

    def step(length):
        command_buffer = queue.command_buffer()
        image = kernel.encode(command_buffer, source)
        for _ in range(length):
            image = kernel.encode(command_buffer, image)
        result = kernel.encode(command_buffer, image, allocator=mg.DEFAULT)
        peak = mg.memory_statistics()["in_use"]
        assert read(command_buffer, result)[0, 0, 0] == length + 3
        return peak

    step(2)
    assert step(50) - step(2) < source.resource_size  # and not 48 images


def test_a_dropped_temporary_warns(queue):
    command_buffer = queue.command_buffer()
    holder = [mg.TemporaryImage(command_buffer, descriptor())]
    holder[0].read_count = 3
    words = "TemporaryImage 3x2x4 float32 was dropped with read count 3"
    with pytest.warns(ResourceWarning, match=words):
        drop(holder)


def test_a_spent_temporary_goes_silently(device, queue):
    command_buffer = queue.command_buffer()
    image = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    linear(device).encode(command_buffer, image, blank(device, 2, 3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del image
        gc.collect()


def test_a_failed_encode_leaves_no_warning(device, queue, recwarn):
    command_buffer = queue.command_buffer()
    kernel = linear(device)
    kernel.destination_feature_channel_offset = 4
    kernel.destination_image_allocator = lambda cb, *_: mg.TemporaryImage(cb, descriptor())
    with pytest.raises(ValueError, match="do not fit"):
        kernel.encode(command_buffer, image_of(device, counting(2, 3, 4)))
    gc.collect()
    assert [w for w in recwarn if issubclass(w.category, ResourceWarning)] == []


def test_a_temporary_batch(device, command_buffer):
    batch = mg.ImageBatch.temporary(command_buffer, descriptor(), 3)
    assert [image.read_count for image in batch] == [1, 1, 1]
    linear(device, 2.0).encode(command_buffer, images_of(device, counting(3, 2, 3, 4)), batch)
    result = linear(device).encode(command_buffer, batch, allocator=mg.DEFAULT)
    assert [image.read_count for image in batch] == [0, 0, 0]
    finish(command_buffer, *result)
    assert np.array_equal(result.to_array(), 2 * counting(3, 2, 3, 4))


def test_temporaries_need_an_open_buffer_and_a_descriptor(command_buffer):
    for arguments in [(None, descriptor()), (command_buffer, None), (command_buffer,)]:
        with pytest.raises(TypeError, match="TemporaryImage"):
            mg.TemporaryImage(*arguments)
    with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer, got NoneType"):
        mg.ImageBatch.temporary(None, descriptor(), 1)
    for count in (0, 2**40):
        with pytest.raises(ValueError, match="count must be between"):
            mg.ImageBatch.temporary(command_buffer, descriptor(), count)


# --- views of temporaries -----------------------------------------------------


def test_a_view_holds_one_read_of_its_parent(device, command_buffer):
    parent = linear(device, 2.0).encode(command_buffer, image_of(device, counting(2, 3, 8)))
    parent.read_count = 2
    view = parent.sub_image_with_feature_channel_range(4, 4)
    assert view.is_temporary
    assert (view.read_count, parent.read_count) == (1, 2)
    view.read_count = 2
    first = linear(device).encode(command_buffer, view, allocator=mg.DEFAULT)
    assert (view.read_count, parent.read_count) == (1, 2)
    second = linear(device).encode(command_buffer, view, allocator=mg.DEFAULT)
    assert (view.read_count, parent.read_count) == (0, 1)
    whole = linear(device).encode(command_buffer, parent, allocator=mg.DEFAULT)
    assert parent.read_count == 0
    finish(command_buffer, first, second, whole)
    assert np.array_equal(whole.read(), 2 * counting(2, 3, 8))
    assert np.array_equal(second.read(), whole.read()[..., 4:])


def test_a_view_and_its_parent_in_one_encode(device, command_buffer):
    """The view ends, and with it the read of its parent that it holds."""
    source = image_of(device, counting(2, 3, 4))
    parent = linear(device).encode(command_buffer, source)
    view = parent.sub_image_with_feature_channel_range(0, 4)
    result = blank(device, 2, 3, 4)
    add = mg.Add(device=device)
    for operands in ((view, parent), (parent, view)):
        with pytest.raises(ReadCountError, match="cannot lower read count 1 by 2"):
            add.encode(command_buffer, *operands, result)
        assert (view.read_count, parent.read_count) == (1, 1)
    parent.read_count = 2
    add.encode(command_buffer, view, parent, result)
    assert (view.read_count, parent.read_count) == (0, 0)
    finish(command_buffer, result)
    assert np.array_equal(result.read(), 2 * counting(2, 3, 4))


def test_a_view_of_a_view_ends_all_it_holds(device, command_buffer):
    parent = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    view = parent.sub_image_with_feature_channel_range(0, 8)
    further = view.sub_image_with_feature_channel_range(0, 8)
    result, add = blank(device, 2, 3, 8), mg.Add(device=device)
    for operands in ((further, parent), (parent, further), (further, view)):
        with pytest.raises(ReadCountError, match="cannot lower read count 1 by 2"):
            add.encode(command_buffer, *operands, result)
        assert (further.read_count, view.read_count, parent.read_count) == (1, 1, 1)
    parent.read_count = view.read_count = 2
    add.encode(command_buffer, further, view, result)
    assert (further.read_count, view.read_count, parent.read_count) == (0, 0, 1)
    spend(parent)
    finish(command_buffer, result)


def test_a_view_and_its_parent_lose_reads_together(command_buffer):
    parent = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    view = parent.sub_image_with_feature_channel_range(0, 4)
    view.read_count = 2
    for images in ([view, parent], [parent, view]):
        parent.read_count = 2  # one of them the view's
        with pytest.raises(ReadCountError, match="cannot lower read count 2 by 3"):
            mg.increment_read_count(images, -2)
        assert (view.read_count, parent.read_count) == (2, 2)
        mg.increment_read_count(images, 3)
        mg.increment_read_count(images, -3)
        assert (view.read_count, parent.read_count) == (2, 2)
    parent.read_count = 3
    assert mg.increment_read_count([view, parent], -2) == 2
    assert (view.read_count, parent.read_count) == (0, 0)


def test_a_view_dies_with_its_parent(device, command_buffer):
    parent = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    view = parent.sub_image_with_feature_channel_range(0, 4)
    spend(parent)
    with rejects(
        ReadCountError, "Neuron: this TemporaryImage has read count 0, its contents are gone"
    ):
        linear(device).encode(command_buffer, view, blank(device, 2, 3, 4))
    spend(view)


def test_views_of_a_container(device, command_buffer):
    parent = mg.TemporaryImage(command_buffer, descriptor(images=3))
    parent.read_count = 3
    views = parent.batch_representation()
    linear(device, 3.0).encode(command_buffer, images_of(device, counting(3, 2, 3, 4)), views)
    result = linear(device).encode(command_buffer, views, allocator=mg.DEFAULT)
    assert parent.read_count == 0
    finish(command_buffer, *result)
    assert np.array_equal(result.to_array(), 3 * counting(3, 2, 3, 4))


# --- the ledger of a training step --------------------------------------------


def test_ledger_of_a_training_step(device, command_buffer):
    """Convolution, ReLU and a loss, everything temporary: each count is what the table says."""
    counts = {row.item: row.count for row in tables.CONVOLUTION_RELU_READS}
    weights = mg.ArrayConvolutionDataSource(counting(5, 1, 1, 4, start=-9))
    convolution = mg.Convolution(weights, device=device)
    convolution_gradient = mg.ConvolutionGradient(weights, device=device)
    relu_descriptor = mg.NeuronDescriptor(mg.NeuronType.RELU)
    relu = mg.Neuron(relu_descriptor, device=device)
    relu_gradient = mg.NeuronGradient(relu_descriptor, device=device)
    x = image_of(device, counting(2, 3, 4))

    z, z_state = convolution.encode(command_buffer, x, with_state=True, temporary_state=True)
    z.read_count = counts["convolution output"]
    y, y_state = relu.encode(command_buffer, z, with_state=True, temporary_state=True)
    assert (z.read_count, y.read_count) == (1, counts["relu output"])
    dy = linear(device, 0.5).encode(command_buffer, y)  # the loss and its gradient
    assert (y.read_count, dy.read_count) == (0, counts["loss gradient"])
    dz = relu_gradient.encode(command_buffer, dy, z, y_state)
    assert (dy.read_count, z.read_count, y_state.read_count) == (0, 0, 0)
    assert dz.read_count == counts["relu gradient result"]
    dx = convolution_gradient.encode(command_buffer, dz, x, z_state)
    assert dz.read_count == 0
    mg.increment_read_count([dx], counts["convolution gradient result"] - 1)
    assert dx.read_count == 0
    finish(command_buffer)
    spend(*(state for state in [z_state] if state.read_count))


def test_one_count_for_each_argument(device, command_buffer):
    """The same temporary as gradient and as source is read twice."""
    source = image_of(device, counting(2, 3, 4))
    image, state = linear(device).encode(command_buffer, source, with_state=True)
    with pytest.raises(ReadCountError, match="cannot lower read count 1 by 2"):
        linear_gradient(device).encode(command_buffer, image, image, state)
    assert image.read_count == 1
    image.read_count = 2
    result = linear_gradient(device).encode(
        command_buffer, image, image, state, allocator=mg.DEFAULT
    )
    assert image.read_count == 0
    assert np.array_equal(read(command_buffer, result), counting(2, 3, 4))


def test_one_count_for_each_distinct_image_of_a_batch(device, command_buffer):
    image = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    result = linear(device).encode(command_buffer, [image, image, image], allocator=mg.DEFAULT)
    assert image.read_count == 0
    finish(command_buffer, *result)
    assert np.array_equal(result[2].read(), counting(2, 3, 4))


def test_counts_change_when_the_encode_is_called(device, command_buffer):
    image = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    linear(device).encode(command_buffer, image, blank(device, 2, 3, 4))
    assert image.read_count == 0  # nothing has run
    assert command_buffer.status == mg.CommandBufferStatus.NOT_ENQUEUED


def test_an_empty_clip_still_reads(device, command_buffer):
    kernel = linear(device, 2.0)
    image = kernel.encode(command_buffer, image_of(device, counting(2, 3, 4)))
    destination = image_of(device, counting(2, 3, 4))
    kernel.clip_rect = mg.Region((3, 0, 0), (5, 5, 1))
    kernel.encode(command_buffer, image, destination)
    assert image.read_count == 0
    assert np.array_equal(read(command_buffer, destination), counting(2, 3, 4))


FAMILIES = {
    **{name.removesuffix("Node"): case[1:] for name, case in ONE_SOURCE.items()},
    "BatchNormalization": (
        lambda device: mg.BatchNormalization(
            mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=8), device=device
        ),
        None,
    ),
    "ResizeBilinear": (lambda device: mg.ResizeBilinear(3, 5, device=device), None),
    "Slice": (lambda device: mg.Slice(device=device), None),
}


def no_room(*_):
    raise LookupError("no room")


def check_refusals(kernel, temporaries, refusals):
    """Each call raises, and neither the kernel nor what it reads notices."""
    settings, counts = kernel._settings(), [each.read_count for each in temporaries]
    for call, error, words in refusals:
        with rejects(error, words):
            call()
        assert kernel._settings() == settings
        assert [each.read_count for each in temporaries] == counts
    spend(*set(temporaries))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refused_encode_takes_no_reads_and_sets_no_offset(device, command_buffer, family):
    kernel = FAMILIES[family][0](device)
    kernel.offset = (3, 2, 0)
    x = mg.ImageBatch.temporary(command_buffer, descriptor(4, 4, 8), 2)

    def encode(*results, **options):
        return lambda: kernel.encode_batch(command_buffer, x, *results, **options)

    refusals = [
        (encode(allocator=no_room), LookupError, "no room"),
        (encode(x), ValueError, "destination shares memory with source"),
    ]
    check_refusals(kernel, x, refusals)


@pytest.mark.parametrize("family", [name for name, case in FAMILIES.items() if case[1]])
def test_a_refused_gradient_takes_no_reads_and_sets_no_offset(device, command_buffer, family):
    forward, gradient = (make(device) for make in FAMILIES[family])
    source = mg.ImageBatch.allocate(device, descriptor(4, 4, 8), 2)
    y, states = forward.encode_batch(
        command_buffer, source, with_state=True, temporary_state=True, allocator=mg.DEFAULT
    )
    x, dy = (mg.ImageBatch.temporary(command_buffer, a[0].descriptor, 2) for a in (source, y))
    gradient.primary_offset, gradient.kernel_offset_x = (3, 2, 0), 1

    def encode(*results, **options):
        return lambda: gradient.encode_batch(command_buffer, dy, x, states, *results, **options)

    refusals = [
        (encode(allocator=no_room), LookupError, "no room"),
        (encode(source), StateError, "call configure("),
        (encode(x, configure=False), ValueError, "destination shares memory with source"),
    ]
    check_refusals(gradient, [*dy, *x, *states], refusals)


def test_large_batches_of_temporaries(device, command_buffer):
    """Bookkeeping grows with the batch, not with its square."""
    import time

    def cost(count):
        batch = mg.ImageBatch.temporary(command_buffer, descriptor(1, 1, 1), count)
        mg.increment_read_count(batch, 9)
        start = time.perf_counter()
        for _ in range(10):
            linear(device).encode(command_buffer, batch, allocator=mg.DEFAULT)
        return time.perf_counter() - start

    small = min(cost(100) for _ in range(3))
    large = min(cost(3200) for _ in range(3))
    assert large < 32 * small * 8
