// Activation descriptors for Apple's kernels, alone or fused into others.
#pragma once

#include "core/neuron_descriptor.hpp"
#include "metal/metal_objects.hpp"

namespace mpsgrad::metal {

// Autoreleased.
MPSNNNeuronDescriptor* to_mps(const NeuronDescriptor& neuron);

}  // namespace mpsgrad::metal
