// The operations and comparisons. Only <cstdint> here: loops of *_simd.cpp read it.
#pragma once

#include <cstdint>

namespace mpsgrad {

enum class ArithmeticKind { Add, Subtract, Multiply, Divide, Compare };

enum class ComparisonType : std::uint32_t {
  Equal = 0,
  NotEqual = 1,
  Less = 2,
  LessOrEqual = 3,
  Greater = 4,
  GreaterOrEqual = 5
};

}  // namespace mpsgrad
