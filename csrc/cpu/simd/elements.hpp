// Loops over neighbouring elements that a compiler vectorises by itself, for float32 and for
// float16 alike.
#pragma once

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/results.hpp"
#include "cpu/simd/streaming.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// So many float32 results are made before the first of them is stored. Where results lie a little
// ahead of what they are made of, as seen within their pages, loads behind each store would wait
// for it: processors compare no more than the place in a page.
inline constexpr std::int64_t kBeforeStores = std::int64_t{8} * kWidest;

// y[i] = value(i, x[i]...) for i in [begin, end); y may be one of x.
template <class Value, class... Sources>
MPSGRAD_INLINE void transform(std::int64_t begin, std::int64_t end, float* y, const Value& value,
                              const Sources*... x) {
  std::int64_t first = begin;
  for (; first + kBeforeStores <= end; first += kBeforeStores) {
    float results[kBeforeStores];
    MPSGRAD_VECTOR_LOOP
    for (std::int64_t i = 0; i < kBeforeStores; ++i) {
      results[i] = value(first + i, x[first + i]...);
    }
    for (std::int64_t i = 0; i < kBeforeStores; i += kWidest) {
      store(y + first + i, load<Floats<kWidest>>(results + i));
    }
  }
  MPSGRAD_VECTOR_LOOP
  for (std::int64_t i = first; i < end; ++i) {
    y[i] = value(i, x[i]...);
  }
}

// So many elements of float16 are converted together. Compilers keep such an array in registers;
// GCC takes loops of up to 16 turns apart, into single numbers, before it looks for vectors.
inline constexpr std::int64_t kTogether = 32;

struct Tile {
  float values[kTogether];

  Tile() = default;
  MPSGRAD_INLINE Tile(const Half* from, std::int64_t count) {
    for_blocks(count,
               [&](auto block, std::int64_t i) { block.put(values + i, block.floats(from + i)); });
  }
  MPSGRAD_INLINE void put(Half* to, std::int64_t count) const {
    for_blocks(count,
               [&](auto block, std::int64_t i) { block.put(to + i, block.floats(values + i)); });
  }
};

template <class Value, class... Sources>
MPSGRAD_INLINE void transform_tile(std::int64_t first, std::int64_t count, Half* y,
                                   const Value& value, const Sources&... x) {
  Tile result;
  MPSGRAD_VECTOR_LOOP
  for (std::int64_t k = 0; k < count; ++k) {
    result.values[k] = value(first + k, x.values[k]...);
  }
  result.put(y + first, count);
}

template <class Value, class... Sources>
MPSGRAD_INLINE void transform(std::int64_t begin, std::int64_t end, Half* y, const Value& value,
                              const Sources*... x) {
  std::int64_t i = begin;
  for (; i + kTogether <= end; i += kTogether) {
    transform_tile(i, kTogether, y, value, Tile(x + i, kTogether)...);
  }
  if (i < end) {
    transform_tile(i, end - i, y, value, Tile(x + i, end - i)...);
  }
}

// Writes the results [begin, end): put(first, last, to) writes some of them to `to`, all at once
// unless they are streamed or asked for. Those that are streamed go by way of a block in the
// nearest cache, so short that reading and writing take turns often: while one of them is at work,
// memory does not do the other.
template <class Element, class Put>
MPSGRAD_INLINE void put_blocks(std::int64_t begin, std::int64_t end, Results<Element> y,
                               const Put& put) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Element));
  constexpr std::int64_t kBlock = 512 / kBytes;
  alignas(kLine) Element block[kBlock];
  for (std::int64_t first = begin; first < end;) {
    Element* const to = y.at + first;
    // A first block that starts within a line is shorter, and the others are whole lines.
    const std::int64_t whole = first + kBlock - past_line(to) / kBytes;
    const std::int64_t last = (y.streamed || y.asks) && whole < end ? whole : end;
    put(first, last, y.streamed ? block : to);
    if (y.streamed) {
      stream_bytes(block, to, (last - first) * kBytes);
    }
    first = last;
  }
}

// As put_blocks(), for results of runs of images. If they are streamed, what they are made of comes
// from memory too, and as processors do not look far ahead by themselves, each block asks for
// another one ahead of it; a few lines at a time, for a processor remembers few requests. So it
// does for other results that ask.
template <class Element, class Put, class... Sources>
MPSGRAD_INLINE void put_asking(std::int64_t begin, std::int64_t end, Results<Element> y,
                               const Put& put, const Sources*... x) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Element));
  constexpr std::int64_t kAhead = 1536 / kBytes;
  constexpr std::int64_t kElements = kLine / kBytes;
  put_blocks(begin, end, y, [&](std::int64_t first, std::int64_t last, Element* to) {
    for (std::int64_t i = first; (y.streamed || y.asks) && i < last; i += kElements) {
      (request(x, i + kAhead), ...);
    }
    put(first, last, to);
  });
}

// As transform(), for runs of images, whose results may be streamed.
template <class Element, class Value, class... Sources>
MPSGRAD_INLINE void transform_run(std::int64_t begin, std::int64_t end, Results<Element> y,
                                  const Value& value, const Sources*... x) {
  put_asking(
      begin, end, y,
      [&](std::int64_t first, std::int64_t last, Element* to) {
        transform(
            0, last - first, to,
            [&](std::int64_t i, auto... values) { return value(first + i, values...); },
            (x + first)...);
      },
      x...);
}

}  // namespace mpsgrad::MPSGRAD_ISA
