// Instance and group normalization of the CPU device. Sums run over blocks of pixels that depend on
// the shape alone, in double, and are added in the order of the blocks; one image after the other,
// so that a small image is still in the cache when it is read again.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cpu/channel_arrays.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/simd/standardize.hpp"
#include "kernels/group_normalization/group_normalization.hpp"

namespace mpsgrad {
namespace {

using cpu::array_of;
using cpu::ChannelArray;
using cpu::CpuImages;
using cpu::tile_of;
using Settings = GroupNormalizationSettings;

constexpr Index kRunFloats = 8192;       // of one call of a loop
constexpr Index kBlockFloats = 1 << 16;  // about what one task reads
constexpr Index kMostBlocks = 64;        // of an image, which have sums of their own

enum Slot { kFirst, kSecond };  // scratch of a thread

// One value a channel, repeated to a tile.
template <class Number>
class Tile {
 public:
  explicit Tile(Index channels)
      : channels_(channels), values_(static_cast<std::size_t>(tile_of(channels))) {}

  template <class Value>
  void fill(const Value& value) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = i < static_cast<std::size_t>(channels_)
                       ? static_cast<Number>(value(static_cast<Index>(i)))
                       : values_[i - static_cast<std::size_t>(channels_)];
    }
  }
  const Number* get() const { return values_.data(); }
  Index length() const { return static_cast<Index>(values_.size()); }

 private:
  Index channels_;
  std::vector<Number> values_;
};

// How the pixels of an image are cut into blocks of whole runs: by shape alone.
struct Blocks {
  Index row_pixels, rows, run_pixels, runs, items, group, count;

  Blocks(const CpuImages& shape, bool packed) {
    row_pixels = packed ? shape.width * shape.height : shape.width;
    rows = packed ? 1 : shape.height;
    // Every run but the last of a row is a whole number of tiles.
    const Index tile = tile_of(shape.channels);
    run_pixels =
        std::min(row_pixels, std::max<Index>(1, kRunFloats / tile) * (tile / shape.channels));
    runs = cpu::chunks_of(row_pixels, run_pixels);
    items = rows * runs;
    const Index item_floats = run_pixels * shape.channels;
    group = std::max(std::max<Index>(1, kBlockFloats / item_floats),
                     cpu::chunks_of(items, kMostBlocks));
    count = cpu::chunks_of(items, group);
  }

  // Calls visit(y, x, pixels) for the runs of a block.
  template <class Visit>
  void each_run(Index block, const Visit& visit) const {
    for (Index item = block * group; item < std::min(items, (block + 1) * group); ++item) {
      const Index x = item % runs * run_pixels;
      visit(item / runs, x, std::min(run_pixels, row_pixels - x));
    }
  }

  // Two sums a channel, over the whole image: add(y, x, pixels, sums) adds to two tiles.
  template <class Add>
  std::vector<double> sum(Index channels, const Add& add) const {
    const Index tile = tile_of(channels);
    std::vector<double> partial(static_cast<std::size_t>(count * 2 * channels));
    cpu::parallel_for(count, [&](Index block) {
      std::vector<double> sums(static_cast<std::size_t>(2 * tile));
      each_run(block, [&](Index y, Index x, Index pixels) { add(y, x, pixels, sums.data()); });
      double* out = partial.data() + block * 2 * channels;
      for (Index i = 0; i < 2 * tile; ++i) {
        out[i / tile * channels + i % tile % channels] += sums[static_cast<std::size_t>(i)];
      }
    });
    std::vector<double> totals(static_cast<std::size_t>(2 * channels));
    for (std::size_t i = 0; i < partial.size(); ++i) {
      totals[i % totals.size()] += partial[i];
    }
    return totals;
  }
};

// Calls work(sample) for each image: images of one block in parallel, else their blocks are.
template <class Work>
void for_images(Index images, const Blocks& blocks, const Work& work) {
  if (blocks.count == 1) {
    cpu::parallel_for(images, work);
    return;
  }
  for (Index sample = 0; sample < images; ++sample) {
    work(sample);
  }
}

// Mean and reciprocal deviation of every group of one image.
struct Statistics {
  Index group_channels;
  std::vector<double> mean, r;

  double mean_of(Index channel) const { return mean[group_of(channel)]; }
  double r_of(Index channel) const { return r[group_of(channel)]; }
  std::size_t group_of(Index channel) const {
    return static_cast<std::size_t>(channel / group_channels);
  }
};

Statistics find_statistics(const CpuImages& source, Index sample, const Blocks& blocks,
                           const Settings& settings) {
  const StandardizeLoops& loops = standardize_loops();
  const Index channels = source.channels;
  Statistics result{channels / settings.groups, {}, {}};
  // Distances from one of the group's own values: a mean that is large against the spread costs no
  // digits.
  std::vector<double> shifts;
  const float* first =
      cpu::load_run(source, sample, 0, 0, 1, cpu::thread_scratch(kFirst, channels));
  for (Index c = 0; c < channels; c += result.group_channels) {
    shifts.push_back(std::isfinite(first[c]) ? static_cast<double>(first[c]) : 0.0);
  }
  Tile<double> shift(channels);
  shift.fill([&](Index c) { return shifts[result.group_of(c)]; });
  const std::vector<double> totals =
      blocks.sum(channels, [&](Index y, Index x, Index pixels, double* sums) {
        const float* values = cpu::load_run(source, sample, y, x, pixels,
                                            cpu::thread_scratch(kFirst, pixels * channels));
        loops.moments(values, pixels * channels, shift.get(), sums, sums + shift.length(),
                      shift.length());
      });
  const double count = static_cast<double>(source.width * source.height) *
                       static_cast<double>(result.group_channels);
  for (Index c = 0; c < channels; c += result.group_channels) {
    const auto begin = totals.begin() + c;
    const double sum = std::accumulate(begin, begin + result.group_channels, 0.0);
    const double squares =
        std::accumulate(begin + channels, begin + channels + result.group_channels, 0.0);
    const double moment = (squares - sum * sum / count) / count;
    const double variance = moment < 0.0 ? 0.0 : moment;  // rounding only; NaN stays
    result.mean.push_back(shifts[result.mean.size()] + sum / count);
    result.r.push_back(1.0 / std::sqrt(variance + static_cast<double>(settings.epsilon)));
  }
  return result;
}

struct ForwardWork {
  Settings settings;
  CpuImages source, destination;
  Offset offset;
  EdgeMode edge;
  Region clip;
  ChannelArray gamma, beta;

  void run() const {
    const Blocks blocks(source, source.packed_rows());
    for_images(clip.size.depth, blocks, [&](Index sample) { run_image(sample, blocks); });
  }

 private:
  void run_image(Index sample, const Blocks& blocks) const {
    const StandardizeLoops& loops = standardize_loops();
    const Index channels = source.channels;
    const Statistics statistics = find_statistics(source, sample, blocks, settings);
    Tile<float> mean(channels), scale(channels), shift(channels);
    mean.fill([&](Index c) { return statistics.mean_of(c); });
    scale.fill([&](Index c) { return gamma.at(c, 1.0) * statistics.r_of(c); });
    shift.fill([&](Index c) { return beta.at(c, 0.0); });
    const auto transform = [&](const float* x, float* out, Index pixels) {
      loops.forward(x, out, pixels * channels, mean.get(), scale.get(), shift.get(), mean.length());
    };

    const bool whole = offset.x == 0 && offset.y == 0 && clip.origin.x == 0 && clip.origin.y == 0 &&
                       clip.size.width == source.width && clip.size.height == source.height &&
                       destination.width == source.width &&
                       (destination.packed_rows() || !source.packed_rows());
    if (whole) {
      cpu::parallel_for(blocks.count, [&](Index block) {
        blocks.each_run(block, [&](Index y, Index x, Index pixels) {
          const float* values = cpu::load_run(source, sample, y, x, pixels,
                                              cpu::thread_scratch(kFirst, pixels * channels));
          float* out = cpu::begin_store(destination, sample, y, x,
                                        cpu::thread_scratch(kSecond, pixels * channels));
          transform(values, out, pixels);
          cpu::finish_store(destination, sample, y, x, pixels, out);
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
      float* out = cpu::begin_store(destination, sample, y, clip.origin.x,
                                    cpu::thread_scratch(kSecond, width * channels));
      transform(values, out, width);
      cpu::finish_store(destination, sample, y, clip.origin.x, width, out);
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
    const Blocks blocks(
        source, source.packed_rows() && gradient.packed_rows() && destination.packed_rows());
    for_images(source.count(), blocks, [&](Index sample) { run_image(sample, blocks); });
  }

 private:
  void run_image(Index sample, const Blocks& blocks) const {
    const StandardizeLoops& loops = standardize_loops();
    const Index channels = source.channels;
    const ImageArrays& own = arrays[static_cast<std::size_t>(sample)];
    const Statistics statistics = find_statistics(source, sample, blocks, settings);
    const auto load = [&](const CpuImages& images, Index y, Index x, Index pixels, Slot slot) {
      return cpu::load_run(images, sample, y, x, pixels,
                           cpu::thread_scratch(slot, pixels * channels));
    };

    Tile<double> exact_mean(channels), r(channels);
    exact_mean.fill([&](Index c) { return statistics.mean_of(c); });
    r.fill([&](Index c) { return statistics.r_of(c); });
    const std::vector<double> totals =
        blocks.sum(channels, [&](Index y, Index x, Index pixels, double* sums) {
          const float* g = load(gradient, y, x, pixels, kFirst);
          loops.gradient_sums(g, load(source, y, x, pixels, kSecond), pixels * channels,
                              exact_mean.get(), r.get(), sums, sums + r.length(), r.length());
        });
    const double* by_beta = totals.data();
    const double* by_gamma = by_beta + channels;

    // Gamma varies within a group, so it belongs inside the group's means.
    const double count = static_cast<double>(source.width * source.height) *
                         static_cast<double>(statistics.group_channels);
    std::vector<double> mean_h, mean_hx;
    for (Index first = 0; first < channels; first += statistics.group_channels) {
      double h = 0.0, hx = 0.0;
      for (Index c = first; c < first + statistics.group_channels; ++c) {
        h += own.gamma.at(c, 1.0) * by_beta[c];
        hx += own.gamma.at(c, 1.0) * by_gamma[c];
      }
      mean_h.push_back(h / count);
      mean_hx.push_back(hx / count);
    }
    Tile<float> mean(channels), scale(channels), constant(channels), slope(channels);
    mean.fill([&](Index c) { return statistics.mean_of(c); });
    scale.fill([&](Index c) { return own.gamma.at(c, 1.0) * statistics.r_of(c); });
    constant.fill([&](Index c) { return statistics.r_of(c) * mean_h[statistics.group_of(c)]; });
    slope.fill([&](Index c) {
      return statistics.r_of(c) * (statistics.r_of(c) * mean_hx[statistics.group_of(c)]);
    });
    cpu::parallel_for(blocks.count, [&](Index block) {
      blocks.each_run(block, [&](Index y, Index x, Index pixels) {
        const float* g = load(gradient, y, x, pixels, kFirst);
        const float* values = load(source, y, x, pixels, kSecond);
        float* out = cpu::begin_store(destination, sample, y, x,
                                      cpu::thread_scratch(kSecond + 1, pixels * channels));
        loops.gradient(g, values, out, pixels * channels, mean.get(), scale.get(), constant.get(),
                       slope.get(), mean.length());
        cpu::finish_store(destination, sample, y, x, pixels, out);
      });
    });
    for (Index c = 0; c < channels; ++c) {
      own.gamma_sums.values[c] = static_cast<float>(by_gamma[c]);
      own.beta_sums.values[c] = static_cast<float>(by_beta[c]);
    }
  }
};

class CpuGroupNormalization final : public GroupNormalizationEncoder {
 public:
  explicit CpuGroupNormalization(Device& device) : device_(device) {}

  GroupNormalizationGradientStateBase::Contents make_state(const ForwardSnapshot&,
                                                           const Settings& settings,
                                                           CommandBuffer* temporary) override {
    const std::size_t bytes = static_cast<std::size_t>(settings.channels) * sizeof(float);
    const auto buffer = [&] {
      return temporary ? device_.make_temporary_buffer(*temporary, bytes)
                       : device_.make_buffer(bytes);
    };
    auto gamma = buffer();
    return {std::move(gamma), buffer(), nullptr};
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
    cpu::record(
        command_buffer,
        [work = GradientWork{first.settings(), cpu::view_gradient(call), cpu::view_source(call),
                             cpu::view_destination(call), std::move(arrays)}] { work.run(); });
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
