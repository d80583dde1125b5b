"""Upsampling cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.upsampling.oracle import KINDS, Upsampling

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class UpsamplingCase:
    """A source shape and the factors along x and y."""

    shape: tuple[int, int, int, int]  # (N, H, W, C)
    factor: tuple[int, int]

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return f"{'x'.join(map(str, self.shape))} by {self.factor[0]}x{self.factor[1]}"

    @property
    def source(self) -> tuple[int, int]:
        """Width and height of the source."""
        return self.shape[2], self.shape[1]

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, (N, H, W, C)."""
        count, height, width, channels = self.shape
        return count, height * self.factor[1], width * self.factor[0], channels

    def kernels(self) -> Iterator[Upsampling]:
        """Every kernel of these factors."""
        for kind in KINDS:
            yield Upsampling(kind, self.factor)


CASES = [
    UpsamplingCase((1, 1, 1, 1), (1, 1)),
    UpsamplingCase((2, 1, 1, 3), (4, 3)),
    UpsamplingCase((2, 3, 4, 4), (1, 1)),
    UpsamplingCase((1, 5, 7, 1), (2, 2)),
    UpsamplingCase((2, 4, 3, 5), (2, 1)),
    UpsamplingCase((1, 4, 3, 8), (1, 2)),
    UpsamplingCase((3, 3, 5, 21), (2, 2)),
    UpsamplingCase((1, 6, 1, 2), (3, 5)),
    UpsamplingCase((1, 1, 9, 16), (4, 4)),
    UpsamplingCase((1, 3, 2, 19), (8, 8)),
    UpsamplingCase((1, 2, 3, 33), (7, 3)),
    UpsamplingCase((1, 2, 2, 1100), (2, 2)),
    UpsamplingCase((1, 37, 2, 3), (2, 2)),  # more rows than a task has
]


@st.composite
def upsamplings(
    draw: st.DrawFn,
) -> tuple[UpsamplingCase, Upsampling, tuple[int, int], tuple[int, int], tuple[int, int]]:
    """A case, a kernel with offset and edge mode, a destination, and its clip rectangle."""

    def pair(least: int, most: int) -> tuple[int, int]:
        return draw(st.integers(least, most)), draw(st.integers(least, most))

    width, height = pair(1, 6)
    shape = draw(st.integers(1, 3)), height, width, draw(st.integers(1, 9) | st.integers(16, 40))
    case = UpsamplingCase(shape, pair(1, 4))
    edge = draw(st.sampled_from(["zero", "clamp"]))
    u = Upsampling(draw(st.sampled_from(KINDS)), case.factor, pair(-3, 4), edge)
    size = pair(1, 12)
    origin = draw(st.integers(0, size[0] - 1)), draw(st.integers(0, size[1] - 1))
    extent = draw(st.integers(1, size[0])), draw(st.integers(1, size[1]))
    return case, u, size, origin, extent
