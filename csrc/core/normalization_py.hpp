// Data sources of normalization kernels that are written in Python.
#pragma once

#include <initializer_list>

#include "core/arguments_py.hpp"
#include "core/normalization_source.hpp"

namespace mpsgrad {

// Which members of a source must be there, and whether load() and purge() must.
struct NormalizationProtocol {
  bool statistics = false;  // mean, variance
  bool groups = false;
  bool load = false;
};

// Any object with the attributes of Apple's protocol. Throws TypeError, naming `who`, unless load
// and purge are there where they must; the other members are looked at after load().
std::shared_ptr<NormalizationDataSource> normalization_source_argument(
    const char* who, const py::object& source, const NormalizationProtocol& protocol);

// The object given to normalization_source_argument.
py::object normalization_source_object(const std::shared_ptr<NormalizationDataSource>& source);

}  // namespace mpsgrad
