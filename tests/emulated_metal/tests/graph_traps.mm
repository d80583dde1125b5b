// What a graph and its nodes must not be asked.
#include "graph.hpp"

using namespace tests;

namespace {

MPSNNAdditionNode* addition() {
  return [[[MPSNNAdditionNode alloc] initWithLeftSource:node(@"x")
                                            rightSource:node(@"y")] autorelease];
}
MPSNNFilterNode* absolute() {
  return [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:node(@"x")] autorelease];
}
MPSCNNLossNode* loss() {
  return [[[MPSCNNLossNode alloc] initWithSource:node(@"x")
                                  lossDescriptor:squared_error()] autorelease];
}

struct Trained {
  GraphSource* source;
  MPSNNGraph* graph;
};

// The gradient of a convolution with one weight.
Trained trained(MPSNNTrainingStyle style, int mode = kStep) {
  GraphSource* source = graph_source(1, 1, {2}, {0});
  source->mode_ = mode;
  auto* convolution = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                             weights:source] autorelease];
  [convolution setTrainingStyle:style];
  MPSNNFilterNode* back = [convolution gradientFilterWithSource:node(@"g")];
  return { source, graph_of(@[ [back resultImage] ], false) };
}
const Inputs& one_step() {
  static const Inputs inputs{{"x", [@[ row({1}) ] retain]}, {"g", [@[ row({1}) ] retain]}};
  return inputs;
}
void update(int mode) { run(trained(MPSNNTrainingStyleUpdateDeviceGPU, mode).graph, one_step()); }

void encode_loss(NSArray* images, NSArray* states) {
  [graph_of(@[ [loss() resultImage] ]) encodeBatchToCommandBuffer:[queue() commandBuffer]
                                                     sourceImages:@[ images ]
                                                     sourceStates:states
                                               intermediateImages:nil
                                                destinationStates:nil];
}

}  // namespace

OFFENCE(init_unavailable) { (void)[[MPSNNImageNode alloc] performSelector:@selector(init)]; }
OFFENCE(init_unavailable) { (void)[[MPSNNLabelsNode alloc] performSelector:@selector(init)]; }
OFFENCE(init_unavailable) { (void)[[MPSNNAdditionNode alloc] performSelector:@selector(init)]; }
OFFENCE(init_unavailable) {
  (void)[[MPSNNGraph alloc] performSelector:@selector(initWithDevice:) withObject:device()];
}
OFFENCE(init_unavailable) {
  (void)[[MPSCNNNeuronPReLUNode alloc] performSelector:@selector(initWithSource:)
                                            withObject:node(@"x")];
}
OFFENCE(nil_argument) {
  MPSNNImageNode* none = nil;
  (void)[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:none];
}
OFFENCE(foreign_object) {
  (void)[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:static_cast<id>(device())];
}
OFFENCE(abstract_kernel) { (void)[[MPSNNUnaryReductionNode alloc] initWithSource:node(@"x")]; }

OFFENCE(node_source_count) { (void)[[MPSNNAdditionNode alloc] initWithSources:@[ node(@"x") ]]; }
OFFENCE(node_source_count) { (void)[[MPSNNConcatenationNode alloc] initWithSources:@[]]; }
OFFENCE(node_source_count) {
  (void)[[MPSNNForwardLossNode alloc] initWithSources:@[ node(@"x") ]
                                       lossDescriptor:squared_error()];
}
OFFENCE(node_gradient_missing) { [loss() gradientFiltersWithSource:node(@"g")]; }
OFFENCE(node_gradient_missing) {
  MPSNNFilterNode* back = [absolute() gradientFilterWithSource:node(@"g")];
  [back gradientFilterWithSource:node(@"h")];
}
OFFENCE(node_gradient_missing) {
  auto* quotient = [[[MPSNNDivisionNode alloc] initWithLeftSource:node(@"x")
                                                      rightSource:node(@"y")] autorelease];
  [quotient gradientFiltersWithSource:node(@"g")];
}
OFFENCE(node_gradient_several) { [addition() gradientFilterWithSource:node(@"g")]; }
OFFENCE(node_gradient_several) {
  auto* joined = [[[MPSNNConcatenationNode alloc] initWithSources:@[ node(@"x") ]] autorelease];
  [joined gradientFilterWithSource:node(@"g")];
}
OFFENCE(node_gradient_sources) {
  [absolute() gradientFiltersWithSources:@[ node(@"g"), node(@"h") ]];
}
OFFENCE(training_style) {
  auto* convolution =
      [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                             weights:graph_source(1, 1, {1}, {0})] autorelease];
  [convolution
      setTrainingStyle:MPSNNTrainingStyleUpdateDeviceCPU | MPSNNTrainingStyleUpdateDeviceGPU];
}

OFFENCE(graph_results) { graph_of(@[]); }
OFFENCE(graph_results) { graph_of(@[ node(@"x") ]); }
OFFENCE(graph_results) {
  MPSNNFilterNode* filter = absolute();
  graph_of(@[ [filter resultImage], [filter resultImage] ]);
}
OFFENCE(graph_source_images) {
  [graph_of(@[ [addition() resultImage] ]) encodeToCommandBuffer:[queue() commandBuffer]
                                                    sourceImages:@[ row({1}) ]
                                                    sourceStates:nil
                                              intermediateImages:nil
                                               destinationStates:nil];
}
OFFENCE(graph_source_states) { encode_loss(@[ row({1}) ], nil); }
OFFENCE(graph_batch_length) {
  encode_loss(@[ row({1}), row({2}) ], @[ @[ graph_labels({1, 1, 1, {0}}) ] ]);
}
OFFENCE(graph_batch_length) {
  [graph_of(@[ [addition() resultImage] ])
      encodeBatchToCommandBuffer:[queue() commandBuffer]
                    sourceImages:@[ @[ row({1}) ], @[ row({1}), row({2}) ] ]
                    sourceStates:nil
              intermediateImages:nil
               destinationStates:nil];
}
OFFENCE(graph_state_class) {
  MPSState* other = [[[MPSState alloc] initWithDevice:device() bufferSize:4] autorelease];
  encode_loss(@[ row({1}) ], @[ @[ other ] ]);
}
OFFENCE(graph_source_index) {
  [graph_of(@[ [absolute() resultImage] ]) readCountForSourceImageAtIndex:1];
}
OFFENCE(graph_source_index) {
  [graph_of(@[ [absolute() resultImage] ]) readCountForSourceStateAtIndex:0];
}
OFFENCE(graph_read_count) {
  MPSNNImageNode* x = node(@"x");
  auto* twice = [[[MPSNNAdditionNode alloc] initWithLeftSource:x rightSource:x] autorelease];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  encode(graph_of(@[ [twice resultImage] ]), buffer, {{"x", @[ temporary(buffer, 1, 1, 1) ]}});
}
OFFENCE(graph_concatenation) {
  auto* joined =
      [[[MPSNNConcatenationNode alloc] initWithSources:@[ node(@"x"), node(@"y") ]] autorelease];
  run(graph_of(@[ [joined resultImage] ]), {{"x", @[ row({1}) ]}, {"y", @[ row({1, 2}) ]}});
}
OFFENCE(graph_reload) {
  const Trained step = trained(MPSNNTrainingStyleUpdateDeviceGPU);
  encode(step.graph, [queue() commandBuffer], one_step());
  [step.graph reloadFromDataSources];
}
OFFENCE(graph_deadlock) {
  const Trained step = trained(MPSNNTrainingStyleUpdateDeviceCPU);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  encode(step.graph, buffer, one_step());
  encode(step.graph, buffer, one_step());
}
OFFENCE(update_read_count) { update(kLowerNothing); }
OFFENCE(update_read_count) { update(kLowerSourceOnly); }
OFFENCE(update_state) { update(kWrongClass); }
