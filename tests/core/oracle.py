"""Reference geometry of windows and padding policies, and reference image storage.

Everything is per axis where an axis is enough. Elsewhere pairs are (x, y), horizontal first, and
arrays are (N, H, W, C).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Pair = tuple[int, int]

# Fields of a padding method.
ALIGN_CENTERED, ALIGN_TOP_LEFT, ALIGN_BOTTOM_RIGHT = 0, 1, 2
REMAINDER_TOP_LEFT, REMAINDER_TOP_RIGHT = 0x0, 0x4
REMAINDER_BOTTOM_LEFT, REMAINDER_BOTTOM_RIGHT = 0x8, 0xC
SIZE_VALID_ONLY, SIZE_SAME, SIZE_FULL = 0x00, 0x10, 0x20


# --- Windows ------------------------------------------------------------


def extent(kernel: int, dilation: int = 1) -> int:
    """Pixels from the first to the last tap of a window, both included."""
    return (kernel - 1) * dilation + 1


def reach(kernel: int, dilation: int = 1) -> int:
    """How far the first tap lies before the centre."""
    return extent(kernel, dilation) // 2


def taps(kernel: int, dilation: int = 1) -> Indices:
    """Positions of the taps relative to the window's centre."""
    return dilation * np.arange(kernel) - reach(kernel, dilation)


def positions(
    windows: int | npt.ArrayLike, kernel: int, stride: int, dilation: int, offset: int
) -> Indices:
    """Source coordinates read by each window, shape (windows, kernel).

    `windows` is how many there are, or the list of their indices.
    """
    indices = np.arange(windows) if isinstance(windows, int) else np.asarray(windows, np.intp)
    return offset + stride * indices[:, None] + taps(kernel, dilation)


def inside(coordinates: Indices, length: int) -> npt.NDArray[np.bool_]:
    """Tell which coordinates lie in an image `length` pixels long."""
    return (coordinates >= 0) & (coordinates < length)


def sample(source: Array, rows: Indices, columns: Indices, edge: str) -> Array:
    """Read source[:, rows, columns] as an outer product, edge mode "zero" or "clamp" outside."""
    height, width = source.shape[1:3]
    near = np.clip(rows, 0, height - 1)[:, None], np.clip(columns, 0, width - 1)[None, :]
    values = source[:, near[0], near[1]]
    if edge == "clamp":
        return values
    if edge != "zero":
        raise ValueError(f"edge mode {edge!r}")
    there = inside(rows, height)[:, None] & inside(columns, width)[None, :]
    return np.where(there[:, :, None], values, 0.0)


# --- Padding policies ---------------------------------------------------------


class Placement(NamedTuple):
    """Where a padding policy puts the windows along one axis."""

    size: int  # of the destination
    span: int  # source pixels the windows cover
    missing: int  # of them, outside the source; negative when pixels stay unread
    offset: int  # centre of the first window


def style(method: int) -> int:
    """Return -1 for valid only, 0 for same, 1 for full."""
    size = method & 0x7F0
    if size not in (SIZE_VALID_ONLY, SIZE_SAME, SIZE_FULL):
        raise ValueError(f"reserved size field in padding method {method:#x}")
    return size // 0x10 - 1


def before(excess: int, method: int, axis: str) -> int:
    """Share of `excess` padding that a policy puts on the left (axis "x") or the top ("y")."""
    alignment = method & 0x3
    if alignment == ALIGN_TOP_LEFT:
        return excess
    if alignment == ALIGN_BOTTOM_RIGHT:
        return 0
    if alignment != ALIGN_CENTERED:
        raise ValueError(f"reserved alignment in padding method {method:#x}")
    far_side = method & {"x": 0x4, "y": 0x8}[axis]
    return math.trunc((excess + (0 if far_side else 1)) / 2)


def place(
    length: int, kernel: int, stride: int, dilation: int, method: int, axis: str = "x"
) -> Placement:
    """Size and offset a padding policy gives a forward filter."""
    window = extent(kernel, dilation)
    size = math.ceil((length + style(method) * (window - 1)) / stride)
    if size <= 0:
        raise ValueError(f"no window of {window} pixels fits into {length}")
    span = (size - 1) * stride + window
    missing = span - length
    return Placement(size, span, missing, window // 2 - before(missing, method, axis))


def place_explicit(
    length: int, kernel: int, stride: int, dilation: int, left: int, right: int
) -> Placement:
    """Size and offset for explicit amounts of padding; leftovers stay unread on the far side."""
    window = extent(kernel, dilation)
    size = (length + left + right - window) // stride + 1
    if size <= 0:
        raise ValueError(f"no window of {window} pixels fits into {length} + {left} + {right}")
    span = (size - 1) * stride + window
    return Placement(size, span, span - length, window // 2 - left)


def place_window(
    lengths: Pair,
    kernel: Pair,
    stride: Pair,
    dilation: Pair,
    method: int,
    pads: tuple[int, int, int, int] | None = None,
) -> tuple[Placement, Placement]:
    """Along x and along y: as a policy has it, or explicit `pads` (left, right, top, bottom)."""
    x, y = zip(lengths, kernel, stride, dilation, strict=True)
    if pads is None:
        return place(*x, method, "x"), place(*y, method, "y")
    return place_explicit(*x, *pads[:2]), place_explicit(*y, *pads[2:])


def place_reverse(length: int, kernel: int, stride: int, method: int, axis: str = "x") -> Pair:
    """Size and kernel offset a padding policy gives a reverse filter (stride in result pixels)."""
    stuffed = (length - 1) * stride + 1
    size = stuffed + style(method) * (kernel - 1)
    if size <= 0:
        raise ValueError(f"no window of {kernel} pixels fits into {stuffed}")
    return size, kernel // 2 - before((style(method) + 1) * (kernel - 1), method, axis)


def inverse(method: int) -> int:
    """Return the policy that undoes `method`: valid only and full change places."""
    return method & ~0x7F0 | (SIZE_FULL, SIZE_SAME, SIZE_VALID_ONLY)[style(method) + 1]


def gradient_offsets(offset: int, kernel: int, dilation: int = 1) -> Pair:
    """Return (kernelOffset, secondaryOffset) of the gradient of a convolution at `offset`.

    Seen from the data gradient the window is mirrored, so its centre is the other middle tap when
    the extent is even. The weight gradient counts from the first tap, not from the centre.
    """
    even = extent(kernel, dilation) % 2 == 0
    return -offset + even, offset - reach(kernel, dilation)


def clip(
    origin: tuple[int, ...], size: tuple[int, ...], bounds: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Intersect a clip rectangle with a destination of `bounds`: (origin, size), 0 where empty."""
    starts = tuple(min(o, b) for o, b in zip(origin, bounds, strict=True))
    stops = tuple(min(o + s, b) for o, s, b in zip(origin, size, bounds, strict=True))
    return starts, tuple(stop - start for start, stop in zip(starts, stops, strict=True))


# --- Image storage ------------------------------------------------------------


def slices(channels: int) -> int:
    """Four-channel slices of one image."""
    return -(-channels // 4)


def lanes(channels: int) -> int:
    """Values stored per pixel over all slices of one image."""
    return channels if channels <= 2 else 4 * slices(channels)


def is_array(channels: int, images: int = 1) -> bool:
    """Tell whether the texture is a 2-D array rather than plain 2-D."""
    return not (images == 1 and channels <= 4)


def locate(channel: int, channels: int, image: int = 0) -> Pair:
    """Slice and lane that hold a channel of an image."""
    return image * slices(channels) + channel // 4, channel % 4


def texel_bytes(images: int, height: int, width: int, channels: int, item: int) -> int:
    """Size of the backing store, rows unaligned."""
    return images * height * width * lanes(channels) * item


def pack(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lay (N, H, W, C) out as slices (N * S, H, W, lanes); lanes past the last channel are 0."""
    count, height, width, channels = images.shape
    width_of_slice = lanes(channels) // slices(channels)
    padded = np.zeros((count, height, width, lanes(channels)), images.dtype)
    padded[..., :channels] = images
    split = padded.reshape(count, height, width, slices(channels), width_of_slice)
    return np.ascontiguousarray(np.moveaxis(split, 3, 1)).reshape(-1, height, width, width_of_slice)


def unpack(texels: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Undo `pack`."""
    _, height, width, width_of_slice = texels.shape
    split = texels.reshape(-1, slices(channels), height, width, width_of_slice)
    joined = np.moveaxis(split, 1, 3).reshape(len(split), height, width, -1)
    return np.ascontiguousarray(joined[..., :channels])


DTYPES = {
    "unorm8": np.dtype(np.uint8),
    "unorm16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def store(values: npt.ArrayLike, channel_format: str) -> npt.NDArray[Any]:
    """Encode values as a kernel's store does: nearest even; unorm clamps, and turns NaN into 0."""
    values = np.asarray(values, np.float64)
    dtype = DTYPES[channel_format]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    codes = np.iinfo(dtype).max
    return np.rint(np.clip(np.nan_to_num(values, nan=0.0), 0, 1) * codes).astype(dtype)


def load(stored: npt.NDArray[Any]) -> Array:
    """Decode what `store` has encoded."""
    if stored.dtype.kind == "f":
        return stored.astype(np.float64)
    return stored / np.float64(np.iinfo(stored.dtype).max)


def to_chw(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reorder one (H, W, C) image as planes (C, H, W)."""
    return np.ascontiguousarray(np.moveaxis(image, 2, 0))
