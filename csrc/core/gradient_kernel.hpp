// BinaryKernel (MPSCNNBinaryKernel) and GradientKernel (MPSCNNGradientKernel): from the gradient
// with respect to a forward result (primary) and a forward image (secondary), the gradient with
// respect to the forward source.
#pragma once

#include <memory>
#include <string_view>

#include "core/gradient_state.hpp"
#include "core/kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

// What a binary kernel knows about one of its sources.
struct SourceProperties {
  Offset offset;
  Index channel_offset = 0;
  Index channel_maximum = kUnlimited;
  EdgeMode edge_mode = EdgeMode::Zero;
  Window window;  // strides may be set, the rest is fixed by the subclass
  bool operator==(const SourceProperties&) const = default;
};

struct BinaryProperties {
  SourceProperties primary;
  SourceProperties secondary;
  Region clip_rect;
  Index destination_channel_offset = 0;
  Index kernel_offset_x = 0;  // gradient kernels: in the zero-inserted gradient
  Index kernel_offset_y = 0;
  std::vector<double> extra;  // of the family
  bool operator==(const BinaryProperties&) const = default;
};

class BinaryKernel : public KernelBase {
 public:
  BinaryKernel(std::shared_ptr<Device> device, const char* class_name);

  const BinaryProperties& properties() const { return properties_; }
  SourceProperties& source_properties(bool secondary) {
    return secondary ? properties_.secondary : properties_.primary;
  }
  void set_offset(bool secondary, const Offset& offset);
  void set_edge_mode(bool secondary, EdgeMode mode);
  void set_channel_offset(bool secondary, Index value);
  void set_channel_maximum(bool secondary, Index value);
  void set_stride(bool secondary, bool vertical, Index value);
  void set_clip_rect(const Region& clip);
  void set_destination_channel_offset(Index value);
  const std::shared_ptr<Padding>& padding() const { return padding_; }
  void set_padding(std::shared_ptr<Padding> padding);
  const std::shared_ptr<ImageAllocator>& allocator() const { return allocator_; }
  void set_allocator(std::shared_ptr<ImageAllocator> allocator);

  virtual bool is_backwards() const { return false; }
  virtual bool is_state_modified() const { return false; }
  virtual bool is_result_state_reused_across_batch() const { return false; }
  virtual bool append_batch_barrier() const { return false; }

 protected:
  BinaryProperties properties_;

 private:
  std::shared_ptr<Padding> padding_;
  std::shared_ptr<ImageAllocator> allocator_;
};

// One gradient encode after every check. Image i of the work is gradient `first_gradient + i`,
// source `first_source + i` and destination `clip.origin.z + i`, counted as in UnaryCall.
struct GradientCall {
  const ImageBatch::Images& gradients;
  const ImageBatch::Images& sources;
  const StateBatch& states;  // one an image
  const ImageBatch::Images& destinations;
  bool batch;
  const BinaryProperties& properties;
  Region clip;  // effective
  Index first_gradient;
  Index first_source;
  Index gradient_channels;
  Index source_channels;
  Index produced_channels;
  bool creates_destination;
  const KernelBase& kernel;
  Index images() const { return clip.size.depth; }
  const GradientState& state() const { return static_cast<const GradientState&>(*states.front()); }
};

// What a device supplies to a gradient kernel without parameters that change between encodes.
class GradientEncoder {
 public:
  virtual ~GradientEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const GradientCall& call) = 0;
};

class GradientKernel : public BinaryKernel {
 public:
  // Which image of the forward pass is the secondary source.
  enum class Secondary { ForwardSource, ForwardResult };

  GradientKernel(std::shared_ptr<Device> device, const char* class_name, const char* forward_class,
                 const Window& window, Secondary secondary = Secondary::ForwardSource);

  void set_kernel_offset_x(Index value);
  void set_kernel_offset_y(Index value);
  bool is_backwards() const override { return true; }

  // Core chapter, section 10.3: sizes the result and copies the forward configuration into the
  // properties. An explicit-destination encode with the state is then allowed.
  ImageDescriptor destination_descriptor(const ImageBatch::Images& gradient_and_source,
                                         const StateBatch& states);

  // Explicit destination: every property is used as it stands, so the call above must have been
  // made for the state, unless `as_is` says that the caller has set them.
  void encode(const std::shared_ptr<CommandBuffer>& command_buffer,
              const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
              const StateBatch& states, const ImageBatch::Images& destinations, bool batch,
              bool as_is);
  std::shared_ptr<ImageBatch> encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                                              const ImageBatch::Images& gradients,
                                              const ImageBatch::Images& sources,
                                              const StateBatch& states, bool batch,
                                              ImageAllocator* allocator);

 protected:
  // Family hooks. The base has copied what every family copies when apply_state runs.
  virtual void apply_state(const GradientState&) {}
  virtual void check_state(const GradientState&) const {}  // throws on a state of other parameters
  virtual void check_call(const GradientCall&) const {}
  // False: the secondary image's contents are not read and its texels need not be written.
  virtual bool writes_whole_destination() const { return true; }
  virtual void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) = 0;

  const GradientState& own_state(const std::shared_ptr<State>& state) const;
  // Everything about the command buffer, the images and the states that can be wrong before a
  // destination is known.
  void check_sources(const CommandBuffer& command_buffer, const ImageBatch::Images& gradients,
                     const ImageBatch::Images& sources, const StateBatch& states, bool batch) const;
  // For families whose incoming gradient and secondary image must agree.
  void require_equal_sizes(const GradientCall& call) const;
  void require_equal_channels(const GradientCall& call) const;

 private:
  void encode_checked(const std::shared_ptr<CommandBuffer>& command_buffer,
                      const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                      const StateBatch& states, const ImageBatch::Images& destinations, bool batch,
                      bool creates);

  const char* forward_class_;
  Secondary secondary_;
  std::weak_ptr<State> configured_for_;
};

}  // namespace mpsgrad
