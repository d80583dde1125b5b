// Optimizers of the Metal device (MPSNNOptimizerStochasticGradientDescent, MPSNNOptimizerRMSProp,
// MPSNNOptimizerAdam).
#include "kernels/optimizer/optimizer.hpp"
#include "metal/metal_calls.hpp"

namespace mpsgrad {
namespace {

using metal::MetalBuffer;
using metal::MetalCommandBuffer;
using metal::PoolScope;
using metal::Retained;
using metal::to_ns;

id<MTLBuffer> buffer_of(const ArrayView& view) { return as<MetalBuffer>(*view.buffer).get(); }

// A parameter's arrays as MPS sees them, and the objects made for one encode.
class Arrays {
 public:
  explicit Arrays(MetalCommandBuffer& command_buffer) : command_buffer_(command_buffer) {}

  MPSVector* vector(const ArrayView& view) {
    const ArrayLayout& l = view.layout;
    MPSVectorDescriptor* descriptor =
        [MPSVectorDescriptor vectorDescriptorWithLength:to_ns(l.columns)
                                                vectors:to_ns(l.parts)
                                            vectorBytes:to_ns(l.part_bytes)
                                               dataType:MPSDataTypeFloat32];
    const auto made =
        Retained<MPSVector*>::adopt([[MPSVector alloc] initWithBuffer:buffer_of(view)
                                                               offset:to_ns(view.offset)
                                                           descriptor:descriptor]);
    return kept(made);
  }

  MPSMatrix* matrix(const ArrayView& view) {
    const ArrayLayout& l = view.layout;
    MPSMatrixDescriptor* descriptor =
        [MPSMatrixDescriptor matrixDescriptorWithRows:to_ns(l.rows)
                                              columns:to_ns(l.columns)
                                             matrices:to_ns(l.parts)
                                             rowBytes:to_ns(l.row_bytes)
                                          matrixBytes:to_ns(l.part_bytes)
                                             dataType:MPSDataTypeFloat32];
    const auto made =
        Retained<MPSMatrix*>::adopt([[MPSMatrix alloc] initWithBuffer:buffer_of(view)
                                                               offset:to_ns(view.offset)
                                                           descriptor:descriptor]);
    return kept(made);
  }

  // History `index` of every parameter; nil if there is none.
  NSArray<MPSVector*>* vectors(const std::vector<ParameterUpdate>& parameters, std::size_t index) {
    if (index >= parameters.front().histories.size()) {
      return nil;
    }
    NSMutableArray<MPSVector*>* result = [NSMutableArray arrayWithCapacity:parameters.size()];
    for (const ParameterUpdate& parameter : parameters) {
      [result addObject:vector(parameter.histories[index])];
    }
    return result;
  }

  // Weights, and biases where they are updated too.
  MPSCNNConvolutionWeightsAndBiasesState* weights(const ConvolutionWeightShape& shape,
                                                  const ArrayView& weights,
                                                  const ArrayView* biases) {
    Class kind = shape.depthwise ? [MPSCNNDepthWiseConvolutionDescriptor class]
                                 : [MPSCNNConvolutionDescriptor class];
    MPSCNNConvolutionDescriptor* descriptor =
        [kind cnnConvolutionDescriptorWithKernelWidth:to_ns(shape.kernel_width)
                                         kernelHeight:to_ns(shape.kernel_height)
                                 inputFeatureChannels:to_ns(shape.depthwise
                                                                ? shape.output_channels
                                                                : shape.input_channels_per_group)
                                outputFeatureChannels:to_ns(shape.output_channels)];
    const auto made = Retained<MPSCNNConvolutionWeightsAndBiasesState*>::adopt(
        [[MPSCNNConvolutionWeightsAndBiasesState alloc]
                     initWithWeights:buffer_of(weights)
                       weightsOffset:to_ns(weights.offset)
                              biases:biases ? buffer_of(*biases) : nil
                        biasesOffset:biases ? to_ns(biases->offset) : 0
            cnnConvolutionDescriptor:descriptor]);
    return kept(made);
  }

 private:
  template <class Object>
  Object kept(const Retained<Object>& made) {
    require<DeviceError>(static_cast<bool>(made), "Optimizer: the device made no view of a buffer");
    command_buffer_.keep(made.get());
    return made.get();
  }

  MetalCommandBuffer& command_buffer_;
};

// One subclass's words for its histories, in the three kinds of encode.
void encode_vectors(MPSNNOptimizer* optimizer, const OptimizerRule& rule, id<MTLCommandBuffer> to,
                    MPSVector* gradient, MPSVector* values, const std::vector<MPSVector*>& history,
                    MPSVector* result) {
  switch (rule.kind) {
    case OptimizerRule::Kind::StochasticGradientDescent:
      [static_cast<MPSNNOptimizerStochasticGradientDescent*>(optimizer)
          encodeToCommandBuffer:to
            inputGradientVector:gradient
              inputValuesVector:values
            inputMomentumVector:history[0]
             resultValuesVector:result];
      return;
    case OptimizerRule::Kind::RMSProp:
      [static_cast<MPSNNOptimizerRMSProp*>(optimizer) encodeToCommandBuffer:to
                                                        inputGradientVector:gradient
                                                          inputValuesVector:values
                                                    inputSumOfSquaresVector:history[0]
                                                         resultValuesVector:result];
      return;
    case OptimizerRule::Kind::Adam:
      [static_cast<MPSNNOptimizerAdam*>(optimizer) encodeToCommandBuffer:to
                                                     inputGradientVector:gradient
                                                       inputValuesVector:values
                                                     inputMomentumVector:history[0]
                                                     inputVelocityVector:history[1]
                                                   maximumVelocityVector:history[2]
                                                      resultValuesVector:result];
      return;
  }
}

void encode_matrices(MPSNNOptimizer* optimizer, const OptimizerRule& rule, id<MTLCommandBuffer> to,
                     MPSMatrix* gradient, MPSMatrix* values, const std::vector<MPSMatrix*>& history,
                     MPSMatrix* result) {
  switch (rule.kind) {
    case OptimizerRule::Kind::StochasticGradientDescent:
      [static_cast<MPSNNOptimizerStochasticGradientDescent*>(optimizer)
          encodeToCommandBuffer:to
            inputGradientMatrix:gradient
              inputValuesMatrix:values
            inputMomentumMatrix:history[0]
             resultValuesMatrix:result];
      return;
    case OptimizerRule::Kind::RMSProp:
      [static_cast<MPSNNOptimizerRMSProp*>(optimizer) encodeToCommandBuffer:to
                                                        inputGradientMatrix:gradient
                                                          inputValuesMatrix:values
                                                    inputSumOfSquaresMatrix:history[0]
                                                         resultValuesMatrix:result];
      return;
    case OptimizerRule::Kind::Adam:
      [static_cast<MPSNNOptimizerAdam*>(optimizer) encodeToCommandBuffer:to
                                                     inputGradientMatrix:gradient
                                                       inputValuesMatrix:values
                                                     inputMomentumMatrix:history[0]
                                                     inputVelocityMatrix:history[1]
                                                   maximumVelocityMatrix:history[2]
                                                      resultValuesMatrix:result];
      return;
  }
}

void encode_states(MPSNNOptimizer* optimizer, const OptimizerRule& rule, id<MTLCommandBuffer> to,
                   MPSCNNConvolutionGradientState* gradient,
                   MPSCNNConvolutionWeightsAndBiasesState* source,
                   const std::vector<NSArray<MPSVector*>*>& history,
                   MPSCNNConvolutionWeightsAndBiasesState* result) {
  switch (rule.kind) {
    case OptimizerRule::Kind::StochasticGradientDescent:
      [static_cast<MPSNNOptimizerStochasticGradientDescent*>(optimizer)
             encodeToCommandBuffer:to
          convolutionGradientState:gradient
            convolutionSourceState:source
              inputMomentumVectors:history[0]
                       resultState:result];
      return;
    case OptimizerRule::Kind::RMSProp:
      [static_cast<MPSNNOptimizerRMSProp*>(optimizer) encodeToCommandBuffer:to
                                                   convolutionGradientState:gradient
                                                     convolutionSourceState:source
                                                   inputSumOfSquaresVectors:history[0]
                                                                resultState:result];
      return;
    case OptimizerRule::Kind::Adam:
      [static_cast<MPSNNOptimizerAdam*>(optimizer) encodeToCommandBuffer:to
                                                convolutionGradientState:gradient
                                                  convolutionSourceState:source
                                                    inputMomentumVectors:history[0]
                                                    inputVelocityVectors:history[1]
                                                  maximumVelocityVectors:history[2]
                                                             resultState:result];
      return;
  }
}

// nil where there is no history.
template <class Object, class Make>
std::vector<Object> each_history(const ParameterUpdate& parameter, const Make& make) {
  std::vector<Object> result(3, nil);
  for (std::size_t i = 0; i < parameter.histories.size(); ++i) {
    result[i] = make(parameter.histories[i]);
  }
  return result;
}

class MetalOptimizer final : public OptimizerEncoder {
 public:
  MetalOptimizer(Retained<MPSNNOptimizer*> optimizer, const OptimizerRule& rule)
      : optimizer_(std::move(optimizer)), rule_(rule) {}

  void encode(CommandBuffer& command_buffer, const OptimizerCall& call) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    Arrays arrays(own);
    MPSNNOptimizer* optimizer = optimizer_.get();
    [optimizer setLearningRate:call.settings.learning_rate];
    optimizer.applyGradientClipping = call.settings.apply_gradient_clipping;
    if (call.convolution) {
      encode_convolution(own, arrays, call);
    } else {
      for (const ParameterUpdate& parameter : call.parameters) {
        encode_parameter(own, arrays, call, parameter);
      }
    }
    own.keep(optimizer);
  }

 private:
  // Every parameter of a call is at the same step, however many encodes it takes.
  void set_time_step(const OptimizerCall& call) {
    if (rule_.kind == OptimizerRule::Kind::Adam) {
      static_cast<MPSNNOptimizerAdam*>(optimizer_.get()).timeStep = to_ns(call.time_step - 1);
    }
  }

  void encode_parameter(MetalCommandBuffer& command_buffer, Arrays& arrays,
                        const OptimizerCall& call, const ParameterUpdate& parameter) {
    set_time_step(call);
    MPSCommandBuffer* buffer = command_buffer.for_kernel();
    if (parameter.values.layout.rows == 1) {
      const auto vector = [&](const ArrayView& view) { return arrays.vector(view); };
      encode_vectors(optimizer_.get(), rule_, buffer, vector(parameter.gradient),
                     vector(parameter.values), each_history<MPSVector*>(parameter, vector),
                     vector(parameter.result));
    } else {
      const auto matrix = [&](const ArrayView& view) { return arrays.matrix(view); };
      encode_matrices(optimizer_.get(), rule_, buffer, matrix(parameter.gradient),
                      matrix(parameter.values), each_history<MPSMatrix*>(parameter, matrix),
                      matrix(parameter.result));
    }
  }

  // By Apple's state, whose buffers MPS orders after the kernel that wrote them.
  void encode_convolution(MetalCommandBuffer& command_buffer, Arrays& arrays,
                          const OptimizerCall& call) {
    set_time_step(call);
    const ParameterUpdate& weights = call.parameters[0];
    const ParameterUpdate* biases = call.parameters.size() > 1 ? &call.parameters[1] : nullptr;
    const ConvolutionWeightShape& shape = call.convolution->shape();
    auto* gradient =
        static_cast<MPSCNNConvolutionGradientState*>(metal::payload_of(*call.convolution).get());
    require<StateError>(gradient != nil, call.convolution->class_name(),
                        ": a graph has lent this state to an update, which is over");
    encode_states(optimizer_.get(), rule_, command_buffer.for_kernel(), gradient,
                  arrays.weights(shape, weights.values, biases ? &biases->values : nullptr),
                  {arrays.vectors(call.parameters, 0), arrays.vectors(call.parameters, 1),
                   arrays.vectors(call.parameters, 2)},
                  arrays.weights(shape, weights.result, biases ? &biases->result : nullptr));
    command_buffer.keep(gradient);
  }

  Retained<MPSNNOptimizer*> optimizer_;
  OptimizerRule rule_;
};

MPSNNOptimizerDescriptor* to_mps(const OptimizerDescriptor& settings) {
  return [MPSNNOptimizerDescriptor
      optimizerDescriptorWithLearningRate:settings.learning_rate
                          gradientRescale:settings.gradient_rescale
                    applyGradientClipping:settings.apply_gradient_clipping
                          gradientClipMax:settings.gradient_clip_max.value_or(0.0F)
                          gradientClipMin:settings.gradient_clip_min.value_or(0.0F)
                       regularizationType:static_cast<MPSNNRegularizationType>(
                                              settings.regularization_type)
                      regularizationScale:settings.regularization_scale];
}

MPSNNOptimizer* new_optimizer(id<MTLDevice> device, const OptimizerDescriptor& settings,
                              const OptimizerRule& rule) {
  switch (rule.kind) {
    case OptimizerRule::Kind::RMSProp:
      return [[MPSNNOptimizerRMSProp alloc] initWithDevice:device
                                                     decay:rule.decay
                                                   epsilon:rule.epsilon
                                       optimizerDescriptor:to_mps(settings)];
    case OptimizerRule::Kind::Adam:
      return [[MPSNNOptimizerAdam alloc] initWithDevice:device
                                                  beta1:rule.beta1
                                                  beta2:rule.beta2
                                                epsilon:rule.epsilon
                                               timeStep:0
                                    optimizerDescriptor:to_mps(settings)];
    case OptimizerRule::Kind::StochasticGradientDescent:
      break;
  }
  return [[MPSNNOptimizerStochasticGradientDescent alloc] initWithDevice:device
                                                           momentumScale:rule.momentum_scale
                                                     useNesterovMomentum:rule.use_nesterov_momentum
                                                     optimizerDescriptor:to_mps(settings)];
}

class MetalOptimizerBackend final : public OptimizerBackend {
 public:
  std::unique_ptr<OptimizerEncoder> make(Device& device, const OptimizerDescriptor& settings,
                                         const OptimizerRule& rule) const override {
    const PoolScope pool;
    return std::make_unique<MetalOptimizer>(
        metal::adopt_kernel(new_optimizer(metal::mtl_device(device), settings, rule),
                            "MPSNNOptimizer"),
        rule);
  }
};

}  // namespace

const OptimizerBackend& metal_optimizer() {
  static const MetalOptimizerBackend backend;
  return backend;
}

}  // namespace mpsgrad
