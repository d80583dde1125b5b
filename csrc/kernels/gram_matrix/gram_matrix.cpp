// Rules of the Gram matrix kernels.
#include "kernels/gram_matrix/gram_matrix.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

GramMatrixSettings checked_settings(const KernelBase& kernel, double value) {
  const auto rounded = static_cast<float>(value);
  require(std::isfinite(rounded), kernel.class_name(),
          ": alpha must be a finite float32 number, got ", value);
  return {rounded};
}

const GramMatrixBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->gram_matrix(), "Gram matrix");
}

}  // namespace

// ---- forward

GramMatrixCalculation::GramMatrixCalculation(std::shared_ptr<Device> device, double alpha)
    : UnaryKernel(std::move(device), "GramMatrixCalculation", {}) {
  family_settings() = checked_settings(*this, alpha);
  set_device_encoder(backend_of(*this).make_forward(*this->device()));
}

void GramMatrixCalculation::set_alpha(double value) {
  family_settings() = checked_settings(*this, value);
}

void GramMatrixCalculation::adjust_destination(const ImageBatch::Images&, Index,
                                               ImageDescriptor& result) {
  result.width = result.feature_channels - properties().destination_channel_offset;
  result.height = 1;
}

void GramMatrixCalculation::check_call(const UnaryCall& call) const {
  require_default(*this, "offset", call.properties.offset);
  require_default(*this, "clip_rect", call.properties.clip_rect);
  const ImageDescriptor& result = call.destinations.front()->descriptor();
  const Index channels = call.consumed_channels;
  require(result.width == channels && result.height == 1, class_name(), ": destination is ",
          result.width, "x", result.height, ", but the matrix of ", channels, " channels is ",
          channels, "x1");
}

// ---- gradient

GramMatrixCalculationGradient::GramMatrixCalculationGradient(std::shared_ptr<Device> device,
                                                             double alpha)
    : GradientKernel(std::move(device), "GramMatrixCalculationGradient", "GramMatrixCalculation",
                     {}) {
  properties_.settings = checked_settings(*this, alpha);
  set_device_encoder(backend_of(*this).make_gradient(*this->device()));
}

void GramMatrixCalculationGradient::set_alpha(double value) {
  properties_.settings = checked_settings(*this, value);
}

void GramMatrixCalculationGradient::apply_state(const GradientState& state) {
  properties_.primary.offset = properties_.secondary.offset = {};
  properties_.settings = state.snapshot().properties.settings;
}

void GramMatrixCalculationGradient::check_call(const GradientCall& call) const {
  require_whole_images(*this, call.properties);
  require_equal_channels(call);
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  const ImageDescriptor& source = call.sources.front()->descriptor();
  const ImageDescriptor& result = call.destinations.front()->descriptor();
  const Index channels = call.source_channels;
  const Index forward_channels = call.state().snapshot().source_channels;
  require(source.feature_channels == forward_channels, class_name(), ": source has ",
          source.feature_channels, " channels, but the state was made for a forward source of ",
          forward_channels);
  require(gradient.width == channels && gradient.height == 1, class_name(), ": source_gradient is ",
          gradient.width, "x", gradient.height, ", but the matrix of ", channels, " channels is ",
          channels, "x1");
  require_size(*this, "destination", result, "source is", source.width, source.height);
}

void GramMatrixCalculationGradient::encode_on_device(CommandBuffer& command_buffer,
                                                     const GradientCall& call) {
  // The states of a batch come from one encode, and so with one alpha.
  properties_.settings = call.state().snapshot().properties.settings;
  GradientKernel::encode_on_device(command_buffer, call);
}

}  // namespace mpsgrad
