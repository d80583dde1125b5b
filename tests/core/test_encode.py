"""Encodes: who makes the destination, which states go with it, and what every kernel refuses."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    blank,
    counting,
    descriptor,
    finish,
    image_of,
    images_of,
    linear,
    linear_gradient,
    read,
    spend,
)
from tests.rejects import rejects

StateError, ReadCountError = mg.errors.StateError, mg.errors.ReadCountError


@pytest.fixture
def command_buffer(queue):
    return queue.command_buffer()


# --- explicit and created destinations ----------------------------------------


def test_a_given_destination_is_returned(device, command_buffer):
    source, destination = image_of(device, counting(2, 3, 4)), blank(device, 2, 3, 4)
    assert linear(device, 2.0).encode(command_buffer, source, destination) is destination
    assert np.array_equal(read(command_buffer, destination), 2 * counting(2, 3, 4))


def test_a_given_destination_keeps_the_offset(device, command_buffer):
    kernel = linear(device)
    kernel.offset = (1, 0, 0)
    destination = blank(device, 2, 3, 4)
    kernel.encode(command_buffer, image_of(device, counting(2, 3, 4)), destination)
    assert kernel.offset == mg.Offset(1, 0, 0)
    assert np.array_equal(read(command_buffer, destination)[:, :2], counting(2, 3, 4)[:, 1:])


def test_a_created_destination_replaces_the_offset(device, command_buffer):
    kernel = linear(device)
    kernel.offset = (1, 0, 0)
    result = kernel.encode(
        command_buffer, image_of(device, counting(2, 3, 4)), allocator=mg.DEFAULT
    )
    assert kernel.offset == mg.Offset(0, 0, 0)
    assert np.array_equal(read(command_buffer, result), counting(2, 3, 4))


def test_a_created_destination_is_temporary_unless_asked_otherwise(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    kernel = linear(device)
    assert kernel.destination_image_allocator is mg.TEMPORARY
    temporary = kernel.encode(command_buffer, source)
    assert temporary.is_temporary
    spend(temporary)
    kernel.destination_image_allocator = mg.DEFAULT
    assert not kernel.encode(command_buffer, source).is_temporary
    temporary = kernel.encode(command_buffer, source, allocator=mg.TEMPORARY)
    assert temporary.is_temporary
    assert kernel.destination_image_allocator is mg.DEFAULT
    spend(temporary)
    finish(command_buffer)


def test_the_clip_rectangle_applies_to_created_destinations(device, command_buffer):
    kernel = linear(device, 2.0)
    kernel.clip_rect = mg.Region((1, 0), (2, 1))
    source = image_of(device, counting(2, 3, 4))
    result = read(command_buffer, kernel.encode(command_buffer, source, allocator=mg.DEFAULT))
    expected = np.zeros((2, 3, 4), np.float32)
    expected[0, 1:] = 2 * counting(2, 3, 4)[0, :2]
    assert np.array_equal(result, expected)


def test_results_have_the_sources_format(device, command_buffer):
    for channel_format in ("unorm8", "unorm16", "float16", "float32"):
        source = blank(device, 2, 3, 4, channel_format=channel_format)
        result, state = linear(device).encode(
            command_buffer, source, with_state=True, allocator=mg.DEFAULT
        )
        assert result.feature_channel_format == source.feature_channel_format
        gradient = blank(device, 2, 3, 4, channel_format="float16")
        result = linear_gradient(device).encode(
            command_buffer, gradient, source, state, allocator=mg.DEFAULT
        )
        assert result.feature_channel_format == mg.ChannelFormat.FLOAT16
    finish(command_buffer)


# --- allocators ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["unary", "binary", "gradient"])
def test_an_allocator_may_set_another(device, queue, kind):
    """The kernel's own goes while it is called, once for each image of a batch."""
    images = images_of(device, [counting(2, 3, 4)] * 16)
    absolute = linear(device)
    _, states = absolute.encode_batch(
        queue.command_buffer(), images, with_state=True, allocator=mg.DEFAULT
    )
    kernel, operands = {
        "unary": (absolute, (images,)),
        "binary": (mg.Add(device=device), (images, images)),
        "gradient": (linear_gradient(device), (images, images, states)),
    }[kind]
    for _ in range(20):
        made = []

        def allocate(_, descriptor, kernel, made=made):
            kernel.destination_image_allocator = mg.DEFAULT
            made.append(mg.Image(device, descriptor))
            return made[-1]

        kernel.destination_image_allocator = allocate
        del allocate
        command_buffer = queue.command_buffer()
        results = kernel.encode_batch(command_buffer, *operands)
        assert list(results) == made
        assert kernel.destination_image_allocator is mg.DEFAULT
        command_buffer.commit()
        command_buffer.wait_until_completed()


@pytest.mark.parametrize("end", ["commit", "commit_and_continue"])
@pytest.mark.parametrize("kind", ["unary", "binary", "gradient"])
def test_an_allocator_may_not_commit(device, queue, kind, end):
    """What is encoded after a commit would be lost, or run while it is being recorded."""
    image = image_of(device, counting(2, 3, 4))
    _, state = forward(device, queue.command_buffer(), image)
    kernel, operands = {
        "unary": (linear(device), (image,)),
        "binary": (mg.Add(device=device), (image, image)),
        "gradient": (linear_gradient(device, 2.0), (image, image, state)),
    }[kind]
    command_buffer = queue.command_buffer()

    def allocate(_, descriptor, _kernel):
        getattr(command_buffer, end)()
        return mg.Image(device, descriptor)

    if end == "commit":
        with rejects(mg.errors.CommandBufferError, "the command buffer is already"):
            kernel.encode(command_buffer, *operands, allocator=allocate)
    else:  # a new part of the buffer takes what comes
        result = kernel.encode(command_buffer, *operands, allocator=allocate)
        finish(command_buffer, result)
        assert result.read().all()


@pytest.mark.parametrize("kind", ["unary", "binary", "gradient"])
def test_channels_that_a_policy_adds_are_zero(device, queue, kind):
    class Wide(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, _sources, _states, _kernel, suggested):
            suggested.feature_channels = 12
            return suggested

    image = image_of(device, counting(64, 64, 4))
    _, state = forward(device, queue.command_buffer(), image)
    kernel, operands = {
        "unary": (linear(device), (image,)),
        "binary": (mg.Add(device=device), (image, image)),
        "gradient": (linear_gradient(device), (image, image, state)),
    }[kind]
    kernel.padding = Wide()
    for _ in range(2):  # the second has memory that the first gave back
        command_buffer = queue.command_buffer()
        result = kernel.encode(command_buffer, *operands, allocator=mg.DEFAULT)
        texels = read(command_buffer, result)
        assert texels[..., :4].all()
        assert not texels[..., 4:].any()
        result.write(np.full((64, 64, 12), 7, np.float32))
        del result


def test_an_allocator_of_ones_own(device, command_buffer):
    calls = []

    def allocate(cb, d, kernel):
        calls.append((cb, d.copy(), kernel))
        d.channel_format = mg.ChannelFormat.FLOAT32
        return mg.Image(device, d)

    kernel = linear(device, 2.0)
    kernel.destination_image_allocator = allocate
    assert kernel.destination_image_allocator is allocate
    source = image_of(device, counting(2, 3, 4, dtype=np.float16))
    result = kernel.encode(command_buffer, source)
    batch = kernel.encode(command_buffer, [source, source])
    assert len(calls) == 3  # a batch is as many calls
    for cb, d, seen in calls:
        assert cb is command_buffer
        assert seen is kernel
        assert d == descriptor(channel_format="float16")
    finish(command_buffer, result, *batch)
    for image in (result, *batch):
        assert image.read().dtype == np.float32
        assert np.array_equal(image.read(), 2 * counting(2, 3, 4))
    calls.clear()  # the kernel holds its allocator, and this list the kernel


def test_given_images_in_place_of_an_allocator(device, command_buffer):
    """A batch is the place of the result, and everything else is as when it is created."""
    kernel = linear(device, 2.0)
    kernel.offset = (1, 1, 0)
    places = mg.ImageBatch.allocate(device, descriptor(channel_format="float16"), 2)
    result = kernel.encode(
        command_buffer, images_of(device, counting(2, 2, 3, 4)), allocator=places
    )
    assert list(result) == list(places)
    assert kernel.offset == mg.Offset(0, 0, 0)
    finish(command_buffer, *result)
    assert np.array_equal(places.to_array(), 2 * counting(2, 2, 3, 4))
    for wrong in (descriptor(4), descriptor(height=3), descriptor(channels=5)):
        other = mg.ImageBatch.allocate(device, wrong, 2)
        with pytest.raises(
            ValueError, match=r"Neuron: out must have shape \(2, 2, 3, 4\), got \(2,"
        ):
            kernel.encode(
                queue_of(command_buffer), images_of(device, counting(2, 2, 3, 4)), allocator=other
            )
    with pytest.raises(ValueError, match=r"must have shape \(1, 2, 3, 4\), got \(2, 2, 3, 4\)"):
        kernel.encode(
            queue_of(command_buffer), image_of(device, counting(2, 3, 4)), allocator=places
        )


def queue_of(command_buffer):
    """Another command buffer of the same queue."""
    return command_buffer.queue.command_buffer()


FAULTY_ALLOCATORS = [
    (lambda *_: None, TypeError, "destination_image_allocator must return an Image, got NoneType"),
    (lambda *_: 3, TypeError, "must return an Image, got int"),
    (lambda: None, TypeError, "takes 0 positional arguments but 3 were given"),
    (lambda *_: 1 // 0, ZeroDivisionError, "division"),
]


@pytest.mark.parametrize(("allocate", "error", "words"), FAULTY_ALLOCATORS, ids=range(4))
def test_faulty_allocators(device, command_buffer, allocate, error, words):
    kernel = linear(device)
    kernel.offset = (3, 3, 0)
    kernel.destination_image_allocator = allocate
    temporary = mg.TemporaryImage(command_buffer, descriptor())
    with pytest.raises(error, match=words):
        kernel.encode(command_buffer, temporary)
    assert kernel.offset == mg.Offset(3, 3, 0)
    assert temporary.read_count == 1
    spend(temporary)


def test_allocators_that_return_the_wrong_image(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    kernel = linear(device)
    other_buffer = queue_of(command_buffer)
    elsewhere = mg.TemporaryImage(other_buffer, descriptor())
    same = blank(device, 2, 3, 4)
    for image, sources, words in [
        (source, source, "destination shares memory with source"),
        (elsewhere, source, "belongs to another command buffer"),
        (
            same,
            [source, image_of(device, counting(2, 3, 4))],
            "destination holds the same image twice",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            kernel.encode(command_buffer, sources, allocator=lambda *_, image=image: image)
    spend(elsewhere)
    finish(command_buffer)


@pytest.mark.parametrize("wrong", [3, "DEFAULT", [], mg.ImageDescriptor()])
def test_allocators_of_wrong_kinds(device, command_buffer, wrong):
    source = image_of(device, counting(2, 3, 4))
    for kernel in (linear(device), linear_gradient(device)):
        with pytest.raises(TypeError, match="must be DEFAULT, TEMPORARY or a callable"):
            kernel.destination_image_allocator = wrong
        with pytest.raises(TypeError, match="a callable, got ImageBatch"):
            kernel.destination_image_allocator = mg.ImageBatch.allocate(
                device, source.descriptor, 1
            )
        with pytest.raises(TypeError, match="must not be None"):
            kernel.destination_image_allocator = None
        assert kernel.destination_image_allocator is mg.TEMPORARY
    with pytest.raises(TypeError, match="must be DEFAULT, TEMPORARY or a callable"):
        linear(device).encode(command_buffer, source, allocator=wrong)


def test_an_allocator_is_released_with_its_kernel(device):
    import gc
    import weakref

    class Allocator:
        def __call__(self, *_):
            return None

    allocator = Allocator()
    kernel = linear(device)
    kernel.destination_image_allocator = allocator
    seen = weakref.ref(allocator)
    del allocator
    gc.collect()
    assert seen() is not None
    del kernel
    gc.collect()
    assert seen() is None


# --- states -------------------------------------------------------------------


def test_with_state(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    result, state = linear(device).encode(
        command_buffer, source, with_state=True, allocator=mg.DEFAULT
    )
    assert isinstance(result, mg.Image)
    assert isinstance(state, mg.GradientState)
    batch, states = linear(device).encode(
        command_buffer,
        [source, source],
        with_state=True,
        temporary_state=True,
        allocator=mg.DEFAULT,
    )
    assert len(batch) == 2
    assert len(set(states)) == 2
    assert all(state.is_temporary for state in states)
    spend(*states)
    finish(command_buffer)


def test_given_states_belong_to_given_destinations(device, command_buffer):
    source, destination = blank(device, 2, 3, 4), blank(device, 2, 3, 4)
    kernel = linear(device)
    state = kernel.result_state(source, destination)
    kernel.encode(command_buffer, source, destination, destination_state=state)
    with pytest.raises(TypeError, match="destination_state without destination"):
        kernel.encode(command_buffer, source, destination_state=state)
    with pytest.raises(ValueError, match="with_state creates a state for a created destination"):
        kernel.encode(command_buffer, source, destination, with_state=True)
    finish(command_buffer)


CHANGES = {
    "offset": mg.Offset(1, 0, 0),
    "clip_rect": mg.Region((0, 0), (1, 1)),
    "edge_mode": mg.EdgeMode.CLAMP,
    "source_feature_channel_offset": 4,
    "source_feature_channel_max_count": 4,
    "destination_feature_channel_offset": 4,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_knows_its_kernels_properties(device, command_buffer, name):
    source, destination = image_of(device, counting(2, 3, 8)), blank(device, 2, 3, 12)
    kernel = linear(device)
    state = kernel.result_state(source, destination)
    before = getattr(kernel, name)
    setattr(kernel, name, CHANGES[name])
    with pytest.raises(StateError, match=r"properties changed after result_state\(\)"):
        kernel.encode(command_buffer, source, destination, destination_state=state)
    setattr(kernel, name, before)
    kernel.encode(command_buffer, source, destination, destination_state=state)
    finish(command_buffer)


def test_states_of_other_kernels_and_sources(device, command_buffer):
    source, destination = blank(device, 2, 3, 4), blank(device, 2, 3, 4)
    kernel = linear(device)
    pooling = mg.PoolingMax(1, 1, device=device)
    with pytest.raises(StateError, match="but it was made by PoolingMax"):
        kernel.encode(
            command_buffer,
            source,
            destination,
            destination_state=pooling.result_state(source, destination),
        )
    small = blank(device, 1, 2, 4)
    with pytest.raises(ValueError, match="was made for a source of 2x1x4, not 3x2x4"):
        kernel.encode(
            command_buffer, source, destination, destination_state=kernel.result_state(small, small)
        )
    with pytest.raises(TypeError, match="must come from this kernel's result_state"):
        kernel.encode(command_buffer, source, destination, destination_state=mg.State(device, 16))
    states = kernel.result_state_batch([source, small], [destination, small])
    with pytest.raises(ValueError, match="destination_states has 2 entries, expected 1"):
        kernel.encode(command_buffer, source, destination, destination_state=states)
    for wrong, words in (
        (3, "must be a State or a list of states, got int"),
        ("state", "must be a State or a list of states, got str"),
        ([None], "must hold states, got NoneType"),
        ([source], "must hold states, got Image"),
    ):
        with rejects(TypeError, f"Neuron: destination_state {words}"):
            kernel.encode(command_buffer, source, destination, destination_state=wrong)
    finish(command_buffer)


# --- gradients ----------------------------------------------------------------


def forward(device, command_buffer, source):
    """A forward encode: its result and state."""
    return linear(device, 2.0).encode(command_buffer, source, with_state=True, allocator=mg.DEFAULT)


def test_a_gradient_into_a_given_destination_wants_its_configuration(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    y, state = forward(device, command_buffer, source)
    kernel, destination = linear_gradient(device, 2.0), blank(device, 2, 3, 4)
    with pytest.raises(StateError, match=r"call configure\(source_gradient, source, state\) first"):
        kernel.encode(command_buffer, y, source, state, destination)
    kernel.encode(command_buffer, y, source, state, destination, configure=False)
    kernel.configure(y, source, state)
    assert kernel.encode(command_buffer, y, source, state, destination) is destination
    assert np.array_equal(read(command_buffer, destination), 4 * counting(2, 3, 4))


def test_a_configuration_is_for_one_state(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    y, first = forward(device, command_buffer, source)
    _, second = forward(device, command_buffer, source)
    kernel, destination = linear_gradient(device, 2.0), blank(device, 2, 3, 4)
    words = "NeuronGradient: an encode into a given destination uses the kernel's offsets"
    kernel.configure(y, source, first)
    with rejects(StateError, words):
        kernel.encode(command_buffer, y, source, second, destination)
    kernel.encode(command_buffer, y, source, second, allocator=mg.DEFAULT)  # is configured by this
    with rejects(StateError, words):
        kernel.encode(command_buffer, y, source, first, destination)
    kernel.encode(command_buffer, y, source, second, destination)
    kernel.destination_descriptor([y, source], [first])
    kernel.encode(command_buffer, y, source, first, destination)
    finish(command_buffer)


def test_configure_copies_the_forward_configuration(device):
    source, y = blank(device, 2, 3, 12), blank(device, 2, 3, 4)
    kernel = linear(device)
    kernel.edge_mode = mg.EdgeMode.CLAMP
    kernel.source_feature_channel_offset = 4
    kernel.source_feature_channel_max_count = 4
    state = kernel.result_state(source, y)
    gradient = linear_gradient(device)
    result = gradient.destination_descriptor([y, source], [state])
    assert (result.width, result.height, result.feature_channels) == (3, 2, 4)
    assert gradient.secondary_edge_mode == mg.EdgeMode.CLAMP
    assert gradient.secondary_source_feature_channel_offset == 4
    assert gradient.secondary_source_feature_channel_max_count == 4
    gradient.destination_feature_channel_offset = 8
    assert gradient.destination_descriptor([y, source], [state]).feature_channels == 12


def test_one_state_stands_for_a_batch(device, command_buffer):
    sources = images_of(device, counting(3, 2, 3, 4))
    y, states = linear(device, 2.0).encode(
        command_buffer, sources, with_state=True, allocator=mg.DEFAULT
    )
    results = [
        linear_gradient(device, 2.0).encode(command_buffer, y, sources, state, allocator=mg.DEFAULT)
        for state in (states, states[0], (states[0],))
    ]
    finish(command_buffer, *(image for result in results for image in result))
    for result in results:
        assert np.array_equal(result.to_array(), 4 * counting(3, 2, 3, 4))


def test_gradient_arguments(device, command_buffer):
    source = image_of(device, counting(2, 3, 4))
    y, state = forward(device, command_buffer, source)
    kernel = linear_gradient(device)
    pooling_state = mg.PoolingMax(1, 1, device=device).result_state(source, y)
    cases = [
        (
            (y, source, None),
            ValueError,
            "state has 0 entries, expected 1, one an image; the forward kernel returns "
            "them with with_state=True",
        ),
        ((y, source, 3), TypeError, "NeuronGradient: state must be a State or a list of states"),
        ((y, source, [None]), TypeError, "state must hold states, got NoneType"),
        ((y, source, mg.State(device, 4)), TypeError, "state must come from Neuron, got State"),
        (
            (y, source, pooling_state),
            TypeError,
            "must come from Neuron, but it was made by PoolingMax",
        ),
        ((y, source, [state, state]), ValueError, "state has 2 entries, expected 1"),
        ((y, [source], state), TypeError, "must both be single images or both be batches"),
        (
            ([y], [source, source], state),
            ValueError,
            "source_gradient has 1 images, but source has 2",
        ),
        (
            (y, blank(device, 3, 3, 4), state),
            ValueError,
            "source is 3x3, but the state was made for",
        ),
        (
            (blank(device, 2, 4, 4), source, state),
            ValueError,
            "source_gradient is 4x2, but source is",
        ),
        ((blank(device, 2, 3, 3), source, state), ValueError, "source_gradient offers 3 channels"),
        ((y, blank(device, 2, 3, 2), state), ValueError, "source offers 2 channels from offset 0"),
        ((None, source, state), TypeError, "source_gradient must be an Image"),
        ((y, None, state), TypeError, "source must be an Image"),
        (([], [], state), ValueError, "source_gradient is an empty batch"),
    ]
    before = mg.Offset(1, 2, 0)
    for arguments, error, words in cases:
        kernel.primary_offset = before
        with pytest.raises(error, match=re.escape(words)):
            kernel.encode(command_buffer, *arguments)
        assert kernel.primary_offset == before
    for sources, states, words in [
        ([y], [state], "takes [gradient, source], got 1 images"),
        ([y, source], [], "takes one state, got 0"),
        ([y, source], [state, state], "takes one state, got 2"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            kernel.destination_descriptor(sources, states)
    with pytest.raises(ValueError, match="configure takes a gradient, a source and a state"):
        kernel.configure([], source, state)
    finish(command_buffer)


def test_states_of_a_batch_come_from_one_encode(device, command_buffer):
    sources = images_of(device, counting(2, 2, 3, 4))
    y, states = linear(device).encode(
        command_buffer, sources, with_state=True, allocator=mg.DEFAULT
    )
    clamping = linear(device)
    clamping.edge_mode = mg.EdgeMode.CLAMP
    other = clamping.result_state(sources[0], y[0])
    with pytest.raises(ValueError, match="the states of a batch must come from one encode"):
        linear_gradient(device).encode(command_buffer, y, sources, [states[0], other])
    finish(command_buffer)


def test_gradient_kernels_have_no_encode_without_a_state(device, command_buffer):
    image = blank(device, 2, 3, 4)
    with pytest.raises(TypeError, match=r"state is missing, which must be a State or "):
        linear_gradient(device).encode(command_buffer, image, image)


# --- what is refused, and leaves everything as it was -------------------------


def refused(device, command_buffer):
    """Arguments of an encode with a given destination, the error, and its words."""
    source, destination = image_of(device, counting(2, 3, 8)), blank(device, 2, 3, 8)
    container = image_of(device, counting(3, 2, 3, 8))
    spent = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    spend(spent)
    elsewhere = mg.TemporaryImage(queue_of(command_buffer), descriptor(channels=8))
    view = source.sub_image_with_feature_channel_range(0, 4)
    other_view = source.sub_image_with_feature_channel_range(4, 4)
    part, other_part, _ = container.batch_representation()
    yield elsewhere  # for the caller to release
    yield from [
        ((source, source), ValueError, "destination shares memory with source"),
        ((view, source), ValueError, "destination shares memory with source"),
        ((view, other_view), ValueError, "destination shares memory with source"),
        ((part, other_part), ValueError, "destination shares memory with source"),
        (([source, destination], [blank(device, 2, 3, 8), source]), ValueError, "shares memory"),
        (([source], [destination, blank(device, 2, 3, 8)]), ValueError, "source has 1 images, but"),
        (([], []), ValueError, "source is an empty batch"),
        (
            ([source, view], [destination] * 2),
            ValueError,
            "source mixes images of 3x2x8 float32 and 3x2x4",
        ),
        (
            ([source, blank(device, 2, 3, 8, channel_format="float16")], [destination] * 2),
            ValueError,
            "source mixes images of 3x2x8 float32 and 3x2x8 float16",
        ),
        (
            ([source, source], [destination, blank(device, 3, 3, 8)]),
            ValueError,
            "destination mixes",
        ),
        (
            ([source, source], [destination] * 2),
            ValueError,
            "destination holds the same image twice",
        ),
        (([container], [destination]), ValueError, "holds an image with number_of_images 3"),
        (([source], [container]), ValueError, "destination holds an image with number_of_images 3"),
        ((source, container), ValueError, "asks for 3 images of source from 0 on, but it has 1"),
        ((spent, destination), ReadCountError, "has read count 0, its contents are gone"),
        ((source, spent), ReadCountError, "has read count 0"),
        ((elsewhere, destination), ValueError, "belongs to another command buffer"),
        ((source, elsewhere), ValueError, "belongs to another command buffer"),
        ((source, view), ValueError, "shares memory"),
        (
            (source, blank(device, 2, 3, 4)),
            ValueError,
            "channels 0 to 8 do not fit a destination of 4",
        ),
        ((source, [destination]), TypeError, "must both be single images or both be batches"),
        (([source], destination), TypeError, "must both be single images or both be batches"),
        (
            (None, destination),
            TypeError,
            "Neuron: source must be an Image, an ImageBatch or a list of images",
        ),
        ((3, destination), TypeError, "got int"),
        (([source, None], [destination] * 2), TypeError, "source must hold images, got NoneType"),
        ((source, 3), TypeError, "destination must be an Image, an ImageBatch or a list"),
        (
            (np.zeros((2, 3, 8), np.float32), destination),
            TypeError,
            "got ndarray; ImageBatch.from_array() makes images of an array",
        ),
        ((descriptor(), destination), TypeError, "got ImageDescriptor"),
        (
            ([mg.ImageBatch([source])], [destination]),
            TypeError,
            "source must hold images, got ImageBatch; a batch goes by itself, not in a list",
        ),
    ]


def test_refusals_leave_everything_as_it_was(device, command_buffer):
    """Type and words of every refusal; kernel, counts and command buffer do not notice."""
    kernel = linear(device, 2.0)
    kernel.offset = (1, 0, 0)
    temporary = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 8)))
    names = [name for name in CHANGES if name != "padding"]
    before = {name: getattr(kernel, name) for name in names}
    cases = refused(device, command_buffer)
    elsewhere = next(cases)
    for arguments, error, words in cases:
        with pytest.raises(error, match=re.escape(words)) as caught:
            kernel.encode(command_buffer, *arguments)
        if error is not TypeError:
            assert str(caught.value).startswith("Neuron: ")
        assert {name: getattr(kernel, name) for name in names} == before
        assert (temporary.read_count, elsewhere.read_count) == (1, 1)
        assert command_buffer.status == mg.CommandBufferStatus.NOT_ENQUEUED
    spend(elsewhere)
    result = linear(device).encode(command_buffer, temporary, allocator=mg.DEFAULT)
    assert np.array_equal(read(command_buffer, result), counting(2, 3, 8))


def test_command_buffers_only(device):
    image = blank(device, 2, 3, 4)
    for wrong in (None, 3, device, image):
        for kernel, arguments in [
            (linear(device), (image,)),
            (linear_gradient(device), (image, image, mg.State(device, 4))),
        ]:
            with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer"):
                kernel.encode(wrong, *arguments)
            with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer"):
                kernel.encode_batch(wrong, *arguments)


def test_containers_have_no_created_destination(device, command_buffer):
    container = image_of(device, counting(3, 2, 3, 4))
    with pytest.raises(ValueError, match="takes images that hold one image"):
        linear(device).encode(command_buffer, container)
    state = linear(device).result_state(container, blank(device, 3, 2, 3, 4))
    with pytest.raises(ValueError, match="takes images that hold one image"):
        linear_gradient(device).encode(command_buffer, container, container, state)


def test_a_container_through_a_gradient(device, command_buffer):
    container = image_of(device, counting(3, 2, 3, 4))
    y, destination = blank(device, 3, 2, 3, 4), blank(device, 3, 2, 3, 4)
    kernel = linear(device, 2.0)
    state = kernel.result_state(container, y)
    kernel.encode(command_buffer, container, y, destination_state=state)
    gradient = linear_gradient(device, 2.0)
    gradient.configure(y, container, state)
    gradient.encode(command_buffer, y, container, state, destination)
    assert np.array_equal(read(command_buffer, destination), 4 * counting(3, 2, 3, 4))


def test_kernels_are_not_made_without_a_class():
    for cls in (mg.Kernel, mg.UnaryKernel, mg.BinaryKernel, mg.GradientKernel):
        with pytest.raises(TypeError, match="No constructor defined"):
            cls()


def test_kernel_options(device):
    for kernel in (linear(device), linear_gradient(device)):
        assert kernel.options == mg.KernelOptions.NONE
        kernel.options = mg.KernelOptions.ALLOW_REDUCED_PRECISION | mg.KernelOptions.VERBOSE
        assert kernel.options == 18
        for wrong in (-1, 32, 2**62):
            with pytest.raises(ValueError, match="options must be a combination of KernelOptions"):
                kernel.options = wrong
        assert kernel.options == 18
        kernel.label = "second layer"
        assert kernel.label == "second layer"


def test_skipping_apples_validation_skips_none_of_ours(device, command_buffer):
    kernel = linear(device)
    kernel.options = mg.KernelOptions.SKIP_API_VALIDATION
    image = blank(device, 2, 3, 4)
    with pytest.raises(ValueError, match="shares memory"):
        kernel.encode(command_buffer, image, image)


def test_devices_of_kernels():
    for wrong in (3, 1.0, ["cpu"]):
        with pytest.raises(TypeError, match=r"^Neuron: device must be a Device, a kind"):
            mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=wrong)
    with pytest.raises(ValueError, match="kind must be 'cpu' or 'metal', got 'gpu'"):
        mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device="gpu")


def test_devices(device):
    assert mg.Device(device.kind) == device
    assert hash(mg.Device(device.kind)) == hash(device)
    assert device != 3
    assert device.kind in ("cpu", "metal")
    assert repr(device) == f"Device('{device.kind}': {device.name})"
    assert mg.Device().kind in ("cpu", "metal")
    for wrong in (None, 3):
        with pytest.raises(TypeError, match="kind must be a str"):
            mg.Device(wrong)


def test_objects_of_two_devices():
    """Where a build has both devices; one process may use them side by side, never together."""
    try:
        devices = mg.Device("cpu"), mg.Device("metal")
    except mg.errors.DeviceError:
        with pytest.raises(mg.errors.DeviceError, match=r"no Metal device|no GPU"):
            mg.Device("metal")
        pytest.skip("needs an object of a device that is not the CPU")
    for here, there in (devices, devices[::-1]):
        command_buffer = here.command_queue().command_buffer()
        source, destination = blank(here, 2, 3, 4), blank(here, 2, 3, 4)
        foreign = blank(there, 2, 3, 4)
        for arguments in [
            (foreign, destination),
            (source, foreign),
            ([source, foreign], [destination] * 2),
        ]:
            with pytest.raises(ValueError, match="is on another device"):
                linear(here).encode(command_buffer, *arguments)
        with pytest.raises(ValueError, match="the command buffer is on another device"):
            linear(there).encode(command_buffer, foreign, blank(there, 2, 3, 4))
        with pytest.raises(ValueError, match="another device"):
            foreign.synchronize(command_buffer)
        with pytest.raises(ValueError, match="another device"):
            mg.State(there, 16).synchronize(command_buffer)
        with pytest.raises(ValueError, match="predicate is on another device"):
            command_buffer.predicate = mg.Predicate(mg.Buffer(there, 4))
        with pytest.raises(ValueError, match="the buffer is on another device"):
            mg.State(here, mg.Buffer(there, 4))
        with pytest.raises(ValueError, match="kernel's device"):
            linear(here).result_state(foreign, destination)
        with pytest.raises(ValueError, match="the command buffer is on another device"):
            linear(there).temporary_result_state(command_buffer, foreign, foreign)


def normalization_pair(device):
    source = mg.ArrayGroupNormalizationDataSource(np.ones(8), np.zeros(8), number_of_groups=2)
    return (
        mg.GroupNormalization(source, device=device),
        mg.GroupNormalizationGradient(device=device),
    )


# Forward kernels and their gradients, and what of the forward kernel is changed.
CHANGED = {
    "Pad": (
        lambda device: (mg.Pad((1, 1, 2), (1, 1, 2), device=device), mg.PadGradient(device=device)),
        {"padding_size_before": (0, 1, 1), "edge_mode": mg.EdgeMode.CLAMP},
    ),
    "GramMatrixCalculation": (
        lambda device: (
            mg.GramMatrixCalculation(device=device),
            mg.GramMatrixCalculationGradient(device=device),
        ),
        {"alpha": 3.0},
    ),
    "GroupNormalization": (normalization_pair, {"epsilon": 9.0}),
    "PoolingAverage": (
        lambda device: (
            mg.PoolingAverage(3, 3, 1, 1, device=device),
            mg.PoolingAverageGradient(3, 3, 1, 1, device=device),
        ),
        {"zero_pad_size_x": 1, "edge_mode": mg.EdgeMode.CLAMP},
    ),
    "CrossChannelNormalization": (
        lambda device: (
            mg.CrossChannelNormalization(5, device=device),
            mg.CrossChannelNormalizationGradient(5, device=device),
        ),
        {"alpha": 4.0, "beta": 1.0, "delta": 2.0},
    ),
}


@pytest.mark.parametrize(("pair", "changes"), CHANGED.values(), ids=CHANGED)
def test_a_state_is_of_the_kernel_as_it_was(device, queue, pair, changes, rng):
    """Another encode of the forward kernel with other settings is nothing to the gradient."""
    x = rng.standard_normal((4, 4, 8), dtype=np.float32)

    def gradient_of(changed):
        forward, gradient = pair(device)
        source = image_of(device, x)
        command_buffer = queue.command_buffer()
        result, state = forward.encode(
            command_buffer, source, with_state=True, allocator=mg.DEFAULT
        )
        for name, value in changed.items():
            setattr(forward, name, value)
        other = forward.encode(command_buffer, source, allocator=mg.DEFAULT)
        incoming = image_of(device, counting(result.height, result.width, result.feature_channels))
        found = gradient.encode(command_buffer, incoming, source, state, allocator=mg.DEFAULT)
        finish(command_buffer, result, other, found)
        return result.read(), other.read(), found.read()

    result, same, expected = gradient_of({})
    assert np.array_equal(result, same)
    result, other, found = gradient_of(changes)
    assert not np.array_equal(result, other)  # it does count for the forward kernel
    assert np.array_equal(found, expected)


# --- settings that gradients of single pixels refuse ----------------------------


POINTWISE = {
    "neuron": (
        lambda d: mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.SIGMOID), device=d),
        lambda d: mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.SIGMOID), device=d),
    ),
    "softmax": (lambda d: mg.SoftMax(device=d), lambda d: mg.SoftMaxGradient(device=d)),
    "dropout": (
        lambda d: mg.Dropout(0.5, seed=1, device=d),
        lambda d: mg.DropoutGradient(0.5, seed=1, device=d),
    ),
}
REFUSED = {
    "kernel_offset_x": "kernel_offset_x and kernel_offset_y must be 0, got (2, 0)",
    "kernel_offset_y": "kernel_offset_x and kernel_offset_y must be 0, got (0, 2)",
    "primary_stride_in_pixels_x": "primary_stride_in_pixels must be (1, 1), got (2, 1)",
    "secondary_stride_in_pixels_y": "secondary_stride_in_pixels must be (1, 1), got (1, 2)",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(("forward", "backward"), POINTWISE.values(), ids=POINTWISE)
def test_settings_that_gradients_of_pixels_refuse(device, command_buffer, forward, backward, name):
    source = images_of(device, counting(2, 2, 3, 4))
    kernel = backward(device)
    y, states = forward(device).encode(
        command_buffer, source, with_state=True, allocator=mg.DEFAULT
    )
    kernel.configure(y, y, states)
    setattr(kernel, name, 2)
    result = images_of(device, np.zeros((2, 2, 3, 4), np.float32))
    with pytest.raises(ValueError, match=re.escape(REFUSED[name])):
        kernel.encode(command_buffer, y, y, states, result)
    finish(command_buffer)
