"""Nodes that reduce rows, columns, channels or whole images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import reduction
from mpsgrad._core import NO_CLIP
from mpsgrad.errors import UnsupportedError
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode

if TYPE_CHECKING:
    from mpsgrad._core import Region
    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "ReductionColumnMaxNode",
    "ReductionColumnMeanNode",
    "ReductionColumnMinNode",
    "ReductionColumnSumNode",
    "ReductionFeatureChannelsArgumentMaxNode",
    "ReductionFeatureChannelsArgumentMinNode",
    "ReductionFeatureChannelsMaxNode",
    "ReductionFeatureChannelsMeanNode",
    "ReductionFeatureChannelsMinNode",
    "ReductionFeatureChannelsSumNode",
    "ReductionRowMaxNode",
    "ReductionRowMeanNode",
    "ReductionRowMinNode",
    "ReductionRowSumNode",
    "ReductionSpatialMeanGradientNode",
    "ReductionSpatialMeanNode",
    "UnaryReductionNode",
]


class UnaryReductionNode(FilterNode):
    """Base class of all reductions (``MPSNNUnaryReductionNode``).

    Only the spatial mean has a gradient.

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional

    Attributes
    ----------
    clip_rect_source : Region
        Part of the source that counts; all of it at first.
    """

    _abstract = True

    clip_rect_source: Region

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        self.clip_rect_source = NO_CLIP

    def _kernel_settings(self) -> dict[str, Any]:
        return {"clip_rect_source": self.clip_rect_source}


class ReductionRowMinNode(UnaryReductionNode):
    """Least value of each row (``MPSNNReductionRowMinNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceRowMin


class ReductionRowMaxNode(UnaryReductionNode):
    """Greatest value of each row (``MPSNNReductionRowMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceRowMax


class ReductionRowMeanNode(UnaryReductionNode):
    """Mean of each row (``MPSNNReductionRowMeanNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceRowMean


class ReductionRowSumNode(UnaryReductionNode):
    """Sum of each row (``MPSNNReductionRowSumNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceRowSum


class ReductionColumnMinNode(UnaryReductionNode):
    """Least value of each column (``MPSNNReductionColumnMinNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceColumnMin


class ReductionColumnMaxNode(UnaryReductionNode):
    """Greatest value of each column (``MPSNNReductionColumnMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceColumnMax


class ReductionColumnMeanNode(UnaryReductionNode):
    """Mean of each column (``MPSNNReductionColumnMeanNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceColumnMean


class ReductionColumnSumNode(UnaryReductionNode):
    """Sum of each column (``MPSNNReductionColumnSumNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceColumnSum


class _FeatureChannelsReductionNode(UnaryReductionNode):
    _mixes_channels = True


class ReductionFeatureChannelsMinNode(_FeatureChannelsReductionNode):
    """Least channel of each pixel (``MPSNNReductionFeatureChannelsMinNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsMin


class ReductionFeatureChannelsMaxNode(_FeatureChannelsReductionNode):
    """Greatest channel of each pixel (``MPSNNReductionFeatureChannelsMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsMax


class ReductionFeatureChannelsMeanNode(_FeatureChannelsReductionNode):
    """Mean of the channels of each pixel (``MPSNNReductionFeatureChannelsMeanNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsMean


class ReductionFeatureChannelsSumNode(_FeatureChannelsReductionNode):
    """Sum of the channels of each pixel (``MPSNNReductionFeatureChannelsSumNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional

    Attributes
    ----------
    weight : float
        Factor of the sum, 1 at first.
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsSum

    weight: float

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__(source, label=label)
        self.weight = 1.0

    def _kernel_settings(self) -> dict[str, Any]:
        return {**super()._kernel_settings(), "weight": self.weight}


class ReductionFeatureChannelsArgumentMinNode(_FeatureChannelsReductionNode):
    """Which channel is least (``MPSNNReductionFeatureChannelsArgumentMinNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsArgumentMin


class ReductionFeatureChannelsArgumentMaxNode(_FeatureChannelsReductionNode):
    """Which channel is greatest (``MPSNNReductionFeatureChannelsArgumentMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = reduction.ReduceFeatureChannelsArgumentMax


class ReductionSpatialMeanNode(UnaryReductionNode):
    """Mean over width and height, of each channel (``MPSNNReductionSpatialMeanNode``).

    A part of the source, by `clip_rect_source`, is not supported.

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _state_node = GradientStateNode
    _keeps_channels = True

    def _compile(self, to: Compiler) -> None:
        if self.clip_rect_source != NO_CLIP:
            raise UnsupportedError(
                f"{self._name()}: clip_rect_source must be NO_CLIP, got {self.clip_rect_source!r}"
            )
        to.graph._add_spatial_mean(
            self._name(),
            to.image(self._sources[0]),
            to.image(self.result_image),
            to.state(self._state),
        )


class ReductionSpatialMeanGradientNode(GradientFilterNode):
    """Gradient of the spatial mean (``MPSNNReductionSpatialMeanGradientNode``).

    Every pixel gets the incoming gradient over the number of pixels.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    """

    def _compile(self, to: Compiler) -> None:
        to.graph._add_spatial_mean_gradient(
            self._name(),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.state(self._forward._state),
            to.image(self.result_image),
        )


ReductionSpatialMeanNode._gradient_node = ReductionSpatialMeanGradientNode
