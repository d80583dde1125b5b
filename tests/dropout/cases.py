"""Shapes, mask strides and probabilities shared by the tests."""

# (N, H, W, C)
SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 5),
    (2, 3, 5, 2),
    (3, 2, 1, 3),
    (1, 7, 4, 4),
    (5, 1, 3, 7),
    (2, 4, 3, 8),
    (1, 5, 2, 9),
]

# (width, height, depth): 1 for a value of its own at every position, 0 for one value shared.
MASK_STRIDES = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]

KEEP_PROBABILITIES = [0.1, 0.5, 0.75, 0.999]
