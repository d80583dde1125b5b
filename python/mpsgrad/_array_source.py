"""What data sources over arrays share: an optimizer, checkpoints, copies and pickles.

And what those of normalizations share: arrays of one value a channel; gamma and beta train.
"""

from __future__ import annotations

import copy as copying
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import as_array
from mpsgrad._kernel import Explaining
from mpsgrad._updates import ArrayUpdates, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["ArraySource", "ChannelArraySource", "require_mapping"]

_OF_DEVICE = ("_updates", "_averages")
_TRAINING = "_training"  # in their place in a pickle
_VALUES = (np.ndarray, list, dict, set, tuple, _core.ConvolutionDescriptor)


def require_mapping(who: str, checkpoint: Any) -> None:
    """Raise a TypeError unless it has arrays by name."""
    if not hasattr(checkpoint, "keys"):
        raise TypeError(
            f"{who}: checkpoint must be a mapping of str to arrays, as checkpoint() and numpy.load "
            f"return, got {type(checkpoint).__name__}"
        )


class ArraySource(Explaining):
    """What data sources over arrays share: their optimizer, checkpoints, copies and pickles.

    A family says which attributes the arrays are, how an optimizer trains them, and has the methods
    that a graph calls for updates.
    """

    _arrays: ClassVar[dict[str, str]]  # attributes by name; None where there is no such array
    _updates: ArrayUpdates | None = None

    def _train(self, optimizer: Any) -> ArrayUpdates:
        """Return what trains the arrays, if they can be."""
        raise NotImplementedError

    if not TYPE_CHECKING:  # type checkers would let any name be set

        def __setattr__(self, name: str, value: Any) -> None:
            if inspect.isroutine(getattr(type(self), name, None)) and not callable(value):
                text = f"{type(self).__name__}: {name} must be a method, got {type(value).__name__}"
                arrays = {**self._arrays, "bias_terms": self._arrays.get("biases")}
                if array := arrays.get(name):
                    text += f"; did you mean {array}?"
                raise TypeError(text)
            super().__setattr__(name, value)

    @property
    def optimizer(self) -> Any:
        """The optimizer, or None."""
        return None if self._updates is None else self._updates.optimizer

    def _shown(self, label: str | None) -> list[str]:
        """Return what a `repr` says of label and optimizer."""
        parts = [] if label is None else [f"label {label!r}"]
        if self.optimizer is not None:
            parts.append(f"trained by {type(self.optimizer).__name__}")
        if self._updates is not None and self._updates.bucket is not None:
            parts.append("in a GradientBucket")
        return parts

    def load(self) -> bool:
        """Bring what updates have made into the arrays, and return True."""
        if self._updates is not None:
            self._updates.bring_back()
        return True

    def checkpoint(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the arrays and of what the optimizer keeps, to be saved.

        Waits for the last update. `numpy.savez` can write them; `restore` takes them.

        Returns
        -------
        dict of str to ndarray
            The arrays by the names of the constructor's arguments; with an optimizer, ``steps``, an
            integer, and after a step ``momentum_of_weights`` and the like, float32 and of that
            array's shape. Settings such as the learning rate are not among them.
        """
        self.load()
        arrays = {name: getattr(self, attribute) for name, attribute in self._arrays.items()}
        result = {name: np.array(array) for name, array in arrays.items() if array is not None}
        if self._updates is not None:
            result["steps"] = np.array(self._updates.steps)
            result |= self._updates.history()
        return result

    def restore(self, checkpoint: Mapping[str, npt.ArrayLike]) -> None:
        """Take over what `checkpoint` has returned, into the arrays that are there.

        Kernels and graphs see it when they read the source again:
        ``reload_weights_and_biases_from_data_source()`` and the like, or
        ``Graph.reload_from_data_sources()``. Without an optimizer, only the arrays are taken.

        Parameters
        ----------
        checkpoint : mapping of str to array_like
            With all arrays of the source. With nothing else, the optimizer begins anew, as it has
            to where the checkpoint is of another kind of optimizer.

        Raises
        ------
        TypeError, ValueError
            If an array is missing, has another shape or kind of numbers or is of something else,
            or if one of the source's cannot be written; nothing has changed then.
        """
        self._restoring(checkpoint)()

    def _restoring(self, checkpoint: Mapping[str, npt.ArrayLike]) -> Callable[[], None]:
        """Check a checkpoint, and return what takes it over, which does not fail."""
        if not self.load():
            raise ValueError(f"{type(self).__name__}.restore: load() must return True")
        targets = {
            name: getattr(self, attribute)
            for name, attribute in self._arrays.items()
            if getattr(self, attribute) is not None
        }
        updates = self._updates
        kept = {} if updates is None else updates.history_names()
        given = self._checked(checkpoint, targets, kept)
        # Copies: what is given may share memory with arrays that are written before it is read.
        values = {name: given[name].astype(target.dtype) for name, target in targets.items()}
        history = {name: given[name].astype(np.float32) for name in kept if name in given}
        steps = int(given.get("steps", 0))

        def write() -> None:
            for name, target in targets.items():
                target[...] = values[name]
            if updates is not None:
                updates.resume(steps, history)

        return write

    def _checked(
        self,
        checkpoint: Mapping[str, npt.ArrayLike],
        targets: dict[str, npt.NDArray[Any]],
        kept: dict[str, str],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a checkpoint, of which `restore` uses all; raise as that says."""
        who = f"{type(self).__name__}.restore"
        require_mapping(who, checkpoint)
        given = {name: as_array(who, array, name) for name, array in checkpoint.items()}
        if self._updates is None:  # what an optimizer kept is nobody's here
            given = {n: a for n, a in given.items() if n != "steps" and "_of_" not in n}
        resumes = kept.keys() & given.keys() or (
            self._updates is not None
            and self._updates.counts_steps()
            and np.any(given.get("steps", 0))
        )
        wanted = [*targets, *(("steps", *kept) if resumes else ())]
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in {*targets, *kept, "steps"}]
        if missing or unknown:
            more = f", and may have steps, {', '.join(kept)}" if kept else ""
            wrong = f"no {', '.join(missing)}" if missing else f"{', '.join(unknown)} besides"
            raise ValueError(
                f"{who}: checkpoint must have {', '.join(targets)}{more}; it has "
                f"{', '.join(checkpoint) or 'nothing'}: {wrong}"
            )
        for name, array in given.items():
            target = targets.get(kept.get(name, name), np.array(0))  # steps: an integer
            if not np.can_cast(array.dtype, target.dtype, "same_kind"):
                raise TypeError(f"{who}: {name} must be {target.dtype}, got {array.dtype}")
            if array.shape != target.shape:
                raise ValueError(f"{who}: {name} must have shape {target.shape}, got {array.shape}")
            if not target.flags.writeable:
                raise ValueError(f"{who}: {name} of the source cannot be written")
        if not 0 <= given.get("steps", 0) < 2**31:
            raise ValueError(f"{who}: steps must be from 0 to 2**31 - 1, got {given['steps']}")
        return given

    def copy(self, device: _core.Device | None = None) -> Self:
        """Return a source with arrays of its own, and an optimizer that goes on from here.

        Attributes of subclasses are kept: arrays, lists, dicts and the like as copies, others as
        they are. Constructors are not called.
        """
        state = self.__getstate__()
        optimizer, steps, history = state.pop(_TRAINING)
        copied = {
            name: copying.deepcopy(value) if isinstance(value, _VALUES) else value
            for name, value in state.items()
        }
        copied[_TRAINING] = None if optimizer is None else optimizer.copy(device), steps, history
        source = object.__new__(type(self))
        source.__setstate__(copied)
        return source

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes, and in place of the device's numbers what training has come to."""
        self.load()
        updates = self._updates
        training = (0, {}) if updates is None else (updates.steps, updates.history())
        kept = {name: value for name, value in vars(self).items() if name not in _OF_DEVICE}
        return {**kept, _TRAINING: (self.optimizer, *training)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take attributes over; what is trained needs arrays that can be written."""
        optimizer, steps, history = state[_TRAINING]
        vars(self).update({name: value for name, value in state.items() if name != _TRAINING})
        if optimizer is None:
            return
        for attribute in self._arrays.values():
            array = getattr(self, attribute)
            if array is not None and not array.flags.writeable:  # a buffer beside the pickle
                setattr(self, attribute, np.array(array))
        self._updates = self._train(optimizer)
        self._updates.resume(steps, history)


class ChannelArraySource(ArraySource):
    """What normalizations' data sources over arrays share: one value a channel, gamma and beta."""

    _arrays: ClassVar[dict[str, str]] = {"gamma": "gamma", "beta": "beta"}

    if TYPE_CHECKING:
        number_of_feature_channels: int
        gamma: npt.ArrayLike | None
        beta: npt.ArrayLike | None
        epsilon: float
        label: str | None

    def _take(
        self,
        given: Mapping[str, npt.ArrayLike | None],
        number_of_feature_channels: int | None,
        epsilon: float | None,
        label: str | None,
        optimizer: Any,
    ) -> None:
        """Take over what a constructor was given, with all arrays by name, and check it."""
        who = type(self).__name__
        arrays = {
            name: np.asarray(as_array(who, values, name), np.float32)
            for name, values in given.items()
            if values is not None
        }
        channels = number_of_feature_channels
        for name, array in arrays.items():
            channels = array.size if channels is None else channels
            if array.shape != (channels,):
                raise ValueError(f"{who}: {name} must have shape ({channels},), got {array.shape}")
        if channels is None:
            raise ValueError(f"{who}: number_of_feature_channels is needed where there is no array")
        self.number_of_feature_channels = channels
        for name, attribute in self._arrays.items():
            setattr(self, attribute, arrays.get(name))
        if epsilon is not None:
            self.epsilon = epsilon
        self.label = label
        self._updates = None if optimizer is None else self._train(optimizer)

    def _train(self, optimizer: Any) -> ArrayUpdates:
        who = type(self).__name__
        missing = [name for name in ("gamma", "beta") if getattr(self, name) is None]
        if missing:
            raise ValueError(f"{who}: to be trained it needs {' and '.join(missing)}")
        return ArrayUpdates(who, optimizer, self, {"gamma": "gamma", "beta": "beta"})

    def _step_gamma_and_beta(
        self, command_buffer: _core.CommandBuffer, states: Sequence[_core.State]
    ) -> _core.NormalizationGammaAndBetaState | None:
        """Encode a step by the sum of the states' gradients, if there is an optimizer."""
        if self._updates is None:
            spend(states)
            return None
        return self._updates.step_gamma_and_beta(command_buffer, states)

    def __repr__(self) -> str:
        """Show channels, epsilon and which arrays there are."""
        names = [n for n, attribute in self._arrays.items() if getattr(self, attribute) is not None]
        parts = [", ".join(names) or "no arrays", f"epsilon={self.epsilon:g}"]
        shown = ", ".join([*parts, *self._shown(self.label)])
        return f"{type(self).__name__}({self._shown_channels()}, {shown})"

    def _shown_channels(self) -> str:
        return f"{self.number_of_feature_channels} channels"
