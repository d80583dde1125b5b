"""Nearest and bilinear upsampling by integer factors, and their gradients."""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._core import Upsampling, UpsamplingGradient
from mpsgrad._kernel import KernelFacade

__all__ = [
    "Upsampling",
    "UpsamplingBilinear",
    "UpsamplingBilinearGradient",
    "UpsamplingGradient",
    "UpsamplingNearest",
    "UpsamplingNearestGradient",
]


class _Factors(KernelFacade):
    """What all but the bilinear kernel share: their constructor."""

    def __init__(
        self,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        factors = integer_scale_factor_x, integer_scale_factor_y
        super().__init__(resolve_device(device, self), *factors)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        return {
            f"integer_scale_factor_{axis}": int(getattr(self, f"scale_factor_{axis}"))
            for axis in "xy"
        }


class UpsamplingNearest(_Factors, ArrayUnaryKernel, _core.UpsamplingNearest):
    """Each pixel copied into a block of equal ones (``MPSCNNUpsamplingNearest``).

    A source of shape (N, H, W, C) becomes (N, H * integer_scale_factor_y,
    W * integer_scale_factor_x, C); result pixel (x, y) is source pixel
    (x // integer_scale_factor_x, y // integer_scale_factor_y).

    Parameters
    ----------
    integer_scale_factor_x, integer_scale_factor_y : int
        Pixels of the result for one of the source, across and down.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a factor is not a whole number from 1 to 65536.
    """


class UpsamplingBilinear(_Factors, ArrayUnaryKernel, _core.UpsamplingBilinear):
    """Interpolation between the four nearest pixels (``MPSCNNUpsamplingBilinear``).

    A source of shape (N, H, W, C) becomes (N, H * integer_scale_factor_y,
    W * integer_scale_factor_x, C). Along an axis of n source pixels and factor s, result pixel i
    lies at ``i / s``, or with `align_corners` at ``i * (n - 1) / (n * s - 1)``: then the corner
    pixels of source and result coincide. Behind the last pixel its value is repeated.

    Parameters
    ----------
    integer_scale_factor_x, integer_scale_factor_y : int
        Pixels of the result for one of the source, across and down.
    align_corners : bool, default False
        Whether the corner pixels of source and result coincide.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a factor is not a whole number from 1 to 65536.
    """

    def __init__(
        self,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        align_corners: bool = False,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        factors = integer_scale_factor_x, integer_scale_factor_y
        super(_Factors, self).__init__(resolve_device(device, self), *factors, align_corners)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "align_corners": self.align_corners}


class UpsamplingNearestGradient(_Factors, ArrayGradientKernel, _core.UpsamplingNearestGradient):
    """Gradient of `UpsamplingNearest` (``MPSCNNUpsamplingNearestGradient``).

    A source pixel receives the sum over the block of results that copied it. The result has the
    shape of the forward source, whose values are not read.

    Parameters
    ----------
    integer_scale_factor_x, integer_scale_factor_y : int
        Those of the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a factor is not a whole number from 1 to 65536.
    """


class UpsamplingBilinearGradient(_Factors, ArrayGradientKernel, _core.UpsamplingBilinearGradient):
    """Gradient of `UpsamplingBilinear` (``MPSCNNUpsamplingBilinearGradient``).

    Each result pixel hands its gradient to the pixels it was interpolated between, in the same
    proportions. Whether corners were aligned is read from the state. The result has the shape of
    the forward source, whose values are not read.

    Parameters
    ----------
    integer_scale_factor_x, integer_scale_factor_y : int
        Those of the forward kernel.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a factor is not a whole number from 1 to 65536.
    """
