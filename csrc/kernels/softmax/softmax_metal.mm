// Softmax kernels of the Metal device (MPSCNNSoftMax, MPSCNNLogSoftMax and their gradients).
#include "kernels/softmax/softmax.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

class MetalSoftMaxBackend final : public SoftMaxBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device, SoftMaxKind kind) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const bool log = kind == SoftMaxKind::Log;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        log ? static_cast<MPSCNNKernel*>([[MPSCNNLogSoftMax alloc] initWithDevice:own])
            : [[MPSCNNSoftMax alloc] initWithDevice:own],
        log ? "MPSCNNLogSoftMax" : "MPSCNNSoftMax"));
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device, SoftMaxKind kind) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    const bool log = kind == SoftMaxKind::Log;
    return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
        log ? static_cast<MPSCNNGradientKernel*>(
                  [[MPSCNNLogSoftMaxGradient alloc] initWithDevice:own])
            : [[MPSCNNSoftMaxGradient alloc] initWithDevice:own],
        log ? "MPSCNNLogSoftMaxGradient" : "MPSCNNSoftMaxGradient"));
  }
};

}  // namespace

const SoftMaxBackend& metal_softmax() {
  static const MetalSoftMaxBackend backend;
  return backend;
}

namespace metal {

Node make_softmax_node(const NodeRequest& request) {
  if (request.kernel<SoftMax>() != nullptr) {
    return adopt_node([[MPSCNNSoftMaxNode alloc] initWithSource:request.source()]);
  }
  if (request.kernel<LogSoftMax>() != nullptr) {
    return adopt_node([[MPSCNNLogSoftMaxNode alloc] initWithSource:request.source()]);
  }
  return {};
}

}  // namespace metal
}  // namespace mpsgrad
