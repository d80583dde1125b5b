// Normalization of every image and channel by itself.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNormalizationWeights.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSCNNInstanceNormalization;

@interface MPSCNNInstanceNormalizationGradientState : MPSNNGradientState
@property(readonly, nonatomic, retain) MPSCNNInstanceNormalization* instanceNormalization;
@property(readonly, nonatomic, nullable) id<MTLBuffer> gamma;
@property(readonly, nonatomic, nullable) id<MTLBuffer> beta;
@property(readonly, nonatomic) id<MTLBuffer> gradientForGamma;
@property(readonly, nonatomic) id<MTLBuffer> gradientForBeta;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                              textureDescriptor:(MTLTextureDescriptor*)descriptor NS_UNAVAILABLE;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf NS_UNAVAILABLE;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                                     bufferSize:(size_t)bufferSize NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
             textureDescriptor:(MTLTextureDescriptor*)descriptor NS_UNAVAILABLE;
- (instancetype)initWithResource:(nullable id<MTLResource>)resource NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device bufferSize:(size_t)bufferSize NS_UNAVAILABLE;
@end
typedef NSArray<MPSCNNInstanceNormalizationGradientState*>
    MPSCNNInstanceNormalizationGradientStateBatch;

@protocol MPSCNNInstanceNormalizationDataSource <NSObject, NSCopying>
@required
- (nullable float*)gamma;
- (nullable float*)beta;
@property(readonly, nonatomic) NSUInteger numberOfFeatureChannels;
- (nullable NSString*)label;
@optional
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
        instanceNormalizationStateBatch:
            (MPSCNNInstanceNormalizationGradientStateBatch*)instanceNormalizationStateBatch;
- (BOOL)updateGammaAndBetaWithInstanceNormalizationStateBatch:
    (MPSCNNInstanceNormalizationGradientStateBatch*)instanceNormalizationStateBatch;
- (float)epsilon;
- (void)encodeWithCoder:(NSCoder*)aCoder;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder;
@property(class, readonly) BOOL supportsSecureCoding;
- (instancetype)copyWithZone:(nullable NSZone*)zone device:(nullable id<MTLDevice>)device;
- (BOOL)load;
- (void)purge;
@end

@interface MPSCNNInstanceNormalization : MPSCNNKernel
@property(readwrite, nonatomic) float epsilon;
@property(readonly, nonatomic, retain) id<MPSCNNInstanceNormalizationDataSource> dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNInstanceNormalizationDataSource>)dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)reloadGammaAndBetaFromDataSource;
- (void)reloadGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          gammaAndBetaState:
                              (MPSCNNNormalizationGammaAndBetaState*)gammaAndBetaState;
- (nullable MPSCNNInstanceNormalizationGradientState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(nullable NSArray<MPSState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNInstanceNormalizationGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
@end

@interface MPSCNNInstanceNormalizationGradient : MPSCNNGradientKernel
@end

NS_ASSUME_NONNULL_END
