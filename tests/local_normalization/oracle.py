"""Cross-channel, spatial and local contrast normalization in float64.

The gradients are the exact derivatives of the forward formulas. Positions outside the image or the
channels contribute 0 and the divisor stays that of the full window. Parameters are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.core.oracle import sample

if TYPE_CHECKING:
    from tests.core.oracle import Array, Indices


def _singles(parameters: object) -> None:
    """Round the float fields of a frozen dataclass to float32."""
    for name, value in vars(parameters).items():
        if isinstance(value, float):
            object.__setattr__(parameters, name, float(np.float32(value)))


@dataclass(frozen=True)
class CrossChannel:
    """Parameters of cross-channel normalization."""

    kernel_size: int = 5
    alpha: float = 1.0
    beta: float = 5.0
    delta: float = 1.0

    def __post_init__(self) -> None:
        """Round to what a kernel stores."""
        _singles(self)


@dataclass(frozen=True)
class Spatial:
    """Parameters of spatial normalization; the window is square."""

    kernel_size: int
    alpha: float = 1.0
    beta: float = 5.0
    delta: float = 1.0
    edge: str = "zero"  # of the forward kernel

    def __post_init__(self) -> None:
        """Round to what a kernel stores."""
        _singles(self)


@dataclass(frozen=True)
class LocalContrast:
    """Parameters of local contrast normalization; the window is square."""

    kernel_size: int
    alpha: float = 0.0
    beta: float = 0.5
    delta: float = 1 / 1024
    p0: float = 1.0
    pm: float = 0.0
    ps: float = 1.0
    edge: str = "zero"  # of the forward kernel

    def __post_init__(self) -> None:
        """Round to what a kernel stores."""
        _singles(self)


def window(size: int, *, transposed: bool = False) -> Indices:
    """Positions of a window relative to its pixel; an even one leans back, transposed forward."""
    positions = np.arange(size) - size // 2
    return -positions[::-1] if transposed else positions


def channel_sum(values: Array, size: int, *, transposed: bool = False) -> Array:
    """Sum over a window of channels, 0 outside."""
    channels = np.arange(values.shape[3])
    offsets = channels[:, None] - channels[None, :]  # [from, to]
    reads = np.isin(offsets, window(size, transposed=transposed))
    return values @ reads.astype(np.float64)


def pixel_sum(values: Array, size: int, edge: str = "zero", *, transposed: bool = False) -> Array:
    """Sum over a square window of pixels."""
    rows, columns = (np.arange(n) for n in values.shape[1:3])
    offsets = window(size, transposed=transposed)
    down = sum(sample(values, rows + dy, columns, edge) for dy in offsets)
    return sum(sample(down, rows, columns + dx, edge) for dx in offsets)


def _power(base: Array, exponent: float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return base**exponent


# --- Cross-channel -----------------------------------------------------------


def cross_channel(p: CrossChannel, source: npt.ArrayLike) -> Array:
    """x * L^-beta, L the scaled mean square over neighbouring channels plus delta."""
    x = np.asarray(source, np.float64)
    return x * _power(cross_channel_base(p, x), -p.beta)


def cross_channel_base(p: CrossChannel, source: npt.ArrayLike) -> Array:
    """L, the base of the power."""
    x = np.asarray(source, np.float64)
    return p.delta + p.alpha / p.kernel_size * channel_sum(x**2, p.kernel_size)


def cross_channel_gradient(
    p: CrossChannel, gradient: npt.ArrayLike, source: npt.ArrayLike
) -> Array:
    """Gradient with respect to the source."""
    g, x = np.asarray(gradient, np.float64), np.asarray(source, np.float64)
    base = cross_channel_base(p, x)
    shared = channel_sum(g * x * _power(base, -p.beta - 1), p.kernel_size, transposed=True)
    return g * _power(base, -p.beta) - 2 * p.alpha * p.beta / p.kernel_size * x * shared


def cross_channel_gradient_scale(
    p: CrossChannel, gradient: npt.ArrayLike, source: npt.ArrayLike
) -> Array:
    """Sum of the magnitudes in `cross_channel_gradient`."""
    g, x = np.abs(np.asarray(gradient, np.float64)), np.abs(np.asarray(source, np.float64))
    base = cross_channel_base(p, x)
    shared = channel_sum(g * x * _power(base, -p.beta - 1), p.kernel_size, transposed=True)
    return g * _power(base, -p.beta) + 2 * abs(p.alpha * p.beta) / p.kernel_size * x * shared


# --- Spatial -----------------------------------------------------------------


def spatial(p: Spatial, source: npt.ArrayLike) -> Array:
    """x * T^-beta, T the scaled mean square over neighbouring pixels plus delta."""
    x = np.asarray(source, np.float64)
    return x * _power(spatial_base(p, x), -p.beta)


def spatial_base(p: Spatial, source: npt.ArrayLike) -> Array:
    """T, the base of the power."""
    x = np.asarray(source, np.float64)
    return p.delta + p.alpha / p.kernel_size**2 * pixel_sum(x**2, p.kernel_size, p.edge)


def spatial_gradient(p: Spatial, gradient: npt.ArrayLike, source: npt.ArrayLike) -> Array:
    """Gradient with respect to the source; edge mode zero only."""
    _only_zero(p.edge)
    g, x = np.asarray(gradient, np.float64), np.asarray(source, np.float64)
    base = spatial_base(p, x)
    shared = pixel_sum(g * x * _power(base, -p.beta - 1), p.kernel_size, transposed=True)
    return g * _power(base, -p.beta) - 2 * p.alpha * p.beta / p.kernel_size**2 * x * shared


def spatial_gradient_scale(p: Spatial, gradient: npt.ArrayLike, source: npt.ArrayLike) -> Array:
    """Sum of the magnitudes in `spatial_gradient`."""
    g, x = np.abs(np.asarray(gradient, np.float64)), np.abs(np.asarray(source, np.float64))
    base = spatial_base(p, x)
    shared = pixel_sum(g * x * _power(base, -p.beta - 1), p.kernel_size, transposed=True)
    return g * _power(base, -p.beta) + 2 * abs(p.alpha * p.beta) / p.kernel_size**2 * x * shared


def _only_zero(edge: str) -> None:
    if edge != "zero":
        raise ValueError("the gradients of local normalizations have edge mode zero only")


# --- Local contrast ----------------------------------------------------------


def contrast_statistics(p: LocalContrast, source: npt.ArrayLike) -> tuple[Array, Array]:
    """Mean and biased variance of every window; padding zeros are samples."""
    x, count = np.asarray(source, np.float64), p.kernel_size**2
    mean = pixel_sum(x, p.kernel_size, p.edge) / count
    squares = pixel_sum(x**2, p.kernel_size, p.edge) / count
    return mean, np.maximum(squares - mean**2, 0)


def local_contrast(p: LocalContrast, source: npt.ArrayLike) -> Array:
    """pm + ps (x - p0 mean) (delta + alpha variance)^-beta."""
    x = np.asarray(source, np.float64)
    mean, variance = contrast_statistics(p, x)
    return p.pm + p.ps * (x - p.p0 * mean) * _power(p.delta + p.alpha * variance, -p.beta)


def local_contrast_gradient(
    p: LocalContrast, gradient: npt.ArrayLike, source: npt.ArrayLike
) -> Array:
    """Gradient with respect to the source; edge mode zero only."""
    _only_zero(p.edge)
    g, x = np.asarray(gradient, np.float64), np.asarray(source, np.float64)
    count = p.kernel_size**2
    mean, variance = contrast_statistics(p, x)
    base = p.delta + p.alpha * variance
    a = g * _power(base, -p.beta)
    b = g * (x - p.p0 * mean) * _power(base, -p.beta - 1)

    def gather(values: Array) -> Array:
        return pixel_sum(values, p.kernel_size, transposed=True)

    by_variance = x * gather(b) - gather(b * mean)
    return p.ps * (a - p.p0 / count * gather(a) - 2 * p.alpha * p.beta / count * by_variance)


def local_contrast_scale(p: LocalContrast, source: npt.ArrayLike) -> Array:
    """Sum of the magnitudes in `local_contrast`, with the variance's cancellation followed up."""
    x = np.asarray(source, np.float64)
    mean, variance = contrast_statistics(p, x)
    squares = pixel_sum(x**2, p.kernel_size, p.edge) / p.kernel_size**2
    base = p.delta + p.alpha * variance
    upper = np.abs(x) + abs(p.p0) * pixel_sum(np.abs(x), p.kernel_size, p.edge) / p.kernel_size**2
    lost = 1 + abs(p.beta * p.alpha) * (squares + mean**2) / np.abs(base)
    return abs(p.pm) + abs(p.ps) * upper * _power(base, -p.beta) * lost


def local_contrast_gradient_scale(
    p: LocalContrast, gradient: npt.ArrayLike, source: npt.ArrayLike
) -> Array:
    """Sum of the magnitudes in `local_contrast_gradient`, likewise."""
    g, x = np.abs(np.asarray(gradient, np.float64)), np.asarray(source, np.float64)
    count = p.kernel_size**2
    mean, variance = contrast_statistics(p, x)
    squares = pixel_sum(x**2, p.kernel_size) / count
    base = p.delta + p.alpha * variance
    magnitude = pixel_sum(np.abs(x), p.kernel_size) / count
    lost = 1 + abs((p.beta + 1) * p.alpha) * (squares + mean**2) / np.abs(base)
    a = g * _power(base, -p.beta) * lost
    b = g * (np.abs(x) + abs(p.p0) * magnitude) * _power(base, -p.beta - 1) * lost

    def gather(values: Array) -> Array:
        return pixel_sum(values, p.kernel_size, transposed=True)

    by_variance = np.abs(x) * gather(b) + gather(b * magnitude)
    weight = 2 * abs(p.alpha * p.beta) / count
    return abs(p.ps) * (a + abs(p.p0) / count * gather(a) + weight * by_variance)
