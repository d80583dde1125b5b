// Optimizers against the worked examples of the specification.
#include <cmath>
#include <cstring>

#include "harness.hpp"

using namespace tests;

namespace {

MPSVector* vector_of(const std::vector<float>& values) {
  const id<MTLBuffer> buffer =
      [[device() newBufferWithBytes:values.data()
                             length:values.size() * sizeof(float)
                            options:MTLResourceStorageModeShared] autorelease];
  return [[[MPSVector alloc]
      initWithBuffer:buffer
          descriptor:[MPSVectorDescriptor vectorDescriptorWithLength:values.size()
                                                            dataType:MPSDataTypeFloat32]]
      autorelease];
}

std::vector<float> values_in(MPSVector* vector) {
  std::vector<float> values([vector length]);
  std::memcpy(values.data(), [[vector data] contents], values.size() * sizeof(float));
  return values;
}

MPSNNOptimizerDescriptor* settings(float rate) {
  return [MPSNNOptimizerDescriptor optimizerDescriptorWithLearningRate:rate
                                                       gradientRescale:1
                                                    regularizationType:MPSNNRegularizationTypeNone
                                                   regularizationScale:0];
}

template <class Encode>
void step(const Encode& encode) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  encode(buffer);
  finish(buffer);
}

MPSNNOptimizerStochasticGradientDescent* descent(float momentum, BOOL nesterov) {
  return
      [[[MPSNNOptimizerStochasticGradientDescent alloc] initWithDevice:device()
                                                         momentumScale:momentum
                                                   useNesterovMomentum:nesterov
                                                   optimizerDescriptor:settings(0.1F)] autorelease];
}

void descend(MPSNNOptimizerStochasticGradientDescent* optimizer, MPSVector* gradient,
             MPSVector* values, MPSVector* momentum) {
  step([&](id<MTLCommandBuffer> buffer) {
    [optimizer encodeToCommandBuffer:buffer
                 inputGradientVector:gradient
                   inputValuesVector:values
                 inputMomentumVector:momentum
                  resultValuesVector:values];
  });
}

}  // namespace

EXAMPLE(optimizer_preprocessing) {
  MPSNNOptimizerDescriptor* d =
      [MPSNNOptimizerDescriptor optimizerDescriptorWithLearningRate:1
                                                    gradientRescale:2
                                              applyGradientClipping:YES
                                                    gradientClipMax:0.5F
                                                    gradientClipMin:-0.25F
                                                 regularizationType:MPSNNRegularizationTypeL2
                                                regularizationScale:0.1F];
  auto* optimizer =
      [[[MPSNNOptimizerStochasticGradientDescent alloc] initWithDevice:device()
                                                         momentumScale:0
                                                    useNestrovMomentum:NO
                                                   optimizerDescriptor:d] autorelease];
  MPSVector* values = vector_of({10, 10, -10});
  descend(optimizer, vector_of({3, -3, 0.1F}), values, nil);
  EXPECT_VALUES(values_in(values), {8, 9.5F, -9.2F});
}

EXAMPLE(optimizer_descent_table) {
  MPSVector* g = vector_of({0.5F});
  MPSVector* w = vector_of({1});
  MPSVector* m = vector_of({0});
  auto* optimizer = descent(0.9F, NO);
  for (const auto& [value, momentum] :
       {std::pair{0.95F, 0.05F}, std::pair{0.855F, 0.095F}, std::pair{0.7195F, 0.1355F}}) {
    descend(optimizer, g, w, m);
    EXPECT_VALUES(values_in(w), {value});
    EXPECT_VALUES(values_in(m), {momentum});
  }
  w = vector_of({1});
  m = vector_of({0});
  optimizer = descent(0.9F, YES);
  for (const auto& [value, momentum] :
       {std::pair{0.905F, 0.5F}, std::pair{0.7695F, 0.95F}, std::pair{0.59755F, 1.355F}}) {
    descend(optimizer, g, w, m);
    EXPECT_VALUES(values_in(w), {value});
    EXPECT_VALUES(values_in(m), {momentum});
  }
}

EXAMPLE(optimizer_rms_prop) {
  auto* optimizer = [[[MPSNNOptimizerRMSProp alloc] initWithDevice:device()
                                                      learningRate:0.1F] autorelease];
  MPSVector* w = vector_of({1});
  MPSVector* s = vector_of({0});
  for (const float expected : {0.68377225F, 0.45435653F}) {
    step([&](id<MTLCommandBuffer> buffer) {
      [optimizer encodeToCommandBuffer:buffer
                   inputGradientVector:vector_of({0.5F})
                     inputValuesVector:w
               inputSumOfSquaresVector:s
                    resultValuesVector:w];
    });
    EXPECT_VALUES(values_in(w), {expected});
  }
}

EXAMPLE(optimizer_adam) {
  auto* optimizer = [[[MPSNNOptimizerAdam alloc] initWithDevice:device()
                                                   learningRate:0.1F] autorelease];
  MPSVector* w = vector_of({1});
  MPSVector* m = vector_of({0});
  MPSVector* v = vector_of({0});
  NSUInteger t = 0;
  for (const auto& [gradient, expected] :
       {std::pair{0.5F, 0.90000006F}, std::pair{0.5F, 0.80000011F},
        std::pair{-0.1F, 0.73241433F}}) {
    step([&](id<MTLCommandBuffer> buffer) {
      [optimizer encodeToCommandBuffer:buffer
                   inputGradientVector:vector_of({gradient})
                     inputValuesVector:w
                   inputMomentumVector:m
                   inputVelocityVector:v
                    resultValuesVector:w];
    });
    EXPECT([optimizer timeStep] == ++t);
    EXPECT_VALUES(values_in(w), {expected});
  }
  auto* grad = [[[MPSNNOptimizerAdam alloc] initWithDevice:device()
                                                     beta1:0.9
                                                     beta2:0.5
                                                   epsilon:1e-8F
                                                  timeStep:0
                                       optimizerDescriptor:settings(0.1F)] autorelease];
  w = vector_of({1});
  m = vector_of({0});
  v = vector_of({0});
  MPSVector* x = vector_of({0});
  for (const auto& [gradient, expected] : {std::pair{1.0F, 0.9F}, std::pair{0.1F, 0.83553975F}}) {
    step([&](id<MTLCommandBuffer> buffer) {
      [grad encodeToCommandBuffer:buffer
              inputGradientVector:vector_of({gradient})
                inputValuesVector:w
              inputMomentumVector:m
              inputVelocityVector:v
            maximumVelocityVector:x
               resultValuesVector:w];
    });
    EXPECT_VALUES(values_in(w), {expected});
  }
}

EXAMPLE(optimizer_matrix_with_strides) {
  MPSMatrixDescriptor* shape = [MPSMatrixDescriptor matrixDescriptorWithRows:2
                                                                     columns:1
                                                                    rowBytes:8
                                                                    dataType:MPSDataTypeFloat32];
  const auto matrix = [&](std::vector<float> values) {
    const id<MTLBuffer> buffer =
        [[device() newBufferWithBytes:values.data()
                               length:values.size() * sizeof(float)
                              options:MTLResourceStorageModeShared] autorelease];
    return [[[MPSMatrix alloc] initWithBuffer:buffer descriptor:shape] autorelease];
  };
  MPSMatrix* w = matrix({1, 9, 2, 9});
  step([&](id<MTLCommandBuffer> buffer) {
    [descent(0, NO) encodeToCommandBuffer:buffer
                      inputGradientMatrix:matrix({10, 0, 20, 0})
                        inputValuesMatrix:w
                      inputMomentumMatrix:nil
                       resultValuesMatrix:w];
  });
  const auto* values = static_cast<const float*>([[w data] contents]);
  EXPECT(values[0] == 0 && values[1] == 9 && values[2] == 0 && values[3] == 9);
}

OFFENCE(optimizer_settings) {
  (void)[[[MPSNNOptimizerRMSProp alloc] initWithDevice:device()
                                                 decay:2
                                               epsilon:0
                                   optimizerDescriptor:settings(0.1F)] autorelease];
}
OFFENCE(optimizer_settings) {
  (void)[[[MPSNNOptimizerAdam alloc] initWithDevice:device()
                                              beta1:1
                                              beta2:0.5
                                            epsilon:0
                                           timeStep:0
                                optimizerDescriptor:settings(0.1F)] autorelease];
}
OFFENCE(optimizer_lengths) { descend(descent(0, NO), vector_of({1, 2}), vector_of({1}), nil); }
OFFENCE(optimizer_data_type) {
  auto* half = [[[MPSVector alloc]
      initWithDevice:device()
          descriptor:[MPSVectorDescriptor vectorDescriptorWithLength:1 dataType:MPSDataTypeFloat16]]
      autorelease];
  descend(descent(0, NO), half, half, nil);
}
OFFENCE(optimizer_history) {
  auto* optimizer = [[[MPSNNOptimizerAdam alloc] initWithDevice:device()
                                                   learningRate:0.1F] autorelease];
  MPSVector* missing = nil;
  [optimizer encodeToCommandBuffer:[queue() commandBuffer]
               inputGradientVector:vector_of({1})
                 inputValuesVector:vector_of({1})
               inputMomentumVector:missing
               inputVelocityVector:vector_of({1})
                resultValuesVector:vector_of({1})];
}
OFFENCE(optimizer_aliasing) {
  MPSVector* w = vector_of({1});
  descend(descent(0.9F, NO), vector_of({1}), w, w);
}
OFFENCE(init_unavailable) {
  (void)[[static_cast<id>([MPSNNOptimizerAdam alloc]) initWithDevice:device()] autorelease];
}
