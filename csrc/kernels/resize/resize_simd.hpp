// Loops of GridSample: where the results of a run lie, and what they are there.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

inline constexpr std::int64_t kGridRun = 256;  // most results of a run

// An axis of the image that is read. Positions count from pixel `first + i * step` of it.
struct GridAxis {
  std::int64_t channel;  // of the grid: 0 for x, 1 for y
  std::int64_t first;
  std::int64_t step;
  std::int64_t length;
  std::int64_t stride;  // elements from a pixel to the next
  bool clamps;          // else there are zeros outside
};

// What the results of a run are made of along an axis: pixels of the image, all of them there, as
// elements from the axis's begin, and their weights. A pixel whose weight, or the product of both
// axes' weights, is 0 is not read.
struct GridTaps {
  std::int64_t offset[2][kGridRun];
  float weight[2][kGridRun];
};

template <class Element>
struct GridSource {
  const Element* image;
  std::int64_t channels;
};

template <class Element>
struct GridLoops {
  // `grid` holds two numbers a result.
  void (*find)(const float* grid, std::int64_t results, const GridAxis& axis, GridTaps& taps);
  // Results `first` to `first + count` of a run.
  void (*sample)(const GridSource<Element>& source, const GridTaps& x, const GridTaps& y,
                 std::int64_t first, std::int64_t count, Results<Element> out);
};

MPSGRAD_LOOPS(ByElement<GridLoops>, grid_loops)

}  // namespace mpsgrad
