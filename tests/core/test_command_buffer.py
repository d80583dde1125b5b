"""Queues and command buffers: what is legal when, in which order work runs, who is told."""

import gc
import signal
import threading
import time
import weakref
from functools import partial

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    blank,
    counting,
    descriptor,
    finish,
    image_of,
    linear,
    read,
    spend,
)
from tests.rejects import rejects
from tests.repeats import call_at_once

Status = mg.CommandBufferStatus


@pytest.fixture
def gate(queue):
    """A buffer that holds its place in the queue: nothing behind it runs before `gate.commit()`."""
    command_buffer = queue.command_buffer()
    command_buffer.enqueue()
    return command_buffer


def encode_something(device, command_buffer):
    """Encode work and return its result."""
    return linear(device, 2.0).encode(
        command_buffer, image_of(device, counting(2, 3, 4)), allocator=mg.DEFAULT
    )


def test_a_queue_belongs_to_its_device(device, queue):
    assert queue.device == device
    assert mg.CommandQueue(device).device == device
    assert queue.command_buffer().queue is queue
    assert mg.CommandBuffer(queue).device == device
    queue.label = "training"
    assert queue.label == "training"
    assert device.kind in repr(queue)


def test_status_follows_the_life_of_a_buffer(device, queue):
    command_buffer = queue.command_buffer()
    assert command_buffer.status == Status.NOT_ENQUEUED
    encode_something(device, command_buffer)
    command_buffer.enqueue()
    assert command_buffer.status == Status.ENQUEUED
    encode_something(device, command_buffer)  # still legal
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert command_buffer.status == Status.COMPLETED
    assert command_buffer.error is None


def test_status_values_are_metals():
    assert [int(s) for s in Status.__members__.values()] == [0, 1, 2, 3, 4, 5]


def test_committed_work_behind_an_open_buffer_waits(queue, gate):
    behind = queue.command_buffer()
    behind.commit()
    time.sleep(0.01)
    assert behind.status == Status.COMMITTED
    gate.commit()
    behind.wait_until_completed()
    assert behind.status == Status.COMPLETED


def state_of(queue, name):
    """A buffer in a state of its life."""
    command_buffer = queue.command_buffer()
    if name == "enqueued":
        command_buffer.enqueue()
    if name in ("committed", "completed"):
        command_buffer.commit()
    if name == "completed":
        command_buffer.wait_until_completed()
    return command_buffer


ILLEGAL = [
    ("enqueued", "enqueue", "enqueue() is only legal once"),
    ("committed", "enqueue", "enqueue() is only legal once"),
    ("completed", "enqueue", "this buffer is completed"),
    ("committed", "commit", "commit() is only legal before commit()"),
    ("completed", "commit", "this buffer is completed"),
    ("committed", "commit_and_continue", "commit_and_continue() is only legal before commit()"),
    ("new", "wait_until_scheduled", "before commit() would never return"),
    ("enqueued", "wait_until_scheduled", "before commit() would never return"),
    ("new", "wait_until_completed", "before commit() would never return"),
    ("enqueued", "wait_until_completed", "before commit() would never return"),
    ("committed", "add_scheduled_handler", "add_scheduled_handler() is only legal before"),
    ("committed", "add_completed_handler", "add_completed_handler() is only legal before"),
    ("completed", "add_completed_handler", "this buffer is completed"),
]


@pytest.mark.parametrize(("state", "call", "words"), ILLEGAL, ids=lambda value: str(value)[:24])
def test_illegal_transitions(queue, state, call, words):
    command_buffer = state_of(queue, state)
    before = command_buffer.status
    arguments = [print] if "handler" in call else []
    with pytest.raises(
        mg.errors.CommandBufferError, match=words.replace("(", r"\(").replace(")", r"\)")
    ) as caught:
        getattr(command_buffer, call)(*arguments)
    assert caught.value.code == 0
    assert command_buffer.status >= before  # nothing was undone
    if state in ("new", "enqueued"):
        command_buffer.commit()
        command_buffer.wait_until_completed()


@pytest.mark.parametrize("state", ["committed", "completed"])
def test_nothing_can_be_encoded_after_the_commit(device, queue, state):
    command_buffer = state_of(queue, state)
    source = image_of(device, counting(2, 3, 4))
    with pytest.raises(
        mg.errors.CommandBufferError, match=r"Neuron: the command buffer is already"
    ):
        linear(device).encode(command_buffer, source, blank(device, 2, 3, 4))
    with pytest.raises(mg.errors.CommandBufferError, match=r"encode into a new one"):
        linear(device).encode(command_buffer, source)
    with pytest.raises(mg.errors.CommandBufferError, match=r"TemporaryImage: the command buffer"):
        mg.TemporaryImage(command_buffer, descriptor())
    with pytest.raises(mg.errors.CommandBufferError, match=r"TemporaryImage: the command buffer"):
        mg.ImageBatch.temporary(command_buffer, descriptor(), 2)
    with pytest.raises(mg.errors.CommandBufferError, match=r"State: the command buffer"):
        mg.State.temporary(command_buffer, 16)
    with pytest.raises(mg.errors.CommandBufferError, match=r"synchronize\(\): the command buffer"):
        source.synchronize(command_buffer)


def test_storage_of_a_temporary_state_cannot_appear_after_the_commit(queue):
    command_buffer = queue.command_buffer()
    state = mg.State.temporary(command_buffer, 16)
    command_buffer.commit()
    with rejects(mg.errors.CommandBufferError, "State: the command buffer is already"):
        state.resource_at(0)
    command_buffer.wait_until_completed()
    state.read_count = 0


def test_buffers_run_in_the_order_they_were_enqueued(device, queue):
    image = image_of(device, np.zeros((1, 1, 1), np.float32))
    other = blank(device, 1, 1, 1)
    first, second = queue.command_buffer(), queue.command_buffer()
    first.enqueue()
    second.enqueue()
    linear(device, 10.0, 2.0).encode(second, other, image)
    linear(device, 1.0, 1.0).encode(first, image, other)
    image.synchronize(second)
    second.commit()  # committed first, runs second
    first.commit()
    second.wait_until_completed()
    first.wait_until_completed()
    assert image.read().item() == 12.0


def test_commands_of_a_buffer_run_in_the_order_they_were_encoded(device, queue):
    command_buffer = queue.command_buffer()
    image = image_of(device, np.ones((1, 1, 1), np.float32))
    for step in range(2, 7):
        image = linear(device, float(step)).encode(command_buffer, image, allocator=mg.DEFAULT)
    assert read(command_buffer, image).item() == 720.0


def test_dropping_an_enqueued_buffer_does_not_block_the_queue(device, queue):
    dropped = queue.command_buffer()
    dropped.enqueue()
    behind = queue.command_buffer()
    result = encode_something(device, behind)
    result.synchronize(behind)
    behind.commit()
    del dropped
    gc.collect()
    behind.wait_until_completed()
    assert np.array_equal(result.read(), 2 * counting(2, 3, 4))


def test_a_dropped_buffer_frees_its_images(device, queue):
    command_buffer = queue.command_buffer()
    result = encode_something(device, command_buffer)
    result.synchronize(command_buffer)
    with pytest.raises(RuntimeError, match="has not been committed"):
        result.read()
    del command_buffer
    gc.collect()
    assert result.read().shape == (2, 3, 4)  # nobody will write it any more


def test_context_manager_commits_and_does_not_wait(device, queue, gate):
    with queue.command_buffer() as command_buffer:
        result = encode_something(device, command_buffer)
        result.synchronize(command_buffer)
        assert command_buffer.status == Status.NOT_ENQUEUED
    assert command_buffer.status == Status.COMMITTED
    gate.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(result.read(), 2 * counting(2, 3, 4))


def test_context_manager_commits_nothing_after_an_error(queue):
    with pytest.raises(ZeroDivisionError), queue.command_buffer() as command_buffer:
        1 / 0  # noqa: B018
    assert command_buffer.status == Status.NOT_ENQUEUED
    with queue.command_buffer() as command_buffer:
        command_buffer.commit()  # by hand: the exit has nothing left to do
    command_buffer.wait_until_completed()


# --- handlers -----------------------------------------------------------------


def test_handlers_are_called_in_order_with_their_buffer(device, queue):
    seen = []
    command_buffer = queue.command_buffer()
    encode_something(device, command_buffer)
    command_buffer.add_completed_handler(lambda cb: seen.append(("completed", cb, cb.status)))
    command_buffer.add_completed_handler(lambda cb: seen.append(("second", cb, cb.status)))
    command_buffer.add_scheduled_handler(lambda cb: seen.append(("scheduled", cb, cb.status)))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert [name for name, _, _ in seen] == ["scheduled", "completed", "second"]
    assert all(cb is command_buffer for _, cb, _ in seen)
    assert [status for _, _, status in seen][1:] == [Status.COMPLETED] * 2


def test_handlers_of_a_queue_run_in_the_order_of_its_buffers(device, queue):
    seen = []
    for number in range(60):
        command_buffer = queue.command_buffer()
        encode_something(device, command_buffer)
        for kind in ("scheduled", "completed"):
            add = getattr(command_buffer, f"add_{kind}_handler")
            add(lambda _, entry=(number, kind): seen.append(entry))
        command_buffer.commit()
        if number % 7 == 0:
            command_buffer.wait_until_completed()  # some run here, some in the background
    command_buffer.wait_until_completed()
    assert [number for number, kind in seen if kind == "completed"] == list(range(60))
    assert [number for number, kind in seen if kind == "scheduled"] == list(range(60))
    order = {entry: place for place, entry in enumerate(seen)}
    assert all(order[n, "scheduled"] < order[n, "completed"] for n in range(60))


def test_handlers_run_on_another_thread_while_nobody_waits(queue):
    threads = []
    done = threading.Event()

    def handler(_):
        threads.append(threading.get_ident())
        done.set()

    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(handler)
    command_buffer.commit()
    assert done.wait(10)
    command_buffer.wait_until_completed()
    assert threads != [threading.get_ident()]


def test_handlers_get_their_buffer_even_if_nobody_else_has_it(device, queue):
    seen = []
    done = threading.Event()

    def handler(command_buffer):
        seen.append(command_buffer)
        done.set()

    def submit():
        command_buffer = queue.command_buffer()
        encode_something(device, command_buffer)
        command_buffer.add_completed_handler(handler)
        command_buffer.commit()

    submit()
    assert done.wait(10)
    assert isinstance(seen[0], mg.CommandBuffer)
    assert seen[0].status == Status.COMPLETED


@pytest.mark.parametrize("kind", ["scheduled", "completed"])
def test_a_raising_handler_harms_nobody(queue, kind, monkeypatch):
    import sys

    raised, after = [], []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    command_buffer = queue.command_buffer()
    add = getattr(command_buffer, f"add_{kind}_handler")

    def bad(_):
        raise KeyError("from a handler")

    add(bad)
    add(after.append)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert command_buffer.status == Status.COMPLETED
    assert [type(unraisable.exc_value) for unraisable in raised] == [KeyError]
    assert after == [command_buffer]


def test_a_handler_may_encode_commit_and_wait(device, queue):
    results = []

    def handler(_):
        following = queue.command_buffer()
        result = encode_something(device, following)
        finish(following, result)
        results.append(result.read())

    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(handler)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(results[0], 2 * counting(2, 3, 4))


def test_a_handler_may_let_another_thread_use_the_queue(device, queue):
    results = []

    def work():
        following = queue.command_buffer()
        results.append(read(following, encode_something(device, following)))

    def handler(_):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(handler)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert len(results) == 1


def test_work_that_nobody_waits_for_runs_among_work_that_is_waited_for(device, queue):
    ran = [threading.Event() for _ in range(30)]
    for number, event in enumerate(ran):
        for _ in range(number % 3):
            waited = queue.command_buffer()
            finish(waited, encode_something(device, waited))
        left_alone = queue.command_buffer()
        encode_something(device, left_alone)
        left_alone.add_completed_handler(lambda _, event=event: event.set())
        left_alone.commit()
        if number % 2:
            assert event.wait(10)
    assert all(event.wait(10) for event in ran)


def test_work_that_nobody_waits_for_runs_after_much_that_was_waited_for(device, queue):
    for _ in range(2):
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            waited = queue.command_buffer()
            finish(waited, encode_something(device, waited))
        ran = threading.Event()
        left_alone = queue.command_buffer()
        encode_something(device, left_alone)
        left_alone.add_completed_handler(lambda _, ran=ran: ran.set())
        left_alone.commit()
        assert ran.wait(10)


@pytest.mark.parametrize("kind", ["scheduled", "completed"])
def test_a_handler_may_wait_for_its_own_buffer(device, queue, kind):
    seen = []

    def handler(command_buffer):
        command_buffer.wait_until_scheduled()
        command_buffer.wait_until_completed()
        seen.append(command_buffer.status)

    command_buffer = queue.command_buffer()
    encode_something(device, command_buffer)
    getattr(command_buffer, f"add_{kind}_handler")(handler)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert seen == [Status.COMPLETED]


def test_handlers_are_released_with_their_buffer(queue):
    class Handler:
        def __call__(self, command_buffer):
            pass

    def submit(commit):
        handler = Handler()
        command_buffer = queue.command_buffer()
        command_buffer.add_scheduled_handler(handler)
        command_buffer.add_completed_handler(handler)
        if commit:
            command_buffer.commit()
            command_buffer.wait_until_completed()
        return weakref.ref(handler)

    run, dropped = submit(True), submit(False)
    gc.collect()
    assert run() is None
    assert dropped() is None


def test_handlers_must_be_callable(queue):
    command_buffer = queue.command_buffer()
    for wrong in (None, 3, "print"):
        with pytest.raises(TypeError, match="handler must be a Callable"):
            command_buffer.add_completed_handler(wrong)


# --- waiting ------------------------------------------------------------------


def test_waiting_lets_other_threads_run(queue, gate):
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    opener = threading.Timer(0.05, gate.commit)
    opener.start()
    command_buffer.wait_until_completed()  # would never return if the timer could not run
    opener.join()
    assert gate.status >= Status.COMMITTED


def test_many_threads_may_wait_for_one_buffer(queue, gate):
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    statuses = []

    def wait():
        command_buffer.wait_until_completed()
        statuses.append(command_buffer.status)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.commit()
    for thread in threads:
        thread.join(10)
    assert statuses == [Status.COMPLETED] * 8


def test_waiting_twice_is_fine(queue):
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    command_buffer.wait_until_scheduled()
    command_buffer.wait_until_completed()
    command_buffer.wait_until_scheduled()
    command_buffer.wait_until_completed()


def test_threads_with_queues_of_their_own(device):
    kernel_arguments = [(float(i + 1), float(i)) for i in range(6)]
    results = {}

    def work(index, a, b):
        queue = device.command_queue()
        kernel = linear(device, a, b)
        for _ in range(5):
            command_buffer = queue.command_buffer()
            image = image_of(device, counting(4, 5, 3))
            for _ in range(2):
                image = kernel.encode(command_buffer, image, allocator=mg.DEFAULT)
            results[index] = read(command_buffer, image)

    call_at_once(
        partial(work, index, *arguments) for index, arguments in enumerate(kernel_arguments)
    )
    for index, (a, b) in enumerate(kernel_arguments):
        assert np.array_equal(results[index], a * (a * counting(4, 5, 3) + b) + b)


def test_threads_may_share_a_queue(device, queue):
    def work():
        for _ in range(10):
            command_buffer = queue.command_buffer()
            result = read(command_buffer, encode_something(device, command_buffer))
            assert np.array_equal(result, 2 * counting(2, 3, 4))

    call_at_once([work] * 4)


def test_threads_may_encode_into_one_buffer(device, queue):
    command_buffer = queue.command_buffer()
    results = []

    def work():
        for _ in range(50):
            results.append(encode_something(device, command_buffer))

    call_at_once([work] * 4)
    finish(command_buffer, *results)
    assert len(results) == 200
    assert all(np.array_equal(image.read(), 2 * counting(2, 3, 4)) for image in results)


# --- the queue's limit --------------------------------------------------------


def test_64_open_buffers_are_the_limit(queue):
    buffers = [queue.command_buffer() for _ in range(64)]
    with pytest.raises(mg.errors.CommandBufferError, match="64 command buffers of this queue"):
        queue.command_buffer()
    with pytest.raises(mg.errors.CommandBufferError, match="commit or drop"):
        mg.CommandBuffer(queue)
    buffers.pop()
    gc.collect()
    buffers.append(queue.command_buffer())
    buffers[0].commit()
    buffers[0].wait_until_completed()
    buffers.append(queue.command_buffer())


def test_at_the_limit_a_new_buffer_waits_for_one_that_is_under_way(queue):
    for _ in range(300):
        queue.command_buffer().commit()
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    command_buffer.wait_until_completed()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals of a timer")
def test_at_the_limit_a_wait_can_be_interrupted(queue, gate):
    for _ in range(62):
        queue.command_buffer().commit()
    last = queue.command_buffer()

    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        last.commit()
        for wait in (
            queue.command_buffer,
            lambda: mg.CommandBuffer(queue),
            gate.commit_and_continue,
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Alarm):
                wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.commit()
    last.wait_until_completed()


def test_a_wait_ends_with_the_work_it_is_for(queue):
    """Not with what was committed after it, whose handler may wait for this thread."""
    first, second = queue.command_buffer(), queue.command_buffer()
    gone_on, seen = threading.Event(), []
    second.add_completed_handler(lambda _: seen.append(gone_on.wait(30)))
    first.commit()
    second.commit()
    first.wait_until_completed()
    gone_on.set()
    second.wait_until_completed()
    assert seen == [True]


def test_work_that_a_wait_leaves_behind_runs_at_once(device, queue):
    """The worker may nap while somebody else runs what is ready, but is woken for the rest."""
    if device.kind != "cpu":
        pytest.skip("a fact of the CPU device's worker")
    waits = []
    for _ in range(200):
        first, second = queue.command_buffer(), queue.command_buffer()
        encode_something(device, first)
        encode_something(device, second)
        first.commit()
        second.commit()
        first.wait_until_completed()
        start = time.perf_counter()
        while second.status < mg.CommandBufferStatus.COMPLETED:
            time.sleep(0)
        waits.append(time.perf_counter() - start)
    # A nap takes 500; on a busy machine many threads are woken later than that.
    assert np.percentile(waits, 20) < 300e-6


def test_at_the_limit_a_handler_can_still_go_on(queue):
    """64 handlers each submit another buffer: the worker must not wait for itself."""
    left = threading.Semaphore(0)
    budget = iter(range(200))

    def again(_):
        if next(budget, None) is not None:
            submit()
        left.release()

    def submit():
        command_buffer = queue.command_buffer()
        command_buffer.add_completed_handler(again)
        command_buffer.commit()

    for _ in range(64):
        submit()
    for _ in range(264):
        assert left.acquire(timeout=10)


# --- commit_and_continue ------------------------------------------------------


def test_temporaries_survive_commit_and_continue(device, queue):
    command_buffer = queue.command_buffer()
    temporary = linear(device, 2.0).encode(command_buffer, image_of(device, counting(2, 3, 4)))
    command_buffer.commit_and_continue()
    assert command_buffer.status == Status.NOT_ENQUEUED
    result = linear(device, 3.0).encode(command_buffer, temporary, allocator=mg.DEFAULT)
    assert np.array_equal(read(command_buffer, result), 6 * counting(2, 3, 4))


def test_handlers_stay_with_the_root_they_were_added_to(queue):
    seen = []
    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(lambda _: seen.append("first"))
    command_buffer.commit_and_continue()
    command_buffer.add_completed_handler(lambda _: seen.append("second"))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert seen == ["first", "second"]


def test_waiting_after_commit_and_continue(device, queue):
    command_buffer = queue.command_buffer()
    result = encode_something(device, command_buffer)
    result.synchronize(command_buffer)
    command_buffer.commit_and_continue()
    command_buffer.wait_until_completed()  # nothing uncommitted: waits for what is
    assert np.array_equal(result.read(), 2 * counting(2, 3, 4))
    encode_something(device, command_buffer)
    with pytest.raises(
        mg.errors.CommandBufferError, match=r"encoded after commit_and_continue\(\)"
    ):
        command_buffer.wait_until_completed()
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_synchronizing_is_work(device, queue):
    """So that nobody waits for a root with a copy in it that was never committed."""
    image, vector = (
        image_of(device, counting(2, 3, 4)),
        mg.Vector.from_array(device, np.ones(4, np.float32)),
    )
    state = mg.State(device, mg.Buffer(device, 16))
    for synchronize in (image.synchronize, vector.synchronize, state.synchronize):
        command_buffer = queue.command_buffer()
        encode_something(device, command_buffer)
        command_buffer.commit_and_continue()
        synchronize(command_buffer)
        with pytest.raises(mg.errors.CommandBufferError, match="encoded after commit_and_continue"):
            command_buffer.wait_until_completed()
        command_buffer.commit()
        command_buffer.wait_until_completed()


def test_one_buffer_may_continue_for_long(device, queue):
    command_buffer = queue.command_buffer()
    image = image_of(device, np.zeros((1, 1, 1), np.float32))
    kernel = linear(device, 1.0, 1.0)
    for _ in range(200):
        image = kernel.encode(command_buffer, image)
        command_buffer.commit_and_continue()
    result = kernel.encode(command_buffer, image, allocator=mg.DEFAULT)
    assert read(command_buffer, result).item() == 201.0


def test_commit_and_continue_under_the_gate(device, queue, gate):
    command_buffer = queue.command_buffer()
    first = encode_something(device, command_buffer)
    first.synchronize(command_buffer)
    command_buffer.commit_and_continue()
    second = encode_something(device, command_buffer)
    second.synchronize(command_buffer)
    gate.commit()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(first.read(), second.read())


# --- wrong arguments ----------------------------------------------------------


def test_only_queues_make_command_buffers(device):
    for wrong in (None, 3, device):
        with pytest.raises(TypeError, match="queue must be a CommandQueue"):
            mg.CommandBuffer(wrong)
    for wrong in (None, "cpu"):
        with pytest.raises(TypeError, match="device must be a Device"):
            mg.CommandQueue(wrong)


def test_a_temporary_dropped_with_its_buffer(queue):
    command_buffer = queue.command_buffer()
    temporary = mg.TemporaryImage(command_buffer, descriptor())
    del command_buffer
    gc.collect()
    assert temporary.read_count == 1
    spend(temporary)
