"""Options and fixtures of the suite: `pytest --device cpu|metal` chooses what runs the kernels.

tools/sanitize adds ``--sanitizer``, and a test that cannot say anything under one is marked
``not_sanitized("address"|"thread", ..., reason=why)``; without a name, under none of them.
"""

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
    parser.addoption(
        "--sanitizer",
        choices=["address", "thread"],
        help="the sanitizer that the extension is built with, see tools/sanitize",
    )


def pytest_collection_modifyitems(config, items):
    """Skip, with the reason, what the sanitizer in use cannot run."""
    sanitizer = config.getoption("--sanitizer")
    if sanitizer is None:
        return
    for item in items:
        for mark in item.iter_markers("not_sanitized"):
            if sanitizer in (mark.args or (sanitizer,)):
                reason = f"under the {sanitizer} sanitizer: {mark.kwargs['reason']}"
                item.add_marker(pytest.mark.skip(reason=reason))


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
