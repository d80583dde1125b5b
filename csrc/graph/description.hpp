// A graph as a device with graphs of its own (MPSNNGraph on Metal) wants it: nodes instead of
// steps.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/kernel.hpp"
#include "graph/graph.hpp"
#include "kernels/reshape/reshape.hpp"

namespace mpsgrad {

class ConvolutionDataSource;
class NormalizationDataSource;

enum class TrainingStyle : int { None = 0, Cpu = 1, Gpu = 2 };

// One filter node that runs. Images, states and nodes are numbers: images and states those of the
// graph's slots.
struct GraphNode {
  static constexpr int kNone = GraphStep::kNone;

  std::string kind;   // Apple's class without its prefix: "ConvolutionNode"
  std::string name;   // for messages
  std::string label;  // empty: none
  // Has the node's numbers. Null where several kernels, or none, do the node's work.
  std::shared_ptr<KernelBase> kernel;
  std::vector<int> sources;
  int result = kNone;
  int state = kNone;        // that it makes
  int forward = kNone;      // the node that this is the gradient of
  int position = 0;         // among that node's gradient nodes
  int labels = kNone;       // a state of the caller's
  int undone = kNone;       // the convolution whose source sizes the result
  int data_source = kNone;  // of forward nodes
  TrainingStyle training_style = TrainingStyle::Gpu;
  std::shared_ptr<Padding> padding;  // null: the class's own
  int flags = 0;                     // of batch normalization
  Reshape::Shape shape;              // of a reshape
};

// A data source and what it can be asked for besides numbers.
struct GraphDataSource {
  // Each is called on any thread; null if the source has no such method. `source`: the weights that
  // the gradients belong to, of convolutions.
  struct Update {
    // While the graph is encoded. The state with new numbers, null if there are none. Throws what
    // went wrong.
    std::function<std::shared_ptr<State>(const std::shared_ptr<CommandBuffer>&, const StateBatch&,
                                         const std::shared_ptr<State>& source)>
        now;
    // Once the work has completed. True: there are new numbers, and `read` has been called. What
    // goes wrong is noted in the work.
    std::function<bool(Work& work, const StateBatch&, const std::shared_ptr<State>& source,
                       const std::function<void()>& read)>
        on_completion;
  };

  std::shared_ptr<KernelBase> kernel;  // the first of those built on it
  Update update;                       // weights, or gamma and beta
  Update statistics;                   // mean and variance
};

struct GraphDescription {
  std::vector<GraphNode> nodes;  // producers before readers
  std::vector<GraphDataSource> data_sources;
  std::vector<GraphImage> images;  // slots
  std::vector<GraphState> states;
  std::vector<int> source_images, source_states;
  int result = GraphStep::kNone;
  std::vector<int> intermediates, result_states;
};

// One encode, after every check.
struct GraphCall {
  const KernelBase& graph;  // for its options and label
  const std::shared_ptr<CommandBuffer>& command_buffer;
  const std::vector<ImageBatch::Images>& source_images;
  const std::vector<StateBatch>& source_states;
  ChannelFormat format;
  const std::shared_ptr<ImageAllocator>& allocator;  // of the result
  bool output_state_is_temporary;
  // What is to become of each slot, as the steps have it.
  const std::vector<std::optional<ImageDescriptor>>& descriptors;
  const std::shared_ptr<void>& learned;
  // Calls with the GIL released.
  const std::function<void(const std::function<void()>&)>& outside;
  // For callbacks on any thread: calls, in the caller's turn, and returns what was thrown.
  const std::function<std::exception_ptr(const std::function<void()>&)>& in_turn;
};

// Results by slot.
struct GraphMade {
  std::map<int, std::shared_ptr<ImageBatch>> images;
  std::map<int, StateBatch> states;
};

// Encodes a graph in place of its steps, by a graph of the device's.
class GraphRunner {
 public:
  virtual ~GraphRunner() = default;
  // From the states that the steps make for inputs of some kind, one or none a slot: what encodes
  // of that kind need to know of them.
  virtual std::shared_ptr<void> learn(const std::vector<std::shared_ptr<State>>& states) = 0;
  virtual GraphMade encode(const GraphCall& call) = 0;
  // Whether weights are updated when an encode's work has completed.
  virtual bool updates_on_completion() const = 0;
  virtual void reload_from_data_sources() = 0;
};

// Calls, and returns what was thrown: Objective-C++ is not everywhere able to catch it.
std::exception_ptr thrown_by(const std::function<void()>& call);

// Why a device's graph cannot take the place of the steps.
class GraphUnsuitable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether a device has graphs of its own.
bool has_graphs(const Device& device);
// Null where the device's graphs cannot do what the steps do; `reason` says why.
std::unique_ptr<GraphRunner> make_graph_runner(const std::shared_ptr<Device>& device,
                                               GraphDescription description, std::string& reason);

}  // namespace mpsgrad
