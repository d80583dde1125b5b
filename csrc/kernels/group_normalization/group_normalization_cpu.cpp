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
constexpr Index kLeastTiles = 16;        // of one call, so that it is worth to load their sums
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
        std::min(row_pixels, std::max(kLeastTiles, kRunFloats / tile) * (tile / shape.channels));
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

  // `kSums` sums a channel, over the whole image: add(y, x, pixels, sums) adds to as many tiles.
  // Returns all channels of the first sum, then of the next.
  template <Index kSums, class Add>
  std::vector<double> sum(Index channels, const Add& add) const {
    const Index tile = tile_of(channels);
    std::vector<double> partial(static_cast<std::size_t>(count * kSums * channels));
    cpu::parallel_for(count, [&](Index block) {
      std::vector<double> sums(static_cast<std::size_t>(kSums * tile));
      each_run(block, [&](Index y, Index x, Index pixels) { add(y, x, pixels, sums.data()); });
      double* out = partial.data() + block * kSums * channels;
      for (Index k = 0; k < kSums; ++k) {
        for (Index first = 0; first < tile; first += channels) {
          const double* from = sums.data() + k * tile + first;
          for (Index c = 0; c < channels; ++c) {
            out[k * channels + c] += from[c];
          }
        }
      }
    });
    for (Index block = 1; block < count; ++block) {
      const double* from = partial.data() + block * kSums * channels;
      for (Index i = 0; i < kSums * channels; ++i) {
        partial[static_cast<std::size_t>(i)] += from[i];
      }
    }
    partial.resize(static_cast<std::size_t>(kSums * channels));
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

// What sums of one image are relative to: one of each group's own values, so that a mean that is
// large against the spread costs no digits. One tile.
Tile<double> shift_of(const CpuImages& source, Index sample, Index group_channels) {
  const float* first =
      cpu::load_run(source, sample, 0, 0, 1, cpu::thread_scratch(kFirst, source.channels));
  Tile<double> shift(source.channels);
  double value = 0.0;
  Index next = 0;  // channel where a group begins
  shift.fill([&](Index c) {
    if (c == next) {
      value = std::isfinite(first[c]) ? static_cast<double>(first[c]) : 0.0;
      next += group_channels;
    }
    return value;
  });
  return shift;
}

// Mean and reciprocal deviation, of every channel as its group has them.
struct Statistics {
  std::vector<double> mean, r;

  // From sums of x - shift and of its squares, a channel each.
  Statistics(const CpuImages& source, const Settings& settings, const double* shift,
             const double* sums, const double* squares) {
    const Index group_channels = source.channels / settings.groups;
    const double count =
        static_cast<double>(source.width * source.height) * static_cast<double>(group_channels);
    for (Index c = 0; c < source.channels; c += group_channels) {
      const double sum = std::accumulate(sums + c, sums + c + group_channels, 0.0);
      const double square = std::accumulate(squares + c, squares + c + group_channels, 0.0);
      const double moment = (square - sum * sum / count) / count;
      const double variance = moment < 0.0 ? 0.0 : moment;  // rounding only; NaN stays
      const auto channels = static_cast<std::size_t>(group_channels);
      mean.insert(mean.end(), channels, shift[c] + sum / count);
      r.insert(r.end(), channels,
               1.0 / std::sqrt(variance + static_cast<double>(settings.epsilon)));
    }
  }
};

Statistics find_statistics(const CpuImages& source, Index sample, const Blocks& blocks,
                           const Settings& settings) {
  const StandardizeLoops& loops = standardize_loops();
  const Index channels = source.channels;
  const Tile<double> shift = shift_of(source, sample, channels / settings.groups);
  const std::vector<double> totals =
      blocks.sum<2>(channels, [&](Index y, Index x, Index pixels, double* sums) {
        const float* values = cpu::load_run(source, sample, y, x, pixels,
                                            cpu::thread_scratch(kFirst, pixels * channels));
        loops.moments(values, pixels * channels, shift.get(), sums, sums + shift.length(),
                      shift.length(), shift.length());
      });
  return {source, settings, shift.get(), totals.data(), totals.data() + channels};
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
    mean.fill([&](Index c) { return statistics.mean[static_cast<std::size_t>(c)]; });
    scale.fill(
        [&](Index c) { return gamma.at(c, 1.0) * statistics.r[static_cast<std::size_t>(c)]; });
    shift.fill([&](Index c) { return beta.at(c, 0.0); });
    const auto transform = [&](const float* x, float* out, Index pixels) {
      loops.forward(x, out, pixels * channels, mean.get(), scale.get(), shift.get(), mean.length(),
                    nullptr);
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
    const Index group_channels = channels / settings.groups;
    const auto load = [&](const CpuImages& images, Index y, Index x, Index pixels, Slot slot) {
      return cpu::load_run(images, sample, y, x, pixels,
                           cpu::thread_scratch(slot, pixels * channels));
    };

    // One pass for the statistics and for what the gradients need: sums of g * (x - shift) become
    // those of g * (x - mean) afterwards.
    const Tile<double> shifts = shift_of(source, sample, group_channels);
    const double* shift = shifts.get();
    std::vector<double> totals =
        blocks.sum<4>(channels, [&](Index y, Index x, Index pixels, double* sums) {
          const float* g = load(gradient, y, x, pixels, kFirst);
          loops.gradient_moments(g, load(source, y, x, pixels, kSecond), pixels * channels, shift,
                                 sums, shifts.length());
        });
    const double* by_beta = totals.data();
    double* by_gamma = totals.data() + channels;
    const Statistics statistics(source, settings, shift, totals.data() + 2 * channels,
                                totals.data() + 3 * channels);
    const std::vector<double>& exact_mean = statistics.mean;
    const std::vector<double>& r = statistics.r;

    // Gamma varies within a group, so it belongs inside the group's means.
    const double count =
        static_cast<double>(source.width * source.height) * static_cast<double>(group_channels);
    std::vector<double> mean_h(r.size()), mean_hx(r.size());
    for (Index first = 0; first < channels; first += group_channels) {
      double h = 0.0, hx = 0.0;
      for (Index c = first; c < first + group_channels; ++c) {
        const auto i = static_cast<std::size_t>(c);
        by_gamma[c] = r[i] * (by_gamma[c] - (exact_mean[i] - shift[c]) * by_beta[c]);
        h += own.gamma.at(c, 1.0) * by_beta[c];
        hx += own.gamma.at(c, 1.0) * by_gamma[c];
      }
      std::fill_n(mean_h.begin() + first, group_channels, h / count);
      std::fill_n(mean_hx.begin() + first, group_channels, hx / count);
    }
    Tile<float> mean(channels), scale(channels), constant(channels), slope(channels);
    mean.fill([&](Index c) { return exact_mean[static_cast<std::size_t>(c)]; });
    scale.fill([&](Index c) { return own.gamma.at(c, 1.0) * r[static_cast<std::size_t>(c)]; });
    constant.fill([&](Index c) {
      return r[static_cast<std::size_t>(c)] * mean_h[static_cast<std::size_t>(c)];
    });
    slope.fill([&](Index c) {
      return r[static_cast<std::size_t>(c)] *
             (r[static_cast<std::size_t>(c)] * mean_hx[static_cast<std::size_t>(c)]);
    });
    cpu::parallel_for(blocks.count, [&](Index block) {
      blocks.each_run(block, [&](Index y, Index x, Index pixels) {
        const float* g = load(gradient, y, x, pixels, kFirst);
        const float* values = load(source, y, x, pixels, kSecond);
        float* out = cpu::begin_store(destination, sample, y, x,
                                      cpu::thread_scratch(kSecond + 1, pixels * channels));
        loops.gradient(g, values, out, pixels * channels, mean.get(), scale.get(), constant.get(),
                       slope.get(), mean.length(), nullptr);
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
