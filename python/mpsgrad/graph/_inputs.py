"""Arguments of a graph's calls, in the order of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mpsgrad import _core
from mpsgrad.graph.nodes import ImageNode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpsgrad.graph.nodes import StateNode

__all__ = ["by_handle", "in_order", "listed", "named_in_order"]


def listed(what: str, values: Any, wanted: str) -> list[Any]:
    """Return the values, which must be several."""
    if not isinstance(values, Iterable):
        raise TypeError(f"Graph: {what} must be {wanted}, got {type(values).__name__}")
    return list(values)


def in_order(what: str, given: Any, nodes: Sequence[ImageNode | StateNode]) -> list[Any]:
    """Arguments in the order of the inputs, from a sequence or a mapping by handle."""
    if given is None:
        given = []
    if isinstance(given, _core.ImageBatch):
        given = [given]
    if hasattr(given, "keys"):
        return by_handle(what, given, nodes)
    handles = [node.handle for node in nodes]
    values = listed(what, given, f"a list, or a dict, with an entry for each of {handles!r}")
    if len(values) != len(nodes):
        raise ValueError(f"Graph: {_wrong_count(what, len(values), nodes)}")
    return values


def named_in_order(
    what: str, given: Any, nodes: Sequence[ImageNode | StateNode]
) -> list[tuple[str, Any]]:
    """Return the inputs, each with what it is called in the caller's words."""
    values = in_order(what, given, nodes)
    if hasattr(given, "keys"):
        names = [f"{what}[{node.handle!r}]" for node in nodes]
    else:
        names = [what] if len(nodes) == 1 else [f"{what}[{i}]" for i in range(len(nodes))]
    return list(zip(names, values, strict=True))


def by_handle(
    what: str, given: Mapping[Any, Any], nodes: Sequence[ImageNode | StateNode]
) -> list[Any]:
    """Return what a mapping has for the handle of each node."""
    handles = [node.handle for node in nodes]
    if None in handles:
        example = nodes[handles.index(None)]
        setting = (
            "ImageNode('name') makes one with a handle"
            if isinstance(example, ImageNode)
            else f"set {type(example._producer).__name__}.input_labels.handle, before the "
            "graph is made"
        )
        raise ValueError(
            f"Graph: {what} cannot be given by handle, as {handles.count(None)} of the nodes "
            f"have none; {setting}"
        )
    missing = [handle for handle in handles if handle not in given]
    unknown = [handle for handle in given if handle not in handles]
    if missing or unknown:
        raise ValueError(
            f"Graph: {what} must be given for the handles {handles!r}, got {list(given)!r}"
        )
    return [given[handle] for handle in handles]


def _wrong_count(what: str, count: int, nodes: Sequence[ImageNode | StateNode]) -> str:
    if not nodes:
        return f"no node takes {what}, but {count} came"
    named = [
        repr(node.handle)
        if node.handle is not None
        else "a node without a handle"
        if isinstance(node, ImageNode)
        else node._producer._name()
        for node in nodes
    ]
    text = f"{what} must hold {len(nodes)}, for {', '.join(named)}, got {count}"
    if what == "images" and len(nodes) == 1 < count:
        text += "; np.stack makes one batch of images, np.concatenate one of batches"
    if missing := named[count:]:
        text += f": none for {', '.join(missing)}"
    handles = [node.handle for node in nodes if node.handle is not None]
    for handle in dict.fromkeys(handles):
        if (same := handles.count(handle)) > 1:
            text += f"; {same} nodes have the handle {handle!r}: use one node where it is one input"
    return text
