// The four kernels of batch normalization (MPSCNNBatchNormalizationStatistics,
// MPSCNNBatchNormalization, MPSCNNBatchNormalizationStatisticsGradient,
// MPSCNNBatchNormalizationGradient). A training step runs them in this order, each over the whole
// batch before the next, in one call or in several.
#pragma once

#include <memory>
#include <optional>

#include "core/batch_normalization_state.hpp"
#include "core/gradient_kernel.hpp"
#include "core/neuron_descriptor.hpp"
#include "core/normalization_source.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

// What an elementwise encode computes with: the arrays as they are bound now. Gamma and beta may be
// null, for 1 and 0.
struct BatchNormalizationOperands {
  std::shared_ptr<Buffer> gamma, beta, mean, variance;
  float epsilon = 0.0F;
};

// One encode of statistics or of their gradients, after every check.
struct BatchNormalizationSums {
  const ImageBatch::Images* gradients;  // null for statistics
  const ImageBatch::Images& sources;
  Index gradient_channel_offset;
  Index source_channel_offset;
  BatchNormalizationState& state;
  bool start;     // replace what the state holds
  Index samples;  // of one channel in the statistics, these images included
  const KernelBase& kernel;
};

class BatchNormalizationEncoder {
 public:
  virtual ~BatchNormalizationEncoder() = default;
  // The kernel's arrays have been replaced from the data source.
  virtual void gamma_and_beta_replaced() {}
  virtual void mean_and_variance_replaced() {}
  // A command buffer will copy a state's arrays into the kernel's.
  virtual void encode_reload(CommandBuffer&, NormalizationGammaAndBetaState&) {}
  virtual void encode_reload(CommandBuffer&, NormalizationMeanAndVarianceState&) {}
  virtual BatchNormalizationState::Contents make_state(const ForwardSnapshot& snapshot,
                                                       float epsilon, CommandBuffer* temporary) = 0;
  // `state` is null for the kernel's stored statistics.
  virtual void encode(CommandBuffer& command_buffer, const UnaryCall& call,
                      const BatchNormalizationOperands& operands,
                      BatchNormalizationState* state) = 0;
};

class BatchNormalizationSumsEncoder {  // statistics, and their gradients
 public:
  virtual ~BatchNormalizationSumsEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const BatchNormalizationSums& sums,
                      const BatchNormalizationOperands& operands) = 0;
};

class BatchNormalizationGradientEncoder {
 public:
  virtual ~BatchNormalizationGradientEncoder() = default;
  virtual void encode(CommandBuffer& command_buffer, const GradientCall& call,
                      const BatchNormalizationOperands& operands,
                      BatchNormalizationState& state) = 0;
};

// A kernel's own arrays, shared with its states.
struct BatchNormalizationArrays {
  std::shared_ptr<NormalizationPair> gamma_and_beta;
  std::shared_ptr<NormalizationPair> mean_and_variance;
};

class BatchNormalizationBackend {
 public:
  virtual ~BatchNormalizationBackend() = default;
  virtual std::unique_ptr<BatchNormalizationEncoder> make_forward(
      Device& device, const BatchNormalizationArrays& arrays, Index channels,
      const NeuronDescriptor& neuron) const = 0;
  virtual std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics(Device& device) const = 0;
  virtual std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics_gradient(
      Device& device, const NeuronDescriptor& neuron) const = 0;
  virtual std::unique_ptr<BatchNormalizationGradientEncoder> make_gradient(
      Device& device, const NeuronDescriptor& neuron) const = 0;
};

// Mean and biased variance of each channel over all images of a batch, into a state.
class BatchNormalizationStatistics final : public UnaryKernel {
 public:
  explicit BatchNormalizationStatistics(std::shared_ptr<Device> device);

  bool is_state_modified() const override { return true; }
  bool is_result_state_reused_across_batch() const override { return true; }
  bool append_batch_barrier() const override { return true; }

  void encode_batch(const std::shared_ptr<CommandBuffer>& command_buffer,
                    const ImageBatch::Images& sources, const std::shared_ptr<State>& state);

 protected:
  std::shared_ptr<GradientState> make_state(ForwardSnapshot,
                                            const std::shared_ptr<CommandBuffer>&) override {
    return nullptr;
  }
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;

 private:
  std::unique_ptr<BatchNormalizationSumsEncoder> encoder_;
};

// What states record of a kernel that may be set.
struct BatchNormalizationRecord {
  float epsilon = kDefaultNormalizationEpsilon;
  bool operator==(const BatchNormalizationRecord&) const = default;
};

// f((x - mean) * gamma / sqrt(variance + epsilon) + beta), by the kernel's stored statistics or by
// those of a state.
class BatchNormalization final : public UnaryKernel {
 public:
  BatchNormalization(std::shared_ptr<Device> device,
                     std::shared_ptr<NormalizationDataSource> source, NeuronDescriptor neuron);

  const std::shared_ptr<NormalizationDataSource>& data_source() const { return source_; }
  const NeuronDescriptor& neuron() const { return neuron_; }
  Index channels() const { return channels_; }
  float epsilon() const { return epsilon_; }
  void set_epsilon(float value);
  bool is_result_state_reused_across_batch() const override { return true; }

  void encode_with_state(const std::shared_ptr<CommandBuffer>& command_buffer,
                         const ImageBatch::Images& sources, const std::shared_ptr<State>& state,
                         const ImageBatch::Images& destinations, bool batch);

  void reload_gamma_and_beta_from_data_source();
  void reload_mean_and_variance_from_data_source();
  void reload(const std::shared_ptr<CommandBuffer>& command_buffer,
              const std::shared_ptr<NormalizationGammaAndBetaState>& state);
  void reload(const std::shared_ptr<CommandBuffer>& command_buffer,
              const std::shared_ptr<NormalizationMeanAndVarianceState>& state);

 protected:
  Index required_channels() const override { return channels_; }
  FamilySettings current_settings() const override { return BatchNormalizationRecord{epsilon_}; }
  void check_call(const UnaryCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;

 private:
  template <class PairState>
  void reload_pair(NormalizationPair& pair, const std::shared_ptr<CommandBuffer>& command_buffer,
                   const std::shared_ptr<PairState>& state);

  std::shared_ptr<NormalizationDataSource> source_;
  NeuronDescriptor neuron_;
  Index channels_ = 0;
  float epsilon_ = kDefaultNormalizationEpsilon;
  BatchNormalizationArrays arrays_;
  std::unique_ptr<BatchNormalizationEncoder> encoder_;
};

// The sums over a batch that the gradients of gamma and beta are, into the state. `neuron` is the
// one fused into the forward kernel, or none where the incoming gradient is that before it.
class BatchNormalizationStatisticsGradient final : public GradientKernel {
 public:
  BatchNormalizationStatisticsGradient(std::shared_ptr<Device> device, NeuronDescriptor neuron);

  const NeuronDescriptor& neuron() const { return neuron_; }
  bool is_state_modified() const override { return true; }
  bool append_batch_barrier() const override { return true; }

  void encode_batch(const std::shared_ptr<CommandBuffer>& command_buffer,
                    const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                    const std::shared_ptr<State>& state);

 protected:
  void check_state(const GradientState& state) const override;
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;

 private:
  NeuronDescriptor neuron_;
  std::unique_ptr<BatchNormalizationSumsEncoder> encoder_;
};

// Gradient with respect to the forward source, once the state's sums are those of the whole batch.
class BatchNormalizationGradient final : public GradientKernel {
 public:
  BatchNormalizationGradient(std::shared_ptr<Device> device, NeuronDescriptor neuron);

  const NeuronDescriptor& neuron() const { return neuron_; }

 protected:
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;

 private:
  NeuronDescriptor neuron_;
  std::unique_ptr<BatchNormalizationGradientEncoder> encoder_;
};

}  // namespace mpsgrad
