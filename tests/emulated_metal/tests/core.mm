// Devices, command buffers, storage, lifetimes and read counts: how it works, and every misuse.
#include <cmath>
#include <cstring>

#include "harness.hpp"

using namespace tests;

namespace {

id<MTLCommandBuffer> command_buffer() { return [queue() commandBuffer]; }

MPSCNNNeuron* linear(float a = 2, float b = 0) {
  return [[[MPSCNNNeuron alloc]
        initWithDevice:device()
      neuronDescriptor:[MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeLinear
                                                                        a:a
                                                                        b:b]] autorelease];
}

void encode(MPSCNNKernel* kernel, id<MTLCommandBuffer> buffer, MPSImage* source,
            MPSImage* destination) {
  [kernel encodeToCommandBuffer:buffer sourceImage:source destinationImage:destination];
}

id<MTLBuffer> shared_buffer(NSUInteger length) {
  return [[device() newBufferWithLength:length options:MTLResourceStorageModeShared] autorelease];
}

id<MTLTexture> texture(NSUInteger width, NSUInteger slices,
                       MTLPixelFormat format = MTLPixelFormatRGBA32Float,
                       MTLStorageMode mode = MTLStorageModeManaged) {
  MTLTextureDescriptor* d = [MTLTextureDescriptor texture2DDescriptorWithPixelFormat:format
                                                                               width:width
                                                                              height:1
                                                                           mipmapped:NO];
  if (slices > 1) {
    [d setTextureType:MTLTextureType2DArray];
    [d setArrayLength:slices];
  }
  [d setStorageMode:mode];
  [d setUsage:MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite];
  return [[device() newTextureWithDescriptor:d] autorelease];
}

MPSImage* many(NSUInteger channels, NSUInteger count) {
  return [[[MPSImage alloc]
       initWithDevice:device()
      imageDescriptor:[MPSImageDescriptor
                          imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat32
                                                     width:2
                                                    height:1
                                           featureChannels:channels
                                            numberOfImages:count
                                                     usage:MTLTextureUsageShaderRead |
                                                           MTLTextureUsageShaderWrite]]
      autorelease];
}

MPSImage* with_usage(MTLTextureUsage usage) {
  MPSImageDescriptor* d = descriptor(1, 1, 1);
  [d setUsage:usage];
  return [[[MPSImage alloc] initWithDevice:device() imageDescriptor:d] autorelease];
}

MPSImage* private_image() {
  MPSImageDescriptor* d = descriptor(1, 1, 1);
  [d setStorageMode:MTLStorageModePrivate];
  return [[[MPSImage alloc] initWithDevice:device() imageDescriptor:d] autorelease];
}

id<MTLFence> fence() { return [[device() newFence] autorelease]; }

// Of a temporary state, which the caller ends.
struct Scratch {
  MPSState* state;
  id<MTLBuffer> buffer;
};
Scratch scratch(id<MTLCommandBuffer> buffer) {
  MPSState* state = [MPSState temporaryStateWithCommandBuffer:buffer bufferSize:4];
  return {state, static_cast<id<MTLBuffer>>([state resourceAtIndex:0 allocateMemory:YES])};
}

// An empty encoder of kernels.
void update(id<MTLCommandBuffer> buffer, id<MTLFence> fence) {
  const id<MTLComputeCommandEncoder> kernels = [buffer computeCommandEncoder];
  [kernels updateFence:fence];
  [kernels endEncoding];
}

void fill(id<MTLBlitCommandEncoder> blit, id<MTLBuffer> buffer) {
  [blit fillBuffer:buffer range:NSMakeRange(0, 4) value:7];
}

const MTLRegion kWhole = {{0, 0, 0}, {1, 1, 1}};

}  // namespace

// Answers the protocol's required methods, but not the one that the custom bit asks for.
@interface BarePadding : NSObject <MPSNNPadding>
@end
@implementation BarePadding
- (MPSNNPaddingMethod)paddingMethod {
  return MPSNNPaddingMethodCustom | MPSNNPaddingMethodSizeSame;
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [self init];
}
@end

@interface ReservedPadding : BarePadding
@end
@implementation ReservedPadding
- (MPSNNPaddingMethod)paddingMethod {
  return MPSNNPaddingMethodAlign_reserved;
}
@end

@interface EmptyAllocator : NSObject <MPSImageAllocator>
@end
@implementation EmptyAllocator
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel {
  (void)cmdBuf, (void)descriptor, (void)kernel;
  const id nothing = nil;
  return nothing;
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [self init];
}
@end

// ---------------------------------------------------------------- what holds

EXAMPLE(results_appear_after_synchronization_and_completion) {
  MPSImage* source = row({1, 2});
  MPSImage* result = empty(2, 1, 1);
  write(result, {5, 5});
  emulated_metal_set_option("delay_us", 20000);
  const id<MTLCommandBuffer> buffer = command_buffer();
  encode(linear(), buffer, source, result);
  write(source, {3, 4});  // between encode and commit: visible
  EXPECT_VALUES(read(result), {5, 5});
  [result synchronizeOnCommandBuffer:buffer];
  [buffer commit];
  EXPECT_VALUES(read(result), {NAN, NAN});
  [buffer waitUntilCompleted];
  EXPECT([buffer status] == MTLCommandBufferStatusCompleted && [buffer error] == nil);
  EXPECT_VALUES(read(result), {6, 8});
  // Without synchronization the CPU sees junk, unless memory is as Apple's GPUs have it.
  for (const long unified : {0L, 1L, 2L}) {
    emulated_metal_set_option("unified_memory", unified);
    const id<MTLCommandBuffer> again = command_buffer();
    encode(linear(), again, source, result);
    finish(again);
    EXPECT_VALUES(read(result), {unified == 1 ? 6.0F : NAN, unified == 1 ? 8.0F : NAN});
  }
}

EXAMPLE(kernel_properties_are_read_at_encode) {
  MPSCNNNeuron* kernel = linear();
  MPSImage* result = empty(1, 1, 1);
  const id<MTLCommandBuffer> buffer = command_buffer();
  encode(kernel, buffer, row({1, 2, 3}), result);
  [kernel setOffset:{2, 0, 0}];
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {2});
}

EXAMPLE(image_layouts_and_formats) {
  for (const NSUInteger channel_count : {1UL, 2UL, 3UL, 4UL, 5UL, 8UL, 9UL}) {
    for (const auto format :
         {MPSImageFeatureChannelFormatUnorm8, MPSImageFeatureChannelFormatUnorm16,
          MPSImageFeatureChannelFormatFloat16, MPSImageFeatureChannelFormatFloat32}) {
      MPSImage* image = empty(3, 2, channel_count, format);
      const NSUInteger item = format == MPSImageFeatureChannelFormatUnorm8    ? 1
                              : format == MPSImageFeatureChannelFormatFloat32 ? 4
                                                                              : 2;
      const NSUInteger count = 6 * channel_count;
      std::vector<uint8_t> in(count * item), out(count * item), planes(count * item);
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7 % 251);
      [image writeBytes:in.data()
             dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
             imageIndex:0];
      [image readBytes:out.data()
            dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
            imageIndex:0];
      EXPECT(in == out);
      [image readBytes:planes.data()
            dataLayout:MPSDataLayoutFeatureChannelsxHeightxWidth
            imageIndex:0];
      for (NSUInteger c = 0; c < channel_count; ++c) {
        for (NSUInteger pixel = 0; pixel < 6; ++pixel) {
          EXPECT(std::memcmp(&planes[(c * 6 + pixel) * item],
                             &in[(pixel * channel_count + c) * item], item) == 0);
        }
      }
      const NSUInteger slices = (channel_count + 3) / 4;
      EXPECT([[image texture] arrayLength] == slices);
      EXPECT([image textureType] == (slices == 1 ? MTLTextureType2D : MTLTextureType2DArray));
      // The last channel is where the specification says.
      const NSUInteger lanes = channel_count <= 2 ? channel_count : 4;
      std::vector<uint8_t> texels(6 * lanes * item);
      [[image texture] getBytes:texels.data()
                    bytesPerRow:3 * lanes * item
                  bytesPerImage:0
                     fromRegion:MTLRegionMake2D(0, 0, 3, 2)
                    mipmapLevel:0
                          slice:slices - 1];
      const NSUInteger lane = (channel_count - 1) % 4;
      EXPECT(std::memcmp(&texels[lane * item], &in[(channel_count - 1) * item], item) == 0);
    }
  }
}

EXAMPLE(image_views_and_partial_transfers) {
  MPSImage* image = many(8, 3);
  std::vector<float> values(16);
  for (NSUInteger n = 0; n < 3; ++n) {
    for (size_t i = 0; i < 16; ++i) values[i] = static_cast<float>(100 * n + i);
    [image writeBytes:values.data()
           dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
           imageIndex:n];
  }
  NSArray<MPSImage*>* batch = [image batchRepresentation];
  EXPECT([batch count] == 3 && [[batch objectAtIndex:1] parent] == image);
  EXPECT(read([batch objectAtIndex:2])[0] == 200);
  MPSImage* half = [[batch objectAtIndex:1] subImageWithFeatureChannelRange:NSMakeRange(4, 8)];
  EXPECT([half featureChannels] == 4 && [half resourceSize] == 0);
  EXPECT([[image subImageWithFeatureChannelRange:NSMakeRange(0, 8)] numberOfImages] == 3);
  EXPECT_VALUES(read(half), {104, 105, 106, 107, 112, 113, 114, 115});
  EXPECT([[half texture] arrayLength] == 1 && [[half texture] parentRelativeSlice] == 3);
  float pixel[4];
  [image readBytes:pixel
              dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
             bytesPerRow:16
                  region:MTLRegionMake2D(1, 0, 1, 1)
      featureChannelInfo:{4, 4}
              imageIndex:2];
  EXPECT(pixel[0] == 212 && pixel[3] == 215);
  EXPECT([image resourceSize] == 2 * 4 * 4 * 2 * 3);
}

EXAMPLE(concatenation_by_channel_offset) {
  MPSImage* result = empty(1, 1, 12);
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSCNNNeuron* kernel = linear(1);
  encode(kernel, buffer, channels({1, 2, 3, 4, 5}), result);
  [kernel setDestinationFeatureChannelOffset:8];
  encode(kernel, buffer, channels({6, 7, 8}), result);
  finish(buffer, {result});
  const std::vector<float> values = read(result);
  for (size_t i : {0UL, 1UL, 2UL, 3UL, 4UL}) EXPECT(values[i] == static_cast<float>(i + 1));
  for (size_t i : {5UL, 6UL, 7UL, 11UL}) EXPECT(std::isnan(values[i]));  // clobbered lanes
  for (size_t i : {8UL, 9UL, 10UL}) EXPECT(values[i] == static_cast<float>(i - 2));
}

EXAMPLE(clip_rectangle_and_batch_ranges) {
  MPSCNNNeuron* kernel = linear(1);
  MPSImage* a = empty(2, 1, 1);
  MPSImage* b = empty(2, 1, 1);
  write(a, {9, 9});
  write(b, {9, 9});
  [kernel setClipRect:MTLRegionMake3D(1, 0, 1, 5, 5, 1)];
  [kernel setOffset:{0, 0, 1}];
  const id<MTLCommandBuffer> buffer = command_buffer();
  [kernel encodeBatchToCommandBuffer:buffer
                        sourceImages:@[ row({1, 2}), row({3, 4}) ]
                   destinationImages:@[ a, b ]];
  finish(buffer, {a, b});
  EXPECT_VALUES(read(a), {9, 9});
  EXPECT_VALUES(read(b), {9, 3});
}

EXAMPLE(temporary_images_are_recycled) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSTemporaryImage* middle = temporary(buffer, 1, 1, 1);
  MPSImage* first = empty(1, 1, 1);
  MPSImage* second = empty(1, 1, 1);
  encode(linear(), buffer, row({1}), middle);
  EXPECT([middle readCount] == 1);
  [middle setReadCount:2];
  EXPECT(MPSImageBatchIncrementReadCount(@[ middle, middle, first ], 1) == 2);
  EXPECT([middle readCount] == 3);
  encode(linear(), buffer, middle, first);
  encode(linear(), buffer, middle, second);
  EXPECT([middle readCount] == 1);
  EXPECT(MPSImageBatchIncrementReadCount(@[ middle ], -1) == 1);
  EXPECT([middle readCount] == 0);
  finish(buffer, {first, second});
  EXPECT_VALUES(read(first), {4});
  EXPECT_VALUES(read(second), {4});
}

EXAMPLE(batch_functions_count_objects_once) {
  MPSImage* image = row({1});
  EXPECT(MPSImageBatchResourceSize(@[ image, image, row({1}) ]) == 8);
  __block NSInteger calls = 0;
  EXPECT(MPSImageBatchIterate(@[ image, image, row({1}) ],
                              ^NSInteger(MPSImage* each, NSUInteger index) {
                                EXPECT(each != nil && index != 1);
                                ++calls;
                                return NSIntegerMin;
                              }) == NSIntegerMin);
  EXPECT(calls == 2);
  EXPECT(MPSImageBatchIterate(@[ image, row({1}) ], ^NSInteger(MPSImage* each, NSUInteger index) {
           EXPECT(each != nil);
           return static_cast<NSInteger>(index) + 7;
         }) == 7);
  EXPECT(MPSStateBatchIncrementReadCount(nil, 1) == 0 && MPSStateBatchResourceSize(nil) == 0);
}

EXAMPLE(states_and_resource_lists) {
  MPSStateResourceList* list = [MPSStateResourceList resourceList];
  [list appendBuffer:12];
  [list
      appendTexture:[MTLTextureDescriptor texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                                       width:3
                                                                      height:2
                                                                   mipmapped:NO]];
  MPSState* state = [[[MPSState alloc] initWithDevice:device() resourceList:list] autorelease];
  EXPECT([state resourceCount] == 2 && ![state isTemporary] && [state readCount] == 0);
  EXPECT([state resourceTypeAtIndex:0] == MPSStateResourceTypeTexture);
  EXPECT([state textureInfoAtIndex:0].width == 3 && [state bufferSizeAtIndex:1] == 12);
  EXPECT([state resourceAtIndex:1 allocateMemory:NO] == nil);
  EXPECT([state resourceAtIndex:1 allocateMemory:YES] != nil);
  EXPECT([state resourceSize] == 36);
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSState* scratch = [MPSState temporaryStateWithCommandBuffer:buffer bufferSize:4];
  EXPECT([scratch isTemporary] && [scratch readCount] == 1);
  [scratch setReadCount:0];
}

EXAMPLE(blit_encoder) {
  const id<MTLBuffer> from = shared_buffer(16);
  const id<MTLBuffer> to =
      [[device() newBufferWithLength:16 options:MTLResourceStorageModeManaged] autorelease];
  std::memset([from contents], 7, 16);
  const id<MTLCommandBuffer> buffer = command_buffer();
  const id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit fillBuffer:to range:NSMakeRange(0, 16) value:1];
  [blit copyFromBuffer:from sourceOffset:0 toBuffer:to destinationOffset:4 size:8];
  [blit synchronizeResource:to];
  [blit endEncoding];
  finish(buffer);
  const auto* bytes = static_cast<const uint8_t*>([to contents]);
  EXPECT(bytes[3] == 1 && bytes[4] == 7 && bytes[11] == 7 && bytes[12] == 1);
  // A private texture is filled and read through buffers.
  const id<MTLTexture> hidden = texture(1, 1, MTLPixelFormatRGBA32Float, MTLStorageModePrivate);
  const float texel[] = {1, 2, 3, 4};
  std::memcpy([from contents], texel, 16);
  const id<MTLBuffer> back = shared_buffer(16);
  const id<MTLCommandBuffer> second = command_buffer();
  const id<MTLBlitCommandEncoder> copy = [second blitCommandEncoder];
  [copy copyFromBuffer:from
             sourceOffset:0
        sourceBytesPerRow:16
      sourceBytesPerImage:0
               sourceSize:MTLSizeMake(1, 1, 1)
                toTexture:hidden
         destinationSlice:0
         destinationLevel:0
        destinationOrigin:MTLOriginMake(0, 0, 0)];
  [copy copyFromTexture:hidden
                   sourceSlice:0
                   sourceLevel:0
                  sourceOrigin:MTLOriginMake(0, 0, 0)
                    sourceSize:MTLSizeMake(1, 1, 1)
                      toBuffer:back
             destinationOffset:0
        destinationBytesPerRow:16
      destinationBytesPerImage:0];
  [copy endEncoding];
  finish(second);
  EXPECT(std::memcmp([back contents], texel, 16) == 0);
}

EXAMPLE(heap_memory_is_blitted_between_fences) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  const Scratch hidden = scratch(buffer);
  const id<MTLBuffer> seen = shared_buffer(4);
  EXPECT([hidden.buffer heap] != nil && [seen heap] == nil);
  const id<MTLFence> before = fence(), after = fence();
  update(buffer, before);
  const id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit waitForFence:before];
  fill(blit, hidden.buffer);
  [blit copyFromBuffer:hidden.buffer sourceOffset:0 toBuffer:seen destinationOffset:0 size:4];
  [blit updateFence:after];
  [blit endEncoding];
  const id<MTLComputeCommandEncoder> kernels = [buffer computeCommandEncoder];
  [kernels waitForFence:after];
  [kernels endEncoding];
  encode(linear(), buffer, row({1}), empty(1, 1, 1));
  [hidden.state setReadCount:0];
  finish(buffer);
  EXPECT(static_cast<const uint8_t*>([seen contents])[3] == 7);
}

EXAMPLE(handlers_run_on_another_thread) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  __block int order = 0, scheduled = 0, completed = 0;
  __block MTLCommandBufferStatus seen = MTLCommandBufferStatusNotEnqueued;
  NSThread* here = [NSThread currentThread];
  __block BOOL elsewhere = NO;
  [buffer addScheduledHandler:^(id<MTLCommandBuffer> each) {
    EXPECT(each != nil);
    scheduled = ++order;
  }];
  [buffer addCompletedHandler:^(id<MTLCommandBuffer> each) {
    completed = ++order;
    seen = [each status];
    elsewhere = [NSThread currentThread] != here;
  }];
  finish(buffer);
  EXPECT(scheduled == 1 && completed == 2 && elsewhere);
  EXPECT(seen == MTLCommandBufferStatusCompleted);
}

EXAMPLE(enqueue_order_and_overtaking_queues) {
  const id<MTLCommandQueue> one = queue();
  const id<MTLCommandBuffer> first = [one commandBuffer];
  const id<MTLCommandBuffer> second = [one commandBuffer];
  [first enqueue];
  __block NSMutableString* order = [NSMutableString string];
  [first addCompletedHandler:^(id<MTLCommandBuffer> each) {
    EXPECT(each != nil);
    [order appendString:@"1"];
  }];
  [second addCompletedHandler:^(id<MTLCommandBuffer> each) {
    EXPECT(each != nil);
    [order appendString:@"2"];
  }];
  [second commit];
  [first commit];
  [second waitUntilCompleted];
  EXPECT([order isEqual:@"12"]);
  emulated_metal_set_option("stagger_us", 50000);
  const id<MTLCommandQueue> slow = queue();
  const id<MTLCommandQueue> fast = queue();
  const id<MTLCommandBuffer> late = [slow commandBuffer];
  const id<MTLCommandBuffer> early = [fast commandBuffer];
  [late commit];
  [early commit];
  [early waitUntilCompleted];
  EXPECT([late status] < MTLCommandBufferStatusCompleted);
  [late waitUntilCompleted];
}

EXAMPLE(gpu_errors_are_reported) {
  emulated_metal_set_option("fail_after", 1);
  emulated_metal_set_option("fail_next", MTLCommandBufferErrorPageFault);
  MPSImage* result = empty(1, 1, 1);
  for (const bool fails : {false, true, false}) {
    const id<MTLCommandBuffer> buffer = command_buffer();
    encode(linear(), buffer, row({1}), result);
    finish(buffer, {result});
    EXPECT(([buffer status] == MTLCommandBufferStatusError) == fails);
    EXPECT(([buffer error] != nil) == fails);
    if (fails) EXPECT([[buffer error] code] == MTLCommandBufferErrorPageFault);
    EXPECT_VALUES(read(result), {fails ? NAN : 2.0F});
  }
}

EXAMPLE(queue_limit_blocks_until_completion) {
  const id<MTLCommandQueue> narrow =
      [[device() newCommandQueueWithMaxCommandBufferCount:1] autorelease];
  for (int i = 0; i < 3; ++i) {
    const id<MTLCommandBuffer> buffer = [narrow commandBuffer];
    [buffer commit];
  }
}

EXAMPLE(commit_and_continue_moves_temporaries) {
  MPSCommandBuffer* buffer = [MPSCommandBuffer commandBufferFromCommandQueue:queue()];
  const id<MTLCommandBuffer> first = [[[buffer rootCommandBuffer] retain] autorelease];
  MPSTemporaryImage* middle = temporary(buffer, 1, 1, 1);
  MPSImage* result = empty(1, 1, 1);
  encode(linear(), buffer, row({1}), middle);
  [buffer commitAndContinue];
  EXPECT([buffer rootCommandBuffer] != first);
  EXPECT([first status] >= MTLCommandBufferStatusCommitted);
  encode(linear(), buffer, middle, result);
  finish(buffer, {result});
  EXPECT_VALUES(read(result), {4});
}

EXAMPLE(predicates_decide_on_the_gpu) {
  MPSCommandBuffer* buffer = [MPSCommandBuffer commandBufferFromCommandQueue:queue()];
  MPSPredicate* predicate = [[[MPSPredicate alloc] initWithDevice:device()] autorelease];
  auto* flag = reinterpret_cast<uint32_t*>(
      static_cast<uint8_t*>([[predicate predicateBuffer] contents]) + [predicate predicateOffset]);
  MPSImage* skipped = empty(1, 1, 1);
  MPSImage* run = empty(1, 1, 1);
  write(skipped, {9});
  [buffer setPredicate:predicate];
  encode(linear(), buffer, row({1}), skipped);
  [buffer setPredicate:nil];
  encode(linear(), buffer, row({1}), run);
  *flag = 0;
  finish(buffer, {skipped, run});
  EXPECT_VALUES(read(skipped), {9});
  EXPECT_VALUES(read(run), {2});
}

EXAMPLE(devices_and_heaps) {
  emulated_metal_set_option("devices", 2);
  NSArray* devices = [MTLCopyAllDevices() autorelease];
  EXPECT([devices count] == 2 && MPSSupportsMTLDevice([devices objectAtIndex:1]));
  EXPECT([MPSGetPreferredDevice(MPSDeviceOptionsDefault) isHeadless]);
  MTLHeapDescriptor* d = [[[MTLHeapDescriptor alloc] init] autorelease];
  [d setSize:1024];
  [d setStorageMode:MTLStorageModePrivate];
  const id<MTLHeap> heap = [[device() newHeapWithDescriptor:d] autorelease];
  const id<MTLBuffer> buffer =
      [[heap newBufferWithLength:100 options:MTLResourceStorageModePrivate] autorelease];
  EXPECT([buffer length] == 100 && [heap usedSize] == 256);
  EXPECT([device() maxBufferLength] > 0 && [[device() name] length] > 0);
}

EXAMPLE(storage_lanes_and_rounding) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSImage* half = empty(3, 1, 1, MPSImageFeatureChannelFormatFloat16);
  MPSImage* byte = empty(3, 1, 1, MPSImageFeatureChannelFormatUnorm8);
  encode(linear(1), buffer, row({1.0F / 3, 70000, -2}), half);
  encode(linear(1), buffer, row({0.5F, 2, NAN}), byte);
  finish(buffer, {half, byte});
  _Float16 halves[3];
  uint8_t bytes[3];
  [half readBytes:halves dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels imageIndex:0];
  [byte readBytes:bytes dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels imageIndex:0];
  EXPECT(static_cast<float>(halves[0]) == 0.333251953125F);
  EXPECT(std::isinf(static_cast<float>(halves[1])) && static_cast<float>(halves[2]) == -2);
  EXPECT(bytes[0] == 128 && bytes[1] == 255 && bytes[2] == 0);
}

EXAMPLE(live_objects_are_counted) {
  const long before = emulated_metal_live_objects();
  MPSImage* image = [[MPSImage alloc] initWithDevice:device() imageDescriptor:descriptor(1, 1, 1)];
  EXPECT(emulated_metal_live_objects() > before);
  [image release];
}

// Fails at exit, and only there: the runner expects status 97.
EXAMPLE(leak_fails_the_run) {
  EXPECT([[MPSImage alloc] initWithDevice:device() imageDescriptor:descriptor(1, 1, 1)] != nil);
}

// ---------------------------------------------------------------- objects

OFFENCE(message_to_deallocated) {
  MPSImage* image = [[MPSImage alloc] initWithDevice:device() imageDescriptor:descriptor(1, 1, 1)];
  [image release];
  (void)[image width];
}
OFFENCE(message_to_deallocated) {
  MPSImage* image = [[MPSImage alloc] initWithDevice:device() imageDescriptor:descriptor(1, 1, 1)];
  [image release];
  [image release];
}
OFFENCE(message_to_deallocated) {
  MPSImage* image = [[MPSImage alloc] initWithDevice:device() imageDescriptor:descriptor(1, 1, 1)];
  [image release];
  encode(linear(), command_buffer(), image, empty(1, 1, 1));
}
OFFENCE(nil_argument) {
  MPSImage* none = nil;
  encode(linear(), command_buffer(), none, empty(1, 1, 1));
}
OFFENCE(nil_argument) {
  const id<MTLCommandBuffer> none = nil;
  encode(linear(), none, row({1}), empty(1, 1, 1));
}
OFFENCE(foreign_object) {
  encode(linear(), command_buffer(), static_cast<id>(@"image"), empty(1, 1, 1));
}
OFFENCE(init_unavailable) { (void)[[static_cast<id>([MPSImage alloc]) init] autorelease]; }
OFFENCE(init_unavailable) { (void)[[static_cast<id>([MPSState alloc]) init] autorelease]; }
OFFENCE(different_devices) {
  encode(linear(), command_buffer(), row({1}),
         empty(1, 1, 1, MPSImageFeatureChannelFormatFloat32, 1));
}
OFFENCE(different_devices) {
  const id<MTLCommandQueue> other = [[device(1) newCommandQueue] autorelease];
  encode(linear(), [other commandBuffer], row({1}), empty(1, 1, 1));
}

// ---------------------------------------------------------------- command buffers

OFFENCE(encode_after_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  encode(linear(), buffer, row({1}), empty(1, 1, 1));
}
OFFENCE(encoder_open) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer blitCommandEncoder];
  encode(linear(), buffer, row({1}), empty(1, 1, 1));
}
OFFENCE(encoder_open) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer blitCommandEncoder];
  [buffer commit];
}
OFFENCE(encoder_ended) {
  const id<MTLBlitCommandEncoder> blit = [command_buffer() blitCommandEncoder];
  [blit endEncoding];
  [blit fillBuffer:shared_buffer(4) range:NSMakeRange(0, 4) value:0];
}
OFFENCE(encoder_released_open) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  [command_buffer() blitCommandEncoder];
  [pool release];
}
OFFENCE(fence_order) { [[command_buffer() blitCommandEncoder] waitForFence:fence()]; }
OFFENCE(fence_order) {
  const id<MTLFence> own = fence();
  const id<MTLComputeCommandEncoder> kernels = [command_buffer() computeCommandEncoder];
  [kernels updateFence:own];
  [kernels waitForFence:own];
}
OFFENCE(heap_fence) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  const Scratch hidden = scratch(buffer);
  fill([buffer blitCommandEncoder], hidden.buffer);
}
OFFENCE(heap_fence) {  // a kernel after the fence
  const id<MTLCommandBuffer> buffer = command_buffer();
  const Scratch hidden = scratch(buffer);
  const id<MTLFence> before = fence();
  update(buffer, before);
  encode(linear(), buffer, row({1}), empty(1, 1, 1));
  const id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit waitForFence:before];
  fill(blit, hidden.buffer);
}
OFFENCE(heap_fence) {  // none after the blit
  const id<MTLCommandBuffer> buffer = command_buffer();
  const Scratch hidden = scratch(buffer);
  const id<MTLFence> before = fence();
  update(buffer, before);
  const id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit waitForFence:before];
  fill(blit, hidden.buffer);
  [blit endEncoding];
}
OFFENCE(heap_fence) {  // a kernel that does not wait
  const id<MTLCommandBuffer> buffer = command_buffer();
  const Scratch hidden = scratch(buffer);
  const id<MTLFence> before = fence();
  update(buffer, before);
  const id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit waitForFence:before];
  fill(blit, hidden.buffer);
  [blit updateFence:fence()];
  [blit endEncoding];
  encode(linear(), buffer, row({1}), empty(1, 1, 1));
}
OFFENCE(double_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  [buffer commit];
}
OFFENCE(enqueue_twice) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer enqueue];
  [buffer enqueue];
}
OFFENCE(handler_after_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  [buffer addCompletedHandler:^(id<MTLCommandBuffer> each) {
    (void)each;
  }];
}
OFFENCE(handler_after_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  [buffer addScheduledHandler:^(id<MTLCommandBuffer> each) {
    (void)each;
  }];
}
OFFENCE(wait_before_commit) { [command_buffer() waitUntilCompleted]; }
OFFENCE(wait_before_commit) { [command_buffer() waitUntilScheduled]; }
OFFENCE(wait_in_handler) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer addCompletedHandler:^(id<MTLCommandBuffer> each) {
    [each waitUntilCompleted];
  }];
  finish(buffer);
}
OFFENCE(queue_exhausted) {
  const id<MTLCommandQueue> full = queue();
  for (int i = 0; i < 65; ++i) (void)[full commandBuffer];
}
OFFENCE(predicate_offset) { (void)[MPSPredicate predicateWithBuffer:shared_buffer(8) offset:2]; }
OFFENCE(heap_after_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  MPSHintTemporaryMemoryHighWaterMark(buffer, 100);
}
OFFENCE(heap_after_commit) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  [buffer commit];
  MPSSetHeapCacheDuration(buffer, 1);
}

// ---------------------------------------------------------------- resources

OFFENCE(private_cpu_access) {
  const id<MTLBuffer> hidden =
      [[device() newBufferWithLength:4 options:MTLResourceStorageModePrivate] autorelease];
  (void)[hidden contents];
}
OFFENCE(private_cpu_access) { (void)read(private_image()); }
OFFENCE(private_cpu_access) {
  float texel[4];
  [texture(1, 1, MTLPixelFormatRGBA32Float, MTLStorageModePrivate) getBytes:texel
                                                                bytesPerRow:16
                                                                 fromRegion:kWhole
                                                                mipmapLevel:0];
}
OFFENCE(cpu_write_in_flight) {
  emulated_metal_set_option("delay_us", 1000000);
  MPSImage* source = row({1});
  const id<MTLCommandBuffer> buffer = command_buffer();
  encode(linear(), buffer, source, empty(1, 1, 1));
  [buffer commit];
  write(source, {2});
}
OFFENCE(resource_options) {
  (void)[[device() newBufferWithLength:4 options:MTLResourceStorageModeMemoryless] autorelease];
}
OFFENCE(buffer_length) { (void)shared_buffer(0); }
OFFENCE(buffer_range) {
  const id<MTLBlitCommandEncoder> blit = [command_buffer() blitCommandEncoder];
  [blit fillBuffer:shared_buffer(4) range:NSMakeRange(2, 4) value:0];
}
OFFENCE(not_managed) { [shared_buffer(4) didModifyRange:NSMakeRange(0, 4)]; }
OFFENCE(not_managed) {
  const id<MTLBlitCommandEncoder> blit = [command_buffer() blitCommandEncoder];
  [blit synchronizeResource:shared_buffer(4)];
}
OFFENCE(texture_descriptor) { (void)texture(1, 4096); }
OFFENCE(texture_descriptor) {
  (void)texture(1, 1, MTLPixelFormatRGBA32Float, MTLStorageModeShared);
}
OFFENCE(texture_descriptor) {
  emulated_metal_set_option("unified_memory", 2);  // as Intel's GPUs have
  EXPECT([device() hasUnifiedMemory]);
  (void)texture(1, 1, MTLPixelFormatRGBA32Float, MTLStorageModeShared);
}
OFFENCE(texture_region) {
  float texels[8];
  [texture(1, 1) getBytes:texels
              bytesPerRow:32
               fromRegion:MTLRegionMake2D(0, 0, 2, 1)
              mipmapLevel:0];
}
OFFENCE(texture_bytes_per_row) {
  float texel[4];
  [texture(1, 1) getBytes:texel bytesPerRow:8 fromRegion:kWhole mipmapLevel:0];
}
OFFENCE(texture_view) {
  (void)[[texture(1, 2) newTextureViewWithPixelFormat:MTLPixelFormatRGBA32Float
                                          textureType:MTLTextureType2D
                                               levels:NSMakeRange(0, 1)
                                               slices:NSMakeRange(1, 2)] autorelease];
}
OFFENCE(texture_copy) {
  const id<MTLBlitCommandEncoder> blit = [command_buffer() blitCommandEncoder];
  [blit copyFromTexture:texture(1, 1) toTexture:texture(2, 1)];
}
OFFENCE(heap_full) {
  MTLHeapDescriptor* d = [[[MTLHeapDescriptor alloc] init] autorelease];
  [d setSize:16];
  const id<MTLHeap> heap = [[device() newHeapWithDescriptor:d] autorelease];
  (void)[[heap newBufferWithLength:17 options:MTLResourceStorageModePrivate] autorelease];
}

// ---------------------------------------------------------------- images

OFFENCE(image_descriptor) { (void)empty(0, 1, 1); }
OFFENCE(image_descriptor) { (void)empty(1, 1, 1, MPSImageFeatureChannelFormatNone); }
OFFENCE(image_descriptor) { (void)many(4, 2049); }
OFFENCE(image_texture) {
  (void)[[[MPSImage alloc] initWithTexture:texture(1, 1) featureChannels:5] autorelease];
}
OFFENCE(image_texture) {
  (void)[[[MPSImage alloc] initWithTexture:texture(1, 3) featureChannels:5] autorelease];
}
OFFENCE(image_texture) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  (void)[MPSTemporaryImage
      temporaryImageWithCommandBuffer:buffer
                    textureDescriptor:[MTLTextureDescriptor
                                          texture2DDescriptorWithPixelFormat:MTLPixelFormatR32Float
                                                                       width:1
                                                                      height:1
                                                                   mipmapped:NO]];
}
OFFENCE(image_index) {
  float value[2];
  [row({1, 2}) readBytes:value dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels imageIndex:1];
}
OFFENCE(image_region) {
  float value[4];
  [row({1, 2}) readBytes:value
              dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
             bytesPerRow:16
                  region:MTLRegionMake2D(0, 0, 3, 1)
      featureChannelInfo:{0, 1}
              imageIndex:0];
}
OFFENCE(image_channel_info) {
  float value[4];
  [channels({1, 2, 3, 4, 5}) readBytes:value
                            dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
                           bytesPerRow:16
                                region:kWhole
                    featureChannelInfo:{2, 2}
                            imageIndex:0];
}
OFFENCE(image_data_layout) {
  float value[2];
  [row({1, 2}) readBytes:value
              dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
             bytesPerRow:4
                  region:MTLRegionMake2D(0, 0, 2, 1)
      featureChannelInfo:{0, 1}
              imageIndex:0];
}
OFFENCE(image_sub_range) {
  (void)[channels({1, 2, 3, 4, 5}) subImageWithFeatureChannelRange:NSMakeRange(2, 4)];
}
OFFENCE(image_sub_range) { (void)[many(8, 2) subImageWithFeatureChannelRange:NSMakeRange(4, 4)]; }
OFFENCE(image_sub_range) { (void)[row({1}) batchRepresentationWithSubRange:NSMakeRange(0, 2)]; }
OFFENCE(temporary_cpu_access) { (void)read(temporary(command_buffer(), 1, 1, 1)); }
OFFENCE(temporary_other_buffer) {
  encode(linear(), command_buffer(), row({1}), temporary(command_buffer(), 1, 1, 1));
}
OFFENCE(temporary_count_zero) {
  MPSTemporaryImage* image = temporary(command_buffer(), 1, 1, 1);
  [image setReadCount:0];
  [image setReadCount:1];
}
OFFENCE(temporary_count_zero) {
  MPSTemporaryImage* image = temporary(command_buffer(), 1, 1, 1);
  [image setReadCount:0];
  (void)[image texture];
}
OFFENCE(temporary_released_unread) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  (void)temporary(command_buffer(), 1, 1, 1);
  [pool release];
}
OFFENCE(temporary_released_unread) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  (void)[MPSState temporaryStateWithCommandBuffer:command_buffer()];
  [pool release];
}
OFFENCE(read_count_overrun) {
  MPSImageBatchIncrementReadCount(@[ temporary(command_buffer(), 1, 1, 1) ], -2);
}
OFFENCE(prefetch_not_private) {
  [MPSTemporaryImage prefetchStorageWithCommandBuffer:command_buffer()
                                  imageDescriptorList:@[ descriptor(1, 1, 1) ]];
}
OFFENCE(batch_empty) {
  [linear() encodeBatchToCommandBuffer:command_buffer() sourceImages:@[] destinationImages:@[]];
}

// ---------------------------------------------------------------- states

OFFENCE(state_resource_index) {
  (void)[[[[MPSState alloc] initWithDevice:device() bufferSize:4] autorelease] bufferSizeAtIndex:1];
}
OFFENCE(state_not_temporary) {
  [[[[MPSState alloc] initWithDevice:device() bufferSize:4] autorelease] setReadCount:1];
}
OFFENCE(state_read_count) {
  MPSCNNNeuron* kernel = linear();
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSImage* source = row({1});
  MPSImage* result = empty(1, 1, 1);
  MPSState* state = [kernel temporaryResultStateForCommandBuffer:buffer
                                                     sourceImage:source
                                                    sourceStates:nil
                                                destinationImage:result];
  [state setReadCount:0];
  [kernel encodeToCommandBuffer:buffer
                    sourceImage:source
               destinationState:state
               destinationImage:result];
}

// ---------------------------------------------------------------- encodes

OFFENCE(coder_device) {
  NSData* archive = [NSKeyedArchiver archivedDataWithRootObject:linear()];
  emulated_metal_set_option("devices", 0);
  (void)[NSKeyedUnarchiver unarchiveObjectWithData:archive];
}
OFFENCE(source_read_count) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSTemporaryImage* source = temporary(buffer, 1, 1, 1);
  encode(linear(), buffer, source, empty(1, 1, 1));
  encode(linear(), buffer, source, empty(1, 1, 1));
}
OFFENCE(destination_read_count) {
  const id<MTLCommandBuffer> buffer = command_buffer();
  MPSTemporaryImage* result = temporary(buffer, 1, 1, 1);
  [result setReadCount:0];
  encode(linear(), buffer, row({1}), result);
}
OFFENCE(source_usage) {
  encode(linear(), command_buffer(), with_usage(MTLTextureUsageShaderWrite), empty(1, 1, 1));
}
OFFENCE(destination_usage) {
  encode(linear(), command_buffer(), row({1}), with_usage(MTLTextureUsageShaderRead));
}
OFFENCE(destination_aliases_source) {
  MPSImage* image = row({1});
  encode(linear(), command_buffer(), image, image);
}
OFFENCE(destination_aliases_source) {
  MPSImage* image = channels({1, 2, 3, 4, 5, 6, 7, 8});
  encode(linear(), command_buffer(), [image subImageWithFeatureChannelRange:NSMakeRange(0, 4)],
         [image subImageWithFeatureChannelRange:NSMakeRange(4, 4)]);
}
OFFENCE(batch_length) {
  MPSCNNSoftMaxGradient* kernel =
      [[[MPSCNNSoftMaxGradient alloc] initWithDevice:device()] autorelease];
  MPSCNNSoftMax* forward = [[[MPSCNNSoftMax alloc] initWithDevice:device()] autorelease];
  MPSState* state = [forward resultStateForSourceImage:row({1})
                                          sourceStates:nil
                                      destinationImage:row({1})];
  [kernel encodeBatchToCommandBuffer:command_buffer()
                     sourceGradients:@[ row({1}), row({1}) ]
                        sourceImages:@[ row({1}) ]
                      gradientStates:@[ state, state ]
                destinationGradients:@[ empty(1, 1, 1), empty(1, 1, 1) ]];
}
OFFENCE(batch_descriptor) {
  [linear() encodeBatchToCommandBuffer:command_buffer()
                          sourceImages:@[ row({1}), row({1, 2}) ]
                     destinationImages:@[ empty(1, 1, 1), empty(1, 1, 1) ]];
}
OFFENCE(batch_number_of_images) {
  [linear() encodeBatchToCommandBuffer:command_buffer()
                          sourceImages:@[ many(1, 2) ]
                     destinationImages:@[ many(1, 2) ]];
}
OFFENCE(offset_z) {
  MPSCNNNeuron* kernel = linear();
  [kernel setOffset:{0, 0, 1}];
  encode(kernel, command_buffer(), row({1}), empty(1, 1, 1));
}
OFFENCE(offset_z) {
  [linear() encodeBatchToCommandBuffer:command_buffer()
                          sourceImages:@[ row({1}) ]
                     destinationImages:@[ empty(1, 1, 1), empty(1, 1, 1) ]];
}
OFFENCE(clip_z) {
  MPSCNNNeuron* kernel = linear();
  [kernel setClipRect:MTLRegionMake3D(0, 0, 0, 1, 1, 2)];
  encode(kernel, command_buffer(), row({1}), empty(1, 1, 1));
}
OFFENCE(channel_offset) {
  MPSCNNNeuron* kernel = linear();
  [kernel setSourceFeatureChannelOffset:2];
  encode(kernel, command_buffer(), channels({1, 2, 3, 4}), empty(1, 1, 4));
}
OFFENCE(channel_offset) {
  MPSCNNNeuron* kernel = linear();
  [kernel setDestinationFeatureChannelOffset:1];
  encode(kernel, command_buffer(), row({1}), empty(1, 1, 4));
}
OFFENCE(source_channels) {
  MPSCNNNeuron* kernel = linear();
  [kernel setSourceFeatureChannelOffset:4];
  encode(kernel, command_buffer(), channels({1, 2, 3, 4}), empty(1, 1, 4));
}
OFFENCE(destination_channels) {
  MPSCNNNeuron* kernel = linear();
  [kernel setDestinationFeatureChannelOffset:4];
  encode(kernel, command_buffer(), channels({1, 2, 3, 4}), empty(1, 1, 4));
}
OFFENCE(edge_mode) {
  MPSCNNNeuron* kernel = linear();
  [kernel setEdgeMode:MPSImageEdgeModeMirror];
  encode(kernel, command_buffer(), row({1}), empty(1, 1, 1));
}
OFFENCE(padding_method) { (void)[MPSNNDefaultPadding paddingWithMethod:MPSNNPaddingMethodCustom]; }
OFFENCE(padding_method) {
  MPSCNNNeuron* kernel = linear();
  [kernel setPadding:[[[ReservedPadding alloc] init] autorelease]];
  [kernel encodeToCommandBuffer:command_buffer() sourceImage:row({1})];
}
OFFENCE(padding_custom) {
  MPSCNNNeuron* kernel = linear();
  [kernel setPadding:[[[BarePadding alloc] init] autorelease]];
  [kernel encodeToCommandBuffer:command_buffer() sourceImage:row({1})];
}
OFFENCE(allocator_result) {
  MPSCNNNeuron* kernel = linear();
  [kernel setDestinationImageAllocator:[[[EmptyAllocator alloc] init] autorelease]];
  [kernel encodeToCommandBuffer:command_buffer() sourceImage:row({1})];
}
OFFENCE(source_count) {
  [linear() destinationImageDescriptorForSourceImages:@[ row({1}), row({1}) ] sourceStates:nil];
}
