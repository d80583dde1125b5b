#include "kernels/convolution/weight_gradient_plan.hpp"

#include <limits>

#include "cpu/threads.hpp"

namespace mpsgrad::cpu::convolution {
namespace {

constexpr Index kNarrowGroup = WeightGradientPlan::kNarrowGroup;
constexpr Index kBandPixels = 400;
constexpr Index kTapPixels = 256;  // of one tap of several: columns then fit into the nearest cache
// Floats between pixels from which on copies pay: they would lie in a few sets of the caches.
constexpr Index kFarApart = 512;
// Images of so many bytes come from memory, which is best read in few rows at a time.
constexpr Index kLargeImages = 16 * 1024 * 1024;
constexpr Index kFewRows = 4;
constexpr Index kPiecesOfThread = 2;  // enough to share work out evenly
constexpr Index kRowsInOrder = 64;    // whose sums are added to others at once

bool walks_down(const ConvolutionGeometry& g, Index mixed) {
  return g.depthwise && mixed == 1 && g.stride_x % g.dilation_x == 0 &&
         g.stride_x * g.dilation_y == g.stride_y * g.dilation_x &&
         depthwise_gradient_loops().walks_down(g.kernel_height, g.kernel_width,
                                               g.stride_x / g.dilation_x);
}

// A vector of source channels for each gradient channel, or the other way round, whichever is
// fuller; the latter has more pointers to follow.
bool is_fuller_by_source(const WeightGradientPlan& plan, Index sources) {
  const Index lanes = weight_gradient_loops().lanes;
  return !plan.g.depthwise && ceil_div(sources, lanes) * plan.group_gradients * 10 <=
                                  ceil_div(plan.group_gradients, lanes) * sources * 13;
}

// Where the pixels that a tap reads lie far apart, for each tap at a stride reads others, and there
// are channels enough for copies of them to pay; and where the weights lie across what they are
// summed from, for then copies are the cheapest way to turn it.
bool goes_by_tap(const WeightGradientPlan& plan) {
  const ConvolutionGeometry& g = plan.g;
  if (plan.across) {
    return std::min(plan.group_sources, plan.group_gradients) >= kNarrowGroup;
  }
  if (g.depthwise || !is_fuller_by_source(plan, plan.group_sources) || plan.merged > 1 ||
      plan.group_gradients < kNarrowGroup || (plan.taps > 1 && g.stride_x == 1)) {
    return false;
  }
  return std::max(g.source_channels * g.stride_x, g.destination_channels) >=
         (plan.taps == 1 ? kFarApart : kFarApart / 2);
}

// Which channels and taps a tile of sums has.
void choose_tiles(WeightGradientPlan& plan) {
  ConvolutionGeometry& g = plan.g;
  const Index group_channels = g.source_channels / g.groups;
  if (g.groups > 1 && !g.depthwise && !g.transposed_weights &&
      shares_vectors(group_channels, g.destination_channels / g.groups,
                     grouped_gradient_loops().most_mixed)) {
    plan.mixed = group_channels;
    g.groups = 1;
    g.depthwise = true;
  }
  plan.taps = g.kernel_height * g.kernel_width;
  plan.group_sources = g.source_channels / g.groups;
  plan.group_gradients = g.destination_channels / g.groups;
  plan.weights =
      g.destination_channels * plan.taps * (g.depthwise ? plan.mixed : plan.group_sources);
  // Few channels make thin tiles, those of all taps of a row thicker ones.
  if (g.groups == 1 && g.kernel_width > 1 && g.dilation_x == 1 && !g.transposed_weights &&
      plan.group_sources <= 2 * weight_gradient_loops().lanes &&
      is_fuller_by_source(plan, plan.group_sources * g.kernel_width)) {
    plan.merged = g.kernel_width;
  }
  plan.across = g.transposed_weights && !g.depthwise;
  plan.by_tap = goes_by_tap(plan);
  plan.by_source = !plan.by_tap && is_fuller_by_source(plan, plan.group_sources * plan.merged);
  plan.panels = plan.by_tap || (plan.by_source && plan.group_gradients >= kFarApart);
  plan.in_place = plan.by_tap || (plan.by_source && !g.transposed_weights);
}

// What rows of both sides are read in place, and what a copy of the others has.
void choose_windows(WeightGradientPlan& plan, const ConvolutionImages& source,
                    const ConvolutionImages& gradient) {
  const ConvolutionGeometry& g = plan.g;
  const Index reach = (g.kernel_width - 1) * g.dilation_x;
  plan.source = {&source,
                 g.source_height,
                 g.source_width,
                 0,
                 g.source_channels,
                 g.edge,
                 g.first_x,
                 (g.destination_width - 1) * g.stride_x + reach + 1,
                 false,
                 g.depthwise ? gap_between_pixels(g.source_channels) : 0};
  plan.source.direct = plan.source.can_be_direct() && plan.source.gap == 0 &&
                       (plan.merged == 1 || source.pixel_stride == g.source_channels);
  plan.every_pixel = true;
  const bool in_memory = source.format == ChannelFormat::Float32 &&
                         (plan.source.can_be_direct() || g.edge != EdgeMode::Clamp);
  plan.walks = in_memory && walks_down(g, plan.mixed);
  if (plan.walks || (in_memory && (plan.by_tap || plan.by_source) && plan.merged == 1)) {
    plan.source.direct = true;
    plan.source.gap = 0;
    plan.source.first_x = 0;
    plan.source.span = g.source_width;
    plan.every_pixel = false;
  }
  if (g.depthwise && !plan.source.direct && source.format == ChannelFormat::Float32 &&
      plan.source.gap == 0) {
    plan.inside = std::max<Index>(0, ceil_div(-g.first_x, g.stride_x));
    plan.outside = std::min(g.destination_width,
                            floor_div(g.source_width - 1 - reach - g.first_x, g.stride_x) + 1);
  }
  plan.gradient = {&gradient,
                   g.destination_height,
                   g.destination_width,
                   0,
                   g.destination_channels,
                   EdgeMode::Zero,
                   0,
                   g.destination_width,
                   gradient.format == ChannelFormat::Float32,
                   plan.source.gap};
}

// How many rows and columns are read at a time.
void choose_bands(WeightGradientPlan& plan) {
  const ConvolutionGeometry& g = plan.g;
  plan.image_bytes = 4 * g.batch *
                     (g.source_height * g.source_width * g.source_channels +
                      g.destination_height * g.destination_width * g.destination_channels);
  plan.large = plan.image_bytes >= kLargeImages;
  plan.in_order =
      plan.walks && depthwise_gradient_loops().goes_in_order(g.kernel_height, g.kernel_width,
                                                             g.stride_x / g.dilation_x, plan.large);
  const Index copied = (plan.source.direct ? 0 : g.source_channels * g.stride_x) +
                       (plan.gradient.direct ? 0 : g.destination_channels);
  const Index budget = std::clamp(plan.image_bytes / 16, kPieceBytes / 4, 2 * kPieceBytes);
  plan.columns = g.destination_width;
  if (copied > 0 && plan.inside >= plan.outside) {
    plan.columns =
        std::clamp<Index>(budget / (copied * 4), 16, std::max<Index>(g.destination_width, 16));
    plan.columns = std::max<Index>(1, std::min(plan.columns, g.destination_width));
  }
  Index band_pixels = plan.by_tap && plan.taps > 1 ? kTapPixels : kBandPixels;
  if (plan.panels && !plan.by_tap) {
    band_pixels = kConvolutionPanelPixels;
    plan.columns = std::min(plan.columns, band_pixels);
  }
  plan.band_rows = std::max<Index>(1, band_pixels / std::max<Index>(1, plan.columns));
  if (copied > 0) {
    plan.band_rows = std::clamp<Index>(budget / (plan.columns * copied * 4), 1, plan.band_rows);
  }
  if (g.depthwise) {  // which passes over a band once for each vector of channels
    const Index row_bytes =
        4 * g.destination_channels * (g.destination_width + g.source_width * g.stride_y);
    const Index near = plan.walks && plan.large ? 0 : 2 * kPieceBytes / row_bytes;
    const Index least = plan.walks && copied == 0 ? kFewRows : 1;
    plan.band_rows = plan.in_order ? std::clamp(plan.rows() / kPieces, kFewRows, kRowsInOrder)
                                   : std::clamp(near, least, std::max(least, plan.band_rows));
  }
}

// By tap, for so many pieces: each copies the columns of its range once, or once for each tap, and
// the rows of its blocks.
void cut_for_copies(WeightGradientPlan& plan, Index pieces, Index row_channels) {
  constexpr Index kMostColumns = 1024;
  const Index budget = plan.image_bytes / 16 / (4 * kBandPixels);
  const Index most =
      std::clamp<Index>(budget / kNarrowGroup * kNarrowGroup, 4 * kNarrowGroup, kMostColumns);
  Index least_copied = std::numeric_limits<Index>::max();
  const Index first = std::min(ceil_div(plan.range_channels, most), plan.range_units());
  for (Index ranges = first; ranges <= std::clamp(pieces, first, plan.range_units()); ++ranges) {
    const Index splits = std::min(ceil_div(pieces, ranges), plan.blocks);
    const Index copied = plan.range_channels * std::max(plan.across ? 1 : plan.taps, splits) +
                         row_channels * plan.taps * ranges;
    if (copied < least_copied) {
      least_copied = copied;
      plan.ranges = ranges;
      plan.splits = splits;
    }
  }
}

// How many tasks there are, and of what.
void choose_parts(WeightGradientPlan& plan) {
  const ConvolutionGeometry& g = plan.g;
  const Index flops =
      2 * plan.rows() * g.destination_width * plan.weights * (g.depthwise ? kDepthwiseCost : 1);
  const Index worth = std::clamp<Index>(flops / kPieceFlops, 1, kPieces);
  // Sums beside the result take a tenth of the images at most.
  const Index beside = plan.image_bytes / 10 / (plan.weights * 4);
  plan.parts =
      std::clamp<Index>(beside + (plan.in_place && !plan.by_tap ? 1 : 0), 1,
                        std::max<Index>(1, std::min(worth, ceil_div(plan.rows(), plan.band_rows))));
  plan.range_channels = plan.by_tap && !plan.across ? plan.group_sources : plan.group_gradients;
  const Index row_channels = plan.across ? plan.group_sources : plan.group_gradients;
  plan.blocks = plan.by_tap ? g.groups * plan.taps * ceil_div(row_channels, kConvolutionPanel)
                : plan.by_source
                    ? g.groups * ceil_div(plan.group_sources * plan.merged, kConvolutionBlock)
                : g.depthwise ? 1
                              : g.groups * ceil_div(plan.group_gradients, kConvolutionBlock);
  const Index wanted =
      std::clamp<Index>(work_on_weights(flops / plan.parts, plan.weights) / kPieceFlops, 1,
                        ceil_div(kPieces, plan.parts));
  plan.splits = std::min(wanted, plan.blocks);
  // No sum depends on how blocks and ranges are cut, which may thus be as the threads need it.
  if (thread_count() > 1 && (g.depthwise || plan.by_source)) {
    const Index few = (g.depthwise ? 2 : 1) * thread_count();  // ranges make other tiles narrower
    plan.ranges =
        std::clamp<Index>(std::min(wanted / plan.splits, ceil_div(few, plan.parts * plan.splits)),
                          1, plan.range_units());
  }
  if (plan.by_tap) {
    cut_for_copies(plan, std::min(wanted, ceil_div(kPiecesOfThread * thread_count(), plan.parts)),
                   row_channels);
  }
}

// Reading ahead is worth it where several tiles read what only memory has, and a band stays near
// until they do.
void choose_requests(WeightGradientPlan& plan) {
  const ConvolutionGeometry& g = plan.g;
  const Index band_bytes = 4 * plan.band_rows * g.destination_width *
                           (g.source_channels * g.stride_x + g.destination_channels);
  plan.source.read_first = plan.gradient.read_first =
      plan.by_source && !plan.panels && plan.group_gradients >= kNarrowGroup && plan.splits == 1 &&
      plan.source.images->pixel_stride == g.source_channels &&
      plan.gradient.images->pixel_stride == g.destination_channels &&
      band_bytes <= 4 * kPieceBytes && plan.image_bytes >= streamed_bytes();
  // Larger windows read some rows again, and strides leave some pixels out.
  plan.asks_ahead = plan.source.read_first && plan.taps == 1 && g.first_y == 0 && g.stride_y == 1 &&
                    g.stride_x == 1;
}

}  // namespace

WeightGradientPlan plan_weight_gradient(const ConvolutionGeometry& geometry,
                                        const ConvolutionImages& source,
                                        const ConvolutionImages& gradient) {
  WeightGradientPlan plan;
  plan.g = geometry;
  choose_tiles(plan);
  choose_windows(plan, source, gradient);
  choose_bands(plan);
  choose_parts(plan);
  choose_requests(plan);
  return plan;
}

}  // namespace mpsgrad::cpu::convolution
