"""States: their resources, which exist when first needed, and temporary ones."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    blank,
    counting,
    drop,
    finish,
    image_of,
    images_of,
    linear,
    linear_gradient,
)
from tests.rejects import rejects

ReadCountError = mg.errors.ReadCountError
R32_FLOAT, RGBA16_FLOAT = 55, 115


def test_a_state_of_one_buffer(device):
    state = mg.State(device, 64)
    assert state.device == device
    assert (state.resource_count, state.resource_size) == (1, 64)
    assert state.resource_type_at(0) == mg.StateResourceType.BUFFER
    assert state.buffer_size_at(0) == 64
    info = state.texture_info_at(0)
    assert [getattr(info, name) for name in ("width", "height", "depth", "array_length")] == [0] * 4
    assert (info.pixel_format, info.texture_type, info.usage) == (0, 0, 0)
    assert (state.is_temporary, state.read_count) == (False, 0)
    state.label = "moments"
    assert state.label == "moments"
    assert repr(state) == f"State({device.kind})"


def test_storage_appears_when_it_is_first_needed(device):
    state = mg.State(device, 64)
    assert state.resource_at(0, allocate=False) is None
    buffer = state.resource_at(0)
    assert buffer.nbytes == 64
    assert not buffer.to_numpy().any()
    assert state.resource_at(0) is buffer
    assert state.resource_at(0, allocate=False) is buffer


def test_a_state_of_one_texture(device):
    info = mg.TextureInfo(8, 4, array_length=3, pixel_format=RGBA16_FLOAT, texture_type=3)
    state = mg.State(device, info)
    assert state.resource_type_at(0) == mg.StateResourceType.TEXTURE
    assert state.buffer_size_at(0) == 0
    got = state.texture_info_at(0)
    assert (got.width, got.height, got.depth, got.array_length) == (8, 4, 1, 3)
    assert (got.pixel_format, got.texture_type, got.usage) == (RGBA16_FLOAT, 3, 3)
    assert state.resource_size == 8 * 4 * 3 * 8


@pytest.mark.parametrize("order", ["tbtb", "bbtt", "ttbb", "btbtt", "b", "t"])
def test_textures_precede_buffers(device, order):
    resources = mg.ResourceList()
    for number, kind in enumerate(order, 1):
        if kind == "b":
            resources.append_buffer(4 * number)
        else:
            resources.append_texture(mg.TextureInfo(number, pixel_format=R32_FLOAT))
    state = mg.State(device, resources)
    textures = [n for n, kind in enumerate(order, 1) if kind == "t"]
    buffers = [4 * n for n, kind in enumerate(order, 1) if kind == "b"]
    assert state.resource_count == len(order)
    widths = [state.texture_info_at(i).width for i in range(len(order))]
    sizes = [state.buffer_size_at(i) for i in range(len(order))]
    assert widths == [*textures, *(0 for _ in buffers)]
    assert sizes == [*(0 for _ in textures), *buffers]
    assert state.resource_size == 4 * sum(textures) + sum(buffers)


def test_a_list_is_copied_by_the_state(device):
    resources = mg.ResourceList()
    state = mg.State(device, resources)
    resources.append_buffer(16)
    assert state.resource_count == 0
    assert mg.State(device, None).resource_size == 0


def test_a_state_around_a_buffer(device):
    buffer = mg.Buffer(device, np.arange(4, dtype=np.float32))
    state = mg.State(device, buffer)
    assert state.resource_at(0, allocate=False) is buffer
    assert state.buffer_size_at(0) == 16


def test_sizes_that_no_number_holds(device):
    resources = mg.ResourceList()
    for _ in range(2**15):
        resources.append_buffer(2**48)
    state = mg.State(device, resources)
    assert state.resource_size == 2**63 - 1
    assert mg.resource_size([state, mg.State(device, 16)]) == 2**63 - 1


@pytest.mark.parametrize("index", [1, -1, 2**62, -(2**63)])
def test_indices_outside_a_state(device, index):
    state = mg.State(device, 16)
    for call in (
        state.resource_type_at,
        state.buffer_size_at,
        state.texture_info_at,
        state.resource_at,
    ):
        with pytest.raises(IndexError, match="is outside a state with 1"):
            call(index)


WRONG = [
    (0, ValueError, "buffer size must be positive, got 0"),
    (-4, ValueError, "buffer size must be positive, got -4"),
    (2**62, ValueError, "buffer size must be at most"),
    (2**64, ValueError, "State: resources is out of range"),
    ("16", TypeError, "must be a size in bytes, a TextureInfo or a ResourceList, got str"),
    (16.0, TypeError, "got float"),
    ([16], TypeError, "got list"),
    (mg.TextureInfo(0), ValueError, "a texture must have sides of 1 to 16384"),
    (mg.TextureInfo(-1, -1), ValueError, "a texture must have sides"),
    (mg.TextureInfo(1, 2**62), ValueError, "a texture must have sides"),
    (mg.TextureInfo(1, array_length=4096), ValueError, "array length of 1 to 2048"),
    (
        mg.TextureInfo(16384, 16384, array_length=2048, depth=2048, pixel_format=125),
        ValueError,
        "State: a texture of 18014398509481984 bytes: these are more than any memory holds",
    ),
    (mg.TextureInfo(1, pixel_format=7), ValueError, "needs a known pixel format, got 7"),
]


@pytest.mark.parametrize(("resources", "error", "words"), WRONG, ids=lambda value: str(value)[:24])
def test_resources_of_wrong_kinds(device, queue, resources, error, words):
    with pytest.raises(error, match=re.escape(words)):
        mg.State(device, resources)
    with pytest.raises(error, match=re.escape(words)):
        mg.State.temporary(queue.command_buffer(), resources)


def test_resource_lists_refuse_wrong_sizes():
    resources = mg.ResourceList()
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="must be positive"):
            resources.append_buffer(wrong)
    for wrong in (None, "4", 4.0):
        with pytest.raises(TypeError, match="size must be an int"):
            resources.append_buffer(wrong)
        with pytest.raises(TypeError, match="info must be a TextureInfo"):
            resources.append_texture(wrong)


def test_states_need_their_device():
    for wrong in (None, "cpu", 3):
        with pytest.raises(TypeError, match="device must be a Device"):
            mg.State(wrong, 16)
        with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer"):
            mg.State.temporary(wrong, 16)


# --- temporary states ---------------------------------------------------------


def test_a_temporary_state(queue):
    command_buffer = queue.command_buffer()
    state = mg.State.temporary(command_buffer, 64)
    assert (state.is_temporary, state.read_count) == (True, 1)
    assert "temporary" in repr(state)
    state.read_count = 3
    buffer = state.resource_at(0)
    with pytest.raises(RuntimeError, match="private to the device"):
        buffer.to_numpy()
    with pytest.raises(RuntimeError, match="private to the device"):
        buffer.write(np.zeros(1, np.float32))
    with rejects(BufferError, "Error getting buffer") as caught:
        memoryview(buffer)
    assert "private to the device" in str(caught.value.__cause__)
    state.read_count = 0
    with pytest.raises(ReadCountError, match="read count is 0"):
        state.resource_at(0)
    with pytest.raises(ReadCountError, match="cannot be changed any more"):
        state.read_count = 1


def test_a_temporary_state_without_resources_is_not_temporary(queue):
    state = mg.State.temporary(queue.command_buffer())
    assert (state.is_temporary, state.read_count, state.resource_count) == (False, 1, 0)


def test_ordinary_states_have_no_count(device):
    state = mg.State(device, 16)
    with pytest.raises(RuntimeError, match="only temporary states have a read count"):
        state.read_count = 2
    assert state.read_count == 0


def test_a_dropped_temporary_state_warns(device, queue):
    command_buffer = queue.command_buffer()
    words = "temporary State was dropped with read count 1"
    holder = [mg.State.temporary(command_buffer, 16)]
    with pytest.warns(ResourceWarning, match=words):
        drop(holder)
    holder += linear(device).encode(
        command_buffer,
        image_of(device, counting(2, 3, 4)),
        with_state=True,
        temporary_state=True,
        allocator=mg.DEFAULT,
    )
    with pytest.warns(ResourceWarning, match=words):
        drop(holder)


def test_states_are_synchronized_before_the_commit(device, queue):
    command_buffer = queue.command_buffer()
    state = mg.State(device, 16)
    state.synchronize(command_buffer)
    finish(command_buffer)
    with pytest.raises(mg.errors.CommandBufferError, match="already completed"):
        state.synchronize(command_buffer)
    with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer, got NoneType"):
        state.synchronize(None)


# --- gradient states ----------------------------------------------------------


def test_gradient_states_are_made_by_kernels(device, queue):
    for arguments in [(), (device,), (device, 16), (queue.command_buffer(),)]:
        with pytest.raises(TypeError, match="GradientState is made by a kernel"):
            mg.GradientState(*arguments)

    class Mine(mg.GradientState):
        pass

    with pytest.raises(TypeError, match="is made by a kernel"):
        Mine()


def test_a_gradient_state_tells_the_forward_configuration(device):
    kernel = linear(device)
    kernel.offset = (1, -2, 0)
    kernel.edge_mode = mg.EdgeMode.CLAMP
    kernel.clip_rect = mg.Region((1, 0, 0), (9, 9, 9))
    state = kernel.result_state(blank(device, 2, 3, 5), blank(device, 4, 3, 5))
    assert (state.source_width, state.source_height, state.source_feature_channels) == (3, 2, 5)
    assert state.offset == mg.Offset(1, -2, 0)
    assert state.edge_mode == mg.EdgeMode.CLAMP
    assert state.clip_rect == mg.Region((1, 0, 0), (2, 4, 1))  # cut to the destination
    assert (state.kernel_width, state.kernel_height) == (1, 1)
    assert (state.is_temporary, state.read_count) == (False, 0)
    assert repr(state) == "GradientState(of Neuron, source 3x2x5)"


def test_temporary_gradient_states(device, queue):
    command_buffer = queue.command_buffer()
    kernel = linear(device)
    source, destination = blank(device, 2, 3, 4), blank(device, 2, 3, 4)
    state = kernel.temporary_result_state(command_buffer, source, destination)
    assert (state.is_temporary, state.read_count) == (True, 1)
    kernel.encode(command_buffer, source, destination, destination_state=state)
    assert state.read_count == 1  # written, not read
    gradient = linear_gradient(device)
    other = queue.command_buffer()
    with pytest.raises(ValueError, match="belongs to another command buffer"):
        gradient.encode(other, destination, source, state)
    gradient.encode(command_buffer, destination, source, state, allocator=mg.DEFAULT)
    assert state.read_count == 0
    with pytest.raises(ReadCountError, match="read count 0"):
        gradient.encode(command_buffer, destination, source, state)
    finish(command_buffer)


def test_a_state_shared_by_a_batch_is_counted_once(device, queue):
    command_buffer = queue.command_buffer()
    kernel = linear(device, 2.0)
    source, destination = blank(device, 2, 3, 4), blank(device, 2, 3, 4)
    state = kernel.temporary_result_state(command_buffer, source, destination)
    sources = images_of(device, counting(3, 2, 3, 4))
    result = linear_gradient(device, 2.0).encode(
        command_buffer, sources, sources, [state] * 3, allocator=mg.DEFAULT
    )
    assert state.read_count == 0
    finish(command_buffer, *result)
    assert np.array_equal(result.to_array(), 2 * counting(3, 2, 3, 4))


def test_result_state_batches(device, queue):
    kernel = linear(device)
    assert not kernel.is_result_state_reused_across_batch
    sources = images_of(device, counting(3, 2, 3, 4))
    destinations = [blank(device, 2, 3, 4) for _ in range(3)]
    states = kernel.result_state_batch(sources, destinations)
    assert len(set(states)) == 3
    command_buffer = queue.command_buffer()
    kernel.encode_batch(command_buffer, sources, destinations, destination_states=states)
    temporary = kernel.temporary_result_state_batch(command_buffer, sources, destinations)
    assert [state.read_count for state in temporary] == [1, 1, 1]
    for state in temporary:
        state.read_count = 0
    finish(command_buffer)
    with pytest.raises(ValueError, match="source has 3 images, but destination has 2"):
        kernel.result_state_batch(sources, destinations[:2])
    with pytest.raises(ValueError, match="empty batch"):
        kernel.result_state_batch([], [])
    with pytest.raises(TypeError, match="command_buffer must be a CommandBuffer, got NoneType"):
        kernel.temporary_result_state(None, sources[0], destinations[0])
