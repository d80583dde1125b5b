// Storage of the CPU device: 64-byte-aligned blocks from one pool that keeps what is given back,
// and counts everything. A training step that repeats asks the system for nothing: every block it
// needs is in the pool. Each thread gets the small blocks it gave back last before others: scratch
// areas, which kernels take for one piece of work after the other, stay in the caches of its core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace mpsgrad::cpu {

inline constexpr std::size_t kAlignment = 64;

// Of a kernel that reads and writes this many bytes, results go past the caches: they would not
// stay there until the next kernel reads them, and a store into a cache first reads what it
// overwrites.
std::int64_t streamed_bytes();
// The same for loops that would have to read in a worse order: more, where the last cache is large.
std::int64_t late_streamed_bytes();

struct MemoryStatistics {
  std::size_t in_use = 0;           // bytes in blocks that somebody holds
  std::size_t cached = 0;           // bytes given back and kept for the next request
  std::size_t peak = 0;             // most bytes ever taken from the system at once
  std::size_t system_requests = 0;  // how often the system was asked for a block
};

// Bytes of one allocation. Shared by images, states and recorded commands; the last one out gives
// it back to the pool.
class Block {
 public:
  Block(std::byte* data, std::size_t capacity) : data_(data), capacity_(capacity) {}
  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }

 private:
  std::byte* data_;
  std::size_t capacity_;
};

class MemoryPool {
 public:
  static MemoryPool& instance();

  // Contents are undefined. Throws std::bad_alloc.
  std::shared_ptr<Block> acquire(std::size_t bytes);
  MemoryStatistics statistics() const;
  void release_cached();

 private:
  struct FreeBlock {
    std::size_t capacity;
    std::byte* data;
  };
  class ThreadCache;
  class CacheOwner;

  MemoryPool();
  ThreadCache* own_cache();               // of this thread; null when it ends
  std::byte* find(std::size_t capacity);  // of all that was given back; null: there is none
  void give_back(FreeBlock block);
  void lock_all();
  void unlock_all();
  // These are called with the mutex held.
  void keep(FreeBlock block);
  void count_use(std::size_t bytes);
  void trim();  // keeps the cache within its limit

  mutable std::mutex mutex_;  // to be locked before that of a thread's cache
  std::multimap<std::size_t, std::byte*> free_;
  std::vector<std::unique_ptr<ThreadCache>> thread_caches_;
  MemoryStatistics statistics_;  // counts what threads' caches hold as in use
  std::size_t most_in_use_ = 0;  // since the cache was last emptied
};

// The heap of one command buffer. A temporary that has been read often enough gives its block back
// at encode time, and the next temporary may take it although nothing has run yet: commands run in
// the order they were encoded in.
class TemporaryHeap : public std::enable_shared_from_this<TemporaryHeap> {
 public:
  // The lease returns the block to this heap when it is dropped; commands that use the memory hold
  // `block()`.
  class Lease {
   public:
    Lease(std::shared_ptr<TemporaryHeap> heap, std::shared_ptr<Block> block)
        : heap_(std::move(heap)), block_(std::move(block)) {}
    ~Lease() { heap_->give_back(std::move(block_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    const std::shared_ptr<Block>& block() const { return block_; }

   private:
    std::shared_ptr<TemporaryHeap> heap_;
    std::shared_ptr<Block> block_;
  };

  std::shared_ptr<Lease> lease(std::size_t bytes);

 private:
  void give_back(std::shared_ptr<Block> block);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Block>> free_;
};

}  // namespace mpsgrad::cpu
