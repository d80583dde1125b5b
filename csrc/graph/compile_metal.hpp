// What Apple compiles a graph to: its nodes, from our nodes' kernels, and in which order it takes
// and returns images and states.
#pragma once

#include <memory>
#include <vector>

#include "graph/callbacks_metal.hpp"

namespace mpsgrad::graph_metal {

// Apple's graph, and what has to live as long.
struct CompiledGraph {
  metal::Retained<MPSNNGraph*> graph;
  std::vector<std::shared_ptr<MetalSource>> sources;
  std::vector<std::shared_ptr<AllocatorCalls>> calls;
  // Places among our inputs, by places among Apple's.
  std::vector<std::size_t> image_order, state_order;
  // Slots of ours, by places among Apple's results.
  std::vector<int> intermediate_order, state_result_order;
  bool updates_on_completion = false;

  std::vector<metal::Retained<id>> answering;  // for each source
  std::vector<metal::Node> nodes;
  std::vector<metal::Retained<MPSNNImageNode*>> inputs;
  std::vector<metal::Retained<id<MPSImageAllocator>>> allocators;
};

// Throws GraphUnsuitable where Apple's graph cannot do what the steps do. The description's data
// sources are taken.
CompiledGraph compile(const std::shared_ptr<Device>& device,
                      const std::shared_ptr<Context>& context, GraphDescription& description);

// Apple's own two, or one that calls ours, which is added to `calls`. For the image in `slot`, that
// the kernel of `node` makes, or any of `description` for a node without one.
metal::Retained<id<MPSImageAllocator>> to_mps(const std::shared_ptr<ImageAllocator>& allocator,
                                              const GraphDescription& description,
                                              const GraphNode& node, int slot,
                                              const std::shared_ptr<Context>& context,
                                              std::vector<std::shared_ptr<AllocatorCalls>>& calls);

}  // namespace mpsgrad::graph_metal
