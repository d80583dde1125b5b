// Command queue and command buffers of the Metal device.
#include <algorithm>
#include <system_error>
#include <thread>

#include "metal/metal_device.hpp"
#include "metal/metal_objects.hpp"

// MPS may commit a command buffer of this class and go on with a new root, as its graphs do while
// they encode (MPSCommandBuffer.h, MPSNNGraph.h). What it commits has none of our handlers and
// overtakes what was enqueued before, and cannot be dropped any more. So only we do that.
@interface MpsgradCommandBuffer : MPSCommandBuffer
- (void)mpsgradCommitAndContinue;
@end

@implementation MpsgradCommandBuffer
- (void)commitAndContinue {
}
- (void)mpsgradCommitAndContinue {
  [super commitAndContinue];
}
@end

namespace mpsgrad::metal {
namespace {

// Works that Metal has been given and that may still run.
struct InFlight {
  std::mutex mutex;
  std::vector<std::weak_ptr<Work>> works;
};

InFlight& in_flight() {
  static auto* all = new InFlight;
  return *all;
}

void note_in_flight(const std::shared_ptr<Work>& work) {
  InFlight& all = in_flight();
  std::vector<std::shared_ptr<Work>> held;  // whose last one this may become: see take_out()
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.works, [&](const std::weak_ptr<Work>& weak) {
    const auto& other = held.emplace_back(weak.lock());
    return !other || other->finished();
  });
  all.works.push_back(work);
}

NSString* to_ns(const std::string& string) {
  return [NSString stringWithUTF8String:string.c_str()];
}

// Owned by the caller; nil if there is no room for it.
MPSCommandBuffer* new_buffer(id<MTLCommandQueue> queue) {
  const id<MTLCommandBuffer> root = [queue commandBuffer];
  return root == nil ? nil : [[MpsgradCommandBuffer alloc] initWithCommandBuffer:root];
}

// Code 0: it has not failed.
std::pair<int, std::string> failure_of(id<MTLCommandBuffer> done) {
  if (done.status != MTLCommandBufferStatusError) {
    return {};
  }
  NSError* error = done.error;
  return {error != nil && error.code != 0 ? static_cast<int>(error.code)
                                          : static_cast<int>(MTLCommandBufferErrorInternal),
          error != nil ? [[error localizedDescription] UTF8String] : "unknown error"};
}

}  // namespace

void wait_for_all() {
  std::vector<std::weak_ptr<Work>> works;
  {
    InFlight& all = in_flight();
    const std::lock_guard lock(all.mutex);
    works.swap(all.works);
  }
  for (const auto& weak : works) {
    if (const auto work = weak.lock()) {
      work->wait_finished();
    }
  }
}

// ---- handlers

// With the mutex held.
bool HandlerThread::start() {
  try {
    if (!started_) {
      std::thread([self = shared_from_this()] { self->loop(); }).detach();
    }
    started_ = true;
  } catch (const std::system_error&) {
    NSLog(@"mpsgrad: no thread for handlers; they run where Metal calls back");
  }
  return started_;
}

void HandlerThread::hand_over(std::shared_ptr<Work> work, Run run) {
  {
    const std::lock_guard lock(mutex_);
    if (start()) {
      due_.emplace_back(std::move(work), run);
      changed_.notify_one();
      return;
    }
  }
  ((*work).*run)();
}

void HandlerThread::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

void HandlerThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !due_.empty(); });
    if (due_.empty()) {
      return;
    }
    auto [work, run] = std::move(due_.front());
    due_.pop_front();
    lock.unlock();
    {
      const PoolScope pool;
      ((*work).*run)();
      work.reset();
    }
    lock.lock();
  }
}

// ---- queue

// Our own limit is the lower one, so that Metal never blocks: buffers that were dropped may linger.
MetalQueue::MetalQueue(const std::shared_ptr<MetalDeviceBase>& device)
    : CommandQueue(device),
      queue_(Retained<id<MTLCommandQueue>>::adopt(
          [device->get() newCommandQueueWithMaxCommandBufferCount:2 * kMaximumBuffers])) {
  require<DeviceError>(static_cast<bool>(queue_), "CommandQueue: the device could not make one");
}

MetalQueue::~MetalQueue() { handlers_->stop(); }

std::shared_ptr<CommandBuffer> MetalQueue::new_command_buffer() {
  const PoolScope pool;
  queue_.get().label = label.empty() ? nil : to_ns(label);
  return std::make_shared<MetalCommandBuffer>(
      std::static_pointer_cast<MetalQueue>(shared_from_this()), queue_.get());
}

void MetalQueue::hand_over(Submission& submission) {
  note_in_flight(submission.work);
  [submission.buffer.get() commit];
}

void MetalQueue::hand_over_ready() {
  while (!order_.empty() && order_.front()->committed) {
    hand_over(*order_.front());
    order_.pop_front();
  }
}

void MetalQueue::enqueue(std::shared_ptr<Submission> submission) {
  const std::lock_guard lock(mutex_);
  order_.push_back(std::move(submission));
}

void MetalQueue::commit(Submission& submission) {
  const std::lock_guard lock(mutex_);
  submission.committed = true;
  if (submission.enqueued_on_metal) {  // Metal keeps its place
    std::erase_if(order_, [&](const auto& entry) { return entry.get() == &submission; });
    hand_over(submission);
  }
  hand_over_ready();
}

// With the mutex held. What is before a submission gets its place from Metal.
void MetalQueue::settle_before(const Submission& submission) {
  const auto own = std::find_if(order_.begin(), order_.end(),
                                [&](const auto& entry) { return entry.get() == &submission; });
  std::for_each(order_.begin(), own, [this](const auto& earlier) {
    if (earlier->enqueued_on_metal) {
      return;
    }
    if (earlier->committed) {
      hand_over(*earlier);
    } else {
      [earlier->buffer.get() enqueue];
    }
    earlier->enqueued_on_metal = true;
  });
}

// This one cannot wait here, because its temporaries move on as Metal commits it.
void MetalQueue::commit_and_continue(Submission& submission) {
  const std::lock_guard lock(mutex_);
  settle_before(submission);
  note_in_flight(submission.work);
  [static_cast<MpsgradCommandBuffer*>(submission.buffer.get()) mpsgradCommitAndContinue];
  submission.committed = true;
  std::erase_if(order_, [&](const auto& entry) {
    return entry.get() == &submission || (entry->committed && entry->enqueued_on_metal);
  });
  hand_over_ready();
}

void MetalQueue::abandon(const Submission& submission) {
  const std::lock_guard lock(mutex_);
  std::erase_if(order_, [&](const auto& entry) { return entry.get() == &submission; });
  if (submission.enqueued_on_metal) {  // Metal would wait for it for ever
    [submission.buffer.get() commit];
  }
  hand_over_ready();
}

// ---- command buffers

MetalCommandBuffer::MetalCommandBuffer(std::shared_ptr<MetalQueue> queue,
                                       id<MTLCommandQueue> metal_queue)
    : CommandBuffer(std::move(queue)),
      buffer_(Retained<MPSCommandBuffer*>::adopt(new_buffer(metal_queue))) {
  require<DeviceError>(static_cast<bool>(buffer_), "CommandBuffer: the queue could not make one");
  MetalCommandBuffer::device_new_root();
}

MetalCommandBuffer::~MetalCommandBuffer() {
  const PoolScope pool;
  abandon_if_open();
  kept_ = {};
  buffer_ = {};
  submission_.reset();
}

MetalQueue& MetalCommandBuffer::own_queue() const { return static_cast<MetalQueue&>(*queue()); }

MPSCommandBuffer* MetalCommandBuffer::for_kernel() {
  if (current_predicate_ != predicate) {
    if (predicate) {
      auto& buffer = as<MetalBuffer>(*predicate->buffer());
      buffer_.get().predicate =
          [MPSPredicate predicateWithBuffer:buffer.get()
                                     offset:static_cast<NSUInteger>(predicate->offset())];
    } else {
      buffer_.get().predicate = nil;
    }
    current_predicate_ = predicate;
  }
  if (predicate) {
    auto& buffer = as<MetalBuffer>(*predicate->buffer());
    buffer.note_use(work(), false);
    keep(buffer.get());
  }
  return buffer_.get();
}

MPSCommandBuffer* MetalCommandBuffer::for_transfer() {
  if (current_predicate_) {
    buffer_.get().predicate = nil;
    current_predicate_ = nullptr;
  }
  return buffer_.get();
}

// Temporary states lie in a heap of MPS's, where nothing but fences orders blits against kernels:
// empty compute encoders before and after pass them on (MPSState.h).
void MetalCommandBuffer::copy(id<MTLBuffer> from, NSUInteger offset, id<MTLBuffer> to,
                              NSUInteger bytes) {
  MPSCommandBuffer* buffer = for_transfer();
  using Fence = Retained<id<MTLFence>>;
  Fence before, after;
  if (from.heap != nil || to.heap != nil) {
    before = Fence::adopt([from.device newFence]);
    after = Fence::adopt([from.device newFence]);
    require<DeviceError>(before && after, "CommandBuffer: the device could not make a fence");
    id<MTLComputeCommandEncoder> earlier = [buffer computeCommandEncoder];
    [earlier updateFence:before.get()];
    [earlier endEncoding];
  }
  id<MTLBlitCommandEncoder> encoder = [buffer blitCommandEncoder];
  if (before) {
    [encoder waitForFence:before.get()];
  }
  [encoder copyFromBuffer:from sourceOffset:offset toBuffer:to destinationOffset:0 size:bytes];
  if (after) {
    [encoder updateFence:after.get()];
  }
  [encoder endEncoding];
  if (after) {
    id<MTLComputeCommandEncoder> later = [buffer computeCommandEncoder];
    [later waitForFence:after.get()];
    [later endEncoding];
    keep(before.get());
    keep(after.get());
  }
  keep(from);
  keep(to);
}

void MetalCommandBuffer::fill(id<MTLBuffer> buffer, std::uint8_t value) {
  id<MTLBlitCommandEncoder> encoder = [for_transfer() blitCommandEncoder];
  [encoder fillBuffer:buffer range:NSMakeRange(0, [buffer length]) value:value];
  [encoder endEncoding];
  keep(buffer);
}

void MetalCommandBuffer::keep(id object) { keep_all({object}); }

void MetalCommandBuffer::keep_all(std::initializer_list<id> objects) {
  for (id object : objects) {
    if (object != nil) {
      [kept_.get() addObject:object];
    }
  }
}

// Handlers run on a thread of Metal's, whenever it likes; nothing may be thrown into it.
void MetalCommandBuffer::add_handlers() {
  const id<MTLCommandBuffer> root = [buffer_.get() rootCommandBuffer];
  if (!label.empty()) {
    root.label = to_ns(label);
  }
  const auto running = work();
  const auto handlers = own_queue().handlers();
  [root addScheduledHandler:^(id<MTLCommandBuffer>) {
    const PoolScope pool;
    try {
      if (running->begin()) {
        handlers->hand_over(running, &Work::run_scheduled_handlers);
      }
    } catch (...) {
      NSLog(@"mpsgrad: a scheduled handler failed");
    }
  }];
  // Shared, not copied: the block's copy is empty once the work has ended.
  const auto kept = std::make_shared<Retained<NSMutableArray*>>(std::exchange(kept_, {}));
  [root addCompletedHandler:^(id<MTLCommandBuffer> done) {
    const PoolScope pool;
    try {
      const auto [code, message] = failure_of(done);
      *kept = {};  // before the end is announced: nothing is held when a waiter returns
      if (running->begin()) {
        handlers->hand_over(running, &Work::run_scheduled_handlers);
      }
      if (running->complete(code, message)) {
        handlers->hand_over(running, &Work::run_completed_handlers);
      }
    } catch (...) {
      NSLog(@"mpsgrad: a completed handler failed");
    }
  }];
}

void MetalCommandBuffer::device_enqueue() { own_queue().enqueue(submission_); }

void MetalCommandBuffer::device_commit() {
  const PoolScope pool;
  temporaries_->end_all();
  add_handlers();
  own_queue().commit(*submission_);
}

void MetalCommandBuffer::device_commit_and_continue() {
  const PoolScope pool;
  add_handlers();
  own_queue().commit_and_continue(*submission_);
}

void MetalCommandBuffer::device_new_root() {
  kept_ = Retained<NSMutableArray*>::adopt([[NSMutableArray alloc] init]);
  submission_ = std::make_shared<Submission>();
  submission_->buffer = buffer_;
  submission_->work = work();
}

void MetalCommandBuffer::device_abandon() {
  temporaries_->end_all();
  own_queue().abandon(*submission_);
}

}  // namespace mpsgrad::metal
