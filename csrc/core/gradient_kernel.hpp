// GradientKernel (MPSCNNGradientKernel): from the gradient with respect to a forward result
// (primary) and a forward image (secondary), the gradient with respect to the forward source.
#pragma once

#include <memory>
#include <string_view>

#include "core/binary_kernel.hpp"
#include "core/gradient_state.hpp"

namespace mpsgrad {

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
  // Of a kernel with one source.
  const GradientState& state() const { return static_cast<const GradientState&>(*states.front()); }
};

// What the rules of gradient encodes take from the forward pass that a state records.
struct ForwardPass {
  const char* secondary_role = "source";  // which image of the forward pass the secondary source is
  Index secondary_width = 0, secondary_height = 0;
  Index secondary_channels = 0;  // read of it
  Index secondary_channel_offset = 0;
  EdgeMode secondary_edge_mode = EdgeMode::Zero;
  Window secondary_window;
  Index primary_stride_x = 1, primary_stride_y = 1;
  Index gradient_channels = 0;                // of the incoming gradient
  Index result_width = 0, result_height = 0;  // of what it is differentiated by
  Index result_channels = 0;
};

// Throws unless kernel offsets are 0.
void require_no_kernel_offset(const GradientCall& call);
// Throws unless kernel offsets are 0 and strides 1.
void require_single_steps(const GradientCall& call);
// For gradients that are sums over whole images. Throws unless what says where is at its default.
void require_whole_images(const KernelBase& kernel, const BinaryProperties& properties);

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

  // Sizes the result and copies the forward configuration into the properties. An
  // explicit-destination encode with the state is then allowed.
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
  // What a state records; throws unless it comes from the forward kernel.
  virtual ForwardPass forward_pass(const State* state) const;
  // Whether one forward encode can have made both; forward_pass() has taken `a`.
  virtual bool from_one_encode(const State& a, const State& b) const;
  // The base has copied what every kernel copies.
  virtual void apply_forward(const State& state);

  // Hooks of families whose forward kernels have one source.
  virtual void apply_state(const GradientState&) {}
  virtual void check_state(const GradientState&) const {}  // throws on a state of other parameters
  virtual void check_call(const GradientCall&) const {}
  // False: the destination is not written, so one that is made for the call is zeroed.
  virtual bool writes_whole_destination() const { return true; }
  // By the device's encoder, unless the family has one of its own kind, or more to do.
  virtual void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call);

  void set_device_encoder(std::unique_ptr<GradientEncoder> encoder) {
    encoder_ = std::move(encoder);
  }

  // For families whose results lie over their sources: the primary offset is where in the forward
  // result the first pixel of the forward source went.
  void place_on_result(const GradientState& state);

  const GradientState& own_state(const State* state) const;
  const char* forward_class() const { return forward_class_; }
  // The class of a state's kernel; throws unless it is forward_class().
  void require_forward_class(const char* kernel_class) const;
  // Everything about the command buffer, the images and the states that can be wrong before a
  // destination is known.
  void check_sources(const CommandBuffer& command_buffer, const ImageBatch::Images& gradients,
                     const ImageBatch::Images& sources, const StateBatch& states, bool batch) const;
  // For families whose incoming gradient and secondary image must agree.
  void require_equal_sizes(const GradientCall& call) const;
  void require_equal_channels(const GradientCall& call) const;
  // Whether the caller chose a window of the incoming gradient's channels, with others around it.
  static bool reads_a_window(const GradientCall& call);

 private:
  // destination_descriptor() for a caller that puts the properties back if something throws.
  ImageDescriptor configure_for(const std::shared_ptr<Image>& gradient,
                                const std::shared_ptr<Image>& source,
                                const std::shared_ptr<State>& state);
  void encode_checked(const std::shared_ptr<CommandBuffer>& command_buffer,
                      const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                      const StateBatch& states, const ImageBatch::Images& destinations, bool batch,
                      bool creates);

  std::unique_ptr<GradientEncoder> encoder_;  // null in families with encoders of their own kind
  const char* forward_class_;
  Secondary secondary_;
  std::weak_ptr<State> configured_for_;
};

}  // namespace mpsgrad
