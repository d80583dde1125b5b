// Rules of convolution and fully connected kernels, and the offsets that a gradient takes from its
// state.
#include "kernels/convolution/convolution.hpp"

#include <atomic>

#include "base/errors.hpp"
#include "base/warnings.hpp"

namespace mpsgrad {
namespace {

const char* forward_name(ConvolutionKind kind) {
  return kind == ConvolutionKind::Plain            ? "Convolution"
         : kind == ConvolutionKind::FullyConnected ? "FullyConnected"
                                                   : "ConvolutionTranspose";
}

const char* gradient_name(ConvolutionKind kind) {
  return kind == ConvolutionKind::Plain            ? "ConvolutionGradient"
         : kind == ConvolutionKind::FullyConnected ? "FullyConnectedGradient"
                                                   : "ConvolutionTransposeGradient";
}

void check_fully_connected(const char* who, const ConvolutionDescriptor& descriptor) {
  const Window& w = descriptor.window;
  require(w.stride_x == 1 && w.stride_y == 1, who, ": strides must be 1, got ", w.stride_x, " and ",
          w.stride_y);
  require(w.dilation_x == 1 && w.dilation_y == 1, who, ": dilation rates must be 1, got ",
          w.dilation_x, " and ", w.dilation_y);
  require(descriptor.groups == 1, who, ": groups must be 1, got ", descriptor.groups);
  require(!descriptor.depthwise && descriptor.sub_pixel_scale_factor == 1, who,
          ": the descriptor must be a plain ConvolutionDescriptor");
}

void check_transpose(const char* who, const ConvolutionSourceData& data) {
  const Window& w = data.descriptor.window;
  require(w.dilation_x == 1 && w.dilation_y == 1, who, ": dilation rates must be 1, got ",
          w.dilation_x, " and ", w.dilation_y);
  require(!data.descriptor.depthwise && data.descriptor.sub_pixel_scale_factor == 1, who,
          ": the descriptor must be a plain ConvolutionDescriptor");
  require<TypeError>(data.data_type == DataType::Float32, who,
                     ": data_type() must be FLOAT32: a transposed convolution takes no other "
                     "weights");
}

ConvolutionParameters read_parameters(const char* who, ConvolutionKind kind,
                                      const std::shared_ptr<ConvolutionDataSource>& source) {
  require<TypeError>(source != nullptr, who, ": weights must be a ConvolutionDataSource, got None");
  ConvolutionSourceData data = source->read();
  if (kind == ConvolutionKind::Transpose) {
    check_transpose(who, data);
  }
  ConvolutionParameters parameters = prepare_parameters(who, std::move(data));
  if (kind == ConvolutionKind::FullyConnected) {
    check_fully_connected(who, parameters.descriptor);
  }
  return parameters;
}

const ConvolutionBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->convolution(), "convolution");
}

// New weights and biases. A reload does not change what a kernel is: its descriptor is the one that
// it was made with.
ConvolutionParameters read_again(const char* who, ConvolutionKind kind,
                                 const std::shared_ptr<ConvolutionDataSource>& source,
                                 const ConvolutionDescriptor& descriptor) {
  ConvolutionParameters parameters = read_parameters(who, kind, source);
  require(descriptor.weight_shape() == parameters.descriptor.weight_shape(), who,
          ": the data source now describes other weights than when the kernel was made");
  parameters.descriptor = descriptor;
  return parameters;
}

void check_precision(const char* who, AccumulatorPrecision precision,
                     const ConvolutionParameters& parameters) {
  require(precision == AccumulatorPrecision::Float || parameters.half_weights, who,
          ": kernel weights of FLOAT32 need accumulator_precision FLOAT");
}

void check_trainable(const char* who, const ConvolutionParameters& parameters) {
  require(!parameters.is_quantized, who, ": uint8 weights cannot be trained");
}

void check_reload(const char* who, const std::shared_ptr<Device>& device,
                  const CommandBuffer& command_buffer, const ConvolutionDescriptor& descriptor,
                  const ConvolutionWeightsAndBiasesState& state) {
  command_buffer.require_encodable_on(device, who);
  state.require_usable(who, command_buffer);
  const ConvolutionWeightShape shape = descriptor.weight_shape();
  require(state.weight_count() == shape.weight_count(), who, ": the state holds ",
          state.weight_count(), " weights, but the kernel has ", shape.weight_count());
  require(!state.has_biases() || state.bias_count() == shape.output_channels, who,
          ": the state holds ", state.bias_count(), " biases, but the kernel has ",
          shape.output_channels, " output channels");
}

void note_state_use(const CommandBuffer& command_buffer, ConvolutionWeightsAndBiasesState& state,
                    bool writes) {
  state.weights()->note_use(command_buffer.work(), writes);
  if (state.has_biases()) {
    state.biases()->note_use(command_buffer.work(), writes);
  }
}

template <class Store>
void reload_store(const char* who, Store& store, const std::shared_ptr<Device>& device,
                  CommandBuffer& command_buffer, const ConvolutionDescriptor& descriptor,
                  const std::shared_ptr<ConvolutionWeightsAndBiasesState>& state) {
  require<TypeError>(state != nullptr, who,
                     ": state must be a ConvolutionWeightsAndBiasesState, got None");
  check_reload(who, device, command_buffer, descriptor, *state);
  Reads reads;
  reads.add(StateBatch{state});
  reads.check();
  store.reload(command_buffer, *state);
  note_state_use(command_buffer, *state, false);
  command_buffer.note_encoded();
  reads.spend();
}

}  // namespace

// ---- forward

Convolution::Convolution(std::shared_ptr<Device> device,
                         std::shared_ptr<ConvolutionDataSource> source, ConvolutionKind kind)
    : Convolution(std::move(device), source, kind,
                  read_parameters(forward_name(kind), kind, source)) {}

Convolution::Convolution(std::shared_ptr<Device> device,
                         std::shared_ptr<ConvolutionDataSource> source, ConvolutionKind kind,
                         ConvolutionParameters parameters)
    : UnaryKernel(std::move(device), forward_name(kind), parameters.descriptor.window),
      kind_(kind),
      source_(std::move(source)),
      parameters_(std::move(parameters)) {
  label = parameters_.label;
  family_settings() = ConvolutionSettings{};
  encoder_ = backend_of(*this).make_forward(*this->device(), parameters_, kind_);
  parameters_.drop_arrays();
}

void Convolution::set_accumulator_precision(AccumulatorPrecision precision) {
  check_precision(class_name(), precision, parameters_);
  settings().precision = precision;
}

FamilySettings Convolution::current_settings() const {
  ConvolutionSettings current = settings();
  current.options = options();
  return current;
}

ConvolutionParameters Convolution::read_data_source() const {
  ConvolutionParameters parameters = read_again(class_name(), kind_, source_, descriptor());
  check_precision(class_name(), accumulator_precision(), parameters);
  return parameters;
}

void Convolution::reload_from_data_source() {
  const ConvolutionParameters parameters = read_data_source();
  encoder_->set(parameters);
  parameters_.has_biases = parameters.has_biases;
  parameters_.half_weights = parameters.half_weights;
}

void Convolution::check_reload(const CommandBuffer& command_buffer,
                               const ConvolutionWeightsAndBiasesState& state) const {
  mpsgrad::check_reload(class_name(), device(), command_buffer, descriptor(), state);
}

void Convolution::reload(const std::shared_ptr<CommandBuffer>& command_buffer,
                         const std::shared_ptr<ConvolutionWeightsAndBiasesState>& state) {
  reload_store(class_name(), *encoder_, device(), *command_buffer, descriptor(), state);
}

std::shared_ptr<ConvolutionWeightsAndBiasesState> Convolution::export_weights(
    const std::shared_ptr<CommandBuffer>& command_buffer, bool temporary_ok) {
  command_buffer->require_encodable_on(device(), class_name());
  const ConvolutionWeightShape shape = descriptor().weight_shape();
  auto state = temporary_ok ? std::make_shared<ConvolutionWeightsAndBiasesState>(
                                  command_buffer, shape, parameters_.has_biases)
                            : std::make_shared<ConvolutionWeightsAndBiasesState>(
                                  device(), shape, parameters_.has_biases);
  encoder_->export_weights(*command_buffer, *state);
  note_state_use(*command_buffer, *state, true);
  command_buffer->note_encoded();
  return state;
}

void Convolution::adjust_destination(const ImageBatch::Images&, Index, ImageDescriptor& result) {
  result.width *= descriptor().sub_pixel_scale_factor;
  result.height *= descriptor().sub_pixel_scale_factor;
}

void Convolution::check_call(const UnaryCall& call) const {
  check_stated_depth(call);
  for (const auto& state : call.states) {
    require(static_cast<const ConvolutionGradientState&>(*state).producer().get() == this,
            class_name(), ": destination_state was made by another kernel");
  }
}

void Convolution::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  encoder_->encode(command_buffer, call, accumulator_precision());
  if (!call.states.empty()) {
    static_cast<ConvolutionGradientState&>(*call.states.front())
        .note_forward(command_buffer.work());
  }
}

std::shared_ptr<GradientState> Convolution::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto contents = encoder_->make_state(snapshot, temporary.get());
  return std::make_shared<ConvolutionGradientState>(
      device(), temporary, std::move(snapshot), descriptor().weight_shape(), shared_from_this(),
      descriptor().untrainable(), std::move(contents));
}

FullyConnected::FullyConnected(std::shared_ptr<Device> device,
                               std::shared_ptr<ConvolutionDataSource> source)
    : Convolution(std::move(device), std::move(source), ConvolutionKind::FullyConnected) {
  set_padding(std::make_shared<DefaultPadding>(padding_method::kSizeValidOnly));
}

void FullyConnected::check_call(const UnaryCall& call) const {
  Convolution::check_call(call);
  const ImageDescriptor& source = call.sources.front()->descriptor();
  require(source.width == window().kernel_width && source.height == window().kernel_height,
          class_name(), ": source is ", source.width, "x", source.height,
          ", but the weights cover ", window().kernel_width, "x", window().kernel_height);
  require(call.clip.empty() || (call.clip.size.width == 1 && call.clip.size.height == 1),
          class_name(), ": the destination must be 1x1 within clip_rect, got ",
          call.clip.size.width, "x", call.clip.size.height);
}

// ---- gradient

ConvolutionGradient::ConvolutionGradient(std::shared_ptr<Device> device,
                                         std::shared_ptr<ConvolutionDataSource> source,
                                         ConvolutionKind kind)
    : ConvolutionGradient(std::move(device), source, kind,
                          read_parameters(gradient_name(kind), kind, source)) {}

ConvolutionGradient::ConvolutionGradient(std::shared_ptr<Device> device,
                                         std::shared_ptr<ConvolutionDataSource> source,
                                         ConvolutionKind kind,
                                         const ConvolutionParameters& parameters)
    : GradientKernel(std::move(device), gradient_name(kind), forward_name(kind),
                     parameters.descriptor.window),
      kind_(kind),
      source_(std::move(source)),
      descriptor_(parameters.descriptor) {
  const std::string reason = descriptor_.untrainable();
  require(reason.empty(), class_name(), ": ", reason);
  check_trainable(class_name(), parameters);
  label = parameters.label;
  encoder_ = backend_of(*this).make_gradient(*this->device(), parameters, kind_);
}

void ConvolutionGradient::set_gradient_option(int option) {
  require(option >= 1 && option <= 3, class_name(),
          ": gradient_option must be DATA (1), WEIGHTS_AND_BIAS (2) or ALL (3), got ", option);
  option_ = static_cast<ConvolutionGradientOption>(option);
}

void ConvolutionGradient::read_weights(const std::shared_ptr<ConvolutionDataSource>& source) {
  const ConvolutionParameters parameters = read_again(class_name(), kind_, source, descriptor_);
  check_trainable(class_name(), parameters);
  encoder_->set(parameters);
  has_weights_ = true;
}

void ConvolutionGradient::reload_from_data_source() { read_weights(source_); }

void ConvolutionGradient::reload(const std::shared_ptr<CommandBuffer>& command_buffer,
                                 const std::shared_ptr<ConvolutionWeightsAndBiasesState>& state) {
  reload_store(class_name(), *encoder_, device(), *command_buffer, descriptor_, state);
  has_weights_ = true;
}

void ConvolutionGradient::check_state(const GradientState& state) const {
  const auto* own = dynamic_cast<const ConvolutionGradientState*>(&state);
  require<TypeError>(own != nullptr, class_name(),
                     ": state must be a ConvolutionGradientState, got a ", state.class_name());
  require(own->untrainable().empty(), class_name(), ": ", own->untrainable());
  const Window& forward = state.snapshot().properties.window;
  require(own->shape() == descriptor_.weight_shape() && forward == descriptor_.window &&
              state.snapshot().consumed_channels == descriptor_.input_feature_channels,
          class_name(), ": the state was made by a convolution of another shape");
  require<StateError>(
      !own->is_consumed(), class_name(),
      ": an optimizer has used this state's gradients; make a new state for the next batch");
}

void ConvolutionGradient::apply_state(const GradientState& state) {
  const UnaryProperties& forward = state.snapshot().properties;
  const auto axis = [this](Index forward_offset, Index extent, Index& kernel_offset,
                           Index& first_tap) {
    if (kind_ == ConvolutionKind::FullyConnected) {  // its window lies over the whole source,
                                                     // whatever `offset` says
      forward_offset = extent / 2;
    }
    kernel_offset = -forward_offset + (extent % 2 == 0 ? 1 : 0);
    first_tap = forward_offset - extent / 2;
  };
  properties_.primary.offset = {};
  properties_.secondary.offset = {};
  axis(forward.offset.x, forward.window.extent_x(), properties_.kernel_offset_x,
       properties_.secondary.offset.x);
  axis(forward.offset.y, forward.window.extent_y(), properties_.kernel_offset_y,
       properties_.secondary.offset.y);
}

void ConvolutionGradient::check_call(const GradientCall& call) const {
  const ForwardSnapshot& shot = call.state().snapshot();
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  require_one_state(*this, call.states);
  require<StateError>(
      static_cast<const ConvolutionGradientState&>(call.state()).has_forward(), class_name(),
      ": no forward encode has filled this state; encode the forward kernel with it first");
  const Index channels = gradient.feature_channels;
  // The forward result may have had others too, behind these.
  require(reads_a_window(call) || channels == descriptor_.output_feature_channels ||
              (channels == shot.destination_channels &&
               shot.properties.destination_channel_offset == 0),
          class_name(), ": source_gradient has ", channels,
          " channels, but the forward pass wrote ", descriptor_.output_feature_channels);
  const Offset& offset = properties_.primary.offset;
  const bool shifted = offset.x != 0 || offset.y != 0;
  require(!shifted || option_ == ConvolutionGradientOption::Data, class_name(),
          ": primary_offset must be 0 where weight gradients are wanted");
  require(shifted ||
              (gradient.width == shot.clip.size.width && gradient.height == shot.clip.size.height),
          class_name(), ": source_gradient is ", gradient.width, "x", gradient.height,
          ", but the forward pass wrote ", shot.clip.size.width, "x", shot.clip.size.height);
  // A fully connected window has no border.
  if (shot.properties.edge_mode == EdgeMode::Clamp && kind_ != ConvolutionKind::FullyConnected &&
      option_ != ConvolutionGradientOption::WeightsAndBias) {
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      warn(WarningKind::Runtime,
           "ConvolutionGradient: after a forward pass with edge mode CLAMP the border of the data "
           "gradient is not its "
           "exact derivative: pixels outside the gradient count as zero");
    }
  }
}

void ConvolutionGradient::encode_on_device(CommandBuffer& command_buffer,
                                           const GradientCall& call) {
  auto& state = static_cast<ConvolutionGradientState&>(*call.states.front());
  if (!has_weights_) {
    if (const auto* producer = dynamic_cast<const Convolution*>(state.producer().get())) {
      read_weights(producer->data_source());
      command_buffer.require_encodable(class_name());  // the source may have committed it
    }
    has_weights_ = true;
  }
  encoder_->encode(command_buffer, call, option_, state, state.has_gradients());
  if (option_ != ConvolutionGradientOption::Data) {
    state.note_gradients(command_buffer.work());
    for (const auto& buffer : {state.gradient_for_weights(), state.gradient_for_biases()}) {
      buffer->note_use(command_buffer.work(), true);
    }
  }
}

}  // namespace mpsgrad
