// The weight gradient of convolution: products of the incoming gradient and the source, summed over
// positions. A tile of weights stays in registers for a whole band of rows.
#include <type_traits>

#include "kernels/convolution/channel_sums_simd.hpp"
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/tap_copies_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// Two rows whose pixels are multiplied with each other.
struct Pair {
  const float* gradient;
  const float* source;
};
static_assert(sizeof(Pair) == 16);

// Narrower vectors take longer for the products than memory does for what they read: 0.94 to 1.08
// with requests.
constexpr bool kAsksAhead = kLanes >= 16;
enum class Asks { kNothing, kLines, kPixels };

// Where a processor does such vectors in halves, a tile takes so long that it need not wait for
// values that lie far apart: they are read where they are. With AVX2, rows alone: 1.05 to 1.16
// where pixels are less than 4 KB apart, 0.9 to 0.96 else.
constexpr bool kReadsInPlace = kLanes >= 16;

// Pixels that tiles of by_tap multiply at a time: so few where they ask that what is asked for
// still fits into a cache beside them.
constexpr Index kChunkPixels = kAsksAhead ? 256 : kPanelPixels;

// What becomes of the sums of a tile: they are added to what is there, or written, past the caches
// if every vector is a line of them.
enum class Puts { kAdded, kStored, kStreamed };
constexpr bool kStreamsTiles = kStreams && sizeof(Vec) == kLine;

struct TileArguments {
  const Pair* pairs;
  Index pair_count;
  Index gradient_offset, source_offset;  // to the first pixel and channel of the tile
  Index gradient_step, source_step;
  Index pixels;
  float* out;
  Index out_step;  // from one row of the tile to the next
  Puts puts = Puts::kAdded;
  Mask last;  // lanes of the last vector
  // Of tiles that ask: the first of as many lines as there are pixels, or `line` floats after each
  // of so many places.
  const float* ahead;
  const float* const* pixels_ahead;
  Index line;
};

// out[r][v] += sum over pixels of gradient[r] * source[v], or as `puts` has it. Tiles that ask
// request a line for each pixel.
template <int kRows, int kVecs, bool kWhole, Asks kAsks>
void source_tile(const TileArguments& t) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = Vec{};
    }
  }
  // What the sums are added to lies in short pieces, which no processor foresees.
  if (t.puts != Puts::kStreamed) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        __builtin_prefetch(t.out + r * t.out_step + v * kLanes, 1);
      }
    }
  }
  const Index gradient_step = t.gradient_step;
  const Index source_step = t.source_step;
  const Mask last = t.last;
  const float* ahead = t.ahead;
  const float* const* pixels_ahead = t.pixels_ahead;
  const Index line = t.line;
  for (Index i = 0; i < t.pair_count; ++i) {
    const float* gradient = t.pairs[i].gradient + t.gradient_offset;
    const float* source = t.pairs[i].source + t.source_offset;
#pragma GCC unroll 1
    for (Index pixel = 0; pixel < t.pixels; ++pixel) {
      if constexpr (kAsks == Asks::kLines) {
        __builtin_prefetch(ahead);
        ahead += kLineFloats;
      } else if constexpr (kAsks == Asks::kPixels) {
        request_later(*pixels_ahead++, line);
      }
      Vec x[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v + 1 < kVecs; ++v) {
        x[v] = load(source + v * kLanes);
      }
      if constexpr (kWhole) {
        x[kVecs - 1] = load(source + (kVecs - 1) * kLanes);
      } else {
        x[kVecs - 1] = load(source + (kVecs - 1) * kLanes, last);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        add_products(sums[r], x, gradient + r);
      }
      gradient += gradient_step;
      source += source_step;
    }
  }
  const auto put_all = [&](const auto& put) MPSGRAD_MELT {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        put(t.out + r * t.out_step + v * kLanes, sums[r][v], kWhole || v + 1 < kVecs);
      }
    }
  };
  if (t.puts == Puts::kAdded) {
    put_all([&](float* to, Vec v, bool whole) MPSGRAD_MELT {
      whole ? store(to, load(to) + v) : store(to, load(to, last) + v, last);
    });
  } else if (kStreamsTiles && kWhole && t.puts == Puts::kStreamed) {
    put_all([](float* to, Vec v, bool) MPSGRAD_MELT { stream(to, v); });
  } else {
    put_all([&](float* to, Vec v, bool whole)
                MPSGRAD_MELT { whole ? store(to, v) : store(to, v, last); });
  }
}

// The same, always adding, with gradient channels in the lanes; the rows of the tile are source
// values (`sources`, one pointer for each row of the tile and row of the band) of any taps and
// channels.
template <int kRows, int kVecs, bool kWhole>
void gradient_tile(const TileArguments& t, const float* const* sources) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = Vec{};
    }
  }
  const Index gradient_step = t.gradient_step;
  const Index source_step = t.source_step;
  const Mask last = t.last;
  for (Index i = 0; i < t.pair_count; ++i) {
    const float* gradient = t.pairs[i].gradient + t.gradient_offset;
    const float* source[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      source[r] = sources[i * kRows + r];
    }
    Index offset = 0;
#pragma GCC unroll 1
    for (Index pixel = 0; pixel < t.pixels; ++pixel) {
      Vec g[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v + 1 < kVecs; ++v) {
        g[v] = load(gradient + v * kLanes);
      }
      if constexpr (kWhole) {
        g[kVecs - 1] = load(gradient + (kVecs - 1) * kLanes);
      } else {
        g[kVecs - 1] = load(gradient + (kVecs - 1) * kLanes, last);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        add_products(sums[r], g, source[r] + offset);
      }
      gradient += gradient_step;
      offset += source_step;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* out = t.out + r * t.out_step;
#pragma GCC unroll 4
    for (int v = 0; v + 1 < kVecs; ++v) {
      store(out + v * kLanes, load(out + v * kLanes) + sums[r][v]);
    }
    out += (kVecs - 1) * kLanes;
    if constexpr (kWhole) {
      store(out, load(out) + sums[r][kVecs - 1]);
    } else {
      store(out, load(out, last) + sums[r][kVecs - 1], last);
    }
  }
}

using SourceTile = void (*)(const TileArguments&);
using GradientTile = void (*)(const TileArguments&, const float* const*);

struct TileTable {
  SourceTile source[2][kMaxVecs + 1][kMaxRows + 1];
  SourceTile asking_lines[2][kMaxVecs + 1][kMaxRows + 1];
  SourceTile asking_pixels[2][kMaxVecs + 1][kMaxRows + 1];
  GradientTile gradient[2][kMaxVecs + 1][kMaxRows + 1];
};

template <int kVecs, int kRows>
constexpr void fill_tiles(TileTable& table) {
  if constexpr (kRows >= 1) {
    table.source[0][kVecs][kRows] = source_tile<kRows, kVecs, false, Asks::kNothing>;
    table.source[1][kVecs][kRows] = source_tile<kRows, kVecs, true, Asks::kNothing>;
    if constexpr (kAsksAhead) {
      table.asking_lines[0][kVecs][kRows] = source_tile<kRows, kVecs, false, Asks::kLines>;
      table.asking_lines[1][kVecs][kRows] = source_tile<kRows, kVecs, true, Asks::kLines>;
      table.asking_pixels[0][kVecs][kRows] = source_tile<kRows, kVecs, false, Asks::kPixels>;
      table.asking_pixels[1][kVecs][kRows] = source_tile<kRows, kVecs, true, Asks::kPixels>;
    }
    table.gradient[0][kVecs][kRows] = gradient_tile<kRows, kVecs, false>;
    table.gradient[1][kVecs][kRows] = gradient_tile<kRows, kVecs, true>;
    fill_tiles<kVecs, kRows - 1>(table);
  }
}

constexpr TileTable make_tiles() {
  TileTable table{};
  fill_tiles<1, tile_rows(1)>(table);
  fill_tiles<2, tile_rows(2)>(table);
  fill_tiles<3, tile_rows(3)>(table);
  fill_tiles<4, tile_rows(4)>(table);
  return table;
}

constexpr TileTable kTiles = make_tiles();

// Which source channels the tiles of by_source take: of a block, `widest` vectors at a time.
template <class Body>
MPSGRAD_INLINE void for_source_columns(const WeightGradientTask& task, const Body& body) {
  const Index channels = task.group_sources;
  const Index blocks_per_group = ceil_div(channels, kConvolutionBlock);
  for (Index block = task.first; block < task.last; ++block) {
    const Index first = block % blocks_per_group * kConvolutionBlock;
    const Index end = smaller(first + kConvolutionBlock, channels);
    const Index widest =
        best_vecs(task.last_gradient - task.first_gradient, ceil_div(end - first, kLanes), true);
    for (Index c = first; c < end; c += widest * kLanes) {
      body(block / blocks_per_group, c, ColumnBlock(end - c, widest));
    }
  }
}

// What the next band reads, handed out to the tiles of this one.
class Requests {
 public:
  Requests() = default;
  explicit Requests(const WeightGradientTask& task) : left_{task.next[0], task.next[1]} {}

  // Where so many lines begin that no tile has requested; null: fewer are left of either image.
  const float* take(Index lines) {
    for (LinesAhead& next : left_) {
      if (kAsksAhead && next.count >= lines) {
        const float* first = next.first;
        next.first += lines * kLineFloats;
        next.count -= lines;
        return first;
      }
    }
    return nullptr;
  }

 private:
  LinesAhead left_[2] = {};
};

// The tiles of all taps of one row, for gradient channels [o, o + rows). `t.pairs` are the rows;
// source channels begin at c of all groups' channels.
void add_taps(const WeightGradientTask& task, TileArguments t, Index o, Index rows, Index q,
              Index group, Index c, const ColumnBlock& columns, Requests& requests) {
  const Index channels = task.group_sources;
  const Index taps = task.taps_y * task.taps_x;
  const Index gradient_offset = t.gradient_offset;
  t.source_step = task.source_step;
  t.out_step = taps * channels;
  t.puts = task.fresh ? Puts::kStored : Puts::kAdded;
  t.last = first_lanes(columns.lanes);
  for (Index p = 0; p < task.taps_x; ++p) {
    const Index begin = task.begin[p];
    t.pixels = task.end[p] - begin;
    if (t.pixels == 0 && !task.fresh) {
      continue;
    }
    t.gradient_offset = gradient_offset + begin * t.gradient_step;
    t.source_offset = task.source_offset + begin * task.source_step + p * task.source_tap_step +
                      group * channels + c;
    t.out = task.out + (o * taps + q * task.taps_x + p) * channels + c;
    t.ahead = requests.take(t.pair_count * t.pixels);
    const auto& tiles = t.ahead == nullptr ? kTiles.source : kTiles.asking_lines;
    tiles[columns.lanes == kLanes ? 1 : 0][columns.vecs][rows](t);
  }
}

// A tile reads a few neighbouring gradient channels of each pixel: parts of cache lines that lie
// far apart, and with 1024 channels in a few sets of every cache. So panels of them are copied once
// for all taps.
void by_source_from_panels(const WeightGradientTask& task) {
  const Index gradients = task.last_gradient - task.first_gradient;
  const Index panels = ceil_div(gradients, kConvolutionPanel);
  auto* pairs = static_cast<Pair*>(task.pairs);
  Requests none;
  for_source_columns(task, [&](Index group, Index c, const ColumnBlock& columns) {
    for (Index panel = 0; panel < panels; ++panel) {
      const Index first = task.first_gradient + panel * gradients / panels;
      const Index count = task.first_gradient + (panel + 1) * gradients / panels - first;
      const TileRows rows(group * task.group_gradients + first, count, columns.vecs,
                          task.rows * task.width);
      copy_rows(TapImage::gradient(task), task.width, {0, task.rows * task.width}, rows,
                task.panels);
      for (Index q = 0; q < task.taps_y; ++q) {
        for (Index tile = 0; tile < rows.tiles; ++tile) {
          TileArguments t{};
          t.pairs = pairs;
          t.gradient_step = rows.rows(tile);
          for (Index row = 0; row < task.rows; ++row) {
            const float* source = task.source[row * task.taps_y + q];
            if (source != nullptr) {
              pairs[t.pair_count++] = {
                  task.panels + rows.panel(tile) + row * task.width * t.gradient_step, source};
            }
          }
          add_taps(task, t, rows.first + rows.begin[tile], rows.rows(tile), q, group, c, columns,
                   none);
        }
      }
    }
  });
}

void by_source(const WeightGradientTask& task) {
  add_bias(task);  // first: it brings the gradient into the caches, by runs of many channels
  if (task.panels != nullptr) {
    by_source_from_panels(task);
    return;
  }
  auto* pairs = static_cast<Pair*>(task.pairs);
  Requests requests(task);
  for_source_columns(task, [&](Index group, Index c, const ColumnBlock& columns) {
    const Index gradients = task.last_gradient - task.first_gradient;
    const Index row_tiles = ceil_div(gradients, tile_rows(static_cast<int>(columns.vecs)));
    for (Index q = 0; q < task.taps_y; ++q) {
      TileArguments t{};
      for (Index row = 0; row < task.rows; ++row) {
        const float* source = task.source[row * task.taps_y + q];
        if (source != nullptr) {
          pairs[t.pair_count++] = {task.gradient[row], source};
        }
      }
      t.pairs = pairs;
      t.gradient_step = task.gradient_step;
      for (Index i = 0; i < row_tiles; ++i) {
        const Index first = task.first_gradient + i * gradients / row_tiles;
        const Index rows = task.first_gradient + (i + 1) * gradients / row_tiles - first;
        t.gradient_offset = group * task.group_gradients + first;
        add_taps(task, t, t.gradient_offset, rows, q, group, c, columns, requests);
      }
    }
  });
}

void winograd_products(const WinogradGradientProducts& task) {
  const Index vecs = ceil_div(task.source_channels, kLanes);
  const Index widest = best_vecs(task.gradient_channels, vecs, true);
  TileArguments t{};
  t.pair_count = 1;
  t.gradient_step = task.gradient_tile_step;
  t.source_step = task.source_tile_step;
  t.pixels = task.tiles;
  t.out_step = task.source_channels;
  const ColumnBlock end(task.source_channels % (widest * kLanes), widest);
  const TileCut whole(task.gradient_channels, tile_rows(static_cast<int>(widest)));
  const TileCut last(task.gradient_channels, tile_rows(static_cast<int>(larger(end.vecs, 1))));
  for (Index part = 0; part < kWinogradParts; ++part) {
    const Pair pair{task.gradients + part * task.gradient_part_step,
                    task.sources + part * task.source_part_step};
    t.pairs = &pair;
    for (Index c = 0; c < task.source_channels; c += widest * kLanes) {
      const ColumnBlock columns(task.source_channels - c, widest);
      const auto* tile = kTiles.source[columns.lanes == kLanes ? 1 : 0][columns.vecs];
      t.source_offset = c;
      t.last = first_lanes(columns.lanes);
      t.gradient_offset = 0;
      t.out = task.sums + part * task.sum_part_step + c;
      (columns.vecs == widest ? whole : last).each([&](Index rows) {
        tile[rows](t);
        t.gradient_offset += rows;
        t.out += rows * t.out_step;
      });
    }
  }
}

// The tiles of all rows and columns of a step.
void multiply(const WeightGradientTask& task, const TapValues& values, const TileRows& rows,
              Index columns, Index widest, float* out, Index out_step, Puts puts,
              CopiesAhead& ahead) {
  Pair pairs[TapValues::kMostRuns];
  TileArguments t{};
  t.pairs = pairs;
  t.pair_count = values.count();
  t.pixels = values.pixels();
  t.out_step = out_step;
  for (Index c = 0; c < columns; c += widest * kLanes) {
    const ColumnBlock block(columns - c, widest);
    const Index whole = block.lanes == kLanes ? 1 : 0;
    t.last = first_lanes(block.lanes);
    t.puts = puts == Puts::kStreamed && whole == 0 ? Puts::kStored : puts;
    t.source_step = values.columns_copied() ? block.vecs * kLanes : values.column_step();
    for (Index k = 0; k < values.count(); ++k) {
      const TapRun& run = values.run(k);
      const float* copy = task.columns + c * rows.pixels + run.place * t.source_step;
      pairs[k] = {run.row, values.columns_copied() ? copy : run.column + c};
    }
    for (Index i = 0; i < rows.tiles; ++i) {
      t.gradient_offset = values.row_offset(rows, i);
      t.gradient_step = values.row_step(rows, i);
      t.out = out + rows.begin[i] * out_step + c;
      t.pixels_ahead = kAsksAhead ? ahead.take(&t.line) : nullptr;
      const auto& tiles = t.pixels_ahead == nullptr ? kTiles.source : kTiles.asking_pixels;
      tiles[whole][block.vecs][rows.rows(i)](t);
    }
  }
}

void by_tap(const WeightGradientTask& task) {
  const TapSteps steps(task, kChunkPixels);
  const Index taps = task.taps_y * task.taps_x;
  const Index channels = task.across ? task.group_gradients : task.group_sources;
  const Index columns = task.last_column - task.first_column;
  const Index widest =
      best_vecs(smaller(steps.row_channels(), kConvolutionPanel), ceil_div(columns, kLanes), true);
  CopiesAhead ahead;
  Index columns_of = -1;  // the step for which what is in the copies was copied
  Index rows_of = -1;
  for (Index i = 0; i < steps.count(); ++i) {
    const TapStep step = steps.at(i);
    const TileRows rows(step.first_row, step.last_row - step.first_row, widest, step.pixels.count);
    const TapValues values(task, step, kReadsInPlace && splits_wide_vectors());
    if (values.columns_copied() &&
        (columns_of < 0 || !steps.same_columns(step, steps.at(columns_of)))) {
      columns_of = i;
      copy_columns(step.column_image, task.width, step.pixels, step.first_column, step.last_column,
                   widest, task.columns);
    }
    if (values.rows_copied() && (rows_of < 0 || !steps.same_rows(step, steps.at(rows_of)))) {
      rows_of = i;
      copy_rows(step.row_image, task.width, step.pixels, rows, task.panels);
    }
    if constexpr (kAsksAhead) {
      ahead.start(task, steps, i, ceil_div(columns, widest * kLanes) * rows.tiles);
    }
    float* out = task.out + step.first_row * taps * channels +
                 (task.across ? taps - 1 - step.tap : step.tap) * channels + task.first_column;
    const bool is_first = task.fresh && step.pixels.first == 0;
    const bool is_only = kStreamsTiles && task.streams && steps.chunks() == 1 &&
                         past_line(out) == 0 && taps * channels % kLineFloats == 0;
    const Puts written = is_only ? Puts::kStreamed : Puts::kStored;
    multiply(task, values, rows, columns, widest, out, taps * channels,
             is_first ? written : Puts::kAdded, ahead);
  }
  add_bias(task);
}

// So many rows of a band have their pointers laid out at a time.
constexpr Index kPointerRows = 16;

void by_gradient(const WeightGradientTask& task) {
  const Index channels = task.group_gradients;
  const Index blocks_per_group = ceil_div(channels, kConvolutionBlock);
  const Index slots = task.taps_y * task.taps_x * task.group_sources;
  const float* sources[kPointerRows * kMaxRows];
  Index tap_rows[kMaxRows];
  Index offsets[kMaxRows];
  auto* pairs = static_cast<Pair*>(task.pairs);
  for (Index row = 0; row < task.rows; ++row) {
    pairs[row] = {task.gradient[row], nullptr};
  }
  for (Index block = task.first; block < task.last; ++block) {
    const Index group = block / blocks_per_group;
    const Index block_first = block % blocks_per_group * kConvolutionBlock;
    const Index block_vecs = ceil_div(smaller(kConvolutionBlock, channels - block_first), kLanes);
    const Index widest = best_vecs(slots, block_vecs, true);
    for (Index done = 0; done < block_vecs; done += widest) {
      const Index vecs = smaller(widest, block_vecs - done);
      const Index o = block_first + done * kLanes;
      const Index last = smaller(channels - o - (vecs - 1) * kLanes, kLanes);
      const auto& tiles = kTiles.gradient[last == kLanes ? 1 : 0][vecs];
      const Index row_tiles = ceil_div(slots, tile_rows(static_cast<int>(vecs)));
      TileArguments t{};
      t.gradient_offset = group * channels + o;
      t.gradient_step = task.gradient_step;
      t.source_step = task.source_step;
      t.pixels = task.width;
      t.out_step = channels;
      t.last = first_lanes(last);
      for (Index i = 0; i < row_tiles; ++i) {
        const Index first = i * slots / row_tiles;
        const Index rows = (i + 1) * slots / row_tiles - first;
        t.out = task.out + (group * slots + first) * channels + o;
        for (Index r = 0; r < rows; ++r) {
          const Index tap = (first + r) / task.group_sources;
          tap_rows[r] = tap / task.taps_x;
          offsets[r] = tap % task.taps_x * task.source_tap_step + group * task.group_sources +
                       (first + r) % task.group_sources;
        }
        for (Index row = 0; row < task.rows; row += kPointerRows) {
          t.pairs = pairs + row;
          t.pair_count = smaller(kPointerRows, task.rows - row);
          const float** next = sources;
          for (Index k = row; k < row + t.pair_count; ++k) {
            for (Index r = 0; r < rows; ++r) {
              const float* source = task.source[k * task.taps_y + tap_rows[r]];
              *next++ = (source == nullptr ? task.zeros : source) + offsets[r];
            }
          }
          tiles[rows](t, sources);
        }
      }
    }
  }
  add_bias(task);
}

}  // namespace

const WeightGradientLoops weight_gradient_loops{
    kLanes, panel_floats, column_floats,     by_source,
    by_tap, by_gradient,  winograd_products, channel_sums};

}  // namespace mpsgrad::MPSGRAD_ISA
