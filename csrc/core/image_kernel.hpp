// What kernels that write images have in common, whatever the number of their sources: where the
// results go, how a destination is sized and made, and what an encode does with batches and states.
#pragma once

#include <memory>
#include <utility>

#include "base/errors.hpp"
#include "core/kernel.hpp"

namespace mpsgrad {

template <class Properties>
class ImageKernel : public KernelBase {
 public:
  using KernelBase::KernelBase;

  const Properties& properties() const { return properties_; }
  void set_clip_rect(const Region& clip) {
    check_clip(*this, clip);
    properties_.clip_rect = clip;
  }
  void set_destination_channel_offset(Index value) {
    check_channel_offset(*this, "destination_feature_channel_offset", value);
    properties_.destination_channel_offset = value;
  }
  const std::shared_ptr<Padding>& padding() const { return padding_; }
  void set_padding(std::shared_ptr<Padding> padding) {
    require<TypeError>(padding != nullptr, class_name(), ": padding must be a Padding, got None");
    padding_method::check(padding->method(), class_name());
    padding_ = std::move(padding);
  }
  const std::shared_ptr<ImageAllocator>& allocator() const { return allocator_; }
  void set_allocator(std::shared_ptr<ImageAllocator> allocator) {
    require<TypeError>(allocator != nullptr, class_name(),
                       ": destination_image_allocator must not be None");
    allocator_ = std::move(allocator);
  }

  virtual bool is_backwards() const { return false; }
  virtual bool is_state_modified() const { return false; }
  virtual bool is_result_state_reused_across_batch() const { return false; }
  virtual bool append_batch_barrier() const { return false; }

 protected:
  Properties properties_;

 private:
  std::shared_ptr<Padding> padding_ = std::make_shared<DefaultPadding>(padding_method::kSizeSame);
  std::shared_ptr<ImageAllocator> allocator_ = temporary_image_allocator();
};

}  // namespace mpsgrad
