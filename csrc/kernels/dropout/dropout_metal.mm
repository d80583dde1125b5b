// Dropout on the Metal device (MPSCNNDropout, MPSCNNDropoutGradient): masks are Apple's, in states
// of Apple's (MPSCNNDropoutGradientState), and what is known of them is what the gradient kernel
// does with them.
#include "kernels/dropout/dropout.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

template <class Kernel>
Kernel* new_kernel(Device& device, const DropoutSettings& settings) {
  const MaskStride& stride = settings.stride;
  return [[Kernel alloc] initWithDevice:metal::mtl_device(device)
                        keepProbability:settings.keep_probability
                                   seed:static_cast<NSUInteger>(settings.seed)
                     maskStrideInPixels:MTLSizeMake(static_cast<NSUInteger>(stride.width),
                                                    static_cast<NSUInteger>(stride.height),
                                                    static_cast<NSUInteger>(stride.depth))];
}

class MetalDropoutBackend final : public DropoutBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device,
                                             const DropoutSettings& settings) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        new_kernel<MPSCNNDropout>(device, settings), "MPSCNNDropout"));
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                 const DropoutSettings& settings) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
        new_kernel<MPSCNNDropoutGradient>(device, settings), "MPSCNNDropoutGradient"));
  }
};

}  // namespace

const DropoutBackend& metal_dropout() {
  static const MetalDropoutBackend backend;
  return backend;
}

namespace metal {

Node make_dropout_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Dropout>();
  if (kernel == nullptr) {
    return {};
  }
  const DropoutSettings& settings = kernel->settings();
  const MaskStride& stride = settings.stride;
  return adopt_node([[MPSCNNDropoutNode alloc]
          initWithSource:request.source()
         keepProbability:settings.keep_probability
                    seed:static_cast<NSUInteger>(settings.seed)
      maskStrideInPixels:MTLSizeMake(static_cast<NSUInteger>(stride.width),
                                     static_cast<NSUInteger>(stride.height),
                                     static_cast<NSUInteger>(stride.depth))]);
}

StateAdopter dropout_state_adopter(const State& like) {
  const auto* ours = dynamic_cast<const DropoutGradientState*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  return [snapshot = ours->snapshot()](MPSState* made,
                                       StateAdoption& adoption) -> std::shared_ptr<State> {
    auto result =
        std::make_shared<DropoutGradientState>(adoption.device, adoption.owner(), snapshot);
    result->payload = adoption.payload(made);
    result->note_forward(*adoption.command_buffer);
    return result;
  };
}

}  // namespace metal
}  // namespace mpsgrad
