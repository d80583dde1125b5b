// The Metal device without its kernel families (devices_metal.mm adds those): queues, command
// buffers, images and buffers over Apple's own. Written against the documented behaviour of both
// discrete and unified memory.
#pragma once

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "core/gradient_state.hpp"
#include "device/buffer.hpp"
#include "device/command_buffer.hpp"
#include "device/device.hpp"
#include "device/image.hpp"
#include "metal/retained.hpp"

namespace mpsgrad::metal {

inline NSUInteger to_ns(Index value) { return static_cast<NSUInteger>(value); }

// Apple's own read count of a temporary object: far above any number of reads, so that the object
// ends when our ledger says so and never inside an encode, whatever a release of the system counts.
inline constexpr NSUInteger kManyReads = NSUInteger{1} << 30;

// Something of Apple's with a read count, which must be 0 before its command buffer is committed.
class TemporaryObject {
 public:
  virtual ~TemporaryObject() = default;
  virtual void end_all() = 0;
};

// The temporary objects of one command buffer, which some of them outlive.
class TemporaryRegistry {
 public:
  void add(TemporaryObject* object);
  void remove(TemporaryObject* object);
  void end_all();  // youngest first: views before what they are views of

 private:
  std::mutex mutex_;
  std::vector<TemporaryObject*> objects_;
};

class MetalDeviceBase : public Device {
 public:
  explicit MetalDeviceBase(Retained<id<MTLDevice>> device) : device_(std::move(device)) {}

  std::string kind() const override { return "metal"; }
  std::string name() const override;
  std::shared_ptr<CommandQueue> make_queue() override;
  std::shared_ptr<ImageStorage> make_images(const ImageDescriptor& descriptor, Index count,
                                            bool zeroed) override;
  std::shared_ptr<ImageStorage> make_temporary_images(CommandBuffer& command_buffer,
                                                      const ImageDescriptor& descriptor,
                                                      Index count, bool zeroed) override;
  std::shared_ptr<ImageStorage> images_from_memory(const ImageDescriptor& descriptor, Index count,
                                                   LentMemory lent) override;
  std::shared_ptr<Buffer> make_buffer(std::size_t bytes) override;
  std::shared_ptr<Buffer> make_temporary_buffer(CommandBuffer& command_buffer,
                                                std::size_t bytes) override;
  std::shared_ptr<Buffer> buffer_from_memory(LentMemory lent) override;
  void copy_buffer(CommandBuffer& command_buffer, const std::shared_ptr<Buffer>& from,
                   const std::shared_ptr<Buffer>& to, std::size_t bytes) override;

  id<MTLDevice> get() const { return device_.get(); }
  // Where there is none, Metal makes no texture, and MPS aborts.
  bool has_room_for(const ImageDescriptor& descriptor, Index count) const;
  struct Channels {
    Index first, count;
  };
  // Encodes zeros into every pixel of the channels. A compute kernel, because blit encoders need
  // fences of their own on the heaps behind temporary images. Returns what must live until it has
  // run.
  Retained<MPSImage*> encode_clear(id<MTLCommandBuffer> command_buffer, NSArray<MPSImage*>* images,
                                   const Channels& channels);
  void clear_now(NSArray<MPSImage*>* images);
  void drop_caches();

 private:
  std::shared_ptr<MetalDeviceBase> self();
  void check_supported(const ImageDescriptor& descriptor) const;
  Retained<id<MTLBuffer>> new_buffer(std::size_t bytes, MTLResourceOptions options) const;
  MPSCNNNeuron* clearing_kernel();

  Retained<id<MTLDevice>> device_;
  std::mutex mutex_;  // of everything below
  Retained<MPSCNNNeuron*> clearing_kernel_;
  Retained<id<MTLCommandQueue>> own_queue_;
};

// One root command buffer on its way to Metal.
struct Submission {
  Retained<MPSCommandBuffer*> buffer;
  std::shared_ptr<Work> work;
  bool committed = false;
  bool enqueued_on_metal = false;
};

// Runs the handlers of one queue's buffers one after another, on a thread of its own: they may
// encode, commit and wait, which would stop whatever thread Metal calls back on.
class HandlerThread : public std::enable_shared_from_this<HandlerThread> {
 public:
  using Run = void (Work::*)();
  // Starts the thread when there is something to do for the first time.
  void hand_over(std::shared_ptr<Work> work, Run run);
  void stop();

 private:
  bool start();
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::shared_ptr<Work>, Run>> due_;
  bool started_ = false;
  bool stopping_ = false;
};

// Buffers reach Metal in enqueue order. One that was enqueued and is not committed yet holds the
// later ones back here, not in Metal's queue: it may still be dropped, and then they go on.
class MetalQueue final : public CommandQueue {
 public:
  explicit MetalQueue(const std::shared_ptr<MetalDeviceBase>& device);
  ~MetalQueue() override;

  const std::shared_ptr<HandlerThread>& handlers() const { return handlers_; }
  void enqueue(std::shared_ptr<Submission> submission);
  void commit(Submission& submission);
  void commit_and_continue(Submission& submission);
  void abandon(const Submission& submission);

 protected:
  std::shared_ptr<CommandBuffer> new_command_buffer() override;

 private:
  void hand_over(Submission& submission);
  void hand_over_ready();
  void settle_before(const Submission& submission);

  Retained<id<MTLCommandQueue>> queue_;
  std::mutex mutex_;  // of the order
  std::deque<std::shared_ptr<Submission>> order_;
  std::shared_ptr<HandlerThread> handlers_ = std::make_shared<HandlerThread>();
};

class MetalCommandBuffer final : public CommandBuffer {
 public:
  MetalCommandBuffer(std::shared_ptr<MetalQueue> queue, id<MTLCommandQueue> metal_queue);
  ~MetalCommandBuffer() override;

  // For whoever encodes work that a predicate may skip, and that none may skip.
  MPSCommandBuffer* for_kernel();
  MPSCommandBuffer* for_transfer();
  // Whatever predicate is set. Buffers of temporary states may be copied from and to.
  void copy(id<MTLBuffer> from, NSUInteger offset, id<MTLBuffer> to, NSUInteger bytes);
  void fill(id<MTLBuffer> buffer, std::uint8_t value);  // one of our own
  // Hold objects until the work encoded so far has completed; those that are nil are left out.
  void keep(id object);
  void keep_all(std::initializer_list<id> objects);
  const std::shared_ptr<TemporaryRegistry>& temporaries() const { return temporaries_; }

 protected:
  void device_enqueue() override;
  void device_commit() override;
  void device_commit_and_continue() override;
  void device_new_root() override;
  void device_abandon() override;

 private:
  MetalQueue& own_queue() const;
  void add_handlers();

  Retained<MPSCommandBuffer*> buffer_;
  std::shared_ptr<Submission> submission_;
  Retained<NSMutableArray*> kept_;
  std::shared_ptr<TemporaryRegistry> temporaries_ = std::make_shared<TemporaryRegistry>();
  std::shared_ptr<const Predicate> current_predicate_;
};

class MetalBuffer final : public Buffer {
 public:
  MetalBuffer(std::shared_ptr<Device> device, std::size_t size, Retained<id<MTLBuffer>> buffer);

  id<MTLBuffer> get() const { return buffer_.get(); }
  // Another one with the same contents, for the time when this one is gone.
  void replace(Retained<id<MTLBuffer>> buffer) { buffer_ = std::move(buffer); }
  std::pair<std::uintptr_t, std::uintptr_t> extent() override;
  void synchronize(CommandBuffer& command_buffer) override;

 protected:
  std::byte* contents() override;
  void publish() override;

 private:
  Retained<id<MTLBuffer>> buffer_;
};

// One MPSImage a sample.
class MetalImageStorage final : public ImageStorage,
                                public TemporaryObject,
                                public std::enable_shared_from_this<MetalImageStorage> {
 public:
  struct Options {
    bool zero_when_used = false;
    std::shared_ptr<TemporaryRegistry> temporaries;  // of temporary images
    std::shared_ptr<MetalImageStorage> parent;       // of views
    Index parent_index = 0;
  };
  MetalImageStorage(std::shared_ptr<MetalDeviceBase> device, const ImageDescriptor& descriptor,
                    Index count, Retained<NSArray<MPSImage*>*> images, Options options);
  ~MetalImageStorage() override;

  // Throw std::bad_alloc where the device has no room for the texels, which appear now.
  MPSImage* image(Index index);
  NSArray<MPSImage*>* images();
  void note_written_by_kernel(Index index);
  // Somebody else has lowered Apple's read count of a temporary image to 0.
  void note_ended(Index index) { slot(index).ended = true; }
  void write_all(const std::byte* dense);  // NHWC

  std::pair<std::uintptr_t, std::uintptr_t> extent(Index index) override;
  void read(Index index, Index image, DataLayout layout, void* out) override;
  void write(Index index, Index image, DataLayout layout, const void* in) override;
  std::shared_ptr<ImageStorage> view(const ViewRange& range) override;
  void synchronize(CommandBuffer& command_buffer, Index index) override;
  void end_temporary(Index index) override;
  Index resource_size() override;
  void end_all() override;

 private:
  struct Slot {
    bool zero_when_used = false;
    bool unsynchronized = false;  // a kernel has written it since the CPU could last see it
    bool ended = false;
    bool ends_with_views = false;
    Index views = 0;  // that have not ended
  };
  Slot& slot(Index index) { return slots_[static_cast<std::size_t>(index)]; }
  Slot& root_slot(Index index);
  void view_ended(Index index);
  void fill_zero(MPSImage* image) const;

  std::shared_ptr<MetalDeviceBase> device_;
  Retained<NSArray<MPSImage*>*> images_;
  std::shared_ptr<TemporaryRegistry> temporaries_;
  std::shared_ptr<MetalImageStorage> parent_;
  Index parent_index_;
  std::vector<Slot> slots_;
  bool has_room_;
};

// What a gradient state holds of Apple's: the state object that the last forward encode has filled.
class MetalStatePayload final : public StatePayload, public TemporaryObject {
 public:
  // Makes Apple's state of a forward pass that was described but not encoded, for states that need
  // no more than that; `temporary` is the command buffer of a temporary state, else nil.
  using Maker = std::function<MPSState*(const ForwardSnapshot&, MPSCommandBuffer* temporary)>;

  explicit MetalStatePayload(Maker maker = nullptr) : maker_(std::move(maker)) {}
  ~MetalStatePayload() override;
  MPSState* get() const { return state_.get(); }  // nil before the first forward encode
  const Maker& maker() const { return maker_; }
  void assign(MPSState* state, const std::shared_ptr<TemporaryRegistry>& temporaries);
  // One whose read count is somebody else's.
  void borrow(MPSState* state) { state_ = Retained<MPSState*>::share(state); }
  void end() override { end_all(); }
  void end_all() override;

 private:
  Maker maker_;
  Retained<MPSState*> state_;
  bool is_live_ = false;  // temporary, and Apple's read count is not 0
  std::shared_ptr<TemporaryRegistry> temporaries_;
};

}  // namespace mpsgrad::metal
