// Loops over the sixteen activations: f and f' of each are written once, the loop around them is
// shared.
#include "cpu/simd/neuron_function.hpp"

#include <math.h>

#include "cpu/simd/simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

// ln(1 + e^z) and 1 / (1 + e^-z) without overflow for any z.
MPSGRAD_INLINE float soft_plus(float z) { return (z > 0.0F ? z : 0.0F) + log1pf(expf(-fabsf(z))); }

MPSGRAD_INLINE float sigmoid(float z) {
  const float e = expf(-fabsf(z));
  return (z >= 0.0F ? 1.0F : e) / (1.0F + e);
}

struct None {
  MPSGRAD_INLINE float value(float x) const { return x; }
  MPSGRAD_INLINE float slope(float) const { return 1.0F; }
};
struct ReLU {
  float a;
  MPSGRAD_INLINE float value(float x) const { return x >= 0.0F ? x : a * x; }
  MPSGRAD_INLINE float slope(float x) const { return x >= 0.0F ? 1.0F : a; }
};
struct Linear {
  float a, b;
  MPSGRAD_INLINE float value(float x) const { return a * x + b; }
  MPSGRAD_INLINE float slope(float) const { return a; }
};
struct Sigmoid {
  MPSGRAD_INLINE float value(float x) const { return sigmoid(x); }
  MPSGRAD_INLINE float slope(
      float x) const {  // s (1 - s) by the exponential of -|x|: no cancellation for large |x|
    const float e = expf(-fabsf(x));
    return e / ((1.0F + e) * (1.0F + e));
  }
};
struct HardSigmoid {
  float a, b;
  MPSGRAD_INLINE float value(float x) const {
    const float z = a * x + b;
    return z < 0.0F ? 0.0F : (z > 1.0F ? 1.0F : z);
  }
  MPSGRAD_INLINE float slope(float x) const {
    const float z = a * x + b;
    return z >= 0.0F && z <= 1.0F ? a : 0.0F;
  }
};
struct TanH {
  float a, b;
  MPSGRAD_INLINE float value(float x) const { return a * tanhf(b * x); }
  MPSGRAD_INLINE float slope(float x) const {  // 1 - tanh^2 = 4e / (1 + e)^2 with e = exp(-2|bx|)
    const float e = expf(-2.0F * fabsf(b * x));
    return a * b * (4.0F * e / ((1.0F + e) * (1.0F + e)));
  }
};
struct Absolute {
  MPSGRAD_INLINE float value(float x) const { return fabsf(x); }
  MPSGRAD_INLINE float slope(float x) const { return x > 0.0F ? 1.0F : (x < 0.0F ? -1.0F : 0.0F); }
};
struct SoftPlus {
  float a, b;
  MPSGRAD_INLINE float value(float x) const { return a * soft_plus(b * x); }
  MPSGRAD_INLINE float slope(float x) const { return a * b * sigmoid(b * x); }
};
struct SoftSign {
  MPSGRAD_INLINE float value(float x) const { return x / (1.0F + fabsf(x)); }
  MPSGRAD_INLINE float slope(float x) const {
    const float d = 1.0F + fabsf(x);
    return 1.0F / (d * d);
  }
};
struct ELU {
  float a;
  MPSGRAD_INLINE float value(float x) const { return x >= 0.0F ? x : a * expm1f(x); }
  MPSGRAD_INLINE float slope(float x) const { return x >= 0.0F ? 1.0F : a * expf(x); }
};
struct ReLUN {
  float a, b;
  MPSGRAD_INLINE float value(float x) const {
    const float r = x >= 0.0F ? x : a * x;
    return r < b ? r : b;
  }
  MPSGRAD_INLINE float slope(float x) const {
    const float r = x >= 0.0F ? x : a * x;
    return r >= b ? 0.0F : (x >= 0.0F ? 1.0F : a);
  }
};
struct Power {
  float a, b, c;
  MPSGRAD_INLINE float value(float x) const { return powf(a * x + b, c); }
  MPSGRAD_INLINE float slope(float x) const { return a * c * powf(a * x + b, c - 1.0F); }
};
struct Exponential {  // base e^scale; `scale` is 1 for c == -1
  float a, b, base, scale;
  MPSGRAD_INLINE float value(float x) const {
    return base == -1.0F ? expf(a * x + b) : powf(base, a * x + b);
  }
  MPSGRAD_INLINE float slope(float x) const { return a * scale * value(x); }
};
struct Logarithm {
  float a, b, scale;
  MPSGRAD_INLINE float value(float x) const { return logf(a * x + b) / scale; }
  MPSGRAD_INLINE float slope(float x) const { return a / (scale * (a * x + b)); }
};
struct GeLU {
  MPSGRAD_INLINE float value(float x) const { return 0.5F * x * (1.0F + erff(x * 0.707106781F)); }
  MPSGRAD_INLINE float slope(float x) const {
    return 0.5F * (1.0F + erff(x * 0.707106781F) + 0.797884561F * x * expf(-0.5F * x * x));
  }
};

template <class Visit>
void with_function(const NeuronFunction& f, const Visit& visit) {
  const float scale = f.c == -1.0F ? 1.0F : logf(f.c);
  switch (f.type) {
    case 1:
      return visit(ReLU{f.a});
    case 2:
      return visit(Linear{f.a, f.b});
    case 3:
      return visit(Sigmoid{});
    case 4:
      return visit(HardSigmoid{f.a, f.b});
    case 5:
      return visit(TanH{f.a, f.b});
    case 6:
      return visit(Absolute{});
    case 7:
      return visit(SoftPlus{f.a, f.b});
    case 8:
      return visit(SoftSign{});
    case 9:
      return visit(ELU{f.a});
    case 11:
      return visit(ReLUN{f.a, f.b});
    case 12:
      return visit(Power{f.a, f.b, f.c});
    case 13:
      return visit(Exponential{f.a, f.b, f.c, scale});
    case 14:
      return visit(Logarithm{f.a, f.b, scale});
    case 15:
      return visit(GeLU{});
    default:
      return visit(None{});
  }
}

constexpr int kPReLU = 10;

void forward(const NeuronFunction& f, const float* x, float* y, std::int64_t pixels,
             std::int64_t channels) {
  if (f.type == kPReLU) {
    for (std::int64_t p = 0; p < pixels; ++p, x += channels, y += channels) {
      for (std::int64_t c = 0; c < channels; ++c) {
        y[c] = ReLU{f.data[c]}.value(x[c]);
      }
    }
    return;
  }
  with_function(f, [=](const auto function) {
    for (std::int64_t i = 0; i < pixels * channels; ++i) {
      y[i] = function.value(x[i]);
    }
  });
}

void gradient(const NeuronFunction& f, const float* g, const float* x, float* y,
              std::int64_t pixels, std::int64_t channels) {
  if (f.type == kPReLU) {
    for (std::int64_t p = 0; p < pixels; ++p, x += channels, g += channels, y += channels) {
      for (std::int64_t c = 0; c < channels; ++c) {
        y[c] = g[c] * ReLU{f.data[c]}.slope(x[c]);
      }
    }
    return;
  }
  with_function(f, [=](const auto function) {
    for (std::int64_t i = 0; i < pixels * channels; ++i) {
      y[i] = g[i] * function.slope(x[i]);
    }
  });
}

}  // namespace

const NeuronLoops neuron_loops{&forward, &gradient};

}  // namespace mpsgrad::MPSGRAD_ISA
