// Reshape and pad, and their gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNReshape : MPSCNNKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                     reshapedWidth:(NSUInteger)reshapedWidth
                    reshapedHeight:(NSUInteger)reshapedHeight
           reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState* _Nullable __autoreleasing* _Nonnull)outState
       destinationStateIsTemporary:(BOOL)isTemporary
                     reshapedWidth:(NSUInteger)reshapedWidth
                    reshapedHeight:(NSUInteger)reshapedHeight
           reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                               reshapedWidth:(NSUInteger)reshapedWidth
                              reshapedHeight:(NSUInteger)reshapedHeight
                     reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:
                               (MPSStateBatch* _Nullable __autoreleasing* _Nonnull)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary
                               reshapedWidth:(NSUInteger)reshapedWidth
                              reshapedHeight:(NSUInteger)reshapedHeight
                     reshapedFeatureChannels:(NSUInteger)reshapedFeatureChannels;
@end

@interface MPSNNReshapeGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNPad : MPSCNNKernel
@property(readwrite, nonatomic) MPSImageCoordinate paddingSizeBefore;
@property(readwrite, nonatomic) MPSImageCoordinate paddingSizeAfter;
@property(readwrite, nonatomic) float fillValue;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter;
- (instancetype)initWithDevice:(id<MTLDevice>)device
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter
                fillValueArray:(nullable NSData*)fillValueArray;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNPadGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
