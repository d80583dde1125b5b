"""Graphs that Metal encodes by one MPSNNGraph: what is Apple's own, and when it is not one."""

import contextlib
import gc
import threading

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.graph import networks
from tests.tolerance import assert_exact, assert_same_bytes

SHAPE = (3, 4, 4, 4)


def sample(rng, shape=SHAPE):
    return rng.integers(-3, 4, shape).astype(np.float32)


def float_graph(device, results, **options):
    graph = g.Graph(device, result_images=results, **options)
    graph.format = mg.ChannelFormat.FLOAT32
    return graph


def trained(device, node):
    """The training graph of a squared error."""
    return float_graph(device, networks.loss_of(node).training_graph(), results_are_needed=False)


def convolution(source, weights, bias=None, **options):
    return g.ConvolutionNode(source, mg.ArrayConvolutionDataSource(weights, bias, **options))


def is_one_graph(graph):
    return "encoded by one MPSNNGraph" in graph.debug_description


def test_it_is_one_graph(device, rng):
    sgd = mg.SGD(0.5, device=device)
    node = convolution(g.ImageNode("x"), sample(rng, (4, 1, 1, 4)), optimizer=sgd)
    for graph in (float_graph(device, [node]), trained(device, g.NeuronReLUNode(node))):
        assert is_one_graph(graph)
        assert "kernel by kernel" not in graph.debug_description


def test_steps_are_those_of_the_cpu(device, rng):
    w, x, labels = sample(rng, (4, 1, 1, 4)), sample(rng), sample(rng)
    sgd = mg.SGD(2.0**-6, device=device)
    node = convolution(g.ImageNode("x"), w.copy(), np.zeros(4), optimizer=sgd)
    graph = trained(device, g.NeuronReLUNode(node))
    cpu = mg.SGD(2.0**-6, device="cpu")
    twin = convolution(g.ImageNode("x"), w.copy(), np.zeros(4), optimizer=cpu)
    other = trained("cpu", g.NeuronReLUNode(twin))
    for _ in range(2):
        assert_same_bytes(graph(x, labels).losses[0], other(x, labels).losses[0])


def test_buffers_enqueued_before_keep_their_place(device, queue, rng):
    node = g.NeuronLinearNode(g.NeuronLinearNode(g.ImageNode("x"), 2.0), 3.0)
    graph = float_graph(device, [node])
    x = sample(rng)
    images = mg.ImageBatch.from_array(device, x)
    buffers = [queue.command_buffer() for _ in range(3)]
    for buffer in buffers:
        buffer.enqueue()
    results = [graph.encode_batch(buffer, [images]).result for buffer in buffers]
    for buffer, result in zip(buffers, results, strict=True):
        mg.synchronize(result, buffer)
    for buffer in reversed(buffers):
        buffer.commit()
    for buffer, result in zip(buffers, results, strict=True):
        buffer.wait_until_completed()
        assert_exact(result.to_array(), 6 * x)


def test_a_graph_commits_nothing(device, queue, rng, emulator):
    """Apple's would commit what it has encoded so far: then a dropped buffer has partly run."""
    images = []

    def allocator(_command_buffer, descriptor, _kernel):
        images.append(mg.Image(device, descriptor))
        images[-1].write(np.full(SHAPE[1:], 7, np.float32))
        return images[-1]

    inner = g.NeuronLinearNode(g.ImageNode("x"), 2.0)
    inner.result_image.image_allocator = allocator
    graph = float_graph(device, [g.NeuronLinearNode(inner, 3.0)])
    assert is_one_graph(graph)
    dropped = queue.command_buffer()
    graph.encode_batch(dropped, [mg.ImageBatch.from_array(device, sample(rng))])
    del dropped
    gc.collect()
    emulator.live_objects()  # waits until nothing runs
    with queue.command_buffer() as command_buffer:
        mg.synchronize(images, command_buffer)
    command_buffer.wait_until_completed()
    assert len(images) == SHAPE[0]
    for image in images:
        assert_exact(image.read(), np.full(SHAPE[1:], 7.0))


def test_nobody_else_uses_the_command_buffer_meanwhile(device, queue, rng):
    """Encodes let other threads run, which must not commit or fill what Apple is writing to."""
    uses, refused = [], []

    def use_it():
        for use in uses:
            with pytest.raises(mg.errors.CommandBufferError, match="another thread is encoding"):
                use()
            refused.append(1)

    def allocator(_command_buffer, descriptor, _kernel):
        other = threading.Thread(target=use_it)
        other.start()
        other.join()
        return mg.Image(device, descriptor)

    x = sample(rng)
    images = mg.ImageBatch.from_array(device, x)
    double = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.LINEAR, 2.0), device=device)
    inner = g.NeuronLinearNode(g.ImageNode("x"), 2.0)
    inner.result_image.image_allocator = allocator
    graph = float_graph(device, [g.NeuronLinearNode(inner, 3.0)])
    assert is_one_graph(graph)
    command_buffer = queue.command_buffer()
    uses += [
        command_buffer.commit,
        command_buffer.commit_and_continue,
        command_buffer.enqueue,
        lambda: graph.encode_batch(command_buffer, [images]),
        lambda: double.encode_batch(command_buffer, images),
    ]
    result = graph.encode_batch(command_buffer, [images]).result
    assert sum(refused) == len(uses) * SHAPE[0]
    mg.synchronize(result, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(result.to_array(), 6 * x)
    uses.clear()  # the graph has the allocator, and no collector sees that


def test_a_commit_that_we_cannot_prevent_is_reported(device, queue, rng, emulator):
    emulator.set("graph_pieces", 2)
    node = g.NeuronLinearNode(g.NeuronLinearNode(g.ImageNode("x"), 2.0), 3.0)
    graph = float_graph(device, [node])
    with pytest.raises(mg.errors.DeviceError, match=r"Graph: .* committed the command buffer"):
        graph.encode_batch(queue.command_buffer(), [mg.ImageBatch.from_array(device, sample(rng))])


@pytest.mark.parametrize("needed", [[True, False], [False, True], [False, False]])
def test_exported_ends(device, queue, rng, needed):
    """What is exported is there, needed as a result or not."""
    x = g.ImageNode("x")
    ends = [g.NeuronLinearNode(x, 2.0), g.NeuronLinearNode(x, 3.0)]
    for end, name in zip(ends, ["double", "triple"], strict=True):
        end.result_image.export().handle = name
    graph = float_graph(device, ends, results_are_needed=needed)
    assert is_one_graph(graph)
    values = sample(rng)
    with queue.command_buffer() as command_buffer:
        made = graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, values)])
    command_buffer.wait_until_completed()
    assert (made.result is not None) == needed[0]
    for name, factor in (("double", 2), ("triple", 3)):
        assert_exact(mg.ImageBatch(list(made.intermediates[name])).to_array(), factor * values)


def test_an_exported_end_has_its_own_allocator(device, queue, rng):
    """Where there is no result, Apple would take the graph's allocator for the first end."""
    node = g.NeuronLinearNode(g.ImageNode("x"), 2.0)
    node.result_image.export_from_graph = True
    graph = float_graph(device, [node], results_are_needed=False)
    graph.destination_image_allocator = mg.TEMPORARY
    assert is_one_graph(graph)
    command_buffer = queue.command_buffer()
    values = sample(rng)
    (images,) = graph.encode_batch(
        command_buffer, [mg.ImageBatch.from_array(device, values)]
    ).intermediates
    assert not any(image.is_temporary for image in images)
    mg.synchronize(images, command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(mg.ImageBatch(list(images)).to_array(), 2 * values)


def test_no_predicate(device, queue, rng):
    graph = float_graph(device, [g.NeuronLinearNode(g.ImageNode("x"), 2.0)])
    command_buffer = queue.command_buffer()
    command_buffer.predicate = mg.Predicate(mg.Buffer(device, 4), 0)
    with pytest.raises(mg.errors.UnsupportedError, match="whole graph depend on a predicate"):
        graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, sample(rng))])


class Shifted(mg.Padding):
    """SAME, one pixel to the left."""

    def padding_method(self):
        return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

    def destination_descriptor(self, _images, _states, kernel, suggested):
        kernel.offset = (kernel.offset.x - 1, kernel.offset.y)
        return suggested


@pytest.mark.parametrize(
    "policy", [Shifted(), mg.ExplicitPadding(1, 0, 2, 0)], ids=["own", "explicit"]
)
def test_policies_of_ones_own(device, rng, policy):
    w, x = sample(rng, (4, 3, 3, 4)), sample(rng)
    results = []
    for kind in (device, "cpu"):
        node = convolution(g.ImageNode("x"), w)
        node.padding_policy = policy
        graph = float_graph(kind, [node])
        results.append(graph(x).result)
    assert_same_bytes(*results)


def test_explicit_padding_is_cut_off_a_transposed_convolution(device, rng):
    d = mg.ConvolutionDescriptor(
        3, 3, input_feature_channels=4, output_feature_channels=4,
        stride_in_pixels_x=2, stride_in_pixels_y=2,
    )  # fmt: skip
    source = mg.ArrayConvolutionDataSource(sample(rng, (4, 3, 3, 4)), descriptor=d)
    x = sample(rng)
    results = []
    for kind in (device, "cpu"):
        node = g.ConvolutionTransposeNode(g.ImageNode("x"), source)
        node.padding_policy = mg.ExplicitPadding(1, 0, 1, -1)
        graph = float_graph(kind, [node])
        results.append(graph(x).result)
        if kind is device:  # of a policy of ours Apple's node would take the offset alone
            assert not is_one_graph(graph)
    assert results[0].shape == (x.shape[0], 2 * x.shape[1] + 1, 2 * x.shape[2], 4)
    assert_same_bytes(*results)


def test_an_exception_of_a_policy_comes_out_of_the_encode(device, queue, rng):
    class Fails(mg.Padding):
        fails = False

        def padding_method(self):
            return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

        def destination_descriptor(self, _images, _states, _kernel, suggested):
            if self.fails:
                raise LookupError("no place")
            return suggested

    policy = Fails()
    node = convolution(g.ImageNode("x"), sample(rng, (4, 3, 3, 4)))
    node.padding_policy = policy
    graph = float_graph(device, [node])
    x = sample(rng)
    graph(x)
    policy.fails = True
    with pytest.raises(LookupError, match="no place"):
        graph.encode_batch(queue.command_buffer(), [mg.ImageBatch.from_array(device, x)])


def test_a_policy_of_ones_own_is_not_inverted(device, rng):
    """Gradient nodes are made without the inverse of a policy that is the user's."""
    w, x, dy = sample(rng, (4, 3, 3, 4)), sample(rng), sample(rng)
    results = []
    for kind in (device, "cpu"):
        node = convolution(g.ImageNode("x"), w)
        node.padding_policy = Shifted()
        node.training_style = g.TrainingStyle.NONE
        graph = float_graph(kind, [node.gradient_filter(g.ImageNode("dy"))])
        results.append(graph({"x": x, "dy": dy}).result)
        if kind is device:
            assert is_one_graph(graph)
    assert_same_bytes(*results)


class Itself(mg.Padding):
    """A policy of one's own that changes nothing, nor does its inverse."""

    def padding_method(self):
        return mg.PaddingMethod.SIZE_SAME | mg.PaddingMethod.CUSTOM

    def destination_descriptor(self, _images, _states, _kernel, suggested):
        return suggested

    def inverse(self):
        return self


class Inverted(Shifted):
    """A policy whose inverse is one of ours too, which gradient nodes of Apple's cannot have."""

    def inverse(self):
        return Shifted()


def test_what_apple_has_not_is_encoded_kernel_by_kernel(device):
    node = g.PoolingMaxNode(g.ImageNode("x"), 3, 1)
    node.padding_policy = Inverted()
    gradient = node.gradient_filter(g.ImageNode("dy"))
    graph = float_graph(device, [gradient])
    assert not is_one_graph(graph)
    assert "kernel by kernel: the padding policy of PoolingMaxGradientNode" in (
        graph.debug_description
    )


def test_states_that_an_update_keeps(device, rng):
    kept = []

    class Keeps(mg.ArrayConvolutionDataSource):
        def update(self, command_buffer, gradient_state, source_state):
            mg.synchronize([gradient_state, source_state], command_buffer)
            kept.append((gradient_state, source_state))

    w, x, labels = sample(rng, (4, 1, 1, 4)), sample(rng), sample(rng)
    graph = trained(device, g.ConvolutionNode(g.ImageNode("x"), Keeps(w, np.zeros(4))))
    graph(x, labels)
    ((gradient, source),) = kept
    kept.clear()  # nothing keeps itself
    error = 2 * (np.einsum("nyxi,oi->nyxo", x, w[:, 0, 0]) - labels)
    assert_exact(source.weights.to_numpy(), w.ravel())
    assert_exact(
        gradient.gradient_for_weights.to_numpy(), np.einsum("nyxo,nyxi->oi", error, x).ravel()
    )
    command_buffer = device.command_queue().command_buffer()
    result = mg.ConvolutionWeightsAndBiasesState.for_descriptor(
        device, mg.ArrayConvolutionDataSource(w, np.zeros(4)).descriptor()
    )
    with pytest.raises(mg.errors.StateError, match="lent this state to an update"):
        mg.SGD(1.0, device=device).encode_convolution(
            command_buffer, gradient, source, None, result
        )


def test_a_state_whose_update_is_over_serves_no_kernel(device, rng):
    kept = []

    class Keeps(mg.ArrayConvolutionDataSource):
        def update(self, _command_buffer, gradient_state, _source_state):
            kept.append(gradient_state)

    w, x, labels = sample(rng, (4, 1, 1, 4)), sample(rng), sample(rng)
    graph = trained(device, g.ConvolutionTransposeNode(g.ImageNode("x"), Keeps(w, np.zeros(4))))
    graph(x, labels)
    (state,) = kept
    kept.clear()  # nothing keeps itself
    images = [mg.ImageBatch.from_array(device, values) for values in (labels, x)]
    kernel = mg.ConvolutionTransposeGradient(mg.ArrayConvolutionDataSource(w), device=device)
    command_buffer = device.command_queue().command_buffer()
    with pytest.raises(mg.errors.StateError, match="ConvolutionTransposeGradient: no forward"):
        kernel.encode_batch(command_buffer, *images, [state] * len(x), allocator=mg.DEFAULT)


def test_a_graph_may_go_before_its_work(device, queue, rng):
    updated = []

    class Looks(mg.ArrayConvolutionDataSource):
        def update_cpu(self, gradient_state, _source_state):
            updated.append(gradient_state.gradient_for_weights.to_numpy())
            return True

    node = g.ConvolutionNode(g.ImageNode("x"), Looks(sample(rng, (4, 1, 1, 4))))
    node.training_style = g.TrainingStyle.CPU
    graph = trained(device, node)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, sample(rng))
    graph.encode_batch(command_buffer, [images], [mg.LossLabels.batch(device, sample(rng))])
    del graph, node
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert len(updated) == 1


def test_an_update_by_the_cpu_is_left_out_where_the_work_failed(device, queue, rng, emulator):
    """And the next encode neither waits for it nor raises."""
    source = networks.Recorder(sample(rng, (4, 1, 1, 4)), np.zeros(4))
    graph = trained(device, networks.convolution(g.ImageNode("x"), source))
    images = mg.ImageBatch.from_array(device, sample(rng))
    calls = []
    for code in (0, 3, 0):
        command_buffer = queue.command_buffer()
        graph.encode_batch(command_buffer, images, [mg.LossLabels.batch(device, sample(rng))])
        emulator.set("fail_next", code)
        command_buffer.commit()
        with pytest.raises(mg.errors.CommandBufferError) if code else contextlib.nullcontext():
            command_buffer.wait_until_completed()
        calls.append(len(source.calls))
    assert calls == [1, 1, 2]


def test_a_future_has_what_went_wrong(device, rng, emulator):
    graph = float_graph(device, [g.NeuronLinearNode(g.ImageNode("x"), 2.0)])
    image = mg.ImageBatch.from_array(device, sample(rng))[0]
    emulator.set("fail_next", 3)
    future = graph.execute_async(image)
    with pytest.raises(mg.errors.CommandBufferError, match="execution failed") as caught:
        future.result(timeout=60)
    assert caught.value.code == 3
    assert_exact(graph.execute_async(image).result(timeout=60).read(), 2 * image.read())


def test_allocators_of_ones_own(device, queue, rng):
    made = []

    def allocator(_command_buffer, descriptor, _kernel):
        made.append(mg.Image(device, descriptor))
        return made[-1]

    inner = g.NeuronLinearNode(g.ImageNode("x"), 2.0)
    inner.result_image.image_allocator = allocator
    graph = float_graph(device, [g.NeuronLinearNode(inner, 3.0)])
    graph.destination_image_allocator = allocator
    assert is_one_graph(graph)
    x = sample(rng)
    with queue.command_buffer() as command_buffer:
        result = graph.encode_batch(command_buffer, [mg.ImageBatch.from_array(device, x)]).result
        mg.synchronize(result, command_buffer)
    command_buffer.wait_until_completed()
    assert len(made) == 2 * len(x)
    assert all(image in made for image in result)
    assert_exact(result.to_array(), 6 * x)


def test_an_exception_of_an_allocator_comes_out_of_the_encode(device, queue, rng):
    def allocator(_command_buffer, _descriptor, _kernel):
        raise LookupError("no room")

    graph = float_graph(device, [g.NeuronLinearNode(g.ImageNode("x"), 2.0)])
    graph.destination_image_allocator = allocator
    with pytest.raises(LookupError, match="no room"):
        graph.encode_batch(queue.command_buffer(), [mg.ImageBatch.from_array(device, sample(rng))])


class Channels:
    """A data source of any normalization: gamma 2, beta 1, mean 0, variance 1."""

    number_of_feature_channels = 4
    number_of_groups = 2
    gamma = np.full(4, 2.0, np.float32)
    beta = np.ones(4, np.float32)
    mean = np.zeros(4, np.float32)
    variance = np.ones(4, np.float32)
    epsilon = 1e-3
    label = None

    def load(self):
        return True

    def purge(self):
        pass


def always(node):
    node.flags = g.BatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS
    return node


STATES = {
    "ConvolutionGradientState": lambda x, rng: convolution(x, sample(rng, (4, 3, 3, 4))),
    "ConvolutionTransposeGradientState": lambda x, rng: g.ConvolutionTransposeNode(
        x, mg.ArrayConvolutionDataSource(sample(rng, (4, 3, 3, 4)))
    ),
    "BatchNormalizationState": lambda x, _: always(g.BatchNormalizationNode(x, Channels())),
    "InstanceNormalizationGradientState": lambda x, _: g.InstanceNormalizationNode(x, Channels()),
    "GroupNormalizationGradientState": lambda x, _: g.GroupNormalizationNode(x, Channels()),
    "DropoutGradientState": lambda x, _: g.DropoutNode(x),
    "ArithmeticGradientState": lambda x, _: g.AdditionNode(x, x),
    "ForwardLossState": lambda x, _: g.ForwardLossNode(
        x,
        x,
        loss_descriptor=mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM),
    ),
    "GradientState": lambda x, _: g.SoftMaxNode(x),
}


@pytest.mark.parametrize("temporary", [False, True], ids=["ordinary", "temporary"])
@pytest.mark.parametrize("name", STATES)
def test_exported_states(device, queue, rng, name, temporary):
    node = STATES[name](g.ImageNode("x"), rng)
    node.result_state.export_from_graph = True
    graph = float_graph(device, [node])
    graph.output_state_is_temporary = temporary
    assert is_one_graph(graph)
    command_buffer = queue.command_buffer()
    images = mg.ImageBatch.from_array(device, sample(rng))
    (states,) = graph.encode_batch(command_buffer, [images]).states
    assert len(states) == len(images)
    assert {type(state).__name__ for state in states} == {name}
    assert {state.is_temporary for state in states} == {temporary}
    for state in set(states):
        if temporary:
            assert state.read_count == 1
            state.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()


def test_a_temporary_state_of_a_graph_serves_a_kernel(device, queue, rng):
    """Apple's arrays of gradients then lie in a heap, out of which ours are copied."""
    node = always(g.BatchNormalizationNode(g.ImageNode("x"), Channels()))
    node.result_state.export_from_graph = True
    graph = float_graph(device, [node])
    graph.output_state_is_temporary = True
    x, dy = sample(rng), sample(rng)
    images, gradients = (mg.ImageBatch.from_array(device, values) for values in (x, dy))
    with queue.command_buffer() as command_buffer:
        state = graph.encode_batch(command_buffer, [images]).states[0][0]
        state.read_count = 2
        mg.BatchNormalizationStatisticsGradient(device=device).encode_batch(
            command_buffer, gradients, images, state
        )
        dx = mg.BatchNormalizationGradient(device=device).encode_batch(
            command_buffer, gradients, images, state, allocator=mg.DEFAULT
        )
        mg.synchronize(dx, command_buffer)
    command_buffer.wait_until_completed()
    axes = (0, 1, 2)
    scale = 1 / np.sqrt(x.var(axes, dtype=np.float64) + Channels.epsilon)
    normalized = (x - x.mean(axes, dtype=np.float64)) * scale
    expected = dy - dy.mean(axes) - normalized * (dy * normalized).mean(axes)
    np.testing.assert_allclose(
        dx.to_array(), Channels.gamma * scale * expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("late", [0, 1])
def test_gradients_of_gamma_and_beta_may_appear_late(device, queue, rng, emulator, late):
    """With the gradient of the source; before it, they are NaN."""
    emulator.set("batch_gradients_late", late)
    x, dy = sample(rng), sample(rng)
    images, gradients, results = (mg.ImageBatch.from_array(device, each) for each in (x, dy, x))
    source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=4)
    forward = mg.BatchNormalization(source, device=device)
    state = forward.result_state(images[0], results[0])
    found = []
    for last in (False, True):
        with queue.command_buffer() as command_buffer:
            if not last:
                mg.BatchNormalizationStatistics(device=device).encode_batch(
                    command_buffer, images, state
                )
                forward.encode_batch(
                    command_buffer, images, results, batch_normalization_state=state
                )
                mg.BatchNormalizationStatisticsGradient(device=device).encode_batch(
                    command_buffer, gradients, images, state
                )
            else:
                mg.BatchNormalizationGradient(device=device).encode_batch(
                    command_buffer, gradients, images, state, allocator=mg.DEFAULT
                )
            mg.synchronize([state], command_buffer)
        command_buffer.wait_until_completed()
        found.append([state.gradient_for_beta.to_numpy(), state.gradient_for_gamma.to_numpy()])
    axes = (0, 1, 2)
    scale = 1 / np.sqrt(x.var(axes, dtype=np.float64) + forward.epsilon)
    normalized = (x - x.mean(axes, dtype=np.float64)) * scale
    for beta, gamma in found[late:]:
        assert_exact(beta, dy.sum(axes))
        np.testing.assert_allclose(gamma, (dy * normalized).sum(axes), rtol=1e-4, atol=1e-4)
    for each in found[0] if late else []:
        assert np.isnan(each).all()


@pytest.mark.parametrize("late", [0, 1])
def test_steps_read_gradients_of_gamma_and_beta_that_appear_late(device, rng, emulator, late):
    """In a graph that is encoded kernel by kernel, where nobody reads the gradient itself."""
    emulator.set("batch_gradients_late", late)
    trained_gammas = []
    x, labels = sample(rng), sample(rng)
    for kind in (device, "cpu"):
        source = mg.ArrayBatchNormalizationDataSource(
            np.ones(4), np.zeros(4), optimizer=mg.SGD(2.0**-6, device=kind)
        )
        pooling = g.PoolingMaxNode(g.BatchNormalizationNode(g.ImageNode("x"), source), 3, 1)
        pooling.padding_policy = Itself()
        graph = trained(kind, pooling)
        assert not is_one_graph(graph)
        graph(x, labels)
        trained_gammas.append(source.checkpoint()["gamma"])
    assert (trained_gammas[1] != 1).all()
    np.testing.assert_allclose(*trained_gammas, rtol=1e-4)


def test_an_exported_state_serves_a_kernel(device, queue, rng):
    node = convolution(g.ImageNode("x"), sample(rng, (4, 3, 3, 4)), np.zeros(4))
    node.result_state.export_from_graph = True
    graph = float_graph(device, [node])
    x, dy = sample(rng), sample(rng)
    images, gradients = (mg.ImageBatch.from_array(device, values) for values in (x, dy))
    gradient = mg.ConvolutionGradient(node.weights, device=device)
    with queue.command_buffer() as command_buffer:
        (states,) = graph.encode_batch(command_buffer, [images]).states
        dx = gradient.encode_batch(command_buffer, gradients, images, states, allocator=mg.DEFAULT)
        mg.synchronize(dx, command_buffer)
        mg.synchronize(states, command_buffer)
    command_buffer.wait_until_completed()
    forward = mg.Convolution(node.weights, device="cpu")
    backward = mg.ConvolutionGradient(node.weights, device="cpu")
    _, state = forward(x, with_state=True)
    assert_same_bytes(dx.to_array(), backward(dy, x, state))
    assert_same_bytes(
        states[0].gradient_for_weights.to_numpy(), state.gradient_for_weights.to_numpy()
    )
