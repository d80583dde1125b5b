// Softmax kernels of the CPU device: one pass over pixels, in any image format.
#include "cpu/cpu_calls.hpp"
#include "kernels/softmax/softmax.hpp"
#include "kernels/softmax/softmax_simd.hpp"

namespace mpsgrad {
namespace {

constexpr int kScratch = 3;  // of a thread, beside what map_pixels uses

float* scratch_for(Index elements) { return cpu::thread_scratch(kScratch, 2 * elements); }

// Rows of so few channels are shorter than vectors: float16 is better converted many at a time.
constexpr Index kFewChannels = 8;

template <std::size_t kSources, class Body>
void map_rows(const cpu::PixelSource (&sources)[kSources], const cpu::CpuImages& destination,
              const Region& clip, const Body& body) {
  if (destination.channels >= kFewChannels) {
    return cpu::map_pixels(sources, destination, clip, body);
  }
  cpu::map_pixels(sources, destination, clip,
                  [&](const float* const* in, float* out, Index pixels) { body(in, out, pixels); });
}

class CpuSoftMax final : public UnaryEncoder {
 public:
  explicit CpuSoftMax(SoftMaxKind kind) : kind_(kind) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    cpu::record(command_buffer, [kind = kind_,
                                 source = cpu::PixelSource{cpu::view_source(call),
                                                           call.properties.offset,
                                                           call.properties.edge_mode},
                                 destination = cpu::view_destination(call), clip = call.clip] {
      const Index channels = destination.channels;
      map_rows({source}, destination, clip, [&](const auto* const* in, auto* out, Index pixels) {
        const auto& loops = softmax_loops().of(out);
        const auto run = kind == SoftMaxKind::Plain ? loops.softmax : loops.log_softmax;
        run(in[0], out, scratch_for(pixels * channels), pixels, channels);
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
         destination = cpu::view_destination(call, 1, 1), clip = call.clip] {
          const Index channels = destination.channels;
          map_rows({gradient, result}, destination, clip,
                   [&](const auto* const* in, auto* out, Index pixels) {
                     const auto& loops = softmax_loops().of(out);
                     const auto run = kind == SoftMaxKind::Plain ? loops.softmax_gradient
                                                                 : loops.log_softmax_gradient;
                     run(in[0], in[1], out, scratch_for(pixels * channels), pixels, channels);
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
