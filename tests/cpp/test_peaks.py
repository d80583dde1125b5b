"""What the benchmarks measure kernels against: plausible numbers, refused nonsense."""

import re

import pytest
from mpsgrad import _core


def test_fma_peak_is_that_of_a_processor():
    assert 1e8 < _core.fma_peak(0.01) < 1e13


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("size", [4, 1000, 1 << 20])
def test_copy_bandwidth_is_that_of_a_memory(size, streaming):
    assert 1e6 < _core.copy_bandwidth(size, streaming, 0.01) < 1e13


@pytest.mark.parametrize("size", [4, 1000, 1 << 20])
def test_read_bandwidth_is_that_of_a_memory(size):
    assert 1e6 < _core.read_bandwidth(size, 0.01) < 1e13


REJECTED = {
    "no time": (lambda: _core.fma_peak(0.0), "fma_peak: seconds is 0,"),
    "no number": (lambda: _core.fma_peak(float("nan")), "fma_peak: seconds is nan,"),
    "no bytes": (lambda: _core.copy_bandwidth(3, False, 0.01), "copy_bandwidth: bytes is 3,"),
    "nothing": (lambda: _core.read_bandwidth(3, 0.01), "read_bandwidth: bytes is 3,"),
    "past": (lambda: _core.copy_bandwidth(64, True, -1.0), "copy_bandwidth: seconds is -1,"),
}


@pytest.mark.parametrize(("call", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
