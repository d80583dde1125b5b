"""Nodes of softmax and dropout, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mpsgrad import dropout, softmax
from mpsgrad.graph.nodes import FilterNode, GradientFilterNode, GradientStateNode, ImageNode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DropoutGradientNode",
    "DropoutNode",
    "LogSoftMaxGradientNode",
    "LogSoftMaxNode",
    "SoftMaxGradientNode",
    "SoftMaxNode",
]


class SoftMaxNode(FilterNode):
    """Softmax over the channels of each pixel (``MPSCNNSoftMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = softmax.SoftMax
    _state_node = GradientStateNode
    _keeps_channels = True
    _mixes_channels = True

    def __init__(self, source: Any, *, label: str | None = None) -> None:
        super().__init__([source], label=label)


class LogSoftMaxNode(SoftMaxNode):
    """Logarithm of the softmax (``MPSCNNLogSoftMaxNode``).

    Parameters
    ----------
    source : ImageNode or FilterNode
    label : str, optional
    """

    _kernel: ClassVar[Any] = softmax.LogSoftMax


class SoftMaxGradientNode(GradientFilterNode):
    """Gradient of `SoftMaxNode` (``MPSCNNSoftMaxGradientNode``).

    ``source_image`` is the forward result, not the forward source.

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward result.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    """

    _kernel: ClassVar[Any] = softmax.SoftMaxGradient

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        return [forward.result_image]


class LogSoftMaxGradientNode(SoftMaxGradientNode):
    """Gradient of `LogSoftMaxNode` (``MPSCNNLogSoftMaxGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward result.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    """

    _kernel: ClassVar[Any] = softmax.LogSoftMaxGradient


class DropoutNode(FilterNode):
    """Dropout, for training only (``MPSCNNDropoutNode``): leave it out of inference graphs.

    Parameters
    ----------
    source : ImageNode or FilterNode
    keep_probability : float, default 0.5
        Between 0 and 1, both excluded.
    seed : int, default 0
        Nodes with the same seed draw the same masks; a graph that has two of them warns.
    mask_stride_in_pixels : (x, y, channel), default (1, 1, 1)
        0 for one random value along an axis.
    label : str, optional
    """

    _kernel: ClassVar[Any] = dropout.Dropout
    _encodes_change_it = True  # the next mask is another
    _state_node = GradientStateNode
    _keeps_channels = True

    def __init__(
        self,
        source: Any,
        keep_probability: float = 0.5,
        seed: int = 0,
        mask_stride_in_pixels: Sequence[int] = (1, 1, 1),
        *,
        label: str | None = None,
    ) -> None:
        super().__init__([source], label=label)
        self._keep_probability = keep_probability
        self._seed = seed
        self._mask_stride_in_pixels = tuple(mask_stride_in_pixels)

    @property
    def keep_probability(self) -> float:
        """Probability that an element is kept."""
        return self._keep_probability

    @property
    def seed(self) -> int:
        """Where the random numbers begin."""
        return self._seed

    @property
    def mask_stride_in_pixels(self) -> tuple[int, ...]:
        """1 for random values of their own along an axis, 0 for one value."""
        return self._mask_stride_in_pixels

    def _kernel_arguments(self) -> dict[str, Any]:
        return {
            "keep_probability": self.keep_probability,
            "seed": self.seed,
            "mask_stride_in_pixels": self.mask_stride_in_pixels,
        }


class DropoutGradientNode(GradientFilterNode):
    """Gradient of `DropoutNode` (``MPSCNNDropoutGradientNode``).

    Parameters
    ----------
    source_gradient, source_image : ImageNode
        Gradient with respect to the forward node's result, and the forward source.
    gradient_state : GradientStateNode
        The forward node's `result_state`.
    label : str, optional
    keep_probability, seed, mask_stride_in_pixels : optional
        If given, the forward node's.
    """

    _kernel: ClassVar[Any] = dropout.DropoutGradient
    _repeats = ("keep_probability", "seed", "mask_stride_in_pixels")


SoftMaxNode._gradient_node = SoftMaxGradientNode
LogSoftMaxNode._gradient_node = LogSoftMaxGradientNode
DropoutNode._gradient_node = DropoutGradientNode
