// An image read where a grid says.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNGridSample : MPSCNNBinaryKernel
@property(readwrite, nonatomic) BOOL useGridValueAsInputCoordinate;
- (instancetype)initWithDevice:(id<MTLDevice>)device;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
