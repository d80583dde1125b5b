"""Nodes of losses: those whose result is the gradient, and those whose result is the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import _core, loss
from mpsgrad.graph.nodes import (
    FilterNode,
    GradientFilterNode,
    GradientStateNode,
    ImageNode,
    StateNode,
    image_argument,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "ForwardLossNode",
    "InitialGradientNode",
    "LabelsNode",
    "LossGradientNode",
    "LossNode",
    "YOLOLossNode",
]


class LabelsNode(StateNode):
    """Input of a graph for `LossLabels`, one an image (``MPSNNLabelsNode``).

    Made by a loss node, whose `LossNode.input_labels` it is. After the work has completed the
    labels hold the loss.
    """


def _descriptor_argument(owner: str, descriptor: Any) -> Any:
    if not isinstance(descriptor, _core.LossDescriptor):
        raise TypeError(
            f"{owner}: loss_descriptor must be a LossDescriptor, got {type(descriptor).__name__}"
        )
    return loss._copied(descriptor)


class SelfGradientNode(FilterNode):
    """Base class of loss nodes whose result is the gradient with respect to their source."""

    _abstract = True

    def __init__(self, source: Any, loss_descriptor: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        self._descriptor = loss_descriptor
        self._labels = LabelsNode._make(self)

    @property
    def input_labels(self) -> LabelsNode:
        """`LabelsNode` through which a graph gets the labels."""
        return self._labels

    @property
    def loss_descriptor(self) -> Any:
        """What the node was made with; a copy."""
        return self._descriptor.copy()

    def _require_gradients(self, method: str) -> None:
        raise TypeError(
            f"{self._name()}: {method} is not available, its result already is the gradient"
        )

    def _source_states(self) -> list[StateNode]:
        return [self._labels]

    def _updates_weights(self) -> bool:
        return True  # it writes the loss into the labels

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"descriptor": self._descriptor}

    def _compile(self, to: Compiler) -> None:
        to.graph._add_loss(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.state(self._labels),
            to.image(self.result_image),
        )


class LossNode(SelfGradientNode):
    """A loss whose result is its gradient (``MPSCNNLossNode``), of `mpsgrad.Loss`.

    The gradient is with respect to the source, of its size, and without the divisor of a mean. The
    loss itself is left in the labels: synchronize them before the commit, read ``loss_image`` after
    completion.

    Parameters
    ----------
    source : ImageNode or FilterNode
        Predictions.
    loss_descriptor : LossDescriptor
        Copied.
    label : str, optional

    Raises
    ------
    TypeError
        If an argument is of another class.
    """

    _kernel: ClassVar[Any] = loss.Loss

    def __init__(self, source: Any, loss_descriptor: Any, *, label: str | None = None) -> None:
        super().__init__(source, _descriptor_argument("LossNode", loss_descriptor), label=label)


class YOLOLossNode(SelfGradientNode):
    """The loss of object detection (``MPSCNNYOLOLossNode``), of `mpsgrad.YOLOLoss`.

    As `LossNode`.

    Parameters
    ----------
    source : ImageNode or FilterNode
        Predictions: for each box x, y, width, height, confidence and classes.
    loss_descriptor : YOLOLossDescriptor
        Copied.
    label : str, optional

    Raises
    ------
    TypeError
        If an argument is of another class.
    """

    _kernel: ClassVar[Any] = loss.YOLOLoss

    def __init__(self, source: Any, loss_descriptor: Any, *, label: str | None = None) -> None:
        if not isinstance(loss_descriptor, loss.YOLOLossDescriptor):
            raise TypeError(
                "YOLOLossNode: loss_descriptor must be a YOLOLossDescriptor, got "
                f"{type(loss_descriptor).__name__}"
            )
        super().__init__(source, loss_descriptor.copy(), label=label)


_FIELDS = (
    "loss_type",
    "reduction_type",
    "reduce_across_batch",
    "weight",
    "label_smoothing",
    "number_of_classes",
    "epsilon",
    "delta",
)


class _SeparateLoss(FilterNode):
    """What the loss and its gradient, as nodes of their own, share: the descriptor's fields."""

    _abstract = True
    _descriptor: Any

    if TYPE_CHECKING:
        loss_type: Any
        reduction_type: Any
        reduce_across_batch: bool
        weight: float
        label_smoothing: float
        number_of_classes: int
        epsilon: float
        delta: float
    else:

        def __getattr__(self, name: str) -> Any:
            if name in _FIELDS:
                return getattr(self._descriptor, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"descriptor": self._descriptor}


class ForwardLossNode(_SeparateLoss):
    """A loss whose result is its value (``MPSNNForwardLossNode``), of `mpsgrad.ForwardLoss`.

    Labels and weights are images, which the graph may compute. The result is 1x1x1 where the loss
    is reduced. Use an `InitialGradientNode` after the total of all losses to begin the gradients.

    Parameters
    ----------
    source : ImageNode or FilterNode
        Predictions.
    labels : ImageNode or FilterNode
        Of the predictions' size.
    weights : ImageNode or FilterNode, optional
        One factor for each element; never differentiated.
    loss_descriptor : LossDescriptor
        Copied; its fields are attributes.
    label : str, optional

    Raises
    ------
    TypeError
        If an argument is of another class.
    """

    _kernel: ClassVar[Any] = loss.ForwardLoss
    _state_node = GradientStateNode

    def __init__(
        self,
        source: Any,
        labels: Any,
        weights: Any = None,
        *,
        loss_descriptor: Any,
        label: str | None = None,
    ) -> None:
        self._descriptor = _descriptor_argument("ForwardLossNode", loss_descriptor)
        images = [source, labels] if weights is None else [source, labels, weights]
        super().__init__(images, label=label, names=("source", "labels", "weights"))

    @classmethod
    def with_sources(
        cls, sources: Sequence[Any], *, loss_descriptor: Any, label: str | None = None
    ) -> ForwardLossNode:
        """Return the node of [predictions, labels] or [predictions, labels, weights].

        Raises
        ------
        ValueError
            If there are not two or three.
        """
        if len(sources) not in (2, 3):
            raise ValueError(
                f"{cls.__name__}: sources must be predictions, labels and perhaps weights, got "
                f"{len(sources)} nodes"
            )
        return cls(*sources, loss_descriptor=loss_descriptor, label=label)

    def _differentiated(self) -> list[ImageNode]:
        return self._sources[:2]

    def gradient_filter(self, source: Any) -> GradientFilterNode:
        """Return the gradient node of the predictions; `gradient_filters` returns both."""
        return self._gradient_nodes(self._gradient_source("gradient_filter", source))[0]

    def _gradient_nodes(self, gradient: ImageNode) -> list[GradientFilterNode]:
        return [
            LossGradientNode._of(self, gradient, _by_labels=by_labels)
            for by_labels in (False, True)
        ]

    def _compile(self, to: Compiler) -> None:
        to.graph._add_forward_loss(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.image(self._sources[2]) if len(self._sources) == 3 else -1,
            to.image(self.result_image),
            to.state(self._state),
        )


class LossGradientNode(_SeparateLoss, GradientFilterNode):
    """One gradient of `ForwardLossNode` (``MPSNNLossGradientNode``), of `mpsgrad.LossGradient`.

    Parameters
    ----------
    source_gradient : ImageNode
        Of the forward node's result.
    source_image, labels : ImageNode
        Those of the forward node.
    weights : ImageNode, optional
    gradient_state : GradientStateNode
    loss_descriptor : LossDescriptor, optional
        That of the forward node.
    is_labels_gradient_filter : bool, default False
        With respect to the labels instead of the predictions.
    label : str, optional
    """

    _kernel: ClassVar[Any] = loss.LossGradient
    _forward: ForwardLossNode
    _by_labels: bool

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        labels: Any,
        weights: Any = None,
        *,
        gradient_state: Any,
        loss_descriptor: Any = None,
        is_labels_gradient_filter: bool = False,
        label: str | None = None,
    ) -> None:
        self._by_labels = bool(is_labels_gradient_filter)
        GradientFilterNode.__init__(
            self, source_gradient, source_image, gradient_state, label=label
        )
        given = [labels] if weights is None else [labels, weights]
        images = [image_argument("LossGradientNode", "labels", image) for image in given]
        if images != self._sources[2:]:
            raise ValueError(
                f"LossGradientNode: labels and weights must be those of {self._forward._name()}"
            )
        if loss_descriptor is not None and loss_descriptor != self._descriptor:
            raise ValueError(
                f"LossGradientNode: loss_descriptor must be that of {self._forward._name()}, "
                f"{self._descriptor!r}, got {loss_descriptor!r}"
            )

    def _begin(self, forward: Any, gradient: ImageNode, label: str | None) -> None:
        self._descriptor = forward._descriptor
        super()._begin(forward, gradient, label)

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        return forward._sources

    def _place(self) -> int:
        return int(self._by_labels)

    @property
    def is_labels_gradient_filter(self) -> bool:
        """Whether the gradient is with respect to the labels."""
        return self._by_labels

    def _make_kernel(self, device: Any, **more: Any) -> Any:
        kernel = super()._make_kernel(device, **more)
        kernel.compute_label_gradients = self._by_labels
        return kernel

    def _compile(self, to: Compiler) -> None:
        to.graph._add_loss_gradient(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.image(self._sources[2]),
            to.image(self._sources[3]) if len(self._sources) == 4 else -1,
            to.state(self._forward._state),
            to.image(self.result_image),
        )


class InitialGradientNode(FilterNode):
    """Ones in the size of the source, to begin gradients with (``MPSNNInitialGradientNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
        The total loss, for most.
    label : str, optional
    """

    _kernel: ClassVar[Any] = loss.InitialGradient

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)

    def _require_gradients(self, method: str) -> None:
        raise TypeError(
            f"{self._name()}: {method} is not available, its result already is the gradient"
        )


ForwardLossNode._gradient_node = LossGradientNode
