// Binds vectors, matrices and their descriptors.
#include <pybind11/numpy.h>

#include <cstring>

#include "core/arguments_py.hpp"
#include "core/numbers_py.hpp"
#include "device/vector.hpp"

namespace mpsgrad {
namespace {

using namespace pybind11::literals;

struct TypeName {
  DataType type;
  const char* dtype;
};
constexpr TypeName kTypes[] = {
    {kFloat32, "float32"},   {0x10000010U, "float16"}, {0x11000040U, "complex64"},
    {0x20000008U, "int8"},   {0x20000010U, "int16"},   {0x20000020U, "int32"},
    {0x20000040U, "int64"},  {0x00000008U, "uint8"},   {0x00000010U, "uint16"},
    {0x00000020U, "uint32"}, {0x00000040U, "uint64"},  {0x80000008U, "bool"},
    {0x40000008U, "uint8"},
};

py::object data_type_object(DataType type) {
  return py::module_::import("mpsgrad.enums").attr("DataType")(type);
}

// A number or a DataType; ValueError if it is none of Apple's.
DataType data_type_argument(const py::object& object) {
  return data_type_object(object.cast<DataType>()).cast<DataType>();
}

py::dtype dtype_of(const DeviceArray& array) {
  for (const TypeName& known : kTypes) {
    if (known.type == array.layout().data_type) {
      return py::dtype(known.dtype);
    }
  }
  fail<TypeError>(array.class_name(), ": NumPy has no dtype for ",
                  data_type_text(array.layout().data_type));
}

DataType type_of(const char* who, const py::dtype& dtype) {
  for (const TypeName& known : kTypes) {
    if (dtype.equal(py::dtype(known.dtype))) {
      return known.type;
    }
  }
  fail<TypeError>(who, ": array has dtype ", std::string(py::str(dtype)),
                  ", which is no MPSDataType");
}

using Shape = std::vector<py::ssize_t>;

// Without the axis of parts where there is one part.
Shape shape_of(const DeviceArray& array) {
  const ArrayLayout& l = array.layout();
  Shape shape{l.columns};
  if (dynamic_cast<const Matrix*>(&array)) {
    shape.insert(shape.begin(), l.rows);
  }
  if (l.parts > 1) {
    shape.insert(shape.begin(), l.parts);
  }
  return shape;
}

Shape strides_of(const DeviceArray& array) {
  const ArrayLayout& l = array.layout();
  Shape strides{data_type_size(l.data_type)};
  if (dynamic_cast<const Matrix*>(&array)) {
    strides.insert(strides.begin(), l.row_bytes);
  }
  if (l.parts > 1) {
    strides.insert(strides.begin(), l.part_bytes);
  }
  return strides;
}

// The array's own memory.
py::array shared_array(const std::shared_ptr<DeviceArray>& array) {
  const std::shared_ptr<Buffer>& buffer = array->data();
  std::byte* data = buffer->for_writing();
  buffer->for_reading();
  return {dtype_of(*array), shape_of(*array), strides_of(*array), data + array->offset(),
          keep_alive(buffer)};
}

py::array copied_array(DeviceArray& array) {
  const std::byte* data = array.data()->for_reading() + array.offset();
  // The view has no owner for the moment of the copy, hence the None.
  return py::array(py::array(dtype_of(array), shape_of(array), strides_of(array), data, py::none())
                       .attr("copy")());
}

void write_array(const std::shared_ptr<DeviceArray>& array, const GivenArray& given) {
  const py::array& values = given.array;
  require<TypeError>(values.dtype().equal(dtype_of(*array)), array->class_name(),
                     ": array must be ", std::string(py::str(dtype_of(*array))), ", got ",
                     std::string(py::str(values.dtype())));
  const Shape expected = shape_of(*array);
  const Shape got(values.shape(), values.shape() + values.ndim());
  require(got == expected, array->class_name(), ": array must have shape ", shape_text(expected),
          ", got ", shape_text(values));
  std::byte* data = array->data()->for_writing() + array->offset();
  py::array target(dtype_of(*array), expected, strides_of(*array), data,
                   keep_alive(array->data()));  // values may be of a class that keeps it
  py::module_::import("numpy").attr("copyto")(target, values);
}

struct ArrayMemory {
  Index item, rows, columns, parts, row_bytes, part_bytes;
  DataType data_type;
  LentMemory lent;
};

// An array of `axes` axes, or one more for several parts, whose elements of a row are neighbours.
ArrayMemory memory_of(const char* who, const py::array& array, py::ssize_t axes) {
  const py::ssize_t ndim = array.ndim();
  require(ndim == axes || ndim == axes + 1, who, ": array must have ", axes, " or ", axes + 1,
          " axes, got ", ndim);
  require(array.size() > 0, who, ": array must not be empty");
  require(array.writeable(), who, ": array must be writable");
  const DataType type = type_of(who, array.dtype());
  const Index item = data_type_size(type);
  require(reinterpret_cast<std::uintptr_t>(array.data()) % static_cast<std::uintptr_t>(item) == 0,
          who, ": array must be aligned to its items");
  const Index columns = array.shape(ndim - 1);
  require(columns == 1 || array.strides(ndim - 1) == item, who,
          ": the elements of a row must be neighbours");
  const Index rows = axes == 2 ? array.shape(ndim - 2) : 1;
  const Index parts = ndim > axes ? array.shape(0) : 1;
  Index row_bytes = rows > 1 ? array.strides(ndim - 2) : columns * item;
  const Index part_bytes = parts > 1 ? array.strides(0) : rows * row_bytes;
  if (rows == 1) {
    row_bytes = part_bytes;  // any stride would do; this one divides the other
  }
  require(row_bytes >= columns * item && part_bytes >= rows * row_bytes, who,
          ": array must be in C order");
  const ArrayLayout layout{parts, rows, columns, row_bytes, part_bytes, type};
  LentMemory lent{const_cast<void*>(array.data()), static_cast<std::size_t>(layout.span()),
                  share_python(py::reinterpret_borrow<py::object>(array))};
  return {item, rows, columns, parts, row_bytes, part_bytes, type, std::move(lent)};
}

std::shared_ptr<Vector> vector_from_array(Device& device, const GivenArray& given) {
  ArrayMemory m = memory_of("Vector", given.array, 1);
  return std::make_shared<Vector>(device.buffer_from_memory(std::move(m.lent)), 0,
                                  VectorDescriptor{m.columns, m.parts, m.part_bytes, m.data_type});
}

std::shared_ptr<Matrix> matrix_from_array(Device& device, const GivenArray& given) {
  ArrayMemory m = memory_of("Matrix", given.array, 2);
  return std::make_shared<Matrix>(
      device.buffer_from_memory(std::move(m.lent)), 0,
      MatrixDescriptor{m.rows, m.columns, m.parts, m.row_bytes, m.part_bytes, m.data_type});
}

void bind_descriptors(py::module_& m) {
  py::class_<VectorDescriptor>(m, "VectorDescriptor",
                               R"(Shape of a `Vector` (``MPSVectorDescriptor``).

Parameters
----------
length : int
    Elements of one vector.
vectors : int, default 1
    How many vectors.
vector_bytes : int, default 0
    Bytes from one vector to the next; 0 stands for no gap.
data_type : DataType, default FLOAT32

Raises
------
ValueError
    If a number is out of range.
)")
      .def(py::init([](Index length, Index vectors, Index vector_bytes, const py::object& type) {
             VectorDescriptor d{length, vectors, vector_bytes, data_type_argument(type)};
             d.vector_bytes = d.layout("VectorDescriptor").part_bytes;
             return d;
           }),
           "length"_a, "vectors"_a = 1, "vector_bytes"_a = 0, "data_type"_a = kFloat32)
      .def_readonly("length", &VectorDescriptor::length, "Elements of one vector; read only.")
      .def_readonly("vectors", &VectorDescriptor::vectors, "How many vectors; read only.")
      .def_readonly("vector_bytes", &VectorDescriptor::vector_bytes,
                    "Bytes from the start of one vector to that of the next; read only.")
      .def_property_readonly(
          "data_type",
          [](const VectorDescriptor& self) { return data_type_object(self.data_type); },
          "`DataType` of an element; read only.")
      .def(
          "__eq__", [](const VectorDescriptor& a, const VectorDescriptor& b) { return a == b; },
          py::is_operator())
      .def("__repr__", [](const VectorDescriptor& self) {
        return text("VectorDescriptor(", self.layout("VectorDescriptor"), ")");
      });
  py::class_<MatrixDescriptor>(m, "MatrixDescriptor",
                               R"(Shape of a `Matrix` (``MPSMatrixDescriptor``).

Parameters
----------
rows, columns : int
matrices : int, default 1
    How many matrices.
row_bytes, matrix_bytes : int, default 0
    Bytes from one row, or matrix, to the next; 0 stands for no gap. ``matrix_bytes`` is a multiple of ``row_bytes``.
data_type : DataType, default FLOAT32

Raises
------
ValueError
    If a number is out of range.
)")
      .def(py::init([](Index rows, Index columns, Index matrices, Index row_bytes,
                       Index matrix_bytes, const py::object& type) {
             MatrixDescriptor d{rows,      columns,      matrices,
                                row_bytes, matrix_bytes, data_type_argument(type)};
             const ArrayLayout layout = d.layout("MatrixDescriptor");
             d.row_bytes = layout.row_bytes;
             d.matrix_bytes = layout.part_bytes;
             return d;
           }),
           "rows"_a, "columns"_a, "matrices"_a = 1, "row_bytes"_a = 0, "matrix_bytes"_a = 0,
           "data_type"_a = kFloat32)
      .def_readonly("rows", &MatrixDescriptor::rows, "Rows of one matrix; read only.")
      .def_readonly("columns", &MatrixDescriptor::columns, "Elements of one row; read only.")
      .def_readonly("matrices", &MatrixDescriptor::matrices, "How many matrices; read only.")
      .def_readonly("row_bytes", &MatrixDescriptor::row_bytes,
                    "Bytes from the start of one row to that of the next; read only.")
      .def_readonly("matrix_bytes", &MatrixDescriptor::matrix_bytes,
                    "Bytes from the start of one matrix to that of the next; read only.")
      .def_property_readonly(
          "data_type",
          [](const MatrixDescriptor& self) { return data_type_object(self.data_type); },
          "`DataType` of an element; read only.")
      .def(
          "__eq__", [](const MatrixDescriptor& a, const MatrixDescriptor& b) { return a == b; },
          py::is_operator())
      .def("__repr__", [](const MatrixDescriptor& self) {
        return text("MatrixDescriptor(", self.layout("MatrixDescriptor"), ")");
      });
}

void bind_device_array(py::module_& m) {
  py::class_<DeviceArray, py::smart_holder>(m, "DeviceArray",
                                            "What `Vector` and `Matrix` have in common.")
      .def_property_readonly("device", &DeviceArray::device,
                             "`Device` that holds the elements; read only.")
      .def_property_readonly("data", &DeviceArray::data, "The `Buffer` that holds the elements.")
      .def_property_readonly("offset", &DeviceArray::offset,
                             "Bytes from the buffer's start to the first element.")
      .def_property_readonly(
          "shape",
          [](const DeviceArray& self) -> py::tuple { return py::tuple(py::cast(shape_of(self))); },
          "Shape as an array: (length,) or (rows, columns), after the number of vectors or "
          "matrices "
          "where there are several; read only.")
      .def_property_readonly(
          "data_type",
          [](const DeviceArray& self) { return data_type_object(self.layout().data_type); },
          "`DataType` of an element; read only.")
      .def_readwrite("label", &DeviceArray::label, "Free text, empty by default.")
      .def("synchronize", &DeviceArray::synchronize, "command_buffer"_a.none(false),
           "Make the device's results visible to the CPU when the command buffer has completed.")
      .def("to_numpy", &copied_array, R"(Return a copy as an array of `shape`.

Raises
------
RuntimeError
    If the command buffer that writes it has not been waited for, or it is temporary.
)")
      .def("write", &write_array, "array"_a,
           R"(Replace the elements; visible to work that has been encoded but not committed.

Raises
------
TypeError, ValueError
    If dtype or shape differ; nothing is converted.
RuntimeError
    If committed work that nobody has waited for uses it, or it is temporary.
)")
      .def(
          "__array__",
          [](const std::shared_ptr<DeviceArray>& self, const py::object& dtype,
             const py::object& copy) -> py::array {
            return as_asked(
                self->class_name(), dtype, copy, [&] { return shared_array(self); },
                [&] { return copied_array(*self); });
          },
          "dtype"_a = py::none(), "copy"_a = py::none())
      .def("__dlpack__",
           [](const std::shared_ptr<DeviceArray>& self, const py::kwargs& options) {
             return shared_array(self).attr("__dlpack__")(**options);
           })
      .def("__dlpack_device__", [](const DeviceArray&) { return py::make_tuple(1, 0); })
      .def("__repr__", [](const DeviceArray& self) {
        return text(self.class_name(), "(", self.device()->kind(), ", ", self.layout(), ")");
      });
}

void bind_vectors(py::module_& m) {
  py::class_<Vector, DeviceArray, py::smart_holder>(m, "Vector",
                                                    R"(Numbers in a row on a device (``MPSVector``).

Two forms: on a device, zero-filled and allocated when first needed, or over a `Buffer`.

Parameters
----------
device : Device
    Or ``buffer``, a `Buffer`.
descriptor : VectorDescriptor
offset : int, default 0
    With a buffer: bytes from its start to the first element.

Raises
------
ValueError
    If the elements do not fit the buffer.
)")
      .def(py::init<std::shared_ptr<Device>, const VectorDescriptor&>(), "device"_a.none(false),
           "descriptor"_a)
      .def(py::init([](std::shared_ptr<Buffer> buffer, const VectorDescriptor& descriptor,
                       Index offset) {
             return std::make_shared<Vector>(std::move(buffer), offset, descriptor);
           }),
           "buffer"_a.none(false), "descriptor"_a, "offset"_a = 0)
      .def_static("from_array", &vector_from_array, "device"_a.none(false), "array"_a,
                  R"(Return a vector over an array.

Parameters
----------
device : Device
array : ndarray, or what has a buffer or DLPack, shape (length,) or (vectors, length)
    Writable, rows without gaps. The CPU device uses it in place, so that it also sees results;
    Metal copies it.

Raises
------
TypeError, ValueError
    If the array is of another kind.
)")
      .def_property_readonly(
          "length", [](const Vector& self) { return self.layout().columns; },
          "Elements of one vector; read only.")
      .def_property_readonly(
          "vectors", [](const Vector& self) { return self.layout().parts; },
          "How many vectors it holds; read only.")
      .def_property_readonly(
          "vector_bytes", [](const Vector& self) { return self.layout().part_bytes; },
          "Bytes from one vector to the next.");
}

void bind_matrices(py::module_& m) {
  py::class_<Matrix, DeviceArray, py::smart_holder>(m, "Matrix",
                                                    R"(Numbers in rows on a device (``MPSMatrix``).

Two forms: on a device, zero-filled and allocated when first needed, or over a `Buffer`.

Parameters
----------
device : Device
    Or ``buffer``, a `Buffer`.
descriptor : MatrixDescriptor
offset : int, default 0
    With a buffer: bytes from its start to the first element.

Raises
------
ValueError
    If the elements do not fit the buffer.
)")
      .def(py::init<std::shared_ptr<Device>, const MatrixDescriptor&>(), "device"_a.none(false),
           "descriptor"_a)
      .def(py::init([](std::shared_ptr<Buffer> buffer, const MatrixDescriptor& descriptor,
                       Index offset) {
             return std::make_shared<Matrix>(std::move(buffer), offset, descriptor);
           }),
           "buffer"_a.none(false), "descriptor"_a, "offset"_a = 0)
      .def_static("from_array", &matrix_from_array, "device"_a.none(false), "array"_a,
                  R"(Return a matrix over an array.

Parameters
----------
device : Device
array : ndarray, or what has a buffer or DLPack, shape (rows, columns) or (matrices, rows, columns)
    Writable, in C order, rows without gaps inside. The CPU device uses it in place, so that it
    also sees results; Metal copies it.

Raises
------
TypeError, ValueError
    If the array is of another kind.
)")
      .def_property_readonly(
          "rows", [](const Matrix& self) { return self.layout().rows; },
          "Rows of one matrix; read only.")
      .def_property_readonly(
          "columns", [](const Matrix& self) { return self.layout().columns; },
          "Elements of one row; read only.")
      .def_property_readonly(
          "matrices", [](const Matrix& self) { return self.layout().parts; },
          "How many matrices it holds; read only.")
      .def_property_readonly(
          "row_bytes", [](const Matrix& self) { return self.layout().row_bytes; },
          "Bytes from one row to the next.")
      .def_property_readonly(
          "matrix_bytes", [](const Matrix& self) { return self.layout().part_bytes; },
          "Bytes from one matrix to the next.");
}

void bind_temporary_arrays(py::module_& m) {
  const auto read_count = [](auto& c) {
    c.def_property(
        "read_count", [](DeviceArray& self) { return self.read_count()->value(); },
        &DeviceArray::set_read_count, "How many more encodes may read it; at 0 it is gone.");
  };
  py::class_<TemporaryVector, Vector, py::smart_holder> temporary_vector(
      m, "TemporaryVector", R"(Scratch vector of one command buffer (``MPSTemporaryVector``).

Parameters
----------
command_buffer : CommandBuffer
descriptor : VectorDescriptor
)");
  temporary_vector.def(py::init<const std::shared_ptr<CommandBuffer>&, const VectorDescriptor&>(),
                       "command_buffer"_a.none(false), "descriptor"_a);
  read_count(temporary_vector);
  py::class_<TemporaryMatrix, Matrix, py::smart_holder> temporary_matrix(
      m, "TemporaryMatrix", R"(Scratch matrix of one command buffer (``MPSTemporaryMatrix``).

Parameters
----------
command_buffer : CommandBuffer
descriptor : MatrixDescriptor
)");
  temporary_matrix.def(py::init<const std::shared_ptr<CommandBuffer>&, const MatrixDescriptor&>(),
                       "command_buffer"_a.none(false), "descriptor"_a);
  read_count(temporary_matrix);
}

}  // namespace

void bind_vector(py::module_& m) {
  bind_descriptors(m);
  bind_device_array(m);
  bind_vectors(m);
  bind_matrices(m);
  bind_temporary_arrays(m);
}

}  // namespace mpsgrad
