"""Optimizers: `StochasticGradientDescent`, `RMSProp`, `Adam`, and the descriptor they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import (
    array_queue,
    as_array,
    memory_of,
    require_writable,
    resolve_device,
)
from mpsgrad._core import Optimizer, RegularizationType
from mpsgrad._kernel import KernelFacade, Settings, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = [
    "SGD",
    "Adam",
    "Optimizer",
    "OptimizerDescriptor",
    "RMSProp",
    "RegularizationType",
    "StochasticGradientDescent",
]


class OptimizerDescriptor(Settings, _core.OptimizerDescriptor):
    """Settings common to all optimizers (``MPSNNOptimizerDescriptor``).

    A gradient is clipped, then rescaled, then the regularization term is added. Every property can
    be set; an optimizer copies them when it is made, and checks them then.

    Parameters
    ----------
    learning_rate : float, default 0.001
        Step length; any sign.
    gradient_rescale : float, default 1.0
        Factor of the clipped gradient: ``1 / N`` turns a sum over a batch into its mean.
    apply_gradient_clipping : bool, optional
        Limit the raw gradient to ``gradient_clip_min`` and ``gradient_clip_max``; by default if
        one of them is given.
    gradient_clip_max, gradient_clip_min : float, optional
        Bounds; there is no default, so clipping needs both.
    regularization_type : RegularizationType, default NONE
        ``L1`` adds ``regularization_scale``, ``L2`` adds ``regularization_scale * value``.
    regularization_scale : float, default 0.0
        Any sign.
    """

    def __init__(
        self,
        learning_rate: float = 0.001,
        gradient_rescale: float = 1.0,
        *,
        apply_gradient_clipping: bool | None = None,
        gradient_clip_max: float | None = None,
        gradient_clip_min: float | None = None,
        regularization_type: RegularizationType = RegularizationType.NONE,
        regularization_scale: float = 0.0,
    ) -> None:
        if apply_gradient_clipping is None:
            bounds = (gradient_clip_max, gradient_clip_min)
            apply_gradient_clipping = any(bound is not None for bound in bounds)
        super().__init__(
            learning_rate,
            gradient_rescale,
            apply_gradient_clipping,
            gradient_clip_max,
            gradient_clip_min,
            regularization_type,
            regularization_scale,
        )

    def _fields(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in (
                "learning_rate",
                "gradient_rescale",
                "apply_gradient_clipping",
                "gradient_clip_max",
                "gradient_clip_min",
                "regularization_type",
                "regularization_scale",
            )
        }

    def __repr__(self) -> str:
        """Show what differs from the defaults, and the learning rate."""
        usual = OptimizerDescriptor()._fields()
        parts = [shown(self.learning_rate)]
        for name, value in self._fields().items():
            if name != "learning_rate" and value != usual[name]:
                kind = isinstance(value, RegularizationType)
                parts.append(
                    f"{name}={f'RegularizationType.{value.name}' if kind else shown(value)}"
                )
        return f"OptimizerDescriptor({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return _rebuild_descriptor, (self._fields(),)


def _rebuild_descriptor(fields: dict[str, Any]) -> OptimizerDescriptor:
    return OptimizerDescriptor(**fields)


def _settings(
    cls: str, learning_rate: float | None, descriptor: _core.OptimizerDescriptor | None
) -> _core.OptimizerDescriptor:
    """Return the descriptor that one of the two arguments means."""
    if (learning_rate is None) == (descriptor is None):
        raise TypeError(f"{cls}: give either learning_rate or optimizer_descriptor")
    if descriptor is not None:
        return descriptor
    return OptimizerDescriptor(learning_rate)  # type: ignore[arg-type]


def _array_to_read(who: str, given: Any, name: str) -> npt.NDArray[np.float32]:
    """Return what NumPy makes of a gradient or of values."""
    array = as_array(who, given, name)
    if array.dtype != np.float32:
        raise TypeError(
            f"{who}: {name} must be float32, got {array.dtype}; np.asarray({name}, np.float32) "
            "makes it one"
        )
    return array


def _array_to_write(who: str, given: Any, name: str) -> npt.NDArray[np.float32]:
    """Return a view of the memory of a history, or of what is to hold a result."""
    array = memory_of(who, given, name)
    if array.dtype != np.float32:
        raise TypeError(f"{who}: {name} must be float32, got {array.dtype}")
    require_writable(who, array, name)
    return array


def _check_shapes(who: str, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Refuse arrays that are empty, or not all of the shape of the values."""
    shape = arrays["values"].shape
    if arrays["values"].size == 0:
        raise ValueError(f"{who}: values must not be empty, got shape {shape}")
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{who}: {name} has shape {array.shape}, but values has {shape}")


def _check_memory(
    who: str,
    read: Mapping[str, npt.NDArray[np.float32]],
    written: Mapping[str, npt.NDArray[np.float32]],
) -> None:
    """Refuse shared memory as encodes do, which do not see that of arrays a device copies."""
    others = dict(read)
    for name, array in written.items():
        for other_name, other in others.items():
            if not np.shares_memory(array, other):
                continue
            rule = "a history needs memory of its own"
            if name == "out" and other_name in read:
                if other.flags.c_contiguous and other.ctypes.data == array.ctypes.data:
                    continue
                rule = "an update in place needs the very same elements"
            raise ValueError(f"{who}: {name} shares memory with {other_name}; {rule}")
        others[name] = array


class _OptimizerFacade(KernelFacade):
    """What copies and pickles of every optimizer share, and calls with arrays."""

    _own_settings = ("learning_rate", "apply_gradient_clipping")
    _rule: tuple[str, ...] = ()

    def _arguments(self: Any) -> dict[str, Any]:
        names = OptimizerDescriptor()._fields()
        settings = self.optimizer_descriptor
        copied = OptimizerDescriptor(**{name: getattr(settings, name) for name in names})
        return {
            **{name: getattr(self, name) for name in self._rule},
            "optimizer_descriptor": copied,
        }

    def _step(
        self: Any, gradient: Any, values: Any, out: Any, **histories: Any
    ) -> npt.NDArray[np.float32]:
        """Do what a call does; histories come by the names that encodes give them."""
        who = type(self).__name__
        read = {
            "gradient": _array_to_read(who, gradient, "gradient"),
            "values": _array_to_read(who, values, "values"),
        }
        given = {name: array for name, array in histories.items() if array is not None}
        if out is not None:
            given["out"] = out
        written = {name: _array_to_write(who, array, name) for name, array in given.items()}
        _check_shapes(who, read | written)
        _check_memory(who, read, written)
        if out is None:
            written["out"] = np.empty(read["values"].shape, np.float32)

        vectors = {name: self._vector(array) for name, array in (read | written).items()}
        command_buffer = array_queue(self.device).command_buffer()
        self.encode_vector(
            command_buffer,
            vectors["gradient"],
            vectors["values"],
            result=vectors["out"],
            **{name: vectors.get(name) for name in histories},
        )
        for name in written:
            vectors[name].synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        if self.device.kind != "cpu":  # which cannot write NumPy's memory
            for name, array in written.items():
                np.copyto(array, vectors[name].to_numpy().reshape(array.shape))
        return written["out"]

    def _vector(self: Any, array: npt.NDArray[np.float32]) -> _core.Vector:
        """Return a vector over an array, or over a copy of one that it cannot be over."""
        flat = np.require(array, requirements=["C", "A", "W"]).reshape(-1)
        return _core.Vector.from_array(self.device, flat)


class StochasticGradientDescent(_OptimizerFacade, _core.StochasticGradientDescent):
    """Gradient descent, with or without momentum (``MPSNNOptimizerStochasticGradientDescent``).

    With momentum storage ``m``: ``m = momentum_scale * m + learning_rate * g``, ``w = w - m``. With
    Nesterov momentum: ``m = momentum_scale * m + g``,
    ``w = w - learning_rate * (g + momentum_scale * m)``. Without storage:
    ``w = w - learning_rate * g``. So storage written by one form does not serve the other.

    Parameters
    ----------
    learning_rate : float, optional
        Step length; all other settings of the descriptor have their defaults.
    momentum_scale : float, default 0.0
        How much of the momentum is kept.
    use_nesterov_momentum : bool, default False
        Look ahead by the momentum.
    optimizer_descriptor : OptimizerDescriptor, optional
        Instead of ``learning_rate``; copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If neither or both of ``learning_rate`` and ``optimizer_descriptor`` are given.
    ValueError
        If a setting is not finite or out of its range.
    """

    _rule = ("momentum_scale", "use_nesterov_momentum")

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        momentum_scale: float = 0.0,
        use_nesterov_momentum: bool = False,
        optimizer_descriptor: _core.OptimizerDescriptor | None = None,
        device: _core.Device | str | None = None,
    ) -> None:
        settings = _settings(type(self).__name__, learning_rate, optimizer_descriptor)
        super().__init__(
            resolve_device(device, self), settings, momentum_scale, use_nesterov_momentum
        )

    def __call__(
        self, gradient: Any, values: Any, momentum: Any = None, *, out: Any = None
    ) -> npt.NDArray[np.float32]:
        """Take one step on arrays, and wait (``MPSNNOptimizerStochasticGradientDescent``).

        The values stay as they are unless ``out`` says otherwise; the momentum is overwritten.

        Parameters
        ----------
        gradient, values : array_like, float32, of one shape
            Gradient of the loss and current values, of any shape. Used in place on the CPU device
            if they are C-contiguous and writable.
        momentum : ndarray, or what has a buffer or DLPack, optional
            Float32, C-contiguous, of the same shape; zero before the first step. Needed unless
            `momentum_scale` is 0.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the new values: float32, C-contiguous, of their shape. It may be ``values``
            or ``gradient``.

        Returns
        -------
        ndarray of float32
            The new values, in ``out`` or a new array.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, momentum is missing, or memory is shared.
        """
        if momentum is None and self.momentum_scale != 0.0:
            raise ValueError(
                f"{type(self).__name__}: momentum must not be None where momentum_scale is "
                f"{shown(self.momentum_scale)}; np.zeros_like(values) is that of the first step"
            )
        return self._step(gradient, values, out, momentum=momentum)


SGD = StochasticGradientDescent


class RMSProp(_OptimizerFacade, _core.RMSProp):
    """Descent scaled by a running mean of squared gradients (``MPSNNOptimizerRMSProp``).

    ``s = decay * s + (1 - decay) * g * g``, ``w = w - learning_rate * g / (sqrt(s) + epsilon)``.

    Parameters
    ----------
    learning_rate : float, optional
        Step length; all other settings of the descriptor have their defaults.
    decay : float, default 0.9
        How much of the sum of squares is kept, 0 to 1.
    epsilon : float, default 1e-8
        Keeps the division finite; not negative.
    optimizer_descriptor : OptimizerDescriptor, optional
        Instead of ``learning_rate``; copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If neither or both of ``learning_rate`` and ``optimizer_descriptor`` are given.
    ValueError
        If a setting is not finite or out of its range.
    """

    _rule = ("decay", "epsilon")

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        decay: float = 0.9,
        epsilon: float = 1e-8,
        optimizer_descriptor: _core.OptimizerDescriptor | None = None,
        device: _core.Device | str | None = None,
    ) -> None:
        settings = _settings(type(self).__name__, learning_rate, optimizer_descriptor)
        super().__init__(resolve_device(device, self), settings, decay, epsilon)

    def __call__(
        self, gradient: Any, values: Any, sum_of_squares: Any, *, out: Any = None
    ) -> npt.NDArray[np.float32]:
        """Take one step on arrays, and wait (``MPSNNOptimizerRMSProp``).

        The values stay as they are unless ``out`` says otherwise; the sum of squares is
        overwritten.

        Parameters
        ----------
        gradient, values : array_like, float32, of one shape
            Gradient of the loss and current values, of any shape. Used in place on the CPU device
            if they are C-contiguous and writable.
        sum_of_squares : ndarray, or what has a buffer or DLPack
            Float32, C-contiguous, of the same shape; zero before the first step.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the new values: float32, C-contiguous, of their shape. It may be ``values``
            or ``gradient``.

        Returns
        -------
        ndarray of float32
            The new values, in ``out`` or a new array.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or memory is shared.
        """
        return self._step(gradient, values, out, sum_of_squares=sum_of_squares)


class Adam(_OptimizerFacade, _core.Adam):
    """Adaptive moment estimation, AMSGrad included (``MPSNNOptimizerAdam``).

    With ``t = time_step + 1`` and ``rate = learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t)``:
    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g * g``,
    ``w = w - rate * m / (sqrt(v) + epsilon)``. With maximum-velocity storage ``x`` (AMSGrad):
    ``x = max(x, v)``, and ``x`` takes the place of ``v`` in the last line. ``epsilon`` is added to
    the uncorrected ``sqrt(v)``, unlike in PyTorch.

    Every encode, and every call with arrays, advances ``time_step`` by one: two vectors take two
    steps, a state encode updates weights and biases with one. Where you encode, use one optimizer
    for each parameter, or set ``time_step`` back; data sources count their own steps, and may share
    one.

    Parameters
    ----------
    learning_rate : float, optional
        Step length; all other settings of the descriptor have their defaults.
    beta1, beta2 : float, default 0.9 and 0.999
        How much of the first and second moments is kept, 0 to below 1.
    epsilon : float, default 1e-8
        Keeps the division finite; not negative.
    time_step : int, default 0
        Number of updates so far.
    optimizer_descriptor : OptimizerDescriptor, optional
        Instead of ``learning_rate``; copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If neither or both of ``learning_rate`` and ``optimizer_descriptor`` are given.
    ValueError
        If a setting is not finite or out of its range.
    """

    _rule = ("beta1", "beta2", "epsilon", "time_step")

    def __init__(
        self,
        learning_rate: float | None = None,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        time_step: int = 0,
        optimizer_descriptor: _core.OptimizerDescriptor | None = None,
        device: _core.Device | str | None = None,
    ) -> None:
        settings = _settings(type(self).__name__, learning_rate, optimizer_descriptor)
        super().__init__(resolve_device(device, self), settings, beta1, beta2, epsilon, time_step)

    def __call__(
        self,
        gradient: Any,
        values: Any,
        momentum: Any,
        velocity: Any,
        *,
        maximum_velocity: Any = None,
        out: Any = None,
    ) -> npt.NDArray[np.float32]:
        """Take one step on arrays, and wait (``MPSNNOptimizerAdam``).

        The values stay as they are unless ``out`` says otherwise; momentum and velocity are
        overwritten, and `time_step` goes up by one.

        Parameters
        ----------
        gradient, values : array_like, float32, of one shape
            Gradient of the loss and current values, of any shape. Used in place on the CPU device
            if they are C-contiguous and writable.
        momentum, velocity : ndarray, or what has a buffer or DLPack
            First and second moments, float32, C-contiguous, of the same shape; zero before the
            first step.
        maximum_velocity : ndarray, or what has a buffer or DLPack, optional
            As these, and overwritten; makes it AMSGrad.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the new values: float32, C-contiguous, of their shape. It may be ``values``
            or ``gradient``.

        Returns
        -------
        ndarray of float32
            The new values, in ``out`` or a new array.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or memory is shared.
        """
        return self._step(
            gradient,
            values,
            out,
            momentum=momentum,
            velocity=velocity,
            maximum_velocity=maximum_velocity,
        )
