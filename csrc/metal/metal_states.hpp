// States of Apple's that exist before the forward encodes that fill them, because ours show their
// buffers.
#pragma once

#include "metal/metal_calls.hpp"

namespace mpsgrad::metal {

// A forward pass as a state and the encodes into it must find it, although they may see different
// images.
struct StatedPass {
  const UnaryProperties& properties;
  Index depth;     // of the effective clip rectangle
  Index channels;  // that the kernel reads of any source
};

// Copies the pass into the kernel's properties, the clip rectangle as it was set.
void set_properties(MPSCNNKernel* kernel, const StatedPass& pass);

// Apple's state of the pass, made by the kernel as it is set now; `temporary` may be null.
std::shared_ptr<MetalStatePayload> make_state(MPSCNNKernel* kernel, const ForwardSnapshot& shot,
                                              CommandBuffer* temporary);

// `count` floats of Apple's, 0 where the CPU can see them. `who` is for messages.
std::shared_ptr<Buffer> share_floats(Device& device, id<MTLBuffer> buffer, Index count,
                                     const char* who);
// Zeros, where the CPU can see the buffer.
void clear_floats(id<MTLBuffer> buffer);

}  // namespace mpsgrad::metal
