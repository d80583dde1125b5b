// Cross-channel, spatial and local contrast normalization (MPSCNNCrossChannelNormalization and so
// on) and their gradients: every value is divided by a power of what lies in a window around it.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class LocalNormalizationKind { CrossChannel, Spatial, LocalContrast };

// The last three belong to local contrast.
struct LocalNormalizationParameters {
  float alpha = 1.0F, beta = 5.0F, delta = 1.0F;
  float p0 = 1.0F, pm = 0.0F, ps = 1.0F;
  bool operator==(const LocalNormalizationParameters&) const = default;
};
enum class LocalNormalizationParameter { Alpha, Beta, Delta, P0, Pm, Ps };

struct LocalNormalizationSettings {
  Index kernel_size = 0;
  LocalNormalizationParameters parameters;
  bool operator==(const LocalNormalizationSettings&) const = default;
};
template <class Properties>
const LocalNormalizationSettings& local_normalization_settings(const Properties& properties) {
  return properties.settings.template as<LocalNormalizationSettings>();
}

// What a device supplies to run the family. A window is `kernel_size` channels long, or as many
// pixels wide and high. Both encoders find the parameters in the properties of the call.
class LocalNormalizationBackend {
 public:
  virtual ~LocalNormalizationBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device, LocalNormalizationKind kind,
                                                     Index kernel_size) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                         LocalNormalizationKind kind,
                                                         Index kernel_size) const = 0;
};

class LocalNormalization : public UnaryKernel {
 public:
  Index kernel_size() const { return local_normalization_settings(properties()).kernel_size; }
  const LocalNormalizationParameters& parameters() const {
    return local_normalization_settings(properties()).parameters;
  }
  void set_parameter(LocalNormalizationParameter parameter, double value);

 protected:
  LocalNormalization(std::shared_ptr<Device> device, const char* class_name,
                     LocalNormalizationKind kind, Index kernel_width, Index kernel_height);

 private:
  LocalNormalizationKind kind_;
};

class CrossChannelNormalization final : public LocalNormalization {
 public:
  CrossChannelNormalization(std::shared_ptr<Device> device, Index kernel_size);
};

class SpatialNormalization final : public LocalNormalization {
 public:
  SpatialNormalization(std::shared_ptr<Device> device, Index kernel_width, Index kernel_height);
};

class LocalContrastNormalization final : public LocalNormalization {
 public:
  LocalContrastNormalization(std::shared_ptr<Device> device, Index kernel_width,
                             Index kernel_height);
};

// The parameters are the kernel's own: none comes from the state. Result pixel i of the clip
// rectangle receives the gradient of source pixel secondary_offset + i, whose own incoming gradient
// is at primary_offset + i.
class LocalNormalizationGradient : public GradientKernel {
 public:
  Index kernel_size() const { return local_normalization_settings(properties()).kernel_size; }
  const LocalNormalizationParameters& parameters() const {
    return local_normalization_settings(properties()).parameters;
  }
  void set_parameter(LocalNormalizationParameter parameter, double value);

 protected:
  LocalNormalizationGradient(std::shared_ptr<Device> device, const char* class_name,
                             const char* forward_class, LocalNormalizationKind kind,
                             Index kernel_width, Index kernel_height);
  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;

 private:
  LocalNormalizationKind kind_;
};

class CrossChannelNormalizationGradient final : public LocalNormalizationGradient {
 public:
  CrossChannelNormalizationGradient(std::shared_ptr<Device> device, Index kernel_size);
};

class SpatialNormalizationGradient final : public LocalNormalizationGradient {
 public:
  SpatialNormalizationGradient(std::shared_ptr<Device> device, Index kernel_width,
                               Index kernel_height);
};

class LocalContrastNormalizationGradient final : public LocalNormalizationGradient {
 public:
  LocalContrastNormalizationGradient(std::shared_ptr<Device> device, Index kernel_width,
                                     Index kernel_height);
};

}  // namespace mpsgrad
