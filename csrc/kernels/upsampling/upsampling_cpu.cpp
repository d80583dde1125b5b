// Upsampling of the CPU device. Backwards, rows of incoming gradients go by once, in order: each is
// summed along the columns and added, weighted, to the one or two source rows it was made of.
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

constexpr Index kTaskFloats = 1 << 16;  // about what one task reads
constexpr int kRow = 0;                 // scratch of a thread: a row read
constexpr int kResultRows = 1;          // two rows made

// --- Forward --------------------------------------------------------------------------------

class CpuUpsampling final : public UnaryEncoder {
 public:
  CpuUpsampling(UpsamplingKind kind, const UpsamplingFactors& factors, bool align_corners)
      : kind_(kind), factors_(factors), align_corners_(align_corners) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const UnaryProperties& p = call.properties;
    CpuImages source = cpu::view_source(call);
    const AxisRule x{kind_, factors_.x, align_corners_, {source.width, p.offset.x, p.edge_mode}};
    const AxisRule y{kind_, factors_.y, align_corners_, {source.height, p.offset.y, p.edge_mode}};
    cpu::record(command_buffer, [x, y,
                                 work = cpu::Interpolation{
                                     std::move(source), cpu::view_destination(call), call.clip,
                                     kind_ == UpsamplingKind::Nearest, factors_.y}] {
      const Size& size = work.clip.size;
      const cpu::InterpolationGrid grid{taps_of_all(x, size.width), taps_of_all(y, size.height)};
      cpu::interpolate(work, {&grid, 1});
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
      const InterpolationTaps& own = row_taps[static_cast<std::size_t>(i - work.primary.y)];
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
                                                cpu::scratch_of<Element>(kRow, scratch_floats));
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
        kind_, factors_.x, aligned, {shot.source_width, forward.offset.x, forward.edge_mode}};
    const AxisRule y{
        kind_, factors_.y, aligned, {shot.source_height, forward.offset.y, forward.edge_mode}};
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
