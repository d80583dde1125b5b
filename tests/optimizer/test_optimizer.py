"""Optimizers on vectors and matrices: one step at a time against the float64 oracle."""

import copy
import pickle
import re
from dataclasses import dataclass

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimizer import cases, oracle
from tests.optimizer.oracle import Settings
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import Guarded, assert_close, assert_exact, assert_same_bytes, grid, ulps_for

KINDS = ["plain", "momentum", "nesterov", "rmsprop", "adam", "amsgrad"]
HISTORIES = {"plain": 0, "momentum": 1, "nesterov": 1, "rmsprop": 1, "adam": 2, "amsgrad": 3}


def descriptor(s: Settings) -> mg.OptimizerDescriptor:
    """The library's form of the oracle's settings."""
    lower, upper = s.clip or (None, None)
    return mg.OptimizerDescriptor(
        s.learning_rate,
        s.gradient_rescale,
        apply_gradient_clipping=s.clip is not None,
        gradient_clip_max=upper,
        gradient_clip_min=lower,
        regularization_type=getattr(mg.RegularizationType, s.regularization),
        regularization_scale=s.regularization_scale,
    )


def make(kind, s, device, **extra):
    """An optimizer of a kind, with the scale 0.9 where there is a momentum."""
    d = descriptor(s)
    if kind in ("plain", "momentum", "nesterov"):
        return mg.SGD(
            optimizer_descriptor=d,
            momentum_scale=0.9,
            use_nesterov_momentum=kind == "nesterov",
            device=device,
        )
    if kind == "rmsprop":
        return mg.RMSProp(optimizer_descriptor=d, device=device, **extra)
    return mg.Adam(optimizer_descriptor=d, device=device, **extra)


def encode(optimizer, command_buffer, kind, gradient, values, histories, result):
    """Call the method that fits the arguments."""
    method = optimizer.encode_vector if isinstance(values, mg.Vector) else optimizer.encode_matrix
    match kind:
        case "plain":
            method(command_buffer, gradient, values, None, result)
        case "momentum" | "nesterov" | "rmsprop":
            method(command_buffer, gradient, values, histories[0], result)
        case "adam":
            method(command_buffer, gradient, values, *histories, result)
        case "amsgrad":
            method(
                command_buffer,
                gradient,
                values,
                *histories[:2],
                result,
                maximum_velocity=histories[2],
            )


def run(optimizer, queue, kind, gradient, values, histories, result=None):
    """Run one step on vectors or matrices and return the new values and histories."""
    result = values if result is None else result
    command_buffer = queue.command_buffer()
    encode(optimizer, command_buffer, kind, gradient, values, histories, result)
    for array in (result, *histories):
        array.synchronize(command_buffer)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return result.to_numpy(), [history.to_numpy() for history in histories]


def step(kind, s, queue, gradient, values, histories, *, time_step=0, **extra):
    """Run one step on copies of arrays of one axis."""
    device = queue.device
    optimizer = make(kind, s, device, **extra)
    if hasattr(optimizer, "time_step"):
        optimizer.time_step = time_step
    vector = lambda a: mg.Vector.from_array(device, np.array(a, np.float32))  # noqa: E731
    return run(
        optimizer, queue, kind, vector(gradient), vector(values), [vector(h) for h in histories]
    )


@dataclass(frozen=True)
class Expected:
    """Exact results of one step and the magnitudes their errors are relative to."""

    values: np.ndarray
    histories: list
    values_scale: np.ndarray
    history_scales: list


def expect(kind, s, g, w, histories, *, time_step=0):
    """One step of the oracle, with the library's default parameters."""
    g_scale = oracle.preprocess_scale(s, g, w)
    ready = np.abs(oracle.preprocess(s, g, w))
    rate = abs(s.learning_rate)
    if kind in ("plain", "momentum", "nesterov"):
        m = histories[0] if histories else None
        new, history = oracle.sgd(s, g, w, m, momentum_scale=0.9, nesterov=kind == "nesterov")
        if m is None:
            return Expected(new, [], oracle.step_scale(w, new) + rate * g_scale, [])
        scale = np.abs(0.9 * m) + (1 if kind == "nesterov" else rate) * g_scale
        step = rate * (g_scale + scale) if kind == "nesterov" else scale
        return Expected(new, [history], oracle.step_scale(w, new) + step, [scale])
    if kind == "rmsprop":
        new, squares = oracle.rmsprop(s, g, w, histories[0])
        scale = 0.9 * np.abs(histories[0]) + 0.1 * ready * g_scale
        spread = np.sqrt(squares)
        step = rate * (g_scale + ready * scale / np.maximum(squares, 1e-30)) / spread
        return Expected(new, [squares], oracle.step_scale(w, new) + step, [scale])
    largest = histories[2] if kind == "amsgrad" else None
    new, m, v, x = oracle.adam(s, g, w, *histories[:2], largest, step=time_step + 1)
    rate = abs(oracle.adam_rate(s.learning_rate, time_step + 1, 0.9, 0.999))
    m_scale = np.abs(0.9 * histories[0]) + 0.1 * g_scale
    v_scale = 0.999 * np.abs(histories[1]) + 0.001 * ready * g_scale
    used = v if x is None else x
    step = rate * (m_scale + np.abs(m) * v_scale / v) / np.sqrt(used)
    scales = [m_scale, v_scale] + ([] if x is None else [np.maximum(v_scale, largest)])
    news = [m, v] + ([] if x is None else [x])
    return Expected(new, news, oracle.step_scale(w, new) + step, scales)


# Roundings on the way: 3 of the gradient's preparation, then scalars and the rule's own operations.
VALUE_ULPS = ulps_for(16)
HISTORY_ULPS = ulps_for(10)


def check(result, expected):
    """Compare one step with the oracle."""
    values, histories = result
    assert values.dtype == np.float32
    assert_close(values, expected.values, ulps=VALUE_ULPS, scale=expected.values_scale)
    for actual, exact, scale in zip(
        histories, expected.histories, expected.history_scales, strict=True
    ):
        assert_close(actual, exact, ulps=HISTORY_ULPS, scale=scale)


def arrays(rng, kind, shape):
    """Gradient, values and histories; the squares are not negative."""
    g, w = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    histories = [rng.standard_normal(shape).astype(np.float32) for _ in range(HISTORIES[kind])]
    squares = {"rmsprop": [0], "adam": [1], "amsgrad": [1, 2]}.get(kind, [])
    for i in squares:
        histories[i] = histories[i] ** 2 + np.float32(0.01)
    return g, w, histories


# --- Arithmetic --------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", cases.SETTINGS)
def test_one_step_of_every_setting(kind, name, queue, rng):
    s = cases.SETTINGS[name]
    g, w, histories = arrays(rng, kind, 257)
    expected = expect(kind, s, g, w, histories, time_step=4)
    check(step(kind, s, queue, g, w, histories, time_step=4), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [*cases.LENGTHS, 70_001])
def test_every_length(kind, length, queue, rng):
    s = cases.SETTINGS["everything"]
    g, w, histories = arrays(rng, kind, length)
    check(step(kind, s, queue, g, w, histories), expect(kind, s, g, w, histories))


@pytest.mark.parametrize(
    ("kind", "steps", "extra"),
    [
        ("plain", cases.SGD_STEPS, {}),
        ("momentum", cases.MOMENTUM_STEPS, {}),
        ("nesterov", cases.NESTEROV_STEPS, {}),
        ("rmsprop", cases.RMSPROP_STEPS, {}),
        ("adam", cases.ADAM_STEPS, {}),
        ("adam", cases.QUICK_ADAM_STEPS, {"beta2": 0.5}),
        ("amsgrad", cases.AMSGRAD_STEPS, {"beta2": 0.5}),
    ],
    ids=["plain", "momentum", "nesterov", "rmsprop", "adam", "adam quick", "amsgrad"],
)
def test_printed_steps(kind, steps, extra, device, queue):
    optimizer = make(kind, Settings(0.1), device, **extra)
    vector = lambda x: mg.Vector.from_array(device, np.full(1, x, np.float32))  # noqa: E731
    values, gradient = vector(1.0), vector(0.0)
    histories = [vector(0.0) for _ in range(HISTORIES[kind])]
    for expected in steps:
        gradient.write(np.full(1, expected.gradient, np.float32))
        new, history = run(optimizer, queue, kind, gradient, values, histories)
        assert new[0] == pytest.approx(expected.value, rel=3e-7)
        assert [h[0] for h in history] == pytest.approx(expected.history, rel=3e-7)


def test_gradient_preparation_example(queue):
    s = Settings(1.0, 2.0, (-0.25, 0.5), "L2", 0.1)
    values, _ = step("plain", s, queue, [3, -3, 0.1], [10, 10, -10], [])
    assert_close(10 * np.sign(values) - values, [2.0, 0.5, -0.8], ulps=8, scale=[10, 10, 10])


def test_l1_adds_the_scale_for_either_sign(queue):
    s = Settings(1.0, regularization="L1", regularization_scale=0.25)
    values, _ = step("plain", s, queue, [0.5, 0.5, 0.5], [1, -1, 0], [])
    assert_exact(values, [0.25, -1.75, -0.75])


def test_running_average(queue):
    s = Settings(-(1 - 0.9), regularization="L2", regularization_scale=-1.0)
    values, _ = step("plain", s, queue, [10.0], [2.0], [])
    assert values[0] == pytest.approx(2.8, rel=3e-7)


@pytest.mark.parametrize("kind", ["plain", "momentum", "nesterov"])
def test_exact_sums(kind, queue, rng):
    """Multiples of powers of two: every intermediate fits a float32."""
    s = Settings(0.25, 0.5, (-2.0, 3.0), "L2", 0.5)
    g, w, m = (grid(rng, 100) for _ in range(3))
    histories = [] if kind == "plain" else [m]
    optimizer = mg.SGD(
        optimizer_descriptor=descriptor(s),
        momentum_scale=0.5,
        use_nesterov_momentum=kind == "nesterov",
        device=queue.device,
    )
    vector = lambda a: mg.Vector.from_array(queue.device, a.copy())  # noqa: E731
    values, new = run(optimizer, queue, kind, vector(g), vector(w), [vector(h) for h in histories])
    expected, momentum = oracle.sgd(
        s, g, w, *histories, momentum_scale=0.5, nesterov=kind == "nesterov"
    )
    assert_exact(values, expected)
    if histories:
        assert_exact(new[0], momentum)


@pytest.mark.parametrize("time_step", [0, 1, 2, 9, 99, 999, 10**6])
def test_adam_rate(time_step, queue):
    """With beta1 = beta2, a constant gradient and no history the step is the rate itself."""
    values, _ = step(
        "adam", Settings(1.0), queue, [1.0], [0.0], [[0.0], [0.0]], time_step=time_step, epsilon=0.0
    )
    rate = oracle.adam_rate(1.0, time_step + 1, 0.9, 0.999)
    if time_step + 1 in cases.ADAM_RATES:
        assert rate == pytest.approx(cases.ADAM_RATES[time_step + 1], abs=5e-7)
    assert values[0] == pytest.approx(-rate * 0.1 / np.sqrt(0.001), rel=6e-7)


def test_epsilon_is_added_to_the_uncorrected_root(queue):
    values, _ = step("adam", Settings(0.1), queue, [0.5], [1.0], [[0.0], [0.0]], epsilon=0.01)
    assert values[0] == pytest.approx(0.93874259, rel=2e-7)


def test_nan_gradient_survives_clipping(queue):
    s = Settings(0.1, clip=(-1.0, 1.0))
    values, _ = step("plain", s, queue, [np.nan, np.inf, -np.inf, 0.5] * 9, [1.0] * 36, [])
    if queue.device.kind == "cpu":  # a GPU may hide NaN: its minimum and maximum say nothing of it
        assert_exact(np.isnan(values), np.tile([True, False, False, False], 9))
    assert_close(values[1:4], [0.9, 1.1, 0.95], ulps=2)


@pytest.mark.parametrize("kind", KINDS)
def test_not_finite_values_do_not_spread(kind, queue, rng):
    g, w, histories = arrays(rng, kind, 40)
    clean, clean_histories = step(kind, Settings(0.1), queue, g, w, histories)
    g[7] = np.nan
    values, new = step(kind, Settings(0.1), queue, g, w, histories)
    assert np.isnan(values[7])
    rest = np.arange(40) != 7
    assert_same_bytes(values[rest], clean[rest])
    for actual, expected in zip(new, clean_histories, strict=True):
        assert_same_bytes(actual[rest], expected[rest])


def test_momentum_is_written_with_scale_0(queue):
    vector = lambda x: mg.Vector.from_array(queue.device, np.full(3, x, np.float32))  # noqa: E731
    optimizer = mg.SGD(0.5, device=queue.device)
    _, (m,) = run(optimizer, queue, "momentum", vector(2.0), vector(1.0), [vector(7.0)])
    assert_exact(m, [1.0, 1.0, 1.0])
    optimizer = mg.SGD(0.5, use_nesterov_momentum=True, device=queue.device)
    values, (m,) = run(optimizer, queue, "nesterov", vector(2.0), vector(1.0), [vector(7.0)])
    assert_exact(m, [2.0, 2.0, 2.0])
    assert_exact(values, [0.0, 0.0, 0.0], nonzero=0)


# --- Layouts -----------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A matrix or vector inside a larger array whose other elements must stay."""

    whole: np.ndarray
    view: np.ndarray


def place(rng, values, offset, row_gap, part_gap):
    """Copy (parts, rows, columns) values into an array with gaps, filled with noise."""
    parts, rows, columns = values.shape
    row = columns + row_gap
    part = rows * row + part_gap * row
    whole = rng.standard_normal(offset + parts * part + 5).astype(np.float32)
    inside = whole[offset : offset + parts * part].reshape(parts, rows + part_gap, row)
    view = inside[:, :rows, :columns]
    view[...] = values
    return Placed(whole, view)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", cases.MATRICES, ids=str)
@pytest.mark.parametrize("matrices", [1, 3])
def test_matrices_with_strides(kind, shape, matrices, queue, rng):
    s = cases.SETTINGS["everything"]
    full = (matrices, *shape)
    g, w, histories = arrays(rng, kind, full)
    placed = [
        place(rng, a, offset, gap, gap % 2)
        for offset, gap, a in zip(
            [0, 3, 8, 1, 2], [0, 1, 3, 2, 5], [g, w, *histories], strict=False
        )
    ]
    before = [p.whole.copy() for p in placed]
    device = queue.device
    matrix = lambda p: mg.Matrix.from_array(device, p.view)  # noqa: E731
    matrices_of = [matrix(p) for p in placed]
    optimizer = make(kind, s, device)
    result = run(optimizer, queue, kind, matrices_of[0], matrices_of[1], matrices_of[2:])
    expected = expect(kind, s, g, w, histories)
    drop = (lambda a: a[0]) if matrices == 1 else (lambda a: a)
    check(
        result,
        Expected(
            drop(expected.values),
            [drop(h) for h in expected.histories],
            drop(expected.values_scale),
            [drop(h) for h in expected.history_scales],
        ),
    )
    if device.kind == "cpu":  # the arrays themselves are the storage
        for p, old in zip(placed, before, strict=True):
            touched = p.whole != old
            inside = np.zeros_like(touched)
            np.lib.stride_tricks.as_strided(
                inside[(p.view.ctypes.data - p.whole.ctypes.data) // 4 :],
                p.view.shape,
                [x // 4 for x in p.view.strides],
            )[...] = True
            assert not (touched & ~inside).any()


@pytest.mark.parametrize("kind", KINDS)
def test_several_vectors_in_one_object(kind, queue, rng):
    s = cases.SETTINGS["L2"]
    g, w, histories = arrays(rng, kind, (3, 11))
    device = queue.device

    def vector(a):
        whole = rng.standard_normal((3, 16)).astype(np.float32)
        whole[:, :11] = a
        return mg.Vector.from_array(device, whole[:, :11])

    result = run(
        make(kind, s, device), queue, kind, vector(g), vector(w), [vector(h) for h in histories]
    )
    check(result, expect(kind, s, g, w, histories))


def test_vectors_over_one_buffer(device, queue, rng):
    """Gradient, values, momentum and result at offsets of one buffer."""
    s = Settings(0.5)
    g, w, m = (grid(rng, 10) for _ in range(3))
    buffer = mg.Buffer(device, np.concatenate([g, w, m, np.zeros(10, np.float32)]))
    d = mg.VectorDescriptor(10)
    gradient, values, momentum, result = (mg.Vector(buffer, d, 40 * i) for i in range(4))
    optimizer = mg.SGD(0.5, momentum_scale=0.5, device=device)
    run(optimizer, queue, "momentum", gradient, values, [momentum], result)
    expected, new = oracle.sgd(s, g, w, m, momentum_scale=0.5)
    assert_exact(buffer.to_numpy(), np.concatenate([g, w, new, expected]))


def test_interleaved_columns_are_apart(device, queue):
    """Rows of values and of momentum alternate in one array."""
    whole = np.ones((4, 6), np.float32)
    gradient = mg.Matrix.from_array(device, np.ones((4, 3), np.float32))
    if device.kind == "cpu":
        values, momentum = (mg.Matrix.from_array(device, whole[:, c : c + 3]) for c in (0, 3))
        optimizer = mg.SGD(0.5, momentum_scale=1.0, device=device)
        new, (m,) = run(optimizer, queue, "momentum", gradient, values, [momentum])
        assert_exact(m, np.full((4, 3), 1.5))
        assert_exact(new, np.full((4, 3), -0.5))
    buffer = mg.Buffer(device, np.ones(24, np.float32))
    d = mg.MatrixDescriptor(4, 3, row_bytes=24)
    values, momentum = mg.Matrix(buffer, d), mg.Matrix(buffer, d, 12)
    new, (m,) = run(
        mg.SGD(0.5, momentum_scale=1.0, device=device),
        queue,
        "momentum",
        gradient,
        values,
        [momentum],
    )
    assert_exact(m, np.full((4, 3), 1.5))
    assert_exact(new, np.full((4, 3), -0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_result_apart_from_values(kind, queue, rng):
    s = cases.SETTINGS["everything"]
    g, w, histories = arrays(rng, kind, 50)
    in_place, _ = step(kind, s, queue, g, w, histories)
    device = queue.device
    vector = lambda a: mg.Vector.from_array(device, a.copy())  # noqa: E731
    values = vector(w)
    guard = Guarded((50,))
    result = mg.Vector.from_array(device, guard.array)
    new, _ = run(
        make(kind, s, device),
        queue,
        kind,
        vector(g),
        values,
        [vector(h) for h in histories],
        result,
    )
    assert_same_bytes(new, in_place)
    assert_same_bytes(values.to_numpy(), w)
    guard.check(complete=device.kind == "cpu")


def test_result_may_be_the_gradient(queue):
    vector = lambda x: mg.Vector.from_array(queue.device, np.full(20, x, np.float32))  # noqa: E731
    gradient, values = vector(2.0), vector(1.0)
    new, _ = run(mg.SGD(0.25, device=queue.device), queue, "plain", gradient, values, [], gradient)
    assert_exact(new, np.full(20, 0.5))
    assert_exact(values.to_numpy(), np.ones(20))


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.tuples(*(st.integers(1, n) for n in (3, 5, 9))),
    gaps=st.lists(st.tuples(*(st.integers(0, 4) for _ in range(3))), min_size=5, max_size=5),
)
def test_layout_never_changes_a_bit(device, kind, shape, gaps):
    rng = np.random.default_rng(len(kind) + sum(shape))
    queue = device.command_queue()
    s = cases.SETTINGS["everything"]
    g, w, histories = arrays(rng, kind, shape)
    flat, flat_histories = step(
        kind, s, queue, g.ravel(), w.ravel(), [h.ravel() for h in histories]
    )
    matrices = [
        mg.Matrix.from_array(device, place(rng, a, *gap).view)
        for a, gap in zip([g, w, *histories], gaps, strict=False)
    ]
    values, new = run(make(kind, s, device), queue, kind, matrices[0], matrices[1], matrices[2:])
    assert_same_bytes(np.ascontiguousarray(values).ravel(), flat)
    for actual, expected in zip(new, flat_histories, strict=True):
        assert_same_bytes(np.ascontiguousarray(actual).ravel(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_runs_give_the_same_bytes(kind, queue, rng):
    s = cases.SETTINGS["everything"]
    g, w, histories = arrays(rng, kind, 100_003)

    def run():
        values, new = step(kind, s, queue, g, w, histories)
        return values, *new

    check_thread_independence(run)


# --- Order of events ---------------------------------------------------------


def vectors(device, count, length=4, value=1.0):
    """Vectors full of a value."""
    return [mg.Vector.from_array(device, np.full(length, value, np.float32)) for _ in range(count)]


def test_settings_count_at_encode_and_contents_at_commit(device, queue):
    gradient, values = vectors(device, 2)
    optimizer = mg.SGD(0.5, device=device)
    command_buffer = queue.command_buffer()
    optimizer.encode_vector(command_buffer, gradient, values, None, values)
    optimizer.learning_rate = 100.0
    gradient.write(np.full(4, 4.0, np.float32))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(values.to_numpy(), np.full(4, -1.0))


def test_nothing_is_readable_before_the_wait(device, queue):
    gradient, values = vectors(device, 2)
    command_buffer = queue.command_buffer()
    mg.SGD(0.5, device=device).encode_vector(command_buffer, gradient, values, None, values)
    with rejects(RuntimeError, "Buffer is written by a command buffer that has not been committed"):
        values.to_numpy()
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(values.to_numpy(), np.full(4, 0.5))


def test_updates_run_in_encode_order(device, queue):
    gradient, values = vectors(device, 2)
    double = mg.SGD(-1.0, device=device)  # values + gradient
    with queue.command_buffer() as command_buffer:
        double.encode_vector(command_buffer, values, values, None, gradient)  # 2
        double.encode_vector(command_buffer, gradient, values, None, values)  # 3
        double.encode_vector(command_buffer, gradient, values, None, values)  # 5
    command_buffer.wait_until_completed()
    assert_exact(values.to_numpy(), np.full(4, 5.0))


def test_a_predicate_skips_the_update_but_not_the_time_step(device, queue):
    gradient, values, momentum, velocity = vectors(device, 4)
    optimizer = mg.Adam(0.5, device=device)
    command_buffer = queue.command_buffer()
    flag = mg.Buffer(device, np.zeros(1, np.uint32))
    command_buffer.predicate = mg.Predicate(flag)
    optimizer.encode_vector(command_buffer, gradient, values, momentum, velocity, values)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(values.to_numpy(), np.ones(4))
    assert optimizer.time_step == 1


def test_time_step_counts_encodes(device, queue):
    gradient, values, momentum, velocity = vectors(device, 4)
    optimizer = mg.Adam(0.5, device=device)
    command_buffer = queue.command_buffer()
    assert optimizer.time_step == 0
    for expected in (1, 2, 3):
        optimizer.encode_vector(command_buffer, gradient, values, momentum, velocity, values)
        assert optimizer.time_step == expected
    optimizer.time_step = 41
    optimizer.encode_vector(command_buffer, gradient, values, momentum, velocity, values)
    assert optimizer.time_step == 42
    with pytest.raises(ValueError, match="momentum shares memory"):
        optimizer.encode_vector(command_buffer, gradient, values, values, velocity, values)
    assert optimizer.time_step == 42
    for bad in (-1, -(2**40)):
        with pytest.raises(ValueError, match="time_step must not be negative"):
            optimizer.time_step = bad
    with pytest.raises(ValueError, match=f"time_step must be below {2**63 - 1}"):
        optimizer.time_step = 2**63 - 1
    command_buffer.commit()
    command_buffer.wait_until_completed()


# --- Temporaries -------------------------------------------------------------


def test_temporaries_lose_a_count_for_each_argument(device, queue):
    _, values = vectors(device, 2)
    command_buffer = queue.command_buffer()
    scratch = mg.TemporaryVector(command_buffer, mg.VectorDescriptor(4))
    assert scratch.read_count == 1
    scratch.read_count = 4
    add = mg.SGD(-1.0, device=device)
    add.encode_vector(command_buffer, values, values, None, scratch)  # written: 2
    assert scratch.read_count == 4
    add.encode_vector(command_buffer, scratch, scratch, None, scratch)  # read twice: 4
    assert scratch.read_count == 2
    add.encode_vector(command_buffer, scratch, values, None, values)  # 5
    assert scratch.read_count == 1
    with pytest.raises(mg.errors.ReadCountError, match="cannot lower read count 1 by 2"):
        add.encode_vector(command_buffer, scratch, scratch, None, values)
    assert scratch.read_count == 1
    add.encode_vector(command_buffer, values, scratch, None, values)  # 9
    assert scratch.read_count == 0
    with pytest.raises(mg.errors.ReadCountError, match="read count 0"):
        add.encode_vector(command_buffer, values, values, None, scratch)
    with pytest.raises(mg.errors.ReadCountError, match="cannot be changed"):
        scratch.read_count = 1
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(values.to_numpy(), np.full(4, 9.0))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if HISTORIES[kind]])
def test_temporary_histories_keep_their_counts(kind, device, queue):
    """They are private, and start at zero as others here do."""
    optimizer, other = (make(kind, Settings(0.25), device) for _ in range(2))
    gradient, values, expected = vectors(device, 3)
    histories = vectors(device, HISTORIES[kind], value=0.0)
    command_buffer = queue.command_buffer()
    temporary = [
        mg.TemporaryVector(command_buffer, mg.VectorDescriptor(4)) for _ in range(HISTORIES[kind])
    ]
    for _ in range(2):
        encode(optimizer, command_buffer, kind, gradient, values, temporary, values)
        encode(other, command_buffer, kind, gradient, expected, histories, expected)
        assert [history.read_count for history in temporary] == [1] * len(temporary)
    for history in temporary:
        history.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_same_bytes(values.to_numpy(), expected.to_numpy())


def test_temporary_matrices_are_private_and_start_at_zero(device, queue):
    command_buffer = queue.command_buffer()
    d = mg.MatrixDescriptor(3, 2, row_bytes=16)
    scratch = mg.TemporaryMatrix(command_buffer, d)
    assert scratch.shape == (3, 2)
    words = "Buffer: the contents are private to the device and cannot be"
    with rejects(RuntimeError, f"{words} read by the CPU"):
        scratch.to_numpy()
    with rejects(RuntimeError, f"{words} written by the CPU"):
        scratch.write(np.zeros((3, 2), np.float32))
    ones = mg.Matrix.from_array(device, np.ones((3, 2), np.float32))
    mg.SGD(-1.0, device=device).encode_matrix(command_buffer, ones, scratch, None, ones)
    assert scratch.read_count == 0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert_exact(ones.to_numpy(), np.ones((3, 2)))


def test_temporaries_of_another_command_buffer(device, queue):
    first, second = queue.command_buffer(), queue.command_buffer()
    scratch = mg.TemporaryVector(first, mg.VectorDescriptor(4))
    (values,) = vectors(device, 1)
    with pytest.raises(ValueError, match="another command buffer"):
        mg.SGD(1.0, device=device).encode_vector(second, scratch, values, None, values)
    scratch.read_count = 0


def test_a_dropped_temporary_warns(queue):
    scratch = mg.TemporaryVector(queue.command_buffer(), mg.VectorDescriptor(4))
    with pytest.warns(ResourceWarning, match="read count 1"):
        del scratch


# --- What is invalid ---------------------------------------------------------


def fixed(device, *shape, dtype=np.float32):
    """A vector or matrix of ones."""
    array = np.ones(shape, dtype)
    return (mg.Vector if len(shape) == 1 else mg.Matrix).from_array(device, array)


def sgd_call(**changes):
    """A call of encode_vector on vectors of four ones with some arguments replaced."""

    def call(device, command_buffer):
        arguments = {
            name: fixed(device, 4) for name in ("gradient", "values", "momentum", "result")
        }
        arguments |= {name: make(device) for name, make in changes.items()}
        mg.SGD(0.1, device=device).encode_vector(command_buffer, **arguments)

    return call


def share(**names):
    """Make one argument the same object as another."""

    def call(device, command_buffer):
        arguments = {
            name: fixed(device, 4) for name in ("gradient", "values", "momentum", "result")
        }
        for name, other in names.items():
            arguments[name] = arguments[other]
        mg.SGD(0.1, device=device).encode_vector(command_buffer, **arguments)

    return call


def adam_call(**changes):
    """The same for Adam with maximum velocity."""

    def call(device, command_buffer):
        names = ("gradient", "values", "momentum", "velocity", "result", "maximum_velocity")
        arguments = {name: fixed(device, 4) for name in names}
        for name, change in changes.items():
            arguments[name] = arguments[change] if isinstance(change, str) else change(device)
        mg.Adam(0.1, device=device).encode_vector(command_buffer, **arguments)

    return call


def nothing(_device):
    return None


def partly(device, command_buffer):
    """Result that overlaps the values, one element further on."""
    buffer = mg.Buffer(device, 20)
    d = mg.VectorDescriptor(4)
    values, result = mg.Vector(buffer, d), mg.Vector(buffer, d, 4)
    mg.SGD(0.1, device=device).encode_vector(command_buffer, fixed(device, 4), values, None, result)


def partly_in_rows(device, command_buffer):
    """Momentum whose rows run into those of the values."""
    buffer = mg.Buffer(device, 4 * 32)
    d = mg.MatrixDescriptor(4, 3, row_bytes=20)
    values, momentum = mg.Matrix(buffer, d), mg.Matrix(buffer, d, 8)
    mg.SGD(0.1, device=device).encode_matrix(
        command_buffer, fixed(device, 4, 3), values, momentum, values
    )


def mixed(device, command_buffer):
    mg.SGD(0.1, device=device).encode_vector(
        command_buffer, fixed(device, 4, 1), fixed(device, 4), None, fixed(device, 4)
    )


def rms_without(device, command_buffer):
    mg.RMSProp(0.1, device=device).encode_vector(
        command_buffer, fixed(device, 4), fixed(device, 4), None, fixed(device, 4)
    )


def matrices_of(*shape, matrices=1):
    def call(device, command_buffer):
        result = mg.Matrix(device, mg.MatrixDescriptor(*shape, matrices=matrices))
        mg.SGD(0.1, device=device).encode_matrix(
            command_buffer, fixed(device, 3, 5), fixed(device, 3, 5), None, result
        )

    return call


def built(cls, **arguments):
    """Construct an optimizer from a descriptor's fields and its own."""
    fields = {
        name: arguments.pop(name)
        for name in list(arguments)
        if name in mg.OptimizerDescriptor()._fields()
    }

    def call(device, _command_buffer):
        cls(optimizer_descriptor=mg.OptimizerDescriptor(**fields), device=device, **arguments)

    return call


def late_clipping(device, _command_buffer):
    mg.SGD(0.1, device=device).apply_gradient_clipping = True


def late_rate(device, _command_buffer):
    mg.SGD(0.1, device=device).learning_rate = float("nan")


def test_bounds_ask_for_clipping():
    bounds = {"gradient_clip_max": 1.0, "gradient_clip_min": -1.0}
    assert mg.OptimizerDescriptor(**bounds).apply_gradient_clipping
    assert not mg.OptimizerDescriptor(
        apply_gradient_clipping=False, **bounds
    ).apply_gradient_clipping
    assert not mg.OptimizerDescriptor().apply_gradient_clipping


CLIPPED = {"apply_gradient_clipping": True}
REJECTED = {
    "gradient length": (sgd_call(gradient=lambda d: fixed(d, 5)), ValueError,
                        "SGD: gradient has shape (5,) float32, but values has (4,) float32"),
    "momentum length": (sgd_call(momentum=lambda d: fixed(d, 3)), ValueError,
                        "momentum has shape (3,)"),
    "result length": (sgd_call(result=lambda d: fixed(d, 1)), ValueError, "result has shape (1,)"),
    "number of vectors": (sgd_call(gradient=lambda d: mg.Vector(d, mg.VectorDescriptor(4, 2))),
                          ValueError, "gradient has shape 2 x (4,)"),
    "matrix shape": (matrices_of(5, 3), ValueError, "result has shape (5, 3)"),
    "number of matrices": (matrices_of(3, 5, matrices=2), ValueError, "2 x (3, 5) float32"),
    "velocity length": (adam_call(velocity=lambda d: fixed(d, 9)), ValueError,
                        "Adam: velocity has shape (9,)"),
    "maximum length": (adam_call(maximum_velocity=lambda d: fixed(d, 9)), ValueError,
                       "maximum_velocity has shape (9,)"),
    "float16": (sgd_call(gradient=lambda d: fixed(d, 4, dtype=np.float16)), TypeError,
                "gradient must be float32, got float16"),
    "int32 result": (sgd_call(result=lambda d: fixed(d, 4, dtype=np.int32)), TypeError,
                     "result must be float32, got DataType(0x20000020)"),
    "matrix for vector": (mixed, TypeError, "must be a Vector, got Matrix"),
    "no gradient": (sgd_call(gradient=nothing), TypeError, "gradient must not be None"),
    "no values": (sgd_call(values=nothing), TypeError, "values must not be None"),
    "no result": (sgd_call(result=nothing), TypeError, "result must not be None"),
    "no sum of squares": (rms_without, ValueError, "RMSProp: sum_of_squares must not be None"),
    "no momentum": (adam_call(momentum=nothing), ValueError, "Adam: momentum must not be None"),
    "no velocity": (adam_call(velocity=nothing), ValueError, "Adam: velocity must not be None"),
    "momentum is values": (share(momentum="values"), ValueError,
                           "the momentum shares memory with the values"),
    "momentum is gradient": (share(momentum="gradient"), ValueError,
                             "the momentum shares memory with the gradient"),
    "momentum is result": (share(momentum="result"), ValueError,
                           "the momentum shares memory with the result"),
    "velocity is momentum": (adam_call(velocity="momentum"), ValueError,
                             "the velocity shares memory with the momentum"),
    "maximum is velocity": (adam_call(maximum_velocity="velocity"), ValueError,
                            "the maximum_velocity shares memory with the velocity"),
    "result partly on values": (partly, ValueError, "needs the very same elements"),
    "rows that meet": (partly_in_rows, ValueError, "the momentum shares memory with the values"),
    "beta1 of 1": (built(mg.Adam, beta1=1.0), ValueError, "Adam: beta1 must be in [0, 1), got 1"),
    "beta2 negative": (built(mg.Adam, beta2=-0.1), ValueError, "beta2 must be in [0, 1)"),
    "beta1 nan": (built(mg.Adam, beta1=float("nan")), ValueError, "beta1 must be in [0, 1)"),
    "decay above 1": (built(mg.RMSProp, decay=1.5), ValueError, "decay must be in [0, 1], got 1.5"),
    "decay negative": (built(mg.RMSProp, decay=-0.5), ValueError,
                       "decay must be in [0, 1], got -0.5"),
    "decay nan": (built(mg.RMSProp, decay=float("nan")), ValueError, "decay must be in [0, 1]"),
    "epsilon negative": (built(mg.RMSProp, epsilon=-1e-3), ValueError,
                         "epsilon must not be negative"),
    "epsilon infinite": (built(mg.Adam, epsilon=float("inf")), ValueError,
                         "epsilon must be finite"),
    "time step negative": (built(mg.Adam, time_step=-1), ValueError,
                           "time_step must not be negative, got -1"),
    "momentum scale nan": (built(mg.SGD, momentum_scale=float("nan")), ValueError,
                           "momentum_scale must be finite"),
    "rate infinite": (built(mg.SGD, learning_rate=float("inf")), ValueError,
                      "learning_rate must be finite"),
    "rescale nan": (built(mg.SGD, gradient_rescale=float("nan")), ValueError,
                    "gradient_rescale must be finite"),
    "penalty infinite": (built(mg.SGD, regularization_scale=float("-inf")), ValueError,
                         "regularization_scale must be finite"),
    "bound nan": (built(mg.SGD, gradient_clip_max=float("nan")), ValueError,
                  "gradient_clip_max must be finite"),
    "lower bound infinite": (built(mg.SGD, gradient_clip_min=float("-inf")), ValueError,
                             "gradient_clip_min must be finite"),
    "one bound": (built(mg.SGD, **CLIPPED, gradient_clip_max=1.0), ValueError,
                  "needs both gradient_clip_max and gradient_clip_min"),
    "no bounds": (built(mg.Adam, **CLIPPED), ValueError, "needs both"),
    "bounds swapped": (built(mg.SGD, **CLIPPED, gradient_clip_max=-1.0, gradient_clip_min=1.0),
                       ValueError, "gradient_clip_min 1 is above gradient_clip_max -1"),
    "clipping later": (late_clipping, ValueError, "needs both"),
    "rate later": (late_rate, ValueError, "learning_rate must be finite"),
    "base class": (lambda d, _: mg.Optimizer(d), TypeError, "Optimizer is the base class"),
    "two rates": (lambda d, _: mg.SGD(0.1, optimizer_descriptor=mg.OptimizerDescriptor(), device=d),
                  TypeError, "either learning_rate or optimizer_descriptor"),
    "no rate": (lambda d, _: mg.Adam(device=d), TypeError, "either learning_rate"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(call, error, words, device, queue):
    command_buffer = queue.command_buffer()
    words = words.replace("SGD:", "StochasticGradientDescent:")
    with pytest.raises(error, match=re.escape(words)):
        call(device, command_buffer)
    assert command_buffer.status == mg.CommandBufferStatus.NOT_ENQUEUED


def test_rejects_a_committed_command_buffer(device, queue):
    gradient, values = vectors(device, 2)
    command_buffer = queue.command_buffer()
    command_buffer.commit()
    with rejects(
        mg.errors.CommandBufferError,
        "StochasticGradientDescent: the command buffer is already",
    ):
        mg.SGD(0.1, device=device).encode_vector(command_buffer, gradient, values, None, values)
    command_buffer.wait_until_completed()


FREE = {
    "negative rate": Settings(-0.5),
    "no rate": Settings(0.0),
    "rescale 0": Settings(0.1, 0.0),
    "negative penalty": Settings(0.1, regularization="L1", regularization_scale=-2.0),
}


@pytest.mark.parametrize("name", FREE)
def test_signs_are_free(name, queue, rng):
    g, w, m = arrays(rng, "momentum", 33)
    check(step("momentum", FREE[name], queue, g, w, m), expect("momentum", FREE[name], g, w, m))


def test_momentum_scale_above_1(device):
    assert mg.SGD(0.1, momentum_scale=1.5, device=device).momentum_scale == 1.5


# --- Objects -----------------------------------------------------------------


def test_defaults(device):
    sgd = mg.SGD(0.25, device=device)
    assert mg.StochasticGradientDescent is mg.SGD
    assert (sgd.momentum_scale, sgd.use_nesterov_momentum) == (0.0, False)
    assert (sgd.learning_rate, sgd.gradient_rescale) == (0.25, 1.0)
    assert (sgd.apply_gradient_clipping, sgd.gradient_clip_max, sgd.gradient_clip_min) == (
        False,
        None,
        None,
    )
    assert sgd.regularization_type == mg.RegularizationType.NONE
    assert sgd.regularization_scale == 0.0
    rms = mg.RMSProp(optimizer_descriptor=mg.OptimizerDescriptor(), device=device)
    assert rms.learning_rate == np.float32(0.001)
    assert (rms.decay, rms.epsilon) == (0.9, np.float32(1e-8))
    adam = mg.Adam(0.1, device=device)
    assert (adam.beta1, adam.beta2, adam.epsilon) == (0.9, 0.999, np.float32(1e-8))
    assert adam.time_step == 0
    assert [
        int(t)
        for t in (mg.RegularizationType.NONE, mg.RegularizationType.L1, mg.RegularizationType.L2)
    ] == [0, 1, 2]


def test_descriptor_is_copied(device):
    d = mg.OptimizerDescriptor(0.5)
    optimizer = mg.SGD(optimizer_descriptor=d, device=device)
    d.learning_rate = 2.0
    assert optimizer.learning_rate == 0.5
    optimizer.learning_rate = 0.25
    assert (optimizer.learning_rate, d.learning_rate) == (0.25, 2.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda o: o.copy(),
        lambda o: pickle.loads(pickle.dumps(o)),
        lambda o: type(o).from_bytes(o.to_bytes()),
    ],
)
def test_copies_are_equal_and_apart(kind, duplicate, device):
    optimizer = make(kind, cases.SETTINGS["everything"], device)
    optimizer.learning_rate = 0.75
    optimizer.label = "one"
    if kind in ("adam", "amsgrad"):
        optimizer.time_step = 5
    other = duplicate(optimizer)
    assert type(other) is type(optimizer)
    assert other._arguments() == optimizer._arguments()
    assert other._settings() == optimizer._settings()
    other.learning_rate = 0.125
    assert optimizer.learning_rate == 0.75


def test_repr(device):
    d = mg.OptimizerDescriptor(
        0.5, regularization_type=mg.RegularizationType.L2, regularization_scale=0.25
    )
    assert repr(d) == (
        "OptimizerDescriptor(0.5, regularization_type=RegularizationType.L2, "
        "regularization_scale=0.25)"
    )
    assert repr(mg.SGD(optimizer_descriptor=d, device=device)).startswith(
        "StochasticGradientDescent(momentum_scale=0.0, use_nesterov_momentum=False, "
        "optimizer_descriptor=OptimizerDescriptor(0.5,"
    )
    assert pickle.loads(pickle.dumps(d)) == d
