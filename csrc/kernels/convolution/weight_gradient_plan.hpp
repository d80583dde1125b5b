// Weight gradients: how their sums are cut into parts and what a part reads, by shapes, formats and
// the number of threads alone. convolution_weight_gradient.cpp goes by it.
#pragma once

#include <algorithm>

#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_rows.hpp"

namespace mpsgrad::cpu::convolution {

struct WeightGradientPlan {
  static constexpr Index kNarrowGroup = 32;  // fewer gradient channels are not worth copies

  ConvolutionGeometry g;
  Index taps = 0, group_sources = 0, group_gradients = 0;
  Index mixed = 1;  // depthwise: neighbouring channels that make a group; g.groups is 1
  // How many taps of a row count as one whose channels are theirs: a run of the source, as of the
  // weights.
  Index merged = 1;
  RowWindow source, gradient;
  bool by_source = false;    // else by gradient or depthwise
  bool by_tap = false;       // from copies, each tap by itself; then not by_source
  bool across = false;       // by_tap: sums lie as the weights of transposed convolution do
  bool panels = false;       // by_tap, or by_source with copies of the gradient
  bool asks_ahead = false;   // tiles request the next band
  bool every_pixel = false;  // source rows hold what lies outside
  bool walks = false;        // depthwise: down rows that are nowhere copied
  bool in_order = false;     // of those that walk: all channels of some pixels before the next ones
  bool large = false;        // only memory has the images
  bool in_place = false;     // the first part's sums lie as the result does
  Index image_bytes = 0;     // of all sources and gradients, as float32
  Index band_rows = 0, columns = 0;
  Index inside = 0, outside = 0;  // depthwise: columns whose source rows need not be copied
  // Of the rows, of the channel blocks, and of the range_channels of each, which are by_source and
  // depthwise those of the gradient and by_tap the columns, kNarrowGroup or more at a time.
  Index parts = 0, splits = 0, ranges = 1, range_channels = 0;
  Index blocks = 0;
  Index weights = 0;

  Index rows() const { return g.batch * g.destination_height; }
  bool is_empty() const { return rows() == 0 || g.destination_width == 0; }
  Index range_units() const { return std::max<Index>(1, range_channels / kNarrowGroup); }
  Index first_of(Index range) const {
    return range == ranges ? range_channels : range * range_units() / ranges * kNarrowGroup;
  }
};

// The images must outlive the plan, whose windows refer to them.
WeightGradientPlan plan_weight_gradient(const ConvolutionGeometry& geometry,
                                        const ConvolutionImages& source,
                                        const ConvolutionImages& gradient);

}  // namespace mpsgrad::cpu::convolution
