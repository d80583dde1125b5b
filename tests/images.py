"""Images for tests of kernels, made and read the same way on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from tests.core.oracle import DTYPES, store

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
