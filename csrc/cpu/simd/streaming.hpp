// Stores that go past the caches.
#pragma once

#include <type_traits>

#include "cpu/simd/lanes.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mpsgrad::MPSGRAD_ISA {

// Bytes of a cache line; what is stored past the caches is whole lines.
inline constexpr std::int64_t kLine = 64;

// Bytes between the start of the line that holds `address` and it.
MPSGRAD_INLINE std::int64_t past_line(const void* address) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) % kLine);
}

// Whether there are stores past the caches.
#if defined(__SSE2__)
inline constexpr bool kStreams = true;
#else
inline constexpr bool kStreams = false;
#endif

MPSGRAD_INLINE void stream_line(const std::byte* from, std::byte* to) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
  for (std::int64_t i = 0; i < kLine; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
#elif defined(__SSE2__)
  for (std::int64_t i = 0; i < kLine; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
#else
  __builtin_memcpy(to, from, kLine);
#endif
}

// Copies `bytes` bytes, past the caches where the processor can.
MPSGRAD_INLINE void stream_bytes(const void* from, void* to, std::int64_t bytes) {
  if constexpr (!kStreams) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  const std::int64_t past = past_line(out);
  const std::int64_t ahead = past == 0 ? 0 : kLine - past;
  const std::int64_t first = ahead < bytes ? ahead : bytes;
  __builtin_memcpy(out, in, static_cast<std::size_t>(first));
  std::int64_t i = first;
  for (; i + kLine <= bytes; i += kLine) {
    stream_line(in + i, out + i);
  }
  __builtin_memcpy(out + i, in + i, static_cast<std::size_t>(bytes - i));
}

// Stores a vector that lies within a line, at a multiple of its size, past the caches where the
// processor can.
template <class Vector>
MPSGRAD_INLINE void stream(float* to, Vector v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Vector) == 64) {
    return _mm512_stream_ps(to, __builtin_bit_cast(__m512, v));
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(Vector) == 32) {
    return _mm256_stream_ps(to, __builtin_bit_cast(__m256, v));
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(Vector) == 16) {
    return _mm_stream_ps(to, __builtin_bit_cast(__m128, v));
  }
#endif
  store(to, v);
}
template <class Vector>
MPSGRAD_INLINE void stream(Half* to, Vector v) {
  // As float32 of half as many lanes, which is what its bytes are as long as.
  constexpr int kLanes = sizeof(Vector) / sizeof(float) / 2;
  if constexpr (kLanes >= 8) {
    Half halves[2 * kLanes];
    store(halves, v);
    stream(reinterpret_cast<float*>(to),
           load<Floats<kLanes>>(reinterpret_cast<const float*>(halves)));
  } else {
    store(to, v);
  }
}

// A line of float32 numbers of which not all are there yet. Where a line's vectors are streamed
// with other stores in between, it takes up to three times as long (measured on a Zen 3).
struct alignas(kLine) OpenLine {
  float values[kLine / sizeof(float)];
};

// Keeps a vector in `line`, which is streamed when the last one comes of those that lie in a line
// of the caches. They come in the order of their places.
template <class Vector>
MPSGRAD_INLINE void stream_by_lines(OpenLine& line, float* to, Vector v) {
  if constexpr (sizeof(Vector) == kLine) {
    stream(to, v);
  } else {
    const std::int64_t past = past_line(to);
    store(line.values + past / std::int64_t{sizeof(float)}, v);
    if (past + std::int64_t{sizeof(Vector)} == kLine) {
      stream_line(reinterpret_cast<const std::byte*>(line.values),
                  reinterpret_cast<std::byte*>(to) - past);
    }
  }
}

// How many of the widest vectors make a line of an array of elements, and so stay together where
// stream() takes them past the caches; 1 where it does not, as for float16 of short vectors.
template <class Element>
inline constexpr std::int64_t kLineVectors =
    std::is_same_v<Element, Half> && kWidest < 16
        ? 1
        : kLine / (static_cast<std::int64_t>(sizeof(Element)) * kWidest);

}  // namespace mpsgrad::MPSGRAD_ISA
