// Local normalization kernels of the Metal device (MPSCNNCrossChannelNormalization,
// MPSCNNSpatialNormalization, MPSCNNLocalContrastNormalization and their gradients).
#include <type_traits>

#include "kernels/local_normalization/local_normalization.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

using Kind = LocalNormalizationKind;
using Parameters = LocalNormalizationParameters;

template <class Kernel>
void set_base(Kernel* kernel, const Parameters& p) {
  kernel.alpha = p.alpha;
  kernel.beta = p.beta;
  kernel.delta = p.delta;
}

template <class Kernel>
void set_contrast(Kernel* kernel, const Parameters& p) {
  set_base(kernel, p);
  kernel.p0 = p.p0;
  kernel.pm = p.pm;
  kernel.ps = p.ps;
}

void set_parameters(MPSCNNCrossChannelNormalization* kernel, const Parameters& p) {
  set_base(kernel, p);
}
void set_parameters(MPSCNNSpatialNormalization* kernel, const Parameters& p) {
  set_base(kernel, p);
}
void set_parameters(MPSCNNLocalContrastNormalization* kernel, const Parameters& p) {
  set_contrast(kernel, p);
}
void set_parameters(MPSCNNCrossChannelNormalizationGradient* kernel, const Parameters& p) {
  set_base(kernel, p);
}
void set_parameters(MPSCNNSpatialNormalizationGradient* kernel, const Parameters& p) {
  set_base(kernel, p);
}
void set_parameters(MPSCNNLocalContrastNormalizationGradient* kernel, const Parameters& p) {
  set_contrast(kernel, p);
}

template <class Kernel>
class MetalLocalNormalization final : public UnaryEncoder {
 public:
  explicit MetalLocalNormalization(metal::Retained<Kernel*> kernel) : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    set_parameters(kernel_.get(), local_normalization_settings(call.properties).parameters);
    metal::encode(command_buffer, kernel_.get(), call);
  }
  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    const auto set_more = [](MPSCNNKernel* kernel, const UnaryProperties& properties) {
      set_parameters(static_cast<Kernel*>(kernel),
                     local_normalization_settings(properties).parameters);
    };
    return std::make_shared<metal::MetalStatePayload>(
        metal::state_maker(metal::Retained<MPSCNNKernel*>::share(kernel_.get()), +set_more));
  }

 private:
  metal::Retained<Kernel*> kernel_;
};

template <class Kernel>
class MetalLocalNormalizationGradient final : public GradientEncoder {
 public:
  explicit MetalLocalNormalizationGradient(metal::Retained<Kernel*> kernel)
      : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const metal::PoolScope pool;
    set_parameters(kernel_.get(), local_normalization_settings(call.properties).parameters);
    metal::encode(command_buffer, kernel_.get(), call);
  }

 private:
  metal::Retained<Kernel*> kernel_;
};

// Wraps a new kernel over channels, or over pixels, in the encoder for it.
template <template <class> class Encoder, class Kernel>
auto over_channels(Kernel* allocated, Device& device, Index size, const char* class_name) {
  return std::make_unique<Encoder<Kernel>>(metal::adopt_kernel(
      [allocated initWithDevice:metal::mtl_device(device) kernelSize:static_cast<NSUInteger>(size)],
      class_name));
}

template <template <class> class Encoder, class Kernel>
auto over_pixels(Kernel* allocated, Device& device, Index size, const char* class_name) {
  return std::make_unique<Encoder<Kernel>>(
      metal::adopt_kernel([allocated initWithDevice:metal::mtl_device(device)
                                        kernelWidth:static_cast<NSUInteger>(size)
                                       kernelHeight:static_cast<NSUInteger>(size)],
                          class_name));
}

class MetalLocalNormalizationBackend final : public LocalNormalizationBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device, Kind kind,
                                             Index kernel_size) const override {
    const metal::PoolScope pool;
    switch (kind) {
      case Kind::CrossChannel:
        return over_channels<MetalLocalNormalization>([MPSCNNCrossChannelNormalization alloc],
                                                      device, kernel_size,
                                                      "MPSCNNCrossChannelNormalization");
      case Kind::Spatial:
        return over_pixels<MetalLocalNormalization>([MPSCNNSpatialNormalization alloc], device,
                                                    kernel_size, "MPSCNNSpatialNormalization");
      case Kind::LocalContrast:
        break;
    }
    return over_pixels<MetalLocalNormalization>([MPSCNNLocalContrastNormalization alloc], device,
                                                kernel_size, "MPSCNNLocalContrastNormalization");
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device, Kind kind,
                                                 Index kernel_size) const override {
    const metal::PoolScope pool;
    switch (kind) {
      case Kind::CrossChannel:
        return over_channels<MetalLocalNormalizationGradient>(
            [MPSCNNCrossChannelNormalizationGradient alloc], device, kernel_size,
            "MPSCNNCrossChannelNormalizationGradient");
      case Kind::Spatial:
        return over_pixels<MetalLocalNormalizationGradient>(
            [MPSCNNSpatialNormalizationGradient alloc], device, kernel_size,
            "MPSCNNSpatialNormalizationGradient");
      case Kind::LocalContrast:
        break;
    }
    return over_pixels<MetalLocalNormalizationGradient>(
        [MPSCNNLocalContrastNormalizationGradient alloc], device, kernel_size,
        "MPSCNNLocalContrastNormalizationGradient");
  }
};

}  // namespace

const LocalNormalizationBackend& metal_local_normalization() {
  static const MetalLocalNormalizationBackend backend;
  return backend;
}

namespace metal {

namespace {

template <class Made>
Node configured(Made* made, const Parameters& parameters) {
  Node node = adopt_node(made);
  if constexpr (std::is_same_v<Made, MPSCNNLocalContrastNormalizationNode>) {
    set_contrast(made, parameters);
  } else {
    set_base(made, parameters);
  }
  return node;
}

}  // namespace

Node make_local_normalization_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<LocalNormalization>();
  if (kernel == nullptr) {
    return {};
  }
  const auto size = static_cast<NSUInteger>(kernel->kernel_size());
  const Parameters parameters = kernel->parameters();
  if (request.kernel<CrossChannelNormalization>() != nullptr) {
    return configured([[MPSCNNCrossChannelNormalizationNode alloc] initWithSource:request.source()
                                                                       kernelSize:size],
                      parameters);
  }
  if (request.kernel<SpatialNormalization>() != nullptr) {
    return configured([[MPSCNNSpatialNormalizationNode alloc] initWithSource:request.source()
                                                                  kernelSize:size],
                      parameters);
  }
  return configured([[MPSCNNLocalContrastNormalizationNode alloc] initWithSource:request.source()
                                                                      kernelSize:size],
                    parameters);
}

void finish_local_normalization_gradient(MPSNNFilterNode* node, const KernelBase& kernel) {
  const auto* gradient = dynamic_cast<const LocalNormalizationGradient*>(&kernel);
  if (gradient == nullptr) {
    return;
  }
  const Parameters parameters = gradient->parameters();
  if ([node isKindOfClass:[MPSCNNSpatialNormalizationGradientNode class]]) {
    set_base(static_cast<MPSCNNSpatialNormalizationGradientNode*>(node), parameters);
  } else if ([node isKindOfClass:[MPSCNNLocalContrastNormalizationGradientNode class]]) {
    set_contrast(static_cast<MPSCNNLocalContrastNormalizationGradientNode*>(node), parameters);
  }  // across channels nothing can be set
}

}  // namespace metal
}  // namespace mpsgrad
