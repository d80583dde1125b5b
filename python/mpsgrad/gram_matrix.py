"""Gram matrices of images, and their gradient: what style transfer's losses compare.

The matrix of an image with C channels holds the products of every two of them, summed over its
pixels: nothing about where in the image something is, only what goes with what. It is an image of
its own, one row of C pixels with C channels.
"""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._kernel import KernelFacade

__all__ = ["GramMatrixCalculation", "GramMatrixCalculationGradient"]


class _GramMatrix(KernelFacade):
    """What both kernels share: their constructor."""

    def __init__(self, alpha: float = 1.0, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self), alpha)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        return {"alpha": self.alpha}  # type: ignore[attr-defined]


class GramMatrixCalculation(_GramMatrix, ArrayUnaryKernel, _core.GramMatrixCalculation):
    """Products of every two channels, summed over the pixels (``MPSNNGramMatrixCalculation``).

    The result of a source of shape (N, H, W, C) has the shape (N, 1, C, C): element (n, 0, f, c) is
    ``alpha * sum(x[n, :, :, f] * x[n, :, :, c])``. No mean is subtracted, and the sum is not
    divided by the number of pixels: ``1 / (H * W)`` as `alpha` does that. `alpha` is an attribute,
    read at encode time and rounded to float32.

    Sums are over whole images: `offset` and `clip_rect` must keep their default values. C counts
    the channels that the kernel reads, from `source_feature_channel_offset` on.

    Parameters
    ----------
    alpha : float, default 1.0
        Factor of the result.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If ``alpha`` is not a finite float32 number.
    """


class GramMatrixCalculationGradient(
    _GramMatrix, ArrayGradientKernel, _core.GramMatrixCalculationGradient
):
    """Gradient of `GramMatrixCalculation` (``MPSNNGramMatrixCalculationGradient``).

    For an incoming gradient g of shape (N, 1, C, C) and the forward source x, channel k of a pixel
    is ``alpha * sum((g[n, 0, k, c] + g[n, 0, c, k]) * x[n, y, x, c])``, the sum over c. Each encode
    takes `alpha` from the state and leaves it in the attribute, whatever it was.

    Parameters
    ----------
    alpha : float, default 1.0
        What the attribute begins with.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If ``alpha`` is not a finite float32 number.
    """
