"""What the tests of the base layer share: images from arrays, simple kernels, one way to run work.

A neuron is the simplest kernel there is (a window of one pixel, no data of its own), so it stands
for all of them where a rule is about every kernel.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import mpsgrad as mg
import numpy as np

FORMATS = {
    "unorm8": mg.ChannelFormat.UNORM8,
    "unorm16": mg.ChannelFormat.UNORM16,
    "float16": mg.ChannelFormat.FLOAT16,
    "float32": mg.ChannelFormat.FLOAT32,
}
DTYPES = {"unorm8": np.uint8, "unorm16": np.uint16, "float16": np.float16, "float32": np.float32}
PRECISIONS = {"unorm8": 8, "unorm16": 16, "float16": 11, "float32": 24}


def descriptor(width=3, height=2, channels=4, images=1, channel_format="float32"):
    """Descriptor of a small image."""
    return mg.ImageDescriptor(
        width=width,
        height=height,
        feature_channels=channels,
        number_of_images=images,
        channel_format=FORMATS[channel_format],
    )


def counting(*shape, dtype=np.float32, start=1):
    """1, 2, 3, ... in an array: every element tells where it came from, exactly."""
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(dtype)


def format_of(array):
    """Name of the channel format that stores an array's dtype."""
    return next(name for name, dtype in DTYPES.items() if array.dtype == dtype)


def image_of(device, array):
    """Image holding (H, W, C), or a container holding (N, H, W, C)."""
    if len(array) == 1 and array.ndim == 4:
        array = array[0]
    *images, height, width, channels = array.shape
    image = mg.Image(
        device, descriptor(width, height, channels, *images, channel_format=format_of(array))
    )
    image.write(array)
    return image


def images_of(device, arrays):
    """One image of its own for each array, as a list."""
    return [image_of(device, array) for array in arrays]


def blank(device, *shape, channel_format="float32"):
    """Image of zeros of shape (H, W, C) or (N, H, W, C)."""
    *images, height, width, channels = shape
    return mg.Image(
        device, descriptor(width, height, channels, *images, channel_format=channel_format)
    )


def linear(device, a=1.0, b=0.0):
    """Kernel that computes a * x + b."""
    return mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.LINEAR, a, b), device=device)


def linear_gradient(device, a=1.0, b=0.0):
    """Gradient of `linear`: a * dy."""
    return mg.NeuronGradient(mg.NeuronDescriptor(mg.NeuronType.LINEAR, a, b), device=device)


def finish(command_buffer, *images):
    """Make images visible, run the work, wait."""
    for image in images:
        image.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def read(command_buffer, image):
    """Run the work, return one image's texels."""
    finish(command_buffer, image)
    return image.read()


def spend(*temporaries):
    """Release temporaries that no kernel will read."""
    for temporary in temporaries:
        temporary.read_count = 0


def drop(holder):
    """Drop the objects in a list, now."""
    holder.clear()
    gc.collect()


def python(code, *, check=True, **environment):
    """Run code in a new interpreter of the same package, return the finished process."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    if check:
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


LIMIT = """
import contextlib, resource, mpsgrad as mg
@contextlib.contextmanager
def limited_memory(more):
    mg.release_cached_memory()
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def python_of_little_memory(code):
    """Run code that may take no more than ``more`` bytes ``with limited_memory(more):``."""
    return python(LIMIT + code, MALLOC_ARENA_MAX="1", MALLOC_TOP_PAD_="0")
