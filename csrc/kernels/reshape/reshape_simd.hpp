// The loop of Pad's gradient.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

// A row of copies is summed part by part: roundings of one long sum would add up.
inline constexpr std::int64_t kPadPart = 16;

template <class Element>
struct PadLoops {
  // Channel c of pixel p of the result, which lie `out_stride` elements apart, is the sum of
  // gradient[rows[r] + columns[p * column_count + k] + c] over all r and k: of each row by itself,
  // and of every kPadPart columns of it, in order. There is at least one of both.
  void (*fold)(const Element* gradient, const std::int64_t* rows, std::int64_t row_count,
               const std::int64_t* columns, std::int64_t column_count, std::int64_t pixels,
               std::int64_t channels, Element* out, std::int64_t out_stride);
};

MPSGRAD_LOOPS(ByElement<PadLoops>, pad_loops)

}  // namespace mpsgrad
