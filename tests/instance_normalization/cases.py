"""Shapes (N, H, W, C) shared by the tests and the benchmarks."""

SHAPES = [
    (1, 1, 1, 1),
    (2, 1, 1, 5),
    (1, 3, 5, 1),
    (3, 2, 3, 2),
    (2, 1, 7, 3),
    (1, 5, 2, 4),
    (5, 2, 2, 6),
    (1, 3, 3, 7),
    (2, 4, 3, 8),
    (1, 13, 1, 9),
]

LAYERS = {
    "style transfer/down1": (4, 256, 256, 32),
    "style transfer/residual": (4, 64, 64, 128),
    "cyclegan/residual": (1, 64, 64, 256),
}
