"""Normalizations: printed gradients, statistics, and values that change between encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth, column

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


# ---- local ones: by their neighbours


def _local(on: mg.Device, name: str, sizes: tuple[int, ...], x: Any, g: Any = None) -> Any:
    """Return result and gradient of a local normalization whose settings are 1."""
    forward = getattr(mg, name)(*sizes, device=on)
    gradient = getattr(mg, f"{name}Gradient")(*sizes, device=on)
    for kernel in (forward, gradient):
        kernel.alpha = kernel.beta = kernel.delta = 1.0
    y, state = forward(x, with_state=True)
    return y[..., 0], gradient(np.ones_like(x) if g is None else g, x, state)


def _cross_channel(on: mg.Device) -> Any:
    dx = _local(on, "CrossChannelNormalization", (3,), column(1, 1, 1, 1, 1))[1]
    return dx[0, 0, :3]


def _spatial(on: mg.Device) -> Any:
    dx = _local(on, "SpatialNormalization", (3, 3), np.ones((5, 5, 1), np.float32))[1]
    return dx[[2, 0], [2, 0], 0]


def _of_ramp(on: mg.Device, name: str) -> Any:
    """Return the gradient, of window 3, for a ramp with a gradient of one pixel."""
    ramp = np.arange(1, 17, dtype=np.float32).reshape(4, 4, 1)
    incoming = np.zeros_like(ramp)
    incoming[1, 1] = 1
    return _local(on, name, (3, 3), ramp, incoming)[1][..., 0]


def _spatial_ramp(on: mg.Device) -> Any:
    return _of_ramp(on, "SpatialNormalization")[[0, 1, 2], [0, 1, 2]]


def _contrast_ramp(on: mg.Device) -> Any:
    return _of_ramp(on, "LocalContrastNormalization")[[0, 1, 1, 2], [0, 0, 1, 2]]


def _even_window(on: mg.Device) -> Any:
    square = np.array([1, 2, 3, 4], np.float32).reshape(2, 2, 1)
    return _local(on, "SpatialNormalization", (2, 2), square)[0]


# ---- those of a batch, an instance, a group


def _batch(on: mg.Device) -> Any:
    x = np.array([1, 2, 3, 6], np.float32).reshape(2, 1, 2, 1)
    source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=1)
    _, state = mg.BatchNormalization(source, device=on)(x, with_state=True)
    return np.concatenate([state.mean.to_numpy(), state.variance.to_numpy()])


def _row() -> Any:
    return np.array([1, 3], np.float32).reshape(1, 2, 1)


def _gradient_of_first() -> Any:
    return np.eye(1, 2, dtype=np.float32)[..., None]


def _instance(
    on: mg.Device, gamma: list[float] | None
) -> tuple[mg.ArrayInstanceNormalizationDataSource, mg.InstanceNormalization]:
    source = mg.ArrayInstanceNormalizationDataSource(
        None if gamma is None else np.array(gamma, np.float32),
        number_of_feature_channels=1,
        epsilon=3.0,
    )
    return source, mg.InstanceNormalization(source, device=on)


def _without_gamma(on: mg.Device) -> Any:
    forward = _instance(on, None)[1]
    y, state = forward(_row(), with_state=True)
    dx = mg.InstanceNormalizationGradient(device=on)(_gradient_of_first(), _row(), state)
    return np.concatenate([y.ravel(), dx.ravel(), state.gradient_for_gamma.to_numpy()])


def _live_gamma(on: mg.Device) -> Any:
    source, forward = _instance(on, [2.0])
    _, state = forward(_row(), with_state=True)
    source.gamma = np.full(1, 4, np.float32)
    forward.reload_gamma_and_beta_from_data_source()
    return mg.InstanceNormalizationGradient(device=on)(_gradient_of_first(), _row(), state)


def _before_and_after_reload(
    on: mg.Device, kernel: mg.UnaryKernel, x: Any, change: Callable[[], None]
) -> Any:
    """Encode, change what the kernel reads of its data source, encode again, and run all of it."""
    images = mg.ImageBatch.from_array(on, x)
    results = [mg.ImageBatch.from_array(on, np.zeros_like(x)) for _ in range(2)]
    with on.command_queue().command_buffer() as work:
        kernel.encode(work, images, results[0])
        change()
        kernel.encode(work, images, results[1])
        for result in results:
            mg.synchronize(result, work)
    work.wait_until_completed()
    return np.concatenate([result.to_array().ravel() for result in results])


def _reload(on: mg.Device) -> Any:
    source, forward = _instance(on, [2.0])

    def change() -> None:
        source.gamma = np.full(1, 4, np.float32)
        forward.reload_gamma_and_beta_from_data_source()

    return _before_and_after_reload(on, forward, _row()[None], change)


def _groups(on: mg.Device) -> Any:
    source = mg.ArrayGroupNormalizationDataSource(
        number_of_feature_channels=4, number_of_groups=2, epsilon=3.0
    )
    return mg.GroupNormalization(source, device=on)(column(1, 3, 7, 9))


def _shifted(on: mg.Device) -> Any:
    forward = _instance(on, [2.0])[1]
    forward.offset = mg.Offset(1, 0)
    x = np.array([1, 3, 5], np.float32).reshape(1, 1, 3, 1)
    images = mg.ImageBatch.from_array(on, x)
    result = mg.ImageBatch.from_array(on, np.zeros((1, 1, 2, 1), np.float32))
    with on.command_queue().command_buffer() as work:
        forward.encode(work, images, result)
        mg.synchronize(result, work)
    work.wait_until_completed()
    return result.to_array()


QUESTIONS: list[Question] = [
    OnBoth(
        "normalization 1",
        "cross-channel gradient, 5 channels of 1, kernel 3: the exact derivative, or -0.62 "
        "-1.22 -1 as printed in Apple's header",
        _cross_channel,
    ),
    OnBoth(
        "normalization 2",
        "spatial gradient, 5x5 of 1, kernel 3, centre and corner: exact, or -4 -3.14201",
        _spatial,
    ),
    OnBoth(
        "normalization 3",
        "spatial gradient of a ramp, kernel 3: exact, or -0.1728 -0.010131 -0.007425",
        _spatial_ramp,
    ),
    OnBoth(
        "normalization 4",
        "local contrast gradient of a ramp, kernel 3: exact, or -0.001138 -0.013992 0.072072 "
        "-0.009009",
        _contrast_ramp,
    ),
    OnBoth(
        "normalization 5",
        "spatial normalization, kernel 2: the window leans to the smaller index",
        _even_window,
    ),
    OnBoth(
        "normalization 6",
        "batch statistics of 1 2 and 3 6: the mean, and the variance without a correction",
        _batch,
    ),
    OnBoth(
        "normalization 7",
        "an instance without gamma: result, gradient, and gradient for gamma",
        _without_gamma,
    ),
    OnBoth(
        "normalization 8",
        "gradient of an instance whose gamma went from 2 to 4 after the forward pass: by the 4",
        _live_gamma,
    ),
    OnBoth(
        "normalization 9",
        "results of 1 3 before and after a reload of gamma 2 to 4, none of it committed before",
        _reload,
    ),
    OnBoth(
        "normalization 10",
        "1 3 7 9 in two groups: the first two channels are one",
        _groups,
    ),
    OnBoth(
        "normalization 11",
        "1 3 5 from the second pixel on: the statistics of all three",
        _shifted,
    ),
]
