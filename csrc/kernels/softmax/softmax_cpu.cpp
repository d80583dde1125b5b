// Softmax kernels of the CPU device: one pass over pixels, in any image format.
#include "cpu/cpu_calls.hpp"
#include "kernels/softmax/softmax.hpp"
#include "kernels/softmax/softmax_simd.hpp"

namespace mpsgrad {
namespace {

constexpr int kExponentials = 3;  // scratch of a thread, beside what map_pixels uses

class CpuSoftMax final : public UnaryEncoder {
 public:
  explicit CpuSoftMax(SoftMaxKind kind) : kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer, [kind = kind_,
                                 source = cpu::PixelSource{cpu::view_source(call),
                                                           call.properties.offset,
                                                           call.properties.edge_mode},
                                 destination = cpu::view_destination(call), clip = call.clip] {
      const SoftMaxLoops& loops = softmax_loops();
      const Index channels = destination.channels;
      cpu::map_pixels(
          {source}, destination, clip, [&](const float* const* in, float* out, Index pixels) {
            if (kind == SoftMaxKind::Plain) {
              loops.softmax(in[0], out, pixels, channels);
            } else {
              loops.log_softmax(in[0], out, cpu::thread_scratch(kExponentials, pixels * channels),
                                pixels, channels);
            }
          });
    });
  }

 private:
  SoftMaxKind kind_;
};

class CpuSoftMaxGradient final : public GradientEncoder {
 public:
  explicit CpuSoftMaxGradient(SoftMaxKind kind) : kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const SourceProperties& primary = call.properties.primary;
    const SourceProperties& secondary = call.properties.secondary;
    cpu::record(
        command_buffer,
        [kind = kind_,
         gradient = cpu::PixelSource{cpu::view_gradient(call), primary.offset, primary.edge_mode},
         result = cpu::PixelSource{cpu::view_source(call), secondary.offset, secondary.edge_mode},
         destination = cpu::view_destination(call), clip = call.clip] {
          const SoftMaxLoops& loops = softmax_loops();
          const auto run =
              kind == SoftMaxKind::Plain ? loops.softmax_gradient : loops.log_softmax_gradient;
          cpu::map_pixels({gradient, result}, destination, clip,
                          [&](const float* const* in, float* out, Index pixels) {
                            run(in[0], in[1], out, pixels, destination.channels);
                          });
        });
  }

 private:
  SoftMaxKind kind_;
};

class CpuSoftMaxBackend final : public SoftMaxBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device&, SoftMaxKind kind) const override {
    return std::make_unique<CpuSoftMax>(kind);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device&, SoftMaxKind kind) const override {
    return std::make_unique<CpuSoftMaxGradient>(kind);
  }
};

}  // namespace

const SoftMaxBackend& cpu_softmax() {
  static const CpuSoftMaxBackend backend;
  return backend;
}

}  // namespace mpsgrad
