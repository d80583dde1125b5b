"""The sixteen activation functions and their slopes in float64.

Kinds carry the names of the enumeration's members. Parameters a, b, c are rounded to float32 first,
as a descriptor stores them; those left out take the standard form of the kind.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

KINDS = (
    "NONE",
    "RELU",
    "LINEAR",
    "SIGMOID",
    "HARD_SIGMOID",
    "TANH",
    "ABSOLUTE",
    "SOFT_PLUS",
    "SOFT_SIGN",
    "ELU",
    "PRELU",
    "RELUN",
    "POWER",
    "EXPONENTIAL",
    "LOGARITHM",
    "GELU",
)

DEFAULTS: dict[str, dict[str, float]] = {
    "RELU": {"a": 0.0},
    "LINEAR": {"a": 1.0, "b": 0.0},
    "HARD_SIGMOID": {"a": 0.2, "b": 0.5},
    "TANH": {"a": 1.0, "b": 1.0},
    "SOFT_PLUS": {"a": 1.0, "b": 1.0},
    "ELU": {"a": 1.0},
    "RELUN": {"a": 1.0, "b": 6.0},
    "POWER": {"a": 1.0, "b": 0.0, "c": 1.0},
    "EXPONENTIAL": {"a": 1.0, "b": 0.0, "c": -1.0},
    "LOGARITHM": {"a": 1.0, "b": 0.0, "c": -1.0},
}

erf = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(erf(x), np.float64)


def parameters(kind: str, **given: Any) -> tuple[Any, float, float]:
    """Return a, b, c as the kernel sees them; for PRELU `a` is the array of slopes."""
    if kind == "PRELU":
        return np.asarray(given["data"], np.float32).astype(np.float64), 0.0, 0.0
    chosen = DEFAULTS.get(kind, {}) | {k: v for k, v in given.items() if v is not None}
    return tuple(float(np.float32(chosen.get(name, 0.0))) for name in "abc")  # type: ignore[return-value]


def _log_base(c: float) -> float:
    """Natural logarithm of the base that `c` selects: e for exactly -1."""
    if c == -1:
        return 1.0
    with np.errstate(all="ignore"):
        return float(np.log(c))


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def forward(kind: str, x: npt.ArrayLike, **given: Any) -> Array:
    """Apply the activation to every element; the channel axis, for PRELU, is the last."""
    x = np.asarray(x, np.float64)
    a, b, c = parameters(kind, **given)
    with np.errstate(all="ignore"):  # domain errors have IEEE results
        match kind:
            case "NONE":
                return x.copy()
            case "RELU" | "PRELU":
                return np.where(x >= 0, x, _per_channel(a, x) * x)
            case "LINEAR":
                return a * x + b
            case "SIGMOID":
                return logistic(x)
            case "HARD_SIGMOID":
                return np.minimum(np.maximum(a * x + b, 0.0), 1.0)
            case "TANH":
                return a * np.tanh(b * x)
            case "ABSOLUTE":
                return np.abs(x)
            case "SOFT_PLUS":
                return a * (np.maximum(b * x, 0.0) + np.log1p(np.exp(-np.abs(b * x))))
            case "SOFT_SIGN":
                return x / (1.0 + np.abs(x))
            case "ELU":
                return np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0.0)))
            case "RELUN":
                return np.minimum(np.where(x >= 0, x, a * x), b)
            case "POWER":
                return (a * x + b) ** c
            case "EXPONENTIAL":
                return np.exp(_log_base(c) * (a * x + b))
            case "LOGARITHM":
                return np.log(a * x + b) / _log_base(c)
            case "GELU":
                return 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))
    raise ValueError(f"neuron kind {kind!r}")


def slope(kind: str, x: npt.ArrayLike, **given: Any) -> Array:
    """Differentiate the activation at the forward input `x`; at a kink, take the named branch."""
    x = np.asarray(x, np.float64)
    a, b, c = parameters(kind, **given)
    with np.errstate(all="ignore"):
        match kind:
            case "NONE":
                return np.ones_like(x)
            case "RELU" | "PRELU":
                return np.where(x >= 0, 1.0, _per_channel(a, x))
            case "LINEAR":
                return np.full_like(x, a)
            case "SIGMOID":
                return logistic(x) * logistic(-x)
            case "HARD_SIGMOID":
                return np.where((a * x + b >= 0) & (a * x + b <= 1), a, 0.0)
            case "TANH":
                # 1 - tanh(z)^2 = 4 s(2z) s(-2z), which keeps its digits where tanh saturates.
                return 4.0 * a * b * logistic(2 * b * x) * logistic(-2 * b * x)
            case "ABSOLUTE":
                return np.sign(x)
            case "SOFT_PLUS":
                return a * b * logistic(b * x)
            case "SOFT_SIGN":
                return 1.0 / (1.0 + np.abs(x)) ** 2
            case "ELU":
                return np.where(x >= 0, 1.0, a * np.exp(np.minimum(x, 0.0)))
            case "RELUN":
                rectified = np.where(x >= 0, x, a * x)
                return np.where(rectified >= b, 0.0, np.where(x >= 0, 1.0, a))
            case "POWER":
                return a * c * (a * x + b) ** (c - 1)
            case "EXPONENTIAL":
                return a * _log_base(c) * np.exp(_log_base(c) * (a * x + b))
            case "LOGARITHM":
                return a / (_log_base(c) * (a * x + b))
            case "GELU":
                density = math.sqrt(2 / math.pi) * np.exp(-(x**2) / 2)
                return 0.5 * (1.0 + _erf(x * math.sqrt(0.5)) + x * density)
    raise ValueError(f"neuron kind {kind!r}")


def gradient(
    kind: str, source_gradient: npt.ArrayLike, source: npt.ArrayLike, **given: Any
) -> Array:
    """Incoming gradient times the slope at the forward source."""
    return np.asarray(source_gradient, np.float64) * slope(kind, source, **given)


def kinks(kind: str, **given: Any) -> list[float]:
    """Return the inputs at which the slope jumps."""
    a, b, _ = parameters(kind, **given)
    match kind:
        case "RELU" | "PRELU" | "ABSOLUTE" | "ELU":
            return [0.0]
        case "HARD_SIGMOID":
            return [-b / a, (1 - b) / a] if a else []
        case "RELUN":
            return [0.0] + [b] * (b >= 0) + ([b / a] if a and b / a < 0 else [])
    return []


# The scales below are the magnitudes that an evaluation of the formula as written adds up, every
# rounded intermediate weighted with its influence on the result. They are what an error may be
# measured against where the result itself is a small difference.


def forward_scale(kind: str, x: npt.ArrayLike, **given: Any) -> Array:
    """Magnitude to which the roundings of a forward evaluation are relative."""
    x = np.asarray(x, np.float64)
    a, b, c = parameters(kind, **given)
    value = np.abs(forward(kind, x, **given))
    with np.errstate(all="ignore"):
        argument = np.abs(_per_channel(a, x) * x) + abs(b)
        match kind:
            case "LINEAR" | "HARD_SIGMOID":
                return argument
            case "SOFT_PLUS":
                return value + np.abs(slope(kind, x, **given) * x)
            case "ELU":
                return np.where(x >= 0, value, abs(a) * (np.exp(np.minimum(x, 0.0)) + 1.0))
            case "POWER":
                base = np.abs(a * x + b)
                exponent = np.abs(c * np.log(base))
                return value * (1.0 + exponent + abs(c) * argument / base)
            case "EXPONENTIAL":
                return value * (1.0 + abs(_log_base(c)) * argument)
            case "LOGARITHM":
                return value + argument / np.abs((a * x + b) * _log_base(c))
            case "GELU":
                return 0.5 * np.abs(x) * (1.0 + np.abs(_erf(x * math.sqrt(0.5))))
    return value


def gradient_scale(
    kind: str, source_gradient: npt.ArrayLike, source: npt.ArrayLike, **given: Any
) -> Array:
    """Magnitude to which the roundings of a gradient evaluation are relative."""
    x = np.asarray(source, np.float64)
    a, b, c = parameters(kind, **given)
    value = np.abs(slope(kind, x, **given))
    with np.errstate(all="ignore"):
        argument = np.abs(_per_channel(a, x) * x) + abs(b)
        match kind:
            case "TANH":
                value = np.abs(a * b) * (1.0 + np.tanh(b * x) ** 2)
            case "SOFT_PLUS":
                value = value * (1.0 + np.abs(b * x))
            case "POWER":
                base = np.abs(a * x + b)
                value = value * (
                    1.0 + np.abs((c - 1) * np.log(base)) + abs(c - 1) * argument / base
                )
            case "EXPONENTIAL":
                value = value * (1.0 + abs(_log_base(c)) * argument)
            case "LOGARITHM":
                value = value * (1.0 + argument / np.abs(a * x + b))
            case "GELU":
                density = math.sqrt(2 / math.pi) * np.exp(-(x**2) / 2)
                error_function = np.abs(_erf(x * math.sqrt(0.5)))
                value = 0.5 * (1.0 + error_function + np.abs(x) * density * (1.0 + x**2))
    return np.abs(np.asarray(source_gradient, np.float64)) * value


def _per_channel(a: Any, x: Array) -> Any:
    """Slopes of the channels of `x`; extra values are ignored."""
    return a[: x.shape[-1]] if isinstance(a, np.ndarray) else a
