// Nodes of element-wise arithmetic and their two gradients, the secondary one first.
#include <cfloat>

#include "graph.hpp"

using namespace emulated_metal;

namespace {

struct ArithmeticFamily : FamilyOf<ArithmeticFamily> {
  Class kernel = Nil, gradient_kernel = Nil, gradient = Nil;
  bool multiplies = false, compares = false;
  float primary_scale = 1, secondary_scale = 1, bias = 0, minimum = -FLT_MAX, maximum = FLT_MAX;
  NSUInteger primary_x = 1, primary_y = 1, primary_channels = 1;
  NSUInteger secondary_x = 1, secondary_y = 1, secondary_channels = 1;
  MPSNNComparisonType comparison = MPSNNComparisonTypeEqual;

  Class state_node() const override {
    return gradient == Nil ? Nil : [MPSNNArithmeticGradientStateNode class];
  }
  Class gradient_node() const override { return gradient; }
  bool has_singular() const override { return gradient == Nil; }
  std::vector<size_t> slots(const FilterBody& forward) const override {
    (void)forward;
    return {1, 0};
  }
  std::vector<ImageRef> gradient_images(const std::shared_ptr<FilterBody>& forward,
                                        size_t slot) const override {
    return {forward->images[multiplies ? 1 - slot : slot]};
  }
  template <class Kernel>
  Kernel* set(Kernel* made) const {
    [made setPrimaryScale:primary_scale];
    [made setSecondaryScale:secondary_scale];
    [made setBias:bias];
    [made setMinimumValue:minimum];
    [made setMaximumValue:maximum];
    [made setSecondaryStrideInPixelsX:secondary_x];
    [made setSecondaryStrideInPixelsY:secondary_y];
    [made setSecondaryStrideInFeatureChannels:secondary_channels];
    return [made autorelease];
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    auto* made = set(
        static_cast<MPSCNNAdd*>([static_cast<MPSCNNAdd*>([kernel alloc]) initWithDevice:device]));
    [made setPrimaryStrideInPixelsX:primary_x];
    [made setPrimaryStrideInPixelsY:primary_y];
    [made setPrimaryStrideInFeatureChannels:primary_channels];
    if (compares) {
      [static_cast<MPSNNCompare*>(static_cast<id>(made)) setComparisonType:comparison];
    }
    return made;
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    return set([static_cast<MPSCNNAddGradient*>([gradient_kernel alloc]) initWithDevice:device
                                                                isSecondarySourceFilter:slot == 1]);
  }
  void encode_forward(Step& step) const override {
    auto* made = step.kernel<MPSCNNArithmetic>();
    if (!step.writes_state) {
      step.result = [made encodeBatchToCommandBuffer:step.buffer
                                       primaryImages:step.images[0]
                                     secondaryImages:step.images[1]];
      return;
    }
    const Where where { made, @selector(destinationImageDescriptorForSourceImages:sourceStates:) };
    NSArray* first = @[ [step.images[0] objectAtIndex:0], [step.images[1] objectAtIndex:0] ];
    step.result = allocate_images(
        made, step.buffer, [made destinationImageDescriptorForSourceImages:first sourceStates:nil],
        [step.images[0] count], where);
    step.state = step.temporary_state
                     ? [made temporaryResultStateBatchForCommandBuffer:step.buffer
                                                          primaryImage:step.images[0]
                                                        secondaryImage:step.images[1]
                                                          sourceStates:nil
                                                      destinationImage:step.result]
                     : [made resultStateBatchForPrimaryImage:step.images[0]
                                              secondaryImage:step.images[1]
                                                sourceStates:nil
                                            destinationImage:step.result];
    [made encodeBatchToCommandBuffer:step.buffer
                       primaryImages:step.images[0]
                     secondaryImages:step.images[1]
                   destinationStates:static_cast<MPSCNNArithmeticGradientStateBatch*>(step.state)
                   destinationImages:step.result];
    keep(step.state, step.state_reads);
  }
};

}  // namespace

#define ARITHMETIC_COMMON                                                                         \
  NODE_VALUE(ArithmeticFamily, float, primaryScale, setPrimaryScale, primary_scale)               \
  NODE_VALUE(ArithmeticFamily, float, secondaryScale, setSecondaryScale, secondary_scale)         \
  NODE_VALUE(ArithmeticFamily, float, bias, setBias, bias)                                        \
  NODE_VALUE(ArithmeticFamily, float, minimumValue, setMinimumValue, minimum)                     \
  NODE_VALUE(ArithmeticFamily, float, maximumValue, setMaximumValue, maximum)                     \
  NODE_VALUE(ArithmeticFamily, NSUInteger, secondaryStrideInPixelsX, setSecondaryStrideInPixelsX, \
             secondary_x)                                                                         \
  NODE_VALUE(ArithmeticFamily, NSUInteger, secondaryStrideInPixelsY, setSecondaryStrideInPixelsY, \
             secondary_y)                                                                         \
  NODE_VALUE(ArithmeticFamily, NSUInteger, secondaryStrideInFeatureChannels,                      \
             setSecondaryStrideInFeatureChannels, secondary_channels)
#define TRAINED(operation, operation_node, product)                \
  -(void)emulatedChoose : (ArithmeticFamily&)family {              \
    family.kernel = [MPSCNN##operation class];                     \
    family.gradient_kernel = [MPSCNN##operation##Gradient class];  \
    family.gradient = [MPSNN##operation_node##GradientNode class]; \
    family.multiplies = product;                                   \
  }

@implementation MPSNNBinaryArithmeticNode
- (void)emulatedChoose:(ArithmeticFamily&)family {
  (void)family;
  spring(Trap::abstract_kernel, HERE);
}
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes {
  REQUIRE(sourceNodes != nil, nil_argument, HERE, "sourceNodes");
  REQUIRE([sourceNodes count] == 2, node_source_count, HERE, "%lu",
          static_cast<unsigned long>([sourceNodes count]));
  auto family = std::make_shared<ArithmeticFamily>();
  [self emulatedChoose:*family];
  return [self emulatedInitWithFamily:family sources:sourceNodes where:HERE];
}
- (instancetype)initWithLeftSource:(MPSNNImageNode*)left rightSource:(MPSNNImageNode*)right {
  REQUIRE(left != nil && right != nil, nil_argument, HERE, "source");
  return [self initWithSources:@[ left, right ]];
}
- (Class)gradientClass {
  const Class gradient = node_->as<ArithmeticFamily>().gradient;
  REQUIRE(gradient != Nil, node_gradient_missing, HERE);
  return gradient;
}
ARITHMETIC_COMMON
NODE_VALUE(ArithmeticFamily, NSUInteger, primaryStrideInPixelsX, setPrimaryStrideInPixelsX,
           primary_x)
NODE_VALUE(ArithmeticFamily, NSUInteger, primaryStrideInPixelsY, setPrimaryStrideInPixelsY,
           primary_y)
NODE_VALUE(ArithmeticFamily, NSUInteger, primaryStrideInFeatureChannels,
           setPrimaryStrideInFeatureChannels, primary_channels)
@end

@implementation MPSNNAdditionNode
TRAINED(Add, Addition, false)
@end
@implementation MPSNNSubtractionNode
TRAINED(Subtract, Subtraction, false)
@end
@implementation MPSNNMultiplicationNode
TRAINED(Multiply, Multiplication, true)
@end
@implementation MPSNNDivisionNode
- (void)emulatedChoose:(ArithmeticFamily&)family {
  family.kernel = [MPSCNNDivide class];
}
@end
@implementation MPSNNComparisonNode
- (void)emulatedChoose:(ArithmeticFamily&)family {
  family.kernel = [MPSNNCompare class];
  family.compares = true;
}
NODE_VALUE(ArithmeticFamily, MPSNNComparisonType, comparisonType, setComparisonType, comparison)
@end

@implementation MPSNNArithmeticGradientNode
ARITHMETIC_COMMON
- (BOOL)isSecondarySourceFilter {
  return node_->body->slot == 1;
}
@end
@implementation MPSNNAdditionGradientNode
@end
@implementation MPSNNSubtractionGradientNode
@end
@implementation MPSNNMultiplicationGradientNode
@end
