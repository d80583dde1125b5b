"""Upsampling, nearest and bilinear with aligned corners, forward and gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, places
from .suite import DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

SAMPLES = 256


def cases(request: Request) -> Iterator[Case]:
    """Yield every layer, forward and gradient."""
    for line in request.lines("upsampling"):
        kind = line.options["kind"]
        named = {f"{kind}_{direction}": (direction,) for direction in DIRECTIONS}
        yield from layer_cases(request, "upsampling", line, named, build)


def kernels(kind: str, scale: int, device: mg.Device) -> tuple[Any, Any]:
    """Return the forward kernel and the gradient kernel.

    Bilinear ones align corners: with other positions PyTorch interpolates elsewhere.
    """
    if kind == "nearest":
        return (
            mg.UpsamplingNearest(scale, scale, device=device),
            mg.UpsamplingNearestGradient(scale, scale, device=device),
        )
    return (
        mg.UpsamplingBilinear(scale, scale, align_corners=True, device=device),
        mg.UpsamplingBilinearGradient(scale, scale, device=device),
    )


def build(context: Context, line: Line, batch: int, dtype: str, direction: str) -> Work:
    """Make arrays and kernels."""
    kind, scale = line.options["kind"], int(line.options["scale"])
    height, width, channels = line.shape
    x = context.normal((batch, height, width, channels), dtype)
    g = context.normal((batch, height * scale, width * scale, channels), dtype)
    forward, gradient = kernels(kind, scale, context.device)
    sources = context.batch(x)
    rows, columns = (matrix(kind, length, scale) for length in (height, width))
    if direction == "forward":
        results = context.result(g.shape, g.dtype)

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, allocator=results)

        samples = samples_of(context.rng, g.shape, x, rows, columns)
    else:
        incoming, results = context.batch(g), context.result(x.shape, x.dtype)
        states = context.states(forward, sources, g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, sources, states, allocator=results)

        samples = samples_of(context.rng, x.shape, g, rows.T, columns.T)
    return Work(
        lambda: context.run(encode),
        [Output("y" if direction == "forward" else "dx", lambda: context.read(results), samples)],
        bytes=x.nbytes + g.nbytes,  # a gradient needs no source
        arrays=x.nbytes + g.nbytes if direction == "forward" else 2 * x.nbytes + g.nbytes,
        peers={"torch": lambda peer: torch_calls(peer, kind, scale, direction, x, g)},
    )


def matrix(kind: str, length: int, scale: int) -> npt.NDArray[np.float64]:
    """Return the weights of source pixels in results, shape (results, source pixels)."""
    i = np.arange(length * scale)
    if kind == "nearest":
        position = (i // scale).astype(np.float64)
    else:
        position = i * (length - 1) / max(length * scale - 1, 1)
    low = np.minimum(np.floor(position).astype(np.intp), length - 1)
    weights = np.zeros((len(i), length))
    weights[i, low] = 1 - (position - low)
    weights[i, np.minimum(low + 1, length - 1)] += position - low
    return weights


def samples_of(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    read: npt.NDArray[Any],
    rows: npt.NDArray[np.float64],
    columns: npt.NDArray[np.float64],
) -> Samples:
    """Return elements of ``rows @ read @ columns.T`` in float64."""
    index = places(rng, shape, SAMPLES)
    exact, scale, most = [], [], 0
    for n, y, x, c in zip(*index, strict=True):
        down, across = np.flatnonzero(rows[y]), np.flatnonzero(columns[x])
        part = read[n, down[0] : down[-1] + 1, across[0] : across[-1] + 1, c].astype(np.float64)
        weights = np.outer(rows[y, down[0] : down[-1] + 1], columns[x, across[0] : across[-1] + 1])
        exact.append((weights * part).sum())
        scale.append((weights * np.abs(part)).sum())
        most = max(most, len(down) + len(across))
    return Samples(index, np.array(exact), np.array(scale), most + 4)


def torch_calls(
    peer: Any,
    kind: str,
    scale: int,
    direction: str,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
) -> Mapping[str, Callable[[], Any]]:
    """PyTorch: ``interpolate``, and its tape."""
    how: dict[str, Any] = {"mode": kind}
    if kind == "bilinear":
        how["align_corners"] = True

    def function(images: Any) -> Any:
        return peer.functional.interpolate(images, scale_factor=scale, **how)

    calls: Mapping[str, Callable[[], Any]] = (
        peer.images(function, [x]) if direction == "forward" else peer.backward(function, g, x)
    )
    return calls
