// Devices, buffers, textures and heaps.
#include <cstring>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

constexpr NSUInteger kMaxBufferLength = 256UL << 20;
constexpr int kMaxDevices = 8;

MTLStorageMode mode_of(MTLResourceOptions options) {
  return static_cast<MTLStorageMode>((options & MTLResourceStorageModeMask) >>
                                     MTLResourceStorageModeShift);
}

void check_options(MTLResourceOptions options, const Where& where) {
  const auto mode = mode_of(options);
  REQUIRE(mode <= MTLStorageModePrivate && (options & ~0x3FFUL) == 0, resource_options, where,
          "options 0x%lx", static_cast<unsigned long>(options));
}

id<MTLBuffer> make_buffer_with(id<MTLDevice> device, int index, NSUInteger length,
                               MTLResourceOptions options) {
  auto* buffer = [[EmulatedBuffer alloc] init];
  buffer->device_ = device;
  buffer->options_ = options;
  buffer->storage_ = new StoragePtr(
      std::make_shared<Storage>(index, mode_of(options), length, static_cast<uint8_t>(0xFF)));
  return buffer;
}

id<MTLTexture> make_texture(id<MTLDevice> device, int index, MTLTextureDescriptor* descriptor,
                            const Where& where) {
  REQUIRE(descriptor != nil, nil_argument, where, "descriptor");
  auto body = std::make_unique<TextureBody>();
  body->descriptor = *descriptor->body_;
  const TextureDescriptorBody& d = body->descriptor;
  const bool array = d.type == MTLTextureType2DArray;
  REQUIRE(describe(d.format, &body->format), texture_descriptor, where, "pixel format %lu",
          static_cast<unsigned long>(d.format));
  REQUIRE(array || d.type == MTLTextureType2D, texture_descriptor, where, "texture type %lu",
          static_cast<unsigned long>(d.type));
  REQUIRE(d.width >= 1 && d.width <= 16384 && d.height >= 1 && d.height <= 16384,
          texture_descriptor, where, "size %lu x %lu", static_cast<unsigned long>(d.width),
          static_cast<unsigned long>(d.height));
  REQUIRE(d.depth == 1 && d.levels == 1 && d.samples == 1, texture_descriptor, where,
          "depth, mipmaps or samples");
  REQUIRE(d.length >= 1 && d.length <= 2048 && (array || d.length == 1), texture_descriptor, where,
          "array length %lu", static_cast<unsigned long>(d.length));
  REQUIRE(d.mode <= MTLStorageModePrivate, texture_descriptor, where, "storage mode");
  REQUIRE(d.mode != MTLStorageModeShared || [device supportsFamily:MTLGPUFamilyApple1],
          texture_descriptor, where, "textures with shared storage need an Apple GPU");
  body->device = device;
  body->storage = std::make_shared<Storage>(index, d.mode, slice_bytes(*body) * d.length,
                                            junk_for(body->format.item));
  return [[EmulatedTexture alloc] initWithBody:body.release()];
}

}  // namespace

@implementation EmulatedDevice
- (NSString*)name {
  return [NSString stringWithFormat:@"Emulated GPU %d", index_];
}
- (uint64_t)registryID {
  return 0x1000 + static_cast<uint64_t>(index_);
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(1024, 1024, 1024);
}
- (BOOL)isLowPower {
  return NO;
}
- (BOOL)isHeadless {
  return index_ != 0;
}
- (BOOL)isRemovable {
  return NO;
}
- (BOOL)hasUnifiedMemory {
  return option("unified_memory") != 0;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return 1UL << 30;
}
- (NSUInteger)currentAllocatedSize {
  return 0;
}
- (NSUInteger)maxBufferLength {
  return kMaxBufferLength;
}
- (MTLSizeAndAlign)heapTextureSizeAndAlignWithDescriptor:(MTLTextureDescriptor*)desc {
  REQUIRE(desc != nil, nil_argument, HERE);
  TextureBody body;
  body.descriptor = *desc->body_;
  REQUIRE(describe(body.descriptor.format, &body.format), texture_descriptor, HERE);
  return {slice_bytes(body) * body.descriptor.length, 256};
}
- (MTLSizeAndAlign)heapBufferSizeAndAlignWithLength:(NSUInteger)length
                                            options:(MTLResourceOptions)options {
  check_options(options, HERE);
  return {(length + 255) / 256 * 256, 256};
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [self newCommandQueueWithMaxCommandBufferCount:64];
}
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)maxCommandBufferCount {
  REQUIRE(maxCommandBufferCount > 0, kernel_parameters, HERE, "maxCommandBufferCount");
  return make_queue(self, index_, maxCommandBufferCount);
}
- (id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");
  REQUIRE([descriptor size] > 0 && [descriptor storageMode] != MTLStorageModeManaged,
          resource_options, HERE);
  return make_heap(self, descriptor);
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  check_options(options, HERE);
  REQUIRE(length > 0 && length <= kMaxBufferLength, buffer_length, HERE, "%lu",
          static_cast<unsigned long>(length));
  return make_buffer_with(self, index_, length, options);
}
- (id<MTLBuffer>)newBufferWithBytes:(const void*)pointer
                             length:(NSUInteger)length
                            options:(MTLResourceOptions)options {
  check_options(options, HERE);
  REQUIRE(pointer != nullptr, nil_argument, HERE, "pointer");
  REQUIRE(length > 0 && length <= kMaxBufferLength, buffer_length, HERE, "%lu",
          static_cast<unsigned long>(length));
  const id<MTLBuffer> buffer = make_buffer_with(self, index_, length, options);
  Storage& storage = **static_cast<EmulatedBuffer*>(buffer)->storage_;
  std::memcpy(storage.gpu.data(), pointer, length);
  storage.cpu.assign(storage.cpu.size(), 0);
  if (storage.has_cpu_copy()) std::memcpy(storage.cpu.data(), pointer, length);
  return buffer;
}
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)descriptor {
  return make_texture(self, index_, descriptor, HERE);
}
- (id<MTLFence>)newFence {
  return make_fence(self);
}
- (BOOL)supportsFamily:(MTLGPUFamily)gpuFamily {
  if (option("unified_memory") == 1) {
    return (gpuFamily >= MTLGPUFamilyApple1 && gpuFamily <= MTLGPUFamilyApple7) ||
           gpuFamily == MTLGPUFamilyMac2 ||
           (gpuFamily >= MTLGPUFamilyCommon1 && gpuFamily <= MTLGPUFamilyCommon3);
  }
  return gpuFamily == MTLGPUFamilyMac1 || gpuFamily == MTLGPUFamilyMac2 ||
         (gpuFamily >= MTLGPUFamilyCommon1 && gpuFamily <= MTLGPUFamilyCommon3);
}
@end

namespace emulated_metal {

id<MTLDevice> device_at(int index) {
  static std::mutex mutex;
  static EmulatedDevice* devices[kMaxDevices];
  std::lock_guard lock(mutex);
  if (devices[index] == nil) {
    devices[index] = [[EmulatedDevice alloc] init];
    devices[index]->index_ = index;
  }
  return devices[index];
}

int index_of(id<MTLDevice> device, const Where& where) {
  REQUIRE(device != nil, nil_argument, where, "device");
  REQUIRE([device isKindOfClass:[EmulatedDevice class]], foreign_object, where, "device");
  return static_cast<EmulatedDevice*>(device)->index_;
}

StoragePtr storage_of(id<MTLResource> resource, const Where& where) {
  REQUIRE(resource != nil, nil_argument, where, "resource");
  if ([resource isKindOfClass:[EmulatedBuffer class]]) {
    return *static_cast<EmulatedBuffer*>(resource)->storage_;
  }
  REQUIRE([resource isKindOfClass:[EmulatedTexture class]], foreign_object, where, "resource");
  return static_cast<EmulatedTexture*>(resource)->body_->storage;
}

id<MTLBuffer> make_buffer(int device_index, size_t length, MTLStorageMode mode) {
  const id<MTLBuffer> buffer =
      make_buffer_with(device_at(device_index), device_index, length,
                       static_cast<MTLResourceOptions>(mode) << MTLResourceStorageModeShift);
  if (mode == MTLStorageModePrivate) put_into_own_heap(buffer);
  return [buffer autorelease];
}

void put_into(id<MTLHeap> heap, id<MTLBuffer> buffer) {
  auto* own = static_cast<EmulatedBuffer*>(buffer);
  own->heap_ = [heap retain];
  (*own->storage_)->in_heap = true;
}

void put_into_own_heap(id<MTLBuffer> buffer) {
  MTLHeapDescriptor* descriptor = [[MTLHeapDescriptor alloc] init];
  [descriptor setSize:[buffer length]];
  const id<MTLHeap> heap = make_heap([buffer device], descriptor);
  put_into(heap, buffer);
  [heap release];
  [descriptor release];
}

size_t slice_bytes(const TextureBody& texture) {
  return texture.descriptor.width * texture.descriptor.height *
         static_cast<size_t>(texture.format.lanes) * item_bytes(texture.format.item);
}

}  // namespace emulated_metal

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  return option("devices") > 0 ? [device_at(0) retain] : nil;
}

NSArray<id<MTLDevice>>* MTLCopyAllDevices(void) {
  NSMutableArray* devices = [[NSMutableArray alloc] init];
  for (int index = 0; index < std::min<long>(option("devices"), kMaxDevices); ++index) {
    [devices addObject:device_at(index)];
  }
  return devices;
}

BOOL MPSSupportsMTLDevice(id<MTLDevice> device) {
  return device != nil && [device isKindOfClass:[EmulatedDevice class]];
}

id<MTLDevice> MPSGetPreferredDevice(MPSDeviceOptions options) {
  const int count = static_cast<int>(option("devices"));
  if (count == 0) return nil;
  // Headless devices come first, unless a low-power one is asked for.
  return device_at((options & MPSDeviceOptionsLowPower) != 0 ? 0 : count - 1);
}

// ---------------------------------------------------------------- resources

#define RESOURCE_COMMON                                                                  \
  -(MTLPurgeableState)setPurgeableState : (MTLPurgeableState)state {                     \
    return state == MTLPurgeableStateKeepCurrent ? MTLPurgeableStateNonVolatile : state; \
  }                                                                                      \
  -(NSUInteger)heapOffset {                                                              \
    return 0;                                                                            \
  }                                                                                      \
  -(void)makeAliasable{} - (BOOL)isAliasable {                                           \
    return NO;                                                                           \
  }

@implementation EmulatedBuffer
RESOURCE_COMMON
- (id<MTLHeap>)heap {
  return heap_;
}
- (void)dealloc {
  [heap_ release];
  delete storage_;
  [label_ release];
  [super dealloc];
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  NSString* old = label_;
  label_ = [label copy];
  [old release];
}
- (id<MTLDevice>)device {
  return device_;
}
- (MTLCPUCacheMode)cpuCacheMode {
  return static_cast<MTLCPUCacheMode>(options_ & MTLResourceCPUCacheModeMask);
}
- (MTLStorageMode)storageMode {
  return (*storage_)->mode;
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return static_cast<MTLHazardTrackingMode>((options_ & MTLResourceHazardTrackingModeMask) >>
                                            MTLResourceHazardTrackingModeShift);
}
- (MTLResourceOptions)resourceOptions {
  return options_;
}
- (NSUInteger)allocatedSize {
  return (*storage_)->gpu.size();
}
- (NSUInteger)length {
  return (*storage_)->gpu.size();
}
- (void*)contents {
  REQUIRE((*storage_)->has_cpu_copy(), private_cpu_access, HERE);
  return (*storage_)->cpu.data();
}
- (void)didModifyRange:(NSRange)range {
  Storage& storage = **storage_;
  REQUIRE(storage.mode == MTLStorageModeManaged, not_managed, HERE);
  REQUIRE(
      range.location <= storage.gpu.size() && range.length <= storage.gpu.size() - range.location,
      buffer_range, HERE);
  REQUIRE(!storage.busy(), cpu_write_in_flight, HERE);
  std::memcpy(storage.gpu.data() + range.location, storage.cpu.data() + range.location,
              range.length);
}
- (void)addDebugMarker:(NSString*)marker range:(NSRange)range {
  REQUIRE(marker != nil, nil_argument, HERE, "marker");
  REQUIRE(range.location <= [self length] && range.length <= [self length] - range.location,
          buffer_range, HERE);
}
- (void)removeAllDebugMarkers {
}
@end

@implementation EmulatedTexture
RESOURCE_COMMON
- (id<MTLHeap>)heap {
  return nil;
}
- (instancetype)initWithBody:(TextureBody*)body {
  self = [super init];
  body_ = body;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (NSString*)label {
  return body_->label.get();
}
- (void)setLabel:(NSString*)label {
  body_->label = adopt<NSString*>([label copy]);
}
- (id<MTLDevice>)device {
  return body_->device.get();
}
- (MTLCPUCacheMode)cpuCacheMode {
  return body_->descriptor.cache;
}
- (MTLStorageMode)storageMode {
  return body_->descriptor.mode;
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return body_->descriptor.hazard;
}
- (MTLResourceOptions)resourceOptions {
  return body_->descriptor.mode << MTLResourceStorageModeShift | body_->descriptor.cache;
}
- (NSUInteger)allocatedSize {
  return body_->storage->gpu.size();
}
- (id<MTLTexture>)parentTexture {
  return body_->parent.get();
}
- (NSUInteger)parentRelativeLevel {
  return 0;
}
- (NSUInteger)parentRelativeSlice {
  if (!body_->parent) return 0;
  return body_->first_slice -
         static_cast<EmulatedTexture*>(body_->parent.get())->body_->first_slice;
}
- (id<MTLBuffer>)buffer {
  return nil;
}
- (NSUInteger)bufferOffset {
  return 0;
}
- (NSUInteger)bufferBytesPerRow {
  return 0;
}
- (MTLTextureType)textureType {
  return body_->descriptor.type;
}
- (MTLPixelFormat)pixelFormat {
  return body_->descriptor.format;
}
- (NSUInteger)width {
  return body_->descriptor.width;
}
- (NSUInteger)height {
  return body_->descriptor.height;
}
- (NSUInteger)depth {
  return 1;
}
- (NSUInteger)mipmapLevelCount {
  return 1;
}
- (NSUInteger)sampleCount {
  return 1;
}
- (NSUInteger)arrayLength {
  return body_->descriptor.length;
}
- (MTLTextureUsage)usage {
  return body_->descriptor.usage;
}
- (BOOL)isShareable {
  return NO;
}
- (BOOL)isFramebufferOnly {
  return NO;
}
- (BOOL)allowGPUOptimizedContents {
  return body_->descriptor.optimize;
}

- (void)checkRegion:(MTLRegion)region
        bytesPerRow:(NSUInteger)bytesPerRow
              level:(NSUInteger)level
              slice:(NSUInteger)slice
              where:(const Where&)where {
  const TextureDescriptorBody& d = body_->descriptor;
  REQUIRE(body_->storage->has_cpu_copy(), private_cpu_access, where);
  REQUIRE(level == 0 && slice < d.length && region.origin.z == 0 && region.size.depth == 1 &&
              region.origin.x <= d.width && region.size.width <= d.width - region.origin.x &&
              region.origin.y <= d.height && region.size.height <= d.height - region.origin.y,
          texture_region, where);
  const size_t texel = static_cast<size_t>(body_->format.lanes) * item_bytes(body_->format.item);
  REQUIRE(bytesPerRow >= region.size.width * texel, texture_bytes_per_row, where);
}
- (void)getBytes:(void*)pixelBytes
      bytesPerRow:(NSUInteger)bytesPerRow
    bytesPerImage:(NSUInteger)bytesPerImage
       fromRegion:(MTLRegion)region
      mipmapLevel:(NSUInteger)level
            slice:(NSUInteger)slice {
  (void)bytesPerImage;
  REQUIRE(pixelBytes != nullptr, nil_argument, HERE, "pixelBytes");
  [self checkRegion:region bytesPerRow:bytesPerRow level:level slice:slice where:HERE];
  const size_t texel = static_cast<size_t>(body_->format.lanes) * item_bytes(body_->format.item);
  Storage& storage = *body_->storage;
  std::lock_guard lock(storage.mutex);
  for (NSUInteger y = 0; y < region.size.height; ++y) {
    const size_t start =
        (body_->first_slice + slice) * slice_bytes(*body_) +
        ((region.origin.y + y) * body_->descriptor.width + region.origin.x) * texel;
    std::memcpy(static_cast<uint8_t*>(pixelBytes) + y * bytesPerRow, storage.cpu.data() + start,
                region.size.width * texel);
  }
}
- (void)replaceRegion:(MTLRegion)region
          mipmapLevel:(NSUInteger)level
                slice:(NSUInteger)slice
            withBytes:(const void*)pixelBytes
          bytesPerRow:(NSUInteger)bytesPerRow
        bytesPerImage:(NSUInteger)bytesPerImage {
  (void)bytesPerImage;
  REQUIRE(pixelBytes != nullptr, nil_argument, HERE, "pixelBytes");
  [self checkRegion:region bytesPerRow:bytesPerRow level:level slice:slice where:HERE];
  const size_t texel = static_cast<size_t>(body_->format.lanes) * item_bytes(body_->format.item);
  Storage& storage = *body_->storage;
  REQUIRE(!storage.busy(), cpu_write_in_flight, HERE);
  for (NSUInteger y = 0; y < region.size.height; ++y) {
    const size_t start =
        (body_->first_slice + slice) * slice_bytes(*body_) +
        ((region.origin.y + y) * body_->descriptor.width + region.origin.x) * texel;
    const uint8_t* row = static_cast<const uint8_t*>(pixelBytes) + y * bytesPerRow;
    std::memcpy(storage.cpu.data() + start, row, region.size.width * texel);
    std::memcpy(storage.gpu.data() + start, row, region.size.width * texel);
  }
}
- (void)getBytes:(void*)pixelBytes
     bytesPerRow:(NSUInteger)bytesPerRow
      fromRegion:(MTLRegion)region
     mipmapLevel:(NSUInteger)level {
  [self getBytes:pixelBytes
        bytesPerRow:bytesPerRow
      bytesPerImage:0
         fromRegion:region
        mipmapLevel:level
              slice:0];
}
- (void)replaceRegion:(MTLRegion)region
          mipmapLevel:(NSUInteger)level
            withBytes:(const void*)pixelBytes
          bytesPerRow:(NSUInteger)bytesPerRow {
  [self replaceRegion:region
          mipmapLevel:level
                slice:0
            withBytes:pixelBytes
          bytesPerRow:bytesPerRow
        bytesPerImage:0];
}
- (id<MTLTexture>)newTextureViewWithPixelFormat:(MTLPixelFormat)pixelFormat {
  return [self newTextureViewWithPixelFormat:pixelFormat
                                 textureType:body_->descriptor.type
                                      levels:NSMakeRange(0, 1)
                                      slices:NSMakeRange(0, body_->descriptor.length)];
}
- (id<MTLTexture>)newTextureViewWithPixelFormat:(MTLPixelFormat)pixelFormat
                                    textureType:(MTLTextureType)textureType
                                         levels:(NSRange)levelRange
                                         slices:(NSRange)sliceRange {
  const NSUInteger length = body_->descriptor.length;
  REQUIRE(pixelFormat == body_->descriptor.format, texture_view, HERE, "pixel format");
  REQUIRE(levelRange.location == 0 && levelRange.length == 1, texture_view, HERE, "levels");
  REQUIRE(sliceRange.length > 0 && sliceRange.location < length &&
              sliceRange.length <= length - sliceRange.location,
          texture_view, HERE, "slices");
  REQUIRE(textureType == MTLTextureType2DArray ||
              (textureType == MTLTextureType2D && sliceRange.length == 1),
          texture_view, HERE, "texture type");
  auto body = std::make_unique<TextureBody>(*body_);
  body->parent = self;
  body->label = nil;
  body->descriptor.type = textureType;
  body->descriptor.length = sliceRange.length;
  body->first_slice = body_->first_slice + sliceRange.location;
  return [[EmulatedTexture alloc] initWithBody:body.release()];
}
@end

@implementation MTLTextureDescriptor
+ (MTLTextureDescriptor*)texture2DDescriptorWithPixelFormat:(MTLPixelFormat)pixelFormat
                                                      width:(NSUInteger)width
                                                     height:(NSUInteger)height
                                                  mipmapped:(BOOL)mipmapped {
  MTLTextureDescriptor* descriptor = [[[MTLTextureDescriptor alloc] init] autorelease];
  descriptor->body_->format = pixelFormat;
  descriptor->body_->width = width;
  descriptor->body_->height = height;
  if (mipmapped) {
    NSUInteger levels = 1;
    for (NSUInteger side = std::max(width, height); side > 1; side /= 2) ++levels;
    descriptor->body_->levels = levels;
  }
  return descriptor;
}
- (instancetype)init {
  self = [super init];
  body_ = new TextureDescriptorBody;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (id)copyWithZone:(NSZone*)zone {
  MTLTextureDescriptor* copy = [[[self class] allocWithZone:zone] init];
  *copy->body_ = *body_;
  return copy;
}
#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return body_->member;                   \
  }                                         \
  -(void)setter : (type)value {             \
    body_->member = value;                  \
  }
FIELD(MTLTextureType, textureType, setTextureType, type)
FIELD(MTLPixelFormat, pixelFormat, setPixelFormat, format)
FIELD(NSUInteger, width, setWidth, width)
FIELD(NSUInteger, height, setHeight, height)
FIELD(NSUInteger, depth, setDepth, depth)
FIELD(NSUInteger, mipmapLevelCount, setMipmapLevelCount, levels)
FIELD(NSUInteger, sampleCount, setSampleCount, samples)
FIELD(NSUInteger, arrayLength, setArrayLength, length)
FIELD(MTLCPUCacheMode, cpuCacheMode, setCpuCacheMode, cache)
FIELD(MTLStorageMode, storageMode, setStorageMode, mode)
FIELD(MTLHazardTrackingMode, hazardTrackingMode, setHazardTrackingMode, hazard)
FIELD(MTLTextureUsage, usage, setUsage, usage)
FIELD(BOOL, allowGPUOptimizedContents, setAllowGPUOptimizedContents, optimize)
- (MTLResourceOptions)resourceOptions {
  return body_->mode << MTLResourceStorageModeShift | body_->cache |
         body_->hazard << MTLResourceHazardTrackingModeShift;
}
- (void)setResourceOptions:(MTLResourceOptions)options {
  body_->mode = mode_of(options);
  body_->cache = static_cast<MTLCPUCacheMode>(options & MTLResourceCPUCacheModeMask);
  body_->hazard = static_cast<MTLHazardTrackingMode>(
      (options & MTLResourceHazardTrackingModeMask) >> MTLResourceHazardTrackingModeShift);
}
@end

// ---------------------------------------------------------------- heaps

@implementation MTLHeapDescriptor
- (instancetype)init {
  self = [super init];
  options_ = MTLResourceStorageModePrivate;
  return self;
}
- (id)copyWithZone:(NSZone*)zone {
  MTLHeapDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->size_ = size_;
  copy->options_ = options_;
  copy->type_ = type_;
  return copy;
}
- (NSUInteger)size {
  return size_;
}
- (void)setSize:(NSUInteger)size {
  size_ = size;
}
- (MTLHeapType)type {
  return type_;
}
- (void)setType:(MTLHeapType)type {
  type_ = type;
}
- (MTLResourceOptions)resourceOptions {
  return options_;
}
- (void)setResourceOptions:(MTLResourceOptions)options {
  options_ = options;
}
- (MTLStorageMode)storageMode {
  return mode_of(options_);
}
- (void)setStorageMode:(MTLStorageMode)mode {
  options_ = (options_ & ~MTLResourceStorageModeMask) | mode << MTLResourceStorageModeShift;
}
- (MTLCPUCacheMode)cpuCacheMode {
  return static_cast<MTLCPUCacheMode>(options_ & MTLResourceCPUCacheModeMask);
}
- (void)setCpuCacheMode:(MTLCPUCacheMode)mode {
  options_ = (options_ & ~MTLResourceCPUCacheModeMask) | mode;
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return static_cast<MTLHazardTrackingMode>((options_ & MTLResourceHazardTrackingModeMask) >>
                                            MTLResourceHazardTrackingModeShift);
}
- (void)setHazardTrackingMode:(MTLHazardTrackingMode)mode {
  options_ =
      (options_ & ~MTLResourceHazardTrackingModeMask) | mode << MTLResourceHazardTrackingModeShift;
}
@end

@interface EmulatedHeap : EmulatedObject <MTLHeap> {
 @public
  MTLHeapDescriptor* descriptor_;
  EmulatedDevice* device_;
  NSString* label_;
  NSUInteger used_;
}
@end

@implementation EmulatedHeap
- (void)dealloc {
  [descriptor_ release];
  [label_ release];
  [super dealloc];
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  NSString* old = label_;
  label_ = [label copy];
  [old release];
}
- (id<MTLDevice>)device {
  return device_;
}
- (MTLStorageMode)storageMode {
  return [descriptor_ storageMode];
}
- (MTLCPUCacheMode)cpuCacheMode {
  return [descriptor_ cpuCacheMode];
}
- (MTLHazardTrackingMode)hazardTrackingMode {
  return [descriptor_ hazardTrackingMode];
}
- (MTLResourceOptions)resourceOptions {
  return [descriptor_ resourceOptions];
}
- (NSUInteger)size {
  return [descriptor_ size];
}
- (NSUInteger)usedSize {
  return used_;
}
- (NSUInteger)currentAllocatedSize {
  return [descriptor_ size];
}
- (MTLHeapType)type {
  return [descriptor_ type];
}
- (NSUInteger)maxAvailableSizeWithAlignment:(NSUInteger)alignment {
  const NSUInteger left = [descriptor_ size] - used_;
  return alignment == 0 ? left : left / alignment * alignment;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  const MTLSizeAndAlign need = [device_ heapBufferSizeAndAlignWithLength:length options:options];
  REQUIRE(mode_of(options) == [self storageMode] && need.size <= [self size] - used_, heap_full,
          HERE);
  used_ += need.size;
  const id<MTLBuffer> buffer = [device_ newBufferWithLength:length options:options];
  put_into(self, buffer);
  return buffer;
}
- (id<MTLTexture>)newTextureWithDescriptor:(MTLTextureDescriptor*)desc {
  const MTLSizeAndAlign need = [device_ heapTextureSizeAndAlignWithDescriptor:desc];
  REQUIRE([desc storageMode] == [self storageMode] && need.size <= [self size] - used_, heap_full,
          HERE);
  used_ += need.size;
  return [device_ newTextureWithDescriptor:desc];
}
- (MTLPurgeableState)setPurgeableState:(MTLPurgeableState)state {
  return state == MTLPurgeableStateKeepCurrent ? MTLPurgeableStateNonVolatile : state;
}
@end

namespace emulated_metal {
id<MTLHeap> make_heap(id<MTLDevice> device, MTLHeapDescriptor* descriptor) {
  EmulatedHeap* heap = [[EmulatedHeap alloc] init];
  heap->descriptor_ = [descriptor copy];
  heap->device_ = static_cast<EmulatedDevice*>(device);
  return heap;
}
}  // namespace emulated_metal
