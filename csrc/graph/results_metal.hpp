// Images and states of ours around those that Apple's graph returns.
#pragma once

#include <memory>

#include "graph/compile_metal.hpp"

namespace mpsgrad::graph_metal {

// What a state of the steps knows, for Apple's in its place.
metal::StateAdopter adopter_of(const State& like);

// What one encode has returned: the result, or nil, and batches in the order of Apple's lists.
struct Returned {
  MPSImageBatch* result;
  NSArray<MPSImageBatch*>* intermediates;
  NSArray<MPSStateBatch*>* states;
};

// Failures are noted in the encode, and then what has been made is of no use: discard it.
GraphMade adopt(const std::shared_ptr<Device>& device, const GraphDescription& description,
                const CompiledGraph& compiled, Encode& encode, const Returned& returned);
void discard(const GraphMade& made);

}  // namespace mpsgrad::graph_metal
