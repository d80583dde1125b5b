"""`repr` of kernels, even of those whose constructor raised, and wrong attributes and arguments."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.rejects import rejects


def test_a_kernel_shows_its_parameters(device):
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU, 0.5), device=device)
    kind = device.kind
    expected = (
        f"Neuron(descriptor=NeuronDescriptor(NeuronType.RELU, a=0.5, b=0, c=0), device={kind!r})"
    )
    assert repr(kernel) == expected


def test_a_kernel_without_a_constructor_call_can_be_shown():
    assert repr(mg.Neuron.__new__(mg.Neuron)) == "<Neuron that was never constructed>"


def test_a_misspelt_setting_is_an_error():
    pool = mg.PoolingMax(2, 2, device="cpu")
    with pytest.raises(AttributeError, match="'paddings'; did you mean 'padding'"):
        pool.paddings = mg.DefaultPadding(0)
    descriptors = {
        "lable_smoothing": mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM),
        "dilation_x": mg.ConvolutionDescriptor(
            1, 1, input_feature_channels=1, output_feature_channels=1
        ),
        "learning_rat": mg.OptimizerDescriptor(0.1),
        "slope": mg.NeuronDescriptor(mg.NeuronType.RELU),
    }
    for name, descriptor in descriptors.items():
        with pytest.raises(AttributeError, match=f"Descriptor has no attribute '{name}'"):
            setattr(descriptor, name, 0.1)


def test_numbers_of_float32_are_short():
    adam = mg.Adam(0.1, beta1=0.9, epsilon=1e-8, device="cpu")
    assert "beta1=0.9," in repr(adam)
    assert "epsilon=1e-08" in repr(adam)
    huber = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM, weight=0.1, delta=0.3)
    assert repr(huber).endswith("weight=0.1, delta=0.3)")
    clipped = mg.OptimizerDescriptor(
        1e-3,
        apply_gradient_clipping=True,
        gradient_clip_min=-0.1,
        gradient_clip_max=0.1,
        regularization_type=mg.RegularizationType.L2,
        regularization_scale=1e-4,
    )
    assert repr(clipped) == (
        "OptimizerDescriptor(0.001, apply_gradient_clipping=True, gradient_clip_max=0.1, "
        "gradient_clip_min=-0.1, regularization_type=RegularizationType.L2, "
        "regularization_scale=0.0001)"
    )
    assert "momentum_scale=0.9," in repr(mg.SGD(0.1, momentum_scale=0.9, device="cpu"))


def test_settings_that_cannot_be_set():
    dropout = mg.Dropout(0.5, seed=1, device="cpu")
    with pytest.raises(AttributeError, match=r"Dropout\.seed is read-only"):
        dropout.seed = 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MPSCNNPoolingMaxGradient", "PoolingMaxGradient"),
        ("MPSNNOptimizerAdam", "Adam"),
        ("Softmax", "SoftMax"),
        ("MPSImage", "Image"),
        ("PoolingMaxx", "PoolingMax"),
        ("ConvolutionNode", "mpsgrad.graph.ConvolutionNode"),
        ("MPSNNGraph", "mpsgrad.graph.Graph"),
        ("Graph", "mpsgrad.graph.Graph"),
        ("linear", None),
        ("qqq", None),
    ],
)
def test_unknown_names(name, meant):
    asked = f"; did you mean {meant!r}?" if meant else ""
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}{asked}") + "$"):
        getattr(mg, name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MPSNNGraph", "Graph"),
        ("MPSCNNConvolutionNode", "ConvolutionNode"),
        ("ReLUNode", "NeuronReLUNode"),
        ("qqq", None),
    ],
)
def test_unknown_names_of_the_graph_module(name, meant):
    asked = f"; did you mean {meant!r}?" if meant else ""
    words = f"module 'mpsgrad.graph' has no attribute {name!r}{asked}"
    with pytest.raises(AttributeError, match=re.escape(words) + "$"):
        getattr(mg.graph, name)


def test_subclasses_may_have_keywords():
    class Tagged:
        def __init_subclass__(cls, *, tag=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.tag = tag

    class Source(mg.ArrayConvolutionDataSource, Tagged, tag=3):
        pass

    class Graph(mg.graph.Graph, Tagged, tag=4):
        pass

    class Pooling(mg.PoolingMax, Tagged, tag=5):
        pass

    assert (Source.tag, Graph.tag, Pooling.tag) == (3, 4, 5)


def test_names_of_pytorch():
    with rejects(AttributeError, "has no attribute 'Conv2d'; PyTorch's Conv2d is Convolution here"):
        _ = mg.Conv2d
    with rejects(AttributeError, "PyTorch's ReLU is Neuron, of NeuronType.RELU, here"):
        _ = mg.ReLU


@pytest.mark.parametrize(
    ("cls", "name", "meant"),
    [
        (mg.NeuronType, "ReLU", "RELU"),
        (mg.LossType, "MeanSquaredError", "MEAN_SQUARED_ERROR"),
        (mg.DataType, "Float32", "FLOAT32"),
        (mg.EdgeMode, "qqq", None),
        (mg.LossType, "CROSS_ENTROPY", None),
    ],
)
def test_unknown_members(cls, name, meant):
    asked = f"; did you mean {meant!r}?" if meant else f"; it has {', '.join(cls.__members__)}"
    with pytest.raises(AttributeError, match=re.escape(f"no member {name!r}{asked}") + "$"):
        getattr(cls, name)
    assert not hasattr(cls, "__qqq__")


def test_names_that_are_shown():
    names = dir(mg)
    assert set(mg.__all__) <= set(names)
    assert all(name in mg.__all__ or name.startswith("__") for name in names)


def test_a_class_of_ones_own_may_have_more():
    class Named(mg.PoolingMax):
        pass

    kernel = Named(2, 2, device="cpu")
    kernel.place = "first"
    assert kernel.place == "first"


def test_a_setter_names_class_attribute_and_types():
    pool = mg.PoolingMax(2, 2, device="cpu")
    image = mg.Image(mg.Device("cpu"), mg.ImageDescriptor(width=1, height=1, feature_channels=1))
    neuron = mg.NeuronDescriptor(mg.NeuronType.RELU)
    weights = mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1), np.float32))
    convolution = mg.ConvolutionGradient(weights, device="cpu")
    for owner, name, value, words in (
        (pool, "padding", (1, 1), "PoolingMax.padding must be a Padding, got tuple"),
        (pool, "edge_mode", "zero", "PoolingMax.edge_mode must be an EdgeMode, got str"),
        (pool, "source_feature_channel_offset", 2.5, "channel_offset must be an int, got float"),
        (pool, "source_feature_channel_offset", 2**70, f"channel_offset is out of range: {2**70}"),
        (image, "label", 3, "Image.label must be a str, got int"),
        (
            mg.Adam(0.1, device="cpu"),
            "learning_rate",
            np.array([0.1]),
            "Adam.learning_rate must be a float, got ndarray of float64",
        ),
        (
            neuron,
            "data",
            ("a", "b"),
            r"NeuronDescriptor.data must be a Sequence\[float\], got tuple",
        ),
        (convolution, "gradient_option", 2**31, f"gradient_option is out of range: {2**31}"),
        (pool, "offset", (0.5, 0.5), r"three integers of 64 bits, got \(0.5, 0.5\)"),
        (pool, "offset", (1,), "must be an Offset, or two or three integers"),
        (neuron, "a", None, "NeuronDescriptor.a must be a float, got NoneType"),
        (neuron, "data", 3, r"NeuronDescriptor.data must be a Sequence\[float\], got int"),
    ):
        before = getattr(owner, name)
        with pytest.raises(error_of(words), match=words):
            setattr(owner, name, value)
        assert getattr(owner, name) == before


def error_of(words):
    """Return the class of an error with these words: a number out of range is a bad value."""
    return ValueError if "out of range" in words else TypeError


IMAGE = mg.ImageDescriptor(width=1, height=1, feature_channels=1)
ARRAY = np.ones((2, 3, 4), np.float32)
WRONG = {
    "enumeration": (
        lambda: mg.LossDescriptor("HUBER", mg.ReductionType.SUM),
        "LossDescriptor: loss_type must be a LossType, got str",
    ),
    "integer": (
        lambda: mg.PoolingMax(2.0, 2, device="cpu"),
        "PoolingMax: kernel_width must be an int, got float",
    ),
    "large": (
        lambda: mg.PoolingMax(2, 2**70, device="cpu"),
        f"PoolingMax: kernel_height is out of range: {2**70}",
    ),
    "large number": (
        lambda: mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM, delta=10**400),
        f"LossDescriptor: delta is out of range: {10**400}",
    ),
    "large number or None": (
        lambda: mg.OptimizerDescriptor(0.1, gradient_clip_max=10**400),
        f"OptimizerDescriptor: gradient_clip_max is out of range: {10**400}",
    ),
    "number": (
        lambda: mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM, delta=None),
        "LossDescriptor: delta must be a float, got NoneType",
    ),
    "text": (
        lambda: mg.ConvolutionDescriptor(
            "3", 3, input_feature_channels=1, output_feature_channels=1
        ),
        "ConvolutionDescriptor: kernel_width must be an int, got str",
    ),
    "class": (
        lambda: mg.Image("cpu", IMAGE),
        "Image: device must be a Device, got str; mg.Device('cpu') is one",
    ),
    "missing": (
        lambda: mg.Image(mg.Device("cpu")),
        "Image: descriptor is missing, which must be an ImageDescriptor",
    ),
    "descriptor": (
        lambda: mg.Neuron(None, device="cpu"),
        "Neuron: descriptor must be a NeuronDescriptor, got NoneType",
    ),
    "sequence": (lambda: mg.Region(3, (1, 1)), "Region: origin must be a Sequence, got int"),
    "too many": (
        lambda: mg.Image(mg.Device("cpu"), IMAGE, 3),
        "Image: takes 2 arguments at most, got 3",
    ),
    "unknown": (
        lambda: mg.Image(mg.Device("cpu"), descriptors=IMAGE),
        "Image: has no argument 'descriptors'; did you mean 'descriptor'?",
    ),
    "several signatures": (
        lambda: mg.Vector(mg.Device("cpu"), 4),
        "Vector: descriptor must be a VectorDescriptor, got int",
    ),
    "one of several signatures": (
        lambda: mg.Vector(mg.Buffer(mg.Device("cpu"), 16), mg.VectorDescriptor(4), "0"),
        "Vector: offset must be an int, got str",
    ),
    "constructor that classes share": (
        lambda: mg.PoolingMax(2, device="cpu"),
        "PoolingMax: kernel_height is missing; it takes (kernel_width, kernel_height, ",
    ),
    "unknown, in Python": (
        lambda: mg.PoolingMax(2, 2, stride=2, device="cpu"),
        "PoolingMax: has no argument 'stride'; it takes (kernel_width, kernel_height, "
        "stride_in_pixels_x=1, stride_in_pixels_y=1, *, device=None)",
    ),
    "misspelt, in Python": (
        lambda: mg.Adam(0.1, beta_1=0.8, device="cpu"),
        "device=None); did you mean 'beta1'?",
    ),
    "too many, in Python": (
        lambda: mg.ConvolutionDescriptor(3, 3, 8, 16),
        "ConvolutionDescriptor: takes at most 2 by place, got 4; it takes "
        "(kernel_width=3, kernel_height=3, *, input_feature_channels, output_feature_channels, ",
    ),
    "given twice, in Python": (
        lambda: mg.SGD(0.1, learning_rate=0.1, device="cpu"),
        "StochasticGradientDescent: learning_rate is given twice",
    ),
    "a subclass by way of its base": (
        lambda: mg.SubPixelConvolutionDescriptor(3, 3, scale=2),
        "SubPixelConvolutionDescriptor: has no argument 'scale'",
    ),
    "data source": (
        lambda: mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1)), bias=None),
        "ArrayConvolutionDataSource: has no argument 'bias'; it takes (weights, biases=None, ",
    ),
    "enumeration, in Python": (
        lambda: mg.ArrayConvolutionDataSource(np.ones((1, 1, 1, 1)), bias=None),
        "quantization=WeightsQuantizationType.NONE, ",
    ),
    "node": (
        lambda: mg.graph.SoftMaxNode(mg.graph.ImageNode(), "probabilities"),
        "SoftMaxNode: takes at most 1 by place, got 2; it takes (source, *, label=None)",
    ),
    "call that classes share": (
        lambda: mg.SoftMaxGradient(device="cpu")(ARRAY, ARRAY),
        "SoftMaxGradient.__call__() missing 1 required positional argument: 'state'",
    ),
    "method": (
        lambda: mg.Device("cpu").command_queue().command_buffer("fast"),
        "CommandQueue.command_buffer: takes 0 arguments at most, got 1",
    ),
    "static method": (
        lambda: mg.ImageBatch.allocate(mg.Device("cpu"), IMAGE, "2"),
        "ImageBatch.allocate: count must be an int, got str",
    ),
    "function": (
        lambda: mg.set_num_threads("2"),
        "set_num_threads: count must be an int, got str",
    ),
}


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG)
def test_constructors_name_class_argument_and_types(call, words):
    with pytest.raises(error_of(words), match=re.escape(words)):
        call()
