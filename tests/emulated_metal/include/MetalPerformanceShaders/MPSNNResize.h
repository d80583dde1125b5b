// Images in another size, and parts of them.
#pragma once
#import <MetalPerformanceShaders/MPSCNNKernel.h>

NS_ASSUME_NONNULL_BEGIN

@interface MPSNNResizeBilinear : MPSCNNKernel
@property(readonly, nonatomic) NSUInteger resizeWidth;
@property(readonly, nonatomic) NSUInteger resizeHeight;
@property(readonly, nonatomic) BOOL alignCorners;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   resizeWidth:(NSUInteger)resizeWidth
                  resizeHeight:(NSUInteger)resizeHeight
                  alignCorners:(BOOL)alignCorners;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

@interface MPSNNCropAndResizeBilinear : MPSCNNKernel
@property(readonly, nonatomic) NSUInteger resizeWidth;
@property(readonly, nonatomic) NSUInteger resizeHeight;
@property(readonly, nonatomic) NSUInteger numberOfRegions;
@property(readonly, nonatomic) const MPSRegion* regions;
- (instancetype)initWithDevice:(id<MTLDevice>)device NS_UNAVAILABLE;
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   resizeWidth:(NSUInteger)resizeWidth
                  resizeHeight:(NSUInteger)resizeHeight
               numberOfRegions:(NSUInteger)numberOfRegions
                       regions:(const MPSRegion*)regions;
- (nullable instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device;
@end

NS_ASSUME_NONNULL_END
