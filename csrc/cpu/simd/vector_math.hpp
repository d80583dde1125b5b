// Elementary functions for *_simd.cpp loops, of a float32 or a pack of them (a Number), pow() of
// float32 alone: no branches, no tables, no calls, so that a loop around one of a float is
// vectorised, though one of packs is faster. Unlike a compiler's fast-math versions they keep the
// special cases of IEEE arithmetic: NaN comes through (its payload may not), infinities, signed
// zeros, overflow and denormal results are those of the exact function rounded. They assume
// rounding to nearest and denormals not flushed.
//
// docs/numerics.md has a table of errors, as tests/cpp/vector_math_test.cpp measures and limits
// them on each instruction set. A compiler may move one in the second decimal by contracting
// differently. Results are the same bits wherever in a loop an element lies.
#pragma once

#include "cpu/simd/pack.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// c0 + x * (c1 + x * (c2 + ...)).
template <class Number, class Constant>
MPSGRAD_INLINE Constant polynomial(const Number& /*x*/, Constant c0) {
  return c0;
}
template <class Number, class Constant, class... Rest>
MPSGRAD_INLINE Number polynomial(const Number& x, Constant c0, Rest... rest) {
  return multiply_add(x, polynomial(x, rest...), c0);
}

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNaN = __builtin_nanf("");

template <class Number>
MPSGRAD_INLINE Number abs(const Number& x) {
  return bits_float(float_bits(x) & ~kSignBit);
}

template <class Number>
MPSGRAD_INLINE Number minus_abs(const Number& x) {
  return bits_float(float_bits(x) | kSignBit);
}

// The magnitude of x with the sign of `sign`.
template <class Number>
MPSGRAD_INLINE Number copysign(const Number& x, const Number& sign) {
  return bits_float((float_bits(x) & ~kSignBit) | (float_bits(sign) & kSignBit));
}

// 1, -1, or x itself for zeros and NaN.
template <class Number>
MPSGRAD_INLINE Number sign(const Number& x) {
  return choose(x > 0.0F, 1.0F, choose(x < 0.0F, -1.0F, x));
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
template <class Word>
MPSGRAD_INLINE auto power_of_two(const Word& n) {
  return bits_float((n + 127U) << 23U);
}

// m * 2^n, for a `shifted` of kRounder + n: rounded at most once, also when the result is denormal,
// for -250 < n < 250 and 2^-50 < |m| < 2^2.
template <class Number>
MPSGRAD_INLINE Number scaled(const Number& m, const Number& shifted) {
  // What is left of the bits is n and twice the bias of an exponent, one for each half.
  const WordOf<Number> bits = float_bits(shifted) - (kRounderBits - 2U * 127U);
  const WordOf<Number> half = bits >> 1U;
  return m * bits_float(half << 23U) * bits_float((bits - half) << 23U);
}
#if defined(__AVX512F__)
template <int kCount>
MPSGRAD_INLINE FloatPack<kCount> scaled(const FloatPack<kCount>& m,
                                        const FloatPack<kCount>& shifted) {
  return by_part([](const auto& v, const auto& n)
                     MPSGRAD_MELT { return Floats<kWidest>(_mm512_maskz_scalef_ps(0xffff, v, n)); },
                 m, shifted - kRounder);
}
#endif

// x - n * ln(2), for |x| < 2^20.
template <class Number>
MPSGRAD_INLINE Number remainder_of_ln2(const Number& x, const Number& n) {
  return multiply_add(n, -kLn2Low, multiply_add(n, -kLn2High, x));
}

// x = n * ln(2) + r with |r| <= ln(2) / 2, for |x| < 2^20.
template <class Number>
struct Reduced {
  Number r;
  WordOf<Number> n;
};

template <class Number>
MPSGRAD_INLINE Reduced<Number> reduce_by_ln2(const Number& x) {
  const Number shifted = multiply_add(x, kLog2E, kRounder);
  return {remainder_of_ln2(x, shifted - kRounder), float_bits(shifted) - kRounderBits};
}

// Added to a number it changes nothing, not even the sign of a zero: compilers leave it out.
inline constexpr float kNothing = -0.0F;

// e^r - 1 for |r| <= ln(2) / 2, as exactly as 1 is added to it.
template <class Number>
MPSGRAD_INLINE Number expm1_short(const Number& r) {
  const Number p = polynomial(r, 0x1.fffff8p-2F, 0x1.55548ep-3F, 0x1.555b98p-5F, 0x1.123bd8p-7F,
                              0x1.685148p-10F);
  return multiply_add(r * r, p, r);
}

// e^x for -150 < x < 150.
template <class Number>
MPSGRAD_INLINE Number exp_within(const Number& x) {
  const Number shifted = multiply_add(x, kLog2E, kRounder);
  return scaled(1.0F + expm1_short(remainder_of_ln2(x, shifted - kRounder)), shifted);
}

// e^(x + tail) * 2^100, |tail| < 2^-5 |x| or so, for -150 < x <= 0, so that nothing is denormal
// yet.
template <class Number, class Tail>
MPSGRAD_INLINE Number exp_enlarged(const Number& x, const Tail& tail) {
  // The number that rounds also adds what makes n the exponent of 2^(n + 100).
  constexpr float kBiased = kRounder + 227.0F;
  const Number shifted = multiply_add(x, kLog2E, kBiased);
  const Number r = remainder_of_ln2(x, shifted - kBiased) + tail;
  return (1.0F + expm1_short(r)) * bits_float(float_bits(shifted) << 23U);
}
inline constexpr float kReduced = 0x1p-100F;

// e^r - 1 for |r| <= ln(2) / 2.
template <class Number>
MPSGRAD_INLINE Number expm1_fraction(const Number& r) {
  const Number p = polynomial(r, 0.5F, 0x1.555554p-3F, 0x1.5554fp-5F, 0x1.111306p-7F,
                              0x1.6d4372p-10F, 0x1.9e0c28p-13F);
  return multiply_add(r * r, p, r);
}

// e^x - 1 for x <= 0 and NaN; the sign of a zero is lost.
template <class Number>
MPSGRAD_INLINE Number expm1_of_negative(const Number& x) {
  const Reduced<Number> reduced = reduce_by_ln2(at_least(x, -30.0F));
  const Number power = power_of_two(reduced.n);
  return multiply_add(expm1_fraction(reduced.r), power, power - 1.0F);
}

// 2^r for |r| <= 1/2.
template <class Number>
MPSGRAD_INLINE Number exp2_fraction(const Number& r) {
  return polynomial(r, 1.0F, 0x1.62e43p-1F, 0x1.ebfbd8p-3F, 0x1.c6af78p-5F, 0x1.3b30bp-7F,
                    0x1.5f0a66p-10F, 0x1.3f9068p-13F);
}

// x = 2^k * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for positive finite x, denormal ones too;
// anything for other x.
template <class Number>
struct Logarithmand {
  Number k;
  Number f;
};

template <class Number>
MPSGRAD_INLINE Logarithmand<Number> split_logarithmand(const Number& x) {
  const auto denormal = x < 0x1p-126F;
  const Number scaled = choose(denormal, x * 0x1p23F, x);
  const auto shift = choose(denormal, -23.0F, 0.0F);
  const WordOf<Number> bits = float_bits(scaled) - kRootHalfBits;
  const Number exponent = signed_to_float(shift_right_signed(bits, 23));
  return {exponent + shift, bits_float((bits & 0x7fffffU) + kRootHalfBits) - 1.0F};
}

// ln(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)].
template <class Number>
MPSGRAD_INLINE Number log_remainder(const Number& f) {
  const Number p = polynomial(f, 0x1.55552ep-2F, -0x1.000216p-2F, 0x1.99b034p-3F, -0x1.548186p-3F,
                              0x1.21cd2cp-3F, -0x1.0c0eb4p-3F, 0x1.0ae6ep-3F, -0x1.4c628cp-4F);
  return f * f * multiply_add(f, p, -0.5F);
}

// k ln(2) + ln(1 + f), smallest parts first.
template <class Number>
MPSGRAD_INLINE Number log_sum(const Number& k, const Number& f) {
  const Number low = multiply_add(k, kLn2Low, log_remainder(f));
  return multiply_add(k, kLn2High, f + low);
}

// `finite` where x is positive and finite; the logarithm of any other x.
template <class Number>
MPSGRAD_INLINE Number with_log_limits(const Number& x, const Number& finite) {
  const Number positive = choose(x < kInfinity, finite, x);
  const Number rest = choose(x == 0.0F, -kInfinity, kNaN);
  return choose(x > 0.0F, positive, rest);
}

// The upper tail of the standard normal distribution from |x| on is
// exponential * kReduced * numerator / denominator, exponential being e^(-x^2 / 2) * 2^100. The
// denominator is sqrt(2 pi) |x| * numerator and a rest that soon becomes small beside it, so that
// most of an error of the numerator cancels. `magnitude` is |x|, limited to where results have long
// been rounded to 0. Returns result(exponential, numerator, denominator, magnitude): of a struct of
// so many packs GCC makes copies in memory.
template <class Number, class Result>
MPSGRAD_INLINE Number with_normal_tail(const Number& x, const Result& result) {
  const Number a = at_most(abs(x), 15.0F);
  // a^2 in two parts: its rounding would be a hundredfold in the exponential.
#if MPSGRAD_HAS_FMA
  const Number square = a * a;
  const Number rest = multiply_add(a, a, -square);
#else
  const Number high = bits_float(float_bits(a) & 0xfffff000U);
  const Number square = high * high;
  const Number rest = (a - high) * (a + high);
#endif
  const Number b = a * 0x1.40d932p1F;
  const Number numerator =
      polynomial(b, 0x1.8p-1F, 0x1.17dceap-2F, 0x1.815af8p-5F, 0x1.1aef12p-8F, 0x1.805376p-13F);
  const Number beside =
      polynomial(b, 0x1.8p0F, 0x1.18a67cp-2F, 0x1.c09d18p-6F, 0x1.2c7712p-10F, 0x1.8d3fdp-25F);
  return result(exp_enlarged(-0.5F * square, -0.5F * rest), numerator,
                multiply_add(b, numerator, beside), a);
}

inline constexpr float kInverseRootTwoPi = 0x1.988454p-2F;

}  // namespace detail

// e^x.
template <class Number>
MPSGRAD_INLINE Number exp(const Number& x) {
  return detail::exp_within(at_most(at_least(x, -104.0F), 89.0F));
}

// The same for x <= 0 and NaN, in fewer steps.
template <class Number>
MPSGRAD_INLINE Number exp_of_negative(const Number& x) {
  const Number limited = at_least(x, -104.0F);
#if defined(__AVX512F__)
  if constexpr (kHasPack<Number>) {
    return detail::exp_within(limited);
  }
#endif
  return detail::exp_enlarged(limited, detail::kNothing) * detail::kReduced;
}

// e^x - 1, without cancellation at small x.
template <class Number>
MPSGRAD_INLINE Number expm1(const Number& x) {
  const Number limited = at_least(at_most(x, 89.0F), -30.0F);
  const detail::Reduced<Number> reduced = detail::reduce_by_ln2(limited);
  const Number fraction = detail::expm1_fraction(reduced.r);
  // 2^n (1 + fraction) - 1; 2^128 is no float, and 2^127 then stands for it.
  const auto top = x > 88.0F;
  const Number power = detail::power_of_two(reduced.n - choose(top, 1U, 0U));
  const Number result = multiply_add(fraction, power, power - 1.0F) * choose(top, 2.0F, 1.0F);
  return copysign(result, x);
}

// ln(x).
template <class Number>
MPSGRAD_INLINE Number log(const Number& x) {
  const detail::Logarithmand<Number> split = detail::split_logarithmand(x);
  return detail::with_log_limits(x, detail::log_sum(split.k, split.f));
}

// ln(1 + x), without cancellation at small x.
template <class Number>
MPSGRAD_INLINE Number log1p(const Number& x) {
  const Number u = 1.0F + x;
  const WordOf<Number> bits = float_bits(u) - detail::kRootHalfBits;
  const WordOf<Number> exponent = shift_right_signed(bits, 23);
  const Number k = signed_to_float(exponent);
  // (1 + x) / 2^k - 1 from x itself, since u is rounded; for large x that no longer matters.
  const Number scale = detail::power_of_two(0U - exponent);
  const Number from_x = multiply_add(x, scale, scale - 1.0F);
  const Number from_u = bits_float((bits & 0x7fffffU) + detail::kRootHalfBits) - 1.0F;
  const Number f = choose(x < 0x1p30F, from_x, from_u);
  return copysign(detail::with_log_limits(u, detail::log_sum(k, f)), x);
}

// x^y with the special cases of IEEE 754: 1 for y = 0 and for x = 1 whatever the other is, NaN for
// finite negative x unless y is an integer.
MPSGRAD_INLINE float pow(float x, float y) {
  const float a = abs(x);
  // y * log2(a) in double: its absolute error is a relative one of the result.
  const detail::Logarithmand<float> split = detail::split_logarithmand(a);
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
  float result = detail::scaled(detail::exp2_fraction(static_cast<float>(t - whole)), n);
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
template <class Number>
MPSGRAD_INLINE Number tanh(const Number& x) {
  const Number e = detail::expm1_of_negative(-2.0F * abs(x));
  return copysign(e / (2.0F + e), x);
}

// 1 / (1 + e^-x).
template <class Number>
MPSGRAD_INLINE Number sigmoid(const Number& x) {
  const Number e = exp_of_negative(minus_abs(x));
  return choose(x < 0.0F, e, 1.0F) / (1.0F + e);
}

// sigmoid(x) * (1 - sigmoid(x)), without cancellation at large x.
template <class Number>
MPSGRAD_INLINE Number sigmoid_slope(const Number& x) {
  const Number e = exp_of_negative(minus_abs(x));
  const Number sum = 1.0F + e;
  return e / (sum * sum);
}

// ln(1 + e^x).
template <class Number>
MPSGRAD_INLINE Number softplus(const Number& x) {
  const Number e = exp_of_negative(minus_abs(x));
  // 1 + e lies in [1, 2]: its exponent is 0, or 1 from sqrt(2) on. Chosen by products with 0 and 1,
  // which are exact; conditions would be conditions of everything that follows.
  const Number k = choose(e > 0x1.a8279ap-2F, 1.0F, 0.0F);
  const Number f = multiply_add(k, 0.5F * (e - 1.0F), multiply_add(-k, e, e));
  return choose(x > 0.0F, x, 0.0F) + detail::log_sum(k, f);
}

// x times the standard normal distribution up to x, (1 + erf(x / sqrt(2))) / 2, in the limit -0 and
// infinity at the infinities: what the tail of |x| takes from x above zero, and from -0 below.
template <class Number>
MPSGRAD_INLINE Number gelu(const Number& x) {
  return detail::with_normal_tail(
      x, [&](const Number& exponential, const Number& numerator, const Number& denominator,
             const Number& magnitude) MPSGRAD_MELT {
        const Number part = numerator / denominator * exponential * magnitude;
        return multiply_add(-detail::kReduced, part, choose(x < 0.0F, -0.0F, x));
      });
}

// Its derivative: the distribution up to x, and x times its density; in the limit -0 and 1 at the
// infinities. It has a zero near x = -0.75, so its error counts in units in the last place of the
// distribution and |x| times the density.
template <class Number>
MPSGRAD_INLINE Number gelu_slope(const Number& x) {
  return detail::with_normal_tail(
      x, [&](const Number& exponential, const Number& numerator, const Number& denominator,
             const Number& magnitude) MPSGRAD_MELT {
        const Number quotient = numerator / denominator;
        const Number factor = multiply_add(-detail::kInverseRootTwoPi, magnitude, quotient);
        const Number beyond = factor * exponential * detail::kReduced;
        return choose(x > 0.0F, 1.0F - beyond, beyond);
      });
}

}  // namespace mpsgrad::MPSGRAD_ISA
