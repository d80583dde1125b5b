"""Objects that `__new__` alone has made: they hold nothing, and whatever uses them says so."""

from __future__ import annotations

import mpsgrad as mg
import pytest

from tests.core.support import descriptor, linear, python
from tests.rejects import rejects

# In a process of its own, which reading memory that nobody has filled may end.
USE_EVERYTHING = """
import enum

import mpsgrad
from mpsgrad import _core

def is_refused(use):
    try:
        use()
    except (TypeError, RuntimeError):
        return True

classes = [value for value in vars(_core).values() if isinstance(value, type)]
for cls in classes:
    if issubclass(cls, enum.Enum):  # not made at all without a value
        continue
    new = cls.__new__(cls)
    names = [name for name in dir(cls) if isinstance(getattr(cls, name), property)]
    for name in names:
        if not is_refused(lambda: getattr(new, name)):
            print(cls.__name__, name)
    if cls.__repr__ is not object.__repr__ and not is_refused(lambda: repr(new)):
        print(cls.__name__, "repr")
print(len(classes) > 100)
"""


def test_nothing_can_be_read():
    run = python(USE_EVERYTHING, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


@pytest.mark.parametrize(
    ("cls", "error", "words"),
    [
        (mg.Image, TypeError, "source must be an Image, an ImageBatch or a list of images, got"),
        (mg.ImageBatch, ValueError, "source is an empty batch"),
    ],
)
def test_not_an_argument(device, cls, error, words):
    images = mg.ImageBatch([mg.Image(device, descriptor())])
    with rejects(error, f"Neuron: {words}"):
        linear(device).encode(device.command_queue().command_buffer(), cls.__new__(cls), images)


def test_not_a_kernel(device):
    image = mg.Image(device, descriptor())
    with pytest.raises(TypeError, match="has not been called"):
        mg.Neuron.__new__(mg.Neuron).encode(device.command_queue().command_buffer(), image, image)
