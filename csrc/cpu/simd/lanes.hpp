// Several float32 numbers side by side, for loops that a compiler does not vectorise by itself:
// those that keep an accumulator in registers, reduce, or ask for memory ahead. The compilers'
// vector types know the arithmetic operators, comparisons and ?:.
#pragma once

#include "cpu/simd/half.hpp"
#include "cpu/simd/simd.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

// The widest vector register, in float32 numbers.
#if defined(__AVX512F__)
inline constexpr int kWidest = 16;
#elif defined(__AVX__)
inline constexpr int kWidest = 8;
#else
inline constexpr int kWidest = 4;
#endif

// How many such registers there are.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

template <int kLanes>
struct Lanes {
  typedef float Floats __attribute__((vector_size(kLanes * 4)));
  typedef std::int32_t Ints __attribute__((vector_size(kLanes * 4)));
  typedef std::uint32_t Words __attribute__((vector_size(kLanes * 4)));
};
template <>
struct Lanes<1> {
  using Floats = float;
  using Ints = std::int32_t;
  using Words = std::uint32_t;
};
template <int kLanes>
using Floats = typename Lanes<kLanes>::Floats;
template <int kLanes>
using Ints = typename Lanes<kLanes>::Ints;
template <int kLanes>
using Words = typename Lanes<kLanes>::Words;

// Any alignment will do.
template <class Vector, class Element>
MPSGRAD_INLINE Vector load(const Element* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <class Vector, class Element>
MPSGRAD_INLINE void store(Element* to, Vector v) {
  __builtin_memcpy(to, &v, sizeof v);
}

// The same value, of which compilers know nothing: they leave out factors, and merge choices, that
// they see through.
template <class Vector>
MPSGRAD_INLINE Vector opaque(Vector v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

#if !defined(__F16C__) && !defined(__ARM_NEON)
template <int kLanes>
struct HalfLanes {
  typedef std::uint16_t Stored __attribute__((vector_size(kLanes * 2)));
};

// The same bits as the processors' instructions, a signalling NaN made quiet included. Words: one
// std::uint32_t or a vector of them.
template <class Singles, class Words>
MPSGRAD_INLINE Words decode_halves(Words half) {
  const Words sign = (half & 0x8000U) << 16U;
  const Words magnitude = half & 0x7fffU;
  const Words normal = (magnitude << 13U) + (112U << 23U);
  const Words denormal =
      __builtin_bit_cast(Words, __builtin_bit_cast(Singles, Words(magnitude | 0x3f000000U)) - 0.5F);
  const Words nan = Words{} + 0x7fc00000U;
  const Words infinity = Words{} + 0x7f800000U;
  const Words special = (magnitude << 13U) | (magnitude > Words{} + 0x7c00U ? nan : infinity);
  const Words finite = magnitude < Words{} + 0x0400U ? denormal : normal;
  return sign | (magnitude < Words{} + 0x7c00U ? finite : special);
}

template <class Singles, class Words>
MPSGRAD_INLINE Words encode_halves(Words bits) {
  const Words sign = (bits >> 16U) & 0x8000U;
  const Words magnitude = bits & 0x7fffffffU;
  // Below 2^-14 the sum with 0.5 rounds at 2^-24, the unit of float16's denormal numbers.
  const Words denormal =
      __builtin_bit_cast(Words, __builtin_bit_cast(Singles, magnitude) + 0.5F) - 0x3f000000U;
  const Words normal = ((magnitude + 0x0fffU + ((magnitude >> 13U) & 1U)) >> 13U) - (112U << 10U);
  const Words nan = 0x7e00U | ((magnitude >> 13U) & 0x03ffU);
  const Words infinity = Words{} + 0x7c00U;
  const Words special = magnitude > Words{} + 0x7f800000U ? nan : infinity;
  const Words finite = magnitude < Words{} + 0x38800000U ? denormal : normal;
  return sign | (magnitude < Words{} + 0x477ff000U ? finite : special);
}
#endif

// float16 as float32, exactly.
template <class Vector>
MPSGRAD_INLINE Vector load(const Half* from) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
#if defined(__F16C__)
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    // Masked, for GCC 12 warns about the undefined register in its own unmasked forms.
    return reinterpret_cast<Vector>(_mm512_maskz_cvtph_ps(0xffff, halves));
  } else
#endif
      if constexpr (kLanes == 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<Vector>(_mm256_cvtph_ps(halves));
  } else if constexpr (kLanes == 4) {
    const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<Vector>(_mm_cvtph_ps(halves));
  } else {
    static_assert(kLanes == 1);
    return _cvtsh_ss(from->bits);
  }
#elif defined(__ARM_NEON)
  if constexpr (kLanes == 4) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
  } else if constexpr (kLanes == 2) {
    std::uint32_t two;
    __builtin_memcpy(&two, from, sizeof two);
    return vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u32(vdup_n_u32(two))));
  } else {
    static_assert(kLanes == 1);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(from->bits))), 0);
  }
#else
  if constexpr (kLanes == 1) {
    return bits_float(decode_halves<float>(std::uint32_t{from->bits}));
  } else {
    using Stored = typename HalfLanes<kLanes>::Stored;
    using Words = typename Lanes<kLanes>::Words;
    const Words halves = __builtin_convertvector(load<Stored>(&from->bits), Words);
    return __builtin_bit_cast(Vector, decode_halves<Vector>(halves));
  }
#endif
}

// float32 as the nearest float16, of two the even one.
template <class Vector>
MPSGRAD_INLINE void store(Half* to, Vector v) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
#if defined(__F16C__)
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  } else
#endif
      if constexpr (kLanes == 8) {
    const __m128i halves = _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  } else if constexpr (kLanes == 4) {
    const __m128i halves = _mm_cvtps_ph(reinterpret_cast<__m128>(v), _MM_FROUND_TO_NEAREST_INT);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), halves);
  } else {
    static_assert(kLanes == 1);
    to->bits = static_cast<std::uint16_t>(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__ARM_NEON)
  if constexpr (kLanes == 4) {
    vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  } else {
    static_assert(kLanes == 1);
    to->bits = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(v))), 0);
  }
#else
  if constexpr (kLanes == 1) {
    to->bits = static_cast<std::uint16_t>(encode_halves<float>(float_bits(v)));
  } else {
    using Stored = typename HalfLanes<kLanes>::Stored;
    using Words = typename Lanes<kLanes>::Words;
    const Words halves = encode_halves<Vector>(__builtin_bit_cast(Words, v));
    store(&to->bits, __builtin_convertvector(halves, Stored));
  }
#endif
}

template <class Element>
MPSGRAD_INLINE const void* address_of(const Element* array, std::int64_t element) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(array) +
                                       static_cast<std::uintptr_t>(element) * sizeof(Element));
}

// Asks for the cache line of an element that will be needed soon, which may lie outside its array:
// what processors foresee by themselves ends at the page.
template <class Element>
MPSGRAD_INLINE void request(const Element* array, std::int64_t element) {
  __builtin_prefetch(address_of(array, element));
}
// The same if much else is needed before: the smallest cache is left alone.
template <class Element>
MPSGRAD_INLINE void request_later(const Element* array, std::int64_t element) {
  __builtin_prefetch(address_of(array, element), 0, 2);
}

// kLanes neighbouring elements.
template <int kLanes>
struct WholeBlock {
  using Floats = typename Lanes<kLanes>::Floats;
  using Ints = typename Lanes<kLanes>::Ints;
  template <class Element>
  MPSGRAD_INLINE Floats floats(const Element* from) const {
    return load<Floats>(from);
  }
  MPSGRAD_INLINE Ints ints(const std::int32_t* from) const { return load<Ints>(from); }
  template <class Element, class Vector>
  MPSGRAD_INLINE void put(Element* to, Vector v) const {
    store(to, v);
  }
};

// One element, in a register of several: a scalar would tempt the compiler to turn ?: into jumps.
struct OneElement {
  using Floats = Lanes<4>::Floats;
  using Ints = Lanes<4>::Ints;
  template <class Element>
  MPSGRAD_INLINE Floats floats(const Element* from) const {
    return Floats{load<float>(from)};
  }
  MPSGRAD_INLINE Ints ints(const std::int32_t* from) const { return Ints{*from}; }
  template <class Element, class Vector>
  MPSGRAD_INLINE void put(Element* to, Vector v) const {
    const auto one = v[0];
    store(to, one);
  }
};

// Calls body(block, first) for blocks that cover `count` elements, the widest first.
template <class Body>
MPSGRAD_INLINE void for_blocks(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + kWidest <= count; i += kWidest) {
    body(WholeBlock<kWidest>{}, i);
  }
  if constexpr (kWidest >= 16) {
    if (i + 8 <= count) {
      body(WholeBlock<8>{}, i);
      i += 8;
    }
  }
  if constexpr (kWidest >= 8) {
    if (i + 4 <= count) {
      body(WholeBlock<4>{}, i);
      i += 4;
    }
  }
  for (; i < count; ++i) {
    body(OneElement{}, i);
  }
}

// A constant that a generic lambda takes as an argument: of lanes, vectors, rows or taps.
template <std::int64_t kCount>
struct Exactly {
  constexpr operator std::int64_t() const { return kCount; }
};

// Calls body(Exactly) with the widest vectors that a row of `count` elements fills at least once.
// Of 16 lanes a short row must not leave half of the last vector over: shorter vectors do less.
template <class Body>
MPSGRAD_INLINE void with_lanes_for(std::int64_t count, const Body& body) {
  const std::int64_t rest = count % kWidest;
  const bool wasteful = kWidest >= 16 && count < 2 * kWidest && rest > 0 && rest <= kWidest / 2;
  if (count >= kWidest && !wasteful) {
    return body(Exactly<kWidest>{});
  }
  if constexpr (kWidest >= 16) {
    if (count >= 8) {
      return body(Exactly<8>{});
    }
  }
  if constexpr (kWidest >= 8) {
    if (count >= 4) {
      return body(Exactly<4>{});
    }
  }
  body(Exactly<1>{});
}

}  // namespace mpsgrad::MPSGRAD_ISA
