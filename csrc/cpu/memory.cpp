// The pool behind every image, state and scratch area of the CPU device.
#include "cpu/memory.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <new>
#include <optional>

#include "base/memory_limits.hpp"

namespace mpsgrad::cpu {
namespace {

// Eight classes an octave: at most an eighth of a block is slack, and a repeated step finds exact
// fits.
std::size_t round_up(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, kAlignment);
  const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes) / 8, kAlignment);
  return (bytes + step - 1) / step * step;
}

// More than the machine has is refused here: some systems promise any amount, and end the process
// that uses it.
std::size_t physical_memory() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                   static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  return bytes;
}

constexpr std::size_t kSmallestCache = std::size_t{256} << 20;

// Large blocks are laid on huge pages where the system has them: kernels that read and write more
// than the caches hold spend much of their time on finding small pages.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* request_memory(std::size_t bytes) {
  const bool huge = bytes >= 2 * kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, huge ? kHugePage : kAlignment, bytes) != 0) {
    return nullptr;
  }
#if defined(MADV_HUGEPAGE)
  if (huge) {
    madvise(data, bytes, MADV_HUGEPAGE);  // an advice: where it is refused, nothing is lost
  }
#endif
  return static_cast<std::byte*>(data);
}

// Of the last cache that one core has; 0 or less: the system does not tell.
std::int64_t last_cache_bytes() {
#if defined(__linux__)
  // sysconf() adds up all that a socket has.
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::int64_t kilobytes = 0;
  char unit = 0;
  if (file >> kilobytes >> unit && unit == 'K') {
    return kilobytes << 10;
  }
#endif
#if defined(_SC_LEVEL3_CACHE_SIZE)
  return sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
  return 0;
#endif
}

}  // namespace

// Most of the last cache, which also holds what other programs use.
std::int64_t streamed_bytes() {
  static const std::int64_t bytes =
      std::clamp<std::int64_t>(last_cache_bytes() / 4 * 3, 8 << 20, 32 << 20);
  return bytes;
}

std::int64_t late_streamed_bytes() {
  static const std::int64_t bytes =
      std::max(streamed_bytes(), std::min(3 * streamed_bytes(), last_cache_bytes() / 4));
  return bytes;
}

// The small blocks that a thread gave back last, on cache lines of their own.
class alignas(kAlignment) MemoryPool::ThreadCache {
 public:
  ThreadCache() { blocks_.reserve(kMost); }

  static bool suits(std::size_t capacity) { return capacity <= kLargest; }
  // Null: there is none of this capacity.
  std::byte* take(std::size_t capacity) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), [&](const FreeBlock& block) {
      return block.capacity == capacity;
    });
    if (found == blocks_.rend()) {
      return nullptr;
    }
    std::byte* data = found->data;
    blocks_.erase(std::prev(found.base()));
    return data;
  }
  // Returns the one that there is no more room for.
  std::optional<FreeBlock> put(FreeBlock block) {
    const std::lock_guard lock(mutex);
    std::optional<FreeBlock> oldest;
    if (blocks_.size() == kMost) {
      oldest = blocks_.front();
      blocks_.erase(blocks_.begin());
    }
    blocks_.push_back(block);
    return oldest;
  }
  std::size_t bytes() {
    const std::lock_guard lock(mutex);
    std::size_t sum = 0;
    for (const FreeBlock& block : blocks_) {
      sum += block.capacity;
    }
    return sum;
  }
  template <class Visit>
  void empty(const Visit& visit) {
    const std::lock_guard lock(mutex);
    for (const FreeBlock& block : blocks_) {
      visit(block);
    }
    blocks_.clear();
  }

  std::mutex mutex;

 private:
  static constexpr std::size_t kMost = 4;
  static constexpr std::size_t kLargest = std::size_t{1} << 20;

  std::vector<FreeBlock> blocks_;  // the oldest one first
};

// Of a thread, its cache until it ends.
class MemoryPool::CacheOwner {
 public:
  explicit CacheOwner(MemoryPool& pool) : pool_(pool), cache_(new ThreadCache) {
    const std::lock_guard lock(pool.mutex_);
    pool.thread_caches_.emplace_back(cache_);
  }
  CacheOwner(const CacheOwner&) = delete;
  CacheOwner& operator=(const CacheOwner&) = delete;
  ~CacheOwner() {
    ended = true;
    const std::lock_guard lock(pool_.mutex_);
    cache_->empty([&](const FreeBlock& block) { pool_.keep(block); });
    pool_.trim();
    std::erase_if(pool_.thread_caches_, [&](const auto& other) { return other.get() == cache_; });
  }
  ThreadCache* cache() const { return cache_; }

  // Blocks that other objects of the thread hold may be given back after this one has gone.
  static thread_local bool ended;

 private:
  MemoryPool& pool_;
  ThreadCache* cache_;
};

thread_local bool MemoryPool::CacheOwner::ended = false;

MemoryPool::MemoryPool() = default;

MemoryPool& MemoryPool::instance() {
  static auto* pool = [] {
    static auto* made = new MemoryPool;  // never destroyed: blocks may outlive static destruction
    // A child of fork() must not inherit a mutex from a thread that it does not have.
    pthread_atfork([] { made->lock_all(); }, [] { made->unlock_all(); },
                   [] { made->unlock_all(); });
    return made;
  }();
  return *pool;
}

void MemoryPool::lock_all() {
  mutex_.lock();
  for (const auto& cache : thread_caches_) {
    cache->mutex.lock();
  }
}

void MemoryPool::unlock_all() {
  for (const auto& cache : thread_caches_) {
    cache->mutex.unlock();
  }
  mutex_.unlock();
}

MemoryPool::ThreadCache* MemoryPool::own_cache() {
  if (CacheOwner::ended) {
    return nullptr;
  }
  thread_local const CacheOwner owner(*this);
  return owner.cache();
}

std::shared_ptr<Block> MemoryPool::acquire(std::size_t bytes) {
  if (bytes > physical_memory()) {
    throw OutOfMemory("the CPU device has no room for ", bytes, " bytes: this machine has ",
                      physical_memory());
  }
  const std::size_t wanted = round_up(bytes);
  std::byte* data = nullptr;
  if (ThreadCache::suits(wanted)) {
    if (ThreadCache* own = own_cache()) {
      data = own->take(wanted);
    }
  }
  if (!data) {
    data = find(wanted);
  }
  if (!data) {
    data = request_memory(wanted);
    if (!data) {
      release_cached();
      data = request_memory(wanted);
    }
    if (!data) {
      throw OutOfMemory("the CPU device has no room for ", bytes, " bytes more, beside ",
                        statistics().in_use);
    }
    const std::lock_guard lock(mutex_);
    count_use(wanted);
    statistics_.system_requests += 1;
    statistics_.peak = std::max(statistics_.peak, statistics_.in_use + statistics_.cached);
  }
  Block* block = new (std::nothrow) Block(data, wanted);
  if (block == nullptr) {
    give_back({wanted, data});
    throw std::bad_alloc();
  }
  return {block, [this](Block* unused) {
            give_back({unused->capacity(), unused->data()});
            delete unused;
          }};
}

std::byte* MemoryPool::find(std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  if (const auto after = free_.upper_bound(capacity);
      after != free_.begin() && std::prev(after)->first == capacity) {
    const auto last = std::prev(after);  // that was given back
    std::byte* data = last->second;
    free_.erase(last);
    statistics_.cached -= capacity;
    count_use(capacity);
    return data;
  }
  if (ThreadCache::suits(capacity)) {
    for (const auto& cache : thread_caches_) {
      if (std::byte* data = cache->take(capacity)) {
        return data;
      }
    }
  }
  return nullptr;
}

void MemoryPool::count_use(std::size_t bytes) {
  statistics_.in_use += bytes;
  most_in_use_ = std::max(most_in_use_, statistics_.in_use);
}

void MemoryPool::give_back(FreeBlock block) {
  std::optional<FreeBlock> rest = block;
  if (ThreadCache::suits(block.capacity)) {
    try {
      if (ThreadCache* own = own_cache()) {
        rest = own->put(block);
      }
    } catch (const std::bad_alloc&) {  // of a cache for this thread
    }
  }
  if (rest) {
    const std::lock_guard lock(mutex_);
    keep(*rest);
    trim();
  }
}

void MemoryPool::keep(FreeBlock block) {
  statistics_.in_use -= block.capacity;
  try {
    free_.emplace(block.capacity, block.data);
    statistics_.cached += block.capacity;
  } catch (const std::bad_alloc&) {  // called from destructors
    std::free(block.data);
  }
}

void MemoryPool::trim() {
  // As much as was ever in use at once, so that a step's worth survives between steps, and a floor
  // for small programs.
  const std::size_t limit = std::max(kSmallestCache, most_in_use_);
  while (statistics_.cached > limit) {
    const auto largest = std::prev(free_.end());
    statistics_.cached -= largest->first;
    std::free(largest->second);
    free_.erase(largest);
  }
}

MemoryStatistics MemoryPool::statistics() const {
  const std::lock_guard lock(mutex_);
  MemoryStatistics result = statistics_;
  for (const auto& cache : thread_caches_) {
    const std::size_t bytes = cache->bytes();
    result.in_use -= bytes;
    result.cached += bytes;
  }
  return result;
}

void MemoryPool::release_cached() {
  const std::lock_guard lock(mutex_);
  for (const auto& cache : thread_caches_) {
    cache->empty([&](const FreeBlock& block) { keep(block); });
  }
  for (const auto& [capacity, data] : free_) {
    std::free(data);
  }
  free_.clear();
  statistics_.cached = 0;
  most_in_use_ = statistics_.in_use;
}

std::shared_ptr<TemporaryHeap::Lease> TemporaryHeap::lease(std::size_t bytes) {
  std::shared_ptr<Block> block;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const std::shared_ptr<Block>& free) { return free->capacity() >= bytes; };
    const auto smaller = [&](const auto& a, const auto& b) {
      return fits(a) != fits(b) ? fits(a) : a->capacity() < b->capacity();
    };
    // Of equal ones that which was given back last: it is likely to be in a cache.
    const auto best = std::min_element(free_.rbegin(), free_.rend(), smaller);
    if (best != free_.rend() && fits(*best)) {
      block = std::move(*best);
      free_.erase(std::prev(best.base()));
    }
  }
  if (!block) {
    block = MemoryPool::instance().acquire(bytes);
  }
  return std::make_shared<Lease>(shared_from_this(), std::move(block));
}

void TemporaryHeap::give_back(std::shared_ptr<Block> block) {
  const std::lock_guard lock(mutex_);
  try {
    free_.push_back(std::move(block));
  } catch (const std::bad_alloc&) {  // called from destructors; the pool has it back
  }
}

}  // namespace mpsgrad::cpu
