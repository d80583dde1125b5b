"""Nodes of convolutions, plain, transposed and fully connected, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import convolution as kernels
from mpsgrad._array_source import ArraySource
from mpsgrad._core import ConvolutionAccumulatorPrecision
from mpsgrad.errors import GraphError
from mpsgrad.graph.nodes import (
    GradientFilterNode,
    GradientStateNode,
    ImageNode,
    StateNode,
    TrainableNode,
    TrainingStyle,
    image_argument,
)
from mpsgrad.neuron import NeuronType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "ConvolutionGradientNode",
    "ConvolutionGradientStateNode",
    "ConvolutionNode",
    "ConvolutionTransposeGradientNode",
    "ConvolutionTransposeGradientStateNode",
    "ConvolutionTransposeNode",
    "FullyConnectedGradientNode",
    "FullyConnectedNode",
]


class ConvolutionGradientStateNode(GradientStateNode):
    """Weight gradients of a convolution (``MPSCNNConvolutionGradientStateNode``).

    Given to a `ConvolutionTransposeNode` it makes the result the size of the convolution's source.
    """


class ConvolutionTransposeGradientStateNode(ConvolutionGradientStateNode):
    """The same of a transposed one (``MPSCNNConvolutionTransposeGradientStateNode``)."""


def _untrainable(descriptor: Any) -> str | None:
    if descriptor.fused_neuron_descriptor.neuron_type != NeuronType.NONE:
        return "a fused neuron, which must be a node of its own"
    if descriptor._batch_normalization is not None:
        return "batch normalization parameters, which must be a node of their own"
    if descriptor.sub_pixel_scale_factor != 1:
        return f"sub_pixel_scale_factor {descriptor.sub_pixel_scale_factor}"
    return None


def _descriptor_of(node: ConvolutionNode) -> Any:
    """Return the descriptor of the weights, which are loaded for it unless they are arrays.

    Those are always there, and loading them would wait for their last update.
    """
    source = node._weights
    if getattr(type(source), "load", None) is ArraySource.load:
        return source.descriptor()
    loaded = source.load()
    if not loaded:
        raise GraphError(
            f"{node._name()}: load() of {type(source).__name__} must return True, got {loaded!r}"
        )
    try:
        return source.descriptor()
    finally:
        source.purge()


def _require_trainable(node: ConvolutionNode) -> None:
    problem = _untrainable(_descriptor_of(node))
    if problem is not None:
        raise GraphError(f"{node._name()}: its descriptor has {problem}, so it has no gradient")


class ConvolutionNode(TrainableNode):
    """Convolution (``MPSCNNConvolutionNode``), of `mpsgrad.Convolution`.

    Parameters
    ----------
    source : ImageNode or FilterNode
        What is convolved; of a filter node its result.
    weights : ConvolutionDataSource
        Read when a graph is made, by each graph for itself, and when one reloads; the descriptor
        also when a gradient node is made.
    label : str, optional
        Overrides the data source's.

    Attributes
    ----------
    training_style : TrainingStyle
        GPU by default; copied to the gradient node when that is made.
    accumulator_precision : ConvolutionAccumulatorPrecision
        FLOAT by default.

    Raises
    ------
    TypeError
        If the source is not a node, or the weights are no data source.
    """

    _kernel: ClassVar[Any] = kernels.Convolution
    _state_node = ConvolutionGradientStateNode

    def __init__(self, source: Any, weights: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        self._take_weights(weights)

    accumulator_precision: ConvolutionAccumulatorPrecision

    def _take_weights(self, weights: Any) -> None:
        if isinstance(weights, type):
            raise TypeError(
                f"{type(self).__name__}: weights must be a ConvolutionDataSource, got the class "
                f"{weights.__name__}"
            )
        for method in ("load", "purge", "descriptor", "weights", "bias_terms"):
            if not hasattr(weights, method):
                raise TypeError(
                    f"{type(self).__name__}: weights must be a ConvolutionDataSource, for one an "
                    f"ArrayConvolutionDataSource of an array: {type(weights).__name__} has no "
                    f"{method}()"
                )
        self._weights = weights
        self.accumulator_precision = ConvolutionAccumulatorPrecision.FLOAT

    @property
    def weights(self) -> Any:
        """The data source."""
        return self._weights

    @property
    def convolution_gradient_state(self) -> StateNode | None:
        """`result_state`, under the name that a transposed convolution asks for."""
        return self._state

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"weights": self._weights}

    def _result_channels(self, sources: Sequence[int | None], kernel: Any) -> int | None:  # noqa: ARG002
        descriptor = kernel.descriptor
        scale: int = descriptor.sub_pixel_scale_factor
        channels: int = descriptor.output_feature_channels
        return channels // (scale * scale)

    def _kernel_settings(self) -> dict[str, Any]:
        return {"accumulator_precision": self.accumulator_precision}


class FullyConnectedNode(ConvolutionNode):
    """Fully connected layer (``MPSCNNFullyConnectedNode``), of `mpsgrad.FullyConnected`.

    Parameters
    ----------
    source : ImageNode or FilterNode
        Of exactly the size of the window; the result is 1x1.
    weights : ConvolutionDataSource
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.FullyConnected


class ConvolutionTransposeNode(ConvolutionNode):
    """Transposed convolution (``MPSCNNConvolutionTransposeNode``), of `ConvolutionTranspose`.

    Parameters
    ----------
    source : ImageNode or FilterNode
    weights : ConvolutionDataSource
    convolution_gradient_state : ConvolutionGradientStateNode, optional
        Of the convolution to undo, whose source gives the result its size.
    label : str, optional

    Raises
    ------
    TypeError
        If ``convolution_gradient_state`` is another kind of node.
    """

    _kernel: ClassVar[Any] = kernels.ConvolutionTranspose
    _state_node = ConvolutionTransposeGradientStateNode

    def __init__(
        self,
        source: Any,
        weights: Any,
        convolution_gradient_state: ConvolutionGradientStateNode | None = None,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source, weights, label=label)
        if not (
            convolution_gradient_state is None
            or isinstance(convolution_gradient_state, ConvolutionGradientStateNode)
        ):
            raise TypeError(
                f"{type(self).__name__}: convolution_gradient_state must be a "
                f"ConvolutionGradientStateNode, got {type(convolution_gradient_state).__name__}"
            )
        self._undone = convolution_gradient_state

    @property
    def convolution_gradient_state(self) -> StateNode | None:
        """Not there: a transposed convolution is not undone by another."""
        raise AttributeError("ConvolutionTransposeNode has no convolution_gradient_state")

    def _source_states(self) -> list[StateNode]:
        return [] if self._undone is None else [self._undone]

    def _compile(self, to: Compiler) -> None:
        if self._undone is None:
            super()._compile(to)
            return
        to.graph._add_transpose(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.state(self._undone),
            to.image(self.result_image),
            to.state(self._state),
        )


class ConvolutionGradientNode(TrainableNode, GradientFilterNode):
    """Gradient of `ConvolutionNode` (``MPSCNNConvolutionGradientNode``).

    The weights are updated right after its kernel, unless `training_style` is NONE: by the data
    source's ``update(command_buffer, gradient_state, source_state)`` or, for CPU, ``update_cpu(
    gradient_state, source_state)`` once the command buffer has completed.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    convolution_gradient_state : ConvolutionGradientStateNode
    weights : ConvolutionDataSource, optional
        The forward node's.
    label : str, optional

    Raises
    ------
    ValueError
        If ``weights`` is another data source than the forward node's.
    GraphError
        If the forward node cannot be trained, or its data source refuses to load.
    """

    _kernel: ClassVar[Any] = kernels.ConvolutionGradient
    _forward: ConvolutionNode

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        convolution_gradient_state: Any,
        weights: Any = None,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source_gradient, source_image, convolution_gradient_state, label=label)
        if weights is not None and weights is not self._forward._weights:
            raise ValueError(
                f"{type(self).__name__}: weights must be None or the data source of "
                f"{self._forward._name()}"
            )

    def _begin(self, forward: Any, gradient: ImageNode, label: str | None) -> None:
        _require_trainable(forward)
        super()._begin(forward, gradient, label)
        self.training_style = forward.training_style

    @property
    def weights(self) -> Any:
        """The data source."""
        return self._forward._weights

    def _updates_weights(self) -> bool:
        return self.training_style != TrainingStyle.NONE

    def _make_kernel(self, device: Any, **more: Any) -> Any:
        kernel = super()._make_kernel(device, **more)
        kernel.gradient_option = kernels.ConvolutionGradientOption.ALL
        # A kernel by itself would read the forward kernel's data source at its first encode.
        kernel._keep_weights()
        return kernel

    def _compile(self, to: Compiler) -> None:
        kernel = to.kernel(self)
        option = kernels.ConvolutionGradientOption
        if not to.plan.is_read(self.result_image):
            kernel.gradient_option = option.WEIGHTS_AND_BIAS
        elif not self._updates_weights() and not to.plan.is_exported(self._forward._state):
            kernel.gradient_option = option.DATA
        super()._compile(to)
        to.add_update(self)


class FullyConnectedGradientNode(ConvolutionGradientNode):
    """Gradient of `FullyConnectedNode` (``MPSCNNFullyConnectedGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    convolution_gradient_state : ConvolutionGradientStateNode
    weights : ConvolutionDataSource, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.FullyConnectedGradient


class ConvolutionTransposeGradientNode(ConvolutionGradientNode):
    """Gradient of `ConvolutionTransposeNode` (``MPSCNNConvolutionTransposeGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
    convolution_transpose_gradient_state : ConvolutionTransposeGradientStateNode
    weights : ConvolutionDataSource, optional
    label : str, optional
    """

    _kernel: ClassVar[Any] = kernels.ConvolutionTransposeGradient

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        convolution_transpose_gradient_state: Any,
        weights: Any = None,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(
            source_gradient,
            image_argument(type(self).__name__, "source_image", source_image),
            convolution_transpose_gradient_state,
            weights,
            label=label,
        )


ConvolutionNode._gradient_node = ConvolutionGradientNode
FullyConnectedNode._gradient_node = FullyConnectedGradientNode
ConvolutionTransposeNode._gradient_node = ConvolutionTransposeGradientNode
