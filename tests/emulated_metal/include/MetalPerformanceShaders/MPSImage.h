// Multi-channel images over texture slices.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@class MPSImage;
@class MPSKernel;

@interface MPSImageDescriptor : EmulatedObject <NSCopying> {
 @public
  emulated_metal::ImageDescriptorBody* body_;
}
@property(readwrite, nonatomic) NSUInteger width;
@property(readwrite, nonatomic) NSUInteger height;
@property(readwrite, nonatomic) NSUInteger featureChannels;
@property(readwrite, nonatomic) NSUInteger numberOfImages;
@property(readonly, nonatomic) MTLPixelFormat pixelFormat;
@property(readwrite, nonatomic) MPSImageFeatureChannelFormat channelFormat;
@property(readwrite, nonatomic) MTLCPUCacheMode cpuCacheMode;
@property(readwrite, nonatomic) MTLStorageMode storageMode;
@property(readwrite, nonatomic) MTLTextureUsage usage;
+ (instancetype)imageDescriptorWithChannelFormat:(MPSImageFeatureChannelFormat)channelFormat
                                           width:(NSUInteger)width
                                          height:(NSUInteger)height
                                 featureChannels:(NSUInteger)featureChannels;
+ (instancetype)imageDescriptorWithChannelFormat:(MPSImageFeatureChannelFormat)channelFormat
                                           width:(NSUInteger)width
                                          height:(NSUInteger)height
                                 featureChannels:(NSUInteger)featureChannels
                                  numberOfImages:(NSUInteger)numberOfImages
                                           usage:(MTLTextureUsage)usage;
- (instancetype)copyWithZone:(nullable NSZone*)zone;
@end

typedef NSArray<MPSImage*> MPSImageBatch;

MTL_EXTERN NSUInteger MPSImageBatchIncrementReadCount(MPSImageBatch* batch, NSInteger amount);
MTL_EXTERN void MPSImageBatchSynchronize(MPSImageBatch* batch, id<MTLCommandBuffer> cmdBuf);
MTL_EXTERN NSUInteger MPSImageBatchResourceSize(MPSImageBatch* batch);
MTL_EXTERN NSInteger MPSImageBatchIterate(MPSImageBatch* batch,
                                          NSInteger (^iteratorBlock)(MPSImage* image,
                                                                     NSUInteger index));

@protocol MPSImageAllocator <NSObject, NSSecureCoding>
@required
- (MPSImage*)imageForCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                   imageDescriptor:(MPSImageDescriptor*)descriptor
                            kernel:(MPSKernel*)kernel;
@optional
- (MPSImageBatch*)imageBatchForCommandBuffer:(id<MTLCommandBuffer>)cmdBuf
                             imageDescriptor:(MPSImageDescriptor*)descriptor
                                      kernel:(MPSKernel*)kernel
                                       count:(NSUInteger)count;
@end

typedef NS_ENUM(NSUInteger, MPSPurgeableState) {
  MPSPurgeableStateAllocationDeferred = 0,
  MPSPurgeableStateKeepCurrent = MTLPurgeableStateKeepCurrent,
  MPSPurgeableStateNonVolatile = MTLPurgeableStateNonVolatile,
  MPSPurgeableStateVolatile = MTLPurgeableStateVolatile,
  MPSPurgeableStateEmpty = MTLPurgeableStateEmpty,
};

typedef NS_ENUM(NSUInteger, MPSDataLayout) {
  MPSDataLayoutHeightxWidthxFeatureChannels = 0,
  MPSDataLayoutFeatureChannelsxHeightxWidth = 1,
};

typedef struct {
  NSUInteger featureChannelOffset;
  NSUInteger numberOfFeatureChannelsToReadWrite;
} MPSImageReadWriteParams;

@interface MPSImage : EmulatedObject {
 @public
  emulated_metal::ImageBody* body_;
}
@property(readonly, retain, nonatomic) id<MTLDevice> device;
@property(readonly, nonatomic) NSUInteger width;
@property(readonly, nonatomic) NSUInteger height;
@property(readonly, nonatomic) NSUInteger featureChannels;
@property(readonly, nonatomic) NSUInteger numberOfImages;
@property(readonly, nonatomic) MTLTextureType textureType;
@property(readonly, nonatomic) MTLPixelFormat pixelFormat;
@property(readonly, nonatomic) NSUInteger precision;
@property(readonly, nonatomic) MTLTextureUsage usage;
@property(readonly, nonatomic) MPSImageFeatureChannelFormat featureChannelFormat;
@property(readonly, nonatomic) size_t pixelSize;
@property(readonly, nonatomic) id<MTLTexture> texture;
@property(copy, atomic, nullable) NSString* label;
@property(readonly, nullable, retain, nonatomic) MPSImage* parent;
+ (id<MPSImageAllocator>)defaultAllocator;
- (instancetype)initWithDevice:(id<MTLDevice>)device
               imageDescriptor:(const MPSImageDescriptor*)imageDescriptor;
- (instancetype)initWithParentImage:(MPSImage*)parent
                         sliceRange:(NSRange)sliceRange
                    featureChannels:(NSUInteger)featureChannels;
- (instancetype)initWithTexture:(id<MTLTexture>)texture featureChannels:(NSUInteger)featureChannels;
- (instancetype)init NS_UNAVAILABLE;
- (MPSImageBatch*)batchRepresentationWithSubRange:(NSRange)subRange;
- (MPSImageBatch*)batchRepresentation;
- (MPSImage*)subImageWithFeatureChannelRange:(NSRange)range;
- (NSUInteger)resourceSize;
- (MPSPurgeableState)setPurgeableState:(MPSPurgeableState)state;
- (void)readBytes:(void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex;
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex;
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
        bytesPerColumn:(NSUInteger)bytesPerColumn
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex;
- (void)readBytes:(void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex;
- (void)writeBytes:(const void*)dataBytes
            dataLayout:(MPSDataLayout)dataLayout
           bytesPerRow:(NSUInteger)bytesPerRow
         bytesPerImage:(NSUInteger)bytesPerImage
                region:(MTLRegion)region
    featureChannelInfo:(MPSImageReadWriteParams)featureChannelInfo
            imageIndex:(NSUInteger)imageIndex;
- (void)readBytes:(void*)dataBytes
       dataLayout:(MPSDataLayout)dataLayout
       imageIndex:(NSUInteger)imageIndex;
- (void)writeBytes:(const void*)dataBytes
        dataLayout:(MPSDataLayout)dataLayout
        imageIndex:(NSUInteger)imageIndex;
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
@end

@interface MPSTemporaryImage : MPSImage
@property(readwrite, nonatomic) NSUInteger readCount;
+ (id<MPSImageAllocator>)defaultAllocator;
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                imageDescriptor:(const MPSImageDescriptor*)imageDescriptor;
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                              textureDescriptor:(const MTLTextureDescriptor*)textureDescriptor;
+ (instancetype)temporaryImageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                              textureDescriptor:(const MTLTextureDescriptor*)textureDescriptor
                                featureChannels:(NSUInteger)featureChannels;
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                     imageDescriptorList:(NSArray<MPSImageDescriptor*>*)descriptorList;
- (instancetype)initWithTexture:(id<MTLTexture>)texture
                featureChannels:(NSUInteger)featureChannels NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
               imageDescriptor:(const MPSImageDescriptor*)imageDescriptor NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
