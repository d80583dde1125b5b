// Nodes of pooling and upsampling.
#include "graph.hpp"

using namespace emulated_metal;

namespace {

struct PoolingFamily : FamilyOf<PoolingFamily> {
  Class kernel = Nil, gradient_kernel = Nil, gradient = Nil;
  NSUInteger kx = 1, ky = 1, sx = 1, sy = 1, dx = 0, dy = 0;  // without dilation: 0

  Class gradient_node() const override { return gradient; }
  MPSKernel* made(Class made_class, id<MTLDevice> device) const {
    if (dx == 0) {
      return [[[made_class alloc] initWithDevice:device
                                     kernelWidth:kx
                                    kernelHeight:ky
                                 strideInPixelsX:sx
                                 strideInPixelsY:sy] autorelease];
    }
    return [[[made_class alloc] initWithDevice:device
                                   kernelWidth:kx
                                  kernelHeight:ky
                                 dilationRateX:dx
                                 dilationRateY:dy
                               strideInPixelsX:sx
                               strideInPixelsY:sy] autorelease];
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    MPSKernel* made_kernel = made(kernel, device);
    if (dx == 0) {  // the header says nothing of dilated ones
      [static_cast<MPSCNNKernel*>(made_kernel) setEdgeMode:MPSImageEdgeModeClamp];
    }
    return made_kernel;
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return made(gradient_kernel, device);
  }
};

struct UpsamplingFamily : FamilyOf<UpsamplingFamily> {
  bool bilinear = false, align = false;
  NSUInteger x = 1, y = 1;

  Class gradient_node() const override {
    return bilinear ? [MPSCNNUpsamplingBilinearGradientNode class]
                    : [MPSCNNUpsamplingNearestGradientNode class];
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    if (bilinear) {
      return [[[MPSCNNUpsamplingBilinear alloc] initWithDevice:device
                                           integerScaleFactorX:x
                                           integerScaleFactorY:y
                                                  alignCorners:align] autorelease];
    }
    return [[[MPSCNNUpsamplingNearest alloc] initWithDevice:device
                                        integerScaleFactorX:x
                                        integerScaleFactorY:y] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    const Class made = bilinear ? [MPSCNNUpsamplingBilinearGradient class]
                                : [MPSCNNUpsamplingNearestGradient class];
    return [[[made alloc] initWithDevice:device integerScaleFactorX:x
                     integerScaleFactorY:y] autorelease];
  }
};

}  // namespace

#define WINDOW                                              \
  NODE_READ(PoolingFamily, NSUInteger, kernelWidth, kx)     \
  NODE_READ(PoolingFamily, NSUInteger, kernelHeight, ky)    \
  NODE_READ(PoolingFamily, NSUInteger, strideInPixelsX, sx) \
  NODE_READ(PoolingFamily, NSUInteger, strideInPixelsY, sy)
#define DILATION                                          \
  NODE_READ(PoolingFamily, NSUInteger, dilationRateX, dx) \
  NODE_READ(PoolingFamily, NSUInteger, dilationRateY, dy)
#define POOLING_CLASSES(type)                                \
  -(void)emulatedChoose : (PoolingFamily&)family {           \
    family.kernel = [MPSCNN##type class];                    \
    family.gradient_kernel = [MPSCNN##type##Gradient class]; \
    family.gradient = [MPSCNN##type##GradientNode class];    \
  }

@implementation MPSCNNPoolingNode
- (void)emulatedChoose:(PoolingFamily&)family {
  (void)family;
  spring(Trap::abstract_kernel, HERE);
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY {
  auto family = std::make_shared<PoolingFamily>();
  [self emulatedChoose:*family];
  family->kx = kernelWidth;
  family->ky = kernelHeight;
  family->sx = strideInPixelsX;
  family->sy = strideInPixelsY;
  return [self emulatedInitWithFamily:family sources:single(sourceNode) where:HERE];
}
WINDOW
@end

@implementation MPSCNNPoolingAverageNode
POOLING_CLASSES(PoolingAverage)
@end
@implementation MPSCNNPoolingL2NormNode
POOLING_CLASSES(PoolingL2Norm)
@end
@implementation MPSCNNPoolingMaxNode
POOLING_CLASSES(PoolingMax)
@end

@implementation MPSCNNDilatedPoolingMaxNode
POOLING_CLASSES(DilatedPoolingMax)
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY {
  REQUIRE(dilationRateX > 0 && dilationRateY > 0, kernel_parameters, HERE, "dilation rate 0");
  auto family = std::make_shared<PoolingFamily>();
  [self emulatedChoose:*family];
  family->kx = kernelWidth;
  family->ky = kernelHeight;
  family->sx = strideInPixelsX;
  family->sy = strideInPixelsY;
  family->dx = dilationRateX;
  family->dy = dilationRateY;
  return [self emulatedInitWithFamily:family sources:single(sourceNode) where:HERE];
}
DILATION
@end

@implementation MPSCNNPoolingGradientNode
WINDOW
@end
@implementation MPSCNNPoolingMaxGradientNode
@end
@implementation MPSCNNPoolingAverageGradientNode
@end
@implementation MPSCNNPoolingL2NormGradientNode
@end
@implementation MPSCNNDilatedPoolingMaxGradientNode
DILATION
@end

// ---------------------------------------------------------------- upsampling

#define FACTORS                                                  \
  -(double)scaleFactorX {                                        \
    return static_cast<double>(node_->as<UpsamplingFamily>().x); \
  }                                                              \
  -(double)scaleFactorY {                                        \
    return static_cast<double>(node_->as<UpsamplingFamily>().y); \
  }

namespace {
std::shared_ptr<Family> upsampling(bool bilinear, NSUInteger x, NSUInteger y, bool align) {
  auto family = std::make_shared<UpsamplingFamily>();
  family->bilinear = bilinear;
  family->align = align;
  family->x = x;
  family->y = y;
  return family;
}
}  // namespace

@implementation MPSCNNUpsamplingNearestNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY {
  return [self
      emulatedInitWithFamily:upsampling(false, integerScaleFactorX, integerScaleFactorY, false)
                     sources:single(sourceNode)
                       where:HERE];
}
FACTORS
@end

@implementation MPSCNNUpsamplingBilinearNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY {
  return [self initWithSource:sourceNode
          integerScaleFactorX:integerScaleFactorX
          integerScaleFactorY:integerScaleFactorY
                 alignCorners:NO];
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY
                  alignCorners:(BOOL)alignCorners {
  return [self emulatedInitWithFamily:upsampling(true, integerScaleFactorX, integerScaleFactorY,
                                                 alignCorners)
                              sources:single(sourceNode)
                                where:HERE];
}
FACTORS
NODE_READ(UpsamplingFamily, BOOL, alignCorners, align)
@end

@implementation MPSCNNUpsamplingNearestGradientNode
FACTORS
@end
@implementation MPSCNNUpsamplingBilinearGradientNode
FACTORS
@end
