// Kernels of one's own; of those the emulator runs none.
#pragma once
#import <Metal/MTLCommandEncoder.h>
#import <Metal/MTLFence.h>

NS_ASSUME_NONNULL_BEGIN

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)updateFence:(id<MTLFence>)fence;
- (void)waitForFence:(id<MTLFence>)fence;
@end

NS_ASSUME_NONNULL_END
