"""Max, average, L2 norm and dilated max pooling, and their gradients.

A window is centred on a source pixel: the first one on `offset`, the next ones a stride apart. A
window of even length reaches one pixel further to the left and to the top.
"""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._core import Pooling, PoolingGradient
from mpsgrad._kernel import KernelFacade

__all__ = [
    "DilatedPoolingMax",
    "DilatedPoolingMaxGradient",
    "Pooling",
    "PoolingAverage",
    "PoolingAverageGradient",
    "PoolingGradient",
    "PoolingL2Norm",
    "PoolingL2NormGradient",
    "PoolingMax",
    "PoolingMaxGradient",
]

_ZERO_PAD = ("zero_pad_size_x", "zero_pad_size_y")


class _Windows(KernelFacade):
    """What all kernels without gaps share: their constructor."""

    _prefix = ""  # of the properties that hold the window

    def __init__(
        self,
        kernel_width: int,
        kernel_height: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        strides = stride_in_pixels_x, stride_in_pixels_y
        super().__init__(resolve_device(device, self), kernel_width, kernel_height, *strides)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        window = {name: f"{self._prefix}{name}" for name in ("kernel_width", "kernel_height")}
        strides = {name: name for name in ("stride_in_pixels_x", "stride_in_pixels_y")}
        return {name: getattr(self, where) for name, where in {**window, **strides}.items()}


class _DilatedWindows(_Windows):
    """The same for kernels with gaps."""

    def __init__(
        self,
        kernel_width: int,
        kernel_height: int,
        dilation_rate_x: int,
        dilation_rate_y: int,
        stride_in_pixels_x: int = 1,
        stride_in_pixels_y: int = 1,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        rates = dilation_rate_x, dilation_rate_y
        strides = stride_in_pixels_x, stride_in_pixels_y
        super(_Windows, self).__init__(  # type: ignore[call-arg]
            resolve_device(device, self), kernel_width, kernel_height, *rates, *strides
        )

    def _arguments(self) -> dict[str, Any]:
        names = "dilation_rate_x", "dilation_rate_y"
        rates = {name: getattr(self, f"{self._prefix}{name}") for name in names}
        return {**super()._arguments(), **rates}


class _GradientWindows(_Windows):
    """What the gradient kernels add."""

    _prefix = "secondary_"
    _own_settings: tuple[str, ...] = ("source_size",)


class PoolingMax(_Windows, ArrayUnaryKernel, _core.PoolingMax):
    """Largest value of each window (``MPSCNNPoolingMax``).

    With edge mode ``ZERO`` a pixel outside the source is 0 and takes part, so it hides negative
    ones; with ``CLAMP`` it is the nearest pixel of the source.

    ``(N, H, W, C)`` becomes ``(N, ceil(H / stride_y), ceil(W / stride_x), C)``, float32 or float16,
    under SIZE_SAME, the default `padding`.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """


class PoolingAverage(_Windows, ArrayUnaryKernel, _core.PoolingAverage):
    """Mean of each window (``MPSCNNPoolingAverage``).

    With edge mode ``ZERO`` pixels outside the source count as zeros. With ``CLAMP`` the window
    shrinks to the source: pixels outside do not count, except for the zeros of a border
    `zero_pad_size_x` wide and `zero_pad_size_y` high, both 0 unless set. The padding method's bit
    ``EXCLUDE_EDGES`` makes encodes that create their destination set ``CLAMP`` and the border.

    ``(N, H, W, C)`` becomes ``(N, ceil(H / stride_y), ceil(W / stride_x), C)``, float32 or float16,
    under SIZE_SAME, the default `padding`.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """

    _own_settings: tuple[str, ...] = _ZERO_PAD


class PoolingL2Norm(_Windows, ArrayUnaryKernel, _core.PoolingL2Norm):
    """Root of the sum of squares of each window (``MPSCNNPoolingL2Norm``).

    With edge mode ``ZERO`` a pixel outside the source is 0; with ``CLAMP`` it is the nearest pixel
    of the source, counted once for each.

    ``(N, H, W, C)`` becomes ``(N, ceil(H / stride_y), ceil(W / stride_x), C)``, float32 or float16,
    under SIZE_SAME, the default `padding`.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """


class DilatedPoolingMax(_DilatedWindows, ArrayUnaryKernel, _core.DilatedPoolingMax):
    """Largest value of each window with gaps (``MPSCNNDilatedPoolingMax``).

    Edges are as in `PoolingMax`.

    ``(N, H, W, C)`` becomes ``(N, ceil(H / stride_y), ceil(W / stride_x), C)``, float32 or float16,
    under SIZE_SAME, the default `padding`.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Pixels that a window reads.
    dilation_rate_x, dilation_rate_y : int
        Distance between them, pixels; Apple's order puts it before the stride.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size, a dilation rate or a stride is below 1.
    """


class PoolingMaxGradient(_GradientWindows, ArrayGradientKernel, _core.PoolingMaxGradient):
    """Gradient of `PoolingMax` with respect to its source (``MPSCNNPoolingMaxGradient``).

    The gradient of a window goes to the pixel that supplied its maximum. Of equal ones the CPU
    device takes the first, row by row; Metal promises nothing. A window whose maximum is a zero
    outside the source gives its gradient to nobody.

    The result has the shape of the forward source, ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels of the forward source.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """


class PoolingAverageGradient(_GradientWindows, ArrayGradientKernel, _core.PoolingAverageGradient):
    """Gradient of `PoolingAverage` with respect to its source (``MPSCNNPoolingAverageGradient``).

    Every pixel of a window gets the same share of its gradient. The values of the source are not
    read. Encodes that create their destination take `zero_pad_size_x` and `zero_pad_size_y` from
    the state.

    The result has the shape of the forward source, ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels of the forward source.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """

    _own_settings = (*_GradientWindows._own_settings, *_ZERO_PAD)


class PoolingL2NormGradient(_GradientWindows, ArrayGradientKernel, _core.PoolingL2NormGradient):
    """Gradient of `PoolingL2Norm` with respect to its source (``MPSCNNPoolingL2NormGradient``).

    A window whose norm is 0 gives nothing.

    The result has the shape of the forward source, ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Size of the window, pixels.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels of the forward source.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size or a stride is below 1.
    """


class DilatedPoolingMaxGradient(
    _DilatedWindows, _GradientWindows, ArrayGradientKernel, _core.DilatedPoolingMaxGradient
):
    """Gradient of `DilatedPoolingMax` (``MPSCNNDilatedPoolingMaxGradient``).

    As `PoolingMaxGradient`, for windows with gaps.

    The result has the shape of the forward source, ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    kernel_width, kernel_height : int
        Pixels that a window reads.
    dilation_rate_x, dilation_rate_y : int
        Distance between them, pixels; Apple's order puts it before the stride.
    stride_in_pixels_x, stride_in_pixels_y : int, default 1
        Distance from window to window, pixels of the forward source.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a size, a dilation rate or a stride is below 1.
    """
