// What Apple's graphs call back into: data sources, allocators and padding policies of users.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/convolution/convolution.hpp"
#include "metal/metal_graph.hpp"
#include "metal/metal_normalization.hpp"

namespace mpsgrad::graph_metal {

inline constexpr const char* kGraph = "Graph";  // for messages
inline std::size_t at(int number) { return static_cast<std::size_t>(number); }

// What encodes of one kind of inputs know of states, by slot; empty where nobody asks.
struct Learned {
  std::vector<metal::StateAdopter> adopters;
};

// One encode, while it runs.
struct Encode {
  const GraphCall& call;
  const Learned& learned;
  Index images;
  std::map<MPSImage*, std::shared_ptr<Image>> given;  // by allocators of ours

  // Called on any thread; null is no failure, and the first one stays.
  bool has_failed() {
    const std::lock_guard lock(mutex);
    return failure != nullptr;
  }
  void fail(std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    if (!failure) {
      failure = std::move(thrown);
    }
  }

  std::mutex mutex;
  std::exception_ptr failure;
};

// What Apple calls back into. Data sources may outlive the graph, until work has completed.
struct Context {
  Encode* encode = nullptr;
  // Of the last encode whose completion updates weights; the next one waits for it.
  std::weak_ptr<Work> work;
  std::shared_ptr<const Learned> learned;
  Index images = 0;
};

// Shows an encode to callbacks, until the scope is left.
class Shown {
 public:
  Shown(Context& context, Encode& encode) : context_(context) { context.encode = &encode; }
  ~Shown() { context_.encode = nullptr; }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  Context& context_;
};

// A data source of a graph: what Apple gets from it and calls it for.
class MetalSource final : public metal::SourceUpdates {
 public:
  MetalSource(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
              GraphDataSource description);

  // The object that answers Apple, which owns `self`.
  static metal::Retained<id> make(const std::shared_ptr<MetalSource>& self);
  // Asks the source again; from now on that is what Apple gets.
  void read();

  // Where the steps have the states that updates get.
  void set_state_slot(int slot) { state_slot_ = slot; }
  int state_slot() const { return state_slot_; }

  bool has(What what, bool on_completion) const override;
  MPSState* now(What what, NSArray<MPSState*>* states, MPSState* source) override;
  bool on_completion(What what, NSArray<MPSState*>* states, MPSState* source) override;

 private:
  const GraphDataSource::Update& update_for(What what) const;
  void read_normalization();
  StateBatch adopt(const Learned& learned, NSArray<MPSState*>* states,
                   metal::StateAdoption& adoption) const;
  std::shared_ptr<State> adopt_weights(MPSState* source, metal::StateAdoption& adoption) const;
  metal::Retained<MPSState*> update_now(Encode& encode, What what, NSArray<MPSState*>* states,
                                        MPSState* source);
  void make_last(CommandBuffer& command_buffer, metal::StateAdoption& adoption) const;
  metal::Retained<MPSState*> to_mps(CommandBuffer& command_buffer, What what, State& state) const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<Device> device_;
  GraphDataSource description_;
  const Convolution* convolution_;  // null: of a normalization
  bool has_biases_ = false;
  metal::NormalizationNumbers numbers_;
  id answering_ = nil;  // which owns this
  int state_slot_ = GraphStep::kNone;
};

// A node's allocator that is neither of Apple's two.
class AllocatorCalls {
 public:
  AllocatorCalls(std::shared_ptr<Context> context, std::shared_ptr<ImageAllocator> allocator,
                 std::shared_ptr<KernelBase> kernel, int slot)
      : context_(std::move(context)),
        allocator_(std::move(allocator)),
        kernel_(std::move(kernel)),
        slot_(slot) {}

  void begin_encode();
  // The next image of the batch; nil if that went wrong.
  MPSImage* next(MPSImageDescriptor* descriptor);

 private:
  MPSImage* next_of(Encode& encode, MPSImageDescriptor* descriptor);

  std::shared_ptr<Context> context_;
  std::shared_ptr<ImageAllocator> allocator_;
  std::shared_ptr<KernelBase> kernel_;
  int slot_;
  std::shared_ptr<ImageBatch> made_;
  Index next_ = 0;
};

metal::Retained<id<MPSImageAllocator>> make_allocator(std::shared_ptr<AllocatorCalls> calls);

// A policy that is not one of Apple's, for a kernel of ours that places its window by it.
metal::Retained<id<MPSNNPadding>> make_padding(std::shared_ptr<Context> context,
                                               std::shared_ptr<Padding> padding,
                                               std::shared_ptr<UnaryKernel> kernel);

}  // namespace mpsgrad::graph_metal
