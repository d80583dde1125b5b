"""Sums, differences, products, quotients and comparisons of two images, and their gradients.

A source is broadcast by a stride of 0, never by its size: with ``secondary_stride_in_pixels_x = 0``
every column of the result uses the one column of the secondary source that its offset names.
"""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayBinaryKernel, ArrayGradientKernel, resolve_device
from mpsgrad._core import Arithmetic, ArithmeticGradient, ComparisonType
from mpsgrad._kernel import KernelFacade

__all__ = [
    "Add",
    "AddGradient",
    "Arithmetic",
    "ArithmeticGradient",
    "Compare",
    "ComparisonType",
    "Divide",
    "Multiply",
    "MultiplyGradient",
    "Subtract",
    "SubtractGradient",
]

_NUMBERS = ("primary_scale", "secondary_scale", "bias", "minimum_value", "maximum_value")
_CHANNEL_STRIDES = (
    "primary_stride_in_feature_channels",
    "secondary_stride_in_feature_channels",
)


class _Forward(KernelFacade):
    """What the operations share: their constructor and settings."""

    _own_settings: tuple[str, ...] = (*_NUMBERS, *_CHANNEL_STRIDES)

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))  # type: ignore[call-arg]


class _Gradient(KernelFacade):
    """What the gradients share: their constructor and settings."""

    _own_settings = (*_NUMBERS, "secondary_stride_in_feature_channels")

    def __init__(
        self, is_secondary_source_filter: bool, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), is_secondary_source_filter)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        return {"is_secondary_source_filter": self.is_secondary_source_filter}  # type: ignore[attr-defined]


class Add(_Forward, ArrayBinaryKernel, _core.Add):
    """``primary_scale * x + secondary_scale * y + bias``, limited (``MPSCNNAdd``).

    Sources and result are ``(N, H, W, C)``, float32 or float16; along an axis where a source's
    stride is 0, one element of it serves all.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class Subtract(_Forward, ArrayBinaryKernel, _core.Subtract):
    """``primary_scale * x - secondary_scale * y + bias``, limited (``MPSCNNSubtract``).

    Sources and result are ``(N, H, W, C)``, float32 or float16; along an axis where a source's
    stride is 0, one element of it serves all.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class Multiply(_Forward, ArrayBinaryKernel, _core.Multiply):
    """``(primary_scale * x) * (secondary_scale * y) + bias``, limited (``MPSCNNMultiply``).

    Sources and result are ``(N, H, W, C)``, float32 or float16; along an axis where a source's
    stride is 0, one element of it serves all.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class Divide(_Forward, ArrayBinaryKernel, _core.Divide):
    """``(primary_scale * x) / (secondary_scale * y) + bias``, limited (``MPSCNNDivide``).

    With the limits a kernel starts with, division by zero gives plus or minus FLT_MAX in a float32
    image. There is no gradient kernel.

    Sources and result are ``(N, H, W, C)``, float32 or float16; along an axis where a source's
    stride is 0, one element of it serves all.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class Compare(_Forward, ArrayBinaryKernel, _core.Compare):
    """1 where ``x`` and ``y`` compare as `comparison_type` asks, else 0 (``MPSNNCompare``).

    Values are equal if ``abs(x - y) <= threshold``. Scales, bias and limits are not used, and there
    is no state.

    Sources and result are ``(N, H, W, C)``, float32 or float16; along an axis where a source's
    stride is 0, one element of it serves all.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    _own_settings = (*_Forward._own_settings, "comparison_type", "threshold")


class AddGradient(_Gradient, ArrayGradientKernel, _core.AddGradient):
    """Gradient of `Add` with respect to one of its sources (``MPSCNNAddGradient``).

    ``primary_scale`` times the incoming gradient, where the forward result was not clamped; summed
    over the axes along which that source was broadcast. Set ``primary_scale`` to the forward scale
    of that source.

    The result has the shape of the source that it is with respect to, float32 or float16.

    Parameters
    ----------
    is_secondary_source_filter : bool
        Whether the gradient is with respect to the secondary source. ``source`` of a call is the
        source that the gradient is with respect to; only its size matters.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class SubtractGradient(_Gradient, ArrayGradientKernel, _core.SubtractGradient):
    """Gradient of `Subtract` with respect to one of its sources (``MPSCNNSubtractGradient``).

    As `AddGradient`. With respect to the secondary source ``primary_scale`` starts at -1, and has
    to be minus the forward ``secondary_scale``.

    The result has the shape of the source that it is with respect to, float32 or float16.

    Parameters
    ----------
    is_secondary_source_filter : bool
        Whether the gradient is with respect to the secondary source. ``source`` of a call is the
        source that the gradient is with respect to; only its size matters.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class MultiplyGradient(_Gradient, ArrayGradientKernel, _core.MultiplyGradient):
    """Gradient of `Multiply` with respect to one of its sources (``MPSCNNMultiplyGradient``).

    ``primary_scale`` times the incoming gradient, times ``secondary_scale`` times the other source,
    where the forward result was not clamped; summed over the axes along which the source was
    broadcast. The product of the scales has to be that of the forward scales.

    The result has the shape of the source that it is with respect to, float32 or float16.

    Parameters
    ----------
    is_secondary_source_filter : bool
        Whether the gradient is with respect to the secondary source. ``source`` of a call is the
        *other* forward source.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """
