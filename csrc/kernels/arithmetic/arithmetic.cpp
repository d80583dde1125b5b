// Rules of the arithmetic kernels.
#include "kernels/arithmetic/arithmetic.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const ArithmeticBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->arithmetic(), "arithmetic");
}

ArithmeticSettings& settings_in(BinaryProperties& properties) {
  return properties.settings.as<ArithmeticSettings>();
}

void check_number(const KernelBase& kernel, const char* property, float value) {
  require(value == value, kernel.class_name(), ": ", property, " must not be NaN");
}

void check_broadcast_stride(const KernelBase& kernel, const char* property, Index value) {
  require(value == 0 || value == 1, kernel.class_name(), ": ", property,
          " must be 0 (one element for all) or 1, got ", value);
}

void check_limits(const KernelBase& kernel, const BinaryProperties& properties) {
  const ArithmeticSettings& own = arithmetic_settings(properties);
  require(own.minimum_value <= own.maximum_value, kernel.class_name(), ": minimum_value ",
          own.minimum_value, " is above maximum_value ", own.maximum_value);
}

}  // namespace

// ---- forward

Arithmetic::Arithmetic(std::shared_ptr<Device> device, const char* class_name, ArithmeticKind kind)
    : ForwardBinaryKernel(std::move(device), class_name, {}, {}), kind_(kind) {
  set_device_encoder(backend_of(*this).make_forward(*this->device(), kind));
  properties_.settings = ArithmeticSettings{};
}

void Arithmetic::set_number(const char* property, ArithmeticNumber number, float value) {
  check_number(*this, property, value);
  settings_in(properties_).*number = value;
}

void Arithmetic::set_channel_stride(bool secondary, Index value) {
  check_broadcast_stride(
      *this,
      secondary ? "secondary_stride_in_feature_channels" : "primary_stride_in_feature_channels",
      value);
  ArithmeticSettings& own = settings_in(properties_);
  (secondary ? own.secondary_channel_stride : own.primary_channel_stride) = value;
}

void Arithmetic::check_stride(bool, const char* property, Index value) const {
  check_broadcast_stride(*this, property, value);
}

Index Arithmetic::produced_channels(Index primary, Index secondary) const {
  const Index first = settings().primary_channel_stride == 0 ? 0 : primary;
  const Index second = settings().secondary_channel_stride == 0 ? 0 : secondary;
  require(first == second || first == 0 || second == 0, class_name(), ": primary offers ", primary,
          " channels, but secondary offers ", secondary,
          "; a stride of 0 repeats one channel, a single channel does not");
  return std::max({first, second, Index{1}});
}

void Arithmetic::check_call(const BinaryCall& call) const {
  check_limits(*this, call.properties);
  require_distinct_states(*this, "destination_states", call.states);
}

std::shared_ptr<BinaryGradientState> Arithmetic::make_state(
    BinarySnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  if (kind_ == ArithmeticKind::Compare) {
    return nullptr;
  }
  auto state = std::make_shared<ArithmeticGradientState>(device(), temporary, std::move(snapshot));
  fill_payload(*state);
  return state;
}

void Arithmetic::encode_on_device(CommandBuffer& command_buffer, const BinaryCall& call) {
  ForwardBinaryKernel::encode_on_device(command_buffer, call);
  for (Index i = 0; i < call.images() && !call.states.empty(); ++i) {
    const Index index = call.batch ? call.clip.origin.z + i : 0;
    auto& state =
        static_cast<ArithmeticGradientState&>(*call.states[static_cast<std::size_t>(index)]);
    state.filled.by(command_buffer.work());
    state.images = call.batch ? 1 : call.images();
  }
}

void Compare::set_comparison_type(ComparisonType type) {
  settings_in(properties_).comparison = type;
}

// ---- gradients

ArithmeticGradient::ArithmeticGradient(std::shared_ptr<Device> device, const char* class_name,
                                       const char* forward_class, ArithmeticKind kind,
                                       bool secondary)
    : GradientKernel(std::move(device), class_name, forward_class, {}),
      kind_(kind),
      secondary_(secondary) {
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), kind, secondary));
  properties_.settings = ArithmeticSettings{};
  if (kind == ArithmeticKind::Subtract && secondary) {
    settings_in(properties_).primary_scale = -1.0F;
  }
}

void ArithmeticGradient::set_number(const char* property, ArithmeticNumber number, float value) {
  check_number(*this, property, value);
  settings_in(properties_).*number = value;
}

void ArithmeticGradient::set_secondary_channel_stride(Index value) {
  check_broadcast_stride(*this, "secondary_stride_in_feature_channels", value);
  settings_in(properties_).secondary_channel_stride = value;
}

void ArithmeticGradient::check_stride(bool secondary, const char* property, Index value) const {
  if (secondary) {
    check_broadcast_stride(*this, property, value);
  } else {
    require(value == 1, class_name(), ": ", property,
            " must be 1, since the incoming gradient is never broadcast, got ", value);
  }
}

const ArithmeticGradientState& ArithmeticGradient::own_arithmetic_state(const State* state) const {
  const auto* own = dynamic_cast<const ArithmeticGradientState*>(state);
  require<TypeError>(own != nullptr, class_name(), ": state must come from ", forward_class(),
                     ", got ", state ? state->class_name() : "None");
  require_forward_class(own->snapshot().kernel_class);
  return *own;
}

ForwardPass ArithmeticGradient::forward_pass(const State* state) const {
  const BinarySnapshot& shot = own_arithmetic_state(state).snapshot();
  const BinarySnapshot::Source& read = shot.source(reads_secondary());
  const SourceProperties& forward = shot.properties.source(reads_secondary());
  const BinarySnapshot::Source& differentiated = shot.source(secondary_);
  ForwardPass pass;
  pass.secondary_role = reads_secondary() ? "secondary source" : "primary source";
  pass.secondary_width = read.width;
  pass.secondary_height = read.height;
  pass.secondary_channels = read.consumed_channels;
  pass.secondary_channel_offset = forward.channel_offset;
  pass.secondary_edge_mode = forward.edge_mode;
  pass.secondary_window = forward.window;
  pass.gradient_channels = shot.produced_channels;
  pass.result_width = differentiated.width;
  pass.result_height = differentiated.height;
  pass.result_channels = differentiated.consumed_channels;
  return pass;
}

bool ArithmeticGradient::from_one_encode(const State& a, const State& b) const {
  const BinarySnapshot& first = own_arithmetic_state(&a).snapshot();
  const BinarySnapshot& second = own_arithmetic_state(&b).snapshot();
  return first.properties == second.properties && first.clip == second.clip &&
         first.primary == second.primary && first.secondary == second.secondary;
}

void ArithmeticGradient::apply_forward(const State& state) {
  const BinarySnapshot& shot = own_arithmetic_state(&state).snapshot();
  const SourceProperties& read = shot.properties.source(reads_secondary());
  properties_.primary.offset.x = shot.clip.origin.x;
  properties_.primary.offset.y = shot.clip.origin.y;
  properties_.secondary.offset.x = read.offset.x;
  properties_.secondary.offset.y = read.offset.y;
  settings_in(properties_).secondary_channel_stride =
      arithmetic_settings(shot.properties).channel_stride(reads_secondary());
}

void ArithmeticGradient::check_call(const GradientCall& call) const {
  check_limits(*this, call.properties);
  require_distinct_states(*this, "state", call.states);
  const BinarySnapshot& shot = own_arithmetic_state(call.states.front().get()).snapshot();
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  require_size(*this, "source_gradient", gradient, "the forward result was", shot.destination_width,
               shot.destination_height);
  require(reads_a_window(call) || gradient.feature_channels == call.gradient_channels, class_name(),
          ": source_gradient has ", gradient.feature_channels,
          " channels, but the forward kernel produced ", call.gradient_channels);
  const Window& ours = call.properties.secondary.window;
  const Window& forward = shot.properties.source(reads_secondary()).window;
  require(ours.stride_x == forward.stride_x && ours.stride_y == forward.stride_y &&
              moves_across_channels(call.properties, true) ==
                  moves_across_channels(shot.properties, reads_secondary()),
          class_name(), ": the secondary strides must be those of the forward ",
          reads_secondary() ? "secondary" : "primary", " source");
  const Index first = shot.clip.origin.z;
  require(call.first_gradient >= first &&
              call.first_gradient + call.images() <= first + shot.clip.size.depth,
          class_name(), ": the forward kernel wrote images ", first, " to ",
          first + shot.clip.size.depth, ", but gradients ", call.first_gradient, " to ",
          call.first_gradient + call.images(), " are asked for");
  for (Index i = 0; i < call.images(); ++i) {
    const Index index = call.batch ? call.first_gradient + i : 0;
    const ArithmeticGradientState& state =
        own_arithmetic_state(call.states[static_cast<std::size_t>(index)].get());
    require<StateError>(
        static_cast<bool>(state.filled), class_name(),
        ": no forward encode has filled this state; encode the forward kernel with it first");
    require(call.batch || state.images == shot.clip.size.depth, class_name(),
            ": the state is of one image of a batch of ", shot.clip.size.depth,
            ", but one state for ", call.images(), " images has to be of an image that holds them");
  }
}

}  // namespace mpsgrad
