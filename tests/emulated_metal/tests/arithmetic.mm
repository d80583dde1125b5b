// Arithmetic against the worked examples of the specification.
#include <cfloat>
#include <cmath>

#include "harness.hpp"

using namespace tests;

namespace {

using tests::read;

template <class Kernel>
Kernel* make() {
  return [[[Kernel alloc] initWithDevice:device()] autorelease];
}

template <class Kernel>
Kernel* make_gradient(bool secondary) {
  return [[[Kernel alloc] initWithDevice:device() isSecondarySourceFilter:secondary] autorelease];
}

std::vector<float> run(MPSCNNArithmetic* kernel, MPSImage* primary, MPSImage* secondary,
                       NSUInteger width, NSUInteger height, NSUInteger count) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty(width, height, count);
  [kernel encodeToCommandBuffer:buffer
                   primaryImage:primary
                 secondaryImage:secondary
               destinationImage:result];
  finish(buffer, {result});
  return read(result);
}

MPSCNNArithmeticGradientState* state_of(MPSCNNArithmetic* kernel, MPSImage* primary,
                                        MPSImage* secondary, MPSImage* result) {
  return static_cast<MPSCNNArithmeticGradientState*>([kernel resultStateForPrimaryImage:primary
                                                                         secondaryImage:secondary
                                                                           sourceStates:nil
                                                                       destinationImage:result]);
}

// Forward with a state, then one gradient into an image of the given size.
std::vector<float> run_gradient(MPSCNNArithmetic* forward, MPSCNNArithmeticGradient* backward,
                                MPSImage* primary, MPSImage* secondary, MPSImage* gradient,
                                MPSImage* source, MPSImage* back) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = empty([gradient width], [gradient height], [gradient featureChannels]);
  MPSCNNArithmeticGradientState* state = state_of(forward, primary, secondary, result);
  [forward encodeToCommandBuffer:buffer
                    primaryImage:primary
                  secondaryImage:secondary
                destinationState:state
                destinationImage:result];
  [backward encodeToCommandBuffer:buffer
                   sourceGradient:gradient
                      sourceImage:source
                    gradientState:state
              destinationGradient:back];
  finish(buffer, {result, back});
  return read(back);
}

// One image that holds two, of one line and one channel.
MPSImage* two(const std::vector<float>& first, const std::vector<float>& second) {
  MPSImageDescriptor* d = descriptor(first.size(), 1, 1);
  [d setNumberOfImages:2];
  MPSImage* result = [[[MPSImage alloc] initWithDevice:device() imageDescriptor:d] autorelease];
  NSUInteger index = 0;
  for (const auto* values : {&first, &second}) {
    [result writeBytes:values->data()
            dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
            imageIndex:index++];
  }
  return result;
}

std::vector<float> read(MPSImage* source, NSUInteger index) {
  std::vector<float> values([source width] * [source height] * [source featureChannels]);
  [source readBytes:values.data()
         dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
         imageIndex:index];
  return values;
}

void broadcast(MPSCNNArithmetic* kernel) {
  [kernel setSecondaryStrideInPixelsX:0];
  [kernel setSecondaryStrideInPixelsY:0];
}

}  // namespace

EXAMPLE(arithmetic_operations) {
  MPSImage* x = row({1, -2, 3});
  MPSImage* y = row({4, 5, -6});
  EXPECT_VALUES(run(make<MPSCNNAdd>(), x, y, 3, 1, 1), {5, 3, -3});
  EXPECT_VALUES(run(make<MPSCNNSubtract>(), x, y, 3, 1, 1), {-3, -7, 9});
  EXPECT_VALUES(run(make<MPSCNNMultiply>(), x, y, 3, 1, 1), {4, -10, -18});
  EXPECT_VALUES(run(make<MPSCNNDivide>(), x, y, 3, 1, 1), {0.25F, -0.4F, -0.5F});
  auto* add = make<MPSCNNAdd>();
  [add setPrimaryScale:2];
  [add setSecondaryScale:0.5F];
  [add setBias:1];
  [add setMaximumValue:4];
  EXPECT_VALUES(run(add, x, y, 3, 1, 1), {4, -0.5F, 4});
}

EXAMPLE(arithmetic_limits) {
  const auto result = run(make<MPSCNNDivide>(), row({1, -1}), row({0, 0}), 2, 1, 1);
  EXPECT(result[0] == FLT_MAX && result[1] == -FLT_MAX);
}

EXAMPLE(arithmetic_broadcasting) {
  MPSImage* x = image({2, 1, 2, {1, 2, 3, 4}});
  MPSImage* y = image({1, 1, 2, {10, 20}});
  auto* add = make<MPSCNNAdd>();
  [add setPrimaryScale:2];
  [add setSecondaryScale:0.5F];
  [add setBias:1];
  broadcast(add);
  EXPECT_VALUES(run(add, x, y, 2, 1, 2), {8, 15, 12, 19});
  // By stride only: outside the image there are zeros.
  EXPECT_VALUES(run(make<MPSCNNAdd>(), x, y, 2, 1, 2), {11, 22, 3, 4});
  auto* one_channel = make<MPSCNNMultiply>();
  [one_channel setSecondaryStrideInFeatureChannels:0];
  EXPECT_VALUES(run(one_channel, x, image({2, 1, 1, {2, -1}}), 2, 1, 2), {2, 4, -3, -4});
}

EXAMPLE(arithmetic_gradients) {
  MPSImage* x = image({2, 1, 2, {1, 2, 3, 4}});
  MPSImage* y = image({1, 1, 2, {10, 20}});
  MPSImage* ones = image({2, 1, 2, {1, 1, 1, 1}});
  auto* add = make<MPSCNNAdd>();
  broadcast(add);
  auto* first = make_gradient<MPSCNNAddGradient>(false);
  [first setPrimaryScale:2];
  EXPECT_VALUES(run_gradient(add, first, x, y, ones, x, empty(2, 1, 2)), {2, 2, 2, 2});
  auto* second = make_gradient<MPSCNNAddGradient>(true);
  [second setPrimaryScale:0.5F];
  [second setSecondaryStrideInPixelsX:0];
  [second setSecondaryStrideInPixelsY:0];
  EXPECT_VALUES(run_gradient(add, second, x, y, ones, y, empty(1, 1, 2)), {1, 1});
  EXPECT([second isSecondarySourceFilter] && ![first isSecondarySourceFilter]);

  auto* multiply = make<MPSCNNMultiply>();
  broadcast(multiply);
  auto* third = make_gradient<MPSCNNMultiplyGradient>(false);
  [third setPrimaryScale:2];
  [third setSecondaryScale:0.5F];
  [third setSecondaryStrideInPixelsX:0];
  [third setSecondaryStrideInPixelsY:0];
  EXPECT_VALUES(run_gradient(multiply, third, x, y, ones, y, empty(2, 1, 2)), {10, 20, 10, 20});
  auto* fourth = make_gradient<MPSCNNMultiplyGradient>(true);
  EXPECT_VALUES(run_gradient(multiply, fourth, x, y, ones, x, empty(1, 1, 2)), {4, 6});

  auto* subtract = make_gradient<MPSCNNSubtractGradient>(true);
  EXPECT([subtract primaryScale] == 1);  // the caller has to set -1
  [subtract setPrimaryScale:-1];
  EXPECT_VALUES(run_gradient(make<MPSCNNSubtract>(), subtract, x, x, ones, x, empty(2, 1, 2)),
                {-1, -1, -1, -1});
}

EXAMPLE(arithmetic_mask) {
  MPSImage* x = row({-3, 0, 2, 5});
  auto* add = make<MPSCNNAdd>();
  [add setMinimumValue:-1];
  [add setMaximumValue:2];
  EXPECT_VALUES(run_gradient(add, make_gradient<MPSCNNAddGradient>(false), x, row({0, 0, 0, 0}),
                             row({1, 2, 3, 4}), x, empty(4, 1, 1)),
                {0, 2, 0, 0});
}

EXAMPLE(arithmetic_offsets_go_back_where_they_were_read) {
  auto* add = make<MPSCNNAdd>();
  [add setSecondaryOffset:{1, 0, 0}];
  [add setSecondaryEdgeMode:MPSImageEdgeModeClamp];
  MPSImage* x = row({0, 0, 0});
  MPSImage* y = row({1, 2, 3});
  EXPECT_VALUES(run(add, x, y, 3, 1, 1), {2, 3, 3});
  EXPECT_VALUES(run_gradient(add, make_gradient<MPSCNNAddGradient>(true), x, y, row({1, 10, 100}),
                             y, empty(3, 1, 1)),
                {0, 1, 110});
}

EXAMPLE(arithmetic_mask_of_several_images) {
  // One image that holds two has one state, with a mask for each.
  MPSImage* x = two({-3, 0}, {5, 1});
  MPSImage* result = two({0, 0}, {0, 0});
  MPSImage* back = two({0, 0}, {0, 0});
  auto* add = make<MPSCNNAdd>();
  [add setMinimumValue:-1];
  [add setMaximumValue:2];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSCNNArithmeticGradientState* state = state_of(add, x, two({0, 0}, {0, 0}), result);
  [add encodeToCommandBuffer:buffer
                primaryImage:x
              secondaryImage:two({0, 0}, {0, 0})
            destinationState:state
            destinationImage:result];
  [make_gradient<MPSCNNAddGradient>(false) encodeToCommandBuffer:buffer
                                                  sourceGradient:two({1, 2}, {3, 4})
                                                     sourceImage:x
                                                   gradientState:state
                                             destinationGradient:back];
  finish(buffer, {back});
  EXPECT_VALUES(read(back), {0, 2});
  EXPECT_VALUES(read(back, 1), {0, 4});
}

EXAMPLE(arithmetic_masks_of_a_batch) {
  MPSImage* zero = row({0, 0});
  auto* add = make<MPSCNNAdd>();
  [add setMaximumValue:2];
  MPSImageBatch* sources = @[ row({5, 1}), row({1, 5}) ];
  MPSImageBatch* zeros = @[ zero, row({0, 0}) ];
  MPSImageBatch* results = @[ empty(2, 1, 1), empty(2, 1, 1) ];
  MPSImageBatch* backs = @[ empty(2, 1, 1), empty(2, 1, 1) ];
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  NSArray* states = [add resultStateBatchForPrimaryImage:sources
                                          secondaryImage:zeros
                                            sourceStates:nil
                                        destinationImage:results];
  [add encodeBatchToCommandBuffer:buffer
                    primaryImages:sources
                  secondaryImages:zeros
                destinationStates:states
                destinationImages:results];
  [make_gradient<MPSCNNAddGradient>(false) encodeBatchToCommandBuffer:buffer
                                                      sourceGradients:@[ row({1, 2}), row({3, 4}) ]
                                                         sourceImages:sources
                                                       gradientStates:states
                                                 destinationGradients:backs];
  finish(buffer, {[backs objectAtIndex:0], [backs objectAtIndex:1]});
  EXPECT_VALUES(read([backs objectAtIndex:0]), {0, 2});
  EXPECT_VALUES(read([backs objectAtIndex:1]), {3, 0});
}

EXAMPLE(arithmetic_comparisons) {
  MPSImage* x = row({1, 2, 3});
  MPSImage* y = row({2, 2, 2});
  auto* compare = make<MPSNNCompare>();
  const std::vector<std::vector<float>> expected = {{0, 1, 0}, {1, 0, 1}, {1, 0, 0},
                                                    {1, 1, 0}, {0, 0, 1}, {0, 1, 1}};
  for (NSUInteger type = 0; type < 6; ++type) {
    [compare setComparisonType:static_cast<MPSNNComparisonType>(type)];
    EXPECT_VALUES(run(compare, x, y, 3, 1, 1), (expected[type]));
  }
  [compare setComparisonType:MPSNNComparisonTypeEqual];
  [compare setThreshold:1];
  EXPECT_VALUES(run(compare, x, y, 3, 1, 1), {1, 1, 1});
}

OFFENCE(arithmetic_stride) {
  auto* add = make<MPSCNNAdd>();
  [add setPrimaryStrideInPixelsX:2];
  run(add, row({1}), row({1}), 1, 1, 1);
}
OFFENCE(arithmetic_stride) {
  auto* add = make<MPSCNNAdd>();
  [add setSecondaryStrideInFeatureChannels:2];
  run(add, row({1}), row({1}), 1, 1, 1);
}
OFFENCE(arithmetic_stride) {
  auto* add = make<MPSCNNAdd>();
  broadcast(add);
  run_gradient(add, make_gradient<MPSCNNAddGradient>(true), row({1, 2}), row({1}), row({1, 1}),
               row({1}), empty(1, 1, 1));
}
OFFENCE(arithmetic_limits) {
  auto* add = make<MPSCNNAdd>();
  [add setMinimumValue:1];
  [add setMaximumValue:0];
  run(add, row({1}), row({1}), 1, 1, 1);
}
OFFENCE(arithmetic_limits) {
  auto* add = make<MPSCNNAdd>();
  [add setMinimumValue:NAN];
  run(add, row({1}), row({1}), 1, 1, 1);
}
OFFENCE(arithmetic_channels) { run(make<MPSCNNAdd>(), channels({1, 2}), channels({1}), 1, 1, 2); }
OFFENCE(gradient_shape) {
  run_gradient(make<MPSCNNAdd>(), make_gradient<MPSCNNAddGradient>(false), row({1, 2}), row({1, 2}),
               row({1, 2}), row({1}), empty(2, 1, 1));
}
OFFENCE(state_not_encoded) {
  auto* add = make<MPSCNNAdd>();
  MPSImage* x = row({1, 2});
  MPSCNNArithmeticGradientState* state = state_of(add, x, row({1, 2}), empty(2, 1, 1));
  [make_gradient<MPSCNNAddGradient>(false) encodeToCommandBuffer:[queue() commandBuffer]
                                                  sourceGradient:row({1, 1})
                                                     sourceImage:x
                                                   gradientState:state
                                             destinationGradient:empty(2, 1, 1)];
}
OFFENCE(state_not_encoded) {  // of the first of two images only
  auto* add = make<MPSCNNAdd>();
  [add setClipRect:{{0, 0, 0}, {2, 1, 1}}];
  MPSImage* x = two({1, 2}, {3, 4});
  MPSImage* result = two({0, 0}, {0, 0});
  MPSCNNArithmeticGradientState* state = state_of(add, x, two({0, 0}, {0, 0}), result);
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [add encodeToCommandBuffer:buffer
                primaryImage:x
              secondaryImage:two({0, 0}, {0, 0})
            destinationState:state
            destinationImage:result];
  [make_gradient<MPSCNNAddGradient>(false) encodeToCommandBuffer:buffer
                                                  sourceGradient:two({1, 1}, {1, 1})
                                                     sourceImage:x
                                                   gradientState:state
                                             destinationGradient:two({0, 0}, {0, 0})];
}
OFFENCE(state_foreign_kernel) {
  run_gradient(make<MPSCNNAdd>(), make_gradient<MPSCNNMultiplyGradient>(false), row({1, 2}),
               row({1, 2}), row({1, 2}), row({1, 2}), empty(2, 1, 1));
}
OFFENCE(kernel_changed) {
  auto* add = make<MPSCNNAdd>();
  MPSImage* x = row({1, 2});
  MPSImage* result = empty(2, 1, 1);
  MPSCNNArithmeticGradientState* state = state_of(add, x, x, result);
  [add setBias:1];
  [add encodeToCommandBuffer:[queue() commandBuffer]
                primaryImage:x
              secondaryImage:x
            destinationState:state
            destinationImage:result];
}
OFFENCE(state_not_distinct) {
  auto* add = make<MPSCNNAdd>();
  MPSImage* x = row({1, 2});
  MPSImage* result = empty(2, 1, 1);
  MPSCNNArithmeticGradientState* state = state_of(add, x, x, result);
  [add encodeBatchToCommandBuffer:[queue() commandBuffer]
                    primaryImages:@[ x, x ]
                  secondaryImages:@[ x, x ]
                destinationStates:@[ state, state ]
                destinationImages:@[ result, empty(2, 1, 1) ]];
}
