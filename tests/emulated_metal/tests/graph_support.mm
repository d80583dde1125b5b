// Pieces of the tests of graphs, see graph.hpp.
#include "graph.hpp"

#include <cstring>

using namespace tests;

@implementation TestHandle
- (void)dealloc {
  [name_ release];
  [super dealloc];
}
- (NSString*)label {
  return name_;
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

@implementation GraphSource
- (void)dealloc {
  delete weights_;
  delete biases_;
  [descriptor_ release];
  [optimizer_ release];
  [super dealloc];
}
- (MPSDataType)dataType {
  return MPSDataTypeFloat32;
}
- (MPSDataType)kernelWeightsDataType {
  return MPSDataTypeFloat32;
}
- (MPSCNNConvolutionDescriptor*)descriptor {
  return descriptor_;
}
- (void*)weights {
  return weights_->data();
}
- (float*)biasTerms {
  return biases_->data();
}
- (BOOL)load {
  ++loads_;
  return !refuses_;
}
- (void)purge {
  ++purges_;
}
- (NSString*)label {
  return @"graph source";
}
- (id)copyWithZone:(NSZone*)zone {
  (void)zone;
  return [self retain];
}
- (MPSCNNConvolutionWeightsAndBiasesState*)
    updateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
              gradientState:(MPSCNNConvolutionGradientState*)gradientState
                sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState {
  ++updates_;
  EXPECT(![NSThread isMainThread]);
  EXPECT([gradientState readCount] == 1 && [sourceState readCount] == 1);
  const auto lower = [](MPSState* state) { [state setReadCount:[state readCount] - 1]; };
  switch (mode_) {
    case kReturnSource:
      lower(gradientState);
      [sourceState setReadCount:2];
      lower(sourceState);
      return sourceState;
    case kLowerNothing:
      return nil;
    case kReturnNothing:
      lower(gradientState);
      lower(sourceState);
      return nil;
    case kWrongClass:
      lower(gradientState);
      lower(sourceState);
      return static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(static_cast<id>(gradientState));
    case kLowerSourceOnly:
      lower(sourceState);
      return nil;
    default:
      break;
  }
  MPSCNNConvolutionWeightsAndBiasesState* result = [MPSCNNConvolutionWeightsAndBiasesState
      temporaryCNNConvolutionWeightsAndBiasesStateWithCommandBuffer:commandBuffer
                                           cnnConvolutionDescriptor:descriptor_];
  [optimizer_ encodeToCommandBuffer:commandBuffer
           convolutionGradientState:gradientState
             convolutionSourceState:sourceState
               inputMomentumVectors:nil
                        resultState:result];
  return result;
}
- (BOOL)updateWithGradientState:(MPSCNNConvolutionGradientState*)gradientState
                    sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState {
  ++updates_;
  EXPECT(![NSThread isMainThread]);
  EXPECT(std::memcmp([[sourceState weights] contents], weights_->data(), weights_->size() * 4) ==
         0);
  const auto step = [](std::vector<float>& values, id<MTLBuffer> gradient) {
    const auto* by = static_cast<const float*>([gradient contents]);
    for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.5F * by[i];
  };
  step(*weights_, [gradientState gradientForWeights]);
  step(*biases_, [gradientState gradientForBiases]);
  return mode_ != kReturnNothing;
}
@end

namespace tests {

TestHandle* handle(NSString* name) {
  TestHandle* made = [[[TestHandle alloc] init] autorelease];
  made->name_ = [name copy];
  return made;
}
MPSNNImageNode* node(NSString* name) {
  return [[[MPSNNImageNode alloc] initWithHandle:handle(name)] autorelease];
}
std::string name_of(id made) {
  return [made isKindOfClass:[TestHandle class]] ? [[made label] UTF8String] : "";
}
std::vector<std::string> names_of(NSArray* handles) {
  std::vector<std::string> names;
  for (const id made in handles) names.push_back(name_of(made));
  return names;
}

GraphSource* graph_source(NSUInteger in, NSUInteger out, std::vector<float> weights,
                          std::vector<float> biases) {
  GraphSource* source = [[[GraphSource alloc] init] autorelease];
  source->weights_ = new std::vector<float>(std::move(weights));
  source->biases_ = new std::vector<float>(std::move(biases));
  source->descriptor_ =
      [[MPSCNNConvolutionDescriptor cnnConvolutionDescriptorWithKernelWidth:1
                                                               kernelHeight:1
                                                       inputFeatureChannels:in
                                                      outputFeatureChannels:out] retain];
  source->optimizer_ = [[MPSNNOptimizerStochasticGradientDescent alloc] initWithDevice:device()
                                                                          learningRate:0.5F];
  return source;
}

void expose(MPSNNImageNode* image, NSString* name) {
  [image setHandle:handle(name)];
  [image setExportFromGraph:YES];
  [image setSynchronizeResource:YES];
  [image setImageAllocator:[MPSImage defaultAllocator]];
}

MPSNNGraph* graph_of(NSArray<MPSNNImageNode*>* results, bool needed) {
  std::vector<BOOL> flags([results count], needed ? YES : NO);
  MPSNNGraph* graph = [[[MPSNNGraph alloc] initWithDevice:device()
                                             resultImages:results
                                         resultsAreNeeded:flags.data()] autorelease];
  [graph setFormat:MPSImageFeatureChannelFormatFloat32];
  return graph;
}

MPSCNNLossLabels* graph_labels(const Values& values) {
  NSData* bytes = [NSData dataWithBytes:values.data.data() length:values.data.size() * 4];
  MPSCNNLossDataDescriptor* data = [MPSCNNLossDataDescriptor
      cnnLossDataDescriptorWithData:bytes
                             layout:MPSDataLayoutHeightxWidthxFeatureChannels
                               size:MTLSizeMake(values.width, values.height, values.channels)];
  return [[[MPSCNNLossLabels alloc] initWithDevice:device()
                                     lossImageSize:MTLSizeMake(1, 1, 1)
                                  labelsDescriptor:data
                                 weightsDescriptor:nil] autorelease];
}
MPSCNNLossDescriptor* squared_error() {
  return [MPSCNNLossDescriptor cnnLossDescriptorWithType:MPSCNNLossTypeMeanSquaredError
                                           reductionType:MPSCNNReductionTypeSum];
}

Outputs encode(MPSNNGraph* graph, id<MTLCommandBuffer> buffer, const Inputs& inputs,
               NSArray<MPSState*>* labels) {
  NSMutableArray* sources = [NSMutableArray array];
  for (const id source in [graph sourceImageHandles]) {
    [sources addObject:inputs.at(name_of(source))];
  }
  NSMutableArray* intermediates = [NSMutableArray array];
  Outputs outputs;
  outputs.result = [graph encodeBatchToCommandBuffer:buffer
                                        sourceImages:sources
                                        sourceStates:labels == nil ? nil : @[ labels ]
                                  intermediateImages:intermediates
                                   destinationStates:nil];
  NSArray* names = [graph intermediateImageHandles];
  EXPECT([names count] == [intermediates count]);
  for (NSUInteger i = 0; i < [intermediates count]; ++i) {
    outputs.images[name_of([names objectAtIndex:i])] = [intermediates objectAtIndex:i];
  }
  return outputs;
}

Outputs run(MPSNNGraph* graph, const Inputs& inputs, NSArray<MPSState*>* labels) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  const Outputs outputs = encode(graph, buffer, inputs, labels);
  if (outputs.result != nil) MPSImageBatchSynchronize(outputs.result, buffer);
  if (labels != nil) MPSStateBatchSynchronize(labels, buffer);
  finish(buffer);
  return outputs;
}

}  // namespace tests
