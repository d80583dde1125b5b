"""Buffers of which the device and the CPU each have a copy, as on a GPU with memory of its own."""

import mpsgrad as mg
import numpy as np
import pytest


@pytest.mark.parametrize("unified", [0, 1, 2])
def test_gradients_that_the_cpu_changed_reach_the_optimizer(device, queue, emulator, unified):
    emulator.set("unified_memory", unified)
    source = mg.ArrayConvolutionDataSource(
        np.ones((4, 1, 1, 3), np.float32), np.ones(4, np.float32)
    )
    forward = mg.Convolution(source, device=device)
    backward = mg.ConvolutionGradient(source, device=device)
    x = np.ones((1, 2, 2, 3), np.float32)
    y, state = forward(x, with_state=True)
    backward(np.ones_like(y), x, state)

    def finish(command_buffer, *states):
        for each in states:
            each.synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()

    finish(queue.command_buffer(), state)
    gradient = state.gradient_for_weights.to_numpy()
    np.testing.assert_array_equal(gradient, 4.0)
    clipped = np.arange(12, dtype=np.float32)
    state.gradient_for_weights.write(clipped)

    weights = mg.ConvolutionWeightsAndBiasesState(
        mg.Buffer(device, np.zeros(12, np.float32)), mg.Buffer(device, np.zeros(4, np.float32))
    )
    command_buffer = queue.command_buffer()
    mg.SGD(1.0, device=device).encode_convolution(command_buffer, state, weights, None, weights)
    finish(command_buffer, weights)
    np.testing.assert_array_equal(weights.weights.to_numpy(), -clipped)
    np.testing.assert_array_equal(weights.biases.to_numpy(), -4.0)
