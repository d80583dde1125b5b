"""Images for tests of kernels, made and read the same way on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.oracle import DTYPES, sample, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FORMATS = {name: getattr(mg.ChannelFormat, name.upper()) for name in DTYPES}


def descriptor(
    shape: Sequence[int], channel_format: str = "float32", *, images: int = 1
) -> mg.ImageDescriptor:
    """Describe one image of the shape (..., H, W, C)."""
    height, width, channels = shape[-3:]
    return mg.ImageDescriptor(width, height, channels, images, FORMATS[channel_format])


def empty(
    device: mg.Device,
    shape: Sequence[int],
    channel_format: str = "float32",
    *,
    kind: str = "batch",
    fill: float | None = None,
) -> Any:
    """Images of the shape (N, H, W, C): one "batch", a "list" of images, or one "container"."""
    values = None if fill is None else np.full(shape, fill, np.float32)
    if kind == "container":
        images: Any = mg.Image(device, descriptor(shape, channel_format, images=shape[0]))
    elif kind == "list":
        images = [mg.Image(device, descriptor(shape, channel_format)) for _ in range(shape[0])]
    else:
        images = mg.ImageBatch.allocate(device, descriptor(shape, channel_format), shape[0])
    if values is not None:
        write(images, store(values, channel_format))
    return images


def write(images: Any, stored: npt.NDArray[Any]) -> None:
    """Replace the texels by (N, H, W, C) values in the storage encoding."""
    if isinstance(images, mg.Image):
        images.write(stored if images.number_of_images > 1 else stored[0])
        return
    for image, values in zip(images, stored, strict=True):
        image.write(np.ascontiguousarray(values))


def filled(
    device: mg.Device,
    values: npt.ArrayLike,
    channel_format: str = "float32",
    *,
    kind: str = "batch",
) -> Any:
    """Images that hold (N, H, W, C) values, rounded to the format."""
    stored = store(values, channel_format)
    images = empty(device, stored.shape, channel_format, kind=kind)
    write(images, stored)
    return images


def read(images: Any) -> npt.NDArray[Any]:
    """Return the texels of finished images as (N, H, W, C), in the storage encoding."""
    if isinstance(images, mg.Image):
        texels = images.read()
        return texels if texels.ndim == 4 else texels[np.newaxis]
    return np.stack([image.read() for image in images])


def channel_window(
    device: mg.Device,
    forward: Any,
    gradient: Any,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
    channel_format: str = "float32",
    *,
    takes_result: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any]:
    """Encode a pair from channels 4 to 9 of x (N, H, W, 13) into channels 8 to 13 of 20, and back.

    Returns what is there, the gradient of g (N, H, W, 6) and the states. The gradient kernel takes
    the source, or the result. Channels of other slices keep what they had.
    """
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 6
    forward.destination_feature_channel_offset = 8
    sources = filled(device, x, channel_format)
    results = empty(device, (*x.shape[:3], 20), channel_format, fill=0.5)
    states = forward.result_state(sources, results)
    incoming = filled(device, g, channel_format)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        seen = results if takes_result else sources
        dx = work.result(gradient.encode(work.buffer, incoming, seen, states, allocator=mg.DEFAULT))
        mg.synchronize(states, work.buffer)
    texels = read(results)
    assert (texels[..., :8] == 0.5).all()
    if device.kind == "cpu":  # the rest of the last slice that was written; MPS may leave anything
        assert (texels[..., 14:16] == 0).all()
    assert (texels[..., 16:] == 0.5).all()
    return texels[..., 8:14], read(dx), states


def moved(
    device: mg.Device, forward: Any, x: npt.NDArray[np.float32], edge: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Encode images (2, 4, 5, C) with an offset that leaves them, into a part of the results.

    Returns what is there and the pixels it was made of; the rest must stay as it is.
    """
    forward.offset = (-2, 1, 0)
    forward.edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[edge]
    forward.clip_rect = mg.Region((1, 0), (6, 5))
    results = empty(device, (2, 6, 8, x.shape[3]), fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, filled(device, x), work.result(results))
    texels = read(results)
    written = texels[:, :5, 1:7].copy()
    texels[:, :5, 1:7] = 0.5
    assert (texels == 0.5).all()
    return written, sample(x.astype(np.float64), np.arange(5) + 1, np.arange(6) - 2, edge)


def check_read_counts(
    device: mg.Device, forward: Any, gradient: Any, source: Any
) -> npt.NDArray[Any]:
    """Encode a pair on temporary images and states, each read once; return the gradient of y."""
    with Work(device) as work:
        images = forward.encode(work.buffer, source)
        mg.increment_read_count(images, 1)  # the forward pass and the gradient read it
        result, states = forward.encode(work.buffer, images, with_state=True, temporary_state=True)
        assert [image.read_count for image in images] == [1] * len(images)
        dx = gradient.encode(work.buffer, result, images, states, allocator=mg.DEFAULT)
        work.result(dx)
        assert not any(image.read_count for image in (*images, *result))
        assert not any(state.read_count for state in states)
        with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
            forward.encode(work.buffer, images)
        with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
            gradient.encode(work.buffer, result, images, states)
    return read(dx)


class Work:
    """A command buffer that is committed and waited for on a clean exit, with results to read."""

    def __init__(self, device: mg.Device) -> None:
        self.buffer = device.command_queue().command_buffer()
        self._results: list[Any] = []

    def result(self, images: Any) -> Any:
        """Have the images ready to be read after the block."""
        self._results.append(images)
        return images

    def __enter__(self) -> Work:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            return
        for images in self._results:
            if isinstance(images, mg.Image):
                images.synchronize(self.buffer)
            else:
                mg.synchronize(images, self.buffer)
        self.buffer.commit()
        self.buffer.wait_until_completed()
