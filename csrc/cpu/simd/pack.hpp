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

// Registers of a pack: as many as leave room for the constants of a function.
inline constexpr int kPackVectors = kRegisters >= 32 ? 4 : 2;
static_assert(kPackVectors == 2 || kPackVectors == 4);
inline constexpr std::int64_t kPackLanes = std::int64_t{kPackVectors} * kWidest;

template <class Vector>
struct Pack {
  Vector of[kPackVectors];
};
using FloatPack = Pack<Floats<kWidest>>;
using WordPack = Pack<Words<kWidest>>;
using MaskPack = Pack<Ints<kWidest>>;  // of comparisons

template <class T>
inline constexpr bool kIsPack = false;
template <class Vector>
inline constexpr bool kIsPack<Pack<Vector>> = true;

// The bits of a float, or of a pack.
template <class Number>
using WordOf = std::conditional_t<kIsPack<Number>, WordPack, std::uint32_t>;

template <class Vector>
MPSGRAD_INLINE const Vector& part_of(const Pack<Vector>& pack, int k) {
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
  if constexpr (kPackVectors == 2) {
    return Pack<Vector>{{operation(part_of(arguments, 0)...), operation(part_of(arguments, 1)...)}};
  } else {
    return Pack<Vector>{{operation(part_of(arguments, 0)...), operation(part_of(arguments, 1)...),
                         operation(part_of(arguments, 2)...), operation(part_of(arguments, 3)...)}};
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
    requires(kIsPack<A> || kIsPack<B>)                                                      \
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

template <class Vector>
MPSGRAD_INLINE Pack<Vector> operator-(const Pack<Vector>& x) {
  return by_part([](const Vector& v) MPSGRAD_MELT { return -v; }, x);
}

// first ? a : b, lane by lane of a pack.
template <class A, class B>
MPSGRAD_INLINE auto choose(const MaskPack& first, const A& a, const B& b) {
  using Scalar = std::conditional_t<kIsPack<A>, B, A>;
  using Vector =
      std::conditional_t<std::is_same_v<Scalar, float> || std::is_same_v<Scalar, FloatPack>,
                         Floats<kWidest>, Words<kWidest>>;
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
MPSGRAD_INLINE FloatPack at_least(const FloatPack& x, float least) {
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
MPSGRAD_INLINE FloatPack at_most(const FloatPack& x, float most) {
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

MPSGRAD_INLINE WordPack float_bits(const FloatPack& x) {
  return by_part([](const auto& v) MPSGRAD_MELT { return __builtin_bit_cast(Words<kWidest>, v); },
                 x);
}
MPSGRAD_INLINE FloatPack bits_float(const WordPack& x) {
  return by_part([](const auto& v) MPSGRAD_MELT { return __builtin_bit_cast(Floats<kWidest>, v); },
                 x);
}

// Of numbers in two's complement.
MPSGRAD_INLINE std::uint32_t shift_right_signed(std::uint32_t n, int by) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> by);
}
MPSGRAD_INLINE WordPack shift_right_signed(const WordPack& n, int by) {
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
MPSGRAD_INLINE FloatPack signed_to_float(const WordPack& n) {
  return by_part(
      [](const auto& v) MPSGRAD_MELT {
        return __builtin_convertvector(__builtin_bit_cast(Ints<kWidest>, v), Floats<kWidest>);
      },
      n);
}

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
  requires(kIsPack<A> || kIsPack<B> || kIsPack<C>)
MPSGRAD_INLINE FloatPack multiply_add(const A& a, const B& b, const C& c) {
  using V = Floats<kWidest>;
  return by_part(
      [](const auto& x, const auto& y, const auto& z)
          MPSGRAD_MELT { return multiply_add(in_lanes<V>(x), in_lanes<V>(y), in_lanes<V>(z)); },
      a, b, c);
}

template <class Element>
MPSGRAD_INLINE FloatPack load_pack(const Element* from) {
  FloatPack pack;
  for (int k = 0; k < kPackVectors; ++k) {
    pack.of[k] = load<Floats<kWidest>>(from + k * kWidest);
  }
  return pack;
}
template <class Element>
MPSGRAD_INLINE void store_pack(Element* to, const FloatPack& pack) {
  for (int k = 0; k < kPackVectors; ++k) {
    store(to + k * kWidest, pack.of[k]);
  }
}

}  // namespace mpsgrad::MPSGRAD_ISA
