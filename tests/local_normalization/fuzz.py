"""Random legal local normalizations, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.local_normalization.oracle import CrossChannel, LocalContrast, Spatial

Parameters = CrossChannel | Spatial | LocalContrast
Shape = tuple[int, int, int, int]


@st.composite
def normalizations(draw: st.DrawFn) -> tuple[Parameters, Shape]:
    """Parameters and a source's shape; the denominators stay away from 0."""
    shape = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 20)),
    )
    size = draw(st.integers(1, 24))
    common = {
        "alpha": draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])),
        "beta": draw(st.sampled_from([-1.0, 0.0, 0.5, 0.75, 2.0, 5.0])),
        "delta": draw(st.sampled_from([0.5, 1.0, 4.0])),
    }
    kind = draw(st.sampled_from([CrossChannel, Spatial, LocalContrast]))
    if kind is LocalContrast:
        values = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
        common |= {"p0": draw(values), "pm": draw(values), "ps": draw(values)}
    return kind(size, **common), shape
