"""Kernels that copy: reshape, slice and pad, and the gradients of the first and the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

SAMPLES = 256
# What NumPy and PyTorch call the edge modes.
NUMPY = {"zero": "constant", "clamp": "edge", "mirror": "reflect", "mirror_with_edge": "symmetric"}
TORCH = {"zero": "constant", "clamp": "replicate", "mirror": "reflect"}
QUICK_PAD = 3  # not wider than quick images


def cases(request: Request) -> Iterator[Case]:
    """Yield every layer, forward and where there is one, its gradient."""
    for line in layers.read("reshape"):
        kind = kind_of(line)
        if request.quick:
            line = quick(line)
        name = f"{kind}_{line.options['edge']}" if kind == "pad" else kind
        directions = ("forward",) if kind == "slice" else DIRECTIONS
        kernels = {f"{name}_{direction}": (direction,) for direction in directions}
        yield from layer_cases(request, "reshape", line, kernels, BUILD[kind])


def kind_of(line: Line) -> str:
    """Return which kernel a line is for."""
    if "edge" in line.options:
        return "pad"
    return "slice" if "parts" in line.options else "reshape"


def quick(line: Line) -> Line:
    """Return a layer of the same kind that takes little time."""
    small = line.quick()
    options = dict(small.options)
    if "pad" in options:
        options["pad"] = str(min(int(options["pad"]), QUICK_PAD))
    sizes = small.sizes
    if kind_of(line) == "reshape":
        height, width, channels = small.shape
        sizes = (small.shape, (1, height, width * channels))
    return layers.Line(line.name, sizes, options)


def copied(
    context: Context, run: Callable[[], Any], results: mg.ImageBatch, **work: Any
) -> Callable[[tuple[Any, ...], npt.NDArray[Any]], Work]:
    """Return a function of indices and exact values of copied elements."""

    def finish(index: tuple[Any, ...], exact: npt.NDArray[Any]) -> Work:
        values = exact.astype(np.float64)
        samples = Samples(index, values, np.abs(values), 0)
        return Work(run, [Output("y", lambda: context.read(results), samples)], **work)

    return finish


def build_reshape(context: Context, line: Line, batch: int, dtype: str, direction: str) -> Work:
    """Make arrays and kernels of a reshape or its gradient."""
    x = context.normal((batch, *line.shape), dtype)
    shape = (batch, *line.sizes[1])
    sources, kernel = context.batch(x), mg.Reshape(device=context.device)
    if direction == "forward":
        results = context.result(shape, dtype)

        def encode(buffer: mg.CommandBuffer) -> None:
            kernel.encode_batch(buffer, sources, results)

    else:
        backward = mg.ReshapeGradient(device=context.device)
        g = x.reshape(shape)
        incoming, results = context.batch(g), context.result(x.shape, dtype)
        forward_result = context.result(shape, dtype)
        states = context.run(lambda buffer: encode_states(kernel, buffer, sources, forward_result))
        shape = x.shape

        def encode(buffer: mg.CommandBuffer) -> None:
            backward.encode_batch(buffer, incoming, sources, states, allocator=results)

    flat = x.reshape(batch, -1)
    index = places(context.rng, shape, SAMPLES)
    return copied(
        context,
        lambda: context.run(encode),
        results,
        bytes=2 * x.nbytes,
        arrays=2 * x.nbytes,
        peers={"torch": lambda peer: peer.flat(lambda x: x.clone(), [flat])},
    )(index, x.reshape(shape)[index])


def encode_states(
    kernel: Any, buffer: mg.CommandBuffer, sources: mg.ImageBatch, results: mg.ImageBatch
) -> Any:
    """Encode a forward kernel into given images, and return its states."""
    states = kernel.result_state_batch(sources, results)
    kernel.encode_batch(buffer, sources, results, destination_states=states)
    return states


def build_slice(context: Context, line: Line, batch: int, dtype: str, _direction: str) -> Work:
    """Make arrays and the kernel of a slice."""
    height, width, channels = line.shape
    crop = int(line.options.get("crop", "0"))
    count = max(1, channels // int(line.options["parts"]))
    first = (channels - count) // 4 * 4
    x = context.normal((batch, *line.shape), dtype)
    kernel = mg.Slice(device=context.device)
    kernel.offset, kernel.source_feature_channel_offset = (crop, crop), first
    kernel.source_feature_channel_max_count = count
    shape = (batch, height - 2 * crop, width - 2 * crop, count)
    sources, results = context.batch(x), context.result(shape, dtype)
    part = x[:, crop : height - crop, crop : width - crop, first : first + count]
    index = places(context.rng, shape, SAMPLES)
    return copied(
        context,
        lambda: context.run(lambda buffer: kernel.encode_batch(buffer, sources, results)),
        results,
        bytes=2 * part.nbytes,
        arrays=x.nbytes + part.nbytes,
        peers={"torch": lambda peer: peer.images(torch_slice(peer, crop, first, count), [x])},
    )(index, part[index])


def torch_slice(peer: Any, crop: int, first: int, count: int) -> Callable[[Any], Any]:
    """PyTorch: a copy of the part, in the order that the whole has."""

    def part(x: Any) -> Any:
        height, width = x.shape[2:]
        view = x[:, first : first + count, crop : height - crop, crop : width - crop]
        own = x.is_contiguous()
        order = peer.torch.contiguous_format if own else peer.torch.channels_last
        return view.clone(memory_format=order)

    return part


def build_pad(context: Context, line: Line, batch: int, dtype: str, direction: str) -> Work:
    """Make arrays and kernels of a pad or its gradient."""
    edge, pad = line.options["edge"], int(line.options["pad"])
    before, after = line.pair("channels", 0)
    x = context.normal((batch, *line.shape), dtype)
    forward = mg.Pad((pad, pad, before), (pad, pad, after), device=context.device)
    forward.edge_mode = getattr(mg.EdgeMode, edge.upper())
    # What each place is a copy of, -1 for nothing.
    filling = {"constant_values": -1} if edge == "zero" else {}
    sides = (pad, pad), (pad, pad), (before, after)
    axes = [
        np.pad(np.arange(length), side, mode=NUMPY[edge], **filling)  # type: ignore[call-overload]
        for length, side in zip(line.shape, sides, strict=True)
    ]
    shape = (batch, *(len(axis) for axis in axes))
    sources = context.batch(x)
    total = x.nbytes + x.nbytes * int(np.prod(shape)) // x.size
    work: dict[str, Any] = {"bytes": total, "arrays": total}
    g = context.normal(shape, dtype) if direction == "gradient" else x
    if edge in TORCH:
        work["peers"] = {
            "torch": lambda peer: torch_pad(peer, edge, pad, (before, after), direction, g, x)
        }
    if direction == "forward":
        results = context.result(shape, dtype)
        index = places(context.rng, shape, SAMPLES)
        where = [axis[at] for axis, at in zip(axes, index[1:], strict=True)]
        exact = np.where(np.min(where, axis=0) < 0, 0, x[(index[0], *where)])
        return copied(
            context,
            lambda: context.run(
                lambda buffer: forward.encode_batch(buffer, sources, allocator=results)
            ),
            results,
            **work,
        )(index, exact)
    backward = mg.PadGradient(device=context.device)
    incoming, results = context.batch(g), context.result(x.shape, dtype)
    states = context.states(forward, sources, g)

    def encode(buffer: mg.CommandBuffer) -> None:
        backward.encode_batch(buffer, incoming, sources, states, allocator=results)

    index = places(context.rng, x.shape, SAMPLES)
    parts = [
        g[n][np.ix_(*(np.flatnonzero(axis == at) for axis, at in zip(axes, place, strict=True)))]
        for n, *place in zip(*index, strict=True)
    ]
    samples = Samples(
        index,
        np.array([part.sum(dtype=np.float64) for part in parts]),
        np.array([np.abs(part).sum(dtype=np.float64) for part in parts]),
        max(part.size for part in parts),
    )
    return Work(
        lambda: context.run(encode),
        [Output("dx", lambda: context.read(results), samples)],
        **work,
    )


def torch_pad(
    peer: Any,
    edge: str,
    pad: int,
    channels: tuple[int, int],
    direction: str,
    g: npt.NDArray[Any],
    x: npt.NDArray[Any],
) -> Mapping[str, Callable[[], Any]]:
    """PyTorch: ``pad``, and its gradient by a tape that is kept."""
    sizes = [pad] * 4 + (list(channels) if any(channels) else [])

    def function(x: Any) -> Any:
        return peer.functional.pad(x, sizes, TORCH[edge])

    if direction == "forward":
        return peer.images(function, [x])
    return peer.backward(function, g, x)


BUILD: Mapping[str, Callable[..., Work]] = {
    "reshape": build_reshape,
    "slice": build_slice,
    "pad": build_pad,
}
