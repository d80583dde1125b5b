// Allocation on the CPU device.
#include "cpu/cpu_device.hpp"

#include <cstring>

#include "base/errors.hpp"
#include "cpu/cpu_buffer.hpp"
#include "cpu/cpu_images.hpp"
#include "cpu/isa.hpp"
#include "cpu/threads.hpp"

namespace mpsgrad::cpu {
namespace {

std::size_t bytes_of(const ImageDescriptor& descriptor, Index count) {
  return static_cast<std::size_t>(count * descriptor.number_of_images *
                                  descriptor.bytes_per_image());
}

// The memory may still be in use by commands recorded earlier, so it is cleared when its turn
// comes, unless what is returned has been made false by then.
std::shared_ptr<std::atomic<bool>> record_clear(CpuCommandBuffer& command_buffer,
                                                const std::shared_ptr<Block>& block,
                                                std::size_t bytes) {
  auto wanted = std::make_shared<std::atomic<bool>>(true);
  command_buffer.record_always([block, bytes, wanted] {
    if (wanted->load()) {
      clear(block->data(), bytes);
    }
  });
  return wanted;
}

}  // namespace

std::string CpuDeviceBase::name() const {
  const int threads = thread_count();
  return text(isa_name(selected_isa()), ", ", threads, threads == 1 ? " thread" : " threads");
}

std::shared_ptr<CommandQueue> CpuDeviceBase::make_queue() {
  return std::make_shared<CpuQueue>(shared_from_this());
}

std::shared_ptr<ImageStorage> CpuDeviceBase::make_images(const ImageDescriptor& descriptor,
                                                         Index count, bool zeroed) {
  return std::make_shared<CpuImageStorage>(descriptor, count, zeroed);
}

std::shared_ptr<ImageStorage> CpuDeviceBase::make_temporary_images(
    CommandBuffer& command_buffer, const ImageDescriptor& descriptor, Index count, bool zeroed) {
  auto& own = as<CpuCommandBuffer>(command_buffer);
  const std::size_t bytes = bytes_of(descriptor, count);
  auto lease = own.heap().lease(bytes);
  std::shared_ptr<std::atomic<bool>> clears;
  if (zeroed) {
    clears = record_clear(own, lease->block(), bytes);
  }
  Backing backing{lease->block()->data(), lease->block(), lease};
  auto images = std::make_shared<CpuImageStorage>(descriptor, count, std::move(backing), false);
  images->set_clears(std::move(clears));
  return images;
}

std::shared_ptr<ImageStorage> CpuDeviceBase::images_from_memory(const ImageDescriptor& descriptor,
                                                                Index count, LentMemory lent) {
  require(lent.bytes == bytes_of(descriptor, count), "images_from_memory: ", lent.bytes,
          " bytes for ", count, " images of ", descriptor);
  Backing backing{static_cast<std::byte*>(lent.data), std::move(lent.owner), nullptr};
  return std::make_shared<CpuImageStorage>(descriptor, count, std::move(backing), true);
}

std::shared_ptr<Buffer> CpuDeviceBase::make_buffer(std::size_t bytes) {
  auto block = MemoryPool::instance().acquire(bytes);
  std::byte* data = block->data();
  return std::make_shared<CpuBuffer>(shared_from_this(), bytes, data, std::move(block), false);
}

std::shared_ptr<Buffer> CpuDeviceBase::make_temporary_buffer(CommandBuffer& command_buffer,
                                                             std::size_t bytes) {
  auto& own = as<CpuCommandBuffer>(command_buffer);
  auto lease = own.heap().lease(bytes);
  return std::make_shared<CpuBuffer>(shared_from_this(), bytes, lease->block()->data(),
                                     lease->block(), false, lease);
}

std::shared_ptr<Buffer> CpuDeviceBase::buffer_from_memory(LentMemory lent) {
  return std::make_shared<CpuBuffer>(shared_from_this(), lent.bytes,
                                     static_cast<std::byte*>(lent.data), std::move(lent.owner),
                                     true);
}

void CpuDeviceBase::copy_buffer(CommandBuffer& command_buffer, const std::shared_ptr<Buffer>& from,
                                const std::shared_ptr<Buffer>& to, std::size_t bytes) {
  as<CpuCommandBuffer>(command_buffer)
      .record([source = memory_of(*from), target = memory_of(*to), bytes] {
        if (target != source) {
          target->fill(0, bytes, [&](std::byte* at) { std::memcpy(at, source->bytes(), bytes); });
        }
      });
}

}  // namespace mpsgrad::cpu
