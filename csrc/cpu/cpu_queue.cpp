// The worker of a queue. Whoever waits may run the pending buffers itself: the order is the same,
// one hand-over less. Where waiting follows upon committing, the worker is not woken for every
// commit, for it would only take a processor from the pool's threads: it naps, and looks whether
// something was left to it.
#include "cpu/cpu_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errors.hpp"
#include "base/memory_limits.hpp"
#include "cpu/cpu_buffer.hpp"
#include "cpu/scratch.hpp"

namespace mpsgrad::cpu {
namespace {

constexpr int kErrorInternal = 1;     // MTLCommandBufferErrorInternal
constexpr int kErrorOutOfMemory = 8;  // MTLCommandBufferErrorOutOfMemory

// How late work may start that nobody waits for, after some that was waited for; and after how many
// naps without such work the worker sleeps until a commit wakes it.
constexpr std::chrono::microseconds kNap{500};
constexpr int kNaps = 20;

// Who waits so soon after a commit would have run its work as early as the worker does.
constexpr std::chrono::microseconds kSoon{50};

using Clock = std::chrono::steady_clock;
constexpr Clock::time_point kNever{};
Clock::time_point now() { return Clock::now(); }

// From the end of the process on, workers start nothing more; who waits runs the work itself.
std::atomic<bool> exiting{false};

// How many handlers are due in the process: it must not end under them.
class HandlerCount {
 public:
  void add_one() {
    const std::lock_guard lock(mutex_);
    ++due_;
  }
  void take_one() {
    const std::lock_guard lock(mutex_);
    due_ -= due_ > 0 ? 1 : 0;  // a forked child has none of its parent's
    changed_.notify_all();
  }
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return due_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int due_ = 0;
};

std::atomic<HandlerCount*> handlers{new HandlerCount};
HandlerCount& handler_count() { return *handlers.load(); }

// Counts forks, so that a queue whose worker stayed behind in the parent is recognised in the
// child, where no handler of the parent's is due.
std::atomic<int> fork_count{0};

int current_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      fork_count.fetch_add(1);
      handlers.store(new HandlerCount);
    });
  });
  return fork_count.load();
}

// True: completed handlers are due.
bool execute(Submission& submission) {
  int code = 0;
  std::string message;
  try {
    for (const Command& command : submission.commands) {
      command();
    }
  } catch (const OutOfMemory& error) {
    code = kErrorOutOfMemory;
    message = error.what();
  } catch (const std::bad_alloc&) {
    code = kErrorOutOfMemory;
    message = "out of memory";
  } catch (const std::exception& error) {
    code = kErrorInternal;
    message = error.what();
  } catch (...) {
    code = kErrorInternal;
    message = "unknown error";
  }
  // Before the end is announced: nothing of the work is held when a waiter returns.
  submission.commands.clear();
  trim_thread_scratch();
  return submission.work->complete(code, message);
}

}  // namespace

class QueueCore : public std::enable_shared_from_this<QueueCore> {
 public:
  bool usable() const { return current_process() == process_; }

  // Starts the worker, so that a commit cannot fail.
  void prepare() {
    const std::lock_guard lock(mutex_);
    if (!worker_started_) {
      try {
        std::thread([self = shared_from_this()] { self->loop(); }).detach();
      } catch (const std::system_error& error) {
        fail<DeviceError>("CommandQueue: cannot start a thread: ", error.what());
      }
      worker_started_ = true;
    }
  }

  void add(std::shared_ptr<Submission> submission) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(submission));
  }

  void commit(Submission& submission) {
    bool alone = false;
    bool napping = false;
    {
      const std::lock_guard lock(mutex_);
      submission.committed = true;
      alone = !running_ && pending_.front().get() == &submission;
      napping = napping_;
    }
    if (!napping) {
      wake_.notify_one();  // which may take longer than the work
    }
    committed_alone_.store(alone ? now() : kNever);
  }

  void remove(const Submission& submission) {
    {
      const std::lock_guard lock(mutex_);
      if (std::erase_if(pending_, [&](const auto& entry) { return entry.get() == &submission; }) ==
          0) {
        return;
      }
    }
    wake_.notify_one();
  }

  // Runs what is ready until `wanted` has ended, unless another thread is at it.
  void help(const Work& wanted) {
    {
      const std::lock_guard lock(mutex_);
      if (now() - committed_alone_.load() < kSoon) {
        waited_ = true;
      } else if (is_ready()) {
        napping_ = false;  // it could have begun
      }
    }
    std::unique_lock executing(executing_, std::defer_lock);
    const auto take = [&] {
      if (exiting.load()) {  // no worker will do it instead
        executing.lock();
        return true;
      }
      return executing.try_lock();
    };
    while (!wanted.has_ended() && take() && run_one(executing)) {
    }
    {
      const std::lock_guard lock(mutex_);
      handed_over_ = is_ready();
      if (!handed_over_) {
        return;
      }
    }
    wake_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
  }

  // Runs what is committed by now, but not what its handlers commit.
  void drain() {
    std::shared_ptr<Submission> last;
    {
      const std::lock_guard lock(mutex_);
      for (auto next = pending_.begin(); next != pending_.end() && (*next)->committed; ++next) {
        last = *next;
      }
    }
    wake_.notify_one();
    std::unique_lock executing(executing_);
    while (last && !last->work->has_ended() && run_one(executing)) {
      executing.lock();
    }
  }

 private:
  std::shared_ptr<Submission> front() {
    const std::lock_guard lock(mutex_);
    return is_ready() ? pending_.front() : nullptr;
  }

  // Runs the first submission if it is ready; before that, the scheduled handlers if it has some.
  // False: nothing is ready. `executing` is held on entry and not on return, nor while handlers
  // run: they may encode, commit and wait.
  bool run_one(std::unique_lock<std::mutex>& executing) {
    const auto submission = front();
    if (!submission) {
      executing.unlock();
      return false;
    }
    if (submission->work->begin()) {
      announce(submission->work, &Work::run_scheduled_handlers);
    } else {
      {
        const std::lock_guard lock(mutex_);
        pending_.pop_front();
        running_ = true;
      }
      const bool handlers_are_due = execute(*submission);
      running_ = false;
      if (handlers_are_due) {
        announce(submission->work, &Work::run_completed_handlers);
      }
    }
    executing.unlock();
    run_due_handlers();
    return true;
  }

  void announce(std::shared_ptr<Work> work, void (Work::*run)()) {
    handler_count().add_one();
    const std::lock_guard lock(mutex_);
    due_.emplace_back(std::move(work), run);
  }

  // Handlers of one queue run one after another, in the order of their work: whoever comes while
  // another thread is at it leaves them to that thread.
  void run_due_handlers() {
    std::unique_lock lock(mutex_);
    if (running_handlers_) {
      return;
    }
    running_handlers_ = true;
    while (!due_.empty()) {
      {
        const auto [work, run] = std::move(due_.front());
        due_.pop_front();
        lock.unlock();
        ((*work).*run)();
        handler_count().take_one();
      }  // the last reference to the work may end Python objects: not under the lock
      lock.lock();
    }
    running_handlers_ = false;
  }

  void loop() {
    int naps = 0;
    for (;;) {
      bool waited = false;
      {
        std::unique_lock lock(mutex_);
        if (naps > 0) {
          napping_ = true;
          wake_.wait_for(lock, kNap, [this] { return exiting.load() || handed_over_; });
          napping_ = false;
        } else {
          wake_.wait(lock, [this] { return stopping_ || exiting.load() || is_ready() || waited_; });
        }
        if (exiting.load() || (stopping_ && !is_ready())) {
          return;
        }
        handed_over_ = false;
        waited = std::exchange(waited_, false);
        naps = waited ? kNaps : std::max(0, naps - 1);
        if (!is_ready()) {
          continue;
        }
      }
      std::unique_lock executing(executing_, std::try_to_lock);
      if (!executing) {  // somebody helps, and may leave what comes now
        naps = kNaps;
      } else if (run_one(executing) && !waited) {
        naps = 0;
      }
    }
  }

  // With the mutex held.
  bool is_ready() const { return !pending_.empty() && pending_.front()->committed; }

  const int process_ = current_process();
  std::mutex mutex_;      // of everything below
  std::mutex executing_;  // held by the one thread that runs commands; taken before mutex_
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Submission>> pending_;
  std::deque<std::pair<std::shared_ptr<Work>, void (Work::*)()>> due_;  // handlers
  bool running_handlers_ = false;
  std::atomic<bool> running_{false};  // a submission is being executed
  // When the last commit was over, if there was no other work then.
  std::atomic<Clock::time_point> committed_alone_{kNever};
  bool napping_ = false;      // the worker will look without being woken
  bool waited_ = false;       // somebody has waited soon since the worker looked
  bool handed_over_ = false;  // who waited has left work to the worker
  bool worker_started_ = false;
  bool stopping_ = false;
};

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<QueueCore>> cores;
};

Registry& registry() {
  static auto* all = [] {
    static auto* made = new Registry;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { made->mutex.unlock(); });
    return made;
  }();
  return *all;
}

}  // namespace

CpuQueue::CpuQueue(std::shared_ptr<Device> device)
    : CommandQueue(std::move(device)), core_(std::make_shared<QueueCore>()) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.cores, [](const auto& core) { return core.expired(); });
  all.cores.push_back(core_);
}

CpuQueue::~CpuQueue() {
  if (core_->usable()) {
    core_->stop();
  }
}

void CpuQueue::check_usable() const {
  require<DeviceError>(
      core_->usable(),
      "CommandQueue: this queue was made before fork(); make a queue in the process that uses it");
}

void CpuQueue::help(const Work& wanted) { core_->help(wanted); }

void CpuQueue::help_at_exit(const Work& wanted) {
  if (exiting.load()) {
    core_->help(wanted);
  }
}

std::shared_ptr<CommandBuffer> CpuQueue::new_command_buffer() {
  return std::make_shared<CpuCommandBuffer>(std::static_pointer_cast<CpuQueue>(shared_from_this()));
}

void drain_all_queues() {
  exiting.store(true);
  std::vector<std::shared_ptr<QueueCore>> cores;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    for (const auto& weak : all.cores) {
      if (auto core = weak.lock(); core && core->usable()) {
        cores.push_back(std::move(core));
      }
    }
  }
  for (const auto& core : cores) {
    core->drain();
  }
  if (!cores.empty()) {
    handler_count().wait_for_none();
  }
}

CpuCommandBuffer::CpuCommandBuffer(std::shared_ptr<CpuQueue> queue)
    : CommandBuffer(std::move(queue)) {
  CpuCommandBuffer::device_new_root();
}

CpuCommandBuffer::~CpuCommandBuffer() { abandon_if_open(); }

QueueCore& CpuCommandBuffer::core() const { return static_cast<CpuQueue&>(*queue()).core(); }

void CpuCommandBuffer::record(Command command) {
  if (!predicate) {
    submission_->commands.push_back(std::move(command));
    return;
  }
  predicate->buffer()->note_use(work(), false);
  submission_->commands.push_back([held = predicate, command = std::move(command)] {
    std::uint32_t value = 0;
    std::memcpy(&value, memory_of(*held->buffer())->bytes() + held->offset(), sizeof(value));
    if (value != 0) {
      command();
    }
  });
}

void CpuCommandBuffer::device_enqueue() {
  core().prepare();
  core().add(submission_);
}

void CpuCommandBuffer::device_commit() { core().commit(*submission_); }

void CpuCommandBuffer::device_new_root() {
  submission_ = std::make_shared<Submission>();
  submission_->work = work();
}

void CpuCommandBuffer::device_abandon() {
  if (core().usable()) {
    core().remove(*submission_);
  }
}

}  // namespace mpsgrad::cpu
