// What the two halves of Winograd's form share: how images are cut into tiles, how much of them is
// held at a time, and where the pixels of neighbouring tiles are.
#pragma once

#include <algorithm>

#include "cpu/simd/convert.hpp"
#include "kernels/convolution/convolution_rows.hpp"
#include "kernels/convolution/convolution_winograd.hpp"

namespace mpsgrad::cpu::convolution {

struct WinogradPlace {
  Index sample, y, x;  // of the first result
};

// One axis of the results: tiles are pairs of them, `dilation` apart. First come those of every
// dilation-th result from the first one on, which overlap as neighbours do, then those from the
// second. The last ones may reach beyond the edge.
struct WinogradAxis {
  Index length, dilation;

  Index tiles() const { return longer() * long_tiles() + (dilation - longer()) * short_tiles(); }
  Index position(Index tile) const {
    if (tile < longer() * long_tiles()) {
      return at(tile / long_tiles(), tile % long_tiles());
    }
    const Index rest = tile - longer() * long_tiles();
    return at(longer() + rest / short_tiles(), rest % short_tiles());
  }
  // How many of the two results exist.
  Index inside(Index position) const { return position + dilation < length ? kWinogradPixels : 1; }
  // How many tiles follow each other from there on.
  Index run(Index position) const {
    return ceil_div(length - position, kWinogradPixels * dilation);
  }

 private:
  // Of as many sequences as there are, so many have one result more than the others.
  Index longer() const { return length % dilation; }
  Index long_tiles() const { return length / dilation / kWinogradPixels + 1; }
  Index short_tiles() const { return ceil_div(length / dilation, kWinogradPixels); }
  Index at(Index sequence, Index tile) const {
    return sequence + tile * kWinogradPixels * dilation;
  }
};

// Tiles of 2x2 results over all samples, row by row.
struct WinogradTiles {
  Index batch;
  WinogradAxis y, x;

  Index count() const { return batch * y.tiles() * x.tiles(); }
  // Calls visit(place, tile, tiles) for each run of tiles [tile, tile + tiles) that follow each
  // other in a row, of all in [first, last).
  template <class Visit>
  void each_strip(Index first, Index last, const Visit& visit) const {
    for (Index tile = first; tile < last;) {
      const Index row = tile / x.tiles();
      const WinogradPlace place{row / y.tiles(), y.position(row % y.tiles()),
                                x.position(tile % x.tiles())};
      const Index tiles = std::min(x.run(place.x), last - tile);
      visit(place, tile, tiles);
      tile += tiles;
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

// The transforms of some tiles, so many channels at a time.
class WinogradReader {
 public:
  static Index bytes(const WinogradImages& from, Index tiles, Index channels) {
    return Scratch::bytes<Index>(columns_of(tiles)) +
           Scratch::bytes<float>(copied_floats(from, tiles, channels));
  }

  // For at most `most` tiles at a time.
  WinogradReader(const WinogradImages& from, const WinogradTiles& tiles, Index most, Index channels,
                 Scratch& scratch)
      : from_(from),
        tiles_(tiles),
        channels_(channels),
        columns_(scratch.take<Index>(columns_of(most))),
        copies_(scratch.take<float>(copied_floats(from, most, channels))) {}

  // Channels [channel, channel + channels) of tiles [first, last) through `loop` into the parts.
  void transform(void (*loop)(const WinogradPixels&, float*), Index first, Index last,
                 Index channel, const WinogradParts& parts, float* out) const {
    // Pixels that lie far apart are in few sets of a cache: there is no room for columns of
    // several.
    constexpr Index kFarApart = 256;
    const Index together = from_.images->pixel_stride < kFarApart ? 4 : 1;
    tiles_.each_strip(first, last, [&](const WinogradPlace& place, Index tile, Index count) {
      const float* rows[kMostRows] = {};
      const bool direct = from_.images->format == ChannelFormat::Float32;
      direct ? find(place, count, rows) : copy(place, count, channel, rows);
      // The next tiles below begin so many rows further down.
      const Index below =
          direct ? kWinogradPixels * tiles_.y.dilation * from_.images->row_stride : 0;
      loop({rows, columns_, count, direct ? channel : 0, channels_, parts.tile_step,
            parts.part_step, below, together},
           out + (tile - first) * parts.tile_step);
    });
  }

 private:
  static constexpr Index kMostRows = kWinogradPixels + kWinogradTaps - 1;

  static Index columns_of(Index tiles) { return (tiles - 1) * kWinogradPixels + kMostRows; }
  static Index copied_floats(const WinogradImages& from, Index tiles, Index channels) {
    return from.images->format == ChannelFormat::Float32 ? 0
                                                         : from.size * columns_of(tiles) * channels;
  }
  Index columns(Index tiles) const { return (tiles - 1) * kWinogradPixels + from_.size; }

  // Where the rows of a strip begin, and its columns from there.
  void find(const WinogradPlace& place, Index tiles, const float** rows) const {
    for (Index r = 0; r < from_.size; ++r) {
      rows[r] = reinterpret_cast<const float*>(row(place, r));
    }
    for (Index i = 0; i < columns(tiles); ++i) {
      columns_[i] = column(place, i) * from_.images->pixel_stride;
    }
  }

  // The same of a copy as float32.
  void copy(const WinogradPlace& place, Index tiles, Index channel, const float** rows) const {
    const ConvolutionImages& images = *from_.images;
    const Index count = columns(tiles);
    const Index dilation = tiles_.x.dilation;
    for (Index i = 0; i < count; ++i) {
      columns_[i] = column(place, i) < 0 ? kWinogradOutside : i * channels_;
    }
    for (Index r = 0; r < from_.size; ++r) {
      const std::byte* from = row(place, r);
      float* const to = copies_ + r * count * channels_;
      rows[r] = from == nullptr ? nullptr : to;
      for (Index i = 0, run = 1; i < count && from != nullptr; i += run) {
        const Index x = column(place, i);
        run = 1;
        if (x >= 0) {
          while (i + run < count && column(place, i + run) == x + run * dilation) {
            ++run;
          }
          const std::byte* pixel =
              from + (x * images.pixel_stride + channel) * item_size(images.format);
          convert_loops().load_row(pixel, images.format, run, channels_,
                                   images.pixel_stride * dilation, to + i * channels_);
        }
      }
    }
  }

  // Where a position is read: itself, the nearest one, or one that stands for zeros.
  Index clamped(Index position, Index length) const {
    if (position >= 0 && position < length) {
      return position;
    }
    return from_.edge == EdgeMode::Clamp ? std::clamp<Index>(position, 0, length - 1)
                                         : kWinogradOutside;
  }
  Index column(const WinogradPlace& place, Index i) const {
    return clamped(place.x + from_.first_x + i * tiles_.x.dilation, from_.width);
  }
  // Null: zeros.
  const std::byte* row(const WinogradPlace& place, Index r) const {
    const Index at = clamped(place.y + from_.first_y + r * tiles_.y.dilation, from_.height);
    return at < 0 ? nullptr
                  : from_.images->samples[place.sample] +
                        at * from_.images->row_stride * item_size(from_.images->format);
  }

  WinogradImages from_;
  WinogradTiles tiles_;
  Index channels_;
  Index* columns_;
  float* copies_;
};

}  // namespace mpsgrad::cpu::convolution
