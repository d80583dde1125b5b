// BinaryKernel (MPSCNNBinaryKernel): a primary and a secondary source, one destination. Gradient
// kernels share its properties alone; ForwardBinaryKernel has its encodes, and every rule about
// offsets, clip rectangles, channel windows, padding, states and read counts with them.
#pragma once

#include <memory>

#include "core/destinations.hpp"
#include "core/gradient_state.hpp"
#include "core/image_kernel.hpp"

namespace mpsgrad {

class BinaryKernel : public ImageKernel<BinaryProperties> {
 public:
  using ImageKernel::ImageKernel;

  SourceProperties& source_properties(bool secondary) {
    return secondary ? properties_.secondary : properties_.primary;
  }
  void set_offset(bool secondary, const Offset& offset);
  void set_edge_mode(bool secondary, EdgeMode mode);
  void set_channel_offset(bool secondary, Index value);
  void set_channel_maximum(bool secondary, Index value);
  void set_stride(bool secondary, bool vertical, Index value);

 protected:
  // Throws unless a source may be walked with this stride.
  virtual void check_stride(bool secondary, const char* property, Index value) const;
};

// One forward encode after every check. Image i of the work is primary `first_primary + i`,
// secondary `first_secondary + i` and destination `clip.origin.z + i`, counted as in UnaryCall.
struct BinaryCall {
  const ImageBatch::Images& primaries;
  const ImageBatch::Images& secondaries;
  const ImageBatch::Images& destinations;
  const StateBatch& states;  // empty, or one an image
  bool batch;
  const BinaryProperties& properties;
  Region clip;  // effective
  Index first_primary;
  Index first_secondary;
  Index primary_channels;
  Index secondary_channels;
  Index produced_channels;
  const KernelBase& kernel;
  Index images() const { return clip.size.depth; }
};

// What a device supplies to a binary kernel.
class BinaryEncoder {
 public:
  virtual ~BinaryEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const BinaryCall& call) = 0;
  // What the device must keep inside a state of this kernel; null if nothing.
  virtual std::shared_ptr<StatePayload> make_payload(const BinarySnapshot&) { return nullptr; }
};

class ForwardBinaryKernel : public BinaryKernel {
 public:
  ForwardBinaryKernel(std::shared_ptr<Device> device, const char* class_name, const Window& primary,
                      const Window& secondary);

  // Sizes the result by the padding policy and sets the offsets, persistently.
  ImageDescriptor destination_descriptor(const ImageBatch::Images& primary_and_secondary,
                                         const StateBatch& source_states);

  // The same, and the properties stay what they are.
  ImageDescriptor result_descriptor(const ImageBatch::Images& primary_and_secondary);

  // The properties must be final. `command_buffer` makes the states temporary. Empty for kernels
  // without a state.
  StateBatch result_states(const ImageBatch::Images& primaries,
                           const ImageBatch::Images& secondaries,
                           const ImageBatch::Images& destinations,
                           const std::shared_ptr<CommandBuffer>& command_buffer);

  // Explicit destination: offsets are used as they stand. `states` may be empty.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& primaries, const ImageBatch::Images& secondaries,
              const StateBatch& states, const ImageBatch::Images& destinations, bool batch);
  // Creates the destination (by `allocator`, else by the property), and states if asked for.
  EncodeResult encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                               const ImageBatch::Images& primaries,
                               const ImageBatch::Images& secondaries, bool batch, bool with_states,
                               bool temporary_states, ImageAllocator* allocator);

 protected:
  // Family hooks. What the kernel makes of the channels it reads; throws where they do not match.
  virtual Index produced_channels(Index primary, Index secondary) const = 0;
  // Height or width of the result, from what the padding policy makes of each source; an axis along
  // which a source does not move (stride 0) has no length there, and 0 stands for it.
  virtual Index placed_size(bool vertical, Index primary, Index secondary) const;
  virtual void check_call(const BinaryCall&) const {}
  // Null: the kernel has no state.
  virtual std::shared_ptr<BinaryGradientState> make_state(
      BinarySnapshot, const std::shared_ptr<CommandBuffer>& /*temporary*/) {
    return nullptr;
  }
  void fill_payload(BinaryGradientState& state) const;  // by the device's encoder
  virtual void encode_on_device(CommandBuffer& command_buffer, const BinaryCall& call);

  void set_device_encoder(std::unique_ptr<BinaryEncoder> encoder) { encoder_ = std::move(encoder); }

 private:
  void check_sources(const CommandBuffer& command_buffer, const ImageBatch::Images& primaries,
                     const ImageBatch::Images& secondaries, bool batch) const;
  Index consumed(bool secondary, const ImageBatch::Images& images, bool batch) const;
  Index place(bool vertical, Index primary, Index secondary, Index method);
  BinaryCall prepare(const CommandBuffer& command_buffer, const ImageBatch::Images& primaries,
                     const ImageBatch::Images& secondaries, const StateBatch& states,
                     const ImageBatch::Images& destinations, bool batch) const;
  void check_destination_states(const CommandBuffer& command_buffer, const BinaryCall& call) const;
  Created make_destinations(const std::shared_ptr<CommandBuffer>& command_buffer,
                            const ImageBatch::Images& primaries,
                            const ImageBatch::Images& secondaries, bool batch,
                            ImageAllocator* allocator);

  std::unique_ptr<BinaryEncoder> encoder_;
};

}  // namespace mpsgrad
