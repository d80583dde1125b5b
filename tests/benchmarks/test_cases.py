"""The benchmark's cases: shapes of layers, and checks that let nothing wrong pass."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad.benchmarks import (
    FAMILIES,
    check,
    convolution,
    convolution_transpose,
    layers,
    reduction,
    suite,
)

from tests import tolerance
from tests.core import oracle as core

QUICK = suite.Request((2,), ("float32", "float16"), quick=True)
CASES = list(suite.all_cases(QUICK))
# The first layer of every kernel, in both types.
FIRST = list({(case.family, case.kernel, case.dtype): case for case in reversed(CASES)}.values())
ODD = [
    case
    for case in CASES
    if case.dtype == "float32"
    and case.layer.split("/")[0] in ("resnext50", "deeplab", "efficientnet", "inception", "atrous")
]
names = pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)


@functools.cache
def build(case):
    """Make a case, once."""
    return case.build(suite.Context(mg.Device("cpu"), case.name))


# --- Layers -----------------------------------------------------------------------


def test_every_family_has_cases():
    assert {case.family for case in CASES} == set(FAMILIES)
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_kernel_has_a_case(monkeypatch):
    made = set()
    kernels = [
        cls
        for name in mg.__all__
        if isinstance(cls := getattr(mg, name), type) and issubclass(cls, mg.Kernel)
    ]

    def noting(init):
        def noted(self, *arguments, **options):
            made.add(type(self))
            init(self, *arguments, **options)

        return noted

    for cls in kernels:
        monkeypatch.setattr(cls, "__init__", noting(cls.__init__))
    for case in CASES:
        if case.dtype == "float32":
            case.build(suite.Context(mg.Device("cpu"), case.name))
    monkeypatch.undo()
    for cls in set(kernels) - made:  # they must be bases
        with pytest.raises(TypeError, match=r"No constructor|base class"):
            cls()


def test_networks_and_odd_layers_are_there():
    found = [layers.ConvolutionLayer.of(line) for line in layers.read("convolution")]
    networks = {layer.name.split("/")[0] for layer in found}
    assert {"resnet50", "vgg16", "mobilenet", "unet"} <= networks
    assert any(layer.depthwise for layer in found)
    assert any(layer.dilation != (1, 1) for layer in found)
    assert any(layer.groups > 1 for layer in found)
    assert any(layer.kernel == (7, 7) and layer.stride == (2, 2) for layer in found)


@pytest.mark.parametrize("name", ["convolution", "pooling"])
def test_sizes_are_those_of_the_oracle(name):
    cls = {"convolution": layers.ConvolutionLayer, "pooling": layers.PoolingLayer}[name]
    for line in layers.read(name):
        layer = cls.of(line)
        for shape in (layer.shape, line.quick().shape):
            layer = replace(layer, shape=shape)
            for axis in (0, 1):
                sides = layer.pad[axis], layer.pad[axis]
                window = layer.kernel[axis], layer.stride[axis], layer.dilation[axis]
                assert layer.size[axis] == core.place_explicit(shape[axis], *window, *sides).size


def test_convolutions_have_the_sizes_of_their_networks():
    found = {line.name: layers.ConvolutionLayer.of(line) for line in layers.read("convolution")}
    assert found["resnet50/conv1"].size == (112, 112)
    assert found["resnet50/conv3_down"].size == found["resnet50/conv3_shortcut"].size == (28, 28)
    assert found["mobilenet/conv3_dw"].size == (56, 56)
    assert found["inception/1x7"].size == (17, 17)
    assert found["inception/stem2"].size == (147, 147)
    assert found["resnet50/conv1"].flops(32) == 32 * 2 * 112 * 112 * 64 * 7 * 7 * 3
    assert found["mobilenet/conv8_dw"].flops(1) == 2 * 14 * 14 * 512 * 9
    for layer in found.values():
        assert layer.shape[2] % layer.groups == layer.outputs % layer.groups == 0
        quick = layer.quick()
        assert quick.depthwise == layer.depthwise
        assert min(quick.size) >= 1
    pools = {line.name: layers.PoolingLayer.of(line) for line in layers.read("pooling")}
    assert pools["resnet50/pool1"].size == (56, 56)
    assert pools["resnet50/global"].size == (1, 1)
    assert pools["vgg16/pool1"].size == (112, 112)


def test_transposed_convolutions_have_the_sizes_of_their_networks():
    lines = layers.read("convolution_transpose")
    found = {line.name: convolution_transpose.undone(line) for line in lines}
    assert found["unet/up1"].shape == (56, 56, 512)
    assert found["dcgan/conv4"].shape == (64, 64, 3)
    assert found["fcn/upscore2"].shape == (34, 34, 21)
    assert found["dcgan/conv1"].flops(2) == 2 * 2 * 4 * 4 * 4 * 4 * 1024 * 512
    for line in lines:
        assert found[line.name].size == line.shape[:2]


def test_lines():
    text = "# layers\n\nnet/a  5x7x3  8  1x2  pad=0x3 deep  # odd\n"
    (line,) = layers.parse(text, "some.txt")
    assert (line.name, line.shape, line.number(1), line.sizes[2]) == ("net/a", (5, 7, 3), 8, (1, 2))
    assert (line.pair("pad", 1), line.pair("stride", 1)) == ((0, 3), (1, 1))
    assert "deep" in line.options
    assert line.words("kinds") == ()


@pytest.mark.parametrize("bad", ["a", "a 3xx3", "a 0x3x3", "b 1x1x1", "a 5y5"])
def test_bad_lines_are_named(bad):
    text = f"b 3x3x3\n{bad}\n"
    with pytest.raises(ValueError, match=re.escape(f"some.txt, line 2: cannot read {bad!r}")):
        list(layers.parse(text, "some.txt"))


def test_an_unknown_reduction_is_named():
    line = layers.read("reduction")[0]
    context = suite.Context(mg.Device("cpu"), "some")
    with pytest.raises(ValueError, match=f"layer {line.name}: .* local_correlation; got 'mean'"):
        reduction.build(context, line.quick(), 1, "float32", "mean")


# --- Checks -----------------------------------------------------------------------


@names
def test_results_are_right_and_wrong_ones_are_refused(case):
    work = build(case)
    work.run()
    for output in work.outputs:
        result = np.array(output.read())
        output.samples.compare(output.name, result)
        factor = 1.01 if result.dtype == np.float32 else 1.05
        with pytest.raises(check.WrongResult, match=f"^{output.name}: .* sampled elements are"):
            output.samples.compare(output.name, result * result.dtype.type(factor))
        place = tuple(axis[0] for axis in output.samples.index)
        other = result.copy()
        other[place] = 2 * np.abs(result).max() + 1
        with pytest.raises(check.WrongResult, match=f"^{output.name}: 1 of .* sampled elements"):
            output.samples.compare(output.name, other)
        other.flat[-1] = np.nan
        with pytest.raises(check.WrongResult, match="not every element is finite"):
            output.samples.compare(output.name, other)


@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
def test_odd_layers_are_right(case):
    work = build(case)
    work.run()
    for output in work.outputs:
        output.samples.compare(output.name, output.read())


@names
def test_work_is_counted(case):
    work = build(case)
    assert work.outputs
    assert work.arrays > 0
    assert (work.bytes > 0) == (case.family != "encode")
    counted = "convolution", "fully_connected", "gram_matrix", "training"
    products = any(word in case.family for word in counted) or case.kernel == "local_correlation"
    assert (work.flops > 0) == products


def test_both_gradients_are_twice_the_work():
    layer = "resnet50/conv4_3x3"
    found = {case.kernel: build(case) for case in CASES if case.layer == layer}
    single = found["forward"].flops
    assert single == 2 * 2 * 14 * 14 * 9 * 32 * 32
    assert found["data_gradient"].flops == found["weight_gradient"].flops == single
    assert found["gradient"].flops == 2 * single


def test_passes_of_batch_normalization_count_what_they_read_and_write():
    layer = "resnet50/conv2"
    found = {
        case.kernel: build(case).bytes / (2 * 16 * 16 * 8 * 4)
        for case in CASES
        if (case.family, case.layer, case.dtype) == ("batch_normalization", layer, "float32")
    }
    assert found["training"] == found["statistics"] + found["inference"] == 1 + 2
    assert found["backward"] == found["statistics_gradient"] + found["gradient"] == 2 + 3
    assert found["step"] == found["training"] + found["backward"]


# Half of the window is what a kernel has that no padding was given to.
@pytest.mark.parametrize("options", [{}, {"pad": "2"}, {"pad": "1", "dilation": "2"}], ids=str)
@pytest.mark.parametrize("kernel", convolution.KERNELS)
def test_convolutions_of_any_padding(options, kernel):
    line = layers.Line("net/a", ((9, 8, 4), (6,), (3, 3)), options)
    context = suite.Context(mg.Device("cpu"), f"{kernel} {options}")
    layer = layers.ConvolutionLayer.of(line)
    work = convolution.build(context, layer, 2, "float32", kernel)
    for _ in range(2):
        work.run()
        for output in work.outputs:
            output.samples.compare(output.name, output.read())


def test_what_is_broadcast_counts_once():
    found = {
        case.kernel: build(case).bytes
        for case in CASES
        if (case.layer, case.dtype) == ("senet/gate2", "float32")
    }
    image, pixel = 2 * 16 * 16 * 32 * 4, 2 * 32 * 4
    mask = image // 4 // 8
    assert found["multiply_channels_forward"] == 2 * image + pixel
    assert found["multiply_channels_gradient"] == 2 * image + pixel + mask
    assert found["multiply_channels_second_gradient"] == 2 * image + pixel + mask
    assert found["add_channels_second_gradient"] == image + pixel + mask


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("roundings", "functions"), [(0, 0), (5, 4), (100, 0), (40000, 2)])
def test_tolerances_are_those_of_the_tests(dtype, roundings, functions):
    scale = np.array([0.0, 1e-9, 0.75, 1.0, 3.5, 1000.0])
    units = tolerance.ulps_for(roundings, np.float32, functions=functions)
    expected = units * tolerance.ulp(scale, np.float32)
    if dtype == np.float16:
        expected = expected + 0.5 * tolerance.ulp(scale, np.float16)
    actual = check.allowed(scale, roundings, functions, np.dtype(dtype))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_a_case_that_tells_nothing_is_refused():
    index = (np.arange(3),)
    samples = check.Samples(index, np.zeros(3), np.ones(3), 1)
    with pytest.raises(check.WrongResult, match="the case tells nothing"):
        samples.compare("y", np.zeros(3, np.float32))


def test_places_have_the_corners(rng):
    index = check.places(rng, (2, 3, 1, 5), 10)
    found = set(zip(*(axis.tolist() for axis in index), strict=True))
    assert {(n, h, 0, c) for n in (0, 1) for h in (0, 2) for c in (0, 4)} <= found
    assert all(max(axis) < n for axis, n in zip(index, (2, 3, 1, 5), strict=True))


def test_names_are_filtered():
    (case,) = (case for case in FIRST if case.name.startswith("encode/neuron_forward"))
    assert suite.has_words(case.name, [])
    assert suite.has_words(case.name, ["neuron_forward pixel"])
    assert suite.has_words(case.name, ["Neuron_Forward"])
    assert suite.has_words(case.name, ["nothing", "encode"])
    assert not suite.has_words(case.name, ["encode nothing"])
