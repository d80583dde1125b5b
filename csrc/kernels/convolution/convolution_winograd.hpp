// Windows of 3x3 taps at stride 1, dilated or not, with fewer multiplications: F(2x2, 3x3) of
// Winograd and of Lavin and Gray. Four by four pixels of a source and nine weights are transformed,
// multiplied part by part and summed over channels, and the sums transformed into two by two
// results: 16 multiplications for each channel where the window has 36. The weight gradient is the
// transpose of that.
//
// A pixel reaches no result whose window it is not in, but the nine weights of a channel are mixed:
// a pixel's share of the error is that of the largest of them. Infinities would become NaN, and
// values near the end of the range overflow, so whatever does not come out finite is computed
// again, without this.
#pragma once

#include <vector>

#include "base/types.hpp"
#include "kernels/convolution/convolution_engine.hpp"

namespace mpsgrad::cpu::convolution {

inline constexpr Index kWinogradTaps = 3;
inline constexpr Index kWinogradPixels = 2;  // of a tile of results, along an axis

// Whether results of such a shape have enough whole tiles, and channels enough to pay for the
// transforms, where no more than `products` of each two channels are not with zeros.
bool winograd_pays(Index batch, Index height, Index width, Index dilation_y, Index dilation_x,
                   Index operands, Index results, Index products);

struct WinogradCorrelation {
  Index batch;
  Index operand_height, operand_width, operands;  // channels
  Index result_height, result_width, results;     // channels
  Index first_y, first_x;                         // where the first result's first tap reads
  Index dilation_y, dilation_x;
  EdgeMode edge;
  const ConvolutionImages* operand;
  const ConvolutionImages* result;
  const float* weights;  // packed: parts, blocks of `lanes` results, operands, lanes
  const float* bias;     // whole vectors
  ConvolutionHook hook;
};

// Results of some neighbouring tiles of a row, in some blocks of channels.
struct ResultArea {
  Index sample, row, rows, column, columns;
  Index block, blocks;
};

// Returns what did not come out finite, none of it twice.
std::vector<ResultArea> winograd_correlate(const WinogradCorrelation& correlation);

struct WinogradWeightGradient {
  Index batch;
  Index source_height, source_width, sources;  // channels
  Index height, width, gradients;              // of the gradient; channels
  Index first_y, first_x;                      // where the first result's first tap reads
  Index dilation_y, dilation_x;
  EdgeMode edge;
  const ConvolutionImages* source;
  const ConvolutionImages* gradient;
  float* weight_gradient;  // [gradients][3][3][sources]
  float* bias_gradient;    // or null
  bool accumulate;
};

// The weights from some source channels to some gradient channels: first ones and counts.
struct WeightArea {
  Index source, sources, gradient, gradients;
};

// Returns what did not come out finite and was left as it is.
std::vector<WeightArea> winograd_weight_gradient(const WinogradWeightGradient& gradient);

}  // namespace mpsgrad::cpu::convolution
