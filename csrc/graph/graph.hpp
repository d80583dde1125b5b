// Graph (MPSNNGraph): an order of kernels over numbered images and states, encoded in one call. The
// nodes that users write are Python's (python/mpsgrad/graph); what they compile to is here: slots
// for images and states, and steps that read some and write others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/kernel.hpp"

namespace mpsgrad {

class GraphRun;
class GraphRunner;
struct GraphDataSource;
struct GraphDescription;
struct GraphNode;

// What becomes of one image node.
struct GraphImage {
  std::string name;                            // for messages
  ChannelFormat format = ChannelFormat::None;  // None: the graph's
  std::shared_ptr<ImageAllocator> allocator;   // null: temporary
  Index returned = 0;                          // how often the caller gets it: as many reads
  bool synchronize = false;
  Index reads = 0;  // that the steps make of it in one encode
};

// What becomes of one state node. A state that no step makes is an input.
struct GraphState {
  std::string name;
  bool temporary = true;
  Index returned = 0;
  bool synchronize = false;
  Index reads = 0;
};

// One filter node: what it reads and writes, by the places of the slots.
class GraphStep {
 public:
  static constexpr int kNone = -1;

  explicit GraphStep(std::string node) : node_(std::move(node)) {}
  virtual ~GraphStep() = default;

  const std::string& node() const { return node_; }
  // Encodes that read an image or a state, one entry each.
  virtual std::vector<int> image_reads() const = 0;
  virtual std::vector<int> state_reads() const { return {}; }
  virtual void encode(GraphRun& run) = 0;

 private:
  std::string node_;
};

// What an encode returns, in the order of the graph's lists.
struct GraphResult {
  std::shared_ptr<ImageBatch> result;  // null if it is not needed
  std::vector<std::shared_ptr<ImageBatch>> intermediates;
  std::vector<StateBatch> states;
};

// What a data source is called for once the work has completed. It throws nothing: what goes wrong
// is noted in the work.
using GraphCompletion = std::function<void(Work&)>;

class Graph : public KernelBase {
 public:
  explicit Graph(std::shared_ptr<Device> device);
  ~Graph() override;

  // Putting it together. Slots are numbered in the order they are added.
  int add_image(GraphImage image);
  int add_state(GraphState state);
  void add_step(std::unique_ptr<GraphStep> step);
  void set_inputs(std::vector<int> images, std::vector<int> states);
  // `result` may be kNone.
  void set_results(int result, std::vector<int> intermediates, std::vector<int> states);

  // For a device with graphs of its own: the nodes once more, and then that graph. Without it the
  // steps are encoded one by one.
  bool wants_description() const;
  void add_node(GraphNode node);
  int add_data_source(GraphDataSource source);  // its number
  void make_runner();
  bool has_runner() const { return runner_ != nullptr; }
  const std::string& why_no_runner() const { return why_no_runner_; }
  void reload_runner();
  // How to call what calls Python on other threads.
  std::function<void(const std::function<void()>&)> outside;

  ChannelFormat format() const { return format_; }
  void set_format(ChannelFormat format);
  const std::shared_ptr<ImageAllocator>& allocator() const { return allocator_; }
  void set_allocator(std::shared_ptr<ImageAllocator> allocator);
  bool output_state_is_temporary = false;

  Index source_image_count() const { return static_cast<Index>(source_images_.size()); }
  Index source_state_count() const { return static_cast<Index>(source_states_.size()); }
  // How many reads of a temporary input one encode spends.
  Index read_count_for_source_image(Index index) const;
  Index read_count_for_source_state(Index index) const;
  // As the last encode had it; none before.
  std::optional<ImageDescriptor> last_descriptor(int image) const;

  // Encodes of one graph take turns: false if `limit` has passed. Throws GraphError for a thread
  // whose turn it is already, as in a callback of this graph.
  bool begin_turn(std::chrono::milliseconds limit);
  void end_turn();

  // One batch an input; in a turn of the caller's. Every step is tried on one image first where
  // sizes or formats have not been seen before, so that what does not fit is found before anything
  // is encoded.
  GraphResult encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                     const std::vector<ImageBatch::Images>& source_images,
                     const std::vector<StateBatch>& source_states);

  // Work of this graph whose completion updates weights by the CPU: nothing may be encoded before
  // it has run. Throws GraphError if it never can, because it is not committed; else null, or what
  // to wait for. Rethrows, once, what such an update has failed with.
  std::shared_ptr<Work> pending_updates(const CommandBuffer* next);
  // The same for all work of this graph.
  std::shared_ptr<Work> outstanding_work() const;

 private:
  friend class GraphRun;

  void check_inputs(const CommandBuffer& command_buffer,
                    const std::vector<ImageBatch::Images>& source_images,
                    const std::vector<StateBatch>& source_states) const;
  // What the steps make of inputs of one kind.
  struct Rehearsal {
    std::vector<std::optional<ImageDescriptor>> descriptors;
    std::shared_ptr<void> learned;  // by the runner
  };
  // Properties that an encode begins with: callbacks may set the graph's for the next one.
  struct Settings {
    ChannelFormat format;
    std::shared_ptr<ImageAllocator> allocator;
    bool output_state_is_temporary;
  };
  // Good until the next call.
  const Rehearsal& rehearsal(const Settings& settings,
                             const std::vector<ImageBatch::Images>& source_images,
                             const std::vector<StateBatch>& source_states);
  Rehearsal rehearse(const Settings& settings, const std::vector<ImageBatch::Images>& source_images,
                     const std::vector<StateBatch>& source_states);
  void run_steps(GraphRun& run);
  // Synchronizes given states whose nodes ask for it: an encode writes losses into labels.
  void synchronize_sources(CommandBuffer& command_buffer,
                           const std::vector<StateBatch>& source_states) const;
  GraphResult encode_by_runner(const Settings& settings,
                               const std::shared_ptr<CommandBuffer>& command_buffer,
                               const std::vector<ImageBatch::Images>& source_images,
                               const std::vector<StateBatch>& source_states,
                               const Rehearsal& rehearsal);
  // Of a command buffer on which something is or will be encoded: a callback may commit it and
  // continue, so it is looked at again after every step.
  void note_part(const CommandBuffer& command_buffer);
  void note_outstanding(const std::shared_ptr<Work>& work, bool updates,
                        std::shared_ptr<std::atomic<bool>> done);

  std::vector<GraphImage> images_;
  std::vector<GraphState> states_;
  std::vector<std::unique_ptr<GraphStep>> steps_;
  std::vector<int> source_images_, source_states_;
  std::vector<int> intermediates_, result_states_;
  int result_ = GraphStep::kNone;
  ChannelFormat format_ = ChannelFormat::Float16;
  std::shared_ptr<ImageAllocator> allocator_;

  std::unique_ptr<GraphDescription> description_;  // while the graph is put together
  std::unique_ptr<GraphRunner> runner_;
  std::string why_no_runner_;
  std::map<std::vector<Index>, Rehearsal> rehearsed_;  // by kinds of inputs that fit
  std::vector<std::optional<ImageDescriptor>> last_descriptors_;
  mutable std::mutex work_mutex_;
  std::vector<std::shared_ptr<Work>> outstanding_;
  // The last work that updates by the CPU, and whether the updates have run; the latter is null
  // where the device's own graph runs them.
  std::shared_ptr<Work> pending_updates_;
  std::shared_ptr<std::atomic<bool>> updates_done_;
  // Not a timed mutex, whose locking the thread sanitizer of GCC 12 does not see.
  std::mutex turn_mutex_;
  std::condition_variable turn_ended_;
  std::atomic<std::thread::id> turn_of_;  // nobody's between turns
};

// One encode of a graph: what its slots hold.
class GraphRun {
 public:
  // `rehearsal`: one image an input on a command buffer that nobody commits; nobody outside is
  // called.
  GraphRun(Graph& graph, Graph::Settings settings, std::shared_ptr<CommandBuffer> command_buffer,
           bool rehearsal);
  ~GraphRun();
  GraphRun(const GraphRun&) = delete;
  GraphRun& operator=(const GraphRun&) = delete;

  const std::shared_ptr<CommandBuffer>& command_buffer() const { return command_buffer_; }
  bool is_rehearsal() const { return rehearsal_; }

  const ImageBatch::Images& images(int slot) const;
  const StateBatch& states(int slot) const;
  bool is_wanted(int slot) const;  // an image that somebody reads
  bool is_temporary_state(int slot) const;

  void set_input(int slot, const ImageBatch::Images& images);
  void set_input(int slot, const StateBatch& states);
  // Where a step's result comes from: the node's format and allocator.
  ImageAllocator& allocator(int slot);
  // Images that a step writes by several encodes: the reads are set once it is done.
  void begin_result(int slot, std::shared_ptr<ImageBatch> images);
  void set_result(int slot, std::shared_ptr<ImageBatch> images);
  void set_result(int slot, StateBatch states);

  // Where each source of a concatenation begins, kept beside its state.
  std::vector<Index>& channel_offsets(int state_slot);
  void on_completion(GraphCompletion completion) { completions_.push_back(std::move(completion)); }
  const std::vector<GraphCompletion>& completions() const { return completions_; }

  GraphResult take_result();
  std::vector<std::optional<ImageDescriptor>> descriptors() const;  // of what has been made
  std::vector<std::shared_ptr<State>> first_states() const;         // null where there is none

 private:
  class ResultAllocator;

  Graph& graph_;
  const Graph::Settings settings_;
  std::shared_ptr<CommandBuffer> command_buffer_;
  bool rehearsal_;
  bool succeeded_ = false;
  std::vector<std::shared_ptr<ImageBatch>> images_;
  std::vector<bool> made_;  // by this run, not given
  std::vector<StateBatch> states_;
  std::vector<std::vector<Index>> channel_offsets_;
  std::vector<GraphCompletion> completions_;
  std::unique_ptr<ResultAllocator> result_allocator_;
};

}  // namespace mpsgrad
