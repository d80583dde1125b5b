"""float16 images of the CPU device give what float32 images of the same numbers give, rounded once.

Loops take float16 as it lies and convert in registers, a tile at a time; what is left of a run goes
another way, as do images with gaps, and the numbers must not tell which.
"""

import mpsgrad as mg
import numpy as np
import pytest

from tests.tolerance import assert_same_bytes

DEVICE = mg.Device("cpu")
SHAPES = [(2, 5, 7, c) for c in (1, 2, 3, 4, 5, 8, 12, 31, 32, 36, 64, 100, 260, 516)]
SHAPES += [(3, 33, 40, 8), (2, 9, 8, 2048)]  # several runs of a row of pixels; of columns


def rounded(values):
    return np.asarray(values, np.float32).astype(np.float16)


def numbers(rng, shape, *, specials=True):
    """Random float16 numbers, some of them denormal, infinite or equal."""
    x = rng.standard_normal(shape).astype(np.float16)
    flat = x.reshape(-1)
    flat[::11] *= np.float16(1e-5)
    if specials:
        flat[5::997] = np.inf
        flat[8::991] = -np.inf
    flat[3::29] = flat[0]
    return x


def both(function, *arrays):
    """Call a function of arrays with the float16 ones, and with the same numbers in float32."""
    return function(*arrays), function(*(array.astype(np.float32) for array in arrays))


def assert_rounded(function, *arrays):
    with np.errstate(over="ignore", invalid="ignore"):
        narrow, wide = both(function, *arrays)
        assert narrow.dtype == np.float16
        assert_same_bytes(np.isnan(narrow), np.isnan(wide))
        assert_same_bytes(np.nan_to_num(narrow), np.nan_to_num(rounded(wide)))


def neuron(kind, channels):
    if kind == "PRELU":
        slopes = np.linspace(-1, 1, channels, dtype=np.float32)
        return mg.NeuronDescriptor(mg.NeuronType.PRELU, data=slopes)
    return mg.NeuronDescriptor(getattr(mg.NeuronType, kind), a=0.3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["RELU", "PRELU", "GELU", "SIGMOID"])
def test_neurons(kind, shape, rng):
    function = neuron(kind, shape[-1])
    forward = mg.Neuron(function, device=DEVICE)
    backward = mg.NeuronGradient(function, device=DEVICE)
    x, g = numbers(rng, shape), numbers(rng, shape, specials=False)
    assert_rounded(forward, x)
    assert_rounded(lambda g, x: backward(g, x, forward(x, with_state=True)[1]), g, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["SoftMax", "LogSoftMax"])
def test_softmax(kind, shape, rng):
    forward = getattr(mg, kind)(device=DEVICE)
    backward = getattr(mg, f"{kind}Gradient")(device=DEVICE)
    x, g = numbers(rng, shape, specials=False), numbers(rng, shape, specials=False)
    assert_rounded(forward, x)
    y = forward(x)
    assert_rounded(
        lambda g, y: backward(
            g, forward_result=y, state=forward(x.astype(y.dtype), with_state=True)[1]
        ),
        g,
        y,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["Add", "Subtract", "Multiply", "Divide", "Compare"])
def test_arithmetic(kind, shape, rng):
    kernel = getattr(mg, kind)(device=DEVICE)
    kernel.minimum_value, kernel.maximum_value = -1.5, 1.25
    if kind == "Compare":
        kernel.comparison_type = mg.ComparisonType.LESS_OR_EQUAL
    assert_rounded(kernel, numbers(rng, shape), numbers(rng, shape))


BROADCASTS = ["nothing", "pixels", "columns", "rows"]


@pytest.mark.parametrize("broadcast", BROADCASTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["Add", "Multiply"])
def test_gradients_of_arithmetic(kind, shape, broadcast, rng):
    forward = getattr(mg, kind)(device=DEVICE)
    forward.minimum_value, forward.maximum_value = -1.5, 1.25
    batch, height, width, channels = shape
    if broadcast in ("pixels", "columns"):
        forward.secondary_stride_in_pixels_x = 0
        width = 1
    if broadcast in ("pixels", "rows"):
        forward.secondary_stride_in_pixels_y = 0
        height = 1
    x = numbers(rng, shape, specials=False)
    y = numbers(rng, (batch, height, width, channels), specials=False)
    g = numbers(rng, shape, specials=False)
    for secondary in (False, True):
        backward = getattr(mg, f"{kind}Gradient")(secondary, device=DEVICE)
        if not secondary and kind == "Multiply":  # reads y as the forward kernel did
            backward.secondary_stride_in_pixels_x = forward.secondary_stride_in_pixels_x
            backward.secondary_stride_in_pixels_y = forward.secondary_stride_in_pixels_y

        def run(g, x, y, backward=backward, secondary=secondary):
            _, state = forward(x, y, with_state=True)
            source = y if secondary != (kind == "Multiply") else x
            return backward(g, source, state)

        assert_rounded(run, g, x, y)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["PoolingMax", "PoolingAverage", "PoolingL2Norm"])
@pytest.mark.parametrize("window", [(2, 2), (3, 2), (3, 1)], ids=str)
def test_pooling(kind, window, shape, rng):
    sizes = {"stride_in_pixels_x": window[1], "stride_in_pixels_y": window[1], "device": DEVICE}
    forward = getattr(mg, kind)(window[0], window[0], **sizes)
    backward = getattr(mg, f"{kind}Gradient")(window[0], window[0], **sizes)
    x = numbers(rng, shape, specials=False)
    assert_rounded(forward, x)
    g = numbers(rng, forward(x).shape, specials=False)
    assert_rounded(lambda g, x: backward(g, x, forward(x, with_state=True)[1]), g, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [None, "RELU", "TANH"])
def test_batch_normalization(kind, shape, rng):
    channels = shape[-1]
    fused = [] if kind is None else [mg.NeuronDescriptor(getattr(mg.NeuronType, kind), a=0.3, b=1)]
    source = mg.ArrayBatchNormalizationDataSource(
        gamma=rng.uniform(0.5, 2, channels), beta=rng.standard_normal(channels), epsilon=0.1
    )
    forward = mg.BatchNormalization(source, *fused, device=DEVICE)
    sums = mg.BatchNormalizationStatisticsGradient(*fused, device=DEVICE)
    backward = mg.BatchNormalizationGradient(*fused, device=DEVICE)
    x, g = numbers(rng, shape, specials=False), numbers(rng, shape, specials=False)
    states = []

    def train(g, x):
        _, state = forward(x, with_state=True)
        sums(g, x, state)
        states.append(state)
        return backward(g, x, state)

    assert_rounded(lambda x: forward(x, with_state=True)[0], x)
    assert_rounded(train, g, x)
    if kind != "TANH":  # sums of other neurons are cut otherwise where numbers are converted first
        for name in ("mean", "variance", "gradient_for_gamma", "gradient_for_beta"):
            narrow, wide = (np.asarray(getattr(state, name)) for state in states)
            assert_same_bytes(narrow, wide)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[-1] % 4 == 0], ids=str)
@pytest.mark.parametrize("groups", [1, 4, None], ids=lambda n: f"{n or 'channels'}")
def test_group_normalization(groups, shape, rng):
    channels = shape[-1]
    source = mg.ArrayGroupNormalizationDataSource(
        gamma=rng.uniform(0.5, 2, channels),
        beta=rng.standard_normal(channels),
        number_of_groups=groups or channels,
        epsilon=0.1,
    )
    forward = mg.GroupNormalization(source, device=DEVICE)
    backward = mg.GroupNormalizationGradient(device=DEVICE)
    x, g = numbers(rng, shape, specials=False), numbers(rng, shape, specials=False)
    assert_rounded(forward, x)
    assert_rounded(lambda g, x: backward(g, x, forward(x, with_state=True)[1]), g, x)
