// Activations, their gradient, and the descriptor.
#include <cmath>
#include <cstring>

#include "internal.hpp"
#include "neuron.hpp"

using namespace emulated_metal;

namespace emulated_metal {

float NeuronFunction::value(float x, long channel) const {
  const float slope = slope_at(channel);
  switch (type) {
    case MPSCNNNeuronTypeNone:
      return x;
    case MPSCNNNeuronTypeReLU:
    case MPSCNNNeuronTypePReLU:
      return x >= 0 ? x : slope * x;
    case MPSCNNNeuronTypeLinear:
      return a * x + b;
    case MPSCNNNeuronTypeSigmoid:
      return 1.0F / (1.0F + std::exp(-x));
    case MPSCNNNeuronTypeHardSigmoid:
      return std::fmin(std::fmax(a * x + b, 0.0F), 1.0F);
    case MPSCNNNeuronTypeTanH:
      return a * std::tanh(b * x);
    case MPSCNNNeuronTypeAbsolute:
      return std::fabs(x);
    case MPSCNNNeuronTypeSoftPlus: {
      const float z = b * x;
      return a * (std::fmax(z, 0.0F) + std::log1p(std::exp(-std::fabs(z))));
    }
    case MPSCNNNeuronTypeSoftSign:
      return x / (1.0F + std::fabs(x));
    case MPSCNNNeuronTypeELU:
      return x >= 0 ? x : a * std::expm1(x);
    case MPSCNNNeuronTypeReLUN:
      return std::fmin(x >= 0 ? x : a * x, b);
    case MPSCNNNeuronTypePower:
      return std::pow(a * x + b, c);
    case MPSCNNNeuronTypeExponential:
      return c == -1.0F ? std::exp(a * x + b) : std::pow(c, a * x + b);
    case MPSCNNNeuronTypeLogarithm:
      return c == -1.0F ? std::log(a * x + b) : std::log(a * x + b) / std::log(c);
    case MPSCNNNeuronTypeGeLU:
      return 0.5F * x * (1.0F + std::erf(x * std::sqrt(0.5F)));
    default:
      return NAN;
  }
}

float NeuronFunction::derivative(float x, long channel) const {
  const float slope = slope_at(channel);
  switch (type) {
    case MPSCNNNeuronTypeNone:
      return 1.0F;
    case MPSCNNNeuronTypeReLU:
    case MPSCNNNeuronTypePReLU:
      return x >= 0 ? 1.0F : slope;
    case MPSCNNNeuronTypeLinear:
      return a;
    case MPSCNNNeuronTypeSigmoid: {
      const float e = std::exp(-std::fabs(x));
      return e / ((1.0F + e) * (1.0F + e));
    }
    case MPSCNNNeuronTypeHardSigmoid: {
      const float line = a * x + b;
      return line >= 0.0F && line <= 1.0F ? a : 0.0F;
    }
    case MPSCNNNeuronTypeTanH: {
      const float t = std::tanh(b * x);
      return a * b * (1.0F - t) * (1.0F + t);
    }
    case MPSCNNNeuronTypeAbsolute:
      return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F;
    case MPSCNNNeuronTypeSoftPlus:
      return a * b / (1.0F + std::exp(-b * x));
    case MPSCNNNeuronTypeSoftSign:
      return 1.0F / ((1.0F + std::fabs(x)) * (1.0F + std::fabs(x)));
    case MPSCNNNeuronTypeELU:
      return x >= 0 ? 1.0F : a * std::exp(x);
    case MPSCNNNeuronTypeReLUN:
      return (x >= 0 ? x : a * x) >= b ? 0.0F : x >= 0 ? 1.0F : a;
    case MPSCNNNeuronTypePower:
      return a * c * std::pow(a * x + b, c - 1.0F);
    case MPSCNNNeuronTypeExponential: {
      const float base = c == -1.0F ? 1.0F : std::log(c);
      return a * base * value(x, channel);
    }
    case MPSCNNNeuronTypeLogarithm: {
      const float base = c == -1.0F ? 1.0F : std::log(c);
      return a / (base * (a * x + b));
    }
    case MPSCNNNeuronTypeGeLU: {
      constexpr float kRoot = 0.7978845608F;  // sqrt(2 / pi)
      return 0.5F * (1.0F + std::erf(x * std::sqrt(0.5F)) + kRoot * x * std::exp(-x * x / 2.0F));
    }
    default:
      return NAN;
  }
}

NeuronFunction neuron_function(MPSNNNeuronDescriptor* descriptor, const Where& where) {
  REQUIRE(descriptor != nil, nil_argument, where, "neuronDescriptor");
  NeuronFunction f;
  f.type = [descriptor neuronType];
  REQUIRE(f.type >= MPSCNNNeuronTypeNone && f.type < MPSCNNNeuronTypeCount, neuron_type, where,
          "%d", static_cast<int>(f.type));
  f.a = [descriptor a];
  f.b = [descriptor b];
  f.c = [descriptor c];
  if (f.type == MPSCNNNeuronTypePReLU) {
    NSData* data = [descriptor data];
    REQUIRE(data != nil && [data length] >= sizeof(float), neuron_data, where);
    f.data.resize([data length] / sizeof(float));
    std::memcpy(f.data.data(), [data bytes], f.data.size() * sizeof(float));
  }
  return f;
}

void NeuronFunction::check_channels(long channels, const Where& where) const {
  REQUIRE(type != MPSCNNNeuronTypePReLU || static_cast<long>(data.size()) >= channels, neuron_data,
          where, "%lu values for %ld channels", static_cast<unsigned long>(data.size()), channels);
}

void NeuronFunction::fields(Fields& f) {
  f("neuron.type", type);
  f("neuron.a", a);
  f("neuron.b", b);
  f("neuron.c", c);
  f.floats("neuron.data", data);
}

namespace {
struct NeuronParams : ParamsOf<NeuronParams> {
  NeuronFunction function;
  void fields(Fields& f) override { function.fields(f); }
};

NSData* as_data(const std::vector<float>& values) {
  if (values.empty()) return nil;
  return [NSData dataWithBytes:values.data() length:values.size() * sizeof(float)];
}
}  // namespace
}  // namespace emulated_metal

@implementation MPSNNNeuronDescriptor
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType {
  float a = 0, b = 0, c = 0;
  switch (neuronType) {
    case MPSCNNNeuronTypeLinear:
      a = 1;
      break;
    case MPSCNNNeuronTypeHardSigmoid:
      a = 0.2F, b = 0.5F;
      break;
    case MPSCNNNeuronTypeTanH:
    case MPSCNNNeuronTypeSoftPlus:
      a = 1, b = 1;
      break;
    case MPSCNNNeuronTypeELU:
      a = 1;
      break;
    case MPSCNNNeuronTypeReLUN:
      a = 1, b = 6;
      break;
    case MPSCNNNeuronTypePower:
      a = 1, c = 1;
      break;
    case MPSCNNNeuronTypeExponential:
    case MPSCNNNeuronTypeLogarithm:
      a = 1, c = -1;
      break;
    default:
      break;
  }
  return [self cnnNeuronDescriptorWithType:neuronType a:a b:b c:c];
}
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType a:(float)a {
  MPSNNNeuronDescriptor* descriptor = [self cnnNeuronDescriptorWithType:neuronType];
  descriptor->a_ = a;
  return descriptor;
}
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType
                                                    a:(float)a
                                                    b:(float)b {
  MPSNNNeuronDescriptor* descriptor = [self cnnNeuronDescriptorWithType:neuronType a:a];
  descriptor->b_ = b;
  return descriptor;
}
+ (MPSNNNeuronDescriptor*)cnnNeuronDescriptorWithType:(MPSCNNNeuronType)neuronType
                                                    a:(float)a
                                                    b:(float)b
                                                    c:(float)c {
  REQUIRE(neuronType >= MPSCNNNeuronTypeNone && neuronType < MPSCNNNeuronTypeCount, neuron_type,
          HERE, "%d", static_cast<int>(neuronType));
  MPSNNNeuronDescriptor* descriptor = [[[MPSNNNeuronDescriptor alloc] emulatedInit] autorelease];
  descriptor->type_ = neuronType;
  descriptor->a_ = a;
  descriptor->b_ = b;
  descriptor->c_ = c;
  return descriptor;
}
+ (MPSNNNeuronDescriptor*)cnnNeuronPReLUDescriptorWithData:(NSData*)data noCopy:(bool)noCopy {
  (void)noCopy;
  REQUIRE(data != nil, nil_argument, HERE, "data");
  MPSNNNeuronDescriptor* descriptor = [self cnnNeuronDescriptorWithType:MPSCNNNeuronTypePReLU];
  [descriptor setData:data];
  return descriptor;
}
- (instancetype)emulatedInit {
  return [super init];
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (void)dealloc {
  [data_ release];
  [super dealloc];
}
- (id)copyWithZone:(NSZone*)zone {
  MPSNNNeuronDescriptor* copy = [[[self class] allocWithZone:zone] emulatedInit];
  copy->type_ = type_;
  copy->a_ = a_;
  copy->b_ = b_;
  copy->c_ = c_;
  copy->data_ = [data_ retain];
  return copy;
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  [coder encodeInt64:type_ forKey:@"type"];
  [coder encodeFloat:a_ forKey:@"a"];
  [coder encodeFloat:b_ forKey:@"b"];
  [coder encodeFloat:c_ forKey:@"c"];
  [coder encodeObject:data_ forKey:@"data"];
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  self = [self emulatedInit];
  type_ = static_cast<MPSCNNNeuronType>([coder decodeInt64ForKey:@"type"]);
  a_ = [coder decodeFloatForKey:@"a"];
  b_ = [coder decodeFloatForKey:@"b"];
  c_ = [coder decodeFloatForKey:@"c"];
  data_ = [[coder decodeObjectForKey:@"data"] retain];
  return self;
}
- (MPSCNNNeuronType)neuronType {
  return type_;
}
- (void)setNeuronType:(MPSCNNNeuronType)type {
  type_ = type;
}
- (float)a {
  return a_;
}
- (void)setA:(float)a {
  a_ = a;
}
- (float)b {
  return b_;
}
- (void)setB:(float)b {
  b_ = b;
}
- (float)c {
  return c_;
}
- (void)setC:(float)c {
  c_ = c;
}
- (NSData*)data {
  return data_;
}
- (void)setData:(NSData*)data {
  NSData* old = data_;
  data_ = [data retain];
  [old release];
}
@end

#define NEURON_ACCESSORS                                                             \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<NeuronParams>();                                         \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(MPSCNNNeuronType)neuronType {                                                    \
    return body_->as<NeuronParams>().function.type;                                  \
  }                                                                                  \
  -(float)a {                                                                        \
    return body_->as<NeuronParams>().function.a;                                     \
  }                                                                                  \
  -(float)b {                                                                        \
    return body_->as<NeuronParams>().function.b;                                     \
  }                                                                                  \
  -(float)c {                                                                        \
    return body_->as<NeuronParams>().function.c;                                     \
  }                                                                                  \
  -(NSData*)data {                                                                   \
    return as_data(body_->as<NeuronParams>().function.data);                         \
  }

@implementation MPSCNNNeuron
NEURON_ACCESSORS
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
              neuronDescriptor:(MPSNNNeuronDescriptor*)neuronDescriptor {
  self = [super initWithDevice:device];
  auto params = std::make_shared<NeuronParams>();
  params->function = neuron_function(neuronDescriptor, HERE);
  body_->params = params;
  return self;
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  const Operand& operand = body_->sources[0];
  const NSUInteger channels = [[call.sources[0] objectAtIndex:0] featureChannels];
  body_->as<NeuronParams>().function.check_channels(
      static_cast<long>(std::min(operand.channel_max, channels - operand.channel_offset)), where);
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [f = body_->as<NeuronParams>().function, s = body_->sources[0]](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = f.value(fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge), k);
        }
      }
    }
  };
}
@end

@implementation MPSCNNNeuronGradient
NEURON_ACCESSORS
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
              neuronDescriptor:(MPSNNNeuronDescriptor*)neuronDescriptor {
  self = [super initWithDevice:device];
  auto params = std::make_shared<NeuronParams>();
  params->function = neuron_function(neuronDescriptor, HERE);
  body_->params = params;
  return self;
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSCNNNeuron class]];
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  [super emulatedCheckGradient:call where:where];
  const NSUInteger channels = [[call.sources[0] objectAtIndex:0] featureChannels];
  const Operand& operand = body_->sources[0];
  body_->as<NeuronParams>().function.check_channels(
      static_cast<long>(std::min(operand.channel_max, channels - operand.channel_offset)), where);
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [f = body_->as<NeuronParams>().function, g = body_->sources[0], s = body_->sources[1]](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const float incoming = fetch(in[0], y + g.offset.y, x + g.offset.x, k, g.edge);
          const float source = fetch(in[1], y + s.offset.y, x + s.offset.x, k, s.edge);
          out.at(y, x, k) = incoming * f.derivative(source, k);
        }
      }
    }
  };
}
@end

// ---- the older constructors, one class for each type

#define NEURON_CLASS(name, neuron)                                                            \
  @implementation MPSCNNNeuron                                                                \
  ##name - (instancetype)initWithDevice : (id<MTLDevice>)device {                             \
    return [super initWithDevice:device                                                       \
                neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:neuron]]; \
  }                                                                                           \
  @end
#define NO_PLAIN_INIT                                     \
  -(instancetype)initWithDevice : (id<MTLDevice>)device { \
    (void)device;                                         \
    spring(Trap::init_unavailable, HERE);                 \
  }
#define NEURON_CLASS_A(name, neuron)                                                              \
  @implementation MPSCNNNeuron                                                                    \
  ##name NO_PLAIN_INIT - (instancetype)initWithDevice : (id<MTLDevice>)device a : (float)a {      \
    return [super initWithDevice:device                                                           \
                neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:neuron a:a]]; \
  }                                                                                               \
  @end
#define NEURON_CLASS_AB(name, neuron)                                                        \
  @implementation MPSCNNNeuron                                                               \
  ##name NO_PLAIN_INIT - (instancetype)initWithDevice : (id<MTLDevice>)device a : (float)a b \
      : (float)b {                                                                           \
    return [super initWithDevice:device                                                      \
                neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:neuron   \
                                                                                  a:a        \
                                                                                  b:b]];     \
  }                                                                                          \
  @end
#define NEURON_CLASS_ABC(name, neuron)                                                       \
  @implementation MPSCNNNeuron                                                               \
  ##name NO_PLAIN_INIT - (instancetype)initWithDevice : (id<MTLDevice>)device a : (float)a b \
      : (float)b c : (float)c {                                                              \
    return [super initWithDevice:device                                                      \
                neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:neuron   \
                                                                                  a:a        \
                                                                                  b:b        \
                                                                                  c:c]];     \
  }                                                                                          \
  @end

NEURON_CLASS(Sigmoid, MPSCNNNeuronTypeSigmoid)
NEURON_CLASS(Absolute, MPSCNNNeuronTypeAbsolute)
NEURON_CLASS(SoftSign, MPSCNNNeuronTypeSoftSign)
NEURON_CLASS_A(ReLU, MPSCNNNeuronTypeReLU)
NEURON_CLASS_A(ELU, MPSCNNNeuronTypeELU)
NEURON_CLASS_AB(Linear, MPSCNNNeuronTypeLinear)
NEURON_CLASS_AB(HardSigmoid, MPSCNNNeuronTypeHardSigmoid)
NEURON_CLASS_AB(TanH, MPSCNNNeuronTypeTanH)
NEURON_CLASS_AB(SoftPlus, MPSCNNNeuronTypeSoftPlus)
NEURON_CLASS_AB(ReLUN, MPSCNNNeuronTypeReLUN)
NEURON_CLASS_ABC(Power, MPSCNNNeuronTypePower)
NEURON_CLASS_ABC(Exponential, MPSCNNNeuronTypeExponential)
NEURON_CLASS_ABC(Logarithm, MPSCNNNeuronTypeLogarithm)

@implementation MPSCNNNeuronPReLU
NO_PLAIN_INIT
- (instancetype)initWithDevice:(id<MTLDevice>)device a:(const float*)a count:(NSUInteger)count {
  REQUIRE(a != nullptr, nil_argument, HERE, "a");
  NSData* data = [NSData dataWithBytes:a length:count * sizeof(float)];
  return [super initWithDevice:device
              neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronPReLUDescriptorWithData:data
                                                                                noCopy:false]];
}
@end
