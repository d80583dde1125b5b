"""Kernels with two sources: what every one of them does and refuses, whatever it computes.

A sum stands for all of them: it reads both sources, and has a state.
"""

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
    read,
    spend,
)

StateError, ReadCountError = mg.errors.StateError, mg.errors.ReadCountError
A = counting(2, 3, 4)
B = counting(2, 3, 4, start=100)
SETTINGS = (
    *(
        f"{side}_{name}"
        for side in ("primary", "secondary")
        for name in (
            "offset",
            "edge_mode",
            "source_feature_channel_offset",
            "source_feature_channel_max_count",
            "stride_in_pixels_x",
            "stride_in_pixels_y",
        )
    ),
    "clip_rect",
    "destination_feature_channel_offset",
)


@pytest.fixture
def command_buffer(queue):
    return queue.command_buffer()


def add(device):
    """Kernel that adds its sources."""
    return mg.Add(device=device)


def settings_of(kernel):
    """Every property that an encode uses."""
    return {name: getattr(kernel, name) for name in SETTINGS}


# --- encodes ------------------------------------------------------------------


def test_a_given_destination_is_returned(device, command_buffer):
    sources, destination = images_of(device, [A, B]), blank(device, 2, 3, 4)
    assert add(device).encode(command_buffer, *sources, destination) is destination
    assert np.array_equal(read(command_buffer, destination), A + B)


def test_a_given_destination_keeps_the_offsets(device, command_buffer):
    kernel = add(device)
    kernel.primary_offset, kernel.secondary_offset = (1, 0, 0), (0, 1, 0)
    destination = blank(device, 2, 3, 4)
    kernel.encode(command_buffer, *images_of(device, [A, B]), destination)
    assert kernel.primary_offset == mg.Offset(1, 0, 0)
    assert kernel.secondary_offset == mg.Offset(0, 1, 0)
    expected = np.zeros_like(A)
    expected[:, :2] += A[:, 1:]
    expected[:1] += B[1:]
    assert np.array_equal(read(command_buffer, destination), expected)


def test_a_created_destination_replaces_the_offsets(device, command_buffer):
    kernel = add(device)
    kernel.primary_offset, kernel.secondary_offset = (1, 5, 0), (-3, 1, 0)
    result = kernel.encode(command_buffer, *images_of(device, [A, B]), allocator=mg.DEFAULT)
    assert kernel.primary_offset == kernel.secondary_offset == mg.Offset()
    assert np.array_equal(read(command_buffer, result), A + B)


def test_a_batch_is_its_images_one_by_one(device, command_buffer):
    kernel = add(device)
    first, second = counting(3, 2, 3, 4), counting(3, 2, 3, 4, start=50)
    sources = images_of(device, first), images_of(device, second)
    whole = kernel.encode(command_buffer, *sources, allocator=mg.DEFAULT)
    again = kernel.encode_batch(command_buffer, *sources, allocator=mg.DEFAULT)
    given = [blank(device, 2, 3, 4) for _ in range(3)]
    assert kernel.encode_batch(command_buffer, *sources, given) is given
    finish(command_buffer, *whole, *again, *given)
    for images in (whole, again, given):
        assert np.array_equal(np.stack([image.read() for image in images]), first + second)


def test_containers_and_z(device, command_buffer):
    kernel = add(device)
    first, second = counting(4, 2, 3, 4), counting(3, 2, 3, 4, start=50)
    kernel.primary_offset, kernel.secondary_offset = (0, 0, 2), (0, 0, 1)
    kernel.clip_rect = mg.Region((0, 0, 1), (3, 2, 2))
    destination = blank(device, 3, 2, 3, 4)
    kernel.encode(command_buffer, image_of(device, first), image_of(device, second), destination)
    result = read(command_buffer, destination)
    assert np.array_equal(result[1:], first[2:] + second[1:])
    assert not result[0].any()


def test_windows_of_channels(device, command_buffer):
    kernel = add(device)
    kernel.primary_source_feature_channel_offset = 4
    kernel.secondary_source_feature_channel_max_count = 3
    kernel.destination_feature_channel_offset = 8
    first, second = counting(2, 3, 7), counting(2, 3, 12)
    result = kernel.encode(
        command_buffer, *images_of(device, [first, second]), allocator=mg.DEFAULT
    )
    assert result.feature_channels == 11
    texels = read(command_buffer, result)
    assert np.array_equal(texels[..., 8:], first[..., 4:] + second[..., :3])
    assert not texels[..., :8].any()


def test_the_clip_rectangle_applies_to_created_destinations(device, command_buffer):
    kernel = add(device)
    kernel.clip_rect = mg.Region((1, 0), (2, 1))
    result = kernel.encode(command_buffer, *images_of(device, [A, B]), allocator=mg.DEFAULT)
    expected = np.zeros_like(A)
    expected[0, 1:] = (A + B)[0, :2]
    assert np.array_equal(read(command_buffer, result), expected)


def test_an_empty_clip_still_reads(device, command_buffer):
    kernel = add(device)
    kernel.clip_rect = mg.Region((7, 7), (1, 1))
    temporary = linear(device).encode(command_buffer, image_of(device, A))
    destination = image_of(device, B)
    kernel.encode(command_buffer, temporary, image_of(device, A), destination)
    assert temporary.read_count == 0
    assert np.array_equal(read(command_buffer, destination), B)


def test_created_destinations(device, command_buffer):
    kernel = add(device)
    sources = images_of(device, [A.astype(np.float16), B])
    assert kernel.destination_image_allocator is mg.TEMPORARY
    temporary = kernel.encode(command_buffer, *sources)
    assert temporary.is_temporary
    assert temporary.feature_channel_format == mg.ChannelFormat.FLOAT16  # of the primary source
    spend(temporary)
    calls = []

    def allocate(cb, d, seen):
        calls.append((cb, seen))
        return mg.Image(device, d)

    kernel.destination_image_allocator = allocate
    pair = [sources[0]] * 2, [sources[1]] * 2
    kernel.encode(command_buffer, *pair)
    assert calls == [(command_buffer, kernel)] * 2
    calls.clear()  # the kernel holds the function that holds it
    finish(command_buffer)


def test_descriptors(device):
    kernel = add(device)
    kernel.primary_offset = (5, 5)
    sources = images_of(device, [A, B])
    result = kernel.destination_descriptor(sources)
    assert (result.width, result.height, result.feature_channels) == (3, 2, 4)
    assert kernel.primary_offset == mg.Offset()
    for wrong in (sources[:1], [*sources, sources[0]], []):
        with pytest.raises(
            ValueError, match=r"destination_descriptor takes \[primary, secondary\]"
        ):
            kernel.destination_descriptor(wrong)
    assert kernel.encoding_storage_size(*sources, sources[0]) == 0


def test_policies_of_ones_own(device, command_buffer):
    class Larger(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM | mg.PaddingMethod.SIZE_SAME

        def destination_descriptor(self, images, states, kernel, suggested):
            assert (len(images), states) == (2, [])
            kernel.secondary_offset = (1, 0, 0)
            suggested.width += 1
            return suggested

    kernel = add(device)
    kernel.padding = Larger()
    result = kernel.encode(command_buffer, *images_of(device, [A, B]), allocator=mg.DEFAULT)
    assert kernel.secondary_offset == mg.Offset(1, 0, 0)
    expected = np.zeros((2, 4, 4), np.float32)
    expected[:, :3] += A
    expected[:, :2] += B[:, 1:]
    assert np.array_equal(read(command_buffer, result), expected)


def test_explicit_padding_is_for_one_source(device, command_buffer):
    kernel = add(device)
    kernel.padding = mg.ExplicitPadding(1)
    kernel.primary_offset = (3, 3, 0)
    with pytest.raises(ValueError, match="describes forward filters with one source only"):
        kernel.encode(command_buffer, *images_of(device, [A, B]))
    assert kernel.primary_offset == mg.Offset(3, 3, 0)
    finish(command_buffer)


def test_one_image_may_be_both_sources(device, command_buffer):
    temporary = linear(device).encode(command_buffer, image_of(device, A))
    temporary.read_count = 2
    result = add(device).encode(command_buffer, temporary, temporary, allocator=mg.DEFAULT)
    assert temporary.read_count == 0  # once for each argument
    assert np.array_equal(read(command_buffer, result), 2 * A)


def test_work_waits_for_its_commit(device, command_buffer):
    first, second, destination = (blank(device, 2, 3, 4) for _ in range(3))
    kernel = add(device)
    kernel.encode(command_buffer, first, second, destination)
    kernel.primary_offset = (7, 7)
    first.write(A)
    second.write(B)
    assert np.array_equal(read(command_buffer, destination), A + B)


# --- states -------------------------------------------------------------------


def test_with_state(device, command_buffer):
    kernel = add(device)
    sources = images_of(device, [A, B])
    result, state = kernel.encode(command_buffer, *sources, with_state=True, allocator=mg.DEFAULT)
    assert isinstance(result, mg.Image)
    assert isinstance(state, mg.BinaryGradientState)
    assert not isinstance(state, mg.GradientState)
    batch, states = kernel.encode(
        command_buffer,
        [sources[0]] * 2,
        [sources[1]] * 2,
        with_state=True,
        temporary_state=True,
        allocator=mg.DEFAULT,
    )
    assert (len(batch), len(set(states))) == (2, 2)
    assert all(one.is_temporary and one.read_count == 1 for one in states)
    spend(*states)
    finish(command_buffer)


def test_what_a_state_shows(device, command_buffer):
    kernel = add(device)
    kernel.secondary_stride_in_pixels_x = 0
    kernel.secondary_edge_mode = mg.EdgeMode.CLAMP
    kernel.secondary_offset = (1, 0, 0)
    sources = images_of(device, [A, counting(2, 5, 4)])
    state = kernel.result_state(*sources, blank(device, 2, 3, 4))
    assert (state.primary_width, state.primary_height, state.primary_feature_channels) == (3, 2, 4)
    assert (state.secondary_width, state.secondary_height) == (5, 2)
    assert state.secondary_edge_mode == mg.EdgeMode.CLAMP
    assert state.secondary_offset == mg.Offset(1, 0, 0)
    assert repr(state) == "ArithmeticGradientState(of Add, primary 3x2x4, secondary 5x2x4)"
    temporary = kernel.temporary_result_state(command_buffer, *sources, blank(device, 2, 3, 4))
    assert repr(temporary).endswith(", temporary)")
    spend(temporary)
    finish(command_buffer)


def test_kernels_without_a_state(device, command_buffer):
    kernel = mg.Compare(device=device)
    sources, destination = images_of(device, [A, B]), blank(device, 2, 3, 4)
    assert kernel.result_state(*sources, destination) is None
    assert kernel.result_state_batch(*([s] for s in sources), [destination]) is None
    result, state = kernel.encode(command_buffer, *sources, with_state=True, allocator=mg.DEFAULT)
    assert state is None
    assert not read(command_buffer, result).any()


def test_given_states_belong_to_given_destinations(device, command_buffer):
    kernel = add(device)
    sources, destination = images_of(device, [A, B]), blank(device, 2, 3, 4)
    state = kernel.result_state(*sources, destination)
    kernel.encode(command_buffer, *sources, destination, destination_state=state)
    with pytest.raises(TypeError, match="destination_state without destination"):
        kernel.encode(command_buffer, *sources, destination_state=state)
    with pytest.raises(ValueError, match="with_state creates a state for a created destination"):
        kernel.encode(command_buffer, *sources, destination, with_state=True)
    finish(command_buffer)


CHANGES = {
    **dict.fromkeys(("primary_offset", "secondary_offset"), mg.Offset(1, 0, 0)),
    **dict.fromkeys(("primary_edge_mode", "secondary_edge_mode"), mg.EdgeMode.CLAMP),
    **dict.fromkeys(("primary_stride_in_pixels_x", "secondary_stride_in_pixels_y"), 0),
    "primary_source_feature_channel_offset": 4,
    "secondary_source_feature_channel_max_count": 4,
    "clip_rect": mg.Region((0, 0), (1, 1)),
    "destination_feature_channel_offset": 4,
    "bias": 1.0,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_knows_its_kernels_properties(device, command_buffer, name):
    sources, destination = images_of(device, [A, B]), blank(device, 2, 3, 12)
    kernel = add(device)
    state = kernel.result_state(*sources, destination)
    before = getattr(kernel, name)
    setattr(kernel, name, CHANGES[name])
    if name != "primary_source_feature_channel_offset":  # leaves nothing to read
        with pytest.raises(StateError, match=r"properties changed after result_state\(\)"):
            kernel.encode(command_buffer, *sources, destination, destination_state=state)
    setattr(kernel, name, before)
    kernel.encode(command_buffer, *sources, destination, destination_state=state)
    finish(command_buffer)


def test_states_of_other_kernels_and_images(device, command_buffer):
    sources, destination = images_of(device, [A, B]), blank(device, 2, 3, 4)
    kernel = add(device)

    def encode(state):
        kernel.encode(command_buffer, *sources, destination, destination_state=state)

    with pytest.raises(StateError, match=r"this kernel's .*was made by Subtract"):
        encode(mg.Subtract(device=device).result_state(*sources, destination))
    changed = kernel.result_state(*sources, destination)
    kernel.bias = 1.0
    with pytest.raises(StateError, match="properties changed"):
        encode(changed)
    kernel.bias = 0.0
    for other, size in ((blank(device, 4, 3, 4), "3x4x4"), (blank(device, 2, 3, 8), "3x2x8")):
        with pytest.raises(ValueError, match=f"for a destination of {size}, not 3x2x4"):
            encode(kernel.result_state(*sources, other))
    larger = blank(device, 4, 3, 4)
    with pytest.raises(ValueError, match="for a secondary of 3x4x4, not 3x2x4"):
        encode(kernel.result_state(sources[0], larger, destination))
    with pytest.raises(TypeError, match="must come from this kernel's result_state"):
        encode(mg.State(device, 16))
    with pytest.raises(TypeError, match="must come from this kernel's result_state"):
        encode(linear(device).result_state(sources[0], destination))
    state = kernel.result_state(*sources, destination)
    with pytest.raises(ValueError, match="destination_states has 2 entries, expected 1"):
        encode([state, state])
    for wrong in (3, "state", [None], [destination]):
        with pytest.raises(TypeError, match="destination_state must"):
            encode(wrong)
    finish(command_buffer)


def test_gradient_kernels_do_not_have_these_encodes(device, command_buffer):
    kernel = mg.AddGradient(False, device=device)
    sources = images_of(device, [A, B])
    for name in ("result_state", "temporary_result_state", "encoding_storage_size"):
        assert not hasattr(kernel, name)
    with pytest.raises(TypeError, match=r"state is missing, which must be a State or "):
        kernel.encode(command_buffer, *sources)
    with pytest.raises(TypeError, match="has no argument"):
        kernel.encode(command_buffer, primary=sources[0], secondary=sources[1])
    finish(command_buffer)


# --- refusals -----------------------------------------------------------------


def refused(device, command_buffer):
    """Arguments of an encode, the error and its words; first a temporary of another buffer."""
    source, other, destination = (image_of(device, counting(2, 3, 8)) for _ in range(3))
    spent = mg.TemporaryImage(command_buffer, descriptor(channels=8))
    spent.read_count = 0
    elsewhere = mg.TemporaryImage(command_buffer.queue.command_buffer(), descriptor(channels=8))
    yield elsewhere
    container = blank(device, 3, 2, 3, 8)
    view = source.sub_image_with_feature_channel_range(0, 4)
    yield from [
        (([], [], []), ValueError, "primary is an empty batch"),
        (([source], [], [destination]), ValueError, "secondary is an empty batch"),
        (
            ([source], [other, other], [destination]),
            ValueError,
            "primary has 1 images, but secondary has 2",
        ),
        (
            ([source] * 2, [other] * 2, [destination]),
            ValueError,
            "primary has 2 images, but destination has 1",
        ),
        (
            ([source] * 2, [other] * 2, [destination] * 2),
            ValueError,
            "destination holds the same image twice",
        ),
        ((source, other, source), ValueError, "destination shares memory with primary"),
        ((other, source, view), ValueError, "destination shares memory with secondary"),
        (([source, blank(device, 2, 3, 4)], [other] * 2), ValueError, "primary mixes images of"),
        (
            ([container], [other], [destination]),
            ValueError,
            "primary holds an image with number_of_images 3",
        ),
        (
            (source, other, container),
            ValueError,
            "the destination asks for 3 images of primary from 0 on, but it has 1",
        ),
        ((spent, other, destination), ReadCountError, "has read count 0, its contents are gone"),
        ((source, other, spent), ReadCountError, "has read count 0"),
        ((source, elsewhere, destination), ValueError, "belongs to another command buffer"),
        (
            (source, other, blank(device, 2, 3, 4)),
            ValueError,
            "channels 0 to 8 do not fit a destination of 4",
        ),
        (
            (source, other, [destination]),
            TypeError,
            "must both be single images or both be batches",
        ),
        (([source], other), TypeError, "primary and secondary must both be single images or both"),
        ((None, other), TypeError, "primary must be an Image, an ImageBatch or a list"),
        ((source, 3), TypeError, "secondary must be an Image, an ImageBatch or a list"),
        ((container, container), ValueError, "takes images that hold one image"),
    ]


def test_refusals_leave_everything_as_it_was(device, command_buffer):
    """Type and words of every refusal; kernel, counts and command buffer do not notice."""
    kernel = add(device)
    kernel.primary_offset = (1, 0, 0)
    temporary = linear(device).encode(command_buffer, image_of(device, A))
    before = settings_of(kernel)
    arguments = refused(device, command_buffer)
    elsewhere = next(arguments)
    for images, error, words in arguments:
        with pytest.raises(error, match=re.escape(words)):
            kernel.encode(command_buffer, *images)
        assert settings_of(kernel) == before
        assert (temporary.read_count, elsewhere.read_count) == (1, 1)
        assert command_buffer.status == mg.CommandBufferStatus.NOT_ENQUEUED
    spend(elsewhere)
    result = add(device).encode(
        command_buffer, temporary, image_of(device, A), allocator=mg.DEFAULT
    )
    assert np.array_equal(read(command_buffer, result), 2 * A)


def test_a_failing_encode_discards_what_it_made(device, command_buffer, recwarn):
    """Nothing that never reached the user warns, and the offsets are put back."""
    kernel = add(device)
    kernel.minimum_value, kernel.maximum_value = 1.0, 0.0
    kernel.secondary_offset = (0, 2, 0)
    sources = images_of(device, [A, B])
    with pytest.raises(ValueError, match="is above maximum_value"):
        kernel.encode(command_buffer, *sources, with_state=True, temporary_state=True)
    assert kernel.secondary_offset == mg.Offset(0, 2, 0)
    finish(command_buffer)
    assert not recwarn.list


def test_objects_of_two_devices():
    """Where a build has both devices."""
    try:
        here, there = mg.Device("cpu"), mg.Device("metal")
        add(there)
    except mg.errors.DeviceError:
        with pytest.raises(mg.errors.DeviceError, match=r"Device: .*(no Metal device|no GPU)"):
            mg.Add(device="metal")
        pytest.skip("needs an object of a device that is not the CPU")
    command_buffer = here.command_queue().command_buffer()
    mine, foreign = image_of(here, A), image_of(there, A)
    with pytest.raises(ValueError, match="secondary is on another device"):
        add(here).encode(command_buffer, mine, foreign)
    with pytest.raises(ValueError, match="the command buffer is on another device"):
        add(there).encode(command_buffer, foreign, foreign)
    with pytest.raises(ValueError, match="must be on the kernel's device"):
        add(here).result_state(mine, mine, foreign)
