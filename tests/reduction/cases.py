"""Shapes and regions shared by the tests."""

import mpsgrad as mg

AXES = {"Row": 2, "Column": 1, "FeatureChannels": 3}  # what a reduction sums over, of (N, H, W, C)
KINDS = ["Min", "Max", "Mean", "Sum"]

# Every class of one source: axis of the array, kind.
UNARY = {
    "ReduceRowMin": (2, "Min"),
    "ReduceRowMax": (2, "Max"),
    "ReduceRowMean": (2, "Mean"),
    "ReduceRowSum": (2, "Sum"),
    "ReduceColumnMin": (1, "Min"),
    "ReduceColumnMax": (1, "Max"),
    "ReduceColumnMean": (1, "Mean"),
    "ReduceColumnSum": (1, "Sum"),
    "ReduceFeatureChannelsMin": (3, "Min"),
    "ReduceFeatureChannelsMax": (3, "Max"),
    "ReduceFeatureChannelsMean": (3, "Mean"),
    "ReduceFeatureChannelsSum": (3, "Sum"),
    "ReduceFeatureChannelsArgumentMin": (3, "ArgumentMin"),
    "ReduceFeatureChannelsArgumentMax": (3, "ArgumentMax"),
}

# (N, H, W, C)
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 2),
    (3, 2, 1, 3),
    (1, 7, 4, 4),
    (2, 1, 9, 7),
    (1, 5, 2, 9),
    (2, 13, 11, 16),
    (1, 4, 3, 33),
    (1, 2, 300, 3),
    (1, 1, 3500, 3),
    (1, 301, 2, 1),
    (1, 3, 2, 517),
    # pixels of whole vectors, and rows that are no multiple of four of them
    (1, 2, 6, 8),
    (2, 3, 7, 32),
    (1, 2, 5, 48),
    (1, 2, 41, 64),
    (1, 2, 1027, 16),
    (1, 1, 3500, 32),
]

# Of a source 7 wide and 6 high: region, and the slices that it is.
REGIONS = [
    (mg.Region((2, 1), (3, 4)), slice(1, 5), slice(2, 5)),
    (mg.Region((0, 5), (7, 1)), slice(5, 6), slice(0, 7)),
    (mg.Region((4, 2), (100, None)), slice(2, 6), slice(4, 7)),  # cut to the image
]

# Of LocalCorrelation: window_in_x, window_in_y, stride_in_x, stride_in_y.
WINDOWS = [(0, 0, 1, 1), (1, 0, 1, 1), (0, 2, 1, 3), (2, 1, 2, 1), (4, 4, 1, 1)]
