// The legal transitions of command buffers, and the queue's limit on buffers under way.
#include "device/command_buffer.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/taken.hpp"
#include "device/buffer.hpp"

namespace mpsgrad {
namespace {

const char* status_name(CommandBufferStatus status) {
  constexpr const char* kNames[] = {"not enqueued", "enqueued",  "committed",
                                    "scheduled",    "completed", "failed"};
  return kNames[static_cast<int>(status)];
}

constexpr const char* kOthers =
    ": another thread is encoding into the command buffer; wait until that encode has returned";

std::exception_ptr failure_of(const Work& work) {
  if (work.status() != CommandBufferStatus::Error) {
    return nullptr;
  }
  return std::make_exception_ptr(CommandBufferError(
      text("CommandBuffer: execution failed: ", work.error_message()), work.error_code()));
}

}  // namespace

Predicate::Predicate(std::shared_ptr<Buffer> buffer, std::int64_t offset)
    : buffer_(std::move(buffer)), offset_(offset) {
  require(offset_ >= 0 && offset_ % 4 == 0,
          "Predicate: offset must be a multiple of 4 and not negative, got ", offset_);
  require(static_cast<std::size_t>(offset_) + 4 <= buffer_->size(), "Predicate: offset ", offset_,
          " leaves no room for a uint32 in a buffer of ", buffer_->size(), " bytes");
}

std::shared_ptr<CommandBuffer> CommandQueue::try_make_command_buffer() {
  check_usable();
  return find_in_the_way() ? nullptr : new_command_buffer();
}

bool CommandQueue::wait_for_room(std::chrono::milliseconds limit) {
  check_usable();
  if (const auto running = find_in_the_way()) {
    help(*running);
    running->wait_ended(limit);
  }
  return !find_in_the_way();
}

std::shared_ptr<Work> CommandQueue::find_in_the_way() {
  std::vector<std::shared_ptr<Work>> held;  // whose last one this may become: see take_out()
  const std::lock_guard lock(mutex_);
  std::erase_if(live_, [&](const std::weak_ptr<Work>& weak) {
    const auto& work = held.emplace_back(weak.lock());
    return !work || work->has_ended() || work->abandoned();
  });
  if (live_.size() < kMaximumBuffers) {
    return nullptr;
  }
  for (const auto& work : held) {
    if (work && !work->has_ended() && !work->abandoned() && !work->is_open()) {
      return work;
    }
  }
  fail<CommandBufferError>(
      "CommandQueue: ", kMaximumBuffers,
      " command buffers of this queue are neither committed nor released; commit or drop one "
      "before making another");
}

void CommandQueue::track(const std::shared_ptr<Work>& work) {
  const std::lock_guard lock(mutex_);
  live_.push_back(work);
}

CommandBuffer::CommandBuffer(std::shared_ptr<CommandQueue> queue)
    : queue_(std::move(queue)), work_(std::make_shared<Work>(queue_->clock())) {
  static std::atomic<std::uint64_t> last{0};
  serial_ = ++last;
  queue_->track(work_);
}

CommandBuffer::~CommandBuffer() = default;

void CommandBuffer::abandon_if_open() {
  if (work_->is_open()) {
    work_->abandon();
    device_abandon();
  }
}

CommandBufferStatus CommandBuffer::status() {
  const CommandBufferStatus status = work_->status();  // first: who is told of the end has seen it
  work_->observe();
  return status;
}

std::vector<std::shared_ptr<Work>> CommandBuffer::committed() const {
  const std::lock_guard lock(mutex_);
  return committed_;
}

std::exception_ptr CommandBuffer::error() {
  for (const auto& work : committed()) {
    if (auto failure = failure_of(*work)) {
      return failure;
    }
  }
  return nullptr;
}

void CommandBuffer::require_open(const char* call) const {
  require<CommandBufferError>(work_->is_open(), "CommandBuffer: ", call,
                              " is only legal before commit(); this buffer is ",
                              status_name(work_->status()));
}

bool CommandBuffer::is_others() const {
  const std::thread::id user = user_.load();
  return user != std::thread::id() && user != std::this_thread::get_id();
}

void CommandBuffer::require_encodable(const char* who) const {
  require<CommandBufferError>(!is_others(), who, kOthers);
  require<CommandBufferError>(work_->is_open(), who, ": the command buffer is already ",
                              status_name(work_->status()), "; encode into a new one");
}

void CommandBuffer::require_encodable_on(const std::shared_ptr<Device>& device,
                                         const char* who) const {
  require_encodable(who);
  require(this->device() == device, who, ": the command buffer is on another device");
}

void CommandBuffer::enqueue() {
  require<CommandBufferError>(!is_others(), "CommandBuffer: enqueue()", kOthers);
  require<CommandBufferError>(
      work_->status() == CommandBufferStatus::NotEnqueued,
      "CommandBuffer: enqueue() is only legal once, before commit(); this buffer is ",
      status_name(work_->status()));
  queue_->check_usable();
  device_enqueue();
  work_->mark_enqueued();
}

void CommandBuffer::begin_commit(const char* call) {
  require_open(call);
  require<CommandBufferError>(!is_others(), "CommandBuffer: ", call, kOthers);
  queue_->check_usable();
  {
    const std::lock_guard lock(mutex_);
    committed_.reserve(committed_.size() + 1);
  }
  if (work_->status() == CommandBufferStatus::NotEnqueued) {
    enqueue();
  }
  work_->mark_committed(shared_from_this());
  const std::lock_guard lock(mutex_);
  committed_.push_back(work_);
  was_committed_ = true;
}

void CommandBuffer::commit() {
  begin_commit("commit()");
  device_commit();
}

void CommandBuffer::commit_and_continue() {
  begin_commit("commit_and_continue()");
  device_commit_and_continue();
  auto next = std::make_shared<Work>(queue_->clock());
  queue_->track(next);
  {
    std::vector<std::shared_ptr<Work>> over;
    const std::lock_guard lock(mutex_);
    // Of older roots that have ended well nobody needs to hear again.
    over = take_out(committed_, [this](const auto& root) {
      return root != work_ && root->finished() && root->error_code() == 0 &&
             !root->has_handler_failure();
    });
    work_ = std::move(next);
  }
  has_work_ = false;
  device_new_root();
}

bool CommandBuffer::wait_until_scheduled(std::chrono::milliseconds limit) {
  std::shared_ptr<Work> root;
  {
    const std::lock_guard lock(mutex_);
    root = work_;
  }
  require<CommandBufferError>(
      !root->is_open(), "CommandBuffer: wait_until_scheduled() before commit() would never return");
  queue_->check_usable();
  queue_->help_at_exit(*root);
  return root->wait_scheduled(limit);
}

bool CommandBuffer::wait_until_completed(std::chrono::milliseconds limit) {
  std::vector<std::shared_ptr<Work>> roots;
  {
    const std::lock_guard lock(mutex_);
    require<CommandBufferError>(
        was_committed_, "CommandBuffer: wait_until_completed() before commit() would never return");
    require<CommandBufferError>(
        !work_->is_open() || !has_work_,
        "CommandBuffer: wait_until_completed() while work encoded after commit_and_continue() is "
        "not committed would never return");
    roots = committed_;
  }
  queue_->check_usable();
  for (const auto& root : roots) {
    queue_->help(*root);
    if (!root->wait_finished(limit)) {
      return false;
    }
  }
  for (const auto& root : roots) {
    if (const auto failure = failure_of(*root)) {
      std::rethrow_exception(failure);
    }
  }
  for (const auto& root : roots) {
    root->rethrow_handler_failure();
  }
  return true;
}

void CommandBuffer::add_scheduled_handler(Handler handler) {
  require_open("add_scheduled_handler()");
  work_->add_scheduled_handler(std::move(handler));
}

void CommandBuffer::add_completed_handler(Handler handler) {
  require_open("add_completed_handler()");
  work_->add_completed_handler(std::move(handler));
}

}  // namespace mpsgrad
