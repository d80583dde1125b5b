"""A batch is one call into C++, whatever its length: nothing in Python looks at each image."""

import gc
import sys
from collections import Counter
from pathlib import Path

import mpsgrad as mg
import numpy as np
import pytest

FAMILIES = Path(__file__).parents[2] / "csrc" / "kernels"


class Cost:
    """What Python does between `with` and its end: calls into the extension, and instructions.

    Equal instructions mean that no loop, comprehension or property access depends on the batch.
    """

    def __init__(self):
        self.calls = Counter()
        self.instructions = 0

    def _call(self, _frame, event, function):
        if event == "c_call" and getattr(function, "__module__", None) == "mpsgrad._core":
            self.calls[function.__name__] += 1

    def _instruction(self, frame, event, _argument):
        frame.f_trace_opcodes = True
        self.instructions += event == "opcode"
        return self._instruction

    def of(self, run):
        """Measure a call of `run`; return what it returns."""
        before = sys.gettrace(), sys.getprofile()
        collecting = gc.isenabled()
        gc.disable()  # finalizers of what other tests have left are not the encode's
        sys.settrace(self._instruction)
        sys.setprofile(self._call)
        try:
            return run()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
            if collecting:
                gc.enable()


class Batch:
    """A command buffer, a batch of images for it, and what each encode of theirs cost."""

    def __init__(self, device, images):
        self.device, self.length = device, images
        self.buffer = device.command_queue().command_buffer()
        self.costs = {}

    def images(self, value=1.0):
        """Return a batch of images of 2x2x4."""
        pixels = np.full((self.length, 2, 2, 4), value, np.float32)
        return mg.ImageBatch.from_array(self.device, pixels)

    def encode(self, name, run):
        """Run an encode, written as a plain call so that the interpreter reports it; count."""
        cost = Cost()
        result = cost.of(lambda: run(self.buffer))
        self.costs[name] = (cost.calls, cost.instructions)
        return result

    def pair(self, forward, gradient, *, of_result=False):
        """Encode both, into images of their own and into given ones."""
        source, given, incoming, out = self.images(), self.images(0), self.images(), self.images()
        result, states = self.encode(
            "forward",
            lambda to: forward.encode_batch(to, source, allocator=mg.DEFAULT, with_state=True),
        )
        others = forward.result_state_batch(source, given)
        self.encode(
            "forward into images",
            lambda to: forward.encode_batch(to, source, given, destination_states=others),
        )
        second = result if of_result else source
        self.encode(
            "gradient",
            lambda to: gradient.encode_batch(to, incoming, second, states, allocator=mg.DEFAULT),
        )
        self.encode(
            "gradient into images",
            lambda to: gradient.encode_batch(to, incoming, second, states, out, configure=False),
        )


def convolution(batch):
    source = mg.ArrayConvolutionDataSource(np.ones((4, 1, 1, 4), np.float32))
    kernels = (
        kind(source, device=batch.device) for kind in (mg.Convolution, mg.ConvolutionGradient)
    )
    batch.pair(*kernels)


def pooling(batch):
    batch.pair(
        mg.PoolingAverage(1, 1, 1, 1, device=batch.device),
        mg.PoolingAverageGradient(1, 1, 1, 1, device=batch.device),
    )


def neuron(batch):
    tanh = mg.NeuronDescriptor(mg.NeuronType.TANH, 1.0, 1.0)
    batch.pair(mg.Neuron(tanh, device=batch.device), mg.NeuronGradient(tanh, device=batch.device))


def softmax(batch):
    batch.pair(
        mg.SoftMax(device=batch.device), mg.SoftMaxGradient(device=batch.device), of_result=True
    )


def dropout(batch):
    batch.pair(
        mg.Dropout(0.5, 1, device=batch.device), mg.DropoutGradient(0.5, device=batch.device)
    )


def reshape(batch):
    batch.pair(mg.Pad(device=batch.device), mg.PadGradient(device=batch.device))
    kernel, box, source = (
        mg.Reshape(device=batch.device),
        mg.Slice(device=batch.device),
        batch.images(),
    )
    batch.encode(
        "reshape",
        lambda to: kernel.encode_batch(
            to,
            source,
            allocator=mg.DEFAULT,
            reshaped_width=4,
            reshaped_height=1,
            reshaped_feature_channels=4,
        ),
    )
    batch.encode("slice", lambda to: box.encode_batch(to, source, allocator=mg.DEFAULT))


def instance_normalization(batch):
    source = mg.ArrayInstanceNormalizationDataSource(number_of_feature_channels=4)
    batch.pair(
        mg.InstanceNormalization(source, device=batch.device),
        mg.InstanceNormalizationGradient(device=batch.device),
    )


def group_normalization(batch):
    source = mg.ArrayGroupNormalizationDataSource(number_of_feature_channels=4, number_of_groups=2)
    batch.pair(
        mg.GroupNormalization(source, device=batch.device),
        mg.GroupNormalizationGradient(device=batch.device),
    )


def local_normalization(batch):
    batch.pair(
        mg.CrossChannelNormalization(3, device=batch.device),
        mg.CrossChannelNormalizationGradient(3, device=batch.device),
    )


def batch_normalization(batch):
    device, source, gradients = batch.device, batch.images(), batch.images()
    data_source = mg.ArrayBatchNormalizationDataSource(number_of_feature_channels=4)
    forward = mg.BatchNormalization(data_source, device=device)
    result = batch.images()
    state = forward.result_state(source[0], result[0])
    statistics = mg.BatchNormalizationStatistics(device=device)
    sums = mg.BatchNormalizationStatisticsGradient(device=device)
    gradient = mg.BatchNormalizationGradient(device=device)
    batch.encode("statistics", lambda to: statistics.encode_batch(to, source, state))
    batch.encode(
        "forward",
        lambda to: forward.encode_batch(to, source, result, batch_normalization_state=state),
    )
    batch.encode("sums", lambda to: sums.encode_batch(to, gradients, source, state))
    batch.encode(
        "gradient",
        lambda to: gradient.encode_batch(to, gradients, source, state, allocator=mg.DEFAULT),
    )


def arithmetic(batch):
    first, second = batch.images(), batch.images(2)
    forward = mg.Multiply(device=batch.device)
    gradient = mg.MultiplyGradient(False, device=batch.device)
    result, states = batch.encode(
        "forward",
        lambda to: forward.encode_batch(to, first, second, allocator=mg.DEFAULT, with_state=True),
    )
    batch.encode(
        "gradient",
        lambda to: gradient.encode_batch(to, result, second, states, allocator=mg.DEFAULT),
    )


def loss(batch):
    device, predictions, wanted = batch.device, batch.images(), batch.images(0)
    descriptor = mg.LossDescriptor(mg.LossType.MEAN_SQUARED_ERROR, mg.ReductionType.SUM)
    targets = np.zeros((batch.length, 2, 2, 4), np.float32)
    labels = mg.LossLabels.batch(device, targets, loss_image_size=(1, 1, 1))
    losses = mg.ImageBatch.from_array(device, np.zeros((batch.length, 1, 1, 1), np.float32))
    both = mg.Loss(descriptor, device=device)
    forward = mg.ForwardLoss(descriptor, device=device)
    gradient = mg.LossGradient(descriptor, device=device)
    batch.encode(
        "loss", lambda to: both.encode_batch(to, predictions, labels, allocator=mg.DEFAULT)
    )
    batch.encode("forward", lambda to: forward.encode_batch(to, predictions, wanted, None, losses))
    batch.encode(
        "gradient",
        lambda to: gradient.encode_batch(
            to, losses, predictions, wanted, None, allocator=mg.DEFAULT
        ),
    )


def upsampling(batch):
    batch.pair(
        mg.UpsamplingBilinear(1, 1, device=batch.device),
        mg.UpsamplingBilinearGradient(1, 1, device=batch.device),
    )


def gram_matrix(batch):
    """Of two rows of pixels a matrix of one row."""
    forward = mg.GramMatrixCalculation(device=batch.device)
    gradient = mg.GramMatrixCalculationGradient(device=batch.device)
    source = batch.images()
    matrices, states = batch.encode(
        "forward",
        lambda to: forward.encode_batch(to, source, allocator=mg.DEFAULT, with_state=True),
    )
    batch.encode(
        "gradient",
        lambda to: gradient.encode_batch(to, matrices, source, states, allocator=mg.DEFAULT),
    )


def reduction(batch):
    rows = mg.ReduceRowMean(device=batch.device)
    products = mg.ReduceFeatureChannelsAndWeightsSum(device=batch.device)
    source, weights = batch.images(), batch.images()
    batch.encode("one source", lambda to: rows.encode_batch(to, source, allocator=mg.DEFAULT))
    batch.encode(
        "two sources",
        lambda to: products.encode_batch(to, source, weights, allocator=mg.DEFAULT),
    )


def resize(batch):
    """Of two regions, two of Apple's kernels."""
    kernel = mg.ResizeBilinear(3, 3, device=batch.device)
    crop = mg.CropAndResizeBilinear(2, 2, [(0, 0, 1, 1), (0, 0, 0.5, 1)], device=batch.device)
    sample = mg.GridSample(device=batch.device)
    sample.secondary_source_feature_channel_max_count = 2
    source, grid = batch.images(), batch.images()
    batch.encode("resize", lambda to: kernel.encode_batch(to, source, allocator=mg.DEFAULT))
    batch.encode("crop", lambda to: crop.encode_batch(to, source, allocator=mg.DEFAULT))
    batch.encode("grid", lambda to: sample.encode_batch(to, source, grid, allocator=mg.DEFAULT))


CASES = [
    convolution,
    pooling,
    neuron,
    softmax,
    dropout,
    upsampling,
    resize,
    reshape,
    gram_matrix,
    reduction,
    batch_normalization,
    instance_normalization,
    group_normalization,
    local_normalization,
    arithmetic,
    loss,
]


def costs_of(case, device, images):
    batch = Batch(device, images)
    case(batch)
    batch.buffer.commit()
    batch.buffer.wait_until_completed()
    return batch.costs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_long_batch_costs_as_much_python_as_one_image(device, case):
    one, many = (costs_of(case, device, images) for images in (1, 64))
    assert len(one) >= 2
    for calls, _ in one.values():
        assert calls == {"encode_batch": 1}
    assert many == one


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_so_do_calls_with_arrays(device, dtype):
    source = mg.ArrayGroupNormalizationDataSource(number_of_feature_channels=4, number_of_groups=2)
    forward = mg.GroupNormalization(source, device=device)
    gradient = mg.GroupNormalizationGradient(device=device)

    def costs(images):
        x = np.ones((images, 2, 2, 4), dtype)
        passes = Cost(), Cost()
        y, states = passes[0].of(lambda: forward(x, with_state=True))
        passes[1].of(lambda: gradient(y, x, states))
        return [(cost.calls, cost.instructions) for cost in passes]

    costs(1)  # the first call makes the device's queue
    assert costs(64) == costs(1)


def test_what_is_counted(device):
    """A loop over images shows, in calls and in instructions, and so does a property of each."""
    images = mg.ImageBatch.from_array(device, np.ones((3, 1, 1, 1), np.float32))
    cost = Cost()
    cost.of(lambda: [image.read() for image in images])
    assert cost.calls["read"] == 3
    counts = []
    for part in (list(images)[:1], list(images)):
        cost = Cost()
        cost.of(lambda part=part: [image.width for image in part])
        counts.append(cost.instructions)
    assert counts[0] < counts[1]


def test_every_family_with_batches_is_counted():
    families = {folder.name for folder in FAMILIES.iterdir() if folder.is_dir()}
    assert {case.__name__ for case in CASES} >= families - {"optimizer"}  # which has no images
