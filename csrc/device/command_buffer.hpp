// CommandQueue, CommandBuffer and Predicate (MTLCommandQueue, MPSCommandBuffer, MPSPredicate):
// which call is legal when. A device supplies what enqueue, commit and "start another root" do.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <string>
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
  // Waits while 64 buffers are under way; throws CommandBufferError if none of the 64 will ever
  // complete.
  std::shared_ptr<CommandBuffer> make_command_buffer();
  void track(const std::shared_ptr<Work>& work);

  std::string label;

 protected:
  virtual std::shared_ptr<CommandBuffer> new_command_buffer() = 0;

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<QueueClock> clock_ = std::make_shared<QueueClock>();
  std::mutex mutex_;
  std::vector<std::weak_ptr<Work>> live_;
};

class CommandBuffer : public std::enable_shared_from_this<CommandBuffer> {
 public:
  using Handler = Work::Handler;

  explicit CommandBuffer(std::shared_ptr<CommandQueue> queue);
  virtual ~CommandBuffer();

  const std::shared_ptr<CommandQueue>& queue() const { return queue_; }
  const std::shared_ptr<Device>& device() const { return queue_->device(); }
  const std::shared_ptr<Work>& work() const { return work_; }  // of the current root

  CommandBufferStatus status();
  std::exception_ptr error();  // null unless a root failed

  void enqueue();
  void commit();
  void commit_and_continue();
  void wait_until_scheduled();
  // Waits for every committed root; throws CommandBufferError if one failed.
  void wait_until_completed();
  void add_scheduled_handler(Handler handler);
  void add_completed_handler(Handler handler);

  // For whoever encodes: throws CommandBufferError unless work may still be added, and remembers
  // that some was.
  void require_encodable(const char* who) const;
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
  // A chance for the waiting thread to run pending work itself.
  virtual void device_help() {}
  void abandon_if_open();  // for destructors of device classes

 private:
  void require_open(const char* call) const;
  void begin_commit(const char* call);

  std::shared_ptr<CommandQueue> queue_;
  std::shared_ptr<Work> work_;
  std::vector<std::shared_ptr<Work>> committed_;
  bool has_work_ = false;
};

}  // namespace mpsgrad
