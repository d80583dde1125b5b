// The loop of Pad's gradient.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

template <class Element>
struct PadLoops {
  // out[i] = the sum of gradient[rows[r] + columns[c] + i] over all r, and of each over all c, in
  // that order. There is at least one of both.
  void (*fold)(const Element* gradient, const std::int64_t* rows, std::int64_t row_count,
               const std::int64_t* columns, std::int64_t column_count, std::int64_t count,
               Element* out);
};

MPSGRAD_LOOPS(ByElement<PadLoops>, pad_loops)

}  // namespace mpsgrad
