"""The gradient part of a graph: each forward node's gradient nodes, in reverse order.

Gradients of an image that several nodes read are added up, from left to right, before anything uses
them; that holds for the inputs of the graph too.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mpsgrad.graph.arithmetic import AdditionNode
from mpsgrad.graph.loss import ForwardLossNode, InitialGradientNode, SelfGradientNode
from mpsgrad.graph.nodes import FilterNode, ImageNode, image_argument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["training_graph"]


def _post_order(last: FilterNode) -> list[FilterNode]:
    """Return the nodes that ``last`` depends on through images, sources first."""
    order: list[FilterNode] = []
    seen: set[FilterNode] = set()
    stack: list[tuple[FilterNode, int]] = [(last, 0)]
    seen.add(last)
    while stack:  # by hand, as graphs may be deeper than Python's stack
        node, position = stack.pop()
        if position == len(node._sources):
            order.append(node)
            continue
        stack.append((node, position + 1))
        producer = node._sources[position]._producer
        if producer is not None and producer not in seen:
            seen.add(producer)
            stack.append((producer, 0))
    return order


class _Walk:
    def __init__(
        self,
        handler: Callable[[FilterNode, FilterNode | None, ImageNode, ImageNode], object] | None,
    ) -> None:
        self.handler = handler
        self.created: list[FilterNode] = []
        self.contributions: dict[ImageNode, list[ImageNode]] = {}
        self.used: set[ImageNode] = set()
        self.pruned: set[ImageNode] = set()  # the handler has stopped their sum

    def report(
        self,
        node: FilterNode,
        inference_node: FilterNode | None,
        inference_source: ImageNode,
        gradient_source: ImageNode,
    ) -> None:
        self.created.append(node)
        node.result_image._gradient_of = inference_source
        if self.handler is None:
            node.result_image.handle = inference_source.handle
        else:
            self.handler(node, inference_node, inference_source, gradient_source)

    def contribute(self, image: ImageNode, gradient: ImageNode) -> None:
        self.contributions.setdefault(image, []).append(gradient)

    def total(self, image: ImageNode) -> ImageNode:
        gradients = self.contributions[image]
        total = gradients[0]
        for other in gradients[1:]:
            addition = AdditionNode(total, other)
            self.used.update((total, other))
            self.report(addition, None, image, total)
            if addition.result_image.stop_gradient:
                self.pruned.add(image)
            total = addition.result_image
        self.contributions[image] = [total]
        return total


def training_graph(last: FilterNode, source_gradient: Any, handler: Any) -> list[FilterNode]:
    """Build it, and return the termini: see `FilterNode.training_graph`."""
    if handler is not None and not callable(handler):
        raise TypeError(
            f"training_graph: node_handler must be callable, got {type(handler).__name__}"
        )
    is_gradient = isinstance(last, (SelfGradientNode, InitialGradientNode))
    if source_gradient is None:
        if isinstance(last, ForwardLossNode):
            warnings.warn(
                f"{last._name()}: without a source_gradient the loss values themselves are taken "
                "as the incoming gradient; start from an InitialGradientNode instead",
                UserWarning,
                stacklevel=3,
            )
        seed = last.result_image
    else:
        seed = image_argument("training_graph", "source_gradient", source_gradient)
    walk = _Walk(handler)
    walk.contribute(last._sources[0] if is_gradient else last.result_image, seed)
    order = _post_order(last)
    for node in reversed(order):
        image = node.result_image
        if (is_gradient and node is last) or image.stop_gradient:
            continue
        if image not in walk.contributions:
            continue
        node._require_gradients("training_graph")
        total = walk.total(image)
        if image.stop_gradient or image in walk.pruned:  # by the handler, at an addition
            continue
        for gradient, source in zip(
            node._gradient_nodes(total), node._differentiated(), strict=True
        ):
            walk.used.add(total)
            walk.report(gradient, node, source, total)
            if not gradient.result_image.stop_gradient:
                walk.contribute(source, gradient.result_image)
    for image in list(walk.contributions):
        if image._producer is None or image.stop_gradient:
            walk.total(image)
    return [node for node in walk.created if node.result_image not in walk.used]
