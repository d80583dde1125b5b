"""What a graph calls data sources for: new weights, by a gradient node's sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mpsgrad import _core
from mpsgrad._array_source import ArraySource
from mpsgrad.batch_normalization import ArrayBatchNormalizationDataSource
from mpsgrad.convolution import ArrayConvolutionDataSource, ConvolutionDataSource
from mpsgrad.errors import GraphError
from mpsgrad.graph.convolution import ConvolutionNode
from mpsgrad.graph.normalization import BatchNormalizationNode
from mpsgrad.group_normalization import (
    ArrayGroupNormalizationDataSource,
    ArrayInstanceNormalizationDataSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsgrad.graph.nodes import FilterNode

__all__ = [
    "KernelUpdate",
    "SourceUpdate",
    "UpdateCalls",
    "kinds_of_updates",
    "require_optimizer_on",
    "update_calls",
    "why_without_effect",
]

_WITH_OPTIMIZER = (
    ArrayConvolutionDataSource.update,
    ArrayBatchNormalizationDataSource.update_gamma_and_beta,
    ArrayBatchNormalizationDataSource.update_mean_and_variance,
    ArrayInstanceNormalizationDataSource.update_gamma_and_beta,
    ArrayGroupNormalizationDataSource.update_gamma_and_beta,
)
_WITHOUT_EFFECT = (ConvolutionDataSource.update, ConvolutionDataSource.update_cpu)


def why_without_effect(source: Any, method: str) -> str | None:
    """Return why a call of a data source for an update would do nothing; None if it may do much."""
    own = getattr(source, method, None)
    function = getattr(own, "__func__", own)
    if not callable(own) or function in _WITHOUT_EFFECT:
        return "has no method for it"
    if function in _WITH_OPTIMIZER and source.optimizer is None:
        return "has no optimizer"
    return None


def require_optimizer_on(device: _core.Device, source: Any, node: FilterNode) -> None:
    """Raise if a data source is trained on another device."""
    optimizer = source.optimizer if isinstance(source, ArraySource) else None
    if optimizer is not None and optimizer.device != device:
        raise GraphError(
            f"Graph: {type(source).__name__} of {node._name()} is trained by "
            f"{type(optimizer).__name__} on {optimizer.device.kind}, but the graph is on "
            f"{device.kind}; give the optimizer the graph's device"
        )


@dataclass(frozen=True, slots=True)
class _KindOfUpdate:
    """What a data source updates in one call, and what kernels then do."""

    update: str
    """Method of the data source; its form by the CPU ends in ``_cpu``."""
    state_class: type
    """Of what it returns."""
    reload: str
    """Method of kernels that takes such a state; that by the CPU ends in ``_from_data_source``."""
    arguments: Callable[[list[Any], Any], tuple[Any, ...]]
    """Of the method, from the gradient states and the weights before."""
    reads_weights: bool = False
    """Whether the weights before are among them."""
    prefix: str = ""
    """Of its fields in `UpdateCalls`."""

    def method(self, by_gpu: bool) -> str:
        """Return the name of the data source's method."""
        return self.update if by_gpu else f"{self.update}_cpu"


_WEIGHTS = _KindOfUpdate(
    "update",
    _core.ConvolutionWeightsAndBiasesState,
    "reload_weights_and_biases",
    lambda states, old: (states[0], old),
    reads_weights=True,
)
_GAMMA_AND_BETA = _KindOfUpdate(
    "update_gamma_and_beta",
    _core.NormalizationGammaAndBetaState,
    "reload_gamma_and_beta",
    lambda states, _: (states[0],),
)
_MEAN_AND_VARIANCE = _KindOfUpdate(
    "update_mean_and_variance",
    _core.NormalizationMeanAndVarianceState,
    "reload_mean_and_variance",
    lambda states, _: (states[0],),
    prefix="statistics_",
)
_GAMMA_AND_BETA_OF_IMAGES = replace(_GAMMA_AND_BETA, arguments=lambda states, _: (states,))


def kinds_of_updates(forward: FilterNode) -> list[_KindOfUpdate]:
    """Return what a forward node's data source may update."""
    if isinstance(forward, ConvolutionNode):
        return [_WEIGHTS]
    if isinstance(forward, BatchNormalizationNode):
        return [_GAMMA_AND_BETA, _MEAN_AND_VARIANCE]
    return [_GAMMA_AND_BETA_OF_IMAGES]


@dataclass(frozen=True, slots=True)
class SourceUpdate:
    """One kind of update of one data source."""

    kind: _KindOfUpdate
    source: Any
    name: str
    """For messages."""
    note: Callable[[Any], None]
    """Called with the source when kernels have its new values, or are about to."""

    def call_now(
        self,
        command_buffer: Any,
        states: list[Any],
        old: Any,
        take: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call the data source while a graph is encoded, and return the new state or None.

        Parameters
        ----------
        command_buffer : CommandBuffer
        states : list of State
            With the gradients.
        old : State or None
            The weights that these belong to, where the update reads them.
        take : callable, optional
            What takes the new state, unless the caller does it with the result.
        """
        method = getattr(self.source, self.kind.method(True))
        new = method(command_buffer, *self.kind.arguments(states, old))
        if new is not None:
            _require_state(self.name, new, self.kind.state_class)
            if take is not None:
                take(new)
            self.note(self.source)
        return new

    def call_later(
        self, states: list[Any], old: Any, take: Callable[[], None] | None = None
    ) -> bool:
        """Call it once the graph has run, and return whether anything has changed."""
        method = getattr(self.source, self.kind.method(False))
        changed = bool(method(*self.kind.arguments(states, old)))
        if changed:
            if take is not None:
                take()
            self.note(self.source)
        return changed


@dataclass(frozen=True, slots=True)
class KernelUpdate:
    """An update as a step of a graph of single kernels, which reload."""

    update: SourceUpdate
    kernel: Any
    """The forward kernel."""
    built: list[tuple[Any, Any]]
    """Sources and kernels that reload."""

    def _weights_before(self, command_buffer: Any) -> Any:
        if not self.update.kind.reads_weights:
            return None
        return self.kernel.export_weights_and_biases(command_buffer)

    def now(self, command_buffer: Any, states: list[Any]) -> None:
        """Call the data source while the graph is encoded."""

        def reload(new: Any) -> None:
            if new.is_temporary:  # as many reads as kernels will reload from it
                new.read_count += len(self.built) - 1
            for _, each in self.built:
                getattr(each, self.update.kind.reload)(command_buffer, new)

        self.update.call_now(command_buffer, states, self._weights_before(command_buffer), reload)

    def on_completion(self, command_buffer: Any, states: list[Any]) -> Any:
        """Return what calls the data source when the command buffer has completed."""
        old = self._weights_before(command_buffer)
        _core.synchronize(states if old is None else [states[0], old], command_buffer)

        def reload() -> None:
            for _, each in self.built:
                getattr(each, f"{self.update.kind.reload}_from_data_source")()

        return lambda: self.update.call_later(states, old, reload)


class UpdateCalls(NamedTuple):
    """What a graph of the device's calls, in the order of the arguments of `_add_data_source`.

    None where a data source has no such method.
    """

    now: Callable[[Any, list[Any], Any], Any] | None = None
    """For weights, or gamma and beta, while the graph is encoded."""
    later: Callable[[list[Any], Any], bool] | None = None
    """For the same once it has run."""
    statistics_now: Callable[[Any, list[Any], Any], Any] | None = None
    """For mean and variance, while it is encoded."""
    statistics_later: Callable[[list[Any], Any], bool] | None = None
    """For the same once it has run."""


def update_calls(
    forward: FilterNode, source: Any, name: str, note: Callable[[Any], None]
) -> UpdateCalls:
    """Return what a forward node's data source is called for."""
    calls: dict[str, Any] = {}
    for kind in kinds_of_updates(forward):
        update = SourceUpdate(kind, source, name, note)
        if callable(getattr(source, kind.method(True), None)):
            calls[f"{kind.prefix}now"] = update.call_now
        if callable(getattr(source, kind.method(False), None)):
            calls[f"{kind.prefix}later"] = update.call_later
    return UpdateCalls(**calls)


def _require_state(name: str, state: Any, state_class: type) -> None:
    if not isinstance(state, state_class):
        raise TypeError(
            f"Graph: {name} must return a {state_class.__name__} or None, got "
            f"{type(state).__name__}"
        )
