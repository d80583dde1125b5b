// Padding policies and enumerations of the neural network kernels.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSImage;
@class MPSImageDescriptor;
@class MPSKernel;
@class MPSState;

typedef NS_ENUM(NSUInteger, MPSCNNConvolutionFlags) {
  MPSCNNConvolutionFlagsNone = 0,
};

typedef NS_OPTIONS(NSUInteger, MPSNNConvolutionAccumulatorPrecisionOption) {
  MPSNNConvolutionAccumulatorPrecisionOptionHalf = 0U,
  MPSNNConvolutionAccumulatorPrecisionOptionFloat = 1U << 0,
};

typedef NS_OPTIONS(NSUInteger, MPSNNTrainingStyle) {
  MPSNNTrainingStyleUpdateDeviceNone = 0,
  MPSNNTrainingStyleUpdateDeviceCPU = 1,
  MPSNNTrainingStyleUpdateDeviceGPU = 2,
};

typedef NS_OPTIONS(NSUInteger, MPSCNNBatchNormalizationFlags) {
  MPSCNNBatchNormalizationFlagsDefault = 0,
  MPSCNNBatchNormalizationFlagsCalculateStatisticsAutomatic = 0,
  MPSCNNBatchNormalizationFlagsCalculateStatisticsAlways = 1,
  MPSCNNBatchNormalizationFlagsCalculateStatisticsNever = 2,
  MPSCNNBatchNormalizationFlagsCalculateStatisticsMask = 3,
};

typedef NS_OPTIONS(NSUInteger, MPSNNPaddingMethod) {
  MPSNNPaddingMethodAlignCentered = 0,
  MPSNNPaddingMethodAlignTopLeft = 1,
  MPSNNPaddingMethodAlignBottomRight = 2,
  MPSNNPaddingMethodAlign_reserved = 3,
  MPSNNPaddingMethodAlignMask = 3,
  MPSNNPaddingMethodAddRemainderToTopLeft = 0x0,
  MPSNNPaddingMethodAddRemainderToTopRight = 0x4,
  MPSNNPaddingMethodAddRemainderToBottomLeft = 0x8,
  MPSNNPaddingMethodAddRemainderToBottomRight = 0xC,
  MPSNNPaddingMethodAddRemainderToMask = 0xC,
  MPSNNPaddingMethodSizeValidOnly = 0x00,
  MPSNNPaddingMethodSizeSame = 0x10,
  MPSNNPaddingMethodSizeFull = 0x20,
  MPSNNPaddingMethodSize_reserved = 0x30,
  MPSNNPaddingMethodCustomWhitelistForNodeFusion = 1UL << 13,
  MPSNNPaddingMethodCustomAllowForNodeFusion = 1UL << 13,
  MPSNNPaddingMethodCustom = 1UL << 14,
  MPSNNPaddingMethodSizeMask = 0x7f0,
  MPSNNPaddingMethodExcludeEdges = 1UL << 15,
};

@protocol MPSNNPadding <NSObject, NSSecureCoding>
@required
- (MPSNNPaddingMethod)paddingMethod;
@optional
- (NSString*)label;
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:
                                                        (nullable NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)inDescriptor;
- (nullable instancetype)inverse;
@end

@interface MPSNNDefaultPadding : EmulatedObject <MPSNNPadding> {
 @public
  MPSNNPaddingMethod method_;
  NSInteger flavour_;
}
+ (instancetype)paddingWithMethod:(MPSNNPaddingMethod)method;
+ (instancetype)paddingForTensorflowAveragePooling;
+ (instancetype)paddingForTensorflowAveragePoolingValidOnly;
- (NSString*)label;
@end

@protocol MPSImageSizeEncodingState <NSObject>
@property(readonly, nonatomic) NSUInteger sourceWidth;
@property(readonly, nonatomic) NSUInteger sourceHeight;
@end

NS_ASSUME_NONNULL_END
