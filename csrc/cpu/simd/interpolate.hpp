// A row of results between the pixels of at most two source rows: what kernels that change the size
// of an image are made of.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// What one result is made of along an axis: the sum of weight times pixel.
struct InterpolationTaps {
  std::int32_t count;  // 0: it is zero
  std::int32_t pixel[2];
  float weight[2];
};

// A row of results: `count` source rows (at least one), and the columns. Rows are dense.
template <class Element>
struct InterpolatedRow {
  std::int32_t count;
  const Element* x[2];
  float weight[2];
  const InterpolationTaps* columns;
  std::int64_t pixels;  // of the result
  std::int64_t channels;
};

template <class Element>
struct InterpolationLoops {
  // Columns of one tap each, and one row: bits are copied.
  void (*copy)(const InterpolatedRow<Element>& row, Results<Element> out);
  void (*interpolate)(const InterpolatedRow<Element>& row, Results<Element> out);
};

MPSGRAD_LOOPS(ByElement<InterpolationLoops>, interpolation_loops)

}  // namespace mpsgrad
