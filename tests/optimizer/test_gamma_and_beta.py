"""Optimizers over the summed gradients of normalization states, one an image or one a batch."""

import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.images import Work, filled
from tests.optimizer.cases import DESCRIPTOR
from tests.optimizer.states import outcome, results, run, vectors

RATE = 0.25
MAXIMUM = np.array([2, 0.125, 2], np.float32)  # of velocities of about 0.5
X = (np.arange(3 * 2 * 4 * 3) % 7).reshape(3, 2, 4, 3).astype(np.float32)
G = (np.arange(3 * 2 * 4 * 3) % 5 - 2).reshape(3, 2, 4, 3).astype(np.float32)
GAMMA, BETA = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)


def instance(device, images=3):
    source = mg.ArrayInstanceNormalizationDataSource(GAMMA, BETA)
    _, states = mg.InstanceNormalization(source, device=device)(X[:images], with_state=True)
    mg.InstanceNormalizationGradient(device=device)(G[:images], X[:images], states)
    return states


def group(device):
    source = mg.ArrayGroupNormalizationDataSource(GAMMA, BETA, number_of_groups=1)
    _, states = mg.GroupNormalization(source, device=device)(X, with_state=True)
    mg.GroupNormalizationGradient(device=device)(G, X, states)
    return states


def batch(device):
    source = mg.ArrayBatchNormalizationDataSource(GAMMA, BETA)
    _, state = mg.BatchNormalization(source, device=device)(X, with_state=True)
    mg.BatchNormalizationStatisticsGradient(device=device)(G, X, state)
    return [state]


def sums(states):
    """The gradients' sums over the states, added up as float32 in their order."""
    return tuple(
        np.add.reduce([np.array(getattr(state, name).to_numpy()) for state in states], dtype="f4")
        for name in ("gradient_for_gamma", "gradient_for_beta")
    )


def values(device):
    return mg.NormalizationGammaAndBetaState(GAMMA, BETA, device=device)


@pytest.mark.parametrize("histories", [None, 1, 2])
@pytest.mark.parametrize("states_of", [instance, group, batch])
def test_descent(device, states_of, histories):
    states = states_of(device)
    of_gamma, of_beta = sums(states)
    result = outcome(device)
    given = None if histories is None else vectors(device, *[3] * histories)
    descent = mg.StochasticGradientDescent(RATE, momentum_scale=0.5, device=device)
    run(device, lambda b: descent.encode_gamma_beta(b, states, values(device), given, result))
    gamma, beta = results(result)
    np.testing.assert_array_equal(gamma, GAMMA - RATE * of_gamma)
    expected = np.full(3, 7.0) if histories == 1 else BETA - RATE * of_beta
    np.testing.assert_array_equal(beta, expected)
    assert (result.gamma.to_numpy()[3], result.beta.to_numpy()[3]) == (7, 7)


@pytest.mark.parametrize("cls", [mg.RMSProp, mg.Adam], ids=["rmsprop", "adam"])
def test_one_step_of_two_parameters(device, cls):
    """As two encodes over vectors of the sums, each of which is the first step."""
    states, held = instance(device), values(device)
    kinds = 2 if cls is mg.Adam else 1
    optimizer, plain = cls(RATE, device=device), cls(RATE, device=device)
    histories, own = ([vectors(device, 3, 3) for _ in range(kinds)] for _ in range(2))

    def both(work):
        optimizer.encode_gamma_beta(work, states, held, *histories, held)

    def one(work, i, gradient, old, result):
        given = (mg.Vector.from_array(device, np.array(array)) for array in (gradient, old))
        plain.encode_vector(work, *given, *(kind[i] for kind in own), result)

    for step in range(2):
        before = [np.array(array) for array in results(held)]
        run(device, both)
        for i, (gradient, new) in enumerate(zip(sums(states), results(held), strict=True)):
            if cls is mg.Adam:
                plain.time_step = step
            result = mg.Vector(device, mg.VectorDescriptor(3))
            with Work(device) as work:
                one(work.buffer, i, gradient, before[i], result)
                result.synchronize(work.buffer)
            np.testing.assert_array_equal(new, result.to_numpy())
    if cls is mg.Adam:
        assert optimizer.time_step == 2


def test_temporary_states_are_read_once(device):
    source = mg.ArrayInstanceNormalizationDataSource(GAMMA, BETA)
    forward = mg.InstanceNormalization(source, device=device)
    backward = mg.InstanceNormalizationGradient(device=device)
    forward.destination_image_allocator = backward.destination_image_allocator = mg.DEFAULT
    descent = mg.SGD(RATE, device=device)
    result = outcome(device)
    x, g = filled(device, X), filled(device, G)
    with Work(device) as work:
        _, states = forward.encode_batch(work.buffer, x, with_state=True, temporary_state=True)
        mg.increment_read_count(states, 1)
        backward.encode_batch(work.buffer, g, x, states)
        assert [state.read_count for state in states] == [1, 1, 1]
        descent.encode_gamma_beta(work.buffer, states, values(device), None, result)
        assert [state.read_count for state in states] == [0, 0, 0]
    of_gamma, of_beta = sums(instance(device))
    gamma, beta = results(result)
    np.testing.assert_array_equal(gamma, GAMMA - RATE * of_gamma)
    np.testing.assert_array_equal(beta, BETA - RATE * of_beta)


def test_a_temporary_source_state_is_read_once(device):
    """Also where it is the result, and a temporary result is not read."""
    states = instance(device)
    descent = mg.SGD(RATE, device=device)
    final = outcome(device)
    with Work(device) as work:
        first, second = (
            mg.NormalizationGammaAndBetaState.temporary(work.buffer, 3) for _ in range(2)
        )
        first.read_count = 2
        descent.encode_gamma_beta(work.buffer, states, values(device), None, first)
        assert first.read_count == 2
        descent.encode_gamma_beta(work.buffer, states, first, None, first)
        assert first.read_count == 1
        descent.encode_gamma_beta(work.buffer, states, first, None, second)
        assert (first.read_count, second.read_count) == (0, 1)
        descent.encode_gamma_beta(work.buffer, states, second, None, final)
        assert second.read_count == 0
    expected = GAMMA
    for _ in range(4):
        expected = expected - np.float32(RATE) * sums(states)[0]
    np.testing.assert_array_equal(results(final)[0], expected)


def test_data_sources_read_temporary_states_once(device):
    instances = mg.ArrayInstanceNormalizationDataSource(
        GAMMA.copy(), BETA.copy(), optimizer=mg.SGD(RATE, device=device)
    )
    forward = mg.InstanceNormalization(instances, device=device)
    backward = mg.InstanceNormalizationGradient(device=device)
    forward.destination_image_allocator = backward.destination_image_allocator = mg.DEFAULT
    x, g = filled(device, X), filled(device, G)
    with Work(device) as work:
        _, states = forward.encode_batch(work.buffer, x, with_state=True, temporary_state=True)
        mg.increment_read_count(states, 1)
        backward.encode_batch(work.buffer, g, x, states)
        instances.update_gamma_and_beta(work.buffer, states)
        assert [state.read_count for state in states] == [0, 0, 0]
    instances.load()
    np.testing.assert_array_equal(instances.gamma, GAMMA - RATE * sums(instance(device))[0])


def test_a_batch_normalization_source_reads_a_temporary_state_once_an_update(device):
    source = mg.ArrayBatchNormalizationDataSource(
        GAMMA.copy(),
        BETA.copy(),
        np.zeros(3, np.float32),
        np.ones(3, np.float32),
        optimizer=mg.SGD(RATE, device=device),
    )
    kernel = mg.BatchNormalization(source, device=device)
    x, g = filled(device, X), filled(device, G)
    with Work(device) as work:
        state = kernel.temporary_result_state(work.buffer, x[0], x[0])
        state.read_count = 3
        mg.BatchNormalizationStatistics(device=device).encode_batch(work.buffer, x, state)
        mg.BatchNormalizationStatisticsGradient(device=device).encode_batch(
            work.buffer, g, x, state
        )
        counts = [state.read_count]
        source.update_gamma_and_beta(work.buffer, state)
        counts.append(state.read_count)
        source.update_mean_and_variance(work.buffer, state)
        assert [*counts, state.read_count] == [2, 1, 0]


def mixed(device):
    source = mg.ArrayInstanceNormalizationDataSource(number_of_feature_channels=2)
    _, states = mg.InstanceNormalization(source, device=device)(X[:1, ..., :2], with_state=True)
    gradient = mg.InstanceNormalizationGradient(device=device)
    gradient(G[:1, ..., :2].copy(), X[:1, ..., :2].copy(), states)
    return [*instance(device), *states]


def unfinished(device):
    source = mg.ArrayInstanceNormalizationDataSource(GAMMA, BETA)
    return mg.InstanceNormalization(source, device=device)(X, with_state=True)[1]


REJECTED = {
    "no state": (lambda _: [], {}, ValueError, "states must hold one state at least"),
    "twice": (lambda d: instance(d) * 2, {}, ValueError, "states hold a InstanceNormalization"),
    "of another kind": (
        lambda d: [mg.State(d, 4)],
        {},
        TypeError,
        "states must hold gradients of gamma and beta, got State",
    ),
    "channels": (mixed, {}, ValueError, "states must be of as many channels, got 3 and 2"),
    "no gradients": (
        unfinished,
        {},
        mg.errors.StateError,
        "the InstanceNormalizationGradientState has no gradients yet",
    ),
    "source": (
        instance,
        {"source": lambda _: None},
        TypeError,
        "source_state must be a NormalizationGammaAndBetaState, got None",
    ),
    "result": (
        instance,
        {"result": lambda d: mg.NormalizationGammaAndBetaState([1] * 2, [1] * 2, device=d)},
        ValueError,
        "result_state holds 2 values an array, but the states are of 3 channels",
    ),
    "history": (
        instance,
        {"history": lambda d: [mg.Vector(d, mg.VectorDescriptor(4))] * 2},
        ValueError,
        "momentum_vectors[0] has shape",
    ),
}


@pytest.mark.parametrize(
    ("states_of", "other", "error", "words"), REJECTED.values(), ids=list(REJECTED)
)
def test_rejects(device, states_of, other, error, words):
    states = states_of(device)
    source = other.get("source", values)(device)
    result = other.get("result", outcome)(device)
    momentum = other.get("history", lambda d: vectors(d, 3, 3))(device)
    adam = mg.Adam(RATE, device=device)
    command_buffer = device.command_queue().command_buffer()
    with pytest.raises(error, match=re.escape(f"Adam: {words}")):
        adam.encode_gamma_beta(
            command_buffer, states, source, momentum, vectors(device, 3, 3), result
        )
    assert adam.time_step == 0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    if "result" not in other:
        assert result.gamma.to_numpy().tolist() == [7] * 4


@pytest.mark.parametrize("states_of", [instance, group, batch])
def test_every_setting_holds_for_the_sum(device, states_of):
    """It is rescaled, clipped and regularized once, not the gradients of each image."""
    states = states_of(device)
    result = outcome(device)
    optimizer = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=device)
    run(device, lambda b: optimizer.encode_gamma_beta(b, states, values(device), None, result))
    plain = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=device)
    bare = mg.SGD(RATE, device=device)
    for new, g, old in zip(results(result), sums(states), (GAMMA, BETA), strict=True):
        np.testing.assert_array_equal(new, plain(g, old))
        assert np.any(new != bare(g, old))


def test_amsgrad_keeps_the_maximum_of_both(device):
    states = instance(device)
    momentum, velocity, maximum = (vectors(device, 3, 3) for _ in range(3))
    for kind, start in ((momentum, 0.0), (velocity, 0.5), (maximum, MAXIMUM)):
        for vector in kind:
            np.asarray(vector)[:] = start
    result = outcome(device)
    adam = mg.Adam(RATE, device=device)
    run(
        device,
        lambda b: adam.encode_gamma_beta(
            b, states, values(device), momentum, velocity, result, maximum_velocity_vectors=maximum
        ),
    )
    for i, (g, old) in enumerate(zip(sums(states), (GAMMA, BETA), strict=True)):
        m, v, most = np.zeros(3, np.float32), np.full(3, 0.5, np.float32), MAXIMUM.copy()
        expected = mg.Adam(RATE, device=device)(g, old, m, v, maximum_velocity=most)
        np.testing.assert_array_equal(results(result)[i], expected)
        np.testing.assert_array_equal(np.asarray(maximum[i]), most)
        assert (most == MAXIMUM).tolist() == [True, False, True]
