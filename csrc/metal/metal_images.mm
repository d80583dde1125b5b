// Images of the Metal device: transfer, views, and the end of temporaries.
#include <algorithm>

#include "base/memory_limits.hpp"
#include "metal/metal_objects.hpp"

namespace mpsgrad::metal {

void TemporaryRegistry::add(TemporaryObject* object) {
  const std::lock_guard lock(mutex_);
  objects_.push_back(object);
}

void TemporaryRegistry::remove(TemporaryObject* object) {
  const std::lock_guard lock(mutex_);
  std::erase(objects_, object);
}

void TemporaryRegistry::end_all() {
  const std::lock_guard lock(mutex_);
  std::for_each(objects_.rbegin(), objects_.rend(),
                [](TemporaryObject* object) { object->end_all(); });
}

MetalImageStorage::MetalImageStorage(std::shared_ptr<MetalDeviceBase> device,
                                     const ImageDescriptor& descriptor, Index count,
                                     Retained<NSArray<MPSImage*>*> images, Options options)
    : ImageStorage(descriptor, count),
      device_(std::move(device)),
      images_(std::move(images)),
      temporaries_(std::move(options.temporaries)),
      parent_(std::move(options.parent)),
      parent_index_(options.parent_index),
      slots_(static_cast<std::size_t>(count)),
      has_room_(device_->has_room_for(descriptor, 1)) {
  for (Slot& slot : slots_) {
    slot.zero_when_used = options.zero_when_used;
  }
  if (temporaries_) {
    temporaries_->add(this);
  }
}

MetalImageStorage::~MetalImageStorage() {
  const PoolScope pool;
  if (temporaries_) {
    temporaries_->remove(this);
    MetalImageStorage::end_all();
  }
  images_ = {};
}

MetalImageStorage::Slot& MetalImageStorage::root_slot(Index index) {
  return parent_ ? parent_->root_slot(parent_index_) : slot(index);
}

void MetalImageStorage::fill_zero(MPSImage* image) const {
  if (descriptor().storage_mode == StorageMode::Private) {
    device_->clear_now([NSArray arrayWithObject:image]);
    return;
  }
  // Through the texture, for the lanes behind the last channel too.
  const id<MTLTexture> texture = image.texture;
  const NSUInteger bytes_per_row = image.width * image.pixelSize;
  const std::vector<std::byte> zeros(bytes_per_row * image.height);
  const MTLRegion whole = MTLRegionMake2D(0, 0, image.width, image.height);
  for (NSUInteger slice = 0; slice < texture.arrayLength; ++slice) {
    [texture replaceRegion:whole
               mipmapLevel:0
                     slice:slice
                 withBytes:zeros.data()
               bytesPerRow:bytes_per_row
             bytesPerImage:0];
  }
}

MPSImage* MetalImageStorage::image(Index index) {
  if (!has_room_) {
    throw OutOfMemory("the Metal device has no room for the texels of this image");
  }
  MPSImage* result = [images_.get() objectAtIndex:static_cast<NSUInteger>(index)];
  if (slot(index).zero_when_used) {
    fill_zero(result);
    slot(index).zero_when_used = false;
  }
  return result;
}

NSArray<MPSImage*>* MetalImageStorage::images() {
  for (Index i = 0; i < count(); ++i) {
    image(i);
  }
  return images_.get();
}

void MetalImageStorage::note_written_by_kernel(Index index) {
  root_slot(index).unsynchronized =
      !temporaries_ && descriptor().storage_mode == StorageMode::Managed;
}

void MetalImageStorage::write_all(const std::byte* dense) {
  const Index bytes = descriptor().bytes_per_image();
  for (Index i = 0; i < count(); ++i) {
    for (Index j = 0; j < descriptor().number_of_images; ++j, dense += bytes) {
      [image(i) writeBytes:dense
                dataLayout:MPSDataLayoutHeightxWidthxFeatureChannels
                imageIndex:static_cast<NSUInteger>(j)];
    }
  }
}

std::pair<std::uintptr_t, std::uintptr_t> MetalImageStorage::extent(Index index) {
  // Root images share no memory with each other.
  const auto first = reinterpret_cast<std::uintptr_t>(
      [images_.get() objectAtIndex:static_cast<NSUInteger>(index)]);
  return {first, first + 1};
}

void MetalImageStorage::read(Index index, Index image_index, DataLayout layout, void* out) {
  const PoolScope pool;
  require<std::runtime_error>(
      !root_slot(index).unsynchronized,
      "Image: read without synchronize(command_buffer) after the kernel that wrote it; the CPU "
      "would see what was there before");
  [image(index) readBytes:out
               dataLayout:static_cast<MPSDataLayout>(layout)
               imageIndex:static_cast<NSUInteger>(image_index)];
}

void MetalImageStorage::write(Index index, Index image_index, DataLayout layout, const void* in) {
  const PoolScope pool;
  [image(index) writeBytes:in
                dataLayout:static_cast<MPSDataLayout>(layout)
                imageIndex:static_cast<NSUInteger>(image_index)];
  if (!parent_ && descriptor().number_of_images == 1) {
    slot(index).unsynchronized = false;
  }
}

std::shared_ptr<ImageStorage> MetalImageStorage::view(const ViewRange& range) {
  const PoolScope pool;
  ImageDescriptor shown = descriptor();
  shown.number_of_images = range.images;
  shown.feature_channels = range.channels;
  const bool all_channels = range.channels == descriptor().feature_channels;
  MPSImage* parent = image(range.index);
  MPSImage* made = nil;
  if (all_channels && range.images == 1) {
    const NSRange one = NSMakeRange(static_cast<NSUInteger>(range.first_image), 1);
    made = [[parent batchRepresentationWithSubRange:one] objectAtIndex:0];
  } else {
    require<UnsupportedError>(
        range.first_image == 0 && range.images == descriptor().number_of_images,
        "Image: on this device a view shows one image of a container, or all of them");
    // The slices of one image come before those of the next.
    require<UnsupportedError>(
        all_channels || range.images == 1, "Image: on this device a view of some channels, here ",
        range.channels, " of ", descriptor().feature_channels, ", needs number_of_images 1, got ",
        range.images, "; take one of each image of batch_representation()");
    // Whole slices; what is too long is cut.
    made = [parent
        subImageWithFeatureChannelRange:NSMakeRange(
                                            static_cast<NSUInteger>(range.first_channel),
                                            static_cast<NSUInteger>((range.channels + 3) / 4 * 4))];
  }
  require<DeviceError>(
      to_ns(range.channels) == made.featureChannels && to_ns(range.images) == made.numberOfImages,
      "Image: the device made a view of ", made.numberOfImages, " images of ", made.featureChannels,
      " channels, expected ", range.images, " of ", range.channels);
  Options options;
  options.temporaries = temporaries_;
  options.parent = shared_from_this();
  options.parent_index = range.index;
  if (temporaries_) {
    static_cast<MPSTemporaryImage*>(made).readCount = kManyReads;
    ++slot(range.index).views;
  }
  auto result = std::make_shared<MetalImageStorage>(
      device_, shown, 1, Retained<NSArray<MPSImage*>*>::share([NSArray arrayWithObject:made]),
      std::move(options));
  result->share_uses(*this);
  return result;
}

void MetalImageStorage::synchronize(CommandBuffer& command_buffer, Index index) {
  const PoolScope pool;
  auto& own = as<MetalCommandBuffer>(command_buffer);
  MPSImage* synchronized = image(index);
  [synchronized synchronizeOnCommandBuffer:own.for_transfer()];
  own.keep(synchronized);
  root_slot(index).unsynchronized = false;
  uses().add(command_buffer.work(), true);
}

// Apple's view of a temporary holds one read of its parent and gives it back when it ends: so a
// parent that ends before its views waits for them.
void MetalImageStorage::end_temporary(Index index) {
  Slot& ending = slot(index);
  if (!temporaries_ || ending.ended) {
    return;
  }
  if (ending.views > 0) {
    ending.ends_with_views = true;
    return;
  }
  const PoolScope pool;
  ending.ended = true;
  static_cast<MPSTemporaryImage*>([images_.get() objectAtIndex:static_cast<NSUInteger>(index)])
      .readCount = 0;
  if (parent_) {
    parent_->view_ended(parent_index_);
  }
}

void MetalImageStorage::view_ended(Index index) {
  Slot& shown = slot(index);
  --shown.views;
  if (shown.views == 0 && shown.ends_with_views) {
    end_temporary(index);
  }
}

void MetalImageStorage::end_all() {
  for (Index i = 0; i < count(); ++i) {
    end_temporary(i);
  }
}

Index MetalImageStorage::resource_size() {
  const PoolScope pool;
  return static_cast<Index>([[images_.get() objectAtIndex:0] resourceSize]);
}

// ---- states

MetalStatePayload::~MetalStatePayload() {
  const PoolScope pool;
  if (temporaries_) {
    temporaries_->remove(this);
    end_all();
  }
  state_ = {};
}

void MetalStatePayload::assign(MPSState* state,
                               const std::shared_ptr<TemporaryRegistry>& temporaries) {
  end_all();
  state_ = Retained<MPSState*>::share(state);
  is_live_ = state.isTemporary;
  if (is_live_) {
    state.readCount = kManyReads;
    if (!temporaries_) {
      temporaries_ = temporaries;
      temporaries_->add(this);
    }
  }
}

void MetalStatePayload::end_all() {
  if (std::exchange(is_live_, false)) {
    const PoolScope pool;
    state_.get().readCount = 0;
  }
}

}  // namespace mpsgrad::metal
