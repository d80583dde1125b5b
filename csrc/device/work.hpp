// What happens to work after it has been encoded: one Work is the life of one MTLCommandBuffer on
// either device, and a UseLedger remembers which Works touch a resource, so that memory is handed
// to the CPU only when nobody else uses it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mpsgrad {

enum class CommandBufferStatus : int {
  NotEnqueued = 0,
  Enqueued = 1,
  Committed = 2,
  Scheduled = 3,
  Completed = 4,
  Error = 5
};

// Buffers of one queue complete in enqueue order, so having seen one complete is having seen all
// before it.
struct QueueClock {
  std::atomic<std::uint64_t> next{1};
  std::atomic<std::uint64_t> observed{0};
};

class Work {
 public:
  using Handler = std::function<void()>;

  explicit Work(std::shared_ptr<QueueClock> clock) : clock_(std::move(clock)) {}

  CommandBufferStatus status() const { return status_.load(); }
  bool is_open() const { return status() <= CommandBufferStatus::Enqueued; }
  bool has_ended() const { return status() >= CommandBufferStatus::Completed; }
  int error_code() const;
  std::string error_message() const;

  // True once the program has seen the work end (it waited, or polled the status), or the work will
  // never run. Memory is exchanged with the CPU on this, not on completion itself: so a missing
  // wait fails every time.
  bool observed() const;
  void observe();

  void mark_enqueued();
  // `owner`, what the handlers are about, lives until they have run.
  void mark_committed(std::shared_ptr<void> owner);
  // The work starts, and has run (code 0 is success). True: handlers are due, and whoever waits for
  // the work waits for them as well.
  bool begin();
  bool complete(int code, const std::string& message);
  void run_scheduled_handlers();
  void run_completed_handlers();
  // The buffer was dropped without a commit: its work never runs.
  void abandon();
  bool abandoned() const { return abandoned_.load(); }

  void add_scheduled_handler(Handler handler);
  void add_completed_handler(Handler handler);
  bool wait_scheduled(std::chrono::milliseconds limit);
  void wait_ended(std::chrono::milliseconds limit);  // without the handlers
  // Waits for the end and for the handlers; a thread inside a handler waits for the end alone.
  // False: `limit` has passed.
  bool wait_finished(std::chrono::milliseconds limit);
  void wait_finished();
  bool finished() const;
  // What went wrong in a completed handler: `rethrow` throws it, for whoever waits. The first
  // stays.
  void note_handler_failure(Handler rethrow);
  bool has_handler_failure() const;
  void rethrow_handler_failure() const;

 private:
  bool is_over() const;  // for a waiter on this thread; with the mutex held
  void run_handlers(std::vector<Handler> handlers, std::shared_ptr<void> owner);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Read without the mutex, but written with it: each encode asks several times.
  std::atomic<CommandBufferStatus> status_{CommandBufferStatus::NotEnqueued};
  std::atomic<bool> abandoned_{false};
  std::atomic<std::uint64_t> sequence_{0};  // position in the queue, from 1; 0 while not enqueued
  int error_code_ = 0;
  std::string error_message_;
  int due_handlers_ = 0;  // kinds of handlers that are due and have not returned
  std::vector<Handler> scheduled_handlers_;
  std::vector<Handler> completed_handlers_;
  Handler handler_failure_;
  std::shared_ptr<void> owner_;
  std::shared_ptr<QueueClock> clock_;
};

// Whether an encode has filled something. One on a command buffer that was dropped has not.
class Filled {
 public:
  void by(const std::shared_ptr<Work>& work);  // null: the work has completed, and is gone
  void by_cpu();
  explicit operator bool() const { return for_good_ || (last_ && !last_->abandoned()); }

 private:
  bool for_good_ = false;
  std::shared_ptr<Work> last_;  // null: none has
};

// The same of what several encodes have added up: it is lost with any of them.
class Accumulated {
 public:
  void start() { parts_.clear(); }
  void by(const std::shared_ptr<Work>& work);  // null: as for Filled
  bool lost() const;

 private:
  std::vector<std::shared_ptr<Work>> parts_;  // that were not committed when the last one came
};

class UseLedger {
 public:
  void add(const std::shared_ptr<Work>& work, bool writes);
  bool empty() const;
  // Throw std::runtime_error naming `what` while unobserved work writes it (reading), or runs on it
  // (writing).
  void require_readable(const std::string& what) const;
  void require_writable(const std::string& what) const;

 private:
  struct Use {
    std::shared_ptr<Work> work;
    bool writes;
  };
  mutable std::mutex mutex_;
  std::vector<Use> uses_;
};

}  // namespace mpsgrad
