// Nodes of activations: fifteen classes, one descriptor.
#include "graph.hpp"

using namespace emulated_metal;

namespace {

struct NeuronFamily : FamilyOf<NeuronFamily> {
  Strong<MPSNNNeuronDescriptor*> descriptor;

  Class gradient_node() const override { return [MPSCNNNeuronGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSCNNNeuron alloc] initWithDevice:device
                                neuronDescriptor:descriptor.get()] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return [[[MPSCNNNeuronGradient alloc] initWithDevice:device
                                        neuronDescriptor:descriptor.get()] autorelease];
  }
};

std::shared_ptr<Family> family(MPSNNNeuronDescriptor* descriptor) {
  auto family = std::make_shared<NeuronFamily>();
  family->descriptor = adopt<MPSNNNeuronDescriptor*>([descriptor copy]);
  return family;
}
std::shared_ptr<Family> family(MPSCNNNeuronType type, float a, float b, float c) {
  return family([MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:type a:a b:b c:c]);
}

Class class_for(MPSCNNNeuronType type, const Where& where) {
  switch (type) {
    case MPSCNNNeuronTypeReLU:
      return [MPSCNNNeuronReLUNode class];
    case MPSCNNNeuronTypeLinear:
      return [MPSCNNNeuronLinearNode class];
    case MPSCNNNeuronTypeSigmoid:
      return [MPSCNNNeuronSigmoidNode class];
    case MPSCNNNeuronTypeHardSigmoid:
      return [MPSCNNNeuronHardSigmoidNode class];
    case MPSCNNNeuronTypeTanH:
      return [MPSCNNNeuronTanHNode class];
    case MPSCNNNeuronTypeAbsolute:
      return [MPSCNNNeuronAbsoluteNode class];
    case MPSCNNNeuronTypeSoftPlus:
      return [MPSCNNNeuronSoftPlusNode class];
    case MPSCNNNeuronTypeSoftSign:
      return [MPSCNNNeuronSoftSignNode class];
    case MPSCNNNeuronTypeELU:
      return [MPSCNNNeuronELUNode class];
    case MPSCNNNeuronTypePReLU:
      return [MPSCNNNeuronPReLUNode class];
    case MPSCNNNeuronTypeReLUN:
      return [MPSCNNNeuronReLUNNode class];
    case MPSCNNNeuronTypePower:
      return [MPSCNNNeuronPowerNode class];
    case MPSCNNNeuronTypeExponential:
      return [MPSCNNNeuronExponentialNode class];
    case MPSCNNNeuronTypeLogarithm:
      return [MPSCNNNeuronLogarithmNode class];
    case MPSCNNNeuronTypeGeLU:
      return [MPSCNNNeuronGeLUNode class];
    default:
      spring(Trap::neuron_type, where, "%d", static_cast<int>(type));
  }
}

}  // namespace

@implementation MPSCNNNeuronNode
+ (instancetype)nodeWithSource:(MPSNNImageNode*)sourceNode
                    descriptor:(MPSNNNeuronDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");
  const Class node = class_for([descriptor neuronType], HERE);
  return [[[node alloc] emulatedInitWithFamily:family(descriptor)
                                       sources:single(sourceNode)
                                         where:HERE] autorelease];
}
- (float)a {
  return [node_->as<NeuronFamily>().descriptor.get() a];
}
- (float)b {
  return [node_->as<NeuronFamily>().descriptor.get() b];
}
- (float)c {
  return [node_->as<NeuronFamily>().descriptor.get() c];
}
@end

#define INIT(type, pa, pb, pc)                                            \
  [self emulatedInitWithFamily:family(MPSCNNNeuronType##type, pa, pb, pc) \
                       sources:single(sourceNode)                         \
                         where:HERE]
#define SHORT_FORM(type, pa, pb, pc)                            \
  -(instancetype)initWithSource : (MPSNNImageNode*)sourceNode { \
    return INIT(type, pa, pb, pc);                              \
  }
#define NEURON_NODE(type)      \
  @implementation MPSCNNNeuron \
  ##type##Node SHORT_FORM(type, 0, 0, 0) @end
#define NEURON_NODE_A(type, da)                                          \
  @implementation MPSCNNNeuron                                           \
  ##type##Node SHORT_FORM(type, da, 0, 0) - (instancetype)initWithSource \
      : (MPSNNImageNode*)sourceNode a : (float)a {                       \
    return INIT(type, a, 0, 0);                                          \
  }                                                                      \
  @end
#define NEURON_NODE_AB(type, da, db)                                      \
  @implementation MPSCNNNeuron                                            \
  ##type##Node SHORT_FORM(type, da, db, 0) - (instancetype)initWithSource \
      : (MPSNNImageNode*)sourceNode a : (float)a b : (float)b {           \
    return INIT(type, a, b, 0);                                           \
  }                                                                       \
  @end
#define NEURON_NODE_ABC(type, da, db, dc)                                    \
  @implementation MPSCNNNeuron                                               \
  ##type##Node SHORT_FORM(type, da, db, dc) - (instancetype)initWithSource   \
      : (MPSNNImageNode*)sourceNode a : (float)a b : (float)b c : (float)c { \
    return INIT(type, a, b, c);                                              \
  }                                                                          \
  @end

NEURON_NODE(Absolute)
NEURON_NODE(Sigmoid)
NEURON_NODE(SoftSign)
NEURON_NODE(GeLU)
NEURON_NODE_A(ELU, 1)
NEURON_NODE_A(ReLU, 0)
NEURON_NODE_AB(ReLUN, 1, 6)
NEURON_NODE_AB(Linear, 1, 0)
NEURON_NODE_AB(HardSigmoid, 0.2F, 0.5F)
NEURON_NODE_AB(SoftPlus, 1, 1)
NEURON_NODE_AB(TanH, 1, 1)
NEURON_NODE_ABC(Power, 1, 0, 1)
NEURON_NODE_ABC(Exponential, 1, 0, -1)
NEURON_NODE_ABC(Logarithm, 1, 0, -1)

@implementation MPSCNNNeuronPReLUNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  (void)sourceNode;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode aData:(NSData*)aData {
  REQUIRE(aData != nil, nil_argument, HERE, "aData");
  return [self
      emulatedInitWithFamily:family([MPSNNNeuronDescriptor cnnNeuronPReLUDescriptorWithData:aData
                                                                                     noCopy:false])
                     sources:single(sourceNode)
                       where:HERE];
}
@end

@implementation MPSCNNNeuronGradientNode
- (MPSNNNeuronDescriptor*)descriptor {
  return node_->as<NeuronFamily>().descriptor.get();
}
@end
