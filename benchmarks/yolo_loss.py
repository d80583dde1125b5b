"""The loss of object detection, of the grids that networks predict.

Few cells hold an object, as in real pictures. Labels, objects and predictions are made so that no
overlap lies at a threshold, where float32 and float64 could decide otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

    Array = npt.NDArray[np.float64]

__all__ = ["cases"]

SAMPLES = 300
OBJECTS = 0.03  # share of cells that hold one
# Of YOLOv2, in cells; and the descriptor's defaults.
ANCHORS = (
    (1.3221, 1.73145),
    (3.19275, 4.00944),
    (5.05587, 8.09892),
    (9.47112, 4.84053),
    (11.2364, 10.0071),
)
XY, WH, NO_OBJECT, OBJECT, CLASS = 10.0, 10.0, 5.0, 100.0, 2.0
PRESENT, ABSENT = 0.7, 0.3
BOX = 5  # channels before the classes
LINE = 64  # bytes that memory gives at once


def cases(request: Request) -> Iterator[Case]:
    """Yield the combined kernel for every grid; labels are float32."""
    for line in layers.read("detection"):
        if request.quick:
            anchors = line.number(1)
            line = replace(line, sizes=((7, 7, anchors * (BOX + 3)), (anchors,)))
        yield from layer_cases(request, "loss", line, {"yolo_loss_and_gradient": ()}, build)


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _overlap(a: Array, b: Array) -> Array:
    """Intersection over union of boxes (..., 4): centre, then size."""
    end = np.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    start = np.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    shared = np.maximum(end - start, 0).prod(-1)
    return np.asarray(shared / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared))


def _iou(p: Array, q: Array, anchors: Array) -> Array:
    """Overlap of predictions and labels (..., anchors, channels); 0 without an object."""
    predicted = np.concatenate([_logistic(p[..., :2]), anchors * np.exp(p[..., 2:4])], -1)
    return np.where(q[..., 4] > 0, _overlap(predicted, q[..., :4]), 0.0)


def exact(p: Array, q: Array, anchors: Array) -> tuple[Array, Array, Array]:
    """Return losses, gradients and their magnitudes of boxes (..., anchors, channels)."""
    sizes = np.concatenate([np.zeros_like(anchors), anchors], -1)
    labels = np.concatenate([np.zeros_like(q[..., :2]), q[..., 2:4]], -1)
    best = np.argmax(_overlap(sizes, labels), -1)[..., None] == np.arange(len(anchors))
    there, iou = q[..., 4] > 0, _iou(p, q, anchors)
    present = there & (best | (iou > PRESENT))
    absent = ~present & (iou < ABSENT)
    on = present[..., None].astype(np.float64)
    losses, slopes, scale = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)

    s, t = _logistic(p[..., :2]), q[..., :2]
    losses[..., :2] = XY * on * (s - t) ** 2
    slopes[..., :2] = XY * on * 2 * (s - t) * s * (1 - s)
    scale[..., :2] = XY * on * 4

    e = p[..., 2:4] - np.log(q[..., 2:4] / anchors + 1e-5)
    losses[..., 2:4] = WH * on * np.where(np.abs(e) <= 1, e**2 / 2, np.abs(e) - 0.5)
    slopes[..., 2:4] = WH * on * np.clip(e, -1, 1)
    scale[..., 2:4] = WH * on * (2 + np.abs(p[..., 2:4]) + np.abs(e))

    c, target = p[..., 4], np.where(present, q[..., 4] * iou, 0.0)
    factor = OBJECT * present + NO_OBJECT * absent
    losses[..., 4] = factor * (np.maximum(c, 0) - c * target + np.log1p(np.exp(-np.abs(c))))
    slopes[..., 4] = factor * (_logistic(c) - target)
    # A large box's overlap with a small one is off by what its sides are.
    scale[..., 4] = factor * (2 + np.abs(c)) * np.where(present, 64, 1)

    below = p[..., BOX:] - p[..., BOX:].max(-1, keepdims=True)
    logs = below - np.log(np.exp(below).sum(-1, keepdims=True))
    losses[..., BOX:] = CLASS * on * -q[..., BOX:] * logs
    slopes[..., BOX:] = CLASS * on * (np.exp(logs) - q[..., BOX:])
    scale[..., BOX:] = CLASS * on * (1 + np.abs(logs))
    return losses, slopes, scale


def _inputs(
    context: Context, shape: tuple[int, ...], anchors: npt.NDArray[np.float32], dtype: str
) -> tuple[Any, Any]:
    """Return predictions, and labels with a few objects, the same for every anchor of a cell."""
    rng = context.rng
    boxes = (*shape[:3], len(anchors), shape[3] // len(anchors))
    y, t = context.normal(shape), context.normal(shape)
    t.fill(0)
    cells = np.nonzero(rng.random(shape[:3]) < OBJECTS)
    if len(cells[0]) == 0:
        cells = tuple(np.zeros(1, np.intp) for _ in range(3))
    count, classes = len(cells[0]), boxes[4] - BOX
    box = np.zeros((count, boxes[4]), np.float32)
    box[:, :2] = rng.uniform(0.05, 0.95, (count, 2))
    box[:, 2:4] = rng.uniform(0.5, min(shape[1:3]), (count, 2))
    box[:, 4] = 1
    box[np.arange(count), BOX + rng.integers(0, classes, count)] = 1
    t.reshape(boxes)[cells] = box[:, None]
    if dtype != "float32":
        y = y.astype(dtype)
    p = y.reshape(boxes)
    iou = _iou(p.astype(np.float64), t.reshape(boxes).astype(np.float64), anchors)
    near = (np.abs(iou - PRESENT) < 1e-3) | (np.abs(iou - ABSENT) < 1e-3)
    p[..., 2:4] = np.where(near[..., None], -6, p[..., 2:4])  # far too small
    return y, t


def build(context: Context, line: Line, batch: int, dtype: str) -> Work:
    """Make arrays and the kernel; the reduction is the sum over each image."""
    shape = batch, *line.shape
    anchors = np.asarray(ANCHORS[: line.number(1)], np.float32)
    y, t = _inputs(context, shape, anchors, dtype)
    descriptor = mg.YOLOLossDescriptor(
        mg.LossType.MEAN_SQUARED_ERROR,
        mg.LossType.HUBER,
        mg.LossType.SIGMOID_CROSS_ENTROPY,
        mg.LossType.SOFT_MAX_CROSS_ENTROPY,
        mg.ReductionType.SUM,
        anchors,
    )
    kernel = mg.YOLOLoss(descriptor, device=context.device)
    sources, results = context.batch(y), context.result(shape, dtype)
    labels = mg.LossLabels.batch(context.device, t, copy=False)

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, sources, labels, results)

    def losses() -> Any:
        context.run(lambda buffer: mg.synchronize(labels, buffer))
        return np.stack([np.asarray(label.loss) for label in labels]).reshape(batch)

    confidences = batch * line.shape[0] * line.shape[1] * len(anchors)
    read = min(y.nbytes, LINE * confidences) + min(t.nbytes, LINE * confidences)
    return Work(
        lambda: context.run(encode),
        [
            Output("loss", losses, _loss_samples(context, y, t, anchors)),
            Output("dy", lambda: context.read(results), _slope_samples(context, y, t, anchors)),
        ],
        # Of boxes without an object nothing but the confidence has to be read.
        bytes=read + y.nbytes,
        arrays=2 * y.nbytes + t.nbytes,
        peers={"torch": lambda peer: torch_calls(peer, y, t, anchors)},
    )


def _split(array: Any, anchors: Any) -> Array:
    """Return cells as boxes (..., anchors, channels) in float64."""
    return np.asarray(array, np.float64).reshape(*array.shape[:-1], len(anchors), -1)


def _loss_samples(context: Context, y: Any, t: Any, anchors: Any) -> Samples:
    """Return the losses of a few images."""
    images = np.unique(context.rng.integers(0, len(y), 3))
    parts = exact(_split(y[images], anchors), _split(t[images], anchors), anchors)
    value, _, scale = (part.reshape(len(images), -1).sum(1) for part in parts)
    return Samples((images,), value, scale, y[0].size, 8)


def _slope_samples(context: Context, y: Any, t: Any, anchors: Any) -> Samples:
    """Return elements of the gradient, half of them of boxes with an object."""
    found = places(context.rng, y.shape, SAMPLES)
    stride = y.shape[3] // len(anchors)
    there = np.nonzero(t.reshape(*y.shape[:3], len(anchors), stride)[..., 4] > 0)
    chosen = context.rng.integers(0, len(there[0]), SAMPLES)
    n, h, w, a = (axis[chosen] for axis in there)
    channel = a * stride + context.rng.integers(0, stride, SAMPLES)
    own = np.stack([n, h, w, channel], -1)
    index = tuple(np.unique(np.concatenate([np.stack(found, -1), own]), axis=0).T)
    cells = index[:3]
    _, value, scale = exact(_split(y[cells], anchors), _split(t[cells], anchors), anchors)
    which = np.arange(len(index[0])), index[3] // stride, index[3] % stride
    return Samples(index, value[which], scale[which], stride + 8, 8)


def torch_calls(peer: Any, y: Any, t: Any, anchors: Any) -> dict[str, Any]:
    """PyTorch: boxes with an object gathered, dense confidences, the gradient from its tape."""
    f, torch = peer.functional, peer.torch
    sizes = peer.array(anchors)

    def overlap(a: Any, b: Any) -> Any:
        end = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
        start = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
        shared = (end - start).clamp_min(0).prod(-1)
        return shared / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - shared)

    def value(y: Any, t: Any) -> Any:
        p, q = (v.permute(0, 2, 3, 1).unflatten(3, (len(anchors), -1)) for v in (y, t))
        where = torch.nonzero(q[..., 4] > 0, as_tuple=True)
        own, label = p[where].float(), q[where].float()
        anchor = sizes[where[3]]
        with torch.no_grad():
            box = torch.cat([torch.sigmoid(own[:, :2]), anchor * torch.exp(own[:, 2:4])], 1)
            iou = overlap(box, label[:, :4])
            origin = torch.zeros_like(label[:, None, :2])
            fits = overlap(
                torch.cat([torch.zeros_like(sizes), sizes], 1),
                torch.cat([origin, label[:, None, 2:4]], 2),
            )
            present = (fits.argmax(1) == where[3]) | (iou > PRESENT)
            target = torch.zeros_like(q[..., 4], dtype=torch.float32)
            target[where] = torch.where(present, label[:, 4] * iou, 0.0)
            factor = torch.full_like(target, NO_OBJECT)
            factor[where] = torch.where(present, OBJECT, torch.where(iou < ABSENT, NO_OBJECT, 0.0))
            kept = torch.nonzero(present)[:, 0]
        own, label, anchor = own[kept], label[kept], anchor[kept]
        logits = p[..., 4].float()
        sure = f.binary_cross_entropy_with_logits(logits, target, factor, reduction="none")
        relative = torch.log(label[:, 2:4] / anchor + 1e-5)
        parts = (
            XY * f.mse_loss(torch.sigmoid(own[:, :2]), label[:, :2], reduction="none").sum(1)
            + WH * f.huber_loss(own[:, 2:4], relative, reduction="none").sum(1)
            + CLASS * f.cross_entropy(own[:, BOX:], label[:, BOX:], reduction="none")
        )
        return sure.flatten(1).sum(1).index_add(0, where[0][kept], parts)

    def call(y: Any, t: Any) -> Any:
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            losses = value(leaf, t)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    return dict(peer.images(call, [y, t.astype(y.dtype)]))
