// Loops of the softmax kernels over runs of pixels.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"

namespace mpsgrad {

// All arrays hold `pixels` pixels of `channels` values, `scratch` has room for twice as many, of
// which it uses the first few. None overlaps `out` or `scratch`.
template <class Element>
struct SoftMaxLoops {
  void (*softmax)(const Element* x, Element* out, float* scratch, std::int64_t pixels,
                  std::int64_t channels);
  void (*log_softmax)(const Element* x, Element* out, float* scratch, std::int64_t pixels,
                      std::int64_t channels);
  // `result` is what the forward loop made.
  void (*softmax_gradient)(const Element* gradient, const Element* result, Element* out,
                           float* scratch, std::int64_t pixels, std::int64_t channels);
  void (*log_softmax_gradient)(const Element* gradient, const Element* result, Element* out,
                               float* scratch, std::int64_t pixels, std::int64_t channels);
};

MPSGRAD_LOOPS(ByElement<SoftMaxLoops>, softmax_loops)

}  // namespace mpsgrad
