"""Command buffers of the Metal device: order, failures, lifetimes."""

import gc
import threading

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad.errors import CommandBufferError


def relu(device, slope=0.0):
    return mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU, a=slope), device=device)


def filled(device, rng, shape=(3, 4, 5)):
    image = mg.Image(device, mg.ImageDescriptor(shape[1], shape[0], shape[2]))
    image.write(rng.standard_normal(shape).astype(np.float32))
    return image


def encode_relu(device, command_buffer, image):
    result = relu(device).encode(command_buffer, image, allocator=mg.DEFAULT)
    result.synchronize(command_buffer)
    return result


def expected(image):
    return np.maximum(image.read(), 0)


def test_abandoned_buffer_lets_later_ones_run(device, queue, rng):
    source = filled(device, rng)
    abandoned = queue.command_buffer()
    abandoned.enqueue()
    later = queue.command_buffer()
    result = encode_relu(device, later, source)
    later.commit()
    assert later.status == mg.CommandBufferStatus.COMMITTED
    del abandoned
    later.wait_until_completed()
    np.testing.assert_array_equal(result.read(), expected(source))


def test_buffers_run_in_enqueue_order(device, queue, rng):
    source = filled(device, rng)
    middle = mg.Image(device, source.descriptor)
    first = queue.command_buffer()
    first.enqueue()
    second = queue.command_buffer()
    result = encode_relu(device, second, middle)
    second.commit()
    relu(device, -1.0).encode(first, source, middle)  # |x|
    first.commit()
    second.wait_until_completed()
    np.testing.assert_array_equal(result.read(), np.abs(source.read()))


def test_continued_buffer_behind_an_open_one(device, queue, rng):
    source = filled(device, rng)
    first = queue.command_buffer()
    first.enqueue()
    second = queue.command_buffer()
    temporary = relu(device, -1.0).encode(second, source)
    second.commit_and_continue()
    result = encode_relu(device, second, temporary)
    second.commit()
    third = queue.command_buffer()
    last = encode_relu(device, third, source)
    third.commit()
    early = encode_relu(device, first, source)
    assert second.status == mg.CommandBufferStatus.COMMITTED
    first.commit()
    for command_buffer in (third, second, first):
        command_buffer.wait_until_completed()
    np.testing.assert_array_equal(result.read(), np.abs(source.read()))
    for image in (last, early):
        np.testing.assert_array_equal(image.read(), expected(source))


@pytest.mark.parametrize("code", [1, 2, 8])
def test_failure_is_raised_with_its_code(device, queue, rng, emulator, code):
    source = filled(device, rng)
    command_buffer = queue.command_buffer()
    encode_relu(device, command_buffer, source)
    emulator.set("fail_next", code)
    command_buffer.commit()
    with pytest.raises(CommandBufferError, match="execution failed: Emulated failure") as caught:
        command_buffer.wait_until_completed()
    assert caught.value.code == code
    assert command_buffer.status == mg.CommandBufferStatus.ERROR
    following = queue.command_buffer()
    result = encode_relu(device, following, source)
    following.commit()
    following.wait_until_completed()
    np.testing.assert_array_equal(result.read(), expected(source))


def test_failure_of_a_continued_root_is_not_lost(device, queue, rng, emulator):
    source = filled(device, rng)
    command_buffer = queue.command_buffer()
    encode_relu(device, command_buffer, source)
    emulator.set("fail_next", 3)
    command_buffer.commit_and_continue()
    encode_relu(device, command_buffer, source)
    command_buffer.commit()
    with pytest.raises(CommandBufferError, match="execution failed: Emulated failure") as caught:
        command_buffer.wait_until_completed()
    assert caught.value.code == 3


def test_everything_encoded_outlives_its_python_objects(device, queue, rng, emulator):
    emulator.set("delay_us", 20_000)
    source = filled(device, rng)
    values = expected(source)
    command_buffer = queue.command_buffer()
    kernel = relu(device)
    temporary = kernel.encode(command_buffer, source)
    result = kernel.encode(command_buffer, temporary, allocator=mg.DEFAULT)
    result.synchronize(command_buffer)
    del source, temporary, kernel
    gc.collect()
    command_buffer.commit()
    work = command_buffer
    del command_buffer
    work.wait_until_completed()
    np.testing.assert_array_equal(result.read(), values)


def test_handlers_run_on_metals_thread(device, queue, rng):
    command_buffer = queue.command_buffer()
    encode_relu(device, command_buffer, filled(device, rng))
    seen = []
    command_buffer.add_scheduled_handler(
        lambda _: seen.append(("scheduled", threading.get_ident()))
    )
    command_buffer.add_completed_handler(
        lambda _: seen.append(("completed", threading.get_ident()))
    )
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert [name for name, _ in seen] == ["scheduled", "completed"]
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_predicate_decides_when_the_gpu_reaches_it(device, queue, rng):
    source = filled(device, rng)
    results = []
    for value in (0, 1):
        flag = mg.Buffer(device, np.array([7, value], np.uint32))
        command_buffer = queue.command_buffer()
        destination = filled(device, rng)
        before = destination.read()
        command_buffer.predicate = mg.Predicate(flag, 4)
        temporary = mg.TemporaryImage(command_buffer, source.descriptor)  # cleared all the same
        relu(device).encode(command_buffer, source, destination)
        command_buffer.predicate = None
        zeros = encode_relu(device, command_buffer, temporary)
        destination.synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert not zeros.read().any()
        results.append((before, destination.read()))
    np.testing.assert_array_equal(results[0][1], results[0][0])
    np.testing.assert_array_equal(results[1][1], expected(source))


def test_a_training_step_leaves_no_object_behind(device, rng, emulator):
    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    forward = relu(device)
    x = rng.standard_normal((4, 5, 6, 7)).astype(np.float32)

    def step():
        queue = device.command_queue()
        with queue.command_buffer() as command_buffer:
            sources = mg.ImageBatch.from_array(device, x)
            images, states = forward.encode_batch(
                command_buffer, sources, with_state=True, temporary_state=True
            )
            mg.increment_read_count(images, 1)
            results = gradient.encode_batch(
                command_buffer, images, sources, states, allocator=mg.DEFAULT
            )
            forward.encode_batch(command_buffer, images, allocator=mg.DEFAULT)
            mg.synchronize(results, command_buffer)
        command_buffer.wait_until_completed()
        np.testing.assert_array_equal(results.to_array(), np.maximum(x, 0))

    step()
    gc.collect()
    before = emulator.live_objects()
    for _ in range(3):
        step()
    gc.collect()
    assert emulator.live_objects() == before
