// What Pad and its gradient are, beside kernels: of the forward source every edge mode may be set,
// and any first channel; of all others the modes are ZERO and CLAMP, and the channel a multiple
// of 4.
#pragma once

#include "core/kernel.hpp"

namespace mpsgrad {

class ReadsAnywhere {
 protected:
  ReadsAnywhere() = default;
  virtual ~ReadsAnywhere() = default;
};

// check_channel_offset() for the first channel that is read of the forward source, and
// check_edge_mode() for what lies outside it.
void check_source_channel_offset(const KernelBase& kernel, const char* property, Index value);
void check_source_edge_mode(const KernelBase& kernel, const char* property, EdgeMode mode);

}  // namespace mpsgrad
