// Rules of the instance and group normalization kernels.
#include "kernels/group_normalization/group_normalization.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

using Kind = GroupNormalizationKind;
using StateBase = GroupNormalizationGradientStateBase;

const GroupNormalizationBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->group_normalization(), "group normalization");
}

StateBase& own_of(State& state) { return dynamic_cast<StateBase&>(state); }

void check_channels(const KernelBase& kernel, const char* name, const ImageBatch::Images& images,
                    Index offset, Index maximum, Index channels) {
  const Index offered = consumed_channels(kernel, {name, &images, false}, offset, maximum, 0);
  require(offered == channels, kernel.class_name(), ": ", name, " offers ", offered,
          " channels, but the kernel normalizes ", channels);
}

}  // namespace

// ---- state

StateBase::GroupNormalizationGradientStateBase(const char* name, std::shared_ptr<Device> device,
                                               const std::shared_ptr<CommandBuffer>& temporary,
                                               ForwardSnapshot snapshot,
                                               std::shared_ptr<KernelBase> producer,
                                               std::shared_ptr<const NormalizationPair> weights,
                                               const GroupNormalizationSettings& settings,
                                               Contents contents)
    : GradientState(std::move(device), temporary, std::move(snapshot)),
      producer_(std::move(producer)),
      weights_(std::move(weights)),
      settings_(settings) {
  contents.gradient_for_gamma->expect_synchronize(text(name, ".gradient_for_gamma"));
  contents.gradient_for_beta->expect_synchronize(text(name, ".gradient_for_beta"));
  add_resource(std::move(contents.gradient_for_gamma));
  add_resource(std::move(contents.gradient_for_beta));
  payload = std::move(contents.payload);
}

void StateBase::require_gradients(const char* what) const {
  require<StateError>(has_gradients(), class_name(), ": there is no ", what,
                      " before a gradient encode with this state");
}

void StateBase::require_complete_gradients(const char* who) const {
  require<StateError>(has_gradients(), who, ": the ", class_name(),
                      " has no gradients yet; encode the gradient kernel with it first");
}

std::shared_ptr<Buffer> StateBase::gradient_for_gamma() {
  require_gradients("gradient_for_gamma");
  return gamma_sums();
}

std::shared_ptr<Buffer> StateBase::gradient_for_beta() {
  require_gradients("gradient_for_beta");
  return beta_sums();
}

// ---- forward

GroupNormalizationBase::GroupNormalizationBase(std::shared_ptr<Device> device,
                                               const char* class_name, Kind kind,
                                               std::shared_ptr<NormalizationDataSource> source)
    : UnaryKernel(std::move(device), class_name, {}), kind_(kind), source_(std::move(source)) {
  const GroupNormalizationBackend& backend = backend_of(*this);
  const NormalizationSourceData data =
      read_normalization_source(this->class_name(), source_, {true, false, true}, 0);
  settings_.channels = data.channels;
  settings_.groups = kind == Kind::Group ? data.groups.value_or(0) : data.channels;
  require(settings_.groups >= 1 && settings_.groups <= settings_.channels &&
              settings_.channels % settings_.groups == 0,
          this->class_name(), ": number_of_groups must divide the ", settings_.channels,
          " channels, got ", settings_.groups);
  label = data.label;
  if (data.epsilon) {
    set_epsilon(*data.epsilon);
  }
  weights_ = std::make_shared<NormalizationPair>(this->device(), settings_.channels, 1.0F, 0.0F);
  weights_->set(data.gamma, data.beta);
  encoder_ = backend.make_forward(*this->device(), kind, weights_, settings_);
}

void GroupNormalizationBase::set_epsilon(float value) {
  check_normalization_epsilon(class_name(), value);
  settings_.epsilon = value;
}

void GroupNormalizationBase::reload_gamma_and_beta_from_data_source() {
  const NormalizationSourceData data =
      read_normalization_source(class_name(), source_, {true, false, false}, settings_.channels);
  weights_->set(data.gamma, data.beta);
  encoder_->weights_replaced();
}

void GroupNormalizationBase::reload_gamma_and_beta(
    const std::shared_ptr<CommandBuffer>& command_buffer,
    const std::shared_ptr<NormalizationGammaAndBetaState>& state) {
  weights_->check_reload(*this, *command_buffer, state);
  weights_->reload(*command_buffer, *state,
                   [&] { encoder_->encode_reload(*command_buffer, *state); });
}

void GroupNormalizationBase::check_call(const UnaryCall& call) const {
  check_channels(*this, "source", call.sources, call.properties.source_channel_offset,
                 call.properties.source_channel_maximum, settings_.channels);
  require_distinct_states(*this, "destination_states", call.states);
  check_stated_depth(call);
  for (const auto& state : call.states) {
    require(own_of(*state).producer().get() == this, class_name(),
            ": destination_state was made by another ", class_name());
  }
}

void GroupNormalizationBase::encode_on_device(CommandBuffer& command_buffer,
                                              const UnaryCall& call) {
  encoder_->encode(command_buffer, call, settings_, weights_->first(), weights_->second());
  note_use(command_buffer, weights_->first(), false);
  note_use(command_buffer, weights_->second(), false);
  for (const auto& state : call.states) {
    own_of(*state).note_encoded(command_buffer.work());
  }
}

std::shared_ptr<GradientState> GroupNormalizationBase::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto contents = encoder_->make_state(snapshot, settings_, temporary.get());
  const auto make = [&](auto* type) -> std::shared_ptr<GradientState> {
    using Own = std::remove_pointer_t<decltype(type)>;
    return std::make_shared<Own>(device(), temporary, std::move(snapshot), shared_from_this(),
                                 std::shared_ptr<const NormalizationPair>(weights_), settings_,
                                 std::move(contents));
  };
  return kind_ == Kind::Instance ? make(static_cast<InstanceNormalizationGradientState*>(nullptr))
                                 : make(static_cast<GroupNormalizationGradientState*>(nullptr));
}

// ---- gradient

GroupNormalizationGradientBase::GroupNormalizationGradientBase(std::shared_ptr<Device> device,
                                                               const char* class_name,
                                                               const char* forward_class, Kind kind)
    : GradientKernel(std::move(device), class_name, forward_class, {}),
      encoder_(backend_of(*this).make_gradient(*this->device(), kind)) {}

void GroupNormalizationGradientBase::apply_state(const GradientState&) {
  properties_.primary.offset = properties_.secondary.offset = {};
}

void GroupNormalizationGradientBase::check_state(const GradientState& state) const {
  const auto* own = dynamic_cast<const StateBase*>(&state);
  require<TypeError>(own != nullptr, class_name(), ": state is a ", state.class_name(),
                     ", which no instance or group normalization has made");
  require<StateError>(own->was_encoded(), class_name(),
                      ": no forward encode has been given this state; encode the forward kernel "
                      "with it first");
  // The sums are over whole images, so what a shifted or clipped pass left out is missing.
  const ForwardSnapshot& shot = own->snapshot();
  require(shot.properties.offset == Offset{} && shot.properties.clip_rect == Region{}, class_name(),
          ": the forward pass had an offset or a clip rectangle; there is a gradient of whole "
          "images only");
  require(
      shot.destination_width == shot.source_width && shot.destination_height == shot.source_height,
      class_name(), ": the forward result was ", shot.destination_width, "x",
      shot.destination_height, ", but its source ", shot.source_width, "x", shot.source_height,
      "; there is a gradient of whole images only");
}

void GroupNormalizationGradientBase::check_call(const GradientCall& call) const {
  const BinaryProperties& p = call.properties;
  require_whole_images(*this, p);
  require_equal_sizes(call);
  const ImageDescriptor& source = call.sources.front()->descriptor();
  const ImageDescriptor& destination = call.destinations.front()->descriptor();
  require_size(*this, "destination", destination, "source is", source.width, source.height);
  check_channels(*this, "source_gradient", call.gradients, p.primary.channel_offset,
                 p.primary.channel_maximum, call.produced_channels);
  check_channels(*this, "source", call.sources, p.secondary.channel_offset,
                 p.secondary.channel_maximum, call.produced_channels);
  require(call.batch || source.number_of_images == 1, class_name(), ": an image that holds ",
          source.number_of_images, " has one state; pass a batch, so that every image has its own");
  require_distinct_states(*this, "state", call.states);
  const auto& producer = own_of(*call.states.front()).producer();
  for (const auto& state : call.states) {
    require(own_of(*state).producer() == producer, class_name(),
            ": the states of a batch must come from one kernel");
  }
}

void GroupNormalizationGradientBase::encode_on_device(CommandBuffer& command_buffer,
                                                      const GradientCall& call) {
  encoder_->encode(command_buffer, call);
  for (const auto& state : call.states) {
    StateBase& own = own_of(*state);
    note_use(command_buffer, own.gamma(), false);
    note_use(command_buffer, own.beta(), false);
    note_use(command_buffer, own.gamma_sums(), true);
    note_use(command_buffer, own.beta_sums(), true);
    own.note_gradients(command_buffer.work());
  }
}

}  // namespace mpsgrad
