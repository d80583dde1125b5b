// Kernels with two sources, and gradient kernels: incoming gradient and forward source.
#include <algorithm>

#include "internal.hpp"

using namespace emulated_metal;

@implementation MPSCNNBinaryKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->sources.resize(2);
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
READ_WRITE(MPSOffset, primaryOffset, setPrimaryOffset, sources[0].offset)
READ_WRITE(MPSOffset, secondaryOffset, setSecondaryOffset, sources[1].offset)
READ_WRITE(MTLRegion, clipRect, setClipRect, clip)
READ_WRITE(NSUInteger, destinationFeatureChannelOffset, setDestinationFeatureChannelOffset,
           destination_channel_offset)
READ_WRITE(NSUInteger, primarySourceFeatureChannelOffset, setPrimarySourceFeatureChannelOffset,
           sources[0].channel_offset)
READ_WRITE(NSUInteger, secondarySourceFeatureChannelOffset, setSecondarySourceFeatureChannelOffset,
           sources[1].channel_offset)
READ_WRITE(NSUInteger, primarySourceFeatureChannelMaxCount, setPrimarySourceFeatureChannelMaxCount,
           sources[0].channel_max)
READ_WRITE(NSUInteger, secondarySourceFeatureChannelMaxCount,
           setSecondarySourceFeatureChannelMaxCount, sources[1].channel_max)
READ_WRITE(MPSImageEdgeMode, primaryEdgeMode, setPrimaryEdgeMode, sources[0].edge)
READ_WRITE(MPSImageEdgeMode, secondaryEdgeMode, setSecondaryEdgeMode, sources[1].edge)
READ(NSUInteger, primaryKernelWidth, sources[0].kernel_x)
READ(NSUInteger, primaryKernelHeight, sources[0].kernel_y)
READ(NSUInteger, secondaryKernelWidth, sources[1].kernel_x)
READ(NSUInteger, secondaryKernelHeight, sources[1].kernel_y)
READ_WRITE(NSUInteger, primaryStrideInPixelsX, setPrimaryStrideInPixelsX, sources[0].stride_x)
READ_WRITE(NSUInteger, primaryStrideInPixelsY, setPrimaryStrideInPixelsY, sources[0].stride_y)
READ_WRITE(NSUInteger, secondaryStrideInPixelsX, setSecondaryStrideInPixelsX, sources[1].stride_x)
READ_WRITE(NSUInteger, secondaryStrideInPixelsY, setSecondaryStrideInPixelsY, sources[1].stride_y)
READ(NSUInteger, primaryDilationRateX, sources[0].dilation_x)
READ(NSUInteger, primaryDilationRateY, sources[0].dilation_y)
READ(NSUInteger, secondaryDilationRateX, sources[1].dilation_x)
READ(NSUInteger, secondaryDilationRateY, sources[1].dilation_y)
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

- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed {
  return std::min(consumed[0], consumed[1]);
}
- (Work)emulatedBinaryWork {
  spring(Trap::abstract_kernel, HERE);
}
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  (void)call, (void)where;
}

// ---- encodes

- (ProducedChannels)emulatedProduced {
  return
      [self](const std::vector<long>& consumed) { return [self emulatedBinaryChannels:consumed]; };
}
- (void)emulatedEncode:(const Call&)call where:(const Where&)where {
  const Plan plan = plan_encode(*body_, call, [self emulatedProduced], where);
  [self emulatedBinaryCheck:call where:where];
  record_work(*body_, call, plan, [self emulatedBinaryChannels:plan.consumed],
              [self emulatedBinaryWork], where);
}
- (NSArray*)emulatedCreate:(id<MTLCommandBuffer>)commandBuffer
                   primary:(NSArray<MPSImage*>*)primary
                 secondary:(NSArray<MPSImage*>*)secondary
                     batch:(bool)batch
                     where:(const Where&)where {
  check_encodable(commandBuffer, where);
  REQUIRE(primary != nil && secondary != nil, nil_argument, where, "source images");
  REQUIRE([primary count] > 0, batch_empty, where);
  REQUIRE([primary count] == [secondary count], batch_length, where);
  MPSImageDescriptor* descriptor = [self destinationImageDescriptorForSourceImages:@[
    [primary objectAtIndex:0], [secondary objectAtIndex:0]
  ]
                                                                      sourceStates:nil];
  NSArray* destinations = allocate_images(self, commandBuffer, descriptor, [primary count], where);
  [self emulatedEncode:{commandBuffer, {primary, secondary}, destinations, nil, nil, batch}
                 where:where];
  return destinations;
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                 primaryImage:(MPSImage*)primaryImage
               secondaryImage:(MPSImage*)secondaryImage
             destinationImage:(MPSImage*)destinationImage {
  [self emulatedEncode:{commandBuffer,
                        {single(primaryImage), single(secondaryImage)},
                        single(destinationImage)}
                 where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     primaryImages:(MPSImageBatch*)primaryImages
                   secondaryImages:(MPSImageBatch*)secondaryImages
                 destinationImages:(MPSImageBatch*)destinationImages {
  [self emulatedEncode:{commandBuffer,
                        {primaryImages, secondaryImages},
                        destinationImages,
                        nil,
                        nil,
                        true}
                 where:HERE];
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      primaryImage:(MPSImage*)primaryImage
                    secondaryImage:(MPSImage*)secondaryImage {
  return [[self emulatedCreate:commandBuffer
                       primary:single(primaryImage)
                     secondary:single(secondaryImage)
                         batch:false
                         where:HERE] objectAtIndex:0];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               primaryImages:(MPSImageBatch*)primaryImage
                             secondaryImages:(MPSImageBatch*)secondaryImage {
  return [self emulatedCreate:commandBuffer
                      primary:primaryImage
                    secondary:secondaryImage
                        batch:true
                        where:HERE];
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      primaryImage:(MPSImage*)primaryImage
                    secondaryImage:(MPSImage*)secondaryImage
                  destinationState:(MPSState**)outState
       destinationStateIsTemporary:(BOOL)isTemporary {
  (void)isTemporary;
  REQUIRE(outState != nullptr, nil_argument, HERE, "destinationState");
  *outState = nil;
  return [self encodeToCommandBuffer:commandBuffer
                        primaryImage:primaryImage
                      secondaryImage:secondaryImage];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               primaryImages:(MPSImageBatch*)primaryImages
                             secondaryImages:(MPSImageBatch*)secondaryImages
                           destinationStates:(MPSStateBatch**)outState
                 destinationStateIsTemporary:(BOOL)isTemporary {
  (void)isTemporary;
  REQUIRE(outState != nullptr, nil_argument, HERE, "destinationStates");
  *outState = nil;
  return [self encodeBatchToCommandBuffer:commandBuffer
                            primaryImages:primaryImages
                          secondaryImages:secondaryImages];
}
- (MPSState*)resultStateForPrimaryImage:(MPSImage*)primaryImage
                         secondaryImage:(MPSImage*)secondaryImage
                           sourceStates:(NSArray<MPSState*>*)sourceStates
                       destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates;
  REQUIRE(primaryImage != nil && secondaryImage != nil && destinationImage != nil, nil_argument,
          HERE);
  return nil;
}
- (MPSStateBatch*)resultStateBatchForPrimaryImage:(MPSImageBatch*)primaryImage
                                   secondaryImage:(MPSImageBatch*)secondaryImage
                                     sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                 destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates;
  REQUIRE(primaryImage != nil && secondaryImage != nil && destinationImage != nil, nil_argument,
          HERE);
  return nil;
}
- (MPSState*)temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                     primaryImage:(MPSImage*)primaryImage
                                   secondaryImage:(MPSImage*)secondaryImage
                                     sourceStates:(NSArray<MPSState*>*)sourceStates
                                 destinationImage:(MPSImage*)destinationImage {
  check_encodable(commandBuffer, HERE);
  return [self resultStateForPrimaryImage:primaryImage
                           secondaryImage:secondaryImage
                             sourceStates:sourceStates
                         destinationImage:destinationImage];
}
- (MPSStateBatch*)temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                               primaryImage:(MPSImageBatch*)primaryImage
                                             secondaryImage:(MPSImageBatch*)secondaryImage
                                               sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                           destinationImage:(MPSImageBatch*)destinationImage {
  check_encodable(commandBuffer, HERE);
  return [self resultStateBatchForPrimaryImage:primaryImage
                                secondaryImage:secondaryImage
                                  sourceStates:sourceStates
                              destinationImage:destinationImage];
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
- (NSUInteger)encodingStorageSizeForPrimaryImage:(MPSImage*)primaryImage
                                  secondaryImage:(MPSImage*)secondaryImage
                                    sourceStates:(NSArray<MPSState*>*)sourceStates
                                destinationImage:(MPSImage*)destinationImage {
  (void)sourceStates, (void)destinationImage;
  REQUIRE(primaryImage != nil && secondaryImage != nil, nil_argument, HERE);
  return 0;
}
- (NSUInteger)batchEncodingStorageSizeForPrimaryImage:(MPSImageBatch*)primaryImage
                                       secondaryImage:(MPSImageBatch*)secondaryImage
                                         sourceStates:(NSArray<MPSStateBatch*>*)sourceStates
                                     destinationImage:(MPSImageBatch*)destinationImage {
  (void)sourceStates, (void)destinationImage;
  REQUIRE(primaryImage != nil && secondaryImage != nil, nil_argument, HERE);
  return 0;
}
@end

@implementation MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->backwards = true;
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
READ_WRITE(NSInteger, kernelOffsetX, setKernelOffsetX, kernel_offset_x)
READ_WRITE(NSInteger, kernelOffsetY, setKernelOffsetY, kernel_offset_y)

// ---- what subclasses define

- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const Snapshot&)snapshot {
  (void)snapshot;
  return std::min(consumed[0], consumed[1]);
}
- (bool)emulatedAcceptsState:(MPSState*)state {
  return [state isKindOfClass:[MPSNNGradientState class]];
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  (void)forward;
  spring(Trap::abstract_kernel, HERE);
}
- (void)emulatedCheckSnapshot:(const Snapshot&)snapshot where:(const Where&)where {
  (void)snapshot, (void)where;
}
- (void)emulatedConfigure:(const Snapshot&)snapshot {
  // Pointwise: result pixel y is source pixel y and gradient pixel y - offset.
  const Operand& forward = snapshot.kernel.sources[0];
  body_->sources[0].offset = {snapshot.clip.x - forward.offset.x,
                              snapshot.clip.y - forward.offset.y, 0};
  body_->sources[1].offset = {0, 0, 0};
  body_->kernel_offset_x = body_->kernel_offset_y = 0;
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  (void)states;
  spring(Trap::abstract_kernel, HERE);
}
- (Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states {
  (void)states;
  return {};
}
- (void)emulatedCheckGradient:(const Call&)call where:(const Where&)where {
  // Pointwise kernels: gradient and source hold the same channels.
  const std::vector<NSArray<MPSImage*>*>& lists = call.sources;
  const ImageBody& gradient = body_of([lists[0] objectAtIndex:0], where);
  const ImageBody& source = body_of([lists[1] objectAtIndex:0], where);
  const auto consumed = [&](const ImageBody& image, size_t index) {
    const Operand& operand = body_->sources[index];
    return std::min(operand.channel_max, image.shape.channels - operand.channel_offset);
  };
  REQUIRE(consumed(gradient, 0) == consumed(source, 1), gradient_shape, where,
          "%lu gradient channels, %lu source channels",
          static_cast<unsigned long>(consumed(gradient, 0)),
          static_cast<unsigned long>(consumed(source, 1)));
}

// ---- encodes

- (std::shared_ptr<Snapshot>)emulatedSnapshotOf:(MPSState*)state where:(const Where&)where {
  const StateBody& body = body_of(state, where);
  REQUIRE([self emulatedAcceptsState:state], state_wrong_class, where);
  REQUIRE(body.snapshot != nullptr, state_foreign_kernel, where, "it holds no forward pass");
  REQUIRE([self emulatedAcceptsForwardClass:body.snapshot->kernel_class], state_foreign_kernel,
          where);
  [self emulatedCheckSnapshot:*body.snapshot where:where];
  return body.snapshot;
}
- (void)emulatedEncodeGradient:(const Call&)call where:(const Where&)where {
  check_encodable(call.command_buffer, where);
  REQUIRE(call.read_states != nil, nil_argument, where, "gradientState");
  REQUIRE([call.read_states count] > 0, batch_empty, where);
  for (MPSState* state in call.read_states) [self emulatedSnapshotOf:state where:where];
  const std::shared_ptr<Snapshot> snapshot =
      body_of([call.read_states objectAtIndex:0], where).snapshot;
  const ProducedChannels produced = [&](const std::vector<long>& consumed) {
    return [self emulatedProducedChannels:consumed snapshot:*snapshot];
  };
  const Plan plan = plan_encode(*body_, call, produced, where);
  [self emulatedCheckGradient:call where:where];
  record_work(*body_, call, plan, produced(plan.consumed),
              [self emulatedGradientWork:call.read_states], where,
              [self emulatedGradientExtra:call.read_states]);
}
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
               sourceGradient:(MPSImage*)sourceGradient
                  sourceImage:(MPSImage*)sourceImage
                gradientState:(MPSState*)gradientState
          destinationGradient:(MPSImage*)destinationGradient {
  [self emulatedEncodeGradient:{commandBuffer,
                                {single(sourceGradient), single(sourceImage)},
                                single(destinationGradient),
                                single(gradientState)}
                         where:HERE];
}
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
                    gradientStates:(MPSStateBatch*)gradientStates
              destinationGradients:(MPSImageBatch*)destinationGradients {
  [self emulatedEncodeGradient:{commandBuffer,
                                {sourceGradients, sourceImages},
                                destinationGradients,
                                gradientStates,
                                nil,
                                true}
                         where:HERE];
}
- (NSArray*)emulatedCreateGradient:(id<MTLCommandBuffer>)commandBuffer
                         gradients:(NSArray<MPSImage*>*)gradients
                           sources:(NSArray<MPSImage*>*)sources
                            states:(NSArray<MPSState*>*)states
                             batch:(bool)batch
                             where:(const Where&)where {
  check_encodable(commandBuffer, where);
  REQUIRE(gradients != nil && sources != nil && states != nil, nil_argument, where);
  REQUIRE([gradients count] > 0 && [states count] > 0, batch_empty, where);
  REQUIRE([gradients count] == [sources count] && [gradients count] == [states count], batch_length,
          where);
  MPSImageDescriptor* descriptor =
      [self destinationImageDescriptorForSourceImages:@[
        [gradients objectAtIndex:0], [sources objectAtIndex:0]
      ]
                                         sourceStates:@[ [states objectAtIndex:0] ]];
  NSArray* destinations =
      allocate_images(self, commandBuffer, descriptor, [gradients count], where);
  body_->returning = true;
  [self
      emulatedEncodeGradient:{commandBuffer, {gradients, sources}, destinations, states, nil, batch}
                       where:where];
  body_->returning = false;
  return destinations;
}
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    sourceGradient:(MPSImage*)sourceGradient
                       sourceImage:(MPSImage*)sourceImage
                     gradientState:(MPSState*)gradientState {
  return [[self emulatedCreateGradient:commandBuffer
                             gradients:single(sourceGradient)
                               sources:single(sourceImage)
                                states:single(gradientState)
                                 batch:false
                                 where:HERE] objectAtIndex:0];
}
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                              gradientStates:(MPSStateBatch*)gradientStates {
  return [self emulatedCreateGradient:commandBuffer
                            gradients:sourceGradients
                              sources:sourceImages
                               states:gradientStates
                                batch:true
                                where:HERE];
}
// The inherited encodes carry no state.
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  spring(Trap::stateless_gradient, where);
}
// With a state, geometry comes from the forward pass and not from the padding policy.
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  if ([sourceStates count] == 0) {
    return [super destinationImageDescriptorForSourceImages:sourceImages sourceStates:nil];
  }
  REQUIRE([sourceImages count] == 2, source_count, HERE);
  const ImageBody& gradient = body_of([sourceImages objectAtIndex:0], HERE);
  const ImageBody& source = body_of([sourceImages objectAtIndex:1], HERE);
  REQUIRE(gradient.shape.count == 1 && source.shape.count == 1, batch_number_of_images, HERE);
  const std::shared_ptr<Snapshot> snapshot = [self emulatedSnapshotOf:[sourceStates objectAtIndex:0]
                                                                where:HERE];
  const Operand& forward = snapshot->kernel.sources[0];
  body_->sources[0].stride_x = forward.stride_x;
  body_->sources[0].stride_y = forward.stride_y;
  body_->sources[1] = forward;
  [self emulatedConfigure:*snapshot];
  MPSImageDescriptor* descriptor = [MPSImageDescriptor
      imageDescriptorWithChannelFormat:gradient.shape.format
                                 width:static_cast<NSUInteger>(snapshot->source_w)
                                height:static_cast<NSUInteger>(snapshot->source_h)
                       featureChannels:body_->destination_channel_offset +
                                       static_cast<NSUInteger>(snapshot->consumed)];
  for (MPSState* state in sourceStates) {
    descriptor = [state destinationImageDescriptorForSourceImages:sourceImages
                                                     sourceStates:sourceStates
                                                        forKernel:self
                                              suggestedDescriptor:descriptor];
  }
  const id<MPSNNPadding> policy = body_->padding.get();
  if (([policy paddingMethod] & MPSNNPaddingMethodCustom) != 0) {
    const SEL adjust = @selector
        (destinationImageDescriptorForSourceImages:sourceStates:forKernel:suggestedDescriptor:);
    REQUIRE([policy respondsToSelector:adjust], padding_custom, HERE);
    descriptor = [policy destinationImageDescriptorForSourceImages:sourceImages
                                                      sourceStates:sourceStates
                                                         forKernel:self
                                               suggestedDescriptor:descriptor];
  }
  return descriptor;
}
@end
