// What the emulator's own files share: storage, commands, bodies of images, states and kernels.
#pragma once
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>
#import <emulated_metal/emulated_metal.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "traps.hpp"

@class EmulatedTexture;

namespace emulated_metal {

// The one owner of an Objective-C reference in the emulator's C++ structures.
template <class T>
class Strong {
 public:
  Strong() = default;
  Strong(T object) : object_([object retain]) {}
  Strong(const Strong& other) : object_([other.object_ retain]) {}
  Strong(Strong&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Strong& operator=(Strong other) noexcept { return std::swap(object_, other.object_), *this; }
  ~Strong() { [object_ release]; }
  T get() const { return object_; }
  explicit operator bool() const { return object_ != nil; }

 private:
  T object_ = nil;
};

template <class T>
Strong<T> adopt(T object) {
  Strong<T> owner(object);
  [object release];
  return owner;
}

// ---------------------------------------------------------------- storage

// Memory of one resource. The GPU's copy is what commands see; the CPU's copy, where there is one,
// is junk from commit until the results were published to it.
struct Storage {
  Storage(int device_index, MTLStorageMode mode, size_t bytes, uint8_t junk);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  bool has_cpu_copy() const {
    return mode == MTLStorageModeShared || mode == MTLStorageModeManaged;
  }
  bool publishes_by_itself() const;  // shared storage, and everything on unified memory
  bool busy();                       // used by work that was submitted and has not ended

  const int device_index;
  const MTLStorageMode mode;
  const uint8_t junk;    // a byte that reads as NaN in floating-point formats
  bool in_heap = false;  // where fences alone order blits against kernels
  std::vector<uint8_t> gpu, cpu;
  std::mutex mutex;
  int readers = 0, writers = 0;
};
using StoragePtr = std::shared_ptr<Storage>;

enum class Item { unorm8, unorm16, float16, float32 };
struct Format {
  Item item;
  int lanes;  // 1, 2 or 4
};
bool describe(MTLPixelFormat pixel_format, Format* format);
size_t item_bytes(Item item);
MTLPixelFormat pixel_format_for(MPSImageFeatureChannelFormat format, NSUInteger channels);
uint8_t junk_for(Item item);
float decode(Item item, const uint8_t* bytes);
void encode(Item item, float value, uint8_t* bytes);

// ---------------------------------------------------------------- commands

struct Command {
  std::function<void()> run;  // executed on the queue's thread; touches GPU copies only
  std::vector<StoragePtr> reads, writes;
  std::vector<StoragePtr> publishes;  // synchronized: the CPU sees them when the buffer completes
  StoragePtr predicate;
  size_t predicate_offset = 0;
};

// Appends to the root of `command_buffer` after all checks that any encode makes.
void record(id<MTLCommandBuffer> command_buffer, const Where& where, Command command);
// The checks alone, for methods that must fail before they change anything.
id<MTLCommandBuffer> check_encodable(id<MTLCommandBuffer> command_buffer, const Where& where);
id<MTLCommandBuffer> root_of(id<MTLCommandBuffer> command_buffer, const Where& where);
// Identity of a command buffer and its continuations: what temporary objects are bound to.
const void* lineage_of(id<MTLCommandBuffer> command_buffer, const Where& where);
int device_of(id<MTLCommandBuffer> command_buffer, const Where& where);
void synchronize(id<MTLCommandBuffer> command_buffer, const Where& where,
                 const StoragePtr& storage);

// ---------------------------------------------------------------- devices

id<MTLDevice> device_at(int index);
int index_of(id<MTLDevice> device, const Where& where);
long option(const char* name);
StoragePtr storage_of(id<MTLResource> resource, const Where& where);
// Private storage is that of temporary objects, which share a heap.
id<MTLBuffer> make_buffer(int device_index, size_t length, MTLStorageMode mode);
// From now on it is backed by that heap.
void put_into(id<MTLHeap> heap, id<MTLBuffer> buffer);
void put_into_own_heap(id<MTLBuffer> buffer);
id<MTLFence> make_fence(id<MTLDevice> device);
id<MTLCommandQueue> make_queue(id<MTLDevice> device, int device_index, NSUInteger capacity);
id<MTLHeap> make_heap(id<MTLDevice> device, MTLHeapDescriptor* descriptor);

// ---------------------------------------------------------------- textures

struct TextureDescriptorBody {
  MTLTextureType type = MTLTextureType2D;
  MTLPixelFormat format = MTLPixelFormatRGBA8Unorm;
  NSUInteger width = 1, height = 1, depth = 1, levels = 1, samples = 1, length = 1;
  MTLCPUCacheMode cache = MTLCPUCacheModeDefaultCache;
  MTLStorageMode mode = MTLStorageModeManaged;
  MTLHazardTrackingMode hazard = MTLHazardTrackingModeDefault;
  MTLTextureUsage usage = MTLTextureUsageShaderRead;
  BOOL optimize = YES;
};

struct TextureBody {
  TextureDescriptorBody descriptor;
  Format format;
  StoragePtr storage;
  NSUInteger first_slice = 0;  // inside the storage
  Strong<id<MTLTexture>> parent;
  Strong<id<MTLDevice>> device;
  Strong<NSString*> label;
};

size_t slice_bytes(const TextureBody& texture);

// ---------------------------------------------------------------- images

struct ImageDescriptorBody {
  NSUInteger width = 1, height = 1, channels = 1, count = 1;
  MPSImageFeatureChannelFormat format = MPSImageFeatureChannelFormatNone;
  MTLCPUCacheMode cache = MTLCPUCacheModeDefaultCache;
  MTLStorageMode mode = MTLStorageModeManaged;
  MTLTextureUsage usage = MTLTextureUsageShaderRead | MTLTextureUsageShaderWrite;
};

struct ImageBody {
  ImageDescriptorBody shape;
  Strong<id<MTLDevice>> device;
  Strong<id<MTLTexture>> texture;       // of the whole image; nil until storage is needed
  Strong<id<MTLTexture>> texture_view;  // what -texture of a view returned
  Strong<MPSImage*> parent;
  Strong<NSString*> label;
  NSUInteger first_slice = 0;       // in the texture
  NSUInteger slices_per_image = 1;  // distance between images, in slices
  bool wrapped = false;             // made from a texture that someone else owns
  bool temporary = false;
  const void* lineage = nullptr;
  Strong<id<MTLCommandBuffer>> command_buffer;  // nil except for temporary images
  NSUInteger read_count = 0;
};

// Texels of one image: what commands hold on to.
struct View {
  StoragePtr storage;
  Format format;
  long width = 0, height = 0, channels = 0;
  long first_slice = 0;
};

// Dense floats, height x width x channels.
struct Tensor {
  Tensor() = default;
  Tensor(long height, long width, long channels)
      : h(height), w(width), c(channels), data(static_cast<size_t>(height * width * channels)) {}
  float& at(long y, long x, long k) { return data[static_cast<size_t>((y * w + x) * c + k)]; }
  float at(long y, long x, long k) const { return data[static_cast<size_t>((y * w + x) * c + k)]; }
  long h = 0, w = 0, c = 0;
  std::vector<float> data;
};

ImageBody& body_of(MPSImage* image, const Where& where);
View view_of(MPSImage* image, NSUInteger index, const Where& where);  // allocates storage
Tensor load(const View& view, long first_channel, long count);
struct Box {
  long x = 0, y = 0, z = 0, w = 0, h = 0, d = 0;
};
// Stores whole slices: lanes behind the last produced channel become junk (or 0 past the image).
void store(const View& view, const Box& box, long first_channel, const Tensor& values);
void touch_temporary(MPSImage* image, id<MTLCommandBuffer> command_buffer, const Where& where);
NSUInteger read_count_of(MPSImage* image, const Where& where);
void decrement_read_count(MPSImage* image, NSUInteger by, const Where& where);

// ---------------------------------------------------------------- kernels

// Numbers and objects of a kernel that are copied, compared and archived as one.
class Fields {
 public:
  enum class Mode { encode, decode, fingerprint };
  Fields(Mode mode, NSCoder* coder) : mode_(mode), coder_(coder) {}
  void integer(const char* key, long long& value);
  void real(const char* key, double& value);
  void floats(const char* key, std::vector<float>& values);
  void object(const char* key, id& value);  // retained by whoever holds it
  template <class T>
  void operator()(const char* key, T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      auto number = static_cast<double>(value);
      real(key, number);
      value = static_cast<T>(number);
    } else {
      auto number = static_cast<long long>(value);
      integer(key, number);
      value = static_cast<T>(number);
    }
  }
  Mode mode() const { return mode_; }
  NSCoder* coder() const { return coder_; }
  std::string fingerprint;

 private:
  Mode mode_;
  NSCoder* coder_;
};

struct Params {
  virtual ~Params() = default;
  virtual std::shared_ptr<Params> clone(NSZone* zone, id<MTLDevice> device) const = 0;
  // For a state: the numbers of this moment, and the kernel's own weights.
  virtual std::shared_ptr<Params> recorded() const = 0;
  virtual void fields(Fields&) {}
};
template <class Derived>
struct ParamsOf : Params {
  std::shared_ptr<Params> clone(NSZone*, id<MTLDevice>) const override { return recorded(); }
  std::shared_ptr<Params> recorded() const override {
    return std::make_shared<Derived>(static_cast<const Derived&>(*this));
  }
};

// One source of a kernel, and how it is read.
struct Operand {
  MPSOffset offset{0, 0, 0};
  NSUInteger channel_offset = 0, channel_max = NSUIntegerMax;
  MPSImageEdgeMode edge = MPSImageEdgeModeZero;
  NSUInteger kernel_x = 1, kernel_y = 1, stride_x = 1, stride_y = 1, dilation_x = 1, dilation_y = 1;
};

struct KernelBody {
  Strong<id<MTLDevice>> device;
  MPSKernelOptions options = MPSKernelOptionsNone;
  Strong<NSString*> label;
  std::vector<Operand> sources;
  MTLRegion clip = MPSRectNoClip;
  NSUInteger destination_channel_offset = 0;
  bool backwards = false, state_modified = false;
  NSInteger kernel_offset_x = 0, kernel_offset_y = 0;
  Strong<id<MPSNNPadding>> padding;
  Strong<id<MPSImageAllocator>> allocator;
  std::shared_ptr<Params> params;
  bool returning = false;  // inside an encode that creates its destination

  void fields(Fields& fields);
  std::string fingerprint() const;  // of everything that an encode depends on
  template <class T>
  const T& as() const {
    return static_cast<const T&>(*params);
  }
  template <class T>
  T& as() {
    return static_cast<T&>(*params);
  }
};

// What a gradient state remembers of the forward encode.
struct Snapshot {
  Class kernel_class = Nil;
  KernelBody kernel;
  std::string fingerprint;
  Box clip;  // effective
  long source_w = 0, source_h = 0, source_c = 0, consumed = 0;
  long consumed_secondary = 0;  // binary kernels
  long destination_w = 0, destination_h = 0, produced = 0;
};

// ---------------------------------------------------------------- states

struct StateResource {
  MPSStateResourceType type = MPSStateResourceTypeNone;
  size_t bytes = 0;
  TextureDescriptorBody texture;
  Strong<id<MTLResource>> resource;
};

struct StateBody {
  Strong<id<MTLDevice>> device;
  std::vector<StateResource> resources;
  bool temporary = false;
  const void* lineage = nullptr;
  Strong<id<MTLCommandBuffer>> command_buffer;
  NSUInteger read_count = 0;
  Strong<NSString*> label;
  std::shared_ptr<Snapshot> snapshot;  // gradient states only
  std::shared_ptr<void> payload;       // what a family adds
  bool encoded = false;                // a forward encode has been recorded
};

struct ResourceListBody {
  std::vector<StateResource> textures, buffers;
};

StateBody& body_of(MPSState* state, const Where& where);
void check_state(MPSState* state, id<MTLCommandBuffer> command_buffer, bool read,
                 const Where& where);
void decrement_read_count(MPSState* state, const Where& where);

// ---------------------------------------------------------------- encodes

// Arguments of one encode; a single image is a batch of one.
struct Call {
  id<MTLCommandBuffer> command_buffer = nil;
  std::vector<NSArray<MPSImage*>*> sources;
  NSArray<MPSImage*>* destinations = nil;
  NSArray<MPSState*>* read_states = nil;
  NSArray<MPSState*>* written_states = nil;
  bool batch = false;
};

// One image to process: views of every source and of the destination.
struct Job {
  std::vector<View> sources;
  View destination;
};

struct Plan {
  Box clip;                    // effective; z and d count images
  std::vector<long> consumed;  // channels, per source
  std::vector<Job> jobs;
};

using ProducedChannels = std::function<long(const std::vector<long>&)>;

// All checks that an encode of a CNN kernel makes, and the list of images to process. Leaves read
// counts alone.
Plan plan_encode(const KernelBody& kernel, const Call& call, const ProducedChannels& produced,
                 const Where& where);
// Decrements the read counts of everything that `call` reads; recycles what falls to 0.
void consume(const Call& call, const Where& where);

// Reads a pixel with the edge mode applied.
float fetch(const Tensor& source, long y, long x, long channel, MPSImageEdgeMode edge);

// Works on one image: `out` holds the effective clip.
using Work = std::function<void(const std::vector<Tensor>& sources, Tensor& out, size_t index)>;
// Storage besides the images that every command of an encode touches.
struct Extra {
  std::vector<StoragePtr> reads, writes;
  bool leaves_destination = false;  // nothing is written into the destination images
};
void record_work(const KernelBody& kernel, const Call& call, const Plan& plan, long produced,
                 const Work& work, const Where& where, const Extra& extra = {});

NSArray* single(id object);
MPSImageDescriptor* padded_descriptor(MPSKernel* kernel, NSArray<MPSImage*>* images,
                                      NSArray<MPSState*>* states, const ProducedChannels& produced,
                                      const Where& where);
NSArray<MPSImage*>* allocate_images(MPSKernel* kernel, id<MTLCommandBuffer> command_buffer,
                                    MPSImageDescriptor* descriptor, NSUInteger count,
                                    const Where& where);

}  // namespace emulated_metal

@interface MPSKernel (Emulated)
- (emulated_metal::KernelBody*)emulatedBody;
- (instancetype)emulatedInitWithBody:(emulated_metal::KernelBody*)body;
// Parameters as they are before decoding.
- (std::shared_ptr<emulated_metal::Params>)emulatedParams;
@end

@interface MPSCNNKernel (Emulated)
- (long)emulatedProducedChannels:(long)consumed;
- (Class)emulatedStateClass;  // Nil: no state
- (emulated_metal::Work)emulatedWork:(NSArray<MPSState*>*)states;
- (emulated_metal::Extra)emulatedExtra:(NSArray<MPSState*>*)states;
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources;
- (void)emulatedPrepareState:(MPSState*)state images:(NSArray<MPSImage*>*)images;
- (void)emulatedCheck:(const emulated_metal::Call&)call where:(const emulated_metal::Where&)where;
- (void)emulatedEncode:(const emulated_metal::Call&)call where:(const emulated_metal::Where&)where;
@end

@interface MPSCNNGradientKernel (Emulated)
- (long)emulatedProducedChannels:(const std::vector<long>&)consumed
                        snapshot:(const emulated_metal::Snapshot&)snapshot;
- (bool)emulatedAcceptsState:(MPSState*)state;
- (bool)emulatedAcceptsForwardClass:(Class)forward;
// Refuses a forward pass that this kernel cannot belong to.
- (void)emulatedCheckSnapshot:(const emulated_metal::Snapshot&)snapshot
                        where:(const emulated_metal::Where&)where;
// Offsets that the returning encodes set; the default is that of pointwise kernels.
- (void)emulatedConfigure:(const emulated_metal::Snapshot&)snapshot;
- (emulated_metal::Work)emulatedGradientWork:(NSArray<MPSState*>*)states;
- (emulated_metal::Extra)emulatedGradientExtra:(NSArray<MPSState*>*)states;
- (void)emulatedCheckGradient:(const emulated_metal::Call&)call
                        where:(const emulated_metal::Where&)where;
- (void)emulatedEncodeGradient:(const emulated_metal::Call&)call
                         where:(const emulated_metal::Where&)where;
@end

@interface MPSCommandBuffer (Emulated)
- (void)emulatedContinue;  // what commitAndContinue does
@end

@interface MPSImage (Emulated)
- (emulated_metal::ImageBody*)emulatedBody;
- (instancetype)emulatedInit;
@end

@interface MPSState (Emulated)
- (emulated_metal::StateBody*)emulatedBody;
- (instancetype)emulatedInitWithDevice:(id<MTLDevice>)device;
- (instancetype)emulatedInitTemporary:(id<MTLCommandBuffer>)command_buffer;
@end

// The concrete classes behind Metal's protocols.
@interface EmulatedDevice : NSObject <MTLDevice> {
 @public
  int index_;
}
@end

@interface EmulatedBuffer : EmulatedObject <MTLBuffer> {
 @public
  emulated_metal::StoragePtr* storage_;
  id<MTLDevice> device_;
  MTLResourceOptions options_;
  NSString* label_;
  id<MTLHeap> heap_;
}
@end

@interface EmulatedTexture : EmulatedObject <MTLTexture> {
 @public
  emulated_metal::TextureBody* body_;
}
- (instancetype)initWithBody:(emulated_metal::TextureBody*)body;
@end
