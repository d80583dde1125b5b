"""Shapes (N, H, W, C) with numbers of groups, shared by the tests."""

CASES = [
    ((1, 1, 1, 1), 1),
    ((2, 1, 1, 4), 2),
    ((1, 3, 5, 2), 1),
    ((2, 3, 2, 3), 3),
    ((3, 2, 3, 4), 2),
    ((1, 5, 3, 6), 3),
    ((2, 1, 7, 7), 1),
    ((1, 4, 3, 8), 4),
    ((5, 2, 1, 9), 3),
    ((1, 3, 3, 10), 5),
    ((2, 2, 2, 12), 1),
    ((1, 2, 3, 15), 15),
    ((2, 1, 2, 74), 2),
    ((1, 2, 2, 48), 3),
]
# groups of more channels than fill a vector, and more channels than loops take at a time
MANY_CHANNELS = [((1, 2, 3, 2100), 3), ((3, 7, 7, 1056), 32)]
# small images that are normalized slice by slice of their channels: pixels less than a page apart
# and more, slices of equal width and not, channels that fill no vector
SLICES = [
    ((2, 7, 7, 320), 32),
    ((1, 3, 4, 77), 7),
    ((2, 15, 14, 288), 9),
    ((16, 2, 3, 1072), 67),
]
# an image of several megabytes, which is summed in runs of another length
LONG_RUNS = [((1, 701, 700, 3), 1)]

# of instance normalization: one group for each channel
INSTANCE_SHAPES = [
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
