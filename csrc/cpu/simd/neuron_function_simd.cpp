// Loops over the sixteen activations: f and f' of each are written once, the loop around them is
// shared.
#include "cpu/simd/neuron_function.hpp"

#include "cpu/simd/elements.hpp"
#include "cpu/simd/pack_loops.hpp"
#include "cpu/simd/vector_math.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

struct None {
  MPSGRAD_INLINE auto value(const auto& x) const { return x; }
  MPSGRAD_INLINE float slope(const auto& /*x*/) const { return 1.0F; }
};
struct ReLU {
  float a;
  MPSGRAD_INLINE auto value(const auto& x) const { return choose(x >= 0.0F, x, a * x); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return choose(x >= 0.0F, 1.0F, a); }
};
struct Linear {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const { return multiply_add(a, x, b); }
  MPSGRAD_INLINE float slope(const auto& /*x*/) const { return a; }
};
struct Sigmoid {
  MPSGRAD_INLINE auto value(const auto& x) const { return sigmoid(x); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return sigmoid_slope(x); }
};
struct HardSigmoid {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const {
    const auto z = multiply_add(a, x, b);
    return choose(z < 0.0F, 0.0F, choose(z > 1.0F, 1.0F, z));
  }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    const auto z = multiply_add(a, x, b);
    return choose(z >= 0.0F, choose(z <= 1.0F, a, 0.0F), 0.0F);
  }
};
struct TanH {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const { return a * tanh(b * x); }
  // 1 - tanh(z)^2 is four times the slope of the sigmoid at 2 z.
  MPSGRAD_INLINE auto slope(const auto& x) const {
    return a * b * (4.0F * sigmoid_slope(2.0F * (b * x)));
  }
};
struct Absolute {
  MPSGRAD_INLINE auto value(const auto& x) const { return abs(x); }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    return choose(x > 0.0F, 1.0F, choose(x < 0.0F, -1.0F, 0.0F));
  }
};
struct SoftPlus {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const { return a * softplus(b * x); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return a * b * sigmoid(b * x); }
};
struct SoftSign {
  MPSGRAD_INLINE auto value(const auto& x) const { return x / (1.0F + abs(x)); }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    const auto d = 1.0F + abs(x);
    return 1.0F / (d * d);
  }
};
struct ELU {
  float a;
  MPSGRAD_INLINE auto value(const auto& x) const { return choose(x >= 0.0F, x, a * expm1(x)); }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    const auto not_positive = choose(x > 0.0F, 0.0F, x);
    return choose(x >= 0.0F, 1.0F, a * exp_of_negative(not_positive));
  }
};
struct ReLUN {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const {
    const auto r = choose(x >= 0.0F, x, a * x);
    return choose(r > b, b, r);  // NaN comes through
  }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    const auto r = choose(x >= 0.0F, x, a * x);
    return choose(r >= b, 0.0F, choose(x >= 0.0F, 1.0F, a));
  }
};
struct Power {
  float a, b, c;
  MPSGRAD_INLINE auto value(const auto& x) const { return pow(multiply_add(a, x, b), c); }
  MPSGRAD_INLINE auto slope(const auto& x) const {
    return a * c * pow(multiply_add(a, x, b), c - 1.0F);
  }
};
struct Square {
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const {
    const auto z = multiply_add(a, x, b);
    return z * z;
  }
  MPSGRAD_INLINE auto slope(const auto& x) const { return 2.0F * a * multiply_add(a, x, b); }
};
struct Exponential {  // of base e
  float a, b;
  MPSGRAD_INLINE auto value(const auto& x) const { return exp(multiply_add(a, x, b)); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return a * value(x); }
};
struct ExponentialOfBase {
  float a, b, base, log_base;
  MPSGRAD_INLINE auto value(const auto& x) const { return pow(base, multiply_add(a, x, b)); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return a * log_base * value(x); }
};
struct Logarithm {
  float a, b, scale;
  MPSGRAD_INLINE auto value(const auto& x) const { return log(multiply_add(a, x, b)) / scale; }
  MPSGRAD_INLINE auto slope(const auto& x) const { return a / (scale * multiply_add(a, x, b)); }
};
struct GeLU {
  MPSGRAD_INLINE auto value(const auto& x) const { return gelu(x); }
  MPSGRAD_INLINE auto slope(const auto& x) const { return gelu_slope(x); }
};

template <class Visit>
void with_function(const NeuronFunction& f, const Visit& visit) {
  const float scale = f.c == -1.0F ? 1.0F : log(f.c);
  switch (f.type) {
    case NeuronType::ReLU:
      return visit(ReLU{f.a});
    case NeuronType::Linear:
      return visit(Linear{f.a, f.b});
    case NeuronType::Sigmoid:
      return visit(Sigmoid{});
    case NeuronType::HardSigmoid:
      return visit(HardSigmoid{f.a, f.b});
    case NeuronType::TanH:
      return visit(TanH{f.a, f.b});
    case NeuronType::Absolute:
      return visit(Absolute{});
    case NeuronType::SoftPlus:
      return visit(SoftPlus{f.a, f.b});
    case NeuronType::SoftSign:
      return visit(SoftSign{});
    case NeuronType::ELU:
      return visit(ELU{f.a});
    case NeuronType::ReLUN:
      return visit(ReLUN{f.a, f.b});
    case NeuronType::Power:
      return f.c == 1.0F   ? visit(Linear{f.a, f.b})
             : f.c == 2.0F ? visit(Square{f.a, f.b})
                           : visit(Power{f.a, f.b, f.c});
    case NeuronType::Exponential:
      return f.c == -1.0F ? visit(Exponential{f.a, f.b})
                          : visit(ExponentialOfBase{f.a, f.b, f.c, scale});
    case NeuronType::Logarithm:
      return visit(Logarithm{f.a, f.b, scale});
    case NeuronType::GeLU:
      return visit(GeLU{});
    default:
      return visit(None{});
  }
}

// y[i] = value(x[i]...), of packs unless the function takes powers, of which there are none.
template <class Function, class Element, class Value, class... Sources>
MPSGRAD_INLINE void transform_numbers(const Function& /*function*/, std::int64_t count,
                                      Results<Element> y, const Value& value, const Sources*... x) {
  if constexpr (std::is_same_v<Function, Power> || std::is_same_v<Function, ExponentialOfBase>) {
    transform_run(
        0, count, y, [&](std::int64_t, auto... numbers) MPSGRAD_MELT { return value(numbers...); },
        x...);
  } else {
    transform_packs_run(count, y, value, x...);
  }
}

// y[i] = value(slope of i's channel, x[i]...), with the slopes of so many pixels at once that few
// channels fill the registers too.
template <class Element, class Value, class... Sources>
MPSGRAD_INLINE void in_pixels(const float* slopes, std::int64_t pixels, std::int64_t channels,
                              Results<Element> y, const Value& value, const Sources*... x) {
  constexpr std::int64_t kMost = 256;
  float repeated[kMost];
  std::int64_t tile = channels;
  if (channels <= kMost / 2) {
    tile = kMost / channels * channels;
    for (std::int64_t i = 0; i < tile; ++i) {
      repeated[i] = i < channels ? slopes[i] : repeated[i - channels];
    }
    slopes = repeated;
  }
  const std::int64_t count = pixels * channels;
  for (std::int64_t first = 0; first < count; first += tile) {
    transform_run(
        0, tile < count - first ? tile : count - first, Results<Element>{y.at + first, y.streamed},
        [&](std::int64_t i, auto... values) { return value(ReLU{slopes[i]}, values...); },
        (x + first)...);
  }
}

template <class Element>
void forward(const NeuronFunction& f, const Element* x, Results<Element> y, std::int64_t pixels,
             std::int64_t channels) {
  if (f.type == NeuronType::PReLU) {
    return in_pixels(
        f.data, pixels, channels, y, [](ReLU relu, float value) { return relu.value(value); }, x);
  }
  with_function(f, [=](const auto function) {
    transform_numbers(
        function, pixels * channels, y,
        [=](const auto& value) MPSGRAD_MELT { return function.value(value); }, x);
  });
}

template <class Element>
void gradient(const NeuronFunction& f, const Element* g, const Element* x, Results<Element> y,
              std::int64_t pixels, std::int64_t channels) {
  if (f.type == NeuronType::PReLU) {
    return in_pixels(
        f.data, pixels, channels, y,
        [](ReLU relu, float incoming, float value) { return incoming * relu.slope(value); }, g, x);
  }
  with_function(f, [=](const auto function) {
    transform_numbers(
        function, pixels * channels, y,
        [=](const auto& incoming, const auto& value)
            MPSGRAD_MELT { return incoming * function.slope(value); },
        g, x);
  });
}

}  // namespace

const ByElement<NeuronLoops> neuron_loops{{&forward<float>, &gradient<float>},
                                          {&forward<Half>, &gradient<Half>}};

}  // namespace mpsgrad::MPSGRAD_ISA
