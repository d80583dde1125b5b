"""`repr` of kernels, even of those whose constructor raised, and misspelt attributes."""

import mpsgrad as mg
import pytest


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
    for owner, name, value, words in (
        (pool, "padding", (1, 1), "PoolingMax.padding must be a Padding, got tuple"),
        (pool, "edge_mode", "zero", "PoolingMax.edge_mode must be an EdgeMode, got str"),
        (pool, "source_feature_channel_offset", 2.5, "channel_offset must be an int, got float"),
        (image, "label", 3, "Image.label must be a str, got int"),
        (neuron, "a", None, "NeuronDescriptor.a must be a float, got NoneType"),
        (neuron, "data", 3, r"NeuronDescriptor.data must be a Sequence\[float\], got int"),
    ):
        before = getattr(owner, name)
        with pytest.raises(TypeError, match=words):
            setattr(owner, name, value)
        assert getattr(owner, name) == before
