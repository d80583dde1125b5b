"""What a graph has been compiled to, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsgrad._core import ChannelFormat
from mpsgrad.graph._plan import format_of
from mpsgrad.graph.nodes import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsgrad.graph._compiler import Compiler
    from mpsgrad.graph._graph import Graph

__all__ = ["described"]


def described(graph: Graph, compiled: Compiler) -> str:
    """Show nodes and what they read, images as of the last encode, and updates."""
    header = ("", "node", "reads", "handle", "size", "format", "")
    rows = [header, *_rows(graph, compiled)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [repr(graph)]
    if graph._has_runner:
        lines.append("encoded by one MPSNNGraph")
    elif graph._why_no_runner:
        lines.append(f"encoded kernel by kernel: {graph._why_no_runner}")
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if compiled.plan.pruned:
        lines.append(
            "not run, as nobody needs it: " + ", ".join(n._name() for n in compiled.plan.pruned)
        )
    return "\n".join(lines)


def _rows(graph: Graph, compiled: Compiler) -> Iterator[tuple[str, ...]]:
    numbers = {node.result_image: str(i) for i, node in enumerate(compiled.plan.order, 1)}
    for node in compiled.plan.order:
        image = node.result_image
        reads = [
            numbers.get(source) or label_of(source.handle) or "input"
            for source in node.source_images
        ]
        copied = compiled.plan.copies.get(image)
        descriptor = graph._last_descriptor(compiled.image(image))
        size = (
            "-"
            if descriptor is None
            else f"{descriptor.width}x{descriptor.height}x{descriptor.feature_channels}"
        )
        own = format_of(image)
        storage = graph.format if own == ChannelFormat.NONE else own
        notes = []
        fusion = compiled.plan.fused.get(node)
        host = None if fusion is None else fusion.host_of(node)
        if host is not None:
            notes.append(f"computed by {host._name()}")
        elif copied is not None:
            notes.append("no copy: is its incoming gradient")
        style = getattr(node, "training_style", None)
        if node._updates_weights() and style is not None:
            source = getattr(node, "weights", None) or getattr(node, "data_source", None)
            why_not = compiled.without_update.get(node)
            notes.append(
                f"{style.name} update of {source!r}"
                if why_not is None
                else f"no {style.name} update: {source!r} {why_not}"
            )
        if image.export_from_graph:
            notes.append("exported")
        if image in compiled.plan.results:
            notes.append("result")
        if not compiled.plan.is_read(image) and copied is None:
            notes.append("not read")
        handle = label_of(image.handle) or ""
        yield (
            numbers[image], node._name(), ", ".join(reads), handle, size, storage.name,
            "; ".join(notes),
        )  # fmt: skip
