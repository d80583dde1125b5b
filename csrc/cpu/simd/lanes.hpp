// Several float32 numbers side by side, for loops that a compiler does not vectorise by itself:
// those that keep an accumulator in registers, or reduce. The compilers' vector types know the
// arithmetic operators, comparisons and ?:.
#pragma once

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// The widest vector register, in float32 numbers.
#if defined(__AVX512F__)
inline constexpr int kWidest = 16;
#elif defined(__AVX__)
inline constexpr int kWidest = 8;
#else
inline constexpr int kWidest = 4;
#endif

template <int kLanes>
struct Lanes {
  typedef float Floats __attribute__((vector_size(kLanes * 4)));
  typedef std::int32_t Ints __attribute__((vector_size(kLanes * 4)));
};
template <>
struct Lanes<1> {
  using Floats = float;
  using Ints = std::int32_t;
};
template <int kLanes>
using Floats = typename Lanes<kLanes>::Floats;
template <int kLanes>
using Ints = typename Lanes<kLanes>::Ints;

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

// kLanes neighbouring elements.
template <int kLanes>
struct WholeBlock {
  using Floats = typename Lanes<kLanes>::Floats;
  using Ints = typename Lanes<kLanes>::Ints;
  MPSGRAD_INLINE Floats floats(const float* from) const { return load<Floats>(from); }
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
  MPSGRAD_INLINE Floats floats(const float* from) const { return Floats{*from}; }
  MPSGRAD_INLINE Ints ints(const std::int32_t* from) const { return Ints{*from}; }
  template <class Element, class Vector>
  MPSGRAD_INLINE void put(Element* to, Vector v) const {
    *to = v[0];
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

// Joins `count` >= 1 terms, term.at<lanes>(first), in a fixed order: lane by lane, then the lanes
// pairwise, then what is left over.
template <class Term, class Join>
MPSGRAD_INLINE float fold(std::int64_t count, const Term& term, const Join& join) {
  std::int64_t i = 1;
  float result;
  if (count >= kWidest) {
    auto lanes = term.template at<kWidest>(0);
    for (i = kWidest; i + kWidest <= count; i += kWidest) {
      lanes = join(lanes, term.template at<kWidest>(i));
    }
    float parts[kWidest];
    store(parts, lanes);
    for (int half = kWidest / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) {
        parts[lane] = join(parts[lane], parts[lane + half]);
      }
    }
    result = parts[0];
  } else {
    result = term.template at<1>(0);
  }
  for (; i < count; ++i) {
    result = join(result, term.template at<1>(i));
  }
  return result;
}

}  // namespace mpsgrad::MPSGRAD_ISA
