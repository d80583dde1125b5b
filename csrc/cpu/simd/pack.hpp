// A few vector registers as one number, for functions that are long chains of operations: each
// operation is done to all registers before the next one. A processor looks only so far ahead, and
// with one register after the other it mostly sees operations that wait for those before them. What
// is written for a Number works on a pack and on a float alike.
#pragma once

#include <type_traits>

#include "cpu/simd/lanes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

// Registers of a pack: as many as leave room for the constants of a function. What is left of a run
// goes one by one.
inline constexpr int kPackVectors = kRegisters >= 32 ? 4 : 2;

template <class Vector, int kCount>
struct Pack {
  Vector of[kCount];
};
template <int kCount>
using FloatPack = Pack<Floats<kWidest>, kCount>;
template <int kCount>
using WordPack = Pack<Words<kWidest>, kCount>;
template <int kCount>
using MaskPack = Pack<Ints<kWidest>, kCount>;  // of comparisons

template <class T>
inline constexpr int kPartsOf = 0;
template <class Vector, int kCount>
inline constexpr int kPartsOf<Pack<Vector, kCount>> = kCount;
template <class... T>
inline constexpr bool kHasPack = (kPartsOf<T> + ...) > 0;

// The bits of a float, or of a pack.
template <class Number>
struct WordsOf {
  using Type = WordPack<kPartsOf<Number>>;
};
template <>
struct WordsOf<float> {
  using Type = std::uint32_t;
};
template <class Number>
using WordOf = typename WordsOf<Number>::Type;

template <class Vector, int kCount>
MPSGRAD_INLINE const Vector& part_of(const Pack<Vector, kCount>& pack, int k) {
  return pack.of[k];
}
template <class Scalar>
MPSGRAD_INLINE Scalar part_of(Scalar scalar, int /*k*/) {
  return scalar;
}

// The results of an operation on each register, beside scalars that are the same for all. Not in a
// loop: until it is unrolled GCC keeps the registers in memory.
template <class Operation, class... Arguments>
MPSGRAD_INLINE auto by_part(const Operation& operation, const Arguments&... arguments) {
  using Vector = std::remove_cvref_t<decltype(operation(part_of(arguments, 0)...))>;
  constexpr int kCounts[] = {kPartsOf<Arguments>...};
  constexpr int kCount = [&] {
    int most = 0;
    for (const int count : kCounts) {
      most = count > most ? count : most;
    }
    return most;
  }();
  const auto part = [&](int k) MPSGRAD_MELT { return operation(part_of(arguments, k)...); };
  if constexpr (kCount == 1) {
    return Pack<Vector, 1>{{part(0)}};
  } else if constexpr (kCount == 2) {
    return Pack<Vector, 2>{{part(0), part(1)}};
  } else {
    static_assert(kCount == 4);
    return Pack<Vector, 4>{{part(0), part(1), part(2), part(3)}};
  }
}

template <class Vector, class T>
MPSGRAD_INLINE Vector in_lanes(T x) {
  if constexpr (std::is_same_v<T, Vector>) {
    return x;
  } else {
    return x - Vector{};  // which keeps the sign of a zero
  }
}

#define MPSGRAD_PACK_OPERATOR(op)                                                           \
  template <class A, class B>                                                               \
    requires(kHasPack<A, B>)                                                                \
  MPSGRAD_INLINE auto operator op(const A& a, const B& b) {                                 \
    return by_part([](const auto& x, const auto& y) MPSGRAD_MELT { return x op y; }, a, b); \
  }
MPSGRAD_PACK_OPERATOR(+)
MPSGRAD_PACK_OPERATOR(-)
MPSGRAD_PACK_OPERATOR(*)
MPSGRAD_PACK_OPERATOR(/)
MPSGRAD_PACK_OPERATOR(&)
MPSGRAD_PACK_OPERATOR(|)
MPSGRAD_PACK_OPERATOR(<<)
MPSGRAD_PACK_OPERATOR(>>)
MPSGRAD_PACK_OPERATOR(<)
MPSGRAD_PACK_OPERATOR(<=)
MPSGRAD_PACK_OPERATOR(>)
MPSGRAD_PACK_OPERATOR(>=)
MPSGRAD_PACK_OPERATOR(==)
#undef MPSGRAD_PACK_OPERATOR

template <class Vector, int kCount>
MPSGRAD_INLINE Pack<Vector, kCount> operator-(const Pack<Vector, kCount>& x) {
  return by_part([](const Vector& v) MPSGRAD_MELT { return -v; }, x);
}

// first ? a : b, lane by lane of a pack.
template <int kCount, class A, class B>
MPSGRAD_INLINE auto choose(const MaskPack<kCount>& first, const A& a, const B& b) {
  using Scalar = std::conditional_t<kHasPack<A>, B, A>;
  using Vector = std::conditional_t<std::is_same_v<Scalar, std::uint32_t> ||
                                        std::is_same_v<Scalar, WordPack<kCount>>,
                                    Words<kWidest>, Floats<kWidest>>;
  return by_part([](const auto& mask, const auto& x, const auto& y)
                     MPSGRAD_MELT { return mask ? in_lanes<Vector>(x) : in_lanes<Vector>(y); },
                 first, a, b);
}
template <class Scalar>
MPSGRAD_INLINE Scalar choose(bool first, Scalar a, Scalar b) {
  return first ? a : b;
}

// choose(x < least, least, x) and choose(x > most, most, x): NaN comes through.
MPSGRAD_INLINE float at_least(float x, float least) { return x < least ? least : x; }
MPSGRAD_INLINE float at_most(float x, float most) { return x > most ? most : x; }
template <int kCount>
MPSGRAD_INLINE FloatPack<kCount> at_least(const FloatPack<kCount>& x, float least) {
  const auto limit = in_lanes<Floats<kWidest>>(least);
  return by_part(
      [=](const auto& v) MPSGRAD_MELT {
#if defined(__AVX512F__)
        return Floats<kWidest>(_mm512_maskz_max_ps(0xffff, limit, v));
#elif defined(__AVX__)
        return Floats<kWidest>(_mm256_max_ps(limit, v));
#elif defined(__x86_64__)
        return Floats<kWidest>(_mm_max_ps(limit, v));
#else
        return v < limit ? limit : v;
#endif
      },
      x);
}
template <int kCount>
MPSGRAD_INLINE FloatPack<kCount> at_most(const FloatPack<kCount>& x, float most) {
  const auto limit = in_lanes<Floats<kWidest>>(most);
  return by_part(
      [=](const auto& v) MPSGRAD_MELT {
#if defined(__AVX512F__)
        return Floats<kWidest>(_mm512_maskz_min_ps(0xffff, limit, v));
#elif defined(__AVX__)
        return Floats<kWidest>(_mm256_min_ps(limit, v));
#elif defined(__x86_64__)
        return Floats<kWidest>(_mm_min_ps(limit, v));
#else
        return v > limit ? limit : v;
#endif
      },
      x);
}

template <int kCount>
MPSGRAD_INLINE WordPack<kCount> float_bits(const FloatPack<kCount>& x) {
  return by_part([](const auto& v) MPSGRAD_MELT { return __builtin_bit_cast(Words<kWidest>, v); },
                 x);
}
template <int kCount>
MPSGRAD_INLINE FloatPack<kCount> bits_float(const WordPack<kCount>& x) {
  return by_part([](const auto& v) MPSGRAD_MELT { return __builtin_bit_cast(Floats<kWidest>, v); },
                 x);
}

// Of numbers in two's complement.
MPSGRAD_INLINE std::uint32_t shift_right_signed(std::uint32_t n, int by) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> by);
}
template <int kCount>
MPSGRAD_INLINE WordPack<kCount> shift_right_signed(const WordPack<kCount>& n, int by) {
  return by_part(
      [by](const auto& v) MPSGRAD_MELT {
        const auto shifted = __builtin_bit_cast(Ints<kWidest>, v) >> by;
        return __builtin_bit_cast(Words<kWidest>, shifted);
      },
      n);
}
MPSGRAD_INLINE float signed_to_float(std::uint32_t n) {
  return static_cast<float>(static_cast<std::int32_t>(n));
}
template <int kCount>
MPSGRAD_INLINE FloatPack<kCount> signed_to_float(const WordPack<kCount>& n) {
  return by_part(
      [](const auto& v) MPSGRAD_MELT {
        return __builtin_convertvector(__builtin_bit_cast(Ints<kWidest>, v), Floats<kWidest>);
      },
      n);
}

// a * b + c, rounded once where the instruction set can. Of packs no compiler has to see that by
// itself, and Clang does not.
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
MPSGRAD_INLINE Floats<kWidest> multiply_add(Floats<kWidest> a, Floats<kWidest> b,
                                            Floats<kWidest> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_FEATURE_FMA)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
template <class A, class B, class C>
  requires(kHasPack<A, B, C>)
MPSGRAD_INLINE auto multiply_add(const A& a, const B& b, const C& c) {
  using V = Floats<kWidest>;
  return by_part(
      [](const auto& x, const auto& y, const auto& z)
          MPSGRAD_MELT { return multiply_add(in_lanes<V>(x), in_lanes<V>(y), in_lanes<V>(z)); },
      a, b, c);
}

}  // namespace mpsgrad::MPSGRAD_ISA
