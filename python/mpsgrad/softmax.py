"""Softmax and log-softmax across the channels of each pixel, and their gradients."""

from __future__ import annotations

from mpsgrad import _core
from mpsgrad._arrays import ArrayResultGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._kernel import KernelFacade

__all__ = ["LogSoftMax", "LogSoftMaxGradient", "SoftMax", "SoftMaxGradient"]


class SoftMax(KernelFacade, ArrayUnaryKernel, _core.SoftMax):
    """``e^x / sum(e^x)``, the sum over the channels of a pixel (``MPSCNNSoftMax``).

    The largest channel of each pixel is subtracted first, so large values do not overflow.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class LogSoftMax(KernelFacade, ArrayUnaryKernel, _core.LogSoftMax):
    """``x - ln(sum(e^x))``, the sum over the channels of a pixel (``MPSCNNLogSoftMax``).

    The largest channel of each pixel is subtracted first, so large values do not overflow.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class SoftMaxGradient(KernelFacade, ArrayResultGradientKernel, _core.SoftMaxGradient):
    """Gradient of `SoftMax` with respect to its source (``MPSCNNSoftMaxGradient``).

    The result is ``s * (g - sum(g * s))`` for an incoming gradient g and the forward result s. The
    second image of `encode`, ``source``, is the forward **result**, not the forward source: the
    wrong one cannot be told from its numbers.

    Gradients and forward result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class LogSoftMaxGradient(KernelFacade, ArrayResultGradientKernel, _core.LogSoftMaxGradient):
    """Gradient of `LogSoftMax` with respect to its source (``MPSCNNLogSoftMaxGradient``).

    The result is ``g - e^l * sum(g)`` for an incoming gradient g and the forward result l. The
    second image of `encode`, ``source``, is the forward **result**, not the forward source: the
    wrong one cannot be told from its numbers.

    Gradients and forward result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))
