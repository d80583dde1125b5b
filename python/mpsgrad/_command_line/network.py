"""A small convolutional network of nothing but kernels.

Every value between the input images and the updated weights stays on the device, in temporary
images and states of one command buffer.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import mpsgrad as mg

__all__ = ["Network"]

_BETA1, _BETA2 = 0.9, 0.999


class _Layer(Protocol):
    """One step of the network, forward and backward."""

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        """Encode the layer without a trace, for inference."""

    def forward_training(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        """Encode the layer and keep what `backward` needs."""

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> mg.ImageBatch:
        """Encode the gradient, and the update of the layer's weights."""


class _Plain:
    """A layer without weights: a kernel and its gradient kernel."""

    def __init__(self, kernel: Any, gradient: Any) -> None:
        self._kernel = kernel
        self._gradient = gradient

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        result: mg.ImageBatch = self._kernel.encode_batch(buffer, x)
        return result

    def forward_training(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(x, 1)  # the gradient kernel reads it again
        self._source = x
        y, self._states = self._kernel.encode_batch(
            buffer, x, with_state=True, temporary_state=True
        )
        result: mg.ImageBatch = y
        return result

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> mg.ImageBatch:
        result: mg.ImageBatch = self._gradient.encode_batch(
            buffer, gradient, self._source, self._states
        )
        return result


class _Weighted:
    """A convolution or fully connected layer, with Adam on its weights and biases."""

    def __init__(
        self,
        device: mg.Device,
        forward: Any,
        backward: Any,
        source: mg.ArrayConvolutionDataSource,
        learning_rate: float,
        wants_data_gradient: bool,
    ) -> None:
        self._kernel = forward(source, device=device)
        self._gradient = backward(source, device=device)
        if not wants_data_gradient:
            self._gradient.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
        self._optimizer = mg.Adam(learning_rate, beta1=_BETA1, beta2=_BETA2, device=device)
        biases = source.bias_terms()
        arrays = [source.weights(), *([] if biases is None else [biases])]
        self.master = mg.ConvolutionWeightsAndBiasesState(
            *(mg.Buffer(device, np.ascontiguousarray(array).ravel()) for array in arrays)
        )
        self._momentum, self._velocity = (
            [mg.Vector(device, mg.VectorDescriptor(array.size)) for array in arrays]
            for _ in range(2)
        )

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        result: mg.ImageBatch = self._kernel.encode_batch(buffer, x)
        return result

    def forward_training(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(x, 1)
        self._source = x
        y, self._states = self._kernel.encode_batch(
            buffer, x, with_state=True, temporary_state=True
        )
        mg.increment_read_count(self._states, 1)  # gradient kernel, then optimizer
        result: mg.ImageBatch = y
        return result

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> mg.ImageBatch:
        result: mg.ImageBatch = self._gradient.encode_batch(
            buffer, gradient, self._source, self._states
        )
        self._optimizer.encode_convolution(
            buffer, self._states[0], self.master, self._momentum, self._velocity, self.master
        )
        self._kernel.reload_weights_and_biases(buffer, self.master)
        self._gradient.reload_weights_and_biases(buffer, self.master)
        return result


def _source(
    rng: np.random.Generator, outputs: int, height: int, width: int, inputs: int
) -> mg.ArrayConvolutionDataSource:
    """Return weights drawn as He et al. draw them, for a layer that a ReLU follows."""
    scale = math.sqrt(2.0 / (height * width * inputs))
    weights = (scale * rng.standard_normal((outputs, height, width, inputs))).astype(np.float32)
    return mg.ArrayConvolutionDataSource(weights, np.zeros(outputs, np.float32))


class Network:
    """Convolution 3x3, ReLU, max pooling 2x2, convolution 3x3, ReLU, fully connected.

    Parameters
    ----------
    device : Device
    shape : (height, width, channels)
        Of one image.
    classes : int
    rng : Generator
        Draws the weights.
    learning_rate : float
        Of Adam.
    widths : (int, int)
        Channels of the two convolutions.
    """

    def __init__(
        self,
        device: mg.Device,
        shape: tuple[int, int, int],
        classes: int,
        rng: np.random.Generator,
        *,
        learning_rate: float = 0.002,
        widths: tuple[int, int] = (16, 32),
    ) -> None:
        height, width, channels = shape
        pooled = -(-height // 2), -(-width // 2)
        first, second = widths
        convolution = mg.Convolution, mg.ConvolutionGradient
        connected = mg.FullyConnected, mg.FullyConnectedGradient
        self.device = device
        self.classes = classes
        self._queue = device.command_queue()
        self._weighted = {
            "convolution_1": _Weighted(
                device, *convolution, _source(rng, first, 3, 3, channels), learning_rate, False
            ),
            "convolution_2": _Weighted(
                device, *convolution, _source(rng, second, 3, 3, first), learning_rate, True
            ),
            "fully_connected": _Weighted(
                device, *connected, _source(rng, classes, *pooled, second), learning_rate, True
            ),
        }
        relu = mg.NeuronDescriptor(mg.NeuronType.RELU)

        def activation() -> _Plain:
            return _Plain(mg.Neuron(relu, device=device), mg.NeuronGradient(relu, device=device))

        window = 2, 2, 2, 2
        pooling = _Plain(
            mg.PoolingMax(*window, device=device), mg.PoolingMaxGradient(*window, device=device)
        )
        self._layers: list[_Layer] = [
            self._weighted["convolution_1"],
            activation(),
            pooling,
            self._weighted["convolution_2"],
            activation(),
            self._weighted["fully_connected"],
        ]
        self._losses: dict[int, mg.Loss] = {}

    def _loss(self, count: int) -> mg.Loss:
        """Return the loss whose gradient is that of the mean over ``count`` images."""
        if count not in self._losses:
            descriptor = mg.LossDescriptor(
                mg.LossType.SOFT_MAX_CROSS_ENTROPY,
                mg.ReductionType.SUM,
                reduce_across_batch=True,
                weight=1.0 / count,
            )
            self._losses[count] = mg.Loss(descriptor, device=self.device)
        return self._losses[count]

    def train_step(
        self, images: npt.NDArray[np.float32], one_hot: npt.NDArray[np.float32]
    ) -> float:
        """Run one step of Adam on a batch.

        Parameters
        ----------
        images : ndarray of float32, shape (N, H, W, C)
        one_hot : ndarray of float32, shape (N, 1, 1, classes)

        Returns
        -------
        float
            Mean cross entropy of the batch, before the update.
        """
        buffer = self._queue.command_buffer()
        labels = mg.LossLabels.batch(self.device, one_hot)
        y = mg.ImageBatch.from_array(self.device, images)
        for layer in self._layers:
            y = layer.forward_training(buffer, y)
        gradient = self._loss(len(images)).encode_batch(buffer, y, labels)
        mg.synchronize(labels, buffer)
        for layer in reversed(self._layers):
            gradient = layer.backward(buffer, gradient)
        mg.increment_read_count(gradient, -1)  # nobody reads the first layer's
        buffer.commit()
        buffer.wait_until_completed()
        return float(labels[0].loss.sum())

    def predict(self, images: npt.NDArray[np.float32], batch: int = 256) -> npt.NDArray[np.intp]:
        """Return the most likely class of each image, shape (N,)."""
        found = []
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            buffer = self._queue.command_buffer()
            y = mg.ImageBatch.from_array(self.device, part)
            for layer in self._layers[:-1]:
                y = layer.forward(buffer, y)
            logits = self._layers[-1]._kernel.encode_batch(  # type: ignore[attr-defined]
                buffer, y, allocator=mg.DEFAULT
            )
            mg.synchronize(logits, buffer)
            buffer.commit()
            buffer.wait_until_completed()
            found.append(logits.to_array().reshape(len(part), self.classes).argmax(axis=1))
        return np.concatenate(found)

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of all weights and biases, flat, by layer."""
        buffer = self._queue.command_buffer()
        for layer in self._weighted.values():
            layer.master.synchronize(buffer)
        buffer.commit()
        buffer.wait_until_completed()
        result = {}
        for name, layer in self._weighted.items():
            result[f"{name}_weights"] = layer.master.weights.to_numpy()
            result[f"{name}_biases"] = layer.master.biases.to_numpy()
        return result
