// Local normalizations, over a spatial window or across channels, and their gradients.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSCNNSpatialNormalization : MPSCNNKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNSpatialNormalizationGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNLocalContrastNormalization : MPSCNNKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@property(readwrite, nonatomic) float p0;
@property(readwrite, nonatomic) float pm;
@property(readwrite, nonatomic) float ps;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNLocalContrastNormalizationGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@property(readwrite, nonatomic) float p0;
@property(readwrite, nonatomic) float pm;
@property(readwrite, nonatomic) float ps;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   kernelWidth:(NSUInteger)kernelWidth
                  kernelHeight:(NSUInteger)kernelHeight;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSCNNCrossChannelNormalization : MPSCNNKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@property(readonly, nonatomic) NSUInteger kernelSize;
- (instancetype)initWithDevice:(id<MTLDevice>)device kernelSize:(NSUInteger)kernelSize;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
@end

@interface MPSCNNCrossChannelNormalizationGradient : MPSCNNGradientKernel
@property(readwrite, nonatomic) float alpha;
@property(readwrite, nonatomic) float beta;
@property(readwrite, nonatomic) float delta;
@property(readonly, nonatomic) NSUInteger kernelSize;
- (instancetype)initWithDevice:(id<MTLDevice>)device kernelSize:(NSUInteger)kernelSize;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
