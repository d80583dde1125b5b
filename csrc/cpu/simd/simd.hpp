// What every *_simd.cpp file starts from: the name of its namespace and the few attributes its
// loops need. Only plain C headers here; a function of the standard library compiled for wide
// vectors must never become a weak symbol that the linker could pick for the whole library.
#pragma once

#if !defined(MPSGRAD_ISA)
#error "compile this file as a *_simd.cpp, with -DMPSGRAD_ISA=scalar|avx2|avx512|neon"
#endif

#include <cstddef>
#include <cstdint>

// A function that has to melt into the loop around it, or that loop is not vectorised.
#define MPSGRAD_INLINE inline __attribute__((always_inline))
// The same for a lambda, before its body: a call would keep what it captures in memory.
#define MPSGRAD_MELT __attribute__((always_inline))

// Both compilers know it; a pointer so marked is the only way to its elements during the function.
#define MPSGRAD_RESTRICT __restrict__

// Before a loop whose iterations touch no memory of each other, though an iteration may write what
// it has read itself: lets it be vectorised when the result overwrites an argument, which no
// __restrict allows.
#if defined(__clang__)
#define MPSGRAD_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define MPSGRAD_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

// Whether a * b + c rounds once in the vector registers of this instruction set.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MPSGRAD_HAS_FMA 1
#else
#define MPSGRAD_HAS_FMA 0
#endif

namespace mpsgrad::MPSGRAD_ISA {

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
// Of numbers that are not negative.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
MPSGRAD_INLINE std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
MPSGRAD_INLINE float bits_float(std::uint32_t x) { return __builtin_bit_cast(float, x); }

}  // namespace mpsgrad::MPSGRAD_ISA
