"""Reshape, pad and slice: the order of elements, borders, what is outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mpsgrad as mg
from mpsgrad._command_line.probe.question import OnBoth

if TYPE_CHECKING:
    from mpsgrad._command_line.probe.question import Question

__all__ = ["QUESTIONS"]


def _source() -> Any:
    return np.arange(32, dtype=np.float32).reshape(1, 2, 2, 8)


def _border(on: mg.Device) -> Any:
    pad = mg.Pad((3, 0, 0), (2, 0, 0), device=on)
    pad.edge_mode = mg.EdgeMode.MIRROR
    row = np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
    result, states = pad(row, with_state=True)
    powers = 2 ** np.arange(8, dtype=np.float32).reshape(result.shape)
    gradient = mg.PadGradient(device=on)(powers, row, states)
    return np.concatenate([result.ravel(), gradient.ravel()])


def _box(on: mg.Device) -> Any:
    part = mg.Slice(device=on)
    part.edge_mode, part.offset = mg.EdgeMode.CLAMP, mg.Offset(1, 1)
    part.clip_rect = mg.Region((0, 0), (2, 1))
    part.source_feature_channel_offset = 4
    return part(_source())


QUESTIONS: list[Question] = [
    OnBoth(
        "reshape 1",
        "a reshape of 2x2 pixels of 8 channels to 1x2 of 16: the order of the elements",
        lambda on: mg.Reshape(device=on)(_source(), (1, 2, 16)),
    ),
    OnBoth(
        "reshape 2",
        "a mirrored border of 3 and 2 around 0 1 2, and its gradient of powers of 2",
        _border,
    ),
    OnBoth("reshape 3", "a slice that reaches outside the source, with the nearest pixels", _box),
]
