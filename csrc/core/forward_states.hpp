// States that a forward encode makes for its gradient kernel or is given to fill, whatever the
// number of its sources.
#pragma once

#include <string_view>

#include "base/errors.hpp"
#include "core/kernel.hpp"

namespace mpsgrad {

// One state for each image, or one for all. None if `make` returns null: the kernel has no
// gradient.
template <class Make>
StateBatch make_states(std::size_t images, bool one_for_all, Make make) {
  StateBatch states;
  states.reserve(images);
  while (states.size() < images) {
    states.push_back(one_for_all && !states.empty() ? states.front() : make());
    if (!states.back()) {
      return {};
    }
  }
  return states;
}

// Throws unless a destination_state was made by a kernel of the same class and properties.
template <class Snapshot, class Properties>
void check_made_by(const KernelBase& kernel, const Snapshot& shot, const Properties& properties) {
  require<StateError>(shot.kernel_class == std::string_view(kernel.class_name()),
                      kernel.class_name(),
                      ": destination_state must come from this kernel's result_state(), but it was "
                      "made by ",
                      shot.kernel_class);
  require<StateError>(
      shot.properties == properties, kernel.class_name(),
      ": destination_state is of a kernel with other properties, or the kernel's properties "
      "changed after result_state(); make a new state");
}
// Throws, naming `operand`, unless it was made for images of this width, height and number of
// channels (the depth).
void check_made_for(const KernelBase& kernel, const char* operand, const Size& size,
                    const ImageBatch::Images& images);

}  // namespace mpsgrad
