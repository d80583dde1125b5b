// Graphs: what is computed, in which order things are listed, in which format they are stored.
#include "graph.hpp"

#include <cmath>

using namespace tests;

// One data source for every trained normalization, which updates nothing.
@interface GraphScale : NSObject <MPSCNNBatchNormalizationDataSource> {
 @public
  std::vector<float>*gamma_, *beta_, *mean_, *variance_;
  int scales_, statistics_, images_;
}
@end

@implementation GraphScale
- (void)dealloc {
  for (std::vector<float>* values : {gamma_, beta_, mean_, variance_}) delete values;
  [super dealloc];
}
- (NSUInteger)numberOfFeatureChannels {
  return gamma_->size();
}
- (NSUInteger)numberOfGroups {
  return 1;
}
- (void)setNumberOfGroups:(NSUInteger)groups {
  (void)groups;
}
- (float*)gamma {
  return gamma_->data();
}
- (float*)beta {
  return beta_->data();
}
- (float*)mean {
  return mean_->data();
}
- (float*)variance {
  return variance_->data();
}
- (float)epsilon {
  return 0.5F;
}
- (BOOL)load {
  return YES;
}
- (void)purge {
}
- (NSString*)label {
  return @"scale";
}
- (id)copyWithZone:(NSZone*)zone {
  (void)zone;
  return [self retain];
}
- (MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                batchNormalizationState:(MPSCNNBatchNormalizationState*)state {
  (void)commandBuffer;
  EXPECT([state readCount] == 2);
  ++scales_;
  [state setReadCount:1];
  return nil;
}
- (MPSCNNNormalizationMeanAndVarianceState*)
    updateMeanAndVarianceWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   batchNormalizationState:(MPSCNNBatchNormalizationState*)state {
  EXPECT([state readCount] == 1);
  ++statistics_;
  [state setReadCount:0];
  return [[[MPSCNNNormalizationMeanAndVarianceState alloc]
      initWithMean:[[[commandBuffer device] newBufferWithLength:gamma_->size() * 4
                                                        options:0] autorelease]
          variance:[[[commandBuffer device] newBufferWithLength:gamma_->size() * 4
                                                        options:0] autorelease]] autorelease];
}
- (MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
        instanceNormalizationStateBatch:(MPSCNNInstanceNormalizationGradientStateBatch*)states {
  (void)commandBuffer;
  for (MPSState* state in states) [state setReadCount:[state readCount] - 1];
  images_ += static_cast<int>([states count]);
  return nil;
}
@end

namespace {

GraphScale* scale_source() {
  GraphScale* source = [[[GraphScale alloc] init] autorelease];
  source->gamma_ = new std::vector<float>{2, 0.5F};
  source->beta_ = new std::vector<float>{1, -1};
  source->mean_ = new std::vector<float>{0.25F, 0.5F};
  source->variance_ = new std::vector<float>{2, 3};
  return source;
}

std::vector<float> first_of(const Outputs& outputs) {
  return read([outputs.result objectAtIndex:0]);
}

using Make = std::function<MPSNNFilterNode*(MPSNNImageNode*)>;

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// The gradient node's result against central differences of the node's.
void check_gradient(const char* name, const Make& make, Values x, float tolerance = 2e-3F) {
  MPSNNFilterNode* filter = make(node(@"x"));
  MPSNNGraph* forward = graph_of(@[ [filter resultImage] ]);
  const auto evaluate = [&](const Values& at) {
    return run(forward, {{"x", @[ image(at) ]}}).result;
  };
  MPSImage* y = [evaluate(x) objectAtIndex:0];
  Values weights{[y width], [y height], [y featureChannels], {}};
  for (size_t i = 0; i < read(y).size(); ++i) {
    weights.data.push_back(static_cast<float>((i * 7 + 3) % 5) * 0.5F - 0.75F);
  }
  NSArray<MPSNNGradientFilterNode*>* gradients = [filter gradientFiltersWithSource:node(@"g")];
  EXPECT([gradients count] == 1);
  MPSNNGraph* backward = graph_of(@[ [[gradients objectAtIndex:0] resultImage] ]);
  NSArray* incoming = @[ image(weights), image(weights) ];
  NSArray* result = run(backward, {{"x", @[ image(x), image(x) ]}, {"g", incoming}}).result;
  const std::vector<float> actual = read([result objectAtIndex:1]);
  EXPECT(actual.size() == x.data.size());
  const float h = 1.0F / 128;
  for (size_t i = 0; i < x.data.size(); ++i) {
    Values up = x, down = x;
    up.data[i] += h;
    down.data[i] -= h;
    const double slope = (dot(read([evaluate(up) objectAtIndex:0]), weights.data) -
                          dot(read([evaluate(down) objectAtIndex:0]), weights.data)) /
                         (2 * static_cast<double>(h));
    if (!close(actual[i], static_cast<float>(slope), tolerance)) {
      fail(name, static_cast<int>(i),
           std::to_string(actual[i]) + ", expected " + std::to_string(slope));
    }
  }
}

template <class Node>
Make plain() {
  return [](MPSNNImageNode* x) {
    return static_cast<MPSNNFilterNode*>([[[Node alloc] initWithSource:x] autorelease]);
  };
}
template <class Node>
Make sized(NSUInteger size) {
  return [size](MPSNNImageNode* x) {
    return static_cast<MPSNNFilterNode*>([[[Node alloc] initWithSource:x
                                                            kernelSize:size] autorelease]);
  };
}
template <class Node>
Make pooling() {
  return [](MPSNNImageNode* x) {
    return static_cast<MPSNNFilterNode*>([[[Node alloc] initWithSource:x
                                                           kernelWidth:2
                                                          kernelHeight:1
                                                       strideInPixelsX:2
                                                       strideInPixelsY:1] autorelease]);
  };
}
template <class Node>
Make upsampling() {
  return [](MPSNNImageNode* x) {
    return static_cast<MPSNNFilterNode*>([[[Node alloc] initWithSource:x
                                                   integerScaleFactorX:2
                                                   integerScaleFactorY:1] autorelease]);
  };
}

const Values kX{3, 2, 2, {0.5F, -1, 2, 0.25F, 1.5F, 3, -2, 0.75F, -0.5F, 1.25F, 2.4F, -1.5F}};

}  // namespace

EXAMPLE(graph_gradients_of_one_source) {
  check_gradient("absolute", plain<MPSCNNNeuronAbsoluteNode>(), kX);
  check_gradient("elu", plain<MPSCNNNeuronELUNode>(), kX);
  check_gradient("relun", plain<MPSCNNNeuronReLUNNode>(), kX);
  check_gradient("linear", plain<MPSCNNNeuronLinearNode>(), kX);
  check_gradient("relu", plain<MPSCNNNeuronReLUNode>(), kX);
  check_gradient("sigmoid", plain<MPSCNNNeuronSigmoidNode>(), kX);
  check_gradient("hard sigmoid", plain<MPSCNNNeuronHardSigmoidNode>(), kX);
  check_gradient("soft plus", plain<MPSCNNNeuronSoftPlusNode>(), kX);
  check_gradient("soft sign", plain<MPSCNNNeuronSoftSignNode>(), kX);
  check_gradient("tanh", plain<MPSCNNNeuronTanHNode>(), kX);
  check_gradient("exponential", plain<MPSCNNNeuronExponentialNode>(), kX);
  check_gradient("power", plain<MPSCNNNeuronPowerNode>(), kX);
  check_gradient("gelu", plain<MPSCNNNeuronGeLUNode>(), kX);
  const Values positive{2, 1, 1, {0.5F, 2}};
  check_gradient("logarithm", plain<MPSCNNNeuronLogarithmNode>(), positive);
  check_gradient(
      "prelu",
      [](MPSNNImageNode* x) {
        const float slopes[] = {0.5F, -0.25F};
        return [[[MPSCNNNeuronPReLUNode alloc]
            initWithSource:x
                     aData:[NSData dataWithBytes:slopes length:8]] autorelease];
      },
      kX);
  check_gradient("softmax", plain<MPSCNNSoftMaxNode>(), kX);
  check_gradient("log softmax", plain<MPSCNNLogSoftMaxNode>(), kX);
  check_gradient("spatial mean", plain<MPSNNReductionSpatialMeanNode>(), kX);
  check_gradient("gram matrix", plain<MPSNNGramMatrixCalculationNode>(), kX);
  check_gradient("max", pooling<MPSCNNPoolingMaxNode>(), kX);
  check_gradient("average", pooling<MPSCNNPoolingAverageNode>(), kX);
  check_gradient("l2 norm", pooling<MPSCNNPoolingL2NormNode>(), kX, 1e-2F);
  check_gradient("nearest", upsampling<MPSCNNUpsamplingNearestNode>(), kX);
  check_gradient("bilinear", upsampling<MPSCNNUpsamplingBilinearNode>(), kX);
  check_gradient("cross channel", sized<MPSCNNCrossChannelNormalizationNode>(2), kX, 1e-2F);
  check_gradient("spatial", sized<MPSCNNSpatialNormalizationNode>(3), kX, 1e-2F);
  check_gradient("contrast", sized<MPSCNNLocalContrastNormalizationNode>(3), kX, 5e-2F);
  check_gradient(
      "dilated",
      [](MPSNNImageNode* x) {
        return [[[MPSCNNDilatedPoolingMaxNode alloc] initWithSource:x
                                                        kernelWidth:2
                                                       kernelHeight:1
                                                    strideInPixelsX:1
                                                    strideInPixelsY:1
                                                      dilationRateX:2
                                                      dilationRateY:1] autorelease];
      },
      kX);
  check_gradient(
      "reshape",
      [](MPSNNImageNode* x) {
        return [[[MPSNNReshapeNode alloc] initWithSource:x
                                             resultWidth:1
                                            resultHeight:3
                                   resultFeatureChannels:4] autorelease];
      },
      kX);
  check_gradient(
      "pad",
      [](MPSNNImageNode* x) {
        return [[[MPSNNPadNode alloc] initWithSource:x
                                   paddingSizeBefore:{1, 0, 0}
                                    paddingSizeAfter:{0, 1, 0}
                                            edgeMode:MPSImageEdgeModeClamp] autorelease];
      },
      kX);
  check_gradient(
      "instance normalization",
      [](MPSNNImageNode* x) {
        return [[[MPSCNNInstanceNormalizationNode alloc]
            initWithSource:x
                dataSource:static_cast<id>(scale_source())] autorelease];
      },
      kX, 1e-2F);
  check_gradient(
      "group normalization",
      [](MPSNNImageNode* x) {
        return [[[MPSCNNGroupNormalizationNode alloc]
            initWithSource:x
                dataSource:static_cast<id>(scale_source())] autorelease];
      },
      kX, 1e-2F);
  check_gradient(
      "convolution",
      [](MPSNNImageNode* x) {
        auto* made = [[[MPSCNNConvolutionNode alloc]
            initWithSource:x
                   weights:graph_source(2, 1, {2, -1}, {1})] autorelease];
        [made setTrainingStyle:MPSNNTrainingStyleUpdateDeviceNone];
        return made;
      },
      kX);
  check_gradient(
      "transposed convolution",
      [](MPSNNImageNode* x) {
        auto* made = [[[MPSCNNConvolutionTransposeNode alloc]
                      initWithSource:x
            convolutionGradientState:nil
                             weights:graph_source(2, 1, {2, -1}, {1})] autorelease];
        [made setTrainingStyle:MPSNNTrainingStyleUpdateDeviceNone];
        return made;
      },
      kX);
  const Values pixel{1, 1, 2, {1, 2}};
  check_gradient(
      "full connection",
      [](MPSNNImageNode* x) {
        auto* made = [[[MPSCNNFullyConnectedNode alloc]
            initWithSource:x
                   weights:graph_source(2, 2, {2, -1, 3, 0.5F}, {1, 0})] autorelease];
        [made setTrainingStyle:MPSNNTrainingStyleUpdateDeviceNone];
        return made;
      },
      pixel);
}

EXAMPLE(graph_reductions_and_divisions) {
  const auto value = [](MPSNNFilterNode* filter) {
    EXPECT([filter resultState] == nil && [filter resultStates] == nil);
    return first_of(run(graph_of(@[ [filter resultImage] ]),
                        {{"x", @[ image({2, 2, 2, {1, 8, 3, 6, 5, 4, 7, 2}}) ]},
                         {"y", @[ image({2, 2, 2, {2, 2, 2, 2, 4, 4, 4, 4}}) ]}}));
  };
#define REDUCED(name) \
  value([[[MPSNNReduction##name##Node alloc] initWithSource:node(@"x")] autorelease])
  EXPECT_VALUES(REDUCED(RowMin), {1, 6, 5, 2});
  EXPECT_VALUES(REDUCED(RowMax), {3, 8, 7, 4});
  EXPECT_VALUES(REDUCED(RowMean), {2, 7, 6, 3});
  EXPECT_VALUES(REDUCED(RowSum), {4, 14, 12, 6});
  EXPECT_VALUES(REDUCED(ColumnMin), {1, 4, 3, 2});
  EXPECT_VALUES(REDUCED(ColumnMax), {5, 8, 7, 6});
  EXPECT_VALUES(REDUCED(ColumnMean), {3, 6, 5, 4});
  EXPECT_VALUES(REDUCED(ColumnSum), {6, 12, 10, 8});
  EXPECT_VALUES(REDUCED(FeatureChannelsMin), {1, 3, 4, 2});
  EXPECT_VALUES(REDUCED(FeatureChannelsMax), {8, 6, 5, 7});
  EXPECT_VALUES(REDUCED(FeatureChannelsArgumentMin), {0, 0, 1, 1});
  EXPECT_VALUES(REDUCED(FeatureChannelsArgumentMax), {1, 1, 0, 0});
  EXPECT_VALUES(REDUCED(FeatureChannelsMean), {4.5F, 4.5F, 4.5F, 4.5F});
  auto* sum =
      [[[MPSNNReductionFeatureChannelsSumNode alloc] initWithSource:node(@"x")] autorelease];
  [sum setWeight:2];
  EXPECT_VALUES(value(sum), {18, 18, 18, 18});
  auto* mean = [[[MPSNNReductionSpatialMeanNode alloc] initWithSource:node(@"x")] autorelease];
  [mean setClipRectSource:MTLRegionMake2D(1, 0, 1, 2)];
  EXPECT_VALUES(first_of(run(graph_of(@[ [mean resultImage] ]),
                             {{"x", @[ image({2, 2, 2, {1, 8, 3, 6, 5, 4, 7, 2}}) ]}})),
                {5, 4});
  EXPECT_VALUES(value([[[MPSNNDivisionNode alloc] initWithLeftSource:node(@"x")
                                                         rightSource:node(@"y")] autorelease]),
                {0.5F, 4, 1.5F, 3, 1.25F, 1, 1.75F, 0.5F});
  auto* less = [[[MPSNNComparisonNode alloc] initWithLeftSource:node(@"x")
                                                    rightSource:node(@"y")] autorelease];
  [less setComparisonType:MPSNNComparisonTypeLess];
  EXPECT_VALUES(value(less), {1, 0, 0, 0, 0, 0, 0, 1});
}

EXAMPLE(graph_arithmetic_gradients_come_secondary_first) {
  MPSNNImageNode *x = node(@"x"), *y = node(@"y");
  auto* product = [[[MPSNNMultiplicationNode alloc] initWithLeftSource:x
                                                           rightSource:y] autorelease];
  [product setPrimaryScale:5];
  EXPECT([product gradientClass] == [MPSNNMultiplicationGradientNode class]);
  NSArray* both = [product gradientFiltersWithSources:@[ node(@"g") ]];
  MPSNNArithmeticGradientNode* to_y = [both objectAtIndex:0];
  MPSNNArithmeticGradientNode* to_x = [both objectAtIndex:1];
  EXPECT([both count] == 2 && [to_y isSecondarySourceFilter] && ![to_x isSecondarySourceFilter]);
  EXPECT([to_y primaryScale] == 5 && [to_y secondaryScale] == 1);
  MPSNNGraph* graph = graph_of(@[ [to_x resultImage], [to_y resultImage] ]);
  expose([to_y resultImage], @"to y");
  graph = graph_of(@[ [to_x resultImage], [to_y resultImage] ]);
  const Outputs outputs =
      run(graph, {{"x", @[ row({2, 3}) ]}, {"y", @[ row({5, 7}) ]}, {"g", @[ row({1, 10}) ]}});
  EXPECT_VALUES(first_of(outputs), {25, 350});
  EXPECT_VALUES(read([outputs.images.at("to y") objectAtIndex:0]), {10, 150});
}

// r = relu(x) + x; the total gradient of x is a sum of two.
EXAMPLE(graph_residual) {
  MPSNNImageNode* x = node(@"x");
  auto* relu = [[[MPSCNNNeuronReLUNode alloc] initWithSource:x] autorelease];
  auto* sum = [[[MPSNNAdditionNode alloc] initWithSources:@[ [relu resultImage], x ]] autorelease];
  auto* ones = [[[MPSNNInitialGradientNode alloc] initWithSource:[sum resultImage]] autorelease];
  NSArray* both = [sum gradientFiltersWithSource:[ones resultImage]];
  MPSNNFilterNode* back = [relu gradientFilterWithSource:[[both objectAtIndex:1] resultImage]];
  auto* total = [[[MPSNNAdditionNode alloc] initWithLeftSource:[back resultImage]
                                                   rightSource:[[both objectAtIndex:0] resultImage]]
      autorelease];
  MPSNNGraph* graph = graph_of(@[ [total resultImage] ]);
  // Two forward kernels and two gradient kernels.
  EXPECT([graph readCountForSourceImageAtIndex:0] == 4);
  EXPECT_VALUES(first_of(run(graph, {{"x", @[ row({-1, 2}) ]}})), {1, 2});
}

EXAMPLE(graph_concatenation) {
  MPSNNImageNode *a = node(@"a"), *b = node(@"b");
  auto* joined = [[[MPSNNConcatenationNode alloc] initWithSources:@[ a, b, a ]] autorelease];
  const Inputs inputs{{"a", @[ channels({1}) ]}, {"b", @[ channels({2, 3, 4, 5, 6}) ]}};
  EXPECT_VALUES(first_of(run(graph_of(@[ [joined resultImage] ]), inputs)),
                {1, 0, 0, 0, 2, 3, 4, 5, 6, 0, 0, 0, 1, 0, 0, 0});
  NSArray* slices = [joined gradientFiltersWithSource:node(@"g")];
  EXPECT([slices count] == 3);
  NSMutableArray* results = [NSMutableArray array];
  for (MPSNNFilterNode* slice in slices) [results addObject:[slice resultImage]];
  expose([results objectAtIndex:1], @"b");
  expose([results objectAtIndex:2], @"a");
  Inputs more = inputs;
  more["g"] = @[ channels({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}) ];
  const Outputs outputs = run(graph_of(results), more);
  EXPECT_VALUES(first_of(outputs), {1});
  EXPECT_VALUES(read([outputs.images.at("b") objectAtIndex:0]), {5, 6, 7, 8, 9});
  EXPECT_VALUES(read([outputs.images.at("a") objectAtIndex:0]), {13});
}

EXAMPLE(graph_batch_normalization) {
  const Values one{2, 1, 2, {1, 2, 3, -4}}, two{2, 1, 2, {0, 1, -2, 5}};
  const auto expected = [&](const Values& x, const float* mean, const float* variance) {
    std::vector<float> y;
    for (size_t i = 0; i < 4; ++i) {
      const float gamma = i % 2 == 0 ? 2 : 0.5F, beta = i % 2 == 0 ? 1 : -1;
      y.push_back((x.data[i] - mean[i % 2]) / std::sqrt(variance[i % 2] + 0.5F) * gamma + beta);
    }
    return y;
  };
  const float given_mean[] = {0.25F, 0.5F}, given_variance[] = {2, 3};
  const float mean[] = {0.5F, 1}, variance[] = {3.25F, 10.5F};
  const auto build = [](GraphScale* source) {
    return [[[MPSCNNBatchNormalizationNode alloc] initWithSource:node(@"x")
                                                      dataSource:source] autorelease];
  };
  const auto images = [&] { return @[ image(one), image(two) ]; };
  GraphScale* source = scale_source();
  auto* plain = build(source);
  MPSNNGraph* inference = graph_of(@[ [plain resultImage] ]);
  EXPECT([inference readCountForSourceImageAtIndex:0] == 1);
  NSArray* result = run(inference, {{"x", images()}}).result;
  expect_values(__FILE__, __LINE__, read([result objectAtIndex:1]),
                expected(two, given_mean, given_variance), 1e-5F);
  // The same node with statistics of the batch, on demand and where a gradient uses its state.
  [plain setFlags:MPSCNNBatchNormalizationFlagsCalculateStatisticsAlways];
  result = run(graph_of(@[ [plain resultImage] ]), {{"x", images()}}).result;
  expect_values(__FILE__, __LINE__, read([result objectAtIndex:1]), expected(two, mean, variance),
                1e-5F);
  auto* trained = build(source);
  expose([trained resultImage], @"y");
  MPSNNFilterNode* back = [trained gradientFilterWithSource:node(@"g")];
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ]);
  const Inputs inputs{{"x", images()},
                      {"g", @[ image({2, 1, 2, {1, 0, 0, 1}}), image({2, 1, 2, {0, 1, 0, 0}}) ]}};
  for (NSUInteger i = 0; i < 2; ++i) {
    const bool x = name_of([[graph sourceImageHandles] objectAtIndex:i]) == "x";
    EXPECT([graph readCountForSourceImageAtIndex:i] == (x ? 4 : 2));
  }
  const Outputs outputs = run(graph, inputs);
  expect_values(__FILE__, __LINE__, read([outputs.images.at("y") objectAtIndex:0]),
                expected(one, mean, variance), 1e-5F);
  EXPECT(source->scales_ == 1 && source->statistics_ == 1);
  // A constant gradient does nothing through a normalization.
  NSArray* flat = @[ image({2, 1, 2, {1, 1, 1, 1}}), image({2, 1, 2, {1, 1, 1, 1}}) ];
  NSArray* none = run(graph, {{"x", images()}, {"g", flat}}).result;
  EXPECT_VALUES(read([none objectAtIndex:1]), {0, 0, 0, 0});
}

EXAMPLE(graph_instance_normalization_updates_with_the_batch) {
  GraphScale* source = scale_source();
  auto* trained = [[[MPSCNNInstanceNormalizationNode alloc] initWithSource:node(@"x")
                                                                dataSource:static_cast<id>(source)]
      autorelease];
  MPSNNFilterNode* back = [trained gradientFilterWithSource:node(@"g")];
  MPSNNGraph* graph = graph_of(@[ [back resultImage] ], false);
  NSArray* x = @[ image({1, 1, 2, {1, 2}}), image({1, 1, 2, {3, 4}}) ];
  EXPECT(run(graph, {{"x", x}, {"g", x}}).result == nil && source->images_ == 2);
}

// L = sum of w (d - t)^2; dL/dd = 2 w (d - t) = -dL/dt.
EXAMPLE(graph_forward_loss_and_initial_gradient) {
  auto* loss = [[[MPSNNForwardLossNode alloc] initWithSource:node(@"d")
                                                      labels:node(@"t")
                                                     weights:node(@"w")
                                              lossDescriptor:squared_error()] autorelease];
  expose([loss resultImage], @"loss");
  auto* ones = [[[MPSNNInitialGradientNode alloc] initWithSource:[loss resultImage]] autorelease];
  NSArray<MPSNNLossGradientNode*>* both = [loss gradientFiltersWithSource:[ones resultImage]];
  EXPECT([[both objectAtIndex:0] isLabelsGradientFilter]);
  EXPECT(![[loss gradientFilterWithSource:[ones resultImage]] isLabelsGradientFilter]);
  expose([[both objectAtIndex:0] resultImage], @"labels");
  MPSNNGraph* graph =
      graph_of(@[ [[both objectAtIndex:1] resultImage], [[both objectAtIndex:0] resultImage] ]);
  const Outputs outputs =
      run(graph, {{"d", @[ row({1, 5}) ]}, {"t", @[ row({2, 3}) ]}, {"w", @[ row({1, 0.5F}) ]}});
  EXPECT_VALUES(first_of(outputs), {-2, 2});
  EXPECT_VALUES(read([outputs.images.at("labels") objectAtIndex:0]), {2, -2});
  EXPECT_VALUES(read([outputs.images.at("loss") objectAtIndex:0]), {3});
}

EXAMPLE(graph_dropout_keeps_its_mask) {
  auto* dropout = [[[MPSCNNDropoutNode alloc] initWithSource:node(@"x")] autorelease];
  expose([dropout resultImage], @"y");
  MPSNNFilterNode* back = [dropout gradientFilterWithSource:node(@"g")];
  NSArray* x = @[ row({1, 2, 3, 4, 5, 6, 7, 8}), row({1, 2, 3, 4, 5, 6, 7, 8}) ];
  const Outputs outputs = run(graph_of(@[ [back resultImage] ]), {{"x", x}, {"g", x}});
  for (NSUInteger i = 0; i < 2; ++i) {
    expect_values(__FILE__, __LINE__, read([outputs.result objectAtIndex:i]),
                  read([outputs.images.at("y") objectAtIndex:i]), 0);
  }
}

// ---------------------------------------------------------------- what is listed, and how

EXAMPLE(graph_lists_from_back_to_front) {
  MPSNNImageNode *a = node(@"a"), *b = node(@"b"), *c = node(@"c");
  auto* sum = [[[MPSNNAdditionNode alloc] initWithLeftSource:a rightSource:b] autorelease];
  auto* more = [[[MPSNNSubtractionNode alloc] initWithLeftSource:[sum resultImage]
                                                     rightSource:c] autorelease];
  auto* last = [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:[more resultImage]] autorelease];
  expose([sum resultImage], @"sum");
  expose([last resultImage], @"last");
  expose([more resultImage], @"more");
  using Names = std::vector<std::string>;
  MPSNNGraph* graph = graph_of(@[ [last resultImage] ]);
  EXPECT((names_of([graph sourceImageHandles]) == Names{"c", "b", "a"}));
  EXPECT((names_of([graph intermediateImageHandles]) == Names{"sum", "more", "last"}));
  EXPECT([graph sourceStateHandles] == nil && [graph resultStateHandles] == nil);
  EXPECT(name_of([graph resultHandle]) == "last" && [graph resultImageIsNeeded]);
  const Outputs outputs =
      run(graph, {{"a", @[ row({1}) ]}, {"b", @[ row({2}) ]}, {"c", @[ row({5}) ]}});
  EXPECT_VALUES(first_of(outputs), {2});
  EXPECT([outputs.images.at("last") objectAtIndex:0] == [outputs.result objectAtIndex:0]);
  EXPECT_VALUES(read([outputs.images.at("more") objectAtIndex:0]), {-2});
  EXPECT([[[outputs.images.at("more") objectAtIndex:0] label] isEqualToString:@"more"]);
  // Results that are no exports come before all exports, in the order asked for.
  [[more resultImage] setExportFromGraph:NO];
  auto* twice = [[[MPSNNAdditionNode alloc] initWithLeftSource:a rightSource:a] autorelease];
  [[twice resultImage] setHandle:handle(@"twice")];
  graph = graph_of(@[ [last resultImage], [more resultImage], [twice resultImage] ]);
  EXPECT((names_of([graph intermediateImageHandles]) == Names{"more", "twice", "sum", "last"}));
  MPSNNImageNode* nameless = [[[MPSNNImageNode alloc] initWithHandle:nil] autorelease];
  auto* neuron = [[[MPSCNNNeuronTanHNode alloc] initWithSource:nameless] autorelease];
  graph = graph_of(@[ [neuron resultImage] ]);
  EXPECT([[graph sourceImageHandles] objectAtIndex:0] == static_cast<id>([NSNull null]));
}

EXAMPLE(graph_results_that_are_not_needed_are_not_there) {
  MPSNNImageNode* x = node(@"x");
  auto* kept = [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:x] autorelease];
  auto* dropped = [[[MPSCNNNeuronTanHNode alloc] initWithSource:x] autorelease];
  expose([kept resultImage], @"kept");
  expose([dropped resultImage], @"dropped");
  BOOL needed[] = {YES, NO};
  auto* graph = [[[MPSNNGraph alloc] initWithDevice:device()
                                       resultImages:@[ [kept resultImage], [dropped resultImage] ]
                                   resultsAreNeeded:needed] autorelease];
  EXPECT(names_of([graph intermediateImageHandles]) == std::vector<std::string>{"kept"});
  EXPECT([graph readCountForSourceImageAtIndex:0] == 1);
}

EXAMPLE(graph_formats) {
  auto* first = [[[MPSCNNNeuronTanHNode alloc] initWithSource:node(@"x")] autorelease];
  auto* second = [[[MPSCNNNeuronTanHNode alloc] initWithSource:[first resultImage]] autorelease];
  const auto format = [&](NSArray<MPSNNImageNode*>* results) {
    auto* graph = [[[MPSNNGraph alloc] initWithDevice:device()
                                         resultImages:results
                                     resultsAreNeeded:nullptr] autorelease];
    EXPECT([graph format] == MPSImageFeatureChannelFormatFloat16);
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    const Outputs outputs = encode(graph, buffer, {{"x", @[ row({1}) ]}});
    finish(buffer);
    return [[outputs.result objectAtIndex:0] featureChannelFormat];
  };
  EXPECT(format(@[ [second resultImage] ]) == MPSImageFeatureChannelFormatFloat16);
  [[first resultImage] setFormat:MPSImageFeatureChannelFormatFloat32];
  EXPECT(format(@[ [second resultImage] ]) == MPSImageFeatureChannelFormatFloat32);
  [[second resultImage] setFormat:MPSImageFeatureChannelFormatUnorm8];
  EXPECT(format(@[ [second resultImage] ]) == MPSImageFeatureChannelFormatUnorm8);
}

EXAMPLE(graph_of_single_images_and_temporary_ones) {
  auto* neuron = [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:node(@"x")] autorelease];
  auto* sum = [[[MPSNNAdditionNode alloc] initWithLeftSource:[neuron resultImage]
                                                 rightSource:node(@"y")] autorelease];
  [[neuron resultImage] setExportFromGraph:YES];
  BOOL needed = YES;
  auto* graph = [[[MPSNNGraph alloc] initWithDevice:device()
                                        resultImage:[sum resultImage]
                                resultImageIsNeeded:needed] autorelease];
  [graph setDestinationImageAllocator:[MPSTemporaryImage defaultAllocator]];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSTemporaryImage* x = temporary(buffer, 2, 1, 1);
  auto* fill = [[[MPSCNNNeuronAbsolute alloc] initWithDevice:device()] autorelease];
  [fill encodeToCommandBuffer:buffer sourceImage:row({-3, 4}) destinationImage:x];
  NSMutableArray* exported = [NSMutableArray array];
  MPSImage* result = [graph encodeToCommandBuffer:buffer
                                     sourceImages:@[ row({1, 1}), x ]
                                     sourceStates:nil
                               intermediateImages:exported
                                destinationStates:nil];
  EXPECT([x readCount] == 0);
  EXPECT([static_cast<MPSTemporaryImage*>(result) readCount] == 1);
  EXPECT([[exported objectAtIndex:0] readCount] == 1);
  [[exported objectAtIndex:0] setReadCount:0];
  MPSImage* kept = empty(2, 1, 1);
  [fill encodeToCommandBuffer:buffer sourceImage:result destinationImage:kept];
  finish(buffer, {kept});
  EXPECT_VALUES(read(kept), {4, 5});
}

EXAMPLE(graph_states_leave_when_exported) {
  auto* neuron = [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:node(@"x")] autorelease];
  [[neuron resultState] setExportFromGraph:YES];
  [[neuron resultState] setHandle:handle(@"state")];
  EXPECT([neuron resultState] == [[neuron resultStates] objectAtIndex:0]);
  MPSNNGraph* graph = graph_of(@[ [neuron resultImage] ], false);
  EXPECT(names_of([graph resultStateHandles]) == std::vector<std::string>{"state"});
  for (const BOOL is_temporary : {NO, YES}) {
    [graph setOutputStateIsTemporary:is_temporary];
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    NSMutableArray* states = [NSMutableArray array];
    [graph encodeToCommandBuffer:buffer
                    sourceImages:@[ row({1}) ]
                    sourceStates:nil
              intermediateImages:nil
               destinationStates:states];
    MPSState* state = [states objectAtIndex:0];
    EXPECT([state isKindOfClass:[MPSNNGradientState class]]);
    EXPECT([state isTemporary] == is_temporary);
    if (is_temporary) [state setReadCount:[state readCount] - 1];
    finish(buffer);
  }
}

EXAMPLE(graph_without_its_data_is_nil) {
  GraphSource* source = graph_source(1, 1, {1}, {0});
  source->refuses_ = YES;
  auto* convolution = [[[MPSCNNConvolutionNode alloc] initWithSource:node(@"x")
                                                             weights:source] autorelease];
  EXPECT(graph_of(@[ [convolution resultImage] ]) == nil);
}

EXAMPLE(graph_nodes_live_by_their_last) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  MPSNNImageNode* last = nil;
  {
    NSAutoreleasePool* inner = [[NSAutoreleasePool alloc] init];
    auto* neuron = [[[MPSCNNNeuronAbsoluteNode alloc] initWithSource:node(@"x")] autorelease];
    auto* next = [[[MPSCNNNeuronTanHNode alloc] initWithSource:[neuron resultImage]] autorelease];
    last = [[next resultImage] retain];
    [inner release];
  }
  EXPECT(names_of([graph_of(@[ last ]) sourceImageHandles]) == std::vector<std::string>{"x"});
  [last release];
  [pool release];
  EXPECT(emulated_metal_live_objects() == 0);
}

OFFENCE(normalization_phase) {
  auto* frozen = [[[MPSCNNBatchNormalizationNode alloc] initWithSource:node(@"x")
                                                            dataSource:scale_source()] autorelease];
  [frozen setFlags:MPSCNNBatchNormalizationFlagsCalculateStatisticsNever];
  MPSNNFilterNode* back = [frozen gradientFilterWithSource:node(@"g")];
  NSArray* x = @[ image({1, 1, 2, {1, 2}}) ];
  run(graph_of(@[ [back resultImage] ]), {{"x", x}, {"g", x}});
}
