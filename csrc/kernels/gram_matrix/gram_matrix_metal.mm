// Gram matrix kernels of the Metal device (MPSNNGramMatrixCalculation and
// MPSNNGramMatrixCalculationGradient).
#include "kernels/gram_matrix/gram_matrix.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

// Both kernels know no clip rectangle, not even one of the whole destination.
template <class Kernel, class Properties>
void set_own_properties(Kernel* kernel, const Properties& properties) {
  kernel.clipRect = MPSRectNoClip;
  kernel.alpha = gram_matrix_alpha(properties);
}

class MetalGramMatrix final : public UnaryEncoder {
 public:
  explicit MetalGramMatrix(Device& device) {
    const metal::PoolScope pool;
    kernel_ = metal::adopt_kernel(
        [[MPSNNGramMatrixCalculation alloc] initWithDevice:metal::mtl_device(device)],
        "MPSNNGramMatrixCalculation");
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    metal::set_properties(kernel_.get(), call);
    set_own_properties(kernel_.get(), call.properties);
    metal::encode_prepared(
        command_buffer, kernel_.get(), call,
        metal::fill_states(as<metal::MetalCommandBuffer>(command_buffer), kernel_.get(), call,
                           metal::mps_images(call.sources, false),
                           metal::mps_images(call.destinations, true)));
  }
  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    const auto set_more = [](MPSCNNKernel* kernel, const UnaryProperties& properties) {
      set_own_properties(static_cast<MPSNNGramMatrixCalculation*>(kernel), properties);
    };
    return std::make_shared<metal::MetalStatePayload>(
        metal::state_maker(metal::Retained<MPSCNNKernel*>::share(kernel_.get()), +set_more));
  }

 private:
  metal::Retained<MPSNNGramMatrixCalculation*> kernel_;
};

class MetalGramMatrixGradient final : public GradientEncoder {
 public:
  explicit MetalGramMatrixGradient(Device& device) {
    const metal::PoolScope pool;
    kernel_ = metal::adopt_kernel(
        [[MPSNNGramMatrixCalculationGradient alloc] initWithDevice:metal::mtl_device(device)],
        "MPSNNGramMatrixCalculationGradient");
  }

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const metal::PoolScope pool;
    metal::set_properties(kernel_.get(), call);
    set_own_properties(kernel_.get(), call.properties);
    metal::encode_prepared(command_buffer, kernel_.get(), call);
  }

 private:
  metal::Retained<MPSNNGramMatrixCalculationGradient*> kernel_;
};

class MetalGramMatrixBackend final : public GramMatrixBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device) const override {
    return std::make_unique<MetalGramMatrix>(device);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device) const override {
    return std::make_unique<MetalGramMatrixGradient>(device);
  }
};

}  // namespace

const GramMatrixBackend& metal_gram_matrix() {
  static const MetalGramMatrixBackend backend;
  return backend;
}

namespace metal {

Node make_gram_matrix_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<GramMatrixCalculation>();
  return kernel == nullptr
             ? Node()
             : adopt_node([[MPSNNGramMatrixCalculationNode alloc] initWithSource:request.source()
                                                                           alpha:kernel->alpha()]);
}

}  // namespace metal
}  // namespace mpsgrad
