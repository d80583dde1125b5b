"""Batch normalization kernels run on arrays, sub-batch by sub-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from tests.images import Work, empty, filled, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tests.neuron.cases import Neuron


def descriptor(neuron: Neuron | None) -> mg.NeuronDescriptor | None:
    """Return the neuron as an argument of kernels."""
    if neuron is None:
        return None
    return mg.NeuronDescriptor(getattr(mg.NeuronType, neuron.kind), **neuron.parameters)


def forward_kernel(
    device: mg.Device,
    channels: int,
    gamma: Any = None,
    beta: Any = None,
    mean: Any = None,
    variance: Any = None,
    *,
    epsilon: float = 1e-3,
    neuron: Neuron | None = None,
) -> mg.BatchNormalization:
    """Make a kernel of arrays."""
    source = mg.ArrayBatchNormalizationDataSource(
        gamma, beta, mean, variance, number_of_feature_channels=channels, epsilon=epsilon
    )
    return mg.BatchNormalization(source, descriptor(neuron), device=device)


def cut(array: npt.NDArray[Any], counts: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Split a batch into sub-batches of so many images."""
    assert sum(counts) == len(array)
    return np.split(array, np.cumsum(counts)[:-1])


@dataclass
class Step:
    """What one training step left."""

    state: mg.BatchNormalizationState
    y: npt.NDArray[Any]
    dx: npt.NDArray[Any]

    def number(self, name: str) -> npt.NDArray[np.float32]:
        """Return one of the state's arrays, one value a channel."""
        return values(getattr(self.state, name), self.y.shape[-1])


def values(buffer: mg.Buffer, channels: int) -> npt.NDArray[np.float32]:
    """Return a buffer's first values."""
    return buffer.to_numpy()[:channels]


def train(
    device: mg.Device,
    kernel: mg.BatchNormalization,
    x: npt.NDArray[Any],
    g: npt.NDArray[Any],
    counts: Sequence[int],
    *,
    gradient_counts: Sequence[int] | None = None,
    neuron: Neuron | None = None,
    channel_format: str = "float32",
    state: mg.BatchNormalizationState | None = None,
) -> Step:
    """Run all four kernels; the batch is cut one way for statistics, another for gradients."""
    sums = mg.BatchNormalizationStatisticsGradient(descriptor(neuron), device=device)
    gradient = mg.BatchNormalizationGradient(descriptor(neuron), device=device)
    forward_x = [filled(device, part, channel_format) for part in cut(x, counts)]
    gradient_counts = counts if gradient_counts is None else gradient_counts
    backward_x = [filled(device, part, channel_format) for part in cut(x, gradient_counts)]
    incoming = [filled(device, part, channel_format) for part in cut(g, gradient_counts)]
    results = [empty(device, (len(part), *x.shape[1:]), channel_format) for part in forward_x]
    if state is None:
        state = kernel.result_state(forward_x[0][0], results[0][0])
    with Work(device) as work:
        for part in forward_x:
            mg.BatchNormalizationStatistics(device=device).encode_batch(work.buffer, part, state)
        for part, result in zip(forward_x, results, strict=True):
            kernel.encode_batch(
                work.buffer, part, work.result(result), batch_normalization_state=state
            )
        for g_part, part in zip(incoming, backward_x, strict=True):
            sums.encode_batch(work.buffer, g_part, part, state)
        gradients = [
            work.result(
                gradient.encode_batch(work.buffer, g_part, part, state, allocator=mg.DEFAULT)
            )
            for g_part, part in zip(incoming, backward_x, strict=True)
        ]
        state.synchronize(work.buffer)
    return Step(
        state,
        np.concatenate([read(result) for result in results]),
        np.concatenate([read(result) for result in gradients]),
    )
