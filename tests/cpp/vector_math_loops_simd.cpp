// Loops around each function of vector_math.hpp, of packs and of floats, for vector_math_test.cpp.
#include "vector_math_loops.hpp"

#include "cpu/simd/pack_loops.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;
using In = const float*;
using Out = float*;

template <class Number>
MPSGRAD_INLINE Number exp_of_minus_abs(const Number& x) {
  return exp_of_negative(minus_abs(x));
}

template <class Value, class... Sources>
void in_floats(Index count, Out out, const Value& value, Sources... x) {
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < count; ++i) {
    out[i] = value(x[i]...);
  }
}

#define MPSGRAD_LOOPS_OF(name)                                                          \
  void name##_packs(In x, Out out, Index n) {                                           \
    const auto value = [](const auto& v) MPSGRAD_MELT { return MPSGRAD_ISA::name(v); }; \
    transform_packs(n, out, value, x);                                                  \
  }                                                                                     \
  void name##_floats(In x, Out out, Index n) {                                          \
    in_floats(n, out, [](float v) MPSGRAD_MELT { return MPSGRAD_ISA::name(v); }, x);    \
  }
MPSGRAD_LOOPS_OF(exp)
MPSGRAD_LOOPS_OF(exp_of_minus_abs)
MPSGRAD_LOOPS_OF(expm1)
MPSGRAD_LOOPS_OF(log)
MPSGRAD_LOOPS_OF(log1p)
MPSGRAD_LOOPS_OF(tanh)
MPSGRAD_LOOPS_OF(sigmoid)
MPSGRAD_LOOPS_OF(sigmoid_slope)
MPSGRAD_LOOPS_OF(softplus)
MPSGRAD_LOOPS_OF(gelu)
MPSGRAD_LOOPS_OF(gelu_slope)
MPSGRAD_LOOPS_OF(sign)
#undef MPSGRAD_LOOPS_OF

// There are no packs of these.
void sqrt_floats(In x, Out out, Index n) {
  in_floats(n, out, [](float v) MPSGRAD_MELT { return MPSGRAD_ISA::sqrt(v); }, x);
}
void pow_scalar_floats(In x, float y, Out out, Index n) {
  in_floats(n, out, [y](float v) MPSGRAD_MELT { return MPSGRAD_ISA::pow(v, y); }, x);
}
void pow_floats(In x, In y, Out out, Index n) {
  in_floats(n, out, [](float v, float w) MPSGRAD_MELT { return MPSGRAD_ISA::pow(v, w); }, x, y);
}

}  // namespace

const VectorMathLoops vector_math_loops{{exp_packs, exp_floats},
                                        {exp_of_minus_abs_packs, exp_of_minus_abs_floats},
                                        {expm1_packs, expm1_floats},
                                        {log_packs, log_floats},
                                        {log1p_packs, log1p_floats},
                                        {tanh_packs, tanh_floats},
                                        {sigmoid_packs, sigmoid_floats},
                                        {sigmoid_slope_packs, sigmoid_slope_floats},
                                        {softplus_packs, softplus_floats},
                                        {gelu_packs, gelu_floats},
                                        {gelu_slope_packs, gelu_slope_floats},
                                        {nullptr, sqrt_floats},
                                        {sign_packs, sign_floats},
                                        pow_scalar_floats,
                                        pow_floats};

}  // namespace mpsgrad::MPSGRAD_ISA
