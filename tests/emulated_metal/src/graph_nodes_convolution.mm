// Nodes of convolution, full connection and transposed convolution.
#include "convolution.hpp"
#include "graph.hpp"

using namespace emulated_metal;

namespace {

struct ConvolutionFamily : FamilyOf<ConvolutionFamily> {
  enum class Kind { plain, full, transposed } kind = Kind::plain;
  Strong<id<MPSCNNConvolutionDataSource>> source;
  MPSNNConvolutionAccumulatorPrecisionOption accumulator =
      MPSNNConvolutionAccumulatorPrecisionOptionFloat;
  bool sized_by_state = false;  // a transpose that reads a convolution's state

  template <class Plain, class Full, class Transposed>
  MPSKernel* made(id<MTLDevice> device) const {
    const id<MPSCNNConvolutionDataSource> weights = source.get();
    if (kind == Kind::plain) {
      return [[[Plain alloc] initWithDevice:device weights:weights] autorelease];
    }
    if (kind == Kind::full) {
      return [[[Full alloc] initWithDevice:device weights:weights] autorelease];
    }
    return [[[Transposed alloc] initWithDevice:device weights:weights] autorelease];
  }
  Class state_node() const override {
    return kind == Kind::transposed ? [MPSCNNConvolutionTransposeGradientStateNode class]
                                    : [MPSCNNConvolutionGradientStateNode class];
  }
  Class gradient_node() const override {
    return kind == Kind::plain  ? [MPSCNNConvolutionGradientNode class]
           : kind == Kind::full ? [MPSCNNFullyConnectedGradientNode class]
                                : [MPSCNNConvolutionTransposeGradientNode class];
  }
  id<MPSNNPadding> padding() const override {
    return
        [MPSNNDefaultPadding paddingWithMethod:kind == Kind::full ? MPSNNPaddingMethodSizeValidOnly
                                                                  : MPSNNPaddingMethodSizeSame];
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    MPSKernel* kernel =
        made<MPSCNNConvolution, MPSCNNFullyConnected, MPSCNNConvolutionTranspose>(device);
    [static_cast<MPSCNNConvolution*>(kernel) setAccumulatorPrecisionOption:accumulator];
    return kernel;
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    MPSKernel* kernel = made<MPSCNNConvolutionGradient, MPSCNNFullyConnectedGradient,
                             MPSCNNConvolutionTransposeGradient>(device);
    [static_cast<MPSCNNConvolutionGradient*>(kernel) reloadWeightsAndBiasesFromDataSource];
    return kernel;
  }
  void encode_forward(Step& step) const override {
    if (kind != Kind::transposed) return Family::encode_forward(step);
    auto* kernel = step.kernel<MPSCNNConvolutionTranspose>();
    auto* convolution =
        static_cast<MPSCNNConvolutionGradientStateBatch*>(sized_by_state ? step.states[0] : nil);
    if (!step.writes_state) {
      step.result = [kernel encodeBatchToCommandBuffer:step.buffer
                                          sourceImages:step.images[0]
                             convolutionGradientStates:convolution];
      return;
    }
    MPSCNNConvolutionTransposeGradientStateBatch* states = nil;
    step.result = [kernel encodeBatchToCommandBuffer:step.buffer
                                        sourceImages:step.images[0]
                           convolutionGradientStates:convolution
                                   destinationStates:&states
                         destinationStateIsTemporary:step.temporary_state];
    step.state = static_cast<NSArray*>(states);
    keep(step.state, step.state_reads);
  }
  Update update() const override { return Update::convolution; }
  id data_source() const override { return source.get(); }
  void set_data_gradient(MPSKernel* kernel, bool wanted) const override {
    [static_cast<MPSCNNConvolutionGradient*>(kernel)
        setGradientOption:wanted ? MPSCNNConvolutionGradientOptionAll
                                 : MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias];
  }
};

std::shared_ptr<Family> family(ConvolutionFamily::Kind kind,
                               id<MPSCNNConvolutionDataSource> weights, const Where& where) {
  REQUIRE(weights != nil, nil_argument, where, "weights");
  auto family = std::make_shared<ConvolutionFamily>();
  family->kind = kind;
  family->source = weights;
  return family;
}

}  // namespace

@implementation MPSCNNConvolutionNode
- (ConvolutionFamily::Kind)emulatedKind {
  return ConvolutionFamily::Kind::plain;
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                       weights:(id<MPSCNNConvolutionDataSource>)weights {
  return [self emulatedInitWithFamily:family([self emulatedKind], weights, HERE)
                              sources:single(sourceNode)
                                where:HERE];
}
NODE_STYLE
NODE_VALUE(ConvolutionFamily, MPSNNConvolutionAccumulatorPrecisionOption, accumulatorPrecision,
           setAccumulatorPrecision, accumulator)
- (MPSCNNConvolutionGradientStateNode*)convolutionGradientState {
  return static_cast<MPSCNNConvolutionGradientStateNode*>([self resultState]);
}
@end

@implementation MPSCNNFullyConnectedNode
- (ConvolutionFamily::Kind)emulatedKind {
  return ConvolutionFamily::Kind::full;
}
@end

@implementation MPSCNNConvolutionTransposeNode
- (ConvolutionFamily::Kind)emulatedKind {
  return ConvolutionFamily::Kind::transposed;
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
      convolutionGradientState:(MPSCNNConvolutionGradientStateNode*)convolutionGradientState
                       weights:(id<MPSCNNConvolutionDataSource>)weights {
  self = [self initWithSource:sourceNode weights:weights];
  if (convolutionGradientState != nil) {
    REQUIRE([convolutionGradientState isKindOfClass:[MPSCNNConvolutionGradientStateNode class]],
            foreign_object, HERE, "not the state node of a convolution");
    node_->body->states.push_back(*convolutionGradientState->ref_);
    node_->as<ConvolutionFamily>().sized_by_state = true;
  }
  return self;
}
- (MPSCNNConvolutionGradientStateNode*)convolutionGradientState {
  spring(Trap::init_unavailable, HERE);
}
@end

@implementation MPSCNNConvolutionGradientNode
NODE_STYLE
@end
@implementation MPSCNNFullyConnectedGradientNode
@end
@implementation MPSCNNConvolutionTransposeGradientNode
@end
