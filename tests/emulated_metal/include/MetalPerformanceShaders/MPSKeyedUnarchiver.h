// Reads kernels from archives and tells them which device to live on.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSKeyedUnarchiver : NSKeyedUnarchiver <MPSDeviceProvider> {
 @public
  id<MTLDevice> device_;
}
+ (nullable id)unarchivedObjectOfClasses:(NSSet<Class>*)classes
                                fromData:(NSData*)data
                                  device:(id<MTLDevice>)device
                                   error:(NSError* _Nullable* _Nullable)error;
+ (nullable id)unarchivedObjectOfClass:(Class)cls
                              fromData:(NSData*)data
                                device:(id<MTLDevice>)device
                                 error:(NSError* _Nullable* _Nullable)error;
- (instancetype)initForReadingFromData:(NSData*)data
                                device:(id<MTLDevice>)device
                                 error:(NSError* _Nullable* _Nullable)error;
- (id<MTLDevice>)mpsMTLDevice;
- (instancetype)init NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
