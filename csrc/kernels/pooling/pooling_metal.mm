// Pooling kernels of the Metal device (MPSCNNPooling... and MPSCNNPooling...Gradient).
#include <algorithm>

#include "kernels/pooling/pooling.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

using metal::to_ns;

NSUInteger limit(Index value) { return value == kUnlimited ? NSUIntegerMax : to_ns(value); }

MPSCNNPooling* allocate_forward(PoolingKind kind) {
  switch (kind) {
    case PoolingKind::Max:
      return [MPSCNNPoolingMax alloc];
    case PoolingKind::Average:
      return [MPSCNNPoolingAverage alloc];
    case PoolingKind::L2Norm:
      return [MPSCNNPoolingL2Norm alloc];
    case PoolingKind::DilatedMax:
      break;
  }
  return [MPSCNNDilatedPoolingMax alloc];
}

MPSCNNPoolingGradient* allocate_gradient(PoolingKind kind) {
  switch (kind) {
    case PoolingKind::Max:
      return [MPSCNNPoolingMaxGradient alloc];
    case PoolingKind::Average:
      return [MPSCNNPoolingAverageGradient alloc];
    case PoolingKind::L2Norm:
      return [MPSCNNPoolingL2NormGradient alloc];
    case PoolingKind::DilatedMax:
      break;
  }
  return [MPSCNNDilatedPoolingMaxGradient alloc];
}

// Initialises what was allocated: only the dilated classes have the long form.
template <class Dilated, class Kernel>
Kernel* initialise(Kernel* kernel, id<MTLDevice> device, PoolingKind kind, const Window& w) {
  if (kind == PoolingKind::DilatedMax) {
    return [static_cast<Dilated*>(kernel) initWithDevice:device
                                             kernelWidth:to_ns(w.kernel_width)
                                            kernelHeight:to_ns(w.kernel_height)
                                           dilationRateX:to_ns(w.dilation_x)
                                           dilationRateY:to_ns(w.dilation_y)
                                         strideInPixelsX:to_ns(w.stride_x)
                                         strideInPixelsY:to_ns(w.stride_y)];
  }
  return [kernel initWithDevice:device
                    kernelWidth:to_ns(w.kernel_width)
                   kernelHeight:to_ns(w.kernel_height)
                strideInPixelsX:to_ns(w.stride_x)
                strideInPixelsY:to_ns(w.stride_y)];
}

template <class Average, class Kernel>
void set_zero_pad(Kernel* kernel, PoolingKind kind, const ZeroPad& pad) {
  if (kind == PoolingKind::Average) {
    auto* average = static_cast<Average*>(kernel);
    average.zeroPadSizeX = to_ns(pad.x);
    average.zeroPadSizeY = to_ns(pad.y);
  }
}

class MetalPooling final : public UnaryEncoder {
 public:
  MetalPooling(id<MTLDevice> device, PoolingKind kind, const Window& window)
      : kind_(kind),
        kernel_(metal::adopt_kernel(
            initialise<MPSCNNDilatedPoolingMax>(allocate_forward(kind), device, kind, window),
            "MPSCNNPooling")) {}

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    set_zero_pad<MPSCNNPoolingAverage>(kernel_.get(), kind_,
                                       pooling_settings(call.properties).zero_pad);
    metal::encode(command_buffer, kernel_.get(), call);
  }
  std::shared_ptr<StatePayload> make_payload(const ForwardSnapshot&) override {
    // Only averages have more than the properties that every kernel has.
    const auto set_more = [](MPSCNNKernel* kernel, const UnaryProperties& properties) {
      set_zero_pad<MPSCNNPoolingAverage>(kernel, PoolingKind::Average,
                                         pooling_settings(properties).zero_pad);
    };
    return std::make_shared<metal::MetalStatePayload>(
        metal::state_maker(metal::Retained<MPSCNNKernel*>::share(kernel_.get()),
                           kind_ == PoolingKind::Average ? +set_more : nullptr));
  }

 private:
  PoolingKind kind_;
  metal::Retained<MPSCNNPooling*> kernel_;
};

class MetalPoolingGradient final : public GradientEncoder {
 public:
  MetalPoolingGradient(id<MTLDevice> device, PoolingKind kind, const Window& window)
      : kind_(kind),
        window_(window),
        kernel_(metal::adopt_kernel(initialise<MPSCNNDilatedPoolingMaxGradient>(
                                        allocate_gradient(kind), device, kind, window),
                                    "MPSCNNPoolingGradient")) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const metal::PoolScope pool;
    const BinaryProperties& p = call.properties;
    set_zero_pad<MPSCNNPoolingAverageGradient>(kernel_.get(), kind_, pooling_settings(p).zero_pad);
    const Size size = pooling_settings(p).source_size;
    kernel_.get().sourceSize =
        MTLSizeMake(limit(size.width), limit(size.height), limit(size.depth));
    // What Apple's kernel puts at the origin of its clip rectangle; before it, no window reads.
    const Index first_x = std::max<Index>(0, p.secondary.offset.x - window_.extent_x() / 2);
    const Index first_y = std::max<Index>(0, p.secondary.offset.y - window_.extent_y() / 2);
    const bool in_place = call.creates_destination && p.clip_rect == Region{};
    if (!in_place || (first_x == 0 && first_y == 0)) {
      metal::encode(command_buffer, kernel_.get(), call);
      return;
    }
    metal::encode_zeros(command_buffer, call);
    GradientCall moved = call;
    moved.clip.origin.x = first_x;
    moved.clip.origin.y = first_y;
    moved.clip.size.width -= first_x;
    moved.clip.size.height -= first_y;
    if (moved.clip.size.width > 0 && moved.clip.size.height > 0) {
      metal::encode(command_buffer, kernel_.get(), moved);
    }
  }

 private:
  PoolingKind kind_;
  Window window_;
  metal::Retained<MPSCNNPoolingGradient*> kernel_;
};

class MetalPoolingBackend final : public PoolingBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_forward(Device& device, PoolingKind kind,
                                             const Window& window) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalPooling>(metal::mtl_device(device), kind, window);
  }
  std::unique_ptr<GradientEncoder> make_gradient(Device& device, PoolingKind kind,
                                                 const Window& window) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalPoolingGradient>(metal::mtl_device(device), kind, window);
  }
};

}  // namespace

const PoolingBackend& metal_pooling() {
  static const MetalPoolingBackend backend;
  return backend;
}

namespace metal {

namespace {

template <class Class>
Node new_pooling_node(const NodeRequest& request, const Window& w) {
  return adopt_node([[Class alloc] initWithSource:request.source()
                                      kernelWidth:to_ns(w.kernel_width)
                                     kernelHeight:to_ns(w.kernel_height)
                                  strideInPixelsX:to_ns(w.stride_x)
                                  strideInPixelsY:to_ns(w.stride_y)]);
}

}  // namespace

// Apple's nodes clamp edges, as ours do.
Node make_pooling_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Pooling>();
  if (kernel == nullptr || kernel->properties().edge_mode != EdgeMode::Clamp) {
    return {};
  }
  const Window& w = kernel->window();
  if (request.kernel<PoolingMax>() != nullptr) {
    return new_pooling_node<MPSCNNPoolingMaxNode>(request, w);
  }
  if (request.kernel<PoolingAverage>() != nullptr) {
    return new_pooling_node<MPSCNNPoolingAverageNode>(request, w);
  }
  if (request.kernel<PoolingL2Norm>() != nullptr) {
    return new_pooling_node<MPSCNNPoolingL2NormNode>(request, w);
  }
  return adopt_node([[MPSCNNDilatedPoolingMaxNode alloc] initWithSource:request.source()
                                                            kernelWidth:to_ns(w.kernel_width)
                                                           kernelHeight:to_ns(w.kernel_height)
                                                        strideInPixelsX:to_ns(w.stride_x)
                                                        strideInPixelsY:to_ns(w.stride_y)
                                                          dilationRateX:to_ns(w.dilation_x)
                                                          dilationRateY:to_ns(w.dilation_y)]);
}

}  // namespace metal
}  // namespace mpsgrad
