// Batch normalization of the CPU device. Sums run over blocks of pixels whose number depends on the
// shape alone, in double, and are added in the order of the blocks.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <type_traits>

#include "cpu/channel_arrays.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/neuron_function.hpp"
#include "cpu/simd/standardize.hpp"
#include "kernels/batch_normalization/batch_normalization.hpp"
#include "kernels/batch_normalization/batch_normalization_simd.hpp"

namespace mpsgrad {
namespace {

using cpu::array_of;
using cpu::ChannelArray;
using cpu::coefficient_tiles;
using cpu::function_of;
using cpu::repeat_pixel;
using cpu::thread_doubles;
using cpu::tile_of;

constexpr Index kFewBlocks = 8;
constexpr Index kPartChannels = 512;
constexpr Index kPartTotals = 1024;
// Scratch beside what map_pixels() and coefficient_tiles() use.
constexpr int kScratchOfNeuron = 3;
constexpr int kScratchOfSums = 5;
constexpr int kScratchOfShifts = 6;
constexpr int kScratchOfTotals = 7;

struct Operands {
  ChannelArray gamma, beta, mean, variance;
  float epsilon;

  explicit Operands(const BatchNormalizationOperands& operands)
      : gamma(array_of(operands.gamma)),
        beta(array_of(operands.beta)),
        mean(array_of(operands.mean)),
        variance(array_of(operands.variance)),
        epsilon(operands.epsilon) {}
};

// mean, scale and offset of z = (x - mean) * scale + offset.
void fill_forward(const Operands& operands, Index channels, Index tile, float* mean, float* scale,
                  float* offset) {
  std::copy_n(operands.mean.values(), channels, mean);
  batch_normalization_loops().scales(channels, operands.gamma.values(), operands.variance.values(),
                                     operands.epsilon, scale);
  if (operands.beta.values() != nullptr) {
    std::copy_n(operands.beta.values(), channels, offset);
  } else {
    std::fill_n(offset, channels, 0.0F);
  }
  repeat_pixel(mean, channels, tile);
  repeat_pixel(scale, channels, tile);
  repeat_pixel(offset, channels, tile);
}

// ---- sums over all pixels

// A run of pixels, or some channels of each: `width` places of every tile from `first` on, which
// lie within `count` values.
struct Run {
  Index pixels, count, first, width;
};

// Calls add(inputs, run, sums) for runs of pixels of every sample, `sums` being two tiles, of which
// it adds to what the run has, and adds up what they hold: totals[0, channels) and totals[channels,
// 2 channels). Only if `divisible`, a run may be of some channels, or long. Inputs are float32, or
// all are float16 if `add` takes it.
template <class Element, std::size_t kSources, class Add>
void sum_runs(const cpu::CpuImages* const (&sources)[kSources], bool divisible, double* totals,
              const Add& add) {
  const cpu::CpuImages& shape = *sources[0];
  const Index channels = shape.channels;
  const Index tile = tile_of(channels);
  bool packed = true;
  bool in_place = true;
  for (const cpu::CpuImages* source : sources) {
    packed = packed && source->packed_rows();
    in_place = in_place && cpu::lies_as<Element>(*source);
  }
  const Index row_pixels = packed ? shape.width * shape.height : shape.width;
  const Index rows = packed ? 1 : shape.height;
  const Index image_floats = rows * row_pixels * channels;
  const Index run_pixels = cpu::pixels_of_runs(row_pixels, channels, shape.count() * image_floats,
                                               in_place && divisible);
  const Index scratch_elements = in_place ? 0 : run_pixels * channels;
  const Index runs = cpu::chunks_of(row_pixels, run_pixels);
  const Index per_sample = rows * runs;
  const Index items = shape.count() * per_sample;
  // So few blocks that their sums stay far below a tenth of the images; few of many channels are
  // worked on in parts.
  const Index wanted = std::clamp<Index>(shape.count() * rows * row_pixels / 64, 1, 128);
  const Index group = cpu::chunks_of(items, wanted);
  const Index blocks = cpu::chunks_of(items, group);
  const bool whole_tiles = tile == channels;
  const Index parts =
      divisible && in_place && whole_tiles
          ? std::clamp<Index>(channels / kPartChannels, 1, cpu::chunks_of(kFewBlocks, blocks))
          : 1;
  const Index width = cpu::chunks_of(tile, parts);
  const auto memory = cpu::MemoryPool::instance().acquire(
      static_cast<std::size_t>(blocks * 2 * channels) * sizeof(double));
  auto* const partial = reinterpret_cast<double*>(memory->data());
  cpu::parallel_for(blocks * parts, [&](Index task) {
    const Index block = task / parts;
    const Index begin = task % parts * width;
    const Index end = std::min(tile, begin + width);
    double* const out = partial + block * 2 * channels;
    double* const sums = whole_tiles ? out : thread_doubles(kScratchOfSums, 2 * tile);
    std::fill(sums + begin, sums + end, 0.0);
    std::fill(sums + tile + begin, sums + tile + end, 0.0);
    for (Index item = block * group; item < std::min(items, (block + 1) * group); ++item) {
      const Index sample = item / per_sample;
      const Index row = item % per_sample / runs;
      const Index first = item % runs * run_pixels;
      const Index pixels = std::min(run_pixels, row_pixels - first);
      const Element* inputs[kSources];
      for (std::size_t k = 0; k < kSources; ++k) {
        auto* scratch = cpu::scratch_of<Element>(static_cast<int>(k), scratch_elements);
        inputs[k] = cpu::load_run(*sources[k], sample, row, first, pixels, scratch) + begin;
      }
      add(inputs, Run{pixels, pixels * channels - (tile - (end - begin)), begin, end - begin},
          sums + begin);
    }
    for (Index half = 0; half < 2 && !whole_tiles; ++half) {
      cpu::join_tile(sums + half * tile, channels, tile, out + half * channels);
    }
  });
  cpu::parallel_for(cpu::chunks_of(2 * channels, kPartTotals), [&](Index part) {
    const Index begin = part * kPartTotals;
    const Index end = std::min(2 * channels, begin + kPartTotals);
    std::copy(partial + begin, partial + end, totals + begin);
    for (Index block = 1; block < blocks; ++block) {
      for (Index i = begin; i < end; ++i) {
        totals[i] += partial[block * 2 * channels + i];
      }
    }
  });
}

template <std::size_t kSources, class Add>
void sum_over_pixels(const cpu::CpuImages* const (&sources)[kSources], bool divisible,
                     double* totals, const Add& add) {
  const auto has_halves = [](const cpu::CpuImages* source) { return source->has_halves(); };
  if constexpr (std::is_invocable_v<Add, const Half* const*, const Run&, double*>) {
    if (std::all_of(std::begin(sources), std::end(sources), has_halves)) {
      return sum_runs<Half>(sources, divisible, totals, add);
    }
  }
  sum_runs<float>(sources, divisible, totals, add);
}

// What a state keeps beside its buffers, in double, one value a channel each: the number that sums
// are relative to, which is one of the samples, the two sums of the statistics, and those of the
// gradients.
class Accumulators final : public StatePayload {
 public:
  explicit Accumulators(Index channels)
      : values_(std::make_shared<std::vector<double>>(static_cast<std::size_t>(5 * channels))) {}
  const std::shared_ptr<std::vector<double>>& values() const { return values_; }

 private:
  std::shared_ptr<std::vector<double>> values_;
};

std::shared_ptr<std::vector<double>> accumulators_of(const BatchNormalizationState& state) {
  return dynamic_cast<const Accumulators&>(*state.payload).values();
}

class CpuStatistics final : public BatchNormalizationSumsEncoder {
 public:
  void encode(CommandBuffer& command_buffer, const BatchNormalizationSums& call,
              const BatchNormalizationOperands&) override {
    cpu::record(
        command_buffer,
        [source = cpu::view_images(call.sources, true, 0, static_cast<Index>(call.sources.size()),
                                   call.source_channel_offset, call.state.channels()),
         sums = accumulators_of(call.state), mean = array_of(call.state.batch_mean()),
         variance = array_of(call.state.batch_variance()), start = call.start,
         samples = call.samples] {
          run(source, sums->data(), mean.values(), variance.values(), start,
              static_cast<double>(samples));
        });
  }

 private:
  static void run(const cpu::CpuImages& source, double* sums, float* mean, float* variance,
                  bool start, double samples) {
    const Index channels = source.channels;
    double* shift = sums;
    double* accumulated = sums + channels;
    if (start) {
      const float* first =
          cpu::load_run(source, 0, 0, 0, 1, cpu::thread_scratch(kScratchOfNeuron, channels));
      for (Index c = 0; c < channels; ++c) {
        shift[c] = std::isfinite(first[c]) ? double{first[c]} : 0.0;
      }
      std::fill(accumulated, accumulated + 2 * channels, 0.0);
    }
    const Index tile = tile_of(channels);
    double* const shifts = thread_doubles(kScratchOfShifts, tile);
    std::copy(shift, shift + channels, shifts);
    repeat_pixel(shifts, channels, tile);
    double* const totals = thread_doubles(kScratchOfTotals, 2 * channels);
    sum_over_pixels({&source}, true, totals,
                    [&](const auto* const* in, const Run& run, double* into) {
                      standardize_loops().of(in[0]).moments(in[0], run.count, shifts + run.first,
                                                            into, into + tile, run.width, tile);
                    });
    for (Index i = 0; i < 2 * channels; ++i) {
      accumulated[i] += totals[i];
    }
    batch_normalization_loops().statistics(channels, shift, accumulated, accumulated + channels,
                                           samples, mean, variance);
  }
};

// What the kernels need of y = f(z) and g = G * f'(z). The loops know a ReLU, the one that is used
// most; of another neuron z is recomputed for one run at a time.
class FusedNeuron {
 public:
  explicit FusedNeuron(const NeuronDescriptor& neuron)
      : neuron_(std::make_shared<const NeuronDescriptor>(neuron)) {}

  bool is_none() const { return neuron_->type == NeuronType::None; }
  bool known_to_loops() const { return is_none() || relu() != nullptr; }
  const float* relu() const { return neuron_->type == NeuronType::ReLU ? &neuron_->a : nullptr; }
  std::optional<FusedReLU> relu_of(const float* mean, const float* scale,
                                   const float* offset) const {
    return relu() ? std::optional(FusedReLU{mean, scale, offset, *relu()}) : std::nullopt;
  }
  // g times the slope, and the value in place, of a neuron that the loops do not know.
  const float* gradient(const float* g, const float* x, Index pixels, Index channels, Index tile,
                        const float* mean, const float* scale, const float* offset) const {
    float* scratch = cpu::thread_scratch(kScratchOfNeuron, pixels * channels);
    standardize_loops().floats.forward(x, {scratch}, pixels * channels, mean, scale, offset, tile,
                                       nullptr);
    neuron_loops().floats.gradient(function_of(*neuron_), g, scratch, {scratch}, pixels, channels);
    return scratch;
  }
  void forward(float* y, Index pixels, Index channels) const {
    neuron_loops().floats.forward(function_of(*neuron_), y, {y}, pixels, channels);
  }

 private:
  std::shared_ptr<const NeuronDescriptor> neuron_;
};

class CpuStatisticsGradient final : public BatchNormalizationSumsEncoder {
 public:
  explicit CpuStatisticsGradient(const NeuronDescriptor& neuron) : neuron_(neuron) {}

  void encode(CommandBuffer& command_buffer, const BatchNormalizationSums& call,
              const BatchNormalizationOperands& operands) override {
    const auto view = [&](const ImageBatch::Images& images, Index channel) {
      return cpu::view_images(images, true, 0, static_cast<Index>(images.size()), channel,
                              call.state.channels());
    };
    cpu::record(
        command_buffer,
        [neuron = neuron_, gradient = view(*call.gradients, call.gradient_channel_offset),
         source = view(call.sources, call.source_channel_offset), operands = Operands(operands),
         sums = accumulators_of(call.state), gamma = array_of(call.state.gamma_sums()),
         beta = array_of(call.state.beta_sums()), start = call.start] {
          run(neuron, gradient, source, operands, sums->data() + 3 * source.channels,
              gamma.values(), beta.values(), start);
        });
  }

 private:
  static void run(const FusedNeuron& neuron, const cpu::CpuImages& gradient,
                  const cpu::CpuImages& source, const Operands& operands, double* accumulated,
                  float* gamma, float* beta, bool start) {
    const Index channels = source.channels;
    const Index tile = tile_of(channels);
    const auto tiles = coefficient_tiles<3>(tile);
    if (!neuron.is_none()) {
      fill_forward(operands, channels, tile, tiles[0], tiles[1], tiles[2]);
    }
    double* const totals = thread_doubles(kScratchOfTotals, 2 * channels);
    const auto add = [&](const auto* g, const auto* x, const Run& run, double* into) {
      const auto relu =
          neuron.relu_of(tiles[0] + run.first, tiles[1] + run.first, tiles[2] + run.first);
      standardize_loops().of(x).gradient_sums(g, x, run.count, into, into + tile, run.width, tile,
                                              relu ? &*relu : nullptr);
    };
    if (neuron.known_to_loops()) {
      sum_over_pixels({&gradient, &source}, true, totals,
                      [&](const auto* const* in, const Run& run, double* into) {
                        add(in[0], in[1], run, into);
                      });
    } else {
      sum_over_pixels({&gradient, &source}, false, totals,
                      [&](const float* const* in, const Run& run, double* into) {
                        add(neuron.gradient(in[0], in[1], run.pixels, channels, tile, tiles[0],
                                            tiles[1], tiles[2]),
                            in[1], run, into);
                      });
    }
    if (start) {
      std::fill_n(accumulated, 2 * channels, 0.0);
    }
    batch_normalization_loops().add_sums(
        channels, totals, totals + channels, operands.mean.values(), operands.variance.values(),
        operands.epsilon, accumulated, accumulated + channels, beta, gamma);
  }

  FusedNeuron neuron_;
};

// ---- element by element

class CpuBatchNormalization final : public BatchNormalizationEncoder {
 public:
  CpuBatchNormalization(Device& device, const NeuronDescriptor& neuron)
      : device_(device), neuron_(neuron) {}

  BatchNormalizationState::Contents make_state(const ForwardSnapshot& snapshot, float,
                                               CommandBuffer* temporary) override {
    const auto make = [&] { return device_.make_floats(snapshot.consumed_channels, temporary); };
    auto mean = make();
    auto variance = make();
    auto gamma = make();
    auto beta = make();
    return {std::move(mean), std::move(variance), std::move(gamma), std::move(beta),
            std::make_shared<Accumulators>(snapshot.consumed_channels)};
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call,
              const BatchNormalizationOperands& operands, BatchNormalizationState*) override {
    cpu::record(
        command_buffer, [neuron = neuron_, operands = Operands(operands),
                         source = cpu::PixelSource{cpu::view_source(call), call.properties.offset,
                                                   call.properties.edge_mode},
                         destination = cpu::view_destination(call), clip = call.clip] {
          const Index channels = destination.channels;
          const Index tile = tile_of(channels);
          const auto tiles = coefficient_tiles<3>(tile);
          fill_forward(operands, channels, tile, tiles[0], tiles[1], tiles[2]);
          const auto standardize = [&](const auto* x, auto out, Index pixels) {
            standardize_loops().of(x).forward(x, out, pixels * channels, tiles[0], tiles[1],
                                              tiles[2], tile, neuron.relu());
          };
          if (neuron.known_to_loops()) {
            cpu::map_pixels({source}, destination, clip,
                            [&]<class Element>(const Element* const* in, Results<Element> out,
                                               Index pixels) { standardize(in[0], out, pixels); });
          } else {
            cpu::map_pixels({source}, destination, clip,
                            [&](const float* const* in, float* out, Index pixels) {
                              standardize(in[0], Results<float>{out}, pixels);
                              neuron.forward(out, pixels, channels);
                            });
          }
        });
  }

 private:
  Device& device_;
  FusedNeuron neuron_;
};

class CpuBatchNormalizationGradient final : public BatchNormalizationGradientEncoder {
 public:
  explicit CpuBatchNormalizationGradient(const NeuronDescriptor& neuron) : neuron_(neuron) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call,
              const BatchNormalizationOperands& operands, BatchNormalizationState& state) override {
    cpu::record(command_buffer,
                [neuron = neuron_, operands = Operands(operands),
                 gradient = cpu::PixelSource{cpu::view_gradient(call), {}, EdgeMode::Zero},
                 source = cpu::PixelSource{cpu::view_source(call), {}, EdgeMode::Zero},
                 destination = cpu::view_destination(call, 2, 2), clip = call.clip,
                 gamma_sums = array_of(state.gamma_sums()), beta_sums = array_of(state.beta_sums()),
                 samples = static_cast<double>(state.samples())] {
                  run(neuron, operands, gradient, source, destination, clip, gamma_sums.values(),
                      beta_sums.values(), samples);
                });
  }

 private:
  static void run(const FusedNeuron& neuron, const Operands& operands,
                  const cpu::PixelSource& gradient, const cpu::PixelSource& source,
                  const cpu::CpuImages& destination, const Region& clip, const float* gamma_sums,
                  const float* beta_sums, double samples) {
    const Index channels = destination.channels;
    const Index tile = tile_of(channels);
    const auto tiles = coefficient_tiles<5>(tile);
    const auto [mean, scale, offset, constant, slope] = tiles;
    fill_forward(operands, channels, tile, mean, scale, offset);
    batch_normalization_loops().corrections(channels, operands.gamma.values(),
                                            operands.variance.values(), operands.epsilon, beta_sums,
                                            gamma_sums, samples, constant, slope);
    repeat_pixel(constant, channels, tile);
    repeat_pixel(slope, channels, tile);
    const auto relu = neuron.relu_of(mean, scale, offset);
    const auto find = [&, mean = mean, scale = scale, constant = constant, slope = slope](
                          const auto* g, const auto* x, auto out, Index pixels) {
      standardize_loops().of(x).gradient(g, x, out, pixels * channels, mean, scale, constant, slope,
                                         tile, relu ? &*relu : nullptr);
    };
    if (neuron.known_to_loops()) {
      cpu::map_pixels({gradient, source}, destination, clip,
                      [&]<class Element>(const Element* const* in, Results<Element> out,
                                         Index pixels) { find(in[0], in[1], out, pixels); });
    } else {
      cpu::map_pixels(
          {gradient, source}, destination, clip,
          [&, mean = mean, scale = scale, offset = offset](const float* const* in,
                                                           Results<float> out, Index pixels) {
            find(neuron.gradient(in[0], in[1], pixels, channels, tile, mean, scale, offset), in[1],
                 out, pixels);
          });
    }
  }

  FusedNeuron neuron_;
};

class CpuBatchNormalizationBackend final : public BatchNormalizationBackend {
 public:
  std::unique_ptr<BatchNormalizationEncoder> make_forward(
      Device& device, const BatchNormalizationArrays&, Index,
      const NeuronDescriptor& neuron) const override {
    return std::make_unique<CpuBatchNormalization>(device, neuron);
  }
  std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics(Device&) const override {
    return std::make_unique<CpuStatistics>();
  }
  std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics_gradient(
      Device&, const NeuronDescriptor& neuron) const override {
    return std::make_unique<CpuStatisticsGradient>(neuron);
  }
  std::unique_ptr<BatchNormalizationGradientEncoder> make_gradient(
      Device&, const NeuronDescriptor& neuron) const override {
    return std::make_unique<CpuBatchNormalizationGradient>(neuron);
  }
};

}  // namespace

const BatchNormalizationBackend& cpu_batch_normalization() {
  static const CpuBatchNormalizationBackend backend;
  return backend;
}

}  // namespace mpsgrad
