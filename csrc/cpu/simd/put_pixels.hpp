// Results that a loop makes pixel by pixel, each of it a run of channels.
#pragma once

#include "cpu/simd/results.hpp"
#include "cpu/simd/streaming.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Makes the results of a row of pixels: put(pixel, channel, count, to) writes `count` channels of
// one of them. What is streamed goes by way of a block in the nearest cache.
template <class Element, class Put>
MPSGRAD_INLINE void put_pixels(std::int64_t pixels, std::int64_t channels, Results<Element> out,
                               const Put& put) {
  using Index = std::int64_t;
  constexpr Index kBlock = 1024;
  constexpr auto kBytes = static_cast<Index>(sizeof(Element));
  if (!out.streamed) {
    for (Index p = 0; p < pixels; ++p) {
      put(p, Index{0}, channels, out.at + p * channels);
    }
    return;
  }
  alignas(kLine) Element block[kBlock];
  if (channels > kBlock / 2) {
    for (Index p = 0; p < pixels; ++p) {
      for (Index c = 0, some = 0; c < channels; c += some) {
        // The last two parts are one, so that none is shorter than a vector.
        some = channels - c <= kBlock ? channels - c : kBlock / 2;
        put(p, c, some, block);
        stream_bytes(block, out.at + p * channels + c, some * kBytes);
      }
    }
    return;
  }
  const Index together = kBlock / channels;
  for (Index first = 0; first < pixels; first += together) {
    const Index some = pixels - first < together ? pixels - first : together;
    for (Index p = 0; p < some; ++p) {
      put(first + p, Index{0}, channels, block + p * channels);
    }
    stream_bytes(block, out.at + first * channels, some * channels * kBytes);
  }
}

template <class Element>
MPSGRAD_INLINE void clear(Element* to, std::int64_t count) {
  __builtin_memset(to, 0, static_cast<std::size_t>(count) * sizeof(Element));
}

}  // namespace mpsgrad::MPSGRAD_ISA
