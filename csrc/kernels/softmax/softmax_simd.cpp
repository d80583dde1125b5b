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

template <int kLanes, class Element>
MPSGRAD_INLINE float largest(Index channels, const Element* x) {
  return fold_row<kLanes>(
      channels, -__builtin_inff(),
      [=](Index c) {
        request(x, c + kAhead);
        return load<Floats<kLanes>>(x + c);
      },
      [](auto a, auto b) { return a > b ? a : b; });
}

// out = x - max(x) within each pixel.
template <int kLanes, class Element>
MPSGRAD_INLINE void subtract_largest(const Element* x, float* MPSGRAD_RESTRICT out, Index pixels,
                                     Index channels) {
  for (Index p = 0; p < pixels; ++p, x += channels, out += channels) {
    const float top = largest<kLanes>(channels, x);
    fill_row<kLanes>(channels, out, [=](Index c) { return load<Floats<kLanes>>(x + c) - top; });
  }
}

// Where numbers lie between two steps: where results go, if these are float32.
MPSGRAD_INLINE float* between(float* out, float* /*scratch*/) { return out; }
MPSGRAD_INLINE float* between(Half* /*out*/, float* scratch) { return scratch; }

MPSGRAD_INLINE const float* floats_of(const float* x, Index /*count*/, float* /*scratch*/) {
  return x;
}
MPSGRAD_INLINE const float* floats_of(const Half* x, Index count, float* scratch) {
  for_blocks(count, [=](auto block, Index i) { block.put(scratch + i, block.floats(x + i)); });
  return scratch;
}

template <class Element>
MPSGRAD_INLINE void softmax_piece(auto count, const Element* x, Element* out, float* scratch,
                                  Index pixels, Index channels) {
  constexpr int kLanes = count.lanes;
  float* exponentials = between(out, scratch);
  subtract_largest<kLanes>(x, exponentials, pixels, channels);
  for (Index i = 0; i < pixels * channels; ++i) {
    exponentials[i] = exp_of_negative(exponentials[i]);
  }
  for (Index p = 0; p < pixels; ++p, out += channels, exponentials += channels) {
    const float share = 1.0F / sum_of<kLanes>(channels, exponentials);
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<Floats<kLanes>>(exponentials + c) * share; });
  }
}

template <class Element>
MPSGRAD_INLINE void log_softmax_piece(auto count, const Element* x, Element* out, float* scratch,
                                      Index pixels, Index channels) {
  constexpr int kLanes = count.lanes;
  float* MPSGRAD_RESTRICT exponentials = scratch;
  float* MPSGRAD_RESTRICT shifted = between(out, scratch + pixels * channels);
  subtract_largest<kLanes>(x, shifted, pixels, channels);
  for (Index i = 0; i < pixels * channels; ++i) {
    exponentials[i] = exp_of_negative(shifted[i]);
  }
  for (Index p = 0; p < pixels; ++p) {
    const float logarithm = log(sum_of<kLanes>(channels, exponentials));
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<Floats<kLanes>>(shifted + c) - logarithm; });
    out += channels;
    exponentials += channels;
    shifted += channels;
  }
}

template <class Element>
MPSGRAD_INLINE void softmax_gradient_rows(auto count, const Element* gradient,
                                          const Element* result, Element* MPSGRAD_RESTRICT out,
                                          Index pixels, Index channels) {
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

template <class Element>
MPSGRAD_INLINE void log_softmax_gradient_piece(auto count, const Element* gradient,
                                               const Element* result, Element* out, float* scratch,
                                               Index pixels, Index channels) {
  constexpr int kLanes = count.lanes;
  using V = Floats<kLanes>;
  float* shares = between(out, scratch);
  const float* numbers = floats_of(result, pixels * channels, shares);
  MPSGRAD_VECTOR_LOOP
  for (Index i = 0; i < pixels * channels; ++i) {
    shares[i] = exp(numbers[i]);
  }
  for (Index p = 0; p < pixels; ++p) {
    const float total = sum<kLanes>(channels, [=](Index c) {
      request(gradient, c + kAhead);
      request(result, c + pixels * channels);
      return load<V>(gradient + c);
    });
    fill_row<kLanes>(channels, out,
                     [=](Index c) { return load<V>(gradient + c) - load<V>(shares + c) * total; });
    gradient += channels;
    result += channels;
    out += channels;
    shares += channels;
  }
}

template <class Element>
void softmax(const Element* x, Element* out, float* scratch, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      softmax_piece(count, x + first, out + first, scratch, some, channels);
    });
  });
}

template <class Element>
void log_softmax(const Element* x, Element* out, float* scratch, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_piece(count, x + first, out + first, scratch, some, channels);
    });
  });
}

template <class Element>
void softmax_gradient(const Element* gradient, const Element* result, Element* out,
                      float* /*scratch*/, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    softmax_gradient_rows(count, gradient, result, out, pixels, channels);
  });
}

template <class Element>
void log_softmax_gradient(const Element* gradient, const Element* result, Element* out,
                          float* scratch, Index pixels, Index channels) {
  with_lanes_for(channels, [=](auto count) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_gradient_piece(count, gradient + first, result + first, out + first, scratch,
                                 some, channels);
    });
  });
}

template <class Element>
constexpr SoftMaxLoops<Element> kLoops{&softmax<Element>, &log_softmax<Element>,
                                       &softmax_gradient<Element>, &log_softmax_gradient<Element>};

}  // namespace

const ByElement<SoftMaxLoops> softmax_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
