// Upsampling kernels of the Metal device (MPSCNNUpsampling... and MPSCNNUpsampling...Gradient).
#include "kernels/upsampling/upsampling.hpp"
#include "metal/metal_calls.hpp"

namespace mpsgrad {
namespace {

NSUInteger to_ns(Index value) { return static_cast<NSUInteger>(value); }

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

}  // namespace mpsgrad
