// Upsampling of the CPU device. Backwards, rows of incoming gradients go by once, in order,
// together those that the same source rows have gone into, one or two. They are added, weighted, to
// both, pixel by pixel if they are few, else as whole rows, whose columns are then added up.
#include <algorithm>
#include <memory>
#include <type_traits>
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
constexpr int kGivenRows = 0;           // scratch of a thread: rows read
constexpr int kResultRow = 1;           // a row made
constexpr int kSums = 2;                // and two rows of sums

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

// Whether rows are added up as a whole: each of them is read from one end to the other, by vectors
// however few channels a pixel has, and errors grow with rows plus columns, not with their product.
bool folds(const AxisSums& rows, Index channels) {
  constexpr Index kMostGathered = 4;
  constexpr Index kFewChannels = 4;
  return rows.most() > kMostGathered || channels < kFewChannels;
}

// Rows of incoming gradients as loops read them: as they lie, or converted.
template <class Element>
void place_rows(const CpuImages& gradient, Index sample, Index first,
                UpsamplingRows<Element>& rows) {
  if (std::is_same_v<Element, Half> || gradient.is_float()) {
    rows.first = reinterpret_cast<const Element*>(gradient.pixel(sample, first, 0));
    rows.row_stride = gradient.row_stride;
    rows.pixel_stride = gradient.pixel_stride;
    return;
  }
  if constexpr (std::is_same_v<Element, float>) {
    rows.row_stride = gradient.width * gradient.channels;
    rows.pixel_stride = gradient.channels;
    float* const converted = cpu::thread_scratch(kGivenRows, rows.count * rows.row_stride);
    for (Index r = 0; r < rows.count; ++r) {
      cpu::load_run(gradient, sample, first + r, 0, gradient.width,
                    converted + r * rows.row_stride);
    }
    rows.first = converted;
  }
}

// Rows [begin, end) of the clip.
template <class Element>
void make_rows(const GradientWork& work, const UpsamplingColumns& columns, const AxisSums& rows,
               Index sample, Index begin, Index end) {
  const auto& loops = upsampling_loops().of(static_cast<Element*>(nullptr));
  const Index floats = columns.pixels * columns.channels;
  const Index given_pixels = work.gradient.width;
  const bool whole = folds(rows, columns.channels);
  const auto sums_of = [&](Index k) {
    return cpu::thread_scratch(kSums + static_cast<int>(k % 2),
                               whole ? given_pixels * columns.channels : floats);
  };
  bool begun = false;  // something has been added to the sums of row k: incoming rows before `done`
  Index done = 0;
  for (Index k = begin; k < end; ++k) {
    const UpsamplingSum own = rows.sums()[k];
    const UpsamplingSum next = k + 1 < end ? rows.sums()[k + 1] : UpsamplingSum{};
    const Index first = begun ? done : own.first;
    done = own.first + own.count;
    const Index shared = next.count == 0 ? done : std::min<Index>(next.first, done);
    UpsamplingRows<Element> given{};
    given.count = done - first;
    given.shared = shared - first;
    given.weights = rows.weights() + own.weight + (first - own.first);
    given.next_weights = rows.weights() + next.weight;
    place_rows(work.gradient, sample, first, given);

    const Index y = work.clip.origin.y + k, x = work.clip.origin.x;
    const Results<Element> out = cpu::begin_results(work.destination, sample, y, x,
                                                    cpu::scratch_of<Element>(kResultRow, floats));
    float* const sums = whole || begun ? sums_of(k) : nullptr;
    float* const next_sums = shared < done ? sums_of(k + 1) : nullptr;
    if (whole) {
      loops.fold_rows(given, given_pixels, columns.channels, begun, sums, next_sums);
      loops.sum_columns(columns, sums, out);
    } else {
      loops.gather(given, columns, sums, out, next_sums);
    }
    cpu::finish_results(work.destination, sample, y, x, columns.pixels, out);
    begun = shared < done;
  }
}

template <class Element>
void run(const GradientWork& work, const AxisSums& columns, const AxisSums& rows) {
  const Size& size = work.clip.size;
  const Index channels = work.destination.channels;
  const UpsamplingColumns sums{columns.sums(), columns.weights(), size.width, channels};

  Index group = std::max<Index>(1, kTaskFloats / (work.gradient.width * channels * work.y.factor));
  if (work.y.kind == UpsamplingKind::Bilinear) {
    // Rows of gradients between two tasks are read by both: few and tall tasks waste less.
    group = std::max(group, std::clamp<Index>(size.depth * size.height / 16, 4, 32));
  }
  const Index groups = cpu::chunks_of(size.height, group);
  cpu::parallel_for(size.depth * groups, [&](Index task) {
    const Index begin = task % groups * group;
    make_rows<Element>(work, sums, rows, task / groups, begin,
                       std::min(size.height, begin + group));
  });
}

void run(const GradientWork& work) {
  const Size& size = work.clip.size;
  const AxisSums columns(taps_of_all(work.x, work.results.width), work.primary.x,
                         work.gradient.width, size.width);
  const AxisSums rows(taps_of_all(work.y, work.results.height), work.primary.y,
                      work.gradient.height, size.height);
  const bool halves =
      work.gradient.format == ChannelFormat::Float16 && work.destination.has_halves();
  halves ? run<Half>(work, columns, rows) : run<float>(work, columns, rows);
}

class CpuUpsamplingGradient final : public GradientEncoder {
 public:
  CpuUpsamplingGradient(UpsamplingKind kind, const UpsamplingFactors& factors)
      : kind_(kind), factors_(factors) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& forward = call.properties.secondary;
    const ForwardSnapshot& shot = call.state().snapshot();
    const bool aligned = upsampling_settings(shot.properties).align_corners;
    const AxisRule x{
        kind_, factors_.x, aligned, {shot.source_width, forward.offset.x, forward.edge_mode}};
    const AxisRule y{
        kind_, factors_.y, aligned, {shot.source_height, forward.offset.y, forward.edge_mode}};
    cpu::record(command_buffer,
                [work = GradientWork{x, y, shot.clip.size, call.properties.primary.offset,
                                     cpu::view_gradient(call), cpu::view_destination(call, 1, 0),
                                     call.clip}] { run(work); });
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
