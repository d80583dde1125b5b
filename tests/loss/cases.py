"""Losses, shapes and inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.loss.oracle import REDUCTIONS, TYPES, Loss
from tests.loss.yolo import assign
from tests.softmax.oracle import log_softmax, softmax

if TYPE_CHECKING:
    import numpy.typing as npt

    from tests.loss.yolo import YOLO

    Batch = npt.NDArray[np.float32]

# (N, H, W, C)
SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 5),
    (2, 1, 2, 1),
    (3, 1, 1, 10),
    (2, 3, 5, 4),
    (5, 2, 1, 3),
    (1, 4, 3, 7),
    (2, 2, 3, 9),
]


# Every legal pair of type and reduction.
LOSSES = [
    Loss(kind, reduction, across)
    for kind in TYPES
    for reduction in REDUCTIONS
    for across in (False, True)
    if kind != "COSINE_DISTANCE" or reduction == "SUM"
]

VARIED = [
    Loss("SOFT_MAX_CROSS_ENTROPY", "MEAN", label_smoothing=0.3, number_of_classes=3),
    Loss("SOFT_MAX_CROSS_ENTROPY", "SUM", label_smoothing=1.0, number_of_classes=10),
    Loss("SIGMOID_CROSS_ENTROPY", "MEAN", label_smoothing=0.2),
    Loss("MEAN_SQUARED_ERROR", "SUM", label_smoothing=0.5, weight=0.125),
    Loss("HUBER", "SUM", delta=0.25),
    Loss("HUBER", "NONE", delta=3.0, weight=-2.0),
    Loss("LOG", "MEAN", epsilon=0.01),
    Loss("LOG", "SUM", epsilon=0.0),
    Loss("HINGE", "SUM_BY_NON_ZERO_WEIGHTS", weight=3.0),
]


def name(loss: Loss) -> str:
    """Name a loss, for test ids."""
    across = "-batch" if loss.reduce_across_batch else ""
    return f"{loss.type.lower()}-{loss.reduction.lower()}{across}"


def predictions(rng: np.random.Generator, loss: Loss, shape: tuple[int, ...]) -> Batch:
    """Predictions of the kind the loss expects: logits, probabilities or log-probabilities."""
    y = 2 * rng.standard_normal(shape)
    if loss.type in ("CATEGORICAL_CROSS_ENTROPY", "LOG"):
        y = rng.uniform(0.05, 0.95, shape) if loss.type == "LOG" else softmax(y)
    elif loss.type == "KULLBACK_LEIBLER_DIVERGENCE":
        y = log_softmax(y)
    return y.astype(np.float32)


def labels(rng: np.random.Generator, loss: Loss, shape: tuple[int, ...]) -> Batch:
    """Labels of the kind the loss expects: classes, 0 or 1, distributions or values."""
    match loss.type:
        case "SOFT_MAX_CROSS_ENTROPY" | "CATEGORICAL_CROSS_ENTROPY":
            t = np.eye(shape[-1])[rng.integers(0, shape[-1], shape[:-1])]
        case "SIGMOID_CROSS_ENTROPY" | "HINGE" | "LOG":
            t = rng.integers(0, 2, shape)
        case "KULLBACK_LEIBLER_DIVERGENCE":
            t = softmax(rng.standard_normal(shape))
        case _:
            t = rng.standard_normal(shape)
    return t.astype(np.float32)


def weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
    """Weights of which about a quarter are 0."""
    return (rng.uniform(0.25, 2, shape) * (rng.random(shape) > 0.25)).astype(np.float32)


@dataclass(frozen=True)
class Value:
    """Printed losses of one pixel; None where the reduction is not allowed or not printed."""

    loss: Loss
    y: tuple[float, ...]
    t: tuple[float, ...]
    elements: tuple[float, ...] | None
    sum: float
    mean: float | None
    gradient: tuple[float, ...]


_Y, _T = (0.2, -0.4, 1.0), (1.0, 0.0, 0.0)
_P = (0.7, 0.2, 0.1)
_LOGS = tuple(float(v) for v in np.log(_P))

# fmt: off
VALUES = [
    Value(Loss("MEAN_ABSOLUTE_ERROR"), _Y, _T, (0.8, 0.4, 1), 2.2, 0.733333, (-1, -1, 1)),
    Value(Loss("MEAN_SQUARED_ERROR"), _Y, _T, (0.64, 0.16, 1), 1.8, 0.6, (-1.6, -0.8, 2)),
    Value(Loss("SOFT_MAX_CROSS_ENTROPY"), _Y, _T, (1.328229, 0, 0), 1.328229, 1.328229,
          (-0.735054, 0.145406, 0.589648)),
    Value(Loss("SOFT_MAX_CROSS_ENTROPY", label_smoothing=0.3, number_of_classes=3), _Y, _T,
          (1.062583, 0.192823, 0.052823), 1.308229, 1.308229, (-0.535054, 0.045406, 0.489648)),
    Value(Loss("SIGMOID_CROSS_ENTROPY"), _Y, _T, (0.598139, 0.513015, 1.313262), 2.424416,
          0.808139, (-0.450166, 0.401312, 0.731059)),
    Value(Loss("SIGMOID_CROSS_ENTROPY", label_smoothing=0.2), _Y, _T,
          (0.618139, 0.553015, 1.213262), 2.384416, 0.794805, (-0.350166, 0.301312, 0.631059)),
    Value(Loss("CATEGORICAL_CROSS_ENTROPY"), _P, _T, (0.356675, 0, 0), 0.356675, 0.118892,
          (-1.428571, 0, 0)),
    Value(Loss("HINGE"), _Y, _T, (0.8, 0.6, 2), 3.4, 1.133333, (-1, 1, 1)),
    Value(Loss("HUBER"), (3, -0.4, 1), _T, (1.5, 0.08, 0.5), 2.08, 0.693333, (1, -0.4, 1)),
    Value(Loss("COSINE_DISTANCE"), _Y, _T, None, 0.8, None, (-1, 0, 0)),
    Value(Loss("LOG"), _P, _T, (0.356675, 0.223143, 0.105360), 0.685179, 0.228393,
          (-1.428571, 1.25, 1.111111)),
    Value(Loss("KULLBACK_LEIBLER_DIVERGENCE"), _LOGS, (0.5, 0.25, 0.25),
          (-0.168236, 0.055786, 0.229073), 0.116622, 0.038874, (-0.5, -0.25, -0.25)),
]
# fmt: on


@dataclass(frozen=True)
class YOLOCase:
    """A grid and its anchors."""

    name: str
    batch: int
    grid: tuple[int, int]  # (width, height)
    classes: int
    anchors: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return self.name

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of predictions, labels and weights."""
        return self.batch, self.grid[1], self.grid[0], (5 + self.classes) * len(self.anchors)


YOLO_CASES = [
    YOLOCase("one cell, one anchor", 1, (1, 1), 1, ((1, 1),)),
    YOLOCase("two anchors", 2, (3, 2), 2, ((1, 2), (2, 1))),
    YOLOCase("three anchors", 3, (2, 5), 7, ((0.5, 0.75), (1, 2), (2.5, 2.5))),
    YOLOCase("equal anchors", 1, (4, 3), 3, ((1, 1), (1, 1), (2, 2))),
]

_DARKNET = (
    (1.3221, 1.73145),
    (3.19275, 4.00944),
    (5.05587, 8.09892),
    (9.47112, 4.84053),
    (11.2364, 10.0071),
)
# Cells of more boxes than loops take at a time, and grids of real networks.
YOLO_LAYERS = [
    YOLOCase("many anchors", 2, (3, 1), 2, tuple((0.5 + i / 32, 2 - i / 64) for i in range(70))),
    YOLOCase("pascal", 3, (13, 13), 20, _DARKNET),
    YOLOCase("coco", 1, (19, 19), 80, _DARKNET),
]


def yolo_labels(
    rng: np.random.Generator, case: YOLOCase, sizes: tuple[float, float] = (0.3, 3.0)
) -> Batch:
    """Labels with an object in about half the cells, the same box repeated for every anchor."""
    cells = (case.batch, case.grid[1], case.grid[0])
    box = np.zeros((*cells, 5 + case.classes))
    there = rng.random(cells) < 0.5
    there.flat[0] = True
    box[..., :2] = rng.uniform(0.02, 0.98, (*cells, 2))
    box[..., 2:4] = rng.uniform(*sizes, (*cells, 2))
    box[..., 4] = 1
    box[..., 5:] = np.eye(case.classes)[rng.integers(0, case.classes, cells)]
    box *= there[..., None]
    return np.tile(box, len(case.anchors)).astype(np.float32)


def yolo_predictions(rng: np.random.Generator, d: YOLO, case: YOLOCase, t: Batch) -> Batch:
    """Predictions of which some come close to the labels, and no overlap to a threshold.

    Numbers of each part are of the kind that its loss expects.
    """
    boxes = (*case.shape[:3], len(case.anchors), 5 + case.classes)
    q = t.reshape(boxes).astype(np.float64)
    with np.errstate(divide="ignore"):
        aim = np.concatenate(
            [np.log(q[..., :2] / (1 - q[..., :2])), np.log(q[..., 2:4] / d.anchors)], axis=-1
        )
    aim = np.where(np.isfinite(aim), aim, 0.0)
    p = 1.5 * rng.standard_normal(boxes)
    if d.confidence.type in ("CATEGORICAL_CROSS_ENTROPY", "LOG"):
        p[..., 4] = rng.uniform(0.05, 0.95, boxes[:4])
    p[..., 5:] = predictions(rng, d.classes, p[..., 5:].shape)
    unfit = np.ones(boxes[:4], np.bool_)
    while unfit.any():
        spread = rng.choice([0.05, 0.3, 1.5], boxes[:4])[..., None]
        drawn = aim + spread * rng.standard_normal(aim.shape)
        if d.wh.type in ("CATEGORICAL_CROSS_ENTROPY", "LOG"):
            drawn[..., 2:4] = rng.uniform(0.05, 0.95, drawn[..., 2:4].shape)
        p[..., :4] = np.where(unfit[..., None], drawn, p[..., :4])
        iou = assign(d, p.astype(np.float32).astype(np.float64), q).iou
        thresholds = d.min_iou_for_object_presence, d.max_iou_for_object_absence
        near = [np.abs(iou - threshold) < 1e-4 for threshold in thresholds]
        unfit = (near[0] | near[1]) & (q[..., 4] > 0)
    return p.astype(np.float32).reshape(case.shape)
