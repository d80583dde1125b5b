// The kernels that copy, on the CPU device. Same formats move bits, others are rounded once. Rows
// of pixels are cut where the edge mode changes what they are copies of.
#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/cpu_calls.hpp"
#include "cpu/simd/convert.hpp"
#include "kernels/reshape/reshape.hpp"
#include "kernels/reshape/reshape_simd.hpp"

namespace mpsgrad {
namespace {

constexpr Index kPiece = 2048;    // elements that are converted, or gathered, at a time
constexpr Index kTask = 1 << 15;  // elements that are worth a hand-over to another thread
constexpr int kFloats = 0, kGathered = 1, kPlace = 2;  // scratch of a thread

// Pixels some elements apart: none, or fewer than none, if one is repeated or they go backwards.
struct Pixels {
  std::byte* at;
  ChannelFormat format;
  Index stride;

  Pixels from(Index pixel) const {
    return {at + pixel * stride * item_size(format), format, stride};
  }
};

std::byte* bytes_of_scratch(int slot, Index elements) {
  return reinterpret_cast<std::byte*>(cpu::thread_scratch(slot, elements));
}

// Copies pixels of so many channels to where nothing is read from. Streamed ones lie side by side.
void copy_pixels(const Pixels& from, const Pixels& to, Index pixels, Index channels,
                 bool streamed) {
  const ConvertLoops& loops = convert_loops();
  const bool same = from.format == to.format;
  if (same && !streamed) {
    loops.copy_row(from.at, from.stride, to.at, to.stride, to.format, pixels, channels);
    return;
  }
  if (same && from.stride == channels) {
    loops.stream(from.at, to.at, pixels * channels * item_size(to.format));
    return;
  }
  const Index piece = std::max<Index>(1, kPiece / channels);
  for (Index p = 0; p < pixels; p += piece) {
    const Index some = std::min(piece, pixels - p);
    const Pixels in = from.from(p), out = to.from(p);
    const Pixels place =
        streamed ? Pixels{bytes_of_scratch(kGathered, piece * channels), to.format, channels} : out;
    if (same) {
      loops.copy_row(in.at, in.stride, place.at, place.stride, to.format, some, channels);
    } else {
      float* floats = cpu::thread_scratch(kFloats, piece * channels);
      loops.load_row(in.at, from.format, some, channels, in.stride, floats);
      loops.store_row(floats, place.at, to.format, some, channels, place.stride);
    }
    if (streamed) {
      loops.stream(place.at, out.at, some * channels * item_size(to.format));
    }
  }
}

// Calls body(item) for every item, some of which make one task, fewer where there are few in all;
// each copies about `elements`.
template <class Body>
void for_items(Index items, Index elements, const Body& body) {
  constexpr Index kFewestTasks = 64;
  const Index task = std::clamp(items * elements / kFewestTasks, kTask / 4, kTask);
  const Index group = std::max<Index>(1, task / std::max<Index>(1, elements));
  cpu::parallel_for(cpu::chunks_of(items, group), [&](Index chunk) {
    for (Index item = chunk * group; item < std::min(items, (chunk + 1) * group); ++item) {
      body(item);
    }
  });
}

// ---- reshape

// Elements of an image in order of rows, pixels and channels.
struct Flat {
  const cpu::CpuImages& images;
  Index run;  // elements that lie side by side, from every multiple of it on

  explicit Flat(const cpu::CpuImages& all)
      : images(all),
        run(all.dense_pixels() && all.packed_rows() ? all.width * all.height * all.channels
                                                    : all.channels) {}
  Index left(Index element) const { return run - element % run; }
  Pixels at(Index sample, Index element) const {
    const Index pixel = element / images.channels, channel = element % images.channels;
    return {images.pixel(sample, pixel / images.width, pixel % images.width) +
                channel * item_size(images.format),
            images.format, 1};
  }
};

void reshape(const cpu::CpuImages& source, const cpu::CpuImages& destination) {
  const Flat from(source), to(destination);
  const Index total = source.width * source.height * source.channels;
  const Index chunks = cpu::chunks_of(total, kTask);
  for_items(source.count() * chunks, std::min(total, kTask), [&](Index item) {
    const Index sample = item / chunks, first = item % chunks * kTask;
    const Index last = std::min(total, first + kTask);
    for (Index i = first; i < last;) {
      const Index some = std::min({last - i, from.left(i), to.left(i)});
      copy_pixels(from.at(sample, i), to.at(sample, i), some, 1, destination.streamed);
      i += some;
    }
  });
}

class CpuReshape final : public UnaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer,
                [source = cpu::view_source(call), destination = cpu::view_destination(call)] {
                  reshape(source, destination);
                });
  }
};

class CpuReshapeGradient final : public GradientEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    cpu::record(command_buffer, [gradient = cpu::view_gradient(call),
                                 destination = cpu::view_destination(call, 1, 0)] {
      reshape(gradient, destination);
    });
  }
};

// ---- what an edge mode makes of one axis

constexpr Index kOutside = -1;

// Positions from `first` on that are copies of `source` and of those a step apart from it.
struct Run {
  Index first, count, source, step;  // source: kOutside if they are copies of nothing
};

// What the positions from `position` on are copies of, on an axis of `length`. Without an end if
// the count is kUnlimited.
Run run_at(EdgeMode mode, Index length, Index position) {
  const bool below = position < 0;
  if (!below && position < length) {
    return {position, length - position, position, 1};
  }
  const Index beyond = below ? -position : kUnlimited;
  const bool mirrors = mode == EdgeMode::Mirror || mode == EdgeMode::MirrorWithEdge;
  if (mode == EdgeMode::Clamp || (mirrors && length == 1)) {
    return {position, beyond, below ? 0 : length - 1, 0};
  }
  if (!mirrors) {
    return {position, beyond, kOutside, 0};
  }
  // There and back: the far edge belongs to the way there, and so does the near one without it.
  const Index last = mode == EdgeMode::Mirror ? 2 * length - 2 : 2 * length - 1;
  const Index period = mode == EdgeMode::Mirror ? last : last + 1;
  const Index place = (position % period + period) % period;
  return place < length ? Run{position, length - place, place, 1}
                        : Run{position, period - place, last - place, -1};
}

// The same for `count` positions, counted from `position` on, in runs of `longest` at most.
std::vector<Run> runs_of(EdgeMode mode, Index length, Index position, Index count, Index longest) {
  std::vector<Run> runs;
  for (Index i = 0; i < count;) {
    Run run = run_at(mode, length, position + i);
    run.first = i;
    run.count = std::min({run.count, count - i, longest});
    runs.push_back(run);
    i += run.count;
  }
  return runs;
}

// ---- slice and pad

// Copies the pixels around an offset, and channels around a window of the source.
struct Copier {
  cpu::CpuImages source, destination;
  Region clip;
  Offset offset;
  EdgeMode edge;
  Index channels_before = 0;
  FillValues fill_values;  // one a channel, or one for all

  void run() const;

 private:
  struct Plan {
    std::vector<Run> columns, channels;
    std::vector<std::byte> fill;  // a pixel outside the source; empty for zeros
    bool whole_pixels = false;    // channels are copied as they lie
  };
  Plan make_plan() const;
  void fill(const Plan& plan, const Pixels& to, Index pixels, Index channel, Index channels) const;
  void copy(const Plan& plan, Index sample, Index row, const Run& run, Index first,
            const Pixels& to, Index pixels) const;
  void copy_run(const Plan& plan, Index sample, Index y, Index row, const Run& run) const;
};

Copier::Plan Copier::make_plan() const {
  Plan plan;
  const Index channels = destination.channels;
  plan.columns =
      runs_of(edge, source.width, offset.x, clip.size.width, std::max<Index>(1, kTask / channels));
  plan.channels = runs_of(edge, source.channels, -channels_before, channels, channels);
  plan.whole_pixels = plan.channels.size() == 1 && plan.channels.front().step == 1;
  if (edge == EdgeMode::Constant) {
    FillValues values = fill_values;
    values.resize(static_cast<std::size_t>(channels), fill_values.front());
    plan.fill.resize(static_cast<std::size_t>(channels * item_size(destination.format)));
    convert_loops().store_row(values.data(), plan.fill.data(), destination.format, 1, channels,
                              channels);
  }
  return plan;
}

void Copier::fill(const Plan& plan, const Pixels& to, Index pixels, Index channel,
                  Index channels) const {
  const Index skipped = channel * item_size(to.format);
  if (plan.fill.empty()) {
    convert_loops().zero_row(to.at + skipped, to.format, pixels, channels, to.stride);
  } else {
    convert_loops().copy_row(plan.fill.data() + skipped, 0, to.at + skipped, to.stride, to.format,
                             pixels, channels);
  }
}

// Pixels from the `first` one of a run on, of a row of the source.
void Copier::copy(const Plan& plan, Index sample, Index row, const Run& run, Index first,
                  const Pixels& to, Index pixels) const {
  if (row == kOutside || run.source == kOutside) {
    return fill(plan, to, pixels, 0, destination.channels);
  }
  const Pixels from{source.pixel(sample, row, run.source + first * run.step), source.format,
                    run.step * source.pixel_stride};
  for (const Run& band : plan.channels) {
    if (band.source == kOutside) {
      fill(plan, to, pixels, band.first, band.count);
      continue;
    }
    const Index together = band.step == 1 ? band.count : 1;
    for (Index k = 0; k < band.count; k += together) {
      const Pixels in{from.at + (band.source + k * band.step) * item_size(from.format), from.format,
                      from.stride};
      const Pixels out{to.at + (band.first + k) * item_size(to.format), to.format, to.stride};
      copy_pixels(in, out, pixels, together, false);
    }
  }
}

// A run of columns of a row of the clip, which is `row` of the source.
void Copier::copy_run(const Plan& plan, Index sample, Index y, Index row, const Run& run) const {
  const Index channels = destination.channels, stride = destination.pixel_stride;
  const Pixels to{destination.pixel(sample, clip.origin.y + y, clip.origin.x + run.first),
                  destination.format, stride};
  if (!destination.streamed) {
    copy(plan, sample, row, run, 0, to, run.count);
    if (destination.tail > 0) {
      convert_loops().zero_row(to.at + channels * item_size(to.format), to.format, run.count,
                               destination.tail, stride);
    }
    return;
  }
  const bool inside = row != kOutside && run.source != kOutside;
  if (inside && plan.whole_pixels) {
    const Pixels from{source.pixel(sample, row, run.source), source.format,
                      run.step * source.pixel_stride};
    copy_pixels(from, to, run.count, channels, true);
    return;
  }
  const Index piece = std::max<Index>(1, kPiece / channels);
  const Pixels place{bytes_of_scratch(kPlace, piece * channels), to.format, channels};
  for (Index p = 0; p < run.count; p += piece) {
    const Index some = std::min(piece, run.count - p);
    copy(plan, sample, row, run, p, place, some);
    convert_loops().stream(place.at, to.from(p).at, some * channels * item_size(to.format));
  }
}

void Copier::run() const {
  const Plan plan = make_plan();
  const auto columns = static_cast<Index>(plan.columns.size());
  const Index rows = clip.size.height;
  const Index row_elements = clip.size.width * destination.channels;
  const Index parts = row_elements > kTask ? columns : 1;  // of a row, each an item
  for_items(clip.size.depth * rows * parts, row_elements / parts, [&](Index item) {
    const Index sample = item / parts / rows, y = item / parts % rows;
    const Index row = run_at(edge, source.height, offset.y + y).source;
    for (Index column = item % parts; column < columns; column += parts) {
      copy_run(plan, sample, y, row, plan.columns[static_cast<std::size_t>(column)]);
    }
  });
}

Copier copier_of(const UnaryCall& call) {
  const UnaryProperties& p = call.properties;
  return {cpu::view_source(call),
          cpu::view_destination(call),
          call.clip,
          p.offset,
          p.edge_mode,
          0,
          {0.0F}};
}

class CpuSlice final : public UnaryEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer, [copier = copier_of(call)] { copier.run(); });
  }
};

class CpuPad final : public UnaryEncoder {
 public:
  explicit CpuPad(FillValues fill_values) : fill_values_(std::move(fill_values)) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const PadSettings settings = pad_settings(call.properties);
    Copier copier = copier_of(call);
    copier.channels_before = settings.before.channel;
    copier.fill_values = fill_values_.empty() ? FillValues{settings.fill_value()} : fill_values_;
    cpu::record(command_buffer, [copier = std::move(copier)] { copier.run(); });
  }

 private:
  FillValues fill_values_;
};

// ---- gradient of pad

// For every index of an axis, where the copies of it are: elements to skip, in ascending order.
class Copies {
 public:
  // `count` positions, the first of which is `first` in the gradient, and `position` to the axis.
  Copies(EdgeMode mode, Index length, Index position, Index count, Index first, Index stride)
      : starts_(static_cast<std::size_t>(length) + 1) {
    const std::vector<Run> runs = runs_of(mode, length, position, count, count);
    const auto for_copies = [&](const auto& body) {
      for (const Run& run : runs) {
        for (Index i = 0; run.source != kOutside && i < run.count; ++i) {
          body(static_cast<std::size_t>(run.source + i * run.step), first + run.first + i);
        }
      }
    };
    for_copies([&](std::size_t index, Index) { ++starts_[index + 1]; });
    for (std::size_t i = 1; i < starts_.size(); ++i) {
      starts_[i] += starts_[i - 1];
    }
    places_.resize(starts_.back());
    std::vector<std::size_t> next = starts_;
    for_copies([&](std::size_t index, Index place) { places_[next[index]++] = place * stride; });
  }

  // Of an index that may lie outside the axis, which nothing is a copy of.
  Index count(Index index) const {
    const bool inside = index >= 0 && index + 1 < std::ssize(starts_);
    return inside ? static_cast<Index>(start(index + 1) - start(index)) : 0;
  }
  const Index* of(Index index) const { return places_.data() + start(index); }

 private:
  std::size_t start(Index index) const { return starts_[static_cast<std::size_t>(index)]; }

  std::vector<std::size_t> starts_;
  std::vector<Index> places_;
};

struct Folder {
  cpu::CpuImages gradient;     // the channels that are copies of something
  cpu::CpuImages destination;  // those of the source that the forward pass read
  cpu::CpuImages all;          // of the destination
  Region clip;
  Index first_x, first_y;  // of the source: where the clip begins
  EdgeMode edge;
  Size source;               // of the forward pass
  Index origin_x, origin_y;  // in the gradient, as the two below
  Region forward;            // what the forward pass wrote
  Index channels_before;
  bool folds_channels;

  void run() const;

 private:
  // Columns of the result with equally many copies; where that is one, the copies lie side by side.
  struct Segment {
    Index first, count;
  };
  std::vector<Segment> segments_of(const Copies& columns) const;
  template <class Element>
  void fold(Index sample, const Pixels& to, Index count, const Index* rows, Index row_count,
            const Index* columns, Index column_count) const;
  void fold_slowly(Index sample, const Pixels& to, Index count, const Index* rows, Index row_count,
                   const Index* columns, Index column_count, const Copies& channels) const;
};

std::vector<Folder::Segment> Folder::segments_of(const Copies& columns) const {
  const Index longest = std::max<Index>(1, kTask / destination.channels);
  std::vector<Segment> segments;
  for (Index i = 0; i < clip.size.width; ++i) {
    const Index x = first_x + i;
    Segment* const last = segments.empty() ? nullptr : &segments.back();
    const Index copies = columns.count(x);
    const bool joins =
        last != nullptr && last->count < longest && columns.count(x - 1) == copies &&
        (copies != 1 || *columns.of(x) == *columns.of(x - 1) + gradient.pixel_stride);
    if (joins) {
      ++last->count;
    } else {
      segments.push_back({i, 1});
    }
  }
  return segments;
}

template <class Element>
void Folder::fold(Index sample, const Pixels& to, Index count, const Index* rows, Index row_count,
                  const Index* columns, Index column_count) const {
  const auto* from =
      reinterpret_cast<const Element*>(gradient.samples[static_cast<std::size_t>(sample)]);
  const auto& loops = pad_loops().of(from);
  const Index channels = destination.channels;
  // Copies side by side of whole pixels are one run of elements.
  const bool one_run =
      column_count == 1 && gradient.pixel_stride == channels && to.stride == channels;
  const Index piece = destination.streamed ? std::max<Index>(1, kPiece / channels) : count;
  for (Index p = 0; p < count; p += piece) {
    const Index some = std::min(piece, count - p);
    auto* const out = reinterpret_cast<Element*>(to.from(p).at);
    auto* const place =
        destination.streamed ? cpu::scratch_of<Element>(kPlace, piece * channels) : out;
    const Index* const of_pixels = columns + p * column_count;
    if (one_run) {
      loops.fold(from, rows, row_count, of_pixels, 1, 1, some * channels, place, 0);
    } else {
      loops.fold(from, rows, row_count, of_pixels, column_count, some, channels, place, to.stride);
    }
    if (destination.streamed) {
      convert_loops().stream(place, out, some * channels * static_cast<Index>(sizeof(Element)));
    }
  }
}

// In any format, and along the channels too.
void Folder::fold_slowly(Index sample, const Pixels& to, Index count, const Index* rows,
                         Index row_count, const Index* columns, Index column_count,
                         const Copies& channels) const {
  const Index wide = gradient.channels;
  float* total = cpu::thread_scratch(kFloats, 4 * wide);
  float* const row = total + wide;
  float* const part = row + wide;
  float* const one = part + wide;
  float* out = cpu::thread_scratch(kPlace, destination.channels);
  const auto add = [wide](float* sum, const float* more) {
    for (Index k = 0; k < wide; ++k) {
      sum[k] += more[k];
    }
  };
  for (Index i = 0; i < count; ++i) {
    // As the fast loop does. What begins a sum is put where the sum will be.
    for (Index r = 0; r < row_count; ++r) {
      float* const of_row = r == 0 ? total : row;
      for (Index c = 0; c < column_count; ++c) {
        float* const of_part = c < kPadPart ? of_row : part;
        const std::byte* pixel =
            gradient.samples[static_cast<std::size_t>(sample)] +
            (rows[r] + columns[i * column_count + c]) * item_size(gradient.format);
        const bool begins = c % kPadPart == 0;
        convert_loops().load_row(pixel, gradient.format, 1, wide, wide, begins ? of_part : one);
        if (!begins) {
          add(of_part, one);
        }
        if (of_part == part && (c % kPadPart == kPadPart - 1 || c == column_count - 1)) {
          add(of_row, part);
        }
      }
      if (r > 0) {
        add(total, row);
      }
    }
    for (Index k = 0; k < destination.channels; ++k) {
      const Index copies = channels.count(k);
      const Index* places = channels.of(k);
      float sum = copies > 0 ? total[places[0]] : 0.0F;
      for (Index j = 1; j < copies; ++j) {
        sum += total[places[j]];
      }
      out[k] = sum;
    }
    convert_loops().store_row(out, to.from(i).at, to.format, 1, destination.channels,
                              destination.channels);
  }
}

void Folder::run() const {
  const Index across = forward.origin.x - origin_x, down = forward.origin.y - origin_y;
  const Copies columns(edge, source.width, across, forward.size.width, forward.origin.x,
                       gradient.pixel_stride);
  const Copies rows(edge, source.height, down, forward.size.height, forward.origin.y,
                    gradient.row_stride);
  const Copies channels(edge, destination.channels, -channels_before, gradient.channels, 0, 1);
  const std::vector<Segment> segments = segments_of(columns);
  const bool floats = gradient.is_float() && destination.is_float();
  const bool halves =
      gradient.format == ChannelFormat::Float16 && destination.format == ChannelFormat::Float16;
  const Index height = clip.size.height, stride = destination.pixel_stride;
  for_items(clip.size.depth * height, clip.size.width * all.channels, [&](Index item) {
    const Index sample = item / height, j = item % height;
    const Index y = first_y + j;
    if (destination.channels < all.channels || all.tail > 0) {
      convert_loops().zero_row(all.pixel(sample, clip.origin.y + j, clip.origin.x), all.format,
                               clip.size.width, all.channels + all.tail, stride);
    }
    const Index row_count = rows.count(y);
    for (const Segment& segment : segments) {
      const Index x = first_x + segment.first;
      const Index column_count = columns.count(x);
      const Pixels to{destination.pixel(sample, clip.origin.y + j, clip.origin.x + segment.first),
                      destination.format, stride};
      if (row_count == 0 || column_count == 0) {
        convert_loops().zero_row(to.at, to.format, segment.count, destination.channels, stride);
      } else if (row_count == 1 && column_count == 1 && !folds_channels) {
        const Pixels from{gradient.samples[static_cast<std::size_t>(sample)] +
                              (*rows.of(y) + *columns.of(x)) * item_size(gradient.format),
                          gradient.format, gradient.pixel_stride};
        copy_pixels(from, to, segment.count, destination.channels, destination.streamed);
      } else if (floats && !folds_channels) {
        fold<float>(sample, to, segment.count, rows.of(y), row_count, columns.of(x), column_count);
      } else if (halves && !folds_channels) {
        fold<Half>(sample, to, segment.count, rows.of(y), row_count, columns.of(x), column_count);
      } else {
        fold_slowly(sample, to, segment.count, rows.of(y), row_count, columns.of(x), column_count,
                    channels);
      }
    }
  });
}

class CpuPadGradient final : public GradientEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const ForwardSnapshot& shot = call.state().snapshot();
    const PadSettings settings = pad_settings(shot.properties);
    const Index before = settings.before.channel, after = settings.after.channel;
    const EdgeMode edge = shot.properties.edge_mode;
    const bool copies_outside = edge != EdgeMode::Zero && edge != EdgeMode::Constant;
    const bool folds_channels = copies_outside && before + after > 0;
    const Index read = shot.consumed_channels;
    cpu::CpuImages gradient = cpu::view_gradient(call);
    cpu::CpuImages all = cpu::view_destination(call, 1, 0);
    all.streamed = all.streamed && read == all.channels;
    cpu::CpuImages destination = all.slice(shot.properties.source_channel_offset, read);
    destination.streamed = all.streamed;
    const Offset& origin = call.properties.primary.offset;
    const Offset& first = call.properties.secondary.offset;
    Folder folder{folds_channels ? std::move(gradient) : gradient.slice(before, read),
                  std::move(destination),
                  std::move(all),
                  call.clip,
                  first.x,
                  first.y,
                  edge,
                  {shot.source_width, shot.source_height, 1},
                  origin.x,
                  origin.y,
                  shot.clip,
                  folds_channels ? before : 0,
                  folds_channels};
    cpu::record(command_buffer, [folder = std::move(folder)] { folder.run(); });
  }
};

class CpuReshapeBackend final : public ReshapeBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_reshape(Device&) const override {
    return std::make_unique<CpuReshape>();
  }
  std::unique_ptr<GradientEncoder> make_reshape_gradient(Device&) const override {
    return std::make_unique<CpuReshapeGradient>();
  }
  std::unique_ptr<UnaryEncoder> make_slice(Device&) const override {
    return std::make_unique<CpuSlice>();
  }
  std::unique_ptr<UnaryEncoder> make_pad(Device&, const FillValues& fill_values) const override {
    return std::make_unique<CpuPad>(fill_values);
  }
  std::unique_ptr<GradientEncoder> make_pad_gradient(Device&) const override {
    return std::make_unique<CpuPadGradient>();
  }
};

}  // namespace

const ReshapeBackend& cpu_reshape() {
  static const CpuReshapeBackend backend;
  return backend;
}

}  // namespace mpsgrad
