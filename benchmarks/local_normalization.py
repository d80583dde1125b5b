"""Cross-channel, spatial and local contrast normalization, forward and gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples, allowed, places
from .suite import DIRECTIONS, Output, Work, layer_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .layers import Line
    from .suite import Case, Context, Request

__all__ = ["cases"]

CLASSES = {
    "cross_channel": "CrossChannelNormalization",
    "spatial": "SpatialNormalization",
    "local_contrast": "LocalContrastNormalization",
}
# As AlexNet has them but for delta, which is 2 there: exact in float32 as they are.
ALPHA, BETA, DELTA = 0.5, 0.75, 1.0
SAMPLES = 200


def cases(request: Request) -> Iterator[Case]:
    """Yield every kind of every layer, forward and gradient."""
    for line in request.lines("local_normalization"):
        kernels = {
            f"{kind}_{direction}": (kind, direction)
            for kind in line.words("kinds")
            for direction in DIRECTIONS
        }
        yield from layer_cases(request, "local_normalization", line, kernels, build)


def build(context: Context, line: Line, batch: int, dtype: str, kind: str, direction: str) -> Work:
    """Make arrays and kernels."""
    shape = batch, *line.shape
    size = int(line.options["window"])
    x, g = context.normal(shape, dtype), context.normal(shape, dtype)
    window = (size,) if kind == "cross_channel" else (size, size)
    forward = getattr(mg, CLASSES[kind])(*window, device=context.device)
    gradient = getattr(mg, f"{CLASSES[kind]}Gradient")(*window, device=context.device)
    for kernel in (forward, gradient):
        kernel.alpha, kernel.beta, kernel.delta = ALPHA, BETA, DELTA
    sources, results = context.batch(x), context.result(shape, dtype)
    exact = Exact(context.rng, kind, size, x, g)
    if direction == "forward":

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, results)

        output = Output("y", lambda: context.read(results), exact.forward())
    else:
        incoming = context.batch(g)
        states = context.states(forward, sources, g)

        def encode(buffer: mg.CommandBuffer) -> None:
            gradient.encode_batch(buffer, incoming, sources, states, allocator=results)

        output = Output("dx", lambda: context.read(results), exact.gradient())
    arrays = x.nbytes * (2 if direction == "forward" else 3)
    peers = {
        "torch": lambda peer: torch_calls(peer, kind, size, direction, x, g),
        "jax": lambda peer: peer.either(direction, jax_function(peer, kind, size), g, x),
    }
    if kind != "local_contrast":
        peers["onednn"] = lambda peer: peer.local_normalization(
            kind, size, x, None if direction == "forward" else g, (ALPHA, BETA, DELTA)
        )
    return Work(lambda: context.run(encode), [output], arrays, arrays=arrays, peers=peers)


# --- Some elements in float64 -------------------------------------------------


class Exact:
    """What windows hold around some elements.

    Each element has a line of channels or a square of pixels around it, as far as the windows reach
    that reach it: arrays (samples, rows, columns), with a single row for channels, and zeros where
    there is nothing.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        kind: str,
        size: int,
        x: npt.NDArray[Any],
        g: npt.NDArray[Any],
    ) -> None:
        self.kind, self.size = kind, size
        self.rows = 1 if kind == "cross_channel" else size  # of a window
        self.count = self.rows * size
        self.index = places(rng, x.shape, SAMPLES)
        self.x, self.g = self._around(x), self._around(g)

    def _around(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        n, row, column, channel = self.index
        if self.kind == "cross_channel":
            # A pixel's channels, as one row of columns.
            images = images[n, row, column][:, None, :, None]
            n, row, column, channel = np.arange(len(n)), 0 * row, channel, 0 * channel
        down, right = np.arange(1 - self.rows, self.rows), np.arange(1 - self.size, self.size)
        y, x = row[:, None, None] + down[:, None], column[:, None, None] + right
        there = (y >= 0) & (y < images.shape[1]) & (x >= 0) & (x < images.shape[2])
        y, x = np.clip(y, 0, images.shape[1] - 1), np.clip(x, 0, images.shape[2] - 1)
        found = images[n[:, None, None], y, x, channel[:, None, None]]
        values: npt.NDArray[np.float64] = np.where(there, found, 0).astype(np.float64)
        return values

    def _sums(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sums over all the windows that lie in what is around an element.

        The first of them begins at the first place; so those which reach the element itself are as
        many as a window has places.
        """
        return sum(
            values[:, r : r + self.rows, c : c + self.size]
            for r in range(self.rows)
            for c in range(self.size)
        )  # type: ignore[return-value]

    def _own(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return an element's own value, of those of all windows that reach it."""
        return values[:, (self.rows - 1) // 2, (self.size - 1) // 2]

    def _reached(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what lies where a window has its own place that reaches the element."""
        row, column = self.rows // 2, self.size // 2
        return values[:, row : row + self.rows, column : column + self.size]

    def _base(self) -> tuple[Any, Any, Any]:
        """Return the base of the power, the mean, and how much larger errors the base may have."""
        squares = self._sums(self.x**2) / self.count
        if self.kind != "local_contrast":
            return DELTA + ALPHA * squares, 0.0, 1.0
        mean = self._sums(self.x) / self.count
        base = DELTA + ALPHA * (squares - mean**2)
        return base, mean, 1 + (BETA + 1) * ALPHA * (squares + mean**2) / base

    def _functions(self, exponent: float) -> float:
        """Return the units that a power is off by: its own, and what its base's errors become."""
        wide = self.kind == "local_contrast"
        roundings = 2 if wide else self.count + 4
        base = float(allowed(np.ones(1), roundings, 0, np.dtype(np.float32))[0]) / 2.0**-23
        return 2 + 2 * abs(exponent) * base

    def forward(self) -> Samples:
        """Return elements of the result."""
        base, mean, lost = (self._own(v) if np.ndim(v) else v for v in self._base())
        at = self._own(self._reached(self.x))
        power = base**-BETA
        magnitude = self._own(self._sums(np.abs(self.x))) / self.count
        scale = np.abs(at) + (magnitude if self.kind == "local_contrast" else 0.0)
        return Samples(
            self.index, (at - mean) * power, scale * power * lost, 5, self._functions(BETA)
        )

    def gradient(self) -> Samples:
        """Return elements of the gradient: what every window that holds an element hands back."""
        base, mean, lost = self._base()
        x, g = self._reached(self.x), self._reached(self.g)
        at = self._own(x)[:, None, None]
        direct = g * base**-BETA
        shared = g * base ** (-BETA - 1)
        weight = 2 * ALPHA * BETA / self.count
        contrast = self.kind == "local_contrast"
        from_power = weight * shared * (x - mean) * (at - mean)
        from_mean = direct / self.count if contrast else 0 * direct
        # The element's own window hands back the direct part.
        exact = self._own(direct) - (from_power + from_mean).sum(axis=(1, 2))
        magnitude = self._sums(np.abs(self.x)) / self.count if contrast else 0.0
        sizes = (
            np.abs(weight * shared) * (np.abs(x) + magnitude) * (np.abs(at) + magnitude)
            + np.abs(from_mean)
        ) * lost
        scale = self._own(np.abs(direct) * lost) + sizes.sum(axis=(1, 2))
        # Sums are one axis after the other.
        roundings = self.rows + self.size + 9
        return Samples(self.index, exact, scale, roundings, self._functions(BETA + 1))


# --- Peers ----------------------------------------------------------------------


def torch_calls(
    peer: Any, kind: str, size: int, direction: str, x: npt.NDArray[Any], g: npt.NDArray[Any]
) -> dict[str, Callable[[], Any]]:
    """PyTorch: ``local_response_norm``, else pooling and a power; gradients by a tape made before.

    What the tape holds is at hand for the gradient, which ours computes again from the source.
    """
    f = peer.functional

    def mean(x: Any) -> Any:
        return f.avg_pool2d(x, size, 1, size // 2)

    def spatial(x: Any) -> Any:
        return x / (DELTA + ALPHA * mean(x * x)) ** BETA

    def local_contrast(x: Any) -> Any:
        middle = mean(x)
        return (x - middle) / (DELTA + ALPHA * (mean(x * x) - middle * middle)) ** BETA

    function = {
        "cross_channel": lambda x: f.local_response_norm(x, size, ALPHA, BETA, DELTA),
        "spatial": spatial,
        "local_contrast": local_contrast,
    }[kind]
    return dict(
        peer.images(function, [x]) if direction == "forward" else peer.backward(function, g, x)
    )


def jax_function(peer: Any, kind: str, size: int) -> Callable[[Any], Any]:
    """JAX: ``reduce_window`` and a power."""
    window = (1, 1, 1, size) if kind == "cross_channel" else (1, size, size, 1)

    def mean(x: Any) -> Any:
        total = peer.lax.reduce_window(x, 0.0, peer.lax.add, window, (1, 1, 1, 1), "SAME")
        return total / math.prod(window)

    def normalize(x: Any) -> Any:
        middle = mean(x) if kind == "local_contrast" else 0.0
        return (x - middle) / (DELTA + ALPHA * (mean(x * x) - middle * middle)) ** BETA

    return normalize
