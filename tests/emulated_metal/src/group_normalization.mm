// Instance and group normalization: statistics of one image, by channel or group of channels.
#include <algorithm>
#include <cmath>
#include <set>

#include "normalization.hpp"

using namespace emulated_metal;

namespace {

struct GroupPayload {
  Strong<MPSKernel*> kernel;
  std::shared_ptr<NormalizationWeights> weights;  // the kernel's live ones
  Strong<id<MTLBuffer>> by_gamma, by_beta;
  float epsilon = 0;
  NSUInteger channels = 0, groups = 1;
};

GroupPayload& payload_of(MPSState* state, const Where& where) {
  return *std::static_pointer_cast<GroupPayload>(body_of(state, where).payload);
}

// Mean and reciprocal deviation of every group.
struct Statistics {
  std::vector<float> mean, reciprocal;
};
Statistics statistics(const Tensor& x, long groups, float epsilon) {
  Statistics s;
  const long size = x.c / groups;
  for (long q = 0; q < groups; ++q) {
    const auto count = static_cast<double>(x.h * x.w * size);
    double sum = 0, squares = 0;
    for (long j = 0; j < x.h; ++j) {
      for (long i = 0; i < x.w; ++i) {
        for (long k = q * size; k < (q + 1) * size; ++k) {
          sum += static_cast<double>(x.at(j, i, k));
        }
      }
    }
    const double mean = sum / count;
    for (long j = 0; j < x.h; ++j) {
      for (long i = 0; i < x.w; ++i) {
        for (long k = q * size; k < (q + 1) * size; ++k) {
          const double d = static_cast<double>(x.at(j, i, k)) - mean;
          squares += d * d;
        }
      }
    }
    s.mean.push_back(static_cast<float>(mean));
    s.reciprocal.push_back(
        static_cast<float>(1 / std::sqrt(squares / count + static_cast<double>(epsilon))));
  }
  return s;
}

Work normalize(const NormalizationParams& p, long groups, const Operand& operand) {
  const Where where{nil, nullptr, "normalize"};
  return [groups, epsilon = p.epsilon, s = operand,
          gamma = optional_storage(p.weights->gamma.get(), where),
          beta = optional_storage(p.weights->beta.get(), where)](const std::vector<Tensor>& in,
                                                                 Tensor& out, size_t) {
    const Statistics of = statistics(in[0], groups, epsilon);
    const long size = out.c / groups;
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const auto q = static_cast<size_t>(k / size);
          const float value = fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge);
          out.at(y, x, k) =
              (value - of.mean[q]) * of.reciprocal[q] * (gamma ? floats_of(gamma)[k] : 1.0F) +
              (beta ? floats_of(beta)[k] : 0.0F);
        }
      }
    }
  };
}

Work gradient(NSArray<MPSState*>* states, const Where& where) {
  struct Target {
    StoragePtr gamma, by_gamma, by_beta;
  };
  std::vector<Target> targets;
  for (MPSState* state in states) {
    const GroupPayload& p = payload_of(state, where);
    targets.push_back({optional_storage(p.weights->gamma.get(), where),
                       storage_of(p.by_gamma.get(), where), storage_of(p.by_beta.get(), where)});
  }
  const GroupPayload& first = payload_of([states objectAtIndex:0], where);
  return [targets, epsilon = first.epsilon, groups = static_cast<long>(first.groups)](
             const std::vector<Tensor>& in, Tensor& out, size_t index) {
    const Target& target = targets[index];
    const Tensor& x = in[1];
    const Statistics of = statistics(x, groups, epsilon);
    const long size = x.c / groups;
    const auto normalized = [&](long j, long i, long k) {
      const auto q = static_cast<size_t>(k / size);
      return (x.at(j, i, k) - of.mean[q]) * of.reciprocal[q];
    };
    const auto scaled = [&](long j, long i, long k) {
      return in[0].at(j, i, k) * (target.gamma ? floats_of(target.gamma)[k] : 1.0F);
    };
    for (long k = 0; k < x.c; ++k) {
      double by_gamma = 0, by_beta = 0;
      for (long j = 0; j < x.h; ++j) {
        for (long i = 0; i < x.w; ++i) {
          by_beta += static_cast<double>(in[0].at(j, i, k));
          by_gamma += static_cast<double>(in[0].at(j, i, k) * normalized(j, i, k));
        }
      }
      floats_of(target.by_gamma)[k] = static_cast<float>(by_gamma);
      floats_of(target.by_beta)[k] = static_cast<float>(by_beta);
    }
    for (long q = 0; q < groups; ++q) {
      double sum = 0, product = 0;
      const auto count = static_cast<double>(x.h * x.w * size);
      for (long j = 0; j < x.h; ++j) {
        for (long i = 0; i < x.w; ++i) {
          for (long k = q * size; k < (q + 1) * size; ++k) {
            sum += static_cast<double>(scaled(j, i, k));
            product += static_cast<double>(scaled(j, i, k) * normalized(j, i, k));
          }
        }
      }
      const auto mean = static_cast<float>(sum / count);
      const auto slope = static_cast<float>(product / count);
      for (long j = 0; j < out.h; ++j) {
        for (long i = 0; i < out.w; ++i) {
          for (long k = q * size; k < (q + 1) * size; ++k) {
            out.at(j, i, k) = of.reciprocal[static_cast<size_t>(q)] *
                              (scaled(j, i, k) - mean - normalized(j, i, k) * slope);
          }
        }
      }
    }
  };
}

}  // namespace

#define STATE_UNAVAILABLE                                                                         \
  +(instancetype)temporaryStateWithCommandBuffer : (id<MTLCommandBuffer>)cmdBuf textureDescriptor \
      : (MTLTextureDescriptor*)descriptor {                                                       \
    (void)cmdBuf, (void)descriptor;                                                               \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  +(instancetype)temporaryStateWithCommandBuffer : (id<MTLCommandBuffer>)cmdBuf {                 \
    (void)cmdBuf;                                                                                 \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  +(instancetype)temporaryStateWithCommandBuffer : (id<MTLCommandBuffer>)cmdBuf bufferSize        \
      : (size_t)bufferSize {                                                                      \
    (void)cmdBuf, (void)bufferSize;                                                               \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device textureDescriptor                         \
      : (MTLTextureDescriptor*)descriptor {                                                       \
    (void)device, (void)descriptor;                                                               \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  -(instancetype)initWithResource : (id<MTLResource>)resource {                                   \
    (void)resource;                                                                               \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device bufferSize : (size_t)bufferSize {         \
    (void)device, (void)bufferSize;                                                               \
    spring(Trap::init_unavailable, HERE);                                                         \
  }

#define NORMALIZATION_STATE(kernel_class, creator)                                       \
  @implementation kernel_class                                                           \
  ##GradientState STATE_UNAVAILABLE - (kernel_class*)creator {                           \
    return static_cast<kernel_class*>(payload_of(self, HERE).kernel.get());              \
  }                                                                                      \
  -(id<MTLBuffer>)gamma {                                                                \
    return payload_of(self, HERE).weights->gamma.get();                                  \
  }                                                                                      \
  -(id<MTLBuffer>)beta {                                                                 \
    return payload_of(self, HERE).weights->beta.get();                                   \
  }                                                                                      \
  -(id<MTLBuffer>)gradientForGamma {                                                     \
    return payload_of(self, HERE).by_gamma.get();                                        \
  }                                                                                      \
  -(id<MTLBuffer>)gradientForBeta {                                                      \
    return payload_of(self, HERE).by_beta.get();                                         \
  }                                                                                      \
  -(void)synchronizeOnCommandBuffer : (id<MTLCommandBuffer>)commandBuffer {              \
    [super synchronizeOnCommandBuffer:commandBuffer];                                    \
    if (body_->temporary) return;                                                        \
    for (const id<MTLBuffer> buffer :                                                    \
         {[self gamma], [self beta], [self gradientForGamma], [self gradientForBeta]}) { \
      if (buffer != nil) synchronize(commandBuffer, HERE, storage_of(buffer, HERE));     \
    }                                                                                    \
  }                                                                                      \
  @end

#define NORMALIZATION_KERNEL(kernel_class, source_protocol, groups_of)                            \
  @implementation kernel_class                                                                    \
  -(std::shared_ptr<Params>)emulatedParams {                                                      \
    return std::make_shared<NormalizationParams>();                                               \
  }                                                                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                                         \
    (void)device;                                                                                 \
    spring(Trap::init_unavailable, HERE);                                                         \
  }                                                                                               \
  -(instancetype)initWithDevice : (id<MTLDevice>)device dataSource                                \
      : (id<source_protocol>)dataSource {                                                         \
    self = [super initWithDevice:device];                                                         \
    auto params = std::make_shared<NormalizationParams>();                                        \
    params->source = dataSource;                                                                  \
    body_->params = params;                                                                       \
    if (!load_normalization(*body_, dataSource, true, true, false, HERE)) {                       \
      [self release];                                                                             \
      return nil;                                                                                 \
    }                                                                                             \
    return self;                                                                                  \
  }                                                                                               \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device {              \
    return [super initWithCoder:aDecoder device:device];                                          \
  }                                                                                               \
  -(float)epsilon {                                                                               \
    return body_->as<NormalizationParams>().epsilon;                                              \
  }                                                                                               \
  -(void)setEpsilon : (float)epsilon {                                                            \
    body_->as<NormalizationParams>().epsilon = epsilon;                                           \
  }                                                                                               \
  -(id<source_protocol>)dataSource {                                                              \
    return body_->as<NormalizationParams>().source.get();                                         \
  }                                                                                               \
  -(Class)emulatedStateClass {                                                                    \
    return [kernel_class##GradientState class];                                                   \
  }                                                                                               \
  -(void)emulatedPrepareState : (MPSState*)state images : (NSArray<MPSImage*>*)images {           \
    (void)images;                                                                                 \
    const auto& p = body_->as<NormalizationParams>();                                             \
    StateBody& body = *[state emulatedBody];                                                      \
    auto payload = std::make_shared<GroupPayload>();                                              \
    payload->kernel = self;                                                                       \
    payload->weights = p.weights;                                                                 \
    payload->epsilon = p.epsilon;                                                                 \
    payload->channels = p.channels;                                                               \
    payload->groups = groups_of(p);                                                               \
    const int device = index_of(body.device.get(), HERE);                                         \
    payload->by_gamma = vector_buffer(device, p.channels, body.temporary);                        \
    payload->by_beta = vector_buffer(device, p.channels, body.temporary);                         \
    body.payload = payload;                                                                       \
  }                                                                                               \
  -(void)emulatedCheck : (const Call&)call where : (const Where&)where {                          \
    check_normalized_channels(*body_, 0, call.sources[0], where);                                 \
    std::set<MPSState*> distinct;                                                                 \
    for (MPSState * state in call.written_states) {                                               \
      REQUIRE(distinct.insert(state).second, state_not_distinct, where);                          \
    }                                                                                             \
  }                                                                                               \
  -(Extra)emulatedExtra : (NSArray<MPSState*>*)states {                                           \
    (void)states;                                                                                 \
    const Where where{self, _cmd};                                                                \
    Extra extra;                                                                                  \
    const NormalizationWeights& w = *body_->as<NormalizationParams>().weights;                    \
    for (const id<MTLBuffer> buffer : {w.gamma.get(), w.beta.get()}) {                            \
      if (buffer != nil) extra.reads.push_back(storage_of(buffer, where));                        \
    }                                                                                             \
    return extra;                                                                                 \
  }                                                                                               \
  -(Work)emulatedWork : (NSArray<MPSState*>*)states {                                             \
    (void)states;                                                                                 \
    const auto& p = body_->as<NormalizationParams>();                                             \
    return normalize(p, static_cast<long>(groups_of(p)), body_->sources[0]);                      \
  }                                                                                               \
  -(void)reloadGammaAndBetaFromDataSource {                                                       \
    REQUIRE(load_normalization(*body_, [self dataSource], false, true, false, HERE), data_source, \
            HERE, "load returned NO");                                                            \
  }                                                                                               \
  -(void)reloadGammaAndBetaWithCommandBuffer                                                      \
      : (id<MTLCommandBuffer>)commandBuffer gammaAndBetaState                                     \
      : (MPSCNNNormalizationGammaAndBetaState*)gammaAndBetaState {                                \
    reload_vectors(*body_, commandBuffer, gammaAndBetaState, &NormalizationWeights::gamma,        \
                   &NormalizationWeights::beta, HERE);                                            \
  }                                                                                               \
  -(kernel_class##GradientState*)resultStateForSourceImage : (MPSImage*)sourceImage sourceStates  \
      : (NSArray<MPSState*>*)sourceStates destinationImage : (MPSImage*)destinationImage {        \
    return static_cast<kernel_class##GradientState*>([super                                       \
        resultStateForSourceImage:sourceImage                                                     \
                     sourceStates:sourceStates                                                    \
                 destinationImage:destinationImage]);                                             \
  }                                                                                               \
  -(kernel_class##GradientState*)temporaryResultStateForCommandBuffer                             \
      : (id<MTLCommandBuffer>)commandBuffer sourceImage : (MPSImage*)sourceImage sourceStates     \
      : (NSArray<MPSState*>*)sourceStates destinationImage : (MPSImage*)destinationImage {        \
    return static_cast<kernel_class##GradientState*>([super                                       \
        temporaryResultStateForCommandBuffer:commandBuffer                                        \
                                 sourceImage:sourceImage                                          \
                                sourceStates:sourceStates                                         \
                            destinationImage:destinationImage]);                                  \
  }                                                                                               \
  @end

#define NORMALIZATION_GRADIENT(kernel_class)                                                   \
  @implementation kernel_class                                                                 \
  ##Gradient - (bool)emulatedAcceptsState : (MPSState*)state {                                 \
    return [state isKindOfClass:[kernel_class##GradientState class]];                          \
  }                                                                                            \
  -(bool)emulatedAcceptsForwardClass : (Class)forward {                                        \
    return [forward isSubclassOfClass:[kernel_class class]];                                   \
  }                                                                                            \
  -(void)emulatedCheckGradient : (const Call&)call where : (const Where&)where {               \
    [super emulatedCheckGradient:call where:where];                                            \
    std::set<MPSState*> distinct;                                                              \
    for (MPSState * state in call.read_states) {                                               \
      REQUIRE(distinct.insert(state).second, state_not_distinct, where);                       \
      REQUIRE([state emulatedBody]->encoded, state_not_encoded, where);                        \
    }                                                                                          \
    for (MPSState * state in call.read_states) {                                               \
      check_normalized_channels(*body_, 1, call.sources[1], payload_of(state, where).channels, \
                                where);                                                        \
    }                                                                                          \
  }                                                                                            \
  -(Extra)emulatedGradientExtra : (NSArray<MPSState*>*)states {                                \
    const Where where{self, _cmd};                                                             \
    Extra extra;                                                                               \
    for (MPSState * state in states) {                                                         \
      const GroupPayload& p = payload_of(state, where);                                        \
      if (p.weights->gamma) {                                                                  \
        extra.reads.push_back(storage_of(p.weights->gamma.get(), where));                      \
      }                                                                                        \
      extra.writes.push_back(storage_of(p.by_gamma.get(), where));                             \
      extra.writes.push_back(storage_of(p.by_beta.get(), where));                              \
    }                                                                                          \
    return extra;                                                                              \
  }                                                                                            \
  -(Work)emulatedGradientWork : (NSArray<MPSState*>*)states {                                  \
    return gradient(states, Where{self, _cmd});                                                \
  }                                                                                            \
  @end

#define INSTANCE_GROUPS(params) (params).channels
#define GROUP_GROUPS(params) (params).groups

NORMALIZATION_STATE(MPSCNNInstanceNormalization, instanceNormalization)
NORMALIZATION_STATE(MPSCNNGroupNormalization, groupNormalization)
NORMALIZATION_KERNEL(MPSCNNInstanceNormalization, MPSCNNInstanceNormalizationDataSource,
                     INSTANCE_GROUPS)
NORMALIZATION_KERNEL(MPSCNNGroupNormalization, MPSCNNGroupNormalizationDataSource, GROUP_GROUPS)
NORMALIZATION_GRADIENT(MPSCNNInstanceNormalization)
NORMALIZATION_GRADIENT(MPSCNNGroupNormalization)
