"""Instance and group normalization, their gradients, and data sources.

Every image is normalized by its own mean and variance: over its pixels and one channel (instance),
or over its pixels and a group of consecutive channels. There are no stored statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpsgrad import _core
from mpsgrad._array_source import ChannelArraySource
from mpsgrad._arrays import ArrayGradientKernel, ArrayUnaryKernel, resolve_device
from mpsgrad._kernel import KernelFacade

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ArrayGroupNormalizationDataSource",
    "ArrayInstanceNormalizationDataSource",
    "GroupNormalization",
    "GroupNormalizationDataSource",
    "GroupNormalizationGradient",
    "InstanceNormalization",
    "InstanceNormalizationDataSource",
    "InstanceNormalizationGradient",
]


class InstanceNormalizationDataSource:
    """Supplies a kernel's numbers (``MPSCNNInstanceNormalizationDataSource``).

    Attributes are read when a kernel is made, and at each reload from the data source, on any
    thread; before that `load` is called and after it `purge`, where there are such methods. Any
    object with these members will do, this class need not be a base. Optional, for whoever runs
    the updates: ``update_gamma_and_beta(command_buffer, states)``, which gets a list of states, one
    an image, and returns a `NormalizationGammaAndBetaState` or None, and the CPU form
    ``update_gamma_and_beta_cpu(states)``, which returns whether anything has changed. Kernels never
    call these. ``copy(device=None)`` is called when a kernel is copied, so that no two kernels
    share one set of numbers.
    """

    number_of_feature_channels: int
    """Channels that the kernel normalizes, at least 1."""

    gamma: npt.ArrayLike | None = None
    """Scale, float32, shape (C,); None for 1."""

    beta: npt.ArrayLike | None = None
    """Offset, float32, shape (C,); None for 0."""

    epsilon: float = float(np.finfo(np.float32).tiny)
    """Added to the variance under the root."""

    label: str | None = None
    """A name for the kernel's label."""

    def load(self) -> bool:
        """Prepare to be read; False makes the kernel's constructor, or the reload, fail."""
        return True

    def purge(self) -> None:
        """Release what `load` prepared."""


class GroupNormalizationDataSource(InstanceNormalizationDataSource):
    """Supplies a kernel's numbers (``MPSCNNGroupNormalizationDataSource``).

    As `InstanceNormalizationDataSource`, with a number of groups.
    """

    number_of_groups: int
    """Groups of consecutive channels, a divisor of their number; read once."""


class _Arrays(ChannelArraySource, InstanceNormalizationDataSource):
    """What both data sources over arrays share."""

    def update_gamma_and_beta(
        self, command_buffer: _core.CommandBuffer, states: list[Any]
    ) -> _core.NormalizationGammaAndBetaState | None:
        """Encode a step of the optimizer by the sum of the states' gradients; reads each once.

        None without an optimizer, and where a `GradientBucket` takes the gradients.
        """
        return self._step_gamma_and_beta(command_buffer, states)


class ArrayInstanceNormalizationDataSource(_Arrays):
    """Numbers in NumPy arrays.

    Parameters
    ----------
    gamma, beta : array_like of float32, shape (C,), optional
        Kept, not copied, where they are float32 arrays already: they may be changed, and a reload
        reads them again; what an optimizer trains, after `load`.
    number_of_feature_channels : int, optional
        By default the length of the arrays.
    epsilon : float, optional
        By default the smallest normal float32.
    label : str, optional
    optimizer : Optimizer, optional
        Trains gamma and beta, which must be there, where a graph updates by the GPU, with the sum
        of the gradients of a batch's images. The arrays show what it has done after a reload.

    Raises
    ------
    ValueError
        If neither an array nor ``number_of_feature_channels`` is given, or lengths differ.
    """

    def __init__(
        self,
        gamma: npt.ArrayLike | None = None,
        beta: npt.ArrayLike | None = None,
        *,
        number_of_feature_channels: int | None = None,
        epsilon: float | None = None,
        label: str | None = None,
        optimizer: Any = None,
    ) -> None:
        given = {"gamma": gamma, "beta": beta}
        self._take(given, number_of_feature_channels, epsilon, label, optimizer)


class ArrayGroupNormalizationDataSource(_Arrays, GroupNormalizationDataSource):
    """Numbers in NumPy arrays.

    Parameters
    ----------
    gamma, beta : array_like of float32, shape (C,), optional
        Kept, not copied, where they are float32 arrays already: they may be changed, and a reload
        reads them again; what an optimizer trains, after `load`.
    number_of_groups : int
        Groups of consecutive channels, a divisor of their number.
    number_of_feature_channels : int, optional
        By default the length of the arrays.
    epsilon : float, optional
        By default the smallest normal float32.
    label : str, optional
    optimizer : Optimizer, optional
        Trains gamma and beta, which must be there, where a graph updates by the GPU, with the sum
        of the gradients of a batch's images. The arrays show what it has done after a reload.

    Raises
    ------
    ValueError
        If neither an array nor ``number_of_feature_channels`` is given, or lengths differ.
    """

    def __init__(
        self,
        gamma: npt.ArrayLike | None = None,
        beta: npt.ArrayLike | None = None,
        *,
        number_of_groups: int,
        number_of_feature_channels: int | None = None,
        epsilon: float | None = None,
        label: str | None = None,
        optimizer: Any = None,
    ) -> None:
        given = {"gamma": gamma, "beta": beta}
        self._take(given, number_of_feature_channels, epsilon, label, optimizer)
        self.number_of_groups = number_of_groups

    def _shown_channels(self) -> str:
        return f"{super()._shown_channels()} in {self.number_of_groups} groups"


class _Forward(KernelFacade):
    """What both forward kernels share."""

    _own_settings = ("epsilon",)

    def __init__(self, data_source: Any, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self), data_source)  # type: ignore[call-arg]

    def _arguments(self) -> dict[str, Any]:
        return {"data_source": self.data_source}  # type: ignore[attr-defined]


class InstanceNormalization(_Forward, ArrayUnaryKernel, _core.InstanceNormalization):
    """Every channel of an image by its own statistics (``MPSCNNInstanceNormalization``).

    The result is ``(x - mean) * gamma / sqrt(variance + epsilon) + beta``, with mean and biased
    variance over the pixels of one image and channel. `epsilon` is an attribute; it begins as the
    data source's, else as the smallest normal float32.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    data_source : InstanceNormalizationDataSource
        Read at once; see there for reloads.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If the data source lacks a member.
    ValueError
        If it refuses to load, an array has not one value a channel, or ``epsilon`` is out of range.
    """


class GroupNormalization(_Forward, ArrayUnaryKernel, _core.GroupNormalization):
    """Every group of an image's channels by its own statistics (``MPSCNNGroupNormalization``).

    The result is ``(x - mean) * gamma / sqrt(variance + epsilon) + beta``, with mean and biased
    variance over the pixels of one image and ``C / number_of_groups`` consecutive channels; gamma
    and beta have one value a channel. `epsilon` is an attribute; it begins as the data source's,
    else as the smallest normal float32.

    Source and result are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    data_source : GroupNormalizationDataSource
        Read at once; see there for reloads.
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.

    Raises
    ------
    TypeError
        If the data source lacks a member.
    ValueError
        If it refuses to load, an array has not one value a channel, ``epsilon`` is out of range, or
        the number of groups does not divide that of channels.
    """


class InstanceNormalizationGradient(
    KernelFacade, ArrayGradientKernel, _core.InstanceNormalizationGradient
):
    """Gradient of `InstanceNormalization` (``MPSCNNInstanceNormalizationGradient``).

    With respect to the source; those of gamma and beta go into the state of each image. Scale and
    epsilon come through the states, the statistics are found again from the source.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))


class GroupNormalizationGradient(
    KernelFacade, ArrayGradientKernel, _core.GroupNormalizationGradient
):
    """Gradient of `GroupNormalization` (``MPSCNNGroupNormalizationGradient``).

    With respect to the source; those of gamma and beta go into the state of each image. Scale and
    epsilon come through the states, the statistics are found again from the source.

    Gradients and source are ``(N, H, W, C)``, float32 or float16.

    Parameters
    ----------
    device : Device or str, optional
        Where it runs; by default Metal where there is a supported GPU, else the CPU.
    """

    def __init__(self, *, device: _core.Device | str | None = None) -> None:
        super().__init__(resolve_device(device, self))
