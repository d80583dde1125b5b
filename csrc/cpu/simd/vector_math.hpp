// Elementary functions of float32 for *_simd.cpp loops: no branches, no tables, no calls, so that a
// loop around one is vectorised. Unlike a compiler's fast-math versions they keep the special cases
// of IEEE arithmetic: NaN comes through (its payload may not), infinities, signed zeros, overflow
// and denormal results are those of the exact function rounded. They assume rounding to nearest and
// denormals not flushed.
//
// docs/numerics.md has a table of errors, as tests/cpp/vector_math_test.cpp measures and limits
// them on each instruction set. A compiler may move one in the second decimal by contracting
// differently. Results are the same bits wherever in a loop an element lies.
#pragma once

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// a * b + c, rounded once where the instruction set can.
MPSGRAD_INLINE float multiply_add(float a, float b, float c) {
#if MPSGRAD_HAS_FMA
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

MPSGRAD_INLINE double multiply_add(double a, double b, double c) {
#if MPSGRAD_HAS_FMA
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// c0 + x * (c1 + x * (c2 + ...)).
template <class T>
MPSGRAD_INLINE T polynomial(T /*x*/, T c0) {
  return c0;
}
template <class T, class... Rest>
MPSGRAD_INLINE T polynomial(T x, T c0, Rest... rest) {
  return multiply_add(x, polynomial(x, rest...), c0);
}

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNaN = __builtin_nanf("");

MPSGRAD_INLINE float abs(float x) { return bits_float(float_bits(x) & ~kSignBit); }

// The magnitude of x with the sign of `sign`.
MPSGRAD_INLINE float copysign(float x, float sign) {
  return bits_float((float_bits(x) & ~kSignBit) | (float_bits(sign) & kSignBit));
}

// 1, -1, or x itself for zeros and NaN.
MPSGRAD_INLINE float sign(float x) {
  const float not_positive = x < 0.0F ? -1.0F : x;
  return x > 0.0F ? 1.0F : not_positive;
}

// Correctly rounded; NaN below zero.
MPSGRAD_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }

namespace detail {

// Adding it to a number below 2^22 in magnitude rounds that number to an integer, found in the low
// bits of the sum.
inline constexpr float kRounder = 0x1.8p23F;
inline constexpr std::uint32_t kRounderBits = 0x4b400000U;
// The bits of sqrt(1/2): significands are taken from [sqrt(1/2), sqrt(2)).
inline constexpr std::uint32_t kRootHalfBits = 0x3f3504f3U;
// ln(2) in two parts; products of the first with exponents are exact.
inline constexpr float kLn2High = 0x1.62e4p-1F;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20F;
inline constexpr float kLog2E = 0x1.715476p0F;

// 2^n for -127 < n < 128, n in two's complement.
MPSGRAD_INLINE float power_of_two(std::uint32_t n) { return bits_float((n + 127U) << 23U); }

MPSGRAD_INLINE std::uint32_t shift_right_signed(std::uint32_t n, int by) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> by);
}

// A number m * 2^n whose exponent may lie outside float32's range.
struct Scaled {
  float m;
  std::uint32_t n;
};

// Rounds at most once, also when the result is denormal, for -250 < n < 250 and 2^-50 < |m| < 2^2.
MPSGRAD_INLINE float rounded(Scaled x) {
  const std::uint32_t half = shift_right_signed(x.n, 1);
  return x.m * power_of_two(half) * power_of_two(x.n - half);
}

// x - n * ln(2), for |x| < 2^20.
MPSGRAD_INLINE float remainder_of_ln2(float x, float n) {
  return multiply_add(n, -kLn2Low, multiply_add(n, -kLn2High, x));
}

// x = n * ln(2) + r with |r| <= ln(2) / 2, for |x| < 2^20.
struct Reduced {
  float r;
  std::uint32_t n;
};

MPSGRAD_INLINE Reduced reduce_by_ln2(float x) {
  const float shifted = multiply_add(x, kLog2E, kRounder);
  return {remainder_of_ln2(x, shifted - kRounder), float_bits(shifted) - kRounderBits};
}

// Added to a number it changes nothing, not even the sign of a zero: compilers leave it out.
inline constexpr float kNothing = -0.0F;

// e^r - 1 for |r| <= ln(2) / 2, as exactly as 1 is added to it.
MPSGRAD_INLINE float expm1_short(float r) {
  const float p = polynomial(r, 0x1.fffff8p-2F, 0x1.55548ep-3F, 0x1.555b98p-5F, 0x1.123bd8p-7F,
                             0x1.685148p-10F);
  return multiply_add(r * r, p, r);
}

// e^(x + tail), |tail| < 2^-5 |x| or so, without limits on the result; |x| < 150.
MPSGRAD_INLINE Scaled exp_scaled(float x, float tail) {
  const Reduced reduced = reduce_by_ln2(x);
  return {1.0F + expm1_short(reduced.r + tail), reduced.n};
}

// e^(x + tail) * 2^100 for -150 < x <= 0, so that nothing is denormal yet; `tail` as above.
MPSGRAD_INLINE float exp_enlarged(float x, float tail) {
  // The number that rounds also adds what makes n the exponent of 2^(n + 100).
  constexpr float kBiased = kRounder + 227.0F;
  const float shifted = multiply_add(x, kLog2E, kBiased);
  const float r = remainder_of_ln2(x, shifted - kBiased) + tail;
  return (1.0F + expm1_short(r)) * bits_float(float_bits(shifted) << 23U);
}
inline constexpr float kReduced = 0x1p-100F;

// e^r - 1 for |r| <= ln(2) / 2.
MPSGRAD_INLINE float expm1_fraction(float r) {
  const float p = polynomial(r, 0.5F, 0x1.555554p-3F, 0x1.5554fp-5F, 0x1.111306p-7F,
                             0x1.6d4372p-10F, 0x1.9e0c28p-13F);
  return multiply_add(r * r, p, r);
}

// e^x - 1 for x <= 0 and NaN; the sign of a zero is lost.
MPSGRAD_INLINE float expm1_of_negative(float x) {
  const Reduced reduced = reduce_by_ln2(x < -30.0F ? -30.0F : x);
  const float power = power_of_two(reduced.n);
  return multiply_add(expm1_fraction(reduced.r), power, power - 1.0F);
}

// 2^r for |r| <= 1/2.
MPSGRAD_INLINE float exp2_fraction(float r) {
  return polynomial(r, 1.0F, 0x1.62e43p-1F, 0x1.ebfbd8p-3F, 0x1.c6af78p-5F, 0x1.3b30bp-7F,
                    0x1.5f0a66p-10F, 0x1.3f9068p-13F);
}

// x = 2^k * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for positive finite x, denormal ones too;
// anything for other x.
struct Logarithmand {
  float k;
  float f;
};

MPSGRAD_INLINE Logarithmand split_logarithmand(float x) {
  const bool denormal = x < 0x1p-126F;
  const float scaled = denormal ? x * 0x1p23F : x;
  const float shift = denormal ? -23.0F : 0.0F;
  const std::uint32_t bits = float_bits(scaled) - kRootHalfBits;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  return {exponent + shift, bits_float((bits & 0x7fffffU) + kRootHalfBits) - 1.0F};
}

// ln(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)].
MPSGRAD_INLINE float log_remainder(float f) {
  const float p = polynomial(f, 0x1.55552ep-2F, -0x1.000216p-2F, 0x1.99b034p-3F, -0x1.548186p-3F,
                             0x1.21cd2cp-3F, -0x1.0c0eb4p-3F, 0x1.0ae6ep-3F, -0x1.4c628cp-4F);
  return f * f * multiply_add(f, p, -0.5F);
}

// k ln(2) + ln(1 + f), smallest parts first.
MPSGRAD_INLINE float log_sum(float k, float f) {
  const float low = multiply_add(k, kLn2Low, log_remainder(f));
  return multiply_add(k, kLn2High, f + low);
}

// `finite` where x is positive and finite; the logarithm of any other x.
MPSGRAD_INLINE float with_log_limits(float x, float finite) {
  const float positive = x < kInfinity ? finite : x;
  const float rest = x == 0.0F ? -kInfinity : kNaN;
  return x > 0.0F ? positive : rest;
}

// The upper tail of the standard normal distribution from |x| on is
// exponential * kReduced * numerator / denominator, exponential being e^(-x^2 / 2) * 2^100. The
// denominator is sqrt(2 pi) |x| * numerator and a rest that soon becomes small beside it, so that
// most of an error of the numerator cancels. `magnitude` is |x|, limited to where results have long
// been rounded to 0; NaN is lost.
struct NormalTail {
  float exponential;
  float numerator;
  float denominator;
  float magnitude;
};

MPSGRAD_INLINE NormalTail normal_tail(float x) {
  // In integers: GCC would make all that follows conditional on the comparison of floats.
  const std::uint32_t bits = float_bits(x) & ~kSignBit;
  constexpr std::uint32_t kMost = __builtin_bit_cast(std::uint32_t, 15.0F);
  const float a = bits_float(bits < kMost ? bits : kMost);
  // a^2 in two parts: its rounding would be a hundredfold in the exponential.
#if MPSGRAD_HAS_FMA
  const float square = a * a;
  const float rest = __builtin_fmaf(a, a, -square);
#else
  const float high = bits_float(float_bits(a) & 0xfffff000U);
  const float square = high * high;
  const float rest = (a - high) * (a + high);
#endif
  const float b = a * 0x1.40d932p1F;
  const float numerator =
      polynomial(b, 0x1.8p-1F, 0x1.17dceap-2F, 0x1.815af8p-5F, 0x1.1aef12p-8F, 0x1.805376p-13F);
  const float beside =
      polynomial(b, 0x1.8p0F, 0x1.18a67cp-2F, 0x1.c09d18p-6F, 0x1.2c7712p-10F, 0x1.8d3fdp-25F);
  return {exp_enlarged(-0.5F * square, -0.5F * rest), numerator, multiply_add(b, numerator, beside),
          a};
}

inline constexpr float kInverseRootTwoPi = 0x1.988454p-2F;

}  // namespace detail

// e^x.
MPSGRAD_INLINE float exp(float x) {
  const float finite = detail::rounded(detail::exp_scaled(x, detail::kNothing));
  const float below = x > 89.0F ? kInfinity : finite;
  return x < -104.0F ? 0.0F : below;
}

// The same for x <= 0 and NaN, in fewer steps.
MPSGRAD_INLINE float exp_of_negative(float x) {
  return detail::exp_enlarged(x < -104.0F ? -104.0F : x, detail::kNothing) * detail::kReduced;
}

// e^x - 1, without cancellation at small x.
MPSGRAD_INLINE float expm1(float x) {
  const float below = x > 89.0F ? 89.0F : x;
  const float limited = below < -30.0F ? -30.0F : below;
  const detail::Reduced reduced = detail::reduce_by_ln2(limited);
  const float fraction = detail::expm1_fraction(reduced.r);
  // 2^n (1 + fraction) - 1; 2^128 is no float, and 2^127 then stands for it.
  const bool top = x > 88.0F;
  const float power = detail::power_of_two(reduced.n - (top ? 1U : 0U));
  const float result = multiply_add(fraction, power, power - 1.0F) * (top ? 2.0F : 1.0F);
  return copysign(result, x);
}

// ln(x).
MPSGRAD_INLINE float log(float x) {
  const detail::Logarithmand split = detail::split_logarithmand(x);
  return detail::with_log_limits(x, detail::log_sum(split.k, split.f));
}

// ln(1 + x), without cancellation at small x.
MPSGRAD_INLINE float log1p(float x) {
  const float u = 1.0F + x;
  const std::uint32_t bits = float_bits(u) - detail::kRootHalfBits;
  const std::uint32_t exponent = detail::shift_right_signed(bits, 23);
  const float k = static_cast<float>(static_cast<std::int32_t>(exponent));
  // (1 + x) / 2^k - 1 from x itself, since u is rounded; for large x that no longer matters.
  const float scale = detail::power_of_two(0U - exponent);
  const float from_x = multiply_add(x, scale, scale - 1.0F);
  const float from_u = bits_float((bits & 0x7fffffU) + detail::kRootHalfBits) - 1.0F;
  const float f = x < 0x1p30F ? from_x : from_u;
  return copysign(detail::with_log_limits(u, detail::log_sum(k, f)), x);
}

// x^y with the special cases of IEEE 754: 1 for y = 0 and for x = 1 whatever the other is, NaN for
// finite negative x unless y is an integer.
MPSGRAD_INLINE float pow(float x, float y) {
  const float a = abs(x);
  // y * log2(a) in double: its absolute error is a relative one of the result.
  const detail::Logarithmand split = detail::split_logarithmand(a);
  const auto f = static_cast<double>(split.f);
  const double s = f / (f + 2.0);
  const double series =
      polynomial(s * s, 0x1.71547652beedbp1, 0x1.ec709d11be598p-1, 0x1.277780bc4101bp-1,
                 0x1.a58d212845008p-2, 0x1.5cf021af1194dp-2);
  const double product =
      static_cast<double>(y) * multiply_add(s, series, static_cast<double>(split.k));
  const double below = product > 200.0 ? 200.0 : product;
  const double t = below < -200.0 ? -200.0 : below;
  constexpr double kRounder = 0x1.8p52;
  const double whole = (t + kRounder) - kRounder;
  const float n = static_cast<float>(whole) + detail::kRounder;
  float result = detail::rounded(
      {detail::exp2_fraction(static_cast<float>(t - whole)), float_bits(n) - detail::kRounderBits});
  // Magnitudes that have no logarithm, or one of 0.
  const std::uint32_t reciprocal = y < 0.0F ? ~0U : 0U;
  const float zero_to_y = bits_float(float_bits(kInfinity) & reciprocal);
  const float infinity_to_y = bits_float(float_bits(kInfinity) & ~reciprocal);
  result = a == 0.0F ? zero_to_y : result;
  result = a == kInfinity ? infinity_to_y : result;
  result = a == 1.0F ? 1.0F : result;
  // In masks, not in conditions of conditions, which GCC would not vectorise. An infinite or very
  // large y is an even integer.
  const std::uint32_t fractional = __builtin_rintf(y) == y ? 0U : ~0U;
  const std::uint32_t odd = __builtin_rintf(0.5F * y) == 0.5F * y ? 0U : ~fractional;
  const std::uint32_t negative = x < 0.0F ? ~0U : 0U;
  const std::uint32_t finite = a < kInfinity ? ~0U : 0U;
  const std::uint32_t unordered = (x == x ? 0U : ~0U) | (y == y ? 0U : ~0U);
  const std::uint32_t no_number = (negative & finite & fractional) | unordered;
  result = bits_float(float_bits(result) | (float_bits(x) & kSignBit & odd) |
                      (float_bits(kNaN) & no_number));
  result = x == 1.0F ? 1.0F : result;
  const std::uint32_t other = y == 0.0F ? 0U : ~0U;
  return bits_float((float_bits(result) & other) | (float_bits(1.0F) & ~other));
}

// (e^x - e^-x) / (e^x + e^-x).
MPSGRAD_INLINE float tanh(float x) {
  const float e = detail::expm1_of_negative(-2.0F * abs(x));
  return copysign(e / (2.0F + e), x);
}

// 1 / (1 + e^-x).
MPSGRAD_INLINE float sigmoid(float x) {
  const float e = exp_of_negative(-abs(x));
  return (x < 0.0F ? e : 1.0F) / (1.0F + e);
}

// sigmoid(x) * (1 - sigmoid(x)), without cancellation at large x.
MPSGRAD_INLINE float sigmoid_slope(float x) {
  const float e = exp_of_negative(-abs(x));
  const float sum = 1.0F + e;
  return e / (sum * sum);
}

// ln(1 + e^x).
MPSGRAD_INLINE float softplus(float x) {
  const float e = exp_of_negative(-abs(x));
  // 1 + e lies in [1, 2]: its exponent is 0, or 1 from sqrt(2) on. Chosen by products with 0 and 1,
  // which are exact; conditions would be conditions of everything that follows.
  const float k = e > 0x1.a8279ap-2F ? 1.0F : 0.0F;
  const float f = multiply_add(k, 0.5F * (e - 1.0F), multiply_add(-k, e, e));
  return (x > 0.0F ? x : 0.0F) + detail::log_sum(k, f);
}

// x times the standard normal distribution up to x, (1 + erf(x / sqrt(2))) / 2, in the limit -0 and
// infinity at the infinities: what the tail of |x| takes from x above zero, and from -0 below.
MPSGRAD_INLINE float gelu(float x) {
  const detail::NormalTail tail = detail::normal_tail(x);
  const float quotient = tail.numerator / tail.denominator;
  const float part = quotient * tail.exponential * tail.magnitude;
  return (x < 0.0F ? -0.0F : x) - part * detail::kReduced;
}

// Its derivative: the distribution up to x, and x times its density; in the limit -0 and 1 at the
// infinities. It has a zero near x = -0.75, so its error counts in units in the last place of the
// distribution and |x| times the density.
MPSGRAD_INLINE float gelu_slope(float x) {
  const detail::NormalTail tail = detail::normal_tail(x);
  const float quotient = tail.numerator / tail.denominator;
  const float factor = multiply_add(-detail::kInverseRootTwoPi, tail.magnitude, quotient);
  const float beyond = factor * tail.exponential * detail::kReduced;
  const float result = x > 0.0F ? 1.0F - beyond : beyond;
  return x == x ? result : x;
}

}  // namespace mpsgrad::MPSGRAD_ISA
