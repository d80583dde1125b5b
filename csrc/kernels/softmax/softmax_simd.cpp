// Softmax loops, piece by piece; pixels of few channels plane by plane.
#include "kernels/softmax/softmax_simd.hpp"

#include "cpu/simd/pack_loops.hpp"
#include "cpu/simd/softmax_rows.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

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

// Exponentials of any numbers, in place or not.
MPSGRAD_INLINE void take_powers(const float* x, float* out, Index count) {
  transform_packs(count, out, [](const auto& number) MPSGRAD_MELT { return exp(number); }, x);
}

template <class Element>
MPSGRAD_INLINE void softmax_piece(auto lanes, auto vectors, const Element* x, Element* out,
                                  float* scratch, Index pixels, Index channels) {
  constexpr int kLanes = lanes, kVectors = vectors;
  float* exponentials = between(out, scratch);
  subtract_largest<kLanes, kVectors>(x, exponentials, pixels, channels);
  take_exponentials(exponentials, exponentials, pixels * channels);
  for (Index p = 0; p < pixels; ++p, out += channels, exponentials += channels) {
    const float share = 1.0F / sum_of<kLanes, kVectors>(channels, exponentials);
    fill_row<kLanes, kVectors>(
        channels, out, [=](Index c) { return load<Floats<kLanes>>(exponentials + c) * share; });
  }
}

template <class Element>
MPSGRAD_INLINE void log_softmax_piece(auto lanes, auto vectors, const Element* x, Element* out,
                                      float* scratch, Index pixels, Index channels) {
  constexpr int kLanes = lanes, kVectors = vectors;
  float* exponentials = scratch;
  float* below = between(out, scratch + pixels * channels);
  float logarithms[kPiece];
  subtract_largest<kLanes, kVectors>(x, below, pixels, channels);
  take_exponentials(below, exponentials, pixels * channels);
  log_sums<kLanes, kVectors>(exponentials, logarithms, pixels, channels);
  for (Index p = 0; p < pixels; ++p, out += channels, below += channels) {
    const float logarithm = logarithms[p];
    fill_row<kLanes, kVectors>(
        channels, out, [=](Index c) { return load<Floats<kLanes>>(below + c) - logarithm; });
  }
}

template <class Element>
MPSGRAD_INLINE void softmax_gradient_rows(auto lanes, auto vectors, const Element* gradient,
                                          const Element* result, Element* MPSGRAD_RESTRICT out,
                                          Index pixels, Index channels) {
  constexpr int kLanes = lanes, kVectors = vectors;
  using V = Floats<kLanes>;
  for (Index p = 0; p < pixels; ++p) {
    const float dot = sum_row<kLanes, kVectors>(channels, [=](Index c) {
      request(gradient, c + kPieceAhead);
      request(result, c + kPieceAhead);
      return load<V>(gradient + c) * load<V>(result + c);
    });
    fill_row<kLanes, kVectors>(channels, out, [=](Index c) {
      return load<V>(result + c) * (load<V>(gradient + c) - dot);
    });
    gradient += channels;
    result += channels;
    out += channels;
  }
}

template <class Element>
MPSGRAD_INLINE void log_softmax_gradient_piece(auto lanes, auto vectors, const Element* gradient,
                                               const Element* result, Element* out, float* scratch,
                                               Index pixels, Index channels) {
  constexpr int kLanes = lanes, kVectors = vectors;
  using V = Floats<kLanes>;
  float* shares = between(out, scratch);
  const float* numbers = floats_of(result, pixels * channels, shares);
  take_powers(numbers, shares, pixels * channels);
  for (Index p = 0; p < pixels; ++p) {
    const float total = sum_row<kLanes, kVectors>(channels, [=](Index c) {
      request(gradient, c + kPieceAhead);
      request(result, c + pixels * channels);
      return load<V>(gradient + c);
    });
    fill_row<kLanes, kVectors>(channels, out, [=](Index c) {
      return load<V>(gradient + c) - load<V>(shares + c) * total;
    });
    gradient += channels;
    result += channels;
    out += channels;
    shares += channels;
  }
}

// ---- Few channels: plane by plane

template <int kChannels, class Element>
MPSGRAD_INLINE void softmax_planes(const Element* x, Element* out, Index pixels) {
  alignas(kLine) float powers[kPiece];
  subtract_largest<kChannels>(x, powers, pixels);
  take_exponentials(powers, powers, in_whole_vectors(pixels) * kChannels);
  for_planes(pixels, [&](Index p, Index some) MPSGRAD_MELT {
    auto planes = load_planes<kChannels>(powers + p * kChannels);
    const auto share = 1.0F / planes.sum();
    for (auto& plane : planes.of) {
      plane *= share;
    }
    put_together(planes, out + p * kChannels, some);
  });
}

template <int kChannels, class Element>
MPSGRAD_INLINE void log_softmax_planes(const Element* x, Element* out, Index pixels) {
  alignas(kLine) float below[kPiece];
  alignas(kLine) float powers[kPiece];
  alignas(kLine) float logarithms[kPlanePixels<kChannels>];
  subtract_largest<kChannels>(x, below, pixels);
  take_exponentials(below, powers, in_whole_vectors(pixels) * kChannels);
  log_sums<kChannels>(powers, logarithms, pixels);
  for_planes(pixels, [&](Index p, Index some) MPSGRAD_MELT {
    auto planes = load_planes<kChannels>(below + p * kChannels);
    const auto logarithm = load<Floats<kWidest>>(logarithms + p);
    for (auto& plane : planes.of) {
      plane -= logarithm;
    }
    put_together(planes, out + p * kChannels, some);
  });
}

template <int kChannels, class Element>
MPSGRAD_INLINE void softmax_gradient_planes(const Element* gradient, const Element* result,
                                            Element* out, Index pixels) {
  for_planes(pixels, [=](Index p, Index some) MPSGRAD_MELT {
    const auto g = take_apart<kChannels>(gradient + p * kChannels, some);
    auto y = take_apart<kChannels>(result + p * kChannels, some);
    auto dot = g.of[0] * y.of[0];
    for (int c = 1; c < kChannels; ++c) {
      dot += g.of[c] * y.of[c];
    }
    for (int c = 0; c < kChannels; ++c) {
      y.of[c] *= g.of[c] - dot;
    }
    put_together(y, out + p * kChannels, some);
  });
}

template <int kChannels, class Element>
MPSGRAD_INLINE void log_softmax_gradient_planes(const Element* gradient, const Element* result,
                                                Element* out, Index pixels) {
  alignas(kLine) float shares[kPiece];
  for_planes(pixels, [&](Index p, Index some) MPSGRAD_MELT {
    store_planes(take_apart<kChannels>(result + p * kChannels, some), shares + p * kChannels);
  });
  take_powers(shares, shares, in_whole_vectors(pixels) * kChannels);
  for_planes(pixels, [&](Index p, Index some) MPSGRAD_MELT {
    auto g = take_apart<kChannels>(gradient + p * kChannels, some);
    const auto share = load_planes<kChannels>(shares + p * kChannels);
    const auto total = g.sum();
    for (int c = 0; c < kChannels; ++c) {
      g.of[c] -= share.of[c] * total;
    }
    put_together(g, out + p * kChannels, some);
  });
}

// ---- Any number of channels

// Up to so many channels planes are faster than rows; for more they take too many shuffles.
constexpr int kPlanesOfSoftMax = 5, kPlanesOfLogSoftMax = 7, kPlanesOfGradients = 3;

template <class Element>
void softmax(const Element* x, Element* out, float* scratch, Index pixels, Index channels) {
  const auto planes = [=](auto count, Index i, Index some) {
    softmax_planes<static_cast<int>(count)>(x + i, out + i, some);
  };
  if (in_planes<kPlanesOfSoftMax>(pixels, channels, planes)) {
    return;
  }
  with_vectors_for(channels, [=](auto lanes, auto vectors) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      softmax_piece(lanes, vectors, x + first, out + first, scratch, some, channels);
    });
  });
}

template <class Element>
void log_softmax(const Element* x, Element* out, float* scratch, Index pixels, Index channels) {
  const auto planes = [=](auto count, Index i, Index some) {
    log_softmax_planes<static_cast<int>(count)>(x + i, out + i, some);
  };
  if (in_planes<kPlanesOfLogSoftMax>(pixels, channels, planes)) {
    return;
  }
  with_vectors_for(channels, [=](auto lanes, auto vectors) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_piece(lanes, vectors, x + first, out + first, scratch, some, channels);
    });
  });
}

template <class Element>
void softmax_gradient(const Element* gradient, const Element* result, Element* out,
                      float* /*scratch*/, Index pixels, Index channels) {
  const auto planes = [=](auto count, Index i, Index some) {
    softmax_gradient_planes<static_cast<int>(count)>(gradient + i, result + i, out + i, some);
  };
  if (in_planes<kPlanesOfGradients>(pixels, channels, planes)) {
    return;
  }
  with_vectors_for(channels, [=](auto lanes, auto vectors) {
    softmax_gradient_rows(lanes, vectors, gradient, result, out, pixels, channels);
  });
}

template <class Element>
void log_softmax_gradient(const Element* gradient, const Element* result, Element* out,
                          float* scratch, Index pixels, Index channels) {
  const auto planes = [=](auto count, Index i, Index some) {
    log_softmax_gradient_planes<static_cast<int>(count)>(gradient + i, result + i, out + i, some);
  };
  if (in_planes<kPlanesOfGradients>(pixels, channels, planes)) {
    return;
  }
  with_vectors_for(channels, [=](auto lanes, auto vectors) {
    for_pieces(pixels, channels, [=](Index first, Index some) {
      log_softmax_gradient_piece(lanes, vectors, gradient + first, result + first, out + first,
                                 scratch, some, channels);
    });
  });
}

template <class Element>
constexpr SoftMaxLoops<Element> kLoops{&softmax<Element>, &log_softmax<Element>,
                                       &softmax_gradient<Element>, &log_softmax_gradient<Element>};

}  // namespace

const ByElement<SoftMaxLoops> softmax_loops{kLoops<float>, kLoops<Half>};

}  // namespace mpsgrad::MPSGRAD_ISA
