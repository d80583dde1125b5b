"""Element-wise operations with broadcasting by stride, in float64.

A result pixel (i, j) of channel c reads the element at ``offset + stride * (i, j)`` and channel
``stride * c`` of each source; gradients are scattered back to where they were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.core.oracle import Indices, inside, sample

if TYPE_CHECKING:
    from tests.core.oracle import Array

FLT_MAX = float(np.finfo(np.float32).max)
KINDS = ("Add", "Subtract", "Multiply", "Divide")
DIFFERENTIABLE = KINDS[:3]
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_OR_EQUAL", "GREATER", "GREATER_OR_EQUAL")


@dataclass(frozen=True)
class Source:
    """How one source is read."""

    offset: tuple[int, int] = (0, 0)  # x, y
    strides: tuple[int, int, int] = (1, 1, 1)  # x, y, channels
    edge: str = "zero"

    def places(self, size: tuple[int, int], channels: int) -> tuple[Indices, Indices, Indices]:
        """Rows, columns and channels read for a result of (width, height) and `channels`."""
        counts = (size[1], size[0], channels)
        strides = (self.strides[1], self.strides[0], self.strides[2])
        starts = (self.offset[1], self.offset[0], 0)
        rows, columns, lanes = (
            start + stride * np.arange(count)
            for start, stride, count in zip(starts, strides, counts, strict=True)
        )
        return rows, columns, lanes

    def read(self, values: npt.ArrayLike, size: tuple[int, int], channels: int) -> Array:
        """Return the source as a result of (width, height) and `channels` sees it."""
        rows, columns, lanes = self.places(size, channels)
        return sample(np.asarray(values, np.float64), rows, columns, self.edge)[..., lanes]

    def scatter(self, terms: Array, shape: tuple[int, ...]) -> Array:
        """Add every term to the element of a source of `shape` that it was read from."""
        _, height, width, channels = terms.shape
        rows, columns, lanes = self.places((width, height), channels)
        result = np.zeros(shape)
        near = [np.clip(i, 0, n - 1) for i, n in zip((rows, columns), shape[1:3], strict=True)]
        if self.edge == "zero":
            there = inside(rows, shape[1])[:, None] & inside(columns, shape[2])[None, :]
            terms = np.where(there[:, :, None], terms, 0.0)
        index = np.ix_(np.arange(shape[0]), *near, lanes)
        np.add.at(result, index, terms)
        return result


@dataclass(frozen=True)
class Operation:
    """An operation with its settings."""

    kind: str
    scales: tuple[float, float] = (1.0, 1.0)
    bias: float = 0.0
    limits: tuple[float, float] = (-FLT_MAX, FLT_MAX)

    def unlimited(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
        """Result before it is clamped."""
        p = self.scales[0] * np.asarray(x, np.float64)
        q = self.scales[1] * np.asarray(y, np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            joined = {
                "Add": lambda: p + q,
                "Subtract": lambda: p - q,
                "Multiply": lambda: p * q,
                "Divide": lambda: p / q,
            }[self.kind]()
        return joined + self.bias

    def apply(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
        """Result of two sources as they are read."""
        r = self.unlimited(x, y)
        return np.where(np.isnan(r), r, np.clip(r, *self.limits))

    def mask(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell where the result lies strictly between the limits."""
        r = self.unlimited(x, y)
        return (self.limits[0] < r) & (r < self.limits[1])

    def scale(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
        """Magnitudes that are added up: what roundings are relative to."""
        p = np.abs(self.scales[0] * np.asarray(x, np.float64))
        q = np.abs(self.scales[1] * np.asarray(y, np.float64))
        if self.kind in ("Add", "Subtract"):
            return p + q + abs(self.bias)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (p * q if self.kind == "Multiply" else p / q) + abs(self.bias)


def terms(
    kind: str,
    g: npt.ArrayLike,
    other: npt.ArrayLike,
    mask: npt.NDArray[np.bool_],
    primary_scale: float,
    secondary_scale: float,
) -> Array:
    """Gradient of each element of the result, before it is summed; `other` is for products."""
    t = primary_scale * np.asarray(g, np.float64)
    if kind == "Multiply":
        t = t * (secondary_scale * np.asarray(other, np.float64))
    return np.where(mask, t, 0.0)


def gradient_scales(operation: Operation, secondary: bool) -> tuple[float, float]:
    """Return (primary_scale, secondary_scale) that a caller has to set for a forward pass."""
    p, q = operation.scales
    own, opposite = (q, p) if secondary else (p, q)
    if operation.kind == "Multiply":
        return own, opposite
    return (-own if operation.kind == "Subtract" and secondary else own), 1.0


def compare(comparison: str, x: npt.ArrayLike, y: npt.ArrayLike, threshold: float = 0.0) -> Array:
    """1 where the comparison holds, else 0."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    equal = np.abs(x - y) <= threshold
    holds = {
        "EQUAL": equal,
        "NOT_EQUAL": ~equal,
        "LESS": x < y,
        "LESS_OR_EQUAL": (x < y) | equal,
        "GREATER": x > y,
        "GREATER_OR_EQUAL": (x > y) | equal,
    }[comparison]
    return holds.astype(np.float64)
