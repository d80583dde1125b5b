"""Shapes (N, H, W, C) shared by the tests and the benchmarks."""

SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 2),
    (2, 1, 3, 3),
    (1, 5, 2, 4),
    (3, 2, 3, 5),
    (1, 3, 7, 6),
    (2, 2, 2, 7),
    (5, 1, 1, 8),
    (2, 3, 2, 9),
    (4, 1, 1, 10),
    (1, 2, 3, 31),
    (1, 1, 2, 1000),
]

LAYERS = {
    "imagenet/classes": (256, 1, 1, 1000),
    "segmentation/classes": (8, 65, 65, 21),
    "attention/rows": (8, 128, 12, 128),
}
