"""Shapes and neurons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# (N, H, W, C)
SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 7),
    (2, 1, 5, 2),
    (3, 5, 3, 3),
    (1, 7, 11, 4),
    (5, 3, 1, 5),
    (2, 13, 2, 6),
    (4, 2, 3, 8),
    (2, 5, 7, 9),
    (1, 3, 5, 17),
    (1, 17, 19, 1),
]


@dataclass(frozen=True)
class Neuron:
    """A neuron and the interval of inputs on which it is tested."""

    kind: str
    a: float | None = None
    b: float | None = None
    c: float | None = None
    data: tuple[float, ...] | None = None
    interval: tuple[float, float] = (-6.0, 6.0)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return what was given, by name."""
        named = {"a": self.a, "b": self.b, "c": self.c, "data": self.data}
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        """Name the case, for test ids."""
        values = [f"{n}={v:g}" for n, v in self.parameters.items() if n != "data"]
        return "-".join([self.kind.lower(), *values])


PRELU_SLOPES = tuple((-1) ** c * (0.05 + 0.1 * c) for c in range(32))

# Every kind in its standard form, except PRELU, which has none.
STANDARD = [
    Neuron("NONE"),
    Neuron("RELU"),
    Neuron("LINEAR"),
    Neuron("SIGMOID"),
    Neuron("HARD_SIGMOID"),
    Neuron("TANH"),
    Neuron("ABSOLUTE"),
    Neuron("SOFT_PLUS"),
    Neuron("SOFT_SIGN"),
    Neuron("ELU"),
    Neuron("PRELU", data=PRELU_SLOPES),
    Neuron("RELUN"),
    Neuron("POWER"),
    Neuron("EXPONENTIAL"),
    Neuron("LOGARITHM", interval=(0.05, 20.0)),
    Neuron("GELU"),
]

VARIED = [
    Neuron("RELU", a=0.1),
    Neuron("RELU", a=-0.5),
    Neuron("LINEAR", a=-1.5, b=0.25),
    Neuron("SIGMOID", interval=(-80.0, 80.0)),
    Neuron("HARD_SIGMOID", a=-0.5, b=0.75),
    Neuron("TANH", a=1.7159, b=0.6667),
    Neuron("SOFT_PLUS", a=0.5, b=-2.0),
    Neuron("SOFT_PLUS", a=1.0, b=1.0, interval=(-80.0, 200.0)),
    Neuron("ELU", a=0.3),
    Neuron("RELUN", a=0.0, b=6.0, interval=(-10.0, 10.0)),
    Neuron("RELUN", a=0.1, b=2.0),
    Neuron("RELUN", a=-0.5, b=1.5),
    Neuron("POWER", a=-1.5, b=0.5, c=1.0),
    Neuron("POWER", a=-1.5, b=0.5, c=2.0),
    Neuron("POWER", a=2.0, b=1.0, c=3.0),
    Neuron("POWER", a=1.0, b=7.0, c=-1.0),
    Neuron("POWER", a=0.5, b=4.0, c=0.5),
    Neuron("EXPONENTIAL", a=1.0, b=0.0, c=2.0),
    Neuron("EXPONENTIAL", a=-0.5, b=0.25, c=10.0),
    Neuron("LOGARITHM", a=2.0, b=0.0, c=2.0, interval=(0.05, 20.0)),
    Neuron("LOGARITHM", a=0.5, b=4.0, c=10.0),
]

NEURONS = STANDARD + VARIED


@dataclass(frozen=True)
class Value:
    """A printed value of an activation and of its slope, good to `digits` decimals."""

    neuron: Neuron
    x: float
    value: float
    slope: float
    digits: int = field(default=6)


def _row(neuron: Neuron, *pairs: tuple[float, float]) -> list[Value]:
    points = (-2.0, -0.5, 0.0, 0.5, 2.0, 7.0)
    return [Value(neuron, x, f, d) for x, (f, d) in zip(points, pairs, strict=True)]


# fmt: off
VALUES = [
    *_row(Neuron("RELU", a=0.1),
          (-0.2, 0.1), (-0.05, 0.1), (0, 1), (0.5, 1), (2, 1), (7, 1)),
    *_row(Neuron("SIGMOID"),
          (0.119203, 0.104994), (0.377541, 0.235004), (0.5, 0.25),
          (0.622459, 0.235004), (0.880797, 0.104994), (0.999089, 0.000910)),
    *_row(Neuron("HARD_SIGMOID", a=0.2, b=0.5),
          (0.1, 0.2), (0.4, 0.2), (0.5, 0.2), (0.6, 0.2), (0.9, 0.2), (1, 0)),
    *_row(Neuron("TANH", a=1, b=1),
          (-0.964028, 0.070651), (-0.462117, 0.786448), (0, 1),
          (0.462117, 0.786448), (0.964028, 0.070651), (0.999998, 0.000003)),
    *_row(Neuron("ABSOLUTE"), (2, -1), (0.5, -1), (0, 0), (0.5, 1), (2, 1), (7, 1)),
    *_row(Neuron("SOFT_PLUS", a=1, b=1),
          (0.126928, 0.119203), (0.474077, 0.377541), (0.693147, 0.5),
          (0.974077, 0.622459), (2.126928, 0.880797), (7.000911, 0.999089)),
    *_row(Neuron("SOFT_SIGN"),
          (-0.666667, 0.111111), (-0.333333, 0.444444), (0, 1),
          (0.333333, 0.444444), (0.666667, 0.111111), (0.875, 0.015625)),
    *_row(Neuron("ELU", a=1),
          (-0.864665, 0.135335), (-0.393469, 0.606531), (0, 1), (0.5, 1), (2, 1), (7, 1)),
    *_row(Neuron("RELUN", a=0.1, b=6),
          (-0.2, 0.1), (-0.05, 0.1), (0, 1), (0.5, 1), (2, 1), (6, 0)),
    *_row(Neuron("POWER", a=2, b=1, c=3),
          (-27, 54), (0, 0), (1, 6), (8, 24), (125, 150), (3375, 1350)),
    *_row(Neuron("EXPONENTIAL", a=1, b=0, c=2),
          (0.25, 0.173287), (0.707107, 0.490129), (1, 0.693147),
          (1.414214, 0.980258), (4, 2.772589), (128, 88.722839)),
    *_row(Neuron("GELU"),
          (-0.045500, -0.085232), (-0.154269, 0.132505), (0, 0.5),
          (0.345731, 0.867495), (1.954500, 1.085232), (7, 1)),
    *(Value(Neuron("LOGARITHM", a=2, b=0, c=2), x, f, d)
      for x, f, d in [(0.5, 0, 2.885390), (1, 1, 1.442695), (2, 2, 0.721348), (4, 3, 0.360674)]),
]
# fmt: on
