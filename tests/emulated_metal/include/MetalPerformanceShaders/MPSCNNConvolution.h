// Convolution, fully connected and transposed convolution: forward, gradient, states.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNNeuron.h>
#import <MetalPerformanceShaders/MPSNNGradientState.h>
#import <simd/simd.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNConvolutionDescriptor : EmulatedObject <NSSecureCoding, NSCopying> {
 @public
  emulated_metal::ConvolutionDescriptorBody* body_;
}
@property(readwrite, nonatomic) NSUInteger kernelWidth;
@property(readwrite, nonatomic) NSUInteger kernelHeight;
@property(readwrite, nonatomic) NSUInteger inputFeatureChannels;
@property(readwrite, nonatomic) NSUInteger outputFeatureChannels;
@property(readwrite, nonatomic) NSUInteger strideInPixelsX;
@property(readwrite, nonatomic) NSUInteger strideInPixelsY;
@property(readwrite, nonatomic) NSUInteger groups;
@property(readwrite, nonatomic) NSUInteger dilationRateX;
@property(readwrite, nonatomic) NSUInteger dilationRateY;
@property(readwrite, nonatomic, retain) MPSNNNeuronDescriptor* fusedNeuronDescriptor;
@property(class, readonly) BOOL supportsSecureCoding;
- (void)encodeWithCoder:(NSCoder*)aCoder;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder;
+ (instancetype)cnnConvolutionDescriptorWithKernelWidth:(NSUInteger)kernelWidth
                                           kernelHeight:(NSUInteger)kernelHeight
                                   inputFeatureChannels:(NSUInteger)inputFeatureChannels
                                  outputFeatureChannels:(NSUInteger)outputFeatureChannels;
- (void)setBatchNormalizationParametersForInferenceWithMean:(nullable const float*)mean
                                                   variance:(nullable const float*)variance
                                                      gamma:(nullable const float*)gamma
                                                       beta:(nullable const float*)beta
                                                    epsilon:(const float)epsilon;
@end

@interface MPSCNNSubPixelConvolutionDescriptor : MPSCNNConvolutionDescriptor
@property(readwrite, nonatomic) NSUInteger subPixelScaleFactor;
@end

@interface MPSCNNDepthWiseConvolutionDescriptor : MPSCNNConvolutionDescriptor
@property(readonly, nonatomic) NSUInteger channelMultiplier;
@end

typedef NS_ENUM(uint32_t, MPSCNNConvolutionWeightsLayout) {
  MPSCNNConvolutionWeightsLayoutOHWI = 0,
};

typedef NS_ENUM(uint32_t, MPSCNNWeightsQuantizationType) {
  MPSCNNWeightsQuantizationTypeNone = 0,
  MPSCNNWeightsQuantizationTypeLinear = 1,
  MPSCNNWeightsQuantizationTypeLookupTable = 2,
};

@class MPSCNNConvolution;
@class MPSCNNConvolutionTranspose;

@interface MPSCNNConvolutionGradientState : MPSNNGradientState <MPSImageSizeEncodingState>
@property(readonly, nonatomic) id<MTLBuffer> gradientForWeights;
@property(readonly, nonatomic) id<MTLBuffer> gradientForBiases;
@property(readonly, nonatomic, retain) MPSCNNConvolution* convolution;
@property(readonly, nonatomic) MPSCNNConvolutionWeightsLayout gradientForWeightsLayout;
@end
typedef NSArray<MPSCNNConvolutionGradientState*> MPSCNNConvolutionGradientStateBatch;

@interface MPSCNNConvolutionTransposeGradientState : MPSCNNConvolutionGradientState
@property(readonly, nonatomic, retain) MPSCNNConvolutionTranspose* convolutionTranspose;
@end
typedef NSArray<MPSCNNConvolutionTransposeGradientState*>
    MPSCNNConvolutionTransposeGradientStateBatch;

@interface MPSCNNConvolutionWeightsAndBiasesState : MPSState
@property(readonly, nonatomic) id<MTLBuffer> weights;
@property(readonly, nonatomic, nullable) id<MTLBuffer> biases;
@property(readonly, nonatomic) NSUInteger weightsOffset;
@property(readonly, nonatomic) NSUInteger biasesOffset;
- (instancetype)initWithWeights:(id<MTLBuffer>)weights biases:(nullable id<MTLBuffer>)biases;
- (instancetype)initWithDevice:(id<MTLDevice>)device
      cnnConvolutionDescriptor:(MPSCNNConvolutionDescriptor*)descriptor;
+ (instancetype)temporaryCNNConvolutionWeightsAndBiasesStateWithCommandBuffer:
                    (id<MTLCommandBuffer>)commandBuffer
                                                     cnnConvolutionDescriptor:
                                                         (MPSCNNConvolutionDescriptor*)descriptor;
- (instancetype)initWithWeights:(id<MTLBuffer>)weights
                  weightsOffset:(NSUInteger)weightsOffset
                         biases:(nullable id<MTLBuffer>)biases
                   biasesOffset:(NSUInteger)biasesOffset
       cnnConvolutionDescriptor:(MPSCNNConvolutionDescriptor*)descriptor;
@end

@protocol MPSCNNConvolutionDataSource <NSCopying, NSObject>
@required
- (MPSDataType)dataType;
- (MPSCNNConvolutionDescriptor*)descriptor;
- (void*)weights;
- (nullable float*)biasTerms;
- (BOOL)load;
- (void)purge;
- (nullable NSString*)label;
@optional
- (vector_float2*)rangesForUInt8Kernel;
- (float*)lookupTableForUInt8Kernel;
- (MPSCNNWeightsQuantizationType)weightsQuantizationType;
- (nullable MPSCNNConvolutionWeightsAndBiasesState*)
    updateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
              gradientState:(MPSCNNConvolutionGradientState*)gradientState
                sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState;
- (BOOL)updateWithGradientState:(MPSCNNConvolutionGradientState*)gradientState
                    sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState;
- (instancetype)copyWithZone:(nullable NSZone*)zone device:(nullable id<MTLDevice>)device;
- (MPSCNNConvolutionWeightsLayout)weightsLayout;
- (MPSDataType)kernelWeightsDataType;
@end

@interface MPSCNNConvolution : MPSCNNKernel
@property(readonly, nonatomic) NSUInteger inputFeatureChannels;
@property(readonly, nonatomic) NSUInteger outputFeatureChannels;
@property(readonly, nonatomic) NSUInteger groups;
@property(readonly, nonatomic, retain) id<MPSCNNConvolutionDataSource> dataSource;
@property(readonly, nonatomic) NSUInteger subPixelScaleFactor;
@property(readonly, nonatomic, nullable) MPSNNNeuronDescriptor* fusedNeuronDescriptor;
@property(readonly, nonatomic) NSUInteger channelMultiplier;
@property(readwrite, nonatomic)
    MPSNNConvolutionAccumulatorPrecisionOption accumulatorPrecisionOption;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable MPSCNNConvolutionGradientState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(nullable NSArray<MPSState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNConvolutionGradientStateBatch*)
    resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                      sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                  destinationImage:(MPSImageBatch*)destinationImage;
- (nullable MPSCNNConvolutionGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNConvolutionGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage;
- (void)reloadWeightsAndBiasesFromDataSource;
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state;
- (MPSCNNConvolutionWeightsAndBiasesState*)
    exportWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  resultStateCanBeTemporary:(BOOL)resultStateCanBeTemporary;
@end

typedef NS_OPTIONS(NSUInteger, MPSCNNConvolutionGradientOption) {
  MPSCNNConvolutionGradientOptionGradientWithData = 1U,
  MPSCNNConvolutionGradientOptionGradientWithWeightsAndBias = 2U,
  MPSCNNConvolutionGradientOptionAll = 3U,
};

@interface MPSCNNConvolutionGradient : MPSCNNGradientKernel
@property(readonly, nonatomic) NSUInteger sourceGradientFeatureChannels;
@property(readonly, nonatomic) NSUInteger sourceImageFeatureChannels;
@property(readonly, nonatomic) NSUInteger groups;
@property(readonly, nonatomic) NSUInteger channelMultiplier;
@property(readonly, nonatomic, retain) id<MPSCNNConvolutionDataSource> dataSource;
@property(readwrite, nonatomic) MPSCNNConvolutionGradientOption gradientOption;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (void)reloadWeightsAndBiasesFromDataSource;
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state;
@end

@interface MPSCNNFullyConnected : MPSCNNConvolution
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNFullyConnectedGradient : MPSCNNConvolutionGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNConvolutionTranspose : MPSCNNKernel
@property(readonly, nonatomic) NSUInteger inputFeatureChannels;
@property(readonly, nonatomic) NSUInteger outputFeatureChannels;
@property(readwrite, nonatomic) NSInteger kernelOffsetX;
@property(readwrite, nonatomic) NSInteger kernelOffsetY;
@property(readonly, nonatomic) NSUInteger groups;
@property(readwrite, nonatomic)
    MPSNNConvolutionAccumulatorPrecisionOption accumulatorPrecisionOption;
@property(readonly, nonatomic, retain) id<MPSCNNConvolutionDataSource> dataSource;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
          convolutionGradientState:
              (nullable MPSCNNConvolutionGradientState*)convolutionGradientState;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImage
                   convolutionGradientStates:
                       (nullable MPSCNNConvolutionGradientStateBatch*)convolutionGradientState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
     convolutionGradientState:(nullable MPSCNNConvolutionGradientState*)convolutionGradientState
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImage
         convolutionGradientStates:
             (nullable MPSCNNConvolutionGradientStateBatch*)convolutionGradientState
                 destinationImages:(MPSImageBatch*)destinationImage;
- (nullable MPSCNNConvolutionTransposeGradientState*)
    resultStateForSourceImage:(MPSImage*)sourceImage
                 sourceStates:(nullable NSArray<MPSCNNConvolutionGradientState*>*)sourceStates
             destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNConvolutionTransposeGradientStateBatch*)
    resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                      sourceStates:
                          (nullable NSArray<MPSCNNConvolutionGradientStateBatch*>*)sourceStates
                  destinationImage:(MPSImageBatch*)destinationImage;
- (nullable MPSCNNConvolutionTransposeGradientState*)
    temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceImage:(MPSImage*)sourceImage
                            sourceStates:
                                (nullable NSArray<MPSCNNConvolutionGradientState*>*)sourceStates
                        destinationImage:(MPSImage*)destinationImage;
- (nullable MPSCNNConvolutionTransposeGradientStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:
                                     (nullable NSArray<MPSCNNConvolutionGradientStateBatch*>*)
                                         sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage;
- (void)reloadWeightsAndBiasesFromDataSource;
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state;
- (MPSCNNConvolutionWeightsAndBiasesState*)
    exportWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  resultStateCanBeTemporary:(BOOL)resultStateCanBeTemporary;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
          convolutionGradientState:
              (nullable MPSCNNConvolutionGradientState*)convolutionGradientState
                  destinationState:
                      (MPSCNNConvolutionTransposeGradientState* _Nullable __autoreleasing* _Nonnull)
                          outState
       destinationStateIsTemporary:(BOOL)isTemporary;
- (MPSImageBatch*)
     encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceImages:(MPSImageBatch*)sourceImages
      convolutionGradientStates:
          (nullable MPSCNNConvolutionGradientStateBatch*)convolutionGradientStates
              destinationStates:
                  (MPSCNNConvolutionTransposeGradientStateBatch* _Nullable __autoreleasing* _Nonnull)
                      outStates
    destinationStateIsTemporary:(BOOL)isTemporary;
@end

@interface MPSCNNConvolutionTransposeGradient : MPSCNNGradientKernel
@property(readonly, nonatomic) NSUInteger sourceGradientFeatureChannels;
@property(readonly, nonatomic) NSUInteger sourceImageFeatureChannels;
@property(readonly, nonatomic) NSUInteger groups;
@property(readonly, nonatomic, retain) id<MPSCNNConvolutionDataSource> dataSource;
@property(readwrite, nonatomic) MPSCNNConvolutionGradientOption gradientOption;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (void)reloadWeightsAndBiasesFromDataSource;
- (void)reloadWeightsAndBiasesWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                          state:(MPSCNNConvolutionWeightsAndBiasesState*)state;
@end

@interface MPSNNGramMatrixCalculation : MPSCNNKernel
@property(readwrite, nonatomic) float alpha;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device alpha:(float)alpha;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@interface MPSNNGramMatrixCalculationGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) float alpha;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device alpha:(float)alpha;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
