// Loops over runs of whole pixels for kernels that centre and scale each channel.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// A ReLU of z = (x - mean) * scale + offset, whose slope is 1 from z = 0 on.
struct FusedReLU {
  const float* mean;
  const float* scale;
  const float* offset;
  float slope;  // below
};

// Arrays of coefficients and sums hold a tile: what one channel after the other needs, repeated
// until the tile is wide enough for vector registers. x and g hold `count` values, a run of whole
// pixels that starts at a tile's start; y overlaps none of them. Where there is a ReLU, g is
// multiplied by its slope.
template <class Element>
struct StandardizeLoops {
  // sum += x - shift and squares += (x - shift)^2. Rows of the tile are `step` values apart: the
  // tile itself, or a longer pixel of which it is a part.
  void (*moments)(const Element* x, std::int64_t count, const double* shift, double* sum,
                  double* squares, std::int64_t tile, std::int64_t step);
  // y = (x - mean) * scale + offset, or that times *relu where it is not >= 0
  void (*forward)(const Element* x, Results<Element> y, std::int64_t count, const float* mean,
                  const float* scale, const float* offset, std::int64_t tile, const float* relu);
  // sum_g += g and sum_gx += g * x, rows as before: a product of two float32 is exact in double,
  // where a mean can be taken off the sum at the end.
  void (*gradient_sums)(const Element* g, const Element* x, std::int64_t count, double* sum_g,
                        double* sum_gx, std::int64_t tile, std::int64_t step,
                        const FusedReLU* relu);
  // One tile after the other: g, g * (x - shift), and those of moments.
  void (*gradient_moments)(const Element* g, const Element* x, std::int64_t count,
                           const double* shift, double* sums, std::int64_t tile);
  // y = scale * g - (constant + (x - mean) * slope)
  void (*gradient)(const Element* g, const Element* x, Results<Element> y, std::int64_t count,
                   const float* mean, const float* scale, const float* constant, const float* slope,
                   std::int64_t tile, const FusedReLU* relu);
};

MPSGRAD_LOOPS(ByElement<StandardizeLoops>, standardize_loops)

}  // namespace mpsgrad
