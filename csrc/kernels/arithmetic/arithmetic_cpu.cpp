// Arithmetic kernels of the CPU device. Forward, and backward where nothing was broadcast, one pass
// over runs of elements; a broadcast source's gradient is summed in double, in an order that
// depends on shape and format alone.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "cpu/channel_arrays.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/memory.hpp"
#include "kernels/arithmetic/arithmetic.hpp"
#include "kernels/arithmetic/arithmetic_simd.hpp"

namespace mpsgrad {
namespace {

constexpr Index kRunFloats = 2048;
constexpr Index kTaskFloats = 32768;

// Roles of the calling thread's scratch arrays; readers take two each.
enum Scratch : int { kFirst = 0, kSecond = 2, kStore = 4, kTerms = 5, kSums = 6 };

// Pixels of a run: about so many floats, and whole bytes of a mask.
Index run_pixels_of(Index channels, Index floats = kRunFloats) {
  const Index step = 8 / std::gcd(channels, Index{8});
  return std::max(step, floats / channels / step * step);
}

// Pixels of a copy of one that is read for all: about so many floats that they stay in the
// first-level cache beside what goes through it, in whole lines where that is not too much.
Index repeated_pixels_of(Index channels) {
  constexpr Index kRepeatedFloats = 1024;
  constexpr Index kLineElements = 32;  // of float16
  const Index step = kLineElements / std::gcd(channels, kLineElements);
  return step * channels <= kRunFloats ? std::max(step, kRepeatedFloats / channels / step * step)
                                       : run_pixels_of(channels);
}

// ---- masks

// The masks of an encode, one behind the other: bits of the elements of an image's clipped result,
// then the byte that tells whether some are clear.
class MaskPayload final : public StatePayload {
 public:
  void assign(std::shared_ptr<cpu::Block> block, Index first_byte) {
    block_ = std::move(block);
    first_byte_ = first_byte;
  }
  void end() override { block_.reset(); }
  const std::shared_ptr<cpu::Block>& block() const { return block_; }
  std::uint8_t* data() const {
    return reinterpret_cast<std::uint8_t*>(block_->data()) + first_byte_;
  }

 private:
  std::shared_ptr<cpu::Block> block_;
  Index first_byte_ = 0;
};

MaskPayload& mask_of(const std::shared_ptr<State>& state) {
  return as<MaskPayload>(*static_cast<const ForwardState&>(*state).payload);
}

Index bytes_of_bits(const Region& clip, Index channels) {
  return (clip.size.width * clip.size.height * channels + 7) / 8;
}
// From the mask of an image to the next.
Index stride_of_masks(Index bytes) { return bytes + 1; }

// What a recorded command holds of the masks of its images.
struct Masks {
  std::vector<ClampMask> images;
  std::vector<std::shared_ptr<cpu::Block>> alive;
  ClampMask at(Index sample) const {
    return images.empty() ? ClampMask{} : images[static_cast<std::size_t>(sample)];
  }
  ClampMask& add(std::uint8_t* bits, Index bytes) {
    return images.emplace_back(ClampMask{bits, bits + bytes});
  }
};

// Fresh masks for a forward encode: a gradient encoded before this one keeps what it had.
Masks make_masks(const CommandBuffer& command_buffer, const BinaryCall& call) {
  Masks masks;
  if (call.states.empty()) {
    return masks;
  }
  const Index bytes = bytes_of_bits(call.clip, call.produced_channels);
  const Index stride = stride_of_masks(bytes);
  const auto total = static_cast<std::size_t>(stride * call.images());
  auto block = cpu::MemoryPool::instance().acquire(total);
  const bool may_be_skipped = command_buffer.predicate != nullptr;  // and then passes nothing back
  if (may_be_skipped) {
    std::memset(block->data(), 0, total);
  }
  for (Index i = 0; i < call.images(); ++i) {
    if (call.batch || i == 0) {
      const Index state = call.batch ? call.clip.origin.z + i : 0;
      mask_of(call.states[static_cast<std::size_t>(state)]).assign(block, i * stride);
    }
    auto* const first = reinterpret_cast<std::uint8_t*>(block->data()) + i * stride;
    *masks.add(first, bytes).some_clear = may_be_skipped;
  }
  masks.alive.push_back(std::move(block));
  return masks;
}

Masks find_masks(const GradientCall& call, const BinarySnapshot& shot) {
  const Index bytes = bytes_of_bits(shot.clip, shot.produced_channels);
  Masks masks;
  for (Index i = 0; i < call.images(); ++i) {
    const Index image = call.first_gradient + i;
    const MaskPayload& payload =
        mask_of(call.states[static_cast<std::size_t>(call.batch ? image : 0)]);
    const Index before = call.batch ? 0 : image - shot.clip.origin.z;
    masks.add(payload.data() + before * stride_of_masks(bytes), bytes);
    if (masks.alive.empty() || masks.alive.back() != payload.block()) {
      masks.alive.push_back(payload.block());
    }
  }
  return masks;
}

// ---- reading

// A source as pixel (x, y) of the clipped result reads it: at `offset`, plus (x, y) where it moves.
struct Operand {
  cpu::CpuImages images;  // one channel where it does not move across channels
  Offset offset;
  EdgeMode edge = EdgeMode::Zero;
  bool moves_x = true, moves_y = true, moves_channels = true;

  // Whether a flat run of so many channels a pixel is read where it lies, or is one pixel.
  template <class Element>
  bool needs_no_scratch(Index wanted_channels) const {
    return !moves_x || (cpu::lies_as<Element>(images) && images.channels == wanted_channels);
  }
  // Whether a run over rows of a result of this size reads one gapless run, or one pixel.
  bool is_flat(Index width, Index height) const {
    const bool whole = moves_x && moves_y && offset.x == 0 && offset.y == 0 &&
                       images.width == width && images.height == height && images.packed_rows();
    return whole || (!moves_x && !moves_y);
  }
  // Whether loops can take all that a result of this size reads as float16, as it lies.
  bool has_halves(Index width, Index height) const {
    const Index last_x = offset.x + (moves_x ? width - 1 : 0);
    const Index last_y = offset.y + (moves_y ? height - 1 : 0);
    return images.has_halves() && offset.x >= 0 && last_x < images.width && offset.y >= 0 &&
           last_y < images.height;
  }
};

Operand view_operand(const ImageBatch::Images& images, bool batch, Index first, Index count,
                     const SourceProperties& source, Index channels, bool moves_channels) {
  return {cpu::view_images(images, batch, first, count, source.channel_offset,
                           moves_channels ? channels : 1),
          source.offset,
          source.edge_mode,
          source.window.stride_x != 0,
          source.window.stride_y != 0,
          moves_channels};
}

// Runs of an operand as `channels` elements a pixel, for one task; `scratch_pixels` is 0 if those
// of an operand that moves need no scratch.
template <class Element>
class Reader {
 public:
  Reader(const Operand& operand, Index channels, Index scratch_pixels, bool flat, int slot)
      : operand_(operand),
        channels_(channels),
        pixels_(operand.moves_x ? scratch_pixels : repeated_pixels_of(channels)),
        flat_(flat),
        slot_(slot),
        scratch_(cpu::scratch_of<Element>(slot, pixels_ * operand.images.channels)) {}

  Cycle<Element> read(Index sample, Index y, Index x, Index pixels) {
    const Operand& o = operand_;
    const Index row = o.moves_y ? y : 0;
    const Index length = (o.moves_x ? pixels : pixels_) * channels_;
    if (!o.moves_x && held_ != nullptr && sample == sample_ && row == row_) {
      return {held_, length};
    }
    const Index count = o.moves_x ? pixels : 1;
    const Index stored = o.images.channels;
    const Element* texels =
        flat_ && o.moves_x
            ? cpu::load_run(o.images, sample, 0, x, count, scratch_)
            : cpu::load_row_with_edges(o.images, sample, o.offset.y + row,
                                       o.offset.x + (o.moves_x ? x : 0), count, o.edge, scratch_);
    if (o.moves_x && stored == channels_) {
      return {texels, length};
    }
    auto* expanded = cpu::scratch_of<Element>(slot_ + 1, pixels_ * channels_);
    const auto& loops = arithmetic_loops().of(expanded);
    if (o.moves_x) {
      loops.repeat_each(texels, pixels, channels_, expanded);
      return {expanded, length};
    }
    loops.repeat_row(texels, stored, length / stored, expanded);
    sample_ = sample;
    row_ = row;
    held_ = expanded;
    return {held_, length};
  }

 private:
  const Operand& operand_;
  Index channels_;
  Index pixels_;  // that there is scratch for
  bool flat_;
  int slot_;
  Element* scratch_;
  const Element* held_ = nullptr;  // a repeated pixel, of (sample_, row_)
  Index sample_ = 0, row_ = 0;
};

// Cuts images of rows of pixels into tasks of about kTaskFloats, by shape alone: of eight rows, or
// a multiple, so that no two write one byte of a mask, or of several runs of a single row.
class Tasks {
 public:
  // Runs are as long as tasks if they need no scratch.
  Tasks(Index samples, Index rows, Index row_pixels, Index channels, bool needs_scratch)
      : rows_(rows),
        row_pixels_(row_pixels),
        needs_scratch_(needs_scratch),
        run_(run_pixels_of(channels, needs_scratch ? kRunFloats : kTaskFloats)) {
    const Index row_floats = std::min(row_pixels, run_) * channels;
    if (rows == 1) {
      task_rows_ = 1;
      task_pixels_ = std::min(row_pixels, run_ * std::max<Index>(1, kTaskFloats / row_floats));
    } else {
      task_rows_ = std::max<Index>(1, kTaskFloats / (row_pixels * channels) / 8) * 8;
      task_pixels_ = row_pixels;
    }
    row_groups_ = cpu::chunks_of(rows, task_rows_);
    pixel_groups_ = cpu::chunks_of(row_pixels, task_pixels_);
    total_ = samples * row_groups_ * pixel_groups_;
    const Index task_floats = std::min(task_rows_, rows) * task_pixels_ * channels;
    group_ = std::max<Index>(1, kTaskFloats / task_floats);  // small images together
  }
  // Of the longest run, if it needs scratch.
  Index scratch_pixels() const { return needs_scratch_ ? std::min(run_, row_pixels_) : 0; }

  // Calls body(state, sample, row, first pixel, pixels) for every run; make() gives each task a
  // state of its own.
  template <class Make, class Body>
  void each(const Make& make, const Body& body) const {
    cpu::parallel_for(cpu::chunks_of(total_, group_), [&](Index chunk) {
      auto state = make();
      const Index end = std::min(total_, (chunk + 1) * group_);
      for (Index task = chunk * group_; task < end; ++task) {
        const Index sample = task / (row_groups_ * pixel_groups_);
        const Index rest = task % (row_groups_ * pixel_groups_);
        const Index first_row = rest / pixel_groups_ * task_rows_;
        const Index first = rest % pixel_groups_ * task_pixels_;
        const Index last = std::min(row_pixels_, first + task_pixels_);
        for (Index y = first_row; y < std::min(rows_, first_row + task_rows_); ++y) {
          for (Index x = first; x < last; x += run_) {
            body(state, sample, y, x, std::min(run_, last - x));
          }
        }
      }
    });
  }

 private:
  Index rows_, row_pixels_;
  bool needs_scratch_;
  Index run_;
  Index task_rows_ = 1, task_pixels_ = 1, row_groups_ = 1, pixel_groups_ = 1;
  Index total_ = 0, group_ = 1;
};

bool covers(const Region& clip, const cpu::CpuImages& images) {
  return clip.origin.x == 0 && clip.origin.y == 0 && clip.size.width == images.width &&
         clip.size.height == images.height && images.packed_rows();
}

// ---- forward

struct ForwardWork {
  ArithmeticFunction function;
  Operand primary, secondary;
  cpu::CpuImages destination;
  Region clip;
  Masks masks;

  void run() const {
    const Index width = clip.size.width;
    const Index height = clip.size.height;
    const bool flat = covers(clip, destination) && primary.is_flat(width, height) &&
                      secondary.is_flat(width, height);
    const bool halves = destination.has_halves() && primary.has_halves(width, height) &&
                        secondary.has_halves(width, height);
    halves ? run_tasks<Half>(flat) : run_tasks<float>(flat);
  }

 private:
  template <class Element>
  void run_tasks(bool flat) const {
    const Index channels = destination.channels;
    const Index width = clip.size.width;
    const Index height = clip.size.height;
    const bool in_place = flat && cpu::lies_as<Element>(destination) &&
                          primary.needs_no_scratch<Element>(channels) &&
                          secondary.needs_no_scratch<Element>(channels);
    const Tasks tasks(clip.size.depth, flat ? 1 : height, flat ? width * height : width, channels,
                      !in_place);
    const Index run = tasks.scratch_pixels();
    struct Scratch {
      Reader<Element> primary, secondary;
      Element* store;
    };
    tasks.each(
        [&] {
          return Scratch{{primary, channels, run, flat, kFirst},
                         {secondary, channels, run, flat, kSecond},
                         cpu::scratch_of<Element>(kStore, run * channels)};
        },
        [&](Scratch& scratch, Index sample, Index y, Index x, Index pixels) {
          const Cycle<Element> first = scratch.primary.read(sample, y, x, pixels);
          const Cycle<Element> second = scratch.secondary.read(sample, y, x, pixels);
          const Index to_y = flat ? 0 : clip.origin.y + y;
          const Index to_x = flat ? x : clip.origin.x + x;
          const auto out = cpu::begin_results(destination, sample, to_y, to_x, scratch.store);
          arithmetic_loops().of(first.at).forward(function, first, second, out, masks.at(sample),
                                                  (y * clip.size.width + x) * channels,
                                                  pixels * channels);
          cpu::finish_results(destination, sample, to_y, to_x, pixels, out);
        });
  }
};

class CpuArithmetic final : public BinaryEncoder {
 public:
  explicit CpuArithmetic(ArithmeticKind kind) : kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const BinaryProperties& p = call.properties;
    const ArithmeticSettings& settings = arithmetic_settings(p);
    ArithmeticFunction f;
    f.kind = kind_;
    f.comparison = settings.comparison;
    f.a = settings.primary_scale;
    f.b = settings.secondary_scale;
    f.bias = settings.bias;
    f.minimum = settings.minimum_value;
    f.maximum = settings.maximum_value;
    f.threshold = settings.threshold;
    ForwardWork work{
        f,
        view_operand(call.primaries, call.batch, call.first_primary, call.images(), p.primary,
                     call.produced_channels, moves_across_channels(p, false)),
        view_operand(call.secondaries, call.batch, call.first_secondary, call.images(), p.secondary,
                     call.produced_channels, moves_across_channels(p, true)),
        cpu::view_destination(call.destinations, call.batch, call.clip,
                              p.destination_channel_offset, call.produced_channels),
        call.clip,
        {}};
    work.masks = make_masks(command_buffer, call);
    cpu::record(command_buffer, [work = std::move(work)] { work.run(); });
  }

  std::shared_ptr<StatePayload> make_payload(const BinarySnapshot&) override {
    return std::make_shared<MaskPayload>();
  }

 private:
  ArithmeticKind kind_;
};

// ---- gradient

struct Range {
  Index begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  Index size() const { return std::max<Index>(0, end - begin); }
};

// One axis of the source that is differentiated by: which positions of the clipped forward result
// have read an element.
struct Axis {
  Index length = 1;   // of the source
  Index results = 1;  // of the clipped forward result
  Index offset = 0;
  bool moves = true;
  bool clamps = false;

  Index target(Index position) const { return offset + (moves ? position : 0); }
  Range readers(Index element) const {
    if (element >= length) {
      return {};
    }
    const bool from_before = clamps && element == 0;
    const bool from_behind = clamps && element == length - 1;
    if (!moves) {
      const bool read =
          (from_before && offset < 0) || (from_behind && offset >= length) || offset == element;
      return read ? Range{0, results} : Range{};
    }
    return {std::max<Index>(0, from_before ? 0 : element - offset),
            std::min(results, from_behind ? results : element - offset + 1)};
  }
  // Whether every element has been read once at most.
  bool is_simple() const { return moves && !(clamps && (offset < 0 || offset + results > length)); }
};

struct GradientWork {
  float a, b;
  bool multiplies;
  Operand gradient;  // as pixel (x, y) of the clipped forward result reads it
  Operand other;     // of products
  Masks masks;
  Axis across, down;
  bool moves_channels;
  Index channels;  // of the forward result
  cpu::CpuImages destination;
  Region clip;

  // Terms of a run of the clipped forward result, for one task.
  template <class Element>
  class Terms {
   public:
    Terms(const GradientWork& work, Index scratch_pixels, bool flat)
        : work_(work),
          incoming_(work.gradient, work.channels, scratch_pixels, flat, kFirst),
          other_(work.other, work.channels, scratch_pixels, flat, kSecond),
          run_(scratch_pixels) {}
    void make(Index sample, Index y, Index x, Index pixels, Results<Element> out) {
      const Element* g = incoming_.read(sample, y, x, pixels).at;
      arithmetic_loops().of(g).gradient(work_.a, work_.b, g, factors(sample, y, x, pixels),
                                        work_.masks.at(sample), first_bit(y, x), out,
                                        pixels * work_.channels);
    }
    // Adds them to the sums of one pixel.
    void add(Index sample, Index y, Index x, Index pixels, double* sums) {
      const Element* g = incoming_.read(sample, y, x, pixels).at;
      const Cycle<Element> other = factors(sample, y, x, pixels);
      const Index narrow = work_.sum_channels();
      const Index count = pixels * work_.channels;
      const Index most = other.at == nullptr ? count : std::min(count, other.length);
      for (Index i = 0; i < count; i += most) {
        arithmetic_loops().of(g).gradient_pixels(work_.a, work_.b, g + i, other.at,
                                                 work_.masks.at(sample), first_bit(y, x) + i, sums,
                                                 std::min(most, count - i) / narrow, narrow);
      }
    }
    const float* make(Index sample, Index y, Index x, Index pixels) {
      float* out = cpu::thread_scratch(kTerms, run_ * work_.channels);
      make(sample, y, x, pixels, {out});
      return out;
    }

   private:
    // What the gradient is multiplied by: nothing of a sum.
    Cycle<Element> factors(Index sample, Index y, Index x, Index pixels) {
      return work_.multiplies ? other_.read(sample, y, x, pixels) : Cycle<Element>{};
    }
    Index first_bit(Index y, Index x) const {
      return (y * work_.across.results + x) * work_.channels;
    }

    const GradientWork& work_;
    Reader<Element> incoming_, other_;
    Index run_;
  };

  void run() const {
    const bool halves = gradient.has_halves(across.results, down.results) &&
                        (!multiplies || other.has_halves(across.results, down.results));
    if (across.is_simple() && down.is_simple() && moves_channels) {
      (halves && destination.has_halves()) ? run_plain<Half>() : run_plain<float>();
    } else if (across.moves) {
      run_columns();
    } else if (down.moves) {
      halves ? run_rows<Half>() : run_rows<float>();
    } else {
      halves ? run_whole<Half>() : run_whole<float>();
    }
  }

  Index sum_channels() const { return moves_channels ? channels : 1; }

  // Writes `pixels` pixels from sums, one a channel that moves, else one a pixel.
  void put(const double* sums, Index sample, Index y, Index x, Index pixels) const {
    const Index wide = destination.channels;
    const Index narrow = sum_channels();
    float* out = cpu::begin_store(destination, sample, clip.origin.y + y, clip.origin.x + x,
                                  cpu::thread_scratch(kStore, pixels * wide));
    for (Index p = 0; p < pixels; ++p) {
      for (Index c = 0; c < narrow; ++c) {
        out[p * wide + c] = static_cast<float>(sums[p * narrow + c]);
      }
      std::fill(out + p * wide + narrow, out + (p + 1) * wide, 0.0F);
    }
    cpu::finish_store(destination, sample, clip.origin.y + y, clip.origin.x + x, pixels, out);
  }

  void put_zeros(Index sample, Index y, Index first, Index last) const {
    const Index run = run_pixels_of(destination.channels);
    for (Index x = first; x < last; x += run) {
      const Index pixels = std::min(run, last - x);
      const Index floats = pixels * destination.channels;
      float* out = cpu::begin_store(destination, sample, clip.origin.y + y, clip.origin.x + x,
                                    cpu::thread_scratch(kStore, floats));
      std::fill_n(out, floats, 0.0F);
      cpu::finish_store(destination, sample, clip.origin.y + y, clip.origin.x + x, pixels, out);
    }
  }

  // Nothing was broadcast: every term goes where its element lies.
  template <class Element>
  void run_plain() const {
    const Index width = clip.size.width;
    const Index height = clip.size.height;
    const bool aligned = across.offset == 0 && down.offset == 0 && across.results == width &&
                         down.results == height && across.length == width && down.length == height;
    const bool flat = aligned && covers(clip, destination) && gradient.is_flat(width, height) &&
                      (!multiplies || other.is_flat(width, height));
    const bool in_place = flat && cpu::lies_as<Element>(destination) &&
                          gradient.needs_no_scratch<Element>(channels) &&
                          (!multiplies || other.needs_no_scratch<Element>(channels));
    const Tasks tasks(clip.size.depth, flat ? 1 : height, flat ? width * height : width, channels,
                      !in_place);
    const Index run = tasks.scratch_pixels();
    tasks.each(
        [&] { return Terms<Element>(*this, run, flat); },
        [&](Terms<Element>& terms, Index sample, Index y, Index x, Index pixels) {
          const Range rows = flat ? Range{0, 1} : down.readers(y);
          const Index first = flat ? x : std::clamp(across.offset, x, x + pixels);
          const Index last =
              flat ? x + pixels
                   : std::clamp(std::min(across.offset + across.results, across.length), first,
                                x + pixels);
          if (rows.empty() || first >= last) {
            return put_zeros(sample, y, x, x + pixels);
          }
          put_zeros(sample, y, x, first);
          const Index to_y = flat ? 0 : clip.origin.y + y;
          const Index to_x = flat ? first : clip.origin.x + first;
          const auto out = cpu::begin_results(destination, sample, to_y, to_x,
                                              cpu::scratch_of<Element>(kStore, run * channels));
          terms.make(sample, rows.begin, flat ? first : first - across.offset, last - first, out);
          cpu::finish_results(destination, sample, to_y, to_x, last - first, out);
          put_zeros(sample, y, last, x + pixels);
        });
  }

  // Adds a run of terms to the sums of columns [first, ...) of the source.
  void add_columns(const float* terms, Index x, Index pixels, Index first, double* sums) const {
    const ArithmeticLoops& loops = arithmetic_loops();
    const Index narrow = sum_channels();
    const auto edge = [&](const float* from, Index count, Index column) {
      double* to = sums + (column - first) * narrow;
      if (moves_channels) {
        loops.add_pixels(from, to, count, channels);
      } else {
        loops.add_pixels(from, to, count * channels, 1);
      }
    };
    const Index before = std::clamp<Index>(-across.target(x), 0, pixels);
    const Index behind = std::clamp<Index>(across.target(x) + pixels - across.length, 0, pixels);
    const Index within = pixels - before - behind;
    if (before > 0) {
      edge(terms, before, 0);
    }
    if (within > 0) {
      double* to = sums + (across.target(x + before) - first) * narrow;
      if (moves_channels) {
        loops.add(terms + before * channels, to, within * channels);
      } else {
        loops.add_channels(terms + before * channels, to, within, channels);
      }
    }
    if (behind > 0) {
      edge(terms + (pixels - behind) * channels, behind, across.length - 1);
    }
  }

  // Rows, channels or edges are summed, columns are not.
  void run_columns() const {
    const Index run = run_pixels_of(std::max(channels, destination.channels));
    const Index width = clip.size.width;
    const Index segments = cpu::chunks_of(width, run);
    cpu::parallel_for(clip.size.depth * clip.size.height * segments, [&](Index task) {
      const Index sample = task / (clip.size.height * segments);
      const Index y = task / segments % clip.size.height;
      const Index first = task % segments * run;
      const Index pixels = std::min(run, width - first);
      const Index there = std::clamp<Index>(across.length - first, 0, pixels);
      const Range rows = down.readers(y);
      const Range columns =
          there > 0 ? Range{across.readers(first).begin, across.readers(first + there - 1).end}
                    : Range{};
      if (rows.empty() || columns.empty()) {
        return put_zeros(sample, y, first, first + pixels);
      }
      const Index count = there * sum_channels();
      auto* sums = reinterpret_cast<double*>(cpu::thread_scratch(kSums, 2 * count));
      std::fill_n(sums, count, 0.0);
      Terms<float> terms(*this, run, false);
      for (Index j = rows.begin; j < rows.end; ++j) {
        for (Index i = columns.begin; i < columns.end; i += run) {
          const Index some = std::min(run, columns.end - i);
          add_columns(terms.make(sample, j, i, some), i, some, first, sums);
        }
      }
      put(sums, sample, y, first, there);
      put_zeros(sample, y, first + there, first + pixels);
    });
  }

  // Adds the runs [begin, end) of an image, counted row by row, to one pixel's sums.
  template <class Element>
  void add_runs(Terms<Element>& terms, Index sample, Index row_pixels, Index run, Index begin,
                Index end, double* sums) const {
    const Index row_runs = cpu::chunks_of(row_pixels, run);
    for (Index i = begin; i < end; ++i) {
      const Index x = i % row_runs * run;
      const Index pixels = std::min(run, row_pixels - x);
      terms.add(sample, i / row_runs, x, pixels, sums);
    }
  }

  // The column that all of a row goes to; `width` of the clip if there is none.
  Index only_column() const {
    const Index column = std::clamp<Index>(across.offset, 0, across.length - 1);
    const bool read = !across.readers(column).empty() && column < clip.size.width;
    return read ? column : clip.size.width;
  }

  void put_row(const double* sums, Index sample, Index y, Index column) const {
    put_zeros(sample, y, 0, column);
    if (column < clip.size.width) {
      put(sums, sample, y, column, 1);
      put_zeros(sample, y, column + 1, clip.size.width);
    }
  }

  // Every row is summed to one pixel.
  template <class Element>
  void run_rows() const {
    const Index run = run_pixels_of(channels);
    const Index row_runs = cpu::chunks_of(across.results, run);
    const Index column = only_column();
    const Index group = std::max<Index>(1, kTaskFloats / (across.results * channels));
    const Index groups = cpu::chunks_of(clip.size.height, group);
    cpu::parallel_for(clip.size.depth * groups, [&](Index task) {
      const Index sample = task / groups;
      const Index first = task % groups * group;
      Terms<Element> terms(*this, run, false);
      auto* sums = reinterpret_cast<double*>(cpu::thread_scratch(kSums, 2 * sum_channels()));
      for (Index y = first; y < std::min(clip.size.height, first + group); ++y) {
        const Range rows = down.readers(y);
        if (rows.empty()) {
          put_zeros(sample, y, 0, clip.size.width);
          continue;
        }
        std::fill_n(sums, sum_channels(), 0.0);
        add_runs(terms, sample, across.results, run, rows.begin * row_runs, rows.end * row_runs,
                 sums);
        put_row(sums, sample, y, column);
      }
    });
  }

  // Every image is summed to one pixel: parts of it at the same time, then the parts in order.
  template <class Element>
  void run_whole() const {
    const bool flat = gradient.is_flat(across.results, down.results) &&
                      (!multiplies || other.is_flat(across.results, down.results));
    const Index row_pixels = flat ? across.results * down.results : across.results;
    const bool in_place = flat && gradient.needs_no_scratch<Element>(channels) &&
                          (!multiplies || other.needs_no_scratch<Element>(channels));
    const Index run = cpu::pixels_of_runs(row_pixels, channels, row_pixels * channels, in_place);
    const Index row_runs = cpu::chunks_of(row_pixels, run);
    const Index runs = (flat ? 1 : down.results) * row_runs;
    const Index part_runs = std::max<Index>(1, kTaskFloats / (run * channels));
    const Index parts = cpu::chunks_of(runs, part_runs);
    const Index narrow = sum_channels();
    const cpu::Doubles sums(clip.size.depth * parts * narrow);
    cpu::parallel_for(clip.size.depth * parts, [&](Index task) {
      const Index begin = task % parts * part_runs;
      Terms<Element> terms(*this, in_place ? 0 : run, flat);
      add_runs(terms, task / parts, row_pixels, run, begin, std::min(runs, begin + part_runs),
               sums.data() + task * narrow);
    });
    const Index column = only_column();
    cpu::parallel_for(clip.size.depth, [&](Index sample) {
      double* total = sums.data() + sample * parts * narrow;
      for (Index part = 1; part < parts; ++part) {
        for (Index i = 0; i < narrow; ++i) {
          total[i] += total[part * narrow + i];
        }
      }
      for (Index y = 0; y < clip.size.height; ++y) {
        if (down.readers(y).empty()) {
          put_zeros(sample, y, 0, clip.size.width);
        } else {
          put_row(total, sample, y, column);
        }
      }
    });
  }
};

class CpuArithmeticGradient final : public GradientEncoder {
 public:
  CpuArithmeticGradient(ArithmeticKind kind, bool secondary)
      : multiplies_(kind == ArithmeticKind::Multiply), secondary_(secondary) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const BinaryProperties& p = call.properties;
    const BinarySnapshot& shot =
        static_cast<const BinaryGradientState&>(*call.states.front()).snapshot();
    const SourceProperties& forward = shot.properties.source(secondary_);
    const BinarySnapshot::Source& source = shot.source(secondary_);
    const bool clamps = forward.edge_mode == EdgeMode::Clamp;
    GradientWork work{arithmetic_settings(p).primary_scale,
                      arithmetic_settings(p).secondary_scale,
                      multiplies_,
                      view_operand(call.gradients, call.batch, call.first_gradient, call.images(),
                                   p.primary, call.gradient_channels, true),
                      {},
                      find_masks(call, shot),
                      {source.width, shot.clip.size.width, forward.offset.x,
                       forward.window.stride_x != 0, clamps},
                      {source.height, shot.clip.size.height, forward.offset.y,
                       forward.window.stride_y != 0, clamps},
                      moves_across_channels(shot.properties, secondary_),
                      shot.produced_channels,
                      cpu::view_destination(call, 1, 0),
                      call.clip};
    if (multiplies_) {
      work.other =
          view_operand(call.sources, call.batch, call.first_source, call.images(), p.secondary,
                       shot.produced_channels, moves_across_channels(p, true));
    }
    cpu::record(command_buffer, [work = std::move(work)] { work.run(); });
  }

 private:
  bool multiplies_;
  bool secondary_;
};

class CpuArithmeticBackend final : public ArithmeticBackend {
 public:
  std::unique_ptr<BinaryEncoder> make_forward(Device&, ArithmeticKind kind) const override {
    return std::make_unique<CpuArithmetic>(kind);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, ArithmeticKind kind,
                                                 bool secondary) const override {
    return std::make_unique<CpuArithmeticGradient>(kind, secondary);
  }
};

}  // namespace

const ArithmeticBackend& cpu_arithmetic() {
  static const CpuArithmeticBackend backend;
  return backend;
}

}  // namespace mpsgrad
