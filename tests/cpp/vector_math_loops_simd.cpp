// One loop around each function of vector_math.hpp, for vector_math_test.cpp.
#include "vector_math_loops.hpp"

#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;
using In = const float*;
using Out = float*;

#define MPSGRAD_LOOP(name)                   \
  void name##_loop(In x, Out out, Index n) { \
    MPSGRAD_VECTOR_LOOP                      \
    for (Index i = 0; i < n; ++i) {          \
      out[i] = MPSGRAD_ISA::name(x[i]);      \
    }                                        \
  }
MPSGRAD_LOOP(exp)
MPSGRAD_LOOP(expm1)
MPSGRAD_LOOP(log)
MPSGRAD_LOOP(log1p)
MPSGRAD_LOOP(tanh)
MPSGRAD_LOOP(sigmoid)
MPSGRAD_LOOP(sigmoid_slope)
MPSGRAD_LOOP(softplus)
MPSGRAD_LOOP(gelu)
MPSGRAD_LOOP(gelu_slope)
MPSGRAD_LOOP(sqrt)
MPSGRAD_LOOP(sign)
#undef MPSGRAD_LOOP

void pow_scalar_loop(In x, float y, Out out, Index n) {
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < n; ++i) {
    out[i] = MPSGRAD_ISA::pow(x[i], y);
  }
}

void pow_loop(In x, In y, Out out, Index n) {
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < n; ++i) {
    out[i] = MPSGRAD_ISA::pow(x[i], y[i]);
  }
}

}  // namespace

const VectorMathLoops vector_math_loops{
    exp_loop,     expm1_loop,         log_loop,        log1p_loop, tanh_loop,
    sigmoid_loop, sigmoid_slope_loop, softplus_loop,   gelu_loop,  gelu_slope_loop,
    sqrt_loop,    sign_loop,          pow_scalar_loop, pow_loop};

}  // namespace mpsgrad::MPSGRAD_ISA
