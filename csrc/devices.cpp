// Builds each device: which kernel families it has.
#include "base/errors.hpp"
#include "cpu/cpu_device.hpp"
#include "cpu/cpu_queue.hpp"
#include "device/device.hpp"
#include "device/prober.hpp"
#include "graph/description.hpp"
#if defined(MPSGRAD_HAVE_METAL)
#include "metal/metal_device.hpp"
#endif

namespace mpsgrad {

const ArithmeticBackend& cpu_arithmetic();
const BatchNormalizationBackend& cpu_batch_normalization();
const ConvolutionBackend& cpu_convolution();
const DropoutBackend& cpu_dropout();
const GramMatrixBackend& cpu_gram_matrix();
const GroupNormalizationBackend& cpu_group_normalization();
const LocalNormalizationBackend& cpu_local_normalization();
const LossBackend& cpu_loss();
const NeuronBackend& cpu_neuron();
const OptimizerBackend& cpu_optimizer();
const PoolingBackend& cpu_pooling();
const ReductionBackend& cpu_reduction();
const ReshapeBackend& cpu_reshape();
const ResizeBackend& cpu_resize();
const SoftMaxBackend& cpu_softmax();
const UpsamplingBackend& cpu_upsampling();
#if defined(MPSGRAD_HAVE_METAL)
const Prober& metal_prober();
#endif

namespace {

class CpuDevice final : public cpu::CpuDeviceBase {
 public:
  const ArithmeticBackend* arithmetic() const override { return &cpu_arithmetic(); }
  const BatchNormalizationBackend* batch_normalization() const override {
    return &cpu_batch_normalization();
  }
  const ConvolutionBackend* convolution() const override { return &cpu_convolution(); }
  const DropoutBackend* dropout() const override { return &cpu_dropout(); }
  const GramMatrixBackend* gram_matrix() const override { return &cpu_gram_matrix(); }
  const GroupNormalizationBackend* group_normalization() const override {
    return &cpu_group_normalization();
  }
  const LocalNormalizationBackend* local_normalization() const override {
    return &cpu_local_normalization();
  }
  const LossBackend* loss() const override { return &cpu_loss(); }
  const NeuronBackend* neuron() const override { return &cpu_neuron(); }
  const OptimizerBackend* optimizer() const override { return &cpu_optimizer(); }
  const PoolingBackend* pooling() const override { return &cpu_pooling(); }
  const ReductionBackend* reduction() const override { return &cpu_reduction(); }
  const ReshapeBackend* reshape() const override { return &cpu_reshape(); }
  const ResizeBackend* resize() const override { return &cpu_resize(); }
  const SoftMaxBackend* softmax() const override { return &cpu_softmax(); }
  const UpsamplingBackend* upsampling() const override { return &cpu_upsampling(); }
};

}  // namespace

std::shared_ptr<Device> find_device(const std::string& kind) {
  require(kind.empty() || kind == "cpu" || kind == "metal",
          "Device: kind must be 'cpu' or 'metal', got '", kind, "'");
#if defined(MPSGRAD_HAVE_METAL)
  if (kind != "cpu") {
    if (auto metal = metal::find_metal_device()) {
      return metal;
    }
    require<DeviceError>(kind.empty(),
                         "Device: this machine has no GPU that MetalPerformanceShaders supports");
  }
#else
  require<DeviceError>(kind != "metal",
                       "Device: this build has no Metal device; use Device('cpu')");
#endif
  static const std::shared_ptr<Device> cpu = std::make_shared<CpuDevice>();
  return cpu;
}

const Prober* find_prober([[maybe_unused]] const Device& device) {
#if defined(MPSGRAD_HAVE_METAL)
  if (device.kind() == "metal") {
    return &metal_prober();
  }
#endif
  return nullptr;
}

void drain_all_devices() {
  cpu::drain_all_queues();
#if defined(MPSGRAD_HAVE_METAL)
  metal::drain();
#endif
}

#if defined(MPSGRAD_HAVE_METAL)
// Throws GraphUnsuitable.
std::unique_ptr<GraphRunner> make_metal_graph(const std::shared_ptr<Device>& device,
                                              GraphDescription description);
#endif

bool has_graphs(const Device& device) { return device.kind() == "metal"; }

std::unique_ptr<GraphRunner> make_graph_runner(
    [[maybe_unused]] const std::shared_ptr<Device>& device,
    [[maybe_unused]] GraphDescription description, [[maybe_unused]] std::string& reason) {
#if defined(MPSGRAD_HAVE_METAL)
  if (has_graphs(*device)) {
    try {
      return make_metal_graph(device, std::move(description));
    } catch (const GraphUnsuitable& unsuitable) {
      reason = unsuitable.what();
    }
  }
#endif
  return nullptr;
}

}  // namespace mpsgrad
