"""How data sources over arrays train: an optimizer, its history, a master copy on its device."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad.optimizer import (
    Adam,
    Optimizer,
    OptimizerDescriptor,
    RegularizationType,
    RMSProp,
    StochasticGradientDescent,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mpsgrad._gradient_bucket import GradientBucket

__all__ = ["ArrayUpdates", "spend"]

_time_steps = threading.Lock()


def _new_lock() -> None:
    """Replace the lock in a forked child: who held it may have stayed in the parent."""
    global _time_steps
    _time_steps = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def spend(states: Iterable[_core.State | None]) -> None:
    """Lower the read counts of temporary states by one, as an update does that reads them."""
    for state in dict.fromkeys(states):
        if state is not None and state.is_temporary:
            state.read_count -= 1


class ArrayUpdates:
    """Steps of one optimizer on the float32 arrays of one data source.

    Between updates and the next `bring_back` the numbers are those of the device; otherwise those
    of the arrays, which may then be changed.

    Parameters
    ----------
    owner : str
        For messages.
    optimizer : Optimizer
        May serve several data sources: the number of steps is kept here.
    source : data source
        Whose attributes the arrays are, so that they may be replaced.
    attributes : dict of str
        The parameters' attributes by name, in the order of the states that hold them.
    """

    def __init__(self, owner: str, optimizer: Any, source: Any, attributes: dict[str, str]) -> None:
        if not isinstance(optimizer, Optimizer):
            is_class = isinstance(optimizer, type)
            got = f"the class {optimizer.__name__}" if is_class else type(optimizer).__name__
            raise TypeError(f"{owner}: optimizer must be an Optimizer, got {got}")
        self.optimizer: Any = optimizer
        self._source = source
        self._attributes = attributes
        for name in attributes:
            dtype = self._array(name).dtype
            if dtype != np.float32:
                raise TypeError(f"{owner}: to be trained, {name} must be float32, got {dtype}")
            if not self._array(name).flags.writeable:
                raise ValueError(f"{owner}: to be trained, {name} must be writeable; pass a copy")
        self.steps = 0
        self._history: dict[str, list[_core.Vector]] = {}  # by kind, in the order of the arrays
        self._buffers: dict[str, _core.Buffer] = {}
        self._queue: _core.CommandQueue | None = None  # of the last update; no buffer is kept alive
        self._bucket: weakref.ref[GradientBucket] | None = None

    def _array(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = getattr(self._source, self._attributes[name])
        return array

    @property
    def bucket(self) -> GradientBucket | None:
        """Where gradients go in place of a step; None also once nobody has it any more."""
        return None if self._bucket is None else self._bucket()

    @bucket.setter
    def bucket(self, bucket: GradientBucket | None) -> None:
        self._bucket = None if bucket is None else weakref.ref(bucket)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the parameters' shapes by name."""
        return {name: self._array(name).shape for name in self._attributes}

    def require_arrays(self, who: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise unless the arrays, which a program may have replaced, can be trained."""
        for name, shape in shapes.items():
            array = self._array(name)
            wanted = f"{who}: {name} of {type(self._source).__name__} must be a float32 array"
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{wanted}, got {type(array).__name__}")
            if array.dtype != np.float32:
                raise TypeError(f"{wanted}, got {array.dtype}")
            if array.shape != shape:
                raise ValueError(f"{wanted} of shape {shape}, as before, got {array.shape}")
            if not array.flags.writeable:
                raise ValueError(f"{wanted} that can be written")

    def buffer(self, name: str) -> _core.Buffer:
        """Return the master copy of a parameter."""
        if name not in self._buffers:
            array = np.ascontiguousarray(self._array(name)).reshape(-1)
            self._buffers[name] = _core.Buffer(self.optimizer.device, array)
        return self._buffers[name]

    def vector(self, name: str) -> _core.Vector:
        """Return the same as a vector."""
        return _vector_over(self.buffer(name), self._array(name).size)

    def bring_back(self) -> None:
        """Write what updates have made into the arrays; waits for the last one."""
        if self._queue is not None:
            barrier = self._queue.command_buffer()  # completes after all that was committed before
            for vectors in self._history.values():
                for vector in vectors:
                    vector.synchronize(barrier)
            barrier.commit()
            barrier.wait_until_completed()
            values = {
                name: buffer.to_numpy().reshape(self._array(name).shape)
                for name, buffer in self._buffers.items()
            }
            for name, value in values.items():
                self._array(name)[...] = value
            self._queue = None
        self._buffers = {}

    def counts_steps(self) -> bool:
        """Whether the number of steps is part of the optimizer's rule."""
        return isinstance(self.optimizer, Adam)

    def _kinds(self) -> tuple[str, ...]:
        """Names of the optimizer's histories, in the order of its encodes' arguments."""
        if isinstance(self.optimizer, Adam):
            return ("momentum", "velocity")
        return ("sum_of_squares",) if isinstance(self.optimizer, RMSProp) else ("momentum",)

    def _histories(self) -> list[Any]:
        """History arguments, one list of vectors each, in the order of the optimizer's encodes."""
        optimizer = self.optimizer
        if isinstance(optimizer, StochasticGradientDescent) and optimizer.momentum_scale == 0.0:
            return [None]
        if not self._history:
            sizes = [self._array(name).size for name in self._attributes]
            self._history = {
                kind: [
                    _core.Vector(optimizer.device, _core.VectorDescriptor(size)) for size in sizes
                ]
                for kind in self._kinds()
            }
        return list(self._history.values())

    def history(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of what the optimizer keeps, as ``momentum_of_weights``; after `load`."""
        return {
            f"{kind}_of_{name}": vector.to_numpy().reshape(self._array(name).shape)
            for kind, vectors in self._history.items()
            for name, vector in zip(self._attributes, vectors, strict=True)
        }

    def history_names(self) -> dict[str, str]:
        """Return the names of what `history` holds after a step, and of which array each is."""
        return {f"{kind}_of_{name}": name for kind in self._kinds() for name in self._attributes}

    def resume(self, steps: int, history: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Go on after so many steps, with copies of what `history` has returned."""
        device = self.optimizer.device
        names = list(self.history_names()) if history else []
        vectors = [_core.Vector.from_array(device, np.array(history[n]).ravel()) for n in names]
        each = len(self._attributes)
        kinds = self._kinds() if history else ()
        self._history = {kind: vectors[i * each :][:each] for i, kind in enumerate(kinds)}
        self.steps = steps

    def _step(self, command_buffer: _core.CommandBuffer, *encodes: Any) -> None:
        """Encode one step, of which each callable encodes a part."""
        counts = self.counts_steps()
        with _time_steps:  # the optimizer may serve graphs of other threads
            if counts:
                before = self.optimizer.time_step
            try:
                for encode in encodes:
                    if counts:
                        self.optimizer.time_step = self.steps
                    encode()
            finally:
                if counts:
                    self.optimizer.time_step = before
        self.steps += 1
        self._queue = command_buffer.queue

    def forget_step(self, steps: int) -> None:
        """Go back to so many steps, after encodes of which nothing has run."""
        self.steps = steps
        self._queue = None
        self._buffers = {}

    def step_vectors(
        self, command_buffer: _core.CommandBuffer, gradients: list[_core.Vector]
    ) -> None:
        """Encode a step of all arrays, by one gradient for each."""
        histories = self._histories()

        def encoding(name: str, i: int) -> Any:
            values = self.vector(name)
            history = [None if vectors is None else vectors[i] for vectors in histories]
            return lambda: self.optimizer.encode_vector(
                command_buffer, gradients[i], values, *history, values
            )

        self._step(command_buffer, *(encoding(name, i) for i, name in enumerate(self._attributes)))

    def step_convolution(
        self, command_buffer: Any, gradient_state: Any
    ) -> _core.ConvolutionWeightsAndBiasesState | None:
        """Encode a step of weights and, where there are some, biases, and return the new values.

        None: the gradients went to a bucket.
        """

        def encode(optimizer: Any, buffer: Any, *histories: Any) -> Any:
            biases = buffer("biases") if "biases" in self._attributes else None
            values = _core.ConvolutionWeightsAndBiasesState(buffer("weights"), biases)
            optimizer.encode_convolution(command_buffer, gradient_state, values, *histories, values)
            return values

        new: _core.ConvolutionWeightsAndBiasesState | None = self._encode(command_buffer, encode)
        return new

    def step_gamma_and_beta(
        self, command_buffer: Any, states: Sequence[Any]
    ) -> _core.NormalizationGammaAndBetaState | None:
        """Encode a step by the summed gradients of some states, and return the new values.

        None: the gradients went to a bucket.
        """

        def encode(optimizer: Any, buffer: Any, *histories: Any) -> Any:
            values = _core.NormalizationGammaAndBetaState(buffer("gamma"), buffer("beta"))
            optimizer.encode_gamma_beta(command_buffer, states, values, *histories, values)
            return values

        new: _core.NormalizationGammaAndBetaState | None = self._encode(command_buffer, encode)
        return new

    def _encode(self, command_buffer: Any, encode: Any) -> Any:
        """Encode a step, or the way of its gradients into a bucket."""
        bucket = self.bucket
        if bucket is not None:
            bucket._add(command_buffer, self, encode)
            return None
        histories = self._histories()
        values: list[Any] = []
        self._step(
            command_buffer, lambda: values.append(encode(self.optimizer, self.buffer, *histories))
        )
        values[0].synchronize(command_buffer)
        return values[0]

    def move_average(
        self, command_buffer: Any, name: str, statistic: _core.Buffer, decay: float
    ) -> None:
        """Encode ``v = decay * v + (1 - decay) * statistic``, as a step of plain descent."""
        values = self.vector(name)
        rule = StochasticGradientDescent(
            optimizer_descriptor=_average_descriptor(decay), device=self.optimizer.device
        )
        rule.encode_vector(
            command_buffer, _vector_over(statistic, values.length), values, None, values
        )
        values.synchronize(command_buffer)
        self._queue = command_buffer.queue


def _vector_over(buffer: _core.Buffer, count: int) -> _core.Vector:
    return _core.Vector(buffer, _core.VectorDescriptor(count))


def _average_descriptor(decay: float) -> Any:
    # w - lr * (g + scale * w) with lr = -(1 - decay) and scale = -1.
    return OptimizerDescriptor(
        -(1.0 - decay),
        regularization_type=RegularizationType.L2,
        regularization_scale=-1.0,
    )
