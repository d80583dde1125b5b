// Rules of the batch normalization kernels; those of the phases are the state's.
#include "kernels/batch_normalization/batch_normalization.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

constexpr const char* kStatistics = "BatchNormalizationStatistics";
constexpr const char* kForward = "BatchNormalization";
constexpr const char* kStatisticsGradient = "BatchNormalizationStatisticsGradient";
constexpr const char* kGradient = "BatchNormalizationGradient";

const BatchNormalizationBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->batch_normalization(), "batch normalization");
}

// As check_neuron, but the slopes of PRELU must be exactly as many as channels.
void check_fused_neuron(const NeuronDescriptor& neuron, const char* who, Index channels) {
  check_neuron(neuron, who, 0);
  require(channels == 0 || neuron.type != NeuronType::PReLU ||
              static_cast<Index>(neuron.data.size()) == channels,
          who, ": PRELU data has ", neuron.data.size(), " values for ", channels, " channels");
}

BatchNormalizationState& state_of(const KernelBase& kernel, const std::shared_ptr<State>& state) {
  auto* own = dynamic_cast<BatchNormalizationState*>(state.get());
  require<TypeError>(own != nullptr, kernel.class_name(),
                     ": batch_normalization_state must be a BatchNormalizationState, got ",
                     state ? state->class_name() : "None");
  return *own;
}

void require_channels(const KernelBase& kernel, const char* name, Index offered, Index wanted) {
  require(offered == wanted, kernel.class_name(), ": ", name, " offers ", offered,
          " channels, but the kernel normalizes ", wanted);
}

Index offered_channels(const KernelBase& kernel, const char* name, const ImageBatch::Images& images,
                       Index offset, Index maximum) {
  return consumed_channels(kernel, {name, &images, false}, offset, maximum, 0);
}

void require_equal_images(const KernelBase& kernel, const ImageBatch::Images& gradients,
                          const ImageBatch::Images& sources) {
  const ImageDescriptor& source = sources.front()->descriptor();
  require_size(kernel, "source_gradient", gradients.front()->descriptor(), "source is",
               source.width, source.height);
}

// Of every channel window the images and the state must agree on.
void require_equal_channels(const KernelBase& kernel, const BinaryProperties& p,
                            const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                            Index channels) {
  require_channels(kernel, "source_gradient",
                   offered_channels(kernel, "source_gradient", gradients, p.primary.channel_offset,
                                    p.primary.channel_maximum),
                   channels);
  require_channels(kernel, "source",
                   offered_channels(kernel, "source", sources, p.secondary.channel_offset,
                                    p.secondary.channel_maximum),
                   channels);
}

void note_reads(const CommandBuffer& command_buffer, const BatchNormalizationOperands& operands) {
  for (const auto& buffer : {operands.gamma, operands.beta, operands.mean, operands.variance}) {
    note_use(command_buffer, buffer, false);
  }
}

// What the gradient kernels compute with.
BatchNormalizationOperands operands_of(BatchNormalizationState& state) {
  return {state.gamma(), state.beta(), state.batch_mean(), state.batch_variance(), state.epsilon()};
}

}  // namespace

// ---- statistics

BatchNormalizationStatistics::BatchNormalizationStatistics(std::shared_ptr<Device> device)
    : UnaryKernel(std::move(device), kStatistics, {}),
      encoder_(backend_of(*this).make_statistics(*this->device())) {}

void BatchNormalizationStatistics::encode_on_device(CommandBuffer&, const UnaryCall&) {
  fail<TypeError>(class_name(), ": statistics have no destination; use encode_batch");
}

void BatchNormalizationStatistics::encode_batch(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& sources,
    const std::shared_ptr<State>& given) {
  command_buffer->require_encodable_on(device(), class_name());
  check_operand(*this, *command_buffer, {"source_images", &sources, true});
  BatchNormalizationState& state = state_of(*this, given);
  state.require_usable(class_name(), *command_buffer);
  const UnaryProperties& p = properties();
  require_default(*this, "offset", p.offset);
  require_default(*this, "clip_rect", p.clip_rect);
  require_channels(*this, "source_images",
                   offered_channels(*this, "source_images", sources, p.source_channel_offset,
                                    p.source_channel_maximum),
                   state.channels());
  const ImageDescriptor& image = sources.front()->descriptor();
  const auto images = static_cast<Index>(sources.size());
  state.require_statistics_turn(class_name(), image, images);
  Reads reads;
  reads.add(sources);
  reads.check();

  const bool start = state.starts_statistics();
  encoder_->encode(*command_buffer,
                   {nullptr, sources, 0, p.source_channel_offset, state, start,
                    (start ? 0 : state.samples()) + images * image.width * image.height, *this},
                   operands_of(state));
  state.note_statistics(command_buffer->work(), image, images);
  command_buffer->note_encoded();
  note_uses(*command_buffer, sources, false);
  note_use(*command_buffer, state.batch_mean(), true);
  note_use(*command_buffer, state.batch_variance(), true);
  reads.spend();
}

// ---- forward

BatchNormalization::BatchNormalization(std::shared_ptr<Device> device,
                                       std::shared_ptr<NormalizationDataSource> source,
                                       NeuronDescriptor neuron)
    : UnaryKernel(std::move(device), kForward, {}),
      source_(std::move(source)),
      neuron_(std::move(neuron)) {
  const BatchNormalizationBackend& backend = backend_of(*this);
  const NormalizationSourceData data =
      read_normalization_source(class_name(), source_, {true, true, true}, 0);
  channels_ = data.channels;
  label = data.label;
  if (data.epsilon) {
    set_epsilon(*data.epsilon);
  }
  check_fused_neuron(neuron_, class_name(), channels_);
  arrays_.gamma_and_beta =
      std::make_shared<NormalizationPair>(this->device(), channels_, 1.0F, 0.0F);
  arrays_.mean_and_variance =
      std::make_shared<NormalizationPair>(this->device(), channels_, 0.0F, 1.0F);
  arrays_.gamma_and_beta->set(data.gamma, data.beta);
  arrays_.mean_and_variance->set(data.mean, data.variance);
  encoder_ = backend.make_forward(*this->device(), arrays_, channels_, neuron_);
}

void BatchNormalization::set_epsilon(float value) {
  check_normalization_epsilon(class_name(), value);
  epsilon_ = value;
}

void BatchNormalization::check_call(const UnaryCall& call) const {
  require_channels(
      *this, "source",
      offered_channels(*this, "source", call.sources, call.properties.source_channel_offset,
                       call.properties.source_channel_maximum),
      channels_);
}

void BatchNormalization::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  require<StateError>(
      arrays_.mean_and_variance->complete(), class_name(),
      ": the data source has no mean and variance, so there is nothing to normalize with; encode "
      "with a BatchNormalizationState, or reload mean and variance");
  const BatchNormalizationOperands operands{
      arrays_.gamma_and_beta->first(), arrays_.gamma_and_beta->second(),
      arrays_.mean_and_variance->first(), arrays_.mean_and_variance->second(), epsilon_};
  encoder_->encode(command_buffer, call, operands, nullptr);
  note_reads(command_buffer, operands);
}

void BatchNormalization::encode_with_state(const std::shared_ptr<CommandBuffer>& command_buffer,
                                           const ImageBatch::Images& sources,
                                           const std::shared_ptr<State>& given,
                                           const ImageBatch::Images& destinations, bool batch) {
  const UnaryProperties properties = current_properties();
  const StateBatch no_gradient_states;  // which the call refers to
  const UnaryCall call =
      prepare(*command_buffer, sources, destinations, no_gradient_states, batch, properties);
  BatchNormalizationState& state = state_of(*this, given);
  state.require_usable(class_name(), *command_buffer);
  require(state.producer().get() == this, class_name(),
          ": the state was made by another BatchNormalization");
  require<StateError>(epsilon_ == state.epsilon(), class_name(), ": epsilon is ", epsilon_,
                      ", but was ", state.epsilon(), " when the state was made; make a new state");
  require<StateError>(state.snapshot().properties == properties, class_name(),
                      ": the kernel's properties changed after result_state(); make a new state");
  state.require_size(class_name(), sources.front()->descriptor());
  require<StateError>(
      state.has_statistics() || arrays_.mean_and_variance->complete(), class_name(),
      ": the state has no statistics of this batch, and the data source has no mean and variance; "
      "encode BatchNormalizationStatistics first");
  Reads reads;
  reads.add(sources);
  reads.add(StateBatch{given});
  reads.check();
  if (!call.clip.empty()) {
    if (state.has_statistics()) {
      BatchNormalizationOperands operands = operands_of(state);
      encoder_->encode(*command_buffer, call, operands, &state);
      note_reads(*command_buffer, operands);
    } else {
      encode_on_device(*command_buffer, call);
    }
    command_buffer->note_encoded();
    note_uses(*command_buffer, sources, false);
    note_results(*command_buffer, destinations, call.clip,
                 call.properties.destination_channel_offset, call.produced_channels);
  }
  state.note_normalized();
  reads.spend();
}

void BatchNormalization::reload_gamma_and_beta_from_data_source() {
  const NormalizationSourceData data =
      read_normalization_source(class_name(), source_, {true, false, false}, channels_);
  arrays_.gamma_and_beta->set(data.gamma, data.beta);
  encoder_->gamma_and_beta_replaced();
}

void BatchNormalization::reload_mean_and_variance_from_data_source() {
  const NormalizationSourceData data =
      read_normalization_source(class_name(), source_, {false, true, false}, channels_);
  arrays_.mean_and_variance->set(data.mean, data.variance);
  encoder_->mean_and_variance_replaced();
}

template <class PairState>
void BatchNormalization::reload_pair(NormalizationPair& pair,
                                     const std::shared_ptr<CommandBuffer>& command_buffer,
                                     const std::shared_ptr<PairState>& state) {
  pair.check_reload(*this, *command_buffer, state);
  pair.reload(*command_buffer, *state, [&] { encoder_->encode_reload(*command_buffer, *state); });
}

void BatchNormalization::reload(const std::shared_ptr<CommandBuffer>& command_buffer,
                                const std::shared_ptr<NormalizationGammaAndBetaState>& state) {
  reload_pair(*arrays_.gamma_and_beta, command_buffer, state);
}

void BatchNormalization::reload(const std::shared_ptr<CommandBuffer>& command_buffer,
                                const std::shared_ptr<NormalizationMeanAndVarianceState>& state) {
  reload_pair(*arrays_.mean_and_variance, command_buffer, state);
}

std::shared_ptr<GradientState> BatchNormalization::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto contents = encoder_->make_state(snapshot, epsilon_, temporary.get());
  return std::make_shared<BatchNormalizationState>(
      device(), temporary, std::move(snapshot), shared_from_this(),
      BatchNormalizationState::Live{arrays_.gamma_and_beta, arrays_.mean_and_variance}, epsilon_,
      std::move(contents));
}

// ---- gradients

BatchNormalizationStatisticsGradient::BatchNormalizationStatisticsGradient(
    std::shared_ptr<Device> device, NeuronDescriptor neuron)
    : GradientKernel(std::move(device), kStatisticsGradient, kForward, {}),
      neuron_(std::move(neuron)) {
  check_fused_neuron(neuron_, class_name(), 0);
  encoder_ = backend_of(*this).make_statistics_gradient(*this->device(), neuron_);
}

void BatchNormalizationStatisticsGradient::check_state(const GradientState& state) const {
  check_fused_neuron(neuron_, class_name(), state.snapshot().consumed_channels);
}

void BatchNormalizationStatisticsGradient::encode_on_device(CommandBuffer&, const GradientCall&) {
  fail<TypeError>(class_name(), ": there is no destination; use encode_batch");
}

void BatchNormalizationStatisticsGradient::encode_batch(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& gradients,
    const ImageBatch::Images& sources, const std::shared_ptr<State>& given) {
  BatchNormalizationState& state = state_of(*this, given);
  const auto images = static_cast<Index>(sources.size());
  state.require_usable(class_name(), *command_buffer);
  state.require_statistics_gradient_turn(class_name(), images);
  check_sources(*command_buffer, gradients, sources, StateBatch(sources.size(), given), true);
  require_whole_images(*this, properties());
  require_equal_images(*this, gradients, sources);
  mpsgrad::require_equal_channels(*this, properties(), gradients, sources, state.channels());
  Reads reads;
  reads.add(gradients);
  reads.add(sources);
  reads.add(StateBatch{given});
  reads.check();

  const BatchNormalizationOperands operands = operands_of(state);
  encoder_->encode(*command_buffer,
                   {&gradients, sources, properties().primary.channel_offset,
                    properties().secondary.channel_offset, state, state.starts_gradients(),
                    state.samples(), *this},
                   operands);
  state.note_statistics_gradient(command_buffer->work(), images);
  command_buffer->note_encoded();
  note_uses(*command_buffer, gradients, false);
  note_uses(*command_buffer, sources, false);
  note_reads(*command_buffer, operands);
  note_use(*command_buffer, state.gamma_sums(), true);
  note_use(*command_buffer, state.beta_sums(), true);
  reads.spend();
}

BatchNormalizationGradient::BatchNormalizationGradient(std::shared_ptr<Device> device,
                                                       NeuronDescriptor neuron)
    : GradientKernel(std::move(device), kGradient, kForward, {}), neuron_(std::move(neuron)) {
  check_fused_neuron(neuron_, class_name(), 0);
  encoder_ = backend_of(*this).make_gradient(*this->device(), neuron_);
}

void BatchNormalizationGradient::check_state(const GradientState& state) const {
  const auto* own = dynamic_cast<const BatchNormalizationState*>(&state);
  require<TypeError>(own != nullptr, class_name(),
                     ": state must be a BatchNormalizationState, got a ", state.class_name());
  check_fused_neuron(neuron_, class_name(), own->channels());
  own->require_complete_gradients(class_name());
}

void BatchNormalizationGradient::check_call(const GradientCall& call) const {
  require_whole_images(*this, call.properties);
  require_equal_sizes(call);
  require_one_state(*this, call.states);
  mpsgrad::require_equal_channels(*this, call.properties, call.gradients, call.sources,
                                  call.produced_channels);
  const ImageDescriptor& destination = call.destinations.front()->descriptor();
  const ImageDescriptor& source = call.sources.front()->descriptor();
  require_size(*this, "destination", destination, "source is", source.width, source.height);
}

void BatchNormalizationGradient::encode_on_device(CommandBuffer& command_buffer,
                                                  const GradientCall& call) {
  BatchNormalizationState& state = state_of(*this, call.states.front());
  const BatchNormalizationOperands operands = operands_of(state);
  encoder_->encode(command_buffer, call, operands, state);
  note_reads(command_buffer, operands);
  note_use(command_buffer, state.gamma_sums(), false);
  note_use(command_buffer, state.beta_sums(), false);
  state.note_gradient();
}

}  // namespace mpsgrad
