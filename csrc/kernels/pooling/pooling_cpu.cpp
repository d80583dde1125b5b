// Pooling kernels of the CPU device, row by row: a row of results gathers from the source rows its
// windows read, a row of gradients from the windows that read it. So every row has one writer, and
// a fixed order of additions.
#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/pooling/pooling.hpp"
#include "kernels/pooling/pooling_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;

constexpr Index kTaskFloats = 1 << 16;  // about what one task reads
constexpr Index kRowsFloats = 1 << 16;  // most that one thread keeps of converted source rows
constexpr Index kRingFloats = 1 << 18;  // most that one thread keeps of the windows under way
constexpr Index kMostRows = 8;          // that one loop reads together

// Scratch of the calling thread.
enum Slot { kSourceRows, kResultRow, kStoreRow, kGradientRow, kWindowRow, kRing };

Index floor_div(Index a, Index b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
Index ceil_div(Index a, Index b) { return -floor_div(-a, b); }

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
  // The number of a source row's first tap, in any window.
  std::int32_t first_number(Index row) const {
    return static_cast<std::int32_t>(row * (std::min(x.kernel, x.length) + 2));
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
  bool disjoint = true;  // no pixel is read twice
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
  }
  void add_window(const Geometry& g, Index w) {
    PoolingRun next{w, 1, 0, 0, 0, 0, 1.0F, 1.0F, true, g.meets_padding(g.x, begin + w)};
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
      next.first_tap += static_cast<std::int32_t>(taps);
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

// How many source rows are handed to a loop at once: as many as give the memory system no more
// streams of taps than it can foresee.
template <class Element>
Index rows_together(const Geometry& geometry, const CpuImages& source) {
  constexpr Index kStreams = 9;
  const Index most =
      std::clamp<Index>(kStreams / std::min(geometry.x.kernel, source.width), 1, kMostRows);
  const bool direct = std::is_same_v<Element, Half> || (source.is_float() && source.dense_pixels());
  return direct ? most : std::clamp<Index>(kRowsFloats / (source.width * source.channels), 1, most);
}

// Calls visit(rows, count, begins, ends) with the source rows that a row of windows reads, in
// groups; once without any where it reads none.
template <class Element, class Visit>
void for_source_rows(const Geometry& geometry, const CpuImages& source, Index sample, Index window,
                     const Visit& visit) {
  const Index most = rows_together<Element>(geometry, source);
  const Index row_floats = source.width * source.channels;
  std::array<PoolingSource<Element>, kMostRows> rows{};
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
      auto* scratch = cpu::scratch_of<Element>(kSourceRows, most * row_floats) + count * row_floats;
      rows[static_cast<std::size_t>(count++)] = {
          cpu::load_run(source, sample, y, 0, source.width, scratch), static_cast<float>(weight),
          geometry.first_number(y)};
    }
  });
  visit(rows.data(), count, begins, true);
}

class CpuPooling final : public UnaryEncoder {
 public:
  CpuPooling(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const CpuImages source = cpu::view_source(call);
    const Geometry geometry(kind_, window_, call.properties.offset, call.properties.edge_mode,
                            zero_pad_of(call.properties), source.width, source.height);
    cpu::record(command_buffer,
                [geometry, source, destination = cpu::view_destination(call), clip = call.clip] {
                  source.has_halves() ? run<Half>(geometry, source, destination, clip)
                                      : run<float>(geometry, source, destination, clip);
                });
  }

 private:
  template <class Element>
  static void run(const Geometry& geometry, const CpuImages& source, const CpuImages& destination,
                  const Region& clip) {
    const Index rows = clip.size.height;
    const Columns columns(geometry, 0, clip.size.width, source.channels);
    const Index row_reads =
        std::min(geometry.y.kernel, geometry.y.length) * source.width * source.channels;
    const Index group = std::max<Index>(1, kTaskFloats / row_reads);
    const Index groups = cpu::chunks_of(rows, group);

    cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
      const Index sample = task / groups;
      const Index first = task % groups * group;
      for (Index j = first; j < std::min(rows, first + group); ++j) {
        float* pooled = cpu::begin_store(destination, sample, clip.origin.y + j, clip.origin.x,
                                         cpu::thread_scratch(kResultRow, columns.floats()));
        pool_row<Element>(geometry, columns, source, sample, j, pooled);
        cpu::finish_store(destination, sample, clip.origin.y + j, clip.origin.x, clip.size.width,
                          pooled);
      }
    });
  }

  template <class Element>
  static void pool_row(const Geometry& geometry, const Columns& columns, const CpuImages& source,
                       Index sample, Index j, float* pooled) {
    for_source_rows<Element>(
        geometry, source, sample, j,
        [&](const PoolingSource<Element>* rows, Index count, bool begins, bool ends) {
          const auto& loops = pooling_loops().of(rows->x);
          const PoolingRow row = columns.row(begins, ends, geometry.meets_padding(geometry.y, j));
          if (geometry.is_max()) {
            loops.maximum(row, rows, count, pooled);
          } else if (geometry.kind == PoolingKind::Average) {
            loops.average(row, rows, count, geometry.divisor(geometry.y, j, geometry.pad.y),
                          pooled);
          } else {
            loops.squares(row, rows, count, pooled);
          }
        });
    if (geometry.kind == PoolingKind::L2Norm) {
      pooling_loops().root(pooled, columns.floats());
    }
  }

  PoolingKind kind_;
  Window window_;
};

// One gradient encode: G of the source, and where it goes.
struct GradientWork {
  Geometry geometry;
  CpuImages gradient, source, destination;
  Offset primary;
  Size used;  // windows of the gradient that count, from `primary` on
  Region clip;
  Index first_row, first_column;  // pixel of the source that the clip's origin receives

  void run() const {
    const bool halves = gradient.has_halves() && source.has_halves() && destination.has_halves();
    halves ? run_as<Half>() : run_as<float>();
  }

 private:
  class Ring;

  static std::pair<Index, Index> windows_of(Index length, Index primary, Index used) {
    const Index begin = std::max<Index>(0, -primary);
    return {begin, std::max(begin, std::min(length - primary, used))};
  }
  // Element: as what loops read source rows.
  template <class Element>
  void run_as() const;
  template <class Element>
  PoolingShares find_shares(const Columns& columns, Index sample, Index j, float* memory) const;
  template <class Element>
  void make_row(const Columns& columns, Index sample, Index y, Ring& ring, float* result) const;
  template <class Element>
  Index make_rows_once(const Columns& columns, Index sample, Index r, Index end) const;
};

// The shares of rows of windows that pixels still to come may read: row j is kept in place
// j % places until another needs it.
class GradientWork::Ring {
 public:
  Ring(Index place_count, Index floats_each)
      : places(place_count),
        floats_(floats_each),
        memory_(cpu::thread_scratch(kRing, place_count * floats_each)),
        entries_(static_cast<std::size_t>(place_count)) {}

  template <class Find>
  const PoolingShares& at(Index j, const Find& find) {
    const Index place = j % places;
    Entry& entry = entries_[static_cast<std::size_t>(place)];
    if (entry.row != j) {
      entry.shares = find(memory_ + place * floats_);
      entry.row = j;
    }
    return entry.shares;
  }

  const Index places;

 private:
  struct Entry {
    Index row = -1;
    PoolingShares shares{};
  };
  Index floats_;
  float* memory_;
  std::vector<Entry> entries_;
};

template <class Element>
PoolingShares GradientWork::find_shares(const Columns& columns, Index sample, Index j,
                                        float* memory) const {
  const PoolingLoops& loops = pooling_loops();
  const Index count = columns.floats();
  const auto load_gradient = [&](float* scratch) {
    return cpu::load_run(gradient, sample, primary.y + j, primary.x + columns.begin,
                         columns.windows, scratch);
  };
  if (geometry.is_max()) {
    auto* index = reinterpret_cast<std::int32_t*>(memory);
    const bool resumes = columns.repeats || std::min(geometry.y.kernel, geometry.y.length + 2) >
                                                rows_together<Element>(geometry, source);
    float* best = resumes ? cpu::thread_scratch(kWindowRow, count) : nullptr;
    for_source_rows<Element>(
        geometry, source, sample, j,
        [&](const PoolingSource<Element>* rows, Index n, bool begins, bool ends) {
          loops.of(rows->x).winners(
              columns.row(begins, ends, geometry.meets_padding(geometry.y, j)), rows, n, best,
              index);
        });
    return {load_gradient(memory + count), index, 1.0F, 1.0F};
  }
  if (geometry.kind == PoolingKind::Average) {
    return {load_gradient(memory), nullptr, 1.0F, geometry.divisor(geometry.y, j, geometry.pad.y)};
  }
  float* squares = cpu::thread_scratch(kWindowRow, count);
  for_source_rows<Element>(
      geometry, source, sample, j,
      [&](const PoolingSource<Element>* rows, Index n, bool begins, bool ends) {
        loops.of(rows->x).squares(columns.row(begins, ends, false), rows, n, squares);
      });
  loops.per_root(load_gradient(cpu::thread_scratch(kGradientRow, count)), squares, count, memory);
  return {memory, nullptr, 1.0F, 1.0F};
}

// Row y of G.
template <class Element>
void GradientWork::make_row(const Columns& columns, Index sample, Index y, Ring& ring,
                            float* result) const {
  const PoolingLoops& loops = pooling_loops();
  const Index channels = columns.channels;
  const Index row_floats = source.width * channels;
  const auto clear = [&](Index from, Index to) {
    std::fill(result + from * channels, result + to * channels, 0.0F);
  };
  const PoolingRow row = columns.row(true, true, false);
  std::array<PoolingShares, kMostRows> shares{};
  Index count = 0;
  bool assign = columns.orderly;
  const auto give = [&] {
    if (assign) {
      for (const auto& [begin, end] : columns.unread) {
        clear(begin, end);
      }
    }
    if (geometry.is_max()) {
      loops.award(row, shares.data(), count, geometry.first_number(y), assign, result);
    } else {
      loops.spread(row, shares.data(), count, assign, result);
    }
    assign = false;
    count = 0;
  };

  const auto [rows_begin, rows_end] = windows_of(gradient.height, primary.y, used.height);
  const auto [from, to] = geometry.y.readers(y, rows_begin, rows_end);
  if (!assign || from >= to) {
    clear(0, source.width);
    assign = false;
  }
  Index first = from;  // of the rows of windows gathered so far: the ring holds no more at a time
  for (Index j = from; j < to; ++j) {
    if (count == kMostRows || j - first == ring.places) {
      if (count > 0) {
        give();
      }
      first = j;
    }
    if (const Index weight = geometry.y.weight(j, y); weight > 0) {
      PoolingShares& next = shares[static_cast<std::size_t>(count++)];
      next = ring.at(
          j, [&](float* memory) { return find_shares<Element>(columns, sample, j, memory); });
      next.weight = static_cast<float>(weight);
    }
  }
  if (count > 0) {
    give();
  }
  if (assign) {  // windows with gaps may pass over a row
    clear(0, source.width);
  }
  if (geometry.kind == PoolingKind::L2Norm) {
    loops.multiply(result,
                   cpu::load_run(source, sample, y, 0, source.width,
                                 cpu::thread_scratch(kSourceRows, row_floats)),
                   row_floats);
  }
}

// Makes all rows of a window at once, if row r of the clip is the first of them and nothing but
// this window reads them, and returns how many; else 0.
template <class Element>
Index GradientWork::make_rows_once(const Columns& columns, Index sample, Index r, Index end) const {
  const Axis& axis = geometry.y;
  const Index y = first_row + r;
  const Index count = axis.kernel;
  if (axis.dilation != 1 || axis.stride < count ||
      count > rows_together<Element>(geometry, source) || r + count > end ||
      y + count > source.height) {
    return 0;
  }
  const auto [rows_begin, rows_end] = windows_of(gradient.height, primary.y, used.height);
  const auto [j, past] = axis.readers(y, rows_begin, rows_end);
  if (past - j != 1 || axis.start + axis.stride * j != y ||
      axis.readers(y + count - 1, rows_begin, rows_end) != std::pair(j, past)) {
    return 0;
  }
  const Index row_floats = source.width * source.channels;
  auto* scratch = cpu::scratch_of<Element>(kStoreRow, count * row_floats);
  std::array<Element*, kMostRows> out{};
  for (Index i = 0; i < count; ++i) {
    Element*& row = out[static_cast<std::size_t>(i)];
    row = cpu::begin_store(destination, sample, clip.origin.y + r + i, clip.origin.x,
                           scratch + i * row_floats);
    for (const auto& [from, to] : columns.unread) {
      std::fill(row + from * columns.channels, row + to * columns.channels, Element{});
    }
  }
  const Element* incoming =
      cpu::load_run(gradient, sample, primary.y + j, primary.x + columns.begin, columns.windows,
                    cpu::scratch_of<Element>(kGradientRow, columns.floats()));
  for_source_rows<Element>(
      geometry, source, sample, j,
      [&](const PoolingSource<Element>* rows, Index n, bool begins, bool ends) {
        pooling_loops().of(incoming).award_once(columns.row(begins, ends, false), rows, n, incoming,
                                                out.data());
      });
  for (Index i = 0; i < count; ++i) {
    cpu::finish_store(destination, sample, clip.origin.y + r + i, clip.origin.x, source.width,
                      out[static_cast<std::size_t>(i)]);
  }
  return count;
}

template <class Element>
void GradientWork::run_as() const {
  const auto [begin, end] = windows_of(gradient.width, primary.x, used.width);
  const Columns columns(geometry, begin, end - begin, source.channels);
  const Index row_floats = source.width * source.channels;

  // Windows that reach past the rows of a task are evaluated in the next task again, so tasks are
  // tall where windows are.
  const Index overlap = std::max<Index>(0, geometry.y.extent() - geometry.y.stride);
  const Index tall =
      geometry.kind == PoolingKind::Average ? 1 : std::min(4 * overlap, clip.size.height);
  const Index wanted = std::max({Index{1}, kTaskFloats / row_floats, tall});
  const Index group = cpu::chunks_of(wanted, geometry.y.stride) * geometry.y.stride;
  const Index groups = cpu::chunks_of(clip.size.height, group);
  const Index share_floats = columns.floats() * (geometry.is_max() ? 2 : 1);
  const Index places = std::clamp<Index>(kRingFloats / std::max<Index>(1, share_floats), 1,
                                         ceil_div(geometry.y.extent(), geometry.y.stride));
  // The result of a row is made where it is wanted, if that is a whole row of the source.
  const bool whole = first_column == 0 && clip.size.width == source.width;
  const bool once =
      whole && geometry.is_max() && columns.windows > 0 && columns.disjoint && !columns.repeats;

  cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
    const Index sample = task / groups;
    const Index first = task % groups * group;
    Ring ring(places, share_floats);
    const Index last = std::min(clip.size.height, first + group);
    Index r = first;
    while (r < last) {
      if (const Index rows = once && sample < used.depth
                                 ? make_rows_once<Element>(columns, sample, r, last)
                                 : Index{0};
          rows > 0) {
        r += rows;
        continue;
      }
      const Index y = first_row + r;
      const Index out_floats = clip.size.width * source.channels;
      float* out = cpu::begin_store(destination, sample, clip.origin.y + r, clip.origin.x,
                                    cpu::thread_scratch(kStoreRow, out_floats));
      Index there = 0;
      if (y < source.height && sample < used.depth && columns.windows > 0) {
        float* result = whole ? out : cpu::thread_scratch(kResultRow, row_floats);
        make_row<Element>(columns, sample, y, ring, result);
        there =
            std::clamp<Index>(source.width - first_column, 0, clip.size.width) * source.channels;
        if (!whole) {
          std::copy_n(result + std::min(first_column, source.width) * source.channels, there, out);
        }
      }
      std::fill(out + there, out + out_floats, 0.0F);
      cpu::finish_store(destination, sample, clip.origin.y + r, clip.origin.x, clip.size.width,
                        out);
      ++r;
    }
  });
}

class CpuPoolingGradient final : public GradientEncoder {
 public:
  CpuPoolingGradient(PoolingKind kind, const Window& window) : kind_(kind), window_(window) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const BinaryProperties& p = call.properties;
    CpuImages source = cpu::view_source(call);
    const Geometry geometry(kind_, window_, p.secondary.offset, p.secondary.edge_mode,
                            zero_pad_of(p), source.width, source.height);
    const bool shifted = !call.creates_destination || p.clip_rect != Region{};
    const auto first_read = [&](const Axis& axis) {
      return shifted ? std::max<Index>(0, axis.start) : Index{0};
    };
    cpu::record(command_buffer,
                [work = GradientWork{geometry, cpu::view_gradient(call), std::move(source),
                                     cpu::view_destination(call), p.primary.offset,
                                     source_size_of(p), call.clip, first_read(geometry.y),
                                     first_read(geometry.x)}] { work.run(); });
  }

 private:
  PoolingKind kind_;
  Window window_;
};

class CpuPoolingBackend final : public PoolingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, PoolingKind kind,
                                             const Window& window) const override {
    return std::make_unique<CpuPooling>(kind, window);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, PoolingKind kind,
                                                 const Window& window) const override {
    return std::make_unique<CpuPoolingGradient>(kind, window);
  }
};

}  // namespace

const PoolingBackend& cpu_pooling() {
  static const CpuPoolingBackend backend;
  return backend;
}

}  // namespace mpsgrad
