// KernelBase (MPSKernel) and what every encode checks, whatever the number of its sources.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/padding.hpp"
#include "device/command_buffer.hpp"
#include "device/image.hpp"
#include "device/state.hpp"

namespace mpsgrad {

class KernelBase : public std::enable_shared_from_this<KernelBase> {
 public:
  KernelBase(std::shared_ptr<Device> device, const char* class_name)
      : device_(std::move(device)), class_name_(class_name) {}
  virtual ~KernelBase() = default;

  const std::shared_ptr<Device>& device() const { return device_; }
  const char* class_name() const { return class_name_; }
  Index options() const { return options_; }
  void set_options(Index options);
  // Whether any edge mode and any first channel may be set for the forward source, as for Pad's.
  virtual bool reads_anywhere() const { return false; }

  std::string label;

 private:
  std::shared_ptr<Device> device_;
  const char* class_name_;
  Index options_ = 0;
};

// A device's kernels of one family; UnsupportedError where it has none.
template <class Backend>
const Backend& require_family(const Device& device, const char* who, const Backend* backend,
                              const char* family) {
  require<UnsupportedError>(backend != nullptr, who, ": device '", device.kind(), "' has no ",
                            family, " kernels");
  return *backend;
}
template <class Backend>
const Backend& require_family(const KernelBase& kernel, const Backend* backend,
                              const char* family) {
  return require_family(*kernel.device(), kernel.class_name(), backend, family);
}

// MPSImageAllocator: makes the destination of a creating encode.
class ImageAllocator {
 public:
  virtual ~ImageAllocator() = default;
  // `zeroed`: the kernel will not write every texel.
  virtual std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                               const ImageDescriptor& descriptor,
                                               KernelBase& kernel, Index count, bool zeroed) = 0;
};
// Hands out images that exist: for one encode that creates its destination in all but memory.
class GivenImages final : public ImageAllocator {
 public:
  explicit GivenImages(std::shared_ptr<ImageBatch> images);
  // Throws unless the images have the size wanted; they may have another channel format.
  std::shared_ptr<ImageBatch> allocate(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageDescriptor& descriptor, KernelBase& kernel,
                                       Index count, bool zeroed) override;

 private:
  std::shared_ptr<ImageBatch> images_;
};
const std::shared_ptr<ImageAllocator>& ordinary_image_allocator();  // MPSImage.defaultAllocator
const std::shared_ptr<ImageAllocator>&
temporary_image_allocator();  // MPSTemporaryImage.defaultAllocator

// What an encode that creates its destination returns.
struct EncodeResult {
  std::shared_ptr<ImageBatch> images;
  StateBatch states;  // empty if none were asked for, or the kernel has none
};

// One image argument of an encode: a batch, or one image that may be a container.
struct Operand {
  const char* name;
  const ImageBatch::Images* images;
  bool batch;

  const ImageDescriptor& descriptor() const { return images->front()->descriptor(); }
  Index depth() const {  // images that z runs over
    return batch ? static_cast<Index>(images->size()) : descriptor().number_of_images;
  }
};

// Throws unless the operand can be used by an encode of `kernel` on `command_buffer`.
void check_operand(const KernelBase& kernel, const CommandBuffer& command_buffer,
                   const Operand& operand);
// The same for what an encode writes.
void check_destination(const KernelBase& kernel, const CommandBuffer& command_buffer,
                       const Operand& operand);
// Throws if a destination shares memory with a source, at any index.
void check_aliasing(const KernelBase& kernel, const Operand& source, const Operand& destination);
// The channels an encode consumes; throws if the window does not fit. `fixed`: what the kernel
// needs, 0 for any.
Index consumed_channels(const KernelBase& kernel, const Operand& operand, Index offset,
                        Index maximum, Index fixed);
// Bounds that keep sums and products of positions far from overflow.
inline constexpr Index kMaximumWindow = 1 << 16;
inline constexpr Index kFurthest = (Index{1} << 31) - 1;
// Gradient kernels are placed by differences of positions in the forward pass.
inline constexpr Index kFurthestBackwards = 2 * kFurthest;
// Throws unless a property of a kernel that heeds no other value has its default.
template <class Value>
void require_default(const KernelBase& kernel, const char* property, const Value& value,
                     const Value& usual = {}) {
  require(value == usual, kernel.class_name(), ": ", property, " must have its default value, got ",
          value);
}
// Throws unless a side, a stride or a dilation is 1 to kMaximumWindow.
void check_step(const char* who, const char* name, Index value);
void check_window(const char* who, const Window& window);
void check_position(const KernelBase& kernel, const char* property, Index value,
                    Index furthest = kFurthest);
void check_offset(const KernelBase& kernel, const char* property, const Offset& offset,
                  Index furthest = kFurthest);
void check_clip(const KernelBase& kernel, const Region& clip);
// Throws unless an image has such a width and height; `whose` says in the message what they are, as
// "the forward result was".
void require_size(const KernelBase& kernel, const char* name, const ImageDescriptor& image,
                  const char* whose, Index width, Index height);
// Of kernels with one state for all images.
void require_one_state(const KernelBase& kernel, const StateBatch& states);
// Of kernels with one for each.
void require_distinct_states(const KernelBase& kernel, const char* name, const StateBatch& states);
void check_channel_offset(const KernelBase& kernel, const char* property, Index value);
void check_edge_mode(const KernelBase& kernel, const char* property, EdgeMode mode);
// The same of the forward source, which a kernel may read anywhere.
void check_source_channel_offset(const KernelBase& kernel, const char* property, Index value);
void check_source_edge_mode(const KernelBase& kernel, const char* property, EdgeMode mode);
// Destination region that an encode writes: clip ∩ destination. Its origin lies inside, or at the
// end.
Region effective_clip(const Region& clip, const Operand& destination);
void check_depth(const KernelBase& kernel, const Operand& source, Index first, Index count);

// The reads of one encode: every temporary loses one count per argument position, once per distinct
// object.
class Reads {
 public:
  void add(const ImageBatch::Images& images);
  void add(const StateBatch& states);
  void check() const;  // throws ReadCountError if some count is too low; nothing is changed
  void spend();

 private:
  struct Entry {
    ReadCount* count;
    Image* image;
    State* state;
    Index reads;
    int argument;  // the last one it was counted for
  };
  void add_one(ReadCount& count, Image* image, State* state);
  void check_with_views() const;
  std::vector<Entry> entries_;
  bool has_views_ = false;
  int argument_ = 0;
};

// Enters the images of an encode into the ledgers of their storages.
void note_uses(const CommandBuffer& command_buffer, const ImageBatch::Images& images, bool writes);
// The same for results: some channels of a clip, which need no zeros before if they are everything.
void note_results(const CommandBuffer& command_buffer, const ImageBatch::Images& images,
                  const Region& clip, Index channel, Index produced);
// The same for one array of a kernel or a state; null is none.
void note_use(const CommandBuffer& command_buffer, const std::shared_ptr<Buffer>& buffer,
              bool writes);

// Every state must be on the command buffer's device and live. `hint`: what to say where there is
// none at all.
void check_states(const KernelBase& kernel, const CommandBuffer& command_buffer, const char* name,
                  const StateBatch& states, Index expected, const char* hint = "");

}  // namespace mpsgrad
