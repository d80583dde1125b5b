// The weight gradient of convolution: products of the incoming gradient and the source, summed over positions. A tile of
// weights stays in registers for a whole band of rows.
#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// Two rows whose pixels are multiplied with each other.
struct Pair {
  const float* gradient;
  const float* source;
};
static_assert(sizeof(Pair) == 16);

struct TileArguments {
  const Pair* pairs;
  Index pair_count;
  Index gradient_offset, source_offset;  // to the first pixel and channel of the tile
  Index gradient_step, source_step;
  Index pixels;
  float* out;
  Index out_step;  // from one row of the tile to the next
  Mask last;       // lanes of the last vector
};

// out[r][v] += sum over pixels of gradient[r] * source[v].
template <int kRows, int kVecs, bool kWhole>
void source_tile(const TileArguments& t) {
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
    const float* source = t.pairs[i].source + t.source_offset;
#pragma GCC unroll 1
    for (Index pixel = 0; pixel < t.pixels; ++pixel) {
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
        const float g = gradient[r];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] += x[v] * g;
        }
      }
      gradient += gradient_step;
      source += source_step;
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

// The same with gradient channels in the lanes; the rows of the tile are source values (`sources`, one pointer for each
// row of the tile and row of the band) of any taps and channels.
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
        const float x = source[r][offset];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] += g[v] * x;
        }
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
  GradientTile gradient[2][kMaxVecs + 1][kMaxRows + 1];
};

template <int kVecs, int kRows>
constexpr void fill_tiles(TileTable& table) {
  if constexpr (kRows >= 1) {
    table.source[0][kVecs][kRows] = source_tile<kRows, kVecs, false>;
    table.source[1][kVecs][kRows] = source_tile<kRows, kVecs, true>;
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

void channel_sums(const float* row, Index pixels, Index step, Index channels, float* sums) {
  const auto add = [&](Index c, const auto&... mask) MPSGRAD_LAMBDA_INLINE {
    Vec even{};
    Vec odd{};
    const float* pixel = row + c;
    Index i = 0;
    for (; i + 2 <= pixels; i += 2) {
      even += load(pixel, mask...);
      odd += load(pixel + step, mask...);
      pixel += 2 * step;
    }
    if (i < pixels) {
      even += load(pixel, mask...);
    }
    store(sums + c, load(sums + c, mask...) + (even + odd), mask...);
  };
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    add(c);
  }
  if (c < channels) {
    add(c, first_lanes(channels - c));
  }
}

void add_bias(const WeightGradientTask& task) {
  if (task.bias == nullptr) {
    return;
  }
  for (Index row = 0; row < task.rows; ++row) {
    channel_sums(task.gradient[row], task.width, task.gradient_step, task.groups * task.group_gradients, task.bias);
  }
}

void by_source(const WeightGradientTask& task) {
  const Index channels = task.group_sources;
  const Index blocks_per_group = ceil_div(channels, kConvolutionBlock);
  const Index taps = task.taps_y * task.taps_x;
  auto* pairs = static_cast<Pair*>(task.pairs);
  for (Index block = task.first; block < task.last; ++block) {
    const Index group = block / blocks_per_group;
    const Index block_first = block % blocks_per_group * kConvolutionBlock;
    const Index block_vecs = ceil_div(smaller(kConvolutionBlock, channels - block_first), kLanes);
    const Index widest = best_vecs(task.group_gradients, block_vecs);
    for (Index done = 0; done < block_vecs; done += widest) {
      const Index vecs = smaller(widest, block_vecs - done);
      const Index c = block_first + done * kLanes;
      const Index last = smaller(channels - c - (vecs - 1) * kLanes, kLanes);
      const auto& tiles = kTiles.source[last == kLanes ? 1 : 0][vecs];
      const Index row_tiles = ceil_div(task.group_gradients, tile_rows(static_cast<int>(vecs)));
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
        t.source_step = task.source_step;
        t.out_step = taps * channels;
        t.last = first_lanes(last);
        for (Index i = 0; i < row_tiles; ++i) {
          const Index first = i * task.group_gradients / row_tiles;
          const Index rows = (i + 1) * task.group_gradients / row_tiles - first;
          const Index o = group * task.group_gradients + first;
          for (Index p = 0; p < task.taps_x; ++p) {
            const Index begin = task.begin[p];
            t.pixels = task.end[p] - begin;
            if (t.pixels <= 0) {
              continue;
            }
            t.gradient_offset = begin * task.gradient_step + o;
            t.source_offset = task.source_offset + begin * task.source_step + p * task.source_tap_step +
                              group * channels + c;
            t.out = task.out + (o * taps + q * task.taps_x + p) * channels + c;
            tiles[rows](t);
          }
        }
      }
    }
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
  auto* pairs = static_cast<Pair*>(task.pairs);
  for (Index row = 0; row < task.rows; ++row) {
    pairs[row] = {task.gradient[row], nullptr};
  }
  for (Index block = task.first; block < task.last; ++block) {
    const Index group = block / blocks_per_group;
    const Index block_first = block % blocks_per_group * kConvolutionBlock;
    const Index block_vecs = ceil_div(smaller(kConvolutionBlock, channels - block_first), kLanes);
    const Index widest = best_vecs(slots, block_vecs);
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
        for (Index row = 0; row < task.rows; row += kPointerRows) {
          t.pairs = pairs + row;
          t.pair_count = smaller(kPointerRows, task.rows - row);
          const float** next = sources;
          for (Index k = row; k < row + t.pair_count; ++k) {
            for (Index slot = first; slot < first + rows; ++slot) {
              const Index tap = slot / task.group_sources;
              const float* source = task.source[k * task.taps_y + tap / task.taps_x];
              *next++ = (source == nullptr ? task.zeros : source) + tap % task.taps_x * task.source_tap_step +
                        group * task.group_sources + slot % task.group_sources;
            }
          }
          tiles[rows](t, sources);
        }
      }
    }
  }
  add_bias(task);
}

constexpr int kDepthwiseTaps = 9;

// Up to nine taps of one vector of channels, over one row.
template <int kTaps, class... Masks>
MPSGRAD_INLINE void depthwise_row(const float* gradient, Index gradient_step, const float* const* sources,
                                  Index source_step, Index pixels, float* out, Index out_step, Index channel,
                                  const Masks&... mask) {
  Vec sums[kTaps];
  const float* source[kTaps];
#pragma GCC unroll 16
  for (int t = 0; t < kTaps; ++t) {
    sums[t] = Vec{};
    source[t] = sources[t] + channel;
  }
  Index offset = 0;
  for (Index pixel = 0; pixel < pixels; ++pixel) {
    const Vec g = load(gradient, mask...);
#pragma GCC unroll 16
    for (int t = 0; t < kTaps; ++t) {
      sums[t] += g * load(source[t] + offset, mask...);
    }
    gradient += gradient_step;
    offset += source_step;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTaps; ++t) {
    store(out + t * out_step, load(out + t * out_step, mask...) + sums[t], mask...);
  }
}

template <int kTaps>
void depthwise_block(const float* gradient, Index gradient_step, const float* const* sources, Index source_step,
                     Index pixels, float* out, Index out_step, Index first, Index last) {
  Index c = first;
  for (; c + kLanes <= last; c += kLanes) {
    depthwise_row<kTaps>(gradient + c, gradient_step, sources, source_step, pixels, out + c, out_step, c);
  }
  if (c < last) {
    depthwise_row<kTaps>(gradient + c, gradient_step, sources, source_step, pixels, out + c, out_step, c,
                         first_lanes(last - c));
  }
}

void depthwise(const WeightGradientTask& task) {
  using Function = void (*)(const float*, Index, const float* const*, Index, Index, float*, Index, Index, Index);
  static constexpr Function kFunctions[kDepthwiseTaps + 1] = {
      nullptr,           depthwise_block<1>, depthwise_block<2>, depthwise_block<3>, depthwise_block<4>,
      depthwise_block<5>, depthwise_block<6>, depthwise_block<7>, depthwise_block<8>, depthwise_block<9>};
  const Index channels = task.group_gradients;
  const Index first = task.first * kConvolutionBlock;
  const Index last = smaller(task.last * kConvolutionBlock, channels);
  const Index taps = task.taps_y * task.taps_x;
  const float* sources[kDepthwiseTaps];
  for (Index row = 0; row < task.rows; ++row) {
    for (Index tap = 0; tap < taps; tap += kDepthwiseTaps) {
      const Index count = smaller(kDepthwiseTaps, taps - tap);
      for (Index t = 0; t < count; ++t) {
        const float* source = task.source[row * task.taps_y + (tap + t) / task.taps_x];
        sources[t] = (source == nullptr ? task.zeros : source) + (tap + t) % task.taps_x * task.source_tap_step;
      }
      kFunctions[count](task.gradient[row], task.gradient_step, sources, task.source_step, task.width,
                        task.out + tap * channels, channels, first, last);
    }
  }
  add_bias(task);
}

}  // namespace

const WeightGradientLoops weight_gradient_loops{kLanes, by_source, by_gradient, depthwise, channel_sums};

}  // namespace mpsgrad::MPSGRAD_ISA
