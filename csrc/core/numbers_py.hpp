// Arrays of numbers from Python.
#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <vector>

#include "core/arguments_py.hpp"

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

}  // namespace mpsgrad

template <>
struct pybind11::detail::type_caster<mpsgrad::GivenArray> {
  PYBIND11_TYPE_CASTER(mpsgrad::GivenArray, const_name("numpy.ndarray | typing_extensions.Buffer"));

  bool load(handle object, bool) {
    value = mpsgrad::GivenArray::of(object);
    return static_cast<bool>(value.array);
  }
};
