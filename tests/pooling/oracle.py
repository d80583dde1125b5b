"""Pooling and its gradient in float64, tap by tap.

Pairs are (x, y), images (N, H, W, C). Every channel and every image is pooled on its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.core.oracle import inside, positions, reach, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.core.oracle import Array, Indices, Pair

KINDS = ("MAX", "AVERAGE", "L2_NORM")


@dataclass(frozen=True)
class Pooling:
    """What a pooling kernel is told."""

    kind: str
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    offset: Pair = (0, 0)  # centre of the first window
    edge: str = "zero"
    zero_pad: Pair = (0, 0)  # average with "clamp" only


def window_positions(p: Pooling, columns: npt.ArrayLike, rows: npt.ArrayLike) -> list[Indices]:
    """Source coordinates of the windows in these columns and rows: x, then y."""
    return [
        positions(np.asarray(windows), p.kernel[a], p.stride[a], p.dilation[a], p.offset[a])
        for a, windows in enumerate((columns, rows))
    ]


def each_tap(xs: Indices, ys: Indices) -> Iterator[tuple[Indices, Indices]]:
    """Yield (rows, columns) read by one tap of every window, in row-major order of the taps."""
    for ty in range(ys.shape[1]):
        for tx in range(xs.shape[1]):
            yield ys[:, ty], xs[:, tx]


def divisors(p: Pooling, xs: Indices, ys: Indices, width: int, height: int) -> Array:
    """Number of taps an average divides by, shape (rows, columns)."""
    if p.edge == "zero":
        return np.full((len(ys), len(xs)), float(p.kernel[0] * p.kernel[1]))
    counts = [
        ((at >= -pad) & (at <= length - 1 + pad)).sum(axis=1)
        for at, length, pad in ((xs, width, p.zero_pad[0]), (ys, height, p.zero_pad[1]))
    ]
    return np.asarray(counts[1][:, None] * counts[0][None, :], np.float64)


def _pool(p: Pooling, source: Array, xs: Indices, ys: Indices) -> Array:
    """Pooled values of the windows at these coordinates."""
    count, height, width, channels = source.shape
    shape = count, len(ys), len(xs), channels
    if p.kind == "MAX":
        result = np.full(shape, -np.inf)
        for rows, columns in each_tap(xs, ys):
            np.maximum(result, sample(source, rows, columns, p.edge), out=result)
        return result
    result = np.zeros(shape)
    for rows, columns in each_tap(xs, ys):
        if p.kind == "L2_NORM":
            result += sample(source, rows, columns, p.edge) ** 2
        else:
            result += sample(source, rows, columns, "zero")
    if p.kind == "L2_NORM":
        return np.sqrt(result)
    divisor = divisors(p, xs, ys, width, height)[:, :, None]
    return np.divide(result, divisor, out=np.zeros_like(result), where=divisor > 0)


def forward(p: Pooling, source: npt.ArrayLike, size: Pair) -> Array:
    """Pool into a destination (or clip rectangle) of `size` pixels."""
    source = np.asarray(source, np.float64)
    xs, ys = window_positions(p, np.arange(size[0]), np.arange(size[1]))
    return _pool(p, source, xs, ys)


def gradient(
    p: Pooling,
    source_gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    primary_offset: Pair = (0, 0),
    source_size: tuple[float, float] = (np.inf, np.inf),
) -> Array:
    """Gradient with respect to the whole source; `p.offset` is the secondary offset.

    Pixels of `source_gradient` from `primary_offset` on, at most `source_size` of them, belong to
    the windows counted from 0; the others do not count.
    """
    incoming = np.asarray(source_gradient, np.float64)
    source = np.asarray(source, np.float64)
    height, width = source.shape[1:3]
    used = [
        np.arange(max(0, first), int(min(length, first + limit)))
        for length, first, limit in zip(
            incoming.shape[2:0:-1], primary_offset, source_size, strict=True
        )
    ]
    g = incoming[:, used[1][:, None], used[0][None, :]]
    xs, ys = window_positions(p, used[0] - primary_offset[0], used[1] - primary_offset[1])
    result = np.zeros_like(source)

    def add(rows: Indices, columns: Indices, share: Array) -> None:
        near_rows, near_columns = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
        # Several windows may read one pixel, so += on a fancy index would lose all but one of them.
        np.add.at(result, (slice(None), near_rows[:, None], near_columns[None, :]), share)

    def there(rows: Indices, columns: Indices) -> npt.NDArray[np.bool_]:
        if p.edge == "clamp" and p.kind != "AVERAGE":
            return np.ones((len(rows), len(columns), 1), bool)
        mask = inside(rows, height)[:, None] & inside(columns, width)[None, :]
        return mask[:, :, None]

    if p.kind == "MAX":
        winner = _winners(p, source, xs, ys)
        for tap, (rows, columns) in enumerate(each_tap(xs, ys)):
            add(rows, columns, np.where(winner == tap, g, 0.0))
    elif p.kind == "AVERAGE":
        divisor = divisors(p, xs, ys, width, height)[:, :, None]
        share = np.divide(g, divisor, out=np.zeros_like(g), where=divisor > 0)
        for rows, columns in each_tap(xs, ys):
            add(rows, columns, np.where(there(rows, columns), share, 0.0))
    else:
        pooled = _pool(p, source, xs, ys)
        share = np.divide(g, pooled, out=np.zeros_like(g), where=pooled > 0)
        for rows, columns in each_tap(xs, ys):
            values = share * sample(source, rows, columns, p.edge)
            add(rows, columns, np.where(there(rows, columns), values, 0.0))
    return result


def _winners(p: Pooling, source: Array, xs: Indices, ys: Indices) -> npt.NDArray[np.intp]:
    """Index of the tap that gets the gradient of each window, -1 where none does."""
    height, width = source.shape[1:3]
    shape = source.shape[0], len(ys), len(xs), source.shape[3]
    best, winner = np.full(shape, -np.inf), np.full(shape, -1)
    for tap, (rows, columns) in enumerate(each_tap(xs, ys)):
        values = sample(source, rows, columns, "clamp")
        if p.edge == "zero":
            there = inside(rows, height)[:, None] & inside(columns, width)[None, :]
            values = np.where(there[:, :, None], values, -np.inf)
        better = values > best  # strict: the first of equal taps stays
        best, winner = np.where(better, values, best), np.where(better, tap, winner)
    if p.edge == "zero":
        # A padding zero above every inside pixel takes the gradient with it; one equal to the
        # largest of them does not.
        padded = [~inside(at, length).all(axis=1) for at, length in ((xs, width), (ys, height))]
        hidden = (padded[1][:, None] | padded[0][None, :])[:, :, None] & (best < 0)
        winner = np.where(hidden, -1, winner)
    return winner


def excluding_edges(p: Pooling) -> Pooling:
    """Return an average as the padding method's bit ExcludeEdges sets it up."""
    x, y = (max(0, reach(p.kernel[a], p.dilation[a]) - p.offset[a]) for a in (0, 1))
    return replace(p, edge="clamp", zero_pad=(x, y))


def first_pixel(p: Pooling) -> Pair:
    """First source pixel of the first window inside the source: what the clip origin receives."""
    x, y = (max(0, p.offset[a] - reach(p.kernel[a], p.dilation[a])) for a in (0, 1))
    return x, y


def write(
    p: Pooling, result: Array, destination: Array, origin: Pair = (0, 0), size: Pair | None = None
) -> Array:
    """Place a gradient into (a copy of) the caller's destination, through its clip rectangle."""
    written = destination.astype(np.float64)
    height, width = destination.shape[1:3]
    columns, rows = (
        np.arange(first, bound if size is None else min(first + size[a], bound)) - first
        for a, (first, bound) in enumerate(zip(origin, (width, height), strict=True))
    )
    x, y = first_pixel(p)
    values = sample(result, y + rows, x + columns, "zero")
    written[:, origin[1] : origin[1] + len(rows), origin[0] : origin[0] + len(columns)] = values
    return written
