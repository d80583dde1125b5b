// Batch normalization: statistics, forward, gradients, state.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNeuron.h>
#import <MetalPerformanceShaders/MPSCNNNormalizationWeights.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSCNNBatchNormalization;

@interface MPSCNNBatchNormalizationState : MPSNNGradientState
@property(readonly, retain, nonatomic) MPSCNNBatchNormalization* batchNormalization;
- (instancetype)initWithResource:(nullable id<MTLResource>)resource NS_UNAVAILABLE;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                                     bufferSize:(size_t)bufferSize NS_UNAVAILABLE;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                              textureDescriptor:(MTLTextureDescriptor*)descriptor NS_UNAVAILABLE;
- (void)reset;
- (nullable id<MTLBuffer>)gamma;
- (nullable id<MTLBuffer>)beta;
- (nullable id<MTLBuffer>)mean;
- (nullable id<MTLBuffer>)variance;
- (nullable id<MTLBuffer>)gradientForGamma;
- (nullable id<MTLBuffer>)gradientForBeta;
@end

@interface MPSCNNNormalizationMeanAndVarianceState : MPSState
@property(readonly, nonatomic) id<MTLBuffer> mean;
@property(readonly, nonatomic) id<MTLBuffer> variance;
- (instancetype)initWithMean:(id<MTLBuffer>)mean variance:(id<MTLBuffer>)variance;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                        numberOfFeatureChannels:(NSUInteger)numberOfFeatureChannels;
@end

@protocol MPSCNNBatchNormalizationDataSource <NSObject, NSCopying>
@required
- (NSUInteger)numberOfFeatureChannels;
- (nullable float*)gamma;
- (nullable float*)beta;
- (nullable float*)mean;
- (nullable float*)variance;
- (BOOL)load;
- (void)purge;
- (nullable NSString*)label;
@optional
- (nullable MPSCNNNormalizationGammaAndBetaState*)
    updateGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState;
- (nullable MPSCNNNormalizationMeanAndVarianceState*)
    updateMeanAndVarianceWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState;
- (BOOL)updateGammaAndBetaWithBatchNormalizationState:
    (MPSCNNBatchNormalizationState*)batchNormalizationState;
- (BOOL)updateMeanAndVarianceWithBatchNormalizationState:
    (MPSCNNBatchNormalizationState*)batchNormalizationState;
- (float)epsilon;
- (void)encodeWithCoder:(NSCoder*)aCoder;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder;
@property(class, readonly) BOOL supportsSecureCoding;
- (instancetype)copyWithZone:(nullable NSZone*)zone device:(nullable id<MTLDevice>)device;
@end

@interface MPSCNNBatchNormalization : MPSCNNKernel
@property(readonly, nonatomic) NSUInteger numberOfFeatureChannels;
@property(readwrite, nonatomic) float epsilon;
@property(readonly, nonatomic, retain) id<MPSCNNBatchNormalizationDataSource> dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource
         fusedNeuronDescriptor:(nullable MPSNNNeuronDescriptor*)fusedNeuronDescriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
                 destinationImages:(MPSImageBatch*)destinationImages;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationState:(MPSState*)destinationState
             destinationImage:(MPSImage*)destinationImage NS_UNAVAILABLE;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState* _Nullable __autoreleasing* _Nonnull)outState
       destinationStateIsTemporary:(BOOL)isTemporary NS_UNAVAILABLE;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationStates:(nullable MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages NS_UNAVAILABLE;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:
                               (MPSStateBatch* _Nullable __autoreleasing* _Nonnull)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary NS_UNAVAILABLE;
- (nullable MPSCNNBatchNormalizationState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(nullable NSArray<MPSState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNBatchNormalizationState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
- (void)reloadGammaAndBetaFromDataSource;
- (void)reloadMeanAndVarianceFromDataSource;
- (void)reloadGammaAndBetaWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          gammaAndBetaState:
                              (MPSCNNNormalizationGammaAndBetaState*)gammaAndBetaState;
- (void)reloadMeanAndVarianceWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          meanAndVarianceState:
                              (MPSCNNNormalizationMeanAndVarianceState*)meanAndVarianceState;
@end

@interface MPSCNNBatchNormalizationStatistics : MPSCNNKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationImages:(MPSImageBatch*)destinationImages NS_UNAVAILABLE;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationImage:(MPSImage*)destinationImage NS_UNAVAILABLE;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage NS_UNAVAILABLE;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages NS_UNAVAILABLE;
@end

@interface MPSCNNBatchNormalizationGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device
         fusedNeuronDescriptor:(nullable MPSNNNeuronDescriptor*)fusedNeuronDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
               sourceGradient:(MPSImage*)sourceGradient
                  sourceImage:(MPSImage*)sourceImage
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
          destinationGradient:(MPSImage*)destinationGradient;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
              destinationGradients:(MPSImageBatch*)destinationGradients;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    sourceGradient:(MPSImage*)sourceGradient
                       sourceImage:(MPSImage*)sourceImage
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                     batchNormalizationState:
                         (MPSCNNBatchNormalizationState*)batchNormalizationState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                 primaryImage:(MPSImage*)primaryImage
               secondaryImage:(MPSImage*)secondaryImage
             destinationImage:(MPSImage*)destinationImage NS_UNAVAILABLE;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     primaryImages:(MPSImageBatch*)primaryImages
                   secondaryImages:(MPSImageBatch*)secondaryImages
                 destinationImages:(MPSImageBatch*)destinationImages NS_UNAVAILABLE;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      primaryImage:(MPSImage*)primaryImage
                    secondaryImage:(MPSImage*)secondaryImage NS_UNAVAILABLE;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               primaryImages:(MPSImageBatch*)primaryImage
                             secondaryImages:(MPSImageBatch*)secondaryImage NS_UNAVAILABLE;
@end

@interface MPSCNNBatchNormalizationStatisticsGradient : MPSCNNGradientKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device
         fusedNeuronDescriptor:(nullable MPSNNNeuronDescriptor*)fusedNeuronDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
           batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    sourceGradient:(MPSImage*)sourceGradient
                       sourceImage:(MPSImage*)sourceImage
                     gradientState:(MPSState*)gradientState NS_UNAVAILABLE;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
               sourceGradient:(MPSImage*)sourceGradient
                  sourceImage:(MPSImage*)sourceImage
                gradientState:(MPSState*)gradientState
          destinationGradient:(MPSImage*)destinationGradient NS_UNAVAILABLE;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                              gradientStates:(MPSStateBatch*)gradientStates NS_UNAVAILABLE;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
                    gradientStates:(MPSStateBatch*)gradientStates
              destinationGradients:(MPSImageBatch*)destinationGradients NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
