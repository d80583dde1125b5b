// Arrays of numbers from Python.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/arguments_py.hpp"
#include "device/image_descriptor.hpp"

namespace mpsgrad {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

// An argument that is an array, or whose memory NumPy can look at as one, by DLPack or the buffer
// protocol; nothing is converted.
struct GivenArray {
  py::array array = nothing();

  static GivenArray of(const py::handle& object) {
    if (py::isinstance<py::array>(object)) {
      return {py::reinterpret_borrow<py::array>(object)};
    }
    const auto numpy = [] { return py::module_::import("numpy"); };
    if (py::hasattr(object, "__dlpack__")) {
      return {numpy().attr("from_dlpack")(object)};
    }
    if (PyObject_CheckBuffer(object.ptr()) != 0) {
      return {numpy().attr("asarray")(py::memoryview(py::reinterpret_borrow<py::object>(object)))};
    }
    return {};
  }

 private:
  static py::array nothing() { return py::reinterpret_steal<py::array>(py::handle()); }
};

// What NumPy makes of an object; TypeError that begins with `name` if that is no array of numbers
// (nor what `others` says may stand there).
inline FloatArray float_array(const std::string& name, const py::object& object,
                              const char* others = "") {
  auto array = FloatArray::ensure(object);
  require<TypeError>(static_cast<bool>(array), name, " must be an array of numbers", others,
                     ", got ", type_name(object));
  return array;
}

inline std::vector<float> values_of(const FloatArray& array) {
  return {array.data(), array.data() + array.size()};
}

inline py::dtype dtype_of(ChannelFormat format) { return py::dtype(dtype_name(format)); }

// For messages.
inline std::string shape_text(const std::vector<py::ssize_t>& shape) {
  return py::str(py::tuple(py::cast(shape)));
}
inline std::string shape_text(const py::array& array) {
  return shape_text({array.shape(), array.shape() + array.ndim()});
}

// For memory that a device reads and writes in place.
inline void require_usable_in_place(const py::array& array, const char* who, const char* name) {
  require((array.flags() & py::array::c_style) != 0, who, ": ", name,
          " must be C-contiguous to be used in place, got strides of ",
          shape_text({array.strides(), array.strides() + array.ndim()}), " bytes");
  require(reinterpret_cast<std::uintptr_t>(array.data()) %
                  static_cast<std::uintptr_t>(array.itemsize()) ==
              0,
          who, ": ", name, " must be aligned to its items to be used in place");
}

// The owner of an array whose memory is `object`'s.
template <class Object>
py::capsule keep_alive(const std::shared_ptr<Object>& object) {
  return {new std::shared_ptr<Object>(object),
          [](void* raw) { delete static_cast<std::shared_ptr<Object>*>(raw); }};
}

// What __array__(dtype, copy) returns of an object of class `who` whose memory shared() shows and
// whose numbers copied() copies.
template <class Shared, class Copied>
py::array as_asked(const char* who, const py::object& dtype, const py::object& copy,
                   const Shared& shared, const Copied& copied) {
  const bool wants_copy = !copy.is_none() && copy.cast<bool>();
  const py::array array = wants_copy ? copied() : shared();
  if (dtype.is_none() || array.dtype().equal(py::dtype::from_args(dtype))) {
    return array;
  }
  require(copy.is_none() || wants_copy, who, ": another dtype than ",
          std::string(py::str(array.dtype())), " needs a copy, but copy is False");
  return array.attr("astype")(dtype);
}

}  // namespace mpsgrad

template <>
struct pybind11::detail::type_caster<mpsgrad::GivenArray> {
  PYBIND11_TYPE_CASTER(mpsgrad::GivenArray, const_name("numpy.ndarray | typing_extensions.Buffer"));

  bool load(handle object, bool) {
    value = mpsgrad::GivenArray::of(object);
    return static_cast<bool>(value.array);
  }
};
