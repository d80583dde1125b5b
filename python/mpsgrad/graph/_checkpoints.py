"""Checkpoints of a graph: those of its data sources in one dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpsgrad._array_source import ArraySource, require_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from mpsgrad.graph.nodes import FilterNode

__all__ = ["checkpoint_of", "restore_all"]


def _named(data_sources: Mapping[FilterNode, Any], who: str) -> dict[str, ArraySource]:
    """Return each data source once, by its label if no other has that, else by its place."""
    nodes: dict[int, FilterNode] = {}
    for node, source in data_sources.items():
        nodes.setdefault(id(source), node)
    sources = [data_sources[node] for node in nodes.values()]
    labels = []
    for node, source in zip(nodes.values(), sources, strict=True):
        if not isinstance(source, ArraySource):
            raise TypeError(
                f"{who}: {node._name()} has a data source that is not over arrays, "
                f"{type(source).__name__}: save what it has by itself"
            )
        label = source.label  # type: ignore[attr-defined]
        labels.append(label() if callable(label) else label)
    names = [
        label if label and labels.count(label) == 1 else str(place)
        for place, label in enumerate(labels)
    ]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{who}: two data sources go by the name of {name}")
    return dict(zip(names, sources, strict=True))


def checkpoint_of(data_sources: Mapping[FilterNode, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return what `Graph.checkpoint` does."""
    return {
        f"{label}/{name}": array
        for label, source in _named(data_sources, "Graph.checkpoint").items()
        for name, array in source.checkpoint().items()
    }


def restore_all(
    data_sources: Mapping[FilterNode, Any], checkpoint: Mapping[str, npt.ArrayLike]
) -> None:
    """Do what `Graph.restore` does but for the kernels; all sources, or none if it raises."""
    who = "Graph.restore"
    require_mapping(who, checkpoint)
    sources = _named(data_sources, who)
    parts: dict[str, dict[str, npt.ArrayLike]] = {label: {} for label in sources}
    unknown: dict[str, None] = {}
    for name in checkpoint:
        label, _, array = str(name).rpartition("/")
        if label in parts:
            parts[label][array] = checkpoint[name]
        else:
            unknown[label or str(name)] = None
    missing = [label for label, part in parts.items() if not part]
    if missing or unknown:
        wrong = [f"nothing of {_listed(missing)}"] if missing else []
        wrong += [f"{_listed(unknown)} besides"] if unknown else []
        raise ValueError(
            f"{who}: checkpoint must be of a graph with the data sources "
            f"{_listed(sources) or '(none)'}; it has {' and '.join(wrong)}"
        )
    writes = []
    for label, source in sources.items():
        try:
            writes.append(source._restoring(parts[label]))
        except (TypeError, ValueError) as error:
            if type(error) in (TypeError, ValueError):
                raise type(error)(f"{who}: of {label}: {error}") from None
            error.add_note(f"{who}: of {label}")
            raise
    for write in writes:
        write()


def _listed(names: Iterable[str]) -> str:
    most = 8
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
