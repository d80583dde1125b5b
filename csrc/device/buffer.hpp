// Plain device memory (MTLBuffer): gradients and weights inside states, vectors, predicates.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/work.hpp"

namespace mpsgrad {

class CommandBuffer;
class Device;

class Buffer {
 public:
  Buffer(std::shared_ptr<Device> device, std::size_t size)
      : device_(std::move(device)), size_(size) {}
  virtual ~Buffer() = default;

  const std::shared_ptr<Device>& device() const { return device_; }
  std::size_t size() const { return size_; }  // bytes
  UseLedger& uses() { return uses_; }
  // [first, last) of something that two buffers share only if they share memory.
  virtual std::pair<std::uintptr_t, std::uintptr_t> extent() = 0;

  // The bytes, for the CPU. Throws std::runtime_error if they are private to the device, or while
  // unobserved work writes them (for_reading) or uses them (for_writing).
  std::byte* for_reading();
  std::byte* for_writing();

  // A buffer of a state must be synchronised on the command buffer that writes it before the CPU
  // may read it.
  void expect_synchronize(std::string what);
  // Of every encode that reads or `writes` it: what the CPU wrote is the device's now, and the
  // other way round only after a synchronize().
  void note_use(const std::shared_ptr<Work>& work, bool writes);
  // Encodes what makes the device's writes visible to the CPU.
  virtual void synchronize(CommandBuffer&) { synchronized_ = true; }

 protected:
  virtual std::byte* contents() = 0;  // null if private to the device
  virtual void publish() {}           // makes the CPU's writes visible to the device

 private:
  std::shared_ptr<Device> device_;
  std::size_t size_;
  UseLedger uses_;
  std::string name_ = "Buffer";
  bool wants_synchronize_ = false;
  std::atomic<bool> lent_{false};  // the CPU may write whenever it likes
  std::atomic<bool> synchronized_{true};
};

}  // namespace mpsgrad
