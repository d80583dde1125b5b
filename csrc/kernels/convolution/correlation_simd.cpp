// Correlation of rows with packed weights: the forward pass of convolution and its data gradient.
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/tile_sink_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// Taps whose operands and weights follow each other without a gap.
struct Run {
  const float* operand;
  Index weights;  // from the start of the block
  Index length;
};
static_assert(sizeof(Run) == 24);

struct TileArguments {
  const Run* runs;
  Index run_count;
  Index offset;  // from the first result of the row
  Index step;
  const float* weights;
  Index block_step;
  const float* bias;
  float* out;
  Index out_step;
  Mask last;  // lanes of the last vector
  bool whole;
  bool streamed;  // past the caches; only if whole
  bool first;     // no other tile of the task has read these operands: memory is asked for them
  Index ahead;    // of tiles that ask: from a row's operands, or weights, to those that it requests
  Index every;    // of tiles that ask for weights: operands from one request to the next
};

enum class Asks { Nothing, Operands, Weights };

constexpr int kTall = 5;                // rows of a tile that pay for asking ahead
constexpr Index kOperandsAhead = 1536;  // at least, and at least a tile

// Tile rows that share a pointer: their distances from it fit the addressing of an instruction.
constexpr int kSharing = 3;

// To a bias, or with kAdd to what is there, in whole vectors. Tiles that ask for operands request a
// line of each row further on while they add one of their own, one after the other, because a core
// waits for few lines at a time; others for the weights of one operand further on whenever they
// have added a few.
template <int kRows, int kVecs, bool kAdd, Asks kAsks>
void tile(const TileArguments& t) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = load((kAdd ? t.out + r * t.out_step : t.bias) + v * kLanes);
    }
  }
  const Index step = t.step;
  const Index block_step = t.block_step;
  const Run* const end = t.runs + t.run_count;
  for (const Run* run = t.runs; run != end; ++run) {
    const float* operand[(kRows + kSharing - 1) / kSharing];
#pragma GCC unroll 8
    for (int i = 0; i < (kRows + kSharing - 1) / kSharing; ++i) {
      operand[i] = run->operand + t.offset + kSharing * i * step;
    }
    const float* weights = t.weights + run->weights;
    const float* const last = weights + run->length * kLanes;
    const float* ahead = (kAsks == Asks::Weights ? weights : operand[0]) + t.ahead;
    const float* next_request = weights;
    const float* next_line = weights;              // where rows begin lines of operands
    const float* last_row = ahead + kRows * step;  // past it
#pragma GCC unroll 1
    while (weights != last) {
      if (kAsks == Asks::Operands && weights == next_request) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += step;
        next_request += kLineFloats / kRows * kLanes;
        if (ahead == last_row) {
          ahead += kLineFloats - kRows * step;
          last_row += kLineFloats;
          next_line += kLineFloats * kLanes;
          next_request = next_line;
        }
      }
      if (kAsks == Asks::Weights && weights == next_request) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          __builtin_prefetch(ahead + v * block_step, 0, 2);
        }
        ahead += kLanes;
        next_request += t.every * kLanes;
      }
      Vec w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        w[v] = load(weights + v * block_step);
      }
      weights += kLanes;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        add_products(sums[r], w, &operand[r / kSharing][r % kSharing * step]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < (kRows + kSharing - 1) / kSharing; ++i) {
        ++operand[i];
      }
    }
  }
  const auto put = [&](const auto& one, const auto&... mask) MPSGRAD_MELT {
    float* out = t.out;
    const Index out_step = t.out_step;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v + 1 < kVecs; ++v) {
        one(out + v * kLanes, sums[r][v]);
      }
      one(out + (kVecs - 1) * kLanes, sums[r][kVecs - 1], mask...);
      out += out_step;
    }
  };
  const auto plainly = [](float* to, Vec value, const auto&... mask)
                           MPSGRAD_MELT { store(to, value, mask...); };
  if (!kAdd && kStreamsResults && kVecs % kLineVecs == 0 && t.streamed) {
    put([](float* to, Vec value) MPSGRAD_MELT { stream(to, value); });
  } else if (t.whole) {
    put(plainly);
  } else {
    put(plainly, t.last);
  }
}

constexpr int kTilesAhead = 4;

// Operand channels in the lanes: a dot product for each of kRows * kOuts results.
template <int kRows, int kOuts>
void dot_tile(const TileArguments& t) {
  Vec sums[kRows][kOuts];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOuts; ++o) {
      sums[r][o] = Vec{};
    }
  }
  for (Index i = 0; i < t.run_count; ++i) {
    const float* operand = t.runs[i].operand + t.offset;
    const float* weights = t.weights + t.runs[i].weights;
    const Index length = t.runs[i].length;
    const auto add = [&](const auto&... mask) MPSGRAD_MELT {
      Vec w[kOuts];
#pragma GCC unroll 4
      for (int o = 0; o < kOuts; ++o) {
        w[o] = load(weights + o * t.block_step, mask...);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        if (t.first) {  // neighbours in turn are a pattern that no processor foresees
          __builtin_prefetch(operand + (r + kTilesAhead * kRows) * t.step);
        }
        const Vec x = load(operand + r * t.step, mask...);
#pragma GCC unroll 4
        for (int o = 0; o < kOuts; ++o) {
          sums[r][o] += w[o] * x;
        }
      }
    };
    Index k = 0;
    for (; k + kLanes <= length; k += kLanes) {
      add();
      operand += kLanes;
      weights += kLanes;
    }
    if (k < length) {
      add(first_lanes(length - k));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOuts; ++o) {
      t.out[r * t.out_step + o] = sum(sums[r][o]) + t.bias[o];
    }
  }
}

using TileFunction = void (*)(const TileArguments&);

constexpr int kDotOuts = 4;

constexpr int dot_rows(int outs) {
  const int rows = (kRegisters - kSpare - outs) / (outs + 1);
  return rows < 6 ? rows : 6;
}

template <int kOuts, int kRows>
constexpr void fill_dot_tiles(TileFunction* tiles) {
  if constexpr (kRows >= 1) {
    tiles[kRows] = dot_tile<kRows, kOuts>;
    fill_dot_tiles<kOuts, kRows - 1>(tiles);
  }
}

struct TileTable {
  TileFunction tiles[kMaxVecs + 1][kMaxRows + 1];
  TileFunction adding[kMaxVecs + 1][kMaxRows + 1];
  TileFunction asking[kMaxVecs + 1][kMaxRows + 1];
  TileFunction adding_asking[kMaxVecs + 1][kMaxRows + 1];  // for weights
  TileFunction dots[kDotOuts + 1][kMaxRows + 1];
};

template <int kVecs, int kRows>
constexpr void fill_tiles(TileTable& table) {
  if constexpr (kRows >= 1) {
    constexpr bool kTallEnough = kRows >= kTall;
    constexpr Asks kOperands = kTallEnough ? Asks::Operands : Asks::Nothing;
    constexpr Asks kWeights = kTallEnough ? Asks::Weights : Asks::Nothing;
    table.tiles[kVecs][kRows] = tile<kRows, kVecs, false, Asks::Nothing>;
    table.adding[kVecs][kRows] = tile<kRows, kVecs, true, Asks::Nothing>;
    table.asking[kVecs][kRows] = tile<kRows, kVecs, false, kOperands>;
    table.adding_asking[kVecs][kRows] = tile<kRows, kVecs, true, kWeights>;
    fill_tiles<kVecs, kRows - 1>(table);
  }
}

constexpr TileTable make_tiles() {
  TileTable table{};
  fill_tiles<1, tile_rows(1)>(table);
  fill_tiles<2, tile_rows(2)>(table);
  fill_tiles<3, tile_rows(3)>(table);
  fill_tiles<4, tile_rows(4)>(table);
  fill_dot_tiles<1, dot_rows(1)>(table.dots[1]);
  fill_dot_tiles<2, dot_rows(2)>(table.dots[2]);
  fill_dot_tiles<3, dot_rows(3)>(table.dots[3]);
  fill_dot_tiles<4, dot_rows(4)>(table.dots[4]);
  return table;
}

constexpr TileTable kTiles = make_tiles();

// The taps of one row of results, without those that read zeros.
Index make_runs(const CorrelationTask& task, Index row, Index operand_channel, Index lanes,
                Run* runs) {
  const Index channels = task.group_operands;
  const bool merge = task.operand_tap_step == channels;
  Index count = 0;
  for (Index q = 0; q < task.taps_y; ++q) {
    const float* operand = task.operand[row * task.taps_y + q];
    if (operand == nullptr || task.taps_x == 0) {
      continue;
    }
    operand += operand_channel;
    const Index tap = (task.first_tap_y + q) * task.kernel_width + task.first_tap_x;
    if (merge) {
      runs[count++] = {operand, tap * channels * lanes, task.taps_x * channels};
      continue;
    }
    for (Index p = 0; p < task.taps_x; ++p) {
      runs[count++] = {operand + p * task.operand_tap_step, (tap + p) * channels * lanes, channels};
    }
  }
  return count;
}

// Neighbouring blocks of results, of one group, that tiles do at once.
struct Blocks {
  Index first, count;
  Index group, in_group;    // which of the group's is the first
  Index channel, channels;  // of the result
  Index last;               // results of the last block
};

// From `first` on, at most `widest`, before `end`.
Blocks next_blocks(const CorrelationTask& task, Index lanes, Index widest, Index first, Index end) {
  const Index per_group = ceil_div(task.group_results, lanes);
  Blocks b{};
  b.first = first;
  b.group = first / per_group;
  b.in_group = first % per_group;
  b.count = smaller(smaller(widest, per_group - b.in_group), end - first);
  b.channel = b.group * task.group_results + b.in_group * lanes;
  b.channels = smaller(b.count * lanes, task.group_results - b.in_group * lanes);
  b.last = b.channels - (b.count - 1) * lanes;
  return b;
}

Index block_step(const CorrelationTask& task, Index lanes) {
  return task.kernel_taps * task.group_operands * lanes;
}

TileArguments arguments_of(const CorrelationTask& task, Index lanes, const Blocks& blocks) {
  TileArguments t{};
  t.runs = static_cast<const Run*>(task.runs);
  t.step = task.operand_step;
  t.block_step = block_step(task, lanes);
  t.weights = task.weights + blocks.first * t.block_step;
  t.bias = task.bias + blocks.first * lanes;
  t.last = first_lanes(smaller(blocks.last, kLanes));
  t.whole = blocks.last == lanes;
  return t;
}

// Whether windows have one tap, or lie side by side: then what a tile reads comes from memory, if
// that is where operands lie, for no two results of the task read the same (of rows far apart
// some).
bool windows_are_apart(const CorrelationTask& task) {
  const Index run = task.taps_x * task.group_operands;
  return task.taps_y * task.taps_x == 1 ||
         (task.operand_tap_step == task.group_operands && task.operand_step >= run &&
          task.fresh_rows == task.taps_y);
}

// Every tile of the task from block `first` on: `lanes` results of one operand run in each block,
// at most `widest` blocks in a tile.
template <class RowsOf>
void correlate_tiles(const CorrelationTask& task, Index lanes, Index widest, Index first,
                     const RowsOf& rows_of, const TileFunction (*plain)[kMaxRows + 1],
                     const TileFunction (*asking)[kMaxRows + 1]) {
  auto* runs = static_cast<Run*>(task.runs);
  TileSink sink(task);
  const bool apart = windows_are_apart(task);
  const Index run = larger(task.taps_x, 1) * task.group_operands;
  for (Index block = first; block < task.last_block;) {
    const Blocks blocks = next_blocks(task, lanes, widest, block, task.last_block);
    const Index row_tiles = ceil_div(task.width, rows_of(blocks.count));
    TileArguments t = arguments_of(task, lanes, blocks);
    t.first = apart && (block == task.first_block || blocks.in_group == 0);
    t.ahead = larger(rows_of(blocks.count), ceil_div(kOperandsAhead, run)) * t.step;
    const TileFunction* const tiles = (t.first ? asking : plain)[blocks.count];
    for (Index row = 0; row < task.rows; ++row) {
      t.run_count = make_runs(task, row, blocks.group * task.group_operands, lanes, runs);
      for (Index i = 0; i < row_tiles; ++i) {
        const Index x = i * task.width / row_tiles;
        const Index pixels = (i + 1) * task.width / row_tiles - x;
        t.offset = x * task.operand_step;
        t.out = sink.begin(row, x, blocks.channel, blocks.channels);
        t.out_step = sink.step();
        t.streamed = sink.streams(t.out, blocks.channels);
        tiles[pixels](t);
        sink.finish(t.out, row, x, pixels, blocks.channel, blocks.channels);
      }
    }
    block += blocks.count;
  }
}

// One row of long sums, as of fully connected kernels: one tile after the other they would read all
// of the weights, which no near cache keeps until the next one. So each adds a part of the operands
// before the next part, whose weights it asks for meanwhile. The sums are the same.
// Returns the first block that is left: results that fill no vector cannot be added to.
template <class RowsOf>
Index correlate_parts(const CorrelationTask& task, Index widest, const RowsOf& rows_of) {
  constexpr Index kPart = 128;               // operands
  constexpr Index kManyWeights = 64 * 1024;  // of a tile
  const auto tiles_of = [&](Index count) { return ceil_div(task.width, rows_of(count)); };
  const Index operands = task.group_operands;
  if (task.groups != 1 || task.rows != 1 || task.taps_y * task.taps_x != 1 ||
      operands * widest * kLanes < kManyWeights || operands <= kPart || tiles_of(widest) < 2) {
    return task.first_block;
  }
  auto* const run = static_cast<Run*>(task.runs);
  if (make_runs(task, 0, 0, kLanes, run) == 0) {
    return task.first_block;
  }
  const Run all = *run;
  TileSink sink(task);
  const Index end = smaller(task.last_block, task.group_results / kLanes);
  for (Index block = task.first_block; block < end;) {
    const Blocks blocks = next_blocks(task, kLanes, widest, block, end);
    TileArguments t = arguments_of(task, kLanes, blocks);
    const Index tiles = tiles_of(blocks.count);
    const Index together = smaller(tiles, sink.room(blocks.channels) / rows_of(blocks.count));
    const auto x_of = [&](Index tile) { return tile * task.width / tiles; };
    t.run_count = 1;
    for (Index tile = 0; tile < tiles; tile += together) {
      const Index last_tile = smaller(tile + together, tiles);
      t.every = last_tile - tile;
      const Index after = last_tile == tiles ? blocks.count * t.block_step : 0;
      for (Index first = 0; first < operands; first += kPart) {
        const bool last = first + kPart >= operands;
        *run = {all.operand + first, all.weights + first * kLanes,
                smaller(kPart, operands - first)};
        t.ahead = last ? after - first * kLanes : kPart * kLanes;
        const auto& functions = first == 0 ? kTiles.tiles : kTiles.adding_asking;
        for (Index i = tile; i < last_tile; ++i) {
          const Index x = x_of(i);
          const Index pixels = x_of(i + 1) - x;
          t.offset = x * task.operand_step;
          t.out =
              sink.begin(0, x, blocks.channel, blocks.channels, (x - x_of(tile)) * blocks.channels);
          t.out_step = sink.step();
          functions[blocks.count][pixels](t);
          t.ahead += kPart / t.every * kLanes;  // each tile has its share
          if (last) {
            sink.finish(t.out, 0, x, pixels, blocks.channel, blocks.channels);
          }
        }
      }
    }
    block += blocks.count;
  }
  return end;
}

void correlate(const CorrelationTask& task) {
  const Index blocks_per_group = ceil_div(task.group_results, kLanes);
  const Index blocks = smaller(blocks_per_group, task.last_block - task.first_block);
  const Index products = task.taps_y * task.taps_x * task.group_operands;
  const Index highest = rows_in_sets(task.operand_step, task.result_step);
  // Only tiles of whole lines go past the caches.
  const bool by_lines = kLineVecs == 2 && task.streamed && TileSink::is_direct(task) &&
                        task.group_results % kLineFloats == 0;
  const Index widest =
      by_lines ? kLineVecs : best_vecs(task.width, blocks, false, products, highest);
  const auto rows_of = [=](Index vecs) {
    return smaller(tile_rows(static_cast<int>(vecs)), highest);
  };
  correlate_tiles(task, kLanes, widest, correlate_parts(task, widest, rows_of), rows_of,
                  kTiles.tiles, kTiles.asking);
}

void correlate_dot(const CorrelationTask& task) {
  correlate_tiles(
      task, 1, kDotOuts, task.first_block,
      [](Index outs) { return static_cast<Index>(dot_rows(static_cast<int>(outs))); }, kTiles.dots,
      kTiles.dots);
}

void winograd_products(const WinogradProducts& task) {
  static const float zeros[kMaxVecs * kLanes] = {};
  const bool in_place = task.operands == task.sums;
  const Index widest = in_place ? task.blocks : best_vecs(task.tiles, task.blocks, false);
  TileArguments t{};
  t.run_count = 1;
  t.step = task.operand_tile_step;
  t.block_step = task.weight_block_step;
  t.out_step = task.sum_tile_step;
  t.whole = true;
  t.bias = zeros;
  const auto* tiles = task.accumulate ? kTiles.adding : kTiles.tiles;
  const Index rest = task.blocks % widest;
  const TileCut whole(task.tiles, tile_rows(static_cast<int>(widest)));
  const TileCut last(task.tiles, tile_rows(static_cast<int>(larger(rest, 1))));
  for (Index part = 0; part < kWinogradParts; ++part) {
    const Run run{task.operands + part * task.operand_part_step, 0, task.channels};
    t.runs = &run;
    for (Index block = 0; block < task.blocks; block += widest) {
      const bool narrow = task.blocks - block < widest;
      const auto* tile = tiles[narrow ? rest : widest];
      t.weights = task.weights + part * task.weight_part_step + block * task.weight_block_step;
      t.offset = 0;
      t.out = task.sums + part * task.sum_part_step + block * kLanes;
      (narrow ? last : whole).each([&](Index rows) {
        tile[rows](t);
        t.offset += rows * task.operand_tile_step;
        t.out += rows * task.sum_tile_step;
      });
    }
  }
}

}  // namespace

const CorrelationLoops correlation_loops{kLanes, correlate, correlate_dot, kMaxVecs,
                                         winograd_products};

}  // namespace mpsgrad::MPSGRAD_ISA
