// Softmax loops. Exponentials are taken over a whole run at once, so that they fill the registers
// however few channels a pixel has.
#include "kernels/softmax/softmax_simd.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

struct Value {
  const float* x;
  template <int kLanes>
  MPSGRAD_INLINE auto at(Index i) const {
    return load<Floats<kLanes>>(x + i);
  }
};

struct Product {
  const float* a;
  const float* b;
  template <int kLanes>
  MPSGRAD_INLINE auto at(Index i) const {
    return load<Floats<kLanes>>(a + i) * load<Floats<kLanes>>(b + i);
  }
};

template <class Term>
MPSGRAD_INLINE float sum(Index count, const Term& term) {
  return fold(count, term, [](auto a, auto b) { return a + b; });
}

MPSGRAD_INLINE float largest(Index count, const float* x) {
  return fold(count, Value{x}, [](auto a, auto b) { return a > b ? a : b; });
}

// out = x - max(x) within each pixel.
MPSGRAD_INLINE void subtract_largest(const float* x, float* MPSGRAD_RESTRICT out, Index pixels,
                                     Index channels) {
  for (Index p = 0; p < pixels; ++p, x += channels, out += channels) {
    const float top = largest(channels, x);
    for (Index c = 0; c < channels; ++c) {
      out[c] = x[c] - top;
    }
  }
}

MPSGRAD_INLINE void exponentials(const float* x, float* MPSGRAD_RESTRICT out, Index count) {
  for (Index i = 0; i < count; ++i) {
    out[i] = exp(x[i]);
  }
}

void softmax(const float* x, float* out, Index pixels, Index channels) {
  subtract_largest(x, out, pixels, channels);
  for (Index i = 0; i < pixels * channels; ++i) {
    out[i] = exp(out[i]);
  }
  for (Index p = 0; p < pixels; ++p, out += channels) {
    const float total = sum(channels, Value{out});
    for (Index c = 0; c < channels; ++c) {
      out[c] /= total;
    }
  }
}

void log_softmax(const float* x, float* out, float* scratch, Index pixels, Index channels) {
  subtract_largest(x, out, pixels, channels);
  exponentials(out, scratch, pixels * channels);
  for (Index p = 0; p < pixels; ++p, out += channels, scratch += channels) {
    const float logarithm = log(sum(channels, Value{scratch}));
    for (Index c = 0; c < channels; ++c) {
      out[c] -= logarithm;
    }
  }
}

void softmax_gradient(const float* gradient, const float* result, float* MPSGRAD_RESTRICT out,
                      Index pixels, Index channels) {
  for (Index p = 0; p < pixels; ++p) {
    const float dot = sum(channels, Product{gradient, result});
    for (Index c = 0; c < channels; ++c) {
      out[c] = result[c] * (gradient[c] - dot);
    }
    gradient += channels;
    result += channels;
    out += channels;
  }
}

void log_softmax_gradient(const float* gradient, const float* result, float* MPSGRAD_RESTRICT out,
                          Index pixels, Index channels) {
  exponentials(result, out, pixels * channels);
  for (Index p = 0; p < pixels; ++p, gradient += channels, out += channels) {
    const float total = sum(channels, Value{gradient});
    for (Index c = 0; c < channels; ++c) {
      out[c] = gradient[c] - out[c] * total;
    }
  }
}

}  // namespace

const SoftMaxLoops softmax_loops{&softmax, &log_softmax, &softmax_gradient, &log_softmax_gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
