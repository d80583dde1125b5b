// Kernels that copy: reshape, slice and pad, and the gradients of the first and the last.
#include <algorithm>

#include "internal.hpp"

using namespace emulated_metal;

@interface MPSCNNKernel (EmulatedStates)
- (void)emulatedFill:(NSArray<MPSState*>*)states where:(const Where&)where;
@end

namespace emulated_metal {
namespace {

struct ReshapeParams : ParamsOf<ReshapeParams> {
  long width = 0, height = 0, channels = 0;  // of the encode that runs
};

struct PadParams : ParamsOf<PadParams> {
  MPSImageCoordinate before{0, 0, 0}, after{0, 0, 0};
  float fill = 0;
  std::vector<float> fills;
  void fields(Fields& f) override {
    f("before.x", before.x);
    f("before.y", before.y);
    f("before.channel", before.channel);
    f("after.x", after.x);
    f("after.y", after.y);
    f("after.channel", after.channel);
    f("fill", fill);
    f.floats("fills", fills);
  }
};

long elements(const ImageBody& image) {
  return static_cast<long>(image.shape.width * image.shape.height * image.shape.channels);
}

// Reshape and its gradient take images whole.
void require_whole(const KernelBody& kernel, NSArray<MPSImage*>* sources,
                   NSArray<MPSImage*>* destinations, const Where& where) {
  const ImageBody& from = body_of([sources objectAtIndex:0], where);
  const ImageBody& to = body_of([destinations objectAtIndex:0], where);
  const Operand& operand = kernel.sources[0];
  const MTLRegion& clip = kernel.clip;
  REQUIRE(operand.offset.x == 0 && operand.offset.y == 0 && operand.channel_offset == 0 &&
              operand.channel_max >= from.shape.channels &&
              kernel.destination_channel_offset == 0 && clip.origin.x == 0 && clip.origin.y == 0 &&
              clip.size.width >= to.shape.width && clip.size.height >= to.shape.height,
          kernel_parameters, where, "a reshape takes no offset, clip rectangle or channel window");
  REQUIRE(elements(from) == elements(to), kernel_parameters, where, "%ld elements become %ld",
          elements(from), elements(to));
}

Work flatten() {
  return [](const std::vector<Tensor>& in, Tensor& out, size_t) { out.data = in[0].data; };
}

// Where on an axis of length n a position outside reads, step by step; -1 for nowhere.
long inside(MPSImageEdgeMode edge, long n, long i) {
  if (i >= 0 && i < n) return i;
  if (edge == MPSImageEdgeModeZero || edge == MPSImageEdgeModeConstant) return -1;
  if (edge == MPSImageEdgeModeClamp || n == 1) return std::clamp(i, 0L, n - 1);
  const long repeated = edge == MPSImageEdgeModeMirrorWithEdge ? 1 : 0;
  while (i < 0 || i >= n) i = i < 0 ? -i - repeated : 2 * (n - 1) - i + repeated;
  return i;
}

long consumed_by(const Operand& operand, long channels) {
  const auto offset = static_cast<long>(operand.channel_offset);
  return operand.channel_max > static_cast<NSUInteger>(channels - offset)
             ? channels - offset
             : static_cast<long>(operand.channel_max);
}

}  // namespace
}  // namespace emulated_metal

#define PLAIN_INITIALIZERS                                                           \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    return [super initWithDevice:device];                                            \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }

@implementation MPSNNReshape
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ReshapeParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (long)emulatedProducedChannels:(long)consumed {
  const long channels = body_->as<ReshapeParams>().channels;
  return channels > 0 ? channels : consumed;
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  const auto& params = body_->as<ReshapeParams>();
  if (params.channels == 0) return;
  [descriptor setWidth:static_cast<NSUInteger>(params.width)];
  [descriptor setHeight:static_cast<NSUInteger>(params.height)];
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  require_whole(*body_, call.sources[0], call.destinations, where);
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  auto& params = body_->as<ReshapeParams>();
  const ReshapeParams before = params;
  if ([call.destinations count] > 0) {
    const ImageBody& to = body_of([call.destinations objectAtIndex:0], where);
    params.channels = static_cast<long>(to.shape.channels);
  }
  [super emulatedEncode:call where:where];
  params = before;
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return flatten();
}

- (void)emulatedShape:(NSUInteger)width
               height:(NSUInteger)height
             channels:(NSUInteger)channels
                where:(const Where&)where {
  REQUIRE(width > 0 && height > 0 && channels > 0, kernel_parameters, where, "%lu x %lu x %lu",
          static_cast<unsigned long>(width), static_cast<unsigned long>(height),
          static_cast<unsigned long>(channels));
  auto& params = body_->as<ReshapeParams>();
  params.width = static_cast<long>(width);
  params.height = static_cast<long>(height);
  params.channels = static_cast<long>(channels);
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                     reshapedWidth:(NSUInteger)reshapedWidth
                    reshapedHeight:(NSUInteger)reshapedHeight
           reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels {
  [self emulatedShape:reshapedWidth
               height:reshapedHeight
             channels:reshapedFeatureChannels
                where:HERE];
  MPSImage* result = [self encodeToCommandBuffer:commandBuffer sourceImage:sourceImage];
  body_->as<ReshapeParams>() = {};
  return result;
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState**)outState
       destinationStateIsTemporary:(BOOL)isTemporary
                     reshapedWidth:(NSUInteger)reshapedWidth
                    reshapedHeight:(NSUInteger)reshapedHeight
           reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels {
  [self emulatedShape:reshapedWidth
               height:reshapedHeight
             channels:reshapedFeatureChannels
                where:HERE];
  MPSImage* result = [self encodeToCommandBuffer:commandBuffer
                                     sourceImage:sourceImage
                                destinationState:outState
                     destinationStateIsTemporary:isTemporary];
  body_->as<ReshapeParams>() = {};
  return result;
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                               reshapedWidth:(NSUInteger)reshapedWidth
                              reshapedHeight:(NSUInteger)reshapedHeight
                     reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels {
  [self emulatedShape:reshapedWidth
               height:reshapedHeight
             channels:reshapedFeatureChannels
                where:HERE];
  MPSImageBatch* result = [self encodeBatchToCommandBuffer:commandBuffer sourceImages:sourceImages];
  body_->as<ReshapeParams>() = {};
  return result;
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:(MPSStateBatch**)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary
                               reshapedWidth:(NSUInteger)reshapedWidth
                              reshapedHeight:(NSUInteger)reshapedHeight
                     reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels {
  [self emulatedShape:reshapedWidth
               height:reshapedHeight
             channels:reshapedFeatureChannels
                where:HERE];
  MPSImageBatch* result = [self encodeBatchToCommandBuffer:commandBuffer
                                              sourceImages:sourceImages
                                         destinationStates:outStates
                               destinationStateIsTemporary:isTemporary];
  body_->as<ReshapeParams>() = {};
  return result;
}
@end

@implementation MPSNNReshapeGradient
PLAIN_INITIALIZERS
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSNNReshape class]];
}
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)consumed;
  return snapshot.source_c;
}
- (void)emulatedCheckSnapshot:(const Snapshot&)snapshot where:(const Where&)where {
  (void)snapshot, (void)where;
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  require_whole(*body_, call.sources[0], call.destinations, where);
  const ImageBody& source = body_of([call.sources[1] objectAtIndex:0], where);
  const ImageBody& to = body_of([call.destinations objectAtIndex:0], where);
  REQUIRE(source.shape.width == to.shape.width && source.shape.height == to.shape.height &&
              source.shape.channels == to.shape.channels,
          gradient_shape, where, "the result must have the forward source's shape");
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  (void)states;
  return flatten();
}
@end

@implementation MPSNNSlice
PLAIN_INITIALIZERS
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  REQUIRE(body_->destination_channel_offset == 0, kernel_parameters, where,
          "slices start at the destination's first channel");
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [s = body_->sources[0]](const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = fetch(in[0], y + s.offset.y, x + s.offset.x, k, s.edge);
        }
      }
    }
  };
}
@end

@implementation MPSNNPad
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<PadParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [self initWithDevice:device paddingSizeBefore:{0, 0, 0} paddingSizeAfter:{0, 0, 0}];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter {
  return [self initWithDevice:device
            paddingSizeBefore:paddingSizeBefore
             paddingSizeAfter:paddingSizeAfter
               fillValueArray:nil];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter
                fillValueArray:(NSData*)fillValueArray {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  auto& params = body_->as<PadParams>();
  params.before = paddingSizeBefore;
  params.after = paddingSizeAfter;
  if (fillValueArray != nil) {
    const auto* first = static_cast<const float*>([fillValueArray bytes]);
    params.fills.assign(first, first + [fillValueArray length] / sizeof(float));
  }
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (MPSImageCoordinate)paddingSizeBefore {
  return body_->as<PadParams>().before;
}
- (void)setPaddingSizeBefore:(MPSImageCoordinate)size {
  body_->as<PadParams>().before = size;
}
- (MPSImageCoordinate)paddingSizeAfter {
  return body_->as<PadParams>().after;
}
- (void)setPaddingSizeAfter:(MPSImageCoordinate)size {
  body_->as<PadParams>().after = size;
}
- (float)fillValue {
  return body_->as<PadParams>().fill;
}
- (void)setFillValue:(float)value {
  body_->as<PadParams>().fill = value;
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (long)emulatedProducedChannels:(long)consumed {
  const auto& p = body_->as<PadParams>();
  return static_cast<long>(p.before.channel + p.after.channel) + consumed;
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  const auto& p = body_->as<PadParams>();
  [descriptor setWidth:[descriptor width] + p.before.x + p.after.x];
  [descriptor setHeight:[descriptor height] + p.before.y + p.after.y];
  body_->sources[0].offset.x = -static_cast<NSInteger>(p.before.x);
  body_->sources[0].offset.y = -static_cast<NSInteger>(p.before.y);
}
// The only kernel that reads with every edge mode and from any channel on: what every encode checks
// is asked without them.
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  const Operand own = body_->sources[0];
  REQUIRE(own.edge <= MPSImageEdgeModeConstant, edge_mode, where, "%lu",
          static_cast<unsigned long>(own.edge));
  KernelBody plain = *body_;
  plain.sources[0].edge = MPSImageEdgeModeZero;
  plain.sources[0].channel_offset = 0;
  plain.sources[0].channel_max = NSUIntegerMax;
  const ProducedChannels produced = [&](const std::vector<long>& all) {
    REQUIRE(static_cast<long>(own.channel_offset) < all[0] && own.channel_max > 0, source_channels,
            where, "offset %lu of %ld", static_cast<unsigned long>(own.channel_offset), all[0]);
    return [self emulatedProducedChannels:consumed_by(own, all[0])];
  };
  const Plan plan = plan_encode(plain, call, produced, where);
  const PadParams params = body_->as<PadParams>();
  const long channels = produced(plan.consumed);
  REQUIRE(params.fills.empty() || static_cast<long>(params.fills.size()) >= channels,
          kernel_parameters, where, "%lu fill values for %ld channels",
          static_cast<unsigned long>(params.fills.size()), channels);
  [self emulatedFill:call.written_states where:where];
  const Work work = [own, params](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Tensor& source = in[0];
    const auto first = static_cast<long>(own.channel_offset);
    const long count = consumed_by(own, source.c);
    for (long j = 0; j < out.h; ++j) {
      for (long i = 0; i < out.w; ++i) {
        for (long k = 0; k < out.c; ++k) {
          const long y = inside(own.edge, source.h, j + own.offset.y);
          const long x = inside(own.edge, source.w, i + own.offset.x);
          const long c = inside(own.edge, count, k - static_cast<long>(params.before.channel));
          if (y >= 0 && x >= 0 && c >= 0) {
            out.at(j, i, k) = source.at(y, x, first + c);
          } else if (own.edge != MPSImageEdgeModeConstant) {
            out.at(j, i, k) = 0.0F;
          } else {
            out.at(j, i, k) =
                params.fills.empty() ? params.fill : params.fills[static_cast<size_t>(k)];
          }
        }
      }
    }
  };
  record_work(plain, call, plan, channels, work, where);
}
@end

@implementation MPSNNPadGradient
PLAIN_INITIALIZERS
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return [forward isSubclassOfClass:[MPSNNPad class]];
}
// Channels that the forward pass did not read are there, and get zeros.
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  MPSImageDescriptor* descriptor = [super destinationImageDescriptorForSourceImages:sourceImages
                                                                       sourceStates:sourceStates];
  if ([sourceStates count] > 0) {
    const Snapshot& forward = *body_of([sourceStates objectAtIndex:0], HERE).snapshot;
    [descriptor setFeatureChannels:body_->destination_channel_offset +
                                   static_cast<NSUInteger>(forward.source_c)];
  }
  return descriptor;
}
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)consumed;
  return snapshot.source_c;
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  const Snapshot& forward = *body_of([call.read_states objectAtIndex:0], where).snapshot;
  const ImageBody& gradient = body_of([call.sources[0] objectAtIndex:0], where);
  const ImageBody& source = body_of([call.sources[1] objectAtIndex:0], where);
  REQUIRE(static_cast<long>(gradient.shape.width) == forward.destination_w &&
              static_cast<long>(gradient.shape.height) == forward.destination_h &&
              consumed_by(body_->sources[0], static_cast<long>(gradient.shape.channels)) >=
                  forward.produced,
          gradient_shape, where, "the gradient is not of the forward result's size");
  REQUIRE(static_cast<long>(source.shape.width) == forward.source_w &&
              static_cast<long>(source.shape.height) == forward.source_h &&
              static_cast<long>(source.shape.channels) == forward.source_c,
          gradient_shape, where, "the source is not of the forward source's size");
}
// Of the source only the size is asked for.
- (void)emulatedEncodeGradient:(const Call&)call where:(const Where&)where {
  const Operand own = body_->sources[1];
  REQUIRE(own.edge <= MPSImageEdgeModeConstant, edge_mode, where, "%lu",
          static_cast<unsigned long>(own.edge));
  body_->sources[1].edge = MPSImageEdgeModeZero;
  body_->sources[1].channel_offset = 0;
  body_->sources[1].channel_max = NSUIntegerMax;
  [super emulatedEncodeGradient:call where:where];
  body_->sources[1] = own;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const std::shared_ptr<Snapshot> forward = body_of([states objectAtIndex:0], HERE).snapshot;
  return [forward, from = body_->sources[0].offset, first = body_->sources[1].offset](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Operand& own = forward->kernel.sources[0];
    const auto before = static_cast<long>(forward->kernel.as<PadParams>().before.channel);
    const auto first_channel = static_cast<long>(own.channel_offset);
    const Box& clip = forward->clip;
    // Minus zero, so that what is added to it stays as it is.
    std::vector<double> sums(static_cast<size_t>(forward->source_h * forward->source_w * out.c),
                             -0.0);
    std::vector<char> copied(sums.size());
    const auto place = [&](long y, long x, long k) {
      return static_cast<size_t>((y * forward->source_w + x) * out.c + k);
    };
    for (long q = clip.y; q < clip.y + clip.h; ++q) {
      for (long r = clip.x; r < clip.x + clip.w; ++r) {
        const long y = inside(own.edge, forward->source_h, q - from.y);
        const long x = inside(own.edge, forward->source_w, r - from.x);
        for (long k = 0; k < forward->produced; ++k) {
          const long c = inside(own.edge, forward->consumed, k - before);
          if (y >= 0 && x >= 0 && c >= 0) {
            sums[place(y, x, first_channel + c)] += static_cast<double>(in[0].at(q, r, k));
            copied[place(y, x, first_channel + c)] = 1;
          }
        }
      }
    }
    for (long j = 0; j < out.h; ++j) {
      for (long i = 0; i < out.w; ++i) {
        const long y = j + first.y, x = i + first.x;
        const bool exists = y >= 0 && x >= 0 && y < forward->source_h && x < forward->source_w;
        for (long k = 0; k < out.c; ++k) {
          const bool has = exists && copied[place(y, x, k)] != 0;
          out.at(j, i, k) = has ? static_cast<float>(sums[place(y, x, k)]) : 0.0F;
        }
      }
    }
  };
}
@end
