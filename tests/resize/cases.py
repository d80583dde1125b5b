"""Cases of resizing, cropping and grid sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.resize.oracle import Resize

if TYPE_CHECKING:
    from tests.core.oracle import Pair
    from tests.resize.oracle import Region


@dataclass(frozen=True)
class ResizeCase:
    """A source shape and the size of the result, (width, height)."""

    shape: tuple[int, int, int, int]  # (N, H, W, C)
    size: Pair

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return f"{'x'.join(map(str, self.shape))} to {self.size[0]}x{self.size[1]}"

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, (N, H, W, C)."""
        return self.shape[0], self.size[1], self.size[0], self.shape[3]


CASES = [
    ResizeCase((1, 1, 1, 1), (1, 1)),
    ResizeCase((2, 1, 1, 3), (4, 3)),
    ResizeCase((2, 5, 7, 4), (7, 5)),
    ResizeCase((1, 5, 7, 1), (3, 2)),
    ResizeCase((2, 4, 3, 5), (5, 9)),
    ResizeCase((1, 11, 13, 8), (1, 1)),
    ResizeCase((3, 3, 5, 21), (10, 7)),
    ResizeCase((1, 6, 1, 2), (3, 11)),
    ResizeCase((1, 1, 9, 16), (4, 4)),
    ResizeCase((1, 17, 2, 19), (5, 3)),
    ResizeCase((1, 2, 3, 33), (7, 3)),
    ResizeCase((1, 2, 2, 1100), (3, 3)),
    ResizeCase((1, 3, 2, 3), (3, 97)),  # more rows than a task has
]

# Whole, part of, beyond, mirrored, a point, and outside altogether. All numbers are exact, and so
# are positions in sources of 2^n + 1 pixels.
REGIONS: list[Region] = [
    (0.0, 0.0, 1.0, 1.0),
    (0.25, 0.5, 0.5, 0.25),
    (-0.25, 0.125, 1.0, 1.25),
    (1.0, 0.75, -0.75, -0.5),
    (0.375, 0.625, 0.0, 0.0),
    (1.5, 0.0, 1.0, 1.0),
]


@st.composite
def resizes(
    draw: st.DrawFn,
) -> tuple[tuple[int, int, int, int], Resize, Pair, Pair, Pair]:
    """A source shape, a kernel, a destination, and its clip rectangle."""

    def pair(least: int, most: int) -> tuple[int, int]:
        return draw(st.integers(least, most)), draw(st.integers(least, most))

    width, height = pair(1, 6)
    shape = draw(st.integers(1, 3)), height, width, draw(st.integers(1, 9) | st.integers(16, 40))
    edge = draw(st.sampled_from(["zero", "clamp"]))
    r = Resize(pair(1, 9), draw(st.booleans()), pair(-3, 4), edge)
    size = pair(1, 12)
    origin = draw(st.integers(0, size[0] - 1)), draw(st.integers(0, size[1] - 1))
    extent = draw(st.integers(1, size[0])), draw(st.integers(1, size[1]))
    return shape, r, size, origin, extent
