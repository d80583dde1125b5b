// Rules of the neuron kernels.
#include "kernels/neuron/neuron.hpp"

#include "base/errors.hpp"

namespace mpsgrad {

Neuron::Neuron(std::shared_ptr<Device> device, NeuronDescriptor neuron)
    : UnaryKernel(std::move(device), "Neuron", {}), neuron_(std::move(neuron)) {
  check_neuron(neuron_, class_name(), 0);
  const NeuronBackend* backend = this->device()->neuron();
  require<UnsupportedError>(backend != nullptr, class_name(), ": device '", this->device()->kind(),
                            "' has no neuron kernels");
  encoder_ = backend->make_forward(*this->device(), neuron_);
}

void Neuron::check_call(const UnaryCall& call) const {
  check_neuron(neuron_, class_name(), call.consumed_channels);
}

void Neuron::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  encoder_->encode(command_buffer, call);
}

std::shared_ptr<GradientState> Neuron::make_state(ForwardSnapshot snapshot,
                                                  const std::shared_ptr<CommandBuffer>& temporary) {
  auto state = UnaryKernel::make_state(std::move(snapshot), temporary);
  state->payload = encoder_->make_payload(state->snapshot());
  return state;
}

NeuronGradient::NeuronGradient(std::shared_ptr<Device> device, NeuronDescriptor neuron)
    : GradientKernel(std::move(device), "NeuronGradient", "Neuron", {}),
      neuron_(std::move(neuron)) {
  check_neuron(neuron_, class_name(), 0);
  const NeuronBackend* backend = this->device()->neuron();
  require<UnsupportedError>(backend != nullptr, class_name(), ": device '", this->device()->kind(),
                            "' has no neuron kernels");
  encoder_ = backend->make_gradient(*this->device(), neuron_);
}

void NeuronGradient::apply_state(const GradientState& state) {
  // Where in the forward result the first pixel of the forward source went.
  const ForwardSnapshot& shot = state.snapshot();
  properties_.primary.offset.x = shot.clip.origin.x - shot.properties.offset.x;
  properties_.primary.offset.y = shot.clip.origin.y - shot.properties.offset.y;
}

void NeuronGradient::check_call(const GradientCall& call) const {
  check_neuron(neuron_, class_name(), call.source_channels);
  require_equal_sizes(call);
  require_equal_channels(call);
}

void NeuronGradient::encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) {
  encoder_->encode(command_buffer, call);
}

}  // namespace mpsgrad
