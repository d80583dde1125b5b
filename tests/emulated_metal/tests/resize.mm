// Resizing and grid sampling against the worked examples of the specification.
#include "harness.hpp"

using namespace tests;

namespace {

MPSNNResizeBilinear* resize(NSUInteger width, NSUInteger height, BOOL align_corners) {
  MPSNNResizeBilinear* kernel =
      [[[MPSNNResizeBilinear alloc] initWithDevice:device()
                                       resizeWidth:width
                                      resizeHeight:height
                                      alignCorners:align_corners] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

MPSNNCropAndResizeBilinear* crop(const std::vector<MPSRegion>& regions) {
  MPSNNCropAndResizeBilinear* kernel =
      [[[MPSNNCropAndResizeBilinear alloc] initWithDevice:device()
                                              resizeWidth:2
                                             resizeHeight:2
                                          numberOfRegions:regions.size()
                                                  regions:regions.data()] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

MPSNNGridSample* grid_sample() {
  MPSNNGridSample* kernel = [[[MPSNNGridSample alloc] initWithDevice:device()] autorelease];
  [kernel setDestinationImageAllocator:[MPSImage defaultAllocator]];
  return kernel;
}

std::vector<float> run(MPSCNNKernel* kernel, MPSImage* source) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [kernel encodeToCommandBuffer:buffer sourceImage:source];
  finish(buffer, {result});
  return read(result);
}

std::vector<float> run(MPSNNGridSample* kernel, MPSImage* source, MPSImage* grid) {
  const id<MTLCommandBuffer> buffer = [queue() commandBuffer];
  MPSImage* result = [kernel encodeToCommandBuffer:buffer primaryImage:source secondaryImage:grid];
  EXPECT([result width] == [grid width] && [result height] == [grid height]);
  finish(buffer, {result});
  return read(result);
}

MPSImage* nine() { return image({3, 3, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8}}); }

}  // namespace

EXAMPLE(resize_of_a_row) {
  EXPECT_VALUES(run(resize(3, 1, NO), row({1, 2, 3, 4})), {1, 7.0F / 3, 11.0F / 3});
  EXPECT_VALUES(run(resize(3, 1, YES), row({1, 2, 3, 4})), {1, 2.5F, 4});
  EXPECT_VALUES(run(resize(1, 1, YES), row({1, 2, 3, 4})), {1});
  EXPECT([resize(3, 1, YES) alignCorners] && [resize(3, 1, YES) resizeWidth] == 3);
}

EXAMPLE(crops) {
  MPSNNCropAndResizeBilinear* kernel = crop({{{0, 0, 0}, {0.5, 0.5, 1}}});
  EXPECT([kernel numberOfRegions] == 1 && [kernel regions]->size.width == 0.5);
  EXPECT_VALUES(run(kernel, nine()), {0, 1, 3, 4});
  EXPECT_VALUES(run(crop({{{0.25, 0.25, 0}, {1, 1, 1}}}), nine()), {2, 0, 0, 0});
}

EXAMPLE(grid_samples) {
  MPSImage* source = image({2, 2, 1, {1, 2, 3, 4}});
  MPSImage* grid = image({2, 1, 2, {0.5F, 0.5F, 1.5F, 0}});
  MPSNNGridSample* kernel = grid_sample();
  EXPECT([kernel useGridValueAsInputCoordinate]);
  EXPECT_VALUES(run(kernel, source, grid), {2.5F, 1});
  [kernel setUseGridValueAsInputCoordinate:NO];
  EXPECT_VALUES(run(kernel, source, image({2, 1, 2, {0.5F, 0, 0, 1}})), {1.5F, 4});
  [kernel setPrimaryEdgeMode:MPSImageEdgeModeClamp];
  EXPECT_VALUES(run(kernel, source, image({1, 1, 2, {7, -3}})), {2});
}

OFFENCE(kernel_parameters) { resize(0, 1, NO); }
OFFENCE(init_unavailable) {
  (void)[[static_cast<id>([MPSNNResizeBilinear alloc]) initWithDevice:device()] autorelease];
}
OFFENCE(resize_regions) { crop({{{0, 0, 0}, {1, 1, 1}}, {{0, 0, 0}, {1, 1, 1}}}); }
OFFENCE(resize_edge) {
  MPSNNCropAndResizeBilinear* kernel = crop({{{0, 0, 0}, {1, 1, 1}}});
  [kernel setEdgeMode:MPSImageEdgeModeClamp];
  run(kernel, nine());
}
OFFENCE(grid_channels) { run(grid_sample(), nine(), channels({1, 2, 3})); }
OFFENCE(grid_stride) {
  MPSNNGridSample* kernel = grid_sample();
  [kernel setSecondaryStrideInPixelsX:2];
  run(kernel, nine(), channels({1, 2}));
}
