// Arrays of numbers from Python.
#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <vector>

#include "core/arguments_py.hpp"

namespace mpsgrad {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

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
