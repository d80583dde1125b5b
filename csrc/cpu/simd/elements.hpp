// Loops over neighbouring elements that a compiler vectorises by itself, for float32 and for
// float16 alike.
#pragma once

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// y[i] = value(i, x[i]...) for i in [begin, end); y may be one of x.
template <class Value, class... Sources>
MPSGRAD_INLINE void transform(std::int64_t begin, std::int64_t end, float* y, const Value& value,
                              const Sources*... x) {
  MPSGRAD_VECTOR_LOOP
  for (std::int64_t i = begin; i < end; ++i) {
    y[i] = value(i, x[i]...);
  }
}

// So many elements of float16 are converted together. Compilers keep such an array in registers;
// GCC takes loops of up to 16 turns apart, into single numbers, before it looks for vectors.
inline constexpr std::int64_t kTogether = 32;

struct Tile {
  float values[kTogether];

  Tile() = default;
  MPSGRAD_INLINE Tile(const Half* from, std::int64_t count) {
    for_blocks(count,
               [&](auto block, std::int64_t i) { block.put(values + i, block.floats(from + i)); });
  }
  MPSGRAD_INLINE void put(Half* to, std::int64_t count) const {
    for_blocks(count,
               [&](auto block, std::int64_t i) { block.put(to + i, block.floats(values + i)); });
  }
};

template <class Value, class... Sources>
MPSGRAD_INLINE void transform_tile(std::int64_t first, std::int64_t count, Half* y,
                                   const Value& value, const Sources&... x) {
  Tile result;
  MPSGRAD_VECTOR_LOOP
  for (std::int64_t k = 0; k < count; ++k) {
    result.values[k] = value(first + k, x.values[k]...);
  }
  result.put(y + first, count);
}

template <class Value, class... Sources>
MPSGRAD_INLINE void transform(std::int64_t begin, std::int64_t end, Half* y, const Value& value,
                              const Sources*... x) {
  std::int64_t i = begin;
  for (; i + kTogether <= end; i += kTogether) {
    transform_tile(i, kTogether, y, value, Tile(x + i, kTogether)...);
  }
  if (i < end) {
    transform_tile(i, end - i, y, value, Tile(x + i, end - i)...);
  }
}

}  // namespace mpsgrad::MPSGRAD_ISA
