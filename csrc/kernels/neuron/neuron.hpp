// Neuron and NeuronGradient (MPSCNNNeuron, MPSCNNNeuronGradient): an activation function on every
// element.
#pragma once

#include <memory>

#include "core/gradient_kernel.hpp"
#include "core/neuron_descriptor.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

// What a device supplies to run the family.
class NeuronBackend {
 public:
  virtual ~NeuronBackend() = default;
  virtual std::unique_ptr<UnaryEncoder> make_forward(Device& device,
                                                     const NeuronDescriptor& neuron) const = 0;
  virtual std::unique_ptr<GradientEncoder> make_gradient(Device& device,
                                                         const NeuronDescriptor& neuron) const = 0;
};

class Neuron final : public UnaryKernel {
 public:
  Neuron(std::shared_ptr<Device> device, NeuronDescriptor neuron);
  const NeuronDescriptor& neuron() const { return neuron_; }

 protected:
  void check_call(const UnaryCall& call) const override;

 private:
  NeuronDescriptor neuron_;
};

// source: the forward source, not the activation's output.
class NeuronGradient final : public GradientKernel {
 public:
  NeuronGradient(std::shared_ptr<Device> device, NeuronDescriptor neuron);
  const NeuronDescriptor& neuron() const { return neuron_; }

 protected:
  void apply_state(const GradientState& state) override;
  void check_call(const GradientCall& call) const override;

 private:
  NeuronDescriptor neuron_;
};

}  // namespace mpsgrad
