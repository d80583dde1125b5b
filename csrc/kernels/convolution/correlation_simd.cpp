// Correlation of rows with packed weights: the forward pass of convolution and its data gradient.
#include "cpu/simd/convert.hpp"
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

constexpr int kFloat32 = 4;

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
};

template <int kRows, int kVecs>
void tile(const TileArguments& t) {
  Vec sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = load(t.bias + v * kLanes);
    }
  }
  const Index step = t.step;
  const Index block_step = t.block_step;
  for (Index i = 0; i < t.run_count; ++i) {
    const float* operand = t.runs[i].operand + t.offset;
    const float* weights = t.weights + t.runs[i].weights;
    const Index length = t.runs[i].length;
#pragma GCC unroll 1
    for (Index k = 0; k < length; ++k) {
      Vec w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        w[v] = load(weights + v * block_step + k * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float x = operand[r * step + k];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] += w[v] * x;
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* out = t.out + r * t.out_step;
#pragma GCC unroll 4
    for (int v = 0; v + 1 < kVecs; ++v) {
      store(out + v * kLanes, sums[r][v]);
    }
    if (t.whole) {
      store(out + (kVecs - 1) * kLanes, sums[r][kVecs - 1]);
    } else {
      store(out + (kVecs - 1) * kLanes, sums[r][kVecs - 1], t.last);
    }
  }
}

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
    const auto add = [&](const auto&... mask) MPSGRAD_LAMBDA_INLINE {
      Vec w[kOuts];
#pragma GCC unroll 4
      for (int o = 0; o < kOuts; ++o) {
        w[o] = load(weights + o * t.block_step, mask...);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
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

template <int kVecs, int kRows>
constexpr void fill_tiles(TileFunction* tiles) {
  if constexpr (kRows >= 1) {
    tiles[kRows] = tile<kRows, kVecs>;
    fill_tiles<kVecs, kRows - 1>(tiles);
  }
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
  TileFunction dots[kDotOuts + 1][kMaxRows + 1];
};

constexpr TileTable make_tiles() {
  TileTable table{};
  fill_tiles<1, tile_rows(1)>(table.tiles[1]);
  fill_tiles<2, tile_rows(2)>(table.tiles[2]);
  fill_tiles<3, tile_rows(3)>(table.tiles[3]);
  fill_tiles<4, tile_rows(4)>(table.tiles[4]);
  fill_dot_tiles<1, dot_rows(1)>(table.dots[1]);
  fill_dot_tiles<2, dot_rows(2)>(table.dots[2]);
  fill_dot_tiles<3, dot_rows(3)>(table.dots[3]);
  fill_dot_tiles<4, dot_rows(4)>(table.dots[4]);
  return table;
}

constexpr TileTable kTiles = make_tiles();

// The taps of one row of results, without those that read zeros.
Index make_runs(const CorrelationTask& task, Index row, Index operand_channel, Index lanes, Run* runs) {
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

// Where a tile of results goes: straight into a float32 result, else through `values` and the hook.
class TileSink {
 public:
  TileSink(const CorrelationTask& task) : task_(task), direct_(task.format == kFloat32 && task.hook.store) {}

  float* begin(Index row, Index x, Index channel, Index channels) {
    if (direct_) {
      step_ = task_.result_step;
      return static_cast<float*>(task_.result[row].data) + x * step_ + channel;
    }
    step_ = channels;
    return values_;
  }
  Index step() const { return step_; }

  void finish(float* values, Index row, Index x, Index pixels, Index channel, Index channels) const {
    if (task_.hook.apply != nullptr) {
      task_.hook.apply(task_.hook.context,
                       {task_.result[row].sample, task_.result[row].y, task_.first_x + x * task_.x_step,
                        task_.x_step, pixels, channel, channels, values, step_});
    }
    if (direct_ || !task_.hook.store) {
      return;
    }
    const Index item = task_.format == 1 ? 1 : 2;
    auto* data = static_cast<unsigned char*>(task_.result[row].data) + (x * task_.result_step + channel) * item;
    convert_loops.store_row(values, data, task_.format, pixels, channels, task_.result_step);
  }

 private:
  const CorrelationTask& task_;
  bool direct_;
  Index step_ = 0;
  alignas(64) float values_[kMaxRows * kMaxVecs * kLanes];
};

// Every tile of the task: `lanes` results of one operand run in each block, at most `widest` blocks in a tile.
template <class RowsOf>
void correlate_tiles(const CorrelationTask& task, Index lanes, Index widest, const RowsOf& rows_of,
                     const TileFunction (*tiles)[kMaxRows + 1]) {
  const Index blocks_per_group = ceil_div(task.group_results, lanes);
  const Index block_step = task.kernel_taps * task.group_operands * lanes;
  auto* runs = static_cast<Run*>(task.runs);
  TileSink sink(task);
  for (Index block = task.first_block; block < task.last_block;) {
    const Index group = block / blocks_per_group;
    const Index in_group = block % blocks_per_group;
    const Index blocks = smaller(smaller(widest, blocks_per_group - in_group), task.last_block - block);
    const Index first_channel = in_group * lanes;
    const Index channels = smaller(blocks * lanes, task.group_results - first_channel);
    const Index last = channels - (blocks - 1) * lanes;
    const Index row_tiles = ceil_div(task.width, rows_of(blocks));
    TileArguments t{};
    t.runs = runs;
    t.step = task.operand_step;
    t.weights = task.weights + block * block_step;
    t.block_step = block_step;
    t.bias = task.bias + block * lanes;
    t.last = first_lanes(smaller(last, kLanes));
    t.whole = last == lanes;
    const Index channel = group * task.group_results + first_channel;
    for (Index row = 0; row < task.rows; ++row) {
      t.run_count = make_runs(task, row, group * task.group_operands, lanes, runs);
      for (Index i = 0; i < row_tiles; ++i) {
        const Index x = i * task.width / row_tiles;
        const Index pixels = (i + 1) * task.width / row_tiles - x;
        t.offset = x * task.operand_step;
        t.out = sink.begin(row, x, channel, channels);
        t.out_step = sink.step();
        tiles[blocks][pixels](t);
        sink.finish(t.out, row, x, pixels, channel, channels);
      }
    }
    block += blocks;
  }
}

void correlate(const CorrelationTask& task) {
  const Index blocks_per_group = ceil_div(task.group_results, kLanes);
  const Index blocks = smaller(blocks_per_group, task.last_block - task.first_block);
  correlate_tiles(
      task, kLanes, best_vecs(task.width, blocks),
      [](Index vecs) { return static_cast<Index>(tile_rows(static_cast<int>(vecs))); }, kTiles.tiles);
}

void correlate_dot(const CorrelationTask& task) {
  correlate_tiles(
      task, 1, kDotOuts, [](Index outs) { return static_cast<Index>(dot_rows(static_cast<int>(outs))); },
      kTiles.dots);
}

constexpr int kDepthwisePixels = 6;

template <int kPixels>
void depthwise_tile(const TileArguments& t, Index channels) {
  const auto add = [&](Index c, const auto&... mask) MPSGRAD_LAMBDA_INLINE {
    Vec sums[kPixels];
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      sums[r] = load(t.bias + c);
    }
    for (Index i = 0; i < t.run_count; ++i) {
      const float* operand = t.runs[i].operand + t.offset + c;
      const Vec w = load(t.weights + t.runs[i].weights + c, mask...);
#pragma GCC unroll 8
      for (int r = 0; r < kPixels; ++r) {
        sums[r] += w * load(operand + r * t.step, mask...);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      store(t.out + r * t.out_step + c, sums[r], mask...);
    }
  };
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    add(c);
  }
  if (c < channels) {
    add(c, first_lanes(channels - c));
  }
}

void correlate_depthwise(const CorrelationTask& task) {
  using Function = void (*)(const TileArguments&, Index);
  static constexpr Function kFunctions[kDepthwisePixels + 1] = {
      nullptr,           depthwise_tile<1>, depthwise_tile<2>, depthwise_tile<3>,
      depthwise_tile<4>, depthwise_tile<5>, depthwise_tile<6>};
  // So many channels at a time that the sink's values have room for them.
  constexpr Index kChannels = kMaxRows * kMaxVecs * kLanes / kDepthwisePixels / kLanes * kLanes;
  const bool direct = task.format == kFloat32 && task.hook.store;
  const Index channels = task.group_results;
  const Index part = direct ? channels : smaller(channels, kChannels);
  const Index tiles = ceil_div(task.width, kDepthwisePixels);
  auto* runs = static_cast<Run*>(task.runs);
  TileSink sink(task);
  for (Index row = 0; row < task.rows; ++row) {
    Index count = 0;
    for (Index q = 0; q < task.taps_y; ++q) {
      const float* operand = task.operand[row * task.taps_y + q];
      if (operand == nullptr) {
        continue;
      }
      const Index tap = (task.first_tap_y + q) * task.kernel_width + task.first_tap_x;
      for (Index p = 0; p < task.taps_x; ++p) {
        runs[count++] = {operand + p * task.operand_tap_step, (tap + p) * channels, 1};
      }
    }
    for (Index i = 0; i < tiles; ++i) {
      const Index x = i * task.width / tiles;
      const Index pixels = (i + 1) * task.width / tiles - x;
      for (Index c = 0; c < channels; c += part) {
        const Index now = smaller(part, channels - c);
        TileArguments t{};
        t.runs = runs;
        t.run_count = count;
        t.offset = x * task.operand_step + c;
        t.step = task.operand_step;
        t.weights = task.weights + c;
        t.bias = task.bias + c;
        t.out = sink.begin(row, x, c, now);
        t.out_step = sink.step();
        kFunctions[pixels](t, now);
        sink.finish(t.out, row, x, pixels, c, now);
      }
    }
  }
}

}  // namespace

const CorrelationLoops correlation_loops{kLanes, correlate, correlate_dot, correlate_depthwise};

}  // namespace mpsgrad::MPSGRAD_ISA
