// NeuronDescriptor (MPSNNNeuronDescriptor): an activation function by type and parameters, for the
// neuron kernels and for every kernel with a fused neuron.
#pragma once

#include <cstdint>
#include <vector>

#include "core/neuron_type.hpp"

namespace mpsgrad {

struct NeuronDescriptor {
  NeuronType type = NeuronType::None;
  float a = 0.0F, b = 0.0F, c = 0.0F;
  std::vector<float> data;  // PReLU: the slope below zero of each channel
  bool operator==(const NeuronDescriptor&) const = default;
};

// Throws std::invalid_argument, naming `who`, on PReLU without data, or with fewer values than
// `channels` (0: not known yet).
void check_neuron(const NeuronDescriptor& neuron, const char* who, std::int64_t channels);

}  // namespace mpsgrad
