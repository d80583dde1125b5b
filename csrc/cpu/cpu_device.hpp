// The CPU device without its kernel families (devices.cpp adds those): memory, images, buffers and
// queues.
#pragma once

#include <memory>
#include <string>

#include "cpu/cpu_queue.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"

namespace mpsgrad::cpu {

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(std::shared_ptr<Device> device, std::size_t size, std::byte* data,
            std::shared_ptr<void> alive, std::shared_ptr<TemporaryHeap::Lease> lease,
            bool is_private)
      : Buffer(std::move(device), size),
        data_(data),
        alive_(std::move(alive)),
        lease_(std::move(lease)),
        is_private_(is_private) {}

  std::pair<std::uintptr_t, std::uintptr_t> extent() override {
    const auto first = reinterpret_cast<std::uintptr_t>(data_);
    return {first, first + size()};
  }
  std::byte* device_bytes() override { return data_; }
  // Keeps the bytes (not the read count) alive inside a recorded command.
  const std::shared_ptr<void>& alive() const { return alive_; }

 protected:
  std::byte* contents() override { return is_private_ ? nullptr : data_; }

 private:
  std::byte* data_;
  std::shared_ptr<void> alive_;
  std::shared_ptr<TemporaryHeap::Lease> lease_;
  bool is_private_;
};

class CpuDeviceBase : public Device {
 public:
  std::string kind() const override { return "cpu"; }
  std::string name() const override;
  std::shared_ptr<CommandQueue> make_queue() override;
  std::shared_ptr<ImageStorage> make_images(const ImageDescriptor& descriptor, Index count,
                                            bool zeroed) override;
  std::shared_ptr<ImageStorage> make_temporary_images(CommandBuffer& command_buffer,
                                                      const ImageDescriptor& descriptor,
                                                      Index count, bool zeroed) override;
  std::shared_ptr<ImageStorage> images_from_memory(const ImageDescriptor& descriptor, Index count,
                                                   LentMemory lent) override;
  std::shared_ptr<Buffer> make_buffer(std::size_t bytes) override;
  std::shared_ptr<Buffer> make_temporary_buffer(CommandBuffer& command_buffer,
                                                std::size_t bytes) override;
  std::shared_ptr<Buffer> buffer_from_memory(LentMemory lent) override;
  void copy_buffer(CommandBuffer& command_buffer, const std::shared_ptr<Buffer>& from,
                   const std::shared_ptr<Buffer>& to, std::size_t bytes) override;
};

}  // namespace mpsgrad::cpu
