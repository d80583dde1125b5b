"""The float64 networks by hand, and the gradients of graphs against their central differences."""

import mpsgrad as mg
import numpy as np
import pytest
from mpsgrad import graph as g

from tests.central import assert_derivative
from tests.graph import networks, oracle
from tests.tolerance import assert_exact


def test_convolve_by_hand():
    x = np.arange(1.0, 5.0).reshape(1, 1, 4, 1)
    weights = np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    assert_exact(oracle.convolve(x, weights, np.array([0.5])).ravel(), [210.5, 321.5, 432.5, 43.5])


def test_convolve_transposed_by_hand():
    x = np.array([[[[1.0], [2.0]]]])
    weights = np.array([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    y = oracle.convolve_transposed(x, weights, np.array([0.5]), 1, 4)
    assert_exact(y.ravel(), [10.5, 201.5, 20.5, 2.5])


def test_concatenate_by_hand():
    a, b = np.ones((1, 1, 1, 3)), np.full((1, 1, 1, 5), 2.0)
    assert_exact(oracle.concatenate(a, b).ravel(), [1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0])


def test_mean_pool_by_hand():
    x = np.array([[1.0, 2.0], [3.0, 6.0]]).reshape(1, 2, 2, 1)
    assert_exact(oracle.mean_pool(x).ravel(), [3.0])


def test_squared_error_by_hand():
    assert oracle.squared_error(np.array([1.0, 3.0]), np.array([0.0, 1.0]), 0.5) == 2.5


@pytest.mark.parametrize("name", networks.TRAINED)
def test_gradients_of_a_network(device, rng, name):
    """All numbers are small multiples of powers of two, so that float32 sums are exact."""
    network = networks.TRAINED[name]
    arrays = network.arrays(rng)
    sources = network.recorders(arrays)
    loss = network.build(sources)
    termini = loss.training_graph()
    (wanted,) = (t for t in termini if t.result_image.gradient_of is network.input_of(loss))
    rest = [t for t in termini if t is not wanted]
    graph = g.Graph(
        device,
        result_images=[wanted, *rest],
        results_are_needed=[True] + [False] * len(rest),
    )
    graph.format = mg.ChannelFormat.FLOAT32

    result = network.run(graph, arrays)

    x, labels, parameters = arrays
    function = getattr(oracle, name)

    def of_x(at):
        return function(at, labels, parameters)

    assert_derivative(of_x, x, 1.0, result.result, tolerance=1e-7)
    for i, source in enumerate(sources):
        for k, what in enumerate(("weights", "biases")):

            def of_parameter(at, i=i, k=k):
                changed = [list(pair) for pair in parameters]
                changed[i][k] = at
                return function(x, labels, changed)

            at = parameters[i][k]
            total = sum(getattr(call, what) for call in source.calls).reshape(at.shape)
            assert_derivative(of_parameter, at, 1.0, total, tolerance=1e-7)
    if result.losses:
        assert_exact(result.losses[0].sum(), function(x, labels, parameters))


def test_gradients_of_products(device, rng):
    """Scales, a bias, a broadcast source, and an input that three nodes read."""
    x = rng.integers(-3, 4, (2, 3, 2, 5)).astype(np.float32)
    y = rng.integers(1, 4, (2, 1, 1, 5)).astype(np.float32)
    left, right = g.ImageNode("x"), g.ImageNode("y")
    product = g.MultiplicationNode(left, right)
    product.primary_scale, product.secondary_scale = 2.0, 3.0
    product.secondary_stride_in_pixels_x = product.secondary_stride_in_pixels_y = 0
    difference = g.SubtractionNode(product, left)
    difference.bias = 1.0
    last = g.MultiplicationNode(difference, left)
    start = g.InitialGradientNode(last)
    termini = start.training_graph()
    by_image = {t.result_image.gradient_of: t for t in termini}
    graph = g.Graph(device, result_images=[by_image[left], by_image[right]])
    graph.format = mg.ChannelFormat.FLOAT32

    result = graph({"x": x, "y": y})

    assert_derivative(lambda at: oracle.products(at, y), x, 1.0, result.result, tolerance=1e-7)
    (second,) = result.intermediates
    assert_derivative(lambda at: oracle.products(x, at), y, 1.0, second, tolerance=1e-7)
