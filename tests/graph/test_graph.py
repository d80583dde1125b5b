"""Compiled graphs: their inputs and results, what runs, formats, read counts, errors, copies."""

import copy
import gc
import pickle
import re
import sys
import threading
import weakref
from pathlib import Path

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.core.support import python_of_little_memory
from tests.graph.networks import loss_of
from tests.rejects import rejects
from tests.tolerance import assert_exact, assert_same_bytes

SHAPE = (3, 4, 2, 8)
FLOAT32, FLOAT16 = mg.ChannelFormat.FLOAT32, mg.ChannelFormat.FLOAT16


def linear(source, a=2.0, **options):
    return g.NeuronLinearNode(source, a, **options)


def sample(rng, shape=SHAPE):
    return rng.integers(-8, 9, shape).astype(np.float32)


def float_graph(device, results, **options):
    graph = g.Graph(device, result_images=results, **options)
    graph.format = FLOAT32
    return graph


def batch(device, values):
    return mg.ImageBatch.from_array(device, values)


def finish(command_buffer):
    command_buffer.commit()
    command_buffer.wait_until_completed()


# ---- inputs and results


def test_inputs_in_the_order_of_a_walk_from_the_results(device):
    a, b, c, d = (g.ImageNode(name) for name in "abcd")
    inner = g.ConcatenationNode([b, g.ConcatenationNode([c, a])])
    assert g.Graph(device, inner).source_image_handles == ["b", "c", "a"]
    both = g.Graph(device, result_images=[linear(d), inner])
    assert both.source_image_handles == ["d", "b", "c", "a"]
    dr = g.ImageNode("dr")
    termini = inner.training_graph(dr)
    trained = g.Graph(device, result_images=termini)
    assert trained.source_image_handles[0] == "dr"
    assert sorted(trained.source_image_handles) == ["a", "b", "c", "dr"]


def test_nodes_without_handles_are_inputs_too(device, rng):
    graph = float_graph(device, [g.AdditionNode(g.ImageNode(), g.ImageNode("y"))])
    assert graph.source_image_handles == [None, "y"]
    x, y = sample(rng), sample(rng)
    assert_exact(graph([x, y]).result, x + y)
    with pytest.raises(ValueError, match="1 of the nodes have none"):
        graph({"y": y})


def test_any_hashable_is_a_handle(device, rng):
    key = ("layer", 3)
    graph = float_graph(device, [linear(g.ImageNode(key))])
    x = sample(rng)
    assert_exact(graph({key: x}).result, 2 * x)


def test_several_results_and_exports(device, rng):
    x = g.ImageNode("x")
    first = linear(x, 2.0)
    second = linear(first, 3.0)
    third = linear(second, 4.0)
    first.result_image.export().handle = "first"
    third.result_image.handle = "third"
    graph = float_graph(device, [second, third])
    assert graph.intermediate_image_handles == ["first", "third"]
    values = sample(rng)

    result, intermediates, losses = graph(values)

    assert_exact(result, 6 * values)
    assert_exact(intermediates["first"], 2 * values)
    assert_exact(intermediates[1], 24 * values)
    assert losses == []
    with pytest.raises(KeyError, match="fourth"):
        intermediates["fourth"]
    assert graph.result_handle is None


def test_a_result_that_is_exported_comes_twice(device, queue, rng):
    node = linear(g.ImageNode("x"))
    node.result_image.export_from_graph = True
    graph = float_graph(device, [node])
    graph.destination_image_allocator = mg.TEMPORARY
    command_buffer = queue.command_buffer()

    result = graph.encode_batch(command_buffer, [batch(device, sample(rng))])

    assert [image.read_count for image in result.result] == [2, 2, 2]
    assert result.intermediates[0] is result.result
    mg.increment_read_count(result.result, -2)
    finish(command_buffer)


def test_intermediates_are_temporary_unless_asked_for(device, queue, rng):
    node = linear(g.ImageNode("x"))
    node.result_image.export_from_graph = True
    graph = float_graph(device, [linear(node)])
    command_buffer = queue.command_buffer()
    _, (exported,), _ = graph.encode_batch(command_buffer, [batch(device, sample(rng))])
    assert all(image.is_temporary and image.read_count == 1 for image in exported)
    with pytest.raises(RuntimeError, match="TemporaryImage: read"):
        exported[0].read()
    mg.increment_read_count(exported, -1)
    finish(command_buffer)


def test_exported_states(device, queue, rng):
    x = g.ImageNode("x")
    node = g.PoolingMaxNode(x, 2)
    node.result_state.export_from_graph = True
    node.result_state.handle = "pooled"
    graph = float_graph(device, [node])
    assert graph.result_state_handles == ["pooled"]
    values = rng.permutation(np.arange(np.prod(SHAPE))).reshape(SHAPE).astype(np.float32)
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [batch(device, values)])
        mg.synchronize(result.result, command_buffer)
    command_buffer.wait_until_completed()
    states = result.states["pooled"]
    kernel = mg.PoolingMaxGradient(2, 2, 2, 2, device=device)
    forward = mg.PoolingMax(2, 2, 2, 2, device=device)
    y, own = forward(values, with_state=True)
    assert_exact(result.result.to_array(), y)
    assert_same_bytes(kernel(y, values, states), kernel(y, values, own))


def test_single_images(device, queue, rng):
    graph = float_graph(device, [g.AdditionNode(g.ImageNode("x"), g.ImageNode("y"))])
    x, y = sample(rng), sample(rng)
    with queue.command_buffer() as command_buffer:
        images = [batch(device, values)[0] for values in (x, y)]
        result = graph.encode(command_buffer, images).result
        result.synchronize(command_buffer)
    command_buffer.wait_until_completed()
    assert_exact(result.read(), x[0] + y[0])
    assert_exact(graph([x[0], y[0]]).result, x[0] + y[0])


def test_a_result_that_is_not_needed(device, queue, rng):
    node = linear(g.ImageNode("x"))
    node.result_image.export()
    graph = float_graph(device, [linear(node)], results_are_needed=False)
    assert not graph.result_image_is_needed
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, batch(device, sample(rng)))
    assert result.result is None
    command_buffer.wait_until_completed()
    assert "not run, as nobody needs it: NeuronLinearNode" in str(graph)


def test_pruned_nodes_take_no_inputs(device):
    x, y = g.ImageNode("x"), g.ImageNode("y")
    graph = g.Graph(device, result_images=[linear(x), linear(y)], results_are_needed=[False, True])
    assert graph.source_image_handles == ["y"]


def test_a_frozen_network_below_a_loss_runs_no_gradients(device, rng):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 8), np.float32))
    node = g.ConvolutionNode(g.ImageNode("x"), source)
    node.training_style = g.TrainingStyle.NONE
    loss = loss_of(node)
    graph = float_graph(device, loss.training_graph(), results_are_needed=False)
    assert "ConvolutionGradientNode" in str(graph).rpartition("not run")[2]
    x = sample(rng)
    y = x.sum(-1, keepdims=True)
    losses = graph(x, np.zeros((*SHAPE[:3], 4), np.float32)).losses[0]
    assert_exact(losses.reshape(-1), 4 * (y**2).sum((1, 2, 3)))


def test_same_nodes_in_two_graphs(device, rng):
    node = linear(g.ImageNode("x"))
    x = sample(rng)
    for graph in [float_graph(device, [node]), float_graph(device, [node])]:
        assert_exact(graph(x).result, 2 * x)


# ---- formats


@pytest.mark.parametrize("own", [None, FLOAT32])
@pytest.mark.parametrize("of_graph", [None, FLOAT32])
def test_formats(device, queue, rng, own, of_graph):
    x = g.ImageNode("x")
    if own is not None:
        x.format = own
    first, second = linear(x), None
    second = linear(first)
    for node in (first, second):
        node.result_image.export()
    graph = g.Graph(device, linear(second))
    if of_graph is not None:
        graph.format = of_graph
    second.result_image.format = FLOAT16  # after compilation: no effect
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [batch(device, sample(rng))])
    command_buffer.wait_until_completed()
    expected = FLOAT32 if FLOAT32 in (own, of_graph) else FLOAT16
    made = [result.result, *result.intermediates]
    assert [images[0].feature_channel_format for images in made] == [expected] * 3


def test_a_format_of_a_node_holds_for_what_follows(device, queue, rng):
    first = linear(g.ImageNode("x"))
    second = linear(first)
    second.result_image.format = FLOAT32
    first.result_image.export()
    graph = g.Graph(device, linear(second))
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [batch(device, sample(rng))])
    command_buffer.wait_until_completed()
    assert result.intermediates[0][0].feature_channel_format == FLOAT16
    assert result.result[0].feature_channel_format == FLOAT32


def test_values_are_rounded_to_their_format(device):
    x = np.full((1, 1, 1, 4), 1 + 2**-12, np.float32)
    graph = g.Graph(device, linear(linear(g.ImageNode("x"), 1.0), 1.0))
    assert_exact(graph(x).result.astype(np.float32), np.ones_like(x))


def test_format_is_one_of_images(device):
    graph = g.Graph(device, linear(g.ImageNode()))
    with pytest.raises(ValueError, match="format must be a format of images, got NONE"):
        graph.format = mg.ChannelFormat.NONE
    node = linear(g.ImageNode("x"))
    assert g.Graph(device, node).format == FLOAT16
    assert g.Graph(device, node, format=FLOAT32).format == FLOAT32
    with pytest.raises(ValueError, match="format must be a format of images, got NONE"):
        g.Graph(device, node, format=mg.ChannelFormat.NONE)
    with pytest.raises(TypeError, match="format must be a ChannelFormat, got str"):
        g.Graph(device, node, format="float32")


def test_defaults(device):
    graph = g.Graph(device, linear(g.ImageNode()))
    assert (graph.format, graph.output_state_is_temporary) == (FLOAT16, False)
    assert graph.destination_image_allocator is mg.DEFAULT
    assert (graph.result_image_is_needed, graph.options) == (True, mg.KernelOptions.NONE)


# ---- reads


def temporary(command_buffer, values):
    """Temporary images, which a kernel that copies has written."""
    device = command_buffer.device
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)
    return kernel.encode_batch(command_buffer, batch(device, values))


def test_read_counts_of_sources(device, queue, rng):
    x = g.ImageNode("x")
    total = g.AdditionNode(g.MultiplicationNode(x, linear(x)), x)
    graph = float_graph(device, [total])
    assert graph.read_count_for_source_image(0) == 3
    command_buffer = queue.command_buffer()
    values = sample(rng)
    images = temporary(command_buffer, values)
    with pytest.raises(
        mg.errors.ReadCountError, match=r"source image 0 \('x'\) is read 3 times.*count is 1"
    ):
        graph.encode_batch(command_buffer, [images])
    assert [image.read_count for image in images] == [1, 1, 1]
    mg.increment_read_count(images, 3)
    result = graph.encode_batch(command_buffer, [images]).result
    assert [image.read_count for image in images] == [1, 1, 1]
    mg.increment_read_count(images, -1)
    mg.synchronize(result, command_buffer)
    finish(command_buffer)
    assert_exact(result.to_array(), values * 2 * values + values)


def test_read_counts_of_batch_normalization(device):
    source = mg.ArrayBatchNormalizationDataSource(np.ones(8), np.zeros(8))
    x = g.ImageNode("x")
    node = g.BatchNormalizationNode(x, source)
    termini = node.training_graph(g.ImageNode("dy"))
    graph = g.Graph(device, result_images=termini)
    assert graph.source_image_handles == ["dy", "x"]
    assert [graph.read_count_for_source_image(i) for i in (0, 1)] == [2, 4]
    loss = loss_of(x)
    assert g.Graph(device, loss).read_count_for_source_state(0) == 1


def test_an_image_may_be_several_inputs(device, queue, rng):
    graph = float_graph(device, [g.AdditionNode(g.ImageNode("x"), g.ImageNode("y"))])
    command_buffer = queue.command_buffer()
    values = sample(rng)
    images = temporary(command_buffer, values)
    with pytest.raises(mg.errors.ReadCountError, match=r"is read 2 times.*count is 1"):
        graph.encode_batch(command_buffer, [images, images])
    mg.increment_read_count(images, 1)
    result = graph.encode_batch(command_buffer, [images, images]).result
    mg.synchronize(result, command_buffer)
    finish(command_buffer)
    assert_exact(result.to_array(), 2 * values)


def test_read_counts_have_an_index(device):
    graph = g.Graph(device, linear(g.ImageNode()))
    with pytest.raises(IndexError, match="there are 1 source images, no number 1"):
        graph.read_count_for_source_image(1)
    with pytest.raises(IndexError, match="there are 0 source states, no number 0"):
        graph.read_count_for_source_state(0)


def test_nothing_is_left_in_use(device, queue, rng):
    """Every temporary image of an encode has been read as often as was announced."""
    gc.collect()
    x = g.ImageNode("x")
    a, b = linear(x), linear(x, 3.0)
    loss = loss_of(g.SoftMaxNode(g.ConcatenationNode([g.AdditionNode(a, b), a])))
    termini = loss.training_graph()
    graph = float_graph(device, termini)
    labels = mg.LossLabels.batch(device, sample(rng, (3, 4, 2, 16)))
    command_buffer = queue.command_buffer()
    result = graph.encode_batch(command_buffer, [batch(device, sample(rng))], [labels])
    assert not any(image.is_temporary for image in result.result)
    finish(command_buffer)
    gc.collect()  # a temporary image that still has reads would warn, and warnings are errors


# ---- errors


def test_inputs_are_checked_before_anything_is_encoded(device, queue, rng):
    x, y = g.ImageNode("x"), g.ImageNode("y")
    graph = float_graph(device, [g.AdditionNode(linear(x), y)])
    command_buffer = queue.command_buffer()
    good, other = batch(device, sample(rng)), batch(device, sample(rng, (3, 4, 3, 8)))
    short = batch(device, sample(rng, (2, 4, 2, 8)))
    cases = [
        ([good], [], ValueError, "must hold 2, for 'x', 'y', got 1: none for 'y'"),
        ([good, good], [[]], ValueError, "no node takes source_states, but 1 came"),
        (
            [good, short],
            [],
            ValueError,
            "source image 1 ('y') has 2 elements, but the first input has 3",
        ),
        ([good, []], [], ValueError, "source image 1 ('y') is an empty batch"),
        ([good, 3], [], TypeError, "source_images must be an Image, an ImageBatch or a list"),
        ({"x": good}, [], ValueError, "must be given for the handles ['x', 'y'], got ['x']"),
        ({"x": good, "y": good, "z": good}, [], ValueError, "got ['x', 'y', 'z']"),
        ([good, other], [], ValueError, "Graph: AdditionNode: Add: "),
    ]
    for images, states, error, words in cases:
        with pytest.raises(error, match=re.escape(words)):
            graph.encode_batch(command_buffer, images, states)
    temporaries = temporary(command_buffer, sample(rng))
    with pytest.raises(ValueError, match="AdditionNode"):
        graph.encode_batch(command_buffer, [temporaries, other])
    assert [image.read_count for image in temporaries] == [1, 1, 1]
    result = graph.encode_batch(command_buffer, [temporaries, good]).result
    mg.synchronize(result, command_buffer)
    finish(command_buffer)
    with pytest.raises(mg.errors.CommandBufferError, match="Graph: the command buffer is already"):
        graph.encode_batch(command_buffer, [good, good])


def test_labels_are_checked(device, queue, rng):
    graph = float_graph(device, [loss_of(g.ImageNode("x"))])
    x = batch(device, sample(rng))
    command_buffer = queue.command_buffer()
    labels = mg.LossLabels.batch(device, sample(rng))
    with pytest.raises(ValueError, match=r"source state 0 \('labels'\) has 2 elements"):
        graph.encode_batch(command_buffer, [x], [labels[:2]])
    with pytest.raises(TypeError, match="must be LossLabels, got a State"):
        graph.encode_batch(command_buffer, [x], [[mg.State(device, mg.ResourceList())] * 3])
    wrong = mg.LossLabels.batch(device, sample(rng, (3, 4, 2, 4)))
    with pytest.raises(ValueError, match="Graph: LossNode: Loss: "):
        graph.encode_batch(command_buffer, [x], [wrong])
    with pytest.raises(ValueError, match="source_states must hold 1, for 'labels', got 0"):
        graph.encode_batch(command_buffer, [x])


def test_weights_of_labels(device, rng):
    x, labels = sample(rng), sample(rng)
    weights = rng.integers(-4, 5, (*SHAPE[:3], 1)).astype(np.float32)
    first, second = loss_of(g.ImageNode("x")), loss_of(g.ImageNode("x"))
    second.input_labels.handle = "others"
    graph = float_graph(device, [first])
    expected = (weights * (x - labels) ** 2).sum((1, 2, 3))
    result = graph(x, labels, weights)
    assert_exact(result.losses[0].reshape(-1), expected)
    assert_exact(result.result, 2 * weights * (x - labels))
    whole = np.ascontiguousarray(np.broadcast_to(weights, SHAPE))
    for given in (
        ([labels], [weights]),
        ({"labels": labels}, {"labels": weights}),
        (mg.LossLabels.batch(device, labels, whole), None),
        ([mg.LossLabels.batch(device, labels, whole)], None),
    ):
        assert_exact(graph(x, *given).losses[0].reshape(-1), expected)
    assert_exact(graph(x[0], labels[0], weights[0]).losses[0].reshape(-1), expected[:1])
    plain = ((x - labels) ** 2).sum((1, 2, 3))
    assert_exact(graph(x, labels, {}).losses[0].reshape(-1), plain)

    both = float_graph(device, [first, second])
    for given in ([None, weights], {"others": weights}):
        losses = both([x, x], [labels, labels], given).losses
        assert_exact(losses["labels"].reshape(-1), plain)
        assert_exact(losses["others"].reshape(-1), expected)


def test_weights_of_labels_are_checked(device, rng):
    x, labels = sample(rng), sample(rng)
    graph = float_graph(device, [loss_of(g.ImageNode("x"))])
    with rejects(ValueError, "label_weights have shape (2, 4, 2, 8), but labels have (3, 4, 2, 8)"):
        graph(x, labels, labels[:2])
    with rejects(ValueError, "Graph: label_weights have shape (4, 2, 8), but labels have (3, 4, "):
        graph(x, labels, labels[0])
    with rejects(TypeError, "Graph: label_weights must be float32, got float64"):
        graph(x, labels, labels.astype(np.float64))
    with rejects(ValueError, "label_weights may be given for the handles ['labels'], got ['x']"):
        graph(x, labels, {"x": labels})
    with rejects(ValueError, "Graph: label_weights must hold 1, for 'labels', got 2"):
        graph(x, labels, [labels, labels])
    with rejects(ValueError, "Graph: labels are LossLabels, which have weights of their own"):
        graph(x, mg.LossLabels.batch(device, labels), labels)
    unnamed = loss_of(g.ImageNode("x"))
    unnamed.input_labels.handle = None
    with rejects(ValueError, "label_weights cannot be given by handle, as 1 of the nodes"):
        float_graph(device, [unnamed])(x, labels, {None: labels})


def test_labels_of_a_batch_are_of_one_kind(device, queue, rng):
    graph = float_graph(device, [loss_of(linear(g.ImageNode("x")))])
    command_buffer = queue.command_buffer()
    images = temporary(command_buffer, sample(rng))
    good = mg.LossLabels.batch(device, sample(rng))
    wide = mg.LossLabels.batch(device, sample(rng, (3, 4, 3, 8)))
    with pytest.raises(ValueError, match=r"source state 0 \('labels'\) mixes labels of 2x4x8"):
        graph.encode_batch(command_buffer, [images], [[good[0], wide[1], good[2]]])
    with pytest.raises(ValueError, match="holds one object twice"):
        graph.encode_batch(command_buffer, [images], [[good[0], good[1], good[0]]])
    assert [image.read_count for image in images] == [1, 1, 1]
    graph.encode_batch(command_buffer, [images], [good])
    finish(command_buffer)


def test_every_label_is_for_a_node(device, rng):
    x = sample(rng)
    with pytest.raises(ValueError, match="labels must hold 1, for 'labels', got 2"):
        float_graph(device, [loss_of(g.ImageNode())])(x, [x, x])
    with pytest.raises(ValueError, match="no node takes labels, but 1 came"):
        float_graph(device, [linear(g.ImageNode())])(x, x)


def test_what_is_wrong_with_arrays(device, rng):
    x = sample(rng)
    loss = loss_of(g.ImageNode("x"))
    graph = float_graph(device, [loss])
    with rejects(ValueError, "Graph: images must hold 1, for 'x', got 0: none for 'x'"):
        graph()
    with rejects(ValueError, "Graph: labels must hold 1, for 'labels', got 0: none for 'labels'"):
        graph(x)
    with rejects(ValueError, "Graph: labels must have length 3, as images has, got 2"):
        graph(x, x[:2])
    with rejects(ValueError, "labels['labels'] must have length 3, as images['x'] has, got 2"):
        graph({"x": x}, {"labels": x[:2]})
    with rejects(TypeError, "Graph: labels must be float32, got float16; np.asarray(labels, "):
        graph(x, x.astype(np.float16))
    with rejects(
        TypeError,
        "Graph: labels must be float32, got int64; mg.one_hot(labels, count) makes such labels",
    ):
        graph(x, np.zeros(3, np.int64))
    loss.input_labels.handle = None
    with rejects(ValueError, "have none; set LossNode.input_labels.handle, before the graph is"):
        float_graph(device, [loss])(x, {"labels": x})


@pytest.mark.parametrize("wanted", [False, True])
def test_labels_are_synchronized_where_the_graph_is_asked_to(device, queue, rng, wanted):
    x = sample(rng)
    loss = loss_of(g.NeuronReLUNode(g.ImageNode("x")))
    loss.input_labels.synchronize_resource = wanted
    graph = float_graph(device, [loss])
    states = mg.LossLabels.batch(device, np.zeros_like(x))
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, x)], [states])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    if not wanted:
        with rejects(RuntimeError, "LossLabels: the loss can be read only after synchronize"):
            states[0].loss  # noqa: B018
        return
    want = [np.square(np.maximum(image, 0)).sum() for image in x]
    assert_exact([state.loss.item() for state in states], want)


def test_what_is_wrong_with_several_arrays(device, rng):
    x = sample(rng)
    graph = float_graph(device, [g.AdditionNode(g.ImageNode("x"), g.ImageNode("x"))])
    words = "for 'x', 'x', got 1: none for 'x'; 2 nodes have the handle 'x': use one node where it"
    with rejects(ValueError, f"Graph: images must hold 2, {words}"):
        graph(x)
    with rejects(TypeError, "got float64; np.asarray(images[1], np.float32) makes it one"):
        graph([x, x.astype(np.float64)])
    assert_exact(graph({"x": x}).result, x + x)
    graph = float_graph(device, [g.AdditionNode(g.ImageNode(), g.ImageNode("y"))])
    with rejects(ValueError, "must hold 2, for a node without a handle, 'y', got 1: none for 'y'"):
        graph(x)
    with rejects(ValueError, "have none; ImageNode('name') makes one with a handle"):
        graph({"y": x})


def test_a_command_buffer_is_needed(device, rng):
    graph = float_graph(device, [linear(g.ImageNode())])
    with pytest.raises(TypeError, match="Graph: command_buffer must be a CommandBuffer, got"):
        graph.encode_batch(None, [batch(device, sample(rng))])


def test_sizes_of_a_fully_connected_node_are_named(device, rng):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 8), np.float32))
    graph = float_graph(device, [g.FullyConnectedNode(g.ImageNode("x"), source, label="head")])
    with pytest.raises(ValueError, match="Graph: FullyConnectedNode 'head': FullyConnected: "):
        graph(sample(rng))


def test_nodes_before_one_that_does_not_fit_are_named(device, rng):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 8), np.float32))
    before = g.NeuronReLUNode(g.ImageNode("x"), label="up")
    graph = float_graph(device, [g.FullyConnectedNode(before, source, label="down")])
    words = "'down': FullyConnected: .*; it reads the result of NeuronReLUNode 'up'$"
    with pytest.raises(ValueError, match=words):
        graph(sample(rng))
    wide, narrow = (g.NeuronReLUNode(g.ImageNode(), label=label) for label in ("wide", "narrow"))
    graph = float_graph(device, [g.AdditionNode(wide, narrow)])
    words = "reads the result of NeuronReLUNode 'wide' and the result of NeuronReLUNode 'narrow'$"
    with pytest.raises(ValueError, match=words):
        graph.encode_batch(
            device.command_queue().command_buffer(),
            [batch(device, sample(rng, (2, 3, 4, 8))), batch(device, sample(rng, (2, 3, 5, 8)))],
        )


def test_concatenated_nodes_of_different_sizes_are_named(device, rng):
    nodes = [g.NeuronReLUNode(g.ImageNode(name), label=name) for name in ("four", "five")]
    graph = float_graph(device, [g.ConcatenationNode(nodes, label="both")])
    words = (
        "Graph: ConcatenationNode 'both': the sources of a concatenation must be of one size, got "
        "4x3 and 5x3; it reads the result of NeuronReLUNode 'four' and the result of "
        "NeuronReLUNode 'five'"
    )
    with pytest.raises(ValueError, match=f"^{words}$"):
        graph.encode_batch(
            device.command_queue().command_buffer(),
            {
                "four": batch(device, sample(rng, (2, 3, 4, 8))),
                "five": batch(device, sample(rng, (2, 3, 5, 4))),
            },
        )


def test_a_view_and_its_parent_as_inputs(device, queue):
    command_buffer = queue.command_buffer()
    parent = mg.TemporaryImage(command_buffer, mg.ImageDescriptor(1, 1, 8))
    view = parent.sub_image_with_feature_channel_range(0, 4)
    x, y = g.ImageNode("x"), g.ImageNode("y")
    graph = float_graph(device, [linear(x), linear(y)])
    with pytest.raises(mg.errors.ReadCountError, match="cannot lower read count 1 by 2"):
        graph.encode_batch(command_buffer, {"x": [view], "y": [parent]})
    assert (view.read_count, parent.read_count) == (1, 1)
    mg.increment_read_count([view], -1)
    finish(command_buffer)


def test_an_image_that_is_twice_in_a_batch_is_read_once(device, queue):
    command_buffer = queue.command_buffer()
    image = mg.Image(device, mg.ImageDescriptor())
    image.write(np.full((1, 1, 1), 3, np.float32))
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.ABSOLUTE), device=device)
    twice = kernel.encode(command_buffer, image)
    graph = float_graph(device, [linear(g.ImageNode())])
    result = graph.encode_batch(command_buffer, [[twice, twice]]).result
    assert twice.read_count == 0
    mg.synchronize(result, command_buffer)
    finish(command_buffer)
    first, second = result.to_array()
    assert_exact(first, second)


X = g.ImageNode("x")
NODE = g.SoftMaxNode(X)
CONSTRUCTIONS = {
    "nothing": (lambda: g.Graph("cpu"), TypeError, "either result_image or result_images"),
    "both": (
        lambda: g.Graph("cpu", NODE, result_images=[NODE]),
        TypeError,
        "either result_image or result_images",
    ),
    "empty": (lambda: g.Graph("cpu", result_images=[]), ValueError, "at least one node, got none"),
    "twice": (lambda: g.Graph("cpu", result_images=[NODE, NODE]), ValueError, "holds a node twice"),
    "no list": (lambda: g.Graph("cpu", result_images=NODE), TypeError, "must be a list of nodes"),
    "no nodes": (
        lambda: g.Graph("cpu", result_images=3),
        TypeError,
        "Graph: result_images must be a list of nodes, got int",
    ),
    "flag for all": (
        lambda: g.Graph("cpu", result_images=[NODE], results_are_needed=3),
        TypeError,
        "Graph: results_are_needed must be a bool or a list, got int",
    ),
    "number": (lambda: g.Graph("cpu", 3), TypeError, "must be an ImageNode, got int"),
    "several as one": (
        lambda: g.Graph("cpu", []),
        TypeError,
        "result_image must be an ImageNode, got list; results that are several",
    ),
    "input": (lambda: g.Graph("cpu", X), ValueError, "ImageNode('x') is an input"),
    "flags": (
        lambda: g.Graph("cpu", result_images=[NODE], results_are_needed=[True, False]),
        ValueError,
        "results_are_needed has 2 values for 1 result images",
    ),
    "nothing runs": (
        lambda: g.Graph("cpu", NODE, False),
        mg.errors.GraphError,
        "nothing has to be run",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), CONSTRUCTIONS.values(), ids=CONSTRUCTIONS)
def test_rejects_at_construction(make, error, words):
    with pytest.raises(error, match=re.escape(words)):
        make()


@pytest.mark.parametrize("method", ["encode_batch", "encode", "execute_async"])
def test_inputs_that_are_no_list(device, queue, rng, method):
    graph = float_graph(device, [linear(g.ImageNode("x"))])
    command_buffer = () if method == "execute_async" else (queue.command_buffer(),)
    words = (
        r"Graph: source_images must be a list, or a dict, with an entry for each of \['x'\], got"
    )
    with pytest.raises(TypeError, match=f"{words} int"):
        getattr(graph, method)(*command_buffer, 3)
    if method == "encode_batch":
        images = batch(device, sample(rng))
        with pytest.raises(TypeError, match=f"{words} Image"):
            graph.encode_batch(*command_buffer, images[0])
        with pytest.raises(
            TypeError, match=r"Graph: source_states must be a list, .* \[\], got int"
        ):
            graph.encode_batch(*command_buffer, images, 3)


def test_a_data_source_that_refuses_to_load(device):
    class Refuses(mg.ArrayConvolutionDataSource):
        def load(self):
            return False

    class RefusesToo(mg.ArrayGroupNormalizationDataSource):
        def load(self):
            return False

    node = g.ConvolutionNode(g.ImageNode(), Refuses(np.ones((1, 1, 1, 1), np.float32)))
    other = g.GroupNormalizationNode(g.ImageNode(), RefusesToo(np.ones(4), number_of_groups=1))
    for result, words in (
        (
            node,
            "ConvolutionNode: ConvolutionDataSource: load() of Refuses must return True, got False",
        ),
        (
            other,
            "GroupNormalizationNode: GroupNormalization: load() of RefusesToo must return True, "
            "got False",
        ),
    ):
        with rejects(mg.errors.GraphError, words):
            g.Graph(device, result)


def test_what_a_data_source_raises_while_it_loads(device):
    class Fails(mg.ArrayGroupNormalizationDataSource):
        def load(self):
            raise NotImplementedError("not yet")

    node = g.GroupNormalizationNode(g.ImageNode(), Fails(np.ones(4), number_of_groups=1))
    with pytest.raises(NotImplementedError, match="not yet"):
        g.Graph(device, node)


GAMMA, BETA = np.full(4, 2.0, np.float32), np.ones(4, np.float32)
# How to make a node of a class of data sources; how often its gradient node does; the kernels that
# read it, in a training graph forward and gradient, and how often one kernel does when it reloads.
LOADS = {
    "convolution": (
        mg.ArrayConvolutionDataSource,
        lambda source: g.ConvolutionNode(g.ImageNode(), source(np.ones((4, 1, 1, 4), np.float32))),
        1,
        2,
        1,
    ),
    "batch normalization": (
        mg.ArrayBatchNormalizationDataSource,
        lambda source: g.BatchNormalizationNode(g.ImageNode(), source(GAMMA, BETA)),
        0,
        1,
        2,
    ),
    "instance normalization": (
        mg.ArrayInstanceNormalizationDataSource,
        lambda source: g.InstanceNormalizationNode(g.ImageNode(), source(GAMMA, BETA)),
        0,
        1,
        1,
    ),
    "group normalization": (
        mg.ArrayGroupNormalizationDataSource,
        lambda source: g.GroupNormalizationNode(
            g.ImageNode(), source(GAMMA, BETA, number_of_groups=2)
        ),
        0,
        1,
        1,
    ),
}


@pytest.mark.filterwarnings("ignore:Graph. no weights are updated")
@pytest.mark.parametrize(("base", "node", "looks", "kernels", "reads"), LOADS.values(), ids=LOADS)
def test_loads_of_data_sources(device, rng, base, node, looks, kernels, reads):
    """One a kernel, as docs/graph.md says, and one of a graph of the device's own."""

    class Counts(base):
        loads = purges = 0

        def load(self):
            Counts.loads += 1
            return super().load()

        def purge(self):
            Counts.purges += 1

    def counts():
        loads, purges = Counts.loads, Counts.purges
        Counts.loads = Counts.purges = 0
        assert loads == purges
        return loads

    termini = loss_of(node(Counts)).training_graph()
    assert counts() == looks
    graph = g.Graph(device, result_images=termini, results_are_needed=False)
    own = graph._has_runner
    assert counts() == kernels + own
    graph(sample(rng, (2, 3, 3, 4)), sample(rng, (2, 3, 3, 4)))
    assert counts() == 0
    graph.reload_from_data_sources()
    assert counts() == (1 if own else kernels * reads)


class Lazy(mg.ConvolutionDataSource):
    """Has something only between load and purge, and counts the two."""

    refuses = False

    def __init__(self, **options):
        self.options = options
        self.array = None
        self.loads = self.purges = 0

    def load(self):
        assert self.array is None
        if self.refuses:
            return False
        self.loads += 1
        self.array = np.full((4, 1, 1, 4), 2, np.float32)
        return True

    def purge(self):
        assert self.array is not None
        self.purges += 1
        self.array = None

    def descriptor(self):
        outputs, height, width, inputs = self.array.shape
        return mg.ConvolutionDescriptor(
            width,
            height,
            input_feature_channels=inputs,
            output_feature_channels=outputs,
            **self.options,
        )

    def weights(self):
        return self.array

    def bias_terms(self):
        return np.zeros(len(self.array), np.float32)


GRADIENT_NODES = {
    "factory": lambda node, gradient: node.gradient_filter(gradient),
    "training graph": lambda node, gradient: node.training_graph(gradient)[0],
    "constructor": lambda node, gradient: g.ConvolutionGradientNode(
        gradient, *node.source_images, node.result_state
    ),
}


@pytest.mark.parametrize("make", GRADIENT_NODES.values(), ids=GRADIENT_NODES)
def test_a_data_source_that_has_nothing_unless_it_is_loaded(device, rng, make):
    source = Lazy()
    node = g.ConvolutionNode(g.ImageNode("x"), source)
    terminus = make(node, g.ImageNode("dy"))
    assert (source.loads, source.purges) == (1, 1)
    x, dy = sample(rng, (2, 3, 3, 4)), sample(rng, (2, 3, 3, 4))
    result = float_graph(device, [terminus])({"x": x, "dy": dy}).result
    assert_exact(result, np.repeat(2 * dy.sum(-1, keepdims=True), 4, -1))
    assert source.loads == source.purges


@pytest.mark.parametrize("make", GRADIENT_NODES.values(), ids=GRADIENT_NODES)
def test_a_data_source_is_purged_whatever_its_descriptor_is(make):
    source = Lazy(fused_neuron_descriptor=mg.NeuronDescriptor(mg.NeuronType.RELU))
    node = g.ConvolutionNode(g.ImageNode(), source)
    with pytest.raises(mg.errors.GraphError, match="its descriptor has a fused neuron"):
        make(node, g.ImageNode())
    source.options = {"groups": 3}
    words = "ConvolutionDescriptor: groups 3 must divide 4 input and 4 output channels"
    with rejects(ValueError, words):
        make(node, g.ImageNode())
    assert (source.loads, source.purges) == (2, 2)
    source.refuses = True
    with pytest.raises(
        mg.errors.GraphError, match=r"ConvolutionNode: load\(\) of Lazy must return True, got F"
    ):
        make(node, g.ImageNode())
    assert (source.loads, source.purges) == (2, 2)


# ---- padding and allocators


def test_padding_policies(device, rng):
    x = sample(rng, (1, 5, 5, 4))
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 4), np.float32))
    node = g.ConvolutionNode(g.ImageNode(), source)
    node.padding_policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    graph = float_graph(device, [node])
    assert graph(x).result.shape == (1, 3, 3, 4)
    kernel = mg.Convolution(source, device=device)
    kernel.padding = node.padding_policy
    assert_same_bytes(graph(x).result, kernel(x))


def test_what_a_policy_sets_is_for_the_next_encode(device):
    graphs = []  # emptied, for a graph that its own policy holds is never freed

    class Sets(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM | mg.PaddingMethod.SIZE_SAME

        def destination_descriptor(self, _images, _states, _kernel, suggested):
            graphs[0].format = mg.ChannelFormat.UNORM8
            return suggested

    node = g.PoolingMaxNode(g.ImageNode(), 1, 1)
    node.padding_policy = Sets()
    graph = float_graph(device, [node])
    graphs.append(graph)
    x = np.full((1, 2, 2, 1), -3.5, np.float32)
    assert_same_bytes(graph(x).result, x)
    assert graph.format == mg.ChannelFormat.UNORM8
    graphs.clear()


def test_kinds_of_inputs_are_remembered_but_not_all(device):
    """A new kind is gone through once before its encode; what is remembered has a bound."""
    asked = []

    class Same(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM | mg.PaddingMethod.SIZE_SAME

        def destination_descriptor(self, _images, _states, _kernel, suggested):
            asked.append(suggested.width)
            return suggested

    node = g.PoolingMaxNode(g.ImageNode(), 3, 1)
    node.padding_policy = Same()
    graph = float_graph(device, [node])

    def calls(width):
        asked.clear()
        x = np.arange(width, dtype=np.float32).reshape(1, 1, width, 1)
        expected = np.minimum(x + 1, width - 1)
        assert np.array_equal(graph(x).result, expected)
        return len(asked)

    new, known = calls(4), calls(4)
    assert new > known
    for width in range(5, 300):
        assert calls(width) == new
    assert calls(299) == known
    assert calls(4) == new


def test_allocators(device, queue, rng):
    made = []

    def allocate(command_buffer, descriptor, kernel):
        made.append((type(kernel).__name__, descriptor.channel_format))
        return mg.Image(command_buffer.device, descriptor)

    node = linear(g.ImageNode("x"))
    node.result_image.image_allocator = allocate
    node.result_image.export_from_graph = True
    graph = float_graph(device, [linear(node)])
    graph.destination_image_allocator = allocate
    assert graph.destination_image_allocator is allocate
    x = sample(rng)
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [batch(device, x)])
        for images in (result.result, *result.intermediates):
            mg.synchronize(images, command_buffer)
    command_buffer.wait_until_completed()
    assert made == [("Neuron", FLOAT32)] * 6
    assert_exact(mg.ImageBatch(list(result.intermediates[0])).to_array(), 2 * x)


# ---- the rest


def test_execute_async(device, rng):
    graph = float_graph(device, [linear(g.ImageNode("x"))])
    x = sample(rng)
    future = graph.execute_async(batch(device, x)[1])
    assert not future.cancel()  # it is committed
    assert_exact(future.result(timeout=60).read(), 2 * x[1])
    with pytest.raises(TypeError, match="takes no source states, but the graph has 1"):
        g.Graph(device, loss_of(g.ImageNode())).execute_async([])


def test_a_callback_of_execute_async_may_read_the_result(device, rng):
    graph = float_graph(device, [linear(g.ImageNode("x"))])
    x, seen, told = sample(rng), [], threading.Event()

    def note(future):
        seen.append(future.result().read())
        told.set()

    graph.execute_async(batch(device, x)[1]).add_done_callback(note)
    assert told.wait(timeout=60)
    assert_exact(seen[0], 2 * x[1])


UNFIT = {
    "none": (lambda _: [], ValueError, "source_images must hold 2, for 'x', 'y', got 0"),
    "one of two": (lambda image: {"x": image}, ValueError, "for the handles ['x', 'y'], got ['x']"),
    "numbers": (lambda _: [1, 2], TypeError, "source_images must hold images, got int"),
    "another size": (
        lambda image: [image, mg.Image(image.device, mg.ImageDescriptor(1, 1, SHAPE[3]))],
        ValueError,
        "Graph: AdditionNode: Add: the primary width is 2, but the secondary width is 1",
    ),
}


@pytest.mark.parametrize(("inputs", "error", "words"), UNFIT.values(), ids=UNFIT)
def test_execute_async_that_is_refused_leaves_nothing_behind(device, rng, inputs, error, words):
    """Not a command buffer either, of which a queue has 64."""
    graph = float_graph(device, [g.AdditionNode(g.ImageNode("x"), g.ImageNode("y"))])
    image = batch(device, sample(rng))[0]
    wrong = inputs(image)
    for _ in range(65):
        with rejects(error, words):
            graph.execute_async(wrong)
    assert_exact(graph.execute_async([image, image]).result(timeout=60).read(), 2 * image.read())


def test_execute_async_takes_no_temporary_images(device, queue, rng):
    graph = float_graph(device, [linear(g.ImageNode("x"))])
    command_buffer = queue.command_buffer()
    images = temporary(command_buffer, sample(rng))
    with rejects(ValueError, "this TemporaryImage belongs to another command buffer"):
        graph.execute_async(images[0])
    assert images[0].read_count == 1
    mg.increment_read_count(images, -1)


FAILS = """
from mpsgrad import graph as g
mg.set_num_threads(1)
device = mg.Device("cpu")
graph = g.Graph(device, g.PoolingMaxNode(g.ImageNode("x"), 3, 1))
made = {}
graph.destination_image_allocator = lambda _, d, __: made.setdefault(d.width, mg.Image(device, d))
small, large = (
    mg.Image(device, mg.ImageDescriptor(width, 2, 256, channel_format=mg.ChannelFormat.FLOAT16))
    for width in (1, 16384)
)
graph.execute_async(small).result(timeout=30)  # the queue has its thread
graph.encode(device.command_queue().command_buffer(), large)  # and the graph what an encode needs
for more in (2 << 20, 1 << 40):
    with limited_memory(more):  # reads float16 by way of a float32 row
        future = graph.execute_async(large)
        error = future.exception(timeout=30)
    print(error is None or (error.code, str(error)[:60]))
"""


@pytest.mark.not_sanitized(reason="its own memory has no room under the limit")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_a_future_has_what_went_wrong():
    words = "CommandBuffer: execution failed: the CPU device has no room "
    assert python_of_little_memory(FAILS).stdout.splitlines() == [str((8, words)), "True"]


def test_copies_and_pickles(device, rng):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 8), np.float32))
    key = object()
    node = g.ConvolutionNode(g.ImageNode(key), source)
    graph = float_graph(device, [node], label="net")
    x = sample(rng)
    other = copy.copy(graph)
    assert other.source_image_handles == [key]
    assert other.format == FLOAT32
    assert other.label == "net"
    source.weights_array *= 2
    graph.reload_from_data_sources()
    other.reload_from_data_sources()
    assert_exact(graph(x).result, 2 * other({key: x}).result)
    again = pickle.loads(pickle.dumps(float_graph(device, [linear(g.ImageNode("x"), 3.0)])))
    again = again.copy(device)
    assert_exact(again({"x": x}).result, 3 * x)


class Constant(mg.ConvolutionDataSource):
    """One weight, whose copies are what subclasses say."""

    def __init__(self, value):
        self.value = value

    def descriptor(self):
        return mg.ConvolutionDescriptor(1, 1, input_feature_channels=1, output_feature_channels=1)

    def weights(self):
        return np.full((1, 1, 1, 1), self.value, np.float32)

    def bias_terms(self):
        return None


class CopiesForDevice(Constant):
    def copy(self, device=None):
        return type(self)(self.value + (10 if device is not None else 20))

    def __copy__(self):
        raise AssertionError("there is a better way")


class Copies(Constant):
    def copy(self):
        return type(self)(self.value + 30)


class CopiesByModule(Constant):
    def __copy__(self):
        return type(self)(self.value + 40)


@pytest.mark.parametrize(
    ("kind", "expected"), [(CopiesForDevice, 11), (Copies, 31), (CopiesByModule, 41), (Constant, 5)]
)
def test_how_data_sources_are_copied(device, kind, expected):
    source = kind(1)
    node = g.ConvolutionNode(g.ConvolutionNode(g.ImageNode(), source), source)
    graph = float_graph(device, [node])
    other = graph.copy()
    source.value = 5
    other.reload_from_data_sources()
    one = np.ones((1, 1, 1, 1), np.float32)
    assert other(one).result.item() == expected**2
    assert graph(one).result.item() == 1


def test_what_becomes_of_nodes_is_nothing_to_a_compiled_graph(device, rng):
    image = g.ImageNode("x")
    node = linear(image, label="twice")
    outer = linear(node, 3.0)
    graph = float_graph(device, [outer])
    before = str(graph)
    image.handle = "other"
    node.result_image.export()
    node.label = "later"
    node.descriptor.a = 5.0
    outer.result_image.format = FLOAT16
    x = sample(rng) * 1000
    for one in (graph, graph.copy(), pickle.loads(pickle.dumps(graph)).copy(device)):
        assert str(one) == before
        result = one({"x": x})
        assert_exact(result.result, 6 * x)
        assert result.intermediates == []
    late = float_graph(device, [outer])
    assert late.source_image_handles == ["other"]
    assert_exact(late(x / 1000).intermediates[0], 5 * x / 1000)


def test_deep_networks_are_copied_and_pickled(device, rng):
    image = g.ImageNode("x")
    for _ in range(1500):
        image = g.NeuronReLUNode(image).result_image
    graph = float_graph(device, [image])
    x = sample(rng)
    for other in (graph.copy(), pickle.loads(pickle.dumps(graph)).copy(device)):
        assert_exact(other(x).result, np.maximum(x, 0))
    again = pickle.loads(pickle.dumps(image))
    assert again.producer.source_images[0].producer.result_image is again.producer.source_images[0]


@pytest.mark.filterwarnings("ignore:Graph. no weights are updated")
def test_a_graph_goes_with_its_last_user(device, rng):
    """Without the collector of cycles: it holds the weights of a network."""
    source = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 8), np.float32), np.zeros(4))
    loss = loss_of(g.ConvolutionNode(g.ImageNode("x"), source))
    graph = float_graph(device, loss.training_graph(), results_are_needed=False)
    graph(sample(rng), np.zeros((*SHAPE[:3], 4), np.float32))
    gone = weakref.ref(graph)
    gc.disable()
    try:
        del graph
        assert gone() is None
    finally:
        gc.enable()


def test_repr_and_description(device, rng):
    node = linear(g.ImageNode("x"), label="twice")
    graph = float_graph(device, [node])
    assert repr(graph) == (f"Graph(1 nodes, images=['x'], states=[], device='{device.kind}')")
    assert re.search(r"1 +NeuronLinearNode 'twice' +x +- +FLOAT32  result", str(graph))
    graph(sample(rng))
    assert "2x4x8" in graph.debug_description


def test_a_description_says_what_each_node_reads(device):
    first = linear(g.ImageNode("x"), label="first")
    graph = float_graph(device, [linear(g.AdditionNode(first, g.ImageNode()), label="last")])
    rows = [re.split(r" {2,}", line) for line in str(graph).splitlines() if line[:1] in "123"]
    assert [row[:3] for row in rows] == [
        ["1", "NeuronLinearNode 'first'", "x"],
        ["2", "AdditionNode", "1, input"],
        ["3", "NeuronLinearNode 'last'", "2"],
    ]


def test_a_graph_that_was_never_constructed():
    graph = g.Graph.__new__(g.Graph)
    assert "never constructed" in repr(graph)


def test_runs_repeat_to_the_byte(device, rng):
    x = rng.standard_normal((2, 6, 6, 8), dtype=np.float32)
    source = mg.ArrayConvolutionDataSource(rng.standard_normal((8, 3, 3, 8)).astype(np.float32))
    node = g.SoftMaxNode(g.ConvolutionNode(g.ImageNode(), source))
    graph = float_graph(device, [node])
    assert_same_bytes(graph(x).result, graph(x).result)


def convolution_of(channels, source, makes=5):
    weights = np.ones((makes, 1, 1, channels), np.float32)
    return g.ConvolutionNode(source, mg.ArrayConvolutionDataSource(weights), label=f"of {channels}")


MIXING = {
    "softmax": g.SoftMaxNode,
    "mean of channels": g.ReductionFeatureChannelsMeanNode,
    "cross-channel normalization": g.CrossChannelNormalizationNode,
    "reshape": lambda node: g.ReshapeNode(node, 1, 1, 8),
    "group normalization": lambda node: g.GroupNormalizationNode(
        node, mg.ArrayGroupNormalizationDataSource(number_of_groups=1, number_of_feature_channels=8)
    ),
}


@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_gaps_between_channels_warn_where_they_count(device, recwarn, make):
    """3 and 3 concatenated are 8, of which two are nobody's."""
    words = (
        "Node: ConcatenationNode makes 8, where each source begins at a multiple of 4; 2 of them "
        "are zeros between, which count like others"
    )
    x = np.ones((1, 1, 1, 3), np.float32)
    graph = g.Graph(device, make(g.ConcatenationNode([g.ImageNode("a"), g.ImageNode("b")])))
    with pytest.warns(UserWarning, match=words) as caught:
        graph({"a": x, "b": x})
    assert [Path(warning.filename).name for warning in caught] == ["test_graph.py"]
    graph({"a": x, "b": x})  # said once
    whole = g.ConcatenationNode([g.ImageNode("a"), g.ImageNode("b")])
    x = np.ones((1, 1, 1, 4), np.float32)
    g.Graph(device, make(whole))({"a": x, "b": x})
    g.Graph(device, g.NeuronReLUNode(whole))({"a": x[..., :3], "b": x})
    assert not recwarn.list


def test_channels_that_a_convolution_leaves_out_warn(device, recwarn):
    """7 and 11 concatenated are 20: who counts 18 reads zeros, and not the last two."""
    x = g.ImageNode("x")
    both = g.ConcatenationNode([convolution_of(3, x, 7), convolution_of(3, x, 11)])
    words = (
        r"ConvolutionNode 'of 18': its weights are for 18 channels, but ConcatenationNode makes "
        r"20, where each source begins at a multiple of 4; the last 2 are not read"
    )
    with pytest.warns(UserWarning, match=words) as caught:
        g.Graph(device, convolution_of(18, both))
    assert [Path(warning.filename).name for warning in caught] == ["test_graph.py"]
    node = convolution_of(3, x, 8)
    for kept in (
        g.NeuronReLUNode(node),
        g.PoolingMaxNode(node, 2),
        g.DropoutNode(node, 0.5),
        g.SoftMaxNode(node),
        g.UpsamplingNearestNode(node, 2, 2),
        g.ReductionSpatialMeanNode(node),
        g.SpatialNormalizationNode(node, 3),
        g.ReshapeNode(node, 2, 2, 8),
        g.BatchNormalizationNode(
            node, mg.ArrayBatchNormalizationDataSource(np.ones(8), np.ones(8))
        ),
    ):
        with pytest.warns(UserWarning, match=f"5 channels, but {kept._name()} makes 8; the last 3"):
            g.Graph(device, convolution_of(5, kept))
        g.Graph(device, convolution_of(8, kept))
    for channels in (19, 20):  # the last one is 0
        g.Graph(device, convolution_of(channels, both))
    assert not recwarn
    with pytest.warns(UserWarning, match="5 channels, but"):
        graph = g.Graph(device, convolution_of(5, node))
    copy.copy(graph)
    pickle.loads(pickle.dumps(graph))
    assert not recwarn


def test_channels_that_arrays_decide_warn_once(device, rng):
    both = g.ConcatenationNode([g.ImageNode("a"), g.ImageNode("b")])
    graph = float_graph(device, [convolution_of(6, both)])
    arrays = [sample(rng, (1, 2, 2, 3)), sample(rng, (1, 2, 2, 3))]
    with pytest.warns(UserWarning, match="6 channels, but ConcatenationNode makes 8") as caught:
        graph(arrays)
    assert [Path(warning.filename).name for warning in caught] == ["test_graph.py"]
    graph(arrays)


def test_dropout_draws_another_mask_at_each_encode(device):
    x = np.ones((1, 8, 8, 8), np.float32)
    graph = float_graph(device, [g.DropoutNode(g.ImageNode(), 0.5, 3)])
    kernel = mg.Dropout(0.5, 3, device=device)
    first, second = graph(x).result, graph(x).result
    assert not np.array_equal(first, second)
    assert_same_bytes(first, kernel(x))
    assert_same_bytes(second, kernel(x))


def test_equal_seeds_of_dropout_warn(device):
    x = g.ImageNode()
    first = g.DropoutNode(x, label="first")
    with pytest.warns(UserWarning, match="'second': has seed 0, as .*'first' has") as caught:
        float_graph(device, [g.DropoutNode(first, label="second")])
    assert [Path(warning.filename).name for warning in caught] == ["test_graph.py"]
    with pytest.warns(UserWarning, match="^DropoutNode: has seed 0, as another DropoutNode has"):
        g.Graph(device, g.DropoutNode(g.DropoutNode(x)))
    assert_same_bytes(
        *(
            float_graph(device, [g.DropoutNode(x, seed=1)])(
                np.ones((1, 8, 8, 4), np.float32)
            ).result
            for _ in range(2)
        )
    )
    float_graph(device, [g.DropoutNode(first, seed=1)])  # another seed: nothing to warn of


def test_one_set_of_weights_on_many_sizes(device, rng):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 8), np.float32))
    graph = float_graph(device, [g.ConvolutionNode(g.ImageNode(), source)])
    for shape in ((1, 3, 3, 8), (2, 5, 4, 8), (1, 3, 3, 8)):
        x = sample(rng, shape)
        assert_same_bytes(graph(x).result, mg.Convolution(source, device=device)(x))


def test_arrays_of_more_channels_are_refused(device):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 3, 3, 1), np.float32))
    wide = mg.ArrayConvolutionDataSource(np.ones((2, 1, 1, 4), np.float32))
    node = g.ConvolutionNode(g.ImageNode("x"), source, label="first")
    graph = g.Graph(device, g.ConvolutionNode(node, wide))
    words = (
        "Graph: images, for ConvolutionNode 'first': Convolution: source must have 1 channels on "
        "its last axis, got 8 (shape (2, 1, 8, 8))"
    )
    x = np.ones((2, 1, 8, 8), np.float32)
    with rejects(ValueError, words):
        graph(x)
    with rejects(ValueError, words.replace("images", "images['x']")):
        graph({"x": x})
    assert graph(x[..., :1]).result.shape == (2, 1, 8, 2)
    # A batch may have them.
    batch = mg.ImageBatch.from_array(device, x)
    command_buffer = device.command_queue().command_buffer()
    result = graph.encode_batch(command_buffer, batch).result
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert len(result) == 2
