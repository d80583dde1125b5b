// Results that are made of a run's values and of a tile of coefficients, which repeats along the
// run.
#pragma once

#include "cpu/simd/column_sums.hpp"
#include "cpu/simd/elements.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// A few coefficients of so many channels stay in a first-level cache while a run goes by.
inline constexpr std::int64_t kColumnsOfCoefficients = 1024;

// y[i] = value(j, x[i]...) for each value i of a run and its place j in a tile.
template <class Element, class Value, class... Sources>
MPSGRAD_INLINE void for_tiles(std::int64_t count, std::int64_t tile, Results<Element> y,
                              const Value& value, const Sources*... x) {
  for_rows<1>(count, tile, tile, kColumnsOfCoefficients,
              [&](auto /*rows*/, std::int64_t row, std::int64_t /*apart*/, std::int64_t begin,
                  std::int64_t end) {
                transform_run(begin, end, Results<Element>{y.at + row, y.streamed}, value,
                              (x + row)...);
              });
}

}  // namespace mpsgrad::MPSGRAD_ISA
