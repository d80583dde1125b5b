// Reductions of rows, columns and feature channels, and sums of products of two images.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNReduceUnary : MPSCNNKernel
@property(readwrite, nonatomic) MTLRegion clipRectSource;
@property(readwrite, nonatomic) MPSOffset offset;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSNNReduceRowMin : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceRowMax : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceRowMean : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceRowSum : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceColumnMin : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceColumnMax : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceColumnMean : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceColumnSum : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsMin : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsMax : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsMean : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsSum : MPSNNReduceUnary
@property(readwrite, nonatomic) float weight;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsArgumentMin : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsArgumentMax : MPSNNReduceUnary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceBinary : MPSCNNBinaryKernel
@property(readwrite, nonatomic) MTLRegion primarySourceClipRect;
@property(readwrite, nonatomic) MTLRegion secondarySourceClipRect;
@property(readwrite, nonatomic) MPSOffset primaryOffset;
@property(readwrite, nonatomic) MPSOffset secondaryOffset;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSNNReduceFeatureChannelsAndWeightsMean : MPSNNReduceBinary
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNReduceFeatureChannelsAndWeightsSum : MPSNNReduceBinary
@property(readonly, nonatomic) bool doWeightedSumByNonZeroWeights;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device
    doWeightedSumByNonZeroWeights:(bool)doWeightedSumByNonZeroWeights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNLocalCorrelation : MPSNNReduceBinary
@property(readwrite, nonatomic) NSUInteger windowInX;
@property(readwrite, nonatomic) NSUInteger windowInY;
@property(readwrite, nonatomic) NSUInteger strideInX;
@property(readwrite, nonatomic) NSUInteger strideInY;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                     windowInX:(NSUInteger)windowInX
                     windowInY:(NSUInteger)windowInY
                     strideInX:(NSUInteger)strideInX
                     strideInY:(NSUInteger)strideInY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
