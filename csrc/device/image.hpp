// Image, TemporaryImage and ImageBatch (MPSImage, MPSTemporaryImage, MPSImageBatch) over the
// storage of a device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "device/image_descriptor.hpp"
#include "device/read_count.hpp"
#include "device/work.hpp"

namespace mpsgrad {

// Which part of a storage a view shows: whole images and a range of channels.
struct ViewRange {
  Index index = 0;        // which of the storage's `count` images
  Index first_image = 0;  // inside a container image
  Index images = 1;
  Index first_channel = 0;
  Index channels = 0;
};

// The texels of `count` images of one descriptor on one device: the device's payload behind Image
// objects.
class ImageStorage {
 public:
  ImageStorage(const ImageDescriptor& descriptor, Index count)
      : descriptor_(descriptor), count_(count) {}
  virtual ~ImageStorage() = default;

  const ImageDescriptor& descriptor() const { return descriptor_; }
  Index count() const { return count_; }
  UseLedger& uses() { return *uses_; }
  void share_uses(const ImageStorage& parent) { uses_ = parent.uses_; }  // for views
  // Over memory that nobody may write: no destination, and the CPU only reads it.
  bool is_read_only() const { return is_read_only_; }
  void make_read_only() { is_read_only_ = true; }

  // [first, last) of something that two images share only if they share texels.
  virtual std::pair<std::uintptr_t, std::uintptr_t> extent(Index index) = 0;
  virtual std::pair<std::uintptr_t, std::uintptr_t> hull();  // of all images
  // Whether one call may take images of both as elements of one batch; they are of one kind.
  virtual bool lies_like(const ImageStorage&) const { return true; }
  // One contained image, tightly packed, in the storage encoding.
  virtual void read(Index index, Index image, DataLayout layout, void* out) = 0;
  virtual void write(Index index, Index image, DataLayout layout, const void* in) = 0;
  // The dense NHWC array of all images if that is how the device stores them, else null.
  virtual void* dense_memory() { return nullptr; }
  virtual std::shared_ptr<ImageStorage> view(const ViewRange& range) = 0;
  virtual void synchronize(CommandBuffer&, Index /*index*/) {}
  // Whether recorded commands clear the images and skip_clear() would keep them from it: where the
  // first command that uses the images overwrites all of them.
  virtual bool clears() const { return false; }
  virtual void skip_clear() {}
  // Of a temporary image: its read count fell to 0, or it was dropped before. Nobody uses it any
  // more.
  virtual void end_temporary(Index /*index*/) {}
  virtual Index resource_size() = 0;  // bytes of one image's backing store; 0 for wrapped memory

 private:
  ImageDescriptor descriptor_;
  Index count_;
  bool is_read_only_ = false;
  std::shared_ptr<UseLedger> uses_ = std::make_shared<UseLedger>();
};

class Image : public std::enable_shared_from_this<Image> {
 public:
  // A new ordinary image; its storage is allocated when it is first needed.
  static std::shared_ptr<Image> make(std::shared_ptr<Device> device,
                                     const ImageDescriptor& descriptor);

  Image(std::shared_ptr<Device> device, const ImageDescriptor& descriptor,
        std::shared_ptr<ImageStorage> storage, Index index, std::shared_ptr<Image> parent = nullptr)
      : device_(std::move(device)),
        descriptor_(descriptor),
        storage_(std::move(storage)),
        index_(index),
        parent_(std::move(parent)) {}
  virtual ~Image() = default;

  const std::shared_ptr<Device>& device() const { return device_; }
  const ImageDescriptor& descriptor() const { return descriptor_; }
  const std::shared_ptr<Image>& parent() const { return parent_; }
  virtual bool is_temporary() const { return false; }
  virtual const char* class_name() const { return "Image"; }
  int precision() const;  // significand bits
  Index resource_size() const;

  // For whoever encodes. Throws if this is a spent temporary.
  ImageStorage& storage() const {
    if (!storage_) [[unlikely]] {
      fail_spent();
    }
    return *storage_;
  }
  Index index() const { return index_; }
  std::pair<std::uintptr_t, std::uintptr_t> extent()
      const;  // of the root image: what aliasing is judged by

  // CPU transfer of one contained image; `out`/`in` hold elements_per_image() values of the storage
  // encoding.
  void require_readable() const;  // throws std::runtime_error while the CPU must not look
  void read(Index image, DataLayout layout, void* out) const;
  void write(Index image, DataLayout layout, const void* in);

  std::shared_ptr<Image> sub_image(Index first_image, Index images);
  // Over-long ranges are cut to fit; first and channels are multiples of 4.
  std::shared_ptr<Image> sub_image_with_feature_channel_range(Index first, Index channels);

  // Both are asked of every image of every encode, so only temporary images are asked.
  void require_usable(const char* who, const CommandBuffer& command_buffer) const {
    if (read_count_ != nullptr) {
      require_live(who, command_buffer);
    }
  }
  ReadCount* read_count() { return read_count_; }
  virtual void after_count_change() {}
  void synchronize(CommandBuffer& command_buffer);

  std::string label;

 protected:
  virtual void require_cpu_access(const char* call) const;
  virtual void require_live(const char*, const CommandBuffer&) const {}
  virtual std::shared_ptr<Image> make_view(const ViewRange& range);
  std::shared_ptr<ImageStorage> view_storage(const ViewRange& range) const;

  std::shared_ptr<Device> device_;
  ImageDescriptor descriptor_;
  mutable std::shared_ptr<ImageStorage> storage_;
  Index index_;
  std::shared_ptr<Image> parent_;
  ReadCount* read_count_ = nullptr;  // of a temporary image

 private:
  [[noreturn]] void fail_spent() const;
};

class TemporaryImage final : public Image {
 public:
  TemporaryImage(std::shared_ptr<Device> device, const ImageDescriptor& descriptor,
                 std::shared_ptr<ImageStorage> storage, Index index,
                 const std::shared_ptr<CommandBuffer>& owner,
                 std::shared_ptr<Image> parent = nullptr);
  ~TemporaryImage() override;

  bool is_temporary() const override { return true; }
  const char* class_name() const override { return "TemporaryImage"; }
  void after_count_change() override;    // releases the texels at 0
  void discard() { discarded_ = true; }  // it never reached the user: no warning when it goes

 protected:
  void require_cpu_access(const char* call) const override;
  void require_live(const char* who, const CommandBuffer& command_buffer) const override;
  std::shared_ptr<Image> make_view(const ViewRange& range) override;

 private:
  ReadCount count_;
  bool discarded_ = false;
};

// An array of images of one kind. Made by one call, it is one allocation on a device that can.
class ImageBatch : public std::enable_shared_from_this<ImageBatch> {
 public:
  using Images = std::vector<std::shared_ptr<Image>>;

  explicit ImageBatch(Images images) : images_(std::move(images)) {}
  static std::shared_ptr<ImageBatch> make(const std::shared_ptr<Device>& device,
                                          const ImageDescriptor& descriptor, Index count,
                                          bool zeroed);
  static std::shared_ptr<ImageBatch> make_temporary(
      const std::shared_ptr<CommandBuffer>& command_buffer, const ImageDescriptor& descriptor,
      Index count, bool zeroed);
  static std::shared_ptr<ImageBatch> from_memory(const std::shared_ptr<Device>& device,
                                                 const ImageDescriptor& descriptor, Index count,
                                                 LentMemory lent);

  const Images& images() const { return images_; }
  Index size() const { return static_cast<Index>(images_.size()); }
  const std::shared_ptr<Image>& operator[](Index i) const {
    return images_[static_cast<std::size_t>(i)];
  }
  // The storage, if this batch is all of one storage in order; else null.
  ImageStorage* whole_storage() const;
  void discard() const;

 private:
  Images images_;
};

// Whether no object is there twice.
bool all_distinct(const ImageBatch::Images& images);

// Reads that one count is about to lose: an image's, or null, a state's.
struct LostReads {
  const ReadCount* count;
  const Image* image;
  Index reads;
};
// Throws if a count cannot lose its reads. A view that ends takes the read of its parent that it
// holds, which may end the parent.
void check_lost_reads(const std::vector<LostReads>& of);

// The functions of MPSImage.h over arrays, each once per distinct object.
Index increment_read_count(const ImageBatch::Images& images, Index amount);
Index resource_size(const ImageBatch::Images& images);
void synchronize(const ImageBatch::Images& images, CommandBuffer& command_buffer);
// Calls visit(image, first index); a value stops the walk and is returned.
std::optional<Index> iterate(
    const ImageBatch::Images& images,
    const std::function<std::optional<Index>(const std::shared_ptr<Image>&, Index)>& visit);

}  // namespace mpsgrad
