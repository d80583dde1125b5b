// Opaque carriers of resources between kernels.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSImage;
@class MPSImageDescriptor;
@class MPSKernel;

@interface MPSStateResourceList : EmulatedObject {
 @public
  emulated_metal::ResourceListBody* body_;
}
+ (instancetype)resourceList;
- (instancetype)init;
- (void)appendTexture:(MTLTextureDescriptor*)descriptor;
- (void)appendBuffer:(NSUInteger)size;
@end

typedef struct MPSStateTextureInfo {
  NSUInteger width, height, depth, arrayLength;
  MTLPixelFormat pixelFormat;
  MTLTextureType textureType;
  MTLTextureUsage usage;
  NSUInteger _reserved[4];
} MPSStateTextureInfo;

typedef NS_ENUM(NSUInteger, MPSStateResourceType) {
  MPSStateResourceTypeNone = 0,
  MPSStateResourceTypeBuffer = 1,
  MPSStateResourceTypeTexture = 2,
};

@interface MPSState : EmulatedObject {
 @public
  emulated_metal::StateBody* body_;
}
@property(readonly, nonatomic) NSUInteger resourceCount;
@property(readwrite, nonatomic) NSUInteger readCount;
@property(readonly, nonatomic) BOOL isTemporary;
@property(nullable, copy, atomic) NSString* label;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                                     bufferSize:(size_t)bufferSize;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                              textureDescriptor:(MTLTextureDescriptor*)descriptor;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)cmdBuf;
+ (instancetype)temporaryStateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                   resourceList:(MPSStateResourceList*)resourceList;
- (instancetype)initWithDevice:(id<MTLDevice>)device bufferSize:(size_t)bufferSize;
- (instancetype)initWithDevice:(id<MTLDevice>)device
             textureDescriptor:(MTLTextureDescriptor*)descriptor;
- (instancetype)initWithResource:(nullable id<MTLResource>)resource;
- (nullable instancetype)init NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                  resourceList:(MPSStateResourceList*)resourceList;
- (instancetype)initWithResources:(nullable NSArray<id<MTLResource>>*)resources;
- (nullable id<MTLResource>)resourceAtIndex:(NSUInteger)index allocateMemory:(BOOL)allocateMemory;
- (NSUInteger)bufferSizeAtIndex:(NSUInteger)index;
- (MPSStateTextureInfo)textureInfoAtIndex:(NSUInteger)index;
- (MPSStateResourceType)resourceTypeAtIndex:(NSUInteger)index;
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
- (NSUInteger)resourceSize;
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:
                                                        (nullable NSArray<MPSState*>*)sourceStates
                                                       forKernel:(MPSKernel*)kernel
                                             suggestedDescriptor:(MPSImageDescriptor*)inDescriptor;
@end

typedef NSArray<MPSState*> MPSStateBatch;

MTL_EXTERN NSUInteger MPSStateBatchIncrementReadCount(MPSStateBatch* _Nullable batch,
                                                      NSInteger amount);
MTL_EXTERN void MPSStateBatchSynchronize(MPSStateBatch* batch, id<MTLCommandBuffer> cmdBuf);
MTL_EXTERN NSUInteger MPSStateBatchResourceSize(MPSStateBatch* _Nullable batch);

NS_ASSUME_NONNULL_END
