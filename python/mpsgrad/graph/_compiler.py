"""From nodes to the steps of a graph: their kernels, slots and updates, by a plan."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mpsgrad import _core
from mpsgrad._array_source import ArraySource
from mpsgrad.graph._plan import format_of, make_plan
from mpsgrad.graph._source_updates import (
    KernelUpdate,
    SourceUpdate,
    kinds_of_updates,
    require_optimizer_on,
    update_calls,
    why_without_effect,
)
from mpsgrad.graph.activation import DropoutNode
from mpsgrad.graph.convolution import ConvolutionNode
from mpsgrad.graph.loss import LabelsNode
from mpsgrad.graph.nodes import GradientFilterNode, StateNode, TrainableNode, TrainingStyle
from mpsgrad.graph.shape import ConcatenationNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpsgrad._updates import ArrayUpdates
    from mpsgrad.graph.nodes import FilterNode, ImageNode

__all__ = ["Compiler"]

_NONE = -1


class Compiler:
    """One compilation: what nodes' `_compile` methods talk to.

    Parameters
    ----------
    graph : _core.Graph
        What the steps are added to.
    results : list of ImageNode
    needed : list of bool
        Which of them encodes return.
    warns : bool, default True
        False: whoever made the graph that this one is a copy of has been warned.
    """

    def __init__(
        self, graph: Any, results: list[ImageNode], needed: list[bool], *, warns: bool = True
    ) -> None:
        self.graph = graph
        self.device: _core.Device = graph.device
        # Device graphs fuse by themselves.
        self.plan = make_plan(results, needed, fuses=not graph._wants_description)
        self._kernels: dict[FilterNode, Any] = {}
        self._images: dict[ImageNode, int] = {}
        self._states: dict[StateNode, int] = {}
        # Every kernel that was built on a data source, and whatever else reloads from it.
        self._built_on: dict[int, list[tuple[Any, Any]]] = {}
        self.data_sources: dict[FilterNode, Any] = {}
        self.without_update: dict[FilterNode, str] = {}  # and why
        self.warned: set[FilterNode] = set()  # of limits, once for both gradients
        # Of the sources that optimizers train: how many steps what kernels read has.
        self._steps_read: dict[ArrayUpdates, int] = {}
        self._warned_of_steps = False
        self._checked_channels: set[tuple[int | None, ...]] = set()

        try:
            self._add_slots()
            for node in self.plan.steps:
                node._compile(self)
            self._finish()
            self._readers = self._find_readers()
            self._note_steps()
            if warns:  # whoever makes the graph
                self._warn_of_equal_seeds(stacklevel=5)
                self._warn_of_no_updates(stacklevel=5)
                self.check_channels([None] * len(self.plan.input_images), stacklevel=5)
            if graph._wants_description:
                self._describe()
                graph._make_runner()
        finally:
            del self.graph  # which keeps this, and goes with its last user

    # ---- slots and kernels

    def _add_slots(self) -> None:
        for i, image in enumerate(self.plan.input_images):
            label = f"source image {i}"
            name = label if image.handle is None else f"{label} ({image.handle!r})"
            self._add_image(image, name, None)
        for node in self.plan.steps:
            image = node.result_image
            allocator = image._allocator
            if allocator is None and self.plan.is_returned(image) and image in self.plan.results:
                allocator = _core.DEFAULT
            self._add_image(image, f"the result of {node._name()}", allocator)
        for i, state in enumerate(self.plan.input_states):
            label = f"source state {i}"
            name = label if state.handle is None else f"{label} ({state.handle!r})"
            self._states[state] = self.graph._add_state(name, False, state.synchronize_resource)
        updating = {
            state
            for node in self.plan.steps
            if node._updates_weights()
            for state in node._source_states()
        }
        for node in self.plan.steps:
            own = node._state
            if own is not None and self.plan.is_used(own):
                self._states[own] = self.graph._add_state(
                    f"the state of {node._name()}", own not in updating, own.synchronize_resource
                )

    def _add_image(self, image: ImageNode, name: str, allocator: Any) -> None:
        self._images[image] = self.graph._add_image(
            name, format_of(image), allocator, image.synchronize_resource
        )

    def image(self, image: ImageNode) -> int:
        """Return the slot of an image node."""
        return self._images[self.plan.origin(image)]

    def state(self, state: StateNode | None, *, always: bool = False) -> int:
        """Return the slot of a state node; -1 where the state is not made."""
        if state is None:
            return _NONE
        if state not in self._states and always:
            self._states[state] = self.graph._add_state("a state that nobody uses", True, False)
        return self._states.get(state, _NONE)

    def kernel(self, node: FilterNode) -> Any:
        """Return the kernel of a node, made on the first call."""
        if node not in self._kernels:
            kernel = node._make_kernel(self.device, **self.plan.fused_arguments(node))
            self._kernels[node] = kernel
            source = getattr(kernel, "data_source", None)
            if source is not None:
                self._built_on.setdefault(id(source), []).append((source, kernel))
                self.data_sources[node] = source
        return self._kernels[node]

    # ---- updates

    def _kernels_of(self, source: Any) -> list[tuple[Any, Any]]:
        """Return the list, which grows until the compilation ends, of kernels on a data source."""
        return self._built_on.setdefault(id(source), [])

    def add_update(self, node: Any) -> None:
        """Have the data source of a forward node update weights with a gradient node's sums."""
        if node.training_style == TrainingStyle.NONE:
            return
        forward = node._forward
        kernel = self.kernel(forward)
        source = self.data_sources[forward]
        name = f"{node._name()}: update of {type(source).__name__}"
        slot = self.state(forward._state)
        by_gpu = node.training_style == TrainingStyle.GPU
        kinds = kinds_of_updates(forward)
        for kind in kinds:
            if not callable(getattr(source, kind.method(by_gpu), None)):
                continue
            update = KernelUpdate(
                SourceUpdate(kind, source, name, self._note_steps_of),
                kernel,
                self._kernels_of(source),
            )
            if by_gpu:
                self.graph._add_update_now(name, slot, update.now)
            else:
                self.graph._add_update_on_completion(name, slot, update.on_completion)
        if by_gpu:
            require_optimizer_on(self.device, source, node)
        reasons = [why_without_effect(source, kind.method(by_gpu)) for kind in kinds]
        if None not in reasons:
            self.without_update[node] = str(reasons[0])

    # ---- for devices with graphs of their own

    def _describe(self) -> None:
        """Tell the graph its nodes, which a graph of the device's is made of."""
        sources: dict[int, int] = {}
        names = {
            id(self.data_sources[node._forward]): node._name()
            for node in self.plan.steps
            if isinstance(node, GradientFilterNode) and isinstance(node, TrainableNode)
        }
        places = {node: place for place, node in enumerate(self.plan.steps)}
        for node in self.plan.steps:
            kernel = None if node._kernel is None else self.kernel(node)
            forward = node._forward if isinstance(node, GradientFilterNode) else None
            number = _NONE
            if forward is None and isinstance(node, TrainableNode):
                source = self.data_sources[node]
                if id(source) not in sources:
                    name = names.get(id(source), node._name())
                    what = f"{name}: update of {type(source).__name__}"
                    calls = update_calls(node, source, what, self._note_steps_of)
                    sources[id(source)] = self.graph._add_data_source(kernel, *calls)
                number = sources[id(source)]
            undone = getattr(node, "_undone", None)
            labels = getattr(node, "_labels", None)
            self.graph._add_node(
                kind=type(node).__name__,
                name=node._name(),
                label=node.label or "",
                kernel=kernel,
                sources=[self.image(source) for source in node._sources],
                result=self.image(node.result_image),
                state=self.state(node._state),
                forward=_NONE if forward is None else places[forward],
                position=node._place() if isinstance(node, GradientFilterNode) else 0,
                labels=_NONE if labels is None else self.state(labels),
                undone=_NONE if undone is None else places[undone._producer],
                data_source=number,
                training_style=int(getattr(node, "training_style", TrainingStyle.NONE)),
                padding=node._padding,
                flags=int(getattr(node, "_flags", 0)),
                shape=getattr(node, "_shape", (0, 0, 0)),
            )

    # ---- results

    def _finish(self) -> None:
        graph = self.graph
        graph._set_inputs(
            [self._images[image] for image in self.plan.input_images],
            [self._states[state] for state in self.plan.input_states],
        )
        first = self.plan.results[0]
        graph._set_results(
            self.image(first) if first in self.plan.returned else _NONE,
            [self.image(image) for image in self.plan.intermediates],
            [self._states[state] for state in self.plan.exported_states],
        )

    def _find_readers(self) -> dict[ImageNode, list[tuple[str, Any]]]:
        """Find which kernels read each input."""
        readers: dict[ImageNode, list[tuple[str, Any]]] = {}
        for node in self.plan.steps:
            kernel = self._kernels.get(node)
            for image in node._sources if hasattr(kernel, "_check_array") else ():
                readers.setdefault(self.plan.origin(image), []).append((node._name(), kernel))
        return readers

    def check_array(
        self, image: ImageNode, array: npt.NDArray[Any], single: bool, name: str
    ) -> None:
        """Refuse what the image of an input may be but an array is by mistake."""
        for reader, kernel in self._readers.get(image, ()):
            try:
                kernel._check_array(array, single)
            except ValueError as error:
                raise ValueError(f"Graph: {name}, for {reader}: {error}") from None

    def check_channels(self, inputs: Sequence[int | None], stacklevel: int) -> None:
        """Warn of channels that are left out or make no sense, as far as these are known.

        Parameters
        ----------
        inputs : sequence of int or None
            Channels of the input images.
        stacklevel : int
            Whom the warning shows.
        """
        if tuple(inputs) in self._checked_channels:
            return
        self._checked_channels.add(tuple(inputs))
        channels = dict(zip(self.plan.input_images, inputs, strict=True))
        for node in self.plan.order:
            sources = [channels.get(image) for image in node._sources]
            kernel = self._kernels.get(node)
            channels[node.result_image] = node._result_channels(sources, kernel)
            producer, offered = node._sources[0]._producer, sources[0]
            if producer is None or offered is None or node in self.warned:
                continue
            why = ""
            filling = [0]  # zeros behind the channels of each source
            if isinstance(producer, ConcatenationNode):
                why = ", where each source begins at a multiple of 4"
                filling = [-(channels.get(image) or 0) % 4 for image in producer._sources]
            makes = f"{producer._name()} makes {offered}{why}"
            if isinstance(node, ConvolutionNode):
                read = self.kernel(node).descriptor.input_feature_channels
                if offered - filling[-1] <= read:
                    continue
                wrong = f"its weights are for {read} channels, but {makes}; the last "
                wrong += f"{offered - read} are not read"
            elif node._mixes_channels and any(filling):
                wrong = (
                    f"{makes}; {sum(filling)} of them are zeros between, which count like others"
                )
            else:
                continue
            self.warned.add(node)
            warnings.warn(f"{node._name()}: {wrong}", UserWarning, stacklevel=stacklevel)

    def _warn_of_equal_seeds(self, stacklevel: int) -> None:
        first_with: dict[int, DropoutNode] = {}
        for node in self.plan.steps:
            if not isinstance(node, DropoutNode):
                continue
            other = first_with.setdefault(node.seed, node)
            if other is not node:
                same = "another " if node._name() == other._name() else ""
                warnings.warn(
                    f"{node._name()}: has seed {node.seed}, as {same}{other._name()} has, so that "
                    "both draw the same masks; give each a seed of its own",
                    UserWarning,
                    stacklevel=stacklevel,
                )

    def _warn_of_no_updates(self, stacklevel: int) -> None:
        trained = [
            node
            for node in self.plan.steps
            if isinstance(node, GradientFilterNode) and node._updates_weights()
        ]
        has_loss = any(isinstance(state, LabelsNode) for state in self.plan.input_states)
        wanted = any(self.plan.is_exported(node._forward._state) for node in trained)
        if not trained or not has_loss or wanted or not self.without_update.keys() >= set(trained):
            return
        node = trained[0]
        source = type(self.data_sources[node._forward]).__name__
        warnings.warn(
            f"Graph: no weights are updated: {source} of {node._name()} "
            f"{self.without_update[node]}, nor can any other; where that is meant, set the "
            "nodes' training_style to NONE",
            UserWarning,
            stacklevel=stacklevel,
        )

    def _note_steps_of(self, source: Any) -> None:
        if isinstance(source, ArraySource) and source._updates is not None:
            self._steps_read[source._updates] = source._updates.steps

    def _note_steps(self) -> None:
        for source in self.data_sources.values():
            self._note_steps_of(source)

    def check_steps(self, stacklevel: int) -> None:
        """Warn, once, of sources that something else has trained since they were read."""
        if self._warned_of_steps:
            return
        for node, source in self.data_sources.items():
            updates = source._updates if isinstance(source, ArraySource) else None
            if updates is not None and updates.steps != self._steps_read.get(updates):
                self._warned_of_steps = True
                warnings.warn(
                    f"Graph: {type(source).__name__} of {node._name()} has been trained since "
                    "this graph read it; reload_from_data_sources() brings the new values",
                    UserWarning,
                    stacklevel=stacklevel,
                )
                return

    def reload_from_data_sources(self, graph: Any) -> None:
        """Have every kernel, or the device's graph, read its data source again."""
        self._note_steps()
        if graph._has_runner:
            graph._reload_runner()
            return
        for built in self._built_on.values():
            for _, kernel in built:
                for method in (
                    "reload_weights_and_biases_from_data_source",
                    "reload_gamma_and_beta_from_data_source",
                    "reload_mean_and_variance_from_data_source",
                ):
                    if hasattr(kernel, method):
                        getattr(kernel, method)()
