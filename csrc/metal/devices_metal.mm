// Composes the Metal device: which kernel families it has.
#include "metal/metal_device.hpp"
#include "metal/metal_objects.hpp"

namespace mpsgrad {

const ArithmeticBackend& metal_arithmetic();
const BatchNormalizationBackend& metal_batch_normalization();
const ConvolutionBackend& metal_convolution();
const DropoutBackend& metal_dropout();
const GramMatrixBackend& metal_gram_matrix();
const GroupNormalizationBackend& metal_group_normalization();
const LocalNormalizationBackend& metal_local_normalization();
const LossBackend& metal_loss();
const NeuronBackend& metal_neuron();
const OptimizerBackend& metal_optimizer();
const PoolingBackend& metal_pooling();
const ReductionBackend& metal_reduction();
const ReshapeBackend& metal_reshape();
const ResizeBackend& metal_resize();
const SoftMaxBackend& metal_softmax();
const UpsamplingBackend& metal_upsampling();

namespace metal {

void wait_for_all();

namespace {

class MetalDevice final : public MetalDeviceBase {
 public:
  using MetalDeviceBase::MetalDeviceBase;
  const ArithmeticBackend* arithmetic() const override { return &metal_arithmetic(); }
  const BatchNormalizationBackend* batch_normalization() const override {
    return &metal_batch_normalization();
  }
  const ConvolutionBackend* convolution() const override { return &metal_convolution(); }
  const DropoutBackend* dropout() const override { return &metal_dropout(); }
  const GramMatrixBackend* gram_matrix() const override { return &metal_gram_matrix(); }
  const GroupNormalizationBackend* group_normalization() const override {
    return &metal_group_normalization();
  }
  const LocalNormalizationBackend* local_normalization() const override {
    return &metal_local_normalization();
  }
  const LossBackend* loss() const override { return &metal_loss(); }
  const NeuronBackend* neuron() const override { return &metal_neuron(); }
  const OptimizerBackend* optimizer() const override { return &metal_optimizer(); }
  const PoolingBackend* pooling() const override { return &metal_pooling(); }
  const ReductionBackend* reduction() const override { return &metal_reduction(); }
  const ReshapeBackend* reshape() const override { return &metal_reshape(); }
  const ResizeBackend* resize() const override { return &metal_resize(); }
  const SoftMaxBackend* softmax() const override { return &metal_softmax(); }
  const UpsamplingBackend* upsampling() const override { return &metal_upsampling(); }
};

std::shared_ptr<MetalDevice> make_device() {
  const PoolScope pool;
  auto device = Retained<id<MTLDevice>>::share(MPSGetPreferredDevice(MPSDeviceOptionsDefault));
  if (!device || !MPSSupportsMTLDevice(device.get())) {
    return nullptr;
  }
  return std::make_shared<MetalDevice>(std::move(device));
}

// Never destroyed: the GPU outlives every static object.
const std::shared_ptr<MetalDevice>& only_device() {
  static const auto* device = new std::shared_ptr<MetalDevice>(make_device());
  return *device;
}

}  // namespace

std::shared_ptr<Device> find_metal_device() { return only_device(); }

void drain() {
  wait_for_all();
  if (const auto& device = only_device()) {
    device->drop_caches();
  }
}

}  // namespace metal
}  // namespace mpsgrad
