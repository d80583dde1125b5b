// What softmax kernels and their cross entropy do with pixels: with the row of channels that each
// is, or, of few channels, with planes of neighbouring pixels. Exponentials and logarithms are
// taken over many pixels at once, so that they fill the registers however few channels a pixel has;
// and pixels go by in pieces that stay in a first-level cache.
#pragma once

#include "cpu/simd/pack_loops.hpp"
#include "cpu/simd/planes.hpp"
#include "cpu/simd/row_folds.hpp"
#include "cpu/simd/streaming.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {

inline constexpr std::int64_t kPiece = 2048;       // elements, if a pixel has not more
inline constexpr std::int64_t kPieceAhead = 1024;  // elements that are asked for before their turn

// Calls body(first element, pixels) piece by piece.
template <class Body>
MPSGRAD_INLINE void for_pieces(std::int64_t pixels, std::int64_t channels, const Body& body) {
  const std::int64_t most = channels < kPiece ? kPiece / channels : 1;
  for (std::int64_t p = 0; p < pixels; p += most) {
    body(p * channels, most < pixels - p ? most : pixels - p);
  }
}

template <int kLanes, int kVectors, class Term>
MPSGRAD_INLINE float sum_row(std::int64_t channels, const Term& term) {
  return fold_row<kLanes, kVectors>(channels, term, Total{});
}

template <int kLanes, int kVectors>
MPSGRAD_INLINE float sum_of(std::int64_t channels, const float* x) {
  return sum_row<kLanes, kVectors>(channels,
                                   [=](std::int64_t c) { return load<Floats<kLanes>>(x + c); });
}

struct Larger {
  static constexpr float kNeutral = -__builtin_inff();
  template <class V>
  MPSGRAD_INLINE V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// out = x - max(x) within each pixel.
template <int kLanes, int kVectors, class Element>
MPSGRAD_INLINE void subtract_largest(const Element* x, float* MPSGRAD_RESTRICT out,
                                     std::int64_t pixels, std::int64_t channels) {
  using V = Floats<kLanes>;
  for (std::int64_t p = 0; p < pixels; ++p, x += channels, out += channels) {
    const auto term = [=](std::int64_t c) {
      request(x, c + kPieceAhead);
      return load<V>(x + c);
    };
    const float largest = fold_row<kLanes, kVectors>(channels, term, Larger{});
    fill_row<kLanes, kVectors>(channels, out,
                               [=](std::int64_t c) { return load<V>(x + c) - largest; });
  }
}

// Exponentials of what subtract_largest() has made, in place or not.
MPSGRAD_INLINE void take_exponentials(const float* below, float* out, std::int64_t count) {
  transform_packs(count, out, [](const auto& x) MPSGRAD_MELT { return exp_of_negative(x); }, below);
}

MPSGRAD_INLINE void take_logarithms(float* x, std::int64_t count) {
  transform_packs(count, x, [](const auto& number) MPSGRAD_MELT { return log(number); }, x);
}

// The logarithm of each pixel's sum, of a piece.
template <int kLanes, int kVectors>
MPSGRAD_INLINE void log_sums(const float* exponentials, float (&out)[kPiece], std::int64_t pixels,
                             std::int64_t channels) {
  for (std::int64_t p = 0; p < pixels; ++p) {
    out[p] = sum_of<kLanes, kVectors>(channels, exponentials + p * channels);
  }
  take_logarithms(out, pixels);
}

// ---- Few channels: plane by plane

// So many pixels are worked on at a time that all arrays stay in the nearest cache.
template <int kChannels>
inline constexpr std::int64_t kPlanePixels = kPiece / kChannels / kWidest * kWidest;

// Pixels of the vectors that hold so many.
constexpr std::int64_t in_whole_vectors(std::int64_t pixels) {
  return (pixels + kWidest - 1) / kWidest * kWidest;
}

// If pixels have kMost channels or fewer, calls body(Exactly<channels>, first element, pixels)
// piece by piece.
template <int kMost, class Body>
MPSGRAD_INLINE bool in_planes(std::int64_t pixels, std::int64_t channels, const Body& body) {
  return with_planes<kMost>(channels, [&](auto count) MPSGRAD_MELT {
    constexpr std::int64_t kChannels = count, kPixels = kPlanePixels<kChannels>;
    for (std::int64_t p = 0; p < pixels; p += kPixels) {
      body(count, p * kChannels, smaller(kPixels, pixels - p));
    }
  });
}

// Calls body(pixel, pixels from there on) for every kWidest pixels.
template <class Body>
MPSGRAD_INLINE void for_planes(std::int64_t pixels, const Body& body) {
  for (std::int64_t p = 0; p < pixels; p += kWidest) {
    body(p, smaller(kWidest, pixels - p));
  }
}

// x - max(x) within each pixel, in planes.
template <int kChannels, class Element>
MPSGRAD_INLINE void subtract_largest(const Element* x, float* out, std::int64_t pixels) {
  for_planes(pixels, [=](std::int64_t p, std::int64_t some) MPSGRAD_MELT {
    auto planes = take_apart<kChannels>(x + p * kChannels, some);
    auto largest = planes.of[0];
    for (const auto& plane : planes.of) {
      largest = largest > plane ? largest : plane;
    }
    for (auto& plane : planes.of) {
      plane -= largest;
    }
    store_planes(planes, out + p * kChannels);
  });
}

// The logarithm of each pixel's sum.
template <int kChannels>
MPSGRAD_INLINE void log_sums(const float* exponentials, float* out, std::int64_t pixels) {
  for (std::int64_t p = 0; p < pixels; p += kWidest) {
    store(out + p, load_planes<kChannels>(exponentials + p * kChannels).sum());
  }
  take_logarithms(out, in_whole_vectors(pixels));
}

}  // namespace mpsgrad::MPSGRAD_ISA
