// Rules of the kernels that read between pixels.
#include "kernels/resize/resize.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const ResizeBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->resize(), "resize");
}

ResizeSize checked_size(const char* who, Index width, Index height) {
  const auto check = [&](const char* name, Index value) {
    require(value >= 1 && value <= kMaximumImageSide, who, ": ", name, " must be from 1 to ",
            kMaximumImageSide, ", got ", value);
  };
  check("resize_width", width);
  check("resize_height", height);
  return {width, height};
}

NormalizedRegions checked_regions(const char* who, NormalizedRegions regions) {
  require(!regions.empty(), who, ": regions must hold at least one");
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const NormalizedRegion& r = regions[i];
    // Sums too, which are the far edges.
    require(std::isfinite(r.x + r.width) && std::isfinite(r.y + r.height), who, ": region ", i,
            " must be finite, got (", r.x, ", ", r.y, ", ", r.width, ", ", r.height, ")");
  }
  return regions;
}

void set_size(const ResizeSize& size, ImageDescriptor& result) {
  result.width = size.width;
  result.height = size.height;
}

}  // namespace

ResizeBilinear::ResizeBilinear(std::shared_ptr<Device> device, Index width, Index height,
                               bool align_corners)
    : UnaryKernel(std::move(device), "ResizeBilinear", {}),
      size_(checked_size(class_name(), width, height)),
      align_corners_(align_corners) {
  set_device_encoder(backend_of(*this).make_resize(*this->device(), size_, align_corners));
}

void ResizeBilinear::adjust_destination(const ImageBatch::Images&, Index, ImageDescriptor& result) {
  set_size(size_, result);
}

CropAndResizeBilinear::CropAndResizeBilinear(std::shared_ptr<Device> device, Index width,
                                             Index height, NormalizedRegions regions)
    : UnaryKernel(std::move(device), "CropAndResizeBilinear", {}),
      size_(checked_size(class_name(), width, height)),
      regions_(checked_regions(class_name(), std::move(regions))) {
  set_device_encoder(backend_of(*this).make_crop_and_resize(*this->device(), size_, regions_));
}

ImageBatch::Images CropAndResizeBilinear::for_each_region(const ImageBatch::Images& sources) const {
  ImageBatch::Images repeated;
  repeated.reserve(sources.size() * regions_.size());
  for (const auto& source : sources) {
    repeated.insert(repeated.end(), regions_.size(), source);
  }
  return repeated;
}

void CropAndResizeBilinear::encode_regions(const std::shared_ptr<CommandBuffer>& command_buffer,
                                           const ImageBatch::Images& sources,
                                           const ImageBatch::Images& destinations) {
  require(destinations.size() == sources.size() * regions_.size(), class_name(), ": ",
          sources.size(), " source images and ", regions_.size(), " regions make ",
          sources.size() * regions_.size(), " results, but destination has ", destinations.size(),
          " images");
  encode(command_buffer, for_each_region(sources), {}, destinations, true);
}

std::shared_ptr<ImageBatch> CropAndResizeBilinear::encode_regions_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& sources,
    ImageAllocator* allocator) {
  return encode_creating(command_buffer, for_each_region(sources), true, false, false, allocator)
      .images;
}

void CropAndResizeBilinear::adjust_destination(const ImageBatch::Images&, Index,
                                               ImageDescriptor& result) {
  set_size(size_, result);
}

void CropAndResizeBilinear::check_call(const UnaryCall& call) const {
  require(call.properties.edge_mode == EdgeMode::Zero, class_name(),
          ": edge_mode must be ZERO, for what lies outside the source is 0, got ",
          call.properties.edge_mode);
}

GridSample::GridSample(std::shared_ptr<Device> device)
    : ForwardBinaryKernel(std::move(device), "GridSample", {}, {}) {
  set_device_encoder(backend_of(*this).make_grid_sample(*this->device()));
  properties_.settings = GridSampleSettings{};
}

void GridSample::set_use_grid_value_as_input_coordinate(bool value) {
  properties_.settings = GridSampleSettings{value};
}

void GridSample::check_stride(bool, const char* property, Index value) const {
  require(value == 1, class_name(), ": ", property, " must be 1, got ", value);
}

Index GridSample::produced_channels(Index primary, Index secondary) const {
  require(secondary == 2, class_name(),
          ": secondary is a grid of 2 channels, x and y, but it offers ", secondary);
  return primary;
}

Index GridSample::placed_size(bool, Index, Index secondary) const { return secondary; }

}  // namespace mpsgrad
