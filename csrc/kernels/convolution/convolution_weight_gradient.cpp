// Weight and bias gradients: sums over all positions, cut into parts by rows and by channels. Parts
// of different rows add up in buffers of their own, which are added in order at the end.
#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"

namespace mpsgrad::cpu {
namespace {

using namespace convolution;

constexpr Index kBandPixels = 400;
constexpr Index kTapPixels = 256;  // of one tap of several: columns then fit into the nearest cache
constexpr Index kNarrowGroup = 32;  // gradient channels too few for copies of one tap to pay
// Floats between pixels from which on copies pay: they would lie in a few sets of the caches.
constexpr Index kFarApart = 512;
// Images of so many bytes come from memory, which is best read in few rows at a time.
constexpr Index kLargeImages = 16 * 1024 * 1024;
constexpr Index kFewRows = 4;
constexpr Index kPiecesOfThread = 2;  // enough to share work out evenly
constexpr Index kRowsInOrder = 64;    // whose sums are added to others at once

struct Sums {
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
  Index band_rows = 0, columns = 0;
  Index inside = 0, outside = 0;  // depthwise: columns whose source rows need not be copied
  // Of the rows, of the channel blocks, and of the range_channels of each, which are by_source and
  // depthwise those of the gradient and by_tap the columns, kNarrowGroup or more at a time.
  Index parts = 0, splits = 0, ranges = 1, range_channels = 0;
  Index blocks = 0;
  Index partial_floats = 0;
  float* first_partial = nullptr;  // possibly the result itself
  float* more_partials = nullptr;  // [parts - 1][partial_floats]
  float* bias_partials = nullptr;  // [parts][destination_channels], or null
  const WeightGradientLoops* loops = nullptr;

  Index range_units() const { return std::max<Index>(1, range_channels / kNarrowGroup); }
  Index first_of(Index range) const {
    return range == ranges ? range_channels : range * range_units() / ranges * kNarrowGroup;
  }
  float* partial(Index part) const {
    return part == 0 ? first_partial : more_partials + (part - 1) * partial_floats;
  }
};

void zero(float* data, Index count) {
  constexpr Index kChunk = 64 * 1024;
  parallel_for(ceil_div(count, kChunk), [&](Index i) {
    std::fill_n(data + i * kChunk, std::min(kChunk, count - i * kChunk), 0.0F);
  });
}

// Gradient rows [first, last), counted over all samples, blocks [first_block, last_block), and of
// each group the channels [first_channel, last_channel) of a range.
struct Part {
  Index first, last;
  Index first_block, last_block;
  Index first_channel, last_channel;
  float* out;
  bool fresh;  // nothing is there yet
  float* bias;
};

void run_part(const Sums& sums, const Part& part) {
  const ConvolutionGeometry& g = sums.g;
  RowWindow source = sums.source;
  RowWindow gradient = sums.gradient;
  // Sums for the biases read all of it first.
  gradient.read_first = gradient.read_first && part.bias == nullptr;
  Index source_channel = 0;  // where the source rows begin
  if (sums.by_source && !source.direct && sums.merged == 1) {
    const Index blocks_per_group = ceil_div(sums.group_sources, kConvolutionBlock);
    const auto start_of = [&](Index block) {
      return block / blocks_per_group * sums.group_sources +
             block % blocks_per_group * kConvolutionBlock;
    };
    source_channel = start_of(part.first_block);
    source.channel = source_channel;
    source.channels = std::min(start_of(part.last_block), g.source_channels) - source_channel;
  }
  if (g.depthwise) {
    source.channel = gradient.channel = part.first_channel;
    source.channels = gradient.channels = part.last_channel - part.first_channel;
  }
  const Index reach = (g.kernel_height - 1) * g.dilation_y + 1;
  const Index rows = std::min(sums.band_rows, part.last - part.first);
  // Rows of a band may belong to different samples, each of which needs its own rows of the source.
  const Index samples = std::min(g.batch, ceil_div(rows - 1, g.destination_height) + 1);
  const Index per_sample = std::min(rows, g.destination_height);
  const Index positions = (per_sample - 1) * g.stride_y + reach;
  const Index source_rows = std::min(samples * std::min(positions, g.source_height),
                                     rows * std::min(g.kernel_height, g.source_height));
  const Index slots = RowCache::slots(source, positions);
  const Index gradient_slots = RowCache::slots(gradient, per_sample);
  const Index zeros =
      sums.by_source || sums.by_tap || sums.walks || sums.mixed > 1
          ? 0
          : source.span * std::max(source.pixel_stride(), source.images->pixel_stride);
  const Index panels = sums.panels ? sums.loops->panel_floats() : 0;
  const Index columns =
      sums.by_tap
          ? sums.loops->column_floats(part.last_channel - part.first_channel, rows * sums.columns)
          : 0;
  Scratch scratch(
      RowCache::bytes(source, source_rows, slots) +
      RowCache::bytes(gradient, rows, gradient_slots) + Scratch::bytes<const float*>(rows) +
      Scratch::bytes<const float*>(rows * g.kernel_height) + Scratch::bytes<float>(zeros) +
      2 * Scratch::bytes<Index>(g.kernel_width) + Scratch::bytes<std::byte>(16 * rows) +
      Scratch::bytes<float>(panels) + Scratch::bytes<float>(columns));
  auto** gradient_rows = scratch.take<const float*>(rows);
  auto** found = scratch.take<const float*>(rows * g.kernel_height);
  auto* begin = scratch.take<Index>(g.kernel_width);
  auto* end = scratch.take<Index>(g.kernel_width);
  WeightGradientTask task{};
  task.gradient = gradient_rows;
  task.source = found;
  auto* memory = scratch.take<float>(zeros);
  std::fill_n(memory, zeros, 0.0F);
  task.zeros = memory;
  task.taps_y = g.kernel_height;
  task.taps_x = g.kernel_width / sums.merged;
  task.begin = begin;
  task.end = end;
  task.groups = g.groups;
  task.group_sources = sums.group_sources * sums.merged;
  task.group_gradients = sums.group_gradients;
  task.mixed = sums.mixed;
  task.first = part.first_block;
  task.last = part.last_block;
  task.first_gradient = part.first_channel;
  task.last_gradient = part.last_channel;
  task.out = part.out;
  task.bias = part.bias;
  task.walks = sums.walks;
  task.in_order = sums.in_order;
  task.asks = sums.large;
  task.pairs = scratch.take<std::byte>(16 * rows);
  task.across = sums.across;
  task.first_column = part.first_channel;
  task.last_column = part.last_channel;
  task.columns = scratch.take<float>(columns);
  task.panels = sums.panels ? scratch.take<float>(panels) : nullptr;

  RowCache source_cache(source, source_rows, slots, scratch);
  RowCache gradient_cache(gradient, rows, gradient_slots, scratch);
  for (Index column = 0; column < g.destination_width;) {
    Index width = std::min(sums.columns, g.destination_width - column);
    if (sums.inside < sums.outside) {
      // Only what reaches beyond the edges is copied.
      source.direct = column >= sums.inside && column < sums.outside;
      width = (column < sums.inside ? sums.inside
               : source.direct      ? sums.outside
                                    : g.destination_width) -
              column;
    }
    gradient.first_x = column;
    gradient.span = width;
    task.width = width;
    task.source_step = g.stride_x * source.pixel_stride();
    task.source_tap_step = g.dilation_x * source.pixel_stride();
    const Index first_x = g.first_x + column * g.stride_x;
    if (sums.every_pixel) {
      source.first_x = first_x;
      source.span = (width - 1) * g.stride_x + (g.kernel_width - 1) * g.dilation_x + 1;
      task.source_offset = -source_channel;
      std::fill_n(begin, g.kernel_width, 0);
      std::fill_n(end, g.kernel_width, width);
    } else {
      task.source_offset = first_x * source.pixel_stride() - source_channel;
      task.first_element = -first_x * source.pixel_stride();
      task.last_element = (g.source_width - first_x) * source.pixel_stride();
      for (Index p = 0; p < g.kernel_width; ++p) {
        const Index x = first_x + p * g.dilation_x;
        begin[p] = std::clamp<Index>(floor_div(-x + g.stride_x - 1, g.stride_x), 0, width);
        end[p] =
            std::clamp<Index>(floor_div(g.source_width - 1 - x, g.stride_x) + 1, begin[p], width);
      }
    }
    source_cache.use(source);
    gradient_cache.use(gradient);
    task.gradient_step = gradient.pixel_stride();
    for (Index band = part.first; band < part.last; band += rows) {
      const Index last = std::min(band + rows, part.last);
      source_cache.clear();
      gradient_cache.clear();
      for (Index row = band; row < last; ++row) {
        const Index n = row / g.destination_height;
        const Index j = row % g.destination_height;
        if (row == band || j == 0) {
          const Index last_j = std::min(g.destination_height, j + last - row) - 1;
          source_cache.start(n, g.first_y + j * g.stride_y,
                             g.first_y + last_j * g.stride_y + reach - 1);
          gradient_cache.start(n, j, last_j);
        }
        gradient_rows[row - band] = gradient_cache.row(j);
        for (Index q = 0; q < g.kernel_height; ++q) {
          found[(row - band) * g.kernel_height + q] =
              source_cache.row(g.first_y + j * g.stride_y + q * g.dilation_y);
        }
      }
      task.rows = last - band;
      task.fresh = part.fresh && column == 0 && band == part.first;
      task.streams = task.fresh && last == part.last && width == g.destination_width &&
                     4 * sums.partial_floats >= streamed_bytes();
      const Index next_rows = sums.asks_ahead ? std::min(rows, part.last - last) : 0;
      const Index sample = last / g.destination_height;
      const Index next = last % g.destination_height;
      task.next[0] = source_cache.lines_of(sample, next, next_rows);
      task.next[1] = gradient_cache.lines_of(sample, next, next_rows);
      if (sums.mixed > 1) {
        grouped_gradient_loops().weights(task);
        if (task.bias != nullptr) {
          for (Index row = 0; row < task.rows; ++row) {
            sums.loops->channel_sums(gradient_rows[row], width, task.gradient_step,
                                     task.last_gradient - task.first_gradient, task.bias);
          }
        }
        continue;
      }
      (g.depthwise      ? depthwise_gradient_loops().weights
       : sums.by_tap    ? sums.loops->by_tap
       : sums.by_source ? sums.loops->by_source
                        : sums.loops->by_gradient)(task);
    }
    column += width;
  }
}

// Adds the parts up in order and puts every weight where the layout of the weights has it.
void finish(const Sums& sums, float* result, bool accumulate) {
  const ConvolutionGeometry& g = sums.g;
  constexpr Index kChunk = 16 * 1024;
  if (sums.parts > 1) {
    parallel_for(ceil_div(sums.partial_floats, kChunk), [&](Index chunk) {
      float* to = sums.first_partial;
      const Index last = std::min(sums.partial_floats, (chunk + 1) * kChunk);
      for (Index part = 1; part < sums.parts; ++part) {
        const float* from = sums.partial(part);
        for (Index i = chunk * kChunk; i < last; ++i) {
          to[i] += from[i];
        }
      }
    });
  }
  if (sums.first_partial == result) {
    return;
  }
  // Weight (group, o, tap, c) is found at these distances in the sums, and goes to those in the
  // result.
  const Index taps = sums.taps;
  const Index groups = sums.mixed > 1 ? sums.group_gradients / sums.mixed : g.groups;
  const Index inputs = g.depthwise ? sums.mixed : sums.group_sources;
  const Index outputs = sums.mixed > 1 ? sums.mixed : sums.group_gradients;
  const Index weights = taps * inputs * outputs;  // of a group
  const Index from_o = sums.by_source ? taps * inputs : 1;
  const Index from_c = sums.by_source ? 1 : g.depthwise ? taps * sums.group_gradients : outputs;
  const Index from_tap = sums.by_source ? inputs
                         : g.depthwise  ? sums.group_gradients
                                        : inputs * outputs;
  const Index from_group = g.depthwise ? outputs : weights;
  const bool transposed = g.transposed_weights && !g.depthwise;
  const Index to_o = transposed ? 1 : taps * inputs;
  const Index to_c = transposed ? taps * outputs : 1;
  const Index to_tap = transposed ? outputs : inputs;
  const auto put_row = [&](Index group, Index tap, Index c, Index first, Index last) {
    const float* from = sums.first_partial + group * from_group + tap * from_tap + c * from_c;
    float* to = result + group * weights + (g.transposed_weights ? taps - 1 - tap : tap) * to_tap +
                c * to_c;
    for (Index o = first; o < last; ++o) {
      const float value = from[o * from_o];
      float& weight = to[o * to_o];
      weight = accumulate ? weight + value : value;
    }
  };
  if (transposed) {
    // One side is read or the other written across: some outputs at a time, so that both find their
    // cache lines again.
    constexpr Index kOutputs = 16;
    const Index rows = groups * taps * inputs;
    const Index together = std::max<Index>(1, kChunk / std::max<Index>(1, outputs));
    parallel_for(ceil_div(rows, together), [&](Index chunk) {
      const Index last = std::min(rows, (chunk + 1) * together);
      for (Index o = 0; o < outputs; o += kOutputs) {
        for (Index row = chunk * together; row < last; ++row) {
          put_row(row / (taps * inputs), row / inputs % taps, row % inputs, o,
                  std::min(outputs, o + kOutputs));
        }
      }
    });
    return;
  }
  const Index together = std::max<Index>(1, kChunk / std::max<Index>(1, weights));
  parallel_for(ceil_div(groups, together), [&](Index chunk) {
    for (Index i = chunk * together; i < std::min(groups, (chunk + 1) * together); ++i) {
      for (Index tap = 0; tap < taps; ++tap) {
        for (Index c = 0; c < inputs; ++c) {
          put_row(i, tap, c, 0, outputs);
        }
      }
    }
  });
}

bool walks_down(const ConvolutionGeometry& g, Index mixed) {
  return g.depthwise && mixed == 1 && g.stride_x % g.dilation_x == 0 &&
         g.stride_x * g.dilation_y == g.stride_y * g.dilation_x &&
         depthwise_gradient_loops().walks_down(g.kernel_height, g.kernel_width,
                                               g.stride_x / g.dilation_x);
}

// Where the pixels that a tap reads lie far apart, for each tap at a stride reads others, and there
// are channels enough for copies of them to pay; and where the weights lie across what they are
// summed from, for then copies are the cheapest way to turn it.
bool goes_by_tap(const Sums& sums, bool fuller_by_source) {
  const ConvolutionGeometry& g = sums.g;
  if (sums.across) {
    return std::min(sums.group_sources, sums.group_gradients) >= kNarrowGroup;
  }
  if (g.depthwise || !fuller_by_source || sums.merged > 1 || sums.group_gradients < kNarrowGroup ||
      (sums.taps > 1 && g.stride_x == 1)) {
    return false;
  }
  return std::max(g.source_channels * g.stride_x, g.destination_channels) >=
         (sums.taps == 1 ? kFarApart : kFarApart / 2);
}

// By tap, for so many pieces: each copies the columns of its range once, or once for each tap, and
// the rows of its blocks.
void cut_for_copies(Sums& sums, Index pieces, Index row_channels, Index activations) {
  constexpr Index kMostColumns = 1024;
  const Index budget = activations / 16 / (4 * kBandPixels);
  const Index most =
      std::clamp<Index>(budget / kNarrowGroup * kNarrowGroup, 4 * kNarrowGroup, kMostColumns);
  Index least_copied = std::numeric_limits<Index>::max();
  const Index first = std::min(ceil_div(sums.range_channels, most), sums.range_units());
  for (Index ranges = first; ranges <= std::clamp(pieces, first, sums.range_units()); ++ranges) {
    const Index splits = std::min(ceil_div(pieces, ranges), sums.blocks);
    const Index copied = sums.range_channels * std::max(sums.across ? 1 : sums.taps, splits) +
                         row_channels * sums.taps * ranges;
    if (copied < least_copied) {
      least_copied = copied;
      sums.ranges = ranges;
      sums.splits = splits;
    }
  }
}

void direct_weight_gradient(const ConvolutionGeometry& geometry,
                            const ConvolutionImages& source_images,
                            const ConvolutionImages& gradient_images, float* weight_gradient,
                            float* bias_gradient, bool accumulate) {
  ConvolutionGeometry g = geometry;
  ConvolutionImages source = source_images;
  ConvolutionImages gradient = gradient_images;
  merge_positions(g, source, gradient);
  const WeightGradientLoops& loops = weight_gradient_loops();
  Sums sums;
  sums.g = g;
  sums.loops = &loops;
  const Index group_channels = g.source_channels / g.groups;
  if (g.groups > 1 && !g.depthwise && !g.transposed_weights &&
      shares_vectors(group_channels, g.destination_channels / g.groups,
                     grouped_gradient_loops().most_mixed)) {
    sums.mixed = group_channels;
    sums.g.groups = g.groups = 1;
    sums.g.depthwise = g.depthwise = true;
  }
  sums.taps = g.kernel_height * g.kernel_width;
  sums.group_sources = g.source_channels / g.groups;
  sums.group_gradients = g.destination_channels / g.groups;
  // A vector of source channels for each gradient channel, or the other way round, whichever is
  // fuller; the latter has more pointers to follow.
  const auto fuller_by_source = [&](Index sources) {
    return !g.depthwise && ceil_div(sources, loops.lanes) * sums.group_gradients * 10 <=
                               ceil_div(sums.group_gradients, loops.lanes) * sources * 13;
  };
  // Few channels make thin tiles, those of all taps of a row thicker ones.
  if (g.groups == 1 && g.kernel_width > 1 && g.dilation_x == 1 && !g.transposed_weights &&
      sums.group_sources <= 2 * loops.lanes &&
      fuller_by_source(sums.group_sources * g.kernel_width)) {
    sums.merged = g.kernel_width;
  }
  sums.across = g.transposed_weights && !g.depthwise;
  sums.by_tap = goes_by_tap(sums, fuller_by_source(sums.group_sources));
  sums.by_source = !sums.by_tap && fuller_by_source(sums.group_sources * sums.merged);
  const Index reach_x =
      (g.destination_width - 1) * g.stride_x + (g.kernel_width - 1) * g.dilation_x + 1;
  sums.source = {&source,
                 g.source_height,
                 g.source_width,
                 0,
                 g.source_channels,
                 g.edge,
                 g.first_x,
                 reach_x,
                 false,
                 g.depthwise ? gap_between_pixels(g.source_channels) : 0};
  sums.source.direct = sums.source.can_be_direct() && sums.source.gap == 0 &&
                       (sums.merged == 1 || source.pixel_stride == g.source_channels);
  sums.every_pixel = true;
  const bool in_memory = source.format == ChannelFormat::Float32 &&
                         (sums.source.can_be_direct() || g.edge != EdgeMode::Clamp);
  sums.walks = in_memory && walks_down(g, sums.mixed);
  if (sums.walks || (in_memory && (sums.by_tap || sums.by_source) && sums.merged == 1)) {
    sums.source.direct = true;
    sums.source.gap = 0;
    sums.source.first_x = 0;
    sums.source.span = g.source_width;
    sums.every_pixel = false;
  }
  if (g.depthwise && !sums.source.direct && source.format == ChannelFormat::Float32 &&
      sums.source.gap == 0) {
    const Index reach = (g.kernel_width - 1) * g.dilation_x;
    sums.inside = std::max<Index>(0, ceil_div(-g.first_x, g.stride_x));
    sums.outside = std::min(g.destination_width,
                            floor_div(g.source_width - 1 - reach - g.first_x, g.stride_x) + 1);
  }
  sums.gradient = {&gradient,
                   g.destination_height,
                   g.destination_width,
                   0,
                   g.destination_channels,
                   EdgeMode::Zero,
                   0,
                   g.destination_width,
                   gradient.format == ChannelFormat::Float32,
                   sums.source.gap};
  sums.panels = sums.by_tap || (sums.by_source && sums.group_gradients >= kFarApart);

  const Index weights =
      g.destination_channels * sums.taps * (g.depthwise ? sums.mixed : sums.group_sources);
  const Index rows = g.batch * g.destination_height;
  const Index copied = (sums.source.direct ? 0 : g.source_channels * g.stride_x) +
                       (sums.gradient.direct ? 0 : g.destination_channels);
  const Index activations = 4 * g.batch *
                            (g.source_height * g.source_width * g.source_channels +
                             g.destination_height * g.destination_width * g.destination_channels);
  sums.large = activations >= kLargeImages;
  sums.in_order =
      sums.walks && depthwise_gradient_loops().goes_in_order(g.kernel_height, g.kernel_width,
                                                             g.stride_x / g.dilation_x, sums.large);
  const Index budget = std::clamp(activations / 16, kPieceBytes / 4, 2 * kPieceBytes);
  sums.columns = g.destination_width;
  if (copied > 0 && sums.inside >= sums.outside) {
    sums.columns =
        std::clamp<Index>(budget / (copied * 4), 16, std::max<Index>(g.destination_width, 16));
    sums.columns = std::max<Index>(1, std::min(sums.columns, g.destination_width));
  }
  Index band_pixels = sums.by_tap && sums.taps > 1 ? kTapPixels : kBandPixels;
  if (sums.panels && !sums.by_tap) {
    band_pixels = kConvolutionPanelPixels;
    sums.columns = std::min(sums.columns, band_pixels);
  }
  sums.band_rows = std::max<Index>(1, band_pixels / std::max<Index>(1, sums.columns));
  if (copied > 0) {
    sums.band_rows = std::clamp<Index>(budget / (sums.columns * copied * 4), 1, sums.band_rows);
  }
  if (g.depthwise) {  // which passes over a band once for each vector of channels
    const Index row_bytes =
        4 * g.destination_channels * (g.destination_width + g.source_width * g.stride_y);
    const Index near = sums.walks && sums.large ? 0 : 2 * kPieceBytes / row_bytes;
    const Index least = sums.walks && copied == 0 ? kFewRows : 1;
    sums.band_rows = sums.in_order ? std::clamp(rows / kPieces, kFewRows, kRowsInOrder)
                                   : std::clamp(near, least, std::max(least, sums.band_rows));
  }
  const Index flops = 2 * rows * g.destination_width * weights * (g.depthwise ? kDepthwiseCost : 1);
  const Index worth = std::clamp<Index>(flops / kPieceFlops, 1, kPieces);
  // Sums beside the result take a tenth of the images at most.
  const bool in_place = sums.by_tap || (sums.by_source && !g.transposed_weights);
  sums.parts =
      std::clamp<Index>(activations / 10 / (weights * 4) + (in_place && !sums.by_tap ? 1 : 0), 1,
                        std::max<Index>(1, std::min(worth, ceil_div(rows, sums.band_rows))));
  sums.range_channels = sums.by_tap && !sums.across ? sums.group_sources : sums.group_gradients;
  const Index row_channels = sums.across ? sums.group_sources : sums.group_gradients;
  sums.blocks = sums.by_tap ? g.groups * sums.taps * ceil_div(row_channels, kConvolutionPanel)
                : sums.by_source
                    ? g.groups * ceil_div(sums.group_sources * sums.merged, kConvolutionBlock)
                : g.depthwise ? 1
                              : g.groups * ceil_div(sums.group_gradients, kConvolutionBlock);
  const Index wanted = std::clamp<Index>(work_on_weights(flops / sums.parts, weights) / kPieceFlops,
                                         1, ceil_div(kPieces, sums.parts));
  sums.splits = std::min(wanted, sums.blocks);
  // Worth it where several tiles read what only memory has, and a band stays near until they do.
  const Index band_bytes = 4 * sums.band_rows * g.destination_width *
                           (g.source_channels * g.stride_x + g.destination_channels);
  sums.source.read_first = sums.gradient.read_first =
      sums.by_source && !sums.panels && sums.group_gradients >= kNarrowGroup && sums.splits == 1 &&
      source.pixel_stride == g.source_channels && gradient.pixel_stride == g.destination_channels &&
      band_bytes <= 4 * kPieceBytes && activations >= streamed_bytes();
  // Larger windows read some rows again, and strides leave some pixels out.
  sums.asks_ahead = sums.source.read_first && sums.taps == 1 && g.first_y == 0 && g.stride_y == 1 &&
                    g.stride_x == 1;
  // No sum depends on how blocks and ranges are cut, which may thus be as the threads need it.
  if (thread_count() > 1 && (g.depthwise || sums.by_source)) {
    const Index few = (g.depthwise ? 2 : 1) * thread_count();  // ranges make other tiles narrower
    sums.ranges =
        std::clamp<Index>(std::min(wanted / sums.splits, ceil_div(few, sums.parts * sums.splits)),
                          1, sums.range_units());
  }
  if (sums.by_tap) {
    cut_for_copies(sums, std::min(wanted, ceil_div(kPiecesOfThread * thread_count(), sums.parts)),
                   row_channels, activations);
  }
  sums.partial_floats = weights;

  Scratch scratch(Scratch::bytes<float>((sums.parts - (in_place ? 1 : 0)) * weights) +
                  Scratch::bytes<float>(sums.parts * g.destination_channels));
  auto* memory = scratch.take<float>((sums.parts - (in_place ? 1 : 0)) * weights);
  sums.first_partial = in_place ? weight_gradient : memory;
  sums.more_partials = in_place ? memory : memory + weights;
  // Sums of these kinds are written by the first band.
  const bool writes = (sums.by_tap || sums.by_source) && rows > 0 && g.destination_width > 0;
  if (in_place && !accumulate && !writes) {
    zero(weight_gradient, weights);
  }
  if (!writes) {
    zero(memory, (sums.parts - (in_place ? 1 : 0)) * weights);
  }
  if (bias_gradient != nullptr) {
    sums.bias_partials = scratch.take<float>(sums.parts * g.destination_channels);
    std::fill_n(sums.bias_partials, sums.parts * g.destination_channels, 0.0F);
  }
  if (rows > 0 && g.destination_width > 0) {
    const Index splits = sums.splits * sums.ranges;
    parallel_for(sums.parts * splits, [&](Index i) {
      const Index part = i / splits;
      const Index split = i % splits / sums.ranges;
      const Index range = i % sums.ranges;
      const Index first = sums.first_of(range);
      const Index last = sums.first_of(range + 1);
      const Index begin = g.depthwise ? first : 0;  // of what the part has for itself
      float* bias = bias_gradient != nullptr && (g.depthwise || i % splits == 0)
                        ? sums.bias_partials + part * g.destination_channels + begin
                        : nullptr;
      run_part(sums, {part * rows / sums.parts, (part + 1) * rows / sums.parts,
                      split * sums.blocks / sums.splits, (split + 1) * sums.blocks / sums.splits,
                      first, last, sums.partial(part) + begin,
                      writes && !(accumulate && in_place && part == 0), bias});
    });
  }
  finish(sums, weight_gradient, accumulate);
  if (bias_gradient != nullptr) {
    finish_channel_sums(sums.bias_partials, sums.parts, g.destination_channels, bias_gradient,
                        accumulate);
  }
}

// Images that begin at a channel.
class ChannelsOf {
 public:
  ChannelsOf(const ConvolutionImages& images, Index batch, Index channel)
      : samples_(images.samples, images.samples + batch), images_(images) {
    for (std::byte*& sample : samples_) {
      sample += channel * item_size(images.format);
    }
    images_.samples = samples_.data();
  }
  const ConvolutionImages& images() const { return images_; }

 private:
  std::vector<std::byte*> samples_;
  ConvolutionImages images_;
};

// Some of the weights by themselves.
void direct_weight_gradient(const ConvolutionGeometry& geometry, const ConvolutionImages& source,
                            const ConvolutionImages& gradient, const WeightArea& area,
                            float* weight_gradient, bool accumulate) {
  ConvolutionGeometry g = geometry;
  g.source_channels = area.sources;
  g.destination_channels = area.gradients;
  const Index taps = g.kernel_height * g.kernel_width;
  Scratch scratch(Scratch::bytes<float>(area.gradients * taps * area.sources));
  auto* sums = scratch.take<float>(area.gradients * taps * area.sources);
  direct_weight_gradient(g, ChannelsOf(source, g.batch, area.source).images(),
                         ChannelsOf(gradient, g.batch, area.gradient).images(), sums, nullptr,
                         false);
  for (Index row = 0; row < area.gradients * taps; ++row) {
    const float* from = sums + row * area.sources;
    float* to =
        weight_gradient + (area.gradient * taps + row) * geometry.source_channels + area.source;
    put(from, area.sources, accumulate, to);
  }
}

// Whether each tap of an axis, at stride 1, reads a pixel: the gradient of one that does not is
// zero, without the roundings of its neighbours.
bool every_tap_reads(Index results, Index first, Index dilation, Index length) {
  return first + results > 0 && first + (kWinogradTaps - 1) * dilation < length;
}

// How many taps of all results read inside of the source.
Index taps_inside(Index results, Index first, Index dilation, Index length) {
  Index count = 0;
  for (Index tap = 0; tap < kWinogradTaps; ++tap, first += dilation) {
    count += std::max<Index>(0, std::min(results, length - first) - std::max<Index>(0, -first));
  }
  return count;
}

bool suits_winograd(const ConvolutionGeometry& g) {
  const Index products =
      g.edge == EdgeMode::Clamp
          ? g.destination_height * g.destination_width * kWinogradTaps * kWinogradTaps
          : taps_inside(g.destination_height, g.first_y, g.dilation_y, g.source_height) *
                taps_inside(g.destination_width, g.first_x, g.dilation_x, g.source_width);
  return (g.edge == EdgeMode::Clamp ||
          (every_tap_reads(g.destination_height, g.first_y, g.dilation_y, g.source_height) &&
           every_tap_reads(g.destination_width, g.first_x, g.dilation_x, g.source_width))) &&
         g.groups == 1 && !g.depthwise && !g.transposed_weights &&
         g.kernel_height == kWinogradTaps && g.kernel_width == kWinogradTaps && g.stride_y == 1 &&
         g.stride_x == 1 &&
         winograd_pays(g.batch, g.destination_height, g.destination_width, g.dilation_y,
                       g.dilation_x, g.source_channels, g.destination_channels, g.batch * products);
}

}  // namespace

namespace convolution {

void finish_channel_sums(const float* partials, Index parts, Index channels, float* sums,
                         bool accumulate) {
  for (Index c = 0; c < channels; ++c) {
    float total = 0.0F;
    for (Index part = 0; part < parts; ++part) {
      total += partials[part * channels + c];
    }
    sums[c] = accumulate ? sums[c] + total : total;
  }
}

}  // namespace convolution

void convolution_weight_gradient(const ConvolutionGeometry& g, const ConvolutionImages& source,
                                 const ConvolutionImages& gradient, float* weight_gradient,
                                 float* bias_gradient, bool accumulate) {
  if (!suits_winograd(g)) {
    direct_weight_gradient(g, source, gradient, weight_gradient, bias_gradient, accumulate);
    return;
  }
  const std::vector<WeightArea> left = winograd_weight_gradient(
      {g.batch, g.source_height, g.source_width, g.source_channels, g.destination_height,
       g.destination_width, g.destination_channels, g.first_y, g.first_x, g.dilation_y,
       g.dilation_x, g.edge, &source, &gradient, weight_gradient, bias_gradient, accumulate});
  for (const WeightArea& area : left) {
    direct_weight_gradient(g, source, gradient, area, weight_gradient, accumulate);
  }
}

void convolution_channel_sums(Index batch, Index height, Index width, Index channels,
                              const ConvolutionImages& images, float* sums, bool accumulate) {
  const WeightGradientLoops& loops = weight_gradient_loops();
  const Index rows = batch * height;
  const Index parts = std::clamp<Index>(rows * width * channels / 65536, 1,
                                        std::min(kPieces, std::max<Index>(rows, 1)));
  const RowWindow all{&images, height,   width,
                      0,       channels, EdgeMode::Zero,
                      0,       width,    images.format == ChannelFormat::Float32,
                      0};
  Scratch scratch(Scratch::bytes<float>(parts * channels));
  auto* partials = scratch.take<float>(parts * channels);
  std::fill_n(partials, parts * channels, 0.0F);
  parallel_for(parts, [&](Index part) {
    Scratch own(RowCache::bytes(all, 1, 1));
    RowCache cache(all, 1, 1, own);
    for (Index row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
      cache.clear();
      cache.start(row / height, row % height, row % height);
      loops.channel_sums(cache.row(row % height), width, all.pixel_stride(), channels,
                         partials + part * channels);
    }
  });
  finish_channel_sums(partials, parts, channels, sums, accumulate);
}

}  // namespace mpsgrad::cpu
