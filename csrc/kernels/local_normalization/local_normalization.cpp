// Rules of the local normalization kernels.
#include "kernels/local_normalization/local_normalization.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

using Kind = LocalNormalizationKind;
using Parameter = LocalNormalizationParameter;
using Parameters = LocalNormalizationParameters;
using Settings = LocalNormalizationSettings;

// In the order of Parameter.
constexpr const char* kNames[] = {"alpha", "beta", "delta", "p0", "pm", "ps"};
constexpr float Parameters::* kMembers[] = {&Parameters::alpha, &Parameters::beta,
                                            &Parameters::delta, &Parameters::p0,
                                            &Parameters::pm,    &Parameters::ps};

Settings default_settings(Kind kind, Index kernel_size) {
  Parameters p;
  if (kind == Kind::LocalContrast) {
    p.alpha = 0.0F;
    p.beta = 0.5F;
    p.delta = 1.0F / 1024.0F;
  }
  return {kernel_size, p};
}

void store(const KernelBase& kernel, Kind kind, FamilySettings& settings, Parameter parameter,
           double value) {
  const auto index = static_cast<std::size_t>(parameter);
  const auto rounded = static_cast<float>(value);
  require(std::isfinite(rounded), kernel.class_name(), ": ", kNames[index],
          " must be a finite float32 number, got ", value);
  require(kind == Kind::LocalContrast || parameter != Parameter::Alpha || value >= 0.0,
          kernel.class_name(), ": alpha must not be negative, got ", value);
  settings.as<Settings>().parameters.*kMembers[index] = rounded;
}

const LocalNormalizationBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->local_normalization(), "local normalization");
}

// The window over pixels: none across channels.
Window window_of(Kind kind, Index width, Index height) {
  return kind == Kind::CrossChannel ? Window{} : Window{width, height, 1, 1, 1, 1};
}

void check_kernel_size(const KernelBase& kernel, Kind kind, Index width, Index height) {
  if (kind == Kind::CrossChannel) {
    require(width >= 1 && width <= kMaximumWindow, kernel.class_name(),
            ": kernel_size must be between 1 and ", kMaximumWindow, ", got ", width);
    return;
  }
  require(width == height, kernel.class_name(),
          ": kernel_width and kernel_height must be equal, got ", width, " and ", height);
}

}  // namespace

LocalNormalization::LocalNormalization(std::shared_ptr<Device> device, const char* class_name,
                                       Kind kind, Index kernel_width, Index kernel_height)
    : UnaryKernel(std::move(device), class_name, window_of(kind, kernel_width, kernel_height)),
      kind_(kind) {
  check_kernel_size(*this, kind, kernel_width, kernel_height);
  family_settings() = default_settings(kind, kernel_width);
  set_device_encoder(backend_of(*this).make_forward(*this->device(), kind, kernel_width));
}

void LocalNormalization::set_parameter(Parameter parameter, double value) {
  store(*this, kind_, family_settings(), parameter, value);
}

CrossChannelNormalization::CrossChannelNormalization(std::shared_ptr<Device> device,
                                                     Index kernel_size)
    : LocalNormalization(std::move(device), "CrossChannelNormalization", Kind::CrossChannel,
                         kernel_size, kernel_size) {}

SpatialNormalization::SpatialNormalization(std::shared_ptr<Device> device, Index kernel_width,
                                           Index kernel_height)
    : LocalNormalization(std::move(device), "SpatialNormalization", Kind::Spatial, kernel_width,
                         kernel_height) {}

LocalContrastNormalization::LocalContrastNormalization(std::shared_ptr<Device> device,
                                                       Index kernel_width, Index kernel_height)
    : LocalNormalization(std::move(device), "LocalContrastNormalization", Kind::LocalContrast,
                         kernel_width, kernel_height) {}

LocalNormalizationGradient::LocalNormalizationGradient(std::shared_ptr<Device> device,
                                                       const char* class_name,
                                                       const char* forward_class, Kind kind,
                                                       Index kernel_width, Index kernel_height)
    : GradientKernel(std::move(device), class_name, forward_class,
                     window_of(kind, kernel_width, kernel_height)),
      kind_(kind) {
  check_kernel_size(*this, kind, kernel_width, kernel_height);
  properties_.settings = default_settings(kind, kernel_width);
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), kind, kernel_width));
}

void LocalNormalizationGradient::set_parameter(Parameter parameter, double value) {
  store(*this, kind_, properties_.settings, parameter, value);
}

void LocalNormalizationGradient::apply_state(const GradientState& state) {
  place_on_result(state);
  properties_.secondary.offset.x = properties_.secondary.offset.y = 0;
}

void LocalNormalizationGradient::check_state(const GradientState& state) const {
  const UnaryProperties& forward = state.snapshot().properties;
  const Index made_with = local_normalization_settings(forward).kernel_size;
  require(made_with == kernel_size(), class_name(), ": the kernel's window is ", kernel_size(),
          " long, but the state was made with ", made_with);
  require(forward.edge_mode == EdgeMode::Zero, class_name(),
          ": only edge mode ZERO has a gradient, but the state was made with ", forward.edge_mode);
}

void LocalNormalizationGradient::check_call(const GradientCall& call) const {
  require_single_steps(call);
  for (const bool secondary : {false, true}) {
    const EdgeMode mode = call.properties.source(secondary).edge_mode;
    require(mode == EdgeMode::Zero, class_name(), ": ", secondary ? "secondary" : "primary",
            "_edge_mode must be ZERO, got ", mode);
  }
  require_equal_sizes(call);
  require_equal_channels(call);
}

CrossChannelNormalizationGradient::CrossChannelNormalizationGradient(std::shared_ptr<Device> device,
                                                                     Index kernel_size)
    : LocalNormalizationGradient(std::move(device), "CrossChannelNormalizationGradient",
                                 "CrossChannelNormalization", Kind::CrossChannel, kernel_size,
                                 kernel_size) {}

SpatialNormalizationGradient::SpatialNormalizationGradient(std::shared_ptr<Device> device,
                                                           Index kernel_width, Index kernel_height)
    : LocalNormalizationGradient(std::move(device), "SpatialNormalizationGradient",
                                 "SpatialNormalization", Kind::Spatial, kernel_width,
                                 kernel_height) {}

LocalContrastNormalizationGradient::LocalContrastNormalizationGradient(
    std::shared_ptr<Device> device, Index kernel_width, Index kernel_height)
    : LocalNormalizationGradient(std::move(device), "LocalContrastNormalizationGradient",
                                 "LocalContrastNormalization", Kind::LocalContrast, kernel_width,
                                 kernel_height) {}

}  // namespace mpsgrad
