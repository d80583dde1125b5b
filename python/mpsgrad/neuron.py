"""Activation functions: `Neuron`, `NeuronGradient` and the `NeuronDescriptor` they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._core import NeuronType
from mpsgrad._kernel import KernelFacade, Settings

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Neuron", "NeuronDescriptor", "NeuronGradient", "NeuronType"]

# a, b, c where the caller gives none: the standard form of each type.
_DEFAULTS: dict[NeuronType, tuple[float, float, float]] = {
    NeuronType.LINEAR: (1.0, 0.0, 0.0),
    NeuronType.HARD_SIGMOID: (0.2, 0.5, 0.0),
    NeuronType.TANH: (1.0, 1.0, 0.0),
    NeuronType.SOFT_PLUS: (1.0, 1.0, 0.0),
    NeuronType.ELU: (1.0, 0.0, 0.0),
    NeuronType.RELUN: (1.0, 6.0, 0.0),
    NeuronType.POWER: (1.0, 0.0, 1.0),
    NeuronType.EXPONENTIAL: (1.0, 0.0, -1.0),
    NeuronType.LOGARITHM: (1.0, 0.0, -1.0),
}


class NeuronDescriptor(Settings, _core.NeuronDescriptor):
    """An activation function by type and parameters (``MPSNNNeuronDescriptor``).

    Parameters
    ----------
    type : NeuronType
        ``RELU``: x if x >= 0 else a x. ``LINEAR``: a x + b. ``SIGMOID``: 1 / (1 + e^-x).
        ``HARD_SIGMOID``: a x + b limited to [0, 1]. ``TANH``: a tanh(b x). ``ABSOLUTE``: abs(x).
        ``SOFT_PLUS``: a ln(1 + e^(b x)). ``SOFT_SIGN``: x / (1 + abs(x)).
        ``ELU``: x if x >= 0 else a (e^x - 1). ``PRELU``: as RELU with one a per channel.
        ``RELUN``: RELU limited to b from above. ``POWER``: (a x + b)^c.
        ``EXPONENTIAL``: c^(a x + b), ``LOGARITHM``: log_c(a x + b), both with base e for c = -1.
        ``GELU``: x (1 + erf(x / sqrt(2))) / 2. ``NONE``: x.
    a, b, c : float, optional
        Parameters, dimensionless; by default the standard form of the type (``RELUN`` is a = 1,
        b = 6, so ReLU6 has to be asked for with ``a=0``).
    data : array_like of float32, optional
        ``PRELU`` only, which every kernel made from it needs: the slope below zero of each channel,
        counted from the first channel read; copied.

    Raises
    ------
    TypeError
        If ``type`` is not a `NeuronType`.
    """

    def __init__(
        self,
        type: NeuronType,  # noqa: A002  Apple's word
        a: float | None = None,
        b: float | None = None,
        c: float | None = None,
        data: npt.ArrayLike | None = None,
    ) -> None:
        if not isinstance(type, NeuronType):
            raise TypeError(f"NeuronDescriptor: type must be a NeuronType, got {type!r}")
        standard = _DEFAULTS.get(type, (0.0, 0.0, 0.0))
        a, b, c = (
            given if given is not None else usual
            for given, usual in zip((a, b, c), standard, strict=True)
        )
        slopes = [] if data is None else np.asarray(data, np.float32).ravel().tolist()
        super().__init__(type, a, b, c, slopes)

    def __repr__(self) -> str:
        """Show type and parameters."""
        parts = [
            f"NeuronType.{self.neuron_type.name}",
            f"a={self.a:g}",
            f"b={self.b:g}",
            f"c={self.c:g}",
        ]
        if self.data:
            parts.append(f"data=<{len(self.data)} values>")
        return f"NeuronDescriptor({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return NeuronDescriptor, (self.neuron_type, self.a, self.b, self.c, list(self.data) or None)


class _NeuronKernel(KernelFacade):
    """What the two kernels share: their descriptor's fields."""

    if TYPE_CHECKING:

        @property
        def descriptor(self) -> _core.NeuronDescriptor: ...

    @property
    def neuron_type(self) -> NeuronType:
        """Activation function."""
        return self.descriptor.neuron_type

    @property
    def a(self) -> float:
        """First parameter."""
        return self.descriptor.a

    @property
    def b(self) -> float:
        """Second parameter."""
        return self.descriptor.b

    @property
    def c(self) -> float:
        """Third parameter."""
        return self.descriptor.c

    @property
    def data(self) -> npt.NDArray[np.float32] | None:
        """Slopes of ``PRELU``, or None."""
        return np.array(self.descriptor.data, np.float32) if self.descriptor.data else None

    def _arguments(self) -> dict[str, Any]:
        d = self.descriptor
        return {"descriptor": NeuronDescriptor(d.neuron_type, d.a, d.b, d.c, d.data or None)}


class Neuron(_NeuronKernel, ArrayUnaryKernel, _core.Neuron):
    """Activation function on every element (``MPSCNNNeuron``).

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    descriptor : NeuronDescriptor
        Copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor is incomplete.
    """

    def __init__(
        self, descriptor: _core.NeuronDescriptor, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), descriptor)


class NeuronGradient(_NeuronKernel, ArrayGradientKernel, _core.NeuronGradient):
    """Gradient of an activation with respect to its input (``MPSCNNNeuronGradient``).

    The result is ``source_gradient * f'(source)``; ``source`` is the forward pass's input.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    descriptor : NeuronDescriptor
        As given to `Neuron`; copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor is incomplete.
    """

    def __init__(
        self, descriptor: _core.NeuronDescriptor, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), descriptor)
