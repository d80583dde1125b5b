// State machine of submitted work and the ledger of resource uses.
#include "device/work.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/taken.hpp"

namespace mpsgrad {

int Work::error_code() const {
  const std::lock_guard lock(mutex_);
  return error_code_;
}

std::string Work::error_message() const {
  const std::lock_guard lock(mutex_);
  return error_message_;
}

bool Work::observed() const {
  const std::uint64_t sequence = sequence_.load();
  return abandoned() || (sequence != 0 && clock_->observed.load() >= sequence);
}

void Work::observe() {
  if (!has_ended()) {
    return;
  }
  const std::uint64_t sequence = sequence_.load();
  std::uint64_t seen = clock_->observed.load();
  while (seen < sequence && !clock_->observed.compare_exchange_weak(seen, sequence)) {
  }
}

void Work::mark_enqueued() {
  const std::lock_guard lock(mutex_);
  sequence_ = clock_->next.fetch_add(1);
  status_ = CommandBufferStatus::Enqueued;
}

void Work::mark_committed(std::shared_ptr<void> owner) {
  const std::lock_guard lock(mutex_);
  status_ = CommandBufferStatus::Committed;
  if (!scheduled_handlers_.empty() || !completed_handlers_.empty()) {
    owner_ = std::move(owner);
  }
}

namespace {
thread_local bool inside_handler = false;
}  // namespace

bool Work::is_over() const {
  return status_ >= CommandBufferStatus::Completed && (due_handlers_ == 0 || inside_handler);
}

bool Work::begin() {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    if (status_ >= CommandBufferStatus::Scheduled) {
      return false;
    }
    status_ = CommandBufferStatus::Scheduled;
    due = !scheduled_handlers_.empty();
    due_handlers_ += due ? 1 : 0;
  }
  changed_.notify_all();
  return due;
}

bool Work::complete(int code, const std::string& message) {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    error_code_ = code;
    error_message_ = message;
    status_ = code == 0 ? CommandBufferStatus::Completed : CommandBufferStatus::Error;
    due = !completed_handlers_.empty();
    due_handlers_ += due ? 1 : 0;
  }
  changed_.notify_all();
  return due;
}

void Work::run_handlers(std::vector<Handler> handlers, std::shared_ptr<void> owner) {
  const bool outer = std::exchange(inside_handler, true);
  for (const Handler& handler : handlers) {
    handler();
  }
  // What they and their owner hold may need the interpreter, which a waiter may end.
  handlers.clear();
  owner.reset();
  inside_handler = outer;
  {
    const std::lock_guard lock(mutex_);
    --due_handlers_;
  }
  changed_.notify_all();
}

void Work::run_scheduled_handlers() {
  std::vector<Handler> handlers;
  std::shared_ptr<void> owner;
  {
    const std::lock_guard lock(mutex_);
    handlers.swap(scheduled_handlers_);
    owner = completed_handlers_.empty() ? std::move(owner_) : owner_;
  }
  run_handlers(std::move(handlers), std::move(owner));
}

void Work::run_completed_handlers() {
  std::vector<Handler> handlers;
  std::shared_ptr<void> owner;
  {
    const std::lock_guard lock(mutex_);
    handlers.swap(completed_handlers_);
    owner.swap(owner_);
  }
  observe();
  run_handlers(std::move(handlers), std::move(owner));
}

void Work::abandon() {
  std::vector<Handler> never_scheduled;  // handlers may hold what locks: they go without ours
  std::vector<Handler> never_completed;
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  never_scheduled.swap(scheduled_handlers_);
  never_completed.swap(completed_handlers_);
}

void Work::add_scheduled_handler(Handler handler) {
  const std::lock_guard lock(mutex_);
  scheduled_handlers_.push_back(std::move(handler));
}

void Work::add_completed_handler(Handler handler) {
  const std::lock_guard lock(mutex_);
  completed_handlers_.push_back(std::move(handler));
}

void Work::note_handler_failure(Handler rethrow) {
  const std::lock_guard lock(mutex_);
  if (!handler_failure_) {
    handler_failure_ = std::move(rethrow);
  }
}

bool Work::has_handler_failure() const {
  const std::lock_guard lock(mutex_);
  return handler_failure_ != nullptr;
}

void Work::rethrow_handler_failure() const {
  Handler rethrow;
  {
    const std::lock_guard lock(mutex_);
    rethrow = handler_failure_;
  }
  if (rethrow) {
    rethrow();
  }
}

bool Work::wait_scheduled(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit,
                           [this] { return status_ >= CommandBufferStatus::Scheduled; });
}

void Work::wait_ended(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return status_ >= CommandBufferStatus::Completed; });
}

void Work::wait_finished() {
  while (!wait_finished(std::chrono::minutes(1))) {
  }
}

bool Work::wait_finished(std::chrono::milliseconds limit) {
  {
    std::unique_lock lock(mutex_);
    if (!is_over() && !changed_.wait_for(lock, limit, [this] { return is_over(); })) {
      return false;
    }
  }
  observe();
  return true;
}

bool Work::finished() const {
  const std::lock_guard lock(mutex_);
  return is_over();
}

void Filled::by(const std::shared_ptr<Work>& work) {
  for_good_ = for_good_ || !work || (last_ && !last_->is_open());
  last_ = work;
}

void Filled::by_cpu() { for_good_ = true; }

void Accumulated::by(const std::shared_ptr<Work>& work) {
  std::erase_if(parts_, [](const auto& part) { return !part->is_open(); });
  if (work && (parts_.empty() || parts_.back() != work)) {
    parts_.push_back(work);
  }
}

bool Accumulated::lost() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->abandoned(); });
}

void UseLedger::add(const std::shared_ptr<Work>& work, bool writes) {
  Use last{nullptr, false};  // what ends with these does so without the lock
  std::vector<Use> over;
  const std::lock_guard lock(mutex_);
  if (!uses_.empty() && uses_.back().work == work) {
    uses_.back().writes |= writes;
    return;
  }
  if (uses_.size() == 1 && uses_.front().work->observed()) {  // mostly
    last = std::exchange(uses_.front(), {work, writes});
    return;
  }
  over = take_out(uses_, [](const Use& use) { return use.work->observed(); });
  const auto same =
      std::find_if(uses_.begin(), uses_.end(), [&](const Use& use) { return use.work == work; });
  if (same != uses_.end()) {
    same->writes |= writes;
  } else {
    uses_.push_back({work, writes});
  }
}

bool UseLedger::empty() const {
  const std::lock_guard lock(mutex_);
  return uses_.empty();
}

void UseLedger::require_readable(const std::string& what) const {
  const std::lock_guard lock(mutex_);
  for (const Use& use : uses_) {
    if (!use.writes || use.work->observed()) {
      continue;
    }
    require<std::runtime_error>(
        !use.work->is_open(), what,
        " is written by a command buffer that has not been committed; commit it and call "
        "wait_until_completed() first");
    fail<std::runtime_error>(what,
                             " is written by a command buffer that nobody has waited for; call its "
                             "wait_until_completed() first");
  }
}

void UseLedger::require_writable(const std::string& what) const {
  const std::lock_guard lock(mutex_);
  for (const Use& use : uses_) {
    require<std::runtime_error>(
        use.work->is_open() || use.work->observed(), what,
        " is in use by a committed command buffer that nobody has waited for; call its "
        "wait_until_completed() first");
  }
}

}  // namespace mpsgrad
