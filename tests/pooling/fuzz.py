"""Random legal poolings, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.core.fuzz import methods, pairs
from tests.pooling.cases import PoolingCase
from tests.pooling.oracle import KINDS, Pooling


@st.composite
def poolings(draw: st.DrawFn) -> tuple[PoolingCase, Pooling]:
    """A case and a kernel for it; dilated ones are maxima."""
    kind = draw(st.sampled_from(KINDS))
    width, height = draw(pairs(1, 9))
    kernel, stride = draw(pairs(1, 5)), draw(pairs(1, 5))
    dilation = draw(pairs(1, 3)) if kind == "MAX" else (1, 1)
    case = PoolingCase(
        "fuzz",
        (draw(st.integers(1, 3)), height, width, draw(st.integers(1, 9) | st.integers(16, 40))),
        kernel,
        stride,
        dilation,
        draw(methods((width, height), kernel, dilation)),
        shift=draw(st.just((0, 0)) | pairs(-4, 4)),
        grow=draw(st.just((0, 0)) | pairs(0, 3)),
    )
    edge = draw(st.sampled_from(["zero", "clamp"]))
    border = draw(pairs(0, 3)) if kind == "AVERAGE" else (0, 0)
    return case, case.pooling(kind, edge=edge, zero_pad=border)
