// From a checked encode to one call of Apple's: the two shapes that most kernels share.
#pragma once

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "metal/metal_objects.hpp"

namespace mpsgrad::metal {

inline id<MTLDevice> mtl_device(Device& device) { return as<MetalDeviceBase>(device).get(); }

// Throws DeviceError if the initialiser returned nil.
template <class Kernel>
Retained<Kernel*> adopt_kernel(Kernel* kernel, const char* class_name) {
  auto result = Retained<Kernel*>::adopt(kernel);
  require<DeviceError>(static_cast<bool>(result), class_name, ": the device could not make it");
  return result;
}

// The images of an operand; `kernel_writes` for destinations.
NSArray<MPSImage*>* mps_images(const ImageBatch::Images& images, bool kernel_writes);
MPSImage* mps_image(const Image& image);

// Apple's state of each of ours; throws StateError if no forward encode has filled one.
NSArray<MPSState*>* mps_states(const char* who, const StateBatch& states);
// Makes Apple's states of forward passes that were not encoded, where their payloads know how.
void describe_states(MetalCommandBuffer& command_buffer, const StateBatch& states);
// For payloads of such states. `set_more` copies the settings of the family.
MetalStatePayload::Maker state_maker(Retained<MPSCNNKernel*> kernel,
                                     void (*set_more)(MPSCNNKernel*,
                                                      const UnaryProperties&) = nullptr);
MetalStatePayload& payload_of(const State& state);
// Apple's state of a forward pass, made by the kernel as it is set now, from the sizes of images;
// nil if the device made none. `temporary` is the command buffer of a temporary state, else nil.
MPSState* describe_state(MPSCNNKernel* kernel, const ForwardSnapshot& shot,
                         MPSCommandBuffer* temporary);

// Copies the call into the kernel's properties.
void set_properties(MPSCNNKernel* kernel, const UnaryCall& call);
void set_properties(MPSCNNBinaryKernel* kernel, const BinaryCall& call);
void set_properties(MPSCNNGradientKernel* kernel, const GradientCall& call);

void set_label(MPSKernel* kernel, const KernelBase& ours);
void set_options(MPSKernel* kernel, const KernelBase& ours);  // and the label

// Fresh states of Apple's for each of ours, made with the very properties of the encode to come;
// nil if it takes none.
NSArray<MPSState*>* fill_states(MetalCommandBuffer& command_buffer, MPSCNNKernel* kernel,
                                const UnaryCall& call, NSArray<MPSImage*>* sources,
                                NSArray<MPSImage*>* destinations);

void encode(CommandBuffer& command_buffer, MPSCNNKernel* kernel, const UnaryCall& call);
// For kernels whose properties and states have their final values; `states` may be nil.
void encode_prepared(CommandBuffer& command_buffer, MPSCNNKernel* kernel, const UnaryCall& call,
                     NSArray<MPSState*>* states);
void encode(CommandBuffer& command_buffer, MPSCNNGradientKernel* kernel, const GradientCall& call);
// For kernels whose properties have their final values.
void encode_prepared(CommandBuffer& command_buffer, MPSCNNGradientKernel* kernel,
                     const GradientCall& call);
// For kernels without states whose properties have their final values.
void encode_prepared(CommandBuffer& command_buffer, MPSCNNBinaryKernel* kernel,
                     const BinaryCall& call);
// Zeros into every pixel and produced channel of the destinations, clip rectangle or not.
void encode_zeros(CommandBuffer& command_buffer, const GradientCall& call);

class MetalUnaryEncoder final : public UnaryEncoder {
 public:
  explicit MetalUnaryEncoder(Retained<MPSCNNKernel*> kernel) : kernel_(std::move(kernel)) {}
  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const PoolScope pool;
    metal::encode(command_buffer, kernel_.get(), call);
  }
  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    return std::make_shared<MetalStatePayload>(state_maker(kernel_));
  }

 private:
  Retained<MPSCNNKernel*> kernel_;
};

class MetalGradientEncoder final : public GradientEncoder {
 public:
  explicit MetalGradientEncoder(Retained<MPSCNNGradientKernel*> kernel)
      : kernel_(std::move(kernel)) {}
  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const PoolScope pool;
    metal::encode(command_buffer, kernel_.get(), call);
  }

 private:
  Retained<MPSCNNGradientKernel*> kernel_;
};

}  // namespace mpsgrad::metal
