"""The CPU device in a process: forks, exits, signals, memory, and work that fails.

These are facts of that device and of the interpreter it lives in; each test that could take the
suite down runs in an interpreter of its own.
"""

import gc
import os
import re
import sys
import threading

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import (
    counting,
    finish,
    image_of,
    images_of,
    linear,
    linear_gradient,
    python,
    python_of_little_memory,
)

SETUP = """
import os, sys, threading, numpy as np, mpsgrad as mg
device = mg.Device("cpu")
queue = device.command_queue()
tanh = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.TANH), device=device)
x = np.ones((2, 3, 4), np.float32)
y = tanh(x)

def encode(command_buffer, side=8):
    d = mg.ImageDescriptor(width=side, height=side, feature_channels=16)
    return tanh.encode(command_buffer, mg.Image(device, d), allocator=mg.DEFAULT)

def busy():
    buffers = [queue.command_buffer() for _ in range(8)]
    for command_buffer in buffers:
        for _ in range(4):
            encode(command_buffer, 256)
        command_buffer.commit()
    return buffers
"""


@pytest.fixture
def cpu():
    return mg.Device("cpu")


# --- forks --------------------------------------------------------------------

FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
waited = queue.command_buffer(); encode(waited)
open_buffer = queue.command_buffer(); result = encode(open_buffer)
enqueued = queue.command_buffer(); enqueued.enqueue()
buffers = busy()
child = os.fork()
if child == 0:
    code = 1
    try:
        for call in (queue.command_buffer, open_buffer.commit, open_buffer.enqueue,
                     open_buffer.commit_and_continue, enqueued.commit,
                     buffers[-1].wait_until_completed, buffers[-1].wait_until_scheduled):
            try:
                call()
            except mg.errors.DeviceError as error:
                assert "made before fork()" in str(error), error
            else:
                raise AssertionError(call)
        assert open_buffer.status == mg.CommandBufferStatus.NOT_ENQUEUED
        assert np.array_equal(tanh(x), y)  # with a queue of the child's own
        fresh = device.command_queue().command_buffer()
        image = encode(fresh)
        fresh.commit(); fresh.wait_until_completed()
        assert image.read().shape == (8, 8, 16)
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    END
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
enqueued.commit()
buffers[-1].wait_until_completed()
print("parent went on")
"""


NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
NO_THREAD_SANITIZER = pytest.mark.not_sanitized(
    "thread", reason="it refuses threads in the child of a fork"
)
NO_LEAK_CHECK = pytest.mark.not_sanitized(
    "address", reason="what the threads of the parent hold is lost in the child"
)


@NEEDS_FORK
@NO_THREAD_SANITIZER
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("sys.stderr.flush(); os._exit(code)", id="_exit"),
        pytest.param("sys.exit(code)", id="exit", marks=NO_LEAK_CHECK),
    ],
)
def test_a_forked_child_uses_queues_of_its_own(end):
    done = python(SETUP + FORK.replace("END", end))
    assert done.stdout.count("parent went on") == 1


# --- exits --------------------------------------------------------------------


FORK_UNDER_A_HANDLER = """
warnings.simplefilter("ignore", DeprecationWarning)
for _ in range(10):
    command_buffer = queue.command_buffer()
    encode(command_buffer, 64)
    command_buffer.add_completed_handler(lambda _: time.sleep(0.02))
    command_buffer.commit()
    time.sleep(0.01)  # the handler is under way
    if (child := os.fork()) == 0:
        assert np.array_equal(tanh(x), y)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@NEEDS_FORK
@NO_THREAD_SANITIZER
@NO_LEAK_CHECK
def test_a_child_has_the_number_of_threads_that_was_set():
    done = python(
        SETUP
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
for count in (1, 3):
    mg.set_num_threads(count)
    child = os.fork()
    if child == 0:
        os._exit(mg.get_num_threads())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert done.stdout == "1\n3\n"


def test_a_child_convolves_though_its_parent_was_packing_weights():
    """The fork may come while a thread packs; that thread is not there in the child."""
    done = python(
        SETUP
        + """
import time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
weights = mg.ArrayConvolutionDataSource(np.ones((1024, 3, 3, 1024), np.float32))
kernel = mg.Convolution(weights, device=device)
x = np.ones((1, 8, 8, 1024), np.float32)
sources = mg.ImageBatch.from_array(device, x)
for turn in range(8):
    kernel.reload_weights_and_biases_from_data_source()
    command_buffer = queue.command_buffer()
    kernel.encode(command_buffer, sources, allocator=mg.DEFAULT)
    command_buffer.commit()
    time.sleep(0.001 * turn)  # packing takes some 20 ms
    child = os.fork()
    if child == 0:
        os._exit(0 if kernel(x)[0, 4, 4, 0] == 9 * 1024 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    command_buffer.wait_until_completed()
"""
    )
    assert done.returncode == 0


@NO_LEAK_CHECK
def test_a_child_does_not_wait_for_handlers_of_its_parent():
    python("import time, warnings" + SETUP + FORK_UNDER_A_HANDLER)


FORK_UNDER_A_STEP = """
warnings.simplefilter("ignore", DeprecationWarning)
with _updates._time_steps:  # as if another thread were in a step
    if (child := os.fork()) == 0:
        with _updates._time_steps:
            sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@NEEDS_FORK
@NO_THREAD_SANITIZER
@NO_LEAK_CHECK
def test_a_child_does_not_wait_for_steps_of_its_parent():
    start = "import warnings\nfrom mpsgrad import _updates"
    python(start + SETUP + FORK_UNDER_A_STEP)


DAEMONS = """
sgd = mg.SGD(0.1, device=device)
one, two = (mg.Vector(device, mg.VectorDescriptor(8)) for _ in range(2))
labels = mg.LossLabels(device, np.ones((1, 1, 4), np.float32))
loss = mg.Loss(mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM), device=device)
scores = mg.Image(device, mg.ImageDescriptor(width=1, height=1, feature_channels=4))

def step():
    sgd.encode_vector(queue.command_buffer(), one, two, None, two)

def lose():
    loss.encode(queue.command_buffer(), scores, labels, allocator=mg.DEFAULT)

full = device.command_queue()
waiting = full.command_buffer()
waiting.enqueue()
for _ in range(63):
    full.command_buffer().commit()

def forever(work):
    while True:
        work()

for work in (step, lose, full.command_buffer):
    threading.Thread(target=forever, args=(work,), daemon=True).start()
time.sleep(0.2)
"""


def test_exit_with_daemon_threads_at_work():
    python("import time" + SETUP + DAEMONS)


def test_work_under_way_at_exit_is_finished():
    done = python(
        SETUP
        + """
buffers = [queue.command_buffer() for _ in range(3)]
for number, command_buffer in enumerate(buffers):
    encode(command_buffer, 256)
    command_buffer.add_completed_handler(lambda cb, n=number: print("completed", n, cb.status.name))
    command_buffer.commit()
"""
    )
    assert done.stdout.split("\n")[:3] == [f"completed {n} COMPLETED" for n in range(3)]
    assert done.stderr == ""


def test_exit_with_everything_left_open():
    done = python(
        SETUP
        + """
enqueued = queue.command_buffer(); enqueued.enqueue()
behind = queue.command_buffer(); encode(behind); behind.commit()
temporary = mg.TemporaryImage(enqueued, mg.ImageDescriptor())
state = mg.State.temporary(enqueued, 16)
enqueued.add_completed_handler(print)
array = mg.ImageBatch.from_array(device, np.ones((1, 2, 3, 4), np.float32)).to_array()
view = memoryview(mg.Buffer(device, 16))
class Policy(mg.Padding):
    def padding_method(self): return 0x10
tanh.padding = Policy()
tanh.destination_image_allocator = lambda *_: None
print("done")
"""
    )
    assert done.stdout == "done\n"


def test_exit_does_not_wait_for_handlers_that_always_commit_again():
    done = python(
        SETUP
        + """
def again(_):
    following = queue.command_buffer()
    following.add_completed_handler(again)
    following.commit()
for _ in range(4):
    again(None)
print("leaving")
"""
    )
    assert done.stdout == "leaving\n"


def test_work_of_exit_functions_runs():
    done = python(
        """
import atexit
holder = []
@atexit.register
def late():  # registered first, called last
    command_buffer = holder[0].command_buffer()
    image = encode(command_buffer)
    seen = []
    command_buffer.add_completed_handler(lambda cb: seen.append(cb.status.name))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    print(seen, image.read().shape, float(tanh(x)[0, 0, 0]) == float(y[0, 0, 0]))
"""
        + SETUP
        + "holder.append(queue)\n"
    )
    assert done.stdout == "['COMPLETED'] (8, 8, 16) True\n"


def test_exit_functions_need_not_wait_for_the_end():
    """No worker schedules what they commit: committing has to."""
    done = python(
        """
import atexit
@atexit.register
def late():  # registered first, called last
    command_buffer = queue.command_buffer()
    encode(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_scheduled()
    print(command_buffer.status.name)
"""
        + SETUP
    )
    assert done.stdout == "COMPLETED\n"


def test_exit_while_threads_wait():
    done = python(
        SETUP
        + """
gate = queue.command_buffer(); gate.enqueue()
behind = queue.command_buffer(); behind.commit()
threading.Thread(target=behind.wait_until_completed, daemon=True).start()
busy()
print("done")
""",
    )
    assert done.stdout == "done\n"


def test_exit_by_an_error_keeps_its_traceback():
    done = python(SETUP + "busy()\nraise SystemExit(7)\n", check=False)
    assert (done.returncode, done.stderr) == (7, "")
    done = python(SETUP + "command_buffer = busy()[0]\n1 / 0\n", check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero")


# --- signals ------------------------------------------------------------------


def test_a_wait_can_be_interrupted():
    done = python(
        SETUP
        + """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
gate = queue.command_buffer(); gate.enqueue()
behind = queue.command_buffer(); behind.commit()
for wait in (behind.wait_until_completed, behind.wait_until_scheduled):
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
gate.commit()
behind.wait_until_completed()
print("completed")
"""
    )
    assert done.stdout == "interrupted\ninterrupted\ncompleted\n"


def test_a_handler_that_is_interrupted_tells_who_waits():
    """Whoever waits may run it, and the wait would end as if nothing had happened."""
    done = python(
        SETUP
        + """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
for _ in range(200):  # until waits are known to follow commits, and run what is committed
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    command_buffer.wait_until_completed()

def handler(_):
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass

command_buffer = queue.command_buffer()
command_buffer.add_completed_handler(handler)
command_buffer.commit()
try:
    command_buffer.wait_until_completed()
    time.sleep(0.5)
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    assert done.stdout == "interrupted\n"


# --- work that fails ----------------------------------------------------------

OUT_OF_MEMORY = """
source = mg.Image(device, mg.ImageDescriptor(
    width=16384, height=2, feature_channels=256, channel_format=mg.ChannelFormat.FLOAT16))
pooling = mg.PoolingMax(3, 3, device=device)  # reads float16 by way of a float32 row
def submit():
    command_buffer = queue.command_buffer()
    result = pooling.encode(command_buffer, source, allocator=mg.DEFAULT)
    seen = []
    command_buffer.add_completed_handler(lambda cb: seen.append((cb.status.name, cb.error.code)))
    return command_buffer, result, seen
busy()[-1].wait_until_completed()  # the queue has its thread
command_buffer, result, seen = submit()
mg.set_num_threads(1)
with limited_memory(2 << 20):
    command_buffer.commit()
    try:
        command_buffer.wait_until_completed()
    except mg.errors.CommandBufferError as error:
        print(error.code, error)
    else:
        print("completed")
print(command_buffer.status.name, seen, command_buffer.error.code)
try:
    command_buffer.wait_until_completed()
except mg.errors.CommandBufferError as error:
    print("again", error.code)
command_buffer, result, seen = submit()  # the queue goes on
command_buffer.commit()
command_buffer.wait_until_completed()
print(command_buffer.status.name, command_buffer.error)
"""


@pytest.mark.not_sanitized(reason="its own memory has no room under the limit")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_work_that_runs_out_of_memory_fails_when_it_is_waited_for():
    done = python_of_little_memory(SETUP + OUT_OF_MEMORY)
    why, *rest = done.stdout.splitlines()
    assert re.fullmatch(
        r"8 CommandBuffer: execution failed: the CPU device has no room for \d+ bytes more, "
        r"beside \d+",
        why,
    )
    assert rest == [
        "ERROR [('ERROR', 8)] 8",
        "again 8",
        "COMPLETED None",
    ]


# --- processors ---------------------------------------------------------------

PROCESSORS = """
import time
mg.set_num_threads(3)
here = os.sched_getaffinity(0)

def work_after_sleep():
    for _ in range(20):
        time.sleep(0.005)  # long enough for idle threads to sleep
        command_buffer = queue.command_buffer()
        encode(command_buffer, 256)
        command_buffer.commit()
        command_buffer.wait_until_completed()

def sets():
    return {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}
"""

on_two_processors = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two processors to choose from",
)


@on_two_processors
def test_threads_that_were_woken_may_run_where_they_might_before():
    done = python(
        SETUP
        + PROCESSORS
        + """
work_after_sleep()
limit = time.monotonic() + 20
while any(s != here for s in sets().values()) and time.monotonic() < limit:
    time.sleep(0.01)  # until all have woken
print(set(map(frozenset, sets().values())) == {frozenset(here)}, len(sets()) >= 3)
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert done.stdout == "True True\n"


@on_two_processors
def test_threads_stay_where_others_have_put_them():
    done = python(
        SETUP
        + PROCESSORS
        + """
work_after_sleep()
for processor in sorted(here)[:2] * 2:
    time.sleep(0.2)
    for thread in sets():
        os.sched_setaffinity(thread, {processor})
    work_after_sleep()
    assert set(map(frozenset, sets().values())) == {frozenset({processor})}, sets()
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert done.stdout == ""


# --- memory -------------------------------------------------------------------


def training_step(device, queue, x):
    """Two layers forward and back over temporaries, and a result for the CPU."""
    forward, backward = linear(device, 2.0), linear_gradient(device, 2.0)
    command_buffer = queue.command_buffer()
    sources = mg.ImageBatch.from_array(device, x)
    z, z_states = forward.encode(command_buffer, sources, with_state=True)
    mg.increment_read_count(z, 1)
    y, y_states = forward.encode(command_buffer, z, with_state=True, temporary_state=True)
    dz = backward.encode(command_buffer, y, z, y_states)
    dx = backward.encode(command_buffer, dz, sources, z_states, allocator=mg.DEFAULT)
    finish(command_buffer, *dx)
    return dx.to_array()


def test_a_repeated_step_asks_the_system_for_nothing(cpu):
    """Once every thread has run: which of them runs a step is a matter of chance."""
    queue, x = cpu.command_queue(), counting(4, 16, 16, 8)
    for _ in range(20):
        before = mg.memory_statistics()["system_requests"]
        for _ in range(25):
            training_step(cpu, queue, x)
        if mg.memory_statistics()["system_requests"] == before:
            return
    pytest.fail("25 equal steps still take memory from the system")


def test_memory_comes_back(cpu):
    queue, x = cpu.command_queue(), counting(4, 16, 16, 8)
    for _ in range(10):
        training_step(cpu, queue, x)
    gc.collect()
    before = mg.memory_statistics()["in_use"]
    kept = [training_step(cpu, queue, x) for _ in range(10)]
    gc.collect()
    assert mg.memory_statistics()["in_use"] - before >= 9 * x.nbytes
    del kept
    gc.collect()
    scratch = 8 * (mg.get_num_threads() + 2) * 65536  # of threads that ran their first step
    assert mg.memory_statistics()["in_use"] - before <= scratch


def test_scratch_of_wide_rows_is_given_back(cpu):
    """Kernels that read beside their source copy whole rows, of this image 16 MB a row."""
    source = mg.ArrayInstanceNormalizationDataSource(number_of_feature_channels=256)
    kernel = mg.InstanceNormalization(source, device=cpu)
    kernel.offset = (1, 0, 0)
    shape = (1, 1, 2**14, 256)
    x, y = (mg.ImageBatch.from_array(cpu, np.ones(shape, np.float32)) for _ in range(2))
    before = mg.memory_statistics()["in_use"]
    with cpu.command_queue().command_buffer() as buffer:
        kernel.encode_batch(buffer, x, y)
    buffer.wait_until_completed()
    assert y.to_array()[0, 0, 0, 0] == 0 != y.to_array()[0, 0, -1, 0]  # from beside the source
    assert mg.memory_statistics()["in_use"] - before < y.to_array().nbytes / 4


def test_memory_statistics(cpu):
    statistics = mg.memory_statistics()
    assert set(statistics) == {"in_use", "cached", "peak", "system_requests"}
    image = image_of(cpu, counting(64, 64, 4))
    assert mg.memory_statistics()["in_use"] >= statistics["in_use"] + 64 * 64 * 16
    assert mg.memory_statistics()["peak"] >= mg.memory_statistics()["in_use"]
    del image
    gc.collect()
    assert mg.memory_statistics()["cached"] >= 64 * 64 * 16
    mg.release_cached_memory()
    assert mg.memory_statistics()["cached"] == 0


def test_all_that_is_given_back_is_counted(cpu):
    gc.collect()
    before = mg.memory_statistics()["in_use"]
    mg.release_cached_memory()
    images = [image_of(cpu, counting(16, 16, 24)) for _ in range(9)]
    used = mg.memory_statistics()["in_use"] - before
    assert used >= 9 * 16 * 16 * 24 * 4
    del images
    gc.collect()
    assert mg.memory_statistics()["in_use"] == before
    assert mg.memory_statistics()["cached"] == used


@pytest.mark.parametrize("ends", [False, True], ids=["alive", "ended"])
def test_what_a_thread_gives_back_others_may_take(cpu, ends):
    gave_back, may_end = threading.Event(), threading.Event()

    def use():
        images = [image_of(cpu, counting(16, 16, 24)) for _ in range(9)]
        del images
        gc.collect()
        gave_back.set()
        may_end.wait()

    gc.collect()
    mg.release_cached_memory()
    thread = threading.Thread(target=use)
    thread.start()
    gave_back.wait()
    if ends:
        may_end.set()
        thread.join()
    before = mg.memory_statistics()["system_requests"]
    images = [image_of(cpu, counting(16, 16, 24)) for _ in range(9)]
    after = mg.memory_statistics()["system_requests"]
    may_end.set()
    thread.join()
    assert len(images) == 9
    assert after == before


def test_dropped_objects_do_not_harm_recorded_work(cpu):
    queue = cpu.command_queue()
    gate = queue.command_buffer()
    gate.enqueue()
    command_buffer = queue.command_buffer()
    result = linear(cpu, 2.0).encode(
        command_buffer, images_of(cpu, counting(3, 8, 8, 4)), allocator=mg.DEFAULT
    )
    command_buffer.commit()
    gc.collect()
    others = [image_of(cpu, np.full((8, 8, 4), 99, np.float32)) for _ in range(8)]
    gate.commit()
    command_buffer.wait_until_completed()
    assert np.array_equal(result.to_array(), 2 * counting(3, 8, 8, 4))
    assert len(others) == 8


def test_arrays_in_place_live_as_long_as_the_work(cpu):
    queue = cpu.command_queue()
    gate = queue.command_buffer()
    gate.enqueue()
    command_buffer = queue.command_buffer()
    sources = mg.ImageBatch.from_array(cpu, counting(3, 8, 8, 4))
    result = linear(cpu, 2.0).encode(command_buffer, sources, allocator=mg.DEFAULT)
    command_buffer.commit()
    del sources, command_buffer
    gc.collect()
    others = [np.full((3, 8, 8, 4), 99, np.float32) for _ in range(8)]
    gate.commit()
    last = queue.command_buffer()
    finish(last)
    assert np.array_equal(result.to_array(), 2 * counting(3, 8, 8, 4))
    assert len(others) == 8


def test_instruction_sets():
    assert mg.cpu_instruction_set() in ("scalar", "avx2", "avx512", "neon")
    done = python("import mpsgrad", check=False, MPSGRAD_CPU="quantum")
    assert done.returncode != 0
    assert "unknown instruction set 'quantum'" in done.stderr


def test_importing_starts_nothing():
    done = python(
        """
import sys, threading
import mpsgrad
print(threading.active_count(), mpsgrad.memory_statistics()["system_requests"])
""",
        OPENBLAS_NUM_THREADS="1",
    )
    assert done.stdout == "1 0\n"
