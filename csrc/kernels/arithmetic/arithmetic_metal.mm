// Arithmetic kernels of the Metal device (MPSCNNArithmetic, MPSNNCompare,
// MPSCNNArithmeticGradient).
#include "kernels/arithmetic/arithmetic.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

// What forward and gradient kernels have in common, and their nodes; `Kernel` is Apple's.
template <class Kernel>
void set_scales(Kernel* kernel, const ArithmeticSettings& settings) {
  kernel.primaryScale = settings.primary_scale;
  kernel.secondaryScale = settings.secondary_scale;
}

template <class Kernel>
void set_numbers(Kernel* kernel, const ArithmeticSettings& settings) {
  set_scales(kernel, settings);
  kernel.bias = settings.bias;
  kernel.minimumValue = settings.minimum_value;
  kernel.maximumValue = settings.maximum_value;
}

// Of forward kernels and their nodes.
template <class Kernel>
void set_channel_strides(Kernel* kernel, const ArithmeticSettings& settings) {
  kernel.primaryStrideInFeatureChannels = static_cast<NSUInteger>(settings.primary_channel_stride);
  kernel.secondaryStrideInFeatureChannels =
      static_cast<NSUInteger>(settings.secondary_channel_stride);
}

void set_arithmetic(MPSCNNArithmetic* kernel, const ArithmeticSettings& settings) {
  set_numbers(kernel, settings);
  set_channel_strides(kernel, settings);
  if ([kernel isKindOfClass:[MPSNNCompare class]]) {
    auto* compare = static_cast<MPSNNCompare*>(kernel);
    compare.comparisonType = static_cast<MPSNNComparisonType>(settings.comparison);
    compare.threshold = settings.threshold;
  }
}

class MetalArithmetic final : public BinaryEncoder {
 public:
  explicit MetalArithmetic(metal::Retained<MPSCNNArithmetic*> kernel)
      : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const metal::PoolScope pool;
    auto& own = as<metal::MetalCommandBuffer>(command_buffer);
    MPSCNNArithmetic* kernel = kernel_.get();
    metal::set_properties(kernel, call);
    set_arithmetic(kernel, arithmetic_settings(call.properties));
    NSArray<MPSImage*>* primaries = metal::mps_images(call.primaries, false);
    NSArray<MPSImage*>* secondaries = metal::mps_images(call.secondaries, false);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.destinations, true);
    NSArray<MPSState*>* states = nil;
    if (!call.states.empty()) {
      fill_states(own, call, primaries, secondaries, destinations);
      states = metal::mps_states(call.kernel.class_name(), call.states);
      own.keep(states);
    }
    MPSCommandBuffer* buffer = own.for_kernel();
    if (call.batch && states != nil) {
      [kernel encodeBatchToCommandBuffer:buffer
                           primaryImages:primaries
                         secondaryImages:secondaries
                       destinationStates:static_cast<MPSCNNArithmeticGradientStateBatch*>(states)
                       destinationImages:destinations];
    } else if (call.batch) {
      [kernel encodeBatchToCommandBuffer:buffer
                           primaryImages:primaries
                         secondaryImages:secondaries
                       destinationImages:destinations];
    } else if (states != nil) {
      [kernel encodeToCommandBuffer:buffer
                       primaryImage:[primaries objectAtIndex:0]
                     secondaryImage:[secondaries objectAtIndex:0]
                   destinationState:static_cast<MPSCNNArithmeticGradientState*>(
                                        [states objectAtIndex:0])
                   destinationImage:[destinations objectAtIndex:0]];
    } else {
      [kernel encodeToCommandBuffer:buffer
                       primaryImage:[primaries objectAtIndex:0]
                     secondaryImage:[secondaries objectAtIndex:0]
                   destinationImage:[destinations objectAtIndex:0]];
    }
    own.keep_all({primaries, secondaries, destinations, kernel});
  }

  std::shared_ptr<StatePayload> make_payload(const BinarySnapshot&) override {
    return std::make_shared<metal::MetalStatePayload>();
  }

 private:
  // Fresh states of Apple's, made with the very properties of the encode to come.
  void fill_states(metal::MetalCommandBuffer& command_buffer, const BinaryCall& call,
                   NSArray<MPSImage*>* primaries, NSArray<MPSImage*>* secondaries,
                   NSArray<MPSImage*>* destinations) {
    for (std::size_t i = 0; i < call.states.size(); ++i) {
      State& state = *call.states[i];
      MPSImage* primary = [primaries objectAtIndex:i];
      MPSImage* secondary = [secondaries objectAtIndex:i];
      MPSImage* destination = [destinations objectAtIndex:i];
      MPSState* made =
          state.count()
              ? [kernel_.get() temporaryResultStateForCommandBuffer:command_buffer.for_kernel()
                                                       primaryImage:primary
                                                     secondaryImage:secondary
                                                       sourceStates:nil
                                                   destinationImage:destination]
              : [kernel_.get() resultStateForPrimaryImage:primary
                                           secondaryImage:secondary
                                             sourceStates:nil
                                         destinationImage:destination];
      require<DeviceError>(made != nil, call.kernel.class_name(), ": the device made no state");
      metal::payload_of(state).assign(made, command_buffer.temporaries());
    }
  }

  metal::Retained<MPSCNNArithmetic*> kernel_;
};

class MetalArithmeticGradient final : public GradientEncoder {
 public:
  explicit MetalArithmeticGradient(metal::Retained<MPSCNNArithmeticGradient*> kernel)
      : kernel_(std::move(kernel)) {}

  void encode(CommandBuffer& command_buffer, const GradientCall& call) override {
    const metal::PoolScope pool;
    const BinaryProperties& p = call.properties;
    MPSCNNArithmeticGradient* kernel = kernel_.get();
    set_numbers(kernel, arithmetic_settings(p));
    kernel.secondaryStrideInFeatureChannels = moves_across_channels(p, true) ? 1 : 0;
    metal::encode(command_buffer, kernel, call);
  }

 private:
  metal::Retained<MPSCNNArithmeticGradient*> kernel_;
};

class MetalArithmeticBackend final : public ArithmeticBackend {
 public:
  std::unique_ptr<BinaryEncoder> make_forward(Device& device, ArithmeticKind kind) const override {
    const metal::PoolScope pool;
    id<MTLDevice> metal_device = metal::mtl_device(device);
    const auto adopt = [](MPSCNNArithmetic* kernel, const char* name) {
      return std::make_unique<MetalArithmetic>(metal::adopt_kernel<MPSCNNArithmetic>(kernel, name));
    };
    switch (kind) {
      case ArithmeticKind::Add:
        return adopt([[MPSCNNAdd alloc] initWithDevice:metal_device], "MPSCNNAdd");
      case ArithmeticKind::Subtract:
        return adopt([[MPSCNNSubtract alloc] initWithDevice:metal_device], "MPSCNNSubtract");
      case ArithmeticKind::Multiply:
        return adopt([[MPSCNNMultiply alloc] initWithDevice:metal_device], "MPSCNNMultiply");
      case ArithmeticKind::Divide:
        return adopt([[MPSCNNDivide alloc] initWithDevice:metal_device], "MPSCNNDivide");
      case ArithmeticKind::Compare:
        break;
    }
    return adopt([[MPSNNCompare alloc] initWithDevice:metal_device], "MPSNNCompare");
  }

  std::unique_ptr<GradientEncoder> make_gradient(Device& device, ArithmeticKind kind,
                                                 bool secondary) const override {
    const metal::PoolScope pool;
    id<MTLDevice> metal_device = metal::mtl_device(device);
    const auto adopt = [](MPSCNNArithmeticGradient* kernel, const char* name) {
      return std::make_unique<MetalArithmeticGradient>(
          metal::adopt_kernel<MPSCNNArithmeticGradient>(kernel, name));
    };
    switch (kind) {
      case ArithmeticKind::Add:
        return adopt([[MPSCNNAddGradient alloc] initWithDevice:metal_device
                                       isSecondarySourceFilter:secondary],
                     "MPSCNNAddGradient");
      case ArithmeticKind::Subtract:
        return adopt([[MPSCNNSubtractGradient alloc] initWithDevice:metal_device
                                            isSecondarySourceFilter:secondary],
                     "MPSCNNSubtractGradient");
      default:
        return adopt([[MPSCNNMultiplyGradient alloc] initWithDevice:metal_device
                                            isSecondarySourceFilter:secondary],
                     "MPSCNNMultiplyGradient");
    }
  }
};

}  // namespace

const ArithmeticBackend& metal_arithmetic() {
  static const MetalArithmeticBackend backend;
  return backend;
}

namespace metal {

namespace {

MPSNNBinaryArithmeticNode* allocate_node(const NodeRequest& request) {
  if (request.kernel<Add>() != nullptr) {
    return [MPSNNAdditionNode alloc];
  }
  if (request.kernel<Subtract>() != nullptr) {
    return [MPSNNSubtractionNode alloc];
  }
  if (request.kernel<Multiply>() != nullptr) {
    return [MPSNNMultiplicationNode alloc];
  }
  if (request.kernel<Divide>() != nullptr) {
    return [MPSNNDivisionNode alloc];
  }
  return [MPSNNComparisonNode alloc];
}

}  // namespace

Node make_arithmetic_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Arithmetic>();
  if (kernel == nullptr) {
    return {};
  }
  MPSNNBinaryArithmeticNode* made =
      [allocate_node(request) initWithLeftSource:[request.sources objectAtIndex:0]
                                     rightSource:[request.sources objectAtIndex:1]];
  Node node = adopt_node(made);
  const BinaryProperties& p = kernel->properties();
  set_numbers(made, kernel->settings());
  set_channel_strides(made, kernel->settings());
  made.primaryStrideInPixelsX = static_cast<NSUInteger>(p.primary.window.stride_x);
  made.primaryStrideInPixelsY = static_cast<NSUInteger>(p.primary.window.stride_y);
  made.secondaryStrideInPixelsX = static_cast<NSUInteger>(p.secondary.window.stride_x);
  made.secondaryStrideInPixelsY = static_cast<NSUInteger>(p.secondary.window.stride_y);
  if (const auto* compare = request.kernel<Compare>()) {
    static_cast<MPSNNComparisonNode*>(made).comparisonType =
        static_cast<MPSNNComparisonType>(compare->comparison_type());
  }
  return node;
}

void finish_arithmetic_gradient(MPSNNFilterNode* node, const KernelBase& kernel) {
  const auto* gradient = dynamic_cast<const ArithmeticGradient*>(&kernel);
  if (gradient == nullptr) {
    return;
  }
  set_scales(static_cast<MPSNNArithmeticGradientNode*>(node), gradient->settings());
}

StateAdopter arithmetic_state_adopter(const State& like) {
  const auto* ours = dynamic_cast<const ArithmeticGradientState*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  return [snapshot = ours->snapshot()](MPSState* made,
                                       StateAdoption& adoption) -> std::shared_ptr<State> {
    auto result =
        std::make_shared<ArithmeticGradientState>(adoption.device, adoption.owner(), snapshot);
    result->payload = adoption.payload(made);
    result->filled.by(adoption.work());
    result->images = 1;
    return result;
  };
}

}  // namespace metal
}  // namespace mpsgrad
