// Gram matrices against the worked example of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

// Two pixels, (1, 2) and (3, 4).
MPSImage* two_pixels() { return image({2, 1, 2, {1, 2, 3, 4}}); }

template <class Kernel>
Kernel* gram(float alpha) {
  return [[[Kernel alloc] initWithDevice:device() alpha:alpha] autorelease];
}

MPSState* state_of(MPSNNGramMatrixCalculation* forward, MPSImage* source) {
  return [forward resultStateForSourceImage:source
                               sourceStates:nil
                           destinationImage:empty(2, 1, 2)];
}

std::vector<float> run_gradient(MPSNNGramMatrixCalculationGradient* backward, MPSState* state,
                                MPSImage* gradient) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* back = empty(2, 1, 2);
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:gradient
                      sourceImage:two_pixels()
                    gradientState:state
              destinationGradient:back];
  finish(buffer, {back});
  return read(back);
}

void encode_gradient(MPSNNGramMatrixCalculationGradient* backward, MPSImage* gradient) {
  [backward encodeToCommandBuffer:[queue() commandBuffer]
                   sourceGradient:gradient
                      sourceImage:two_pixels()
                    gradientState:state_of(gram<MPSNNGramMatrixCalculation>(1), two_pixels())
              destinationGradient:empty(2, 1, 2)];
}

}  // namespace

EXAMPLE(gram_matrix_of_two_pixels) {
  auto* kernel = [[[MPSNNGramMatrixCalculation alloc] initWithDevice:device()] autorelease];
  EXPECT([kernel alpha] == 1);
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [kernel encodeToCommandBuffer:buffer sourceImage:two_pixels()];
  EXPECT([result width] == 2 && [result height] == 1 && [result featureChannels] == 2);
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {10, 14, 14, 20});
  [kernel setAlpha:0.5F];
  const id<MTLCommandBuffer> second = [queue() commandBuffer];
  result = empty(2, 1, 2);
  [kernel encodeToCommandBuffer:second sourceImage:two_pixels() destinationImage:result];
  finish(second, {result});
  EXPECT_VALUES(read(result), {5, 7, 7, 10});
}

EXAMPLE(gram_matrix_gradient_takes_alpha_from_the_state) {
  auto* forward = gram<MPSNNGramMatrixCalculation>(1);
  MPSState* state = state_of(forward, two_pixels());
  [forward setAlpha:7];
  auto* backward = gram<MPSNNGramMatrixCalculationGradient>(3);
  EXPECT([backward alpha] == 3);
  EXPECT_VALUES(run_gradient(backward, state, image({2, 1, 2, {1, 0, 0, 0}})), {2, 0, 6, 0});
  EXPECT([backward alpha] == 1);
  EXPECT_VALUES(run_gradient(backward, state, image({2, 1, 2, {0, 1, 0, 0}})), {2, 1, 4, 3});
}

OFFENCE(gram_geometry) {
  auto* kernel = gram<MPSNNGramMatrixCalculation>(1);
  [kernel setOffset:{1, 0, 0}];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:two_pixels()
               destinationImage:empty(2, 1, 2)];
}
OFFENCE(gram_geometry) {
  auto* kernel = gram<MPSNNGramMatrixCalculation>(1);
  [kernel setClipRect:MTLRegionMake3D(0, 0, 0, 2, 1, 1)];
  [kernel encodeToCommandBuffer:[queue() commandBuffer]
                    sourceImage:two_pixels()
               destinationImage:empty(2, 1, 2)];
}
OFFENCE(gram_geometry) {
  auto* kernel = gram<MPSNNGramMatrixCalculationGradient>(1);
  [kernel setSecondaryOffset:{1, 0, 0}];
  encode_gradient(kernel, empty(2, 1, 2));
}
OFFENCE(gram_shape) {
  [gram<MPSNNGramMatrixCalculation>(1) encodeToCommandBuffer:[queue() commandBuffer]
                                                 sourceImage:two_pixels()
                                            destinationImage:empty(2, 2, 2)];
}
OFFENCE(gram_shape) {
  encode_gradient(gram<MPSNNGramMatrixCalculationGradient>(1), empty(3, 1, 2));
}
