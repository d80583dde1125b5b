"""Optimizers: `StochasticGradientDescent`, `RMSProp`, `Adam`, and the descriptor they share."""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import resolve_device
from mpsgrad._core import Optimizer, RegularizationType
from mpsgrad._kernel import KernelFacade, Settings, shown

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


class _OptimizerFacade(KernelFacade):
    """What copies and pickles of every optimizer share."""

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
        super().__init__(resolve_device(device), settings, momentum_scale, use_nesterov_momentum)


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
        super().__init__(resolve_device(device), settings, decay, epsilon)


class Adam(_OptimizerFacade, _core.Adam):
    """Adaptive moment estimation, AMSGrad included (``MPSNNOptimizerAdam``).

    With ``t = time_step + 1`` and ``rate = learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t)``:
    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g * g``,
    ``w = w - rate * m / (sqrt(v) + epsilon)``. With maximum-velocity storage ``x`` (AMSGrad):
    ``x = max(x, v)``, and ``x`` takes the place of ``v`` in the last line. ``epsilon`` is added to
    the uncorrected ``sqrt(v)``, unlike in PyTorch.

    Every encode call advances ``time_step`` by one: two vectors take two steps, a state encode
    updates weights and biases with one. Use one optimizer for each parameter, or set ``time_step``
    back.

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
        super().__init__(resolve_device(device), settings, beta1, beta2, epsilon, time_step)
