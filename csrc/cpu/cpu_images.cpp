// Storage and views of CPU images.
#include "cpu/cpu_images.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "cpu/threads.hpp"

namespace mpsgrad::cpu {

void clear(std::byte* data, std::size_t bytes) {
  constexpr Index kChunk = Index{1} << 18U;
  const auto size = static_cast<Index>(bytes);
  parallel_for(chunks_of(size, kChunk), [&](Index i) {
    const Index first = i * kChunk;
    std::memset(data + first, 0, static_cast<std::size_t>(std::min(kChunk, size - first)));
  });
}

CpuImageStorage::CpuImageStorage(const ImageDescriptor& descriptor, Index count, bool zeroed)
    : ImageStorage(descriptor, count),
      zeroed_(zeroed),
      pixel_stride_(descriptor.feature_channels),
      row_stride_(descriptor.width * descriptor.feature_channels) {}

CpuImageStorage::CpuImageStorage(const ImageDescriptor& descriptor, Index count, Backing backing,
                                 bool wrapped)
    : ImageStorage(descriptor, count),
      backing_(std::move(backing)),
      wrapped_(wrapped),
      pixel_stride_(descriptor.feature_channels),
      row_stride_(descriptor.width * descriptor.feature_channels) {}

const Backing& CpuImageStorage::backing() {
  if (!backing_.data) {
    const auto bytes = static_cast<std::size_t>(count() * descriptor().number_of_images *
                                                descriptor().bytes_per_image());
    auto block = MemoryPool::instance().acquire(bytes);
    if (zeroed_) {
      clear(block->data(), bytes);
    }
    backing_.data = block->data();
    backing_.alive = std::move(block);
  }
  return backing_;
}

Index CpuImageStorage::image_bytes() const {
  return row_stride_ * descriptor().height * item_size(descriptor().channel_format);
}

std::byte* CpuImageStorage::sample(Index index, Index image) {
  return backing().data + (index * descriptor().number_of_images + image) * image_bytes();
}

std::pair<std::uintptr_t, std::uintptr_t> CpuImageStorage::extent(Index index) {
  const auto first = reinterpret_cast<std::uintptr_t>(sample(index, 0));
  return {first,
          first + static_cast<std::uintptr_t>(image_bytes() * descriptor().number_of_images)};
}

std::pair<std::uintptr_t, std::uintptr_t> CpuImageStorage::hull() {
  return {extent(0).first, extent(count() - 1).second};
}

namespace {

// Copies one image between a strided HWC view and a tight buffer of either layout; `out` says which
// side is written.
template <class Item>
void transfer(std::byte* view, Index height, Index width, Index channels, Index row_stride,
              Index pixel_stride, DataLayout layout, void* tight, bool out) {
  auto* texels = reinterpret_cast<Item*>(view);
  auto* packed = static_cast<Item*>(tight);
  const Index channel_step = layout == DataLayout::HeightWidthChannels ? 1 : height * width;
  const Index pixel_step = layout == DataLayout::HeightWidthChannels ? channels : 1;
  for (Index y = 0; y < height; ++y) {
    for (Index x = 0; x < width; ++x) {
      Item* texel = texels + y * row_stride + x * pixel_stride;
      Item* value = packed + (y * width + x) * pixel_step;
      for (Index c = 0; c < channels; ++c) {
        out ? void(value[c * channel_step] = texel[c]) : void(texel[c] = value[c * channel_step]);
      }
    }
  }
}

void transfer_image(CpuImageStorage& storage, std::byte* view, DataLayout layout, void* tight,
                    bool out) {
  const ImageDescriptor& d = storage.descriptor();
  if (layout == DataLayout::HeightWidthChannels && storage.pixel_stride() == d.feature_channels) {
    const auto bytes = static_cast<std::size_t>(d.bytes_per_image());
    // The caller's array may be one of this very memory.
    out ? std::memmove(tight, view, bytes) : std::memmove(view, tight, bytes);
    return;
  }
  const auto with = [&](auto item) {
    transfer<decltype(item)>(view, d.height, d.width, d.feature_channels, storage.row_stride(),
                             storage.pixel_stride(), layout, tight, out);
  };
  switch (item_size(d.channel_format)) {
    case 1:
      with(std::uint8_t{});
      break;
    case 2:
      with(std::uint16_t{});
      break;
    default:
      with(std::uint32_t{});
      break;
  }
}

}  // namespace

// A CpuImages has the strides of its first image.
bool CpuImageStorage::lies_like(const ImageStorage& other) const {
  const auto& others = static_cast<const CpuImageStorage&>(other);
  return others.pixel_stride_ == pixel_stride_ && others.row_stride_ == row_stride_;
}

void CpuImageStorage::read(Index index, Index image, DataLayout layout, void* out) {
  transfer_image(*this, sample(index, image), layout, out, true);
}

void CpuImageStorage::write(Index index, Index image, DataLayout layout, const void* in) {
  transfer_image(*this, sample(index, image), layout, const_cast<void*>(in), false);
}

void* CpuImageStorage::dense_memory() { return is_view_ ? nullptr : backing().data; }

std::shared_ptr<ImageStorage> CpuImageStorage::view(const ViewRange& range) {
  ImageDescriptor shown = descriptor();
  shown.number_of_images = range.images;
  shown.feature_channels = range.channels;
  Backing part = backing();
  part.data = sample(range.index, range.first_image) +
              range.first_channel * item_size(shown.channel_format);
  auto result = std::make_shared<CpuImageStorage>(shown, 1, std::move(part), true);
  result->pixel_stride_ = pixel_stride_;
  result->row_stride_ = row_stride_;
  result->is_view_ = true;
  result->share_uses(*this);
  return result;
}

Index CpuImageStorage::resource_size() { return wrapped_ ? 0 : descriptor().texel_bytes(); }

Index CpuImages::even_sample_stride() const {
  if (samples.size() < 2) {
    return row_stride * height;
  }
  const std::ptrdiff_t step = samples[1] - samples[0];
  for (std::size_t i = 2; i < samples.size(); ++i) {
    if (samples[i] - samples[i - 1] != step) {
      return 0;
    }
  }
  return step > 0 && step % item_size(format) == 0 ? step / item_size(format) : 0;
}

CpuImages CpuImages::slice(Index first, Index count) const {
  CpuImages some = *this;
  some.channels = count;
  some.tail = first + count == channels ? tail : 0;
  for (std::byte*& sample : some.samples) {
    sample += first * item_size(format);
  }
  return some;
}

CpuImages view_images(const ImageBatch::Images& images, bool batch, Index first, Index count,
                      Index channel, Index channels) {
  CpuImages view;
  const auto& front = as<CpuImageStorage>(images.front()->storage());
  view.format = front.descriptor().channel_format;
  view.width = front.descriptor().width;
  view.height = front.descriptor().height;
  view.channels = channels;
  view.pixel_stride = front.pixel_stride();
  view.row_stride = front.row_stride();
  view.samples.reserve(static_cast<std::size_t>(count));
  ImageStorage* previous = nullptr;
  CpuImageStorage* storage = nullptr;
  for (Index i = first; i < first + count; ++i) {
    const Image& image = *images[static_cast<std::size_t>(batch ? i : 0)];
    if (&image.storage() != previous) {
      previous = &image.storage();
      storage = &as<CpuImageStorage>(*previous);
      require(storage->lies_like(front), "images of one view lie differently in memory");
      view.alive.push_back(storage->backing().alive);
    }
    view.samples.push_back(storage->sample(image.index(), batch ? 0 : i) +
                           channel * item_size(view.format));
  }
  return view;
}

}  // namespace mpsgrad::cpu
