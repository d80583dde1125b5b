"""What type checkers must say about calls and misspelt names; read by mypy, never run.

An error that does not come is one as well: ``warn_unused_ignores`` is part of ``strict``.
"""

from typing import Any, assert_type

import mpsgrad as mg
import numpy as np
import numpy.typing as npt
from mpsgrad import NoSuchKernel  # type: ignore[attr-defined]  # noqa: F401
from mpsgrad import graph as g
from mpsgrad.graph import NoSuchNode  # type: ignore[attr-defined]  # noqa: F401

Array = npt.NDArray[Any]


def names(kernel: mg.PoolingMax, node: g.ImageNode, graph: g.Graph) -> None:
    kernel.edge_mode = mg.EdgeMode.CLAMP
    kernel.edge_mod = mg.EdgeMode.CLAMP  # type: ignore[attr-defined]
    node.stop_gradient = True
    node.stop_gradients = True  # type: ignore[attr-defined]
    graph.format = mg.ChannelFormat.FLOAT32
    graph.formats = mg.ChannelFormat.FLOAT32  # type: ignore[attr-defined]
    mg.NoSuchName  # type: ignore[attr-defined]  # noqa: B018
    g.NoSuchName  # type: ignore[attr-defined]  # noqa: B018
    mg.DataType.FLOAT64  # type: ignore[attr-defined]  # noqa: B018


def calls(source: mg.ArrayConvolutionDataSource, x: Array, with_state: bool) -> None:
    source.weights_arrays = x  # type: ignore[attr-defined]
    convolution = mg.Convolution(source)
    assert_type(convolution(x), Array)
    assert_type(convolution(x, out=x), Array)
    assert_type(convolution(x, with_state=False), Array)
    assert_type(convolution(x, with_state=True), tuple[Array, Any])
    assert_type(convolution(x, with_state=with_state), Any)
    assert_type(mg.Add()(x, x), Array)
    assert_type(mg.Add()(x, x, with_state=True), tuple[Array, Any])
    assert_type(mg.AddGradient(False)(x, x, []), Array)
    assert_type(mg.Reshape()(x, (1, 2, 3)), Array)
    assert_type(mg.Reshape()(x, (1, 2, 3), with_state=True), tuple[Array, Any])
    transpose = mg.ConvolutionTranspose(source)
    assert_type(transpose(x), Array)
    assert_type(transpose(x, convolution_gradient_state=None, with_state=True), tuple[Array, Any])
    normalization = mg.BatchNormalization(
        mg.ArrayBatchNormalizationDataSource(np.ones(4), np.zeros(4))
    )
    assert_type(normalization(x), Array)
    assert_type(normalization(x, with_state=True), tuple[Array, mg.BatchNormalizationState])


class Tensor:
    """Has DLPack, and no buffer."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError


def arrays(device: mg.Device, image: mg.Image, vector: mg.Vector, x: Array, tensor: Tensor) -> None:
    for_any_array = mg.ImageBatch.from_array
    for_any_array(device, x)
    for_any_array(device, tensor)
    for_any_array(device, bytearray(4))
    for_any_array(device, image)  # type: ignore[arg-type]
    mg.Buffer(device, tensor).write(tensor)
    image.write(tensor)
    mg.Vector.from_array(device, tensor)
    mg.Matrix.from_array(device, tensor)
    vector.write(vector)


def training(sources: list[mg.ArrayConvolutionDataSource], graph: g.Graph, x: Array) -> None:
    with mg.GradientBucket(sources) as bucket:
        assert_type(bucket.array, npt.NDArray[np.float32])
        bucket.array *= 0.5
        bucket.array = 0.0
        bucket.gradients[0]["weights"] = x
        assert_type(bucket.gradients[0]["weights"], npt.NDArray[np.float32])
        bucket.arrays = x  # type: ignore[attr-defined]
    mg.GradientBucket(graph)  # type: ignore[arg-type]
    graph.restore(graph.checkpoint())
    sources[0].restore({"weights": x})


def encodes(
    kernel: mg.Convolution, commands: mg.CommandBuffer, image: mg.Image, images: mg.ImageBatch
) -> None:
    assert_type(kernel.encode(commands, image, allocator=lambda *_: image), mg.Image)
    assert_type(kernel.encode(commands, image, with_state=True), tuple[mg.Image, Any])
    assert_type(kernel.encode_batch(commands, images, allocator=mg.DEFAULT), mg.ImageBatch)
    assert_type(kernel.encode_batch(commands, images, with_state=True), tuple[mg.ImageBatch, Any])
    assert_type(kernel.encode_batch(commands, [image], destinations=[image]), Any)
    states = kernel.result_state_batch(images, images)
    kernel.encode_batch(commands, images, images, destination_states=states)
    kernel.encode_batch(commands, images, images, destination_states=None)
    kernel.encode(commands, np.zeros((1, 1, 1, 4)))  # type: ignore[call-overload]
    kernel.encode(commands, image, image, destination_state=image)  # type: ignore[call-overload]
    kernel.encode(commands, image, allocator=1)  # type: ignore[call-overload]
    assert_type(kernel.encode_batch(commands, image), Any)
    kernel.source_feature_channel_max_count = None
    crop = mg.CropAndResizeBilinear(2, 2, [(0, 0, 1, 1)])
    assert_type(crop.encode(commands, image), mg.ImageBatch)
    kernel.encode_batch(commands, crop.encode(commands, image))
    loss = mg.ForwardLoss(mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.SUM))
    assert_type(loss.encode_batch(commands, images, images, [image]), mg.ImageBatch)
    sums = mg.BatchNormalizationStatistics()
    sums.encode_batch(commands, images, None)  # type: ignore[arg-type]
    mg.synchronize(images, commands)
    mg.synchronize(states, commands)
    mg.synchronize(states[0], commands)
    mg.synchronize(commands, commands)  # type: ignore[arg-type]
