"""Graphs that Metal encodes by one MPSNNGraph: what is Apple's own, and when it is not one."""

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph import networks
from tests.tolerance import assert_exact, assert_same_bytes

SHAPE = (3, 4, 4, 4)


def sample(rng, shape=SHAPE):
    return rng.integers(-3, 4, shape).astype(np.float32)


def float_graph(device, results, **options):
    graph = g.Graph(device, result_images=results, **options)
    graph.format = mg.ChannelFormat.FLOAT32
    return graph


def trained(device, node):
    """The training graph of a squared error."""
    return float_graph(device, networks.loss_of(node).training_graph(), results_are_needed=False)


def convolution(source, weights, bias=None, **options):
    return g.ConvolutionNode(source, mg.ArrayConvolutionDataSource(weights, bias, **options))


def is_one_graph(graph):
    return "encoded by one MPSNNGraph" in graph.debug_description


def test_it_is_one_graph(device, rng):
    node = convolution(g.ImageNode("x"), sample(rng, (4, 1, 1, 4)))
    for graph in (float_graph(device, [node]), trained(device, g.NeuronReLUNode(node))):
        assert is_one_graph(graph)
        assert "kernel by kernel" not in graph.debug_description


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_graph_may_commit_pieces(device, rng, emulator, pieces):
    emulator.set("graph_pieces", pieces)
    w, x, labels = sample(rng, (4, 1, 1, 4)), sample(rng), sample(rng)
    sgd = mg.SGD(2.0**-6, device=device)
    node = convolution(g.ImageNode("x"), w.copy(), np.zeros(4), optimizer=sgd)
    graph = trained(device, g.NeuronReLUNode(node))
    cpu = mg.SGD(2.0**-6, device="cpu")
    twin = convolution(g.ImageNode("x"), w.copy(), np.zeros(4), optimizer=cpu)
    other = trained("cpu", g.NeuronReLUNode(twin))
    for _ in range(2):
        assert_same_bytes(graph(x, labels).losses[0], other(x, labels).losses[0])


@pytest.mark.parametrize("pieces", [0, 1])
def test_buffers_enqueued_before_keep_their_place(device, queue, rng, emulator, pieces):
    emulator.set("graph_pieces", pieces)
    node = g.NeuronLinearNode(g.NeuronLinearNode(g.ImageNode("x"), 2.0), 3.0)
    graph = float_graph(device, [node])
    x = sample(rng)
    images = mg.ImageBatch.from_array(device, x)
    buffers = [queue.command_buffer() for _ in range(3)]
    for buffer in buffers:
        buffer.enqueue()
    results = [graph.encode_batch(buffer, [images]).result for buffer in buffers]
    for buffer, result in zip(buffers, results, strict=True):
        mg.synchronize(result, buffer)
    for buffer in reversed(buffers):
        buffer.commit()
    for buffer, result in zip(buffers, results, strict=True):
        buffer.wait_until_completed()
        assert_exact(result.to_array(), 6 * x)


def test_no_predicate(device, queue, rng):
    graph = float_graph(device, [g.NeuronLinearNode(g.ImageNode("x"), 2.0)])
    command_buffer = queue.command_buffer()
    command_buffer.predicate = mg.Predicate(mg.Buffer(device, 4), 0)
    with pytest.raises(mg.errors.UnsupportedError, match="whole graph depend on a predicate"):
        graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, sample(rng))])


class Shifted(mg.Padding):
    """SAME, one pixel to the left."""

    def padding_method(self):
        return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

    def destination_descriptor(self, _images, _states, kernel, suggested):
        kernel.offset = (kernel.offset.x - 1, kernel.offset.y)
        return suggested


@pytest.mark.parametrize(
    "policy", [Shifted(), mg.ExplicitPadding(1, 0, 2, 0)], ids=["own", "explicit"]
)
def test_policies_of_ones_own(device, rng, policy):
    w, x = sample(rng, (4, 3, 3, 4)), sample(rng)
    results = []
    for kind in (device, "cpu"):
        node = convolution(g.ImageNode("x"), w)
        node.padding_policy = policy
        graph = float_graph(kind, [node])
        results.append(graph(x).result)
    assert_same_bytes(*results)


def test_an_exception_of_a_policy_comes_out_of_the_encode(device, queue, rng):
    class Fails(mg.Padding):
        fails = False

        def padding_method(self):
            return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, _images, _states, _kernel, suggested):
            if self.fails:
                raise LookupError("no place")
            return suggested

    policy = Fails()
    node = convolution(g.ImageNode("x"), sample(rng, (4, 3, 3, 4)))
    node.padding_policy = policy
    graph = float_graph(device, [node])
    x = sample(rng)
    graph(x)
    policy.fails = True
    with pytest.raises(LookupError, match="no place"):
        graph.encode_batch(queue.command_buffer(), [mg.ImageBatch.from_array(device, x)])


class Inverted(Shifted):
    """A policy whose inverse is one of ours too, which gradient nodes of Apple's cannot have."""

    def inverse(self):
        return Shifted()


def test_what_apple_has_not_is_encoded_kernel_by_kernel(device):
    node = g.PoolingMaxNode(g.ImageNode("x"), 3, 1)
    node.padding_policy = Inverted()
    gradient = node.gradient_filter(g.ImageNode("dy"))
    graph = float_graph(device, [gradient])
    assert not is_one_graph(graph)
    assert "kernel by kernel: the padding policy of PoolingMaxGradientNode" in (
        graph.debug_description
    )


def test_states_that_an_update_keeps(device, rng):
    kept = []

    class Keeps(mg.ArrayConvolutionDataSource):
        def update(self, command_buffer, gradient_state, source_state):
            mg.synchronize([gradient_state, source_state], command_buffer)
            kept.append((gradient_state, source_state))

    w, x, labels = sample(rng, (4, 1, 1, 4)), sample(rng), sample(rng)
    graph = trained(device, g.ConvolutionNode(g.ImageNode("x"), Keeps(w, np.zeros(4))))
    graph(x, labels)
    ((gradient, source),) = kept
    kept.clear()  # nothing keeps itself
    error = 2 * (np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) - labels)
    assert_exact(source.weights.to_numpy(), w.ravel())
    assert_exact(
        gradient.gradient_for_weights.to_numpy(), np.einsum("nyxo,nyxi->oi", error, x).ravel()
    )
    command_buffer = device.command_queue().command_buffer()
    result = mg.ConvolutionWeightsAndBiasesState.for_descriptor(
        device, mg.ArrayConvolutionDataSource(w, np.zeros(4)).descriptor()
    )
    with pytest.raises(mg.errors.StateError, match="lent this state to an update"):
        mg.SGD(1.0, device=device).encode_convolution(
            command_buffer, gradient, source, None, result
        )


def test_a_graph_may_go_before_its_work(device, queue, rng):
    updated = []

    class Looks(mg.ArrayConvolutionDataSource):
        def update_cpu(self, gradient_state, _source_state):
            updated.append(gradient_state.gradient_for_weights.to_numpy())
            return True

    node = g.ConvolutionNode(g.ImageNode("x"), Looks(sample(rng, (4, 1, 1, 4))))
    node.training_style = g.TrainingStyle.CPU
    graph = trained(device, node)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, sample(rng))
    graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, sample(rng))])
    del graph, node
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert len(updated) == 1


def test_allocators_of_ones_own(device, queue, rng):
    made = []

    def allocator(_command_buffer, descriptor, _kernel):
        made.append(mg.Image(device, descriptor))
        return made[-1]

    inner = g.NeuronLinearNode(g.ImageNode("x"), 2.0)
    inner.result_image.image_allocator = allocator
    graph = float_graph(device, [g.NeuronLinearNode(inner, 3.0)])
    graph.destination_image_allocator = allocator
    assert is_one_graph(graph)
    x = sample(rng)
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, x)]).result
        mg.synchronize(result, command_buffer)
    command_buffer.wait_until_completed()
    assert len(made) == 2 * len(x)
    assert all(image in made for image in result)
    assert_exact(result.to_array(), 6 * x)


def test_an_exception_of_an_allocator_comes_out_of_the_encode(device, queue, rng):
    def allocator(_command_buffer, _descriptor, _kernel):
        raise LookupError("no room")

    graph = float_graph(device, [g.NeuronLinearNode(g.ImageNode("x"), 2.0)])
    graph.destination_image_allocator = allocator
    with pytest.raises(LookupError, match="no room"):
        graph.encode_batch(queue.command_buffer(), [mg.ImageBatch.from_array(device, sample(rng))])


class Channels:
    """A data source of any normalization: gamma 2, beta 1, mean 0, variance 1."""

    number_of_feature_channels = 4
    number_of_groups = 2
    gamma = np.full(4, 2.0, np.float32)
    beta = np.ones(4, np.float32)
    mean = np.zeros(4, np.float32)
    variance = np.ones(4, np.float32)
    epsilon = 1e-3
    label = None

    def load(self):
        return True

    def purge(self):
        pass


def always(node):
    node.flags = g.BatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS
    return node


STATES = {
    "ConvolutionGradientState": lambda x, rng: convolution(x, sample(rng, (4, 3, 3, 4))),
    "ConvolutionTransposeGradientState": lambda x, rng: g.ConvolutionTransposeNode(
        x, mg.ArrayConvolutionDataSource(sample(rng, (4, 3, 3, 4)))
    ),
    "BatchNormalizationState": lambda x, _: always(g.BatchNormalizationNode(x, Channels())),
    "InstanceNormalizationGradientState": lambda x, _: g.InstanceNormalizationNode(x, Channels()),
    "GroupNormalizationGradientState": lambda x, _: g.GroupNormalizationNode(x, Channels()),
    "DropoutGradientState": lambda x, _: g.DropoutNode(x),
    "ArithmeticGradientState": lambda x, _: g.AdditionNode(x, x),
    "ForwardLossState": lambda x, _: g.ForwardLossNode(
        x,
        x,
        loss_descriptor=mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM),
    ),
    "GradientState": lambda x, _: g.SoftMaxNode(x),
}


@pytest.mark.parametrize("temporary", [False, True], ids=["ordinary", "temporary"])
@pytest.mark.parametrize("name", STATES)
def test_exported_states(device, queue, rng, name, temporary):
    node = STATES[name](g.ImageNode("x"), rng)
    node.result_state.export_from_graph = True
    graph = float_graph(device, [node])
    graph.output_state_is_temporary = temporary
    assert is_one_graph(graph)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, sample(rng))
    (states,) = graph.encode_batch(command_buffer, [images]).states
    assert len(states) == len(images)
    assert {type(state).__name__ for state in states} == {name}
    assert {state.is_temporary for state in states} == {temporary}
    for state in set(states):
        if temporary:
            assert state.read_count == 1
            state.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_an_exported_state_serves_a_kernel(device, queue, rng):
    node = convolution(g.ImageNode("x"), sample(rng, (4, 3, 3, 4)), np.zeros(4))
    node.result_state.export_from_graph = True
    graph = float_graph(device, [node])
    x, dy = sample(rng), sample(rng)
    images, gradients = (mg.ImageBatch.from_array(device, values) for values in (x, dy))
    gradient = mg.ConvolutionGradient(node.weights, device=device)
    with queue.command_buffer() as command_buffer:
        (states,) = graph.encode_batch(command_buffer, [images]).states
        dx = gradient.encode_batch(command_buffer, gradients, images, states, allocator=mg.DEFAULT)
        mg.synchronize(dx, command_buffer)
        mg.synchronize(states, command_buffer)
    command_buffer.wait_until_completed()
    forward = mg.Convolution(node.weights, device="cpu")
    backward = mg.ConvolutionGradient(node.weights, device="cpu")
    _, state = forward(x, with_state=True)
    assert_same_bytes(dx.to_array(), backward(dy, x, state))
    assert_same_bytes(
        states[0].gradient_for_weights.to_numpy(), state.gradient_for_weights.to_numpy()
    )
