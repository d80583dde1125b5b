// Neuron kernels of the CPU device: one pass over pixels, in any image format.
#include <optional>

#include "cpu/cpu_calls.hpp"
#include "cpu/isa.hpp"
#include "cpu/neuron_function.hpp"
#include "kernels/neuron/neuron.hpp"

namespace mpsgrad {
namespace {

// The gradient as a function of the incoming one alone, where the slope is the same everywhere:
// then nobody has to read the source. Adding -0 changes no product, adding 0 would change -0.
std::optional<NeuronFunction> constant_slope(const NeuronDescriptor& neuron) {
  const auto linear = [](float slope) {
    return NeuronFunction{NeuronType::Linear, slope, -0.0F, 0.0F, nullptr};
  };
  switch (neuron.type) {
    case NeuronType::None:
      return linear(1.0F);
    case NeuronType::Linear:
      return linear(neuron.a);
    case NeuronType::Power:
      return neuron.c == 1.0F ? std::optional(linear(neuron.a)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool takes_long(NeuronType type) {
  switch (type) {
    case NeuronType::Sigmoid:
    case NeuronType::TanH:
    case NeuronType::SoftPlus:
    case NeuronType::ELU:
    case NeuronType::Power:
    case NeuronType::Exponential:
    case NeuronType::Logarithm:
    case NeuronType::GeLU:
      return true;
    default:
      return false;
  }
}

// Whether loops had better ask for so many arrays, the destination among them, ahead: while a core
// computes a long function it does not look as far ahead as the next page. Where results are
// streamed, loops ask anyway.
bool asks_for(Index arrays, const NeuronDescriptor& neuron, const cpu::CpuImages& destination) {
  constexpr Index kFar = 4 << 20;  // more than the caches of a few cores hold
  const Index elements =
      destination.count() * destination.width * destination.height * destination.channels;
  return takes_long(neuron.type) && !destination.streamed && pauses_at_pages() &&
         arrays * elements * item_size(destination.format) >= kFar;
}

class CpuNeuron final : public UnaryEncoder {
 public:
  explicit CpuNeuron(NeuronDescriptor neuron)
      : neuron_(std::make_shared<const NeuronDescriptor>(std::move(neuron))) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(
        command_buffer, [neuron = neuron_,
                         source = cpu::PixelSource{cpu::view_source(call), call.properties.offset,
                                                   call.properties.edge_mode},
                         destination = cpu::view_destination(call), clip = call.clip] {
          const NeuronFunction f = cpu::function_of(*neuron);
          const bool asks = asks_for(2, *neuron, destination);
          cpu::map_pixels(
              {source}, destination, clip,
              [&]<class Element>(const Element* const* in, Results<Element> out, Index pixels) {
                out.asks = asks;
                neuron_loops().of(in[0]).forward(f, in[0], out, pixels, destination.channels);
              });
        });
  }

 private:
  std::shared_ptr<const NeuronDescriptor> neuron_;
};

class CpuNeuronGradient final : public GradientEncoder {
 public:
  explicit CpuNeuronGradient(NeuronDescriptor neuron)
      : neuron_(std::make_shared<const NeuronDescriptor>(std::move(neuron))) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& primary = call.properties.primary;
    const SourceProperties& secondary = call.properties.secondary;
    cpu::record(
        command_buffer,
        [neuron = neuron_,
         gradient = cpu::PixelSource{cpu::view_gradient(call), primary.offset, primary.edge_mode},
         source = cpu::PixelSource{cpu::view_source(call), secondary.offset, secondary.edge_mode},
         destination = cpu::view_destination(call, 1, 1), clip = call.clip] {
          if (const auto scaling = constant_slope(*neuron)) {
            cpu::map_pixels(
                {gradient}, destination, clip,
                [&]<class Element>(const Element* const* in, Results<Element> out, Index pixels) {
                  neuron_loops().of(in[0]).forward(*scaling, in[0], out, pixels,
                                                   destination.channels);
                });
            return;
          }
          const NeuronFunction f = cpu::function_of(*neuron);
          const bool asks = asks_for(3, *neuron, destination);
          cpu::map_pixels(
              {gradient, source}, destination, clip,
              [&]<class Element>(const Element* const* in, Results<Element> out, Index pixels) {
                out.asks = asks;
                neuron_loops().of(in[0]).gradient(f, in[0], in[1], out, pixels,
                                                  destination.channels);
              });
        });
  }

 private:
  std::shared_ptr<const NeuronDescriptor> neuron_;
};

class CpuNeuronBackend final : public NeuronBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&,
                                             const NeuronDescriptor& neuron) const override {
    return std::make_unique<CpuNeuron>(neuron);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&,
                                                 const NeuronDescriptor& neuron) const override {
    return std::make_unique<CpuNeuronGradient>(neuron);
  }
};

}  // namespace

const NeuronBackend& cpu_neuron() {
  static const CpuNeuronBackend backend;
  return backend;
}

}  // namespace mpsgrad
