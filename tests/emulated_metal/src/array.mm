// MPSVector, MPSMatrix and their temporary forms.
#include "array.hpp"

using namespace emulated_metal;

namespace emulated_metal {

namespace {

NSUInteger padded_bytes(NSUInteger elements, MPSDataType type) {
  return (elements * MPSSizeofMPSDataType(type) + 15) / 16 * 16;
}

void check_shape(const ArrayBody& a, const Where& where) {
  const size_t item = MPSSizeofMPSDataType(a.type);
  REQUIRE(item > 0, array_descriptor, where, "data type 0x%x", static_cast<unsigned>(a.type));
  REQUIRE(a.rows > 0 && a.columns > 0 && a.count > 0, array_descriptor, where, "a size is 0");
  REQUIRE(a.row_bytes % item == 0 && a.row_bytes >= a.columns * item, array_descriptor, where,
          "row of %lu bytes", static_cast<unsigned long>(a.row_bytes));
  REQUIRE(a.array_bytes % item == 0 && (a.count == 1 || a.array_bytes >= a.rows * a.row_bytes),
          array_descriptor, where, "%lu bytes each", static_cast<unsigned long>(a.array_bytes));
}

ArrayBody* with_buffer(const ArrayBody& shape, id<MTLBuffer> buffer, NSUInteger offset,
                       const Where& where) {
  REQUIRE(buffer != nil, nil_argument, where, "buffer");
  (void)storage_of(buffer, where);
  auto body = std::make_unique<ArrayBody>(shape);
  check_shape(*body, where);
  body->offset = offset;
  REQUIRE(
      offset % MPSSizeofMPSDataType(shape.type) == 0 && offset + body->bytes() <= [buffer length],
      array_buffer, where, "%lu bytes at %lu in %lu", static_cast<unsigned long>(body->bytes()),
      static_cast<unsigned long>(offset), static_cast<unsigned long>([buffer length]));
  body->buffer = buffer;
  body->device = [buffer device];
  return body.release();
}

ArrayBody* with_device(const ArrayBody& shape, id<MTLDevice> device, const Where& where) {
  (void)index_of(device, where);
  check_shape(shape, where);
  auto* body = new ArrayBody(shape);
  body->device = device;
  return body;
}

ArrayBody* with_command_buffer(const ArrayBody& shape, id<MTLCommandBuffer> command_buffer,
                               const Where& where) {
  const id<MTLCommandBuffer> root = check_encodable(command_buffer, where);
  ArrayBody* body = with_device(shape, [root device], where);
  body->temporary = true;
  body->lineage = lineage_of(command_buffer, where);
  body->command_buffer = root;
  body->read_count = 1;
  return body;
}

id<MTLBuffer> ensure_buffer(ArrayBody& body) {
  if (!body.buffer) {
    const Where where{nil, nullptr, "data"};
    body.buffer = make_buffer(index_of(body.device.get(), where), body.bytes(),
                              body.temporary ? MTLStorageModePrivate : MTLStorageModeManaged);
  }
  return body.buffer.get();
}

void synchronize_array(ArrayBody& body, id<MTLCommandBuffer> command_buffer, const Where& where) {
  check_encodable(command_buffer, where);
  REQUIRE(index_of(body.device.get(), where) == device_of(command_buffer, where), different_devices,
          where);
  if (body.temporary || !body.buffer) return;
  const StoragePtr storage = storage_of(body.buffer.get(), where);
  if (storage->mode == MTLStorageModeManaged) synchronize(command_buffer, where, storage);
}

void free_array(ArrayBody* body, const Where& where) {
  if (body == nullptr) return;
  REQUIRE(!body->temporary || body->read_count == 0, temporary_released_unread, where);
  delete body;
}

void set_read_count(ArrayBody& body, NSUInteger count, const Where& where) {
  REQUIRE(body.read_count > 0, temporary_count_zero, where);
  body.read_count = count;
}

}  // namespace

NSUInteger ArrayBody::bytes() const {
  return (count - 1) * array_bytes + (rows - 1) * row_bytes + columns * MPSSizeofMPSDataType(type);
}

ArrayBody* array_of(id object, const Where& where) {
  if (object == nil) return nullptr;
  ArrayBody* body = nullptr;
  if ([object isKindOfClass:[MPSVector class]]) {
    body = static_cast<MPSVector*>(object)->body_;
  } else {
    REQUIRE([object isKindOfClass:[MPSMatrix class]], foreign_object, where);
    body = static_cast<MPSMatrix*>(object)->body_;
  }
  ensure_buffer(*body);
  return body;
}

void check_array(id array, id<MTLCommandBuffer> command_buffer, const Where& where) {
  const ArrayBody& body = *array_of(array, where);
  REQUIRE(index_of(body.device.get(), where) == device_of(command_buffer, where), different_devices,
          where, "vector or matrix");
  if (!body.temporary) return;
  REQUIRE(body.lineage == lineage_of(command_buffer, where), temporary_other_buffer, where);
  REQUIRE(body.read_count > 0, source_read_count, where);
}

void decrement_array(id array, const Where& where) {
  ArrayBody& body = *array_of(array, where);
  if (!body.temporary) return;
  REQUIRE(body.read_count > 0, source_read_count, where);
  --body.read_count;
}

}  // namespace emulated_metal

#define FIELD(type, getter, setter, member) \
  -(type)getter {                           \
    return body_->member;                   \
  }                                         \
  -(void)setter : (type)value {             \
    body_->member = value;                  \
  }
#define READ(type, getter, member) \
  -(type)getter {                  \
    return body_->member;          \
  }

@implementation MPSMatrixDescriptor
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                rowBytes:(NSUInteger)rowBytes
                                dataType:(MPSDataType)dataType {
  return [self matrixDescriptorWithRows:rows
                                columns:columns
                               matrices:1
                               rowBytes:rowBytes
                            matrixBytes:rows * rowBytes
                               dataType:dataType];
}
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                matrices:(NSUInteger)matrices
                                rowBytes:(NSUInteger)rowBytes
                             matrixBytes:(NSUInteger)matrixBytes
                                dataType:(MPSDataType)dataType {
  MPSMatrixDescriptor* descriptor = [[[self alloc] init] autorelease];
  ArrayBody& body = *descriptor->body_;
  body.rows = rows;
  body.columns = columns;
  body.count = matrices;
  body.row_bytes = rowBytes;
  body.array_bytes = matrixBytes;
  body.type = dataType;
  return descriptor;
}
+ (size_t)rowBytesForColumns:(NSUInteger)columns dataType:(MPSDataType)dataType {
  return padded_bytes(columns, dataType);
}
- (instancetype)init {
  self = [super init];
  body_ = new ArrayBody;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
FIELD(NSUInteger, rows, setRows, rows)
FIELD(NSUInteger, columns, setColumns, columns)
FIELD(MPSDataType, dataType, setDataType, type)
FIELD(NSUInteger, rowBytes, setRowBytes, row_bytes)
READ(NSUInteger, matrices, count)
READ(NSUInteger, matrixBytes, array_bytes)
@end

@implementation MPSVectorDescriptor
+ (instancetype)vectorDescriptorWithLength:(NSUInteger)length dataType:(MPSDataType)dataType {
  return [self vectorDescriptorWithLength:length
                                  vectors:1
                              vectorBytes:length * MPSSizeofMPSDataType(dataType)
                                 dataType:dataType];
}
+ (instancetype)vectorDescriptorWithLength:(NSUInteger)length
                                   vectors:(NSUInteger)vectors
                               vectorBytes:(NSUInteger)vectorBytes
                                  dataType:(MPSDataType)dataType {
  MPSVectorDescriptor* descriptor = [[[self alloc] init] autorelease];
  ArrayBody& body = *descriptor->body_;
  body.columns = length;
  body.count = vectors;
  body.row_bytes = body.array_bytes = vectorBytes;
  body.type = dataType;
  return descriptor;
}
+ (size_t)vectorBytesForLength:(NSUInteger)length dataType:(MPSDataType)dataType {
  return padded_bytes(length, dataType);
}
- (instancetype)init {
  self = [super init];
  body_ = new ArrayBody;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
FIELD(NSUInteger, length, setLength, columns)
FIELD(MPSDataType, dataType, setDataType, type)
READ(NSUInteger, vectors, count)
READ(NSUInteger, vectorBytes, array_bytes)
@end

#define ARRAY_COMMON(descriptor_class)                                                         \
  -(instancetype)init {                                                                        \
    spring(Trap::init_unavailable, HERE);                                                      \
  }                                                                                            \
  -(instancetype)initWithBuffer : (id<MTLBuffer>)buffer descriptor                             \
      : (descriptor_class*)descriptor {                                                        \
    REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");                              \
    self = [super init];                                                                       \
    body_ = with_buffer(*descriptor->body_, buffer, 0, HERE);                                  \
    return self;                                                                               \
  }                                                                                            \
  -(instancetype)initWithBuffer : (id<MTLBuffer>)buffer offset : (NSUInteger)offset descriptor \
      : (descriptor_class*)descriptor {                                                        \
    REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");                              \
    self = [super init];                                                                       \
    body_ = with_buffer(*descriptor->body_, buffer, offset, HERE);                             \
    return self;                                                                               \
  }                                                                                            \
  -(instancetype)initWithDevice : (id<MTLDevice>)device descriptor                             \
      : (descriptor_class*)descriptor {                                                        \
    REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");                              \
    self = [super init];                                                                       \
    body_ = with_device(*descriptor->body_, device, HERE);                                     \
    return self;                                                                               \
  }                                                                                            \
  -(instancetype)emulatedInitWithBody : (ArrayBody*)body {                                     \
    self = [super init];                                                                       \
    body_ = body;                                                                              \
    return self;                                                                               \
  }                                                                                            \
  -(void)dealloc {                                                                             \
    free_array(body_, HERE);                                                                   \
    [super dealloc];                                                                           \
  }                                                                                            \
  -(id<MTLDevice>)device {                                                                     \
    return body_->device.get();                                                                \
  }                                                                                            \
  READ(MPSDataType, dataType, type)                                                            \
  READ(NSUInteger, offset, offset)                                                             \
  -(id<MTLBuffer>)data {                                                                       \
    REQUIRE(!body_->temporary || body_->read_count > 0, temporary_count_zero, HERE);           \
    return ensure_buffer(*body_);                                                              \
  }                                                                                            \
  -(void)synchronizeOnCommandBuffer : (id<MTLCommandBuffer>)commandBuffer {                    \
    synchronize_array(*body_, commandBuffer, HERE);                                            \
  }                                                                                            \
  -(NSUInteger)resourceSize {                                                                  \
    return body_->bytes();                                                                     \
  }

@implementation MPSMatrix
ARRAY_COMMON(MPSMatrixDescriptor)
READ(NSUInteger, rows, rows)
READ(NSUInteger, columns, columns)
READ(NSUInteger, matrices, count)
READ(NSUInteger, rowBytes, row_bytes)
READ(NSUInteger, matrixBytes, array_bytes)
@end

@implementation MPSVector
ARRAY_COMMON(MPSVectorDescriptor)
READ(NSUInteger, length, columns)
READ(NSUInteger, vectors, count)
READ(NSUInteger, vectorBytes, array_bytes)
@end

#define TEMPORARY_COMMON(descriptor_class)                         \
  -(instancetype)initWithBuffer : (id<MTLBuffer>)buffer descriptor \
      : (descriptor_class*)descriptor {                            \
    (void)buffer, (void)descriptor;                                \
    spring(Trap::init_unavailable, HERE);                          \
  }                                                                \
  -(NSUInteger)readCount {                                         \
    return body_->read_count;                                      \
  }                                                                \
  -(void)setReadCount : (NSUInteger)count {                        \
    set_read_count(*body_, count, HERE);                           \
  }

@implementation MPSTemporaryMatrix
TEMPORARY_COMMON(MPSMatrixDescriptor)
+ (instancetype)temporaryMatrixWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                matrixDescriptor:(MPSMatrixDescriptor*)matrixDescriptor {
  REQUIRE(matrixDescriptor != nil, nil_argument, HERE, "matrixDescriptor");
  return [[[self alloc] emulatedInitWithBody:with_command_buffer(*matrixDescriptor->body_,
                                                                 commandBuffer, HERE)] autorelease];
}
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    matrixDescriptorList:(NSArray<MPSMatrixDescriptor*>*)descriptorList {
  check_encodable(commandBuffer, HERE);
  REQUIRE(descriptorList != nil, nil_argument, HERE, "matrixDescriptorList");
}
@end

@implementation MPSTemporaryVector
TEMPORARY_COMMON(MPSVectorDescriptor)
+ (instancetype)temporaryVectorWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                      descriptor:(MPSVectorDescriptor*)descriptor {
  REQUIRE(descriptor != nil, nil_argument, HERE, "descriptor");
  return [[[self alloc] emulatedInitWithBody:with_command_buffer(*descriptor->body_, commandBuffer,
                                                                 HERE)] autorelease];
}
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          descriptorList:(NSArray<MPSVectorDescriptor*>*)descriptorList {
  check_encodable(commandBuffer, HERE);
  REQUIRE(descriptorList != nil, nil_argument, HERE, "descriptorList");
}
@end
