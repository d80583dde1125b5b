// Loops of the softmax kernels over runs of pixels.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

// All arrays hold `pixels` pixels of `channels` values, and none overlaps `out` or `scratch`.
struct SoftMaxLoops {
  void (*softmax)(const float* x, float* out, std::int64_t pixels, std::int64_t channels);
  void (*log_softmax)(const float* x, float* out, float* scratch, std::int64_t pixels,
                      std::int64_t channels);
  // `result` is what the forward loop made.
  void (*softmax_gradient)(const float* gradient, const float* result, float* out,
                           std::int64_t pixels, std::int64_t channels);
  void (*log_softmax_gradient)(const float* gradient, const float* result, float* out,
                               std::int64_t pixels, std::int64_t channels);
};

MPSGRAD_LOOPS(SoftMaxLoops, softmax_loops)

}  // namespace mpsgrad
