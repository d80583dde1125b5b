// Base classes of kernels with one or two sources, and of gradient kernels.
#pragma once
#import <MetalPerformanceShaders/MPSImage.h>
#import <MetalPerformanceShaders/MPSKernel.h>
#import <MetalPerformanceShaders/MPSNNGradientState.h>
#import <MetalPerformanceShaders/MPSNeuralNetworkTypes.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNKernel : MPSKernel
@property(readwrite, nonatomic) MPSOffset offset;
@property(readwrite, nonatomic) MTLRegion clipRect;
@property(readwrite, nonatomic) NSUInteger destinationFeatureChannelOffset;
@property(readwrite, nonatomic) NSUInteger sourceFeatureChannelOffset;
@property(readwrite, nonatomic) NSUInteger sourceFeatureChannelMaxCount;
@property(readwrite, nonatomic) MPSImageEdgeMode edgeMode;
@property(readonly, nonatomic) NSUInteger kernelWidth;
@property(readonly, nonatomic) NSUInteger kernelHeight;
@property(readonly, nonatomic) NSUInteger strideInPixelsX;
@property(readonly, nonatomic) NSUInteger strideInPixelsY;
@property(readonly, nonatomic) NSUInteger dilationRateX;
@property(readonly, nonatomic) NSUInteger dilationRateY;
@property(readonly, nonatomic) BOOL isBackwards;
@property(readonly, nonatomic) BOOL isStateModified;
@property(readwrite, nonatomic, retain) id<MPSNNPadding> padding;
@property(readwrite, nonatomic, retain) id<MPSImageAllocator> destinationImageAllocator;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImage:(MPSImage*)sourceImage
             destinationState:(MPSState*)destinationState
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationImages:(MPSImageBatch*)destinationImages;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      sourceImages:(MPSImageBatch*)sourceImages
                 destinationStates:(nullable MPSStateBatch*)destinationStates
                 destinationImages:(MPSImageBatch*)destinationImages;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                       sourceImage:(MPSImage*)sourceImage
                  destinationState:(MPSState* _Nullable __autoreleasing* _Nonnull)outState
       destinationStateIsTemporary:(BOOL)isTemporary;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                sourceImages:(MPSImageBatch*)sourceImages
                           destinationStates:
                               (MPSStateBatch* _Nullable __autoreleasing* _Nonnull)outStates
                 destinationStateIsTemporary:(BOOL)isTemporary;
- (nullable MPSState*)resultStateForSourceImage:(MPSImage*)sourceImage
                                   sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                               destinationImage:(MPSImage*)destinationImage;
- (nullable MPSStateBatch*)resultStateBatchForSourceImage:(MPSImageBatch*)sourceImage
                                             sourceStates:
                                                 (nullable NSArray<MPSStateBatch*>*)sourceStates
                                         destinationImage:(MPSImageBatch*)destinationImage;
- (nullable MPSState*)temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                               sourceImage:(MPSImage*)sourceImage
                                              sourceStates:
                                                  (nullable NSArray<MPSState*>*)sourceStates
                                          destinationImage:(MPSImage*)destinationImage;
- (nullable MPSStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                  sourceImage:(MPSImageBatch*)sourceImage
                                 sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage;
- (BOOL)isResultStateReusedAcrossBatch;
- (BOOL)appendBatchBarrier;
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:
                                                        (nullable NSArray<MPSState*>*)sourceStates;
- (NSUInteger)encodingStorageSizeForSourceImage:(MPSImage*)sourceImage
                                   sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                               destinationImage:(nullable MPSImage*)destinationImage;
- (NSUInteger)batchEncodingStorageSizeForSourceImage:(MPSImageBatch*)sourceImage
                                        sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                                    destinationImage:(nullable MPSImageBatch*)destinationImage;
@end

@interface MPSCNNBinaryKernel : MPSKernel
@property(readwrite, nonatomic) MPSOffset primaryOffset;
@property(readwrite, nonatomic) MPSOffset secondaryOffset;
@property(readwrite, nonatomic) MTLRegion clipRect;
@property(readwrite, nonatomic) NSUInteger destinationFeatureChannelOffset;
@property(readwrite, nonatomic) NSUInteger primarySourceFeatureChannelOffset;
@property(readwrite, nonatomic) NSUInteger secondarySourceFeatureChannelOffset;
@property(readwrite, nonatomic) NSUInteger primarySourceFeatureChannelMaxCount;
@property(readwrite, nonatomic) NSUInteger secondarySourceFeatureChannelMaxCount;
@property(readwrite, nonatomic) MPSImageEdgeMode primaryEdgeMode;
@property(readwrite, nonatomic) MPSImageEdgeMode secondaryEdgeMode;
@property(readonly, nonatomic) NSUInteger primaryKernelWidth;
@property(readonly, nonatomic) NSUInteger primaryKernelHeight;
@property(readonly, nonatomic) NSUInteger secondaryKernelWidth;
@property(readonly, nonatomic) NSUInteger secondaryKernelHeight;
@property(readwrite, nonatomic) NSUInteger primaryStrideInPixelsX;
@property(readwrite, nonatomic) NSUInteger primaryStrideInPixelsY;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsX;
@property(readwrite, nonatomic) NSUInteger secondaryStrideInPixelsY;
@property(readonly, nonatomic) NSUInteger primaryDilationRateX;
@property(readonly, nonatomic) NSUInteger primaryDilationRateY;
@property(readonly, nonatomic) NSUInteger secondaryDilationRateX;
@property(readonly, nonatomic) NSUInteger secondaryDilationRateY;
@property(readonly, nonatomic) BOOL isBackwards;
@property(readonly, nonatomic) BOOL isStateModified;
@property(readwrite, nonatomic, retain) id<MPSNNPadding> padding;
@property(readwrite, nonatomic, retain) id<MPSImageAllocator> destinationImageAllocator;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                 primaryImage:(MPSImage*)primaryImage
               secondaryImage:(MPSImage*)secondaryImage
             destinationImage:(MPSImage*)destinationImage;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     primaryImages:(MPSImageBatch*)primaryImages
                   secondaryImages:(MPSImageBatch*)secondaryImages
                 destinationImages:(MPSImageBatch*)destinationImages;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      primaryImage:(MPSImage*)primaryImage
                    secondaryImage:(MPSImage*)secondaryImage;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               primaryImages:(MPSImageBatch*)primaryImage
                             secondaryImages:(MPSImageBatch*)secondaryImage;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                      primaryImage:(MPSImage*)primaryImage
                    secondaryImage:(MPSImage*)secondaryImage
                  destinationState:(MPSState* _Nullable __autoreleasing* _Nonnull)outState
       destinationStateIsTemporary:(BOOL)isTemporary;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               primaryImages:(MPSImageBatch*)primaryImages
                             secondaryImages:(MPSImageBatch*)secondaryImages
                           destinationStates:
                               (MPSStateBatch* _Nullable __autoreleasing* _Nonnull)outState
                 destinationStateIsTemporary:(BOOL)isTemporary;
- (nullable MPSState*)resultStateForPrimaryImage:(MPSImage*)primaryImage
                                  secondaryImage:(MPSImage*)secondaryImage
                                    sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                                destinationImage:(MPSImage*)destinationImage;
- (nullable MPSStateBatch*)resultStateBatchForPrimaryImage:(MPSImageBatch*)primaryImage
                                            secondaryImage:(MPSImageBatch*)secondaryImage
                                              sourceStates:
                                                  (nullable NSArray<MPSStateBatch*>*)sourceStates
                                          destinationImage:(MPSImageBatch*)destinationImage;
- (nullable MPSState*)temporaryResultStateForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                              primaryImage:(MPSImage*)primaryImage
                                            secondaryImage:(MPSImage*)secondaryImage
                                              sourceStates:
                                                  (nullable NSArray<MPSState*>*)sourceStates
                                          destinationImage:(MPSImage*)destinationImage;
- (nullable MPSStateBatch*)
    temporaryResultStateBatchForCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                 primaryImage:(MPSImageBatch*)primaryImage
                               secondaryImage:(MPSImageBatch*)secondaryImage
                                 sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
                             destinationImage:(MPSImageBatch*)destinationImage;
- (BOOL)isResultStateReusedAcrossBatch;
- (BOOL)appendBatchBarrier;
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:
                                                        (nullable NSArray<MPSState*>*)sourceStates;
- (NSUInteger)encodingStorageSizeForPrimaryImage:(MPSImage*)primaryImage
                                  secondaryImage:(MPSImage*)secondaryImage
                                    sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                                destinationImage:(nullable MPSImage*)destinationImage;
- (NSUInteger)batchEncodingStorageSizeForPrimaryImage:(MPSImageBatch*)primaryImage
                                       secondaryImage:(MPSImageBatch*)secondaryImage
                                         sourceStates:
                                             (nullable NSArray<MPSStateBatch*>*)sourceStates
                                     destinationImage:(nullable MPSImageBatch*)destinationImage;
@end

@interface MPSCNNGradientKernel : MPSCNNBinaryKernel
@property(readwrite, nonatomic) NSInteger kernelOffsetX;
@property(readwrite, nonatomic) NSInteger kernelOffsetY;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    sourceGradient:(MPSImage*)sourceGradient
                       sourceImage:(MPSImage*)sourceImage
                     gradientState:(MPSState*)gradientState;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
               sourceGradient:(MPSImage*)sourceGradient
                  sourceImage:(MPSImage*)sourceImage
                gradientState:(MPSState*)gradientState
          destinationGradient:(MPSImage*)destinationGradient;
- (MPSImageBatch*)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                             sourceGradients:(MPSImageBatch*)sourceGradients
                                sourceImages:(MPSImageBatch*)sourceImages
                              gradientStates:(MPSStateBatch*)gradientStates;
- (void)encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   sourceGradients:(MPSImageBatch*)sourceGradients
                      sourceImages:(MPSImageBatch*)sourceImages
                    gradientStates:(MPSStateBatch*)gradientStates
              destinationGradients:(MPSImageBatch*)destinationGradients;
@end

NS_ASSUME_NONNULL_END
