// Allocators and padding policies of users, as Apple's graphs call them; and states of Apple's that
// users get.
#include "graph/callbacks_metal.hpp"

#include <utility>

namespace mpsgrad::graph_metal {

using metal::Retained;

void AllocatorCalls::begin_encode() {
  made_.reset();
  next_ = 0;
}

MPSImage* AllocatorCalls::next(MPSImageDescriptor* descriptor) {
  Encode* encode = context_->encode;
  if (encode == nullptr) {
    return nil;
  }
  MPSImage* result = nil;
  encode->fail(encode->call.in_turn([&] { result = next_of(*encode, descriptor); }));
  return result;
}

MPSImage* AllocatorCalls::next_of(Encode& encode, MPSImageDescriptor* descriptor) {
  if (!made_) {
    ImageDescriptor wanted = encode.call.descriptors.at(at(slot_)).value_or(ImageDescriptor());
    wanted.width = static_cast<Index>(descriptor.width);
    wanted.height = static_cast<Index>(descriptor.height);
    wanted.feature_channels = static_cast<Index>(descriptor.featureChannels);
    made_ =
        allocator_->allocate(encode.call.command_buffer, wanted, *kernel_, encode.images, false);
  }
  require(next_ < made_->size(), kGraph, ": ", made_->size(),
          " images were made for a batch of more");
  const std::shared_ptr<Image>& image = (*made_)[next_++];
  MPSImage* result = metal::mps_image(*image);
  encode.given[result] = image;
  return result;
}

namespace {

// A node's policy that is not one of Apple's: our kernel places its window by it, and Apple's gets
// what ours has then.
class PaddingCalls {
 public:
  PaddingCalls(std::shared_ptr<Context> context, std::shared_ptr<Padding> padding,
               std::shared_ptr<UnaryKernel> kernel)
      : context_(std::move(context)), padding_(std::move(padding)), kernel_(std::move(kernel)) {}

  MPSNNPaddingMethod method() const {
    return static_cast<MPSNNPaddingMethod>(padding_->method() | padding_method::kCustom);
  }

  MPSImageDescriptor* place(NSArray<MPSImage*>* sources, MPSKernel* kernel,
                            MPSImageDescriptor* suggested) {
    Encode* encode = context_->encode;
    MPSImageDescriptor* result = suggested;
    if (encode == nullptr) {
      return result;
    }
    encode->fail(encode->call.in_turn(
        [&] { result = placed(sources, static_cast<MPSCNNKernel*>(kernel), suggested); }));
    return result;
  }

 private:
  // Images that stand for the sizes of Apple's.
  ImageBatch::Images outlines(NSArray<MPSImage*>* sources) const {
    ImageBatch::Images images;
    for (MPSImage* source in sources) {
      ImageDescriptor descriptor;
      descriptor.width = static_cast<Index>(source.width);
      descriptor.height = static_cast<Index>(source.height);
      descriptor.feature_channels = static_cast<Index>(source.featureChannels);
      descriptor.channel_format = static_cast<ChannelFormat>(source.featureChannelFormat);
      images.push_back(Image::make(kernel_->device(), descriptor));
    }
    return images;
  }

  MPSImageDescriptor* placed(NSArray<MPSImage*>* sources, MPSCNNKernel* kernel,
                             MPSImageDescriptor* suggested) const {
    const ImageDescriptor ours = kernel_->destination_descriptor(outlines(sources), {});
    const UnaryProperties& properties = kernel_->properties();
    require<UnsupportedError>(
        properties.clip_rect == Region{} && properties.source_channel_offset == 0 &&
            properties.source_channel_maximum == kUnlimited &&
            properties.destination_channel_offset == 0,
        kernel_->class_name(),
        ": a padding policy of your own may set offset and edge mode where Metal runs the graph");
    const Offset& offset = properties.offset;
    kernel.offset = {offset.x, offset.y, kernel.offset.z};
    kernel.edgeMode = static_cast<MPSImageEdgeMode>(properties.edge_mode);
    suggested.width = static_cast<NSUInteger>(ours.width);
    suggested.height = static_cast<NSUInteger>(ours.height);
    suggested.featureChannels = static_cast<NSUInteger>(ours.feature_channels);
    return suggested;
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<Padding> padding_;
  std::shared_ptr<UnaryKernel> kernel_;
};

}  // namespace
}  // namespace mpsgrad::graph_metal

@interface MpsgradPadding : NSObject <MPSNNPadding> {
 @public
  std::shared_ptr<mpsgrad::graph_metal::PaddingCalls>* calls_;
}
@end

@implementation MpsgradPadding
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (nullable instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [self init];
}
- (void)dealloc {
  delete calls_;
  [super dealloc];
}
- (MPSNNPaddingMethod)paddingMethod {
  return (*calls_)->method();
}
- (NSString*)label {
  return @"mpsgrad";
}
// No gradient node of Apple's gets a policy of ours.
- (nullable instancetype)inverse {
  return nil;
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:
                                                        (nullable NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)inDescriptor {
  (void)sourceStates;
  return (*calls_)->place(sourceImages, kernel, inDescriptor);
}
@end

@interface MpsgradImageAllocator : NSObject <MPSImageAllocator> {
 @public
  std::shared_ptr<mpsgrad::graph_metal::AllocatorCalls>* calls_;
}
@end

@implementation MpsgradImageAllocator
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  (void)coder;
}
- (nullable instancetype)initWithCoder:(NSCoder*)coder {
  (void)coder;
  return [self init];
}
- (void)dealloc {
  delete calls_;
  [super dealloc];
}
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel {
  MPSImage* image = (*calls_)->next(descriptor);
  return image != nil ? image
                      : [[MPSImage defaultAllocator] imageForCommandBuffer:commandBuffer
                                                           imageDescriptor:descriptor
                                                                    kernel:kernel];
}
- (MPSImageBatch*)imageBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             imageDescriptor:(MPSImageDescriptor*)descriptor
                                      kernel:(MPSKernel*)kernel
                                       count:(NSUInteger)count {
  NSMutableArray<MPSImage*>* images = [NSMutableArray arrayWithCapacity:count];
  for (NSUInteger i = 0; i < count; ++i) {
    [images addObject:[self imageForCommandBuffer:commandBuffer
                                  imageDescriptor:descriptor
                                           kernel:kernel]];
  }
  return images;
}
@end

namespace mpsgrad {
namespace graph_metal {

Retained<id<MPSImageAllocator>> make_allocator(std::shared_ptr<AllocatorCalls> calls) {
  auto made = Retained<MpsgradImageAllocator*>::adopt([[MpsgradImageAllocator alloc] init]);
  made.get()->calls_ = new std::shared_ptr<AllocatorCalls>(std::move(calls));
  return Retained<id<MPSImageAllocator>>::share(made.get());
}

Retained<id<MPSNNPadding>> make_padding(std::shared_ptr<Context> context,
                                        std::shared_ptr<Padding> padding,
                                        std::shared_ptr<UnaryKernel> kernel) {
  auto made = Retained<MpsgradPadding*>::adopt([[MpsgradPadding alloc] init]);
  made.get()->calls_ = new std::shared_ptr<PaddingCalls>(
      std::make_shared<PaddingCalls>(std::move(context), std::move(padding), std::move(kernel)));
  return Retained<id<MPSNNPadding>>::share(made.get());
}

}  // namespace graph_metal

namespace metal {

std::shared_ptr<MetalStatePayload> StateAdoption::payload(MPSState* state) {
  auto result = std::make_shared<MetalStatePayload>();
  if (lent) {
    result->borrow(state);
    payloads.push_back(result);
  } else {
    result->assign(state,
                   temporary ? as<MetalCommandBuffer>(*command_buffer).temporaries() : nullptr);
  }
  return result;
}

std::shared_ptr<MetalBuffer> StateAdoption::floats(id<MTLBuffer> buffer, Index count,
                                                   const char* who) {
  require<DeviceError>(buffer != nil, who, ": the device made no buffer");
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  require<DeviceError>([buffer length] >= bytes, who, ": the device made a buffer of ",
                       [buffer length], " bytes, expected ", bytes);
  buffers.push_back(
      std::make_shared<MetalBuffer>(device, bytes, Retained<id<MTLBuffer>>::share(buffer)));
  return buffers.back();
}

std::shared_ptr<Buffer> StateAdoption::live_floats(id<MTLBuffer> buffer, Index count,
                                                   const char* who) const {
  if (buffer == nil) {
    return nullptr;
  }
  StateAdoption other;
  other.device = device;
  return other.floats(buffer, count, who);
}

}  // namespace metal
}  // namespace mpsgrad
