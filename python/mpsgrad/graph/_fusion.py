"""Which activations the batch normalization before them computes, and with its gradient theirs.

The image between the two, as large as each of theirs, is then never made, and neither is the
gradient between their gradients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from mpsgrad.graph.neuron import NeuronGradientNode, NeuronNode
from mpsgrad.graph.normalization import BatchNormalizationGradientNode, BatchNormalizationNode
from mpsgrad.neuron import NeuronType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpsgrad._core import ChannelFormat
    from mpsgrad.graph.nodes import FilterNode, ImageNode, StateNode

__all__ = ["Fusion", "find_fusions"]


class Fusion(NamedTuple):
    """Nodes whose kernels are one each; gradients are None where there are none."""

    normalization: BatchNormalizationNode
    neuron: NeuronNode
    gradient: BatchNormalizationGradientNode | None
    neuron_gradient: NeuronGradientNode | None

    def host_of(self, node: FilterNode) -> FilterNode | None:
        """Return the node whose kernels do a node's work; None if they are its own."""
        if node is self.neuron:
            return self.normalization
        return self.gradient if node is self.neuron_gradient else None


class _Readers:
    """Who reads what, of the nodes that run."""

    def __init__(
        self, steps: Iterable[FilterNode], origin: Callable[[ImageNode], ImageNode]
    ) -> None:
        self._of_image: dict[ImageNode, list[FilterNode]] = defaultdict(list)
        self._of_state: dict[StateNode, list[FilterNode]] = defaultdict(list)
        for node in steps:
            for image in node._sources:
                self._of_image[origin(image)].append(node)
            for state in node._source_states():
                self._of_state[state].append(node)

    def of_result(self, node: FilterNode) -> list[FilterNode]:
        return self._of_image[node.result_image]

    def of_state(self, node: FilterNode) -> list[FilterNode]:
        return [] if node._state is None else self._of_state[node._state]


def find_fusions(
    steps: list[FilterNode],
    origin: Callable[[ImageNode], ImageNode],
    is_returned: Callable[[ImageNode], bool],
    format_of: Callable[[ImageNode], ChannelFormat],
) -> list[Fusion]:
    """Find each batch normalization whose result only an activation reads.

    Parameters
    ----------
    steps : list of FilterNode
        Those that run.
    origin : callable
        From an image to the one that it is, if it is a copy.
    is_returned : callable
        Whether encodes return an image.
    format_of : callable
        An image's format.

    Returns
    -------
    list of Fusion
    """
    readers = _Readers(steps, origin)
    numbers = Counter(
        id(node.data_source) for node in steps if isinstance(node, BatchNormalizationNode)
    )

    def is_between(node: FilterNode) -> bool:
        """Whether a node's result need not be an image of its own."""
        image = node.result_image
        return node._padding is None and image._allocator is None and not is_returned(image)

    def of(neuron: NeuronNode) -> Fusion | None:
        before = origin(neuron._sources[0])._producer
        if not (
            isinstance(before, BatchNormalizationNode)
            and is_between(before)
            and is_between(neuron)
            and format_of(before.result_image) == format_of(neuron.result_image)
            and neuron.descriptor.neuron_type != NeuronType.PRELU  # as many slopes as channels?
            and not (neuron._state is not None and neuron._state.export_from_graph)
        ):
            return None
        gradients = readers.of_state(before)
        neuron_gradients = readers.of_state(neuron)
        if readers.of_result(before) != [neuron, *neuron_gradients]:
            return None
        if not (gradients or neuron_gradients):
            return Fusion(before, neuron, None, None)
        if len(gradients) != 1 or len(neuron_gradients) != 1:
            return None
        (gradient,), (neuron_gradient,) = gradients, neuron_gradients
        incoming = neuron_gradient._sources[0]
        if not (
            isinstance(gradient, BatchNormalizationGradientNode)
            and isinstance(neuron_gradient, NeuronGradientNode)
            and gradient._padding is None
            and is_between(neuron_gradient)
            and format_of(neuron_gradient.result_image) == format_of(incoming)
            and readers.of_result(neuron_gradient) == [gradient]
            # It would be read twice, and reads of inputs are the same on every device.
            and origin(incoming)._producer is not None
            # The gradient finds the activation's source again: by the same numbers, which the
            # update of another node would have changed by then.
            and numbers[id(before.data_source)] == 1
        ):
            return None
        return Fusion(before, neuron, gradient, neuron_gradient)

    found = (of(node) for node in steps if isinstance(node, NeuronNode))
    return [fusion for fusion in found if fusion is not None]
