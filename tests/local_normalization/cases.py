"""Shapes and parameters shared by the tests."""

from tests.local_normalization.oracle import CrossChannel, LocalContrast, Spatial

# (N, H, W, C)
SHAPES = [
    (1, 1, 1, 1),
    (2, 1, 1, 7),
    (1, 2, 3, 2),
    (3, 3, 1, 3),
    (1, 5, 4, 4),
    (2, 3, 5, 5),
    (1, 7, 3, 6),
    (5, 1, 5, 8),
    (2, 4, 3, 9),
]

CROSS_CHANNEL = [
    CrossChannel(1),
    CrossChannel(2, beta=1.0),
    CrossChannel(3, alpha=2.0, beta=0.75, delta=2.0),
    CrossChannel(4, alpha=0.5, beta=-1.5),
    CrossChannel(5),
    CrossChannel(5, alpha=1e-4, beta=0.75),
    CrossChannel(9, alpha=0.0),
    CrossChannel(20, beta=2.0, delta=0.5),
]

SPATIAL = [
    Spatial(1),
    Spatial(2, beta=1.0),
    Spatial(3),
    Spatial(3, alpha=2.0, beta=0.75, delta=0.5),
    Spatial(4, alpha=0.5, beta=2.0),
    Spatial(5, alpha=0.0),
    Spatial(7, beta=-0.5),
]

LOCAL_CONTRAST = [
    LocalContrast(1, alpha=1.0),
    LocalContrast(2, alpha=1.0, delta=0.5),
    LocalContrast(3),
    LocalContrast(3, alpha=1.0, beta=1.0, delta=1.0),
    LocalContrast(4, alpha=0.5, delta=0.25, p0=0.5, pm=-1.0, ps=2.0),
    LocalContrast(5, alpha=2.0, beta=0.75, delta=1.0, p0=0.0),
    LocalContrast(7, alpha=1.0, delta=2.0, pm=3.0, ps=-1.0),
]
