// Dropout: a random mask forward, the same mask backward.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

struct DropoutParams : ParamsOf<DropoutParams> {
  float keep = 0.5F;
  NSUInteger seed = 0;
  MTLSize stride{1, 1, 1};
  mutable NSUInteger encodes = 0;  // every encode draws another mask
  void fields(Fields& f) override {
    f("keep", keep);
    f("seed", seed);
    f("stride.width", stride.width);
    f("stride.height", stride.height);
    f("stride.depth", stride.depth);
  }
};

// One mask for each image, filled on the GPU's timeline.
struct DropoutPayload {
  std::shared_ptr<std::vector<Tensor>> masks = std::make_shared<std::vector<Tensor>>();
  StoragePtr guard;  // makes the masks visible to hazard tracking and synchronization
  std::shared_ptr<bool> filled = std::make_shared<bool>(false);
};

DropoutPayload& payload_of(MPSState* state) {
  return *std::static_pointer_cast<DropoutPayload>([state emulatedBody]->payload);
}

std::shared_ptr<DropoutParams> parameters(float keep, NSUInteger seed, MTLSize stride,
                                          const Where& where) {
  REQUIRE(keep > 0 && keep < 1, dropout_parameters, where, "keepProbability %g",
          static_cast<double>(keep));
  REQUIRE(stride.width <= 1 && stride.height <= 1 && stride.depth <= 1, dropout_parameters, where,
          "mask stride %lu %lu %lu", static_cast<unsigned long>(stride.width),
          static_cast<unsigned long>(stride.height), static_cast<unsigned long>(stride.depth));
  auto params = std::make_shared<DropoutParams>();
  params->keep = keep;
  params->seed = seed;
  params->stride = stride;
  return params;
}

size_t images_of(const Call& call, const Where& where) {
  return call.batch ? [call.destinations count]
                    : body_of([call.destinations objectAtIndex:0], where).shape.count;
}

float mask_at(const Tensor& mask, long y, long x, long k) {
  return mask.at(mask.h == 1 ? 0 : y, mask.w == 1 ? 0 : x, mask.c == 1 ? 0 : k);
}

}  // namespace

@implementation MPSCNNDropoutGradientState
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (NSData*)maskData {
  REQUIRE(!body_->temporary, temporary_cpu_access, HERE);
  NSMutableData* data = [NSMutableData data];
  for (const Tensor& mask : *payload_of(self).masks) {
    for (const float value : mask.data) {
      const auto byte = static_cast<uint8_t>(value);
      [data appendBytes:&byte length:1];
    }
  }
  return data;
}
@end

#define DROPOUT_COMMON                                                               \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<DropoutParams>();                                        \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    (void)device;                                                                    \
    spring(Trap::init_unavailable, HERE);                                            \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device keepProbability              \
      : (float)keepProbability seed : (NSUInteger)seed maskStrideInPixels            \
      : (MTLSize)maskStrideInPixels {                                                \
    self = [super initWithDevice:device];                                            \
    body_->params = parameters(keepProbability, seed, maskStrideInPixels, HERE);     \
    return self;                                                                     \
  }                                                                                  \
  -(float)keepProbability {                                                          \
    return body_->as<DropoutParams>().keep;                                          \
  }                                                                                  \
  -(NSUInteger)seed {                                                                \
    return body_->as<DropoutParams>().seed;                                          \
  }                                                                                  \
  -(MTLSize)maskStrideInPixels {                                                     \
    return body_->as<DropoutParams>().stride;                                        \
  }

@implementation MPSCNNDropout
DROPOUT_COMMON
- (Class)emulatedStateClass {
  return [MPSCNNDropoutGradientState class];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return YES;
}
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images {
  (void)images;
  StateBody& body = *[state emulatedBody];
  auto payload = std::make_shared<DropoutPayload>();
  payload->guard = std::make_shared<Storage>(index_of(body.device.get(), HERE),
                                             MTLStorageModePrivate, size_t{1}, uint8_t{0});
  body.payload = payload;
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  MPSState* first = [call.written_states count] > 0 ? [call.written_states objectAtIndex:0] : nil;
  for (MPSState* state in call.written_states) REQUIRE(state == first, state_not_shared, where);
  if (first != nil) {
    DropoutPayload& p = payload_of(first);
    *p.filled = true;
    p.masks = std::make_shared<std::vector<Tensor>>(images_of(call, where));
  }
}
- (Extra)emulatedExtra:(NSArray<MPSState*>*)states {
  if ([states count] == 0) return {};
  return {{}, {payload_of([states objectAtIndex:0]).guard}};
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  const auto& p = body_->as<DropoutParams>();
  const NSUInteger draw = ++p.encodes;
  std::shared_ptr<std::vector<Tensor>> masks;
  if ([states count] > 0) masks = payload_of([states objectAtIndex:0]).masks;
  return [p, draw, masks, s = body_->sources[0]](const std::vector<Tensor>& in, Tensor& out,
                                                 size_t index) {
    Tensor mask(p.stride.height == 0 ? 1 : out.h, p.stride.width == 0 ? 1 : out.w,
                p.stride.depth == 0 ? 1 : out.c);
    std::seed_seq sequence{static_cast<uint32_t>(p.seed), static_cast<uint32_t>(draw),
                           static_cast<uint32_t>(index)};
    std::mt19937 generator(sequence);
    for (float& value : mask.data) {
      value = static_cast<double>(generator()) < static_cast<double>(p.keep) * 4294967296.0 ? 1.0F
                                                                                            : 0.0F;
    }
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const float value = fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge);
          out.at(y, x, k) = mask_at(mask, y, x, k) != 0 ? value / p.keep : 0.0F;
        }
      }
    }
    if (masks) (*masks)[index] = std::move(mask);
  };
}
- (MPSCNNDropoutGradientState*)resultStateForSourceImage:(MPSImage*)sourceImage
                                            sourceStates:(NSArray<MPSState*>*)sourceStates
                                        destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNDropoutGradientState*>([super
      resultStateForSourceImage:sourceImage
                   sourceStates:sourceStates
               destinationImage:destinationImage]);
}
- (MPSCNNDropoutGradientState*)resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                                                 sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                             destinationImage:(MPSImageBatch*)destinationImage {
  const id states = [super resultStateBatchForSourceImage:sourceImage
                                             sourceStates:sourceStates
                                         destinationImage:destinationImage];
  return states;  // a batch, whatever the declared type says
}
- (MPSCNNDropoutGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage {
  return static_cast<MPSCNNDropoutGradientState*>([super
      temporaryResultStateForCommandBuffer:commandBuffer
                               sourceImage:sourceImage
                              sourceStates:sourceStates
                          destinationImage:destinationImage]);
}
- (MPSCNNDropoutGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage {
  return static_cast<MPSCNNDropoutGradientStateBatch*>([super
      temporaryResultStateBatchForCommandBuffer:commandBuffer
                                    sourceImage:sourceImage
                                   sourceStates:sourceStates
                               destinationImage:destinationImage]);
}
@end

@implementation MPSCNNDropoutGradient
DROPOUT_COMMON
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSCNNDropoutGradientState class]];
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSCNNDropout class]];
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  [super emulatedCheckGradient:call where:where];
  MPSState* first = [call.read_states objectAtIndex:0];
  for (MPSState* state in call.read_states) REQUIRE(state == first, state_not_shared, where);
  REQUIRE(*payload_of(first).filled, state_not_encoded, where);
  REQUIRE(payload_of(first).masks->size() >= images_of(call, where), gradient_shape, where,
          "more images than the forward pass had");
  const auto& forward = [first emulatedBody]->snapshot -> kernel.as<DropoutParams>();
  const auto& own = body_->as<DropoutParams>();
  REQUIRE(forward.keep == own.keep && forward.stride.width == own.stride.width &&
              forward.stride.height == own.stride.height &&
              forward.stride.depth == own.stride.depth,
          gradient_shape, where, "the forward kernel had other parameters");
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  return {{payload_of([states objectAtIndex:0]).guard}, {}};
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  return [p = body_->as<DropoutParams>(), masks = payload_of([states objectAtIndex:0]).masks,
          g = body_->sources[0],
          s = body_->sources[1]](const std::vector<Tensor>& in, Tensor& out, size_t index) {
    const Tensor& mask = (*masks)[index];
    if (mask.data.empty()) {  // the forward encode has not run, so the contents are undefined
      std::fill(out.data.begin(), out.data.end(), std::numeric_limits<float>::quiet_NaN());
      return;
    }
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const long my = y + s.offset.y, mx = x + s.offset.x;
          const bool inside = (p.stride.height == 0 || (my >= 0 && my < mask.h)) &&
                              (p.stride.width == 0 || (mx >= 0 && mx < mask.w));
          const float incoming =
              fetch(in[0], y + g.offset.y, x + g.offset.x, k, MPSImageEdgeModeZero);
          out.at(y, x, k) = inside && mask_at(mask, my, mx, k) != 0 ? incoming / p.keep : 0.0F;
        }
      }
    }
  };
}
@end
