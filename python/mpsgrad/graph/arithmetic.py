"""Nodes of sums, differences, products, quotients and comparisons, and their gradients.

A gradient node takes scales, strides and limits from its forward node when the graph is made; its
result is the true derivative, where the forward result was not limited.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mpsgrad import arithmetic
from mpsgrad._core import ComparisonType
from mpsgrad.graph.nodes import (
    BinaryGradientStateNode,
    FilterNode,
    GradientFilterNode,
    ImageNode,
)

if TYPE_CHECKING:
    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "AdditionGradientNode",
    "AdditionNode",
    "ArithmeticGradientNode",
    "ArithmeticGradientStateNode",
    "BinaryArithmeticNode",
    "ComparisonNode",
    "DivisionNode",
    "MultiplicationGradientNode",
    "MultiplicationNode",
    "SubtractionGradientNode",
    "SubtractionNode",
]

_LIMIT = float(np.finfo(np.float32).max)
_STRIDES = tuple(
    f"{source}_stride_in_{axis}"
    for source in ("primary", "secondary")
    for axis in ("pixels_x", "pixels_y", "feature_channels")
)


class ArithmeticGradientStateNode(BinaryGradientStateNode):
    """Shared by both gradients of one operation (``MPSNNArithmeticGradientStateNode``)."""


class BinaryArithmeticNode(FilterNode):
    """Base class of operations on two images (``MPSNNBinaryArithmeticNode``).

    Attributes
    ----------
    primary_scale, secondary_scale : float
        Factors of the sources, 1 at first.
    bias : float
        Added to the result, 0 at first.
    minimum_value, maximum_value : float
        Limits of the result.
    primary_stride_in_pixels_x, primary_stride_in_pixels_y, primary_stride_in_feature_channels : int
        1, or 0 where the source has one element along that axis for all of the result's; likewise
        ``secondary_...``.
    """

    _abstract = True
    _state_node: ClassVar[Any] = ArithmeticGradientStateNode
    _numbers: ClassVar[tuple[str, ...]] = (
        "primary_scale",
        "secondary_scale",
        "bias",
        "minimum_value",
        "maximum_value",
        *_STRIDES,
    )
    primary_stride_in_pixels_x: int
    primary_stride_in_pixels_y: int
    primary_stride_in_feature_channels: int
    secondary_stride_in_pixels_x: int
    secondary_stride_in_pixels_y: int
    secondary_stride_in_feature_channels: int
    primary_scale: float
    secondary_scale: float
    bias: float
    minimum_value: float
    maximum_value: float

    def __init__(self, left_source: Any, right_source: Any, *, label: str | None = None) -> None:
        super().__init__(
            [left_source, right_source], label=label, names=("left_source", "right_source")
        )
        self.primary_scale = 1.0
        self.secondary_scale = 1.0
        self.bias = 0.0
        self.minimum_value = -_LIMIT
        self.maximum_value = _LIMIT
        for name in _STRIDES:
            setattr(self, name, 1)

    @classmethod
    def with_sources(cls, sources: Any, *, label: str | None = None) -> BinaryArithmeticNode:
        """Return the node of a list of two sources (``nodeWithSources:``).

        Raises
        ------
        ValueError
            If there are not two.
        """
        sources = list(sources)
        if len(sources) != 2:
            raise ValueError(f"{cls.__name__}: sources must be two nodes, got {len(sources)}")
        return cls(*sources, label=label)

    @property
    def gradient_class(self) -> type[GradientFilterNode] | None:
        """The class of the gradient nodes, or None (``gradientClass``)."""
        return self._gradient_node

    def _kernel_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._numbers}

    def _describe(self) -> dict[str, Any]:
        usual = {"primary_scale": 1.0, "secondary_scale": 1.0, "bias": 0.0}
        usual |= {"minimum_value": -_LIMIT, "maximum_value": _LIMIT}
        return {
            name: value
            for name, value in self._kernel_settings().items()
            if value != usual.get(name, 1)
        }

    def _compile(self, to: Compiler) -> None:
        to.graph._add_binary(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.image(self.result_image),
            to.state(self._state),
        )

    def _differentiated(self) -> list[ImageNode]:
        return self._sources

    def gradient_filter(self, source: Any) -> GradientFilterNode:
        """Raise TypeError: there are two gradient nodes, from `gradient_filters`."""
        self._require_gradients("gradient_filter")
        return super().gradient_filter(source)

    def _gradient_nodes(self, gradient: ImageNode) -> list[GradientFilterNode]:
        assert self._gradient_node is not None
        return [
            self._gradient_node._of(self, gradient, _secondary=secondary)
            for secondary in (False, True)
        ]

    def _is_unlimited(self) -> bool:
        return self.minimum_value <= -_LIMIT and self.maximum_value >= _LIMIT


class AdditionNode(BinaryArithmeticNode):
    """Sum of two images (``MPSNNAdditionNode``).

    Parameters
    ----------
    left_source, right_source : ImageNode or FilterNode
        Primary and secondary.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.Add


class SubtractionNode(BinaryArithmeticNode):
    """Left minus right (``MPSNNSubtractionNode``).

    Parameters
    ----------
    left_source, right_source : ImageNode or FilterNode
        Primary and secondary.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.Subtract


class MultiplicationNode(BinaryArithmeticNode):
    """Product, element by element (``MPSNNMultiplicationNode``).

    Parameters
    ----------
    left_source, right_source : ImageNode or FilterNode
        Primary and secondary.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.Multiply


class DivisionNode(BinaryArithmeticNode):
    """Left over right (``MPSNNDivisionNode``); without a gradient.

    Parameters
    ----------
    left_source, right_source : ImageNode or FilterNode
        Primary and secondary.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.Divide
    _state_node = None


class ComparisonNode(BinaryArithmeticNode):
    """1 where the comparison holds, else 0 (``MPSNNComparisonNode``); without a gradient.

    Parameters
    ----------
    left_source, right_source : ImageNode or FilterNode
        Primary and secondary.
    comparison_type : ComparisonType, default EQUAL
        Can be set.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.Compare
    _state_node = None

    comparison_type: ComparisonType

    def __init__(
        self,
        left_source: Any,
        right_source: Any,
        comparison_type: ComparisonType = ComparisonType.EQUAL,
        *,
        label: str | None = None,
    ) -> None:
        super().__init__(left_source, right_source, label=label)
        self.comparison_type = comparison_type

    def _kernel_settings(self) -> dict[str, Any]:
        return {**super()._kernel_settings(), "comparison_type": self.comparison_type}

    def _describe(self) -> dict[str, Any]:
        return {"comparison_type": self.comparison_type.name}


class ArithmeticGradientNode(GradientFilterNode):
    """Base class of the gradients of these operations (``MPSNNArithmeticGradientNode``).

    Parameters
    ----------
    source_gradient : ImageNode
    source_image : ImageNode
        For a product the other source; for sums and differences the one that the gradient is with
        respect to.
    gradient_state : ArithmeticGradientStateNode
    is_secondary_source_filter : bool
        With respect to the right source.
    label : str, optional
    """

    _abstract = True
    _forward: BinaryArithmeticNode
    _secondary: bool

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        gradient_state: Any,
        is_secondary_source_filter: bool,
        *,
        label: str | None = None,
    ) -> None:
        self._secondary = bool(is_secondary_source_filter)
        super().__init__(source_gradient, source_image, gradient_state, label=label)

    @classmethod
    def from_forward(
        cls, gradient_images: Any, forward_filter: BinaryArithmeticNode, is_secondary: bool
    ) -> ArithmeticGradientNode:
        """Make it from its forward node (``initWithGradientImages:forwardFilter:...``).

        Parameters
        ----------
        gradient_images : [gradient, forward source]
        forward_filter : BinaryArithmeticNode
        is_secondary : bool
        """
        gradient, image = gradient_images
        return cls(gradient, image, forward_filter.result_state, is_secondary)

    @property
    def is_secondary_source_filter(self) -> bool:
        """Whether the gradient is with respect to the right source."""
        return self._secondary

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        return [forward._sources[1 if self._secondary else 0]]

    def _kernel_arguments(self) -> dict[str, Any]:
        return {"is_secondary_source_filter": self._secondary}

    def _place(self) -> int:
        return int(self._secondary)

    def _own_scale(self) -> float:
        """Factor of the source that the gradient is with respect to."""
        forward = self._forward
        return forward.secondary_scale if self._secondary else forward.primary_scale

    def _kernel_settings(self) -> dict[str, Any]:
        return {"primary_scale": self._own_scale()}

    def _compile(self, to: Compiler) -> None:
        forward = self._forward
        if to.device.kind == "metal" and not forward._is_unlimited() and forward not in to.warned:
            to.warned.add(forward)
            warnings.warn(
                f"Graph: {forward._name()} limits its result; whether its gradient is 0 "
                "there on Metal, as on the CPU device, has not been measured",
                RuntimeWarning,
                stacklevel=5,  # whoever makes the graph
            )
        super()._compile(to)

    def _copied_image(self) -> ImageNode | None:
        """Without scale, broadcast, limits and a policy the incoming gradient is the result."""
        forward = self._forward
        plain = (
            self._sources[0]._producer is not None  # a caller's has to be checked
            and forward._padding is None
            and self._own_scale() == 1.0
            and forward._is_unlimited()
            and all(getattr(forward, name) == 1 for name in _STRIDES)
        )
        return self._sources[0] if plain else None

    def __repr__(self) -> str:
        """Show which source it is for."""
        side = "secondary" if self._secondary else "primary"
        return f"{type(self).__name__}({side} of {self._forward!r})"


class AdditionGradientNode(ArithmeticGradientNode):
    """One gradient of `AdditionNode` (``MPSNNAdditionGradientNode``).

    Parameters
    ----------
    source_gradient : ImageNode
        Gradient with respect to the forward node's result.
    source_image : ImageNode
        The forward source that the gradient is with respect to.
    gradient_state : ArithmeticGradientStateNode
        The forward node's `result_state`.
    is_secondary_source_filter : bool
        Whether it is the gradient with respect to the right source.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.AddGradient


class SubtractionGradientNode(ArithmeticGradientNode):
    """One gradient of `SubtractionNode` (``MPSNNSubtractionGradientNode``).

    Parameters
    ----------
    source_gradient : ImageNode
        Gradient with respect to the forward node's result.
    source_image : ImageNode
        The forward source that the gradient is with respect to.
    gradient_state : ArithmeticGradientStateNode
        The forward node's `result_state`.
    is_secondary_source_filter : bool
        Whether it is the gradient with respect to the right source.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.SubtractGradient

    def _own_scale(self) -> float:
        return -super()._own_scale() if self._secondary else super()._own_scale()


class MultiplicationGradientNode(ArithmeticGradientNode):
    """One gradient of `MultiplicationNode` (``MPSNNMultiplicationGradientNode``).

    Parameters
    ----------
    source_gradient : ImageNode
        Gradient with respect to the forward node's result.
    source_image : ImageNode
        The other forward source.
    gradient_state : ArithmeticGradientStateNode
        The forward node's `result_state`.
    is_secondary_source_filter : bool
        Whether it is the gradient with respect to the right source.
    label : str, optional
    """

    _kernel: ClassVar[Any] = arithmetic.MultiplyGradient

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        return [forward._sources[0 if self._secondary else 1]]

    def _kernel_settings(self) -> dict[str, Any]:
        forward = self._forward
        scales = forward.primary_scale, forward.secondary_scale
        own, other = reversed(scales) if self._secondary else scales
        return {"primary_scale": own, "secondary_scale": other}

    def _copied_image(self) -> ImageNode | None:
        return None


AdditionNode._gradient_node = AdditionGradientNode
SubtractionNode._gradient_node = SubtractionGradientNode
MultiplicationNode._gradient_node = MultiplicationGradientNode
