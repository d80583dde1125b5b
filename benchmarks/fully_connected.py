"""Fully connected kernels: the forward pass, the two gradients, and both together."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .convolution import NewStates
from .suite import COMPILED, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

OPTIONS = {
    "data_gradient": mg.ConvolutionGradientOption.DATA,
    "weight_gradient": mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS,
    "gradient": mg.ConvolutionGradientOption.ALL,
}
SAMPLES = 64


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    kernels = {name: (name,) for name in ("forward", *OPTIONS)}
    for line in layers.read("fully_connected"):
        if request.quick:
            small = line.quick()
            line = replace(small, sizes=(small.sizes[0], (layers.smaller(line.number(1)),)))
        yield from layer_cases(request, "fully_connected", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kernel: str) -> Work:
    """Make arrays and kernels."""
    outputs = line.number(1)
    x = context.normal((batch, *line.shape), dtype)
    w = context.normal((outputs, *line.shape), dtype)
    b = context.normal((outputs,))
    g = context.normal((batch, 1, 1, outputs), dtype)
    run, results = _calls(context, kernel, x, w, b, g)
    moved = {
        "forward": x.nbytes + w.nbytes + g.nbytes,
        "data_gradient": g.nbytes + w.nbytes + x.nbytes,
        "weight_gradient": g.nbytes + x.nbytes + 4 * w.size,
        "gradient": g.nbytes + 2 * x.nbytes + w.nbytes + 4 * w.size,
    }[kernel]
    arrays = x.reshape(batch, -1), w.reshape(outputs, -1), b.astype(dtype), g.reshape(batch, -1)
    return Work(
        run,
        results,
        bytes=moved,
        flops=2 * batch * w.size * (2 if kernel == "gradient" else 1),
        arrays=2 * x.nbytes + w.nbytes + g.nbytes,
        peers={
            "torch": lambda peer: peer.flat(functools.partial(_products, kernel), arrays),
            **dict.fromkeys(
                COMPILED, lambda peer: peer.call(functools.partial(_products, kernel), *arrays)
            ),
        },
    )


def _products(kernel: str, x: Any, w: Any, b: Any, g: Any) -> tuple[Any, ...]:
    """Do the work with matrix products, which every library writes alike."""
    match kernel:
        case "forward":
            return (x @ w.T + b,)
        case "data_gradient":
            return (g @ w,)
        case "weight_gradient":
            return g.T @ x, g.sum(0)
        case _:
            return g @ w, g.T @ x, g.sum(0)


def _calls(
    context: Context,
    which: str,
    x: npt.NDArray[Any],
    w: npt.NDArray[Any],
    b: npt.NDArray[Any],
    g: npt.NDArray[Any],
) -> tuple[Callable[[], Any], list[Output]]:
    """Return one call, and its results."""
    source = mg.ArrayConvolutionDataSource(w, b)
    forward = mg.FullyConnected(source, device=context.device)
    sources = context.batch(x)
    if which == "forward":
        results = context.result(g.shape, g.dtype)

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, allocator=results)

        samples = _samples(context, g.shape, x.reshape(len(x), -1), w.reshape(len(w), -1).T, b)
        return lambda: context.run(encode), [Output("y", lambda: context.read(results), samples)]

    states = NewStates(context, forward, sources, g)
    incoming, results = context.batch(g), context.result(x.shape, x.dtype)
    kernel = mg.FullyConnectedGradient(source, device=context.device)
    kernel.gradient_option = OPTIONS[which]

    def encode_gradient(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, incoming, sources, states.now, allocator=results)

    outputs = []
    rows = g.reshape(len(g), -1)
    if which != "weight_gradient":
        samples = _samples(context, x.shape, rows, w.reshape(len(w), -1))
        outputs.append(Output("dx", lambda: context.read(results), samples))
    if which != "data_gradient":
        dw = _samples(context, w.shape, rows.T, x.reshape(len(x), -1))
        ones = np.ones((len(g), 1), g.dtype)
        db = _samples(context, (len(w), 1), rows.T, ones)
        outputs += [
            Output("dw", lambda: states.array("gradient_for_weights", w.shape), dw),
            Output("db", lambda: states.array("gradient_for_biases", (len(w), 1)), db),
        ]
    return states.before(which, lambda: context.run(encode_gradient)), outputs


def _samples(
    context: Context,
    shape: tuple[int, ...],
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    bias: npt.NDArray[Any] | None = None,
) -> Samples:
    """Return elements of the product of two matrices, seen as an array of ``shape``."""
    index = places(context.rng, shape, SAMPLES)
    rows, columns = np.divmod(np.ravel_multi_index(index, shape), right.shape[1])
    exact, scale = [], []
    for row, column in zip(rows, columns, strict=True):
        terms = left[row].astype(np.float64) * right[:, column].astype(np.float64)
        added = 0.0 if bias is None else float(bias[column])
        exact.append(terms.sum() + added)
        scale.append(np.abs(terms).sum() + abs(added))
    return Samples(index, np.array(exact), np.array(scale), 2 * left.shape[1] + 2)
