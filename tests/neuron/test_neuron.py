"""Neuron kernels against the oracle, the printed values, and the rules of their encodes."""

import copy
import math
import pickle
import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.oracle import DTYPES, load, sample
from tests.images import Work, check_read_counts, empty, filled, moved, read
from tests.neuron import cases, oracle
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import (
    Guarded,
    assert_close,
    assert_exact,
    assert_same_bytes,
    grid,
    ulps_for,
)


def descriptor(neuron):
    return mg.NeuronDescriptor(getattr(mg.NeuronType, neuron.kind), **neuron.parameters)


def kernels(neuron, device):
    return tuple(cls(descriptor(neuron), device=device) for cls in (mg.Neuron, mg.NeuronGradient))


def away_from_kinks(neuron, x):
    """Move inputs off the places where the slope jumps, whose side depends on roundings."""
    for kink in oracle.kinks(neuron.kind, **neuron.parameters):
        x = np.where(np.abs(x - kink) < 1e-4, x + 1e-3, x)
    return x.astype(np.float32)


# A formula takes up to four roundings and two functions, each within two ULPs.
def check_forward(neuron, actual, x):
    exact = oracle.forward(neuron.kind, x, **neuron.parameters)
    scale = oracle.forward_scale(neuron.kind, x, **neuron.parameters)
    ulps = ulps_for(4, actual.dtype, functions=4)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30)


def check_gradient(neuron, actual, g, x):
    exact = oracle.gradient(neuron.kind, g, x, **neuron.parameters)
    scale = oracle.gradient_scale(neuron.kind, g, x, **neuron.parameters)
    ulps = ulps_for(5, actual.dtype, functions=4)
    assert_close(actual, exact, ulps=ulps, scale=scale, floor=1e-30, nonzero=0.1)


@pytest.mark.parametrize("neuron", cases.NEURONS, ids=str)
def test_every_type(device, neuron, rng):
    x = away_from_kinks(neuron, rng.uniform(*neuron.interval, (3, 5, 7, 11)))
    forward, gradient = kernels(neuron, device)
    result, states = forward(x, with_state=True)
    check_forward(neuron, result, x)
    g = rng.standard_normal(x.shape, dtype=np.float32)
    check_gradient(neuron, gradient(g, x, states), g, x)


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_every_shape(device, shape, rng):
    for neuron in (cases.Neuron("GELU"), cases.Neuron("PRELU", data=cases.PRELU_SLOPES)):
        x = rng.uniform(-3, 3, shape).astype(np.float32)
        forward, gradient = kernels(neuron, device)
        result, states = forward(x, with_state=True)
        check_forward(neuron, result, x)
        g = rng.standard_normal(shape, dtype=np.float32)
        check_gradient(neuron, gradient(g, x, states), g, x)


@pytest.mark.parametrize("row", cases.VALUES, ids=lambda row: f"{row.neuron}({row.x:g})")
def test_printed_values(device, row):
    x = np.full((1, 1, 1, 1), row.x, np.float32)
    forward, gradient = kernels(row.neuron, device)
    result, states = forward(x, with_state=True)
    half = 0.5 * 10.0**-row.digits
    np.testing.assert_allclose(result.item(), row.value, atol=half, rtol=4e-7)
    slope = gradient(np.ones_like(x), x, states).item()
    np.testing.assert_allclose(slope, row.slope, atol=half, rtol=4e-7)


SLOPES = [
    (cases.Neuron("RELU"), 0.0, 1.0),
    (cases.Neuron("RELU", a=0.25), -0.0, 1.0),
    (cases.Neuron("RELU", a=0.25), -1e-30, 0.25),
    (cases.Neuron("PRELU", data=(0.25,)), 0.0, 1.0),
    (cases.Neuron("ELU", a=0.25), 0.0, 1.0),
    (cases.Neuron("RELUN", a=0.25, b=6), 0.0, 1.0),
    (cases.Neuron("RELUN", a=0.25, b=6), 6.0, 0.0),
    (cases.Neuron("RELUN", a=-2, b=6), -3.0, 0.0),
    (cases.Neuron("RELUN", a=-2, b=6), -2.5, -2.0),
    (cases.Neuron("ABSOLUTE"), 0.0, 0.0),
    (cases.Neuron("ABSOLUTE"), -0.0, 0.0),
    (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), -2.0, 0.25),
    (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), 2.0, 0.25),
    (cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5), 2.001, 0.0),
    (cases.Neuron("POWER", c=1.0), 0.0, 1.0),
    (cases.Neuron("POWER", a=3.0, c=2.0), 0.0, 0.0),
]


@pytest.mark.parametrize(("neuron", "x", "slope"), SLOPES, ids=str)
def test_slopes_where_branches_meet(device, neuron, x, slope):
    forward, gradient = kernels(neuron, device)
    source = np.full((1, 1, 1, 1), x, np.float32)
    _, states = forward(source, with_state=True)
    assert gradient(np.full_like(source, 2.0), source, states).item() == 2 * slope


TINY = 2.0**-149  # the smallest denormal number
HUGE = 2.0**127
SLIGHT = math.exp(-100)  # a denormal number
INF, NAN = math.inf, math.nan

# Of each neuron: (input, value, slope), or what these tend to; not None where the branch is open.
EXTREME = [
    (cases.Neuron("NONE"), [(INF, INF, 1), (-TINY, -TINY, 1), (NAN, NAN, 1)]),
    (
        cases.Neuron("RELU", a=0.25),
        [(INF, INF, 1), (-INF, -INF, 0.25), (-HUGE, -HUGE / 4, 0.25), (-4 * TINY, -TINY, 0.25)],
    ),
    (cases.Neuron("LINEAR", a=2, b=3), [(INF, INF, 2), (-INF, -INF, 2), (HUGE, INF, 2)]),
    (
        cases.Neuron("SIGMOID"),
        [
            (INF, 1, 0), (-INF, 0, 0), (1e4, 1, 0), (-1e4, 0, 0), (1000, 1, 0), (-1000, 0, 0),
            (100, 1, SLIGHT), (-100, SLIGHT, SLIGHT), (TINY, 0.5, 0.25), (NAN, NAN, NAN),
        ],
    ),
    (
        cases.Neuron("HARD_SIGMOID", a=0.25, b=0.5),
        [
            (INF, 1, 0), (-INF, 0, 0), (2, 1, 0.25), (-2, 0, 0.25), (1.75, 0.9375, 0.25),
            (2 + 2**-20, 1, 0), (-2 - 2**-20, 0, 0), (TINY, 0.5, 0.25),
        ],
    ),
    (
        cases.Neuron("TANH", a=2, b=0.5),
        [
            (INF, 2, 0), (-INF, -2, 0), (1e38, 2, 0), (-1e4, -2, 0), (100, 2, 4 * SLIGHT),
            (-100, -2, 4 * SLIGHT), (4 * TINY, 4 * TINY, 1), (-1e-30, -1e-30, 1), (NAN, NAN, NAN),
        ],
    ),
    (
        cases.Neuron("ABSOLUTE"),
        [(INF, INF, 1), (-INF, INF, -1), (-TINY, TINY, -1), (TINY, TINY, 1), (NAN, NAN, None)],
    ),
    (
        cases.Neuron("SOFT_PLUS"),
        [
            (INF, INF, 1), (-INF, 0, 0), (1e4, 1e4, 1), (-1e4, 0, 0), (1000, 1000, 1),
            (-1000, 0, 0), (HUGE, HUGE, 1), (-100, SLIGHT, SLIGHT), (NAN, NAN, NAN),
        ],
    ),
    (
        cases.Neuron("SOFT_PLUS", a=2, b=-3),
        [(INF, 0, 0), (-INF, INF, -6), (1000, 0, 0), (-1000, 6000, -6), (NAN, NAN, NAN)],
    ),
    (
        cases.Neuron("SOFT_SIGN"),
        [(HUGE, 1, 0), (-HUGE, -1, 0), (2.0**63, 1, 2.0**-126), (-TINY, -TINY, 1), (NAN, NAN, NAN)],
    ),
    (
        cases.Neuron("ELU", a=0.5),
        [
            (INF, INF, 1), (-INF, -0.5, 0), (-1e30, -0.5, 0), (-1000, -0.5, 0),
            (-100, -0.5, SLIGHT / 2), (-1e-30, -0.5e-30, 0.5), (-4 * TINY, -2 * TINY, 0.5),
        ],
    ),
    (
        cases.Neuron("PRELU", data=(0.25,) * 37),
        [(INF, INF, 1), (-INF, -INF, 0.25), (-HUGE, -HUGE / 4, 0.25), (-4 * TINY, -TINY, 0.25)],
    ),
    (
        cases.Neuron("RELUN", a=-2, b=6),
        [(INF, 6, 0), (-INF, 6, 0), (HUGE, 6, 0), (-HUGE, 6, 0), (-TINY, 2 * TINY, -2)],
    ),
    (
        cases.Neuron("POWER", c=0.5),
        [(INF, INF, 0), (-1, NAN, NAN), (0, 0, INF), (2 * TINY, 2.0**-74, 2.0**73)],
    ),
    (cases.Neuron("POWER", c=1.5), [(INF, INF, INF), (-1, NAN, NAN), (0, 0, 0)]),
    (
        cases.Neuron("POWER", c=2),
        [(INF, INF, INF), (-INF, INF, -INF), (-(2.0**64), INF, -(2.0**65)), (TINY, 0, 2 * TINY)],
    ),
    (
        cases.Neuron("POWER", c=3),
        [(-INF, -INF, INF), (-2, -8, 12), (-(2.0**43), -INF, 3 * 2.0**86), (NAN, NAN, NAN)],
    ),
    (
        cases.Neuron("POWER", c=-1),  # an ordinary exponent here
        [(INF, 0, 0), (-INF, 0, 0), (0, INF, -INF), (-0.0, INF, -INF), (2, 0.5, -0.25)],
    ),
    (
        cases.Neuron("EXPONENTIAL"),
        [
            (INF, INF, INF), (-INF, 0, 0), (1e4, INF, INF), (-1e4, 0, 0), (89, INF, INF),
            (-100, SLIGHT, SLIGHT), (NAN, NAN, NAN),
        ],
    ),
    (
        cases.Neuron("EXPONENTIAL", a=2, c=2),
        [(64, INF, INF), (63, 2.0**126, 2.0**127 * math.log(2)), (-74.5, TINY, TINY), (-76, 0, 0)],
    ),
    (cases.Neuron("EXPONENTIAL", c=0.5), [(-128, INF, -INF), (127, 2.0**-127, None)]),
    (cases.Neuron("EXPONENTIAL", c=-2), [(0.5, NAN, NAN)]),
    (cases.Neuron("EXPONENTIAL", c=0), [(1, 0, None)]),
    (
        cases.Neuron("LOGARITHM"),
        [
            (INF, INF, 0), (0, -INF, INF), (-0.0, -INF, INF), (-1, NAN, -1), (-INF, NAN, 0),
            (TINY, -149 * math.log(2), INF), (HUGE, 127 * math.log(2), 1 / HUGE), (NAN, NAN, NAN),
        ],
    ),
    (
        cases.Neuron("LOGARITHM", a=-1, c=2),
        [(INF, NAN, 0), (0, -INF, None), (-(2.0**100), 100, -(2.0**-100) / math.log(2))],
    ),
    (
        cases.Neuron("GELU"),
        [
            (INF, INF, 1), (-INF, 0, 0), (50, 50, 1), (-50, 0, 0), (HUGE, HUGE, 1), (-HUGE, 0, 0),
            (-40, 0, 0), (TINY * 2, TINY, 0.5), (NAN, NAN, NAN),
            (-10, -5 * math.erfc(50**0.5),
             math.erfc(50**0.5) / 2 - 10 * math.exp(-50) / math.sqrt(2 * math.pi)),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("neuron", "points"), EXTREME, ids=[str(row[0]) for row in EXTREME])
def test_extreme_inputs(device, neuron, points):
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    x, values, slopes = np.array(points, np.float64).T  # None becomes NaN
    forward, gradient = kernels(neuron, device)
    source = x.astype(np.float32).reshape(1, -1, 1, 1).repeat(37, axis=3)  # vectors, and a rest
    y, states = forward(source, with_state=True)
    dx = gradient(np.full_like(source, -1), source, states)
    known = [slope is not None for *_, slope in points]
    # The limit of the functions' errors, an argument that may be an ULP off, and two roundings.
    for actual, exact in ((y, values), (dx[:, known], -slopes[known])):
        exact = exact.reshape(1, -1, 1, 1).repeat(37, axis=3)
        assert_close(actual, exact, ulps=ulps_for(2, functions=6), nonzero=0)


STRAIGHT = [
    cases.Neuron("NONE"),
    cases.Neuron("LINEAR", a=-0.3, b=2.0),
    cases.Neuron("POWER", a=1.7, b=-1.0, c=1.0),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("neuron", STRAIGHT, ids=str)
def test_where_the_slope_is_constant_the_source_does_not_matter(device, neuron, dtype, rng):
    """Not even where it is no number; and a product is what it is, the sign of 0 included."""
    if device.kind != "cpu":
        pytest.skip("what MPS does outside moderate inputs is not documented")
    forward, gradient = kernels(neuron, device)
    x, g = rng.standard_normal((2, 3, 37, 5)).astype(dtype)
    g[0, :2], g[0, 2:4] = 0.0, -0.0
    x[1], x[2, :3] = np.nan, np.inf
    _, states = forward(x, with_state=True)
    slope = np.float32(1.0 if neuron.kind == "NONE" else neuron.parameters["a"])
    assert_same_bytes(gradient(g, x, states), (slope * g.astype(np.float32)).astype(dtype))


def test_not_a_number_comes_through(device):
    x = np.full((1, 1, 1, 1), np.nan, np.float32)
    for kind in ("NONE", "LINEAR", "SIGMOID", "TANH", "ABSOLUTE", "SOFT_SIGN", "GELU"):
        assert np.isnan(kernels(cases.Neuron(kind), device)[0](x)).all(), kind


def test_a_limit_is_none_of_what_is_no_number():
    """On the CPU device; what Metal makes of it is not documented."""
    device = mg.Device("cpu")
    x = np.array([np.nan, -np.inf, np.inf, 7], np.float32).reshape(1, 4, 1)
    limited = kernels(cases.Neuron("RELUN", a=0.0, b=6.0), device)[0](x).ravel()
    np.testing.assert_array_equal(limited, np.array([np.nan, np.nan, 6, 6], np.float32))


# --- Parameters --------------------------------------------------------------------------


STANDARD = {
    "NONE": (0, 0, 0),
    "RELU": (0, 0, 0),
    "LINEAR": (1, 0, 0),
    "HARD_SIGMOID": (0.2, 0.5, 0),
    "TANH": (1, 1, 0),
    "SOFT_PLUS": (1, 1, 0),
    "ELU": (1, 0, 0),
    "RELUN": (1, 6, 0),
    "POWER": (1, 0, 1),
    "EXPONENTIAL": (1, 0, -1),
    "LOGARITHM": (1, 0, -1),
}


@pytest.mark.parametrize(("kind", "values"), STANDARD.items())
def test_standard_forms(device, kind, values):
    d = mg.NeuronDescriptor(getattr(mg.NeuronType, kind))
    assert (d.a, d.b, d.c) == tuple(float(np.float32(v)) for v in values)
    for cls in (mg.Neuron, mg.NeuronGradient):
        kernel = cls(d, device=device)
        assert (kernel.neuron_type, kernel.a, kernel.b, kernel.c) == (d.neuron_type, d.a, d.b, d.c)
        assert kernel.data is None


def test_types_have_apples_numbers():
    assert [int(getattr(mg.NeuronType, kind)) for kind in oracle.KINDS] == list(range(16))


def test_kernels_keep_their_own_descriptor(device):
    d = mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.5)
    kernel = mg.Neuron(d, device=device)
    d.a = 9.0
    assert kernel.a == 0.5
    assert kernel(np.full((1, 1, 1), -2.0, np.float32)).item() == -1


@pytest.mark.parametrize("wrong", ["relu", 1, None, [mg.NeuronType.RELU]])
def test_descriptor_takes_a_type_alone(wrong):
    words = re.escape(f"NeuronDescriptor: type must be a NeuronType, got {wrong!r}")
    with pytest.raises(TypeError, match=words):
        mg.NeuronDescriptor(wrong)


def test_descriptors_compare_print_and_pickle():
    d = mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.5, 0.25])
    assert d == mg.NeuronDescriptor(mg.NeuronType.PRELU, data=np.array([0.5, 0.25]))
    assert d != mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.5, 0.5])
    assert repr(d) == "NeuronDescriptor(NeuronType.PRELU, a=0, b=0, c=0, data=<2 values>)"
    for twin in (copy.copy(d), copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert twin == d
        assert twin is not d


def test_prelu_has_a_slope_for_each_channel_that_is_read(device, rng):
    """Slopes count from the first channel read; those left over are ignored."""
    slopes = (0.5, -0.25, 2.0, 0.125, 4.0, -1.0, 8.0, 16.0)
    neuron = cases.Neuron("PRELU", data=slopes)
    forward, gradient = kernels(neuron, device)
    x, g = grid(rng, (2, 3, 2, 13)), grid(rng, (2, 3, 2, 6))
    forward.source_feature_channel_offset = 4
    forward.source_feature_channel_max_count = 6
    forward.destination_feature_channel_offset = 8
    sources, results = filled(device, x), empty(device, (2, 3, 2, 20), fill=0.5)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        dx = gradient.encode(work.buffer, filled(device, g), sources, states, allocator=mg.DEFAULT)
        work.result(dx)
    texels, seen = read(results), x[..., 4:10]
    assert_exact(texels[..., 8:14], np.where(seen >= 0, seen, np.array(slopes[:6]) * seen))
    assert (texels[..., :8] == 0.5).all()
    if device.kind == "cpu":  # the rest of the last slice that was written; MPS may leave anything
        assert (texels[..., 14:16] == 0).all()
    assert (texels[..., 16:] == 0.5).all()
    assert_exact(read(dx), g * np.where(seen >= 0, 1, np.array(slopes[:6])))
    np.testing.assert_array_equal(forward.data, np.array(slopes, np.float32))


@pytest.mark.parametrize("cls", [mg.Neuron, mg.NeuronGradient])
def test_copies(device, cls):
    kernel = cls(mg.NeuronDescriptor(mg.NeuronType.PRELU, data=[0.5, 2.0]), device=device)
    kernel.label, kernel.clip_rect = "act", mg.Region((1, 0), (3, 2))
    assert repr(kernel) == (
        f"{cls.__name__}(descriptor=NeuronDescriptor(NeuronType.PRELU, a=0, b=0, c=0, "
        f"data=<2 values>), device='{device.kind}')"
    )
    for twin in (
        copy.copy(kernel),
        copy.deepcopy(kernel),
        kernel.copy(),
        pickle.loads(pickle.dumps(kernel)),
        cls.from_bytes(kernel.to_bytes()),
    ):
        assert type(twin) is cls
        assert twin is not kernel
        assert twin.data.tolist() == [0.5, 2.0]
        assert (twin.label, twin.clip_rect) == (kernel.label, kernel.clip_rect)


# --- Where results are read from and written to --------------------------------------------


@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, fmt, kind, rng):
    neuron = cases.Neuron("HARD_SIGMOID")
    x = load(read(filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt)))
    g = load(read(filled(device, rng.uniform(0, 1, x.shape), fmt)))
    forward, gradient = kernels(neuron, device)
    sources, incoming = filled(device, x, fmt, kind=kind), filled(device, g, fmt, kind=kind)
    results, dx = (empty(device, x.shape, fmt, kind=kind) for _ in range(2))
    states = forward.result_state(sources, results)
    gradient.configure(incoming, sources, states[0] if isinstance(states, list) else states)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.encode(work.buffer, incoming, sources, states, work.result(dx))
    check_forward(neuron, read(results), x)
    check_gradient(neuron, read(dx), g, x)


def test_source_and_destination_may_differ_in_format(device, rng):
    neuron = cases.Neuron("TANH")
    x = rng.uniform(-2, 2, (2, 3, 5, 6)).astype(np.float16)
    sources, results = filled(device, x, "float16"), empty(device, x.shape)
    with Work(device) as work:
        kernels(neuron, device)[0].encode(work.buffer, sources, work.result(results))
    check_forward(neuron, read(results), x.astype(np.float32))


@pytest.mark.parametrize("edge", ["zero", "clamp"])
def test_offsets_and_edges(device, edge, rng):
    """Pixels outside are 0, or the nearest, before the function."""
    neuron = cases.Neuron("SIGMOID")
    x = rng.uniform(-3, 3, (2, 4, 5, 6)).astype(np.float32)
    forward = kernels(neuron, device)[0]
    check_forward(neuron, *moved(device, forward, x, edge))


def test_images_are_chosen_by_z(device, rng):
    x = grid(rng, (4, 2, 3, 5))
    forward = kernels(cases.Neuron("ABSOLUTE"), device)[0]
    forward.offset = (0, 0, 2)
    forward.clip_rect = mg.Region((0, 0, 1), (None, None, 2))
    results = empty(device, x.shape, fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, filled(device, x), work.result(results))
    assert_exact(read(results)[1:3], np.abs(x[2:]))
    assert (read(results)[[0, 3]] == 0.5).all()


def test_gradient_clip_rectangles_and_offsets(device, rng):
    """With an explicit destination the properties are used as they stand."""
    neuron = cases.Neuron("LINEAR", a=2.0)
    x, g = grid(rng, (1, 4, 5, 3)), grid(rng, (1, 4, 5, 3))
    forward, gradient = kernels(neuron, device)
    sources, incoming = filled(device, x), filled(device, g)
    state = forward.result_state(sources, empty(device, x.shape))[0]
    gradient.configure(incoming, sources, state)
    gradient.primary_offset = (1, -1)
    gradient.clip_rect = mg.Region((2, 1), (2, 3))
    dx = empty(device, (1, 6, 6, 3), fill=0.5)
    with Work(device) as work:
        gradient.encode(work.buffer, incoming, sources, [state], work.result(dx))
    expected = np.full((1, 6, 6, 3), 0.5)
    expected[:, 1:4, 2:4] = 2 * sample(g, np.arange(3) - 1, np.arange(2) + 1, "zero")
    assert_exact(read(dx), expected)


def test_created_gradients_lie_where_their_pixels_do(device, rng):
    neuron = cases.Neuron("RELU", a=0.5)
    x, g = grid(rng, (1, 4, 5, 3)), grid(rng, (1, 4, 5, 3))
    forward, gradient = kernels(neuron, device)
    forward.offset = (1, -2)
    sources, results = filled(device, x), empty(device, x.shape)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, results, destination_state=states)
        dx = gradient.encode(work.buffer, filled(device, g), sources, states, allocator=mg.DEFAULT)
        work.result(dx)
    expected = np.zeros(x.shape)
    expected[:, :2, 1:] = g[:, 2:, :4] * np.where(x >= 0, 1, 0.5)[:, :2, 1:]
    assert_exact(read(dx), expected)


# --- Arrays, order and repetition -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, dtype, rng):
    neuron = cases.Neuron("GELU")
    x = rng.uniform(-3, 3, (2, 3, 5, 7)).astype(dtype)
    g = grid(rng, x.shape, dtype=dtype)
    forward, gradient = kernels(neuron, device)
    result, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    assert (result.dtype, dx.dtype) == (dtype, dtype)
    check_forward(neuron, result, x.astype(np.float32))
    check_gradient(neuron, dx, g.astype(np.float32), x.astype(np.float32))
    for skew in (0, 1):
        with Guarded(x.shape, dtype, skew=skew) as out:
            again, states = forward(x, with_state=True, out=out)
            assert again is out
            assert_same_bytes(out, result)
        with Guarded(x.shape, dtype, skew=skew) as out:
            assert gradient(g, x, states, out=out) is out
            assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert_same_bytes(one, result[0])
    assert_same_bytes(gradient(g[0], x[0], state), dx[0])
    assert_same_bytes(forward(x[:, ::-1])[:, ::-1], result)  # any memory order


@pytest.mark.parametrize("kind", ["TANH", "PRELU"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_do_not_depend_on_threads_or_runs(device, kind, dtype, rng):
    data = {"data": cases.PRELU_SLOPES} if kind == "PRELU" else {}
    forward, gradient = kernels(cases.Neuron(kind, **data), device)
    x = rng.standard_normal((3, 41, 37, 19)).astype(dtype)
    g = rng.standard_normal(x.shape).astype(dtype)

    def run():
        result, states = forward(x, with_state=True)
        return result, gradient(g, x, states)

    check_thread_independence(run)


def test_read_counts_of_temporaries(device):
    forward, gradient = kernels(cases.Neuron("RELU"), device)
    source = filled(device, np.ones((2, 3, 3, 4)))
    dx = check_read_counts(device, forward, gradient, source)
    assert_exact(dx, np.ones((2, 3, 3, 4)))


def test_work_runs_when_it_is_committed(device):
    kernel = kernels(cases.Neuron("ABSOLUTE"), device)[0]
    sources, results = empty(device, (1, 1, 1, 2)), empty(device, (1, 1, 1, 2))
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
        kernel.offset = (5, 5)  # changes later encodes only
        sources[0].write(np.array([-3, 4], np.float32).reshape(1, 1, 2))
    assert_exact(read(results).ravel(), [3, 4])


# --- Rejections -----------------------------------------------------------------------------

X = np.zeros((2, 3, 5, 4), np.float32)


@pytest.mark.parametrize("cls", [mg.Neuron, mg.NeuronGradient])
def test_rejects_descriptors(device, cls):
    with rejects(ValueError, f"{cls.__name__}: PRELU needs data, one value a channel"):
        cls(mg.NeuronDescriptor(mg.NeuronType.PRELU), device=device)
    with pytest.raises(TypeError, match="descriptor must be a NeuronDescriptor, got str"):
        cls("relu", device=device)
    with pytest.raises(TypeError, match="type must be a NeuronType"):
        mg.NeuronDescriptor("relu")


def test_rejects_too_few_slopes(device):
    forward, gradient = kernels(cases.Neuron("PRELU", data=(0.5, 0.25, 0.5)), device)
    with rejects(ValueError, "Neuron: PRELU data has 3 values for 4 channels"):
        forward(X)
    state = kernels(cases.Neuron("RELU"), device)[0](X, with_state=True)[1]
    with rejects(ValueError, "NeuronGradient: PRELU data has 3 values for 4 channels"):
        gradient(X, X, state)


REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "dtype of the source": (X, X.astype(np.int32), TypeError, "source must be float32 or float16"),
    "rank": (X[0, 0], X, ValueError, "source_gradient must have shape (N, H, W, C)"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "one and many": (X[0], X, ValueError, "both must be one image, or batches of one length"),
    "width": (X[:, :, :4].copy(), X, ValueError, "source_gradient is 4x3, but source is 5x3"),
    "size of the source": (
        X,
        X[:, :2].copy(),
        ValueError,
        "source is 5x2, but the state was made for a forward source of 5x3",
    ),
    "too few channels": (
        X[..., :3].copy(),
        X,
        ValueError,
        "source_gradient offers 3 channels from offset 0, but the kernel reads 4",
    ),
    "too many channels": (
        np.zeros((2, 3, 5, 6), np.float32),
        X,
        ValueError,
        "source_gradient has 6 channels, but source has 4",
    ),
    "channels of the source": (
        X,
        X[..., :3].copy(),
        ValueError,
        "source offers 3 channels from offset 0, but the kernel reads 4",
    ),
}


@pytest.mark.parametrize(("g", "x", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(device, g, x, error, words):
    forward, gradient = kernels(cases.Neuron("SIGMOID"), device)
    _, states = forward(X, with_state=True)
    gradient(X, X, states)
    with rejects(error, words):
        gradient(g, x, states)


OUT = {
    "kind": ([0.0], TypeError, "out must be an ndarray, got list"),
    "dtype": (np.zeros(X.shape), TypeError, "out must be float32 or float16, got float64"),
    "shape": (np.zeros((2, 3, 5, 5), np.float32), ValueError, "out must have shape (2, 3, 5, 4)"),
    "order": (np.zeros((2, 3, 4, 5), np.float32).transpose(0, 1, 3, 2), ValueError, "C-contiguous"),
}


@pytest.mark.parametrize(("out", "error", "words"), OUT.values(), ids=OUT)
def test_rejects_out(device, out, error, words):
    forward, gradient = kernels(cases.Neuron("SIGMOID"), device)
    _, states = forward(X, with_state=True)
    with rejects(error, words):
        forward(X, out=out)
    with rejects(error, words):
        gradient(X, X, states, out=out)


def test_rejects_out_that_is_a_source(device):
    forward, gradient = kernels(cases.Neuron("SIGMOID"), device)
    x, g = X.copy(), X.copy()
    _, states = forward(x, with_state=True)
    if device.kind == "cpu":  # which uses arrays where they lie
        with rejects(ValueError, "destination shares memory with source"):
            forward(x, out=x)
        with rejects(ValueError, "destination shares memory with source_gradient"):
            gradient(g, x, states, out=g)


def test_rejects_states(device):
    forward, gradient = kernels(cases.Neuron("SIGMOID"), device)
    _, states = mg.SoftMax(device=device)(X, with_state=True)
    with rejects(TypeError, "state must come from Neuron, but it was made by SoftMax"):
        gradient(X, X, states)
    with rejects(TypeError, "state must come from Neuron, got State"):
        gradient(X, X, mg.State(device, 16))
    _, states = forward(X, with_state=True)
    with rejects(ValueError, "state has 3 entries, expected 2"):
        gradient(X, X, [*states, states[0]])


def test_rejects_edge_modes(device):
    forward, gradient = kernels(cases.Neuron("SIGMOID"), device)
    with rejects(ValueError, "Neuron: edge_mode must be ZERO or CLAMP"):
        forward.edge_mode = mg.EdgeMode.MIRROR
    with rejects(ValueError, "NeuronGradient: primary_edge_mode must be ZERO or CLAMP"):
        gradient.primary_edge_mode = mg.EdgeMode.CONSTANT


def test_an_offset_of_another_encode_is_replaced(device, rng):
    """A gradient that is made lies on the source, whatever offset the kernel had for that."""
    forward, gradient = kernels(next(n for n in cases.NEURONS if n.kind == "SIGMOID"), device)
    x, g = rng.standard_normal((2, 2, 3, 4, 5)).astype(np.float32)
    _, states = forward(x, with_state=True)
    want = gradient(g, x, states)
    gradient.secondary_offset = (1, 1, 0)
    assert_same_bytes(gradient(g, x, states), want)
