// Making Apple's states ahead of the encodes that fill them.
#include "metal/metal_states.hpp"

#include <cstring>

namespace mpsgrad::metal {
namespace {

// The clip rectangle as it was set, which a state and the encodes into it agree on even if their
// batches differ in length; `depth`, of the effective one, says whether its images all exist.
MTLRegion to_mtl(const Region& clip, Index depth) {
  const MTLRegion whole = MPSRectNoClip;
  const auto size = [](Index value, NSUInteger all) {
    return value == kUnlimited ? all : to_ns(value);
  };
  return MTLRegionMake3D(to_ns(clip.origin.x), to_ns(clip.origin.y), to_ns(clip.origin.z),
                         size(clip.size.width, whole.size.width),
                         size(clip.size.height, whole.size.height),
                         clip.size.depth == depth ? to_ns(depth) : whole.size.depth);
}

}  // namespace

void set_properties(MPSCNNKernel* kernel, const StatedPass& pass) {
  const UnaryProperties& p = pass.properties;
  kernel.offset = {p.offset.x, p.offset.y, p.offset.z};
  kernel.clipRect = to_mtl(p.clip_rect, pass.depth);
  kernel.edgeMode = static_cast<MPSImageEdgeMode>(p.edge_mode);
  kernel.destinationFeatureChannelOffset = to_ns(p.destination_channel_offset);
  kernel.sourceFeatureChannelOffset = to_ns(p.source_channel_offset);
  kernel.sourceFeatureChannelMaxCount = to_ns(pass.channels);
}

std::shared_ptr<MetalStatePayload> make_state(MPSCNNKernel* kernel, const ForwardSnapshot& shot,
                                              CommandBuffer* temporary) {
  MetalCommandBuffer* own = temporary ? &as<MetalCommandBuffer>(*temporary) : nullptr;
  MPSState* state = describe_state(kernel, shot, own ? own->for_transfer() : nil);
  require<DeviceError>(state != nil, shot.kernel_class, ": the device made no state");
  auto payload = std::make_shared<MetalStatePayload>();
  payload->assign(state, own ? own->temporaries() : nullptr);
  return payload;
}

std::shared_ptr<Buffer> share_floats(Device& device, id<MTLBuffer> buffer, Index count,
                                     const char* who) {
  require<DeviceError>(buffer != nil, who, ": the device made no buffer");
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  require<DeviceError>([buffer length] >= bytes, who, ": the device made a buffer of ",
                       [buffer length], " bytes, expected ", bytes);
  clear_floats(buffer);
  return std::make_shared<MetalBuffer>(device.shared_from_this(), bytes,
                                       Retained<id<MTLBuffer>>::share(buffer));
}

void clear_floats(id<MTLBuffer> buffer) {
  if (buffer.storageMode == MTLStorageModePrivate) {
    return;  // the CPU never sees it, and kernels write it before they read it
  }
  std::memset(buffer.contents, 0, buffer.length);
  if (buffer.storageMode == MTLStorageModeManaged) {
    [buffer didModifyRange:NSMakeRange(0, buffer.length)];
  }
}

}  // namespace mpsgrad::metal
