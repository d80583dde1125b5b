// Arrays of one float32 a channel, as commands of the normalization kernels hold them.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "cpu/cpu_buffer.hpp"
#include "cpu/memory.hpp"
#include "cpu/rows.hpp"
#include "cpu/threads.hpp"

namespace mpsgrad::cpu {

// The values of so many whole pixels that they fill vector registers.
constexpr Index full_pixels_of(Index channels) {
  return channels * (16 / std::gcd(channels, Index{16}));
}

// How many values a tile of coefficients holds: whole pixels, and for few channels so many that
// vector registers are full and that a loop over a tile is more than its beginning and its end.
constexpr Index tile_of(Index channels) {
  constexpr Index kLong = 256;
  const Index full = full_pixels_of(channels);
  return channels >= kLong ? channels : full * ((kLong + full - 1) / full);
}

// Adds up the places of a tile that belong to one channel: first all pixels into the first few, a
// vector at a time, for going through one channel's places would be a long chain of additions.
inline void join_tile(double* sums, Index channels, Index tile, double* totals) {
  const Index full = std::min(full_pixels_of(channels), tile);
  for (Index first = full; first < tile; first += full) {
    for (Index i = 0; i < full; ++i) {
      sums[i] += sums[first + i];
    }
  }
  std::copy_n(sums, channels, totals);
  for (Index first = channels; first < full; first += channels) {
    for (Index c = 0; c < channels; ++c) {
      totals[c] += sums[first + c];
    }
  }
}

// How many pixels, whole tiles of them, the about equal runs have that rows of pixels are cut into
// where columns are summed; `floats` are all that is summed. Runs are long where they are read in
// place, for what processors foresee begins anew with each: an eighth of all if that is not much,
// else down to a 32nd, so that the work can be shared out. They are short where they are converted
// first, to stay in a near cache. Of long tiles a run has at least a few, or it would not be worth
// to load their sums.
constexpr Index pixels_of_runs(Index row_pixels, Index channels, Index floats, bool in_place) {
  constexpr Index kLeast = 16384;
  constexpr Index kLong = 65536;
  constexpr Index kMost = 524288;
  constexpr Index kConverted = 8192;
  const Index shared = std::max(floats / 32, std::min(floats / 8, kLong));
  const Index run_floats = in_place ? std::clamp(shared, kLeast, kMost) : kConverted;
  const Index tile = tile_of(channels);
  const Index tile_pixels = tile / channels;
  const Index tiles = chunks_of(row_pixels, tile_pixels);
  const Index runs = chunks_of(tiles, std::max<Index>(in_place ? 16 : 4, run_floats / tile));
  return std::min(row_pixels, chunks_of(tiles, runs) * tile_pixels);
}

// Doubles that start at a cache line: vectors of sums that lie across two lines take loops which
// load and store them for every row up to twice as long.
inline double* thread_doubles(int slot, Index count) {
  return reinterpret_cast<double*>(thread_scratch(slot, 2 * count));
}

// The same from the pool, 0 at first.
class Doubles {
 public:
  explicit Doubles(Index count)
      : block_(MemoryPool::instance().acquire(static_cast<std::size_t>(count) * sizeof(double))) {
    std::fill_n(data(), count, 0.0);
  }
  double* data() const { return reinterpret_cast<double*>(block_->data()); }

 private:
  std::shared_ptr<Block> block_;
};

// A tile whose first pixel is there.
template <class Number>
void repeat_pixel(Number* tile, Index channels, Index length) {
  for (Index there = channels; there < length; there *= 2) {
    std::copy_n(tile, std::min(there, length - there), tile + there);
  }
}

// Tiles of coefficients of the thread that fills them; those that help it only read.
template <std::size_t kTiles>
std::array<float*, kTiles> coefficient_tiles(Index tile) {
  constexpr int kSlot = 4;  // beside those for runs of pixels
  float* first = thread_scratch(kSlot, static_cast<Index>(kTiles) * tile);
  std::array<float*, kTiles> tiles;
  for (std::size_t i = 0; i < kTiles; ++i) {
    tiles[i] = first + static_cast<Index>(i) * tile;
  }
  return tiles;
}

// Held by a recorded command; without values where a kernel has no such array.
struct ChannelArray {
  std::shared_ptr<BufferMemory> memory;
  float* values() const { return memory ? reinterpret_cast<float*>(memory->bytes()) : nullptr; }
};

inline ChannelArray array_of(const std::shared_ptr<Buffer>& buffer) {
  return {buffer ? memory_of(*buffer) : nullptr};
}

}  // namespace mpsgrad::cpu
