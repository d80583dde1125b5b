// Convolution kernels of the Metal device (MPSCNNConvolution, MPSCNNFullyConnected,
// MPSCNNConvolutionTranspose, ...Gradient).
#include <algorithm>
#include <type_traits>

#include "kernels/convolution/convolution_transpose.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"
#include "metal/metal_neuron.hpp"
#include "metal/metal_states.hpp"

namespace mpsgrad {
namespace {

using metal::MetalBuffer;
using metal::MetalCommandBuffer;
using metal::PoolScope;
using metal::Retained;
using metal::to_ns;

// Autoreleased.
MPSCNNConvolutionDescriptor* to_mps(const ConvolutionDescriptor& d) {
  Class kind = d.depthwise                    ? [MPSCNNDepthWiseConvolutionDescriptor class]
               : d.sub_pixel_scale_factor > 1 ? [MPSCNNSubPixelConvolutionDescriptor class]
                                              : [MPSCNNConvolutionDescriptor class];
  MPSCNNConvolutionDescriptor* result =
      [kind cnnConvolutionDescriptorWithKernelWidth:to_ns(d.window.kernel_width)
                                       kernelHeight:to_ns(d.window.kernel_height)
                               inputFeatureChannels:to_ns(d.input_feature_channels)
                              outputFeatureChannels:to_ns(d.output_feature_channels)];
  result.strideInPixelsX = to_ns(d.window.stride_x);
  result.strideInPixelsY = to_ns(d.window.stride_y);
  result.dilationRateX = to_ns(d.window.dilation_x);
  result.dilationRateY = to_ns(d.window.dilation_y);
  result.groups = to_ns(d.groups);
  result.fusedNeuronDescriptor = metal::to_mps(d.neuron);
  if (d.sub_pixel_scale_factor > 1) {
    static_cast<MPSCNNSubPixelConvolutionDescriptor*>(result).subPixelScaleFactor =
        to_ns(d.sub_pixel_scale_factor);
  }
  if (d.has_batch_normalization) {
    const auto values = [](const std::vector<float>& array) {
      return array.empty() ? nullptr : array.data();
    };
    [result setBatchNormalizationParametersForInferenceWithMean:values(d.mean)
                                                       variance:values(d.variance)
                                                          gamma:values(d.gamma)
                                                           beta:values(d.beta)
                                                        epsilon:d.epsilon];
  }
  return result;
}

// What a source object answers with. float16 weights come as their float32 values, which round back
// exactly.
struct SourceAnswers {
  explicit SourceAnswers(const ConvolutionParameters& source)
      : parameters(source),
        descriptor(metal::Retained<MPSCNNConvolutionDescriptor*>::share(to_mps(source.descriptor))),
        label(metal::Retained<NSString*>::share(
            [NSString stringWithUTF8String:source.label.c_str()])) {}
  ConvolutionParameters parameters;
  metal::Retained<MPSCNNConvolutionDescriptor*> descriptor;
  metal::Retained<NSString*> label;
};

}  // namespace
}  // namespace mpsgrad

// Stands before a data source written in Python: answers from what was read of it once and checked,
// so that MPS may ask at any time, on any thread, and gets no answer that it would refuse.
@interface MpsgradConvolutionSource : NSObject <MPSCNNConvolutionDataSource> {
 @private
  // Pointers: not every runtime builds members.
  std::shared_ptr<mpsgrad::SourceAnswers>* answers_;
  std::shared_ptr<mpsgrad::metal::SourceUpdates>* updates_;  // of graphs; of kernels null
}
- (instancetype)initWithAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers;
- (instancetype)initWithAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers
                        updates:(std::shared_ptr<mpsgrad::metal::SourceUpdates>)updates;
- (void)setAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers;
@end

@implementation MpsgradConvolutionSource
- (instancetype)initWithAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers {
  return [self initWithAnswers:std::move(answers) updates:nullptr];
}
- (instancetype)initWithAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers
                        updates:(std::shared_ptr<mpsgrad::metal::SourceUpdates>)updates {
  self = [super init];
  if (self != nil) {
    answers_ = new std::shared_ptr<mpsgrad::SourceAnswers>(std::move(answers));
    updates_ = new std::shared_ptr<mpsgrad::metal::SourceUpdates>(std::move(updates));
  }
  return self;
}
- (void)dealloc {
  delete answers_;
  delete updates_;
  [super dealloc];
}
- (void)setAnswers:(std::shared_ptr<mpsgrad::SourceAnswers>)answers {
  *answers_ = std::move(answers);
}
- (id)copyWithZone:(nullable NSZone*)zone {
  return [[[self class] allocWithZone:zone] initWithAnswers:*answers_ updates:*updates_];
}
- (BOOL)respondsToSelector:(SEL)selector {
  const bool now = sel_isEqual(selector, @selector(updateWithCommandBuffer:
                                                             gradientState:sourceState:)) != NO;
  if (now || sel_isEqual(selector, @selector(updateWithGradientState:sourceState:)) != NO) {
    return *updates_ && (*updates_)->has(mpsgrad::metal::SourceUpdates::What::Weights, !now);
  }
  return [super respondsToSelector:selector];
}
- (nullable MPSCNNConvolutionWeightsAndBiasesState*)
    updateWithCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
              gradientState:(MPSCNNConvolutionGradientState*)gradientState
                sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState {
  (void)commandBuffer;
  return static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(
      (*updates_)->now(mpsgrad::metal::SourceUpdates::What::Weights,
                       [NSArray arrayWithObject:gradientState], sourceState));
}
- (BOOL)updateWithGradientState:(MPSCNNConvolutionGradientState*)gradientState
                    sourceState:(MPSCNNConvolutionWeightsAndBiasesState*)sourceState {
  return (*updates_)->on_completion(mpsgrad::metal::SourceUpdates::What::Weights,
                                    [NSArray arrayWithObject:gradientState], sourceState);
}
- (MPSDataType)dataType {
  return (*answers_)->parameters.is_quantized ? MPSDataTypeUInt8 : MPSDataTypeFloat32;
}
- (MPSCNNConvolutionDescriptor*)descriptor {
  return (*answers_)->descriptor.get();
}
- (void*)weights {
  auto& parameters = (*answers_)->parameters;
  return parameters.is_quantized ? static_cast<void*>(parameters.bytes.data())
                                 : static_cast<void*>(parameters.weights.data());
}
- (nullable float*)biasTerms {
  auto& biases = (*answers_)->parameters.biases;
  return biases ? biases->data() : nullptr;
}
- (BOOL)load {
  return YES;
}
- (void)purge {
}
- (nullable NSString*)label {
  return (*answers_)->label.get();
}
- (MPSDataType)kernelWeightsDataType {
  return (*answers_)->parameters.half_weights ? MPSDataTypeFloat16 : MPSDataTypeFloat32;
}
- (MPSCNNWeightsQuantizationType)weightsQuantizationType {
  const auto& parameters = (*answers_)->parameters;
  return parameters.is_quantized
             ? static_cast<MPSCNNWeightsQuantizationType>(parameters.quantization)
             : MPSCNNWeightsQuantizationTypeNone;
}
- (vector_float2*)rangesForUInt8Kernel {
  return reinterpret_cast<vector_float2*>((*answers_)->parameters.ranges.data());
}
- (float*)lookupTableForUInt8Kernel {
  return (*answers_)->parameters.lookup_table.data();
}
@end

namespace mpsgrad {
namespace {

const char* class_name(ConvolutionKind kind) {
  return kind == ConvolutionKind::Plain            ? "MPSCNNConvolution"
         : kind == ConvolutionKind::FullyConnected ? "MPSCNNFullyConnected"
                                                   : "MPSCNNConvolutionTranspose";
}

const char* gradient_class_name(ConvolutionKind kind) {
  return kind == ConvolutionKind::Plain            ? "MPSCNNConvolutionGradient"
         : kind == ConvolutionKind::FullyConnected ? "MPSCNNFullyConnectedGradient"
                                                   : "MPSCNNConvolutionTransposeGradient";
}

// A kernel of Apple's and its weights. An encode under way keeps the kernel, and with it the
// weights it was encoded with: MPS replaces them at once, so that they may not be replaced in place
// while work uses them.
template <class Kernel>
class KernelWithWeights {
 public:
  using Make = Kernel* (*)(id<MTLDevice> device, MpsgradConvolutionSource* source, bool full);

  KernelWithWeights(Device& device, const ConvolutionParameters& parameters, ConvolutionKind kind,
                    Make make, const char* class_name)
      : device_(metal::mtl_device(device)), kind_(kind), make_(make), class_name_(class_name) {
    renew(parameters);
  }

  Kernel* get() const { return kernel_.get(); }
  ConvolutionKind kind() const { return kind_; }

  void set(const ConvolutionParameters& parameters) {
    const PoolScope pool;
    if (is_in_use()) {
      renew(parameters);
      return;
    }
    [source_.get() setAnswers:std::make_shared<SourceAnswers>(parameters)];
    [get() reloadWeightsAndBiasesFromDataSource];
  }

  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state,
              const ConvolutionDescriptor& descriptor) {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    const auto made = metal::mps_weights(state, descriptor);
    [get() reloadWeightsAndBiasesWithCommandBuffer:own.for_kernel() state:made.get()];
    own.keep(made.get());
    own.keep(get());
    note_use(command_buffer);
  }

  void note_use(const CommandBuffer& command_buffer) {
    if (!users_.empty() && users_.back().lock() == command_buffer.work()) {
      return;
    }
    std::erase_if(users_, has_ended);
    users_.push_back(command_buffer.work());
  }

 private:
  static bool has_ended(const std::weak_ptr<Work>& user) {
    const auto work = user.lock();
    return !work || work->has_ended() || work->abandoned();
  }

  bool is_in_use() const { return !std::all_of(users_.begin(), users_.end(), has_ended); }

  void renew(const ConvolutionParameters& parameters) {
    const PoolScope pool;
    auto source = Retained<MpsgradConvolutionSource*>::adopt([[MpsgradConvolutionSource alloc]
        initWithAnswers:std::make_shared<SourceAnswers>(parameters)]);
    kernel_ = metal::adopt_kernel(
        make_(device_, source.get(), kind_ == ConvolutionKind::FullyConnected), class_name_);
    source_ = std::move(source);
    users_.clear();
  }

  id<MTLDevice> device_;  // lives as long as the process
  ConvolutionKind kind_;
  Make make_;
  const char* class_name_;
  Retained<MpsgradConvolutionSource*> source_;
  Retained<Kernel*> kernel_;
  std::vector<std::weak_ptr<Work>> users_;
};

MPSCNNConvolution* new_forward(id<MTLDevice> device, MpsgradConvolutionSource* source, bool full) {
  return full ? [[MPSCNNFullyConnected alloc] initWithDevice:device weights:source]
              : [[MPSCNNConvolution alloc] initWithDevice:device weights:source];
}

MPSCNNConvolutionTranspose* new_transpose(id<MTLDevice> device, MpsgradConvolutionSource* source,
                                          bool) {
  return [[MPSCNNConvolutionTranspose alloc] initWithDevice:device weights:source];
}

MPSCNNConvolutionTransposeGradient* new_transpose_gradient(id<MTLDevice> device,
                                                           MpsgradConvolutionSource* source, bool) {
  return [[MPSCNNConvolutionTransposeGradient alloc] initWithDevice:device weights:source];
}

MPSCNNConvolutionGradient* new_gradient(id<MTLDevice> device, MpsgradConvolutionSource* source,
                                        bool full) {
  return full ? [[MPSCNNFullyConnectedGradient alloc] initWithDevice:device weights:source]
              : [[MPSCNNConvolutionGradient alloc] initWithDevice:device weights:source];
}

template <class Kernel>
class MetalConvolution final : public ConvolutionEncoder {
 public:
  MetalConvolution(Device& device, const ConvolutionParameters& parameters, ConvolutionKind kind,
                   typename KernelWithWeights<Kernel>::Make make)
      : device_(device),
        descriptor_(parameters.descriptor),
        kernel_(device, parameters, kind, make, class_name(kind)) {}

  void set(const ConvolutionParameters& parameters) override { kernel_.set(parameters); }
  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) override {
    kernel_.reload(command_buffer, state, descriptor_);
  }

  // MPS makes the state that it copies to; its contents are copied on to ours.
  void export_weights(CommandBuffer& command_buffer,
                      ConvolutionWeightsAndBiasesState& result) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    MPSCNNConvolutionWeightsAndBiasesState* exported =
        [kernel_.get() exportWeightsAndBiasesWithCommandBuffer:own.for_kernel()
                                     resultStateCanBeTemporary:NO];
    require<DeviceError>(exported != nil, class_name(kernel_.kind()),
                         ": the device made no state to export to");
    own.keep(exported);
    own.keep(kernel_.get());
    kernel_.note_use(command_buffer);
    const auto copy = [&](id<MTLBuffer> from, NSUInteger offset, const std::shared_ptr<Buffer>& to,
                          Index count) {
      if (from == nil || !to) {
        return;
      }
      if (command_buffer.predicate) {
        metal::clear_floats(from);  // the export may be skipped, the copy is not
      }
      own.copy(from, offset, as<MetalBuffer>(*to).get(), to_ns(count) * sizeof(float));
    };
    copy(exported.weights, exported.weightsOffset, result.weights(), result.weight_count());
    copy(exported.biases, exported.biasesOffset, result.biases(), result.bias_count());
  }

  // Here, not with the first encode: one state takes the sums of all encodes it is given to.
  ConvolutionGradientState::Contents make_state(const ForwardSnapshot& snapshot,
                                                CommandBuffer* temporary) override {
    const PoolScope pool;
    set_properties(snapshot.properties, snapshot.clip.size.depth);
    auto payload = metal::make_state(kernel_.get(), snapshot, temporary);
    auto* state = static_cast<MPSCNNConvolutionGradientState*>(payload->get());
    const ConvolutionWeightShape shape = descriptor_.weight_shape();
    return {metal::share_floats(device_, state.gradientForWeights, shape.weight_count(),
                                snapshot.kernel_class),
            metal::share_floats(device_, state.gradientForBiases, shape.output_channels,
                                snapshot.kernel_class),
            std::move(payload)};
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call, AccumulatorPrecision) override {
    const PoolScope pool;
    set_properties(call.properties, call.clip.size.depth);
    metal::set_label(kernel_.get(), call.kernel);
    NSArray<MPSState*>* states =
        call.states.empty() ? nil : metal::mps_states(call.kernel.class_name(), call.states);
    metal::encode_prepared(command_buffer, kernel_.get(), call, states);
    kernel_.note_use(command_buffer);
  }

 private:
  // Nothing but `p` decides, so that a state and an encode into it find the same kernel.
  void set_properties(const UnaryProperties& p, Index depth) {
    Kernel* kernel = kernel_.get();
    const ConvolutionSettings& settings = convolution_settings(p);
    kernel.accumulatorPrecisionOption =
        static_cast<MPSNNConvolutionAccumulatorPrecisionOption>(settings.precision);
    kernel.options = static_cast<MPSKernelOptions>(settings.options);
    if constexpr (std::is_same_v<Kernel, MPSCNNConvolutionTranspose>) {
      kernel.kernelOffsetX = settings.kernel_offset_x;
      kernel.kernelOffsetY = settings.kernel_offset_y;
    }
    metal::set_properties(kernel, {p, depth, descriptor_.input_feature_channels});
  }

  Device& device_;
  ConvolutionDescriptor descriptor_;
  KernelWithWeights<Kernel> kernel_;
};

// A call with the geometry that Apple's kernel takes from the state, where nobody has published it.
struct ConfiguredCall {
  ConfiguredCall(MPSCNNGradientKernel* kernel, const GradientCall& call)
      : properties(configured(kernel, call)),
        call{call.gradients,
             call.sources,
             call.states,
             call.destinations,
             call.batch,
             properties,
             call.clip,
             call.first_gradient,
             call.first_source,
             call.gradient_channels,
             call.source_channels,
             call.produced_channels,
             call.creates_destination,
             call.kernel} {}

  BinaryProperties properties;
  GradientCall call;

 private:
  static BinaryProperties configured(MPSCNNGradientKernel* kernel, const GradientCall& call) {
    NSArray<MPSImage*>* images =
        [NSArray arrayWithObjects:metal::mps_image(*call.gradients.front()),
                                  metal::mps_image(*call.sources.front()), nil];
    (void)[kernel
        destinationImageDescriptorForSourceImages:images
                                     sourceStates:metal::mps_states(call.kernel.class_name(),
                                                                    {call.states.front()})];
    BinaryProperties result = call.properties;
    const auto take = [](const MPSOffset& from, Offset& to) {
      to.x = from.x;
      to.y = from.y;
    };
    take(kernel.primaryOffset, result.primary.offset);
    take(kernel.secondaryOffset, result.secondary.offset);
    result.kernel_offset_x = kernel.kernelOffsetX;
    result.kernel_offset_y = kernel.kernelOffsetY;
    return result;
  }
};

template <class Kernel>
class MetalConvolutionGradient final : public ConvolutionGradientEncoder {
 public:
  MetalConvolutionGradient(Device& device, const ConvolutionParameters& parameters,
                           ConvolutionKind kind, typename KernelWithWeights<Kernel>::Make make)
      : descriptor_(parameters.descriptor),
        kernel_(device, parameters, kind, make, gradient_class_name(kind)) {}

  void set(const ConvolutionParameters& parameters) override { kernel_.set(parameters); }
  void reload(CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state) override {
    kernel_.reload(command_buffer, state, descriptor_);
  }

  // MPS's state knows whether it holds sums to add to.
  void encode(CommandBuffer& command_buffer, const GradientCall& call,
              ConvolutionGradientOption option, ConvolutionGradientState&, bool) override {
    const PoolScope pool;
    kernel_.get().gradientOption = static_cast<MPSCNNConvolutionGradientOption>(option);
    if constexpr (std::is_same_v<Kernel, MPSCNNConvolutionTransposeGradient>) {
      metal::encode(command_buffer, kernel_.get(), ConfiguredCall(kernel_.get(), call).call);
    } else {
      metal::encode(command_buffer, kernel_.get(), call);
    }
    kernel_.note_use(command_buffer);
  }

 private:
  ConvolutionDescriptor descriptor_;
  KernelWithWeights<Kernel> kernel_;
};

class MetalConvolutionBackend final : public ConvolutionBackend {
 public:
  std::unique_ptr<ConvolutionEncoder> make_forward(Device& device,
                                                   const ConvolutionParameters& parameters,
                                                   ConvolutionKind kind) const override {
    if (kind == ConvolutionKind::Transpose) {
      return std::make_unique<MetalConvolution<MPSCNNConvolutionTranspose>>(device, parameters,
                                                                            kind, new_transpose);
    }
    return std::make_unique<MetalConvolution<MPSCNNConvolution>>(device, parameters, kind,
                                                                 new_forward);
  }
  std::unique_ptr<ConvolutionGradientEncoder> make_gradient(Device& device,
                                                            const ConvolutionParameters& parameters,
                                                            ConvolutionKind kind) const override {
    if (kind == ConvolutionKind::Transpose) {
      return std::make_unique<MetalConvolutionGradient<MPSCNNConvolutionTransposeGradient>>(
          device, parameters, kind, new_transpose_gradient);
    }
    return std::make_unique<MetalConvolutionGradient<MPSCNNConvolutionGradient>>(
        device, parameters, kind, new_gradient);
  }
};

}  // namespace

const ConvolutionBackend& metal_convolution() {
  static const MetalConvolutionBackend backend;
  return backend;
}

namespace metal {

Node make_convolution_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<Convolution>();
  if (kernel == nullptr) {
    return {};
  }
  MPSCNNConvolutionNode* made = nil;
  if (request.kernel<ConvolutionTranspose>() != nullptr) {
    made = [[MPSCNNConvolutionTransposeNode alloc] initWithSource:request.source()
                                         convolutionGradientState:request.undone
                                                          weights:request.data_source];
  } else if (request.kernel<FullyConnected>() != nullptr) {
    made = [[MPSCNNFullyConnectedNode alloc] initWithSource:request.source()
                                                    weights:request.data_source];
  } else {
    made = [[MPSCNNConvolutionNode alloc] initWithSource:request.source()
                                                 weights:request.data_source];
  }
  Node node = adopt_node(made);
  made.accumulatorPrecision =
      static_cast<MPSNNConvolutionAccumulatorPrecisionOption>(kernel->accumulator_precision());
  return node;
}

StateAdopter convolution_state_adopter(const State& like) {
  const auto* ours = dynamic_cast<const ConvolutionGradientState*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  const bool transposed = dynamic_cast<const ConvolutionTransposeGradientState*>(ours) != nullptr;
  return
      [transposed, snapshot = ours->snapshot(), shape = ours->shape(), producer = ours->producer(),
       untrainable = ours->untrainable(), has_gradients = ours->has_gradients()](
          MPSState* made, StateAdoption& adoption) -> std::shared_ptr<State> {
        const char* who = "MPSCNNConvolutionGradientState";
        auto* state = static_cast<MPSCNNConvolutionGradientState*>(made);
        ConvolutionGradientState::Contents contents{
            adoption.floats(state.gradientForWeights, shape.weight_count(), who),
            adoption.floats(state.gradientForBiases, shape.output_channels, who),
            adoption.payload(made)};
        std::shared_ptr<ConvolutionGradientState> result;
        if (transposed) {
          result = std::make_shared<ConvolutionTransposeGradientState>(
              adoption.device, adoption.owner(), snapshot, shape, producer, untrainable,
              std::move(contents), nullptr);
        } else {
          result = std::make_shared<ConvolutionGradientState>(adoption.device, adoption.owner(),
                                                              snapshot, shape, producer,
                                                              untrainable, std::move(contents));
        }
        result->note_forward(adoption.work());
        if (has_gradients) {
          result->note_gradients(adoption.work());
        }
        return result;
      };
}

Retained<id> make_graph_convolution_source(const ConvolutionParameters& parameters,
                                           std::shared_ptr<SourceUpdates> updates) {
  return Retained<id>::adopt([[MpsgradConvolutionSource alloc]
      initWithAnswers:std::make_shared<SourceAnswers>(parameters)
              updates:std::move(updates)]);
}

void set_answers(id source, const ConvolutionParameters& parameters) {
  [static_cast<MpsgradConvolutionSource*>(source)
      setAnswers:std::make_shared<SourceAnswers>(parameters)];
}

Retained<MPSCNNConvolutionWeightsAndBiasesState*> mps_weights(
    ConvolutionWeightsAndBiasesState& state, const ConvolutionDescriptor& descriptor) {
  const auto biases = state.biases();
  auto made = Retained<MPSCNNConvolutionWeightsAndBiasesState*>::adopt(
      [[MPSCNNConvolutionWeightsAndBiasesState alloc]
                   initWithWeights:as<MetalBuffer>(*state.weights()).get()
                     weightsOffset:to_ns(state.weights_offset())
                            biases:biases ? as<MetalBuffer>(*biases).get() : nil
                      biasesOffset:to_ns(state.biases_offset())
          cnnConvolutionDescriptor:mpsgrad::to_mps(descriptor)]);
  require<DeviceError>(static_cast<bool>(made),
                       "MPSCNNConvolutionWeightsAndBiasesState: the device made no state");
  return made;
}

}  // namespace metal
}  // namespace mpsgrad
