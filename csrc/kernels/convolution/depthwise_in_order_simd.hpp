// Weight gradients of depthwise windows in the order in which pixels lie in memory: all channels of
// some neighbours before the next ones, row after row. A walk (depthwise_walk_simd.hpp) keeps its
// sums in registers and reads 64 bytes of each pixel of many rows; here sums stay in the
// first-level cache, and what is read, and asked for ahead, are sequences.
#pragma once

#include <array>
#include <utility>

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/depthwise_walk_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Some neighbouring pixels of a row of the gradient, and the sums that they are added to.
struct InOrderPixels {
  const float* const* source;       // of each tap row: what it reads for the first pixel, or null
  Index offset, tap_step;           // of the first pixel; from one tap to the next
  Index first_column, last_column;  // what is not zeros, from `offset` on, in taps
  const float* gradient;            // the first pixel
  Index step;                       // from one to the next
  Index channels;
  float* sums;  // of each vector of channels: a vector for each tap, and one for the bias
  // The same pixels of the next row, which are asked for; null: they are not.
  const float* const* next_source;
  const float* next_gradient;
};

// Asks for a part of what the next row reads and this one does not: the part that vector c / kLanes
// is of all vectors, so that together they ask for whole pixels, one line after the other.
template <int kTaps, int kStride, int kPixels>
MPSGRAD_INLINE void ask_for_next(const InOrderPixels& t, Index c) {
#pragma GCC unroll 2
  for (int q = kTaps - kStride; q < kTaps; ++q) {
    if (t.next_source[q] != nullptr) {
      const float* const lines = t.next_source[q] + t.offset + c * kPixels * kStride;
#pragma GCC unroll 16
      for (int i = 0; i < kPixels * kStride; ++i) {
        __builtin_prefetch(lines + i * kLanes, 0, 2);
      }
    }
  }
  const float* const lines = t.next_gradient + c * kPixels;
#pragma GCC unroll 8
  for (int i = 0; i < kPixels; ++i) {
    __builtin_prefetch(lines + i * kLanes, 0, 2);
  }
}

// With kInside, all that is read lies inside of the image.
template <int kTaps, int kStride, int kPixels, bool kInside>
void add_pixels(const InOrderPixels& pixels) {
  constexpr int kSums = kTaps * kTaps;
  const InOrderPixels t = pixels;
  const auto columns = static_cast<std::uint64_t>(t.last_column - t.first_column);
  each_vector(t.channels, [&](Index c, const auto&... mask) MPSGRAD_MELT {
    float* const kept = t.sums + c * (kSums + 1);
    Vec sums[kSums];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      sums[i] = load(kept + i * kLanes);
    }
    Vec bias = load(kept + kSums * kLanes);
    if (t.next_source != nullptr) {
      ask_for_next<kTaps, kStride, kPixels>(t, c);
    }
    Vec gradients[kPixels];
#pragma GCC unroll 8
    for (int r = 0; r < kPixels; ++r) {
      gradients[r] = load(t.gradient + r * t.step + c, mask...);
      bias += gradients[r];
    }
#pragma GCC unroll 4
    for (int q = 0; q < kTaps; ++q) {
      if (t.source[q] == nullptr) {
        continue;
      }
      const float* operand = t.source[q] + t.offset + c;
#pragma GCC unroll 32
      for (int column = 0; column < (kPixels - 1) * kStride + kTaps; ++column) {
        if (kInside || static_cast<std::uint64_t>(column - t.first_column) < columns) {
          const Vec x = load(operand, mask...);
#pragma GCC unroll 8
          for (int r = 0; r < kPixels; ++r) {
            const int p = column - r * kStride;
            if (p >= 0 && p < kTaps) {
              sums[q * kTaps + p] += gradients[r] * x;
            }
          }
        }
        operand += t.tap_step;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      store(kept + i * kLanes, sums[i]);
    }
    store(kept + kSums * kLanes, bias);
  });
}

template <int kTaps, int kStride, bool kInside, int... kBefore>
constexpr auto make_in_order(std::integer_sequence<int, kBefore...>) {
  return std::array<void (*)(const InOrderPixels&), kWalkPixels + 1>{
      nullptr, add_pixels<kTaps, kStride, kBefore + 1, kInside>...};
}

// Of a task that walks, whose windows have kTaps rows of as many taps.
template <int kTaps, int kStride>
void weights_in_order(const WeightGradientTask& task, Index channels) {
  constexpr std::make_integer_sequence<int, kWalkPixels> kPixels;
  static constexpr auto kInside = make_in_order<kTaps, kStride, true>(kPixels);
  static constexpr auto kAtEdge = make_in_order<kTaps, kStride, false>(kPixels);
  constexpr Index kChannels = 512;  // at once
  constexpr Index kSums = kTaps * kTaps + 1;
  alignas(64) float sums[kChannels * kSums];
  const Index tiles = ceil_div(task.width, kWalkPixels);
  InOrderPixels t{};
  t.tap_step = task.source_tap_step;
  t.step = task.gradient_step;
  t.sums = sums;
  for (Index first = 0; first < channels; first += kChannels) {
    t.channels = smaller(channels - first, kChannels);
    const Index floats = ceil_div(t.channels, kLanes) * kLanes * kSums;
    for (Index i = 0; i < floats; ++i) {
      sums[i] = 0.0F;
    }
    // What is asked for are whole pixels.
    const bool asks = task.asks && t.channels == t.tap_step && t.channels == t.step;
    for (Index row = 0; row < task.rows; ++row) {
      t.source = task.source + row * task.taps_y;
      t.next_source = asks && row + 1 < task.rows ? t.source + task.taps_y : nullptr;
      for (Index i = 0; i < tiles; ++i) {
        const Index x = i * task.width / tiles;
        const Index pixels = (i + 1) * task.width / tiles - x;
        const Index source = x * task.source_step;
        const Index gradient = x * task.gradient_step + first;
        t.offset = task.source_offset + source + first;
        t.first_column = columns_before(task.first_element - source, t.tap_step);
        t.last_column = columns_before(task.last_element - source, t.tap_step);
        t.gradient = task.gradient[row] + gradient;
        if (t.next_source != nullptr) {
          t.next_gradient = task.gradient[row + 1] + gradient;
        }
        const bool inside = t.first_column == 0 && t.last_column >= (pixels - 1) * kStride + kTaps;
        (inside ? kInside : kAtEdge)[static_cast<std::size_t>(pixels)](t);
      }
    }
    each_vector(t.channels, [&](Index c, const auto&... mask) MPSGRAD_MELT {
      const float* kept = sums + c * kSums;
      float* out = task.out + first + c;
      for (int tap = 0; tap < kTaps * kTaps; ++tap) {
        store(out, load(out, mask...) + load(kept), mask...);
        out += task.group_gradients;
        kept += kLanes;
      }
      if (task.bias != nullptr) {
        float* bias = task.bias + first + c;
        store(bias, load(bias, mask...) + load(kept), mask...);
      }
    });
  }
}

}  // namespace mpsgrad::MPSGRAD_ISA
