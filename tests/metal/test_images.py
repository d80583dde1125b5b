"""Images of the Metal device: storage modes, synchronisation, temporaries and their views."""

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad.errors import DeviceError, UnsupportedError

from tests.rejects import rejects


def identity(device):
    return mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 9])
def test_batch_round_trip(device, rng, dtype, channels):
    if np.issubdtype(dtype, np.floating):
        array = rng.standard_normal((3, 4, 5, channels)).astype(dtype)
    else:
        array = rng.integers(0, np.iinfo(dtype).max, (3, 4, 5, channels)).astype(dtype)
    batch = mg.ImageBatch.from_array(device, array)
    np.testing.assert_array_equal(batch.to_array(), array)
    np.testing.assert_array_equal(
        batch[1].read(layout=mg.DataLayout.CHW), array[1].transpose(2, 0, 1)
    )


def test_read_without_synchronize_is_refused(device, queue, rng):
    source = mg.Image(device, mg.ImageDescriptor(4, 3, 5))
    source.write(rng.standard_normal((3, 4, 5)).astype(np.float32))
    command_buffer = queue.command_buffer()
    result = identity(device).encode(command_buffer, source, allocator=mg.DEFAULT)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    with pytest.raises(RuntimeError, match=r"read without synchronize\(command_buffer\)"):
        result.read()
    command_buffer = queue.command_buffer()
    result.synchronize(command_buffer)
    with pytest.raises(RuntimeError, match="not been committed"):
        result.read()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_array_equal(result.read(), source.read())


def test_a_write_makes_an_image_readable(device, queue):
    source = mg.Image(device, mg.ImageDescriptor(2, 2, 1))
    command_buffer = queue.command_buffer()
    result = identity(device).encode(command_buffer, source, allocator=mg.DEFAULT)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    ones = np.ones((2, 2, 1), np.float32)
    result.write(ones)
    np.testing.assert_array_equal(result.read(), ones)


def test_private_images_start_at_zero(device, queue):
    private = mg.ImageDescriptor(3, 2, 6, storage_mode=mg.StorageMode.PRIVATE)
    hidden = mg.Image(device, private)
    command_buffer = queue.command_buffer()
    seen = identity(device).encode(
        command_buffer, hidden, mg.Image(device, mg.ImageDescriptor(3, 2, 6))
    )
    seen.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_array_equal(seen.read(), np.zeros((2, 3, 6), np.float32))
    with pytest.raises(RuntimeError, match="storage_mode hides it from the CPU"):
        hidden.read()


@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("mode", ["MEMORYLESS", "SHARED"])
def test_storage_modes_that_would_abort(device, emulator, mode, memory):
    """Intel's GPUs (2) have unified memory, and no shared textures for all that."""
    emulator.set("unified_memory", memory)
    descriptor = mg.ImageDescriptor(1, 1, 1, storage_mode=getattr(mg.StorageMode, mode))
    with pytest.raises(UnsupportedError, match=mode):
        mg.Image(device, descriptor)


def test_shared_images_on_apples_gpus(device, queue, rng, emulator):
    emulator.set("unified_memory", 1)
    descriptor = mg.ImageDescriptor(3, 2, 5, storage_mode=mg.StorageMode.SHARED)
    source, result = mg.Image(device, descriptor), mg.Image(device, descriptor)
    values = rng.standard_normal((2, 3, 5)).astype(np.float32)
    source.write(values)
    command_buffer = queue.command_buffer()
    identity(device).encode(command_buffer, source, result)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_array_equal(result.read(), values)


def test_an_image_too_large_for_the_device(device, queue):
    """It can be described; its texels cannot appear."""
    large = mg.Image(device, mg.ImageDescriptor(16384, 16384, 8192))
    words = "the Metal device has no room for the texels of this image"
    with rejects(MemoryError, words):
        large.sub_image_with_feature_channel_range(0, 4)
    command_buffer = queue.command_buffer()
    source = mg.Image(device, mg.ImageDescriptor(3, 2, 4))
    with rejects(MemoryError, words):
        identity(device).encode(command_buffer, source, large)
    identity(device).encode(command_buffer, source, allocator=mg.DEFAULT)  # the buffer goes on
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_a_buffer_too_large_for_the_device(device):
    with pytest.raises(DeviceError, match="more than this device's limit"):
        mg.Buffer(device, 1 << 60)


@pytest.mark.parametrize("order", ["view first", "parent first"])
def test_views_of_temporaries_may_end_in_any_order(device, queue, order):
    command_buffer = queue.command_buffer()
    parent = mg.TemporaryImage(command_buffer, mg.ImageDescriptor(3, 2, 12))
    views = [parent.sub_image_with_feature_channel_range(4 * i, 4) for i in range(2)]
    if order == "view first":
        parent.read_count = 3
        for view in views:
            view.read_count = 0
        assert parent.read_count == 1
        result = identity(device).encode(command_buffer, parent, allocator=mg.DEFAULT)
    else:
        parent.read_count = 0
        with rejects(
            mg.errors.ReadCountError,
            "Neuron: this TemporaryImage has read count 0, its contents are gone",
        ):
            identity(device).encode(command_buffer, views[0], allocator=mg.DEFAULT)
        for view in views:
            view.read_count = 0
        result = None
    if result is not None:
        result.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    if result is not None:
        assert not result.read().any()


def test_views_of_container_images(device, queue, rng):
    container = mg.Image(device, mg.ImageDescriptor(3, 2, 5, number_of_images=4))
    values = rng.standard_normal((4, 2, 3, 5)).astype(np.float32)
    container.write(values)
    views = container.batch_representation(1, 2)
    command_buffer = queue.command_buffer()
    result = identity(device).encode_batch(command_buffer, views, allocator=mg.DEFAULT)
    mg.synchronize(result, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    np.testing.assert_array_equal(result.to_array(), values[1:3])


def test_views_of_some_channels_are_of_one_image(device, rng):
    """Those of several images are no range of slices, which is all that Apple's views can be."""
    container = mg.Image(device, mg.ImageDescriptor(3, 2, 10, number_of_images=2))
    values = rng.standard_normal((2, 2, 3, 10)).astype(np.float32)
    container.write(values)
    for first, channels in ((0, 4), (4, 4), (4, 8), (8, 4)):
        with pytest.raises(UnsupportedError, match=r"^Image: .* needs number_of_images 1, got 2"):
            container.sub_image_with_feature_channel_range(first, channels)
        for image, expected in zip(container.batch_representation(), values, strict=True):
            view = image.sub_image_with_feature_channel_range(first, channels)
            np.testing.assert_array_equal(view.read(), expected[..., first : first + channels])
    whole = container.sub_image_with_feature_channel_range(0, 12)
    assert (whole.number_of_images, whole.feature_channels) == (2, 10)
    np.testing.assert_array_equal(whole.read(), values)


def test_temporaries_dropped_unread_warn_and_do_not_abort(queue):
    command_buffer = queue.command_buffer()
    images = [mg.TemporaryImage(command_buffer, mg.ImageDescriptor(3, 2, 12))]
    images[0].read_count = 5
    images.append(images[0].sub_image_with_feature_channel_range(4, 4))
    for count in (1, 5):  # the view, then its parent
        with pytest.warns(ResourceWarning, match=f"read count {count};"):
            images.pop()
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_temporaries_that_outlive_their_command_buffer(device, queue):
    source = mg.Image(device, mg.ImageDescriptor(4, 3, 5))
    command_buffer = queue.command_buffer()
    objects = list(
        identity(device).encode(command_buffer, source, with_state=True, temporary_state=True)
    )
    command_buffer.commit()
    command_buffer.wait_until_completed()
    del command_buffer
    assert [each.read_count for each in objects] == [1, 1]
    with pytest.warns(ResourceWarning, match="was dropped with read count 1"):
        objects.clear()


@pytest.mark.parametrize("unified", [0, 1, 2])
def test_every_kind_of_memory(emulator, unified):
    code = """
import mpsgrad as mg, numpy as np
device = mg.Device("metal")
x = np.linspace(-1, 1, 2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
y, state = kernel(x, with_state=True)
assert (y == np.maximum(x, 0)).all()
gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
assert (gradient(y, x, state) == np.maximum(x, 0)).all()
print(device.name)
"""
    finished = emulator.run(code, unified_memory=unified)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == "Emulated GPU 0\n"


def test_a_machine_without_a_gpu(emulator):
    code = """
import mpsgrad as mg
print(mg.Device().kind)
try:
    mg.Device("metal")
except mg.errors.DeviceError as error:
    print(error)
"""
    finished = emulator.run(code, devices=0)
    assert finished.stdout == (
        "cpu\nDevice: this machine has no GPU that MetalPerformanceShaders supports\n"
    ), finished.stderr


def test_work_under_way_at_the_end_of_the_process(emulator):
    code = """
import mpsgrad as mg, numpy as np
device = mg.Device("metal")
queue = device.command_queue()
x = np.ones((1, 64, 64, 8), np.float32)
kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
for _ in range(3):
    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(lambda buffer: print("completed"))
    kernel.encode_batch(command_buffer, mg.ImageBatch.from_array(device, x), allocator=mg.DEFAULT)
    command_buffer.commit()
blocked = queue.command_buffer()
blocked.enqueue()
behind = queue.command_buffer()
behind.commit()
"""
    finished = emulator.run(code, delay_us=50_000)
    assert (finished.returncode, finished.stdout) == (0, "completed\n" * 3), finished.stderr
