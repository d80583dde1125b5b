// Kernels that read between pixels: an image in another size (MPSNNResizeBilinear), parts of one in
// another size (MPSNNCropAndResizeBilinear), and the places that a second image names
// (MPSNNGridSample). There is no gradient of any, so none has a state.
#pragma once

#include <memory>
#include <vector>

#include "core/binary_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

struct ResizeSize {
  Index width = 1, height = 1;
};

// MPSRegion without z and depth, in parts of an image: (0, 0) is the centre of its first pixel and
// (1, 1) that of its last.
struct NormalizedRegion {
  double x = 0.0, y = 0.0, width = 1.0, height = 1.0;
};
using NormalizedRegions = std::vector<NormalizedRegion>;

// What a device supplies to run the family.
class ResizeBackend {
 public:
  virtual ~ResizeBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_resize(Device& device, const ResizeSize& size,
                                                    bool align_corners) const = 0;
  // Calls come as batches: source i is read in region i % regions.size().
  virtual std::unique_ptr<UnaryEncoder> make_crop_and_resize(
      Device& device, const ResizeSize& size, const NormalizedRegions& regions) const = 0;
  // Finds GridSampleSettings in the call.
  virtual std::unique_ptr<BinaryEncoder> make_grid_sample(Device& device) const = 0;
};

struct GridSampleSettings {
  bool holds_positions = true;  // the grid; else offsets from each result's own place
  bool operator==(const GridSampleSettings&) const = default;
};
inline bool holds_positions(const BinaryProperties& properties) {
  return properties.settings.as<GridSampleSettings>().holds_positions;
}

// Result pixel i of an axis lies at offset + i * length / size, or with aligned corners at
// offset + i * (length - 1) / (size - 1).
class ResizeBilinear final : public UnaryKernel {
 public:
  ResizeBilinear(std::shared_ptr<Device> device, Index width, Index height, bool align_corners);
  const ResizeSize& size() const { return size_; }
  bool align_corners() const { return align_corners_; }

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;
  }

 private:
  ResizeSize size_;
  bool align_corners_;
};

// A result for each source and region, those of one source after the other. The base class has one
// result a source: it is given each source once for every region. So the offset's z counts results
// too.
class CropAndResizeBilinear final : public UnaryKernel {
 public:
  CropAndResizeBilinear(std::shared_ptr<Device> device, Index width, Index height,
                        NormalizedRegions regions);
  const ResizeSize& size() const { return size_; }
  const NormalizedRegions& regions() const { return regions_; }
  Index region_count() const { return static_cast<Index>(regions_.size()); }

  // In place of encode() and encode_creating().
  void encode_regions(const std::shared_ptr<CommandBuffer>& command_buffer,
                      const ImageBatch::Images& sources, const ImageBatch::Images& destinations);
  std::shared_ptr<ImageBatch> encode_regions_creating(
      const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& sources,
      ImageAllocator* allocator);

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;
  }
  void check_call(const UnaryCall& call) const override;

 private:
  ImageBatch::Images for_each_region(const ImageBatch::Images& sources) const;

  ResizeSize size_;
  NormalizedRegions regions_;
};

// The primary source at places that the secondary one, the grid, holds in its two channels: x and
// y, in pixels; or at so many pixels from each result's own place. primary_offset is added to both.
class GridSample final : public ForwardBinaryKernel {
 public:
  explicit GridSample(std::shared_ptr<Device> device);
  bool use_grid_value_as_input_coordinate() const { return holds_positions(properties()); }
  void set_use_grid_value_as_input_coordinate(bool value);

 protected:
  void check_stride(bool secondary, const char* property, Index value) const override;
  Index produced_channels(Index primary, Index secondary) const override;
  Index placed_size(bool vertical, Index primary, Index secondary) const override;
};

}  // namespace mpsgrad
