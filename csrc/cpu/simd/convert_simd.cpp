// Conversion loops of convert.hpp.
#include "cpu/simd/convert.hpp"

#include "cpu/simd/lanes.hpp"
#include "cpu/simd/streaming.hpp"

namespace mpsgrad::MPSGRAD_ISA {
namespace {

using Index = std::int64_t;

// Windows at least this long are converted in place; shorter ones are first gathered, or later
// scattered, in tiles.
constexpr Index kLongWindow = 16;
constexpr Index kTileElements = 1024;

// Short windows so many bytes apart are asked for so many windows ahead: a processor does not see
// enough of them coming. Between windows of whole lines this only costs (measured on a Zen 3).
constexpr Index kFarApart = 4 * kLine;
constexpr Index kWindowsAhead = 32;

// One struct a format: the stored type, and the conversion of n contiguous elements.

struct Unorm8 {
  using Stored = std::uint8_t;
  static constexpr float kScale = 255.0F;
};

struct Unorm16 {
  using Stored = std::uint16_t;
  static constexpr float kScale = 65535.0F;
};

// u / scale, correctly rounded: with 1 / scale in two parts one FMA does what a division would. The
// quotient of two integers below 2^16 is never so close to a rounding boundary that the rounding of
// the low part matters.
template <class Format>
MPSGRAD_INLINE float decode_unorm(typename Format::Stored stored) {
  const auto u = static_cast<float>(stored);
#if MPSGRAD_HAS_FMA
  constexpr double kInverse = 1.0 / static_cast<double>(Format::kScale);
  constexpr auto kHigh = static_cast<float>(kInverse);
  constexpr auto kLow = static_cast<float>(kInverse - static_cast<double>(kHigh));
  return __builtin_fmaf(u, kHigh, u * kLow);
#else
  return u / Format::kScale;
#endif
}

// Round-to-nearest-even of the exact product. Written so that NaN fails the first comparison and
// becomes 0.
template <class Format>
MPSGRAD_INLINE typename Format::Stored encode_unorm(float x) {
  const float number = x == x ? x : 0.0F;
  const float above = number > 0.0F ? number : 0.0F;
  const float clamped = above < 1.0F ? above : 1.0F;
#if MPSGRAD_HAS_FMA
  // Adding 2^23 leaves the rounded integer in the low bits of the significand.
  const float shifted = __builtin_fmaf(clamped, Format::kScale, 0x1p23F);
  return static_cast<typename Format::Stored>(float_bits(shifted));
#else
  const double exact = static_cast<double>(clamped) * static_cast<double>(Format::kScale);
  return static_cast<typename Format::Stored>(static_cast<std::int32_t>(__builtin_rint(exact)));
#endif
}

template <class Format>
MPSGRAD_INLINE void load_span(const typename Format::Stored* MPSGRAD_RESTRICT in, Index n,
                              float* MPSGRAD_RESTRICT out, Format /*format*/) {
  for (Index i = 0; i < n; ++i) {
    out[i] = decode_unorm<Format>(in[i]);
  }
}

template <class Format>
MPSGRAD_INLINE void store_span(const float* MPSGRAD_RESTRICT in, Index n,
                               typename Format::Stored* MPSGRAD_RESTRICT out, Format /*format*/) {
  for (Index i = 0; i < n; ++i) {
    out[i] = encode_unorm<Format>(in[i]);
  }
}

struct Float16 {
  using Stored = std::uint16_t;
};

MPSGRAD_INLINE void load_span(const std::uint16_t* in, Index n, float* out, Float16 /*format*/) {
  const auto* halves = reinterpret_cast<const Half*>(in);
  for_blocks(n, [=](auto block, Index i) { block.put(out + i, block.floats(halves + i)); });
}

MPSGRAD_INLINE void store_span(const float* in, Index n, std::uint16_t* out, Float16 /*format*/) {
  auto* halves = reinterpret_cast<Half*>(out);
  for_blocks(n, [=](auto block, Index i) { block.put(halves + i, block.floats(in + i)); });
}

struct Float32 {
  using Stored = float;
};

// Moves windows whose length is known while compiling, or given.
template <int fixed_channels, class T>
MPSGRAD_INLINE void move_windows(const T* MPSGRAD_RESTRICT from, Index from_stride,
                                 T* MPSGRAD_RESTRICT to, Index to_stride, Index pixels,
                                 Index given_channels) {
  const Index channels = fixed_channels > 0 ? fixed_channels : given_channels;
  const bool far_apart = from_stride * static_cast<Index>(sizeof(T)) >= kFarApart;
  for (Index p = 0; p < pixels; ++p) {
    if (far_apart) {
      request(from, (p + kWindowsAhead) * from_stride);
    }
    for (Index c = 0; c < channels; ++c) {
      to[p * to_stride + c] = from[p * from_stride + c];
    }
  }
}

// Of windows between these lengths a call of memcpy or memset takes longer than what it does.
constexpr Index kLongerWindow = 512;

// Calls move(first) for steps of kLongWindow elements, the last of which overlaps the one before.
template <class Move>
MPSGRAD_INLINE void in_steps(Index elements, const Move& move) {
  for (Index i = 0; i < elements - kLongWindow; i += kLongWindow) {
    move(i);
    asm volatile("" ::: "memory");  // or the compiler makes that call
  }
  move(elements - kLongWindow);
}

template <class T>
void copy_windows(const T* from, Index from_stride, T* to, Index to_stride, Index pixels,
                  Index channels) {
  const std::size_t window_bytes = static_cast<std::size_t>(channels) * sizeof(T);
  if (from_stride == channels && to_stride == channels) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(pixels) * window_bytes);
    return;
  }
  switch (channels) {
    case 1:
      return move_windows<1>(from, from_stride, to, to_stride, pixels, channels);
    case 2:
      return move_windows<2>(from, from_stride, to, to_stride, pixels, channels);
    case 3:
      return move_windows<3>(from, from_stride, to, to_stride, pixels, channels);
    case 4:
      return move_windows<4>(from, from_stride, to, to_stride, pixels, channels);
    default:
      break;
  }
  if (channels < kLongWindow) {
    return move_windows<0>(from, from_stride, to, to_stride, pixels, channels);
  }
  for (Index p = 0; p < pixels; ++p) {
    const T* const in = from + p * from_stride;
    T* const out = to + p * to_stride;
    if (channels >= kLongerWindow) {
      __builtin_memcpy(out, in, window_bytes);
    } else {
      in_steps(channels,
               [&](Index i) { __builtin_memcpy(out + i, in + i, kLongWindow * sizeof(T)); });
    }
  }
}

template <class Format>
void load_format(const typename Format::Stored* data, Index pixels, Index channels,
                 Index pixel_stride, float* out) {
  if (pixel_stride == channels) {
    load_span(data, pixels * channels, out, Format{});
  } else if (channels >= kLongWindow) {
    for (Index p = 0; p < pixels; ++p) {
      load_span(data + p * pixel_stride, channels, out + p * channels, Format{});
    }
  } else {
    typename Format::Stored tile[kTileElements];
    const Index tile_pixels = kTileElements / channels;
    for (Index p = 0; p < pixels; p += tile_pixels) {
      const Index count = pixels - p < tile_pixels ? pixels - p : tile_pixels;
      copy_windows(data + p * pixel_stride, pixel_stride, tile, channels, count, channels);
      load_span(tile, count * channels, out + p * channels, Format{});
    }
  }
}

template <>
void load_format<Float32>(const float* data, Index pixels, Index channels, Index pixel_stride,
                          float* out) {
  copy_windows(data, pixel_stride, out, channels, pixels, channels);
}

template <class Format>
void store_format(const float* in, typename Format::Stored* data, Index pixels, Index channels,
                  Index pixel_stride) {
  if (pixel_stride == channels) {
    store_span(in, pixels * channels, data, Format{});
  } else if (channels >= kLongWindow) {
    for (Index p = 0; p < pixels; ++p) {
      store_span(in + p * channels, channels, data + p * pixel_stride, Format{});
    }
  } else {
    typename Format::Stored tile[kTileElements];
    const Index tile_pixels = kTileElements / channels;
    for (Index p = 0; p < pixels; p += tile_pixels) {
      const Index count = pixels - p < tile_pixels ? pixels - p : tile_pixels;
      store_span(in + p * channels, count * channels, tile, Format{});
      copy_windows(tile, channels, data + p * pixel_stride, pixel_stride, count, channels);
    }
  }
}

template <>
void store_format<Float32>(const float* in, float* data, Index pixels, Index channels,
                           Index pixel_stride) {
  copy_windows(in, channels, data, pixel_stride, pixels, channels);
}

void stream(const void* from, void* to, Index bytes) { stream_bytes(from, to, bytes); }

template <class T>
void zero_windows(T* data, Index pixels, Index channels, Index pixel_stride) {
  const std::size_t window_bytes = static_cast<std::size_t>(channels) * sizeof(T);
  if (pixel_stride == channels) {
    __builtin_memset(data, 0, static_cast<std::size_t>(pixels) * window_bytes);
  } else if (channels >= kLongerWindow) {
    for (Index p = 0; p < pixels; ++p) {
      __builtin_memset(data + p * pixel_stride, 0, window_bytes);
    }
  } else if (channels >= kLongWindow) {
    for (Index p = 0; p < pixels; ++p) {
      T* const out = data + p * pixel_stride;
      in_steps(channels, [&](Index i) { __builtin_memset(out + i, 0, kLongWindow * sizeof(T)); });
    }
  } else {
    for (Index p = 0; p < pixels; ++p) {
      for (Index c = 0; c < channels; ++c) {
        data[p * pixel_stride + c] = 0;
      }
    }
  }
}

// Calls visit with the struct of a format, or not at all if there are no elements.
template <class Visit>
MPSGRAD_INLINE void with_format(ChannelFormat format, Index pixels, Index channels,
                                const Visit& visit) {
  if (pixels <= 0 || channels <= 0) {
    return;
  }
  switch (format) {
    case ChannelFormat::Unorm8:
      return visit(Unorm8{});
    case ChannelFormat::Unorm16:
      return visit(Unorm16{});
    case ChannelFormat::Float16:
      return visit(Float16{});
    case ChannelFormat::Float32:
      return visit(Float32{});
    case ChannelFormat::None:
      return;
  }
}

void load_row(const void* data, ChannelFormat format, Index pixels, Index channels,
              Index pixel_stride, float* out) {
  with_format(format, pixels, channels, [=]<class Format>(Format) MPSGRAD_MELT {
    load_format<Format>(static_cast<const typename Format::Stored*>(data), pixels, channels,
                        pixel_stride, out);
  });
}

void store_row(const float* in, void* data, ChannelFormat format, Index pixels, Index channels,
               Index pixel_stride) {
  with_format(format, pixels, channels, [=]<class Format>(Format) MPSGRAD_MELT {
    store_format<Format>(in, static_cast<typename Format::Stored*>(data), pixels, channels,
                         pixel_stride);
  });
}

void copy_row(const void* from, Index from_pixel_stride, void* to, Index to_pixel_stride,
              ChannelFormat format, Index pixels, Index channels) {
  with_format(format, pixels, channels, [=]<class Format>(Format) MPSGRAD_MELT {
    using Stored = typename Format::Stored;
    copy_windows(static_cast<const Stored*>(from), from_pixel_stride, static_cast<Stored*>(to),
                 to_pixel_stride, pixels, channels);
  });
}

void zero_row(void* data, ChannelFormat format, Index pixels, Index channels, Index pixel_stride) {
  with_format(format, pixels, channels, [=]<class Format>(Format) MPSGRAD_MELT {
    zero_windows(static_cast<typename Format::Stored*>(data), pixels, channels, pixel_stride);
  });
}

}  // namespace

const ConvertLoops convert_loops{load_row, store_row, copy_row, stream, zero_row};

}  // namespace mpsgrad::MPSGRAD_ISA
