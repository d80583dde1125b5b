"""A whole training step: a small residual network on 32x32 images, three stages.

Each stage is a 3x3 convolution, then a block of two more whose result is added to its source; each
convolution has batch normalization and ReLU. The second and third stage halve the image. At the end
the mean of each channel, a fully connected layer, softmax cross entropy, and gradient descent with
momentum. Once of kernels, called one by one, and once as a graph.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np
from mpsgrad import graph as g

from .check import Samples
from .suite import COMPILED, Case, Output, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from .suite import Context, Request

    Doubles = npt.NDArray[np.float64]

__all__ = ["cases"]

SIZE, CLASSES, EPSILON = 32, 10, 1e-5
RATE, MOMENTUM = 0.01, 0.9
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
    """Yield the step, of kernels one by one and of a graph."""
    batch = 4 if request.quick else 64
    if "float32" in request.dtypes:
        for operation, network in (("step", Network), ("graph", GraphNetwork)):
            yield Case(
                "training",
                operation,
                "residual",
                batch,
                "float32",
                lambda context, network=network: build(context, batch, network),
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


def build(context: Context, batch: int, make: Callable[[mg.Device, Data], Any]) -> Work:
    """Make the network; its first step is checked: the loss, all gradients, the last weights."""
    data = Data(context, batch)
    network = make(context.device, data)
    exact = ExactStep(data)
    disturbed = ExactStep(data, context.rng)
    outputs = [
        Output("loss", lambda: np.array([network.loss], np.float32), exact.loss_samples()),
        Output(
            "classes",
            lambda: network.classes().reshape(data.classes.shape),
            exact.classes_samples(),
        ),
    ]
    directions = {}
    for name, gradient in exact.gradients.items():
        directions[name] = Directions(context.rng, gradient, disturbed.gradients[name])
        outputs.append(
            Output(
                f"gradient of {name}",
                lambda name=name: directions[name](network.gradient(name)),
                directions[name].samples(gradient),
            )
        )
    arrays = data.x.nbytes + sum(w.nbytes for w in data.weights) + data.classes.nbytes
    return Work(
        network.step,
        outputs,
        flops=3 * _flops(batch),
        bytes=3 * _activations(batch),
        arrays=arrays,
        peers={
            "torch": lambda peer: {
                layout: torch_step(peer, data, directions, layout)
                for layout in ("contiguous", "channels_last")
            },
            **dict.fromkeys(COMPILED, lambda peer: {"": compiled_step(peer, data, directions)}),
        },
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


# --- The network --------------------------------------------------------------


class _Convolution:
    """A convolution or fully connected layer without biases, and the descent of its weights."""

    def __init__(
        self, device: mg.Device, kernels: tuple[Any, Any], source: Any, *, first: bool = False
    ) -> None:
        self.kernel, self.gradient = (kernel(source, device=device) for kernel in kernels)
        if first:  # nobody wants the gradient of the images
            self.gradient.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
        self.optimizer = mg.SGD(RATE, momentum_scale=MOMENTUM, device=device)
        weights = np.ascontiguousarray(source.weights()).ravel()
        self.master = mg.ConvolutionWeightsAndBiasesState(mg.Buffer(device, weights))
        self.momentum = [mg.Vector(device, mg.VectorDescriptor(weights.size))]

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> Any:
        mg.increment_read_count(x, 1)  # the gradient kernel reads it again
        self.source = x
        y, self.states = self.kernel.encode_batch(buffer, x, with_state=True, temporary_state=True)
        mg.increment_read_count(self.states, 1)  # gradient kernel, then optimizer
        return y

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> Any:
        result = self.gradient.encode_batch(buffer, gradient, self.source, self.states)
        self.optimizer.encode_convolution(
            buffer, self.states[0], self.master, self.momentum, self.master
        )
        self.kernel.reload_weights_and_biases(buffer, self.master)
        self.gradient.reload_weights_and_biases(buffer, self.master)
        return result


class _Normalization:
    """Batch normalization with a fused ReLU, and the descent of gamma and beta."""

    def __init__(self, device: mg.Device, channels: int) -> None:
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        relu = mg.NeuronDescriptor(mg.NeuronType.RELU)
        source = mg.ArrayBatchNormalizationDataSource(ones, zeros, zeros, ones, epsilon=EPSILON)
        self.kernel = mg.BatchNormalization(source, relu, device=device)
        self.statistics = mg.BatchNormalizationStatistics(device=device)
        self.sums = mg.BatchNormalizationStatisticsGradient(relu, device=device)
        self.gradient = mg.BatchNormalizationGradient(relu, device=device)
        self.optimizer = mg.SGD(RATE, momentum_scale=MOMENTUM, device=device)
        self.momentum = [mg.Vector(device, mg.VectorDescriptor(channels)) for _ in range(2)]
        self.master = mg.NormalizationGammaAndBetaState(ones, zeros, device=device)
        self.state: mg.BatchNormalizationState | None = None

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(x, 3)  # statistics, results, sums, gradients
        self.source = x
        descriptor = self.kernel.destination_descriptor(x[0])
        y = mg.ImageBatch.temporary(buffer, descriptor, len(x))
        if self.state is None:
            self.state = self.kernel.result_state(x[0], y[0])
        self.statistics.encode_batch(buffer, x, self.state)
        self.kernel.encode_batch(buffer, x, y, batch_normalization_state=self.state)
        return y

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> Any:
        assert self.state is not None
        mg.increment_read_count(gradient, 1)
        self.sums.encode_batch(buffer, gradient, self.source, self.state)
        result = self.gradient.encode_batch(buffer, gradient, self.source, self.state)
        self.optimizer.encode_batch_normalization(buffer, self.state, self.momentum, self.master)
        self.kernel.reload_gamma_and_beta(buffer, self.master)
        return result


class _Residual:
    """Layers whose result is added to their source: both get the gradient of the sum as it is."""

    def __init__(self, device: mg.Device, layers: list[Any]) -> None:
        self.layers = layers
        self.add, self.sum = mg.Add(device=device), mg.Add(device=device)

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> Any:
        mg.increment_read_count(x, 1)  # the sum
        y = x
        for layer in self.layers:
            y = layer.forward(buffer, y)
        return self.add.encode_batch(buffer, x, y)

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> Any:
        mg.increment_read_count(gradient, 1)  # the sum
        through = gradient
        for layer in reversed(self.layers):
            through = layer.backward(buffer, through)
        return self.sum.encode_batch(buffer, gradient, through)


class _Mean:
    """The mean of each channel."""

    def __init__(self, device: mg.Device, side: int) -> None:
        self.kernel = mg.PoolingAverage(side, side, device=device)
        self.kernel.padding = mg.DefaultPadding(mg.PaddingMethod.SIZE_VALID_ONLY)
        self.gradient = mg.PoolingAverageGradient(side, side, device=device)

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> Any:
        mg.increment_read_count(x, 1)
        self.source = x
        y, self.states = self.kernel.encode_batch(buffer, x, with_state=True, temporary_state=True)
        return y

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> Any:
        return self.gradient.encode_batch(buffer, gradient, self.source, self.states)


class Network:
    """The network of kernels; everything between images and weights stays on the device."""

    def __init__(self, device: mg.Device, data: Data) -> None:
        self.device, self.queue, self.data = device, device.command_queue(), data
        self.layers: list[Any] = []
        self.momentum: dict[str, list[mg.Vector]] = {}
        parts: list[Any] = []
        kernels = mg.Convolution, mg.ConvolutionGradient
        for (i, o, stride), w in zip(LAYERS, data.weights, strict=True):
            descriptor = mg.ConvolutionDescriptor(
                3, 3, input_feature_channels=i, output_feature_channels=o,
                stride_in_pixels_x=stride, stride_in_pixels_y=stride,
            )  # fmt: skip
            source = mg.ArrayConvolutionDataSource(w.copy(), descriptor=descriptor)
            convolution = _Convolution(device, kernels, source, first=not parts)
            convolution.kernel.padding = mg.ExplicitPadding(1, 1, 1, 1)
            normalization = _Normalization(device, o)
            number = len(parts) // 2 + 1
            self.momentum[f"convolution {number}"] = convolution.momentum
            self.momentum[f"normalization {number}"] = normalization.momentum
            parts += [convolution, normalization]
            if number % 3 == 0:
                self.layers += [*parts[-6:-4], _Residual(device, parts[-4:])]
        self.layers.append(_Mean(device, _sizes()[-1]))
        source = mg.ArrayConvolutionDataSource(data.classes.copy())
        connected = mg.FullyConnected, mg.FullyConnectedGradient
        self.layers.append(_Convolution(device, connected, source))
        self.momentum["classes"] = self.layers[-1].momentum
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
            y = layer.forward(buffer, y)
            if isinstance(layer, _Residual):
                buffer.commit_and_continue()  # the device starts while the rest is encoded
        gradient = self.criterion.encode_batch(buffer, y, labels)
        mg.synchronize(labels, buffer)
        for layer in reversed(self.layers):
            gradient = layer.backward(buffer, gradient)
            if isinstance(layer, _Residual):
                buffer.commit_and_continue()
        mg.increment_read_count(gradient, -1)  # nobody reads the first layer's
        buffer.commit()
        buffer.wait_until_completed()
        self.loss = float(labels[0].loss.sum())

    def classes(self) -> Any:
        """Return the weights of the last layer."""
        self._synchronize(self.layers[-1].master)
        return self.layers[-1].master.weights.to_numpy()

    def gradient(self, name: str) -> npt.NDArray[np.float32]:
        """Return what the first step has left of a layer's gradients: momentum, times the rate."""
        self._synchronize(*self.momentum[name])
        return np.concatenate([v.to_numpy().ravel() for v in self.momentum[name]]) / RATE

    def _synchronize(self, *objects: Any) -> None:
        buffer = self.queue.command_buffer()
        for one in objects:
            one.synchronize(buffer)
        buffer.commit()
        buffer.wait_until_completed()


class _Watched(mg.ArrayConvolutionDataSource):
    """Weights that descend, and keep the gradients they were given last."""

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.seen = [gradient_state]
        return super().update(command_buffer, gradient_state, source_state)

    def gradients(self) -> list[Any]:
        return [self.seen[0].gradient_for_weights]


class _WatchedNormalization(mg.ArrayBatchNormalizationDataSource):
    """The same of gamma and beta."""

    def update_gamma_and_beta(self, command_buffer: Any, state: Any) -> Any:
        self.seen = [state]
        return super().update_gamma_and_beta(command_buffer, state)

    def gradients(self) -> list[Any]:
        return [self.seen[0].gradient_for_gamma, self.seen[0].gradient_for_beta]


class GraphNetwork:
    """The same network of nodes: forward, gradients and updates are one encode."""

    def __init__(self, device: mg.Device, data: Data) -> None:
        self.device, self.queue, self.data = device, device.command_queue(), data
        self.sgd = mg.SGD(RATE, momentum_scale=MOMENTUM, device=device)
        self.sources: dict[str, Any] = {}
        y: Any = g.ImageNode("images")
        for position, ((i, o, stride), w) in enumerate(zip(LAYERS, data.weights, strict=True)):
            if position % 3 == 1:
                straight = y
            descriptor = mg.ConvolutionDescriptor(
                3, 3, input_feature_channels=i, output_feature_channels=o,
                stride_in_pixels_x=stride, stride_in_pixels_y=stride,
            )  # fmt: skip
            source = _Watched(w.copy(), descriptor=descriptor, optimizer=self.sgd)
            y = g.ConvolutionNode(y, source)
            y.padding_policy = mg.ExplicitPadding(1, 1, 1, 1)
            ones, zeros = np.ones(o, np.float32), np.zeros(o, np.float32)
            normalization = _WatchedNormalization(ones, zeros, epsilon=EPSILON, optimizer=self.sgd)
            y = g.NeuronReLUNode(g.BatchNormalizationNode(y, normalization))
            if position % 3 == 2:
                y = g.AdditionNode(y, straight)
            self.sources[f"convolution {position + 1}"] = source
            self.sources[f"normalization {position + 1}"] = normalization
        head = _Watched(data.classes.copy(), optimizer=self.sgd)
        self.sources["classes"] = head
        y = g.FullyConnectedNode(g.ReductionSpatialMeanNode(y), head)
        descriptor = mg.LossDescriptor(
            mg.LossType.SOFT_MAX_CROSS_ENTROPY,
            mg.ReductionType.SUM,
            reduce_across_batch=True,
            weight=1 / len(data.x),
        )
        termini = g.LossNode(y, descriptor).training_graph()
        self.graph = g.Graph(device, result_images=termini, results_are_needed=False)
        self.graph.format = mg.ChannelFormat.FLOAT32
        self.loss = math.nan

    def step(self) -> None:
        """Run one step on the images."""
        buffer = self.queue.command_buffer()
        labels = mg.LossLabels.batch(self.device, self.data.one_hot)
        images = mg.ImageBatch.from_array(self.device, self.data.x)
        self.graph.encode_batch(buffer, images, [labels])
        mg.synchronize(labels, buffer)
        buffer.commit()
        buffer.wait_until_completed()
        self.loss = float(labels[0].loss.sum())

    def classes(self) -> Any:
        """Return the weights of the last layer."""
        self.sources["classes"].load()
        return self.sources["classes"].weights_array

    def gradient(self, name: str) -> npt.NDArray[np.float32]:
        """Return a layer's gradients of the last step."""
        source = self.sources[name]
        buffer = self.queue.command_buffer()
        mg.synchronize(source.seen, buffer)
        buffer.commit()
        buffer.wait_until_completed()
        return np.concatenate([part.to_numpy().ravel() for part in source.gradients()])


# --- A step in float64 ----------------------------------------------------------


class ExactStep:
    """Loss and gradients of the first step, in float64.

    With ``rng``, every layer's result and gradient is disturbed by eight times what the roundings
    of float32 are expected to do to it; the gradients then tell how far rounding carries. Most of
    that is elements near zero that change sides of a ReLU.
    """

    def __init__(self, data: Data, rng: np.random.Generator | None = None) -> None:
        self.data, self.rng = data, rng
        self.gradients: dict[str, Doubles] = {}
        tape: list[tuple[Any, ...]] = []
        y = data.x.astype(np.float64)
        for position, ((i, _, stride), w) in enumerate(zip(LAYERS, data.weights, strict=True)):
            if position % 3 == 1:
                straight = y
            weights, source = w.astype(np.float64), y
            y = self._rounded(_convolve(source, weights, stride), 9 * i)
            r = 1 / np.sqrt(y.var(axis=(0, 1, 2)) + float(np.float32(EPSILON)))
            y = self._rounded((y - y.mean(axis=(0, 1, 2))) * r, 16)
            tape.append((source, weights, stride, y, r))
            y = np.maximum(y, 0)
            if position % 3 == 2:
                y = y + straight
        self.features = y.mean(axis=(1, 2))
        scores = self.features @ data.classes.reshape(CLASSES, -1).astype(np.float64).T
        below = scores - scores.max(axis=1, keepdims=True)
        logs = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
        one_hot = data.one_hot.reshape(len(scores), CLASSES)
        self.loss = -(one_hot * logs).sum() / len(scores)
        self._go_back((np.exp(logs) - one_hot) / len(scores), y.shape, tape)

    def _rounded(self, values: Doubles, roundings: int) -> Doubles:
        if self.rng is None:
            return values
        size = 8 * 2.0**-24 * math.sqrt(roundings) * float(np.sqrt((values**2).mean()))
        return values + size * self.rng.standard_normal(values.shape)

    def _go_back(self, g: Doubles, shape: tuple[int, ...], tape: list[tuple[Any, ...]]) -> None:
        self.gradients["classes"] = g.T @ self.features
        g = g @ self.data.classes.reshape(CLASSES, -1).astype(np.float64)
        pixels = shape[1] * shape[2]
        g = np.broadcast_to(g[:, None, None] / pixels, shape)
        for position in reversed(range(len(LAYERS))):
            source, weights, stride, normalized, r = tape[position]
            if position % 3 == 2:
                straight = g
            g = g * (normalized >= 0)
            by_gamma, by_beta = ((g * v).mean(axis=(0, 1, 2)) for v in (normalized, 1.0))
            count = g.size // g.shape[-1]
            name = f"normalization {position + 1}"
            self.gradients[name] = count * np.stack([by_gamma, by_beta])
            g = self._rounded(r * (g - by_beta - normalized * by_gamma), 16)
            g, of_weights = _convolve_back(g, source, weights, stride)
            g = self._rounded(g, 9 * weights.shape[0])
            self.gradients[f"convolution {position + 1}"] = of_weights
            if position % 3 == 1:
                g = g + straight

    def loss_samples(self) -> Samples:
        """Return the loss."""
        # Every product, and the few roundings of each normalization, on the way to a score.
        roundings = sum(2 * 9 * i + 16 for i, *_ in LAYERS) + 4 * LAYERS[-1][1]
        return Samples(
            (np.array([0]),), np.array([self.loss]), np.array([1 + self.loss]), roundings
        )

    def classes_samples(self) -> Samples:
        """Return the weights of the last layer after the step."""
        before = self.data.classes.astype(np.float64)
        change = RATE * self.gradients["classes"].reshape(before.shape)
        index = tuple(axis.ravel() for axis in np.indices(before.shape))
        return Samples(
            index, (before - change)[index], (np.abs(before) + np.abs(change))[index], 16
        )


def _windows(
    x: Doubles, stride: int, height: int, width: int
) -> Iterator[tuple[int, int, Doubles]]:
    """Yield the places of a 3x3 window with what all windows have there, of padded images."""
    for ky in range(3):
        for kx in range(3):
            rows = slice(ky, ky + stride * (height - 1) + 1, stride)
            yield ky, kx, x[:, rows, kx : kx + stride * (width - 1) + 1 : stride]


def _padded(x: Doubles) -> Doubles:
    return np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])


def _convolve(x: Doubles, w: Doubles, stride: int) -> Doubles:
    height, width = ((n - 1) // stride + 1 for n in x.shape[1:3])
    result = np.zeros((len(x) * height * width, len(w)))
    for ky, kx, part in _windows(_padded(x), stride, height, width):
        result += part.reshape(-1, x.shape[-1]) @ w[:, ky, kx].T
    return result.reshape(len(x), height, width, len(w))


def _convolve_back(g: Doubles, x: Doubles, w: Doubles, stride: int) -> tuple[Doubles, Doubles]:
    """Return the gradients of a convolution's source and weights."""
    of_source, of_weights = _padded(np.zeros_like(x)), np.zeros_like(w)
    sizes = g.shape[1:3]
    flat = g.reshape(-1, g.shape[-1])
    for ky, kx, part in _windows(_padded(x), stride, *sizes):
        of_weights[:, ky, kx] = flat.T @ part.reshape(-1, x.shape[-1])
    for ky, kx, part in _windows(of_source, stride, *sizes):
        part += (flat @ w[:, ky, kx]).reshape(part.shape)
    return of_source[:, 1:-1, 1:-1], of_weights


class Directions:
    """Components of a layer's gradients along the exact ones and along random directions.

    One element that rounding takes to the other side of a ReLU changes some elements of a gradient
    by a percent, but hardly any component along a direction that has nothing to do with it.
    """

    COUNT = 16

    def __init__(self, rng: np.random.Generator, exact: Doubles, disturbed: Doubles) -> None:
        signs = rng.integers(0, 2, (self.COUNT, exact.size)) * 2.0 - 1
        own = exact.ravel() / np.linalg.norm(exact)
        self.along = np.concatenate([own[None], signs / math.sqrt(exact.size)])
        # Six standard deviations of a disturbance that has no direction.
        self.allowed = 6 * float(np.linalg.norm(disturbed - exact)) / math.sqrt(exact.size)

    def __call__(self, gradient: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the components."""
        found: npt.NDArray[np.float32] = self.along @ gradient.ravel().astype(np.float64)
        return found.astype(np.float32)

    def samples(self, exact: Doubles) -> Samples:
        """Return all of them."""
        values = self.along @ exact.ravel()
        within = np.full(len(values), self.allowed) + 2.0**-20 * np.abs(values)
        return Samples((np.arange(len(values)),), values, np.abs(values), 0, within=within)


# --- Peers ------------------------------------------------------------------------


def torch_step(
    peer: Any, data: Data, directions: dict[str, Directions], layout: str
) -> Callable[[], Any]:
    """PyTorch: the same network from its modules, with its tape and its fused descent."""
    torch = peer.torch

    class Residual(torch.nn.Module):
        def __init__(self, *layers: Any) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return x + self.layers(x)

    modules: list[Any] = []
    parameters: dict[str, list[Any]] = {}
    for position, ((i, o, stride), w) in enumerate(zip(LAYERS, data.weights, strict=True)):
        convolution = torch.nn.Conv2d(i, o, 3, stride, 1, bias=False)
        convolution.weight.copy_(peer.image(w, layout))
        normalization = torch.nn.BatchNorm2d(o, eps=EPSILON)
        parameters[f"convolution {position + 1}"] = [convolution.weight]
        parameters[f"normalization {position + 1}"] = [normalization.weight, normalization.bias]
        modules += [convolution, normalization, torch.nn.ReLU(inplace=True)]
        if position % 3 == 2:
            modules[-6:] = [Residual(*modules[-6:])]
    last = torch.nn.Linear(LAYERS[-1][1], CLASSES, bias=False)
    last.weight.copy_(peer.array(data.classes.reshape(CLASSES, -1)))
    parameters["classes"] = [last.weight]
    modules += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), last]
    orders = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    network = torch.nn.Sequential(*modules).to(memory_format=orders[layout]).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    x = peer.image(data.x, layout)
    labels = peer.array(data.one_hot.reshape(len(data.x), CLASSES))

    def momentum(name: str) -> npt.NDArray[Any]:
        """Return what the first step has left of the gradients."""
        found = [optimizer.state[p]["momentum_buffer"] for p in parameters[name]]
        return np.concatenate(
            [(v.permute(0, 2, 3, 1) if v.ndim == 4 else v).reshape(-1).numpy() for v in found]
        )

    gradients = [lambda name=name: directions[name](momentum(name)) for name in directions]

    def step() -> Any:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = peer.functional.cross_entropy(network(x), labels)
            loss.backward()
            optimizer.step()
        return loss.detach().reshape(1), last.weight.detach(), *gradients

    return step


def compiled_step(peer: Any, data: Data, directions: dict[str, Directions]) -> Callable[[], Any]:
    """JAX and MLX: the same network as a function, its derivative and the descent, in one."""
    arrays: list[npt.NDArray[Any]] = []
    parts: dict[str, list[int]] = {}
    for number, w in enumerate(data.weights, 1):
        position, ones = len(arrays), np.ones(len(w), np.float32)
        parts[f"convolution {number}"] = [position]
        parts[f"normalization {number}"] = [position + 1, position + 2]
        arrays += [w, ones, 0 * ones]
    parts["classes"] = [len(arrays)]
    arrays.append(data.classes.reshape(CLASSES, -1))

    def loss(y: Any, labels: Any, *weights: Any) -> Any:
        for position, (_, _, stride) in enumerate(LAYERS):
            w, gamma, beta = weights[3 * position : 3 * position + 3]
            if position % 3 == 1:
                straight = y
            y = peer.convolve(y, w, (stride, stride), (1, 1))
            y = peer.nn.relu(peer.normalized(y, (0, 1, 2), EPSILON) * gamma + beta)
            if position % 3 == 2:
                y = y + straight
        scores = y.mean((1, 2)) @ weights[-1].T
        return -(labels * peer.nn.log_softmax(scores)).sum() / len(data.x)

    def descend(state: Any, x: Any, labels: Any) -> Any:
        _, weights, momenta = state
        value, gradients = peer.vjp(
            lambda *weights: loss(x, labels, *weights), peer.numpy.ones(()), *weights
        )
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, gradients, strict=True)]
        return value, [w - RATE * m for w, m in zip(weights, momenta, strict=True)], momenta

    weights, momenta = ([peer.array(scale * w) for w in arrays] for scale in (1, 0))
    state = peer.array(np.zeros((), np.float32)), weights, momenta
    update = peer.update(descend, state, data.x, data.one_hot.reshape(-1, CLASSES))

    def step() -> Any:
        loss, weights, momenta = update()

        def gradient(name: str) -> npt.NDArray[Any]:
            """Return what the first step has left of a layer's gradients."""
            found = np.concatenate([np.array(momenta[i]).ravel() for i in parts[name]])
            return directions[name](found)

        return loss, weights[-1], *(functools.partial(gradient, name) for name in directions)

    return step
