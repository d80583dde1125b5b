// Normalization of every image and group of channels by itself.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNormalizationWeights.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSCNNGroupNormalization;

@interface MPSCNNGroupNormalizationGradientState : MPSNNGradientState
@property(readonly, nonatomic, retain) MPSCNNGroupNormalization* groupNormalization;
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
typedef NSArray<MPSCNNGroupNormalizationGradientState*> MPSCNNGroupNormalizationGradientStateBatch;

@protocol MPSCNNGroupNormalizationDataSource <NSObject, NSCopying>
@required
- (nullable float*)gamma;
- (nullable float*)beta;
@property(readonly, nonatomic) NSUInteger numberOfFeatureChannels;
@property(readwrite, nonatomic) NSUInteger numberOfGroups;
- (nullable NSString*)label;
@optional
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
           groupNormalizationStateBatch:
               (MPSCNNGroupNormalizationGradientStateBatch*)groupNormalizationStateBatch;
- (BOOL)updateGammaAndBetaWithGroupNormalizationStateBatch:
    (MPSCNNGroupNormalizationGradientStateBatch*)groupNormalizationStateBatch;
- (float)epsilon;
- (void)encodeWithCoder:(NSCoder*)aCoder;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder;
@property(class, readonly) BOOL supportsSecureCoding;
- (instancetype)copyWithZone:(nullable NSZone*)zone device:(nullable id<MTLDevice>)device;
@end

@interface MPSCNNGroupNormalization : MPSCNNKernel
@property(readwrite, nonatomic) float epsilon;
@property(readonly, nonatomic, retain) id<MPSCNNGroupNormalizationDataSource> dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNGroupNormalizationDataSource>)dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)reloadGammaAndBetaFromDataSource;
- (void)reloadGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          gammaAndBetaState:
                              (MPSCNNNormalizationGammaAndBetaState*)gammaAndBetaState;
- (nullable MPSCNNGroupNormalizationGradientState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(nullable NSArray<MPSState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNGroupNormalizationGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
@end

@interface MPSCNNGroupNormalizationGradient : MPSCNNGradientKernel
@end

NS_ASSUME_NONNULL_END
