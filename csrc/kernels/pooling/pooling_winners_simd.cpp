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

// A source row, and its first element's place.
template <class Element>
struct RowPlace {
  const Element* x;
  std::int32_t place;
};

// Compares the rows' elements from `from` on, kVectors blocks of them, with each other and, unless
// this is where it begins, with `best` from `to` on.
template <Index kVectors, class Block, class Element>
MPSGRAD_INLINE void compare_rows(Block block, const RowPlace<Element>* rows, Index count,
                                 Index fresh, bool begins, Index from, Index to, float* best,
                                 std::int32_t* place) {
  using V = typename Block::Floats;
  using I = typename Block::Ints;
  constexpr Index kLanes = sizeof(V) / sizeof(float);
  constexpr Index kAhead = 512;
  const auto here = [=](Index v) MPSGRAD_MELT {
    return counting<I>() + static_cast<std::int32_t>(to + v * kLanes);
  };
  V top[kVectors];
  I row[kVectors];
  for (Index v = 0; v < kVectors; ++v) {
    const Index at = to + v * kLanes;
    top[v] = begins ? V{} - __builtin_inff() : block.floats(best + at);
    row[v] = begins ? I{} + rows[0].place : block.ints(place + at) - here(v);
  }
  for (Index r = fresh < count ? count - fresh : 0; r < count; ++r) {
    for (Index v = 0; v < kVectors; ++v) {
      request_later(rows[r].x, from + v * kLanes + kAhead);
    }
  }
  for (Index r = 0; r < count; ++r) {
    const I its = I{} + rows[r].place;
    for (Index v = 0; v < kVectors; ++v) {
      const V value = block.floats(rows[r].x + from + v * kLanes);
      row[v] = value > top[v] ? its : row[v];
      top[v] = value > top[v] ? value : top[v];
    }
  }
  for (Index v = 0; v < kVectors; ++v) {
    const Index at = to + v * kLanes;
    block.put(best + at, top[v]);
    block.put(place + at, row[v] + here(v));
  }
}

template <class Element>
void of_columns(const PoolingSource<Element>* sources, Index count, Index fresh,
                const PoolingPixels& pixels, bool begins, Index first_row, Index pitch, float* best,
                std::int32_t* place) {
  RowPlace<Element> rows[kMostPoolingRows];
  for (Index r = 0; r < count; ++r) {
    rows[r] = {sources[r].x, static_cast<std::int32_t>((sources[r].y - first_row) * pitch)};
  }
  const bool dense = pixels.apart == pixels.channels;
  const Index runs = dense ? 1 : pixels.count;
  const Index elements = dense ? pixels.count * pixels.channels : pixels.channels;
  constexpr Index kTogether = kWidest >= 16 ? 4 : 2;  // their maxima and rows in registers
  for (Index i = 0; i < runs; ++i) {
    const Index from = i * pixels.apart;
    const Index to = i * pixels.channels;
    for_stretches<kTogether>(elements, [=](auto vectors, auto block, Index e) MPSGRAD_MELT {
      compare_rows<decltype(vectors){}>(block, rows, count, fresh, begins, from + e, to + e, best,
                                        place);
    });
  }
}

// The larger of two places' values, of equal ones the upper left one.
template <class V, class I>
MPSGRAD_INLINE void choose(V& top, I& here, V value, I at) {
  const I first = at < here ? at : here;
  here = value > top ? at : value == top ? first : here;
  top = value > top ? value : top;
}

// Replaces every element of `best` by the larger of it and the one `step` further, and its place.
void pair_up(float* best, std::int32_t* place, Index elements, Index step) {
  for_blocks(elements, [=](auto block, Index e) MPSGRAD_MELT {
    auto top = block.floats(best + e);
    auto at = block.ints(place + e);
    choose(top, at, block.floats(best + e + step), block.ints(place + e + step));
    block.put(best + e, top);
    block.put(place + e, at);
  });
}

// What a window chooses among: so many elements, so far apart.
struct Candidates {
  Index count, step;
};

// Of so many neighbouring blocks of elements.
template <Index kBlocks, class Block, class Element>
MPSGRAD_INLINE void give_blocks(Block block, const float* best, const std::int32_t* place,
                                Candidates of, bool hides, const Element* gradient,
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
  for (Index t = 1; t < of.count; ++t) {
    for (Index b = 0; b < kBlocks; ++b) {
      const Index other = t * of.step + b * kLanes;
      choose(top[b], here[b], block.floats(best + other), block.ints(place + other));
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
    // What is dropped changes nothing: minus zero for the array's first element.
    const auto is_kept = at < places.end;
    block.put(winners + b * kLanes, is_kept ? there : I{});
    block.put(shares + b * kLanes,
              is_kept ? block.template floats<Element>(gradient + b * kLanes) : V{} - 0.0F);
  }
  if constexpr (kBlocks * kLanes > 1) {
    asm("" : "+m"(winners), "+m"(shares));  // to take vectors apart takes longer
  }
  float* const array = places.array;
#pragma GCC unroll 8
  for (Index k = 0; k < kBlocks * kLanes; ++k) {
    array[winners[k]] += shares[k];
  }
}

template <class Element>
MPSGRAD_INLINE void give_run(const PoolingRow& row, const PoolingRun& run, const float* best,
                             const std::int32_t* place, Candidates of, const Element* gradient,
                             const PoolingPlaces& given) {
  const PoolingPlaces places = given;
  const bool hides = row.meets_padding || run.meets_padding;
  for_windows(row, run, [=](Index from, Index window, Index elements) MPSGRAD_MELT {
    for_stretches<4>(elements, [=](auto vectors, auto block, Index c) MPSGRAD_MELT {
      give_blocks<decltype(vectors){}>(block, best + from + c, place + from + c, of, hides,
                                       gradient + window + c, places);
    });
  });
}

// How many columns are compared beforehand, so that two comparisons are left for each window: in
// rounds over all elements, which also write what they find.
Index most_paired(const PoolingRow& row, Index taps) {
  constexpr Index kAlone = 8;  // one element takes as long as so many in a vector
  const bool alone = row.stride > 1 && row.channels < kAlone;
  Index paired = 1;
  Index rounds = 0;
  for (; 2 * paired <= taps; paired *= 2) {
    ++rounds;
  }
  const Index beforehand = row.stride * rounds * 3 / 2 + 1;
  return beforehand < (taps - 1) * (alone ? kAlone : 1) ? paired : 1;
}

template <class Element>
void give(const PoolingRow& row, float* best, std::int32_t* place, const Element* gradient,
          const PoolingPlaces& places) {
  const Index step = row.dilation * row.channels;
  Index taps = 0;
  Index columns = 0;
  for (Index i = 0; i < row.run_count; ++i) {
    const PoolingRun& run = row.runs[i];
    const Index past =
        run.pixel + (run.windows - 1) * row.stride + (run.taps - 1) * row.dilation + 1;
    taps = run.taps > taps ? run.taps : taps;
    columns = run.taps > 0 && past > columns ? past : columns;
  }
  const Index most = most_paired(row, taps);
  for (Index paired = 1; paired <= most; paired *= 2) {
    for (Index i = 0; i < row.run_count; ++i) {
      const PoolingRun& run = row.runs[i];
      if (run.taps < paired || (run.taps >= 2 * paired && paired < most)) {
        continue;
      }
      const Index rest = run.taps - paired;
      const Candidates of = most == 1 ? Candidates{run.taps, step}
                                      : Candidates{rest > 0 ? Index{2} : Index{1}, rest * step};
      give_run(row, run, best, place, of, gradient, places);
    }
    if (paired < most) {
      pair_up(best, place, columns * row.channels - (2 * paired - 1) * step, paired * step);
    }
  }
}

template <class Element>
constexpr PoolingWinnerLoops<Element> kLoops{&of_columns<Element>, &give<Element>};

}  // namespace

const ByElement<PoolingWinnerLoops> pooling_winner_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
