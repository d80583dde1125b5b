// Element-wise arithmetic of two images, comparisons, and gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNArithmeticGradientState : MPSNNBinaryGradientState
- (instancetype)init NS_UNAVAILABLE;
@end
typedef NSArray<MPSCNNArithmeticGradientState*> MPSCNNArithmeticGradientStateBatch;

@interface MPSCNNArithmetic : MPSCNNBinaryKernel
@property(readwrite, nonatomic) float primaryScale;
@property(readwrite, nonatomic) float secondaryScale;
@property(readwrite, nonatomic) float bias;
@property(readwrite, nonatomic) NSUInteger primaryStrideInFeatureChannels;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInFeatureChannels;
@property(readwrite, nonatomic) float minimumValue;
@property(readwrite, nonatomic) float maximumValue;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                 primaryImage:(MPSImage*)primaryImage
               secondaryImage:(MPSImage*)secondaryImage
             destinationState:(MPSCNNArithmeticGradientState*)destinationState
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     primaryImages:(MPSImageBatch*)primaryImages
                   secondaryImages:(MPSImageBatch*)secondaryImages
                 destinationStates:(MPSCNNArithmeticGradientStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages;
@end

@interface MPSCNNAdd : MPSCNNArithmetic
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNSubtract : MPSCNNArithmetic
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNMultiply : MPSCNNArithmetic
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNDivide : MPSCNNArithmetic
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

typedef NS_OPTIONS(NSUInteger, MPSNNComparisonType) {
  MPSNNComparisonTypeEqual,
  MPSNNComparisonTypeNotEqual,
  MPSNNComparisonTypeLess,
  MPSNNComparisonTypeLessOrEqual,
  MPSNNComparisonTypeGreater,
  MPSNNComparisonTypeGreaterOrEqual
};

@interface MPSNNCompare : MPSCNNArithmetic
@property(readwrite, nonatomic) MPSNNComparisonType comparisonType;
@property(readwrite, nonatomic) float threshold;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSCNNArithmeticGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) float primaryScale;
@property(readwrite, nonatomic) float secondaryScale;
@property(readwrite, nonatomic) float bias;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInFeatureChannels;
@property(readwrite, nonatomic) float minimumValue;
@property(readwrite, nonatomic) float maximumValue;
@property(readonly, nonatomic) BOOL isSecondarySourceFilter;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
       isSecondarySourceFilter:(BOOL)isSecondarySourceFilter NS_UNAVAILABLE;
@end

@interface MPSCNNAddGradient : MPSCNNArithmeticGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
       isSecondarySourceFilter:(BOOL)isSecondarySourceFilter;
@end

@interface MPSCNNSubtractGradient : MPSCNNArithmeticGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
       isSecondarySourceFilter:(BOOL)isSecondarySourceFilter;
@end

@interface MPSCNNMultiplyGradient : MPSCNNArithmeticGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
       isSecondarySourceFilter:(BOOL)isSecondarySourceFilter;
@end

NS_ASSUME_NONNULL_END
