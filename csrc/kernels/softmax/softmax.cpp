// Rules of the softmax kernels.
#include "kernels/softmax/softmax.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const SoftMaxBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->softmax(), "softmax");
}

}  // namespace

SoftMaxBase::SoftMaxBase(std::shared_ptr<Device> device, const char* class_name, SoftMaxKind kind)
    : UnaryKernel(std::move(device), class_name, {}) {
  set_device_encoder(backend_of(*this).make_forward(*this->device(), kind));
}

SoftMaxGradientBase::SoftMaxGradientBase(std::shared_ptr<Device> device, const char* class_name,
                                         const char* forward_class, SoftMaxKind kind)
    : GradientKernel(std::move(device), class_name, forward_class, {}, Secondary::ForwardResult) {
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), kind));
}

void SoftMaxGradientBase::apply_state(const GradientState& state) {
  place_on_result(state);
  properties_.secondary.offset.x = properties_.primary.offset.x;
  properties_.secondary.offset.y = properties_.primary.offset.y;
}

void SoftMaxGradientBase::check_call(const GradientCall& call) const {
  require_single_steps(call);
  require_equal_sizes(call);
  require_equal_channels(call);
}

}  // namespace mpsgrad
