"""Buffers, the predicates in them, and what else may look at their memory."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    blank,
    counting,
    finish,
    image_of,
    linear,
    linear_gradient,
    python,
    spend,
)
from tests.rejects import rejects


def test_a_buffer_of_some_size_is_zero(device):
    buffer = mg.Buffer(device, 24)
    assert buffer.device == device
    assert (buffer.nbytes, len(buffer)) == (24, 6)
    assert buffer.to_numpy().dtype == np.float32
    assert not buffer.to_numpy().any()
    assert repr(buffer) == f"Buffer({device.kind}, 24 bytes)"


def test_a_buffer_from_an_array_is_a_copy(device):
    array = counting(2, 3)
    buffer = mg.Buffer(device, array)
    array[:] = 0
    assert np.array_equal(buffer.to_numpy(), counting(6))
    assert np.array_equal(mg.Buffer(device, counting(3, 2).T).to_numpy(), [1, 3, 5, 2, 4, 6])
    words = np.array([1, 2], np.uint32)
    assert np.array_equal(mg.Buffer(device, words).to_numpy().view(np.uint32), words)
    assert len(mg.Buffer(device, memoryview(words))) == 2


WRONG = [
    (0, ValueError, "size must be a positive multiple of 4, got 0"),
    (-4, ValueError, "size must be a positive multiple of 4, got -4"),
    (6, ValueError, "size must be a positive multiple of 4, got 6"),
    (None, TypeError, "must be a NumPy array, or have a buffer or DLPack, got NoneType; or size"),
    (4.0, TypeError, "got float; or size must be an int, got float"),
    ("12", TypeError, "size must be an int, got str"),
    (2**64, ValueError, f"size is out of range: {2**64}"),
    ([1.0], TypeError, "size must be an int, got list"),
    (np.zeros(2), TypeError, "items of 4 bytes (float32, uint32), got float64"),
    (np.zeros(2, np.float16), TypeError, "items of 4 bytes (float32, uint32), got float16"),
    (b"12345678", TypeError, "items of 4 bytes"),
    (np.zeros(0, np.float32), ValueError, "data must not be empty"),
]


@pytest.mark.parametrize(("data", "error", "words"), WRONG, ids=lambda value: str(value)[:20])
def test_buffers_of_wrong_data(device, data, error, words):
    with pytest.raises(error, match=re.escape(words)):
        mg.Buffer(device, data)


def test_buffers_need_a_device():
    for wrong in (None, "cpu"):
        with pytest.raises(TypeError, match="device must be a Device"):
            mg.Buffer(wrong, 16)


def test_a_buffer_no_machine_can_hold(device):
    error, words = {
        "cpu": (MemoryError, f"the CPU device has no room for {2**62} bytes"),
        "metal": (
            mg.errors.DeviceError,
            f"Buffer: {2**62} bytes are more than this device's limit of",
        ),
    }[device.kind]
    with rejects(error, words):
        mg.Buffer(device, 2**62)


def test_write(device):
    buffer = mg.Buffer(device, 24)
    buffer.write(np.array([1, 2], np.float32))
    buffer.write(np.array([[3], [4]], np.float32), offset=16)
    assert buffer.to_numpy().tolist() == [1, 2, 0, 0, 3, 4]
    buffer.write(np.array([7], np.uint32), 8)
    assert buffer.to_numpy().view(np.uint32)[2] == 7


@pytest.mark.parametrize("offset", [-4, -1, 20, 24, 2**62, 2**63 - 1, 2**63 - 8, -(2**63)])
def test_writes_that_do_not_fit(device, offset):
    buffer = mg.Buffer(device, 24)
    with pytest.raises(ValueError, match=f"8 bytes at offset {offset} do not fit 24"):
        buffer.write(np.ones(2, np.float32), offset)
    assert not buffer.to_numpy().any()


ITEMS = "Buffer: data must have items of 4 bytes (float32, uint32), got"
NO_ARRAY = "Buffer.write: data must be a NumPy array, or have a buffer or DLPack, got"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.ones(2), f"{ITEMS} float64"),
        (np.ones(2, np.float16), f"{ITEMS} float16"),
        (np.ones(2, np.int64), f"{ITEMS} int64"),
        (b"1234", f"{ITEMS} uint8"),
        ([1.0, 2.0], f"{NO_ARRAY} list"),
        (1.0, f"{NO_ARRAY} float"),
        (None, f"{NO_ARRAY} NoneType"),
    ],
)
def test_writes_of_wrong_arrays(device, data, words):
    with rejects(TypeError, words):
        mg.Buffer(device, 24).write(data)


def test_the_buffer_protocol_shares_memory(device):
    buffer = mg.Buffer(device, counting(4))
    view = memoryview(buffer)
    assert (view.format, view.shape, view.readonly, view.c_contiguous) == ("f", (4,), False, True)
    np.frombuffer(buffer, np.float32)[1] = 20
    view[2] = 30.0
    assert buffer.to_numpy().tolist() == [1, 20, 30, 4]
    del buffer
    assert view.tolist() == [1, 20, 30, 4]


def test_arrays_share_memory_unless_asked_not_to(device):
    buffer = mg.Buffer(device, counting(4))
    np.asarray(buffer)[0] = 9
    assert buffer.to_numpy()[0] == 9
    np.asarray(buffer, copy=False)[1] = 8
    assert buffer.to_numpy()[1] == 8
    np.array(buffer)[2] = 7
    assert buffer.to_numpy()[2] == 3
    assert np.asarray(buffer, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="another dtype than float32 needs a copy"):
        buffer.__array__(np.float64, copy=False)


def test_dlpack_shares_memory(device):
    buffer = mg.Buffer(device, counting(4))
    assert buffer.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(buffer)
    assert array.dtype == np.float32
    buffer.write(np.float32([5]).reshape(1))
    assert array[0] == 5
    assert np.from_dlpack(buffer, copy=True)[0] == 5
    assert array.ctypes.data % 64 == 0 or device.kind != "cpu"


def gradient_of_something(device, queue):
    """A weight gradient that unfinished work writes; the work; a buffer it has to wait for."""
    source = mg.ArrayConvolutionDataSource(counting(1, 1, 1, 4))
    x = image_of(device, counting(2, 3, 4))
    gate = queue.command_buffer()
    gate.enqueue()
    command_buffer = queue.command_buffer()
    y, state = mg.Convolution(source, device=device).encode(
        command_buffer, x, with_state=True, allocator=mg.DEFAULT
    )
    mg.ConvolutionGradient(source, device=device).encode(
        command_buffer, y, x, state, allocator=mg.DEFAULT
    )
    state.synchronize(command_buffer)
    return state.gradient_for_weights, command_buffer, gate


def test_memory_is_not_handed_out_while_work_uses_it(device, queue):
    buffer, command_buffer, gate = gradient_of_something(device, queue)
    exports = [buffer.to_numpy, buffer.__array__, buffer.__dlpack__]
    for call in exports:
        with pytest.raises(RuntimeError, match="has not been committed"):
            call()
    command_buffer.commit()
    for call in exports:
        with pytest.raises(RuntimeError, match="nobody has waited for"):
            call()
    with pytest.raises(RuntimeError, match="in use by a committed command buffer"):
        buffer.write(np.zeros(1, np.float32))
    for export in (memoryview, np.frombuffer):
        with rejects(BufferError, "Error getting buffer") as caught:
            export(buffer)
        assert "in use by a committed command buffer" in str(caught.value.__cause__)
    gate.commit()
    command_buffer.wait_until_completed()
    assert buffer.to_numpy().all()
    memoryview(buffer).release()


UNSYNCHRONIZED = """
import warnings, numpy as np, mpsgrad as mg
device = mg.Device("cpu")
ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
x = mg.ImageBatch.from_array(device, ones.reshape(1, 1, 1, 4))
work = device.command_queue().command_buffer()
"""
READ_TWICE = """
work.commit()
work.wait_until_completed()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    values = [getattr(state, name).to_numpy()[:4].tolist() for name in NAMES for _ in range(2)]
print([(w.category.__name__, str(w.message)) for w in caught], values)
"""
# How a state is filled, whose it is, and what is read of it with the numbers it has.
STATES = {
    "convolution": (
        """
source = mg.ArrayConvolutionDataSource(ones.reshape(1, 1, 1, 4))
forward = mg.Convolution(source, device=device)
backward = mg.ConvolutionGradient(source, device=device)
y, (state,) = forward.encode_batch(work, x, with_state=True, allocator=mg.DEFAULT)
backward.encode_batch(work, y, x, [state], allocator=mg.DEFAULT)
""",
        "ConvolutionGradientState",
        {"gradient_for_weights": [4.0] * 4, "gradient_for_biases": [4.0]},
    ),
    "batch normalization": (
        """
source = mg.ArrayBatchNormalizationDataSource(ones, zeros)
state = mg.BatchNormalization(source, device=device).result_state(x[0], x[0])
mg.BatchNormalizationStatistics(device=device).encode_batch(work, x, state)
""",
        "BatchNormalizationState",
        {"mean": [1.0] * 4, "variance": [0.0] * 4},
    ),
    "group normalization": (
        """
source = mg.ArrayGroupNormalizationDataSource(ones, zeros, number_of_groups=1)
forward = mg.GroupNormalization(source, device=device)
backward = mg.GroupNormalizationGradient(device=device)
y, (state,) = forward.encode_batch(work, x, with_state=True, allocator=mg.DEFAULT)
backward.encode_batch(work, x, x, [state], allocator=mg.DEFAULT)
""",
        "GroupNormalizationGradientState",
        {"gradient_for_beta": [1.0] * 4, "gradient_for_gamma": [0.0] * 4},
    ),
}


@pytest.mark.parametrize(("fill", "owner", "numbers"), STATES.values(), ids=STATES)
def test_a_read_without_synchronize_warns_once(fill, owner, numbers):
    """The numbers are there all the same: memory of the CPU device is shared."""
    names = f"NAMES = {list(numbers)}\n"
    printed = python(UNSYNCHRONIZED + fill + names + READ_TWICE).stdout
    warning = f"{owner}.{next(iter(numbers))} is read without synchronize(command_buffer) after"
    assert printed.count("RuntimeWarning") == 1
    assert printed.startswith(f"[('RuntimeWarning', '{warning}")
    assert printed.endswith(f")] {[values for values in numbers.values() for _ in range(2)]}\n")


# --- predicates ---------------------------------------------------------------


def predicate_of(device, *words, offset=0):
    """A predicate over a new buffer of words."""
    buffer = mg.Buffer(device, np.array(words, np.uint32))
    return mg.Predicate(buffer, offset)


def test_predicate_properties(device, queue):
    predicate = predicate_of(device, 1, 0, offset=4)
    assert predicate.offset == 4
    assert predicate.buffer.nbytes == 8
    command_buffer = queue.command_buffer()
    assert command_buffer.predicate is None
    command_buffer.predicate = predicate
    assert command_buffer.predicate is predicate
    command_buffer.predicate = None
    assert command_buffer.predicate is None
    with pytest.raises(TypeError, match="predicate must be a Predicate, got int"):
        command_buffer.predicate = 1


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (-4, "must be a multiple of 4 and not negative, got -4"),
        (2, "must be a multiple of 4 and not negative, got 2"),
        (8, "offset 8 leaves no room for a uint32 in a buffer of 8 bytes"),
        (2**63 - 4, "leaves no room"),
    ],
)
def test_predicates_of_wrong_offsets(device, offset, words):
    with pytest.raises(ValueError, match=words):
        predicate_of(device, 1, 0, offset=offset)


def test_predicates_need_a_buffer():
    for wrong in (None, 3, np.zeros(2, np.uint32)):
        with pytest.raises(TypeError, match="buffer must be a Buffer"):
            mg.Predicate(wrong)


@pytest.mark.parametrize("word", [0, 1, 2, 0x80000000, 0xFFFFFFFF])
def test_a_kernel_runs_if_its_predicate_is_not_zero(device, queue, word):
    predicate = predicate_of(device, 5, word, 0, offset=4)
    destination = image_of(device, np.full((2, 3, 4), 9, np.float32))
    command_buffer = queue.command_buffer()
    command_buffer.predicate = predicate
    linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)), destination)
    finish(command_buffer, destination)
    expected = counting(2, 3, 4) if word else np.full((2, 3, 4), 9)
    assert np.array_equal(destination.read(), expected)


def test_a_predicate_is_read_when_its_turn_comes(device, queue):
    predicate = predicate_of(device, 0)
    destination = blank(device, 2, 3, 4)
    command_buffer = queue.command_buffer()
    command_buffer.predicate = predicate
    linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)), destination)
    predicate.buffer.write(np.array([1], np.uint32))
    finish(command_buffer, destination)
    assert np.array_equal(destination.read(), counting(2, 3, 4))


def test_a_predicate_decides_for_the_kernels_encoded_under_it(device, queue):
    source = image_of(device, counting(2, 3, 4))
    command_buffer = queue.command_buffer()
    results = []
    for predicate in (None, predicate_of(device, 0), predicate_of(device, 1), None):
        command_buffer.predicate = predicate
        destination = blank(device, 2, 3, 4)
        linear(device).encode(command_buffer, source, destination)
        results.append(destination)
    command_buffer.predicate = None
    finish(command_buffer, *results)
    assert [bool(image.read().any()) for image in results] == [True, False, True, True]


def test_a_skipped_kernel_has_spent_its_reads(device, queue):
    command_buffer = queue.command_buffer()
    temporary = linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    command_buffer.predicate = predicate_of(device, 0)
    result = linear(device).encode(command_buffer, temporary, allocator=mg.DEFAULT)
    assert temporary.read_count == 0
    finish(command_buffer, result)


def test_a_skipped_kernel_leaves_its_new_destination_zero(device, queue):
    source = image_of(device, counting(2, 3, 4))
    for _ in range(3):  # over memory that held something else
        dirty = queue.command_buffer()
        finish(dirty, linear(device).encode(dirty, source, allocator=mg.DEFAULT))
        command_buffer = queue.command_buffer()
        forward, state = linear(device).encode(
            command_buffer, source, with_state=True, allocator=mg.DEFAULT
        )
        command_buffer.predicate = predicate_of(device, 0)
        result = linear(device).encode(command_buffer, source, allocator=mg.DEFAULT)
        gradient = linear_gradient(device).encode(
            command_buffer, forward, source, state, allocator=mg.DEFAULT
        )
        finish(command_buffer, result, gradient)
        assert not result.read().any()
        assert not gradient.read().any()


def test_the_predicates_buffer_is_in_use(device, queue):
    predicate = predicate_of(device, 1)
    gate = queue.command_buffer()
    gate.enqueue()
    command_buffer = queue.command_buffer()
    command_buffer.predicate = predicate
    linear(device).encode(
        command_buffer, image_of(device, counting(2, 3, 4)), blank(device, 2, 3, 4)
    )
    command_buffer.commit()
    with pytest.raises(RuntimeError, match="in use by a committed command buffer"):
        predicate.buffer.write(np.array([0], np.uint32))
    assert predicate.buffer.to_numpy().view(np.uint32)[0] == 1  # reading is fine
    gate.commit()
    command_buffer.wait_until_completed()
    predicate.buffer.write(np.array([0], np.uint32))


def test_the_work_keeps_its_predicate(device, queue):
    import gc

    destination = blank(device, 2, 3, 4)
    command_buffer = queue.command_buffer()
    command_buffer.predicate = predicate_of(device, 1)
    linear(device).encode(command_buffer, image_of(device, counting(2, 3, 4)), destination)
    command_buffer.predicate = None
    gc.collect()
    finish(command_buffer, destination)
    assert np.array_equal(destination.read(), counting(2, 3, 4))


def test_a_temporary_under_a_predicate(device, queue):
    """The clearing of a temporary is not a kernel: it happens whatever the predicate says."""
    command_buffer = queue.command_buffer()
    command_buffer.predicate = predicate_of(device, 0)
    temporary = mg.TemporaryImage(
        command_buffer, mg.ImageDescriptor(width=3, height=2, feature_channels=4)
    )
    command_buffer.predicate = None
    result = linear(device, 1.0, 1.0).encode(command_buffer, temporary, allocator=mg.DEFAULT)
    finish(command_buffer, result)
    assert (result.read() == 1).all()
    spend(*(image for image in [temporary] if image.read_count))
