"""Edges, read counts and archives: what all kernels share."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad import _core
from mpsgrad._command_line.probe.question import OfFramework, OnBoth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _clamped_data_gradient(on: mg.Device) -> Any:
    weights = np.array([1.0, 2.0, 4.0], np.float32).reshape(1, 1, 3, 1)
    descriptor = mg.ConvolutionDescriptor(3, 1, input_feature_channels=1, output_feature_channels=1)
    source = mg.ArrayConvolutionDataSource(weights, descriptor=descriptor)
    forward = mg.Convolution(source, device=on)
    forward.edge_mode = mg.EdgeMode.CLAMP
    x = np.array([1.0, 3.0, 5.0, 7.0], np.float32).reshape(1, 1, 4, 1)
    y, state = forward(x, with_state=True)
    gradient = mg.ConvolutionGradient(source, device=on)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that the border is the question
        dx = gradient(np.ones_like(y), x, state)
    return dx[0, 0, [0, -1], 0]


def _reads_of_shared_source(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    yield (
        "reads that one encode counts on a temporary image that is both of its sources",
        2,
        _core._probe_reads_of_shared_source(device),
    )


def _archived_properties(device: mg.Device) -> Iterator[tuple[str, Any, Any]]:
    for name, survives in _core._probe_archived_properties(device):
        yield (
            f"an archive of MPSCNNPoolingAverage keeps {name}",
            "kept",
            "kept" if survives else "lost",
        )


QUESTIONS: list[Question] = [
    OnBoth(
        "H5",
        "data gradient of a convolution that clamped, weights 1 2 4: the first and last pixel",
        _clamped_data_gradient,
    ),
    OfFramework("H6", _reads_of_shared_source),
    OfFramework("H7", _archived_properties),
]
