// Images: transfer with the CPU, views, read counts and the array functions of MPSImage.h.
#include "device/image.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "base/memory_limits.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {

std::pair<std::uintptr_t, std::uintptr_t> ImageStorage::hull() {
  auto whole = extent(0);
  for (Index i = 1; i < count_; ++i) {
    const auto one = extent(i);
    whole = {std::min(whole.first, one.first), std::max(whole.second, one.second)};
  }
  return whole;
}

std::shared_ptr<Image> Image::make(std::shared_ptr<Device> device,
                                   const ImageDescriptor& descriptor) {
  descriptor.check("Image");
  auto storage = device->make_images(descriptor, 1, true);
  return std::make_shared<Image>(std::move(device), descriptor, std::move(storage), 0);
}

int Image::precision() const {
  switch (descriptor_.channel_format) {
    case ChannelFormat::Unorm8:
      return 8;
    case ChannelFormat::Unorm16:
      return 16;
    case ChannelFormat::Float16:
      return 11;
    case ChannelFormat::Float32:
      return 24;
    case ChannelFormat::None:
      break;
  }
  return 0;
}

Index Image::resource_size() const { return parent_ || !storage_ ? 0 : storage_->resource_size(); }

void Image::fail_spent() const {
  fail<ReadCountError>(class_name(), ": read count is 0, its contents are gone");
}

std::pair<std::uintptr_t, std::uintptr_t> Image::extent() const {
  return parent_ ? parent_->extent() : storage().extent(index_);
}

void Image::require_cpu_access(const char* call) const {
  require<std::runtime_error>(
      descriptor_.storage_mode == StorageMode::Shared ||
          descriptor_.storage_mode == StorageMode::Managed,
      class_name(), ": ", call,
      " is impossible, the descriptor's storage_mode hides it from the CPU");
}

void Image::require_readable() const {
  require_cpu_access("read()");
  storage().uses().require_readable(class_name());
}

void Image::read(Index image, DataLayout layout, void* out) const {
  require_readable();
  require<std::out_of_range>(image >= 0 && image < descriptor_.number_of_images, class_name(),
                             ": image index ", image, " is outside a container of ",
                             descriptor_.number_of_images);
  storage_->read(index_, image, layout, out);
}

void Image::write(Index image, DataLayout layout, const void* in) {
  require_cpu_access("write()");
  require<std::out_of_range>(image >= 0 && image < descriptor_.number_of_images, class_name(),
                             ": image index ", image, " is outside a container of ",
                             descriptor_.number_of_images);
  require(!storage().is_read_only(), class_name(),
          ": write() into an image over a read-only array");
  storage_->uses().require_writable(class_name());
  storage_->write(index_, image, layout, in);
}

std::shared_ptr<Image> Image::make_view(const ViewRange& range) {
  ImageDescriptor descriptor = descriptor_;
  descriptor.number_of_images = range.images;
  descriptor.feature_channels = range.channels;
  return std::make_shared<Image>(device_, descriptor, view_storage(range), 0, shared_from_this());
}

std::shared_ptr<ImageStorage> Image::view_storage(const ViewRange& range) const {
  auto view = storage().view(range);
  if (storage_->is_read_only()) {
    view->make_read_only();
  }
  return view;
}

std::shared_ptr<Image> Image::sub_image(Index first_image, Index images) {
  require(first_image >= 0 && images >= 1 && images <= descriptor_.number_of_images &&
              first_image <= descriptor_.number_of_images - images,
          class_name(), ": ", images, " images from ", first_image,
          " on are outside a container of ", descriptor_.number_of_images);
  return make_view({index_, first_image, images, 0, descriptor_.feature_channels});
}

std::shared_ptr<Image> Image::sub_image_with_feature_channel_range(Index first, Index channels) {
  require(first >= 0 && first % 4 == 0, class_name(),
          ": first channel must be a multiple of 4, got ", first);
  require(channels > 0 && channels % 4 == 0, class_name(),
          ": channel count must be a positive multiple of 4, got ", channels);
  require(first < descriptor_.feature_channels, class_name(), ": first channel ", first,
          " is outside an image of ", descriptor_.feature_channels, " channels");
  const Index fitting = std::min(channels, descriptor_.feature_channels - first);
  return make_view({index_, 0, descriptor_.number_of_images, first, fitting});
}

void Image::synchronize(CommandBuffer& command_buffer) {
  require(command_buffer.device() == device_, class_name(),
          ": synchronize() on a command buffer of another device");
  command_buffer.require_encodable("synchronize()");
  if (!is_temporary() && storage_) {
    storage_->synchronize(command_buffer, index_);
    command_buffer.note_encoded();
  }
}

TemporaryImage::TemporaryImage(std::shared_ptr<Device> device, const ImageDescriptor& descriptor,
                               std::shared_ptr<ImageStorage> storage, Index index,
                               const std::shared_ptr<CommandBuffer>& owner,
                               std::shared_ptr<Image> parent)
    : Image(std::move(device), descriptor, std::move(storage), index, std::move(parent)),
      count_(owner, "TemporaryImage") {
  read_count_ = &count_;
}

TemporaryImage::~TemporaryImage() {
  if (storage_) {
    storage_->end_temporary(index_);
  }
  if (count_.value() > 0 && !discarded_) {
    warn(WarningKind::Resource,
         text("TemporaryImage ", descriptor_, " was dropped with read count ", count_.value(),
              "; every read must happen, or set read_count to 0"));
  }
}

void TemporaryImage::require_live(const char* who, const CommandBuffer& command_buffer) const {
  count_.require_usable(who, command_buffer);
  if (parent_) {
    parent_->require_usable(who, command_buffer);
  }
}

void TemporaryImage::after_count_change() {
  if (count_.value() > 0 || !storage_) {
    return;
  }
  storage_->end_temporary(index_);
  storage_.reset();
  if (parent_) {  // a view holds one read of its parent
    if (ReadCount* count = parent_->read_count(); count && count->value() > 0) {
      count->add(-1);
      parent_->after_count_change();
    }
  }
}

void TemporaryImage::require_cpu_access(const char* call) const {
  fail<std::runtime_error>(
      "TemporaryImage: ", call,
      " is impossible, its storage is private to the device; use an Image where the CPU must look");
}

std::shared_ptr<Image> TemporaryImage::make_view(const ViewRange& range) {
  ImageDescriptor descriptor = descriptor_;
  descriptor.number_of_images = range.images;
  descriptor.feature_channels = range.channels;
  const auto owner = count_.owner();
  require<ReadCountError>(count_.value() > 0 && owner,
                          "TemporaryImage: a view of an image with read count 0");
  return std::make_shared<TemporaryImage>(device_, descriptor, view_storage(range), 0, owner,
                                          shared_from_this());
}

namespace {

template <class Make>
std::shared_ptr<ImageBatch> fill_batch(Index count, const Make& make) {
  ImageBatch::Images images;
  images.reserve(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    images.push_back(make(i));
  }
  return std::make_shared<ImageBatch>(std::move(images));
}

constexpr Index kMaximumBatch = 1 << 20;  // far beyond any use

void check_batch(const ImageDescriptor& descriptor, Index count) {
  descriptor.check("ImageBatch");
  require(count >= 1 && count <= kMaximumBatch, "ImageBatch: count must be between 1 and ",
          kMaximumBatch, ", got ", count);
  require(descriptor.number_of_images == 1,
          "ImageBatch: number_of_images must be 1 in a batch, got ", descriptor.number_of_images);
  require(count <= kMostBytes / descriptor.texel_bytes(), "ImageBatch: ", count, " images of ",
          descriptor, kBeyondMemory);
}

}  // namespace

std::shared_ptr<ImageBatch> ImageBatch::make(const std::shared_ptr<Device>& device,
                                             const ImageDescriptor& descriptor, Index count,
                                             bool zeroed) {
  check_batch(descriptor, count);
  const auto storage = device->make_images(descriptor, count, zeroed);
  return fill_batch(
      count, [&](Index i) { return std::make_shared<Image>(device, descriptor, storage, i); });
}

std::shared_ptr<ImageBatch> ImageBatch::make_temporary(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageDescriptor& descriptor,
    Index count, bool zeroed) {
  check_batch(descriptor, count);
  command_buffer->require_encodable("TemporaryImage");
  const auto& device = command_buffer->device();
  const auto storage = device->make_temporary_images(*command_buffer, descriptor, count, zeroed);
  return fill_batch(count, [&](Index i) {
    return std::make_shared<TemporaryImage>(device, descriptor, storage, i, command_buffer);
  });
}

std::shared_ptr<ImageBatch> ImageBatch::from_memory(const std::shared_ptr<Device>& device,
                                                    const ImageDescriptor& descriptor, Index count,
                                                    LentMemory lent) {
  check_batch(descriptor, count);
  const bool read_only = lent.read_only;
  const auto storage = device->images_from_memory(descriptor, count, std::move(lent));
  if (read_only) {
    storage->make_read_only();
  }
  return fill_batch(
      count, [&](Index i) { return std::make_shared<Image>(device, descriptor, storage, i); });
}

ImageStorage* ImageBatch::whole_storage() const {
  ImageStorage& storage = images_.front()->storage();
  if (storage.count() != size()) {
    return nullptr;
  }
  for (Index i = 0; i < size(); ++i) {
    const Image& image = *(*this)[i];
    if (image.parent() || image.index() != i || &image.storage() != &storage) {
      return nullptr;
    }
  }
  return &storage;
}

void ImageBatch::discard() const {
  for (const auto& image : images_) {
    if (auto* temporary = dynamic_cast<TemporaryImage*>(image.get())) {
      temporary->discard();
    }
  }
}

bool all_distinct(const ImageBatch::Images& images) {
  const auto falls = [](const auto& a, const auto& b) { return a->index() >= b->index(); };
  if (std::adjacent_find(images.begin(), images.end(), falls) == images.end()) {
    return true;  // places in a storage that only rise, as in a batch that was made as one
  }
  std::vector<const Image*> sorted;
  sorted.reserve(images.size());
  for (const auto& image : images) {
    sorted.push_back(image.get());
  }
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

std::optional<Index> iterate(
    const ImageBatch::Images& images,
    const std::function<std::optional<Index>(const std::shared_ptr<Image>&, Index)>& visit) {
  const bool distinct = all_distinct(images);
  std::unordered_set<const Image*> seen;
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (distinct || seen.insert(images[i].get()).second) {
      if (const auto stop = visit(images[i], static_cast<Index>(i))) {
        return stop;
      }
    }
  }
  return std::nullopt;
}

void check_lost_reads(const std::vector<LostReads>& of) {
  std::map<const ReadCount*, Index> lost;
  for (const LostReads& one : of) {
    lost[one.count] = one.reads;
  }
  std::set<const ReadCount*> ended;
  for (const LostReads& one : of) {
    const ReadCount* count = one.count;
    for (const Image* image = one.image; image && image->parent(); image = image->parent().get()) {
      if (count->value() != lost[count] || !ended.insert(count).second) {
        break;
      }
      count = image->parent()->read_count();
      if (!count) {
        break;
      }
      ++lost[count];
    }
  }
  for (const LostReads& one : of) {
    one.count->require_addable(-lost[one.count]);
  }
}

Index increment_read_count(const ImageBatch::Images& images, Index amount) {
  const auto each_live = [&](auto&& act) {
    Index distinct = 0;
    iterate(images, [&](const std::shared_ptr<Image>& image, Index) -> std::optional<Index> {
      ++distinct;
      if (ReadCount* count = image->read_count(); count && count->value() > 0) {
        act(*image, *count);
      }
      return std::nullopt;
    });
    return distinct;
  };
  std::vector<LostReads> lost;
  each_live([&](Image& image, ReadCount& count) {
    count.require_addable(amount);
    lost.push_back({&count, &image, -amount});
  });
  if (amount < 0) {
    check_lost_reads(lost);
  }
  return each_live([&](Image& image, ReadCount& count) {
    count.add(amount);
    image.after_count_change();
  });
}

Index resource_size(const ImageBatch::Images& images) {
  Index total = 0;
  iterate(images, [&](const std::shared_ptr<Image>& image, Index) -> std::optional<Index> {
    total = add_sizes(total, image->resource_size());
    return std::nullopt;
  });
  return total;
}

void synchronize(const ImageBatch::Images& images, CommandBuffer& command_buffer) {
  iterate(images, [&](const std::shared_ptr<Image>& image, Index) -> std::optional<Index> {
    image->synchronize(command_buffer);
    return std::nullopt;
  });
}

}  // namespace mpsgrad
