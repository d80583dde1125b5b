// Convolution, FullyConnected and their gradients (MPSCNNConvolution, MPSCNNFullyConnected,
// ...Gradient), and what they share with transposed convolution, convolution_transpose.hpp.
#pragma once

#include <memory>

#include "core/convolution_states.hpp"
#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"
#include "kernels/convolution/convolution_source.hpp"

namespace mpsgrad {

enum class ConvolutionGradientOption : int { Data = 1, WeightsAndBias = 2, All = 3 };
enum class ConvolutionKind { Plain, FullyConnected, Transpose };
enum class AccumulatorPrecision : int { Half = 0, Float = 1 };

// What states record of a convolution beside its geometry.
struct ConvolutionSettings {
  AccumulatorPrecision precision = AccumulatorPrecision::Float;
  Index options = 0;
  Index kernel_offset_x = 0, kernel_offset_y = 0;  // transposed
  bool operator==(const ConvolutionSettings&) const = default;
};
inline const ConvolutionSettings& convolution_settings(const UnaryProperties& properties) {
  return properties.settings.as<ConvolutionSettings>();
}

// One kernel's weights on a device, with every way to replace them. Work that is encoded already
// keeps the weights it was encoded with when they are replaced from a data source; a reload on a
// command buffer takes its turn.
class ConvolutionWeightStore {
 public:
  virtual ~ConvolutionWeightStore() = default;
  virtual void set(const ConvolutionParameters& parameters) = 0;
  virtual void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) = 0;
};

class ConvolutionEncoder : public ConvolutionWeightStore {
 public:
  virtual void encode(CommandBuffer& command_buffer, const UnaryCall& call,
                      AccumulatorPrecision precision) = 0;
  virtual void export_weights(CommandBuffer& command_buffer,
                              ConvolutionWeightsAndBiasesState& result) = 0;
  // Zeroed gradient buffers and what the device keeps beside them; `temporary` may be null.
  virtual ConvolutionGradientState::Contents make_state(const ForwardSnapshot& snapshot,
                                                        CommandBuffer* temporary) = 0;
};

class ConvolutionGradientEncoder : public ConvolutionWeightStore {
 public:
  // `accumulate`: add to the state's sums instead of replacing them.
  virtual void encode(CommandBuffer& command_buffer, const GradientCall& call,
                      ConvolutionGradientOption option, ConvolutionGradientState& state,
                      bool accumulate) = 0;
};

class ConvolutionBackend {
 public:
  virtual ~ConvolutionBackend() = default;
  virtual std::unique_ptr<ConvolutionEncoder> make_forward(Device& device,
                                                           const ConvolutionParameters& parameters,
                                                           ConvolutionKind kind) const = 0;
  virtual std::unique_ptr<ConvolutionGradientEncoder> make_gradient(
      Device& device, const ConvolutionParameters& parameters, ConvolutionKind kind) const = 0;
};

class Convolution : public UnaryKernel {
 public:
  Convolution(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source)
      : Convolution(std::move(device), std::move(source), ConvolutionKind::Plain) {}

  const ConvolutionDescriptor& descriptor() const { return parameters_.descriptor; }
  const std::shared_ptr<ConvolutionDataSource>& data_source() const { return source_; }
  AccumulatorPrecision accumulator_precision() const { return settings().precision; }
  void set_accumulator_precision(AccumulatorPrecision precision);
  bool is_result_state_reused_across_batch() const override { return true; }

  // What a reload reads.
  ConvolutionParameters read_data_source() const;
  void reload_from_data_source();
  // Throws unless the kernel can reload from the state.
  void check_reload(const CommandBuffer& command_buffer,
                    const ConvolutionWeightsAndBiasesState& state) const;
  void reload(const std::shared_ptr<CommandBuffer>& command_buffer,
              const std::shared_ptr<ConvolutionWeightsAndBiasesState>& state);
  std::shared_ptr<ConvolutionWeightsAndBiasesState> export_weights(
      const std::shared_ptr<CommandBuffer>& command_buffer, bool temporary_ok);

 protected:
  Convolution(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source,
              ConvolutionKind kind);

  Index required_channels() const override { return descriptor().input_feature_channels; }
  Index produced_channels(Index) const override { return descriptor().destination_channels(); }
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  const ConvolutionSettings& settings() const { return convolution_settings(properties()); }
  ConvolutionSettings& settings() { return family_settings().as<ConvolutionSettings>(); }
  FamilySettings current_settings() const override;
  void check_call(const UnaryCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;
  ConvolutionEncoder& encoder() { return *encoder_; }

 private:
  Convolution(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source,
              ConvolutionKind kind, ConvolutionParameters parameters);

  ConvolutionKind kind_;
  std::shared_ptr<ConvolutionDataSource> source_;
  ConvolutionParameters parameters_;  // its arrays are emptied once the device has them
  std::unique_ptr<ConvolutionEncoder> encoder_;
};

// The window is the whole source, the result 1x1; `offset` is ignored.
class FullyConnected final : public Convolution {
 public:
  FullyConnected(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source);

 protected:
  void check_call(const UnaryCall& call) const override;
};

// dX of each image; dW and dB summed over the batch into the state. source: the forward source.
class ConvolutionGradient : public GradientKernel {
 public:
  ConvolutionGradient(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source)
      : ConvolutionGradient(std::move(device), std::move(source), ConvolutionKind::Plain) {}

  const ConvolutionDescriptor& descriptor() const { return descriptor_; }
  const std::shared_ptr<ConvolutionDataSource>& data_source() const { return source_; }
  ConvolutionGradientOption gradient_option() const { return option_; }
  void set_gradient_option(int option);
  bool is_state_modified() const override { return true; }
  bool is_result_state_reused_across_batch() const override { return true; }

  // The first encode, too, takes the weights that the constructor has read: a graph has read those
  // of its convolutions with them.
  void keep_weights() { has_weights_ = true; }
  void reload_from_data_source();
  void reload(const std::shared_ptr<CommandBuffer>& command_buffer,
              const std::shared_ptr<ConvolutionWeightsAndBiasesState>& state);

 protected:
  ConvolutionGradient(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source,
                      ConvolutionKind kind);

  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;
  bool writes_whole_destination() const override {
    return option_ != ConvolutionGradientOption::WeightsAndBias;
  }
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;

 private:
  ConvolutionGradient(std::shared_ptr<Device> device, std::shared_ptr<ConvolutionDataSource> source,
                      ConvolutionKind kind, const ConvolutionParameters& parameters);
  void read_weights(const std::shared_ptr<ConvolutionDataSource>& source);

  ConvolutionKind kind_;
  std::shared_ptr<ConvolutionDataSource> source_;
  ConvolutionDescriptor descriptor_;
  ConvolutionGradientOption option_ = ConvolutionGradientOption::All;
  // Else the first encode takes them from the data source of the state's convolution.
  bool has_weights_ = false;
  std::unique_ptr<ConvolutionGradientEncoder> encoder_;
};

class FullyConnectedGradient final : public ConvolutionGradient {
 public:
  FullyConnectedGradient(std::shared_ptr<Device> device,
                         std::shared_ptr<ConvolutionDataSource> source)
      : ConvolutionGradient(std::move(device), std::move(source), ConvolutionKind::FullyConnected) {
  }
};

}  // namespace mpsgrad
