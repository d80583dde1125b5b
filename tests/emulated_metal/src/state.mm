// States: lazily allocated resources, read counts, and what gradient states remember.
#include <set>

#include "internal.hpp"

using namespace emulated_metal;

@implementation MPSStateResourceList
+ (instancetype)resourceList {
  return [[[self alloc] init] autorelease];
}
- (instancetype)init {
  self = [super init];
  body_ = new ResourceListBody;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (void)appendTexture:(MTLTextureDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");
  StateResource resource;
  resource.type = MPSStateResourceTypeTexture;
  resource.texture = *descriptor->body_;
  body_->textures.push_back(resource);
}
- (void)appendBuffer:(NSUInteger)size {
  REQUIRE(size > 0, buffer_length, HERE);
  StateResource resource;
  resource.type = MPSStateResourceTypeBuffer;
  resource.bytes = size;
  body_->buffers.push_back(resource);
}
@end

namespace {

StateResource of_buffer(size_t bytes, const Where& where) {
  REQUIRE(bytes > 0, buffer_length, where);
  StateResource resource;
  resource.type = MPSStateResourceTypeBuffer;
  resource.bytes = bytes;
  return resource;
}

StateResource of_texture(MTLTextureDescriptor* descriptor, const Where& where) {
  REQUIRE(descriptor != nil, nil_argument, where, "descriptor");
  StateResource resource;
  resource.type = MPSStateResourceTypeTexture;
  resource.texture = *descriptor->body_;
  return resource;
}

// Textures first, whatever the order in which the list was filled.
void append(StateBody& body, MPSStateResourceList* list, const Where& where) {
  REQUIRE(list != nil, nil_argument, where, "resourceList");
  body.resources = list->body_->textures;
  body.resources.insert(body.resources.end(), list->body_->buffers.begin(),
                        list->body_->buffers.end());
}

StateResource of_resource(id<MTLResource> existing, const Where& where) {
  const StoragePtr storage = storage_of(existing, where);
  StateResource resource;
  resource.resource = existing;
  if ([existing isKindOfClass:[EmulatedTexture class]]) {
    resource.type = MPSStateResourceTypeTexture;
    resource.texture = static_cast<EmulatedTexture*>(existing)->body_->descriptor;
  } else {
    resource.type = MPSStateResourceTypeBuffer;
    resource.bytes = storage->gpu.size();
  }
  return resource;
}

}  // namespace

namespace emulated_metal {

StateBody& body_of(MPSState* state, const Where& where) {
  REQUIRE(state != nil, nil_argument, where, "state");
  REQUIRE([state isKindOfClass:[MPSState class]], foreign_object, where, "state");
  return *[state emulatedBody];
}

void check_state(MPSState* state, id<MTLCommandBuffer> command_buffer, bool read,
                 const Where& where) {
  (void)read;
  const StateBody& body = body_of(state, where);
  if (body.device) {
    REQUIRE(index_of(body.device.get(), where) == device_of(command_buffer, where),
            different_devices, where, "state");
  }
  if (!body.temporary) return;
  REQUIRE(body.lineage == lineage_of(command_buffer, where), temporary_other_buffer, where,
          "state");
  REQUIRE(body.read_count > 0, state_read_count, where);
}

void decrement_read_count(MPSState* state, const Where& where) {
  StateBody& body = body_of(state, where);
  if (!body.temporary) return;
  REQUIRE(body.read_count > 0, state_read_count, where);
  --body.read_count;
}

}  // namespace emulated_metal

@implementation MPSState
- (StateBody*)emulatedBody {
  return body_;
}
- (instancetype)emulatedInitWithDevice:(id<MTLDevice>)device {
  self = [super init];
  body_ = new StateBody;
  body_->device = device;
  return self;
}
- (instancetype)emulatedInitTemporary:(id<MTLCommandBuffer>)command_buffer {
  const id<MTLCommandBuffer> root = check_encodable(command_buffer, HERE);
  self = [self emulatedInitWithDevice:[root device]];
  body_->temporary = true;
  body_->lineage = lineage_of(command_buffer, HERE);
  body_->command_buffer = root;
  body_->read_count = 1;
  return self;
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf {
  return [[[self alloc] emulatedInitTemporary:cmdBuf] autorelease];
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                                     bufferSize:(size_t)bufferSize {
  MPSState* state = [self temporaryStateWithCommandBuffer:cmdBuf];
  state->body_->resources = {of_buffer(bufferSize, HERE)};
  return state;
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                              textureDescriptor:(MTLTextureDescriptor*)descriptor {
  MPSState* state = [self temporaryStateWithCommandBuffer:cmdBuf];
  state->body_->resources = {of_texture(descriptor, HERE)};
  return state;
}
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                   resourceList:(MPSStateResourceList*)resourceList {
  MPSState* state = [self temporaryStateWithCommandBuffer:commandBuffer];
  append(*state->body_, resourceList, HERE);
  return state;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device bufferSize:(size_t)bufferSize {
  (void)index_of(device, HERE);
  self = [self emulatedInitWithDevice:device];
  body_->resources = {of_buffer(bufferSize, HERE)};
  return self;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
             textureDescriptor:(MTLTextureDescriptor*)descriptor {
  (void)index_of(device, HERE);
  self = [self emulatedInitWithDevice:device];
  body_->resources = {of_texture(descriptor, HERE)};
  return self;
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                  resourceList:(MPSStateResourceList*)resourceList {
  (void)index_of(device, HERE);
  self = [self emulatedInitWithDevice:device];
  append(*body_, resourceList, HERE);
  return self;
}
- (instancetype)initWithResource:(id<MTLResource>)resource {
  return [self initWithResources:resource == nil ? nil : @[ resource ]];
}
- (instancetype)initWithResources:(NSArray<id<MTLResource>>*)resources {
  self = [self emulatedInitWithDevice:nil];
  for (const id<MTLResource> resource in resources) {
    if (body_->device) {
      REQUIRE([resource device] == body_->device.get(), different_devices, HERE);
    }
    body_->device = [resource device];
    body_->resources.push_back(of_resource(resource, HERE));
  }
  return self;
}
- (void)dealloc {
  if (body_ != nullptr) {
    REQUIRE(!body_->temporary || body_->read_count == 0, temporary_released_unread, HERE,
            "state with read count %lu", static_cast<unsigned long>(body_->read_count));
    delete body_;
  }
  [super dealloc];
}
- (NSUInteger)resourceCount {
  return body_->resources.size();
}
- (StateResource&)at:(NSUInteger)index where:(const Where&)where {
  REQUIRE(index < body_->resources.size(), state_resource_index, where, "%lu of %lu",
          static_cast<unsigned long>(index), static_cast<unsigned long>(body_->resources.size()));
  return body_->resources[index];
}
- (id<MTLResource>)resourceAtIndex:(NSUInteger)index allocateMemory:(BOOL)allocateMemory {
  StateResource& entry = [self at:index where:HERE];
  if (!entry.resource && allocateMemory) {
    const MTLStorageMode mode = body_->temporary ? MTLStorageModePrivate : MTLStorageModeManaged;
    if (entry.type == MPSStateResourceTypeBuffer) {
      entry.resource = adopt<id<MTLResource>>([body_->device.get()
          newBufferWithLength:entry.bytes
                      options:static_cast<MTLResourceOptions>(mode)
                              << MTLResourceStorageModeShift]);
      if (body_->temporary) {
        put_into_own_heap(static_cast<id<MTLBuffer>>(entry.resource.get()));
      }
    } else {
      MTLTextureDescriptor* descriptor = [[MTLTextureDescriptor alloc] init];
      *descriptor->body_ = entry.texture;
      descriptor->body_->mode = mode;
      entry.resource =
          adopt<id<MTLResource>>([body_->device.get() newTextureWithDescriptor:descriptor]);
      [descriptor release];
    }
  }
  return entry.resource.get();
}
- (NSUInteger)bufferSizeAtIndex:(NSUInteger)index {
  return [self at:index where:HERE].bytes;
}
- (MPSStateTextureInfo)textureInfoAtIndex:(NSUInteger)index {
  const StateResource& entry = [self at:index where:HERE];
  if (entry.type != MPSStateResourceTypeTexture) return MPSStateTextureInfo{};
  const TextureDescriptorBody& t = entry.texture;
  return {t.width, t.height, t.depth, t.length, t.format, t.type, t.usage, {0, 0, 0, 0}};
}
- (MPSStateResourceType)resourceTypeAtIndex:(NSUInteger)index {
  return [self at:index where:HERE].type;
}
- (NSUInteger)readCount {
  return body_->read_count;
}
- (void)setReadCount:(NSUInteger)count {
  REQUIRE(body_->temporary, state_not_temporary, HERE);
  REQUIRE(body_->read_count > 0, temporary_count_zero, HERE);
  body_->read_count = count;
}
- (BOOL)isTemporary {
  return body_->temporary;
}
- (NSString*)label {
  return body_->label.get();
}
- (void)setLabel:(NSString*)label {
  body_->label = adopt<NSString*>([label copy]);
}
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer {
  check_encodable(commandBuffer, HERE);
  if (body_->device) {
    REQUIRE(index_of(body_->device.get(), HERE) == device_of(commandBuffer, HERE),
            different_devices, HERE);
  }
  if (body_->temporary) return;
  for (const StateResource& entry : body_->resources) {
    if (!entry.resource) continue;
    const StoragePtr storage = storage_of(entry.resource.get(), HERE);
    if (storage->mode == MTLStorageModeManaged) synchronize(commandBuffer, HERE, storage);
  }
}
- (NSUInteger)resourceSize {
  NSUInteger total = 0;
  for (const StateResource& entry : body_->resources) {
    if (entry.resource) {
      total += [entry.resource.get() allocatedSize];
    } else if (entry.type == MPSStateResourceTypeBuffer) {
      total += entry.bytes;
    } else {
      TextureBody texture;
      texture.descriptor = entry.texture;
      if (describe(entry.texture.format, &texture.format)) {
        total += slice_bytes(texture) * entry.texture.length;
      }
    }
  }
  return total;
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)inDescriptor {
  (void)sourceStates;
  REQUIRE(sourceImages != nil && kernel != nil && inDescriptor != nil, nil_argument, HERE);
  return inDescriptor;
}
@end

// Gradient states come from kernels only.
#define UNAVAILABLE_INITS                                                                 \
  -(instancetype)initWithDevice : (id<MTLDevice>)device bufferSize : (size_t)bufferSize { \
    (void)device, (void)bufferSize;                                                       \
    spring(Trap::init_unavailable, HERE);                                                 \
  }                                                                                       \
  -(instancetype)initWithResource : (id<MTLResource>)resource {                           \
    (void)resource;                                                                       \
    spring(Trap::init_unavailable, HERE);                                                 \
  }

@implementation MPSNNGradientState
UNAVAILABLE_INITS
@end

@implementation MPSNNBinaryGradientState
UNAVAILABLE_INITS
@end

@implementation MPSNNMultiaryGradientState
UNAVAILABLE_INITS
@end

// ---------------------------------------------------------------- batches

NSUInteger MPSStateBatchIncrementReadCount(MPSStateBatch* batch, NSInteger amount) {
  std::set<MPSState*> distinct;
  for (MPSState* state in batch) {
    if (!distinct.insert(state).second) continue;
    StateBody& body = body_of(state, FUNCTION);
    if (!body.temporary || body.read_count == 0) continue;
    if (amount < 0) {
      REQUIRE(body.read_count >= static_cast<NSUInteger>(-amount), read_count_overrun, FUNCTION);
    }
    body.read_count += static_cast<NSUInteger>(amount);
  }
  return distinct.size();
}

void MPSStateBatchSynchronize(MPSStateBatch* batch, id<MTLCommandBuffer> cmdBuf) {
  REQUIRE(batch != nil, nil_argument, FUNCTION, "batch");
  std::set<MPSState*> distinct;
  for (MPSState* state in batch) {
    if (distinct.insert(state).second) [state synchronizeOnCommandBuffer:cmdBuf];
  }
}

NSUInteger MPSStateBatchResourceSize(MPSStateBatch* batch) {
  std::set<MPSState*> distinct;
  NSUInteger total = 0;
  for (MPSState* state in batch) {
    if (distinct.insert(state).second) total += [state resourceSize];
  }
  return total;
}
