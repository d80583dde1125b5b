"""The checks of tests/repeats.py see what they are for."""

import threading

import mpsgrad as mg
import numpy as np
import pytest

from tests.repeats import call_at_once, check_thread_independence, threads


def test_threads_are_those_of_before_after_a_failure():
    before = mg.get_num_threads()
    with pytest.raises(AssertionError, match="seen"), threads(before + 1):
        raise AssertionError("seen" if mg.get_num_threads() == before + 1 else "other")
    assert mg.get_num_threads() == before


def test_results_of_every_number_of_threads_are_compared():
    seen = []

    def run():
        seen.append(mg.get_num_threads())
        return np.zeros(2), np.ones(3, np.float32)

    first, second = check_thread_independence(run)
    assert seen == [1, 2, 3, 2]
    assert (first.shape, second.shape) == ((2,), (3,))


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_run_that_differs_in_one_byte_fails(bad):
    runs = iter(range(4))

    def run():
        y = np.zeros((2, 3), np.float32)
        y[1, 2] = -0.0 if next(runs) == bad else 0.0
        return [np.ones(1), y]

    with pytest.raises(AssertionError, match="differ in their bytes"):
        check_thread_independence(run)


def test_one_result_fewer_fails():
    lengths = iter([2, 2, 1, 2])
    with pytest.raises(ValueError, match="longer"):
        check_thread_independence(lambda: [np.ones(1)] * next(lengths))


def test_calls_at_once_run_beside_each_other_and_a_failure_is_seen():
    meeting = threading.Barrier(3, timeout=30)
    call_at_once([meeting.wait] * 3)

    def fail():
        raise KeyError("seen")

    with pytest.raises(KeyError, match="seen"):
        call_at_once([fail, lambda: None])
