// Destinations of encodes: what is written of them, and those that an encode creates.
#pragma once

#include <memory>
#include <utility>

#include "core/kernel.hpp"

namespace mpsgrad {

// Throws unless the channels that a kernel produces fit behind its channel offset.
void check_produced_channels(const KernelBase& kernel, Index offset, Index produced,
                             const Operand& destination);

// Whether an encode with these properties may leave texels of its destination unwritten. A padding
// policy of the caller's own may ask for more channels than there are results.
template <class Properties>
bool leaves_gaps(const Properties& properties, Index padding_method,
                 const CommandBuffer& command_buffer) {
  return properties.clip_rect != Region{} || properties.destination_channel_offset != 0 ||
         (padding_method & padding_method::kCustom) != 0 || command_buffer.predicate;
}

// What an encode creates: unless it is taken, nobody hears of it, nor is warned of temporary images
// and states that were never read.
class Created {
 public:
  // By `chosen`, else by the kernel's own allocator, which is held here: what it calls may give the
  // kernel another one.
  Created(ImageAllocator* chosen, std::shared_ptr<ImageAllocator> own,
          const std::shared_ptr<CommandBuffer>& command_buffer, const ImageDescriptor& descriptor,
          KernelBase& kernel, Index count, bool zeroed);
  ~Created();
  Created(const Created&) = delete;
  Created& operator=(const Created&) = delete;

  const ImageBatch::Images& images() const { return result_.images->images(); }
  const StateBatch& states() const { return result_.states; }
  void add(StateBatch states) { result_.states = std::move(states); }
  EncodeResult take() { return std::exchange(result_, {}); }

 private:
  EncodeResult result_;
};

}  // namespace mpsgrad
