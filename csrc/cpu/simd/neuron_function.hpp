// Activation functions and their derivatives over runs of pixels: for the neuron kernels and fused
// neurons.
#pragma once

#include <cstdint>

#include "core/neuron_type.hpp"
#include "cpu/isa.hpp"
#include "cpu/simd/half.hpp"
#include "cpu/simd/results.hpp"

namespace mpsgrad {

struct NeuronFunction {
  NeuronType type = NeuronType::None;
  float a = 0.0F, b = 0.0F, c = 0.0F;
  const float* data = nullptr;  // PReLU: one slope a channel
};

// x, g and y hold `pixels` pixels of `channels` values; y may be x or g unless it is streamed.
template <class Element>
struct NeuronLoops {
  void (*forward)(const NeuronFunction& f, const Element* x, Results<Element> y,
                  std::int64_t pixels, std::int64_t channels);
  // y = g * f'(x)
  void (*gradient)(const NeuronFunction& f, const Element* g, const Element* x, Results<Element> y,
                   std::int64_t pixels, std::int64_t channels);
};

MPSGRAD_LOOPS(ByElement<NeuronLoops>, neuron_loops)

}  // namespace mpsgrad
