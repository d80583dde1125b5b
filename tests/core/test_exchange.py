"""Arrays of other libraries in place of NumPy's, and our objects in place of arrays."""

import array

import mpsgrad as mg
import numpy as np
import pytest

from tests.core.support import counting, image_of, linear, linear_gradient
from tests.core.test_arrays import Exporter


def ways(values):
    """The same numbers as an array, a memoryview, and by DLPack alone."""
    return {"ndarray": values, "memoryview": memoryview(values), "DLPack": Exporter(values)}


WAYS = list(ways(np.zeros(1)))


@pytest.mark.parametrize("way", WAYS)
def test_everything_that_takes_an_array_takes_others(device, way):
    def given(values):
        return ways(values)[way]

    x = counting(2, 3, 4, 5)
    batch = mg.ImageBatch.from_array(device, given(x))
    assert np.array_equal(batch.to_array(), x)
    assert np.shares_memory(batch.to_array(), x) == (device.kind == "cpu")
    image = image_of(device, np.zeros_like(x[0]))
    image.write(given(x[0]))
    assert np.array_equal(image.read(), x[0])
    row, table = counting(6), counting(3, 4)
    vector = mg.Vector.from_array(device, given(row))
    matrix = mg.Matrix.from_array(device, given(table))
    assert np.array_equal(vector.to_numpy(), row)
    assert np.array_equal(matrix.to_numpy(), table)
    if device.kind == "cpu":
        row[0] = 7
        assert vector.to_numpy()[0] == 7
    doubled = 2 * row
    vector.write(given(doubled))
    assert np.array_equal(vector.to_numpy(), doubled)
    buffer = mg.Buffer(device, given(table))
    assert np.array_equal(buffer.to_numpy(), table.ravel())
    buffer.write(given(doubled), offset=4)
    assert np.array_equal(buffer.to_numpy()[1:7], doubled)
    labels = mg.LossLabels(device, given(x[0]), given(x[1]))
    assert np.array_equal(labels.labels_image.read(), x[0])
    assert np.array_equal(mg.LossLabels.batch(device, given(x))[1].labels_image.read(), x[1])


@pytest.mark.parametrize("way", WAYS)
def test_calls_take_others_and_write_into_them(device, way):
    x, y, dx = counting(2, 3, 4, 5), np.zeros((2, 3, 4, 5), np.float32), np.zeros((2, 3, 4, 5), "f")
    kernel, gradient = linear(device, 2.0), linear_gradient(device, 2.0)
    result, states = kernel(ways(x)[way], with_state=True, out=ways(y)[way])
    assert np.array_equal(y, 2 * x)
    assert np.shares_memory(result, y)
    gradient(ways(y)[way], ways(x)[way], states, out=ways(dx)[way])
    assert np.array_equal(dx, 4 * x)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        kernel(x, out=ways(y)[way])


@pytest.mark.parametrize("way", WAYS)
def test_data_sources_take_others(device, way):
    weights, numbers = counting(5, 1, 1, 4), counting(5)
    source = mg.ArrayConvolutionDataSource(ways(weights)[way], ways(numbers)[way])
    assert np.shares_memory(source.weights_array, weights)
    assert np.shares_memory(source.bias_array, numbers)
    assert np.array_equal(mg.Convolution(source, device=device)(counting(1, 1, 4))[0, 0, 0], 31)
    for kind in ("Batch", "Instance"):
        own = getattr(mg, f"Array{kind}NormalizationDataSource")(ways(numbers)[way])
        assert np.shares_memory(own.gamma, numbers)


def test_arrays_of_the_standard_library(device):
    numbers = array.array("f", [1, 2, 3])
    assert mg.Vector.from_array(device, numbers).to_numpy().tolist() == [1, 2, 3]
    assert mg.Buffer(device, numbers).to_numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_written_is_refused(device, way):
    fixed = counting(6)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="Vector: array must be writable"):
        mg.Vector.from_array(device, ways(fixed)[way])
    assert mg.ImageBatch.from_array(device, ways(fixed.reshape(1, 1, 1, 6))[way])[0].width == 1


def test_what_an_exporter_raises_comes_through(device):
    class Refuses:
        def __dlpack__(self, **_):
            raise BufferError("not now")

        def __dlpack_device__(self):
            return (1, 0)

    for take in (mg.ImageBatch.from_array, mg.Vector.from_array, mg.Buffer, mg.LossLabels):
        with pytest.raises(BufferError, match="not now"):
            take(device, Refuses())
    with pytest.raises(BufferError, match="Neuron: source gives no array by DLPack: not now"):
        linear(device)(Refuses())
    words = "ArrayConvolutionDataSource: weights gives no array by DLPack: not now"
    with pytest.raises(BufferError, match=words):
        mg.ArrayConvolutionDataSource(Refuses())


def test_vectors_and_batches_are_arrays(device):
    x = counting(2, 3, 4, 5)
    objects = {
        mg.Vector.from_array(device, x.reshape(-1).copy()): x.reshape(-1),
        mg.Matrix.from_array(device, x.reshape(6, 20).copy()): x.reshape(6, 20),
        mg.ImageBatch.from_array(device, x.copy()): x,
    }
    for owner, values in objects.items():
        shared = np.from_dlpack(owner)
        assert np.array_equal(shared, values)
        assert np.array_equal(np.asarray(owner), values)
        assert np.asarray(owner, np.float64).dtype == np.float64
        if device.kind == "cpu":
            shared.reshape(-1)[0] = 9
            assert np.asarray(owner).reshape(-1)[0] == 9
            assert np.shares_memory(np.asarray(owner), shared)
            assert not np.shares_memory(np.array(owner, copy=True), shared)


def test_batches_of_separate_images_are_copied_unless_that_is_refused(device):
    x = counting(2, 3, 4, 5)
    batch = mg.ImageBatch([image_of(device, one) for one in x])
    assert np.array_equal(np.from_dlpack(batch), x)
    with pytest.raises(BufferError, match="ImageBatch: an array of these images is a copy, but"):
        batch.__dlpack__(copy=False)
    with pytest.raises(ValueError, match="ImageBatch: an array of these images is a copy, but"):
        batch.__array__(copy=False)
    for images in (batch, batch[0], mg.ImageBatch.allocate(device, batch[0].descriptor, 2)):
        with pytest.raises(TypeError, match="out must be an ndarray, got Image"):
            linear(device)(x, out=images)


def test_an_array_is_asked_for_where_dlpack_fails(device):
    class Both:
        def __dlpack__(self, **_):
            raise BufferError("not now")

        def __dlpack_device__(self):
            return (1, 0)

        def __array__(self, dtype=None, copy=None):
            return counting(2, 3, 4)

    assert np.array_equal(linear(device, 2.0)(Both()), 2 * counting(2, 3, 4))


def test_images_are_arrays_that_are_copies(device):
    x = counting(3, 4, 5)
    image = image_of(device, x)
    assert np.array_equal(np.asarray(image), x)
    assert np.asarray(image, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="Image: an array of its texels is always a copy"):
        image.__array__(copy=False)


def test_nothing_is_exported_before_its_work_is_done(device, queue):
    x = counting(2, 3, 4, 5)
    command_buffer = queue.command_buffer()
    kernel = mg.Neuron(mg.NeuronDescriptor(mg.NeuronType.ABSOLUTE), device=device)
    batch = kernel.encode_batch(
        command_buffer, mg.ImageBatch.from_array(device, x), allocator=mg.DEFAULT
    )
    mg.synchronize(batch, command_buffer)
    command_buffer.commit()
    for look in (np.asarray, np.from_dlpack):
        with pytest.raises(
            RuntimeError, match="Image is written by a command buffer that nobody has waited for"
        ):
            look(batch)
    command_buffer.wait_until_completed()
    assert np.array_equal(np.from_dlpack(batch), x)


def test_classes_are_no_labels(device):
    with pytest.raises(TypeError, match=r"must be float32, got int64; mg\.one_hot\("):
        mg.LossLabels(device, np.zeros((1, 1, 1), np.int64))
