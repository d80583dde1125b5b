// Instance and group normalization on the Metal device (MPSCNNInstanceNormalization,
// MPSCNNGroupNormalization and their gradients). A state of ours shares the buffers of Apple's,
// which looks through to the forward kernel's live weights, as ours does.
#include "kernels/group_normalization/group_normalization.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"
#include "metal/metal_normalization.hpp"
#include "metal/metal_states.hpp"

namespace mpsgrad {
namespace {

using Kind = GroupNormalizationKind;
using Settings = GroupNormalizationSettings;
using metal::PoolScope;
using metal::Retained;

// What the two kinds call their classes.
struct Instances {
  using Forward = MPSCNNInstanceNormalization;
  using State = MPSCNNInstanceNormalizationGradientState;
  static constexpr const char* kName = "InstanceNormalization";
  static constexpr const char* kForward = "MPSCNNInstanceNormalization";
  static Retained<id> source(metal::NormalizationNumbers& numbers) {
    return metal::make_normalization_source(numbers);
  }
};

struct Groups {
  using Forward = MPSCNNGroupNormalization;
  using State = MPSCNNGroupNormalizationGradientState;
  static constexpr const char* kName = "GroupNormalization";
  static constexpr const char* kForward = "MPSCNNGroupNormalization";
  static Retained<id> source(metal::NormalizationNumbers& numbers) {
    return metal::make_group_normalization_source(numbers);
  }
};

template <class Classes>
class MetalGroupNormalization final : public GroupNormalizationEncoder {
 public:
  using Forward = typename Classes::Forward;

  MetalGroupNormalization(Device& device, std::shared_ptr<const NormalizationPair> weights,
                          const Settings& settings)
      : device_(device), weights_(std::move(weights)) {
    const PoolScope pool;
    numbers_.channels = settings.channels;
    numbers_.groups = settings.groups;
    numbers_.epsilon = settings.epsilon;
    numbers_.copy_gamma_and_beta(*weights_);
    const auto source = Classes::source(numbers_);
    kernel_ = metal::adopt_kernel<Forward>([[Forward alloc] initWithDevice:metal::mtl_device(device)
                                                                dataSource:source.get()],
                                           Classes::kForward);
  }

  void weights_replaced() override {
    const PoolScope pool;
    numbers_.copy_gamma_and_beta(*weights_);
    [kernel_.get() reloadGammaAndBetaFromDataSource];
  }

  void encode_reload(CommandBuffer& command_buffer,
                     NormalizationGammaAndBetaState& state) override {
    metal::encode_reload(Classes::kName, kernel_.get(), command_buffer, state);
  }

  GroupNormalizationGradientStateBase::Contents make_state(const ForwardSnapshot& snapshot,
                                                           const Settings& settings,
                                                           CommandBuffer* temporary) override {
    const PoolScope pool;
    set_properties(snapshot.properties, snapshot.clip.size.depth, settings);
    auto payload = metal::make_state(kernel_.get(), snapshot, temporary);
    auto* state = static_cast<typename Classes::State*>(payload->get());
    const auto share = [&](id<MTLBuffer> buffer) {
      return metal::share_floats(device_, buffer, settings.channels, Classes::kForward);
    };
    return {share([state gradientForGamma]), share([state gradientForBeta]), std::move(payload)};
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call, const Settings& settings,
              const std::shared_ptr<Buffer>&, const std::shared_ptr<Buffer>&) override {
    const PoolScope pool;
    set_properties(call.properties, call.clip.size.depth, settings);
    metal::set_label(kernel_.get(), call.kernel);
    NSArray<MPSState*>* states =
        call.states.empty() ? nil : metal::mps_states(call.kernel.class_name(), call.states);
    metal::encode_prepared(command_buffer, kernel_.get(), call, states);
  }

 private:
  void set_properties(const UnaryProperties& properties, Index depth, const Settings& settings) {
    Forward* kernel = kernel_.get();
    kernel.epsilon = settings.epsilon;
    const auto& record = properties.settings.as<GroupNormalizationRecord>();
    kernel.options = static_cast<MPSKernelOptions>(record.options);
    metal::set_properties(kernel, {properties, depth, settings.channels});
  }

  Device& device_;
  std::shared_ptr<const NormalizationPair> weights_;
  metal::NormalizationNumbers numbers_;
  Retained<Forward*> kernel_;
};

template <class Gradient>
std::unique_ptr<GradientEncoder> gradient_encoder(Device& device, const char* class_name) {
  return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
      [[Gradient alloc] initWithDevice:metal::mtl_device(device)], class_name));
}

class MetalGroupNormalizationBackend final : public GroupNormalizationBackend {
 public:
  std::unique_ptr<GroupNormalizationEncoder> make_forward(
      Device& device, Kind kind, const std::shared_ptr<const NormalizationPair>& weights,
      const Settings& settings) const override {
    if (kind == Kind::Instance) {
      return std::make_unique<MetalGroupNormalization<Instances>>(device, weights, settings);
    }
    return std::make_unique<MetalGroupNormalization<Groups>>(device, weights, settings);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device, Kind kind) const override {
    const PoolScope pool;
    return kind == Kind::Instance ? gradient_encoder<MPSCNNInstanceNormalizationGradient>(
                                        device, "MPSCNNInstanceNormalizationGradient")
                                  : gradient_encoder<MPSCNNGroupNormalizationGradient>(
                                        device, "MPSCNNGroupNormalizationGradient");
  }
};

}  // namespace

const GroupNormalizationBackend& metal_group_normalization() {
  static const MetalGroupNormalizationBackend backend;
  return backend;
}

namespace metal {

Node make_group_normalization_node(const NodeRequest& request) {
  if (request.kernel<InstanceNormalization>() != nullptr) {
    return adopt_node([[MPSCNNInstanceNormalizationNode alloc] initWithSource:request.source()
                                                                   dataSource:request.data_source]);
  }
  if (request.kernel<GroupNormalization>() != nullptr) {
    return adopt_node([[MPSCNNGroupNormalizationNode alloc] initWithSource:request.source()
                                                                dataSource:request.data_source]);
  }
  return {};
}

namespace {

template <class Ours, class Apples>
StateAdopter adopter_of(const State& like, const char* who) {
  const auto* ours = dynamic_cast<const Ours*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  return [who, snapshot = ours->snapshot(), producer = ours->producer(),
          settings = ours->settings(), has_gradients = ours->has_gradients()](
             MPSState* made, StateAdoption& adoption) -> std::shared_ptr<State> {
    auto* state = static_cast<Apples*>(made);
    const Index channels = settings.channels;
    GroupNormalizationGradientStateBase::Contents contents{
        adoption.floats([state gradientForGamma], channels, who),
        adoption.floats([state gradientForBeta], channels, who), adoption.payload(made)};
    auto result = std::make_shared<Ours>(
        adoption.device, adoption.owner(), snapshot, producer,
        std::make_shared<const NormalizationPair>(
            adoption.device, channels, adoption.live_floats([state gamma], channels, who),
            adoption.live_floats([state beta], channels, who)),
        settings, std::move(contents));
    result->note_encoded(adoption.work());
    if (has_gradients) {
      result->note_gradients(adoption.work());
    }
    return result;
  };
}

}  // namespace

StateAdopter group_normalization_state_adopter(const State& like) {
  StateAdopter adopter =
      adopter_of<InstanceNormalizationGradientState, MPSCNNInstanceNormalizationGradientState>(
          like, "MPSCNNInstanceNormalizationGradientState");
  return adopter
             ? adopter
             : adopter_of<GroupNormalizationGradientState, MPSCNNGroupNormalizationGradientState>(
                   like, "MPSCNNGroupNormalizationGradientState");
}

}  // namespace metal
}  // namespace mpsgrad
