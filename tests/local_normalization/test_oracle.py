"""The local normalization oracles against printed values and against central differences."""

import numpy as np
import pytest

from tests.central import assert_derivative
from tests.local_normalization import cases, oracle
from tests.local_normalization.oracle import CrossChannel, LocalContrast, Spatial
from tests.tolerance import assert_close, assert_exact, ulps_for

RAMP = np.arange(1.0, 17).reshape(1, 4, 4, 1)
UNITS = {"alpha": 1.0, "beta": 1.0, "delta": 1.0}


def printed(actual, expected):
    """Compare with six printed decimals."""
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=0, atol=5.1e-7)


def at(shape, *index):
    """An incoming gradient of 1 at one place."""
    gradient = np.zeros(shape)
    gradient[0, *index] = 1
    return gradient


@pytest.mark.parametrize(
    ("size", "forward", "transposed"),
    [
        (1, (0,), (0,)),
        (2, (-1, 0), (0, 1)),
        (3, (-1, 0, 1), (-1, 0, 1)),
        (4, (-2, -1, 0, 1), (-1, 0, 1, 2)),
        (5, (-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2)),
    ],
)
def test_windows(size, forward, transposed):
    assert tuple(oracle.window(size)) == forward
    assert tuple(oracle.window(size, transposed=True)) == transposed


@pytest.mark.parametrize(
    ("size", "base", "y", "gradient"),
    [
        (1, (2, 5, 1, 10), (0.5, 0.4, 0, 0.3), (0, -0.12, 1, -0.08)),
        (
            2,
            (1.5, 3.5, 3, 5.5),
            (0.666667, 0.571429, 0, 0.545455),
            (0.058957, -0.040816, 0.333333, -0.115702),
        ),
        (
            3,
            (2.666667, 2.666667, 5.333333, 4),
            (0.375, 0.75, 0, 0.75),
            (0.09375, -0.1875, 0.1875, -0.125),
        ),
        (
            4,
            (2.25, 2.25, 4.5, 4.25),
            (0.444444, 0.888889, 0, 0.705882),
            (0.148148, -0.314238, 0.222222, -0.013841),
        ),
    ],
)
def test_printed_cross_channel(size, base, y, gradient):
    p = CrossChannel(size, **UNITS)
    x = np.array([1.0, 2, 0, 3]).reshape(1, 1, 1, 4)
    printed(oracle.cross_channel_base(p, x), base)
    printed(oracle.cross_channel(p, x), y)
    printed(oracle.cross_channel_gradient(p, np.ones_like(x), x), gradient)


@pytest.mark.parametrize(
    ("size", "base", "y", "all_ones", "corner"),
    [
        (
            2,
            (1.25, 2.25, 3.5, 8.5),
            (0.8, 0.888889, 0.857143, 0.470588),
            (0.132338, -0.005981, -0.164678, 0.006920),
            (0.48, 0, 0, 0),
        ),
        (
            3,
            (4.333333,) * 4,
            (0.230769, 0.461538, 0.692308, 0.923077),
            (0.112426, -0.005917, -0.124260, -0.242604),
            (0.218935, -0.023669, -0.035503, -0.047337),
        ),
    ],
)
def test_printed_spatial(size, base, y, all_ones, corner):
    p = Spatial(size, **UNITS)
    x = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)
    printed(oracle.spatial_base(p, x), base)
    printed(oracle.spatial(p, x), y)
    printed(oracle.spatial_gradient(p, np.ones_like(x), x), all_ones)
    printed(oracle.spatial_gradient(p, at(x.shape, 0, 0, 0), x), corner)


def test_measured_spatial_corner():
    y = oracle.spatial(Spatial(3), RAMP)[0, 0, 0, 0]
    np.testing.assert_allclose(y, (1 + 66 / 9) ** -5.0, rtol=1e-14)
    # Hardware returned this; its float32 power to -5 is off by fourteen ULPs.
    np.testing.assert_allclose(y, 2.48832257e-05, rtol=2e-6)


def test_spatial_clamp_repeats_the_edge():
    x = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)
    clamped = oracle.spatial_base(Spatial(3, edge="clamp", **UNITS), x)[0, 0, 0, 0]
    np.testing.assert_allclose(clamped, 1 + (4 * 1 + 2 * 4 + 2 * 9 + 16) / 9)
    with pytest.raises(ValueError, match="edge mode zero only"):
        oracle.spatial_gradient(Spatial(3, edge="clamp"), x, x)
    with pytest.raises(ValueError, match="edge mode zero only"):
        oracle.local_contrast_gradient(LocalContrast(3, edge="clamp"), x, x)


def test_measured_local_contrast():
    y = oracle.local_contrast(LocalContrast(3), RAMP)[0, :2, :, 0]
    expected = [[-17.777778, -21.333333, -10.666667, 49.777778], [42.666667, 0, 0, 96]]
    np.testing.assert_allclose(y, expected, rtol=0, atol=5.1e-7)
    assert abs(y[0, 0] + 17.7777786) < 2e-6
    y = oracle.local_contrast(LocalContrast(3, alpha=1.0), RAMP)[0, :2, :, 0]
    expected = [[-0.250602, -0.258180, -0.113221, 0.508476], [0.356336, 0, 0, 0.674562]]
    printed(y, expected)
    mean, variance = oracle.contrast_statistics(LocalContrast(3), RAMP)
    printed(mean[0, 0, 0, 0], 14 / 9)
    printed(variance[0, 0, 0, 0], 4.913580)


def test_printed_local_contrast_gradient():
    p = LocalContrast(3, **UNITS)
    x = np.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
    mean, variance = oracle.contrast_statistics(p, x)
    printed(mean, [1 / 3, 2 / 3, 5 / 9])
    printed(variance, [0.444444, 1.111111, 1.135802])
    printed(oracle.local_contrast(p, x), [0.461538, 0.631579, 1.144509])
    gradient = oracle.local_contrast_gradient(p, np.ones_like(x), x)
    printed(gradient, [0.493255, -0.086887, -0.082660])


def test_printed_probes():
    p = CrossChannel(3, **UNITS)
    ones = np.ones((1, 1, 1, 5))
    printed(oracle.cross_channel_gradient(p, ones, ones)[..., :3], [0.193333, -0.073333, 0])
    p = Spatial(3, **UNITS)
    ones = np.ones((1, 5, 5, 1))
    gradient = oracle.spatial_gradient(p, ones, ones)[0, ..., 0]
    printed([gradient[2, 2], gradient[0, 0]], [0, 0.370243])
    gradient = oracle.spatial_gradient(p, at(RAMP.shape, 1, 1, 0), RAMP)[0, ..., 0]
    printed([gradient[0, 0], gradient[1, 1], gradient[2, 2]], [-0.000571, 0.017265, -0.006278])
    contrast = LocalContrast(3, **UNITS)
    gradient = oracle.local_contrast_gradient(contrast, at(RAMP.shape, 1, 1, 0), RAMP)[0, ..., 0]
    corners = gradient[0, 0], gradient[1, 0], gradient[1, 1], gradient[2, 2]
    printed(corners, [-0.009009, -0.009009, 0.072072, -0.009009])


FAMILIES = {
    "cross channel": (oracle.cross_channel, oracle.cross_channel_gradient, cases.CROSS_CHANNEL),
    "spatial": (oracle.spatial, oracle.spatial_gradient, cases.SPATIAL),
    "local contrast": (
        oracle.local_contrast,
        oracle.local_contrast_gradient,
        cases.LOCAL_CONTRAST,
    ),
}


@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_is_the_derivative(family, shape, rng):
    forward, gradient, parameters = FAMILIES[family]
    channels = shape[3] if family == "cross channel" else 1  # the others do not mix them
    x, g = rng.standard_normal((2, 1, *shape[1:3], channels))
    for p in parameters:
        if isinstance(p, LocalContrast) and p.kernel_size == 1:
            continue  # its variance is 0 everywhere: test_one_pixel_windows_have_no_variance
        result = gradient(p, g, x)
        assert_derivative(lambda x, p=p: forward(p, x), x, g, result, tolerance=1e-7)


def test_one_pixel_windows_have_no_variance(rng):
    p = LocalContrast(1, alpha=1.0, p0=0.25)
    x, g = rng.standard_normal((2, 1, 3, 4, 2))
    np.testing.assert_allclose(oracle.local_contrast(p, x), 0.75 * x * 32)
    np.testing.assert_allclose(oracle.local_contrast_gradient(p, g, x), 0.75 * g * 32)


def test_images_and_channels_are_independent(rng):
    x, g = rng.standard_normal((2, 3, 4, 5, 2))
    for family in ("spatial", "local contrast"):
        forward, gradient, parameters = FAMILIES[family]
        p = parameters[3]
        for n, c in np.ndindex(3, 2):
            one = (slice(n, n + 1), slice(None), slice(None), slice(c, c + 1))
            assert_exact(forward(p, x[one]), forward(p, x)[one])
            assert_exact(gradient(p, g[one], x[one]), gradient(p, g, x)[one])


def test_parameters_are_float32():
    assert CrossChannel(1, alpha=0.1).alpha == float(np.float32(0.1))
    assert LocalContrast(1).delta == 0.0009765625


@pytest.mark.parametrize("p", cases.CROSS_CHANNEL + cases.SPATIAL, ids=str)
def test_scales_cover_a_float32_evaluation(p, rng):
    x, g = rng.standard_normal((2, 2, 5, 7, 6)).astype(np.float32)
    single = isinstance(p, CrossChannel)
    base = oracle.cross_channel_base if single else oracle.spatial_base
    forward = oracle.cross_channel if single else oracle.spatial
    gradient = oracle.cross_channel_gradient if single else oracle.spatial_gradient
    scale = oracle.cross_channel_gradient_scale if single else oracle.spatial_gradient_scale
    gather = oracle.channel_sum if single else oracle.pixel_sum
    count = p.kernel_size if single else p.kernel_size**2

    at = base(p, x).astype(np.float32)
    beta, weight = np.float32(p.beta), np.float32(2 * p.alpha * p.beta / count)
    # A rounding of the base is multiplied by the exponent, and so is one of the power's logarithm.
    amplified = 2 * (abs(p.beta) + 1)
    assert_close(
        x * at**-beta, forward(p, x), ulps=ulps_for(3) + amplified, scale=np.abs(forward(p, x))
    )
    shared = gather((g * x * at ** (-beta - 1)).astype(float), p.kernel_size, transposed=True)
    result = g * at**-beta - weight * x * shared.astype(np.float32)
    assert result.dtype == np.float32
    assert_close(result, gradient(p, g, x), ulps=ulps_for(10) + amplified, scale=scale(p, g, x))


@pytest.mark.parametrize("p", cases.LOCAL_CONTRAST, ids=str)
def test_local_contrast_scales_cover_a_float32_evaluation(p, rng):
    x, g = rng.standard_normal((2, 2, 5, 7, 3)).astype(np.float32)
    mean, variance = (v.astype(np.float32) for v in oracle.contrast_statistics(p, x))
    base = np.float32(p.delta) + np.float32(p.alpha) * variance
    beta, p0, ps = (np.float32(v) for v in (p.beta, p.p0, p.ps))
    y = np.float32(p.pm) + ps * (x - p0 * mean) * base**-beta
    assert y.dtype == np.float32
    allowed = {"ulps": ulps_for(14, functions=2), "nonzero": 0}
    assert_close(y, oracle.local_contrast(p, x), scale=oracle.local_contrast_scale(p, x), **allowed)

    def gather(values):
        return oracle.pixel_sum(values.astype(float), p.kernel_size, transposed=True).astype("f4")

    count = np.float32(p.kernel_size**2)
    a, b = g * base**-beta, g * (x - p0 * mean) * base ** (-beta - 1)
    weight = np.float32(2) * np.float32(p.alpha) * beta / count
    result = ps * (a - p0 / count * gather(a) - weight * (x * gather(b) - gather(b * mean)))
    assert result.dtype == np.float32
    assert_close(
        result,
        oracle.local_contrast_gradient(p, g, x),
        scale=oracle.local_contrast_gradient_scale(p, g, x),
        **allowed,
    )
