// Upsampling kernels and their gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNUpsampling : MPSCNNKernel
@property(readonly, nonatomic) double scaleFactorX;
@property(readonly, nonatomic) double scaleFactorY;
@property(readonly, nonatomic) BOOL alignCorners;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNUpsamplingNearest : MPSCNNUpsampling
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
@end

@interface MPSCNNUpsamplingBilinear : MPSCNNUpsampling
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY
                  alignCorners:(BOOL)alignCorners;
@end

@interface MPSCNNUpsamplingGradient : MPSCNNGradientKernel
@property(readonly, nonatomic) double scaleFactorX;
@property(readonly, nonatomic) double scaleFactorY;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNUpsamplingNearestGradient : MPSCNNUpsamplingGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
@end

@interface MPSCNNUpsamplingBilinearGradient : MPSCNNUpsamplingGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
@end

NS_ASSUME_NONNULL_END
