// Images, temporary images, their batches and allocators.
#include <algorithm>
#include <cstring>
#include <set>

#include "internal.hpp"

using namespace emulated_metal;

@implementation MPSImageDescriptor
+ (instancetype)imageDescriptorWithChannelFormat:(MPSImageFeatureChannelFormat)channelFormat
                                           width:(NSUInteger)width
                                          height:(NSUInteger)height
                                 featureChannels:(NSUInteger)featureChannels {
  return [self
      imageDescriptorWithChannelFormat:channelFormat
                                 width:width
                                height:height
                       featureChannels:featureChannels
                        numberOfImages:1
                                 usage:MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite];
}
+ (instancetype)imageDescriptorWithChannelFormat:(MPSImageFeatureChannelFormat)channelFormat
                                           width:(NSUInteger)width
                                          height:(NSUInteger)height
                                 featureChannels:(NSUInteger)featureChannels
                                  numberOfImages:(NSUInteger)numberOfImages
                                           usage:(MTLTextureUsage)usage {
  MPSImageDescriptor* descriptor = [[[self alloc] init] autorelease];
  ImageDescriptorBody& body = *descriptor->body_;
  body.width = width;
  body.height = height;
  body.channels = featureChannels;
  body.count = numberOfImages;
  body.format = channelFormat;
  body.usage = usage;
  return descriptor;
}
- (instancetype)init {
  self = [super init];
  body_ = new ImageDescriptorBody;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (instancetype)copyWithZone:(NSZone*)zone {
  MPSImageDescriptor* copy = [[[self class] allocWithZone:zone] init];
  *copy->body_ = *body_;
  return copy;
}
- (MTLPixelFormat)pixelFormat {
  return pixel_format_for(body_->format, body_->channels);
}
#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return body_->member;                   \
  }                                         \
  -(void)setter : (type)value {             \
    body_->member = value;                  \
  }
FIELD(NSUInteger, width, setWidth, width)
FIELD(NSUInteger, height, setHeight, height)
FIELD(NSUInteger, featureChannels, setFeatureChannels, channels)
FIELD(NSUInteger, numberOfImages, setNumberOfImages, count)
FIELD(MPSImageFeatureChannelFormat, channelFormat, setChannelFormat, format)
FIELD(MTLCPUCacheMode, cpuCacheMode, setCpuCacheMode, cache)
FIELD(MTLStorageMode, storageMode, setStorageMode, mode)
FIELD(MTLTextureUsage, usage, setUsage, usage)
@end

namespace {

NSUInteger slices(NSUInteger channels) { return (channels + 3) / 4; }

void check_descriptor(const ImageDescriptorBody& d, const Where& where) {
  REQUIRE(d.width >= 1 && d.width <= 16384 && d.height >= 1 && d.height <= 16384, image_descriptor,
          where, "size %lu x %lu", static_cast<unsigned long>(d.width),
          static_cast<unsigned long>(d.height));
  REQUIRE(
      d.channels >= 1 && d.count >= 1 && d.channels <= 8192 && slices(d.channels) * d.count <= 2048,
      image_descriptor, where, "%lu channels, %lu images", static_cast<unsigned long>(d.channels),
      static_cast<unsigned long>(d.count));
  REQUIRE(d.format >= MPSImageFeatureChannelFormatUnorm8 &&
              d.format <= MPSImageFeatureChannelFormatFloat32,
          image_descriptor, where, "channel format %lu", static_cast<unsigned long>(d.format));
  REQUIRE(d.mode <= MTLStorageModePrivate, image_descriptor, where, "storage mode");
  REQUIRE((d.usage & (MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite)) != 0,
          image_descriptor, where, "usage");
}

MPSImageFeatureChannelFormat channel_format_of(Item item) {
  switch (item) {
    case Item::unorm8:
      return MPSImageFeatureChannelFormatUnorm8;
    case Item::unorm16:
      return MPSImageFeatureChannelFormatUnorm16;
    case Item::float16:
      return MPSImageFeatureChannelFormatFloat16;
    case Item::float32:
      break;
  }
  return MPSImageFeatureChannelFormatFloat32;
}

Item item_of(MPSImageFeatureChannelFormat format) {
  switch (format) {
    case MPSImageFeatureChannelFormatUnorm8:
      return Item::unorm8;
    case MPSImageFeatureChannelFormatUnorm16:
      return Item::unorm16;
    case MPSImageFeatureChannelFormatFloat16:
      return Item::float16;
    default:
      return Item::float32;
  }
}

// The texture of the image itself or, for a view, of the image it looks into.
EmulatedTexture* ensure_texture(ImageBody& body) {
  if (body.parent) return ensure_texture(*[body.parent.get() emulatedBody]);
  if (!body.texture) {
    MTLTextureDescriptor* descriptor = [[MTLTextureDescriptor alloc] init];
    const NSUInteger length = slices(body.shape.channels) * body.shape.count;
    descriptor.textureType = length == 1 ? MTLTextureType2D : MTLTextureType2DArray;
    descriptor.pixelFormat = pixel_format_for(body.shape.format, body.shape.channels);
    descriptor.width = body.shape.width;
    descriptor.height = body.shape.height;
    descriptor.arrayLength = length;
    descriptor.storageMode = body.shape.mode;
    descriptor.cpuCacheMode = body.shape.cache;
    descriptor.usage = body.shape.usage;
    body.texture = adopt([body.device.get() newTextureWithDescriptor:descriptor]);
    [descriptor release];
  }
  return static_cast<EmulatedTexture*>(body.texture.get());
}

// One past the position of the first slice, relative to the texture of the root image.
NSUInteger root_slice(const ImageBody& body) {
  if (!body.parent) return body.first_slice;
  return body.first_slice + root_slice(*[body.parent.get() emulatedBody]);
}

// Storage falls to whoever needs memory next: poison it at this point of the command stream.
void recycle(ImageBody& body, id<MTLCommandBuffer> command_buffer, const Where& where) {
  if (body.parent) {
    decrement_read_count(body.parent.get(), 1, where);
    return;
  }
  if (!body.texture) return;
  const id<MTLCommandBuffer> root = root_of(command_buffer, where);
  if ([root status] >= MTLCommandBufferStatusCommitted) return;
  const StoragePtr storage = storage_of(body.texture.get(), where);
  Command command;
  command.writes = {storage};
  command.run = [storage] { std::fill(storage->gpu.begin(), storage->gpu.end(), storage->junk); };
  record(root, where, std::move(command));
}

MPSImage* make_view(MPSImage* parent, NSUInteger first_image, NSUInteger images,
                    NSUInteger first_channel, NSUInteger channels, const Where& where) {
  ImageBody& from = body_of(parent, where);
  if (from.temporary) {
    REQUIRE(from.read_count > 0, temporary_count_zero, where);
    ++from.read_count;
  }
  MPSImage* view = [[[from.temporary ? [MPSTemporaryImage class] : [MPSImage class] alloc]
      emulatedInit] autorelease];
  ImageBody& body = *[view emulatedBody];
  body.shape = from.shape;
  body.shape.count = images;
  body.shape.channels = channels;
  body.device = from.device;
  body.parent = parent;
  body.slices_per_image = from.slices_per_image;
  body.first_slice = first_image * from.slices_per_image + first_channel / 4;
  body.temporary = from.temporary;
  body.lineage = from.lineage;
  body.command_buffer = from.command_buffer;
  body.read_count = from.temporary ? 1 : 0;
  return view;
}

MPSTemporaryImage* make_temporary(Class image_class, id<MTLCommandBuffer> command_buffer,
                                  const ImageDescriptorBody& shape, const Where& where) {
  const id<MTLCommandBuffer> root = check_encodable(command_buffer, where);
  MPSTemporaryImage* image = [[[image_class alloc] emulatedInit] autorelease];
  ImageBody& body = *[image emulatedBody];
  body.shape = shape;
  body.shape.mode = MTLStorageModePrivate;
  check_descriptor(body.shape, where);
  body.slices_per_image = slices(shape.channels);
  body.device = [root device];
  body.temporary = true;
  body.lineage = lineage_of(command_buffer, where);
  body.command_buffer = root;
  body.read_count = 1;
  return image;
}

ImageDescriptorBody shape_of(const MTLTextureDescriptor* descriptor, NSUInteger channels,
                             const Where& where) {
  const TextureDescriptorBody& d = *descriptor->body_;
  Format format;
  REQUIRE(describe(d.format, &format), image_texture, where, "pixel format");
  if (channels == 0) channels = static_cast<NSUInteger>(format.lanes);
  REQUIRE(d.type == MTLTextureType2D || d.type == MTLTextureType2DArray, image_texture, where,
          "texture type");
  REQUIRE(d.type == MTLTextureType2DArray || channels <= 4, image_texture, where,
          "%lu channels in a 2D texture", static_cast<unsigned long>(channels));
  REQUIRE(static_cast<NSUInteger>(format.lanes) >= std::min<NSUInteger>(channels, 4), image_texture,
          where, "too few lanes");
  REQUIRE(d.length % slices(channels) == 0, image_texture, where,
          "array length %lu for %lu channels", static_cast<unsigned long>(d.length),
          static_cast<unsigned long>(channels));
  ImageDescriptorBody shape;
  shape.width = d.width;
  shape.height = d.height;
  shape.channels = channels;
  shape.count = d.length / slices(channels);
  shape.format = channel_format_of(format.item);
  shape.cache = d.cache;
  shape.mode = d.mode;
  shape.usage = d.usage;
  return shape;
}

// Where item (x, y, channel) of a transfer lies in the caller's memory.
struct Transfer {
  MPSDataLayout layout;
  NSUInteger bytes_per_column, bytes_per_row, bytes_per_image;
  MTLRegion region;
  NSUInteger first_channel, channels, image;
};

// A full transfer, tightly packed.
Transfer whole(MPSImage* image, MPSDataLayout layout, NSUInteger index, const Where& where) {
  const ImageBody& body = body_of(image, where);
  const size_t item = item_bytes(item_of(body.shape.format));
  const bool chunky = layout == MPSDataLayoutHeightxWidthxFeatureChannels;
  Transfer t{layout,
             0,
             0,
             0,
             {{0, 0, 0}, {body.shape.width, body.shape.height, 1}},
             0,
             body.shape.channels,
             index};
  t.bytes_per_column = chunky ? item * body.shape.channels : item;
  t.bytes_per_row = t.bytes_per_column * body.shape.width;
  t.bytes_per_image = item * body.shape.channels * body.shape.width * body.shape.height;
  return t;
}

Transfer partial(MPSImage* image, MPSDataLayout layout, NSUInteger bytes_per_row,
                 NSUInteger bytes_per_image, MTLRegion region, MPSImageReadWriteParams channels,
                 NSUInteger index, const Where& where) {
  const ImageBody& body = body_of(image, where);
  const size_t item = item_bytes(item_of(body.shape.format));
  const NSUInteger count = channels.numberOfFeatureChannelsToReadWrite;
  const bool chunky = layout == MPSDataLayoutHeightxWidthxFeatureChannels;
  Transfer t{layout, 0,    bytes_per_row, bytes_per_image, region, channels.featureChannelOffset,
             count,  index};
  t.bytes_per_column = chunky ? item * count : item;
  if (bytes_per_image == 0) {
    t.bytes_per_image =
        chunky ? bytes_per_row * region.size.height : bytes_per_row * region.size.height * count;
  }
  return t;
}

template <class Visit>
void transfer(MPSImage* image, const Transfer& t, const Where& where, const Visit& visit) {
  ImageBody& body = body_of(image, where);
  REQUIRE(!body.temporary, temporary_cpu_access, where);
  REQUIRE(body.shape.mode != MTLStorageModePrivate, private_cpu_access, where);
  REQUIRE(t.layout <= MPSDataLayoutFeatureChannelsxHeightxWidth, image_data_layout, where);
  const MTLRegion& r = t.region;
  REQUIRE(r.size.depth >= 1 && t.image < body.shape.count &&
              r.origin.z + r.size.depth <= body.shape.count - t.image,
          image_index, where, "image %lu of %lu", static_cast<unsigned long>(t.image),
          static_cast<unsigned long>(body.shape.count));
  REQUIRE(r.origin.x <= body.shape.width && r.size.width <= body.shape.width - r.origin.x &&
              r.origin.y <= body.shape.height && r.size.height <= body.shape.height - r.origin.y,
          image_region, where);
  REQUIRE(t.first_channel % 4 == 0 && t.channels > 0 &&
              (t.first_channel == 0 || t.channels % 4 == 0 ||
               t.first_channel + t.channels == body.shape.channels) &&
              t.first_channel + t.channels <= body.shape.channels,
          image_channel_info, where);
  const size_t item = item_bytes(item_of(body.shape.format));
  const bool chunky = t.layout == MPSDataLayoutHeightxWidthxFeatureChannels;
  REQUIRE(t.bytes_per_row >= t.bytes_per_column * r.size.width, image_data_layout, where,
          "bytesPerRow %lu", static_cast<unsigned long>(t.bytes_per_row));
  for (NSUInteger z = 0; z < r.size.depth; ++z) {
    const View view = view_of(image, t.image + r.origin.z + z, where);
    const auto plane = static_cast<size_t>(view.width * view.height);
    std::unique_lock lock(view.storage->mutex);
    for (NSUInteger y = 0; y < r.size.height; ++y) {
      for (NSUInteger x = 0; x < r.size.width; ++x) {
        for (NSUInteger k = 0; k < t.channels; ++k) {
          const NSUInteger channel = t.first_channel + k;
          const size_t texel = (static_cast<size_t>(view.first_slice) + channel / 4) * plane +
                               (r.origin.y + y) * static_cast<size_t>(view.width) + r.origin.x + x;
          const size_t inside =
              (texel * static_cast<size_t>(view.format.lanes) + channel % 4) * item;
          const size_t outside =
              z * t.bytes_per_image +
              (chunky ? y * t.bytes_per_row + x * t.bytes_per_column + k * item
                      : (k * r.size.height + y) * t.bytes_per_row + x * t.bytes_per_column);
          visit(*view.storage, inside, outside, item);
        }
      }
    }
  }
}

void read_bytes(MPSImage* image, void* data, const Transfer& t, const Where& where) {
  REQUIRE(data != nullptr, nil_argument, where, "dataBytes");
  transfer(image, t, where, [data](Storage& storage, size_t inside, size_t outside, size_t item) {
    std::memcpy(static_cast<uint8_t*>(data) + outside, storage.cpu.data() + inside, item);
  });
}

void write_bytes(MPSImage* image, const void* data, const Transfer& t, const Where& where) {
  REQUIRE(data != nullptr, nil_argument, where, "dataBytes");
  ImageBody& body = body_of(image, where);
  if (!body.temporary && body.shape.mode != MTLStorageModePrivate) {
    const StoragePtr storage = ensure_texture(body)->body_->storage;
    REQUIRE(!storage->busy(), cpu_write_in_flight, where);
  }
  transfer(image, t, where, [data](Storage& storage, size_t inside, size_t outside, size_t item) {
    const uint8_t* from = static_cast<const uint8_t*>(data) + outside;
    std::memcpy(storage.cpu.data() + inside, from, item);
    std::memcpy(storage.gpu.data() + inside, from, item);
  });
}

}  // namespace

namespace emulated_metal {

ImageBody& body_of(MPSImage* image, const Where& where) {
  REQUIRE(image != nil, nil_argument, where, "image");
  REQUIRE([image isKindOfClass:[MPSImage class]], foreign_object, where, "image");
  return *[image emulatedBody];
}

View view_of(MPSImage* image, NSUInteger index, const Where& where) {
  ImageBody& body = body_of(image, where);
  REQUIRE(index < body.shape.count, image_index, where);
  EmulatedTexture* texture = ensure_texture(body);
  View view;
  view.storage = texture->body_->storage;
  view.format = texture->body_->format;
  view.width = static_cast<long>(body.shape.width);
  view.height = static_cast<long>(body.shape.height);
  view.channels = static_cast<long>(body.shape.channels);
  view.first_slice = static_cast<long>(texture->body_->first_slice + root_slice(body) +
                                       index * body.slices_per_image);
  return view;
}

void touch_temporary(MPSImage* image, id<MTLCommandBuffer> command_buffer, const Where& where) {
  const ImageBody& body = body_of(image, where);
  if (!body.temporary) return;
  REQUIRE(body.lineage == lineage_of(command_buffer, where), temporary_other_buffer, where);
}

NSUInteger read_count_of(MPSImage* image, const Where& where) {
  return body_of(image, where).read_count;
}

void decrement_read_count(MPSImage* image, NSUInteger by, const Where& where) {
  ImageBody& body = body_of(image, where);
  if (!body.temporary) return;
  REQUIRE(body.read_count >= by, read_count_overrun, where);
  body.read_count -= by;
  if (body.read_count == 0 && by > 0) recycle(body, body.command_buffer.get(), where);
}

}  // namespace emulated_metal

// ---------------------------------------------------------------- allocators

@interface EmulatedImageAllocator : EmulatedObject <MPSImageAllocator> {
 @public
  BOOL temporary_;
}
@end

@implementation EmulatedImageAllocator
+ (EmulatedImageAllocator*)shared:(BOOL)temporary {
  EmulatedImageAllocator* allocator = [[[EmulatedImageAllocator alloc] init] autorelease];
  allocator->temporary_ = temporary;
  return allocator;
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  [coder encodeBool:temporary_ forKey:@"temporary"];
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  self = [super init];
  temporary_ = [coder decodeBoolForKey:@"temporary"];
  return self;
}
- (BOOL)isEqual:(id)other {
  return [other isKindOfClass:[EmulatedImageAllocator class]] &&
         static_cast<EmulatedImageAllocator*>(other)->temporary_ == temporary_;
}
- (NSUInteger)hash {
  return temporary_ ? 1 : 2;
}
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel {
  REQUIRE(cmdBuf != nil && descriptor != nil && kernel != nil, nil_argument, HERE);
  if (temporary_) {
    return [MPSTemporaryImage temporaryImageWithCommandBuffer:cmdBuf imageDescriptor:descriptor];
  }
  return [[[MPSImage alloc] initWithDevice:[cmdBuf device] imageDescriptor:descriptor] autorelease];
}
- (MPSImageBatch*)imageBatchForCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                             imageDescriptor:(MPSImageDescriptor*)descriptor
                                      kernel:(MPSKernel*)kernel
                                       count:(NSUInteger)count {
  NSMutableArray* images = [NSMutableArray arrayWithCapacity:count];
  for (NSUInteger index = 0; index < count; ++index) {
    [images addObject:[self imageForCommandBuffer:cmdBuf imageDescriptor:descriptor kernel:kernel]];
  }
  return images;
}
@end

// ---------------------------------------------------------------- images

@implementation MPSImage
+ (id<MPSImageAllocator>)defaultAllocator {
  return [EmulatedImageAllocator shared:NO];
}
- (ImageBody*)emulatedBody {
  return body_;
}
- (instancetype)emulatedInit {
  self = [super init];
  body_ = new ImageBody;
  return self;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
               imageDescriptor:(const MPSImageDescriptor*)imageDescriptor {
  self = [self emulatedInit];
  (void)index_of(device, HERE);
  REQUIRE(imageDescriptor != nil, nil_argument, HERE, "imageDescriptor");
  check_descriptor(*imageDescriptor->body_, HERE);
  body_->shape = *imageDescriptor->body_;
  body_->slices_per_image = slices(body_->shape.channels);
  body_->device = device;
  return self;
}
- (instancetype)initWithTexture:(id<MTLTexture>)texture
                featureChannels:(NSUInteger)featureChannels {
  self = [self emulatedInit];
  REQUIRE(texture != nil, nil_argument, HERE, "texture");
  REQUIRE([texture isKindOfClass:[EmulatedTexture class]], foreign_object, HERE, "texture");
  REQUIRE(featureChannels > 0, image_texture, HERE, "0 channels");
  MTLTextureDescriptor* descriptor = [[MTLTextureDescriptor alloc] init];
  *descriptor->body_ = static_cast<EmulatedTexture*>(texture)->body_->descriptor;
  body_->shape = shape_of(descriptor, featureChannels, HERE);
  [descriptor release];
  body_->slices_per_image = slices(featureChannels);
  body_->device = [texture device];
  body_->texture = texture;
  body_->wrapped = true;
  return self;
}
- (instancetype)initWithParentImage:(MPSImage*)parent
                         sliceRange:(NSRange)sliceRange
                    featureChannels:(NSUInteger)featureChannels {
  const ImageBody& from = body_of(parent, HERE);
  REQUIRE(featureChannels > 0 && sliceRange.length == slices(featureChannels) &&
              sliceRange.location + sliceRange.length <= from.slices_per_image * from.shape.count,
          image_sub_range, HERE);
  MPSImage* view = make_view(parent, 0, 1, sliceRange.location * 4, featureChannels, HERE);
  [self release];
  return [view retain];
}
- (void)dealloc {
  if (body_ != nullptr) {
    REQUIRE(!body_->temporary || body_->read_count == 0, temporary_released_unread, HERE,
            "read count %lu", static_cast<unsigned long>(body_->read_count));
    delete body_;
  }
  [super dealloc];
}
- (id<MTLDevice>)device {
  return body_->device.get();
}
- (NSUInteger)width {
  return body_->shape.width;
}
- (NSUInteger)height {
  return body_->shape.height;
}
- (NSUInteger)featureChannels {
  return body_->shape.channels;
}
- (NSUInteger)numberOfImages {
  return body_->shape.count;
}
- (MTLTextureType)textureType {
  if (body_->wrapped) return [body_->texture.get() textureType];
  return slices(body_->shape.channels) * body_->shape.count == 1 ? MTLTextureType2D
                                                                 : MTLTextureType2DArray;
}
- (MTLPixelFormat)pixelFormat {
  if (body_->parent) return [body_->parent.get() pixelFormat];
  if (body_->wrapped) return [body_->texture.get() pixelFormat];
  return pixel_format_for(body_->shape.format, body_->shape.channels);
}
- (NSUInteger)precision {
  switch (item_of(body_->shape.format)) {
    case Item::unorm8:
      return 8;
    case Item::unorm16:
      return 16;
    case Item::float16:
      return 11;
    case Item::float32:
      break;
  }
  return 24;
}
- (MTLTextureUsage)usage {
  return body_->shape.usage;
}
- (MPSImageFeatureChannelFormat)featureChannelFormat {
  return body_->shape.format;
}
- (size_t)pixelSize {
  Format format;
  describe([self pixelFormat], &format);
  return static_cast<size_t>(format.lanes) * item_bytes(format.item);
}
- (id<MTLTexture>)texture {
  if (body_->temporary) REQUIRE(body_->read_count > 0, temporary_count_zero, HERE);
  EmulatedTexture* texture = ensure_texture(*body_);
  if (!body_->parent) return texture;
  if (!body_->texture_view) {
    const NSUInteger count =
        (body_->shape.count - 1) * body_->slices_per_image + slices(body_->shape.channels);
    body_->texture_view = adopt([texture
        newTextureViewWithPixelFormat:[texture pixelFormat]
                          textureType:count == 1 ? MTLTextureType2D : MTLTextureType2DArray
                               levels:NSMakeRange(0, 1)
                               slices:NSMakeRange(root_slice(*body_), count)]);
  }
  return body_->texture_view.get();
}
- (NSString*)label {
  return body_->label.get();
}
- (void)setLabel:(NSString*)label {
  body_->label = adopt<NSString*>([label copy]);
}
- (MPSImage*)parent {
  return body_->parent.get();
}
- (MPSImageBatch*)batchRepresentationWithSubRange:(NSRange)subRange {
  REQUIRE(subRange.length > 0 && subRange.location < body_->shape.count &&
              subRange.length <= body_->shape.count - subRange.location,
          image_sub_range, HERE);
  NSMutableArray* batch = [NSMutableArray array];
  for (NSUInteger index = 0; index < subRange.length; ++index) {
    [batch addObject:make_view(self, subRange.location + index, 1, 0, body_->shape.channels, HERE)];
  }
  return batch;
}
- (MPSImageBatch*)batchRepresentation {
  return [self batchRepresentationWithSubRange:NSMakeRange(0, body_->shape.count)];
}
- (MPSImage*)subImageWithFeatureChannelRange:(NSRange)range {
  REQUIRE(range.location % 4 == 0 && range.length % 4 == 0 && range.length > 0 &&
              range.location < body_->shape.channels,
          image_sub_range, HERE);
  const NSUInteger length = std::min(range.length, body_->shape.channels - range.location);
  REQUIRE(body_->shape.count == 1 || length == body_->shape.channels, image_sub_range, HERE,
          "some slices of each of %lu images are not one range of slices",
          static_cast<unsigned long>(body_->shape.count));
  return make_view(self, 0, body_->shape.count, range.location, length, HERE);
}
- (NSUInteger)resourceSize {
  if (body_->parent || body_->wrapped) return 0;
  Format format;
  describe([self pixelFormat], &format);
  return body_->shape.width * body_->shape.height * slices(body_->shape.channels) *
         body_->shape.count * static_cast<NSUInteger>(format.lanes) * item_bytes(format.item);
}
- (MPSPurgeableState)setPurgeableState:(MPSPurgeableState)state {
  if (!body_->texture) return MPSPurgeableStateAllocationDeferred;
  return state == MPSPurgeableStateKeepCurrent ? MPSPurgeableStateNonVolatile : state;
}
- (void)readBytes:(void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex {
  read_bytes(
      self, dataBytes,
      partial(self, dataLayout, bytesPerRow, 0, region, featureChannelInfo, imageIndex, HERE),
      HERE);
}
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex {
  write_bytes(
      self, dataBytes,
      partial(self, dataLayout, bytesPerRow, 0, region, featureChannelInfo, imageIndex, HERE),
      HERE);
}
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
        bytesPerColumn:(NSUInteger)bytesPerColumn
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex {
  Transfer t = partial(self, dataLayout, bytesPerRow, bytesPerImage, region, featureChannelInfo,
                       imageIndex, HERE);
  REQUIRE(bytesPerColumn >= t.bytes_per_column, image_data_layout, HERE, "bytesPerColumn");
  t.bytes_per_column = bytesPerColumn;
  write_bytes(self, dataBytes, t, HERE);
}
- (void)readBytes:(void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex {
  read_bytes(self, dataBytes,
             partial(self, dataLayout, bytesPerRow, bytesPerImage, region, featureChannelInfo,
                     imageIndex, HERE),
             HERE);
}
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex {
  write_bytes(self, dataBytes,
              partial(self, dataLayout, bytesPerRow, bytesPerImage, region, featureChannelInfo,
                      imageIndex, HERE),
              HERE);
}
- (void)readBytes:(void*)dataBytes
       dataLayout:(MPSDataLayout)dataLayout
       imageIndex:(NSUInteger)imageIndex {
  read_bytes(self, dataBytes, whole(self, dataLayout, imageIndex, HERE), HERE);
}
- (void)writeBytes:(const void*)dataBytes
        dataLayout:(MPSDataLayout)dataLayout
        imageIndex:(NSUInteger)imageIndex {
  write_bytes(self, dataBytes, whole(self, dataLayout, imageIndex, HERE), HERE);
}
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  check_encodable(commandBuffer, HERE);
  REQUIRE(index_of(body_->device.get(), HERE) == device_of(commandBuffer, HERE), different_devices,
          HERE);
  if (body_->temporary || body_->shape.mode != MTLStorageModeManaged) return;
  const ImageBody* root = body_;
  while (root->parent) root = [root->parent.get() emulatedBody];
  if (!root->texture) return;  // nothing has been written yet
  synchronize(commandBuffer, HERE, storage_of(root->texture.get(), HERE));
}
@end

@implementation MPSTemporaryImage
+ (id<MPSImageAllocator>)defaultAllocator {
  return [EmulatedImageAllocator shared:YES];
}
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                imageDescriptor:(const MPSImageDescriptor*)imageDescriptor {
  REQUIRE(imageDescriptor != nil, nil_argument, HERE, "imageDescriptor");
  return make_temporary(self, commandBuffer, *imageDescriptor->body_, HERE);
}
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                              textureDescriptor:(const MTLTextureDescriptor*)textureDescriptor {
  return [self temporaryImageWithCommandBuffer:commandBuffer
                             textureDescriptor:textureDescriptor
                               featureChannels:0];
}
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                              textureDescriptor:(const MTLTextureDescriptor*)textureDescriptor
                                featureChannels:(NSUInteger)featureChannels {
  REQUIRE(textureDescriptor != nil, nil_argument, HERE, "textureDescriptor");
  const TextureDescriptorBody& d = *textureDescriptor->body_;
  REQUIRE(d.mode == MTLStorageModePrivate && d.depth == 1, image_texture, HERE,
          "storage mode or depth");
  return make_temporary(self, commandBuffer, shape_of(textureDescriptor, featureChannels, HERE),
                        HERE);
}
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     imageDescriptorList:(NSArray<MPSImageDescriptor*>*)descriptorList {
  check_encodable(commandBuffer, HERE);
  REQUIRE(descriptorList != nil, nil_argument, HERE, "imageDescriptorList");
  for (MPSImageDescriptor* descriptor in descriptorList) {
    REQUIRE([descriptor storageMode] == MTLStorageModePrivate, prefetch_not_private, HERE);
    check_descriptor(*descriptor->body_, HERE);
  }
}
- (instancetype)initWithTexture:(id<MTLTexture>)texture
                featureChannels:(NSUInteger)featureChannels {
  (void)texture, (void)featureChannels;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
               imageDescriptor:(const MPSImageDescriptor*)imageDescriptor {
  (void)device, (void)imageDescriptor;
  spring(Trap::init_unavailable, HERE);
}
- (NSUInteger)readCount {
  return body_->read_count;
}
- (void)setReadCount:(NSUInteger)count {
  REQUIRE(body_->read_count > 0, temporary_count_zero, HERE);
  if (count == 0) {
    decrement_read_count(self, body_->read_count, HERE);
  } else {
    body_->read_count = count;
  }
}
@end

// ---------------------------------------------------------------- batches

NSUInteger MPSImageBatchIncrementReadCount(MPSImageBatch* batch, NSInteger amount) {
  REQUIRE(batch != nil, nil_argument, FUNCTION, "batch");
  std::set<MPSImage*> distinct;
  for (MPSImage* image in batch) {
    if (!distinct.insert(image).second) continue;
    ImageBody& body = body_of(image, FUNCTION);
    if (!body.temporary || body.read_count == 0) continue;
    if (amount < 0) {
      decrement_read_count(image, static_cast<NSUInteger>(-amount), FUNCTION);
    } else {
      body.read_count += static_cast<NSUInteger>(amount);
    }
  }
  return distinct.size();
}

void MPSImageBatchSynchronize(MPSImageBatch* batch, id<MTLCommandBuffer> cmdBuf) {
  REQUIRE(batch != nil, nil_argument, FUNCTION, "batch");
  std::set<MPSImage*> distinct;
  for (MPSImage* image in batch) {
    if (distinct.insert(image).second) [image synchronizeOnCommandBuffer:cmdBuf];
  }
}

NSUInteger MPSImageBatchResourceSize(MPSImageBatch* batch) {
  REQUIRE(batch != nil, nil_argument, FUNCTION, "batch");
  std::set<MPSImage*> distinct;
  NSUInteger total = 0;
  for (MPSImage* image in batch) {
    if (distinct.insert(image).second) total += [image resourceSize];
  }
  return total;
}

NSInteger MPSImageBatchIterate(MPSImageBatch* batch,
                               NSInteger (^iteratorBlock)(MPSImage* image, NSUInteger index)) {
  REQUIRE(batch != nil && iteratorBlock != nil, nil_argument, FUNCTION);
  std::set<MPSImage*> distinct;
  NSInteger result = NSIntegerMin;
  for (NSUInteger index = 0; index < [batch count]; ++index) {
    MPSImage* image = [batch objectAtIndex:index];
    if (!distinct.insert(image).second) continue;
    result = iteratorBlock(image, index);
    if (result > NSIntegerMin) break;
  }
  return result;
}
