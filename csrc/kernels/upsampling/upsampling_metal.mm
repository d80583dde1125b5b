// Upsampling kernels of the Metal device (MPSCNNUpsampling... and MPSCNNUpsampling...Gradient).
#include "kernels/upsampling/upsampling.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

using metal::to_ns;

class MetalUpsamplingBackend final : public UpsamplingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device, UpsamplingKind kind,
                                             const UpsamplingFactors& factors,
                                             bool align_corners) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    MPSCNNKernel* kernel = nil;
    if (kind == UpsamplingKind::Nearest) {
      kernel = [[MPSCNNUpsamplingNearest alloc] initWithDevice:own
                                           integerScaleFactorX:to_ns(factors.x)
                                           integerScaleFactorY:to_ns(factors.y)];
    } else {
      kernel = [[MPSCNNUpsamplingBilinear alloc] initWithDevice:own
                                            integerScaleFactorX:to_ns(factors.x)
                                            integerScaleFactorY:to_ns(factors.y)
                                                   alignCorners:align_corners];
    }
    return std::make_unique<metal::MetalUnaryEncoder>(
        metal::adopt_kernel(kernel, "MPSCNNUpsampling"));
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device, UpsamplingKind kind,
                                                 const UpsamplingFactors& factors) const override {
    const metal::PoolScope pool;
    const id<MTLDevice> own = metal::mtl_device(device);
    MPSCNNGradientKernel* kernel = nil;
    if (kind == UpsamplingKind::Nearest) {
      kernel = [[MPSCNNUpsamplingNearestGradient alloc] initWithDevice:own
                                                   integerScaleFactorX:to_ns(factors.x)
                                                   integerScaleFactorY:to_ns(factors.y)];
    } else {
      kernel = [[MPSCNNUpsamplingBilinearGradient alloc] initWithDevice:own
                                                    integerScaleFactorX:to_ns(factors.x)
                                                    integerScaleFactorY:to_ns(factors.y)];
    }
    return std::make_unique<metal::MetalGradientEncoder>(
        metal::adopt_kernel(kernel, "MPSCNNUpsamplingGradient"));
  }
};

}  // namespace

const UpsamplingBackend& metal_upsampling() {
  static const MetalUpsamplingBackend backend;
  return backend;
}

namespace metal {

Node make_upsampling_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Upsampling>();
  if (kernel == nullptr) {
    return {};
  }
  const UpsamplingFactors& factors = kernel->factors();
  if (request.kernel<UpsamplingNearest>() != nullptr) {
    return adopt_node([[MPSCNNUpsamplingNearestNode alloc] initWithSource:request.source()
                                                      integerScaleFactorX:to_ns(factors.x)
                                                      integerScaleFactorY:to_ns(factors.y)]);
  }
  return adopt_node([[MPSCNNUpsamplingBilinearNode alloc] initWithSource:request.source()
                                                     integerScaleFactorX:to_ns(factors.x)
                                                     integerScaleFactorY:to_ns(factors.y)
                                                            alignCorners:kernel->align_corners()]);
}

}  // namespace metal
}  // namespace mpsgrad
