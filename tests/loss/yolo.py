"""The object-detection loss and its gradient in float64.

Anchor a owns channels (5 + K) a + (X, Y, W, H, confidence, classes...); sizes are in grid cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.loss.oracle import (
    Loss,
    derivative,
    derivative_scale,
    elements,
    elements_scale,
    reduce,
)
from tests.neuron.oracle import logistic

if TYPE_CHECKING:
    from collections.abc import Callable

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
    fits = _overlap((zero, zero, zero + aw, zero + ah), (zero, zero, q[..., 2], q[..., 3]))
    best = np.argmax(fits, axis=-1)[..., None] == np.arange(len(aw))  # argmax: lowest index on ties
    present = object_there & (best | (iou > d.min_iou_for_object_presence))
    return Matches(iou, present, ~present & (iou < d.max_iou_for_object_absence))


def _split(d: YOLO, image: npt.ArrayLike) -> Array:
    image = np.asarray(image, np.float64)
    return image.reshape(*image.shape[:3], len(d.anchors), -1)


class Part(NamedTuple):
    """One of the four parts of every box; arrays are (N, H, W, anchors, numbers)."""

    loss: Loss
    channels: slice
    factor: Array
    at: Array
    label: Array
    inner: Array  # derivative of `at` by the source
    at_scale: Array  # magnitudes to which the roundings of these three are relative
    label_scale: Array
    inner_scale: Array


if TYPE_CHECKING:
    Values = Callable[[Part], Array]


def _iou_scale(d: YOLO, p: Array, q: Array) -> Array:
    """Magnitude to which the roundings of the overlap are relative: those of its sides."""
    aw, ah = np.asarray(d.anchors, np.float32).astype(np.float64).T
    centre, size = logistic(p[..., :2]), np.stack([aw, ah], -1) * np.exp(p[..., 2:4])
    reach = centre + size * (1 + np.abs(p[..., 2:4])) + np.abs(q[..., :2]) + q[..., 2:4]
    smaller = np.minimum(size, q[..., 2:4])
    areas = size.prod(-1) + q[..., 2:4].prod(-1)
    whole = areas - smaller.prod(-1)  # no larger than the union
    shared = reach[..., 0] * smaller[..., 1] + reach[..., 1] * smaller[..., 0]
    return np.divide(2 * shared + areas, whole, out=np.zeros_like(whole), where=whole > 0)


def _parts(d: YOLO, p: Array, q: Array) -> list[Part]:
    m = assign(d, p, q)
    there = m.present[..., None].astype(np.float64)
    zero = np.zeros_like(there)
    target = there * q[..., 4:5] * (m.iou[..., None] if d.rescore else 1.0)
    target_scale = there * q[..., 4:5] * _iou_scale(d, p, q)[..., None] if d.rescore else zero
    confidence = d.scale_object * there + d.scale_no_object * m.absent[..., None]
    sizes = np.asarray(d.anchors, np.float32).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(there > 0, np.log(q[..., 2:4] / sizes + 1e-5), 0.0)
    off = 1 + np.abs(relative)
    xy, one = logistic(p[..., :2]), np.ones(())
    parts = [
        # A sigmoid's derivative is s (1 - s), and may be computed so.
        (d.xy, slice(0, 2), d.scale_xy * there, xy, q[..., :2], xy * (1 - xy), xy, zero, xy),
        (d.wh, slice(2, 4), d.scale_wh * there, p[..., 2:4], relative, one, zero, off, one),
        (d.confidence, slice(4, 5), confidence, p[..., 4:5], target, one, zero, target_scale, one),
        (d.classes, slice(5, None), d.scale_class * there, p[..., 5:], q[..., 5:], one, zero, zero,
         one),
    ]  # fmt: skip
    return [Part(*part) for part in parts]


def _joined(d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, value: Values) -> Array:
    """What `value` makes of each part, with its factor, as one image; 0 where nothing counts."""
    p, q = _split(d, y), _split(d, t)
    result = np.zeros_like(p)
    for part in _parts(d, p, q):
        factor = np.broadcast_to(part.loss.weight * part.factor, part.at.shape)
        with np.errstate(invalid="ignore"):
            result[..., part.channels] = np.where(factor == 0, 0.0, factor * value(part))
    return result.reshape(np.shape(y))


def element_losses(d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Losses of the elements with scales and part weights, before a weights image, (N, H, W, C)."""
    return _joined(d, y, t, lambda part: elements(part.loss, part.at, part.label))


def gradient(
    d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Gradient with respect to the source, without a reduction factor."""
    flat = _joined(d, y, t, lambda part: derivative(part.loss, part.at, part.label) * part.inner)
    return flat if weights is None else flat * np.asarray(weights, np.float64)


def _reduced(d: YOLO, values: Array, weights: npt.ArrayLike | None) -> Array:
    w = np.ones_like(values) if weights is None else np.asarray(weights, np.float64)
    how = Loss("HUBER", d.reduction, d.reduce_across_batch)  # any type that divides by W H C
    return reduce(how, w * values, w)


def loss_images(
    d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Reduced losses over all channels."""
    return _reduced(d, element_losses(d, y, t), weights)


# --- Magnitudes --------------------------------------------------------------
# To which roundings are relative. Inputs and labels of a part are results themselves, so what they
# are off by moves its losses: `_moves` measures by how much.

_NEAR = 2.0**-20


def _moves(function: Callable[[Array, Array], Array], part: Part) -> Array:
    """Sum over the part's numbers of how far a function moves, for errors of one unit."""
    total = np.zeros_like(part.at)
    start = function(part.at, part.label)
    sizes = [(0, part.at_scale), (1, part.label_scale)]
    for which, size in [(which, size) for which, size in sizes if size.any()]:
        for k in range(part.at.shape[-1]):
            moved = [part.at.copy(), part.label.copy()]
            moved[which][..., k] += _NEAR * np.broadcast_to(size, part.at.shape)[..., k]
            with np.errstate(invalid="ignore"):
                shift = np.abs(function(*moved) - start) / _NEAR
            total += np.where(np.isfinite(shift), shift, 0.0)
    return total


def loss_scale(
    d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> Array:
    """Magnitude to which the roundings of `loss_images` are relative."""

    def of(part: Part) -> Array:
        own = elements_scale(part.loss, part.at, part.label)
        return own + _moves(lambda y, t: elements(part.loss, y, t), part)

    return _reduced(d, np.abs(_joined(d, y, t, of)), None if weights is None else np.abs(weights))


def gradient_scale(d: YOLO, y: npt.ArrayLike, t: npt.ArrayLike) -> Array:
    """Magnitude to which the roundings of `gradient` are relative, before a weights image."""

    def of(part: Part) -> Array:
        slope = np.abs(derivative(part.loss, part.at, part.label))
        own = derivative_scale(part.loss, part.at, part.label)
        moves = _moves(lambda y, t: derivative(part.loss, y, t), part)
        return (own + moves) * part.inner + slope * part.inner_scale

    return np.abs(_joined(d, y, t, of))
