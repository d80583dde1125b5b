"""The oracle against the printed examples, NumPy, and itself."""

import numpy as np
import pytest

from tests.resize import cases, oracle
from tests.resize.oracle import Resize
from tests.upsampling import oracle as upsampling


def line(values):
    return np.array(values, np.float64).reshape(1, 1, -1, 1)


NINE = np.arange(9.0).reshape(1, 3, 3, 1)


def test_printed_values():
    row = line([1, 2, 3, 4])
    for align, expected in ((False, [1, 7 / 3, 11 / 3]), (True, [1, 2.5, 4])):
        np.testing.assert_allclose(oracle.resize(Resize((3, 1), align), row).ravel(), expected)
    crops = oracle.crop_and_resize(NINE, (2, 2), [(0, 0, 0.5, 0.5), (0.25, 0.25, 1, 1)])
    np.testing.assert_allclose(crops[..., 0], [[[0, 1], [3, 4]], [[2, 0], [0, 0]]])
    image = np.array([[1.0, 2], [3, 4]]).reshape(1, 2, 2, 1)
    grid = np.array([[[0.5, 0.5], [1.5, 0]]])[np.newaxis]
    np.testing.assert_allclose(oracle.grid_sample(image, grid).ravel(), [2.5, 1])


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_resize_interpolates(case, rng):
    x = rng.standard_normal(case.shape)
    for align in (False, True):
        expected = x
        for axis, size in ((1, case.size[1]), (2, case.size[0])):
            n = x.shape[axis]
            at = np.linspace(0, n - 1, size) if align else np.arange(size) * n / size
            expected = np.apply_along_axis(
                lambda values, at=at, n=n: np.interp(at, np.arange(n), values), axis, expected
            )
        actual = oracle.resize(Resize(case.size, align), x)
        np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_whole_factors_are_upsampling(rng):
    x = rng.standard_normal((2, 3, 4, 5))
    for kind, align in (("bilinear", False), ("aligned", True)):
        expected = upsampling.forward(upsampling.Upsampling(kind, (3, 2)), x)
        np.testing.assert_allclose(oracle.resize(Resize((12, 6), align), x), expected, atol=1e-12)


def test_all_of_an_image_is_a_resize_with_aligned_corners(rng):
    x = rng.standard_normal((2, 5, 7, 3))
    whole = oracle.crop_and_resize(x, (4, 9), [(0, 0, 1, 1)])
    np.testing.assert_allclose(whole, oracle.resize(Resize((4, 9), True), x), atol=1e-12)
    mirrored = oracle.crop_and_resize(x, (4, 9), [(1, 0, -1, 1)])
    np.testing.assert_allclose(mirrored[:, :, ::-1], whole, atol=1e-12)


def test_crops_are_grid_samples(rng):
    x = rng.standard_normal((1, 5, 9, 2))
    region = 0.125, -0.25, 0.5, 1.25
    xs = np.linspace(0.125, 0.625, 5) * 8
    ys = np.linspace(-0.25, 1.0, 6) * 4
    grid = np.stack(np.broadcast_arrays(xs, ys[:, np.newaxis]), -1)[np.newaxis]
    inside = ((grid >= 0) & (grid <= (8, 4))).all(-1)
    expected = oracle.grid_sample(x, grid) * inside[..., np.newaxis]
    np.testing.assert_allclose(oracle.crop_and_resize(x, (5, 6), [region]), expected, atol=1e-12)


def test_a_grid_of_whole_pixels_gathers(rng):
    x = rng.standard_normal((2, 4, 5, 3))
    grid = np.stack([rng.integers(0, 5, (2, 3, 6)), rng.integers(0, 4, (2, 3, 6))], -1)
    n = np.arange(2)[:, np.newaxis, np.newaxis]
    expected = x[n, grid[..., 1], grid[..., 0]]
    np.testing.assert_allclose(oracle.grid_sample(x, grid), expected)
    own = np.stack(np.broadcast_arrays(np.arange(6), np.arange(3)[:, np.newaxis]), -1)
    moved = oracle.grid_sample(x, grid - own, positions=False)
    np.testing.assert_allclose(moved, expected)


@pytest.mark.parametrize(
    ("edge", "expected"), [("zero", [0, 0.5, 1, 2, 1, 0, 0]), ("clamp", [1, 1, 1, 2, 2, 2, 2])]
)
def test_edges(edge, expected):
    xs = [-2, -0.5, 0, 1, 1.5, 2, np.inf]
    grid = np.stack([xs, np.zeros(7)], -1).reshape(1, 1, 7, 2)
    np.testing.assert_allclose(oracle.grid_sample(line([1, 2]), grid, edge=edge).ravel(), expected)
    grid[0, 0, 3, 1] = np.nan
    assert np.isnan(oracle.grid_sample(line([1, 2]), grid, edge=edge)[0, 0, 3, 0])
