// Range checks and the packing rules of image descriptors.
#include "device/image_descriptor.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

// MTLPixelFormat of R, RG and RGBA of each ChannelFormat from UNORM8 on.
constexpr Index kPixelFormats[4][3] = {{10, 30, 70}, {20, 60, 110}, {25, 65, 115}, {55, 105, 125}};

}  // namespace

Index bytes_of_pixel_format(Index pixel_format) {
  for (std::uint32_t row = 0; row < 4; ++row) {
    for (int lanes = 0; lanes < 3; ++lanes) {
      if (kPixelFormats[row][lanes] == pixel_format) {
        return item_size(static_cast<ChannelFormat>(row + 1)) << lanes;
      }
    }
  }
  return 0;
}

Index ImageDescriptor::lanes_per_pixel() const {
  return feature_channels <= 2 ? feature_channels : 4 * slices();
}

Index ImageDescriptor::pixel_format() const {
  const int lanes = feature_channels == 1 ? 0 : feature_channels == 2 ? 1 : 2;
  const auto row = static_cast<std::uint32_t>(channel_format);
  return row >= 1 && row <= 4 ? kPixelFormats[row - 1][lanes] : 0;
}

Index ImageDescriptor::pixel_size() const {
  return (feature_channels <= 2 ? feature_channels : 4) * item_size(channel_format);
}

Index ImageDescriptor::texel_bytes() const {
  return width * height * lanes_per_pixel() * item_size(channel_format) * number_of_images;
}

bool ImageDescriptor::same_kind(const ImageDescriptor& other) const {
  return width == other.width && height == other.height &&
         feature_channels == other.feature_channels && number_of_images == other.number_of_images &&
         channel_format == other.channel_format;
}

void ImageDescriptor::check(const char* who) const {
  const auto side = [&](const char* name, Index value) {
    require(value >= 1 && value <= kMaximumImageSide, who, ": ", name, " must be between 1 and ",
            kMaximumImageSide, ", got ", value);
  };
  side("width", width);
  side("height", height);
  require(feature_channels >= 1, who, ": feature_channels must be at least 1, got ",
          feature_channels);
  require(number_of_images >= 1, who, ": number_of_images must be at least 1, got ",
          number_of_images);
  require(feature_channels <= 4 * kMaximumImageSlices && number_of_images <= kMaximumImageSlices &&
              number_of_images * slices() <= kMaximumImageSlices,
          who, ": number_of_images * ceil(feature_channels / 4) must be at most ",
          kMaximumImageSlices, " slices, got ", number_of_images, " images of ", feature_channels,
          " channels");
  constexpr Index kNeeded = kTextureUsageShaderRead | kTextureUsageShaderWrite;
  require(item_size(channel_format) > 0, who,
          ": channel_format must be UNORM8, UNORM16, FLOAT16 or FLOAT32, got ",
          static_cast<std::uint32_t>(channel_format));
  require(static_cast<std::uint32_t>(storage_mode) <= 3, who,
          ": storage_mode must be between 0 and 3, got ", static_cast<std::uint32_t>(storage_mode));
  require(cpu_cache_mode == 0 || cpu_cache_mode == 1, who,
          ": cpu_cache_mode must be 0 (default) or 1 (write combined), got ", cpu_cache_mode);
  require((usage & kNeeded) == kNeeded && (usage & ~kEveryTextureUsage) == 0, who,
          ": usage must contain ShaderRead (1) and ShaderWrite (2) and only bits of TextureUsage, "
          "got ",
          usage);
}

std::ostream& operator<<(std::ostream& out, const ImageDescriptor& d) {
  out << d.width << "x" << d.height << "x" << d.feature_channels << " "
      << dtype_name(d.channel_format);
  return d.number_of_images == 1 ? out : out << " x " << d.number_of_images << " images";
}

}  // namespace mpsgrad
