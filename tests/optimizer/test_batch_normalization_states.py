"""Optimizers over the states of batch normalization."""

import mpsgrad as mg
import numpy as np
import pytest

from tests.images import Work, filled
from tests.optimizer.cases import DESCRIPTOR
from tests.optimizer.states import outcome, results, run, vectors
from tests.rejects import rejects

RATE = 0.25
MAXIMUM = np.array([2, 0.125, 2], np.float32)  # of velocities of about 0.5
X = (np.arange(2 * 3 * 4 * 3) % 7).reshape(2, 3, 4, 3).astype(np.float32)
G = (np.arange(2 * 3 * 4 * 3) % 5 - 2).reshape(2, 3, 4, 3).astype(np.float32)
GAMMA, BETA = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)


def trained(device, gamma=GAMMA, beta=BETA, images=2):
    """A state whose gradients are complete, or of the first image only, and its gradients."""
    source = mg.ArrayBatchNormalizationDataSource(gamma, beta, number_of_feature_channels=3)
    kernel = mg.BatchNormalization(source, device=device)
    _, state = kernel(X, with_state=True)
    mg.BatchNormalizationStatisticsGradient(device=device)(G[:images], X[:images], state)
    return state, state.gradient_for_gamma.to_numpy(), state.gradient_for_beta.to_numpy()


@pytest.mark.parametrize("histories", [None, 1, 2])
def test_descent(device, histories):
    state, of_gamma, of_beta = trained(device)
    result = outcome(device)
    given = None if histories is None else vectors(device, *[3] * histories)
    descent = mg.StochasticGradientDescent(RATE, momentum_scale=0.5, device=device)
    run(device, lambda b: descent.encode_batch_normalization(b, state, given, result))
    gamma, beta = results(result)
    np.testing.assert_array_equal(gamma, GAMMA - RATE * of_gamma)
    expected = np.full(3, 7.0) if histories == 1 else BETA - RATE * of_beta
    np.testing.assert_array_equal(beta, expected)
    assert (result.gamma.to_numpy()[3], result.beta.to_numpy()[3]) == (7, 7)
    assert state.gamma.to_numpy().tolist() == GAMMA.tolist()


@pytest.mark.parametrize("cls", [mg.RMSProp, mg.Adam], ids=["rmsprop", "adam"])
@pytest.mark.parametrize("histories", [1, 2])
def test_the_same_as_over_vectors(device, cls, histories):
    state, *gradients = trained(device)
    result = outcome(device)
    count = 1 if cls is mg.RMSProp else 2
    stored = [vectors(device, *[3] * histories) for _ in range(count)]
    optimizer = cls(RATE, device=device)
    run(device, lambda b: optimizer.encode_batch_normalization(b, state, *stored, result))
    for i in range(histories):
        single = cls(RATE, device=device)
        gradient, values, *history, out = vectors(device, *[3] * (3 + count))
        np.asarray(gradient)[:] = gradients[i]
        np.asarray(values)[:] = (GAMMA, BETA)[i]
        run(device, lambda b: single.encode_vector(b, gradient, values, *history, out))  # noqa: B023
        np.testing.assert_array_equal(results(result)[i], np.asarray(out))


def test_values_of_another_state(device):
    state, of_gamma, _ = trained(device)
    other, *_ = trained(device, gamma=GAMMA + 10)
    result = outcome(device)
    descent = mg.StochasticGradientDescent(RATE, device=device)
    run(
        device,
        lambda b: descent.encode_batch_normalization(b, state, None, result, source_state=other),
    )
    np.testing.assert_array_equal(results(result)[0], GAMMA + 10 - RATE * of_gamma)


def test_a_kernel_without_beta(device):
    state, of_gamma, _ = trained(device, beta=None)
    result = outcome(device)
    descent = mg.StochasticGradientDescent(RATE, device=device)
    run(device, lambda b: descent.encode_batch_normalization(b, state, None, result))
    np.testing.assert_array_equal(results(result)[0], GAMMA - RATE * of_gamma)
    assert results(result)[1].tolist() == [7, 7, 7]


def test_temporary_states_are_read_once(device):
    x, g = filled(device, X), filled(device, G)
    source = mg.ArrayBatchNormalizationDataSource(GAMMA, BETA)
    kernel = mg.BatchNormalization(source, device=device)
    descent = mg.StochasticGradientDescent(RATE, device=device)
    with Work(device) as work:
        state = kernel.temporary_result_state(work.buffer, x[0], x[0])
        state.read_count = 2
        mg.BatchNormalizationStatistics(device=device).encode_batch(work.buffer, x, state)
        mg.BatchNormalizationStatisticsGradient(device=device).encode_batch(
            work.buffer, g, x, state
        )
        result = mg.NormalizationGammaAndBetaState.temporary(work.buffer, 3)
        descent.encode_batch_normalization(work.buffer, state, None, result)
        assert (state.read_count, result.read_count) == (0, 1)
        kernel.reload_gamma_and_beta(work.buffer, result)
        assert result.read_count == 0
    _, of_gamma, _ = trained(device)
    fresh = kernel.result_state(x[0], x[0])
    np.testing.assert_array_equal(fresh.gamma.to_numpy()[:3], GAMMA - RATE * of_gamma)


def test_a_temporary_state_with_the_values_is_read_once(device):
    state, of_gamma, _ = trained(device)
    x = filled(device, X)
    source = mg.ArrayBatchNormalizationDataSource(GAMMA + 10, BETA)
    kernel = mg.BatchNormalization(source, device=device)
    result = outcome(device)
    descent = mg.StochasticGradientDescent(RATE, device=device)
    with Work(device) as work:
        other = kernel.temporary_result_state(work.buffer, x[0], x[0])
        other.read_count = 2
        for left in (1, 0):
            descent.encode_batch_normalization(work.buffer, state, None, result, source_state=other)
            assert other.read_count == left
    np.testing.assert_array_equal(results(result)[0], GAMMA + 10 - RATE * of_gamma)


def test_rejections(device, queue):
    state, *_ = trained(device)
    partial, *_ = trained(device, images=1)
    bare, *_ = trained(device, gamma=None, beta=None)
    no_beta, *_ = trained(device, beta=None)
    result, buffer = outcome(device), queue.command_buffer()
    descent = mg.StochasticGradientDescent(RATE, momentum_scale=0.5, device=device)
    encode = descent.encode_batch_normalization
    with rejects(mg.errors.StateError, "of 1 of the batch's 2 images"):
        encode(buffer, partial, None, result)
    with rejects(ValueError, "batch_normalization_state has no gamma to update"):
        encode(buffer, bare, None, result)
    with rejects(ValueError, "the kernel of source_state has no beta to update"):
        encode(buffer, state, vectors(device, 3, 3), result, source_state=no_beta)
    with rejects(ValueError, "momentum_vectors[0] has shape (4,)"):
        encode(buffer, state, vectors(device, 4), result)
    with rejects(ValueError, "must hold 1 or 2 vectors, got 3"):
        encode(buffer, state, vectors(device, 3, 3, 3), result)
    short = mg.NormalizationGammaAndBetaState([1] * 2, [1] * 2, device=device)
    with rejects(ValueError, "result_state holds 2 values an array, but the kernel has 3 channels"):
        encode(buffer, state, None, short)
    with rejects(TypeError, "result_state must be a NormalizationGammaAndBetaState, got Batch"):
        encode(buffer, state, None, state)
    with rejects(TypeError, "batch_normalization_state must be a BatchNormalizationState"):
        encode(buffer, result, None, result)
    shared = mg.NormalizationGammaAndBetaState(state.gradient_for_gamma, mg.Buffer(device, 12))
    with rejects(ValueError, "the momentum of the gamma shares memory with the gradient"):
        momentum = [mg.Vector(shared.gamma, mg.VectorDescriptor(3))]
        encode(buffer, state, momentum, result)


def test_every_setting_holds(device):
    """As over arrays: rescaled, clipped and regularized."""
    state, *gradients = trained(device)
    result = outcome(device)
    optimizer = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=device)
    run(device, lambda b: optimizer.encode_batch_normalization(b, state, None, result))
    plain = mg.SGD(optimizer_descriptor=DESCRIPTOR, device=device)
    bare = mg.SGD(RATE, device=device)
    for new, g, old in zip(results(result), gradients, (GAMMA, BETA), strict=True):
        np.testing.assert_array_equal(new, plain(g, old))
        assert np.any(new != bare(g, old))


@pytest.mark.parametrize("with_source", [False, True])
def test_amsgrad_keeps_the_maximum_of_both(device, with_source):
    state, *gradients = trained(device)
    source = trained(device)[0] if with_source else None
    momentum, velocity, maximum = (vectors(device, 3, 3) for _ in range(3))
    for kind, start in ((momentum, 0.0), (velocity, 0.5), (maximum, MAXIMUM)):
        for vector in kind:
            np.asarray(vector)[:] = start
    result = outcome(device)
    adam = mg.Adam(RATE, device=device)
    run(
        device,
        lambda b: adam.encode_batch_normalization(
            b, state, momentum, velocity, result,
            maximum_velocity_vectors=maximum, source_state=source,
        ),
    )  # fmt: skip
    for i, (g, old) in enumerate(zip(gradients, (GAMMA, BETA), strict=True)):
        m, v, most = np.zeros(3, np.float32), np.full(3, 0.5, np.float32), MAXIMUM.copy()
        expected = mg.Adam(RATE, device=device)(g, old, m, v, maximum_velocity=most)
        np.testing.assert_array_equal(results(result)[i], expected)
        np.testing.assert_array_equal(np.asarray(maximum[i]), most)
        assert (most == MAXIMUM).tolist() == [True, False, True]
