// Losses: combined, object detection, separate forward and gradient kernels.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>
#import <MetalPerformanceShaders/MPSCNNTypes.h>
#import <MetalPerformanceShaders/MPSState.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNLossDataDescriptor : EmulatedObject <NSCopying> {
 @public
  NSData* data_;
  MPSDataLayout layout_;
  MTLSize size_;
  NSUInteger bytes_per_row_, bytes_per_image_;
}
@property(readonly, nonatomic) MPSDataLayout layout;
@property(readonly, nonatomic) MTLSize size;
@property(readwrite, nonatomic) NSUInteger bytesPerRow;
@property(readwrite, nonatomic) NSUInteger bytesPerImage;
- (instancetype)init NS_UNAVAILABLE;
+ (nullable MPSCNNLossDataDescriptor*)cnnLossDataDescriptorWithData:(NSData*)data
                                                             layout:(MPSDataLayout)layout
                                                               size:(MTLSize)size;
@end

@interface MPSCNNLossLabels : MPSState
- (instancetype)init NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
              labelsDescriptor:(MPSCNNLossDataDescriptor*)labelsDescriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 lossImageSize:(MTLSize)lossImageSize
              labelsDescriptor:(MPSCNNLossDataDescriptor*)labelsDescriptor
             weightsDescriptor:(nullable MPSCNNLossDataDescriptor*)weightsDescriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                 lossImageSize:(MTLSize)lossImageSize
                   labelsImage:(MPSImage*)labelsImage
                  weightsImage:(nullable MPSImage*)weightsImage;
- (MPSImage*)lossImage;
- (MPSImage*)labelsImage;
- (MPSImage*)weightsImage;
@end
typedef NSArray<MPSCNNLossLabels*> MPSCNNLossLabelsBatch;

@interface MPSCNNLossDescriptor : EmulatedObject <NSCopying> {
 @public
  MPSCNNLossType type_;
  MPSCNNReductionType reduction_;
  BOOL across_batch_;
  float weight_, smoothing_, epsilon_, delta_;
  NSUInteger classes_;
}
@property(readwrite, nonatomic) MPSCNNLossType lossType;
@property(readwrite, nonatomic) MPSCNNReductionType reductionType;
@property(readwrite, nonatomic) BOOL reduceAcrossBatch;
@property(readwrite, nonatomic) float weight;
@property(readwrite, nonatomic) float labelSmoothing;
@property(readwrite, nonatomic) NSUInteger numberOfClasses;
@property(readwrite, nonatomic) float epsilon;
@property(readwrite, nonatomic) float delta;
- (instancetype)init NS_UNAVAILABLE;
+ (MPSCNNLossDescriptor*)cnnLossDescriptorWithType:(MPSCNNLossType)lossType
                                     reductionType:(MPSCNNReductionType)reductionType;
@end

@interface MPSCNNLoss : MPSCNNKernel
@property(readonly, nonatomic) MPSCNNLossType lossType;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) float weight;
@property(readonly, nonatomic) float labelSmoothing;
@property(readonly, nonatomic) NSUInteger numberOfClasses;
@property(readonly, nonatomic) float epsilon;
@property(readonly, nonatomic) float delta;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNLossDescriptor*)lossDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
                       labels:(MPSCNNLossLabels*)labels
             destinationImage:(MPSImage*)destinationImage;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                            labels:(MPSCNNLossLabels*)labels;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImage
                            labels:(MPSCNNLossLabelsBatch*)labels
                 destinationImages:(MPSImageBatch*)destinationImage;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImage
                                      labels:(MPSCNNLossLabelsBatch*)labels;
@end

@interface MPSCNNYOLOLossDescriptor : EmulatedObject <NSCopying> {
 @public
  MPSCNNLossDescriptor *xy_, *wh_, *confidence_, *classes_;
  MPSCNNReductionType reduction_;
  BOOL across_batch_, rescore_;
  float scale_xy_, scale_wh_, scale_no_object_, scale_object_, scale_class_, minimum_, maximum_;
  NSUInteger anchor_count_;
  NSData* anchors_;
}
@property(readwrite, nonatomic, retain) MPSCNNLossDescriptor* XYLossDescriptor;
@property(readwrite, nonatomic, retain) MPSCNNLossDescriptor* WHLossDescriptor;
@property(readwrite, nonatomic, retain) MPSCNNLossDescriptor* confidenceLossDescriptor;
@property(readwrite, nonatomic, retain) MPSCNNLossDescriptor* classesLossDescriptor;
@property(readwrite, nonatomic) MPSCNNReductionType reductionType;
@property(readwrite, nonatomic) BOOL reduceAcrossBatch;
@property(readwrite, nonatomic) BOOL rescore;
@property(readwrite, nonatomic) float scaleXY;
@property(readwrite, nonatomic) float scaleWH;
@property(readwrite, nonatomic) float scaleNoObject;
@property(readwrite, nonatomic) float scaleObject;
@property(readwrite, nonatomic) float scaleClass;
@property(readwrite, nonatomic) float minIOUForObjectPresence;
@property(readwrite, nonatomic) float maxIOUForObjectAbsence;
@property(readwrite, nonatomic) NSUInteger numberOfAnchorBoxes;
@property(readwrite, nonatomic, retain) NSData* anchorBoxes;
- (instancetype)init NS_UNAVAILABLE;
+ (MPSCNNYOLOLossDescriptor*)cnnLossDescriptorWithXYLossType:(MPSCNNLossType)XYLossType
                                                  WHLossType:(MPSCNNLossType)WHLossType
                                          confidenceLossType:(MPSCNNLossType)confidenceLossType
                                             classesLossType:(MPSCNNLossType)classesLossType
                                               reductionType:(MPSCNNReductionType)reductionType
                                                 anchorBoxes:(NSData*)anchorBoxes
                                         numberOfAnchorBoxes:(NSUInteger)numberOfAnchorBoxes;
@end

@interface MPSCNNYOLOLoss : MPSCNNKernel
@property(readonly, nonatomic, retain) MPSCNNLoss* lossXY;
@property(readonly, nonatomic, retain) MPSCNNLoss* lossWH;
@property(readonly, nonatomic, retain) MPSCNNLoss* lossConfidence;
@property(readonly, nonatomic, retain) MPSCNNLoss* lossClasses;
@property(readonly, nonatomic) float scaleXY;
@property(readonly, nonatomic) float scaleWH;
@property(readonly, nonatomic) float scaleNoObject;
@property(readonly, nonatomic) float scaleObject;
@property(readonly, nonatomic) float scaleClass;
@property(readonly, nonatomic) float minIOUForObjectPresence;
@property(readonly, nonatomic) float maxIOUForObjectAbsence;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) NSUInteger numberOfAnchorBoxes;
@property(readonly, nonatomic, retain) NSData* anchorBoxes;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNYOLOLossDescriptor*)lossDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
                       labels:(MPSCNNLossLabels*)labels
             destinationImage:(MPSImage*)destinationImage;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                            labels:(MPSCNNLossLabels*)labels;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImage
                            labels:(MPSCNNLossLabelsBatch*)labels
                 destinationImages:(MPSImageBatch*)destinationImage;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImage
                                      labels:(MPSCNNLossLabelsBatch*)labels;
@end

@interface MPSNNForwardLoss : MPSCNNKernel
@property(readonly, nonatomic) MPSCNNLossType lossType;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
@property(readonly, nonatomic) NSUInteger numberOfClasses;
@property(readwrite, nonatomic) float weight;
@property(readwrite, nonatomic) float labelSmoothing;
@property(readwrite, nonatomic) float epsilon;
@property(readwrite, nonatomic) float delta;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNLossDescriptor*)lossDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                            labels:(MPSImageBatch*)labels
                           weights:(nullable MPSImageBatch*)weights
                 destinationStates:(nullable MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                                      labels:(MPSImageBatch*)labels
                                     weights:(nullable MPSImageBatch*)weights
                           destinationStates:
                               (MPSStateBatch* _Nullable __autoreleasing* _Nullable)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary;
@end

@interface MPSNNLossGradient : MPSCNNBinaryKernel
@property(readonly, nonatomic) MPSCNNLossType lossType;
@property(readonly, nonatomic) MPSCNNReductionType reductionType;
@property(readonly, nonatomic) BOOL reduceAcrossBatch;
@property(readonly, nonatomic) NSUInteger numberOfClasses;
@property(readwrite, nonatomic) float weight;
@property(readwrite, nonatomic) float labelSmoothing;
@property(readwrite, nonatomic) float epsilon;
@property(readwrite, nonatomic) float delta;
@property(readwrite, nonatomic) BOOL computeLabelGradients;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                lossDescriptor:(MPSCNNLossDescriptor*)lossDescriptor;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                                      labels:(MPSImageBatch*)labels
                                     weights:(nullable MPSImageBatch*)weights
                                sourceStates:(nullable MPSStateBatch*)sourceStates;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
                            labels:(MPSImageBatch*)labels
                           weights:(nullable MPSImageBatch*)weights
                      sourceStates:(nullable MPSStateBatch*)sourceStates
              destinationGradients:(MPSImageBatch*)destinationGradients;
@end

@interface MPSNNInitialGradient : MPSCNNKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
