"""Local normalization kernels against the oracle, the printed examples, and their rules."""

from dataclasses import asdict, replace
from fractions import Fraction

import mpsgrad as mg
import numpy as np
import pytest
from hypothesis import given, settings

from tests.copies import WAYS
from tests.core.oracle import DTYPES, load, sample
from tests.images import Work, channel_window, check_read_counts, empty, filled, read
from tests.local_normalization import cases, fuzz, oracle
from tests.local_normalization.oracle import CrossChannel, LocalContrast, Spatial
from tests.rejects import rejects
from tests.repeats import check_thread_independence
from tests.tolerance import Guarded, assert_close, assert_same_bytes, grid, rng_for, ulps_for

CLASSES = {
    CrossChannel: (mg.CrossChannelNormalization, mg.CrossChannelNormalizationGradient),
    Spatial: (mg.SpatialNormalization, mg.SpatialNormalizationGradient),
    LocalContrast: (mg.LocalContrastNormalization, mg.LocalContrastNormalizationGradient),
}
PIXELS = [Spatial, LocalContrast]
ALL = [*cases.CROSS_CHANNEL, *cases.SPATIAL, *cases.LOCAL_CONTRAST]
ONE_EACH = [CrossChannel(4, beta=0.75), Spatial(4, beta=0.75), LocalContrast(4, 1.0, delta=0.5)]
kinds = pytest.mark.parametrize("p", ONE_EACH, ids=lambda p: type(p).__name__)
RAMP = np.arange(1.0, 17).reshape(1, 4, 4, 1)
UNITS = {"alpha": 1.0, "beta": 1.0, "delta": 1.0}


# --- Running kernels ------------------------------------------------------------


def sizes(p):
    return (p.kernel_size,) if isinstance(p, CrossChannel) else (p.kernel_size,) * 2


def kernels(p, device):
    """Return the forward and the gradient kernel, every parameter set."""
    forward, gradient = (cls(*sizes(p), device=device) for cls in CLASSES[type(p)])
    for name, value in asdict(p).items():
        if name not in ("kernel_size", "edge"):
            setattr(forward, name, value)
            setattr(gradient, name, value)
    if getattr(p, "edge", "zero") == "clamp":
        forward.edge_mode = mg.EdgeMode.CLAMP
    return forward, gradient


def exact_forward(p, source):
    names = {
        CrossChannel: oracle.cross_channel,
        Spatial: oracle.spatial,
        LocalContrast: oracle.local_contrast,
    }
    return names[type(p)](p, source)


def exact_gradient(p, incoming, source):
    names = {
        CrossChannel: oracle.cross_channel_gradient,
        Spatial: oracle.spatial_gradient,
        LocalContrast: oracle.local_contrast_gradient,
    }
    return names[type(p)](p, incoming, source)


def forward_scale(p, source):
    if isinstance(p, LocalContrast):
        return oracle.local_contrast_scale(p, source)
    return np.abs(exact_forward(p, source))


def gradient_scale(p, incoming, source):
    names = {
        CrossChannel: oracle.cross_channel_gradient_scale,
        Spatial: oracle.spatial_gradient_scale,
        LocalContrast: oracle.local_contrast_gradient_scale,
    }
    return names[type(p)](p, incoming, source)


def added(p, shape):
    """How many additions make a window's sum: along the channels, or down and then across."""
    if isinstance(p, CrossChannel):
        return min(p.kernel_size, shape[3])
    return min(p.kernel_size, shape[1] + 2) + min(p.kernel_size, shape[2] + 2)


def base_ulps(p, shape):
    """Error of the denominator's base: squares, additions, alpha / N, two products and a sum.

    Local contrast finds it in float64 and rounds it once; its cancellation is in the scales.
    """
    return 1.0 if isinstance(p, LocalContrast) else ulps_for(added(p, shape) + 4)


def forward_ulps(p, shape, dtype=np.float32):
    """Return the power's own error and the base's times the exponent, then the products.

    Relative to a number an ULP may be twice as large as relative to another.
    """
    power = 1 + 2 * abs(p.beta) * base_ulps(p, shape)
    return ulps_for(5, dtype, functions=power)


def gradient_ulps(p, shape, dtype=np.float32):
    """Both powers, the products and quotients of what is shared, its additions, the difference."""
    power = 2 + 2 * (abs(p.beta) + 1) * base_ulps(p, shape)
    return ulps_for(added(p, shape) + 9, dtype, functions=power)


def check_forward(p, actual, source, *, nonzero=0.25):
    assert_close(
        actual,
        exact_forward(p, source),
        ulps=forward_ulps(p, source.shape, actual.dtype),
        scale=forward_scale(p, source),
        floor=1e-30,
        nonzero=nonzero,
    )


def check_gradient(p, actual, incoming, source, *, nonzero=0.25):
    assert_close(
        actual,
        exact_gradient(p, incoming, source),
        ulps=gradient_ulps(p, source.shape, actual.dtype),
        scale=gradient_scale(p, incoming, source),
        floor=1e-30,
        nonzero=nonzero,
    )


# --- Against the oracle ---------------------------------------------------------


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("p", ALL, ids=str)
def test_forward_and_gradient(device, p, shape, rng):
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    forward, gradient = kernels(p, device)
    result, states = forward(x, with_state=True)
    flat = isinstance(p, LocalContrast) and p.kernel_size == 1  # p0 = 1 leaves nothing
    check_forward(p, result, x, nonzero=0 if flat else 0.25)
    check_gradient(p, gradient(g, x, states), g, x, nonzero=0 if flat else 0.25)


@pytest.mark.parametrize("size", [*range(1, 16), 17, 24, 31, 33, 64])
def test_any_window(device, size):
    """Odd and even ones, longer than the source, and so long that they are summed by halves."""
    rng = rng_for(f"window {size}")
    for p in (CrossChannel(size, beta=0.75), Spatial(size, beta=0.75), LocalContrast(size, 2.0)):
        if isinstance(p, LocalContrast) and size == 1:
            continue  # nothing is left
        x, g = rng.standard_normal((2, 1, 9, 35, 21), dtype=np.float32)
        forward, gradient = kernels(p, device)
        result, states = forward(x, with_state=True)
        check_forward(p, result, x)
        check_gradient(p, gradient(g, x, states), g, x)


@pytest.mark.parametrize("channels", [*range(1, 20), 31, 33, 63, 64, 65, 257])
def test_any_number_of_channels(device, channels):
    rng = rng_for(f"channels {channels}")
    for p in ONE_EACH:
        x, g = rng.standard_normal((2, 1, 4, 5, channels), dtype=np.float32)
        forward, gradient = kernels(p, device)
        result, states = forward(x, with_state=True)
        check_forward(p, result, x)
        check_gradient(p, gradient(g, x, states), g, x)


@pytest.mark.parametrize("size", range(1, 15))
def test_windows_over_many_channels(device, size):
    """Whole vectors of channels, the last of which overlap, between windows cut off at the ends."""
    rng = rng_for(f"many channels {size}")
    p = CrossChannel(size, beta=0.75)
    for channels in (16 + size - 1, 64, 75):
        x, g = rng.standard_normal((2, 1, 3, 5, channels), dtype=np.float32)
        forward, gradient = kernels(p, device)
        result, states = forward(x, with_state=True)
        check_forward(p, result, x)
        check_gradient(p, gradient(g, x, states), g, x)


@pytest.mark.parametrize("p", [Spatial(40, beta=0.75), LocalContrast(40, 1.0)], ids=str)
def test_wide_windows_of_many_channels(device, p):
    """So many rows of so many channels are worked on a block of channels at a time."""
    rng = rng_for("blocks")
    x, g = rng.standard_normal((2, 1, 45, 50, 70), dtype=np.float32)
    forward, gradient = kernels(p, device)
    result, states = forward(x, with_state=True)
    check_forward(p, result, x)
    check_gradient(p, gradient(g, x, states), g, x)


@pytest.mark.parametrize("p", [*cases.SPATIAL, *cases.LOCAL_CONTRAST], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (1, 1, 1, 2), (1, 2, 9, 5)], ids=str)
def test_clamped_edges(device, p, shape, rng):
    p = replace(p, edge="clamp")
    x = rng.standard_normal(shape, dtype=np.float32)
    forward, _ = kernels(p, device)
    constant = isinstance(p, LocalContrast) and (p.kernel_size == 1 or shape[1:3] == (1, 1))
    check_forward(p, forward(x), x, nonzero=0 if constant else 0.25)


def test_local_contrast_of_a_distant_mean(device, rng):
    """The variance must not drown in the mean: both squares are kept in float64."""
    p = LocalContrast(5, alpha=1.0, delta=2.0**-10)
    x = (100 + rng.standard_normal((1, 9, 8, 3))).astype(np.float32)
    forward, _ = kernels(p, device)
    inside = (slice(None), slice(2, -2), slice(2, -2))
    actual, exact = forward(x)[inside], exact_forward(p, x)[inside]
    np.testing.assert_allclose(actual, exact, rtol=2e-5, atol=2e-5)


def test_local_contrast_of_no_contrast(device, rng):
    """What rounding leaves of a variance of 0 may be negative; the root then is that of delta."""
    if device.kind != "cpu":
        pytest.skip("Metal promises nothing about the rounding of a variance")
    x = np.broadcast_to(rng.uniform(0.5, 1, 64).astype(np.float32), (1, 15, 15, 64)).copy()
    values = x[0, 0, 0].astype(np.float64)
    assert (49 * values**2 * (1 / 49) < (49 * values * (1 / 49)) ** 2).any()  # the sums are exact
    forward, _ = kernels(LocalContrast(7, alpha=1.0, delta=2.0**-60), device)
    assert (np.abs(forward(x)[0, 3:-3, 3:-3]) < 1e-6).all()


@pytest.mark.parametrize("p0", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("delta", [2.0**-10, 0.25, 4.0])
def test_local_contrast_gradient_where_delta_is_all_there_is(device, delta, p0, rng):
    """Of windows without contrast: x - p0 mean, divided by a root of delta alone."""
    p = LocalContrast(3, alpha=1.0, delta=delta, p0=p0, ps=2.0)
    x = np.broadcast_to(rng.uniform(0.5, 1, 5).astype(np.float32), (2, 9, 8, 5)).copy()
    g = np.zeros_like(x)
    g[:, 1:-1, 1:-1] = grid(rng, (2, 7, 6, 5))  # of windows that lie inside
    forward, gradient = kernels(p, device)
    _, states = forward(x, with_state=True)
    exact = 2 * delta**-0.5 * (g - p0 / 9 * oracle.pixel_sum(g, 3, transposed=True))
    assert_close(
        gradient(g, x, states),
        exact,
        ulps=gradient_ulps(p, x.shape),
        scale=gradient_scale(p, g, x),
    )


def variances_of_a_constant(x, size):
    """What float64 makes of the variance of a window of `size` numbers x, fused or not.

    Sums are exact if x has few digits.
    """
    inverse = 1 / size
    mean = size * x * inverse
    square = size * x * x * inverse
    fused = [
        float(Fraction(size * x * x) * Fraction(inverse) - Fraction(mean * mean)),
        float(Fraction(square) - Fraction(mean) ** 2),
    ]
    return [square - mean * mean, *fused]


def test_local_contrast_gradient_of_no_contrast(device, rng):
    """Of numbers whose variance rounds to less than -delta: a root that is no number, unclamped."""
    if device.kind != "cpu":
        pytest.skip("Metal promises nothing about the rounding of a variance")
    delta, count = 2.0**-40, 49
    numbers = rng.integers(512 << 10, 1024 << 10, 4096) / 1024
    values = [x for x in numbers.tolist() if max(variances_of_a_constant(x, count)) < -delta][:40]
    assert len(values) == 40
    x = np.broadcast_to(np.float32(values), (1, 21, 21, 40)).copy()
    g = np.zeros_like(x)
    g[:, 3:-3, 3:-3] = grid(rng, (1, 15, 15, 40))  # of windows that lie inside
    p = LocalContrast(7, alpha=1.0, delta=delta)
    forward, gradient = kernels(p, device)
    _, states = forward(x, with_state=True)
    actual = gradient(g, x, states)
    # The mean is the pixel, so what is left is the derivative of (x - mean) / sqrt(delta).
    root = delta**-0.5
    shared = [oracle.pixel_sum(v, 7, transposed=True) / count for v in (g, np.abs(g))]
    exact = root * (g - shared[0])
    # But for a rounding of the mean, in the sums that are multiplied by x and by the mean.
    rest = 2 * x.astype(np.float64) ** 2 * 2.0**-52 / delta
    scale = root * (np.abs(g) + shared[1] * (1 + rest))
    assert_close(actual, exact, ulps=gradient_ulps(p, x.shape), scale=scale)


@settings(max_examples=80)
@given(fuzz.normalizations())
def test_random_normalizations(device, drawn):
    p, shape = drawn
    rng = rng_for(repr(drawn))
    x, g = rng.standard_normal((2, *shape), dtype=np.float32)
    forward, gradient = kernels(p, device)
    result, states = forward(x, with_state=True)
    check_forward(p, result, x, nonzero=0)
    check_gradient(p, gradient(g, x, states), g, x, nonzero=0)


# --- Worked examples --------------------------------------------------------------


def printed(actual, expected, atol=1.1e-6):
    """Compare with six printed decimals of float32 results."""
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=2**-22, atol=atol)


def at(shape, *index):
    gradient = np.zeros(shape, np.float32)
    gradient[0, *index] = 1
    return gradient


def run(p, device, x, g):
    forward, gradient = kernels(p, device)
    x = np.asarray(x, np.float32)
    result, states = forward(x, with_state=True)
    return result, gradient(np.asarray(g, np.float32), x, states)


CHANNELS = {
    1: ((0.5, 0.4, 0, 0.3), (0, -0.12, 1, -0.08)),
    2: ((0.666667, 0.571429, 0, 0.545455), (0.058957, -0.040816, 0.333333, -0.115702)),
    3: ((0.375, 0.75, 0, 0.75), (0.09375, -0.1875, 0.1875, -0.125)),
    4: ((0.444444, 0.888889, 0, 0.705882), (0.148148, -0.314238, 0.222222, -0.013841)),
}


@pytest.mark.parametrize("size", CHANNELS)
def test_printed_cross_channel(device, size):
    x = np.array([1.0, 2, 0, 3]).reshape(1, 1, 1, 4)
    y, dx = run(CrossChannel(size, **UNITS), device, x, np.ones_like(x))
    printed(y, CHANNELS[size][0])
    printed(dx, CHANNELS[size][1])


SQUARE = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)
SPATIAL = {
    2: (
        (0.8, 0.888889, 0.857143, 0.470588),
        (0.132338, -0.005981, -0.164678, 0.006920),
        (0.48, 0, 0, 0),
    ),
    3: (
        (0.230769, 0.461538, 0.692308, 0.923077),
        (0.112426, -0.005917, -0.124260, -0.242604),
        (0.218935, -0.023669, -0.035503, -0.047337),
    ),
}


@pytest.mark.parametrize("size", SPATIAL)
def test_printed_spatial(device, size):
    result, all_ones, corner = SPATIAL[size]
    p = Spatial(size, **UNITS)
    y, dx = run(p, device, SQUARE, np.ones_like(SQUARE))
    printed(y, result)
    printed(dx, all_ones)
    printed(run(p, device, SQUARE, at(SQUARE.shape, 0, 0, 0))[1], corner)


def test_measured_values(device):
    spatial, _ = kernels(Spatial(3), device)
    first = spatial(RAMP.astype(np.float32))[0, 0, 0, 0]
    np.testing.assert_allclose(first, 2.48832257e-05, rtol=5e-6)
    p = LocalContrast(3)
    y = kernels(p, device)[0](RAMP.astype(np.float32))[0, :2, :, 0]
    expected = [[-17.777778, -21.333333, -10.666667, 49.777778], [42.666667, 0, 0, 96]]
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-4)
    assert abs(y[0, 0] + 17.7777786) < 4e-6
    p = LocalContrast(3, alpha=1.0)
    y = kernels(p, device)[0](RAMP.astype(np.float32))[0, :2, :, 0]
    printed(y, [[-0.250602, -0.258180, -0.113221, 0.508476], [0.356336, 0, 0, 0.674562]])


def test_printed_local_contrast(device):
    x = np.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
    y, dx = run(LocalContrast(3, **UNITS), device, x, np.ones_like(x))
    printed(y, [0.461538, 0.631579, 1.144509])
    printed(dx, [0.493255, -0.086887, -0.082660])


def test_printed_probes(device):
    """Exact derivatives, not the printed formulas of Apple's header."""
    if device.kind != "cpu":
        pytest.skip("these are the questions to the hardware: `mpsgrad probe` asks them")
    ones = np.ones((1, 1, 1, 5))
    dx = run(CrossChannel(3, **UNITS), device, ones, ones)[1]
    printed(dx[..., :3], [0.193333, -0.073333, 0])
    ones = np.ones((1, 5, 5, 1))
    dx = run(Spatial(3, **UNITS), device, ones, ones)[1][0, ..., 0]
    printed([dx[2, 2], dx[0, 0]], [0, 0.370243])
    g = at(RAMP.shape, 1, 1, 0)
    dx = run(Spatial(3, **UNITS), device, RAMP, g)[1][0, ..., 0]
    printed([dx[0, 0], dx[1, 1], dx[2, 2]], [-0.000571, 0.017265, -0.006278])
    dx = run(LocalContrast(3, **UNITS), device, RAMP, g)[1][0, ..., 0]
    corners = dx[0, 0], dx[1, 0], dx[1, 1], dx[2, 2]
    printed(corners, [-0.009009, -0.009009, 0.072072, -0.009009])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_even_windows_lean_to_the_smaller_index(device, size):
    """One pixel of 1: it lies in the windows of its neighbours, more of them on the far side."""
    x = np.zeros((1, 1, 11, 11), np.float32)
    x[0, 0, 5, 5] = 1
    p = Spatial(size, alpha=float(size**2), beta=-1.0, delta=0.0)
    readers = (x + np.float32(1e-3)).astype(np.float32)
    result = kernels(p, device)[0](readers)[0, 0, :, 5] / readers[0, 0, :, 5]
    inside = np.flatnonzero(result > 0.5)
    assert inside.tolist() == list(range(5 - (size - 1) // 2, 5 + size // 2 + 1))
    p = CrossChannel(size, alpha=float(size), beta=-1.0, delta=0.0)
    result = kernels(p, device)[0](readers)[0, 0, 5] / readers[0, 0, 5]
    inside = np.flatnonzero(result > 0.5)
    assert inside.tolist() == list(range(5 - (size - 1) // 2, 5 + size // 2 + 1))


# --- IEEE arithmetic ----------------------------------------------------------------


@kinds
def test_a_nan_stays_within_its_windows(device, p, rng):
    if device.kind != "cpu":
        pytest.skip("Metal promises nothing about NaN")
    x = rng.standard_normal((1, 12, 13, 14), dtype=np.float32)
    x[0, 6, 6, 6] = np.nan
    forward, gradient = kernels(p, device)
    result, states = forward(x, with_state=True)
    expected = np.zeros(x.shape, bool)
    readers = slice(6 - (p.kernel_size - 1) // 2, 6 + p.kernel_size // 2 + 1)
    if isinstance(p, CrossChannel):
        expected[0, 6, 6, readers] = True
    else:
        expected[0, readers, readers, 6] = True
    assert np.array_equal(np.isnan(result), expected)
    g = rng.standard_normal(x.shape, dtype=np.float32)
    dx = gradient(g, x, states)
    if isinstance(p, CrossChannel):
        assert np.isfinite(np.delete(dx.reshape(-1, 14), 6 * 13 + 6, axis=0)).all()
    else:
        assert np.isfinite(np.delete(dx, 6, axis=3)).all()
        assert np.isfinite(dx[0, 10:]).all()
        assert np.isnan(dx[0, 6, 6, 6])


def test_denominators_of_zero_follow_ieee_arithmetic(device):
    if device.kind != "cpu":
        pytest.skip("MPS calls it undefined")
    x = np.zeros((1, 1, 3, 1), np.float32)
    x[0, 0, 0] = 4
    y = kernels(Spatial(1, delta=0.0, beta=0.5), device)[0](x).ravel()
    assert y[0] == 1
    assert np.isnan(y[1:]).all()  # 0 / 0
    y = kernels(Spatial(1, delta=-1.0, beta=0.5), device)[0](x).ravel()
    assert np.isnan(y[1])  # a root of -1


@pytest.mark.parametrize(("beta", "limit"), [(0.5, 1.5), (0.75, 3.7), (1.0, 0.5)])
def test_powers_of_published_exponents(device, beta, limit):
    """To the limits that the documentation gives, over four octaves of bases."""
    if device.kind != "cpu":
        pytest.skip("of the CPU device")
    if beta == 0.75 and mg.cpu_instruction_set() == "avx512":
        limit = 1.92
    # The window of the second channel, a 1, holds the first one, whose squares are exact.
    octaves = np.arange(2048, 4096)[:, None] * 2.0 ** np.arange(-15, -9)
    first = octaves[octaves**2 < 15].astype(np.float32)
    x = np.stack([first, np.ones_like(first)], axis=-1).reshape(1, 1, -1, 2)
    base = (np.square(first.astype(np.float64)) + 1).astype(np.float32)
    assert 1 < base.min() < 1.01
    assert base.max() > 14.9
    y = kernels(CrossChannel(2, alpha=2.0, delta=0.0, beta=beta), device)[0](x)[0, 0, :, 1]
    assert_close(y, base.astype(np.float64) ** -beta, ulps=limit)


def test_powers_at_the_ends_of_the_range(device):
    if device.kind != "cpu":
        pytest.skip("MPS calls it undefined")
    tiny, huge = np.float32(2.0**-140), np.float32(3.0e38)
    x = np.ones((1, 1, 33, 3), np.float32)  # in whole vectors and in what is left of them
    for delta in (tiny, np.float32(2.0**-126), np.float32(1e-30), huge):
        y = kernels(Spatial(1, alpha=0.0, delta=delta, beta=0.75), device)[0](x)
        assert_close(y, np.full(x.shape, float(delta) ** -0.75), ulps=3.7)  # as documented
    x[0, 0, ::4] = np.float32(np.inf)  # squares of 1e-30 are zero, of 1e30 infinite
    x[0, 0, 1::4], x[0, 0, 2::4], x[0, 0, 3::4] = 1e-30, 1e30, np.nan
    y = kernels(Spatial(1, alpha=1.0, delta=0.0, beta=0.75), device)[0](x)
    assert np.isnan(y[0, 0, ::4]).all()  # infinity * 0
    assert (y[0, 0, 1::4] == np.inf).all()
    assert (y[0, 0, 2::4] == 0).all()
    assert np.isnan(y[0, 0, 3::4]).all()
    y = kernels(Spatial(1, alpha=0.0, delta=-1.0, beta=0.75), device)[0](np.ones_like(x))
    assert np.isnan(y).all()  # a root of -1


@pytest.mark.parametrize("channels", [5, 37, 96])
def test_pixels_have_the_same_bits_wherever_they_lie(device, channels, rng):
    """Among 61 of an image, or alone: in a vector of elements, or in what is left of them."""
    if device.kind != "cpu":
        pytest.skip("of the CPU device")
    x, g = rng.standard_normal((2, 1, 1, 61, channels), dtype=np.float32)
    for p in (CrossChannel(5, beta=0.75), Spatial(1, beta=0.75), LocalContrast(1, 1.0, beta=0.75)):
        y, dx = run(p, device, x, g)
        for column in (0, 1, 30, 60):
            one = np.s_[:, :, column : column + 1]
            alone, dx_alone = run(p, device, x[one], g[one])
            assert_same_bytes(alone, y[one])
            assert_same_bytes(dx_alone, dx[one])


@pytest.mark.parametrize("cls", PIXELS)
def test_a_delta_of_zero_does_not_reach_in_from_outside(device, cls, rng):
    """Windows around places outside the image hold nothing but zeros: 0 / 0 if one looked."""
    x, g = rng.standard_normal((2, 1, 4, 5, 3), dtype=np.float32)
    p = cls(3, alpha=1.0, beta=0.5, delta=0.0)
    _, dx = run(p, device, x, g)
    check_gradient(p, dx, g, x)


# --- Images -------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("kind", ["batch", "list", "container"])
@pytest.mark.parametrize("fmt", DTYPES)
def test_formats_and_ways_to_hold_images(device, p, fmt, kind, rng):
    x = load(read(filled(device, rng.uniform(0, 1, (3, 4, 5, 6)), fmt)))
    forward, gradient = kernels(p, device)
    sources = filled(device, x, fmt, kind=kind)
    signed = DTYPES[fmt].kind == "f"
    results = empty(device, x.shape, fmt if signed else "float32", kind=kind)
    states = forward.result_state(sources, results)
    g = load(read(filled(device, rng.uniform(0, 1, x.shape), fmt)))
    incoming, destinations = filled(device, g, fmt, kind=kind), empty(device, x.shape, kind=kind)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        gradient.configure(incoming, sources, states[0] if isinstance(states, list) else states)
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    check_forward(p, read(results), x)
    check_gradient(p, read(destinations), g, x)


@kinds
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_channel_windows(device, p, fmt, rng):
    """Sums over channels run over the channels that are read, wherever they lie."""
    x = load(rng.uniform(-1, 1, (2, 3, 4, 13)).astype(DTYPES[fmt]))
    forward, gradient = kernels(p, device)
    g = load(rng.standard_normal((2, 3, 4, 6)).astype(DTYPES[fmt]))
    y, dx, _ = channel_window(device, forward, gradient, x, g, fmt)
    check_forward(p, y, x[..., 4:10])
    check_gradient(p, dx, g, x[..., 4:10])


def seen(p, source, rows, columns):
    """Return the forward result at places of the source, some of them outside."""
    margin = 12
    edge = getattr(p, "edge", "zero")
    height, width = source.shape[1:3]
    wide = sample(
        source, np.arange(-margin, height + margin), np.arange(-margin, width + margin), edge
    )
    return exact_forward(p, wide)[:, np.asarray(rows) + margin][:, :, np.asarray(columns) + margin]


@pytest.mark.parametrize("edge", ["zero", "clamp"])
@kinds
def test_offsets_and_clip_rectangles(device, p, edge, rng):
    x = rng.standard_normal((2, 4, 5, 6), dtype=np.float32)
    forward, _ = kernels(p if isinstance(p, CrossChannel) else replace(p, edge=edge), device)
    forward.edge_mode = {"zero": mg.EdgeMode.ZERO, "clamp": mg.EdgeMode.CLAMP}[edge]
    forward.offset = (-2, 1, 0)
    forward.clip_rect = mg.Region((1, 0), (6, 5))
    results = empty(device, (2, 6, 8, 6), fill=0.5)
    with Work(device) as work:
        forward.encode(work.buffer, filled(device, x), work.result(results))
    rows, columns = np.arange(5) + 1, np.arange(6) - 2
    if isinstance(p, CrossChannel):
        expected = exact_forward(p, sample(x.astype(np.float64), rows, columns, edge))
    else:
        expected = seen(replace(p, edge=edge), x.astype(np.float64), rows, columns)
    texels = read(results)
    scale = np.maximum(np.abs(expected), np.abs(expected).max())
    ulps = forward_ulps(p, (1, 30, 30, 6))
    assert_close(texels[:, :5, 1:7], expected, ulps=ulps, scale=scale)
    texels[:, :5, 1:7] = 0.5
    assert (texels == 0.5).all()


@pytest.mark.parametrize("edge", [mg.EdgeMode.ZERO, mg.EdgeMode.CLAMP])
@pytest.mark.parametrize("offset", [(-10, 0), (-12, 0), (-90, 1), (12, 0), (0, -12), (-12, 90)])
@pytest.mark.parametrize("p", [p for p in ONE_EACH if not isinstance(p, CrossChannel)], ids=str)
def test_windows_far_from_the_image(device, p, offset, edge, rng):
    """They see zeros, or the nearest pixels however far away they are."""
    x = rng.standard_normal((1, 6, 8, 8), dtype=np.float32)
    forward, _ = kernels(p, device)
    forward.edge_mode = edge

    def encoded(offset):
        forward.offset = offset
        results = empty(device, x.shape, fill=0.5)
        with Work(device) as work:
            forward.encode(work.buffer, filled(device, x), work.result(results))
        return read(results)

    found = encoded(offset)
    if edge == mg.EdgeMode.CLAMP:
        further = tuple(o + 1000 * int(np.sign(o)) if abs(o) > 1 else o for o in offset)
        assert_same_bytes(found[:, :, :1], encoded(further)[:, :, :1])
    else:
        assert (found == exact_forward(p, np.zeros((1, 1, 1, 8)))).all()


@pytest.mark.parametrize("method", [0x00, 0x10, 0x1C, 0x20])
@pytest.mark.parametrize("p", [Spatial(3, beta=0.75), LocalContrast(4, 1.0, delta=0.5)], ids=str)
def test_padding_policies_place_the_windows(device, p, method, rng):
    x = rng.standard_normal((1, 6, 7, 3), dtype=np.float32)
    forward, _ = kernels(p, device)
    forward.padding = mg.DefaultPadding(method)
    result = forward(x)
    offset = tuple(forward.offset)
    rows, columns = (
        np.arange(n) + o for n, o in zip(result.shape[1:3], offset[1::-1], strict=True)
    )
    expected = seen(p, x.astype(np.float64), rows, columns)
    assert result.shape == expected.shape
    scale = np.maximum(np.abs(expected), np.abs(expected).max())
    assert_close(result, expected, ulps=forward_ulps(p, (1, 30, 30, 3)), scale=scale)


@kinds
@pytest.mark.parametrize(
    "offset",
    [(1, -2), (-3, 0), (0, 4), (90, 0), (-12, 0), (-90, 0), (0, 13), (0, -90), (-90, 90), (0, 5)],
    ids=str,
)
def test_gradients_of_shifted_windows_lie_where_their_pixels_do(device, p, offset, rng):
    x, g = rng.standard_normal((2, 1, 6, 7, 3), dtype=np.float32)
    forward, gradient = kernels(p, device)
    forward.offset = offset
    sources, results = filled(device, x), empty(device, x.shape)
    states = forward.result_state(sources, results)
    with Work(device) as work:
        forward.encode(work.buffer, sources, work.result(results), destination_state=states)
        dx = gradient.encode(work.buffer, filled(device, g), sources, states, allocator=mg.DEFAULT)
        work.result(dx)
    # Zeros around the image make the windows outside as good as those inside.
    margin = 12
    wide, given = (np.pad(a, [(0, 0), (margin,) * 2, (margin,) * 2, (0, 0)]) for a in (x, x * 0))
    if max(map(abs, offset)) < margin:
        left, top = margin + offset[0], margin + offset[1]
        given[:, top : top + 6, left : left + 7] = g
    inside = (slice(None), slice(margin, -margin), slice(margin, -margin))
    expected = exact_gradient(p, given, wide)[inside]
    scale = np.maximum(gradient_scale(p, given, wide)[inside], 1e-30)
    # What lies beside the gradient gets nothing.
    nonzero = 0.1 if expected.any() else 0
    ulps = gradient_ulps(p, (1, 30, 30, 3))
    assert_close(read(dx), expected, ulps=ulps, scale=scale, nonzero=nonzero)


@kinds
def test_explicit_destinations_use_the_offsets_as_they_are(device, p, rng):
    x, g = rng.standard_normal((2, 2, 6, 7, 5), dtype=np.float32)
    forward, gradient = kernels(p, device)
    _, states = forward(x, with_state=True)
    sources, incoming = filled(device, x), filled(device, g)
    whole = exact_gradient(p, g, x)
    scale = gradient_scale(p, g, x)
    gradient.configure(incoming, sources, states[0])
    gradient.primary_offset = gradient.secondary_offset = (2, 1, 0)
    gradient.clip_rect = mg.Region((1, 3), (4, 2))
    destinations = empty(device, (2, 6, 7, 5), fill=0.75)
    with Work(device) as work:
        gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
    texels = read(destinations)
    there = (slice(None), slice(1, 3), slice(2, 6))
    ulps = gradient_ulps(p, x.shape)
    assert_close(texels[:, 3:5, 1:5], whole[there], ulps=ulps, scale=scale[there])
    texels[:, 3:5, 1:5] = 0.75
    assert (texels == 0.75).all()


def test_images_are_chosen_by_z(device, rng):
    x, g = rng.standard_normal((2, 4, 3, 4, 2), dtype=np.float32)
    for p in ONE_EACH:
        forward, gradient = kernels(p, device)
        forward.offset = (0, 0, 1)
        forward.clip_rect = mg.Region((0, 0, 2), (9, 9, 2))
        sources, results = filled(device, x), empty(device, x.shape, fill=0.75)
        states = forward.result_state(sources, results)
        destinations = empty(device, x.shape, fill=0.75)
        gradient.clip_rect = mg.Region((0, 0, 1), (9, 9, 2))
        gradient.primary_offset = (0, 0, 2)
        with Work(device) as work:
            forward.encode(work.buffer, sources, work.result(results), destination_state=states)
            incoming = filled(device, g)
            gradient.configure(incoming, sources, states[0])
            gradient.encode(work.buffer, incoming, sources, states, work.result(destinations))
        texels = read(results)
        check_forward(p, texels[2:], x[1:3])
        assert (texels[:2] == 0.75).all()
        texels = read(destinations)
        check_gradient(p, texels[1:3], g[2:], x[0:2])
        assert (texels[[0, 3]] == 0.75).all()


# --- Arrays, order and repetition ------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_with_and_without_out(device, p, dtype, rng):
    x, g = rng.standard_normal((2, 2, 5, 6, 7)).astype(dtype)
    forward, gradient = kernels(p, device)
    result, states = forward(x, with_state=True)
    dx = gradient(g, x, states)
    assert (result.dtype, dx.dtype) == (dtype, dtype)
    check_forward(p, result, x.astype(np.float64))
    check_gradient(p, dx, g.astype(np.float64), x.astype(np.float64))
    with Guarded(x.shape, dtype, skew=1) as out:
        again, states = forward(x, with_state=True, out=out)
        assert again is out
        assert_same_bytes(out, result)
    with Guarded(x.shape, dtype, skew=1) as out:
        assert gradient(g, x, states, out=out) is out
        assert_same_bytes(out, dx)
    one, state = forward(x[0], with_state=True)
    assert_same_bytes(one, result[0])
    assert_same_bytes(gradient(g[0], x[0], state), dx[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@kinds
def test_results_do_not_depend_on_threads_or_runs(device, p, dtype, rng):
    x, g = rng.standard_normal((2, 3, 61, 47, 19)).astype(dtype)
    forward, gradient = kernels(p, device)

    def run():
        result, states = forward(x, with_state=True)
        return result, gradient(g, x, states)

    check_thread_independence(run)


def test_parameters_are_read_when_an_encode_is_made(device):
    kernel = mg.SpatialNormalization(1, 1, device=device)
    kernel.beta = 1.0
    sources, results = empty(device, (1, 1, 1, 1)), empty(device, (1, 1, 1, 1))
    with Work(device) as work:
        kernel.encode(work.buffer, sources, work.result(results))
        kernel.beta = 2.0
        sources[0].write(np.full((1, 1, 1), 2, np.float32))
    np.testing.assert_allclose(read(results).item(), 0.4, rtol=1e-6)


def test_gradient_kernels_take_no_parameter_from_the_state(device, rng):
    x, g = rng.standard_normal((2, 1, 4, 5, 3), dtype=np.float32)
    for p in ONE_EACH:
        forward, _ = kernels(replace(p, beta=2.0), device)
        _, gradient = kernels(p, device)
        _, states = forward(x, with_state=True)
        check_gradient(p, gradient(g, x, states), g, x)


@kinds
def test_read_counts_of_temporaries(device, p):
    source = filled(device, np.ones((2, 4, 4, 3)))
    forward, gradient = kernels(p, device)
    assert np.isfinite(check_read_counts(device, forward, gradient, source)).all()


# --- Parameters and copies ---------------------------------------------------------------


DEFAULTS = {
    CrossChannel: {"alpha": 1.0, "beta": 5.0, "delta": 1.0},
    Spatial: {"alpha": 1.0, "beta": 5.0, "delta": 1.0},
    LocalContrast: {
        "alpha": 0.0,
        "beta": 0.5,
        "delta": 0.0009765625,
        "p0": 1.0,
        "pm": 0.0,
        "ps": 1.0,
    },
}


@pytest.mark.parametrize("family", CLASSES)
def test_defaults(device, family):
    for cls in CLASSES[family]:
        kernel = cls(device=device) if family is CrossChannel else cls(3, 3, device=device)
        for name, value in DEFAULTS[family].items():
            assert getattr(kernel, name) == value
            setattr(kernel, name, 0.1)
            assert getattr(kernel, name) == np.float32(0.1)
        assert hasattr(kernel, "p0") == (family is LocalContrast)
        prefix = "secondary_" if cls is CLASSES[family][1] else ""
        expected = (1, 1) if family is CrossChannel else (3, 3)
        names = "kernel_width", "kernel_height"
        assert tuple(getattr(kernel, prefix + name) for name in names) == expected
        if family is CrossChannel:
            assert kernel.kernel_size == 5
            with rejects(AttributeError, f"{type(kernel).__name__}.kernel_size is read-only"):
                kernel.kernel_size = 3


@pytest.mark.parametrize("duplicate", WAYS.values(), ids=WAYS)
def test_copies_have_every_setting(device, duplicate):
    for family, pair in CLASSES.items():
        for cls in pair:
            kernel = cls(*sizes(family(3)), device=device)
            for i, name in enumerate(DEFAULTS[family]):
                setattr(kernel, name, 0.25 + i)
            kernel.label = "norm1"
            twin = duplicate(kernel)
            assert twin is not kernel
            assert [getattr(twin, name) for name in DEFAULTS[family]] == [
                0.25 + i for i in range(len(DEFAULTS[family]))
            ]
            assert (twin.label, repr(twin)) == ("norm1", repr(kernel))


def test_repr(device):
    kernel = mg.CrossChannelNormalization(3, device=device)
    assert repr(kernel) == f"CrossChannelNormalization(kernel_size=3, device='{device.kind}')"
    kernel = mg.SpatialNormalizationGradient(3, 3, device=device)
    assert repr(kernel) == (
        f"SpatialNormalizationGradient(kernel_width=3, kernel_height=3, device='{device.kind}')"
    )


# --- Rejections ---------------------------------------------------------------------------

X = np.zeros((2, 4, 4, 8), np.float32)


@pytest.mark.parametrize("cls", CLASSES[CrossChannel])
@pytest.mark.parametrize("size", [0, -1, 1 << 17])
def test_rejects_kernel_sizes(device, cls, size):
    words = f"{cls.__name__}: kernel_size must be between 1 and 65536, got {size}"
    with rejects(ValueError, words):
        cls(size, device=device)


@pytest.mark.parametrize("cls", [c for family in PIXELS for c in CLASSES[family]])
def test_rejects_windows(device, cls):
    for name in ("kernel_width", "kernel_height"):
        arguments = {"kernel_width": 3, "kernel_height": 3, name: 0}
        with rejects(ValueError, f"{cls.__name__}: {name} must be at least 1, got 0"):
            cls(**arguments, device=device)
    words = f"{cls.__name__}: kernel_width and kernel_height must be equal, got 3 and 5"
    with rejects(ValueError, words):
        cls(3, 5, device=device)


@pytest.mark.parametrize("family", CLASSES)
def test_rejects_parameters(device, family):
    for cls in CLASSES[family]:
        kernel = cls(*sizes(family(3)), device=device)
        for name, default in DEFAULTS[family].items():
            for value in (np.inf, -np.inf, np.nan, 1e39):
                words = f"{cls.__name__}: {name} must be a finite float32 number, got"
                with rejects(ValueError, words):
                    setattr(kernel, name, value)
            with pytest.raises(TypeError, match="must be a float, got str"):
                setattr(kernel, name, "1")
            assert getattr(kernel, name) == default
        if family is LocalContrast:
            kernel.alpha = -1.0
            assert kernel.alpha == -1
        else:
            with rejects(ValueError, f"{cls.__name__}: alpha must not be negative, got -1"):
                kernel.alpha = -1.0


@kinds
@pytest.mark.parametrize(
    "mode", [mg.EdgeMode.MIRROR, mg.EdgeMode.MIRROR_WITH_EDGE, mg.EdgeMode.CONSTANT]
)
def test_rejects_edge_modes(device, p, mode):
    forward, gradient = kernels(p, device)
    with rejects(ValueError, "edge_mode must be ZERO or CLAMP"):
        forward.edge_mode = mode
    with rejects(ValueError, "primary_edge_mode must be ZERO or CLAMP"):
        gradient.primary_edge_mode = mode


@kinds
def test_rejects_gradients_of_clamped_edges(device, p):
    forward, gradient = kernels(p, device)
    _, good = forward(X, with_state=True)
    forward.edge_mode = mg.EdgeMode.CLAMP
    _, states = forward(X, with_state=True)
    with rejects(ValueError, "only edge mode ZERO has a gradient, but the state was made with"):
        gradient(X, X, states)
    images = filled(device, X)
    for name in ("primary", "secondary"):
        gradient.configure(images, images, good[0])
        setattr(gradient, f"{name}_edge_mode", mg.EdgeMode.CLAMP)
        out = empty(device, X.shape)
        with Work(device) as work, rejects(ValueError, f"{name}_edge_mode must be ZERO, got"):
            gradient.encode(work.buffer, images, images, good, out)
        setattr(gradient, f"{name}_edge_mode", mg.EdgeMode.ZERO)


@kinds
def test_rejects_states_of_other_windows(device, p):
    forward, _ = kernels(replace(p, kernel_size=5), device)
    _, gradient = kernels(p, device)
    _, states = forward(X, with_state=True)
    words = "the kernel's window is 4 long, but the state was made with 5"
    with rejects(ValueError, words):
        gradient(X, X, states)


def test_rejects_states_of_other_classes(device):
    _, states = mg.SpatialNormalization(3, 3, device=device)(X, with_state=True)
    words = "state must come from CrossChannelNormalization, but it was made by Spatial"
    with rejects(TypeError, words):
        mg.CrossChannelNormalizationGradient(3, device=device)(X, X, states)
    with rejects(TypeError, "state must be a State"):
        mg.SpatialNormalizationGradient(3, 3, device=device)(X, X, "state")


REJECTED = {
    "dtype": (X.astype(np.float64), X, TypeError, "source_gradient must be float32 or float16"),
    "dtype of the source": (X, X.astype(np.int32), TypeError, "source must be float32"),
    "rank": (X[0, 0], X, ValueError, "source_gradient must have shape (N, H, W, C)"),
    "batch": (X[:1], X, ValueError, "both must be one image, or batches of one length"),
    "width": (X[:, :, :3].copy(), X, ValueError, "source_gradient is 3x4, but source is 4x4"),
    "height": (X[:, :3].copy(), X, ValueError, "source_gradient is 4x3, but source is 4x4"),
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
        "source_gradient has 9 channels, but source has 8",
    ),
}


@kinds
@pytest.mark.parametrize(("g", "x", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects_gradient_calls(device, p, g, x, error, words):
    forward, gradient = kernels(p, device)
    _, states = forward(X, with_state=True)
    gradient(X, X, states)
    with rejects(error, words):
        gradient(g, x, states)


SETTINGS = {
    "kernel_offset_x": (1, "kernel_offset_x and kernel_offset_y must be 0, got (1, 0)"),
    "kernel_offset_y": (-1, "kernel_offset_x and kernel_offset_y must be 0, got (0, -1)"),
    "primary_stride_in_pixels_x": (2, "primary_stride_in_pixels must be (1, 1), got (2, 1)"),
    "secondary_stride_in_pixels_y": (3, "secondary_stride_in_pixels must be (1, 1), got (1, 3)"),
}


@kinds
@pytest.mark.parametrize("name", SETTINGS)
def test_rejects_gradient_settings(device, p, name):
    value, words = SETTINGS[name]
    forward, gradient = kernels(p, device)
    _, states = forward(X, with_state=True)
    images, out = filled(device, X), empty(device, X.shape)
    gradient.configure(images, images, states[0])
    setattr(gradient, name, value)
    with Work(device) as work, rejects(ValueError, words):
        gradient.encode(work.buffer, images, images, states, out)


@kinds
def test_rejects_changes_after_the_state_was_made(device, p):
    forward, _ = kernels(p, device)
    sources, results = filled(device, X), empty(device, X.shape)
    states = forward.result_state(sources, results)
    forward.delta = 3.0
    with Work(device) as work, rejects(mg.errors.StateError, "properties changed after"):
        forward.encode(work.buffer, sources, results, destination_state=states)


@kinds
def test_rejects_objects_of_another_device(device, p):
    if device.kind == "cpu":
        pytest.skip("needs an object of a device that is not the CPU")
    forward, gradient = kernels(p, device)
    _, states = forward(X, with_state=True)
    _, foreign = kernels(p, mg.Device("cpu"))[0](X, with_state=True)
    images, elsewhere = filled(device, X), filled(mg.Device("cpu"), X)
    words = "on another device"
    with Work(device) as work:
        with rejects(ValueError, words):
            forward.encode(work.buffer, elsewhere, empty(device, X.shape))
        with rejects(ValueError, words):
            gradient.encode(work.buffer, elsewhere, images, states, allocator=mg.DEFAULT)
        with rejects(ValueError, words):
            gradient.encode(work.buffer, images, images, foreign, allocator=mg.DEFAULT)


@kinds
def test_rejects_places_of_channels(device, p):
    forward, gradient = kernels(p, device)
    for name, kernel in (
        ("source_feature_channel_offset", forward),
        ("destination_feature_channel_offset", forward),
        ("primary_source_feature_channel_offset", gradient),
        ("secondary_source_feature_channel_offset", gradient),
        ("destination_feature_channel_offset", gradient),
    ):
        with rejects(ValueError, "must be a multiple of 4"):
            setattr(kernel, name, 2)


@kinds
def test_rejects_states_of_another_command_buffer(device, p, queue):
    forward, gradient = kernels(p, device)
    images = filled(device, X)
    with Work(device) as work:
        states = forward.temporary_result_state(work.buffer, images, images)
        other = queue.command_buffer()
        with rejects(ValueError, "belongs to another command buffer"):
            gradient.encode(other, images, images, states, allocator=mg.DEFAULT)
        assert [state.read_count for state in states] == [1, 1]
        mg.increment_read_count(states, -1)


@kinds
def test_rejects_aliasing_and_foreign_sizes(device, p):
    forward, gradient = kernels(p, device)
    images, narrow = filled(device, X), empty(device, (2, 4, 4, 4))
    states = forward.result_state(images, images)
    with Work(device) as work:
        with rejects(ValueError, "destination shares memory with source"):
            forward.encode(work.buffer, images, images)
        swapped = [images[1], empty(device, (1, 4, 4, 8))[0]]  # not at one place of the batch
        with rejects(ValueError, "destination shares memory with source"):
            forward.encode(work.buffer, images, swapped)
        with rejects(ValueError, "channels 0 to 8 do not fit a destination of 4 channels"):
            forward.encode(work.buffer, images, narrow)
        with rejects(ValueError, "destination is an empty batch"):
            forward.encode(work.buffer, images, [])
        with rejects(ValueError, "state has 3 entries, expected 2"):
            gradient.encode(work.buffer, images, images, [*states, states[0]])
