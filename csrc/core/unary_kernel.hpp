// UnaryKernel (MPSCNNKernel): one source, one destination. Every rule about offsets, clip
// rectangles, channel windows, padding, states and read counts lives here once; a family adds its
// own rules and its device the arithmetic.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "core/destinations.hpp"
#include "core/gradient_state.hpp"
#include "core/image_kernel.hpp"
#include "core/property_guard.hpp"

namespace mpsgrad {

// One encode after every check: what a device's encoder gets. Image i of the work is source
// `first_source + i` and destination `clip.origin.z + i`, counted over the batch, or inside a
// container image where `batch` is false.
struct UnaryCall {
  const ImageBatch::Images& sources;
  const ImageBatch::Images& destinations;
  const StateBatch& states;  // empty, or one an image
  bool batch;
  const UnaryProperties& properties;
  Region clip;  // effective
  Index first_source;
  Index consumed_channels;
  Index produced_channels;
  const KernelBase& kernel;
  Index images() const { return clip.size.depth; }
};

// For kernels whose states a device makes before the encodes into them. Throws StateError if the
// clip rectangle leaves out images that it covered when the states were made, or the other way.
void check_stated_depth(const UnaryCall& call);

// What a device supplies to a unary kernel without parameters that change between encodes.
class UnaryEncoder {
 public:
  virtual ~UnaryEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const UnaryCall& call) = 0;
  // What the device must keep inside a state of this kernel; null if nothing.
  virtual std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) { return nullptr; }
};

// What sizes a destination beside the kernel's properties.
struct Sizing {
  StateBatch source_states;                      // for the padding policy
  std::function<void(ImageDescriptor&)> adjust;  // in place of the kernel's adjust_destination()
};

class UnaryKernel : public ImageKernel<UnaryProperties> {
 public:
  UnaryKernel(std::shared_ptr<Device> device, const char* class_name, const Window& window);

  const Window& window() const { return properties_.window; }
  void set_offset(const Offset& offset);
  void set_edge_mode(EdgeMode mode);
  void set_source_channel_offset(Index value);
  void set_source_channel_maximum(Index value);

  // Sizes the result by the padding policy and sets the offset, persistently.
  ImageDescriptor destination_descriptor(const ImageBatch::Images& sources,
                                         const StateBatch& source_states);

  // The same, and the properties stay what they are.
  ImageDescriptor result_descriptor(const ImageBatch::Images& sources);

  // The properties must be final. `command_buffer` makes the states temporary.
  StateBatch result_states(const ImageBatch::Images& sources,
                           const ImageBatch::Images& destinations,
                           const std::shared_ptr<CommandBuffer>& command_buffer);

  // Explicit destination: offset is used as it stands. `states` may be empty.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& sources, const StateBatch& states,
              const ImageBatch::Images& destinations, bool batch);
  // Creates the destination (by `allocator`, else by the property), and states if asked for.
  EncodeResult encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const ImageBatch::Images& sources, bool batch, bool with_states,
                               bool temporary_states, ImageAllocator* allocator,
                               const Sizing& sizing = {});
  // A family hook: after the policy's size and offset, before states and custom policies.
  // ExplicitPadding, whose size comes after that, asks once more.
  virtual void adjust_destination(const ImageBatch::Images&, Index /*method*/, ImageDescriptor&) {}
  // Of kernels that are backwards: the result begins so many pixels after the first that a source
  // pixel goes into.
  virtual void cut_corner(Index /*left*/, Index /*top*/) {}

 protected:
  // Family hooks. Channels: what the kernel must find in the source (0: any), and what it makes of
  // them.
  virtual Index required_channels() const { return 0; }
  virtual Index produced_channels(Index consumed) const { return consumed; }
  virtual FamilySettings current_settings() const { return properties_.settings; }
  virtual void check_call(const UnaryCall&) const {}
  // With what the device's encoder keeps in it. Null: the kernel has no gradient.
  virtual std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary);
  void fill_payload(GradientState& state) const;
  // By the device's encoder, unless the family has one of its own kind, or more to do.
  virtual void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call);

  void set_device_encoder(std::unique_ptr<UnaryEncoder> encoder) { encoder_ = std::move(encoder); }

  FamilySettings& family_settings() { return properties_.settings; }

  UnaryProperties current_properties() const;
  // Everything about images that can be wrong, and the resolved call; `states` and `properties`
  // must outlive it.
  UnaryCall prepare(const CommandBuffer& command_buffer, const ImageBatch::Images& sources,
                    const ImageBatch::Images& destinations, const StateBatch& states, bool batch,
                    const UnaryProperties& properties) const;
  // The call would refer to a temporary.
  UnaryCall prepare(const CommandBuffer&, const ImageBatch::Images&, const ImageBatch::Images&,
                    StateBatch&&, bool, const UnaryProperties&) const = delete;
  // Creates destinations as the creating encode does: after the checks, so that nothing is left
  // behind by a throw.
  Created make_destinations(const std::shared_ptr<CommandBuffer>& command_buffer,
                            const ImageBatch::Images& sources, bool batch,
                            ImageAllocator* allocator, const Sizing& sizing = {});

 private:
  ImageDescriptor size_destination(const ImageBatch::Images& sources, const Sizing& sizing);
  ForwardSnapshot snapshot(const ImageDescriptor& source, const Operand& destination) const;
  void check_destination_states(const CommandBuffer& command_buffer, const UnaryCall& call) const;

  std::unique_ptr<UnaryEncoder> encoder_;  // null in families with encoders of their own kind
};

}  // namespace mpsgrad
