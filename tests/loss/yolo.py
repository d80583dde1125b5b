"""The object-detection loss and its gradient in float64.

Anchor a owns channels (5 + K) a + (X, Y, W, H, confidence, classes...); sizes are in grid cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.loss.oracle import Loss, derivative, elements, reduce
from tests.neuron.oracle import logistic

if TYPE_CHECKING:
    from tests.core.oracle import Array


@dataclass(frozen=True)
class YOLO:
    """An object-detection descriptor; its scales and thresholds are float32."""

    anchors: tuple[tuple[float, float], ...]
    xy: Loss = field(default_factory=lambda: Loss("MEAN_SQUARED_ERROR"))
    wh: Loss = field(default_factory=lambda: Loss("HUBER"))
    confidence: Loss = field(default_factory=lambda: Loss("SIGMOID_CROSS_ENTROPY"))
    classes: Loss = field(default_factory=lambda: Loss("SOFT_MAX_CROSS_ENTROPY"))
    reduction: str = "SUM"
    reduce_across_batch: bool = False
    rescore: bool = True
    scale_xy: float = 10.0
    scale_wh: float = 10.0
    scale_no_object: float = 5.0
    scale_object: float = 100.0
    scale_class: float = 2.0
    min_iou_for_object_presence: float = 0.7
    max_iou_for_object_absence: float = 0.3

    def __post_init__(self) -> None:
        """Round to what a descriptor stores."""
        for name in vars(self):
            if isinstance(getattr(self, name), float):
                object.__setattr__(self, name, float(np.float32(getattr(self, name))))


class Matches(NamedTuple):
    """How predictions meet labels; constants for the gradient. Each (N, H, W, anchors)."""

    iou: Array
    present: npt.NDArray[np.bool_]
    absent: npt.NDArray[np.bool_]


def _overlap(a: tuple[Array, ...], b: tuple[Array, ...]) -> Array:
    """Intersection over union of boxes (x, y, width, height), x and y of the centre."""
    sides = [
        np.minimum(a[k] + a[k + 2] / 2, b[k] + b[k + 2] / 2)
        - np.maximum(a[k] - a[k + 2] / 2, b[k] - b[k + 2] / 2)
        for k in (0, 1)
    ]
    shared = np.maximum(sides[0], 0) * np.maximum(sides[1], 0)
    union = a[2] * a[3] + b[2] * b[3] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def assign(d: YOLO, p: Array, q: Array) -> Matches:
    """Decide which anchors answer for an object; `p`, `q` are (N, H, W, anchors, 5 + K)."""
    aw, ah = np.asarray(d.anchors, np.float32).astype(np.float64).T
    box = (logistic(p[..., 0]), logistic(p[..., 1]), aw * np.exp(p[..., 2]), ah * np.exp(p[..., 3]))
    object_there = q[..., 4] > 0
    iou = np.where(object_there, _overlap(box, tuple(q[..., k] for k in range(4))), 0.0)
    zero = np.zeros_like(q[..., 2])
    fits = [
        _overlap((zero, zero, zero + w, zero + h), (zero, zero, q[..., 2], q[..., 3]))
        for w, h in zip(aw, ah, strict=True)
    ]
    best = np.argmax(fits, axis=0) == np.arange(len(aw))  # argmax: lowest index on ties
    present = object_there & (best | (iou > d.min_iou_for_object_presence))
    return Matches(iou, present, ~present & (iou < d.max_iou_for_object_absence))


def _split(d: YOLO, image: npt.ArrayLike) -> Array:
    image = np.asarray(image, np.float64)
    return image.reshape(*image.shape[:3], len(d.anchors), -1)


def _parts(d: YOLO, p: Array, q: Array) -> list[tuple[Loss, slice, Array, Array, Array, Array]]:
    """(loss, channels, factor, input, label, derivative of the input) of each part."""
    m = assign(d, p, q)
    there = m.present[..., None].astype(np.float64)
    target = there * q[..., 4:5] * (m.iou[..., None] if d.rescore else 1.0)
    confidence = d.scale_object * there + d.scale_no_object * m.absent[..., None]
    sizes = np.asarray(d.anchors, np.float32).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(there > 0, np.log(q[..., 2:4] / sizes + 1e-5), 0.0)
    xy, one = logistic(p[..., :2]), np.ones(())
    centre, size, sure, kinds = slice(0, 2), slice(2, 4), slice(4, 5), slice(5, None)
    return [
        (d.xy, centre, d.scale_xy * there, xy, q[..., centre], xy * (1 - xy)),
        (d.wh, size, d.scale_wh * there, p[..., size], relative, one),
        (d.confidence, sure, confidence, p[..., sure], target, one),
        (d.classes, kinds, d.scale_class * there, p[..., kinds], q[..., kinds], one),
    ]


def element_losses(d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Losses of the elements with scales and part weights, before a weights image, (N, H, W, C)."""
    p, q = _split(d, y), _split(d, t)
    result = np.zeros_like(p)
    for loss, channels, factor, at, label, _ in _parts(d, p, q):
        result[..., channels] = loss.weight * factor * elements(loss, at, label)
    return result.reshape(np.shape(y))


def gradient(
    d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Gradient with respect to the source, without a reduction factor."""
    p, q = _split(d, y), _split(d, t)
    result = np.zeros_like(p)
    for loss, channels, factor, at, label, inner in _parts(d, p, q):
        result[..., channels] = loss.weight * factor * derivative(loss, at, label) * inner
    flat = result.reshape(np.shape(y))
    return flat if weights is None else flat * np.asarray(weights, np.float64)


def loss_images(
    d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Reduced losses over all channels."""
    values = element_losses(d, y, t)
    w = np.ones_like(values) if weights is None else np.asarray(weights, np.float64)
    how = Loss("HUBER", d.reduction, d.reduce_across_batch)  # any type that divides by W H C
    return reduce(how, w * values, w)
