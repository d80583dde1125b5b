// Loops of the upsampling kernels: a row of results against the source rows that it is made of, and
// a row of incoming gradients against the rows of the source's gradient that it has part in.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// What one result is made of along an axis: the sum of weight times pixel.
struct UpsamplingTaps {
  std::int32_t count;  // 0: it is zero
  std::int32_t pixel[2];
  float weight[2];
};

// Where one pixel of the source has gone along an axis: `count` results from `first` on, and of
// their weights the first.
struct UpsamplingSum {
  std::int32_t first, count, weight;
};

// A row of results: `count` source rows (at least one), and the columns. Rows are dense.
template <class Element>
struct UpsamplingRow {
  std::int32_t count;
  const Element* x[2];
  float weight[2];
  const UpsamplingTaps* columns;
  std::int64_t pixels;  // of the result
  std::int64_t channels;
};

// A row of the source's gradient that a row of incoming gradients is added to, `weight` times.
struct UpsamplingTarget {
  float* row;
  float weight;
  bool begins;  // nothing has been added yet: what the row holds does not count
};

struct UpsamplingSums {
  const UpsamplingSum* columns;
  const float* weights;
  std::int64_t pixels;  // of the source
  std::int64_t channels;
};

template <class Element>
struct UpsamplingLoops {
  // Columns of one tap each, and one row: bits are copied.
  void (*copy)(const UpsamplingRow<Element>& row, Results<Element> out);
  void (*interpolate)(const UpsamplingRow<Element>& row, Results<Element> out);
  // Adds to `count` targets, one or two.
  void (*gather)(const Element* gradient, const UpsamplingSums& sums,
                 const UpsamplingTarget* targets, std::int64_t count);
};

MPSGRAD_LOOPS(ByElement<UpsamplingLoops>, upsampling_loops)

}  // namespace mpsgrad
