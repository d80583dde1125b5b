// Command queue of the CPU device: encoding records closures, a worker runs them in order after
// commit.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cpu/memory.hpp"
#include "device/command_buffer.hpp"

namespace mpsgrad::cpu {

using Command = std::function<void()>;

struct Submission {  // one root command buffer
  std::shared_ptr<Work> work;
  std::vector<Command> commands;
  bool committed = false;  // guarded by the queue's mutex
};

class QueueCore;  // what the worker thread shares with the queue

class CpuQueue final : public CommandQueue {
 public:
  explicit CpuQueue(std::shared_ptr<Device> device);
  ~CpuQueue() override;
  void check_usable() const override;
  void help(const Work& wanted) override;
  void help_at_exit(const Work& wanted) override;
  QueueCore& core() { return *core_; }

 protected:
  std::shared_ptr<CommandBuffer> new_command_buffer() override;

 private:
  std::shared_ptr<QueueCore> core_;
};

class CpuCommandBuffer final : public CommandBuffer {
 public:
  explicit CpuCommandBuffer(std::shared_ptr<CpuQueue> queue);
  ~CpuCommandBuffer() override;

  // Adds a command; under a predicate it runs only if the predicate holds when its turn comes.
  void record(Command command);
  // Adds a command that no predicate can skip.
  void record_always(Command command) { submission_->commands.push_back(std::move(command)); }
  TemporaryHeap& heap() { return *heap_; }

 protected:
  void device_enqueue() override;
  void device_commit() override;
  void device_new_root() override;
  void device_abandon() override;

 private:
  QueueCore& core() const;
  std::shared_ptr<Submission> submission_;
  std::shared_ptr<TemporaryHeap> heap_ = std::make_shared<TemporaryHeap>();
};

// Blocks until everything committed on any queue has run: for the end of the process. From then on
// work runs only in threads that wait for it.
void drain_all_queues();

}  // namespace mpsgrad::cpu
