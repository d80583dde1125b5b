"""Padding policies through what they do: the descriptor and the offset of a kernel they size."""

import copy
import gc
import itertools
import pickle
import re

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import oracle, tables
from tests.core.support import blank, counting, finish, image_of, linear, linear_gradient
from tests.rejects import rejects


def convolution(device, kernel, stride=1, dilation=1, *, channels=1, outputs=1):
    """A convolution whose window differs between the axes where pairs are given."""
    (kw, kh), (sx, sy), (dx, dy) = (
        pair if isinstance(pair, tuple) else (pair, pair) for pair in (kernel, stride, dilation)
    )
    descriptor = mg.ConvolutionDescriptor(
        kw,
        kh,
        input_feature_channels=channels,
        output_feature_channels=outputs,
        stride_in_pixels_x=sx,
        stride_in_pixels_y=sy,
        dilation_rate_x=dx,
        dilation_rate_y=dy,
    )
    weights = np.ones((outputs, kh, kw, channels), np.float32)
    return mg.Convolution(
        mg.ArrayConvolutionDataSource(weights, descriptor=descriptor), device=device
    )


def placement(kernel, source, method):
    """Result size and offset that a policy gives a kernel: ((width, height), (x, y))."""
    kernel.padding = mg.DefaultPadding(method)
    result = kernel.destination_descriptor(source)
    return (result.width, result.height), (kernel.offset.x, kernel.offset.y)


@pytest.mark.parametrize("row", tables.POLICIES, ids=lambda row: "-".join(map(str, row[:5])))
def test_sizes_and_offsets(device, row):
    across = convolution(device, (row.kernel, 1), (row.stride, 1), (row.dilation, 1))
    down = convolution(device, (1, row.kernel), (1, row.stride), (1, row.dilation))
    for remainder, offset in [
        (tables.TOP_LEFT, row.offset_top_left),
        (tables.BOTTOM_RIGHT, row.offset_bottom_right),
    ]:
        method = row.size_field | remainder
        sizes, offsets = placement(across, blank(device, 3, row.length, 1), method)
        assert (sizes, offsets) == ((row.size, 3), (offset, 0))
        sizes, offsets = placement(down, blank(device, row.length, 3, 1), method)
        assert (sizes, offsets) == ((3, row.size), (0, offset))


@pytest.mark.parametrize("row", tables.ALIGNMENTS)
def test_alignments(device, row):
    kernel = convolution(device, (row.kernel, 1), (row.stride, 1))
    source = blank(device, 1, row.length, 1)
    for alignment, offset in [
        (mg.PaddingMethod.ALIGN_TOP_LEFT, row.offset_top_left),
        (mg.PaddingMethod.ALIGN_BOTTOM_RIGHT, row.offset_bottom_right),
    ]:
        _, offsets = placement(kernel, source, row.size_field | alignment)
        assert offsets == (offset, 0)


@pytest.mark.parametrize(("length", "kernel", "stride"), tables.REFUSED)
def test_sources_too_small_for_a_window(device, length, kernel, stride):
    forward = convolution(device, (kernel, 1), (stride, 1))
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    forward.offset = (7, 7, 0)
    with pytest.raises(ValueError, match=f"a source of {length}x2 is too small for a window of"):
        forward.destination_descriptor(blank(device, 2, length, 1))
    assert forward.offset == mg.Offset(7, 7, 0)


METHODS = list(
    itertools.product((0x00, 0x10, 0x20), (0x0, 0x4, 0x8, 0xC), (0, 1, 2), (0, 0x2000), (0, 0x8000))
)


@pytest.mark.parametrize("size", [0x00, 0x10, 0x20])
def test_every_combination_of_bits(device, size):
    kernel = convolution(device, (4, 3), (2, 3), (1, 2))
    source = blank(device, 9, 10, 1)
    for _, remainder, alignment, fusion, edges in (m for m in METHODS if m[0] == size):
        method = size | remainder | alignment | fusion | edges
        x = oracle.place(10, 4, 2, 1, method & 0x7FF, "x")
        y = oracle.place(9, 3, 3, 2, method & 0x7FF, "y")
        assert placement(kernel, source, method) == ((x.size, y.size), (x.offset, y.offset))
        assert kernel.padding.padding_method() == method


@given(data=st.data())
def test_random_geometry(device, data):
    length = data.draw(st.integers(1, 40))
    kernel, stride, dilation = (data.draw(st.integers(1, n)) for n in (7, 6, 4))
    method = data.draw(st.sampled_from([0x00, 0x10, 0x20]))
    method |= data.draw(st.sampled_from([0x0, 0xC])) | data.draw(st.sampled_from([0, 1, 2]))
    forward = convolution(device, (kernel, 1), (stride, 1), (dilation, 1))
    try:
        expected = oracle.place(length, kernel, stride, dilation, method)
    except ValueError:
        with pytest.raises(ValueError, match="too small"):
            placement(forward, blank(device, 1, length, 1), method)
        return
    sizes, offsets = placement(forward, blank(device, 1, length, 1), method)
    assert (sizes[0], offsets[0]) == (expected.size, expected.offset)


def test_descriptors_of_results(device):
    forward = convolution(device, 3, channels=3, outputs=10)
    forward.destination_feature_channel_offset = 8
    for channel_format in ("float16", "float32"):
        source = blank(device, 5, 6, 3, channel_format=channel_format)
        result = forward.destination_descriptor(source)
        assert result.feature_channels == 18  # room for what is skipped
        assert result.number_of_images == 1
        assert result.channel_format == source.feature_channel_format
        assert forward.destination_descriptor([source]) == result


def test_the_offset_of_the_last_result_is_kept(device):
    forward = convolution(device, 3)
    forward.offset = (5, 6, 0)
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
    forward.destination_descriptor(blank(device, 5, 5, 1))
    assert forward.offset == mg.Offset(1, 1, 0)
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    assert forward.offset == mg.Offset(1, 1, 0)
    forward.destination_descriptor(blank(device, 5, 5, 1))
    assert forward.offset == mg.Offset(-1, -1, 0)


def test_one_source_at_a_time(device):
    kernel = linear(device)
    for wrong in ([], [blank(device, 1, 1, 1)] * 2):
        with pytest.raises(ValueError, match=f"takes one source image, got {len(wrong)}"):
            kernel.destination_descriptor(wrong)
    for wrong in (None, 3, [None]):
        with pytest.raises(TypeError, match="sources must"):
            kernel.destination_descriptor(wrong)


def test_results_larger_than_an_image_may_be(device):
    forward = convolution(device, (3, 1))
    forward.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_FULL)
    with pytest.raises(
        ValueError, match="Convolution: width must be between 1 and 16384, got 16386"
    ):
        forward.destination_descriptor(blank(device, 1, 16384, 1))
    assert forward.offset == mg.Offset(0, 0, 0)


# --- the ready-made policies --------------------------------------------------


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (0x3, "alignment 3 is reserved"),
        (0x13, "alignment 3 is reserved"),
        (0x30, "size bits 48 are reserved; use VALID_ONLY (0), SAME (16) or FULL (32)"),
        (0x40, "size bits 64 are reserved"),
        (0x400, "size bits 1024 are reserved"),
        (0x800, "bits 0x1800 of the padding method are reserved"),
        (0x1010, "bits 0x1800 of the padding method are reserved"),
        (0x10000, "padding method must be between 0 and 0xffff, got 65536"),
        (-1, "padding method must be between 0 and 0xffff, got -1"),
        (2**40, "padding method must be between 0 and 0xffff, got 1099511627776"),
    ],
)
def test_reserved_bits(method, words):
    with rejects(ValueError, f"DefaultPadding: {words}"):
        mg.DefaultPadding(method)


def test_the_custom_bit_needs_a_policy_of_ones_own():
    with pytest.raises(ValueError, match="the CUSTOM bit needs a policy of your own"):
        mg.DefaultPadding(mg.PaddingMethod.CUSTOM)


@pytest.mark.parametrize("wrong", [None, "same", 1.0, 2**64])
def test_methods_of_wrong_kinds(wrong):
    error = ValueError if wrong == 2**64 else TypeError
    with pytest.raises(error, match="DefaultPadding: method"):
        mg.DefaultPadding(wrong)


def test_kernels_start_with_same(device):
    assert linear(device).padding.padding_method() == mg.PaddingMethod.SIZE_SAME
    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    assert gradient.padding.padding_method() == mg.PaddingMethod.SIZE_SAME


def test_labels():
    assert mg.DefaultPadding(0x10).label() == "same, centered, remainder top left"
    assert mg.DefaultPadding(0x2E).label() == "full, bottom right, remainder bottom right"
    assert mg.ExplicitPadding(1, 2, 3, 4).label() == "explicit, left 1 right 2 top 3 bottom 4"


def test_inverses():
    for size, remainder, alignment in itertools.product(
        (0x00, 0x10, 0x20), (0x0, 0x4, 0x8, 0xC), (0, 1, 2)
    ):
        method = size | remainder | alignment
        inverse = mg.DefaultPadding(method).inverse()
        assert isinstance(inverse, mg.DefaultPadding)
        assert inverse.padding_method() == oracle.inverse(method)
        assert inverse.inverse().padding_method() == method
    assert mg.DefaultPadding.tensorflow_average_pooling().inverse() is None
    assert mg.ExplicitPadding(1, 1, 1, 1).inverse() is None
    assert mg.ExplicitPadding(2) == mg.ExplicitPadding(2, 2, 2, 2)
    assert mg.ExplicitPadding(left=2) == mg.ExplicitPadding(2, 0, 0, 0)
    assert mg.ExplicitPadding(1, 2, 3, 4) == mg.ExplicitPadding(1, 2, 3, 4)
    assert mg.ExplicitPadding(1, 2, 3, 4) != mg.ExplicitPadding(1, 2, 3)


def test_tensorflow_policies(device):
    same = mg.DefaultPadding.tensorflow_average_pooling()
    valid = mg.DefaultPadding.tensorflow_average_pooling_valid_only()
    assert (same.padding_method(), valid.padding_method()) == (0x401C, 0x400C)
    for policy, size in [(same, 3), (valid, 2)]:
        kernel = mg.PoolingAverage(3, 3, stride_in_pixels_x=2, stride_in_pixels_y=2, device=device)
        kernel.edge_mode = mg.EdgeMode.ZERO
        kernel.padding = policy
        result = kernel.destination_descriptor(blank(device, 6, 6, 1))
        assert (result.width, result.height) == (size, size)
        assert kernel.edge_mode == mg.EdgeMode.CLAMP


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 3, 1), (4, 0, 0, 5)])
def test_explicit_padding(device, pads):
    left, right, top, bottom = pads
    forward = convolution(device, (3, 4), (3, 2), (2, 1))
    forward.padding = policy = mg.ExplicitPadding(left, right, top, bottom)
    assert (policy.left, policy.right, policy.top, policy.bottom) == pads
    assert policy.padding_method() == mg.PaddingMethod.CUSTOM
    forward.offset = (0, 0, 2)
    result = forward.destination_descriptor(blank(device, 7, 8, 1))
    x = oracle.place_explicit(8, 3, 3, 2, left, right)
    y = oracle.place_explicit(7, 4, 2, 1, top, bottom)
    assert (result.width, result.height) == (x.size, y.size)
    assert forward.offset == mg.Offset(x.offset, y.offset, 2)


def test_explicit_padding_of_the_textbook(device, queue):
    """Zero padding of one pixel and a 3 x 3 window of ones: sums of neighbours."""
    forward = convolution(device, 3)
    forward.padding = mg.ExplicitPadding(left=1, right=1, top=1, bottom=1)
    command_buffer = queue.command_buffer()
    source = image_of(device, np.ones((3, 3, 1), np.float32))
    result = forward.encode(command_buffer, source, allocator=mg.DEFAULT)
    finish(command_buffer, result)
    assert result.read()[..., 0].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]


def test_explicit_padding_of_kernels_that_enlarge(device, rng):
    """As many results as the kernel makes of that many windows, at the same places as with SAME."""
    x = rng.standard_normal((6, 7, 4)).astype(np.float32)
    w = rng.standard_normal((16, 3, 3, 4)).astype(np.float32)
    d = mg.SubPixelConvolutionDescriptor(
        3, 3, input_feature_channels=4, output_feature_channels=16, sub_pixel_scale_factor=2
    )
    convolution = mg.Convolution(mg.ArrayConvolutionDataSource(w, descriptor=d), device=device)
    kernels = {
        convolution: (1, (12, 14, 4)),
        mg.UpsamplingNearest(3, 2, device=device): (0, (12, 21, 4)),
        mg.ResizeBilinear(5, 9, device=device): (0, (9, 5, 4)),
        mg.Pad((1, 2, 0), (0, 1, 0), device=device): (0, (9, 8, 4)),
        mg.ReduceRowSum(device=device): (0, (6, 1, 4)),
    }
    for kernel, (pad, shape) in kernels.items():
        want = kernel(x)
        offset = kernel.offset
        kernel.padding = mg.ExplicitPadding(pad, pad, pad, pad)
        got = kernel(x)
        assert got.shape == want.shape == shape, kernel
        np.testing.assert_array_equal(got, want)
        assert kernel.offset == offset


@pytest.mark.parametrize("pads", [(-1, 0, 0, 0), (0, 0, -1, 0), (-1,), (-(2**63), 0)])
def test_explicit_padding_does_not_begin_outside(pads):
    with pytest.raises(ValueError, match="left and top must not be negative"):
        mg.ExplicitPadding(*pads)


@pytest.mark.parametrize("pads", [(0, -1, 0, 0), (1, 1, 1, -1)])
def test_explicit_padding_of_forward_filters_is_not_negative(device, pads):
    forward = convolution(device, 3)
    forward.padding = mg.ExplicitPadding(*pads)
    with pytest.raises(ValueError, match="padding must not be negative, which is for transposed"):
        forward.destination_descriptor(blank(device, 8, 8, 1))


def test_explicit_padding_has_limits(device):
    with pytest.raises(ValueError, match="padding must lie between -16384 and 16384"):
        mg.ExplicitPadding(left=2**62)
    with pytest.raises(ValueError, match="padding must lie between -16384 and 16384"):
        mg.ExplicitPadding(bottom=-(2**63))
    forward = convolution(device, 5)
    forward.padding = mg.ExplicitPadding(left=1)
    with pytest.raises(ValueError, match="too small for a window of 5x5 under padding 'explicit"):
        forward.destination_descriptor(blank(device, 4, 4, 1))
    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    gradient.padding = mg.ExplicitPadding()
    image = blank(device, 2, 2, 1)
    state = linear_state(device, image)
    with pytest.raises(ValueError, match="ExplicitPadding describes forward filters"):
        gradient.destination_descriptor([image, image], [state])


def linear_state(device, image):
    """State of a neuron for an image of the size of its result."""
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    return kernel.result_state(image, image)


# --- policies of one's own ----------------------------------------------------


class Shrinking(mg.Padding):
    """Halves the suggested result and reads from the second pixel on."""

    def __init__(self, factor=2):
        super().__init__()
        self.factor = factor
        self.seen = []

    def __repr__(self):
        return f"Shrinking({self.factor})"

    def padding_method(self):
        return mg.PaddingMethod.CUSTOM | mg.PaddingMethod.SIZE_SAME

    def label(self):
        return f"shrinking by {self.factor}"

    def inverse(self):
        return mg.DefaultPadding(0x10)

    def destination_descriptor(self, sources, states, kernel, suggested):
        self.seen.append((sources, states, kernel, suggested.copy()))
        suggested.width //= self.factor
        suggested.channel_format = mg.ChannelFormat.FLOAT16
        kernel.offset = (1, 0, 0)
        kernel.edge_mode = mg.EdgeMode.CLAMP
        return suggested


def test_a_policy_of_ones_own(device, queue):
    kernel, policy = linear(device, 2.0), Shrinking()
    kernel.padding = policy
    assert kernel.padding is policy
    source = image_of(device, counting(2, 6, 4))
    command_buffer = queue.command_buffer()
    result = kernel.encode(command_buffer, source, allocator=mg.DEFAULT)
    finish(command_buffer, result)
    assert result.feature_channel_format == mg.ChannelFormat.FLOAT16
    assert np.array_equal(result.read(), 2 * counting(2, 6, 4)[:, 1:4])
    ((sources, states, seen_kernel, suggested),) = policy.seen
    assert sources[0] is source
    assert (len(sources), states) == (1, [])
    assert seen_kernel is kernel
    assert (suggested.width, suggested.height, suggested.feature_channels) == (6, 2, 4)
    assert kernel.edge_mode == mg.EdgeMode.CLAMP  # what a policy sets stays
    assert policy.label() == "shrinking by 2"
    assert policy.inverse().padding_method() == 0x10
    policy.seen.clear()  # the kernel holds its policy, and this list the kernel


def test_a_policy_may_edit_a_gradients_result(device, queue):
    class Wider(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, sources, states, _, suggested):
            assert len(sources) == 2
            assert [type(state) for state in states] == [mg.GradientState]
            suggested.feature_channels = 8
            return suggested

    gradient = mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device)
    gradient.padding = Wider()
    image = image_of(device, counting(2, 3, 4))
    command_buffer = queue.command_buffer()
    result = gradient.encode(
        command_buffer, image, image, linear_state(device, image), allocator=mg.DEFAULT
    )
    finish(command_buffer, result)
    assert result.feature_channels == 8
    assert np.array_equal(result.read()[..., :4], counting(2, 3, 4))


def policy_with(**methods):
    """A policy that has the given methods only."""
    return type("Policy", (mg.Padding,), methods)()


CUSTOM = {"padding_method": lambda _: 0x4010}
FAULTY = [
    ({}, TypeError, "a policy of your own needs a method padding_method()"),
    (
        {"padding_method": lambda _: "same"},
        TypeError,
        "padding_method() must be an integer, got str",
    ),
    (
        {"padding_method": lambda _: 16.0},
        TypeError,
        "padding_method() must be an integer, got float",
    ),
    ({"padding_method": lambda _: 2**80}, ValueError, "padding_method() is out of range"),
    ({"padding_method": lambda _: 0x30}, ValueError, "reserved"),
    (CUSTOM, TypeError, "a policy of your own needs a method destination_descriptor()"),
    ({**CUSTOM, "destination_descriptor": lambda *_: None}, TypeError, "got NoneType"),
    ({**CUSTOM, "destination_descriptor": lambda *_: (3, 2, 4)}, TypeError, "got tuple"),
    ({**CUSTOM, "destination_descriptor": lambda _: None}, TypeError, "positional argument"),
    ({**CUSTOM, "destination_descriptor": lambda *_: 1 // 0}, ZeroDivisionError, "division"),
    (
        {**CUSTOM, "destination_descriptor": lambda *_: mg.ImageDescriptor(number_of_images=2)},
        ValueError,
        "number_of_images must be 1",
    ),
    (
        {**CUSTOM, "destination_descriptor": lambda *_: mg.ImageDescriptor(width=3, height=2)},
        ValueError,
        "channels 0 to 4 do not fit a destination of 1 channels",
    ),
]


@pytest.mark.parametrize(("methods", "error", "words"), FAULTY, ids=lambda value: str(value)[:30])
def test_faulty_policies(device, queue, methods, error, words):
    kernel = linear(device)
    kernel.offset = (1, 2, 0)
    command_buffer = queue.command_buffer()
    temporary = mg.TemporaryImage(
        command_buffer, mg.ImageDescriptor(width=3, height=2, feature_channels=4)
    )
    before = kernel.padding

    def use():
        kernel.padding = policy_with(**methods)
        kernel.encode(command_buffer, temporary)

    with pytest.raises(error, match=re.escape(words)):
        use()
    assert kernel.offset == mg.Offset(1, 2, 0)
    assert temporary.read_count == 1
    if not methods or ("destination_descriptor" not in methods and methods is not CUSTOM):
        assert kernel.padding is before
    temporary.read_count = 0


def test_a_policy_that_fails_leaves_the_kernel_as_it_was(device):
    def fail(_self, _sources, _states, kernel, _suggested):
        kernel.offset = (9, 9, 0)
        kernel.edge_mode = mg.EdgeMode.CLAMP
        kernel.clip_rect = mg.Region((1, 1, 0), (1, 1, 1))
        raise RuntimeError("no such policy")

    kernel = linear(device)
    kernel.padding = policy_with(**CUSTOM, destination_descriptor=fail)
    with rejects(RuntimeError, "no such policy"):
        kernel.destination_descriptor(blank(device, 2, 3, 4))
    assert kernel.offset == mg.Offset(0, 0, 0)
    assert kernel.edge_mode == mg.EdgeMode.ZERO
    assert kernel.clip_rect == mg.NO_CLIP


def test_faulty_answers_of_a_policy():
    assert policy_with().label() == ""
    assert policy_with().inverse() is None
    with pytest.raises(TypeError, match="needs a method padding_method"):
        mg.Padding().padding_method()


def test_paddings_only(device):
    kernel = linear(device)
    for wrong in (None, 0x10, "same", mg.PaddingMethod.SIZE_SAME):
        with pytest.raises(TypeError, match="padding must be a Padding"):
            kernel.padding = wrong
    assert kernel.padding.padding_method() == 0x10


def test_a_policy_lives_as_long_as_its_kernel(device):
    import gc

    kernel = linear(device)
    kernel.padding = Shrinking(3)
    gc.collect()
    result = kernel.destination_descriptor(blank(device, 2, 9, 4))
    assert result.width == 3
    assert kernel.padding.factor == 3
    kernel.padding.seen.clear()  # which holds the kernel


@pytest.mark.parametrize(
    "policy",
    [
        mg.DefaultPadding(0x2E),
        mg.ExplicitPadding(1, 2, 3, 4),
        mg.DefaultPadding.tensorflow_average_pooling(),
        mg.DefaultPadding.tensorflow_average_pooling_valid_only(),
        Shrinking(5),
    ],
    ids=repr,
)
def test_policies_are_pickled(policy):
    for twin in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)):
        assert type(twin) is type(policy)
        assert twin.padding_method() == policy.padding_method()
        assert twin.label() == policy.label()


@pytest.mark.parametrize("kind", ["unary", "binary", "gradient"])
def test_a_policy_may_set_another(device, queue, kind):
    """The kernel's own goes while it is asked."""

    class Replaces(mg.Padding):
        def padding_method(self):
            return mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, _sources, _states, kernel, suggested):
            kernel.padding = mg.DefaultPadding(0)
            gc.collect()
            return suggested

    image = image_of(device, counting(2, 3, 4))
    absolute = linear(device)
    _, state = absolute.encode(queue.command_buffer(), image, with_state=True, allocator=mg.DEFAULT)
    kernel, operands = {
        "unary": (absolute, (image,)),
        "binary": (mg.Add(device=device), (image, image)),
        "gradient": (linear_gradient(device), (image, image, state)),
    }[kind]
    for _ in range(20):
        kernel.padding = Replaces()
        command_buffer = queue.command_buffer()
        result = kernel.encode(command_buffer, *operands, allocator=mg.DEFAULT)
        assert (result.width, result.height, result.feature_channels) == (3, 2, 4)
        assert isinstance(kernel.padding, mg.DefaultPadding)
        command_buffer.commit()
        command_buffer.wait_until_completed()
