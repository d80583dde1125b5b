// Forward pass and data gradient: both as correlations, by pieces.
#include "kernels/convolution/convolution_engine.hpp"

#include <cstdint>

#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"
#include "kernels/convolution/correlation.hpp"
#include "kernels/convolution/correlation_plan.hpp"

namespace mpsgrad::cpu {
namespace {

using namespace convolution;

constexpr Index kEverything = std::numeric_limits<Index>::max() / 4;

struct Prepared {
  const Correlation& c;
  const float* weights;
  const float* bias;  // padded
  void (*loop)(const CorrelationTask&);
};

// The part of each phase that a piece does.
template <class Visit>
void each_columns(const Correlation& c, const Piece& piece, const Visit& visit) {
  for (const Phase& x : c.x.phases) {
    each_columns(x, std::min(piece.column, x.count),
                 std::min(piece.column + piece.columns, x.count), c.skips, c.operand_width,
                 [&](const Columns& columns) { visit(x, columns); });
  }
}

// How many channels depthwise loops that go row by row take at a time. A direct row comes from
// memory, best as it lies there; a copied one is near, and its neighbours are needed again. As are
// those of many rows of taps, and all their weights, where processors foresee rows.
Index channels_at_once(const RowWindow& window, Index channels, Index taps_y) {
  constexpr Index kManyTaps = 5;
  constexpr Index kChannels = 64;
  if (!window.direct) {
    return std::max<Index>(kFirstLevelBytes / std::max<Index>(4 * taps_y * window.span, 1), 1);
  }
  return taps_y >= kManyTaps && foresees_rows() ? std::min(channels, kChannels) : channels;
}

// The first operand column that some columns of a phase read.
Index first_read(const Phase& x, const Columns& columns) {
  return x.operand_first + columns.first * x.operand_step + columns.first_tap * x.tap_step;
}

// What a piece reads of each operand row.
RowWindow window_of(const Correlation& c, const Piece& piece, Index first_channel, Index channels) {
  RowWindow window{
      &c.operand, c.operand_height, c.operand_width, first_channel, channels, c.edge, 0, 0, false,
      0};
  Index first_x = std::numeric_limits<Index>::max();
  Index last_x = std::numeric_limits<Index>::min();
  each_columns(c, piece, [&](const Phase& x, const Columns& columns) {
    if (columns.taps > 0) {
      const Index first = first_read(x, columns);
      first_x = std::min(first_x, first);
      last_x = std::max(
          last_x, first + (columns.count - 1) * x.operand_step + (columns.taps - 1) * x.tap_step);
    }
  });
  if (first_x <= last_x) {
    window.first_x = first_x;
    window.span = last_x - first_x + 1;
  }
  window.gap = c.depthwise ? gap_between_pixels(window.channels) : 0;
  window.direct = (window.can_be_direct() && !c.copies) || c.direct();
  return window;
}

// The operand rows of every result row of a piece, one for each row of taps.
void find_rows(RowCache& cache, const Phase& y, const Piece& piece, Index first_y, Index last_y,
               const float** found) {
  for (Index n = 0; n < piece.samples; ++n) {
    if (y.taps > 0) {
      cache.start(piece.sample + n, first_y, last_y);
    }
    for (Index r = 0; r < piece.rows; ++r) {
      for (Index t = 0; t < y.taps; ++t) {
        *found++ = cache.row(first_y + r * y.operand_step + t * y.tap_step);
      }
    }
  }
}

// What all columns of a piece have in common.
CorrelationTask task_of(const Prepared& prepared, const Piece& piece, const RowWindow& window) {
  const Correlation& c = prepared.c;
  const Phase& y = c.y.phases[piece.phase];
  CorrelationTask task{};
  task.rows = piece.samples * piece.rows;
  task.taps_y = y.taps;
  task.groups = c.groups;
  task.group_operands = c.group_operands;
  task.group_results = c.depthwise ? window.channels : c.group_results;
  task.mixed = c.mixed;
  task.first_channel = window.channel;
  task.weight_channels = c.group_results;
  task.weights = prepared.weights + window.channel;
  task.first_tap_y = y.first_tap;
  task.kernel_taps = static_cast<Index>(c.y.taps.size() * c.x.taps.size());
  task.kernel_width = static_cast<Index>(c.x.taps.size());
  task.bias = prepared.bias + window.channel;
  task.first_block = piece.block;
  task.last_block = piece.block + piece.blocks;
  task.format = c.result.format;
  task.hook = c.hook;
  task.channels_at_once = channels_at_once(window, window.channels, y.taps);
  task.fresh_rows = window.direct ? std::min(y.operand_step, y.taps) : 0;
  task.next_row = task.fresh_rows * y.tap_step * c.operand.row_stride;
  task.halves = c.halves();
  task.streamed = streams(c);
  return task;
}

// Where the results of some columns go, row by row.
void find_results(const Correlation& c, const Piece& piece, const Phase& x, const Columns& columns,
                  Index first_channel, ConvolutionRow* result) {
  const Phase& y = c.y.phases[piece.phase];
  const Index at_x = x.first + columns.first * x.step;
  for (Index n = 0; n < piece.samples; ++n) {
    for (Index r = 0; r < piece.rows; ++r) {
      const Index at_y = y.first + (piece.row + r) * y.step;
      const Index element =
          at_y * c.result.row_stride + at_x * c.result.pixel_stride + first_channel;
      *result++ = {c.result.samples[piece.sample + n] + element * item_size(c.result.format),
                   piece.sample + n, at_y};
    }
  }
}

// Has a task do some columns, which begin `start` operand columns into the window.
void set_columns(CorrelationTask& task, const Correlation& c, const Phase& x,
                 const Columns& columns, const RowWindow& window, Index start) {
  task.first_x = x.first + columns.first * x.step;
  task.width = columns.count;
  const Index position = window.direct ? window.first_x + start : 0;
  task.first_operand = -position * window.pixel_stride();
  task.last_operand =
      window.direct ? (c.operand_width - position) * window.pixel_stride() : kEverything;
  task.taps_x = columns.taps;
  task.first_tap_x = x.first_tap + columns.first_tap;
  task.operand_step = x.operand_step * window.pixel_stride();
  task.operand_tap_step = x.tap_step * window.pixel_stride();
  task.result_step = x.step * c.result.pixel_stride;
  task.x_step = x.step;
}

void run_piece(const Prepared& prepared, const Piece& piece) {
  const Correlation& c = prepared.c;
  const Phase& y = c.y.phases[piece.phase];
  const Index first_channel = c.depthwise ? piece.block * kChannelBlock : 0;
  const Index channels =
      c.depthwise ? std::min(piece.blocks * kChannelBlock, c.group_results - first_channel)
                  : c.operand_channels();
  const RowWindow window = window_of(c, piece, first_channel, channels);
  const Index first_y = y.operand_first + piece.row * y.operand_step;
  const Index last_y = first_y + (piece.rows - 1) * y.operand_step + (y.taps - 1) * y.tap_step;
  const Index slots = RowCache::slots(window, std::max<Index>(1, last_y - first_y + 1));
  const Index cached = piece.samples * std::min(rows_needed(y, piece.rows), window.height);
  CorrelationTask task = task_of(prepared, piece, window);
  const Index rows_of_taps = task.rows * y.taps;
  Scratch scratch(
      RowCache::bytes(window, cached, slots) + 2 * Scratch::bytes<const float*>(rows_of_taps) +
      Scratch::bytes<ConvolutionRow>(task.rows) + Scratch::bytes<std::byte>(24 * task.kernel_taps));
  RowCache cache(window, cached, slots, scratch);
  auto** found = scratch.take<const float*>(rows_of_taps);
  auto** operand = scratch.take<const float*>(rows_of_taps);
  auto* result = scratch.take<ConvolutionRow>(task.rows);
  task.operand = operand;
  task.result = result;
  task.runs = scratch.take<std::byte>(24 * task.kernel_taps);
  find_rows(cache, y, piece, first_y, last_y, found);
  each_columns(c, piece, [&](const Phase& x, const Columns& columns) {
    const Index start = columns.taps == 0 ? 0 : first_read(x, columns) - window.first_x;
    for (Index i = 0; i < rows_of_taps; ++i) {
      operand[i] =
          found[i] == nullptr ? nullptr : window.moved(found[i], start * window.pixel_stride());
    }
    find_results(c, piece, x, columns, first_channel, result);
    set_columns(task, c, x, columns, window, start);
    prepared.loop(task);
  });
}

ConvolutionWeights::Form form_of(const Correlation& c, bool of_results, bool transposed,
                                 Index lanes) {
  ConvolutionWeights::Form form;
  form.of_results = of_results;
  form.depthwise = c.depthwise;
  form.transposed = transposed;
  form.mixed = c.mixed;
  form.lanes = c.depthwise ? 1 : lanes;
  form.groups = c.groups;
  form.group_operands = c.group_operands;
  form.group_results = c.group_results;
  form.taps_y = c.y.taps;
  form.taps_x = c.x.taps;
  return form;
}

// A bias for every lane of every vector of results; zeros without one.
class PaddedBias {
 public:
  PaddedBias(const Correlation& c, const float* bias, Index lanes)
      : per_group_(ceil_div(c.group_results, lanes) * lanes),
        scratch_(Scratch::bytes<float>(c.groups * per_group_)),
        values_(scratch_.take<float>(c.groups * per_group_)) {
    std::fill_n(values_, c.groups * per_group_, 0.0F);
    for (Index g = 0; g < c.groups && bias != nullptr; ++g) {
      std::copy_n(bias + g * c.group_results, c.group_results, values_ + g * per_group_);
    }
  }
  const float* values() const { return values_; }

 private:
  Index per_group_;
  Scratch scratch_;
  float* values_;
};

// Whether columns with the same taps are better done by themselves, so that no tap beside an image
// is multiplied with zeros. Few columns at a time fill no tile.
bool skipping_pays(const Correlation& c) {
  constexpr Index kLeast = 4;  // results in the time of a tile
  if (c.depthwise || c.edge != EdgeMode::Zero) {
    return false;
  }
  Index all = 0;
  Index inside = 0;
  for (const Phase& phase : c.x.phases) {
    all += phase.taps * std::max(phase.count, kLeast);
    each_columns(phase, 0, phase.count, true, c.operand_width, [&](const Columns& columns) {
      inside += columns.taps * std::max(columns.count, kLeast);
    });
  }
  return inside + all / 16 < all;
}

// Windows of 3x3 taps at stride 1, all results in one phase.
bool suits_winograd(const Correlation& c) {
  const auto suits = [](const Axis& axis) {
    const Phase& phase = axis.phases[0];
    return axis.phases.size() == 1 && axis.taps.size() == kWinogradTaps &&
           phase.taps == kWinogradTaps && phase.step == 1 && phase.operand_step == 1;
  };
  if (c.groups != 1 || c.depthwise || !suits(c.y) || !suits(c.x)) {
    return false;
  }
  // Of each two channels, as rows are done without fewer multiplications.
  const TapCount y = count_taps(c.y, c.operand_height);
  const TapCount x = count_taps(c.x, c.operand_width);
  const Index products =
      (c.edge == EdgeMode::Zero ? y.inside() : y.all) * (skipping_pays(c) ? x.inside() : x.all);
  return winograd_pays(c.batch, c.y.phases[0].count, c.x.phases[0].count, c.y.phases[0].tap_step,
                       c.x.phases[0].tap_step, c.group_operands, c.group_results,
                       c.batch * products);
}

void run_winograd(const Correlation& c, const ConvolutionWeights& weights, bool of_results,
                  bool transposed, const float* bias) {
  const CorrelationLoops& loops = correlation_loops();
  const PaddedBias padded(c, bias, loops.lanes);
  ConvolutionWeights::Form form = form_of(c, of_results, transposed, loops.lanes);
  form.winograd = true;
  const Phase& y = c.y.phases[0];
  const Phase& x = c.x.phases[0];
  const std::vector<ResultArea> left = winograd_correlate(
      {c.batch, c.operand_height, c.operand_width, c.group_operands, y.count, x.count,
       c.group_results, y.operand_first, x.operand_first, y.tap_step, x.tap_step, c.edge,
       &c.operand, &c.result, weights.packed(form), padded.values(), c.hook});
  if (left.empty()) {
    return;
  }
  form.winograd = false;
  const Prepared prepared{c, weights.packed(form), padded.values(), loops.correlate};
  parallel_for(static_cast<Index>(left.size()), [&](Index i) {
    const ResultArea& area = left[static_cast<std::size_t>(i)];
    run_piece(prepared, {area.sample, 1, 0, area.row, area.rows, area.column, area.columns,
                         area.block, area.blocks});
  });
}

void run_rows(const Correlation& c, const ConvolutionWeights& weights, bool of_results,
              bool transposed, const float* bias) {
  const CorrelationLoops& loops = correlation_loops();
  const Index lanes = choose_lanes(c, loops.lanes);
  const PaddedBias padded(c, bias, lanes);
  const Prepared prepared{c, weights.packed(form_of(c, of_results, transposed, lanes)),
                          padded.values(),
                          c.depthwise                      ? depthwise_loops().correlate
                          : lanes == 1 && loops.lanes != 1 ? loops.correlate_dot
                                                           : loops.correlate};
  const std::vector<Piece> pieces = cut_into_pieces(c, lanes);
  parallel_for(static_cast<Index>(pieces.size()),
               [&](Index i) { run_piece(prepared, pieces[static_cast<std::size_t>(i)]); });
}

// Whether more pixels of a column than a set of the first-level cache has ways begin in one set.
bool columns_share_sets(const Correlation& c) {
  constexpr Index kSetsBytes = 4096;  // from a set to itself
  constexpr Index kWays = 8;
  return c.operand_height > kWays && c.operand.row_stride * 4 % kSetsBytes == 0;
}

bool columns_are_copied(const Correlation& c) {
  return c.operand.format != ChannelFormat::Float32 || columns_share_sets(c);
}

// Rows of taps that lie outside an image are left out, single taps of a row only where many columns
// have the same ones. So where windows are one row high, the columns of images had better be the
// rows, if that spares more products than it costs: taps of one pixel after another no longer make
// one run, and operands may have to be copied, from all over the image.
bool columns_pay(const Correlation& c) {
  constexpr Index kRunsOfChannel = 2;    // begun in the time of an operand channel's products
  constexpr Index kProductsOfCopy = 24;  // done in the time of an operand's copy
  constexpr Index kTileResults = 6;
  const Index height = c.y.most_results();
  const Index width = c.x.most_results();
  // Tiles of neighbouring results have to be as full as they were.
  if (c.depthwise || c.edge != EdgeMode::Zero || c.y.taps.size() != 1 || c.x.taps.size() == 1 ||
      ceil_div(height, kTileResults) * width > ceil_div(width, kTileResults) * height) {
    return false;
  }
  // Dot products add up along a run, and would add up in another order.
  const CorrelationLoops& loops = correlation_loops();
  if (choose_lanes(c, loops.lanes) != loops.lanes) {
    return false;
  }
  const TapCount y = count_taps(c.y, c.operand_height);
  const TapCount x = count_taps(c.x, c.operand_width);
  if (y.outside > 0) {
    return false;
  }
  // All in products of one operand channel and one result channel, for a row of results.
  const Index runs = x.all / (kRunsOfChannel * c.group_operands);
  const Index copies = columns_are_copied(c)
                           ? kProductsOfCopy * c.operand_height * c.operand_width /
                                 std::max<Index>(1, y.all * c.group_results)
                           : 0;
  return x.outside > runs + copies;
}

// For a hook of results whose axes have been exchanged.
void apply_by_column(void* context, const ConvolutionTile& tile) {
  const auto& inner = *static_cast<const ConvolutionHook*>(context);
  for (Index i = 0; i < tile.pixels; ++i) {
    inner.apply(inner.context, {tile.sample, tile.x + i * tile.x_step, tile.y, 1, 1, tile.channel,
                                tile.channels, tile.values + i * tile.value_step, tile.value_step});
  }
}

// The same results by columns in place of rows. Packed weights of one row of taps are those of one
// column. The hook is called through `inner`.
Correlation by_columns(const Correlation& c, ConvolutionHook* inner) {
  Correlation result = c;
  result.copies = columns_are_copied(c);
  std::swap(result.y, result.x);
  std::swap(result.operand_height, result.operand_width);
  std::swap(result.operand.row_stride, result.operand.pixel_stride);
  std::swap(result.result.row_stride, result.result.pixel_stride);
  if (inner->apply != nullptr) {
    result.hook.apply = apply_by_column;
    result.hook.context = inner;
  }
  return result;
}

void run(const Correlation& c, const ConvolutionWeights& weights, bool of_results, bool transposed,
         const float* bias) {
  if (c.batch == 0 || c.y.most_results() == 0 || c.x.most_results() == 0) {
    return;
  }
  if (suits_winograd(c)) {
    run_winograd(c, weights, of_results, transposed, bias);
  } else if (columns_pay(c)) {
    ConvolutionHook inner = c.hook;
    run_rows(by_columns(c, &inner), weights, of_results, transposed, bias);
  } else {
    Correlation rows = c;
    rows.skips = skipping_pays(c);
    run_rows(rows, weights, of_results, transposed, bias);
  }
}

}  // namespace

namespace convolution {

static bool is_one_row(const ConvolutionImages& images, Index height, Index width) {
  return height == 1 || images.row_stride == width * images.pixel_stride;
}

bool merge_positions(ConvolutionGeometry& g, ConvolutionImages& source,
                     ConvolutionImages& destination) {
  const bool plain = g.groups == 1 && !g.depthwise && g.stride_x == 1 && g.stride_y == 1 &&
                     g.first_x == 0 && g.first_y == 0;
  const bool one_tap = g.kernel_height == 1 && g.kernel_width == 1;
  // A window as large as the image: samples become the pixels of one row, and a whole image becomes
  // one pixel.
  if (plain && g.destination_height == 1 && g.destination_width == 1 &&
      g.kernel_height == g.source_height && g.kernel_width == g.source_width &&
      (g.dilation_y == 1 || g.kernel_height == 1) && (g.dilation_x == 1 || g.kernel_width == 1) &&
      (!g.transposed_weights || one_tap) && (one_tap || source.pixel_stride == g.source_channels) &&
      is_one_row(source, g.source_height, g.source_width)) {
    Index source_step = 0;
    Index destination_step = 0;
    if (even_sample_stride(source, g.batch, &source_step) &&
        even_sample_stride(destination, g.batch, &destination_step)) {
      g.source_channels *= g.source_height * g.source_width;
      source.pixel_stride = source_step;
      destination.pixel_stride = destination_step;
      source.row_stride = destination.row_stride = 0;
      g.source_height = g.source_width = g.kernel_height = g.kernel_width = 1;
      g.source_width = g.destination_width = g.batch;
      g.batch = 1;
      return true;
    }
  }
  // Small images and one tap: all pixels of an image become one row.
  constexpr Index kNarrow = 8;
  if (plain && one_tap && g.source_width < kNarrow && g.source_height > 1 &&
      g.source_width == g.destination_width && g.source_height == g.destination_height &&
      is_one_row(source, g.source_height, g.source_width) &&
      is_one_row(destination, g.source_height, g.source_width)) {
    g.source_width *= g.source_height;
    g.destination_width = g.source_width;
    g.source_height = g.destination_height = 1;
    return true;
  }
  return false;
}

}  // namespace convolution

namespace {

// Groups of a few channels, as many results as operands, are depthwise with several operands.
void set_channels(Correlation& c, const ConvolutionGeometry& g, Index operands, Index results) {
  c.groups = g.groups;
  c.group_operands = operands / g.groups;
  c.group_results = results / g.groups;
  c.depthwise = g.depthwise;
  c.mixed = 1;
  if (g.groups > 1 &&
      shares_vectors(c.group_operands, c.group_results, depthwise_loops().most_mixed)) {
    c.mixed = c.group_results;
    c.groups = 1;
    c.group_operands = c.group_results = results;
    c.depthwise = true;
  }
}

// For a hook whose samples have become the pixels of one row.
void apply_by_sample(void* context, const ConvolutionTile& tile) {
  const auto& inner = *static_cast<const ConvolutionHook*>(context);
  for (Index i = 0; i < tile.pixels; ++i) {
    inner.apply(inner.context, {tile.x + i * tile.x_step, 0, 0, 1, 1, tile.channel, tile.channels,
                                tile.values + i * tile.value_step, tile.value_step});
  }
}

}  // namespace

void convolve(const ConvolutionGeometry& geometry, const ConvolutionImages& source,
              const ConvolutionWeights& weights, const float* bias,
              const ConvolutionImages& destination, const ConvolutionHook& hook) {
  ConvolutionGeometry g = geometry;
  Correlation c{};
  c.operand = source;
  c.result = destination;
  c.hook = hook;
  ConvolutionHook inner = hook;
  if (hook.apply == nullptr) {
    merge_positions(g, c.operand, c.result);
  } else if (g.destination_height == 1 && g.destination_width == 1 &&
             merge_positions(g, c.operand, c.result)) {
    c.hook.apply = apply_by_sample;
    c.hook.context = &inner;
  }
  c.batch = g.batch;
  c.operand_height = g.source_height;
  c.operand_width = g.source_width;
  set_channels(c, g, g.source_channels, g.destination_channels);
  c.edge = g.edge;
  c.y = forward_axis(g.destination_height, g.stride_y, g.first_y, g.kernel_height, g.dilation_y);
  c.x = forward_axis(g.destination_width, g.stride_x, g.first_x, g.kernel_width, g.dilation_x);
  run(c, weights, false, g.transposed_weights, bias);
}

void convolution_data_gradient(const ConvolutionGeometry& geometry,
                               const ConvolutionImages& gradient, const ConvolutionWeights& weights,
                               const float* bias, const ConvolutionImages& source_gradient,
                               const ConvolutionHook& hook) {
  ConvolutionGeometry g = geometry;
  Correlation c{};
  c.operand = gradient;
  c.result = source_gradient;
  if (hook.apply == nullptr && bias == nullptr) {
    merge_positions(g, c.result, c.operand);
  }
  c.batch = g.batch;
  c.operand_height = g.destination_height;
  c.operand_width = g.destination_width;
  set_channels(c, g, g.destination_channels, g.source_channels);
  c.edge = EdgeMode::Zero;
  c.y = data_axis(g.source_height, g.stride_y, g.first_y, g.kernel_height, g.dilation_y);
  c.x = data_axis(g.source_width, g.stride_x, g.first_x, g.kernel_width, g.dilation_x);
  c.hook = hook;
  run(c, weights, true, g.transposed_weights, bias);
}

}  // namespace mpsgrad::cpu
