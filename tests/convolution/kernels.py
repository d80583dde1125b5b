"""Runs convolution kernels of the package on arrays, with any offset and destination."""

from __future__ import annotations

import mpsgrad as mg
import numpy as np

from tests.images import empty as allocated
from tests.tolerance import grid


def exact_arrays(case, rng):
    """(x, weights, biases, gradient) of small integers: any sum is exact in float32."""
    shapes = case.shape, case.weights_shape, (case.outputs,), case.result_shape
    return tuple(grid(rng, shape) for shape in shapes)


def descriptor(case, **changes):
    """Return the descriptor of a `ConvolutionCase`."""
    cls = mg.DepthWiseConvolutionDescriptor if case.depthwise else mg.ConvolutionDescriptor
    arguments = {
        "input_feature_channels": case.shape[3],
        "output_feature_channels": case.outputs,
        "stride_in_pixels_x": case.stride[0],
        "stride_in_pixels_y": case.stride[1],
        "dilation_rate_x": case.dilation[0],
        "dilation_rate_y": case.dilation[1],
        "groups": case.groups,
    }
    return cls(*case.kernel, **{**arguments, **changes})


def source(case, weights, biases=None, **options):
    """Return a data source for a case."""
    return mg.ArrayConvolutionDataSource(weights, biases, descriptor=descriptor(case), **options)


# A neuron that is exact, and moves what it is given off the middle of two float16 numbers.
LINEAR = mg.NeuronDescriptor(mg.NeuronType.LINEAR, a=0.25, b=1 / 64)


def linear(values):
    """Apply `LINEAR`."""
    return 0.25 * values + 1 / 64


def half_way(x, weights, biases, gradient):
    """Make of small integers sums in the thousands, where float16 has every second integer.

    Any rounding of such a sum before the bias or the neuron, which are fractions, shows.
    """
    return x, 101 * weights, biases / 16, gradient


def batch(device, array):
    """Return images with the contents of an array (N, H, W, C)."""
    return mg.ImageBatch.from_array(device, np.ascontiguousarray(array))


def empty(device, shape, dtype=np.float32):
    """Return images for a result of shape (N, H, W, C), filled with NaN."""
    return mg.ImageBatch.from_array(device, np.full(shape, np.nan, dtype))


def run(queue, encode):
    """Call ``encode(command_buffer)``, run the work, and return what it returned."""
    command_buffer = queue.command_buffer()
    result = encode(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result


def read(queue, images):
    """Return a batch as an array."""
    run(queue, lambda command_buffer: mg.synchronize(images, command_buffer))
    return images.to_array()


def forward(queue, case, data_source, x, dtype=np.float32):
    """Run the forward pass into a destination of the case's size, at the case's offset.

    Returns
    -------
    (kernel, sources, y, states)
    """
    device = queue.device
    kernel = mg.Convolution(data_source, device=device)
    kernel.offset = case.offset
    kernel.edge_mode = mg.EdgeMode.CLAMP if case.edge == "clamp" else mg.EdgeMode.ZERO
    sources = batch(device, x)
    destinations = empty(device, case.result_shape, dtype)
    states = kernel.result_state_batch(sources, destinations)
    run(
        queue,
        lambda command_buffer: kernel.encode_batch(
            command_buffer, sources, destinations, destination_states=states
        ),
    )
    return kernel, sources, read(queue, destinations), states


def spoil(states):
    """Fill what the first gradient encode of a CPU device's states overwrites with NaN."""
    if states[0].device.kind == "cpu":
        for buffer in (states[0].gradient_for_weights, states[0].gradient_for_biases):
            buffer.write(np.full(len(buffer), np.nan, np.float32))


def backward(queue, data_source, gradient, sources, states, option=3):
    """Run the gradient kernel; return (kernel, dx, dw, db), the last two flat."""
    device = queue.device
    kernel = mg.ConvolutionGradient(data_source, device=device)
    kernel.gradient_option = option
    gradients = batch(device, gradient)

    def encode(command_buffer):
        images = kernel.encode_batch(
            command_buffer, gradients, sources, states, allocator=mg.DEFAULT
        )
        states[0].synchronize(command_buffer)
        return images

    images = run(queue, encode)
    dw = states[0].gradient_for_weights.to_numpy()
    db = states[0].gradient_for_biases.to_numpy()
    return kernel, read(queue, images), dw, db


def poison(device, shape):
    """Leave NaN in the memory of which the next images of a shape may be made."""
    allocated(device, shape, fill=np.nan)


def check_data_gradient(device, option, dx, exact):
    """Compare a data gradient with what a gradient option makes of it."""
    assert dx.shape == exact.shape
    if option & mg.ConvolutionGradientOption.DATA:
        np.testing.assert_array_equal(dx, exact)
    elif device.kind == "cpu":  # what MPS leaves there is undefined
        assert not dx.any()
