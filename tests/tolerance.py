"""How the suite compares numbers: errors in ULPs of the output format, never a tuned epsilon.

A tolerance is a number of ULPs (units in the last place) of the format a result is stored in, taken
at a stated scale: the magnitude of the exact result, or the sum of the magnitudes that were added.
`ulps_for` derives the number from the count of roundings on the way to the result.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from types import TracebackType

# Codes of the normalised integer formats: a stored integer k means k / codes.
UNORM_CODES = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}

# Below this many elements a result may be all zeros without the case being suspicious.
SMALL = 32


def ulp(scale: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[np.float64]:
    """Distance between neighbouring values of `dtype` at magnitude `scale`, as float64.

    Unlike `numpy.spacing` it also serves magnitudes beyond the largest finite value, and the
    normalised integers, whose values are equally far apart everywhere.
    """
    dtype = np.dtype(dtype)
    magnitude = np.abs(np.asarray(scale, np.float64))
    if dtype in UNORM_CODES:
        return np.full(magnitude.shape, 1 / UNORM_CODES[dtype])
    info = np.finfo(dtype)
    _, exponent = np.frexp(np.maximum(magnitude, float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def ulps_for(
    roundings: float,
    dtype: npt.DTypeLike = np.float32,
    *,
    compute: npt.DTypeLike = np.float32,
    functions: float = 0.0,
) -> float:
    """Tolerance in ULPs of `dtype` for a result that took `roundings` roundings in `compute`.

    One rounding of a quantity no larger than the scale costs at most half an ULP of the scale. Many
    of them behave like a random walk, so beyond 36 the bound is six of its standard deviations,
    3 * sqrt(roundings), instead of the worst case. `functions` adds the documented errors (in ULPs
    of `compute`) of library functions such as exp. A result stored in another format than it was
    computed in is rounded once more.
    """
    walk = 0.5 * min(roundings, 6.0 * math.sqrt(roundings)) + functions
    if np.dtype(dtype) == np.dtype(compute):
        return walk
    if np.dtype(dtype) in UNORM_CODES:
        finest = float(np.finfo(compute).eps) * UNORM_CODES[np.dtype(dtype)]
    else:
        # At one magnitude the formats' ULPs differ by the ratio of their significands.
        finest = float(np.finfo(compute).eps) / float(np.finfo(dtype).eps)
    return 0.5 + walk * finest


def assert_close(
    actual: npt.ArrayLike,
    exact: npt.ArrayLike,
    *,
    ulps: float,
    scale: npt.ArrayLike | None = None,
    floor: float = 0.0,
    nonzero: float = 0.25,
) -> None:
    """Fail unless every element of `actual` lies within `ulps` ULPs of `exact`.

    The ULP is that of the dtype of `actual` (float32, float16, or uint8/uint16 holding normalised
    values) at magnitude `scale`, which defaults to abs(exact) and broadcasts. `floor` keeps the
    scale from falling below a magnitude, say the smallest normal number on a device that flushes
    denormals. NaN and infinities must stand where `exact` rounds to them. `nonzero` is the share of
    elements that must not be exactly zero for the comparison to tell anything (`require_telling`).
    """
    actual = np.asarray(actual)
    exact = np.asarray(exact, np.float64)
    if actual.dtype not in UNORM_CODES and actual.dtype not in (np.float32, np.float16):
        raise TypeError(f"assert_close: no ULP is defined for results of dtype {actual.dtype}")
    if actual.shape != exact.shape:
        raise AssertionError(f"shape {actual.shape}, expected {exact.shape}")
    require_telling(exact, nonzero)
    if exact.size == 0:
        return

    values = actual.astype(np.float64)
    if actual.dtype in UNORM_CODES:
        values = values / UNORM_CODES[actual.dtype]
        exact = np.clip(exact, 0.0, 1.0)
        expected = exact
    else:
        with np.errstate(over="ignore"):
            expected = exact.astype(actual.dtype).astype(np.float64)
    magnitude = np.abs(exact) if scale is None else np.abs(np.asarray(scale, np.float64))
    magnitude = np.broadcast_to(np.maximum(magnitude, floor), exact.shape)

    unit = ulp(magnitude, actual.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(values - exact) / unit
        # One overflows where the other just does not: the largest finite value stands for infinity.
        if actual.dtype not in UNORM_CODES:
            largest = float(np.finfo(actual.dtype).max)
            clipped = np.clip(values, -largest, largest) - np.clip(exact, -largest, largest)
            beyond = np.isinf(values) != np.isinf(exact)
            error = np.where(beyond, np.abs(clipped) / unit, error)
    same = (expected == values) | (np.isnan(expected) & np.isnan(values))
    error = np.where(same, 0.0, error)
    error = np.where(np.isnan(error), np.inf, error)

    bad = error > ulps
    if bad.any():
        named = "abs(exact)" if scale is None else "given"
        raise AssertionError(_report(bad, error, actual, exact, unit, f"{ulps:g} ULPs", named))


def assert_exact(actual: npt.ArrayLike, expected: npt.ArrayLike, *, nonzero: float = 0.25) -> None:
    """Fail unless `actual` equals `expected` element by element; equal NaNs are equal.

    `expected` is compared at full precision: it must be representable in the dtype of `actual`.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {actual.shape}, expected {expected.shape}")
    require_telling(expected, nonzero)
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    bad = ~((left == right) | (np.isnan(left) & np.isnan(right)))
    if bad.any():
        with np.errstate(invalid="ignore"):
            error = np.abs(left - right)
        error = np.where(bad, np.where(np.isnan(error), np.inf, error), 0.0)
        unit = ulp(right, actual.dtype) if actual.dtype.kind == "f" else np.ones(right.shape)
        raise AssertionError(
            _report(bad, error / unit, actual, right, unit, "exactly 0", "expected")
        )


def assert_same_bytes(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Fail unless two runs gave the same dtype, shape and bytes, signs of zero included."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        raise AssertionError(
            f"{actual.dtype} {actual.shape}, expected {expected.dtype} {expected.shape}"
        )
    left, right = (
        np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(a.size, a.dtype.itemsize)
        for a in (actual, expected)
    )
    different = np.flatnonzero((left != right).any(axis=1))
    if different.size:
        index = tuple(int(i) for i in np.unravel_index(different[0], actual.shape))
        raise AssertionError(
            f"{different.size} of {actual.size} elements differ in their bytes, first at "
            f"{list(index)}: {actual[index]!r} and {expected[index]!r}"
        )


def require_telling(exact: npt.ArrayLike, nonzero: float = 0.25) -> None:
    """Reject a case whose expected result is mostly zero: a kernel that writes nothing would pass.

    Results of fewer than `SMALL` elements are let through.
    """
    exact = np.asarray(exact)
    share = np.count_nonzero(exact) / max(exact.size, 1)
    if exact.size >= SMALL and share < nonzero:
        raise AssertionError(
            f"invalid case: only {share:.0%} of the {exact.size} expected values are not zero, "
            f"at least {nonzero:.0%} are needed; change the inputs, or pass nonzero= with a reason"
        )


def _report(
    bad: npt.NDArray[np.bool_],
    error: npt.NDArray[np.float64],
    actual: npt.NDArray[Any],
    exact: npt.NDArray[np.float64],
    unit: npt.NDArray[np.float64],
    allowed: str,
    scale: str,
) -> str:
    """Describe a failed comparison by its worst element."""
    index = tuple(int(i) for i in np.unravel_index(np.argmax(error), error.shape))
    return (
        f"{np.count_nonzero(bad)} of {bad.size} elements differ, allowed {allowed} of "
        f"{actual.dtype} (scale: {scale})\n"
        f"worst at {list(index)}: {error[index]:.6g} ULPs\n"
        f"  actual   {float(actual[index]):.17g}\n"
        f"  expected {float(exact[index]):.17g}\n"
        f"  one ULP  {float(unit[index]):.6g}"
    )


class Guarded:
    """An array for `out=` between two bands of NaN, all inside one allocation.

    As a context manager it yields the array, itself full of NaN, and on a clean exit fails if a
    byte of the bands has changed or an element was left unwritten.

    Parameters
    ----------
    shape, dtype
        Of the array. Integer formats use the largest value instead of NaN, bands only are checked.
    skew
        Elements by which the array misses a 64-byte boundary: 0 is aligned.
    """

    BAND = 256  # bytes, a multiple of the alignment

    def __init__(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, *, skew: int = 0
    ) -> None:
        dtype = np.dtype(dtype)
        count = math.prod(shape)
        band = self.BAND // dtype.itemsize
        self._floating = dtype.kind == "f"
        filler: Any = np.nan if self._floating else np.iinfo(dtype).max
        raw = np.full(count + skew + 2 * band + 64 // dtype.itemsize, filler, dtype)
        start = band + (-(raw.ctypes.data // dtype.itemsize) % (64 // dtype.itemsize)) + skew
        self._raw, self._start, self._stop = raw, start, start + count
        self._before = raw.view(np.uint8).copy()
        self.array = raw[start : start + count].reshape(shape)

    def check(self, *, complete: bool = True) -> None:
        """Fail if the bands were touched or, when `complete`, an element still is NaN."""
        size = self._raw.dtype.itemsize
        touched = np.flatnonzero(self._raw.view(np.uint8) != self._before) // size
        outside = touched[(touched < self._start) | (touched >= self._stop)]
        if outside.size:
            places = sorted({int(i) - self._start for i in outside})
            raise AssertionError(
                f"wrote outside the array at element(s) {places[:8]} of {self.array.size}"
            )
        if complete and self._floating and np.isnan(self.array).any():
            missing = np.argwhere(np.isnan(self.array))
            raise AssertionError(
                f"{len(missing)} of {self.array.size} elements were not written (or are NaN), "
                f"first at {missing[0].tolist()}"
            )

    def __enter__(self) -> npt.NDArray[Any]:
        """Return the array to write to."""
        return self.array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Check the bands unless the block already failed."""
        if kind is None:
            self.check()


def rng_for(name: str) -> np.random.Generator:
    """Return a generator seeded from a test's name: the same numbers in every run of that test."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def grid(
    rng: np.random.Generator,
    shape: int | tuple[int, ...],
    *,
    step: float = 1.0,
    reach: int = 4,
    dtype: npt.DTypeLike = np.float32,
) -> npt.NDArray[Any]:
    """Non-zero multiples of `step`, a power of two, up to `reach` steps either side.

    Products and sums of a few thousand such numbers are exact in float32 in any order.
    """
    steps = rng.integers(1, reach, shape, endpoint=True) * rng.choice([-1, 1], shape)
    return np.asarray(steps * step, dtype)
