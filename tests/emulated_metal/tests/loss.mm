// Losses against the tables of the specification.
#include <cmath>

#include "harness.hpp"

using namespace tests;

namespace {

MPSCNNLossDescriptor* loss(MPSCNNLossType type, MPSCNNReductionType reduction) {
  return [MPSCNNLossDescriptor cnnLossDescriptorWithType:type reductionType:reduction];
}

MPSCNNLossDataDescriptor* data(const Values& values) {
  NSData* bytes = [NSData dataWithBytes:values.data.data() length:values.data.size() * 4];
  return [MPSCNNLossDataDescriptor
      cnnLossDataDescriptorWithData:bytes
                             layout:MPSDataLayoutHeightxWidthxFeatureChannels
                               size:MTLSizeMake(values.width, values.height, values.channels)];
}

MPSCNNLossLabels* labels(const Values& values, const Values* weights, bool full) {
  const MTLSize size =
      full ? MTLSizeMake(values.width, values.height, values.channels) : MTLSizeMake(1, 1, 1);
  return [[[MPSCNNLossLabels alloc] initWithDevice:device()
                                     lossImageSize:size
                                  labelsDescriptor:data(values)
                                 weightsDescriptor:weights == nullptr ? nil : data(*weights)]
      autorelease];
}

struct Outcome {
  std::vector<float> loss, gradient;
};

Outcome run(MPSCNNLossDescriptor* descriptor, const std::vector<float>& y,
            const std::vector<float>& t) {
  auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device()
                                      lossDescriptor:descriptor] autorelease];
  const bool full = [descriptor reductionType] == MPSCNNReductionTypeNone;
  MPSCNNLossLabels* label = labels({1, 1, t.size(), t}, nullptr, full);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* gradient = empty(1, 1, y.size());
  [kernel encodeToCommandBuffer:buffer
                    sourceImage:image({1, 1, y.size(), y})
                         labels:label
               destinationImage:gradient];
  [label synchronizeOnCommandBuffer:buffer];
  finish(buffer, {gradient});
  return {read([label lossImage]), read(gradient)};
}

void check(MPSCNNLossDescriptor* descriptor, const std::vector<float>& y,
           const std::vector<float>& t, const std::vector<float>& elements, float sum, float mean,
           const std::vector<float>& gradient) {
  const auto each = [&](MPSCNNReductionType reduction, const std::vector<float>& expected) {
    [descriptor setReductionType:reduction];
    const Outcome outcome = run(descriptor, y, t);
    expect_values(__FILE__, __LINE__, outcome.loss, expected, 2e-6F);
    expect_values(__FILE__, __LINE__, outcome.gradient, gradient, 2e-6F);
  };
  if (!elements.empty()) {
    each(MPSCNNReductionTypeNone, elements);
    each(MPSCNNReductionTypeMean, {mean});
  }
  each(MPSCNNReductionTypeSum, {sum});
}

const std::vector<float> kY{0.2F, -0.4F, 1.0F}, kT{1, 0, 0}, kP{0.7F, 0.2F, 0.1F};
const MPSCNNReductionType kSum = MPSCNNReductionTypeSum;

NSData* anchors(std::initializer_list<float> sizes) {
  return [NSData dataWithBytes:sizes.begin() length:sizes.size() * 4];
}

}  // namespace

EXAMPLE(loss_table) {
  check(loss(MPSCNNLossTypeMeanAbsoluteError, kSum), kY, kT, {0.8F, 0.4F, 1}, 2.2F, 0.733333F,
        {-1, -1, 1});
  check(loss(MPSCNNLossTypeMeanSquaredError, kSum), kY, kT, {0.64F, 0.16F, 1}, 1.8F, 0.6F,
        {-1.6F, -0.8F, 2});
  MPSCNNLossDescriptor* d = loss(MPSCNNLossTypeSoftMaxCrossEntropy, kSum);
  check(d, kY, kT, {1.328229F, 0, 0}, 1.328229F, 1.328229F, {-0.735054F, 0.145406F, 0.589648F});
  [d setLabelSmoothing:0.3F];
  [d setNumberOfClasses:3];
  check(d, kY, kT, {1.062583F, 0.192823F, 0.052823F}, 1.308229F, 1.308229F,
        {-0.535054F, 0.045406F, 0.489648F});
  d = loss(MPSCNNLossTypeSigmoidCrossEntropy, kSum);
  check(d, kY, kT, {0.598139F, 0.513015F, 1.313262F}, 2.424416F, 0.808139F,
        {-0.450166F, 0.401312F, 0.731059F});
  [d setLabelSmoothing:0.2F];
  check(d, kY, kT, {0.618139F, 0.553015F, 1.213262F}, 2.384416F, 0.794805F,
        {-0.350166F, 0.301312F, 0.631059F});
  check(loss(MPSCNNLossTypeCategoricalCrossEntropy, kSum), kP, kT, {0.356675F, 0, 0}, 0.356675F,
        0.118892F, {-1.428571F, 0, 0});
  check(loss(MPSCNNLossTypeHinge, kSum), kY, kT, {0.8F, 0.6F, 2}, 3.4F, 1.133333F, {-1, 1, 1});
  check(loss(MPSCNNLossTypeHuber, kSum), {3, -0.4F, 1}, kT, {1.5F, 0.08F, 0.5F}, 2.08F, 0.693333F,
        {1, -0.4F, 1});
  check(loss(MPSCNNLossTypeCosineDistance, kSum), kY, kT, {}, 0.8F, 0, {-1, 0, 0});
  check(loss(MPSCNNLossTypeLog, kSum), kP, kT, {0.356675F, 0.223143F, 0.105360F}, 0.685179F,
        0.228393F, {-1.428571F, 1.25F, 1.111111F});
  check(loss(MPSCNNLossTypeKullbackLeiblerDivergence, kSum),
        {std::log(0.7F), std::log(0.2F), std::log(0.1F)}, {0.5F, 0.25F, 0.25F},
        {-0.168236F, 0.055786F, 0.229073F}, 0.116622F, 0.038874F, {-0.5F, -0.25F, -0.25F});
}

EXAMPLE(loss_reductions) {
  struct Case {
    MPSCNNReductionType reduction;
    BOOL across;
    std::vector<float> first, second;
  };
  const Values first{2, 1, 1, {1, 0}}, second{2, 1, 1, {2, 1}};
  for (const Case& c :
       {Case{MPSCNNReductionTypeNone, NO, {1, 0}, {18, 16}},
        Case{MPSCNNReductionTypeNone, YES, {1, 0}, {18, 16}},
        Case{MPSCNNReductionTypeSum, NO, {1}, {34}}, Case{MPSCNNReductionTypeSum, YES, {35}, {0}},
        Case{MPSCNNReductionTypeMean, NO, {0.5F}, {17}},
        Case{MPSCNNReductionTypeMean, YES, {8.75F}, {0}},
        Case{MPSCNNReductionTypeSumByNonZeroWeights, NO, {1}, {17}},
        Case{MPSCNNReductionTypeSumByNonZeroWeights, YES, {11.666667F}, {0}}}) {
    MPSCNNLossDescriptor* d = loss(MPSCNNLossTypeMeanSquaredError, c.reduction);
    [d setReduceAcrossBatch:c.across];
    auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device() lossDescriptor:d] autorelease];
    const bool full = c.reduction == MPSCNNReductionTypeNone;
    NSArray* label =
        @[ labels({2, 1, 1, {0, 0}}, &first, full), labels({2, 1, 1, {0, 0}}, &second, full) ];
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
    NSArray<MPSImage*>* gradients = [kernel encodeBatchToCommandBuffer:buffer
                                                          sourceImages:@[ row({1, 2}), row({3, 4}) ]
                                                                labels:label];
    MPSStateBatchSynchronize(label, buffer);
    MPSImageBatchSynchronize(gradients, buffer);
    finish(buffer);
    EXPECT_VALUES(read([[label objectAtIndex:0] lossImage]), (c.first));
    EXPECT_VALUES(read([[label objectAtIndex:1] lossImage]), (c.second));
    EXPECT_VALUES(read([gradients objectAtIndex:0]), {2, 0});
    EXPECT_VALUES(read([gradients objectAtIndex:1]), {12, 8});
  }
}

EXAMPLE(loss_separate_kernels) {
  for (const BOOL across : {NO, YES}) {
    MPSCNNLossDescriptor* d = loss(MPSCNNLossTypeMeanSquaredError, MPSCNNReductionTypeMean);
    [d setReduceAcrossBatch:across];
    auto* forward = [[[MPSNNForwardLoss alloc] initWithDevice:device()
                                               lossDescriptor:d] autorelease];
    auto* backward = [[[MPSNNLossGradient alloc] initWithDevice:device()
                                                 lossDescriptor:d] autorelease];
    auto* ones = [[[MPSNNInitialGradient alloc] initWithDevice:device()] autorelease];
    for (MPSKernel* kernel in @[ forward, backward, ones ]) {
      [static_cast<MPSCNNKernel*>(kernel) setDestinationImageAllocator:[MPSImage defaultAllocator]];
    }
    NSArray* sources = @[ row({1, 2}), row({3, 4}) ];
    NSArray* label = @[ row({0, 0}), row({0, 0}) ];
    NSArray* weights = @[ row({1, 0}), row({2, 1}) ];
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    NSArray<MPSState*>* states = nil;
    NSArray<MPSImage*>* values = [forward encodeBatchToCommandBuffer:buffer
                                                        sourceImages:sources
                                                              labels:label
                                                             weights:weights
                                                   destinationStates:&states
                                         destinationStateIsTemporary:NO];
    NSArray* initial = [ones encodeBatchToCommandBuffer:buffer sourceImages:values];
    NSArray<MPSImage*>* gradients = [backward encodeBatchToCommandBuffer:buffer
                                                         sourceGradients:initial
                                                            sourceImages:sources
                                                                  labels:label
                                                                 weights:weights
                                                            sourceStates:states];
    MPSImageBatchSynchronize(values, buffer);
    MPSImageBatchSynchronize(gradients, buffer);
    finish(buffer);
    EXPECT_VALUES(read([values objectAtIndex:0]), {across ? 8.75F : 0.5F});
    EXPECT_VALUES(read([values objectAtIndex:1]), {across ? 0.0F : 17.0F});
    EXPECT_VALUES(read([gradients objectAtIndex:0]), {across ? 0.5F : 1.0F, 0});
    EXPECT_VALUES(read([gradients objectAtIndex:1]), {across ? 3.0F : 6.0F, across ? 2.0F : 4.0F});
  }
}

EXAMPLE(loss_yolo) {
  MPSCNNYOLOLossDescriptor* d =
      [MPSCNNYOLOLossDescriptor cnnLossDescriptorWithXYLossType:MPSCNNLossTypeMeanSquaredError
                                                     WHLossType:MPSCNNLossTypeHuber
                                             confidenceLossType:MPSCNNLossTypeSigmoidCrossEntropy
                                                classesLossType:MPSCNNLossTypeSoftMaxCrossEntropy
                                                  reductionType:MPSCNNReductionTypeSum
                                                    anchorBoxes:anchors({1, 2, 2, 1})
                                            numberOfAnchorBoxes:2];
  auto* kernel = [[[MPSCNNYOLOLoss alloc] initWithDevice:device() lossDescriptor:d] autorelease];
  const std::vector<float> label{0.25F, 0.5F, 1, 2, 1, 0, 1, 0.25F, 0.5F, 1, 2, 1, 0, 1};
  MPSCNNLossLabels* state = labels({1, 1, 14, label}, nullptr, false);
  MPSImage* gradient = empty(1, 1, 14);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer
                    sourceImage:channels({0, 0, 0.5F, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0})
                         labels:state
               destinationImage:gradient];
  [state synchronizeOnCommandBuffer:buffer];
  finish(buffer, {gradient});
  EXPECT_VALUES(read([state lossImage]), {76.801909F});
  expect_values(
      __FILE__, __LINE__, read(gradient),
      {1.25F, 0, 4.999900F, -0.0001F, 12.452792F, 1.761594F, -1.761594F, 0, 0, 0, 0, 0, 0, 0},
      2e-5F);
}

OFFENCE(loss_descriptor) {
  (void)[[[MPSCNNLoss alloc]
      initWithDevice:device()
      lossDescriptor:loss(MPSCNNLossTypeCosineDistance, MPSCNNReductionTypeMean)] autorelease];
}
OFFENCE(loss_geometry) {
  auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device()
                                      lossDescriptor:loss(MPSCNNLossTypeHinge, kSum)] autorelease];
  [kernel setOffset:{1, 0, 0}];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:row({1})
                         labels:labels({1, 1, 1, {1}}, nullptr, false)
               destinationImage:empty(1, 1, 1)];
}
OFFENCE(loss_image_size) {
  auto* kernel = [[[MPSCNNLoss alloc]
      initWithDevice:device()
      lossDescriptor:loss(MPSCNNLossTypeHinge, MPSCNNReductionTypeNone)] autorelease];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:row({1, 2})
                         labels:labels({2, 1, 1, {1, 0}}, nullptr, false)
               destinationImage:empty(2, 1, 1)];
}
OFFENCE(labels_missing) {
  auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device()
                                      lossDescriptor:loss(MPSCNNLossTypeHinge, kSum)] autorelease];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:row({1})
               destinationImage:empty(1, 1, 1)];
}
OFFENCE(labels_size) {
  auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device()
                                      lossDescriptor:loss(MPSCNNLossTypeHinge, kSum)] autorelease];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:row({1, 2})
                         labels:labels({1, 1, 1, {1}}, nullptr, false)
               destinationImage:empty(2, 1, 1)];
}
OFFENCE(labels_repeated) {
  auto* kernel = [[[MPSCNNLoss alloc] initWithDevice:device()
                                      lossDescriptor:loss(MPSCNNLossTypeHinge, kSum)] autorelease];
  MPSCNNLossLabels* label = labels({1, 1, 1, {1}}, nullptr, false);
  [kernel encodeBatchToCommandBuffer:[queue() commandBuffer]
                        sourceImages:@[ row({1}), row({2}) ]
                              labels:@[ label, label ]
                   destinationImages:@[ empty(1, 1, 1), empty(1, 1, 1) ]];
}
OFFENCE(array_descriptor) {
  (void)[[[MPSVector alloc]
      initWithDevice:device()
          descriptor:[MPSVectorDescriptor vectorDescriptorWithLength:0 dataType:MPSDataTypeFloat32]]
      autorelease];
}
OFFENCE(array_buffer) {
  (void)[[[MPSVector alloc]
      initWithBuffer:[[device() newBufferWithLength:8
                                            options:MTLResourceStorageModeShared] autorelease]
          descriptor:[MPSVectorDescriptor vectorDescriptorWithLength:3 dataType:MPSDataTypeFloat32]]
      autorelease];
}
