// How large anything may be: sizes in bytes below this do not overflow when they are added up.
#pragma once

#include "base/types.hpp"

namespace mpsgrad {

inline constexpr Index kMostBytes = Index{1} << 48;
inline constexpr const char* kBeyondMemory = " are more than any memory holds (2^48 bytes)";

}  // namespace mpsgrad
