// Linear memory.
#pragma once
#import <Metal/MTLPixelFormat.h>
#import <Metal/MTLResource.h>

NS_ASSUME_NONNULL_BEGIN

@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
- (void*)contents NS_RETURNS_INNER_POINTER;
- (void)didModifyRange:(NSRange)range;
- (void)addDebugMarker:(NSString*)marker range:(NSRange)range;
- (void)removeAllDebugMarkers;
@end

NS_ASSUME_NONNULL_END
