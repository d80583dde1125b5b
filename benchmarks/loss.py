"""Losses: the combined kernel, the separate forward and gradient kernels, and object detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import yolo_loss
from .check import Samples, places
from .suite import COMPILED, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

    Array = npt.NDArray[np.float64]

__all__ = ["cases"]

INITIAL = "initial_gradient"
KERNELS = ("loss_and_gradient", "forward", "gradient")
SAMPLES = 300
EPSILON = float(np.float32(1e-7))


def _log_softmax(y: Array) -> Array:
    below = y - y.max(axis=-1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=-1, keepdims=True)))


def _logistic(y: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-y)))


@dataclass(frozen=True)
class Formula:
    """A loss in float64: what each element contributes, and its derivative.

    `labels` says what labels it takes: classes, 0 or 1, a distribution or any value. Functions see
    pixels: their last axis holds all channels.
    """

    labels: str
    element: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    predictions: str = "any"


def _sign(t: Array) -> Array:
    return 2 * t - 1


FORMULAS = {
    "softmax_cross_entropy": Formula(
        "classes",
        lambda y, t: -t * _log_softmax(y),
        lambda y, t: np.exp(_log_softmax(y)) - t,
    ),
    "categorical_cross_entropy": Formula(
        "classes", lambda y, t: -t * np.log(y), lambda y, t: -t / y, "probabilities"
    ),
    "sigmoid_cross_entropy": Formula(
        "binary",
        lambda y, t: np.maximum(y, 0) - y * t + np.log1p(np.exp(-np.abs(y))),
        lambda y, t: _logistic(y) - t,
    ),
    "mean_squared_error": Formula("any", lambda y, t: (y - t) ** 2, lambda y, t: 2 * (y - t)),
    "mean_absolute_error": Formula("any", lambda y, t: np.abs(y - t), lambda y, t: np.sign(y - t)),
    "huber": Formula(
        "any",
        lambda y, t: np.where(np.abs(y - t) <= 1, (y - t) ** 2 / 2, np.abs(y - t) - 0.5),
        lambda y, t: np.clip(y - t, -1, 1),
    ),
    "hinge": Formula(
        "binary",
        lambda y, t: np.maximum(1 - _sign(t) * y, 0),
        lambda y, t: np.where(1 - _sign(t) * y > 0, -_sign(t), 0.0),
    ),
    "cosine_distance": Formula("any", lambda y, t: -y * t, lambda _, t: -t),
    "log": Formula(
        "binary",
        lambda y, t: -t * np.log(y + EPSILON) - (1 - t) * np.log(1 - y + EPSILON),
        lambda y, t: -t / (y + EPSILON) + (1 - t) / (1 - y + EPSILON),
        "probabilities",
    ),
    "kullback_leibler_divergence": Formula(
        "distribution",
        lambda y, t: t * (np.log(np.where(t > 0, t, 1)) - y),
        lambda _, t: -t,
        "log_probabilities",
    ),
}

TYPES = {
    name: "SOFT_MAX_CROSS_ENTROPY" if name == "softmax_cross_entropy" else name.upper()
    for name in FORMULAS
}


def cases(request: Request) -> Iterator[Case]:
    """Yield the three kernels for the losses of every layer, then `yolo_loss`; float32 labels."""
    for line in request.lines("losses"):
        kernels = {
            f"{name}_{kernel}".rstrip("_"): (name, kernel)
            for name in line.words("types")
            for kernel in (KERNELS if name != INITIAL else ("",))
        }
        yield from layer_cases(request, "loss", line, kernels, build)
    yield from yolo_loss.cases(request)


def _inputs(
    context: Context, shape: tuple[int, ...], formula: Formula, dtype: str
) -> tuple[Any, Any]:
    """Return predictions and labels of the kinds a loss takes."""
    rng = context.rng
    y = context.normal(shape)
    if formula.predictions == "probabilities":
        y[...] = rng.uniform(0.05, 0.95, shape)
    elif formula.predictions == "log_probabilities":
        y[...] = _log_softmax(y.astype(np.float64))
    t = context.normal(shape)
    match formula.labels:
        case "classes":
            t.fill(0)
            chosen = rng.integers(0, shape[-1], (*shape[:-1], 1))
            np.put_along_axis(t, chosen, 1.0, axis=-1)
        case "binary":
            t[...] = rng.integers(0, 2, shape)
        case "distribution":
            t[...] = np.exp(_log_softmax(t.astype(np.float64)))
    return y.astype(dtype) if dtype != "float32" else y, t


def build(context: Context, line: Line, batch: int, dtype: str, name: str, which: str) -> Work:
    """Make arrays and kernels; the reduction is the sum over each image."""
    shape = batch, *line.shape
    if name == INITIAL:
        return initial(context, context.normal(shape, dtype))
    formula = FORMULAS[name]
    y, t = _inputs(context, shape, formula, dtype)
    descriptor = mg.LossDescriptor(getattr(mg.LossType, TYPES[name]), mg.ReductionType.SUM)
    sources, results = context.batch(y), context.result(shape, dtype)
    reduced = context.result((batch, 1, 1, 1), "float32")
    g = context.normal((batch, 1, 1, 1))
    if which == "loss_and_gradient":
        kernel = mg.Loss(descriptor, device=context.device)
        labels = mg.LossLabels.batch(context.device, t, copy=False)

        def encode(buffer: mg.CommandBuffer) -> None:
            kernel.encode_batch(buffer, sources, labels, results)

        def losses() -> Any:
            context.run(lambda buffer: mg.synchronize(labels, buffer))
            return np.stack([np.asarray(label.loss) for label in labels]).reshape(batch)

        outputs = [
            Output("loss", losses, _loss_samples(context, formula, name, y, t)),
            Output("dy", lambda: context.read(results), _slope_samples(context, formula, y, t)),
        ]
        moved = y.nbytes + t.nbytes + y.nbytes
    elif which == "forward":
        kernel = mg.ForwardLoss(descriptor, device=context.device)
        targets = context.batch(t)

        def encode(buffer: mg.CommandBuffer) -> None:
            kernel.encode_batch(buffer, sources, targets, None, reduced)

        outputs = [
            Output(
                "loss",
                lambda: context.read(reduced).reshape(batch),
                _loss_samples(context, formula, name, y, t),
            )
        ]
        moved = y.nbytes + t.nbytes
    else:
        kernel = mg.LossGradient(descriptor, device=context.device)
        targets, incoming = context.batch(t), context.batch(g)

        def encode(buffer: mg.CommandBuffer) -> None:
            kernel.encode_batch(buffer, incoming, sources, targets, destination_gradients=results)

        samples = _slope_samples(context, formula, y, t, g)
        outputs = [Output("dy", lambda: context.read(results), samples)]
        moved = y.nbytes + t.nbytes + y.nbytes
    return Work(
        lambda: context.run(encode),
        outputs,
        bytes=moved,
        arrays=2 * y.nbytes + t.nbytes,
        peers={
            "torch": lambda peer: torch_calls(peer, name, which, y, t, g),
            **dict.fromkeys(COMPILED, lambda peer: compiled_calls(peer, name, which, y, t, g)),
        },
    )


def initial(context: Context, x: npt.NDArray[Any]) -> Work:
    """Fill an image of the source's size with ones."""
    kernel = mg.InitialGradient(device=context.device)
    sources, results = context.batch(x), context.result(x.shape, x.dtype)
    index = places(context.rng, x.shape, SAMPLES)
    ones = np.ones(len(index[0]))
    return Work(
        lambda: context.run(lambda buffer: kernel.encode_batch(buffer, sources, results)),
        [Output("dx", lambda: context.read(results), Samples(index, ones, ones, 0))],
        bytes=x.nbytes,
        arrays=2 * x.nbytes,
        peers={
            "torch": lambda peer: peer.images(peer.torch.ones_like, [x]),
            **dict.fromkeys(COMPILED, lambda peer: peer.call(peer.numpy.ones_like, x)),
        },
    )


def _loss_samples(context: Context, formula: Formula, name: str, y: Any, t: Any) -> Samples:
    """Return the losses of a few images."""
    images = np.unique(context.rng.integers(0, len(y), 3))
    exact, scale = [], []
    for n in images:
        a, b = y[n].astype(np.float64), t[n].astype(np.float64)
        elements = formula.element(a, b)
        once = 1.0 if name == "cosine_distance" else 0.0
        exact.append(elements.sum() + once)
        # A logarithm of a sum is off by a few units of the largest term, not of a small loss.
        scale.append(np.abs(elements).sum() + once + (np.abs(b) * (1 + np.abs(a))).sum())
    roundings = y[0].size + y.shape[-1] + 8
    return Samples((images,), np.array(exact), np.array(scale), roundings, 4)


def _slope_samples(
    context: Context, formula: Formula, y: Any, t: Any, g: Any | None = None
) -> Samples:
    """Return elements of the gradient."""
    index = places(context.rng, y.shape, SAMPLES)
    if formula.labels == "classes":  # the labelled ones too: of the others some slopes are 0
        labelled = (*index[:3], t[index[:3]].argmax(axis=-1))
        index = tuple(np.concatenate(pair) for pair in zip(index, labelled, strict=True))
    a, b = (array[index[:3]].astype(np.float64) for array in (y, t))
    which = np.arange(len(a)), index[3]
    exact = formula.slope(a, b)[which]
    scale = np.abs(exact) + np.abs(b[which]) + np.abs(exact) * np.abs(a[which])
    if formula.labels == "classes":
        scale += np.abs(a).max(axis=1) * np.exp(_log_softmax(a))[which]
    if g is not None:
        arriving = g[index[0], 0, 0, 0].astype(np.float64)
        exact, scale = exact * arriving, scale * np.abs(arriving)
    return Samples(index, exact, scale, y.shape[-1] + 8, 4)


def torch_calls(peer: Any, name: str, which: str, y: Any, t: Any, g: Any) -> dict[str, Any]:
    """PyTorch: its functions of the same loss, with the gradient from its tape."""
    f, torch = peer.functional, peer.torch

    def per_image(elements: Any) -> Any:
        return elements.flatten(1).sum(1)

    def value(y: Any, t: Any) -> Any:
        match name:
            case "softmax_cross_entropy":
                return per_image(f.cross_entropy(y, t, reduction="none"))
            case "categorical_cross_entropy":
                return per_image(-t * torch.log(y))
            case "sigmoid_cross_entropy":
                return per_image(f.binary_cross_entropy_with_logits(y, t, reduction="none"))
            case "mean_squared_error":
                return per_image(f.mse_loss(y, t, reduction="none"))
            case "mean_absolute_error":
                return per_image(f.l1_loss(y, t, reduction="none"))
            case "huber":
                return per_image(f.huber_loss(y, t, reduction="none"))
            case "hinge":
                return per_image(torch.relu(1 - (2 * t - 1) * y))
            case "cosine_distance":
                return 1 - per_image(y * t)
            case "log":
                return per_image(f.binary_cross_entropy(y, t, reduction="none"))
            case _:
                return per_image(f.kl_div(y, t, reduction="none"))

    weights = peer.array(g.reshape(-1)).to(peer.array(y).dtype)
    if which == "forward":
        call = value
    elif which == "gradient":

        def call(y: Any, t: Any) -> Any:
            return peer.gradient(lambda y, t: (value(y, t) * weights).sum(), y, t)[1]
    else:

        def call(y: Any, t: Any) -> Any:
            with torch.enable_grad():
                leaf = y.detach().requires_grad_()
                losses = value(leaf, t)
                (gradient,) = torch.autograd.grad(losses.sum(), leaf)
            return losses.detach(), gradient

    return dict(peer.images(call, [y, t.astype(y.dtype)]))


def compiled_calls(peer: Any, name: str, which: str, y: Any, t: Any, g: Any) -> dict[str, Any]:
    """JAX and MLX: the formulas, and their derivatives; labels stay float32, as ours do."""
    np_ = peer.numpy

    def elements(y: Any, t: Any) -> Any:
        match name:
            case "softmax_cross_entropy":
                return -t * peer.nn.log_softmax(y)
            case "categorical_cross_entropy":
                return -t * np_.log(y)
            case "sigmoid_cross_entropy":
                return np_.logaddexp(0.0, y) - y * t
            case "mean_squared_error":
                return np_.square(y - t)
            case "mean_absolute_error":
                return np_.abs(y - t)
            case "huber":
                difference = np_.abs(y - t)
                return np_.where(difference <= 1, 0.5 * np_.square(y - t), difference - 0.5)
            case "hinge":
                return peer.nn.relu(1 - (2 * t - 1) * y)
            case "cosine_distance":
                return -y * t
            case "log":
                return -t * np_.log(y + EPSILON) - (1 - t) * np_.log(1 - y + EPSILON)
            case _:
                return np_.where(t > 0, t * (np_.log(t) - y), 0.0)

    def value(y: Any, t: Any) -> Any:
        once = 1.0 if name == "cosine_distance" else 0.0
        return elements(y, t).sum((1, 2, 3)) + once

    def loss_and_gradient(weights: Any, y: Any, t: Any) -> tuple[Any, Any]:
        losses, (gradient,) = peer.vjp(lambda y: value(y, t), weights, y)
        return losses, gradient

    if which == "forward":
        return dict(peer.call(value, y, t))
    if which == "gradient":
        return dict(peer.call(lambda *o: loss_and_gradient(*o)[1], g.reshape(-1), y, t))
    return dict(peer.call(loss_and_gradient, np.ones_like(g).reshape(-1), y, t))
