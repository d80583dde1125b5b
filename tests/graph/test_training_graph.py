"""Which gradient nodes a training graph has, in which order, and what its handler is told."""

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph.networks import TRAINED, loss_of


def source(*shape):
    return mg.ArrayConvolutionDataSource(np.ones(shape, np.float32))


class Log:
    """A handler that keeps what it was told."""

    def __init__(self):
        self.calls = []

    def __call__(self, gradient_node, inference_node, inference_source, gradient_source):
        self.calls.append((gradient_node, inference_node, inference_source, gradient_source))

    @property
    def nodes(self):
        return [type(node).__name__ for node, *_ in self.calls]


def classifier():
    x = g.ImageNode("image")
    f1 = g.ConvolutionNode(x, source(8, 5, 5, 1))
    f2 = g.NeuronReLUNode(f1)
    f3 = g.PoolingMaxNode(f2, 2)
    f4 = g.FullyConnectedNode(f3, source(10, 14, 14, 8))
    f5 = g.SoftMaxNode(f4)
    return x, [f1, f2, f3, f4, f5, loss_of(f5)]


def test_a_classifier():
    x, forward = classifier()
    f1, f2, f3, f4, f5, loss = forward
    log = Log()

    termini = loss.training_graph(node_handler=log)

    assert log.nodes == [
        "SoftMaxGradientNode",
        "FullyConnectedGradientNode",
        "PoolingMaxGradientNode",
        "NeuronGradientNode",
        "ConvolutionGradientNode",
    ]
    b1, b2, b3, b4, b5 = (node for node, *_ in log.calls)
    assert termini == [b5]
    images = [node.result_image for node in forward]
    assert b1.source_images == (images[5], images[4])
    assert b2.source_images == (b1.result_image, images[2])
    assert b3.source_images == (b2.result_image, images[1])
    assert b4.source_images == (b3.result_image, images[0])
    assert b5.source_images == (b4.result_image, x)
    assert [call[1] for call in log.calls] == [f5, f4, f3, f2, f1]
    assert [call[2] for call in log.calls] == [*images[3::-1], x]
    assert [call[3] for call in log.calls] == [
        images[5],
        *(b.result_image for b in (b1, b2, b3, b4)),
    ]
    assert b2.weights is f4.weights
    assert b5.result_image.gradient_of is x
    assert b5.result_image.handle is None  # a handler copies no handles


def test_without_a_handler_results_get_the_handles():
    _, forward = classifier()
    (terminus,) = forward[-1].training_graph()
    assert terminus.result_image.handle == "image"


def test_a_residual_block():
    network = TRAINED["residual"]
    loss = network.build([source(*shape) for shape in network.weights])
    x = network.input_of(loss)
    log = Log()

    termini = loss.training_graph(node_handler=log)

    assert log.nodes == [
        "NeuronGradientNode",
        "AdditionGradientNode",
        "AdditionGradientNode",
        "ConvolutionGradientNode",
        "NeuronGradientNode",
        "ConvolutionGradientNode",
        "AdditionNode",
        "ConvolutionGradientNode",
    ]
    b1, b2, b3, b4, _, b6, b7, b8 = (node for node, *_ in log.calls)
    assert termini == [b8]
    assert [b.is_secondary_source_filter for b in (b2, b3)] == [False, True]
    assert b2.source_images[0] is b3.source_images[0] is b1.result_image
    assert b4.source_images[0] is b2.result_image
    assert b7.source_images == (b3.result_image, b6.result_image)
    shared = b6.forward_node.source_images[0]
    assert log.calls[6] == (b7, None, shared, b3.result_image)
    assert b8.source_images == (b7.result_image, x)


def test_branches_and_a_separate_loss():
    network = TRAINED["branches"]
    start = network.build([source(*shape) for shape in network.weights])
    x = network.input_of(start)
    log = Log()

    termini = start.training_graph(node_handler=log)

    assert log.nodes == [
        "LossGradientNode",
        "LossGradientNode",
        "ConvolutionGradientNode",
        "ConcatenationGradientNode",
        "ConcatenationGradientNode",
        "ConvolutionGradientNode",
        "ConvolutionGradientNode",
        "AdditionNode",
    ]
    b1, b2, _, b4, b5, b6, b7, b8 = (node for node, *_ in log.calls)
    assert termini == [b2, b8]
    assert [b.is_labels_gradient_filter for b in (b1, b2)] == [False, True]
    assert b1.source_images[0] is start.result_image
    assert b6.source_images[0] is b5.result_image
    assert b7.source_images[0] is b4.result_image
    assert b8.source_images == (b6.result_image, b7.result_image)
    assert log.calls[7][1:3] == (None, x)


def test_labels_can_be_stopped():
    network = TRAINED["branches"]
    start = network.build([source(*shape) for shape in network.weights])
    loss = start.source_images[0].producer
    loss.source_images[1].stop_gradient = True
    log = Log()

    termini = start.training_graph(node_handler=log)

    assert log.nodes[:2] == ["LossGradientNode"] * 2
    assert termini[0] is log.calls[1][0]


def test_a_sum_of_one_image_with_itself():
    y = g.ImageNode("y")
    log = Log()
    dr = g.ImageNode("dr")

    (terminus,) = g.AdditionNode(y, y).training_graph(dr, log)

    assert log.nodes == ["AdditionGradientNode", "AdditionGradientNode", "AdditionNode"]
    assert terminus is log.calls[2][0]
    assert terminus.source_images == tuple(node.result_image for node, *_ in log.calls[:2])


def test_three_readers_are_added_from_left_to_right():
    x = g.ImageNode("x")
    a, b, c = (g.NeuronLinearNode(x, number) for number in (1.0, 2.0, 3.0))
    log = Log()
    last = g.AdditionNode(g.AdditionNode(a, b), c)

    (terminus,) = last.training_graph(g.ImageNode("dr"), log)

    sums = [node for node, *_ in log.calls if isinstance(node, g.AdditionNode)]
    assert sums[1] is terminus
    assert terminus.source_images[0] is sums[0].result_image


def test_a_reader_that_leads_only_to_a_stopped_image_adds_nothing():
    x = g.ImageNode("x")
    base = g.NeuronLinearNode(x, 2.0)
    stopped = g.SoftMaxNode(base)
    stopped.result_image.stop_gradient = True
    a, b = g.NeuronLinearNode(base, 3.0), g.NeuronLinearNode(base, 4.0)
    last = g.AdditionNode(g.AdditionNode(a, b), stopped)
    log = Log()

    last.training_graph(g.ImageNode("dr"), log)

    sums = [node for node, *_ in log.calls if isinstance(node, g.AdditionNode)]
    assert len(sums) == 1
    assert "SoftMaxGradientNode" not in log.nodes


def test_pruning_one_of_two_branches_leaves_no_addition():
    x = g.ImageNode("x")
    base = g.NeuronLinearNode(x, 2.0)
    a, b = g.NeuronLinearNode(base, 3.0), g.NeuronLinearNode(base, 4.0)
    created = []

    def prune(node, inference_node, _source, _gradient):
        created.append(node)
        if inference_node is a:
            node.result_image.stop_gradient = True

    termini = g.AdditionNode(a, b).training_graph(g.ImageNode("dr"), prune)

    assert not any(isinstance(node, g.AdditionNode) for node in created)
    pruned = next(node for node in created if getattr(node, "forward_node", None) is a)
    assert pruned in termini
    assert len(termini) == 2


@pytest.mark.parametrize("where", ["result", "source"])
def test_a_handler_can_stop_at_a_sum(where):
    x = g.ImageNode("x")
    base = g.NeuronLinearNode(x, 2.0)
    a, b = g.NeuronLinearNode(base, 3.0), g.NeuronLinearNode(base, 4.0)
    log = Log()

    def stop(node, inference_node, inference_source, gradient_source):
        log(node, inference_node, inference_source, gradient_source)
        if inference_node is None:
            stopped = node.result_image if where == "result" else inference_source
            stopped.stop_gradient = True

    (terminus,) = g.AdditionNode(a, b).training_graph(g.ImageNode("dr"), stop)

    assert isinstance(terminus, g.AdditionNode)
    assert log.nodes[-1] == "AdditionNode"


def test_a_handler_can_stop_at_the_inference_source():
    x = g.ImageNode("x")
    base = g.NeuronLinearNode(x, 2.0)
    log = Log()

    def stop(*call):
        log(*call)
        call[2].stop_gradient = True

    g.NeuronReLUNode(base).training_graph(g.ImageNode("dr"), stop)

    assert log.nodes == ["NeuronGradientNode"]


def test_a_node_without_gradient_on_the_way():
    x = g.ImageNode("x")
    last = g.NeuronReLUNode(g.DivisionNode(x, x, label="ratio"))
    with pytest.raises(
        mg.errors.GradientUnavailableError, match=r"DivisionNode 'ratio' has no gradient.*stop_grad"
    ):
        last.training_graph(g.ImageNode("dr"))
    last.source_images[0].stop_gradient = True
    assert len(last.training_graph(g.ImageNode("dr"))) == 1


def test_nothing_to_differentiate():
    x = g.ImageNode("x")
    node = g.SoftMaxNode(x)
    node.result_image.stop_gradient = True
    assert node.training_graph(g.ImageNode("dr")) == []


def test_a_forward_loss_as_its_own_gradient_is_warned_of():
    descriptor = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM)
    node = g.ForwardLossNode(g.ImageNode(), g.ImageNode(), loss_descriptor=descriptor)
    with pytest.warns(UserWarning, match="start from an InitialGradientNode"):
        node.training_graph()


def test_any_other_node_may_be_its_own_gradient():
    node = g.SoftMaxNode(g.ImageNode("x"))
    (terminus,) = node.training_graph()
    assert terminus.source_images[0] is node.result_image


def test_each_call_makes_new_nodes():
    node = g.SoftMaxNode(g.ImageNode("x"))
    dy = g.ImageNode("dy")
    assert node.training_graph(dy)[0] is not node.training_graph(dy)[0]
    assert node.gradient_filter(dy) is not node.gradient_filter([dy])


def test_styles_are_copied_when_gradient_nodes_are_made():
    node = g.ConvolutionNode(g.ImageNode(), source(4, 1, 1, 4))
    assert node.training_style is g.TrainingStyle.GPU
    node.training_style = g.TrainingStyle.NONE
    gradient = node.gradient_filter(g.ImageNode())
    node.training_style = g.TrainingStyle.CPU
    assert gradient.training_style is g.TrainingStyle.NONE


def test_paddings_are_inverted():
    node = g.ConvolutionNode(g.ImageNode(), source(4, 3, 3, 4))
    assert node.gradient_filter(g.ImageNode()).padding_policy is None
    node.padding_policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    inverse = node.gradient_filter(g.ImageNode()).padding_policy
    assert inverse.padding_method() == node.padding_policy.inverse().padding_method()


def test_deep_networks_need_no_deep_stack():
    image = g.ImageNode("x")
    for _ in range(3000):
        image = g.NeuronReLUNode(image).result_image
    (terminus,) = image.producer.training_graph(g.ImageNode("dr"))
    assert terminus.result_image.handle == "x"


def test_rejects():
    node = g.SoftMaxNode(g.ImageNode("x"))
    with pytest.raises(TypeError, match="node_handler must be callable, got int"):
        node.training_graph(node_handler=3)
    with pytest.raises(TypeError, match="source_gradient must be an ImageNode, got int"):
        node.training_graph(3)
