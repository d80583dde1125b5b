"""Nodes that move elements, upsampling to concatenation, the Gram matrix, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import gram_matrix, reshape, upsampling
from mpsgrad._core import EdgeMode
from mpsgrad.errors import UnsupportedError
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode, ImageNode
from mpsgrad.neuron import Neuron, NeuronDescriptor, NeuronType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "ConcatenationGradientNode",
    "ConcatenationNode",
    "GramMatrixCalculationGradientNode",
    "GramMatrixCalculationNode",
    "PadGradientNode",
    "PadNode",
    "ReshapeGradientNode",
    "ReshapeNode",
    "UpsamplingBilinearGradientNode",
    "UpsamplingBilinearNode",
    "UpsamplingNearestGradientNode",
    "UpsamplingNearestNode",
]


class UpsamplingNearestNode(FilterNode):
    """Every pixel becomes a block of pixels (``MPSCNNUpsamplingNearestNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    integer_scale_factor_x, integer_scale_factor_y : int
    label : str, optional
    """

    _kernel: ClassVar[Any] = upsampling.UpsamplingNearest
    _state_node = GradientStateNode
    _keeps_channels = True

    def __init__(
        self,
        source: Any,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        self._factors = integer_scale_factor_x, integer_scale_factor_y

    @property
    def scale_factor_x(self) -> int:
        """How many columns a column becomes."""
        return self._factors[0]

    @property
    def scale_factor_y(self) -> int:
        """How many rows a row becomes."""
        return self._factors[1]

    def _kernel_arguments(self) -> dict[str, Any]:
        return {
            "integer_scale_factor_x": self._factors[0],
            "integer_scale_factor_y": self._factors[1],
        }


class UpsamplingBilinearNode(UpsamplingNearestNode):
    """Values between pixels, along straight lines (``MPSCNNUpsamplingBilinearNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    integer_scale_factor_x, integer_scale_factor_y : int
    align_corners : bool, default False
        The corner pixels keep their values.
    label : str, optional
    """

    _kernel: ClassVar[Any] = upsampling.UpsamplingBilinear

    def __init__(
        self,
        source: Any,
        integer_scale_factor_x: int,
        integer_scale_factor_y: int,
        align_corners: bool = False,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(source, integer_scale_factor_x, integer_scale_factor_y, label=label)
        self._align_corners = align_corners

    @property
    def align_corners(self) -> bool:
        """Whether the corner pixels keep their values."""
        return self._align_corners

    def _kernel_arguments(self) -> dict[str, Any]:
        return {**super()._kernel_arguments(), "align_corners": self._align_corners}


class UpsamplingNearestGradientNode(GradientFilterNode):
    """Gradient of `UpsamplingNearestNode` (``MPSCNNUpsamplingNearestGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    scale_factor_x, scale_factor_y : int, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = upsampling.UpsamplingNearestGradient
    _repeats = ("scale_factor_x", "scale_factor_y")

    def _kernel_arguments(self) -> dict[str, Any]:
        arguments = self._forward._kernel_arguments()
        arguments.pop("align_corners", None)  # the state tells
        return arguments


class UpsamplingBilinearGradientNode(UpsamplingNearestGradientNode):
    """Gradient of `UpsamplingBilinearNode` (``MPSCNNUpsamplingBilinearGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    scale_factor_x, scale_factor_y : int, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = upsampling.UpsamplingBilinearGradient


class ReshapeNode(FilterNode):
    """The same elements in another shape (``MPSNNReshapeNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
        With as many elements.
    result_width, result_height, result_feature_channels : int
    label : str, optional
    """

    _kernel: ClassVar[Any] = reshape.Reshape
    _state_node = GradientStateNode
    _mixes_channels = True

    def __init__(
        self,
        source: Any,
        result_width: int,
        result_height: int,
        result_feature_channels: int,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        self._shape = result_width, result_height, result_feature_channels

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """(width, height, feature channels)."""
        return self._shape

    def _result_channels(self, sources: Sequence[int | None], kernel: Any) -> int | None:  # noqa: ARG002
        return self._shape[2]

    def _describe(self) -> dict[str, Any]:
        names = "result_width", "result_height", "result_feature_channels"
        return dict(zip(names, self._shape, strict=True))

    def _compile(self, to: Compiler) -> None:
        to.graph._add_reshape(
            self._name(),
            to.kernel(self),
            *self._shape,
            to.image(self._sources[0]),
            to.image(self.result_image),
            to.state(self._state),
        )


class ReshapeGradientNode(GradientFilterNode):
    """Gradient of `ReshapeNode` (``MPSNNReshapeGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    """

    _kernel: ClassVar[Any] = reshape.ReshapeGradient


class PadNode(FilterNode):
    """An image with a border (``MPSNNPadNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    padding_size_before, padding_size_after : (x, y, channel)
    edge_mode : EdgeMode, default ZERO
        What is in the border.
    fill_value : float, default 0.0
        For CONSTANT; can be set.
    label : str, optional
    """

    _kernel: ClassVar[Any] = reshape.Pad
    _state_node = GradientStateNode

    fill_value: float

    def __init__(
        self,
        source: Any,
        padding_size_before: Sequence[int],
        padding_size_after: Sequence[int],
        edge_mode: EdgeMode = EdgeMode.ZERO,
        fill_value: float = 0.0,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        self._sizes = tuple(padding_size_before), tuple(padding_size_after)
        self._edge_mode = edge_mode
        self.fill_value = fill_value

    @property
    def padding_size_before(self) -> tuple[int, ...]:
        """(x, y, channel)."""
        return self._sizes[0]

    @property
    def padding_size_after(self) -> tuple[int, ...]:
        """(x, y, channel)."""
        return self._sizes[1]

    @property
    def edge_mode(self) -> EdgeMode:
        """What is in the border."""
        return self._edge_mode

    def _kernel_arguments(self) -> dict[str, Any]:
        return {
            "padding_size_before": self.padding_size_before,
            "padding_size_after": self.padding_size_after,
        }

    def _kernel_settings(self) -> dict[str, Any]:
        return {"edge_mode": self._edge_mode, "fill_value": self.fill_value}

    def _describe(self) -> dict[str, Any]:
        return {**self._kernel_arguments(), "edge_mode": self._edge_mode.name}


class PadGradientNode(GradientFilterNode):
    """Gradient of `PadNode` (``MPSNNPadGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    """

    _kernel: ClassVar[Any] = reshape.PadGradient

    def _kernel_arguments(self) -> dict[str, Any]:
        return {}


class GramMatrixCalculationNode(FilterNode):
    """Products of all pairs of channels, summed over pixels (``MPSNNGramMatrixCalculationNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    alpha : float, default 1.0
        Scale of the result.
    label : str, optional
    """

    _kernel: ClassVar[Any] = gram_matrix.GramMatrixCalculation
    _state_node = GradientStateNode

    def __init__(self, source: Any, alpha: float = 1.0, *, label: str | None = None) -> None:
        super().__init__([source], label=label)
        self._alpha = alpha

    @property
    def alpha(self) -> float:
        """Scale of the result."""
        return self._alpha

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"alpha": self._alpha}


class GramMatrixCalculationGradientNode(GradientFilterNode):
    """Gradient of the Gram matrix (``MPSNNGramMatrixCalculationGradientNode``).

    Its alpha is the one that the forward node was encoded with.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    alpha : float, optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = gram_matrix.GramMatrixCalculationGradient
    _repeats = ("alpha",)


def _copy(device: Any) -> Any:
    """Make a kernel that leaves values as they are."""
    return Neuron(NeuronDescriptor(NeuronType.NONE), device=device)


class ConcatenationNode(FilterNode):
    """Feature channels of several images, one after the other (``MPSNNConcatenationNode``).

    Each source begins at a multiple of four channels, as Apple's images are laid out: 7 and 11
    channels become 20, of which 7 and 19 are 0. What reads the result has to count with that.

    Parameters
    ----------
    sources : sequence of ImageNode or FilterNode
        At least one, all of one width and height.
    label : str, optional

    Raises
    ------
    ValueError
        If there are no sources.
    """

    _state_node = GradientStateNode

    def __init__(self, sources: Sequence[Any], *, label: str | None = None) -> None:
        if isinstance(sources, (ImageNode, FilterNode)):
            raise TypeError("ConcatenationNode: sources must be a list of nodes, got one node")
        if len(sources) == 0:
            raise ValueError("ConcatenationNode: sources must hold at least one node, got none")
        super().__init__(sources, label=label, names=("sources",))

    def _differentiated(self) -> list[ImageNode]:
        return self._sources

    def gradient_filter(self, source: Any) -> GradientFilterNode:  # noqa: ARG002
        """Raise TypeError: there is a gradient node for each source, from `gradient_filters`."""
        raise TypeError(
            f"{self._name()} has {len(self._sources)} gradient nodes, one a source; use "
            "gradient_filters"
        )

    def _gradient_nodes(self, gradient: ImageNode) -> list[GradientFilterNode]:
        return [
            ConcatenationGradientNode._of(self, gradient, _position=position)
            for position in range(len(self._sources))
        ]

    def _describe(self) -> dict[str, Any]:
        return {"sources": f"<{len(self._sources)} images>"}

    def _result_channels(self, sources: Sequence[int | None], kernel: Any) -> int | None:  # noqa: ARG002
        slices = [None if source is None else (source + 3) // 4 for source in sources]
        return None if None in slices else 4 * sum(slices)  # type: ignore[arg-type]

    def _compile(self, to: Compiler) -> None:
        if to.plan.is_exported(self._state):
            raise UnsupportedError(
                f"{self._name()}: its state cannot be exported, it only tells the gradient nodes "
                "of this graph where each source begins"
            )
        to.graph._add_concatenation(
            self._name(),
            [_copy(to.device) for _ in self._sources],
            [to.image(source) for source in self._sources],
            to.image(self.result_image),
            to.state(self._state),
        )


class ConcatenationGradientNode(GradientFilterNode):
    """The channels of one source of a concatenation (``MPSNNConcatenationGradientNode``).

    Parameters
    ----------
    source_gradient : ImageNode
    source_image : ImageNode
        Which source; where it is there several times, the first.
    gradient_state : GradientStateNode
    label : str, optional
    """

    _position: int

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        gradient_state: Any,
        *,
        label: str | None = None,
    ) -> None:
        forward = getattr(gradient_state, "_producer", None)
        image = source_image.result_image if isinstance(source_image, FilterNode) else source_image
        sources = getattr(forward, "_sources", [])
        self._position = sources.index(image) if image in sources else 0
        super().__init__(source_gradient, source_image, gradient_state, label=label)

    def _place(self) -> int:
        return self._position

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        return [forward._sources[self._position]]

    def _compile(self, to: Compiler) -> None:
        to.graph._add_concatenation_gradient(
            self._name(),
            _copy(to.device),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            self._position,
            to.state(self._forward._state),
            to.image(self.result_image),
        )


UpsamplingNearestNode._gradient_node = UpsamplingNearestGradientNode
UpsamplingBilinearNode._gradient_node = UpsamplingBilinearGradientNode
ReshapeNode._gradient_node = ReshapeGradientNode
PadNode._gradient_node = PadGradientNode
GramMatrixCalculationNode._gradient_node = GramMatrixCalculationGradientNode
ConcatenationNode._gradient_node = ConcatenationGradientNode
