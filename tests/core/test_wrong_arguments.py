"""Arguments that no signature has: every call says what is wrong, and none ends the process."""

from __future__ import annotations

import inspect

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import python
from tests.rejects import rejects

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


OF_PYTORCH = {
    "lr": (mg.SGD, "PyTorch's lr is learning_rate here"),
    "weight_decay": (mg.Adam, "PyTorch's weight_decay is regularization_scale of an Optim"),
    "betas": (mg.Adam, "PyTorch's betas is beta1 and beta2 here"),
    "nesterov": (mg.SGD, "PyTorch's nesterov is use_nesterov_momentum here"),
}


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_arguments_of_pytorch_are_answered_with_ours(name):
    cls, words = OF_PYTORCH[name]
    with rejects(TypeError, words):
        cls(**{name: 1})
    with pytest.raises(TypeError) as error:  # which has none of them
        mg.RMSProp(0.1, momentum=0.9)
    assert "PyTorch" not in str(error.value)


PADDINGS = {
    "number": (1, "got int; mg.ExplicitPadding(1) is one"),
    "sides": ((1, 1, 1, 1), "got tuple; mg.ExplicitPadding(left=, right=, top=, bottom=) is one"),
    "method": (
        mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM,
        "; mg.DefaultPadding(mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM) is one",
    ),
}


@pytest.mark.parametrize(("value", "words"), PADDINGS.values(), ids=PADDINGS)
def test_what_is_no_padding_is_told_what_it_may_mean(value, words):
    kernel = mg.PoolingMax(2, 2, device="cpu")
    with rejects(TypeError, words):
        kernel.padding = value
    assert isinstance(kernel.padding, mg.Padding)


@pytest.mark.parametrize("shape", [(4, 4, 1), (2, 4, 4, 1)])
def test_a_result_with_its_state_is_no_source(shape):
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device="cpu")
    pair = kernel(np.ones(shape, np.float32), with_state=True)
    with rejects(TypeError, "Neuron: source must be an array, got a pair with a state"):
        kernel(pair)


def test_a_class_is_no_data_source():
    words = "weights must be a ConvolutionDataSource, got the class ArrayConvolutionDataSource"
    for make in (mg.Convolution, lambda cls: mg.graph.ConvolutionNode(mg.graph.ImageNode(), cls)):
        with rejects(TypeError, words):
            make(mg.ArrayConvolutionDataSource)


LAYOUTS = {  # weights as PyTorch has them, an array that fits these, and what the message asks
    "convolution": (mg.Convolution, (8, 3, 7, 7), (2, 9, 9, 3), "(O, I, H, W)"),
    "of many channels": (mg.Convolution, (8, 16, 5, 5), (1, 9, 9, 16), "(O, I, H, W)"),
    "fully connected": (mg.FullyConnected, (8, 16, 5, 5), (1, 5, 5, 16), "(O, I, H, W)"),
    "transposed": (mg.ConvolutionTranspose, (4, 8, 3, 3), (1, 5, 5, 4), "(I, O, H, W)"),
}


@pytest.mark.parametrize(("cls", "weights", "source", "order"), LAYOUTS.values(), ids=LAYOUTS)
def test_weights_in_the_order_of_pytorch(cls, weights, source, order):
    kernel = cls(mg.ArrayConvolutionDataSource(np.ones(weights, np.float32)), device="cpu")
    with rejects(ValueError, f"are the weights {order}? Theirs is (O, H, W, I)"):
        kernel(np.ones(source, np.float32))


def test_images_without_an_axis_of_channels():
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 1), np.float32))
    kernel = mg.Convolution(source, device="cpu")
    with rejects(ValueError, "got 8 (shape (16, 8, 8)); source[..., np.newaxis] makes images of"):
        kernel(np.ones((16, 8, 8), np.float32))
