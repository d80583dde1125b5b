// Sums of a gradient over its pixels, channel by channel: what biases take.
#pragma once

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Of kVecs vectors of channels.
template <int kVecs, class... Masks>
MPSGRAD_INLINE void add_vectors(const float* pixel, Index pixels, Index step, float* sums,
                                const Masks&... mask) {
  Vec even[kVecs] = {};
  Vec odd[kVecs] = {};
  Index i = 0;
  for (; i + 2 <= pixels; i += 2) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      even[v] += load(pixel + v * kLanes, mask...);
      odd[v] += load(pixel + step + v * kLanes, mask...);
    }
    pixel += 2 * step;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    if (i < pixels) {
      even[v] += load(pixel + v * kLanes, mask...);
    }
    float* const sum = sums + v * kLanes;
    store(sum, load(sum, mask...) + (even[v] + odd[v]), mask...);
  }
}

// Many channels of each pixel at a time, for pixels may be pages apart.
inline void channel_sums(const float* row, Index pixels, Index step, Index channels, float* sums) {
  constexpr int kTogether = kRegisters / 4;
  Index c = 0;
  for (; c + kTogether * kLanes <= channels; c += kTogether * kLanes) {
    add_vectors<kTogether>(row + c, pixels, step, sums + c);
  }
  for (; c + kLanes <= channels; c += kLanes) {
    add_vectors<1>(row + c, pixels, step, sums + c);
  }
  if (c < channels) {
    add_vectors<1>(row + c, pixels, step, sums + c, first_lanes(channels - c));
  }
}

// The bias sums of so many channels over some rows of a band, if they are wanted.
inline void add_bias(const WeightGradientTask& task, Index first_row, Index last_row,
                     Index channels) {
  for (Index row = first_row; task.bias != nullptr && row < last_row; ++row) {
    channel_sums(task.gradient[row], task.width, task.gradient_step, channels, task.bias);
  }
}
inline void add_bias(const WeightGradientTask& task) {
  add_bias(task, 0, task.rows, task.groups * task.group_gradients);
}

}  // namespace mpsgrad::MPSGRAD_ISA
