// What orders encoders that share memory of a heap.
#pragma once
#import <Metal/MTLDefines.h>

NS_ASSUME_NONNULL_BEGIN

@protocol MTLDevice;

@protocol MTLFence <NSObject>
@property(nonnull, readonly) id<MTLDevice> device;
@property(nullable, copy, atomic) NSString* label;
@end

NS_ASSUME_NONNULL_END
