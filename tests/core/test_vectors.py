"""Vectors and matrices: layouts, sharing memory with NumPy, what is invalid."""

import gc
import re

import mpsgrad as mg
import numpy as np
import pytest

from tests.rejects import rejects
from tests.tolerance import assert_exact


def test_vector_on_a_device(device):
    v = mg.Vector(device, mg.VectorDescriptor(5))
    assert (v.length, v.vectors, v.vector_bytes, v.offset) == (5, 1, 20, 0)
    assert v.shape == (5,)
    assert v.data_type == mg.DataType.FLOAT32
    assert v.device == device
    assert_exact(v.to_numpy(), np.zeros(5))
    v.write(np.arange(5, dtype=np.float32))
    assert_exact(v.to_numpy(), np.arange(5))
    assert_exact(np.asarray(v), np.arange(5))
    assert_exact(v.data.to_numpy(), np.arange(5))
    assert repr(v) == f"Vector({device.kind}, (5,) float32)"


def test_vectors_and_strides(device):
    buffer = mg.Buffer(device, np.arange(20, dtype=np.float32))
    v = mg.Vector(buffer, mg.VectorDescriptor(3, 2, vector_bytes=28), 8)
    assert v.shape == (2, 3)
    assert_exact(v.to_numpy(), [[2, 3, 4], [9, 10, 11]])
    v.write(-v.to_numpy())
    assert_exact(buffer.to_numpy()[[2, 3, 4, 9, 10, 11]], [-2, -3, -4, -9, -10, -11])
    assert_exact(buffer.to_numpy()[5:9], [5, 6, 7, 8])


def test_matrices_and_strides(device):
    buffer = mg.Buffer(device, np.arange(40, dtype=np.float32))
    m = mg.Matrix(buffer, mg.MatrixDescriptor(2, 3, 2, row_bytes=16, matrix_bytes=48), 4)
    assert (m.rows, m.columns, m.matrices, m.row_bytes, m.matrix_bytes) == (2, 3, 2, 16, 48)
    expected = 1 + np.arange(2)[:, None, None] * 12 + np.arange(2)[:, None] * 4 + np.arange(3)
    assert_exact(m.to_numpy(), expected)
    assert m.shape == (2, 2, 3)
    one = mg.Matrix(device, mg.MatrixDescriptor(1, 3))
    assert one.shape == (1, 3)
    assert_exact(one.to_numpy(), np.zeros((1, 3)))


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
              "uint64", "bool", "complex64"]
)  # fmt: skip
def test_every_dtype_there_and_back(device, dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    for cls, part in ((mg.Vector, array[0]), (mg.Vector, array), (mg.Matrix, array)):
        made = cls.from_array(device, part)
        back = made.to_numpy()
        assert back.dtype == array.dtype
        assert_exact(back.real, part.real)
        assert back.flags.owndata


def test_arrays_are_used_in_place_on_the_cpu_device(device):
    array = np.zeros((4, 6), np.float32)
    m = mg.Matrix.from_array(device, array[1:3, 2:5])
    m.write(np.ones((2, 3), np.float32))
    assert_exact(m.to_numpy(), np.ones((2, 3)))
    if device.kind == "cpu":
        assert array.sum() == 6
        assert_exact(array[1:3, 2:5], np.ones((2, 3)))
        assert np.shares_memory(np.asarray(m), array)


def test_arrays_share_memory_unless_asked_not_to(device):
    vector = mg.Vector.from_array(device, np.arange(4, dtype=np.float32))
    np.asarray(vector, copy=False)[1] = 8
    np.array(vector)[2] = 7
    assert_exact(vector.to_numpy(), [0, 8, 2, 3])
    shared = vector.__array__(np.float32)
    shared[3] = 5
    assert vector.to_numpy()[3] == 5
    assert np.asarray(vector, dtype=np.float64).dtype == np.float64
    with rejects(ValueError, "Vector: another dtype than float32 needs a copy, but copy is False"):
        vector.__array__(np.float64, copy=False)


def test_the_array_outlives_its_name(device):
    v = mg.Vector.from_array(device, np.arange(1000, dtype=np.float32))
    assert_exact(v.to_numpy(), np.arange(1000))
    shared = np.asarray(v)
    del v
    assert_exact(shared, np.arange(1000))


def read_only():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


def misaligned():
    return np.zeros(17, np.uint8)[1:].view(np.float32)


FLOATS = np.zeros((4, 6), np.float32)
REJECTED = {
    "read only": (lambda d: mg.Vector.from_array(d, read_only()), ValueError, "must be writable"),
    "misaligned": (lambda d: mg.Vector.from_array(d, misaligned()), ValueError, "aligned"),
    "steps": (lambda d: mg.Vector.from_array(d, FLOATS[:, 0]), ValueError, "neighbours"),
    "backwards": (lambda d: mg.Matrix.from_array(d, FLOATS[::-1]), ValueError, "C order"),
    "transposed": (lambda d: mg.Matrix.from_array(d, FLOATS.T), ValueError, "neighbours"),
    "empty": (lambda d: mg.Vector.from_array(d, FLOATS[0, :0]), ValueError, "empty"),
    "axes": (lambda d: mg.Vector.from_array(d, np.zeros((1, 1, 1), np.float32)), ValueError,
             "must have 1 or 2 axes, got 3"),
    "float64": (lambda d: mg.Vector.from_array(d, np.zeros(4)), TypeError, "dtype float64"),
    "no dtype": (lambda d: mg.Vector(
        d, mg.VectorDescriptor(4, data_type=mg.DataType.COMPLEX_FLOAT16)).to_numpy(), TypeError,
        "NumPy has no dtype"),
    "too long": (lambda d: mg.Vector(mg.Buffer(d, 16), mg.VectorDescriptor(5)), ValueError,
                 "(5,) float32 needs 20 bytes from offset 0 on, but the buffer has 16"),
    "offset too far": (lambda d: mg.Vector(mg.Buffer(d, 16), mg.VectorDescriptor(4), 4), ValueError,
                       "needs 16 bytes from offset 4 on, but the buffer has 16"),
    "offset beyond numbers": (lambda d: mg.Vector(mg.Buffer(d, 16), mg.VectorDescriptor(4),
                                                  2**63 - 8), ValueError, "needs 16 bytes from"),
    "matrix beyond numbers": (lambda d: mg.Matrix(mg.Buffer(d, 16), mg.MatrixDescriptor(2, 2),
                                                  2**63 - 4), ValueError, "needs 16 bytes from"),
    "odd offset": (lambda d: mg.Vector(mg.Buffer(d, 16), mg.VectorDescriptor(2), 2), ValueError,
                   "offset must be a multiple of 4 and not negative, got 2"),
    "offset negative": (lambda d: mg.Matrix(mg.Buffer(d, 16), mg.MatrixDescriptor(1, 1), -4),
                        ValueError, "got -4"),
    "written dtype": (lambda d: mg.Vector(d, mg.VectorDescriptor(4)).write(np.zeros(4)), TypeError,
                      "Vector: array must be float32, got float64"),
    "written shape": (lambda d: mg.Vector(d, mg.VectorDescriptor(4)).write(
        np.zeros((1, 4), np.float32)), ValueError, "array must have shape (4,), got (1, 4)"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), REJECTED.values(), ids=REJECTED)
def test_rejects(call, error, words, device):
    with pytest.raises(error, match=re.escape(words)):
        call(device)


VECTOR, MATRIX = mg.VectorDescriptor, mg.MatrixDescriptor
BAD_DESCRIPTORS = {
    "length": (VECTOR, {"length": 0}, "length must be at least 1, got 0"),
    "vectors": (VECTOR, {"length": 1, "vectors": -1}, "vectors must be at least 1, got -1"),
    "stride": (VECTOR, {"length": 4, "vector_bytes": 12}, "multiple of 4 and at least 16, got 12"),
    "odd stride": (VECTOR, {"length": 4, "vector_bytes": 18}, "at least 16, got 18"),
    "rows": (MATRIX, {"rows": 0, "columns": 1}, "rows must be at least 1"),
    "columns": (MATRIX, {"rows": 1, "columns": 0}, "columns must be at least 1"),
    "matrices": (MATRIX, {"rows": 1, "columns": 1, "matrices": 0}, "matrices must be at least 1"),
    "row stride": (MATRIX, {"rows": 2, "columns": 3, "row_bytes": 8}, "row_bytes must be"),
    "matrix stride": (MATRIX, {"rows": 2, "columns": 3, "row_bytes": 16, "matrix_bytes": 40},
                      "matrix_bytes must be a multiple of 16 and at least 32, got 40"),
    "longer than memory": (VECTOR, {"length": 2**62}, "length 4611686018427387904 of 4 bytes are"),
    "more than memory": (VECTOR, {"length": 4, "vectors": 2**61}, "vectors 2305843009213693952 of"),
    "stride beyond memory": (VECTOR, {"length": 4, "vectors": 2**60, "vector_bytes": 16},
                             "of 16 bytes are more than any memory holds (2^48 bytes)"),
    "wider than memory": (MATRIX, {"rows": 1, "columns": 2**62}, "columns 4611686018427387904"),
    "higher than memory": (MATRIX, {"rows": 2**32, "columns": 2**30}, "rows 4294967296 of"),
    "too many matrices": (MATRIX, {"rows": 2, "columns": 2, "matrices": 2**60}, "matrices 1152921"),
    "row beyond memory": (MATRIX, {"rows": 2, "columns": 2, "row_bytes": 2**60}, "rows 2 of"),
    "data type": (VECTOR, {"length": 4, "data_type": 3}, "DataType"),
    "bits": (VECTOR, {"length": 4, "data_type": mg.DataType.UNORM1}, "elements of whole bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("cls", "fields", "words"), BAD_DESCRIPTORS.values(), ids=BAD_DESCRIPTORS)
def test_rejects_descriptors(cls, fields, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        cls(**fields)


def test_descriptors():
    assert mg.VectorDescriptor(4) == mg.VectorDescriptor(4, 1, 16)
    assert mg.VectorDescriptor(4).vector_bytes == 16
    assert mg.VectorDescriptor(4, data_type=mg.DataType.FLOAT16).vector_bytes == 8
    assert mg.MatrixDescriptor(2, 3, 4).matrix_bytes == 24
    assert mg.MatrixDescriptor(2, 3, 4, row_bytes=16).matrix_bytes == 32
    assert repr(mg.MatrixDescriptor(2, 3, 4)) == "MatrixDescriptor(4 x (2, 3) float32)"


def test_who_sees_a_vector_being_written_keeps_its_memory(device):
    """NumPy shows the target to classes of arrays."""
    seen = []

    class Looking(np.ndarray):
        def __array_function__(self, function, types, args, kwargs):
            seen.append(args[0])
            return function(args[0], np.asarray(args[1]))

    vector = mg.Vector(device, mg.VectorDescriptor(1 << 20))
    vector.write(np.ones(1 << 20, np.float32).view(Looking))
    (view,) = seen
    assert view.base is not None
    del vector
    gc.collect()
    mg.release_cached_memory()
    assert_exact(view, np.ones(1 << 20))
