// The penalties. Only <cstdint> here: loops of *_simd.cpp read it.
#pragma once

#include <cstdint>

namespace mpsgrad {

enum class RegularizationType : std::uint32_t { None = 0, L1 = 1, L2 = 2 };

}  // namespace mpsgrad
