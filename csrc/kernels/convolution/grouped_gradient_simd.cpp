// The weight gradient of groups of a few channels: groups lie side by side in a vector, and each
// value of the source is spread over the lanes of its group.
#include <type_traits>
#include <utility>

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

constexpr int kMembers = 4;  // channels of a group whose sums are in registers
constexpr int kPixels = kRegisters > 16 ? 4 : 2;
constexpr Index kAhead = 16;  // pixels, asked for before they are needed

template <int kMixed, int kFirst, int... kMember>
MPSGRAD_INLINE void spread(Vec x, Vec (&to)[kMembers], std::integer_sequence<int, kMember...>) {
  constexpr std::make_integer_sequence<int, kLanes> kAll;
  ((to[kMember] = member<kMixed, kFirst + kMember>(x, kAll)), ...);
}

// Taps [tap, tap + kTaps) of row q, for some members of each group; neighbouring pixels are kStride
// taps apart, and what they share is loaded once. One tap has two sums, for neighbouring pixels.
template <int kMixed, int kFirst, int kTaps, int kStride, class... Masks>
MPSGRAD_INLINE void add_row(const WeightGradientTask& task, Index q, Index tap, Index channel,
                            const Masks&... mask) {
  constexpr int kSums = kTaps == 1 ? 2 : kTaps;
  constexpr std::make_integer_sequence<int, kMembers> kEach;
  Vec sums[kMembers][kSums];
#pragma GCC unroll 4
  for (int m = 0; m < kMembers; ++m) {
#pragma GCC unroll 3
    for (int s = 0; s < kSums; ++s) {
      sums[m][s] = Vec{};
    }
  }
  const Index gradient_step = task.gradient_step;
  const Index source_step = task.source_step;
  const Index column_step = kTaps == 1 ? source_step : task.source_tap_step;
  const auto add_pixels = [&](auto pixels, const float* gradient,
                              const float* source) MPSGRAD_MELT {
    constexpr int kNow = decltype(pixels)::value;
    Vec g[kNow];
#pragma GCC unroll 4
    for (int i = 0; i < kNow; ++i) {
      g[i] = load(gradient + i * gradient_step, mask...);
    }
#pragma GCC unroll 16
    for (int column = 0; column < (kNow - 1) * kStride + kTaps; ++column) {
      Vec x[kMembers];
      spread<kMixed, kFirst>(load(source + column * column_step, mask...), x, kEach);
#pragma GCC unroll 4
      for (int i = 0; i < kNow; ++i) {
        const int p = column - i * kStride;
        if (p >= 0 && p < kTaps) {
#pragma GCC unroll 4
          for (int m = 0; m < kMembers; ++m) {
            sums[m][kTaps == 1 ? i % 2 : p] += g[i] * x[m];
          }
        }
      }
    }
  };
  using Several = std::integral_constant<int, kPixels>;
  using One = std::integral_constant<int, 1>;
  for (Index row = 0; row < task.rows; ++row) {
    const float* gradient = task.gradient[row] + channel;
    const float* source = task.source[row * task.taps_y + q];
    if (source == nullptr) {
      continue;
    }
    source += tap * task.source_tap_step + channel;
    Index pixel = 0;
    for (; pixel + kPixels <= task.width; pixel += kPixels) {
      add_pixels(Several{}, gradient, source);
#pragma GCC unroll 4
      for (int i = 0; i < kPixels; ++i) {
        __builtin_prefetch(gradient + (kAhead + i) * gradient_step);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPixels * kStride; ++i) {
        __builtin_prefetch(source + (kAhead * kStride + i) * column_step);
      }
      gradient += kPixels * gradient_step;
      source += kPixels * source_step;
    }
    for (; pixel < task.width; ++pixel) {
      add_pixels(One{}, gradient, source);
      gradient += gradient_step;
      source += source_step;
    }
  }
  const Index channels = task.group_gradients;
  const Index taps = task.taps_y * task.taps_x;
#pragma GCC unroll 4
  for (int m = 0; m < kMembers; ++m) {
    float* out = task.out + ((kFirst + m) * taps + q * task.taps_x + tap) * channels + channel;
    if constexpr (kTaps == 1) {
      sums[m][0] += sums[m][1];
    }
#pragma GCC unroll 3
    for (int p = 0; p < kTaps; ++p) {
      store(out, load(out, mask...) + sums[m][p], mask...);
      out += channels;
    }
  }
}

template <int kMixed, int kFirst, class... Masks>
MPSGRAD_INLINE void add_vector(const WeightGradientTask& task, Index channel,
                               const Masks&... mask) {
  const bool dense = task.source_step == task.source_tap_step;
  const bool halved = task.source_step == 2 * task.source_tap_step;
  for (Index q = 0; q < task.taps_y; ++q) {
    if (task.taps_x == 3 && dense) {
      add_row<kMixed, kFirst, 3, 1>(task, q, 0, channel, mask...);
    } else if (task.taps_x == 3 && halved) {
      add_row<kMixed, kFirst, 3, 2>(task, q, 0, channel, mask...);
    } else {
      for (Index tap = 0; tap < task.taps_x; ++tap) {
        add_row<kMixed, kFirst, 1, 1>(task, q, tap, channel, mask...);
      }
    }
  }
  if constexpr (kFirst + kMembers < kMixed) {
    add_vector<kMixed, kFirst + kMembers>(task, channel, mask...);
  }
}

template <int kMixed>
void weights_of(const WeightGradientTask& task) {
  const Index channels = task.last_gradient - task.first_gradient;
  Index c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    add_vector<kMixed, 0>(task, c);
  }
  if (c < channels) {
    add_vector<kMixed, 0>(task, c, first_lanes(channels - c));
  }
}

template <int kMixed = kMembers>
void weights(const WeightGradientTask& task) {
  if constexpr (kMixed <= kMostMixed) {
    task.mixed == kMixed ? weights_of<kMixed>(task) : weights<2 * kMixed>(task);
  }
}

}  // namespace

const GroupedGradientLoops grouped_gradient_loops{kMostMixed, &weights<>};

}  // namespace mpsgrad::MPSGRAD_ISA
