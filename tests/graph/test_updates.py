"""How graphs update weights: by the GPU while they are encoded, by the CPU on completion."""

import contextlib
import gc
import pickle
import re
import sys
import threading
import time
import weakref
from pathlib import Path

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.core.support import python, python_of_little_memory
from tests.graph.networks import Recorder, loss_of
from tests.rejects import rejects
from tests.repeats import call_at_once
from tests.tolerance import assert_exact, assert_same_bytes

SHAPE = (3, 2, 2, 4)
STYLES = g.TrainingStyle


def weights(rng, shape=(4, 1, 1, 4)):
    return rng.integers(-2, 3, shape).astype(np.float32)


def values(rng, shape=SHAPE):
    return rng.integers(-3, 4, shape).astype(np.float32)


def trained(device, node, style=None, *, needed=False):
    """The training graph of a squared error after a node; whether its gradients are returned."""
    loss = loss_of(node)

    def handler(gradient_node, *_):
        if style is not None and isinstance(gradient_node, g.TrainableNode):
            gradient_node.training_style = style

    termini = loss.training_graph(node_handler=handler)
    graph = g.Graph(device, result_images=termini, results_are_needed=needed)
    graph.format = mg.ChannelFormat.FLOAT32
    return graph


def sums(x, labels, w, b):
    """Gradients of a 1x1 convolution's squared error, summed over the batch."""
    error = 2 * (np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) + b - labels)
    return np.einsum("nyxo,nyxi->oi", error, x)[:, None, None], error.sum((0, 1, 2))


class Descent(mg.ArrayConvolutionDataSource):
    """Plain descent in NumPy, by a rate that keeps numbers exact."""

    rate = 2.0**-6

    def update_cpu(self, gradient_state, source_state):
        assert_exact(source_state.weights.to_numpy(), self.weights_array.ravel(), nonzero=0)
        dw = gradient_state.gradient_for_weights.to_numpy().reshape(self.weights_array.shape)
        self.weights_array -= self.rate * dw
        self.bias_array -= self.rate * gradient_state.gradient_for_biases.to_numpy()
        return True


@pytest.mark.parametrize("style", [STYLES.CPU, STYLES.GPU])
def test_two_steps_of_descent(device, rng, style):
    w, b = weights(rng), weights(rng, (4,))
    x, labels = values(rng), values(rng)
    if style is STYLES.CPU:
        source = Descent(w.copy(), b.copy())
    else:
        sgd = mg.SGD(Descent.rate, device=device)
        source = mg.ArrayConvolutionDataSource(w.copy(), b.copy(), optimizer=sgd)
    image = g.ImageNode("x")
    graph = trained(device, g.ConvolutionNode(image, source), style)
    inference = g.Graph(device, g.ConvolutionNode(image, source))
    inference.format = mg.ChannelFormat.FLOAT32
    before = inference(x).result

    for _ in range(2):
        losses = graph(x, labels).losses[0]
        y = np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) + b
        assert_exact(losses.ravel(), ((y - labels) ** 2).sum((1, 2, 3)))
        dw, db = sums(x, labels, w, b)
        w, b = w - Descent.rate * dw, b - Descent.rate * db

    with stale() if style is STYLES.GPU else contextlib.nullcontext():
        assert_same_bytes(inference(x).result, before)
    inference.reload_from_data_sources()
    assert_exact(source.weights_array, w)
    assert_exact(source.bias_array, b)
    assert_exact(inference(x).result, np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) + b)


def stale():
    words = r"^Graph: Array\w+ of ConvolutionNode has been trained since this graph read it; reload"
    return pytest.warns(UserWarning, match=words)


def test_weights_that_were_trained_elsewhere_warn_once(device, rng):
    x, labels = values(rng), values(rng)
    source = mg.ArrayConvolutionDataSource(
        weights(rng), optimizer=mg.SGD(Descent.rate, device=device)
    )
    node = g.ConvolutionNode(g.ImageNode("x"), source)
    graph, other, last = (trained(device, node) for _ in range(3))
    inference = g.Graph(device, node)
    graph(x, labels)
    with stale() as caught:
        inference(x)
    assert [Path(warning.filename).name for warning in caught] == ["test_updates.py"]
    inference(x)
    with stale():
        other(x, labels)
    graph.reload_from_data_sources()
    graph(x, labels)
    graph.restore(graph.checkpoint() | {"0/steps": 9})
    graph(x, labels)
    g.Graph(device, node)(x)

    last.reload_from_data_sources()
    bucket = mg.GradientBucket([source])
    last(x, labels)
    bucket.step()
    with stale():
        last(x, labels)


def test_updates_by_the_cpu_that_an_optimizer_makes_are_not_stale(device, rng):
    class ByCpu(mg.ArrayConvolutionDataSource):
        def update_cpu(self, gradient_state, source_state):
            with device.command_queue().command_buffer() as command_buffer:
                self.update(command_buffer, gradient_state, source_state)
            command_buffer.wait_until_completed()
            return True

    source = ByCpu(weights(rng), optimizer=mg.SGD(Descent.rate, device=device))
    graph = trained(device, g.ConvolutionNode(g.ImageNode("x"), source), STYLES.CPU)
    for _ in range(3):
        graph(values(rng), values(rng))
    assert source.checkpoint()["steps"] == 3


def test_a_data_source_of_ones_own_may_have_any_attribute(device, rng):
    class Plain:
        """Only what Apple's protocol requires, and what is the user's."""

        def __init__(self, source):
            self._updates = {}
            for name in ("load", "purge", "descriptor", "data_type", "weights", "bias_terms"):
                setattr(self, name, getattr(source, name))

    source = Plain(mg.ArrayConvolutionDataSource(weights(rng)))
    g.Graph(device, g.ConvolutionNode(g.ImageNode("x"), source))(values(rng))


def test_two_steps_on_one_command_buffer(device, queue, rng):
    """By the GPU the second step uses the weights of the first."""
    w, b = weights(rng), weights(rng, (4,))
    x, labels = values(rng), values(rng)
    sgd = mg.SGD(2.0**-6, device=device)
    source = mg.ArrayConvolutionDataSource(w.copy(), b.copy(), optimizer=sgd)
    graph = trained(device, g.ConvolutionNode(g.ImageNode("x"), source))
    images = mg.ImageBatch.from_array(device, x)
    states = mg.LossLabels.batch(device, labels)
    with queue.command_buffer() as command_buffer:
        for _ in range(2):
            graph.encode_batch(command_buffer, [images], [states])
            dw, db = sums(x, labels, w, b)
            w, b = w - 2.0**-6 * dw, b - 2.0**-6 * db
    command_buffer.wait_until_completed()
    source.load()
    assert_exact(source.weights_array, w)
    assert_exact(source.bias_array, b)


def test_frozen_weights_stay(device, rng):
    sgd = mg.SGD(1.0, device=device)
    frozen, other = (
        mg.ArrayConvolutionDataSource(weights(rng), np.zeros(4), optimizer=sgd) for _ in "ab"
    )
    first = g.ConvolutionNode(g.ImageNode("x"), frozen)
    first.training_style = STYLES.NONE
    before = frozen.weights_array.copy(), other.weights_array.copy()
    trained(device, g.ConvolutionNode(first, other))(values(rng), values(rng))
    frozen.load()
    other.load()
    assert_same_bytes(frozen.weights_array, before[0])
    assert not np.array_equal(other.weights_array, before[1])


def test_gradients_flow_through_frozen_weights(device, rng):
    w = weights(rng)
    x, dy = values(rng), values(rng)
    node = g.ConvolutionNode(g.ImageNode("x"), mg.ArrayConvolutionDataSource(w))
    node.training_style = STYLES.NONE
    (terminus,) = node.training_graph(g.ImageNode("dy"))
    graph = g.Graph(device, terminus)
    graph.format = mg.ChannelFormat.FLOAT32
    assert_exact(graph({"x": x, "dy": dy}).result, np.einsum("nyxo,oi->nyxi", dy, w[:, 0, 0]))


def test_a_batch_of_equal_images_adds_up(device, rng):
    seen = []

    class Looks(mg.ArrayConvolutionDataSource):
        def update_cpu(self, gradient_state, _source_state):
            seen.append(gradient_state.gradient_for_weights.to_numpy())
            return False

    graph = trained(
        device, g.ConvolutionNode(g.ImageNode(), Looks(weights(rng), np.zeros(4))), STYLES.CPU
    )
    x, labels = values(rng, (1, 2, 2, 4)), values(rng, (1, 2, 2, 4))
    for count in (1, 5):
        graph(np.repeat(x, count, 0), np.repeat(labels, count, 0))
    assert_exact(seen[1], 5 * seen[0])


def test_only_listed_termini_train(device, rng):
    sgd = mg.SGD(2.0**-6, device=device)
    sources = [
        mg.ArrayConvolutionDataSource(weights(rng), np.zeros(4), optimizer=sgd) for _ in "ab"
    ]
    before = [source.weights_array.copy() for source in sources]
    a, b = (
        g.ConvolutionNode(g.ImageNode(name), source)
        for name, source in zip("ab", sources, strict=True)
    )
    termini = loss_of(g.AdditionNode(a, b)).training_graph()
    assert len(termini) == 2
    graph = g.Graph(device, termini[0], False)
    graph({"a": values(rng), "b": values(rng)}, values(rng))
    for source in sources:
        source.load()
    changed = [
        not np.array_equal(source.weights_array, old)
        for source, old in zip(sources, before, strict=True)
    ]
    assert sorted(changed) == [False, True]


@pytest.mark.parametrize("name", ["Convolution", "FullyConnected", "ConvolutionTranspose"])
def test_weights_are_those_of_when_the_graph_was_made(device, rng, name):
    """Of the forward kernel and of the gradient kernel, until a reload."""
    old, new = np.eye(4, dtype=np.float32), np.float32(3) * np.eye(4, dtype=np.float32)[::-1]
    source = mg.ArrayConvolutionDataSource(old.reshape(4, 1, 1, 4).copy())
    node = getattr(g, f"{name}Node")(g.ImageNode("x"), source)
    (terminus,) = node.training_graph(g.ImageNode("dy"))
    graph = g.Graph(device, result_images=[node, terminus], format=mg.ChannelFormat.FLOAT32)
    source.weights_array[...] = new.reshape(4, 1, 1, 4)
    x, dy = values(rng, (3, 1, 1, 4)), values(rng, (3, 1, 1, 4))

    for w in (old, new):  # the same in both directions
        y, (dx,), _ = graph({"x": x, "dy": dy})
        assert_exact(y, x @ w)
        assert_exact(dx, dy @ w)
        graph.reload_from_data_sources()


@pytest.mark.parametrize("head_first", [True, False])
def test_a_node_made_after_a_training_graph_uses_weights_from_before_the_update(device, head_first):
    one = np.ones((1, 1, 1, 1), np.float32)
    source = mg.ArrayConvolutionDataSource(one.copy(), optimizer=mg.SGD(1.0, device=device))
    x = g.ImageNode("x")
    (terminus,) = g.ConvolutionNode(x, source).training_graph(g.ImageNode("dy"))
    head = g.NeuronLinearNode(g.ConvolutionNode(x, source), 2.0)
    head.result_image.handle = "head"
    results = [head, terminus] if head_first else [terminus, head]
    graph = g.Graph(
        device,
        result_images=results,
        results_are_needed=[node is head for node in results],
        format=mg.ChannelFormat.FLOAT32,
    )
    for expected in (2.0, 0.0):
        result, intermediates, _ = graph({"x": one, "dy": one})
        assert (result if head_first else intermediates["head"]).item() == expected


def test_nodes_that_depend_on_gradients_keep_their_order(device):
    """A forward node that reads a gradient cannot come before it, nor what reads that node."""
    x = g.ImageNode("x")
    first = g.NeuronReLUNode(x, label="first")
    (gradient,) = first.training_graph(g.ImageNode("dy"))
    after = g.NeuronLinearNode(gradient, 2.0, label="after")
    total = g.AdditionNode(after, g.NeuronAbsoluteNode(x, label="before"), label="total")
    rows = str(g.Graph(device, total)).splitlines()
    names = [re.search(r"\w+Node(?: '\w+')?", row)[0] for row in rows if row[:1] in "1234567"]
    assert names == [
        "NeuronReLUNode 'first'",
        "NeuronAbsoluteNode 'before'",
        "NeuronGradientNode",
        "NeuronLinearNode 'after'",
        "AdditionNode 'total'",
    ]


def test_tied_weights_reload_every_kernel(device, rng):
    sgd = mg.SGD(2.0**-8, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), weights(rng, (4,)), optimizer=sgd)
    x = g.ImageNode("x")
    inner = g.ConvolutionNode(x, source)
    outer = g.ConvolutionNode(inner, source)
    outer.result_image.export()
    graph = trained(device, outer)
    data, labels = values(rng), values(rng)
    graph(data, labels)
    source.load()
    kernel = mg.Convolution(source, device=device)
    (y,) = graph(data, labels).intermediates
    assert_same_bytes(y, kernel(kernel(data)))


# ---- rules


def test_reading_a_gradient_while_it_is_encoded_raises(device, rng):
    class Peeks(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, gradient_state, _source_state):
            gradient_state.gradient_for_weights.to_numpy()

    graph = trained(device, g.ConvolutionNode(g.ImageNode(), Peeks(weights(rng))))
    with pytest.raises(RuntimeError, match=r"gradient_for_weights"):
        graph(values(rng), values(rng))


def test_an_update_that_returns_something_else(device, rng):
    class Wrong(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            return 3

    graph = trained(device, g.ConvolutionNode(g.ImageNode(), Wrong(weights(rng))))
    with pytest.raises(TypeError, match="update of Wrong must return a ConvolutionWeightsAndBia"):
        graph(values(rng), values(rng))


@pytest.mark.parametrize("temporary", [False, True])
def test_an_update_may_return_the_source_state_or_a_temporary_one(device, rng, temporary):
    rate = 0.25 if temporary else 0.0

    class Returns(mg.ArrayConvolutionDataSource):
        def update(self, command_buffer, gradient_state, source_state):
            if not temporary:
                return source_state
            state = mg.ConvolutionWeightsAndBiasesState.temporary(command_buffer, self.descriptor())
            mg.SGD(rate, device=command_buffer.device).encode_convolution(
                command_buffer, gradient_state, source_state, None, state
            )
            return state

    w, b = weights(rng), weights(rng, (4,))
    node = g.ConvolutionNode(g.ImageNode(), Returns(w.copy(), b.copy()))
    node.result_image.export()
    graph = trained(device, node)
    x, labels = values(rng), values(rng)
    for _ in range(2):
        y = np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) + b
        assert_exact(graph(x, labels).intermediates[0], y)
        dw, db = sums(x, labels, w, b)
        w, b = w - rate * dw, b - rate * db


OTHER_SHAPES = {
    "weights": ((12, 4), "the state holds 12 weights, but the kernel has 16"),
    "biases": ((16, 5), "the state holds 5 biases, but the kernel has 4 output channels"),
    "weights alone": ((20, None), "the state holds 20 weights, but the kernel has 16"),
}


@pytest.mark.parametrize(("counts", "words"), OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_an_update_of_another_shape_changes_nothing(device, rng, counts, words):
    """Neither the forward kernel nor, as the gradients of the layer before show, the other."""
    returned = []

    class Returns(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            return returned.pop() if returned else None

    first = Recorder(weights(rng), weights(rng, (4,)))
    inner = g.ConvolutionNode(g.ImageNode(), first)
    inner.training_style = STYLES.CPU
    outer = g.ConvolutionNode(inner, Returns(weights(rng), weights(rng, (4,))))
    outer.result_image.export()
    graph = trained(device, outer)
    x, labels = values(rng), values(rng)
    before = graph(x, labels)
    buffers = [None if n is None else mg.Buffer(device, np.ones(n, np.float32)) for n in counts]
    returned.append(mg.ConvolutionWeightsAndBiasesState(*buffers))
    with pytest.raises(ValueError, match=words):
        graph(x, labels)
    after = graph(x, labels)
    assert_same_bytes(after.intermediates[0], before.intermediates[0])
    assert_same_bytes(first.calls[-1].weights, first.calls[0].weights)


@pytest.mark.parametrize("style", [STYLES.CPU, STYLES.GPU])
def test_two_steps_by_execute_async(device, rng, style):
    """The second one waits for the update of the first, where that is still to come."""
    w, b = weights(rng), weights(rng, (4,))
    x, dy = values(rng, (1, 2, 2, 4)), values(rng, (1, 2, 2, 4))
    sgd = mg.SGD(Descent.rate, device=device) if style is STYLES.GPU else None
    source = Descent(w.copy(), b.copy(), optimizer=sgd)
    node = g.ConvolutionNode(g.ImageNode("x"), source)
    node.training_style = style
    graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
    images = {n: mg.ImageBatch.from_array(device, a)[0] for n, a in (("x", x), ("dy", dy))}
    futures = [graph.execute_async(images) for _ in range(2)]
    assert [future.result(timeout=60) for future in futures] == [None, None]
    graph.reload_from_data_sources()
    step = 2 * Descent.rate
    dw = np.einsum("nyxo,nyxi->oi", dy, x)[:, None, None]
    assert_exact(source.weights_array, w - step * dw)
    assert_exact(source.bias_array, b - step * dy.sum((0, 1, 2)))


def test_an_exception_of_an_update_comes_out_of_execute_async(device, rng):
    """Of the one that encodes it; where the update comes later, of the future and the next one."""

    class Fails(mg.ArrayConvolutionDataSource):
        def update(self, *_):
            raise LookupError("no such optimizer")

        update_cpu = update

    image = mg.ImageBatch.from_array(device, values(rng))[0]
    for style in (STYLES.GPU, STYLES.CPU):
        node = g.ConvolutionNode(g.ImageNode("x"), Fails(weights(rng)))
        node.training_style = style
        graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
        if style is STYLES.CPU:
            future = graph.execute_async([image, image])
            assert str(future.exception(timeout=60)) == "no such optimizer"
        with pytest.raises(LookupError, match="no such optimizer"):
            graph.execute_async([image, image])


def test_commit_and_continue_forgets_no_update_that_has_raised(device, queue, rng):
    class Fails(mg.ArrayConvolutionDataSource):
        def update_cpu(self, *_):
            raise LookupError("no such optimizer")

    node = g.ConvolutionNode(g.ImageNode("x"), Fails(weights(rng)))
    node.training_style = STYLES.CPU
    graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
    images = mg.ImageBatch.from_array(device, values(rng))
    over = threading.Event()
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images, images])
    command_buffer.add_completed_handler(lambda _: over.set())
    command_buffer.commit_and_continue()
    assert over.wait(60)
    time.sleep(0.1)  # the handler has returned
    command_buffer.commit_and_continue()
    command_buffer.commit()
    with pytest.raises(LookupError, match="no such optimizer"):
        command_buffer.wait_until_completed()


FAILED_UPDATE = """
import faulthandler, gc, threading, time
import numpy as np, mpsgrad as mg
from mpsgrad import graph as g
faulthandler.dump_traceback_later(30, exit=True)
device = mg.Device("cpu")
queue = device.command_queue()
ones = np.ones((2, 2, 2, 4), np.float32)
images = [mg.ImageBatch.from_array(device, ones.copy()) for _ in range(2)]
ending = threading.Event()
last, ended = [], []

class Failure(Exception):
    def __del__(self):
        if last:
            ending.set()
            images[1][0].read()
            time.sleep(0.2)  # others run
            ended.append(1)

class Source(mg.ArrayConvolutionDataSource):
    def update_cpu(self, *_):
        raise Failure

def encode():
    command_buffer = queue.command_buffer()
    for batch in images:
        tanh.encode_batch(command_buffer, batch, allocator=mg.DEFAULT)
    command_buffer.commit()
    command_buffer.wait_until_completed()

def meanwhile():
    ending.wait()
    encode()

tanh = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.TANH), device=device)
node = g.ConvolutionNode(g.ImageNode("x"), Source(np.zeros((4, 1, 1, 4), np.float32)))
node.training_style = g.TrainingStyle.CPU
graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
command_buffer = queue.command_buffer()
graph.encode_batch(command_buffer, images)
command_buffer.commit()
try:
    command_buffer.wait_until_completed()
except Failure:
    pass
del command_buffer, graph, node
gc.collect()
last.append(1)
other = threading.Thread(target=meanwhile)
other.start()
encode()  # the images' ledgers let go of the work, which has the exception
other.join()
print(ended)
"""


def test_what_an_update_has_raised_ends_where_others_may_run():
    """Its last reference may be what an image remembers of the work that used it."""
    assert python(FAILED_UPDATE).stdout == "[1]\n"


@pytest.mark.parametrize("runs", [False, True])
def test_a_predicate_decides_about_a_whole_step(device, queue, rng, runs):
    """By what it is when the work runs: what is skipped leaves zeros, and weights as they were."""
    if device.kind == "metal":
        pytest.skip("a graph cannot depend on a predicate")
    w, b, x, labels = weights(rng), weights(rng, (4,)), values(rng), values(rng)
    sgd = mg.SGD(2.0**-6, device=device)
    source = mg.ArrayConvolutionDataSource(w.copy(), b.copy(), optimizer=sgd)
    node = g.ConvolutionNode(g.ImageNode(), source)
    node.result_image.export()
    graph = trained(device, node)
    flag = mg.Buffer(device, np.uint32([not runs]))
    states = mg.LossLabels.batch(device, labels)
    with queue.command_buffer() as command_buffer:
        command_buffer.predicate = mg.Predicate(flag)
        made = graph.encode_batch(command_buffer, mg.ImageBatch.from_array(device, x), [states])
        command_buffer.predicate = None
        mg.synchronize(made.intermediates[0], command_buffer)
        mg.synchronize(states, command_buffer)
        flag.write(np.uint32([runs]))
    command_buffer.wait_until_completed()

    def forward():
        y = np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) + b
        return y, ((y - labels) ** 2).sum((1, 2, 3))

    y, losses = forward()
    images = mg.ImageBatch(list(made.intermediates[0])).to_array()
    assert_exact(images, runs * y, nonzero=0.25 * runs)
    assert_exact([state.loss.item() for state in states], runs * losses, nonzero=0.25 * runs)
    dw, db = sums(x, labels, w, b)
    w, b = w - runs * 2.0**-6 * dw, b - runs * 2.0**-6 * db
    assert_exact(graph(x, labels).losses[0].ravel(), forward()[1])


def test_an_exception_of_an_update_comes_out_of_the_encode(device, rng):
    class Fails(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            raise LookupError("no such optimizer")

    graph = trained(device, g.ConvolutionNode(g.ImageNode(), Fails(weights(rng))))
    with pytest.raises(LookupError, match="no such optimizer"):
        graph(values(rng), values(rng))
    with pytest.raises(LookupError, match="no such optimizer"):  # and the graph can be used again
        graph(values(rng), values(rng))


def test_an_exception_of_an_update_by_the_cpu_comes_out_of_the_wait(device, queue, rng):
    class Fails(mg.ArrayConvolutionDataSource):
        def update_cpu(self, _gradient_state, _source_state):
            raise LookupError("no such optimizer")

    graph = trained(device, g.ConvolutionNode(g.ImageNode(), Fails(weights(rng))), STYLES.CPU)
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images], [labels])
    command_buffer.commit()
    with pytest.raises(LookupError, match="no such optimizer"):
        command_buffer.wait_until_completed()
    with pytest.raises(LookupError, match="no such optimizer"):  # once more, for who did not wait
        graph.encode_batch(queue.command_buffer(), [images], [labels])
    graph.encode_batch(queue.command_buffer(), [images], [labels])


FAILS = """
import numpy as np
from mpsgrad import graph as g
mg.set_num_threads(1)
device = mg.Device("cpu")
queue = device.command_queue()

class Counts(mg.ArrayConvolutionDataSource):
    calls = 0

    def update_cpu(self, *_):
        self.calls += 1
        return False

source = Counts(np.ones((128, 3, 3, 64), np.float32), np.ones(128, np.float32))
node = g.ConvolutionNode(g.ImageNode("x"), source)
node.training_style = g.TrainingStyle.CPU
graph = g.Graph(device, node.training_graph(g.ImageNode("dy"))[0], False)
x, dy = (
    mg.ImageBatch.from_array(device, np.ones((1, 32, 32, channels), np.float32))
    for channels in (64, 128)
)
for more in (1 << 40, 1 << 16, 1 << 40):
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, {"x": x, "dy": dy})
    with limited_memory(more):
        command_buffer.commit()
        try:
            command_buffer.wait_until_completed()
        except mg.errors.CommandBufferError as error:
            print("failed", error.code)
    print(source.calls)
"""


@pytest.mark.not_sanitized(reason="its own memory has no room under the limit")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_an_update_by_the_cpu_is_left_out_where_the_work_failed():
    """And the next encode neither waits for it nor raises."""
    assert python_of_little_memory(FAILS).stdout.splitlines() == ["1", "failed 8", "1", "2"]


def test_what_an_update_raised_keeps_nothing_alive(device, queue, rng):
    class Fails(mg.ArrayConvolutionDataSource):
        def update_cpu(self, _gradient_state, _source_state):
            raise LookupError("no such optimizer")

    source = Fails(weights(rng))

    def fail():
        graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
        command_buffer = queue.command_buffer()
        images = mg.ImageBatch.from_array(device, values(rng))
        graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, values(rng))])
        command_buffer.commit()
        with pytest.raises(LookupError, match="no such optimizer"):
            command_buffer.wait_until_completed()
        return weakref.ref(graph)

    gone = fail()
    gc.collect()
    assert gone() is None


def test_updates_by_the_cpu_need_a_commit_between_encodes(device, queue, rng):
    source = Descent(weights(rng), weights(rng, (4,)))
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images], [labels])
    with pytest.raises(mg.errors.GraphError, match="this encode is on the same one"):
        graph.encode_batch(command_buffer, [images], [labels])
    with pytest.raises(mg.errors.GraphError, match="that one is not committed"):
        graph.encode_batch(queue.command_buffer(), [images], [labels])
    with pytest.raises(mg.errors.GraphError, match="is not committed"):
        graph.reload_from_data_sources()
    command_buffer.commit()
    old = source.weights_array.copy()
    second = queue.command_buffer()
    graph.encode_batch(second, [images], [labels])  # waits for the update
    assert not np.array_equal(source.weights_array, old)
    second.commit()
    second.wait_until_completed()


@pytest.mark.parametrize("style", [STYLES.CPU, STYLES.GPU])
def test_updates_come_in_the_order_of_gradients(device, rng, style):
    called = []

    class Notes(mg.ArrayConvolutionDataSource):
        def update(self, *_):
            called.append(self.label())

        update_cpu = update

    node = g.ImageNode()
    for name in ("first", "second", "third"):
        node = g.ConvolutionNode(node, Notes(weights(rng), label=name))
    trained(device, node, style)(values(rng), values(rng))
    wanted = ["third", "second", "first"]
    if style is STYLES.CPU and device.kind == "metal":  # once all is done, in the device's order
        called.sort(key=wanted.index)
    assert called == wanted


def test_an_update_by_the_cpu_has_its_turn_among_the_handlers(device, queue, rng):
    source = Descent(weights(rng), weights(rng, (4,)))
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
    labels = mg.LossLabels.batch(device, values(rng))
    old, seen, moved = source.weights_array.copy(), [], []

    def note(command_buffer):
        seen.append((command_buffer.status, [state.loss.item() for state in labels]))
        moved.append(not np.array_equal(source.weights_array, old))

    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(note)
    graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, values(rng))], [labels])
    mg.synchronize(labels, command_buffer)
    command_buffer.add_completed_handler(note)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert not np.array_equal(source.weights_array, old)
    losses = [state.loss.item() for state in labels]
    assert all(losses)
    assert seen == [(mg.CommandBufferStatus.COMPLETED, losses)] * 2
    if device.kind == "cpu":  # where our own handler updates; elsewhere the order is the device's
        assert moved == [False, True]


def test_an_encode_in_a_handler_that_comes_before_the_update(device, queue, rng):
    source = Descent(weights(rng), weights(rng, (4,)))
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    raised = []

    def again(_):
        try:
            graph.encode_batch(queue.command_buffer(), [images], [labels])
        except mg.errors.GraphError as error:
            raised.append(str(error))

    command_buffer = queue.command_buffer()
    command_buffer.add_completed_handler(again)
    graph.encode_batch(command_buffer, [images], [labels])
    if device.kind == "cpu":  # where our own handler updates; elsewhere the order is the device's
        command_buffer.add_completed_handler(again)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    if device.kind == "cpu":
        (message,) = raised
        assert "after this handler" in message


def test_an_abandoned_command_buffer_is_not_waited_for(device, queue, rng):
    source = Descent(weights(rng), weights(rng, (4,)))
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images], [labels])
    del command_buffer
    graph(images.to_array() if device.kind == "cpu" else values(rng), values(rng))


def test_a_callback_cannot_encode_its_own_graph(device, rng):
    graphs = []

    class Recurses(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            graphs[0](values(rng), values(rng))

    graphs.append(trained(device, g.ConvolutionNode(g.ImageNode(), Recurses(weights(rng)))))
    with pytest.raises(mg.errors.GraphError, match="a callback of a graph cannot encode"):
        graphs[0](values(rng), values(rng))
    graphs.clear()  # the data source holds the list, and the graph the data source


def test_two_threads_take_turns(device, rng):
    sgd = mg.SGD(2.0**-10, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), weights(rng, (4,)), optimizer=sgd)
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    x, labels = values(rng), values(rng)

    def steps():
        for _ in range(20):
            graph(x, labels)

    call_at_once([steps] * 3)


def test_a_handler_encodes_while_a_thread_waits_for_its_work(device, queue, rng):
    source = Descent(weights(rng), weights(rng, (4,)))
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source), STYLES.CPU)
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    entered, waited, refused = threading.Event(), threading.Event(), []

    def encode():
        command_buffer = queue.command_buffer()
        try:
            graph.encode_batch(command_buffer, [images], [labels])
        except mg.errors.GraphError as error:  # whoever comes between encode and commit
            refused.append(str(error))
        command_buffer.commit()
        return command_buffer

    def again(_):
        entered.set()
        waited.wait(0.3)  # until the other thread is well inside its encode
        encode()
        waited.set()

    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images], [labels])
    command_buffer.add_completed_handler(again)
    command_buffer.commit()
    assert entered.wait(60)
    other = threading.Thread(target=lambda: encode().wait_until_completed(), daemon=True)
    other.start()
    assert waited.wait(60)
    other.join(60)
    assert not other.is_alive()
    assert all("is not committed" in message for message in refused)
    command_buffer.wait_until_completed()


@pytest.mark.parametrize("layers", [1, 2])
def test_parts_that_were_committed_are_waited_for(device, queue, layers, rng):
    """Callbacks commit what is encoded so far, the last time behind work that has to wait."""
    blocker = queue.command_buffer()
    calls = []

    class Continues(mg.ArrayConvolutionDataSource):
        def update(self, command_buffer, _gradient_state, _source_state):
            calls.append(None)
            if len(calls) == layers:
                blocker.enqueue()
            command_buffer.commit_and_continue()

    node = g.ImageNode()
    for _ in range(layers):
        node = g.ConvolutionNode(node, Continues(weights(rng))).result_image
    graph = trained(device, node)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, values(rng))
    graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, values(rng))])
    with pytest.raises(mg.errors.GraphError, match="is not committed"):
        graph.reload_from_data_sources()
    del command_buffer
    gc.collect()
    reload = threading.Thread(target=graph.reload_from_data_sources, daemon=True)
    reload.start()
    reload.join(0.3)
    assert reload.is_alive()
    blocker.commit()
    reload.join(60)
    assert not reload.is_alive()


def test_what_a_callback_sets_is_for_the_next_encode(device, rng):
    """The gradient that the first layer gets is negative in places, as unorm8 cannot be."""
    w, x, labels = weights(rng), values(rng), values(rng)

    def trained_by(chosen):
        class Sets(mg.ArrayConvolutionDataSource):
            def update(self, _command_buffer, _gradient_state, _source_state):
                graphs[0].format = chosen

        graphs = []  # emptied, for a graph that its own source holds is never freed
        sgd = mg.SGD(2.0**-6, device=device)
        first = mg.ArrayConvolutionDataSource(w.copy(), optimizer=sgd)
        inner = g.ConvolutionNode(g.ImageNode(), first)
        kept = g.NeuronAbsoluteNode(inner.result_image)
        graph = trained(device, g.ConvolutionNode(kept.result_image, Sets(w.copy())))
        graphs.append(graph)
        graph(x, labels)
        assert graph.format == chosen
        graphs.clear()
        first.load()
        return first.weights_array

    expected = trained_by(mg.ChannelFormat.FLOAT32)
    assert_same_bytes(trained_by(mg.ChannelFormat.UNORM8), expected)
    assert np.any(expected > w)


def test_an_encode_that_failed_half_way_is_outstanding(device, queue, rng):
    class Raises(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            raise LookupError("no rate")

    graph = trained(device, g.ConvolutionNode(g.ImageNode(), Raises(weights(rng))))
    images = mg.ImageBatch.from_array(device, values(rng))
    labels = mg.LossLabels.batch(device, values(rng))
    command_buffer = queue.command_buffer()
    with pytest.raises(LookupError, match="no rate"):
        graph.encode_batch(command_buffer, [images], [labels])
    with pytest.raises(mg.errors.GraphError, match="is not committed"):
        graph.reload_from_data_sources()
    command_buffer.commit()
    graph.reload_from_data_sources()
    command_buffer.wait_until_completed()


def test_nodes_without_a_method_for_updates_are_listed(device, rng):
    class Plain:
        """Only what Apple's protocol requires."""

        def __init__(self, source):
            for name in ("load", "purge", "descriptor", "data_type", "weights", "bias_terms"):
                setattr(self, name, getattr(source, name))

    source = Plain(mg.ArrayConvolutionDataSource(weights(rng)))
    with pytest.warns(UserWarning, match="no weights are updated: Plain of .* has no method"):
        graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    assert re.search(r"no GPU update: .*Plain.* has no method for it", str(graph))
    graph(values(rng), values(rng))


ONES = np.ones(4, np.float32)
UNTRAINED = {
    "convolution": lambda **how: g.ConvolutionNode(
        g.ImageNode(), mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 4), np.float32), **how)
    ),
    "batch normalization": lambda **how: g.BatchNormalizationNode(
        g.ImageNode(), mg.ArrayBatchNormalizationDataSource(ONES.copy(), ONES.copy(), **how)
    ),
    "instance normalization": lambda **how: g.InstanceNormalizationNode(
        g.ImageNode(), mg.ArrayInstanceNormalizationDataSource(ONES.copy(), ONES.copy(), **how)
    ),
    "group normalization": lambda **how: g.GroupNormalizationNode(
        g.ImageNode(),
        mg.ArrayGroupNormalizationDataSource(ONES.copy(), ONES.copy(), number_of_groups=2, **how),
    ),
}


@pytest.mark.parametrize("node", UNTRAINED.values(), ids=UNTRAINED)
def test_nodes_that_nothing_updates_are_listed(device, node):
    warning = "^Graph: no weights are updated: Array.* has no optimizer, nor can any other"
    with pytest.warns(UserWarning, match=warning) as caught:
        words = str(trained(device, node()))
    assert [Path(each.filename).name for each in caught] == ["test_updates.py"]
    assert re.search(r"no GPU update: Array.* has no optimizer", words)
    words = str(trained(device, node(optimizer=mg.SGD(0.5, device=device))))
    assert re.search(r"[^o] GPU update of Array", words)
    assert "no GPU update" not in words
    with pytest.warns(UserWarning, match="no weights are updated: Array.* has no method for it"):
        words = str(trained(device, node(), g.TrainingStyle.CPU))
    assert re.search(r"no CPU update: Array.* has no method for it", words)
    trained(device, node(), g.TrainingStyle.NONE)
    exported = node()
    exported.result_state.export_from_graph = True
    trained(device, exported)


def test_an_optimizer_of_another_device():
    try:
        devices = mg.Device("cpu"), mg.Device("metal")
    except mg.errors.DeviceError:
        pytest.skip("needs an object of a device that is not the CPU")
    for here, there in (devices, devices[::-1]):
        node = UNTRAINED["convolution"](optimizer=mg.SGD(0.5, device=there))
        words = f"is trained by StochasticGradientDescent on {there.kind}, but the graph is on"
        with rejects(mg.errors.GraphError, words):
            trained(here, node)


def test_an_update_of_ones_own_needs_no_optimizer(device):
    class Own(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, _gradient_state, _source_state):
            return None

    source = Own(np.ones((4, 1, 1, 4), np.float32))
    words = str(trained(device, g.ConvolutionNode(g.ImageNode(), source)))
    assert "GPU update of " in words
    assert "no GPU update" not in words


# ---- data sources with optimizers

OPTIMIZERS = {
    "sgd": lambda d: mg.SGD(0.05, device=d),
    "momentum": lambda d: mg.SGD(0.05, momentum_scale=0.9, device=d),
    "rmsprop": lambda d: mg.RMSProp(0.01, device=d),
    "adam": lambda d: mg.Adam(0.01, device=d),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_as_by_hand(device, queue, rng, name):
    """The arrays after three steps, against the same optimizer on vectors."""
    w = rng.standard_normal((4, 1, 1, 4)).astype(np.float32)
    source = mg.ArrayConvolutionDataSource(w.copy(), optimizer=OPTIMIZERS[name](device))
    other = mg.ArrayConvolutionDataSource(w.copy(), optimizer=source.optimizer)
    assert other.optimizer is source.optimizer
    x = rng.standard_normal(SHAPE).astype(np.float32)
    labels = rng.standard_normal(SHAPE).astype(np.float32)
    graphs = [trained(device, g.ConvolutionNode(g.ImageNode(), s)) for s in (source, other)]
    optimizer = OPTIMIZERS[name](device)
    expected = w.copy()
    history = [mg.Vector(device, mg.VectorDescriptor(16)) for _ in range(2)]
    own = {"sgd": [None], "adam": history}.get(name, history[:1])
    for _ in range(3):
        forward = mg.Convolution(mg.ArrayConvolutionDataSource(expected), device=device)
        backward = mg.ConvolutionGradient(mg.ArrayConvolutionDataSource(expected), device=device)
        y, state = forward(x, with_state=True)
        descriptor = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
        dy, _ = mg.Loss(descriptor, device=device)(y, labels)
        backward(dy, x, state)
        with queue.command_buffer() as command_buffer:
            vector = mg.Vector(state.gradient_for_weights, mg.VectorDescriptor(16))
            now = mg.Vector.from_array(device, expected.ravel().copy())
            optimizer.encode_vector(command_buffer, vector, now, *own, now)
            now.synchronize(command_buffer)
        command_buffer.wait_until_completed()
        expected = now.to_numpy().reshape(expected.shape)
        for graph in graphs:  # one optimizer may serve both
            graph(x, labels)
    for each in (source, other):
        each.load()
        assert_same_bytes(each.weights_array, expected)


def test_a_new_learning_rate_holds_for_the_next_step(device, rng):
    sgd = mg.SGD(0.0, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), optimizer=sgd)
    before = source.weights_array.copy()
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    x, labels = values(rng), values(rng)
    graph(x, labels)
    source.load()
    assert_same_bytes(source.weights_array, before)
    sgd.learning_rate = 2.0**-6
    graph(x, labels)
    source.load()
    assert_exact(source.weights_array, before - 2.0**-6 * sums(x, labels, before, 0)[0])


def test_arrays_may_be_changed_after_a_reload(device, rng):
    sgd = mg.SGD(2.0**-6, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), optimizer=sgd)
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    x, labels = values(rng), values(rng)
    graph(x, labels)
    graph.reload_from_data_sources()
    fresh = weights(rng)
    source.weights_array[...] = fresh
    graph.reload_from_data_sources()
    graph(x, labels)
    source.load()
    assert_exact(source.weights_array, fresh - 2.0**-6 * sums(x, labels, fresh, 0)[0])


def test_a_dropped_command_buffer_trains_nothing(device, queue, rng):
    sgd = mg.SGD(2.0**-6, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), optimizer=sgd)
    before = source.weights_array.copy()
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    x, labels = values(rng), values(rng)
    command_buffer = queue.command_buffer()
    graph.encode_batch(
        command_buffer, [mg.ImageBatch.from_array(device, x)], [mg.LossLabels.batch(device, labels)]
    )
    del command_buffer
    gc.collect()
    graph.reload_from_data_sources()
    assert_same_bytes(source.weights_array, before)
    assert pickle.loads(pickle.dumps(source)).weights_array.shape == before.shape
    graph(x, labels)
    source.load()
    assert_exact(source.weights_array, before - 2.0**-6 * sums(x, labels, before, 0)[0])


def test_a_load_that_fails_loses_nothing(device, queue, rng):
    sgd = mg.SGD(2.0**-6, device=device)
    source = mg.ArrayConvolutionDataSource(weights(rng), optimizer=sgd)
    before = source.weights_array.copy()
    graph = trained(device, g.ConvolutionNode(g.ImageNode(), source))
    x, labels = values(rng), values(rng)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, x)
    graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, labels)])
    with pytest.raises(
        RuntimeError, match="Buffer is written by a command buffer that has not been committed"
    ):
        source.load()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    source.load()
    assert_exact(source.weights_array, before - 2.0**-6 * sums(x, labels, before, 0)[0])


def test_what_one_source_raises_is_not_anothers(device, queue, rng):
    class Fails(mg.ArrayConvolutionDataSource):
        def update_cpu(self, _gradient_state, _source_state):
            raise LookupError("no such optimizer")

    sgd = mg.SGD(2.0**-6, device=device)
    good = mg.ArrayConvolutionDataSource(weights(rng), optimizer=sgd)
    last = g.ConvolutionNode(
        g.ConvolutionNode(g.ImageNode(), good), Fails(weights(rng), np.zeros(4))
    )
    last.training_style = STYLES.CPU
    graph = trained(device, last)
    images = mg.ImageBatch.from_array(device, values(rng))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, values(rng))])
    command_buffer.commit()
    with pytest.raises(LookupError, match="no such optimizer"):
        command_buffer.wait_until_completed()
    good.load()
    good.load()


@pytest.mark.parametrize("style", [STYLES.CPU, STYLES.GPU])
def test_two_gradient_nodes_of_one_node_are_refused(device, rng, style):
    """One forward state has room for the sums of one."""
    node = g.ConvolutionNode(g.ImageNode("x"), Descent(weights(rng), weights(rng, (4,))))
    node.training_style = style
    both = [node.gradient_filter(g.ImageNode(name)) for name in ("a", "b")]
    with pytest.raises(mg.errors.GraphError, match="ConvolutionNode has two gradient nodes"):
        g.Graph(device, result_images=both)
    node.training_style = STYLES.NONE
    frozen = [node.gradient_filter(g.ImageNode(name)) for name in ("a", "b")]
    graph = g.Graph(device, result_images=frozen)
    graph.format = mg.ChannelFormat.FLOAT32
    a, b = values(rng), values(rng)
    result = graph({"x": values(rng), "a": a, "b": b})
    w = node.weights.weights_array[:, 0, 0]
    assert_exact(result.result, np.einsum("nyxo,oi->nyxi", a, w))
    assert_exact(result.intermediates[0], np.einsum("nyxo,oi->nyxi", b, w))


NORMALIZATIONS = {"Batch": {}, "Instance": {}, "Group": {"number_of_groups": 2}}


def normalization_source(kind):
    return getattr(mg, f"Array{kind}NormalizationDataSource")


def normalization_node(kind, source):
    return getattr(g, f"{kind}NormalizationNode")(g.ImageNode(), source)


def normalization_step(device, node, x, labels):
    trained(device, node)(x, labels)
    node.data_source.load()


def normalization_by_hand(device, kind, x, labels, *numbers):
    """What the kernels of a squared error make: images, states, and the gradient of x."""
    own = normalization_source(kind)(*numbers, epsilon=0.25, **NORMALIZATIONS[kind])
    y, states = getattr(mg, f"{kind}Normalization")(own, device=device)(x, with_state=True)
    descriptor = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
    dy, _ = mg.Loss(descriptor, device=device)(y, labels)
    if kind == "Batch":
        mg.BatchNormalizationStatisticsGradient(device=device)(dy, x, states)
    return y, states, getattr(mg, f"{kind}NormalizationGradient")(device=device)(dy, x, states)


def test_batch_normalization_steps(device, rng):
    gamma, beta = weights(rng, (4,)), weights(rng, (4,))
    mean, variance = weights(rng, (4,)), np.ones(4, np.float32)
    x, labels = values(rng), values(rng)
    source = mg.ArrayBatchNormalizationDataSource(
        gamma.copy(),
        beta.copy(),
        mean.copy(),
        variance.copy(),
        epsilon=0.25,
        optimizer=mg.SGD(0.5, device=device),
        statistics_decay=0.75,
    )
    normalization_step(device, normalization_node("Batch", source), x, labels)

    _, state, _ = normalization_by_hand(device, "Batch", x, labels, gamma, beta, mean, variance)
    np.testing.assert_array_equal(
        source.gamma, gamma - np.float32(0.5) * state.gradient_for_gamma.to_numpy()
    )
    np.testing.assert_array_equal(
        source.beta, beta - np.float32(0.5) * state.gradient_for_beta.to_numpy()
    )
    # Three roundings: of two products, or one and a fused sum, and the sum.
    assert np.allclose(
        source.mean, 0.75 * mean + 0.25 * x.mean((0, 1, 2), np.float64), rtol=0, atol=3e-7
    )
    assert np.allclose(
        source.variance, 0.75 * variance + 0.25 * x.var((0, 1, 2)), rtol=3 * 2.0**-23, atol=0
    )


@pytest.mark.parametrize("kind", ["Instance", "Group"])
def test_normalizations_of_single_images_add_up(device, rng, kind):
    gamma, beta = weights(rng, (4,)), weights(rng, (4,))
    x, labels = values(rng), values(rng)
    source = normalization_source(kind)(
        gamma.copy(),
        beta.copy(),
        epsilon=0.25,
        optimizer=mg.SGD(0.5, device=device),
        **NORMALIZATIONS[kind],
    )
    normalization_step(device, normalization_node(kind, source), x, labels)

    _, states, _ = normalization_by_hand(device, kind, x, labels, gamma, beta)
    for name, start in (("gamma", gamma), ("beta", beta)):
        total = np.zeros(4, np.float32)
        for state in states:
            total += getattr(state, f"gradient_for_{name}").to_numpy()
        np.testing.assert_array_equal(getattr(source, name), start - np.float32(0.5) * total)


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_frozen_normalizations_stay(device, rng, kind):
    """Neither parameters nor running averages move, and the gradient goes through."""
    numbers = [weights(rng, (4,)), weights(rng, (4,)), *[ONES, ONES] * (kind == "Batch")]
    sgd = mg.SGD(0.5, device=device)
    source = normalization_source(kind)(
        *(array.copy() for array in numbers), epsilon=0.25, optimizer=sgd, **NORMALIZATIONS[kind]
    )
    before = source.checkpoint()
    graph = trained(device, normalization_node(kind, source), STYLES.NONE, needed=True)
    x, labels = values(rng), values(rng)
    _, _, dx = normalization_by_hand(device, kind, x, labels, *numbers)
    for _ in range(2):
        assert_same_bytes(graph(x, labels).result, dx)
    after = source.checkpoint()
    assert list(after) == list(before)
    for name, array in after.items():
        assert_same_bytes(array, before[name])


def noting(kind, calls):
    """A data source's class whose updates note what they are called with, and change nothing."""

    def noted(name):
        def note(_self, *arguments):
            kinds = (len(set(a)) if isinstance(a, list) else type(a) for a in arguments)
            calls.append((name, *kinds))

        return note

    names = ["update_gamma_and_beta", "update_mean_and_variance"]
    methods = {name: noted(name) for short in names for name in (short, f"{short}_cpu")}
    return type(f"Noting{kind}", (normalization_source(kind),), methods)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_which_updates_of_a_normalization_are_called(device, rng, kind, style):
    calls = []
    source = noting(kind, calls)(ONES, ONES, **NORMALIZATIONS[kind])
    graph = trained(device, normalization_node(kind, source), style, needed=True)
    graph(values(rng), values(rng))

    states = mg.BatchNormalizationState if kind == "Batch" else SHAPE[0]
    names = ["update_gamma_and_beta"] + ["update_mean_and_variance"] * (kind == "Batch")
    wanted = {
        STYLES.NONE: [],
        STYLES.CPU: [(f"{name}_cpu", states) for name in names],
        STYLES.GPU: [(name, mg.CommandBuffer, states) for name in names],
    }
    assert calls == wanted[style]


class AddsByCpu:
    """Adds the gradients to gamma; a base beside a data source."""

    is_read = True

    def update_gamma_and_beta_cpu(self, states):
        for state in states if isinstance(states, list) else [states]:
            self.gamma = self.gamma + state.gradient_for_gamma.to_numpy()
        return self.is_read


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_normalizations_by_the_cpu_are_read_where_the_update_says_so(device, rng, kind, is_read):
    cls = type("Adds", (AddsByCpu, normalization_source(kind)), {"is_read": is_read})
    source = cls(ONES, ONES, epsilon=0.25, **NORMALIZATIONS[kind])
    node = normalization_node(kind, source)
    node.result_image.export()
    graph = trained(device, node, STYLES.CPU)
    x, labels = values(rng), values(rng)
    gamma = ONES
    for _ in range(2):
        y, states, _ = normalization_by_hand(device, kind, x, labels, gamma, ONES)
        moved = source.gamma
        for state in [states] if kind == "Batch" else states:
            moved = moved + state.gradient_for_gamma.to_numpy()
        assert_same_bytes(graph(x, labels).intermediates[0], y)
        assert_same_bytes(source.gamma, moved)
        gamma = moved if is_read else ONES


class MovesByCpu(AddsByCpu, mg.ArrayBatchNormalizationDataSource):
    """Adds the gradients to gamma, and takes the batch's mean for its own."""

    def update_mean_and_variance_cpu(self, state):
        self.mean = state.mean.to_numpy()
        return True


def test_batch_normalization_by_the_cpu(device, rng):
    source = MovesByCpu(*[ONES] * 4, epsilon=0.25)
    x, labels = values(rng), values(rng)
    trained(device, g.BatchNormalizationNode(g.ImageNode(), source), STYLES.CPU)(x, labels)

    _, state, _ = normalization_by_hand(device, "Batch", x, labels, ONES, ONES)
    assert_same_bytes(source.mean, state.mean.to_numpy())
    assert_exact(source.gamma, np.float32(1) + state.gradient_for_gamma.to_numpy())


def test_sources_with_optimizers_are_checked(device):
    sgd = mg.SGD(0.1, device=device)
    with pytest.raises(TypeError, match="optimizer must be an Optimizer, got int"):
        mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1), np.float32), optimizer=3)
    with pytest.raises(TypeError, match="to be trained, weights must be float32, got float16"):
        mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1), np.float16), optimizer=sgd)
    fixed = np.ones((1, 1, 1, 1), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="to be trained, weights must be writeable"):
        mg.ArrayConvolutionDataSource(fixed, optimizer=sgd)
    with pytest.raises(ValueError, match="to be trained it needs beta"):
        mg.ArrayBatchNormalizationDataSource(np.ones(4), optimizer=sgd)
    with pytest.raises(ValueError, match="to be trained it needs gamma and beta"):
        mg.ArrayGroupNormalizationDataSource(
            number_of_feature_channels=4, number_of_groups=1, optimizer=sgd
        )
    with pytest.raises(ValueError, match=r"statistics_decay must be from 0 to 1, got 1\.5"):
        mg.ArrayBatchNormalizationDataSource(np.ones(4), statistics_decay=1.5)


def test_a_network_learns(device, rng):
    """Two classes that a line separates, through the layers of a small network."""
    adam = mg.Adam(0.02, device=device)
    first = mg.ArrayConvolutionDataSource(
        rng.standard_normal((8, 3, 3, 1)).astype(np.float32) / 3, np.zeros(8), optimizer=adam
    )
    norm = mg.ArrayBatchNormalizationDataSource(
        np.ones(8), np.zeros(8), np.zeros(8), np.ones(8), epsilon=1e-3, optimizer=adam
    )
    last = mg.ArrayConvolutionDataSource(
        rng.standard_normal((4, 2, 2, 8)).astype(np.float32) / 8, np.zeros(4), optimizer=adam
    )

    def network(image):
        node = g.ConvolutionNode(image, first)
        node = g.NeuronReLUNode(g.BatchNormalizationNode(node, norm))
        return g.FullyConnectedNode(g.PoolingMaxNode(node, 2), last)

    descriptor = mg.LossDescriptor(
        mg.LossType.SOFT_MAX_CROSS_ENTROPY, mg.ReductionType.SUM, weight=1 / 32
    )
    termini = g.LossNode(network(g.ImageNode()), descriptor).training_graph()
    training = g.Graph(device, result_images=termini, results_are_needed=False)
    inference = g.Graph(device, g.SoftMaxNode(network(g.ImageNode())))
    training.format = inference.format = mg.ChannelFormat.FLOAT32
    x = rng.standard_normal((32, 4, 4, 1)).astype(np.float32)
    classes = (x[:, 1, 1, 0] > 0).astype(int)
    labels = np.eye(4, dtype=np.float32)[classes].reshape(32, 1, 1, 4)

    losses = [training(x, labels).losses[0].sum() for _ in range(60)]

    assert losses[-1] < 0.2 * losses[0]
    inference.reload_from_data_sources()
    assert np.mean(inference(x).result[:, 0, 0].argmax(-1) == classes) > 0.9


SOURCES = {
    "convolution": (
        lambda **more: mg.ArrayConvolutionDataSource(
            np.ones((2, 1, 1, 3), np.float32), np.zeros(2, np.float32), **more
        ),
        lambda source: [source.weights_array, source.bias_array],
    ),
    "batch normalization": (
        lambda **more: mg.ArrayBatchNormalizationDataSource(
            *np.ones((4, 3), np.float32).copy(), **more
        ),
        lambda source: [source.gamma, source.beta, source.mean, source.variance],
    ),
    "instance normalization": (
        lambda **more: mg.ArrayInstanceNormalizationDataSource(
            *np.ones((2, 3), np.float32).copy(), **more
        ),
        lambda source: [source.gamma, source.beta],
    ),
}


@pytest.mark.parametrize(("make", "arrays"), SOURCES.values(), ids=list(SOURCES))
@pytest.mark.parametrize("trained", [False, True])
def test_pickles_whose_buffers_are_read_only(device, make, arrays, trained):
    """What is trained needs arrays of its own; what is not shares the buffers."""
    source = make(optimizer=mg.SGD(0.1, device=device) if trained else None)
    buffers = []
    header = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
    copy = pickle.loads(header, buffers=[bytes(buffer.raw()) for buffer in buffers])
    for old, new in zip(arrays(source), arrays(copy), strict=True):
        np.testing.assert_array_equal(old, new)
        assert new.flags.writeable == trained
