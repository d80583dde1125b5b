"""Shapes and neurons shared by the tests."""

from __future__ import annotations

from dataclasses import dataclass

from tests.neuron.cases import PRELU_SLOPES, Neuron


@dataclass(frozen=True)
class BatchCase:
    """Sub-batches of one accumulation: equal sizes and channels, any number of images each."""

    name: str
    counts: tuple[int, ...]
    size: tuple[int, int]  # (width, height)
    channels: int

    def __str__(self) -> str:
        """Name the case, for test ids."""
        return self.name

    @property
    def shapes(self) -> list[tuple[int, int, int, int]]:
        """Of the sub-batches, (N, H, W, C)."""
        return [(count, self.size[1], self.size[0], self.channels) for count in self.counts]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the whole batch."""
        return sum(self.counts), self.size[1], self.size[0], self.channels


CASES = [
    BatchCase("one value", (1,), (1, 1), 1),
    BatchCase("one pixel", (5,), (1, 1), 3),
    BatchCase("one image", (1,), (5, 3), 2),
    BatchCase("four channels", (2,), (3, 5), 4),
    BatchCase("two sub-batches", (2, 3), (4, 3), 5),
    BatchCase("three sub-batches", (1, 1, 1), (7, 2), 9),
    BatchCase("uneven sub-batches", (1, 4, 2), (1, 5), 7),
    BatchCase("channels 17", (3,), (2, 2), 17),
    BatchCase("row", (2, 1), (13, 1), 6),
    BatchCase("channels 8", (4,), (5, 1), 8),
]

# Too many for central differences; enough to be worked on in parts.
MANY_CHANNELS = BatchCase("channels 1027", (2, 1), (1, 3), 1027)

NEURONS = [
    None,
    Neuron("RELU", a=0.0),
    Neuron("RELU", a=0.1),
    Neuron("SIGMOID"),
    Neuron("TANH", a=1.0, b=1.0),
    Neuron("PRELU", data=PRELU_SLOPES),
    Neuron("GELU"),
]


def neuron_for(neuron: Neuron | None, channels: int) -> Neuron | None:
    """Return the neuron with exactly as many PRELU slopes as there are channels."""
    if neuron is None or neuron.data is None:
        return neuron
    slopes = tuple(neuron.data)
    return Neuron(neuron.kind, data=(slopes * (channels // len(slopes) + 1))[:channels])
