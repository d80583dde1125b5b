// What weight gradients multiply whose tiles take each tap by itself: copies of some pixels, or the
// pixels where they are, and requests for those that come next. Only for weight_gradient_simd.cpp.
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
  Index chunks() const { return chunks_; }
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

// Pixels of a chunk from `place` on that lie equally far apart, and where their values are.
struct TapRun {
  const float* row;
  const float* column;
  Index place, pixels;
};

// Where the values of a step are: in the copies, or, if wanted, where the images have them, if they
// have them in a few runs of the same length. What lies outside of the source is in none of these.
// The columns of a step `across` serve all taps, which pays for their copy.
class TapValues {
 public:
  static constexpr Index kMostRuns = 64;

  TapValues(const WeightGradientTask& task, const TapStep& step, bool in_place)
      : row_step_(step.row_image.step),
        column_step_(step.column_image.step),
        columns_copied_(task.across) {
    if (in_place) {
      in_place = find_runs(task, step);
    }
    for (Index k = 0; k < count_; ++k) {
      in_place = in_place && runs_[k].pixels == runs_[0].pixels;
    }
    if (!in_place) {
      rows_copied_ = true;
      columns_copied_ = true;
      count_ = 1;
      runs_[0] = {task.panels, nullptr, 0, step.pixels.count};
    }
  }
  bool rows_copied() const { return rows_copied_; }
  bool columns_copied() const { return columns_copied_; }
  Index count() const { return count_; }
  Index pixels() const { return count_ == 0 ? 0 : runs_[0].pixels; }  // of each run
  const TapRun& run(Index k) const { return runs_[k]; }
  // Of a tile: how far it is to its rows, and from one pixel's to the next one's.
  Index row_offset(const TileRows& rows, Index tile) const {
    return rows_copied() ? rows.panel(tile) : rows.begin[tile];
  }
  Index row_step(const TileRows& rows, Index tile) const {
    return rows_copied() ? rows.rows(tile) : row_step_;
  }
  Index column_step() const { return column_step_; }

 private:
  // False: they are too many.
  bool find_runs(const WeightGradientTask& task, const TapStep& step) {
    bool few = true;
    const TapImage& gradient = task.across ? step.column_image : step.row_image;
    const TapImage& source = task.across ? step.row_image : step.column_image;
    const auto visit = [&](const float* from, Index place, Index n) {
      const Index at = step.pixels.first + place;
      const float* with =
          gradient.rows[at / task.width] + gradient.offset + at % task.width * gradient.step;
      const TapRun next{(task.across ? from : with) + step.first_row,
                        (task.across ? with : from) + step.first_column, place, n};
      if (count_ > 0 && continues(runs_[count_ - 1], next)) {
        runs_[count_ - 1].pixels += n;
      } else if (count_ < kMostRuns) {
        runs_[count_++] = next;
      } else {
        few = false;
      }
    };
    for_runs(source, task.width, step.pixels, visit, [](Index, Index) {});
    return few;
  }
  bool continues(const TapRun& run, const TapRun& next) const {
    return next.place == run.place + run.pixels && next.row == run.row + run.pixels * row_step_ &&
           (columns_copied() || next.column == run.column + run.pixels * column_step_);
  }

  TapRun runs_[kMostRuns];
  Index count_ = 0;
  Index row_step_, column_step_;  // of the images, from pixel to pixel
  bool rows_copied_ = false;
  bool columns_copied_;
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

// What the next step reads of the images, handed out to the last tiles before it: earlier, and it
// would be gone from the cache again.
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
