// Reductions against the worked example of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

template <class Kernel>
Kernel* plain() {
  Kernel* kernel = [[[Kernel alloc] initWithDevice:device()] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

template <class Kernel>
std::vector<float> run(MPSImage* source) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [plain<Kernel>() encodeToCommandBuffer:buffer sourceImage:source];
  finish(buffer, {result});
  return read(result);
}

std::vector<float> run(MPSNNReduceBinary* kernel, MPSImage* first, MPSImage* second) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [kernel encodeToCommandBuffer:buffer primaryImage:first secondaryImage:second];
  finish(buffer, {result});
  return read(result);
}

void into(MPSCNNKernel* kernel, MPSImage* source, MPSImage* result) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  [kernel encodeToCommandBuffer:buffer sourceImage:source destinationImage:result];
  finish(buffer, {result});
}

}  // namespace

EXAMPLE(reductions_of_channels) {
  MPSImage* source = channels({1, 3, 3});
  EXPECT_VALUES(run<MPSNNReduceFeatureChannelsArgumentMax>(source), {1});
  EXPECT_VALUES(run<MPSNNReduceFeatureChannelsArgumentMin>(source), {0});
  EXPECT_VALUES(run<MPSNNReduceFeatureChannelsMean>(source), {7.0F / 3.0F});
  MPSNNReduceFeatureChannelsSum* kernel = plain<MPSNNReduceFeatureChannelsSum>();
  [kernel setWeight:0.5F];
  MPSImage* result = empty(1, 1, 1);
  into(kernel, source, result);
  EXPECT_VALUES(read(result), {3.5F});
}

EXAMPLE(reductions_of_rows_and_columns) {
  MPSImage* source = image({3, 2, 1, {1, 2, 3, 4, 5, 7}});
  EXPECT_VALUES(run<MPSNNReduceRowMax>(source), {3, 7});
  EXPECT_VALUES(run<MPSNNReduceColumnSum>(source), {5, 7, 10});
  MPSNNReduceRowMin* kernel = plain<MPSNNReduceRowMin>();
  [kernel setClipRectSource:MTLRegionMake3D(1, 1, 0, 9, 9, 1)];
  [kernel setOffset:{2, 2, 2}];  // ignored
  MPSImage* result = empty(1, 1, 1);
  into(kernel, source, result);
  EXPECT_VALUES(read(result), {5});
}

EXAMPLE(reductions_of_two_images) {
  MPSImage* first = channels({1, 2, 3});
  MPSImage* second = channels({4, 0, 2});
  auto* mean = plain<MPSNNReduceFeatureChannelsAndWeightsMean>();
  EXPECT_VALUES(run(mean, first, second), {10.0F / 3.0F});
  auto* sum = [[[MPSNNReduceFeatureChannelsAndWeightsSum alloc] initWithDevice:device()
                                                 doWeightedSumByNonZeroWeights:true] autorelease];
  [sum setDestinationImageAllocator:[MPSImage defaultAllocator]];
  EXPECT_VALUES(run(sum, first, second), {5});
}

EXAMPLE(local_correlation_of_a_row) {
  MPSNNLocalCorrelation* kernel = [[[MPSNNLocalCorrelation alloc] initWithDevice:device()
                                                                       windowInX:1
                                                                       windowInY:0
                                                                       strideInX:1
                                                                       strideInY:1] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  EXPECT_VALUES(run(kernel, row({1, 2}), row({3, 5})), {0, 3, 5, 6, 10, 0});
}

OFFENCE(reduction_region) {
  MPSNNReduceRowSum* kernel = plain<MPSNNReduceRowSum>();
  [kernel setClipRectSource:MTLRegionMake3D(3, 0, 0, 1, 1, 1)];
  into(kernel, row({1, 2, 3}), empty(1, 1, 1));
}
OFFENCE(reduction_region) { into(plain<MPSNNReduceRowSum>(), row({1, 2, 3}), empty(3, 1, 1)); }
OFFENCE(reduction_channels) {
  run(plain<MPSNNReduceFeatureChannelsAndWeightsMean>(), channels({1, 2, 3}), channels({1, 2}));
}
