"""Rows, columns or feature channels of an image made one value: least, largest, mean, sum.

"Row" is one value per row: ``ReduceRowMean`` of ``(N, H, W, C)`` is ``(N, H, 1, C)``. Two kernels
multiply by a second image first, and one by shifted copies of it.
"""

from __future__ import annotations

from typing import Any

from mpsgrad import _core
from mpsgrad._arrays import ArrayBinaryKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._core import ReduceBinary, ReduceUnary
from mpsgrad._kernel import KernelFacade

__all__ = [
    "LocalCorrelation",
    "ReduceBinary",
    "ReduceColumnMax",
    "ReduceColumnMean",
    "ReduceColumnMin",
    "ReduceColumnSum",
    "ReduceFeatureChannelsAndWeightsMean",
    "ReduceFeatureChannelsAndWeightsSum",
    "ReduceFeatureChannelsArgumentMax",
    "ReduceFeatureChannelsArgumentMin",
    "ReduceFeatureChannelsMax",
    "ReduceFeatureChannelsMean",
    "ReduceFeatureChannelsMin",
    "ReduceFeatureChannelsSum",
    "ReduceRowMax",
    "ReduceRowMean",
    "ReduceRowMin",
    "ReduceRowSum",
    "ReduceUnary",
]


class _Unary(KernelFacade):
    """What the reductions of one image share: their constructor and settings."""

    _own_settings: tuple[str, ...] = ("clip_rect_source",)

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))  # type: ignore[call-arg]


class _Binary(KernelFacade):
    """What the reductions of two images share."""

    _own_settings: tuple[str, ...] = ("primary_source_clip_rect", "secondary_source_clip_rect")


class ReduceRowMin(_Unary, ArrayUnaryKernel, _core.ReduceRowMin):
    """Least value of each row, of each feature channel (``MPSNNReduceRowMin``).

    The result has shape ``(N, H, 1, C)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceRowMax(_Unary, ArrayUnaryKernel, _core.ReduceRowMax):
    """Largest value of each row, of each feature channel (``MPSNNReduceRowMax``).

    The result has shape ``(N, H, 1, C)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceRowMean(_Unary, ArrayUnaryKernel, _core.ReduceRowMean):
    """Mean of each row, of each feature channel (``MPSNNReduceRowMean``).

    The result has shape ``(N, H, 1, C)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceRowSum(_Unary, ArrayUnaryKernel, _core.ReduceRowSum):
    """Sum of each row, of each feature channel (``MPSNNReduceRowSum``).

    The result has shape ``(N, H, 1, C)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceColumnMin(_Unary, ArrayUnaryKernel, _core.ReduceColumnMin):
    """Least value of each column, of each feature channel (``MPSNNReduceColumnMin``).

    The result has shape ``(N, 1, W, C)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceColumnMax(_Unary, ArrayUnaryKernel, _core.ReduceColumnMax):
    """Largest value of each column, of each feature channel (``MPSNNReduceColumnMax``).

    The result has shape ``(N, 1, W, C)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceColumnMean(_Unary, ArrayUnaryKernel, _core.ReduceColumnMean):
    """Mean of each column, of each feature channel (``MPSNNReduceColumnMean``).

    The result has shape ``(N, 1, W, C)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceColumnSum(_Unary, ArrayUnaryKernel, _core.ReduceColumnSum):
    """Sum of each column, of each feature channel (``MPSNNReduceColumnSum``).

    The result has shape ``(N, 1, W, C)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsMin(_Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsMin):
    """Least value of the feature channels of each pixel (``MPSNNReduceFeatureChannelsMin``).

    The result has shape ``(N, H, W, 1)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsMax(_Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsMax):
    """Largest value of the feature channels of each pixel (``MPSNNReduceFeatureChannelsMax``).

    The result has shape ``(N, H, W, 1)``.

    A NaN among the values is the result.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsMean(_Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsMean):
    """Mean of the feature channels of each pixel (``MPSNNReduceFeatureChannelsMean``).

    The result has shape ``(N, H, W, 1)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsSum(_Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsSum):
    """Sum of the feature channels of each pixel (``MPSNNReduceFeatureChannelsSum``).

    The result has shape ``(N, H, W, 1)``.

    Times `weight`, 1 unless it is set.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    _own_settings = (*_Unary._own_settings, "weight")


class ReduceFeatureChannelsArgumentMin(
    _Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsArgumentMin
):
    """Which feature channel of each pixel is least (``MPSNNReduceFeatureChannelsArgumentMin``).

    The result has shape ``(N, H, W, 1)`` and holds places as numbers, counted from the first
    channel read: of equal ones the first, and of NaNs, if there are any, the first. A float16
    result holds places above 2048 rounded.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsArgumentMax(
    _Unary, ArrayUnaryKernel, _core.ReduceFeatureChannelsArgumentMax
):
    """Which feature channel of each pixel is largest (``MPSNNReduceFeatureChannelsArgumentMax``).

    The result has shape ``(N, H, W, 1)`` and holds places as numbers, counted from the first
    channel read: of equal ones the first, and of NaNs, if there are any, the first. A float16
    result holds places above 2048 rounded.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """


class ReduceFeatureChannelsAndWeightsMean(
    _Binary, ArrayBinaryKernel, _core.ReduceFeatureChannelsAndWeightsMean
):
    """Mean of channels times weights (``MPSNNReduceFeatureChannelsAndWeightsMean``).

    The primary source times the secondary, summed over the feature channels of each pixel and
    divided by their number. The result has shape ``(N, H, W, 1)``.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class ReduceFeatureChannelsAndWeightsSum(
    _Binary, ArrayBinaryKernel, _core.ReduceFeatureChannelsAndWeightsSum
):
    """Sum of channels times weights (``MPSNNReduceFeatureChannelsAndWeightsSum``).

    The primary source times the secondary, summed over the feature channels of each pixel. The
    result has shape ``(N, H, W, 1)``.

    Parameters
    ----------
    do_weighted_sum_by_non_zero_weights : bool, default False
        Divide each sum by how many of its weights are not 0; without any the result is 0.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(
        self,
        do_weighted_sum_by_non_zero_weights: bool = False,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), do_weighted_sum_by_non_zero_weights)

    def _arguments(self) -> dict[str, Any]:
        name = "do_weighted_sum_by_non_zero_weights"
        return {name: getattr(self, name)}


class LocalCorrelation(_Binary, ArrayBinaryKernel, _core.LocalCorrelation):
    """Products of an image with shifted copies of another (``MPSNNLocalCorrelation``).

    Channel ``k * (2 * window_in_x + 1) + m`` of a result pixel is the sum, over the feature
    channels, of the primary source there times the secondary source ``(m - window_in_x) *
    stride_in_x`` pixels to the right and ``(k - window_in_y) * stride_in_y`` below. The result has
    ``(2 * window_in_x + 1) * (2 * window_in_y + 1)`` channels. Outside the secondary source its
    edge mode applies, zeros unless it is set.

    Parameters
    ----------
    window_in_x, window_in_y : int, default 0
        Shifts to either side.
    stride_in_x, stride_in_y : int, default 1
        Pixels from one shift to the next.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If a window is negative or a stride below 1.
    """

    _own_settings = (
        *_Binary._own_settings,
        "window_in_x",
        "window_in_y",
        "stride_in_x",
        "stride_in_y",
    )

    def __init__(
        self,
        window_in_x: int = 0,
        window_in_y: int = 0,
        stride_in_x: int = 1,
        stride_in_y: int = 1,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        shifts = window_in_x, window_in_y, stride_in_x, stride_in_y
        super().__init__(resolve_device(device, self), *shifts)

    def _arguments(self) -> dict[str, Any]:
        names = "window_in_x", "window_in_y", "stride_in_x", "stride_in_y"
        return {name: getattr(self, name) for name in names}
