// Batch normalization: statistics, forward, statistics gradient, gradient, and their state.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "normalization.hpp"

using namespace emulated_metal;

namespace {

// What runs on the GPU's timeline: sums over the images seen since the last start.
struct Accumulator {
  double samples = 0;
  std::vector<double> mean, squares;  // squares: sum of squared distances from the mean
  std::vector<double> by_gamma, by_beta;
};

enum class Phase { initial, statistics, read, gradient, gradient_read };

struct BatchPayload {
  Strong<MPSCNNBatchNormalization*> kernel;
  std::shared_ptr<NormalizationWeights> weights;  // the kernel's live ones
  Strong<id<MTLBuffer>> mean, variance, by_gamma, by_beta;
  bool has_statistics = false, has_gradients = false;
  float epsilon = 0;
  NSUInteger channels = 0;
  Phase phase = Phase::initial;
  NSUInteger images = 0, gradient_images = 0;
  NSUInteger width = 0, height = 0;
  std::shared_ptr<Accumulator> sums = std::make_shared<Accumulator>();

  void restart() {
    sums = std::make_shared<Accumulator>();  // encoded work keeps the old one
    phase = Phase::initial;
    images = gradient_images = 0;
    has_statistics = has_gradients = false;
  }
};

BatchPayload& payload_of(MPSCNNBatchNormalizationState* state, const Where& where) {
  REQUIRE(state != nil, nil_argument, where, "batchNormalizationState");
  REQUIRE([state isKindOfClass:[MPSCNNBatchNormalizationState class]], state_wrong_class, where);
  return *std::static_pointer_cast<BatchPayload>(body_of(state, where).payload);
}

void check_default_geometry(const KernelBody& kernel, const Where& where) {
  for (const Operand& s : kernel.sources) {
    REQUIRE(s.offset.x == 0 && s.offset.y == 0 && s.offset.z == 0, normalization_geometry, where,
            "offset");
  }
  REQUIRE(kernel.clip.origin.x == 0 && kernel.clip.origin.y == 0 && kernel.clip.origin.z == 0 &&
              kernel.clip.size.width == NSUIntegerMax && kernel.clip.size.height == NSUIntegerMax &&
              kernel.clip.size.depth == NSUIntegerMax,
          normalization_geometry, where, "clip rectangle");
}

// The checks of plan_encode for encodes without a destination.
std::vector<std::vector<View>> views_of(const KernelBody& kernel, const Call& call,
                                        NSUInteger channels, const Where& where) {
  check_encodable(call.command_buffer, where);
  const int device = device_of(call.command_buffer, where);
  REQUIRE(index_of(kernel.device.get(), where) == device, different_devices, where);
  std::vector<std::vector<View>> all;
  const ImageBody* first = nullptr;
  for (size_t index = 0; index < call.sources.size(); ++index) {
    NSArray<MPSImage*>* images = call.sources[index];
    REQUIRE(images != nil, nil_argument, where, "images");
    REQUIRE([images count] > 0, batch_empty, where);
    REQUIRE([images count] == [call.sources[0] count], batch_length, where);
    const Operand& s = kernel.sources[index];
    std::vector<View> views;
    for (MPSImage* image in images) {
      const ImageBody& body = body_of(image, where);
      if (first == nullptr) first = &body;
      REQUIRE(index_of(body.device.get(), where) == device, different_devices, where);
      REQUIRE(body.shape.count == 1, batch_number_of_images, where);
      REQUIRE(body.shape.width == first->shape.width && body.shape.height == first->shape.height,
              batch_descriptor, where);
      REQUIRE((body.shape.usage & MTLTextureUsageShaderRead) != 0, source_usage, where);
      REQUIRE(s.channel_offset % 4 == 0, channel_offset, where);
      REQUIRE(s.channel_offset < body.shape.channels &&
                  std::min(s.channel_max, body.shape.channels - s.channel_offset) == channels,
              source_channels, where, "%lu channels, expected %lu",
              static_cast<unsigned long>(body.shape.channels),
              static_cast<unsigned long>(channels));
      touch_temporary(image, call.command_buffer, where);
      REQUIRE(!body.temporary || body.read_count > 0, source_read_count, where);
      views.push_back(view_of(image, 0, where));
    }
    all.push_back(std::move(views));
  }
  return all;
}

void reads_all(Command& command, const std::vector<std::vector<View>>& views) {
  for (const std::vector<View>& list : views) {
    for (const View& view : list) command.reads.push_back(view.storage);
  }
}

// Normalized value and slope of the neuron at one element.
struct Point {
  float normalized, slope;
};
struct Scale {
  std::vector<float> mean, reciprocal, gamma, beta;
};
Scale scale_of(const StoragePtr& mean, const StoragePtr& variance, const StoragePtr& gamma,
               const StoragePtr& beta, float epsilon, size_t channels) {
  Scale s;
  for (size_t c = 0; c < channels; ++c) {
    s.mean.push_back(floats_of(mean)[c]);
    s.reciprocal.push_back(1.0F / std::sqrt(floats_of(variance)[c] + epsilon));
    s.gamma.push_back(gamma ? floats_of(gamma)[c] : 1.0F);
    s.beta.push_back(beta ? floats_of(beta)[c] : 0.0F);
  }
  return s;
}
Point point(const Scale& s, const NeuronFunction& neuron, float x, long channel) {
  const auto c = static_cast<size_t>(channel);
  const float normalized = (x - s.mean[c]) * s.reciprocal[c];
  return {normalized, neuron.derivative(s.gamma[c] * normalized + s.beta[c], channel)};
}

}  // namespace

@implementation MPSCNNBatchNormalizationState
- (BatchPayload&)payload {
  return *std::static_pointer_cast<BatchPayload>(body_->payload);
}
- (instancetype)initWithResource:(id<MTLResource>)resource {
  (void)resource;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device bufferSize:(size_t)bufferSize {
  (void)device, (void)bufferSize;
  spring(Trap::init_unavailable, HERE);
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                                     bufferSize:(size_t)bufferSize {
  (void)cmdBuf, (void)bufferSize;
  spring(Trap::init_unavailable, HERE);
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                              textureDescriptor:(MTLTextureDescriptor*)descriptor {
  (void)cmdBuf, (void)descriptor;
  spring(Trap::init_unavailable, HERE);
}
- (MPSCNNBatchNormalization*)batchNormalization {
  return [self payload].kernel.get();
}
- (void)reset {
  [self payload].restart();
}
- (id<MTLBuffer>)gamma {
  return [self payload].weights->gamma.get();
}
- (id<MTLBuffer>)beta {
  return [self payload].weights->beta.get();
}
- (id<MTLBuffer>)mean {
  BatchPayload& p = [self payload];
  return p.has_statistics ? p.mean.get() : p.weights->mean.get();
}
- (id<MTLBuffer>)variance {
  BatchPayload& p = [self payload];
  return p.has_statistics ? p.variance.get() : p.weights->variance.get();
}
- (BOOL)emulatedShowsGradients {
  const BatchPayload& p = [self payload];
  return p.has_gradients &&
         (option("batch_gradients_late") == 0 || p.phase == Phase::gradient_read);
}
- (id<MTLBuffer>)gradientForGamma {
  return [self emulatedShowsGradients] ? [self payload].by_gamma.get() : nil;
}
- (id<MTLBuffer>)gradientForBeta {
  return [self emulatedShowsGradients] ? [self payload].by_beta.get() : nil;
}
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  [super synchronizeOnCommandBuffer:commandBuffer];
  if (body_->temporary) return;
  for (const id<MTLBuffer> buffer : {[self gamma],
                                     [self beta],
                                     [self mean],
                                     [self variance],
                                     [self gradientForGamma],
                                     [self gradientForBeta]}) {
    if (buffer != nil) synchronize(commandBuffer, HERE, storage_of(buffer, HERE));
  }
}
@end

@implementation MPSCNNBatchNormalization
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<NormalizationParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource {
  return [self initWithDevice:device dataSource:dataSource fusedNeuronDescriptor:nil];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource
         fusedNeuronDescriptor:(MPSNNNeuronDescriptor*)fusedNeuronDescriptor {
  self = [super initWithDevice:device];
  auto params = std::make_shared<NormalizationParams>();
  params->source = dataSource;
  if (fusedNeuronDescriptor != nil) {
    params->neuron = neuron_function(fusedNeuronDescriptor, HERE);
  }
  body_->params = params;
  for (const SEL selector :
       { @selector(mean), @selector(variance), @selector(load), @selector(purge) }) {
    REQUIRE(dataSource == nil || [dataSource respondsToSelector:selector], data_source, HERE,
            "it lacks %s", sel_getName(selector));
  }
  if (!load_normalization(*body_, dataSource, true, true, true, HERE)) {
    [self release];
    return nil;
  }
  params->neuron.check_channels(static_cast<long>(params->channels), HERE);
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (NSUInteger)numberOfFeatureChannels {
  return body_->as<NormalizationParams>().channels;
}
- (float)epsilon {
  return body_->as<NormalizationParams>().epsilon;
}
- (void)setEpsilon:(float)epsilon {
  body_->as<NormalizationParams>().epsilon = epsilon;
}
- (id<MPSCNNBatchNormalizationDataSource>)dataSource {
  return body_->as<NormalizationParams>().source.get();
}
- (Class)emulatedStateClass {
  return [MPSCNNBatchNormalizationState class];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return YES;
}
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images {
  (void)images;
  const auto& p = body_->as<NormalizationParams>();
  StateBody& body = *[state emulatedBody];
  auto payload = std::make_shared<BatchPayload>();
  payload->kernel = self;
  payload->weights = p.weights;
  payload->epsilon = p.epsilon;
  payload->channels = p.channels;
  const int device = index_of(body.device.get(), HERE);
  for (const auto member : {&BatchPayload::mean, &BatchPayload::variance, &BatchPayload::by_gamma,
                            &BatchPayload::by_beta}) {
    (*payload).*member = vector_buffer(device, p.channels, body.temporary);
  }
  body.payload = payload;
}
- (MPSCNNBatchNormalizationState*)resultStateForSourceImage:(MPSImage*)sourceImage
                                               sourceStates:(NSArray<MPSState*>*)sourceStates
                                           destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNBatchNormalizationState*>([super
      resultStateForSourceImage:sourceImage
                   sourceStates:sourceStates
               destinationImage:destinationImage]);
}
- (MPSCNNBatchNormalizationState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNBatchNormalizationState*>([super
      temporaryResultStateForCommandBuffer:commandBuffer
                               sourceImage:sourceImage
                              sourceStates:sourceStates
                          destinationImage:destinationImage]);
}

- (void)normalize:(const Call&)call
             mean:(id<MTLBuffer>)mean
         variance:(id<MTLBuffer>)variance
            where:(const Where&)where {
  const auto& p = body_->as<NormalizationParams>();
  REQUIRE(mean != nil && variance != nil, normalization_phase, where, "there are no statistics");
  const Plan plan = plan_encode(
      *body_, call, [](const std::vector<long>& consumed) { return consumed[0]; }, where);
  check_normalized_channels(*body_, 0, call.sources[0], where);
  Extra extra;
  const StoragePtr m = storage_of(mean, where), v = storage_of(variance, where);
  const StoragePtr g = optional_storage(p.weights->gamma.get(), where);
  const StoragePtr b = optional_storage(p.weights->beta.get(), where);
  for (const StoragePtr& storage : {m, v, g, b}) {
    if (storage) extra.reads.push_back(storage);
  }
  const Work work = [m, v, g, b, epsilon = p.epsilon, neuron = p.neuron, s = body_->sources[0]](
                        const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Scale scale = scale_of(m, v, g, b, epsilon, static_cast<size_t>(out.c));
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const auto c = static_cast<size_t>(k);
          const float value = fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge);
          out.at(y, x, k) = neuron.value(
              (value - scale.mean[c]) * scale.gamma[c] * scale.reciprocal[c] + scale.beta[c], k);
        }
      }
    }
  };
  record_work(*body_, call, plan, static_cast<long>(p.channels), work, where, extra);
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationState:(MPSState*)destinationState
             destinationImage:(MPSImage*)destinationImage {
  (void)commandBuffer, (void)sourceImage, (void)destinationState, (void)destinationImage;
  spring(Trap::init_unavailable, HERE);
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState**)outState
       destinationStateIsTemporary:(BOOL)isTemporary {
  (void)commandBuffer, (void)sourceImage, (void)outState, (void)isTemporary;
  spring(Trap::init_unavailable, HERE);
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationStates:(MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages {
  (void)commandBuffer, (void)sourceImages, (void)destinationStates, (void)destinationImages;
  spring(Trap::init_unavailable, HERE);
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:(MPSStateBatch**)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary {
  (void)commandBuffer, (void)sourceImages, (void)outStates, (void)isTemporary;
  spring(Trap::init_unavailable, HERE);
}
// Without a state: the kernel's stored statistics.
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  REQUIRE(call.written_states == nil, init_unavailable, where, "destination states");
  const NormalizationWeights& w = *body_->as<NormalizationParams>().weights;
  check_encodable(call.command_buffer, where);
  [self normalize:call mean:w.mean.get() variance:w.variance.get() where:where];
}
- (void)encode:(Call)call state:(MPSCNNBatchNormalizationState*)state where:(const Where&)where {
  check_encodable(call.command_buffer, where);
  BatchPayload& p = payload_of(state, where);
  REQUIRE(p.kernel.get() == self, state_foreign_kernel, where);
  REQUIRE(p.epsilon == [self epsilon], kernel_changed, where, "epsilon");
  NSMutableArray* read = [NSMutableArray array];
  for (NSUInteger i = 0; i < [call.destinations count]; ++i) [read addObject:state];
  call.read_states = read;
  [self normalize:call mean:[state mean] variance:[state variance] where:where];
  if (p.phase == Phase::statistics) p.phase = Phase::read;
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
             destinationImage:(MPSImage*)destinationImage {
  [self encode:{commandBuffer, {single(sourceImage)}, single(destinationImage)}
         state:batchNormalizationState
         where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
                 destinationImages:(MPSImageBatch*)destinationImages {
  [self encode:{commandBuffer, {sourceImages}, destinationImages, nil, nil, true}
         state:batchNormalizationState
         where:HERE];
}
- (void)reloadGammaAndBetaFromDataSource {
  REQUIRE(load_normalization(*body_, [self dataSource], false, true, false, HERE), data_source,
          HERE, "load returned NO");
}
- (void)reloadMeanAndVarianceFromDataSource {
  REQUIRE(load_normalization(*body_, [self dataSource], false, false, true, HERE), data_source,
          HERE, "load returned NO");
}
- (void)reloadGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          gammaAndBetaState:
                              (MPSCNNNormalizationGammaAndBetaState*)gammaAndBetaState {
  reload_vectors(*body_, commandBuffer, gammaAndBetaState, &NormalizationWeights::gamma,
                 &NormalizationWeights::beta, HERE);
}
- (void)reloadMeanAndVarianceWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          meanAndVarianceState:
                              (MPSCNNNormalizationMeanAndVarianceState*)meanAndVarianceState {
  reload_vectors(*body_, commandBuffer, meanAndVarianceState, &NormalizationWeights::mean,
                 &NormalizationWeights::variance, HERE);
}
@end

@implementation MPSCNNBatchNormalizationStatistics
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [super initWithDevice:device];
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return YES;
}
- (BOOL)appendBatchBarrier {
  return YES;
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::init_unavailable, where, "statistics need a batch normalization state");
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState {
  BatchPayload& p = payload_of(batchNormalizationState, HERE);
  check_default_geometry(*body_, HERE);
  const Call call{commandBuffer, {sourceImages}, nil, nil, nil, true};
  const std::vector<std::vector<View>> views = views_of(*body_, call, p.channels, HERE);
  check_state(batchNormalizationState, commandBuffer, false, HERE);
  if (p.phase != Phase::initial && p.phase != Phase::statistics) p.restart();
  const ImageBody& first = body_of([sourceImages objectAtIndex:0], HERE);
  REQUIRE(p.images == 0 || (p.width == first.shape.width && p.height == first.shape.height),
          batch_descriptor, HERE, "size differs from the images seen before");
  p.width = first.shape.width;
  p.height = first.shape.height;
  p.phase = Phase::statistics;
  p.images += [sourceImages count];
  p.has_statistics = true;
  const StoragePtr mean = storage_of(p.mean.get(), HERE);
  const StoragePtr variance = storage_of(p.variance.get(), HERE);
  Command command;
  reads_all(command, views);
  command.writes = {mean, variance};
  command.run = [views, mean, variance, sums = p.sums, channels = p.channels,
                 offset = static_cast<long>(body_->sources[0].channel_offset)] {
    Accumulator& a = *sums;
    a.mean.resize(channels);
    a.squares.resize(channels);
    for (const View& view : views[0]) {
      const Tensor x = load(view, offset, static_cast<long>(channels));
      const auto fresh = static_cast<double>(x.h * x.w);
      const double total = a.samples + fresh;
      for (size_t c = 0; c < channels; ++c) {
        const auto k = static_cast<long>(c);
        double sum = 0, squares = 0;
        for (long j = 0; j < x.h; ++j) {
          for (long i = 0; i < x.w; ++i) sum += static_cast<double>(x.at(j, i, k));
        }
        const double mean_of_image = sum / fresh;
        for (long j = 0; j < x.h; ++j) {
          for (long i = 0; i < x.w; ++i) {
            const double d = static_cast<double>(x.at(j, i, k)) - mean_of_image;
            squares += d * d;
          }
        }
        const double d = mean_of_image - a.mean[c];
        a.squares[c] += squares + d * d * a.samples * fresh / total;
        a.mean[c] += d * fresh / total;
      }
      a.samples = total;
    }
    for (size_t c = 0; c < channels; ++c) {
      floats_of(mean)[c] = static_cast<float>(a.mean[c]);
      floats_of(variance)[c] = static_cast<float>(a.squares[c] / a.samples);
    }
  };
  record(commandBuffer, HERE, std::move(command));
  consume(call, HERE);
}
@end

// ---------------------------------------------------------------- gradients

namespace {
struct NeuronOnly : ParamsOf<NeuronOnly> {
  NeuronFunction function;
  void fields(Fields& f) override { function.fields(f); }
};
}  // namespace

#define GRADIENT_INITS                                                               \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<NeuronOnly>();                                           \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    return [self initWithDevice:device fusedNeuronDescriptor:nil];                   \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device fusedNeuronDescriptor        \
      : (MPSNNNeuronDescriptor*)fusedNeuronDescriptor {                              \
    self = [super initWithDevice:device];                                            \
    auto params = std::make_shared<NeuronOnly>();                                    \
    if (fusedNeuronDescriptor != nil) {                                              \
      params->function = neuron_function(fusedNeuronDescriptor, HERE);               \
    }                                                                                \
    body_->params = params;                                                          \
    return self;                                                                     \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }

@implementation MPSCNNBatchNormalizationStatisticsGradient
GRADIENT_INITS
- (BOOL)appendBatchBarrier {
  return YES;
}
- (void)emulatedEncodeGradient:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::init_unavailable, where, "it produces no image");
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState {
  BatchPayload& p = payload_of(batchNormalizationState, HERE);
  check_default_geometry(*body_, HERE);
  const NeuronFunction& neuron = body_->as<NeuronOnly>().function;
  neuron.check_channels(static_cast<long>(p.channels), HERE);
  const Call call{commandBuffer, {sourceGradients, sourceImages},
                  nil,           single(batchNormalizationState),
                  nil,           true};
  const std::vector<std::vector<View>> views = views_of(*body_, call, p.channels, HERE);
  check_state(batchNormalizationState, commandBuffer, true, HERE);
  REQUIRE(p.phase == Phase::statistics || p.phase == Phase::read || p.phase == Phase::gradient,
          normalization_phase, HERE, "there are no statistics of this batch");
  const bool fresh = p.phase != Phase::gradient;
  if (fresh) p.gradient_images = 0;
  REQUIRE(p.gradient_images + [sourceImages count] <= p.images, normalization_phase, HERE,
          "more images than the statistics saw");
  REQUIRE([[sourceImages objectAtIndex:0] width] == p.width &&
              [[sourceImages objectAtIndex:0] height] == p.height,
          batch_descriptor, HERE);
  p.phase = Phase::gradient;
  p.gradient_images += [sourceImages count];
  p.has_gradients = true;
  const StoragePtr mean = storage_of(p.mean.get(), HERE);
  const StoragePtr variance = storage_of(p.variance.get(), HERE);
  const StoragePtr gamma = optional_storage(p.weights->gamma.get(), HERE);
  const StoragePtr beta = optional_storage(p.weights->beta.get(), HERE);
  const StoragePtr by_gamma = storage_of(p.by_gamma.get(), HERE);
  const StoragePtr by_beta = storage_of(p.by_beta.get(), HERE);
  Command command;
  reads_all(command, views);
  for (const StoragePtr& storage : {mean, variance, gamma, beta}) {
    if (storage) command.reads.push_back(storage);
  }
  command.writes = {by_gamma, by_beta};
  command.run = [=, sums = p.sums, channels = p.channels, epsilon = p.epsilon,
                 g0 = static_cast<long>(body_->sources[0].channel_offset),
                 x0 = static_cast<long>(body_->sources[1].channel_offset)] {
    Accumulator& a = *sums;
    if (fresh) {
      a.by_gamma.assign(channels, 0);
      a.by_beta.assign(channels, 0);
    }
    const Scale scale = scale_of(mean, variance, gamma, beta, epsilon, channels);
    for (size_t n = 0; n < views[0].size(); ++n) {
      const Tensor incoming = load(views[0][n], g0, static_cast<long>(channels));
      const Tensor x = load(views[1][n], x0, static_cast<long>(channels));
      for (long j = 0; j < x.h; ++j) {
        for (long i = 0; i < x.w; ++i) {
          for (size_t c = 0; c < channels; ++c) {
            const auto k = static_cast<long>(c);
            const Point at = point(scale, neuron, x.at(j, i, k), k);
            const auto g = static_cast<double>(incoming.at(j, i, k) * at.slope);
            a.by_beta[c] += g;
            a.by_gamma[c] += g * static_cast<double>(at.normalized);
          }
        }
      }
    }
    for (size_t c = 0; c < channels; ++c) {
      floats_of(by_gamma)[c] = static_cast<float>(a.by_gamma[c]);
      floats_of(by_beta)[c] = static_cast<float>(a.by_beta[c]);
    }
  };
  record(commandBuffer, HERE, std::move(command));
  consume(call, HERE);
}
@end

@implementation MPSCNNBatchNormalizationGradient
GRADIENT_INITS
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSCNNBatchNormalizationState class]];
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSCNNBatchNormalization class]];
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  [super emulatedCheckGradient:call where:where];
  check_default_geometry(*body_, where);
  MPSState* first = [call.read_states objectAtIndex:0];
  for (MPSState* state in call.read_states) REQUIRE(state == first, state_not_shared, where);
  BatchPayload& p = payload_of(static_cast<MPSCNNBatchNormalizationState*>(first), where);
  REQUIRE((p.phase == Phase::gradient || p.phase == Phase::gradient_read) &&
              p.gradient_images == p.images,
          normalization_phase, where, "%lu of %lu images went through the statistics gradient",
          static_cast<unsigned long>(p.gradient_images), static_cast<unsigned long>(p.images));
  body_->as<NeuronOnly>().function.check_channels(static_cast<long>(p.channels), where);
  for (NSArray<MPSImage*>* images : call.sources) {
    REQUIRE([[images objectAtIndex:0] featureChannels] >= p.channels, source_channels, where);
  }
  p.phase = Phase::gradient_read;
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  const Where where{self, _cmd};
  const BatchPayload& p =
      payload_of(static_cast<MPSCNNBatchNormalizationState*>([states objectAtIndex:0]), where);
  Extra extra;
  for (const id<MTLBuffer> buffer :
       {p.mean.get(), p.variance.get(), p.by_gamma.get(), p.by_beta.get(), p.weights->gamma.get(),
        p.weights->beta.get()}) {
    if (buffer != nil) extra.reads.push_back(storage_of(buffer, where));
  }
  return extra;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const Where where{self, _cmd};
  const BatchPayload& p =
      payload_of(static_cast<MPSCNNBatchNormalizationState*>([states objectAtIndex:0]), where);
  return
      [neuron = body_->as<NeuronOnly>().function, epsilon = p.epsilon, channels = p.channels,
       sums = p.sums, mean = storage_of(p.mean.get(), where),
       variance = storage_of(p.variance.get(), where),
       by_gamma = storage_of(p.by_gamma.get(), where), by_beta = storage_of(p.by_beta.get(), where),
       gamma = optional_storage(p.weights->gamma.get(), where),
       beta = optional_storage(p.weights->beta.get(), where)](const std::vector<Tensor>& in,
                                                              Tensor& out, size_t) {
        const Scale scale = scale_of(mean, variance, gamma, beta, epsilon, channels);
        const auto samples = static_cast<float>(sums->samples);
        for (long y = 0; y < out.h; ++y) {
          for (long x = 0; x < out.w; ++x) {
            for (size_t c = 0; c < channels; ++c) {
              const auto k = static_cast<long>(c);
              const Point at = point(scale, neuron, in[1].at(y, x, k), k);
              out.at(y, x, k) = scale.gamma[c] * scale.reciprocal[c] *
                                (in[0].at(y, x, k) * at.slope - floats_of(by_beta)[c] / samples -
                                 at.normalized * floats_of(by_gamma)[c] / samples);
            }
          }
        }
      };
}
// The state decides for the whole batch: repeat it for each image, count it once.
- (NSArray*)repeat:(MPSState*)state count:(NSUInteger)count {
  NSMutableArray* states = [NSMutableArray array];
  for (NSUInteger i = 0; state != nil && i < count; ++i) [states addObject:state];
  return states;
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
               sourceGradient:(MPSImage*)sourceGradient
                  sourceImage:(MPSImage*)sourceImage
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
          destinationGradient:(MPSImage*)destinationGradient {
  [self encodeToCommandBuffer:commandBuffer
               sourceGradient:sourceGradient
                  sourceImage:sourceImage
                gradientState:batchNormalizationState
          destinationGradient:destinationGradient];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
              destinationGradients:(MPSImageBatch*)destinationGradients {
  [self encodeBatchToCommandBuffer:commandBuffer
                   sourceGradients:sourceGradients
                      sourceImages:sourceImages
                    gradientStates:[self repeat:batchNormalizationState
                                          count:[destinationGradients count]]
              destinationGradients:destinationGradients];
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    sourceGradient:(MPSImage*)sourceGradient
                       sourceImage:(MPSImage*)sourceImage
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState {
  return [self encodeToCommandBuffer:commandBuffer
                      sourceGradient:sourceGradient
                         sourceImage:sourceImage
                       gradientState:batchNormalizationState];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                     batchNormalizationState:
                         (MPSCNNBatchNormalizationState*)batchNormalizationState {
  return [self encodeBatchToCommandBuffer:commandBuffer
                          sourceGradients:sourceGradients
                             sourceImages:sourceImages
                           gradientStates:[self repeat:batchNormalizationState
                                                 count:[sourceImages count]]];
}
@end
