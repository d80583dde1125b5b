"""Softmax and log-softmax over the channels, forward and gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

CLASSES = {
    "softmax": ("SoftMax", "SoftMaxGradient"),
    "log_softmax": ("LogSoftMax", "LogSoftMaxGradient"),
}
SAMPLES = 200


def cases(request: Request) -> Iterator[Case]:
    """Yield both kernels, forward and gradient, on every layer."""
    kernels = {
        f"{name}_{direction}": (name, direction) for name in CLASSES for direction in DIRECTIONS
    }
    for line in request.lines("classes"):
        yield from layer_cases(request, "softmax", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, name: str, direction: str) -> Work:
    """Make arrays and kernels."""
    shape = batch, *line.shape
    x, g = context.normal(shape, dtype), context.normal(shape, dtype)
    forward, gradient = (getattr(mg, cls)(device=context.device) for cls in CLASSES[name])
    sources, results = context.batch(x), context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    pixels, channel = index[:3], index[3]
    roundings = shape[-1] + 3
    if direction == "forward":

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, results)

        rows = x[pixels].astype(np.float64)
        below = rows - rows.max(axis=1, keepdims=True)
        total = np.exp(below).sum(axis=1, keepdims=True)
        share = np.exp(below) / total
        mean = (share * np.abs(below)).sum(axis=1, keepdims=True)
        if name == "softmax":
            exact, scale = share, share * (1 + np.abs(below) + mean)
        else:
            exact, scale = below - np.log(total), np.abs(below) + np.log(total) + 1 + mean
        inputs = (x,)
    else:
        forward_result = context.result(shape, dtype)
        states = context.run(
            lambda buffer: forward.encode_batch(
                buffer, sources, with_state=True, allocator=forward_result
            )
        )[1]
        incoming = context.batch(g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, forward_result, states, allocator=results)

        y = np.array(context.read(forward_result))
        rows, arriving = y[pixels].astype(np.float64), g[pixels].astype(np.float64)
        if name == "softmax":
            exact = rows * (arriving - (arriving * rows).sum(axis=1, keepdims=True))
            magnitude = (np.abs(arriving) * rows).sum(axis=1, keepdims=True)
            scale = rows * (np.abs(arriving) + magnitude)
        else:
            share = np.exp(rows)
            exact = arriving - share * arriving.sum(axis=1, keepdims=True)
            magnitude = np.abs(arriving).sum(axis=1, keepdims=True)
            scale = np.abs(arriving) + share * (1 + np.abs(rows)) * magnitude
        inputs = (g, y)
    which = np.arange(len(channel)), channel
    samples = Samples(index, exact[which], scale[which], roundings, 2)
    return Work(
        lambda: context.run(encode),
        [Output("y" if direction == "forward" else "dx", lambda: context.read(results), samples)],
        bytes=x.nbytes * (len(inputs) + 1),
        arrays=x.nbytes * (len(inputs) + 1),
        peers={
            "torch": lambda peer: torch_calls(peer, name, direction, inputs),
            **dict.fromkeys(
                COMPILED, lambda peer: peer.either(direction, getattr(peer.nn, name), g, x)
            ),
        },
    )


def torch_calls(peer: Any, name: str, direction: str, arrays: tuple[Any, ...]) -> dict[str, Any]:
    """PyTorch: over the rows of a matrix, and over the channels of NCHW images."""
    if direction == "forward":
        function = getattr(peer.torch, name)
        over_channels, over_rows = (lambda x: function(x, 1)), (lambda x: function(x, -1))
    else:
        prefix = "_softmax" if name == "softmax" else "_log_softmax"
        operator = getattr(peer.aten, f"{prefix}_backward_data")
        dtype = peer.array(arrays[0]).dtype
        over_channels = lambda g, y: operator(g, y, 1, dtype)  # noqa: E731
        over_rows = lambda g, y: operator(g, y, -1, dtype)  # noqa: E731
    contiguous = peer.images(over_channels, arrays)["contiguous"]
    rows = peer.flat(over_rows, [array.reshape(-1, array.shape[-1]) for array in arrays])[""]
    return {"contiguous": contiguous, "rows": rows}
