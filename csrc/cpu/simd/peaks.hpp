// Loops that do nothing but arithmetic, or nothing but moving memory: what a processor can do at
// best, for measuring kernels against.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace mpsgrad {

struct PeakLoops {
  // Independent chains of multiply-adds in registers, each step one multiplication and one addition
  // a lane, as one instruction where the set has it. Adds the chains to *sink and returns the
  // number of operations done.
  std::int64_t (*multiply_add)(std::int64_t steps, float* sink);
  // Copies n floats with ordinary stores of the widest vectors, never by the C library.
  void (*copy)(const float* from, float* to, std::int64_t n);
  // The same with stores that bypass the caches; `to` is 64-byte aligned.
  void (*copy_streaming)(const float* from, float* to, std::int64_t n);
  // Returns the sum of n floats, in as many chains as hide the latency of additions.
  float (*read)(const float* from, std::int64_t n);
};

MPSGRAD_LOOPS(PeakLoops, peak_loops)

}  // namespace mpsgrad
