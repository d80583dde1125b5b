// The root of all kernels.
#pragma once
#import <MetalPerformanceShaders/MPSCommandBuffer.h>
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

MTL_EXTERN BOOL MPSSupportsMTLDevice(id<MTLDevice> _Nullable device);
MTL_EXTERN void MPSHintTemporaryMemoryHighWaterMark(id<MTLCommandBuffer> cmdBuf, NSUInteger bytes);
MTL_EXTERN void MPSSetHeapCacheDuration(id<MTLCommandBuffer> cmdBuf, double seconds);

typedef NS_OPTIONS(NSUInteger, MPSDeviceOptions) {
  MPSDeviceOptionsDefault = 0,
  MPSDeviceOptionsLowPower = 0x1,
  MPSDeviceOptionsSkipRemovable = 0x2,
};
MTL_EXTERN id<MTLDevice> _Nullable MPSGetPreferredDevice(MPSDeviceOptions options);

@interface MPSKernel : EmulatedObject <NSCopying, NSSecureCoding> {
 @public
  emulated_metal::KernelBody* body_;
}
@property(readwrite, nonatomic) MPSKernelOptions options;
@property(readonly, retain, nonatomic) id<MTLDevice> device;
@property(copy, atomic, nullable) NSString* label;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (instancetype)copyWithZone:(nullable NSZone*)zone device:(nullable id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
