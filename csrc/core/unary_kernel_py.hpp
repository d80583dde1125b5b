// The encode of kernels with one source as Python calls it, for classes that add forms of their
// own.
#pragma once

#include <memory>

#include "core/arguments_py.hpp"

namespace mpsgrad {

py::object encode_unary(UnaryKernel& self, const std::shared_ptr<CommandBuffer>& command_buffer,
                        const ImagesGiven& source_object, const ImagesOrNone& destination_object,
                        const StatesOrNone& state_object, bool with_state, bool temporary_state,
                        const AllocatorGiven& allocator_object);

}  // namespace mpsgrad
