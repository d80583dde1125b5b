// Vectors and matrices over buffers.
#pragma once
#import <MetalPerformanceShaders/MPSCoreTypes.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSMatrixDescriptor : EmulatedObject {
 @public
  emulated_metal::ArrayBody* body_;
}
@property(readwrite, nonatomic) NSUInteger rows;
@property(readwrite, nonatomic) NSUInteger columns;
@property(readonly, nonatomic) NSUInteger matrices;
@property(readwrite, nonatomic) MPSDataType dataType;
@property(readwrite, nonatomic) NSUInteger rowBytes;
@property(readonly, nonatomic) NSUInteger matrixBytes;
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                rowBytes:(NSUInteger)rowBytes
                                dataType:(MPSDataType)dataType;
+ (instancetype)matrixDescriptorWithRows:(NSUInteger)rows
                                 columns:(NSUInteger)columns
                                matrices:(NSUInteger)matrices
                                rowBytes:(NSUInteger)rowBytes
                             matrixBytes:(NSUInteger)matrixBytes
                                dataType:(MPSDataType)dataType;
+ (size_t)rowBytesForColumns:(NSUInteger)columns dataType:(MPSDataType)dataType;
@end

@interface MPSVectorDescriptor : EmulatedObject {
 @public
  emulated_metal::ArrayBody* body_;
}
@property(readwrite, nonatomic) NSUInteger length;
@property(readonly, nonatomic) NSUInteger vectors;
@property(readwrite, nonatomic) MPSDataType dataType;
@property(readonly, nonatomic) NSUInteger vectorBytes;
+ (instancetype)vectorDescriptorWithLength:(NSUInteger)length dataType:(MPSDataType)dataType;
+ (instancetype)vectorDescriptorWithLength:(NSUInteger)length
                                   vectors:(NSUInteger)vectors
                               vectorBytes:(NSUInteger)vectorBytes
                                  dataType:(MPSDataType)dataType;
+ (size_t)vectorBytesForLength:(NSUInteger)length dataType:(MPSDataType)dataType;
@end

@interface MPSMatrix : EmulatedObject {
 @public
  emulated_metal::ArrayBody* body_;
}
@property(readonly, retain, nonatomic) id<MTLDevice> device;
@property(readonly, nonatomic) NSUInteger rows;
@property(readonly, nonatomic) NSUInteger columns;
@property(readonly, nonatomic) NSUInteger matrices;
@property(readonly, nonatomic) MPSDataType dataType;
@property(readonly, nonatomic) NSUInteger rowBytes;
@property(readonly, nonatomic) NSUInteger matrixBytes;
@property(readonly, nonatomic) NSUInteger offset;
@property(readonly, nonatomic) id<MTLBuffer> data;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer descriptor:(MPSMatrixDescriptor*)descriptor;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer
                        offset:(NSUInteger)offset
                    descriptor:(MPSMatrixDescriptor*)descriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device descriptor:(MPSMatrixDescriptor*)descriptor;
- (instancetype)init NS_UNAVAILABLE;
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
- (NSUInteger)resourceSize;
@end

@interface MPSVector : EmulatedObject {
 @public
  emulated_metal::ArrayBody* body_;
}
@property(readonly, retain, nonatomic) id<MTLDevice> device;
@property(readonly, nonatomic) NSUInteger length;
@property(readonly, nonatomic) NSUInteger vectors;
@property(readonly, nonatomic) MPSDataType dataType;
@property(readonly, nonatomic) NSUInteger vectorBytes;
@property(readonly, nonatomic) NSUInteger offset;
@property(readonly, nonatomic) id<MTLBuffer> data;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer descriptor:(MPSVectorDescriptor*)descriptor;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer
                        offset:(NSUInteger)offset
                    descriptor:(MPSVectorDescriptor*)descriptor;
- (instancetype)initWithDevice:(id<MTLDevice>)device descriptor:(MPSVectorDescriptor*)descriptor;
- (instancetype)init NS_UNAVAILABLE;
- (void)synchronizeOnCommandBuffer:(id<MTLCommandBuffer>)commandBuffer;
- (NSUInteger)resourceSize;
@end

@interface MPSTemporaryMatrix : MPSMatrix
@property(readwrite, nonatomic) NSUInteger readCount;
+ (instancetype)temporaryMatrixWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                matrixDescriptor:(MPSMatrixDescriptor*)matrixDescriptor;
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                    matrixDescriptorList:(NSArray<MPSMatrixDescriptor*>*)descriptorList;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer
                    descriptor:(MPSMatrixDescriptor*)descriptor NS_UNAVAILABLE;
@end

@interface MPSTemporaryVector : MPSVector
@property(readwrite, nonatomic) NSUInteger readCount;
+ (instancetype)temporaryVectorWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                                      descriptor:(MPSVectorDescriptor*)descriptor;
+ (void)prefetchStorageWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                          descriptorList:(NSArray<MPSVectorDescriptor*>*)descriptorList;
- (instancetype)initWithBuffer:(id<MTLBuffer>)buffer
                    descriptor:(MPSVectorDescriptor*)descriptor NS_UNAVAILABLE;
@end

NS_ASSUME_NONNULL_END
