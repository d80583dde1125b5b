"""Numbers of the batch normalization kernels against the oracle and the worked example."""

import mpsgrad as mg
import numpy as np
import pytest

from tests.batch_normalization import cases, oracle
from tests.batch_normalization.support import (
    Step,
    cut,
    descriptor,
    forward_kernel,
    train,
    values,
)
from tests.core.oracle import DTYPES, load, store
from tests.images import Work, empty, filled, read
from tests.neuron import oracle as neurons
from tests.neuron.cases import Neuron
from tests.repeats import check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    ulps_for,
)

EPSILON = 1e-3
STEEPEST = 4  # no slope of the neurons in cases.py is larger
CURVED = 2  # nor how fast a smooth one's slope changes


def row(*numbers):
    return np.array(numbers, np.float32).reshape(1, 1, -1, 1)


def stored(x, channel_format):
    """What an image of the format holds of x, as float64."""
    return load(store(x, channel_format)).astype(np.float64)


def stored_in(state, count):
    """Return the statistics and the sums of a state, for the oracle."""
    names = ("mean", "variance", "gradient_for_gamma", "gradient_for_beta")
    mean, variance, *sums = (np.asarray(getattr(state, name), np.float64) for name in names)
    return oracle.Statistics(count, mean, variance), oracle.Sums(*sums)


def check_step(step, x, g, gamma, beta, neuron):
    """Compare a whole training step with the oracle, each stage given what the one before stored.

    The CPU device rounds statistics and sums once, from double; another may add up float32 numbers,
    each with four roundings of its own. Of float32 operations, the forward pass has a difference, a
    product and a sum, with one rounded coefficient; the gradient a difference, two products and two
    sums, with three rounded coefficients made of two rounded sums. Where a coefficient is not one
    rounding of a double, 1 / sqrt(variance + epsilon) has three and its product with gamma another.
    """
    given = {"epsilon": EPSILON, "neuron": neuron}
    exact = oracle.statistics(x)
    in_double = step.state.device.kind == "cpu"
    sum_ulps = 1 if in_double else ulps_for(exact.count + 4)
    mean, variance = step.number("mean"), step.number("variance")
    largest = np.abs(x).max(axis=(0, 1, 2))
    assert_close(mean, exact.mean, ulps=sum_ulps, floor=1e-6 * largest.max(), nonzero=0)
    # Squares of what was not exactly subtracted: far below an ULP of any variance but 0.
    floor = 1e-9 * largest.max() ** 2
    assert_close(variance, exact.variance, ulps=sum_ulps, floor=floor, nonzero=0)

    z_scale = oracle.forward_scale(x, mean, variance, gamma, beta, epsilon=EPSILON)
    z = oracle.forward(x, mean, variance, gamma, beta, epsilon=EPSILON)
    y = oracle.forward(x, mean, variance, gamma, beta, **given)
    steep = 1 if neuron is None else STEEPEST
    assert_close(
        step.y,
        y,
        ulps=ulps_for(4 if in_double else 7, step.y.dtype, functions=0 if neuron is None else 4),
        scale=np.maximum(steep * z_scale, np.abs(y)),
        floor=1e-6,
        nonzero=0,
    )

    sums = oracle.weight_gradients(g, x, mean, variance, gamma, beta, **given)
    inner = g if neuron is None else neurons.gradient(neuron.kind, g, z, **neuron.parameters)
    uncertain = 0 * g if neuron is None else np.abs(g) * (STEEPEST + CURVED * z_scale)
    x_hat = (np.abs(x) + np.abs(mean)) * oracle.reciprocal_deviation(variance, EPSILON)
    for name, total, terms, doubtful in (
        ("gradient_for_gamma", sums.gamma, np.abs(inner) * x_hat, uncertain * x_hat),
        ("gradient_for_beta", sums.beta, np.abs(inner), uncertain),
    ):
        # Each term's neuron adds a few roundings of its own.
        scale = np.abs(total) + 1e-7 * terms.sum(axis=(0, 1, 2)) + doubtful.sum(axis=(0, 1, 2))
        if not in_double:
            scale = terms.sum(axis=(0, 1, 2)) + doubtful.sum(axis=(0, 1, 2))
        assert_close(
            step.number(name),
            total,
            ulps=sum_ulps if neuron is None else sum_ulps + ulps_for(5, functions=6),
            scale=scale,
            nonzero=0,
        )

    batch, reported = stored_in(step.state, exact.count)
    dx = oracle.data_gradient(g, x, batch, reported, gamma, beta, **given)
    r = oracle.reciprocal_deviation(variance, EPSILON)
    gain = r if gamma is None else np.abs(gamma) * r
    scale = oracle.data_gradient_scale(inner, x, batch, reported, gamma, epsilon=EPSILON)
    assert_close(
        step.dx,
        dx,
        ulps=ulps_for(10 if in_double else 19, step.dx.dtype, functions=0 if neuron is None else 6),
        scale=scale + gain * uncertain,
        floor=1e-6,
        nonzero=0,
    )


def away_from_kinks(x, g, gamma, beta, neuron):
    """Silence the gradient where rounding could choose the other branch of the neuron."""
    s = oracle.statistics(x)
    z = oracle.forward(x, s.mean, s.variance, gamma, beta, epsilon=EPSILON)
    for kink in () if neuron is None else neurons.kinks(neuron.kind, **neuron.parameters):
        g = np.where(np.abs(z - kink) < 1e-2 * (1 + np.abs(z)), 0, g)
    return g


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
@pytest.mark.parametrize("case", [*cases.CASES, cases.MANY_CHANNELS], ids=str)
@pytest.mark.parametrize("channel_format", ["float32", "float16"])
def test_training_step(device, case, neuron, channel_format, rng):
    neuron = cases.neuron_for(neuron, case.channels)
    x = stored(1 + rng.standard_normal(case.shape), channel_format)
    gamma = rng.uniform(0.5, 2, case.channels).astype(np.float32)
    beta = rng.standard_normal(case.channels).astype(np.float32)
    g = away_from_kinks(x, rng.standard_normal(case.shape), gamma, beta, neuron)
    g = stored(g, channel_format)
    kernel = forward_kernel(device, case.channels, gamma, beta, epsilon=EPSILON, neuron=neuron)
    step = train(device, kernel, x, g, case.counts, neuron=neuron, channel_format=channel_format)
    check_step(step, x, g, gamma, beta, neuron)


@pytest.mark.parametrize("channels", [*range(1, 20), 31, 33, 63, 64, 65, 130, 300])
def test_any_number_of_channels(device, channels, rng):
    x, g = rng.standard_normal((2, 3, 5, 7, channels)).astype(np.float32)
    kernel = forward_kernel(device, channels, epsilon=EPSILON)
    step = train(device, kernel, x, g, (2, 1))
    check_step(step, x.astype(float), g.astype(float), None, None, None)


@pytest.mark.parametrize("size", [(1, 1), (97, 1), (61, 53), (128, 96)], ids=str)
def test_large_images(device, size, rng):
    x, g = rng.standard_normal((2, 2, size[1], size[0], 5)).astype(np.float32)
    gamma, beta = rng.uniform(1, 2, (2, 5)).astype(np.float32)
    step = train(device, forward_kernel(device, 5, gamma, beta), x, g, (1, 1))
    check_step(step, x.astype(float), g.astype(float), gamma, beta, None)


def test_long_runs(device, rng):
    """Images of several megabytes, which are summed in runs of another length."""
    x, g = rng.standard_normal((2, 1, 1100, 1001, 5), dtype=np.float32)
    step = train(device, forward_kernel(device, 5), x, g, (1,))
    check_step(step, x.astype(float), g.astype(float), None, None, None)


@pytest.mark.parametrize("shape", [(3, 32, 32, 768), (2, 23, 23, 2080)], ids=str)
def test_long_runs_of_many_channels(device, shape, rng):
    """Whose sums are found in bands of rows."""
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    step = train(device, forward_kernel(device, shape[3]), x, g, (1,) * shape[0])
    check_step(step, x.astype(float), g.astype(float), None, None, None)


def test_worked_example(device):
    a, b = row(1, 2), row(3, 6)
    g_a, g_b = row(1, 2), row(3, -1)
    relu = mg.NeuronDescriptor(mg.NeuronType.RELU)
    source = mg.ArrayBatchNormalizationDataSource([2], [1], epsilon=0.5)
    kernel = mg.BatchNormalization(source, relu, device=device)
    statistics = mg.BatchNormalizationStatistics(device=device)
    sums = mg.BatchNormalizationStatisticsGradient(relu, device=device)
    gradient = mg.BatchNormalizationGradient(relu, device=device)
    image = filled(device, a)[0]
    state = kernel.result_state(image, image)

    def shows(**expected):
        for name, value in expected.items():
            assert values(getattr(state, name), 1) == value, name

    statistics(a, state)
    shows(mean=1.5, variance=0.25)
    statistics(b, state)
    shows(mean=3, variance=3.5)
    assert state.gradient_for_gamma is None
    assert state.gradient_for_beta is None
    assert_exact(kernel(a, state).ravel(), [0, 0])
    assert_exact(kernel(b, state).ravel(), [1, 4])
    sums(g_a, a, state)
    shows(gradient_for_beta=2, gradient_for_gamma=-1)
    with pytest.raises(mg.errors.StateError, match="of 1 of the batch's 2 images"):
        gradient(g_a, a, state)
    sums(g_b, b, state)
    shows(gradient_for_beta=4, gradient_for_gamma=-2.5, gamma=2, beta=1, mean=3, variance=3.5)
    assert_exact(gradient(g_a, a, state).ravel(), [-1.625, 0.6875])
    assert_exact(gradient(g_b, b, state).ravel(), [2, -1.0625])


def worked(device, kind, neuron, *gradients):
    """Run the worked example with the kind of neuron, and `neuron` in the gradient kernels."""
    x = np.concatenate([row(1, 2), row(3, 6)])
    kernel = forward_kernel(device, 1, [2], [1], epsilon=0.5, neuron=Neuron(kind))
    return train(device, kernel, x, row(*gradients).reshape(2, 1, 2, 1), (1, 1), neuron=neuron)


def test_the_neuron_of_a_gradient_kernel_is_its_own(device):
    """Without one, the incoming gradient is that at the neuron's input."""
    step = worked(device, "RELU", None, 0, 2, 3, -1)
    assert_exact(step.y.ravel(), [0, 0, 1, 4])
    assert (step.number("gradient_for_gamma"), step.number("gradient_for_beta")) == (-2.5, 4)
    assert_exact(step.dx.ravel(), [-1.625, 0.6875, 2, -1.0625])


def test_an_absolute_value_has_no_slope_at_zero(device):
    step = worked(device, "ABSOLUTE", Neuron("ABSOLUTE"), 1, 2, 3, -1)
    assert_exact(step.y.ravel(), [1, 0, 1, 4])
    assert (step.number("gradient_for_gamma"), step.number("gradient_for_beta")) == (-0.5, 1)
    assert_exact(step.dx.ravel(), [-1.375, -0.3125, 2.75, -1.0625])


@pytest.mark.parametrize("counts", [(4,), (3, 1), (1, 3), (2, 2), (1, 1, 1, 1)], ids=str)
def test_exact_sums_give_exact_statistics(device, counts, rng):
    x = grid(rng, (4, 4, 8, 6), reach=9)
    g = grid(rng, (4, 4, 8, 6), reach=9)
    step = train(device, forward_kernel(device, 6), x, g, counts)
    exact = oracle.statistics(x)
    assert_exact(step.number("mean"), exact.mean)
    assert_exact(step.number("variance"), exact.variance)
    assert_exact(step.number("gradient_for_beta"), g.astype(float).sum(axis=(0, 1, 2)))


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_a_large_mean_does_not_cost_digits_of_the_variance(device, mean, rng):
    x = (mean + rng.standard_normal((8, 19, 23, 5))).astype(np.float32)
    step = train(device, forward_kernel(device, 5), x, np.ones_like(x), (1, 5, 2))
    exact = oracle.statistics(x)
    six_digits = 1e-6
    np.testing.assert_allclose(step.number("variance"), exact.variance, rtol=six_digits)
    assert_close(step.number("mean"), exact.mean, ulps=1)


@pytest.mark.parametrize("mean", [-1e2, 1e4, 1e6])
def test_a_large_mean_does_not_cost_digits_of_the_gradient_for_gamma(device, mean, rng):
    """About the mean that the state holds, which is rounded."""
    x = (mean + rng.standard_normal((8, 19, 23, 5))).astype(np.float32)
    g = rng.standard_normal(x.shape).astype(np.float32)
    step = train(device, forward_kernel(device, 5, epsilon=EPSILON), x, g, (1, 5, 2))
    held, variance = (step.number(name).astype(float) for name in ("mean", "variance"))
    r = 1 / np.sqrt(variance + float(np.float32(EPSILON)))
    terms = r * g * (x.astype(float) - held)
    # Each of the three encodes adds its sum in double and rounds it to float32.
    rounding = 3 * np.finfo(np.float32).eps / 2 * np.abs(terms).sum(axis=(0, 1, 2))
    error = np.abs(step.number("gradient_for_gamma") - terms.sum(axis=(0, 1, 2)))
    assert np.all(error <= rounding)


def test_a_first_pixel_unlike_the_others_does_not_cost_digits(device, rng):
    x = (5 + rng.standard_normal((4, 9, 11, 3))).astype(np.float32)
    # Whether a sum with an infinity in it is that or not a number is each device's own.
    for outlier in (0.0, 1e8, np.nan, *([np.inf] if device.kind == "cpu" else [])):
        x[0, 0, 0, 1] = outlier
        with np.errstate(invalid="ignore"):
            exact = oracle.statistics(x)
        step = train(device, forward_kernel(device, 3), x, np.ones_like(x), (4,))
        np.testing.assert_allclose(step.number("variance"), exact.variance, rtol=1e-6)
        np.testing.assert_allclose(step.number("mean"), exact.mean, rtol=1e-6)


PARTITIONS = [(8,), (1,) * 8, (2, 2, 2, 2), (3, 5), (1, 6, 1)]


@pytest.mark.parametrize("gradient_counts", PARTITIONS, ids=str)
@pytest.mark.parametrize("counts", PARTITIONS, ids=str)
def test_no_partition_changes_a_step(device, counts, gradient_counts, rng):
    x, g = rng.standard_normal((2, 8, 5, 3, 7)).astype(np.float32)
    x += 3
    gamma, beta = rng.uniform(1, 2, (2, 7)).astype(np.float32)
    kernel = forward_kernel(device, 7, gamma, beta, epsilon=EPSILON)
    step = train(device, kernel, x, g, counts, gradient_counts=gradient_counts)
    check_step(step, x.astype(float), g.astype(float), gamma, beta, None)
    whole = train(device, kernel, x, g, (8,))
    for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
        assert_close(step.number(name), whole.number(name).astype(float), ulps=1, floor=1e-5)
    # Both may be off; and statistics and sums an ULP apart, of which the variance counts half.
    batch, sums = stored_in(step.state, x[..., 0].size)
    scale = oracle.forward_scale(x, *batch[1:], gamma, beta, epsilon=EPSILON)
    assert_close(step.y, whole.y.astype(float), ulps=2 * ulps_for(7) + 1.5, scale=scale)
    scale = oracle.data_gradient_scale(g, x, batch, sums, gamma, epsilon=EPSILON)
    assert_close(step.dx, whole.dx.astype(float), ulps=2 * ulps_for(19) + 4, scale=scale)


def test_gradients_may_come_in_another_order(device, rng):
    x, g = rng.standard_normal((2, 6, 3, 3, 4)).astype(np.float32)
    kernel = forward_kernel(device, 4)
    whole = train(device, kernel, x, g, (6,))
    state = kernel.result_state(filled(device, x)[0], filled(device, x)[0])
    mg.BatchNormalizationStatistics(device=device)(x, state)
    sums = mg.BatchNormalizationStatisticsGradient(device=device)
    for part in ([5, 1], [0, 2, 4], [3]):
        sums(g[part], x[part], state)
    for name in ("gradient_for_gamma", "gradient_for_beta"):
        exact = whole.number(name).astype(float)
        assert_close(values(getattr(state, name), 4), exact, ulps=1, floor=1e-5)


def test_two_workers_partial_sums_add_up(device, rng):
    """Each worker has the statistics of all images, and half of the gradients.

    Three roundings, of both sums and of their sum; where a device adds up float32 numbers, those of
    the 30 samples of a half as well, and of a term's coefficients.
    """
    x, g = rng.standard_normal((2, 4, 3, 5, 6)).astype(np.float32)
    kernel = forward_kernel(device, 6, epsilon=EPSILON)
    workers = []
    for half in (slice(0, 2), slice(2, 4)):
        state = kernel.result_state(filled(device, x)[0], filled(device, x)[0])
        mg.BatchNormalizationStatistics(device=device)(x, state)
        mg.BatchNormalizationStatisticsGradient(device=device)(g[half], x[half], state)
        with pytest.raises(mg.errors.StateError, match="of 2 of the batch's 4 images"):
            mg.BatchNormalizationGradient(device=device)(g[half], x[half], state)
        workers.append(state)
    mean, variance = (values(getattr(workers[0], name), 6) for name in ("mean", "variance"))
    exact = oracle.weight_gradients(g, x, mean, variance, epsilon=EPSILON)
    x_hat = (np.abs(x) + np.abs(mean)) * oracle.reciprocal_deviation(variance, EPSILON)
    for name, expected, terms in (
        ("gradient_for_gamma", exact.gamma, np.abs(g) * x_hat),
        ("gradient_for_beta", exact.beta, np.abs(g)),
    ):
        one, other = (values(getattr(state, name), 6) for state in workers)
        assert_close(
            one + other,
            expected,
            ulps=ulps_for(3 if device.kind == "cpu" else 3 + 30 + 4),
            scale=terms.sum(axis=(0, 1, 2)),
        )


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
@pytest.mark.parametrize("channel_format", ["float32", "float16"])
def test_inference(device, neuron, channel_format, rng):
    neuron = cases.neuron_for(neuron, 5)
    x = stored(rng.standard_normal((3, 4, 5, 5)), channel_format)
    gamma, beta, mean = rng.standard_normal((3, 5)).astype(np.float32)
    variance = rng.uniform(0.1, 3, 5).astype(np.float32)
    kernel = forward_kernel(device, 5, gamma, beta, mean, variance, epsilon=EPSILON, neuron=neuron)
    images = filled(device, x, channel_format)
    with Work(device) as work:
        created = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        given = work.result(empty(device, x.shape, channel_format))
        kernel.encode_batch(work.buffer, images, given)
        single = work.result(kernel.encode(work.buffer, images[1], allocator=mg.DEFAULT))
    weights = mean, variance, gamma, beta
    scale = oracle.forward_scale(x, *weights, epsilon=EPSILON)
    exact = oracle.forward(x, *weights, epsilon=EPSILON, neuron=neuron)
    y = read(created)
    assert_close(
        y,
        exact,
        ulps=ulps_for(
            4 if device.kind == "cpu" else 7, y.dtype, functions=0 if neuron is None else 4
        ),
        scale=np.maximum(STEEPEST * scale if neuron else scale, np.abs(exact)),
        floor=1e-6,
        nonzero=0,
    )
    assert_same_bytes(read(given), y)
    assert_same_bytes(single.read(), y[1])


@pytest.mark.parametrize("given", ["gamma", "beta", "both", "none"])
def test_absent_weights_are_one_and_zero(device, given, rng):
    x, g = rng.standard_normal((2, 2, 3, 4, 5)).astype(np.float32)
    gamma, beta = rng.uniform(1, 2, (2, 5)).astype(np.float32)
    absent = {
        "gamma": gamma if given in ("gamma", "both") else None,
        "beta": beta if given in ("beta", "both") else None,
    }
    spelled = {
        "gamma": np.ones(5) if absent["gamma"] is None else gamma,
        "beta": np.zeros(5) if absent["beta"] is None else beta,
    }
    one = train(device, forward_kernel(device, 5, **absent), x, g, (2,))
    other = train(device, forward_kernel(device, 5, **spelled), x, g, (2,))
    assert_same_bytes(one.y, other.y)
    assert_same_bytes(one.dx, other.dx)
    for name in ("gradient_for_gamma", "gradient_for_beta"):
        assert_same_bytes(one.number(name), other.number(name))
    assert (one.state.gamma is None) == (absent["gamma"] is None)
    assert (one.state.beta is None) == (absent["beta"] is None)


def test_epsilon_of_a_source_that_names_none(device):
    source = mg.ArrayBatchNormalizationDataSource([1], [0], [0], [0])
    kernel = mg.BatchNormalization(source, device=device)
    assert kernel.epsilon == oracle.FLT_MIN
    y = kernel(row(1e-19, 0))
    assert_close(y.ravel(), [1e-19 / np.sqrt(oracle.FLT_MIN), 0], ulps=4)


def test_a_channel_without_spread_has_nothing_but_its_offset(device):
    """Not even the largest r, that of a variance of 0 and the smallest epsilon, is seen."""
    x = np.broadcast_to(np.array([3, -0.375], np.float32), (2, 3, 5, 2)).copy()
    source = mg.ArrayBatchNormalizationDataSource([2, 3], [0.25, 7])
    step = train(device, mg.BatchNormalization(source, device=device), x, x, (1, 1))
    assert_exact(step.y, np.broadcast_to([0.25, 7], x.shape))
    assert_exact(step.number("variance"), [0, 0], nonzero=0)


def test_gradients_of_a_channel_without_spread(device):
    """The sum of products does not fit 53 bits: what is left of it must not meet r = 2^63."""
    x = np.full((1, 1, 2, 1), 0.1, np.float32)
    g = np.float32([1, 2**-30]).reshape(x.shape)
    step = train(
        device,
        mg.BatchNormalization(
            mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=1), device=device
        ),
        x,
        g,
        (1,),
    )
    assert_exact(step.number("gradient_for_gamma"), [0], nonzero=0)
    half = 2.0**63 * (1 - 2.0**-30) / 2  # r (g - its mean)
    assert_close(step.dx.ravel(), [half, -half], ulps=4)


def test_one_state_serves_many_batches(device, rng):
    kernel = forward_kernel(device, 3, [1, 2, 3], [0, 1, 2])
    state = None
    for counts in ((2, 1), (3,), (1, 1, 1)):
        x, g = rng.standard_normal((2, 3, 4, 5, 3)).astype(np.float32)
        step = train(device, kernel, x, g, counts, state=state)
        state = step.state
        fresh = train(device, kernel, x, g, counts)
        assert_same_bytes(step.y, fresh.y)
        assert_same_bytes(step.dx, fresh.dx)


def test_a_reset_between_batches_gives_the_same_numbers(device, rng):
    kernel = forward_kernel(device, 3)
    x, g = rng.standard_normal((2, 3, 4, 5, 3)).astype(np.float32)
    step = train(device, kernel, x, g, (3,))
    step.state.reset()
    again = train(device, kernel, x, g, (3,), state=step.state)
    assert_same_bytes(again.dx, step.dx)


def test_the_next_batch_may_have_another_size(device, rng):
    kernel = forward_kernel(device, 2)
    state = None
    for shape in ((2, 3, 4, 2), (3, 5, 2, 2)):
        x, g = rng.standard_normal((2, *shape)).astype(np.float32)
        step = train(device, kernel, x, g, (len(x),), state=state)
        state = step.state
        assert step.dx.shape == shape
        check_step(step, x.astype(float), g.astype(float), None, None, None)


def test_an_ordinary_state_normalizes_one_image_at_a_time(device, rng):
    x = rng.standard_normal((3, 4, 5, 2)).astype(np.float32)
    kernel = forward_kernel(device, 2)
    whole, state = kernel(x, with_state=True)
    for image, expected in zip(x, whole, strict=True):
        assert_same_bytes(kernel(image, state), expected)


def test_channel_windows(device, rng):
    """Statistics and both passes over channels 4 to 6 of wider images."""
    x, g = rng.standard_normal((2, 2, 3, 4, 7)).astype(np.float32)
    gamma, beta = rng.uniform(1, 2, (2, 3)).astype(np.float32)
    kernel = forward_kernel(device, 3, gamma, beta)
    plain = train(device, kernel, x[..., 4:], g[..., 4:], (2,))
    images, gradients = filled(device, x), filled(device, g)
    kernel.source_feature_channel_offset = 4
    kernel.destination_feature_channel_offset = 8
    statistics = mg.BatchNormalizationStatistics(device=device)
    statistics.source_feature_channel_offset = 4
    sums = mg.BatchNormalizationStatisticsGradient(device=device)
    gradient = mg.BatchNormalizationGradient(device=device)
    for kernel_with_two in (sums, gradient):
        kernel_with_two.primary_source_feature_channel_offset = 4
        kernel_with_two.secondary_source_feature_channel_offset = 4
    wide = empty(device, (2, 3, 4, 11), fill=7)
    state = kernel.result_state(images[0], wide[0])
    with Work(device) as work:
        statistics.encode_batch(work.buffer, images, state)
        kernel.encode_batch(work.buffer, images, work.result(wide), batch_normalization_state=state)
        sums.encode_batch(work.buffer, gradients, images, state)
        dx = work.result(
            gradient.encode_batch(work.buffer, gradients, images, state, allocator=mg.DEFAULT)
        )
    assert_same_bytes(np.ascontiguousarray(read(wide)[..., 8:]), plain.y)
    assert_exact(read(wide)[..., :8], np.full((2, 3, 4, 8), 7.0))
    assert_same_bytes(read(dx), plain.dx)


@pytest.mark.parametrize("holder", ["batch", "list"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, fmt, holder, rng):
    """Formats of the sources are for loading them alone: all four kernels, into float32."""
    loaded = [stored(rng.uniform(0, 1, (3, 4, 5, 6)), fmt).astype(np.float32) for _ in range(2)]
    x, g = (array.astype(np.float64) for array in loaded)
    gamma, beta = rng.uniform(1, 2, (2, 6)).astype(np.float32)
    kernel = forward_kernel(device, 6, gamma, beta, epsilon=EPSILON)
    sources, incoming = (filled(device, array, fmt, kind=holder) for array in (x, g))
    y, dx = (empty(device, x.shape, kind=holder) for _ in range(2))
    state = kernel.result_state(sources[0], y[0])
    gradient = mg.BatchNormalizationGradient(device=device)
    with Work(device) as work:
        mg.BatchNormalizationStatistics(device=device).encode_batch(work.buffer, sources, state)
        kernel.encode_batch(work.buffer, sources, work.result(y), batch_normalization_state=state)
        mg.BatchNormalizationStatisticsGradient(device=device).encode_batch(
            work.buffer, incoming, sources, state
        )
        gradient.configure(incoming, sources, state)
        gradient.encode_batch(work.buffer, incoming, sources, state, work.result(dx))
        state.synchronize(work.buffer)
    check_step(Step(state, read(y), read(dx)), x, g, gamma, beta, None)


def test_a_container_is_normalized_by_stored_statistics(device, rng):
    x = rng.standard_normal((3, 4, 5, 6)).astype(np.float32)
    kernel = forward_kernel(device, 6, mean=rng.standard_normal(6), variance=np.arange(1, 7))
    results = empty(device, x.shape, kind="container")
    with Work(device) as work:
        kernel.encode(work.buffer, filled(device, x, kind="container"), work.result(results))
    assert_same_bytes(read(results), kernel(x))


def test_source_and_destination_may_differ_in_format(device, rng):
    x = rng.standard_normal((2, 3, 4, 3)).astype(np.float32)
    kernel = forward_kernel(device, 3, mean=np.zeros(3), variance=np.ones(3))
    images = filled(device, x)
    with Work(device) as work:
        exact = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        half = work.result(empty(device, x.shape, "float16"))
        kernel.encode_batch(work.buffer, images, half)
    assert_same_bytes(read(half), read(exact).astype(np.float16))


def test_offset_and_clip_rectangle_of_the_forward_kernel(device, rng):
    x = rng.standard_normal((2, 5, 6, 3)).astype(np.float32)
    kernel = forward_kernel(device, 3, mean=[1, 2, 3], variance=[1, 4, 9], epsilon=0)
    whole = kernel(x)
    kernel.offset = mg.Offset(2, 1, 0)
    kernel.clip_rect = mg.Region((1, 1, 0), (3, 2, 2))
    target = empty(device, (2, 4, 5, 3), fill=9)
    with Work(device) as work:
        kernel.encode_batch(work.buffer, filled(device, x), work.result(target))
    expected = np.full((2, 4, 5, 3), 9, np.float32)
    expected[:, 1:3, 1:4] = whole[:, 1:3, 2:5]
    assert_same_bytes(read(target), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays(device, dtype, rng):
    x, g = rng.standard_normal((2, 3, 4, 5, 6)).astype(dtype)
    kernel = forward_kernel(device, 6, epsilon=EPSILON)
    y, state = kernel(x, with_state=True)
    with Guarded(x.shape, dtype) as out:
        assert kernel(x, state, out=out) is out
        assert_same_bytes(out.copy(), y)
    assert y.dtype == dtype
    mg.BatchNormalizationStatisticsGradient(device=device)(g, x, state)
    gradient = mg.BatchNormalizationGradient(device=device)
    dx = gradient(g, x, state)
    with Guarded(x.shape, dtype) as out:
        gradient(g, x, state, out=out)
        assert_same_bytes(out.copy(), dx)
    channel_format = np.dtype(dtype).name
    step = train(
        device, kernel, x.astype(float), g.astype(float), (3,), channel_format=channel_format
    )
    assert_same_bytes(step.y, y)
    assert_same_bytes(step.dx, dx)
    with Guarded(x.shape, dtype) as out:
        result, _ = kernel(x, with_state=True, out=out)
        assert result is out
        assert_same_bytes(out.copy(), y)


def test_results_do_not_depend_on_threads_or_runs(device, rng):
    x, g = rng.standard_normal((2, 6, 40, 41, 10)).astype(np.float32)
    relu = cases.NEURONS[1]
    kernel = forward_kernel(device, 10, rng.uniform(1, 2, 10), neuron=relu)
    names = "mean", "variance", "gradient_for_gamma", "gradient_for_beta"

    def run():
        step = train(device, kernel, x, g, (2, 4), neuron=relu)
        return step.y, step.dx, *map(step.number, names)

    check_thread_independence(run)


def test_every_fused_neuron(device, rng):
    """The fused neuron is the neuron kernel after, and its gradient kernel before."""
    x, g = rng.uniform(-1, 1, (2, 2, 3, 4, 3)).astype(np.float32)
    for neuron in cases.NEURONS[1:]:
        neuron = cases.neuron_for(neuron, 3)
        fused = train(device, forward_kernel(device, 3, neuron=neuron), x, g, (2,), neuron=neuron)
        plain_kernel = forward_kernel(device, 3)
        z, _ = plain_kernel(x, with_state=True)
        activation = mg.Neuron(descriptor(neuron), device=device)
        y, state = activation(z, with_state=True)
        # Twice the errors that check_step allows, each relative to the same scale.
        batch, _ = stored_in(fused.state, x[..., 0].size)
        z_scale = oracle.forward_scale(x, *batch[1:], epsilon=oracle.FLT_MIN)
        scale = np.maximum(STEEPEST * z_scale, np.abs(y))
        assert_close(fused.y, y.astype(float), ulps=2 * ulps_for(7, functions=4), scale=scale)
        inner = mg.NeuronGradient(descriptor(neuron), device=device)(g, z, state)
        apart = train(device, plain_kernel, x, inner, (2,))
        _, sums = stored_in(apart.state, batch.count)
        uncertain = np.abs(g) * (STEEPEST + CURVED * z_scale)
        r = oracle.reciprocal_deviation(batch.variance, oracle.FLT_MIN)
        scale = oracle.data_gradient_scale(inner, x, batch, sums) + r * uncertain
        limit = 2 * ulps_for(19, functions=6)
        assert_close(fused.dx, apart.dx.astype(float), ulps=limit, scale=scale)
        x_hat = (np.abs(x) + np.abs(batch.mean)) * r
        limit = 2 * (ulps_for(batch.count + 4) + ulps_for(5, functions=6))
        for name, terms in (("gamma", uncertain * x_hat), ("beta", uncertain)):
            name = f"gradient_for_{name}"
            total = apart.number(name).astype(float)
            scale = terms.sum(axis=(0, 1, 2)) + np.abs(total)
            assert_close(fused.number(name), total, ulps=limit, scale=scale)


def test_sub_batches_of_one_image_each_differ_from_one_batch(device):
    """Treating each part as a batch of its own is another computation."""
    x = np.concatenate([row(1, 2), row(3, 6)])
    kernel = forward_kernel(device, 1, epsilon=0.5)
    whole, _ = kernel(x, with_state=True)
    apart = [kernel(part, with_state=True)[0] for part in cut(x, (1, 1))]
    assert np.abs(np.concatenate(apart) - whole).max() > 0.1
