"""What one encode from Python costs: kernels on one pixel, where there is nothing to compute.

With the run that it leads to, and the encode alone, without the arithmetic.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples
from .results import ALONE
from .suite import Case, Output, Work
from .timing import Reported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .suite import Context, Request

__all__ = ["cases"]

CHANNELS = 4
CALLS = 100
BUFFERS = 20


def cases(request: Request) -> Iterator[Case]:
    """Yield a few kernels, each encoded many times into one command buffer."""
    if "float32" not in request.dtypes:
        return
    for prefix in ("", ALONE):
        for name in KERNELS:
            yield Case(
                "encode",
                prefix + name,
                "pixel",
                None,
                "float32",
                lambda context, name=name, alone=bool(prefix): build(context, name, alone),
                (1, 1, 1, CHANNELS),
            )


def _neuron(_: mg.Device) -> tuple[Any, Any]:
    descriptor = mg.NeuronDescriptor(mg.NeuronType.ABSOLUTE)
    return mg.Neuron(descriptor, device=_), mg.NeuronGradient(descriptor, device=_)


def _convolution(device: mg.Device) -> tuple[Any, Any]:
    weights = np.eye(CHANNELS, dtype=np.float32).reshape(CHANNELS, 1, 1, CHANNELS)
    source = mg.ArrayConvolutionDataSource(weights)
    gradient = mg.ConvolutionGradient(source, device=device)
    gradient.gradient_option = mg.ConvolutionGradientOption.DATA
    return mg.Convolution(source, device=device), gradient


def _pooling(device: mg.Device) -> tuple[Any, Any]:
    return mg.PoolingMax(1, 1, device=device), mg.PoolingMaxGradient(1, 1, device=device)


# "allocated": the kernel configures itself and asks an allocator for its result, as a gradient in a
# loop that was not prepared does. The others are given images for their results.
KERNELS: dict[str, tuple[Callable[[mg.Device], tuple[Any, Any]], str]] = {
    f"{name}_{direction}": (make, direction)
    for name, make in {
        "neuron": _neuron,
        "convolution": _convolution,
        "pooling": _pooling,
    }.items()
    for direction in ("forward", "gradient", "gradient_allocated")
}


def build(context: Context, name: str, alone: bool) -> Work:
    """Make a kernel which hands its input on, and images of one pixel."""
    make, direction = KERNELS[name]
    forward, gradient = make(context.device)
    x = np.abs(context.normal((1, 1, 1, CHANNELS)))
    sources, results = context.batch(x), context.result(x.shape, x.dtype)
    states = context.states(forward, sources, x)
    gradient.configure(sources, sources, states)

    def once(buffer: mg.CommandBuffer) -> None:
        if direction == "forward":
            forward.encode_batch(buffer, sources, results)
        elif direction == "gradient":
            gradient.encode_batch(buffer, sources, sources, states, results)
        else:
            gradient.encode_batch(buffer, sources, sources, states, allocator=results)

    def encode(buffer: mg.CommandBuffer) -> None:
        for _ in range(CALLS):
            once(buffer)

    def encoding() -> float:
        """Return the seconds that the encodes of a run take by themselves, of several runs."""
        seconds = 0.0

        def timed(buffer: mg.CommandBuffer) -> None:
            nonlocal seconds
            start = time.perf_counter()
            encode(buffer)
            seconds += time.perf_counter() - start

        context.run(encode)
        for _ in range(BUFFERS):
            context.run(timed)
        return seconds / BUFFERS

    index = tuple(np.indices(x.shape).reshape(4, -1))
    exact = x[index].astype(np.float64)
    return Work(
        Reported(encoding) if alone else lambda: context.run(encode),
        [Output("y", lambda: context.read(results), Samples(index, exact, exact, 2))],
        arrays=2 * x.nbytes,
        calls=CALLS,
    )
