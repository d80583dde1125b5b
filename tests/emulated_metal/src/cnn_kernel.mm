// MPSCNNKernel: one source, one destination, and a state where the family has one.
#include "internal.hpp"

using namespace emulated_metal;

@implementation MPSCNNKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->sources.resize(1);
  body_->padding = [MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodSizeSame];
  body_->allocator = [MPSTemporaryImage defaultAllocator];
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}

#define READ(type, getter, member) \
  -(type)getter {                  \
    return body_->member;          \
  }
#define READ_WRITE(type, getter, setter, member) \
  READ(type, getter, member)                     \
  -(void)setter : (type)value {                  \
    body_->member = value;                       \
  }
READ_WRITE(MPSOffset, offset, setOffset, sources[0].offset)
READ_WRITE(MTLRegion, clipRect, setClipRect, clip)
READ_WRITE(NSUInteger, destinationFeatureChannelOffset, setDestinationFeatureChannelOffset,
           destination_channel_offset)
READ_WRITE(NSUInteger, sourceFeatureChannelOffset, setSourceFeatureChannelOffset,
           sources[0].channel_offset)
READ_WRITE(NSUInteger, sourceFeatureChannelMaxCount, setSourceFeatureChannelMaxCount,
           sources[0].channel_max)
READ_WRITE(MPSImageEdgeMode, edgeMode, setEdgeMode, sources[0].edge)
READ(NSUInteger, kernelWidth, sources[0].kernel_x)
READ(NSUInteger, kernelHeight, sources[0].kernel_y)
READ(NSUInteger, strideInPixelsX, sources[0].stride_x)
READ(NSUInteger, strideInPixelsY, sources[0].stride_y)
READ(NSUInteger, dilationRateX, sources[0].dilation_x)
READ(NSUInteger, dilationRateY, sources[0].dilation_y)
READ(BOOL, isBackwards, backwards)
READ(BOOL, isStateModified, state_modified)
- (id<MPSNNPadding>)padding {
  return body_->padding.get();
}
- (void)setPadding:(id<MPSNNPadding>)padding {
  REQUIRE(padding != nil, nil_argument, HERE, "padding");
  body_->padding = padding;
}
- (id<MPSImageAllocator>)destinationImageAllocator {
  return body_->allocator.get();
}
- (void)setDestinationImageAllocator:(id<MPSImageAllocator>)allocator {
  REQUIRE(allocator != nil, nil_argument, HERE, "destinationImageAllocator");
  body_->allocator = allocator;
}

// ---- what subclasses define

- (long)emulatedProducedChannels:(long)consumed {
  return consumed;
}
- (Class)emulatedStateClass {
  return Nil;
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  spring(Trap::abstract_kernel, HERE);
}
- (Extra)emulatedExtra:(NSArray<MPSState*>*)states {
  (void)states;
  return {};
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)descriptor, (void)sources;
}
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images {
  (void)state, (void)images;
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  (void)call, (void)where;
}

// ---- encodes

- (ProducedChannels)emulatedProduced {
  return [self](const std::vector<long>& consumed) {
    return [self emulatedProducedChannels:consumed[0]];
  };
}
- (void)emulatedFill:(NSArray<MPSState*>*)states where:(const Where&)where {
  for (MPSState* state in states) {
    StateBody& body = body_of(state, where);
    REQUIRE([self emulatedStateClass] != Nil && [state isKindOfClass:[self emulatedStateClass]],
            state_wrong_class, where);
    REQUIRE(body.snapshot != nullptr && body.snapshot->kernel_class == [self class],
            state_foreign_kernel, where);
    REQUIRE(body.snapshot->fingerprint == body_->fingerprint(), kernel_changed, where);
    body.encoded = true;
  }
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  const Plan plan = plan_encode(*body_, call, [self emulatedProduced], where);
  [self emulatedFill:call.written_states where:where];
  [self emulatedCheck:call where:where];
  record_work(*body_, call, plan, [self emulatedProducedChannels:plan.consumed[0]],
              [self emulatedWork:call.written_states], where,
              [self emulatedExtra:call.written_states]);
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationImage:(MPSImage*)destinationImage {
  [self emulatedEncode:{commandBuffer, {single(sourceImage)}, single(destinationImage)} where:HERE];
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationState:(MPSState*)destinationState
             destinationImage:(MPSImage*)destinationImage {
  REQUIRE(destinationState != nil, nil_argument, HERE, "destinationState");
  [self emulatedEncode:{commandBuffer,
                        {single(sourceImage)},
                        single(destinationImage),
                        nil,
                        single(destinationState)}
                 where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationImages:(MPSImageBatch*)destinationImages {
  [self emulatedEncode:{commandBuffer, {sourceImages}, destinationImages, nil, nil, true}
                 where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationStates:(MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages {
  [self emulatedEncode:{commandBuffer,
                        {sourceImages},
                        destinationImages,
                        nil,
                        destinationStates,
                        true}
                 where:HERE];
}

// Descriptor, then allocator, then result state, then the explicit encode.
- (NSArray*)emulatedCreate:(id<MTLCommandBuffer>)commandBuffer
                   sources:(NSArray<MPSImage*>*)sources
                    states:(NSArray<MPSState*>**)states
                 temporary:(BOOL)temporary
                     batch:(bool)batch
                     where:(const Where&)where {
  check_encodable(commandBuffer, where);
  REQUIRE(sources != nil, nil_argument, where, "sourceImages");
  REQUIRE([sources count] > 0, batch_empty, where);
  MPSImageDescriptor* descriptor =
      [self destinationImageDescriptorForSourceImages:@[ [sources objectAtIndex:0] ]
                                         sourceStates:nil];
  NSArray* destinations = allocate_images(self, commandBuffer, descriptor, [sources count], where);
  NSArray* written = nil;
  if (states != nullptr) {
    written = temporary ? [self temporaryResultStateBatchForCommandBuffer:commandBuffer
                                                              sourceImage:sources
                                                             sourceStates:nil
                                                         destinationImage:destinations]
                        : [self resultStateBatchForSourceImage:sources
                                                  sourceStates:nil
                                              destinationImage:destinations];
    *states = written;
  }
  [self emulatedEncode:{commandBuffer, {sources}, destinations, nil, written, batch} where:where];
  return destinations;
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage {
  return [[self emulatedCreate:commandBuffer
                       sources:single(sourceImage)
                        states:nullptr
                     temporary:NO
                         batch:false
                         where:HERE] objectAtIndex:0];
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState**)outState
       destinationStateIsTemporary:(BOOL)isTemporary {
  REQUIRE(outState != nullptr, nil_argument, HERE, "destinationState");
  NSArray<MPSState*>* states = nil;
  MPSImage* image = [[self emulatedCreate:commandBuffer
                                  sources:single(sourceImage)
                                   states:&states
                                temporary:isTemporary
                                    batch:false
                                    where:HERE] objectAtIndex:0];
  *outState = [states lastObject];
  return image;
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages {
  return [self emulatedCreate:commandBuffer
                      sources:sourceImages
                       states:nullptr
                    temporary:NO
                        batch:true
                        where:HERE];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:(MPSStateBatch**)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary {
  REQUIRE(outStates != nullptr, nil_argument, HERE, "destinationStates");
  return [self emulatedCreate:commandBuffer
                      sources:sourceImages
                       states:outStates
                    temporary:isTemporary
                        batch:true
                        where:HERE];
}

// ---- states

- (MPSState*)emulatedState:(id<MTLCommandBuffer>)commandBuffer
                    source:(MPSImage*)source
               destination:(MPSImage*)destination
                     where:(const Where&)where {
  const ImageBody& from = body_of(source, where);
  const ImageBody& to = body_of(destination, where);
  const Class state_class = [self emulatedStateClass];
  if (state_class == Nil) return nil;
  MPSState* state = nil;
  if (commandBuffer != nil) {
    state = [[[state_class alloc] emulatedInitTemporary:commandBuffer] autorelease];
  } else {
    state = [[[state_class alloc] emulatedInitWithDevice:from.device.get()] autorelease];
  }
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->kernel_class = [self class];
  snapshot->kernel = *body_;
  if (body_->params) snapshot->kernel.params = body_->params->recorded();
  snapshot->fingerprint = body_->fingerprint();
  const MTLRegion& clip = body_->clip;
  const auto extent = [&](NSUInteger origin, NSUInteger size, NSUInteger limit) {
    return origin >= limit ? 0L : l(std::min(size, limit - origin));
  };
  snapshot->clip = {l(clip.origin.x),
                    l(clip.origin.y),
                    0,
                    extent(clip.origin.x, clip.size.width, to.shape.width),
                    extent(clip.origin.y, clip.size.height, to.shape.height),
                    1};
  snapshot->source_w = l(from.shape.width);
  snapshot->source_h = l(from.shape.height);
  snapshot->source_c = l(from.shape.channels);
  const Operand& operand = body_->sources[0];
  REQUIRE(operand.channel_offset < from.shape.channels, source_channels, where);
  snapshot->consumed =
      l(std::min(operand.channel_max, from.shape.channels - operand.channel_offset));
  snapshot->destination_w = l(to.shape.width);
  snapshot->destination_h = l(to.shape.height);
  snapshot->produced = [self emulatedProducedChannels:snapshot->consumed];
  [state emulatedBody]->snapshot = std::move(snapshot);
  return state;
}
- (NSArray*)emulatedStates:(id<MTLCommandBuffer>)commandBuffer
                   sources:(NSArray<MPSImage*>*)sources
              destinations:(NSArray<MPSImage*>*)destinations
                     where:(const Where&)where {
  REQUIRE(sources != nil && destinations != nil, nil_argument, where);
  REQUIRE([sources count] > 0, batch_empty, where);
  REQUIRE([sources count] == [destinations count], batch_length, where);
  NSMutableArray* states = [NSMutableArray array];
  for (NSUInteger index = 0; index < [sources count]; ++index) {
    if (index > 0 && [self isResultStateReusedAcrossBatch]) {
      [states addObject:[states objectAtIndex:0]];
      continue;
    }
    MPSState* state = [self emulatedState:commandBuffer
                                   source:[sources objectAtIndex:index]
                              destination:[destinations objectAtIndex:index]
                                    where:where];
    if (state == nil) return nil;
    [self emulatedPrepareState:state images:sources];
    [states addObject:state];
  }
  return states;
}
- (MPSState*)resultStateForSourceImage:(MPSImage*)sourceImage
                          sourceStates:(NSArray<MPSState*>*)sourceStates
                      destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates;
  return [[self emulatedStates:nil
                       sources:single(sourceImage)
                  destinations:single(destinationImage)
                         where:HERE] lastObject];
}
- (MPSStateBatch*)resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                                    sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates;
  return [self emulatedStates:nil sources:sourceImage destinations:destinationImage where:HERE];
}
- (MPSState*)temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                      sourceImage:(MPSImage*)sourceImage
                                     sourceStates:(NSArray<MPSState*>*)sourceStates
                                 destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates;
  check_encodable(commandBuffer, HERE);
  return [[self emulatedStates:commandBuffer
                       sources:single(sourceImage)
                  destinations:single(destinationImage)
                         where:HERE] lastObject];
}
- (MPSStateBatch*)temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                                sourceImage:(MPSImageBatch*)sourceImage
                                               sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                           destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates;
  check_encodable(commandBuffer, HERE);
  return [self emulatedStates:commandBuffer
                      sources:sourceImage
                 destinations:destinationImage
                        where:HERE];
}
- (BOOL)isResultStateReusedAcrossBatch {
  return NO;
}
- (BOOL)appendBatchBarrier {
  return NO;
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  return padded_descriptor(self, sourceImages, sourceStates, [self emulatedProduced], HERE);
}
- (NSUInteger)encodingStorageSizeForSourceImage:(MPSImage*)sourceImage
                                   sourceStates:(NSArray<MPSState*>*)sourceStates
                               destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates, (void)destinationImage;
  (void)body_of(sourceImage, HERE);
  return 0;
}
- (NSUInteger)batchEncodingStorageSizeForSourceImage:(MPSImageBatch*)sourceImage
                                        sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                    destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates, (void)destinationImage;
  REQUIRE(sourceImage != nil, nil_argument, HERE, "sourceImage");
  return 0;
}
@end
