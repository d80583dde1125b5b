// Pooling kernels and their gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNPooling : MPSCNNKernel
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNPoolingMax : MPSCNNPooling
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingAverage : MPSCNNPooling
@property(readwrite, nonatomic) NSUInteger zeroPadSizeX;
@property(readwrite, nonatomic) NSUInteger zeroPadSizeY;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingL2Norm : MPSCNNPooling
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNDilatedPoolingMax : MPSCNNPooling
@property(readonly, nonatomic) NSUInteger dilationRateX;
@property(readonly, nonatomic) NSUInteger dilationRateY;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) MTLSize sourceSize;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingAverageGradient : MPSCNNPoolingGradient
@property(readwrite, nonatomic) NSUInteger zeroPadSizeX;
@property(readwrite, nonatomic) NSUInteger zeroPadSizeY;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingMaxGradient : MPSCNNPoolingGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNPoolingL2NormGradient : MPSCNNPoolingGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNDilatedPoolingMaxGradient : MPSCNNPoolingGradient
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
                 dilationRateX:(NSUInteger)dilationRateX
                 dilationRateY:(NSUInteger)dilationRateY
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight
               strideInPixelsX:(NSUInteger)strideInPixelsX
               strideInPixelsY:(NSUInteger)strideInPixelsY NS_UNAVAILABLE;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
