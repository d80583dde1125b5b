"""Optimizers on the states of a convolution: weights and biases in one encode."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.optimizer import oracle
from tests.optimizer.cases import DESCRIPTOR
from tests.optimizer.oracle import Settings
from tests.rejects import rejects
from tests.tolerance import assert_close, assert_exact, assert_same_bytes, grid, ulps_for

OUT, HEIGHT, WIDTH, IN = 4, 3, 2, 5
SHAPE = (OUT, HEIGHT, WIDTH, IN)
COUNT = OUT * HEIGHT * WIDTH * IN
RATE = Settings(0.25)


def describe(out=OUT):
    return mg.ConvolutionDescriptor(
        WIDTH, HEIGHT, input_feature_channels=IN, output_feature_channels=out
    )


class Layer:
    """A convolution, a batch, and its gradient state; small whole numbers, so sums are exact."""

    def __init__(self, queue, rng, out=OUT):
        self.device = queue.device
        self.queue = queue
        self.weights, self.biases = grid(rng, (out, *SHAPE[1:])), grid(rng, out)
        source = mg.ArrayConvolutionDataSource(self.weights, self.biases)
        self.forward = mg.Convolution(source, device=self.device)
        self.backward = mg.ConvolutionGradient(source, device=self.device)
        self.x = grid(rng, (2, 4, 5, IN))
        self.y, self.state = self.forward(self.x, with_state=True)
        self.gradient = grid(rng, self.y.shape)

    def run_gradient(self):
        """Fill the gradient state, and return what is in it."""
        self.backward(self.gradient, self.x, self.state)
        command_buffer = self.queue.command_buffer()
        self.state.synchronize(command_buffer)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return self.state.gradient_for_weights.to_numpy(), self.state.gradient_for_biases.to_numpy()

    def master(self, *, biases=True):
        """Weights and biases on the device."""
        return mg.ConvolutionWeightsAndBiasesState(
            mg.Buffer(self.device, self.weights),
            mg.Buffer(self.device, self.biases) if biases else None,
        )

    def histories(self, values=(0.0, 0.0)):
        """A vector for the weights and one for the biases."""
        sizes = (self.weights.size, self.biases.size)
        return [
            mg.Vector.from_array(self.device, np.full(n, value, np.float32))
            for n, value in zip(sizes, values, strict=True)
        ]


@pytest.fixture
def layer(queue, rng):
    return Layer(queue, rng)


def finish(command_buffer, *states):
    for state in states:
        state.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def contents(state):
    return state.weights.to_numpy(), state.biases.to_numpy()


def test_momentum_updates_weights_and_biases(layer, queue):
    gradients = layer.run_gradient()
    master, histories = layer.master(), layer.histories((0.5, -1.5))
    command_buffer = queue.command_buffer()
    optimizer = mg.SGD(0.25, momentum_scale=0.5, device=layer.device)
    optimizer.encode_convolution(command_buffer, layer.state, master, histories, master)
    finish(command_buffer, master)
    old = (layer.weights.ravel(), layer.biases)
    for new, g, w, m, start in zip(
        contents(master), gradients, old, histories, (0.5, -1.5), strict=True
    ):
        expected, momentum = oracle.sgd(RATE, g, w, np.full_like(w, start), momentum_scale=0.5)
        assert_exact(new, expected)
        assert_exact(m.to_numpy(), momentum)


def test_one_history_leaves_the_biases_alone(layer, queue):
    gradients = layer.run_gradient()
    master = layer.master()
    result = mg.ConvolutionWeightsAndBiasesState.for_descriptor(layer.device, describe())
    result.biases.write(np.full(OUT, 7.0, np.float32))
    command_buffer = queue.command_buffer()
    mg.SGD(0.25, momentum_scale=0.5, device=layer.device).encode_convolution(
        command_buffer, layer.state, master, layer.histories()[:1], result
    )
    finish(command_buffer, result)
    weights, biases = contents(result)
    assert_exact(weights, oracle.sgd(RATE, gradients[0], layer.weights.ravel())[0])
    assert_exact(biases, np.full(OUT, 7.0))
    assert_exact(contents(master)[0], layer.weights.ravel())


@pytest.mark.parametrize("source_has", [True, False])
@pytest.mark.parametrize("result_has", [True, False])
def test_no_history_is_plain_descent_on_what_there_is(layer, queue, source_has, result_has):
    gradients = layer.run_gradient()
    source, result = layer.master(biases=source_has), layer.master(biases=result_has)
    command_buffer = queue.command_buffer()
    optimizer = mg.SGD(0.25, momentum_scale=0.5, device=layer.device)
    optimizer.encode_convolution(command_buffer, layer.state, source, None, result)
    finish(command_buffer, result)
    assert_exact(
        result.weights.to_numpy(), oracle.sgd(RATE, gradients[0], layer.weights.ravel())[0]
    )
    if result_has:
        new = oracle.sgd(RATE, gradients[1], layer.biases)[0] if source_has else layer.biases
        assert_exact(result.biases.to_numpy(), new)


@pytest.mark.parametrize("maximum", [False, True])
def test_adam_takes_one_time_step_for_both(layer, queue, maximum):
    gradients = layer.run_gradient()
    master = layer.master()
    histories = [layer.histories() for _ in range(3)]
    extra = {"maximum_velocity_vectors": histories[2]} if maximum else {}
    optimizer = mg.Adam(0.25, time_step=6, device=layer.device)
    command_buffer = queue.command_buffer()
    optimizer.encode_convolution(
        command_buffer, layer.state, master, histories[0], histories[1], master, **extra
    )
    finish(command_buffer, master)
    assert optimizer.time_step == 7
    for i, (new, w) in enumerate(
        zip(contents(master), (layer.weights.ravel(), layer.biases), strict=True)
    ):
        zero = np.zeros_like(w)
        expected, m, v, x = oracle.adam(
            RATE, gradients[i], w, zero, zero, zero if maximum else None, step=7
        )
        assert_close(new, expected, ulps=ulps_for(12), scale=oracle.step_scale(w, expected))
        assert_close(histories[0][i].to_numpy(), m, ulps=ulps_for(3))
        assert_close(histories[1][i].to_numpy(), v, ulps=ulps_for(4))
        if maximum:
            assert_close(histories[2][i].to_numpy(), x, ulps=ulps_for(4))


def test_rmsprop(layer, queue):
    gradients = layer.run_gradient()
    master, squares = layer.master(), layer.histories((0.5, 1.0))
    command_buffer = queue.command_buffer()
    mg.RMSProp(0.25, device=layer.device).encode_convolution(
        command_buffer, layer.state, master, squares, master
    )
    finish(command_buffer, master)
    for new, g, w, start in zip(
        contents(master), gradients, (layer.weights.ravel(), layer.biases), (0.5, 1.0), strict=True
    ):
        expected, _ = oracle.rmsprop(RATE, g, w, np.full_like(w, start))
        assert_close(new, expected, ulps=ulps_for(12), scale=oracle.step_scale(w, expected))


def test_weights_and_biases_in_one_buffer(layer, queue):
    gradients = layer.run_gradient()
    numbers = np.concatenate([[9.0], layer.biases, [8.0, 8.0], layer.weights.ravel(), [7.0]])
    buffer = mg.Buffer(layer.device, numbers.astype(np.float32))
    master = mg.ConvolutionWeightsAndBiasesState.with_offsets(
        buffer, 4 * (3 + OUT), buffer, 4, describe()
    )
    command_buffer = queue.command_buffer()
    mg.SGD(0.25, device=layer.device).encode_convolution(
        command_buffer, layer.state, master, None, master
    )
    finish(command_buffer, master)
    new = buffer.to_numpy()
    assert_exact(new[[0, OUT + 1, OUT + 2, -1]], [9, 8, 8, 7])
    assert_exact(new[1 : OUT + 1], oracle.sgd(RATE, gradients[1], layer.biases)[0])
    assert_exact(new[OUT + 3 : -1], oracle.sgd(RATE, gradients[0], layer.weights.ravel())[0])


def test_state_encode_equals_vector_encodes(layer, queue):
    """The same bytes as two vector encodes over the state's buffers with one time step."""
    layer.run_gradient()
    one, two = layer.master(), layer.master()
    histories = [[layer.histories() for _ in range(2)] for _ in range(2)]
    command_buffer = queue.command_buffer()
    adam = mg.Adam(0.1, device=layer.device)
    d = [mg.VectorDescriptor(COUNT), mg.VectorDescriptor(OUT)]
    buffers = [
        (layer.state.gradient_for_weights, two.weights),
        (layer.state.gradient_for_biases, two.biases),
    ]
    for i, (gradient, values) in enumerate(buffers):
        adam.time_step = 0
        vector = mg.Vector(values, d[i])
        adam.encode_vector(
            command_buffer,
            mg.Vector(gradient, d[i]),
            vector,
            histories[1][0][i],
            histories[1][1][i],
            vector,
        )
    mg.Adam(0.1, device=layer.device).encode_convolution(
        command_buffer, layer.state, one, histories[0][0], histories[0][1], one
    )
    finish(command_buffer, one, two)
    for left, right in zip(contents(one), contents(two), strict=True):
        assert_same_bytes(left, right)


def test_training_step_on_one_command_buffer(layer, queue):
    """Forward, gradient, update and reload without a wait in between."""
    master = layer.master()
    sources = mg.ImageBatch.from_array(layer.device, layer.x)
    gradients = mg.ImageBatch.from_array(layer.device, layer.gradient)
    with queue.command_buffer() as command_buffer:
        images, states = layer.forward.encode_batch(
            command_buffer, sources, with_state=True, temporary_state=True, allocator=mg.DEFAULT
        )
        states[0].read_count = 2  # the gradient kernel and the optimizer
        layer.backward.encode_batch(
            command_buffer, gradients, sources, states, allocator=mg.DEFAULT
        )
        assert states[0].read_count == 1
        mg.SGD(0.25, device=layer.device).encode_convolution(
            command_buffer, states[0], master, None, master
        )
        assert states[0].read_count == 0
        layer.forward.reload_weights_and_biases(command_buffer, master)
        master.synchronize(command_buffer)
    command_buffer.wait_until_completed()
    weights, biases = layer.run_gradient()
    assert_exact(master.weights.to_numpy(), layer.weights.ravel() - 0.25 * weights)
    assert_exact(master.biases.to_numpy(), layer.biases - 0.25 * biases)
    assert len(images) == 2


def test_read_counts_of_temporary_states(layer, queue):
    layer.run_gradient()
    command_buffer = queue.command_buffer()
    source = mg.ConvolutionWeightsAndBiasesState.temporary(command_buffer, describe())
    result = mg.ConvolutionWeightsAndBiasesState.temporary(command_buffer, describe())
    source.read_count = 3
    optimizer = mg.SGD(0.25, device=layer.device)
    optimizer.encode_convolution(command_buffer, layer.state, source, None, result)
    assert (source.read_count, result.read_count) == (2, 1)
    optimizer.encode_convolution(command_buffer, layer.state, source, None, source)
    assert source.read_count == 1
    optimizer.encode_convolution(command_buffer, layer.state, source, None, layer.master())
    assert source.read_count == 0
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        optimizer.encode_convolution(command_buffer, layer.state, source, None, result)
    result.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_the_gradient_state_is_finished(layer, queue):
    layer.run_gradient()
    master = layer.master()
    command_buffer = queue.command_buffer()
    optimizer = mg.SGD(0.25, device=layer.device)
    optimizer.encode_convolution(command_buffer, layer.state, master, None, master)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    with rejects(
        mg.errors.StateError,
        "ConvolutionGradient: an optimizer has used this state's gradients; make a new state",
    ):
        layer.backward(layer.gradient, layer.x, layer.state)


# --- What is invalid ---------------------------------------------------------


def vector(device, *shape):
    return mg.Vector.from_array(device, np.zeros(shape, np.float32))


def half(device, length):
    return mg.Vector.from_array(device, np.zeros(length, np.float16))


SGD_REJECTED = {
    "three histories": (lambda d: {"momentum_vectors": [vector(d, 1)] * 3}, ValueError,
                        "momentum_vectors must hold 1 or 2 vectors, got 3"),
    "no history": (lambda _: {"momentum_vectors": []}, ValueError,
                   "momentum_vectors must hold 1 or 2 vectors, got 0"),
    "short history": (lambda d: {"momentum_vectors": [vector(d, COUNT - 1)]}, ValueError,
                      f"momentum_vectors[0] has shape ({COUNT - 1},) float32, but there are "
                      f"{COUNT} weights"),
    "short second": (lambda d: {"momentum_vectors": [vector(d, COUNT), vector(d, OUT + 1)]},
                     ValueError, f"momentum_vectors[1] has shape ({OUT + 1},) float32, but there "
                     f"are {OUT} biases"),
    "two vectors in one": (lambda d: {"momentum_vectors": [vector(d, 2, COUNT // 2)]}, ValueError,
                           "momentum_vectors[0] has shape 2 x"),
    "half history": (lambda d: {"momentum_vectors": [half(d, COUNT)]}, TypeError,
                     "momentum_vectors must be float32, got float16"),
    "empty place": (lambda _: {"momentum_vectors": [None]}, TypeError, "got None"),
    "gradient class": (lambda d: {"gradient_state": mg.State(d, 4)}, TypeError,
                       "gradient_state must be a ConvolutionGradientState, got State"),
    "source class": (lambda d: {"source_state": mg.State(d, 4)}, TypeError,
                     "source_state must be a ConvolutionWeightsAndBiasesState, got State"),
    "result class": (lambda d: {"result_state": mg.State(d, 4)}, TypeError,
                     "result_state must be a ConvolutionWeightsAndBiasesState, got State"),
    "no result": (lambda _: {"result_state": None}, TypeError, "got None"),
    "result size": (
        lambda d: {"result_state": mg.ConvolutionWeightsAndBiasesState.for_descriptor(
            d, describe(8))}, ValueError,
        f"result_state has {2 * COUNT} weights, but source_state has {COUNT}"),
    "gradient size": (
        lambda d: {name: mg.ConvolutionWeightsAndBiasesState.for_descriptor(d, describe(8))
                   for name in ("source_state", "result_state")}, ValueError,
        f"state has {COUNT} weights, but source_state has {2 * COUNT}"),
    "bias size": (
        lambda d: {"result_state": mg.ConvolutionWeightsAndBiasesState(
            mg.Buffer(d, 4 * COUNT), mg.Buffer(d, 4 * OUT + 4))}, ValueError,
        f"result_state has {OUT + 1} biases, but source_state has {OUT}"),
    "source without biases": (
        lambda d: {"source_state": mg.ConvolutionWeightsAndBiasesState(mg.Buffer(d, 4 * COUNT)),
                   "momentum_vectors": [vector(d, COUNT), vector(d, OUT)]}, ValueError,
        "two history vectors update weights and biases, but source_state has no biases"),
    "result without biases": (
        lambda d: {"result_state": mg.ConvolutionWeightsAndBiasesState(mg.Buffer(d, 4 * COUNT)),
                   "momentum_vectors": [vector(d, COUNT), vector(d, OUT)]}, ValueError,
        "but result_state has no biases"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "words"), SGD_REJECTED.values(), ids=SGD_REJECTED)
def test_rejects(change, error, words, layer, queue):
    layer.run_gradient()
    arguments = {
        "gradient_state": layer.state,
        "source_state": layer.master(),
        "momentum_vectors": None,
        "result_state": layer.master(),
        **change(layer.device),
    }
    with pytest.raises(error, match=re.escape(words)):
        mg.SGD(0.25, device=layer.device).encode_convolution(queue.command_buffer(), **arguments)


def test_rejects_a_state_without_gradients(layer, queue):
    master = layer.master()
    optimizer = mg.SGD(0.25, device=layer.device)
    with pytest.raises(mg.errors.StateError, match="no gradients yet"):
        optimizer.encode_convolution(queue.command_buffer(), layer.state, master, None, master)


def test_a_data_gradient_is_nothing_to_update_with(layer, queue):
    layer.backward.gradient_option = mg.ConvolutionGradientOption.DATA
    layer.run_gradient()
    master = layer.master()
    with pytest.raises(mg.errors.StateError, match="no gradients yet"):
        mg.SGD(0.25, device=layer.device).encode_convolution(
            queue.command_buffer(), layer.state, master, None, master
        )


def test_rejects_histories_of_different_numbers(layer, queue):
    layer.run_gradient()
    adam = mg.Adam(0.25, device=layer.device)
    master = layer.master()
    one, two = layer.histories(), layer.histories()
    with pytest.raises(ValueError, match="velocity_vectors holds 1 vectors, but momentum_vectors"):
        adam.encode_convolution(queue.command_buffer(), layer.state, master, one, two[:1], master)
    for arguments in ((None, two), (one, None)):
        with pytest.raises(ValueError, match="must not be None"):
            adam.encode_convolution(queue.command_buffer(), layer.state, master, *arguments, master)
    rms = mg.RMSProp(0.25, device=layer.device)
    with pytest.raises(ValueError, match="sum_of_squares_vectors must not be None"):
        rms.encode_convolution(queue.command_buffer(), layer.state, master, None, master)
    assert adam.time_step == 0


def test_rejects_shared_memory(layer, queue):
    layer.run_gradient()
    adam = mg.Adam(0.25, device=layer.device)
    master = layer.master()
    one, two = layer.histories(), layer.histories()
    for momentum, velocity, words in (
        (one, one, "the velocity of the weights shares memory with the momentum of the weights"),
        (
            [mg.Vector(master.weights, mg.VectorDescriptor(COUNT)), one[1]],
            two,
            "the momentum of the weights shares memory with the values of the weights",
        ),
        (
            [one[0], mg.Vector(layer.state.gradient_for_biases, mg.VectorDescriptor(OUT))],
            two,
            "the momentum of the biases shares memory with the gradient of the biases",
        ),
        (
            [one[0], mg.Vector(two[0].data, mg.VectorDescriptor(OUT))],
            two,
            "the momentum of the biases shares memory with the velocity of the weights",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            adam.encode_convolution(
                queue.command_buffer(), layer.state, master, momentum, velocity, master
            )
    buffer = mg.Buffer(layer.device, 4 * COUNT)
    overlapping = mg.ConvolutionWeightsAndBiasesState.with_offsets(
        buffer, 0, buffer, 4 * (COUNT - OUT), describe()
    )
    with pytest.raises(ValueError, match="the values of the biases shares memory with the result"):
        mg.SGD(0.25, device=layer.device).encode_convolution(
            queue.command_buffer(), layer.state, overlapping, None, overlapping
        )


def test_every_setting_holds_for_weights_and_biases(layer, queue):
    """As over arrays: rescaled, clipped and regularized, biases too."""
    gradients = layer.run_gradient()
    master = layer.master()
    optimizer = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=layer.device)
    command_buffer = queue.command_buffer()
    optimizer.encode_convolution(command_buffer, layer.state, master, None, master)
    finish(command_buffer, master)
    plain = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=layer.device)
    bare = mg.SGD(0.25, device=layer.device)
    for new, g, w in zip(contents(master), gradients, (layer.weights, layer.biases), strict=True):
        assert_same_bytes(new, plain(g, w.ravel()))
        assert np.any(new != bare(g, w.ravel()))


def test_clipping_can_be_switched(layer, queue):
    """For the encodes that follow, not for those before, which have not run yet."""
    gradients = layer.run_gradient()
    masters = [layer.master() for _ in range(3)]
    optimizer = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=layer.device)
    unclipped = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=layer.device)
    unclipped.apply_gradient_clipping = False
    command_buffer = queue.command_buffer()
    for clips, master in zip((True, False, True), masters, strict=True):
        optimizer.apply_gradient_clipping = clips
        mg.increment_read_count([layer.state], 1)
        optimizer.encode_convolution(command_buffer, layer.state, master, None, master)
    finish(command_buffer, *masters)
    old = layer.weights.ravel()
    clipped = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=layer.device)(gradients[0], old)
    free = unclipped(gradients[0], old)
    assert np.any(clipped != free)
    for master, expected in zip(masters, (clipped, free, clipped), strict=True):
        assert_same_bytes(contents(master)[0], expected)
