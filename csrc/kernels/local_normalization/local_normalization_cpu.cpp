// Local normalization kernels of the CPU device. Sums over windows of pixels are separable: down
// the columns first, then along the row, row by row and with no more memory than the rows of one
// window.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "kernels/local_normalization/local_normalization.hpp"
#include "kernels/local_normalization/local_normalization_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::CpuImages;
using Kind = LocalNormalizationKind;
using Formula = LocalNormalizationFormula;

constexpr Index kTaskFloats = 1 << 16;   // about what one task reads
constexpr Index kRowsFloats = 1 << 16;   // most that one thread keeps of source rows
constexpr Index kBlockFloats = 1 << 18;  // what a thread's rows of one window should not exceed
constexpr Index kBlockChannels = 16;     // fewer are not worth a block of their own
constexpr Index kMostRows = 16;          // that one loop reads together

Formula formula_of(Kind kind, const LocalNormalizationParameters& p, Index kernel_size) {
  const auto length = static_cast<double>(kernel_size);
  const double count = kind == Kind::CrossChannel ? length : length * length;
  const auto alpha = static_cast<double>(p.alpha), beta = static_cast<double>(p.beta);
  Formula f{};
  f.delta = p.delta;
  f.exponent = -p.beta;
  f.scale = static_cast<float>(alpha / count);
  f.weight = static_cast<float>(2.0 * alpha * beta / count);
  f.p0 = p.p0;
  f.pm = p.pm;
  f.ps = p.ps;
  f.mean_weight = static_cast<float>(static_cast<double>(p.p0) / count);
  f.alpha = alpha;
  f.inverse = 1.0 / count;
  return f;
}

// How far a window reaches to either side of its own place.
struct Reach {
  Index before, after;
  Index taps() const { return before + after + 1; }
  Reach transposed() const { return {after, before}; }
};
Reach reach_of(Index kernel_size) { return {kernel_size / 2, (kernel_size - 1) / 2}; }

struct Span {
  Index begin, end;
  Index length() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool holds(Index place) const { return begin <= place && place < end; }
  Span widened(const Reach& reach) const { return {begin - reach.before, end + reach.after}; }
};
// The places of `a` that `b` has too; where there are none, an empty span within `a`.
Span meet(const Span& a, const Span& b) {
  const Index begin = std::clamp(b.begin, a.begin, std::max(a.begin, a.end));
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The part of a reach within which windows at `places` may find something of `there`.
Reach useful(const Reach& reach, const Span& places, const Span& there) {
  return {std::clamp<Index>(places.end - 1 - there.begin, 0, reach.before),
          std::clamp<Index>(there.end - 1 - places.begin, 0, reach.after)};
}

// ---- across channels

// Scratch of the calling thread, after what map_pixels uses.
enum ChannelSlot { kAcross = 3, kSquares, kScaled, kShared };

// Windows over the channels of pixels.
struct Channels {
  Index channels;
  Reach reach;

  Channels(Index count, Index kernel_size)
      : channels(count), reach(useful(reach_of(kernel_size), {0, count}, {0, count})) {}

  using Sum = void (*)(const float*, Index, Index, Index, Index, float*, float*);
  // `sum` over the windows of `pixels` pixels.
  void add_up(Sum sum, const float* x, Index pixels, const Reach& window, float* out) const {
    float* scratch = cpu::thread_scratch(
        kAcross, scratch_across(pixels, channels, window.before, window.taps()));
    sum(x, pixels, channels, window.before, window.taps(), scratch, out);
  }

  // Calls body(first element, pixels) for few pixels at a time, which stay in the nearest cache on
  // the way through several loops.
  template <class Body>
  void each_few(Index pixels, const Body& body) const {
    constexpr Index kFloats = 1024;
    const Index most = std::max<Index>(1, kFloats / channels);
    for (Index p = 0; p < pixels; p += most) {
      body(p * channels, std::min(most, pixels - p));
    }
  }
};

class CpuCrossChannel final : public UnaryEncoder {
 public:
  explicit CpuCrossChannel(Index kernel_size) : kernel_size_(kernel_size) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const Formula formula = formula_of(
        Kind::CrossChannel, local_normalization_settings(call.properties).parameters, kernel_size_);
    cpu::record(command_buffer, [formula, windows = Channels(call.consumed_channels, kernel_size_),
                                 source = cpu::PixelSource{cpu::view_source(call),
                                                           call.properties.offset,
                                                           call.properties.edge_mode},
                                 destination = cpu::view_destination(call), clip = call.clip] {
      const LocalNormalizationLoops& loops = local_normalization_loops();
      cpu::map_pixels({source}, destination, clip,
                      [&](const float* const* in, Results<float> out, Index pixels) {
                        windows.each_few(pixels, [&](Index at, Index few) {
                          const Index count = few * windows.channels;
                          const float* x = in[0] + at;
                          float* squares = cpu::thread_scratch(kSquares, count);
                          windows.add_up(loops.squares_across, x, few, windows.reach, squares);
                          loops.normalize(formula, x, squares, count, {out.at + at, out.streamed});
                        });
                      });
    });
  }

 private:
  Index kernel_size_;
};

class CpuCrossChannelGradient final : public GradientEncoder {
 public:
  explicit CpuCrossChannelGradient(Index kernel_size) : kernel_size_(kernel_size) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& primary = call.properties.primary;
    const SourceProperties& secondary = call.properties.secondary;
    cpu::record(
        command_buffer,
        [formula =
             formula_of(Kind::CrossChannel,
                        local_normalization_settings(call.properties).parameters, kernel_size_),
         windows = Channels(call.source_channels, kernel_size_),
         gradient = cpu::PixelSource{cpu::view_gradient(call), primary.offset, primary.edge_mode},
         source = cpu::PixelSource{cpu::view_source(call), secondary.offset, secondary.edge_mode},
         destination = cpu::view_destination(call, 1, 1), clip = call.clip] {
          const LocalNormalizationLoops& loops = local_normalization_loops();
          cpu::map_pixels({gradient, source}, destination, clip,
                          [&](const float* const* in, Results<float> out, Index pixels) {
                            windows.each_few(pixels, [&](Index at, Index few) {
                              const Index count = few * windows.channels;
                              const float* x = in[1] + at;
                              float* squares = cpu::thread_scratch(kSquares, count);
                              float* scaled = cpu::thread_scratch(kScaled, count);
                              float* shared = cpu::thread_scratch(kShared, count);
                              windows.add_up(loops.squares_across, x, few, windows.reach, squares);
                              loops.share(formula, in[0] + at, x, squares, count, scaled, shared);
                              float* totals = squares;
                              windows.add_up(loops.values_across, shared, few,
                                             windows.reach.transposed(), totals);
                              loops.collect(formula, x, scaled, totals, count,
                                            {out.at + at, out.streamed});
                            });
                          });
        });
  }

 private:
  Index kernel_size_;
};

// ---- over pixels

enum PixelSlot { kSourceRows, kSums, kTotals, kRing, kGradientRow, kPixelRow, kStoreRow, kGather };

// The channels [first, first + count) of a view.
CpuImages narrowed(const CpuImages& images, Index first, Index count) {
  CpuImages result = images;
  for (std::byte*& sample : result.samples) {
    sample += first * item_size(images.format);
  }
  result.channels = count;
  result.streamed = images.streamed && count == images.channels;  // whole pixels alone can be
  result.tail = first + count == images.channels ? images.tail : 0;
  return result;
}

// Source rows as float32 with their edges: row y is kept in place y % places until another needs
// it.
class SourceRows {
 public:
  SourceRows(const CpuImages& images, Index sample, const Span& columns, EdgeMode edge, Index most)
      : images_(images),
        sample_(sample),
        columns_(columns),
        edge_(edge),
        floats_(std::max<Index>(1, columns.length() * images.channels)),
        places_(std::clamp<Index>(kRowsFloats / floats_, 1, std::min(most, images.height))),
        memory_(cpu::thread_scratch(kSourceRows, places_ * floats_)),
        entries_(static_cast<std::size_t>(places_)) {}

  Index places() const { return places_; }
  Index floats() const { return floats_; }
  Index height() const { return images_.height; }

  const float* at(Index y) {
    Entry& entry = entries_[static_cast<std::size_t>(y % places_)];
    if (entry.y != y) {
      entry.row = cpu::load_row_with_edges(images_, sample_, y, columns_.begin, columns_.length(),
                                           edge_, memory_ + y % places_ * floats_);
      entry.y = y;
    }
    return entry.row;
  }

 private:
  struct Entry {
    Index y = -1;
    const float* row = nullptr;
  };
  const CpuImages& images_;
  Index sample_;
  Span columns_;
  EdgeMode edge_;
  Index floats_, places_;
  float* memory_;
  std::vector<Entry> entries_;
};

// Adds up neighbours along a row of `out` pixels and their reach. `outer`: taps beyond the reach,
// all of which read the first pixel, or the last.
template <class Number, class AddTaps>
void add_along(AddTaps add_taps, Number* values, const Reach& reach, const Reach& outer, Index out,
               Index channels, Number* totals) {
  std::vector<Number> edge;
  if (outer.before > 0 || outer.after > 0) {
    const Number* last = values + (reach.before + out + reach.after - 1) * channels;
    for (Index c = 0; c < channels; ++c) {
      edge.push_back(static_cast<Number>(outer.before) * values[c] +
                     static_cast<Number>(outer.after) * last[c]);
    }
  }
  add_taps(values, reach.taps(), channels, out * channels, totals);
  if (!edge.empty()) {
    for (Index i = 0; i < out * channels; ++i) {
      totals[i] += edge[static_cast<std::size_t>(i % channels)];
    }
  }
}

// Sums of squares, and for local contrast of values too, over the forward windows of a row of
// pixels at `columns`.
class ForwardSums {
 public:
  ForwardSums(Kind kind, Index kernel_size, const CpuImages& source, Index sample,
              const Span& columns, EdgeMode edge)
      : wide_(kind == Kind::LocalContrast),
        clamps_(edge == EdgeMode::Clamp),
        reach_(reach_of(kernel_size)),
        across_(useful(reach_, columns, {0, source.width})),
        columns_(columns),
        channels_(source.channels),
        row_floats_(columns.widened(across_).length() * channels_),
        read_(clamps_ ? columns.widened(across_)
                      : meet(columns.widened(across_), {0, source.width})),
        before_((read_.begin - columns.widened(across_).begin) * channels_),
        rows_(source, sample, read_, edge, kernel_size) {
    const Index floats = (wide_ ? 4 : 1) * row_floats_;
    sums_ = cpu::thread_scratch(kSums, floats);
    totals_ = cpu::thread_scratch(kTotals, floats);
  }

  // One of the two pairs is filled by `find`.
  const float* squares() const { return totals_; }
  const double* wide_sums() const { return wide(totals_); }
  const double* wide_squares() const { return wide(totals_) + row_floats_; }

  void find(Index y) {
    const Index height = read_.empty() ? 0 : rows_.height();
    const Span inside = meet({y - reach_.before, y + reach_.after + 1}, {0, height});
    begins_ = true;
    if (clamps_) {
      add_edge(0, std::clamp<Index>(reach_.before - y, 0, reach_.taps()));
    }
    std::array<const float*, kMostRows> rows{};
    const Index most = std::min(kMostRows, rows_.places());
    for (Index first = inside.begin; first < inside.end; first += most) {
      const Index count = std::min(most, inside.end - first);
      for (Index r = 0; r < count; ++r) {
        rows[static_cast<std::size_t>(r)] = rows_.at(first + r);
      }
      add(rows.data(), count, 1);
    }
    if (clamps_) {
      const Index last = rows_.height() - 1;
      add_edge(last, std::clamp<Index>(y + reach_.after - last, 0, reach_.taps()));
    }
    if (begins_) {
      add(nullptr, 0, 1);  // nothing but zeros
    }
    const LocalNormalizationLoops& loops = local_normalization_loops();
    Reach outer{0, 0};
    if (clamps_) {
      outer = {reach_.before - across_.before, reach_.after - across_.after};
    }
    const Index out = columns_.length();
    if (wide_) {
      for (const Index part : {Index{0}, row_floats_}) {
        clear_outside(wide(sums_) + part);
        add_along(loops.add_taps_wide, wide(sums_) + part, across_, outer, out, channels_,
                  wide(totals_) + part);
      }
    } else {
      clear_outside(sums_);
      add_along(loops.add_taps, sums_, across_, outer, out, channels_, totals_);
    }
  }

 private:
  static double* wide(float* memory) { return reinterpret_cast<double*>(memory); }
  static const double* wide(const float* memory) { return reinterpret_cast<const double*>(memory); }

  void add_edge(Index y, Index times) {
    if (times > 0) {
      const float* row = rows_.at(y);
      add(&row, 1, times);
    }
  }
  void add(const float* const* rows, Index count, Index times) {
    const LocalNormalizationLoops& loops = local_normalization_loops();
    const Index elements = read_.length() * channels_;
    if (wide_) {
      double* sums = wide(sums_) + before_;
      loops.add_moments(rows, count, static_cast<double>(times), begins_, elements, sums,
                        sums + row_floats_);
    } else {
      loops.add_squares(rows, count, static_cast<float>(times), begins_, elements, sums_ + before_);
    }
    begins_ = false;
  }
  // What windows reach of a row beside what is read.
  template <class Number>
  void clear_outside(Number* sums) const {
    std::fill(sums, sums + before_, Number{0});
    std::fill(sums + before_ + read_.length() * channels_, sums + row_floats_, Number{0});
  }

  bool wide_, clamps_;
  Reach reach_, across_;
  Span columns_;
  Index channels_;
  Index row_floats_;  // of what windows reach
  Span read_;         // the columns of it that are not zero
  Index before_;
  SourceRows rows_;
  float* sums_;
  float* totals_;
  bool begins_ = true;
};

// How the work is cut: by shape alone.
struct Cut {
  Index block;  // channels
  Index blocks;
  Index group;  // rows
  Index groups;

  // `rows`: those of one window that are kept, of `row_pixels` each, `fields` times.
  Cut(const CpuImages& source, const Region& clip, Index kernel_size, Index row_pixels,
      Index fields) {
    const Index rows = std::min(kernel_size, source.height + 1);
    const Index fitting = kBlockFloats / (rows * row_pixels * fields);
    block = std::min(source.channels,
                     std::max(kBlockChannels, fitting / kBlockChannels * kBlockChannels));
    blocks = cpu::chunks_of(source.channels, block);
    // Rows of windows that reach past a task are read, or made, in the next one again.
    const Index tall = std::min(4 * (kernel_size - 1), clip.size.height);
    group = std::max({Index{1}, kTaskFloats / (row_pixels * block), tall});
    groups = cpu::chunks_of(clip.size.height, group);
  }

  struct Task {
    Index sample, first_channel, channels;
    Span rows;
  };
  template <class Body>
  void run(const Region& clip, Index channels, const Body& body) const {
    cpu::parallel_for(clip.size.depth * blocks * groups, [&](Index i) {
      const Index first_channel = i / groups % blocks * block;
      const Index first_row = i % groups * group;
      body(Task{i / groups / blocks,
                first_channel,
                std::min(block, channels - first_channel),
                {first_row, std::min(clip.size.height, first_row + group)}});
    });
  }
};

struct ForwardWork {
  Kind kind;
  Index kernel_size;
  Formula formula;
  CpuImages source, destination;
  Offset offset;
  EdgeMode edge;
  Region clip;

  void run() const {
    const Cut cut(source, clip, kernel_size, clip.size.width, 1);
    cut.run(clip, source.channels, [&](const Cut::Task& task) { run_task(task); });
  }

 private:
  void run_task(const Cut::Task& task) const {
    const LocalNormalizationLoops& loops = local_normalization_loops();
    const CpuImages from = narrowed(source, task.first_channel, task.channels);
    const CpuImages to = narrowed(destination, task.first_channel, task.channels);
    const Span columns{offset.x, offset.x + clip.size.width};
    const Index count = clip.size.width * task.channels;
    ForwardSums sums(kind, kernel_size, from, task.sample, columns, edge);
    for (Index r = task.rows.begin; r < task.rows.end; ++r) {
      const Index y = offset.y + r;
      sums.find(y);
      const float* x =
          cpu::load_row_with_edges(from, task.sample, y, columns.begin, columns.length(), edge,
                                   cpu::thread_scratch(kPixelRow, count));
      const Results<float> out = cpu::begin_results(
          to, task.sample, clip.origin.y + r, clip.origin.x, cpu::thread_scratch(kStoreRow, count));
      if (kind == Kind::LocalContrast) {
        loops.contrast(formula, x, sums.wide_sums(), sums.wide_squares(), count, out);
      } else {
        loops.normalize(formula, x, sums.squares(), count, out);
      }
      cpu::finish_results(to, task.sample, clip.origin.y + r, clip.origin.x, clip.size.width, out);
    }
  }
};

// One gradient encode. Places are those of the source: the gradient of place q lies at q + shift.
struct GradientWork {
  Kind kind;
  Index kernel_size;
  Formula formula;
  CpuImages gradient, source, destination;
  Offset shift;
  Offset first;  // the place whose gradient the clip's origin receives
  Region clip;

  void run() const {
    const Index wide = clip.size.width + kernel_size - 1;
    const Cut cut(source, clip, kernel_size, std::min(wide, clip.size.width + gradient.width),
                  fields());
    cut.run(clip, source.channels, [&](const Cut::Task& task) { run_task(task); });
  }

 private:
  class Shares;
  Index fields() const { return kind == Kind::LocalContrast ? 3 : 2; }
  void run_task(const Cut::Task& task) const;
};

// What rows of places give to the pixels of their windows: every row is made once, and kept until
// the last window that reads it. Its fields: what belongs to the place alone, then what is shared.
class GradientWork::Shares {
 public:
  Shares(const GradientWork& work, const CpuImages& gradient, const CpuImages& source, Index sample,
         const Span& rows)
      : work_(work),
        gradient_(gradient),
        source_(source),
        sample_(sample),
        places_{work.first.x, work.first.x + work.clip.size.width},
        given_{-work.shift.x, gradient.width - work.shift.x},
        given_rows_{-work.shift.y, gradient.height - work.shift.y},
        reach_(reach_of(work.kernel_size).transposed()),
        across_(useful(reach_, places_, given_)),
        columns_(places_.widened(across_)),
        made_(meet(columns_, given_)),
        sums_(work.kind, work.kernel_size, source, sample, made_, EdgeMode::Zero),
        row_floats_(columns_.length() * source.channels),
        first_row_(rows.begin - reach_.before) {
    const Span needed = meet(rows.widened(reach_), given_rows_);
    kept_ = std::max<Index>(1, std::min(reach_.taps(), needed.length()));
    memory_ = cpu::thread_scratch(kRing, kept_ * work.fields() * row_floats_);
    gathered_ = cpu::thread_scratch(kGather, 3 * row_floats_);
    next_ = needed.begin;
  }

  // Makes the rows that the windows of row y read.
  void reach(Index y) {
    for (const Index end = std::min(y + reach_.after + 1, given_rows_.end); next_ < end; ++next_) {
      make(next_);
    }
  }

  // The own field of a row's places.
  const float* scaled(Index y) {
    if (given_rows_.holds(y)) {
      return field(y, 0) + across_.before * source_.channels;
    }
    std::fill_n(gathered_, places_.length() * source_.channels, 0.0F);
    return gathered_;
  }

  // A shared field summed over the windows of row y; `which` is 1 or 2.
  const float* gather(Index y, Index which) {
    const LocalNormalizationLoops& loops = local_normalization_loops();
    float* sums = cpu::thread_scratch(kPixelRow, row_floats_);
    float* totals = gathered_ + which * row_floats_;
    const Span rows = meet({y - reach_.before, y + reach_.after + 1}, given_rows_);
    std::array<const float*, kMostRows> pointers{};
    bool begins = true;
    for (Index q = rows.begin; q < rows.end; q += kMostRows) {
      const Index count = std::min(kMostRows, rows.end - q);
      for (Index r = 0; r < count; ++r) {
        pointers[static_cast<std::size_t>(r)] = field(q + r, which);
      }
      loops.add_rows(pointers.data(), count, begins, row_floats_, sums);
      begins = false;
    }
    if (begins) {
      std::fill_n(sums, row_floats_, 0.0F);
    }
    loops.add_taps(sums, across_.taps(), source_.channels, places_.length() * source_.channels,
                   totals);
    return totals;
  }

 private:
  float* field(Index y, Index which) {
    return memory_ + ((y - first_row_) % kept_ * work_.fields() + which) * row_floats_;
  }

  void make(Index y) {
    const LocalNormalizationLoops& loops = local_normalization_loops();
    if (made_.empty()) {
      std::fill_n(field(y, 0), work_.fields() * row_floats_, 0.0F);
      return;
    }
    const Index channels = source_.channels;
    const Index before = (made_.begin - columns_.begin) * channels;
    const Index count = made_.length() * channels;
    for (Index which = 0; which < work_.fields(); ++which) {
      float* row = field(y, which);
      std::fill(row, row + before, 0.0F);
      std::fill(row + before + count, row + row_floats_, 0.0F);
    }
    sums_.find(y);
    const float* g =
        cpu::load_run(gradient_, sample_, y + work_.shift.y, made_.begin + work_.shift.x,
                      made_.length(), cpu::thread_scratch(kGradientRow, count));
    const float* x =
        cpu::load_row_with_edges(source_, sample_, y, made_.begin, made_.length(), EdgeMode::Zero,
                                 cpu::thread_scratch(kPixelRow, std::max(count, row_floats_)));
    if (work_.kind == Kind::LocalContrast) {
      loops.share_contrast(work_.formula, g, x, sums_.wide_sums(), sums_.wide_squares(), count,
                           field(y, 0) + before, field(y, 1) + before, field(y, 2) + before);
    } else {
      loops.share(work_.formula, g, x, sums_.squares(), count, field(y, 0) + before,
                  field(y, 1) + before);
    }
  }

  const GradientWork& work_;
  const CpuImages& gradient_;
  const CpuImages& source_;
  Index sample_;
  Span places_, given_, given_rows_;
  Reach reach_, across_;
  Span columns_, made_;
  ForwardSums sums_;
  Index row_floats_, first_row_;
  Index kept_ = 0;
  Index next_ = 0;
  float* memory_ = nullptr;
  float* gathered_ = nullptr;
};

void GradientWork::run_task(const Cut::Task& task) const {
  const LocalNormalizationLoops& loops = local_normalization_loops();
  const CpuImages incoming = narrowed(gradient, task.first_channel, task.channels);
  const CpuImages from = narrowed(source, task.first_channel, task.channels);
  const CpuImages to = narrowed(destination, task.first_channel, task.channels);
  const Index count = clip.size.width * task.channels;
  Shares shares(*this, incoming, from, task.sample,
                {first.y + task.rows.begin, first.y + task.rows.end});
  for (Index r = task.rows.begin; r < task.rows.end; ++r) {
    const Index y = first.y + r;
    shares.reach(y);
    const float* by_value = shares.gather(y, 1);
    const float* by_mean = kind == Kind::LocalContrast ? shares.gather(y, 2) : nullptr;
    const float* scaled = shares.scaled(y);
    const float* x =
        cpu::load_row_with_edges(from, task.sample, y, first.x, clip.size.width, EdgeMode::Zero,
                                 cpu::thread_scratch(kGradientRow, count));
    const Results<float> out = cpu::begin_results(to, task.sample, clip.origin.y + r, clip.origin.x,
                                                  cpu::thread_scratch(kStoreRow, count));
    if (kind == Kind::LocalContrast) {
      loops.collect_contrast(formula, x, scaled, by_value, by_mean, count, out);
    } else {
      loops.collect(formula, x, scaled, by_value, count, out);
    }
    cpu::finish_results(to, task.sample, clip.origin.y + r, clip.origin.x, clip.size.width, out);
  }
}

class CpuLocalNormalization final : public UnaryEncoder {
 public:
  CpuLocalNormalization(Kind kind, Index kernel_size) : kind_(kind), kernel_size_(kernel_size) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer,
                [work = ForwardWork{
                     kind_, kernel_size_,
                     formula_of(kind_, local_normalization_settings(call.properties).parameters,
                                kernel_size_),
                     cpu::view_source(call), cpu::view_destination(call), call.properties.offset,
                     call.properties.edge_mode, call.clip}] { work.run(); });
  }

 private:
  Kind kind_;
  Index kernel_size_;
};

class CpuLocalNormalizationGradient final : public GradientEncoder {
 public:
  CpuLocalNormalizationGradient(Kind kind, Index kernel_size)
      : kind_(kind), kernel_size_(kernel_size) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const Offset& primary = call.properties.primary.offset;
    const Offset& secondary = call.properties.secondary.offset;
    cpu::record(command_buffer,
                [work = GradientWork{
                     kind_,
                     kernel_size_,
                     formula_of(kind_, local_normalization_settings(call.properties).parameters,
                                kernel_size_),
                     cpu::view_gradient(call),
                     cpu::view_source(call),
                     cpu::view_destination(call, 1, 1),
                     {primary.x - secondary.x, primary.y - secondary.y, 0},
                     secondary,
                     call.clip}] { work.run(); });
  }

 private:
  Kind kind_;
  Index kernel_size_;
};

class CpuLocalNormalizationBackend final : public LocalNormalizationBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, Kind kind, Index kernel_size) const override {
    if (kind == Kind::CrossChannel) {
      return std::make_unique<CpuCrossChannel>(kernel_size);
    }
    return std::make_unique<CpuLocalNormalization>(kind, kernel_size);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, Kind kind,
                                                 Index kernel_size) const override {
    if (kind == Kind::CrossChannel) {
      return std::make_unique<CpuCrossChannelGradient>(kernel_size);
    }
    return std::make_unique<CpuLocalNormalizationGradient>(kind, kernel_size);
  }
};

}  // namespace

const LocalNormalizationBackend& cpu_local_normalization() {
  static const CpuLocalNormalizationBackend backend;
  return backend;
}

}  // namespace mpsgrad
