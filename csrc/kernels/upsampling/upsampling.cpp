// Rules of the upsampling kernels.
#include "kernels/upsampling/upsampling.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const UpsamplingBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->upsampling(), "upsampling");
}

Index checked_factor(const char* who, const char* axis, double value) {
  // No image is longer than that, so a larger factor has no use.
  constexpr auto kMost = static_cast<double>(kMaximumWindow);
  require(value >= 1 && value <= kMost && value == std::floor(value), who,
          ": integer_scale_factor_", axis, " must be a whole number from 1 to ", kMaximumWindow,
          ", got ", value);
  return static_cast<Index>(value);
}

UpsamplingFactors checked_factors(const char* who, double x, double y) {
  return {checked_factor(who, "x", x), checked_factor(who, "y", y)};
}

}  // namespace

Upsampling::Upsampling(std::shared_ptr<Device> device, const char* class_name, UpsamplingKind kind,
                       double factor_x, double factor_y, bool align_corners)
    : UnaryKernel(std::move(device), class_name, {}) {
  family_settings() =
      UpsamplingSettings{checked_factors(class_name, factor_x, factor_y), align_corners};
  set_device_encoder(
      backend_of(*this).make_forward(*this->device(), kind, factors(), align_corners));
}

void Upsampling::adjust_destination(const ImageBatch::Images&, Index, ImageDescriptor& result) {
  result.width *= factors().x;
  result.height *= factors().y;
}

UpsamplingGradient::UpsamplingGradient(std::shared_ptr<Device> device, const char* class_name,
                                       const char* forward_class, UpsamplingKind kind,
                                       double factor_x, double factor_y)
    : GradientKernel(std::move(device), class_name, forward_class, {}),
      factors_(checked_factors(class_name, factor_x, factor_y)) {
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), kind, factors_));
}

void UpsamplingGradient::apply_state(const GradientState& state) {
  const ForwardSnapshot& shot = state.snapshot();
  properties_.primary.offset.x = shot.clip.origin.x;
  properties_.primary.offset.y = shot.clip.origin.y;
  properties_.secondary.offset.x = shot.properties.offset.x;
  properties_.secondary.offset.y = shot.properties.offset.y;
}

void UpsamplingGradient::check_state(const GradientState& state) const {
  const UpsamplingFactors& forward = upsampling_settings(state.snapshot().properties).factors;
  require(forward == factors_, class_name(), ": the kernel's scale factors are (", factors_.x, ", ",
          factors_.y, "), but the state was made with (", forward.x, ", ", forward.y, ")");
}

void UpsamplingGradient::check_call(const GradientCall& call) const {
  require_single_steps(call);
  require_equal_channels(call);
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  const ForwardSnapshot& shot = call.state().snapshot();
  require_size(*this, "source_gradient", gradient, "the forward result was", shot.destination_width,
               shot.destination_height);
}

}  // namespace mpsgrad
