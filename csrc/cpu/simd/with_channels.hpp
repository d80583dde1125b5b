// Loops over the pixels of a row that know how many channels a pixel has.
#pragma once

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Calls body(lanes, channels) with the widest vectors that so many channels fill; where they fill
// none, with constants, so that a loop over pixels has none over channels inside.
template <class Body>
MPSGRAD_INLINE void with_channels(std::int64_t channels, const Body& body) {
  switch (channels) {
    case 1:
      return body(Exactly<1>{}, Exactly<1>{});
    case 2:
      return body(Exactly<1>{}, Exactly<2>{});
    case 3:
      return body(Exactly<1>{}, Exactly<3>{});
    default:
      return with_lanes_for(channels, [&](auto lanes) { body(lanes, channels); });
  }
}

}  // namespace mpsgrad::MPSGRAD_ISA
