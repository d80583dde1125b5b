// Arrays of one float32 a channel, as commands of the normalization kernels hold them.
#pragma once

#include <memory>
#include <numeric>

#include "cpu/cpu_device.hpp"

namespace mpsgrad::cpu {

// How many values a tile of coefficients holds: whole pixels, and for few channels so many that
// vector registers are full and that a loop over a tile is more than its beginning and its end.
inline Index tile_of(Index channels) {
  constexpr Index kLong = 256;
  const Index full = channels * (16 / std::gcd(channels, Index{16}));
  return channels >= kLong ? channels : full * ((kLong + full - 1) / full);
}

// Held by a recorded command; without values where a kernel has no such array.
struct ChannelArray {
  float* values = nullptr;
  std::shared_ptr<void> alive;

  double at(Index channel, double otherwise) const {
    return values != nullptr ? static_cast<double>(values[channel]) : otherwise;
  }
};

inline ChannelArray array_of(const std::shared_ptr<Buffer>& buffer) {
  if (!buffer) {
    return {};
  }
  auto& own = as<CpuBuffer>(*buffer);
  return {reinterpret_cast<float*>(own.device_bytes()), own.alive()};
}

}  // namespace mpsgrad::cpu
