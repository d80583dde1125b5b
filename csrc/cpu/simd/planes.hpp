// Pixels of so few channels that the values of one fill no vector: kWidest of them are taken apart
// into vectors of one channel each, and put together again.
#pragma once

#include <utility>

#include "cpu/simd/lanes.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// kWidest pixels, channel by channel.
template <int kChannels>
struct Planes {
  Floats<kWidest> of[kChannels];

  // Of each pixel.
  MPSGRAD_INLINE Floats<kWidest> sum() const {
    auto total = of[0];
    for (int c = 1; c < kChannels; ++c) {
      total += of[c];
    }
    return total;
  }
};

// Calls body(Exactly<channels>) if pixels have kMost channels or fewer.
template <int kMost, class Body>
MPSGRAD_INLINE bool with_planes(std::int64_t channels, const Body& body) {
  if constexpr (kMost == 0) {
    return false;
  } else {
    if (channels != kMost) {
      return with_planes<kMost - 1>(channels, body);
    }
    body(Exactly<kMost>{});
    return true;
  }
}

// Plane after plane, to work on later.
template <int kChannels>
MPSGRAD_INLINE Planes<kChannels> load_planes(const float* from) {
  Planes<kChannels> planes;
  for (int c = 0; c < kChannels; ++c) {
    planes.of[c] = load<Floats<kWidest>>(from + c * kWidest);
  }
  return planes;
}
template <int kChannels>
MPSGRAD_INLINE void store_planes(const Planes<kChannels>& planes, float* to) {
  for (int c = 0; c < kChannels; ++c) {
    store(to + c * kWidest, planes.of[c]);
  }
}

// Where the values of a channel lie in as many vectors as a pixel has channels.
template <int kChannels, int kChannel>
struct LanesOfPlane {
  static constexpr int vector(int lane) { return (lane * kChannels + kChannel) / kWidest; }
  static constexpr int place(int lane) { return (lane * kChannels + kChannel) % kWidest; }
};
// Where the values of one of those vectors lie in planes.
template <int kChannels, int kVector>
struct LanesOfPixels {
  static constexpr int vector(int lane) { return (kVector * kWidest + lane) % kChannels; }
  static constexpr int place(int lane) { return (kVector * kWidest + lane) / kChannels; }
};

// The vector whose values lie where Lanes says; those of vectors before kNext have been found.
template <class Lanes, int kNext, int kVectors, int... kLane>
MPSGRAD_INLINE Floats<kWidest> picked(Floats<kWidest> found,
                                      const Floats<kWidest> (&from)[kVectors],
                                      std::integer_sequence<int, kLane...> lanes) {
  if constexpr (kNext == kVectors) {
    return found;
  } else {
    constexpr bool kFirst = kNext == 1;  // `found` is vector 0 as it lies
    const auto vector =
        __builtin_shufflevector(found, from[kNext],
                                (Lanes::vector(kLane) == kNext ? kWidest + Lanes::place(kLane)
                                 : kFirst                      ? Lanes::place(kLane)
                                                               : kLane)...);
    return picked<Lanes, kNext + 1>(vector, from, lanes);
  }
}

// `pixels` pixels, at most kWidest; the rest are 0.
template <int kChannels, class Element>
MPSGRAD_INLINE Planes<kChannels> take_apart(const Element* from, std::int64_t pixels) {
  Element some[kChannels * kWidest];
  if (pixels < kWidest) {
    __builtin_memset(some, 0, sizeof some);
    __builtin_memcpy(some, from, static_cast<std::size_t>(pixels) * kChannels * sizeof(Element));
    from = some;
  }
  Floats<kWidest> vectors[kChannels];
  for (int k = 0; k < kChannels; ++k) {
    vectors[k] = load<Floats<kWidest>>(from + k * kWidest);
  }
  return [&]<int... kChannel>(std::integer_sequence<int, kChannel...>) MPSGRAD_MELT {
    return Planes<kChannels>{{picked<LanesOfPlane<kChannels, kChannel>, 1>(
        vectors[0], vectors, std::make_integer_sequence<int, kWidest>{})...}};
  }(std::make_integer_sequence<int, kChannels>{});
}

template <int kChannels, class Element>
MPSGRAD_INLINE void put_together(const Planes<kChannels>& planes, Element* to,
                                 std::int64_t pixels) {
  Element some[kChannels * kWidest];
  Element* const out = pixels < kWidest ? some : to;
  [&]<int... kVector>(std::integer_sequence<int, kVector...>) MPSGRAD_MELT {
    (store(out + kVector * kWidest,
           picked<LanesOfPixels<kChannels, kVector>, 1>(
               planes.of[0], planes.of, std::make_integer_sequence<int, kWidest>{})),
     ...);
  }(std::make_integer_sequence<int, kChannels>{});
  if (pixels < kWidest) {
    __builtin_memcpy(to, some, static_cast<std::size_t>(pixels) * kChannels * sizeof(Element));
  }
}

}  // namespace mpsgrad::MPSGRAD_ISA
