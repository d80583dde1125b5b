// The CPU device without its kernel families (devices.cpp adds those): memory, images, buffers and
// queues.
#pragma once

#include <memory>
#include <string>

#include "cpu/cpu_queue.hpp"
#include "device/device.hpp"

namespace mpsgrad::cpu {

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
