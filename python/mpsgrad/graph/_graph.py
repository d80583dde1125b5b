"""The compiled graph (`Graph`), and what its encodes return."""

from __future__ import annotations

import copy as copying
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import array_queue, as_image_array, batch_of, resolve_device
from mpsgrad._kernel import Settings, copied_source
from mpsgrad.errors import GraphError
from mpsgrad.graph._checkpoints import checkpoint_of, restore_all
from mpsgrad.graph._compiler import Compiler
from mpsgrad.graph._flat import flatten, restore
from mpsgrad.graph._inputs import by_handle, in_order, listed, named_in_order
from mpsgrad.graph._report import described
from mpsgrad.graph.loss import SelfGradientNode
from mpsgrad.graph.nodes import ImageNode, StateNode, image_argument
from mpsgrad.loss import LossLabels, ReductionType, as_label_weights

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import numpy.typing as npt

    from mpsgrad._core import ChannelFormat

__all__ = ["ArraysResult", "EncodeResult", "Graph", "HandledList"]


class HandledList(list[Any]):
    """A list whose elements can also be had by the handle of their node.

    An index that is an integer or a slice is a position; anything else is a handle.
    """

    def __init__(self, values: Sequence[Any], handles: Sequence[Hashable | None]) -> None:
        super().__init__(values)
        self.handles = list(handles)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, slice)):
            return super().__getitem__(index)
        for handle, value in zip(self.handles, self, strict=True):
            if handle is not None and handle == index:
                return value
        there = [handle for handle in self.handles if handle is not None]
        raise KeyError(f"no node with handle {index!r}, got {there}")


class EncodeResult(NamedTuple):
    """What an encode of a graph returns."""

    result: Any
    """The first result image or batch; None if it is not needed."""
    intermediates: HandledList
    """Exported images and further results."""
    states: HandledList
    """Exported states."""


class ArraysResult(NamedTuple):
    """What a call of a graph with arrays returns."""

    result: Any
    """Array of the first result; None if it is not needed."""
    intermediates: HandledList
    """Arrays of exported images and further results."""
    losses: HandledList
    """Losses, in the order and by the handles of the labels."""


class Graph(Settings, _core.Graph):
    """Nodes, compiled to kernels that are encoded in one call (``MPSNNGraph``).

    Everything that the results need is included, and of that only what a needed result, an export,
    an update of weights or a loss depends on is run. Image and state nodes that nothing produces
    are the inputs, in the order in which a walk back from the results meets them: see
    `source_image_handles`. Data sources are read now.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    result_image : ImageNode or FilterNode, optional
        The one result. Either this or ``result_images``.
    result_image_is_needed : bool, default True
        False: encodes return no image, as for training.
    result_images : list of ImageNode or FilterNode, optional
        Several results: the first is returned as the result, the others among the intermediates.
    results_are_needed : bool or list of bool, default True
    label : str, optional
    format : ChannelFormat, default FLOAT16
        The attribute.

    Attributes
    ----------
    format : ChannelFormat
        Storage of images whose node and whose producers' first sources name none. In FLOAT16 small
        gradients become 0. Read at each encode.
    destination_image_allocator : optional
        How the first result is made; ordinary images at first.
    output_state_is_temporary : bool
        False at first.

    Raises
    ------
    TypeError
        If a result is no node.
    ValueError
        If there is no result, or one twice, or one that is an input.
    GraphError
        If a data source refuses to load, or nothing has to be run.
    """

    def __init__(
        self,
        device: _core.Device | str | None = None,
        result_image: Any = None,
        result_image_is_needed: bool = True,
        *,
        result_images: Any = None,
        results_are_needed: bool | Sequence[bool] = True,
        label: str | None = None,
        format: ChannelFormat | None = None,  # noqa: A002  Apple's word
    ) -> None:
        super().__init__(resolve_device(device, self))
        if (result_image is None) == (result_images is None):
            raise TypeError("Graph: give either result_image or result_images")
        if isinstance(result_image, list | tuple):
            raise TypeError(
                f"Graph: result_image must be an ImageNode, got {type(result_image).__name__}; "
                "results that are several are given as result_images=, results_are_needed="
            )
        if not isinstance(result_image_is_needed, (bool, np.bool_)):
            raise TypeError(
                "Graph: result_image_is_needed must be a bool, got "
                f"{type(result_image_is_needed).__name__}; results that are several are given as "
                "result_images="
            )
        if result_images is None:
            result_images, results_are_needed = [result_image], [result_image_is_needed]
        self._results = [
            image_argument("Graph", "result_images", node)
            for node in listed("result_images", result_images, "a list of nodes")
        ]
        count = len(self._results)
        if count == 0:
            raise ValueError("Graph: result_images must hold at least one node, got none")
        needed = (
            [bool(results_are_needed)] * count
            if isinstance(results_are_needed, (bool, np.bool_))
            else [
                bool(value)
                for value in listed("results_are_needed", results_are_needed, "a bool or a list")
            ]
        )
        if len(needed) != count:
            raise ValueError(
                f"Graph: results_are_needed has {len(needed)} values for {count} result images"
            )
        if len(set(self._results)) != count:
            raise ValueError("Graph: result_images holds a node twice")
        for node in self._results:
            if node._producer is None:
                raise ValueError(f"Graph: {node!r} is an input, which is no result")
        self._results = _copies(self._results, {})  # the caller's may change after this
        self._needed = needed
        if label is not None:
            self.label = label
        if format is not None:
            self.format = format
        warns = not getattr(_REBUILDING, "active", False)
        self._compiled = Compiler(self, self._results, needed, warns=warns)
        if not self._compiled.plan.order:
            raise GraphError(
                "Graph: nothing has to be run, as no result is needed, nothing is exported and "
                "nothing updates weights; set results_are_needed"
            )

    # ---- what it is

    @property
    def source_image_handles(self) -> list[Hashable | None]:
        """Handles of the source images, in the order of encodes; None for nodes without one."""
        return [image.handle for image in self._compiled.plan.input_images]

    @property
    def source_state_handles(self) -> list[Hashable | None]:
        """Handles of the source states, in the order of encodes."""
        return [state.handle for state in self._compiled.plan.input_states]

    @property
    def intermediate_image_handles(self) -> list[Hashable | None]:
        """Handles of the intermediates that encodes return."""
        return [image.handle for image in self._compiled.plan.intermediates]

    @property
    def result_state_handles(self) -> list[Hashable | None]:
        """Handles of the states that encodes return."""
        return [state.handle for state in self._compiled.plan.exported_states]

    @property
    def result_handle(self) -> Hashable | None:
        """Handle of the first result."""
        return self._results[0].handle

    @property
    def result_image_is_needed(self) -> bool:
        """Whether encodes return the first result."""
        return self._needed[0]

    # ---- encodes

    def encode_batch(
        self, command_buffer: _core.CommandBuffer, source_images: Any, source_states: Any = None
    ) -> EncodeResult:
        """Encode the graph for a batch (``encodeBatchToCommandBuffer:sourceImages:...``).

        Nothing has run when it returns. Where sizes, formats or labels do not fit the nodes it
        raises before anything is encoded. If a callback raises, what was encoded before it stays in
        the command buffer, which is of no use then: drop it.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_images : list of batches, or dict of batches by handle
            One `ImageBatch` or list of images for each of `source_image_handles`; an `ImageBatch`
            alone where there is one.
        source_states : list of batches, or dict of batches by handle, optional
            One list of `LossLabels` for each of `source_state_handles`.

        Returns
        -------
        EncodeResult
            Batches, and lists of states.

        Raises
        ------
        TypeError, ValueError
            If inputs are missing, or differ in length, or do not fit.
        ReadCountError
            If a temporary image is read more often than its read count says.
        GraphError
            If weights wait for an update by the CPU that can never come: the command buffer of the
            previous encode is the same one, or not committed.
        """
        images = in_order("source_images", source_images, self._compiled.plan.input_images)
        states = in_order("source_states", source_states, self._compiled.plan.input_states)
        result, intermediates, made = self._encode(command_buffer, images, states)
        return EncodeResult(
            result,
            HandledList(intermediates, self.intermediate_image_handles),
            HandledList(made, self.result_state_handles),
        )

    def encode(
        self, command_buffer: _core.CommandBuffer, source_images: Any, source_states: Any = None
    ) -> EncodeResult:
        """Encode the graph for one image an input; see `encode_batch`.

        Parameters
        ----------
        command_buffer : CommandBuffer
        source_images : Image, list of images, or dict of images by handle
        source_states : list of states, or dict of states by handle, optional

        Returns
        -------
        EncodeResult
            Images and states.
        """
        if isinstance(source_images, _core.Image):
            source_images = [source_images]
        images = in_order("source_images", source_images, self._compiled.plan.input_images)
        states = in_order("source_states", source_states, self._compiled.plan.input_states)
        result, intermediates, made = self.encode_batch(
            command_buffer, [[image] for image in images], [[state] for state in states]
        )
        return EncodeResult(
            None if result is None else result[0],
            HandledList([batch[0] for batch in intermediates], intermediates.handles),
            HandledList([batch[0] for batch in made], made.handles),
        )

    def __call__(
        self, images: Any = None, labels: Any = None, label_weights: Any = None
    ) -> ArraysResult:
        """Run the graph on arrays, and wait.

        Parameters
        ----------
        images : array, list of arrays, or dict of arrays by handle
            float32 or float16, shape (N, H, W, C) or (H, W, C), one for each of
            `source_image_handles`.
        labels : array, list of arrays, or dict of arrays by handle, optional
            float32, one for each of `source_state_handles`, of the shape of what the loss node
            reads; or lists of `LossLabels`.
        label_weights : array, list of arrays, or dict of arrays by handle, optional
            float32, factors of the losses' elements, of the labels' shape or with axes of length 1:
            ``(N, H, W, 1)`` has one for each pixel. In a list None, and a handle left out, mean 1.

        Returns
        -------
        ArraysResult
            Images as arrays of the inputs' rank; temporary ones, which cannot be read, are None.

        Raises
        ------
        TypeError, ValueError
            If an array is missing, or has the wrong dtype or shape.
        """
        compiled = self._compiled
        if isinstance(images, np.ndarray) or not isinstance(images, (list, tuple, dict)):
            images = [] if images is None else [images]
        labels = _one_in_a_list(labels)
        sources = named_in_order("images", images, compiled.plan.input_images)
        targets = named_in_order("labels", labels, compiled.plan.input_states)
        arrays = [as_image_array(self, array, name) for name, array in sources]
        for image, (array, one), (name, _) in zip(
            compiled.plan.input_images, arrays, sources, strict=True
        ):
            compiled.check_array(image, array, one, name)
        compiled.check_steps(stacklevel=3)
        compiled.check_channels([array.shape[3] for array, _ in arrays], stacklevel=3)
        single = bool(arrays) and all(one for _, one in arrays)
        factors = self._label_weights(label_weights)
        states = [
            self._labels(array, weights, node, name)
            for (name, array), weights, node in zip(
                targets, factors, compiled.plan.input_states, strict=True
            )
        ]
        names = [name for name, _ in (*sources, *targets)]
        counts = [len(batch) for batch in (*(array for array, _ in arrays), *states)]
        for name, count in zip(names, counts, strict=True):
            if count != counts[0]:
                raise ValueError(
                    f"Graph: {name} must have length {counts[0]}, as {names[0]} has, got {count}"
                )
        command_buffer = array_queue(self.device).command_buffer()
        batches = [batch_of(self.device, array) for array, _ in arrays]
        result, intermediates, _ = self.encode_batch(command_buffer, batches, states)
        readable = [
            batch
            for batch in (result, *intermediates)
            if batch is not None and not _temporary(batch)
        ]
        for batch in (*readable, *states):
            _core.synchronize(batch, command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()

        def array_of(batch: Any) -> Any:
            if batch is None or _temporary(batch):
                return None
            array = batch.to_array()
            return array[0] if single else array

        losses = [np.stack([np.array(state.loss) for state in batch]) for batch in states]
        return ArraysResult(
            array_of(result),
            HandledList([array_of(batch) for batch in intermediates], intermediates.handles),
            HandledList(losses, self.source_state_handles),
        )

    def _label_weights(self, given: Any) -> list[Any]:
        """Return the weights for each loss node, None where there are none."""
        nodes = self._compiled.plan.input_states
        given = _one_in_a_list(given)
        if not hasattr(given, "keys"):
            return in_order("label_weights", given or [None] * len(nodes), nodes)
        handles = [node.handle for node in nodes]
        if given and None in handles:
            return by_handle("label_weights", given, nodes)
        if not given.keys() <= set(handles):
            raise ValueError(
                f"Graph: label_weights may be given for the handles {handles!r}, got "
                f"{list(given)!r}"
            )
        return [given.get(handle) for handle in handles]

    def _labels(self, labels: Any, weights: Any, node: StateNode, name: str) -> Any:
        """Labels of one loss node as states."""
        if _are_labels(labels):
            if weights is not None:
                raise ValueError(f"Graph: {name} are LossLabels, which have weights of their own")
            return list(labels)
        array, single = as_image_array(self, labels, name, halves=False, labels=True)
        factors = as_label_weights(
            self, weights, array, single, name.replace("labels", "label_weights", 1), name
        )
        producer = node._producer
        assert isinstance(producer, SelfGradientNode)
        whole = producer.loss_descriptor.reduction_type == ReductionType.NONE
        size = (array.shape[2], array.shape[1], array.shape[3]) if whole else (1, 1, 1)
        return LossLabels.batch(self.device, array, factors, loss_image_size=size)

    def execute_async(self, source_images: Any) -> Future[Any]:
        """Run the graph for one image an input (``executeAsyncWithSourceImages:...``).

        Parameters
        ----------
        source_images : Image, list of images, or dict of images by handle

        Returns
        -------
        concurrent.futures.Future
            Of the result image, or of what the work, or an update by the CPU, has failed with.

        Raises
        ------
        TypeError
            If the graph has source states, which cannot be given here.
        ValueError
            If there is no source image.
        """
        if self._compiled.plan.input_states:
            raise TypeError(
                "Graph: execute_async takes no source states, but the graph has "
                f"{len(self._compiled.plan.input_states)}; use encode"
            )
        if not self._compiled.plan.input_images:
            raise ValueError("Graph: execute_async needs at least one source image")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # what is committed cannot be taken back
        command_buffer = array_queue(self.device).command_buffer()
        image = self.encode(command_buffer, source_images).result
        if image is not None and not image.is_temporary:
            image.synchronize(command_buffer)

        def finish(done: Any) -> None:
            try:
                if done is not None:
                    done.wait_until_completed()  # raises what went wrong, an update's fault too
            except BaseException as error:  # it is the future's
                future.set_exception(error)
            else:
                future.set_result(image)

        command_buffer.add_completed_handler(finish)
        command_buffer.commit()
        return future

    def reload_from_data_sources(self) -> None:
        """Have every kernel read its data source again (``reloadFromDataSources``).

        Waits for what was encoded of this graph. An inference graph follows a training graph on the
        same data sources this way.

        Raises
        ------
        GraphError
            If a command buffer that this graph was encoded on is not committed.
        """
        self._wait_for_outstanding()
        self._compiled.reload_from_data_sources(self)

    def checkpoint(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all parameters and of what optimizers keep, to be saved.

        Waits for what was encoded of this graph. `numpy.savez` writes them, `restore` takes them.

        Returns
        -------
        dict of str to ndarray
            What `checkpoint` of each data source returns, with its label before every name, as
            ``"conv1/weights"``. A source without a label of its own has its place in the graph
            instead, counted from 0 in the order in which nodes were made. A source that several
            nodes have is there once.

        Raises
        ------
        TypeError
            If a data source is not one of those over arrays.
        ValueError
            If a label is the place of another source.
        GraphError, RuntimeError
            If a command buffer that this graph, or another one on its data sources, was encoded on
            is not committed.
        """
        self._wait_for_outstanding()
        return checkpoint_of(self._compiled.data_sources)

    def restore(self, checkpoint: Mapping[str, npt.ArrayLike]) -> None:
        """Take over what `checkpoint` of a graph of the same sources has returned.

        The numbers go into the data sources' arrays, and kernels read them again; other graphs on
        these sources do so in `reload_from_data_sources`.

        Parameters
        ----------
        checkpoint : mapping of str to array_like
            Such as what `numpy.load` returns.

        Raises
        ------
        TypeError, ValueError
            If one of the arrays is missing, has another shape or kind of numbers or is of something
            else, or a data source is not one of those over arrays; nothing has changed then.
        GraphError, RuntimeError
            If a command buffer that this graph, or another one on its data sources, was encoded on
            is not committed; nothing has changed then.
        """
        self._wait_for_outstanding()
        restore_all(self._compiled.data_sources, checkpoint)
        self._compiled.reload_from_data_sources(self)

    # ---- copies

    def copy(self, device: _core.Device | str | None = None) -> Self:
        """Return a graph of the same nodes, as they were compiled (``copyWithZone:device:``).

        Data sources are copied as kernels copy theirs, so that the two graphs train apart: by
        ``copy(device=...)``, else ``copy()`` or ``__copy__``. Others serve both.

        Parameters
        ----------
        device : Device or str, optional
            Where the copy runs; by default where this graph does.

        Returns
        -------
        Graph
            Of the class of this one.

        Raises
        ------
        TypeError, DeviceError
            If ``device`` is something else, or there is no such device.
        """
        target = self.device if device is None else resolve_device(device, self)
        sources: dict[int, Any] = {}
        for node in self._compiled.plan.included:
            for attribute in _DATA_SOURCES:
                source = node.__dict__.get(attribute)
                if source is not None and id(source) not in sources:
                    sources[id(source)] = copied_source(source, target)
        results = _copies(self._results, sources)
        return cast(
            "Self", self._rebuilt(type(self), target, results, self._needed, self._settings())
        )

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def _settings(self) -> dict[str, Any]:
        names = (
            "format",
            "destination_image_allocator",
            "output_state_is_temporary",
            "label",
            "options",
        )
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def _rebuilt(
        cls: Any, device: Any, results: list[Any], needed: list[bool], settings: dict[str, Any]
    ) -> Any:
        _REBUILDING.active = True
        try:
            graph = cls(device, result_images=results, results_are_needed=needed)
        finally:
            _REBUILDING.active = False
        for name, value in settings.items():
            setattr(graph, name, value)
        return graph

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle nodes and settings; the device is left out."""
        return _unpickled, (type(self), *flatten(self._results), self._needed, self._settings())

    # ---- for people

    @property
    def debug_description(self) -> str:
        """The compiled nodes and what they read, images as of the last encode, and updates."""
        return described(self, self._compiled)

    def __str__(self) -> str:
        """Show the compiled nodes."""
        return self.debug_description

    def __repr__(self) -> str:
        """Show size, inputs and device."""
        compiled = getattr(self, "_compiled", None)
        if compiled is None:
            return "<Graph that was never constructed>"
        return (
            f"Graph({len(compiled.plan.order)} nodes, images={self.source_image_handles!r}, "
            f"states={self.source_state_handles!r}, device={self.device.kind!r})"
        )


def _unpickled(
    cls: Any, states: Any, places: list[int], needed: list[bool], settings: dict[str, Any]
) -> Any:
    nodes = restore(states)
    return Graph._rebuilt(cls, None, [nodes[place] for place in places], needed, settings)


_DATA_SOURCES = ("_weights", "_data_source")
_REBUILDING = threading.local()  # whether a thread is copying a graph


def _copies(nodes: list[ImageNode], data_sources: Mapping[int, Any]) -> list[ImageNode]:
    """Return copies of nodes, made with copies of all that they refer to.

    Handles, allocators and padding policies stay the objects they are, and so do data sources, but
    for those that ``data_sources`` has another one for, by their id.
    """
    states, places = flatten(nodes)
    memo: dict[int, Any] = {}
    for _, attributes in states:
        for name in ("_handle", "_allocator", "_padding", *_DATA_SOURCES):
            kept = attributes.get(name)
            memo[id(kept)] = data_sources.get(id(kept), kept)
    copies = restore(copying.deepcopy(states, memo))
    return [copies[place] for place in places]


def _are_labels(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and bool(values) and isinstance(values[0], LossLabels)


def _one_in_a_list(given: Any) -> Any:
    """Return lists and mappings as they are, and in a list what is given for one loss node."""
    if given is None:
        return []
    return given if isinstance(given, (list, tuple, dict)) and not _are_labels(given) else [given]


def _temporary(batch: Any) -> bool:
    return any(image.is_temporary for image in batch)
