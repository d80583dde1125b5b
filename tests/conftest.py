"""Options and fixtures of the suite: `pytest --device cpu|metal` chooses what runs the kernels."""

import hypothesis
import pytest

from tests.tolerance import rng_for

# Hypothesis derives its examples from the test itself, so that a failure repeats everywhere.
hypothesis.settings.register_profile("mpsgrad", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("mpsgrad")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        default="cpu",
        choices=["cpu", "metal"],
        help="device that runs the kernels; one that is absent is a failure, not a skip",
    )


@pytest.fixture(scope="session")
def device(request):
    """The device under test."""
    import mpsgrad

    return mpsgrad.Device(request.config.getoption("--device"))


@pytest.fixture
def queue(device):
    """A queue of the device, of this test alone."""
    return device.command_queue()


@pytest.fixture
def rng(request):
    """Random numbers that depend on nothing but the test's name and parameters."""
    return rng_for(request.node.nodeid)
