// The activation functions, for the neuron kernels and for kernels with a fused neuron.
#pragma once
#include "internal.hpp"

namespace emulated_metal {

struct NeuronFunction {
  MPSCNNNeuronType type = MPSCNNNeuronTypeNone;
  float a = 0, b = 0, c = 0;
  std::vector<float> data;  // PReLU only

  float value(float x, long channel) const;
  float derivative(float x, long channel) const;
  void check_channels(long channels, const Where& where) const;
  void fields(Fields& fields);

 private:
  float slope_at(long channel) const {
    return type == MPSCNNNeuronTypePReLU ? data[static_cast<size_t>(channel)] : a;
  }
};

NeuronFunction neuron_function(MPSNNNeuronDescriptor* descriptor, const Where& where);

}  // namespace emulated_metal
