// Neuron kernels of the Metal device (MPSCNNNeuron, MPSCNNNeuronGradient).
#include "kernels/neuron/neuron.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"
#include "metal/metal_neuron.hpp"

namespace mpsgrad {
namespace {

class MetalNeuronBackend final : public NeuronBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device,
                                             const NeuronDescriptor& neuron) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        [[MPSCNNNeuron alloc] initWithDevice:metal::mtl_device(device)
                            neuronDescriptor:metal::to_mps(neuron)],
        "MPSCNNNeuron"));
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                 const NeuronDescriptor& neuron) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
        [[MPSCNNNeuronGradient alloc] initWithDevice:metal::mtl_device(device)
                                    neuronDescriptor:metal::to_mps(neuron)],
        "MPSCNNNeuronGradient"));
  }
};

}  // namespace

const NeuronBackend& metal_neuron() {
  static const MetalNeuronBackend backend;
  return backend;
}

namespace metal {

Node make_neuron_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Neuron>();
  if (kernel == nullptr || kernel->neuron().type == NeuronType::None) {
    return {};
  }
  return Node::share([MPSCNNNeuronNode nodeWithSource:request.source()
                                           descriptor:metal::to_mps(kernel->neuron())]);
}

}  // namespace metal
}  // namespace mpsgrad
