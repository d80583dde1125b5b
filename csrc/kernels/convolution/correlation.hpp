// What forward pass and data gradient have in common: a correlation of an operand's rows with
// packed weights. For the data gradient the results fall into phases, one for each remainder of the
// stride, each of which is a dense correlation with some of the taps.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_rows.hpp"

namespace mpsgrad::cpu::convolution {

// One remainder of a data gradient's position, or all positions of a forward pass, along one axis.
struct Phase {
  Index first = 0, step = 1, count = 0;  // results
  Index operand_first = 0,
        operand_step = 1;  // position of the first tap of the first result; from result to result
  Index first_tap = 0, taps = 0, tap_step = 1;  // among the axis's taps; positions from tap to tap
};

struct Axis {
  std::vector<Phase> phases;
  std::vector<Index> taps;  // in the order in which the packed weights have them

  Index all_results() const {
    Index all = 0;
    for (const Phase& phase : phases) {
      all += phase.count;
    }
    return all;
  }
  Index most_results() const {
    Index most = 0;
    for (const Phase& phase : phases) {
      most = std::max(most, phase.count);
    }
    return most;
  }
};

struct Correlation {
  Index batch;
  Index operand_height, operand_width;
  Index groups, group_operands, group_results;
  bool depthwise;
  Index mixed;  // depthwise: neighbouring channels that make a group
  EdgeMode edge;
  Axis y, x;
  ConvolutionImages operand, result;
  ConvolutionHook hook;
  bool copies = false;  // operands, even where they could be read in place
  bool skips = false;   // taps beside the operand, where they are else multiplied with zeros

  Index operand_channels() const { return groups * group_operands; }
  // Whether loops take float16 as it lies, and write it.
  bool halves() const {
    const Index at_once = depthwise_loops().halves_at_once;
    return at_once > 0 && group_results % at_once == 0 && depthwise && edge == EdgeMode::Zero &&
           operand.format == ChannelFormat::Float16 && result.format == ChannelFormat::Float16 &&
           hook.apply == nullptr;
  }
  // Whether the loops for one channel at a time, which know where an image ends, read operands as
  // they lie.
  bool direct() const {
    return depthwise && edge == EdgeMode::Zero &&
           (operand.format == ChannelFormat::Float32 || halves());
  }
};

Axis forward_axis(Index results, Index stride, Index first, Index kernel, Index dilation);
// Result y takes E[j] * W[q] wherever stride * j + first + dilation * q == y. Within a phase j
// grows as q falls.
Axis data_axis(Index results, Index stride, Index first, Index kernel, Index dilation);

// How many operand rows `rows` results of a phase need.
Index rows_needed(const Phase& phase, Index rows);
// What is read and written, in float32.
Index bytes_of(const Correlation& c);
// Whether depthwise loops go down the rows of some pixels.
bool walks_down(const Correlation& c);
// Whether results go past the caches. Where processors foresee rows, loops that walk down those of
// an image would then have to go row by row, which costs more where windows overlap much.
bool streams(const Correlation& c);

// Over all results along an axis: their taps, and how many of them lie outside the operand.
struct TapCount {
  Index all = 0, outside = 0;
  Index inside() const { return all - outside; }
};

TapCount count_taps(const Axis& axis, Index length);

// Neighbouring columns of a phase with the taps that they have.
struct Columns {
  Index first, count;
  Index first_tap, taps;
};

// Calls visit(columns) for the columns [first, last) of a phase: all with all of its taps, or, to
// skip those beside an operand of so many columns, as many at a time as have the same.
template <class Visit>
void each_columns(const Phase& phase, Index first, Index last, bool skips, Index width,
                  const Visit& visit) {
  const auto taps_of = [&](Index i) -> Columns {
    const Index at = phase.operand_first + i * phase.operand_step;
    const Index before = std::clamp<Index>(ceil_div(-at, phase.tap_step), 0, phase.taps);
    const Index past = std::clamp<Index>(ceil_div(width - at, phase.tap_step), before, phase.taps);
    return {i, 1, past > before ? before : 0, past - before};
  };
  if (!skips && first < last) {
    return visit(Columns{first, last - first, 0, phase.taps});
  }
  while (first < last) {
    Columns columns = taps_of(first);
    for (++first; first < last; ++first, ++columns.count) {
      const Columns next = taps_of(first);
      if (next.first_tap != columns.first_tap || next.taps != columns.taps) {
        break;
      }
    }
    visit(columns);
  }
}

}  // namespace mpsgrad::cpu::convolution
