// How channels are stored, in Apple's numbers. Only <cstdint> here: loops of *_simd.cpp read it.
#pragma once

#include <cstdint>

namespace mpsgrad {

enum class ChannelFormat : std::uint32_t {
  None = 0,
  Unorm8 = 1,
  Unorm16 = 2,
  Float16 = 3,
  Float32 = 4
};

}  // namespace mpsgrad
