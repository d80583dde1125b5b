// Instance and group normalization (MPSCNNInstanceNormalization, MPSCNNGroupNormalization), their
// gradients and gradient states: every image is normalized by its own mean and variance, over its
// pixels and one channel, or a group of consecutive channels. Instance normalization is group
// normalization with as many groups as channels.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/normalization_source.hpp"
#include "core/normalization_states.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class GroupNormalizationKind { Instance, Group };

struct GroupNormalizationSettings {
  Index channels = 0;
  Index groups = 0;
  float epsilon = kDefaultNormalizationEpsilon;
};

// What states record of a kernel that may be set.
struct GroupNormalizationRecord {
  float epsilon = kDefaultNormalizationEpsilon;
  Index options = 0;
  bool operator==(const GroupNormalizationRecord&) const = default;
};

// What the forward kernel leaves for its gradient kernel, and the weight gradients of one image.
class GroupNormalizationGradientStateBase : public GradientState, public GammaAndBetaGradients {
 public:
  // The buffers, one float32 a channel each, and what the device keeps beside them.
  struct Contents {
    std::shared_ptr<Buffer> gradient_for_gamma, gradient_for_beta;
    std::shared_ptr<StatePayload> payload;
  };

  const std::shared_ptr<KernelBase>& producer() const { return producer_; }
  const GroupNormalizationSettings& settings() const { return settings_; }
  // The kernel's as they are now; null where the data source has none.
  const std::shared_ptr<Buffer>& gamma() const { return weights_->first(); }
  const std::shared_ptr<Buffer>& beta() const { return weights_->second(); }

  // Each throws StateError before a gradient encode; null once a temporary state has been read for
  // the last time.
  std::shared_ptr<Buffer> gradient_for_gamma();
  std::shared_ptr<Buffer> gradient_for_beta();
  // The same for encodes.
  std::shared_ptr<Buffer> gamma_sums() override { return resource_at(0, false); }
  std::shared_ptr<Buffer> beta_sums() override { return resource_at(1, false); }
  Index channels() const override { return snapshot().consumed_channels; }
  void require_complete_gradients(const char* who) const override;

  bool was_encoded() const { return static_cast<bool>(forward_); }
  void note_encoded(const std::shared_ptr<Work>& work) { forward_.by(work); }
  void note_gradients(const std::shared_ptr<Work>& work) { gradients_.by(work); }
  bool has_gradients() const { return static_cast<bool>(gradients_); }

 protected:
  GroupNormalizationGradientStateBase(const char* name, std::shared_ptr<Device> device,
                                      const std::shared_ptr<CommandBuffer>& temporary,
                                      ForwardSnapshot snapshot,
                                      std::shared_ptr<KernelBase> producer,
                                      std::shared_ptr<const NormalizationPair> weights,
                                      const GroupNormalizationSettings& settings,
                                      Contents contents);

 private:
  void require_gradients(const char* what) const;

  std::shared_ptr<KernelBase> producer_;
  std::shared_ptr<const NormalizationPair> weights_;
  GroupNormalizationSettings settings_;
  Filled forward_, gradients_;
};

class InstanceNormalizationGradientState final : public GroupNormalizationGradientStateBase {
 public:
  template <class... Arguments>
  explicit InstanceNormalizationGradientState(Arguments&&... arguments)
      : GroupNormalizationGradientStateBase("InstanceNormalizationGradientState",
                                            std::forward<Arguments>(arguments)...) {}
  const char* class_name() const override { return "InstanceNormalizationGradientState"; }
};

class GroupNormalizationGradientState final : public GroupNormalizationGradientStateBase {
 public:
  template <class... Arguments>
  explicit GroupNormalizationGradientState(Arguments&&... arguments)
      : GroupNormalizationGradientStateBase("GroupNormalizationGradientState",
                                            std::forward<Arguments>(arguments)...) {}
  const char* class_name() const override { return "GroupNormalizationGradientState"; }
};

// What a device supplies to run the family. The arrays are those of the moment of an encode, null
// for 1 and 0.
class GroupNormalizationEncoder {
 public:
  virtual ~GroupNormalizationEncoder() = default;
  // The kernel's arrays have been replaced from the data source.
  virtual void weights_replaced() {}
  // A command buffer will copy a state's arrays into the kernel's.
  virtual void encode_reload(CommandBuffer&, NormalizationGammaAndBetaState&) {}
  virtual GroupNormalizationGradientStateBase::Contents make_state(
      const ForwardSnapshot& snapshot, const GroupNormalizationSettings& settings,
      CommandBuffer* temporary) = 0;
  virtual void encode(CommandBuffer& command_buffer, const UnaryCall& call,
                      const GroupNormalizationSettings& settings,
                      const std::shared_ptr<Buffer>& gamma,
                      const std::shared_ptr<Buffer>& beta) = 0;
};

class GroupNormalizationBackend {
 public:
  virtual ~GroupNormalizationBackend() = default;
  virtual std::unique_ptr<GroupNormalizationEncoder> make_forward(
      Device& device, GroupNormalizationKind kind,
      const std::shared_ptr<const NormalizationPair>& weights,
      const GroupNormalizationSettings& settings) const = 0;
  // Finds settings and arrays in the states, which are GroupNormalizationGradientStateBase.
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                         GroupNormalizationKind kind) const = 0;
};

class GroupNormalizationBase : public UnaryKernel {
 public:
  const std::shared_ptr<NormalizationDataSource>& data_source() const { return source_; }
  const GroupNormalizationSettings& settings() const { return settings_; }
  void set_epsilon(float value);
  bool is_result_state_reused_across_batch() const override { return false; }

  void reload_gamma_and_beta_from_data_source();
  void reload_gamma_and_beta(const std::shared_ptr<CommandBuffer>& command_buffer,
                             const std::shared_ptr<NormalizationGammaAndBetaState>& state);

 protected:
  GroupNormalizationBase(std::shared_ptr<Device> device, const char* class_name,
                         GroupNormalizationKind kind,
                         std::shared_ptr<NormalizationDataSource> source);
  Index required_channels() const override { return settings_.channels; }
  FamilySettings current_settings() const override {
    return GroupNormalizationRecord{settings_.epsilon, options()};
  }
  void check_call(const UnaryCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) override;
  std::shared_ptr<GradientState> make_state(
      ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) override;

 private:
  GroupNormalizationKind kind_;
  std::shared_ptr<NormalizationDataSource> source_;
  GroupNormalizationSettings settings_;
  std::shared_ptr<NormalizationPair> weights_;
  std::unique_ptr<GroupNormalizationEncoder> encoder_;
};

class InstanceNormalization final : public GroupNormalizationBase {
 public:
  InstanceNormalization(std::shared_ptr<Device> device,
                        std::shared_ptr<NormalizationDataSource> source)
      : GroupNormalizationBase(std::move(device), "InstanceNormalization",
                               GroupNormalizationKind::Instance, std::move(source)) {}
};

class GroupNormalization final : public GroupNormalizationBase {
 public:
  GroupNormalization(std::shared_ptr<Device> device,
                     std::shared_ptr<NormalizationDataSource> source)
      : GroupNormalizationBase(std::move(device), "GroupNormalization",
                               GroupNormalizationKind::Group, std::move(source)) {}
};

class GroupNormalizationGradientBase : public GradientKernel {
 public:
  bool is_state_modified() const override { return true; }

 protected:
  GroupNormalizationGradientBase(std::shared_ptr<Device> device, const char* class_name,
                                 const char* forward_class, GroupNormalizationKind kind);
  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;

 private:
  std::unique_ptr<GradientEncoder> encoder_;
};

class InstanceNormalizationGradient final : public GroupNormalizationGradientBase {
 public:
  explicit InstanceNormalizationGradient(std::shared_ptr<Device> device)
      : GroupNormalizationGradientBase(std::move(device), "InstanceNormalizationGradient",
                                       "InstanceNormalization", GroupNormalizationKind::Instance) {}
};

class GroupNormalizationGradient final : public GroupNormalizationGradientBase {
 public:
  explicit GroupNormalizationGradient(std::shared_ptr<Device> device)
      : GroupNormalizationGradientBase(std::move(device), "GroupNormalizationGradient",
                                       "GroupNormalization", GroupNormalizationKind::Group) {}
};

}  // namespace mpsgrad
