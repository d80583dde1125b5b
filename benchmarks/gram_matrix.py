"""Gram matrices: products of every two channels summed over the pixels, and their gradient.

The matrix is symmetric, so what it needs at least is a product and an addition of each pixel for
the C (C + 1) / 2 pairs of channels on its diagonal and to one side of it: C (C + 1) operations a
pixel. The gradient multiplies each pixel with a matrix that has nothing to spare: 2 C^2, and C^2
additions an image for the matrix. Bytes are those of source and matrix, and of the gradient's
matrix, source and result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import COMPILED, DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

SAMPLES = 64


def cases(request: Request) -> Iterator[Case]:
    """Yield both kernels on every layer."""
    kernels = {direction: (direction,) for direction in DIRECTIONS}
    for line in request.lines("gram_matrix"):
        yield from layer_cases(request, "gram_matrix", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kernel: str) -> Work:
    """Make arrays and kernels."""
    height, width, channels = line.shape
    pixels = height * width
    alpha = 1 / pixels  # what losses use, and float16 needs
    x = context.normal((batch, *line.shape), dtype)
    g = context.normal((batch, 1, channels, channels), dtype)
    run, output = (_forward if kernel == "forward" else _gradient)(context, x, g, alpha)
    forward = kernel == "forward"
    arrays = (x,) if forward else (g, x)
    return Work(
        run,
        [output],
        bytes=x.nbytes + g.nbytes + (0 if forward else x.nbytes),
        flops=batch * channels * (channels + 1) * pixels
        if forward
        else batch * channels**2 * (2 * pixels + 1),
        arrays=x.nbytes + g.nbytes + (0 if forward else x.nbytes),
        peers={
            "torch": lambda peer: torch_calls(peer, kernel, arrays, alpha),
            **dict.fromkeys(
                COMPILED,
                lambda peer: peer.either(
                    kernel, lambda values: _products(peer.numpy, values, alpha), g, x
                ),
            ),
        },
    )


def _products(numpy: Any, x: Any, alpha: float) -> Any:
    """Return matrices of NHWC images, as every library writes them."""
    rows = x.reshape(x.shape[0], -1, x.shape[3])
    return (alpha * (numpy.swapaxes(rows, 1, 2) @ rows))[:, None]


def _forward(
    context: Context, x: npt.NDArray[Any], g: npt.NDArray[Any], alpha: float
) -> tuple[Callable[[], Any], Output]:
    """Return one call, and its result: rows of some channels."""
    kernel = mg.GramMatrixCalculation(alpha, device=context.device)
    sources, results = context.batch(x), context.result(g.shape, g.dtype)

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, sources, results)

    index = places(context.rng, g.shape, SAMPLES)
    exact, scale = [], []
    for n, _, row, column in zip(*index, strict=True):
        terms = x[n, ..., row].astype(np.float64) * x[n, ..., column].astype(np.float64)
        exact.append(alpha * terms.sum())
        scale.append(alpha * np.abs(terms).sum())
    samples = Samples(index, np.array(exact), np.array(scale), 2 * (x.shape[1] * x.shape[2] + 1))
    return lambda: context.run(encode), Output("y", lambda: context.read(results), samples)


def _gradient(
    context: Context, x: npt.NDArray[Any], g: npt.NDArray[Any], alpha: float
) -> tuple[Callable[[], Any], Output]:
    """Return one call, and its result."""
    sources, incoming = context.batch(x), context.batch(g)
    forward = mg.GramMatrixCalculation(alpha, device=context.device)
    states = context.states(forward, sources, g)
    kernel = mg.GramMatrixCalculationGradient(device=context.device)
    results = context.result(x.shape, x.dtype)

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, incoming, sources, states, allocator=results)

    index = places(context.rng, x.shape, SAMPLES)
    exact, scale = [], []
    for n, row, column, channel in zip(*index, strict=True):
        pixel = x[n, row, column].astype(np.float64)
        across, down = (side.astype(np.float64) for side in (g[n, 0, channel], g[n, 0, :, channel]))
        exact.append(alpha * ((across + down) @ pixel))
        scale.append(alpha * ((np.abs(across) + np.abs(down)) @ np.abs(pixel)))
    samples = Samples(index, np.array(exact), np.array(scale), 2 * (x.shape[3] + 2))
    return lambda: context.run(encode), Output("dx", lambda: context.read(results), samples)


def torch_calls(
    peer: Any, kernel: str, arrays: tuple[npt.NDArray[Any], ...], alpha: float
) -> dict[str, Callable[[], Any]]:
    """PyTorch: a batch of matrix products, of pixels by channels or of channels by pixels."""
    torch = peer.torch

    *incoming, x = arrays
    batch, channels = x.shape[0], x.shape[-1]
    rows = peer.array(x.reshape(batch, -1, channels))
    nothing = torch.zeros((1, 1, 1), dtype=rows.dtype)

    def products(left: Any, right: Any) -> Any:
        return torch.baddbmm(nothing, left, right, beta=0, alpha=alpha)

    def by_pixels(rows: Any) -> Any:  # (N, HW, C)
        return products(rows.transpose(1, 2), rows)

    def by_channels(planes: Any) -> Any:  # (N, C, HW)
        return products(planes, planes.transpose(1, 2))

    variants = {
        "channels_last": (by_pixels, rows, lambda dx: dx),
        "contiguous": (
            by_channels,
            rows.transpose(1, 2).contiguous(),
            lambda dx: dx.transpose(1, 2),
        ),
    }
    calls: dict[str, Callable[[], Any]] = {}
    for layout, (function, source, ours) in variants.items():
        if kernel == "forward":
            calls[layout] = lambda f=function, s=source: f(s)
            continue
        gradient = peer.array(incoming[0].reshape(batch, channels, channels))
        with torch.enable_grad():
            leaf = source.detach().requires_grad_()
            result = function(leaf)
        calls[layout] = lambda y=result, s=leaf, g=gradient, ours=ours: ours(
            torch.autograd.grad(y, s, g, retain_graph=True)[0]
        )
    return calls
