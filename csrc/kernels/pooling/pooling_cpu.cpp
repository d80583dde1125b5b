// Pooling kernels of the CPU device, row by row: a row of results gathers from the source rows its
// windows read, a row of gradients from the windows that read it. So every row has one writer, and
// a fixed order of additions.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling.hpp"
#include "kernels/pooling/pooling_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;

constexpr Index kTaskFloats = 32768;    // about what one task reads
constexpr Index kRingFloats = 1 << 18;  // most that one thread keeps of the windows under way

// Scratch of the calling thread.
enum Slot { kSourceRow, kResultRow, kStoreRow, kGradientRow, kWindowRow, kRing };

Index floor_div(Index a, Index b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
Index ceil_div(Index a, Index b) { return -floor_div(-a, b); }

// One direction of a pooling: which pixels each window reads.
struct Axis {
  Index length = 1;  // of the source
  Index kernel = 1, stride = 1, dilation = 1;
  Index start = 0;  // where the first tap of window 0 lies
  // What lies outside the source: nothing (its zeros are counted elsewhere), or the nearest pixel.
  bool repeats = false;

  Index extent() const { return (kernel - 1) * dilation + 1; }

  struct Taps {
    Index before, inside, after;  // how many taps lie where
    Index pixel;                  // of the first one inside
  };
  Taps taps(Index window) const {
    const Index first = start + stride * window;
    const Index before = first < 0 ? std::min(kernel, ceil_div(-first, dilation)) : 0;
    const Index end =
        first >= length ? 0 : std::min(kernel, floor_div(length - 1 - first, dilation) + 1);
    return {before, end - before, kernel - end, first + before * dilation};
  }
  bool leaves_source(Index window) const { return taps(window).inside < kernel; }

  // Calls visit(pixel, taps, weight) for what a window reads, in ascending order. `distinct`: every
  // pixel once, whatever its weight.
  template <class Visit>
  void read(Index window, bool distinct, const Visit& visit) const {
    const Taps t = taps(window);
    const Index last = t.pixel + (t.inside - 1) * dilation;
    const bool first_read = t.inside > 0 && t.pixel == 0;
    const bool last_read = t.inside > 0 && last == length - 1;
    const bool before = repeats && t.before > 0 && !(distinct && first_read);
    if (before) {
      visit(Index{0}, Index{1}, t.before);
    }
    if (t.inside > 0) {
      visit(t.pixel, t.inside, Index{1});
    }
    if (repeats && t.after > 0 && !(distinct && (last_read || (before && length == 1)))) {
      visit(length - 1, Index{1}, t.after);
    }
  }

  // How many taps of a window read a pixel.
  Index weight(Index window, Index pixel) const {
    const Taps t = taps(window);
    const Index way = pixel - t.pixel;
    Index weight = way >= 0 && way < t.inside * dilation && way % dilation == 0 ? 1 : 0;
    if (repeats && pixel == 0) {
      weight += t.before;
    }
    if (repeats && pixel == length - 1) {
      weight += t.after;
    }
    return weight;
  }

  // The windows of [begin, end) that can read a pixel.
  std::pair<Index, Index> readers(Index pixel, Index begin, Index end) const {
    const Index first =
        repeats && pixel == 0 ? begin : ceil_div(pixel - (extent() - 1) - start, stride);
    const Index last = repeats && pixel == length - 1 ? end - 1 : floor_div(pixel - start, stride);
    return {std::max(first, begin), std::min(last + 1, end)};
  }

  // How many taps of a window lie in the source or its border of `pad` counted zeros.
  Index counted(Index window, Index pad) const {
    Axis wider = *this;
    wider.length = length + 2 * pad;
    wider.start = start + pad;
    return wider.taps(window).inside;
  }
};

// The windows [begin, end) of an axis as runs for the row loops.
std::vector<PoolingRun> runs_of(const Axis& axis, Index begin, Index end, bool distinct) {
  std::vector<PoolingRun> runs;
  for (Index w = begin; w < end; ++w) {
    axis.read(w, distinct, [&](Index pixel, Index taps, Index weight) {
      if (!runs.empty()) {
        PoolingRun& run = runs.back();
        if (run.window + run.windows == w - begin && run.taps == taps && run.weight == 1.0F &&
            weight == 1 && pixel == run.pixel + run.windows * axis.stride) {
          ++run.windows;
          return;
        }
      }
      runs.push_back({w - begin, 1, pixel, taps, static_cast<float>(weight)});
    });
  }
  return runs;
}

// What both directions of the pass share.
struct Geometry {
  PoolingKind kind;
  bool clamps;
  ZeroPad pad;
  Axis x, y;

  Geometry(PoolingKind pooling, const Window& window, const Offset& offset, EdgeMode edge,
           const ZeroPad& zero_pad, Index width, Index height)
      : kind(pooling), clamps(edge == EdgeMode::Clamp), pad(zero_pad) {
    const bool repeats = clamps && kind != PoolingKind::Average;
    x = {width,
         window.kernel_width,
         window.stride_x,
         window.dilation_x,
         offset.x - window.extent_x() / 2,
         repeats};
    y = {height,
         window.kernel_height,
         window.stride_y,
         window.dilation_y,
         offset.y - window.extent_y() / 2,
         repeats};
  }

  bool is_max() const { return kind == PoolingKind::Max || kind == PoolingKind::DilatedMax; }
  bool hides_negative() const { return is_max() && !clamps; }
  // What an average divides by, 0 where no tap counts, is the product of one number for the columns
  // of windows [begin, end) and one for their row.
  std::vector<Index> column_divisors(Index begin, Index end) const {
    std::vector<Index> result;
    for (Index w = begin; w < end && kind == PoolingKind::Average; ++w) {
      result.push_back(clamps ? x.counted(w, pad.x) : x.kernel);
    }
    return result;
  }
  Index row_divisor(Index row) const { return clamps ? y.counted(row, pad.y) : y.kernel; }
  // Calls visit(first, count) for the windows of [begin, end) of a row that read padding zeros.
  template <class Visit>
  void over_padding(Index row, Index begin, Index end, const Visit& visit) const {
    if (y.leaves_source(row)) {
      visit(Index{0}, end - begin);
      return;
    }
    Index left = begin;
    while (left < end && x.leaves_source(left)) {
      ++left;
    }
    Index right = end;
    while (right > left && x.leaves_source(right - 1)) {
      --right;
    }
    if (left > begin) {
      visit(Index{0}, left - begin);
    }
    if (right < end) {
      visit(right - begin, end - right);
    }
  }
};

class CpuPooling final : public UnaryEncoder {
 public:
  CpuPooling(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const CpuImages source = cpu::view_source(call);
    const Geometry geometry(kind_, window_, call.properties.offset, call.properties.edge_mode,
                            zero_pad_of(call.properties), source.width, source.height);
    cpu::record(command_buffer, [geometry, source, destination = cpu::view_destination(call),
                                 clip = call.clip] { run(geometry, source, destination, clip); });
  }

 private:
  static void run(const Geometry& geometry, const CpuImages& source, const CpuImages& destination,
                  const Region& clip) {
    const Index channels = source.channels;
    const Index columns = clip.size.width;
    const Index rows = clip.size.height;
    const std::vector<PoolingRun> runs = runs_of(geometry.x, 0, columns, geometry.is_max());
    const PoolingRow row{runs.data(), static_cast<Index>(runs.size()), geometry.x.stride,
                         geometry.x.dilation, channels};
    const std::vector<Index> divisors = geometry.column_divisors(0, columns);
    const Index row_reads =
        std::min(geometry.y.kernel, geometry.y.length) * source.width * channels;
    const Index group = std::max<Index>(1, kTaskFloats / std::max<Index>(1, row_reads));
    const Index groups = cpu::chunks_of(rows, group);

    cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
      const Index sample = task / groups;
      const Index first = task % groups * group;
      for (Index j = first; j < std::min(rows, first + group); ++j) {
        float* pooled = cpu::begin_store(destination, sample, clip.origin.y + j, clip.origin.x,
                                         cpu::thread_scratch(kResultRow, columns * channels));
        pool_row(geometry, row, divisors, source, sample, j, columns, pooled);
        cpu::finish_store(destination, sample, clip.origin.y + j, clip.origin.x, columns, pooled);
      }
    });
  }

  static void pool_row(const Geometry& geometry, const PoolingRow& row,
                       const std::vector<Index>& column_divisors, const CpuImages& source,
                       Index sample, Index j, Index columns, float* pooled) {
    const PoolingLoops& loops = pooling_loops();
    const Index count = columns * row.channels;
    loops.fill(pooled, count, geometry.is_max() ? -std::numeric_limits<float>::infinity() : 0.0F);
    geometry.y.read(j, geometry.is_max(), [&](Index first, Index taps, Index weight) {
      for (Index t = 0; t < taps; ++t) {
        const float* x =
            cpu::load_run(source, sample, first + t * geometry.y.dilation, 0, source.width,
                          cpu::thread_scratch(kSourceRow, source.width * row.channels));
        switch (geometry.kind) {
          case PoolingKind::Max:
          case PoolingKind::DilatedMax:
            loops.maximum(row, x, pooled);
            break;
          case PoolingKind::Average:
            loops.sum(row, x, pooled);
            break;
          case PoolingKind::L2Norm:
            loops.squares(row, x, static_cast<float>(weight), pooled);
        }
      }
    });
    if (geometry.hides_negative()) {
      geometry.over_padding(j, 0, columns, [&](Index first, Index windows) {
        loops.raise_to_zero(pooled + first * row.channels, windows * row.channels);
      });
    } else if (geometry.kind == PoolingKind::L2Norm) {
      loops.root(pooled, count);
    } else if (geometry.kind == PoolingKind::Average) {
      float* divisors = cpu::thread_scratch(kWindowRow, columns);
      const Index row_divisor = geometry.row_divisor(j);
      std::transform(column_divisors.begin(), column_divisors.end(), divisors, [&](Index divisor) {
        return static_cast<float>(std::max<Index>(1, divisor * row_divisor));
      });
      loops.divide(pooled, divisors, columns, row.channels);
    }
  }

  PoolingKind kind_;
  Window window_;
};

// What a row of windows gives to the pixels they read: `share` to each, or to the pixel `index`.
struct Shares {
  const float* share = nullptr;
  std::int32_t* index = nullptr;
};

// One gradient encode: G of the source, and where it goes.
struct GradientWork {
  Geometry geometry;
  CpuImages gradient, source, destination;
  Offset primary;
  Size used;  // windows of the gradient that count, from `primary` on
  Region clip;
  Index first_row, first_column;  // pixel of the source that the clip's origin receives

  void run() const;

 private:
  struct Ring;
  Index columns_begin() const { return std::max<Index>(0, -primary.x); }
  Index columns_end() const {
    return std::max(columns_begin(), std::min(gradient.width - primary.x, used.width));
  }
  Index rows_begin() const { return std::max<Index>(0, -primary.y); }
  Index rows_end() const {
    return std::max(rows_begin(), std::min(gradient.height - primary.y, used.height));
  }
  struct Columns;
  void find_shares(const Columns& columns, Index sample, Index j, float* memory,
                   Shares& shares) const;
};

// What every row of windows has in common.
struct GradientWork::Columns {
  explicit Columns(const GradientWork& work)
      : begin(work.columns_begin()),
        windows(work.columns_end() - begin),
        runs(runs_of(work.geometry.x, begin, begin + windows, work.geometry.is_max())),
        row{runs.data(), static_cast<Index>(runs.size()), work.geometry.x.stride,
            work.geometry.x.dilation, work.source.channels},
        divisors(work.geometry.column_divisors(begin, begin + windows)),
        first_pixels(static_cast<std::size_t>(windows), -1) {
    for (const PoolingRun& run : runs) {
      for (Index w = 0; w < run.windows; ++w) {
        auto& pixel = first_pixels[static_cast<std::size_t>(run.window + w)];
        pixel = pixel < 0 ? static_cast<std::int32_t>(run.pixel + w * row.stride) : pixel;
      }
    }
  }
  Columns(const Columns&) = delete;
  Columns& operator=(const Columns&) = delete;

  Index begin, windows;
  std::vector<PoolingRun> runs;
  PoolingRow row;
  std::vector<Index> divisors;
  std::vector<std::int32_t> first_pixels;  // that each window reads, -1 for none
};

// The shares of windows that pixels still to come may read: window row j is kept in place j %
// places until another needs it.
struct GradientWork::Ring {
  Ring(Index place_count, Index floats_each)
      : floats(floats_each),
        memory(cpu::thread_scratch(kRing, place_count * floats_each)),
        owners(static_cast<std::size_t>(place_count), -1),
        shares(static_cast<std::size_t>(place_count)) {}

  Index floats;
  float* memory;
  std::vector<Index> owners;
  std::vector<Shares> shares;
};

void GradientWork::find_shares(const Columns& columns, Index sample, Index j, float* memory,
                               Shares& shares) const {
  const PoolingLoops& loops = pooling_loops();
  const PoolingRow& row = columns.row;
  const Index begin = columns.begin;
  const Index windows = columns.windows;
  const Index count = windows * row.channels;
  float* scratch = cpu::thread_scratch(kGradientRow, count);
  const auto load_gradient = [&](float* place) {
    return cpu::load_run(gradient, sample, primary.y + j, primary.x + begin, windows, place);
  };
  const auto source_rows = [&](const auto& visit) {
    geometry.y.read(j, geometry.is_max(), [&](Index first, Index taps, Index weight) {
      for (Index t = 0; t < taps; ++t) {
        const Index y = first + t * geometry.y.dilation;
        visit(y, weight,
              cpu::load_run(source, sample, y, 0, source.width,
                            cpu::thread_scratch(kSourceRow, source.width * row.channels)));
      }
    });
  };

  if (geometry.is_max()) {
    shares.index = reinterpret_cast<std::int32_t*>(memory + count);
    shares.share = load_gradient(memory);
    float* best = cpu::thread_scratch(kWindowRow, count);
    Index first_row = -1;
    geometry.y.read(
        j, true, [&](Index first, Index, Index) { first_row = first_row < 0 ? first : first_row; });
    const auto base = [&](Index y) { return static_cast<std::int32_t>(y * source.width); };
    loops.begin_winners(columns.first_pixels.data(), first_row < 0 ? -1 : base(first_row), windows,
                        row.channels, best, shares.index);
    source_rows([&](Index y, Index, const float* x) {
      loops.winners(row, x, base(y), best, shares.index);
    });
    if (geometry.hides_negative()) {
      geometry.over_padding(j, begin, begin + windows, [&](Index first, Index n) {
        loops.forget_negative(best + first * row.channels, shares.index + first * row.channels,
                              n * row.channels);
      });
    }
  } else if (geometry.kind == PoolingKind::Average) {
    float* factors = cpu::thread_scratch(kWindowRow, windows);
    const Index row_divisor = geometry.row_divisor(j);
    std::transform(columns.divisors.begin(), columns.divisors.end(), factors, [&](Index divisor) {
      const Index product = divisor * row_divisor;
      return product == 0 ? 0.0F : static_cast<float>(1.0 / static_cast<double>(product));
    });
    loops.scale(load_gradient(scratch), factors, windows, row.channels, memory);
    shares.share = memory;
  } else {
    float* squares = cpu::thread_scratch(kWindowRow, count);
    loops.fill(squares, count, 0.0F);
    source_rows([&](Index, Index weight, const float* x) {
      loops.squares(row, x, static_cast<float>(weight), squares);
    });
    loops.per_root(load_gradient(scratch), squares, count, memory);
    shares.share = memory;
  }
}

void GradientWork::run() const {
  const PoolingLoops& loops = pooling_loops();
  const Index channels = source.channels;
  const Index row_floats = source.width * channels;
  const Columns columns(*this);

  // Windows that reach past the rows of a task are evaluated in the next task again, so tasks are
  // tall where windows are.
  const Index overlap = std::max<Index>(0, geometry.y.extent() - geometry.y.stride);
  const Index group = std::max(
      {Index{1}, kTaskFloats / std::max<Index>(1, row_floats),
       geometry.kind == PoolingKind::Average ? Index{1} : std::min(4 * overlap, clip.size.height)});
  const Index groups = cpu::chunks_of(clip.size.height, group);
  const Index share_floats = columns.windows * channels * (geometry.is_max() ? 2 : 1);
  const Index places = std::clamp<Index>(kRingFloats / std::max<Index>(1, share_floats), 1,
                                         ceil_div(geometry.y.extent(), geometry.y.stride));

  cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const Index first = task % groups * group;
    Ring ring(places, share_floats);
    // The result of a row is made where it is wanted, if that is a whole row of the source.
    const bool whole = first_column == 0 && clip.size.width == source.width;
    for (Index r = first; r < std::min(clip.size.height, first + group); ++r) {
      const Index y = first_row + r;
      float* out = cpu::begin_store(destination, sample, clip.origin.y + r, clip.origin.x,
                                    cpu::thread_scratch(kStoreRow, clip.size.width * channels));
      float* result = whole ? out : cpu::thread_scratch(kResultRow, row_floats);
      loops.fill(result, row_floats, 0.0F);
      if (y < source.height && sample < used.depth && columns.windows > 0) {
        const auto [from, to] = geometry.y.readers(y, rows_begin(), rows_end());
        for (Index j = from; j < to; ++j) {
          const Index weight = geometry.y.weight(j, y);
          if (weight == 0) {
            continue;
          }
          const auto place = static_cast<std::size_t>(j % places);
          Shares& shares = ring.shares[place];
          if (ring.owners[place] != j) {
            find_shares(columns, sample, j, ring.memory + j % places * ring.floats, shares);
            ring.owners[place] = j;
          }
          if (geometry.is_max()) {
            loops.award(columns.row, shares.share, shares.index,
                        static_cast<std::int32_t>(y * source.width), result);
          } else {
            loops.spread(columns.row, shares.share, static_cast<float>(weight), result);
          }
        }
        if (geometry.kind == PoolingKind::L2Norm) {
          loops.multiply(result,
                         cpu::load_run(source, sample, y, 0, source.width,
                                       cpu::thread_scratch(kSourceRow, row_floats)),
                         row_floats);
        }
      }
      if (!whole) {
        const Index there =
            std::clamp<Index>(source.width - first_column, 0, clip.size.width) * channels;
        std::copy_n(result + std::min(first_column, source.width) * channels, there, out);
        std::fill(out + there, out + clip.size.width * channels, 0.0F);
      }
      cpu::finish_store(destination, sample, clip.origin.y + r, clip.origin.x, clip.size.width,
                        out);
    }
  });
}

class CpuPoolingGradient final : public GradientEncoder {
 public:
  CpuPoolingGradient(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const BinaryProperties& p = call.properties;
    CpuImages source = cpu::view_source(call);
    const Geometry geometry(kind_, window_, p.secondary.offset, p.secondary.edge_mode,
                            zero_pad_of(p), source.width, source.height);
    const bool shifted = !call.creates_destination || p.clip_rect != Region{};
    const auto first_read = [&](const Axis& axis) {
      return shifted ? std::max<Index>(0, axis.start) : Index{0};
    };
    cpu::record(command_buffer,
                [work = GradientWork{geometry, cpu::view_gradient(call), std::move(source),
                                     cpu::view_destination(call), p.primary.offset,
                                     source_size_of(p), call.clip, first_read(geometry.y),
                                     first_read(geometry.x)}] { work.run(); });
  }

 private:
  PoolingKind kind_;
  Window window_;
};

class CpuPoolingBackend final : public PoolingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, PoolingKind kind,
                                             const Window& window) const override {
    return std::make_unique<CpuPooling>(kind, window);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, PoolingKind kind,
                                                 const Window& window) const override {
    return std::make_unique<CpuPoolingGradient>(kind, window);
  }
};

}  // namespace

const PoolingBackend& cpu_pooling() {
  static const CpuPoolingBackend backend;
  return backend;
}

}  // namespace mpsgrad
