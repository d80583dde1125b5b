// Copies of pixels for weight gradients whose tiles take each tap by itself, and requests for what
// is copied next. Only for weight_gradient_simd.cpp.
#pragma once

#include "kernels/convolution/convolution_simd.hpp"
#include "kernels/convolution/vectors_simd.hpp"

namespace mpsgrad::MPSGRAD_ISA {

// Every tap by itself uses each value once for each channel of the other image, and where the
// images are, pixels lie thousands of bytes apart, in a few sets of the caches. So some pixels at a
// time are copied to where they follow each other: vectors of one image, and the values of the
// other in the order in which the tiles read them.
inline constexpr Index kPanelPixels = kConvolutionPanelPixels;

// The rows of tiles over some channels of an image.
struct TileRows {
  Index first;
  Index pixels;
  Index tiles;
  Index begin[kConvolutionPanel + 1];

  TileRows(Index first_channel, Index channels, Index vecs, Index pixel_count)
      : first(first_channel),
        pixels(pixel_count),
        tiles(ceil_div(channels, tile_rows(static_cast<int>(vecs)))) {
    for (Index tile = 0; tile <= tiles; ++tile) {
      begin[tile] = tile * channels / tiles;
    }
  }
  Index rows(Index tile) const { return begin[tile + 1] - begin[tile]; }
  // Copies write whole vectors.
  Index panel(Index tile) const { return begin[tile] * pixels + tile * kLanes; }
};

inline Index panel_floats() { return kConvolutionPanel * (kPanelPixels + kLanes) + kLanes; }
// A block's last vector is copied whole.
inline Index column_floats(Index channels, Index pixels) {
  return (channels + kLanes) * smaller(pixels, kPanelPixels);
}

// Pixels [first, first + count) of a band, its rows one after the other.
struct PanelPixels {
  Index first, count;
};

// One image as a tap has it: pixel x of a band's row at rows[row * rows_step] + offset + x * step,
// from begin to before end; zeros outside, and where the row is null.
struct TapImage {
  const float* const* rows;
  Index rows_step, offset, step, begin, end;

  static TapImage gradient(const WeightGradientTask& task) {
    return {task.gradient, 1, 0, task.gradient_step, 0, task.width};
  }
  static TapImage source(const WeightGradientTask& task, Index q, Index p) {
    return {task.source + q,  task.taps_y,   task.source_offset + p * task.source_tap_step,
            task.source_step, task.begin[p], task.end[p]};
  }
};

// Calls copy(from, place, n) for neighbours of a row, and clear(place, n) for zeros.
template <class Copy, class Clear>
MPSGRAD_INLINE void for_runs(const TapImage& image, Index width, PanelPixels pixels,
                             const Copy& copy, const Clear& clear) {
  for (Index done = 0; done < pixels.count;) {
    const Index row = (pixels.first + done) / width;
    const Index x = (pixels.first + done) % width;
    const Index n = smaller(pixels.count - done, width - x);
    const float* data = image.rows[row * image.rows_step];
    const Index begin = data == nullptr ? x + n : larger(x, smaller(image.begin, x + n));
    const Index end = data == nullptr ? x + n : larger(begin, smaller(image.end, x + n));
    clear(done, begin - x);
    if (begin < end) {
      copy(data + image.offset + begin * image.step, done + begin - x, end - begin);
    }
    clear(done + end - x, x + n - end);
    done += n;
  }
}

// Asks for so many floats: copies read pixels that lie far apart, and write them to as many places
// as there are tiles.
MPSGRAD_INLINE void ask_to_read(const float* first, Index floats) {
  for (Index i = 0; i < floats; i += kLineFloats) {
    __builtin_prefetch(first + i);
  }
}
MPSGRAD_INLINE void ask_to_write(const float* first, Index floats) {
  for (Index i = 0; i < floats; i += kLineFloats) {
    __builtin_prefetch(first + i, 1);
  }
}

// Each tile's values of some pixels together: they follow each other where they go, and the lines
// they come from are needed by the next tile.
inline void copy_rows(const TapImage& image, Index width, PanelPixels pixels, const TileRows& tiles,
                      float* panel) {
  constexpr Index kTogether = 4;
  const Index step = image.step;
  const auto copy = [&](const float* first, Index place, Index n) {
    for (Index done = 0; done < n; done += kTogether) {
      const float* pixel = first + done * step + tiles.first;
      const Index count = smaller(kTogether, n - done);
      for (Index i = kTogether; i < smaller(2 * kTogether, n - done); ++i) {
        ask_to_read(pixel + i * step, tiles.begin[tiles.tiles]);
      }
      for (Index tile = 0; tile < tiles.tiles; ++tile) {
        const Index rows = tiles.rows(tile);
        const Index whole = (rows - 1) / kLanes * kLanes;
        const Mask last = first_lanes(rows - whole);
        const float* from = pixel + tiles.begin[tile];
        float* to = panel + tiles.panel(tile) + (place + done) * rows;
        ask_to_write(to + count * rows, count * rows);
        for (Index i = 0; i < count && rows <= kFewLanes; ++i, from += step, to += rows) {
          copy_few(from, last, to);
        }
        for (Index i = 0; i < count && rows > kFewLanes; ++i, from += step, to += rows) {
          for (Index r = 0; r < whole; r += kLanes) {
            store(to + r, load(from + r));
          }
          store(to + whole, load(from + whole, last));
        }
      }
    }
  };
  const auto clear = [&](Index place, Index n) {
    for (Index tile = 0; tile < tiles.tiles && n > 0; ++tile) {
      const Index rows = tiles.rows(tile);
      float* to = panel + tiles.panel(tile) + place * rows;
      for (Index i = 0; i < n * rows; ++i) {
        to[i] = 0.0F;
      }
    }
  };
  for_runs(image, width, pixels, copy, clear);
}

// The next channels of a row of weights: `widest` vectors, or what is left.
struct ColumnBlock {
  Index vecs, lanes;  // lanes of the last vector

  ColumnBlock(Index channels, Index widest)
      : vecs(smaller(widest, ceil_div(channels, kLanes))),
        lanes(smaller(channels - (vecs - 1) * kLanes, kLanes)) {}
};

// Channels [first, last), in blocks of `widest` vectors, each of which has its pixels together.
// What follows each other in memory is read so.
inline void copy_columns(const TapImage& image, Index width, PanelPixels pixels, Index first,
                         Index last, Index widest, float* panel) {
  const Index block = widest * kLanes;
  const auto each_block = [&](const auto& body) {
    float* to = panel;
    for (Index c = first; c < last; c += block, to += block * pixels.count) {
      body(c, ColumnBlock(last - c, widest), to);
    }
  };
  constexpr Index kReadAhead = 4;  // pixels
  constexpr Index kWriteAhead = 2;
  const auto copy = [&](const float* from, Index place, Index n) {
    for (Index i = 0; i < n; ++i, from += image.step) {
      each_block([&](Index c, const ColumnBlock& columns, float* to) {
        const Index step = columns.vecs * kLanes;
        to += (place + i) * step;
        ask_to_read(from + kReadAhead * image.step + c, step);
        ask_to_write(to + kWriteAhead * step, step);
        for (Index v = 0; v + 1 < columns.vecs; ++v) {
          store(to + v * kLanes, load(from + c + v * kLanes));
        }
        const Index end = (columns.vecs - 1) * kLanes;
        store(to + end, load(from + c + end, first_lanes(columns.lanes)));
      });
    }
  };
  const auto clear = [&](Index place, Index n) {
    each_block([&](Index, const ColumnBlock& columns, float* to) {
      const Index step = columns.vecs * kLanes;
      for (Index i = 0; i < n * step; i += kLanes) {
        store(to + place * step + i, Vec{});
      }
    });
  };
  for_runs(image, width, pixels, copy, clear);
}

// A chunk of pixels under one tap, and a panel of the rows that go with it.
struct TapStep {
  PanelPixels pixels;
  Index group, tap, panel;
  TapImage row_image, column_image;
  Index first_row, last_row;  // channels of the image
  Index first_column, last_column;
};

// The steps of a task in their order: chunk by chunk, in each of them block by block.
class TapSteps {
 public:
  // `most`: pixels of a chunk.
  TapSteps(const WeightGradientTask& task, Index most)
      : task_(task),
        taps_(task.taps_y * task.taps_x),
        channels_(task.across ? task.group_gradients : task.group_sources),
        row_channels_(task.across ? task.group_sources : task.group_gradients),
        panels_(ceil_div(row_channels_, kConvolutionPanel)),
        pixels_(task.rows * task.width),
        chunks_(ceil_div(pixels_, most)) {}

  Index count() const { return chunks_ * (task_.last - task_.first); }
  Index row_channels() const { return row_channels_; }
  TapStep at(Index i) const {
    const Index chunk = i / (task_.last - task_.first);
    const Index block = task_.first + i % (task_.last - task_.first);
    const Index panel = block % panels_;
    const Index tap = block / panels_ % taps_;
    const Index group = block / panels_ / taps_;
    const Index begin = chunk * pixels_ / chunks_;
    const TapImage gradient = TapImage::gradient(task_);
    const TapImage source = TapImage::source(task_, tap / task_.taps_x, tap % task_.taps_x);
    const Index rows = group * row_channels_;
    const Index columns = group * channels_;
    return {{begin, (chunk + 1) * pixels_ / chunks_ - begin},
            group,
            tap,
            panel,
            task_.across ? source : gradient,
            task_.across ? gradient : source,
            rows + panel * row_channels_ / panels_,
            rows + (panel + 1) * row_channels_ / panels_,
            columns + task_.first_column,
            columns + task_.last_column};
  }
  // The gradient is the same under all taps.
  bool same_rows(const TapStep& a, const TapStep& b) const {
    return same_group(a, b) && a.panel == b.panel && (!task_.across || a.tap == b.tap);
  }
  bool same_columns(const TapStep& a, const TapStep& b) const {
    return same_group(a, b) && (task_.across || a.tap == b.tap);
  }

 private:
  static bool same_group(const TapStep& a, const TapStep& b) {
    return a.pixels.first == b.pixels.first && a.group == b.group;
  }

  const WeightGradientTask& task_;
  const Index taps_, channels_, row_channels_, panels_, pixels_, chunks_;
};

// Where the rows of a step are: in the panel, or, if wanted, where the image has them, if its
// pixels are equally far apart and none of them is outside.
class TapRows {
 public:
  TapRows(const WeightGradientTask& task, const TapStep& step, bool in_place)
      : panel_(task.panels), step_(step.row_image.step) {
    bool even = in_place;
    const float* first = nullptr;
    const auto visit = [&](const float* from, Index place, Index) {
      first = place == 0 ? from : first;
      even = even && from == first + place * step_;
    };
    for_runs(step.row_image, task.width, step.pixels, visit,
             [&](Index, Index n) { even = even && n == 0; });
    image_ = even ? first + step.first_row : nullptr;
  }
  bool copied() const { return image_ == nullptr; }
  // Of a tile: the first pixel, and how far it is to the next.
  const float* at(const TileRows& rows, Index tile) const {
    return copied() ? panel_ + rows.panel(tile) : image_ + rows.begin[tile];
  }
  Index step(const TileRows& rows, Index tile) const { return copied() ? rows.rows(tile) : step_; }

 private:
  const float* panel_;
  const float* image_;
  Index step_;
};

// Some channels of the pixels of a chunk, a line of each at a time.
class PixelsAhead {
 public:
  void clear() { lines_ = 0; }
  void set(const TapImage& image, Index width, PanelPixels pixels, Index first, Index last) {
    Index count = 0;
    for_runs(
        image, width, pixels,
        [&](const float* from, Index, Index n) {
          for (Index i = 0; i < n; ++i) {
            pixels_[count++] = from + i * image.step + first;
          }
        },
        [](Index, Index) {});
    lines_ = count == 0 ? 0 : ceil_div(last - first, kLineFloats);
    for (; count > 0 && count < kPanelPixels; ++count) {  // tiles may have more pixels
      pixels_[count] = pixels_[count - 1];
    }
  }
  Index lines() const { return lines_; }
  const float* const* pixels() const { return pixels_; }
  // The lines are handed out from the last to the first.
  Index take() { return --lines_ * kLineFloats; }

 private:
  const float* pixels_[kPanelPixels];
  Index lines_ = 0;
};

// What is copied for the next step, handed out to the last tiles before it: earlier, and it would
// be gone from the cache again.
class CopiesAhead {
 public:
  void start(const WeightGradientTask& task, const TapSteps& steps, Index i, Index tiles) {
    tiles_ = tiles;
    rows_.clear();
    columns_.clear();
    if (i + 1 == steps.count()) {
      return;
    }
    const TapStep now = steps.at(i);
    const TapStep next = steps.at(i + 1);
    if (!steps.same_rows(now, next)) {
      rows_.set(next.row_image, task.width, next.pixels, next.first_row, next.last_row);
    }
    if (!steps.same_columns(now, next)) {
      columns_.set(next.column_image, task.width, next.pixels, next.first_column, next.last_column);
    }
  }
  // For the next tile; null: it need not ask. Else it is to ask for `*line` of each pixel.
  const float* const* take(Index* line) {
    const bool asks = tiles_-- <= rows_.lines() + columns_.lines();
    for (PixelsAhead* pixels : {&columns_, &rows_}) {
      if (asks && pixels->lines() > 0) {
        *line = pixels->take();
        return pixels->pixels();
      }
    }
    return nullptr;
  }

 private:
  PixelsAhead rows_, columns_;
  Index tiles_ = 0;  // until the next step
};

}  // namespace mpsgrad::MPSGRAD_ISA
