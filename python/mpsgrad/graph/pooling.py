"""Nodes of pooling and its gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad import pooling as kernels
from mpsgrad._core import EdgeMode
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode, of_forward

__all__ = [
    "DilatedPoolingMaxGradientNode",
    "DilatedPoolingMaxNode",
    "PoolingAverageGradientNode",
    "PoolingAverageNode",
    "PoolingGradientNode",
    "PoolingL2NormGradientNode",
    "PoolingL2NormNode",
    "PoolingMaxGradientNode",
    "PoolingMaxNode",
    "PoolingNode",
]


def _size(name: str, both: int | None, width: int | None, height: int | None) -> tuple[int, int]:
    """Width and height of a window from the three arguments that may say it."""
    if both is not None:
        if width is not None or height is not None:
            raise TypeError(f"{name}: give either filter_size, or kernel_width and kernel_height")
        return both, both
    if width is None or height is None:
        raise TypeError(f"{name}: filter_size, or kernel_width and kernel_height, must be given")
    return width, height


class _Window(FilterNode):
    """What nodes with a window share."""

    _state_node = GradientStateNode
    _keeps_channels = True
    _kernel_width: int
    _kernel_height: int
    _stride_in_pixels_x: int
    _stride_in_pixels_y: int

    @property
    def kernel_width(self) -> int:
        """Columns of the window."""
        return self._kernel_width

    @property
    def kernel_height(self) -> int:
        """Rows of the window."""
        return self._kernel_height

    @property
    def stride_in_pixels_x(self) -> int:
        """Columns from one window to the next."""
        return self._stride_in_pixels_x

    @property
    def stride_in_pixels_y(self) -> int:
        """Rows from one window to the next."""
        return self._stride_in_pixels_y

    def _kernel_arguments(self) -> dict[str, Any]:
        return {
            "kernel_width": self.kernel_width,
            "kernel_height": self.kernel_height,
            "stride_in_pixels_x": self.stride_in_pixels_x,
            "stride_in_pixels_y": self.stride_in_pixels_y,
        }


class PoolingNode(_Window):
    """Base class of max, average and L2 norm pooling nodes (``MPSCNNPoolingNode``).

    Edges are clamped, unlike those of a kernel that is made by hand.
    """

    _abstract = True

    def __init__(
        self,
        source: Any,
        filter_size: int | None = None,
        stride: int | None = None,
        *,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        stride_in_pixels_x: int | None = None,
        stride_in_pixels_y: int | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        name = type(self).__name__
        width, height = _size(name, filter_size, kernel_width, kernel_height)
        across, down = (stride_in_pixels_x, stride_in_pixels_y)
        if stride is not None:
            if across is not None or down is not None:
                raise TypeError(f"{name}: give either stride, or strides in x and y")
            across = down = stride
        self._kernel_width, self._kernel_height = width, height
        self._stride_in_pixels_x = width if across is None else across
        self._stride_in_pixels_y = height if down is None else down

    def _kernel_settings(self) -> dict[str, Any]:
        return {"edge_mode": EdgeMode.CLAMP}


class PoolingMaxNode(PoolingNode):
    """Largest value of each window (``MPSCNNPoolingMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    filter_size : int, optional
        Columns and rows of the window; or ``kernel_width`` and ``kernel_height``.
    stride : int, optional
        Columns and rows between windows; or ``stride_in_pixels_x`` and ``stride_in_pixels_y``. By
        default the window's size.
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.PoolingMax


class PoolingAverageNode(PoolingNode):
    """Mean of each window (``MPSCNNPoolingAverageNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    filter_size : int, optional
        Columns and rows of the window; or ``kernel_width`` and ``kernel_height``.
    stride : int, optional
        Columns and rows between windows; or ``stride_in_pixels_x`` and ``stride_in_pixels_y``. By
        default the window's size.
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.PoolingAverage


class PoolingL2NormNode(PoolingNode):
    """Square root of the sum of squares (``MPSCNNPoolingL2NormNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    filter_size : int, optional
        Columns and rows of the window; or ``kernel_width`` and ``kernel_height``.
    stride : int, optional
        Columns and rows between windows; or ``stride_in_pixels_x`` and ``stride_in_pixels_y``. By
        default the window's size.
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.PoolingL2Norm


class DilatedPoolingMaxNode(_Window):
    """Largest value of each dilated window (``MPSCNNDilatedPoolingMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    filter_size : int, optional
        Columns and rows of the window; or ``kernel_width`` and ``kernel_height``.
    stride, dilation_rate : int, optional
        By default both are the window's size. Or ``stride_in_pixels_x`` and ``_y``,
        ``dilation_rate_x`` and ``_y``.
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
    dilation_rate_x, dilation_rate_y : int, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.DilatedPoolingMax

    def __init__(
        self,
        source: Any,
        filter_size: int | None = None,
        stride: int | None = None,
        dilation_rate: int | None = None,
        *,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        stride_in_pixels_x: int | None = None,
        stride_in_pixels_y: int | None = None,
        dilation_rate_x: int | None = None,
        dilation_rate_y: int | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        width, height = _size(type(self).__name__, filter_size, kernel_width, kernel_height)

        def chosen(*candidates: int | None) -> int:
            return next(value for value in candidates if value is not None)

        self._kernel_width, self._kernel_height = width, height
        self._stride_in_pixels_x = chosen(stride_in_pixels_x, stride, width)
        self._stride_in_pixels_y = chosen(stride_in_pixels_y, stride, height)
        self._dilation_rate_x = chosen(dilation_rate_x, dilation_rate, width)
        self._dilation_rate_y = chosen(dilation_rate_y, dilation_rate, height)

    @property
    def dilation_rate_x(self) -> int:
        """Columns from one tap to the next."""
        return self._dilation_rate_x

    @property
    def dilation_rate_y(self) -> int:
        """Rows from one tap to the next."""
        return self._dilation_rate_y

    def _kernel_arguments(self) -> dict[str, Any]:
        return {
            **super()._kernel_arguments(),
            "dilation_rate_x": self.dilation_rate_x,
            "dilation_rate_y": self.dilation_rate_y,
        }


class PoolingGradientNode(GradientFilterNode):
    """Base class of all pooling gradient nodes (``MPSCNNPoolingGradientNode``)."""

    _abstract = True
    _forward: Any
    _repeats: ClassVar[tuple[str, ...]] = (
        "kernel_width",
        "kernel_height",
        "stride_in_pixels_x",
        "stride_in_pixels_y",
    )
    _takes_policy: ClassVar[bool] = True

    kernel_width = of_forward("kernel_width")
    kernel_height = of_forward("kernel_height")
    stride_in_pixels_x = of_forward("stride_in_pixels_x")
    stride_in_pixels_y = of_forward("stride_in_pixels_y")


class PoolingMaxGradientNode(PoolingGradientNode):
    """Gradient of `PoolingMaxNode` (``MPSCNNPoolingMaxGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
        If given, the forward node's.
    padding_policy : Padding, optional
        By default the inverse of the forward node's, or the kernel's own.
    """

    _kernel: ClassVar[Any] = kernels.PoolingMaxGradient


class PoolingAverageGradientNode(PoolingGradientNode):
    """Gradient of `PoolingAverageNode` (``MPSCNNPoolingAverageGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
        If given, the forward node's.
    padding_policy : Padding, optional
        By default the inverse of the forward node's, or the kernel's own.
    """

    _kernel: ClassVar[Any] = kernels.PoolingAverageGradient


class PoolingL2NormGradientNode(PoolingGradientNode):
    """Gradient of `PoolingL2NormNode` (``MPSCNNPoolingL2NormGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
        If given, the forward node's.
    padding_policy : Padding, optional
        By default the inverse of the forward node's, or the kernel's own.
    """

    _kernel: ClassVar[Any] = kernels.PoolingL2NormGradient


class DilatedPoolingMaxGradientNode(PoolingGradientNode):
    """Gradient of `DilatedPoolingMaxNode` (``MPSCNNDilatedPoolingMaxGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_width, kernel_height, stride_in_pixels_x, stride_in_pixels_y : int, optional
        If given, the forward node's.
    dilation_rate_x, dilation_rate_y : int, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = kernels.DilatedPoolingMaxGradient
    _repeats = (*PoolingGradientNode._repeats, "dilation_rate_x", "dilation_rate_y")
    _takes_policy = False

    dilation_rate_x = of_forward("dilation_rate_x")
    dilation_rate_y = of_forward("dilation_rate_y")


PoolingMaxNode._gradient_node = PoolingMaxGradientNode
PoolingAverageNode._gradient_node = PoolingAverageGradientNode
PoolingL2NormNode._gradient_node = PoolingL2NormGradientNode
DilatedPoolingMaxNode._gradient_node = DilatedPoolingMaxGradientNode
