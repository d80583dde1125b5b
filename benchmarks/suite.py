"""What a benchmark case is, and how the cases of all families are found."""

from __future__ import annotations

import hashlib
import importlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import FAMILIES, layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import mpsgrad as mg
    import numpy.typing as npt

    from .check import Samples

__all__ = [
    "COMPILED",
    "DIRECTIONS",
    "Case",
    "Context",
    "Output",
    "Request",
    "Work",
    "all_cases",
    "has_words",
    "layer_cases",
]

DIRECTIONS = ("forward", "gradient")

# Peers that compile functions which every one of them writes alike.
COMPILED = ("jax", "mlx")


@dataclass(frozen=True)
class Request:
    """Which variants of every layer are wanted; `quick` ones are small."""

    batches: Sequence[int] = (16,)
    dtypes: Sequence[str] = ("float32",)
    quick: bool = False

    def lines(self, name: str) -> list[layers.Line]:
        """Return the layers of ``<name>.txt``, small ones if `quick`."""
        return [line.quick() if self.quick else line for line in layers.read(name)]


class Context:
    """What a case is built with: a device with its queue, and random numbers."""

    def __init__(self, device: mg.Device, name: str) -> None:
        self.device = device
        self.queue = device.command_queue()
        seed = hashlib.sha256(name.encode()).digest()
        self.rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))

    def normal(self, shape: tuple[int, ...], dtype: npt.DTypeLike = "float32") -> Any:
        """Return normally distributed numbers, aligned as every library likes them."""
        result = empty(shape, "float32")
        self.rng.standard_normal(out=result, dtype=np.float32)
        return result if result.dtype == dtype else aligned(result.astype(dtype))

    def run(self, encode: Callable[[mg.CommandBuffer], Any]) -> Any:
        """Encode on a new command buffer, run it, wait, and return what ``encode`` did."""
        buffer = self.queue.command_buffer()
        result = encode(buffer)
        buffer.commit()
        buffer.wait_until_completed()
        return result

    def batch(self, array: npt.NDArray[Any]) -> mg.ImageBatch:
        """Return images over (or, on a GPU, with a copy of) an array (N, H, W, C)."""
        import mpsgrad as mg

        return mg.ImageBatch.from_array(self.device, array)

    def result(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> mg.ImageBatch:
        """Return images to write to, full of NaN."""
        array = empty(shape, dtype)
        array.fill(np.nan)
        return self.batch(array)

    def states(self, forward: Any, sources: mg.ImageBatch, result: npt.NDArray[Any]) -> Any:
        """Run a forward kernel, whose result is like an array, and return its states only."""
        places = self.result(result.shape, result.dtype)
        return self.run(
            lambda buffer: forward.encode_batch(buffer, sources, with_state=True, allocator=places)
        )[1]

    def read(self, images: mg.ImageBatch) -> npt.NDArray[Any]:
        """Return what finished images hold."""
        import mpsgrad as mg

        self.run(lambda buffer: mg.synchronize(images, buffer))
        return images.to_array()


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array that starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy that starts at a multiple of 64 bytes."""
    result = empty(array.shape, array.dtype)
    result[...] = array
    return result


@dataclass(frozen=True)
class Output:
    """One result of a case: how to read it after a run, and some of its exact elements."""

    name: str
    read: Callable[[], npt.NDArray[Any]]
    samples: Samples


@dataclass(frozen=True)
class Work:
    """A case that is ready to run.

    Attributes
    ----------
    run : callable
        One call, which waits for its results.
    outputs : list of Output
        What the first call must give.
    flops, bytes : float
        Operations that the result needs at least, and bytes of its inputs and outputs.
    arrays : int
        Bytes of the arrays that a user holds.
    peers : mapping
        For each peer, by name, a function that takes it and returns its variants, by name: calls
        that do the same work and return the same outputs, in order.
    calls : int
        How many calls of a kernel one run is, if a time for each of them is meant.
    """

    run: Callable[[], Any]
    outputs: list[Output]
    bytes: float = 0.0
    flops: float = 0.0
    arrays: int = 0
    peers: Mapping[str, Callable[[Any], Mapping[str, Callable[[], Any]]]] = field(
        default_factory=dict
    )
    calls: int = 1


@dataclass(frozen=True)
class Case:
    """One kernel on one layer; `batch` is None where there is none."""

    family: str
    kernel: str
    layer: str
    batch: int | None
    dtype: str
    build: Callable[[Context], Work]
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Kernel, layer, batch size and element type."""
        batch = "" if self.batch is None else f" batch {self.batch}"
        return f"{self.family}/{self.kernel} {self.layer}{batch} {self.dtype}"


def layer_cases(
    request: Request,
    family: str,
    layer: layers.Line | layers.ConvolutionLayer | layers.PoolingLayer,
    kernels: Mapping[str, tuple[Any, ...]],
    build: Callable[..., Work],
) -> Iterator[Case]:
    """Yield a layer's kernels in every batch size and type.

    `kernels` are named, each with what ``build(context, layer, batch, dtype, *of_kernel)`` takes.
    """
    for batch in request.batches:
        for dtype in request.dtypes:
            for kernel, of_kernel in kernels.items():
                given = layer, batch, dtype, *of_kernel
                yield Case(
                    family,
                    kernel,
                    layer.name,
                    batch,
                    dtype,
                    lambda context, given=given: build(context, *given),
                    (batch, *layer.shape),
                )


def all_cases(request: Request, families: Sequence[str] = FAMILIES) -> Iterator[Case]:
    """Yield the cases of every family."""
    for family in families:
        module = importlib.import_module(f".{family}", __package__)
        yield from module.cases(request)


def has_words(name: str, filters: Sequence[str]) -> bool:
    """Whether a name has every word of one of the filters, in any case; without filters, yes."""
    low = name.lower()
    return not filters or any(all(word in low for word in f.lower().split()) for f in filters)
