"""Kernels that copy: another shape, a part, a border; and the gradients of the first and the last.

Where source and result have one format, bits are moved: NaN and the sign of zero stay as they are.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from mpsgrad import _core
from mpsgrad._arrays import (
    ArrayGradientKernel,
    ArrayUnaryKernel,
    as_image_array,
    as_out_array,
    resolve_device,
    run_forward,
)
from mpsgrad._kernel import KernelFacade

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Pad", "PadGradient", "Reshape", "ReshapeGradient", "Slice"]


class Reshape(KernelFacade, _core.Reshape):
    """The elements of an image in an image of another shape (``MPSNNReshape``).

    Row by row, channels fastest: what `numpy.reshape` makes of each image. Images are taken whole,
    so the offset, the clip rectangle and the windows of channels must stay as they are.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))

    @overload
    def __call__(
        self,
        source: Any,
        shape: Sequence[int] | None = None,
        *,
        with_state: Literal[False] = False,
        out: Any = None,
    ) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self,
        source: Any,
        shape: Sequence[int] | None = None,
        *,
        with_state: Literal[True],
        out: Any = None,
    ) -> tuple[npt.NDArray[Any], Any]: ...
    @overload
    def __call__(
        self,
        source: Any,
        shape: Sequence[int] | None = None,
        *,
        with_state: bool,
        out: Any = None,
    ) -> Any: ...
    def __call__(
        self,
        source: Any,
        shape: Sequence[int] | None = None,
        *,
        with_state: bool = False,
        out: Any = None,
    ) -> Any:
        """Run the kernel on an array, and wait.

        Parameters
        ----------
        source : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Used in place on the CPU device if it is C-contiguous.
        shape : (height, width, channels), optional
            Of each image of the result. One of them may be -1: it follows from the others.
            Without it, the shape is that of ``out``.
        with_state : bool, default False
            Return the state for the gradient kernel as well.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the result's shape.

        Returns
        -------
        ndarray, or pair of ndarray and state
            A new array, of the same dtype as ``source`` unless ``out`` has another. The state is
            one object for one image, else a list with one an image.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or the shape another number of elements.
        """
        array, single = as_image_array(self, source, "source")
        if shape is None and out is not None:
            shape = as_out_array(self, out, single).shape[1:]
        if shape is None:
            raise TypeError("Reshape: a call needs the shape (height, width, channels), or out")
        height, width, channels = _complete(shape, array.shape[1:])
        return run_forward(
            self,
            (array,),
            single,
            with_state,
            out,
            reshaped_width=width,
            reshaped_height=height,
            reshaped_feature_channels=channels,
        )


def _complete(shape: Sequence[int], source: tuple[int, ...]) -> list[int]:
    """Return a shape of three numbers, with what -1 stands for."""
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        raise TypeError(
            f"Reshape: shape must be (height, width, channels), three integers, got {shape!r}"
        ) from None
    if len(sizes) != 3:
        raise ValueError(f"Reshape: shape must be (height, width, channels), got {tuple(shape)}")
    if sizes.count(-1) == 1:
        others = math.prod(size for size in sizes if size != -1)
        total = math.prod(source)
        if others < 1 or total % others:
            raise ValueError(
                f"Reshape: source has {total} elements an image, shape {tuple(shape)} does not fit"
            )
        sizes[sizes.index(-1)] = total // others
    return sizes


class ReshapeGradient(KernelFacade, ArrayGradientKernel, _core.ReshapeGradient):
    """Gradient of `Reshape` with respect to its source (``MPSNNReshapeGradient``).

    The incoming gradient in the shape of the forward source, whose values are not read.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class Slice(KernelFacade, ArrayUnaryKernel, _core.Slice):
    """A box out of an image (``MPSNNSlice``).

    `offset` is the pixel of the source where the box begins, `source_feature_channel_offset` its
    first channel, a multiple of 4, and `source_feature_channel_max_count` how many there are. Width
    and height of the box are those of `clip_rect`, and its origin is where the box goes; without
    one the box ends where the source does. Channels go to the first ones of the result. What lies
    outside the source follows `edge_mode`. An encode that creates its destination keeps `offset`,
    unlike those of other kernels.

    There is no gradient kernel, and no state: `Pad` puts a box back in its place.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class Pad(KernelFacade, ArrayUnaryKernel, _core.Pad):
    """An image with a border, along channels too (``MPSNNPad``).

    `edge_mode` says what is in the border, and may be each of the five: zeros (``ZERO``), the
    nearest element (``CLAMP``), the image mirrored at its edge, which is not repeated (``MIRROR``)
    or is (``MIRROR_WITH_EDGE``), or `fill_value` (``CONSTANT``). Along each axis for itself; a
    border of mirrors may be wider than the image.

    Sizes along x and y count where an encode creates its destination; else `offset` and the size of
    the destination or of `clip_rect` decide. Sizes along channels always count, beside the window
    of channels that is read, which may begin at any channel.

    Parameters
    ----------
    padding_size_before : (x, y, channel), default (0, 0, 0)
        Columns on the left, rows at the top, and channels before the first.
    padding_size_after : (x, y, channel), default (0, 0, 0)
        Columns on the right, rows at the bottom, and channels after the last.
    fill_value_array : array_like of float, optional
        One value for each channel that is written, or more, in place of `fill_value`.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If a size is not three integers.
    ValueError
        If a size is negative, or ``fill_value_array`` has not one axis.
    """

    _own_settings: tuple[str, ...] = ("fill_value",)

    def __init__(
        self,
        padding_size_before: Sequence[int] = (0, 0, 0),
        padding_size_after: Sequence[int] = (0, 0, 0),
        fill_value_array: npt.ArrayLike | None = None,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        values: list[float] = []
        if fill_value_array is not None:
            array = np.asarray(fill_value_array, np.float32)
            if array.ndim != 1 or array.size == 0:
                raise ValueError(
                    "Pad: fill_value_array must have one axis, and a value for each channel, got "
                    f"shape {array.shape}"
                )
            values = array.tolist()
        sizes = padding_size_before, padding_size_after
        super().__init__(resolve_device(device, self), *sizes, values)

    def _arguments(self) -> dict[str, Any]:
        names = "padding_size_before", "padding_size_after", "fill_value_array"
        return {name: getattr(self, name) for name in names}


class PadGradient(KernelFacade, ArrayGradientKernel, _core.PadGradient):
    """Gradient of `Pad` with respect to its source (``MPSNNPadGradient``).

    Every element of the source gets the sum of the incoming gradient over all places that it was
    copied to, and channels that the forward pass did not read get 0. The values of the source are
    not read. Geometry comes from the state; `primary_offset`, which `configure` sets, is where in
    the incoming gradient the source's first pixel lies, and `secondary_offset` the pixel of the
    source that the result begins with.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))
