// Loops of the reductions.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

enum class FoldKind { Min, Max, Sum };
enum class PixelKind { Min, Max, Sum, ArgumentMin, ArgumentMax };

// No array overlaps another.
template <class Element>
struct ReductionLoops {
  // Joins `rows` rows of `count` elements, each `stride` elements after the one before, to what
  // `out` holds of every column, or if `first` to nothing.
  void (*fold)(FoldKind kind, const Element* x, std::int64_t stride, std::int64_t rows,
               std::int64_t count, float* out, bool first);
  // Rows of a few elements that follow each other joined to nothing. False, and nothing is done,
  // where these are not a few vectors.
  bool (*fold_narrow)(FoldKind kind, const Element* x, std::int64_t rows, std::int64_t count,
                      float* out);
  // What has been joined over `divisor`.
  void (*divide)(float* out, std::int64_t count, float divisor);
  // The channels of each pixel joined, times weight / divisor; or the place of the extreme.
  void (*pixels)(PixelKind kind, const Element* x, Element* out, std::int64_t pixels,
                 std::int64_t channels, float weight, float divisor);
  // Sums of products over the channels of each pixel, over `divisor`; 0: over how many of y are
  // not 0.
  void (*products)(const Element* x, const Element* y, Element* out, std::int64_t pixels,
                   std::int64_t channels, float divisor);
};

MPSGRAD_LOOPS(ByElement<ReductionLoops>, reduction_loops)

struct ShiftedProductLoops {
  // out[i * result_stride + m] = sum of x[i] * y[i + m * step] over the channels, for every pixel i
  // and m < shifts.
  void (*correlate)(const float* x, const float* y, float* out, std::int64_t pixels,
                    std::int64_t channels, std::int64_t shifts, std::int64_t step,
                    std::int64_t result_stride);
};

MPSGRAD_LOOPS(ShiftedProductLoops, shifted_product_loops)

}  // namespace mpsgrad
