"""Networks of nodes that tests share, the same as oracle.py has without nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import mpsgrad as mg
import numpy as np
from mpsgrad import graph as g

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt


class Call(NamedTuple):
    """What one update was called with."""

    weights: npt.NDArray[np.float32]
    biases: npt.NDArray[np.float32]
    old: npt.NDArray[np.float32]


class Recorder(mg.ArrayConvolutionDataSource):
    """Keeps the gradients of each update by the CPU, and changes nothing."""

    def __init__(self, weights: Any, biases: Any, **options: Any) -> None:
        super().__init__(weights, biases, **options)
        self.calls: list[Call] = []

    def update_cpu(self, gradient_state: Any, source_state: Any) -> bool:
        self.calls.append(
            Call(
                gradient_state.gradient_for_weights.to_numpy(),
                gradient_state.gradient_for_biases.to_numpy(),
                source_state.weights.to_numpy(),
            )
        )
        return False


class Arrays(NamedTuple):
    x: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32]
    parameters: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]


class Network(NamedTuple):
    """How to build a network, and shapes: of x, of labels, of each convolution's weights."""

    build: Callable[[Sequence[Any]], Any]
    x: tuple[int, ...]
    labels: tuple[int, ...]
    weights: list[tuple[int, ...]]
    stride: int = 1  # of all of them

    def arrays(self, rng: np.random.Generator) -> Arrays:
        """Small numbers; biases a half off the grid, so that no ReLU meets its kink."""

        def grid(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
            return rng.integers(-2, 3, shape).astype(np.float32)

        parameters = [(grid(shape), grid(shape[:1]) + np.float32(0.5)) for shape in self.weights]
        return Arrays(grid(self.x), grid(self.labels), parameters)

    def recorders(self, arrays: Arrays) -> list[Recorder]:
        """Data sources of the parameters."""

        def descriptor(outputs: int, height: int, width: int, inputs: int) -> Any:
            return mg.ConvolutionDescriptor(
                width,
                height,
                input_feature_channels=inputs,
                output_feature_channels=outputs,
                stride_in_pixels_x=self.stride,
                stride_in_pixels_y=self.stride,
            )

        return [
            Recorder(weights, biases, descriptor=descriptor(*weights.shape))
            for weights, biases in arrays.parameters
        ]

    @staticmethod
    def input_of(loss: Any) -> g.ImageNode:
        """The image node "x"."""
        seen, stack = set(), [loss]
        while stack:
            node = stack.pop()
            for image in node.source_images:
                if image.handle == "x":
                    return image
                if image.producer is not None and image.producer not in seen:
                    seen.add(image.producer)
                    stack.append(image.producer)
        raise LookupError("there is no image x")

    def run(self, graph: g.Graph, arrays: Arrays) -> Any:
        """Run with x and labels, which are images or a loss's labels."""
        if graph.source_state_handles:
            return graph({"x": arrays.x}, {"labels": arrays.labels})
        return graph({"x": arrays.x, "labels": arrays.labels})


def convolution(source: Any, weights: Any, **options: Any) -> g.ConvolutionNode:
    """Convolve, with gradients that the CPU is told of."""
    node = g.ConvolutionNode(source, weights, **options)
    node.training_style = g.TrainingStyle.CPU
    return node


def loss_of(node: Any, weight: float = 1.0) -> g.LossNode:
    """Squared error, whose labels have the handle "labels"."""
    descriptor = mg.LossDescriptor(
        mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM, weight=weight
    )
    loss = g.LossNode(node, descriptor)
    loss.input_labels.handle = "labels"
    return loss


def residual(sources: Sequence[Any]) -> g.LossNode:
    """13.2 of the graph chapter."""
    x = g.ImageNode("x")
    first = convolution(x, sources[0], label="conv0")
    inner = convolution(first, sources[1], label="conv1")
    inner = convolution(g.NeuronReLUNode(inner), sources[2], label="conv2")
    return loss_of(g.NeuronReLUNode(g.AdditionNode(inner, first)), 0.25)


def branches(sources: Sequence[Any]) -> g.InitialGradientNode:
    """13.3 of the graph chapter."""
    x = g.ImageNode("x")
    a = convolution(x, sources[0], label="conv_a")
    b = convolution(x, sources[1], label="conv_b")
    joined = g.ConcatenationNode([a, b])
    last = convolution(joined, sources[2], label="conv_c")
    descriptor = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
    loss = g.ForwardLossNode(last, g.ImageNode("labels"), loss_descriptor=descriptor)
    return g.InitialGradientNode(loss)


def tied(sources: Sequence[Any]) -> g.LossNode:
    """One data source behind two nodes."""
    x = g.ImageNode("x")
    first = convolution(x, sources[0], label="first")
    pooled = g.PoolingAverageNode(first, filter_size=2)
    return loss_of(convolution(pooled, sources[0], label="second"))


def undone(sources: Sequence[Any]) -> g.LossNode:
    """A convolution, and a transposed one back to the size that its stride has lost."""
    down = convolution(g.ImageNode("x"), sources[0], label="down")
    up = g.ConvolutionTransposeNode(
        g.NeuronReLUNode(down), sources[1], down.convolution_gradient_state, label="up"
    )
    up.training_style = g.TrainingStyle.CPU
    return loss_of(up)


TRAINED = {
    "residual": Network(
        residual, (2, 4, 3, 3), (2, 4, 3, 4), [(4, 3, 3, 3), (4, 3, 3, 4), (4, 1, 1, 4)]
    ),
    "branches": Network(
        branches, (2, 3, 2, 3), (2, 3, 2, 5), [(6, 1, 1, 3), (10, 3, 3, 3), (5, 1, 1, 20)]
    ),
    "tied": Network(tied, (2, 4, 4, 4), (2, 2, 2, 4), [(4, 3, 3, 4)]),
    "undone": Network(undone, (2, 5, 4, 3), (2, 5, 4, 5), [(4, 3, 3, 3), (5, 3, 3, 4)], stride=2),
}
