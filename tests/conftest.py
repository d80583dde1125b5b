"""Fixtures of the whole suite."""

import hypothesis
import pytest

from tests.tolerance import rng_for

# Hypothesis derives its examples from the test itself, so that a failure repeats everywhere.
hypothesis.settings.register_profile("mpsgrad", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("mpsgrad")


@pytest.fixture
def rng(request):
    """Random numbers that depend on nothing but the test's name and parameters."""
    return rng_for(request.node.nodeid)
