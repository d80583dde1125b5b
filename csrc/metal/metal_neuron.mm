// Translation of activation descriptors.
#include "metal/metal_neuron.hpp"

namespace mpsgrad::metal {

MPSNNNeuronDescriptor* to_mps(const NeuronDescriptor& neuron) {
  if (neuron.type == NeuronType::PReLU) {
    NSData* slopes = [NSData dataWithBytes:neuron.data.data()
                                    length:neuron.data.size() * sizeof(float)];
    return [MPSNNNeuronDescriptor cnnNeuronPReLUDescriptorWithData:slopes noCopy:false];
  }
  return
      [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:static_cast<MPSCNNNeuronType>(neuron.type)
                                                       a:neuron.a
                                                       b:neuron.b
                                                       c:neuron.c];
}

}  // namespace mpsgrad::metal
