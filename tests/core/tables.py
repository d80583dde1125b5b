"""The worked tables of the base rules as data; every device's geometry is held against them."""

from __future__ import annotations

from typing import NamedTuple

VALID, SAME, FULL = 0x00, 0x10, 0x20
TOP_LEFT, BOTTOM_RIGHT = 0x0, 0xC


class Packing(NamedTuple):
    """How an image of some channel count is stored."""

    channels: int
    slices: int
    is_array: bool  # texture type of a single image
    lanes: int  # stored per pixel
    last_slice: int  # where the last channel is
    last_lane: int


PACKING = [
    Packing(1, 1, False, 1, 0, 0),
    Packing(2, 1, False, 2, 0, 1),
    Packing(3, 1, False, 4, 0, 2),
    Packing(4, 1, False, 4, 0, 3),
    Packing(5, 2, True, 8, 1, 0),
    Packing(8, 2, True, 8, 1, 3),
    Packing(9, 3, True, 12, 2, 0),
]


class Window(NamedTuple):
    """Tap positions of a window relative to its centre."""

    kernel: int
    dilation: int
    extent: int
    taps: tuple[int, ...]


WINDOWS = [
    Window(1, 1, 1, (0,)),
    Window(2, 1, 2, (-1, 0)),
    Window(3, 1, 3, (-1, 0, 1)),
    Window(4, 1, 4, (-2, -1, 0, 1)),
    Window(5, 1, 5, (-2, -1, 0, 1, 2)),
    Window(3, 2, 5, (-2, 0, 2)),
    Window(2, 2, 3, (-1, 1)),
    Window(2, 3, 4, (-2, 1)),
    Window(4, 2, 7, (-3, -1, 1, 3)),
]


class Policy(NamedTuple):
    """Result of a padding policy along one axis; `size` of 0 or less is refused."""

    length: int
    kernel: int
    dilation: int
    stride: int
    size_field: int
    size: int
    span: int
    missing: int
    offset_top_left: int  # remainder on the top / left
    offset_bottom_right: int


POLICIES = [
    Policy(5, 3, 1, 1, SAME, 5, 7, 2, 0, 0),
    Policy(5, 3, 1, 1, VALID, 3, 5, 0, 1, 1),
    Policy(5, 3, 1, 1, FULL, 7, 9, 4, -1, -1),
    Policy(5, 2, 1, 1, SAME, 5, 6, 1, 0, 1),
    Policy(5, 2, 1, 1, FULL, 6, 7, 2, 0, 0),
    Policy(6, 3, 1, 2, SAME, 3, 7, 1, 0, 1),
    Policy(7, 3, 1, 2, SAME, 4, 9, 2, 0, 0),
    Policy(6, 3, 1, 2, VALID, 2, 5, -1, 1, 1),
    Policy(8, 2, 1, 2, SAME, 4, 8, 0, 1, 1),
    Policy(7, 4, 1, 2, SAME, 4, 10, 3, 0, 1),
    Policy(9, 3, 2, 1, SAME, 9, 13, 4, 0, 0),
    Policy(9, 2, 3, 1, SAME, 9, 12, 3, 0, 1),
    Policy(224, 7, 1, 2, SAME, 112, 229, 5, 0, 1),
    Policy(7, 2, 1, 3, VALID, 2, 5, -2, 1, 2),
    Policy(8, 1, 1, 4, VALID, 2, 5, -3, 1, 1),
    Policy(10, 3, 1, 5, VALID, 2, 8, -2, 1, 2),
    # From the pooling and convolution chapters.
    Policy(7, 2, 1, 2, SAME, 4, 8, 1, 0, 1),
    Policy(6, 2, 1, 2, SAME, 3, 6, 0, 1, 1),
    Policy(7, 2, 1, 2, VALID, 3, 6, -1, 1, 1),
    Policy(9, 3, 1, 4, VALID, 2, 7, -2, 1, 2),
    Policy(9, 3, 1, 1, VALID, 7, 9, 0, 1, 1),
    Policy(9, 3, 1, 1, SAME, 9, 11, 2, 0, 0),
    Policy(9, 3, 1, 1, FULL, 11, 13, 4, -1, -1),
    Policy(9, 2, 1, 1, VALID, 8, 9, 0, 1, 1),
    Policy(9, 2, 1, 1, SAME, 9, 10, 1, 0, 1),
    Policy(9, 2, 1, 1, FULL, 10, 11, 2, 0, 0),
    Policy(9, 3, 1, 2, VALID, 4, 9, 0, 1, 1),
    Policy(9, 3, 1, 2, SAME, 5, 11, 2, 0, 0),
    Policy(9, 3, 1, 2, FULL, 6, 13, 4, -1, -1),
    Policy(9, 3, 1, 4, SAME, 3, 11, 2, 0, 0),
    Policy(9, 3, 1, 4, FULL, 3, 11, 2, 0, 0),
]

# (length, kernel, stride) that leave no room for a single window when nothing is padded.
REFUSED = [(3, 5, 1), (1, 2, 1), (4, 9, 2)]


class Alignment(NamedTuple):
    """Offsets of the policies that align instead of centring."""

    length: int
    kernel: int
    stride: int
    size_field: int
    offset_top_left: int
    offset_bottom_right: int


ALIGNMENTS = [
    Alignment(6, 3, 2, SAME, 0, 1),
    Alignment(8, 1, 4, VALID, 3, 0),
]


class Reverse(NamedTuple):
    """Size a policy gives a reverse filter."""

    length: int
    kernel: int
    stride: int
    size_field: int
    size: int


REVERSES = [
    Reverse(3, 3, 2, VALID, 3),
    Reverse(3, 3, 2, SAME, 5),
    Reverse(3, 3, 2, FULL, 7),
]


class Effective(NamedTuple):
    """Offsets of a convolution gradient for a forward convolution under a policy."""

    length: int
    kernel: int
    stride: int
    dilation: int
    size_field: int
    remainder: int
    size: int
    offset: int
    kernel_offset: int
    secondary_offset: int


GRADIENT_OFFSETS = [
    Effective(5, 3, 1, 1, SAME, TOP_LEFT, 5, 0, 0, -1),
    Effective(5, 3, 1, 1, VALID, TOP_LEFT, 3, 1, -1, 0),
    Effective(5, 2, 1, 1, SAME, TOP_LEFT, 5, 0, 1, -1),
    Effective(5, 2, 1, 1, SAME, BOTTOM_RIGHT, 5, 1, 0, 0),
    Effective(6, 3, 2, 1, SAME, TOP_LEFT, 3, 0, 0, -1),
    Effective(6, 3, 2, 1, SAME, BOTTOM_RIGHT, 3, 1, -1, 0),
    Effective(7, 4, 2, 1, SAME, TOP_LEFT, 4, 0, 1, -2),
    Effective(9, 2, 1, 3, SAME, TOP_LEFT, 9, 0, 1, -2),
    Effective(9, 3, 1, 2, SAME, TOP_LEFT, 9, 0, 0, -2),
    Effective(9, 3, 1, 2, SAME, BOTTOM_RIGHT, 9, 0, 0, -2),
    Effective(224, 7, 2, 1, SAME, BOTTOM_RIGHT, 112, 1, -1, -2),
]


class ReadCount(NamedTuple):
    """A temporary object of a training step and the encodes that read it."""

    item: str
    readers: tuple[str, ...]
    count: int  # to set before the first of them


# Convolution, then ReLU, then a loss, everything temporary but the convolution's source.
CONVOLUTION_RELU_READS = [
    ReadCount("convolution output", ("relu forward", "relu gradient"), 2),
    ReadCount("relu output", ("loss",), 1),
    ReadCount("loss gradient", ("relu gradient",), 1),
    ReadCount("relu gradient result", ("convolution gradient",), 1),
    ReadCount("convolution gradient result", (), 0),
]

BATCH_NORMALIZATION_READS = [
    ReadCount("source", ("statistics", "normalization", "statistics gradient", "gradient"), 4),
    ReadCount("incoming gradient", ("statistics gradient", "gradient"), 2),
    ReadCount("state", ("normalization", "statistics gradient", "gradient"), 3),
]


class Layout(NamedTuple):
    """Strides in bytes of an image of 3 x 2 pixels and 5 channels in a caller's buffer."""

    layout: str
    dtype: str
    item: int
    bytes_per_column: int
    bytes_per_row: int
    bytes_per_image: int


LAYOUTS = [
    Layout("HWC", "float16", 2, 10, 30, 60),
    Layout("CHW", "float16", 2, 2, 6, 60),
    Layout("HWC", "float32", 4, 20, 60, 120),
]
