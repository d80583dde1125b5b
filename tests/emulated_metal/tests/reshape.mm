// Kernels that copy, against the examples of Apple's headers and of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

MPSNNPad* pad(MPSImageCoordinate before, MPSImageCoordinate after, MPSImageEdgeMode mode,
              NSData* fills = nil) {
  MPSNNPad* kernel = [[[MPSNNPad alloc] initWithDevice:device()
                                     paddingSizeBefore:before
                                      paddingSizeAfter:after
                                        fillValueArray:fills] autorelease];
  [kernel setEdgeMode:mode];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

template <class Kernel>
Kernel* plain() {
  Kernel* kernel = [[[Kernel alloc] initWithDevice:device()] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

std::vector<float> run(MPSCNNKernel* kernel, MPSImage* source) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [kernel encodeToCommandBuffer:buffer sourceImage:source];
  finish(buffer, {result});
  return read(result);
}

std::vector<float> run_gradient(MPSNNPad* forward, MPSImage* source, MPSImage* gradient) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = nil;
  MPSImage* result = [forward encodeToCommandBuffer:buffer
                                        sourceImage:source
                                   destinationState:&state
                        destinationStateIsTemporary:NO];
  MPSImage* back = [plain<MPSNNPadGradient>() encodeToCommandBuffer:buffer
                                                     sourceGradient:gradient
                                                        sourceImage:source
                                                      gradientState:state];
  finish(buffer, {result, back});
  return read(back);
}

void into(MPSCNNKernel* kernel, MPSImage* source, MPSImage* result) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:source destinationImage:result];
  finish(buffer, {result});
}

}  // namespace

EXAMPLE(reshape_is_row_major) {
  MPSImage* source = image({2, 2, 2, {1, 2, 3, 4, 5, 6, 7, 8}});
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = nil;
  MPSNNReshape* kernel = plain<MPSNNReshape>();
  MPSImage* result = [kernel encodeToCommandBuffer:buffer
                                       sourceImage:source
                                  destinationState:&state
                       destinationStateIsTemporary:NO
                                     reshapedWidth:1
                                    reshapedHeight:1
                           reshapedFeatureChannels:8];
  MPSImage* copy = [kernel encodeToCommandBuffer:buffer sourceImage:source];
  MPSImage* back = [plain<MPSNNReshapeGradient>() encodeToCommandBuffer:buffer
                                                         sourceGradient:result
                                                            sourceImage:source
                                                          gradientState:state];
  MPSImageBatch* batch = [kernel encodeBatchToCommandBuffer:buffer
                                               sourceImages:@[ source ]
                                              reshapedWidth:4
                                             reshapedHeight:2
                                    reshapedFeatureChannels:1];
  finish(buffer, {result, copy, back, [batch objectAtIndex:0]});
  EXPECT([result width] == 1 && [result featureChannels] == 8);
  EXPECT([back width] == 2 && [back height] == 2 && [[batch objectAtIndex:0] width] == 4);
  for (MPSImage* each : {result, copy, back, [batch objectAtIndex:0]}) {
    EXPECT_VALUES(read(each), {1, 2, 3, 4, 5, 6, 7, 8});
  }
}

EXAMPLE(slice_of_a_box) {
  MPSNNSlice* kernel = plain<MPSNNSlice>();
  [kernel setOffset:{1, 0, 0}];
  MPSImage* result = empty(3, 1, 1);
  into(kernel, row({1, 2, 3}), result);
  EXPECT_VALUES(read(result), {2, 3, 0});
  EXPECT([kernel resultStateForSourceImage:row({1}) sourceStates:nil
                          destinationImage:result] == nil);
}

EXAMPLE(pad_along_channels) {
  MPSNNPad* kernel = pad({0, 0, 2}, {0, 0, 3}, MPSImageEdgeModeZero);
  [kernel setSourceFeatureChannelOffset:1];
  [kernel setSourceFeatureChannelMaxCount:3];
  EXPECT_VALUES(run(kernel, channels({0, 1, 2, 3, 4, 5})), {0, 0, 1, 2, 3, 0, 0, 0});
  [kernel setEdgeMode:MPSImageEdgeModeMirrorWithEdge];
  EXPECT_VALUES(run(kernel, channels({0, 1, 2, 3, 4, 5})), {2, 1, 1, 2, 3, 3, 2, 1});
}

EXAMPLE(pad_of_a_row) {
  MPSImage* source = row({1, 2, 3});
  EXPECT_VALUES(run(pad({2, 0, 0}, {3, 0, 0}, MPSImageEdgeModeClamp), source),
                {1, 1, 1, 2, 3, 3, 3, 3});
  EXPECT_VALUES(run(pad({4, 0, 0}, {1, 0, 0}, MPSImageEdgeModeMirror), source),
                {1, 2, 3, 2, 1, 2, 3, 2});
  MPSNNPad* kernel = pad({1, 0, 0}, {0, 0, 0}, MPSImageEdgeModeConstant);
  [kernel setFillValue:9];
  EXPECT_VALUES(run(kernel, source), {9, 1, 2, 3});
  const float fill = 7;
  NSData* fills = [NSData dataWithBytes:&fill length:sizeof fill];
  kernel = pad({1, 0, 0}, {0, 0, 0}, MPSImageEdgeModeConstant, fills);
  [kernel setFillValue:9];
  MPSNNPad* twin = [[kernel copyWithZone:nullptr device:device()] autorelease];
  EXPECT_VALUES(run(twin, source), {7, 1, 2, 3});
}

EXAMPLE(pad_gradients_of_the_header) {
  MPSImage* source = row({1, 2, 3});
  MPSImage* gradient = row({1, 2, 4, 8, 16, 32, 64, 128});
  EXPECT_VALUES(run_gradient(pad({2, 0, 0}, {3, 0, 0}, MPSImageEdgeModeClamp), source, gradient),
                {7, 8, 240});
  EXPECT_VALUES(run_gradient(pad({4, 0, 0}, {1, 0, 0}, MPSImageEdgeModeMirror), source, gradient),
                {17, 2 + 8 + 32 + 128, 68});
  EXPECT_VALUES(run_gradient(pad({2, 0, 0}, {3, 0, 0}, MPSImageEdgeModeConstant), source, gradient),
                {4, 8, 16});
}

EXAMPLE(pad_gradient_of_unread_channels) {
  MPSNNPad* forward = pad({0, 0, 1}, {0, 0, 0}, MPSImageEdgeModeClamp);
  [forward setSourceFeatureChannelOffset:1];
  [forward setSourceFeatureChannelMaxCount:2];
  EXPECT_VALUES(run_gradient(forward, channels({0, 1, 2, 3}), channels({1, 2, 4})), {0, 3, 4, 0});
}

OFFENCE(kernel_parameters) { into(plain<MPSNNReshape>(), row({1, 2, 3}), empty(2, 1, 1)); }
OFFENCE(kernel_parameters) {
  MPSNNReshape* kernel = plain<MPSNNReshape>();
  [kernel setOffset:{1, 0, 0}];
  into(kernel, row({1, 2, 3}), empty(1, 3, 1));
}
OFFENCE(kernel_parameters) {
  MPSNNSlice* kernel = plain<MPSNNSlice>();
  [kernel setDestinationFeatureChannelOffset:4];
  into(kernel, row({1, 2, 3}), empty(3, 1, 8));
}
OFFENCE(kernel_parameters) {
  const float fill = 7;
  NSData* fills = [NSData dataWithBytes:&fill length:sizeof fill];
  (void)run(pad({0, 0, 0}, {0, 0, 0}, MPSImageEdgeModeZero, fills), channels({1, 2}));
}
OFFENCE(edge_mode) {
  MPSNNSlice* kernel = plain<MPSNNSlice>();
  [kernel setEdgeMode:MPSImageEdgeModeMirror];
  into(kernel, row({1, 2, 3}), empty(3, 1, 1));
}
OFFENCE(channel_offset) {
  MPSNNPad* kernel = pad({0, 0, 0}, {0, 0, 0}, MPSImageEdgeModeZero);
  [kernel setDestinationFeatureChannelOffset:2];
  into(kernel, row({1, 2, 3}), empty(3, 1, 8));
}
OFFENCE(gradient_shape) {
  run_gradient(pad({1, 0, 0}, {0, 0, 0}, MPSImageEdgeModeZero), row({1, 2}), row({1, 2}));
}
