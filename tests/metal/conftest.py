"""Fixtures of the Metal device's own tests, which only `--device metal` selects."""

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    """Leave out this folder on other devices, and on real hardware what needs the emulation."""
    on_metal = config.getoption("--device") == "metal"
    emulated = on_metal and emulation() is not None
    left_out = [
        item
        for item in items
        if FOLDER in item.path.parents
        and (not on_metal or ("emulator" in item.fixturenames and not emulated))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def emulation():
    """Return the C functions of the emulated Metal, or None if this build drives the real one."""
    from mpsgrad import _core

    library = ctypes.CDLL(_core.__file__)
    return library if hasattr(library, "emulated_metal_set_option") else None


class Emulator:
    """The emulated Metal's switches."""

    def __init__(self):
        self._library = emulation()
        self._library.emulated_metal_set_option.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self._library.emulated_metal_get_option.restype = ctypes.c_long
        self._library.emulated_metal_live_objects.restype = ctypes.c_long
        self._changed = {}

    def set(self, name, value):
        """Set an option until the end of the test."""
        self._changed.setdefault(name, self._library.emulated_metal_get_option(name.encode()))
        assert self._library.emulated_metal_set_option(name.encode(), value) == 0

    def live_objects(self):
        """Return how many Objective-C objects of the framework exist."""
        self._library.emulated_metal_wait_idle()
        return self._library.emulated_metal_live_objects()

    def restore(self):
        """Undo every `set`."""
        for name, value in self._changed.items():
            self._library.emulated_metal_set_option(name.encode(), value)

    @staticmethod
    def run(code, **options):
        """Run Python code in a process of its own, and return that when it has ended."""
        environment = {**os.environ}
        for name, value in options.items():
            environment[f"EMULATED_METAL_{name.upper()}"] = str(value)
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )


@pytest.fixture
def emulator():
    """The emulated Metal's switches, put back after the test."""
    switches = Emulator()
    yield switches
    switches.restore()
