// Scratch arrays of the threads that run kernels.
#include "cpu/scratch.hpp"

#include <array>
#include <cstddef>
#include <memory>

#include "cpu/memory.hpp"

namespace mpsgrad::cpu {
namespace {

constexpr std::size_t kMostKept = std::size_t{1} << 21;  // bytes, about a second-level cache

struct ThreadScratch {
  std::array<std::shared_ptr<Block>, 8> slots;
  bool large = false;  // one of them is
};

thread_local ThreadScratch own;

}  // namespace

float* thread_scratch(int slot, Index floats) {
  std::shared_ptr<Block>& block = own.slots.at(static_cast<std::size_t>(slot));
  const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
  if (!block || block->capacity() < bytes) {
    block.reset();
    block = MemoryPool::instance().acquire(bytes);
    own.large = own.large || block->capacity() > kMostKept;
  }
  return reinterpret_cast<float*>(block->data());
}

void trim_thread_scratch() {
  if (!own.large) {
    return;
  }
  for (std::shared_ptr<Block>& block : own.slots) {
    if (block && block->capacity() > kMostKept) {
      block.reset();
    }
  }
  own.large = false;
}

}  // namespace mpsgrad::cpu
