// Weights of the normalization kernels: data sources, reloads and their containers.
#include "normalization.hpp"

#include <algorithm>
#include <cstring>

#include "convolution.hpp"

using namespace emulated_metal;

namespace emulated_metal {

Strong<id<MTLBuffer>> vector_buffer(int device, NSUInteger channels, bool temporary) {
  return make_buffer(device, channels * sizeof(float),
                     temporary ? MTLStorageModePrivate : MTLStorageModeManaged);
}

Strong<id<MTLBuffer>> vector_buffer(int device, NSUInteger channels, const float* values) {
  if (values == nullptr) return {};
  Strong<id<MTLBuffer>> buffer = vector_buffer(device, channels, false);
  const StoragePtr storage = storage_of(buffer.get(), Where{nil, nullptr, "vector_buffer"});
  std::memcpy(storage->gpu.data(), values, channels * sizeof(float));
  std::memcpy(storage->cpu.data(), values, channels * sizeof(float));
  return buffer;
}

StoragePtr optional_storage(id<MTLBuffer> buffer, const Where& where) {
  return buffer == nil ? nullptr : storage_of(buffer, where);
}

bool load_normalization(KernelBody& kernel, id source, bool first, bool scale, bool statistics,
                        const Where& where) {
  REQUIRE(source != nil, nil_argument, where, "dataSource");
  for (const SEL selector : {
         @selector(gamma), @selector(beta), @selector(numberOfFeatureChannels), @selector(label),
             @selector(copyWithZone:)
       }) {
    REQUIRE([source respondsToSelector:selector], data_source, where, "it lacks %s",
            sel_getName(selector));
  }
  const id<MPSCNNBatchNormalizationDataSource> reader = source;
  bool loaded = false;
  call_out([&] {
    loaded = ![source respondsToSelector:@selector(load)] || [reader load];
    if (!loaded) return;
    auto& p = kernel.as<NormalizationParams>();
    const int device = index_of(kernel.device.get(), where);
    if (first) {
      p.channels = [reader numberOfFeatureChannels];
      REQUIRE(p.channels > 0, data_source, where, "no feature channels");
      if ([source respondsToSelector:@selector(epsilon)]) p.epsilon = [reader epsilon];
      if ([source respondsToSelector:@selector(numberOfGroups)]) {
        p.groups = [static_cast<id<MPSCNNGroupNormalizationDataSource>>(source) numberOfGroups];
      }
      REQUIRE(p.groups > 0 && p.channels % p.groups == 0, data_source, where,
              "%lu groups for %lu channels", static_cast<unsigned long>(p.groups),
              static_cast<unsigned long>(p.channels));
      kernel.label = adopt<NSString*>([[reader label] copy]);
    }
    // New buffers: work that was encoded before keeps the old ones.
    if (scale) {
      p.weights->gamma = vector_buffer(device, p.channels, [reader gamma]);
      p.weights->beta = vector_buffer(device, p.channels, [reader beta]);
    }
    if (statistics) {
      p.weights->mean = vector_buffer(device, p.channels, [reader mean]);
      p.weights->variance = vector_buffer(device, p.channels, [reader variance]);
    }
    if ([source respondsToSelector:@selector(purge)]) [reader purge];
  });
  return loaded;
}

void reload_vectors(KernelBody& kernel, id<MTLCommandBuffer> command_buffer, MPSState* state,
                    Strong<id<MTLBuffer>> NormalizationWeights::* first,
                    Strong<id<MTLBuffer>> NormalizationWeights::* second, const Where& where) {
  check_encodable(command_buffer, where);
  const int device = device_of(command_buffer, where);
  REQUIRE(index_of(kernel.device.get(), where) == device, different_devices, where);
  check_state(state, command_buffer, true, where);
  auto& p = kernel.as<NormalizationParams>();
  const PairPayload& from = pair_of(state, where);
  const size_t bytes = p.channels * sizeof(float);
  REQUIRE([from.first.get() length] >= bytes && [from.second.get() length] >= bytes,
          normalization_state, where, "%lu bytes, expected %lu",
          static_cast<unsigned long>([from.first.get() length]), static_cast<unsigned long>(bytes));
  Command command;
  for (const auto& [member, source] :
       {std::pair{first, from.first.get()}, std::pair{second, from.second.get()}}) {
    Strong<id<MTLBuffer>>& target = (*p.weights).*member;
    if (!target) target = vector_buffer(device, p.channels, false);
    const StoragePtr to = storage_of(target.get(), where), old = storage_of(source, where);
    command.reads.push_back(old);
    command.writes.push_back(to);
    command.run = [previous = command.run, to, old, bytes] {
      if (previous) previous();
      std::memcpy(to->gpu.data(), old->gpu.data(), bytes);
    };
  }
  record(command_buffer, where, std::move(command));
  decrement_read_count(state, where);
}

PairPayload& pair_of(MPSState* state, const Where& where) {
  REQUIRE(state != nil, nil_argument, where, "state");
  REQUIRE([state isKindOfClass:[MPSCNNNormalizationGammaAndBetaState class]] ||
              [state isKindOfClass:[MPSCNNNormalizationMeanAndVarianceState class]],
          state_wrong_class, where);
  return *std::static_pointer_cast<PairPayload>([state emulatedBody]->payload);
}

std::shared_ptr<Params> NormalizationParams::clone(NSZone* zone, id<MTLDevice> device) const {
  auto copy = std::make_shared<NormalizationParams>(*this);
  const Where where{nil, nullptr, "copyWithZone:device:"};
  if (source) {
    const id<MPSCNNBatchNormalizationDataSource> from = source.get();
    copy->source = adopt<id>([from respondsToSelector:@selector(copyWithZone:device:)]
                                 ? [from copyWithZone:zone device:device]
                                 : [from copyWithZone:zone]);
  }
  copy->weights = std::make_shared<NormalizationWeights>();
  for (const auto member : {&NormalizationWeights::gamma, &NormalizationWeights::beta,
                            &NormalizationWeights::mean, &NormalizationWeights::variance}) {
    const id<MTLBuffer> old = ((*weights).*member).get();
    if (old == nil) continue;
    (*copy->weights).*member =
        vector_buffer(index_of(device, where), channels, floats_of(storage_of(old, where)));
  }
  return copy;
}

void NormalizationParams::fields(Fields& f) {
  f("channels", channels);
  f("groups", groups);
  f("epsilon", epsilon);
  neuron.fields(f);
  if (f.mode() == Fields::Mode::fingerprint) return;
  id archived = source.get();
  if (f.mode() == Fields::Mode::encode &&
      ![archived respondsToSelector:@selector(encodeWithCoder:)]) {
    archived = nil;
  }
  f.object("source", archived);
  source = archived;
  const Where where{nil, nullptr, "archive"};
  for (const auto& [key, member] : {std::pair{"gamma", &NormalizationWeights::gamma},
                                    std::pair{"beta", &NormalizationWeights::beta},
                                    std::pair{"mean", &NormalizationWeights::mean},
                                    std::pair{"variance", &NormalizationWeights::variance}}) {
    std::vector<float> values;
    const id<MTLBuffer> buffer = ((*weights).*member).get();
    if (buffer != nil) {
      const float* from = floats_of(storage_of(buffer, where));
      values.assign(from, from + channels);
    }
    f.floats(key, values);
    if (f.mode() == Fields::Mode::decode && !values.empty()) {
      (*weights).*member = vector_buffer(0, channels, values.data());
    }
  }
}

void check_normalized_channels(const KernelBody& kernel, size_t operand, NSArray<MPSImage*>* images,
                               NSUInteger channels, const Where& where) {
  REQUIRE(images != nil && [images count] > 0, batch_empty, where);
  const Operand& s = kernel.sources[operand];
  const ImageBody& image = body_of([images objectAtIndex:0], where);
  REQUIRE(s.channel_offset < image.shape.channels, source_channels, where);
  const NSUInteger consumed = std::min(s.channel_max, image.shape.channels - s.channel_offset);
  REQUIRE(consumed == channels, source_channels, where, "%lu channels, expected %lu",
          static_cast<unsigned long>(consumed), static_cast<unsigned long>(channels));
}

void check_normalized_channels(const KernelBody& kernel, size_t operand, NSArray<MPSImage*>* images,
                               const Where& where) {
  check_normalized_channels(kernel, operand, images, kernel.as<NormalizationParams>().channels,
                            where);
}

namespace {

void set_pair(MPSState* state, id<MTLBuffer> first, id<MTLBuffer> second, const Where& where) {
  REQUIRE(first != nil && second != nil, nil_argument, where, "buffer");
  REQUIRE([first device] == [second device], different_devices, where);
  REQUIRE([first length] == [second length] && [first length] >= sizeof(float), normalization_state,
          where, "lengths %lu and %lu", static_cast<unsigned long>([first length]),
          static_cast<unsigned long>([second length]));
  auto payload = std::make_shared<PairPayload>();
  payload->first = first;
  payload->second = second;
  StateBody& body = *[state emulatedBody];
  body.payload = payload;
  for (const id<MTLBuffer> buffer : {first, second}) {
    StateResource resource;
    resource.type = MPSStateResourceTypeBuffer;
    resource.bytes = [buffer length];
    resource.resource = buffer;
    body.resources.push_back(resource);
  }
}

}  // namespace
}  // namespace emulated_metal

#define PAIR_STATE(name, one, One, two)                                             \
  @implementation name                                                              \
  -(instancetype)initWith##One : (id<MTLBuffer>)one two : (id<MTLBuffer>)two {      \
    REQUIRE(one != nil, nil_argument, HERE, #one);                                  \
    self = [self emulatedInitWithDevice:[one device]];                              \
    set_pair(self, one, two, HERE);                                                 \
    return self;                                                                    \
  }                                                                                 \
  +(instancetype)temporaryStateWithCommandBuffer                                    \
      : (id<MTLCommandBuffer>)commandBuffer numberOfFeatureChannels                 \
      : (NSUInteger)numberOfFeatureChannels {                                       \
    REQUIRE(numberOfFeatureChannels > 0, normalization_state, HERE, "no channels"); \
    name* state = [[[self alloc] emulatedInitTemporary:commandBuffer] autorelease]; \
    const int device = device_of(commandBuffer, HERE);                              \
    set_pair(state, vector_buffer(device, numberOfFeatureChannels, true).get(),     \
             vector_buffer(device, numberOfFeatureChannels, true).get(), HERE);     \
    return state;                                                                   \
  }                                                                                 \
  -(id<MTLBuffer>)one {                                                             \
    return pair_of(self, HERE).first.get();                                         \
  }                                                                                 \
  -(id<MTLBuffer>)two {                                                             \
    return pair_of(self, HERE).second.get();                                        \
  }                                                                                 \
  @end

PAIR_STATE(MPSCNNNormalizationGammaAndBetaState, gamma, Gamma, beta)
PAIR_STATE(MPSCNNNormalizationMeanAndVarianceState, mean, Mean, variance)
