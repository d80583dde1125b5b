// The loops of convolution, one table per instruction set, on plain pointers.
// convolution_engine.cpp decides what is computed where and in which order; here it is computed.
// Strides and steps count elements.
#pragma once

#include <cstdint>

#include "base/channel_format.hpp"
#include "cpu/isa.hpp"

namespace mpsgrad {

// Results that have just been computed: `pixels` neighbours of one row, a range of channels of
// each.
struct ConvolutionTile {
  std::int64_t sample, y, x;  // of the first pixel, counted from the corner of the result
  std::int64_t x_step;        // from one pixel of the tile to the next
  std::int64_t pixels;
  std::int64_t channel, channels;
  float* values;            // channel `channel` of the first pixel
  std::int64_t value_step;  // from one pixel to the next
};

// Called with every tile, on any thread, before it is stored; may change the values.
struct ConvolutionHook {
  void (*apply)(void* context, const ConvolutionTile& tile) = nullptr;
  void* context = nullptr;
  bool store = true;  // false: the hook has put the values where they belong
};

struct ConvolutionRow {  // of results
  void* data;            // first result
  std::int64_t sample, y;
};

// result(r, x, o) = bias(o) + sum over taps and channels of operand * weights, for some rows of
// results. The forward pass reads the source through it, the data gradient the incoming gradient,
// one phase of the stride at a time.
struct CorrelationTask {
  // Where tap (t, 0) of the first result of row r reads: operand[r * taps_y + t]; null stands for
  // zeros.
  const float* const* operand;
  const ConvolutionRow* result;
  std::int64_t rows, width;
  std::int64_t taps_y, taps_x;
  std::int64_t operand_step;                           // from one result to the next
  std::int64_t operand_tap_step;                       // from one tap to the next in a row
  std::int64_t groups, group_operands, group_results;  // channels of one group
  const float* weights;  // packed: blocks of `lanes` results, then taps, operand channels, lanes
  std::int64_t first_tap_y, first_tap_x, kernel_taps, kernel_width;  // which of the packed taps
  const float* bias;  // one value for every lane of every block
  std::int64_t first_block, last_block;
  ChannelFormat format;  // of the result
  std::int64_t result_step;
  std::int64_t first_x, x_step;  // position of the results, for the hook
  ConvolutionHook hook;
  // depthwise: neighbouring channels that make a group, 1, or 4, 8 and so on up to most_mixed
  std::int64_t mixed;
  // depthwise: where the first channel is among those of the packed weights, and how many these are
  std::int64_t first_channel, weight_channels;
  // depthwise: channels that are finished before the next ones are begun
  std::int64_t channels_at_once;
  // depthwise: what is read from operand[i] on, first to before last; around it stand zeros
  std::int64_t first_operand, last_operand;
  // depthwise: how far away the rows are that the next row of results needs anew, and how many (0)
  std::int64_t next_row, fresh_rows;
  // depthwise: operands and results lie as float16; operand[i] points at them, and steps count them
  bool halves;
  bool streamed;  // results go past the caches where they are whole lines
  void* runs;     // scratch: 24 * taps_y * taps_x bytes
};

// Parts of a tile in Winograd's form, and so products.
inline constexpr std::int64_t kWinogradParts = 16;

// sums(i, t, o) = or += sum over channels of operand(i, t, c) * weights(i, c, o), for the 16 parts
// i of some tiles. No more blocks than are done at once, of all channels, may take the place of
// their operands.
struct WinogradProducts {
  const float* operands;
  std::int64_t operand_tile_step, operand_part_step;
  std::int64_t channels;
  const float* weights;  // blocks of `lanes` results, each of the channels and then of others
  std::int64_t weight_block_step, weight_part_step;
  float* sums;
  std::int64_t sum_tile_step, sum_part_step;
  std::int64_t tiles, blocks;
  bool accumulate;
};

struct CorrelationLoops {
  std::int64_t lanes;  // of a vector
  // Results along the lanes of a vector.
  void (*correlate)(const CorrelationTask&);
  // Operand channels along the lanes, for few results: weights are packed as if `lanes` were 1.
  void (*correlate_dot)(const CorrelationTask&);
  std::int64_t winograd_blocks;  // that the next one can do at once
  void (*winograd_products)(const WinogradProducts&);
};

MPSGRAD_LOOPS(CorrelationLoops, correlation_loops)

struct DepthwiseLoops {
  std::int64_t most_mixed;
  std::int64_t halves_at_once;  // float16 is taken of multiples of so many channels; 0: not at all
  // Result channel c from operand channel c alone, or from the `mixed` channels of its group:
  // weights are packed as [tap][operand of the group][result channel], groups is 1, there is one
  // block, and group_results is the number of channels.
  void (*correlate)(const CorrelationTask&);
  // Whether that passes down the rows of a few pixels in one vector of channels after the other,
  // for windows of so many taps at such a distance from result to result, counted in taps.
  bool (*walks_down)(std::int64_t mixed, std::int64_t taps_y, std::int64_t taps_x,
                     std::int64_t stride);
};

MPSGRAD_LOOPS(DepthwiseLoops, depthwise_loops)

inline constexpr std::int64_t kLineFloats = 16;

// So many cache lines from an address on.
struct LinesAhead {
  const float* first;
  std::int64_t count;
};

// weights(o, q, p, c) += sum over positions of gradient(position, o) * source(position under tap
// (q, p), c), for a band of rows of the gradient.
struct WeightGradientTask {
  const float* const* gradient;  // [rows]: first channel of the first pixel
  const float* const*
      source;  // [rows * taps_y]: what tap (q, 0) reads for the first pixel; null stands for zeros
  const float* zeros;  // what stands for null: as long as a source row
  std::int64_t rows, width;
  std::int64_t taps_y, taps_x;
  std::int64_t gradient_step, source_step;  // from one gradient pixel to the next
  std::int64_t source_tap_step;
  std::int64_t source_offset;  // by_source, depthwise: from where a source row points to tap (q,
                               // 0), channel 0, first pixel
  // Per tap of a row, the gradient pixels [begin, end) for which the source may be read.
  const std::int64_t* begin;
  const std::int64_t* end;
  // Depthwise: rows lie as in memory, whose pixels are those from first_element to last_element,
  // counted from tap 0 of the first gradient pixel.
  bool walks;
  std::int64_t first_element, last_element;
  bool in_order;  // of those that walk: all channels of some pixels before the next ones
  bool asks;      // in_order: for the next row
  std::int64_t groups, group_sources, group_gradients;  // channels of one group
  std::int64_t mixed;  // depthwise: neighbouring channels that make a group
  // Blocks to do, but for depthwise: of source channels, or of gradient channels, all groups in one
  // count.
  std::int64_t first, last;
  // Gradient channels to do: by_source of each group; depthwise of all, and then rows, out and bias
  // begin at the first one.
  std::int64_t first_gradient, last_gradient;
  float* out;
  bool fresh;    // by_source, by_tap: what is there is overwritten
  bool streams;  // by_tap: past the caches, if nothing is added afterwards
  float* bias;   // += sums of the gradient, or null
  void* pairs;   // scratch: 16 * rows bytes
  // by_tap: whether weights are those of a transposed convolution, which columns of their rows are
  // to do in each group, and scratch for these, column_floats() long.
  bool across;
  std::int64_t first_column, last_column;
  float* columns;
  // Scratch, panel_floats() long, for by_tap; by_source copies the gradient there if it is given,
  // of a band of at most kConvolutionPanelPixels.
  float* panels;
  // by_source: what the next band reads of the source and of the gradient, if a request for it is
  // worth its time.
  LinesAhead next[2];
};

// sums(i, o, c) += sum over tiles of gradients(i, t, o) * sources(i, t, c), for the 16 parts i.
struct WinogradGradientProducts {
  const float* gradients;
  std::int64_t gradient_tile_step, gradient_part_step;
  const float* sources;
  std::int64_t source_tile_step, source_part_step;
  std::int64_t tiles;
  std::int64_t gradient_channels, source_channels;
  float* sums;
  std::int64_t sum_part_step;
};

struct WeightGradientLoops {
  std::int64_t lanes;
  std::int64_t (*panel_floats)();
  std::int64_t (*column_floats)(std::int64_t columns, std::int64_t pixels);
  // Source channels along the lanes; blocks of kBlock source channels; out is [o][tap][c].
  void (*by_source)(const WeightGradientTask&);
  // The same from copies (or not, as the processor needs it), each tap by itself. Blocks are panels
  // of gradient channels, of which each tap of a group has ceil(group_gradients /
  // kConvolutionPanel); columns are source channels. If `across` it is the other way round, and out
  // is [c][taps from the last to the first][o].
  void (*by_tap)(const WeightGradientTask&);
  // Gradient channels along the lanes, for few source channels; blocks of kBlock gradient channels;
  // out is [group][tap][c][o], and every gradient pixel is used.
  void (*by_gradient)(const WeightGradientTask&);
  void (*winograd_products)(const WinogradGradientProducts&);
  // sums[c] += sum over pixels.
  void (*channel_sums)(const float* row, std::int64_t pixels, std::int64_t step,
                       std::int64_t channels, float* sums);
};

MPSGRAD_LOOPS(WeightGradientLoops, weight_gradient_loops)

struct DepthwiseGradientLoops {
  // Whether `weights` can pass down the rows of a few pixels, in one vector of channels after the
  // other, for windows of so many taps at such a distance from pixel to pixel, counted in taps.
  bool (*walks_down)(std::int64_t taps_y, std::int64_t taps_x, std::int64_t stride);
  // Whether such a window is better done in the order of memory; large: of images that only memory
  // has.
  bool (*goes_in_order)(std::int64_t taps_y, std::int64_t taps_x, std::int64_t stride, bool large);
  // Channel by channel; out is [tap][channel].
  void (*weights)(const WeightGradientTask&);
};

MPSGRAD_LOOPS(DepthwiseGradientLoops, depthwise_gradient_loops)

struct GroupedGradientLoops {
  // Of depthwise with groups of `mixed` channels, a power of two from 4 to most_mixed: gradient
  // channel by channel, for each source channel of its group. out is [source channel of the
  // group][tap][channel]; the bias is left to others.
  std::int64_t most_mixed;
  void (*weights)(const WeightGradientTask&);
};

MPSGRAD_LOOPS(GroupedGradientLoops, grouped_gradient_loops)

// Stands for a column of zeros.
inline constexpr std::int64_t kWinogradOutside = -1;

// Tiles of pixels side by side, 4x4 of a source or 2x2 of a gradient, each two columns after the
// one before, and where the 16 parts of each go: channel c of part i of tile t at out[i * part_step
// + t * tile_step + c], in whole vectors.
struct WinogradPixels {
  const float* const* rows;     // 4 or 2; null: zeros
  const std::int64_t* columns;  // where channel 0 of each is in a row; negative: zeros
  std::int64_t tiles;
  std::int64_t first_channel, channels;
  std::int64_t tile_step, part_step;
  // From a pixel to the same one of the tile below, which is asked for: rows are too short for a
  // processor to foresee the next one. 0: not known.
  std::int64_t below;
  std::int64_t together;  // tiles whose columns of some channels are read before other channels
};

// Sums of products laid out in the same way, and the 2x2 pixels they become.
struct WinogradResults {
  const float* sums;
  std::int64_t tiles, channels;
  std::int64_t tile_step, part_step;
  const float* bias;        // whole vectors, as the sums
  float* rows[2];           // of the first pixel; null: not wanted
  std::int64_t pixel_step;  // from there to the next column
  bool odd;                 // the last column is not wanted
  bool* finite;             // of each tile: whether all four are
  bool streamed;  // past the caches where the processor can; only if pixels are whole lines
};

struct WinogradLoops {
  void (*sources)(const WinogradPixels&, float* out);
  void (*gradients)(const WinogradPixels&, float* out);
  // Quarters of the sums, plus the bias.
  void (*results)(const WinogradResults&);
  // `count` weights at each of 9 taps, [9][count], to 16 parts, which are four times
  // the formula's: halves of weights could be too small for a float.
  void (*weights)(const float* taps, std::int64_t count, float* out, std::int64_t part_step);
  // And back: 16 parts to the gradient at 9 taps. False if one of them is infinite or NaN.
  bool (*weight_gradient)(const float* sums, std::int64_t part_step, std::int64_t count, float* out,
                          std::int64_t tap_step);
};

MPSGRAD_LOOPS(WinogradLoops, winograd_loops)

// A block of WeightGradientTask, channels.
inline constexpr std::int64_t kConvolutionBlock = 64;
// A panel of by_tap, at most.
inline constexpr std::int64_t kConvolutionPanel = 128;
inline constexpr std::int64_t kConvolutionPanelPixels = 512;

}  // namespace mpsgrad
