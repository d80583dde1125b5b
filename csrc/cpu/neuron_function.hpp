// From a descriptor of an activation to what loops take.
#pragma once

#include "core/neuron_descriptor.hpp"
#include "cpu/simd/neuron_function.hpp"

namespace mpsgrad::cpu {

// Points into the descriptor.
inline NeuronFunction function_of(const NeuronDescriptor& neuron) {
  return {neuron.type, neuron.a, neuron.b, neuron.c,
          neuron.data.empty() ? nullptr : neuron.data.data()};
}

}  // namespace mpsgrad::cpu
