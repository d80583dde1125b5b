// Training steps of graphs against the same kernels encoded by hand.
#include "graph.hpp"

#include <cstring>

using namespace tests;

namespace {

// Pieces of one step of convolution, ReLU and squared error, one image at a time.
struct Hand {
  std::vector<std::vector<float>> convolved, losses;
  std::vector<float> by_weights, by_biases;
};

std::vector<float> floats_in(id<MTLBuffer> buffer) {
  std::vector<float> values([buffer length] / sizeof(float));
  std::memcpy(values.data(), [buffer contents], [buffer length]);
  return values;
}

MPSNNNeuronDescriptor* relu() {
  return [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeReLU a:0.25F];
}

template <class Kernel>
Kernel* readable(Kernel* kernel) {
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return [kernel autorelease];
}

Hand by_hand(GraphSource* source, NSArray<MPSImage*>* x, const std::vector<Values>& labels) {
  auto* convolution = readable([[MPSCNNConvolution alloc] initWithDevice:device() weights:source]);
  auto* neuron = readable([[MPSCNNNeuron alloc] initWithDevice:device() neuronDescriptor:relu()]);
  auto* loss = readable([[MPSCNNLoss alloc] initWithDevice:device()
                                            lossDescriptor:squared_error()]);
  auto* neuron_back = readable([[MPSCNNNeuronGradient alloc] initWithDevice:device()
                                                           neuronDescriptor:relu()]);
  auto* back = readable([[MPSCNNConvolutionGradient alloc] initWithDevice:device() weights:source]);
  NSMutableArray* targets = [NSMutableArray array];
  for (const Values& values : labels) [targets addObject:graph_labels(values)];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSStateBatch *one = nil, *two = nil;
  MPSImageBatch* convolved = [convolution encodeBatchToCommandBuffer:buffer
                                                        sourceImages:x
                                                   destinationStates:&one
                                         destinationStateIsTemporary:NO];
  MPSImageBatch* active = [neuron encodeBatchToCommandBuffer:buffer
                                                sourceImages:convolved
                                           destinationStates:&two
                                 destinationStateIsTemporary:NO];
  MPSImageBatch* g = [loss encodeBatchToCommandBuffer:buffer sourceImages:active labels:targets];
  g = [neuron_back encodeBatchToCommandBuffer:buffer
                              sourceGradients:g
                                 sourceImages:convolved
                               gradientStates:two];
  [back encodeBatchToCommandBuffer:buffer sourceGradients:g sourceImages:x gradientStates:one];
  MPSImageBatchSynchronize(convolved, buffer);
  MPSStateBatchSynchronize(targets, buffer);
  MPSStateBatchSynchronize(one, buffer);
  finish(buffer);
  auto* state = static_cast<MPSCNNConvolutionGradientState*>([one objectAtIndex:0]);
  Hand hand;
  for (MPSImage* image in convolved) hand.convolved.push_back(read(image));
  for (MPSCNNLossLabels* target in targets) hand.losses.push_back(read([target lossImage]));
  hand.by_weights = floats_in([state gradientForWeights]);
  hand.by_biases = floats_in([state gradientForBiases]);
  return hand;
}

struct Net {
  MPSNNGraph* graph = nil;
  MPSCNNConvolutionGradientNode* gradient = nil;
};

// The step as a graph that returns nothing and exports what the convolution makes.
Net net(GraphSource* source, MPSNNTrainingStyle style) {
  auto* convolution = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                             weights:source] autorelease];
  [convolution setTrainingStyle:style];
  expose([convolution resultImage], @"convolved");
  MPSCNNNeuronNode* neuron = [MPSCNNNeuronNode nodeWithSource:[convolution resultImage]
                                                   descriptor:relu()];
  EXPECT([neuron isKindOfClass:[MPSCNNNeuronReLUNode class]] && [neuron a] == 0.25F);
  auto* loss = [[[MPSCNNLossNode alloc] initWithSource:[neuron resultImage]
                                        lossDescriptor:squared_error()] autorelease];
  [[loss inputLabels] setHandle:handle(@"labels")];
  MPSNNFilterNode* back = [neuron gradientFilterWithSource:[loss resultImage]];
  auto* gradient = static_cast<MPSCNNConvolutionGradientNode*>(
      [convolution gradientFilterWithSource:[back resultImage]]);
  EXPECT([gradient trainingStyle] == style);
  return { graph_of(@[ [gradient resultImage] ], false), gradient };
}

const std::vector<float> kWeights{0.5F, -1, 0.25F, 2}, kBiases{0.1F, -0.2F};
const Values kLabels{2, 1, 2, {0.5F, 1, -1, 0}};

NSArray<MPSImage*>* two_images() {
  return @[ image({2, 1, 2, {1, 2, -1, 0.5F}}), image({2, 1, 2, {0.25F, -2, 3, 1}}) ];
}
NSArray* two_labels() { return @[ graph_labels(kLabels), graph_labels(kLabels) ]; }

void check_two_steps(MPSNNTrainingStyle style) {
  GraphSource* source = graph_source(2, 2, kWeights, kBiases);
  GraphSource* reference = graph_source(2, 2, kWeights, kBiases);
  const Net trained = net(source, style);
  EXPECT(names_of([trained.graph sourceImageHandles]) == std::vector<std::string>{"x"});
  EXPECT(names_of([trained.graph sourceStateHandles]) == std::vector<std::string>{"labels"});
  EXPECT(source->loads_ > 0 && source->loads_ == source->purges_);
  for (int step = 0; step < 3; ++step) {
    NSArray* x = two_images();
    const Hand hand = by_hand(reference, x, {kLabels, kLabels});
    NSArray* labels = two_labels();
    const Outputs outputs = run(trained.graph, {{"x", x}}, labels);
    EXPECT(outputs.result == nil && source->updates_ == step + 1);
    for (NSUInteger i = 0; i < 2; ++i) {
      expect_values(__FILE__, __LINE__, read([outputs.images.at("convolved") objectAtIndex:i]),
                    hand.convolved[i], 1e-5F);
      expect_values(__FILE__, __LINE__, read([[labels objectAtIndex:i] lossImage]), hand.losses[i],
                    1e-5F);
    }
    for (size_t i = 0; i < 4; ++i) (*reference->weights_)[i] -= 0.5F * hand.by_weights[i];
    for (size_t i = 0; i < 2; ++i) (*reference->biases_)[i] -= 0.5F * hand.by_biases[i];
  }
  EXPECT(source->loads_ == source->purges_);
}

}  // namespace

EXAMPLE(graph_trains_on_the_gpu) { check_two_steps(MPSNNTrainingStyleUpdateDeviceGPU); }
EXAMPLE(graph_trains_on_the_cpu) { check_two_steps(MPSNNTrainingStyleUpdateDeviceCPU); }

EXAMPLE(graph_two_steps_on_one_command_buffer) {
  GraphSource* source = graph_source(2, 2, kWeights, kBiases);
  const Net trained = net(source, MPSNNTrainingStyleUpdateDeviceGPU);
  const Hand hand = by_hand(source, two_images(), {kLabels, kLabels});
  GraphSource* moved = graph_source(2, 2, kWeights, kBiases);
  for (size_t i = 0; i < 4; ++i) (*moved->weights_)[i] -= 0.5F * hand.by_weights[i];
  for (size_t i = 0; i < 2; ++i) (*moved->biases_)[i] -= 0.5F * hand.by_biases[i];
  const Hand next = by_hand(moved, two_images(), {kLabels, kLabels});
  MPSCommandBuffer* buffer = [MPSCommandBuffer commandBufferFromCommandQueue:queue()];
  const id<MTLCommandBuffer> first = [buffer rootCommandBuffer];
  encode(trained.graph, buffer, {{"x", two_images()}}, two_labels());
  EXPECT([buffer rootCommandBuffer] != first);  // it was committed after each node
  const Outputs outputs = encode(trained.graph, buffer, {{"x", two_images()}}, two_labels());
  finish(buffer);
  expect_values(__FILE__, __LINE__, read([outputs.images.at("convolved") objectAtIndex:1]),
                next.convolved[1], 1e-5F);
}

EXAMPLE(graph_update_may_return_its_source_or_nothing) {
  for (const int mode : {kReturnSource, kReturnNothing}) {
    GraphSource* source = graph_source(2, 2, kWeights, kBiases);
    source->mode_ = mode;
    const Net trained = net(source, MPSNNTrainingStyleUpdateDeviceGPU);
    const Outputs first = run(trained.graph, {{"x", two_images()}}, two_labels());
    const Outputs second = run(trained.graph, {{"x", two_images()}}, two_labels());
    EXPECT(source->updates_ == 2);
    expect_values(__FILE__, __LINE__, read([second.images.at("convolved") objectAtIndex:0]),
                  read([first.images.at("convolved") objectAtIndex:0]), 0);
  }
}

EXAMPLE(graph_tied_weights_are_all_reloaded) {
  GraphSource* source = graph_source(1, 1, {2}, {0});
  auto* first = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                       weights:source] autorelease];
  auto* second = [[[MPSCNNConvolutionNode alloc] initWithSource:[first resultImage]
                                                        weights:source] autorelease];
  expose([second resultImage], @"y");
  [first setTrainingStyle:MPSNNTrainingStyleUpdateDeviceNone];
  auto* back = [second gradientFilterWithSource:node(@"g")];
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ], false);
  const Inputs inputs{{"x", @[ row({1}) ]}, {"g", @[ row({1}) ]}};
  EXPECT_VALUES(read([run(graph, inputs).images.at("y") objectAtIndex:0]), {4});
  // The weight is 2 - 0.5 * 2, its bias 0 - 0.5, in both places.
  EXPECT_VALUES(read([run(graph, inputs).images.at("y") objectAtIndex:0]), {0});
}

EXAMPLE(graph_frozen_layers_and_reload) {
  GraphSource* source = graph_source(1, 1, {2}, {0});
  auto* convolution = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                             weights:source] autorelease];
  [convolution setTrainingStyle:MPSNNTrainingStyleUpdateDeviceNone];
  MPSNNFilterNode* back = [convolution gradientFilterWithSource:node(@"g")];
  MPSNNGraph* pruned = graph_of(@[ [back resultImage] ], false);
  EXPECT([[pruned sourceImageHandles] count] == 0 && source->loads_ == 0);
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ]);
  const Inputs inputs{{"x", @[ row({3}) ]}, {"g", @[ row({1}) ]}};
  EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:0]), {2});
  EXPECT(source->updates_ == 0);
  (*source->weights_)[0] = 7;
  EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:0]), {2});
  [graph reloadFromDataSources];
  EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:0]), {7});
}

// The gradient of the source is made of the weights before the update, the next of those after it.
EXAMPLE(graph_gradient_kernels_follow_updates) {
  for (const MPSNNTrainingStyle style :
       {MPSNNTrainingStyleUpdateDeviceGPU, MPSNNTrainingStyleUpdateDeviceCPU}) {
    GraphSource* source = graph_source(1, 1, {2}, {0});
    auto* convolution = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                               weights:source] autorelease];
    [convolution setTrainingStyle:style];
    MPSNNFilterNode* back = [convolution gradientFilterWithSource:node(@"g")];
    MPSNNGraph* graph = graph_of(@[ [back resultImage] ]);
    const Inputs inputs{{"x", @[ row({3}), row({1}) ]}, {"g", @[ row({1}), row({1}) ]}};
    EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:1]), {2});
    EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:1]), {0});
    EXPECT_VALUES(read([run(graph, inputs).result objectAtIndex:1]), {-2});
  }
}

// An encode waits for the CPU's update of a step that was committed and is still running.
EXAMPLE(graph_waits_for_updates_on_the_cpu) {
  GraphSource* source = graph_source(2, 2, kWeights, kBiases);
  const Net trained = net(source, MPSNNTrainingStyleUpdateDeviceCPU);
  emulated_metal_set_option("delay_us", 20000);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  encode(trained.graph, buffer, {{"x", two_images()}}, two_labels());
  [buffer commit];
  EXPECT(source->updates_ == 0);
  const Outputs second = run(trained.graph, {{"x", two_images()}}, two_labels());
  EXPECT(source->updates_ == 2);
  const Hand first =
      by_hand(graph_source(2, 2, kWeights, kBiases), two_images(), {kLabels, kLabels});
  EXPECT(read([second.images.at("convolved") objectAtIndex:0]) != first.convolved[0]);
  [buffer waitUntilCompleted];
}
