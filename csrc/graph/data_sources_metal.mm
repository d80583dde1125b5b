// Data sources of Apple's graphs: numbers when Apple loads them, updates when Apple asks for them.
#include <set>
#include <utility>

#include "graph/callbacks_metal.hpp"
#include "kernels/batch_normalization/batch_normalization.hpp"
#include "kernels/group_normalization/group_normalization.hpp"

namespace mpsgrad::graph_metal {
namespace {

using metal::MetalBuffer;
using metal::MetalCommandBuffer;
using metal::PoolScope;
using metal::Retained;
using metal::StateAdopter;
using metal::StateAdoption;

}  // namespace

MetalSource::MetalSource(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
                         GraphDataSource description)
    : context_(std::move(context)),
      device_(std::move(device)),
      description_(std::move(description)),
      convolution_(dynamic_cast<const Convolution*>(description_.kernel.get())) {}

Retained<id> MetalSource::make(const std::shared_ptr<MetalSource>& self) {
  Retained<id> answering;
  if (self->convolution_ != nullptr) {
    const ConvolutionParameters parameters = self->convolution_->read_data_source();
    self->has_biases_ = parameters.has_biases;
    answering = metal::make_graph_convolution_source(parameters, self);
  } else {
    self->read_normalization();
    answering = self->numbers_.groups > 0
                    ? metal::make_group_normalization_source(self->numbers_, self)
                    : metal::make_normalization_source(self->numbers_, self);
  }
  self->answering_ = answering.get();
  return answering;
}

void MetalSource::read() {
  const PoolScope pool;
  if (convolution_ != nullptr) {
    metal::set_answers(answering_, convolution_->read_data_source());
  } else {
    read_normalization();
  }
}

bool MetalSource::has(What what, bool on_completion) const {
  const GraphDataSource::Update& update = update_for(what);
  return on_completion ? static_cast<bool>(update.on_completion) : static_cast<bool>(update.now);
}

// Apple counts reads of temporary states and expects one each; what the callback reads does not
// matter.
MPSState* MetalSource::now(What what, NSArray<MPSState*>* states, MPSState* source) {
  Encode* encode = context_->encode;
  if (encode == nullptr) {
    return nil;
  }
  std::vector<std::pair<MPSState*, NSUInteger>> counts;
  std::set<MPSState*> seen;
  const auto hold = [&](MPSState* state) {
    if (state != nil && state.isTemporary && seen.insert(state).second) {
      counts.emplace_back(state, state.readCount);
      state.readCount = metal::kManyReads;
    }
  };
  for (MPSState* state in states) {
    hold(state);
  }
  hold(source);
  Retained<MPSState*> made;
  encode->fail(encode->call.in_turn([&] {
    if (!encode->has_failed()) {
      made = update_now(*encode, what, states, source);
    }
  }));
  for (const auto& [state, count] : counts) {
    state.readCount = count - 1;
  }
  return metal::autoreleased(made);
}

bool MetalSource::on_completion(What what, NSArray<MPSState*>* states, MPSState* source) {
  const PoolScope pool;
  const std::shared_ptr<Work> work = context_->work.lock();
  if (!work) {
    return false;
  }
  bool changed = false;
  const std::exception_ptr thrown = thrown_by([&] {
    StateAdoption adoption;
    adoption.device = device_;
    adoption.images = context_->images;
    adoption.lent = true;
    const StateBatch batch = adopt(*context_->learned, states, adoption);
    const std::shared_ptr<State> old = adopt_weights(source, adoption);
    changed = update_for(what).on_completion(*work, batch, old, [this] { read(); });
  });
  if (thrown) {
    work->note_handler_failure([thrown] { std::rethrow_exception(thrown); });
  }
  return changed;
}

const GraphDataSource::Update& MetalSource::update_for(What what) const {
  return what == What::Weights ? description_.update : description_.statistics;
}

void MetalSource::read_normalization() {
  NormalizationWanted wanted;
  wanted.settings = true;
  std::shared_ptr<NormalizationDataSource> source;
  if (const auto* batch = dynamic_cast<const BatchNormalization*>(description_.kernel.get())) {
    wanted.mean_and_variance = true;
    source = batch->data_source();
  } else {
    source = dynamic_cast<const GroupNormalizationBase&>(*description_.kernel).data_source();
  }
  NormalizationSourceData data = read_normalization_source(description_.kernel->class_name(),
                                                           source, wanted, numbers_.channels);
  numbers_.channels = data.channels;
  numbers_.groups = data.groups.value_or(0);
  numbers_.epsilon = data.epsilon.value_or(kDefaultNormalizationEpsilon);
  const auto values = [](std::optional<std::vector<float>>& array) {
    return array ? std::move(*array) : std::vector<float>();
  };
  numbers_.gamma = values(data.gamma);
  numbers_.beta = values(data.beta);
  numbers_.mean = values(data.mean);
  numbers_.variance = values(data.variance);
}

StateBatch MetalSource::adopt(const Learned& learned, NSArray<MPSState*>* states,
                              StateAdoption& adoption) const {
  const StateAdopter& adopter = learned.adopters.at(at(state_slot_));
  require<DeviceError>(static_cast<bool>(adopter), kGraph,
                       ": the device updates weights by a state that none of ours is like");
  StateBatch batch;
  MPSState* previous = nil;
  for (MPSState* state in states) {  // often one and the same
    batch.push_back(state == previous ? batch.back() : adopter(state, adoption));
    previous = state;
  }
  return batch;
}

std::shared_ptr<State> MetalSource::adopt_weights(MPSState* source, StateAdoption& adoption) const {
  if (convolution_ == nullptr || source == nil) {
    return nullptr;
  }
  auto* weights = static_cast<MPSCNNConvolutionWeightsAndBiasesState*>(source);
  const auto buffer = [&](id<MTLBuffer> made) {
    return adoption.floats(made, static_cast<Index>([made length] / sizeof(float)),
                           "MPSCNNConvolutionWeightsAndBiasesState");
  };
  return std::make_shared<ConvolutionWeightsAndBiasesState>(
      device_, convolution_->descriptor().weight_shape(), buffer(weights.weights),
      static_cast<Index>(weights.weightsOffset), has_biases_ ? buffer(weights.biases) : nullptr,
      has_biases_ ? static_cast<Index>(weights.biasesOffset) : 0);
}

Retained<MPSState*> MetalSource::update_now(Encode& encode, What what, NSArray<MPSState*>* states,
                                            MPSState* source) {
  const PoolScope pool;
  const std::shared_ptr<CommandBuffer>& command_buffer = encode.call.command_buffer;
  StateAdoption adoption;
  adoption.device = device_;
  adoption.command_buffer = command_buffer;
  adoption.images = encode.images;
  adoption.lent = true;
  StateBatch batch = adopt(encode.learned, states, adoption);
  std::shared_ptr<State> old = adopt_weights(source, adoption);
  for (const auto& buffer : adoption.buffers) {
    buffer->note_use(command_buffer->work(), true);
  }
  const std::shared_ptr<State> fresh = update_for(what).now(command_buffer, batch, old);
  batch.clear();
  old.reset();
  for (const auto& payload : adoption.payloads) {
    payload->borrow(nil);
  }
  make_last(*command_buffer, adoption);
  return fresh ? to_mps(*command_buffer, what, *fresh) : Retained<MPSState*>();
}

// Apple's buffers are other states' soon: who kept one gets a copy.
void MetalSource::make_last(CommandBuffer& command_buffer, StateAdoption& adoption) const {
  auto& own = as<MetalCommandBuffer>(command_buffer);
  for (const std::shared_ptr<MetalBuffer>& buffer : adoption.buffers) {
    if (buffer.use_count() == 1) {
      continue;
    }
    const std::shared_ptr<Buffer> copy = device_->make_buffer([buffer->get() length]);
    const id<MTLBuffer> target = as<MetalBuffer>(*copy).get();
    own.copy(buffer->get(), 0, target, [buffer->get() length]);
    buffer->replace(Retained<id<MTLBuffer>>::share(target));
  }
}

Retained<MPSState*> MetalSource::to_mps(CommandBuffer& command_buffer, What what,
                                        State& state) const {
  Retained<MPSState*> made;
  if (convolution_ != nullptr) {
    auto& weights = dynamic_cast<ConvolutionWeightsAndBiasesState&>(state);
    convolution_->check_reload(command_buffer, weights);
    made =
        Retained<MPSState*>::share(metal::mps_weights(weights, convolution_->descriptor()).get());
  } else {
    auto& pair = dynamic_cast<NormalizationPairState&>(state);
    const char* who = description_.kernel->class_name();
    pair.require_usable(who, command_buffer);
    pair.require_channels(who, numbers_.channels);
    const id<MTLBuffer> first = as<MetalBuffer>(*pair.first()).get();
    const id<MTLBuffer> second = as<MetalBuffer>(*pair.second()).get();
    if (what == What::Weights) {
      made = Retained<MPSState*>::adopt(
          [[MPSCNNNormalizationGammaAndBetaState alloc] initWithGamma:first beta:second]);
    } else {
      made = Retained<MPSState*>::adopt(
          [[MPSCNNNormalizationMeanAndVarianceState alloc] initWithMean:first variance:second]);
    }
    require<DeviceError>(static_cast<bool>(made), who, ": the device made no state");
  }
  for (Index i = 0; i < state.resource_count(); ++i) {
    if (const auto buffer = state.resource_at(i, false)) {
      buffer->note_use(command_buffer.work(), false);
    }
  }
  as<MetalCommandBuffer>(command_buffer).keep(made.get());
  state.spend_read();
  return made;
}

}  // namespace mpsgrad::graph_metal
