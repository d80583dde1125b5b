// Buffers of the CPU device. They hold zeros until somebody writes them, but are not cleared before
// somebody looks, so that what a command writes as a whole is written once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "cpu/cpu_queue.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"

namespace mpsgrad::cpu {

class BufferMemory {
 public:
  // `owner` keeps the bytes; `cleared`: somebody has already written them.
  BufferMemory(std::byte* data, std::size_t size, std::shared_ptr<void> owner, bool cleared)
      : data_(data), size_(size), owner_(std::move(owner)), cleared_(cleared) {}

  // Where the bytes are, for comparisons.
  const std::byte* address() const { return data_; }

  // Temporary memory may be in use by commands before: only when a command's turn has come.
  std::byte* bytes() {
    if (!cleared_.load(std::memory_order_acquire)) {
      clear();
    }
    return data_;
  }
  // For a command that writes so many from `first` on and reads none of them before: calls
  // write(where they are). If it fails, they are zeros.
  template <class Write>
  void fill(std::size_t first, std::size_t count, const Write& write) {
    const bool whole = first == 0 && count == size_;
    std::byte* const at = (whole && take_over() ? data_ : bytes()) + first;
    try {
      write(at);
    } catch (...) {
      std::memset(at, 0, count);
      throw;
    }
  }

 private:
  // False: somebody has written the bytes. Else the caller has to.
  bool take_over() {
    const std::lock_guard lock(mutex_);
    return !cleared_.exchange(true, std::memory_order_acq_rel);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    if (!cleared_.load(std::memory_order_relaxed)) {
      std::memset(data_, 0, size_);
      cleared_.store(true, std::memory_order_release);
    }
  }

  std::byte* data_;
  std::size_t size_;
  std::shared_ptr<void> owner_;
  std::mutex mutex_;
  std::atomic<bool> cleared_;
};

class CpuBuffer final : public Buffer {
 public:
  // With a lease, private to the device.
  CpuBuffer(std::shared_ptr<Device> device, std::size_t size, std::byte* data,
            std::shared_ptr<void> owner, bool cleared,
            std::shared_ptr<TemporaryHeap::Lease> lease = nullptr)
      : Buffer(std::move(device), size),
        memory_(std::make_shared<BufferMemory>(data, size, std::move(owner), cleared)),
        lease_(std::move(lease)) {}

  std::pair<std::uintptr_t, std::uintptr_t> extent() override {
    const auto first = reinterpret_cast<std::uintptr_t>(memory_->address());
    return {first, first + size()};
  }
  // For recorded commands: it keeps the bytes alive, not the read count.
  const std::shared_ptr<BufferMemory>& memory() const { return memory_; }

 protected:
  std::byte* contents() override { return lease_ ? nullptr : memory_->bytes(); }

 private:
  std::shared_ptr<BufferMemory> memory_;
  std::shared_ptr<TemporaryHeap::Lease> lease_;
};

inline const std::shared_ptr<BufferMemory>& memory_of(const Buffer& buffer) {
  return as<const CpuBuffer>(buffer).memory();
}

}  // namespace mpsgrad::cpu
