// Allocation on the Metal device.
#include "metal/metal_device.hpp"

#include <cstring>

#include "base/memory_limits.hpp"
#include "metal/metal_objects.hpp"

namespace mpsgrad::metal {

std::string MetalDeviceBase::name() const {
  const PoolScope pool;
  return [[get() name] UTF8String];
}

std::shared_ptr<MetalDeviceBase> MetalDeviceBase::self() {
  return std::static_pointer_cast<MetalDeviceBase>(shared_from_this());
}

void MetalDeviceBase::check_supported(const ImageDescriptor& descriptor) const {
  require<UnsupportedError>(descriptor.storage_mode != StorageMode::Memoryless,
                            "Image: storage_mode MEMORYLESS cannot hold the images of kernels");
  // Not hasUnifiedMemory: Intel's GPUs have that, and no shared textures.
  require<UnsupportedError>(
      descriptor.storage_mode != StorageMode::Shared || [get() supportsFamily:MTLGPUFamilyApple1],
      "Image: storage_mode SHARED needs an Apple GPU; use MANAGED");
}

bool MetalDeviceBase::has_room_for(const ImageDescriptor& descriptor, Index count) const {
  return static_cast<std::uint64_t>(count * descriptor.texel_bytes()) <=
         [get() recommendedMaxWorkingSetSize];
}

namespace {

MPSImageDescriptor* to_mps(const ImageDescriptor& d) {
  MPSImageDescriptor* result = [MPSImageDescriptor
      imageDescriptorWithChannelFormat:static_cast<MPSImageFeatureChannelFormat>(d.channel_format)
                                 width:static_cast<NSUInteger>(d.width)
                                height:static_cast<NSUInteger>(d.height)
                       featureChannels:static_cast<NSUInteger>(d.feature_channels)
                        numberOfImages:static_cast<NSUInteger>(d.number_of_images)
                                 usage:static_cast<MTLTextureUsage>(d.usage)];
  result.storageMode = static_cast<MTLStorageMode>(d.storage_mode);
  result.cpuCacheMode = static_cast<MTLCPUCacheMode>(d.cpu_cache_mode);
  return result;
}

template <class Make>
Retained<NSArray<MPSImage*>*> make_each(Index count, const Make& make) {
  const auto images = Retained<NSMutableArray<MPSImage*>*>::adopt(
      [[NSMutableArray alloc] initWithCapacity:static_cast<NSUInteger>(count)]);
  for (Index i = 0; i < count; ++i) {
    const Retained<MPSImage*> image = make();
    require<DeviceError>(static_cast<bool>(image), "Image: the device could not make it");
    [images.get() addObject:image.get()];
  }
  return Retained<NSArray<MPSImage*>*>::share(images.get());
}

Retained<NSArray<MPSImage*>*> make_ordinary(id<MTLDevice> device, MPSImageDescriptor* descriptor,
                                            Index count) {
  return make_each(count, [&] {
    return Retained<MPSImage*>::adopt([[MPSImage alloc] initWithDevice:device
                                                       imageDescriptor:descriptor]);
  });
}

}  // namespace

std::shared_ptr<CommandQueue> MetalDeviceBase::make_queue() {
  const PoolScope pool;
  return std::make_shared<MetalQueue>(self());
}

std::shared_ptr<ImageStorage> MetalDeviceBase::make_images(const ImageDescriptor& descriptor,
                                                           Index count, bool zeroed) {
  const PoolScope pool;
  check_supported(descriptor);
  MetalImageStorage::Options options;
  options.zero_when_used = zeroed;
  return std::make_shared<MetalImageStorage>(self(), descriptor, count,
                                             make_ordinary(get(), to_mps(descriptor), count),
                                             std::move(options));
}

std::shared_ptr<ImageStorage> MetalDeviceBase::make_temporary_images(
    CommandBuffer& command_buffer, const ImageDescriptor& descriptor, Index count, bool zeroed) {
  const PoolScope pool;
  auto& own = as<MetalCommandBuffer>(command_buffer);
  ImageDescriptor hidden = descriptor;
  hidden.storage_mode = StorageMode::Private;
  check_supported(hidden);
  if (!has_room_for(hidden, count)) {
    throw OutOfMemory("the Metal device has no room for ", count, " images of ",
                      hidden.texel_bytes(), " bytes each");
  }
  MPSCommandBuffer* buffer = own.for_transfer();
  auto images = make_each(count, [&, made_from = to_mps(hidden)] {
    MPSTemporaryImage* image = [MPSTemporaryImage temporaryImageWithCommandBuffer:buffer
                                                                  imageDescriptor:made_from];
    image.readCount = kManyReads;
    return Retained<MPSImage*>::share(image);
  });
  MetalImageStorage::Options options;
  options.temporaries = own.temporaries();
  auto storage = std::make_shared<MetalImageStorage>(self(), descriptor, count, std::move(images),
                                                     std::move(options));
  if (zeroed) {
    own.keep(encode_clear(buffer, storage->images(), {0, descriptor.feature_channels}).get());
  }
  return storage;
}

std::shared_ptr<ImageStorage> MetalDeviceBase::images_from_memory(const ImageDescriptor& descriptor,
                                                                  Index count, LentMemory lent) {
  const PoolScope pool;
  const Index needed = count * descriptor.number_of_images * descriptor.bytes_per_image();
  require(static_cast<Index>(lent.bytes) == needed, "images_from_memory: ", lent.bytes,
          " bytes for ", count, " images of ", descriptor);
  check_supported(descriptor);
  auto storage = std::make_shared<MetalImageStorage>(
      self(), descriptor, count, make_ordinary(get(), to_mps(descriptor), count),
      MetalImageStorage::Options{});
  storage->write_all(static_cast<const std::byte*>(lent.data));
  return storage;
}

Retained<id<MTLBuffer>> MetalDeviceBase::new_buffer(std::size_t bytes,
                                                    MTLResourceOptions options) const {
  // Shorter ones do not exist, longer ones abort.
  const NSUInteger length = bytes == 0 ? 1 : bytes;
  require<DeviceError>(length <= [get() maxBufferLength], "Buffer: ", bytes,
                       " bytes are more than this device's limit of ", [get() maxBufferLength]);
  auto buffer = Retained<id<MTLBuffer>>::adopt([get() newBufferWithLength:length options:options]);
  if (!buffer) {
    throw OutOfMemory("the Metal device has no room for a buffer of ", bytes, " bytes");
  }
  return buffer;
}

std::shared_ptr<Buffer> MetalDeviceBase::make_buffer(std::size_t bytes) {
  const PoolScope pool;
  auto buffer = new_buffer(bytes, MTLResourceStorageModeShared);
  std::memset([buffer.get() contents], 0, [buffer.get() length]);
  return std::make_shared<MetalBuffer>(shared_from_this(), bytes, std::move(buffer));
}

std::shared_ptr<Buffer> MetalDeviceBase::make_temporary_buffer(CommandBuffer& command_buffer,
                                                               std::size_t bytes) {
  const PoolScope pool;
  auto& own = as<MetalCommandBuffer>(command_buffer);
  auto buffer = new_buffer(bytes, MTLResourceStorageModePrivate);
  own.fill(buffer.get(), 0);
  return std::make_shared<MetalBuffer>(shared_from_this(), bytes, std::move(buffer));
}

std::shared_ptr<Buffer> MetalDeviceBase::buffer_from_memory(LentMemory lent) {
  const PoolScope pool;
  auto buffer = new_buffer(lent.bytes, MTLResourceStorageModeShared);
  std::memcpy([buffer.get() contents], lent.data, lent.bytes);
  return std::make_shared<MetalBuffer>(shared_from_this(), lent.bytes, std::move(buffer));
}

void MetalDeviceBase::copy_buffer(CommandBuffer& command_buffer,
                                  const std::shared_ptr<Buffer>& from,
                                  const std::shared_ptr<Buffer>& to, std::size_t bytes) {
  const PoolScope pool;
  require<UnsupportedError>(command_buffer.predicate == nullptr,
                            "Buffer: Metal cannot make a copy depend on a predicate; encode it "
                            "while none is set");
  as<MetalCommandBuffer>(command_buffer)
      .copy(as<MetalBuffer>(*from).get(), 0, as<MetalBuffer>(*to).get(), bytes);
}

// With the mutex held.
MPSCNNNeuron* MetalDeviceBase::clearing_kernel() {
  if (!clearing_kernel_) {
    MPSNNNeuronDescriptor* zero =
        [MPSNNNeuronDescriptor cnnNeuronDescriptorWithType:MPSCNNNeuronTypeLinear a:0 b:0];
    clearing_kernel_ = Retained<MPSCNNNeuron*>::adopt([[MPSCNNNeuron alloc] initWithDevice:get()
                                                                          neuronDescriptor:zero]);
    require<DeviceError>(static_cast<bool>(clearing_kernel_),
                         "Image: the device could not make the kernel that clears it");
    clearing_kernel_.get().edgeMode = MPSImageEdgeModeClamp;
  }
  return clearing_kernel_.get();
}

Retained<MPSImage*> MetalDeviceBase::encode_clear(id<MTLCommandBuffer> command_buffer,
                                                  NSArray<MPSImage*>* images,
                                                  const Channels& channels) {
  MPSImage* first = [images objectAtIndex:0];
  const auto count = static_cast<NSUInteger>(channels.count);
  // One pixel of zeros, clamped over the whole destination.
  MPSImageDescriptor* pixel = [MPSImageDescriptor
      imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat16
                                 width:1
                                height:1
                       featureChannels:count
                        numberOfImages:first.numberOfImages
                                 usage:MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite];
  auto source = Retained<MPSImage*>::adopt([[MPSImage alloc] initWithDevice:get()
                                                            imageDescriptor:pixel]);
  const std::vector<std::uint16_t> zeros(count);
  for (NSUInteger i = 0; i < first.numberOfImages; ++i) {
    [source.get() writeBytes:zeros.data()
                  dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
                  imageIndex:i];
  }
  const std::lock_guard lock(mutex_);
  MPSCNNNeuron* kernel = clearing_kernel();
  kernel.destinationFeatureChannelOffset = static_cast<NSUInteger>(channels.first);
  if (images.count == 1) {
    [kernel encodeToCommandBuffer:command_buffer sourceImage:source.get() destinationImage:first];
    return source;
  }
  NSMutableArray<MPSImage*>* sources = [NSMutableArray arrayWithCapacity:images.count];
  for (NSUInteger i = 0; i < images.count; ++i) {
    [sources addObject:source.get()];
  }
  [kernel encodeBatchToCommandBuffer:command_buffer sourceImages:sources destinationImages:images];
  return source;
}

void MetalDeviceBase::clear_now(NSArray<MPSImage*>* images) {
  Retained<id<MTLCommandQueue>> queue;
  {
    const std::lock_guard lock(mutex_);
    if (!own_queue_) {
      own_queue_ = Retained<id<MTLCommandQueue>>::adopt([get() newCommandQueue]);
    }
    queue = own_queue_;
  }
  const id<MTLCommandBuffer> buffer = [queue.get() commandBuffer];
  MPSImage* first = [images objectAtIndex:0];
  const Retained<MPSImage*> source =
      encode_clear(buffer, images, {0, static_cast<Index>(first.featureChannels)});
  [buffer commit];
  [buffer waitUntilCompleted];
  require<DeviceError>([buffer status] == MTLCommandBufferStatusCompleted,
                       "Image: the device could not clear it");
}

void MetalDeviceBase::drop_caches() {
  const PoolScope pool;
  const std::lock_guard lock(mutex_);
  clearing_kernel_ = {};
  own_queue_ = {};
}

// ---- buffers

MetalBuffer::MetalBuffer(std::shared_ptr<Device> device, std::size_t size,
                         Retained<id<MTLBuffer>> buffer)
    : Buffer(std::move(device), size), buffer_(std::move(buffer)) {}

std::pair<std::uintptr_t, std::uintptr_t> MetalBuffer::extent() {
  // Buffers share memory only by being the same one.
  const auto first = reinterpret_cast<std::uintptr_t>(buffer_.get());
  return {first, first + 1};
}

std::byte* MetalBuffer::contents() {
  const PoolScope pool;
  return [get() storageMode] == MTLStorageModePrivate ? nullptr
                                                      : static_cast<std::byte*>([get() contents]);
}

void MetalBuffer::publish() {
  const PoolScope pool;
  if ([get() storageMode] == MTLStorageModeManaged) {
    [get() didModifyRange:NSMakeRange(0, [get() length])];
  }
}

void MetalBuffer::synchronize(CommandBuffer& command_buffer) {
  const PoolScope pool;
  Buffer::synchronize(command_buffer);
  if ([get() storageMode] != MTLStorageModeManaged) {
    return;
  }
  auto& own = as<MetalCommandBuffer>(command_buffer);
  id<MTLBlitCommandEncoder> encoder = [own.for_transfer() blitCommandEncoder];
  [encoder synchronizeResource:get()];
  [encoder endEncoding];
  own.keep(get());
  uses().add(command_buffer.work(), true);
}

}  // namespace mpsgrad::metal
