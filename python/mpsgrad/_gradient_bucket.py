"""Gradients of whole networks in one array, between a graph and the steps of the optimizers."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np

from mpsgrad import _core
from mpsgrad._array_source import ArraySource
from mpsgrad._arrays import array_queue, as_array
from mpsgrad._core import CommandBufferStatus
from mpsgrad.optimizer import OptimizerDescriptor, StochasticGradientDescent

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpsgrad._updates import ArrayUpdates

__all__ = ["GradientBucket"]


class _Part(NamedTuple):
    """A parameter's gradient in the bucket."""

    first: int
    shape: tuple[int, ...]
    vector: _core.Vector

    def of(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a view."""
        return array[self.first :][: self.vector.length].reshape(self.shape)


class _Addition(NamedTuple):
    """An encode that adds to the bucket; the command buffer is not kept alive."""

    queue: _core.CommandQueue
    command_buffer: weakref.ref[_core.CommandBuffer]
    process: int

    def has_not_been_committed(self) -> bool:
        command_buffer = self.command_buffer()
        return command_buffer is not None and command_buffer.status in (
            CommandBufferStatus.NOT_ENQUEUED,
            CommandBufferStatus.ENQUEUED,
        )


class _Views(MutableMapping[str, "npt.NDArray[np.float32]"]):
    """Arrays by name, whose numbers an assignment replaces."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self._arrays[name][...] = _numbers(value, self._arrays[name].shape, name)

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"GradientBucket: {name} cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return repr(self._arrays)


class GradientBucket:
    """Gradients of some data sources in one array, until their optimizers take a step.

    What a graph computes for the sources is added up here, and their weights stay as they are until
    `step`. Meanwhile a program may look at the gradients, change them, or add up those of several
    batches or, with `array`, of several processes. Nodes that share a source are added up, too. Of
    the package's own: Apple leaves it to data sources.

    Gradients come by the sources' ``update`` or ``update_gamma_and_beta``, which graphs call where
    their training style is GPU; a program without a graph calls them itself. Running averages of
    batch normalization are no gradients, and go on moving with every batch. All gradients come from
    one queue at a time, and none while another thread is in `step` or `clear`. Once nobody has the
    bucket any more, the sources are released.

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

    __slots__ = (
        "__weakref__",
        "_adding",
        "_additions",
        "_buffer",
        "_device",
        "_filled",
        "_lock",
        "_parts",
        "_released",
        "_sources",
    )

    def __init__(self, sources: Iterable[ArraySource]) -> None:
        if isinstance(sources, ArraySource) or not isinstance(sources, Iterable):
            raise TypeError(
                "GradientBucket: sources must be a list of data sources over arrays, got "
                f"{type(sources).__name__}"
            )
        self._sources = list({id(source): source for source in sources}.values())
        updates = [_updates_of(source) for source in self._sources]
        if not updates:
            raise ValueError("GradientBucket: there must be a source")
        self._device = updates[0].optimizer.device
        for other in updates:
            if other.optimizer.device != self._device:
                raise ValueError(
                    "GradientBucket: all optimizers must be on one device, got "
                    f"{self._device.kind} and {other.optimizer.device.kind}"
                )
        shapes = [each.shapes() for each in updates]
        sizes = [int(np.prod(shape)) for named in shapes for shape in named.values()]
        self._buffer = _core.Buffer(self._device, 4 * sum(sizes))
        self._adding = StochasticGradientDescent(
            optimizer_descriptor=OptimizerDescriptor(-1.0), device=self._device
        )
        self._parts: dict[ArrayUpdates, dict[str, _Part]] = {}
        first = 0
        for each, named in zip(updates, shapes, strict=True):
            self._parts[each] = {}
            for name, shape in named.items():
                descriptor = _core.VectorDescriptor(int(np.prod(shape)))
                vector = _core.Vector(self._buffer, descriptor, 4 * first)
                self._parts[each][name] = _Part(first, shape, vector)
                first += vector.length
        self._lock = threading.Lock()  # of what follows, while several threads encode
        self._additions: list[_Addition] = []  # that may not have run
        self._filled: set[ArrayUpdates] = set()  # since the last step
        self._released = False
        for each in updates:
            each.bucket = self
        _buckets.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("GradientBucket: cannot be copied or pickled; its array can")

    def __enter__(self) -> Self:
        self._require_sources("a with block")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __len__(self) -> int:
        """Return the number of gradients, all elements counted."""
        return len(self._buffer)

    def __repr__(self) -> str:
        """Show sources, gradients and device."""
        count = len(self._sources)
        sources = "released" if self._released else f"{count} source{'' if count == 1 else 's'}"
        return f"GradientBucket({sources}, {len(self)} gradients, {self._device.kind})"

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """All gradients one after the other, float32, to be read and written in place.

        Source by source, in each weights, then biases, or gamma, then beta. It is the bucket's
        memory, on the CPU device aligned to 64 bytes, which `mpi4py` adds up over processes in
        place. Getting it waits for the command buffers that add to it, all of which must have been
        committed: else it raises a RuntimeError. Assigning to it copies.
        """
        return self._ready()

    @array.setter
    def array(self, values: npt.ArrayLike) -> None:
        array = self._ready()
        array[:] = _numbers(values, array.shape, "array")  # of itself after an operator in place

    @property
    def gradients(self) -> list[MutableMapping[str, npt.NDArray[np.float32]]]:
        """Views of `array` for each source, by name and of the parameter's shape; read only.

        Assigning to one of the views copies.
        """
        array = self._ready()
        return [
            _Views({name: part.of(array) for name, part in parts.items()})
            for parts in self._parts.values()
        ]

    def clear(self) -> None:
        """Make all gradients zeros, so that those of the next batch are not added to them.

        Raises
        ------
        RuntimeError
            If a command buffer that adds to them has not been committed.
        """
        self._ready()[:] = 0.0
        self._filled.clear()

    def step(self) -> None:
        """Have each optimizer take one step by the gradients, and make them zeros.

        Waits until it is done, and brings the new values into the sources' arrays. Graphs and
        kernels use them after ``Graph.reload_from_data_sources()`` and the like. Sources whose
        gradients are all zeros, because nothing has been added to them, are left out.

        Raises
        ------
        RuntimeError
            If there are no gradients, a command buffer that adds to them or updates a source has
            not been committed, or the bucket has been released; nothing has changed then.
        TypeError, ValueError
            If a source's array has been replaced by something that is not a float32 array of its
            shape, or cannot be written; nothing has changed then.
        """
        self._require_sources("step")
        for updates, parts in self._parts.items():
            updates.require_arrays(
                "GradientBucket.step", {name: part.shape for name, part in parts.items()}
            )
        array = self._ready()
        steps = {
            updates: updates.steps
            for updates, parts in self._parts.items()
            if updates in self._filled or any(part.of(array).any() for part in parts.values())
        }
        if not steps:
            raise RuntimeError(
                "GradientBucket.step: there are no gradients, for nothing has come since the last "
                "step; graphs add where their training style is GPU, programs by the sources' "
                "update()"
            )
        for updates in steps:
            updates.bring_back()  # waits for steps of its own
        command_buffer = array_queue(self._device).command_buffer()
        try:
            for updates in steps:
                vectors = [part.vector for part in self._parts[updates].values()]
                updates.step_vectors(command_buffer, vectors)
        except BaseException:
            for updates, before in steps.items():
                updates.forget_step(before)
            raise
        command_buffer.commit()
        command_buffer.wait_until_completed()
        for updates in steps:
            updates.bring_back()
        array[:] = 0.0
        self._filled.clear()

    def release(self) -> None:
        """Give the sources back: graphs update them again. What is in the bucket stays there."""
        if not self._released:
            self._released = True
            for updates in self._parts:
                updates.bucket = None

    def _require_sources(self, what: str) -> None:
        if self._released:
            raise RuntimeError(
                f"GradientBucket: {what} needs its sources, which have been released; make a new "
                "bucket"
            )

    def _add(
        self,
        command_buffer: _core.CommandBuffer,
        updates: ArrayUpdates,
        encode: Callable[..., Any],
    ) -> None:
        """Encode the addition of one source's gradients; for `ArrayUpdates`.

        ``encode`` encodes a step of the optimizer that it is given, with all checks of that, on the
        buffers that it is given: a step of plain descent from zeros makes them the gradients.
        """
        parts = self._parts[updates]
        buffers = {
            name: _core.Buffer(self._device, 4 * part.vector.length) for name, part in parts.items()
        }
        encode(self._adding, buffers.__getitem__, None)
        for name, part in parts.items():
            gradient = _core.Vector(buffers[name], _core.VectorDescriptor(part.vector.length))
            self._adding.encode_vector(command_buffer, gradient, part.vector, None, part.vector)
        addition = _Addition(command_buffer.queue, weakref.ref(command_buffer), os.getpid())
        with self._lock:
            self._additions.append(addition)
            self._filled.add(updates)

    def _ready(self) -> npt.NDArray[np.float32]:
        """Wait for the additions, and return the memory."""
        with self._lock:
            additions = list(self._additions)
        try:
            array = np.array(self._buffer, copy=False)
        except RuntimeError:
            if any(addition.has_not_been_committed() for addition in additions):
                raise RuntimeError(
                    "GradientBucket: a command buffer that adds gradients has not been committed"
                ) from None
            here = os.getpid()  # queues do not survive a fork
            for queue in {addition.queue for addition in additions if addition.process == here}:
                barrier = queue.command_buffer()
                barrier.commit()
                barrier.wait_until_completed()
            array = np.array(self._buffer, copy=False)
        with self._lock:
            self._additions = self._additions[len(additions) :]
        return array


_buckets: weakref.WeakSet[GradientBucket] = weakref.WeakSet()


def _new_locks() -> None:
    """Replace the locks in a forked child: who held one may have stayed in the parent."""
    for bucket in _buckets:
        bucket._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_locks)


def _numbers(values: Any, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return what takes the place of an array of gradients: as many numbers, or one for all."""
    given = np.asarray(values) if np.isscalar(values) else as_array("GradientBucket", values, name)
    if not np.can_cast(given.dtype, np.float32, "same_kind"):
        raise TypeError(f"GradientBucket: {name} must be float32, got {given.dtype}")
    if given.shape not in ((), shape):
        raise ValueError(
            f"GradientBucket: {name} has shape {shape}, and cannot be set to an array of shape "
            f"{given.shape}"
        )
    return given


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
        raise ValueError(
            f"GradientBucket: {source!r} is in another bucket, {updates.bucket!r}, which can "
            "release() it"
        )
    return updates
