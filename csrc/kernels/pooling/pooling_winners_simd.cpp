// Winners of windows, and what they are given: comparisons go by vectors, winners lie anywhere.
#include "kernels/pooling/pooling_winners_simd.hpp"

#include <type_traits>

#include "cpu/simd/lanes.hpp"
#include "kernels/pooling/pooling_runs_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// 0, 1, 2...
template <class Ints>
MPSGRAD_INLINE Ints counting() {
  Ints numbers;
  for (std::size_t i = 0; i < sizeof(Ints) / sizeof(std::int32_t); ++i) {
    numbers[i] = static_cast<std::int32_t>(i);
  }
  return numbers;
}

template <class Element>
void of_columns(const PoolingSource<Element>* sources, Index count, Index fresh, Index elements,
                bool begins, Index first_row, Index pitch, float* best, std::int32_t* place) {
  constexpr Index kAhead = 512;
  struct {
    const Element* x;
    std::int32_t place;
  } rows[kMostPoolingRows];
  for (Index r = 0; r < count; ++r) {
    rows[r] = {sources[r].x, static_cast<std::int32_t>((sources[r].y - first_row) * pitch)};
  }
  for_blocks(elements, [=](auto block, Index e) MPSGRAD_MELT {
    using V = typename decltype(block)::Floats;
    using I = typename decltype(block)::Ints;
    const I here = counting<I>() + static_cast<std::int32_t>(e);
    V top = begins ? V{} - __builtin_inff() : block.floats(best + e);
    I at = begins ? here + rows[0].place : block.ints(place + e);
    for (Index r = fresh < count ? count - fresh : 0; r < count; ++r) {
      request_later(rows[r].x, e + kAhead);
    }
    for (Index r = 0; r < count; ++r) {
      const V value = block.floats(rows[r].x + e);
      at = value > top ? here + rows[r].place : at;
      top = value > top ? value : top;
    }
    block.put(best + e, top);
    block.put(place + e, at);
  });
}

// Of so many neighbouring blocks of elements, `step` from one tap to the next.
template <int kBlocks, class Block, class Element>
MPSGRAD_INLINE void give_blocks(Block block, const float* best, const std::int32_t* place,
                                Index taps, Index step, bool hides, const Element* gradient,
                                const PoolingPlaces& places) {
  using V = typename Block::Floats;
  using I = typename Block::Ints;
  constexpr Index kLanes = std::is_same_v<Block, OneElement> ? 1 : sizeof(V) / sizeof(float);
  V top[kBlocks];
  I here[kBlocks];
  for (Index b = 0; b < kBlocks; ++b) {
    top[b] = block.floats(best + b * kLanes);
    here[b] = block.ints(place + b * kLanes);
  }
  for (Index t = 1; t < taps; ++t) {
    for (Index b = 0; b < kBlocks; ++b) {
      const V value = block.floats(best + t * step + b * kLanes);
      const I at = block.ints(place + t * step + b * kLanes);
      // Of equal pixels of two columns the upper one is first.
      const I above = at < here[b] ? at : here[b];
      here[b] = value > top[b] ? at : value == top[b] ? above : here[b];
      top[b] = value > top[b] ? value : top[b];
    }
  }
  std::int32_t winners[kBlocks * kLanes];
  float shares[kBlocks * kLanes];
  for (Index b = 0; b < kBlocks; ++b) {
    I at = here[b];
    if (hides) {
      at = top[b] < V{} ? I{} - 1 : at;
    }
    at = at < places.begin ? I{} + places.end : at;
    const I there = at + (at < places.wrap ? I{} + places.before : I{} + places.after);
    block.put(winners + b * kLanes, at < places.end ? there : I{} - 1);
    block.put(shares + b * kLanes, block.floats(gradient + b * kLanes));
  }
  asm("" : "+m"(winners), "+m"(shares));  // to take vectors apart takes longer
  float* const array = places.array;
  for (Index k = 0; k < kBlocks * kLanes; ++k) {
    const std::int32_t at = winners[k];
    if (at >= 0) {
      array[at] += shares[k];
    }
  }
}

template <class Element>
void give(const PoolingRow& row, const float* best, const std::int32_t* place,
          const Element* gradient, const PoolingPlaces& given) {
  constexpr int kTogether = 4;
  constexpr Index kWide = kTogether * kWidest;
  const PoolingPlaces places = given;
  const Index step = row.dilation * row.channels;
  for (Index i = 0; i < row.run_count; ++i) {
    const PoolingRun run = row.runs[i];
    if (run.taps == 0) {
      continue;
    }
    const bool hides = row.meets_padding || run.meets_padding;
    for_windows(row, run, [=](Index from, Index window, Index elements) MPSGRAD_MELT {
      Index wide = 0;
      for (; wide + kWide <= elements; wide += kWide) {
        give_blocks<kTogether>(WholeBlock<kWidest>{}, best + from + wide, place + from + wide,
                               run.taps, step, hides, gradient + window + wide, places);
      }
      for_blocks(elements - wide, [=](auto block, Index c) MPSGRAD_MELT {
        give_blocks<1>(block, best + from + wide + c, place + from + wide + c, run.taps, step,
                       hides, gradient + window + wide + c, places);
      });
    });
  }
}

template <class Element>
constexpr PoolingWinnerLoops<Element> kLoops{&of_columns<Element>, &give<Element>};

}  // namespace

const ByElement<PoolingWinnerLoops> pooling_winner_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
