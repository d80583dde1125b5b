"""Small networks in float64, written without nodes: what graphs of the same layers must compute.

Only the forward pass: gradients are its central differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


def convolve(x: Array, weights: Array, biases: Array) -> Array:
    """Correlate (N, H, W, I) with OHWI weights of odd size; zeros around, the size stays."""
    outputs, rows, columns, _ = weights.shape
    up, left = rows // 2, columns // 2
    padded = np.pad(x, ((0, 0), (up, up), (left, left), (0, 0)))
    result = np.zeros((*x.shape[:3], outputs)) + biases
    for i in range(rows):
        for j in range(columns):
            part = padded[:, i : i + x.shape[1], j : j + x.shape[2], :]
            result += np.einsum("nyxi,oi->nyxo", part, weights[:, i, j, :])
    return result


def convolve_transposed(x: Array, weights: Array, biases: Array, rows: int, columns: int) -> Array:
    """Correlate x, a zero after each of its pixels, with weights of odd size."""
    spread = np.zeros((x.shape[0], rows, columns, x.shape[3]))
    spread[:, ::2, ::2] = x
    return convolve(spread, weights, biases)


def relu(x: Array) -> Array:
    """Return x where it is positive."""
    return np.maximum(x, 0.0)


def mean_pool(x: Array) -> Array:
    """Return the means of blocks of 2 x 2 pixels."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4))


def concatenate(*images: Array) -> Array:
    """Join channels, each image from a multiple of four on."""
    padded = [np.pad(image, ((0, 0),) * 3 + ((0, -image.shape[-1] % 4),)) for image in images]
    return np.concatenate(padded, axis=-1)


def squared_error(x: Array, labels: Array, weight: float = 1.0) -> float:
    """Return the sum of squared differences."""
    return float(weight * np.sum((x - labels) ** 2))


def residual(x: Array, labels: Array, parameters: list[tuple[Array, Array]]) -> float:
    """Loss of conv0, a block of two convolutions around which its input goes, and a ReLU."""
    (w0, b0), (w1, b1), (w2, b2) = parameters
    i0 = convolve(x, w0, b0)
    i3 = convolve(relu(convolve(i0, w1, b1)), w2, b2)
    return squared_error(relu(i3 + i0), labels, 0.25)


def branches(x: Array, labels: Array, parameters: list[tuple[Array, Array]]) -> float:
    """Loss of two convolutions of x, joined, and a third over them."""
    (wa, ba), (wb, bb), (wc, bc) = parameters
    joined = concatenate(convolve(x, wa, ba), convolve(x, wb, bb))
    return squared_error(convolve(joined, wc, bc), labels)


def tied(x: Array, labels: Array, parameters: list[tuple[Array, Array]]) -> float:
    """Loss of one convolution applied twice, with a mean pooling between."""
    ((w, b),) = parameters
    return squared_error(convolve(mean_pool(convolve(x, w, b)), w, b), labels)


def undone(x: Array, labels: Array, parameters: list[tuple[Array, Array]]) -> float:
    """Loss of a convolution of stride 2, a ReLU, and a transposed one to the size of x."""
    (w0, b0), (w1, b1) = parameters
    small = relu(convolve(x, w0, b0)[:, ::2, ::2])
    return squared_error(convolve_transposed(small, w1, b1, *x.shape[1:3]), labels)


def products(x: Array, y: Array) -> float:
    """Sum of (2 x * 3 y - x + 1) * x, with y one pixel for all."""
    return float(np.sum((2.0 * x * (3.0 * y) - x + 1.0) * x))
