"""Activations that batch normalization computes: the same numbers, and when it does not."""

import copy
import pickle

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.tolerance import assert_same_bytes

CHANNELS = 5
SHAPE = (3, 4, 6, CHANNELS)
FLOAT16, FLOAT32 = mg.ChannelFormat.FLOAT16, mg.ChannelFormat.FLOAT32

ACTIVATIONS = {
    "relu": lambda x: g.NeuronReLUNode(x),
    "leaky": lambda x: g.NeuronReLUNode(x, a=0.25),
    "relu_n": lambda x: g.NeuronReLUNNode(x, a=0.5, b=1.0),
    "sigmoid": lambda x: g.NeuronSigmoidNode(x),
    "tanh": lambda x: g.NeuronTanHNode(x, a=1.5, b=0.5),
    "gelu": lambda x: g.NeuronGeLUNode(x),
}


class Watched(mg.ArrayBatchNormalizationDataSource):
    """Keeps the sums of each update, and changes nothing."""

    def update_gamma_and_beta_cpu(self, state):
        self.sums = state.gradient_for_gamma.to_numpy(), state.gradient_for_beta.to_numpy()
        return False


def source_of(rng):
    numbers = rng.uniform(0.5, 2.0, (4, CHANNELS)).astype(np.float32)
    return Watched(*numbers, epsilon=1e-3)


class Network:
    """Normalization and activation, the image between which may be kept."""

    def __init__(self, data_source, activation=ACTIVATIONS["relu"]):
        self.normalization = g.BatchNormalizationNode(g.ImageNode("x"), data_source)
        self.normalization.training_style = g.TrainingStyle.CPU
        self.activation = activation(self.normalization)
        # What is returned is not fused away, so neither is what these read.
        self.last = g.NeuronLinearNode(self.activation, a=2.0)

    def graph(self, device, *, train, kept=False, pixels=FLOAT32):
        if kept:
            self.normalization.result_image.export()
        results = self.last.training_graph(g.ImageNode("dy")) if train else [self.last]
        graph = g.Graph(device, result_images=results)
        graph.format = pixels
        return graph


def is_fused(graph):
    """Whether something is computed by another node's kernels."""
    return "computed by BatchNormalization" in str(graph)


def fuses(device):
    """Whether the device's graphs are fused here; Apple's fuse by themselves."""
    return device.kind == "cpu"


def arrays(rng, shape=SHAPE):
    return {
        "x": rng.standard_normal(shape, dtype=np.float32),
        "dy": rng.standard_normal(shape, dtype=np.float32),
    }


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_same_bits_as_kernel_by_kernel(device, rng, name):
    data_source, given = source_of(rng), arrays(rng)
    sums = []
    results = []
    for kept in (False, True):
        graph = Network(data_source, ACTIVATIONS[name]).graph(device, train=True, kept=kept)
        results.append(graph(given).result)
        sums.append(data_source.sums)
        assert is_fused(graph) == (fuses(device) and not kept)
    assert np.ptp(results[0]) > 0
    assert_same_bytes(results[0], results[1])
    for fused, apart in zip(*sums, strict=True):
        assert np.ptp(fused) > 0
        assert_same_bytes(fused, apart)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_same_bits_without_gradients(device, rng, name):
    data_source, x = source_of(rng), arrays(rng)["x"]
    results = []
    for kept in (False, True):
        graph = Network(data_source, ACTIVATIONS[name]).graph(device, train=False, kept=kept)
        results.append(graph(x).result)
        assert is_fused(graph) == (fuses(device) and not kept)
    assert np.ptp(results[0]) > 0
    assert_same_bytes(results[0], results[1])


def test_both_gradient_nodes_are_one(device, rng):
    graph = Network(source_of(rng)).graph(device, train=True)
    if fuses(device):
        assert "computed by BatchNormalizationNode" in str(graph)
        assert "computed by BatchNormalizationGradientNode" in str(graph)
    else:
        assert "computed by" not in str(graph)


def test_an_activation_that_only_its_gradient_needs_is_shown(device, rng):
    network = Network(source_of(rng))
    first = g.NeuronLinearNode(g.ImageNode("dy"), a=2.0)
    (terminus,) = network.activation.training_graph(first.result_image)
    graph = g.Graph(device, terminus)
    assert is_fused(graph) == fuses(device)
    assert "not run" not in str(graph)
    assert repr(graph).startswith("Graph(5 nodes")


def test_what_lies_between_is_not_rounded(device, rng):
    """A float16 image between the two would be."""
    if not fuses(device):
        assert not is_fused(Network(source_of(rng)).graph(device, train=True))
        return
    data_source, given = source_of(rng), arrays(rng)
    results = {}
    for pixels in (FLOAT16, FLOAT32):
        for kept in (False, True):
            network = Network(data_source, ACTIVATIONS["tanh"])
            graph = network.graph(device, train=False, kept=kept, pixels=pixels)
            x = given["x"].astype(np.float16).astype(np.float32)
            results[pixels, kept] = graph(x).result.astype(np.float64)
    exact = results[FLOAT32, True]
    error = {kept: np.abs(results[FLOAT16, kept] - exact).mean() for kept in (False, True)}
    assert 0 < error[False] < error[True]


def test_memory_holds_no_image_between(device, rng):
    if not fuses(device):
        assert not is_fused(Network(source_of(rng)).graph(device, train=True))
        return
    shape = (4, 64, 64, CHANNELS)
    given = arrays(rng, shape)
    sources = {name: mg.ImageBatch.from_array(device, array) for name, array in given.items()}

    def taken(*, kept):
        """Bytes between an encode and its commit."""
        graph = Network(source_of(rng)).graph(device, train=True, kept=kept)
        graph(given)
        before = mg.memory_statistics()["in_use"]
        with device.command_queue().command_buffer() as command_buffer:
            made = graph.encode_batch(command_buffer, sources)
            after = mg.memory_statistics()["in_use"]
        command_buffer.wait_until_completed()
        assert made.result.to_array().shape == given["x"].shape
        return after - before

    assert taken(kept=True) - taken(kept=False) >= given["x"].nbytes


# ---- when the two stay apart


def test_not_if_somebody_else_reads_what_lies_between(device, rng):
    data_source, given = source_of(rng), arrays(rng)
    results = []
    for first in (0, 1):
        network = Network(data_source)
        pair = [network.activation, network.normalization]
        both = g.AdditionNode(pair[first], pair[1 - first])
        (terminus,) = both.training_graph(g.ImageNode("dy"))
        graph = g.Graph(device, terminus)
        graph.format = FLOAT32
        assert not is_fused(graph)
        results.append(graph(given).result)
    assert_same_bytes(*results)


def test_not_if_two_activations_read_it(device, rng):
    normalization = g.BatchNormalizationNode(g.ImageNode("x"), source_of(rng))
    both = g.MultiplicationNode(g.NeuronReLUNode(normalization), g.NeuronTanHNode(normalization))
    assert not is_fused(g.Graph(device, both))


def test_not_if_results_are_returned(device, rng):
    data_source = source_of(rng)
    network = Network(data_source)
    assert not is_fused(g.Graph(device, network.activation))
    network.activation.result_image.export()
    assert not is_fused(g.Graph(device, network.last))
    network = Network(data_source)
    network.activation.result_state.export_from_graph = True
    assert not is_fused(g.Graph(device, network.last))


def test_not_where_formats_differ(device, rng):
    network = Network(source_of(rng))
    network.normalization.result_image.format = FLOAT32
    network.activation.result_image.format = FLOAT16
    assert not is_fused(network.graph(device, train=False))


def test_not_with_a_padding_policy(device, rng):
    for place in ("normalization", "activation"):
        network = Network(source_of(rng))
        getattr(network, place).padding_policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
        assert not is_fused(network.graph(device, train=False))


def test_not_with_an_allocator(device, rng):
    for place in ("normalization", "activation"):
        network = Network(source_of(rng))
        getattr(network, place).result_image.image_allocator = mg.TEMPORARY
        assert not is_fused(network.graph(device, train=False))


def test_not_if_gradients_have_a_padding_policy(device, rng):
    network = Network(source_of(rng))

    def with_policy(gradient, forward, *_):
        if forward is network.normalization:
            gradient.padding_policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)

    termini = network.last.training_graph(g.ImageNode("dy"), node_handler=with_policy)
    assert not is_fused(g.Graph(device, result_images=termini))


def by_hand(network, gradients):
    """Gradient nodes of the activation, whose sum the normalization's reads."""
    made = [network.activation.gradient_filter(gradient) for gradient in gradients]
    total = made[0] if len(made) == 1 else g.AdditionNode(*made)
    return made, network.normalization.gradient_filter(total.result_image)


def test_not_if_somebody_else_reads_the_gradient_between(device, rng):
    network = Network(source_of(rng))
    incoming = g.NeuronLinearNode(g.ImageNode("dy"), a=2.0).result_image
    (made,), last = by_hand(network, [incoming])
    assert is_fused(g.Graph(device, last)) == fuses(device)
    both = g.Graph(device, result_images=[last, g.NeuronLinearNode(made, a=3.0)])
    both.format = FLOAT32
    assert not is_fused(both)
    result = both(arrays(rng))
    assert np.ptp(result.result) > 0
    assert np.ptp(result.intermediates[0]) > 0


def test_not_if_the_activation_has_two_gradients(device, rng):
    data_source, given = source_of(rng), arrays(rng)
    network = Network(data_source)
    incoming = g.NeuronLinearNode(g.ImageNode("dy"), a=2.0).result_image
    _, last = by_hand(network, [incoming, incoming])
    graph = g.Graph(device, last)
    graph.format = FLOAT32
    assert not is_fused(graph)
    network = Network(data_source)
    doubled = g.NeuronLinearNode(g.ImageNode("dy"), a=4.0).result_image
    _, last = by_hand(network, [doubled])
    once = g.Graph(device, last)
    once.format = FLOAT32
    assert is_fused(once) == fuses(device)
    assert_same_bytes(graph(given).result, once(given).result)


def test_not_with_slopes_by_channel(device, rng):
    """Those of a kernel by itself may be more than channels."""
    network = Network(source_of(rng), lambda x: g.NeuronPReLUNode(x, np.ones(2 * CHANNELS)))
    assert not is_fused(network.graph(device, train=False))


def test_not_if_a_gradient_has_another_format(device, rng):
    network = Network(source_of(rng))

    def in_float32(gradient, forward, *_):
        if forward is network.activation:
            gradient.result_image.format = FLOAT32

    termini = network.last.training_graph(g.ImageNode("dy"), node_handler=in_float32)
    assert not is_fused(g.Graph(device, result_images=termini))


def test_not_if_the_incoming_gradient_is_an_input(device, rng):
    """So that inputs are read as often as on a device whose graphs fuse by themselves."""
    network = Network(source_of(rng))
    termini = network.activation.training_graph(g.ImageNode("dy"))
    graph = g.Graph(device, result_images=termini)
    assert not is_fused(graph)
    assert graph.source_image_handles == ["dy", "x"]
    assert [graph.read_count_for_source_image(i) for i in range(2)] == [1, 4]


def test_not_if_another_node_updates_the_same_numbers(device, rng):
    """The second one's update comes before the gradient of the first."""
    given = arrays(rng)
    results = []
    for kept in (False, True):
        numbers = np.random.default_rng(3).uniform(0.5, 2.0, (4, CHANNELS)).astype(np.float32)
        optimizer = mg.SGD(0.5, device=device)
        data_source = mg.ArrayBatchNormalizationDataSource(*numbers, optimizer=optimizer)
        first = g.BatchNormalizationNode(g.ImageNode("x"), data_source)
        second = g.BatchNormalizationNode(g.NeuronGeLUNode(first), data_source)
        if kept:
            first.result_image.export()
        termini = g.NeuronLinearNode(second, a=3.0).training_graph(g.ImageNode("dy"))
        graph = g.Graph(device, result_images=termini)
        graph.format = FLOAT32
        assert not is_fused(graph)
        results.append(graph(given).result)
    assert_same_bytes(*results)


def test_not_if_the_gradient_comes_another_way(device, rng):
    """Gradient nodes by hand: the normalization's reads what the activation's does not make."""
    network = Network(source_of(rng))
    dy = g.ImageNode("dy")
    by_hand = g.BatchNormalizationGradientNode(
        dy, network.normalization.source_images[0], network.normalization.result_state
    )
    graph = g.Graph(device, result_images=[network.last, by_hand])
    graph.format = FLOAT32
    assert not is_fused(graph)
    assert graph(arrays(rng)).intermediates[0].shape == SHAPE


# ---- and otherwise


def test_copies_and_pickles_are_fused_too(device, rng):
    graph = Network(mg.ArrayBatchNormalizationDataSource(*np.ones((4, CHANNELS)))).graph(
        device, train=True
    )
    given = arrays(rng)
    expected = graph(given).result
    # A pickle comes back on the default device.
    for other in (copy.copy(graph), pickle.loads(pickle.dumps(graph)).copy(device)):
        assert is_fused(other) == is_fused(graph)
        assert_same_bytes(other(given).result, expected)


def test_gradients_that_are_copies_pass_through(device, rng):
    """A residual block: the sum's gradient is nobody's result but its own."""
    data_source, given = source_of(rng), arrays(rng)
    results = []
    for kept in (False, True):
        network = Network(data_source)
        if kept:
            network.normalization.result_image.export()
        total = g.AdditionNode(network.activation, network.normalization.source_images[0])
        (terminus,) = g.NeuronLinearNode(total, a=2.0).training_graph(g.ImageNode("dy"))
        graph = g.Graph(device, terminus)
        graph.format = FLOAT32
        results.append(graph(given).result)
        assert is_fused(graph) == (fuses(device) and not kept)
    assert_same_bytes(*results)


def test_reloads_and_updates_reach_the_fused_kernels(device, rng):
    optimizer = mg.SGD(0.1, device=device)
    given = arrays(rng)
    results = []
    for kept in (False, True):
        numbers = np.random.default_rng(3).uniform(0.5, 2.0, (4, CHANNELS)).astype(np.float32)
        data_source = mg.ArrayBatchNormalizationDataSource(*numbers, optimizer=optimizer)
        network = Network(data_source)
        network.normalization.training_style = g.TrainingStyle.GPU
        graph = network.graph(device, train=True, kept=kept)
        first, second = graph(given).result, graph(given).result
        assert not np.array_equal(first, second)
        data_source.gamma = numbers[0]
        graph.reload_from_data_sources()
        results.append((second, graph(given).result))
    for fused, apart in zip(*results, strict=True):
        assert_same_bytes(fused, apart)
