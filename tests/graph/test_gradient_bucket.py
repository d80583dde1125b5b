"""Gradients that are added up in one array before the optimizers take a step."""

import copy
import pickle

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph.networks import loss_of
from tests.rejects import rejects
from tests.tolerance import assert_exact

SHAPE = (3, 4, 4, 4)


def values(rng, shape=SHAPE):
    return rng.integers(-3, 4, shape).astype(np.float32)


def image_graph(device, node):
    """The training graph of a squared error after a node."""
    termini = loss_of(node).training_graph()
    return g.Graph(
        device, result_images=termini, results_are_needed=False, format=mg.ChannelFormat.FLOAT32
    )


def one_layer(device, rng, **options):
    """A 1x1 convolution and its graph."""
    options = options or {"optimizer": mg.SGD(2.0**-6, device=device)}
    w, b = values(rng, (4, 1, 1, 4)), values(rng, (4,))
    source = mg.ArrayConvolutionDataSource(w, b, **options)
    return source, image_graph(device, g.ConvolutionNode(g.ImageNode("x"), source))


def sums(x, labels, source):
    """Gradients of a 1x1 convolution's squared error, weights before biases."""
    y = np.einsum("nyxi,oi->nyxo", x, source.weights_array[:, 0, 0]) + source.bias_array
    error = 2 * (y - labels)
    dw = np.einsum("nyxo,nyxi->oi", error, x)
    return np.concatenate([dw.ravel(), error.sum((0, 1, 2))])


def network(rng, optimizer):
    """Sources of every family that has parameters, and a node after all of them."""
    sources = [
        mg.ArrayConvolutionDataSource(
            values(rng, (8, 3, 3, 4)) / 8, values(rng, (8,)), optimizer=optimizer
        ),
        mg.ArrayBatchNormalizationDataSource(
            values(rng, (8,)), values(rng, (8,)), epsilon=1e-3, optimizer=optimizer
        ),
        mg.ArrayGroupNormalizationDataSource(
            values(rng, (8,)), values(rng, (8,)), number_of_groups=2, optimizer=optimizer
        ),
        mg.ArrayInstanceNormalizationDataSource(
            values(rng, (8,)), values(rng, (8,)), optimizer=optimizer
        ),
        mg.ArrayConvolutionDataSource(values(rng, (4, 4, 4, 8)) / 8, optimizer=optimizer),
    ]
    node = g.ConvolutionNode(g.ImageNode("x"), sources[0])
    node = g.BatchNormalizationNode(node, sources[1])
    node = g.GroupNormalizationNode(node, sources[2])
    node = g.InstanceNormalizationNode(g.NeuronReLUNode(node), sources[3])
    return sources, g.FullyConnectedNode(node, sources[4])


def arrays_of(source):
    return {n: a for n, a in source.checkpoint().items() if n != "mean" and n != "variance"}


def test_gradients_of_batches_are_added_up(device, rng):
    source, graph = one_layer(device, rng)
    before = source.weights_array.copy()
    bucket = mg.GradientBucket([source])
    expected = np.zeros(20, np.float32)
    for _ in range(3):
        x, labels = values(rng), values(rng)
        graph(x, labels)
        expected = expected + sums(x, labels, source)
        assert_exact(bucket.array, expected)
    graph.reload_from_data_sources()
    assert_exact(source.weights_array, before, nonzero=0)


def test_a_step_is_by_what_the_array_has(device, rng):
    source, graph = one_layer(device, rng)
    w, b = source.weights_array.copy(), source.bias_array.copy()
    x, labels = values(rng), values(rng)
    expected = sums(x, labels, source)
    bucket = mg.GradientBucket([source])
    graph(x, labels)
    bucket.array[:] *= 0.5
    bucket.gradients[0]["biases"][1] = 7
    bucket.step()
    assert_exact(bucket.array, np.zeros(20), nonzero=0)
    graph.reload_from_data_sources()
    expected[:] *= 0.5
    expected[17] = 7
    assert_exact(source.weights_array, w - 2.0**-6 * expected[:16].reshape(w.shape))
    assert_exact(source.bias_array, b - 2.0**-6 * expected[16:])


OPTIMIZERS = {
    "descent": lambda device: mg.SGD(0.01, device=device),
    "momentum": lambda device: mg.SGD(0.01, momentum_scale=0.9, device=device),
    "RMSProp": lambda device: mg.RMSProp(0.01, device=device),
    "Adam": lambda device: mg.Adam(0.01, device=device),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_have_the_bits_of_those_without_a_bucket(device, rng, name):
    x, labels = values(rng), rng.standard_normal((3, 1, 1, 4), dtype=np.float32)
    state = rng.bit_generator.state
    trained = []
    for held in (False, True):
        rng.bit_generator.state = state
        sources, node = network(rng, OPTIMIZERS[name](device))
        graph = image_graph(device, node)
        bucket = mg.GradientBucket(sources) if held else None
        for _ in range(3):
            graph(x, labels)
            if bucket is not None:
                bucket.step()
            graph.reload_from_data_sources()
        trained.append([arrays_of(source) for source in sources])
    for plain, held in zip(*trained, strict=True):
        assert plain.keys() == held.keys()
        for key, array in plain.items():
            np.testing.assert_array_equal(held[key], array, err_msg=key)
    assert trained[0][0]["steps"] == 3


def test_nodes_that_share_a_source_are_added_up(device, rng):
    w = values(rng, (4, 1, 1, 4))
    x, labels = values(rng), values(rng)
    adam = mg.Adam(0.01, device=device)

    def chain(first, second):
        node = g.ConvolutionNode(g.ImageNode("x"), first)
        return image_graph(device, g.ConvolutionNode(node, second))

    apart = [mg.ArrayConvolutionDataSource(w.copy(), optimizer=adam) for _ in range(2)]
    of_each = mg.GradientBucket(apart)
    chain(*apart)(x, labels)
    shared = mg.ArrayConvolutionDataSource(w.copy(), optimizer=adam)
    bucket = mg.GradientBucket([shared, shared])
    graph = chain(shared, shared)
    graph(x, labels)
    expected = of_each.array.reshape(2, -1)
    assert expected.all(axis=0).any()
    assert_exact(bucket.array, expected.sum(axis=0))
    bucket.step()
    assert shared.checkpoint()["steps"] == 1


def test_clear_leaves_a_step_out(device, rng):
    source, graph = one_layer(device, rng)
    before = source.checkpoint()
    bucket = mg.GradientBucket([source])
    graph(values(rng), values(rng))
    bucket.array[3] = np.inf
    bucket.clear()
    assert not bucket.array.any()
    after = source.checkpoint()
    assert after.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_the_array_is_the_memory_of_the_bucket(device, rng):
    sources, _ = network(rng, mg.SGD(0.1, device=device))
    bucket = mg.GradientBucket(iter(sources))
    array = bucket.array
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0
    assert array.shape == (len(bucket),) == (8 * 9 * 4 + 8 + 3 * 16 + 4 * 16 * 8,)
    assert np.shares_memory(array, bucket.array)
    array[:] = np.arange(len(array))
    found = bucket.gradients
    assert [list(each) for each in found] == [
        ["weights", "biases"],
        *[["gamma", "beta"]] * 3,
        ["weights"],
    ]
    views = [view for each in found for view in each.values()]
    assert all(np.shares_memory(view, array) for view in views)
    np.testing.assert_array_equal(np.concatenate([view.ravel() for view in views]), array)
    for source, each in zip(sources, found, strict=True):
        for name, view in each.items():
            assert view.shape == getattr(source, source._arrays[name]).shape
    assert repr(bucket) == f"GradientBucket(5 sources, {len(bucket)} gradients, {device.kind})"


def test_the_array_waits_for_what_has_been_committed(queue, rng):
    source, graph = one_layer(queue.device, rng)
    bucket = mg.GradientBucket([source])
    x, labels = values(rng), values(rng)
    images = mg.ImageBatch.from_array(queue.device, x)
    targets = mg.LossLabels.batch(queue.device, labels)
    for command_buffer in (queue.command_buffer(), queue.command_buffer()):
        graph.encode_batch(command_buffer, images, [targets])
        command_buffer.commit()
    assert_exact(bucket.array, 2 * sums(x, labels, source))


def test_a_command_buffer_that_is_dropped_adds_nothing(queue, rng):
    source, graph = one_layer(queue.device, rng)
    bucket = mg.GradientBucket([source])
    x = values(rng)
    images = mg.ImageBatch.from_array(queue.device, x)
    labels = mg.LossLabels.batch(queue.device, x)
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, images, [labels])
    del command_buffer
    assert not bucket.array.any()


def test_sources_that_are_released_update_themselves(device, rng):
    source, graph = one_layer(device, rng)
    x, labels = values(rng), values(rng)
    with mg.GradientBucket([source]) as bucket:
        graph(x, labels)
    assert repr(bucket) == f"GradientBucket(released, 20 gradients, {device.kind})"
    expected = sums(x, labels, source)
    assert_exact(bucket.array, expected)
    with rejects(RuntimeError, "GradientBucket.step: the bucket has been released"):
        bucket.step()
    w = source.weights_array.copy()
    graph(x, labels)
    graph.reload_from_data_sources()
    assert_exact(source.weights_array, w - 2.0**-6 * expected[:16].reshape(w.shape))
    assert_exact(bucket.array, expected)
    mg.GradientBucket([source])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_of_a_source_are_not_in_the_bucket(device, rng, copied):
    source, graph = one_layer(device, rng)
    bucket = mg.GradientBucket([source])
    x = values(rng)
    graph(x, values(rng))
    there = bucket.array.copy()
    other = copied(source)
    before = other.weights_array.copy()
    second = image_graph(device, g.ConvolutionNode(g.ImageNode("x"), other))
    second(x, values(rng))
    second.reload_from_data_sources()
    assert (other.weights_array != before).any()
    assert_exact(bucket.array, there)
    mg.GradientBucket([other])


def test_what_cannot_be_held_is_refused(device, rng):
    words = "GradientBucket: there must be a source"
    with rejects(ValueError, words):
        mg.GradientBucket([])
    words = "sources must be data sources over arrays, such as ArrayConvolutionDataSource, got int"
    with rejects(TypeError, words):
        mg.GradientBucket([3])
    source, _ = one_layer(device, rng)
    still = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 4)))
    with rejects(ValueError, "has no optimizer"):
        mg.GradientBucket([source, still])
    bucket = mg.GradientBucket([source])  # the refused bucket has taken nothing
    with rejects(ValueError, f"is in another bucket, {bucket!r}"):
        mg.GradientBucket([source])


def test_arrays_of_another_shape_are_refused(device, rng):
    source, _ = one_layer(device, rng)
    bucket = mg.GradientBucket([source])
    bucket.array[:] = 1
    source.bias_array = np.zeros(5, np.float32)
    words = "GradientBucket.step: biases had shape (4,) when the bucket was made, and now have (5,)"
    with rejects(ValueError, words):
        bucket.step()
    assert bucket.array.all()
    assert source.checkpoint()["steps"] == 0
