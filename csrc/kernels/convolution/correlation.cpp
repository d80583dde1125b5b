#include "kernels/convolution/correlation.hpp"

#include <numeric>

namespace mpsgrad::cpu::convolution {

Axis forward_axis(Index results, Index stride, Index first, Index kernel, Index dilation) {
  Axis axis;
  axis.taps.resize(static_cast<std::size_t>(kernel));
  std::iota(axis.taps.begin(), axis.taps.end(), 0);
  axis.phases.push_back({0, 1, results, first, stride, 0, kernel, dilation});
  return axis;
}

Axis data_axis(Index results, Index stride, Index first, Index kernel, Index dilation) {
  const Index common = std::gcd(stride, dilation);
  const Index classes =
      std::min(stride / common, kernel);  // taps of one class differ by stride / common
  Axis axis;
  std::vector<Index> class_first;
  for (Index c = 0; c < classes; ++c) {
    class_first.push_back(static_cast<Index>(axis.taps.size()));
    for (Index q = c + (kernel - 1 - c) / (stride / common) * (stride / common); q >= 0;
         q -= stride / common) {
      axis.taps.push_back(q);
    }
  }
  class_first.push_back(static_cast<Index>(axis.taps.size()));
  for (Index remainder = 0; remainder < std::min(stride, results); ++remainder) {
    Phase phase{remainder, stride,           ceil_div(results - remainder, stride), 0, 1, 0,
                0,         dilation / common};
    for (Index c = 0; c < classes; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const Index distance =
          remainder - first - dilation * axis.taps[static_cast<std::size_t>(class_first[at])];
      if (distance % stride == 0) {
        phase.operand_first = distance / stride;
        phase.first_tap = class_first[at];
        phase.taps = class_first[at + 1] - class_first[at];
        break;
      }
    }
    axis.phases.push_back(phase);
  }
  return axis;
}

Index rows_needed(const Phase& phase, Index rows) {
  const Index reach = (rows - 1) * phase.operand_step + (phase.taps - 1) * phase.tap_step + 1;
  return std::max<Index>(0, std::min(rows * phase.taps, reach));
}

Index bytes_of(const Correlation& c) {
  const Index results = c.y.all_results() * c.x.all_results() * c.groups * c.group_results;
  return c.batch * (c.operand_height * c.operand_width * c.operand_channels() + results) * 4;
}

bool walks_down(const Correlation& c) {
  const Phase& y = c.y.phases[0];
  const Phase& x = c.x.phases[0];
  return c.y.phases.size() == 1 && c.x.phases.size() == 1 &&
         x.operand_step * y.tap_step == y.operand_step * x.tap_step &&
         x.operand_step % x.tap_step == 0 &&
         depthwise_loops().walks_down(c.mixed, y.taps, x.taps, x.operand_step / x.tap_step);
}

bool streams(const Correlation& c) {
  const bool overlaps = c.x.phases[0].operand_step == c.x.phases[0].tap_step;
  const bool late = c.depthwise && foresees_rows() && overlaps && walks_down(c);
  return c.result.streamed && c.hook.apply == nullptr &&
         (!late || bytes_of(c) >= late_streamed_bytes());
}

TapCount count_taps(const Axis& axis, Index length) {
  TapCount count;
  for (const Phase& phase : axis.phases) {
    count.all += phase.count * phase.taps;
    for (Index t = 0; t < phase.taps; ++t) {
      const Index first = phase.operand_first + t * phase.tap_step;
      const Index begin = std::clamp<Index>(ceil_div(-first, phase.operand_step), 0, phase.count);
      const Index end = std::clamp<Index>(floor_div(length - 1 - first, phase.operand_step) + 1,
                                          begin, phase.count);
      count.outside += phase.count - (end - begin);
    }
  }
  return count;
}

}  // namespace mpsgrad::cpu::convolution
