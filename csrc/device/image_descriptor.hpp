// MPSImageDescriptor: an image before it exists, and the storage model that both devices report
// (four-channel slices).
#pragma once

#include <ostream>
#include <string>

#include "base/types.hpp"

namespace mpsgrad {

enum class StorageMode : std::uint32_t { Shared = 0, Managed = 1, Private = 2, Memoryless = 3 };

inline constexpr Index kTextureUsageShaderRead = 1;
inline constexpr Index kTextureUsageShaderWrite = 2;
inline constexpr Index kEveryTextureUsage = 0x17;   // the bits of TextureUsage
inline constexpr Index kMaximumImageSide = 16384;   // Metal's texture limit
inline constexpr Index kMaximumImageSlices = 2048;  // Metal's array limit, stated by MPSImage.h

// Of one texel of an MTLPixelFormat that images have; 0: no image has it.
Index bytes_of_pixel_format(Index pixel_format);

struct ImageDescriptor {
  Index width = 1;
  Index height = 1;
  Index feature_channels = 1;
  Index number_of_images = 1;
  ChannelFormat channel_format = ChannelFormat::Float32;
  StorageMode storage_mode = StorageMode::Managed;
  Index usage = kTextureUsageShaderRead | kTextureUsageShaderWrite;
  Index cpu_cache_mode = 0;

  bool operator==(const ImageDescriptor&) const = default;

  Index slices() const { return (feature_channels + 3) / 4; }
  bool is_texture_array() const { return number_of_images > 1 || feature_channels > 4; }
  Index lanes_per_pixel() const;  // stored values of one pixel, padding lanes included
  Index pixel_format() const;     // MTLPixelFormat
  Index pixel_size() const;       // bytes of one texel of one slice
  Index texel_bytes() const;      // all images, unaligned
  Size extent() const { return {width, height, feature_channels}; }  // the format left out
  Index elements_per_image() const { return width * height * feature_channels; }
  Index bytes_per_image() const { return elements_per_image() * item_size(channel_format); }
  // Equal in everything that a batch must share.
  bool same_kind(const ImageDescriptor& other) const;
  // Throws std::invalid_argument, naming `who`, unless every field is in range.
  void check(const char* who) const;
};

// "3x2x5 float16" (width x height x channels), and " x 4 images" where there are several.
std::ostream& operator<<(std::ostream& out, const ImageDescriptor& descriptor);

}  // namespace mpsgrad
