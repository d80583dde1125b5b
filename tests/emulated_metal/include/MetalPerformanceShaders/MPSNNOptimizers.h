// Optimizers: stochastic gradient descent, RMSProp, Adam.
#pragma once
#import <MetalPerformanceShaders/MPSCNNBatchNormalization.h>
#import <MetalPerformanceShaders/MPSCNNConvolution.h>
#import <MetalPerformanceShaders/MPSKernel.h>
#import <MetalPerformanceShaders/MPSMatrix.h>

NS_ASSUME_NONNULL_BEGIN

typedef NS_ENUM(NSUInteger, MPSNNRegularizationType) {
  MPSNNRegularizationTypeNone = 0,
  MPSNNRegularizationTypeL1 = 1,
  MPSNNRegularizationTypeL2 = 2,
};

@interface MPSNNOptimizerDescriptor : EmulatedObject {
 @public
  float rate_, rescale_, clip_max_, clip_min_, scale_;
  BOOL clips_;
  MPSNNRegularizationType type_;
}
@property(readwrite, nonatomic) float learningRate;
@property(readwrite, nonatomic) float gradientRescale;
@property(readwrite, nonatomic) BOOL applyGradientClipping;
@property(readwrite, nonatomic) float gradientClipMax;
@property(readwrite, nonatomic) float gradientClipMin;
@property(readwrite, nonatomic) float regularizationScale;
@property(readwrite, nonatomic) MPSNNRegularizationType regularizationType;
- (instancetype)initWithLearningRate:(float)learningRate
                     gradientRescale:(float)gradientRescale
                  regularizationType:(MPSNNRegularizationType)regularizationType
                 regularizationScale:(float)regularizationScale;
- (instancetype)initWithLearningRate:(float)learningRate
                     gradientRescale:(float)gradientRescale
               applyGradientClipping:(BOOL)applyGradientClipping
                     gradientClipMax:(float)gradientClipMax
                     gradientClipMin:(float)gradientClipMin
                  regularizationType:(MPSNNRegularizationType)regularizationType
                 regularizationScale:(float)regularizationScale;
+ (instancetype)optimizerDescriptorWithLearningRate:(float)learningRate
                                    gradientRescale:(float)gradientRescale
                                 regularizationType:(MPSNNRegularizationType)regularizationType
                                regularizationScale:(float)regularizationScale;
+ (instancetype)optimizerDescriptorWithLearningRate:(float)learningRate
                                    gradientRescale:(float)gradientRescale
                              applyGradientClipping:(BOOL)applyGradientClipping
                                    gradientClipMax:(float)gradientClipMax
                                    gradientClipMin:(float)gradientClipMin
                                 regularizationType:(MPSNNRegularizationType)regularizationType
                                regularizationScale:(float)regularizationScale;
@end

@interface MPSNNOptimizer : MPSKernel
@property(readonly, nonatomic) float learningRate;
@property(readonly, nonatomic) float gradientRescale;
@property(readwrite, nonatomic) BOOL applyGradientClipping;
@property(readonly, nonatomic) float gradientClipMax;
@property(readonly, nonatomic) float gradientClipMin;
@property(readonly, nonatomic) float regularizationScale;
@property(readonly, nonatomic) MPSNNRegularizationType regularizationType;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (void)setLearningRate:(float)newLearningRate;
@end

@interface MPSNNOptimizerStochasticGradientDescent : MPSNNOptimizer
@property(readonly, nonatomic) float momentumScale;
@property(readonly, nonatomic) BOOL useNesterovMomentum;
@property(readonly, nonatomic) BOOL useNestrovMomentum;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 momentumScale:(float)momentumScale
           useNesterovMomentum:(BOOL)useNesterovMomentum
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 momentumScale:(float)momentumScale
            useNestrovMomentum:(BOOL)useNestrovMomentum
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientVector:(MPSVector*)inputGradientVector
            inputValuesVector:(MPSVector*)inputValuesVector
          inputMomentumVector:(nullable MPSVector*)inputMomentumVector
           resultValuesVector:(MPSVector*)resultValuesVector;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientMatrix:(MPSMatrix*)inputGradientMatrix
            inputValuesMatrix:(MPSMatrix*)inputValuesMatrix
          inputMomentumMatrix:(nullable MPSMatrix*)inputMomentumMatrix
           resultValuesMatrix:(MPSMatrix*)resultValuesMatrix;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
     convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
       convolutionSourceState:(MPSCNNConvolutionWeightsAndBiasesState*)convolutionSourceState
         inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
                  resultState:(MPSCNNConvolutionWeightsAndBiasesState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
         inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
                  resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
    batchNormalizationGradientState:(MPSCNNBatchNormalizationState*)batchNormalizationGradientState
      batchNormalizationSourceState:(MPSCNNBatchNormalizationState*)batchNormalizationSourceState
               inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
                        resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
@end

@interface MPSNNOptimizerRMSProp : MPSNNOptimizer
@property(readonly, nonatomic) double decay;
@property(readonly, nonatomic) float epsilon;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                         decay:(double)decay
                       epsilon:(float)epsilon
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientVector:(MPSVector*)inputGradientVector
            inputValuesVector:(MPSVector*)inputValuesVector
      inputSumOfSquaresVector:(MPSVector*)inputSumOfSquaresVector
           resultValuesVector:(MPSVector*)resultValuesVector;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientMatrix:(MPSMatrix*)inputGradientMatrix
            inputValuesMatrix:(MPSMatrix*)inputValuesMatrix
      inputSumOfSquaresMatrix:(MPSMatrix*)inputSumOfSquaresMatrix
           resultValuesMatrix:(MPSMatrix*)resultValuesMatrix;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
     convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
       convolutionSourceState:(MPSCNNConvolutionWeightsAndBiasesState*)convolutionSourceState
     inputSumOfSquaresVectors:(nullable NSArray<MPSVector*>*)inputSumOfSquaresVectors
                  resultState:(MPSCNNConvolutionWeightsAndBiasesState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
     inputSumOfSquaresVectors:(nullable NSArray<MPSVector*>*)inputSumOfSquaresVectors
                  resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
    batchNormalizationGradientState:(MPSCNNBatchNormalizationState*)batchNormalizationGradientState
      batchNormalizationSourceState:(MPSCNNBatchNormalizationState*)batchNormalizationSourceState
           inputSumOfSquaresVectors:(nullable NSArray<MPSVector*>*)inputSumOfSquaresVectors
                        resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
@end

@interface MPSNNOptimizerAdam : MPSNNOptimizer
@property(readonly, nonatomic) double beta1;
@property(readonly, nonatomic) double beta2;
@property(readonly, nonatomic) float epsilon;
@property(readwrite, nonatomic) NSUInteger timeStep;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device learningRate:(float)learningRate;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                         beta1:(double)beta1
                         beta2:(double)beta2
                       epsilon:(float)epsilon
                      timeStep:(NSUInteger)timeStep
           optimizerDescriptor:(MPSNNOptimizerDescriptor*)optimizerDescriptor;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientVector:(MPSVector*)inputGradientVector
            inputValuesVector:(MPSVector*)inputValuesVector
          inputMomentumVector:(MPSVector*)inputMomentumVector
          inputVelocityVector:(MPSVector*)inputVelocityVector
           resultValuesVector:(MPSVector*)resultValuesVector;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientMatrix:(MPSMatrix*)inputGradientMatrix
            inputValuesMatrix:(MPSMatrix*)inputValuesMatrix
          inputMomentumMatrix:(MPSMatrix*)inputMomentumMatrix
          inputVelocityMatrix:(MPSMatrix*)inputVelocityMatrix
           resultValuesMatrix:(MPSMatrix*)resultValuesMatrix;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientVector:(MPSVector*)inputGradientVector
            inputValuesVector:(MPSVector*)inputValuesVector
          inputMomentumVector:(MPSVector*)inputMomentumVector
          inputVelocityVector:(MPSVector*)inputVelocityVector
        maximumVelocityVector:(nullable MPSVector*)maximumVelocityVector
           resultValuesVector:(MPSVector*)resultValuesVector;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
          inputGradientMatrix:(MPSMatrix*)inputGradientMatrix
            inputValuesMatrix:(MPSMatrix*)inputValuesMatrix
          inputMomentumMatrix:(MPSMatrix*)inputMomentumMatrix
          inputVelocityMatrix:(MPSMatrix*)inputVelocityMatrix
        maximumVelocityMatrix:(nullable MPSMatrix*)maximumVelocityMatrix
           resultValuesMatrix:(MPSMatrix*)resultValuesMatrix;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
     convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
       convolutionSourceState:(MPSCNNConvolutionWeightsAndBiasesState*)convolutionSourceState
         inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
         inputVelocityVectors:(nullable NSArray<MPSVector*>*)inputVelocityVectors
                  resultState:(MPSCNNConvolutionWeightsAndBiasesState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
     convolutionGradientState:(MPSCNNConvolutionGradientState*)convolutionGradientState
       convolutionSourceState:(MPSCNNConvolutionWeightsAndBiasesState*)convolutionSourceState
         inputMomentumVectors:(NSArray<MPSVector*>*)inputMomentumVectors
         inputVelocityVectors:(NSArray<MPSVector*>*)inputVelocityVectors
       maximumVelocityVectors:(nullable NSArray<MPSVector*>*)maximumVelocityVectors
                  resultState:(MPSCNNConvolutionWeightsAndBiasesState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
         inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
         inputVelocityVectors:(nullable NSArray<MPSVector*>*)inputVelocityVectors
                  resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
      batchNormalizationState:(MPSCNNBatchNormalizationState*)batchNormalizationState
         inputMomentumVectors:(NSArray<MPSVector*>*)inputMomentumVectors
         inputVelocityVectors:(NSArray<MPSVector*>*)inputVelocityVectors
       maximumVelocityVectors:(nullable NSArray<MPSVector*>*)maximumVelocityVectors
                  resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
    batchNormalizationGradientState:(MPSCNNBatchNormalizationState*)batchNormalizationGradientState
      batchNormalizationSourceState:(MPSCNNBatchNormalizationState*)batchNormalizationSourceState
               inputMomentumVectors:(nullable NSArray<MPSVector*>*)inputMomentumVectors
               inputVelocityVectors:(nullable NSArray<MPSVector*>*)inputVelocityVectors
                        resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
    batchNormalizationGradientState:(MPSCNNBatchNormalizationState*)batchNormalizationGradientState
      batchNormalizationSourceState:(MPSCNNBatchNormalizationState*)batchNormalizationSourceState
               inputMomentumVectors:(NSArray<MPSVector*>*)inputMomentumVectors
               inputVelocityVectors:(NSArray<MPSVector*>*)inputVelocityVectors
             maximumVelocityVectors:(nullable NSArray<MPSVector*>*)maximumVelocityVectors
                        resultState:(MPSCNNNormalizationGammaAndBetaState*)resultState;
@end

NS_ASSUME_NONNULL_END
