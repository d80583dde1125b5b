// Softmax loops. Exponentials are taken over many pixels at once, so that they fill the registers
// however few channels a pixel has; and pixels go by in pieces that stay in a first-level cache.
#include "kernels/softmax/softmax_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

constexpr Index kPiece = 2048;  // elements, if a pixel has not more
constexpr Index kAhead = 1024;  // elements that are asked for before their turn

// Calls body(first pixel, pixels) piece by piece.
template <class Body>
MPSGRAD_INLINE void for_pieces(Index pixels, Index channels, const Body& body) {
  const Index most = channels < kPiece ? kPiece / channels : 1;
  for (Index p = 0; p < pixels; p += most) {
    body(p * channels, most < pixels - p ? most : pixels - p);
  }
}

template <int kLanes, class Term>
MPSGRAD_INLINE float sum(Index channels, const Term& term) {
  return fold_row<kLanes>(channels, 0.0F, term, [](auto a, auto b) { return a + b; });
}

template <int kLanes>
MPSGRAD_INLINE float sum_of(Index channels, const float* x) {
  return sum<kLanes>(channels, [=](Index c) { return load<Floats<kLanes>>(x + c); });
}

template <int kLanes>
MPSGRAD_INLINE float largest(Index channels, const float* x) {
  return fold_row<kLanes>(
      channels, -__builtin_inff(),
      [=](Index c) {
        request(x, c + kAhead);
        return load<Floats<kLanes>>(x + c);
      },
      [](auto a, auto b) { return a > b ? a : b; });
}

// out = x - max(x) within each pixel.
template <int kLanes>
MPSGRAD_INLINE void subtract_largest(const float* x, float* MPSGRAD_RESTRICT out, Index pixels,
                                     Index channels) {
  for (Index p = 0; p < pixels; ++p, x += channels, out += channels) {
    const float top = largest<kLanes>(channels, x);
    fill_row<kLanes>(channels, out, [=](Index c) { return load<Floats<kLanes>>(x + c) - top; });
  }
}

MPSGRAD_INLINE void softmax_piece(auto count, const float* x, float* out, Index pixels,
                                  Index channels) {
  constexpr int kLanes = count.lanes;
  subtract_largest<kLanes>(x, out, pixels, channels);
  for (Index i = 0; i < pixels * channels; ++i) {
    out[i] = exp_of_negative(out[i]);
  }
  for (Index p = 0; p < pixels; ++p, out += channels) {
    const float share = 1.0F / sum_of<kLanes>(channels, out);
    fill_row<kLanes>(channels, out, [=](Index c) { return load<Floats<kLanes>>(out + c) * share; });
  }
}

MPSGRAD_INLINE void log_softmax_piece(auto count, const float* x, float* MPSGRAD_RESTRICT out,
                                      float* MPSGRAD_RESTRICT scratch, Index pixels,
                                      Index channels) {
  constexpr int kLanes = count.lanes;
  subtract_largest<kLanes>(x, out, pixels, channels);
  for (Index i = 0; i < pixels * channels; ++i) {
    scratch[i] = exp_of_negative(out[i]);
  }
  for (Index p = 0; p < pixels; ++p, out += channels, scratch += channels) {
    const float logarithm = log(sum_of<kLanes>(channels, scratch));
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<Floats<kLanes>>(out + c) - logarithm; });
  }
}

MPSGRAD_INLINE void softmax_gradient_rows(auto count, const float* gradient, const float* result,
                                          float* MPSGRAD_RESTRICT out, Index pixels,
                                          Index channels) {
  constexpr int kLanes = count.lanes;
  using V = Floats<kLanes>;
  for (Index p = 0; p < pixels; ++p) {
    const float dot = sum<kLanes>(channels, [=](Index c) {
      request(gradient, c + kAhead);
      request(result, c + kAhead);
      return load<V>(gradient + c) * load<V>(result + c);
    });
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<V>(result + c) * (load<V>(gradient + c) - dot); });
    gradient += channels;
    result += channels;
    out += channels;
  }
}

MPSGRAD_INLINE void log_softmax_gradient_piece(auto count, const float* gradient,
                                               const float* result, float* MPSGRAD_RESTRICT out,
                                               Index pixels, Index channels) {
  constexpr int kLanes = count.lanes;
  using V = Floats<kLanes>;
  for (Index i = 0; i < pixels * channels; ++i) {
    out[i] = exp(result[i]);
  }
  for (Index p = 0; p < pixels; ++p, gradient += channels, result += channels, out += channels) {
    const float total = sum<kLanes>(channels, [=](Index c) {
      request(gradient, c + kAhead);
      request(result, c + pixels * channels);
      return load<V>(gradient + c);
    });
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<V>(gradient + c) - load<V>(out + c) * total; });
  }
}

void softmax(const float* x, float* out, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      softmax_piece(count, x + first, out + first, some, channels);
    });
  });
}

void log_softmax(const float* x, float* out, float* scratch, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_piece(count, x + first, out + first, scratch, some, channels);
    });
  });
}

void softmax_gradient(const float* gradient, const float* result, float* out, Index pixels,
                      Index channels) {
  with_lanes_for(channels, [=](auto count) {
    softmax_gradient_rows(count, gradient, result, out, pixels, channels);
  });
}

void log_softmax_gradient(const float* gradient, const float* result, float* out, Index pixels,
                          Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_gradient_piece(count, gradient + first, result + first, out + first, some,
                                 channels);
    });
  });
}

}  // namespace

const SoftMaxLoops softmax_loops{&softmax, &log_softmax, &softmax_gradient, &log_softmax_gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
