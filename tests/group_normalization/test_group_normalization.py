"""Instance and group normalization against their oracles, the worked examples, and their rules."""

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, sample
from tests.group_normalization import cases, instance_oracle, oracle
from tests.images import Work, channel_window, empty, filled, read
from tests.rejects import rejects
from tests.repeats import check_repeats, check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    rng_for,
    ulps_for,
)

INSTANCE = "instance"
KINDS = [INSTANCE, "group"]
kinds = pytest.mark.parametrize("kind", KINDS)
FORWARD = {INSTANCE: mg.InstanceNormalization, "group": mg.GroupNormalization}
BACKWARD = {INSTANCE: mg.InstanceNormalizationGradient, "group": mg.GroupNormalizationGradient}
STATE = {
    INSTANCE: mg.InstanceNormalizationGradientState,
    "group": mg.GroupNormalizationGradientState,
}


# --- Running kernels ------------------------------------------------------------


def source_of(kind, gamma=None, beta=None, *, groups=1, channels=None, epsilon=None, label=None):
    given = {"number_of_feature_channels": channels, "epsilon": epsilon, "label": label}
    if kind == INSTANCE:
        return mg.ArrayInstanceNormalizationDataSource(gamma, beta, **given)
    return mg.ArrayGroupNormalizationDataSource(gamma, beta, number_of_groups=groups, **given)


def kernels(device, kind, *arguments, **settings):
    forward = FORWARD[kind](source_of(kind, *arguments, **settings), device=device)
    return forward, BACKWARD[kind](device=device)


def weights(states, name):
    """Return a gradient of every state: (N, C)."""
    return np.stack([np.array(getattr(state, name).to_numpy()) for state in states])


def check_forward(actual, x, gamma=None, beta=None, *, groups, epsilon, nonzero=0.25):
    """Compare: the mean and both coefficients are rounded, then a difference, a product, a sum."""
    given = {"groups": groups, "epsilon": epsilon}
    assert_close(
        actual,
        oracle.forward(x, gamma, beta, **given),
        ulps=ulps_for(7, actual.dtype),
        scale=oracle.forward_scale(x, gamma, beta, **given),
        floor=1e-30,
        nonzero=nonzero,
    )


def check_gradients(dx, states, g, x, gamma=None, *, groups, epsilon, nonzero=0.25):
    """Compare: five rounded coefficients and as many operations.

    A mean that is large against the spread is a rounded coefficient too: the scales know. The CPU
    device rounds sums once, from double; another may add up float32 numbers, each made with a
    rounded mean and deviation, a difference and two products.
    """
    exact = oracle.gradients(g, x, gamma, groups=groups, epsilon=epsilon)
    scales = oracle.gradient_scales(g, x, gamma, groups=groups, epsilon=epsilon)
    assert_close(
        dx,
        exact.data,
        ulps=ulps_for(12, dx.dtype),
        scale=scales.data,
        floor=1e-30,
        nonzero=nonzero,
    )
    in_double = states[0].device.kind == "cpu"
    ulps = 2 if in_double else ulps_for(x.shape[1] * x.shape[2] + 5)
    for name, sums, scale in zip(
        ("gradient_for_gamma", "gradient_for_beta"), exact[1:], scales[1:], strict=True
    ):
        assert_close(weights(states, name), sums, ulps=ulps, scale=scale, floor=1e-30, nonzero=0)


def run(device, kind, x, g, gamma=None, beta=None, *, groups, epsilon=0.25, nonzero=0.25):
    """Run both kernels on arrays and compare everything; return the kernels' results."""
    forward, backward = kernels(
        device, kind, gamma, beta, groups=groups, channels=x.shape[3], epsilon=epsilon
    )
    y, states = forward(x, with_state=True)
    assert all(type(state) is STATE[kind] for state in states)
    dx = backward(g, x, states)
    wide, given = x.astype(np.float64), g.astype(np.float64)
    scale = {"groups": groups, "epsilon": epsilon, "nonzero": nonzero}
    check_forward(y, wide, gamma, beta, **scale)
    check_gradients(dx, states, given, wide, gamma, **scale)
    return y, dx, states


# --- What the formulas say exactly -----


@kinds
@pytest.mark.parametrize("channels", [1, 3, 16, 37])
def test_one_value_lets_nothing_through(device, kind, channels, rng):
    """The smallest epsilon there is multiplies what is left of a difference by 1e19."""
    gamma, beta = rng.standard_normal((2, channels)).astype(np.float32)
    forward, backward = kernels(device, kind, gamma, beta, groups=channels)
    x, g = rng.standard_normal((2, 3, 1, 1, channels)).astype(np.float32)
    y, states = forward(x, with_state=True)
    assert_exact(y, np.broadcast_to(beta, x.shape))
    assert not backward(g, x, states).any()
    assert not weights(states, "gradient_for_gamma").any()
    assert_exact(weights(states, "gradient_for_beta"), g.reshape(3, channels))


@kinds
@pytest.mark.parametrize("shape", [(1, 16, 16, 3), (1, 40, 40, 32), (9, 7, 7, 64)], ids=str)
def test_a_mean_far_from_zero_costs_no_digits(kind, shape, rng):
    """The CPU device rounds neither sums nor means: results are as exact as the source."""
    device = mg.Device("cpu")
    forward, backward = kernels(device, kind, groups=1, channels=shape[3], epsilon=1e-5)
    x = (1e4 + rng.standard_normal(shape)).astype(np.float32)
    g = rng.standard_normal(shape).astype(np.float32)
    y, states = forward(x, with_state=True)
    groups = shape[3] if kind == INSTANCE else 1
    given = {"groups": groups, "epsilon": 1e-5}
    expected = oracle.forward(x, **given)
    assert np.abs(y - expected).max() < 8 * np.finfo(np.float32).eps * np.abs(expected).max()
    exact = oracle.gradients(g, x, **given).data
    dx = backward(g, x, states)
    assert np.abs(dx - exact).max() < 8 * np.finfo(np.float32).eps * np.abs(exact).max()


# --- Against the oracles --------------------------------------------------------


@pytest.mark.parametrize("affine", ["both", "gamma", "beta", "none"])
@pytest.mark.parametrize(
    ("shape", "groups"),
    cases.CASES + cases.MANY_CHANNELS + cases.SLICES + cases.LONG_RUNS,
    ids=str,
)
def test_groups(device, shape, groups, affine, rng):
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, shape[3]), dtype=np.float32)
    gamma = gamma if affine in ("both", "gamma") else None
    beta = beta if affine in ("both", "beta") else None
    alone = shape[1] * shape[2] * shape[3] == groups  # nothing to compare a value with
    run(device, "group", x, g, gamma, beta, groups=groups, nonzero=0 if alone else 0.25)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", cases.INSTANCE_SHAPES, ids=str)
def test_instances(device, shape, affine, rng):
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, shape[3]), dtype=np.float32) if affine else (None, None)
    alone = shape[1:3] == (1, 1)
    y, dx, states = run(
        device, INSTANCE, x, g, gamma, beta, groups=shape[3], nonzero=0 if alone else 0.25
    )
    given = {"epsilon": 0.25}
    exact = instance_oracle.gradients(g, x, gamma, **given)
    scales = instance_oracle.gradient_scales(g, x, gamma, **given)
    assert_close(
        y,
        instance_oracle.forward(x, gamma, beta, **given),
        ulps=ulps_for(7),
        scale=instance_oracle.forward_scale(x, gamma, beta, **given),
        nonzero=0,
    )
    assert_close(dx, exact.data, ulps=ulps_for(12), scale=scales.data, nonzero=0)
    if alone:
        assert_exact(y[0, 0, 0], np.zeros(shape[3]) if beta is None else beta, nonzero=0)
        assert not weights(states, "gradient_for_gamma").any()


@pytest.mark.parametrize("channels", [*range(1, 20), 31, 33, 63, 64, 65, 96, 257, 300])
def test_any_number_of_channels(device, channels):
    rng = rng_for(f"channels {channels}")
    x, g = rng.standard_normal((2, 1, 3, 7, channels), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, channels), dtype=np.float32)
    run(device, INSTANCE, x, g, gamma, beta, groups=channels)
    for groups in {n for n in (1, 2, 3, 4, 5, 8, 32, channels) if channels % n == 0}:
        run(device, "group", x, g, gamma, beta, groups=groups)


@pytest.mark.parametrize("shape", [(2, 97, 83, 40), (1, 300, 211, 6), (3, 9, 8, 1024)], ids=str)
def test_images_of_many_blocks(device, shape):
    rng = rng_for(str(shape))
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, shape[3]), dtype=np.float32)
    run(device, INSTANCE, x, g, gamma, beta, groups=shape[3])
    run(device, "group", x, g, gamma, beta, groups=2)


@st.composite
def _drawn(draw):
    size = draw(st.integers(1, 7))
    groups = draw(st.integers(1, 9))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    return (*shape, size * groups), groups, draw(st.sampled_from([1e-5, 0.25, 3.0]))


@settings(max_examples=60)
@given(_drawn())
def test_random_groups(device, drawn):
    shape, groups, epsilon = drawn
    rng = rng_for(repr(drawn))
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, shape[3]), dtype=np.float32)
    given = {"groups": groups, "epsilon": epsilon, "nonzero": 0}
    run(device, "group", x, g, gamma, beta, **given)
    if groups == shape[3]:
        run(device, INSTANCE, x, g, gamma, beta, **given)


@pytest.mark.parametrize("mean", [1e3, -3e4])
@kinds
def test_a_mean_far_from_the_spread_costs_no_digits(device, kind, mean, rng):
    """The scale counts the rounding of the mean once; a variance from x^2 alone would be noise."""
    x = (mean + rng.standard_normal((2, 9, 8, 6))).astype(np.float32)
    g = rng.standard_normal(x.shape, dtype=np.float32)
    groups = 6 if kind == INSTANCE else 2
    run(device, kind, x, g, groups=groups, epsilon=1e-5)
    forward, _ = kernels(device, kind, channels=6, groups=groups, epsilon=0.0)
    y = forward(x).astype(np.float64).reshape(2, 72, groups, -1)
    np.testing.assert_allclose(y.var(axis=(1, 3)), 1, rtol=1e-5)


def test_instances_are_groups_of_one_channel(device, rng):
    x, g = rng.standard_normal((2, 2, 5, 6, 8), dtype=np.float32)
    gamma, beta = rng.standard_normal((2, 8), dtype=np.float32)
    one = run(device, INSTANCE, x, g, gamma, beta, groups=8)
    other = run(device, "group", x, g, gamma, beta, groups=8)
    assert_same_bytes(one[0], other[0])
    assert_same_bytes(one[1], other[1])


# --- Worked examples --------------------------------------------------------------


def test_worked_example_of_an_instance(device):
    forward, backward = kernels(device, INSTANCE, [2.0], [1.0], epsilon=3.0)
    x, g = (np.array(v, np.float32).reshape(1, 1, 2, 1) for v in ([1, 3], [1, 0]))
    y, states = forward(x, with_state=True)
    assert_exact(y.ravel(), [0, 2])
    assert_exact(backward(g, x, states).ravel(), [0.375, -0.375])
    assert weights(states, "gradient_for_beta").tolist() == [[1]]
    assert weights(states, "gradient_for_gamma").tolist() == [[-0.5]]


def test_worked_example_of_groups(device):
    forward, backward = kernels(
        device, "group", [2.0, 2, 4, 2], [0.0, 0, 1, 1], groups=2, epsilon=3.0
    )
    x, g = (np.array(v, np.float32).reshape(1, 1, 1, 4) for v in ([1, 3, 7, 9], [1, 0, 1, 1]))
    y, states = forward(x, with_state=True)
    assert_exact(y.ravel(), [-1, 1, -1, 2])
    assert_exact(backward(g, x, states).ravel(), [0.375, -0.375, 0.375, -0.375])
    assert weights(states, "gradient_for_gamma").tolist() == [[-0.5, 0, -0.5, 0.5]]
    assert weights(states, "gradient_for_beta").tolist() == [[1, 0, 1, 1]]


@kinds
def test_a_nan_stays_within_its_group(device, kind, rng):
    if device.kind != "cpu":
        pytest.skip("Metal promises nothing about NaN")
    x = rng.standard_normal((2, 4, 5, 6), dtype=np.float32)
    x[1, 2, 2, 3] = np.nan
    forward, _ = kernels(device, kind, channels=6, groups=3)
    there = np.zeros(x.shape, bool)
    there[1, ..., 3 if kind == INSTANCE else slice(2, 4)] = True
    assert np.array_equal(np.isnan(forward(x)), there)
    x[1, 2, 2, 3] = np.inf
    x[0, 0, 0, 0] = np.inf  # also where the sums are taken relative to
    there[0, ..., 0 if kind == INSTANCE else slice(0, 2)] = True
    assert np.array_equal(np.isnan(forward(x)), there)


# --- Images -------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("holder", ["batch", "list"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, kind, fmt, holder, rng):
    x = load(read(filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt)))
    g = load(read(filled(device, rng.uniform(0, 1, x.shape), fmt)))
    groups = 6 if kind == INSTANCE else 3
    forward, backward = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    sources = filled(device, x, fmt, kind=holder)
    signed = DTYPES[fmt].kind == "f"
    results = empty(device, x.shape, fmt if signed else "float32", kind=holder)
    states = forward.result_state(sources, results)
    incoming, out = filled(device, g, fmt, kind=holder), empty(device, x.shape, kind=holder)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        backward.configure(incoming, sources, states[0])
        backward.encode(work.buffer, incoming, sources, states, work.result(out))
        mg.synchronize(states, work.buffer)
    check_forward(read(results), x, groups=groups, epsilon=0.25)
    check_gradients(read(out), states, g, x, groups=groups, epsilon=0.25)


@kinds
def test_a_container_is_normalized_image_by_image(device, kind, rng):
    x = rng.standard_normal((3, 4, 5, 6), dtype=np.float32)
    groups = 6 if kind == INSTANCE else 3
    forward, _ = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    sources, results = (f(device, a, kind="container") for f, a in ((filled, x), (empty, x.shape)))
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results))
    check_forward(read(results), x, groups=groups, epsilon=0.25)


@kinds
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_channel_windows(device, kind, fmt, rng):
    x = load(rng.uniform(-1, 1, (2, 3, 4, 13)).astype(DTYPES[fmt]))
    g = load(rng.standard_normal((2, 3, 4, 6)).astype(DTYPES[fmt]))
    groups = 6 if kind == INSTANCE else 2
    forward, backward = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    y, dx, states = channel_window(device, forward, backward, x, g, fmt)
    check_forward(y, x[..., 4:10], groups=groups, epsilon=0.25)
    check_gradients(dx, states, g, x[..., 4:10], groups=groups, epsilon=0.25)


@kinds
@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_offsets_clips_and_edges(device, kind, edge, rng):
    """The statistics stay those of the whole source."""
    x = (1 + rng.standard_normal((2, 4, 5, 6))).astype(np.float32)
    groups = 6 if kind == INSTANCE else 3
    forward, _ = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    forward.offset = (-2, 1, 0)
    forward.edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[edge]
    forward.clip_rect = mg.Region((1, 0), (6, 5))
    results = empty(device, (2, 6, 8, 6), fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, filled(device, x), work.result(results))
    wide = x.astype(np.float64)
    mean = oracle.group_mean(wide, groups)
    r = 1 / np.sqrt(oracle.group_mean((wide - mean) ** 2, groups) + 0.25)
    seen = sample(wide, np.arange(5) + 1, np.arange(6) - 2, edge)
    expected = (seen - mean[:, :1, :1]) * r[:, :1, :1]
    texels = read(results)
    scale = (np.abs(seen) + np.abs(mean[:, :1, :1])) * r[:, :1, :1]
    assert_close(texels[:, :5, 1:7], expected, ulps=ulps_for(7), scale=scale)
    texels[:, :5, 1:7] = 0.5
    assert (texels == 0.5).all()


# --- Arrays, order and repetition ------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, kind, dtype, rng):
    x, g = rng.standard_normal((2, 2, 5, 6, 8)).astype(dtype)
    y, dx, _ = run(device, kind, x, g, groups=8 if kind == INSTANCE else 4)
    assert (y.dtype, dx.dtype) == (dtype, dtype)
    forward, backward = kernels(device, kind, channels=8, groups=4, epsilon=0.25)
    with Guarded(x.shape, dtype, skew=1) as out:
        again, states = forward(x, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, y)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert backward(g, x, states, out=out) is out
        assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert_same_bytes(one, y[0])
    assert_same_bytes(backward(g[0], x[0], state), dx[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(5, 13, 11, 24), (2, 97, 83, 24), (4, 7, 7, 336)], ids=str)
@kinds
def test_results_do_not_depend_on_threads_or_runs(device, kind, shape, dtype, rng):
    x, g = rng.standard_normal((2, *shape)).astype(dtype)
    forward, backward = kernels(device, kind, channels=shape[3], groups=3)

    def run():
        y, states = forward(x, with_state=True)
        dx = backward(g, x, states)
        return y, dx, weights(states, "gradient_for_gamma")

    check_thread_independence(run)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("channels", [256, 264, 1088])
@kinds
def test_a_large_batch_of_slices_gives_the_bytes_of_its_samples(device, kind, channels, dtype, rng):
    """Neither where channels are cut nor whether results go past the caches shows in them."""
    samples, repeat = 3, max(1, (17 << 20) // (3 * 49 * channels * np.dtype(dtype).itemsize))
    gamma, beta = rng.standard_normal((2, channels), dtype=np.float32)
    pair = kernels(device, kind, gamma, beta, channels=channels, groups=8)
    check_repeats(*pair, rng, (7, 7, channels), dtype, samples=samples, repeat=repeat)


@kinds
def test_read_counts_of_temporaries(device, kind):
    source = filled(device, np.ones((2, 4, 4, 6)))
    forward, backward = kernels(device, kind, channels=6, groups=3)
    with Work(device) as work:
        images = forward.encode(work.buffer, source)
        mg.increment_read_count(images, 1)  # the forward pass and the gradient read it
        result, states = forward.encode(work.buffer, images, with_state=True, temporary_state=True)
        assert [image.read_count for image in images] == [1, 1]
        assert [state.read_count for state in states] == [1, 1]
        mg.increment_read_count(states, 1)
        dx = backward.encode(work.buffer, result, images, states, allocator=mg.DEFAULT)
        work.result(dx)
        assert [image.read_count for image in (*images, *result)] == [0, 0, 0, 0]
        assert [state.read_count for state in states] == [1, 1]
        sums = states[0].gradient_for_gamma
        mg.increment_read_count(states, -1)
        with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
            backward.encode(work.buffer, result, images, states)
    assert np.isfinite(read(dx)).all()
    with pytest.raises(RuntimeError, match="private to the device"):
        sums.to_numpy()


@kinds
def test_a_refused_gradient_spends_no_read(device, kind, queue):
    identity = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)
    source = filled(device, np.ones((2, 4, 4, 6)))
    forward, backward = kernels(device, kind, channels=6, groups=3)
    other = queue.command_buffer()
    with Work(device) as work:
        images = identity.encode(work.buffer, source)
        mg.increment_read_count(images, 1)
        states = [forward.temporary_result_state(work.buffer, image, image) for image in source]
        with rejects(mg.errors.StateError, "no forward encode has been given this state"):
            backward.encode(work.buffer, source, images, states, allocator=mg.DEFAULT)
        with rejects(ValueError, "belongs to another command buffer"):
            backward.encode(other, source, source, states, allocator=mg.DEFAULT)
        assert [thing.read_count for thing in (*images, *states)] == [2, 2, 1, 1]
        results = empty(device, (2, 4, 4, 6))
        forward.encode(work.buffer, images, results, destination_state=states)
        backward.encode(work.buffer, source, images, states, allocator=mg.DEFAULT)
        assert [thing.read_count for thing in (*images, *states)] == [0, 0, 0, 0]


@kinds
def test_gradients_use_the_epsilon_that_the_states_were_made_with(device, kind, rng):
    x, g = rng.standard_normal((2, 2, 4, 5, 6), dtype=np.float32)
    groups = 6 if kind == INSTANCE else 3
    forward, backward = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    _, states = forward(x, with_state=True)
    forward.epsilon = 9
    forward(x, with_state=True)
    check_gradients(backward(g, x, states), states, g, x, groups=groups, epsilon=0.25)


@kinds
def test_a_group_without_spread_has_nothing_but_its_offset(device, kind):
    """Not even the largest r, that of a variance of 0 and the smallest epsilon, is seen."""
    x = np.full((2, 3, 5, 4), -0.375, np.float32)
    forward, _ = kernels(device, kind, np.full(4, 2), np.arange(1, 5), groups=2)
    assert_exact(forward(x), np.broadcast_to(np.arange(1.0, 5), x.shape))


@kinds
def test_gradients_overwrite_what_a_state_holds(device, kind, rng):
    x, g = rng.standard_normal((2, 2, 4, 5, 6), dtype=np.float32)
    groups = 6 if kind == INSTANCE else 3
    forward, backward = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    _, states = forward(x, with_state=True)
    backward(7 * g, x, states)
    check_gradients(backward(g, x, states), states, g, x, groups=groups, epsilon=0.25)


# --- Data sources and weights ------------------------------------------------------------


class Loading:
    """A data source that notes what is asked of it."""

    def __init__(self, channels=4, **members):
        self.log = []
        self.number_of_feature_channels = channels
        self.gamma = self.beta = self.label = None
        self.number_of_groups = 2
        vars(self).update(members)

    def load(self):
        self.log.append("load")
        return True

    def purge(self):
        self.log.append("purge")


@kinds
def test_data_sources_are_loaded_and_purged(device, kind):
    source = Loading(gamma=np.full(4, 2.0), label="norm1", epsilon=0.5)
    kernel = FORWARD[kind](source, device=device)
    assert source.log == ["load", "purge"]
    assert (kernel.data_source, kernel.label, kernel.epsilon) == (source, "norm1", 0.5)
    assert kernel.number_of_feature_channels == 4
    source.gamma = np.full(4, 3.0)
    source.epsilon, source.number_of_groups = 9.0, 7  # these are read once
    kernel.reload_gamma_and_beta_from_data_source()
    assert source.log == ["load", "purge"] * 2
    assert kernel.epsilon == 0.5
    if kind == "group":
        assert kernel.number_of_groups == 2


@kinds
def test_updates_are_left_to_the_caller(device, kind):
    calls = []
    source = Loading(
        gamma=np.full(4, 2.0),
        update_gamma_and_beta=lambda *given: calls.append(given),
        update_gamma_and_beta_cpu=lambda *given: calls.append(given),
    )
    forward, backward = FORWARD[kind](source, device=device), BACKWARD[kind](device=device)
    x = np.ones((2, 3, 4, 4), np.float32)
    _, states = forward(x, with_state=True)
    backward(x, x, states)
    forward.reload_gamma_and_beta_from_data_source()
    assert calls == []


@kinds
def test_load_and_purge_are_optional(device, kind):
    class Plain:
        number_of_feature_channels, gamma, beta, label = 4, None, [1.0, 2, 3, 4], None
        number_of_groups = 2

    kernel = FORWARD[kind](Plain(), device=device)
    assert kernel.epsilon == np.finfo(np.float32).tiny
    assert_exact(kernel(np.ones((1, 2, 4), np.float32)), np.tile([1.0, 2, 3, 4], (1, 2, 1)))


@kinds
def test_reloads_from_the_data_source_leave_encoded_work_alone(device, kind):
    source = source_of(kind, np.ones(2, np.float32), np.zeros(2, np.float32), epsilon=0.0)
    kernel = FORWARD[kind](source, device=device)
    x = np.array([[[[1, -1], [-1, 1]]]], np.float32)
    before, after = empty(device, x.shape), empty(device, x.shape)
    sources = filled(device, x)
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(before))
        source.gamma[:] = 3
        source.beta[:] = [0, 10]
        kernel.reload_gamma_and_beta_from_data_source()
        kernel.encode(work.buffer, sources, work.result(after))
    assert_exact(read(before), x)
    assert_exact(read(after), 3 * x + [0, 10])


@kinds
def test_reloads_on_a_command_buffer_take_effect_in_order(device, kind):
    gamma = np.ones(2, np.float32) if kind == INSTANCE else None  # a missing array is made
    kernel = FORWARD[kind](source_of(kind, gamma, channels=2, epsilon=0.0), device=device)
    x = np.array([[[[1, -1], [-1, 1]]]], np.float32)
    before, after = empty(device, x.shape), empty(device, x.shape)
    sources = filled(device, x)
    state = mg.NormalizationGammaAndBetaState(
        np.array([2, 4, 6], np.float32), np.array([1, 0, 9], np.float32), device=device
    )
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(before))
        kernel.reload_gamma_and_beta(work.buffer, state)
        kernel.encode(work.buffer, sources, work.result(after))
    assert_exact(read(before), x)
    assert_exact(read(after), x * [2, 4] + [1, 0])
    np.asarray(state.gamma)[:] = 9  # a later write does not reach the kernel
    assert_exact(kernel(x), x * [2, 4] + [1, 0])
    given = kernel.data_source.gamma  # nor does a reload write there
    assert given is None if gamma is None else given.tolist() == [1, 1]


@kinds
def test_reloads_spend_a_read_of_a_temporary_container(device, kind):
    kernel, _ = kernels(device, kind, channels=2)
    with Work(device) as work:
        state = mg.NormalizationGammaAndBetaState.temporary(work.buffer, 2)
        assert state.read_count == 1
        kernel.reload_gamma_and_beta(work.buffer, state)
        assert state.read_count == 0
        with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
            kernel.reload_gamma_and_beta(work.buffer, state)


@kinds
def test_states_show_their_kernel_and_its_live_weights(device, kind, rng):
    x = rng.standard_normal((2, 3, 4, 2), dtype=np.float32)
    source = source_of(kind, np.full(2, 3, np.float32), channels=2)
    forward = FORWARD[kind](source, device=device)
    _, states = forward(x, with_state=True)
    for state in states:
        assert getattr(state, f"{kind}_normalization") is forward
        assert state.gamma.to_numpy().tolist() == [3, 3]
        assert state.beta is None
    source.gamma[:] = 5
    forward.reload_gamma_and_beta_from_data_source()
    assert states[0].gamma.to_numpy().tolist() == [5, 5]
    g = rng.standard_normal(x.shape, dtype=np.float32)
    dx = BACKWARD[kind](device=device)(g, x, states)
    tiny = oracle.FLT_MIN
    groups = 2 if kind == INSTANCE else 1
    check_gradients(dx, states, g, x, np.full(2, 5.0), groups=groups, epsilon=tiny)


@kinds
def test_a_batch_has_as_many_states_as_images(device, kind):
    forward, _ = kernels(device, kind, channels=2)
    assert not forward.is_result_state_reused_across_batch
    _, states = forward(np.zeros((3, 2, 2, 2), np.float32), with_state=True)
    assert len({id(state) for state in states}) == 3


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
@kinds
def test_copies_have_every_setting(device, kind, duplicate, rng):
    gamma, beta = rng.standard_normal((2, 6)).astype(np.float32)
    forward, backward = kernels(device, kind, gamma, beta, groups=3, label="norm1")
    forward.epsilon = 0.5
    forward.label = "norm2"
    twin = duplicate(forward)
    assert twin is not forward
    assert (twin.epsilon, twin.label) == (0.5, "norm2")
    assert twin.data_source is not forward.data_source
    x = rng.standard_normal((1, 3, 4, 6), dtype=np.float32)
    assert_same_bytes(twin(x), forward(x))
    backward.label = "gradient"
    assert duplicate(backward).label == "gradient"


def test_repr(device):
    forward, backward = kernels(device, "group", np.ones(4), groups=2, epsilon=0.5)
    assert repr(forward.data_source) == (
        "ArrayGroupNormalizationDataSource(4 channels in 2 groups, gamma, epsilon=0.5)"
    )
    assert repr(backward) == f"GroupNormalizationGradient(device='{device.kind}')"
    source = source_of(INSTANCE, channels=3)
    assert repr(source) == (
        "ArrayInstanceNormalizationDataSource(3 channels, no arrays, epsilon=1.17549e-38)"
    )


def test_bases_of_data_sources():
    for cls in (mg.InstanceNormalizationDataSource, mg.GroupNormalizationDataSource):
        source = cls()
        assert (source.gamma, source.beta, source.label) == (None, None, None)
        assert source.epsilon == np.finfo(np.float32).tiny
        assert source.load() is True
        assert source.purge() is None


def test_an_update_without_an_optimizer_reads_the_states_all_the_same(device):
    source = mg.ArrayInstanceNormalizationDataSource([1, 2], [3, 4])
    image = mg.Image(device, mg.ImageDescriptor(3, 2, 2))
    with Work(device) as work:
        kernel = mg.InstanceNormalization(source, device=device)
        states = [kernel.temporary_result_state(work.buffer, image, image) for _ in range(2)]
        assert source.update_gamma_and_beta(work.buffer, [*states, states[0]]) is None
        assert [state.read_count for state in states] == [0, 0]


# --- Rejections ---------------------------------------------------------------------------

X = np.zeros((2, 4, 4, 8), np.float32)


@pytest.mark.parametrize("groups", [0, -1, 3, 9])
def test_rejects_groups(device, groups):
    with rejects(ValueError, f"number_of_groups must divide the 8 channels, got {groups}"):
        mg.GroupNormalization(source_of("group", channels=8, groups=groups), device=device)


SOURCES = {
    "no source": (None, TypeError, "data_source must not be None"),
    "refuses": (
        Loading(load=lambda: False),
        ValueError,
        "load() of Loading must return True, got False",
    ),
    "no channels": (
        Loading(channels=0),
        ValueError,
        "number_of_feature_channels of the data source must be between 1 and",
    ),
    "length": (
        Loading(beta=np.zeros(3)),
        ValueError,
        "beta of the data source must have 4 values, got 3",
    ),
    "epsilon": (
        Loading(epsilon=-1.0),
        ValueError,
        "epsilon must be finite and not negative, got -1",
    ),
    "missing": (type("Bare", (), {"label": None})(), TypeError, "data_source must have"),
}


@kinds
@pytest.mark.parametrize(("source", "error", "words"), SOURCES.values(), ids=SOURCES)
def test_rejects_data_sources(device, kind, source, error, words):
    with rejects(error, words):
        FORWARD[kind](source, device=device)


def test_group_normalization_needs_groups(device):
    source = source_of(INSTANCE, channels=4)
    with rejects(TypeError, "data_source must have number_of_groups"):
        mg.GroupNormalization(source, device=device)


@kinds
def test_rejects_arrays_of_sources(kind):
    with rejects(ValueError, "beta must have shape (2,), got (3,)"):
        source_of(kind, np.zeros(2), np.zeros(3))
    with rejects(ValueError, "number_of_feature_channels is needed where there is no array"):
        source_of(kind)


@kinds
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_rejects_epsilons(device, kind, value):
    forward, _ = kernels(device, kind, channels=2)
    with rejects(ValueError, f"{type(forward).__name__}: epsilon must be finite and not negative"):
        forward.epsilon = value


@kinds
def test_rejects_reloads(device, kind):
    source = source_of(kind, np.ones(4), groups=2)
    forward = FORWARD[kind](source, device=device)
    short = mg.NormalizationGammaAndBetaState(np.ones(3), np.ones(3), device=device)
    with Work(device) as work:
        with rejects(ValueError, "holds 3 values an array, but the kernel has 4 channels"):
            forward.reload_gamma_and_beta(work.buffer, short)
        with pytest.raises(
            TypeError,
            match="gamma_and_beta_state must be a NormalizationGammaAndBetaState, got NoneType",
        ):
            forward.reload_gamma_and_beta(work.buffer, None)
    source.number_of_feature_channels = 5
    source.gamma = None
    words = "the data source now has 5 channels, but the kernel was made with 4"
    with rejects(ValueError, words):
        forward.reload_gamma_and_beta_from_data_source()
    y = forward(np.zeros((1, 1, 4), np.float32))  # still the old weights
    assert y.shape == (1, 1, 4)


@kinds
@pytest.mark.parametrize("channels", [7, 9])
def test_rejects_images_of_other_channels(device, kind, channels):
    forward, _ = kernels(device, kind, channels=8, groups=2)
    words = f"source offers {channels} channels, but the kernel "
    with rejects(ValueError, words.split(",")[0]):
        forward(np.zeros((1, 2, 2, channels), np.float32))


@kinds
def test_rejects_places_of_channels(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    images, narrow, results = filled(device, X), empty(device, (2, 4, 4, 4)), empty(device, X.shape)
    for name, kernel in (
        ("source_feature_channel_offset", forward),
        ("destination_feature_channel_offset", forward),
        ("primary_source_feature_channel_offset", backward),
        ("secondary_source_feature_channel_offset", backward),
        ("destination_feature_channel_offset", backward),
    ):
        with rejects(ValueError, "must be a multiple of 4"):
            setattr(kernel, name, 2)
    with Work(device) as work:
        with rejects(ValueError, "channels 0 to 8 do not fit a destination of 4 channels"):
            forward.encode(work.buffer, images, narrow)
        forward.destination_feature_channel_offset = 4
        with rejects(ValueError, "channels 4 to 12 do not fit a destination of 8 channels"):
            forward.encode(work.buffer, images, results)


@kinds
def test_rejects_objects_of_another_device(device, kind):
    if device.kind == "cpu":
        pytest.skip("needs an object of a device that is not the CPU")
    forward, backward = kernels(device, kind, channels=8, groups=2)
    other, _ = kernels(mg.Device("cpu"), kind, channels=8, groups=2)
    _, states = forward(X, with_state=True)
    _, foreign = other(X, with_state=True)
    images, elsewhere = filled(device, X), filled(mg.Device("cpu"), X)
    weights = mg.NormalizationGammaAndBetaState([1] * 8, [1] * 8, device="cpu")
    words = "on another device"
    with Work(device) as work:
        with rejects(ValueError, words):
            forward.encode(work.buffer, elsewhere, empty(device, X.shape))
        with rejects(ValueError, words):
            backward.encode(work.buffer, elsewhere, images, states, allocator=mg.DEFAULT)
        with rejects(ValueError, words):
            backward.encode(work.buffer, images, images, foreign, allocator=mg.DEFAULT)
        with rejects(ValueError, words):
            forward.reload_gamma_and_beta(work.buffer, weights)


REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "width": (X[:, :, :3].copy(), X, ValueError, "source_gradient is 3x4, but source is 4x4"),
    "size of the source": (
        X,
        X[:, :, :3].copy(),
        ValueError,
        "source is 3x4, but the state was made for a forward source of 4x4",
    ),
    "too few channels": (
        X[..., :3].copy(),
        X,
        ValueError,
        "source_gradient offers 3 channels from offset 0, but the kernel reads 8",
    ),
    "too many channels": (
        np.zeros((2, 4, 4, 9), np.float32),
        X,
        ValueError,
        "source_gradient offers 9 channels, but the kernel normalizes 8",
    ),
}


@kinds
@pytest.mark.parametrize(("g", "x", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects_gradient_calls(device, kind, g, x, error, words):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    _, states = forward(X, with_state=True)
    backward(X, X, states)
    with rejects(error, words):
        backward(g, x, states)


@kinds
def test_rejects_states(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    _, states = forward(X, with_state=True)
    twice = "holds a state twice; each of the 2 images needs one of its own"
    with rejects(ValueError, f"state {twice}"):
        backward(X, X, [states[0], states[0]])
    with rejects(ValueError, f"state {twice}"):
        backward(X, X, states[0])
    with rejects(ValueError, "state has 3 entries, expected 2"):
        backward(X, X, [*states, states[0]])
    with rejects(ValueError, "state has 0 entries, expected 2"):
        images = filled(device, X)
        with Work(device) as work:
            backward.encode(work.buffer, images, images, (), allocator=mg.DEFAULT)
    images, results = filled(device, X), empty(device, X.shape)
    with Work(device) as work, rejects(ValueError, f"destination_states {twice}"):
        forward.encode(work.buffer, images, results, destination_state=[states[0]] * 2)
    other = {INSTANCE: "group", "group": INSTANCE}[kind]
    _, foreign = kernels(device, other, channels=8, groups=2)[0](X, with_state=True)
    words = f"state must come from {FORWARD[kind].__name__}, but it was made by "
    with rejects(TypeError, words):
        backward(X, X, foreign)
    twin = forward.copy()
    with Work(device) as work, rejects(ValueError, "destination_state was made by another"):
        fresh = twin.result_state(images, results)
        forward.encode(work.buffer, images, results, destination_state=fresh)
    _, others = twin(X, with_state=True)
    with rejects(ValueError, "the states of a batch must come from one kernel"):
        backward(X, X, [states[0], others[1]])
    for channels, words in ((4, "but the kernel normalizes 4"), (12, "but the kernel reads 12")):
        other_forward, _ = kernels(device, kind, channels=channels, groups=2)
        _, others = other_forward(np.zeros((2, 4, 4, channels), np.float32), with_state=True)
        with rejects(ValueError, words):
            backward(X, X, others)


@kinds
def test_rejects_states_that_nobody_filled(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    images, results = filled(device, X), empty(device, X.shape)
    states = forward.result_state(images, results)
    with Work(device) as work, rejects(mg.errors.StateError, "no forward encode has been given"):
        backward.encode(work.buffer, results, images, states)
    _, states = forward(X, with_state=True)
    for name in ("gradient_for_gamma", "gradient_for_beta"):
        words = f"there is no {name} before a gradient encode"
        with rejects(mg.errors.StateError, words):
            getattr(states[0], name)


@kinds
def test_states_cannot_be_made(kind):
    with rejects(TypeError, "is made by a kernel"):
        STATE[kind]()


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 0.5), ("options", mg.KernelOptions.ALLOW_REDUCED_PRECISION)]
)
@kinds
def test_rejects_settings_that_changed(device, kind, name, value):
    forward, _ = kernels(device, kind, channels=8, groups=2)
    images, results = filled(device, X), empty(device, X.shape)
    states = forward.result_state(images, results)
    setattr(forward, name, value)
    with Work(device) as work, rejects(mg.errors.StateError, "properties changed after"):
        forward.encode(work.buffer, images, results, destination_state=states)


@kinds
def test_states_know_how_many_images_a_clip_rectangle_covers(device, kind):
    forward, _ = kernels(device, kind, channels=8, groups=2)
    forward.clip_rect = mg.Region((0, 0, 0), (4, 4, 2))
    images, results = filled(device, X), empty(device, X.shape)
    states = forward.result_state(images, results)
    words = "clip_rect covers 1 images, but 2 when destination_state was made"
    with Work(device) as work:
        with rejects(mg.errors.StateError, words):
            forward.encode(work.buffer, images[0], results[0], destination_state=states[0])
        forward.encode(work.buffer, images, results, destination_state=states)


@kinds
def test_a_batch_may_be_encoded_image_by_image(device, kind, rng):
    x, g = rng.standard_normal((2, 2, 4, 5, 6), dtype=np.float32)
    groups = 6 if kind == INSTANCE else 3
    forward, backward = kernels(device, kind, channels=6, groups=groups, epsilon=0.25)
    sources, incoming = filled(device, x), filled(device, g)
    results, out = empty(device, x.shape), empty(device, x.shape)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        for i, state in enumerate(states):
            forward.encode(work.buffer, sources[i], results[i], destination_state=state)
        for i, state in enumerate(states):
            backward.encode(work.buffer, incoming[i], sources[i], state, out[i], configure=False)
        work.result(results)
        work.result(out)
        mg.synchronize(states, work.buffer)
    check_forward(read(results), x, groups=groups, epsilon=0.25)
    check_gradients(read(out), states, g, x, groups=groups, epsilon=0.25)


@kinds
def test_rejects_gradients_of_parts(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    images = filled(device, X)
    for name, value in (("offset", (1, 0)), ("clip_rect", mg.Region((0, 0), (3, 3)))):
        default = getattr(forward, name)
        setattr(forward, name, value)
        results = empty(device, X.shape)
        states = forward.result_state(images, results)
        with Work(device) as work:
            forward.encode(work.buffer, images, results, destination_state=states)
            with rejects(ValueError, "there is a gradient of whole images only"):
                backward.encode(work.buffer, results, images, states)
        setattr(forward, name, default)
    wide = empty(device, (2, 5, 4, 8))
    states = forward.result_state(images, wide)
    with Work(device) as work:
        forward.encode(work.buffer, images, wide, destination_state=states)
        with rejects(ValueError, "the forward result was 4x5, but its source 4x4"):
            backward.encode(work.buffer, images, images, states)


SETTINGS = {
    "primary_offset": (1, 0),
    "secondary_offset": (0, 1),
    "clip_rect": mg.Region((0, 0), (2, 2)),
    "kernel_offset_x": 1,
    "kernel_offset_y": -1,
    "primary_stride_in_pixels_x": 2,
    "secondary_stride_in_pixels_y": 2,
}


@kinds
@pytest.mark.parametrize("name", SETTINGS)
def test_rejects_gradient_settings(device, kind, name):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    _, states = forward(X, with_state=True)
    images, out = filled(device, X), empty(device, X.shape)
    backward.configure(images, images, states[0])
    setattr(backward, name, SETTINGS[name])
    words = f"{name} must have its default value, got "
    with Work(device) as work, rejects(ValueError, words):
        backward.encode(work.buffer, images, images, states, out)


@kinds
def test_rejects_destinations_of_another_size(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    _, states = forward(X, with_state=True)
    images, wide = filled(device, X), empty(device, (2, 4, 5, 8))
    backward.configure(images, images, states[0])
    with Work(device) as work:
        with rejects(ValueError, "destination is 5x4, but source is 4x4"):
            backward.encode(work.buffer, images, images, states, wide)
        with rejects(ValueError, "destination shares memory with source"):
            forward.encode(work.buffer, images, images)
        swapped = [images[1], empty(device, (1, 4, 4, 8))[0]]  # not at one place of the batch
        with rejects(ValueError, "destination shares memory with source"):
            forward.encode(work.buffer, images, swapped)
        with rejects(ValueError, "destination shares memory with source"):
            backward.encode(work.buffer, empty(device, X.shape), images, states, swapped)


@kinds
def test_rejects_gradients_of_containers(device, kind):
    forward, backward = kernels(device, kind, channels=8, groups=2)
    images, results = filled(device, X, kind="container"), empty(device, X.shape, kind="container")
    state = forward.result_state(images, results)
    with Work(device) as work:
        forward.encode(work.buffer, images, results, destination_state=state)
        out = empty(device, X.shape, kind="container")
        backward.configure(images, images, state)
        with rejects(ValueError, "an image that holds 2 has one state; pass a batch"):
            backward.encode(work.buffer, images, images, state, out)
