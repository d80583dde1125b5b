// A command buffer that can be continued, and predicates for what is encoded into it.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSPredicate : EmulatedObject {
 @public
  id<MTLBuffer> buffer_;
  NSUInteger offset_;
}
@property(readonly, retain, nonatomic) id<MTLBuffer> predicateBuffer;
@property(readonly, nonatomic) NSUInteger predicateOffset;
+ (instancetype)predicateWithBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
@end

@protocol MPSHeapProvider <NSObject>
@required
- (nullable id<MTLHeap>)newHeapWithDescriptor:(MTLHeapDescriptor*)descriptor NS_RETURNS_RETAINED;
@optional
- (void)retireHeap:(id<MTLHeap>)heap cacheDelay:(double)seconds;
@end

@interface MPSCommandBuffer : EmulatedObject <MTLCommandBuffer> {
 @public
  id<MTLCommandBuffer> wrapped_;
  MPSPredicate* predicate_;
  id<MPSHeapProvider> heap_provider_;
}
@property(readonly, retain, nonatomic) id<MTLCommandBuffer> commandBuffer;
@property(readonly, retain, nonatomic) id<MTLCommandBuffer> rootCommandBuffer;
@property(readwrite, retain, nonatomic, nullable) MPSPredicate* predicate;
@property(readwrite, retain, nonatomic, nullable) id<MPSHeapProvider> heapProvider;
+ (instancetype)commandBufferWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
+ (instancetype)commandBufferFromCommandQueue:(id<MTLCommandQueue>)commandQueue;
- (instancetype)initWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
- (instancetype)init NS_UNAVAILABLE;
- (void)commitAndContinue;
- (void)prefetchHeapForWorkloadSize:(size_t)size;
@end

NS_ASSUME_NONNULL_END
