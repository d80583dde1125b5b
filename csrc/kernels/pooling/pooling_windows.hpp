// Which pixels the windows of a pooling read: what the CPU device's forward and gradient share.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling.hpp"
#include "kernels/pooling/pooling_simd.hpp"

namespace mpsgrad::cpu::pooling {

inline constexpr Index kTaskFloats = 1 << 16;  // about what one task reads
// Most that one thread keeps of converted source rows.
inline constexpr Index kRowsFloats = 1 << 16;

// Scratch of the calling thread.
enum Slot { kSourceRows, kResultRow, kStoreRow, kGradientRow, kWindowRow, kWinnerRow, kRing };

// One direction of a pooling: which pixels each window reads.
struct Axis {
  Index length = 1;  // of the source
  Index kernel = 1, stride = 1, dilation = 1;
  Index start = 0;  // where the first tap of window 0 lies
  // What lies outside the source: nothing (its zeros are counted elsewhere), or the nearest pixel.
  bool repeats = false;

  Index extent() const { return (kernel - 1) * dilation + 1; }

  struct Taps {
    Index before, inside, after;  // how many taps lie where
    Index pixel;                  // of the first one inside
  };
  Taps taps(Index window) const {
    const Index first = start + stride * window;
    const Index before = first < 0 ? std::min(kernel, ceil_div(-first, dilation)) : 0;
    const Index end =
        first >= length ? 0 : std::min(kernel, floor_div(length - 1 - first, dilation) + 1);
    return {before, end - before, kernel - end, first + before * dilation};
  }

  // No pixel before it is read by this window or a later one.
  Index first_pixel(Index window) const {
    return std::clamp<Index>(start + stride * window, 0, length - 1);
  }

  // Calls visit(pixel, taps, weight) for what a window reads, in ascending order. `distinct`: every
  // pixel once, whatever its weight.
  template <class Visit>
  void read(Index window, bool distinct, const Visit& visit) const {
    const Taps t = taps(window);
    const Index last = t.pixel + (t.inside - 1) * dilation;
    const bool first_read = t.inside > 0 && t.pixel == 0;
    const bool last_read = t.inside > 0 && last == length - 1;
    const bool before = repeats && t.before > 0 && !(distinct && first_read);
    if (before) {
      visit(Index{0}, Index{1}, t.before);
    }
    if (t.inside > 0) {
      visit(t.pixel, t.inside, Index{1});
    }
    if (repeats && t.after > 0 && !(distinct && (last_read || (before && length == 1)))) {
      visit(length - 1, Index{1}, t.after);
    }
  }

  // How many taps of a window read a pixel.
  Index weight(Index window, Index pixel) const {
    const Taps t = taps(window);
    const Index way = pixel - t.pixel;
    Index weight = way >= 0 && way < t.inside * dilation && way % dilation == 0 ? 1 : 0;
    if (repeats && pixel == 0) {
      weight += t.before;
    }
    if (repeats && pixel == length - 1) {
      weight += t.after;
    }
    return weight;
  }

  // The windows of [begin, end) that can read a pixel.
  std::pair<Index, Index> readers(Index pixel, Index begin, Index end) const {
    const Index first =
        repeats && pixel == 0 ? begin : ceil_div(pixel - (extent() - 1) - start, stride);
    const Index last = repeats && pixel == length - 1 ? end - 1 : floor_div(pixel - start, stride);
    return {std::max(first, begin), std::min(last + 1, end)};
  }

  // How many taps of a window lie in the source or its border of `pad` counted zeros.
  Index counted(Index window, Index pad) const {
    Axis wider = *this;
    wider.length = length + 2 * pad;
    wider.start = start + pad;
    return wider.taps(window).inside;
  }
};

// What both directions of the pass share.
struct Geometry {
  PoolingKind kind;
  bool clamps;
  ZeroPad pad;
  Axis x, y;

  Geometry(PoolingKind pooling, const Window& window, const Offset& offset, EdgeMode edge,
           const ZeroPad& zero_pad, Index width, Index height)
      : kind(pooling), clamps(edge == EdgeMode::Clamp), pad(zero_pad) {
    const bool repeats = clamps && kind != PoolingKind::Average;
    x = {width,
         window.kernel_width,
         window.stride_x,
         window.dilation_x,
         offset.x - window.extent_x() / 2,
         repeats};
    y = {height,
         window.kernel_height,
         window.stride_y,
         window.dilation_y,
         offset.y - window.extent_y() / 2,
         repeats};
  }

  bool is_max() const { return kind == PoolingKind::Max || kind == PoolingKind::DilatedMax; }
  bool meets_padding(const Axis& axis, Index window) const {
    return is_max() && !clamps && axis.taps(window).inside < axis.kernel;
  }
  // Most that a window reads.
  Index window_pixels() const {
    return std::min(x.kernel, x.length) * std::min(y.kernel, y.length);
  }
  // One axis' part of what an average divides by.
  float divisor(const Axis& axis, Index window, Index border) const {
    return static_cast<float>(clamps ? axis.counted(window, border) : axis.kernel);
  }
};

// The columns [begin, begin + windows) of windows as runs for the row loops.
struct Columns {
  Columns(const Geometry& g, Index first, Index count, Index channel_count)
      : begin(first),
        windows(count),
        channels(channel_count),
        stride(g.x.stride),
        dilation(g.x.dilation) {
    for (Index w = 0; w < windows; ++w) {
      add_window(g, w);
    }
    find_taken(g.x.length);
  }

  PoolingRow row(bool begins, bool ends, bool meets_padding) const {
    return {runs.data(),  static_cast<Index>(runs.size()), stride, dilation, channels, begins, ends,
            meets_padding};
  }
  Index floats() const { return windows * channels; }

  Index begin, windows, channels, stride, dilation;
  std::vector<PoolingRun> runs;
  bool repeats = false;  // some window has several runs
  // Whether `taken` of the runs is known, and then the pixels that no window reads, from and to.
  bool orderly = true;
  bool disjoint = true;  // no pixel is read twice, and no window has several runs
  std::vector<std::pair<Index, Index>> unread;

 private:
  void find_taken(Index length) {
    Index read_end = 0;  // of the pixels read so far
    const auto pass_over = [&](Index from, Index to) {
      if (from < to) {
        unread.emplace_back(from, to);
      }
    };
    for (PoolingRun& run : runs) {
      if (run.taps == 0) {
        continue;
      }
      const Index steady = std::max<Index>(0, run.taps - stride);  // taken of all but the first
      const Index first_unread = run.pixel + (run.windows > 1 ? steady : 0);
      orderly = orderly && (dilation == 1 || run.taps == 1) &&
                (run.windows == 1 || read_end <= first_unread);
      pass_over(read_end, first_unread);
      run.taken = std::clamp<Index>(std::max(read_end, first_unread) - run.pixel, 0, run.taps);
      for (Index w = 1; w < run.windows; ++w) {
        pass_over(run.pixel + (w - 1) * stride + run.taps, run.pixel + w * stride);
      }
      disjoint = disjoint && orderly && run.taken == 0;
      read_end = std::max(read_end, run.pixel + (run.windows - 1) * stride + run.taps);
    }
    pass_over(read_end, length);
    disjoint = disjoint && !repeats;
  }
  void add_window(const Geometry& g, Index w) {
    PoolingRun next{w, 1, 0, 0, 0, 1.0F, 1.0F, true, g.meets_padding(g.x, begin + w)};
    if (g.kind == PoolingKind::Average) {
      next.divisor = g.divisor(g.x, begin + w, g.pad.x);
    }
    g.x.read(begin + w, g.is_max(), [&](Index pixel, Index taps, Index weight) {
      next.pixel = pixel;
      next.taps = taps;
      next.weight = static_cast<float>(weight);
      append(next);
      repeats = repeats || !next.begins;
      next.begins = false;
    });
    if (next.begins) {
      append(next);
    }
  }
  // Lengthens the last run if the window continues it.
  void append(const PoolingRun& next) {
    if (!runs.empty()) {
      PoolingRun& run = runs.back();
      if (run.window + run.windows == next.window && run.begins && next.begins &&
          run.pixel + run.windows * stride == next.pixel && run.taps == next.taps && run.taps > 0 &&
          run.weight == next.weight && run.divisor == next.divisor &&
          run.meets_padding == next.meets_padding) {
        ++run.windows;
        return;
      }
    }
    runs.push_back(next);
  }
};

// Whether loops read source rows where they lie, perhaps with gaps between pixels.
template <class Element, bool kGaps = false>
bool reads_in_place(const CpuImages& source) {
  return std::is_same_v<Element, Half> || (source.is_float() && (kGaps || source.dense_pixels()));
}

// How many source rows can be handed to a loop at once, of as many as it takes: those that need
// conversion wait in scratch.
template <class Element, bool kGaps = false>
Index most_rows(const CpuImages& source, Index taken = kMostPoolingRows) {
  const bool direct = reads_in_place<Element, kGaps>(source);
  return direct ? taken
                : std::clamp<Index>(kRowsFloats / (source.width * source.channels), 1, taken);
}

// How many source rows are handed to a loop that requests nothing: as many as give the memory
// system no more streams of taps than it can foresee.
template <class Element>
Index rows_together(const Geometry& geometry, const CpuImages& source) {
  constexpr Index kStreams = 9;
  const Index foreseen =
      std::clamp<Index>(kStreams / std::min(geometry.x.kernel, source.width), 1, kMostPoolingRows);
  return most_rows<Element>(source, foreseen);
}

// Calls visit(rows, count, begins, ends) with the source rows that a row of windows reads, in
// groups of `most`; once without any where it reads none.
template <class Element, bool kGaps = false, class Visit>
void for_source_rows(const Geometry& geometry, const CpuImages& source, Index sample, Index window,
                     Index most, const Visit& visit) {
  const Index row_floats = source.width * source.channels;
  std::array<PoolingSource<Element>, kMostPoolingRows> rows{};
  Index count = 0;
  bool begins = true;
  geometry.y.read(window, geometry.is_max(), [&](Index first, Index taps, Index weight) {
    for (Index t = 0; t < taps; ++t) {
      if (count == most) {
        visit(rows.data(), count, begins, false);
        begins = false;
        count = 0;
      }
      const Index y = first + t * geometry.y.dilation;
      PoolingSource<Element>& row = rows[static_cast<std::size_t>(count)];
      row.y = y;
      row.weight = static_cast<float>(weight);
      if (kGaps && reads_in_place<Element, kGaps>(source)) {
        row.x = reinterpret_cast<const Element*>(source.pixel(sample, y, 0));
      } else {
        auto* scratch = scratch_of<Element>(kSourceRows, most * row_floats) + count * row_floats;
        row.x = load_run(source, sample, y, 0, source.width, scratch);
      }
      ++count;
    }
  });
  visit(rows.data(), count, begins, true);
}

// pooling_gradient_cpu.cpp
std::unique_ptr<GradientEncoder> make_gradient(PoolingKind kind, const Window& window);

}  // namespace mpsgrad::cpu::pooling
