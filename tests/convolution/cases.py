"""Convolution cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.convolution.oracle import Convolution, Transpose
from tests.core import oracle as core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SAME, VALID, FULL = 0x10, 0x00, 0x20


@dataclass(frozen=True)
class ConvolutionCase:
    """A source shape and a convolution; size and offset follow from a padding method.

    `pads` (left, right, top, bottom) replaces the method, as other frameworks pad. `shift` is added
    to the offset, and `grow` to the size, for windows that no policy would place.
    """

    name: str
    shape: tuple[int, int, int, int]  # (N, H, W, I)
    outputs: int
    kernel: tuple[int, int]  # (x, y), as all pairs below
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    depthwise: bool = False
    edge: str = "zero"
    method: int = SAME
    pads: tuple[int, int, int, int] | None = None
    shift: tuple[int, int] = (0, 0)
    grow: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return self.name

    def placement(self) -> tuple[core.Placement, core.Placement]:
        """Along x and along y, before `shift` and `grow`."""
        lengths = self.shape[2], self.shape[1]
        return core.place_window(
            lengths, self.kernel, self.stride, self.dilation, self.method, self.pads
        )

    @property
    def offset(self) -> tuple[int, int]:
        """Source pixel under the centre of the first window."""
        x, y = self.placement()
        return x.offset + self.shift[0], y.offset + self.shift[1]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the destination."""
        x, y = self.placement()
        return x.size + self.grow[0], y.size + self.grow[1]

    @property
    def source_size(self) -> tuple[int, int]:
        """Width and height of the source."""
        return self.shape[2], self.shape[1]

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the destination, (N, H, W, O)."""
        return self.shape[0], self.size[1], self.size[0], self.outputs

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """OHWI, without the last for depthwise weights."""
        window = self.outputs, self.kernel[1], self.kernel[0]
        return window if self.depthwise else (*window, self.shape[3] // self.groups)

    @property
    def products(self) -> int:
        """Products added up in one element of the result."""
        inputs = 1 if self.depthwise else self.shape[3] // self.groups
        return self.kernel[0] * self.kernel[1] * inputs

    @property
    def gradient_products(self) -> int:
        """Products added up at most in one element of the data gradient."""
        outputs = 1 if self.depthwise else self.outputs // self.groups
        return self.kernel[0] * self.kernel[1] * outputs

    @property
    def weight_products(self) -> int:
        """Products added up in one element of the weight gradient."""
        return self.shape[0] * self.size[0] * self.size[1]

    def convolution(self, **changes: Any) -> Convolution:
        """Return the oracle's parameters."""
        base = Convolution(self.stride, self.dilation, self.offset, self.groups, self.edge)
        return replace(base, **changes)


def _case(name: str, *arguments: Any, **options: Any) -> ConvolutionCase:
    return ConvolutionCase(name, *arguments, **options)


CASES = [
    _case("one pixel", (1, 1, 1, 1), 1, (1, 1)),
    _case("one pixel, wide kernel", (2, 1, 1, 3), 2, (3, 5)),
    _case("1x1", (2, 5, 7, 5), 6, (1, 1)),
    _case("1x1 s2", (2, 5, 7, 4), 3, (1, 1), (2, 2)),
    _case("3x3", (2, 6, 5, 3), 4, (3, 3)),
    _case("3x3 valid", (1, 7, 5, 7), 9, (3, 3), method=VALID),
    _case("3x3 full", (3, 4, 3, 2), 5, (3, 3), method=FULL),
    _case("3x3 s2", (2, 7, 6, 8), 4, (3, 3), (2, 2)),
    _case("3x3 s2 bottom right", (2, 6, 8, 4), 8, (3, 3), (2, 2), method=0x1C),
    _case("2x2", (1, 5, 6, 6), 1, (2, 2)),
    _case("2x2 bottom right", (2, 5, 6, 1), 7, (2, 2), method=0x1C),
    _case("4x3 s2x1 remainder top right", (1, 6, 7, 3), 3, (4, 3), (2, 1), method=0x14),
    _case("3x4 s1x3 remainder bottom left", (1, 11, 5, 2), 2, (3, 4), (1, 3), method=0x18),
    _case("5x1", (4, 3, 11, 5), 3, (5, 1)),
    _case("1x6 full", (1, 5, 2, 4), 4, (1, 6), method=FULL),
    _case("align top left", (1, 6, 6, 3), 2, (3, 3), (2, 2), method=SAME | 0x1),
    _case("align bottom right", (1, 6, 6, 3), 2, (3, 3), (2, 2), method=SAME | 0x2),
    _case("stride beyond kernel", (2, 13, 11, 4), 4, (2, 3), (5, 4), method=VALID),
    _case("stride beyond kernel, same", (1, 17, 13, 5), 2, (2, 1), (3, 4), method=0x1C),
    _case("dilation 2", (2, 7, 9, 4), 3, (3, 3), dilation=(2, 2)),
    _case("dilation 3x1, even extent", (1, 5, 9, 2), 3, (2, 2), dilation=(3, 1)),
    _case("dilation 2 s2", (1, 9, 8, 3), 4, (3, 2), (2, 2), (2, 3), method=0x1C),
    _case("dilation beyond image", (2, 3, 3, 4), 4, (3, 3), dilation=(4, 4)),
    _case("groups 2", (2, 5, 4, 8), 8, (3, 3), groups=2),
    _case("groups 3 s2", (1, 6, 7, 12), 24, (3, 2), (2, 1), groups=3),
    _case("groups 4, fewer outputs", (1, 4, 4, 32), 16, (1, 1), groups=4),
    _case("groups of 4", (2, 5, 11, 28), 28, (3, 3), groups=7),
    _case("groups of 4 s2", (1, 9, 10, 20), 20, (3, 3), (2, 2), groups=5),
    _case("groups of 8, clamp", (1, 5, 6, 40), 40, (3, 2), groups=5, edge="clamp"),
    _case("groups of 4, 5x2", (1, 5, 9, 24), 24, (5, 2), groups=6),
    _case("groups of 8 s2", (2, 7, 9, 48), 48, (3, 3), (2, 2), groups=6),
    _case("depthwise", (2, 6, 5, 5), 5, (3, 3), depthwise=True),
    _case("depthwise s2", (1, 9, 8, 9), 9, (3, 3), (2, 2), depthwise=True, method=0x1C),
    _case("depthwise even, dilated", (3, 7, 6, 2), 2, (2, 4), dilation=(3, 1), depthwise=True),
    _case("depthwise 5x5 s2", (1, 8, 13, 17), 17, (5, 5), (2, 2), depthwise=True),
    _case("depthwise 5x5", (2, 9, 11, 33), 33, (5, 5), depthwise=True),
    _case("depthwise 7x7", (2, 8, 13, 33), 33, (7, 7), depthwise=True),
    _case("depthwise 7x7 s2", (1, 12, 17, 17), 17, (7, 7), (2, 2), depthwise=True),
    _case("depthwise 7x3, dilated", (1, 9, 17, 20), 20, (7, 3), dilation=(2, 1), depthwise=True),
    _case("depthwise s2, dilated", (1, 9, 8, 17), 17, (3, 3), (2, 2), (2, 2), depthwise=True),
    _case("clamp depthwise 3x3", (2, 6, 9, 19), 19, (3, 3), depthwise=True, edge="clamp"),
    _case("depthwise outside", (1, 6, 7, 5), 5, (3, 3), depthwise=True, shift=(-3, 2), grow=(4, 5)),
    _case("depthwise one row", (2, 1, 9, 18), 18, (3, 3), depthwise=True),
    _case("depthwise s2 outside", (2, 7, 9, 33), 33, (3, 3), (2, 2), depthwise=True, shift=(3, -4)),
    _case("depthwise one channel", (1, 4, 4, 1), 1, (3, 3), depthwise=True),
    _case("clamp", (2, 5, 4, 3), 4, (3, 3), edge="clamp"),
    _case("clamp s2 even", (1, 6, 7, 4), 2, (4, 2), (2, 2), edge="clamp", method=0x1C),
    _case("clamp groups", (1, 5, 3, 8), 8, (3, 3), groups=2, edge="clamp"),
    _case("clamp depthwise", (1, 4, 6, 3), 3, (5, 3), depthwise=True, edge="clamp"),
    _case("symmetric padding", (2, 7, 7, 3), 5, (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    _case("lopsided padding", (1, 5, 6, 4), 3, (3, 2), pads=(2, 0, 0, 1)),
    _case("windows outside", (1, 4, 5, 2), 3, (3, 2), (2, 2), shift=(-4, 3), grow=(3, 1)),
    _case("offset 0", (1, 5, 5, 3), 3, (3, 3), method=VALID, shift=(-1, -1), grow=(2, 2)),
    _case("whole image", (5, 4, 3, 7), 11, (3, 4), method=VALID),
    _case("row", (1, 1, 37, 2), 2, (3, 1), (2, 1)),
    _case("column", (1, 31, 1, 3), 4, (1, 4), (1, 3)),
    _case("3x3 s2, 130 to 40 channels", (2, 6, 7, 130), 40, (3, 3), (2, 2)),
    _case("3x2 s2, groups of 68", (1, 6, 7, 136), 80, (3, 2), (2, 2), groups=2, method=0x1C),
    _case("3x3 s2, 8 to 256 channels", (1, 5, 6, 8), 256, (3, 3), (2, 2)),
    _case("1x1, wide, 40 to 520 channels", (1, 2, 517, 40), 520, (1, 1), shift=(3, 1)),
    _case("channels 17 to 13", (1, 5, 3, 17), 13, (3, 3)),
]

# A case to repeat with every number of channels on either side.
CHANNELS = [
    _case(f"channels {i} to {o}", (1, 3, 4, i), o, (3, 2))
    for i, o in [(1, 1), (2, 3), (3, 1), (4, 4), (5, 2), (6, 9), (7, 5), (8, 8), (9, 6), (1, 16)]
]

# Too many weights for differences of the oracle. Pixels that lie a multiple of 2 KB apart share
# sets of a cache, so the CPU device works at fewer of them together.
WIDE = [
    _case("groups of 4, many", (1, 4, 5, 256), 256, (3, 3), groups=64),
    _case("pixels of 4 KB", (1, 2, 15, 1024), 21, (1, 1)),
    _case("pixels of 4 KB, one vector", (1, 1, 27, 1024), 4, (1, 1)),
    _case("results of 4 KB", (1, 2, 13, 17), 1024, (1, 1)),
    _case("pixels of 1 KB, s2", (1, 3, 37, 256), 70, (2, 2), (2, 2)),
    _case("many pixels of 2 KB", (2, 17, 19, 520), 150, (1, 1)),
    # A part of the weights has its turn with all pixels before the next part.
    _case("more than 1 MB of weights", (2, 9, 13, 520), 560, (1, 1)),
    _case("one window of 576 products", (1, 3, 6, 32), 32, (6, 3), method=VALID),
    # Weight gradients go by chunks of pixels, and read each tap's rows in place or from copies:
    # more pixels than a chunk in a row, and rows enough for copies but for taps above the images.
    _case("long rows, s2", (1, 2, 531, 128), 33, (2, 2), (2, 2)),
    _case("rows of three, s2", (3, 44, 5, 128), 40, (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    _case("clamp s2, 128 channels", (1, 9, 8, 128), 36, (3, 3), (2, 2), edge="clamp"),
]

# Depthwise windows over whole vectors of channels, and a few more.
VECTORS = [
    _case("depthwise, whole vectors", (2, 7, 13, 32), 32, (3, 3), depthwise=True),
    _case("depthwise s2, whole vectors", (2, 9, 17, 48), 48, (3, 3), (2, 2), depthwise=True),
    _case("depthwise 5x5 s2, whole vectors", (1, 9, 19, 16), 16, (5, 5), (2, 2), depthwise=True),
    _case("depthwise 7x7, whole vectors", (1, 8, 9, 80), 80, (7, 7), depthwise=True),
    _case("depthwise 4x3, many channels", (1, 5, 6, 200), 200, (4, 3), depthwise=True),
    _case("groups of 8, whole vectors", (1, 5, 11, 32), 32, (3, 3), groups=4),
]

# Windows of 3x3 taps at stride 1 over enough pixels and channels for the CPU device to compute them
# with fewer multiplications.
DENSE = [
    _case("dense", (2, 9, 11, 16), 16, (3, 3)),
    _case("dense, odd channels", (1, 13, 12, 17), 35, (3, 3)),
    _case("dense, valid", (1, 16, 9, 20), 33, (3, 3), method=VALID),
    _case("dense, full", (2, 8, 9, 16), 24, (3, 3), method=FULL),
    _case("dense, clamp", (1, 12, 13, 16), 18, (3, 3), edge="clamp"),
    _case("dense, lopsided", (1, 13, 14, 19), 21, (3, 3), pads=(2, 0, 0, 1)),
    _case("dense, outside", (1, 12, 13, 16), 16, (3, 3), shift=(-3, 2), grow=(2, 1)),
    _case("dense, small images", (9, 5, 5, 16), 17, (3, 3)),
    _case("dense, many operands", (1, 12, 12, 132), 16, (3, 3)),
    _case("dense, many results", (1, 12, 11, 16), 150, (3, 3)),
    _case("dense, large batch", (12, 20, 18, 16), 16, (3, 3)),
    _case("dense, dilated", (2, 11, 14, 16), 17, (3, 3), dilation=(3, 2)),
]

# Windows one row high. Where many of their taps lie outside an image, in zeros, the CPU device
# leaves those out, by columns in place of rows: tiles that are full and others, phases of a stride,
# operands read in place and copied.
FLAT = [
    _case("flat, 7x1", (2, 9, 9, 20), 19, (7, 1)),
    _case("flat, taller", (1, 18, 17, 16), 33, (5, 1)),
    _case("flat, wider", (2, 4, 12, 17), 16, (7, 1)),
    _case("flat, one column", (2, 5, 1, 16), 18, (3, 1)),
    _case("flat, valid", (1, 11, 11, 18), 35, (7, 1), method=VALID),
    _case("flat, full", (3, 7, 5, 16), 21, (4, 1), method=FULL),
    _case("flat, lopsided", (1, 8, 7, 24), 17, (6, 1), pads=(4, 0, 0, 0)),
    _case("flat, s2", (2, 14, 13, 19), 22, (5, 1), (2, 2)),
    _case("flat, s3x1", (1, 12, 12, 16), 16, (7, 1), (3, 1), method=0x1C),
    _case("flat, stride beyond kernel", (1, 9, 9, 16), 17, (2, 1), (3, 2), pads=(2, 1, 0, 0)),
    _case("flat, dilated", (2, 10, 9, 16), 18, (3, 1), dilation=(4, 1)),
    _case("flat, dilated s2", (1, 10, 10, 16), 16, (5, 1), (2, 1), (3, 1)),
    _case("flat, windows outside", (1, 7, 6, 16), 16, (3, 1), shift=(-5, 0), grow=(4, 0)),
    _case("flat, rows outside", (1, 6, 6, 16), 16, (5, 1), shift=(0, -2), grow=(0, 3)),
    _case("flat, clamp", (1, 8, 8, 16), 19, (7, 1), edge="clamp"),
    _case("flat, groups", (2, 8, 8, 32), 48, (5, 1), groups=2),
    _case("flat, groups of 4", (1, 8, 8, 24), 24, (7, 1), groups=6),
    _case("flat, depthwise", (1, 9, 9, 21), 21, (7, 1), depthwise=True),
    _case("flat, few channels", (2, 9, 9, 3), 5, (7, 1)),
    _case("flat, one result", (2, 7, 7, 40), 1, (5, 1)),
    _case("flat, many channels", (2, 9, 9, 40), 48, (7, 1)),
    _case("flat, rows 4096 bytes apart", (1, 12, 16, 64), 64, (7, 1)),
]

# Taps so far apart that many lie outside an image: the CPU device does columns that have the same
# taps inside by themselves, with and without fewer multiplications otherwise.
APART = [
    _case("apart", (2, 9, 11, 20), 33, (3, 3), dilation=(5, 4)),
    _case("apart, square", (2, 14, 13, 16), 16, (3, 3), dilation=(6, 6)),
    _case("apart, a little", (2, 16, 17, 16), 18, (3, 3), dilation=(2, 2)),
    _case("apart, valid", (1, 15, 16, 17), 18, (3, 3), dilation=(6, 6), method=VALID),
    _case("apart, full", (1, 7, 9, 16), 17, (3, 2), dilation=(4, 3), method=FULL),
    _case("apart, s2", (1, 17, 18, 16), 20, (3, 3), (2, 2), (5, 5)),
    _case("apart, s3x4", (2, 13, 17, 7), 18, (7, 5), (3, 4)),
    _case("apart, groups", (1, 9, 10, 24), 48, (5, 5), dilation=(2, 2), groups=2),
    _case("apart, one result", (2, 9, 9, 40), 1, (5, 5), dilation=(2, 2)),
    _case("apart, few operands", (2, 12, 11, 3), 17, (5, 3), dilation=(3, 3)),
    _case("apart, wide", (1, 3, 64, 256), 3, (3, 3), dilation=(16, 1)),
    _case(
        "apart, outside", (1, 10, 9, 16), 16, (3, 3), dilation=(5, 5), shift=(-9, 7), grow=(9, 2)
    ),
    _case("apart, clamp", (1, 8, 9, 16), 17, (3, 3), dilation=(5, 5), edge="clamp"),
]


@dataclass(frozen=True)
class TransposeCase:
    """A source shape and a transposed convolution."""

    name: str
    shape: tuple[int, int, int, int]  # (N, H, W, I)
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    groups: int = 1
    method: int = SAME
    offset: tuple[int, int] = (0, 0)
    shift: tuple[int, int] = (0, 0)  # added to the kernel offset
    grow: tuple[int, int] = (0, 0)  # added to the size

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return self.name

    def _axes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        lengths = self.shape[2], self.shape[1]
        x, y = (
            core.place_reverse(*axis, self.method, a)
            for a, axis in zip(
                "xy", zip(lengths, self.kernel, self.stride, strict=True), strict=True
            )
        )
        return x, y

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the destination."""
        x, y = self._axes()
        return x[0] + self.grow[0], y[0] + self.grow[1]

    @property
    def kernel_offset(self) -> tuple[int, int]:
        """Offset in the stuffed source."""
        x, y = self._axes()
        return x[1] + self.shift[0], y[1] + self.shift[1]

    @property
    def source_size(self) -> tuple[int, int]:
        """Width and height of the source."""
        return self.shape[2], self.shape[1]

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the destination, (N, H, W, O)."""
        return self.shape[0], self.size[1], self.size[0], self.outputs

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """OHWI."""
        return self.outputs, self.kernel[1], self.kernel[0], self.shape[3] // self.groups

    @property
    def products(self) -> int:
        """Products, at most, in one element of the result: the rest meets inserted zeros."""
        x, y = (-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        return x * y * self.shape[3] // self.groups

    def transpose(self) -> Transpose:
        """Return the oracle's parameters."""
        return Transpose(self.stride, self.offset, self.kernel_offset, self.groups)


TRANSPOSES = [
    TransposeCase("one pixel", (1, 1, 1, 1), 1, (1, 1)),
    TransposeCase("one pixel to 3x2", (2, 1, 1, 3), 2, (3, 2), (2, 2), method=FULL),
    TransposeCase("3x3 s1", (2, 4, 5, 3), 4, (3, 3)),
    TransposeCase("3x3 s2", (1, 4, 3, 5), 2, (3, 3), (2, 2)),
    TransposeCase("3x3 s2 full", (2, 3, 4, 2), 5, (3, 3), (2, 2), method=FULL),
    TransposeCase("3x3 s2 valid", (1, 4, 3, 4), 4, (3, 3), (2, 2), method=VALID),
    TransposeCase("2x2 s2 full", (2, 3, 5, 8), 4, (2, 2), (2, 2), method=FULL),
    TransposeCase("4x4 s2", (1, 3, 4, 7), 3, (4, 4), (2, 2)),
    TransposeCase("4x4 s2 bottom right", (1, 3, 4, 1), 6, (4, 4), (2, 2), method=0x1C),
    TransposeCase("5x2 s3x1", (3, 2, 4, 2), 9, (5, 2), (3, 1), method=FULL),
    TransposeCase("stride beyond kernel", (1, 3, 4, 3), 2, (2, 1), (3, 4), method=FULL),
    TransposeCase("groups 2", (1, 3, 4, 8), 16, (3, 3), (2, 2), groups=2),
    TransposeCase("offsets", (1, 4, 5, 2), 3, (3, 3), (2, 2), offset=(1, -1), shift=(-1, 2)),
    TransposeCase("larger destination", (1, 2, 3, 2), 3, (3, 3), (2, 2), grow=(3, 2)),
]


@dataclass(frozen=True)
class FullyConnectedCase:
    """A source shape (N, H, W, I) and a number of outputs."""

    name: str
    shape: tuple[int, int, int, int]
    outputs: int

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return self.name

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """OHWI: the window is the image."""
        return self.outputs, *self.shape[1:]

    @property
    def products(self) -> int:
        """Products added up in one output."""
        return self.shape[1] * self.shape[2] * self.shape[3]


FULLY_CONNECTED = [
    FullyConnectedCase("one to one", (1, 1, 1, 1), 1),
    FullyConnectedCase("vector", (3, 1, 1, 7), 5),
    FullyConnectedCase("image", (2, 3, 5, 4), 10),
    FullyConnectedCase("even image", (5, 4, 2, 9), 3),
    FullyConnectedCase("prime", (1, 7, 3, 11), 13),
]


def arrays(
    rng: np.random.Generator, case: ConvolutionCase | TransposeCase
) -> tuple[npt.NDArray[np.float32], ...]:
    """Source, weights, biases and incoming gradient for a case, all float32 and normal."""
    shapes = case.shape, case.weights_shape, (case.outputs,), case.result_shape
    source, weights, biases, gradient = (
        rng.standard_normal(shape).astype("float32") for shape in shapes
    )
    return source, weights, biases, gradient
