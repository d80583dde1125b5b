"""Shapes, ways to broadcast and printed examples, shared by the tests."""

from __future__ import annotations

import numpy as np

# (N, H, W, C) of the result.
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 2),
    (1, 4, 3, 3),
    (3, 2, 2, 4),
    (1, 5, 7, 5),
    (2, 9, 4, 8),
    (1, 1, 13, 9),
    (2, 2, 3, 37),
    (1, 17, 19, 16),
    (1, 3, 2, 530),
    (1, 70, 61, 3),
]

# Strides (x, y, channels) of the primary and of the secondary source.
BROADCASTS = {
    "none": ((1, 1, 1), (1, 1, 1)),
    "bias": ((1, 1, 1), (0, 0, 1)),
    "bias first": ((0, 0, 1), (1, 1, 1)),
    "scalar": ((1, 1, 1), (0, 0, 0)),
    "one channel": ((1, 1, 1), (1, 1, 0)),
    "one column": ((1, 1, 1), (0, 1, 1)),
    "one row": ((1, 1, 1), (1, 0, 1)),
    "one row of one channel": ((1, 1, 1), (1, 0, 0)),
    "one column of one channel": ((1, 1, 1), (0, 1, 0)),
    "crossed": ((0, 1, 1), (1, 0, 1)),
    "outer": ((1, 1, 0), (0, 0, 1)),
}


def source_shape(shape: tuple[int, ...], strides: tuple[int, int, int]) -> tuple[int, ...]:
    """Shape of a source that is as small as its strides allow."""
    n, h, w, c = shape
    return n, h if strides[1] else 1, w if strides[0] else 1, c if strides[2] else 1


# The specification's worked examples: two pixels of two channels, and one pixel repeated.
X = np.array([[1, 2], [3, 4]], np.float32).reshape(1, 1, 2, 2)
Y = np.array([10, 20], np.float32).reshape(1, 1, 1, 2)
PRINTED = {
    # kind: scales, bias, result, dL/dx, dL/dy for incoming ones
    "Add": ((2.0, 0.5), 1.0, [[8, 15], [12, 19]], [[2, 2], [2, 2]], [1, 1]),
    "Multiply": ((2.0, 0.5), 0.0, [[10, 40], [30, 80]], [[10, 20], [10, 20]], [4, 6]),
}
