// Softmax and log-softmax across channels, and their gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNSoftMax : MPSCNNKernel
@end

@interface MPSCNNLogSoftMax : MPSCNNKernel
@end

@interface MPSCNNSoftMaxGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNLogSoftMaxGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
