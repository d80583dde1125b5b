// Nodes: placeholders for images, states and kernels, from which an MPSNNGraph is compiled.
//
// Forward nodes have the initializers that mpsgrad sends; gradient nodes come from the factories
// of MPSNNFilterNode alone. -trainingGraphWithSourceGradient:nodeHandler: is not emulated.
#pragma once
#import <MetalPerformanceShaders/MPSCNNMath.h>
#import <MetalPerformanceShaders/MPSCNNNeuronType.h>
#import <MetalPerformanceShaders/MPSCNNTypes.h>
#import <MetalPerformanceShaders/MPSImage.h>
#import <MetalPerformanceShaders/MPSNeuralNetworkTypes.h>
#import <MetalPerformanceShaders/MPSState.h>

namespace emulated_metal {
struct FilterNode;
struct ImageRef;
struct StateRef;
}  // namespace emulated_metal

NS_ASSUME_NONNULL_BEGIN

@class MPSCNNLossDescriptor;
@class MPSCNNYOLOLossDescriptor;
@class MPSNNGradientFilterNode;
@class MPSNNNeuronDescriptor;
@protocol MPSCNNBatchNormalizationDataSource;
@protocol MPSCNNConvolutionDataSource;
@protocol MPSCNNGroupNormalizationDataSource;
@protocol MPSCNNInstanceNormalizationDataSource;

// ---------------------------------------------------------------- images and states

@protocol MPSHandle <NSSecureCoding, NSObject>
@required
- (nullable NSString*)label;
@end

@protocol MPSNNTrainableNode <NSObject>
@required
@property(readwrite, nonatomic) MPSNNTrainingStyle trainingStyle;
@end

@interface MPSNNImageNode : EmulatedObject {
 @public
  emulated_metal::ImageRef* ref_;
}
@property(nonatomic, nullable, readwrite, retain) id<MPSHandle> handle;
@property(nonatomic, readwrite) MPSImageFeatureChannelFormat format;
@property(readwrite, nonatomic, retain) id<MPSImageAllocator> imageAllocator;
@property(nonatomic, readwrite) BOOL exportFromGraph;
@property(nonatomic, readwrite) BOOL synchronizeResource;
@property(nonatomic, readwrite) BOOL stopGradient;
- (instancetype)initWithHandle:(nullable NSObject<MPSHandle>*)handle;
- (instancetype)init NS_UNAVAILABLE;
@end

@interface MPSNNStateNode : EmulatedObject {
 @public
  emulated_metal::StateRef* ref_;
}
@property(nullable, retain, nonatomic) id<MPSHandle> handle;
@property(nonatomic, readwrite) BOOL exportFromGraph;
@property(nonatomic, readwrite) BOOL synchronizeResource;
- (instancetype)init NS_UNAVAILABLE;
@end

@interface MPSNNGradientStateNode : MPSNNStateNode
@end
@interface MPSCNNConvolutionGradientStateNode : MPSNNGradientStateNode
@end
@interface MPSCNNConvolutionTransposeGradientStateNode : MPSCNNConvolutionGradientStateNode
@end
@interface MPSNNBinaryGradientStateNode : MPSNNStateNode
@end
@interface MPSNNMultiaryGradientStateNode : MPSNNStateNode
@end
@interface MPSNNArithmeticGradientStateNode : MPSNNBinaryGradientStateNode
@end
@interface MPSNNLabelsNode : MPSNNStateNode
@end

// ---------------------------------------------------------------- filters

@interface MPSNNFilterNode : EmulatedObject {
 @public
  emulated_metal::FilterNode* node_;
}
@property(nonatomic, readonly) MPSNNImageNode* resultImage;
@property(nonatomic, readonly, nullable) MPSNNStateNode* resultState;
@property(nonatomic, readonly, nullable) NSArray<MPSNNStateNode*>* resultStates;
@property(nonatomic, readwrite, retain) id<MPSNNPadding> paddingPolicy;
@property(nullable, copy, atomic) NSString* label;
- (instancetype)init NS_UNAVAILABLE;
- (MPSNNGradientFilterNode*)gradientFilterWithSource:(MPSNNImageNode*)gradientImage;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages;
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSources:
    (NSArray<MPSNNImageNode*>*)gradientImages;
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSource:(MPSNNImageNode*)gradientImage;
@end

@interface MPSNNGradientFilterNode : MPSNNFilterNode
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)sourceGradient
    NS_UNAVAILABLE;
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSources:
    (NSArray<MPSNNImageNode*>*)sourceGradient NS_UNAVAILABLE;
- (MPSNNGradientFilterNode*)gradientFilterWithSource:(MPSNNImageNode*)sourceGradient NS_UNAVAILABLE;
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSource:(MPSNNImageNode*)sourceGradient
    NS_UNAVAILABLE;
@end

// ---------------------------------------------------------------- convolution

@interface MPSCNNConvolutionNode : MPSNNFilterNode <MPSNNTrainableNode>
@property(readwrite, nonatomic) MPSNNTrainingStyle trainingStyle;
@property(readwrite, nonatomic) MPSNNConvolutionAccumulatorPrecisionOption accumulatorPrecision;
@property(nonatomic, readonly, nullable)
    MPSCNNConvolutionGradientStateNode* convolutionGradientState;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
@end

@interface MPSCNNFullyConnectedNode : MPSCNNConvolutionNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
@end

@interface MPSCNNConvolutionTransposeNode : MPSCNNConvolutionNode
@property(nonatomic, readonly, nullable)
    MPSCNNConvolutionGradientStateNode* convolutionGradientState NS_UNAVAILABLE;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
      convolutionGradientState:
          (nullable MPSCNNConvolutionGradientStateNode*)convolutionGradientState
                       weights:(id<MPSCNNConvolutionDataSource>)weights;
@end

@interface MPSCNNConvolutionGradientNode : MPSNNGradientFilterNode <MPSNNTrainableNode>
@end
@interface MPSCNNFullyConnectedGradientNode : MPSCNNConvolutionGradientNode
@end
@interface MPSCNNConvolutionTransposeGradientNode : MPSCNNConvolutionGradientNode
@end

// ---------------------------------------------------------------- neurons

@interface MPSCNNNeuronNode : MPSNNFilterNode
@property(nonatomic, readonly) float a;
@property(nonatomic, readonly) float b;
@property(nonatomic, readonly) float c;
+ (instancetype)nodeWithSource:(MPSNNImageNode*)sourceNode
                    descriptor:(MPSNNNeuronDescriptor*)descriptor;
- (instancetype)init NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronAbsoluteNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronELUNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a;
@end

@interface MPSCNNNeuronReLUNNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronLinearNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronReLUNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a;
@end

@interface MPSCNNNeuronSigmoidNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronHardSigmoidNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronSoftPlusNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronSoftSignNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronTanHNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronPReLUNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode aData:(NSData*)aData;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode NS_UNAVAILABLE;
@end

@interface MPSCNNNeuronPowerNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronExponentialNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronLogarithmNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode a:(float)a b:(float)b c:(float)c;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronGeLUNode : MPSCNNNeuronNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNNeuronGradientNode : MPSNNGradientFilterNode
@property(nonatomic, readonly) MPSNNNeuronDescriptor* descriptor;
- (instancetype)init NS_UNAVAILABLE;
@end

// ---------------------------------------------------------------- reductions

@interface MPSNNUnaryReductionNode : MPSNNFilterNode
@property(readwrite, nonatomic) MTLRegion clipRectSource;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSNNReductionRowMinNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionColumnMinNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsMinNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsArgumentMinNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionRowMaxNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionColumnMaxNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsMaxNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsArgumentMaxNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionRowMeanNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionColumnMeanNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsMeanNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionSpatialMeanNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionRowSumNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionColumnSumNode : MPSNNUnaryReductionNode
@end
@interface MPSNNReductionFeatureChannelsSumNode : MPSNNUnaryReductionNode
@property(readwrite, nonatomic) float weight;
@end

@interface MPSNNReductionSpatialMeanGradientNode : MPSNNGradientFilterNode
@end

// ---------------------------------------------------------------- pooling

@interface MPSCNNPoolingNode : MPSNNFilterNode
@property(readonly, nonatomic) NSUInteger kernelWidth;
@property(readonly, nonatomic) NSUInteger kernelHeight;
@property(readonly, nonatomic) NSUInteger strideInPixelsX;
@property(readonly, nonatomic) NSUInteger strideInPixelsY;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
@end

@interface MPSCNNPoolingAverageNode : MPSCNNPoolingNode
@end
@interface MPSCNNPoolingL2NormNode : MPSCNNPoolingNode
@end
@interface MPSCNNPoolingMaxNode : MPSCNNPoolingNode
@end

@interface MPSCNNDilatedPoolingMaxNode : MPSNNFilterNode
@property(nonatomic, readonly) NSUInteger dilationRateX;
@property(nonatomic, readonly) NSUInteger dilationRateY;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY;
@end

@interface MPSCNNPoolingGradientNode : MPSNNGradientFilterNode
@property(readonly, nonatomic) NSUInteger kernelWidth;
@property(readonly, nonatomic) NSUInteger kernelHeight;
@property(readonly, nonatomic) NSUInteger strideInPixelsX;
@property(readonly, nonatomic) NSUInteger strideInPixelsY;
@end

@interface MPSCNNPoolingMaxGradientNode : MPSCNNPoolingGradientNode
@end
@interface MPSCNNPoolingAverageGradientNode : MPSCNNPoolingGradientNode
@end
@interface MPSCNNPoolingL2NormGradientNode : MPSCNNPoolingGradientNode
@end

@interface MPSCNNDilatedPoolingMaxGradientNode : MPSCNNPoolingGradientNode
@property(readonly, nonatomic) NSUInteger dilationRateX;
@property(readonly, nonatomic) NSUInteger dilationRateY;
@end

// ---------------------------------------------------------------- normalization

@interface MPSCNNNormalizationNode : MPSNNFilterNode
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNSpatialNormalizationNode : MPSCNNNormalizationNode
@property(readwrite, nonatomic) NSUInteger kernelWidth;
@property(readwrite, nonatomic) NSUInteger kernelHeight;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode kernelSize:(NSUInteger)kernelSize;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNSpatialNormalizationGradientNode : MPSNNGradientFilterNode
@property(readwrite, nonatomic) NSUInteger kernelWidth;
@property(readwrite, nonatomic) NSUInteger kernelHeight;
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@end

@interface MPSCNNLocalContrastNormalizationNode : MPSCNNNormalizationNode
@property(readwrite, nonatomic) float pm;
@property(readwrite, nonatomic) float ps;
@property(readwrite, nonatomic) float p0;
@property(readwrite, nonatomic) NSUInteger kernelWidth;
@property(readwrite, nonatomic) NSUInteger kernelHeight;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode kernelSize:(NSUInteger)kernelSize;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNLocalContrastNormalizationGradientNode : MPSNNGradientFilterNode
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@property(readwrite, nonatomic) float p0;
@property(readwrite, nonatomic) float pm;
@property(readwrite, nonatomic) float ps;
@property(readonly, nonatomic) NSUInteger kernelWidth;
@property(readonly, nonatomic) NSUInteger kernelHeight;
@end

@interface MPSCNNCrossChannelNormalizationNode : MPSCNNNormalizationNode
@property(readwrite, nonatomic) NSUInteger kernelSizeInFeatureChannels;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode kernelSize:(NSUInteger)kernelSize;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end

@interface MPSCNNCrossChannelNormalizationGradientNode : MPSNNGradientFilterNode
@property(readonly, nonatomic) NSUInteger kernelSize;
@end

@interface MPSCNNInstanceNormalizationNode : MPSNNFilterNode <MPSNNTrainableNode>
@property(readwrite, nonatomic) MPSNNTrainingStyle trainingStyle;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNInstanceNormalizationDataSource>)dataSource;
@end
@interface MPSCNNInstanceNormalizationGradientNode : MPSNNGradientFilterNode <MPSNNTrainableNode>
@end

@interface MPSCNNGroupNormalizationNode : MPSNNFilterNode <MPSNNTrainableNode>
@property(readwrite, nonatomic) MPSNNTrainingStyle trainingStyle;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNGroupNormalizationDataSource>)dataSource;
@end
@interface MPSCNNGroupNormalizationGradientNode : MPSNNGradientFilterNode <MPSNNTrainableNode>
@end

@interface MPSCNNBatchNormalizationNode : MPSNNFilterNode <MPSNNTrainableNode>
@property(readwrite, nonatomic) MPSCNNBatchNormalizationFlags flags;
@property(readwrite, nonatomic) MPSNNTrainingStyle trainingStyle;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource;
@end
@interface MPSCNNBatchNormalizationGradientNode : MPSNNGradientFilterNode <MPSNNTrainableNode>
@end

// ---------------------------------------------------------------- arithmetic

@interface MPSNNBinaryArithmeticNode : MPSNNFilterNode
@property(readwrite, nonatomic) float primaryScale;
@property(readwrite, nonatomic) float secondaryScale;
@property(readwrite, nonatomic) float bias;
@property(readwrite, nonatomic) NSUInteger primaryStrideInPixelsX;
@property(readwrite, nonatomic) NSUInteger primaryStrideInPixelsY;
@property(readwrite, nonatomic) NSUInteger primaryStrideInFeatureChannels;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsX;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsY;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInFeatureChannels;
@property(readwrite, nonatomic) float minimumValue;
@property(readwrite, nonatomic) float maximumValue;
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes;
- (instancetype)initWithLeftSource:(MPSNNImageNode*)left rightSource:(MPSNNImageNode*)right;
- (Class)gradientClass;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
- (NSArray<MPSNNGradientFilterNode*>*)gradientFiltersWithSources:
    (NSArray<MPSNNImageNode*>*)gradientImages;
@end

@interface MPSNNAdditionNode : MPSNNBinaryArithmeticNode
@end
@interface MPSNNSubtractionNode : MPSNNBinaryArithmeticNode
@end
@interface MPSNNMultiplicationNode : MPSNNBinaryArithmeticNode
@end
@interface MPSNNDivisionNode : MPSNNBinaryArithmeticNode
@end
@interface MPSNNComparisonNode : MPSNNBinaryArithmeticNode
@property(readwrite, nonatomic) MPSNNComparisonType comparisonType;
@end

@interface MPSNNArithmeticGradientNode : MPSNNGradientFilterNode
@property(readwrite, nonatomic) float primaryScale;
@property(readwrite, nonatomic) float secondaryScale;
@property(readwrite, nonatomic) float bias;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsX;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsY;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInFeatureChannels;
@property(readwrite, nonatomic) float minimumValue;
@property(readwrite, nonatomic) float maximumValue;
@property(readonly, nonatomic) BOOL isSecondarySourceFilter;
@end

@interface MPSNNAdditionGradientNode : MPSNNArithmeticGradientNode
@end
@interface MPSNNSubtractionGradientNode : MPSNNArithmeticGradientNode
@end
@interface MPSNNMultiplicationGradientNode : MPSNNArithmeticGradientNode
@end

// ---------------------------------------------------------------- other filters

@interface MPSCNNDropoutNode : MPSNNFilterNode
@property(readonly, nonatomic) float keepProbability;
@property(readonly, nonatomic) NSUInteger seed;
@property(readonly, nonatomic) MTLSize maskStrideInPixels;
- (instancetype)initWithSource:(MPSNNImageNode*)source;
- (instancetype)initWithSource:(MPSNNImageNode*)source keepProbability:(float)keepProbability;
- (instancetype)initWithSource:(MPSNNImageNode*)source
               keepProbability:(float)keepProbability
                          seed:(NSUInteger)seed
            maskStrideInPixels:(MTLSize)maskStrideInPixels;
@end

@interface MPSCNNDropoutGradientNode : MPSNNGradientFilterNode
@property(readonly, nonatomic) float keepProbability;
@property(readonly, nonatomic) NSUInteger seed;
@property(readonly, nonatomic) MTLSize maskStrideInPixels;
@end

@interface MPSNNConcatenationNode : MPSNNFilterNode
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
@end
@interface MPSNNConcatenationGradientNode : MPSNNGradientFilterNode
@end

@interface MPSNNReshapeNode : MPSNNFilterNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                   resultWidth:(NSUInteger)resultWidth
                  resultHeight:(NSUInteger)resultHeight
         resultFeatureChannels:(NSUInteger)resultFeatureChannels;
@end
@interface MPSNNReshapeGradientNode : MPSNNGradientFilterNode
@end

@interface MPSNNPadNode : MPSNNFilterNode
@property(readwrite, nonatomic) float fillValue;
- (instancetype)initWithSource:(MPSNNImageNode*)source
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter
                      edgeMode:(MPSImageEdgeMode)edgeMode;
@end
@interface MPSNNPadGradientNode : MPSNNGradientFilterNode
@end

@interface MPSCNNSoftMaxNode : MPSNNFilterNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end
@interface MPSCNNSoftMaxGradientNode : MPSNNGradientFilterNode
@end

@interface MPSCNNLogSoftMaxNode : MPSNNFilterNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
@end
@interface MPSCNNLogSoftMaxGradientNode : MPSNNGradientFilterNode
@end

@interface MPSCNNUpsamplingNearestNode : MPSNNFilterNode
@property(nonatomic, readonly) double scaleFactorX;
@property(nonatomic, readonly) double scaleFactorY;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
@end

@interface MPSCNNUpsamplingBilinearNode : MPSNNFilterNode
@property(nonatomic, readonly) double scaleFactorX;
@property(nonatomic, readonly) double scaleFactorY;
@property(nonatomic, readonly) BOOL alignCorners;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode
           integerScaleFactorX:(NSUInteger)integerScaleFactorX
           integerScaleFactorY:(NSUInteger)integerScaleFactorY
                  alignCorners:(BOOL)alignCorners;
@end

@interface MPSCNNUpsamplingNearestGradientNode : MPSNNGradientFilterNode
@property(nonatomic, readonly) double scaleFactorX;
@property(nonatomic, readonly) double scaleFactorY;
@end
@interface MPSCNNUpsamplingBilinearGradientNode : MPSNNGradientFilterNode
@property(nonatomic, readonly) double scaleFactorX;
@property(nonatomic, readonly) double scaleFactorY;
@end

@protocol MPSNNGramMatrixCallback <NSObject, NSSecureCoding, NSCopying>
@required
- (float)alphaForSourceImage:(MPSImage*)sourceImage destinationImage:(MPSImage*)destinationImage;
@end

@interface MPSNNGramMatrixCalculationNode : MPSNNFilterNode
@property(readonly, nonatomic) float alpha;
@property(nonatomic, nullable, readwrite, retain) id<MPSNNGramMatrixCallback> propertyCallBack;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode;
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode alpha:(float)alpha;
@end
@interface MPSNNGramMatrixCalculationGradientNode : MPSNNGradientFilterNode
@property(readonly, nonatomic) float alpha;
@end

// ---------------------------------------------------------------- losses

@interface MPSCNNLossNode : MPSNNFilterNode
@property(readonly, retain, nonatomic) MPSNNLabelsNode* inputLabels;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                lossDescriptor:(MPSCNNLossDescriptor*)descriptor;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
@end

@interface MPSCNNYOLOLossNode : MPSNNFilterNode
@property(readonly, retain, nonatomic) MPSNNLabelsNode* inputLabels;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                lossDescriptor:(MPSCNNYOLOLossDescriptor*)descriptor;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
@end

@protocol MPSNNLossCallback <NSObject, NSSecureCoding, NSCopying>
@required
- (float)scalarWeightForSourceImage:(MPSImage*)sourceImage
                   destinationImage:(MPSImage*)destinationImage;
@end

@class MPSNNLossGradientNode;

@interface MPSNNForwardLossNode : MPSNNFilterNode
@property(readonly, nonatomic) MPSCNNLossType lossType;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) NSUInteger numberOfClasses;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
@property(readonly, nonatomic) float weight;
@property(readonly, nonatomic) float labelSmoothing;
@property(readonly, nonatomic) float epsilon;
@property(readonly, nonatomic) float delta;
@property(nonatomic, nullable, readwrite, retain) id<MPSNNLossCallback> propertyCallBack;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                        labels:(MPSNNImageNode*)labels
                       weights:(nullable MPSNNImageNode*)weights
                lossDescriptor:(MPSCNNLossDescriptor*)descriptor;
- (instancetype)initWithSource:(MPSNNImageNode*)source
                        labels:(MPSNNImageNode*)labels
                lossDescriptor:(MPSCNNLossDescriptor*)descriptor;
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes
                 lossDescriptor:(MPSCNNLossDescriptor*)descriptor;
- (MPSNNLossGradientNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)sourceGradient;
- (NSArray<MPSNNLossGradientNode*>*)gradientFiltersWithSources:
    (NSArray<MPSNNImageNode*>*)sourceGradient;
- (MPSNNLossGradientNode*)gradientFilterWithSource:(MPSNNImageNode*)sourceGradient;
- (NSArray<MPSNNLossGradientNode*>*)gradientFiltersWithSource:(MPSNNImageNode*)sourceGradient;
@end

@interface MPSNNLossGradientNode : MPSNNGradientFilterNode
@property(readonly, nonatomic) MPSCNNLossType lossType;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) NSUInteger numberOfClasses;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
@property(readonly, nonatomic) float weight;
@property(readonly, nonatomic) float labelSmoothing;
@property(readonly, nonatomic) float epsilon;
@property(readonly, nonatomic) float delta;
@property(readonly, nonatomic) BOOL isLabelsGradientFilter;
@property(nonatomic, nullable, readwrite, retain) id<MPSNNLossCallback> propertyCallBack;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
@end

@interface MPSNNInitialGradientNode : MPSNNFilterNode
- (instancetype)initWithSource:(MPSNNImageNode*)source;
- (MPSNNGradientFilterNode*)gradientFilterWithSources:(NSArray<MPSNNImageNode*>*)gradientImages
    NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
