"""A whole training step: a small residual network on 32x32 images, three stages.

Each stage is a 3x3 convolution, then a block of two more whose result is added to its source; each
convolution has batch normalization and ReLU. The second and third stage halve the image. At the end
the mean of each channel, a fully connected layer, softmax cross entropy, Adam.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from .check import Samples
from .suite import Case, Output, Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .suite import Context, Request

__all__ = ["cases"]

SIZE, CLASSES, RATE = 32, 10, 1e-3
# (inputs, outputs, stride) of each convolution; the second and third of a stage are its block
LAYERS = [
    (3, 16, 1),
    (16, 16, 1),
    (16, 16, 1),
    (16, 32, 2),
    (32, 32, 1),
    (32, 32, 1),
    (32, 64, 2),
    (64, 64, 1),
    (64, 64, 1),
]


def cases(request: Request) -> Iterator[Case]:
    """Yield the step."""
    batch = 4 if request.quick else 64
    if "float32" in request.dtypes:
        yield Case(
            "training",
            "step",
            "residual",
            batch,
            "float32",
            lambda context: build(context, batch),
            (batch, SIZE, SIZE, 3),
        )


class Data:
    """Images, labels and the weights that training starts with."""

    def __init__(self, context: Context, batch: int) -> None:
        self.x = context.normal((batch, SIZE, SIZE, 3))
        labels = context.rng.integers(0, CLASSES, batch)
        self.one_hot = np.eye(CLASSES, dtype=np.float32)[labels].reshape(batch, 1, 1, CLASSES)
        self.weights = [
            context.normal((o, 3, 3, i)) * np.float32(math.sqrt(2 / (9 * i))) for i, o, _ in LAYERS
        ]
        last = LAYERS[-1][1]
        self.classes = context.normal((CLASSES, 1, 1, last)) * np.float32(math.sqrt(1 / last))


def build(context: Context, batch: int) -> Work:
    """Make the network; its loss before the first update is checked, and its last layer after."""
    data = Data(context, batch)
    network = Network(context.device, data)
    loss, classes = exact_step(data)
    arrays = data.x.nbytes + sum(w.nbytes for w in data.weights) + data.classes.nbytes
    return Work(
        network.step,
        [
            Output("loss", lambda: np.array([network.loss], np.float32), loss),
            Output("classes", lambda: network.classes().reshape(data.classes.shape), classes),
        ],
        flops=3 * _flops(batch),
        bytes=3 * _activations(batch),
        arrays=arrays,
        peers={"torch": lambda peer: {"channels_last": torch_step(peer, data)}},
    )


def _sizes() -> list[int]:
    """Return the height and width of each convolution's result."""
    return [
        SIZE // side for side in itertools.accumulate((s for *_, s in LAYERS), lambda a, b: a * b)
    ]


def _flops(batch: int) -> float:
    """Return the operations of the convolutions' forward pass."""
    return sum(
        2.0 * batch * n * n * 9 * i * o for n, (i, o, _) in zip(_sizes(), LAYERS, strict=True)
    )


def _activations(batch: int) -> float:
    """Return the bytes of what the convolutions read and write."""
    images = [batch * SIZE * SIZE * 3]
    images += [batch * n * n * o for n, (_, o, _) in zip(_sizes(), LAYERS, strict=True)]
    return 4.0 * sum(images)


class _Residual:
    """Layers whose result is added to their source."""

    def __init__(self, device: mg.Device, layers: list[Any]) -> None:
        self.layers = layers
        self.add, self.sum = mg.Add(device=device), mg.Add(device=device)
        self.for_source, self.for_result = (
            mg.AddGradient(second, device=device) for second in (False, True)
        )

    def forward_training(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(x, 2)  # the sum and its gradient
        y = x
        for layer in self.layers:
            y = layer.forward_training(buffer, y)
        mg.increment_read_count(y, 1)
        self.sources = x, y
        result, self.states = self.add.encode_batch(
            buffer, x, y, with_state=True, temporary_state=True
        )
        mg.increment_read_count(self.states, 1)
        return result

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(gradient, 1)
        x, y = self.sources
        straight = self.for_source.encode_batch(buffer, gradient, x, self.states)
        through = self.for_result.encode_batch(buffer, gradient, y, self.states)
        for layer in reversed(self.layers):
            through = layer.backward(buffer, through)
        return self.sum.encode_batch(buffer, straight, through)


class Network:
    """The network of kernels; everything between images and weights stays on the device."""

    def __init__(self, device: mg.Device, data: Data) -> None:
        from mpsgrad._command_line.network import _Normalized, _Plain, _Weighted

        self.device, self.queue, self.data = device, device.command_queue(), data
        self.layers: list[Any] = []
        convolutions: list[list[Any]] = []
        for (i, o, stride), w in zip(LAYERS, data.weights, strict=True):
            descriptor = mg.ConvolutionDescriptor(
                3, 3, input_feature_channels=i, output_feature_channels=o,
                stride_in_pixels_x=stride, stride_in_pixels_y=stride,
            )  # fmt: skip
            source = mg.ArrayConvolutionDataSource(w.copy(), descriptor=descriptor)
            kernels = mg.Convolution, mg.ConvolutionGradient
            layer = _Weighted(device, *kernels, source, RATE, bool(convolutions))
            layer._kernel.padding = mg.ExplicitPadding(1, 1, 1, 1)
            convolutions.append([layer, _Normalized(device, o, RATE)])
            if len(convolutions) % 3 == 0:
                first, second, third = convolutions[-3:]
                self.layers += [*first, _Residual(device, [*second, *third])]
        side = _sizes()[-1]
        mean = mg.PoolingAverage(side, side, device=device)
        mean.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
        self.layers.append(_Plain(mean, mg.PoolingAverageGradient(side, side, device=device)))
        source = mg.ArrayConvolutionDataSource(data.classes.copy())
        connected = mg.FullyConnected, mg.FullyConnectedGradient
        self.layers.append(_Weighted(device, *connected, source, RATE, True))
        descriptor = mg.LossDescriptor(
            mg.LossType.SOFT_MAX_CROSS_ENTROPY,
            mg.ReductionType.SUM,
            reduce_across_batch=True,
            weight=1 / len(data.x),
        )
        self.criterion = mg.Loss(descriptor, device=device)
        self.loss = math.nan

    def step(self) -> None:
        """Run one step on the images."""
        buffer = self.queue.command_buffer()
        labels = mg.LossLabels.batch(self.device, self.data.one_hot)
        y = mg.ImageBatch.from_array(self.device, self.data.x)
        for layer in self.layers:
            y = layer.forward_training(buffer, y)
        gradient = self.criterion.encode_batch(buffer, y, labels)
        mg.synchronize(labels, buffer)
        for layer in reversed(self.layers):
            gradient = layer.backward(buffer, gradient)
        mg.increment_read_count(gradient, -1)  # nobody reads the first layer's
        buffer.commit()
        buffer.wait_until_completed()
        self.loss = float(labels[0].loss.sum())

    def classes(self) -> Any:
        """Return the weights of the last layer."""
        buffer = self.queue.command_buffer()
        self.layers[-1].master.synchronize(buffer)
        buffer.commit()
        buffer.wait_until_completed()
        return self.layers[-1].master.weights.to_numpy()


def exact_step(data: Data) -> tuple[Samples, Samples]:
    """Return the loss before the first update and the last layer after it, from float64."""
    y = data.x.astype(np.float64)
    for position, ((_, _, stride), w) in enumerate(zip(LAYERS, data.weights, strict=True)):
        if position % 3 == 1:
            straight = y
        padded = np.pad(y, [(0, 0), (1, 1), (1, 1), (0, 0)])
        height = (padded.shape[1] - 3) // stride + 1
        span = stride * (height - 1) + 1
        y = sum(
            padded[:, ky : ky + span : stride, kx : kx + span : stride]
            @ w[:, ky, kx].T.astype(float)
            for ky in range(3)
            for kx in range(3)
        )
        axes = (0, 1, 2)
        y = (y - y.mean(axis=axes)) / np.sqrt(y.var(axis=axes) + float(np.float32(1e-5)))
        y = np.maximum(y, 0)
        if position % 3 == 2:
            y = y + straight
    features = y.mean(axis=(1, 2))
    w = data.classes.reshape(CLASSES, -1).astype(np.float64)
    scores = features @ w.T
    below = scores - scores.max(axis=1, keepdims=True)
    logs = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    one_hot = data.one_hot.reshape(len(scores), CLASSES)
    loss = -(one_hot * logs).sum() / len(scores)
    gradient = (np.exp(logs) - one_hot).T @ features / len(scores)
    # Every product, and the few roundings of each normalization, on the way to a score.
    roundings = sum(2 * 9 * i + 16 for i, *_ in LAYERS) + 4 * w.shape[1]
    first = Samples((np.array([0]),), np.array([loss]), np.array([1 + loss]), roundings)
    # Adam's first step hardly depends on the size of a gradient, unless it is tiny.
    sure = np.argwhere(np.abs(gradient) > 0.1 * np.abs(gradient).max())
    index = (sure[:, 0], np.zeros(len(sure), int), np.zeros(len(sure), int), sure[:, 1])
    before, g = w[sure[:, 0], sure[:, 1]], gradient[sure[:, 0], sure[:, 1]]
    root = math.sqrt(1 - 0.999)
    after = before - RATE * root * g / (root * np.abs(g) + float(np.float32(1e-8)))
    samples = Samples(index, after, np.abs(before) + RATE, 16)
    return first, samples


def torch_step(peer: Any, data: Data) -> Any:
    """PyTorch: the same network in channels_last, with its tape and its fused Adam."""
    torch = peer.torch

    class Residual(torch.nn.Module):
        def __init__(self, *layers: Any) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return x + self.layers(x)

    modules: list[Any] = []
    for position, ((i, o, stride), w) in enumerate(zip(LAYERS, data.weights, strict=True)):
        convolution = torch.nn.Conv2d(i, o, 3, stride, 1, bias=False)
        convolution.weight.copy_(peer.image(w, "channels_last"))
        modules += [convolution, torch.nn.BatchNorm2d(o), torch.nn.ReLU(inplace=True)]
        if position % 3 == 2:
            modules[-6:] = [Residual(*modules[-6:])]
    last = torch.nn.Linear(LAYERS[-1][1], CLASSES, bias=False)
    last.weight.copy_(peer.array(data.classes.reshape(CLASSES, -1)))
    modules += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), last]
    network = torch.nn.Sequential(*modules).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    x = peer.image(data.x, "channels_last")
    labels = peer.array(data.one_hot.reshape(len(data.x), CLASSES))

    def step() -> Any:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = peer.functional.cross_entropy(network(x), labels)
            loss.backward()
            optimizer.step()
        return loss.detach().reshape(1), last.weight.detach()

    return step
