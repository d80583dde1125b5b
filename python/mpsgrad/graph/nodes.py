"""What graphs are written with: image nodes, state nodes, and what all filter nodes are.

Nodes are placeholders. They have no device and own no memory; `Graph` makes kernels of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mpsgrad import _core
from mpsgrad._kernel import Settings
from mpsgrad._wording import padding_meant
from mpsgrad.errors import GradientUnavailableError, GraphError
from mpsgrad.graph._flat import flatten, next_serial, restore_one

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from mpsgrad.graph._compiler import Compiler

__all__ = [
    "BinaryGradientStateNode",
    "FilterNode",
    "GradientFilterNode",
    "GradientStateNode",
    "ImageNode",
    "StateNode",
    "TrainableNode",
    "TrainingStyle",
]


class _Node(Settings):
    """What image, state and filter nodes share: how they are pickled and copied."""

    _graph_node = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the node with all that it refers to."""
        states, (place,) = flatten([self])
        return restore_one, (states, place)


class TrainingStyle(IntEnum):
    """Who updates the weights of a trainable node, and when (``MPSNNTrainingStyle``)."""

    NONE = 0
    """Nobody: the weights are frozen."""
    CPU = 1
    """The data source's ``..._cpu`` methods, when the command buffer has completed."""
    GPU = 2
    """The data source, while the graph is encoded, by work it encodes itself."""


def _checked_handle(owner: str, handle: Any) -> Any:
    try:
        hash(handle)
    except TypeError:
        raise TypeError(
            f"{owner}: handle must be hashable, got a {type(handle).__name__}"
        ) from None
    return handle


def label_of(handle: Any) -> str | None:
    """Return the label of a handle: itself if it is a string, else its attribute ``label``."""
    return handle if isinstance(handle, str) else getattr(handle, "label", None)


class ImageNode(_Node):
    """A place in a graph where a batch of images will be (``MPSNNImageNode``).

    One made by hand is an input of the graph; the others are the `FilterNode.result_image` of the
    node that produces them.

    Parameters
    ----------
    handle : hashable, optional
        Tells inputs and exported images apart. A string names the node in messages as well.

    Attributes
    ----------
    export_from_graph : bool
        Return this image from encodes, among the intermediates.
    synchronize_resource : bool
        Make it readable by the CPU once the work has completed.
    stop_gradient : bool
        Training graphs do not go past this image.

    Raises
    ------
    TypeError
        If the handle is not hashable.
    """

    export_from_graph: bool
    synchronize_resource: bool
    stop_gradient: bool

    def __init__(self, handle: Hashable | None = None) -> None:
        self.handle = handle
        self.format = _core.ChannelFormat.NONE
        self._allocator: Any = None
        self.export_from_graph = False
        self.synchronize_resource = False
        self.stop_gradient = False
        self._producer: FilterNode | None = None
        self._gradient_of: ImageNode | None = None

    @classmethod
    def exported(cls, handle: Hashable | None = None) -> Self:
        """Return a node with `export_from_graph` set (``exportedNodeWithHandle:``).

        An input of a graph, which encodes do not return: export what a filter node has made.
        """
        node = cls(handle)
        node.export_from_graph = True
        return node

    @property
    def handle(self) -> Hashable | None:
        """Identity among the inputs or exported images of a graph; None where there is none."""
        return self._handle

    @handle.setter
    def handle(self, handle: Hashable | None) -> None:
        self._handle: Hashable | None = _checked_handle("ImageNode", handle)

    @property
    def format(self) -> _core.ChannelFormat:
        """Storage of this image.

        NONE: that of the producer's first source, and `Graph.format` where an input has none.
        """
        return self._format

    @format.setter  # noqa: A003  Apple's word
    def format(self, channel_format: _core.ChannelFormat) -> None:
        if not isinstance(channel_format, _core.ChannelFormat):
            raise TypeError(
                f"ImageNode: format must be a ChannelFormat, got {type(channel_format).__name__}"
            )
        self._format: _core.ChannelFormat = channel_format

    @property
    def image_allocator(self) -> Any:
        """How the image is made: TEMPORARY, DEFAULT or a callable, as of a kernel.

        Results that a graph is asked for and needs are ordinary images unless this is set; the
        first is made by `Graph.destination_image_allocator` in any case.
        """
        return _core.TEMPORARY if self._allocator is None else self._allocator

    @image_allocator.setter
    def image_allocator(self, allocator: Any) -> None:
        if not (allocator is _core.TEMPORARY or allocator is _core.DEFAULT or callable(allocator)):
            raise TypeError(
                "ImageNode: image_allocator must be DEFAULT, TEMPORARY or a callable, got "
                f"{type(allocator).__name__}"
            )
        self._allocator = allocator

    @property
    def producer(self) -> FilterNode | None:
        """The filter node whose result this is; None for an input."""
        return self._producer

    @property
    def gradient_of(self) -> ImageNode | None:
        """The forward image that this is the gradient of, if `training_graph` made it."""
        return self._gradient_of

    def export(self, *, readable: bool = True) -> Self:
        """Have encodes return this image.

        Parameters
        ----------
        readable : bool, default True
            Make it an ordinary image that NumPy can read: sets `synchronize_resource` and
            `image_allocator` besides `export_from_graph`.

        Returns
        -------
        ImageNode
            This node.
        """
        self.export_from_graph = True
        if readable:
            self.synchronize_resource = True
            self.image_allocator = _core.DEFAULT
        return self

    def __repr__(self) -> str:
        """Show the handle, or what produces the image."""
        if self.handle is not None:
            return f"ImageNode({self.handle!r})"
        return f"<ImageNode, result of {self._producer!r}>" if self._producer else "ImageNode()"


class StateNode(_Node):
    """A place in a graph where states will be (``MPSNNStateNode``); never made directly.

    A state that no node of a graph uses, and that is not exported, is not made.
    """

    _handle: Hashable | None
    export_from_graph: bool
    """Return the states from encodes."""
    synchronize_resource: bool
    """Make them readable by the CPU once the work has completed."""
    _producer: FilterNode

    def __init__(self) -> None:
        raise TypeError(
            f"{type(self).__name__} is made by a filter node; use its result_state or input_labels"
        )

    @classmethod
    def _make(cls, producer: FilterNode) -> Self:
        node = cls.__new__(cls)
        node._handle = None
        node.export_from_graph = False
        node.synchronize_resource = False
        node._producer = producer
        return node

    @property
    def handle(self) -> Hashable | None:
        """Identity among the input or exported states of a graph."""
        return self._handle

    @handle.setter
    def handle(self, handle: Hashable | None) -> None:
        self._handle = _checked_handle(type(self).__name__, handle)

    def __repr__(self) -> str:
        """Show the handle and the node it belongs to."""
        name = "" if self.handle is None else f" {self.handle!r}"
        return f"<{type(self).__name__}{name} of {self._producer!r}>"


class GradientStateNode(StateNode):
    """What a filter with one source leaves for its gradient (``MPSNNGradientStateNode``)."""


class BinaryGradientStateNode(StateNode):
    """What a filter with two sources leaves (``MPSNNBinaryGradientStateNode``)."""


def image_argument(owner: str, name: str, node: Any) -> ImageNode:
    """Return the image node that an argument means: itself, or the result of a filter node."""
    if isinstance(node, FilterNode):
        return node.result_image
    if not isinstance(node, ImageNode):
        raise TypeError(f"{owner}: {name} must be an ImageNode, got {type(node).__name__}")
    return node


class FilterNode(_Node):
    """A kernel in a graph (``MPSNNFilterNode``); its subclasses are what graphs are made of.

    Every node has one `result_image`, and keeps alive the nodes it reads.
    """

    # The gradient node's class; None where Apple has none.
    _gradient_node: ClassVar[type[GradientFilterNode] | None] = None
    _state_node: ClassVar[Any] = None
    # The kernel's class on every device, and whether each encode leaves a kernel changed.
    _kernel: ClassVar[Any] = None
    _encodes_change_it: ClassVar[bool] = False
    # What a graph raises, with the node's name, where a kernel's constructor or a setting does.
    _refusals: ClassVar[dict[type[Exception], type[Exception]]] = {
        TypeError: TypeError,
        ValueError: ValueError,
    }
    # Whether the result has as many channels as the first source.
    _keeps_channels: ClassVar[bool] = False
    # What a channel becomes depends on which others there are.
    _mixes_channels: ClassVar[bool] = False

    def __init__(
        self,
        sources: Sequence[Any],
        *,
        label: str | None = None,
        names: Sequence[str] = ("source",),
    ) -> None:
        who = type(self).__name__
        if type(self)._is_abstract():
            raise TypeError(f"{who} is what its subclasses are; make one of those")
        self._sources = [
            image_argument(who, names[min(i, len(names) - 1)], source)
            for i, source in enumerate(sources)
        ]
        self._serial = next_serial()
        self._padding: _core.Padding | None = None
        self.label = label
        self._result_image = ImageNode()
        self._result_image._producer = self
        self._state: StateNode | None = None
        if self._state_node is not None:
            self._state = self._state_node._make(self)

    @classmethod
    def _is_abstract(cls) -> bool:
        return cls in (FilterNode, GradientFilterNode) or cls.__dict__.get("_abstract", False)

    @property
    def label(self) -> str | None:
        """A name for messages and for the kernel; overrides that of a data source."""
        return self._label

    @label.setter
    def label(self, label: str | None) -> None:
        if not (label is None or isinstance(label, str)):
            raise TypeError(
                f"{type(self).__name__}: label must be a str or None, got {type(label).__name__}"
            )
        self._label = label

    @property
    def source_images(self) -> tuple[ImageNode, ...]:
        """The image nodes that are read, in the order of the constructor."""
        return tuple(self._sources)

    @property
    def result_image(self) -> ImageNode:
        """`ImageNode` of the result; one and the same at every read."""
        return self._result_image

    @property
    def result_state(self) -> StateNode | None:
        """`StateNode` for the gradient node, or None. Reading it uses nothing."""
        return self._state

    @property
    def result_states(self) -> list[StateNode] | None:
        """`result_state` in a list, or None."""
        return None if self._state is None else [self._state]

    @property
    def padding_policy(self) -> _core.Padding | None:
        """How the result is sized and placed; None for the kernel's own policy.

        A policy of your own that edits the kernel edits it for good: the kernel lives as long as
        the graph, and only its offset is set anew before each call. A graph also asks it once more
        for each new size of inputs.
        """
        return self._padding

    @padding_policy.setter
    def padding_policy(self, padding: _core.Padding | None) -> None:
        if not (padding is None or isinstance(padding, _core.Padding)):
            raise TypeError(
                f"{type(self).__name__}: padding_policy must be a Padding or None, got "
                f"{type(padding).__name__}{padding_meant(padding)}"
            )
        self._padding = padding

    # ---- gradients

    def _require_gradients(self, method: str) -> None:
        if self._gradient_node is None:
            raise GradientUnavailableError(
                f"{self._name()} has no gradient, Apple has no such class; {method} cannot make "
                "one. Set stop_gradient on its result_image to end a training graph here"
            )

    def _gradient_source(self, method: str, source: Any) -> ImageNode:
        if isinstance(source, (list, tuple)):
            if len(source) != 1:
                raise ValueError(
                    f"{self._name()}: {method} takes one source, as there is one result, got "
                    f"{len(source)}"
                )
            (source,) = source
        return image_argument(self._name(), "source", source)

    def _gradient_nodes(self, gradient: ImageNode) -> list[GradientFilterNode]:
        """Make every gradient node; the order is that of `_differentiated`."""
        assert self._gradient_node is not None
        return [self._gradient_node._of(self, gradient)]

    def _differentiated(self) -> list[ImageNode]:
        """Forward images that the gradient nodes belong to."""
        return self._sources[:1]

    def gradient_filter(self, source: Any) -> GradientFilterNode:
        """Return the gradient node (``gradientFilterWithSource:``).

        Parameters
        ----------
        source : ImageNode
            Gradient of the loss with respect to `result_image`; alone, or in a list.

        Returns
        -------
        GradientFilterNode

        Raises
        ------
        GradientUnavailableError
            If there is no such class.
        TypeError
            If ``source`` is no node, there are several gradient nodes (`gradient_filters` returns
            them), or the result already is a gradient.
        ValueError
            If the list does not hold one node.
        """
        self._require_gradients("gradient_filter")
        if len(self._differentiated()) > 1:
            raise TypeError(
                f"{self._name()} has {len(self._differentiated())} gradient nodes; use "
                "gradient_filters"
            )
        return self._gradient_nodes(self._gradient_source("gradient_filter", source))[0]

    def gradient_filters(self, source: Any) -> list[GradientFilterNode]:
        """Return all gradient nodes, one a source (``gradientFiltersWithSource:``).

        Each call makes new ones, which would all run and all update weights.

        Parameters
        ----------
        source : ImageNode
            Gradient of the loss with respect to `result_image`; alone, or in a list.

        Returns
        -------
        list of GradientFilterNode
            In the order of the forward node's sources.

        Raises
        ------
        GradientUnavailableError
            If there is no such class.
        TypeError
            If ``source`` is no node, or the result already is a gradient.
        ValueError
            If the list does not hold one node.
        """
        self._require_gradients("gradient_filters")
        return self._gradient_nodes(self._gradient_source("gradient_filters", source))

    def training_graph(
        self,
        source_gradient: Any = None,
        node_handler: Callable[[FilterNode, FilterNode | None, ImageNode, ImageNode], object]
        | None = None,
    ) -> list[FilterNode]:
        """Make the gradient part of the graph (``trainingGraphWithSourceGradient:nodeHandler:``).

        Parameters
        ----------
        source_gradient : ImageNode, optional
            Gradient with respect to `result_image`, from the caller or another graph. By default
            the result itself is the gradient: right for loss and initial-gradient nodes, which end
            most graphs.
        node_handler : callable, optional
            Called as ``handler(gradient_node, inference_node, inference_source, gradient_source)``
            for each new node, to set its properties. ``inference_node`` is None for an addition of
            gradients of one image. To prune, set ``stop_gradient`` on the new node's result or on
            ``inference_source``. Without a handler the new results get the handles of the forward
            images they belong to.

        Returns
        -------
        list of FilterNode
            The nodes whose results nobody in the gradient part uses, in the order they were made.
            Give all of them whose branches hold weights to `Graph`, or those are not trained.

        Raises
        ------
        GradientUnavailableError
            If a node on the way has no gradient.
        """
        from mpsgrad.graph._training import training_graph

        return training_graph(self, source_gradient, node_handler)

    # ---- what a graph makes of the node

    def _kernel_arguments(self) -> dict[str, Any]:
        return {}

    def _kernel_settings(self) -> dict[str, Any]:
        return {}

    def _make_kernel(self, device: _core.Device, **more: Any) -> Any:
        try:
            return self._new_kernel(device, **more)
        except (TypeError, ValueError, RuntimeError) as error:
            if type(error) not in self._refusals:
                raise
            raise self._refusals[type(error)](f"{self._name()}: {error}") from error

    def _new_kernel(self, device: _core.Device, **more: Any) -> Any:
        kernel = self._kernel(**self._kernel_arguments(), **more, device=device)
        for name, value in self._kernel_settings().items():
            setattr(kernel, name, value)
        if self._padding is not None:
            kernel.padding = self._padding
        if self.label is not None:
            kernel.label = self.label
        return kernel

    def _compile(self, to: Compiler) -> None:
        """Add this node's steps."""
        to.graph._add_unary(
            self._name(),
            to.kernel(self),
            self._make_kernel(to.device) if self._encodes_change_it else None,
            to.image(self._sources[0]),
            to.image(self.result_image),
            to.state(self._state),
        )

    def _result_channels(self, sources: Sequence[int | None], kernel: Any) -> int | None:  # noqa: ARG002
        """Return how many channels the result has; None where that is not known before an encode.

        ``sources`` are those of the sources, ``kernel`` is this node's, where it has one.
        """
        return sources[0] if self._keeps_channels else None

    def _source_states(self) -> list[StateNode]:
        """State nodes that are read."""
        return []

    def _updates_weights(self) -> bool:
        """Whether encodes have an effect beyond the result."""
        return False

    def _copied_image(self) -> ImageNode | None:
        """Return the image that the result is a plain copy of; None where it is none."""
        return None

    def _name(self) -> str:
        name = type(self).__name__
        return name if self.label is None else f"{name} {self.label!r}"

    def _describe(self) -> dict[str, Any]:
        """Return what `repr` shows."""
        return self._kernel_arguments()

    def __repr__(self) -> str:
        """Show the class, its parameters and its label."""
        parts = [f"{name}={value!r}" for name, value in self._describe().items()]
        if self.label is not None:
            parts.append(f"label={self.label!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


class GradientFilterNode(FilterNode):
    """The gradient of a filter node (``MPSNNGradientFilterNode``).

    Made by a forward node's `gradient_filter`, which passes on everything the forward node has, or
    by hand: then whatever is given must be what the forward node would have given.

    Parameters
    ----------
    source_gradient : ImageNode
        Gradient of the loss with respect to the forward result.
    source_image : ImageNode
        The image of the forward pass that the gradient kernel reads.
    gradient_state : StateNode
        `FilterNode.result_state` of the forward node.
    label : str, optional
    **parameters
        What the forward node was made with, under the same names; ``padding_policy`` where Apple's
        initializer has one.

    Raises
    ------
    TypeError
        If ``gradient_state`` is of another class of nodes, or a parameter is unknown.
    ValueError
        If ``source_image`` or a parameter is not the forward node's.
    """

    # What a node made by hand may be given: the forward node's attributes, and parameters that are
    # several of them at once.
    _repeats: ClassVar[tuple[str, ...]] = ()
    _joint_repeats: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    _takes_policy: ClassVar[bool] = False

    def __init__(
        self,
        source_gradient: Any,
        source_image: Any,
        gradient_state: Any,
        *,
        label: str | None = None,
        **parameters: Any,
    ) -> None:
        who = type(self).__name__
        if not isinstance(gradient_state, StateNode):
            raise TypeError(
                f"{who}: gradient_state must be a StateNode, got {type(gradient_state).__name__}"
            )
        forward = gradient_state._producer
        if forward._gradient_node is not type(self):
            raise TypeError(
                f"{who}: gradient_state must be of a node whose gradient this is, got that of "
                f"{forward._name()}"
            )
        self._begin(forward, image_argument(who, "source_gradient", source_gradient), label)
        policy = parameters.pop("padding_policy", None) if self._takes_policy else None
        if policy is not None:
            self.padding_policy = policy
        for name, value in parameters.items():
            joint = self._joint_repeats.get(name, (name,))
            if name not in self._repeats and name not in self._joint_repeats:
                raise TypeError(f"{who}: there is no parameter {name!r}")
            for own in (getattr(forward, each) for each in joint):
                if not _same(value, own):
                    raise ValueError(
                        f"{who}: {name} must be that of {forward._name()}, {own!r}, got {value!r}"
                    )
        image = image_argument(who, "source_image", source_image)
        if image is not self._sources[1]:
            raise ValueError(
                f"{who}: source_image must be {self._sources[1]!r}, which {forward._name()} "
                f"{'makes' if self._sources[1] is forward.result_image else 'reads'}, got {image!r}"
            )

    def _begin(self, forward: FilterNode, gradient: ImageNode, label: str | None) -> None:
        self._forward = forward
        FilterNode.__init__(self, [gradient, *self._forward_images(forward)], label=label)
        if forward._padding is not None:
            self._padding = forward._padding.inverse()

    @classmethod
    def _of(cls, forward: FilterNode, gradient: ImageNode, **own: Any) -> Self:
        """Make the gradient node of a forward node."""
        node = cls.__new__(cls)
        for name, value in own.items():
            setattr(node, name, value)
        node._begin(forward, gradient, None)
        return node

    def _forward_images(self, forward: FilterNode) -> list[ImageNode]:
        """Images of the forward pass that the kernel reads: the forward source, for most."""
        return forward._sources[:1]

    def _place(self) -> int:
        """Return which of the forward node's gradient nodes this is."""
        return 0

    @property
    def forward_node(self) -> FilterNode:
        """The node this is the gradient of."""
        return self._forward

    def _require_gradients(self, method: str) -> None:
        raise TypeError(
            f"{self._name()}: {method} is not available, there are no gradients of gradients"
        )

    def _source_states(self) -> list[StateNode]:
        return [] if self._forward._state is None else [self._forward._state]

    def _kernel_arguments(self) -> dict[str, Any]:
        return self._forward._kernel_arguments()

    def _describe(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        """Show the class and the forward node."""
        return f"{type(self).__name__}(of {self._forward!r})"

    def _compile(self, to: Compiler) -> None:
        to.graph._add_gradient(
            self._name(),
            to.kernel(self),
            to.image(self._sources[0]),
            to.image(self._sources[1]),
            to.state(self._forward._state),
            to.image(self.result_image),
        )


def of_forward(name: str) -> Any:
    """Make a property of a gradient node that shows what the forward node has."""
    return property(lambda self: getattr(self._forward, name), doc=f"The forward node's `{name}`.")


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(a == b)
    except ValueError:  # arrays
        return bool((a == b).all())


class TrainableNode(FilterNode):
    """Base class of nodes with weights (``MPSNNTrainableNode``)."""

    _abstract = True
    _training_style = TrainingStyle.GPU
    # The data source refuses to load, or has what does not fit.
    _refusals: ClassVar[dict[type[Exception], type[Exception]]] = {
        TypeError: TypeError,
        ValueError: GraphError,
        RuntimeError: GraphError,
    }

    @property
    def training_style(self) -> TrainingStyle:
        """Who updates the weights; copied to gradient nodes when they are made, where it counts."""
        return self._training_style

    @training_style.setter
    def training_style(self, style: TrainingStyle) -> None:
        try:
            self._training_style = TrainingStyle(style)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__}: training_style must be a TrainingStyle, got {style!r}"
            ) from None
