// Enumerations and structures shared by all kernels.
#pragma once
#import <Metal/Metal.h>
#import <emulated_metal/object.h>

typedef NS_OPTIONS(NSUInteger, MPSKernelOptions) {
  MPSKernelOptionsNone = 0U,
  MPSKernelOptionsSkipAPIValidation = 1U << 0,
  MPSKernelOptionsAllowReducedPrecision = 1U << 1,
  MPSKernelOptionsDisableInternalTiling = 1U << 2,
  MPSKernelOptionsInsertDebugGroups = 1U << 3,
  MPSKernelOptionsVerbose = 1U << 4,
};

typedef NS_ENUM(NSUInteger, MPSImageEdgeMode) {
  MPSImageEdgeModeZero = 0,
  MPSImageEdgeModeClamp = 1,
  MPSImageEdgeModeMirror = 2,
  MPSImageEdgeModeMirrorWithEdge = 3,
  MPSImageEdgeModeConstant = 4,
};

typedef NS_ENUM(NSUInteger, MPSImageFeatureChannelFormat) {
  MPSImageFeatureChannelFormatNone = 0,
  MPSImageFeatureChannelFormatUnorm8 = 1,
  MPSImageFeatureChannelFormatUnorm16 = 2,
  MPSImageFeatureChannelFormatFloat16 = 3,
  MPSImageFeatureChannelFormatFloat32 = 4,
  MPSImageFeatureChannelFormat_reserved0 = 5,
  MPSImageFeatureChannelFormatCount = 6,
};

typedef NS_ENUM(uint32_t, MPSDataType) {
  MPSDataTypeInvalid = 0,
  MPSDataTypeFloatBit = 0x10000000,
  MPSDataTypeFloat32 = 0x10000020,
  MPSDataTypeFloat16 = 0x10000010,
  MPSDataTypeComplexBit = 0x01000000,
  MPSDataTypeComplexFloat32 = 0x11000040,
  MPSDataTypeComplexFloat16 = 0x11000020,
  MPSDataTypeSignedBit = 0x20000000,
  MPSDataTypeInt8 = 0x20000008,
  MPSDataTypeInt16 = 0x20000010,
  MPSDataTypeInt32 = 0x20000020,
  MPSDataTypeInt64 = 0x20000040,
  MPSDataTypeUInt8 = 0x00000008,
  MPSDataTypeUInt16 = 0x00000010,
  MPSDataTypeUInt32 = 0x00000020,
  MPSDataTypeUInt64 = 0x00000040,
  MPSDataTypeAlternateEncodingBit = 0x80000000,
  MPSDataTypeBool = 0x80000008,
  MPSDataTypeNormalizedBit = 0x40000000,
  MPSDataTypeUnorm1 = 0x40000001,
  MPSDataTypeUnorm8 = 0x40000008,
};

typedef struct {
  NSInteger x, y, z;
} MPSOffset;

typedef struct MPSOrigin {
  double x, y, z;
} MPSOrigin;

typedef struct MPSSize {
  double width, height, depth;
} MPSSize;

typedef struct MPSRegion {
  MPSOrigin origin;
  MPSSize size;
} MPSRegion;

typedef struct MPSImageCoordinate {
  NSUInteger x, y, channel;
} MPSImageCoordinate;

typedef struct MPSImageRegion {
  MPSImageCoordinate offset, size;
} MPSImageRegion;

MTL_EXTERN const MTLRegion MPSRectNoClip;

@protocol MPSDeviceProvider
- (id<MTLDevice>)mpsMTLDevice;
@end

static inline size_t MPSSizeofMPSDataType(MPSDataType t) {
  return (static_cast<size_t>(t) & 0xFFFF) >> 3;
}
