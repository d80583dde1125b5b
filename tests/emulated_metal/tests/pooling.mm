// Pooling against the worked examples of the specification.
#include <cmath>

#include "harness.hpp"

using namespace tests;

namespace {

template <class Kernel>
Kernel* pool(NSUInteger kx, NSUInteger ky, NSUInteger stride) {
  return [[[Kernel alloc] initWithDevice:device()
                             kernelWidth:kx
                            kernelHeight:ky
                         strideInPixelsX:stride
                         strideInPixelsY:stride] autorelease];
}

std::vector<float> run(MPSCNNKernel* kernel, MPSImage* source, NSUInteger width,
                       NSUInteger height) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty(width, height, [source featureChannels]);
  [kernel encodeToCommandBuffer:buffer sourceImage:source destinationImage:result];
  finish(buffer, {result});
  return read(result);
}

// Forward and backward with created destinations of ordinary storage.
std::vector<float> run_gradient(MPSCNNKernel* forward, MPSCNNGradientKernel* backward,
                                MPSImage* source, MPSImage* result, MPSImage* gradient) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSState* state = [forward resultStateForSourceImage:source
                                          sourceStates:nil
                                      destinationImage:result];
  [forward encodeToCommandBuffer:buffer
                     sourceImage:source
                destinationState:state
                destinationImage:result];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  MPSImage* back = [backward encodeToCommandBuffer:buffer
                                    sourceGradient:gradient
                                       sourceImage:source
                                     gradientState:state];
  EXPECT([back width] == [source width] && [back height] == [source height]);
  finish(buffer, {result, back});
  return read(back);
}

}  // namespace

EXAMPLE(pooling_offset_decides) {
  std::vector<float> values(16);
  for (size_t i = 0; i < 16; ++i) values[i] = static_cast<float>(i + 1);
  MPSImage* source = image({4, 4, 1, values});
  auto* kernel = pool<MPSCNNPoolingMax>(2, 2, 2);
  [kernel setOffset:{1, 1, 0}];
  EXPECT_VALUES(run(kernel, source, 2, 2), {6, 8, 14, 16});
  [kernel setOffset:{0, 0, 0}];
  EXPECT_VALUES(run(kernel, source, 2, 2), {1, 3, 9, 11});
  for (float& value : values) value = -value;
  source = image({4, 4, 1, values});
  kernel = pool<MPSCNNPoolingMax>(3, 3, 2);
  EXPECT_VALUES(run(kernel, source, 2, 2), {0, 0, 0, -6});
  [kernel setEdgeMode:MPSImageEdgeModeClamp];
  EXPECT_VALUES(run(kernel, source, 2, 2), {-1, -2, -5, -6});
}

EXAMPLE(pooling_average_divisor) {
  MPSImage* source = image({2, 2, 1, {1, 2, 3, 4}});
  auto* kernel = pool<MPSCNNPoolingAverage>(3, 3, 1);
  const float ninth = 10.0F / 9.0F;
  EXPECT_VALUES(run(kernel, source, 2, 2), {ninth, ninth, ninth, ninth});
  [kernel setEdgeMode:MPSImageEdgeModeClamp];
  EXPECT_VALUES(run(kernel, source, 2, 2), {2.5F, 2.5F, 2.5F, 2.5F});
  [kernel setZeroPadSizeX:1];
  [kernel setZeroPadSizeY:1];
  EXPECT_VALUES(run(kernel, source, 2, 2), {ninth, ninth, ninth, ninth});
  kernel = pool<MPSCNNPoolingAverage>(5, 5, 1);
  [kernel setEdgeMode:MPSImageEdgeModeClamp];
  [kernel setZeroPadSizeX:1];
  [kernel setZeroPadSizeY:1];
  EXPECT_VALUES(run(kernel, source, 2, 2), {0.625F, 0.625F, 0.625F, 0.625F});
}

EXAMPLE(pooling_average_gradient) {
  for (const MPSImageEdgeMode mode : {MPSImageEdgeModeZero, MPSImageEdgeModeClamp}) {
    auto* forward = pool<MPSCNNPoolingAverage>(3, 1, 1);
    [forward setEdgeMode:mode];
    const auto result = run_gradient(forward, pool<MPSCNNPoolingAverageGradient>(3, 1, 1),
                                     row({1, 2, 3, 4}), empty(4, 1, 1), row({1, 1, 1, 1}));
    if (mode == MPSImageEdgeModeZero) {
      EXPECT_VALUES(result, {0.666667F, 1, 1, 0.666667F});
    } else {
      EXPECT_VALUES(result, {0.833333F, 1.166667F, 1.166667F, 0.833333F});
    }
  }
}

EXAMPLE(pooling_max_gradient_ties_and_drops) {
  auto* forward = pool<MPSCNNPoolingMax>(3, 1, 1);
  [forward setOffset:{1, 0, 0}];
  EXPECT_VALUES(run_gradient(forward, pool<MPSCNNPoolingMaxGradient>(3, 1, 1), row({7, 7, 7, 2}),
                             empty(2, 1, 1), row({10, 20})),
                {10, 20, 0, 0});
  forward = pool<MPSCNNPoolingMax>(3, 1, 1);
  EXPECT_VALUES(run_gradient(forward, pool<MPSCNNPoolingMaxGradient>(3, 1, 1),
                             row({-1, -2, -3, -4}), empty(4, 1, 1), row({1, 1, 1, 1})),
                {1, 1, 0, 0});
  [forward setEdgeMode:MPSImageEdgeModeClamp];
  EXPECT_VALUES(run_gradient(forward, pool<MPSCNNPoolingMaxGradient>(3, 1, 1),
                             row({-1, -2, -3, -4}), empty(4, 1, 1), row({1, 1, 1, 1})),
                {2, 1, 1, 0});
}

EXAMPLE(pooling_l2_norm) {
  auto* forward = pool<MPSCNNPoolingL2Norm>(2, 1, 2);
  [forward setOffset:{1, 0, 0}];
  EXPECT_VALUES(run(forward, row({3, 4, 0, 0}), 2, 1), {5, 0});
  EXPECT_VALUES(run_gradient(forward, pool<MPSCNNPoolingL2NormGradient>(2, 1, 2), row({3, 4, 0, 0}),
                             empty(2, 1, 1), row({1, 1})),
                {0.6F, 0.8F, 0, 0});
  forward = pool<MPSCNNPoolingL2Norm>(3, 1, 1);
  EXPECT_VALUES(run(forward, row({3, 4}), 2, 1), {5, 5});
  [forward setEdgeMode:MPSImageEdgeModeClamp];
  EXPECT_VALUES(run(forward, row({3, 4}), 2, 1), {5.830952F, 6.403124F});
  EXPECT_VALUES(run_gradient(forward, pool<MPSCNNPoolingL2NormGradient>(3, 1, 1), row({3, 4}),
                             empty(2, 1, 1), row({1, 0})),
                {1.028992F, 0.685994F});
}

EXAMPLE(pooling_dilated) {
  auto* forward = [[[MPSCNNDilatedPoolingMax alloc] initWithDevice:device()
                                                       kernelWidth:2
                                                      kernelHeight:1
                                                     dilationRateX:3
                                                     dilationRateY:1
                                                   strideInPixelsX:1
                                                   strideInPixelsY:1] autorelease];
  auto* backward = [[[MPSCNNDilatedPoolingMaxGradient alloc] initWithDevice:device()
                                                                kernelWidth:2
                                                               kernelHeight:1
                                                              dilationRateX:3
                                                              dilationRateY:1
                                                            strideInPixelsX:1
                                                            strideInPixelsY:1] autorelease];
  [forward setOffset:{2, 0, 0}];
  MPSImage* source = row({1, 5, 2, 9, 3, 9, 4, 0});
  EXPECT_VALUES(run(forward, source, 5, 1), {9, 5, 9, 9, 3});
  EXPECT_VALUES(run_gradient(forward, backward, source, empty(5, 1, 1), row({1, 2, 3, 4, 5})),
                {0, 2, 0, 5, 5, 3, 0, 0});
}

EXAMPLE(pooling_source_size) {
  auto* forward = pool<MPSCNNPoolingAverage>(2, 1, 2);
  [forward setOffset:{1, 0, 0}];
  auto* backward = pool<MPSCNNPoolingAverageGradient>(2, 1, 2);
  MPSImage* source = row({1, 2, 3, 4, 5, 6});
  MPSState* state = [forward resultStateForSourceImage:source
                                          sourceStates:nil
                                      destinationImage:empty(3, 1, 1)];
  [backward setSecondaryOffset:{1, 0, 0}];
  [backward setPrimaryOffset:{1, 0, 0}];
  [backward setSourceSize:MTLSizeMake(2, 1, 1)];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty(6, 1, 1);
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:row({1, 2, 3, 4, 5})
                      sourceImage:source
                    gradientState:state
              destinationGradient:result];
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {1, 1, 1.5F, 1.5F, 0, 0});
}

EXAMPLE(padding_table) {
  struct Case {
    NSUInteger length, kernel, stride;
    MPSNNPaddingMethod style;
    NSUInteger size;
    NSInteger left, right;
  };
  constexpr MPSNNPaddingMethod kSame = MPSNNPaddingMethodSizeSame;
  constexpr MPSNNPaddingMethod kValid = MPSNNPaddingMethodSizeValidOnly;
  constexpr MPSNNPaddingMethod kFull = MPSNNPaddingMethodSizeFull;
  for (const Case& c : {Case{5, 3, 1, kSame, 5, 0, 0}, Case{5, 3, 1, kValid, 3, 1, 1},
                        Case{5, 3, 1, kFull, 7, -1, -1}, Case{5, 2, 1, kSame, 5, 0, 1},
                        Case{5, 2, 1, kFull, 6, 0, 0}, Case{6, 3, 2, kSame, 3, 0, 1},
                        Case{7, 3, 2, kSame, 4, 0, 0}, Case{6, 3, 2, kValid, 2, 1, 1},
                        Case{8, 2, 2, kSame, 4, 1, 1}, Case{7, 4, 2, kSame, 4, 0, 1},
                        Case{224, 7, 2, kSame, 112, 0, 1}, Case{7, 2, 3, kValid, 2, 1, 2},
                        Case{8, 1, 4, kValid, 2, 1, 1}, Case{10, 3, 5, kValid, 2, 1, 2}}) {
    for (const bool right : {false, true}) {
      auto* kernel = pool<MPSCNNPoolingMax>(c.kernel, c.kernel, c.stride);
      [kernel setPadding:[MPSNNDefaultPadding paddingWithMethod:c.style | (right ? 0xCUL : 0UL)]];
      MPSImage* source = empty(c.length, c.length, 1);
      MPSImageDescriptor* result = [kernel destinationImageDescriptorForSourceImages:@[ source ]
                                                                        sourceStates:nil];
      EXPECT([result width] == c.size && [result height] == c.size);
      EXPECT([kernel offset].x == (right ? c.right : c.left));
      EXPECT([kernel offset].y == (right ? c.right : c.left));
    }
  }
}

OFFENCE(abstract_kernel) { (void)pool<MPSCNNPooling>(2, 2, 2); }
OFFENCE(kernel_parameters) { (void)pool<MPSCNNPoolingMax>(2, 2, 0); }
OFFENCE(padding_size) {
  auto* kernel = pool<MPSCNNPoolingMax>(5, 5, 1);
  [kernel setPadding:[MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeValidOnly]];
  [kernel destinationImageDescriptorForSourceImages:@[ empty(3, 3, 1) ] sourceStates:nil];
}
OFFENCE(gradient_shape) {
  run_gradient(pool<MPSCNNPoolingMax>(3, 1, 1), pool<MPSCNNPoolingMaxGradient>(2, 1, 1),
               row({1, 2, 3}), empty(3, 1, 1), row({1, 2, 3}));
}
OFFENCE(state_foreign_kernel) {
  run_gradient(pool<MPSCNNPoolingMax>(3, 1, 1), pool<MPSCNNPoolingL2NormGradient>(3, 1, 1),
               row({1, 2, 3}), empty(3, 1, 1), row({1, 2, 3}));
}
OFFENCE(init_unavailable) {
  (void)[[static_cast<id>([MPSCNNPoolingMax alloc]) initWithDevice:device()] autorelease];
}
OFFENCE(stateless_gradient) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [pool<MPSCNNPoolingMaxGradient>(3, 1, 1) encodeToCommandBuffer:buffer
                                                    primaryImage:row({1, 2, 3})
                                                  secondaryImage:row({1, 2, 3})
                                                destinationImage:empty(3, 1, 1)];
}
OFFENCE(kernel_changed) {
  auto* kernel = pool<MPSCNNPoolingMax>(3, 1, 1);
  MPSImage* source = row({1, 2, 3});
  MPSImage* result = empty(3, 1, 1);
  MPSState* state = [kernel resultStateForSourceImage:source
                                         sourceStates:nil
                                     destinationImage:result];
  [kernel setOffset:{1, 0, 0}];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:source
               destinationState:state
               destinationImage:result];
}
