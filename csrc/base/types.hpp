// Values that every layer speaks: channel formats, edge modes, offsets, regions and image sizes.
// The numbers of the enumerations are Apple's, so the Metal device can pass them on.
#pragma once

#include <cstdint>
#include <limits>
#include <ostream>

#include "base/channel_format.hpp"

namespace mpsgrad {

using Index = std::int64_t;

// Stands for NSUIntegerMax and ULONG_MAX: "no limit".
inline constexpr Index kUnlimited = std::numeric_limits<Index>::max();

// Quotients rounded down and up, of any sign; b > 0.
constexpr Index floor_div(Index a, Index b) { return a / b - (a % b < 0 ? 1 : 0); }
constexpr Index ceil_div(Index a, Index b) { return a / b + (a % b > 0 ? 1 : 0); }

enum class EdgeMode : std::uint32_t {
  Zero = 0,
  Clamp = 1,
  Mirror = 2,
  MirrorWithEdge = 3,
  Constant = 4
};
enum class DataLayout : std::uint32_t { HeightWidthChannels = 0, ChannelsHeightWidth = 1 };

constexpr Index item_size(ChannelFormat format) {
  switch (format) {
    case ChannelFormat::Unorm8:
      return 1;
    case ChannelFormat::Unorm16:
    case ChannelFormat::Float16:
      return 2;
    case ChannelFormat::Float32:
      return 4;
    case ChannelFormat::None:
      break;
  }
  return 0;
}

// What Python calls the storage of a format: the dtype of Image.read().
constexpr const char* dtype_name(ChannelFormat format) {
  switch (format) {
    case ChannelFormat::Unorm8:
      return "uint8";
    case ChannelFormat::Unorm16:
      return "uint16";
    case ChannelFormat::Float16:
      return "float16";
    case ChannelFormat::Float32:
      return "float32";
    case ChannelFormat::None:
      break;
  }
  return "none";
}

struct Offset {  // MPSOffset, pixels; z selects an image
  Index x = 0, y = 0, z = 0;
  bool operator==(const Offset&) const = default;
};

struct Size {  // MTLSize
  Index width = 0, height = 0, depth = 0;
  bool operator==(const Size&) const = default;
};

struct Region {  // MTLRegion; the default is MPSRectNoClip: the whole destination
  Offset origin;
  Size size{kUnlimited, kUnlimited, kUnlimited};
  bool operator==(const Region&) const = default;
  bool empty() const { return size.width <= 0 || size.height <= 0 || size.depth <= 0; }
};

struct Window {  // one kernel's reach over one source
  Index kernel_width = 1, kernel_height = 1;
  Index stride_x = 1, stride_y = 1;
  Index dilation_x = 1, dilation_y = 1;
  bool operator==(const Window&) const = default;
  Index extent_x() const { return (kernel_width - 1) * dilation_x + 1; }
  Index extent_y() const { return (kernel_height - 1) * dilation_y + 1; }
};

inline std::ostream& operator<<(std::ostream& out, const Offset& o) {
  return out << "(" << o.x << ", " << o.y << ", " << o.z << ")";
}

inline std::ostream& operator<<(std::ostream& out, const Size& s) {
  return out << s.width << "x" << s.height << "x" << s.depth;
}

inline std::ostream& operator<<(std::ostream& out, const Region& region) {
  return out << region.size << " from " << region.origin;
}
inline std::ostream& operator<<(std::ostream& out, EdgeMode mode) {
  constexpr const char* kNames[] = {"ZERO", "CLAMP", "MIRROR", "MIRROR_WITH_EDGE", "CONSTANT"};
  const auto value = static_cast<std::uint32_t>(mode);
  return value < 5 ? out << kNames[value] : out << "EdgeMode(" << value << ")";
}

}  // namespace mpsgrad
