// Convolution descriptors, data sources, and the states that carry weights or their gradients.
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>

#include "convolution.hpp"

#import <Foundation/NSThread.h>

using namespace emulated_metal;

@implementation MPSCNNConvolutionDescriptor
+ (instancetype)cnnConvolutionDescriptorWithKernelWidth:(NSUInteger)kernelWidth
                                           kernelHeight:(NSUInteger)kernelHeight
                                   inputFeatureChannels:(NSUInteger)inputFeatureChannels
                                  outputFeatureChannels:(NSUInteger)outputFeatureChannels {
  MPSCNNConvolutionDescriptor* descriptor = [[[self alloc] init] autorelease];
  ConvolutionDescriptorBody& body = *descriptor->body_;
  body.kernel_x = kernelWidth;
  body.kernel_y = kernelHeight;
  body.in = inputFeatureChannels;
  body.out = outputFeatureChannels;
  return descriptor;
}
- (instancetype)init {
  self = [super init];
  body_ = new ConvolutionDescriptorBody;
  body_->neuron = [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeNone];
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (id)copyWithZone:(NSZone*)zone {
  MPSCNNConvolutionDescriptor* copy = [[[self class] allocWithZone:zone] init];
  *copy->body_ = *body_;
  copy->body_->neuron = adopt<MPSNNNeuronDescriptor*>([body_->neuron.get() copy]);
  return copy;
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)fields:(Fields&)f {
  ConvolutionDescriptorBody& b = *body_;
  f("kernel_x", b.kernel_x);
  f("kernel_y", b.kernel_y);
  f("in", b.in);
  f("out", b.out);
  f("stride_x", b.stride_x);
  f("stride_y", b.stride_y);
  f("groups", b.groups);
  f("dilation_x", b.dilation_x);
  f("dilation_y", b.dilation_y);
  f("sub_pixel", b.sub_pixel);
  f("depthwise", b.depthwise);
  f.floats("scale", b.scale);
  f.floats("shift", b.shift);
  id neuron = b.neuron.get();
  f.object("neuron", neuron);
  b.neuron = neuron;
}
- (void)encodeWithCoder:(NSCoder*)aCoder {
  REQUIRE(aCoder != nil, nil_argument, HERE, "coder");
  Fields f(Fields::Mode::encode, aCoder);
  [self fields:f];
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder {
  REQUIRE(aDecoder != nil, nil_argument, HERE, "coder");
  self = [self init];
  Fields f(Fields::Mode::decode, aDecoder);
  [self fields:f];
  return self;
}
#define FIELD(getter, setter, member) \
  -(NSUInteger)getter {               \
    return body_->member;             \
  }                                   \
  -(void)setter : (NSUInteger)value { \
    body_->member = value;            \
  }
FIELD(kernelWidth, setKernelWidth, kernel_x)
FIELD(kernelHeight, setKernelHeight, kernel_y)
FIELD(inputFeatureChannels, setInputFeatureChannels, in)
FIELD(outputFeatureChannels, setOutputFeatureChannels, out)
FIELD(strideInPixelsX, setStrideInPixelsX, stride_x)
FIELD(strideInPixelsY, setStrideInPixelsY, stride_y)
FIELD(groups, setGroups, groups)
FIELD(dilationRateX, setDilationRateX, dilation_x)
FIELD(dilationRateY, setDilationRateY, dilation_y)
- (MPSNNNeuronDescriptor*)fusedNeuronDescriptor {
  return body_->neuron.get();
}
- (void)setFusedNeuronDescriptor:(MPSNNNeuronDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "fusedNeuronDescriptor");
  body_->neuron = descriptor;
}
- (void)setBatchNormalizationParametersForInferenceWithMean:(const float*)mean
                                                   variance:(const float*)variance
                                                      gamma:(const float*)gamma
                                                       beta:(const float*)beta
                                                    epsilon:(const float)epsilon {
  body_->scale.clear();
  body_->shift.clear();
  if (mean == nullptr && variance == nullptr && gamma == nullptr && beta == nullptr) return;
  for (NSUInteger o = 0; o < body_->out; ++o) {
    const float scale = (gamma != nullptr ? gamma[o] : 1.0F) /
                        std::sqrt((variance != nullptr ? variance[o] : 1.0F) + epsilon);
    body_->scale.push_back(scale);
    body_->shift.push_back((beta != nullptr ? beta[o] : 0.0F) -
                           scale * (mean != nullptr ? mean[o] : 0.0F));
  }
}
@end

@implementation MPSCNNSubPixelConvolutionDescriptor
FIELD(subPixelScaleFactor, setSubPixelScaleFactor, sub_pixel)
@end

@implementation MPSCNNDepthWiseConvolutionDescriptor
- (instancetype)init {
  self = [super init];
  body_->depthwise = true;
  return self;
}
- (NSUInteger)channelMultiplier {
  return body_->in == 0 ? 0 : body_->out / body_->in;
}
@end

// ---------------------------------------------------------------- reading a data source

namespace emulated_metal {

namespace {

Geometry geometry_of(MPSCNNConvolutionDescriptor* descriptor, bool transpose, const Where& where) {
  REQUIRE(descriptor != nil, data_source, where, "descriptor is nil");
  const ConvolutionDescriptorBody& d = *descriptor->body_;
  REQUIRE(d.kernel_x > 0 && d.kernel_y > 0 && d.in > 0 && d.out > 0 && d.stride_x > 0 &&
              d.stride_y > 0 && d.dilation_x > 0 && d.dilation_y > 0 && d.groups > 0 &&
              d.sub_pixel > 0,
          convolution_descriptor, where, "a size is 0");
  REQUIRE(d.in % d.groups == 0 && d.out % d.groups == 0, convolution_descriptor, where,
          "%lu groups for %lu and %lu channels", static_cast<unsigned long>(d.groups),
          static_cast<unsigned long>(d.in), static_cast<unsigned long>(d.out));
  REQUIRE(d.groups == 1 || (d.in / d.groups % 4 == 0 && d.out / d.groups % 4 == 0),
          convolution_descriptor, where, "groups of %lu and %lu channels, not multiples of 4",
          static_cast<unsigned long>(d.in / d.groups),
          static_cast<unsigned long>(d.out / d.groups));
  REQUIRE(!d.depthwise || (d.groups == 1 && d.in == d.out), convolution_descriptor, where,
          "depthwise with groups or a channel multiplier");
  const NSUInteger square = d.sub_pixel * d.sub_pixel;
  REQUIRE(d.out % square == 0 && (d.groups == 1 || d.out / square % 4 == 0), convolution_descriptor,
          where, "sub-pixel factor");
  REQUIRE(!transpose || (d.dilation_x == 1 && d.dilation_y == 1 && !d.depthwise && square == 1),
          convolution_descriptor, where, "not supported by a transposed convolution");
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  return {l(d.kernel_x), l(d.kernel_y),  l(d.in),    l(d.out),
          l(d.groups),   l(d.sub_pixel), d.depthwise};
}

float half(float value) { return static_cast<float>(static_cast<_Float16>(value)); }

std::vector<float> decoded_weights(id<MPSCNNConvolutionDataSource> source, const Geometry& g,
                                   const Where& where) {
  const void* raw = [source weights];
  REQUIRE(raw != nullptr, data_source, where, "weights is null");
  const auto count = static_cast<size_t>(g.weight_count());
  std::vector<float> values(count);
  switch ([source dataType]) {
    case MPSDataTypeFloat32:
      std::memcpy(values.data(), raw, count * sizeof(float));
      return values;
    case MPSDataTypeFloat16:
      for (size_t i = 0; i < count; ++i) {
        values[i] = decode(Item::float16, static_cast<const uint8_t*>(raw) + 2 * i);
      }
      return values;
    case MPSDataTypeUInt8:
      break;
    default:
      spring(Trap::weights_precision, where, "data type 0x%x",
             static_cast<unsigned>([source dataType]));
  }
  REQUIRE([source respondsToSelector:@selector(weightsQuantizationType)], data_source, where,
          "UInt8 weights without weightsQuantizationType");
  const MPSCNNWeightsQuantizationType kind = [source weightsQuantizationType];
  const auto* bytes = static_cast<const uint8_t*>(raw);
  const size_t per_output = count / static_cast<size_t>(g.out);
  if (kind == MPSCNNWeightsQuantizationTypeLinear) {
    REQUIRE([source respondsToSelector:@selector(rangesForUInt8Kernel)], data_source, where,
            "linear quantization without rangesForUInt8Kernel");
    const vector_float2* ranges = [source rangesForUInt8Kernel];
    for (size_t i = 0; i < count; ++i) {
      const vector_float2 range = ranges[i / per_output];
      values[i] = static_cast<float>(bytes[i]) / 255.0F * (range.y - range.x) + range.x;
    }
    return values;
  }
  REQUIRE(kind == MPSCNNWeightsQuantizationTypeLookupTable &&
              [source respondsToSelector:@selector(lookupTableForUInt8Kernel)],
          data_source, where, "UInt8 weights without ranges or lookup table");
  const float* table = [source lookupTableForUInt8Kernel];
  for (size_t i = 0; i < count; ++i) values[i] = table[bytes[i]];
  return values;
}

}  // namespace

void call_out(const std::function<void()>& body) {
  if (option("callback_thread") == 0) return body();
  std::exception_ptr failure;
  std::thread([&] {
    GSRegisterCurrentThread();
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
    [pool release];
    GSUnregisterCurrentThread();
  }).join();
  if (failure) std::rethrow_exception(failure);
}

std::string describe(const Geometry& g) {
  return std::to_string(g.out) + "x" + std::to_string(g.ky) + "x" + std::to_string(g.kx) + "x" +
         std::to_string(g.in) + " groups " + std::to_string(g.groups) +
         (g.depthwise ? " depthwise" : "");
}

bool load_source(KernelBody& kernel, id<MPSCNNConvolutionDataSource> source, bool with_weights,
                 bool transpose, const Where& where) {
  REQUIRE(source != nil, nil_argument, where, "weights");
  for (const SEL selector : {
         @selector(dataType), @selector(descriptor), @selector(weights), @selector(biasTerms),
             @selector(load), @selector(purge), @selector(label), @selector(copyWithZone:)
       }) {
    REQUIRE([source respondsToSelector:selector], data_source, where, "it lacks %s",
            sel_getName(selector));
  }
  bool loaded = false;
  call_out([&] {
    loaded = [source load];
    if (!loaded) return;
    auto& p = kernel.as<ConvolutionParams>();
    MPSCNNConvolutionDescriptor* descriptor = [source descriptor];
    p.geometry = geometry_of(descriptor, transpose, where);
    const ConvolutionDescriptorBody& d = *descriptor->body_;
    p.neuron = neuron_function(d.neuron.get(), where);
    p.neuron.check_channels(p.geometry.out, where);
    p.neuron_descriptor = adopt<MPSNNNeuronDescriptor*>([d.neuron.get() copy]);
    p.scale = d.scale;
    p.shift = d.shift;
    REQUIRE(p.scale.empty() || p.scale.size() == d.out, convolution_descriptor, where,
            "batch normalization of another number of channels");
    Operand& operand = kernel.sources.back();
    operand.kernel_x = d.kernel_x;
    operand.kernel_y = d.kernel_y;
    operand.stride_x = d.stride_x;
    operand.stride_y = d.stride_y;
    operand.dilation_x = d.dilation_x;
    operand.dilation_y = d.dilation_y;

    const MPSDataType type = [source dataType];
    REQUIRE(!transpose || type == MPSDataTypeFloat32, weights_precision, where,
            "a transposed convolution takes Float32 weights only");
    MPSDataType computed = MPSDataTypeFloat16;
    if ([source respondsToSelector:@selector(kernelWeightsDataType)]) {
      computed = [source kernelWeightsDataType];
    }
    REQUIRE(computed == MPSDataTypeFloat16 || computed == MPSDataTypeFloat32, weights_precision,
            where, "kernelWeightsDataType 0x%x", static_cast<unsigned>(computed));
    REQUIRE(computed == MPSDataTypeFloat16 || type == MPSDataTypeFloat32, weights_precision, where,
            "Float32 kernel weights from another data type");
    p.half_weights = computed == MPSDataTypeFloat16;
    if (with_weights) {
      const int device = index_of(kernel.device.get(), where);
      auto set = std::make_shared<WeightSet>();
      std::vector<float> values = decoded_weights(source, p.geometry, where);
      const float* biases = [source biasTerms];
      const auto outputs = static_cast<size_t>(p.geometry.out);
      set->weights = std::make_shared<Storage>(device, MTLStorageModePrivate,
                                               values.size() * sizeof(float), uint8_t{0xFF});
      set->biases = std::make_shared<Storage>(device, MTLStorageModePrivate,
                                              outputs * sizeof(float), uint8_t{0xFF});
      set->has_biases = biases != nullptr;
      for (size_t i = 0; i < values.size(); ++i) {
        floats(set->weights)[i] = p.half_weights ? half(values[i]) : values[i];
      }
      for (size_t o = 0; o < outputs; ++o) {
        floats(set->biases)[o] = biases != nullptr ? biases[o] : 0.0F;
      }
      p.weights = set;
    }
    kernel.label = adopt<NSString*>([[source label] copy]);
    [source purge];
  });
  return loaded;
}

std::shared_ptr<Params> ConvolutionParams::clone(NSZone* zone, id<MTLDevice> device) const {
  auto copy = std::make_shared<ConvolutionParams>(*this);
  if (source) {
    const id<MPSCNNConvolutionDataSource> from = source.get();
    if ([from respondsToSelector:@selector(copyWithZone:device:)]) {
      copy->source = adopt<id<MPSCNNConvolutionDataSource>>([from copyWithZone:zone device:device]);
    } else {
      copy->source = adopt<id<MPSCNNConvolutionDataSource>>([from copyWithZone:zone]);
    }
  }
  if (weights) {
    copy->weights = std::make_shared<WeightSet>();
    copy->weights->has_biases = weights->has_biases;
    const Where where{nil, nullptr, "copyWithZone:device:"};
    for (const auto member : {&WeightSet::weights, &WeightSet::biases}) {
      const StoragePtr& old = (*weights).*member;
      auto fresh =
          std::make_shared<Storage>(index_of(device, where), old->mode, old->gpu.size(), old->junk);
      fresh->gpu = old->gpu;
      (*copy->weights).*member = fresh;
    }
  }
  return copy;
}

void ConvolutionParams::fields(Fields& f) {
  f("geometry.kx", geometry.kx);
  f("geometry.ky", geometry.ky);
  f("geometry.in", geometry.in);
  f("geometry.out", geometry.out);
  f("geometry.groups", geometry.groups);
  f("geometry.sub_pixel", geometry.sub_pixel);
  f("geometry.depthwise", geometry.depthwise);
  neuron.fields(f);
  f.floats("scale", scale);
  f.floats("shift", shift);
  f("half_weights", half_weights);
  f("accumulator", accumulator);
  f("option", option);
  f("gradient", gradient);
  if (f.mode() == Fields::Mode::fingerprint) return;
  // The data source where it can be archived, else the weights; a gradient kernel has none.
  id archived = source.get();
  if (f.mode() == Fields::Mode::encode &&
      ![archived respondsToSelector:@selector(encodeWithCoder:)]) {
    archived = nil;
  }
  f.object("source", archived);
  source = archived;
  id descriptor = neuron_descriptor.get();
  f.object("neuron_descriptor", descriptor);
  neuron_descriptor = descriptor;
  if (gradient) return;
  std::vector<float> w, b;
  bool has_biases = weights && weights->has_biases;
  if (f.mode() == Fields::Mode::encode && weights) {
    w.assign(floats(weights->weights), floats(weights->weights) + geometry.weight_count());
    b.assign(floats(weights->biases), floats(weights->biases) + geometry.out);
  }
  f.floats("weights", w);
  f.floats("biases", b);
  f("has_biases", has_biases);
  if (f.mode() == Fields::Mode::decode) {
    weights = std::make_shared<WeightSet>();
    weights->has_biases = has_biases;
    const auto store = [](const std::vector<float>& values) {
      auto storage = std::make_shared<Storage>(0, MTLStorageModePrivate,
                                               values.size() * sizeof(float), uint8_t{0xFF});
      std::memcpy(storage->gpu.data(), values.data(), values.size() * sizeof(float));
      return storage;
    };
    weights->weights = store(w);
    weights->biases = store(b);
  }
}

// ---------------------------------------------------------------- weights on the GPU

namespace {

WeightsPayload& weights_of(MPSState* state, const Where& where) {
  REQUIRE(state != nil, nil_argument, where, "state");
  REQUIRE([state isKindOfClass:[MPSCNNConvolutionWeightsAndBiasesState class]], state_wrong_class,
          where);
  return [static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(state) emulatedWeights];
}

}  // namespace

void reload_from_state(KernelBody& kernel, id<MTLCommandBuffer> command_buffer, MPSState* state,
                       const Where& where) {
  check_encodable(command_buffer, where);
  REQUIRE(index_of(kernel.device.get(), where) == device_of(command_buffer, where),
          different_devices, where);
  auto& p = kernel.as<ConvolutionParams>();
  const WeightsPayload& from = weights_of(state, where);
  check_state(state, command_buffer, true, where);
  const auto count = static_cast<size_t>(p.geometry.weight_count());
  const auto outputs = static_cast<size_t>(p.geometry.out);
  REQUIRE(from.weights_count == count && (!from.biases || from.biases_count == outputs),
          weights_state, where, "%lu weights, expected %lu",
          static_cast<unsigned long>(from.weights_count), static_cast<unsigned long>(count));
  const int device = device_of(command_buffer, where);
  if (!p.weights) {
    p.weights = std::make_shared<WeightSet>();
    p.weights->weights = std::make_shared<Storage>(device, MTLStorageModePrivate,
                                                   count * sizeof(float), uint8_t{0xFF});
    p.weights->biases = std::make_shared<Storage>(device, MTLStorageModePrivate,
                                                  outputs * sizeof(float), uint8_t{0});
  }
  Command command;
  const StoragePtr source = storage_of(from.weights.get(), where);
  const StoragePtr biases = from.biases ? storage_of(from.biases.get(), where) : nullptr;
  p.weights->has_biases = p.weights->has_biases || biases != nullptr;
  command.reads = {source};
  if (biases) command.reads.push_back(biases);
  command.writes = {p.weights->weights, p.weights->biases};
  command.run = [source, biases, set = *p.weights, count, outputs, rounded = p.half_weights,
                 at = from.weights_offset / sizeof(float),
                 bias_at = from.biases_offset / sizeof(float)] {
    for (size_t i = 0; i < count; ++i) {
      const float value = floats(source)[at + i];
      floats(set.weights)[i] = rounded ? half(value) : value;
    }
    for (size_t o = 0; biases && o < outputs; ++o) {
      floats(set.biases)[o] = floats(biases)[bias_at + o];
    }
  };
  record(command_buffer, where, std::move(command));
  decrement_read_count(state, where);
}

MPSCNNConvolutionWeightsAndBiasesState* export_weights(const KernelBody& kernel,
                                                       id<MTLCommandBuffer> command_buffer,
                                                       bool temporary, const Where& where) {
  check_encodable(command_buffer, where);
  REQUIRE(index_of(kernel.device.get(), where) == device_of(command_buffer, where),
          different_devices, where);
  const auto& p = kernel.as<ConvolutionParams>();
  MPSCNNConvolutionDescriptor* descriptor = [MPSCNNConvolutionDescriptor
      cnnConvolutionDescriptorWithKernelWidth:static_cast<NSUInteger>(p.geometry.kx)
                                 kernelHeight:static_cast<NSUInteger>(p.geometry.ky)
                         inputFeatureChannels:static_cast<NSUInteger>(p.geometry.in)
                        outputFeatureChannels:static_cast<NSUInteger>(p.geometry.out)];
  descriptor->body_->groups = static_cast<NSUInteger>(p.geometry.groups);
  descriptor->body_->depthwise = p.geometry.depthwise;
  MPSCNNConvolutionWeightsAndBiasesState* state = nil;
  if (temporary) {
    state = [MPSCNNConvolutionWeightsAndBiasesState
        temporaryCNNConvolutionWeightsAndBiasesStateWithCommandBuffer:command_buffer
                                             cnnConvolutionDescriptor:descriptor];
  } else {
    state =
        [[[MPSCNNConvolutionWeightsAndBiasesState alloc] initWithDevice:kernel.device.get()
                                               cnnConvolutionDescriptor:descriptor] autorelease];
  }
  WeightsPayload& to = [state emulatedWeights];
  if (!p.weights->has_biases) {
    to.biases = nil;
    to.biases_count = 0;
  }
  Command command;
  const StoragePtr weights = storage_of(to.weights.get(), where);
  const StoragePtr biases = to.biases ? storage_of(to.biases.get(), where) : nullptr;
  command.reads = {p.weights->weights, p.weights->biases};
  command.writes = {weights};
  if (biases) command.writes.push_back(biases);
  command.run = [weights, biases, set = *p.weights] {
    weights->gpu = set.weights->gpu;
    if (biases) biases->gpu = set.biases->gpu;
  };
  record(command_buffer, where, std::move(command));
  return state;
}

// ---------------------------------------------------------------- gradients of weights

void prepare_gradient_state(MPSState* state, MPSKernel* producer, const Geometry& geometry) {
  StateBody& body = *[state emulatedBody];
  auto payload = std::make_shared<ConvolutionPayload>();
  payload->kernel = producer;
  payload->geometry = describe(geometry);
  body.payload = payload;
  for (const long count : {geometry.weight_count(), geometry.out}) {
    StateResource resource;
    resource.type = MPSStateResourceTypeBuffer;
    resource.bytes = static_cast<size_t>(count) * sizeof(float);
    body.resources.push_back(resource);
  }
}

StoragePtr gradient_storage(MPSState* state, NSUInteger index, const Where& where) {
  return storage_of([state resourceAtIndex:index allocateMemory:YES], where);
}

void prepare_gradient(KernelBody& kernel, const Call& call, id<MPSCNNConvolutionDataSource> source,
                      bool transpose, const Where& where) {
  auto& p = kernel.as<ConvolutionParams>();
  REQUIRE(p.option >= MPSCNNConvolutionGradientOptionGradientWithData &&
              p.option <= MPSCNNConvolutionGradientOptionAll,
          gradient_option, where, "%lu", static_cast<unsigned long>(p.option));
  MPSState* first = [call.read_states objectAtIndex:0];
  for (MPSState* state in call.read_states) {
    REQUIRE(state == first, state_not_shared, where);
  }
  const StateBody& body = body_of(first, where);
  const auto payload = std::static_pointer_cast<ConvolutionPayload>(body.payload);
  const Snapshot& snapshot = *body.snapshot;
  REQUIRE(payload->geometry == describe(p.geometry), state_foreign_kernel, where,
          "the forward weights are %s, not %s", payload->geometry.c_str(),
          describe(p.geometry).c_str());
  REQUIRE(body.encoded, state_not_encoded, where);
  const auto& forward = snapshot.kernel.as<ConvolutionParams>();
  REQUIRE(forward.neuron.type == MPSCNNNeuronTypeNone && forward.scale.empty(),
          fused_neuron_gradient, where);
  const ImageBody& gradient = body_of([call.sources[0] objectAtIndex:0], where);
  const ImageBody& image = body_of([call.sources[1] objectAtIndex:0], where);
  REQUIRE(static_cast<long>(image.shape.width) == snapshot.source_w &&
              static_cast<long>(image.shape.height) == snapshot.source_h,
          gradient_shape, where, "the source differs from the forward source");
  const bool weights = (p.option & MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias) != 0;
  const bool exact = static_cast<long>(gradient.shape.width) == snapshot.clip.w &&
                     static_cast<long>(gradient.shape.height) == snapshot.clip.h;
  const MPSOffset& primary = kernel.sources[0].offset;
  REQUIRE(exact || !weights, gradient_extent, where, "%lu x %lu, expected %ld x %ld",
          static_cast<unsigned long>(gradient.shape.width),
          static_cast<unsigned long>(gradient.shape.height), snapshot.clip.w, snapshot.clip.h);
  REQUIRE(!weights || (primary.x == 0 && primary.y == 0), gradient_extent, where,
          "primaryOffset with weight gradients");
  if (!p.weights) {
    id<MPSCNNConvolutionDataSource> from = source;
    if (payload->convolution && !transpose) from = [payload->convolution.get() dataSource];
    if (from == nil) from = source;
    REQUIRE(load_source(kernel, from, true, transpose, where), data_source, where,
            "load returned NO");
  }
}

void start_accumulation(const Call& call, const Where& where) {
  MPSState* state = [call.read_states objectAtIndex:0];
  auto payload = std::static_pointer_cast<ConvolutionPayload>(body_of(state, where).payload);
  if (payload->started) return;
  payload->started = true;
  Command command;
  command.writes = {gradient_storage(state, 0, where), gradient_storage(state, 1, where)};
  command.run = [storages = command.writes] {
    for (const StoragePtr& storage : storages) {
      std::fill(storage->gpu.begin(), storage->gpu.end(), uint8_t{0});
    }
  };
  record(call.command_buffer, where, std::move(command));
}

}  // namespace emulated_metal

// ---------------------------------------------------------------- states

#define UNAVAILABLE_STATE_INITS                                                           \
  -(instancetype)initWithDevice : (id<MTLDevice>)device bufferSize : (size_t)bufferSize { \
    (void)device, (void)bufferSize;                                                       \
    spring(Trap::init_unavailable, HERE);                                                 \
  }                                                                                       \
  -(instancetype)initWithResource : (id<MTLResource>)resource {                           \
    (void)resource;                                                                       \
    spring(Trap::init_unavailable, HERE);                                                 \
  }

@implementation MPSCNNConvolutionGradientState
UNAVAILABLE_STATE_INITS
- (id<MTLBuffer>)gradientForWeights {
  return static_cast<id<MTLBuffer>>([self resourceAtIndex:0 allocateMemory:YES]);
}
- (id<MTLBuffer>)gradientForBiases {
  return static_cast<id<MTLBuffer>>([self resourceAtIndex:1 allocateMemory:YES]);
}
- (MPSCNNConvolution*)convolution {
  return std::static_pointer_cast<ConvolutionPayload>(body_->payload)->convolution.get();
}
- (MPSCNNConvolutionWeightsLayout)gradientForWeightsLayout {
  return MPSCNNConvolutionWeightsLayoutOHWI;
}
- (NSUInteger)sourceWidth {
  return static_cast<NSUInteger>(body_->snapshot->source_w);
}
- (NSUInteger)sourceHeight {
  return static_cast<NSUInteger>(body_->snapshot->source_h);
}
@end

@implementation MPSCNNConvolutionTransposeGradientState
- (MPSCNNConvolutionTranspose*)convolutionTranspose {
  return static_cast<MPSCNNConvolutionTranspose*>(
      std::static_pointer_cast<ConvolutionPayload>(body_->payload)->kernel.get());
}
@end

@implementation MPSCNNConvolutionWeightsAndBiasesState
UNAVAILABLE_STATE_INITS
- (WeightsPayload&)emulatedWeights {
  return *std::static_pointer_cast<WeightsPayload>(body_->payload);
}
- (void)emulatedSetWeights:(id<MTLBuffer>)weights
                    offset:(NSUInteger)offset
                     count:(size_t)count
                    biases:(id<MTLBuffer>)biases
              biasesOffset:(NSUInteger)biasesOffset
               biasesCount:(size_t)biasesCount
                     where:(const Where&)where {
  const auto fits = [](id<MTLBuffer> buffer, NSUInteger start, size_t values) {
    return start % 4 == 0 && start + values * sizeof(float) <= [buffer length];
  };
  REQUIRE(
      fits(weights, offset, count) && (biases == nil || fits(biases, biasesOffset, biasesCount)),
      weights_state, where, "an offset or a buffer's length");
  auto payload = std::make_shared<WeightsPayload>();
  payload->weights = weights;
  payload->biases = biases;
  payload->weights_offset = offset;
  payload->biases_offset = biasesOffset;
  payload->weights_count = count;
  payload->biases_count = biases == nil ? 0 : biasesCount;
  body_->payload = payload;
  for (const id<MTLBuffer> buffer : {weights, biases}) {
    if (buffer == nil) continue;
    StateResource resource;
    resource.type = MPSStateResourceTypeBuffer;
    resource.bytes = [buffer length];
    resource.resource = buffer;
    body_->resources.push_back(resource);
  }
}
- (instancetype)initWithWeights:(id<MTLBuffer>)weights biases:(id<MTLBuffer>)biases {
  REQUIRE(weights != nil, nil_argument, HERE, "weights");
  self = [self emulatedInitWithDevice:[weights device]];
  REQUIRE(biases == nil || [biases device] == [weights device], different_devices, HERE);
  [self emulatedSetWeights:weights
                    offset:0
                     count:[weights length] / sizeof(float)
                    biases:biases
              biasesOffset:0
               biasesCount:[biases length] / sizeof(float)
                     where:HERE];
  return self;
}
- (instancetype)initWithWeights:(id<MTLBuffer>)weights
                  weightsOffset:(NSUInteger)weightsOffset
                         biases:(id<MTLBuffer>)biases
                   biasesOffset:(NSUInteger)biasesOffset
       cnnConvolutionDescriptor:(MPSCNNConvolutionDescriptor*)descriptor {
  REQUIRE(weights != nil && descriptor != nil, nil_argument, HERE);
  self = [self emulatedInitWithDevice:[weights device]];
  REQUIRE(biases == nil || [biases device] == [weights device], different_devices, HERE);
  const Geometry geometry = geometry_of(descriptor, false, HERE);
  [self emulatedSetWeights:weights
                    offset:weightsOffset
                     count:static_cast<size_t>(geometry.weight_count())
                    biases:biases
              biasesOffset:biasesOffset
               biasesCount:static_cast<size_t>(geometry.out)
                     where:HERE];
  return self;
}
- (void)emulatedAllocate:(MPSCNNConvolutionDescriptor*)descriptor where:(const Where&)where {
  REQUIRE(descriptor != nil, nil_argument, where, "descriptor");
  const Geometry geometry = geometry_of(descriptor, false, where);
  const auto count = static_cast<size_t>(geometry.weight_count());
  const auto outputs = static_cast<size_t>(geometry.out);
  const int device = index_of(body_->device.get(), where);
  const MTLStorageMode mode = body_->temporary ? MTLStorageModePrivate : MTLStorageModeManaged;
  [self emulatedSetWeights:make_buffer(device, count * sizeof(float), mode)
                    offset:0
                     count:count
                    biases:make_buffer(device, outputs * sizeof(float), mode)
              biasesOffset:0
               biasesCount:outputs
                     where:where];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
      cnnConvolutionDescriptor:(MPSCNNConvolutionDescriptor*)descriptor {
  (void)index_of(device, HERE);
  self = [self emulatedInitWithDevice:device];
  [self emulatedAllocate:descriptor where:HERE];
  return self;
}
+ (instancetype)temporaryCNNConvolutionWeightsAndBiasesStateWithCommandBuffer:
                    (id<MTLCommandBuffer>)commandBuffer
                                                     cnnConvolutionDescriptor:
                                                         (MPSCNNConvolutionDescriptor*)descriptor {
  MPSCNNConvolutionWeightsAndBiasesState* state =
      [[[self alloc] emulatedInitTemporary:commandBuffer] autorelease];
  [state emulatedAllocate:descriptor where:HERE];
  return state;
}
- (id<MTLBuffer>)weights {
  return [self emulatedWeights].weights.get();
}
- (id<MTLBuffer>)biases {
  return [self emulatedWeights].biases.get();
}
- (NSUInteger)weightsOffset {
  return [self emulatedWeights].weights_offset;
}
- (NSUInteger)biasesOffset {
  return [self emulatedWeights].biases_offset;
}
@end
