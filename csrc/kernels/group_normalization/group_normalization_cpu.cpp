// Instance and group normalization of the CPU device. Sums run over blocks of pixels that depend on
// shape and format alone, in double, and are added in the order of the blocks; one image after the
// other, so that a small image is still in the cache when it is read again; of small images of many
// channels one slice of channels after the other.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cpu/channel_arrays.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/simd/standardize.hpp"
#include "kernels/group_normalization/group_normalization.hpp"
#include "kernels/group_normalization/group_normalization_simd.hpp"
#include "kernels/group_normalization/group_slices_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::array_of;
using cpu::ChannelArray;
using cpu::coefficient_tiles;
using cpu::CpuImages;
using cpu::Doubles;
using cpu::repeat_pixel;
using cpu::thread_doubles;
using cpu::tile_of;
using Settings = GroupNormalizationSettings;

constexpr Index kBlockFloats = 1 << 16;  // what one task reads, about or at least
constexpr Index kMostBlocks = 64;        // of an image, which have sums of their own

// Scratch of a thread; of the others two are for results and for coefficient_tiles().
enum Slot { kFirst = 0, kSecond = 1, kShift = 5, kSums = 6 };

// How the pixels of an image are cut into blocks of whole runs: by shape and format alone.
struct Blocks {
  Index row_pixels, rows, run_pixels, runs, items, group, count;
  Index scratch_pixels;  // of the longest run, if it is not read and written where it lies

  Blocks(const CpuImages& shape, bool packed, bool in_place) {
    row_pixels = packed ? shape.width * shape.height : shape.width;
    rows = packed ? 1 : shape.height;
    run_pixels = cpu::pixels_of_runs(row_pixels, shape.channels, rows * row_pixels * shape.channels,
                                     in_place);
    scratch_pixels = in_place ? 0 : run_pixels;
    runs = cpu::chunks_of(row_pixels, run_pixels);
    items = rows * runs;
    const Index item_floats = run_pixels * shape.channels;
    count = cpu::chunks_of(items, std::max(std::max<Index>(1, kBlockFloats / item_floats),
                                           cpu::chunks_of(items, kMostBlocks)));
    group = cpu::chunks_of(items, count);
  }

  // Calls visit(y, x, pixels) for the runs of a block.
  template <class Visit>
  void each_run(Index block, const Visit& visit) const {
    for (Index item = block * group; item < std::min(items, (block + 1) * group); ++item) {
      const Index x = item % runs * run_pixels;
      visit(item / runs, x, std::min(run_pixels, row_pixels - x));
    }
  }

  // `kEach` sums a channel, over the whole image: add(y, x, pixels, sums) adds to as many tiles.
  // Returns all channels of the first sum, then of the next.
  template <Index kEach, class Add>
  Doubles sum(Index channels, const Add& add) const {
    const Index tile = tile_of(channels);
    Doubles partial(count * kEach * channels);
    cpu::parallel_for(count, [&](Index block) {
      double* out = partial.data() + block * kEach * channels;
      if (tile == channels) {
        each_run(block, [&](Index y, Index x, Index pixels) { add(y, x, pixels, out); });
        return;
      }
      double* const sums = thread_doubles(kSums, kEach * tile);
      std::fill_n(sums, kEach * tile, 0.0);
      each_run(block, [&](Index y, Index x, Index pixels) { add(y, x, pixels, sums); });
      for (Index k = 0; k < kEach; ++k) {
        cpu::join_tile(sums + k * tile, channels, tile, out + k * channels);
      }
    });
    for (Index block = 1; block < count; ++block) {
      const double* from = partial.data() + block * kEach * channels;
      for (Index i = 0; i < kEach * channels; ++i) {
        partial.data()[i] += from[i];
      }
    }
    return partial;
  }
};

// Calls work(sample) for each image: in parallel where there are enough, else their blocks are.
template <class Work>
void for_images(Index images, const Blocks& blocks, const Work& work) {
  if (blocks.count == 1 || images >= 2 * cpu::thread_count()) {
    cpu::parallel_for(images, work);
    return;
  }
  for (Index sample = 0; sample < images; ++sample) {
    work(sample);
  }
}

// How the images of one encode are cut into slices of channels, whole groups, of which the
// second-level cache of a core holds all that sums read: by shape and format alone. Sums of a
// channel are the same however the channels are cut.
struct Slices {
  Index channels = 0;  // of a slice; 0: the images are better taken as a whole

  // `read`: arrays of the image's size.
  Slices(const CpuImages& source, Index groups, Index images, Index read) {
    constexpr Index kBytes = 1 << 18;
    constexpr Index kShort = 128;  // memory is slow to read in pieces of fewer channels
    constexpr Index kLeast = 64;
    constexpr Index kTasks = 16;
    const Index most = kBytes / (source.width * source.height * item_size(source.format) * read);
    const Index unit = std::lcm(source.channels / groups, Index{16});
    if (source.channels < kLeast || most < std::min(std::max(kShort, unit), source.channels)) {
      return;
    }
    const Index wanted = std::min(most, std::max(kLeast, source.channels * images / kTasks));
    const Index units = cpu::chunks_of(source.channels, unit);
    const Index count = cpu::chunks_of(units, std::max<Index>(1, wanted / unit));
    channels = std::min(source.channels, unit * cpu::chunks_of(units, count));
  }

  // Calls work(sample, first channel, channels) for every slice.
  template <class Work>
  void each(const CpuImages& source, Index images, const Work& work) const {
    const Index slices = cpu::chunks_of(source.channels, channels);
    cpu::parallel_for(images * slices, [&](Index i) {
      const Index first = i % slices * channels;
      work(i / slices, first, std::min(channels, source.channels - first));
    });
  }
};

GroupSlice slice_of(const CpuImages& source, Index channels) {
  return {source.width * source.height, source.channels, channels};
}

// An image's elements from a channel of its first pixel on, where they lie as such elements do.
template <class Element>
Element* elements_of(const CpuImages& images, Index sample, Index channel) {
  return reinterpret_cast<Element*>(images.pixel(sample, 0, 0)) + channel;
}

// What sums of some channels of one image are relative to: one of each group's own values, so that
// a mean that is large against the spread costs no digits. One tile.
const double* shift_of(const CpuImages& source, Index sample, Index group_channels, Index channel,
                       Index channels, Index tile) {
  const float* values = channel + cpu::load_run(source, sample, 0, 0, 1,
                                                cpu::thread_scratch(kFirst, source.channels));
  double* const shift = thread_doubles(kShift, tile);
  for (Index c = 0; c < channels; c += group_channels) {
    std::fill_n(shift + c, group_channels,
                std::isfinite(values[c]) ? static_cast<double>(values[c]) : 0.0);
  }
  repeat_pixel(shift, channels, tile);
  return shift;
}

// The groups of some channels, `first` among them.
ChannelGroups groups_of(const CpuImages& source, const Settings& settings, Index first,
                        Index channels, const float* gamma, const double* shift) {
  const Index each = source.channels / settings.groups;
  return {channels / each, each, static_cast<double>(source.width * source.height * each),
          gamma == nullptr ? nullptr : gamma + first, shift};
}

struct ForwardWork {
  Settings settings;
  CpuImages source, destination;
  Offset offset;
  EdgeMode edge;
  Region clip;
  ChannelArray gamma, beta;

  void run() const {
    const bool halves = is_whole() && source.has_halves() && destination.has_halves();
    const bool in_place =
        halves || (cpu::lies_as<float>(source) && cpu::lies_as<float>(destination));
    const Slices slices(source, settings.groups, clip.size.depth, 1);
    if (slices.channels > 0 && in_place && is_whole() && source.packed_rows()) {
      return slices.each(source, clip.size.depth, [&](auto... slice) {
        halves ? run_slice<Half>(slice...) : run_slice<float>(slice...);
      });
    }
    const Blocks blocks(source, source.packed_rows(), in_place);
    for_images(clip.size.depth, blocks, [&](Index sample) {
      halves ? run_image<Half>(sample, blocks) : run_image<float>(sample, blocks);
    });
  }

 private:
  // Results are those of the source's own pixels.
  bool is_whole() const {
    return offset.x == 0 && offset.y == 0 && clip.origin.x == 0 && clip.origin.y == 0 &&
           clip.size.width == source.width && clip.size.height == source.height &&
           destination.width == source.width &&
           (destination.packed_rows() || !source.packed_rows());
  }

  template <class Element>
  void run_slice(Index sample, Index first, Index channels) const {
    const auto* x = elements_of<const Element>(source, sample, first);
    const double* const shift =
        shift_of(source, sample, source.channels / settings.groups, first, channels, channels);
    const GroupSlice slice = slice_of(source, channels);
    double* const sums = thread_doubles(kSums, 2 * channels);
    group_slice_loops().of(x).moments(slice, x, shift, sums);
    const GroupNormalizationLoops& loops = group_normalization_loops();
    const ChannelGroups groups =
        groups_of(source, settings, first, channels, gamma.values(), shift);
    std::vector<GroupStatistics> statistics(static_cast<std::size_t>(groups.groups));
    loops.statistics(groups, sums, sums + channels, static_cast<double>(settings.epsilon),
                     statistics.data());
    const auto [mean, scale, offset_tile] = coefficient_tiles<3>(channels);
    loops.forward(groups, statistics.data(),
                  beta.values() == nullptr ? nullptr : beta.values() + first, mean, scale,
                  offset_tile);
    group_slice_loops().of(x).forward(
        slice, x, {elements_of<Element>(destination, sample, first), destination.streamed}, mean,
        scale, offset_tile);
  }

  template <class Element>
  void run_image(Index sample, const Blocks& blocks) const {
    const Index channels = source.channels;
    const Index tile = tile_of(channels);
    const Index scratch = blocks.scratch_pixels * channels;
    const double* const shifts =
        shift_of(source, sample, channels / settings.groups, 0, channels, tile);
    const Doubles totals =
        blocks.sum<2>(channels, [&](Index y, Index x, Index pixels, double* sums) {
          const auto* values = cpu::load_run(source, sample, y, x, pixels,
                                             cpu::scratch_of<Element>(kFirst, scratch));
          standardize_loops().of(values).moments(values, pixels * channels, shifts, sums,
                                                 sums + tile, tile, tile);
        });
    const GroupNormalizationLoops& loops = group_normalization_loops();
    const ChannelGroups groups = groups_of(source, settings, 0, channels, gamma.values(), shifts);
    std::vector<GroupStatistics> statistics(static_cast<std::size_t>(settings.groups));
    loops.statistics(groups, totals.data(), totals.data() + channels,
                     static_cast<double>(settings.epsilon), statistics.data());
    const auto tiles = coefficient_tiles<3>(tile);
    const auto [mean, scale, offset_tile] = tiles;
    loops.forward(groups, statistics.data(), beta.values(), mean, scale, offset_tile);
    for (float* coefficients : tiles) {
      repeat_pixel(coefficients, channels, tile);
    }
    const auto transform = [&, mean = mean, scale = scale, offset_tile = offset_tile](
                               const auto* x, auto out, Index pixels) {
      standardize_loops().of(x).forward(x, out, pixels * channels, mean, scale, offset_tile, tile,
                                        nullptr);
    };

    if (is_whole()) {
      cpu::parallel_for(blocks.count, [&](Index block) {
        blocks.each_run(block, [&](Index y, Index x, Index pixels) {
          const auto* values = cpu::load_run(source, sample, y, x, pixels,
                                             cpu::scratch_of<Element>(kFirst, scratch));
          const auto out = cpu::begin_results(destination, sample, y, x,
                                              cpu::scratch_of<Element>(kSecond, scratch));
          transform(values, out, pixels);
          cpu::finish_results(destination, sample, y, x, pixels, out);
        });
      });
      return;
    }
    cpu::parallel_for(clip.size.height, [&](Index row) {
      const Index width = clip.size.width;
      const Index y = clip.origin.y + row;
      const float* values =
          cpu::load_row_with_edges(source, sample, offset.y + row, offset.x, width, edge,
                                   cpu::thread_scratch(kFirst, width * channels));
      const auto out = cpu::begin_results(destination, sample, y, clip.origin.x,
                                          cpu::thread_scratch(kSecond, width * channels));
      transform(values, out, width);
      cpu::finish_results(destination, sample, y, clip.origin.x, width, out);
    });
  }
};

// What one image of a gradient encode has beside its pixels.
struct ImageArrays {
  ChannelArray gamma, gamma_sums, beta_sums;
};

struct GradientWork {
  Settings settings;
  CpuImages gradient, source, destination;
  std::vector<ImageArrays> arrays;

  void run() const {
    const bool halves = gradient.has_halves() && source.has_halves() && destination.has_halves();
    const auto is_float = [](const CpuImages& images) { return cpu::lies_as<float>(images); };
    const bool packed = source.packed_rows() && gradient.packed_rows() && destination.packed_rows();
    const bool in_place =
        halves || (is_float(gradient) && is_float(source) && is_float(destination));
    const Slices slices(source, settings.groups, source.count(), 2);
    if (slices.channels > 0 && in_place && packed) {
      return slices.each(source, source.count(), [&](auto... slice) {
        halves ? run_slice<Half>(slice...) : run_slice<float>(slice...);
      });
    }
    const Blocks blocks(source, packed, in_place);
    for_images(source.count(), blocks, [&](Index sample) {
      halves ? run_image<Half>(sample, blocks) : run_image<float>(sample, blocks);
    });
  }

 private:
  template <class Element>
  void run_slice(Index sample, Index first, Index channels) const {
    const ImageArrays& own = arrays[static_cast<std::size_t>(sample)];
    const auto* g = elements_of<const Element>(gradient, sample, first);
    const auto* x = elements_of<const Element>(source, sample, first);
    const double* const shift =
        shift_of(source, sample, source.channels / settings.groups, first, channels, channels);
    const GroupSlice slice = slice_of(source, channels);
    double* const sums = thread_doubles(kSums, 4 * channels);
    group_slice_loops().of(x).gradient_moments(slice, g, x, shift, sums);
    const GroupNormalizationLoops& loops = group_normalization_loops();
    const ChannelGroups groups =
        groups_of(source, settings, first, channels, own.gamma.values(), shift);
    std::vector<GroupStatistics> statistics(static_cast<std::size_t>(groups.groups));
    loops.statistics(groups, sums + 2 * channels, sums + 3 * channels,
                     static_cast<double>(settings.epsilon), statistics.data());
    const auto [mean, scale, constant, slope] = coefficient_tiles<4>(channels);
    loops.gradient(groups, statistics.data(), sums, sums + channels,
                   {mean, scale, constant, slope, own.beta_sums.values() + first,
                    own.gamma_sums.values() + first});
    group_slice_loops().of(x).gradient(
        slice, g, x, {elements_of<Element>(destination, sample, first), destination.streamed}, mean,
        scale, constant, slope);
  }

  template <class Element>
  void run_image(Index sample, const Blocks& blocks) const {
    const Index channels = source.channels;
    const Index scratch = blocks.scratch_pixels * channels;
    const ImageArrays& own = arrays[static_cast<std::size_t>(sample)];
    const Index group_channels = channels / settings.groups;
    const auto load = [&](const CpuImages& images, Index y, Index x, Index pixels, Slot slot) {
      return cpu::load_run(images, sample, y, x, pixels, cpu::scratch_of<Element>(slot, scratch));
    };

    // One pass for the statistics and for what the gradients need: sums of g * (x - shift) become
    // those of g * (x - mean) afterwards.
    const Index tile = tile_of(channels);
    const double* const shift = shift_of(source, sample, group_channels, 0, channels, tile);
    const Doubles totals =
        blocks.sum<4>(channels, [&](Index y, Index x, Index pixels, double* sums) {
          const auto* g = load(gradient, y, x, pixels, kFirst);
          standardize_loops().of(g).gradient_moments(g, load(source, y, x, pixels, kSecond),
                                                     pixels * channels, shift, sums, tile);
        });
    const double* const sum_g = totals.data();
    const double* const sum_gx = totals.data() + channels;
    const double* const sums = totals.data() + 2 * channels;
    const GroupNormalizationLoops& loops = group_normalization_loops();
    const ChannelGroups groups =
        groups_of(source, settings, 0, channels, own.gamma.values(), shift);
    std::vector<GroupStatistics> statistics(static_cast<std::size_t>(settings.groups));
    loops.statistics(groups, sums, sums + channels, static_cast<double>(settings.epsilon),
                     statistics.data());
    const auto tiles = coefficient_tiles<4>(tile);
    const auto [mean, scale, constant, slope] = tiles;
    loops.gradient(groups, statistics.data(), sum_g, sum_gx,
                   {mean, scale, constant, slope, own.beta_sums.values(), own.gamma_sums.values()});
    for (float* coefficients : tiles) {
      repeat_pixel(coefficients, channels, tile);
    }
    cpu::parallel_for(blocks.count, [&, mean = mean, scale = scale, constant = constant,
                                     slope = slope](Index block) {
      blocks.each_run(block, [&](Index y, Index x, Index pixels) {
        const auto* g = load(gradient, y, x, pixels, kFirst);
        const auto* values = load(source, y, x, pixels, kSecond);
        const auto out = cpu::begin_results(destination, sample, y, x,
                                            cpu::scratch_of<Element>(kSecond + 1, scratch));
        standardize_loops().of(g).gradient(g, values, out, pixels * channels, mean, scale, constant,
                                           slope, tile, nullptr);
        cpu::finish_results(destination, sample, y, x, pixels, out);
      });
    });
  }
};

class CpuGroupNormalization final : public GroupNormalizationEncoder {
 public:
  explicit CpuGroupNormalization(Device& device) : device_(device) {}

  GroupNormalizationGradientStateBase::Contents make_state(const ForwardSnapshot&,
                                                           const Settings& settings,
                                                           CommandBuffer* temporary) override {
    auto gamma = device_.make_floats(settings.channels, temporary);
    return {std::move(gamma), device_.make_floats(settings.channels, temporary), nullptr};
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call, const Settings& settings,
              const std::shared_ptr<Buffer>& gamma, const std::shared_ptr<Buffer>& beta) override {
    cpu::record(command_buffer,
                [work = ForwardWork{settings, cpu::view_source(call), cpu::view_destination(call),
                                    call.properties.offset, call.properties.edge_mode, call.clip,
                                    array_of(gamma), array_of(beta)}] { work.run(); });
  }

 private:
  Device& device_;
};

class CpuGroupNormalizationGradient final : public GradientEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    std::vector<ImageArrays> arrays;
    for (const auto& state : call.states) {
      auto& own = dynamic_cast<GroupNormalizationGradientStateBase&>(*state);
      arrays.push_back(
          {array_of(own.gamma()), array_of(own.gamma_sums()), array_of(own.beta_sums())});
    }
    const auto& first =
        dynamic_cast<const GroupNormalizationGradientStateBase&>(*call.states.front());
    cpu::record(command_buffer,
                [work = GradientWork{first.settings(), cpu::view_gradient(call),
                                     cpu::view_source(call), cpu::view_destination(call, 1, 1),
                                     std::move(arrays)}] { work.run(); });
  }
};

class CpuGroupNormalizationBackend final : public GroupNormalizationBackend {
 public:
  std::unique_ptr<GroupNormalizationEncoder> make_forward(
      Device& device, GroupNormalizationKind, const std::shared_ptr<const NormalizationPair>&,
      const Settings&) const override {
    return std::make_unique<CpuGroupNormalization>(device);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, GroupNormalizationKind) const override {
    return std::make_unique<CpuGroupNormalizationGradient>();
  }
};

}  // namespace

const GroupNormalizationBackend& cpu_group_normalization() {
  static const CpuGroupNormalizationBackend backend;
  return backend;
}

}  // namespace mpsgrad
