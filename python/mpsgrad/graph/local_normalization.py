"""Nodes of normalizations over a neighbourhood, and their gradients.

A gradient node uses the numbers its forward node has when the graph is made.
"""

from __future__ import annotations

from typing import Any, ClassVar

from mpsgrad import local_normalization as kernels
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode, of_forward

__all__ = [
    "CrossChannelNormalizationGradientNode",
    "CrossChannelNormalizationNode",
    "LocalContrastNormalizationGradientNode",
    "LocalContrastNormalizationNode",
    "NormalizationNode",
    "SpatialNormalizationGradientNode",
    "SpatialNormalizationNode",
]


class NormalizationNode(FilterNode):
    """Base class of normalizations over a neighbourhood (``MPSCNNNormalizationNode``).

    Attributes
    ----------
    alpha, beta, delta : float
    """

    _abstract = True
    _state_node = GradientStateNode
    _keeps_channels = True
    _numbers: ClassVar[tuple[str, ...]] = ("alpha", "beta", "delta")

    alpha: float
    beta: float
    delta: float

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        self.alpha = 1.0
        self.beta = 5.0
        self.delta = 1.0

    def _kernel_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._numbers}

    def _describe(self) -> dict[str, Any]:
        return {**self._kernel_arguments(), **self._kernel_settings()}


class _PixelWindow(NormalizationNode):
    """A window of pixels in each channel."""

    kernel_width: int
    kernel_height: int

    def __init__(self, source: Any, kernel_size: int = 5, *, label: str | None = None) -> None:
        super().__init__(source, label=label)
        self.kernel_width = kernel_size
        self.kernel_height = kernel_size

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"kernel_width": self.kernel_width, "kernel_height": self.kernel_height}


class SpatialNormalizationNode(_PixelWindow):
    """Division by local energy (``MPSCNNSpatialNormalizationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    kernel_size : int, default 5
        Columns and rows of the window; `kernel_width` and `kernel_height` can be set.
    label : str, optional

    Attributes
    ----------
    alpha, beta, delta : float
        1, 5 and 1 at first.
    """

    _kernel: ClassVar[Any] = kernels.SpatialNormalization


class LocalContrastNormalizationNode(_PixelWindow):
    """Distance from the local mean over local contrast (``MPSCNNLocalContrastNormalizationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    kernel_size : int, default 5
        Columns and rows of the window; `kernel_width` and `kernel_height` can be set.
    label : str, optional

    Attributes
    ----------
    alpha, beta, delta, pm, ps, p0 : float
        1, 0.5, 1/1024, 0, 1 and 1 at first.
    """

    _kernel: ClassVar[Any] = kernels.LocalContrastNormalization
    _numbers = (*NormalizationNode._numbers, "pm", "ps", "p0")

    pm: float
    ps: float
    p0: float

    def __init__(self, source: Any, kernel_size: int = 5, *, label: str | None = None) -> None:
        super().__init__(source, kernel_size, label=label)
        self.beta = 0.5
        self.delta = 1 / 1024
        self.pm = 0.0
        self.ps = 1.0
        self.p0 = 1.0


class CrossChannelNormalizationNode(NormalizationNode):
    """Division by the energy of nearby channels (``MPSCNNCrossChannelNormalizationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    kernel_size : int, default 5
        Channels of the window; `kernel_size_in_feature_channels` can be set.
    label : str, optional

    Attributes
    ----------
    alpha, beta, delta : float
        1, 5 and 1 at first.
    """

    _kernel: ClassVar[Any] = kernels.CrossChannelNormalization
    _mixes_channels = True

    kernel_size_in_feature_channels: int

    def __init__(self, source: Any, kernel_size: int = 5, *, label: str | None = None) -> None:
        super().__init__(source, label=label)
        self.kernel_size_in_feature_channels = kernel_size

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"kernel_size": self.kernel_size_in_feature_channels}


class _Gradient(GradientFilterNode):
    """Everything comes from the forward node."""

    _abstract = True

    def _kernel_settings(self) -> dict[str, Any]:
        return self._forward._kernel_settings()


class _PixelWindowGradient(_Gradient):
    """What Apple's gradient nodes of pixel windows show."""

    _abstract = True
    _repeats = ("kernel_width", "kernel_height")

    kernel_width = of_forward("kernel_width")
    kernel_height = of_forward("kernel_height")
    alpha = of_forward("alpha")
    beta = of_forward("beta")
    delta = of_forward("delta")


class SpatialNormalizationGradientNode(_PixelWindowGradient):
    """Gradient of `SpatialNormalizationNode` (``MPSCNNSpatialNormalizationGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_size : int, optional
        If given, both sides of the forward node's window.
    kernel_width, kernel_height : int, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = kernels.SpatialNormalizationGradient
    _joint_repeats: ClassVar[dict[str, tuple[str, ...]]] = {
        "kernel_size": ("kernel_width", "kernel_height")
    }


class LocalContrastNormalizationGradientNode(_PixelWindowGradient):
    """Gradient of the local contrast (``MPSCNNLocalContrastNormalizationGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_width, kernel_height : int, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = kernels.LocalContrastNormalizationGradient

    pm = of_forward("pm")
    ps = of_forward("ps")
    p0 = of_forward("p0")


class CrossChannelNormalizationGradientNode(_Gradient):
    """Gradient across channels (``MPSCNNCrossChannelNormalizationGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    kernel_size, kernel_size_in_feature_channels : int, optional
        If given, the channels of the forward node's window.
    """

    _kernel: ClassVar[Any] = kernels.CrossChannelNormalizationGradient
    _repeats = ("kernel_size_in_feature_channels",)
    _joint_repeats: ClassVar[dict[str, tuple[str, ...]]] = {
        "kernel_size": ("kernel_size_in_feature_channels",)
    }

    kernel_size = of_forward("kernel_size_in_feature_channels")


SpatialNormalizationNode._gradient_node = SpatialNormalizationGradientNode
LocalContrastNormalizationNode._gradient_node = LocalContrastNormalizationGradientNode
CrossChannelNormalizationNode._gradient_node = CrossChannelNormalizationGradientNode
