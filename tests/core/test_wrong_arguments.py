"""Arguments that no signature has: every call says what is wrong, and none ends the process."""

from __future__ import annotations

import inspect

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import python

CALL_EVERYTHING = """
import inspect
from mpsgrad import _core

device = _core.Device("cpu")
descriptor = _core.ImageDescriptor(width=2, height=2, feature_channels=2)
vectors = _core.VectorDescriptor(4)
objects = [
    device,
    device.command_queue(),
    device.command_queue().command_buffer(),
    descriptor,
    vectors,
    _core.Image(device, descriptor),
    _core.ImageBatch.allocate(device, descriptor, 2),
    _core.Buffer(device, 16),
    _core.Vector(device, vectors),
    _core.State(device, _core.ResourceList()),
    _core.SoftMax(device),
    _core.SoftMaxGradient(device),
    _core.Add(device),
    _core.BatchNormalizationStatistics(device),
]
calls = 0

def call(name, function, *arguments, **named):
    global calls
    calls += 1
    try:
        function(*arguments, **named)
    except TypeError as error:
        if "incompatible" in str(error):
            print(name, arguments, named, error)
    except (ValueError, RuntimeError, IndexError, OverflowError):
        pass

def call_in_many_ways(name, function):
    for wrong in (None, object(), "no number", 2**70, -1.5):
        for count in range(9):
            call(name, function, *[wrong] * count)
            call(name, function, device, *[wrong] * count)
        call(name, function, nothing=wrong)

for name, value in vars(_core).items():
    if inspect.isclass(value) or name in ("set_num_threads", "resource_size", "synchronize"):
        call_in_many_ways(name, value)
for thing in objects:
    for name in dir(thing):
        method = getattr(thing, name)
        if callable(method) and not name.startswith(("__", "_pybind11", "wait")):
            call_in_many_ways(f"{type(thing).__name__}.{name}", method)
print(calls > 20000)
"""


def test_no_call_shows_signatures_or_ends_the_process():
    run = python(CALL_EVERYTHING, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


def _needs_arguments(kernel):
    parameters = inspect.signature(kernel).parameters.values()
    return any(each.default is each.empty for each in parameters if each.kind != each.VAR_KEYWORD)


KERNELS = [
    each
    for each in vars(mg).values()
    if isinstance(each, type)
    and issubclass(each, mg.Kernel)
    and not issubclass(each, mg.Optimizer)  # they need one of two arguments first
    and each.__module__ != "mpsgrad._core"
    and not _needs_arguments(each)
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.__name__)
def test_a_wrong_device_is_refused_by_the_class(kernel):
    words = "device must be a Device, a kind or None, got int"
    with pytest.raises(TypeError, match=f"^{kernel.__name__}: {words}$"):
        kernel(device=3)


NO_UTF8 = "x\udc80"  # such as what Python makes of a file's name


def source_that_fails():
    class Source(mg.ArrayConvolutionDataSource):
        def load(self):
            raise TypeError(NO_UTF8)

    mg.Convolution(Source(np.ones((1, 1, 1, 1), np.float32)), device="cpu")


def padding_that_fails():
    class Policy(mg.Padding):
        def padding_method(self):
            raise TypeError(NO_UTF8)

    kernel = mg.PoolingMax(2, 2, device="cpu")
    kernel.padding = Policy()
    kernel(np.ones((4, 4, 1), np.float32))


def allocator_that_fails():
    def allocator(*_):
        raise TypeError(NO_UTF8)

    device = mg.Device("cpu")
    kernel = mg.PoolingMax(2, 2, device=device)
    source = mg.ImageBatch.from_array(device, np.ones((1, 4, 4, 1), np.float32))
    kernel.encode_batch(device.command_queue().command_buffer(), source, allocator=allocator)


@pytest.mark.parametrize("call", [source_that_fails, padding_that_fails, allocator_that_fails])
def test_what_callbacks_say_need_not_be_utf8(call):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).endswith(NO_UTF8)
