// Loops over slices: some channels, whole groups, of every pixel of one image. They are taken from
// sums to results while a cache of the core holds them, so that memory is read once.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

// So many channels of so many pixels, which begin `step` elements apart in each image.
struct GroupSlice {
  std::int64_t pixels, step, channels;
};

// Arrays are of the slice's first channel on, in images those of its first pixel; y overlaps no
// other. Sums are written, one array of `channels` after the other.
template <class Element>
struct GroupSliceLoops {
  // Of x - shift and of its square.
  void (*moments)(const GroupSlice& slice, const Element* x, const double* shift, double* sums);
  // Of g, of g * (x - shift), and those of moments.
  void (*gradient_moments)(const GroupSlice& slice, const Element* g, const Element* x,
                           const double* shift, double* sums);
  // y = (x - mean) * scale + offset
  void (*forward)(const GroupSlice& slice, const Element* x, Results<Element> y, const float* mean,
                  const float* scale, const float* offset);
  // y = scale * g - (constant + (x - mean) * slope)
  void (*gradient)(const GroupSlice& slice, const Element* g, const Element* x, Results<Element> y,
                   const float* mean, const float* scale, const float* constant,
                   const float* slope);
};

MPSGRAD_LOOPS(ByElement<GroupSliceLoops>, group_slice_loops)

}  // namespace mpsgrad
