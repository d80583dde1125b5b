"""A small convolutional network of nothing but kernels.

Every value between the input images and the updated weights stays on the device, in temporary
images and states of one command buffer. With batch normalization, the running averages of the
statistics are kept by the program, which reads each batch's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

import mpsgrad as mg

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Network"]

_BETA1, _BETA2 = 0.9, 0.999
_KEPT = 0.9  # of the running averages, with every batch


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
        self.weight_shape = arrays[0].shape
        self.master = mg.ConvolutionWeightsAndBiasesState(
            *(mg.Buffer(device, np.ascontiguousarray(array).ravel()) for array in arrays)
        )
        self._momentum, self._velocity = (
            [mg.Vector(device, mg.VectorDescriptor(array.size)) for array in arrays]
            for _ in range(2)
        )

    def kept(self) -> dict[str, Any]:
        """Return what training goes on from, by name: buffers and vectors."""
        return {
            "weights": self.master.weights,
            "biases": self.master.biases,
            **_histories(("weights", "biases"), self._momentum, self._velocity),
        }

    def reload(self, buffer: mg.CommandBuffer, steps: int) -> None:
        """Encode that the kernels use the master weights, and go on after so many steps."""
        self._optimizer.time_step = steps
        self._kernel.reload_weights_and_biases(buffer, self.master)
        self._gradient.reload_weights_and_biases(buffer, self.master)

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


class _Normalized:
    """Batch normalization with a fused ReLU, with Adam on gamma and beta."""

    def __init__(self, device: mg.Device, channels: int, learning_rate: float) -> None:
        self._device = device
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        relu = mg.NeuronDescriptor(mg.NeuronType.RELU)
        source = mg.ArrayBatchNormalizationDataSource(ones, zeros, zeros, ones, epsilon=1e-5)
        self._kernel = mg.BatchNormalization(source, relu, device=device)
        self._statistics = mg.BatchNormalizationStatistics(device=device)
        self._sums = mg.BatchNormalizationStatisticsGradient(relu, device=device)
        self._gradient = mg.BatchNormalizationGradient(relu, device=device)
        self._optimizer = mg.Adam(learning_rate, beta1=_BETA1, beta2=_BETA2, device=device)
        self._momentum, self._velocity = (
            [mg.Vector(device, mg.VectorDescriptor(channels)) for _ in range(2)] for _ in range(2)
        )
        self.master = mg.NormalizationGammaAndBetaState(ones, zeros, device=device)
        self._state: mg.BatchNormalizationState | None = None
        self.mean, self.variance = zeros.copy(), ones.copy()

    def kept(self) -> dict[str, Any]:
        """Return what training goes on from, by name: buffers, vectors and running averages."""
        return {
            "gamma": self.master.gamma,
            "beta": self.master.beta,
            "mean": self.mean,
            "variance": self.variance,
            **_histories(("gamma", "beta"), self._momentum, self._velocity),
        }

    def reload(self, buffer: mg.CommandBuffer, steps: int) -> None:
        """Encode that the kernel uses the master values, and go on after so many steps."""
        self._optimizer.time_step = steps
        self._kernel.reload_gamma_and_beta(buffer, self.master)

    def forward(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        running = mg.NormalizationMeanAndVarianceState(
            self.mean, self.variance, device=self._device
        )
        self._kernel.reload_mean_and_variance(buffer, running)
        result: mg.ImageBatch = self._kernel.encode_batch(buffer, x)
        return result

    def forward_training(self, buffer: mg.CommandBuffer, x: mg.ImageBatch) -> mg.ImageBatch:
        mg.increment_read_count(x, 3)  # statistics, results, sums, gradients
        self._source = x
        descriptor = self._kernel.destination_descriptor(x[0])
        y = mg.ImageBatch.temporary(buffer, descriptor, len(x))
        if self._state is None:
            self._state = self._kernel.result_state(x[0], y[0])
        self._statistics.encode_batch(buffer, x, self._state)
        self._kernel.encode_batch(buffer, x, y, batch_normalization_state=self._state)
        return y

    def backward(self, buffer: mg.CommandBuffer, gradient: mg.ImageBatch) -> mg.ImageBatch:
        assert self._state is not None
        mg.increment_read_count(gradient, 1)
        self._sums.encode_batch(buffer, gradient, self._source, self._state)
        result: mg.ImageBatch = self._gradient.encode_batch(
            buffer, gradient, self._source, self._state
        )
        self._optimizer.encode_batch_normalization(
            buffer, self._state, self._momentum, self._velocity, self.master
        )
        self._kernel.reload_gamma_and_beta(buffer, self.master)
        self._state.synchronize(buffer)
        return result

    def average(self) -> None:
        """Take the last batch's statistics into the running averages."""
        assert self._state is not None
        for name in ("mean", "variance"):
            batch = getattr(self._state, name).to_numpy()[: len(self.mean)]
            mixed = _KEPT * getattr(self, name) + (1 - _KEPT) * batch
            setattr(self, name, mixed.astype(np.float32))


def _histories(names: tuple[str, str], momentum: list[Any], velocity: list[Any]) -> dict[str, Any]:
    return {
        f"{kind}_of_{name}": vector
        for kind, vectors in (("momentum", momentum), ("velocity", velocity))
        for name, vector in zip(names, vectors, strict=True)
    }


def _source(
    rng: np.random.Generator, outputs: int, height: int, width: int, inputs: int
) -> mg.ArrayConvolutionDataSource:
    """Return weights drawn as He et al. draw them, for a layer that a ReLU follows."""
    scale = math.sqrt(2.0 / (height * width * inputs))
    weights = (scale * rng.standard_normal((outputs, height, width, inputs))).astype(np.float32)
    return mg.ArrayConvolutionDataSource(weights, np.zeros(outputs, np.float32))


class Network:
    """Convolution 3x3, ReLU, max pooling 2x2, convolution 3x3, ReLU, fully connected.

    With ``batch_norm``, a batch normalization between each convolution and its ReLU.

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
    batch_norm : bool
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
        batch_norm: bool = False,
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

        self._normalized: dict[str, _Normalized] = {}

        def activation(channels: int) -> _Layer:
            if batch_norm:
                name = f"normalization_{len(self._normalized) + 1}"
                self._normalized[name] = _Normalized(device, channels, learning_rate)
                return self._normalized[name]
            return _Plain(mg.Neuron(relu, device=device), mg.NeuronGradient(relu, device=device))

        window = 2, 2, 2, 2
        pooling = _Plain(
            mg.PoolingMax(*window, device=device), mg.PoolingMaxGradient(*window, device=device)
        )
        self._layers: list[_Layer] = [
            self._weighted["convolution_1"],
            activation(first),
            pooling,
            self._weighted["convolution_2"],
            activation(second),
            self._weighted["fully_connected"],
        ]
        self._losses: dict[int, mg.Loss] = {}
        self.steps = 0  # that training has taken

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
        for step in self._layers:
            y = step.forward_training(buffer, y)
        gradient = self._loss(len(images)).encode_batch(buffer, y, labels)
        mg.synchronize(labels, buffer)
        for step in reversed(self._layers):
            gradient = step.backward(buffer, gradient)
        mg.increment_read_count(gradient, -1)  # nobody reads the first layer's
        buffer.commit()
        buffer.wait_until_completed()
        self.steps += 1
        for layer in self._normalized.values():
            layer.average()
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

    def _trained(self) -> list[_Weighted | _Normalized]:
        return [*self._weighted.values(), *self._normalized.values()]

    def _kept(self) -> dict[str, Any]:
        layers: dict[str, _Weighted | _Normalized] = {**self._weighted, **self._normalized}
        return {
            f"{name}_{what}": values
            for name, layer in layers.items()
            for what, values in layer.kept().items()
        }

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of all weights, (O, H, W, I), and biases, and of running averages."""
        return {name: a for name, a in self.checkpoint().items() if "_of_" not in name}

    def checkpoint(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return `weights`, and copies of what Adam keeps of each."""
        buffer = self._queue.command_buffer()
        kept = self._kept()
        for layer in self._trained():
            layer.master.synchronize(buffer)
        for name, values in kept.items():
            if "_of_" in name:
                values.synchronize(buffer)
        buffer.commit()
        buffer.wait_until_completed()
        result = {
            name: values.copy() if isinstance(values, np.ndarray) else values.to_numpy()
            for name, values in kept.items()
        }
        for name, weighted in self._weighted.items():
            flat = result[f"{name}_weights"]
            result[f"{name}_weights"] = flat.reshape(weighted.weight_shape)
        return result

    def restore(self, checkpoint: Mapping[str, npt.NDArray[np.float32]], steps: int) -> None:
        """Go on from what `checkpoint` has returned, after so many steps.

        Raises
        ------
        ValueError
            If an array is missing or has another size; nothing has changed then.
        """
        kept = self._kept()
        for name, values in kept.items():
            size = values.size if isinstance(values, np.ndarray) else values.to_numpy().size
            if name not in checkpoint or checkpoint[name].size != size:
                raise ValueError(f"{name} must have {size} numbers")
        for name, values in kept.items():
            numbers = np.ascontiguousarray(checkpoint[name], np.float32).ravel()
            if isinstance(values, np.ndarray):
                values[...] = numbers
            else:
                values.write(numbers)
        buffer = self._queue.command_buffer()
        for layer in self._trained():
            layer.reload(buffer, steps)
        buffer.commit()
        buffer.wait_until_completed()
        self.steps = steps
