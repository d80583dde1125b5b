// MPSKernel: copies and archives of any kernel; padding policies; the unarchiver.
#include <cstring>

#include "internal.hpp"

using namespace emulated_metal;

const MTLRegion MPSRectNoClip = {{0, 0, 0}, {NSUIntegerMax, NSUIntegerMax, NSUIntegerMax}};

namespace emulated_metal {

void Fields::integer(const char* key, long long& value) {
  switch (mode_) {
    case Mode::encode:
      [coder_ encodeInt64:value forKey:[NSString stringWithUTF8String:key]];
      break;
    case Mode::decode:
      value = [coder_ decodeInt64ForKey:[NSString stringWithUTF8String:key]];
      break;
    case Mode::fingerprint:
      fingerprint += std::string(key) + "=" + std::to_string(value) + ";";
  }
}

void Fields::real(const char* key, double& value) {
  switch (mode_) {
    case Mode::encode:
      [coder_ encodeDouble:value forKey:[NSString stringWithUTF8String:key]];
      break;
    case Mode::decode:
      value = [coder_ decodeDoubleForKey:[NSString stringWithUTF8String:key]];
      break;
    case Mode::fingerprint:
      fingerprint += std::string(key) + "=" + std::to_string(value) + ";";
  }
}

void Fields::floats(const char* key, std::vector<float>& values) {
  NSString* name = [NSString stringWithUTF8String:key];
  const size_t bytes = values.size() * sizeof(float);
  switch (mode_) {
    case Mode::encode:
      [coder_ encodeObject:[NSData dataWithBytes:values.data() length:bytes] forKey:name];
      break;
    case Mode::decode: {
      NSData* data = [coder_ decodeObjectForKey:name];
      values.resize([data length] / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), [data bytes], [data length]);
      break;
    }
    case Mode::fingerprint:
      fingerprint.append(reinterpret_cast<const char*>(values.data()), bytes);
  }
}

void Fields::object(const char* key, id& value) {
  NSString* name = [NSString stringWithUTF8String:key];
  switch (mode_) {
    case Mode::encode:
      [coder_ encodeObject:value forKey:name];
      break;
    case Mode::decode:
      value = [coder_ decodeObjectForKey:name];
      break;
    case Mode::fingerprint:
      break;
  }
}

void KernelBody::fields(Fields& f) {
  f("options", options);
  auto count = static_cast<NSUInteger>(sources.size());
  f("sources", count);
  sources.resize(count);
  for (size_t index = 0; index < count; ++index) {
    Operand& s = sources[index];
    const std::string prefix = "source" + std::to_string(index) + ".";
    const auto name = [&](const char* key) { return prefix + key; };
    f(name("offset.x").c_str(), s.offset.x);
    f(name("offset.y").c_str(), s.offset.y);
    f(name("offset.z").c_str(), s.offset.z);
    f(name("channel_offset").c_str(), s.channel_offset);
    f(name("channel_max").c_str(), s.channel_max);
    f(name("edge").c_str(), s.edge);
    f(name("kernel_x").c_str(), s.kernel_x);
    f(name("kernel_y").c_str(), s.kernel_y);
    f(name("stride_x").c_str(), s.stride_x);
    f(name("stride_y").c_str(), s.stride_y);
    f(name("dilation_x").c_str(), s.dilation_x);
    f(name("dilation_y").c_str(), s.dilation_y);
  }
  f("clip.x", clip.origin.x);
  f("clip.y", clip.origin.y);
  f("clip.z", clip.origin.z);
  f("clip.w", clip.size.width);
  f("clip.h", clip.size.height);
  f("clip.d", clip.size.depth);
  f("destination_channel_offset", destination_channel_offset);
  f("backwards", backwards);
  f("state_modified", state_modified);
  f("kernel_offset_x", kernel_offset_x);
  f("kernel_offset_y", kernel_offset_y);
  if (params) params->fields(f);
  if (f.mode() == Fields::Mode::fingerprint) return;
  id object = padding.get();
  f.object("padding", object);
  padding = object;
  object = allocator.get();
  f.object("allocator", object);
  allocator = object;
  object = label.get();
  f.object("label", object);
  label = object;
}

std::string KernelBody::fingerprint() const {
  Fields fields(Fields::Mode::fingerprint, nil);
  const_cast<KernelBody*>(this)->fields(fields);  // this mode only reads
  return fields.fingerprint;
}

}  // namespace emulated_metal

@implementation MPSKernel
- (KernelBody*)emulatedBody {
  return body_;
}
- (std::shared_ptr<Params>)emulatedParams {
  return nullptr;
}
- (instancetype)emulatedInitWithBody:(KernelBody*)body {
  self = [super init];
  body_ = body;
  return self;
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)index_of(device, HERE);
  self = [super init];
  body_ = new KernelBody;
  body_->device = device;
  return self;
}
- (void)dealloc {
  delete body_;
  [super dealloc];
}
- (instancetype)copyWithZone:(NSZone*)zone {
  return [self copyWithZone:zone device:nil];
}
- (instancetype)copyWithZone:(NSZone*)zone device:(id<MTLDevice>)device {
  auto body = std::make_unique<KernelBody>(*body_);
  if (device != nil) {
    (void)index_of(device, HERE);
    body->device = device;
  }
  if (body->params) body->params = body->params->clone(zone, body->device.get());
  return [[[self class] allocWithZone:zone] emulatedInitWithBody:body.release()];
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  REQUIRE(coder != nil, nil_argument, HERE, "coder");
  Fields fields(Fields::Mode::encode, coder);
  body_->fields(fields);
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder {
  REQUIRE(aDecoder != nil, nil_argument, HERE, "aDecoder");
  id<MTLDevice> device = nil;
  if ([aDecoder respondsToSelector:@selector(mpsMTLDevice)]) {
    device = [static_cast<id<MPSDeviceProvider>>(aDecoder) mpsMTLDevice];
  } else if (option("devices") > 0) {
    device = device_at(0);
  }
  REQUIRE(device != nil, coder_device, HERE);
  return [self initWithCoder:aDecoder device:device];
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  REQUIRE(aDecoder != nil, nil_argument, HERE, "aDecoder");
  (void)index_of(device, HERE);
  self = [super init];
  body_ = new KernelBody;
  body_->device = device;
  body_->params = [self emulatedParams];
  Fields fields(Fields::Mode::decode, aDecoder);
  body_->fields(fields);
  return self;
}
- (MPSKernelOptions)options {
  return body_->options;
}
- (void)setOptions:(MPSKernelOptions)options {
  body_->options = options;
}
- (id<MTLDevice>)device {
  return body_->device.get();
}
- (NSString*)label {
  return body_->label.get();
}
- (void)setLabel:(NSString*)label {
  body_->label = adopt<NSString*>([label copy]);
}
@end

// ---------------------------------------------------------------- padding

@implementation MPSNNDefaultPadding
+ (instancetype)paddingWithMethod:(MPSNNPaddingMethod)method {
  constexpr MPSNNPaddingMethod known =
      MPSNNPaddingMethodAlignMask | MPSNNPaddingMethodAddRemainderToMask | 0x30UL |
      MPSNNPaddingMethodCustomAllowForNodeFusion | MPSNNPaddingMethodExcludeEdges;
  REQUIRE((method & ~known) == 0 &&
              (method & MPSNNPaddingMethodAlignMask) != MPSNNPaddingMethodAlign_reserved &&
              (method & MPSNNPaddingMethodSizeMask) != MPSNNPaddingMethodSize_reserved,
          padding_method, HERE, "0x%lx", static_cast<unsigned long>(method));
  MPSNNDefaultPadding* padding = [[[self alloc] init] autorelease];
  padding->method_ = method;
  return padding;
}
+ (instancetype)paddingForTensorflowAveragePooling {
  MPSNNDefaultPadding* padding = [[[self alloc] init] autorelease];
  padding->method_ = MPSNNPaddingMethodCustom | MPSNNPaddingMethodSizeSame |
                     MPSNNPaddingMethodAddRemainderToBottomRight;
  padding->flavour_ = 1;
  return padding;
}
+ (instancetype)paddingForTensorflowAveragePoolingValidOnly {
  MPSNNDefaultPadding* padding = [[[self alloc] init] autorelease];
  padding->method_ = MPSNNPaddingMethodCustom | MPSNNPaddingMethodSizeValidOnly |
                     MPSNNPaddingMethodAddRemainderToBottomRight;
  padding->flavour_ = 2;
  return padding;
}
- (MPSNNPaddingMethod)paddingMethod {
  return method_;
}
- (NSString*)label {
  return [NSString stringWithFormat:@"Emulated padding 0x%lx", static_cast<unsigned long>(method_)];
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)inDescriptor {
  (void)sourceImages, (void)sourceStates;
  if (flavour_ != 0 && [kernel isKindOfClass:[MPSCNNKernel class]]) {
    [static_cast<MPSCNNKernel*>(kernel) setEdgeMode:MPSImageEdgeModeClamp];
  }
  return inDescriptor;
}
- (instancetype)inverse {
  if (flavour_ != 0) return nil;
  MPSNNPaddingMethod method = method_;
  const MPSNNPaddingMethod size = method & MPSNNPaddingMethodSizeMask;
  method &= ~MPSNNPaddingMethodSizeMask;
  method |= size == MPSNNPaddingMethodSizeValidOnly ? MPSNNPaddingMethodSizeFull
            : size == MPSNNPaddingMethodSizeFull    ? MPSNNPaddingMethodSizeValidOnly
                                                    : size;
  return [MPSNNDefaultPadding paddingWithMethod:method];
}
+ (BOOL)supportsSecureCoding {
  return YES;
}
- (void)encodeWithCoder:(NSCoder*)coder {
  [coder encodeInt64:static_cast<int64_t>(method_) forKey:@"method"];
  [coder encodeInt64:flavour_ forKey:@"flavour"];
}
- (instancetype)initWithCoder:(NSCoder*)coder {
  self = [super init];
  method_ = static_cast<MPSNNPaddingMethod>([coder decodeInt64ForKey:@"method"]);
  flavour_ = static_cast<NSInteger>([coder decodeInt64ForKey:@"flavour"]);
  return self;
}
@end

// ---------------------------------------------------------------- unarchiver

@implementation MPSKeyedUnarchiver
+ (id)unarchivedObjectOfClasses:(NSSet<Class>*)classes
                       fromData:(NSData*)data
                         device:(id<MTLDevice>)device
                          error:(NSError**)error {
  REQUIRE(classes != nil && data != nil, nil_argument, HERE);
  MPSKeyedUnarchiver* reader = [[self alloc] initForReadingFromData:data device:device error:error];
  const id object = [reader decodeObjectForKey:@"root"];
  [reader finishDecoding];
  [[object retain] autorelease];
  [reader release];
  for (const Class allowed in classes) {
    if ([object isKindOfClass:allowed]) return object;
  }
  if (error != nullptr) {
    *error = [NSError errorWithDomain:NSCocoaErrorDomain
                                 code:4864
                             userInfo:@{NSLocalizedDescriptionKey : @"Unexpected class"}];
  }
  return nil;
}
+ (id)unarchivedObjectOfClass:(Class)cls
                     fromData:(NSData*)data
                       device:(id<MTLDevice>)device
                        error:(NSError**)error {
  return [self unarchivedObjectOfClasses:[NSSet setWithObject:cls]
                                fromData:data
                                  device:device
                                   error:error];
}
- (instancetype)init {
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)initForReadingFromData:(NSData*)data
                                device:(id<MTLDevice>)device
                                 error:(NSError**)error {
  REQUIRE(data != nil, nil_argument, HERE, "data");
  (void)index_of(device, HERE);
  if (error != nullptr) *error = nil;
  self = [super initForReadingWithData:data];
  device_ = device;
  return self;
}
- (id<MTLDevice>)mpsMTLDevice {
  return device_;
}
@end
