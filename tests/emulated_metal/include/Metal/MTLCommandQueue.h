// Where command buffers come from and in which order they run.
#pragma once
#import <Metal/MTLCommandBuffer.h>

NS_ASSUME_NONNULL_BEGIN

@protocol MTLCommandQueue <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (nullable id<MTLCommandBuffer>)commandBuffer;
- (nullable id<MTLCommandBuffer>)commandBufferWithDescriptor:
    (MTLCommandBufferDescriptor*)descriptor;
- (nullable id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
@end

NS_ASSUME_NONNULL_END
