// The pixel formats that a feature channel can be stored in.
#pragma once
#import <Metal/MTLDefines.h>

typedef NS_ENUM(NSUInteger, MTLPixelFormat) {
  MTLPixelFormatInvalid = 0,
  MTLPixelFormatR8Unorm = 10,
  MTLPixelFormatR16Unorm = 20,
  MTLPixelFormatR16Float = 25,
  MTLPixelFormatRG8Unorm = 30,
  MTLPixelFormatR32Float = 55,
  MTLPixelFormatRG16Unorm = 60,
  MTLPixelFormatRG16Float = 65,
  MTLPixelFormatRGBA8Unorm = 70,
  MTLPixelFormatRG32Float = 105,
  MTLPixelFormatRGBA16Unorm = 110,
  MTLPixelFormatRGBA16Float = 115,
  MTLPixelFormatRGBA32Float = 125,
};
