// Scale and offset on the GPU.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNNormalizationGammaAndBetaState : MPSState
@property(readonly, nonatomic) id<MTLBuffer> gamma;
@property(readonly, nonatomic) id<MTLBuffer> beta;
- (instancetype)initWithGamma:(id<MTLBuffer>)gamma beta:(id<MTLBuffer>)beta;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                        numberOfFeatureChannels:(NSUInteger)numberOfFeatureChannels;
@end

NS_ASSUME_NONNULL_END
