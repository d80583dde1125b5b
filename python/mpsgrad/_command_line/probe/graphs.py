"""Graphs: what the device's own makes of ours; docs/graph.md says what cannot be asked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth, column

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS", "QUESTIONS_OF_OURS"]


def _graph(on: mg.Device, results: list[Any], **options: Any) -> mg.graph.Graph:
    """Return a graph; it must be the device's own, where that has some, and not single kernels."""
    graph = mg.graph.Graph(on, result_images=results, format=mg.ChannelFormat.FLOAT32, **options)
    if on.kind == "metal" and not graph._has_runner:
        raise mg.errors.UnsupportedError(f"encoded kernel by kernel: {graph._why_no_runner}")
    return graph


def _run_graph(graph: mg.graph.Graph, **arrays: Any) -> dict[Any, Any]:
    """Return all results by handle."""
    made = graph(arrays)
    handles = [graph.result_handle, *graph.intermediate_image_handles]
    return dict(zip(handles, [made.result, *made.intermediates], strict=True))


def _gradients_of_operands(on: mg.Device, make: Any, first: float, second: float) -> list[Any]:
    node = make(mg.graph.ImageNode("x"), mg.graph.ImageNode("y"))
    node.primary_scale, node.secondary_scale = first, second
    termini = mg.graph.InitialGradientNode(node).training_graph()
    results = _run_graph(_graph(on, termini), x=column(2), y=column(3))
    return [results["x"], results["y"]]


def _joined() -> tuple[mg.graph.ConcatenationNode, mg.graph.ConcatenationNode]:
    """Return b, c and a in one, and c and a, which are part of it."""
    a, b, c = (mg.graph.ImageNode(name) for name in "abc")
    inner = mg.graph.ConcatenationNode([c, a])
    return mg.graph.ConcatenationNode([b, inner]), inner


def _inputs() -> dict[str, Any]:
    return {name: column(*[value] * 4) for name, value in (("a", 1), ("b", 2), ("c", 3))}


def _results_by_handle(on: mg.Device) -> Any:
    outer, inner = _joined()
    nodes = {
        "inner": inner,
        "doubled": mg.graph.NeuronLinearNode(inner, 2.0),
        "outer": outer,
        "negative": mg.graph.NeuronLinearNode(outer, -1.0),
    }
    nodes["tenfold"] = mg.graph.NeuronLinearNode(nodes["doubled"], 5.0)
    for name, node in nodes.items():
        node.result_image.handle = name
        if name in ("inner", "doubled"):
            node.result_image.export()
    graph = _graph(on, [nodes[name] for name in ("outer", "negative", "tenfold")])
    results = _run_graph(graph, **_inputs())
    return np.concatenate([results[name].ravel()[::4] for name in nodes])


def _gradients_by_handle(on: mg.Device) -> list[Any]:
    termini = _joined()[0].training_graph(mg.graph.ImageNode("dr"))
    gradient = column(*[7] * 4, *[8] * 4, *[9] * 4)
    results = _run_graph(_graph(on, termini), **_inputs(), dr=gradient)
    return [results[name].ravel()[0] for name in "abc"]


def _dropout_masks(on: mg.Device) -> list[float]:
    node = mg.graph.DropoutNode(mg.graph.ImageNode("x"), 0.5, 1)
    assert node.result_state is not None
    node.result_state.export_from_graph = True
    images = mg.ImageBatch.from_array(on, np.ones((4, 4, 4, 16), np.float32))
    graph = _graph(on, [node])
    with on.command_queue().command_buffer() as work:
        made = graph.encode_batch(work, images)
        mg.synchronize(made.result, work)
    work.wait_until_completed()
    results = {image.tobytes() for image in made.result.to_array()}
    return [len(results), len({id(state) for state in made.states[0]})]


def _two_training_encodes(on: mg.Device) -> list[Any]:
    source = mg.ArrayConvolutionDataSource(
        np.ones((1, 1, 1, 1), np.float32), optimizer=mg.SGD(1.0, device=on)
    )
    node = mg.graph.ConvolutionNode(mg.graph.ImageNode("x"), source)
    (terminus,) = node.training_graph(mg.graph.ImageNode("dy"))
    graph = _graph(on, [node, terminus], results_are_needed=[True, False])
    images = {
        name: mg.ImageBatch.from_array(on, np.ones((1, 1, 1, 1), np.float32))
        for name in ("x", "dy")
    }
    with on.command_queue().command_buffer() as work:
        made = [graph.encode_batch(work, images).result for _ in range(2)]
        for batch in made:
            mg.synchronize(batch, work)
    work.wait_until_completed()
    return [batch.to_array() for batch in made]


def _limited_sum(on: mg.Device) -> Any:
    node = mg.graph.AdditionNode(mg.graph.ImageNode("x"), mg.graph.ImageNode("y"))
    node.maximum_value = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that this is a question
        graph = _graph(on, node.training_graph(mg.graph.ImageNode("dr")))
    return _run_graph(graph, x=column(0, 3), y=column(0, 0), dr=column(1, 1))["x"]


QUESTIONS: list[Question] = [
    OnBoth(
        "G1",
        "a graph's gradients of x y for x and for y, which are 2 and 3",
        lambda on: _gradients_of_operands(on, mg.graph.MultiplicationNode, 1, 1),
    ),
    OnBoth(
        "G1",
        "a graph's gradients of 5 x - 7 y for x and for y",
        lambda on: _gradients_of_operands(on, mg.graph.SubtractionNode, 5, 7),
    ),
    OnBoth(
        "G3",
        "inputs a b c of 1 2 3, exports c,a and twice that, results b,c,a and -1 and 10 times it "
        "or c,a: each is found by its handle",
        _results_by_handle,
    ),
    OnBoth(
        "G3",
        "gradients 7 8 9 of b,c,a: those for a b c are found by their handles",
        _gradients_by_handle,
    ),
    OnBoth(
        "G5",
        "a graph's dropout of a batch of 4 equal images: how many masks, and how many states",
        _dropout_masks,
    ),
    OnBoth(
        "G6",
        "results of two training encodes on one command buffer, of a weight that steps from 1 to "
        "0: the second uses the update of the first",
        _two_training_encodes,
    ),
]

QUESTIONS_OF_OURS: list[Question] = [
    OnBoth(
        "graph 1",
        "a graph's gradient for x of x + 0, at most 1, where x is 0 and where it is 3",
        _limited_sum,
    ),
]
