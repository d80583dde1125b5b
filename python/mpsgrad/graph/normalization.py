"""Nodes of batch, instance and group normalization, which have weights, and their gradients."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import batch_normalization, group_normalization
from mpsgrad.errors import GraphError
from mpsgrad.graph.nodes import (
    GradientFilterNode,
    GradientStateNode,
    ImageNode,
    TrainableNode,
    TrainingStyle,
)

if TYPE_CHECKING:
    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "BatchNormalizationFlags",
    "BatchNormalizationGradientNode",
    "BatchNormalizationNode",
    "GroupNormalizationGradientNode",
    "GroupNormalizationNode",
    "InstanceNormalizationGradientNode",
    "InstanceNormalizationNode",
]


class BatchNormalizationFlags(IntFlag):
    """Whether a batch's own statistics are computed (``MPSCNNBatchNormalizationFlags``)."""

    DEFAULT = 0
    CALCULATE_STATISTICS_AUTOMATIC = 0
    """If a node of the compiled graph uses the state, as a gradient does, or it is exported."""
    CALCULATE_STATISTICS_ALWAYS = 1
    CALCULATE_STATISTICS_NEVER = 2
    """The data source's mean and variance serve."""


class _Trained(TrainableNode):
    """A normalization by numbers of a data source."""

    _abstract = True
    _state_node = GradientStateNode
    _keeps_channels = True

    def __init__(self, source: Any, data_source: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        if not hasattr(data_source, "number_of_feature_channels"):
            raise TypeError(
                f"{type(self).__name__}: data_source must be a normalization's data source, a "
                f"{type(data_source).__name__} has no number_of_feature_channels"
            )
        self._data_source = data_source

    @property
    def data_source(self) -> Any:
        """Where gamma, beta and the rest come from."""
        return self._data_source

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"data_source": self._data_source}


class BatchNormalizationNode(_Trained):
    """Normalization over a batch (``MPSCNNBatchNormalizationNode``).

    In a graph with its gradient node it computes the batch's statistics, in any other it uses the
    data source's: so the same code builds both graphs.

    Parameters
    ----------
    source : ImageNode or FilterNode
    data_source : BatchNormalizationDataSource
    label : str, optional

    Attributes
    ----------
    flags : BatchNormalizationFlags
        DEFAULT at first.
    training_style : TrainingStyle
        GPU by default; copied to the gradient node when that is made.
    """

    _kernel: ClassVar[Any] = batch_normalization.BatchNormalization
    _flags = BatchNormalizationFlags.DEFAULT

    @property
    def flags(self) -> BatchNormalizationFlags:
        """Whether the batch's statistics are computed."""
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        if flags not in (0, 1, 2):
            raise ValueError(
                f"{self._name()}: flags must be one of BatchNormalizationFlags, got {flags!r}"
            )
        self._flags = BatchNormalizationFlags(flags)

    def _compile(self, to: Compiler) -> None:
        flags = BatchNormalizationFlags
        used = to.plan.is_used(self._state)
        if used and self._flags == flags.CALCULATE_STATISTICS_NEVER:
            raise GraphError(
                f"{self._name()}: its state is used, but flags are CALCULATE_STATISTICS_NEVER, so "
                "there will be none to use"
            )
        if not used and self._flags != flags.CALCULATE_STATISTICS_ALWAYS:
            super()._compile(to)
            return
        to.graph._add_batch_normalization(
            self._name(),
            to.kernel(self),
            batch_normalization.BatchNormalizationStatistics(device=to.device),
            to.image(self._sources[0]),
            to.image(self.result_image),
            to.state(self._state, always=True),
        )


class InstanceNormalizationNode(_Trained):
    """Normalization of each channel of each image (``MPSCNNInstanceNormalizationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    data_source : InstanceNormalizationDataSource
    label : str, optional
    """

    _kernel: ClassVar[Any] = group_normalization.InstanceNormalization


class GroupNormalizationNode(_Trained):
    """Normalization of groups of channels of each image (``MPSCNNGroupNormalizationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    data_source : GroupNormalizationDataSource
    label : str, optional
    """

    _kernel: ClassVar[Any] = group_normalization.GroupNormalization
    _mixes_channels = True


class _TrainedGradient(TrainableNode, GradientFilterNode):
    """A gradient that updates a data source."""

    _abstract = True
    _forward: _Trained

    def _begin(self, forward: Any, gradient: ImageNode, label: str | None) -> None:
        super()._begin(forward, gradient, label)
        self.training_style = forward.training_style

    @property
    def data_source(self) -> Any:
        """The forward node's."""
        return self._forward._data_source

    def _updates_weights(self) -> bool:
        return self.training_style != TrainingStyle.NONE

    def _kernel_arguments(self) -> dict[str, Any]:
        return {}

    def _compile(self, to: Compiler) -> None:
        super()._compile(to)
        to.add_update(self)


class BatchNormalizationGradientNode(_TrainedGradient):
    """Gradient of `BatchNormalizationNode` (``MPSCNNBatchNormalizationGradientNode``).

    Unless `training_style` is NONE the data source's ``update_gamma_and_beta(command_buffer,
    state)`` and ``update_mean_and_variance(command_buffer, state)`` are called after its kernels,
    or their ``_cpu`` forms once the command buffer has completed.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    gradient_state : GradientStateNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = batch_normalization.BatchNormalizationGradient

    def _compile(self, to: Compiler) -> None:
        statistics = batch_normalization.BatchNormalizationStatisticsGradient(
            **to.plan.fused_arguments(self), device=to.device
        )
        # On Metal the sums may be there only after the kernel whose result nobody reads.
        read = to.plan.is_read(self.result_image) or to.device.kind == "metal"
        to.graph._add_batch_normalization_gradient(
            self._name(),
            statistics,
            to.kernel(self) if read else None,
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.state(self._forward._state),
            to.image(self.result_image),
        )
        to.add_update(self)


class InstanceNormalizationGradientNode(_TrainedGradient):
    """Gradient of `InstanceNormalizationNode` (``MPSCNNInstanceNormalizationGradientNode``).

    The data source's ``update_gamma_and_beta(command_buffer, states)`` gets the states of all
    images, whose gradients it has to add up.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    gradient_state : GradientStateNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = group_normalization.InstanceNormalizationGradient


class GroupNormalizationGradientNode(_TrainedGradient):
    """Gradient of `GroupNormalizationNode` (``MPSCNNGroupNormalizationGradientNode``).

    As of `InstanceNormalizationGradientNode`.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    gradient_state : GradientStateNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = group_normalization.GroupNormalizationGradient


BatchNormalizationNode._gradient_node = BatchNormalizationGradientNode
InstanceNormalizationNode._gradient_node = InstanceNormalizationGradientNode
GroupNormalizationNode._gradient_node = GroupNormalizationGradientNode
