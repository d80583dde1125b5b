// Resize kernels of the CPU device. Images in another size are made row by row of at most two
// source rows each; of a grid, every result finds its own four pixels.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "cpu/interpolation.hpp"
#include "kernels/resize/resize.hpp"
#include "kernels/resize/resize_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;
using cpu::InterpolationAxis;
using cpu::InterpolationGrid;

// --- Resize ---------------------------------------------------------------------------------

std::vector<InterpolationTaps> resized(const InterpolationAxis& axis, Index size,
                                       bool align_corners, Index results) {
  std::vector<InterpolationTaps> taps;
  taps.reserve(static_cast<std::size_t>(results));
  for (Index i = 0; i < results; ++i) {
    taps.push_back(cpu::taps_between(axis, cpu::position_of(i, axis.length, size, align_corners)));
  }
  return taps;
}

class CpuResize final : public UnaryEncoder {
 public:
  CpuResize(const ResizeSize& size, bool align_corners)
      : size_(size), align_corners_(align_corners) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const UnaryProperties& p = call.properties;
    CpuImages source = cpu::view_source(call);
    const InterpolationAxis x{source.width, p.offset.x, p.edge_mode};
    const InterpolationAxis y{source.height, p.offset.y, p.edge_mode};
    const Index rows_together = cpu::chunks_of(size_.height, source.height);
    cpu::record(command_buffer,
                [x, y, size = size_, align_corners = align_corners_,
                 work = cpu::Interpolation{std::move(source), cpu::view_destination(call),
                                           call.clip, false, rows_together}] {
                  const Size& clip = work.clip.size;
                  const InterpolationGrid grid{resized(x, size.width, align_corners, clip.width),
                                               resized(y, size.height, align_corners, clip.height)};
                  cpu::interpolate(work, {&grid, 1});
                });
  }

 private:
  ResizeSize size_;
  bool align_corners_;
};

// --- Crop and resize ------------------------------------------------------------------------

// The source pixels of the first `results` results of an axis; none of those outside the source.
std::vector<InterpolationTaps> cropped(Index length, Index offset, double begin, double extent,
                                       Index size, Index results) {
  const auto last = static_cast<double>(length - 1);
  std::vector<InterpolationTaps> taps(static_cast<std::size_t>(results));
  for (Index i = 0; i < results; ++i) {
    // So that the far edge of a region is reached exactly.
    const double part = size == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(size - 1);
    const double position = (begin + extent * part) * last + static_cast<double>(offset);
    if (position >= 0.0 && position <= last) {
      const double below = std::floor(position);
      taps[static_cast<std::size_t>(i)] =
          cpu::taps_between({length}, {static_cast<Index>(below), position - below});
    }
  }
  return taps;
}

class CpuCropAndResize final : public UnaryEncoder {
 public:
  CpuCropAndResize(const ResizeSize& size, const NormalizedRegions& regions)
      : size_(size), regions_(std::make_shared<const NormalizedRegions>(regions)) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    CpuImages destination =
        cpu::view_destination(call.destinations, call.batch, call.clip,
                              call.properties.destination_channel_offset, call.produced_channels);
    cpu::record(command_buffer, [size = size_, regions = regions_, first = call.first_source,
                                 offset = call.properties.offset,
                                 work = cpu::Interpolation{cpu::view_source(call),
                                                           std::move(destination), call.clip}] {
      const Size& clip = work.clip.size;
      std::vector<InterpolationGrid> grids;
      for (const NormalizedRegion& r : *regions) {
        grids.push_back(
            {cropped(work.source.width, offset.x, r.x, r.width, size.width, clip.width),
             cropped(work.source.height, offset.y, r.y, r.height, size.height, clip.height)});
      }
      cpu::interpolate(work, grids, first);
    });
  }

 private:
  ResizeSize size_;
  std::shared_ptr<const NormalizedRegions> regions_;
};

// --- Grid sample ----------------------------------------------------------------------------

constexpr Index kTaskFloats = 1 << 15;                   // about what one task writes
constexpr int kGrid = 0, kResults = 1, kNeighbours = 2;  // scratch of a thread

struct GridWork {
  CpuImages image, grid, destination;
  Region clip;
  Offset image_offset, grid_offset;
  EdgeMode image_edge, grid_edge;
  bool holds_positions;
};

// Results of one run of an image that the loops read as it lies.
template <class Element>
void sample_placed(const CpuImages& image, Index sample, const GridTaps& x, const GridTaps& y,
                   Index pixels, Results<Element> out) {
  const auto* begin = reinterpret_cast<const Element*>(image.pixel(sample, 0, 0));
  grid_loops().of(out.at).sample({begin, image.channels}, x, y, 0, pixels, out);
}

// Pixels of another format are converted where they are read, four side by side; the taps are
// pixels.
void sample_converted(const CpuImages& image, Index sample, const GridTaps& x, const GridTaps& y,
                      Index pixels, Results<float> out) {
  const Index channels = image.channels;
  float* const four = cpu::thread_scratch(kNeighbours, 4 * channels);
  GridTaps across = x, down = y;
  for (Index k = 0; k < 2; ++k) {
    std::fill_n(across.offset[k], pixels, k * channels);
    std::fill_n(down.offset[k], pixels, 2 * k * channels);
  }
  for (Index i = 0; i < pixels; ++i) {
    for (Index k = 0; k < 4; ++k) {
      cpu::load_run(image, sample, y.offset[k / 2][i], x.offset[k % 2][i], 1, four + k * channels);
    }
    out.at += i == 0 ? 0 : channels;
    grid_loops().floats.sample({four, channels}, across, down, i, 1, out);
  }
}

template <class Element>
void run(const GridWork& work) {
  const Size& size = work.clip.size;
  const Index channels = work.image.channels;
  const Index step = work.holds_positions ? 0 : 1;
  const bool clamps = work.image_edge == EdgeMode::Clamp;
  const bool placed = std::is_same_v<Element, Half> || work.image.is_float();
  const Index column_stride = placed ? work.image.pixel_stride : 1;
  const Index row_stride = placed ? work.image.row_stride : 1;
  const Index run_pixels = std::min(kGridRun, size.width);
  const Index group = std::max<Index>(1, kTaskFloats / (size.width * channels));
  const Index groups = cpu::chunks_of(size.height, group);
  cpu::parallel_for(size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const Index first_row = task % groups * group;
    float* const grid_scratch = cpu::thread_scratch(kGrid, 2 * run_pixels);
    auto* const scratch = cpu::scratch_of<Element>(kResults, run_pixels * channels);
    GridTaps x, y;
    for (Index j = first_row; j < std::min(size.height, first_row + group); ++j) {
      for (Index i = 0; i < size.width; i += run_pixels) {
        const Index pixels = std::min(run_pixels, size.width - i);
        const float* const grid =
            cpu::load_row_with_edges(work.grid, sample, work.grid_offset.y + j,
                                     work.grid_offset.x + i, pixels, work.grid_edge, grid_scratch);
        const auto& loops = grid_loops().floats;
        loops.find(
            grid, pixels,
            {0, work.image_offset.x + i * step, step, work.image.width, column_stride, clamps}, x);
        loops.find(grid, pixels,
                   {1, work.image_offset.y + j * step, 0, work.image.height, row_stride, clamps},
                   y);
        const Index to_y = work.clip.origin.y + j, to_x = work.clip.origin.x + i;
        const Results<Element> out =
            cpu::begin_results(work.destination, sample, to_y, to_x, scratch);
        if constexpr (std::is_same_v<Element, float>) {
          placed ? sample_placed(work.image, sample, x, y, pixels, out)
                 : sample_converted(work.image, sample, x, y, pixels, out);
        } else {
          sample_placed(work.image, sample, x, y, pixels, out);
        }
        cpu::finish_results(work.destination, sample, to_y, to_x, pixels, out);
      }
    }
  });
}

class CpuGridSample final : public BinaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const BinaryProperties& p = call.properties;
    const auto view = [&](const ImageBatch::Images& images, Index first,
                          const SourceProperties& source, Index channels) {
      return cpu::view_images(images, call.batch, first, call.images(), source.channel_offset,
                              channels);
    };
    GridWork work{view(call.primaries, call.first_primary, p.primary, call.primary_channels),
                  view(call.secondaries, call.first_secondary, p.secondary, 2),
                  cpu::view_destination(call.destinations, call.batch, call.clip,
                                        p.destination_channel_offset, call.produced_channels),
                  call.clip,
                  p.primary.offset,
                  p.secondary.offset,
                  p.primary.edge_mode,
                  p.secondary.edge_mode,
                  holds_positions(p)};
    cpu::record(command_buffer, [work = std::move(work)] {
      const bool halves =
          work.image.format == ChannelFormat::Float16 && work.destination.has_halves();
      halves ? run<Half>(work) : run<float>(work);
    });
  }
};

class CpuResizeBackend final : public ResizeBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_resize(Device&, const ResizeSize& size,
                                            bool align_corners) const override {
    return std::make_unique<CpuResize>(size, align_corners);
  }
  std::unique_ptr<UnaryEncoder> make_crop_and_resize(
      Device&, const ResizeSize& size, const NormalizedRegions& regions) const override {
    return std::make_unique<CpuCropAndResize>(size, regions);
  }
  std::unique_ptr<BinaryEncoder> make_grid_sample(Device&) const override {
    return std::make_unique<CpuGridSample>();
  }
};

}  // namespace

const ResizeBackend& cpu_resize() {
  static const CpuResizeBackend backend;
  return backend;
}

}  // namespace mpsgrad
