// Nodes: what factories copy, who is asked for sizes and values, states that size.
#include "graph.hpp"

using namespace tests;

// A policy and callbacks that make every result two pixels wide or every value a fixed one.
@interface GraphPolicy
    : NSObject <MPSNNPadding, MPSImageAllocator, MPSNNGramMatrixCallback, MPSNNLossCallback> {
 @public
  int sized_, allocated_, asked_;
}
@end

@implementation GraphPolicy
- (MPSNNPaddingMethod)paddingMethod {
  return MPSNNPaddingMethodCustom | MPSNNPaddingMethodSizeSame;
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)descriptor {
  (void)sourceStates;
  EXPECT([sourceImages count] == 1 && kernel != nil);
  ++sized_;
  [descriptor setWidth:2];
  return descriptor;
}
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)buffer
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel {
  (void)kernel;
  ++allocated_;
  EXPECT([descriptor channelFormat] == MPSImageFeatureChannelFormatFloat32);
  return [[[MPSImage alloc] initWithDevice:[buffer device] imageDescriptor:descriptor] autorelease];
}
- (float)alphaForSourceImage:(MPSImage*)source destinationImage:(MPSImage*)destination {
  EXPECT(source != nil && [destination width] == [source featureChannels]);
  ++asked_;
  return 3;
}
- (float)scalarWeightForSourceImage:(MPSImage*)source destinationImage:(MPSImage*)destination {
  EXPECT(source != nil && destination != nil);
  ++asked_;
  return 4;
}
- (id)copyWithZone:(NSZone*)zone {
  (void)zone;
  return [self retain];
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [self init];
}
@end

// Updates its scale on the CPU.
@interface CpuScale : NSObject <MPSCNNGroupNormalizationDataSource> {
 @public
  float gamma_, beta_;
  int updates_;
}
@end
@implementation CpuScale
- (NSUInteger)numberOfFeatureChannels {
  return 1;
}
- (NSUInteger)numberOfGroups {
  return 1;
}
- (void)setNumberOfGroups:(NSUInteger)groups {
  (void)groups;
}
- (float*)gamma {
  return &gamma_;
}
- (float*)beta {
  return &beta_;
}
- (NSString*)label {
  return nil;
}
- (id)copyWithZone:(NSZone*)zone {
  (void)zone;
  return [self retain];
}
- (BOOL)updateGammaAndBetaWithGroupNormalizationStateBatch:
    (MPSCNNGroupNormalizationGradientStateBatch*)states {
  ++updates_;
  for (MPSCNNGroupNormalizationGradientState* state in states) {
    beta_ += *static_cast<const float*>([[state gradientForBeta] contents]);
  }
  return YES;
}
@end

namespace {

template <class T>
T* made(T* object) {
  return [object autorelease];
}

std::vector<float> first_of(const Outputs& outputs) {
  return read([outputs.result objectAtIndex:0]);
}

template <class Node>
Node* gradient(MPSNNFilterNode* forward) {
  MPSNNGradientFilterNode* back = [forward gradientFilterWithSources:@[ node(@"g") ]];
  EXPECT([back isKindOfClass:[Node class]] && [back resultState] == nil);
  return static_cast<Node*>(back);
}

}  // namespace

EXAMPLE(nodes_copy_their_settings_to_gradients) {
  MPSNNImageNode* x = node(@"x");
  auto* pooling = made([[MPSCNNPoolingAverageNode alloc] initWithSource:x
                                                            kernelWidth:2
                                                           kernelHeight:3
                                                        strideInPixelsX:4
                                                        strideInPixelsY:5]);
  [pooling
      setPaddingPolicy:[MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeValidOnly]];
  auto* unpooling = gradient<MPSCNNPoolingAverageGradientNode>(pooling);
  EXPECT([unpooling kernelWidth] == 2 && [unpooling kernelHeight] == 3);
  EXPECT([unpooling strideInPixelsX] == 4 && [unpooling strideInPixelsY] == 5);
  EXPECT([[unpooling paddingPolicy] paddingMethod] == MPSNNPaddingMethodSizeFull);
  auto* contrast = made([[MPSCNNLocalContrastNormalizationNode alloc] initWithSource:x]);
  EXPECT([contrast alpha] == 1 && [contrast beta] == 0.5F && [contrast delta] == 1.0F / 1024);
  EXPECT([contrast kernelWidth] == 5);
  [contrast setPm:0.75F];
  [contrast setKernelHeight:7];
  auto* back = gradient<MPSCNNLocalContrastNormalizationGradientNode>(contrast);
  [contrast setPm:0.5F];
  EXPECT([back pm] == 0.75F && [back alpha] == 1 && [back kernelHeight] == 7);
  auto* dropout = made([[MPSCNNDropoutNode alloc] initWithSource:x keepProbability:0.25F]);
  EXPECT([gradient<MPSCNNDropoutGradientNode>(dropout) keepProbability] == 0.25F);
  auto* neuron = made([[MPSCNNNeuronTanHNode alloc] initWithSource:x a:2 b:3]);
  MPSNNNeuronDescriptor* descriptor = [gradient<MPSCNNNeuronGradientNode>(neuron) descriptor];
  EXPECT([descriptor neuronType] == MPSCNNNeuronTypeTanH && [descriptor b] == 3);
  auto* full = made([[MPSCNNFullyConnectedNode alloc] initWithSource:x
                                                             weights:graph_source(1, 1, {1}, {0})]);
  EXPECT([full trainingStyle] == MPSNNTrainingStyleUpdateDeviceGPU);
  EXPECT([[full paddingPolicy] paddingMethod] == MPSNNPaddingMethodSizeValidOnly);
  EXPECT([full convolutionGradientState] == static_cast<id>([full resultState]));
  gradient<MPSCNNFullyConnectedGradientNode>(full);
  EXPECT([gradient<MPSCNNDropoutGradientNode>(dropout) resultImage] !=
         [gradient<MPSCNNDropoutGradientNode>(dropout) resultImage]);
}

EXAMPLE(graph_asks_policies_allocators_and_callbacks) {
  GraphPolicy* policy = made([[GraphPolicy alloc] init]);
  auto* neuron = made([[MPSCNNNeuronAbsoluteNode alloc] initWithSource:node(@"x")]);
  [neuron setPaddingPolicy:policy];
  auto* gram = made([[MPSNNGramMatrixCalculationNode alloc] initWithSource:[neuron resultImage]
                                                                     alpha:7]);
  [gram setPropertyCallBack:policy];
  expose([neuron resultImage], @"two");
  [[neuron resultImage] setImageAllocator:policy];
  const Outputs outputs =
      run(graph_of(@[ [gram resultImage] ]), {{"x", @[ row({-1, 2, -3}), row({4, 5, 6}) ]}});
  EXPECT_VALUES(first_of(outputs), {15});
  EXPECT_VALUES(read([outputs.images.at("two") objectAtIndex:1]), {4, 5});
  EXPECT(policy->sized_ == 1 && policy->allocated_ == 2 && policy->asked_ == 1);
  auto* loss = made([[MPSNNForwardLossNode alloc] initWithSource:node(@"x")
                                                          labels:node(@"t")
                                                  lossDescriptor:squared_error()]);
  [loss setPropertyCallBack:policy];
  auto* ones = made([[MPSNNInitialGradientNode alloc] initWithSource:[loss resultImage]]);
  MPSNNFilterNode* back = [loss gradientFilterWithSource:[ones resultImage]];
  expose([loss resultImage], @"loss");
  const Outputs weighted =
      run(graph_of(@[ [back resultImage] ]), {{"x", @[ row({3}) ]}, {"t", @[ row({1}) ]}});
  EXPECT_VALUES(read([weighted.images.at("loss") objectAtIndex:0]), {16});
  EXPECT_VALUES(first_of(weighted), {16});
}

// A convolution with stride 2 forgets whether its source had 5 or 6 pixels; its state does not.
EXAMPLE(graph_transpose_is_sized_by_a_state) {
  for (const NSUInteger width : {5UL, 6UL}) {
    GraphSource* down = graph_source(1, 1, {1}, {0});
    GraphSource* up = graph_source(1, 1, {1}, {0});
    [down->descriptor_ setStrideInPixelsX:2];
    [up->descriptor_ setStrideInPixelsX:2];
    auto* convolution = made([[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                                   weights:down]);
    auto* transpose = made([[MPSCNNConvolutionTransposeNode alloc]
                  initWithSource:[convolution resultImage]
        convolutionGradientState:[convolution convolutionGradientState]
                         weights:up]);
    MPSImage* x = image({width, 1, 1, std::vector<float>(width, 1.0F)});
    const Outputs outputs = run(graph_of(@[ [transpose resultImage] ]), {{"x", @[ x ]}});
    EXPECT([[outputs.result objectAtIndex:0] width] == width);
  }
}

EXAMPLE(graph_yolo_loss) {
  const float sizes[] = {1, 1};
  MPSCNNYOLOLossDescriptor* descriptor = [MPSCNNYOLOLossDescriptor
      cnnLossDescriptorWithXYLossType:MPSCNNLossTypeMeanSquaredError
                           WHLossType:MPSCNNLossTypeMeanSquaredError
                   confidenceLossType:MPSCNNLossTypeMeanSquaredError
                      classesLossType:MPSCNNLossTypeMeanSquaredError
                        reductionType:MPSCNNReductionTypeSum
                          anchorBoxes:[NSData dataWithBytes:sizes length:8]
                  numberOfAnchorBoxes:1];
  auto* loss = made([[MPSCNNYOLOLossNode alloc] initWithSource:node(@"x")
                                                lossDescriptor:descriptor]);
  const Values x{1, 1, 6, {0.5F, 0.25F, 0.1F, -0.1F, 2, 1}}, t{1, 1, 6, {0.5F, 0.5F, 1, 1, 1, 1}};
  NSArray* labels = @[ graph_labels(t) ];
  const Outputs outputs = run(graph_of(@[ [loss resultImage] ]), {{"x", @[ image(x) ]}}, labels);
  auto* kernel = made([[MPSCNNYOLOLoss alloc] initWithDevice:device() lossDescriptor:descriptor]);
  MPSImage* expected = empty(1, 1, 6);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSCNNLossLabels* own = graph_labels(t);
  [kernel encodeToCommandBuffer:buffer sourceImage:image(x) labels:own destinationImage:expected];
  [own synchronizeOnCommandBuffer:buffer];
  finish(buffer, {expected});
  expect_values(__FILE__, __LINE__, first_of(outputs), read(expected), 0);
  expect_values(__FILE__, __LINE__, read([[labels objectAtIndex:0] lossImage]),
                read([own lossImage]), 0);
}

EXAMPLE(graph_group_normalization_trains_on_the_cpu) {
  CpuScale* source = made([[CpuScale alloc] init]);
  source->gamma_ = 1;
  auto* trained = made([[MPSCNNGroupNormalizationNode alloc] initWithSource:node(@"x")
                                                                 dataSource:source]);
  [trained setTrainingStyle:MPSNNTrainingStyleUpdateDeviceCPU];
  expose([trained resultImage], @"y");
  MPSNNFilterNode* back = [trained gradientFilterWithSource:node(@"g")];
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ], false);
  const Inputs inputs{{"x", @[ row({1, 1}), row({2, 2}) ]}, {"g", @[ row({1, 2}), row({3, 4}) ]}};
  EXPECT_VALUES(read([run(graph, inputs).images.at("y") objectAtIndex:0]), {0, 0});
  EXPECT(source->updates_ == 1);
  EXPECT_VALUES(read([run(graph, inputs).images.at("y") objectAtIndex:1]), {10, 10});
}

// Work that failed changes no weights, and the next encode does not wait for it.
EXAMPLE(graph_failed_step_updates_nothing) {
  CpuScale* source = made([[CpuScale alloc] init]);
  source->gamma_ = 1;
  auto* trained = made([[MPSCNNGroupNormalizationNode alloc] initWithSource:node(@"x")
                                                                 dataSource:source]);
  [trained setTrainingStyle:MPSNNTrainingStyleUpdateDeviceCPU];
  MPSNNFilterNode* back = [trained gradientFilterWithSource:node(@"g")];
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ], false);
  const Inputs inputs{{"x", @[ row({1, 1}) ]}, {"g", @[ row({1, 2}) ]}};
  emulated_metal_set_option("fail_next", 1);
  run(graph, inputs);
  EXPECT(source->updates_ == 0);
  {
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    encode(graph, [queue() commandBuffer], inputs);  // never committed, forgotten
    [pool release];
  }
  run(graph, inputs);
  EXPECT(source->updates_ == 1);
}
