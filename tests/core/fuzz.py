"""Random geometry, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.core.oracle import extent


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    """(x, y), each from `low` to `high`."""
    return st.tuples(st.integers(low, high), st.integers(low, high))


def methods(
    source_size: tuple[int, int], kernel: tuple[int, int], dilation: tuple[int, int]
) -> st.SearchStrategy[int]:
    """Every padding method that places at least one window."""
    windows = (extent(k, d) for k, d in zip(kernel, dilation, strict=True))
    fits = all(window <= n for window, n in zip(windows, source_size, strict=True))
    sizes = (0x00, 0x10, 0x20) if fits else (0x10, 0x20)
    return st.builds(
        lambda *fields: sum(fields),
        st.sampled_from(sizes),
        st.sampled_from((0x0, 0x4, 0x8, 0xC)),
        st.sampled_from((0, 1, 2)),
    )
