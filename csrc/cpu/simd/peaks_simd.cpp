// Measuring loops of peaks.hpp.
#include "cpu/simd/peaks.hpp"

#include "cpu/simd/simd.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr bool kManyRegisters = true;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr bool kManyRegisters = false;
#else
constexpr int kVectorBytes = 16;
#if defined(__ARM_NEON)
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif
#endif
using Vector = float __attribute__((vector_size(kVectorBytes)));
constexpr std::int64_t kLanes = kVectorBytes / static_cast<int>(sizeof(float));

// Enough chains to hide the latency of two to four multiply-add units, few enough for the
// registers.
constexpr std::int64_t kChains = 12;
struct Chains {
  Vector c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11;

  MPSGRAD_INLINE void start(Vector first, Vector difference) {
    c0 = first, c1 = c0 + difference, c2 = c1 + difference, c3 = c2 + difference;
    c4 = c3 + difference, c5 = c4 + difference, c6 = c5 + difference, c7 = c6 + difference;
    c8 = c7 + difference, c9 = c8 + difference, c10 = c9 + difference, c11 = c10 + difference;
  }
  MPSGRAD_INLINE void step(Vector factor, Vector summand) {
    c0 = c0 * factor + summand, c1 = c1 * factor + summand, c2 = c2 * factor + summand;
    c3 = c3 * factor + summand, c4 = c4 * factor + summand, c5 = c5 * factor + summand;
    c6 = c6 * factor + summand, c7 = c7 * factor + summand, c8 = c8 * factor + summand;
    c9 = c9 * factor + summand, c10 = c10 * factor + summand, c11 = c11 * factor + summand;
  }
  MPSGRAD_INLINE Vector sum() const {
    return ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11));
  }
};

std::int64_t multiply_add(std::int64_t steps, float* sink) {
  // Every chain tends to 1, so that no number becomes denormal or infinite.
  const Vector factor = Vector{} + 0.999F;
  const Vector summand = Vector{} + 0.001F;
  Chains a;
  a.start(Vector{} + *sink, summand);
  Vector total;
  if constexpr (kManyRegisters) {
    Chains b;
    b.start(a.c11 + summand, summand);
    for (std::int64_t i = 0; i < steps; ++i) {
      a.step(factor, summand);
      b.step(factor, summand);
    }
    total = a.sum() + b.sum();
  } else {
    for (std::int64_t i = 0; i < steps; ++i) {
      a.step(factor, summand);
    }
    total = a.sum();
  }
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    *sink += total[lane];
  }
  return steps * (kManyRegisters ? 2 : 1) * kChains * kLanes * 2;
}

MPSGRAD_INLINE Vector load(const float* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

MPSGRAD_INLINE void store(Vector v, float* to) { __builtin_memcpy(to, &v, sizeof v); }

// Two vectors, because arm64's instruction stores pairs.
MPSGRAD_INLINE void store_streaming(Vector v0, Vector v1, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, v0);
  _mm512_stream_ps(to + kLanes, v1);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, v0);
  _mm256_stream_ps(to + kLanes, v1);
#elif defined(__SSE2__)
  _mm_stream_ps(to, v0);
  _mm_stream_ps(to + kLanes, v1);
#elif defined(__aarch64__)
  asm volatile("stnp %q1, %q2, [%0]" ::"r"(to), "w"(v0), "w"(v1) : "memory");
#else
  store(v0, to);
  store(v1, to + kLanes);
#endif
}

// Keeps the compiler from seeing a call of memcpy in a loop of loads and stores.
MPSGRAD_INLINE void not_memcpy() { asm volatile("" ::: "memory"); }

template <bool streaming>
MPSGRAD_INLINE void copy_vectors(const float* from, float* to, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const Vector v0 = load(from + i);
    const Vector v1 = load(from + i + kLanes);
    const Vector v2 = load(from + i + 2 * kLanes);
    const Vector v3 = load(from + i + 3 * kLanes);
    if constexpr (streaming) {
      store_streaming(v0, v1, to + i);
      store_streaming(v2, v3, to + i + 2 * kLanes);
    } else {
      store(v0, to + i);
      store(v1, to + i + kLanes);
      store(v2, to + i + 2 * kLanes);
      store(v3, to + i + 3 * kLanes);
    }
    not_memcpy();
  }
  for (; i < n; ++i) {
    to[i] = from[i];
    not_memcpy();
  }
}

void copy(const float* from, float* to, std::int64_t n) { copy_vectors<false>(from, to, n); }

void copy_streaming(const float* from, float* to, std::int64_t n) {
  copy_vectors<true>(from, to, n);
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

float read(const float* from, std::int64_t n) {
  constexpr int kSums = 8;
  Vector sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums * kLanes <= n; i += kSums * kLanes) {
    for (int k = 0; k < kSums; ++k) {
      sums[k] += load(from + i + k * kLanes);
    }
  }
  for (int k = 1; k < kSums; ++k) {
    sums[0] += sums[k];
  }
  float total = 0.0F;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    total += sums[0][lane];
  }
  for (; i < n; ++i) {
    total += from[i];
  }
  return total;
}

}  // namespace

const PeakLoops peak_loops{multiply_add, copy, copy_streaming, read};

}  // namespace mpsgrad::MPSGRAD_ISA
