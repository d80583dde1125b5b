// Rows of pixels between their storage format and the float32 that kernels compute in.
#pragma once

#include <cstdint>

#include "base/channel_format.hpp"
#include "cpu/isa.hpp"

namespace mpsgrad {

// A `format` of None is the caller's mistake and does nothing. `data` points at the first channel
// of the window in the first pixel, pixel p's window starts p * pixel_stride elements later; the
// float32 side is dense, pixels * channels. The two sides do not overlap.
//
// Loading is exact for the float formats and the correctly rounded u / 255 or u / 65535 for the
// others. Storing rounds once, to nearest even: float16 overflows to infinity and keeps NaN; unorm
// clamps to [0, 1] and stores NaN as 0.
struct ConvertLoops {
  void (*load_row)(const void* data, ChannelFormat format, std::int64_t pixels,
                   std::int64_t channels, std::int64_t pixel_stride, float* out);
  void (*store_row)(const float* in, void* data, ChannelFormat format, std::int64_t pixels,
                    std::int64_t channels, std::int64_t pixel_stride);
  // Same format on both sides: bits are moved, nothing is converted.
  void (*copy_row)(const void* from, std::int64_t from_pixel_stride, void* to,
                   std::int64_t to_pixel_stride, ChannelFormat format, std::int64_t pixels,
                   std::int64_t channels);
  // Copies bytes past the caches, so that no line of `to` is read before it is overwritten. For
  // results that would not stay in a cache until somebody reads them. Other threads may read them
  // once the parallel_for is over in which this is called.
  void (*stream)(const void* from, void* to, std::int64_t bytes);
  // Writes +0 to the window of every pixel.
  void (*zero_row)(void* data, ChannelFormat format, std::int64_t pixels, std::int64_t channels,
                   std::int64_t pixel_stride);
};

MPSGRAD_LOOPS(ConvertLoops, convert_loops)

}  // namespace mpsgrad
