// Loops of the arithmetic kernels over runs of elements.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"
#include "kernels/arithmetic/arithmetic_kind.hpp"

namespace mpsgrad {

// One operation. The result r of all but a comparison is a x (+ - * /) b y + bias, clamped to
// [minimum, maximum]; NaN stays NaN.
struct ArithmeticFunction {
  ArithmeticKind kind = ArithmeticKind::Add;
  ComparisonType comparison = ComparisonType::Equal;
  float a = 1.0F;
  float b = 1.0F;
  float bias = 0.0F;
  float minimum = 0.0F;
  float maximum = 0.0F;
  float threshold = 0.0F;
};

// Of an image: one bit an element, the lowest bit of a byte first, set where minimum < r < maximum.
struct ClampMask {
  std::uint8_t* bits = nullptr;
  // 0: all bits are set, and nobody needs to read them. Whoever makes a mask begins with 0, or with
  // 1 if the bits may stay as they are; forward() only ever sets it.
  std::uint8_t* some_clear = nullptr;
};

// A source of a loop: `length` elements, and then the same again. What is not repeated is as long
// as it is read.
template <class Element>
struct Cycle {
  const Element* at = nullptr;
  std::int64_t length = 0;

  const Element* from(std::int64_t i) const { return at + i % length; }
  std::int64_t left_from(std::int64_t i) const { return length - i % length; }
};

// No array overlaps another. Sums are taken in double, in an order that depends on the counts
// alone.
template <class Element>
struct ArithmeticElementLoops {
  // Writes the bits [first, first + count) of `mask`, unless it has none, and no other; calls for
  // other bits may run at the same time.
  void (*forward)(const ArithmeticFunction& f, Cycle<Element> x, Cycle<Element> y,
                  Results<Element> out, ClampMask mask, std::int64_t first, std::int64_t count);
  // out = a g, or (a g) (b other) where there is another, and 0 where the bit from `first` on is
  // not set.
  void (*gradient)(float a, float b, const Element* g, Cycle<Element> other, ClampMask mask,
                   std::int64_t first, Results<Element> out, std::int64_t count);
  // sums[c] += the sum over pixels of channel c of the terms of gradient().
  void (*gradient_pixels)(float a, float b, const Element* g, const Element* other, ClampMask mask,
                          std::int64_t first, double* sums, std::int64_t pixels,
                          std::int64_t channels);
  // out = `times` copies of each of `count` values.
  void (*repeat_each)(const Element* x, std::int64_t count, std::int64_t times, Element* out);
  // out = `times` copies of the row of `count` values.
  void (*repeat_row)(const Element* x, std::int64_t count, std::int64_t times, Element* out);
};

struct ArithmeticLoops : ByElement<ArithmeticElementLoops> {
  // sums[i] += x[i].
  void (*add)(const float* x, double* sums, std::int64_t count);
  // sums[c] += the sum over pixels of channel c.
  void (*add_pixels)(const float* x, double* sums, std::int64_t pixels, std::int64_t channels);
  // sums[p] += the sum over channels of pixel p.
  void (*add_channels)(const float* x, double* sums, std::int64_t pixels, std::int64_t channels);
};

MPSGRAD_LOOPS(ArithmeticLoops, arithmetic_loops)

}  // namespace mpsgrad
