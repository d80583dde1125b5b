// Images of the CPU device: one dense NHWC allocation for all images of a batch, and the strided
// view kernels work on.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/memory.hpp"
#include "device/image.hpp"

namespace mpsgrad::cpu {

// Where the bytes of a storage come from, and what keeps them alive.
struct Backing {
  std::byte* data = nullptr;
  std::shared_ptr<void> alive;  // for recorded commands
  std::shared_ptr<TemporaryHeap::Lease>
      lease;  // only of temporaries: gives the block back with the storage
};

// Writes zeros, with all threads.
void clear(std::byte* data, std::size_t bytes);

class CpuImageStorage final : public ImageStorage {
 public:
  // Ordinary, allocated when first needed.
  CpuImageStorage(const ImageDescriptor& descriptor, Index count, bool zeroed);
  // Over memory that exists already.
  CpuImageStorage(const ImageDescriptor& descriptor, Index count, Backing backing, bool wrapped);

  std::pair<std::uintptr_t, std::uintptr_t> extent(Index index) override;
  std::pair<std::uintptr_t, std::uintptr_t> hull() override;
  bool lies_like(const ImageStorage& other) const override;
  void read(Index index, Index image, DataLayout layout, void* out) override;
  void write(Index index, Index image, DataLayout layout, const void* in) override;
  void* dense_memory() override;
  std::shared_ptr<ImageStorage> view(const ViewRange& range) override;
  Index resource_size() override;
  bool clears() const override { return clears_ != nullptr; }
  void skip_clear() override { clears_->store(false); }

  // Shared with a recorded command that clears the images unless it has become false; which may be
  // running by then, if the command buffer was committed and continued.
  void set_clears(std::shared_ptr<std::atomic<bool>> clears) { clears_ = std::move(clears); }
  const Backing& backing();  // allocates
  std::byte* sample(Index index, Index image);
  Index pixel_stride() const { return pixel_stride_; }  // elements
  Index row_stride() const { return row_stride_; }

 private:
  Index image_bytes() const;  // from one contained image to the next

  Backing backing_;
  std::shared_ptr<std::atomic<bool>> clears_;  // or null
  bool zeroed_ = false;
  bool wrapped_ = false;
  bool is_view_ = false;
  Index pixel_stride_;
  Index row_stride_;
};

// Samples of one kind, somewhere in memory: what a recorded command holds of its images. Strides
// count elements.
struct CpuImages {
  ChannelFormat format = ChannelFormat::Float32;
  Index width = 0, height = 0;
  Index channels = 0;  // of the window
  Index tail = 0;  // lanes after the window that a store zeroes: whole slices of four are written
  Index pixel_stride = 0;
  Index row_stride = 0;
  bool streamed = false;            // results go past the caches, by way of a scratch run
  std::vector<std::byte*> samples;  // first channel of the window at pixel (0, 0)
  std::vector<std::shared_ptr<void>> alive;

  Index count() const { return static_cast<Index>(samples.size()); }
  bool is_float() const { return format == ChannelFormat::Float32; }
  // Pixels follow each other without gaps.
  bool dense_pixels() const { return pixel_stride == channels; }
  // Loops that take float16 can read and write it as it lies.
  bool has_halves() const { return format == ChannelFormat::Float16 && dense_pixels(); }
  // Stores go to the image itself: it takes float32 as it is.
  bool stores_in_place() const { return is_float() && dense_pixels() && !streamed; }
  // Rows follow each other without gaps, so that a run of pixels may cross them.
  bool packed_rows() const { return row_stride == width * pixel_stride; }
  std::byte* pixel(Index sample, Index y, Index x) const {
    return samples[static_cast<std::size_t>(sample)] +
           (y * row_stride + x * pixel_stride) * item_size(format);
  }
  // Elements from one sample to the next if they are evenly spaced, else 0.
  Index even_sample_stride() const;
  // Some of the channels.
  CpuImages slice(Index first, Index count) const;
};

// The images [first, first + count) of an operand, counted over its batch or inside its container,
// and of each the channels [channel, channel + channels).
CpuImages view_images(const ImageBatch::Images& images, bool batch, Index first, Index count,
                      Index channel, Index channels);

}  // namespace mpsgrad::cpu
