// Memory with two sides, and the texel formats that live in it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "internal.hpp"

namespace emulated_metal {

Storage::Storage(int index, MTLStorageMode storage_mode, size_t bytes, uint8_t junk_byte)
    : device_index(index), mode(storage_mode), junk(junk_byte), gpu(bytes, junk_byte) {
  if (has_cpu_copy()) cpu.assign(bytes, junk_byte);
}

Storage::~Storage() = default;

bool Storage::publishes_by_itself() const {
  return mode == MTLStorageModeShared ||
         (mode == MTLStorageModeManaged && option("unified_memory") == 1);
}

bool Storage::busy() {
  std::lock_guard lock(mutex);
  return readers + writers > 0;
}

bool describe(MTLPixelFormat pixel_format, Format* format) {
  switch (pixel_format) {
    case MTLPixelFormatR8Unorm:
      *format = {Item::unorm8, 1};
      return true;
    case MTLPixelFormatRG8Unorm:
      *format = {Item::unorm8, 2};
      return true;
    case MTLPixelFormatRGBA8Unorm:
      *format = {Item::unorm8, 4};
      return true;
    case MTLPixelFormatR16Unorm:
      *format = {Item::unorm16, 1};
      return true;
    case MTLPixelFormatRG16Unorm:
      *format = {Item::unorm16, 2};
      return true;
    case MTLPixelFormatRGBA16Unorm:
      *format = {Item::unorm16, 4};
      return true;
    case MTLPixelFormatR16Float:
      *format = {Item::float16, 1};
      return true;
    case MTLPixelFormatRG16Float:
      *format = {Item::float16, 2};
      return true;
    case MTLPixelFormatRGBA16Float:
      *format = {Item::float16, 4};
      return true;
    case MTLPixelFormatR32Float:
      *format = {Item::float32, 1};
      return true;
    case MTLPixelFormatRG32Float:
      *format = {Item::float32, 2};
      return true;
    case MTLPixelFormatRGBA32Float:
      *format = {Item::float32, 4};
      return true;
    default:
      return false;
  }
}

size_t item_bytes(Item item) {
  switch (item) {
    case Item::unorm8:
      return 1;
    case Item::unorm16:
    case Item::float16:
      return 2;
    case Item::float32:
      break;
  }
  return 4;
}

uint8_t junk_for(Item item) {
  return item == Item::float16 || item == Item::float32 ? 0xFF : 0xA5;  // NaN, or a visible pattern
}

MTLPixelFormat pixel_format_for(MPSImageFeatureChannelFormat format, NSUInteger channels) {
  const int column = channels == 1 ? 0 : channels == 2 ? 1 : 2;
  switch (format) {
    case MPSImageFeatureChannelFormatUnorm8: {
      constexpr MTLPixelFormat formats[] = {MTLPixelFormatR8Unorm, MTLPixelFormatRG8Unorm,
                                            MTLPixelFormatRGBA8Unorm};
      return formats[column];
    }
    case MPSImageFeatureChannelFormatUnorm16: {
      constexpr MTLPixelFormat formats[] = {MTLPixelFormatR16Unorm, MTLPixelFormatRG16Unorm,
                                            MTLPixelFormatRGBA16Unorm};
      return formats[column];
    }
    case MPSImageFeatureChannelFormatFloat16: {
      constexpr MTLPixelFormat formats[] = {MTLPixelFormatR16Float, MTLPixelFormatRG16Float,
                                            MTLPixelFormatRGBA16Float};
      return formats[column];
    }
    case MPSImageFeatureChannelFormatFloat32: {
      constexpr MTLPixelFormat formats[] = {MTLPixelFormatR32Float, MTLPixelFormatRG32Float,
                                            MTLPixelFormatRGBA32Float};
      return formats[column];
    }
    default:
      return MTLPixelFormatInvalid;
  }
}

namespace {
template <class T>
T bits(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Clamped to [0, 1], NaN to 0, ties to even.
float unorm(float value, float scale) {
  if (!(value > 0.0F)) return 0.0F;
  return std::nearbyint(std::min(value, 1.0F) * scale);
}
}  // namespace

float decode(Item item, const uint8_t* bytes) {
  switch (item) {
    case Item::unorm8:
      return static_cast<float>(*bytes) / 255.0F;
    case Item::unorm16:
      return static_cast<float>(bits<uint16_t>(bytes)) / 65535.0F;
    case Item::float16:
      return static_cast<float>(bits<_Float16>(bytes));
    case Item::float32:
      break;
  }
  return bits<float>(bytes);
}

void encode(Item item, float value, uint8_t* bytes) {
  switch (item) {
    case Item::unorm8:
      *bytes = static_cast<uint8_t>(unorm(value, 255.0F));
      return;
    case Item::unorm16: {
      const auto stored = static_cast<uint16_t>(unorm(value, 65535.0F));
      std::memcpy(bytes, &stored, sizeof stored);
      return;
    }
    case Item::float16: {
      const auto stored = static_cast<_Float16>(value);
      std::memcpy(bytes, &stored, sizeof stored);
      return;
    }
    case Item::float32:
      std::memcpy(bytes, &value, sizeof value);
      return;
  }
}

Tensor load(const View& view, long first_channel, long count) {
  Tensor values(view.height, view.width, count);
  const auto lanes = static_cast<size_t>(view.format.lanes);
  const size_t size = item_bytes(view.format.item);
  const auto plane = static_cast<size_t>(view.width * view.height);
  for (long y = 0; y < view.height; ++y) {
    for (long x = 0; x < view.width; ++x) {
      for (long k = 0; k < count; ++k) {
        const long channel = first_channel + k;
        const auto slice = static_cast<size_t>(view.first_slice + channel / 4);
        const size_t texel = slice * plane + static_cast<size_t>(y * view.width + x);
        const size_t index = texel * lanes + static_cast<size_t>(channel % 4);
        values.at(y, x, k) = decode(view.format.item, view.storage->gpu.data() + index * size);
      }
    }
  }
  return values;
}

void store(const View& view, const Box& box, long first_channel, const Tensor& values) {
  const auto lanes = static_cast<long>(view.format.lanes);
  const size_t size = item_bytes(view.format.item);
  const auto plane = static_cast<size_t>(view.width * view.height);
  const long end = first_channel + (values.c + 3) / 4 * 4;
  for (long y = 0; y < box.h; ++y) {
    for (long x = 0; x < box.w; ++x) {
      for (long channel = first_channel; channel < end; ++channel) {
        if (channel % 4 >= lanes) continue;  // R and RG textures have no such lane
        const auto slice = static_cast<size_t>(view.first_slice + channel / 4);
        const size_t texel =
            slice * plane + static_cast<size_t>((box.y + y) * view.width + box.x + x);
        const size_t index = texel * static_cast<size_t>(lanes) + static_cast<size_t>(channel % 4);
        uint8_t* bytes = view.storage->gpu.data() + index * size;
        if (channel - first_channel < values.c) {
          encode(view.format.item, values.at(y, x, channel - first_channel), bytes);
        } else if (channel < view.channels) {
          std::memset(bytes, view.storage->junk, size);  // a real channel, clobbered
        } else {
          encode(view.format.item, 0.0F, bytes);
        }
      }
    }
  }
}

}  // namespace emulated_metal
