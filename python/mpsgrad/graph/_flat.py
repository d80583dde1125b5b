"""Nodes as a list without references: pickles and copies of networks deeper than a stack."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

__all__ = ["Reference", "flatten", "next_serial", "restore", "restore_one"]

_serial = itertools.count()


def next_serial() -> int:
    """Return the number of a new filter node: those it depends on have smaller ones."""
    return next(_serial)


class Reference(NamedTuple):
    """Stands for the node with that place in the list."""

    place: int


def _is_node(value: Any) -> bool:
    return hasattr(type(value), "_graph_node")


def flatten(nodes: list[Any]) -> tuple[list[tuple[type, dict[str, Any]]], list[int]]:
    """Return all that the nodes refer to, class and attributes each, and the nodes' own places."""
    places: dict[int, int] = {}
    found: list[Any] = []

    def note(value: Any) -> None:
        if _is_node(value) and id(value) not in places:
            places[id(value)] = len(found)
            found.append(value)

    for node in nodes:
        note(node)
    for node in found:  # grows
        for value in node.__dict__.values():
            for part in value if isinstance(value, (list, tuple)) else (value,):
                note(part)

    def flat(value: Any) -> Any:
        if _is_node(value):
            return Reference(places[id(value)])
        if isinstance(value, list):
            return [flat(part) for part in value]
        return value

    states = [
        (type(node), {name: flat(value) for name, value in node.__dict__.items()}) for node in found
    ]
    return states, [places[id(node)] for node in nodes]


def restore(states: list[tuple[type, dict[str, Any]]]) -> list[Any]:
    """Return the nodes of a list, made in the order in which those were that it was made of."""
    shells: list[Any] = [object.__new__(cls) for cls, _ in states]

    def whole(value: Any) -> Any:
        if isinstance(value, Reference):
            return shells[value.place]
        if isinstance(value, list):
            return [whole(part) for part in value]
        return value

    for shell, (_, attributes) in zip(shells, states, strict=True):
        shell.__dict__.update({name: whole(value) for name, value in attributes.items()})
    for shell in sorted((s for s in shells if hasattr(s, "_serial")), key=lambda s: s._serial):
        shell._serial = next_serial()
    return shells


def restore_one(states: list[tuple[type, dict[str, Any]]], place: int) -> Any:
    """Return one node of a list, and with it all that it refers to."""
    return restore(states)[place]
