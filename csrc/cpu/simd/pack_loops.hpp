// Loops over neighbouring elements, pack by pack, for functions that take more time than reading
// what they are of.
#pragma once

#include "cpu/simd/elements.hpp"
#include "cpu/simd/pack.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Elements of a whole pack.
struct WholePack {
  template <class Element>
  MPSGRAD_INLINE FloatPack load(const Element* from) const {
    return load_pack(from);
  }
  template <class Element>
  MPSGRAD_INLINE void put(Element* to, const FloatPack& pack) const {
    store_pack(to, pack);
  }
};

// So many elements, fewer than a pack has; zeros make up the rest.
struct PartOfPack {
  std::int64_t count;

  template <class Element>
  MPSGRAD_INLINE FloatPack load(const Element* from) const {
    Element elements[kPackLanes] = {};
    __builtin_memcpy(elements, from, bytes<Element>());
    return load_pack(elements);
  }
  template <class Element>
  MPSGRAD_INLINE void put(Element* to, const FloatPack& pack) const {
    Element elements[kPackLanes];
    store_pack(elements, pack);
    __builtin_memcpy(to, elements, bytes<Element>());
  }

 private:
  template <class Element>
  MPSGRAD_INLINE std::size_t bytes() const {
    return static_cast<std::size_t>(count) * sizeof(Element);
  }
};

// Calls body(WholePack or PartOfPack, first element) for packs that cover `count` elements.
template <class Body>
MPSGRAD_INLINE void for_packs(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + kPackLanes <= count; i += kPackLanes) {
    body(WholePack{}, i);
  }
  if (i < count) {
    body(PartOfPack{count - i}, i);
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
