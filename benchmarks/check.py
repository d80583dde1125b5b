"""Whether a result is right: some of its elements, computed again in float64.

The kernels' own tests compare every element of small images. Here the images are large, so a case
names elements (corners and random ones), computes those alone from the inputs, and every element
must be finite. What may differ follows from the number of roundings, as in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Samples", "WrongResult", "allowed", "places"]


class WrongResult(Exception):
    """A kernel computed something else; its text says where."""


def allowed(
    scale: npt.NDArray[np.float64], roundings: float, functions: float, dtype: np.dtype[Any]
) -> npt.NDArray[np.float64]:
    """Return how far results of ``dtype`` may lie from the exact ones, computed in float32.

    Each of ``roundings`` costs at most half a unit in the last place of the scale; many behave like
    a random walk, of which six standard deviations are allowed. ``functions`` adds the units that
    library functions such as exp are off by. A float16 result is rounded once more.
    """
    units = 0.5 * min(roundings, 6.0 * math.sqrt(roundings)) + functions
    result = units * _unit(scale, np.dtype(np.float32))
    if dtype == np.float16:
        result = result + 0.5 * _unit(scale, dtype)
    return result


def _unit(scale: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    """Return the distance between neighbouring values of ``dtype`` at a magnitude."""
    info = np.finfo(dtype)
    _, exponent = np.frexp(np.maximum(scale, float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def places(
    rng: np.random.Generator, shape: tuple[int, ...], count: int
) -> tuple[npt.NDArray[np.intp], ...]:
    """Return indices of ``count`` random elements and of every corner."""
    corners = np.stack(np.meshgrid(*[[0, n - 1] for n in shape], indexing="ij"), -1)
    random = np.stack([rng.integers(0, n, count) for n in shape], -1)
    both = np.unique(np.concatenate([corners.reshape(-1, len(shape)), random]), axis=0)
    return tuple(both.T)


@dataclass(frozen=True)
class Samples:
    """What some elements of a result must be.

    Attributes
    ----------
    index : tuple of ndarray
        Where they are.
    exact, scale : ndarray of float64
        Their values, and the magnitudes that their roundings are relative to.
    roundings, functions : float
        As `allowed` takes them.
    within : ndarray of float64, optional
        How far the elements may lie from their values, where no number of roundings says that.
    """

    index: tuple[npt.NDArray[np.intp], ...]
    exact: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    roundings: float
    functions: float = 0.0
    within: npt.NDArray[np.float64] | None = None

    def compare(self, name: str, result: npt.NDArray[Any]) -> None:
        """Raise `WrongResult` unless these elements are right and all are finite."""
        if not np.count_nonzero(self.exact):
            raise WrongResult(f"{name}: every expected value is 0, so the case tells nothing")
        if not np.isfinite(result).all():
            raise WrongResult(f"{name}: not every element is finite, or not all were written")
        tolerance = self.within
        if tolerance is None:
            tolerance = allowed(self.scale, self.roundings, self.functions, result.dtype)
        self._within(name, result, tolerance)

    def compare_peer(self, name: str, result: npt.NDArray[Any]) -> None:
        """Raise `WrongResult` if another library computes something else.

        Its arithmetic is its own affair, so this only tells whether it does the same work.
        """
        loose = 0.03 if result.dtype == np.float16 else 0.002
        tolerance = loose * np.maximum(self.scale, np.abs(self.exact).mean())
        if self.within is not None:
            tolerance = np.maximum(tolerance, 4 * self.within)
        self._within(name, result, tolerance)

    def _within(
        self, name: str, result: npt.NDArray[Any], tolerance: npt.NDArray[np.float64]
    ) -> None:
        found = result[self.index].astype(np.float64)
        error = np.abs(found - self.exact)
        wrong = ~(error <= tolerance)
        if wrong.any():
            beyond = error / np.maximum(tolerance, 1e-45)
            worst = int(np.argmax(np.where(wrong, np.nan_to_num(beyond, nan=np.inf), 0.0)))
            place = [int(axis[worst]) for axis in self.index]
            raise WrongResult(
                f"{name}: {np.count_nonzero(wrong)} of {wrong.size} sampled elements are wrong, "
                f"the worst at {place}: {found[worst]:.9g}, expected {self.exact[worst]:.9g} "
                f"within {tolerance[worst]:.2g}"
            )
