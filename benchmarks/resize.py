"""Images in another size, regions of them, and images read where a grid says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from .layers import Line, Pair
    from .suite import Case, Context, Request

__all__ = ["cases"]

NAMES = {
    "resize": "resize_forward",
    "crop": "crop_and_resize_forward",
    "positions": "grid_sample_forward",
    "flow": "grid_sample_flow_forward",
}
SAMPLES = 256
ROUNDINGS = 10  # of weights, products and sums along two axes


def cases(request: Request) -> Iterator[Case]:
    """Yield every layer."""
    for line in layers.read("resize"):
        height, width = line.sizes[1]
        if request.quick:
            line = line.quick()
            height, width = min(height, 16), min(width, 16)
        kernels = {NAMES[line.options["kind"]]: ((height, width),)}
        yield from layer_cases(request, "resize", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, size: Pair) -> Work:
    """Make arrays and kernels."""
    x = context.normal((batch, *line.shape), dtype)
    kind = line.options["kind"]
    if kind == "resize":
        return resize(context, x, size)
    if kind == "crop":
        return crop(context, x, size, int(line.options["regions"]))
    return sample(context, x, size, kind == "flow")


def resize(context: Context, x: npt.NDArray[Any], size: Pair) -> Work:
    """Resize with aligned corners: with other positions PyTorch interpolates elsewhere."""
    height, width = size
    kernel = mg.ResizeBilinear(width, height, align_corners=True, device=context.device)
    results = context.result((len(x), height, width, x.shape[3]), x.dtype)
    n, i, j, c = index = places(context.rng, np.shape(context.read(results)), SAMPLES)
    rows, columns = (
        k * ((source - 1) / max(result - 1, 1))
        for k, source, result in zip((i, j), x.shape[1:3], size, strict=True)
    )
    samples = Samples(index, *between(x, n, rows, columns, c), ROUNDINGS)

    def torch_calls(peer: Any) -> dict[str, Any]:
        how = {"size": size, "mode": "bilinear", "align_corners": True}
        return peer.images(lambda v: peer.functional.interpolate(v, **how), [x])  # type: ignore[no-any-return]

    return work(context, kernel, [x], results, samples, {"torch": torch_calls})


def crop(context: Context, x: npt.NDArray[Any], size: Pair, count: int) -> Work:
    """Resize regions of a fifth to two fifths of the sides; PyTorch has no such operation."""
    height, width = size
    extent = context.rng.uniform(0.2, 0.4, (count, 2))
    regions = np.concatenate([context.rng.uniform(0, 1 - extent), extent], axis=1)
    kernel = mg.CropAndResizeBilinear(width, height, regions, device=context.device)
    results = context.result((len(x) * count, height, width, x.shape[3]), x.dtype)
    n, i, j, c = index = places(context.rng, np.shape(context.read(results)), SAMPLES)
    chosen = regions[n % count]
    rows = (chosen[:, 1] + chosen[:, 3] * (i / (height - 1))) * (x.shape[1] - 1)
    columns = (chosen[:, 0] + chosen[:, 2] * (j / (width - 1))) * (x.shape[2] - 1)
    samples = Samples(index, *between(x, n // count, rows, columns, c), ROUNDINGS)
    return work(context, kernel, [x], results, samples, {})


def sample(context: Context, x: npt.NDArray[Any], size: Pair, is_flow: bool) -> Work:
    """Read images along a rotated grid, or a few pixels from each result's own place."""
    own = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij")[::-1], -1)
    if is_flow:
        grid = context.normal((len(x), *size, 2)) * np.float32(3)
        positions = own + grid.astype(np.float64)
    else:
        centre = (np.array(size[::-1]) - 1) / 2
        turn = np.array([[np.cos(0.2), np.sin(0.2)], [-np.sin(0.2), np.cos(0.2)]])
        grid = np.empty((len(x), *size, 2), np.float32)
        grid[:] = (own - centre) @ turn + centre
        positions = grid.astype(np.float64)
    kernel = mg.GridSample(device=context.device)
    kernel.use_grid_value_as_input_coordinate = not is_flow
    results = context.result((len(x), *size, x.shape[3]), x.dtype)
    n, i, j, c = index = places(context.rng, np.shape(context.read(results)), SAMPLES)
    columns, rows = positions[n, i, j].T
    samples = Samples(index, *between(x, n, rows, columns, c), ROUNDINGS)

    def torch_calls(peer: Any) -> dict[str, Any]:
        last = np.array([x.shape[2] - 1, x.shape[1] - 1])
        scaled = peer.array((2 * positions / last - 1).astype(np.float32))
        return peer.images(  # type: ignore[no-any-return]
            lambda v: peer.functional.grid_sample(v, scaled, align_corners=True), [x]
        )

    # Its grids are of the images' dtype, and float16 does not tell enough places apart.
    peers = {"torch": torch_calls} if x.dtype == np.float32 else {}
    return work(context, kernel, [x, grid], results, samples, peers)


def between(
    images: npt.NDArray[Any],
    n: npt.NDArray[np.intp],
    rows: npt.NDArray[np.float64],
    columns: npt.NDArray[np.float64],
    c: npt.NDArray[np.intp],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Interpolate some elements in float64, with zeros outside; also of their magnitudes."""
    exact, scale = np.zeros(len(n)), np.zeros(len(n))
    height, width = images.shape[1:3]
    top, left = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
    for down in (0, 1):
        for right in (0, 1):
            y, x = top + down, left + right
            weights = (1 - np.abs(rows - y)) * (1 - np.abs(columns - x))
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            pixels = images[n, y.clip(0, height - 1), x.clip(0, width - 1), c].astype(np.float64)
            exact += weights * inside * pixels
            scale += weights * inside * np.abs(pixels)
    return exact, scale


def work(
    context: Context,
    kernel: Any,
    sources: list[npt.NDArray[Any]],
    results: Any,
    samples: Samples,
    peers: dict[str, Any],
) -> Work:
    """Put a case together: sources are read once, and results written."""
    batches = [context.batch(array) for array in sources]

    def encode(buffer: mg.CommandBuffer) -> None:
        kernel.encode_batch(buffer, *batches, allocator=results)

    moved = sum(array.nbytes for array in sources) + np.asarray(context.read(results)).nbytes
    return Work(
        lambda: context.run(encode),
        [Output("y", lambda: context.read(results), samples)],
        bytes=moved,
        arrays=moved,
        peers=peers,
    )
