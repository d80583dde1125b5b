// Reductions of the CPU device: every source element is read once, and results take what room they
// have.
#include <algorithm>
#include <array>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/reduction/reduction.hpp"
#include "kernels/reduction/reduction_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;

constexpr int kResults = 1;  // slots of thread_scratch(); 0 is for sources
constexpr int kShifted = 2;

// Some of the pixels of each image.
CpuImages within(CpuImages images, const Region& region) {
  for (std::byte*& sample : images.samples) {
    sample += (region.origin.y * images.row_stride + region.origin.x * images.pixel_stride) *
              item_size(images.format);
  }
  images.width = region.size.width;
  images.height = region.size.height;
  return images;
}

CpuImages view_region(const UnaryCall& call) {
  return within(cpu::view_source(call),
                source_region(reduction_settings(call.properties).source_clip,
                              call.sources.front()->descriptor()));
}

CpuImages view_region(const BinaryCall& call, bool secondary) {
  const ImageBatch::Images& images = secondary ? call.secondaries : call.primaries;
  const CpuImages view =
      cpu::view_images(images, call.batch, secondary ? call.first_secondary : call.first_primary,
                       call.images(), call.properties.source(secondary).channel_offset,
                       secondary ? call.secondary_channels : call.primary_channels);
  return within(view, source_region(reduction_settings(call.properties).source_clip(secondary),
                                    images.front()->descriptor()));
}

CpuImages view_results(const BinaryCall& call) {
  return cpu::view_destination(call.destinations, call.batch, call.clip,
                               call.properties.destination_channel_offset, call.produced_channels);
}

FoldKind fold_of(ReductionKind kind) {
  switch (kind) {
    case ReductionKind::Min:
      return FoldKind::Min;
    case ReductionKind::Max:
      return FoldKind::Max;
    default:
      return FoldKind::Sum;
  }
}

// Joins what lies in some rows of a sample, `across` pixels from (first, x) on to the same pixels
// of each of the `rows` rows below, as `out` will hold them.
void fold_down(const CpuImages& source, FoldKind kind, Index sample, Index x, Index across,
               float* out) {
  const Index channels = source.channels;
  const auto in_place = [&]<class Element>(const Element*) {
    const auto& loops = reduction_loops().of(static_cast<Element*>(nullptr));
    const auto* from = reinterpret_cast<const Element*>(source.pixel(sample, 0, x));
    if (source.dense_pixels()) {
      return loops.fold(kind, from, source.row_stride, source.height, across * channels, out, true);
    }
    for (Index i = 0; i < across; ++i) {
      loops.fold(kind, from + i * source.pixel_stride, source.row_stride, source.height, channels,
                 out + i * channels, true);
    }
  };
  if (source.format == ChannelFormat::Float32) {
    return in_place(static_cast<const float*>(nullptr));
  }
  if (source.format == ChannelFormat::Float16) {
    return in_place(static_cast<const Half*>(nullptr));
  }
  float* scratch = cpu::thread_scratch(0, across * channels);
  for (Index y = 0; y < source.height; ++y) {
    const float* row = cpu::load_run(source, sample, y, x, across, scratch);
    reduction_loops().of(scratch).fold(kind, row, 0, 1, across * channels, out, y == 0);
  }
}

// Pixels of a few whole vectors have a loop of their own. Others of few channels are joined as if
// the quarters of the row, or shorter pieces if that would be too many, lay below each other:
// memory answers some streams faster than one. Then follow the pixels of what is left, and those
// beyond the pieces.
template <class Element>
void fold_pixels(FoldKind kind, const Element* row, Index stride, Index pixels, Index channels,
                 float* out, bool first) {
  constexpr Index kFewChannels = 32;
  constexpr Index kFloats = 2048;
  constexpr Index kStreams = 4;
  const auto& loops = reduction_loops().of(static_cast<Element*>(nullptr));
  if (first && stride == channels && loops.fold_narrow(kind, row, pixels, channels, out)) {
    return;
  }
  const Index group = std::min(kFloats / channels, pixels / kStreams);
  if (channels > kFewChannels || stride != channels || group < 2) {
    return loops.fold(kind, row, stride, pixels, channels, out, first);
  }
  std::array<float, kFloats> joined;
  const Index groups = pixels / group;
  loops.fold(kind, row, group * channels, groups, group * channels, joined.data(), true);
  reduction_loops().of(out).fold(kind, joined.data(), channels, group, channels, out, first);
  const Index done = groups * group;
  if (done < pixels) {
    loops.fold(kind, row + done * channels, channels, pixels - done, channels, out, false);
  }
}

void fold_across(const CpuImages& source, FoldKind kind, Index sample, Index y, float* out) {
  if (source.format == ChannelFormat::Float32 || source.format == ChannelFormat::Float16) {
    const std::byte* row = source.pixel(sample, y, 0);
    return source.is_float()
               ? fold_pixels(kind, reinterpret_cast<const float*>(row), source.pixel_stride,
                             source.width, source.channels, out, true)
               : fold_pixels(kind, reinterpret_cast<const Half*>(row), source.pixel_stride,
                             source.width, source.channels, out, true);
  }
  constexpr Index kPiece = 4096;  // floats
  const Index piece = std::clamp<Index>(kPiece / source.channels, 1, source.width);
  float* scratch = cpu::thread_scratch(0, piece * source.channels);
  for (Index x = 0; x < source.width; x += piece) {
    const Index some = std::min(piece, source.width - x);
    const float* pixels = cpu::load_run(source, sample, y, x, some, scratch);
    fold_pixels(kind, pixels, source.channels, some, source.channels, out, x == 0);
  }
}

// Calls fill(sample, i, count, out) for results i to i + count of each image, which lie side by
// side or below each other; what one thread takes reads at least `read` floats a result.
template <class Fill>
void each_result(const CpuImages& destination, const Region& clip, bool vertical, float divisor,
                 Index read, const Fill& fill) {
  constexpr Index kFloats = 16384;  // read by a task
  // Results that are made together, in floats: long runs of the source, but tasks for all.
  constexpr Index kMostTogether = 8192, kLeastTogether = 512;
  constexpr Index kTasks = 16;
  const Index channels = destination.channels;
  const Index length = vertical ? clip.size.height : clip.size.width;
  const Index shared = clip.size.depth * length * channels / kTasks;
  const Index most =
      vertical ? kFloats / read : std::clamp(shared, kLeastTogether, kMostTogether) / channels;
  const Index group = std::clamp<Index>(most, 1, length);
  const Index groups = cpu::chunks_of(length, group);
  cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const Index first = task % groups * group;
    const Index count = std::min(group, length - first);
    const Index together = vertical ? 1 : count;
    float* scratch = cpu::thread_scratch(kResults, together * channels);
    for (Index i = first; i < first + count; i += together) {
      const Index y = clip.origin.y + (vertical ? i : 0);
      const Index x = clip.origin.x + (vertical ? 0 : i);
      float* out = cpu::begin_store(destination, sample, y, x, scratch);
      fill(sample, i, together, out);
      if (divisor != 1.0F) {
        reduction_loops().of(out).divide(out, together * channels, divisor);
      }
      cpu::finish_store(destination, sample, y, x, together, out);
    }
  });
}

void reduce_rows(const CpuImages& source, const CpuImages& destination, const Region& clip,
                 FoldKind kind, bool mean) {
  const float divisor = mean ? static_cast<float>(source.width) : 1.0F;
  each_result(
      destination, clip, true, divisor, source.width * source.channels,
      [&](Index sample, Index i, Index, float* out) { fold_across(source, kind, sample, i, out); });
}

void reduce_columns(const CpuImages& source, const CpuImages& destination, const Region& clip,
                    FoldKind kind, bool mean) {
  const float divisor = mean ? static_cast<float>(source.height) : 1.0F;
  each_result(destination, clip, false, divisor, source.height * source.channels,
              [&](Index sample, Index i, Index count, float* out) {
                fold_down(source, kind, sample, i, count, out);
              });
}

PixelKind pixel_kind_of(ReductionKind kind) {
  switch (kind) {
    case ReductionKind::Min:
      return PixelKind::Min;
    case ReductionKind::Max:
      return PixelKind::Max;
    case ReductionKind::ArgumentMin:
      return PixelKind::ArgumentMin;
    case ReductionKind::ArgumentMax:
      return PixelKind::ArgumentMax;
    default:
      return PixelKind::Sum;
  }
}

class CpuReduceUnary final : public UnaryEncoder {
 public:
  CpuReduceUnary(ReductionAxis axis, ReductionKind kind) : axis_(axis), kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer, [axis = axis_, kind = kind_, source = view_region(call),
                                 destination = cpu::view_destination(call), clip = call.clip,
                                 weight = reduction_settings(call.properties).weight] {
      const bool mean = kind == ReductionKind::Mean;
      switch (axis) {
        case ReductionAxis::Row:
          return reduce_rows(source, destination, clip, fold_of(kind), mean);
        case ReductionAxis::Column:
          return reduce_columns(source, destination, clip, fold_of(kind), mean);
        case ReductionAxis::FeatureChannels:
          break;
      }
      const Index channels = source.channels;
      const float divisor = mean ? static_cast<float>(channels) : 1.0F;
      cpu::map_pixels({cpu::PixelSource{source, {}}}, destination, clip,
                      [&](const auto* const* in, auto* out, Index pixels) {
                        reduction_loops().of(out).pixels(pixel_kind_of(kind), in[0], out, pixels,
                                                         channels, weight, divisor);
                      });
    });
  }

 private:
  ReductionAxis axis_;
  ReductionKind kind_;
};

class CpuReduceProducts final : public BinaryEncoder {
 public:
  explicit CpuReduceProducts(ProductReduction kind) : kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const auto channels = static_cast<float>(call.primary_channels);
    const float divisor = kind_ == ProductReduction::Mean  ? channels
                          : kind_ == ProductReduction::Sum ? 1.0F
                                                           : 0.0F;
    cpu::record(command_buffer, [divisor, primary = view_region(call, false),
                                 secondary = view_region(call, true),
                                 destination = view_results(call), clip = call.clip] {
      cpu::map_pixels({cpu::PixelSource{primary, {}}, cpu::PixelSource{secondary, {}}}, destination,
                      clip, [&](const auto* const* in, auto* out, Index pixels) {
                        reduction_loops().of(out).products(in[0], in[1], out, pixels,
                                                           primary.channels, divisor);
                      });
    });
  }

 private:
  ProductReduction kind_;
};

// Bands of result rows, so that a row of the secondary, with what lies beyond its edges, is made
// once for all rows of the band that read it.
struct CorrelationWork {
  CorrelationWindow window;
  CpuImages primary, secondary;
  EdgeMode edge;
  CpuImages destination;
  Region clip;

  void run() const {
    constexpr Index kFloats = 1 << 15;      // of a row's results that are made together
    constexpr Index kBandFloats = 1 << 16;  // of a band, with what they are made of
    const Index across = std::clamp<Index>(kFloats / destination.channels, 1, clip.size.width);
    const Index pieces = cpu::chunks_of(clip.size.width, across);
    const Index height = clip.size.height;
    const Index fitting = kBandFloats / (across * (destination.channels + primary.channels));
    const Index shared = clip.size.depth * height * pieces / (4 * Index{cpu::thread_count()});
    const Index rows = std::clamp<Index>(std::min(fitting, shared), 1, height);
    const Index bands = cpu::chunks_of(height, rows);
    cpu::parallel_for(clip.size.depth * bands * pieces, [&](Index task) {
      const Index left = task % pieces * across;
      const Index top = task / pieces % bands * rows;
      make_band(task / pieces / bands, {left, top, std::min(across, clip.size.width - left),
                                        std::min(rows, height - top)});
    });
  }

 private:
  struct Band {
    Index left, top, width, height;
  };

  void make_band(Index sample, const Band& band) const {
    const Index channels = primary.channels;
    const Index row_floats = band.width * channels;
    const Index result_floats = band.width * destination.channels;
    float* const x_scratch = cpu::thread_scratch(0, band.height * row_floats);
    float* const out_scratch = cpu::thread_scratch(kResults, band.height * result_floats);
    std::vector<const float*> x;
    std::vector<float*> out;
    const Index to_x = clip.origin.x + band.left, to_y = clip.origin.y + band.top;
    for (Index r = 0; r < band.height; ++r) {
      x.push_back(cpu::load_run(primary, sample, band.top + r, band.left, band.width,
                                x_scratch + r * row_floats));
      out.push_back(
          cpu::begin_store(destination, sample, to_y + r, to_x, out_scratch + r * result_floats));
    }
    for (Index first = 0; first < std::min(window.stride_y, band.height); ++first) {
      const Index rows = cpu::chunks_of(band.height - first, window.stride_y);
      for (Index below = -window.window_y; below < window.window_y + rows; ++below) {
        multiply(sample, band, {first, rows, below}, x, out);
      }
    }
    for (Index r = 0; r < band.height; ++r) {
      cpu::finish_store(destination, sample, to_y + r, to_x, band.width,
                        out[static_cast<std::size_t>(r)]);
    }
  }

  // Rows of a band a vertical stride apart, and how many strides below the first of them a row of
  // the secondary lies.
  struct Readers {
    Index first, count, below;
  };

  void multiply(Index sample, const Band& band, const Readers& readers,
                const std::vector<const float*>& x, const std::vector<float*>& out) const {
    const Index channels = primary.channels;
    // Shifts that lie apart are read one by one, without what is between them.
    const bool apart = window.stride_x >= band.width;
    const Index runs = apart ? window.columns() : 1;
    const Index shifts = apart ? 1 : window.columns();
    const Index reach = band.width + (shifts - 1) * window.stride_x;
    const Index left = band.left - window.window_x * window.stride_x;
    const Index top = band.top + readers.first + readers.below * window.stride_y;
    const Index begin = std::max<Index>(0, readers.below - window.window_y);
    const Index end = std::min(readers.count, readers.below + window.window_y + 1);
    for (Index run = 0; run < runs; ++run) {
      const float* y =
          cpu::load_row_with_edges(secondary, sample, top, left + run * window.stride_x, reach,
                                   edge, cpu::thread_scratch(kShifted, reach * channels));
      for (Index i = begin; i < end; ++i) {
        const auto row = static_cast<std::size_t>(readers.first + i * window.stride_y);
        const Index shift = (readers.below - i + window.window_y) * window.columns() + run;
        shifted_product_loops().correlate(x[row], y, out[row] + shift, band.width, channels, shifts,
                                          window.stride_x, destination.channels);
      }
    }
  }
};

class CpuLocalCorrelation final : public BinaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    cpu::record(command_buffer,
                [work = CorrelationWork{reduction_settings(call.properties).correlation,
                                        view_region(call, false), view_region(call, true),
                                        call.properties.secondary.edge_mode, view_results(call),
                                        call.clip}] { work.run(); });
  }
};

class CpuReductionBackend final : public ReductionBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_unary(Device&, ReductionAxis axis,
                                           ReductionKind kind) const override {
    return std::make_unique<CpuReduceUnary>(axis, kind);
  }
  std::unique_ptr<BinaryEncoder> make_binary(Device&, ProductReduction kind) const override {
    if (kind == ProductReduction::LocalCorrelation) {
      return std::make_unique<CpuLocalCorrelation>();
    }
    return std::make_unique<CpuReduceProducts>(kind);
  }
};

}  // namespace

const ReductionBackend& cpu_reduction() {
  static const CpuReductionBackend backend;
  return backend;
}

}  // namespace mpsgrad
