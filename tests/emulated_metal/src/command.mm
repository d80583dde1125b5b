// Queues, command buffers, encoders and fences: commands are recorded, and run on the queue's
// thread.
#include <Block.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "internal.hpp"

#import <Foundation/NSThread.h>

using namespace emulated_metal;

@class EmulatedCommandBuffer;

NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

namespace {

// Shared by a queue, its command buffers and its thread; outlives each of them.
struct QueueBody {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<EmulatedCommandBuffer*> order;  // enqueued; retained
  NSUInteger capacity = 64;
  NSUInteger outstanding = 0;  // created and not yet finished
  NSUInteger committed = 0;    // committed and not yet finished
  long serial = 0;
  int device_index = 0;
  bool stop = false, started = false;
};

struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  long count = 0;
};
Running& running() {
  static auto* instance = new Running;
  return *instance;
}

std::atomic<long> newest_queue[8];
thread_local EmulatedCommandBuffer* current_handler_buffer = nil;

MTLCommandBufferStatus status_of(id<MTLCommandBuffer> buffer) { return [buffer status]; }

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

@interface EmulatedCommandQueue : EmulatedObject <MTLCommandQueue> {
 @public
  std::shared_ptr<QueueBody>* body_;
  id<MTLDevice> device_;
  NSString* label_;
}
@end

struct CommandBufferState {
  std::mutex mutex;
  std::condition_variable changed;
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  bool ended = false;  // completed handlers have run
  std::vector<Command> commands;
  std::vector<MTLCommandBufferHandler> scheduled, completed;
  Strong<NSError*> error;
  Strong<NSString*> label;
  Strong<EmulatedCommandQueue*> queue;
  std::shared_ptr<int> lineage = std::make_shared<int>(0);
  Strong<id<MTLFence>> awaited;  // of a blit of heap memory, for the next kernel to wait for
  bool encoder_open = false;
  long failure = 0;  // MTLCommandBufferError to end with
  double started = 0, finished = 0;
  MTLCommandBufferErrorOption error_options = MTLCommandBufferErrorOptionNone;
  bool retained = true;
};

@interface EmulatedCommandBuffer : EmulatedObject <MTLCommandBuffer> {
 @public
  CommandBufferState* state_;
}
- (void)execute;
@end

@interface EmulatedFence : EmulatedObject <MTLFence> {
 @public
  id<MTLDevice> device_;
  NSString* label_;
  // By whom, and behind how many commands, it was updated; only compared.
  const void *encoder_, *buffer_;
  size_t position_;
  BOOL by_kernels_;
}
@end

@interface EmulatedEncoder : EmulatedObject <MTLCommandEncoder> {
 @public
  EmulatedCommandBuffer* buffer_;
  NSString* label_;
  BOOL ended_;
}
- (void)append:(Command)command where:(const Where&)where;
- (EmulatedFence*)update:(id<MTLFence>)fence where:(const Where&)where;
- (EmulatedFence*)awaited:(id<MTLFence>)fence where:(const Where&)where;
@end

@interface EmulatedBlitEncoder : EmulatedEncoder <MTLBlitCommandEncoder> {
 @public
  BOOL fenced_;  // waits for every kernel before it
  BOOL used_heap_;
  EmulatedFence* left_;  // updated behind all commands
}
@end

@interface EmulatedComputeEncoder : EmulatedEncoder <MTLComputeCommandEncoder>
@end

namespace {

void unite(std::vector<StoragePtr>& all, const std::vector<StoragePtr>& some) {
  for (const StoragePtr& storage : some) {
    if (std::find(all.begin(), all.end(), storage) == all.end()) all.push_back(storage);
  }
}

void work(std::shared_ptr<QueueBody> queue) {
  GSRegisterCurrentThread();
  for (;;) {
    EmulatedCommandBuffer* buffer = nil;
    {
      std::unique_lock lock(queue->mutex);
      queue->changed.wait(lock, [&] {
        return queue->stop || (!queue->order.empty() &&
                               status_of(queue->order.front()) >= MTLCommandBufferStatusCommitted);
      });
      if (queue->order.empty()) break;
      buffer = queue->order.front();
      queue->order.pop_front();
    }
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    [buffer execute];
    [buffer release];
    [pool release];
    {
      std::lock_guard lock(running().mutex);
      --running().count;
      running().changed.notify_all();
    }
  }
  GSUnregisterCurrentThread();
}

}  // namespace

@implementation EmulatedCommandQueue
- (void)dealloc {
  {
    std::lock_guard lock((*body_)->mutex);
    (*body_)->stop = true;
    (*body_)->changed.notify_all();
  }
  delete body_;
  [label_ release];
  [super dealloc];
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  NSString* old = label_;
  label_ = [label copy];
  [old release];
}
- (id<MTLDevice>)device {
  return device_;
}
- (id<MTLCommandBuffer>)commandBuffer {
  {
    std::unique_lock lock((*body_)->mutex);
    REQUIRE((*body_)->outstanding < (*body_)->capacity || (*body_)->committed > 0, queue_exhausted,
            HERE, "limit %lu", static_cast<unsigned long>((*body_)->capacity));
    (*body_)->changed.wait(lock, [&] { return (*body_)->outstanding < (*body_)->capacity; });
    ++(*body_)->outstanding;
  }
  EmulatedCommandBuffer* buffer = [[[EmulatedCommandBuffer alloc] init] autorelease];
  buffer->state_ = new CommandBufferState;
  buffer->state_->queue = self;
  return buffer;
}
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");
  const id<MTLCommandBuffer> buffer = [self commandBuffer];
  static_cast<EmulatedCommandBuffer*>(buffer)->state_->retained = [descriptor retainedReferences];
  static_cast<EmulatedCommandBuffer*>(buffer)->state_->error_options = [descriptor errorOptions];
  return buffer;
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  const id<MTLCommandBuffer> buffer = [self commandBuffer];
  static_cast<EmulatedCommandBuffer*>(buffer)->state_->retained = false;
  return buffer;
}
@end

namespace emulated_metal {
id<MTLCommandQueue> make_queue(id<MTLDevice> device, int device_index, NSUInteger capacity) {
  EmulatedCommandQueue* queue = [[EmulatedCommandQueue alloc] init];
  queue->body_ = new std::shared_ptr<QueueBody>(std::make_shared<QueueBody>());
  (*queue->body_)->capacity = capacity;
  (*queue->body_)->device_index = device_index;
  (*queue->body_)->serial = ++newest_queue[device_index];
  queue->device_ = device;
  return queue;
}
}  // namespace emulated_metal

@implementation MTLCommandBufferDescriptor
- (instancetype)init {
  self = [super init];
  retained_references_ = YES;
  return self;
}
- (id)copyWithZone:(NSZone*)zone {
  MTLCommandBufferDescriptor* copy = [[[self class] allocWithZone:zone] init];
  copy->retained_references_ = retained_references_;
  copy->error_options_ = error_options_;
  return copy;
}
- (BOOL)retainedReferences {
  return retained_references_;
}
- (void)setRetainedReferences:(BOOL)retained {
  retained_references_ = retained;
}
- (MTLCommandBufferErrorOption)errorOptions {
  return error_options_;
}
- (void)setErrorOptions:(MTLCommandBufferErrorOption)options {
  error_options_ = options;
}
@end

@implementation EmulatedCommandBuffer
- (void)dealloc {
  for (const MTLCommandBufferHandler block : state_->scheduled) Block_release(block);
  for (const MTLCommandBufferHandler block : state_->completed) Block_release(block);
  if (state_->status < MTLCommandBufferStatusCommitted) {
    QueueBody& queue = **state_->queue.get()->body_;
    std::lock_guard lock(queue.mutex);
    --queue.outstanding;
    queue.changed.notify_all();
  }
  delete state_;
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [state_->queue.get() device];
}
- (id<MTLCommandQueue>)commandQueue {
  return state_->queue.get();
}
- (BOOL)retainedReferences {
  return state_->retained;
}
- (MTLCommandBufferErrorOption)errorOptions {
  return state_->error_options;
}
- (NSString*)label {
  std::lock_guard lock(state_->mutex);
  return [[state_->label.get() retain] autorelease];
}
- (void)setLabel:(NSString*)label {
  std::lock_guard lock(state_->mutex);
  state_->label = adopt<NSString*>([label copy]);
}
- (CFTimeInterval)kernelStartTime {
  return [self GPUStartTime];
}
- (CFTimeInterval)kernelEndTime {
  return [self GPUEndTime];
}
- (CFTimeInterval)GPUStartTime {
  std::lock_guard lock(state_->mutex);
  return state_->started;
}
- (CFTimeInterval)GPUEndTime {
  std::lock_guard lock(state_->mutex);
  return state_->finished;
}
- (MTLCommandBufferStatus)status {
  std::lock_guard lock(state_->mutex);
  return state_->status;
}
- (NSError*)error {
  std::lock_guard lock(state_->mutex);
  return [[state_->error.get() retain] autorelease];
}
- (void)pushDebugGroup:(NSString*)string {
  REQUIRE(string != nil, nil_argument, HERE, "string");
}
- (void)popDebugGroup {
}
- (void)enqueue {
  REQUIRE([self status] == MTLCommandBufferStatusNotEnqueued, enqueue_twice, HERE);
  {
    std::lock_guard lock(state_->mutex);
    state_->status = MTLCommandBufferStatusEnqueued;
  }
  QueueBody& queue = **state_->queue.get()->body_;
  std::lock_guard lock(queue.mutex);
  queue.order.push_back([self retain]);
}
- (void)commit {
  REQUIRE([self status] < MTLCommandBufferStatusCommitted, double_commit, HERE);
  REQUIRE(!state_->encoder_open, encoder_open, HERE);
  if ([self status] == MTLCommandBufferStatusNotEnqueued) [self enqueue];
  if (option("fail_next") != 0) {
    const long wait = option("fail_after");
    if (wait > 0) {
      emulated_metal_set_option("fail_after", wait - 1);
    } else {
      state_->failure = option("fail_next");
      emulated_metal_set_option("fail_next", 0);
    }
  }
  std::vector<StoragePtr> read, written;
  for (const Command& command : state_->commands) {
    unite(read, command.reads);
    unite(written, command.writes);
  }
  std::vector<StoragePtr> all = read;
  unite(all, written);
  for (const StoragePtr& storage : all) {
    std::lock_guard lock(storage->mutex);
    // What the CPU wrote into shared storage is visible from here on.
    if (storage->publishes_by_itself() && storage->mode == MTLStorageModeShared &&
        storage->writers == 0 && storage->cpu != storage->gpu) {
      storage->gpu = storage->cpu;
    }
  }
  for (const StoragePtr& storage : read) {
    std::lock_guard lock(storage->mutex);
    ++storage->readers;
  }
  for (const StoragePtr& storage : written) {
    std::lock_guard lock(storage->mutex);
    ++storage->writers;
    std::fill(storage->cpu.begin(), storage->cpu.end(), storage->junk);
  }
  {
    std::lock_guard lock(running().mutex);
    ++running().count;
  }
  const std::shared_ptr<QueueBody> queue = *state_->queue.get()->body_;
  {
    std::lock_guard lock(state_->mutex);
    state_->status = MTLCommandBufferStatusCommitted;
  }
  std::lock_guard lock(queue->mutex);
  ++queue->committed;
  if (!queue->started) {
    queue->started = true;
    std::thread(work, queue).detach();
  }
  queue->changed.notify_all();
}
- (void)execute {
  const std::shared_ptr<QueueBody> queue = *state_->queue.get()->body_;
  long delay = option("delay_us");
  if (queue->serial != newest_queue[queue->device_index]) delay += option("stagger_us");
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  {
    std::lock_guard lock(state_->mutex);
    state_->status = MTLCommandBufferStatusScheduled;
    state_->started = now();
    state_->changed.notify_all();
  }
  current_handler_buffer = self;
  for (const MTLCommandBufferHandler block : state_->scheduled) block(self);

  std::vector<StoragePtr> read, written;
  std::map<StoragePtr, std::vector<uint8_t>> published;
  for (const Command& command : state_->commands) {
    unite(read, command.reads);
    unite(written, command.writes);
    if (state_->failure != 0) continue;
    if (command.predicate) {
      uint32_t flag = 0;
      std::memcpy(&flag, command.predicate->gpu.data() + command.predicate_offset, sizeof flag);
      if (flag == 0) continue;
    }
    if (command.run) command.run();
    for (const StoragePtr& storage : command.publishes) published[storage] = storage->gpu;
  }
  for (const StoragePtr& storage : read) {
    std::lock_guard lock(storage->mutex);
    --storage->readers;
  }
  for (const StoragePtr& storage : written) {
    std::lock_guard lock(storage->mutex);
    --storage->writers;
    if (state_->failure != 0) std::fill(storage->gpu.begin(), storage->gpu.end(), storage->junk);
    if (storage->publishes_by_itself() && storage->writers == 0) storage->cpu = storage->gpu;
  }
  for (auto& [storage, bytes] : published) {
    std::lock_guard lock(storage->mutex);
    if (storage->writers == 0) storage->cpu = std::move(bytes);
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->finished = now();
    if (state_->failure != 0) {
      state_->status = MTLCommandBufferStatusError;
      state_->error = [NSError
          errorWithDomain:MTLCommandBufferErrorDomain
                     code:static_cast<NSInteger>(state_->failure)
                 userInfo:@{NSLocalizedDescriptionKey : @"Emulated failure of a command buffer"}];
    } else {
      state_->status = MTLCommandBufferStatusCompleted;
    }
  }
  for (const MTLCommandBufferHandler block : state_->completed) block(self);
  current_handler_buffer = nil;
  // Blocks and storage go now: a completed buffer keeps nothing alive.
  std::vector<MTLCommandBufferHandler> blocks = std::move(state_->scheduled);
  blocks.insert(blocks.end(), state_->completed.begin(), state_->completed.end());
  state_->scheduled.clear();
  state_->completed.clear();
  state_->commands.clear();
  for (const MTLCommandBufferHandler block : blocks) Block_release(block);
  {
    std::lock_guard lock(queue->mutex);
    --queue->committed;
    --queue->outstanding;
    queue->changed.notify_all();
  }
  std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)block {
  REQUIRE(block != nil, nil_argument, HERE, "block");
  REQUIRE([self status] < MTLCommandBufferStatusCommitted, handler_after_commit, HERE);
  state_->scheduled.push_back(Block_copy(block));
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  REQUIRE(block != nil, nil_argument, HERE, "block");
  REQUIRE([self status] < MTLCommandBufferStatusCommitted, handler_after_commit, HERE);
  state_->completed.push_back(Block_copy(block));
}
- (void)waitUntilScheduled {
  REQUIRE([self status] >= MTLCommandBufferStatusCommitted, wait_before_commit, HERE);
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->status >= MTLCommandBufferStatusScheduled; });
}
- (void)waitUntilCompleted {
  REQUIRE([self status] >= MTLCommandBufferStatusCommitted, wait_before_commit, HERE);
  REQUIRE(current_handler_buffer != self, wait_in_handler, HERE);
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->ended; });
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  check_encodable(self, HERE);
  state_->encoder_open = true;
  EmulatedBlitEncoder* encoder = [[[EmulatedBlitEncoder alloc] init] autorelease];
  encoder->buffer_ = [self retain];
  return encoder;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  check_encodable(self, HERE);
  state_->encoder_open = true;
  EmulatedComputeEncoder* encoder = [[[EmulatedComputeEncoder alloc] init] autorelease];
  encoder->buffer_ = [self retain];
  return encoder;
}
@end

void emulated_metal_wait_idle(void) {
  std::unique_lock lock(running().mutex);
  running().changed.wait(lock, [] { return running().count == 0; });
}

// ---------------------------------------------------------------- recording

namespace emulated_metal {

id<MTLCommandBuffer> root_of(id<MTLCommandBuffer> command_buffer, const Where& where) {
  REQUIRE(command_buffer != nil, nil_argument, where, "commandBuffer");
  if ([command_buffer isKindOfClass:[MPSCommandBuffer class]]) {
    return [static_cast<MPSCommandBuffer*>(command_buffer) rootCommandBuffer];
  }
  REQUIRE([command_buffer isKindOfClass:[EmulatedCommandBuffer class]], foreign_object, where,
          "commandBuffer");
  return command_buffer;
}

static EmulatedCommandBuffer* concrete_root(id<MTLCommandBuffer> command_buffer,
                                            const Where& where) {
  return static_cast<EmulatedCommandBuffer*>(root_of(command_buffer, where));
}

id<MTLCommandBuffer> check_encodable(id<MTLCommandBuffer> command_buffer, const Where& where) {
  EmulatedCommandBuffer* root = concrete_root(command_buffer, where);
  REQUIRE([root status] < MTLCommandBufferStatusCommitted, encode_after_commit, where);
  REQUIRE(!root->state_->encoder_open, encoder_open, where);
  return root;
}

void record(id<MTLCommandBuffer> command_buffer, const Where& where, Command command) {
  auto* root = static_cast<EmulatedCommandBuffer*>(check_encodable(command_buffer, where));
  if ([command_buffer isKindOfClass:[MPSCommandBuffer class]]) {
    MPSPredicate* predicate = [static_cast<MPSCommandBuffer*>(command_buffer) predicate];
    if (predicate != nil) {
      command.predicate = storage_of([predicate predicateBuffer], where);
      command.predicate_offset = [predicate predicateOffset];
      command.reads.push_back(command.predicate);
    }
  }
  const int device = index_of([root device], where);
  for (const std::vector<StoragePtr>* list : {&command.reads, &command.writes}) {
    for (const StoragePtr& storage : *list) {
      REQUIRE(storage->device_index == device, different_devices, where);
    }
  }
  REQUIRE(!root->state_->awaited, heap_fence, where, "it would not wait for an earlier blit");
  root->state_->commands.push_back(std::move(command));
}

const void* lineage_of(id<MTLCommandBuffer> command_buffer, const Where& where) {
  return concrete_root(command_buffer, where)->state_->lineage.get();
}

int device_of(id<MTLCommandBuffer> command_buffer, const Where& where) {
  return index_of([root_of(command_buffer, where) device], where);
}

void synchronize(id<MTLCommandBuffer> command_buffer, const Where& where,
                 const StoragePtr& storage) {
  Command command;
  command.reads = {storage};
  command.publishes = {storage};
  record(command_buffer, where, std::move(command));
}

}  // namespace emulated_metal

// ---------------------------------------------------------------- encoders

@implementation EmulatedFence
- (void)dealloc {
  [label_ release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return device_;
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  NSString* old = label_;
  label_ = [label copy];
  [old release];
}
@end

namespace emulated_metal {
id<MTLFence> make_fence(id<MTLDevice> device) {
  EmulatedFence* fence = [[EmulatedFence alloc] init];
  fence->device_ = device;
  return fence;
}
}  // namespace emulated_metal

@implementation EmulatedEncoder
- (void)dealloc {
  REQUIRE(ended_, encoder_released_open, HERE);
  [label_ release];
  [buffer_ release];
  [super dealloc];
}
- (id<MTLDevice>)device {
  return [buffer_ device];
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  NSString* old = label_;
  label_ = [label copy];
  [old release];
}
- (void)insertDebugSignpost:(NSString*)string {
  REQUIRE(string != nil, nil_argument, HERE, "string");
}
- (void)pushDebugGroup:(NSString*)string {
  REQUIRE(string != nil, nil_argument, HERE, "string");
}
- (void)popDebugGroup {
}
- (void)endEncoding {
  REQUIRE(!ended_, encoder_ended, HERE);
  ended_ = YES;
  buffer_->state_->encoder_open = false;
}
// This encoder is the open one: close it while its command is recorded.
- (void)append:(Command)command where:(const Where&)where {
  REQUIRE(!ended_, encoder_ended, where);
  buffer_->state_->encoder_open = false;
  record(buffer_, where, std::move(command));
  buffer_->state_->encoder_open = true;
}
- (EmulatedFence*)fence:(id<MTLFence>)fence where:(const Where&)where {
  REQUIRE(!ended_, encoder_ended, where);
  REQUIRE(fence != nil, nil_argument, where, "fence");
  REQUIRE([fence isKindOfClass:[EmulatedFence class]], foreign_object, where, "fence");
  REQUIRE([fence device] == [self device], different_devices, where);
  return static_cast<EmulatedFence*>(fence);
}
- (EmulatedFence*)update:(id<MTLFence>)fence where:(const Where&)where {
  EmulatedFence* own = [self fence:fence where:where];
  own->encoder_ = self;
  own->buffer_ = buffer_;
  own->position_ = buffer_->state_->commands.size();
  own->by_kernels_ = [self isKindOfClass:[EmulatedComputeEncoder class]];
  return own;
}
- (EmulatedFence*)awaited:(id<MTLFence>)fence where:(const Where&)where {
  EmulatedFence* own = [self fence:fence where:where];
  REQUIRE(own->encoder_ != nullptr && own->encoder_ != self, fence_order, where);
  return own;
}
@end

@implementation EmulatedComputeEncoder
- (void)updateFence:(id<MTLFence>)fence {
  [self update:fence where:HERE];
}
- (void)waitForFence:(id<MTLFence>)fence {
  if (buffer_->state_->awaited.get() == [self awaited:fence where:HERE]) {
    buffer_->state_->awaited = {};
  }
}
@end

// Memory of a heap, where temporary objects lie, is ordered by nothing but fences: a kernel's
// encoder has to update one for the blit, and another to wait for the blit's (MPSState.h).
@implementation EmulatedBlitEncoder
- (void)append:(Command)command where:(const Where&)where {
  for (const std::vector<StoragePtr>* list : {&command.reads, &command.writes}) {
    for (const StoragePtr& storage : *list) {
      if (!storage->in_heap) continue;
      REQUIRE(fenced_, heap_fence, where, "it does not wait for the kernels before it");
      used_heap_ = YES;
      left_ = nil;
    }
  }
  [super append:std::move(command) where:where];
}
- (void)updateFence:(id<MTLFence>)fence {
  left_ = [self update:fence where:HERE];
}
- (void)waitForFence:(id<MTLFence>)fence {
  EmulatedFence* own = [self awaited:fence where:HERE];
  if (own->by_kernels_ && own->buffer_ == buffer_ &&
      own->position_ == buffer_->state_->commands.size()) {
    fenced_ = YES;
  }
}
- (void)endEncoding {
  [super endEncoding];
  REQUIRE(!used_heap_ || left_ != nil, heap_fence, HERE, "nothing can wait for it");
  if (used_heap_) buffer_->state_->awaited = left_;
}
- (void)synchronizeResource:(id<MTLResource>)resource {
  const StoragePtr storage = storage_of(resource, HERE);
  REQUIRE(storage->mode == MTLStorageModeManaged, not_managed, HERE);
  Command command;
  command.reads = {storage};
  command.publishes = {storage};
  [self append:std::move(command) where:HERE];
}
- (void)synchronizeTexture:(id<MTLTexture>)texture slice:(NSUInteger)slice level:(NSUInteger)level {
  REQUIRE(texture != nil, nil_argument, HERE, "texture");
  REQUIRE(slice < [texture arrayLength] && level == 0, texture_region, HERE);
  [self synchronizeResource:texture];
}
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value {
  const StoragePtr storage = storage_of(buffer, HERE);
  REQUIRE(
      range.location <= storage->gpu.size() && range.length <= storage->gpu.size() - range.location,
      buffer_range, HERE);
  Command command;
  command.writes = {storage};
  command.run = [storage, range, value] {
    std::memset(storage->gpu.data() + range.location, value, range.length);
  };
  [self append:std::move(command) where:HERE];
}
- (void)copyFromBuffer:(id<MTLBuffer>)sourceBuffer
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)destinationBuffer
     destinationOffset:(NSUInteger)destinationOffset
                  size:(NSUInteger)size {
  const StoragePtr source = storage_of(sourceBuffer, HERE);
  const StoragePtr destination = storage_of(destinationBuffer, HERE);
  REQUIRE(sourceOffset <= source->gpu.size() && size <= source->gpu.size() - sourceOffset &&
              destinationOffset <= destination->gpu.size() &&
              size <= destination->gpu.size() - destinationOffset,
          buffer_range, HERE);
  Command command;
  command.reads = {source};
  command.writes = {destination};
  command.run = [source, destination, sourceOffset, destinationOffset, size] {
    std::memmove(destination->gpu.data() + destinationOffset, source->gpu.data() + sourceOffset,
                 size);
  };
  [self append:std::move(command) where:HERE];
}
- (void)copyFromTexture:(id<MTLTexture>)sourceTexture toTexture:(id<MTLTexture>)destinationTexture {
  const StoragePtr source = storage_of(sourceTexture, HERE);
  const StoragePtr destination = storage_of(destinationTexture, HERE);
  const TextureBody& from = *static_cast<EmulatedTexture*>(sourceTexture)->body_;
  const TextureBody& to = *static_cast<EmulatedTexture*>(destinationTexture)->body_;
  REQUIRE(from.descriptor.width == to.descriptor.width &&
              from.descriptor.height == to.descriptor.height &&
              from.descriptor.length == to.descriptor.length &&
              from.descriptor.format == to.descriptor.format,
          texture_copy, HERE);
  const size_t slice = slice_bytes(from);
  const size_t start = slice * from.first_slice, target = slice * to.first_slice;
  const size_t bytes = slice * from.descriptor.length;
  Command command;
  command.reads = {source};
  command.writes = {destination};
  command.run = [source, destination, start, target, bytes] {
    std::memmove(destination->gpu.data() + target, source->gpu.data() + start, bytes);
  };
  [self append:std::move(command) where:HERE];
}

// Row by row between a buffer and a rectangle of one slice.
- (void)copyTexture:(id<MTLTexture>)texture
              slice:(NSUInteger)slice
              level:(NSUInteger)level
             origin:(MTLOrigin)origin
               size:(MTLSize)size
             buffer:(id<MTLBuffer>)buffer
             offset:(NSUInteger)offset
        bytesPerRow:(NSUInteger)bytesPerRow
           toBuffer:(BOOL)toBuffer
              where:(const Where&)where {
  const StoragePtr texels = storage_of(texture, where);
  const StoragePtr bytes = storage_of(buffer, where);
  const TextureBody& body = *static_cast<EmulatedTexture*>(texture)->body_;
  const TextureDescriptorBody& d = body.descriptor;
  REQUIRE(level == 0 && slice < d.length && origin.z == 0 && size.depth == 1 &&
              origin.x <= d.width && size.width <= d.width - origin.x && origin.y <= d.height &&
              size.height <= d.height - origin.y,
          texture_region, where);
  const size_t texel = static_cast<size_t>(body.format.lanes) * item_bytes(body.format.item);
  const size_t row = size.width * texel;
  REQUIRE(bytesPerRow >= row, texture_bytes_per_row, where);
  REQUIRE(size.height == 0 || offset + bytesPerRow * (size.height - 1) + row <= bytes->gpu.size(),
          buffer_range, where);
  const size_t first =
      (body.first_slice + slice) * slice_bytes(body) + (origin.y * d.width + origin.x) * texel;
  const size_t pitch = d.width * texel;
  const NSUInteger rows = size.height;
  Command command;
  command.reads = {toBuffer ? texels : bytes};
  command.writes = {toBuffer ? bytes : texels};
  command.run = [texels, bytes, first, pitch, offset, bytesPerRow, row, rows, toBuffer] {
    for (NSUInteger y = 0; y < rows; ++y) {
      uint8_t* inside = texels->gpu.data() + first + y * pitch;
      uint8_t* outside = bytes->gpu.data() + offset + y * bytesPerRow;
      std::memcpy(toBuffer ? outside : inside, toBuffer ? inside : outside, row);
    }
  };
  [self append:std::move(command) where:where];
}
- (void)copyFromBuffer:(id<MTLBuffer>)sourceBuffer
           sourceOffset:(NSUInteger)sourceOffset
      sourceBytesPerRow:(NSUInteger)sourceBytesPerRow
    sourceBytesPerImage:(NSUInteger)sourceBytesPerImage
             sourceSize:(MTLSize)sourceSize
              toTexture:(id<MTLTexture>)destinationTexture
       destinationSlice:(NSUInteger)destinationSlice
       destinationLevel:(NSUInteger)destinationLevel
      destinationOrigin:(MTLOrigin)destinationOrigin {
  (void)sourceBytesPerImage;
  [self copyTexture:destinationTexture
              slice:destinationSlice
              level:destinationLevel
             origin:destinationOrigin
               size:sourceSize
             buffer:sourceBuffer
             offset:sourceOffset
        bytesPerRow:sourceBytesPerRow
           toBuffer:NO
              where:HERE];
}
- (void)copyFromTexture:(id<MTLTexture>)sourceTexture
                 sourceSlice:(NSUInteger)sourceSlice
                 sourceLevel:(NSUInteger)sourceLevel
                sourceOrigin:(MTLOrigin)sourceOrigin
                  sourceSize:(MTLSize)sourceSize
                    toBuffer:(id<MTLBuffer>)destinationBuffer
           destinationOffset:(NSUInteger)destinationOffset
      destinationBytesPerRow:(NSUInteger)destinationBytesPerRow
    destinationBytesPerImage:(NSUInteger)destinationBytesPerImage {
  (void)destinationBytesPerImage;
  [self copyTexture:sourceTexture
              slice:sourceSlice
              level:sourceLevel
             origin:sourceOrigin
               size:sourceSize
             buffer:destinationBuffer
             offset:destinationOffset
        bytesPerRow:destinationBytesPerRow
           toBuffer:YES
              where:HERE];
}
@end

// ---------------------------------------------------------------- MPSCommandBuffer, MPSPredicate

@implementation MPSPredicate
+ (instancetype)predicateWithBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset {
  return [[[self alloc] initWithBuffer:buffer offset:offset] autorelease];
}
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset {
  self = [super init];
  REQUIRE(buffer != nil, nil_argument, HERE, "buffer");
  REQUIRE(offset % 4 == 0 && offset + 4 <= [buffer length], predicate_offset, HERE);
  buffer_ = [buffer retain];
  offset_ = offset;
  return self;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  // Not at the start of its buffer: nothing may assume so.
  return [self initWithBuffer:make_buffer(index_of(device, HERE), 64, MTLStorageModeShared)
                       offset:16];
}
- (void)dealloc {
  [buffer_ release];
  [super dealloc];
}
- (id<MTLBuffer>)predicateBuffer {
  return buffer_;
}
- (NSUInteger)predicateOffset {
  return offset_;
}
@end

@implementation MPSCommandBuffer
+ (instancetype)commandBufferWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  return [[[self alloc] initWithCommandBuffer:commandBuffer] autorelease];
}
+ (instancetype)commandBufferFromCommandQueue:(id<MTLCommandQueue>)commandQueue {
  REQUIRE(commandQueue != nil, nil_argument, HERE, "commandQueue");
  return [self commandBufferWithCommandBuffer:[commandQueue commandBuffer]];
}
- (instancetype)initWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  self = [super init];
  REQUIRE(commandBuffer != nil, nil_argument, HERE, "commandBuffer");
  wrapped_ = [commandBuffer retain];
  return self;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (void)dealloc {
  [wrapped_ release];
  [predicate_ release];
  [heap_provider_ release];
  [super dealloc];
}
- (id<MTLCommandBuffer>)commandBuffer {
  return wrapped_;
}
- (id<MTLCommandBuffer>)rootCommandBuffer {
  return root_of(wrapped_, HERE);
}
- (MPSPredicate*)predicate {
  return predicate_;
}
- (void)setPredicate:(MPSPredicate*)predicate {
  MPSPredicate* old = predicate_;
  predicate_ = [predicate retain];
  [old release];
}
- (id<MPSHeapProvider>)heapProvider {
  return heap_provider_;
}
- (void)setHeapProvider:(id<MPSHeapProvider>)provider {
  const id<MPSHeapProvider> old = heap_provider_;
  heap_provider_ = [provider retain];
  [old release];
}
- (void)commitAndContinue {
  if ([wrapped_ isKindOfClass:[MPSCommandBuffer class]]) {
    [static_cast<MPSCommandBuffer*>(wrapped_) commitAndContinue];
    return;
  }
  [self emulatedContinue];
}
- (void)emulatedContinue {
  auto* old = static_cast<EmulatedCommandBuffer*>(root_of(wrapped_, HERE));
  [old commit];
  EmulatedCommandBuffer* next =
      static_cast<EmulatedCommandBuffer*>([[old commandQueue] commandBuffer]);
  next->state_->lineage = old->state_->lineage;  // temporary objects stay usable
  wrapped_ = [next retain];
  [old release];
}
- (void)prefetchHeapForWorkloadSize:(size_t)size {
  (void)size;
  REQUIRE([self status] < MTLCommandBufferStatusCommitted, heap_after_commit, HERE);
}
#define FORWARD(type, name) \
  -(type)name {             \
    return [wrapped_ name]; \
  }
FORWARD(id<MTLDevice>, device)
FORWARD(id<MTLCommandQueue>, commandQueue)
FORWARD(BOOL, retainedReferences)
FORWARD(MTLCommandBufferErrorOption, errorOptions)
FORWARD(NSString*, label)
FORWARD(CFTimeInterval, kernelStartTime)
FORWARD(CFTimeInterval, kernelEndTime)
FORWARD(CFTimeInterval, GPUStartTime)
FORWARD(CFTimeInterval, GPUEndTime)
FORWARD(MTLCommandBufferStatus, status)
FORWARD(NSError*, error)
FORWARD(void, enqueue)
FORWARD(void, commit)
FORWARD(void, waitUntilScheduled)
FORWARD(void, waitUntilCompleted)
FORWARD(id<MTLBlitCommandEncoder>, blitCommandEncoder)
FORWARD(id<MTLComputeCommandEncoder>, computeCommandEncoder)
FORWARD(void, popDebugGroup)
- (void)setLabel:(NSString*)label {
  [wrapped_ setLabel:label];
}
- (void)addScheduledHandler:(MTLCommandBufferHandler)block {
  [wrapped_ addScheduledHandler:block];
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  [wrapped_ addCompletedHandler:block];
}
- (void)pushDebugGroup:(NSString*)string {
  [wrapped_ pushDebugGroup:string];
}
@end

void MPSHintTemporaryMemoryHighWaterMark(id<MTLCommandBuffer> cmdBuf, NSUInteger bytes) {
  (void)bytes;
  REQUIRE([root_of(cmdBuf, FUNCTION) status] < MTLCommandBufferStatusCommitted, heap_after_commit,
          FUNCTION);
}

void MPSSetHeapCacheDuration(id<MTLCommandBuffer> cmdBuf, double seconds) {
  (void)seconds;
  REQUIRE([root_of(cmdBuf, FUNCTION) status] < MTLCommandBufferStatusCommitted, heap_after_commit,
          FUNCTION);
}
