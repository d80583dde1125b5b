"""Optimizers called with arrays: a step against the oracle, whose memory is written, refusals."""

import array
from functools import partial

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.test_exchange import WAYS, ways
from tests.optimizer import cases
from tests.optimizer.test_optimizer import KINDS, arrays, check, descriptor, expect, make, step
from tests.rejects import rejects
from tests.repeats import call_at_once, check_thread_independence
from tests.tolerance import Guarded, assert_exact, assert_same_bytes

SHAPES = [(), (1,), (7,), (1, 1), (5, 3), (2, 3, 4), (4, 3, 3, 5), (2, 1, 3, 2, 7)]
EVERYTHING = cases.SETTINGS["everything"]
HISTORY_NAMES = {
    "plain": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "rmsprop": ("sum_of_squares",),
    "adam": ("momentum", "velocity"),
    "amsgrad": ("momentum", "velocity", "maximum_velocity"),
}


def optimizer_of(kind, device, s=EVERYTHING):
    """An optimizer of a kind, with a momentum scale only where there is a momentum."""
    if kind == "plain":
        return mg.SGD(optimizer_descriptor=descriptor(s), device=device)
    return make(kind, s, device)


def call(optimizer, kind, gradient, values, histories, **options):
    """One step, with the histories under their names."""
    named = dict(zip(HISTORY_NAMES[kind], histories, strict=True))
    return optimizer(gradient, values, **named, **options)


# --- Arithmetic and shapes -----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_of_every_shape(kind, shape, device, rng):
    g, w, histories = arrays(rng, kind, shape or 1)
    g, w, *histories = (a.reshape(shape) for a in (g, w, *histories))
    expected = expect(kind, EVERYTHING, g, w, histories)
    before = g.copy(), w.copy()
    result = call(optimizer_of(kind, device), kind, g, w, histories)
    assert isinstance(result, np.ndarray)
    assert result.shape == shape
    assert not any(np.shares_memory(result, a) for a in (g, w, *histories))
    check((result, histories), expected)
    assert_same_bytes(g, before[0])
    assert_same_bytes(w, before[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", cases.SETTINGS)
def test_calls_are_encodes(kind, name, device, queue, rng):
    """Every setting, and a second step: the same bytes as on vectors."""
    s = cases.SETTINGS[name]
    g, w, histories = arrays(rng, kind, 257)
    encoded, encoded_histories = step(kind, s, queue, g, w, histories)
    optimizer = optimizer_of(kind, device, s)
    values = call(optimizer, kind, g, w, histories)
    assert_same_bytes(values, encoded)
    for actual, expected in zip(histories, encoded_histories, strict=True):
        assert_same_bytes(actual, expected)
    encoded, _ = step(kind, s, queue, g, encoded, encoded_histories, time_step=1)
    assert_same_bytes(call(optimizer, kind, g, values, histories), encoded)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_have_the_order_of_the_encode(kind, device, rng):
    g, w, histories = arrays(rng, kind, 9)
    optimizer = optimizer_of(kind, device)
    named = call(optimizer_of(kind, device), kind, g, w, [h.copy() for h in histories])
    extra = {"maximum_velocity": histories[2]} if kind == "amsgrad" else {}
    assert_same_bytes(optimizer(g, w, *histories[:2], **extra), named)


def test_adam_counts_its_calls(device):
    adam = mg.Adam(0.1, device=device)
    g, w, m, v = (np.full(3, x, np.float32) for x in (0.5, 1, 0, 0))
    for number, expected in enumerate(cases.ADAM_STEPS, 1):
        g[:] = expected.gradient
        w = adam(g, w, m, v)
        assert w[0] == pytest.approx(expected.value, rel=3e-7)
        assert (m[0], v[0]) == pytest.approx(expected.history, rel=3e-7)
        assert adam.time_step == number


def test_momentum_may_be_left_out_with_scale_0(device):
    g, w = np.full((2, 2), 2, np.float32), np.ones((2, 2), np.float32)
    assert_exact(mg.SGD(0.25, device=device)(g, w), np.full((2, 2), 0.5))
    assert_exact(mg.SGD(0.25, device=device)(g, w, None), np.full((2, 2), 0.5))
    m = np.full((2, 2), 7, np.float32)
    assert_exact(mg.SGD(0.25, device=device)(g, w, m), np.full((2, 2), 0.5))
    assert_exact(m, np.full((2, 2), 0.5))


# --- Memory --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["values", "gradient"])
def test_in_place(kind, place, device, rng):
    g, w, histories = arrays(rng, kind, (5, 7))
    apart = call(optimizer_of(kind, device), kind, g, w, [h.copy() for h in histories])
    given = {"values": w, "gradient": g}
    other = given["gradient" if place == "values" else "values"]
    before = other.copy()
    out = given[place]
    assert call(optimizer_of(kind, device), kind, g, w, histories, out=out) is out
    assert_same_bytes(out, apart)
    assert_same_bytes(other, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skew", [0, 1])
def test_out_and_histories_between_guards(kind, skew, device, rng):
    g, w, histories = arrays(rng, kind, (3, 11))
    expected = expect(kind, EVERYTHING, g, w, histories)
    guards = [Guarded((3, 11), skew=skew) for _ in histories]
    placed = [guard.array for guard in guards]
    for place, history in zip(placed, histories, strict=True):
        place[...] = history
    before = w.copy()
    with Guarded((3, 11), skew=skew) as out:
        assert call(optimizer_of(kind, device), kind, g, w, placed, out=out) is out
    check((out, placed), expected)
    for guard in guards:
        guard.check()
    assert_same_bytes(w, before)


MEMORY = {
    "Fortran order": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "unaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "matrix of NumPy": np.asmatrix,
}


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_what_is_read_may_lie_in_any_memory(memory, device, rng):
    g, w, (m,) = arrays(rng, "momentum", (6, 5))
    optimizer = optimizer_of("momentum", device)
    expected = optimizer(g, w, m.copy())
    other = MEMORY[memory]
    result = optimizer(other(g), other(w), m)
    assert type(result) is np.ndarray
    assert_same_bytes(result, expected)


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_other_libraries(way, device, rng):
    g, w, (m, v) = arrays(rng, "adam", (3, 4))
    copies = [m.copy(), v.copy()]
    expected = mg.Adam(0.1, device=device)(g, w, *copies)
    out = np.zeros_like(w)
    given = [ways(a)[way] for a in (g, w, m, v)]
    result = mg.Adam(0.1, device=device)(*given, out=ways(out)[way])
    assert np.shares_memory(result, out)
    assert_same_bytes(out, expected)
    assert_same_bytes(m, copies[0])
    assert_same_bytes(v, copies[1])


def test_arrays_of_the_standard_library(device):
    values = array.array("f", [1, 2, 3])
    result = mg.SGD(0.5, device=device)(array.array("f", [2, 2, 2]), values, out=values)
    assert values.tolist() == [0, 1, 2]
    assert np.shares_memory(result, values)


def test_parts_of_one_array_are_apart(device):
    whole = np.ones((5, 4), np.float32)
    whole[2:] = 0
    g, w, m, v, out = whole
    result = mg.Adam(0.5, device=device)(g, w, m, v, out=out)
    assert_exact(whole[:2], np.ones((2, 4)))
    assert_exact(result, whole[4])
    assert (whole[2:] != 0).all()
    grid = np.ones((4, 4), np.float32)
    mg.SGD(0.5, device=device)(grid[::2, :2], grid[::2, 2:], out=grid[1].reshape(2, 2))
    assert_exact(grid[1], np.full(4, 0.5))


def test_threads_and_runs_give_the_same_bytes(device, rng):
    g, w, histories = arrays(rng, "amsgrad", (101, 997))

    def run():
        own = [h.copy() for h in histories]
        return call(optimizer_of("amsgrad", device), "amsgrad", g, w, own), *own

    check_thread_independence(run)


def test_calls_from_many_threads(device):
    def work(seed):
        sgd = mg.SGD(1.0, device=device)
        w, g = np.zeros((3, 5), np.float32), np.full((3, 5), -seed, np.float32)
        for _ in range(20):
            sgd(g, w, out=w)
        assert (w == 20 * seed).all()

    call_at_once(partial(work, seed) for seed in range(1, 7))


# --- What is invalid -----------------------------------------------------------


def frozen(a):
    a = a.copy()
    a.flags.writeable = False
    return a


NO_ARRAY = [[1.0, 2.0], [3.0]]
UNALIGNED = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)
WHOLE = np.ones(20, np.float32)
# What replaces arguments of a call of Adam with arrays of (3, 4).
REJECTED = {
    "gradient float64": ({"gradient": np.ones((3, 4))}, TypeError,
                         "Adam: gradient must be float32, got float64"),
    "values float16": ({"values": np.ones((3, 4), np.float16)}, TypeError,
                       "Adam: values must be float32, got float16"),
    "values of another byte order": ({"values": np.ones((3, 4), ">f4")}, TypeError,
                                     "Adam: values must be float32, got >f4"),
    "values list": ({"values": [[1.0] * 4] * 3}, TypeError,
                    "got float64; np.asarray(values, np.float32) makes it one"),
    "values None": ({"values": None}, TypeError,
                    "Adam: values must be an array of numbers, got NoneType"),
    "gradient ragged": ({"gradient": NO_ARRAY}, ValueError, "Adam: gradient is no array: "),
    "gradient shape": ({"gradient": np.ones((4, 3), np.float32)}, ValueError,
                       "Adam: gradient has shape (4, 3), but values has (3, 4)"),
    "gradient broadcast": ({"gradient": np.ones(4, np.float32)}, ValueError,
                           "Adam: gradient has shape (4,), but values has (3, 4)"),
    "momentum shape": ({"momentum": np.ones(12, np.float32)}, ValueError,
                       "Adam: momentum has shape (12,), but values has (3, 4)"),
    "velocity float64": ({"velocity": np.ones((3, 4))}, TypeError,
                         "Adam: velocity must be float32, got float64"),
    "velocity list": ({"velocity": [1.0]}, TypeError,
                      "Adam: velocity must be an ndarray, got list"),
    "momentum None": ({"momentum": None}, ValueError, "Adam: momentum must not be None"),
    "velocity None": ({"velocity": None}, ValueError, "Adam: velocity must not be None"),
    "momentum read-only": ({"momentum": frozen(np.ones((3, 4), np.float32))}, ValueError,
                           "Adam: momentum must be writable, aligned and C-contiguous, got one "
                           "that is not writable"),
    "velocity transposed": ({"velocity": np.ones((4, 3), np.float32).T}, ValueError,
                            "got one that is not C-contiguous"),
    "maximum unaligned": ({"maximum_velocity": UNALIGNED}, ValueError,
                          "Adam: maximum_velocity must be writable, aligned and C-contiguous, got "
                          "one that is not aligned"),
    "maximum shape": ({"maximum_velocity": np.ones((3, 5), np.float32)}, ValueError,
                      "Adam: maximum_velocity has shape (3, 5), but values has (3, 4)"),
    "out list": ({"out": [[1.0] * 4] * 3}, TypeError, "Adam: out must be an ndarray, got list"),
    "out bytes": ({"out": bytes(48)}, TypeError, "out must be an array of numbers, got bytes"),
    "out float16": ({"out": np.ones((3, 4), np.float16)}, TypeError,
                    "Adam: out must be float32, got float16"),
    "out shape": ({"out": np.ones((3, 1), np.float32)}, ValueError,
                  "Adam: out has shape (3, 1), but values has (3, 4)"),
    "out every second": ({"out": np.ones((3, 8), np.float32)[:, ::2]}, ValueError,
                         "Adam: out must be writable, aligned and C-contiguous, got one that is "
                         "not C-contiguous"),
    "momentum is values": ({"momentum": "values"}, ValueError,
                           "Adam: momentum shares memory with values; a history needs memory of"),
    "momentum is gradient": ({"momentum": "gradient"}, ValueError,
                             "Adam: momentum shares memory with gradient"),
    "velocity is momentum": ({"velocity": "momentum"}, ValueError,
                             "Adam: velocity shares memory with momentum"),
    "maximum is velocity": ({"maximum_velocity": "velocity"}, ValueError,
                            "Adam: maximum_velocity shares memory with velocity"),
    "out is momentum": ({"out": "momentum"}, ValueError,
                        "Adam: out shares memory with momentum; a history needs memory of its own"),
    "out partly on values": ({"values": WHOLE[:12].reshape(3, 4), "out": WHOLE[1:13].reshape(3, 4)},
                             ValueError, "Adam: out shares memory with values; an update in place "
                             "needs the very same elements"),
    "out in another order than values": (
        {"values": WHOLE[:12].reshape(4, 3).T, "out": WHOLE[:12].reshape(3, 4)}, ValueError,
        "Adam: out shares memory with values; an update in place needs the very same elements"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(changes, error, words, device):
    names = ("gradient", "values", "momentum", "velocity")
    arguments = {name: np.full((3, 4), 0.5, np.float32) for name in names}
    for name, change in changes.items():
        arguments[name] = arguments[change] if isinstance(change, str) else change
    given = [a for a in arguments.values() if isinstance(a, np.ndarray)]
    before = [a.copy() for a in given]
    adam = mg.Adam(0.1, time_step=5, device=device)
    with rejects(error, words):
        adam(**arguments)
    assert adam.time_step == 5
    for actual, expected in zip(given, before, strict=True):
        assert_same_bytes(actual, expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 3)], ids=str)
def test_rejects_empty_arrays(shape, device):
    empty = np.zeros(shape, np.float32)
    words = f"StochasticGradientDescent: values must not be empty, got shape {shape}"
    with rejects(ValueError, words):
        mg.SGD(0.1, device=device)(empty, empty)


def test_rejects_a_missing_history(device):
    g, w = np.ones(3, np.float32), np.ones(3, np.float32)
    words = (
        "StochasticGradientDescent: momentum must not be None where momentum_scale is 0.9; "
        "np.zeros_like(values) is that of the first step"
    )
    for momentum in ((), (None,)):
        with rejects(ValueError, words):
            mg.SGD(0.1, momentum_scale=0.9, device=device)(g, w, *momentum)
    with rejects(ValueError, "RMSProp: sum_of_squares must not be None"):
        mg.RMSProp(0.1, device=device)(g, w, None)
    with rejects(
        TypeError, "RMSProp.__call__() missing 1 required positional argument: 'sum_of_sq"
    ):
        mg.RMSProp(0.1, device=device)(g, w)
    with rejects(TypeError, "missing 1 required positional argument: 'velocity'"):
        mg.Adam(0.1, device=device)(g, w, np.zeros_like(w))


def test_rejects_images_to_write_into(device):
    x = np.ones((1, 2, 3, 4), np.float32)
    images = mg.ImageBatch.from_array(device, x.copy())
    with rejects(TypeError, "StochasticGradientDescent: out must be an ndarray, got ImageBatch"):
        mg.SGD(0.1, device=device)(x, x, out=images)
    assert_exact(mg.SGD(0.5, device=device)(images, x), np.full(x.shape, 0.5))


def test_messages_name_the_class_that_was_called(device):
    class Descent(mg.SGD):
        pass

    one = np.ones(2, np.float32)
    with rejects(ValueError, "Descent: gradient has shape (1,), but values has (2,)"):
        Descent(0.1, device=device)(one[:1], one)


def test_settings_of_a_call_are_those_of_the_moment(device):
    sgd = mg.SGD(1.0, device=device)
    g, w = np.ones(4, np.float32), np.zeros(4, np.float32)
    sgd(g, w, out=w)
    sgd.learning_rate = 0.5
    sgd(g, w, out=w)
    assert_exact(w, np.full(4, -1.5))
