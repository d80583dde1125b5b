"""Gradients of whole networks in one array, between a graph and the steps of the optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from mpsgrad import _core
from mpsgrad._array_source import ArraySource
from mpsgrad.optimizer import OptimizerDescriptor, StochasticGradientDescent

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from mpsgrad._updates import ArrayUpdates

__all__ = ["GradientBucket"]


class _Part(NamedTuple):
    """A parameter's gradient in the bucket."""

    first: int
    shape: tuple[int, ...]
    vector: _core.Vector


class GradientBucket:
    """Gradients of some data sources in one array, until their optimizers take a step.

    What a graph computes for the sources is added up here, and their weights stay as they are until
    `step`. Meanwhile a program may look at the gradients, change them, or add up those of several
    batches or, with `array`, of several processes. Nodes that share a source are added up, too. Of
    the package's own: Apple leaves it to data sources.

    Running averages of batch normalization are no gradients, and go on moving with every batch.

    Parameters
    ----------
    sources : iterable of data sources
        Over arrays, such as `ArrayConvolutionDataSource`, with optimizers on one device. A source
        that is named several times counts once.

    Raises
    ------
    TypeError
        If there is a source of another kind.
    ValueError
        If there is none, one has no optimizer or is in another bucket, or devices differ.

    Examples
    --------
    >>> import numpy as np
    >>> import mpsgrad as mg
    >>> sgd = mg.SGD(0.1, device="cpu")
    >>> source = mg.ArrayConvolutionDataSource(np.ones((2, 1, 1, 3)), np.zeros(2), optimizer=sgd)
    >>> bucket = mg.GradientBucket([source])
    >>> bucket
    GradientBucket(1 source, 8 gradients, cpu)
    >>> bucket.gradients[0]["weights"].shape
    (2, 1, 1, 3)
    """

    def __init__(self, sources: Iterable[ArraySource]) -> None:
        self._sources = list({id(source): source for source in sources}.values())
        updates = [_updates_of(source) for source in self._sources]
        if not updates:
            raise ValueError("GradientBucket: there must be a source")
        device = updates[0].optimizer.device
        for other in updates:
            if other.optimizer.device != device:
                raise ValueError(
                    "GradientBucket: all optimizers must be on one device, got "
                    f"{device.kind} and {other.optimizer.device.kind}"
                )
        shapes = [each.shapes() for each in updates]
        sizes = [int(np.prod(shape)) for named in shapes for shape in named.values()]
        self._buffer = _core.Buffer(device, 4 * sum(sizes))
        self._queue = device.command_queue()
        self._waited_for: list[_core.CommandQueue] = []  # by whoever looks at the gradients next
        self._adding = StochasticGradientDescent(
            optimizer_descriptor=OptimizerDescriptor(-1.0), device=device
        )
        self._parts: dict[ArrayUpdates, dict[str, _Part]] = {}
        first = 0
        for each, named in zip(updates, shapes, strict=True):
            self._parts[each] = {}
            for name, shape in named.items():
                size = int(np.prod(shape))
                descriptor = _core.VectorDescriptor(size)
                vector = _core.Vector(self._buffer, descriptor, 4 * first)
                self._parts[each][name] = _Part(first, shape, vector)
                first += size
        for each in updates:
            each.bucket = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __len__(self) -> int:
        """Return the number of gradients, all elements counted."""
        return len(self._buffer)

    def __repr__(self) -> str:
        """Show sources, gradients and device."""
        count = len(self._sources)
        sources = f"{count} source{'' if count == 1 else 's'}" if self._parts else "released"
        kind = self._buffer.device.kind
        return f"GradientBucket({sources}, {len(self)} gradients, {kind})"

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """All gradients one after the other, float32, to be read and written in place; read only.

        Source by source, in each weights, then biases, or gamma, then beta. Getting it waits for
        the command buffers that have been committed. It is the bucket's memory, aligned to 64
        bytes, which `mpi4py` adds up over processes in place.
        """
        self._wait()
        return np.array(self._buffer, copy=False)

    @property
    def gradients(self) -> list[dict[str, npt.NDArray[np.float32]]]:
        """Views of `array` for each source, by name and of the parameter's shape; read only."""
        array = self.array
        return [
            {
                name: array[part.first :][: int(np.prod(part.shape))].reshape(part.shape)
                for name, part in parts.items()
            }
            for parts in self._parts.values()
        ]

    def clear(self) -> None:
        """Make all gradients zeros, so that those of the next batch are not added to them."""
        self.array[:] = 0.0

    def step(self) -> None:
        """Have each optimizer take one step by the gradients, and make them zeros.

        Waits until it is done. Graphs use the new weights after
        ``Graph.reload_from_data_sources()``.

        Raises
        ------
        RuntimeError
            If the bucket has been released.
        ValueError
            If a source's arrays have been replaced by others of another shape.
        """
        if not self._parts:
            raise RuntimeError("GradientBucket.step: the bucket has been released")
        for updates, parts in self._parts.items():
            for name, shape in updates.shapes().items():
                if shape != parts[name].shape:
                    raise ValueError(
                        f"GradientBucket.step: {name} had shape {parts[name].shape} when the "
                        f"bucket was made, and now have {shape}"
                    )
        self._wait()
        command_buffer = self._queue.command_buffer()
        for updates, parts in self._parts.items():
            updates.step_vectors(command_buffer, [part.vector for part in parts.values()])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        self.clear()

    def release(self) -> None:
        """Give the sources back: graphs update them again. What is in the bucket stays there."""
        for updates in self._parts:
            updates.bucket = None
        self._parts = {}

    def _add(
        self,
        command_buffer: _core.CommandBuffer,
        updates: ArrayUpdates,
        gradients: dict[str, _core.Buffer],
    ) -> None:
        """Encode the addition of one source's gradients, by name; for `ArrayUpdates`."""
        for name, part in self._parts[updates].items():
            descriptor = _core.VectorDescriptor(part.vector.length)
            gradient = _core.Vector(gradients[name], descriptor)
            self._adding.encode_vector(command_buffer, gradient, part.vector, None, part.vector)
        if command_buffer.queue not in self._waited_for:
            self._waited_for.append(command_buffer.queue)

    def _wait(self) -> None:
        while self._waited_for:
            barrier = self._waited_for[-1].command_buffer()
            barrier.commit()
            barrier.wait_until_completed()
            self._waited_for.pop()


def _updates_of(source: Any) -> ArrayUpdates:
    if not isinstance(source, ArraySource):
        raise TypeError(
            "GradientBucket: sources must be data sources over arrays, such as "
            f"ArrayConvolutionDataSource, got {type(source).__name__}"
        )
    updates = source._updates
    if updates is None:
        raise ValueError(f"GradientBucket: {source!r} has no optimizer")
    if updates.bucket is not None:
        raise ValueError(f"GradientBucket: {source!r} is in another bucket, {updates.bucket!r}")
    return updates
