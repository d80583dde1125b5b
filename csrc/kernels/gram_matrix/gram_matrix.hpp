// Gram matrices (MPSNNGramMatrixCalculation): products of every two channels, summed over the
// pixels of an image, and their gradient. What style transfer's losses compare.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

// What a device supplies to run the family. Both encoders find alpha in the properties of the call.
class GramMatrixBackend {
 public:
  virtual ~GramMatrixBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device) const = 0;
};

struct GramMatrixSettings {
  float alpha = 1.0F;  // the factor of every result
  bool operator==(const GramMatrixSettings&) const = default;
};
template <class Properties>
float gram_matrix_alpha(const Properties& properties) {
  return properties.settings.template as<GramMatrixSettings>().alpha;
}

// result(x = f, channel c) = alpha * sum over pixels of source(f) * source(c): one row of pixels,
// as many as there are channels.
class GramMatrixCalculation final : public UnaryKernel {
 public:
  GramMatrixCalculation(std::shared_ptr<Device> device, double alpha);
  float alpha() const { return gram_matrix_alpha(properties()); }
  void set_alpha(double value);

 protected:
  void adjust_destination(const ImageBatch::Images& sources, Index method,
                          ImageDescriptor& result) override;
  void check_call(const UnaryCall& call) const override;
};

// result(pixel, k) = alpha * sum over c of (gradient(k, c) + gradient(c, k)) * source(pixel, c).
// Every encode takes alpha from the state, and leaves it in the property.
class GramMatrixCalculationGradient final : public GradientKernel {
 public:
  GramMatrixCalculationGradient(std::shared_ptr<Device> device, double alpha);
  float alpha() const { return gram_matrix_alpha(properties()); }
  void set_alpha(double value);

 protected:
  void apply_state(const GradientState& state) override;
  void check_call(const GradientCall& call) const override;
  void encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) override;
};

}  // namespace mpsgrad
