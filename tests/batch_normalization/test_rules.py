"""Phases, read counts, data sources, reloads and rejections of the batch normalization kernels."""

import copy
import gc
import pickle
import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.batch_normalization.support import forward_kernel, train, values
from tests.images import Work, empty, filled, read
from tests.neuron.cases import Neuron
from tests.rejects import rejects
from tests.tolerance import assert_exact, assert_same_bytes

SHAPE = (2, 3, 4, 5)  # of the batch in every test here
X = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) % 7
G = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) % 5 - 2
STORED = {"mean": [1] * 5, "variance": [4] * 5}


class Kernels:
    """The four kernels, images of one batch, and a state."""

    def __init__(self, device, **arrays):
        self.device = device
        self.forward = forward_kernel(device, 5, **({**STORED, **arrays}))
        self.statistics = mg.BatchNormalizationStatistics(device=device)
        self.sums = mg.BatchNormalizationStatisticsGradient(device=device)
        self.gradient = mg.BatchNormalizationGradient(device=device)
        self.x, self.g = filled(device, X), filled(device, G)
        self.y, self.dx = (empty(device, SHAPE) for _ in range(2))
        self.state = self.forward.result_state(self.x[0], self.y[0])

    def encode(self, buffer, which, images=(0, 1)):
        """Encode one of S, N, D, G over some of the images."""
        x, g, y = ([batch[i] for i in images] for batch in (self.x, self.g, self.y))
        if which == "S":
            self.statistics.encode_batch(buffer, x, self.state)
        elif which == "N":
            self.forward.encode_batch(buffer, x, y, batch_normalization_state=self.state)
        elif which == "D":
            self.sums.encode_batch(buffer, g, x, self.state)
        else:
            return self.gradient.encode_batch(buffer, g, x, self.state, allocator=mg.DEFAULT)
        return None


def value(buffer):
    return None if buffer is None else buffer.to_numpy()[:5]


# ---- phases ---------------------------------------------------------------------------------

WAYS = {  # encodes that lead to a phase: which, over which images
    "initial": [],
    "statistics": ["S01"],
    "statistics read": ["S01", "N01"],
    "no gradients yet, half the statistics": ["S0"],
    "gradients, half": ["S01", "N01", "D0"],
    "gradients, all": ["S01", "D1", "D0"],
    "gradients read": ["S01", "N01", "D01", "G01"],
}
NO_STATISTICS = "the state has no statistics of this batch; encode BatchNormalizationStatistics"
REFUSED = {
    ("initial", "D0"): NO_STATISTICS + " first",
    ("initial", "D01"): NO_STATISTICS + " first",
    ("initial", "G0"): NO_STATISTICS + " and BatchNormalizationStatisticsGradient first",
    ("statistics", "G0"): "of 0 of the batch's 2 images; encode "
    "BatchNormalizationStatisticsGradient for the others first",
    ("statistics read", "G0"): "of 0 of the batch's 2 images",
    ("no gradients yet, half the statistics", "D01"): "2 images after the 0 seen so far are more "
    "than the 1 that BatchNormalizationStatistics was encoded for",
    ("no gradients yet, half the statistics", "G0"): "of 0 of the batch's 1 images",
    ("gradients, half", "D01"): "2 images after the 1 seen so far are more than the 2",
    ("gradients, half", "G0"): "of 1 of the batch's 2 images; encode "
    "BatchNormalizationStatisticsGradient for the others first",
    ("gradients, all", "D0"): "1 images after the 2 seen so far are more than the 2",
    ("gradients, all", "D01"): "2 images after the 2 seen so far are more than the 2",
    ("gradients read", "D01"): "has used this state's sums already",
    ("gradients read", "D0"): "has used this state's sums already; encode "
    "BatchNormalizationStatistics for the next batch first",
}


def split(step):
    return step[0], [int(image) for image in step[1:]]


@pytest.mark.parametrize("encode", ["S0", "N0", "D0", "D01", "G0"])
@pytest.mark.parametrize("phase", WAYS)
def test_every_phase_and_every_encode(device, phase, encode):
    kernels = Kernels(device)
    with Work(device) as work:
        for step in WAYS[phase]:
            kernels.encode(work.buffer, *split(step))
        words = REFUSED.get((phase, encode))
        if words is None:
            kernels.encode(work.buffer, *split(encode))
        else:
            with pytest.raises(mg.errors.StateError, match=re.escape(words)) as refusal:
                kernels.encode(work.buffer, *split(encode))
            assert re.search(r"; encode BatchNormalizationStatistics\w* ", str(refusal.value))
            # Nothing has changed: what was possible still is.
            for step in WAYS[phase][-1:]:
                if step[0] in "NG":
                    kernels.encode(work.buffer, *split(step))
        kernels.state.synchronize(work.buffer)
    if words is None and encode == "S0":
        accumulates = phase in ("statistics", "no gradients yet, half the statistics")
        counted = [*(split(WAYS[phase][0])[1] if accumulates else []), 0]
        exact = X[counted].astype(float).mean(axis=(0, 1, 2))
        np.testing.assert_allclose(value(kernels.state.mean), exact, rtol=1e-7)
        assert kernels.state.gradient_for_gamma is None


def test_gradients_are_there_from_the_first_encode_on_and_gone_with_the_next_batch(device):
    kernels = Kernels(device)
    state = kernels.state

    def gradients():
        return value(state.gradient_for_gamma), value(state.gradient_for_beta)

    def run(*steps):
        with Work(device) as work:
            for step in steps:
                kernels.encode(work.buffer, *split(step))
            state.synchronize(work.buffer)

    assert gradients() == (None, None)
    run("S01", "N01")
    assert gradients() == (None, None)
    run("D1")
    assert_exact(gradients()[1], G[1].sum(axis=(0, 1)))
    run("D0")
    assert_exact(gradients()[1], G.sum(axis=(0, 1, 2)))
    run("G01")
    assert_exact(gradients()[1], G.sum(axis=(0, 1, 2)))
    run("S0")
    assert gradients() == (None, None)
    run("D0")
    assert_exact(gradients()[1], G[0].sum(axis=(0, 1)))
    state.reset()
    assert gradients() == (None, None)


def test_normalizing_again_changes_no_phase(device):
    """Forward images may be computed again while the sums are gathered, and after."""
    kernels = Kernels(device)
    expected = train(device, kernels.forward, X, G, (2,), gradient_counts=(1, 1))
    with Work(device) as work:
        for step in ("S01", "N01", "N01", "D0", "N01", "D1", "N0", "G0", "N01"):
            kernels.encode(work.buffer, *split(step))
        dx = work.result(kernels.encode(work.buffer, "G"))
        with pytest.raises(mg.errors.StateError, match="has used this state's sums already"):
            kernels.encode(work.buffer, "D")
        work.result(kernels.y)
    assert_same_bytes(read(kernels.y), expected.y)
    assert_same_bytes(read(dx), expected.dx)


@pytest.mark.parametrize("phase", WAYS)
def test_reset_from_any_phase(device, phase):
    """Both counts are 0 then, and the next images may have another size."""
    kernels = Kernels(device)
    small = X[:1, :2], G[:1, :2]
    x, g = (filled(device, np.ascontiguousarray(array)) for array in small)
    with Work(device) as work:
        for step in WAYS[phase]:
            kernels.encode(work.buffer, *split(step))
        kernels.state.reset()
        for which in "DG":
            with pytest.raises(mg.errors.StateError, match=re.escape(NO_STATISTICS)):
                kernels.encode(work.buffer, which)
        kernels.statistics.encode_batch(work.buffer, x, kernels.state)
        kernels.sums.encode_batch(work.buffer, g, x, kernels.state)
        dx = work.result(
            kernels.gradient.encode_batch(work.buffer, g, x, kernels.state, allocator=mg.DEFAULT)
        )
        kernels.state.synchronize(work.buffer)
    expected = train(device, kernels.forward, *small, (1,))
    assert_same_bytes(read(dx), expected.dx)
    assert_exact(value(kernels.state.gradient_for_beta), expected.number("gradient_for_beta"))


def test_single_images_with_a_state(device):
    kernels = Kernels(device)
    expected = train(device, kernels.forward, X, G, (2,))
    dxs = []
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        for x, y in zip(kernels.x, kernels.y, strict=True):
            given = kernels.forward.encode(
                work.buffer, x, y, batch_normalization_state=kernels.state
            )
            assert given is y
        kernels.encode(work.buffer, "D")
        for x, g in zip(kernels.x, kernels.g, strict=True):
            dx = kernels.gradient.encode(work.buffer, g, x, kernels.state, allocator=mg.DEFAULT)
            dxs.append(work.result(dx))
        work.result(kernels.y)
    assert_same_bytes(read(kernels.y), expected.y)
    assert_same_bytes(read(dxs), expected.dx)


def test_reset_leads_back_to_the_stored_statistics(device):
    kernels = Kernels(device)
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        kernels.state.synchronize(work.buffer)
    assert value(kernels.state.mean)[0] != 1
    kernels.state.reset()
    assert_exact(value(kernels.state.mean), np.ones(5))
    assert_exact(value(kernels.state.variance), np.full(5, 4.0))
    with Work(device) as work:
        kernels.encode(work.buffer, "N")
        work.result(kernels.y)
        with pytest.raises(mg.errors.StateError, match="no statistics"):
            kernels.encode(work.buffer, "D")
    assert_same_bytes(read(kernels.y), kernels.forward(X))


@pytest.mark.parametrize("dropped", ["S0", "S1"])
def test_statistics_on_a_buffer_that_was_dropped_are_none(device, queue, dropped):
    """Neither the part that would have been added up, nor what it would have been added to."""
    kernels = Kernels(device)
    buffer = queue.command_buffer()
    if dropped == "S1":
        with Work(device) as work:
            kernels.encode(work.buffer, "S", [0])
    kernels.encode(buffer, *split(dropped))
    del buffer
    gc.collect()
    with Work(device) as work:
        with pytest.raises(mg.errors.StateError, match=re.escape(NO_STATISTICS)):
            kernels.encode(work.buffer, "D")
        kernels.encode(work.buffer, "N")
        work.result(kernels.y)
    assert_same_bytes(read(kernels.y), kernels.forward(X))
    assert_exact(value(kernels.state.mean), np.ones(5))
    with Work(device) as work:
        for which in "SND":
            kernels.encode(work.buffer, which)
        dx = work.result(kernels.encode(work.buffer, "G"))
    assert_same_bytes(read(dx), train(device, kernels.forward, X, G, (2,)).dx)


def test_sums_on_a_buffer_that_was_dropped_take_the_statistics_with_them(device, queue):
    kernels = Kernels(device)
    with Work(device) as work:
        for step in ("S01", "N01", "D0"):
            kernels.encode(work.buffer, *split(step))
    buffer = queue.command_buffer()
    kernels.encode(buffer, "D", [1])
    kernels.encode(buffer, "G")
    del buffer
    gc.collect()
    assert kernels.state.gradient_for_gamma is None
    with Work(device) as work:
        for which in "DG":
            with pytest.raises(mg.errors.StateError, match=re.escape(NO_STATISTICS)):
                kernels.encode(work.buffer, which)
        for step in ("S01", "N01", "D0", "D1"):
            kernels.encode(work.buffer, *split(step))
        dx = work.result(kernels.encode(work.buffer, "G"))
    expected = train(device, kernels.forward, X, G, (2,), gradient_counts=(1, 1))
    assert_same_bytes(read(dx), expected.dx)


def test_reset_does_not_touch_encoded_work(device):
    kernels = Kernels(device)
    expected = train(device, kernels.forward, X, G, (2,))
    with Work(device) as work:
        for which in "SND":
            kernels.encode(work.buffer, which)
        dx = work.result(kernels.encode(work.buffer, "G"))
        work.result(kernels.y)
        kernels.state.reset()
    assert_same_bytes(read(kernels.y), expected.y)
    assert_same_bytes(read(dx), expected.dx)


def test_a_fresh_state_shows_the_stored_statistics_or_none(device):
    assert_exact(value(Kernels(device).state.mean), np.ones(5))
    bare = Kernels(device, mean=None, variance=None)
    assert (bare.state.mean, bare.state.variance) == (None, None)
    with Work(device) as work:
        words = "has no mean and variance; encode BatchNormalizationStatistics first"
        with pytest.raises(mg.errors.StateError, match=words):
            bare.encode(work.buffer, "N")
        bare.encode(work.buffer, "S")
        bare.encode(work.buffer, "N")
    for given in ({}, {"mean": [1] * 5}, {"variance": [1] * 5}):
        partial = forward_kernel(device, 5, **given)
        with pytest.raises(mg.errors.StateError, match="there is nothing to normalize with"):
            partial(X)


def test_statistics_and_reloads_do_not_touch_each_other(device):
    kernels = Kernels(device)
    container = mg.NormalizationMeanAndVarianceState([9] * 5, [16] * 5, device=device)
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        kernels.forward.reload_mean_and_variance(work.buffer, container)
        kernels.state.synchronize(work.buffer)
    assert_exact(value(kernels.state.mean), X.astype(float).mean(axis=(0, 1, 2)).astype("f4"))
    kernels.state.reset()
    assert_exact(value(kernels.state.mean), np.full(5, 9.0))


def test_properties_of_the_classes(device):
    kernels = Kernels(device)
    assert kernels.statistics.append_batch_barrier
    assert kernels.statistics.is_result_state_reused_across_batch
    assert kernels.statistics.is_state_modified
    assert kernels.sums.append_batch_barrier
    assert kernels.sums.is_state_modified
    assert not kernels.gradient.is_state_modified
    assert kernels.statistics.result_state(kernels.x[0], kernels.y[0]) is None
    assert (kernels.forward.kernel_width, kernels.forward.stride_in_pixels_x) == (1, 1)
    assert (kernels.forward.kernel_height, kernels.forward.stride_in_pixels_y) == (1, 1)
    assert kernels.forward.edge_mode == mg.EdgeMode.ZERO
    for name in ("gamma", "beta", "mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
        with rejects(AttributeError, "of 'BatchNormalizationState' object has no setter"):
            setattr(kernels.state, name, None)
    with rejects(AttributeError, "of 'BatchNormalizationState' object has no setter"):
        kernels.state.batch_normalization = None
    assert kernels.forward.number_of_feature_channels == 5
    assert kernels.state.batch_normalization is kernels.forward
    batch = kernels.forward.result_state_batch(kernels.x, kernels.y)
    assert len(batch) == 2
    assert batch[0] is batch[1]
    for kernel, names in (
        (kernels.statistics, ["encode"]),
        (kernels.sums, ["encode", "configure", "destination_descriptor"]),
    ):
        for name in names:
            assert not hasattr(kernel, name)
    with pytest.raises(AttributeError, match="has no encode; use encode_batch"):
        _ = kernels.statistics.encode


# ---- read counts ----------------------------------------------------------------------------


def test_read_counts_of_one_step_with_temporaries(device):
    kernels = Kernels(device)
    identity = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)
    with Work(device) as work:
        x = identity.encode_batch(work.buffer, kernels.x, allocator=mg.TEMPORARY)
        g = identity.encode_batch(work.buffer, kernels.g, allocator=mg.TEMPORARY)
        mg.increment_read_count(x, 3)
        mg.increment_read_count(g, 1)
        state = kernels.forward.temporary_result_state(work.buffer, x[0], x[0])
        mg.increment_read_count([state], 2)
        counts = []

        def count():
            counts.append((x[0].read_count, x[1].read_count, g[0].read_count, state.read_count))

        count()
        kernels.statistics.encode_batch(work.buffer, x, state)
        count()
        kernels.forward.encode_batch(work.buffer, x, kernels.y, batch_normalization_state=state)
        count()
        kernels.sums.encode_batch(work.buffer, g, x, state)
        count()
        dx = work.result(
            kernels.gradient.encode_batch(work.buffer, g, x, state, allocator=mg.DEFAULT)
        )
        count()
        work.result(kernels.y)
    assert counts == [(4, 4, 2, 3), (3, 3, 2, 3), (2, 2, 2, 2), (1, 1, 1, 1), (0, 0, 0, 0)]
    expected = train(device, kernels.forward, X, G, (2,))
    assert_same_bytes(read(kernels.y), expected.y)
    assert_same_bytes(read(dx), expected.dx)


def test_a_state_that_was_read_too_often_is_refused_and_nothing_changes(device):
    kernels = Kernels(device)
    with Work(device) as work:
        kernels.state = kernels.forward.temporary_result_state(
            work.buffer, kernels.x[0], kernels.y[0]
        )
        kernels.encode(work.buffer, "S")
        kernels.encode(work.buffer, "N")
        assert kernels.state.read_count == 0
        for which in "SNDG":
            with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
                kernels.encode(work.buffer, which)


def test_a_refused_encode_spends_no_read(device):
    kernels = Kernels(device)
    identity = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)
    with Work(device) as work:
        kernels.x = identity.encode_batch(work.buffer, kernels.x, allocator=mg.TEMPORARY)
        kernels.state = kernels.forward.temporary_result_state(
            work.buffer, kernels.x[0], kernels.y[0]
        )
        for which, words in (
            ("D", f"BatchNormalizationStatisticsGradient: {NO_STATISTICS} first"),
            (
                "G",
                f"BatchNormalizationGradient: {NO_STATISTICS} and "
                "BatchNormalizationStatisticsGradient first",
            ),
        ):
            with rejects(mg.errors.StateError, words):
                kernels.encode(work.buffer, which)
        assert (kernels.x[0].read_count, kernels.state.read_count) == (1, 1)
        kernels.encode(work.buffer, "N")
        assert (kernels.x[0].read_count, kernels.state.read_count) == (0, 0)


def test_read_counts_of_a_step_in_two_parts(device):
    """A state is read once an encode: three times a part, however many images there are."""
    kernels = Kernels(device)
    counts = []
    with Work(device) as work:
        kernels.state = kernels.forward.temporary_result_state(
            work.buffer, kernels.x[0], kernels.y[0]
        )
        kernels.state.read_count = 6
        for which in "SNDG":
            for image in (0, 1):
                kernels.encode(work.buffer, which, [image])
                counts.append(kernels.state.read_count)
    assert counts == [6, 6, 5, 4, 3, 2, 1, 0]


def test_images_that_were_read_too_often_are_refused_and_nothing_changes(device):
    kernels = Kernels(device)
    identity = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.NONE), device=device)
    ordinary = kernels.x
    expected = train(device, kernels.forward, X, G, (2,))
    with Work(device) as work:
        spent = identity.encode_batch(work.buffer, ordinary, allocator=mg.TEMPORARY)
        kernels.forward.encode_batch(work.buffer, spent, kernels.y)  # inference reads once
        assert [image.read_count for image in spent] == [0, 0]

        def refused(which):
            kernels.x = spent
            with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
                kernels.encode(work.buffer, which)
            kernels.x = ordinary

        kernels.encode(work.buffer, "S")
        for which in "SND":
            refused(which)
        kernels.encode(work.buffer, "D")
        refused("G")
        dx = work.result(kernels.encode(work.buffer, "G"))
    assert_same_bytes(read(dx), expected.dx)


def test_buffers_of_a_temporary_state_are_private(device):
    kernels = Kernels(device)
    with Work(device) as work:
        kernels.state = state = kernels.forward.temporary_result_state(
            work.buffer, kernels.x[0], kernels.y[0]
        )
        state.read_count = 2
        kernels.encode(work.buffer, "S")
        kernels.encode(work.buffer, "D")
        names = ("mean", "variance", "gradient_for_gamma", "gradient_for_beta")
        buffers = [getattr(state, name) for name in names]
        kernels.encode(work.buffer, "G")
    for buffer in buffers:
        with pytest.raises(RuntimeError, match="private to the device"):
            buffer.to_numpy()
    assert [getattr(state, name) for name in names] == [None] * 4


def test_reading_before_the_work_has_run(device, queue):
    kernels = Kernels(device)
    buffer = queue.command_buffer()
    kernels.encode(buffer, "S")
    kernels.state.synchronize(buffer)
    with pytest.raises(RuntimeError, match=r"BatchNormalizationState\.mean"):
        kernels.state.mean.to_numpy()
    buffer.commit()
    buffer.wait_until_completed()
    kernels.state.mean.to_numpy()


# ---- data sources ---------------------------------------------------------------------------


class Recorded:
    """A data source that is no subclass of anything, and tells what was asked of it."""

    def __init__(self, **values):
        self.values = {
            "number_of_feature_channels": 5,
            "gamma": np.full(5, 2, np.float32),
            "beta": None,
            "mean": np.zeros(5, np.float32),
            "variance": np.ones(5, np.float32),
            "label": "mine",
            "epsilon": 0.25,
            **values,
        }
        self.asked = []
        self.loads = True

    def load(self):
        self.asked.append("load")
        return self.loads

    def purge(self):
        self.asked.append("purge")

    def __getattr__(self, name):
        if name in ("values", "asked") or name.startswith("__"):
            raise AttributeError(name)
        if name in self.values:
            self.asked.append(name)
            found = self.values[name]
            if isinstance(found, type):  # a new exception each time: one would keep its frames
                raise found("no such file")
            return found
        raise AttributeError(name)


def test_a_source_is_loaded_read_and_purged(device):
    source = Recorded()
    kernel = mg.BatchNormalization(source, device=device)
    asked = list(source.asked)
    assert (asked[0], asked[-1]) == ("load", "purge")
    assert sorted(asked[1:-1]) == sorted(source.values)
    assert (kernel.label, kernel.epsilon) == ("mine", 0.25)
    assert kernel.data_source is source
    source.asked.clear()
    kernel.reload_gamma_and_beta_from_data_source()
    assert source.asked == ["load", "number_of_feature_channels", "gamma", "beta", "purge"]
    source.asked.clear()
    kernel.reload_mean_and_variance_from_data_source()
    assert source.asked == ["load", "number_of_feature_channels", "mean", "variance", "purge"]


def test_numbers_are_used_as_they_are_given(device):
    """Nothing is checked but lengths: a negative variance that epsilon outweighs, a NaN."""
    kernel = forward_kernel(device, 5, mean=[0] * 5, variance=[-1] * 5, epsilon=5)
    assert_exact(kernel(X), X / 2)
    arrays = [[np.nan, -np.inf, -0.0, 1e-45, 3]] * 4
    state = Kernels(
        device, **dict(zip(["gamma", "beta", "mean", "variance"], arrays, strict=True))
    ).state
    for name in ("gamma", "beta", "mean", "variance"):
        assert_exact(value(getattr(state, name)), np.array(arrays[0], np.float32))


def test_updates_are_left_to_the_caller(device):
    calls = []

    class Updating(mg.ArrayBatchNormalizationDataSource):
        def update_gamma_and_beta(self, command_buffer, state):
            calls.append((command_buffer, state))

        update_mean_and_variance = update_gamma_and_beta

        def update_gamma_and_beta_cpu(self, state):
            calls.append(state)
            return True

        update_mean_and_variance_cpu = update_gamma_and_beta_cpu

    source = Updating([2] * 5, [1] * 5, [0] * 5, [1] * 5)
    kernel = mg.BatchNormalization(source, device=device)
    train(device, kernel, X, G, (1, 1))
    kernel(X)
    kernel.reload_gamma_and_beta_from_data_source()
    kernel.reload_mean_and_variance_from_data_source()
    assert calls == []


def test_a_source_without_epsilon_or_label_text(device):
    source = Recorded(label=None)
    del source.values["epsilon"]
    kernel = mg.BatchNormalization(source, device=device)
    assert (kernel.label, kernel.epsilon) == ("", float(np.finfo(np.float32).tiny))


@pytest.mark.parametrize(
    "name", ["number_of_feature_channels", "gamma", "beta", "mean", "variance", "label"]
)
def test_a_source_that_lacks_a_member(device, name):
    source = Recorded()
    del source.values[name]
    with pytest.raises(TypeError, match=f"data_source must have {name}, but Recorded has none"):
        mg.BatchNormalization(source, device=device)
    assert (source.asked.count("load"), source.asked.count("purge")) == (1, 1)


@pytest.mark.parametrize("method", ["load", "purge"])
def test_a_source_that_lacks_a_method(device, method):
    class Incomplete:
        number_of_feature_channels = 1
        gamma = beta = mean = variance = label = None

    other = "purge" if method == "load" else "load"
    setattr(Incomplete, other, lambda _: True)
    with pytest.raises(TypeError, match=rf"data_source must have {method}\(\), but Incomplete"):
        mg.BatchNormalization(Incomplete(), device=device)


def test_a_source_that_raises_is_purged(device):
    source = Recorded(mean=KeyError)
    with pytest.raises(KeyError, match="no such file"):
        mg.BatchNormalization(source, device=device)
    assert source.asked[-1] == "purge"


def test_a_source_that_refuses_to_load_is_not_purged(device):
    source = Recorded()
    source.loads = False
    with pytest.raises(
        ValueError, match=r"BatchNormalization: load\(\) of Recorded must return True, got False"
    ):
        mg.BatchNormalization(source, device=device)
    assert source.asked == ["load"]


BAD_SOURCES = {
    "length": (
        {"beta": np.zeros(4, "f4")},
        ValueError,
        "beta of the data source must have 5 values, got 4",
    ),
    "axes": ({"mean": np.zeros((5, 1), "f4")}, ValueError, "mean must have one axis, got 2"),
    "no numbers": ({"gamma": "abcde"}, TypeError, "gamma must be an array of numbers, got str"),
    "no channels": (
        {"number_of_feature_channels": 0},
        ValueError,
        "must be between 1 and 8192, got 0",
    ),
    "fraction": (
        {"number_of_feature_channels": 5.5},
        TypeError,
        "number_of_feature_channels of the data source must be an integer, got float",
    ),
    "epsilon": ({"epsilon": -1.0}, ValueError, "epsilon must be finite and not negative, got -1"),
    "epsilon nan": ({"epsilon": np.nan}, ValueError, "epsilon must be finite"),
    "epsilon text": (
        {"epsilon": "small"},
        TypeError,
        "epsilon of the data source must be a number",
    ),
    "label": ({"label": 3}, TypeError, "label of the data source must be a str or None, got int"),
}


@pytest.mark.parametrize(("given", "error", "words"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_bad_sources(device, given, error, words):
    source = Recorded(**given)
    with pytest.raises(error, match=re.escape(words)):
        mg.BatchNormalization(source, device=device)
    assert source.asked[-1] == "purge"


def test_a_bad_reload_changes_nothing(device):
    source = Recorded()
    kernel = mg.BatchNormalization(source, device=device)
    before = kernel(X)
    for bad, error, words in (
        (
            np.zeros(6, "f4"),
            ValueError,
            "BatchNormalization: gamma of the data source must have 5 values, got 6",
        ),
        (KeyError, KeyError, "no such file"),
    ):
        source.values["gamma"] = bad
        with rejects(error, words):
            kernel.reload_gamma_and_beta_from_data_source()
    source.values["number_of_feature_channels"] = 6
    with pytest.raises(ValueError, match="now has 6 channels, but the kernel was made with 5"):
        kernel.reload_mean_and_variance_from_data_source()
    assert_same_bytes(kernel(X), before)


def test_a_source_that_refuses_a_reload(device):
    source = Recorded()
    kernel = mg.BatchNormalization(source, device=device)
    before = kernel(X)
    source.loads = False
    source.values["gamma"] = source.values["mean"] = np.full(5, 9, np.float32)
    source.asked.clear()
    for reload in (
        kernel.reload_gamma_and_beta_from_data_source,
        kernel.reload_mean_and_variance_from_data_source,
    ):
        with pytest.raises(ValueError, match=r"load\(\) of Recorded must return True, got False"):
            reload()
    assert source.asked == ["load", "load"]
    assert_same_bytes(kernel(X), before)


def test_a_state_shows_how_far_it_is(device):
    source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=3)
    statistics = mg.BatchNormalizationStatistics(device=device)
    x = np.arange(24, dtype=np.float32).reshape(2, 2, 2, 3)
    state = mg.BatchNormalization(source, device=device)(x, with_state=True)[1]
    shown = "BatchNormalizationState(3 channels, statistics of 2 images{})"
    assert repr(state) == shown.format("")
    mg.BatchNormalizationStatisticsGradient(device=device)(x, x, state)
    assert repr(state) == shown.format(", sums of 2")
    state.reset()
    assert repr(state) == "BatchNormalizationState(3 channels, no statistics)"
    statistics(x[:1], state)
    assert repr(state) == "BatchNormalizationState(3 channels, statistics of 1 image)"


def test_array_source():
    gamma = np.ones(3, np.float32)
    source = mg.ArrayBatchNormalizationDataSource(gamma, mean=[1, 2, 3], label="norm", epsilon=0.5)
    assert source.gamma is gamma
    assert (source.number_of_feature_channels, source.label, source.epsilon) == (3, "norm", 0.5)
    assert source.beta is None
    shown = "3 channels, gamma, mean, epsilon=0.5, label 'norm'"
    assert repr(source) == f"ArrayBatchNormalizationDataSource({shown})"
    other = source.copy()
    other.gamma[:] = 2
    assert gamma[0] == 1
    assert mg.BatchNormalizationDataSource.epsilon == float(np.finfo(np.float32).tiny)
    with pytest.raises(ValueError, match=r"beta must have shape \(3,\), got \(2,\)"):
        mg.ArrayBatchNormalizationDataSource(gamma, [1, 2])
    with pytest.raises(ValueError, match="number_of_feature_channels is needed"):
        mg.ArrayBatchNormalizationDataSource()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 1, 1], [1, 2]), r"beta must have shape \(3,\), got \(2,\)"),
        ((), "number_of_feature_channels is needed where there is no array"),
        (([1, 1],), "statistics_decay must be from 0 to 1, got 2"),
    ],
)
def test_messages_name_the_subclass(arguments, words):
    class Mine(mg.ArrayBatchNormalizationDataSource):
        def __init__(self, *arrays):
            super().__init__(*arrays, statistics_decay=2 if len(arrays) == 1 else 0.9)

    with pytest.raises(ValueError, match=f"^Mine: {words}"):
        Mine(*arguments)


# ---- reloads --------------------------------------------------------------------------------


def test_reload_from_the_data_source_is_for_the_encodes_after_it(device):
    gamma = np.ones(5, np.float32)
    source = mg.ArrayBatchNormalizationDataSource(gamma, mean=[0] * 5, variance=[1] * 5, epsilon=0)
    kernel = mg.BatchNormalization(source, device=device)
    state = kernel.result_state(filled(device, X)[0], filled(device, X)[0])
    images = filled(device, X)
    with Work(device) as work:
        first = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        gamma[:] = 3
        kernel.reload_gamma_and_beta_from_data_source()
        second = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        source.mean = np.full(5, 1, np.float32)
        kernel.reload_mean_and_variance_from_data_source()
        third = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
    assert_exact(read(first), X)
    assert_exact(read(second), 3 * X)
    assert_exact(read(third), 3 * (X - 1))
    assert_exact(value(state.gamma), np.full(5, 3.0))
    assert_exact(value(state.mean), np.ones(5))


def test_reload_may_take_weights_away(device):
    source = mg.ArrayBatchNormalizationDataSource([2] * 5, [1] * 5, [0] * 5, [1] * 5, epsilon=0)
    kernel = mg.BatchNormalization(source, device=device)
    assert_exact(kernel(X), 2 * X + 1)
    source.gamma = source.beta = None
    kernel.reload_gamma_and_beta_from_data_source()
    assert_exact(kernel(X), X)
    source.mean = None
    kernel.reload_mean_and_variance_from_data_source()
    with pytest.raises(mg.errors.StateError, match="has no mean and variance"):
        kernel(X)


def test_reload_on_the_command_buffer_takes_its_turn(device):
    kernel = forward_kernel(device, 5, mean=[0] * 5, variance=[1] * 5, epsilon=0)
    images = filled(device, X)
    state = kernel.result_state(images[0], images[0])
    assert (state.gamma, state.beta) == (None, None)
    weights = mg.NormalizationGammaAndBetaState([2] * 6, [1] * 6, device=device)  # one to spare
    statistics = mg.NormalizationMeanAndVarianceState([3] * 5, [4] * 5, device=device)
    with Work(device) as work:
        before = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        kernel.reload_gamma_and_beta(work.buffer, weights)
        between = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
        kernel.reload_mean_and_variance(work.buffer, statistics)
        after = work.result(kernel.encode_batch(work.buffer, images, allocator=mg.DEFAULT))
    assert_exact(read(before), X)
    assert_exact(read(between), 2 * X + 1)
    assert_exact(read(after), X - 3 + 1)
    assert_exact(value(state.gamma), np.full(5, 2.0))
    assert_exact(value(state.mean), np.full(5, 3.0))
    np.asarray(weights.gamma)[:] = 9  # a later write does not reach the kernel
    assert_exact(kernel(X), X - 3 + 1)
    source = kernel.data_source  # a reload does not write there
    assert (source.gamma, source.beta) == (None, None)
    assert (source.mean.tolist(), source.variance.tolist()) == ([0] * 5, [1] * 5)


@pytest.mark.parametrize("way", ["data source", "command buffer"])
def test_a_reload_before_the_gradients_shows_in_them(device, way):
    """Scale and offset are the kernel's as it is when a gradient kernel is encoded."""
    gamma = np.ones(5, np.float32)
    kernels = Kernels(device, gamma=gamma)
    expected = train(device, kernels.forward, X, G, (2,))
    with Work(device) as work:
        for which in "SND":
            kernels.encode(work.buffer, which)
        if way == "data source":
            kernels.forward.data_source.gamma[:] = 2
            kernels.forward.reload_gamma_and_beta_from_data_source()
        else:
            doubled = mg.NormalizationGammaAndBetaState([2] * 5, [0] * 5, device=device)
            kernels.forward.reload_gamma_and_beta(work.buffer, doubled)
        dx = work.result(kernels.encode(work.buffer, "G"))
        work.result(kernels.y)
    assert_same_bytes(read(kernels.y), expected.y)
    assert_same_bytes(read(dx), 2 * expected.dx)


def test_a_reload_under_a_predicate(device):
    kernel = forward_kernel(device, 5, **STORED)
    before = kernel(X)
    with Work(device) as work:
        container = mg.NormalizationGammaAndBetaState.temporary(work.buffer, 5)
        work.buffer.predicate = mg.Predicate(mg.Buffer(device, np.uint32([0])))
        if device.kind == "cpu":
            kernel.reload_gamma_and_beta(work.buffer, container)
            assert container.read_count == 0
        else:
            with rejects(mg.errors.UnsupportedError, "make a reload depend on a predicate"):
                kernel.reload_gamma_and_beta(work.buffer, container)
            assert container.read_count == 1
            container.read_count = 0
    assert_same_bytes(kernel(X), before)


def test_reload_reads_a_temporary_state_once(device):
    kernel = forward_kernel(device, 5, **STORED)
    with Work(device) as work:
        for cls, reload in (
            (mg.NormalizationGammaAndBetaState, kernel.reload_gamma_and_beta),
            (mg.NormalizationMeanAndVarianceState, kernel.reload_mean_and_variance),
        ):
            state = cls.temporary(work.buffer, 8)
            reload(work.buffer, state)
            assert state.read_count == 0
            with pytest.raises(mg.errors.ReadCountError, match="BatchNormalization: this"):
                reload(work.buffer, state)


def test_bad_reloads_on_the_command_buffer(device, queue):
    kernel = forward_kernel(device, 5, **STORED)
    buffer = queue.command_buffer()
    short = mg.NormalizationGammaAndBetaState([1] * 4, [1] * 4, device=device)
    with pytest.raises(ValueError, match="holds 4 values an array, but the kernel has 5 channels"):
        kernel.reload_gamma_and_beta(buffer, short)
    for wrong in (None, 3):
        with pytest.raises(
            TypeError, match="mean_and_variance_state must be a NormalizationMeanAndVarianceState"
        ):
            kernel.reload_mean_and_variance(buffer, wrong)
    with pytest.raises(
        TypeError,
        match="must be a NormalizationMeanAndVarianceState, got NormalizationGammaAndBetaState",
    ):
        kernel.reload_mean_and_variance(buffer, short)
    short = mg.NormalizationMeanAndVarianceState([1] * 4, [1] * 4, device=device)
    with pytest.raises(ValueError, match="holds 4 values an array, but the kernel has 5 channels"):
        kernel.reload_mean_and_variance(buffer, short)
    temporary = mg.NormalizationGammaAndBetaState.temporary(buffer, 4)
    with pytest.raises(ValueError, match="holds 4 values an array, but the kernel has 5 channels"):
        kernel.reload_gamma_and_beta(buffer, temporary)
    assert temporary.read_count == 1
    temporary.read_count = 0
    other = mg.NormalizationMeanAndVarianceState.temporary(queue.command_buffer(), 5)
    with pytest.raises(ValueError, match="belongs to another command buffer"):
        kernel.reload_mean_and_variance(buffer, other)
    assert other.read_count == 1
    other.read_count = 0


def test_what_is_trained_has_running_averages(device):
    """From 0 and 1 where none are given, or where one of the two is."""
    sgd = mg.SGD(0.5, device=device)
    options = {"epsilon": 0, "optimizer": sgd}
    source = mg.ArrayBatchNormalizationDataSource(np.ones(5), np.zeros(5), **options)
    assert_exact(source.mean, np.zeros(5))
    assert_exact(source.variance, np.ones(5))
    assert list(source.checkpoint()) == ["gamma", "beta", "mean", "variance", "steps"]
    assert_same_bytes(mg.BatchNormalization(source, device=device)(X), X)
    given = mg.ArrayBatchNormalizationDataSource(
        np.ones(5), np.zeros(5), variance=np.full(5, 4.0), **options
    )
    assert_exact(given.mean, np.zeros(5))
    assert_exact(given.variance, np.full(5, 4.0))


def test_a_running_average(device):
    """As a training loop keeps it: nine tenths of the old, one of the batch's biased variance."""
    kernel = forward_kernel(device, 5, mean=[0] * 5, variance=[1] * 5)
    _, state = kernel(X, with_state=True)
    exact = X.astype(np.float64)
    mean = 0.1 * exact.mean(axis=(0, 1, 2))
    variance = 0.9 + 0.1 * exact.var(axis=(0, 1, 2))
    running = mg.NormalizationMeanAndVarianceState(
        0.1 * value(state.mean), 0.9 + 0.1 * value(state.variance), device=device
    )
    with Work(device) as work:
        kernel.reload_mean_and_variance(work.buffer, running)
    y = kernel(X)
    np.testing.assert_allclose(y, (exact - mean) / np.sqrt(variance + 1e-3), rtol=1e-5, atol=1e-6)


def test_epsilon(device):
    kernel = forward_kernel(device, 5, **STORED, epsilon=1e-3)
    assert kernel.epsilon == float(np.float32(1e-3))
    kernel.epsilon = 5
    np.testing.assert_allclose(kernel(X), (X - 1) / 3, rtol=1e-6)
    for wrong in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="epsilon must be finite and not negative"):
            kernel.epsilon = wrong
    assert kernel.epsilon == 5


# ---- copies ---------------------------------------------------------------------------------


def test_copies(device):
    relu = mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.5)
    source = mg.ArrayBatchNormalizationDataSource([1, 2], mean=[0, 0], variance=[1, 1])
    kernel = mg.BatchNormalization(source, relu, device=device)
    kernel.epsilon = 0.125
    kernel.label = "first"
    for other in (kernel.copy(), copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert (other.epsilon, other.label) == (0.125, "first")
        assert other.fused_neuron_descriptor == relu
        assert other.data_source is not source
        assert_exact(other.data_source.gamma, [1, 2])
    assert "ArrayBatchNormalizationDataSource(2 channels" in repr(kernel)
    for cls in (mg.BatchNormalizationStatisticsGradient, mg.BatchNormalizationGradient):
        assert cls(relu, device=device).copy().fused_neuron_descriptor == relu
        assert cls(device=device).copy().fused_neuron_descriptor is None
    assert isinstance(
        mg.BatchNormalizationStatistics(device=device).copy(), mg.BatchNormalizationStatistics
    )


def test_updates_without_an_optimizer_read_the_state_all_the_same(device):
    source = mg.ArrayBatchNormalizationDataSource([1, 2], [3, 4])
    image = mg.Image(device, mg.ImageDescriptor(3, 2, 2))
    with Work(device) as work:
        kernel = mg.BatchNormalization(source, device=device)
        state = kernel.temporary_result_state(work.buffer, image, image)
        state.read_count = 2
        assert source.update_gamma_and_beta(work.buffer, state) is None
        assert state.read_count == 1
        assert source.update_mean_and_variance(work.buffer, state) is None
        assert state.read_count == 0


# ---- rejections -----------------------------------------------------------------------------


def test_states_are_made_by_kernels_only():
    with rejects(TypeError, "BatchNormalizationState is made by a kernel"):
        mg.BatchNormalizationState.temporary(mg.Device("cpu").command_queue().command_buffer(), 4)
    with rejects(TypeError, "BatchNormalizationState is made by a kernel"):
        mg.BatchNormalizationState()


def test_a_state_of_another_kernel(device):
    kernels, other = Kernels(device), Kernels(device)
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        with rejects(ValueError, "the state was made by another BatchNormalization"):
            other.forward.encode_batch(
                work.buffer, kernels.x, kernels.y, batch_normalization_state=kernels.state
            )
        kernels.encode(work.buffer, "N")


def test_a_changed_epsilon(device):
    kernels = Kernels(device)
    kernels.forward.epsilon = 0.5
    with Work(device) as work:
        with rejects(mg.errors.StateError, "epsilon is 0.5, but was 0.001 when the state was made"):
            kernels.encode(work.buffer, "N")
        kernels.forward.epsilon = 1e-3
        kernels.encode(work.buffer, "N")


def test_gradients_use_the_epsilon_that_the_state_was_made_with(device):
    kernels = Kernels(device)
    expected = train(device, kernels.forward, X, G, (2,))
    with Work(device) as work:
        for which in "SN":
            kernels.encode(work.buffer, which)
        kernels.forward.epsilon = 0.5
        kernels.encode(work.buffer, "D")
        dx = work.result(kernels.encode(work.buffer, "G"))
    assert_same_bytes(read(dx), expected.dx)


def test_changed_properties(device):
    kernels = Kernels(device)
    kernels.forward.edge_mode = mg.EdgeMode.CLAMP
    with Work(device) as work, rejects(mg.errors.StateError, "properties changed after"):
        kernels.encode(work.buffer, "N")


def test_wrong_states(device):
    kernels = Kernels(device)
    plain = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU), device=device).result_state(
        kernels.x[0], kernels.y[0]
    )
    with Work(device) as work:
        for state, got in ((plain, "got GradientState"), (None, "got NoneType")):
            kernels.state = state
            for which in "SD":
                with rejects(TypeError, f"must be a BatchNormalizationState, {got}"):
                    kernels.encode(work.buffer, which)
        kernels.state = plain
        with rejects(TypeError, "must be a BatchNormalizationState, got GradientState"):
            kernels.encode(work.buffer, "N")
        with rejects(
            TypeError, "state must come from BatchNormalization, but it was made by Neuron"
        ):
            kernels.encode(work.buffer, "G")


def test_one_state_for_a_batch(device):
    kernels = Kernels(device)
    others = [kernels.state, kernels.forward.result_state(kernels.x[0], kernels.y[0])]
    words = "the states of a batch must be one and the same object"
    with Work(device) as work:
        with rejects(ValueError, words):
            kernels.statistics.encode_batch(work.buffer, kernels.x, others)
        kernels.statistics.encode_batch(work.buffer, kernels.x, [kernels.state] * 2)
        with rejects(ValueError, words):
            kernels.sums.encode_batch(work.buffer, kernels.g, kernels.x, others)
        kernels.encode(work.buffer, "D")
        kernels.state = others[1]
        kernels.encode(work.buffer, "S")
        kernels.encode(work.buffer, "D")
        kernels.state = others  # either would do alone
        with rejects(ValueError, f"BatchNormalizationGradient: {words}"):
            kernels.encode(work.buffer, "G")


def test_channels(device):
    kernels = Kernels(device)
    wide, narrow = (filled(device, np.ones((2, 3, 4, c), np.float32)) for c in (6, 4))
    with Work(device) as work:
        for images, offered in ((wide, 6), (narrow, 4)):
            words = f"source_images offers {offered} channels, but the kernel normalizes 5"
            with rejects(ValueError, words):
                kernels.statistics.encode_batch(work.buffer, images, kernels.state)
        with rejects(ValueError, "source offers 6 channels, but the kernel normalizes 5"):
            kernels.forward.encode_batch(work.buffer, wide, kernels.y)
        with rejects(ValueError, "source offers 4 channels"):
            kernels.forward.encode_batch(work.buffer, narrow, wide)
        with rejects(ValueError, "channels 0 to 5 do not fit a destination of 4 channels"):
            kernels.forward.encode_batch(work.buffer, kernels.x, narrow)
        kernels.encode(work.buffer, "S")
        for g, x, words in (
            (wide, kernels.x, "source_gradient offers 6 channels, but the kernel normalizes 5"),
            (kernels.g, wide, "source offers 6 channels, but the kernel normalizes 5"),
        ):
            with rejects(ValueError, words):
                kernels.sums.encode_batch(work.buffer, g, x, kernels.state)
        kernels.encode(work.buffer, "D")
        with rejects(ValueError, "source_gradient offers 6 channels"):
            kernels.gradient.encode_batch(work.buffer, wide, kernels.x, kernels.state)
        # A channel maximum makes a wider image fit.
        kernels.statistics.source_feature_channel_max_count = 5
        kernels.statistics.encode_batch(work.buffer, wide, kernels.state)
    for name, kernel in (
        ("source_feature_channel_offset", kernels.statistics),
        ("destination_feature_channel_offset", kernels.forward),
        ("primary_source_feature_channel_offset", kernels.sums),
        ("secondary_source_feature_channel_offset", kernels.gradient),
    ):
        with rejects(ValueError, "must be a multiple of 4"):
            setattr(kernel, name, 2)


def test_sizes(device):
    kernels = Kernels(device)
    larger = filled(device, np.ones((2, 4, 4, 5), np.float32))
    words = "the images are 4x4, but the statistics in the state are of images of 4x3"
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        with rejects(ValueError, words):
            kernels.statistics.encode_batch(work.buffer, larger, kernels.state)
        with rejects(ValueError, words):
            kernels.forward.encode_batch(
                work.buffer,
                larger,
                empty(device, (2, 4, 4, 5)),
                batch_normalization_state=kernels.state,
            )
        with rejects(
            ValueError, "source is 4x4, but the state was made for a forward source of 4x3"
        ):
            kernels.sums.encode_batch(work.buffer, larger, larger, kernels.state)
        with rejects(ValueError, "source_gradient is 4x4, but source is 4x3"):
            kernels.sums.encode_batch(work.buffer, larger, kernels.x, kernels.state)
        kernels.encode(work.buffer, "D")
        with rejects(ValueError, "source_gradient is 4x4, but source is 4x3"):
            kernels.gradient.encode_batch(work.buffer, larger, kernels.x, kernels.state)


def test_geometry_that_sums_do_not_know(device):
    changes = {
        "offset": mg.Offset(1, 0, 0),
        "clip_rect": mg.Region((0, 0, 0), (1, 1, 1)),
        "primary_offset": mg.Offset(0, 1, 0),
        "secondary_offset": mg.Offset(0, 1, 0),
        "kernel_offset_x": 1,
        "kernel_offset_y": -1,
        "primary_stride_in_pixels_x": 2,
        "secondary_stride_in_pixels_y": 2,
    }
    for which, attribute in (("S", "statistics"), ("D", "sums"), ("G", "gradient")):
        for name, changed in changes.items():
            kernels = Kernels(device)
            kernel = getattr(kernels, attribute)
            if not hasattr(kernel, name):
                continue
            with Work(device) as work:
                for step in {"S": "", "D": "S", "G": "SD"}[which]:
                    kernels.encode(work.buffer, step)
                if which == "G":  # a created destination replaces what configure() sets
                    kernel.configure(kernels.g, kernels.x, kernels.state)
                setattr(kernel, name, changed)
                words = "must have its default value"
                if which == "G":
                    with rejects(ValueError, words):
                        kernel.encode_batch(
                            work.buffer, kernels.g, kernels.x, kernels.state, kernels.dx
                        )
                else:
                    with rejects(ValueError, words):
                        kernels.encode(work.buffer, which)


def test_an_explicit_gradient_destination(device):
    kernels = Kernels(device)
    with Work(device) as work:
        for step in "SND":
            kernels.encode(work.buffer, step)
        with rejects(mg.errors.StateError, "configure"):
            kernels.gradient.encode_batch(
                work.buffer, kernels.g, kernels.x, kernels.state, kernels.dx
            )
        kernels.gradient.configure(kernels.g, kernels.x, kernels.state)
        kernels.gradient.encode_batch(work.buffer, kernels.g, kernels.x, kernels.state, kernels.dx)
        single = work.result(empty(device, (1, *SHAPE[1:]))[0])
        kernels.gradient.encode(work.buffer, kernels.g[1], kernels.x[1], kernels.state, single)
        work.result(kernels.dx)
        small = empty(device, (2, 2, 2, 5))
        with rejects(ValueError, "destination is 2x2, but source is 4x3"):
            kernels.gradient.encode_batch(work.buffer, kernels.g, kernels.x, kernels.state, small)
    expected = train(device, kernels.forward, X, G, (2,))
    assert_same_bytes(read(kernels.dx), expected.dx)
    assert_same_bytes(single.read(), expected.dx[1])


def test_aliasing_and_batches(device):
    kernels = Kernels(device)
    container = filled(device, X, kind="container")
    with Work(device) as work:
        with rejects(ValueError, "destination shares memory with source"):
            kernels.forward.encode_batch(work.buffer, kernels.x, kernels.x)
        with rejects(ValueError, "destination shares memory with source"):
            kernels.forward.encode_batch(
                work.buffer, kernels.x, kernels.x, batch_normalization_state=kernels.state
            )
        with rejects(ValueError, "source_images is an empty batch"):
            kernels.statistics.encode_batch(work.buffer, [], kernels.state)
        with rejects(ValueError, "holds an image with number_of_images 2"):
            kernels.statistics.encode_batch(work.buffer, [container], kernels.state)
        with rejects(
            TypeError, "source_images must be an ImageBatch or a list of images, got Image"
        ):
            kernels.statistics.encode_batch(work.buffer, kernels.x[0], kernels.state)
        with rejects(ValueError, "source has 2 images, but destination has 1"):
            kernels.forward.encode_batch(work.buffer, kernels.x, [kernels.y[0]])
        with rejects(TypeError, "needs a destination"):
            kernels.forward.encode_batch(
                work.buffer, kernels.x, batch_normalization_state=kernels.state
            )
        with pytest.raises(TypeError, match="has no argument 'with_state'"):
            kernels.forward.encode_batch(work.buffer, kernels.x, with_state=True)
        kernels.encode(work.buffer, "S")
        with rejects(ValueError, "source_gradient has 1 images, but source has 2"):
            kernels.sums.encode_batch(work.buffer, [kernels.g[0]], kernels.x, kernels.state)
        kernels.encode(work.buffer, "D")
        kernels.gradient.configure(kernels.g, kernels.x, kernels.state)
        with rejects(ValueError, "destination shares memory with source_gradient"):
            kernels.gradient.encode_batch(
                work.buffer, kernels.g, kernels.x, kernels.state, kernels.g
            )
        # Also where the two are not at one place of the batch.
        swapped = [kernels.x[1], kernels.y[0]]
        with rejects(ValueError, "destination shares memory with source"):
            kernels.forward.encode_batch(work.buffer, kernels.x, swapped)
        with rejects(ValueError, "destination shares memory with source"):
            kernels.gradient.encode_batch(work.buffer, kernels.g, kernels.x, kernels.state, swapped)


def test_a_foreign_command_buffer(device, queue):
    kernels = Kernels(device)
    buffer, other = queue.command_buffer(), queue.command_buffer()
    kernels.state = kernels.forward.temporary_result_state(buffer, kernels.x[0], kernels.y[0])
    for which in "SNDG":
        with rejects(ValueError, "belongs to another command buffer"):
            kernels.encode(other, which)
    kernels.state.read_count = 0
    finished = queue.command_buffer()
    finished.commit()
    kernels = Kernels(device)
    with rejects(
        mg.errors.CommandBufferError,
        "BatchNormalizationStatistics: the command buffer is already",
    ):
        kernels.encode(finished, "S")
    finished.wait_until_completed()


def test_prelu_slopes(device):
    four = mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.1] * 4)
    six = mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.1] * 6)
    for slopes, count in ((four, 4), (six, 6)):
        words = f"PRELU data has {count} values for 5 channels"
        source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=5)
        with rejects(ValueError, words):
            mg.BatchNormalization(source, slopes, device=device)
        kernels = Kernels(device)
        with Work(device) as work:
            kernels.encode(work.buffer, "S")
            kernels.sums = mg.BatchNormalizationStatisticsGradient(slopes, device=device)
            with rejects(ValueError, words):
                kernels.encode(work.buffer, "D")
            kernels.sums = mg.BatchNormalizationStatisticsGradient(device=device)
            kernels.encode(work.buffer, "D")
            kernels.gradient = mg.BatchNormalizationGradient(slopes, device=device)
            with rejects(ValueError, words):
                kernels.encode(work.buffer, "G")
    with rejects(ValueError, "PRELU needs data"):
        mg.BatchNormalizationGradient(mg.NeuronDescriptor(mg.NeuronType.PRELU), device=device)


def test_arrays_of_the_wrong_kind(device):
    kernel = forward_kernel(device, 5, **STORED)
    with rejects(TypeError, "source must be float32 or float16, got float64"):
        kernel(X.astype(np.float64))
    with rejects(ValueError, "source must have shape (N, H, W, C)"):
        kernel(X[0, 0])
    _, state = kernel(X, with_state=True)
    with rejects(ValueError, "give either state or with_state, not both"):
        kernel(X, state, with_state=True)
    with rejects(ValueError, "destination"):
        kernel(X, state, out=np.empty((2, 3, 4, 4), np.float32))
    with rejects(TypeError, "out must be float32 or float16"):
        kernel(X, out=X.astype(np.float64))


def test_a_fused_neuron_reports_itself(device):
    neuron = Neuron("RELU", a=0.25)
    kernel = forward_kernel(device, 5, neuron=neuron)
    assert kernel.fused_neuron_descriptor == mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.25)
    assert forward_kernel(device, 5).fused_neuron_descriptor is None
    assert values(mg.Buffer(device, np.ones(3, np.float32)), 2).tolist() == [1, 1]


def test_objects_of_another_device(device):
    if device.kind == "cpu":
        pytest.skip("needs an object of a device that is not the CPU")
    kernels, others = Kernels(device), Kernels(mg.Device("cpu"))
    weights = mg.NormalizationGammaAndBetaState([1] * 5, [1] * 5, device="cpu")
    words = "on another device"
    with Work(device) as work:
        kernels.encode(work.buffer, "S")
        with rejects(ValueError, words):
            kernels.statistics.encode_batch(work.buffer, others.x, kernels.state)
        with rejects(ValueError, words):
            kernels.statistics.encode_batch(work.buffer, kernels.x, others.state)
        with rejects(ValueError, words):
            kernels.forward.encode_batch(
                work.buffer, kernels.x, kernels.y, batch_normalization_state=others.state
            )
        with rejects(ValueError, words):
            kernels.sums.encode_batch(work.buffer, others.g, kernels.x, kernels.state)
        with rejects(ValueError, words):
            kernels.forward.reload_gamma_and_beta(work.buffer, weights)
        with rejects(ValueError, words):
            others.encode(work.buffer, "S")
        with rejects(ValueError, "source and destination must be on the kernel's device"):
            kernels.forward.result_state(others.x[0], kernels.y[0])
