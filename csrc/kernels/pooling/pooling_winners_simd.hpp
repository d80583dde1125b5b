// Loops for the gradient of the maximum over windows of many pixels: the largest pixel of each
// column first, and then among a window's columns, for neighbouring windows share columns.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "kernels/pooling/pooling_simd.hpp"

namespace mpsgrad {

// Where the gradient's rows lie that a row of windows reads. Places are counted in elements from
// the first pixel of the first of them, as if rows followed each other `pitch` apart: those before
// `wrap` lie `before` further on in the array, the others `after`. What is given to places outside
// [begin, end) is dropped.
struct PoolingPlaces {
  float* array;
  std::int64_t pitch;
  std::int32_t begin, end;
  std::int32_t wrap, before, after;
};

// `count` pixels of a row, each `apart` elements after the one before.
struct PoolingPixels {
  std::int64_t count, channels, apart;
};

template <class Element>
struct PoolingWinnerLoops {
  using Source = PoolingSource<Element>;
  // The largest of each element of some source rows, the first of equal ones, and its place. Rows
  // after the first few go on with what those have left in `best` and `place`. The last `fresh`
  // rows are asked for ahead: no earlier windows have read them.
  void (*of_columns)(const Source* sources, std::int64_t count, std::int64_t fresh,
                     const PoolingPixels& pixels, bool begins, std::int64_t first_row,
                     std::int64_t pitch, float* best, std::int32_t* place);
  // Adds every window's gradient to the first of its largest pixels, unless a padding zero is
  // larger. Each window has one run. `best` and `place` are used up.
  void (*give)(const PoolingRow& row, float* best, std::int32_t* place, const Element* gradient,
               const PoolingPlaces& places);
};

MPSGRAD_LOOPS(ByElement<PoolingWinnerLoops>, pooling_winner_loops)

}  // namespace mpsgrad
