"""Batch normalization: inference, the forward pass of training, and a whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpsgrad as mg
import numpy as np

from . import layers
from .check import Samples, places
from .suite import Case, Output, Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .layers import Line
    from .suite import Context, Request

__all__ = ["cases"]

KERNELS = ("inference", "training", "step")
EPSILON = 1e-3
SAMPLES = 1000


def cases(request: Request) -> Iterator[Case]:
    """Yield every kernel on every layer."""
    for line in layers.read("images"):
        if request.quick:
            line = line.quick()
        for batch in request.batches:
            for dtype in request.dtypes:
                for name in KERNELS:
                    yield Case(
                        "batch_normalization",
                        name,
                        line.name,
                        batch,
                        dtype,
                        lambda context, o=(line, batch, dtype, name): build(context, *o),
                        (batch, *line.shape),
                    )


def build(context: Context, line: Line, batch: int, dtype: str, name: str) -> Work:
    """Make arrays and kernels."""
    shape, channels = (batch, *line.shape), line.shape[2]
    x, g = context.normal(shape, dtype), context.normal(shape, dtype)
    gamma = np.linspace(0.5, 2, channels, dtype=np.float32)
    beta = np.linspace(-1, 1, channels, dtype=np.float32)
    mean, variance = (
        _statistics(x) if name != "inference" else (0.1 * beta.astype(float), gamma.astype(float))
    )
    source = mg.ArrayBatchNormalizationDataSource(
        gamma, beta, mean.astype(np.float32), variance.astype(np.float32), epsilon=EPSILON
    )
    forward = mg.BatchNormalization(source, device=context.device)
    sources, results = context.batch(x), context.result(shape, dtype)
    index = places(context.rng, shape, SAMPLES)
    c = index[3]
    at = x[index].astype(np.float64)
    r = 1 / np.sqrt(variance + float(np.float32(EPSILON)))
    factor = gamma * r
    exact = (at - mean[c]) * factor[c] + beta[c]
    scale = (np.abs(at) + np.abs(mean[c])) * factor[c] + np.abs(beta[c])
    # Statistics and coefficients are rounded as well.
    outputs = [Output("y", lambda: context.read(results), Samples(index, exact, scale, 9))]
    arrays = 2

    if name == "inference":

        def encode(buffer: mg.CommandBuffer) -> None:
            forward.encode_batch(buffer, sources, results)

    else:
        statistics = mg.BatchNormalizationStatistics(device=context.device)
        state = forward.result_state(sources[0], results[0])

        def encode(buffer: mg.CommandBuffer) -> None:
            statistics.encode_batch(buffer, sources, state)
            forward.encode_batch(buffer, sources, results, batch_normalization_state=state)

    run = encode
    if name == "step":
        incoming, gradients = context.batch(g), context.result(shape, dtype)
        sums = mg.BatchNormalizationStatisticsGradient(device=context.device)
        gradient = mg.BatchNormalizationGradient(device=context.device)

        def run(buffer: mg.CommandBuffer) -> None:
            encode(buffer)
            sums.encode_batch(buffer, incoming, sources, state)
            gradient.encode_batch(buffer, incoming, sources, state, allocator=gradients)

        of_gamma, of_beta = _sums(x, g, mean, r)
        count = x.size // channels
        normalized, arriving = (at - mean[c]) * r[c], g[index].astype(np.float64)
        by_beta, by_gamma = (of_beta / count)[c], (of_gamma / count)[c]
        exact = factor[c] * (arriving - by_beta - normalized * by_gamma)
        scale = factor[c] * (np.abs(arriving) + np.abs(by_beta) + np.abs(normalized * by_gamma))
        samples = Samples(index, exact, scale + 1e-3 * factor[c], 16)
        outputs.append(Output("dx", lambda: context.read(gradients), samples))
        arrays = 4
    numbers = [a.astype(dtype) for a in (gamma, beta)]
    stored = [a.astype(np.float32).astype(dtype) for a in (mean, variance)]
    return Work(
        lambda: context.run(run),
        outputs,
        bytes=x.nbytes * arrays,
        arrays=x.nbytes * arrays,
        peers={"torch": lambda peer: torch_calls(peer, name, x, g, numbers, stored)},
    )


def torch_calls(
    peer: Any, name: str, x: Any, g: Any, numbers: list[Any], stored: list[Any]
) -> dict[str, Any]:
    """PyTorch: the operators behind ``batch_norm``, in training without running averages."""
    gamma, beta = (peer.array(array) for array in numbers)
    averages = [peer.array(array) for array in stored] if name == "inference" else [None, None]
    training = name != "inference"

    def forward(x: Any) -> Any:
        return peer.aten.native_batch_norm(x, gamma, beta, *averages, training, 0.1, EPSILON)

    def step(x: Any, g: Any) -> Any:
        y, mean, inverse = forward(x)
        mask = [True, True, True]
        gradients = peer.aten.native_batch_norm_backward(
            g, x, gamma, None, None, mean, inverse, True, EPSILON, mask
        )
        return y, gradients[0]

    if name == "step":
        return dict(peer.images(step, [x, g]))
    return dict(peer.images(lambda x: forward(x)[0], [x]))


def _statistics(x: Any) -> tuple[Any, Any]:
    """Mean and biased variance of each channel, image by image."""
    count = x.size // x.shape[-1]
    mean = sum(image.sum(axis=(0, 1), dtype=np.float64) for image in x) / count
    squares = sum(((image.astype(np.float64) - mean) ** 2).sum(axis=(0, 1)) for image in x)
    return mean, squares / count


def _sums(x: Any, g: Any, mean: Any, r: Any) -> tuple[Any, Any]:
    """Gradients of gamma and beta."""
    of_gamma = of_beta = 0.0
    for image, arriving in zip(x, g, strict=True):
        arriving = arriving.astype(np.float64)
        of_beta = of_beta + arriving.sum(axis=(0, 1))
        of_gamma = of_gamma + (arriving * (image.astype(np.float64) - mean) * r).sum(axis=(0, 1))
    return of_gamma, of_beta
