"""Kernels called with arrays: the level above objects, which adds no behaviour of its own.

What an array may be: float32 or float16, of shape ``(N, H, W, C)``, or ``(H, W, C)`` for one image;
anything with the buffer protocol or DLPack. On the CPU device a C-contiguous array is used where it
lies; any other memory order is copied once into one. Other dtypes are refused.
"""

from __future__ import annotations

import atexit
import os
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from mpsgrad import _core
from mpsgrad._wording import has_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = [
    "ArrayBinaryKernel",
    "ArrayGradientKernel",
    "ArrayResultGradientKernel",
    "ArrayUnaryKernel",
    "as_array",
    "as_image_array",
    "as_out_array",
    "resolve_device",
]

_queues: dict[_core.Device, _core.CommandQueue] = {}
atexit.register(_queues.clear)  # before the devices, not when the interpreter happens to
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_queues.clear)  # a queue's thread stays in the parent


def resolve_device(device: _core.Device | str | None, owner: object) -> _core.Device:
    """Return the device an argument means: a `Device`, its kind, or None for the default one.

    The message about anything else names the class of ``owner``.
    """
    if isinstance(device, _core.Device):
        return device
    if device is None:
        return _core.Device()
    if isinstance(device, str):
        return _core.Device(device)
    raise TypeError(
        f"{type(owner).__name__}: device must be a Device, a kind or None, "
        f"got {type(device).__name__}"
    )


def array_queue(device: _core.Device) -> _core.CommandQueue:
    """Return the queue that array calls on a device share."""
    queue = _queues.get(device)
    if queue is None:
        queue = _queues.setdefault(device, device.command_queue())
    return queue


def as_image_array(
    owner: object, array: Any, name: str, *, halves: bool = True, labels: bool = False
) -> tuple[npt.NDArray[Any], bool]:
    """Return ``array`` as a C-contiguous ``(N, H, W, C)`` array, and whether it was one image.

    Messages name the class of ``owner``, and ``name``. Integers in place of ``labels`` are taken
    for classes.

    Raises
    ------
    TypeError
        If it is not float32 or, where ``halves`` may come, float16.
    ValueError
        If it has neither 3 nor 4 axes, or is empty.
    """
    if not isinstance(array, np.ndarray):
        array = as_array(type(owner).__name__, array, name)
    if array.dtype != np.float32 and not (halves and array.dtype == np.float16):
        kinds = "float32 or float16" if halves else "float32"
        remedy = f"np.asarray({name}, np.float32) makes it one"
        if labels and array.dtype.kind in "iu":
            remedy = f"mg.one_hot({name}, count) makes such labels of classes"
        raise TypeError(
            f"{type(owner).__name__}: {name} must be {kinds}, got {array.dtype}; {remedy}"
        )
    if array.ndim not in (3, 4):
        remedy = ""
        if labels and array.ndim == 1:
            remedy = "; mg.one_hot makes labels of class numbers, which are integers"
        elif array.ndim == 2:
            shape = ", ".join(map(str, (array.shape[0], 1, 1, array.shape[1])))
            remedy = f"; {name}.reshape({shape}) makes an image of each row"
        raise ValueError(
            f"{type(owner).__name__}: {name} must have shape (N, H, W, C), or (H, W, C) for one "
            f"image, got {array.shape}{remedy}"
        )
    if array.size == 0:
        raise ValueError(
            f"{type(owner).__name__}: {name} must not be empty, got shape {array.shape}"
        )
    single = array.ndim == 3
    if single:
        array = array[np.newaxis]
    return np.require(array, requirements=["C", "A"]), single


def as_array(who: str, given: Any, name: str) -> npt.NDArray[Any]:
    """Return what NumPy makes of an object, by DLPack where it has that; nothing is converted.

    Raises
    ------
    BufferError
        If the object has nothing but DLPack, and does not want to be looked at.
    TypeError, ValueError
        If it is no array of numbers, or a result with its state.
    """
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "__dlpack__"):
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError) as error:
            if not hasattr(given, "__array__"):
                raise BufferError(f"{who}: {name} gives no array by DLPack: {error}") from error
    if isinstance(given, tuple) and any(_are_states(each) for each in given):
        raise TypeError(
            f"{who}: {name} must be an array, got a pair with a state, as with_state=True returns "
            "it: result, state = ..."
        )
    try:
        array = np.asarray(given)
    except (ValueError, RuntimeError) as error:  # for one, lists of different lengths
        raise ValueError(f"{who}: {name} is no array: {error}") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{who}: {name} must be an array of numbers, got {type(given).__name__}")
    return array


def _are_states(value: Any) -> bool:
    one = value[0] if isinstance(value, list) and value else value
    return isinstance(one, _core.State)


def pair_of_arrays(
    owner: object, first: Any, first_name: str, second: Any, second_name: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], bool]:
    """Return two arrays as `as_image_array` does, and whether both were one image.

    Raises
    ------
    TypeError
        If one is not float32 or float16.
    ValueError
        If one has neither 3 nor 4 axes, or they differ in the number of images.
    """
    first_array, single = as_image_array(owner, first, first_name)
    second_array, second_single = as_image_array(owner, second, second_name)
    if single != second_single or len(first_array) != len(second_array):
        raise ValueError(
            f"{type(owner).__name__}: {first_name} has shape {np.shape(first)}, but {second_name} "
            f"has {np.shape(second)}: both must be one image, or batches of one length"
        )
    return first_array, second_array, single


def memory_of(who: str, given: Any, name: str) -> npt.NDArray[Any]:
    """Return an array over the memory of an argument that is to be written to.

    Raises
    ------
    TypeError
        If it is no ndarray and has neither a buffer nor DLPack.
    """
    if isinstance(given, np.ndarray):
        return given
    images = isinstance(given, (_core.Image, _core.ImageBatch))  # of which arrays are copies
    if images or not (hasattr(given, "__dlpack__") or has_buffer(given)):
        raise TypeError(f"{who}: {name} must be an ndarray, got {type(given).__name__}")
    return as_array(who, given, name)


def require_writable(who: str, array: npt.NDArray[Any], name: str) -> None:
    """Raise ValueError for an array that results cannot be written to where it lies."""
    flags = array.flags
    wanted = {
        "writable": flags.writeable,
        "aligned": flags.aligned,
        "C-contiguous": flags.c_contiguous,
    }
    missing = [word for word, there in wanted.items() if not there]
    if missing:
        raise ValueError(
            f"{who}: {name} must be writable, aligned and C-contiguous, got one that is not "
            f"{' and not '.join(missing)}"
        )


def as_out_array(owner: object, out: Any, single: bool) -> npt.NDArray[Any]:
    """Return ``out`` as an ``(N, H, W, C)`` array to write a result into; encodes check its size.

    Raises
    ------
    TypeError
        If it is neither a float32 or float16 ndarray nor has a buffer or DLPack of such numbers.
    ValueError
        If it has another number of axes, or is read-only, unaligned or not C-contiguous.
    """
    who = type(owner).__name__
    out = memory_of(who, out, "out")
    if out.dtype != np.float32 and out.dtype != np.float16:
        raise TypeError(f"{who}: out must be float32 or float16, got {out.dtype}")
    axes = "(H, W, C)" if single else "(N, H, W, C)"
    if out.ndim != len(axes.split(",")):
        raise ValueError(f"{who}: out must have shape {axes}, got {out.shape}")
    require_writable(who, out, "out")
    result: npt.NDArray[Any] = out[np.newaxis] if single else out
    return result


def place_for(
    kernel: Any, out: Any, single: bool
) -> tuple[npt.NDArray[Any] | None, _core.ImageAllocator | _core.ImageBatch]:
    """Return ``out`` as `as_out_array` does, and the allocator of an encode whose result it is.

    Not an explicit destination, which would leave offsets to the caller.
    """
    if out is None:
        return None, _core.DEFAULT
    array = as_out_array(kernel, out, single)
    return array, batch_of(kernel.device, array)


def batch_of(device: _core.Device, array: npt.NDArray[Any]) -> _core.ImageBatch:
    """Return a batch over a C-contiguous ``(N, H, W, C)`` array."""
    return _core.ImageBatch.from_array(device, array)


def finish(
    command_buffer: _core.CommandBuffer,
    images: _core.ImageBatch,
    out: npt.NDArray[Any] | None,
    single: bool,
) -> npt.NDArray[Any]:
    """Run the work, and return its images as an array: ``out`` if there is one."""
    if command_buffer.device.kind != "cpu":
        _core.synchronize(images, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    result = images.to_array()
    if out is not None:
        if not np.may_share_memory(out, result):  # this device cannot write NumPy's memory
            np.copyto(out, result)
        result = out
    return result[0] if single else result


def _image_of_shape(kernel: Any, shape: Any, name: str) -> _core.Image:
    """Return an image as one of an array of the shape; it has no memory until that is used."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(sizes) not in (3, 4) or not all(isinstance(size, Integral) for size in sizes):
        raise TypeError(
            f"{type(kernel).__name__}: {name} must be a shape (N, H, W, C), or (H, W, C) of one "
            f"image, got {shape!r}"
        )
    if min(sizes) < 1:
        raise ValueError(
            f"{type(kernel).__name__}: {name} must have lengths of 1 and more, got {shape!r}"
        )
    height, width, channels = map(int, sizes[-3:])
    descriptor = _core.ImageDescriptor(width, height, channels)
    return _core.Image(kernel.device, descriptor)


def _result_shape(kernel: Any, **shapes: Any) -> tuple[int, ...]:
    """Return the shape of a call's result; the kernel stays as it is."""
    images = [_image_of_shape(kernel, shape, name) for name, shape in shapes.items()]
    counts = {name: tuple(shape[:-3]) for name, shape in shapes.items()}
    count, *others = counts.values()
    if any(other != count for other in others):
        raise ValueError(
            f"{type(kernel).__name__}: {' and '.join(shapes)} must be shapes of one image, or of "
            f"batches of one length, got {' and '.join(map(str, shapes.values()))}"
        )
    result = kernel._result_descriptor(images)
    return (*map(int, count), result.height, result.width, result.feature_channels)


def run_forward(
    kernel: Any,
    arrays: Iterable[npt.NDArray[Any]],
    single: bool,
    with_state: bool,
    out: Any,
    **options: Any,
) -> Any:
    """Do what a call of a forward kernel does, with more options of the encode."""
    sources = [batch_of(kernel.device, array) for array in arrays]
    command_buffer = array_queue(kernel.device).command_buffer()
    out, places = place_for(kernel, out, single)
    images = kernel.encode_batch(
        command_buffer, *sources, with_state=with_state, allocator=places, **options
    )
    states: Any = None
    if with_state:
        images, states = images
    result = finish(command_buffer, images, out, single)
    if not with_state:
        return result
    if states is not None and (single or kernel.is_result_state_reused_across_batch):
        states = states[0]
    return result, states


class ArrayUnaryKernel:
    """Mixed into facades of `UnaryKernel` classes: calling the kernel with an array runs it."""

    @overload
    def __call__(
        self, source: Any, *, with_state: Literal[False] = False, out: Any = None
    ) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self, source: Any, *, with_state: Literal[True], out: Any = None
    ) -> tuple[npt.NDArray[Any], Any]: ...
    @overload
    def __call__(self, source: Any, *, with_state: bool, out: Any = None) -> Any: ...
    def __call__(self: Any, source: Any, *, with_state: bool = False, out: Any = None) -> Any:
        """Run the kernel on an array, and wait.

        Parameters
        ----------
        source : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Used in place on the CPU device if it is C-contiguous.
        with_state : bool, default False
            Return the state for the gradient kernel as well.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the result's shape.

        Returns
        -------
        ndarray, or pair of ndarray and state
            Same dtype as ``source`` unless ``out`` has another. The state is one object, or for
            kernels that keep one an image, a list.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        """
        return self._run(source, with_state, out)

    def result_shape(self: Any, source_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that a call's result would have; nothing runs, and nothing is changed.

        Parameters
        ----------
        source_shape : tuple of int
            (N, H, W, C) or (H, W, C).

        Returns
        -------
        tuple of int
            With as many axes.

        Raises
        ------
        TypeError, ValueError
            If it is no such shape, or of a source that the kernel does not take.
        """
        shape = _result_shape(self, source_shape=source_shape)
        array = np.broadcast_to(np.float32(), (1, *source_shape)[-4:])
        self._check_array(array, len(source_shape) == 3)
        return shape

    def _check_array(self: Any, array: npt.NDArray[Any], single: bool = False) -> None:
        """Refuse what an image may be but an array is by mistake; `single`: it had three axes."""

    def _run(self: Any, source: Any, with_state: bool, out: Any, **options: Any) -> Any:
        """Do what a call does, with more options of the encode."""
        array, single = as_image_array(self, source, "source")
        self._check_array(array, single)
        return run_forward(self, (array,), single, with_state, out, **options)


class ArrayBinaryKernel:
    """Mixed into facades of forward binary kernels: calling the kernel with two arrays runs it."""

    @overload
    def __call__(
        self, primary: Any, secondary: Any, *, with_state: Literal[False] = False, out: Any = None
    ) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self, primary: Any, secondary: Any, *, with_state: Literal[True], out: Any = None
    ) -> tuple[npt.NDArray[Any], Any]: ...
    @overload
    def __call__(
        self, primary: Any, secondary: Any, *, with_state: bool, out: Any = None
    ) -> Any: ...
    def __call__(
        self: Any, primary: Any, secondary: Any, *, with_state: bool = False, out: Any = None
    ) -> Any:
        """Run the kernel on two arrays, and wait.

        Parameters
        ----------
        primary, secondary : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Used in place on the CPU device if they are C-contiguous.
        with_state : bool, default False
            Return the state for the gradient kernels as well.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the result's shape.

        Returns
        -------
        ndarray, or pair of ndarray and state
            Same dtype as ``primary`` unless ``out`` has another. The state is one object for one
            image, else a list with one an image, and None for a kernel without a state.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        """
        *arrays, single = pair_of_arrays(self, primary, "primary", secondary, "secondary")
        return run_forward(self, arrays, single, with_state, out)

    def result_shape(
        self: Any, primary_shape: tuple[int, ...], secondary_shape: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the shape that a call's result would have; nothing runs, and nothing is changed.

        Parameters
        ----------
        primary_shape, secondary_shape : tuple of int
            (N, H, W, C) or (H, W, C).

        Returns
        -------
        tuple of int
            With as many axes.

        Raises
        ------
        TypeError, ValueError
            If they are no such shapes, or of sources that the kernel does not take.
        """
        return _result_shape(self, primary_shape=primary_shape, secondary_shape=secondary_shape)


class ArrayGradientKernel:
    """Mixed into facades of `GradientKernel` classes: calling the kernel with arrays runs it."""

    def __call__(
        self: Any, source_gradient: Any, source: Any, state: Any, *, out: Any = None
    ) -> npt.NDArray[Any]:
        """Run the gradient kernel on arrays, and wait.

        Parameters
        ----------
        source_gradient : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Gradient of the loss with respect to the forward result.
        source : array_like, float32 or float16, of as many axes
            The source of the forward pass.
        state : State or list of State
            What the forward kernel returned with ``with_state=True``.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the forward source's shape.

        Returns
        -------
        ndarray
            Gradient of the loss with respect to the forward source, in the dtype of
            ``source_gradient`` unless ``out`` has another.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or the state is of another kernel or source.
        """
        return run_gradient(self, source_gradient, source, "source", state, out)


class ArrayResultGradientKernel:
    """As `ArrayGradientKernel`, for kernels whose second source is the forward result."""

    def __call__(
        self: Any, source_gradient: Any, forward_result: Any, state: Any, *, out: Any = None
    ) -> npt.NDArray[Any]:
        """Run the gradient kernel on arrays, and wait.

        Parameters
        ----------
        source_gradient : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Gradient of the loss with respect to the forward result.
        forward_result : array_like, float32 or float16, of as many axes
            What the forward kernel returned, not what it was given.
        state : State or list of State
            What the forward kernel returned with ``with_state=True``.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the forward source's shape.

        Returns
        -------
        ndarray
            Gradient of the loss with respect to the forward source, in the dtype of
            ``source_gradient`` unless ``out`` has another.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or the state is of another kernel or source.
        """
        return run_gradient(self, source_gradient, forward_result, "forward_result", state, out)


def run_gradient(
    kernel: Any, source_gradient: Any, source: Any, source_name: str, state: Any, out: Any
) -> npt.NDArray[Any]:
    """Run a gradient kernel on arrays, and wait; messages call ``source`` by ``source_name``."""
    if state is None:
        raise TypeError(
            f"{type(kernel).__name__}: state must be what the forward call returned with "
            "with_state=True, got None"
        )
    gradient_array, source_array, single = pair_of_arrays(
        kernel, source_gradient, "source_gradient", source, source_name
    )
    gradients = batch_of(kernel.device, gradient_array)
    sources = batch_of(kernel.device, source_array)
    command_buffer = array_queue(kernel.device).command_buffer()
    out, places = place_for(kernel, out, single)
    images = kernel.encode_batch(command_buffer, gradients, sources, state, allocator=places)
    if kernel.is_state_modified:
        states = list(state) if isinstance(state, (list, tuple)) else [state]
        _core.synchronize(states, command_buffer)
    return finish(command_buffer, images, out, single)
