// Several float32 numbers side by side, for loops that a compiler does not vectorise by itself:
// those that keep an accumulator in registers, reduce, or ask for memory ahead. The compilers'
// vector types know the arithmetic operators, comparisons and ?:.
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

// Asks for the cache line of an element that will be needed soon, which may lie outside its array:
// what processors foresee by themselves ends at the page.
MPSGRAD_INLINE void request(const float* array, std::int64_t element) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(array) +
                                                   static_cast<std::uintptr_t>(element) * 4));
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

// A constant that a generic lambda takes as an argument.
template <int kCount>
struct LaneCount {
  static constexpr int lanes = kCount;
};

// Calls body(LaneCount) with the widest vectors that a row of `count` elements fills at least once.
template <class Body>
MPSGRAD_INLINE void with_lanes_for(std::int64_t count, const Body& body) {
  if (count >= kWidest) {
    return body(LaneCount<kWidest>{});
  }
  if constexpr (kWidest >= 16) {
    if (count >= 8) {
      return body(LaneCount<8>{});
    }
  }
  if constexpr (kWidest >= 8) {
    if (count >= 4) {
      return body(LaneCount<4>{});
    }
  }
  body(LaneCount<1>{});
}

// Writes value(first), kLanes results each, over a row of `count` >= kLanes elements. The last
// vector reaches back over the one before instead of leaving a rest, and is found before anything
// is written: a value may read what it replaces.
template <int kLanes, class Value>
MPSGRAD_INLINE void fill_row(std::int64_t count, float* out, const Value& value) {
  const std::int64_t last = count - kLanes;
  const Floats<kLanes> end = value(last);
  for (std::int64_t i = 0; i < last; i += kLanes) {
    store(out + i, value(i));
  }
  store(out + last, end);
}

template <int kLanes, class Join>
MPSGRAD_INLINE float join_lanes(Floats<kLanes> v, const Join& join) {
  if constexpr (kLanes == 16) {
    return join_lanes<8>(join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                         join);
  } else if constexpr (kLanes == 8) {
    return join_lanes<4>(
        join(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)),
        join);
  } else if constexpr (kLanes == 4) {
    const Floats<4> pairs = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return join(pairs, __builtin_shufflevector(pairs, pairs, 1, 0, 3, 2))[0];
  } else {
    return v;
  }
}

// Joins term(first), kLanes terms each, over a row of `count` >= kLanes elements, in an order that
// depends on `count` alone. What is joined with `neutral` stays as it is.
template <int kLanes, class Term, class Join>
MPSGRAD_INLINE float fold_row(std::int64_t count, float neutral, const Term& term,
                              const Join& join) {
  using V = Floats<kLanes>;
  constexpr int kChains = 4;  // so that a step need not wait for the one before
  V total = V{} + neutral;
  std::int64_t i = 0;
  if (count >= kChains * kLanes) {
    V chains[kChains] = {total, total, total, total};
    for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
      for (int k = 0; k < kChains; ++k) {
        chains[k] = join(chains[k], term(i + k * kLanes));
      }
    }
    total = join(join(chains[0], chains[1]), join(chains[2], chains[3]));
  }
  for (; i + kLanes <= count; i += kLanes) {
    total = join(total, term(i));
  }
  if (i < count) {  // the last vector reaches back over lanes that have been joined
    Ints<kLanes> lane = {};
    if constexpr (kLanes > 1) {
      for (int k = 0; k < kLanes; ++k) {
        lane[k] = k;
      }
    }
    const auto joined = static_cast<std::int32_t>(i + kLanes - count);
    const V end = term(count - kLanes);
    total = join(total, lane < Ints<kLanes>{} + joined ? V{} + neutral : end);
  }
  return join_lanes<kLanes>(total, join);
}

}  // namespace mpsgrad::MPSGRAD_ISA
