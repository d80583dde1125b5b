// Nodes of Apple's from our nodes' kernels, and Apple's graph from its nodes.
#include "graph/compile_metal.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

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

namespace mpsgrad::graph_metal {
namespace {

using metal::Retained;

constexpr int kNone = GraphStep::kNone;

// ---- nodes

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
  return make_padding(context, node.padding, kernel);
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

// For allocators of what no kernel of ours makes.
const std::shared_ptr<KernelBase>& any_kernel(const GraphDescription& description) {
  const auto found = std::find_if(description.nodes.begin(), description.nodes.end(),
                                  [](const GraphNode& node) { return node.kernel != nullptr; });
  if (found == description.nodes.end()) {
    throw GraphUnsuitable("the image allocator is not one of Apple's");
  }
  return found->kernel;
}

// ---- the graph

class GraphBuilder {
 public:
  GraphBuilder(std::shared_ptr<Device> device, std::shared_ptr<Context> context,
               GraphDescription& description)
      : device_(std::move(device)), context_(std::move(context)), description_(description) {}

  CompiledGraph build() {
    make_sources();
    make_nodes();
    compile();
    return std::move(made_);
  }

 private:
  void make_sources() {
    for (GraphDataSource& source : description_.data_sources) {
      made_.sources.push_back(std::make_shared<MetalSource>(context_, device_, std::move(source)));
      made_.answering.push_back(MetalSource::make(made_.sources.back()));
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
    made_.inputs.push_back(std::move(made));
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
      made_.nodes.push_back(std::move(made));
    }
  }

  metal::Node make_forward(const GraphNode& node) {
    NSMutableArray<MPSNNImageNode*>* sources = [NSMutableArray array];
    for (const int source : node.sources) {
      [sources addObject:image(source)];
    }
    const id data_source =
        node.data_source == kNone ? nil : made_.answering.at(at(node.data_source)).get();
    MPSCNNConvolutionGradientStateNode* undone =
        node.undone == kNone
            ? nil
            : static_cast<MPSCNNConvolutionNode*>(made_.nodes.at(at(node.undone)).get())
                  .convolutionGradientState;
    metal::Node made = forward_node({node, sources, data_source, undone});
    if (node.data_source != kNone) {
      static_cast<id<MPSNNTrainableNode>>(made.get()).trainingStyle = style_of(node);
    }
    return made;
  }

  metal::Node make_gradient(const GraphNode& node) {
    const GraphNode& forward = description_.nodes.at(at(node.forward));
    metal::Node made = metal::Node::share(pick(
        [made_.nodes.at(at(node.forward)).get() gradientFiltersWithSource:image(node.sources[0])],
        node));
    if (node.kernel) {
      for (const auto& finish : kFinishers) {
        finish(made.get(), *node.kernel);
      }
    }
    if (forward.data_source != kNone) {
      static_cast<id<MPSNNTrainableNode>>(made.get()).trainingStyle = style_of(node);
      MetalSource& source = *made_.sources.at(at(forward.data_source));
      source.set_state_slot(forward.state);
      const auto updates = [&](metal::SourceUpdates::What what) { return source.has(what, true); };
      made_.updates_on_completion =
          made_.updates_on_completion || (node.training_style == TrainingStyle::Cpu &&
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
      made_.allocators.push_back(
          to_mps(slot.allocator, description_, node, node.result, context_, made_.calls));
      result.imageAllocator = made_.allocators.back().get();
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
    made_.graph =
        Retained<MPSNNGraph*>::adopt([[MPSNNGraph alloc] initWithDevice:metal::mtl_device(*device_)
                                                           resultImages:images
                                                       resultsAreNeeded:flags.get()]);
    require<GraphError>(static_cast<bool>(made_.graph), kGraph, ": the device could not make it");
    if (description_.result == kNone && flags[0]) {
      // To Apple this is the graph's result, which has the graph's allocator and not its own.
      made_.graph.get().destinationImageAllocator = image_nodes_.at(results[0]).imageAllocator;
    }
    read_order();
  }

  // Apple's order of inputs and results is Apple's affair.
  void read_order() {
    MPSNNGraph* graph = made_.graph.get();
    const auto place = [](const std::vector<int>& ours, int number, const char* what) {
      const auto found = std::find(ours.begin(), ours.end(), number);
      if (found == ours.end()) {
        throw GraphUnsuitable(text("MPSNNGraph has ", what, " that we do not know of"));
      }
      return static_cast<std::size_t>(found - ours.begin());
    };
    for (const int number : numbers_of(graph.sourceImageHandles)) {
      made_.image_order.push_back(place(description_.source_images, number, "a source image"));
    }
    for (const int number : numbers_of(graph.sourceStateHandles)) {
      made_.state_order.push_back(place(description_.source_states, number, "a source state"));
    }
    made_.intermediate_order = numbers_of(graph.intermediateImageHandles);
    made_.state_result_order = numbers_of(graph.resultStateHandles);
    const auto require_made = [](const std::vector<int>& ours, const std::vector<int>& theirs,
                                 const char* what) {
      for (const int number : ours) {
        if (std::find(theirs.begin(), theirs.end(), number) == theirs.end()) {
          throw GraphUnsuitable(
              text("MPSNNGraph does not return ", what, " that it was asked for"));
        }
      }
    };
    require_made(description_.intermediates, made_.intermediate_order, "an image");
    require_made(description_.result_states, made_.state_result_order, "a state");
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Context> context_;
  GraphDescription& description_;
  CompiledGraph made_;
  std::map<int, MPSNNImageNode*> image_nodes_;  // inputs, and results of nodes
};

}  // namespace

CompiledGraph compile(const std::shared_ptr<Device>& device,
                      const std::shared_ptr<Context>& context, GraphDescription& description) {
  return GraphBuilder(device, context, description).build();
}

Retained<id<MPSImageAllocator>> to_mps(const std::shared_ptr<ImageAllocator>& allocator,
                                       const GraphDescription& description, const GraphNode& node,
                                       int slot, const std::shared_ptr<Context>& context,
                                       std::vector<std::shared_ptr<AllocatorCalls>>& calls) {
  if (allocator == ordinary_image_allocator()) {
    return Retained<id<MPSImageAllocator>>::share([MPSImage defaultAllocator]);
  }
  if (allocator == temporary_image_allocator()) {
    return Retained<id<MPSImageAllocator>>::share([MPSTemporaryImage defaultAllocator]);
  }
  calls.push_back(std::make_shared<AllocatorCalls>(
      context, allocator, node.kernel ? node.kernel : any_kernel(description), slot));
  return make_allocator(calls.back());
}

}  // namespace mpsgrad::graph_metal
