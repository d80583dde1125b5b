"""Random legal convolutions, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.convolution.cases import ConvolutionCase, TransposeCase
from tests.core.fuzz import methods, pairs


@st.composite
def channels(draw: st.DrawFn) -> tuple[int, int, int, bool]:
    """Inputs, outputs, groups and whether it is depthwise."""
    if draw(st.booleans()):
        return draw(st.integers(1, 9)), draw(st.integers(1, 9)), 1, False
    if draw(st.booleans()):
        count = draw(st.integers(1, 9))
        return count, count, 1, True
    groups = draw(st.integers(2, 3))
    inputs, outputs = (4 * groups * draw(st.integers(1, 2)) for _ in range(2))
    return inputs, outputs, groups, False


@st.composite
def convolutions(draw: st.DrawFn) -> ConvolutionCase:
    """Any window over a small image, with the offset a policy gives it or another."""
    inputs, outputs, groups, depthwise = draw(channels())
    width, height = draw(pairs(1, 9))
    kernel, stride, dilation = draw(pairs(1, 5)), draw(pairs(1, 4)), draw(pairs(1, 3))
    return ConvolutionCase(
        "fuzz",
        (draw(st.integers(1, 3)), height, width, inputs),
        outputs,
        kernel,
        stride,
        dilation,
        groups,
        depthwise,
        draw(st.sampled_from(["zero", "clamp"])),
        draw(methods((width, height), kernel, dilation)),
        shift=draw(st.just((0, 0)) | pairs(-3, 3)),
        grow=draw(st.just((0, 0)) | pairs(0, 2)),
    )


@st.composite
def transposes(draw: st.DrawFn) -> TransposeCase:
    """Any transposed convolution of a small image."""
    inputs, outputs, groups, _ = draw(channels().filter(lambda drawn: not drawn[3]))
    width, height = draw(pairs(1, 5))
    kernel, stride = draw(pairs(1, 5)), draw(pairs(1, 4))
    stuffed = (width - 1) * stride[0] + 1, (height - 1) * stride[1] + 1
    return TransposeCase(
        "fuzz",
        (draw(st.integers(1, 3)), height, width, inputs),
        outputs,
        kernel,
        stride,
        groups,
        draw(methods(stuffed, kernel, (1, 1))),
        draw(st.just((0, 0)) | pairs(-2, 2)),
        draw(st.just((0, 0)) | pairs(-3, 3)),
        draw(st.just((0, 0)) | pairs(0, 2)),
    )
