"""Encodes find their arguments by themselves; what is unusual about a call, pybind11 handles."""

import gc
import sys

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import _core

from tests.images import Work

SHAPE = (2, 3, 4, 8)
NAMES = ("encode", "encode_batch")


class Calls:
    """A forward, a gradient and a binary kernel, and all that they are called with."""

    def __init__(self, device):
        random = np.random.default_rng(7)

        def batch():
            return mg.ImageBatch.from_array(device, random.random(SHAPE, np.float32))

        self.device = device
        self.queue = device.command_queue()
        self.x, self.y, self.g = batch(), batch(), batch()
        self.out = mg.ImageBatch.from_array(device, np.zeros(SHAPE, np.float32))
        self.forward = mg.SoftMax(device=device)
        self.gradient = mg.SoftMaxGradient(device=device)
        self.binary = mg.Add(device=device)
        for kernel in (self.forward, self.gradient, self.binary):
            kernel.destination_image_allocator = mg.DEFAULT
        _, self.states = self.run(
            self.forward.encode_batch, self.x, with_state=True, allocator=self.y
        )
        self.gradient.configure(self.g[0], self.y[0], self.states[0])

    def run(self, method, *arguments, **named):
        with Work(self.device) as work:
            result = method(work.buffer, *arguments, **named)
            work.result(result[0] if isinstance(result, tuple) else result)
        return result

    def result(self, method, *arguments, **named):
        """Return what an encode makes, wherever it puts it."""
        for image in self.out:
            image.write(np.full(SHAPE[1:], np.nan, np.float32))
        return self.run(method, *arguments, **named).to_array().copy()


@pytest.fixture
def calls(device):
    return Calls(device)


def not_interned(name):
    """Return a string equal to a name that is another object than it."""
    made = "".join(list(name))
    assert made is not sys.intern(name)
    return made


def spelt_anew(named):
    return {not_interned(name): value for name, value in named.items()}


@pytest.mark.parametrize("positional", range(4))
def test_all_ways_to_name_arguments_give_one_result(calls, positional):
    encode = calls.gradient.encode_batch
    given = {"source_gradients": calls.g, "sources": calls.y, "states": calls.states}
    expected = calls.result(encode, *given.values())
    assert np.isfinite(expected).all()
    assert expected.any()
    first = list(given.values())[:positional]
    named = dict(list(given.items())[positional:])
    for order in (named, dict(reversed(named.items()))):
        for spelling in (order, spelt_anew(order)):
            for more in ({}, {"allocator": calls.out}, {"destinations": calls.out}):
                result = calls.result(encode, *first, **spelling, **more)
                np.testing.assert_array_equal(result, expected)


def test_values_that_are_not_of_the_usual_class(calls):
    encode = calls.gradient.encode_batch
    expected = calls.result(encode, calls.g, calls.y, calls.states)
    arguments = (tuple(calls.g), list(calls.y), tuple(calls.states))
    np.testing.assert_array_equal(calls.result(encode, *arguments), expected)
    for flag in (True, False, np.True_):
        result = calls.result(encode, *arguments, calls.out, configure=flag)
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(TypeError, match="encode_batch: configure must be a bool, got str"):
        encode(calls.queue.command_buffer(), *arguments, calls.out, configure="yes")


def test_default_and_given_flags(calls):
    encode = calls.forward.encode_batch
    assert isinstance(calls.run(encode, calls.x), mg.ImageBatch)
    assert isinstance(calls.run(encode, calls.x, with_state=False), mg.ImageBatch)
    images, states = calls.run(encode, calls.x, with_state=True)
    np.testing.assert_array_equal(images.to_array(), calls.y.to_array())
    assert len(states) == len(calls.x)
    total = calls.result(
        calls.binary.encode_batch, secondaries=calls.y, primaries=calls.x, allocator=calls.out
    )
    np.testing.assert_array_equal(total, calls.x.to_array() + calls.y.to_array())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        ("forward", ["source"]),
        ("gradient", ["source_gradient", "source", "state"]),
        ("binary", ["primary", "secondary"]),
    ],
)
def test_calls_that_fit_no_method_change_nothing(calls, kernel, parameters, name):
    encode = getattr(getattr(calls, kernel), name)
    given = {"source_gradient": calls.g, "state": calls.states}
    arguments = [given.get(parameter, calls.y) for parameter in parameters]
    plurals = {"primary": "primaries", "secondary": "secondaries"}
    names = [
        plurals.get(each, each + "s") if name == "encode_batch" else each for each in parameters
    ]
    first, last = names[0], names[-1]
    buffer = calls.queue.command_buffer()
    most = len(arguments) + 2
    for wrong, named, words in (
        ([buffer, *arguments[:-1]], {}, f"{last} is missing"),
        (
            [buffer, *arguments, calls.out, None],
            {},
            f"takes {most} arguments at most, got {most + 1}",
        ),
        ([buffer, *arguments, calls.out], {first: calls.y}, f"{first} is given twice"),
        ([buffer, *arguments, calls.out], {"nothing": 1}, "has no argument 'nothing'"),
        ([buffer, *arguments], {not_interned("allocators"): 1}, "did you mean 'allocator'"),
        ([None, *arguments, calls.out], {}, "command_buffer must be a CommandBuffer, got NoneType"),
        ([calls.queue, *arguments, calls.out], {}, "a CommandBuffer, got CommandQueue"),
    ):
        with pytest.raises(TypeError, match=rf"\w+\.{name}: .*{words}"):
            encode(*wrong, **named)
    buffer.commit()
    buffer.wait_until_completed()
    assert not calls.out.to_array().any()
    assert calls.result(encode, *arguments, **{not_interned("allocator"): calls.out}).any()


def test_wrong_objects_are_named(calls):
    buffer = calls.queue.command_buffer()
    for wrong, message in (
        ((calls.states[0],), "source must be an Image, an ImageBatch or a list .* GradientState"),
        (([calls.x[0], calls.states[0]],), "source must hold images, got GradientState"),
    ):
        with pytest.raises(TypeError, match=message):
            calls.forward.encode(buffer, *wrong)
    for wrong, message in (
        ([calls.states[0], calls.x[0]], "state must hold states, got Image"),
        (3, "state must be a State or a list of states, got int"),
    ):
        with pytest.raises(TypeError, match=message):
            calls.gradient.encode_batch(buffer, calls.g, calls.y, states=wrong)
    for wrong in ((calls.gradient, buffer, calls.x), (object(), buffer, calls.x), ()):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _core.UnaryKernel.encode(*wrong)


def test_states_of_several_classes_in_one_list(calls):
    other = mg.State(calls.device, mg.ResourceList())
    for states in ([calls.states[0], other], [other, calls.states[0]]):
        with pytest.raises(TypeError, match="state must come from SoftMax, got State"):
            calls.run(calls.gradient.encode_batch, calls.g, calls.y, states)


def test_classes_of_kernels_and_states_come_and_go(calls):
    expected = calls.y.to_array().copy()
    for _ in range(20):
        kind = type("Own", (mg.SoftMax,), {})
        kernel = kind(device=calls.device)
        result = calls.result(kernel.encode_batch, sources=calls.x, allocator=calls.out)
        np.testing.assert_array_equal(result, expected)
        del kind, kernel
        gc.collect()


@pytest.mark.parametrize("kind", ["UnaryKernel", "GradientKernel", "ForwardBinaryKernel"])
def test_encodes_are_documented_as_pybind11_documents(kind):
    kind = getattr(_core, kind)
    for name in NAMES:
        method = getattr(kind, name)
        assert (method.__name__, method.__module__) == (name, "mpsgrad._core")
        assert method.__doc__.startswith(f"{name}(self: mpsgrad._core.{kind.__name__}, ")
