// Convolution kernels of the CPU device: from images and states to the engine's geometry and
// pointers.
#include <cstring>
#include <mutex>

#include "cpu/cpu_buffer.hpp"
#include "cpu/cpu_calls.hpp"
#include "cpu/neuron_function.hpp"
#include "cpu/simd/convert.hpp"
#include "kernels/convolution/convolution.hpp"
#include "kernels/convolution/convolution_engine.hpp"
#include "kernels/convolution/convolution_transpose.hpp"

namespace mpsgrad {
namespace {

using cpu::Block;
using cpu::ConvolutionGeometry;
using cpu::ConvolutionImages;
using cpu::ConvolutionWeights;
using cpu::CpuImages;
using cpu::function_of;

// The weights that commands find when their turn comes. A reload from a data source makes a new
// slot, so that work encoded before keeps the old one; a reload on a command buffer changes the
// slot's contents in its turn.
class WeightSlot {
 public:
  struct Contents {
    std::shared_ptr<const ConvolutionWeights> weights;
    std::shared_ptr<const Block> biases;
    const float* bias() const { return reinterpret_cast<const float*>(biases->data()); }
  };

  Contents get() const {
    const std::lock_guard lock(mutex_);
    return contents_;
  }
  void set(Contents contents) {
    const std::lock_guard lock(mutex_);
    contents_ = std::move(contents);
  }

 private:
  mutable std::mutex mutex_;
  Contents contents_;
};

std::shared_ptr<Block> float_block(std::size_t count) {
  return cpu::MemoryPool::instance().acquire(count * sizeof(float));
}

std::shared_ptr<Block> copy_block(const float* values, std::size_t count) {
  auto block = float_block(count);
  std::memcpy(block->data(), values, count * sizeof(float));
  return block;
}

std::shared_ptr<const ConvolutionWeights> weights_over(std::shared_ptr<Block> block) {
  const auto* values = reinterpret_cast<const float*>(block->data());
  return std::make_shared<const ConvolutionWeights>(values, std::move(block));
}

// float32 to the nearest float16 and back, in place.
void round_all_to_half(float* values, std::size_t count) {
  constexpr std::size_t kRun = 1024;
  std::uint16_t halves[kRun];
  constexpr ChannelFormat kHalf = ChannelFormat::Float16;
  for (std::size_t i = 0; i < count; i += kRun) {
    const auto run = static_cast<Index>(std::min(kRun, count - i));
    convert_loops().store_row(values + i, halves, kHalf, run, 1, 1);
    convert_loops().load_row(halves, kHalf, run, 1, 1, values + i);
  }
}

// So many floats in a state's buffer, for a recorded command.
struct StateArray {
  std::shared_ptr<cpu::BufferMemory> memory;
  std::size_t offset = 0, count = 0;  // offset in bytes

  explicit operator bool() const { return memory != nullptr; }
  float* floats() const { return reinterpret_cast<float*>(memory->bytes() + offset); }
  // Calls write(floats) for who writes all of them.
  template <class Write>
  void fill(const Write& write) const {
    memory->fill(offset, count * sizeof(float),
                 [&](std::byte* bytes) { write(reinterpret_cast<float*>(bytes)); });
  }
  void fill_with(const float* values) const {
    fill([&](float* floats) { std::copy_n(values, count, floats); });
  }
};

StateArray array_of(const std::shared_ptr<Buffer>& buffer, Index offset, std::size_t count) {
  return {buffer ? cpu::memory_of(*buffer) : nullptr, static_cast<std::size_t>(offset), count};
}

// The sums of a batch so far.
struct SumArrays {
  StateArray weights, biases;

  explicit SumArrays(ConvolutionGradientState& state)
      : weights(array_of(state.gradient_for_weights(), 0,
                         static_cast<std::size_t>(state.shape().weight_count()))),
        biases(array_of(state.gradient_for_biases(), 0,
                        static_cast<std::size_t>(state.shape().output_channels))) {}

  // Calls write(weights, biases), which writes all of both, or adds to them.
  template <class Write>
  void update(bool accumulate, const Write& write) const {
    if (accumulate) {
      return write(weights.floats(), biases.floats());
    }
    weights.fill([&](float* of_weights) {
      biases.fill([&](float* of_biases) { write(of_weights, of_biases); });
    });
  }
};

class CpuWeightStore {
 public:
  explicit CpuWeightStore(const ConvolutionParameters& parameters) { set(parameters); }

  void set(const ConvolutionParameters& parameters) {
    const ConvolutionWeightShape shape = parameters.descriptor.weight_shape();
    auto kept = std::make_shared<Folding>();
    kept->weight_count = static_cast<std::size_t>(shape.weight_count());
    kept->bias_count = static_cast<std::size_t>(shape.output_channels);
    kept->half_weights = parameters.half_weights;
    for (Index o = 0; parameters.descriptor.has_batch_normalization && o < shape.output_channels;
         ++o) {
      kept->scales.push_back(parameters.weight_scale(o));
      kept->shifts.push_back(parameters.bias_shift(o));
    }
    auto weights = float_block(kept->weight_count);
    parameters.write_kernel_weights(reinterpret_cast<float*>(weights->data()));
    auto biases = float_block(kept->bias_count);
    parameters.write_kernel_biases(reinterpret_cast<float*>(biases->data()));
    auto slot = std::make_shared<WeightSlot>();
    slot->set({weights_over(std::move(weights)), std::move(biases)});
    slot_ = std::move(slot);
    folding_ = std::move(kept);
  }

  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) {
    cpu::record(
        command_buffer,
        [slot = slot_,
         weights = array_of(state.weights(), state.weights_offset(), folding_->weight_count),
         biases = array_of(state.biases(), state.biases_offset(), folding_->bias_count),
         folding = folding_] {
          auto block = copy_block(weights.floats(), weights.count);
          auto* values = reinterpret_cast<float*>(block->data());
          const std::size_t per_output = folding->weight_count / folding->bias_count;
          for (std::size_t i = 0; i < weights.count && !folding->scales.empty(); ++i) {
            values[i] *= folding->scales[i / per_output];
          }
          if (folding->half_weights) {
            round_all_to_half(values, weights.count);
          }
          WeightSlot::Contents contents = slot->get();
          contents.weights = weights_over(std::move(block));
          if (biases) {
            auto bias_block = copy_block(biases.floats(), biases.count);
            auto* bias = reinterpret_cast<float*>(bias_block->data());
            for (std::size_t o = 0; o < folding->scales.size(); ++o) {
              bias[o] = bias[o] * folding->scales[o] + folding->shifts[o];
            }
            contents.biases = std::move(bias_block);
          }
          slot->set(std::move(contents));
        });
  }

  void export_weights(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& result) {
    cpu::record(
        command_buffer,
        [slot = slot_,
         weights = array_of(result.weights(), result.weights_offset(), folding_->weight_count),
         biases = array_of(result.biases(), result.biases_offset(), folding_->bias_count)] {
          const WeightSlot::Contents contents = slot->get();
          weights.fill_with(contents.weights->values());
          if (biases) {
            biases.fill_with(contents.bias());
          }
        });
  }

  const std::shared_ptr<WeightSlot>& slot() const { return slot_; }

 private:
  // What becomes of numbers on their way into the slot; shared with reloads that are recorded.
  struct Folding {
    std::size_t weight_count = 0, bias_count = 0;
    bool half_weights = false;
    std::vector<float> scales, shifts;  // batch normalization, by output channel; empty without
  };

  std::shared_ptr<WeightSlot> slot_;
  std::shared_ptr<const Folding> folding_;
};

ConvolutionImages engine_images(const CpuImages& images, const std::vector<std::byte*>& samples) {
  return {images.format, images.row_stride, images.pixel_stride, samples.data(), images.streamed};
}

// Sample pointers moved to (x, y): where a clip rectangle starts.
std::vector<std::byte*> samples_at(const CpuImages& images, Index x, Index y) {
  std::vector<std::byte*> samples(images.samples);
  for (std::byte*& sample : samples) {
    sample += (y * images.row_stride + x * images.pixel_stride) * item_size(images.format);
  }
  return samples;
}

ConvolutionGeometry geometry_of(const ConvolutionDescriptor& descriptor) {
  ConvolutionGeometry g;
  g.source_channels = descriptor.input_feature_channels;
  g.destination_channels = descriptor.output_feature_channels;
  g.groups = descriptor.groups;
  g.kernel_height = descriptor.window.kernel_height;
  g.kernel_width = descriptor.window.kernel_width;
  g.dilation_y = descriptor.window.dilation_y;
  g.dilation_x = descriptor.window.dilation_x;
  g.stride_y = descriptor.window.stride_y;
  g.stride_x = descriptor.window.stride_x;
  g.depthwise = descriptor.depthwise;
  return g;
}

// Zeroes the lanes after the produced channels, up to the end of their group of four.
void clear_tail(const CpuImages& destination, const Region& clip) {
  if (destination.tail == 0) {
    return;
  }
  for (Index n = 0; n < destination.count(); ++n) {
    for (Index y = clip.origin.y; y < clip.origin.y + clip.size.height; ++y) {
      std::byte* lanes = destination.pixel(n, y, clip.origin.x) +
                         destination.channels * item_size(destination.format);
      convert_loops().zero_row(lanes, destination.format, clip.size.width, destination.tail,
                               destination.pixel_stride);
    }
  }
}

// What happens to results between the sums and the store: the fused neuron, and for a sub-pixel
// convolution the store itself, which spreads the channels of a result over a block of pixels.
struct Finish {
  NeuronFunction neuron;
  Index scale;
  const CpuImages& destination;
  const Region& clip;

  static void apply(void* context, const ConvolutionTile& tile) {
    const auto& self = *static_cast<const Finish*>(context);
    if (self.neuron.type != NeuronType::None) {
      NeuronFunction f = self.neuron;
      f.data = f.data ? f.data + tile.channel : nullptr;
      for (Index p = 0; p < tile.pixels; ++p) {
        float* values = tile.values + p * tile.value_step;
        neuron_loops().floats.forward(f, values, {values}, 1, tile.channels);
      }
    }
    if (self.scale > 1) {
      self.spread(tile);
    }
  }

  // Channels of a row of a block lie side by side in the destination if its pixels do, and no clip
  // cuts through a block: a run of them goes to its place at once, for all pixels of the tile.
  void spread(const ConvolutionTile& tile) const {
    const Index produced = destination.channels;
    const bool is_whole = destination.dense_pixels() && clip.size.width % scale == 0;
    const Index longest = is_whole ? scale * produced : produced;
    for (Index k = tile.channel, count = 0; k < tile.channel + tile.channels; k += count) {
      count = std::min(longest - k % longest, tile.channel + tile.channels - k);
      const Index block = k / produced;  // row-major inside the block of scale x scale pixels
      const Index u = tile.x * scale + block % scale;
      const Index v = tile.y * scale + block / scale;
      const Index apart = tile.x_step * scale;  // destination pixels
      const Index pixels = std::min(tile.pixels, cpu::chunks_of(clip.size.width - u, apart));
      if (v < clip.size.height && pixels > 0) {
        store(tile, k, count, pixels, apart * destination.pixel_stride,
              destination.pixel(tile.sample, clip.origin.y + v, clip.origin.x + u) +
                  k % produced * item_size(destination.format));
      }
    }
  }

  void store(const ConvolutionTile& tile, Index channel, Index count, Index pixels, Index step,
             std::byte* out) const {
    const float* values = tile.values + (channel - tile.channel);
    if (destination.is_float()) {
      convert_loops().copy_row(values, tile.value_step, out, step, destination.format, pixels,
                               count);
      return;
    }
    for (Index p = 0; p < pixels; ++p) {
      convert_loops().store_row(values + p * tile.value_step,
                                out + p * step * item_size(destination.format), destination.format,
                                1, count, count);
    }
  }
};

void run_forward(ConvolutionGeometry g, const ConvolutionDescriptor& descriptor,
                 const WeightSlot::Contents& weights, const CpuImages& source,
                 const CpuImages& destination, const Region& clip) {
  const Index scale = descriptor.sub_pixel_scale_factor;
  g.source_width = source.width;
  g.source_height = source.height;
  g.destination_width = cpu::chunks_of(clip.size.width, scale);
  g.destination_height = cpu::chunks_of(clip.size.height, scale);
  Finish finish{function_of(descriptor.neuron), scale, destination, clip};
  ConvolutionHook hook;
  if (finish.neuron.type != NeuronType::None || scale > 1) {
    hook = {&Finish::apply, &finish, scale == 1};
  }
  const auto written = samples_at(destination, clip.origin.x, clip.origin.y);
  cpu::convolve(g, engine_images(source, source.samples), *weights.weights, weights.bias(),
                engine_images(destination, written), hook);
  clear_tail(destination, clip);
}

class CpuConvolution : public ConvolutionEncoder {
 public:
  CpuConvolution(Device& device, const ConvolutionParameters& parameters, ConvolutionKind kind)
      : device_(device),
        descriptor_(std::make_shared<const ConvolutionDescriptor>(parameters.descriptor)),
        kind_(kind),
        store_(parameters) {}

  void set(const ConvolutionParameters& parameters) override { store_.set(parameters); }
  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) override {
    store_.reload(command_buffer, state);
  }
  void export_weights(CommandBuffer& command_buffer,
                      ConvolutionWeightsAndBiasesState& result) override {
    store_.export_weights(command_buffer, result);
  }

  ConvolutionGradientState::Contents make_state(const ForwardSnapshot&,
                                                CommandBuffer* temporary) override {
    const ConvolutionWeightShape shape = descriptor_->weight_shape();
    const auto make = [&](Index count) { return device_.make_floats(count, temporary); };
    return {make(shape.weight_count()), make(shape.output_channels), nullptr};
  }

  // The CPU accumulates in float32 whatever the option: it permits less precision, it does not ask
  // for it.
  void encode(CommandBuffer& command_buffer, const UnaryCall& call, AccumulatorPrecision) override {
    ConvolutionGeometry g = geometry_of(*descriptor_);
    const bool fully_connected = kind_ == ConvolutionKind::FullyConnected;
    g.batch = call.images();
    g.edge = call.properties.edge_mode;
    g.first_x = fully_connected ? 0 : call.properties.offset.x - descriptor_->window.extent_x() / 2;
    g.first_y = fully_connected ? 0 : call.properties.offset.y - descriptor_->window.extent_y() / 2;
    cpu::record(command_buffer,
                [g, descriptor = descriptor_, slot = store_.slot(), source = cpu::view_source(call),
                 destination = cpu::view_destination(call), clip = call.clip] {
                  run_forward(g, *descriptor, slot->get(), source, destination, clip);
                });
  }

 protected:
  Device& device_;
  std::shared_ptr<const ConvolutionDescriptor> descriptor_;
  ConvolutionKind kind_;
  CpuWeightStore store_;
};

// A transposed convolution is the data gradient of a convolution from its result, of its clip
// rectangle, to its source; that convolution's weights are the transposed one's, rotated.
ConvolutionGeometry transposed_geometry(const ConvolutionDescriptor& descriptor,
                                        const UnaryProperties& properties, const Region& clip) {
  ConvolutionGeometry g = geometry_of(descriptor);
  std::swap(g.source_channels, g.destination_channels);
  g.transposed_weights = true;
  const auto placement = TransposePlacement::of(properties);
  g.first_x = -placement.first_x - (g.kernel_width - 1);
  g.first_y = -placement.first_y - (g.kernel_height - 1);
  g.source_width = clip.size.width;
  g.source_height = clip.size.height;
  return g;
}

class CpuConvolutionTranspose final : public CpuConvolution {
 public:
  using CpuConvolution::CpuConvolution;

  void encode(CommandBuffer& command_buffer, const UnaryCall& call, AccumulatorPrecision) override {
    ConvolutionGeometry g = transposed_geometry(*descriptor_, call.properties, call.clip);
    g.batch = call.images();
    cpu::record(command_buffer,
                [g, descriptor = descriptor_, slot = store_.slot(), source = cpu::view_source(call),
                 destination = cpu::view_destination(call), clip = call.clip]() mutable {
                  g.destination_width = source.width;
                  g.destination_height = source.height;
                  const WeightSlot::Contents weights = slot->get();
                  Finish finish{function_of(descriptor->neuron), 1, destination, clip};
                  ConvolutionHook hook;
                  if (finish.neuron.type != NeuronType::None) {
                    hook = {&Finish::apply, &finish, true};
                  }
                  const auto written = samples_at(destination, clip.origin.x, clip.origin.y);
                  cpu::convolution_data_gradient(g, engine_images(source, source.samples),
                                                 *weights.weights, weights.bias(),
                                                 engine_images(destination, written), hook);
                  clear_tail(destination, clip);
                });
  }
};

class CpuConvolutionGradient : public ConvolutionGradientEncoder {
 public:
  explicit CpuConvolutionGradient(const ConvolutionParameters& parameters)
      : descriptor_(parameters.descriptor), store_(parameters) {}

  void set(const ConvolutionParameters& parameters) override { store_.set(parameters); }
  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) override {
    store_.reload(command_buffer, state);
  }

  void encode(CommandBuffer& command_buffer, const GradientCall& call,
              ConvolutionGradientOption option, ConvolutionGradientState& state,
              bool accumulate) override {
    if (option != ConvolutionGradientOption::WeightsAndBias) {
      // If weights follow, they read the source.
      encode_data(command_buffer, call, option == ConvolutionGradientOption::Data ? 0 : 1);
    }
    if (option != ConvolutionGradientOption::Data) {
      encode_weights(command_buffer, call, state, accumulate);
    }
  }

 private:
  virtual void encode_data(CommandBuffer& command_buffer, const GradientCall& call,
                           Index of_source) const {
    const BinaryProperties& p = call.properties;
    ConvolutionGeometry g = geometry_of(descriptor_);
    g.batch = call.images();
    g.stride_x = p.primary.window.stride_x;
    g.stride_y = p.primary.window.stride_y;
    // From the offset in the zero-inserted gradient back to the source position of the first tap.
    const auto first_tap = [](Index offset, Index stride, Index kernel_offset, Index extent) {
      return extent / 2 - (extent - 1) - (offset * stride + kernel_offset);
    };
    g.first_x =
        first_tap(p.primary.offset.x, g.stride_x, p.kernel_offset_x, descriptor_.window.extent_x());
    g.first_y =
        first_tap(p.primary.offset.y, g.stride_y, p.kernel_offset_y, descriptor_.window.extent_y());
    g.source_width = call.clip.size.width;
    g.source_height = call.clip.size.height;
    cpu::record(command_buffer, [g, slot = store_.slot(), gradient = cpu::view_gradient(call),
                                 destination = cpu::view_destination(call, 1, of_source),
                                 clip = call.clip]() mutable {
      g.destination_width = gradient.width;
      g.destination_height = gradient.height;
      const auto written = samples_at(destination, clip.origin.x, clip.origin.y);
      cpu::convolution_data_gradient(g, engine_images(gradient, gradient.samples),
                                     *slot->get().weights, nullptr,
                                     engine_images(destination, written));
      clear_tail(destination, clip);
    });
  }

  virtual void encode_weights(CommandBuffer& command_buffer, const GradientCall& call,
                              ConvolutionGradientState& state, bool accumulate) const {
    const SourceProperties& secondary = call.properties.secondary;
    ConvolutionGeometry g = geometry_of(descriptor_);
    g.batch = call.images();
    g.stride_x = secondary.window.stride_x;
    g.stride_y = secondary.window.stride_y;
    g.edge = secondary.edge_mode;
    g.first_x = secondary.offset.x;
    g.first_y = secondary.offset.y;
    cpu::record(command_buffer,
                [g, accumulate, gradient = cpu::view_gradient(call),
                 source = cpu::view_source(call), totals = SumArrays(state)]() mutable {
                  g.source_width = source.width;
                  g.source_height = source.height;
                  g.destination_width = gradient.width;
                  g.destination_height = gradient.height;
                  totals.update(accumulate, [&](float* weights, float* biases) {
                    cpu::convolution_weight_gradient(g, engine_images(source, source.samples),
                                                     engine_images(gradient, gradient.samples),
                                                     weights, biases, accumulate);
                  });
                });
  }

 protected:
  ConvolutionDescriptor descriptor_;
  CpuWeightStore store_;
};

// The data gradient of the data gradient is a convolution; for the weight gradient source and
// gradient change places, and for that of the biases nothing is left but to sum.
class CpuConvolutionTransposeGradient final : public CpuConvolutionGradient {
 public:
  using CpuConvolutionGradient::CpuConvolutionGradient;

 private:
  // Of the convolution from the forward result to the forward source.
  ConvolutionGeometry geometry(const GradientCall& call) const {
    const ForwardSnapshot& shot = call.state().snapshot();
    ConvolutionGeometry g = transposed_geometry(descriptor_, shot.properties, shot.clip);
    g.batch = call.images();
    return g;
  }

  void encode_data(CommandBuffer& command_buffer, const GradientCall& call,
                   Index of_source) const override {
    ConvolutionGeometry g = geometry(call);
    g.destination_width = call.clip.size.width;
    g.destination_height = call.clip.size.height;
    cpu::record(command_buffer, [g, slot = store_.slot(), gradient = cpu::view_gradient(call),
                                 destination = cpu::view_destination(call, 1, of_source),
                                 clip = call.clip]() mutable {
      g.source_width = gradient.width;
      g.source_height = gradient.height;
      const auto written = samples_at(destination, clip.origin.x, clip.origin.y);
      cpu::convolve(g, engine_images(gradient, gradient.samples), *slot->get().weights, nullptr,
                    engine_images(destination, written));
      clear_tail(destination, clip);
    });
  }

  void encode_weights(CommandBuffer& command_buffer, const GradientCall& call,
                      ConvolutionGradientState& state, bool accumulate) const override {
    const ConvolutionGeometry geometry = this->geometry(call);
    cpu::record(
        command_buffer, [g = geometry, accumulate, gradient = cpu::view_gradient(call),
                         source = cpu::view_source(call), totals = SumArrays(state)]() mutable {
          g.source_width = gradient.width;
          g.source_height = gradient.height;
          g.destination_width = source.width;
          g.destination_height = source.height;
          const ConvolutionImages incoming = engine_images(gradient, gradient.samples);
          totals.update(accumulate, [&](float* weights, float* biases) {
            cpu::convolution_weight_gradient(g, incoming, engine_images(source, source.samples),
                                             weights, nullptr, accumulate);
            cpu::convolution_channel_sums(g.batch, g.source_height, g.source_width,
                                          g.source_channels, incoming, biases, accumulate);
          });
        });
  }
};

class CpuConvolutionBackend final : public ConvolutionBackend {
 public:
  std::unique_ptr<ConvolutionEncoder> make_forward(Device& device,
                                                   const ConvolutionParameters& parameters,
                                                   ConvolutionKind kind) const override {
    if (kind == ConvolutionKind::Transpose) {
      return std::make_unique<CpuConvolutionTranspose>(device, parameters, kind);
    }
    return std::make_unique<CpuConvolution>(device, parameters, kind);
  }
  std::unique_ptr<ConvolutionGradientEncoder> make_gradient(Device&,
                                                            const ConvolutionParameters& parameters,
                                                            ConvolutionKind kind) const override {
    if (kind == ConvolutionKind::Transpose) {
      return std::make_unique<CpuConvolutionTransposeGradient>(parameters);
    }
    return std::make_unique<CpuConvolutionGradient>(parameters);
  }
};

}  // namespace

const ConvolutionBackend& cpu_convolution() {
  static const CpuConvolutionBackend backend;
  return backend;
}

}  // namespace mpsgrad
