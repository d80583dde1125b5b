// Dropout, its mask and its gradient.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNDropoutGradientState : MPSNNGradientState
- (instancetype)init NS_UNAVAILABLE;
- (NSData*)maskData;
@end
typedef NSArray<MPSCNNDropoutGradientState*> MPSCNNDropoutGradientStateBatch;

@interface MPSCNNDropout : MPSCNNKernel
@property(readonly, nonatomic) float keepProbability;
@property(readonly, nonatomic) NSUInteger seed;
@property(readonly, nonatomic) MTLSize maskStrideInPixels;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device
               keepProbability:(float)keepProbability
                          seed:(NSUInteger)seed
            maskStrideInPixels:(MTLSize)maskStrideInPixels;
- (nullable MPSCNNDropoutGradientState*)resultStateForSourceImage:(MPSImage*)sourceImage
                                                     sourceStates:
                                                         (nullable NSArray<MPSState*>*)sourceStates
                                                 destinationImage:(MPSImage*)destinationImage;
// Declared like this by the framework: what comes back is the batch.
- (nullable MPSCNNDropoutGradientState*)
    resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                      sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                  destinationImage:(MPSImageBatch*)destinationImage;
- (nullable MPSCNNDropoutGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNDropoutGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage;
@end

@interface MPSCNNDropoutGradient : MPSCNNGradientKernel
@property(readonly, nonatomic) float keepProbability;
@property(readonly, nonatomic) NSUInteger seed;
@property(readonly, nonatomic) MTLSize maskStrideInPixels;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device
               keepProbability:(float)keepProbability
                          seed:(NSUInteger)seed
            maskStrideInPixels:(MTLSize)maskStrideInPixels;
@end

NS_ASSUME_NONNULL_END
