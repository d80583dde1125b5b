"""Sizes, offsets, formats and channels that Apple's classes give their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad import _core
from mpsgrad._command_line.probe.question import OfFramework

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]

_SIDES = {
    "top left": mg.PaddingMethod.ALIGN_TOP_LEFT,
    "bottom right": mg.PaddingMethod.ALIGN_BOTTOM_RIGHT,
}


def _placement(device: mg.Device, width: int, kernel: int, stride: int, method: int) -> list[int]:
    """Return width and offset of a result as mpsgrad has them."""
    pooling = mg.PoolingMax(kernel, 1, stride, 1, device=device)
    pooling.padding = mg.DefaultPadding(method)
    image = mg.Image(device, mg.ImageDescriptor(width=width, height=1, feature_channels=1))
    result = pooling.destination_descriptor(image)
    return [result.width, pooling.offset.x]


def _placements(
    device: mg.Device, cases: list[tuple[str, int, int, int, int]]
) -> Iterator[tuple[str, Any, Any]]:
    for words, width, kernel, stride, method in cases:
        _, answered_width, _, _, _, offset = _core._probe_pooling_descriptor(
            device, width, kernel, stride, method
        )
        yield (
            f"{words}: width and offset of a max pooling, kernel {kernel}, stride {stride}, "
            f"of {width} pixels",
            _placement(device, width, kernel, stride, method),
            [answered_width, offset[0]],
        )


def _rounding(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    valid = mg.PaddingMethod.SIZE_VALID_ONLY
    bottom_right = valid | mg.PaddingMethod.ADD_REMAINDER_TO_BOTTOM_RIGHT
    return _placements(
        device,
        [
            ("rounding of unread pixels, remainder top left", 7, 2, 3, valid),
            ("rounding of unread pixels, remainder bottom right", 7, 2, 3, bottom_right),
        ],
    )


def _alignment(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    same = mg.PaddingMethod.SIZE_SAME
    return _placements(
        device,
        [
            *((f"same, aligned {side}", 6, 3, 2, same | way) for side, way in _SIDES.items()),
            *((f"valid only, aligned {side}", 8, 1, 4, way) for side, way in _SIDES.items()),
        ],
    )


def _kernels(device: mg.Device) -> dict[str, tuple[mg.UnaryKernel, mg.GradientKernel]]:
    """Return mpsgrad's kernels that the prober asks Apple's about, by the forward class."""
    tanh = mg.NeuronDescriptor(mg.NeuronType.TANH, 1.0, 1.0)
    window, dilated = (3, 3, 2, 2), (2, 2, 2, 2, 1, 1)
    weights, full = (
        mg.ArrayConvolutionDataSource(np.zeros((4, side, side, 4), np.float32)) for side in (1, 5)
    )
    instances = mg.ArrayInstanceNormalizationDataSource(number_of_feature_channels=4)
    groups = mg.ArrayGroupNormalizationDataSource(number_of_feature_channels=4, number_of_groups=2)
    return {
        "Neuron": (mg.Neuron(tanh, device=device), mg.NeuronGradient(tanh, device=device)),
        "Dropout": (mg.Dropout(0.5, 1, device=device), mg.DropoutGradient(0.5, device=device)),
        "SoftMax": (mg.SoftMax(device=device), mg.SoftMaxGradient(device=device)),
        "LogSoftMax": (mg.LogSoftMax(device=device), mg.LogSoftMaxGradient(device=device)),
        "GramMatrixCalculation": (
            mg.GramMatrixCalculation(device=device),
            mg.GramMatrixCalculationGradient(device=device),
        ),
        "Pad": (mg.Pad(device=device), mg.PadGradient(device=device)),
        "PoolingMax": (
            mg.PoolingMax(*window, device=device),
            mg.PoolingMaxGradient(*window, device=device),
        ),
        "PoolingAverage": (
            mg.PoolingAverage(*window, device=device),
            mg.PoolingAverageGradient(*window, device=device),
        ),
        "PoolingL2Norm": (
            mg.PoolingL2Norm(*window, device=device),
            mg.PoolingL2NormGradient(*window, device=device),
        ),
        "DilatedPoolingMax": (
            mg.DilatedPoolingMax(*dilated, device=device),
            mg.DilatedPoolingMaxGradient(*dilated, device=device),
        ),
        "Convolution": (
            mg.Convolution(weights, device=device),
            mg.ConvolutionGradient(weights, device=device),
        ),
        "FullyConnected": (
            mg.FullyConnected(full, device=device),
            mg.FullyConnectedGradient(full, device=device),
        ),
        "InstanceNormalization": (
            mg.InstanceNormalization(instances, device=device),
            mg.InstanceNormalizationGradient(device=device),
        ),
        "GroupNormalization": (
            mg.GroupNormalization(groups, device=device),
            mg.GroupNormalizationGradient(device=device),
        ),
        "CrossChannelNormalization": (
            mg.CrossChannelNormalization(3, device=device),
            mg.CrossChannelNormalizationGradient(3, device=device),
        ),
        "SpatialNormalization": (
            mg.SpatialNormalization(3, 3, device=device),
            mg.SpatialNormalizationGradient(3, 3, device=device),
        ),
        "LocalContrastNormalization": (
            mg.LocalContrastNormalization(3, 3, device=device),
            mg.LocalContrastNormalizationGradient(3, 3, device=device),
        ),
    }


def _descriptors(
    device: mg.Device, channel_format: mg.ChannelFormat, channel_offset: int
) -> dict[str, mg.ImageDescriptor]:
    """Return what mpsgrad's kernels make of the images that the prober shows Apple's."""

    def image(width: int, height: int, of_format: mg.ChannelFormat) -> mg.Image:
        return mg.Image(
            device,
            mg.ImageDescriptor(
                width=width, height=height, feature_channels=4, channel_format=of_format
            ),
        )

    formats = mg.ChannelFormat
    other = formats.FLOAT16 if channel_format == formats.FLOAT32 else formats.FLOAT32
    result = {}
    for name, (forward, gradient) in _kernels(device).items():
        forward.destination_feature_channel_offset = channel_offset
        source = image(5, 5, channel_format)
        made = forward.destination_descriptor(source)
        result[name] = made
        destination = mg.Image(device, made)
        states = forward.result_state(source, destination)
        with device.command_queue().command_buffer() as work:  # some states must have been filled
            forward.encode(work, source, destination, destination_state=states)
        gradient.destination_feature_channel_offset = channel_offset
        incoming = image(made.width, made.height, channel_format)
        second = image(5, 5, other)
        states = states if isinstance(states, list) else [states]
        result[f"{name}Gradient"] = gradient.destination_descriptor([incoming, second], states)
    return result


def _short(apple_class: str) -> str:
    return apple_class.removeprefix("MPSCNN").removeprefix("MPSNN")


def _formats(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    chosen = mg.ChannelFormat.FLOAT32
    assumed = _descriptors(device, chosen, 0)
    for apple_class, _, _, _, channel_format, _ in _core._probe_descriptors(device, chosen, 0):
        yield (
            f"{apple_class}: format of the result of a float32 source or gradient",
            assumed[_short(apple_class)].channel_format.name,
            channel_format.name,
        )


def _channels(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    chosen = mg.ChannelFormat.FLOAT32
    assumed = _descriptors(device, chosen, 4)
    for apple_class, _, _, channels, _, _ in _core._probe_descriptors(device, chosen, 4):
        yield (
            f"{apple_class}: channels of a result of 4, destinationFeatureChannelOffset 4",
            assumed[_short(apple_class)].feature_channels,
            channels,
        )


QUESTIONS: list[Question] = [
    OfFramework("H1", _rounding),
    OfFramework("H2", _alignment),
    OfFramework("H3", _formats),
    OfFramework("H4", _channels),
]
