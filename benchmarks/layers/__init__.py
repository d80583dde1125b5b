"""Shapes of layers of real networks: text files, and the parser that reads them.

A line is a name, then sizes such as ``56x56x64``, then options ``name=value`` or a bare word. Text
after ``#`` is a comment.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ConvolutionLayer", "Line", "PoolingLayer", "parse", "read", "smaller", "window_size"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Line:
    """One layer as the file has it: sizes in order, options by name."""

    name: str
    sizes: tuple[tuple[int, ...], ...]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The first size, as height, width, channels."""
        height, width, channels = self.sizes[0]
        return height, width, channels

    def quick(self) -> Line:
        """Return a layer of the same kind that takes little time."""
        (height, width, channels), *others = self.sizes
        shape = min(height, 16), min(width, 16), smaller(channels)
        return replace(self, sizes=(shape, *others))

    def number(self, position: int) -> int:
        """Return a size that is one number."""
        (value,) = self.sizes[position]
        return value

    def pair(self, name: str, default: int) -> Pair:
        """Return an option that is one number, or height and width."""
        values = _size(self.options.get(name, str(default)))
        height, width = values * 2 if len(values) == 1 else values
        return height, width

    def words(self, name: str) -> tuple[str, ...]:
        """Return an option's words, which commas separate."""
        text = self.options.get(name, "")
        return tuple(text.split(",")) if text else ()


def _size(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("x"))


def parse(text: str, origin: str) -> Iterator[Line]:
    """Yield the layers of a text.

    Raises
    ------
    ValueError
        If a line is not understood, or a name stands there twice; it names the file and the line.
    """
    seen = set()
    for number, line in enumerate(text.splitlines(), 1):
        name, *words = line.partition("#")[0].split() or [""]
        if not name:
            continue
        try:
            sizes = tuple(_size(word) for word in words if word[0].isdigit())
            options = dict(word.partition("=")[::2] for word in words if not word[0].isdigit())
            if name in seen or not sizes or min(map(min, sizes)) < 1:
                raise ValueError
        except ValueError:
            raise ValueError(f"{origin}, line {number}: cannot read {line.strip()!r}") from None
        seen.add(name)
        yield Line(name, sizes, options)


def read(name: str) -> list[Line]:
    """Return the layers of ``<name>.txt``."""
    file = resources.files(__package__) / f"{name}.txt"
    return list(parse(file.read_text(encoding="utf-8"), f"{name}.txt"))


def smaller(channels: int) -> int:
    """Return a small number of channels in place of a large one."""
    return channels if channels < 16 else max(channels // 8, 4)


def window_size(length: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Return how many windows lie along an axis, with zeros on both sides."""
    return (length + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


@dataclass(frozen=True)
class _Windows:
    """A source and the windows that move over it. Pairs are (height, width)."""

    name: str
    shape: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    pad: Pair
    dilation: Pair

    @property
    def size(self) -> Pair:
        """Height and width of the result."""
        height, width = (
            window_size(*axis)
            for axis in zip(
                self.shape, self.kernel, self.stride, self.pad, self.dilation, strict=False
            )
        )
        return height, width


@dataclass(frozen=True)
class ConvolutionLayer(_Windows):
    """A line of ``convolution.txt``."""

    outputs: int
    groups: int
    depthwise: bool

    @classmethod
    def of(cls, line: Line) -> ConvolutionLayer:
        """Return the layer that a line describes."""
        return cls(
            line.name,
            line.shape,
            line.sizes[2],  # type: ignore[arg-type]
            line.pair("stride", 1),
            line.pair("pad", 0),
            line.pair("dilation", 1),
            line.number(1),
            int(line.options.get("groups", "1")),
            "depthwise" in line.options,
        )

    def quick(self) -> ConvolutionLayer:
        """Return a layer of the same kind that takes little time."""
        height, width, channels = self.shape
        return replace(
            self,
            shape=(min(height, 16), min(width, 16), smaller(channels)),
            outputs=smaller(self.outputs),
            groups=smaller(self.groups),
        )

    @property
    def inputs(self) -> int:
        """Channels that one filter reads."""
        return 1 if self.depthwise else self.shape[2] // self.groups

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """OHWI, or OHW for depthwise weights."""
        window = self.outputs, *self.kernel
        return window if self.depthwise else (*window, self.inputs)

    def flops(self, batch: int) -> int:
        """Return two operations for every product of the forward pass; each gradient has as many.

        Products with the zeros of the padding count.
        """
        products = self.kernel[0] * self.kernel[1] * self.inputs
        return 2 * batch * self.size[0] * self.size[1] * self.outputs * products


@dataclass(frozen=True)
class PoolingLayer(_Windows):
    """A line of ``pooling.txt``."""

    kinds: tuple[str, ...]

    @classmethod
    def of(cls, line: Line) -> PoolingLayer:
        """Return the layer that a line describes."""
        return cls(
            line.name,
            line.shape,
            line.sizes[1],  # type: ignore[arg-type]
            line.pair("stride", 1),
            line.pair("pad", 0),
            line.pair("dilation", 1),
            line.words("kinds"),
        )
