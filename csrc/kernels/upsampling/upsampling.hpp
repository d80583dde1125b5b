// Nearest and bilinear upsampling by integer factors (MPSCNNUpsampling...) and their gradients
// (MPSCNNUpsampling...Gradient): every channel of every image on its own.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

enum class UpsamplingKind { Nearest, Bilinear };

struct UpsamplingFactors {
  Index x = 1, y = 1;
  bool operator==(const UpsamplingFactors&) const = default;
};

// What a device supplies to run the family. A gradient encoder finds in the call's state whether
// the forward kernel aligned corners.
class UpsamplingBackend {
 public:
  virtual ~UpsamplingBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device, UpsamplingKind kind,
                                                     const UpsamplingFactors& factors,
                                                     bool align_corners) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(
      Device& device, UpsamplingKind kind, const UpsamplingFactors& factors) const = 0;
};

// Of a forward kernel, which states record.
struct UpsamplingSettings {
  UpsamplingFactors factors;
  bool align_corners = false;
  bool operator==(const UpsamplingSettings&) const = default;
};
inline const UpsamplingSettings& upsampling_settings(const UnaryProperties& properties) {
  return properties.settings.as<UpsamplingSettings>();
}

class Upsampling : public UnaryKernel {
 public:
  const UpsamplingFactors& factors() const { return upsampling_settings(properties()).factors; }
  bool align_corners() const { return upsampling_settings(properties()).align_corners; }

 protected:
  // Factors as a caller gives them: they must be whole numbers.
  Upsampling(std::shared_ptr<Device> device, const char* class_name, UpsamplingKind kind,
             double factor_x, double factor_y, bool align_corners);
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
};

class UpsamplingNearest final : public Upsampling {
 public:
  UpsamplingNearest(std::shared_ptr<Device> device, double factor_x, double factor_y)
      : Upsampling(std::move(device), "UpsamplingNearest", UpsamplingKind::Nearest, factor_x,
                   factor_y, false) {}
};

class UpsamplingBilinear final : public Upsampling {
 public:
  UpsamplingBilinear(std::shared_ptr<Device> device, double factor_x, double factor_y,
                     bool align_corners)
      : Upsampling(std::move(device), "UpsamplingBilinear", UpsamplingKind::Bilinear, factor_x,
                   factor_y, align_corners) {}
};

// primary_offset: pixel of the incoming gradient that belongs to the forward pass's first result.
// secondary_offset and secondary_edge_mode: the forward kernel's. How many results there were, and
// which alignment made them, is the state's. The origin of the clip rectangle receives the gradient
// of the source's first pixel.
class UpsamplingGradient : public GradientKernel {
 public:
  const UpsamplingFactors& factors() const { return factors_; }

 protected:
  UpsamplingGradient(std::shared_ptr<Device> device, const char* class_name,
                     const char* forward_class, UpsamplingKind kind, double factor_x,
                     double factor_y);
  void apply_state(const GradientState& state) override;
  void check_state(const GradientState& state) const override;
  void check_call(const GradientCall& call) const override;

 private:
  UpsamplingFactors factors_;
};

class UpsamplingNearestGradient final : public UpsamplingGradient {
 public:
  UpsamplingNearestGradient(std::shared_ptr<Device> device, double factor_x, double factor_y)
      : UpsamplingGradient(std::move(device), "UpsamplingNearestGradient", "UpsamplingNearest",
                           UpsamplingKind::Nearest, factor_x, factor_y) {}
};

class UpsamplingBilinearGradient final : public UpsamplingGradient {
 public:
  UpsamplingBilinearGradient(std::shared_ptr<Device> device, double factor_x, double factor_y)
      : UpsamplingGradient(std::move(device), "UpsamplingBilinearGradient", "UpsamplingBilinear",
                           UpsamplingKind::Bilinear, factor_x, factor_y) {}
};

}  // namespace mpsgrad
