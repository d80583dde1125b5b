"""The states that carry scale and offset, or mean and variance, into normalization kernels."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.rejects import rejects

STATES = {
    "gamma_and_beta": (mg.NormalizationGammaAndBetaState, "gamma", "beta"),
    "mean_and_variance": (mg.NormalizationMeanAndVarianceState, "mean", "variance"),
}


@pytest.fixture(params=STATES, ids=str)
def kind(request):
    return STATES[request.param]


def test_arrays_are_copied(device, kind):
    cls, first, second = kind
    values = np.arange(5, dtype=np.float32)
    state = cls(values, -values, device=device)
    values[:] = 9
    np.testing.assert_array_equal(getattr(state, first).to_numpy(), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(getattr(state, second).to_numpy(), [0, -1, -2, -3, -4])
    assert (state.is_temporary, state.read_count) == (False, 0)


def test_buffers_are_used_where_they_are(device, kind):
    cls, first, second = kind
    a, b = mg.Buffer(device, 12), mg.Buffer(device, np.ones(3, np.float32))
    state = cls(a, b)
    assert getattr(state, first) is a
    assert getattr(state, second) is b
    np.asarray(a)[:] = 2
    np.testing.assert_array_equal(getattr(state, first).to_numpy(), [2, 2, 2])
    for name in (first, second):  # the contents may be written, the properties not
        with rejects(AttributeError, f"of '{cls.__name__}' object has no setter"):
            setattr(state, name, a)


def test_any_numbers_become_float32(device, kind):
    cls, first, second = kind
    state = cls([1, 2], np.array([0.5, 0.25]), device=device)
    assert getattr(state, first).to_numpy().dtype == np.float32
    np.testing.assert_array_equal(getattr(state, second).to_numpy(), [0.5, 0.25])


def test_temporary_ones_are_private(queue, kind):
    cls, first, second = kind
    command_buffer = queue.command_buffer()
    state = cls.temporary(command_buffer, 6)
    assert (state.is_temporary, state.read_count) == (True, 1)
    for name in (first, second):
        assert getattr(state, name).nbytes >= 24
        with pytest.raises(RuntimeError, match="private to the device"):
            getattr(state, name).to_numpy()
    state.read_count = 0
    assert getattr(state, first) is None
    assert getattr(state, second) is None


def test_rejections(device, queue, kind):
    cls, first, second = kind
    name = cls.__name__

    def refused(error, words, *arguments, **options):
        with pytest.raises(error, match=re.escape(words)):
            cls(*arguments, **options)

    refused(
        ValueError,
        f"{name}: {first} and {second} must have equal lengths, got 2 and 3",
        [1, 2],
        [1, 2, 3],
        device=device,
    )
    refused(ValueError, f"{name}: {first} must not be empty", [], [], device=device)
    refused(ValueError, f"{name}: {second} must have one axis", [1], [[1]], device=device)
    refused(TypeError, f"{name}: {first} must be an array of numbers", "ab", [1], device=device)
    refused(TypeError, f"{name}: device must be a Device, a kind or None", [1], [1], device=3)
    for channels in (0, -1, 8193):
        with pytest.raises(
            ValueError, match=re.escape(f"must be between 1 and 8192, got {channels}")
        ):
            cls.temporary(queue.command_buffer(), channels)
    words = f"{name}.temporary: number_of_feature_channels must be an integer, got float"
    with pytest.raises(TypeError, match=re.escape(words)):
        cls.temporary(queue.command_buffer(), 1.5)
