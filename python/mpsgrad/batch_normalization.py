"""Batch normalization: statistics, the transform, its two gradient kernels, and data sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, overload

import numpy as np

from mpsgrad import _core
from mpsgrad._array_source import ChannelArraySource
from mpsgrad._arrays import (
    ArrayGradientKernel,
    array_queue,
    as_image_array,
    batch_of,
    finish,
    place_for,
    resolve_device,
)
from mpsgrad._kernel import KernelFacade
from mpsgrad._updates import ArrayUpdates, spend
from mpsgrad.neuron import NeuronDescriptor, NeuronType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ArrayBatchNormalizationDataSource",
    "BatchNormalization",
    "BatchNormalizationDataSource",
    "BatchNormalizationGradient",
    "BatchNormalizationStatistics",
    "BatchNormalizationStatisticsGradient",
]


class _Absent:
    """A method of the base class that Apple's class does not have either."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._words = f"{owner.__name__} has no {name}; use {self._instead}"

    def __get__(self, instance: Any, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._words)


def _fused(neuron: _core.NeuronDescriptor | None) -> _core.NeuronDescriptor:
    return NeuronDescriptor(NeuronType.NONE) if neuron is None else neuron


class _FusedNeuron(KernelFacade):
    """What the three kernels with a fused neuron share."""

    if TYPE_CHECKING:

        @property
        def _neuron(self) -> _core.NeuronDescriptor: ...

    @property
    def fused_neuron_descriptor(self) -> NeuronDescriptor | None:
        """Activation of the forward result, or None."""
        n = self._neuron
        if n.neuron_type == NeuronType.NONE:
            return None
        return NeuronDescriptor(n.neuron_type, n.a, n.b, n.c, n.data or None)

    def _arguments(self) -> dict[str, Any]:
        return {"fused_neuron_descriptor": self.fused_neuron_descriptor}


class BatchNormalizationDataSource:
    """Supplies a kernel's numbers (``MPSCNNBatchNormalizationDataSource``).

    A kernel calls `load`, then reads attributes, then calls `purge`: at construction and at each
    reload from the data source, on any thread. Any object with these members will do, this class
    need not be a base. Optional, for whoever runs the updates: ``update_gamma_and_beta(
    command_buffer, state)``, which returns a `NormalizationGammaAndBetaState` or None and lowers
    the state's read count by one, ``update_mean_and_variance`` likewise, and the CPU forms
    ``update_gamma_and_beta_cpu(state)`` and ``update_mean_and_variance_cpu(state)``, which return
    whether anything has changed. Kernels never call these. ``copy(device=None)`` is called when a
    kernel is copied, so that no two kernels share one set of numbers.
    """

    number_of_feature_channels: int
    """Channels that the kernel normalizes, at least 1."""

    gamma: npt.ArrayLike | None = None
    """Scale, float32, shape (C,); None for 1."""

    beta: npt.ArrayLike | None = None
    """Offset, float32, shape (C,); None for 0."""

    mean: npt.ArrayLike | None = None
    """Stored mean, float32, shape (C,); None where there is none to normalize with."""

    variance: npt.ArrayLike | None = None
    """Stored variance, float32, shape (C,), used as it is; None where there is none."""

    epsilon: float = float(np.finfo(np.float32).tiny)
    """Added to the variance under the root."""

    label: str | None = None
    """A name for the kernel's label."""

    def load(self) -> bool:
        """Prepare to be read; False makes the kernel's constructor, or the reload, fail."""
        return True

    def purge(self) -> None:
        """Release what `load` prepared."""


class ArrayBatchNormalizationDataSource(ChannelArraySource, BatchNormalizationDataSource):
    """Numbers in NumPy arrays.

    Parameters
    ----------
    gamma, beta, mean, variance : array_like of float32, shape (C,), optional
        Kept, not copied, where they are float32 arrays already: they may be changed, and a reload
        reads them again; what an optimizer trains, after `load`. With an optimizer, mean and
        variance begin at 0 and 1 if they are not given.
    number_of_feature_channels : int, optional
        By default the length of the arrays.
    epsilon : float, optional
        By default the smallest normal float32.
    label : str, optional
    optimizer : Optimizer, optional
        Trains gamma and beta, which must be there, where a graph updates by the GPU. It may serve
        several sources. The arrays show what it has done after a reload.
    statistics_decay : float, default 0.9
        With an optimizer: how much of mean and variance each step keeps; the rest is the batch's.

    Raises
    ------
    ValueError
        If neither an array nor ``number_of_feature_channels`` is given, or lengths differ.
    """

    _arrays: ClassVar[dict[str, str]] = {
        name: name for name in ("gamma", "beta", "mean", "variance")
    }
    _averages: ArrayUpdates | None = None

    def __init__(
        self,
        gamma: npt.ArrayLike | None = None,
        beta: npt.ArrayLike | None = None,
        mean: npt.ArrayLike | None = None,
        variance: npt.ArrayLike | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float | None = None,
        label: str | None = None,
        optimizer: Any = None,
        statistics_decay: float = 0.9,
    ) -> None:
        if not 0.0 <= statistics_decay <= 1.0:
            raise ValueError(
                f"{type(self).__name__}: statistics_decay must be from 0 to 1, got "
                f"{statistics_decay!r}"
            )
        self.statistics_decay = statistics_decay
        given = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
        self._take(given, number_of_feature_channels, epsilon, label, optimizer)

    def _train(self, optimizer: Any) -> ArrayUpdates:
        channels = self.number_of_feature_channels
        if self.mean is None:
            self.mean = np.zeros(channels, np.float32)
        if self.variance is None:
            self.variance = np.ones(channels, np.float32)
        statistics = {"mean": "mean", "variance": "variance"}
        self._averages = ArrayUpdates(type(self).__name__, optimizer, self, statistics)
        return super()._train(optimizer)

    def load(self) -> bool:
        """Bring what updates have made into the arrays, and return True."""
        if self._averages is not None:
            self._averages.bring_back()
        return super().load()

    def update_gamma_and_beta(
        self, command_buffer: _core.CommandBuffer, state: _core.BatchNormalizationState
    ) -> _core.NormalizationGammaAndBetaState | None:
        """Encode a step of the optimizer on the master copy; reads the state once.

        None without an optimizer, and where a `GradientBucket` takes the gradient.
        """
        return self._step_gamma_and_beta(command_buffer, [state])

    def update_mean_and_variance(
        self, command_buffer: _core.CommandBuffer, state: _core.BatchNormalizationState
    ) -> _core.NormalizationMeanAndVarianceState | None:
        """Encode the running averages of mean and biased variance; reads the state once.

        None without an optimizer.
        """
        updates = self._averages
        if updates is None:
            spend([state])
            return None
        for what, statistic in (("mean", state.mean), ("variance", state.variance)):
            updates.move_average(command_buffer, what, statistic, self.statistics_decay)
        spend([state])
        return _core.NormalizationMeanAndVarianceState(
            updates.buffer("mean"), updates.buffer("variance")
        )


class BatchNormalizationStatistics(KernelFacade, _core.BatchNormalizationStatistics):
    """Mean and variance of each channel over a batch (``MPSCNNBatchNormalizationStatistics``).

    The variance is biased: the mean of the squared distances from the mean. Several encodes with
    one state accumulate; the result does not depend on how a batch is cut, beyond rounding.

    Sources are ``(N, H, W, C)``, float32 or float16; statistics are float32, shape (C,).

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    encode = _Absent("encode_batch")

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))

    def __call__(self, source: npt.ArrayLike, state: _core.BatchNormalizationState) -> None:
        """Add an array's statistics to a state, and wait.

        Parameters
        ----------
        source : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
        state : BatchNormalizationState
            Overwritten or added to.

        Raises
        ------
        TypeError, ValueError
            If the array has the wrong dtype or shape, or other channels than the state's kernel.
        """
        array, _ = as_image_array(self, source, "source")
        command_buffer = array_queue(self.device).command_buffer()
        self.encode_batch(command_buffer, batch_of(self.device, array), state)
        state.synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()


class BatchNormalization(_FusedNeuron, _core.BatchNormalization):
    """``f((x - mean) * gamma / sqrt(variance + epsilon) + beta)`` (``MPSCNNBatchNormalization``).

    All numbers are of one channel; f is the fused neuron. Mean and variance are the stored ones of
    the data source (inference), or those in a state that `BatchNormalizationStatistics` has filled
    (training). Nothing here updates the stored ones: that is the caller's, by a reload.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    data_source : BatchNormalizationDataSource
        Read at once; see there for reloads.
    fused_neuron_descriptor : NeuronDescriptor, optional
        Copied. The gradient kernels need an equal one.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If the data source lacks a member.
    ValueError
        If it refuses to load, an array has not one value a channel, or ``epsilon`` or the neuron's
        data is out of range.
    """

    _own_settings = ("epsilon",)

    def __init__(
        self,
        data_source: Any,
        fused_neuron_descriptor: _core.NeuronDescriptor | None = None,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), data_source, _fused(fused_neuron_descriptor))

    def _arguments(self) -> dict[str, Any]:
        return {"data_source": self.data_source, **super()._arguments()}

    @overload
    def __call__(
        self,
        source: npt.ArrayLike,
        state: _core.BatchNormalizationState | None = None,
        *,
        with_state: Literal[False] = False,
        out: Any = None,
    ) -> npt.NDArray[Any]: ...
    @overload
    def __call__(
        self,
        source: npt.ArrayLike,
        state: _core.BatchNormalizationState | None = None,
        *,
        with_state: Literal[True],
        out: Any = None,
    ) -> tuple[npt.NDArray[Any], _core.BatchNormalizationState]: ...
    @overload
    def __call__(
        self,
        source: npt.ArrayLike,
        state: _core.BatchNormalizationState | None = None,
        *,
        with_state: bool,
        out: Any = None,
    ) -> Any: ...
    def __call__(
        self,
        source: npt.ArrayLike,
        state: _core.BatchNormalizationState | None = None,
        *,
        with_state: bool = False,
        out: Any = None,
    ) -> Any:
        """Run the kernel on an array, and wait.

        Parameters
        ----------
        source : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Used in place on the CPU device if it is C-contiguous.
        state : BatchNormalizationState, optional
            Normalize with its statistics.
        with_state : bool, default False
            Make a new state, take the statistics of ``source`` into it, normalize with those, and
            return the state as well: the forward pass of training on one whole batch.
        out : ndarray, or what has a buffer or DLPack, optional
            Where to put the result: C-contiguous, of the result's shape.

        Returns
        -------
        ndarray, or pair of ndarray and BatchNormalizationState
            Same dtype as ``source`` unless ``out`` has another. Without ``state`` and
            ``with_state``, normalized with the kernel's stored statistics.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape, or the state is of another kernel, or both
            ``state`` and ``with_state`` are given.
        StateError
            If there are no statistics to normalize with.
        """
        if with_state and state is not None:
            raise ValueError("BatchNormalization: give either state or with_state, not both")
        array, single = as_image_array(self, source, "source")
        sources = batch_of(self.device, array)
        command_buffer = array_queue(self.device).command_buffer()
        out, places = place_for(self, out, single)
        if not with_state and state is None:
            images = self.encode_batch(command_buffer, sources, allocator=places)
            return finish(command_buffer, images, out, single)
        if isinstance(places, _core.ImageAllocator):
            descriptor = self.destination_descriptor(sources[0])
            places = _core.ImageBatch.allocate(self.device, descriptor, len(array))
        if state is None:
            state = self.result_state(sources[0], places[0])
            statistics = BatchNormalizationStatistics(device=self.device)
            for name in ("source_feature_channel_offset", "source_feature_channel_max_count"):
                setattr(statistics, name, getattr(self, name))
            statistics.encode_batch(command_buffer, sources, state)
        self.encode_batch(command_buffer, sources, places, batch_normalization_state=state)
        state.synchronize(command_buffer)
        result = finish(command_buffer, places, out, single)
        return (result, state) if with_state else result


class BatchNormalizationStatisticsGradient(
    _FusedNeuron, _core.BatchNormalizationStatisticsGradient
):
    """Weight gradients of a batch (``MPSCNNBatchNormalizationStatisticsGradient``).

    With x' the normalized source and g the incoming gradient before the neuron, the gradient of
    gamma is the sum of ``g * x'`` and that of beta the sum of g, over the images of every encode
    since the statistics. They go into the state, where `BatchNormalizationGradient` and optimizers
    find them.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    fused_neuron_descriptor : NeuronDescriptor, optional
        The forward kernel's; without one the incoming gradient counts as that before the neuron.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the neuron's data is out of range.
    """

    encode = _Absent("encode_batch")
    destination_descriptor = _Absent("encode_batch")
    configure = _Absent("encode_batch")

    def __init__(
        self,
        fused_neuron_descriptor: _core.NeuronDescriptor | None = None,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), _fused(fused_neuron_descriptor))

    def __call__(
        self,
        source_gradient: npt.ArrayLike,
        source: npt.ArrayLike,
        state: _core.BatchNormalizationState,
    ) -> None:
        """Add the sums over arrays to a state, and wait.

        Parameters
        ----------
        source_gradient : array_like, float32 or float16, shape (N, H, W, C) or (H, W, C)
            Gradient of the loss with respect to the forward result.
        source : array_like, float32 or float16, of the same shape
            The source of the forward pass.
        state : BatchNormalizationState
            Holds the statistics of the whole batch.

        Raises
        ------
        TypeError, ValueError
            If an array has the wrong dtype or shape.
        StateError
            If the state has no statistics, or those of fewer images.
        """
        gradients, _ = as_image_array(self, source_gradient, "source_gradient")
        sources, _ = as_image_array(self, source, "source")
        command_buffer = array_queue(self.device).command_buffer()
        self.encode_batch(
            command_buffer, batch_of(self.device, gradients), batch_of(self.device, sources), state
        )
        state.synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()


class BatchNormalizationGradient(
    _FusedNeuron, ArrayGradientKernel, _core.BatchNormalizationGradient
):
    """Gradient with respect to the forward source (``MPSCNNBatchNormalizationGradient``).

    With g, x' and the sums of `BatchNormalizationStatisticsGradient`, and m samples of a channel in
    the batch: ``gamma / sqrt(variance + epsilon) * (g - sum(g) / m - x' * sum(g * x') / m)``. The
    sums must be those of the whole batch, whatever part of it an encode is given.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    fused_neuron_descriptor : NeuronDescriptor, optional
        Equal to that of `BatchNormalizationStatisticsGradient`.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    ValueError
        If the neuron's data is out of range.
    """

    def __init__(
        self,
        fused_neuron_descriptor: _core.NeuronDescriptor | None = None,
        *,
        device: _core.Device | str | None = None,
    ) -> None:
        super().__init__(resolve_device(device, self), _fused(fused_neuron_descriptor))
