// The worker of a queue. Whoever waits may run the pending buffers itself: the order is the same,
// one hand-over less.
#include "cpu/cpu_queue.hpp"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/errors.hpp"
#include "device/buffer.hpp"

namespace mpsgrad::cpu {
namespace {

constexpr int kErrorInternal = 1;     // MTLCommandBufferErrorInternal
constexpr int kErrorOutOfMemory = 8;  // MTLCommandBufferErrorOutOfMemory

// Counts forks, so that a queue whose worker stayed behind in the parent is recognised in the
// child.
std::atomic<int> fork_count{0};

int current_process() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); }); });
  return fork_count.load();
}

void run(Submission& submission) {
  Work& work = *submission.work;
  work.mark_scheduled();
  int code = 0;
  std::string message;
  try {
    for (const Command& command : submission.commands) {
      command();
    }
  } catch (const std::bad_alloc&) {
    code = kErrorOutOfMemory;
    message = "out of memory";
  } catch (const std::exception& error) {
    code = kErrorInternal;
    message = error.what();
  }
  submission.commands
      .clear();  // before the end is announced: nothing of the work is held when a waiter returns
  work.finish(code, message);
}

}  // namespace

class QueueCore : public std::enable_shared_from_this<QueueCore> {
 public:
  void add(std::shared_ptr<Submission> submission) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(submission));
  }

  void commit(Submission& submission) {
    require<DeviceError>(
        current_process() == process_,
        "CommandQueue: this queue was made before fork(); make the device and its queues in the "
        "process that uses them");
    {
      const std::lock_guard lock(mutex_);
      submission.committed = true;
      if (!worker_started_) {
        worker_started_ = true;
        std::thread([self = shared_from_this()] { self->loop(); }).detach();
      }
    }
    wake_.notify_one();
  }

  void remove(const Submission& submission) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(pending_, [&](const auto& entry) { return entry.get() == &submission; });
    }
    wake_.notify_one();
  }

  // Runs what is ready, unless another thread is at it.
  void help() {
    if (const std::unique_lock executing(executing_, std::try_to_lock); executing) {
      run_ready();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
  }

  void drain() {
    const std::lock_guard executing(executing_);
    run_ready();
  }

 private:
  std::shared_ptr<Submission> take_ready() {
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || !pending_.front()->committed) {
      return nullptr;
    }
    auto submission = std::move(pending_.front());
    pending_.pop_front();
    return submission;
  }

  void run_ready() {
    while (const auto submission = take_ready()) {
      run(*submission);
    }
  }

  void loop() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] {
          return stopping_ || (!pending_.empty() && pending_.front()->committed);
        });
        if (stopping_ && (pending_.empty() || !pending_.front()->committed)) {
          return;
        }
      }
      const std::lock_guard executing(executing_);
      run_ready();
    }
  }

  const int process_ = current_process();
  std::mutex mutex_;      // of everything below
  std::mutex executing_;  // held by the one thread that runs submissions; taken before mutex_
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Submission>> pending_;
  bool worker_started_ = false;
  bool stopping_ = false;
};

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<QueueCore>> cores;
};

Registry& registry() {
  static auto* all = new Registry;
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

CpuQueue::~CpuQueue() { core_->stop(); }

std::shared_ptr<CommandBuffer> CpuQueue::new_command_buffer() {
  return std::make_shared<CpuCommandBuffer>(std::static_pointer_cast<CpuQueue>(shared_from_this()));
}

void drain_all_queues() {
  std::vector<std::shared_ptr<QueueCore>> cores;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    for (const auto& weak : all.cores) {
      if (auto core = weak.lock()) {
        cores.push_back(std::move(core));
      }
    }
  }
  for (const auto& core : cores) {
    core->drain();
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
  predicate->buffer()->uses().add(work(), false);
  submission_->commands.push_back([held = predicate, command = std::move(command)] {
    std::uint32_t value = 0;
    std::memcpy(&value, held->buffer()->device_bytes() + held->offset(), sizeof(value));
    if (value != 0) {
      command();
    }
  });
}

void CpuCommandBuffer::device_enqueue() { core().add(submission_); }

void CpuCommandBuffer::device_commit() { core().commit(*submission_); }

void CpuCommandBuffer::device_new_root() {
  submission_ = std::make_shared<Submission>();
  submission_->work = work();
}

void CpuCommandBuffer::device_abandon() { core().remove(*submission_); }

void CpuCommandBuffer::device_help() { core().help(); }

}  // namespace mpsgrad::cpu
