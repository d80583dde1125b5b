// Sequence and checks of gradient encodes.
#include "core/gradient_kernel.hpp"

#include <tuple>
#include <typeinfo>

#include "base/errors.hpp"
#include "core/destinations.hpp"
#include "core/property_guard.hpp"

namespace mpsgrad {

void require_no_kernel_offset(const GradientCall& call) {
  const BinaryProperties& p = call.properties;
  require(p.kernel_offset_x == 0 && p.kernel_offset_y == 0, call.kernel.class_name(),
          ": kernel_offset_x and kernel_offset_y must be 0, got (", p.kernel_offset_x, ", ",
          p.kernel_offset_y, ")");
}

void require_single_steps(const GradientCall& call) {
  require_no_kernel_offset(call);
  for (const bool secondary : {false, true}) {
    const Window& window = call.properties.source(secondary).window;
    require(window.stride_x == 1 && window.stride_y == 1, call.kernel.class_name(), ": ",
            secondary ? "secondary" : "primary", "_stride_in_pixels must be (1, 1), got (",
            window.stride_x, ", ", window.stride_y, ")");
  }
}

void require_whole_images(const KernelBase& kernel, const BinaryProperties& p) {
  require_default(kernel, "primary_offset", p.primary.offset);
  require_default(kernel, "secondary_offset", p.secondary.offset);
  require_default(kernel, "clip_rect", p.clip_rect);
  require_default(kernel, "kernel_offset_x", p.kernel_offset_x);
  require_default(kernel, "kernel_offset_y", p.kernel_offset_y);
  const auto require_one = [&](const char* property, Index stride) {
    require_default(kernel, property, stride, Index{1});
  };
  require_one("primary_stride_in_pixels_x", p.primary.window.stride_x);
  require_one("primary_stride_in_pixels_y", p.primary.window.stride_y);
  require_one("secondary_stride_in_pixels_x", p.secondary.window.stride_x);
  require_one("secondary_stride_in_pixels_y", p.secondary.window.stride_y);
}

void GradientKernel::set_kernel_offset_x(Index value) {
  check_position(*this, "kernel_offset_x", value, kFurthestBackwards);
  properties_.kernel_offset_x = value;
}

void GradientKernel::set_kernel_offset_y(Index value) {
  check_position(*this, "kernel_offset_y", value, kFurthestBackwards);
  properties_.kernel_offset_y = value;
}

GradientKernel::GradientKernel(std::shared_ptr<Device> device, const char* class_name,
                               const char* forward_class, const Window& window, Secondary secondary)
    : BinaryKernel(std::move(device), class_name),
      forward_class_(forward_class),
      secondary_(secondary) {
  check_window(class_name, window);
  properties_.secondary.window = window;
  properties_.primary.window.stride_x = window.stride_x;
  properties_.primary.window.stride_y = window.stride_y;
}

void GradientKernel::require_forward_class(const char* kernel_class) const {
  // Mostly one and the same string; the words are compared only if not.
  if (kernel_class != forward_class_ && kernel_class != std::string_view(forward_class_)) {
    fail<TypeError>(class_name(), ": state must come from ", forward_class_,
                    ", but it was made by ", kernel_class);
  }
}

const GradientState& GradientKernel::own_state(const State* state) const {
  // Most states are of the class itself, and asked for once an image.
  const auto* own = state != nullptr && typeid(*state) == typeid(GradientState)
                        ? static_cast<const GradientState*>(state)
                        : dynamic_cast<const GradientState*>(state);
  require<TypeError>(own != nullptr, class_name(), ": state must come from ", forward_class_,
                     ", got ", state ? state->class_name() : "None");
  require_forward_class(own->snapshot().kernel_class);
  check_state(*own);
  return *own;
}

ForwardPass GradientKernel::forward_pass(const State* state) const {
  const ForwardSnapshot& shot = own_state(state).snapshot();
  const UnaryProperties& forward = shot.properties;
  ForwardPass pass;
  pass.gradient_channels = shot.produced_channels;
  pass.result_width = shot.source_width;
  pass.result_height = shot.source_height;
  pass.result_channels = shot.consumed_channels;
  pass.primary_stride_x = forward.window.stride_x;
  pass.primary_stride_y = forward.window.stride_y;
  pass.secondary_window = forward.window;
  pass.secondary_edge_mode = forward.edge_mode;
  if (secondary_ == Secondary::ForwardSource) {
    pass.secondary_width = shot.source_width;
    pass.secondary_height = shot.source_height;
    pass.secondary_channels = shot.consumed_channels;
    pass.secondary_channel_offset = forward.source_channel_offset;
  } else {
    pass.secondary_role = "result";
    pass.secondary_width = shot.destination_width;
    pass.secondary_height = shot.destination_height;
    pass.secondary_channels = shot.produced_channels;
    pass.secondary_channel_offset = forward.destination_channel_offset;
  }
  return pass;
}

bool GradientKernel::from_one_encode(const State& a, const State& b) const {
  const ForwardSnapshot& first = static_cast<const GradientState&>(a).snapshot();
  const ForwardSnapshot& second = own_state(&b).snapshot();
  const auto sizes = [](const ForwardSnapshot& shot) {
    return std::tuple(shot.source_width, shot.source_height, shot.source_channels,
                      shot.destination_width, shot.destination_height, shot.destination_channels);
  };
  return first.properties == second.properties && first.clip == second.clip &&
         sizes(first) == sizes(second);
}

void GradientKernel::place_on_result(const GradientState& state) {
  const ForwardSnapshot& shot = state.snapshot();
  properties_.primary.offset.x = shot.clip.origin.x - shot.properties.offset.x;
  properties_.primary.offset.y = shot.clip.origin.y - shot.properties.offset.y;
}

void GradientKernel::encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) {
  encoder_->encode(command_buffer, call);
}

void GradientKernel::apply_forward(const State& state) { apply_state(own_state(&state)); }

void GradientKernel::require_equal_sizes(const GradientCall& call) const {
  const ImageDescriptor& source = call.sources.front()->descriptor();
  require_size(*this, "source_gradient", call.gradients.front()->descriptor(), "source is",
               source.width, source.height);
}

bool GradientKernel::reads_a_window(const GradientCall& call) {
  const SourceProperties& primary = call.properties.primary;
  return primary.channel_offset > 0 || primary.channel_maximum < kUnlimited;
}

void GradientKernel::require_equal_channels(const GradientCall& call) const {
  const Index channels = call.gradients.front()->descriptor().feature_channels;
  require(reads_a_window(call) || channels == call.source_channels, class_name(),
          ": source_gradient has ", channels, " channels, but source has ", call.source_channels);
}

ImageDescriptor GradientKernel::destination_descriptor(
    const ImageBatch::Images& gradient_and_source, const StateBatch& states) {
  require(gradient_and_source.size() == 2, class_name(),
          ": destination_descriptor takes [gradient, source], got ", gradient_and_source.size(),
          " images");
  require(states.size() == 1, class_name(), ": destination_descriptor takes one state, got ",
          states.size());
  PropertyGuard properties_guard(properties_);
  PropertyGuard configured_guard(configured_for_);
  const ImageDescriptor result =
      configure_for(gradient_and_source.front(), gradient_and_source.back(), states.front());
  properties_guard.keep();
  configured_guard.keep();
  return result;
}

ImageDescriptor GradientKernel::configure_for(const std::shared_ptr<Image>& gradient,
                                              const std::shared_ptr<Image>& source,
                                              const std::shared_ptr<State>& state) {
  const ForwardPass pass = forward_pass(state.get());
  configured_for_ = state;
  properties_.primary.window.stride_x = pass.primary_stride_x;
  properties_.primary.window.stride_y = pass.primary_stride_y;
  properties_.secondary.window = pass.secondary_window;
  properties_.secondary.edge_mode = pass.secondary_edge_mode;
  properties_.secondary.channel_offset = pass.secondary_channel_offset;
  properties_.secondary.channel_maximum = pass.secondary_channels;
  apply_forward(*state);
  ImageDescriptor result;
  result.width = pass.result_width;
  result.height = pass.result_height;
  result.feature_channels = properties_.destination_channel_offset + pass.result_channels;
  result.channel_format = gradient->descriptor().channel_format;
  if (padding()->method() & padding_method::kCustom) {
    const auto own = padding();  // what it calls may set another
    result = own->customize({gradient, source}, {state}, *this, result);
  }
  result.check(class_name());
  return result;
}

void GradientKernel::check_sources(const CommandBuffer& command_buffer,
                                   const ImageBatch::Images& gradients,
                                   const ImageBatch::Images& sources, const StateBatch& states,
                                   bool batch) const {
  command_buffer.require_encodable_on(device(), class_name());
  const Operand gradient{"source_gradient", &gradients, batch};
  const Operand source{"source", &sources, batch};
  check_operand(*this, command_buffer, gradient);
  check_operand(*this, command_buffer, source);
  require(gradients.size() == sources.size(), class_name(), ": source_gradient has ",
          gradients.size(), " images, but source has ", sources.size());
  check_states(*this, command_buffer, "state", states, static_cast<Index>(sources.size()),
               "; the forward kernel returns them with with_state=True");
  const ForwardPass pass = forward_pass(states.front().get());
  for (const auto& other : states) {
    require(other == states.front() || from_one_encode(*states.front(), *other), class_name(),
            ": the states of a batch must come from one encode");
  }
  const ImageDescriptor& image = source.descriptor();
  require(image.width == pass.secondary_width && image.height == pass.secondary_height,
          class_name(), ": source is ", image.width, "x", image.height,
          ", but the state was made for a forward ", pass.secondary_role, " of ",
          pass.secondary_width, "x", pass.secondary_height);
}

void GradientKernel::encode_checked(const std::shared_ptr<CommandBuffer>& command_buffer,
                                    const ImageBatch::Images& gradients,
                                    const ImageBatch::Images& sources, const StateBatch& states,
                                    const ImageBatch::Images& destinations, bool batch,
                                    bool creates) {
  const Operand gradient{"source_gradient", &gradients, batch};
  const Operand source{"source", &sources, batch};
  const Operand destination{"destination", &destinations, batch};
  command_buffer->require_encodable_on(device(), class_name());  // callbacks may have committed it
  check_destination(*this, *command_buffer, destination);
  require(gradients.size() == destinations.size(), class_name(), ": source_gradient has ",
          gradients.size(), " images, but destination has ", destinations.size());
  check_aliasing(*this, gradient, destination);
  check_aliasing(*this, source, destination);
  const ForwardPass pass = forward_pass(states.front().get());
  GradientCall call{gradients,
                    sources,
                    states,
                    destinations,
                    batch,
                    properties_,
                    effective_clip(properties_.clip_rect, destination),
                    properties_.primary.offset.z,
                    properties_.secondary.offset.z,
                    0,
                    0,
                    pass.result_channels,
                    creates,
                    *this};
  check_depth(*this, gradient, call.first_gradient, call.images());
  check_depth(*this, source, call.first_source, call.images());
  call.gradient_channels =
      consumed_channels(*this, gradient, properties_.primary.channel_offset,
                        properties_.primary.channel_maximum, pass.gradient_channels);
  call.source_channels =
      consumed_channels(*this, source, properties_.secondary.channel_offset,
                        properties_.secondary.channel_maximum, pass.secondary_channels);
  check_produced_channels(*this, properties_.destination_channel_offset, call.produced_channels,
                          destination);
  check_call(call);
  Reads reads;
  reads.add(gradients);
  reads.add(sources);
  reads.add(states);
  reads.check();
  if (!call.clip.empty()) {
    encode_on_device(*command_buffer, call);
    command_buffer->note_encoded();
    note_uses(*command_buffer, gradients, false);
    note_uses(*command_buffer, sources, false);
    note_results(*command_buffer, destinations, call.clip, properties_.destination_channel_offset,
                 writes_whole_destination() ? call.produced_channels : 0);
  }
  reads.spend();
}

void GradientKernel::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                            const ImageBatch::Images& gradients, const ImageBatch::Images& sources,
                            const StateBatch& states, const ImageBatch::Images& destinations,
                            bool batch, bool as_is) {
  check_sources(*command_buffer, gradients, sources, states, batch);
  require<StateError>(
      as_is || configured_for_.lock() == states.front(), class_name(),
      ": an encode into a given destination uses the kernel's offsets as they are; call "
      "configure(source_gradient, source, state) first, or pass configure=False if they are set");
  encode_checked(command_buffer, gradients, sources, states, destinations, batch, false);
}

std::shared_ptr<ImageBatch> GradientKernel::encode_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& gradients,
    const ImageBatch::Images& sources, const StateBatch& states, bool batch,
    ImageAllocator* chosen) {
  check_sources(*command_buffer, gradients, sources, states, batch);
  require(gradients.front()->descriptor().number_of_images == 1 &&
              sources.front()->descriptor().number_of_images == 1,
          class_name(),
          ": an encode that creates its destination takes images that hold one image, got ",
          gradients.front()->descriptor().number_of_images, " and ",
          sources.front()->descriptor().number_of_images);
  PropertyGuard properties_guard(properties_);
  PropertyGuard configured_guard(configured_for_);
  Reads reads;
  reads.add(gradients);
  reads.add(sources);
  reads.add(states);
  reads.check();
  const Index method = padding()->method();  // before callbacks that may set another
  const ImageDescriptor descriptor =
      configure_for(gradients.front(), sources.front(), states.front());
  Created result(chosen, allocator(), command_buffer, descriptor, *this,
                 static_cast<Index>(gradients.size()),
                 !writes_whole_destination() || leaves_gaps(properties_, method, *command_buffer));
  encode_checked(command_buffer, gradients, sources, states, result.images(), batch, true);
  properties_guard.keep();
  configured_guard.keep();
  return result.take().images;
}

}  // namespace mpsgrad
