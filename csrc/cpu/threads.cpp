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
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "cpu/placement.hpp"
#include "cpu/scratch.hpp"

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

thread_local bool inside_chunk = false;  // of a thread that is not to use the pool

constexpr int kSpins = 4000;  // longer than a hand-over takes, shorter than a time slice

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

// Chunks one after the other: begin up to, but without, end.
struct Run {
  Index begin = 0;
  Index end = 0;

  Index count() const { return end - begin; }
};

struct Job {
  Job(Chunk body, void* argument) : chunk(body), context(argument) {}

  Chunk chunk;
  void* context;
  std::atomic<bool> failed{false};
  std::exception_ptr error;
};

// A thread's stretch of a job with all that it needs to begin, on one cache line: lines that
// another core has written come one after the other, and each takes as long as a short chunk.
// Whoever claims chunks, the thread or one that helps it, reads the rest only then; it stays as it
// is until they are counted as done.
class alignas(64) Share {
 public:
  // By the caller of the pool, when the job before is over.
  void deal(Job& job, Run chunks, std::uint32_t generation) {
    job_ = &job;
    chunk_ = job.chunk;
    context_ = job.context;
    end_ = chunks.end;
    done_.store(0, std::memory_order_relaxed);
    left_.store(packed(generation, chunks.count()), std::memory_order_release);
  }

  std::uint32_t generation() const { return generation_of(left_.load(std::memory_order_acquire)); }

  // About `most` chunks of the job of this generation, for nobody is to come back for fewer; none
  // if all are claimed or the job is over.
  Run claim(std::uint32_t generation, Index most) {
    std::uint64_t seen = left_.load(std::memory_order_relaxed);
    for (;;) {
      const Index left = count_of(seen);
      if (left == 0 || generation_of(seen) != generation) {
        return {};
      }
      const Index claimed = left < 2 * most ? left : most;
      if (left_.compare_exchange_weak(seen, packed(generation, left - claimed),
                                      std::memory_order_acquire, std::memory_order_relaxed)) {
        return {end_ - left, end_ - left + claimed};
      }
    }
  }

  void run(Run chunks) const noexcept {
    for (Index i = chunks.begin; i < chunks.end; ++i) {
      try {
        chunk_(context_, i);
      } catch (...) {
        if (!job_->failed.exchange(true)) {
          job_->error = std::current_exception();
        }
      }
    }
  }

  void set_done(Index chunks) { done_.store(chunks, std::memory_order_release); }
  Index done() const { return done_.load(std::memory_order_acquire); }

 private:
  static std::uint64_t packed(std::uint32_t generation, Index count) {
    return std::uint64_t{generation} << 32 | static_cast<std::uint64_t>(count);
  }
  static std::uint32_t generation_of(std::uint64_t left) {
    return static_cast<std::uint32_t>(left >> 32);
  }
  static Index count_of(std::uint64_t left) { return static_cast<Index>(left & 0xffffffffU); }

  std::atomic<std::uint64_t> left_{0};  // the job's generation and how many chunks nobody claimed
  Index end_ = 0;
  Chunk chunk_ = nullptr;
  void* context_ = nullptr;
  Job* job_ = nullptr;
  std::atomic<Index> done_{0};  // how many chunks, of any share, its thread has run
};

constexpr Index kMostChunks = std::numeric_limits<std::uint32_t>::max();

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
      : shares_(static_cast<std::size_t>(threads)), sleepers_(static_cast<std::size_t>(threads)) {
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this, i] { loop(static_cast<std::size_t>(i)); });
      }
    } catch (const std::exception&) {  // the system has no more threads or memory: fewer will do
    }
  }

  ~Pool() {
    Job nothing(nullptr, nullptr);
    stopping_.store(true);
    ++generation_;
    for (Share& share : shares_) {
      share.deal(nothing, {}, generation_);
    }
    wake_sleepers();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return static_cast<int>(shares_.size()); }

  // At least one chunk for each. Without a lock: a worker that looks for work the moment it is
  // dealt would have to sleep for one.
  void run(Job& job, Index count) {
    const auto threads = static_cast<Index>(shares_.size());
    const auto dealt = [&](Index thread) { return (count * thread + threads - 1) / threads; };
    ++generation_;
    for (Index i = threads - 1; i > 0; --i) {
      shares_[static_cast<std::size_t>(i)].deal(job, {dealt(i), dealt(i + 1)}, generation_);
    }
    shares_[0].deal(job, {1, dealt(1)}, generation_);
    // Who goes to sleep at this moment may be missed: then the others do its share.
    if (sleeping_.load(std::memory_order_relaxed) > 0) {
      wake_sleepers();
    }
    Index done = work(0, generation_, {0, 1});
    for (int spin = 0; done + done_by_workers() < count; ++spin) {
      spin < kSpins ? pause_briefly() : std::this_thread::yield();
    }
  }

 private:
  // Runs the chunks, which the thread has claimed, and all that it can claim; returns how many.
  Index work(std::size_t thread, std::uint32_t generation, Run chunks) noexcept {
    Index done = 0;
    Claim claim;
    for (std::size_t turn = 0; turn < shares_.size(); ++turn) {
      Share& share = shares_[(thread + turn) % shares_.size()];
      const bool is_own = turn == 0;
      for (;; chunks = {}) {
        if (chunks.count() == 0) {
          chunks = share.claim(generation, is_own ? claim.chunks() : 1);
          if (chunks.count() == 0) {
            break;
          }
        }
        share.run(chunks);
        done += chunks.count();
        if (is_own) {
          claim.note_end();
        }
      }
    }
    order_streamed_stores();
    return done;
  }

  Index done_by_workers() const {
    Index done = 0;
    for (std::size_t i = 1; i < shares_.size(); ++i) {
      done += shares_[i].done();
    }
    return done;
  }

  void wake_sleepers() {
    {  // whoever is counted as sleeping, but has not looked at its share, does so first
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

  // Of the next job.
  std::uint32_t wait_for_other_than(std::uint32_t seen, const Share& share, Sleeper& self) {
    std::uint32_t now = seen;
    const auto is_other = [&] { return (now = share.generation()) != seen; };
    for (int spin = 0; spin < kSpins; ++spin) {
      if (is_other()) {
        return now;
      }
      pause_briefly();
    }
    {
      std::unique_lock lock(mutex_);
      self.asleep = true;
      sleeping_.fetch_add(1);
      wake_.wait(lock, is_other);
      sleeping_.fetch_sub(1);
      self.asleep = false;
    }
    self.placement.release(self.thread);
    return now;
  }

  void loop(std::size_t thread) {
    inside_chunk = true;
    Sleeper& self = sleepers_[thread];
    Share& share = shares_[thread];
    self.thread = pthread_self();
    for (std::uint32_t generation = 0;;) {
      generation = wait_for_other_than(generation, share, self);
      if (stopping_.load()) {
        return;
      }
      if (const Index done = work(thread, generation, {}); done > 0) {
        trim_thread_scratch();
        share.set_done(done);
      }
    }
  }

  std::vector<Share> shares_;     // of the job under way; the first is the caller's
  std::uint32_t generation_ = 0;  // of jobs
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
    pthread_atfork(nullptr, nullptr, [] {
      auto* own = new Shared;
      own->wanted.store(current.load()->wanted.load());
      current.store(own);
    });
  });
  return *current.load();
}

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
  if (count <= 1 || count > kMostChunks || wanted == 1 || inside_chunk || !lock.try_lock()) {
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
  Job job(chunk, context);
  inside_chunk = true;
  state.pool->run(job, count);
  inside_chunk = false;
  if (job.failed.load()) {
    std::rethrow_exception(job.error);
  }
}

}  // namespace mpsgrad::cpu
