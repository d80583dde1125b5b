// What the two halves of Winograd's form share: how images are cut into tiles, how much of them is
// held at a time, and where a tile's pixels are.
#pragma once

#include <algorithm>

#include "cpu/simd/convert.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"

namespace mpsgrad::cpu::convolution {

struct WinogradPlace {
  Index sample, y, x;  // of the first result
};

// One axis of the results: tiles are pairs of them, `dilation` apart. The last ones may reach
// beyond the edge.
struct WinogradAxis {
  Index length, dilation;

  Index tiles() const {
    const Index period = kWinogradPixels * dilation;
    return length / period * dilation + std::min(length % period, dilation);
  }
  Index position(Index tile) const { return tile + tile / dilation * dilation; }
  Index next(Index position) const {
    ++position;
    return dilation == 1 || position % dilation == 0 ? position + dilation : position;
  }
  // How many of the two results exist.
  Index inside(Index position) const { return position + dilation < length ? kWinogradPixels : 1; }
};

// Tiles of 2x2 results over all samples, row by row.
struct WinogradTiles {
  Index batch;
  WinogradAxis y, x;

  Index count() const { return batch * y.tiles() * x.tiles(); }
  WinogradPlace place(Index tile) const {
    const Index row = tile / x.tiles();
    return {row / y.tiles(), y.position(row % y.tiles()), x.position(tile % x.tiles())};
  }
  // The place of the tile after.
  void step(WinogradPlace& place) const {
    place.x = x.next(place.x);
    if (place.x < x.length) {
      return;
    }
    place.x = 0;
    place.y = y.next(place.y);
    if (place.y >= y.length) {
      place.y = 0;
      ++place.sample;
    }
  }
};

inline constexpr Index kWinogradLeastTiles = 16;  // at a time, as high as tiles of products are

// Bytes of transformed pixels and sums that one thread holds at a time.
inline Index winograd_budget(Index activations) {
  return std::clamp<Index>(activations / 16, 64 * 1024, 384 * 1024);
}

// How many tiles to take at a time, given how many there is room for: enough of them for every
// thread, in rows of products that leave no rest.
inline Index winograd_chunk(Index tiles, Index room, Index ranges) {
  constexpr Index kMost = 4 * kWinogradLeastTiles;
  const Index wanted = std::min(room, ceil_div(tiles * ranges, kPieces));
  const Index whole = wanted / kWinogradLeastTiles * kWinogradLeastTiles;
  return std::clamp(whole, kWinogradLeastTiles, kMost);
}

// Channels to transform at a time: a divisor of all of them.
inline Index winograd_channels(Index channels) {
  constexpr Index kMost = 64;
  while (channels > kMost && channels % 2 == 0) {
    channels /= 2;
  }
  return channels;
}

// An array of the 16 parts of some tiles. The distance between parts is an odd number of cache
// lines, for a power of two would put all of them into a few sets of the cache.
struct WinogradParts {
  Index tile_step, part_step;

  WinogradParts(Index tiles, Index floats)
      : tile_step(floats), part_step((ceil_div(tiles * floats, 16) | 1) * 16) {}
  Index floats() const { return kWinogradParts * part_step; }
  Index bytes() const { return Scratch::bytes<float>(floats()); }
};

// The images that tiles of `size` by `size` pixels are read from, as far apart as results of a
// tile; the first one is at (first_y, first_x).
struct WinogradImages {
  const ConvolutionImages* images;
  Index height, width;
  EdgeMode edge;
  Index first_y, first_x;
  Index size;
};

// Where the pixels of some tiles are, and their transforms, so many channels at a time.
class WinogradReader {
 public:
  static Index bytes(Index tiles, Index channels) {
    constexpr Index kMost = kWinogradParts;
    return Scratch::bytes<const std::byte*>(tiles * kMost) + Scratch::bytes<const float*>(kMost) +
           Scratch::bytes<float>(kMost * channels);
  }

  // For at most `most` tiles. `zeros` are as many as the images have channels.
  WinogradReader(const WinogradImages& from, const WinogradTiles& tiles, Index most, Index channels,
                 const float* zeros, Scratch& scratch)
      : from_(from),
        all_tiles_(tiles),
        pixels_of_tile_(from.size * from.size),
        channels_(channels),
        pixels_(scratch.take<const std::byte*>(most * kWinogradParts)),
        copied_(scratch.take<const float*>(kWinogradParts)),
        copies_(scratch.take<float>(kWinogradParts * channels)),
        zeros_(reinterpret_cast<const std::byte*>(zeros)) {
    for (Index i = 0; i < pixels_of_tile_; ++i) {
      copied_[i] = copies_ + i * channels;
    }
  }

  void turn_to(Index first, Index last) {
    tiles_ = last - first;
    constexpr Index kSource = kWinogradPixels + kWinogradTaps - 1;
    if (from_.size == kSource) {
      find_pixels<kSource>(first, last);
    } else {
      find_pixels<kWinogradPixels>(first, last);
    }
  }

  // Channels [first, first + channels) through `loop` into the parts.
  void transform(void (*loop)(const WinogradPixels&, float*), Index first,
                 const WinogradParts& parts, float* out) const {
    const ConvolutionImages& images = *from_.images;
    if (images.format == ChannelFormat::Float32) {
      // The next tiles below begin so many rows further down.
      const Index below = kWinogradPixels * all_tiles_.y.dilation * images.row_stride;
      loop({reinterpret_cast<const float* const*>(pixels_), tiles_, first, channels_,
            parts.tile_step, parts.part_step, below},
           out);
      return;
    }
    for (Index tile = 0; tile < tiles_; ++tile) {
      for (Index i = 0; i < pixels_of_tile_; ++i) {
        const std::byte* pixel = pixels_[tile * pixels_of_tile_ + i];
        float* copy = copies_ + i * channels_;
        if (pixel == zeros_) {
          std::fill_n(copy, channels_, 0.0F);
        } else {
          convert_loops().load_row(pixel + first * item_size(images.format),
                                   static_cast<int>(images.format), 1, channels_, channels_, copy);
        }
      }
      loop({copied_, 1, 0, channels_, parts.tile_step, parts.part_step, 0},
           out + tile * parts.tile_step);
    }
  }

 private:
  template <Index kSize>
  void find_pixels(Index first, Index last) {
    const Index step = from_.images->pixel_stride * item_size(from_.images->format);
    const Index dilation = all_tiles_.x.dilation;
    const std::byte* rows[kSize] = {};  // null: outside
    const std::byte** out = pixels_;
    WinogradPlace place = all_tiles_.place(first);
    for (Index tile = first; tile < last; ++tile, all_tiles_.step(place)) {
      if (tile == first || place.x == 0) {
        for (Index r = 0; r < kSize; ++r) {
          rows[r] = row(place.sample, place.y + from_.first_y + r * all_tiles_.y.dilation);
        }
      }
      const Index x = place.x + from_.first_x;
      const bool inside = x >= 0 && x + (kSize - 1) * dilation < from_.width;
      for (Index r = 0; r < kSize; ++r, out += kSize) {
        if (rows[r] == nullptr) {
          std::fill_n(out, kSize, zeros_);
        } else if (inside) {
          for (Index p = 0; p < kSize; ++p) {
            out[p] = rows[r] + (x + p * dilation) * step;
          }
        } else {
          for (Index p = 0; p < kSize; ++p) {
            const Index at = column(x + p * dilation);
            out[p] = at < 0 ? zeros_ : rows[r] + at * step;
          }
        }
      }
    }
  }

  // Where a position is read: itself, the nearest one, or -1 for zeros.
  Index clamped(Index position, Index length) const {
    if (position >= 0 && position < length) {
      return position;
    }
    return from_.edge == EdgeMode::Clamp ? std::clamp<Index>(position, 0, length - 1) : -1;
  }
  Index column(Index x) const { return clamped(x, from_.width); }
  const std::byte* row(Index sample, Index y) const {
    const Index at = clamped(y, from_.height);
    return at < 0 ? nullptr
                  : from_.images->samples[sample] +
                        at * from_.images->row_stride * item_size(from_.images->format);
  }

  WinogradImages from_;
  WinogradTiles all_tiles_;
  Index pixels_of_tile_, channels_, tiles_ = 0;
  const std::byte** pixels_;
  const float** copied_;
  float* copies_;
  const std::byte* zeros_;
};

}  // namespace mpsgrad::cpu::convolution
