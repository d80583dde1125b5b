// Nodes of softmax, dropout and Gram matrices.
#include "graph.hpp"

using namespace emulated_metal;

namespace {

// Their gradients read the forward result, not the source.
struct SoftMaxFamily : FamilyOf<SoftMaxFamily> {
  bool logarithm = false;

  Class gradient_node() const override {
    return logarithm ? [MPSCNNLogSoftMaxGradientNode class] : [MPSCNNSoftMaxGradientNode class];
  }
  std::vector<ImageRef> gradient_images(const std::shared_ptr<FilterBody>& forward,
                                        size_t slot) const override {
    (void)slot;
    return {{forward->result, forward}};
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    const Class made = logarithm ? [MPSCNNLogSoftMax class] : [MPSCNNSoftMax class];
    return [[static_cast<MPSCNNKernel*>([made alloc]) initWithDevice:device] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    const Class made = logarithm ? [MPSCNNLogSoftMaxGradient class] : [MPSCNNSoftMaxGradient class];
    return [[static_cast<MPSCNNGradientKernel*>([made alloc]) initWithDevice:device] autorelease];
  }
};

struct DropoutFamily : FamilyOf<DropoutFamily> {
  float keep_probability = 0.5F;
  NSUInteger seed = 0;
  MTLSize stride = {1, 1, 1};

  Class gradient_node() const override { return [MPSCNNDropoutGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSCNNDropout alloc] initWithDevice:device
                                  keepProbability:keep_probability
                                             seed:seed
                               maskStrideInPixels:stride] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return [[[MPSCNNDropoutGradient alloc] initWithDevice:device
                                          keepProbability:keep_probability
                                                     seed:seed
                                       maskStrideInPixels:stride] autorelease];
  }
};

struct GramFamily : FamilyOf<GramFamily> {
  float alpha = 1;
  Strong<id<MPSNNGramMatrixCallback>> callback;

  Class gradient_node() const override { return [MPSNNGramMatrixCalculationGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSNNGramMatrixCalculation alloc] initWithDevice:device alpha:alpha] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return [[[MPSNNGramMatrixCalculationGradient alloc] initWithDevice:device
                                                                 alpha:alpha] autorelease];
  }
  void prepare(MPSKernel* kernel, MPSImage* source, MPSImage* destination) const override {
    if (!callback) return;
    [static_cast<MPSNNGramMatrixCalculation*>(kernel)
        setAlpha:[callback.get() alphaForSourceImage:source destinationImage:destination]];
  }
};

std::shared_ptr<Family> soft_max(bool logarithm) {
  auto family = std::make_shared<SoftMaxFamily>();
  family->logarithm = logarithm;
  return family;
}

}  // namespace

@implementation MPSCNNSoftMaxNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  return [self emulatedInitWithFamily:soft_max(false) sources:single(sourceNode) where:HERE];
}
@end
@implementation MPSCNNSoftMaxGradientNode
@end

@implementation MPSCNNLogSoftMaxNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  return [self emulatedInitWithFamily:soft_max(true) sources:single(sourceNode) where:HERE];
}
@end
@implementation MPSCNNLogSoftMaxGradientNode
@end

#define DROPOUT_PROPERTIES                                           \
  NODE_READ(DropoutFamily, float, keepProbability, keep_probability) \
  NODE_READ(DropoutFamily, NSUInteger, seed, seed)                   \
  NODE_READ(DropoutFamily, MTLSize, maskStrideInPixels, stride)

@implementation MPSCNNDropoutNode
- (instancetype)initWithSource:(MPSNNImageNode*)source {
  return [self initWithSource:source keepProbability:0.5F];
}
- (instancetype)initWithSource:(MPSNNImageNode*)source keepProbability:(float)keepProbability {
  return [self initWithSource:source
              keepProbability:keepProbability
                         seed:0
           maskStrideInPixels:MTLSizeMake(1, 1, 1)];
}
- (instancetype)initWithSource:(MPSNNImageNode*)source
               keepProbability:(float)keepProbability
                          seed:(NSUInteger)seed
            maskStrideInPixels:(MTLSize)maskStrideInPixels {
  auto family = std::make_shared<DropoutFamily>();
  family->keep_probability = keepProbability;
  family->seed = seed;
  family->stride = maskStrideInPixels;
  return [self emulatedInitWithFamily:family sources:single(source) where:HERE];
}
DROPOUT_PROPERTIES
@end
@implementation MPSCNNDropoutGradientNode
DROPOUT_PROPERTIES
@end

@implementation MPSNNGramMatrixCalculationNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  return [self initWithSource:sourceNode alpha:1];
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode alpha:(float)alpha {
  auto family = std::make_shared<GramFamily>();
  family->alpha = alpha;
  return [self emulatedInitWithFamily:family sources:single(sourceNode) where:HERE];
}
NODE_READ(GramFamily, float, alpha, alpha)
- (id<MPSNNGramMatrixCallback>)propertyCallBack {
  return node_->as<GramFamily>().callback.get();
}
- (void)setPropertyCallBack:(id<MPSNNGramMatrixCallback>)callback {
  node_->as<GramFamily>().callback = callback;
}
@end
@implementation MPSNNGramMatrixCalculationGradientNode
NODE_READ(GramFamily, float, alpha, alpha)
@end
