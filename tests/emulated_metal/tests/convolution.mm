// Convolutions against the worked examples of the specification.
#include <cmath>
#include <cstring>

#include "harness.hpp"

using namespace tests;

// A data source over vectors that records the order of the calls it gets.
@interface TestSource : NSObject <MPSCNNConvolutionDataSource> {
 @public
  std::vector<float>* weights_;
  std::vector<float>* biases_;
  MPSCNNConvolutionDescriptor* descriptor_;
  std::string* calls_;
  BOOL refuses_;
  MPSDataType type_, kernel_type_;
}
@end

@implementation TestSource
- (void)dealloc {
  delete weights_;
  delete biases_;
  delete calls_;
  [descriptor_ release];
  [super dealloc];
}
- (MPSDataType)dataType {
  return type_;
}
- (MPSDataType)kernelWeightsDataType {
  return kernel_type_;
}
- (MPSCNNConvolutionDescriptor*)descriptor {
  *calls_ += 'd';
  return descriptor_;
}
- (void*)weights {
  *calls_ += 'w';
  return weights_->data();
}
- (float*)biasTerms {
  *calls_ += 'b';
  return biases_->empty() ? nullptr : biases_->data();
}
- (BOOL)load {
  *calls_ += '(';
  return !refuses_;
}
- (void)purge {
  *calls_ += ')';
}
- (NSString*)label {
  return @"test source";
}
- (id)copyWithZone:(NSZone*)zone {
  (void)zone;
  return [self retain];
}
@end

namespace {

TestSource* data_source(MPSCNNConvolutionDescriptor* descriptor, std::vector<float> weights,
                        std::vector<float> biases = {}) {
  TestSource* source = [[[TestSource alloc] init] autorelease];
  source->weights_ = new std::vector<float>(std::move(weights));
  source->biases_ = new std::vector<float>(std::move(biases));
  source->calls_ = new std::string;
  source->descriptor_ = [descriptor retain];
  source->type_ = source->kernel_type_ = MPSDataTypeFloat32;
  return source;
}

MPSCNNConvolutionDescriptor* shape(NSUInteger kernel, NSUInteger in = 1, NSUInteger out = 1,
                                   Class descriptor = [MPSCNNConvolutionDescriptor class]) {
  return [descriptor cnnConvolutionDescriptorWithKernelWidth:kernel
                                                kernelHeight:1
                                        inputFeatureChannels:in
                                       outputFeatureChannels:out];
}

std::vector<float> floats_in(id<MTLBuffer> buffer) {
  std::vector<float> values([buffer length] / sizeof(float));
  std::memcpy(values.data(), [buffer contents], [buffer length]);
  return values;
}

struct Trained {
  std::vector<float> result, data, weights, biases;
};

// Forward with a fixed offset and size, then backward with created destinations.
Trained train(Class forward_class, Class backward_class, TestSource* source, MPSImage* image,
              MPSImage* gradient, MPSOffset offset) {
  MPSCNNConvolution* forward = [[[forward_class alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  MPSCNNConvolutionGradient* backward =
      [[[backward_class alloc] initWithDevice:device() weights:source] autorelease];
  [forward setOffset:offset];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  MPSImage* result = empty([gradient width], [gradient height], [gradient featureChannels]);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSCNNConvolutionGradientState* state = [forward resultStateForSourceImage:image
                                                                sourceStates:nil
                                                            destinationImage:result];
  [forward encodeToCommandBuffer:buffer
                     sourceImage:image
                destinationState:state
                destinationImage:result];
  MPSImage* data = [backward encodeToCommandBuffer:buffer
                                    sourceGradient:gradient
                                       sourceImage:image
                                     gradientState:state];
  [state synchronizeOnCommandBuffer:buffer];
  finish(buffer, {result, data});
  return {read(result), read(data), floats_in([state gradientForWeights]),
          floats_in([state gradientForBiases])};
}

Trained train(TestSource* source, MPSImage* image, MPSImage* gradient, MPSOffset offset) {
  return train([MPSCNNConvolution class], [MPSCNNConvolutionGradient class], source, image,
               gradient, offset);
}

void encode_plain(MPSCNNKernel* kernel, MPSImage* source, MPSImage* destination) {
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:source
               destinationImage:destination];
}

MPSCNNConvolution* plain(TestSource* source) {
  return [[[MPSCNNConvolution alloc] initWithDevice:device() weights:source] autorelease];
}

}  // namespace

EXAMPLE(convolution_strided) {
  MPSCNNConvolutionDescriptor* descriptor = shape(3);
  [descriptor setStrideInPixelsX:2];
  TestSource* source = data_source(descriptor, {1, 2, 3}, {0.5F});
  const Trained t = train(source, row({1, 2, 3, 4, 5}), row({1, 10, 100}), {0, 0, 0});
  EXPECT_VALUES(t.result, {8.5F, 20.5F, 14.5F});
  EXPECT_VALUES(t.data, {2, 13, 20, 130, 200});
  EXPECT_VALUES(t.weights, {420, 531, 42});
  EXPECT_VALUES(t.biases, {111});
  // Every look at the source is bracketed.
  const std::string& calls = *source->calls_;
  EXPECT(calls.front() == '(' && calls.back() == ')');
  int depth = 0;
  for (const char call : calls) {
    depth += call == '(' ? 1 : call == ')' ? -1 : 0;
    EXPECT(depth == 0 || depth == 1);
    EXPECT(depth == 1 || call == ')');
  }
}

EXAMPLE(convolution_batch_sums) {
  MPSCNNConvolutionDescriptor* descriptor = shape(3);
  [descriptor setStrideInPixelsX:2];
  TestSource* source = data_source(descriptor, {1, 2, 3}, {0.5F});
  auto* forward = plain(source);
  auto* backward = [[[MPSCNNConvolutionGradient alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  [forward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  NSArray* images = @[ row({1, 2, 3, 4, 5}), row({1, 1, 1, 1, 1}) ];
  NSArray* gradients = @[ row({1, 10, 100}), row({1, 1, 1}) ];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  NSArray<MPSState*>* states = nil;
  NSArray<MPSImage*>* results = [forward encodeBatchToCommandBuffer:buffer
                                                       sourceImages:images
                                                  destinationStates:&states
                                        destinationStateIsTemporary:NO];
  EXPECT([states count] == 2 && [states objectAtIndex:0] == [states objectAtIndex:1]);
  EXPECT([[results objectAtIndex:0] width] == 3);
  NSArray<MPSImage*>* data = [backward encodeBatchToCommandBuffer:buffer
                                                  sourceGradients:gradients
                                                     sourceImages:images
                                                   gradientStates:states];
  EXPECT([backward kernelOffsetX] == 0 && [backward secondaryOffset].x == -1);
  EXPECT(MPSStateBatchResourceSize(states) == 4 * sizeof(float));
  MPSStateBatchSynchronize(states, buffer);
  MPSImageBatchSynchronize(data, buffer);
  [buffer commit];
  [buffer waitUntilCompleted];
  auto* state = static_cast<MPSCNNConvolutionGradientState*>([states objectAtIndex:0]);
  EXPECT_VALUES(floats_in([state gradientForWeights]), {422, 534, 44});
  EXPECT_VALUES(floats_in([state gradientForBiases]), {114});
  EXPECT_VALUES(read([data objectAtIndex:1]), {2, 4, 2, 4, 2});
}

EXAMPLE(convolution_even_window) {
  TestSource* source = data_source(shape(2), {1, 10});
  Trained t = train(source, row({1, 2, 3}), row({1, 2}), {1, 0, 0});
  EXPECT_VALUES(t.result, {21, 32});
  EXPECT_VALUES(t.data, {1, 12, 20});
  EXPECT_VALUES(t.weights, {5, 8});
  EXPECT_VALUES(t.biases, {3});
  t = train(source, row({1, 2, 3}), row({1, 1, 1}), {0, 0, 0});
  EXPECT_VALUES(t.result, {10, 21, 32});
}

EXAMPLE(convolution_dilated) {
  MPSCNNConvolutionDescriptor* descriptor = shape(3);
  [descriptor setDilationRateX:2];
  MPSImage* gradient = row({1, 1, 1, 1, 1});
  EXPECT_VALUES(
      train(data_source(descriptor, {1, 10, 100}), row({1, 2, 3, 4, 5}), gradient, {0, 0, 0})
          .result,
      {310, 420, 531, 42, 53});
  descriptor = shape(2);
  [descriptor setDilationRateX:3];
  EXPECT_VALUES(
      train(data_source(descriptor, {1, 10}), row({1, 2, 3, 4, 5}), gradient, {1, 0, 0}).result,
      {30, 41, 52, 3, 4});
}

EXAMPLE(convolution_depthwise) {
  TestSource* source =
      data_source(shape(2, 2, 2, [MPSCNNDepthWiseConvolutionDescriptor class]), {1, 2, 3, 4});
  const Trained t = train(source, image({3, 1, 2, {1, 10, 2, 20, 3, 30}}),
                          image({2, 1, 2, {1, 1, 1, 1}}), {1, 0, 0});
  EXPECT_VALUES(t.result, {5, 110, 8, 180});
  EXPECT_VALUES(t.data, {1, 3, 3, 7, 2, 4});
  EXPECT_VALUES(t.weights, {3, 5, 30, 50});
  EXPECT_VALUES(t.biases, {2, 2});
}

EXAMPLE(convolution_half_weights_and_folding) {
  TestSource* source = data_source(shape(1), {0.1F});
  source->kernel_type_ = MPSDataTypeFloat16;
  EXPECT(train(source, row({1}), row({1}), {0, 0, 0}).result[0] == 0.0999755859375F);
  MPSCNNConvolutionDescriptor* descriptor = shape(1);
  const float mean = 3, variance = 1, gamma = 2, beta = 5;
  [descriptor setBatchNormalizationParametersForInferenceWithMean:&mean
                                                         variance:&variance
                                                            gamma:&gamma
                                                             beta:&beta
                                                          epsilon:0];
  auto* kernel = plain(data_source(descriptor, {2}, {1}));
  MPSImage* result = empty(1, 1, 1);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({10}) destinationImage:result];
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {41});
  EXPECT([[kernel label] isEqual:@"test source"]);
}

EXAMPLE(convolution_sub_pixel) {
  auto* descriptor = static_cast<MPSCNNSubPixelConvolutionDescriptor*>(
      shape(1, 1, 8, [MPSCNNSubPixelConvolutionDescriptor class]));
  [descriptor setSubPixelScaleFactor:2];
  auto* kernel = plain(data_source(descriptor, {0, 1, 2, 3, 4, 5, 6, 7}));
  MPSImage* result = empty(2, 2, 2);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({1}) destinationImage:result];
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {0, 1, 2, 3, 4, 5, 6, 7});
}

EXAMPLE(convolution_reload_and_export) {
  TestSource* source = data_source(shape(1), {2}, {1});
  auto* kernel = plain(source);
  const id<MTLBuffer> weights =
      [[device() newBufferWithLength:16 options:MTLResourceStorageModeShared] autorelease];
  auto* values = static_cast<float*>([weights contents]);
  values[1] = 5;
  values[2] = 7;
  auto* state =
      [[[MPSCNNConvolutionWeightsAndBiasesState alloc] initWithWeights:weights
                                                         weightsOffset:4
                                                                biases:weights
                                                          biasesOffset:8
                                              cnnConvolutionDescriptor:shape(1)] autorelease];
  MPSImage* before = empty(1, 1, 1);
  MPSImage* after = empty(1, 1, 1);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({10}) destinationImage:before];
  [kernel reloadWeightsAndBiasesWithCommandBuffer:buffer state:state];
  [kernel encodeToCommandBuffer:buffer sourceImage:row({10}) destinationImage:after];
  MPSCNNConvolutionWeightsAndBiasesState* exported =
      [kernel exportWeightsAndBiasesWithCommandBuffer:buffer resultStateCanBeTemporary:NO];
  [exported synchronizeOnCommandBuffer:buffer];
  finish(buffer, {before, after});
  EXPECT_VALUES(read(before), {21});
  EXPECT_VALUES(read(after), {57});
  EXPECT_VALUES(floats_in([exported weights]), {5});
  EXPECT_VALUES(floats_in([exported biases]), {7});
  [kernel reloadWeightsAndBiasesFromDataSource];
  const id<MTLCommandBuffer> again = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:again sourceImage:row({10}) destinationImage:before];
  finish(again, {before});
  EXPECT_VALUES(read(before), {21});
}

EXAMPLE(convolution_refused_load) {
  TestSource* source = data_source(shape(1), {1});
  source->refuses_ = YES;
  EXPECT([[MPSCNNConvolution alloc] initWithDevice:device() weights:source] == nil);
}

EXAMPLE(fully_connected_example) {
  TestSource* source = data_source(shape(2, 1, 2), {1, 2, 3, 4}, {0.5F, -0.5F});
  const Trained t = train([MPSCNNFullyConnected class], [MPSCNNFullyConnectedGradient class],
                          source, row({3, 4}), channels({1, 2}), { 0, 0, 0 });
  EXPECT_VALUES(t.result, {11.5F, 24.5F});
  EXPECT_VALUES(t.data, {7, 10});
  EXPECT_VALUES(t.weights, {3, 4, 6, 8});
  EXPECT_VALUES(t.biases, {1, 2});
}

EXAMPLE(transpose_example) {
  MPSCNNConvolutionDescriptor* descriptor = shape(3);
  [descriptor setStrideInPixelsX:2];
  TestSource* source = data_source(descriptor, {1, 2, 3});
  auto* forward = [[[MPSCNNConvolutionTranspose alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  auto* backward = [[[MPSCNNConvolutionTransposeGradient alloc] initWithDevice:device()
                                                                       weights:source] autorelease];
  [forward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  MPSImage* image = row({1, 2, 3, 4});
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = nil;
  MPSImage* result = [forward encodeToCommandBuffer:buffer
                                        sourceImage:image
                                   destinationState:&state
                        destinationStateIsTemporary:NO];
  EXPECT([result width] == 7);
  MPSImage* data = [backward encodeToCommandBuffer:buffer
                                    sourceGradient:row({1, 1, 1, 1, 1, 1, 1})
                                       sourceImage:image
                                     gradientState:state];
  [state synchronizeOnCommandBuffer:buffer];
  [forward setPadding:[MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeFull]];
  MPSImage* full = [forward encodeToCommandBuffer:buffer sourceImage:image];
  EXPECT([forward kernelOffsetX] == -1);
  finish(buffer, {result, data, full});
  EXPECT_VALUES(read(result), {2, 7, 4, 11, 6, 15, 8});
  EXPECT_VALUES(read(data), {3, 6, 6, 5});
  auto* gradients = static_cast<MPSCNNConvolutionTransposeGradientState*>(state);
  EXPECT_VALUES(floats_in([gradients gradientForWeights]), {6, 10, 9});
  EXPECT_VALUES(floats_in([gradients gradientForBiases]), {7});
  EXPECT([gradients convolutionTranspose] == forward && [gradients convolution] == nil);
  EXPECT_VALUES(read(full), {3, 2, 7, 4, 11, 6, 15, 8, 4});
}

EXAMPLE(transpose_undoes_convolution) {
  MPSCNNConvolutionDescriptor* descriptor = shape(2);
  [descriptor setStrideInPixelsX:2];
  auto* down = plain(data_source(descriptor, {1, 1}));
  auto* up = [[[MPSCNNConvolutionTranspose alloc] initWithDevice:device()
                                                         weights:data_source(descriptor, {1, 1})]
      autorelease];
  [up setDestinationImageAllocator:[MPSImage defaultAllocator]];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* source = row({1, 2, 3, 4, 5});
  MPSState* state = nil;
  MPSImage* small = [down encodeToCommandBuffer:buffer
                                    sourceImage:source
                               destinationState:&state
                    destinationStateIsTemporary:NO];
  MPSImage* large = [up encodeToCommandBuffer:buffer
                                  sourceImage:small
                     convolutionGradientState:static_cast<MPSCNNConvolutionGradientState*>(state)];
  EXPECT([large width] == 5);
  finish(buffer, {large});
}

OFFENCE(convolution_descriptor) { (void)plain(data_source(shape(0), {1})); }
OFFENCE(convolution_descriptor) {
  MPSCNNConvolutionDescriptor* descriptor = shape(1, 4, 4);
  [descriptor setGroups:2];
  (void)plain(data_source(descriptor, std::vector<float>(8)));
}
OFFENCE(data_source) {
  (void)[[MPSCNNConvolution alloc] initWithDevice:device()
                                          weights:static_cast<id>([NSObject class])];
}
OFFENCE(weights_precision) {
  TestSource* source = data_source(shape(1), {1});
  source->type_ = MPSDataTypeInt8;
  (void)plain(source);
}
OFFENCE(weights_precision) {
  TestSource* source = data_source(shape(1), {1});
  source->type_ = MPSDataTypeFloat16;
  (void)[[[MPSCNNConvolutionTranspose alloc] initWithDevice:device() weights:source] autorelease];
}
OFFENCE(weights_precision) {
  [plain(data_source(shape(1), {1}))
      setAccumulatorPrecisionOption:MPSNNConvolutionAccumulatorPrecisionOptionHalf];
}
OFFENCE(weights_state) {
  auto* state =
      [[[MPSCNNConvolutionWeightsAndBiasesState alloc] initWithDevice:device()
                                             cnnConvolutionDescriptor:shape(2)] autorelease];
  [plain(data_source(shape(1), {1})) reloadWeightsAndBiasesWithCommandBuffer:[queue() commandBuffer]
                                                                       state:state];
}
OFFENCE(state_not_shared) {
  auto* kernel = plain(data_source(shape(1), {1}));
  MPSImage* source = row({1});
  MPSImage* one = empty(1, 1, 1);
  MPSImage* two = empty(1, 1, 1);
  NSArray* states = @[
    [kernel resultStateForSourceImage:source sourceStates:nil destinationImage:one],
    [kernel resultStateForSourceImage:source sourceStates:nil destinationImage:two]
  ];
  [kernel encodeBatchToCommandBuffer:[queue() commandBuffer]
                        sourceImages:@[ source, source ]
                   destinationStates:states
                   destinationImages:@[ one, two ]];
}
OFFENCE(fused_neuron_gradient) {
  MPSCNNConvolutionDescriptor* descriptor = shape(1);
  [descriptor setFusedNeuronDescriptor:[MPSNNNeuronDescriptor
                                           cnnNeuronDescriptorWithType:MPSCNNNeuronTypeReLU]];
  (void)[[[MPSCNNConvolutionGradient alloc] initWithDevice:device()
                                                   weights:data_source(descriptor, {1})]
      autorelease];
}
OFFENCE(sub_pixel_gradient) {
  auto* descriptor = static_cast<MPSCNNSubPixelConvolutionDescriptor*>(
      shape(1, 1, 4, [MPSCNNSubPixelConvolutionDescriptor class]));
  [descriptor setSubPixelScaleFactor:2];
  (void)[[[MPSCNNConvolutionGradient alloc]
      initWithDevice:device()
             weights:data_source(descriptor, std::vector<float>(4))] autorelease];
}
OFFENCE(gradient_option) {
  TestSource* source = data_source(shape(1), {1});
  auto* backward = [[[MPSCNNConvolutionGradient alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  [backward setGradientOption:static_cast<MPSCNNConvolutionGradientOption>(0)];
  auto* forward = plain(source);
  MPSImage* image = row({1});
  MPSState* state = [forward resultStateForSourceImage:image
                                          sourceStates:nil
                                      destinationImage:row({1})];
  [backward encodeToCommandBuffer:[queue() commandBuffer]
                   sourceGradient:row({1})
                      sourceImage:image
                    gradientState:state
              destinationGradient:empty(1, 1, 1)];
}
OFFENCE(state_not_encoded) {
  TestSource* source = data_source(shape(1), {1});
  auto* backward = [[[MPSCNNConvolutionGradient alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  MPSImage* image = row({1});
  MPSState* state = [plain(source) resultStateForSourceImage:image
                                                sourceStates:nil
                                            destinationImage:row({1})];
  [backward encodeToCommandBuffer:[queue() commandBuffer]
                   sourceGradient:row({1})
                      sourceImage:image
                    gradientState:state
              destinationGradient:empty(1, 1, 1)];
}
OFFENCE(gradient_extent) {
  TestSource* source = data_source(shape(1), {1});
  auto* forward = plain(source);
  auto* backward = [[[MPSCNNConvolutionGradient alloc] initWithDevice:device()
                                                              weights:source] autorelease];
  MPSImage* image = row({1, 2});
  MPSImage* result = empty(2, 1, 1);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = [forward resultStateForSourceImage:image
                                          sourceStates:nil
                                      destinationImage:result];
  [forward encodeToCommandBuffer:buffer
                     sourceImage:image
                destinationState:state
                destinationImage:result];
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:row({1, 2, 3})
                      sourceImage:image
                    gradientState:state
              destinationGradient:empty(2, 1, 1)];
}
OFFENCE(fully_connected_shape) {
  auto* kernel =
      [[[MPSCNNFullyConnected alloc] initWithDevice:device()
                                            weights:data_source(shape(2), {1, 2})] autorelease];
  encode_plain(kernel, row({1, 2, 3}), empty(1, 1, 1));
}
OFFENCE(source_channels) {
  encode_plain(plain(data_source(shape(1, 4, 1), {1, 2, 3, 4})), row({1}), empty(1, 1, 1));
}
OFFENCE(state_wrong_class) {
  TestSource* source = data_source(shape(1), {1});
  auto* kernel = [[[MPSCNNSoftMax alloc] initWithDevice:device()] autorelease];
  MPSImage* image = row({1});
  MPSState* state = [kernel resultStateForSourceImage:image
                                         sourceStates:nil
                                     destinationImage:empty(1, 1, 1)];
  [plain(source) encodeToCommandBuffer:[queue() commandBuffer]
                           sourceImage:image
                      destinationState:state
                      destinationImage:empty(1, 1, 1)];
}
