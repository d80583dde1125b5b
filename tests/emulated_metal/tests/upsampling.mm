// Upsampling against the worked examples of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

template <class Kernel>
Kernel* made(NSUInteger x, NSUInteger y) {
  return [[[Kernel alloc] initWithDevice:device() integerScaleFactorX:x
                     integerScaleFactorY:y] autorelease];
}

MPSCNNUpsamplingBilinear* aligned(NSUInteger x, NSUInteger y) {
  return [[[MPSCNNUpsamplingBilinear alloc] initWithDevice:device()
                                       integerScaleFactorX:x
                                       integerScaleFactorY:y
                                              alignCorners:YES] autorelease];
}

// With created images of ordinary storage: the result, and the gradient for incoming ones.
std::vector<float> run(MPSCNNKernel* forward, MPSImage* source) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [forward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  MPSImage* result = [forward encodeToCommandBuffer:buffer sourceImage:source];
  finish(buffer, {result});
  return read(result);
}

std::vector<float> run_gradient(MPSCNNKernel* forward, MPSCNNGradientKernel* backward,
                                MPSImage* source, MPSImage* gradient) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [forward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  [backward setDestinationImageAllocator:[MPSImage defaultAllocator]];
  MPSState* state = nil;
  [forward encodeToCommandBuffer:buffer
                      sourceImage:source
                 destinationState:&state
      destinationStateIsTemporary:NO];
  MPSImage* back = [backward encodeToCommandBuffer:buffer
                                    sourceGradient:gradient
                                       sourceImage:source
                                     gradientState:state];
  EXPECT([back width] == [source width] && [back height] == [source height]);
  finish(buffer, {back});
  return read(back);
}

}  // namespace

EXAMPLE(upsampling_nearest) {
  auto* forward = made<MPSCNNUpsamplingNearest>(3, 2);
  EXPECT([forward scaleFactorX] == 3 && [forward scaleFactorY] == 2 && ![forward alignCorners]);
  EXPECT_VALUES(run(forward, image({2, 1, 1, {5, 7}})), {5, 5, 5, 7, 7, 7, 5, 5, 5, 7, 7, 7});
  EXPECT_VALUES(
      run_gradient(made<MPSCNNUpsamplingNearest>(2, 1), made<MPSCNNUpsamplingNearestGradient>(2, 1),
                   row({1, 2, 3}), row({1, 1, 1, 1, 1, 1})),
      {2, 2, 2});
}

EXAMPLE(upsampling_bilinear) {
  EXPECT_VALUES(run(made<MPSCNNUpsamplingBilinear>(2, 1), row({1, 2, 4})), {1, 1.5F, 2, 3, 4, 4});
  EXPECT_VALUES(run(aligned(2, 1), row({1, 2, 4})), {1, 1.4F, 1.8F, 2.4F, 3.2F, 4});
  auto* backward = made<MPSCNNUpsamplingBilinearGradient>(2, 1);
  EXPECT_VALUES(run_gradient(made<MPSCNNUpsamplingBilinear>(2, 1), backward, row({1, 2, 4}),
                             row({1, 1, 1, 1, 1, 1})),
                {1.5F, 2, 2.5F});
  EXPECT_VALUES(run_gradient(aligned(2, 1), backward, row({1, 2, 4}), row({1, 1, 1, 1, 1, 1})),
                {1.8F, 2.4F, 1.8F});
}

OFFENCE(kernel_parameters) { made<MPSCNNUpsamplingNearest>(0, 1); }
OFFENCE(init_unavailable) {
  (void)[[static_cast<id>([MPSCNNUpsampling alloc]) initWithDevice:device()] autorelease];
}
OFFENCE(state_foreign_kernel) {
  run_gradient(made<MPSCNNUpsamplingNearest>(2, 1), made<MPSCNNUpsamplingBilinearGradient>(2, 1),
               row({1, 2}), row({1, 1, 1, 1}));
}
OFFENCE(gradient_shape) {
  run_gradient(made<MPSCNNUpsamplingNearest>(2, 1), made<MPSCNNUpsamplingNearestGradient>(1, 2),
               row({1, 2}), row({1, 1, 1, 1}));
}
