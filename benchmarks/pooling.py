"""Pooling: max, average and L2 norm, forward and gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from .layers import PoolingLayer
    from .suite import Case, Context, Request

__all__ = ["cases"]

CLASSES = {
    "max": ("PoolingMax", "PoolingMaxGradient"),
    "average": ("PoolingAverage", "PoolingAverageGradient"),
    "l2": ("PoolingL2Norm", "PoolingL2NormGradient"),
    "dilated": ("DilatedPoolingMax", "DilatedPoolingMaxGradient"),
}
SAMPLES = 256


def cases(request: Request) -> Iterator[Case]:
    """Yield every kind of every layer, forward and gradient."""
    for line in layers.read("pooling"):
        layer = layers.PoolingLayer.of(line)
        if request.quick:
            layer = replace(layer, shape=line.quick().shape)
        named = {
            f"{kind}_{direction}": (kind, direction)
            for kind in layer.kinds
            for direction in DIRECTIONS
        }
        yield from layer_cases(request, "pooling", layer, named, build)


def kernels(layer: PoolingLayer, kind: str, device: mg.Device) -> tuple[Any, Any]:
    """Return the forward kernel, with its padding, and the gradient kernel."""
    dilated = layer.dilation != (1, 1)
    window: tuple[int, ...] = layer.kernel[::-1]
    if dilated:
        window += layer.dilation[::-1]
    names = CLASSES["dilated" if dilated else kind]
    forward, gradient = (
        getattr(mg, name)(*window, *layer.stride[::-1], device=device) for name in names
    )
    forward.padding = mg.ExplicitPadding(layer.pad[1], layer.pad[1], layer.pad[0], layer.pad[0])
    if kind == "max" and not dilated:
        # The nearest pixel is in the window already, so no zero hides a negative one.
        forward.edge_mode = mg.EdgeMode.CLAMP
    return forward, gradient


def build(
    context: Context, layer: PoolingLayer, batch: int, dtype: str, kind: str, direction: str
) -> Work:
    """Make arrays and kernels."""
    x = context.normal((batch, *layer.shape), dtype)
    if layer.dilation != (1, 1):
        np.abs(x, out=x)  # else a zero of the padding would hide a negative maximum
    g = context.normal((batch, *layer.size, layer.shape[2]), dtype)
    forward, gradient = kernels(layer, kind, context.device)
    sources = context.batch(x)
    if direction == "forward":
        results = context.result(g.shape, g.dtype)

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, allocator=results)

        samples = forward_samples(context.rng, layer, kind, x, g)
    else:
        incoming, results = context.batch(g), context.result(x.shape, x.dtype)
        states = context.states(forward, sources, g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, sources, states, allocator=results)

        samples = gradient_samples(context.rng, layer, kind, x, g)
    # The gradient of an average needs no source.
    read = x.nbytes if direction == "forward" or kind == "average" else 2 * x.nbytes
    peers = {"torch": lambda peer: torch_calls(peer, layer, kind, direction, x, g)}
    dilated = layer.dilation != (1, 1)
    if not dilated or direction == "forward":  # JAX has no gradient of other windows
        peers["jax"] = lambda peer: peer.either(direction, jax_pool(peer, layer, kind), g, x)
    if not dilated:  # MLX has no other windows
        peers["mlx"] = lambda peer: peer.either(direction, mlx_pool(peer, layer, kind), g, x)
    return Work(
        lambda: context.run(encode),
        [Output("y" if direction == "forward" else "dx", lambda: context.read(results), samples)],
        bytes=read + g.nbytes,
        arrays=2 * x.nbytes + g.nbytes,
        peers=peers,
    )


# --- Some elements in float64 -------------------------------------------------


def _window(
    layer: PoolingLayer, x: npt.NDArray[Any], n: int, row: int, column: int, channel: int
) -> list[tuple[int, int, float]]:
    """Return row, column and value of the pixels of a window, those in the padding left out."""
    found = []
    for ky in range(layer.kernel[0]):
        y = row * layer.stride[0] - layer.pad[0] + ky * layer.dilation[0]
        for kx in range(layer.kernel[1]):
            at = column * layer.stride[1] - layer.pad[1] + kx * layer.dilation[1]
            if 0 <= y < layer.shape[0] and 0 <= at < layer.shape[1]:
                found.append((y, at, float(x[n, y, at, channel])))
    return found


def forward_samples(
    rng: np.random.Generator,
    layer: PoolingLayer,
    kind: str,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
) -> Samples:
    """Return elements of the result."""
    index = places(rng, g.shape, SAMPLES)
    taps = layer.kernel[0] * layer.kernel[1]
    exact, scale = [], []
    for place in zip(*index, strict=True):
        values = np.array([value for _, _, value in _window(layer, x, *place)])
        match kind:
            case "max":
                exact.append(values.max())
                scale.append(0.0)
            case "average":
                exact.append(values.sum() / taps)
                scale.append(np.abs(values).sum() / taps)
            case _:
                exact.append(np.sqrt((values**2).sum()))
                scale.append(exact[-1])
    return Samples(index, np.array(exact), np.array(scale), 0 if kind == "max" else taps + 3)


def gradient_samples(
    rng: np.random.Generator,
    layer: PoolingLayer,
    kind: str,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
) -> Samples:
    """Return elements of the gradient: what every window that reads a pixel hands back to it."""
    index = places(rng, x.shape, SAMPLES)
    taps = layer.kernel[0] * layer.kernel[1]
    exact, scale = [], []
    for n, row, column, channel in zip(*index, strict=True):
        total = size = 0.0
        for ky in range(layer.kernel[0]):
            y, rest_y = divmod(row + layer.pad[0] - ky * layer.dilation[0], layer.stride[0])
            for kx in range(layer.kernel[1]):
                at, rest_x = divmod(column + layer.pad[1] - kx * layer.dilation[1], layer.stride[1])
                if rest_x or rest_y or not (0 <= y < layer.size[0] and 0 <= at < layer.size[1]):
                    continue
                incoming = float(g[n, y, at, channel])
                if kind == "average":
                    share = incoming / taps
                else:
                    window = _window(layer, x, n, y, at, channel)
                    if kind == "max":
                        winner = max(window, key=lambda pixel: pixel[2])  # the first of equals
                        share = incoming if winner[:2] == (row, column) else 0.0
                    else:
                        norm = np.sqrt(sum(value**2 for _, _, value in window))
                        share = incoming * float(x[n, row, column, channel]) / norm
                total += share
                size += abs(share)
        exact.append(total)
        scale.append(size)
    roundings = {"max": taps, "average": taps + 2, "l2": 2 * taps + 6}[kind]
    return Samples(index, np.array(exact), np.array(scale), roundings)


# --- Peers ----------------------------------------------------------------------


def torch_calls(
    peer: Any,
    layer: PoolingLayer,
    kind: str,
    direction: str,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
) -> Mapping[str, Callable[[], Any]]:
    """PyTorch: the pooling functions, and the backward operators behind them."""
    kernel, stride, pad, dilation = (
        list(pair) for pair in (layer.kernel, layer.stride, layer.pad, layer.dilation)
    )
    if kind == "max":
        forward = lambda x: peer.functional.max_pool2d(x, kernel, stride, pad, dilation)  # noqa: E731
        with_indices = peer.aten.max_pool2d_with_indices
        backward = peer.aten.max_pool2d_with_indices_backward
        calls = {}
        for layout in ("contiguous", "channels_last"):
            source, incoming = peer.image(x, layout), peer.image(g, layout)
            indices = with_indices(source, kernel, stride, pad, dilation)[1]
            calls[layout] = lambda s=source, i=incoming, where=indices: backward(
                i, s, kernel, stride, pad, dilation, False, where
            )
    elif kind == "average":
        forward = lambda x: peer.functional.avg_pool2d(x, kernel, stride, pad)  # noqa: E731
        calls = peer.images(
            lambda g, x: peer.aten.avg_pool2d_backward(
                g, x, kernel, stride, pad, False, True, None
            ),
            [g, x],
        )
    else:
        forward = lambda x: peer.functional.lp_pool2d(x, 2.0, kernel, stride)  # noqa: E731

        def backward_by_tape(g: Any, x: Any) -> Any:
            return peer.gradient(lambda x, g: (forward(x) * g).sum(), x, g)[1]

        calls = peer.images(backward_by_tape, [g, x])
    return peer.images(forward, [x]) if direction == "forward" else calls


def jax_pool(peer: Any, layer: PoolingLayer, kind: str) -> Callable[[Any], Any]:
    """JAX: ``reduce_window``."""
    window = (1, *layer.kernel, 1)
    where = {
        "window_strides": (1, *layer.stride, 1),
        "padding": [(0, 0), *((pad, pad) for pad in layer.pad), (0, 0)],
        "window_dilation": (1, *layer.dilation, 1),
    }
    taps = layer.kernel[0] * layer.kernel[1]

    def pool(x: Any) -> Any:
        if kind == "max":
            return peer.lax.reduce_window(x, -np.inf, peer.lax.max, window, **where)
        y = x * x if kind == "l2" else x
        total = peer.lax.reduce_window(y, 0.0, peer.lax.add, window, **where)
        return peer.numpy.sqrt(total) if kind == "l2" else total / taps

    return pool


def mlx_pool(peer: Any, layer: PoolingLayer, kind: str) -> Callable[[Any], Any]:
    """MLX: the pooling layers; an L2 norm is made of an average."""
    name = "MaxPool2d" if kind == "max" else "AvgPool2d"
    pool: Callable[[Any], Any] = getattr(peer.nn, name)(layer.kernel, layer.stride, layer.pad)
    if kind != "l2":
        return pool
    taps = layer.kernel[0] * layer.kernel[1]
    return lambda x: peer.numpy.sqrt(pool(x * x) * taps)
