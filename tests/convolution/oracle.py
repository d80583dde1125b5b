"""The convolution family in float64, one tap of the window at a time.

Pairs are (x, y), images (N, H, W, C), weights OHWI; depthwise weights are (O, kH, kW), without an
input axis. All results are linear in every argument, so the scale of an error, the sum of the
magnitudes added, is the same function of absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.core.oracle import extent, gradient_offsets, inside, positions, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.core.oracle import Array, Indices, Pair


@dataclass(frozen=True)
class Convolution:
    """What a convolution kernel is told besides its weights."""

    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    offset: Pair = (0, 0)  # source pixel under the centre of the first window
    groups: int = 1
    edge: str = "zero"


def _taps(
    p: Convolution, kernel: Pair, size: Pair
) -> Iterator[tuple[tuple[int, int], Indices, Indices]]:
    """Yield ((row, column) of the tap, source rows, source columns) over the window."""
    xs, ys = (
        positions(size[a], kernel[a], p.stride[a], p.dilation[a], p.offset[a]) for a in (0, 1)
    )
    for q, r in np.ndindex(kernel[1], kernel[0]):
        yield (q, r), ys[:, q], xs[:, r]


def _blocks(p: Convolution, weights: Array) -> Iterator[tuple[slice, slice]]:
    """Yield (output channels, input channels) of each group."""
    outputs, inputs = weights.shape[0] // p.groups, weights.shape[3]
    for g in range(p.groups):
        yield slice(g * outputs, (g + 1) * outputs), slice(g * inputs, (g + 1) * inputs)


PIXELS = ([0, 1, 2], [0, 1, 2])  # axes n, y, x of two images


def _kernel(weights: Array) -> Pair:
    return weights.shape[2], weights.shape[1]


def forward(
    p: Convolution,
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    biases: npt.ArrayLike | None = None,
    *,
    size: Pair,
    neuron: Callable[[Array], Array] | None = None,
) -> Array:
    """Correlate with `weights`, add `biases`, apply `neuron`; the destination has `size` pixels."""
    source, weights = np.asarray(source, np.float64), np.asarray(weights, np.float64)
    result = np.zeros((source.shape[0], size[1], size[0], weights.shape[0]))
    for (q, r), rows, columns in _taps(p, _kernel(weights), size):
        seen = sample(source, rows, columns, p.edge)
        if weights.ndim == 3:
            result += seen * weights[:, q, r]
            continue
        for outputs, inputs in _blocks(p, weights):
            result[..., outputs] += seen[..., inputs] @ weights[outputs, q, r].T
    if biases is not None:
        result += np.asarray(biases, np.float64)
    return result if neuron is None else neuron(result)


def data_gradient(
    p: Convolution, gradient: npt.ArrayLike, weights: npt.ArrayLike, *, source_size: Pair
) -> Array:
    """Gradient with respect to the source.

    What windows read outside the source is dropped, whatever the forward edge mode: with "clamp"
    the border is therefore not the exact derivative.
    """
    gradient, weights = np.asarray(gradient, np.float64), np.asarray(weights, np.float64)
    depthwise = weights.ndim == 3
    channels = weights.shape[0] if depthwise else weights.shape[3] * p.groups
    width, height = source_size
    result = np.zeros((gradient.shape[0], height, width, channels))
    size = gradient.shape[2], gradient.shape[1]
    for (q, r), rows, columns in _taps(p, _kernel(weights), size):
        if depthwise:
            share = gradient * weights[:, q, r]
        else:
            share = np.empty((*gradient.shape[:3], channels))
            for outputs, inputs in _blocks(p, weights):
                share[..., inputs] = gradient[..., outputs] @ weights[outputs, q, r]
        # One tap reads every source pixel at most once, so += on the fancy index loses nothing.
        there = inside(rows, height), inside(columns, width)
        target = np.ix_(range(len(result)), rows[there[0]], columns[there[1]])
        result[target] += share[:, there[0]][:, :, there[1]]
    return result


def weight_gradient(
    p: Convolution,
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    depthwise: bool = False,
) -> Array:
    """Gradient with respect to the weights, summed over the batch and all positions."""
    gradient, source = np.asarray(gradient, np.float64), np.asarray(source, np.float64)
    outputs, inputs = gradient.shape[3], source.shape[3] // p.groups
    shape = (outputs, kernel[1], kernel[0])
    result = np.zeros(shape if depthwise else (*shape, inputs))
    size = gradient.shape[2], gradient.shape[1]
    for (q, r), rows, columns in _taps(p, kernel, size):
        seen = sample(source, rows, columns, p.edge)
        if depthwise:
            result[:, q, r] = (gradient * seen).sum(axis=(0, 1, 2))
            continue
        for outs, ins in _blocks(p, result):
            result[outs, q, r] = np.tensordot(gradient[..., outs], seen[..., ins], PIXELS)
    return result


def bias_gradient(gradient: npt.ArrayLike) -> Array:
    """Gradient with respect to the biases."""
    return np.asarray(gradient, np.float64).sum(axis=(0, 1, 2))


# --- Gradients from the properties of a gradient kernel -----------------------


@dataclass(frozen=True)
class GradientProperties:
    """What a gradient kernel computes with; the state of a forward kernel fills it in."""

    primary_offset: Pair = (0, 0)  # in pixels of the incoming gradient
    primary_stride: Pair = (1, 1)
    kernel_offset: Pair = (0, 0)  # in the gradient with zeros inserted
    secondary_offset: Pair = (0, 0)  # source position of the first tap of window 0
    secondary_stride: Pair = (1, 1)
    secondary_dilation: Pair = (1, 1)
    secondary_edge: str = "zero"
    groups: int = 1


def properties(p: Convolution, kernel: Pair) -> GradientProperties:
    """Return the properties that undo a forward convolution."""
    offsets = [gradient_offsets(p.offset[a], kernel[a], p.dilation[a]) for a in (0, 1)]
    return GradientProperties(
        primary_stride=p.stride,
        kernel_offset=(offsets[0][0], offsets[1][0]),
        secondary_offset=(offsets[0][1], offsets[1][1]),
        secondary_stride=p.stride,
        secondary_dilation=p.dilation,
        secondary_edge=p.edge,
        groups=p.groups,
    )


def stuff(image: Array, stride: Pair) -> Array:
    """Insert stride - 1 zeros between pixels."""
    count, height, width, channels = image.shape
    stuffed = np.zeros((count, (height - 1) * stride[1] + 1, (width - 1) * stride[0] + 1, channels))
    stuffed[:, :: stride[1], :: stride[0]] = image
    return stuffed


def data_gradient_from(
    p: GradientProperties, gradient: npt.ArrayLike, weights: npt.ArrayLike, *, size: Pair
) -> Array:
    """Data gradient of `size` pixels: correlate the stuffed gradient with rotated weights."""
    weights = np.asarray(weights, np.float64)
    total = tuple(p.primary_offset[a] * p.primary_stride[a] + p.kernel_offset[a] for a in (0, 1))
    rotated = weights[:, ::-1, ::-1]
    if weights.ndim == 4:
        outputs = weights.shape[0] // p.groups
        groups = [rotated[g * outputs : (g + 1) * outputs] for g in range(p.groups)]
        rotated = np.concatenate([block.transpose(3, 1, 2, 0) for block in groups])
    window = Convolution(
        dilation=p.secondary_dilation, offset=(total[0], total[1]), groups=p.groups
    )
    stuffed = stuff(np.asarray(gradient, np.float64), p.primary_stride)
    return forward(window, stuffed, rotated, size=size)


def weight_gradient_from(
    p: GradientProperties,
    gradient: npt.ArrayLike,
    source: npt.ArrayLike,
    *,
    kernel: Pair,
    depthwise: bool = False,
) -> Array:
    """Weight gradient with the first tap of the first window at the secondary offset."""
    centre = [
        p.secondary_offset[a] + extent(kernel[a], p.secondary_dilation[a]) // 2 for a in (0, 1)
    ]
    window = Convolution(
        p.secondary_stride,
        p.secondary_dilation,
        (centre[0], centre[1]),
        p.groups,
        p.secondary_edge,
    )
    return weight_gradient(window, gradient, source, kernel=kernel, depthwise=depthwise)


# --- Sub-pixel and fully connected --------------------------------------------


def depth_to_space(image: npt.ArrayLike, factor: int, size: Pair) -> Array:
    """Spread blocks of channels over factor x factor pixels; the block is the slow index."""
    image = np.asarray(image, np.float64)
    block = image.shape[3] // factor**2
    v, u = np.arange(size[1])[:, None, None], np.arange(size[0])[:, None]
    channels = block * (factor * (v % factor) + u % factor) + np.arange(block)
    return image[:, v // factor, u // factor, channels]


def sub_pixel(
    p: Convolution,
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    biases: npt.ArrayLike | None = None,
    *,
    factor: int,
    size: Pair,
    neuron: Callable[[Array], Array] | None = None,
) -> Array:
    """Convolve, then rearrange channels as pixels; `size` is that of the destination."""
    inner = -(-size[0] // factor), -(-size[1] // factor)
    convolved = forward(p, source, weights, biases, size=inner, neuron=neuron)
    return depth_to_space(convolved, factor, size)


WHOLE = ([1, 2, 3], [1, 2, 3])  # axes y, x, c of an image and of weights


def fully_connected(
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    biases: npt.ArrayLike | None = None,
    *,
    neuron: Callable[[Array], Array] | None = None,
) -> Array:
    """Inner product with the whole image, shape (N, 1, 1, O)."""
    result = np.tensordot(np.asarray(source, np.float64), np.asarray(weights, np.float64), WHOLE)
    if biases is not None:
        result = result + np.asarray(biases, np.float64)
    result = result[:, None, None, :]
    return result if neuron is None else neuron(result)


def fully_connected_data_gradient(gradient: npt.ArrayLike, weights: npt.ArrayLike) -> Array:
    """Gradient of `fully_connected` with respect to its source."""
    outgoing = np.asarray(gradient, np.float64)[:, 0, 0]
    return np.tensordot(outgoing, np.asarray(weights, np.float64), 1)


def fully_connected_weight_gradient(gradient: npt.ArrayLike, source: npt.ArrayLike) -> Array:
    """Gradient of `fully_connected` with respect to its weights, summed over the batch."""
    outgoing = np.asarray(gradient, np.float64)[:, 0, 0]
    return np.tensordot(outgoing, np.asarray(source, np.float64), ([0], [0]))


# --- Transpose ----------------------------------------------------------------


@dataclass(frozen=True)
class Transpose:
    """What a transposed convolution is told besides its weights."""

    stride: Pair = (1, 1)
    offset: Pair = (0, 0)  # in source pixels
    kernel_offset: Pair = (0, 0)  # in the source with zeros inserted
    groups: int = 1

    @property
    def window(self) -> Convolution:
        """Return the stride-1 convolution of the stuffed source."""
        x, y = (self.offset[a] * self.stride[a] + self.kernel_offset[a] for a in (0, 1))
        return Convolution(offset=(x, y), groups=self.groups)


def transpose(
    p: Transpose,
    source: npt.ArrayLike,
    weights: npt.ArrayLike,
    biases: npt.ArrayLike | None = None,
    *,
    size: Pair,
    neuron: Callable[[Array], Array] | None = None,
) -> Array:
    """Correlate the stuffed source with unrotated weights."""
    stuffed = stuff(np.asarray(source, np.float64), p.stride)
    return forward(p.window, stuffed, weights, biases, size=size, neuron=neuron)


def transpose_data_gradient(
    p: Transpose, gradient: npt.ArrayLike, weights: npt.ArrayLike, *, source_size: Pair
) -> Array:
    """Gradient with respect to the source: that of the stuffed source, at the real pixels."""
    width, height = ((n - 1) * s + 1 for n, s in zip(source_size, p.stride, strict=True))
    stuffed = data_gradient(p.window, gradient, weights, source_size=(width, height))
    return stuffed[:, :: p.stride[1], :: p.stride[0]]


def transpose_weight_gradient(
    p: Transpose, gradient: npt.ArrayLike, source: npt.ArrayLike, *, kernel: Pair
) -> Array:
    """Gradient with respect to the weights, summed over the batch and all positions."""
    stuffed = stuff(np.asarray(source, np.float64), p.stride)
    return weight_gradient(p.window, gradient, stuffed, kernel=kernel)


# --- Weights ------------------------------------------------------------------


def fold_batch_normalization(
    weights: npt.ArrayLike,
    biases: npt.ArrayLike | None,
    *,
    mean: npt.ArrayLike = 0.0,
    variance: npt.ArrayLike = 1.0,
    gamma: npt.ArrayLike = 1.0,
    beta: npt.ArrayLike = 0.0,
    epsilon: float = 0.0,
) -> tuple[Array, Array]:
    """Return weights and biases that include a batch normalization of the result."""
    weights = np.asarray(weights, np.float64)
    mean, variance, gamma, beta, biases = (
        np.broadcast_to(np.asarray(v, np.float64), weights.shape[:1])
        for v in (mean, variance, gamma, beta, 0.0 if biases is None else biases)
    )
    scale = gamma / np.sqrt(variance + epsilon)
    per_output = scale.reshape(-1, *[1] * (weights.ndim - 1))
    return weights * per_output, biases * scale + beta - scale * mean


def dequantize_linear(codes: npt.NDArray[np.uint8], ranges: npt.ArrayLike) -> Array:
    """Weights of bytes spread evenly over the (min, max) of their output channel."""
    low, high = np.asarray(ranges, np.float64).T.reshape(2, -1, *[1] * (codes.ndim - 1))
    return codes / 255.0 * (high - low) + low


def dequantize_table(codes: npt.NDArray[np.uint8], table: npt.ArrayLike) -> Array:
    """Weights of bytes looked up in a table of 256."""
    return np.asarray(table, np.float64)[codes]


def kernel_weights(weights: npt.ArrayLike, dtype: npt.DTypeLike = np.float16) -> npt.NDArray[Any]:
    """Weights as the kernel multiplies with them: float16 unless the data source says otherwise."""
    return np.asarray(weights, np.float32).astype(dtype)
