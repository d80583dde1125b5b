// What one thread of this machine reaches at best, measured: the yardstick of the benchmarks.
#pragma once

#include <cstddef>

namespace mpsgrad::cpu {

// Floating-point operations a second of multiply-adds on the selected instruction set; a
// multiply-add counts two. The best of several short runs that take `seconds` together.
double fma_peak(double seconds);

// Bytes read plus bytes written a second when copying one array of `bytes` to another, with
// ordinary stores or with ones that bypass the caches. The best of several runs that take `seconds`
// together, at least three.
double copy_bandwidth(std::size_t bytes, bool streaming, double seconds);

// Bytes a second when an array of `bytes` is only read. The best of several runs, as before.
double read_bandwidth(std::size_t bytes, double seconds);

}  // namespace mpsgrad::cpu
