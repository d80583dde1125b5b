// What normalization kernels share besides images: the states that carry scale and offset, or mean
// and variance, into a kernel (MPSCNNNormalizationGammaAndBetaState,
// MPSCNNNormalizationMeanAndVarianceState), and a kernel's own arrays, which they replace.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/state.hpp"

namespace mpsgrad {

class KernelBase;

// Two arrays of one float32 a channel. They may be longer than a kernel needs.
class NormalizationPairState : public State {
 public:
  // Null once a temporary state has been read for the last time.
  std::shared_ptr<Buffer> first() { return resource_at(0, !is_spent()); }
  std::shared_ptr<Buffer> second() { return resource_at(1, !is_spent()); }
  Index channels() const { return channels_; }
  // Throws unless a kernel of so many channels can read it; `who` is the kernel's class.
  void require_channels(const char* who, Index channels) const;

 protected:
  // Throws unless the buffers are of one device and of one length. The names are for messages.
  NormalizationPairState(const char* who, const char* first_name, const char* second_name,
                         std::shared_ptr<Buffer> first, std::shared_ptr<Buffer> second);
  NormalizationPairState(const char* who, const std::shared_ptr<CommandBuffer>& command_buffer,
                         Index channels);

 private:
  bool is_spent() { return count() != nullptr && count()->value() == 0; }

  Index channels_;
};

class NormalizationGammaAndBetaState final : public NormalizationPairState {
 public:
  NormalizationGammaAndBetaState(std::shared_ptr<Buffer> gamma, std::shared_ptr<Buffer> beta)
      : NormalizationPairState("NormalizationGammaAndBetaState", "gamma", "beta", std::move(gamma),
                               std::move(beta)) {}
  NormalizationGammaAndBetaState(const std::shared_ptr<CommandBuffer>& command_buffer,
                                 Index channels)
      : NormalizationPairState("NormalizationGammaAndBetaState", command_buffer, channels) {}

  const char* class_name() const override { return "NormalizationGammaAndBetaState"; }
  std::shared_ptr<Buffer> gamma() { return first(); }
  std::shared_ptr<Buffer> beta() { return second(); }
};

class NormalizationMeanAndVarianceState final : public NormalizationPairState {
 public:
  NormalizationMeanAndVarianceState(std::shared_ptr<Buffer> mean, std::shared_ptr<Buffer> variance)
      : NormalizationPairState("NormalizationMeanAndVarianceState", "mean", "variance",
                               std::move(mean), std::move(variance)) {}
  NormalizationMeanAndVarianceState(const std::shared_ptr<CommandBuffer>& command_buffer,
                                    Index channels)
      : NormalizationPairState("NormalizationMeanAndVarianceState", command_buffer, channels) {}

  const char* class_name() const override { return "NormalizationMeanAndVarianceState"; }
  std::shared_ptr<Buffer> mean() { return first(); }
  std::shared_ptr<Buffer> variance() { return second(); }
};

// A state that holds gradients of gamma and beta, of one image or of a batch: what an optimizer
// needs of it. One float32 a channel each.
class GammaAndBetaGradients {
 public:
  virtual ~GammaAndBetaGradients() = default;
  virtual Index channels() const = 0;
  // Throws StateError, naming `who`, unless an encode has made all of them.
  virtual void require_complete_gradients(const char* who) const = 0;
  virtual std::shared_ptr<Buffer> gamma_sums() = 0;
  virtual std::shared_ptr<Buffer> beta_sums() = 0;
};

// Gamma and beta, or mean and variance, of one kernel: what its encodes bind and its states show.
// An array the data source does not have is null.
class NormalizationPair {
 public:
  using Values = std::optional<std::vector<float>>;

  // The neutral values are what a missing array stands for.
  NormalizationPair(std::shared_ptr<Device> device, Index channels, float first_neutral,
                    float second_neutral)
      : device_(std::move(device)),
        channels_(channels),
        first_neutral_(first_neutral),
        second_neutral_(second_neutral) {}

  // Of arrays that exist; either may be null.
  NormalizationPair(std::shared_ptr<Device> device, Index channels, std::shared_ptr<Buffer> first,
                    std::shared_ptr<Buffer> second)
      : device_(std::move(device)),
        channels_(channels),
        first_neutral_(0.0F),
        second_neutral_(0.0F),
        first_(std::move(first)),
        second_(std::move(second)) {}

  const std::shared_ptr<Buffer>& first() const { return first_; }
  const std::shared_ptr<Buffer>& second() const { return second_; }
  bool complete() const { return first_ && second_; }

  // New arrays, so that work which is encoded already keeps the ones it was encoded with. The
  // lengths have been checked (read_normalization_source).
  void set(const Values& first, const Values& second);
  // Throws unless `kernel` can reload from the state on the command buffer; changes nothing.
  void check_reload(const KernelBase& kernel, const CommandBuffer& command_buffer,
                    const std::shared_ptr<NormalizationPairState>& state) const;
  // Encodes a copy out of the state, and spends a read of it. Checked before. `encode_on_device`:
  // what else there is to encode, once nothing of ours can fail.
  template <class Encode>
  void reload(CommandBuffer& command_buffer, NormalizationPairState& state,
              const Encode& encode_on_device) {
    const auto first = first_ ? first_ : filled(first_neutral_);
    const auto second = second_ ? second_ : filled(second_neutral_);
    encode_on_device();
    encode_copies(command_buffer, state, first, second);
  }

 private:
  void encode_copies(CommandBuffer& command_buffer, NormalizationPairState& state,
                     const std::shared_ptr<Buffer>& first, const std::shared_ptr<Buffer>& second);
  std::shared_ptr<Buffer> filled(float value) const;
  std::shared_ptr<Buffer> with(const std::vector<float>& values) const;

  std::shared_ptr<Device> device_;
  Index channels_;
  float first_neutral_, second_neutral_;
  std::shared_ptr<Buffer> first_, second_;
};

}  // namespace mpsgrad
