// Resize kernels of the Metal device (MPSNNResizeBilinear, MPSNNCropAndResizeBilinear,
// MPSNNGridSample).
#include <vector>

#include "kernels/resize/resize.hpp"
#include "metal/metal_calls.hpp"

namespace mpsgrad {
namespace {

using metal::Retained;
using metal::to_ns;

// Apple's header does not say where the results of several regions go, so each has a kernel of its
// own.
class MetalCropAndResize final : public UnaryEncoder {
 public:
  MetalCropAndResize(id<MTLDevice> device, const ResizeSize& size,
                     const NormalizedRegions& regions) {
    for (const NormalizedRegion& r : regions) {
      regions_.push_back({{r.x, r.y, 0.0}, {r.width, r.height, 1.0}});
    }
    for (const MPSRegion& region : regions_) {
      kernels_.push_back(
          metal::adopt_kernel([[MPSNNCropAndResizeBilinear alloc] initWithDevice:device
                                                                     resizeWidth:to_ns(size.width)
                                                                    resizeHeight:to_ns(size.height)
                                                                 numberOfRegions:1
                                                                         regions:&region],
                              "MPSNNCropAndResizeBilinear"));
    }
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    const auto count = static_cast<Index>(kernels_.size());
    for (Index first = 0; first < std::min(count, call.images()); ++first) {
      encode_one(command_buffer, call, first, count);
    }
  }

 private:
  // Images first, first + step and so on of the work, which have one region.
  void encode_one(CommandBuffer& command_buffer, const UnaryCall& call, Index first, Index step) {
    ImageBatch::Images sources, destinations;
    for (Index i = first; i < call.images(); i += step) {
      sources.push_back(call.sources[static_cast<std::size_t>(call.first_source + i)]);
      destinations.push_back(call.destinations[static_cast<std::size_t>(call.clip.origin.z + i)]);
    }
    UnaryProperties properties = call.properties;
    properties.offset.z = 0;
    UnaryCall part{sources,
                   destinations,
                   call.states,
                   true,
                   properties,
                   call.clip,
                   0,
                   call.consumed_channels,
                   call.produced_channels,
                   call.kernel};
    part.clip.origin.z = 0;
    part.clip.size.depth = static_cast<Index>(sources.size());
    const auto region = static_cast<std::size_t>((call.first_source + first) % step);
    metal::encode(command_buffer, kernels_[region].get(), part);
  }

  std::vector<MPSRegion> regions_;  // which Apple's kernels may point to
  std::vector<Retained<MPSNNCropAndResizeBilinear*>> kernels_;
};

class MetalGridSample final : public BinaryEncoder {
 public:
  explicit MetalGridSample(id<MTLDevice> device)
      : kernel_(metal::adopt_kernel([[MPSNNGridSample alloc] initWithDevice:device],
                                    "MPSNNGridSample")) {}

  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const metal::PoolScope pool;
    MPSNNGridSample* kernel = kernel_.get();
    metal::set_properties(kernel, call);
    kernel.useGridValueAsInputCoordinate = holds_positions(call.properties);
    metal::encode_prepared(command_buffer, kernel, call);
  }

 private:
  Retained<MPSNNGridSample*> kernel_;
};

class MetalResizeBackend final : public ResizeBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_resize(Device& device, const ResizeSize& size,
                                            bool align_corners) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        [[MPSNNResizeBilinear alloc] initWithDevice:metal::mtl_device(device)
                                        resizeWidth:to_ns(size.width)
                                       resizeHeight:to_ns(size.height)
                                       alignCorners:align_corners],
        "MPSNNResizeBilinear"));
  }
  std::unique_ptr<UnaryEncoder> make_crop_and_resize(
      Device& device, const ResizeSize& size, const NormalizedRegions& regions) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalCropAndResize>(metal::mtl_device(device), size, regions);
  }
  std::unique_ptr<BinaryEncoder> make_grid_sample(Device& device) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalGridSample>(metal::mtl_device(device));
  }
};

}  // namespace

const ResizeBackend& metal_resize() {
  static const MetalResizeBackend backend;
  return backend;
}

}  // namespace mpsgrad
