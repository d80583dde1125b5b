"""Cross-channel, spatial and local contrast normalization, and their gradients.

Every value is divided by a power of what lies in a window around it: over neighbouring channels, or
over neighbouring pixels of the same channel. A window of even length reaches one place further to
the left, to the top and to the lower channels. Places outside the source, or outside its channels,
count as zeros in a window of unchanged length.

The gradient kernels have parameters of their own: set them like those of the forward kernel.
"""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._kernel import KernelFacade

__all__ = [
    "CrossChannelNormalization",
    "CrossChannelNormalizationGradient",
    "LocalContrastNormalization",
    "LocalContrastNormalizationGradient",
    "SpatialNormalization",
    "SpatialNormalizationGradient",
]

_BASE = ("alpha", "beta", "delta")
_CONTRAST = (*_BASE, "p0", "pm", "ps")


class _ChannelWindow(KernelFacade):
    """What the kernels over channels share: their constructor."""

    _own_settings: tuple[str, ...] = _BASE

    def __init__(self, kernel_size: int = 5, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self), kernel_size)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        return {"kernel_size": self.kernel_size}  # type: ignore[attr-defined]


class _PixelWindow(KernelFacade):
    """What the kernels over pixels share: their constructor."""

    _prefix = ""  # of the properties that hold the window
    _own_settings: tuple[str, ...] = _BASE

    def __init__(
        self,
        kernel_width: int,
        kernel_height: int,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), kernel_width, kernel_height)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        names = "kernel_width", "kernel_height"
        return {name: getattr(self, f"{self._prefix}{name}") for name in names}


class CrossChannelNormalization(_ChannelWindow, ArrayUnaryKernel, _core.CrossChannelNormalization):
    """Division by neighbouring channels (``MPSCNNCrossChannelNormalization``).

    The result is ``x / (delta + alpha / n * sum(x^2))^beta``, the sum over a window of n channels.
    `alpha` (default 1.0, not negative), `beta` (5.0) and `delta` (1.0) are attributes, read at
    encode time and rounded to float32.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_size : int, default 5
        Length n of the window, channels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If ``kernel_size`` is below 1.
    """


class SpatialNormalization(_PixelWindow, ArrayUnaryKernel, _core.SpatialNormalization):
    """Division by neighbouring pixels (``MPSCNNSpatialNormalization``).

    The result is ``x / (delta + alpha / n * sum(x^2))^beta``, the sum over a window of n pixels of
    the same channel. `alpha` (default 1.0, not negative), `beta` (5.0) and `delta` (1.0) are
    attributes, read at encode time and rounded to float32. With `edge_mode` ``CLAMP`` a pixel
    outside the source is the nearest one; there is no gradient for that.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels; both must be equal.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size is below 1, or the two differ.
    """


class LocalContrastNormalization(_PixelWindow, ArrayUnaryKernel, _core.LocalContrastNormalization):
    """Subtraction of a local mean (``MPSCNNLocalContrastNormalization``).

    The result is ``pm + ps * (x - p0 * mean) / (delta + alpha * variance)^beta``, with mean and
    biased variance over a window of pixels of the same channel. `alpha` (default 0.0, which leaves
    a subtraction of the mean), `beta` (0.5), `delta` (1/1024), `p0` (1.0), `pm` (0.0) and `ps`
    (1.0) are attributes, read at encode time and rounded to float32. With `edge_mode` ``CLAMP`` a
    pixel outside the source is the nearest one; there is no gradient for that.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels; both must be equal.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size is below 1, or the two differ.
    """

    _own_settings = _CONTRAST


class CrossChannelNormalizationGradient(
    _ChannelWindow, ArrayGradientKernel, _core.CrossChannelNormalizationGradient
):
    """Gradient of `CrossChannelNormalization` (``MPSCNNCrossChannelNormalizationGradient``).

    The exact derivative. `alpha`, `beta` and `delta` must be set like those of the forward kernel.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_size : int, default 5
        Length of the window, channels; as in the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If ``kernel_size`` is below 1.
    """


class SpatialNormalizationGradient(
    _PixelWindow, ArrayGradientKernel, _core.SpatialNormalizationGradient
):
    """Gradient of `SpatialNormalization` (``MPSCNNSpatialNormalizationGradient``).

    The exact derivative, for edge mode ``ZERO``. `alpha`, `beta` and `delta` must be set like those
    of the forward kernel.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels; as in the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size is below 1, or the two differ.
    """

    _prefix = "secondary_"


class LocalContrastNormalizationGradient(
    _PixelWindow, ArrayGradientKernel, _core.LocalContrastNormalizationGradient
):
    """Gradient of `LocalContrastNormalization` (``MPSCNNLocalContrastNormalizationGradient``).

    The exact derivative, for edge mode ``ZERO``. The six parameters must be set like those of the
    forward kernel; `pm` has no influence.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels; as in the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size is below 1, or the two differ.
    """

    _prefix = "secondary_"
    _own_settings = _CONTRAST
