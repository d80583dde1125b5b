"""Pooling cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.core import oracle as core
from tests.pooling.oracle import KINDS, Pooling

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

SAME, VALID, FULL = 0x10, 0x00, 0x20


@dataclass(frozen=True)
class PoolingCase:
    """A source shape and a pooling kernel; size and offset follow from a padding method.

    `pads` (left, right, top, bottom) replaces the method, as other frameworks pad. `shift` is added
    to the offset, and `grow` to the size, for windows that no policy would place.
    """

    name: str
    shape: tuple[int, int, int, int]  # (N, H, W, C)
    kernel: tuple[int, int]  # (x, y), as all pairs below
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
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
        """Centre of the first window."""
        x, y = self.placement()
        return x.offset + self.shift[0], y.offset + self.shift[1]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the destination."""
        x, y = self.placement()
        return x.size + self.grow[0], y.size + self.grow[1]

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Shape of the destination, (N, H, W, C)."""
        return self.shape[0], self.size[1], self.size[0], self.shape[3]

    def pooling(self, kind: str, **changes: Any) -> Pooling:
        """Return the kernel of this case."""
        kernel = Pooling(kind, self.kernel, self.stride, self.dilation, self.offset)
        return replace(kernel, **changes)


CASES = [
    PoolingCase("one pixel", (1, 1, 1, 1), (1, 1)),
    PoolingCase("one pixel, wide kernel", (2, 1, 1, 3), (3, 5)),
    PoolingCase("2x2 s2", (2, 8, 6, 4), (2, 2), (2, 2)),
    PoolingCase("2x2 s2 odd", (3, 7, 5, 5), (2, 2), (2, 2)),
    PoolingCase("2x2 s2 odd, remainder right", (1, 7, 5, 2), (2, 2), (2, 2), method=0x14),
    PoolingCase("2x2 s2 odd, remainder bottom", (1, 7, 5, 2), (2, 2), (2, 2), method=0x18),
    PoolingCase("3x3 s2 bottom right", (2, 6, 8, 9), (3, 3), (2, 2), method=0x1C),
    PoolingCase("3x3 s2 valid", (2, 7, 9, 3), (3, 3), (2, 2), method=VALID),
    PoolingCase("3x3 s1", (1, 5, 7, 1), (3, 3)),
    PoolingCase("4x4 s1", (1, 6, 5, 2), (4, 4)),
    PoolingCase("5x2 s3x1", (4, 3, 11, 7), (5, 2), (3, 1)),
    PoolingCase("full", (1, 4, 3, 6), (3, 2), method=FULL),
    PoolingCase("full bottom right", (2, 3, 5, 1), (2, 3), (2, 1), method=FULL | 0xC),
    PoolingCase("stride beyond kernel", (2, 13, 11, 4), (2, 3), (5, 4), method=VALID),
    PoolingCase("stride beyond kernel, same", (1, 17, 13, 5), (2, 1), (3, 4), method=0x1C),
    PoolingCase("align top left", (1, 6, 6, 3), (3, 3), (2, 2), method=SAME | 0x1),
    PoolingCase("align bottom right", (1, 6, 6, 3), (3, 3), (2, 2), method=SAME | 0x2),
    PoolingCase("whole image", (5, 7, 7, 8), (7, 7), method=VALID),
    PoolingCase("whole image, many channels", (2, 4, 5, 530), (5, 4), method=VALID),
    PoolingCase("row", (1, 1, 23, 2), (3, 1), (2, 1)),
    PoolingCase("column", (1, 19, 1, 3), (1, 4), (1, 3)),
    PoolingCase("symmetric padding", (2, 7, 7, 4), (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    PoolingCase("windows outside", (1, 4, 5, 2), (3, 2), (2, 2), shift=(-4, 3), grow=(3, 1)),
    PoolingCase("2x2 s2, more windows than source", (1, 6, 4, 3), (2, 2), (2, 2), grow=(2, 3)),
    PoolingCase("2x3 s2x3 inside", (2, 9, 8, 5), (2, 3), (2, 3), method=VALID),
    PoolingCase("2x2 s3x4", (1, 13, 10, 2), (2, 2), (3, 4), method=VALID),
    PoolingCase("channels 17", (1, 5, 4, 17), (2, 2), (1, 2)),
    PoolingCase("7x6 s1", (2, 9, 13, 3), (7, 6)),
    PoolingCase("11x13 s1, taller than the image", (1, 7, 15, 18), (11, 13)),
    PoolingCase("9x8 s2x3 full", (1, 11, 17, 5), (9, 8), (2, 3), method=FULL),
    PoolingCase("6x5 s1, windows outside", (2, 5, 8, 4), (6, 5), shift=(-5, 4), grow=(6, 4)),
]

# Pixels that are pages apart: of whole images, and of rows of windows.
PAGES = [
    PoolingCase("whole image, pixels of pages", (2, 3, 5, 1030), (5, 3), method=VALID),
    PoolingCase("5x2 s5, pixels of pages", (1, 2, 11, 1024), (5, 2), (5, 1)),
    PoolingCase("3x3 s1x2, pixels of pages", (2, 7, 6, 1024), (3, 3), (1, 2)),
    PoolingCase("3x3 d2, columns of pages", (1, 9, 8, 512), (3, 3), dilation=(2, 2)),
]

# Windows of many taps over pixels of many vectors, and some channels more.
WIDE = [
    PoolingCase("5x4 s2x3, wide pixels", (2, 6, 7, 150), (5, 4), (2, 3)),
    PoolingCase("4x4 s1, wide pixels", (1, 5, 6, 70), (4, 4)),
    PoolingCase("10x9 s1, wide pixels", (1, 9, 12, 70), (10, 9)),
    PoolingCase("4x3 s3x2 full, wide pixels", (1, 3, 4, 261), (4, 3), (3, 2), method=FULL),
]

DILATED = [
    PoolingCase("2x2 d2", (1, 5, 7, 3), (2, 2), dilation=(2, 2)),
    PoolingCase("3x3 d2", (2, 7, 6, 4), (3, 3), dilation=(2, 2)),
    PoolingCase("2x1 d3 s2", (1, 3, 11, 2), (2, 1), (2, 1), (3, 1)),
    PoolingCase("3x2 d1x3", (1, 9, 5, 5), (3, 2), (1, 2), (1, 3), method=VALID),
    PoolingCase("6x7 d3x2", (1, 15, 19, 2), (6, 7), dilation=(3, 2)),
    PoolingCase("4x3 d2x3 full", (1, 4, 3, 1), (4, 3), (3, 2), (2, 3), method=FULL),
    PoolingCase("2x1 d2 s2, a window of both edges", (1, 3, 2, 2), (2, 1), (2, 1), (2, 1)),
    PoolingCase("3x3 d4, image inside the gaps", (2, 3, 3, 7), (3, 3), dilation=(4, 4)),
]


def kernels(case: PoolingCase) -> Iterator[Pooling]:
    """Every kernel to run a case with: each kind, each edge mode, with and without zero border."""
    dilated = case.dilation != (1, 1)
    for kind in ("MAX",) if dilated else KINDS:
        for edge in ("zero", "clamp"):
            yield case.pooling(kind, edge=edge)
            if kind == "AVERAGE":
                yield case.pooling(kind, edge=edge, zero_pad=(1, 2))


def untied(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Distinct values of both signs in random order, so that no maximum is tied.

    They are odd multiples of a power of two: exact in float32, in float16 up to 2048 of them, and
    never 0.
    """
    count = int(np.prod(shape))
    odd = 2 * rng.permutation(count) + 1 - count - count % 2
    return np.asarray(odd.reshape(shape) / 2.0 ** np.ceil(np.log2(max(count, 2))), np.float32)
