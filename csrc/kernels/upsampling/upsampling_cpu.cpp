// Upsampling of the CPU device. A row of results is made of at most two source rows, nearest ones
// by copying. Backwards, rows of incoming gradients go by once, in order: each is summed along the
// columns and added, weighted, to the one or two source rows it was made of.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/upsampling/upsampling.hpp"
#include "kernels/upsampling/upsampling_axes.hpp"
#include "kernels/upsampling/upsampling_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;
using namespace cpu::upsampling;

constexpr Index kTaskFloats = 1 << 16;  // about what one task reads or writes of the larger image
constexpr int kRows = 0;                // scratch of a thread: two rows read
constexpr int kResultRows = 2;          // two rows made

// --- Forward --------------------------------------------------------------------------------

struct ForwardWork {
  UpsamplingKind kind;
  Index factor;  // down
  AxisRule x, y;
  CpuImages source, destination;
  Region clip;
};

template <class Element>
void make_row(const ForwardWork& work, const std::vector<UpsamplingTaps>& columns,
              const UpsamplingTaps& rows, Index sample, Index j) {
  const CpuImages& source = work.source;
  const Index floats = work.clip.size.width * source.channels;
  const Index y = work.clip.origin.y + j, x = work.clip.origin.x;
  const auto slot = [&](int k, Index elements) { return cpu::scratch_of<Element>(k, elements); };
  const bool placed = cpu::lies_as<Element>(source);
  UpsamplingRow<Element> row{
      rows.count,     {}, {rows.weight[0], rows.weight[1]}, columns.data(), work.clip.size.width,
      source.channels};
  for (int k = 0; k < rows.count; ++k) {
    row.x[k] = cpu::load_run(source, sample, rows.pixel[k], 0, source.width,
                             slot(kRows + k, placed ? 0 : source.width * source.channels));
  }
  const Results<Element> out =
      cpu::begin_results(work.destination, sample, y, x, slot(kResultRows, floats));
  const auto& loops = upsampling_loops().of(out.at);
  if (rows.count == 0) {
    std::fill_n(out.at, floats, Element{});
  } else if (work.kind == UpsamplingKind::Nearest) {
    loops.copy(row, out);
  } else {
    loops.interpolate(row, out);
  }
  cpu::finish_results(work.destination, sample, y, x, work.clip.size.width, out);
}

template <class Element>
void run(const ForwardWork& work) {
  const Size& size = work.clip.size;
  const std::vector<UpsamplingTaps> columns = taps_of_all(work.x, size.width);
  const std::vector<UpsamplingTaps> rows = taps_of_all(work.y, size.height);
  // Results of the same source rows stay together.
  const Index wanted = std::max<Index>(1, kTaskFloats / (size.width * work.source.channels));
  const Index group = cpu::chunks_of(wanted, work.factor) * work.factor;
  const Index groups = cpu::chunks_of(size.height, group);
  cpu::parallel_for(size.depth * groups, [&](Index task) {
    const Index first = task % groups * group;
    for (Index j = first; j < std::min(size.height, first + group); ++j) {
      make_row<Element>(work, columns, rows[static_cast<std::size_t>(j)], task / groups, j);
    }
  });
}

class CpuUpsampling final : public UnaryEncoder {
 public:
  CpuUpsampling(UpsamplingKind kind, const UpsamplingFactors& factors, bool align_corners)
      : kind_(kind), factors_(factors), align_corners_(align_corners) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const UnaryProperties& p = call.properties;
    CpuImages source = cpu::view_source(call);
    const AxisRule x{kind_, factors_.x, align_corners_, p.offset.x, p.edge_mode, source.width};
    const AxisRule y{kind_, factors_.y, align_corners_, p.offset.y, p.edge_mode, source.height};
    cpu::record(command_buffer, [work = ForwardWork{kind_, factors_.y, x, y, std::move(source),
                                                    cpu::view_destination(call), call.clip}] {
      work.source.has_halves() && work.destination.has_halves() ? run<Half>(work)
                                                                : run<float>(work);
    });
  }

 private:
  UpsamplingKind kind_;
  UpsamplingFactors factors_;
  bool align_corners_;
};

// --- Gradient -------------------------------------------------------------------------------

struct GradientWork {
  AxisRule x, y;
  Size results;  // of the forward pass
  Offset primary;
  CpuImages gradient, destination;
  Region clip;
};

// Rows of the source's gradient under way in a thread, of which two are summed at a time.
class OpenRows {
 public:
  OpenRows(const GradientWork& work, Index sample)
      : work_(work), sample_(sample), floats_(work.clip.size.width * work.destination.channels) {}

  // Row k of the clip, as a target of an incoming row of that weight.
  UpsamplingTarget target(Index k, float weight) {
    Row& row = rows_[static_cast<std::size_t>(k % 2)];
    if (row.at == nullptr) {
      row.at = begin(k);
      return {row.at, weight, true};
    }
    return {row.at, weight, false};
  }
  void finish(Index k) {
    Row& row = rows_[static_cast<std::size_t>(k % 2)];
    if (row.at == nullptr) {
      row.at = begin(k);
      std::fill_n(row.at, floats_, 0.0F);
    }
    cpu::finish_store(work_.destination, sample_, work_.clip.origin.y + k, work_.clip.origin.x,
                      work_.clip.size.width, row.at);
    row.at = nullptr;
  }

 private:
  struct Row {
    float* at = nullptr;  // null: nothing has been added to it
  };
  float* begin(Index k) const {
    return cpu::begin_store(work_.destination, sample_, work_.clip.origin.y + k,
                            work_.clip.origin.x,
                            cpu::thread_scratch(kResultRows + static_cast<int>(k % 2), floats_));
  }

  const GradientWork& work_;
  Index sample_, floats_;
  std::array<Row, 2> rows_{};
};

template <class Element>
void run(const GradientWork& work) {
  const Size& size = work.clip.size;
  const Index channels = work.destination.channels;
  const auto row_taps = taps_of_all(work.y, work.results.height);
  const AxisSums columns(taps_of_all(work.x, work.results.width), work.primary.x,
                         work.gradient.width, size.width);
  const AxisSums rows(row_taps, work.primary.y, work.gradient.height, size.height);
  const UpsamplingSums sums{columns.sums(), columns.weights(), size.width, channels};
  const Index given = work.gradient.width * channels;
  const Index scratch_floats = cpu::lies_as<Element>(work.gradient) ? 0 : given;

  Index group = std::max<Index>(1, kTaskFloats / (given * work.y.factor));
  if (work.y.kind == UpsamplingKind::Bilinear) {
    // Rows of gradients between two tasks are read by both: few and tall tasks waste less.
    group = std::max(group, std::clamp<Index>(size.depth * size.height / 16, 4, 32));
  }
  const Index groups = cpu::chunks_of(size.height, group);
  cpu::parallel_for(size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const Index begin = task % groups * group;
    const Index end = std::min(size.height, begin + group);
    OpenRows open(work, sample);
    Index k = begin;
    const auto [from, to] = rows.readers(begin, end);
    for (Index i = from; i < to; ++i) {
      const UpsamplingTaps& own = row_taps[static_cast<std::size_t>(i - work.primary.y)];
      std::array<UpsamplingTarget, 2> targets{};
      Index count = 0;
      for (int tap = 0; tap < own.count; ++tap) {
        const Index row = own.pixel[tap];
        if (row < begin || row >= end) {
          continue;
        }
        for (; k < row && tap == 0; ++k) {  // incoming rows do not go back
          open.finish(k);
        }
        targets[static_cast<std::size_t>(count++)] = open.target(row, own.weight[tap]);
      }
      if (count > 0) {
        const Element* gradient = cpu::load_run(work.gradient, sample, i, 0, work.gradient.width,
                                                cpu::scratch_of<Element>(kRows, scratch_floats));
        upsampling_loops().of(gradient).gather(gradient, sums, targets.data(), count);
      }
    }
    for (; k < end; ++k) {
      open.finish(k);
    }
  });
}

class CpuUpsamplingGradient final : public GradientEncoder {
 public:
  CpuUpsamplingGradient(UpsamplingKind kind, const UpsamplingFactors& factors)
      : kind_(kind), factors_(factors) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& forward = call.properties.secondary;
    const ForwardSnapshot& shot = call.state().snapshot();
    const bool aligned = aligns_corners(shot.properties);
    const AxisRule x{
        kind_, factors_.x, aligned, forward.offset.x, forward.edge_mode, shot.source_width};
    const AxisRule y{
        kind_, factors_.y, aligned, forward.offset.y, forward.edge_mode, shot.source_height};
    cpu::record(command_buffer,
                [work = GradientWork{x, y, shot.clip.size, call.properties.primary.offset,
                                     cpu::view_gradient(call), cpu::view_destination(call, 1, 0),
                                     call.clip}] {
                  work.gradient.has_halves() ? run<Half>(work) : run<float>(work);
                });
  }

 private:
  UpsamplingKind kind_;
  UpsamplingFactors factors_;
};

class CpuUpsamplingBackend final : public UpsamplingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, UpsamplingKind kind,
                                             const UpsamplingFactors& factors,
                                             bool align_corners) const override {
    return std::make_unique<CpuUpsampling>(kind, factors, align_corners);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, UpsamplingKind kind,
                                                 const UpsamplingFactors& factors) const override {
    return std::make_unique<CpuUpsamplingGradient>(kind, factors);
  }
};

}  // namespace

const UpsamplingBackend& cpu_upsampling() {
  static const CpuUpsamplingBackend backend;
  return backend;
}

}  // namespace mpsgrad
