"""Every class of nodes: its kernel, its gradient, its rules, against kernels called by hand."""

import inspect
import pickle
import re
import warnings

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph.networks import loss_of
from tests.rejects import rejects
from tests.tolerance import assert_exact, assert_same_bytes

X = (2, 4, 4, 8)
# What Metal says of limits.
UNMEASURED = "ignore:.*has not been measured:RuntimeWarning"
LOSS = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM, delta=0.5)
YOLO = mg.YOLOLossDescriptor(
    mg.LossType.MEAN_SQUARED_ERROR,
    mg.LossType.HUBER,
    mg.LossType.SIGMOID_CROSS_ENTROPY,
    mg.LossType.SOFT_MAX_CROSS_ENTROPY,
    mg.ReductionType.SUM,
    anchor_boxes=[[1, 2], [2, 1]],
)


def weights(outputs=8, size=3, inputs=8):
    values = np.random.default_rng(7).standard_normal((outputs, size, size, inputs))
    return mg.ArrayConvolutionDataSource(values.astype(np.float32), np.linspace(-1, 1, outputs))


def group_source():
    return mg.ArrayGroupNormalizationDataSource(
        np.linspace(0.5, 1, 8), np.linspace(-1, 1, 8), number_of_groups=2, epsilon=0.01
    )


def instance_source():
    return mg.ArrayInstanceNormalizationDataSource(
        np.linspace(0.5, 1, 8), np.linspace(-1, 1, 8), epsilon=0.01
    )


def neuron(kind, *numbers, data=None):
    return mg.NeuronDescriptor(getattr(mg.NeuronType, kind), *numbers, data=data)


def neuron_case(node, descriptor):
    return (
        node,
        lambda d: mg.Neuron(descriptor, device=d),
        lambda d: mg.NeuronGradient(descriptor, device=d),
    )


def clamped(kernel):
    kernel.edge_mode = mg.EdgeMode.CLAMP
    return kernel


def set_on(thing, **values):
    for name, value in values.items():
        setattr(thing, name, value)
    return thing


def window_case(node, name, *arguments):
    forward, gradient = getattr(mg, name), getattr(mg, f"{name}Gradient")
    return (
        node,
        lambda d: clamped(forward(*arguments, device=d)),
        lambda d: gradient(*arguments, device=d),
    )


def local_case(node, name, size, **numbers):
    forward, gradient = getattr(mg, name), getattr(mg, f"{name}Gradient")
    return (
        lambda x: set_on(node(x), **numbers),
        lambda d: set_on(forward(*size, device=d), **numbers),
        lambda d: set_on(gradient(*size, device=d), **numbers),
    )


PAD = {"padding_size_before": (1, 0, 4), "padding_size_after": (0, 2, 0)}
SLOPES = np.linspace(0.1, 0.8, 8)
# A node of one source, its kernel, and the kernel of its gradient (None: there is none).
ONE_SOURCE = {
    "ConvolutionNode": (
        lambda x: g.ConvolutionNode(x, weights()),
        lambda d: mg.Convolution(weights(), device=d),
        lambda d: mg.ConvolutionGradient(weights(), device=d),
    ),
    "FullyConnectedNode": (
        lambda x: g.FullyConnectedNode(x, weights(12, 4)),
        lambda d: mg.FullyConnected(weights(12, 4), device=d),
        lambda d: mg.FullyConnectedGradient(weights(12, 4), device=d),
    ),
    "ConvolutionTransposeNode": (
        lambda x: g.ConvolutionTransposeNode(x, weights()),
        lambda d: mg.ConvolutionTranspose(weights(), device=d),
        lambda d: mg.ConvolutionTransposeGradient(weights(), device=d),
    ),
    "NeuronAbsoluteNode": neuron_case(g.NeuronAbsoluteNode, neuron("ABSOLUTE")),
    "NeuronSigmoidNode": neuron_case(g.NeuronSigmoidNode, neuron("SIGMOID")),
    "NeuronSoftSignNode": neuron_case(g.NeuronSoftSignNode, neuron("SOFT_SIGN")),
    "NeuronGeLUNode": neuron_case(g.NeuronGeLUNode, neuron("GELU")),
    "NeuronReLUNode": neuron_case(lambda x: g.NeuronReLUNode(x, 0.1), neuron("RELU", 0.1)),
    "NeuronELUNode": neuron_case(g.NeuronELUNode, neuron("ELU", 1.0)),
    "NeuronReLUNNode": neuron_case(lambda x: g.NeuronReLUNNode(x, 0.5, 1), neuron("RELUN", 0.5, 1)),
    "NeuronLinearNode": neuron_case(lambda x: g.NeuronLinearNode(x, 2, 3), neuron("LINEAR", 2, 3)),
    "NeuronHardSigmoidNode": neuron_case(g.NeuronHardSigmoidNode, neuron("HARD_SIGMOID", 0.2, 0.5)),
    "NeuronSoftPlusNode": neuron_case(g.NeuronSoftPlusNode, neuron("SOFT_PLUS", 1, 1)),
    "NeuronTanHNode": neuron_case(lambda x: g.NeuronTanHNode(x, 2, 0.5), neuron("TANH", 2, 0.5)),
    "NeuronPReLUNode": neuron_case(
        lambda x: g.NeuronPReLUNode(x, SLOPES), neuron("PRELU", data=SLOPES)
    ),
    "NeuronPowerNode": neuron_case(
        lambda x: g.NeuronPowerNode(x, 1, 9, 2), neuron("POWER", 1, 9, 2)
    ),
    "NeuronExponentialNode": neuron_case(
        lambda x: g.NeuronExponentialNode(x, 0.5, 0, 2), neuron("EXPONENTIAL", 0.5, 0, 2)
    ),
    "NeuronLogarithmNode": neuron_case(
        lambda x: g.NeuronLogarithmNode(x, 1, 9), neuron("LOGARITHM", 1, 9, -1)
    ),
    "PoolingMaxNode": window_case(lambda x: g.PoolingMaxNode(x, 3, 2), "PoolingMax", 3, 3, 2, 2),
    "PoolingAverageNode": window_case(
        lambda x: g.PoolingAverageNode(x, kernel_width=3, kernel_height=2, stride=1),
        "PoolingAverage",
        3,
        2,
        1,
        1,
    ),
    "PoolingL2NormNode": window_case(
        lambda x: g.PoolingL2NormNode(x, 2), "PoolingL2Norm", 2, 2, 2, 2
    ),
    "DilatedPoolingMaxNode": (
        lambda x: g.DilatedPoolingMaxNode(x, 2, 1, 3),
        lambda d: mg.DilatedPoolingMax(2, 2, 3, 3, 1, 1, device=d),
        lambda d: mg.DilatedPoolingMaxGradient(2, 2, 3, 3, 1, 1, device=d),
    ),
    "SpatialNormalizationNode": local_case(
        lambda x: g.SpatialNormalizationNode(x, 3),
        "SpatialNormalization",
        (3, 3),
        alpha=0.5,
        beta=5,
    ),
    "LocalContrastNormalizationNode": local_case(
        lambda x: g.LocalContrastNormalizationNode(x, 3),
        "LocalContrastNormalization",
        (3, 3),
        alpha=0.5,
        beta=0.75,
        delta=0.25,
        p0=2.0,
        pm=0.25,
        ps=0.5,
    ),
    "CrossChannelNormalizationNode": local_case(
        lambda x: g.CrossChannelNormalizationNode(x, 3),
        "CrossChannelNormalization",
        (3,),
        alpha=2.0,
        beta=0.75,
        delta=1.5,
    ),
    "InstanceNormalizationNode": (
        lambda x: g.InstanceNormalizationNode(x, instance_source()),
        lambda d: mg.InstanceNormalization(instance_source(), device=d),
        lambda d: mg.InstanceNormalizationGradient(device=d),
    ),
    "GroupNormalizationNode": (
        lambda x: g.GroupNormalizationNode(x, group_source()),
        lambda d: mg.GroupNormalization(group_source(), device=d),
        lambda d: mg.GroupNormalizationGradient(device=d),
    ),
    "DropoutNode": (
        lambda x: g.DropoutNode(x, 0.7, 5, (1, 0, 1)),
        lambda d: mg.Dropout(0.7, 5, (1, 0, 1), device=d),
        lambda d: mg.DropoutGradient(0.7, 5, (1, 0, 1), device=d),
    ),
    "SoftMaxNode": (
        g.SoftMaxNode,
        lambda d: mg.SoftMax(device=d),
        lambda d: mg.SoftMaxGradient(device=d),
    ),
    "LogSoftMaxNode": (
        g.LogSoftMaxNode,
        lambda d: mg.LogSoftMax(device=d),
        lambda d: mg.LogSoftMaxGradient(device=d),
    ),
    "UpsamplingNearestNode": (
        lambda x: g.UpsamplingNearestNode(x, 2, 3),
        lambda d: mg.UpsamplingNearest(2, 3, device=d),
        lambda d: mg.UpsamplingNearestGradient(2, 3, device=d),
    ),
    "UpsamplingBilinearNode": (
        lambda x: g.UpsamplingBilinearNode(x, 2, 3, True),
        lambda d: mg.UpsamplingBilinear(2, 3, True, device=d),
        lambda d: mg.UpsamplingBilinearGradient(2, 3, device=d),
    ),
    "PadNode": (
        lambda x: g.PadNode(x, *PAD.values(), mg.EdgeMode.CONSTANT, 0.25),
        lambda d: set_on(mg.Pad(**PAD, device=d), edge_mode=mg.EdgeMode.CONSTANT, fill_value=0.25),
        lambda d: mg.PadGradient(device=d),
    ),
    "GramMatrixCalculationNode": (
        lambda x: g.GramMatrixCalculationNode(x, 0.5),
        lambda d: mg.GramMatrixCalculation(0.5, device=d),
        lambda d: mg.GramMatrixCalculationGradient(0.5, device=d),
    ),
    **{
        f"Reduction{name}Node": (
            getattr(g, f"Reduction{name}Node"),
            lambda d, name=name: getattr(mg, f"Reduce{name}")(device=d),
            None,
        )
        for name in (
            *(
                f"{axis}{what}"
                for axis in ("Row", "Column")
                for what in ("Min", "Max", "Mean", "Sum")
            ),
            *(
                f"FeatureChannels{what}"
                for what in ("Min", "Max", "Mean", "Sum", "ArgumentMin", "ArgumentMax")
            ),
        )
    },
}
# Nodes of two sources, their kernel, and those of both gradients.
TWO_SOURCES = {
    "AdditionNode": (g.AdditionNode, mg.Add, mg.AddGradient),
    "SubtractionNode": (g.SubtractionNode, mg.Subtract, mg.SubtractGradient),
    "MultiplicationNode": (g.MultiplicationNode, mg.Multiply, mg.MultiplyGradient),
    "DivisionNode": (g.DivisionNode, mg.Divide, None),
    "ComparisonNode": (
        lambda x, y: g.ComparisonNode(x, y, mg.ComparisonType.LESS),
        lambda device: set_on(mg.Compare(device=device), comparison_type=mg.ComparisonType.LESS),
        None,
    ),
}
# Those with tests of their own in this file or beside it.
OTHERS = {
    "BatchNormalizationNode",
    "ConcatenationNode",
    "ForwardLossNode",
    "InitialGradientNode",
    "LossNode",
    "ReductionSpatialMeanNode",
    "ReshapeNode",
    "YOLOLossNode",
}
ABSTRACT = {
    "BinaryArithmeticNode",
    "FilterNode",
    "GradientFilterNode",
    "ArithmeticGradientNode",
    "NeuronNode",
    "NormalizationNode",
    "PoolingGradientNode",
    "PoolingNode",
    "TrainableNode",
    "UnaryReductionNode",
}
GRADIENTS = sorted(name for name in ONE_SOURCE if ONE_SOURCE[name][2] is not None)


def float_graph(device, results, **options):
    graph = g.Graph(device, result_images=results, **options)
    graph.format = mg.ChannelFormat.FLOAT32
    return graph


def sample(rng, shape=X):
    return rng.standard_normal(shape, dtype=np.float32)


def forward_nodes():
    """Names of the classes of forward nodes."""
    return {
        name
        for name in g.__all__
        if name.endswith("Node")
        and name not in ABSTRACT
        and issubclass(getattr(g, name), g.FilterNode)
        and not issubclass(getattr(g, name), g.GradientFilterNode)
    }


def test_every_class_of_filter_nodes_has_a_test():
    assert forward_nodes() == {*ONE_SOURCE, *TWO_SOURCES, *OTHERS}


def test_every_gradient_node_belongs_to_a_forward_node():
    made = {
        getattr(g, name)._gradient_node
        for name in {*ONE_SOURCE, *TWO_SOURCES, *OTHERS}
        - {"InitialGradientNode", "LossNode", "YOLOLossNode"}
    }
    declared = {
        getattr(g, name)
        for name in g.__all__
        if inspect.isclass(getattr(g, name)) and issubclass(getattr(g, name), g.GradientFilterNode)
    }
    assert declared - {getattr(g, name) for name in ABSTRACT} == made - {None}


@pytest.mark.parametrize("name", sorted(ABSTRACT))
def test_abstract_nodes_are_not_made(name):
    x = g.ImageNode()
    state = g.AdditionNode(x, x).result_state
    arguments = {
        "FilterNode": ([x],),
        "TrainableNode": ([x],),
        "BinaryArithmeticNode": (x, x),
        "PoolingNode": (x, 2),
        "NeuronNode": (x,),
        "NormalizationNode": (x,),
        "UnaryReductionNode": (x,),
        "ArithmeticGradientNode": (x, x, state, True),
    }.get(name, (x, x, state))
    with pytest.raises(TypeError, match=f"^{name}"):
        getattr(g, name)(*arguments)


@pytest.mark.parametrize("name", ONE_SOURCE)
def test_the_kernel_of_a_node(device, rng, name):
    make, kernel, _ = ONE_SOURCE[name]
    node = make(g.ImageNode("x"))
    assert type(node).__name__ == name
    x = sample(rng)

    result = float_graph(device, [node])(x).result

    assert_same_bytes(result, kernel(device)(x))


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_a_node(device, rng, name):
    make, kernel, gradient_kernel = ONE_SOURCE[name]
    node = make(g.ImageNode("x"))
    (terminus,) = node.training_graph(g.ImageNode("dy"))
    kind = "Neuron" if name.startswith("Neuron") else name.removesuffix("Node")
    assert type(terminus).__name__ == f"{kind}GradientNode"
    assert terminus.forward_node is node
    assert terminus.result_image.handle == "x"
    x = sample(rng)
    y, state = kernel(device)(x, with_state=True)
    dy = sample(rng, y.shape)
    reads_result = "SoftMax" in name

    result = float_graph(device, [terminus])({"x": x, "dy": dy}).result

    backward = gradient_kernel(device)
    assert_same_bytes(result, backward(dy, y if reads_result else x, state))


@pytest.mark.parametrize("name", TWO_SOURCES)
def test_the_kernel_of_two_sources(device, rng, name):
    make, kernel, _ = TWO_SOURCES[name]
    left, right = g.ImageNode("x"), g.ImageNode("y")
    x, y = sample(rng), sample(rng)

    result = float_graph(device, [make(left, right)])({"x": x, "y": y}).result

    assert_same_bytes(result, kernel(device=device)(x, y))


@pytest.mark.filterwarnings(UNMEASURED)
@pytest.mark.parametrize("name", [name for name in TWO_SOURCES if TWO_SOURCES[name][2]])
@pytest.mark.parametrize("limited", [False, True])
def test_the_gradients_of_two_sources(device, rng, name, limited):
    make, kernel, gradient_kernel = TWO_SOURCES[name]
    node = make(g.ImageNode("x"), g.ImageNode("y"))
    settings = {"primary_scale": 2.0, "secondary_scale": 0.5}
    if limited:
        settings |= {"minimum_value": -1.0, "maximum_value": 1.0}
    set_on(node, **settings)
    first, second = node.gradient_filters(g.ImageNode("dr"))
    assert (first.is_secondary_source_filter, second.is_secondary_source_filter) == (False, True)
    x, y, dr = sample(rng), sample(rng), sample(rng)
    _, state = set_on(kernel(device=device), **settings)(x, y, with_state=True)

    graph = float_graph(device, [first, second])
    result = graph({"x": x, "y": y, "dr": dr})

    for secondary, actual in ((False, result.result), (True, result.intermediates[0])):
        backward = gradient_kernel(secondary, device=device)
        scales = (0.5, 2.0) if secondary else (2.0, 0.5)
        if name == "MultiplicationNode":
            backward.primary_scale, backward.secondary_scale = scales
        else:
            sign = -1.0 if secondary and name == "SubtractionNode" else 1.0
            backward.primary_scale = sign * scales[0]
        read = y if secondary != (name == "MultiplicationNode") else x
        assert_same_bytes(actual, backward(dr, read, state))


def test_copies_do_not_run(device, rng):
    node = g.AdditionNode(g.ImageNode("x"), g.NeuronLinearNode(g.ImageNode("y"), 2.0))
    termini = g.NeuronLinearNode(node, 4.0).training_graph(g.ImageNode("dr"))
    graph = float_graph(device, termini, results_are_needed=[False, True])
    x, y, dr = sample(rng), sample(rng), sample(rng)
    assert "no copy" in graph.debug_description

    assert_exact(graph({"x": x, "y": y, "dr": dr}).intermediates[0], 8 * dr)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_sums_check_a_gradient_from_outside(device, rng, scale):
    """Also where the gradients are not returned, but added up."""
    source = g.ImageNode("x")
    node = g.AdditionNode(source, source)
    node.primary_scale = node.secondary_scale = scale
    graph = float_graph(device, node.training_graph(g.ImageNode("dr")))
    x, dr = sample(rng), sample(rng)
    assert_exact(graph({"x": x, "dr": dr}).result, 2 * scale * dr)
    with pytest.raises(ValueError, match="source_gradient is"):
        graph({"x": x, "dr": np.ones((*x.shape[:-3], 3, 2, 8), np.float32)})


class ToTheRight(mg.Padding):
    """Reads the first source one column to the right."""

    def padding_method(self):
        return mg.PaddingMethod.CUSTOM

    def destination_descriptor(self, sources, states, kernel, suggested):  # noqa: ARG002
        kernel.primary_offset = (1, 0, 0)
        return suggested


@pytest.mark.parametrize("cls", [g.AdditionNode, g.SubtractionNode])
@pytest.mark.parametrize("returned", [False, True])
def test_sums_with_a_policy_have_gradients_of_their_own(device, cls, returned):
    p = g.NeuronLinearNode(g.ImageNode("x"), 1.0)
    node = cls(p, g.ImageNode("y"))
    node.padding_policy = ToTheRight()
    top = g.NeuronLinearNode(node, 1.0)
    termini = top.training_graph(g.ImageNode("dr"))
    (dx,) = (each for each in termini if isinstance(each, g.NeuronGradientNode))
    of_p = dx._sources[0]._producer
    results = [dx, of_p] if returned else [dx]
    graph = float_graph(device, results)
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    result = graph({"x": x, "y": x, "dr": x + 1})
    assert result.result.ravel().tolist() == [0, 1, 2, 3]


def test_dilated_nodes_read_zeros_beyond_the_edges(device):
    graph = float_graph(device, [g.DilatedPoolingMaxNode(g.ImageNode("x"), 2, 1, 2)])
    x = -np.arange(1, 10, dtype=np.float32).reshape(1, 3, 3, 1)
    kernel = mg.DilatedPoolingMax(2, 2, 2, 2, 1, 1, device=device)
    assert kernel.edge_mode == mg.EdgeMode.ZERO
    assert_same_bytes(graph({"x": x}).result, kernel(x))


def test_misspelt_settings(device):
    x = g.ImageNode("x")
    node = g.SpatialNormalizationNode(x, 3)
    graph = float_graph(device, [node])
    for owner, name, words in (
        (graph, "formatt", "Graph has no attribute 'formatt'; did you mean 'format'"),
        (x, "stop_gradients", "did you mean 'stop_gradient'"),
        (node, "alphas", "SpatialNormalizationNode has no attribute 'alphas'"),
        (node.result_state, "exported_from_graph", "did you mean 'export_from_graph'"),
    ):
        with pytest.raises(AttributeError, match=words):
            setattr(owner, name, 1)
    node.alpha = 2.0


@pytest.mark.parametrize("name", ["AdditionNode", "SubtractionNode", "MultiplicationNode"])
@pytest.mark.parametrize("limit", [{"minimum_value": 0.0}, {"maximum_value": 6.0}])
def test_gradients_of_limited_nodes_warn_on_metal(device, name, limit):
    node = set_on(getattr(g, name)(g.ImageNode("x"), g.ImageNode("y")), **limit)
    termini = node.gradient_filters(g.ImageNode("dr"))
    float_graph(device, [node])  # and by itself nowhere
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        float_graph(device, termini[:1])
    assert len(caught) == (device.kind == "metal")
    for warning in caught:
        assert warning.category is RuntimeWarning
        assert str(warning.message).startswith(f"Graph: {name} limits its result; whether")
        assert warning.filename == __file__


@pytest.mark.parametrize("classes", [1, 8])
def test_smoothing_over_another_number_of_classes_warns_once(device, classes):
    smooth = mg.LossDescriptor(
        mg.LossType.SOFT_MAX_CROSS_ENTROPY,
        mg.ReductionType.SUM,
        label_smoothing=0.5,
        number_of_classes=classes,
    )
    x, t = g.ImageNode("x"), g.ImageNode("t")
    values = np.ones(X, np.float32)
    for node, inputs, words in (
        (g.LossNode(x, smooth), (values, values), "Loss: label_smoothing"),
        (
            g.ForwardLossNode(x, t, loss_descriptor=smooth),
            ({"x": values, "t": values},),
            "ForwardLoss: label_smoothing",
        ),
    ):
        graph = float_graph(device, [node])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph(*inputs)
            graph(*inputs)
        assert [str(one.message)[: len(words)] for one in caught] == [words] * (classes == 1)


@pytest.mark.filterwarnings(UNMEASURED)
def test_limited_sums_have_gradients_of_their_own(device, rng):
    node = set_on(g.AdditionNode(g.ImageNode("x"), g.ImageNode("y")), minimum_value=0.0)
    termini = node.training_graph(g.ImageNode("dr"))
    x, y, dr = sample(rng), sample(rng), sample(rng)

    result = float_graph(device, termini)({"x": x, "y": y, "dr": dr})
    doubled = [g.NeuronLinearNode(terminus, 2.0) for terminus in termini]
    inner = float_graph(device, doubled)({"x": x, "y": y, "dr": dr})

    masked = np.where(x + y > 0, dr, np.float32(0))
    for actual in (result.result, *result.intermediates):
        assert_exact(actual, masked)
    for actual in (inner.result, *inner.intermediates):
        assert_exact(actual, 2 * masked)


def test_broadcast_sums_have_gradients_of_their_own(device, rng):
    node = g.AdditionNode(g.ImageNode("x"), g.ImageNode("y"))
    set_on(node, secondary_stride_in_pixels_x=0, secondary_stride_in_pixels_y=0)
    termini = node.training_graph(g.ImageNode("dr"))
    x = rng.integers(-8, 9, X).astype(np.float32)
    y, dr = x[:, :1, :1], x[:, ::-1]

    doubled = [g.NeuronLinearNode(terminus, 2.0) for terminus in termini]
    result = float_graph(device, doubled)({"x": x, "y": y, "dr": dr})

    assert_exact(result.result, 2 * dr)
    assert_exact(result.intermediates[0], 2 * dr.sum((1, 2), keepdims=True))


@pytest.mark.parametrize("flags", g.BatchNormalizationFlags)
@pytest.mark.parametrize("training", [False, True])
def test_batch_normalization(device, rng, flags, training):
    def source():
        return mg.ArrayBatchNormalizationDataSource(
            *(np.linspace(low, 1, 8) for low in (0.5, -1, -0.5, 0.25)), epsilon=0.01
        )

    node = set_on(g.BatchNormalizationNode(g.ImageNode("x"), source()), flags=flags)
    x, dy = sample(rng), sample(rng)
    kernel = mg.BatchNormalization(source(), device=device)
    y, state = kernel(x, with_state=True)
    never, always = flags == 2, flags == 1
    if not training:
        result = float_graph(device, [node])(x).result
        assert_same_bytes(result, y if always else kernel(x))
        return
    terminus = node.gradient_filter(g.ImageNode("dy"))
    if never:
        with pytest.raises(mg.errors.GraphError, match="CALCULATE_STATISTICS_NEVER"):
            float_graph(device, [node, terminus])
        return
    result = float_graph(device, [node, terminus])({"x": x, "dy": dy})
    assert_same_bytes(result.result, y)
    mg.BatchNormalizationStatisticsGradient(device=device)(dy, x, state)
    assert_same_bytes(
        result.intermediates[0], mg.BatchNormalizationGradient(device=device)(dy, x, state)
    )


@pytest.mark.parametrize("channels", [(1, 1), (7, 11), (4, 8), (3,), (5, 1, 2)])
def test_concatenation(device, rng, channels):
    nodes = [g.ImageNode(f"x{i}") for i in range(len(channels))]
    node = g.ConcatenationNode(nodes)
    gradients = node.gradient_filters(g.ImageNode("dr"))
    images = {n.handle: sample(rng, (2, 3, 2, c)) for n, c in zip(nodes, channels, strict=True)}
    starts = np.cumsum([0, *(-(-c // 4) * 4 for c in channels)])
    expected = np.zeros((2, 3, 2, starts[-1]), np.float32)
    for start, image in zip(starts, images.values(), strict=False):
        expected[..., start : start + image.shape[-1]] = image
    dr = sample(rng, expected.shape)

    result = float_graph(device, [node, *gradients])({**images, "dr": dr})

    assert_exact(result.result, expected)
    for start, count, actual in zip(starts, channels, result.intermediates, strict=False):
        assert_exact(actual, dr[..., start : start + count])


def test_the_state_of_a_concatenation_stays_inside(device):
    node = g.ConcatenationNode([g.ImageNode()])
    node.result_state.export_from_graph = True
    with pytest.raises(mg.errors.UnsupportedError, match="its state cannot be exported"):
        g.Graph(device, node)


def test_concatenation_of_one_image_twice(device, rng):
    x = g.ImageNode("x")
    node = g.ConcatenationNode([x, x])
    assert len(node.gradient_filters(g.ImageNode("dr"))) == 2
    (sum_of_both,) = node.training_graph(g.ImageNode("dr"))
    assert isinstance(sum_of_both, g.AdditionNode)
    dr = rng.integers(-8, 9, (1, 2, 2, 8)).astype(np.float32)

    result = float_graph(device, [sum_of_both])({"x": sample(rng, (1, 2, 2, 3)), "dr": dr})

    assert_exact(result.result, dr[..., :3] + dr[..., 4:7])


def test_reshape(device, rng):
    node = g.ReshapeNode(g.ImageNode("x"), 8, 1, 16)
    (terminus,) = node.training_graph(g.ImageNode("dy"))
    x, dy = sample(rng), sample(rng, (2, 1, 8, 16))

    result = float_graph(device, [node, terminus])({"x": x, "dy": dy})

    assert_exact(result.result, x.reshape(2, 1, 8, 16))
    assert_exact(result.intermediates[0], dy.reshape(X))


def test_spatial_mean(device, rng):
    node = g.ReductionSpatialMeanNode(g.ImageNode("x"))
    (terminus,) = node.training_graph(g.ImageNode("dy"))
    graph = float_graph(device, [node, terminus])
    for shape in ((2, 4, 8, 5), (1, 2, 2, 3)):  # sizes may change between encodes
        x = rng.integers(-9, 10, shape).astype(np.float32)
        dy = rng.integers(-9, 10, (shape[0], 1, 1, shape[-1])).astype(np.float32)

        result = graph({"x": x, "dy": dy})

        assert_exact(result.result, x.mean(axis=(1, 2), keepdims=True))
        pixels = shape[1] * shape[2]
        assert_exact(result.intermediates[0], np.broadcast_to(dy / pixels, shape))


def test_spatial_mean_of_a_part_is_refused(device):
    node = g.ReductionSpatialMeanNode(g.ImageNode())
    node.clip_rect_source = mg.Region((0, 0), (1, 1))
    with pytest.raises(mg.errors.UnsupportedError, match="clip_rect_source"):
        g.Graph(device, node)


def test_loss(device, rng):
    node = loss_of(g.ImageNode("x"), 0.5)
    x, labels = sample(rng), sample(rng)

    result = float_graph(device, [node])(x, labels)

    gradient, losses = mg.Loss(node.loss_descriptor, device=device)(x, labels)
    assert_same_bytes(result.result, gradient)
    assert_same_bytes(result.losses["labels"].reshape(-1), losses)


def test_loss_of_object_detection(device, rng):
    node = g.YOLOLossNode(g.ImageNode("x"), YOLO)
    x = sample(rng, (2, 3, 3, 14))
    labels = np.abs(sample(rng, x.shape)) + np.float32(0.5)

    result = float_graph(device, [node])(x, labels)

    gradient, losses = mg.YOLOLoss(YOLO, device=device)(x, labels)
    assert_same_bytes(result.result, gradient)
    assert_same_bytes(result.losses[0].reshape(-1), losses)
    with pytest.raises(TypeError, match="loss_descriptor must be a YOLOLossDescriptor, got Loss"):
        g.YOLOLossNode(g.ImageNode(), LOSS)


@pytest.mark.parametrize("weighted", [False, True])
def test_forward_loss_and_both_gradients(device, rng, weighted):
    images = {name: sample(rng) for name in ("x", "t", "w")[: 3 if weighted else 2]}
    node = g.ForwardLossNode(*(g.ImageNode(name) for name in images), loss_descriptor=LOSS)
    assert node.loss_type == mg.LossType.HUBER
    assert node.delta == 0.5
    termini = g.InitialGradientNode(node).training_graph()
    assert [t.is_labels_gradient_filter for t in termini] == [False, True]

    result = float_graph(device, [node, *termini])(images)

    forward = mg.ForwardLoss(LOSS, device=device)
    assert_same_bytes(result.result.reshape(-1), forward(*images.values()))
    ones = np.ones(2, np.float32)
    for by_labels, actual in zip((False, True), result.intermediates, strict=True):
        kernel = mg.LossGradient(LOSS, compute_label_gradients=by_labels, device=device)
        x, t, *w = images.values()
        assert_same_bytes(actual, kernel(ones, x, t, *w))


def test_transpose_undoes_a_convolution(device, rng):
    """Sizes that a stride loses come back through the state."""
    descriptor = mg.ConvolutionDescriptor(
        3,
        3,
        input_feature_channels=8,
        output_feature_channels=8,
        stride_in_pixels_x=2,
        stride_in_pixels_y=2,
    )
    values = np.random.default_rng(3).standard_normal((8, 3, 3, 8)).astype(np.float32)
    source = mg.ArrayConvolutionDataSource(values, descriptor=descriptor)
    x = sample(rng, (2, 5, 4, 8))
    narrow = g.ConvolutionNode(g.ImageNode("x"), source)
    node = g.ConvolutionTransposeNode(narrow, source, narrow.convolution_gradient_state)

    result = float_graph(device, [node])(x).result

    y, state = mg.Convolution(source, device=device)(x, with_state=True)
    kernel = mg.ConvolutionTranspose(source, device=device)
    assert_same_bytes(result, kernel(y, convolution_gradient_state=state))
    assert result.shape == x.shape


# ---- defaults

NODE = g.ImageNode("x")
TRAINED = {"training_style": g.TrainingStyle.GPU}
CONVOLUTION = TRAINED | {"accumulator_precision": mg.ConvolutionAccumulatorPrecision.FLOAT}
POOLING = dict.fromkeys(
    ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y"), 3
)
PIXELS = {"kernel_width": 5, "kernel_height": 5}
LOCAL = {"alpha": 1.0, "beta": 5.0, "delta": 1.0}
LARGEST = float(np.finfo(np.float32).max)
STRIDES = [
    f"{source}_stride_in_{axis}"
    for source in ("primary", "secondary")
    for axis in ("pixels_x", "pixels_y", "feature_channels")
]
ARITHMETIC = {
    "primary_scale": 1.0,
    "secondary_scale": 1.0,
    "bias": 0.0,
    "minimum_value": -LARGEST,
    "maximum_value": LARGEST,
    **dict.fromkeys(STRIDES, 1),
}
REDUCTION = {"clip_rect_source": mg.NO_CLIP}


def numbers(*values):
    """The first of a, b and c, as float32 holds them."""
    return dict(zip("abc", np.float32(values).tolist(), strict=False))


# What follows the first source in a node with as few arguments as it takes, and its settings then.
DEFAULTS = {
    "ConvolutionNode": ([weights()], CONVOLUTION),
    "FullyConnectedNode": ([weights()], CONVOLUTION),
    "ConvolutionTransposeNode": ([weights()], CONVOLUTION),
    **dict.fromkeys(
        (f"Neuron{f}Node" for f in ("Absolute", "Sigmoid", "SoftSign", "GeLU")), ([], {})
    ),
    "NeuronReLUNode": ([], numbers(0)),
    "NeuronELUNode": ([], numbers(1)),
    "NeuronReLUNNode": ([], numbers(1, 6)),
    "NeuronLinearNode": ([], numbers(1, 0)),
    "NeuronHardSigmoidNode": ([], numbers(0.2, 0.5)),
    "NeuronSoftPlusNode": ([], numbers(1, 1)),
    "NeuronTanHNode": ([], numbers(1, 1)),
    "NeuronPReLUNode": ([SLOPES], {}),
    "NeuronPowerNode": ([], numbers(1, 0, 1)),
    "NeuronExponentialNode": ([], numbers(1, 0, -1)),
    "NeuronLogarithmNode": ([], numbers(1, 0, -1)),
    "PoolingMaxNode": ([3], POOLING),
    "PoolingAverageNode": ([3], POOLING),
    "PoolingL2NormNode": ([3], POOLING),
    "DilatedPoolingMaxNode": ([3], POOLING | {"dilation_rate_x": 3, "dilation_rate_y": 3}),
    "SpatialNormalizationNode": ([], LOCAL | PIXELS),
    "LocalContrastNormalizationNode": (
        [],
        {"alpha": 1.0, "beta": 0.5, "delta": 2.0**-10, "p0": 1.0, "pm": 0.0, "ps": 1.0, **PIXELS},
    ),
    "CrossChannelNormalizationNode": ([], LOCAL | {"kernel_size_in_feature_channels": 5}),
    "BatchNormalizationNode": (
        [mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=8)],
        TRAINED | {"flags": g.BatchNormalizationFlags.CALCULATE_STATISTICS_AUTOMATIC},
    ),
    "InstanceNormalizationNode": ([instance_source()], TRAINED),
    "GroupNormalizationNode": ([group_source()], TRAINED),
    "DropoutNode": ([], {"keep_probability": 0.5, "seed": 0, "mask_stride_in_pixels": (1, 1, 1)}),
    "SoftMaxNode": ([], {}),
    "LogSoftMaxNode": ([], {}),
    "UpsamplingNearestNode": ([2, 3], {}),
    "UpsamplingBilinearNode": ([2, 3], {"align_corners": False}),
    **dict.fromkeys(TWO_SOURCES, ([NODE], ARITHMETIC)),
    "ComparisonNode": ([NODE], ARITHMETIC | {"comparison_type": mg.ComparisonType.EQUAL}),
    "ConcatenationNode": ([], {}),
    **dict.fromkeys((name for name in ONE_SOURCE if "Reduction" in name), ([], REDUCTION)),
    "ReductionFeatureChannelsSumNode": ([], REDUCTION | {"weight": 1.0}),
    "ReductionSpatialMeanNode": ([], REDUCTION),
    "ReshapeNode": ([1, 2, 3], {}),
    "PadNode": ([*PAD.values()], {"edge_mode": mg.EdgeMode.ZERO, "fill_value": 0.0}),
    "GramMatrixCalculationNode": ([], {"alpha": 1.0}),
    "LossNode": ([LOSS], {}),
    "YOLOLossNode": ([YOLO], {}),
    "ForwardLossNode": ([NODE], {}),
    "InitialGradientNode": ([], {}),
}


def test_every_class_of_filter_nodes_has_defaults():
    assert forward_nodes() == {*DEFAULTS}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    """Of the graph chapter, for every setting that a node shows."""
    arguments, settings = DEFAULTS[name]
    source = [NODE] if name == "ConcatenationNode" else NODE
    options = {"loss_descriptor": LOSS} if name == "ForwardLossNode" else {}
    node = getattr(g, name)(source, *arguments, **options)
    assert {setting: getattr(node, setting) for setting in settings} == settings
    assert {setting for setting in vars(node) if not setting.startswith("_")} <= settings.keys()
    assert (node.label, node.padding_policy) == (None, None)


def test_defaults_of_images_and_states():
    node = g.LossNode(NODE, LOSS)
    for image in (g.ImageNode(), node.result_image):
        assert (image.handle, image.format) == (None, mg.ChannelFormat.NONE)
        assert image.image_allocator is mg.TEMPORARY
        flags = image.export_from_graph, image.synchronize_resource, image.stop_gradient
        assert flags == (False, False, False)
    for state in (g.SoftMaxNode(NODE).result_state, node.input_labels):
        assert state.handle is None
        assert (state.export_from_graph, state.synchronize_resource) == (False, False)


# ---- rules

REJECTED = {
    "source": (lambda: g.SoftMaxNode(3), TypeError, "SoftMaxNode: source must be an ImageNode"),
    "right": (lambda: g.AdditionNode(NODE, None), TypeError, "right_source must be an ImageNode"),
    "pair": (lambda: g.AdditionNode.with_sources([NODE]), ValueError, "must be two nodes, got 1"),
    "concatenation": (lambda: g.ConcatenationNode([]), ValueError, "at least one node, got none"),
    "one node": (lambda: g.ConcatenationNode(NODE), TypeError, "must be a list of nodes"),
    "loss sources": (
        lambda: g.ForwardLossNode.with_sources([NODE], loss_descriptor=LOSS),
        ValueError,
        "predictions, labels and perhaps weights, got 1",
    ),
    "descriptor": (lambda: g.LossNode(NODE, None), TypeError, "loss_descriptor must be a LossDesc"),
    "weights": (lambda: g.ConvolutionNode(NODE, 3), TypeError, "weights must be a ConvolutionData"),
    "data source": (lambda: g.GroupNormalizationNode(NODE, 3), TypeError, "data_source must be"),
    "handle": (lambda: g.ImageNode([]), TypeError, "handle must be hashable, got a list"),
    "label": (lambda: g.SoftMaxNode(NODE, label=3), TypeError, "label must be a str or None"),
    "state": (g.GradientStateNode, TypeError, "GradientStateNode is made by a filter node"),
    "labels": (g.LabelsNode, TypeError, "LabelsNode is made by a filter node"),
    "style": (
        lambda: set_on(g.ConvolutionNode(NODE, weights()), training_style=3),
        ValueError,
        "training_style must be a TrainingStyle, got 3",
    ),
    "flags": (
        lambda: set_on(
            g.BatchNormalizationNode(
                NODE, mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=1)
            ),
            flags=3,
        ),
        ValueError,
        "flags must be one of BatchNormalizationFlags, got 3",
    ),
    "allocator": (lambda: set_on(g.ImageNode(), image_allocator=3), TypeError, "image_allocator"),
    "padding": (lambda: set_on(g.SoftMaxNode(NODE), padding_policy=1), TypeError, "padding_policy"),
    "two gradients": (
        lambda: g.AdditionNode(NODE, NODE).gradient_filter(NODE),
        TypeError,
        "AdditionNode has 2 gradient nodes; use gradient_filters",
    ),
    "slices": (
        lambda: g.ConcatenationNode([NODE]).gradient_filter(NODE),
        TypeError,
        "use gradient_filters",
    ),
    "of a loss": (
        lambda: loss_of(NODE).gradient_filter(NODE),
        TypeError,
        "already is the gradient",
    ),
    "of the start": (
        lambda: g.InitialGradientNode(NODE).gradient_filters(NODE),
        TypeError,
        "already is the gradient",
    ),
    "of a gradient": (
        lambda: g.SoftMaxNode(NODE).gradient_filter(NODE).gradient_filters([NODE]),
        TypeError,
        "no gradients of gradients",
    ),
    "division": (
        lambda: g.DivisionNode(NODE, NODE).gradient_filters(NODE),
        mg.errors.GradientUnavailableError,
        "DivisionNode has no gradient, Apple has no such class",
    ),
    "sources": (
        lambda: g.SoftMaxNode(NODE).gradient_filter([NODE, NODE]),
        ValueError,
        "takes one source, as there is one result, got 2",
    ),
    "no window": (lambda: g.PoolingMaxNode(NODE), TypeError, "filter_size, or kernel_width and"),
    "two windows": (
        lambda: g.PoolingMaxNode(NODE, 2, kernel_width=2),
        TypeError,
        "either filter_size, or kernel_width",
    ),
    "two strides": (
        lambda: g.PoolingMaxNode(NODE, 2, 2, stride_in_pixels_x=1),
        TypeError,
        "either stride, or strides in x and y",
    ),
    "neuron": (
        lambda: g.NeuronNode.with_descriptor(NODE, mg.NeuronDescriptor(mg.NeuronType.NONE)),
        ValueError,
        "no such node for NeuronType.NONE",
    ),
    "no state of it": (
        lambda: g.ConvolutionTransposeNode(NODE, weights(), NODE),
        TypeError,
        "convolution_gradient_state must be a ConvolutionGradientStateNode, got ImageNode",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(make, error, words):
    with pytest.raises(error, match=re.escape(words)):
        make()


def pointwise(cls=mg.ConvolutionDescriptor, **settings):
    return cls(1, 1, input_feature_channels=4, output_feature_channels=4, **settings)


def folded(*parameters):
    d = pointwise()
    d.set_batch_normalization_parameters_for_inference(*parameters, 0.5)
    return d


UNTRAINABLE = {
    "fused neuron": (
        lambda: pointwise(fused_neuron_descriptor=neuron("RELU")),
        "a fused neuron, which must be a node of its own",
    ),
    **{
        f"folded, given {name}": (
            lambda place=place: folded(*(np.ones(4) if i == place else None for i in range(4))),
            "batch normalization parameters, which must be a node of their own",
        )
        for place, name in enumerate(("mean", "variance", "gamma", "beta"))
    },
    "sub-pixel": (
        lambda: pointwise(mg.SubPixelConvolutionDescriptor, sub_pixel_scale_factor=2),
        "sub_pixel_scale_factor 2",
    ),
}


@pytest.mark.parametrize("style", g.TrainingStyle)
@pytest.mark.parametrize("name", ["Convolution", "FullyConnected", "ConvolutionTranspose"])
@pytest.mark.parametrize(("make", "what"), UNTRAINABLE.values(), ids=UNTRAINABLE)
def test_untrainable_nodes_have_no_gradient_whatever_their_style(make, what, name, style):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 4), np.float32), descriptor=make())
    node = getattr(g, f"{name}Node")(NODE, source)
    node.training_style = style
    words = f"{name}Node: its descriptor has {what}, so it has no gradient"
    for refused in (node.gradient_filter, node.training_graph):
        with rejects(mg.errors.GraphError, words):
            refused(NODE)


def test_a_gradient_made_by_hand_must_be_that_of_its_forward_node():
    x, dy = g.ImageNode("x"), g.ImageNode("dy")
    node = g.PoolingMaxNode(x, 2)
    state = node.result_state
    made = g.PoolingMaxGradientNode(dy, x, state, kernel_width=2, stride_in_pixels_y=2)
    assert made.source_images == (dy, x)
    assert made.kernel_height == 2
    with pytest.raises(ValueError, match="kernel_width must be that of PoolingMaxNode, 2, got 3"):
        g.PoolingMaxGradientNode(dy, x, state, kernel_width=3)
    with pytest.raises(ValueError, match="source_image must be"):
        g.PoolingMaxGradientNode(dy, dy, state)
    with pytest.raises(TypeError, match="must be of a node whose gradient this is"):
        g.PoolingAverageGradientNode(dy, x, state)
    with pytest.raises(TypeError, match="there is no parameter 'size'"):
        g.PoolingMaxGradientNode(dy, x, state, size=2)
    with pytest.raises(TypeError, match="gradient_state must be a StateNode, got ImageNode"):
        g.PoolingMaxGradientNode(dy, x, x)
    convolution = g.ConvolutionNode(x, weights())
    with pytest.raises(ValueError, match="weights must be None or the data source"):
        g.ConvolutionGradientNode(dy, x, convolution.result_state, weights())
    softmax = g.SoftMaxNode(x)
    assert g.SoftMaxGradientNode(dy, softmax, softmax.result_state).source_images[1] is (
        softmax.result_image
    )
    product = g.MultiplicationNode(x, dy)
    other = g.MultiplicationGradientNode(dy, x, product.result_state, True)
    assert other.is_secondary_source_filter
    assert (
        g.MultiplicationGradientNode.from_forward([dy, dy], product, False).source_images[1] is dy
    )
    loss = g.ForwardLossNode(x, dy, loss_descriptor=LOSS)
    with pytest.raises(ValueError, match="labels and weights must be those"):
        g.LossGradientNode(dy, x, x, gradient_state=loss.result_state)
    other = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.NONE)
    given = {"gradient_state": loss.result_state}
    assert g.LossGradientNode(dy, x, dy, loss_descriptor=LOSS, **given).forward_node is loss
    with pytest.raises(ValueError, match="loss_descriptor must be that of ForwardLossNode"):
        g.LossGradientNode(dy, x, dy, loss_descriptor=other, **given)


@pytest.mark.parametrize(
    ("cls", "gradient", "names"),
    [
        (g.SpatialNormalizationNode, g.SpatialNormalizationGradientNode, "alpha beta delta"),
        (
            g.LocalContrastNormalizationNode,
            g.LocalContrastNormalizationGradientNode,
            "alpha beta delta pm ps p0",
        ),
        (g.CrossChannelNormalizationNode, g.CrossChannelNormalizationGradientNode, ""),
    ],
)
def test_gradients_of_local_normalizations_show_what_the_forward_node_has(cls, gradient, names):
    x, dy = g.ImageNode("x"), g.ImageNode("dy")
    node = cls(x, 3)
    for i, name in enumerate(names.split()):
        setattr(node, name, 0.25 + i)
    size = {} if cls is g.LocalContrastNormalizationNode else {"kernel_size": 3}
    made = gradient(dy, x, node.result_state, **size)
    for name in names.split():
        assert getattr(made, name) == getattr(node, name)
        with pytest.raises(AttributeError, match=f"{name} is read-only"):
            setattr(made, name, 1.0)
    if cls is g.CrossChannelNormalizationNode:
        assert made.kernel_size == 3
    else:
        assert (made.kernel_width, made.kernel_height) == (3, 3)
    if size:
        with pytest.raises(ValueError, match=f"kernel_size must be that of {cls.__name__}, 3"):
            gradient(dy, x, node.result_state, kernel_size=5)


def test_pooling_gradients_take_a_policy():
    x, dy = g.ImageNode("x"), g.ImageNode("dy")
    node = g.PoolingMaxNode(x, 2)
    policy = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    made = g.PoolingMaxGradientNode(dy, x, node.result_state, padding_policy=policy)
    assert made.padding_policy is policy
    usual = g.PoolingMaxGradientNode(dy, x, node.result_state, padding_policy=None)
    assert usual.padding_policy is None
    with pytest.raises(TypeError, match="padding_policy must be a Padding"):
        g.PoolingMaxGradientNode(dy, x, node.result_state, padding_policy=3)
    dilated = g.DilatedPoolingMaxNode(x, 2, 1, 3)
    assert g.DilatedPoolingMaxGradientNode(dy, x, dilated.result_state).dilation_rate_y == 3
    with pytest.raises(TypeError, match="there is no parameter 'padding_policy'"):
        g.DilatedPoolingMaxGradientNode(dy, x, dilated.result_state, padding_policy=policy)


def test_nodes_keep_one_result_and_show_what_they_are():
    x = g.ImageNode("x")
    node = g.PoolingMaxNode(x, 3, 2, label="pool")
    assert node.result_image is node.result_image
    assert node.result_image.producer is node
    assert node.result_states == [node.result_state]
    assert repr(node) == (
        "PoolingMaxNode(kernel_width=3, kernel_height=3, stride_in_pixels_x=2, "
        "stride_in_pixels_y=2, label='pool')"
    )
    assert repr(x) == "ImageNode('x')"
    assert repr(g.ImageNode()) == "ImageNode()"
    assert repr(node.result_image) == f"<ImageNode, result of {node!r}>"
    assert "GradientStateNode of PoolingMaxNode" in repr(node.result_state)
    assert repr(node.gradient_filter(x)) == f"PoolingMaxGradientNode(of {node!r})"
    total = set_on(g.AdditionNode(x, x), primary_scale=2.0, secondary_stride_in_pixels_x=0)
    assert repr(total) == "AdditionNode(primary_scale=2.0, secondary_stride_in_pixels_x=0)"


def test_exported_images():
    node = g.ImageNode.exported("x")
    assert node.export_from_graph
    assert node.image_allocator is mg.TEMPORARY
    assert node.export() is node
    assert node.image_allocator is mg.DEFAULT
    assert node.synchronize_resource


def test_nodes_pickle():
    x = g.ImageNode("x")
    node = g.NeuronReLUNode(g.ConvolutionNode(x, weights()), 0.5, label="relu")
    again = pickle.loads(pickle.dumps(node))
    assert repr(again) == repr(node)
    assert again.source_images[0].producer.source_images[0].handle == "x"
    assert again.source_images[0].producer.result_image is again.source_images[0]


def test_what_a_kernel_refuses_names_the_node(device):
    x = g.ImageNode("x")
    for node, error, words in (
        (g.PoolingMaxNode(x, (2, 2)), TypeError, "PoolingMaxNode: PoolingMax: kernel_width must"),
        (g.DropoutNode(x, 1.0, label="d"), ValueError, "DropoutNode 'd': Dropout: keep_probabili"),
        (g.SpatialNormalizationNode(x, "3"), TypeError, "SpatialNormalizationNode: Spatial"),
    ):
        with rejects(error, words):
            g.Graph(device, node)
    with rejects(TypeError, "ImageNode: format must be a ChannelFormat, got str"):
        x.format = "float32"
    assert x.format == mg.ChannelFormat.NONE
    weights = np.ones((1, 1, 1, 1), np.float32)
    with rejects(TypeError, "optimizer must be an Optimizer, got the class Adam"):
        mg.ArrayConvolutionDataSource(weights, optimizer=mg.Adam)


def test_messages_about_a_shared_constructor_name_the_class():
    nodes = {
        name: cls
        for name, cls in vars(g).items()
        if isinstance(cls, type) and issubclass(cls, g.FilterNode) and not cls._is_abstract()
    }
    assert len(nodes) > 80
    for name, cls in nodes.items():
        with pytest.raises(TypeError, match=rf"^{name}: .* missing; it takes \("):
            cls()
