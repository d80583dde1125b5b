"""Results too large for the caches take another way into memory, and are the same bytes."""

import math

import mpsgrad as mg
import numpy as np
import pytest

from tests.images import Work, empty, filled, read
from tests.repeats import check_repeats
from tests.tolerance import assert_exact, assert_same_bytes, grid

SAMPLES, SHAPE = 11, (61, 83, 27)  # 137 kB a sample in float16, and nowhere a multiple of a line
REPEAT = 6  # so that a batch and its source are over 32 MiB, which no machine keeps in caches


def kernel(name, device):
    """Make a function of arrays, and the number of its sources."""
    relu = mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.25)
    forward, backward = mg.Neuron(relu, device=device), mg.NeuronGradient(relu, device=device)

    def gradient(g, x):
        return backward(g, x, forward(x, with_state=True)[1])

    product = mg.Multiply(device=device)
    product.minimum_value, product.maximum_value = -0.5, 0.75
    product_gradient = mg.MultiplyGradient(False, device=device)

    def gradient_of_product(g, x):
        return product_gradient(g, x, product(x, x, with_state=True)[1])

    channels = np.linspace(0.5, 2, SHAPE[-1])
    statistics = mg.ArrayBatchNormalizationDataSource(channels, -channels, channels / 4, channels)
    tanh = mg.NeuronDescriptor(mg.NeuronType.TANH, a=1, b=1)
    instance = mg.InstanceNormalization(
        mg.ArrayInstanceNormalizationDataSource(channels, -channels), device=device
    )
    instance_gradient = mg.InstanceNormalizationGradient(device=device)

    def gradient_of_instance(g, x):
        return instance_gradient(g, x, instance(x, with_state=True)[1])

    entropy = mg.Loss(
        mg.LossDescriptor(mg.LossType.SOFT_MAX_CROSS_ENTROPY, mg.ReductionType.SUM), device=device
    )
    huber = mg.LossDescriptor(mg.LossType.HUBER, mg.ReductionType.NONE)
    losses = mg.ForwardLoss(huber, device=device)
    loss_gradient = mg.LossGradient(huber, device=device)

    return {
        "loss": (lambda y, t: entropy(y, t.astype(np.float32))[0], 2),
        "separate loss": (lambda y, t: losses(y, t.astype(np.float32)), 2),
        "loss gradient": (lambda g, y: loss_gradient(g, y, y.astype(np.float32) / 2), 2),
        "initial gradient": (mg.InitialGradient(device=device), 1),
        "neuron": (forward, 1),
        "neuron gradient": (gradient, 2),
        "subtract": (mg.Subtract(device=device), 2),
        "multiply": (product, 2),
        "multiply gradient": (gradient_of_product, 2),
        "batch": (mg.BatchNormalization(statistics, relu, device=device), 1),
        "batch tanh": (mg.BatchNormalization(statistics, tanh, device=device), 1),
        "instance": (instance, 1),
        "instance gradient": (gradient_of_instance, 2),
        "pooling": (mg.PoolingMax(2, 2, 1, 1, device=device), 1),
        "softmax": (mg.SoftMax(device=device), 1),
        "local": (mg.CrossChannelNormalization(5, device=device), 1),
    }[name]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "name",
    [
        "neuron",
        "neuron gradient",
        "subtract",
        "multiply",
        "multiply gradient",
        "batch",
        "batch tanh",
        "instance",
        "instance gradient",
        "pooling",
        "softmax",
        "local",
        "loss",
        "separate loss",
        "loss gradient",
        "initial gradient",
    ],
)
def test_a_large_batch_gives_the_bytes_of_its_samples(name, dtype, device, rng):
    function, sources = kernel(name, device)
    arrays = [
        np.tile(rng.standard_normal((SAMPLES, *SHAPE)), (REPEAT, 1, 1, 1)).astype(dtype)
        for _ in range(sources)
    ]
    whole = function(*arrays)
    assert whole.nbytes > 16 << 20
    for i in range(SAMPLES):
        one = function(*(array[i : i + 1] for array in arrays))
        for repeat in range(REPEAT):
            assert_same_bytes(whole[repeat * SAMPLES + i], one[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_long_functions_over_more_than_a_core_keeps(dtype, device, rng):
    """Loops then ask for what they read ahead, where the processor gains by it."""
    tanh = mg.NeuronDescriptor(mg.NeuronType.TANH, a=0.5, b=1.5)
    forward, backward = mg.Neuron(tanh, device=device), mg.NeuronGradient(tanh, device=device)
    g, x = rng.standard_normal((2, 16, *SHAPE)).astype(dtype)
    assert 4 << 20 < 2 * x.nbytes < 3 * x.nbytes < 32 << 20  # results go to a large last cache
    y, states = forward(x, with_state=True)
    dx = backward(g, x, states)
    for i in range(len(x)):
        one, state = forward(x[i : i + 1], with_state=True)
        assert_same_bytes(y[i], one[0])
        assert_same_bytes(dx[i], backward(g[i : i + 1], x[i : i + 1], state)[0])


@pytest.mark.parametrize("neuron", [mg.NeuronType.RELU, mg.NeuronType.TANH])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_batch_normalization_gradients(dtype, neuron, device, rng):
    """One state serves the whole batch and parts of it."""
    descriptor = mg.NeuronDescriptor(neuron, a=0.25, b=1)
    channels = np.linspace(0.5, 2, SHAPE[-1])
    source = mg.ArrayBatchNormalizationDataSource(channels, -channels)
    forward = mg.BatchNormalization(source, descriptor, device=device)
    sums = mg.BatchNormalizationStatisticsGradient(descriptor, device=device)
    backward = mg.BatchNormalizationGradient(descriptor, device=device)
    g, x = rng.standard_normal((2, SAMPLES * REPEAT, *SHAPE)).astype(dtype)
    _, state = forward(x, with_state=True)
    sums(g, x, state)
    whole = backward(g, x, state)
    assert whole.nbytes > 16 << 20
    for i in range(0, len(x), 5):
        assert_same_bytes(whole[i : i + 1], backward(g[i : i + 1], x[i : i + 1], state))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("window", "shape"),
    [
        ((2, 2, 2, 2), (64, 64, 27)),
        ((2, 2, 2, 2), (65, 63, 32)),  # pixels are whole cache lines
        ((2, 2, 3, 3), (65, 64, 32)),
        ((9, 9, 9, 9), (64, 64, 32)),
        ((3, 3, 2, 2), (64, 64, 32)),
        ((3, 3, 1, 1), (8, 8, 1024)),  # columns are whole pages
    ],
    ids=str,
)
def test_max_pooling_gradients(dtype, window, shape, device, rng):
    forward = mg.PoolingMax(*window, device=device)
    backward = mg.PoolingMaxGradient(*window, device=device)
    samples = (17 << 20) // (np.dtype(dtype).itemsize * math.prod(shape)) + 1
    x = rng.standard_normal((samples, *shape)).astype(dtype)
    y, state = forward(x, with_state=True)
    g = rng.standard_normal(y.shape).astype(dtype)
    whole = backward(g, x, state)
    assert whole.nbytes > 16 << 20
    for i in range(0, len(x), 5):
        _, own = forward(x[i : i + 1], with_state=True)
        assert_same_bytes(whole[i : i + 1], backward(g[i : i + 1], x[i : i + 1], own))


@pytest.mark.parametrize("window", [(5, 5, 1, 1), (4, 4, 3, 3)], ids=str)
def test_max_pooling_gradients_of_many_channels_of_one_image(window, device, rng):
    forward = mg.PoolingMax(*window, device=device)
    backward = mg.PoolingMaxGradient(*window, device=device)
    x = rng.standard_normal((1, 92, 90, 520)).astype(np.float32)
    y, state = forward(x, with_state=True)
    g = rng.standard_normal(y.shape).astype(np.float32)
    whole = backward(g, x, state)
    assert whole.nbytes > 16 << 20
    for i in range(0, 520, 65):
        some = (..., slice(i, i + 65))
        _, own = forward(x[some], with_state=True)
        assert_same_bytes(whole[some], backward(g[some], x[some], own))


@pytest.mark.parametrize(
    ("dtype", "samples"), [(np.float32, 40), (np.float32, 110), (np.float16, 90)]
)
def test_depthwise_windows_over_a_large_batch(dtype, samples, device, rng):
    """Where results go past the caches, loops may go another way."""
    weights = rng.standard_normal((32, 3, 3)).astype(np.float32)
    descriptor = mg.DepthWiseConvolutionDescriptor(
        3, 3, input_feature_channels=32, output_feature_channels=32
    )
    source = mg.ArrayConvolutionDataSource(weights, descriptor=descriptor)
    convolution = mg.Convolution(source, device=device)
    x = rng.standard_normal((samples, 64, 64, 32)).astype(dtype)
    whole = convolution(x)
    assert whole.nbytes > 16 << 20
    for i in range(0, len(x), 3):
        assert_same_bytes(whole[i : i + 1], convolution(x[i : i + 1]))


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_depthwise_weights_of_large_images(taps, stride, device, rng):
    """Few rows are summed at a time, which the height is no multiple of."""
    channels = 96
    size = 54 * stride + 1, 77 * stride
    window = dict.fromkeys(("stride_in_pixels_x", "stride_in_pixels_y"), stride)
    descriptor = mg.DepthWiseConvolutionDescriptor(
        taps, taps, input_feature_channels=channels, output_feature_channels=channels, **window
    )
    source = mg.ArrayConvolutionDataSource(
        np.zeros((channels, taps, taps), np.float32), descriptor=descriptor
    )
    forward = mg.Convolution(source, device=device)
    pad = taps // 2
    forward.padding = mg.ExplicitPadding(pad, pad, pad, pad)
    # Integers, whose sums are exact in any order.
    x = rng.integers(-8, 9, (6, *size, channels)).astype(np.float32)
    y, state = forward(x, with_state=True)
    g = rng.integers(-8, 9, y.shape).astype(np.float32)
    assert x.nbytes + g.nbytes > 16 << 20
    mg.ConvolutionGradient(source, device=device)(g, x, state)
    padded = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
    rows, columns = (n * stride for n in y.shape[1:3])
    sums = [
        np.einsum("nhwc,nhwc->c", g, padded[:, q : q + rows : stride, p : p + columns : stride])
        for q in range(taps)
        for p in range(taps)
    ]
    weights = state.gradient_for_weights.to_numpy().reshape(channels, -1)
    np.testing.assert_array_equal(weights, np.stack(sums, axis=1))
    np.testing.assert_array_equal(state.gradient_for_biases.to_numpy(), g.sum((0, 1, 2)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_flat_windows_over_a_large_batch(dtype, device, rng):
    """Their axes are exchanged, so that a row of results is a column of an image."""
    channels, samples = 64, 2
    repeat = (18 << 20) // (samples * 17 * 17 * channels * np.dtype(dtype).itemsize)
    weights = rng.standard_normal((channels, 1, 7, channels), dtype=np.float32)
    descriptor = mg.ConvolutionDescriptor(
        7, 1, input_feature_channels=channels, output_feature_channels=channels
    )
    source = mg.ArrayConvolutionDataSource(weights, descriptor=descriptor)
    convolution = mg.Convolution(source, device=device)
    gradient = mg.ConvolutionGradient(source, device=device)
    gradient.gradient_option = mg.ConvolutionGradientOption.DATA
    shape = 17, 17, channels
    size = check_repeats(convolution, gradient, rng, shape, dtype, samples=samples, repeat=repeat)
    assert size > 16 << 20


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("window", "stride", "few", "many"),
    [
        (1, 1, 3, 64),  # many: the channels of what is large
        (1, 1, 5, 36),  # not whole cache lines
        (1, 2, 16, 32),
        (3, 1, 2, 16),
        (3, 2, 4, 48),
        (3, 1, 16, 32),  # fewer multiplications
        (3, 1, 16, 20),
    ],
)
def test_convolutions(dtype, window, stride, few, many, device, rng):
    """The forward pass to many channels, and the gradient of one that comes from many."""
    shape = (33, 62)
    samples = stride**2 * (33 << 20) // (np.dtype(dtype).itemsize * math.prod(shape) * many) + 3

    def kernels(sources, results):
        descriptor = mg.ConvolutionDescriptor(
            window, window, input_feature_channels=sources, output_feature_channels=results,
            stride_in_pixels_x=stride, stride_in_pixels_y=stride,
        )  # fmt: skip
        weights = rng.standard_normal((results, window, window, sources)).astype(np.float32)
        source = mg.ArrayConvolutionDataSource(weights, descriptor=descriptor)
        gradient = mg.ConvolutionGradient(source, device=device)
        gradient.gradient_option = mg.ConvolutionGradientOption.DATA
        return mg.Convolution(source, device=device), gradient

    forward, _ = kernels(few, many)
    x = rng.standard_normal((samples, *shape, few)).astype(dtype)
    whole = forward(x)
    assert whole.nbytes > 32 << 20
    for i in range(0, samples, 11):
        assert_same_bytes(whole[i : i + 1], forward(x[i : i + 1]))

    forward, backward = kernels(many, few)
    x = rng.standard_normal((samples, *shape, many)).astype(dtype)
    y, states = forward(x, with_state=True)
    g = rng.standard_normal(y.shape).astype(dtype)
    whole = backward(g, x, states)
    assert whole.nbytes > 32 << 20
    for i in range(0, samples, 11):
        _, own = forward(x[i : i + 1], with_state=True)
        assert_same_bytes(whole[i : i + 1], backward(g[i : i + 1], x[i : i + 1], own))


@pytest.mark.parametrize(("sources", "results"), [(32, 64), (24, 40), (48, 33)])
def test_weight_gradients(sources, results, device, rng):
    """Sums of small integers are exact, in whatever order the caches like best."""
    samples, height, width = 3, 301, 420
    x = grid(rng, (samples, height, width, sources))
    g = grid(rng, (samples, height, width, results))
    assert x.nbytes + g.nbytes > 64 << 20
    source = mg.ArrayConvolutionDataSource(np.ones((results, 1, 1, sources), np.float32))
    _, state = mg.Convolution(source, device=device)(x, with_state=True)
    backward = mg.ConvolutionGradient(source, device=device)
    backward.gradient_option = mg.ConvolutionGradientOption.WEIGHTS_AND_BIAS
    backward(g, x, state)
    weights = state.gradient_for_weights.to_numpy().reshape(results, sources)
    assert_exact(weights, g.reshape(-1, results).T @ x.reshape(-1, sources))
    assert_exact(state.gradient_for_biases.to_numpy(), g.sum(axis=(0, 1, 2), dtype=float))


@pytest.mark.parametrize(
    ("samples", "dtype"), [(9, np.float32), (40, np.float32), (40, np.float16), (150, np.float16)]
)
def test_more_weights_than_a_near_cache_keeps(samples, dtype, device, rng):
    """Whole batches go part by part of a long sum, to the bytes that each image gets at once."""
    sources, results = 2600, 3217  # no multiples of a part or a vector
    weights = rng.standard_normal((results, 1, 1, sources)).astype(np.float32)
    biases = rng.standard_normal(results)
    source = mg.ArrayConvolutionDataSource(weights, biases)
    clamped = mg.ConvolutionDescriptor(
        1,
        1,
        input_feature_channels=sources,
        output_feature_channels=results,
        fused_neuron_descriptor=mg.NeuronDescriptor(mg.NeuronType.RELU),
    )
    forward = mg.FullyConnected(source, device=device)
    backward = mg.FullyConnectedGradient(source, device=device)
    fused = mg.FullyConnected(
        mg.ArrayConvolutionDataSource(weights, biases, descriptor=clamped), device=device
    )
    x = rng.standard_normal((samples, 1, 1, sources)).astype(dtype)
    y, states = forward(x, with_state=True)
    g = rng.standard_normal(y.shape).astype(dtype)
    whole = backward(g, x, states)
    assert y.dtype == whole.dtype == dtype
    for i in range(0, samples, 4):
        own, state = forward(x[i : i + 1], with_state=True)
        assert_same_bytes(y[i : i + 1], own)
        assert_same_bytes(whole[i : i + 1], backward(g[i : i + 1], x[i : i + 1], state))
    np.testing.assert_array_equal(fused(x), np.maximum(y, 0))


@pytest.mark.parametrize("clamps", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 24, 600])
def test_sums_over_a_large_image(channels, clamps, device, rng):
    """Parts of an image are added up in whatever order the caches like best."""
    kernel = mg.Add(device=device)
    kernel.secondary_stride_in_pixels_x = kernel.secondary_stride_in_pixels_y = 0
    kernel.maximum_value = 5 if clamps else 6
    height, width = 701, 4200 // channels
    x, g = grid(rng, (2, 1, height, width, channels))
    y = np.ones((1, 1, 1, channels), np.float32)
    _, states = kernel(x, y, with_state=True)
    sums = mg.AddGradient(True, device=device)
    passed = np.where(x + y < kernel.maximum_value, g, 0)
    assert (passed != g).any() == clamps
    expected = passed.sum(axis=(1, 2), dtype=float, keepdims=True)
    assert_exact(sums(g, y, states), expected, nonzero=0)


def test_a_region_of_a_large_image(device, rng):
    """Only the clip rectangle is written, to the byte."""
    neuron = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.RELU, a=0.25), device=device)
    neuron.clip_rect = mg.Region((3, 5), (250, 1000))
    x = rng.standard_normal((19, 1000, 250, 1)).astype(np.float32)
    destinations = empty(device, (19, 1010, 259, 1), fill=-1)
    with Work(device) as work:
        neuron.encode(work.buffer, filled(device, x), work.result(destinations))
    expected = np.full((19, 1010, 259, 1), -1, np.float32)
    expected[:, 5:1005, 3:253] = np.maximum(x, 0.25 * x)
    assert_same_bytes(read(destinations), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_large_image_of_many_channels(dtype, device, rng):
    """Windows over pixels go block by block of channels, each of which is as it is alone."""
    shape, some = (1, 112, 230, 352), 32
    kernels = {
        "spatial": (mg.SpatialNormalization, mg.SpatialNormalizationGradient),
        "contrast": (mg.LocalContrastNormalization, mg.LocalContrastNormalizationGradient),
    }
    x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    assert x.nbytes > 16 << 20
    for name, (forward, backward) in kernels.items():
        size = 5 if name == "spatial" else 9
        kernel, gradient = forward(size, size, device=device), backward(size, size, device=device)
        y, states = kernel(x, with_state=True)
        dx = gradient(g, x, states)
        for c in range(0, shape[-1], 5 * some):
            part = slice(c, c + some)
            own, own_states = kernel(np.ascontiguousarray(x[..., part]), with_state=True)
            assert_same_bytes(np.ascontiguousarray(y[..., part]), own)
            own = gradient(
                np.ascontiguousarray(g[..., part]), np.ascontiguousarray(x[..., part]), own_states
            )
            assert_same_bytes(np.ascontiguousarray(dx[..., part]), own)
