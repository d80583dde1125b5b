"""Dropout of elements and of whole channels, forward and gradient.

Nobody draws the same random numbers. So what is compared of a forward result is what its elements
are where they were kept, and how many were.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

SAMPLES = 1000
SEED = 1
STRIDES = {"dropout": (1, 1, 1), "channel_dropout": (0, 0, 1)}


def cases(request: Request) -> Iterator[Case]:
    """Yield both directions of every layer."""
    for line in request.lines("dropout"):
        kind = "channel_dropout" if "channels" in line.options else "dropout"
        kernels = {f"{kind}_{direction}": (kind, direction) for direction in DIRECTIONS}
        yield from layer_cases(request, "dropout", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kind: str, direction: str) -> Work:
    """Make arrays and kernels."""
    shape = batch, *line.shape
    keep = float(np.float32(line.options["keep"]))
    stride = STRIDES[kind]
    x = context.normal(shape, dtype)
    forward = mg.Dropout(keep, SEED, stride, device=context.device)
    sources, results = context.batch(x), context.result(shape, dtype)
    states = forward.result_state_batch(sources, results)
    index = places(context.rng, shape, SAMPLES)
    at = x[index].astype(np.float64)
    values = math.prod(shape) if kind == "dropout" else batch * shape[-1]
    mask = None

    def drop(buffer: mg.CommandBuffer) -> None:
        forward.encode_batch(buffer, sources, results, destination_states=states)

    if direction == "forward":

        def run() -> None:
            context.run(drop)

        output = Output(
            "y where kept",
            lambda: where_kept(context.read(results), x, keep, values),
            Samples(index, at / keep, np.abs(at / keep), 2, 0),
        )
    else:
        context.run(drop)
        mask = np.broadcast_to(states[0].mask, shape) != 0
        gradient = mg.DropoutGradient(keep, SEED, stride, device=context.device)

        def differentiate(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, sources, sources, states, allocator=results)

        def run() -> None:
            context.run(differentiate)

        exact = at * mask[index] / keep
        samples = Samples(index, exact, np.abs(at / keep), 2, 0)
        output = Output("dx", lambda: context.read(results), samples)
    bits = values / 8
    return Work(
        run,
        [output],
        bytes=2 * x.nbytes + bits,
        arrays=2 * x.nbytes,
        peers={
            "torch": lambda peer: torch_calls(peer, kind, x, mask, keep, values),
            **({} if mask is None else dict.fromkeys(COMPILED, masking(x, mask, keep))),
        },
    )


def where_kept(
    y: npt.NDArray[Any], x: npt.NDArray[Any], keep: float, values: int
) -> npt.NDArray[Any]:
    """Return a result with what dropped elements would have been, or NaN if too many were, or few.

    The fraction kept of independent values meets the probability to five standard deviations.
    """
    allowed = 5 * math.sqrt(keep * (1 - keep) / values) + 1 / values
    if abs(np.count_nonzero(y) / y.size - keep) > allowed:
        return np.full_like(y, np.nan)
    return np.where(y == 0, (x / np.float32(keep)).astype(x.dtype), y)


def torch_calls(
    peer: Any,
    kind: str,
    x: npt.NDArray[Any],
    mask: npt.NDArray[Any] | None,
    keep: float,
    values: int,
) -> dict[str, Any]:
    """PyTorch: with the mask that its own backward pass needs, and that backward pass."""
    if mask is not None:
        if kind == "channel_dropout":
            scale = (mask[:, :1, :1] / keep).astype(x.dtype)
            return dict(peer.images(lambda g, s: g * s, [x, scale]))
        flat = [array.reshape(-1, array.shape[-1]) for array in (x, mask)]
        return dict(peer.flat(lambda g, m: peer.aten.native_dropout_backward(g, m, 1 / keep), flat))

    def drop(source: Any) -> Any:
        if kind == "channel_dropout":
            result = peer.functional.dropout2d(source, 1 - keep)
        else:
            result = peer.aten.native_dropout(source, 1 - keep, True)[0]

        def read() -> Any:
            y = result.permute(0, 2, 3, 1) if kind == "channel_dropout" else result
            return np.asarray(y.numpy()).reshape(x.shape)

        return lambda: where_kept(read(), x, keep, values)

    if kind == "channel_dropout":
        return dict(peer.images(drop, [x]))
    return dict(peer.flat(drop, [x.reshape(-1, x.shape[-1])]))


def masking(x: npt.NDArray[Any], mask: npt.NDArray[Any], keep: float) -> Any:
    """JAX and MLX: a choice between the quotient and zero."""
    return lambda peer: dict(
        peer.call(lambda g, m: peer.numpy.where(m, g / keep, 0 * g), x, np.ascontiguousarray(mask))
    )
