// Loops of the upsampling gradients: rows of incoming gradients against a row of the source's
// gradient.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// Where one pixel of the source has gone along an axis: `count` results from `first` on, and of
// their weights the first.
struct UpsamplingSum {
  std::int32_t first, count, weight;
};

struct UpsamplingColumns {
  const UpsamplingSum* sums;
  const float* weights;
  std::int64_t pixels;  // of the source
  std::int64_t channels;
};

// The rows of incoming gradients that have part in a row of the source's gradient and in no row
// before it. Those from `shared` on have part in the next row too.
template <class Element>
struct UpsamplingRows {
  const Element* first;
  std::int64_t row_stride, pixel_stride;  // elements
  std::int64_t count, shared;
  const float* weights;       // in the row
  const float* next_weights;  // in the next row, of those that are shared
};

template <class Element>
struct UpsamplingLoops {
  // Sums of blocks of pixels. Adds them to what others have `begun`, if not null, which makes the
  // row complete, and those of shared rows into `next`, which is overwritten.
  void (*gather)(const UpsamplingRows<Element>& rows, const UpsamplingColumns& columns,
                 const float* begun, Results<Element> out, float* next);
  // The same in two steps, by way of sums of whole rows. Adds so many pixels of the rows to what
  // others have begun in `sums`, if they have, and those of shared ones into `next`.
  void (*fold_rows)(const UpsamplingRows<Element>& rows, std::int64_t pixels, std::int64_t channels,
                    bool begun, float* sums, float* next);
  void (*sum_columns)(const UpsamplingColumns& columns, const float* sums, Results<Element> out);
};

MPSGRAD_LOOPS(ByElement<UpsamplingLoops>, upsampling_loops)

}  // namespace mpsgrad
