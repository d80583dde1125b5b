// Loops over neighbouring elements, pack by pack: for functions of many operations, and as fast as
// others for those of few.
#pragma once

#include "cpu/simd/elements.hpp"
#include "cpu/simd/pack.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// The elements of a pack.
template <int kCount>
struct WholePack {
  static constexpr std::int64_t kElements = std::int64_t{kCount} * kWidest;

  template <class Element>
  MPSGRAD_INLINE FloatPack<kCount> load(const Element* from) const {
    FloatPack<kCount> pack;
    for (int k = 0; k < kCount; ++k) {
      pack.of[k] = MPSGRAD_ISA::load<Floats<kWidest>>(from + k * kWidest);
    }
    return pack;
  }
  template <class Element>
  MPSGRAD_INLINE void put(Element* to, const FloatPack<kCount>& pack) const {
    for (int k = 0; k < kCount; ++k) {
      store(to + k * kWidest, pack.of[k]);
    }
  }
};

// So many elements, fewer than one register has; zeros make up the rest.
struct PartOfRegister {
  std::int64_t count;

  template <class Element>
  MPSGRAD_INLINE FloatPack<1> load(const Element* from) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(Element) == sizeof(float)) {
      return {{_mm512_maskz_loadu_ps(lanes(), from)}};
    } else {
      return {{_mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(lanes(), from))}};
    }
#else
    Element elements[kWidest] = {};
    copy(elements, from);
    return {{MPSGRAD_ISA::load<Floats<kWidest>>(elements)}};
#endif
  }
  template <class Element>
  MPSGRAD_INLINE void put(Element* to, const FloatPack<1>& pack) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(Element) == sizeof(float)) {
      _mm512_mask_storeu_ps(to, lanes(), pack.of[0]);
    } else {
      _mm256_mask_storeu_epi16(
          to, lanes(), _mm512_maskz_cvtps_ph(0xffff, pack.of[0], _MM_FROUND_TO_NEAREST_INT));
    }
#else
    Element elements[kWidest];
    store(elements, pack.of[0]);
    copy(to, elements);
#endif
  }

 private:
#if defined(__AVX512F__)
  MPSGRAD_INLINE __mmask16 lanes() const { return static_cast<__mmask16>((1U << count) - 1U); }
#else
  // In steps that compilers make no call of.
  template <class Element>
  MPSGRAD_INLINE void copy(Element* to, const Element* from) const {
    std::int64_t i = 0;
    if ((count & 4) != 0) {
      __builtin_memcpy(to, from, 4 * sizeof(Element));
      i = 4;
    }
    if ((count & 2) != 0) {
      __builtin_memcpy(to + i, from + i, 2 * sizeof(Element));
      i += 2;
    }
    if ((count & 1) != 0) {
      to[i] = from[i];
    }
  }
#endif
};

// Calls body(what loads and stores some elements, the first of them) for parts that cover `count`
// elements: packs, then single registers.
template <class Body>
MPSGRAD_INLINE void for_packs(std::int64_t count, const Body& body) {
  using Whole = WholePack<kPackVectors>;
  std::int64_t i = 0;
  for (; i + Whole::kElements <= count; i += Whole::kElements) {
    body(Whole{}, i);
  }
  for (; i + kWidest <= count; i += kWidest) {
    body(WholePack<1>{}, i);
  }
  if (i < count) {
    body(PartOfRegister{count - i}, i);
  }
}

// y[i] = value(x[i]...) for i in [0, count); y may be one of x.
template <class Element, class Value, class... Sources>
MPSGRAD_INLINE void transform_packs(std::int64_t count, Element* y, const Value& value,
                                    const Sources*... x) {
  for_packs(count, [&](auto pack, std::int64_t i)
                       MPSGRAD_MELT { pack.put(y + i, value(pack.load(x + i)...)); });
}

// As transform_packs(), for runs of images, whose results may be streamed.
template <class Element, class Value, class... Sources>
MPSGRAD_INLINE void transform_packs_run(std::int64_t count, Results<Element> y, const Value& value,
                                        const Sources*... x) {
  put_asking(
      0, count, y,
      [&](std::int64_t first, std::int64_t last, Element* to) {
        transform_packs(last - first, to, value, (x + first)...);
      },
      x...);
}

}  // namespace mpsgrad::MPSGRAD_ISA
