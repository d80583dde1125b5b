"""Gradients that are added up in one array before the optimizers take a step."""

import copy
import gc
import pickle

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.core.support import python
from tests.graph.networks import loss_of
from tests.graph.test_updates import OPTIMIZERS
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
    assert array.ctypes.data % 64 == 0 or device.kind != "cpu"
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


def test_kernels_by_hand_update_the_source(queue, rng):
    source, _ = one_layer(queue.device, rng)
    before = source.weights_array.copy()
    bucket = mg.GradientBucket([source])
    forward = mg.Convolution(source, device=queue.device)
    backward = mg.ConvolutionGradient(source, device=queue.device)
    forward.destination_image_allocator = backward.destination_image_allocator = mg.DEFAULT
    x, gradients = values(rng), values(rng)
    with queue.command_buffer() as command_buffer:
        images = mg.ImageBatch.from_array(queue.device, x)
        incoming = mg.ImageBatch.from_array(queue.device, gradients)
        _, states = forward.encode_batch(command_buffer, images, with_state=True)
        backward.encode_batch(command_buffer, incoming, images, states)
        assert source.update(command_buffer, states[0], None) is None
        _, unfilled = forward.encode_batch(command_buffer, images, with_state=True)
        with rejects(mg.errors.StateError, "no gradients"):
            source.update(command_buffer, unfilled[0], None)
        with rejects(TypeError, "gradient_state"):
            source.update(command_buffer, None, None)
    dw = np.einsum("nyxo,nyxi->oi", gradients, x)
    assert_exact(bucket.gradients[0]["weights"], dw[:, None, None])
    bucket.step()
    forward.reload_weights_and_biases_from_data_source()
    assert_exact(source.weights_array, before - 2.0**-6 * dw[:, None, None])


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
    words = "which have been released; make a new bucket"
    with rejects(RuntimeError, f"GradientBucket: step needs its sources, {words}"):
        bucket.step()
    with rejects(RuntimeError, f"GradientBucket: a with block needs its sources, {words}"), bucket:
        pass
    assert_exact(bucket.gradients[0]["biases"], expected[16:])
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
    source, graph = one_layer(device, rng)
    for given in (source, graph):
        words = f"must be a list of data sources over arrays, got {type(given).__name__}"
        with rejects(TypeError, words):
            mg.GradientBucket(given)
    still = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 4)))
    with rejects(ValueError, "has no optimizer"):
        mg.GradientBucket([source, still])
    bucket = mg.GradientBucket([source])  # the refused bucket has taken nothing
    assert "in a GradientBucket" in repr(source)
    with rejects(ValueError, f"is in another bucket, {bucket!r}, which can release() it"):
        mg.GradientBucket([source])


def test_sources_leave_a_bucket_that_is_gone(device, rng):
    source, graph = one_layer(device, rng)
    bucket = mg.GradientBucket([source])
    x, labels = values(rng), values(rng)
    graph(x, labels)
    expected = sums(x, labels, source)
    w = source.weights_array.copy()
    del bucket
    gc.collect()
    assert "GradientBucket" not in repr(source)
    graph(x, labels)
    graph.reload_from_data_sources()
    assert_exact(source.weights_array, w - 2.0**-6 * expected[:16].reshape(w.shape))
    mg.GradientBucket([source])


def test_assignments_copy_into_the_bucket(device, rng):
    sources, _ = network(rng, mg.SGD(0.1, device=device))
    bucket = mg.GradientBucket(sources)
    memory = bucket.array
    numbers = np.arange(len(bucket), dtype=np.float32)
    bucket.array = numbers
    bucket.array *= 0.5
    np.testing.assert_array_equal(memory, numbers / 2)
    found = bucket.gradients[1]
    found["gamma"] = np.full(8, 3)
    found["beta"] += 1
    first = 8 * 9 * 4 + 8
    np.testing.assert_array_equal(memory[first:][:8], np.full(8, 3))
    np.testing.assert_array_equal(memory[first + 8 :][:8], numbers[first + 8 :][:8] / 2 + 1)
    bucket.array = 0.25
    assert (memory == 0.25).all()
    with rejects(ValueError, f"array has shape ({len(bucket)},), and cannot be set to an array of"):
        bucket.array = numbers[1:]
    with rejects(KeyError, "weights"):
        found["weights"] = 1
    assert (memory == 0.25).all()


REPLACED = {
    "shape": (np.zeros(5, np.float32), ValueError, "float32 array of shape (4,), as before, got"),
    "dtype": (np.zeros(4), TypeError, "must be a float32 array, got float64"),
    "kind": ([0, 0, 0, 0], TypeError, "must be a float32 array, got list"),
    "missing": (None, TypeError, "must be a float32 array, got NoneType"),
    "read-only": (np.broadcast_to(np.float32(0), (4,)), ValueError, "that can be written"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_arrays_that_cannot_be_trained_are_refused(device, rng, name):
    array, error, words = REPLACED[name]
    first, _ = one_layer(device, rng)
    source, _ = one_layer(device, rng)
    bucket = mg.GradientBucket([first, source])
    bucket.array = 1
    before = first.weights_array.copy()
    source.bias_array = array
    with rejects(error, words):
        bucket.step()
    assert bucket.array.all()
    for each in (first, source):
        assert each._updates.steps == 0
    assert_exact(first.weights_array, before, nonzero=0)


def test_a_step_without_gradients_is_refused(device, rng):
    source, graph = one_layer(device, rng)
    still, _ = one_layer(device, rng)
    bucket = mg.GradientBucket([source, still])
    words = "GradientBucket.step: there are no gradients"
    with rejects(RuntimeError, words):
        bucket.step()
    graph(values(rng), values(rng))
    bucket.step()
    with rejects(RuntimeError, words):
        bucket.step()
    assert source.checkpoint()["steps"] == 1
    assert still.checkpoint()["steps"] == 0  # which had none
    graph.reload_from_data_sources()
    graph(values(rng), values(rng))
    bucket.clear()
    with rejects(RuntimeError, words):
        bucket.step()
    bucket.gradients[1]["biases"][2] = 64  # of wherever
    w = still.bias_array.copy()
    bucket.step()
    w[2] -= 1
    assert_exact(still.bias_array, w)
    assert source.checkpoint()["steps"] == 1


def test_gradients_that_are_still_encoded_are_no_gradients(queue, rng):
    source, graph = one_layer(queue.device, rng)
    bucket = mg.GradientBucket([source])
    x, labels = values(rng), values(rng)
    images = mg.ImageBatch.from_array(queue.device, x)
    expected = sums(x, labels, source)

    def encoded():
        command_buffer = queue.command_buffer()
        graph.encode_batch(command_buffer, images, [mg.LossLabels.batch(queue.device, labels)])
        return command_buffer

    first = encoded()
    first.commit()
    second = encoded()
    w = source.weights_array.copy()
    for access in (lambda: bucket.array, bucket.clear, bucket.step, lambda: bucket.gradients):
        with rejects(RuntimeError, "a command buffer that adds gradients has not been committed"):
            access()
    assert source._updates.steps == 0
    second.commit()
    assert_exact(bucket.array, 2 * expected)
    bucket.step()
    assert_exact(source.weights_array, w - 2.0**-5 * expected[:16].reshape(w.shape))


def test_a_step_follows_those_of_the_source(queue, rng):
    sgd = mg.SGD(2.0**-6, momentum_scale=0.5, device=queue.device)
    source, graph = one_layer(queue.device, rng, optimizer=sgd)
    x, labels = values(rng), values(rng)
    images = mg.ImageBatch.from_array(queue.device, x)
    expected = sums(x, labels, source)[:16].reshape(source.weights_array.shape)
    w = source.weights_array.copy()
    command_buffer = queue.command_buffer()
    graph.encode_batch(command_buffer, images, [mg.LossLabels.batch(queue.device, labels)])
    bucket = mg.GradientBucket([source])
    bucket.array = 64
    with rejects(RuntimeError, "that has not been committed"):
        bucket.step()
    command_buffer.commit()
    bucket.step()
    momentum = -(2.0**-6) * expected
    after = w + momentum
    assert_exact(source.weights_array, after + 0.5 * momentum - 1)
    assert source.checkpoint()["steps"] == 2


def test_running_averages_move_with_every_batch(device, rng):
    plain, held = ([], [])
    state = rng.bit_generator.state
    x = values(rng)
    for own in (plain, held):
        rng.bit_generator.state = state
        gamma, beta = np.ones(4, np.float32), np.zeros(4, np.float32)
        mean, variance = np.zeros(4, np.float32), np.ones(4, np.float32)
        source = mg.ArrayBatchNormalizationDataSource(
            gamma, beta, mean, variance, epsilon=1, optimizer=mg.SGD(0.0, device=device)
        )
        bucket = mg.GradientBucket([source]) if own is held else None
        graph = image_graph(device, g.BatchNormalizationNode(g.ImageNode("x"), source))
        for _ in range(2):
            graph(x, values(rng))
        graph.reload_from_data_sources()
        assert bucket is None or bucket.array.any()
        own += [source.mean, source.variance]
    for one, other in zip(plain, held, strict=True):
        assert_exact(other, one)
    assert plain[0].any()


def test_gradients_can_be_copied_and_pickled(device, rng):
    source, graph = one_layer(device, rng)
    bucket = mg.GradientBucket([source])
    graph(values(rng), values(rng))
    there = bucket.gradients
    for copied in (copy.deepcopy(there), pickle.loads(pickle.dumps(there))):
        assert list(copied[0]) == ["weights", "biases"]
        for name, array in copied[0].items():
            assert_exact(array, there[0][name])
            assert not np.shares_memory(array, bucket.array)
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with rejects(TypeError, "GradientBucket: cannot be copied or pickled; its array can"):
            copying(bucket)
    with pytest.raises(AttributeError):
        bucket.gradient = 1
    for wrong in (None, 1j, "a", np.ones(20, complex)):
        with pytest.raises(TypeError):
            bucket.array = wrong
    with rejects(TypeError, "biases cannot be deleted"):
        del there[0]["biases"]


FORK = """
import os, threading, warnings
import numpy as np, mpsgrad as mg
warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
source = mg.ArrayConvolutionDataSource(
    np.ones((4, 1, 1, 4), np.float32), optimizer=mg.SGD(0.5, device="cpu")
)
bucket = mg.GradientBucket([source])
held, forked = threading.Event(), threading.Event()

def hold():
    with bucket._lock:
        held.set()
        forked.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(bucket.array.size)
forked.set()
holder.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_waits_for_no_thread_of_its_parent():
    assert python(FORK).stdout == "16\n"
