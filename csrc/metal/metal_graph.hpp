// What the kernel families contribute to Apple's graphs: nodes from their kernels, states of ours
// around Apple's, and data sources that Apple calls for updates.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "graph/description.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_updates.hpp"

namespace mpsgrad {

class ConvolutionWeightsAndBiasesState;
struct ConvolutionDescriptor;
struct ConvolutionParameters;

namespace metal {

// ---- nodes

// A forward node to be made.
struct NodeRequest {
  const GraphNode& node;
  NSArray<MPSNNImageNode*>* sources;
  id data_source;                              // nil if it needs none
  MPSCNNConvolutionGradientStateNode* undone;  // or nil

  MPSNNImageNode* source() const { return [sources objectAtIndex:0]; }
  // Null if it is another one.
  template <class Kernel>
  const Kernel* kernel() const {
    return dynamic_cast<const Kernel*>(node.kernel.get());
  }
};

using Node = Retained<MPSNNFilterNode*>;
inline Node adopt_node(MPSNNFilterNode* node) { return Node::adopt(node); }

// Each is nil if the kernel is of another family.
Node make_arithmetic_node(const NodeRequest& request);
Node make_batch_normalization_node(const NodeRequest& request);
Node make_convolution_node(const NodeRequest& request);
Node make_dropout_node(const NodeRequest& request);
Node make_gram_matrix_node(const NodeRequest& request);
Node make_group_normalization_node(const NodeRequest& request);
Node make_local_normalization_node(const NodeRequest& request);
Node make_loss_node(const NodeRequest& request);
Node make_neuron_node(const NodeRequest& request);
Node make_pooling_node(const NodeRequest& request);
Node make_reduction_node(const NodeRequest& request);
Node make_reshape_node(const NodeRequest& request);
Node make_softmax_node(const NodeRequest& request);
Node make_upsampling_node(const NodeRequest& request);

// Numbers that Apple's factories of gradient nodes may not copy as we want them; nothing for
// kernels of other families.
void finish_arithmetic_gradient(MPSNNFilterNode* node, const KernelBase& kernel);
void finish_local_normalization_gradient(MPSNNFilterNode* node, const KernelBase& kernel);

// ---- states

// A state of Apple's that becomes one of ours.
class StateAdoption {
 public:
  std::shared_ptr<Device> device;
  std::shared_ptr<CommandBuffer> command_buffer;  // null once the work has completed
  Index images = 0;                               // of the batch
  bool temporary = false;
  bool lent = false;                                  // Apple ends it, and its buffers with it
  std::vector<std::shared_ptr<MetalBuffer>> buffers;  // made for it
  std::vector<std::shared_ptr<MetalStatePayload>> payloads;  // lent

  std::shared_ptr<CommandBuffer> owner() const { return temporary ? command_buffer : nullptr; }
  // What fills it; null once that has completed.
  std::shared_ptr<Work> work() const { return command_buffer ? command_buffer->work() : nullptr; }
  // What holds Apple's state inside ours.
  std::shared_ptr<MetalStatePayload> payload(MPSState* state);
  // `count` floats of Apple's; throws if there are fewer.
  std::shared_ptr<MetalBuffer> floats(id<MTLBuffer> buffer, Index count, const char* who);
  // The same for arrays that live as long as the kernel; null for nil.
  std::shared_ptr<Buffer> live_floats(id<MTLBuffer> buffer, Index count, const char* who) const;
};

// Remembers what a state that our kernels have made knows.
using StateAdopter = std::function<std::shared_ptr<State>(MPSState* made, StateAdoption& adoption)>;

// Each is null if the state is of another family.
StateAdopter arithmetic_state_adopter(const State& like);
StateAdopter batch_normalization_state_adopter(const State& like);
StateAdopter convolution_state_adopter(const State& like);
StateAdopter dropout_state_adopter(const State& like);
StateAdopter group_normalization_state_adopter(const State& like);
StateAdopter loss_state_adopter(const State& like);

// ---- data sources

Retained<id> make_graph_convolution_source(const ConvolutionParameters& parameters,
                                           std::shared_ptr<SourceUpdates> updates);
void set_answers(id source, const ConvolutionParameters& parameters);
// Apple's state around one of ours; throws if the device makes none.
Retained<MPSCNNConvolutionWeightsAndBiasesState*> mps_weights(
    ConvolutionWeightsAndBiasesState& state, const ConvolutionDescriptor& descriptor);

}  // namespace metal
}  // namespace mpsgrad
