"""Rows, columns and channels made one value, weighted sums, and local correlation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

# A kind's class, and the axis of (N, H, W, C) that it makes 1.
UNARY = {
    "row_mean": ("ReduceRowMean", 2),
    "row_sum": ("ReduceRowSum", 2),
    "row_max": ("ReduceRowMax", 2),
    "row_min": ("ReduceRowMin", 2),
    "column_mean": ("ReduceColumnMean", 1),
    "column_sum": ("ReduceColumnSum", 1),
    "column_max": ("ReduceColumnMax", 1),
    "column_min": ("ReduceColumnMin", 1),
    "channels_mean": ("ReduceFeatureChannelsMean", 3),
    "channels_sum": ("ReduceFeatureChannelsSum", 3),
    "channels_max": ("ReduceFeatureChannelsMax", 3),
    "channels_min": ("ReduceFeatureChannelsMin", 3),
    "channels_argument_max": ("ReduceFeatureChannelsArgumentMax", 3),
    "channels_argument_min": ("ReduceFeatureChannelsArgumentMin", 3),
}
WEIGHTED = {
    "weighted_sum": "ReduceFeatureChannelsAndWeightsSum",
    "weighted_mean": "ReduceFeatureChannelsAndWeightsMean",
}
ARGUMENT = {"max": np.argmax, "min": np.argmin}
NUMPY = {"mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min}
SAMPLES = 200


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    for line in request.lines("reduction"):
        kernels = {kind: (kind,) for kind in line.words("kinds")}
        yield from layer_cases(request, "reduction", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kind: str) -> Work:
    """Make arrays and kernels."""
    x = context.normal((batch, *line.shape), dtype)
    if kind in UNARY:
        return unary(context, x, dtype, kind)
    y = context.normal(x.shape, dtype)
    if kind in WEIGHTED:
        return weighted(context, x, y, dtype, kind)
    if kind == "local_correlation":
        return correlation(context, line, x, y, dtype)
    kinds = ", ".join([*UNARY, *WEIGHTED, "local_correlation"])
    raise ValueError(f"layer {line.name}: kinds of reductions are {kinds}; got {kind!r}")


def unary(context: Context, x: npt.NDArray[Any], dtype: str, kind: str) -> Work:
    """Reduce one source."""
    name, axis = UNARY[kind]
    kernel = getattr(mg, name)(device=context.device)
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    sources, results = context.batch(x), context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    lines = np.moveaxis(x, axis, -1)[tuple(np.delete(index, axis, axis=0))].astype(np.float64)
    function = kind.rpartition("_")[2]
    if "argument" in kind:
        exact = ARGUMENT[function](lines, axis=1).astype(np.float64)
    else:
        exact = NUMPY[function](lines, axis=1)
    scale = np.abs(lines).mean(axis=1) * (lines.shape[1] if function == "sum" else 1)
    inexact = function in ("mean", "sum")
    samples = Samples(index, exact, scale if inexact else exact, x.shape[axis] if inexact else 0)

    def torch_calls(peer: Any) -> dict[str, Any]:
        dim = {1: 2, 2: 3, 3: 1}[axis]  # of NCHW
        operation = {
            "mean": lambda v: v.mean(dim, keepdim=True),
            "sum": lambda v: v.sum(dim, keepdim=True),
            "max": lambda v: v.amax(dim, keepdim=True),
            "min": lambda v: v.amin(dim, keepdim=True),
        }[function]
        if "argument" in kind:
            operation = {
                "max": lambda v: v.argmax(dim, keepdim=True),
                "min": lambda v: v.argmin(dim, keepdim=True),
            }[function]
        return peer.images(operation, (x,))  # type: ignore[no-any-return]

    def compiled_calls(peer: Any) -> dict[str, Any]:
        function_of = getattr(peer.numpy, f"arg{function}" if "argument" in kind else function)
        return peer.call(lambda v: function_of(v, axis=axis, keepdims=True), x)  # type: ignore[no-any-return]

    peers = {"torch": torch_calls, **dict.fromkeys(COMPILED, compiled_calls)}
    return work(context, kernel, [sources], results, samples, [x], peers)


def weighted(
    context: Context, x: npt.NDArray[Any], w: npt.NDArray[Any], dtype: str, kind: str
) -> Work:
    """Add up products over the channels."""
    kernel = getattr(mg, WEIGHTED[kind])(device=context.device)
    shape = (*x.shape[:3], 1)
    results = context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    over = x.shape[3] if kind == "weighted_mean" else 1
    products = x[index[:3]].astype(np.float64) * w[index[:3]].astype(np.float64) / over
    samples = Samples(index, products.sum(axis=1), np.abs(products).sum(axis=1), 2 * x.shape[3])

    def torch_calls(peer: Any) -> dict[str, Any]:
        if over == 1:
            return peer.images(lambda a, b: (a * b).sum(1, keepdim=True), (x, w))  # type: ignore[no-any-return]
        return peer.images(lambda a, b: (a * b).mean(1, keepdim=True), (x, w))  # type: ignore[no-any-return]

    def compiled_calls(peer: Any) -> dict[str, Any]:
        def function(a: Any, b: Any) -> Any:
            products = a * b
            return (products.sum if over == 1 else products.mean)(axis=3, keepdims=True)

        return peer.call(function, x, w)  # type: ignore[no-any-return]

    sources = [context.batch(x), context.batch(w)]
    peers = {"torch": torch_calls, **dict.fromkeys(COMPILED, compiled_calls)}
    return work(context, kernel, sources, results, samples, [x, w], peers)


def correlation(
    context: Context, line: Line, x: npt.NDArray[Any], y: npt.NDArray[Any], dtype: str
) -> Work:
    """Multiply with shifted copies; PyTorch has no such operation."""
    window, stride = int(line.options["window"]), int(line.options.get("stride", "1"))
    kernel = mg.LocalCorrelation(window, window, stride, stride, device=context.device)
    columns = 2 * window + 1
    shape = (*x.shape[:3], columns**2)
    results = context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    n, row, column, shift = index
    row_b = row + (shift // columns - window) * stride
    column_b = column + (shift % columns - window) * stride
    inside = (row_b >= 0) & (row_b < x.shape[1]) & (column_b >= 0) & (column_b < x.shape[2])
    pixels = y[n, np.clip(row_b, 0, x.shape[1] - 1), np.clip(column_b, 0, x.shape[2] - 1)]
    products = x[index[:3]].astype(np.float64) * pixels.astype(np.float64) * inside[:, np.newaxis]
    samples = Samples(index, products.sum(axis=1), np.abs(products).sum(axis=1), 2 * x.shape[3])
    flops = 2 * x.size * columns**2
    sources = [context.batch(x), context.batch(y)]
    return work(context, kernel, sources, results, samples, [x, y], {}, flops)


def work(
    context: Context,
    kernel: Any,
    sources: list[Any],
    results: Any,
    samples: Samples,
    inputs: list[npt.NDArray[Any]],
    peers: dict[str, Any],
    flops: int = 0,
) -> Work:
    """Put a case together: sources are read once, and results written."""
    result = np.asarray(context.read(results))

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, *sources, results)

    moved = sum(array.nbytes for array in inputs) + result.nbytes
    return Work(
        lambda: context.run(encode),
        [Output("y", lambda: context.read(results), samples)],
        bytes=moved,
        arrays=moved,
        flops=flops,
        peers=peers,
    )
