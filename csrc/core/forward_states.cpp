// Sizes of states that forward encodes are given.
#include "core/forward_states.hpp"

namespace mpsgrad {

void check_made_for(const KernelBase& kernel, const char* operand, const Size& size,
                    const ImageBatch::Images& images) {
  const ImageDescriptor& image = images.front()->descriptor();
  require(size == Size{image.width, image.height, image.feature_channels}, kernel.class_name(),
          ": destination_state was made for a ", operand, " of ", size.width, "x", size.height, "x",
          size.depth, ", not ", image.width, "x", image.height, "x", image.feature_channels);
}

}  // namespace mpsgrad
