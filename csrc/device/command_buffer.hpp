// CommandQueue, CommandBuffer and Predicate (MTLCommandQueue, MPSCommandBuffer, MPSPredicate):
// which call is legal when. A device supplies what enqueue, commit and "start another root" do.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/work.hpp"

namespace mpsgrad {

class Buffer;
class CommandBuffer;
class Device;

// A kernel encoded while a predicate is set runs if the uint32 at `offset` is not 0 when the device
// reaches it.
class Predicate {
 public:
  Predicate(std::shared_ptr<Buffer> buffer, std::int64_t offset);
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  std::int64_t offset() const { return offset_; }

 private:
  std::shared_ptr<Buffer> buffer_;
  std::int64_t offset_;
};

class CommandQueue : public std::enable_shared_from_this<CommandQueue> {
 public:
  static constexpr std::size_t kMaximumBuffers =
      64;  // uncompleted at once, as Metal's default queue

  explicit CommandQueue(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  virtual ~CommandQueue() = default;

  const std::shared_ptr<Device>& device() const { return device_; }
  const std::shared_ptr<QueueClock>& clock() const { return clock_; }
  // Null while 64 buffers are under way; throws CommandBufferError if none of the 64 will ever
  // complete.
  std::shared_ptr<CommandBuffer> try_make_command_buffer();
  // Waits while 64 are, as long as `limit` at most; returns whether there is room.
  bool wait_for_room(std::chrono::milliseconds limit);
  void track(const std::shared_ptr<Work>& work);
  // Throws DeviceError if this process cannot use the queue: it was made before a fork().
  virtual void check_usable() const {}
  // A chance for a thread that is about to wait for some work to run it, and what comes before.
  virtual void help(const Work&) {}
  // The same for one that waits for less than the end: it runs the work only where nobody else
  // will.
  virtual void help_at_exit(const Work&) {}

  std::string label;

 protected:
  virtual std::shared_ptr<CommandBuffer> new_command_buffer() = 0;

 private:
  // One of 64 buffers under way, that will complete; null if there are fewer.
  std::shared_ptr<Work> find_in_the_way();

  std::shared_ptr<Device> device_;
  std::shared_ptr<QueueClock> clock_ = std::make_shared<QueueClock>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<Work>> live_;
};

class CommandBuffer : public std::enable_shared_from_this<CommandBuffer> {
 public:
  using Handler = Work::Handler;

  // While it lives, the buffer takes work and commits from this thread alone: for encodes that let
  // others run meanwhile, after require_encodable(). One that is made while another lives, as on a
  // callback's thread, takes its place until it ends.
  class Sole {
   public:
    explicit Sole(CommandBuffer& buffer)
        : buffer_(buffer), before_(buffer.user_.exchange(std::this_thread::get_id())) {}
    ~Sole() { buffer_.user_ = before_; }
    Sole(const Sole&) = delete;
    Sole& operator=(const Sole&) = delete;

   private:
    CommandBuffer& buffer_;
    std::thread::id before_;
  };

  explicit CommandBuffer(std::shared_ptr<CommandQueue> queue);
  virtual ~CommandBuffer();

  const std::shared_ptr<CommandQueue>& queue() const { return queue_; }
  const std::shared_ptr<Device>& device() const { return queue_->device(); }
  std::uint64_t serial() const { return serial_; }             // no other of the process has it
  const std::shared_ptr<Work>& work() const { return work_; }  // of the current root

  CommandBufferStatus status();
  std::exception_ptr error();  // null unless a root failed

  void enqueue();
  void commit();
  // The new root counts among the queue's 64: wait_for_room() first.
  void commit_and_continue();
  // Both wait for at most `limit` and tell whether that was enough.
  bool wait_until_scheduled(std::chrono::milliseconds limit);
  // For every committed root; throws CommandBufferError if one failed.
  bool wait_until_completed(std::chrono::milliseconds limit);
  void add_scheduled_handler(Handler handler);
  void add_completed_handler(Handler handler);

  // For whoever encodes: throws CommandBufferError unless work may still be added.
  void require_encodable(const char* who) const;
  // And std::invalid_argument if it is on another device.
  void require_encodable_on(const std::shared_ptr<Device>& device, const char* who) const;
  // Afterwards: nobody may wait for a buffer whose last root has work and was not committed.
  void note_encoded() { has_work_ = true; }

  std::shared_ptr<const Predicate> predicate;
  std::string label;

 protected:
  virtual void device_enqueue() = 0;
  virtual void device_commit() = 0;
  // The commit of commit_and_continue(): what is temporary must outlive it.
  virtual void device_commit_and_continue() { device_commit(); }
  virtual void device_new_root() = 0;
  virtual void device_abandon() {}
  void abandon_if_open();  // for destructors of device classes

 private:
  void require_open(const char* call) const;
  bool is_others() const;
  void begin_commit(const char* call);
  std::vector<std::shared_ptr<Work>> committed() const;

  std::shared_ptr<CommandQueue> queue_;
  std::uint64_t serial_;
  // Waiting threads look at the roots while another encodes.
  mutable std::mutex mutex_;
  std::shared_ptr<Work> work_;
  std::vector<std::shared_ptr<Work>> committed_;
  bool was_committed_ = false;
  std::atomic<bool> has_work_ = false;
  std::atomic<std::thread::id> user_;  // no thread: whoever comes
};

}  // namespace mpsgrad
