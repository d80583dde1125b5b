"""The emulator's own tests belong to the suite where the emulator does: Metal, but no Mac."""

import sys


def pytest_ignore_collect(collection_path, config):
    """Leave this folder out elsewhere."""
    del collection_path
    if config.getoption("--device") != "metal" or sys.platform == "darwin":
        return True
    return None
