"""Kernels as values: copies, pickles and bytes keep every parameter and property."""

import copy
import pickle

import mpsgrad as mg
import numpy as np
import pytest

from tests.copies import WAYS
from tests.core.support import counting, linear, linear_gradient
from tests.rejects import rejects


def own_allocator(_command_buffer, d, kernel):
    """An allocator that pickle finds by its name."""
    return mg.Image(kernel.device, d)


class OwnPadding(mg.Padding):
    """A policy that pickle finds by its name, with an attribute."""

    def __init__(self, columns):
        super().__init__()
        self.columns = columns

    def padding_method(self):
        return mg.PaddingMethod.CUSTOM

    def destination_descriptor(self, _sources, _states, _kernel, suggested):
        suggested.width = self.columns
        return suggested


ANY = {
    "label": "a layer",
    "options": 18,
    "clip_rect": mg.Region((1, 2, 0), (3, None, 1)),
    "destination_feature_channel_offset": 8,
    "padding": mg.ExplicitPadding(1, 2, 3, 4),
    "destination_image_allocator": mg.DEFAULT,
}
UNARY = ANY | {
    "offset": mg.Offset(1, -2, 3),
    "edge_mode": mg.EdgeMode.CLAMP,
    "source_feature_channel_offset": 4,
    "source_feature_channel_max_count": 3,
}
GRADIENT = ANY | {
    "primary_offset": mg.Offset(1, -2, 3),
    "secondary_offset": mg.Offset(-4, 5, 6),
    "primary_edge_mode": mg.EdgeMode.CLAMP,
    "secondary_edge_mode": mg.EdgeMode.CLAMP,
    "primary_source_feature_channel_offset": 4,
    "secondary_source_feature_channel_offset": 8,
    "primary_source_feature_channel_max_count": 12,
    "secondary_source_feature_channel_max_count": 16,
    "primary_stride_in_pixels_x": 2,
    "primary_stride_in_pixels_y": 3,
    "secondary_stride_in_pixels_x": 4,
    "secondary_stride_in_pixels_y": 5,
    "kernel_offset_x": -1,
    "kernel_offset_y": 7,
}


def changed(kernel):
    """A kernel with every property changed, and what they are."""
    settings = GRADIENT if isinstance(kernel, mg.GradientKernel) else UNARY
    for name, value in settings.items():
        assert repr(getattr(kernel, name)) != repr(value), f"{name} is no change"
        setattr(kernel, name, value)
    return kernel, settings


def settable(kernel):
    """Names of all properties that can be set."""
    return {
        name
        for cls in type(kernel).__mro__
        for name, value in vars(cls).items()
        if isinstance(value, property) and value.fset is not None
    }


@pytest.mark.parametrize("make", [linear, linear_gradient])
def test_the_tables_above_change_every_property(device, make):
    kernel = make(device)
    assert settable(kernel) == set(changed(kernel)[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [linear, linear_gradient])
def test_every_property_survives(device, make, way):
    kernel, settings = changed(make(device, 2.0, 0.5))
    twin = WAYS[way](kernel)
    assert twin is not kernel
    assert type(twin) is type(kernel)
    assert twin.device == kernel.device
    assert twin.descriptor == kernel.descriptor
    for name in settings:
        assert repr(getattr(twin, name)) == repr(getattr(kernel, name)), name
    twin.label = "another"
    twin.clip_rect = mg.NO_CLIP
    assert kernel.label == "a layer"
    assert kernel.clip_rect == settings["clip_rect"]


def test_what_was_pickled_comes_back_on_the_default_device(device):
    kernel = linear(device)
    assert pickle.loads(pickle.dumps(kernel)).device == mg.Device()
    assert type(kernel).from_bytes(kernel.to_bytes()).device == mg.Device()


@pytest.mark.parametrize("way", WAYS)
def test_policies_and_allocators_of_ones_own_survive(device, way):
    kernel = linear(device, 2.0)
    kernel.padding = OwnPadding(2)
    kernel.destination_image_allocator = own_allocator
    twin = WAYS[way](kernel)
    assert isinstance(twin.padding, OwnPadding)
    assert twin.padding.columns == 2
    assert twin.destination_image_allocator is own_allocator
    assert np.array_equal(twin(counting(2, 3, 4)), 2 * counting(2, 3, 4)[:, :2])


def test_allocators_survive(device):
    for allocator in (mg.DEFAULT, mg.TEMPORARY):
        assert pickle.loads(pickle.dumps(allocator)) is allocator
        kernel = linear(device)
        kernel.destination_image_allocator = allocator
        assert kernel.copy().destination_image_allocator is allocator
    assert (repr(mg.DEFAULT), repr(mg.TEMPORARY)) == ("DEFAULT", "TEMPORARY")


def test_a_copy_computes_the_same(device):
    kernel = linear(device, 2.0, 1.0)
    for way in WAYS.values():
        assert np.array_equal(way(kernel)(counting(2, 3, 4)), 2 * counting(2, 3, 4) + 1)


def test_what_cannot_be_pickled_says_so(device):
    kernel = linear(device)
    kernel.destination_image_allocator = lambda *_: None
    words = "Neuron: destination_image_allocator cannot be pickled: "
    with rejects(pickle.PicklingError, words):
        kernel.to_bytes()
    assert kernel.copy().destination_image_allocator is kernel.destination_image_allocator


@pytest.mark.parametrize("data", [b"", b"nonsense", None, 3, "text"])
def test_bytes_of_something_else(device, data):
    with rejects(ValueError, "Neuron: data is not a kernel written by to_bytes: "):
        mg.Neuron.from_bytes(data, device)


def test_bytes_of_another_kernel(device):
    with rejects(ValueError, "NeuronGradient: data must hold this class, got Neuron"):
        mg.NeuronGradient.from_bytes(linear(device).to_bytes(), device)
    with rejects(ValueError, "Neuron: data must hold this class, got NoneType"):
        mg.Neuron.from_bytes(pickle.dumps(None), device)


def test_geometry_is_pickled():
    for value in (mg.Offset(1, -2, 3), mg.Region((1, 2), (3, None)), mg.NO_CLIP):
        for twin in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
            assert twin == value


@pytest.mark.parametrize("protocol", range(6))
def test_what_has_no_value_is_not_pickled(device, queue, protocol):
    command_buffer = queue.command_buffer()
    image = mg.Image(device, mg.ImageDescriptor())
    objects = [
        queue,
        command_buffer,
        image,
        mg.ImageBatch([image]),
        mg.State(device, 16),
        mg.Buffer(device, 16),
        mg.ResourceList(),
        mg.Predicate(mg.Buffer(device, 4)),
        linear(device).result_state(image, image),
    ]
    for value in objects:
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(value, protocol)
        with pytest.raises(TypeError, match="cannot pickle"):
            value.__reduce__()


@pytest.mark.parametrize("protocol", range(6))
def test_enumerations_are_pickled(protocol):
    for value in (mg.EdgeMode.CLAMP, mg.ChannelFormat.FLOAT16, mg.PaddingMethod(0x1C)):
        twin = pickle.loads(pickle.dumps(value, protocol))
        assert twin == value
        assert type(twin) is type(value)


def test_devices_are_pickled_by_kind(device):
    assert pickle.loads(pickle.dumps(device)) == device


def test_errors_are_pickled():
    error = mg.errors.CommandBufferError("execution failed", 8)
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.code) == ("execution failed", 8)
    assert mg.errors.CommandBufferError("illegal").code == 0
    bases = {
        "CommandBufferError": RuntimeError,
        "DeviceError": RuntimeError,
        "ReadCountError": RuntimeError,
        "StateError": RuntimeError,
        "UnsupportedError": NotImplementedError,
        "GraphError": ValueError,
        "GradientUnavailableError": TypeError,
    }
    assert set(bases) == set(mg.errors.__all__)
    for name, base in bases.items():
        assert issubclass(getattr(mg.errors, name), base)


def test_representations(device):
    kernel = linear(device, 2.0, 0.5)
    words = "Neuron(descriptor=NeuronDescriptor(NeuronType.LINEAR, a=2, b=0.5, c=0), device="
    assert repr(kernel) == f"{words}'{device.kind}')"


def test_enumerations_have_apples_values():
    assert {f.name: int(f.value) for f in (mg.ChannelFormat.NONE, mg.ChannelFormat.FLOAT32)} == {
        "NONE": 0,
        "FLOAT32": 4,
    }
    values = {
        "EdgeMode": [0, 1, 2, 3, 4],
        "ChannelFormat": [0, 1, 2, 3, 4],
        "DataLayout": [0, 1],
        "StorageMode": [0, 1, 2, 3],
        "StateResourceType": [0, 1, 2],
        "CommandBufferStatus": [0, 1, 2, 3, 4, 5],
    }
    for name, expected in values.items():
        enumeration = getattr(mg, name)
        assert list(enumeration) == expected
        first = enumeration(0)
        assert str(first) == f"{name}.{first.name}" == f"{first}"
        assert repr(first) == f"<{name}.{first.name}: 0>"
        assert all(pickle.loads(pickle.dumps(m, protocol=0)) is m for m in enumeration)
        with pytest.raises(ValueError, match=f"77 is not a valid {name}"):
            enumeration(77)
    assert [int(option) for option in mg.KernelOptions.__members__.values()] == [0, 1, 2, 4, 8, 16]
    assert mg.PaddingMethod.ADD_REMAINDER_TO_BOTTOM_RIGHT == 0xC
    assert mg.PaddingMethod.SIZE_FULL | mg.PaddingMethod.ALIGN_BOTTOM_RIGHT == 0x22
    assert mg.PaddingMethod.CUSTOM | mg.PaddingMethod.EXCLUDE_EDGES == 0xC000


def test_data_types():
    sizes = {name: member.item_size for name, member in mg.DataType.__members__.items()}
    assert sizes == {
        "INVALID": 0, "FLOAT32": 4, "FLOAT16": 2, "COMPLEX_FLOAT32": 8, "COMPLEX_FLOAT16": 4,
        "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "UINT8": 1, "UINT16": 2, "UINT32": 4,
        "UINT64": 8, "BOOL": 1, "UNORM1": 0, "UNORM8": 1,
    }  # fmt: skip
    float_bit, signed_bit, normalized_bit, complex_bit = (
        0x10000000,
        0x20000000,
        0x40000000,
        0x01000000,
    )
    assert all(t & float_bit for t in mg.DataType if "FLOAT" in t.name)
    assert all(t & complex_bit for t in mg.DataType if "COMPLEX" in t.name)
    assert all(t & signed_bit for t in mg.DataType if t.name.startswith("INT"))
    assert all(t & normalized_bit for t in mg.DataType if t.name.startswith("UNORM"))
