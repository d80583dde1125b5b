// Destinations that encodes create, and how much of one a kernel writes.
#include "core/destinations.hpp"

#include "base/errors.hpp"

namespace mpsgrad {

void check_produced_channels(const KernelBase& kernel, Index offset, Index produced,
                             const Operand& destination) {
  const Index last = offset + produced;
  require(last <= destination.descriptor().feature_channels, kernel.class_name(), ": channels ",
          offset, " to ", last, " do not fit a destination of ",
          destination.descriptor().feature_channels, " channels");
}

Created::Created(ImageAllocator* chosen, std::shared_ptr<ImageAllocator> own,
                 const std::shared_ptr<CommandBuffer>& command_buffer,
                 const ImageDescriptor& descriptor, KernelBase& kernel, Index count, bool zeroed)
    : result_{(chosen ? *chosen : *own).allocate(command_buffer, descriptor, kernel, count, zeroed),
              {}} {}

Created::~Created() {
  if (result_.images) {
    result_.images->discard();
  }
  for (const auto& state : result_.states) {
    state->discard();
  }
}

}  // namespace mpsgrad
