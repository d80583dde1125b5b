// Forward pass and data gradient. Both correlate rows of an operand with packed weights; for the
// data gradient the results fall into phases, one for each remainder of the stride, each of which
// is a dense correlation with some of the taps.
#include "kernels/convolution/convolution_engine.hpp"

#include <array>
#include <cstdint>
#include <numeric>

#include "cpu/threads.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"

namespace mpsgrad::cpu {
namespace {

using namespace convolution;

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

Axis forward_axis(Index results, Index stride, Index first, Index kernel, Index dilation) {
  Axis axis;
  axis.taps.resize(static_cast<std::size_t>(kernel));
  std::iota(axis.taps.begin(), axis.taps.end(), 0);
  axis.phases.push_back({0, 1, results, first, stride, 0, kernel, dilation});
  return axis;
}

// Result y takes E[j] * W[q] wherever stride * j + first + dilation * q == y. Within a phase j
// grows as q falls.
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

// Results of some rows (of one phase) and columns (of every phase) of some samples, in some blocks
// of channels.
struct Piece {
  Index sample, samples;
  std::size_t phase;
  Index row, rows;
  Index column, columns;
  Index block, blocks;
};

// Where depthwise loops pass down the rows of a few pixels in one vector of channels after the
// other, each piece reads operand rows around its own, while a part of the channels costs little:
// so pieces have at least so many rows, of fewer channels if need be, a multiple of a block.
constexpr Index kChannelBlock = 64;
constexpr Index kRowsAtOnce = 7;

// How many operand rows `rows` results of a phase need.
Index rows_needed(const Phase& phase, Index rows) {
  const Index reach = (rows - 1) * phase.operand_step + (phase.taps - 1) * phase.tap_step + 1;
  return std::max<Index>(0, std::min(rows * phase.taps, reach));
}

// Lanes of results unless so few of them are used that dot products are cheaper.
Index choose_lanes(const Correlation& c, const CorrelationLoops& loops) {
  const Index lanes = loops.lanes;
  if (c.depthwise) {
    return lanes;
  }
  const auto taps_x = static_cast<Index>(c.x.taps.size());
  const auto taps_y = static_cast<Index>(c.y.taps.size());
  const Index across = c.group_operands * taps_x * taps_y * ceil_div(c.group_results, lanes);
  const bool merged = c.groups == 1 && c.x.phases.size() == 1 && c.x.phases[0].tap_step == 1;
  const Index run_vectors = merged ? ceil_div(taps_x * c.group_operands, lanes)
                                   : taps_x * ceil_div(c.group_operands, lanes);
  const auto phases = static_cast<Index>(c.y.phases.size() * c.x.phases.size());
  const Index dot = c.group_results * (taps_y * run_vectors + phases * lanes / 2);
  return dot + dot / 4 < across ? 1 : lanes;
}

// What is read and written, in float32.
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

// Whether results go past the caches. Where processors foresee rows, loops that walk down those of
// an image would then have to go row by row, which costs more where windows overlap much.
bool streams(const Correlation& c) {
  const bool overlaps = c.x.phases[0].operand_step == c.x.phases[0].tap_step;
  const bool late = c.depthwise && foresees_rows() && overlaps && walks_down(c);
  return c.result.streamed && c.hook.apply == nullptr &&
         (!late || bytes_of(c) >= late_streamed_bytes());
}

// Over all results along an axis: their taps, and how many of them lie outside the operand.
struct TapCount {
  Index all = 0, outside = 0;
  Index inside() const { return all - outside; }
};

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

// Larger weights would leave the second-level cache between one piece of the images and the next:
// so a part of them that stays there has its turn with all pieces before the next part. As pieces
// are read again for each, parts have at least so many blocks.
constexpr Index kLargeWeights = 1024 * 1024;
constexpr Index kNearWeights = 768 * 1024;
constexpr Index kSplitBlocks = 8;

// Whether pieces read operands where they lie, so that to read them again costs little.
bool reads_in_place(const Correlation& c) {
  return !c.depthwise && !c.copies && c.operand.format == ChannelFormat::Float32 &&
         count_taps(c.x, c.operand_width).outside == 0;
}

class Plan {
 public:
  Plan(const Correlation& c, const CorrelationLoops& loops)
      : c_(c), lanes_(choose_lanes(c, loops)) {
    const Index widest = c.x.most_results();
    const auto kernel = static_cast<Index>(c.y.taps.size() * c.x.taps.size());
    const auto phases = static_cast<Index>(c.y.phases.size() * c.x.phases.size());
    const Phase& largest =
        *std::max_element(c.y.phases.begin(), c.y.phases.end(), [](const Phase& a, const Phase& b) {
          return rows_needed(a, a.count) < rows_needed(b, b.count);
        });
    const bool walks = c.depthwise && walks_down(c);
    blocks_ = c.depthwise ? ceil_div(c.group_results, kChannelBlock)
                          : c.groups * ceil_div(c.group_results, lanes_);

    // A share of the activations, so that scratch is a small part of them.
    const Index budget = std::clamp(bytes_of(c) / 16, kPieceBytes / 4, kPieceBytes);

    Index pixel_bytes = c.operand_channels() * 4 * c.x.phases[0].operand_step;
    splits_ = 1;
    Index at_least = budget;  // for fewer than kRowsAtOnce
    if (walks) {
      at_least = c.direct() ? 2 * budget : budget;  // copies are scratch
      const Index block_bytes = rows_needed(largest, std::min(largest.count, kRowsAtOnce)) *
                                ceil_div(widest * pixel_bytes, blocks_);
      splits_ = ceil_div(blocks_, std::max<Index>(1, at_least / std::max<Index>(1, block_bytes)));
      pixel_bytes = ceil_div(pixel_bytes, splits_);
    }
    columns_ = widest;
    if (columns_ > 28 && largest.taps * columns_ * pixel_bytes > budget) {
      columns_ =
          std::max<Index>(28, budget / std::max<Index>(1, largest.taps * pixel_bytes) / 14 * 14);
    }
    const Index row_bytes = columns_ * pixel_bytes;
    rows_ = 1;
    while (rows_ < largest.count && rows_needed(largest, rows_ + 1) * row_bytes <=
                                        (rows_ < kRowsAtOnce ? at_least : budget)) {
      ++rows_;
    }
    const Index operands = walks ? kDepthwiseCost : c.group_operands;
    const Index flops_per_result =
        2 * operands * c.groups * c.group_results * kernel / std::max<Index>(1, phases) / splits_;
    const Index row_flops =
        std::max<Index>(1, flops_per_result * columns_ * static_cast<Index>(c.x.phases.size()));
    if (rows_ == largest.count) {
      const Index by_size = budget / std::max<Index>(1, rows_needed(largest, rows_) * row_bytes);
      const Index by_work = ceil_div(kPieceFlops, rows_ * row_flops);
      samples_ = std::clamp<Index>(std::min(by_size, std::max<Index>(by_work, 1)), 1, c.batch);
      if (rows_ * row_flops * c.batch <= kPieceFlops) {
        samples_ = c.batch;
      }
    }
    const auto of_images = [&] {
      return ceil_div(c.batch, samples_) * static_cast<Index>(c.y.phases.size()) *
             ceil_div(largest.count, rows_) * ceil_div(widest, columns_);
    };
    const auto wanted = [&](Index work) {
      return std::clamp<Index>(ceil_div(kPieces, splits_ * of_images()), 1,
                               std::max<Index>(1, work / kPieceFlops));
    };
    const auto flops = [&] { return samples_ * rows_ * row_flops; };
    samples_ = ceil_div(samples_, wanted(flops()));
    if (walks) {
      const Index before = splits_;
      splits_ = std::min(splits_ * wanted(flops()), blocks_);
      rows_ = ceil_div(rows_, wanted(flops() * before / splits_));
      rows_per_split_ = ceil_div(blocks_, splits_);
      add_pieces(widest, 0, blocks_);
      return;
    }
    const Index weights = kernel * operands * c.groups * c.group_results;
    if (largest.count * row_bytes * 2 >= weights * 4 || c.depthwise || blocks_ < 8) {
      rows_ = ceil_div(rows_, wanted(flops()));
    }
    splits_ = std::clamp<Index>(wanted(work_on_weights(flops(), weights)), 1,
                                c.depthwise ? 1 : std::max<Index>(1, blocks_ / 4));
    Index part = blocks_;  // which does all of the images before the next part
    if (weights * 4 > kLargeWeights && reads_in_place(c) && of_images() > 1) {
      splits_ =
          std::max(splits_, std::min(ceil_div(weights * 4, kNearWeights), blocks_ / kSplitBlocks));
      part = ceil_div(blocks_, splits_);
    }
    rows_per_split_ = ceil_div(blocks_, splits_);
    for (Index first = 0; first < blocks_; first += part) {
      add_pieces(widest, first, std::min(first + part, blocks_));
    }
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  Index lanes() const { return lanes_; }
  Index blocks() const { return blocks_; }

 private:
  // Of the blocks [first, last).
  void add_pieces(Index widest, Index first, Index last) {
    for (Index n = 0; n < c_.batch; n += samples_) {
      for (std::size_t phase = 0; phase < c_.y.phases.size(); ++phase) {
        const Index count = c_.y.phases[phase].count;
        for (Index row = 0; row < count; row += rows_) {
          for (Index column = 0; column < widest; column += columns_) {
            for (Index block = first; block < last; block += rows_per_split_) {
              pieces_.push_back({n, std::min(samples_, c_.batch - n), phase, row,
                                 std::min(rows_, count - row), column,
                                 std::min(columns_, widest - column), block,
                                 std::min(rows_per_split_, last - block)});
            }
          }
        }
      }
    }
  }

  const Correlation& c_;
  Index lanes_;
  Index blocks_ = 1;
  Index samples_ = 1, rows_ = 1, columns_ = 1, splits_ = 1, rows_per_split_ = 1;
  std::vector<Piece> pieces_;
};

constexpr Index kEverything = std::numeric_limits<Index>::max() / 4;

struct Prepared {
  const Correlation& c;
  const float* weights;
  const float* bias;  // padded
  void (*loop)(const CorrelationTask&);
};

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

void run_piece(const Prepared& prepared, const Piece& piece) {
  const Correlation& c = prepared.c;
  const Phase& y = c.y.phases[piece.phase];
  const Index first_channel = c.depthwise ? piece.block * kChannelBlock : 0;
  const Index channels =
      c.depthwise ? std::min(piece.blocks * kChannelBlock, c.group_results - first_channel)
                  : c.operand_channels();
  RowWindow window{
      &c.operand, c.operand_height, c.operand_width, first_channel, channels, c.edge, 0, 0, false,
      0};
  Index first_x = std::numeric_limits<Index>::max();
  Index last_x = std::numeric_limits<Index>::min();
  const auto first_read = [](const Phase& x, const Columns& columns) {
    return x.operand_first + columns.first * x.operand_step + columns.first_tap * x.tap_step;
  };
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

  const Index rows = piece.samples * piece.rows;
  const Index first_y = y.operand_first + piece.row * y.operand_step;
  const Index last_y = first_y + (piece.rows - 1) * y.operand_step + (y.taps - 1) * y.tap_step;
  const Index slots = RowCache::slots(window, std::max<Index>(1, last_y - first_y + 1));
  const Index cached = piece.samples * std::min(rows_needed(y, piece.rows), window.height);
  const auto kernel = static_cast<Index>(c.y.taps.size() * c.x.taps.size());
  Scratch scratch(RowCache::bytes(window, cached, slots) +
                  2 * Scratch::bytes<const float*>(rows * y.taps) +
                  Scratch::bytes<ConvolutionRow>(rows) + Scratch::bytes<std::byte>(24 * kernel));
  RowCache cache(window, cached, slots, scratch);
  auto** found = scratch.take<const float*>(rows * y.taps);
  auto** operand = scratch.take<const float*>(rows * y.taps);
  auto* result = scratch.take<ConvolutionRow>(rows);

  for (Index n = 0; n < piece.samples; ++n) {
    if (y.taps > 0) {
      cache.start(piece.sample + n, first_y, last_y);
    }
    for (Index r = 0; r < piece.rows; ++r) {
      for (Index t = 0; t < y.taps; ++t) {
        found[(n * piece.rows + r) * y.taps + t] =
            cache.row(first_y + r * y.operand_step + t * y.tap_step);
      }
    }
  }

  CorrelationTask task{};
  task.operand = operand;
  task.result = result;
  task.rows = rows;
  task.taps_y = y.taps;
  task.groups = c.groups;
  task.group_operands = c.group_operands;
  task.group_results = c.depthwise ? channels : c.group_results;
  task.mixed = c.mixed;
  task.first_channel = first_channel;
  task.weight_channels = c.group_results;
  task.weights = prepared.weights + first_channel;
  task.first_tap_y = y.first_tap;
  task.kernel_taps = kernel;
  task.kernel_width = static_cast<Index>(c.x.taps.size());
  task.bias = prepared.bias + first_channel;
  task.first_block = piece.block;
  task.last_block = piece.block + piece.blocks;
  task.format = c.result.format;
  task.hook = c.hook;
  task.runs = scratch.take<std::byte>(24 * kernel);
  task.channels_at_once = channels_at_once(window, channels, y.taps);
  task.fresh_rows = window.direct ? std::min(y.operand_step, y.taps) : 0;
  task.next_row = task.fresh_rows * y.tap_step * c.operand.row_stride;
  task.halves = c.halves();
  task.streamed = streams(c);
  each_columns(c, piece, [&](const Phase& x, const Columns& columns) {
    const Index start = columns.taps == 0 ? 0 : first_read(x, columns) - window.first_x;
    for (Index i = 0; i < rows * y.taps; ++i) {
      operand[i] =
          found[i] == nullptr ? nullptr : window.moved(found[i], start * window.pixel_stride());
    }
    const Index item = item_size(c.result.format);
    task.first_x = x.first + columns.first * x.step;
    for (Index n = 0; n < piece.samples; ++n) {
      for (Index r = 0; r < piece.rows; ++r) {
        const Index at_y = y.first + (piece.row + r) * y.step;
        std::byte* data =
            c.result.samples[piece.sample + n] +
            (at_y * c.result.row_stride + task.first_x * c.result.pixel_stride + first_channel) *
                item;
        result[n * piece.rows + r] = {data, piece.sample + n, at_y};
      }
    }
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
  const Plan plan(c, loops);
  const Index lanes = plan.lanes();
  const PaddedBias padded(c, bias, lanes);
  const Prepared prepared{c, weights.packed(form_of(c, of_results, transposed, lanes)),
                          padded.values(),
                          c.depthwise                      ? depthwise_loops().correlate
                          : lanes == 1 && loops.lanes != 1 ? loops.correlate_dot
                                                           : loops.correlate};
  const std::vector<Piece>& pieces = plan.pieces();
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
  if (choose_lanes(c, loops) != loops.lanes) {
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

const float* ConvolutionWeights::find(const Form& form) const {
  for (const Packed& packed : packed_) {
    if (packed.form == form) {
      return reinterpret_cast<const float*>(packed.block->data());
    }
  }
  return nullptr;
}

const float* ConvolutionWeights::packed(const Form& form) const {
  {
    const std::lock_guard lock(mutex_);
    if (const float* found = find(form)) {
      return found;
    }
  }
  // Without the mutex, which a fork() meanwhile would leave locked in the child for ever. Of two
  // threads that pack the same form one has done so in vain.
  const auto height = static_cast<Index>(form.taps_y.size());
  const auto width = static_cast<Index>(form.taps_x.size());
  const Index taps = height * width;
  const Index results = form.group_results;
  const Index operands = form.group_operands;
  const Index lanes = form.lanes;
  const Index blocks_per_group = ceil_div(results, lanes);
  const Index blocks = form.groups * blocks_per_group;
  const Index block_floats = taps * operands * lanes;
  const Index floats = form.depthwise  ? taps * form.mixed * results
                       : form.winograd ? kWinogradParts * blocks * operands * lanes
                                       : blocks * block_floats;
  auto block = MemoryPool::instance().acquire(static_cast<std::size_t>(std::max<Index>(floats, 1)) *
                                              sizeof(float));
  auto* out = reinterpret_cast<float*>(block->data());
  // Position of packed tap (y, x) in the values.
  const auto tap_of = [&](Index y, Index x) {
    const Index tap =
        form.taps_y[static_cast<std::size_t>(y)] * width + form.taps_x[static_cast<std::size_t>(x)];
    return form.transposed ? taps - 1 - tap : tap;
  };
  // The values' outer axis counts the results of a forward pass or, when transposed, of a data
  // gradient.
  const bool results_outside = form.of_results == form.transposed;
  if (form.depthwise) {
    const Index mixed = form.mixed;
    float* to = out;
    for (Index tap = 0; tap < taps; ++tap) {
      const Index at = tap_of(tap / width, tap % width);
      for (Index k = 0; k < mixed; ++k) {
        for (Index c = 0; c < results; ++c, ++to) {
          const Index first = results_outside ? c % mixed : k;
          const Index second = results_outside ? k : c % mixed;
          *to = values_[((c / mixed * mixed + first) * taps + at) * mixed + second];
        }
      }
    }
  } else {
    const Index inner = results_outside ? operands : results;
    const Index result_step = results_outside ? taps * operands : 1;
    const Index operand_step = results_outside ? 1 : taps * results;
    const auto pack = [&](Index b, float* to) {
      const Index first = b % blocks_per_group * lanes;
      const Index here = std::min(lanes, results - first);
      const float* from =
          values_ + b / blocks_per_group * (results * operands * taps) + first * result_step;
      for (Index tap = 0; tap < taps; ++tap, to += operands * lanes) {
        const float* weights = from + tap_of(tap / width, tap % width) * inner;
        if (here < lanes) {
          std::fill_n(to, operands * lanes, 0.0F);
        }
        if (results_outside) {
          for (Index l = 0; l < here; ++l) {
            for (Index k = 0; k < operands; ++k) {
              to[k * lanes + l] = weights[l * result_step + k];
            }
          }
        } else {
          for (Index k = 0; k < operands; ++k) {
            std::copy_n(weights + k * operand_step, here, to + k * lanes);
          }
        }
      }
    };
    parallel_for(blocks, [&](Index b) {
      if (!form.winograd) {
        pack(b, out + b * block_floats);
        return;
      }
      Scratch scratch(Scratch::bytes<float>(block_floats));
      auto* weights = scratch.take<float>(block_floats);
      pack(b, weights);
      const Index count = operands * lanes;
      winograd_loops().weights(weights, count, out + b * count, blocks * count);
    });
  }
  const std::lock_guard lock(mutex_);
  if (const float* found = find(form)) {
    return found;
  }
  packed_.push_back({form, std::move(block)});
  return out;
}

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
