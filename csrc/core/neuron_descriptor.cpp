// Validation of activation descriptors.
#include "core/neuron_descriptor.hpp"

#include "base/errors.hpp"

namespace mpsgrad {

void check_neuron(const NeuronDescriptor& neuron, const char* who, std::int64_t channels) {
  if (neuron.type == NeuronType::PReLU) {
    require(!neuron.data.empty(), who, ": PRELU needs data, one value a channel");
    require(static_cast<std::int64_t>(neuron.data.size()) >= channels, who, ": PRELU data has ",
            neuron.data.size(), " values for ", channels, " channels");
  }
}

}  // namespace mpsgrad
