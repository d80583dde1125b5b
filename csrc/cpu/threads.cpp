// Pool of threads that spin briefly, then sleep. Each has a stretch of the chunks of its own, the
// same one for the same count of chunks, and helps the others when it is done: what a kernel leaves
// in a core's cache is where the next kernel's chunks find it.
#include "cpu/threads.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "cpu/placement.hpp"

namespace mpsgrad::cpu {
namespace {

int default_thread_count() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Of a thread, before another may look: stores past the caches are ordered by nothing else.
inline void order_streamed_stores() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

constexpr int kSpins = 4000;  // longer than a hand-over takes, shorter than a time slice

// The chunks that one thread starts with, on a cache line of their own.
struct alignas(64) Stretch {
  std::atomic<Index> next{0};
  Index end = 0;
};

// How many chunks of its own stretch a thread claims at a time. A claim waits until everything that
// the thread has stored is in its cache, a quarter of a microsecond: so of chunks that take little
// longer it claims several, as many as nobody minds to leave to it.
class Claim {
 public:
  Index chunks() const { return chunks_; }

  void note_end() {
    const Clock::time_point now = Clock::now();
    if (now - begun_ < kShort) {
      chunks_ = std::min(2 * chunks_, kMost);
    }
    begun_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kShort{2};
  static constexpr Index kMost = 8;

  Index chunks_ = 1;
  Clock::time_point begun_ = Clock::now();
};

struct Job {
  Job(Chunk body, void* argument, Index chunks) : chunk(body), context(argument), count(chunks) {}

  Chunk chunk;
  void* context;
  Index count;
  std::vector<Stretch>* stretches = nullptr;
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  void deal(std::vector<Stretch>& to) {
    const auto threads = static_cast<Index>(to.size());
    for (Index i = 0; i < threads; ++i) {
      Stretch& stretch = to[static_cast<std::size_t>(i)];
      stretch.next.store(count * i / threads, std::memory_order_relaxed);
      stretch.end = count * (i + 1) / threads;
    }
    stretches = &to;
  }

  void work(std::size_t thread) noexcept {
    const std::size_t threads = stretches->size();
    Claim claim;
    for (std::size_t turn = 0; turn < threads; ++turn) {
      Stretch& stretch = (*stretches)[(thread + turn) % threads];
      const bool is_own = turn == 0;
      for (;;) {
        const Index chunks = is_own ? claim.chunks() : 1;
        const Index first = stretch.next.fetch_add(chunks);
        const Index last = std::min(first + chunks, stretch.end);
        if (first >= last) {
          break;
        }
        for (Index i = first; i < last; ++i) {
          run(i);
        }
        if (is_own) {
          claim.note_end();
        }
      }
    }
    order_streamed_stores();
  }

  void run(Index i) noexcept {
    try {
      chunk(context, i);
    } catch (...) {
      if (!failed.exchange(true)) {
        error = std::current_exception();
      }
    }
  }
};

// A worker that may sleep. `asleep` is guarded by the pool's lock; while it is true, `placement` is
// the waker's.
struct Sleeper {
  pthread_t thread{};
  bool asleep = false;
  Placement placement;
};

class Pool {
 public:
  explicit Pool(int threads)
      : size_(threads),
        stretches_(static_cast<std::size_t>(threads)),
        sleepers_(static_cast<std::size_t>(threads)) {
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this, i] { loop(static_cast<std::size_t>(i)); });
      }
    } catch (const std::system_error&) {  // the system has no more threads: fewer will do
    }
  }

  ~Pool() {
    stopping_.store(true);
    announce();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Without a lock: a worker that looks for work the moment it is announced would have to sleep for
  // one. Either it is seen to be active, and waited for, or it sees that the job is over.
  void run(Job& job) {
    job.deal(stretches_);
    job_.store(&job);
    announce();
    job.work(0);
    job_.store(nullptr);  // nobody may join any more; those inside finish their chunk
    for (int spin = 0; active_.load() > 0; ++spin) {
      spin < kSpins ? pause_briefly() : std::this_thread::yield();
    }
  }

 private:
  void announce() {
    generation_.fetch_add(1);
    if (sleeping_.load() > 0) {
      {  // whoever is counted as sleeping, but has not looked at the generation, does so first
        const std::lock_guard lock(mutex_);
        const int here = current_processor();
        for (Sleeper& sleeper : sleepers_) {
          if (sleeper.asleep) {
            sleeper.placement.keep_off(here, sleeper.thread);
          }
        }
      }
      wake_.notify_all();
    }
  }

  void wait_for_more_than(std::uint64_t seen, Sleeper& self) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_relaxed) != seen) {
        return;
      }
      pause_briefly();
    }
    {
      std::unique_lock lock(mutex_);
      self.asleep = true;
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleeping_.fetch_sub(1);
      self.asleep = false;
    }
    self.placement.release(self.thread);
  }

  void loop(std::size_t thread) {
    Sleeper& self = sleepers_[thread];
    self.thread = pthread_self();
    for (std::uint64_t seen = 0;;) {
      wait_for_more_than(seen, self);
      seen = generation_.load();
      if (stopping_.load()) {
        return;
      }
      active_.fetch_add(1);
      if (Job* job = job_.load()) {
        job->work(thread);
      }
      active_.fetch_sub(1);
    }
  }

  const int size_;
  std::vector<Stretch> stretches_;            // of the job under way
  std::atomic<std::uint64_t> generation_{0};  // of jobs
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> active_{0};  // workers that may be inside the job
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // of those who sleep
  std::vector<Sleeper> sleepers_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
  std::vector<std::thread> workers_;
};

struct Shared {
  std::mutex running;  // held by the one job that has the pool
  std::atomic<int> wanted{default_thread_count()};
  std::unique_ptr<Pool> pool;  // guarded by `running`
};

// Threads do not survive fork(): the child starts with a fresh pool and leaves the parent's memory
// alone.
std::atomic<Shared*> current{nullptr};

Shared& shared() {
  static std::once_flag once;
  std::call_once(once, [] {
    current.store(new Shared);
    pthread_atfork(nullptr, nullptr, [] { current.store(new Shared); });
  });
  return *current.load();
}

thread_local bool inside_chunk = false;

constexpr int kMostThreads = 1024;

}  // namespace

int thread_count() { return shared().wanted.load(); }

void set_thread_count(int count) {
  require(count >= 1, "set_num_threads: count must be at least 1, got ", count);
  require(count <= kMostThreads, "set_num_threads: count must be at most ", kMostThreads, ", got ",
          count);
  shared().wanted.store(count);
}

void run_chunks(Index count, Chunk chunk, void* context) {
  Shared& state = shared();
  const int wanted = state.wanted.load();
  std::unique_lock lock(state.running, std::defer_lock);
  if (count <= 1 || wanted == 1 || inside_chunk || !lock.try_lock()) {
    for (Index i = 0; i < count; ++i) {
      chunk(context, i);
    }
    order_streamed_stores();
    return;
  }
  if (!state.pool || state.pool->size() != wanted) {
    state.pool.reset();
    state.pool = std::make_unique<Pool>(wanted);
  }
  struct Call {
    Chunk chunk;
    void* context;
  } call{chunk, context};
  Job job{[](void* raw, Index index) {
            const Call& inner = *static_cast<Call*>(raw);
            inside_chunk = true;
            try {
              inner.chunk(inner.context, index);
            } catch (...) {
              inside_chunk = false;
              throw;
            }
            inside_chunk = false;
          },
          &call, count};
  state.pool->run(job);
  if (job.failed.load()) {
    std::rethrow_exception(job.error);
  }
}

}  // namespace mpsgrad::cpu
