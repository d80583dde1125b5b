// Graphs of the Metal device (MPSNNGraph): encodes of what Apple compiles our nodes to. Weights
// live in Apple's kernels; ours only check what is to come.
#include <algorithm>
#include <exception>
#include <utility>

#include "graph/results_metal.hpp"
#include "kernels/loss/loss.hpp"

namespace mpsgrad {
namespace {

using graph_metal::at;
using graph_metal::CompiledGraph;
using graph_metal::Context;
using graph_metal::Encode;
using graph_metal::kGraph;
using graph_metal::Learned;
using graph_metal::Shown;
using metal::MetalCommandBuffer;
using metal::PoolScope;
using metal::Retained;

constexpr int kNone = GraphStep::kNone;

class MetalGraph final : public GraphRunner {
 public:
  MetalGraph(const std::shared_ptr<Device>& device, GraphDescription description)
      : device_(device), description_(std::move(description)) {
    const PoolScope pool;
    compiled_ = graph_metal::compile(device_, context_, description_);
  }
  ~MetalGraph() override {
    const PoolScope pool;
    compiled_ = {};
  }

  std::shared_ptr<void> learn(const std::vector<std::shared_ptr<State>>& states) override {
    auto learned = std::make_shared<Learned>();
    learned->adopters.resize(states.size());
    const auto remember = [&](int slot) {
      if (slot != kNone && states.at(at(slot))) {
        learned->adopters[at(slot)] = graph_metal::adopter_of(*states[at(slot)]);
      }
    };
    for (const auto& source : compiled_.sources) {
      remember(source->state_slot());
    }
    for (const int slot : description_.result_states) {
      remember(slot);
    }
    return learned;
  }

  GraphMade encode(const GraphCall& call) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(*call.command_buffer);
    const auto learned = std::static_pointer_cast<const Learned>(call.learned);
    Encode encode{call, *learned, static_cast<Index>(batch_length(call)), {}, {}, {}};
    NSMutableArray<MPSImageBatch*>* images = [NSMutableArray array];
    for (const std::size_t input : compiled_.image_order) {
      [images addObject:metal::mps_images(call.source_images[input], false)];
    }
    NSMutableArray<MPSStateBatch*>* states = [NSMutableArray array];
    for (const std::size_t input : compiled_.state_order) {
      [states addObject:labels_of(call.source_states[input])];
    }
    configure(call);
    NSMutableArray<MPSImageBatch*>* intermediates = [NSMutableArray array];
    NSMutableArray<MPSStateBatch*>* made_states = [NSMutableArray array];
    MPSImageBatch* result = nil;
    if (compiled_.updates_on_completion) {
      context_->work = call.command_buffer->work();
      context_->learned = learned;
      context_->images = encode.images;
    }
    MPSCommandBuffer* buffer = own.for_kernel();
    const std::shared_ptr<Work> begun = call.command_buffer->work();
    const auto root = Retained<id<MTLCommandBuffer>>::share(buffer.rootCommandBuffer);
    call.outside([&] {
      const Shown shown(*context_, encode);
      result = [compiled_.graph.get()
          encodeBatchToCommandBuffer:buffer
                        sourceImages:images
                        sourceStates:states.count > 0 ? states : nil
                  intermediateImages:intermediates
                   destinationStates:compiled_.state_result_order.empty() ? nil : made_states];
    });
    // Unless a callback of the user's has done so.
    if (begun == call.command_buffer->work() && buffer.rootCommandBuffer != root.get()) {
      encode.fail(thrown_by([] {
        fail<DeviceError>(kGraph, ": MPSNNGraph has committed the command buffer by itself; some "
                                  "of what was encoded may have run");
      }));
    }
    call.command_buffer->note_encoded();
    own.keep_all({images, states, intermediates, made_states, result, compiled_.graph.get()});
    note_sources(call);
    GraphMade made = graph_metal::adopt(device_, description_, compiled_, encode,
                                        {result, intermediates, made_states});
    if (encode.failure) {
      graph_metal::discard(made);
      std::rethrow_exception(std::exchange(encode.failure, nullptr));
    }
    return made;
  }

  bool updates_on_completion() const override { return compiled_.updates_on_completion; }

  void reload_from_data_sources() override {
    const PoolScope pool;
    for (const auto& source : compiled_.sources) {
      source->read();
    }
    [compiled_.graph.get() reloadFromDataSources];
  }

 private:
  static std::size_t batch_length(const GraphCall& call) {
    return !call.source_images.empty() ? call.source_images.front().size()
                                       : call.source_states.front().size();
  }

  static MPSStateBatch* labels_of(const StateBatch& states) {
    NSMutableArray<MPSState*>* result = [NSMutableArray arrayWithCapacity:states.size()];
    for (const auto& state : states) {
      const auto& labels = static_cast<const LossLabels&>(*state);
      // Apple's labels hold the images; what they are made of must be ready and is written.
      metal::mps_images({labels.labels()}, false);
      if (labels.weights()) {
        metal::mps_images({labels.weights()}, false);
      }
      metal::mps_images({labels.loss()}, true);
      [result addObject:dynamic_cast<metal::MetalStatePayload&>(*labels.payload).get()];
    }
    return result;
  }

  void configure(const GraphCall& call) {
    MPSNNGraph* graph = compiled_.graph.get();
    metal::set_options(graph, call.graph);
    graph.format = static_cast<MPSImageFeatureChannelFormat>(call.format);
    graph.outputStateIsTemporary = call.output_state_is_temporary ? YES : NO;
    if (description_.result != kNone && call.allocator != destination_allocator_) {
      destination_ = graph_metal::to_mps(call.allocator, description_, producer(),
                                         description_.result, context_, compiled_.calls);
      destination_allocator_ = call.allocator;
      graph.destinationImageAllocator = destination_.get();
    }
    for (const auto& calls : compiled_.calls) {
      calls->begin_encode();
    }
  }

  const GraphNode& producer() const {  // of the result
    return *std::find_if(description_.nodes.begin(), description_.nodes.end(),
                         [&](const GraphNode& node) { return node.result == description_.result; });
  }

  static void note_sources(const GraphCall& call) {
    const CommandBuffer& command_buffer = *call.command_buffer;
    for (const ImageBatch::Images& images : call.source_images) {
      note_uses(command_buffer, images, false);
    }
    for (const StateBatch& states : call.source_states) {
      for (const auto& state : states) {
        auto& labels = static_cast<LossLabels&>(*state);
        note_uses(command_buffer, {labels.labels()}, false);
        if (labels.weights()) {
          note_uses(command_buffer, {labels.weights()}, false);
        }
        note_uses(command_buffer, {labels.loss()}, true);
        labels.note_encoded(command_buffer);
      }
    }
  }

  std::shared_ptr<Device> device_;
  GraphDescription description_;
  std::shared_ptr<Context> context_ = std::make_shared<Context>();
  CompiledGraph compiled_;
  std::shared_ptr<ImageAllocator> destination_allocator_ = ordinary_image_allocator();
  Retained<id<MPSImageAllocator>> destination_;
};

}  // namespace

std::unique_ptr<GraphRunner> make_metal_graph(const std::shared_ptr<Device>& device,
                                              GraphDescription description) {
  return std::make_unique<MetalGraph>(device, std::move(description));
}

}  // namespace mpsgrad
