// Batch normalization on the Metal device (MPSCNNBatchNormalizationStatistics,
// MPSCNNBatchNormalization, MPSCNNBatchNormalizationStatisticsGradient,
// MPSCNNBatchNormalizationGradient). Our state keeps Apple's for one accumulation, and copies of
// its arrays, taken after each encode that writes them.
#include <utility>

#include "kernels/batch_normalization/batch_normalization.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"
#include "metal/metal_neuron.hpp"
#include "metal/metal_normalization.hpp"

namespace mpsgrad {
namespace {

using metal::MetalCommandBuffer;
using metal::PoolScope;
using metal::Retained;

constexpr const char* kForward = "MPSCNNBatchNormalization";

MPSNNNeuronDescriptor* fused(const NeuronDescriptor& neuron) {
  return neuron.type == NeuronType::None ? nil : metal::to_mps(neuron);
}

id<MTLBuffer> mtl_buffer(const std::shared_ptr<Buffer>& buffer) {
  return as<metal::MetalBuffer>(*buffer).get();
}

// Apple's array, as it is at this point of the command buffer, into ours.
void copy_out(MetalCommandBuffer& command_buffer, const char* name, id<MTLBuffer> from,
              const std::shared_ptr<Buffer>& to) {
  require<DeviceError>(from != nil, "MPSCNNBatchNormalizationState: the device made no ", name);
  require<DeviceError>([from length] >= to->size(), "MPSCNNBatchNormalizationState: ", name,
                       " has ", [from length], " bytes, expected ", to->size());
  if (from != mtl_buffer(to)) {  // as for a graph's state
    command_buffer.copy(from, 0, mtl_buffer(to), to->size());
  }
}

void copy_sums_out(MetalCommandBuffer& command_buffer, MPSCNNBatchNormalizationState* from,
                   BatchNormalizationState& to) {
  copy_out(command_buffer, "gradientForGamma", [from gradientForGamma], to.gamma_sums());
  copy_out(command_buffer, "gradientForBeta", [from gradientForBeta], to.beta_sums());
}

// Apple's state. An ordinary one always: read counts are ours to keep, and its arrays are copied.
class MetalBatchPayload final : public StatePayload {
 public:
  MetalBatchPayload(Retained<MPSCNNBatchNormalization*> kernel, float epsilon)
      : kernel_(std::move(kernel)), epsilon_(epsilon) {}
  // A graph's, for the one batch it has been made for.
  MetalBatchPayload(MPSCNNBatchNormalizationState* state,
                    std::shared_ptr<metal::MetalStatePayload> held)
      : state_(Retained<MPSCNNBatchNormalizationState*>::share(state)),
        held_(std::move(held)),
        epsilon_(0.0F) {}

  // A new one for each accumulation, so that work on its way keeps the old one.
  void start(Device& device, const ImageDescriptor& image) {
    require<StateError>(held_ == nullptr, "BatchNormalizationStatistics",
                        ": the state is of a graph's encode, and for that batch alone");
    sums_are_due = false;
    MPSCNNBatchNormalization* kernel = kernel_.get();
    kernel.epsilon = epsilon_;
    kernel.offset = {0, 0, 0};
    kernel.clipRect = MPSRectNoClip;
    kernel.edgeMode = MPSImageEdgeModeZero;
    kernel.sourceFeatureChannelOffset = 0;
    kernel.sourceFeatureChannelMaxCount = NSUIntegerMax;
    kernel.destinationFeatureChannelOffset = 0;
    MPSImageDescriptor* like =
        [MPSImageDescriptor imageDescriptorWithChannelFormat:MPSImageFeatureChannelFormatFloat16
                                                       width:static_cast<NSUInteger>(image.width)
                                                      height:static_cast<NSUInteger>(image.height)
                                             featureChannels:kernel.numberOfFeatureChannels];
    // Never written or read, so it gets no memory.
    auto shape =
        Retained<MPSImage*>::adopt([[MPSImage alloc] initWithDevice:metal::mtl_device(device)
                                                    imageDescriptor:like]);
    state_ = Retained<MPSCNNBatchNormalizationState*>::share([kernel
        resultStateForSourceImage:shape.get()
                     sourceStates:nil
                 destinationImage:shape.get()]);
    require<DeviceError>(static_cast<bool>(state_), kForward, ": the device made no state");
  }
  MPSCNNBatchNormalizationState* get() const {
    require<DeviceError>(static_cast<bool>(state_), kForward, ": the state has no statistics");
    return state_.get();
  }
  void end() override {
    state_ = {};
    if (held_) {
      held_->end();
    }
  }

  // Apple's state shows no gradients of gamma and beta before the gradient of the source.
  bool sums_are_due = false;

 private:
  Retained<MPSCNNBatchNormalization*> kernel_;
  Retained<MPSCNNBatchNormalizationState*> state_;
  std::shared_ptr<metal::MetalStatePayload> held_;
  float epsilon_;
};

MetalBatchPayload& payload_of(const BatchNormalizationState& state) {
  return dynamic_cast<MetalBatchPayload&>(*state.payload);
}

class MetalBatchNormalization final : public BatchNormalizationEncoder {
 public:
  MetalBatchNormalization(Device& device, const BatchNormalizationArrays& arrays, Index channels,
                          const NeuronDescriptor& neuron)
      : device_(device), arrays_(arrays) {
    const PoolScope pool;
    numbers_.channels = channels;
    numbers_.copy_gamma_and_beta(*arrays_.gamma_and_beta);
    numbers_.copy_mean_and_variance(*arrays_.mean_and_variance);
    const auto source = metal::make_normalization_source(numbers_);
    kernel_ = metal::adopt_kernel<MPSCNNBatchNormalization>(
        [[MPSCNNBatchNormalization alloc] initWithDevice:metal::mtl_device(device)
                                              dataSource:source.get()
                                   fusedNeuronDescriptor:fused(neuron)],
        kForward);
  }

  void gamma_and_beta_replaced() override {
    const PoolScope pool;
    numbers_.copy_gamma_and_beta(*arrays_.gamma_and_beta);
    [kernel_.get() reloadGammaAndBetaFromDataSource];
  }
  void mean_and_variance_replaced() override {
    const PoolScope pool;
    numbers_.copy_mean_and_variance(*arrays_.mean_and_variance);
    [kernel_.get() reloadMeanAndVarianceFromDataSource];
  }

  void encode_reload(CommandBuffer& command_buffer,
                     NormalizationGammaAndBetaState& state) override {
    metal::encode_reload(kName, kernel_.get(), command_buffer, state);
  }
  void encode_reload(CommandBuffer& command_buffer,
                     NormalizationMeanAndVarianceState& state) override {
    const PoolScope pool;
    auto& own = metal::for_reload(kName, command_buffer);
    auto container = Retained<MPSCNNNormalizationMeanAndVarianceState*>::adopt(
        [[MPSCNNNormalizationMeanAndVarianceState alloc]
            initWithMean:mtl_buffer(state.mean())
                variance:mtl_buffer(state.variance())]);
    [kernel_.get() reloadMeanAndVarianceWithCommandBuffer:own.for_kernel()
                                     meanAndVarianceState:container.get()];
    own.keep(container.get());
    own.keep(kernel_.get());
  }

  BatchNormalizationState::Contents make_state(const ForwardSnapshot& snapshot, float epsilon,
                                               CommandBuffer* temporary) override {
    const auto make = [&] { return device_.make_floats(snapshot.consumed_channels, temporary); };
    auto mean = make();
    auto variance = make();
    auto gamma = make();
    auto beta = make();
    return {std::move(mean), std::move(variance), std::move(gamma), std::move(beta),
            std::make_shared<MetalBatchPayload>(kernel_, epsilon)};
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call,
              const BatchNormalizationOperands& operands, BatchNormalizationState* state) override {
    const PoolScope pool;
    MPSCNNBatchNormalization* kernel = kernel_.get();
    kernel.epsilon = operands.epsilon;
    if (state == nullptr) {
      metal::encode(command_buffer, kernel, call);
      return;
    }
    auto& own = as<MetalCommandBuffer>(command_buffer);
    metal::set_properties(kernel, call);
    MPSCNNBatchNormalizationState* statistics = payload_of(*state).get();
    NSArray<MPSImage*>* sources = metal::mps_images(call.sources, false);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.destinations, true);
    if (call.batch) {
      [kernel encodeBatchToCommandBuffer:own.for_kernel()
                            sourceImages:sources
                 batchNormalizationState:statistics
                       destinationImages:destinations];
    } else {
      [kernel encodeToCommandBuffer:own.for_kernel()
                        sourceImage:[sources objectAtIndex:0]
            batchNormalizationState:statistics
                   destinationImage:[destinations objectAtIndex:0]];
    }
    own.keep_all({sources, destinations, statistics, kernel});
  }

 private:
  static constexpr const char* kName = "BatchNormalization";

  Device& device_;
  BatchNormalizationArrays arrays_;
  metal::NormalizationNumbers numbers_;
  Retained<MPSCNNBatchNormalization*> kernel_;
};

class MetalStatistics final : public BatchNormalizationSumsEncoder {
 public:
  explicit MetalStatistics(Device& device) : device_(device) {
    const PoolScope pool;
    kernel_ = metal::adopt_kernel<MPSCNNBatchNormalizationStatistics>(
        [[MPSCNNBatchNormalizationStatistics alloc] initWithDevice:metal::mtl_device(device)],
        "MPSCNNBatchNormalizationStatistics");
  }

  void encode(CommandBuffer& command_buffer, const BatchNormalizationSums& sums,
              const BatchNormalizationOperands&) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    MetalBatchPayload& payload = payload_of(sums.state);
    if (sums.start) {
      payload.start(device_, sums.sources.front()->descriptor());
    }
    MPSCNNBatchNormalizationStatistics* kernel = kernel_.get();
    metal::set_options(kernel, sums.kernel);
    kernel.sourceFeatureChannelOffset = static_cast<NSUInteger>(sums.source_channel_offset);
    kernel.sourceFeatureChannelMaxCount = static_cast<NSUInteger>(sums.state.channels());
    NSArray<MPSImage*>* sources = metal::mps_images(sums.sources, false);
    [kernel encodeBatchToCommandBuffer:own.for_kernel()
                          sourceImages:sources
               batchNormalizationState:payload.get()];
    own.keep_all({sources, payload.get(), kernel});
    copy_out(own, "mean", [payload.get() mean], sums.state.batch_mean());
    copy_out(own, "variance", [payload.get() variance], sums.state.batch_variance());
  }

 private:
  Device& device_;
  Retained<MPSCNNBatchNormalizationStatistics*> kernel_;
};

class MetalStatisticsGradient final : public BatchNormalizationSumsEncoder {
 public:
  MetalStatisticsGradient(Device& device, const NeuronDescriptor& neuron) {
    const PoolScope pool;
    kernel_ = metal::adopt_kernel<MPSCNNBatchNormalizationStatisticsGradient>(
        [[MPSCNNBatchNormalizationStatisticsGradient alloc] initWithDevice:metal::mtl_device(device)
                                                     fusedNeuronDescriptor:fused(neuron)],
        "MPSCNNBatchNormalizationStatisticsGradient");
  }

  void encode(CommandBuffer& command_buffer, const BatchNormalizationSums& sums,
              const BatchNormalizationOperands&) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    const auto channels = static_cast<NSUInteger>(sums.state.channels());
    MPSCNNBatchNormalizationStatisticsGradient* kernel = kernel_.get();
    metal::set_options(kernel, sums.kernel);
    kernel.primarySourceFeatureChannelOffset =
        static_cast<NSUInteger>(sums.gradient_channel_offset);
    kernel.primarySourceFeatureChannelMaxCount = channels;
    kernel.secondarySourceFeatureChannelOffset =
        static_cast<NSUInteger>(sums.source_channel_offset);
    kernel.secondarySourceFeatureChannelMaxCount = channels;
    MetalBatchPayload& payload = payload_of(sums.state);
    MPSCNNBatchNormalizationState* state = payload.get();
    NSArray<MPSImage*>* gradients = metal::mps_images(*sums.gradients, false);
    NSArray<MPSImage*>* sources = metal::mps_images(sums.sources, false);
    [kernel encodeBatchToCommandBuffer:own.for_kernel()
                       sourceGradients:gradients
                          sourceImages:sources
               batchNormalizationState:state];
    own.keep_all({gradients, sources, state, kernel});
    // Of the header's comments one says that they are there now, one that they may not be.
    payload.sums_are_due = [state gradientForGamma] == nil || [state gradientForBeta] == nil;
    if (payload.sums_are_due) {
      for (const auto& due : {sums.state.gamma_sums(), sums.state.beta_sums()}) {
        own.fill(mtl_buffer(due), 0xFF);  // NaN
      }
    } else {
      copy_sums_out(own, state, sums.state);
    }
  }

 private:
  Retained<MPSCNNBatchNormalizationStatisticsGradient*> kernel_;
};

class MetalBatchNormalizationGradient final : public BatchNormalizationGradientEncoder {
 public:
  MetalBatchNormalizationGradient(Device& device, const NeuronDescriptor& neuron) {
    const PoolScope pool;
    kernel_ = metal::adopt_kernel<MPSCNNBatchNormalizationGradient>(
        [[MPSCNNBatchNormalizationGradient alloc] initWithDevice:metal::mtl_device(device)
                                           fusedNeuronDescriptor:fused(neuron)],
        "MPSCNNBatchNormalizationGradient");
  }

  void encode(CommandBuffer& command_buffer, const GradientCall& call,
              const BatchNormalizationOperands&, BatchNormalizationState& ours) override {
    const PoolScope pool;
    auto& own = as<MetalCommandBuffer>(command_buffer);
    MPSCNNBatchNormalizationGradient* kernel = kernel_.get();
    metal::set_properties(kernel, call);
    kernel.clipRect = MPSRectNoClip;  // as ours has
    MetalBatchPayload& payload = payload_of(ours);
    MPSCNNBatchNormalizationState* state = payload.get();
    NSArray<MPSImage*>* gradients = metal::mps_images(call.gradients, false);
    NSArray<MPSImage*>* sources = metal::mps_images(call.sources, false);
    NSArray<MPSImage*>* destinations = metal::mps_images(call.destinations, true);
    if (call.batch) {
      [kernel encodeBatchToCommandBuffer:own.for_kernel()
                         sourceGradients:gradients
                            sourceImages:sources
                 batchNormalizationState:state
                    destinationGradients:destinations];
    } else {
      [kernel encodeToCommandBuffer:own.for_kernel()
                     sourceGradient:[gradients objectAtIndex:0]
                        sourceImage:[sources objectAtIndex:0]
            batchNormalizationState:state
                destinationGradient:[destinations objectAtIndex:0]];
    }
    own.keep_all({gradients, sources, destinations, state, kernel});
    if (std::exchange(payload.sums_are_due, false)) {
      copy_sums_out(own, state, ours);
      for (const auto& sums : {ours.gamma_sums(), ours.beta_sums()}) {
        sums->note_use(own.work(), true);
      }
    }
  }

 private:
  Retained<MPSCNNBatchNormalizationGradient*> kernel_;
};

class MetalBatchNormalizationBackend final : public BatchNormalizationBackend {
 public:
  std::unique_ptr<BatchNormalizationEncoder> make_forward(
      Device& device, const BatchNormalizationArrays& arrays, Index channels,
      const NeuronDescriptor& neuron) const override {
    return std::make_unique<MetalBatchNormalization>(device, arrays, channels, neuron);
  }
  std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics(Device& device) const override {
    return std::make_unique<MetalStatistics>(device);
  }
  std::unique_ptr<BatchNormalizationSumsEncoder> make_statistics_gradient(
      Device& device, const NeuronDescriptor& neuron) const override {
    return std::make_unique<MetalStatisticsGradient>(device, neuron);
  }
  std::unique_ptr<BatchNormalizationGradientEncoder> make_gradient(
      Device& device, const NeuronDescriptor& neuron) const override {
    return std::make_unique<MetalBatchNormalizationGradient>(device, neuron);
  }
};

}  // namespace

const BatchNormalizationBackend& metal_batch_normalization() {
  static const MetalBatchNormalizationBackend backend;
  return backend;
}

namespace metal {

Node make_batch_normalization_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<BatchNormalization>();
  if (kernel == nullptr || kernel->neuron().type != NeuronType::None) {
    return {};
  }
  MPSCNNBatchNormalizationNode* made =
      [[MPSCNNBatchNormalizationNode alloc] initWithSource:request.source()
                                                dataSource:request.data_source];
  Node node = adopt_node(made);
  made.flags = static_cast<MPSCNNBatchNormalizationFlags>(request.node.flags);
  return node;
}

StateAdopter batch_normalization_state_adopter(const State& like) {
  const auto* ours = dynamic_cast<const BatchNormalizationState*>(&like);
  if (ours == nullptr) {
    return nullptr;
  }
  return [snapshot = ours->snapshot(), producer = ours->producer(), epsilon = ours->epsilon(),
          channels = ours->channels(), has_statistics = ours->has_statistics(),
          has_gradients = ours->has_gradients()](
             MPSState* made, StateAdoption& adoption) -> std::shared_ptr<State> {
    const char* who = "MPSCNNBatchNormalizationState";
    auto* state = static_cast<MPSCNNBatchNormalizationState*>(made);
    const auto pair = [&](id<MTLBuffer> first, id<MTLBuffer> second) {
      return std::make_shared<const NormalizationPair>(adoption.device, channels,
                                                       adoption.live_floats(first, channels, who),
                                                       adoption.live_floats(second, channels, who));
    };
    // What nobody has computed is not there, and nobody looks.
    const auto floats = [&](id<MTLBuffer> buffer, bool computed) -> std::shared_ptr<Buffer> {
      return computed
                 ? adoption.floats(buffer, channels, who)
                 : adoption.device->make_buffer(static_cast<std::size_t>(channels) * sizeof(float));
    };
    const auto mean = floats([state mean], has_statistics);
    const auto variance = floats([state variance], has_statistics);
    BatchNormalizationState::Contents contents{
        mean, variance, floats([state gradientForGamma], has_gradients),
        floats([state gradientForBeta], has_gradients),
        std::make_shared<MetalBatchPayload>(state, adoption.payload(made))};
    auto result = std::make_shared<BatchNormalizationState>(
        adoption.device, adoption.owner(), snapshot, producer,
        BatchNormalizationState::Live{
            pair([state gamma], [state beta]),
            std::make_shared<const NormalizationPair>(adoption.device, channels, mean, variance)},
        epsilon, std::move(contents));
    if (has_statistics) {
      ImageDescriptor image;
      image.width = snapshot.source_width;
      image.height = snapshot.source_height;
      result->note_statistics(adoption.work(), image, adoption.images);
      result->note_normalized();
    }
    if (has_gradients) {
      result->note_statistics_gradient(adoption.work(), adoption.images);
      result->note_gradient();
    }
    return result;
  };
}

}  // namespace metal
}  // namespace mpsgrad
