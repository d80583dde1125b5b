// Loops over the functions of vector_math.hpp, compiled for every instruction set as the library's
// own loops are.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

struct VectorMathLoops {
  struct Unary {
    using Loop = void (*)(const float* x, float* out, std::int64_t n);
    Loop packs;  // null if there are none of it
    Loop floats;

    Loop best() const { return packs ? packs : floats; }
  };

  Unary exp, exp_of_minus_abs, expm1, log, log1p, tanh, sigmoid, sigmoid_slope, softplus, gelu,
      gelu_slope, sqrt, sign;
  // x to one exponent, and to as many as there are x.
  void (*pow_scalar)(const float* x, float y, float* out, std::int64_t n);
  void (*pow)(const float* x, const float* y, float* out, std::int64_t n);
};

MPSGRAD_LOOPS(VectorMathLoops, vector_math_loops)

}  // namespace mpsgrad
