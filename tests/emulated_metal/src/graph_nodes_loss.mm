// Nodes of losses: with labels in a state, with labels in an image, and the gradient of ones.
#include "graph.hpp"

using namespace emulated_metal;

namespace {

// The result is the gradient already.
template <class Kernel, class Descriptor>
struct LossFamily : FamilyOf<LossFamily<Kernel, Descriptor>> {
  Strong<Descriptor*> descriptor;

  Class state_node() const override { return Nil; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[Kernel alloc] initWithDevice:device lossDescriptor:descriptor.get()] autorelease];
  }
  void encode_forward(Step& step) const override {
    step.result = [step.kernel<Kernel>()
        encodeBatchToCommandBuffer:step.buffer
                      sourceImages:step.images[0]
                            labels:static_cast<MPSCNNLossLabelsBatch*>(step.states[0])];
  }
};

struct ForwardLossFamily : FamilyOf<ForwardLossFamily> {
  Strong<MPSCNNLossDescriptor*> descriptor;
  Strong<id<MPSNNLossCallback>> callback;

  Class gradient_node() const override { return [MPSNNLossGradientNode class]; }
  std::vector<size_t> slots(const FilterBody& forward) const override {
    (void)forward;
    return {1, 0};  // labels first
  }
  std::vector<ImageRef> gradient_images(const std::shared_ptr<FilterBody>& forward,
                                        size_t slot) const override {
    (void)slot;
    return forward->images;
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSNNForwardLoss alloc] initWithDevice:device
                                      lossDescriptor:descriptor.get()] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    MPSNNLossGradient* kernel =
        [[[MPSNNLossGradient alloc] initWithDevice:device
                                    lossDescriptor:descriptor.get()] autorelease];
    [kernel setComputeLabelGradients:slot == 1];
    return kernel;
  }
  void encode_forward(Step& step) const override {
    auto* kernel = step.kernel<MPSNNForwardLoss>();
    results_for(kernel, step);
    if (callback) {
      [kernel setWeight:[callback.get() scalarWeightForSourceImage:[step.images[0] objectAtIndex:0]
                                                  destinationImage:[step.result objectAtIndex:0]]];
    }
    if (step.writes_state) make_states(kernel, step);
    [kernel encodeBatchToCommandBuffer:step.buffer
                          sourceImages:step.images[0]
                                labels:step.images[1]
                               weights:step.images.size() > 2 ? step.images[2] : nil
                     destinationStates:step.state
                     destinationImages:step.result];
    keep(step.state, step.state_reads);
  }
  void encode_gradient(Step& step) const override {
    step.result = [step.kernel<MPSNNLossGradient>()
        encodeBatchToCommandBuffer:step.buffer
                   sourceGradients:step.images[0]
                      sourceImages:step.images[1]
                            labels:step.images[2]
                           weights:step.images.size() > 3 ? step.images[3] : nil
                      sourceStates:step.states[0]];
  }
};

struct InitialGradientFamily : FamilyOf<InitialGradientFamily> {
  Class state_node() const override { return Nil; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSNNInitialGradient alloc] initWithDevice:device] autorelease];
  }
};

template <class F, class Descriptor>
std::shared_ptr<Family> family(Descriptor* descriptor, const Where& where) {
  REQUIRE(descriptor != nil, nil_argument, where, "lossDescriptor");
  auto family = std::make_shared<F>();
  family->descriptor = adopt<Descriptor*>([descriptor copy]);
  return family;
}

}  // namespace

#define LABELLED(kernel, descriptor_class)                                                    \
  -(instancetype)initWithSource : (MPSNNImageNode*)source lossDescriptor                      \
      : (descriptor_class*)descriptor {                                                       \
    self = [self                                                                              \
        emulatedInitWithFamily:family<LossFamily<kernel, descriptor_class>>(descriptor, HERE) \
                       sources:single(source)                                                 \
                         where:HERE];                                                         \
    [self emulatedAddLabels];                                                                 \
    return self;                                                                              \
  }                                                                                           \
  -(MPSNNLabelsNode*)inputLabels {                                                            \
    return node_->labels.get();                                                               \
  }

@implementation MPSCNNLossNode
LABELLED(MPSCNNLoss, MPSCNNLossDescriptor)
@end

@implementation MPSCNNYOLOLossNode
LABELLED(MPSCNNYOLOLoss, MPSCNNYOLOLossDescriptor)
@end

#define DESCRIBED(type, getter)                                      \
  -(type)getter {                                                    \
    return [node_->as<ForwardLossFamily>().descriptor.get() getter]; \
  }
#define LOSS_PROPERTIES                                          \
  DESCRIBED(MPSCNNLossType, lossType)                            \
  DESCRIBED(MPSCNNReductionType, reductionType)                  \
  DESCRIBED(NSUInteger, numberOfClasses)                         \
  DESCRIBED(BOOL, reduceAcrossBatch)                             \
  DESCRIBED(float, weight)                                       \
  DESCRIBED(float, labelSmoothing)                               \
  DESCRIBED(float, epsilon)                                      \
  DESCRIBED(float, delta)                                        \
  -(id<MPSNNLossCallback>)propertyCallBack {                     \
    return node_->as<ForwardLossFamily>().callback.get();        \
  }                                                              \
  -(void)setPropertyCallBack : (id<MPSNNLossCallback>)callback { \
    node_->as<ForwardLossFamily>().callback = callback;          \
  }

@implementation MPSNNForwardLossNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                        labels:(MPSNNImageNode*)labels
                       weights:(MPSNNImageNode*)weights
                lossDescriptor:(MPSCNNLossDescriptor*)descriptor {
  REQUIRE(source != nil && labels != nil, nil_argument, HERE, "source or labels");
  return [self initWithSources:weights == nil ? @[ source, labels ] : @[ source, labels, weights ]
                lossDescriptor:descriptor];
}
- (instancetype)initWithSource:(MPSNNImageNode*)source
                        labels:(MPSNNImageNode*)labels
                lossDescriptor:(MPSCNNLossDescriptor*)descriptor {
  return [self initWithSource:source labels:labels weights:nil lossDescriptor:descriptor];
}
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes
                 lossDescriptor:(MPSCNNLossDescriptor*)descriptor {
  REQUIRE([sourceNodes count] == 2 || [sourceNodes count] == 3, node_source_count, HERE, "%lu",
          static_cast<unsigned long>([sourceNodes count]));
  return [self emulatedInitWithFamily:family<ForwardLossFamily>(descriptor, HERE)
                              sources:sourceNodes
                                where:HERE];
}
LOSS_PROPERTIES
// The one that names a single node: of the predictions.
- (MPSNNLossGradientNode*)emulatedPredictions:(NSArray*)nodes {
  return [nodes objectAtIndex:[[nodes objectAtIndex:0] isLabelsGradientFilter] ? 1 : 0];
}
- (MPSNNLossGradientNode*)gradientFilterWithSource:(MPSNNImageNode*)sourceGradient {
  return [self emulatedPredictions:[self gradientFiltersWithSource:sourceGradient]];
}
- (MPSNNLossGradientNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)sourceGradient {
  return [self emulatedPredictions:[self gradientFiltersWithSources:sourceGradient]];
}
@end

@implementation MPSNNLossGradientNode
LOSS_PROPERTIES
- (BOOL)isLabelsGradientFilter {
  return node_->body->slot == 1;
}
@end

@implementation MPSNNInitialGradientNode
- (instancetype)initWithSource:(MPSNNImageNode*)source {
  return [self emulatedInitWithFamily:std::make_shared<InitialGradientFamily>()
                              sources:single(source)
                                where:HERE];
}
@end
