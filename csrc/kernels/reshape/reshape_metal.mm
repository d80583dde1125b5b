// The kernels that copy, on the Metal device (MPSNNReshape, MPSNNSlice, MPSNNPad and gradients).
#include "kernels/reshape/reshape.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

MPSImageCoordinate to_mps(const PaddingSize& size) {
  return {static_cast<NSUInteger>(size.x), static_cast<NSUInteger>(size.y),
          static_cast<NSUInteger>(size.channel)};
}

void set_padding(MPSCNNKernel* kernel, const UnaryProperties& properties) {
  const PadSettings settings = pad_settings(properties);
  auto* pad = static_cast<MPSNNPad*>(kernel);
  pad.paddingSizeBefore = to_mps(settings.before);
  pad.paddingSizeAfter = to_mps(settings.after);
  pad.fillValue = settings.fill_value();
}

class MetalPad final : public UnaryEncoder {
 public:
  MetalPad(id<MTLDevice> device, const FillValues& fill_values)
      : kernel_(
            metal::adopt_kernel<MPSNNPad>([[MPSNNPad alloc] initWithDevice:device
                                                         paddingSizeBefore:to_mps({})
                                                          paddingSizeAfter:to_mps({})
                                                            fillValueArray:data_of(fill_values)],
                                          "MPSNNPad")) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    set_padding(kernel_.get(), call.properties);
    metal::encode(command_buffer, kernel_.get(), call);
  }
  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    return std::make_shared<metal::MetalStatePayload>(
        metal::state_maker(metal::Retained<MPSCNNKernel*>::share(kernel_.get()), &set_padding));
  }

 private:
  static NSData* data_of(const FillValues& values) {
    return values.empty()
               ? nil
               : [NSData dataWithBytes:values.data() length:values.size() * sizeof(float)];
  }

  metal::Retained<MPSNNPad*> kernel_;
};

class MetalReshapeBackend final : public ReshapeBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_reshape(Device& device) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        [[MPSNNReshape alloc] initWithDevice:metal::mtl_device(device)], "MPSNNReshape"));
  }
  std::unique_ptr<GradientEncoder> make_reshape_gradient(Device& device) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
        [[MPSNNReshapeGradient alloc] initWithDevice:metal::mtl_device(device)],
        "MPSNNReshapeGradient"));
  }
  std::unique_ptr<UnaryEncoder> make_slice(Device& device) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalUnaryEncoder>(metal::adopt_kernel<MPSCNNKernel>(
        [[MPSNNSlice alloc] initWithDevice:metal::mtl_device(device)], "MPSNNSlice"));
  }
  std::unique_ptr<UnaryEncoder> make_pad(Device& device,
                                         const FillValues& fill_values) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalPad>(metal::mtl_device(device), fill_values);
  }
  std::unique_ptr<GradientEncoder> make_pad_gradient(Device& device) const override {
    const metal::PoolScope pool;
    return std::make_unique<metal::MetalGradientEncoder>(metal::adopt_kernel<MPSCNNGradientKernel>(
        [[MPSNNPadGradient alloc] initWithDevice:metal::mtl_device(device)], "MPSNNPadGradient"));
  }
};

}  // namespace

const ReshapeBackend& metal_reshape() {
  static const MetalReshapeBackend backend;
  return backend;
}

namespace metal {

Node make_reshape_node(const NodeRequest& request) {
  if (request.kernel<Reshape>() != nullptr) {
    const Reshape::Shape& shape = request.node.shape;
    return adopt_node([[MPSNNReshapeNode alloc]
               initWithSource:request.source()
                  resultWidth:static_cast<NSUInteger>(shape.width)
                 resultHeight:static_cast<NSUInteger>(shape.height)
        resultFeatureChannels:static_cast<NSUInteger>(shape.channels)]);
  }
  const auto* pad = request.kernel<Pad>();
  if (pad == nullptr) {
    return {};
  }
  const PadSettings settings = pad->settings();
  MPSNNPadNode* made = [[MPSNNPadNode alloc]
         initWithSource:request.source()
      paddingSizeBefore:to_mps(settings.before)
       paddingSizeAfter:to_mps(settings.after)
               edgeMode:static_cast<MPSImageEdgeMode>(pad->properties().edge_mode)];
  Node node = adopt_node(made);
  made.fillValue = settings.fill_value();
  return node;
}

}  // namespace metal
}  // namespace mpsgrad
