// Loops of the upsampling gradients: a row of incoming gradients against the rows of the source's
// gradient that it has part in.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

// Where one pixel of the source has gone along an axis: `count` results from `first` on, and of
// their weights the first.
struct UpsamplingSum {
  std::int32_t first, count, weight;
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
  // Adds to `count` targets, one or two.
  void (*gather)(const Element* gradient, const UpsamplingSums& sums,
                 const UpsamplingTarget* targets, std::int64_t count);
};

MPSGRAD_LOOPS(ByElement<UpsamplingLoops>, upsampling_loops)

}  // namespace mpsgrad
