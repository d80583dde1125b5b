// Results that are stored while the vector of channels after theirs is computed. A processor takes
// a load for one of what is about to be stored, and waits for that, if both addresses end in the
// same twelve bits. Those of pixels a multiple of 2 KB apart end in one or two ways, so that where
// an image and its result begin alike nearly every load would wait. A vector later, what is stored
// ends like operands that have been loaded already.
#pragma once

#include <cstdint>

#include "kernels/convolution/depthwise_walk_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

class LateResults {
 public:
  static constexpr Index kRows = 15;  // that there is room for, of kWalkPixels each

  // Whether results at `result`, a vector of channels later, miss what is loaded from `operand` on,
  // and would not otherwise. Pixels of both are `step` apart.
  static bool help(const float* operand, const float* result, Index step) {
    const std::uintptr_t before = place(operand) - place(result);
    return step * Index{sizeof(float)} % kPlaces == 0 &&
           before % kPlaces < std::uintptr_t{sizeof(Vec)};
  }

  // Room for a row of results of a vector of channels, the first of which belongs to `result`. It
  // ends like neither these nor their operands, and like other rows of the vector before.
  MPSGRAD_INLINE float* room(Index vector, const float* result, Index row) {
    const auto way = static_cast<Index>(place(result) % kPlaces / kLine);
    return memory_[vector % 2] +
           (way + kBeside + row / kTogether * kLines + row % kTogether * kRowLines) * kLineFloats;
  }

 private:
  static constexpr Index kPlaces = 2048;  // bytes
  static constexpr Index kLines = kPlaces / kLine;
  static constexpr Index kLineFloats = kLine / Index{sizeof(float)};
  static constexpr Index kBeside = 2;     // lines between results and their room
  static constexpr Index kTogether = 3;   // rows that end in different ways
  static constexpr Index kRowLines = 10;  // from one of them to the next
  static_assert(kRows % kTogether == 0 && kWalkPixels <= kRowLines &&
                kBeside + kTogether * kRowLines <= kLines);

  static std::uintptr_t place(const float* at) { return reinterpret_cast<std::uintptr_t>(at); }

  alignas(kPlaces) float memory_[2][(kRows / kTogether + 1) * kLines * kLineFloats];
};

}  // namespace mpsgrad::MPSGRAD_ISA
