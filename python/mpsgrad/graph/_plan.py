"""From result images to a plan: which nodes run, in which order, and whose images are others'."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mpsgrad._core import ChannelFormat
from mpsgrad.errors import GraphError
from mpsgrad.graph._fusion import Fusion, find_fusions
from mpsgrad.graph.nodes import GradientFilterNode, StateNode, TrainableNode
from mpsgrad.graph.normalization import BatchNormalizationNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from mpsgrad.graph.nodes import FilterNode, ImageNode

__all__ = ["Plan", "format_of", "make_plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a graph does, of nodes alone: no kernel has been made for it, and none is needed."""

    results: Sequence[ImageNode]
    returned: Set[ImageNode]
    """Those of them that encodes return."""
    included: Set[FilterNode]
    """All nodes that results depend on."""
    order: Sequence[FilterNode]
    """Those that needed results, exports and updates depend on, forward nodes first."""
    steps: Sequence[FilterNode]
    """Those of them that run."""
    pruned: Sequence[FilterNode]
    """Nodes that nobody needs."""
    copies: Mapping[ImageNode, ImageNode]
    """Images that are no images of their own: each is the other's slot."""
    fused: Mapping[FilterNode, Fusion]
    """Nodes that share kernels."""
    read: Set[ImageNode]
    """Images that steps read."""
    used: Set[StateNode]
    """States that steps read."""
    input_images: Sequence[ImageNode]
    input_states: Sequence[StateNode]
    intermediates: Sequence[ImageNode]
    """Exported images, and the results that are needed after the first."""
    exported_states: Sequence[StateNode]

    def origin(self, image: ImageNode) -> ImageNode:
        """Return the image whose slot an image has."""
        return _origin(image, self.copies)

    def is_returned(self, image: ImageNode) -> bool:
        """Return whether encodes return an image."""
        return _is_returned(image, self.returned)

    def is_read(self, image: ImageNode) -> bool:
        """Return whether somebody reads a node's result."""
        return image in self.read or self.is_returned(image)

    def is_used(self, state: StateNode | None) -> bool:
        """Return whether a state is made: somebody reads it, or it is exported."""
        return state is not None and (state in self.used or state.export_from_graph)

    def is_exported(self, state: StateNode | None) -> bool:
        """Return whether encodes return a state."""
        return state is not None and state.export_from_graph

    def fused_arguments(self, node: FilterNode) -> dict[str, Any]:
        """Return what a normalization's kernels are given for the activation fused into them."""
        fusion = self.fused.get(node)
        return {} if fusion is None else {"fused_neuron_descriptor": fusion.neuron.descriptor}


def make_plan(results: Sequence[ImageNode], needed: Sequence[bool], *, fuses: bool) -> Plan:
    """Find what must run.

    Parameters
    ----------
    results : sequence of ImageNode
    needed : sequence of bool
        Which of them encodes return.
    fuses : bool
        Have normalizations compute activations; devices with graphs of their own do it themselves.

    Raises
    ------
    GraphError
        If two gradient nodes would sum into one forward state.
    """
    returned = {image for image, is_needed in zip(results, needed, strict=True) if is_needed}
    is_returned = functools.partial(_is_returned, returned=returned)
    included = _ancestors([node._producer for node in results if node._producer], {})
    backward = _gradient_part(included)
    required = [node for node in included if _is_required(node, returned)]

    def ordered(kept: Iterable[FilterNode]) -> list[FilterNode]:
        return sorted(kept, key=lambda node: (node in backward, node._serial))

    copies = _find_copies(included, is_returned)
    fused: dict[FilterNode, Fusion] = {}
    kept = _ancestors(required, copies)
    if fuses:
        fusions = find_fusions(
            _without_copies(ordered(kept), copies),
            lambda image: _origin(image, copies),
            is_returned,
            format_of,
        )
        if fusions:
            fused = _by_node(fusions)
            copies = copies | _copies_of(fusions)
            kept = _ancestors(required, copies) | fused.keys()
    order = ordered(kept)
    steps = _without_copies(order, copies)
    _check_sums(steps)
    read = {_origin(image, copies) for node in steps for image in node._sources}
    used = {state for node in steps for state in node._source_states()}
    ends = _find_ends(results, kept, read, used)
    return Plan(
        results=results,
        returned=returned,
        included=included,
        order=order,
        steps=steps,
        pruned=sorted(included - kept, key=lambda node: node._serial),
        copies=copies,
        fused=fused,
        read=read,
        used=used,
        input_images=ends.input_images,
        input_states=ends.input_states,
        intermediates=ends.exported_images + [image for image in results[1:] if image in returned],
        exported_states=ends.exported_states,
    )


def format_of(image: ImageNode) -> ChannelFormat:
    """Return an image's format; NONE where it is the graph's."""
    while image.format == ChannelFormat.NONE and image._producer is not None:
        image = image._producer._sources[0]
    return image.format


# ---- which nodes


def _ancestors(
    nodes: Iterable[FilterNode], copies: Mapping[ImageNode, ImageNode]
) -> set[FilterNode]:
    """Return the nodes and all that they depend on, through images and states.

    A node whose result is a copy depends on what is copied alone.
    """
    found: set[FilterNode] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        copied = copies.get(node.result_image)
        sources = node._sources if copied is None else [copied]
        stack += [image._producer for image in sources if image._producer is not None]
        if copied is None:
            stack += [state._producer for state in node._source_states()]
    return found


def _gradient_part(nodes: Iterable[FilterNode]) -> set[FilterNode]:
    """Return which of the nodes are gradient nodes, or depend on one, as sums of gradients do.

    Forward nodes run before all of these, whenever they were made: none of them uses weights that
    the same encode has updated.
    """
    part: set[FilterNode] = set()
    for node in sorted(nodes, key=lambda node: node._serial):
        producers: set[FilterNode | None] = {image._producer for image in node._sources}
        producers.update(state._producer for state in node._source_states())
        if isinstance(node, GradientFilterNode) or not part.isdisjoint(producers):
            part.add(node)
    return part


def _is_required(node: FilterNode, returned: Set[ImageNode]) -> bool:
    """Return whether somebody outside the graph sees what a node does."""
    return (
        node.result_image in returned
        or node.result_image.export_from_graph
        or (node._state is not None and node._state.export_from_graph)
        or node._updates_weights()
    )


def _without_copies(
    nodes: Iterable[FilterNode], copies: Mapping[ImageNode, ImageNode]
) -> list[FilterNode]:
    return [node for node in nodes if node.result_image not in copies]


def _check_sums(steps: Iterable[FilterNode]) -> None:
    """Refuse what one forward state cannot hold: the sums of two gradient nodes."""
    first: dict[FilterNode, FilterNode] = {}
    for node in steps:
        if not (isinstance(node, GradientFilterNode) and isinstance(node, TrainableNode)):
            continue
        other = first.setdefault(node._forward, node)
        summed = isinstance(node._forward, BatchNormalizationNode)
        if other is not node and (summed or node._updates_weights() or other._updates_weights()):
            raise GraphError(
                f"Graph: {node._forward._name()} has two gradient nodes, whose sums over the "
                "batch it cannot keep apart; add up the incoming gradients, and make one "
                "gradient node of the sum"
            )


# ---- images that are others'


def _is_returned(image: ImageNode, returned: Set[ImageNode]) -> bool:
    return image.export_from_graph or image in returned


def _find_copies(
    nodes: Iterable[FilterNode], is_returned: Callable[[ImageNode], bool]
) -> dict[ImageNode, ImageNode]:
    """Nodes whose results are copies do not run: their images are other images' slots."""
    copies: dict[ImageNode, ImageNode] = {}
    for node in nodes:
        image, source = node.result_image, node._copied_image()
        if (
            source is not None
            and node._padding is None
            and image._allocator is None
            and not is_returned(image)
            and format_of(image) == format_of(source)
        ):
            copies[image] = source
    return copies


def _origin(image: ImageNode, copies: Mapping[ImageNode, ImageNode]) -> ImageNode:
    while image in copies:
        image = copies[image]
    return image


def _by_node(fusions: Iterable[Fusion]) -> dict[FilterNode, Fusion]:
    """Return the fusion of each node that has a part in one."""
    return {node: fusion for fusion in fusions for node in fusion if node is not None}


def _copies_of(fusions: Iterable[Fusion]) -> dict[ImageNode, ImageNode]:
    """Return the images that fusions leave out: an activation's, and its gradient's."""
    copies: dict[ImageNode, ImageNode] = {}
    for fusion in fusions:
        copies[fusion.neuron.result_image] = fusion.normalization.result_image
        if fusion.neuron_gradient is not None:
            image = fusion.neuron_gradient.result_image
            copies[image] = fusion.neuron_gradient._sources[0]
    return copies


# ---- inputs and exports


class _Ends(NamedTuple):
    input_images: list[ImageNode]
    input_states: list[StateNode]
    exported_images: list[ImageNode]
    exported_states: list[StateNode]


def _find_ends(
    results: Iterable[ImageNode],
    kept: Set[FilterNode],
    read: Set[ImageNode],
    used: Set[StateNode],
) -> _Ends:
    """Depth first from each result: a node's images, and then the producers of its states."""
    ends = _Ends([], [], [], [])
    seen: set[Any] = set()

    def visit_image(image: ImageNode) -> list[Any]:
        producer = image._producer
        if producer is None:
            if image in read and image not in seen:
                seen.add(image)
                ends.input_images.append(image)
            return []
        if producer in seen:
            return []
        seen.add(producer)
        if producer in kept:
            if image.export_from_graph:
                ends.exported_images.append(image)
            if producer._state is not None and producer._state.export_from_graph:
                ends.exported_states.append(producer._state)
        return [*producer._sources, *producer._source_states()]

    def visit_state(state: StateNode) -> list[Any]:
        if state._producer._state is state:
            return visit_image(state._producer.result_image)
        if state in used and state not in seen:  # an input
            seen.add(state)
            ends.input_states.append(state)
        return []

    for result in results:
        stack: list[Any] = [result]
        while stack:
            node = stack.pop()
            visited = visit_state(node) if isinstance(node, StateNode) else visit_image(node)
            stack += reversed(visited)
    return ends
