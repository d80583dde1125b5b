// Rules of the neuron kernels.
#include "kernels/neuron/neuron.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const NeuronBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->neuron(), "neuron");
}

}  // namespace

Neuron::Neuron(std::shared_ptr<Device> device, NeuronDescriptor neuron)
    : UnaryKernel(std::move(device), "Neuron", {}), neuron_(std::move(neuron)) {
  check_neuron(neuron_, class_name(), 0);
  set_device_encoder(backend_of(*this).make_forward(*this->device(), neuron_));
}

void Neuron::check_call(const UnaryCall& call) const {
  check_neuron(neuron_, class_name(), call.consumed_channels);
}

NeuronGradient::NeuronGradient(std::shared_ptr<Device> device, NeuronDescriptor neuron)
    : GradientKernel(std::move(device), "NeuronGradient", "Neuron", {}),
      neuron_(std::move(neuron)) {
  check_neuron(neuron_, class_name(), 0);
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), neuron_));
}

void NeuronGradient::apply_state(const GradientState& state) {
  place_on_result(state);
  properties_.secondary.offset.x = 0;
  properties_.secondary.offset.y = 0;
}

void NeuronGradient::check_call(const GradientCall& call) const {
  check_neuron(neuron_, class_name(), call.source_channels);
  require_single_steps(call);
  require_equal_sizes(call);
  require_equal_channels(call);
}

}  // namespace mpsgrad
