"""Losses: `Loss` with its `LossLabels`, `YOLOLoss`, separate `ForwardLoss` and `LossGradient`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import (
    ArrayUnaryKernel,
    array_queue,
    as_array,
    as_image_array,
    batch_of,
    finish,
    place_for,
    resolve_device,
)
from mpsgrad._core import LossDataDescriptor, LossLabels, LossType, ReductionType
from mpsgrad._kernel import KernelFacade, Settings, shown

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ForwardLoss",
    "InitialGradient",
    "Loss",
    "LossDataDescriptor",
    "LossDescriptor",
    "LossGradient",
    "LossLabels",
    "LossType",
    "ReductionType",
    "YOLOLoss",
    "YOLOLossDescriptor",
    "one_hot",
]

_FIELDS = (
    "loss_type",
    "reduction_type",
    "reduce_across_batch",
    "weight",
    "label_smoothing",
    "number_of_classes",
    "epsilon",
    "delta",
)
# What ForwardLoss and LossGradient let change between encodes.
_SETTINGS = ("weight", "label_smoothing", "epsilon", "delta")
# Of a YOLOLossDescriptor: its parts, and the rest.
_PARTS = (
    "xy_loss_descriptor",
    "wh_loss_descriptor",
    "confidence_loss_descriptor",
    "classes_loss_descriptor",
)
_USUAL_PARTS = (
    LossType.MEAN_SQUARED_ERROR,
    LossType.HUBER,
    LossType.SIGMOID_CROSS_ENTROPY,
    LossType.SOFT_MAX_CROSS_ENTROPY,
)
_YOLO_FIELDS = (
    "reduction_type",
    "anchor_boxes",
    "reduce_across_batch",
    "rescore",
    "scale_xy",
    "scale_wh",
    "scale_no_object",
    "scale_object",
    "scale_class",
    "min_iou_for_object_presence",
    "max_iou_for_object_absence",
)


class LossDescriptor(Settings, _core.LossDescriptor):
    """A loss function, its reduction and its settings (``MPSCNNLossDescriptor``).

    ``y`` are predictions, ``t`` labels. Every property can be set; a kernel copies them when it is
    made.

    Parameters
    ----------
    loss_type : LossType
        ``MEAN_ABSOLUTE_ERROR``: abs(y - t). ``MEAN_SQUARED_ERROR``: (y - t)^2; both are element
        losses, the mean is a matter of the reduction. ``SOFT_MAX_CROSS_ENTROPY``: -t logsoftmax(y)
        over the channels of a pixel, y are logits. ``SIGMOID_CROSS_ENTROPY``: the same for each
        element by itself. ``CATEGORICAL_CROSS_ENTROPY``: -t ln(y), y are probabilities. ``HINGE``:
        max(1 - (2 t - 1) y, 0). ``HUBER``: e^2 / 2 for e = abs(y - t) up to delta, then linear.
        ``COSINE_DISTANCE``: 1 - sum of y t of an image; reduction SUM, no weights. ``LOG``:
        -t ln(y + epsilon) - (1 - t) ln(1 - y + epsilon). ``KULLBACK_LEIBLER_DIVERGENCE``:
        t (ln(t) - y), y are log-probabilities.
    reduction_type : ReductionType
        ``NONE``: a loss image of the source's size. ``SUM``. ``MEAN``: over all elements, for
        ``SOFT_MAX_CROSS_ENTROPY`` over pixels. ``SUM_BY_NON_ZERO_WEIGHTS``: over the elements whose
        weight is not 0.
    reduce_across_batch : bool, default False
        One value for the batch, in the first loss image; the others become 0.
    weight : float, default 1.0
        Factor of every element, of loss and gradient.
    label_smoothing : float, default 0.0
        The two cross entropies on logits only, 0 to 1: labels become ``t * (1 - s) + s / n`` with
        n = ``number_of_classes`` for softmax, 2 for sigmoid.
    number_of_classes : int, default 1
        For label smoothing; not taken from the images.
    epsilon : float, default 1e-7
        ``LOG`` only.
    delta : float, default 1.0
        ``HUBER`` only.

    Raises
    ------
    ValueError
        If a number is out of range, or ``COSINE_DISTANCE`` comes with another reduction than SUM.
    """

    def __init__(
        self,
        loss_type: LossType,
        reduction_type: ReductionType,
        *,
        reduce_across_batch: bool = False,
        weight: float = 1.0,
        label_smoothing: float = 0.0,
        number_of_classes: int = 1,
        epsilon: float = 1e-7,
        delta: float = 1.0,
    ) -> None:
        super().__init__(
            loss_type,
            reduction_type,
            reduce_across_batch,
            weight,
            label_smoothing,
            number_of_classes,
            epsilon,
            delta,
        )

    def copy(self) -> LossDescriptor:
        """Return an equal descriptor."""
        return _copied(self)

    def __repr__(self) -> str:
        """Show type, reduction and what differs from the defaults."""
        usual = LossDescriptor(LossType.HUBER, ReductionType.SUM)
        parts = [f"LossType.{self.loss_type.name}", f"ReductionType.{self.reduction_type.name}"]
        parts += [
            f"{name}={shown(getattr(self, name))}"
            for name in _FIELDS[2:]
            if getattr(self, name) != getattr(usual, name)
        ]
        return f"LossDescriptor({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return _rebuild_descriptor, ({name: getattr(self, name) for name in _FIELDS},)


def _rebuild_descriptor(fields: dict[str, Any]) -> LossDescriptor:
    return LossDescriptor(**fields)


def _copied(descriptor: _core.LossDescriptor) -> LossDescriptor:
    return _rebuild_descriptor({name: getattr(descriptor, name) for name in _FIELDS})


class _LossKernel(KernelFacade):
    """What the three kernels with a descriptor share."""

    descriptor: Any

    def _arguments(self) -> dict[str, Any]:
        return {"descriptor": _copied(self.descriptor)}


def _part(name: str, summary: str) -> property:
    """Return the property of a `YOLOLossDescriptor` that holds the loss of a part."""

    def read(self: YOLOLossDescriptor) -> LossDescriptor:
        return cast("LossDescriptor", self.__dict__[name])

    def write(self: YOLOLossDescriptor, part: _core.LossDescriptor) -> None:
        if not isinstance(part, _core.LossDescriptor):
            raise TypeError(
                f"YOLOLossDescriptor: {name}_loss_descriptor must be a LossDescriptor, got "
                f"{type(part).__name__}"
            )
        self.__dict__[name] = part if isinstance(part, LossDescriptor) else _copied(part)

    return property(read, write, doc=summary)


def one_hot(classes: Any, count: int) -> npt.NDArray[np.float32]:
    """Return labels for losses over classes: 1 in the channel of each class, 0 in the others.

    Parameters
    ----------
    classes : array_like of int, shape (N,) or (N, H, W)
        A class for each image, or for each pixel; from 0 on.
    count : int
        How many classes there are.

    Returns
    -------
    ndarray of float32, shape (N, 1, 1, count) or (N, H, W, count)

    Raises
    ------
    TypeError
        If the classes or ``count`` are no integers.
    ValueError
        If they have another number of axes, one of them is below 0 or not below ``count``, or that
        is not positive.
    """
    if not hasattr(count, "__index__"):
        raise TypeError(f"one_hot: count must be an int, got {type(count).__name__}")
    if not 0 < operator.index(count) < 2**31:
        raise ValueError(f"one_hot: count must be from 1 to 2**31 - 1, got {count}")
    array = as_array("one_hot", classes, "classes")
    if array.dtype.kind not in "iu":
        raise TypeError(f"one_hot: classes must be integers, got {array.dtype}")
    if array.ndim not in (1, 3):
        raise ValueError(f"one_hot: classes must have shape (N,) or (N, H, W), got {array.shape}")
    if array.ndim == 1:
        array = array[:, np.newaxis, np.newaxis]
    if array.size and not 0 <= array.min() <= array.max() < count:
        raise ValueError(
            f"one_hot: classes must be from 0 to {count - 1}, got {array.min()} to {array.max()}"
        )
    labels = np.zeros((*array.shape, count), np.float32)
    np.put_along_axis(labels, array[..., np.newaxis].astype(np.intp), 1, axis=3)
    return labels


def _as_labels(
    owner: object, labels: Any, like: npt.NDArray[Any], single: bool
) -> npt.NDArray[Any]:
    """Return labels as a float32 ``(N, H, W, C)`` array of the predictions' shape."""
    array, one = as_image_array(owner, labels, "labels", halves=False, labels=True)
    if array.shape != like.shape or one != single:
        shape = like.shape[1:] if single else like.shape
        raise ValueError(
            f"{type(owner).__name__}: labels have shape {np.shape(labels)}, but predictions have "
            f"{shape}"
        )
    return array


def as_label_weights(
    owner: object,
    weights: Any,
    like: npt.NDArray[Any],
    single: bool,
    name: str = "weights",
    of: str = "predictions",
) -> npt.NDArray[Any] | None:
    """Return weights as a float32 array of the shape of ``like``, along axes of length 1 repeated.

    None stays None.
    """
    if weights is None:
        return None
    array, one = as_image_array(owner, weights, name, halves=False)
    fits = all(own in (1, wanted) for own, wanted in zip(array.shape, like.shape, strict=True))
    if not fits or one != single:
        shape = like.shape[1:] if single else like.shape
        raise ValueError(
            f"{type(owner).__name__}: {name} have shape {np.shape(weights)}, but {of} have "
            f"{shape}; axes of length 1 are repeated"
        )
    return np.ascontiguousarray(np.broadcast_to(array, like.shape))


def _per_image(losses: npt.NDArray[Any], descriptor: Any, single: bool) -> npt.NDArray[np.float32]:
    """Loss images as the array that a call returns: no axes of length 1 for reduced losses."""
    if descriptor.reduction_type == ReductionType.NONE:
        return losses[0] if single else losses
    values = losses.reshape(len(losses))
    return values[0, ...] if single or descriptor.reduce_across_batch else values


class _LabelledLoss(KernelFacade):
    """What the kernels share that are given labels and return the gradient."""

    device: _core.Device
    reduction_type: ReductionType
    encode_batch: Any

    def __call__(
        self, predictions: Any, labels: Any, weights: Any = None, *, out: Any = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Run the kernel on arrays, and wait.

        Parameters
        ----------
        predictions : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Used in place on the CPU device if it is C-contiguous.
        labels : array_like, float32, of the same shape
        weights : array_like, float32, of the same shape or with axes of length 1, optional
            One factor for each element; ``(N, H, W, 1)`` has one for each pixel.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the gradient: C-contiguous, of the predictions' shape.

        Returns
        -------
        gradient : ndarray
            In the shape and dtype of ``predictions``, unless ``out`` has another dtype.
        loss : ndarray of float32
            Without reduction, of the predictions' shape; else shape (N,), or () for one image or
            with ``reduce_across_batch``.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        """
        array, single = as_image_array(self, predictions, "predictions")
        targets = _as_labels(self, labels, array, single)
        factors = as_label_weights(self, weights, array, single)
        whole = self.reduction_type == ReductionType.NONE
        size = (array.shape[2], array.shape[1], array.shape[3]) if whole else (1, 1, 1)
        states = LossLabels.batch(self.device, targets, factors, loss_image_size=size, copy=False)
        command_buffer = array_queue(self.device).command_buffer()
        sources = batch_of(self.device, array)
        out, places = place_for(self, out, single)
        images = self.encode_batch(command_buffer, sources, states, allocator=places)
        _core.synchronize(states, command_buffer)
        gradient = finish(command_buffer, images, out, single)
        losses = np.stack([state.loss for state in states])
        return gradient, _per_image(losses, self, single)


class Loss(_LossKernel, _LabelledLoss, _core.Loss):
    """Loss and its gradient in one kernel (``MPSCNNLoss``).

    What an encode writes or returns is the gradient with respect to the source; the loss itself is
    left in the labels. The gradient is that of the summed loss: ``weight`` and the weights scale
    it, the reduction does not. To train on a mean, put ``1 / N`` into ``weight``.

    Parameters
    ----------
    descriptor : LossDescriptor
        Copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor asks for what is invalid.
    """

    def __init__(
        self, descriptor: _core.LossDescriptor, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), descriptor)


class YOLOLossDescriptor(Settings, _core.YOLOLossDescriptor):
    """What `YOLOLoss` compares boxes by (``MPSCNNYOLOLossDescriptor``).

    Four losses for the parts of a box, each with a scale that multiplies its loss and gradient.
    Every property but ``number_of_anchor_boxes`` can be set; a kernel copies them when it is made.

    Parameters
    ----------
    xy_loss_type, wh_loss_type, confidence_loss_type, classes_loss_type : LossType
        Of the centre, the size, the confidence and the classes; usually ``MEAN_SQUARED_ERROR``,
        ``HUBER``, ``SIGMOID_CROSS_ENTROPY`` and ``SOFT_MAX_CROSS_ENTROPY``. Not
        ``COSINE_DISTANCE``. Their other settings are those of ``xy_loss_descriptor`` and its like,
        each a `LossDescriptor` whose ``weight``, ``delta``, ``epsilon`` and label smoothing count,
        and whose reduction does not.
    reduction_type : ReductionType
        Of all elements together; ``MEAN`` divides by all channels.
    anchor_boxes : array_like of float32, shape (boxes, 2), or bytes
        Width and height of each anchor in grid cells; bytes are pairs of float32.
    number_of_anchor_boxes : int, optional
        Must be that of ``anchor_boxes``.
    reduce_across_batch : bool, default False
        One value for the batch, in the first loss image; the others become 0.
    rescore : bool, default True
        A present box should have the confidence ``label * IoU``, the overlap of predicted and true
        box, instead of the label.
    scale_xy, scale_wh : float, default 10.0
        For centre and size of boxes that are present.
    scale_no_object : float, default 5.0
        For the confidence of boxes that are absent.
    scale_object : float, default 100.0
        For the confidence of boxes that are present.
    scale_class : float, default 2.0
        For the classes of boxes that are present.
    min_iou_for_object_presence : float, default 0.7
        A box in a cell with an object is present above this IoU, and where its anchor fits the
        object best.
    max_iou_for_object_absence : float, default 0.3
        A box that is not present is absent below this IoU, which is 0 without an object. Others
        do not count.

    Raises
    ------
    TypeError
        If ``anchor_boxes`` are no numbers.
    ValueError
        If ``anchor_boxes`` are not positive pairs, or another number of them.
    """

    def __init__(
        self,
        xy_loss_type: LossType,
        wh_loss_type: LossType,
        confidence_loss_type: LossType,
        classes_loss_type: LossType,
        reduction_type: ReductionType,
        anchor_boxes: Any,
        number_of_anchor_boxes: int | None = None,
        *,
        reduce_across_batch: bool = False,
        rescore: bool = True,
        scale_xy: float = 10.0,
        scale_wh: float = 10.0,
        scale_no_object: float = 5.0,
        scale_object: float = 100.0,
        scale_class: float = 2.0,
        min_iou_for_object_presence: float = 0.7,
        max_iou_for_object_absence: float = 0.3,
    ) -> None:
        super().__init__(
            reduction_type,
            anchor_boxes,
            reduce_across_batch,
            rescore,
            scale_xy,
            scale_wh,
            scale_no_object,
            scale_object,
            scale_class,
            min_iou_for_object_presence,
            max_iou_for_object_absence,
        )
        if number_of_anchor_boxes not in (None, self.number_of_anchor_boxes):
            raise ValueError(
                f"YOLOLossDescriptor: anchor_boxes has {self.number_of_anchor_boxes} boxes, "
                f"but number_of_anchor_boxes is {number_of_anchor_boxes}"
            )
        self.xy_loss_descriptor = LossDescriptor(xy_loss_type, reduction_type)
        self.wh_loss_descriptor = LossDescriptor(wh_loss_type, reduction_type)
        self.confidence_loss_descriptor = LossDescriptor(confidence_loss_type, reduction_type)
        self.classes_loss_descriptor = LossDescriptor(classes_loss_type, reduction_type)

    xy_loss_descriptor = _part("xy", "The loss of the centre.")
    wh_loss_descriptor = _part("wh", "The loss of the size.")
    confidence_loss_descriptor = _part("confidence", "The loss of the confidence.")
    classes_loss_descriptor = _part("classes", "The loss of the classes.")

    def _state(self) -> dict[str, Any]:
        parts = {name: _copied(getattr(self, name)) for name in _PARTS}
        return {**parts, **{name: getattr(self, name) for name in _YOLO_FIELDS}}

    def copy(self) -> YOLOLossDescriptor:
        """Return an equal descriptor with parts of its own."""
        return _rebuild_yolo_descriptor(self._state())

    def __copy__(self) -> YOLOLossDescriptor:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> YOLOLossDescriptor:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return _rebuild_yolo_descriptor, (self._state(),)

    def __eq__(self, other: object) -> bool:
        """Compare everything, the parts included."""
        if not isinstance(other, YOLOLossDescriptor):
            return NotImplemented
        mine, others = self._state(), other._state()
        return all(np.array_equal(mine[name], others[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show parts, reduction, anchors and what differs from the defaults."""
        anchors = self.anchor_boxes.tolist()
        usual = YOLOLossDescriptor(*_USUAL_PARTS, ReductionType.SUM, anchors)
        parts = [f"{name}={getattr(self, name)!r}" for name in _PARTS]
        parts += [f"ReductionType.{self.reduction_type.name}", f"anchor_boxes={anchors}"]
        parts += [
            f"{name}={shown(getattr(self, name))}"
            for name in _YOLO_FIELDS[2:]
            if getattr(self, name) != getattr(usual, name)
        ]
        return f"YOLOLossDescriptor({', '.join(parts)})"


def _rebuild_yolo_descriptor(state: dict[str, Any]) -> YOLOLossDescriptor:
    fields = dict(state)
    parts = {name: fields.pop(name) for name in _PARTS}
    result = YOLOLossDescriptor(*_USUAL_PARTS, **fields)
    for name, part in parts.items():
        setattr(result, name, part)
    return result


class YOLOLoss(_LabelledLoss, _core.YOLOLoss):
    """Loss of object detection and its gradient in one kernel (``MPSCNNYOLOLoss``).

    Each pixel is a cell of a grid, which predicts one box for each anchor: anchor ``a`` has the
    channels from ``(5 + K) a`` on, in the order x, y, width, height, confidence and K classes. The
    box has its centre at the sigmoids of x and y within the cell, and the anchor's size times e to
    the power of width and height. Labels hold x and y within the cell, width and height in cells, 1
    where there is an object and else 0, and the classes, the same for every anchor.

    A box in a cell with an object is present where its anchor fits the object best, or where it
    overlaps the object by more than ``min_iou_for_object_presence``. Presence and overlap are
    constants for the gradient, which is that of the summed loss: scales, weights of the parts and
    a weights image scale it, the reduction does not. Elements that do not count are 0.

    Parameters
    ----------
    descriptor : YOLOLossDescriptor
        Copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor asks for what is invalid.
    """

    def __init__(
        self, descriptor: YOLOLossDescriptor, *, device: _core.Device | str | None = None
    ) -> None:
        if not isinstance(descriptor, YOLOLossDescriptor):
            raise TypeError(
                "YOLOLoss: descriptor must be a YOLOLossDescriptor, got "
                f"{type(descriptor).__name__}"
            )
        own = descriptor.copy()
        parts = [getattr(own, name) for name in _PARTS]
        super().__init__(resolve_device(device, self), own, *parts)
        for part in parts:
            part.reduction_type = own.reduction_type
            part.reduce_across_batch = own.reduce_across_batch
        self._descriptor = own
        self._losses = [Loss(part, device=self.device) for part in parts]

    @property
    def descriptor(self) -> YOLOLossDescriptor:
        """Copy of the descriptor; its parts have the reduction of the whole."""
        return self._descriptor.copy()

    @property
    def loss_xy(self) -> Loss:
        """Kernel of the loss of the centre, by itself."""
        return self._losses[0]

    @property
    def loss_wh(self) -> Loss:
        """Kernel of the loss of the size, by itself."""
        return self._losses[1]

    @property
    def loss_confidence(self) -> Loss:
        """Kernel of the loss of the confidence, by itself."""
        return self._losses[2]

    @property
    def loss_classes(self) -> Loss:
        """Kernel of the loss of the classes, by itself."""
        return self._losses[3]

    def _arguments(self) -> dict[str, Any]:
        return {"descriptor": self.descriptor}


class ForwardLoss(_LossKernel, _core.ForwardLoss):
    """Loss without its gradient (``MPSNNForwardLoss``).

    Labels and weights are images. ``weight``, ``label_smoothing``, ``epsilon`` and ``delta`` may be
    set between encodes; a state carries them to `LossGradient`.

    Parameters
    ----------
    descriptor : LossDescriptor
        Copied.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor asks for what is invalid.
    """

    _own_settings = _SETTINGS

    def __init__(
        self, descriptor: _core.LossDescriptor, *, device: _core.Device | str | None = None
    ) -> None:
        super().__init__(resolve_device(device, self), descriptor)

    def __call__(
        self, predictions: Any, labels: Any, weights: Any = None
    ) -> npt.NDArray[np.float32]:
        """Run the kernel on arrays, and wait.

        Parameters
        ----------
        predictions : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
        labels : array_like, float32, of the same shape
        weights : array_like, float32, of the same shape or with axes of length 1, optional
            Weights are optional.

        Returns
        -------
        ndarray of float32
            Without reduction, of the predictions' shape; else shape (N,), or () for one image or
            with ``reduce_across_batch``.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        """
        array, single = as_image_array(self, predictions, "predictions")
        targets = _as_labels(self, labels, array, single)
        factors = as_label_weights(self, weights, array, single)
        shape = array.shape if self.reduction_type == ReductionType.NONE else (len(array), 1, 1, 1)
        losses = np.empty(shape, np.float32)
        command_buffer = array_queue(self.device).command_buffer()
        images = self.encode_batch(
            command_buffer,
            batch_of(self.device, array),
            batch_of(self.device, targets),
            None if factors is None else batch_of(self.device, factors),
            batch_of(self.device, losses),
        )
        return _per_image(finish(command_buffer, images, losses, False), self, single)


class LossGradient(_LossKernel, _core.LossGradient):
    """Gradient of `ForwardLoss` with respect to its predictions or labels (``MPSNNLossGradient``).

    The chain rule through `ForwardLoss`, its reduction included, unlike the gradient of `Loss`:
    ``source_gradient * weight * derivative / divisor``. ``weight``, ``label_smoothing``,
    ``epsilon`` and ``delta`` may be set between encodes; those of a state override them.

    Parameters
    ----------
    descriptor : LossDescriptor
        As given to `ForwardLoss`; copied.
    compute_label_gradients : bool, default False
        Gradients with respect to the labels instead of the predictions; can be set.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the descriptor asks for what is invalid.
    """

    _own_settings = (*_SETTINGS, "compute_label_gradients")

    def __init__(
        self,
        descriptor: _core.LossDescriptor,
        *,
        compute_label_gradients: bool = False,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), descriptor)
        self.compute_label_gradients = compute_label_gradients

    def __call__(
        self,
        source_gradient: Any,
        predictions: Any,
        labels: Any,
        weights: Any = None,
        *,
        out: Any = None,
    ) -> npt.NDArray[Any]:
        """Run the kernel on arrays, and wait.

        Parameters
        ----------
        source_gradient : array_like, float32 or float16
            Gradient with respect to what `ForwardLoss` returned, and of its shape.
        predictions : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
        labels : array_like, float32, of the same shape
        weights : array_like, float32, of the same shape or with axes of length 1, optional
            Weights are optional.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the predictions' shape.

        Returns
        -------
        ndarray
            In the shape of ``predictions`` and the dtype of ``source_gradient``, unless ``out`` has
            another.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        """
        array, single = as_image_array(self, predictions, "predictions")
        targets = _as_labels(self, labels, array, single)
        factors = as_label_weights(self, weights, array, single)
        incoming = self._incoming(source_gradient, array, single)
        command_buffer = array_queue(self.device).command_buffer()
        batches = (
            batch_of(self.device, incoming),
            batch_of(self.device, array),
            batch_of(self.device, targets),
            None if factors is None else batch_of(self.device, factors),
        )
        out, places = place_for(self, out, single)
        images = self.encode_batch(command_buffer, *batches, allocator=places)
        return finish(command_buffer, images, out, single)

    def _incoming(
        self, gradient: Any, predictions: npt.NDArray[Any], single: bool
    ) -> npt.NDArray[Any]:
        """Return the incoming gradient in the shape of the loss images."""
        if self.reduction_type == ReductionType.NONE:
            array, one = as_image_array(self, gradient, "source_gradient")
            if array.shape != predictions.shape or one != single:
                expected = predictions.shape[1:] if single else predictions.shape
                raise ValueError(
                    f"LossGradient: source_gradient has shape {np.shape(gradient)}, but the loss "
                    f"has {expected}"
                )
            return array
        values = as_array("LossGradient", gradient, "source_gradient")
        if values.dtype != np.float32 and values.dtype != np.float16:
            raise TypeError(
                f"LossGradient: source_gradient must be float32 or float16, got {values.dtype}"
            )
        expected = () if single or self.reduce_across_batch else (len(predictions),)
        if values.shape != expected:
            raise ValueError(
                f"LossGradient: source_gradient has shape {values.shape}, but the loss has "
                f"{expected}"
            )
        images = np.zeros((len(predictions), 1, 1, 1), values.dtype)
        images[: max(values.size, 1)] = values.reshape(-1, 1, 1, 1)
        return images


class InitialGradient(KernelFacade, ArrayUnaryKernel, _core.InitialGradient):
    """Ones in the size of the source (``MPSNNInitialGradient``).

    The gradient of an image with respect to itself, to start a backward pass from any image.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))
