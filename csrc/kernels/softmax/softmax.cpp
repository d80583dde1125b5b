// Rules of the softmax kernels.
#include "kernels/softmax/softmax.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const SoftMaxBackend& backend_of(const KernelBase& kernel) {
  const SoftMaxBackend* backend = kernel.device()->softmax();
  require<UnsupportedError>(backend != nullptr, kernel.class_name(), ": device '",
                            kernel.device()->kind(), "' has no softmax kernels");
  return *backend;
}

}  // namespace

SoftMaxBase::SoftMaxBase(std::shared_ptr<Device> device, const char* class_name, SoftMaxKind kind)
    : UnaryKernel(std::move(device), class_name, {}),
      encoder_(backend_of(*this).make_forward(*this->device(), kind)) {}

void SoftMaxBase::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  encoder_->encode(command_buffer, call);
}

std::shared_ptr<GradientState> SoftMaxBase::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto state = UnaryKernel::make_state(std::move(snapshot), temporary);
  state->payload = encoder_->make_payload(state->snapshot());
  return state;
}

SoftMaxGradientBase::SoftMaxGradientBase(std::shared_ptr<Device> device, const char* class_name,
                                         const char* forward_class, SoftMaxKind kind)
    : GradientKernel(std::move(device), class_name, forward_class, {}, Secondary::ForwardResult),
      encoder_(backend_of(*this).make_gradient(*this->device(), kind)) {}

void SoftMaxGradientBase::apply_state(const GradientState& state) {
  // Where in the forward result the first pixel of the forward source went.
  const ForwardSnapshot& shot = state.snapshot();
  const Offset& from = shot.properties.offset;
  properties_.primary.offset.x = properties_.secondary.offset.x = shot.clip.origin.x - from.x;
  properties_.primary.offset.y = properties_.secondary.offset.y = shot.clip.origin.y - from.y;
}

void SoftMaxGradientBase::check_call(const GradientCall& call) const {
  require_equal_sizes(call);
  require_equal_channels(call);
}

void SoftMaxGradientBase::encode_on_device(CommandBuffer& command_buffer,
                                           const GradientCall& call) {
  encoder_->encode(command_buffer, call);
}

}  // namespace mpsgrad
