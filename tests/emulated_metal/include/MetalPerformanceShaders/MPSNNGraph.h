// A compiled graph: kernels in order, and what becomes of their images and states.
#pragma once
#import <MetalPerformanceShaders/MPSKernel.h>
#import <MetalPerformanceShaders/MPSNNGraphNodes.h>

namespace emulated_metal {
struct GraphBody;
}  // namespace emulated_metal

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNGraph : MPSKernel <NSCopying, NSSecureCoding> {
 @public
  emulated_metal::GraphBody* graph_;
}
@property(readonly, copy, nonatomic) NSArray<id<MPSHandle>>* sourceImageHandles;
@property(readonly, nullable, copy, nonatomic) NSArray<id<MPSHandle>>* sourceStateHandles;
@property(readonly, nullable, copy, nonatomic) NSArray<id<MPSHandle>>* intermediateImageHandles;
@property(readonly, nullable, copy, nonatomic) NSArray<id<MPSHandle>>* resultStateHandles;
@property(readonly, nullable, nonatomic) id<MPSHandle> resultHandle;
@property(readwrite, nonatomic) BOOL outputStateIsTemporary;
@property(readwrite, nonatomic, retain) id<MPSImageAllocator> destinationImageAllocator;
@property(readwrite, nonatomic) MPSImageFeatureChannelFormat format;
@property(readonly, nonatomic) BOOL resultImageIsNeeded;
- (nullable instancetype)initWithDevice:(id<MTLDevice>)device
                            resultImage:(MPSNNImageNode*)resultImage
                    resultImageIsNeeded:(BOOL)resultIsNeeded;
- (nullable instancetype)initWithDevice:(id<MTLDevice>)device
                           resultImages:(NSArray<MPSNNImageNode*>*)resultImages
                       resultsAreNeeded:(BOOL* _Nullable)areResultsNeeded;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (void)reloadFromDataSources;
- (nullable MPSImage*)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                               sourceImages:(NSArray<MPSImage*>*)sourceImages
                               sourceStates:(nullable NSArray<MPSState*>*)sourceStates
                         intermediateImages:(nullable NSMutableArray<MPSImage*>*)intermediateImages
                          destinationStates:(nullable NSMutableArray<MPSState*>*)destinationStates;
- (nullable MPSImageBatch*)
    encodeBatchToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                  sourceImages:(NSArray<MPSImageBatch*>*)sourceImages
                  sourceStates:(nullable NSArray<MPSStateBatch*>*)sourceStates
            intermediateImages:(nullable NSMutableArray<MPSImageBatch*>*)intermediateImages
             destinationStates:(nullable NSMutableArray<MPSStateBatch*>*)destinationStates;
- (NSUInteger)readCountForSourceImageAtIndex:(NSUInteger)index;
- (NSUInteger)readCountForSourceStateAtIndex:(NSUInteger)index;
@end

NS_ASSUME_NONNULL_END
