// Graphs of the Metal device (MPSNNGraph): nodes of Apple's from our nodes' kernels, and encodes of
// what Apple compiles them to. Weights live in Apple's kernels; ours only check what is to come.
#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include "graph/callbacks_metal.hpp"
#include "kernels/loss/loss.hpp"

namespace mpsgrad {
namespace {

using graph_metal::AllocatorCalls;
using graph_metal::at;
using graph_metal::Context;
using graph_metal::Encode;
using graph_metal::kGraph;
using graph_metal::Learned;
using graph_metal::MetalSource;
using graph_metal::Shown;
using metal::MetalCommandBuffer;
using metal::MetalImageStorage;
using metal::PoolScope;
using metal::Retained;
using metal::StateAdopter;
using metal::StateAdoption;

constexpr int kNone = GraphStep::kNone;

}  // namespace
}  // namespace mpsgrad

// A number of ours on an image or a state of Apple's.
@interface MpsgradHandle : NSObject <MPSHandle> {
 @public
  int number_;
}
@end

@implementation MpsgradHandle
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  [coder encodeInt:number_ forKey:@"number"];
}
- (nullable instancetype)initWithCoder:(NSCoder*)coder {
  self = [super init];
  if (self != nil) {
    number_ = [coder decodeIntForKey:@"number"];
  }
  return self;
}
- (nullable NSString*)label {
  return nil;
}
@end

namespace mpsgrad {
namespace {

// ---------------------------------------------------------------- nodes

constexpr metal::Node (*kMakers[])(const metal::NodeRequest&) = {
    metal::make_arithmetic_node,
    metal::make_batch_normalization_node,
    metal::make_convolution_node,
    metal::make_dropout_node,
    metal::make_gram_matrix_node,
    metal::make_group_normalization_node,
    metal::make_local_normalization_node,
    metal::make_loss_node,
    metal::make_neuron_node,
    metal::make_pooling_node,
    metal::make_reduction_node,
    metal::make_reshape_node,
    metal::make_softmax_node,
    metal::make_upsampling_node,
};

constexpr void (*kFinishers[])(MPSNNFilterNode*, const KernelBase&) = {
    metal::finish_arithmetic_gradient,
    metal::finish_local_normalization_gradient,
};

constexpr StateAdopter (*kAdopters[])(const State&) = {
    metal::arithmetic_state_adopter,          metal::batch_normalization_state_adopter,
    metal::convolution_state_adopter,         metal::dropout_state_adopter,
    metal::group_normalization_state_adopter, metal::loss_state_adopter,
};

// States that know no more than a forward pass.
StateAdopter plain_state_adopter(const State& like) {
  const auto& ours = dynamic_cast<const GradientState&>(like);
  return [snapshot = ours.snapshot()](MPSState* made,
                                      StateAdoption& adoption) -> std::shared_ptr<State> {
    auto result = std::make_shared<GradientState>(adoption.device, adoption.owner(), snapshot);
    result->payload = adoption.payload(made);
    return result;
  };
}

StateAdopter adopter_of(const State& like) {
  for (const auto& make : kAdopters) {
    if (StateAdopter adopter = make(like)) {
      return adopter;
    }
  }
  return plain_state_adopter(like);
}

metal::Node forward_node(const metal::NodeRequest& request) {
  const GraphNode& node = request.node;
  if (node.kind == "ConcatenationNode") {
    return metal::adopt_node([[MPSNNConcatenationNode alloc] initWithSources:request.sources]);
  }
  if (node.kind == "ReductionSpatialMeanNode") {
    return metal::adopt_node(
        [[MPSNNReductionSpatialMeanNode alloc] initWithSource:request.source()]);
  }
  for (const auto& make : kMakers) {
    if (metal::Node made = make(request)) {
      return made;
    }
  }
  throw GraphUnsuitable(text(node.name, " is a node that MPSNNGraph does not have"));
}

// Not by the place in the array where the node itself can tell.
MPSNNFilterNode* pick(NSArray<MPSNNGradientFilterNode*>* made, const GraphNode& node) {
  for (MPSNNGradientFilterNode* each in made) {
    if ([each isKindOfClass:[MPSNNArithmeticGradientNode class]]) {
      const bool secondary =
          static_cast<MPSNNArithmeticGradientNode*>(each).isSecondarySourceFilter;
      if (secondary == (node.position == 1)) {
        return each;
      }
    } else if ([each isKindOfClass:[MPSNNLossGradientNode class]]) {
      const bool labels = static_cast<MPSNNLossGradientNode*>(each).isLabelsGradientFilter;
      if (labels == (node.position == 1)) {
        return each;
      }
    } else if ([made indexOfObject:each] == at(node.position)) {
      return each;
    }
  }
  throw GraphUnsuitable(text("Metal makes no gradient node for ", node.name));
}

Retained<id<MPSNNPadding>> mps_padding(const GraphNode& node,
                                       const std::shared_ptr<Context>& context) {
  using Policy = Retained<id<MPSNNPadding>>;
  const Index method = node.padding->method();
  if (dynamic_cast<const DefaultPadding*>(node.padding.get()) != nullptr) {
    if ((method & padding_method::kCustom) == 0) {
      return Policy::share(
          [MPSNNDefaultPadding paddingWithMethod:static_cast<MPSNNPaddingMethod>(method)]);
    }
    return Policy::share((method & padding_method::kSizeMask) == padding_method::kSizeSame
                             ? [MPSNNDefaultPadding paddingForTensorflowAveragePooling]
                             : [MPSNNDefaultPadding paddingForTensorflowAveragePoolingValidOnly]);
  }
  const auto kernel = std::dynamic_pointer_cast<UnaryKernel>(node.kernel);
  if (!kernel || kernel->is_backwards() || node.forward != kNone) {
    throw GraphUnsuitable(text("the padding policy of ", node.name, " is not one of Apple's"));
  }
  return graph_metal::make_padding(context, node.padding, kernel);
}

int number_of(id handle) {
  return [handle isKindOfClass:[MpsgradHandle class]] ? static_cast<MpsgradHandle*>(handle)->number_
                                                      : kNone;
}

std::vector<int> numbers_of(NSArray* handles) {
  std::vector<int> numbers;
  for (id handle in handles) {
    numbers.push_back(number_of(handle));
  }
  return numbers;
}

Retained<MpsgradHandle*> handle(int number) {
  auto result = Retained<MpsgradHandle*>::adopt([[MpsgradHandle alloc] init]);
  result.get()->number_ = number;
  return result;
}

// ---------------------------------------------------------------- the graph

class MetalGraph final : public GraphRunner {
 public:
  MetalGraph(const std::shared_ptr<Device>& device, GraphDescription description)
      : device_(device), description_(std::move(description)) {
    const PoolScope pool;
    make_sources();
    make_nodes();
    compile();
  }
  ~MetalGraph() override {
    const PoolScope pool;
    graph_ = {};
    nodes_.clear();
    inputs_.clear();
  }

  std::shared_ptr<void> learn(const std::vector<std::shared_ptr<State>>& states) override {
    auto learned = std::make_shared<Learned>();
    learned->adopters.resize(states.size());
    const auto remember = [&](int slot) {
      if (slot != kNone && states.at(at(slot))) {
        learned->adopters[at(slot)] = adopter_of(*states[at(slot)]);
      }
    };
    for (const auto& source : sources_) {
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
    for (const std::size_t input : image_order_) {
      [images addObject:metal::mps_images(call.source_images[input], false)];
    }
    NSMutableArray<MPSStateBatch*>* states = [NSMutableArray array];
    for (const std::size_t input : state_order_) {
      [states addObject:labels_of(call.source_states[input])];
    }
    configure(call);
    NSMutableArray<MPSImageBatch*>* intermediates = [NSMutableArray array];
    NSMutableArray<MPSStateBatch*>* made_states = [NSMutableArray array];
    MPSImageBatch* result = nil;
    if (updates_on_completion_) {
      context_->work = call.command_buffer->work();
      context_->learned = learned;
      context_->images = encode.images;
    }
    MPSCommandBuffer* buffer = own.for_kernel();
    const std::shared_ptr<Work> begun = call.command_buffer->work();
    const auto root = Retained<id<MTLCommandBuffer>>::share(buffer.rootCommandBuffer);
    call.outside([&] {
      const Shown shown(*context_, encode);
      result =
          [graph_.get() encodeBatchToCommandBuffer:buffer
                                      sourceImages:images
                                      sourceStates:states.count > 0 ? states : nil
                                intermediateImages:intermediates
                                 destinationStates:state_result_order_.empty() ? nil : made_states];
    });
    // Unless a callback of the user's has done so.
    if (begun == call.command_buffer->work() && buffer.rootCommandBuffer != root.get()) {
      encode.fail(thrown_by([] {
        fail<DeviceError>(kGraph, ": MPSNNGraph has committed the command buffer by itself; some "
                                  "of what was encoded may have run");
      }));
    }
    call.command_buffer->note_encoded();
    own.keep_all({images, states, intermediates, made_states, result, graph_.get()});
    note_sources(call);
    GraphMade made = adopt(encode, result, intermediates, made_states);
    if (encode.failure) {
      discard(made);
      std::rethrow_exception(std::exchange(encode.failure, nullptr));
    }
    return made;
  }

  bool updates_on_completion() const override { return updates_on_completion_; }

  void reload_from_data_sources() override {
    const PoolScope pool;
    for (const auto& source : sources_) {
      source->read();
    }
    [graph_.get() reloadFromDataSources];
  }

 private:
  void make_sources() {
    for (GraphDataSource& source : description_.data_sources) {
      sources_.push_back(std::make_shared<MetalSource>(context_, device_, std::move(source)));
      answering_.push_back(MetalSource::make(sources_.back()));
    }
    description_.data_sources.clear();
  }

  MPSNNImageNode* image(int number) {
    if (const auto found = image_nodes_.find(number); found != image_nodes_.end()) {
      return found->second;
    }
    auto made = Retained<MPSNNImageNode*>::adopt(
        [[MPSNNImageNode alloc] initWithHandle:handle(number).get()]);
    image_nodes_[number] = made.get();
    inputs_.push_back(std::move(made));
    return image_nodes_[number];
  }

  void make_nodes() {
    for (const GraphNode& node : description_.nodes) {
      metal::Node made = node.forward == kNone ? make_forward(node) : make_gradient(node);
      if (!node.label.empty()) {
        made.get().label = [NSString stringWithUTF8String:node.label.c_str()];
      }
      if (node.padding) {
        made.get().paddingPolicy = mps_padding(node, context_).get();
      }
      set_result(node, made.get().resultImage);
      set_state(node, made.get().resultState);
      if (node.labels != kNone) {  // the two classes of such nodes have this in common
        static_cast<MPSCNNLossNode*>(made.get()).inputLabels.handle = handle(node.labels).get();
      }
      nodes_.push_back(std::move(made));
    }
  }

  metal::Node make_forward(const GraphNode& node) {
    NSMutableArray<MPSNNImageNode*>* sources = [NSMutableArray array];
    for (const int source : node.sources) {
      [sources addObject:image(source)];
    }
    const id data_source =
        node.data_source == kNone ? nil : answering_.at(at(node.data_source)).get();
    MPSCNNConvolutionGradientStateNode* undone =
        node.undone == kNone ? nil
                             : static_cast<MPSCNNConvolutionNode*>(nodes_.at(at(node.undone)).get())
                                   .convolutionGradientState;
    metal::Node made = forward_node({node, sources, data_source, undone});
    if (node.data_source != kNone) {
      static_cast<id<MPSNNTrainableNode>>(made.get()).trainingStyle = style_of(node);
    }
    return made;
  }

  metal::Node make_gradient(const GraphNode& node) {
    const GraphNode& forward = description_.nodes.at(at(node.forward));
    metal::Node made = metal::Node::share(
        pick([nodes_.at(at(node.forward)).get() gradientFiltersWithSource:image(node.sources[0])],
             node));
    if (node.kernel) {
      for (const auto& finish : kFinishers) {
        finish(made.get(), *node.kernel);
      }
    }
    if (forward.data_source != kNone) {
      static_cast<id<MPSNNTrainableNode>>(made.get()).trainingStyle = style_of(node);
      MetalSource& source = *sources_.at(at(forward.data_source));
      source.set_state_slot(forward.state);
      const auto updates = [&](metal::SourceUpdates::What what) { return source.has(what, true); };
      updates_on_completion_ =
          updates_on_completion_ || (node.training_style == TrainingStyle::Cpu &&
                                     (updates(metal::SourceUpdates::What::Weights) ||
                                      updates(metal::SourceUpdates::What::Statistics)));
    }
    return made;
  }

  static MPSNNTrainingStyle style_of(const GraphNode& node) {
    return static_cast<MPSNNTrainingStyle>(node.training_style);
  }

  bool is_intermediate(int number) const {
    const auto& all = description_.intermediates;
    return std::find(all.begin(), all.end(), number) != all.end();
  }

  void set_result(const GraphNode& node, MPSNNImageNode* result) {
    image_nodes_[node.result] = result;
    result.handle = handle(node.result).get();
    const GraphImage& slot = description_.images[at(node.result)];
    if (slot.format != ChannelFormat::None) {
      result.format = static_cast<MPSImageFeatureChannelFormat>(slot.format);
    }
    if (slot.allocator) {
      allocators_.push_back(to_mps(slot.allocator, node, node.result));
      result.imageAllocator = allocators_.back().get();
    }
    result.exportFromGraph = is_intermediate(node.result) ? YES : NO;
  }

  void set_state(const GraphNode& node, MPSNNStateNode* state) {
    if (state == nil || node.state == kNone) {
      return;
    }
    const auto& wanted = description_.result_states;
    if (std::find(wanted.begin(), wanted.end(), node.state) == wanted.end()) {
      return;
    }
    if (!node.kernel) {
      throw GraphUnsuitable(text("the state of ", node.name, " is none of ours"));
    }
    state.handle = handle(node.state).get();
    state.exportFromGraph = YES;
  }

  // Apple's own two, or one that calls ours.
  Retained<id<MPSImageAllocator>> to_mps(const std::shared_ptr<ImageAllocator>& allocator,
                                         const GraphNode& node, int slot) {
    if (allocator == ordinary_image_allocator()) {
      return Retained<id<MPSImageAllocator>>::share([MPSImage defaultAllocator]);
    }
    if (allocator == temporary_image_allocator()) {
      return Retained<id<MPSImageAllocator>>::share([MPSTemporaryImage defaultAllocator]);
    }
    const std::shared_ptr<KernelBase> kernel = node.kernel ? node.kernel : any_kernel();
    calls_.push_back(std::make_shared<AllocatorCalls>(context_, allocator, kernel, slot));
    return graph_metal::make_allocator(calls_.back());
  }

  // For allocators of what no kernel of ours makes.
  std::shared_ptr<KernelBase> any_kernel() const {
    const auto found = std::find_if(description_.nodes.begin(), description_.nodes.end(),
                                    [](const GraphNode& node) { return node.kernel != nullptr; });
    if (found == description_.nodes.end()) {
      throw GraphUnsuitable("the image allocator is not one of Apple's");
    }
    return found->kernel;
  }

  const GraphNode& producer_of(int image) const {
    return *std::find_if(description_.nodes.begin(), description_.nodes.end(),
                         [&](const GraphNode& node) { return node.result == image; });
  }

  // The result if it is needed, and then every end of the graph. Further results are exported.
  void compile() {
    std::vector<int> results;
    if (description_.result != kNone) {
      results.push_back(description_.result);
    }
    std::set<int> read;
    for (const GraphNode& node : description_.nodes) {
      read.insert(node.sources.begin(), node.sources.end());
    }
    for (const GraphNode& node : description_.nodes) {
      if (!read.contains(node.result) && node.result != description_.result) {
        results.push_back(node.result);
      }
    }
    NSMutableArray<MPSNNImageNode*>* images = [NSMutableArray array];
    const auto flags = std::make_unique<BOOL[]>(results.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      [images addObject:image_nodes_.at(results[i])];
      // Apple need not make an end that is not needed, exported or not.
      flags[i] = results[i] == description_.result || is_intermediate(results[i]) ? YES : NO;
    }
    graph_ =
        Retained<MPSNNGraph*>::adopt([[MPSNNGraph alloc] initWithDevice:metal::mtl_device(*device_)
                                                           resultImages:images
                                                       resultsAreNeeded:flags.get()]);
    require<GraphError>(static_cast<bool>(graph_), kGraph, ": the device could not make it");
    if (description_.result == kNone && flags[0]) {
      // To Apple this is the graph's result, which has the graph's allocator and not its own.
      graph_.get().destinationImageAllocator = image_nodes_.at(results[0]).imageAllocator;
    }
    read_order();
  }

  // Apple's order of inputs and results is Apple's affair.
  void read_order() {
    MPSNNGraph* graph = graph_.get();
    const auto place = [](const std::vector<int>& ours, int number, const char* what) {
      const auto found = std::find(ours.begin(), ours.end(), number);
      if (found == ours.end()) {
        throw GraphUnsuitable(text("MPSNNGraph has ", what, " that we do not know of"));
      }
      return static_cast<std::size_t>(found - ours.begin());
    };
    for (const int number : numbers_of(graph.sourceImageHandles)) {
      image_order_.push_back(place(description_.source_images, number, "a source image"));
    }
    for (const int number : numbers_of(graph.sourceStateHandles)) {
      state_order_.push_back(place(description_.source_states, number, "a source state"));
    }
    intermediate_order_ = numbers_of(graph.intermediateImageHandles);
    state_result_order_ = numbers_of(graph.resultStateHandles);
    const auto require_made = [](const std::vector<int>& ours, const std::vector<int>& theirs,
                                 const char* what) {
      for (const int number : ours) {
        if (std::find(theirs.begin(), theirs.end(), number) == theirs.end()) {
          throw GraphUnsuitable(
              text("MPSNNGraph does not return ", what, " that it was asked for"));
        }
      }
    };
    require_made(description_.intermediates, intermediate_order_, "an image");
    require_made(description_.result_states, state_result_order_, "a state");
  }

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
    MPSNNGraph* graph = graph_.get();
    metal::set_options(graph, call.graph);
    graph.format = static_cast<MPSImageFeatureChannelFormat>(call.format);
    graph.outputStateIsTemporary = call.output_state_is_temporary ? YES : NO;
    if (description_.result != kNone && call.allocator != destination_allocator_) {
      destination_ = to_mps(call.allocator, producer_of(description_.result), description_.result);
      destination_allocator_ = call.allocator;
      graph.destinationImageAllocator = destination_.get();
    }
    for (const auto& calls : calls_) {
      calls->begin_encode();
    }
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

  GraphMade adopt(Encode& encode, MPSImageBatch* result, NSArray<MPSImageBatch*>* intermediates,
                  NSArray<MPSStateBatch*>* states) const {
    // Returns how many there are of both. A failure before this one may be the cause, and counts.
    const auto listed_of = [&](NSArray* returned, const std::vector<int>& listed,
                               const char* what) {
      encode.fail(thrown_by([&] {
        require<DeviceError>(returned.count == listed.size(), kGraph, ": MPSNNGraph returned ",
                             returned.count, " batches of ", what, ", but lists ", listed.size());
      }));
      return std::min<NSUInteger>(returned.count, listed.size());
    };
    const NSUInteger image_count = listed_of(intermediates, intermediate_order_, "images");
    const NSUInteger state_count = listed_of(states, state_result_order_, "states");
    GraphMade made;
    const auto take = [&](int slot, MPSImageBatch* images) {
      if (!made.images.contains(slot)) {
        made.images[slot] = adopt_images(encode, slot, images);
      }
    };
    if (description_.result != kNone) {
      require<DeviceError>(result != nil, kGraph, ": the device returned no result");
      take(description_.result, result);
    }
    for (NSUInteger i = 0; i < image_count; ++i) {
      const int slot = intermediate_order_[i];
      if (slot != kNone) {
        take(slot, [intermediates objectAtIndex:i]);
      }
    }
    for (NSUInteger i = 0; i < state_count; ++i) {
      const int slot = state_result_order_[i];
      made.states[slot] = adopt_states(encode, slot, [states objectAtIndex:i]);
    }
    // Made by allocators of ours for images that stay inside: they have been read for the last
    // time.
    for (const auto& [image, ours] : encode.given) {
      if (ReadCount* count = ours->read_count()) {
        as<MetalImageStorage>(ours->storage()).note_ended(ours->index());
        count->set(0);
        ours->after_count_change();
      }
    }
    return made;
  }

  std::shared_ptr<ImageBatch> adopt_images(Encode& encode, int slot, MPSImageBatch* images) const {
    ImageBatch::Images ours;
    for (MPSImage* image in images) {
      const auto given = encode.given.find(image);
      if (given == encode.given.end()) {
        break;
      }
      if ([image isKindOfClass:[MPSTemporaryImage class]]) {
        static_cast<MPSTemporaryImage*>(image).readCount = metal::kManyReads;
      }
      as<MetalImageStorage>(given->second->storage())
          .note_written_by_kernel(given->second->index());
      ours.push_back(given->second);
    }
    if (ours.size() != images.count) {
      ours = wrap(encode.call, slot, images);
    } else {
      for (MPSImage* image in images) {
        encode.given.erase(image);
      }
    }
    note_uses(*encode.call.command_buffer, ours, true);
    return std::make_shared<ImageBatch>(std::move(ours));
  }

  ImageBatch::Images wrap(const GraphCall& call, int slot, MPSImageBatch* images) const {
    MPSImage* first = [images objectAtIndex:0];
    ImageDescriptor descriptor = call.descriptors.at(at(slot)).value_or(ImageDescriptor());
    const auto size = [](NSUInteger value) { return static_cast<Index>(value); };
    require<DeviceError>(
        size(first.width) == descriptor.width && size(first.height) == descriptor.height &&
            size(first.featureChannels) == descriptor.feature_channels,
        kGraph, ": the device made ", description_.images[at(slot)].name, " ", first.width, "x",
        first.height, "x", first.featureChannels, ", expected ", descriptor);
    descriptor.channel_format = static_cast<ChannelFormat>(first.featureChannelFormat);
    const bool temporary = [first isKindOfClass:[MPSTemporaryImage class]];
    MetalImageStorage::Options options;
    if (temporary) {
      for (MPSImage* image in images) {
        static_cast<MPSTemporaryImage*>(image).readCount = metal::kManyReads;
      }
      options.temporaries = as<MetalCommandBuffer>(*call.command_buffer).temporaries();
    }
    const auto count = static_cast<Index>(images.count);
    const auto storage = std::make_shared<MetalImageStorage>(
        std::static_pointer_cast<metal::MetalDeviceBase>(device_), descriptor, count,
        Retained<NSArray<MPSImage*>*>::share(images), std::move(options));
    ImageBatch::Images ours;
    for (Index i = 0; i < count; ++i) {
      storage->note_written_by_kernel(i);
      if (temporary) {
        ours.push_back(
            std::make_shared<TemporaryImage>(device_, descriptor, storage, i, call.command_buffer));
      } else {
        ours.push_back(std::make_shared<Image>(device_, descriptor, storage, i));
      }
    }
    return ours;
  }

  StateBatch adopt_states(Encode& encode, int slot, MPSStateBatch* states) const {
    StateAdoption adoption;
    adoption.device = device_;
    adoption.command_buffer = encode.call.command_buffer;
    adoption.images = encode.images;
    const StateAdopter& adopter = encode.learned.adopters.at(at(slot));
    StateBatch batch;
    MPSState* previous = nil;
    for (MPSState* state in states) {
      adoption.temporary = state.isTemporary;
      batch.push_back(state == previous ? batch.back() : adopter(state, adoption));
      previous = state;
    }
    for (const auto& buffer : adoption.buffers) {
      buffer->note_use(encode.call.command_buffer->work(), true);
    }
    return batch;
  }

  static void discard(const GraphMade& made) {
    for (const auto& [slot, images] : made.images) {
      images->discard();
    }
    for (const auto& [slot, states] : made.states) {
      for (const auto& state : states) {
        state->discard();
      }
    }
  }

  std::shared_ptr<Device> device_;
  GraphDescription description_;
  std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::vector<std::shared_ptr<MetalSource>> sources_;
  std::vector<Retained<id>> answering_;  // for each source
  std::vector<metal::Node> nodes_;
  std::vector<Retained<MPSNNImageNode*>> inputs_;
  std::map<int, MPSNNImageNode*> image_nodes_;  // of all of these
  std::vector<Retained<id<MPSImageAllocator>>> allocators_;
  std::vector<std::shared_ptr<AllocatorCalls>> calls_;
  Retained<MPSNNGraph*> graph_;
  std::vector<std::size_t> image_order_, state_order_;  // of Apple's inputs, places among ours
  std::vector<int> intermediate_order_, state_result_order_;
  bool updates_on_completion_ = false;
  std::shared_ptr<ImageAllocator> destination_allocator_ = ordinary_image_allocator();
  Retained<id<MPSImageAllocator>> destination_;
};

}  // namespace

std::unique_ptr<GraphRunner> make_metal_graph(const std::shared_ptr<Device>& device,
                                              GraphDescription description) {
  return std::make_unique<MetalGraph>(device, std::move(description));
}

}  // namespace mpsgrad
