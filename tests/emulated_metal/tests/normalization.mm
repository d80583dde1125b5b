// Normalization and dropout against the worked examples of the specification.
#include <cmath>
#include <cstring>

#include "harness.hpp"

using namespace tests;

// One data source for batch, instance and group normalization.
@interface ScaleSource : NSObject <MPSCNNBatchNormalizationDataSource> {
 @public
  std::vector<float>*gamma_, *beta_, *mean_, *variance_;
  float epsilon_;
  NSUInteger channels_, groups_;
}
@end

@implementation ScaleSource
- (void)dealloc {
  for (std::vector<float>* values : {gamma_, beta_, mean_, variance_}) delete values;
  [super dealloc];
}
- (NSUInteger)numberOfFeatureChannels {
  return channels_;
}
- (NSUInteger)numberOfGroups {
  return groups_;
}
- (void)setNumberOfGroups:(NSUInteger)groups {
  groups_ = groups;
}
- (float*)gamma {
  return gamma_ == nullptr ? nullptr : gamma_->data();
}
- (float*)beta {
  return beta_ == nullptr ? nullptr : beta_->data();
}
- (float*)mean {
  return mean_ == nullptr ? nullptr : mean_->data();
}
- (float*)variance {
  return variance_ == nullptr ? nullptr : variance_->data();
}
- (float)epsilon {
  return epsilon_;
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
@end

namespace {

ScaleSource* scale_source(std::vector<float> gamma, std::vector<float> beta, float epsilon,
                          NSUInteger groups = 1) {
  ScaleSource* source = [[[ScaleSource alloc] init] autorelease];
  source->channels_ = gamma.size();
  source->groups_ = groups;
  source->gamma_ = new std::vector<float>(std::move(gamma));
  source->beta_ = new std::vector<float>(std::move(beta));
  source->epsilon_ = epsilon;
  return source;
}

std::vector<float> floats_in(id<MTLBuffer> buffer) {
  std::vector<float> values([buffer length] / sizeof(float));
  std::memcpy(values.data(), [buffer contents], [buffer length]);
  return values;
}

MPSNNNeuronDescriptor* relu() {
  return [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeReLU a:0];
}

MPSCNNBatchNormalization* batch_normalization(ScaleSource* source) {
  return [[[MPSCNNBatchNormalization alloc] initWithDevice:device()
                                                dataSource:source
                                     fusedNeuronDescriptor:relu()] autorelease];
}

MPSCNNBatchNormalizationState* state_of(MPSCNNBatchNormalization* kernel, MPSImage* image) {
  return [kernel resultStateForSourceImage:image
                              sourceStates:nil
                          destinationImage:empty([image width], 1, [image featureChannels])];
}

struct Pair {
  std::vector<float> result, gradient;
};

// Forward and gradient of a kernel with one state for each image.
template <class Forward, class Backward>
Pair both(Forward* forward, Backward* backward, MPSImage* source, MPSImage* incoming,
          MPSState** out_state = nullptr) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty([source width], [source height], [source featureChannels]);
  MPSImage* gradient = empty([source width], [source height], [source featureChannels]);
  MPSState* state = [forward resultStateForSourceImage:source
                                          sourceStates:nil
                                      destinationImage:result];
  [forward encodeToCommandBuffer:buffer
                     sourceImage:source
                destinationState:state
                destinationImage:result];
  [backward destinationImageDescriptorForSourceImages:@[ incoming, source ]
                                         sourceStates:@[ state ]];
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:incoming
                      sourceImage:source
                    gradientState:state
              destinationGradient:gradient];
  [state synchronizeOnCommandBuffer:buffer];
  finish(buffer, {result, gradient});
  if (out_state != nullptr) *out_state = state;
  return {read(result), read(gradient)};
}

template <class Kernel>
Kernel* window(NSUInteger size) {
  return [[[Kernel alloc] initWithDevice:device() kernelWidth:size kernelHeight:size] autorelease];
}

}  // namespace

EXAMPLE(batch_normalization_training_step) {
  ScaleSource* source = scale_source({2}, {1}, 0.5F);
  auto* statistics =
      [[[MPSCNNBatchNormalizationStatistics alloc] initWithDevice:device()] autorelease];
  auto* forward = batch_normalization(source);
  auto* sums =
      [[[MPSCNNBatchNormalizationStatisticsGradient alloc] initWithDevice:device()
                                                    fusedNeuronDescriptor:relu()] autorelease];
  auto* backward = [[[MPSCNNBatchNormalizationGradient alloc] initWithDevice:device()
                                                       fusedNeuronDescriptor:relu()] autorelease];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  NSArray* images = @[ row({1, 2}), row({3, 6}) ];
  NSArray* gradients = @[ row({1, 2}), row({3, -1}) ];
  MPSCNNBatchNormalizationState* state = state_of(forward, [images objectAtIndex:0]);
  EXPECT([state mean] == nil && [state gradientForGamma] == nil);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  for (MPSImage* image in images) {
    [statistics encodeBatchToCommandBuffer:buffer
                              sourceImages:@[ image ]
                   batchNormalizationState:state];
  }
  NSArray* results = @[ empty(2, 1, 1), empty(2, 1, 1) ];
  [forward encodeBatchToCommandBuffer:buffer
                         sourceImages:images
              batchNormalizationState:state
                    destinationImages:results];
  for (NSUInteger i = 0; i < 2; ++i) {
    [sums encodeBatchToCommandBuffer:buffer
                     sourceGradients:@[ [gradients objectAtIndex:i] ]
                        sourceImages:@[ [images objectAtIndex:i] ]
             batchNormalizationState:state];
  }
  NSArray<MPSImage*>* data = [backward encodeBatchToCommandBuffer:buffer
                                                  sourceGradients:gradients
                                                     sourceImages:images
                                          batchNormalizationState:state];
  [state synchronizeOnCommandBuffer:buffer];
  MPSImageBatchSynchronize(results, buffer);
  MPSImageBatchSynchronize(data, buffer);
  finish(buffer);
  EXPECT_VALUES(floats_in([state mean]), {3});
  EXPECT_VALUES(floats_in([state variance]), {3.5F});
  EXPECT_VALUES(read([results objectAtIndex:0]), {0, 0});
  EXPECT_VALUES(read([results objectAtIndex:1]), {1, 4});
  EXPECT_VALUES(floats_in([state gradientForBeta]), {4});
  EXPECT_VALUES(floats_in([state gradientForGamma]), {-2.5F});
  EXPECT_VALUES(read([data objectAtIndex:0]), {-1.625F, 0.6875F});
  EXPECT_VALUES(read([data objectAtIndex:1]), {2, -1.0625F});
}

EXAMPLE(batch_normalization_gradients_may_appear_late) {
  emulated_metal_set_option("batch_gradients_late", 1);
  auto* forward = batch_normalization(scale_source({2}, {1}, 0.5F));
  auto* statistics =
      [[[MPSCNNBatchNormalizationStatistics alloc] initWithDevice:device()] autorelease];
  auto* sums =
      [[[MPSCNNBatchNormalizationStatisticsGradient alloc] initWithDevice:device()
                                                    fusedNeuronDescriptor:relu()] autorelease];
  auto* backward = [[[MPSCNNBatchNormalizationGradient alloc] initWithDevice:device()
                                                       fusedNeuronDescriptor:relu()] autorelease];
  NSArray* images = @[ row({1, 2}) ];
  MPSCNNBatchNormalizationState* state = state_of(forward, [images objectAtIndex:0]);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [statistics encodeBatchToCommandBuffer:buffer sourceImages:images batchNormalizationState:state];
  [sums encodeBatchToCommandBuffer:buffer
                   sourceGradients:images
                      sourceImages:images
           batchNormalizationState:state];
  EXPECT([state gradientForGamma] == nil && [state gradientForBeta] == nil);
  [backward encodeBatchToCommandBuffer:buffer
                       sourceGradients:images
                          sourceImages:images
               batchNormalizationState:state
                  destinationGradients:@[ empty(2, 1, 1) ]];
  EXPECT([state gradientForGamma] != nil && [state gradientForBeta] != nil);
  finish(buffer);
}

EXAMPLE(batch_normalization_inference_and_reload) {
  ScaleSource* source = scale_source({2}, {1}, 0);
  source->mean_ = new std::vector<float>{1};
  source->variance_ = new std::vector<float>{4};
  auto* kernel = [[[MPSCNNBatchNormalization alloc] initWithDevice:device()
                                                        dataSource:source] autorelease];
  MPSImage* before = empty(1, 1, 1);
  MPSImage* after = empty(1, 1, 1);
  auto buffer_of = [](float value) {
    return [[device() newBufferWithBytes:&value length:4
                                 options:MTLResourceStorageModeShared] autorelease];
  };
  auto* statistics =
      [[[MPSCNNNormalizationMeanAndVarianceState alloc] initWithMean:buffer_of(3)
                                                            variance:buffer_of(1)] autorelease];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({5}) destinationImage:before];
  [kernel reloadMeanAndVarianceWithCommandBuffer:buffer meanAndVarianceState:statistics];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({5}) destinationImage:after];
  finish(buffer, {before, after});
  EXPECT_VALUES(read(before), {5});
  EXPECT_VALUES(read(after), {5});
}

EXAMPLE(instance_normalization_example) {
  ScaleSource* source = scale_source({2}, {1}, 3);
  auto* forward =
      [[[MPSCNNInstanceNormalization alloc] initWithDevice:device()
                                                dataSource:static_cast<id>(source)] autorelease];
  auto* backward =
      [[[MPSCNNInstanceNormalizationGradient alloc] initWithDevice:device()] autorelease];
  MPSState* state = nil;
  const Pair p = both(forward, backward, row({1, 3}), row({1, 0}), &state);
  EXPECT_VALUES(p.result, {0, 2});
  EXPECT_VALUES(p.gradient, {0.375F, -0.375F});
  auto* typed = static_cast<MPSCNNInstanceNormalizationGradientState*>(state);
  EXPECT_VALUES(floats_in([typed gradientForBeta]), {1});
  EXPECT_VALUES(floats_in([typed gradientForGamma]), {-0.5F});
}

EXAMPLE(group_normalization_example) {
  ScaleSource* source = scale_source({2, 2, 4, 2}, {0, 0, 1, 1}, 3, 2);
  auto* forward =
      [[[MPSCNNGroupNormalization alloc] initWithDevice:device()
                                             dataSource:static_cast<id>(source)] autorelease];
  auto* backward = [[[MPSCNNGroupNormalizationGradient alloc] initWithDevice:device()] autorelease];
  MPSState* state = nil;
  const Pair p = both(forward, backward, channels({1, 3, 7, 9}), channels({1, 0, 1, 1}), &state);
  EXPECT_VALUES(p.result, {-1, 1, -1, 2});
  EXPECT_VALUES(p.gradient, {0.375F, -0.375F, 0.375F, -0.375F});
  auto* typed = static_cast<MPSCNNGroupNormalizationGradientState*>(state);
  EXPECT_VALUES(floats_in([typed gradientForGamma]), {-0.5F, 0, -0.5F, 0.5F});
  EXPECT_VALUES(floats_in([typed gradientForBeta]), {1, 0, 1, 1});
}

// One state an image, temporary ones too; a reload between the passes reaches the gradient.
EXAMPLE(instance_normalization_states_are_live_and_apart) {
  ScaleSource* source = scale_source({2}, {1}, 3);
  auto* forward =
      [[[MPSCNNInstanceNormalization alloc] initWithDevice:device()
                                                dataSource:static_cast<id>(source)] autorelease];
  auto* backward =
      [[[MPSCNNInstanceNormalizationGradient alloc] initWithDevice:device()] autorelease];
  NSArray* sources = @[ row({1, 3}), row({3, 1}) ];
  NSArray* incoming = @[ row({1, 0}), row({2, 0}) ];
  for (const bool temporary : {false, true}) {
    const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
    NSArray* results = @[ empty(2, 1, 1), empty(2, 1, 1) ];
    NSArray* gradients = @[ empty(2, 1, 1), empty(2, 1, 1) ];
    NSMutableArray* states = [NSMutableArray array];
    for (MPSImage* image in sources) {
      [states addObject:temporary ? [forward temporaryResultStateForCommandBuffer:buffer
                                                                      sourceImage:image
                                                                     sourceStates:nil
                                                                 destinationImage:image]
                                  : [forward resultStateForSourceImage:image
                                                          sourceStates:nil
                                                      destinationImage:image]];
    }
    auto* first = static_cast<MPSCNNInstanceNormalizationGradientState*>([states objectAtIndex:0]);
    auto* second = static_cast<MPSCNNInstanceNormalizationGradientState*>([states objectAtIndex:1]);
    EXPECT([first instanceNormalization] == forward);
    EXPECT([first gradientForGamma] != [second gradientForGamma]);
    [forward encodeBatchToCommandBuffer:buffer
                           sourceImages:sources
                      destinationStates:states
                      destinationImages:results];
    (*source->gamma_)[0] = 4;
    [forward reloadGammaAndBetaFromDataSource];
    [backward encodeBatchToCommandBuffer:buffer
                         sourceGradients:incoming
                            sourceImages:sources
                          gradientStates:states
                    destinationGradients:gradients];
    if (temporary) {
      EXPECT([first readCount] == 0 && [second readCount] == 0);
    } else {
      EXPECT(std::isnan(floats_in([first gradientForGamma])[0]));  // fresh memory
      for (MPSState* state in states) [state synchronizeOnCommandBuffer:buffer];
    }
    for (NSArray* images : {results, gradients}) {
      for (MPSImage* image in images) [image synchronizeOnCommandBuffer:buffer];
    }
    finish(buffer);
    EXPECT_VALUES(read([results objectAtIndex:0]), {0, 2});
    EXPECT_VALUES(read([results objectAtIndex:1]), {2, 0});
    EXPECT_VALUES(read([gradients objectAtIndex:0]), {0.75F, -0.75F});
    EXPECT_VALUES(read([gradients objectAtIndex:1]), {1.5F, -1.5F});
    if (!temporary) {
      EXPECT_VALUES(floats_in([first gradientForGamma]), {-0.5F});
      EXPECT_VALUES(floats_in([second gradientForGamma]), {1});
      EXPECT_VALUES(floats_in([second gradientForBeta]), {2});
    }
    (*source->gamma_)[0] = 2;
    [forward reloadGammaAndBetaFromDataSource];
  }
}

EXAMPLE(cross_channel_normalization_table) {
  const std::vector<std::vector<float>> results{{0.5F, 0.4F, 0, 0.3F},
                                                {0.666667F, 0.571429F, 0, 0.545455F},
                                                {0.375F, 0.75F, 0, 0.75F},
                                                {0.444444F, 0.888889F, 0, 0.705882F}};
  const std::vector<std::vector<float>> gradients{{0, -0.12F, 1, -0.08F},
                                                  {0.058957F, -0.040816F, 0.333333F, -0.115702F},
                                                  {0.09375F, -0.1875F, 0.1875F, -0.125F},
                                                  {0.148148F, -0.314238F, 0.222222F, -0.013841F}};
  for (NSUInteger n = 1; n <= 4; ++n) {
    auto* forward = [[[MPSCNNCrossChannelNormalization alloc] initWithDevice:device()
                                                                  kernelSize:n] autorelease];
    auto* backward =
        [[[MPSCNNCrossChannelNormalizationGradient alloc] initWithDevice:device()
                                                              kernelSize:n] autorelease];
    EXPECT([forward beta] == 5 && [forward kernelSize] == n);
    [forward setBeta:1];
    [backward setBeta:1];
    const Pair p = both(forward, backward, channels({1, 2, 0, 3}), channels({1, 1, 1, 1}));
    EXPECT_VALUES(p.result, (results[n - 1]));
    EXPECT_VALUES(p.gradient, (gradients[n - 1]));
  }
}

EXAMPLE(spatial_normalization_table) {
  MPSImage* source = image({2, 2, 1, {1, 2, 3, 4}});
  MPSImage* ones = image({2, 2, 1, {1, 1, 1, 1}});
  auto* forward = window<MPSCNNSpatialNormalization>(2);
  auto* backward = window<MPSCNNSpatialNormalizationGradient>(2);
  [forward setBeta:1];
  [backward setBeta:1];
  Pair p = both(forward, backward, source, ones);
  EXPECT_VALUES(p.result, {0.8F, 0.888889F, 0.857143F, 0.470588F});
  EXPECT_VALUES(p.gradient, {0.132338F, -0.005981F, -0.164678F, 0.006920F});
  forward = window<MPSCNNSpatialNormalization>(3);
  backward = window<MPSCNNSpatialNormalizationGradient>(3);
  [forward setBeta:1];
  [backward setBeta:1];
  p = both(forward, backward, source, ones);
  EXPECT_VALUES(p.result, {0.230769F, 0.461538F, 0.692308F, 0.923077F});
  EXPECT_VALUES(p.gradient, {0.112426F, -0.005917F, -0.124260F, -0.242604F});
}

EXAMPLE(local_contrast_normalization_table) {
  std::vector<float> ramp(16);
  for (size_t i = 0; i < 16; ++i) ramp[i] = static_cast<float>(i + 1);
  auto* kernel = window<MPSCNNLocalContrastNormalization>(3);
  MPSImage* result = empty(4, 4, 1);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:image({4, 4, 1, ramp}) destinationImage:result];
  finish(buffer, {result});
  const std::vector<float> values = read(result);
  EXPECT_VALUES(std::vector<float>(values.begin(), values.begin() + 8),
                {-17.777778F, -21.333333F, -10.666667F, 49.777778F, 42.666667F, 0, 0, 96});
  // One line: a window of 3 x 3 sees it in its middle row.
  auto* backward = window<MPSCNNLocalContrastNormalizationGradient>(3);
  [kernel setAlpha:1];
  [kernel setBeta:1];
  [kernel setDelta:1];
  [backward setAlpha:1];
  [backward setBeta:1];
  [backward setDelta:1];
  const Pair p = both(kernel, backward, row({1, 2, 3}), row({1, 1, 1}));
  EXPECT_VALUES(p.result, {0.461538F, 0.631579F, 1.144509F});
  EXPECT_VALUES(p.gradient, {0.493255F, -0.086887F, -0.082660F});
}

EXAMPLE(dropout_mask_is_shared) {
  auto* forward = [[[MPSCNNDropout alloc] initWithDevice:device()
                                         keepProbability:0.5F
                                                    seed:7
                                      maskStrideInPixels:MTLSizeMake(1, 1, 1)] autorelease];
  auto* backward =
      [[[MPSCNNDropoutGradient alloc] initWithDevice:device()
                                     keepProbability:0.5F
                                                seed:7
                                  maskStrideInPixels:MTLSizeMake(1, 1, 1)] autorelease];
  const std::vector<float> ones(64, 1.0F);
  MPSState* state = nil;
  const Pair p = both(forward, backward, image({8, 8, 1, ones}), image({8, 8, 1, ones}), &state);
  float kept = 0;
  for (const float value : p.result) {
    EXPECT(value == 0 || value == 2);
    kept += value / 2;
  }
  EXPECT(kept > 12 && kept < 52);
  EXPECT(p.result == p.gradient);
  EXPECT([[static_cast<MPSCNNDropoutGradientState*>(state) maskData] length] == 64);
}

OFFENCE(normalization_state) {
  const id<MTLBuffer> one =
      [[device() newBufferWithLength:4 options:MTLResourceStorageModeShared] autorelease];
  auto* container = [[[MPSCNNNormalizationGammaAndBetaState alloc] initWithGamma:one
                                                                            beta:one] autorelease];
  [batch_normalization(scale_source({1, 2}, {1, 2}, 0))
      reloadGammaAndBetaWithCommandBuffer:[queue() commandBuffer]
                        gammaAndBetaState:container];
}
OFFENCE(normalization_phase) {
  auto* sums =
      [[[MPSCNNBatchNormalizationStatisticsGradient alloc] initWithDevice:device()
                                                    fusedNeuronDescriptor:nil] autorelease];
  auto* kernel = batch_normalization(scale_source({1}, {1}, 0));
  [sums encodeBatchToCommandBuffer:[queue() commandBuffer]
                   sourceGradients:@[ row({1}) ]
                      sourceImages:@[ row({1}) ]
           batchNormalizationState:state_of(kernel, row({1}))];
}
OFFENCE(normalization_phase) {
  auto* kernel = batch_normalization(scale_source({1}, {1}, 0));
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:row({1})
               destinationImage:empty(1, 1, 1)];
}
OFFENCE(normalization_geometry) {
  auto* statistics =
      [[[MPSCNNBatchNormalizationStatistics alloc] initWithDevice:device()] autorelease];
  [statistics setOffset:{1, 0, 0}];
  auto* kernel = batch_normalization(scale_source({1}, {1}, 0));
  [statistics encodeBatchToCommandBuffer:[queue() commandBuffer]
                            sourceImages:@[ row({1}) ]
                 batchNormalizationState:state_of(kernel, row({1}))];
}
OFFENCE(dropout_parameters) {
  (void)[[[MPSCNNDropout alloc] initWithDevice:device()
                               keepProbability:1
                                          seed:0
                            maskStrideInPixels:MTLSizeMake(1, 1, 1)] autorelease];
}
OFFENCE(dropout_parameters) {
  (void)[[[MPSCNNDropout alloc] initWithDevice:device()
                               keepProbability:0.5F
                                          seed:0
                            maskStrideInPixels:MTLSizeMake(2, 1, 1)] autorelease];
}
OFFENCE(state_not_distinct) {
  auto* kernel = [[[MPSCNNInstanceNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  MPSImage* source = row({1});
  MPSImage* result = empty(1, 1, 1);
  MPSState* state = [kernel resultStateForSourceImage:source
                                         sourceStates:nil
                                     destinationImage:result];
  [kernel encodeBatchToCommandBuffer:[queue() commandBuffer]
                        sourceImages:@[ source, source ]
                   destinationStates:@[ state, state ]
                   destinationImages:@[ result, empty(1, 1, 1) ]];
}
OFFENCE(state_not_encoded) {
  auto* kernel = [[[MPSCNNGroupNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  auto* backward = [[[MPSCNNGroupNormalizationGradient alloc] initWithDevice:device()] autorelease];
  MPSImage* source = row({1});
  [backward encodeToCommandBuffer:[queue() commandBuffer]
                   sourceGradient:row({1})
                      sourceImage:source
                    gradientState:[kernel resultStateForSourceImage:source
                                                       sourceStates:nil
                                                   destinationImage:empty(1, 1, 1)]
              destinationGradient:empty(1, 1, 1)];
}
OFFENCE(state_wrong_class) {
  auto* kernel = [[[MPSCNNInstanceNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  both(kernel, [[[MPSCNNGroupNormalizationGradient alloc] initWithDevice:device()] autorelease],
       row({1}), row({1}));
}
OFFENCE(source_channels) {
  auto* kernel = [[[MPSCNNInstanceNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  both(kernel, [[[MPSCNNInstanceNormalizationGradient alloc] initWithDevice:device()] autorelease],
       channels({1, 2}), channels({1, 2}));
}
OFFENCE(source_channels) {
  auto* kernel = [[[MPSCNNInstanceNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  [kernel setSourceFeatureChannelMaxCount:1];  // the gradient kernel knows nothing of it
  MPSImage* source = channels({1, 2});
  MPSImage* result = empty(1, 1, 1);
  MPSState* state = [kernel resultStateForSourceImage:source
                                         sourceStates:nil
                                     destinationImage:result];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer
                    sourceImage:source
               destinationState:state
               destinationImage:result];
  auto* backward =
      [[[MPSCNNInstanceNormalizationGradient alloc] initWithDevice:device()] autorelease];
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:source
                      sourceImage:source
                    gradientState:state
              destinationGradient:empty(1, 1, 2)];
}
OFFENCE(kernel_changed) {
  auto* kernel = [[[MPSCNNGroupNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1}, {1}, 0))] autorelease];
  MPSImage* source = row({1});
  MPSState* state = [kernel resultStateForSourceImage:source
                                         sourceStates:nil
                                     destinationImage:empty(1, 1, 1)];
  [kernel setEpsilon:2];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:source
               destinationState:state
               destinationImage:empty(1, 1, 1)];
}
OFFENCE(data_source) {
  (void)[[[MPSCNNGroupNormalization alloc]
      initWithDevice:device()
          dataSource:static_cast<id>(scale_source({1, 1, 1}, {0, 0, 0}, 0, 2))] autorelease];
}
OFFENCE(edge_mode) {
  auto* forward = window<MPSCNNSpatialNormalization>(3);
  [forward setEdgeMode:MPSImageEdgeModeClamp];
  both(forward, window<MPSCNNSpatialNormalizationGradient>(3), row({1, 2}), row({1, 1}));
}
OFFENCE(init_unavailable) {
  MPSCNNKernel* kernel = batch_normalization(scale_source({2}, {1}, 0));
  [kernel encodeBatchToCommandBuffer:[queue() commandBuffer]
                        sourceImages:@[ row({1}) ]
                   destinationStates:nil
                   destinationImages:@[ empty(1, 1, 1) ]];
}
OFFENCE(init_unavailable) {
  (void)[static_cast<id>([MPSCNNBatchNormalizationState class])
      temporaryStateWithCommandBuffer:[queue() commandBuffer]
                           bufferSize:static_cast<size_t>(4)];
}
