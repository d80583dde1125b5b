// Element-wise arithmetic with broadcasting by stride, comparisons, and gradients.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

struct ArithmeticParams : ParamsOf<ArithmeticParams> {
  float primary_scale = 1, secondary_scale = 1, bias = 0;
  float minimum = -FLT_MAX, maximum = FLT_MAX;
  NSUInteger primary_stride = 1, secondary_stride = 1;  // across channels
  MPSNNComparisonType comparison = MPSNNComparisonTypeEqual;
  float threshold = 0;
  BOOL secondary_filter = NO;
  void fields(Fields& f) override {
    f("primaryScale", primary_scale);
    f("secondaryScale", secondary_scale);
    f("bias", bias);
    f("minimum", minimum);
    f("maximum", maximum);
    f("primaryStride", primary_stride);
    f("secondaryStride", secondary_stride);
    f("comparison", comparison);
    f("threshold", threshold);
    f("secondaryFilter", secondary_filter);
  }
  NSUInteger stride(size_t source) const { return source == 0 ? primary_stride : secondary_stride; }
};

// Where elements of a clipped forward result were not clamped; filled on the GPU's timeline.
using Mask = std::shared_ptr<Tensor>;

struct MaskPayload {
  std::map<long, Mask> masks;  // by number of the image; a batch has one state an image
  StoragePtr guard;            // makes the masks visible to hazard tracking and synchronization
  long width[2] = {0, 0}, height[2] = {0, 0}, channels[2] = {0, 0};  // of the sources; read
};

MaskPayload& payload_of(MPSState* state) {
  return *std::static_pointer_cast<MaskPayload>([state emulatedBody]->payload);
}

// The mask of each image of an operand whose states these are.
std::map<long, Mask> masks_of(NSArray<MPSState*>* states) {
  if ([states count] == 1) return payload_of([states objectAtIndex:0]).masks;
  std::map<long, Mask> result;
  for (NSUInteger index = 0; index < [states count]; ++index) {
    const auto& masks = payload_of([states objectAtIndex:index]).masks;
    if (!masks.empty()) result[static_cast<long>(index)] = masks.begin()->second;
  }
  return result;
}

// New masks for the images of an encode: a gradient encoded before it keeps what it had. They hold
// junk for as long as nothing was written.
std::vector<Mask> renew_masks(const Call& call, const Box& clip, long channels) {
  std::vector<Mask> result;
  for (long z = 0; z < clip.d; ++z) {
    const long image = clip.z + z;
    const auto mask = std::make_shared<Tensor>(clip.h, clip.w, channels);
    std::fill(mask->data.begin(), mask->data.end(), std::numeric_limits<float>::quiet_NaN());
    NSArray<MPSState*>* states = call.written_states;
    auto& masks =
        payload_of([states objectAtIndex:call.batch ? static_cast<NSUInteger>(image) : 0]).masks;
    if (call.batch || z == 0) masks.clear();
    masks[call.batch ? 0 : image] = mask;
    result.push_back(mask);
  }
  return result;
}

void check_parameters(const KernelBody& kernel, const Where& where) {
  const auto& p = kernel.as<ArithmeticParams>();
  for (const Operand& source : kernel.sources) {
    REQUIRE(source.stride_x <= 1 && source.stride_y <= 1, arithmetic_stride, where, "%lu %lu",
            static_cast<unsigned long>(source.stride_x),
            static_cast<unsigned long>(source.stride_y));
  }
  REQUIRE(p.primary_stride <= 1 && p.secondary_stride <= 1, arithmetic_stride, where,
          "in feature channels: %lu %lu", static_cast<unsigned long>(p.primary_stride),
          static_cast<unsigned long>(p.secondary_stride));
  REQUIRE(p.minimum <= p.maximum, arithmetic_limits, where, "%g %g", static_cast<double>(p.minimum),
          static_cast<double>(p.maximum));
}

// How one source is read.
struct Reader {
  Operand source;
  long channel_stride = 1;
  float at(const Tensor& values, long y, long x, long k) const {
    return fetch(values, source.offset.y + static_cast<long>(source.stride_y) * y,
                 source.offset.x + static_cast<long>(source.stride_x) * x, channel_stride * k,
                 source.edge);
  }
};

Reader reader_of(const KernelBody& kernel, size_t source) {
  return {kernel.sources[source], static_cast<long>(kernel.as<ArithmeticParams>().stride(source))};
}

using Operation = double (*)(const ArithmeticParams&, double, double);

double compared(const ArithmeticParams& p, double x, double y) {
  const bool equal = std::abs(x - y) <= static_cast<double>(p.threshold);
  switch (p.comparison) {
    case MPSNNComparisonTypeNotEqual:
      return equal ? 0 : 1;
    case MPSNNComparisonTypeLess:
      return x < y ? 1 : 0;
    case MPSNNComparisonTypeLessOrEqual:
      return x < y || equal ? 1 : 0;
    case MPSNNComparisonTypeGreater:
      return x > y ? 1 : 0;
    case MPSNNComparisonTypeGreaterOrEqual:
      return x > y || equal ? 1 : 0;
    default:
      return equal ? 1 : 0;
  }
}

}  // namespace

@interface MPSCNNArithmetic (Emulated)
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device;
- (double)emulatedJoin:(double)x with:(double)y;
- (bool)emulatedLimits;  // whether the limits apply
@end

@implementation MPSCNNArithmeticGradientState
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
@end

#define SETTING(type, getter, setter, member)     \
  -(type)getter {                                 \
    return body_->as<ArithmeticParams>().member;  \
  }                                               \
  -(void)setter : (type)value {                   \
    body_->as<ArithmeticParams>().member = value; \
  }

@implementation MPSCNNArithmetic
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ArithmeticParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  return self;
}
SETTING(float, primaryScale, setPrimaryScale, primary_scale)
SETTING(float, secondaryScale, setSecondaryScale, secondary_scale)
SETTING(float, bias, setBias, bias)
SETTING(float, minimumValue, setMinimumValue, minimum)
SETTING(float, maximumValue, setMaximumValue, maximum)
SETTING(NSUInteger, primaryStrideInFeatureChannels, setPrimaryStrideInFeatureChannels,
        primary_stride)
SETTING(NSUInteger, secondaryStrideInFeatureChannels, setSecondaryStrideInFeatureChannels,
        secondary_stride)

- (double)emulatedJoin:(double)x with:(double)y {
  (void)x, (void)y;
  spring(Trap::abstract_kernel, HERE);
}
- (bool)emulatedLimits {
  return true;
}
- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed {
  const auto& p = body_->as<ArithmeticParams>();
  const long first = p.primary_stride == 0 ? 0 : consumed[0];
  const long second = p.secondary_stride == 0 ? 0 : consumed[1];
  REQUIRE(first == second || first == 0 || second == 0, arithmetic_channels, HERE, "%ld and %ld",
          first, second);
  return std::max({first, second, 1L});
}
// `masks`: of each image, or none.
- (Work)emulatedArithmeticWork:(const std::vector<Mask>&)masks {
  // The kernel as it is now: a command copies its parameters.
  const Strong<MPSCNNArithmetic*> frozen = adopt(static_cast<MPSCNNArithmetic*>([self copy]));
  return [frozen, masks, first = reader_of(*body_, 0), second = reader_of(*body_, 1),
          minimum = body_->as<ArithmeticParams>().minimum,
          maximum = body_->as<ArithmeticParams>().maximum](const std::vector<Tensor>& in,
                                                           Tensor& out, size_t index) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const auto r = static_cast<float>([frozen.get()
              emulatedJoin:static_cast<double>(first.at(in[0], y, x, k))
                      with:static_cast<double>(second.at(in[1], y, x, k))]);
          if (!masks.empty()) {
            masks[index]->at(y, x, k) = minimum < r && r < maximum ? 1.0F : 0.0F;
          }
          const bool limits = [frozen.get() emulatedLimits] && !std::isnan(r);
          out.at(y, x, k) = limits ? std::min(std::max(r, minimum), maximum) : r;
        }
      }
    }
  };
}
- (Work)emulatedBinaryWork {
  return [self emulatedArithmeticWork:{}];
}
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  check_parameters(*body_, where);
}

// ---- states

- (MPSState*)emulatedState:(id<MTLCommandBuffer>)commandBuffer
                   primary:(MPSImage*)primary
                 secondary:(MPSImage*)secondary
               destination:(MPSImage*)destination
                     where:(const Where&)where {
  check_parameters(*body_, where);
  const ImageBody* sources[] = {&body_of(primary, where), &body_of(secondary, where)};
  const ImageBody& to = body_of(destination, where);
  MPSState* state =
      commandBuffer != nil
          ? [[MPSCNNArithmeticGradientState alloc] emulatedInitTemporary:commandBuffer]
          : [[MPSCNNArithmeticGradientState alloc] emulatedInitWithDevice:sources[0]->device.get()];
  [state autorelease];
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  auto payload = std::make_shared<MaskPayload>();
  payload->guard = std::make_shared<Storage>(index_of(sources[0]->device.get(), where),
                                             MTLStorageModePrivate, size_t{1}, uint8_t{0});
  for (size_t i = 0; i < 2; ++i) {
    const Operand& operand = body_->sources[i];
    REQUIRE(operand.channel_offset < sources[i]->shape.channels, source_channels, where);
    payload->width[i] = l(sources[i]->shape.width);
    payload->height[i] = l(sources[i]->shape.height);
    payload->channels[i] =
        l(std::min(operand.channel_max, sources[i]->shape.channels - operand.channel_offset));
  }
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->kernel_class = [self class];
  snapshot->kernel = *body_;
  snapshot->kernel.params = body_->params->recorded();
  snapshot->fingerprint = body_->fingerprint();
  const auto extent = [&](NSUInteger origin, NSUInteger size, NSUInteger limit) {
    return origin >= limit ? 0L : l(std::min(size, limit - origin));
  };
  const MTLRegion& clip = body_->clip;
  snapshot->clip = {l(clip.origin.x),
                    l(clip.origin.y),
                    0,
                    extent(clip.origin.x, clip.size.width, to.shape.width),
                    extent(clip.origin.y, clip.size.height, to.shape.height),
                    1};
  snapshot->consumed = payload->channels[0];
  snapshot->consumed_secondary = payload->channels[1];
  snapshot->destination_w = l(to.shape.width);
  snapshot->destination_h = l(to.shape.height);
  snapshot->produced = [self emulatedBinaryChannels:{payload->channels[0], payload->channels[1]}];
  [state emulatedBody]->snapshot = std::move(snapshot);
  [state emulatedBody]->payload = std::move(payload);
  return state;
}
- (MPSState*)resultStateForPrimaryImage:(MPSImage*)primaryImage
                         secondaryImage:(MPSImage*)secondaryImage
                           sourceStates:(NSArray<MPSState*>*)sourceStates
                       destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates;
  return [self emulatedState:nil
                     primary:primaryImage
                   secondary:secondaryImage
                 destination:destinationImage
                       where:HERE];
}
- (MPSState*)temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                     primaryImage:(MPSImage*)primaryImage
                                   secondaryImage:(MPSImage*)secondaryImage
                                     sourceStates:(NSArray<MPSState*>*)sourceStates
                                 destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates;
  check_encodable(commandBuffer, HERE);
  return [self emulatedState:commandBuffer
                     primary:primaryImage
                   secondary:secondaryImage
                 destination:destinationImage
                       where:HERE];
}
- (NSArray*)emulatedStates:(id<MTLCommandBuffer>)commandBuffer
                   primary:(NSArray<MPSImage*>*)primary
                 secondary:(NSArray<MPSImage*>*)secondary
               destination:(NSArray<MPSImage*>*)destination
                     where:(const Where&)where {
  REQUIRE(primary != nil && secondary != nil && destination != nil, nil_argument, where);
  REQUIRE([primary count] == [secondary count] && [primary count] == [destination count],
          batch_length, where);
  NSMutableArray* states = [NSMutableArray array];
  for (NSUInteger index = 0; index < [primary count]; ++index) {
    [states addObject:[self emulatedState:commandBuffer
                                  primary:[primary objectAtIndex:index]
                                secondary:[secondary objectAtIndex:index]
                              destination:[destination objectAtIndex:index]
                                    where:where]];
  }
  return states;
}
- (MPSStateBatch*)resultStateBatchForPrimaryImage:(MPSImageBatch*)primaryImage
                                   secondaryImage:(MPSImageBatch*)secondaryImage
                                     sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                 destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates;
  return [self emulatedStates:nil
                      primary:primaryImage
                    secondary:secondaryImage
                  destination:destinationImage
                        where:HERE];
}
- (MPSStateBatch*)temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                               primaryImage:(MPSImageBatch*)primaryImage
                                             secondaryImage:(MPSImageBatch*)secondaryImage
                                               sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                           destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates;
  check_encodable(commandBuffer, HERE);
  return [self emulatedStates:commandBuffer
                      primary:primaryImage
                    secondary:secondaryImage
                  destination:destinationImage
                        where:HERE];
}

// ---- encodes with a state

- (void)emulatedEncodeWithStates:(const Call&)call where:(const Where&)where {
  const ProducedChannels produced = [self](const std::vector<long>& consumed) {
    return [self emulatedBinaryChannels:consumed];
  };
  const Plan plan = plan_encode(*body_, call, produced, where);
  check_parameters(*body_, where);
  std::set<MPSState*> distinct;
  Extra extra;
  for (MPSState* state in call.written_states) {
    StateBody& body = body_of(state, where);
    REQUIRE([state isKindOfClass:[MPSCNNArithmeticGradientState class]], state_wrong_class, where);
    REQUIRE(body.snapshot != nullptr && body.snapshot->kernel_class == [self class],
            state_foreign_kernel, where);
    REQUIRE(body.snapshot->fingerprint == body_->fingerprint(), kernel_changed, where);
    REQUIRE(distinct.insert(state).second, state_not_distinct, where);
    body.encoded = true;
    extra.writes.push_back(payload_of(state).guard);
  }
  const long channels = produced(plan.consumed);
  record_work(*body_, call, plan, channels,
              [self emulatedArithmeticWork:renew_masks(call, plan.clip, channels)], where, extra);
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                 primaryImage:(MPSImage*)primaryImage
               secondaryImage:(MPSImage*)secondaryImage
             destinationState:(MPSCNNArithmeticGradientState*)destinationState
             destinationImage:(MPSImage*)destinationImage {
  REQUIRE(destinationState != nil, nil_argument, HERE, "destinationState");
  [self emulatedEncodeWithStates:{commandBuffer,
                                  {single(primaryImage), single(secondaryImage)},
                                  single(destinationImage),
                                  nil,
                                  single(destinationState)}
                           where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     primaryImages:(MPSImageBatch*)primaryImages
                   secondaryImages:(MPSImageBatch*)secondaryImages
                 destinationStates:(MPSCNNArithmeticGradientStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages {
  REQUIRE(destinationStates != nil, nil_argument, HERE, "destinationStates");
  [self emulatedEncodeWithStates:{commandBuffer,
                                  {primaryImages, secondaryImages},
                                  destinationImages,
                                  nil,
                                  static_cast<NSArray<MPSState*>*>(destinationStates),
                                  true}
                           where:HERE];
}
@end

#define OPERATION(name, expression)                                     \
  @implementation name                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {               \
    return [super emulatedInitOnDevice:device];                         \
  }                                                                     \
  -(double)emulatedJoin : (double)x with : (double)y {                  \
    const auto& settings = body_->as<ArithmeticParams>();               \
    const double p = static_cast<double>(settings.primary_scale) * x;   \
    const double q = static_cast<double>(settings.secondary_scale) * y; \
    return (expression) + static_cast<double>(settings.bias);           \
  }                                                                     \
  @end

OPERATION(MPSCNNAdd, p + q)
OPERATION(MPSCNNSubtract, p - q)
OPERATION(MPSCNNMultiply, p* q)
OPERATION(MPSCNNDivide, p / q)

@implementation MPSNNCompare
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [super emulatedInitOnDevice:device];
}
SETTING(MPSNNComparisonType, comparisonType, setComparisonType, comparison)
SETTING(float, threshold, setThreshold, threshold)
- (double)emulatedJoin:(double)x with:(double)y {
  return compared(body_->as<ArithmeticParams>(), x, y);
}
- (bool)emulatedLimits {
  return false;
}
@end

// ---------------------------------------------------------------- gradients

@interface MPSCNNArithmeticGradient (Emulated)
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device secondary:(BOOL)isSecondarySourceFilter;
- (bool)emulatedMultiplies;
- (std::shared_ptr<Snapshot>)emulatedSnapshotOf:(MPSState*)state where:(const Where&)where;
@end

@implementation MPSCNNArithmeticGradient
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ArithmeticParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
       isSecondarySourceFilter:(BOOL)isSecondarySourceFilter {
  (void)device, (void)isSecondarySourceFilter;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device secondary:(BOOL)isSecondarySourceFilter {
  self = [super initWithDevice:device];
  auto params = std::make_shared<ArithmeticParams>();
  params->secondary_filter = isSecondarySourceFilter;
  body_->params = params;
  return self;
}
SETTING(float, primaryScale, setPrimaryScale, primary_scale)
SETTING(float, secondaryScale, setSecondaryScale, secondary_scale)
SETTING(float, bias, setBias, bias)
SETTING(float, minimumValue, setMinimumValue, minimum)
SETTING(float, maximumValue, setMaximumValue, maximum)
SETTING(NSUInteger, secondaryStrideInFeatureChannels, setSecondaryStrideInFeatureChannels,
        secondary_stride)
- (BOOL)isSecondarySourceFilter {
  return body_->as<ArithmeticParams>().secondary_filter;
}
- (bool)emulatedMultiplies {
  return false;
}
// Which forward source is differentiated by, and which is read.
- (size_t)emulatedOwn {
  return body_->as<ArithmeticParams>().secondary_filter ? 1 : 0;
}
- (size_t)emulatedRead {
  return [self emulatedMultiplies] ? 1 - [self emulatedOwn] : [self emulatedOwn];
}
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSCNNArithmeticGradientState class]];
}
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)consumed;
  return [self emulatedOwn] == 0 ? snapshot.consumed : snapshot.consumed_secondary;
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  REQUIRE([sourceImages count] == 2, source_count, HERE);
  REQUIRE([sourceStates count] > 0, stateless_gradient, HERE);
  MPSState* state = [sourceStates objectAtIndex:0];
  const std::shared_ptr<Snapshot> forward = [self emulatedSnapshotOf:state where:HERE];
  const size_t own = [self emulatedOwn], read = [self emulatedRead];
  body_->sources[0].offset.x = forward->clip.x;
  body_->sources[0].offset.y = forward->clip.y;
  body_->sources[1] = forward->kernel.sources[read];
  body_->as<ArithmeticParams>().secondary_stride =
      forward->kernel.as<ArithmeticParams>().stride(read);
  const MaskPayload& payload = payload_of(state);
  return [MPSImageDescriptor
      imageDescriptorWithChannelFormat:body_of([sourceImages objectAtIndex:0], HERE).shape.format
                                 width:static_cast<NSUInteger>(payload.width[own])
                                height:static_cast<NSUInteger>(payload.height[own])
                       featureChannels:body_->destination_channel_offset +
                                       static_cast<NSUInteger>(payload.channels[own])];
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  check_parameters(*body_, where);
  std::set<MPSState*> distinct;
  for (MPSState* state in call.read_states) {
    REQUIRE(distinct.insert(state).second, state_not_distinct, where);
  }
  MPSState* first = [call.read_states objectAtIndex:0];
  const Snapshot& forward = *[first emulatedBody]->snapshot;
  const MaskPayload& payload = payload_of(first);
  const ImageBody& gradient = body_of([call.sources[0] objectAtIndex:0], where);
  const ImageBody& source = body_of([call.sources[1] objectAtIndex:0], where);
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  const std::map<long, Mask> masks = masks_of(call.read_states);
  const NSUInteger images = call.batch
                                ? [call.destinations count]
                                : body_of([call.destinations objectAtIndex:0], where).shape.count;
  const MTLRegion& clip = body_->clip;
  const long count =
      clip.origin.z < images ? l(std::min(clip.size.depth, images - clip.origin.z)) : 0;
  for (long z = 0; z < count; ++z) {
    REQUIRE(masks.count(body_->sources[0].offset.z + z) == 1, state_not_encoded, where, "image %ld",
            static_cast<long>(body_->sources[0].offset.z) + z);
  }
  REQUIRE(l(gradient.shape.width) == forward.destination_w &&
              l(gradient.shape.height) == forward.destination_h,
          gradient_shape, where, "the gradient differs from the forward result");
  const size_t read = [self emulatedRead];
  REQUIRE(l(source.shape.width) == payload.width[read] &&
              l(source.shape.height) == payload.height[read],
          gradient_shape, where, "the source differs from the forward source");
  const Operand& operand = forward.kernel.sources[read];
  const auto& own = body_->as<ArithmeticParams>();
  REQUIRE(body_->sources[1].stride_x == operand.stride_x &&
              body_->sources[1].stride_y == operand.stride_y &&
              own.secondary_stride == forward.kernel.as<ArithmeticParams>().stride(read),
          arithmetic_stride, where, "the strides differ from the forward kernel's");
  REQUIRE(body_->sources[0].stride_x == 1 && body_->sources[0].stride_y == 1, arithmetic_stride,
          where, "the incoming gradient is never broadcast");
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  Extra extra;
  for (MPSState* state in states) extra.reads.push_back(payload_of(state).guard);
  return extra;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  MPSState* first = [states objectAtIndex:0];
  const Snapshot& forward = *[first emulatedBody]->snapshot;
  const size_t which = [self emulatedOwn];
  const MaskPayload& payload = payload_of(first);
  const auto& p = body_->as<ArithmeticParams>();
  return [masks = masks_of(states), own = reader_of(forward.kernel, which),
          width = payload.width[which], height = payload.height[which], clip = forward.clip,
          produced = forward.produced,
          other = Reader{body_->sources[1], static_cast<long>(p.secondary_stride)},
          g = body_->sources[0], multiplies = [self emulatedMultiplies],
          a = static_cast<double>(p.primary_scale), b = static_cast<double>(p.secondary_scale)](
             const std::vector<Tensor>& in, Tensor& out, size_t index) {
    const Tensor& mask = *masks.at(static_cast<long>(g.offset.z) + static_cast<long>(index));
    // Every term goes back to the element that was read.
    std::vector<double> sums(static_cast<size_t>(height * width * out.c), 0.0);
    const auto place = [&](long position, long offset, NSUInteger stride, long length) {
      const long at = offset + static_cast<long>(stride) * position;
      if (own.source.edge == MPSImageEdgeModeClamp) return std::clamp(at, 0L, length - 1);
      return at >= 0 && at < length ? at : -1;
    };
    for (long y = 0; y < clip.h; ++y) {
      for (long x = 0; x < clip.w; ++x) {
        const long row = place(y, own.source.offset.y, own.source.stride_y, height);
        const long column = place(x, own.source.offset.x, own.source.stride_x, width);
        if (row < 0 || column < 0) continue;
        for (long k = 0; k < produced; ++k) {
          const auto passed = static_cast<double>(mask.at(y, x, k));
          if (passed == 0.0) continue;
          double t = passed * a *
                     static_cast<double>(fetch(in[0], y + g.offset.y, x + g.offset.x, k, g.edge));
          if (multiplies) t *= b * static_cast<double>(other.at(in[1], y, x, k));
          sums[static_cast<size_t>((row * width + column) * out.c + own.channel_stride * k)] += t;
        }
      }
    }
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const bool inside = y < height && x < width;
          out.at(y, x, k) =
              inside ? static_cast<float>(sums[static_cast<size_t>((y * width + x) * out.c + k)])
                     : 0.0F;
        }
      }
    }
  };
}
@end

#define GRADIENT(name, forward_class, multiplies)                                 \
  @implementation name                                                            \
  -(instancetype)initWithDevice : (id<MTLDevice>)device isSecondarySourceFilter   \
      : (BOOL)isSecondarySourceFilter {                                           \
    return [super emulatedInitOnDevice:device secondary:isSecondarySourceFilter]; \
  }                                                                               \
  -(bool)emulatedAcceptsForwardClass : (Class)forward {                           \
    return [forward isSubclassOfClass:[forward_class class]];                     \
  }                                                                               \
  -(bool)emulatedMultiplies {                                                     \
    return multiplies;                                                            \
  }                                                                               \
  @end

GRADIENT(MPSCNNAddGradient, MPSCNNAdd, false)
GRADIENT(MPSCNNSubtractGradient, MPSCNNSubtract, false)
GRADIENT(MPSCNNMultiplyGradient, MPSCNNMultiply, true)
