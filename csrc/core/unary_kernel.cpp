// Sequence and checks of unary encodes.
#include "core/unary_kernel.hpp"

#include "base/errors.hpp"
#include "core/forward_states.hpp"

namespace mpsgrad {

UnaryKernel::UnaryKernel(std::shared_ptr<Device> device, const char* class_name,
                         const Window& window)
    : ImageKernel(std::move(device), class_name) {
  check_window(class_name, window);
  properties_.window = window;
}

void UnaryKernel::set_offset(const Offset& offset) {
  check_offset(*this, "offset", offset);
  properties_.offset = offset;
}

void check_stated_depth(const UnaryCall& call) {
  const Index wanted = call.properties.clip_rect.size.depth;
  for (const auto& state : call.states) {
    const ForwardSnapshot& shot = static_cast<const GradientState&>(*state).snapshot();
    require<StateError>((shot.clip.size.depth == wanted) == (call.clip.size.depth == wanted),
                        call.kernel.class_name(), ": clip_rect covers ", call.clip.size.depth,
                        " images, but ", shot.clip.size.depth, " when destination_state was made");
  }
}

void UnaryKernel::set_edge_mode(EdgeMode mode) {
  check_source_edge_mode(*this, "edge_mode", mode);
  properties_.edge_mode = mode;
}

void UnaryKernel::set_source_channel_offset(Index value) {
  check_source_channel_offset(*this, "source_feature_channel_offset", value);
  properties_.source_channel_offset = value;
}

void UnaryKernel::set_source_channel_maximum(Index value) {
  require(value >= 1, class_name(), ": source_feature_channel_max_count must be at least 1, got ",
          value);
  properties_.source_channel_maximum = value;
}

UnaryProperties UnaryKernel::current_properties() const {
  UnaryProperties properties = properties_;
  properties.settings = current_settings();
  return properties;
}

ImageDescriptor UnaryKernel::destination_descriptor(const ImageBatch::Images& sources,
                                                    const StateBatch& source_states) {
  return size_destination(sources, {source_states, nullptr});
}

ImageDescriptor UnaryKernel::result_descriptor(const ImageBatch::Images& sources) {
  PropertyGuard guard(properties_);
  return size_destination(sources, {});
}

ImageDescriptor UnaryKernel::size_destination(const ImageBatch::Images& sources,
                                              const Sizing& sizing) {
  require(sources.size() == 1, class_name(),
          ": destination_descriptor takes one source image, got ", sources.size());
  PropertyGuard guard(properties_);
  const ImageDescriptor& source = sources.front()->descriptor();
  const Index method = padding()->method();
  padding_method::check(method, class_name());
  const Window& w = window();

  ImageDescriptor result;
  if (is_backwards()) {
    result.width = reverse_size(source.width, w.kernel_width, w.stride_x, w.dilation_x, method);
    result.height = reverse_size(source.height, w.kernel_height, w.stride_y, w.dilation_y, method);
  } else {
    const auto across = place_forward(source.width, w.kernel_width, w.stride_x, w.dilation_x,
                                      method, (method & padding_method::kRemainderRight) != 0);
    const auto down = place_forward(source.height, w.kernel_height, w.stride_y, w.dilation_y,
                                    method, (method & padding_method::kRemainderBottom) != 0);
    result.width = across.size;
    result.height = down.size;
    properties_.offset.x = across.offset;
    properties_.offset.y = down.offset;
  }
  const Index consumed =
      consumed_channels(*this, {"source", &sources, false}, properties_.source_channel_offset,
                        properties_.source_channel_maximum, required_channels());
  result.feature_channels = properties_.destination_channel_offset + produced_channels(consumed);
  result.channel_format = source.channel_format;
  if (sizing.adjust) {
    sizing.adjust(result);
  } else {
    adjust_destination(sources, method, result);
  }
  if (method & padding_method::kCustom) {
    const auto own = padding();  // what it calls may set another
    result = own->customize(sources, sizing.source_states, *this, result);
  }
  require(result.width >= 1 && result.height >= 1, class_name(), ": a source of ", source.width,
          "x", source.height, " is too small for a window of ", w.extent_x(), "x", w.extent_y(),
          " under padding '", *padding(), "'");
  result.check(class_name());
  guard.keep();
  return result;
}

ForwardSnapshot UnaryKernel::snapshot(const ImageDescriptor& source,
                                      const Operand& destination) const {
  ForwardSnapshot result;
  result.kernel_class = class_name();
  result.properties = current_properties();
  result.source_width = source.width;
  result.source_height = source.height;
  result.source_channels = source.feature_channels;
  result.clip = effective_clip(properties_.clip_rect, destination);
  result.destination_width = destination.descriptor().width;
  result.destination_height = destination.descriptor().height;
  result.destination_channels = destination.descriptor().feature_channels;
  result.is_backwards = is_backwards();
  result.padding = padding();
  return result;
}

std::shared_ptr<GradientState> UnaryKernel::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto state = std::make_shared<GradientState>(device(), temporary, std::move(snapshot));
  fill_payload(*state);
  return state;
}

void UnaryKernel::fill_payload(GradientState& state) const {
  if (encoder_) {
    state.payload = encoder_->make_payload(state.snapshot());
  }
}

void UnaryKernel::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  encoder_->encode(command_buffer, call);
}

StateBatch UnaryKernel::result_states(const ImageBatch::Images& sources,
                                      const ImageBatch::Images& destinations,
                                      const std::shared_ptr<CommandBuffer>& command_buffer) {
  require(!sources.empty(), class_name(), ": source is an empty batch");
  require(sources.size() == destinations.size(), class_name(), ": source has ", sources.size(),
          " images, but destination has ", destinations.size());
  require(sources.front()->device() == device() && destinations.front()->device() == device(),
          class_name(), ": source and destination must be on the kernel's device");
  require(!command_buffer || command_buffer->device() == device(), class_name(),
          ": the command buffer is on another device");
  const Operand destination{"destination", &destinations, sources.size() > 1};
  ForwardSnapshot shot = snapshot(sources.front()->descriptor(), destination);
  shot.consumed_channels =
      consumed_channels(*this, {"source", &sources, false}, properties_.source_channel_offset,
                        properties_.source_channel_maximum, required_channels());
  shot.produced_channels = produced_channels(shot.consumed_channels);
  return make_states(sources.size(), is_result_state_reused_across_batch(),
                     [&] { return make_state(shot, command_buffer); });
}

UnaryCall UnaryKernel::prepare(const CommandBuffer& command_buffer,
                               const ImageBatch::Images& sources,
                               const ImageBatch::Images& destinations, const StateBatch& states,
                               bool batch, const UnaryProperties& properties) const {
  command_buffer.require_encodable_on(device(), class_name());
  const Operand source{"source", &sources, batch};
  const Operand destination{"destination", &destinations, batch};
  check_operand(*this, command_buffer, source);
  check_destination(*this, command_buffer, destination);
  require(sources.size() == destinations.size(), class_name(), ": source has ", sources.size(),
          " images, but destination has ", destinations.size());
  check_aliasing(*this, source, destination);
  UnaryCall call{sources,
                 destinations,
                 states,
                 batch,
                 properties,
                 effective_clip(properties.clip_rect, destination),
                 properties.offset.z,
                 0,
                 0,
                 *this};
  check_depth(*this, source, call.first_source, call.images());
  call.consumed_channels =
      consumed_channels(*this, source, properties.source_channel_offset,
                        properties.source_channel_maximum, required_channels());
  call.produced_channels = produced_channels(call.consumed_channels);
  check_produced_channels(*this, properties.destination_channel_offset, call.produced_channels,
                          destination);
  if (!states.empty()) {
    check_destination_states(command_buffer, call);
  }
  check_call(call);
  return call;
}

void UnaryKernel::check_destination_states(const CommandBuffer& command_buffer,
                                           const UnaryCall& call) const {
  check_states(*this, command_buffer, "destination_states", call.states,
               static_cast<Index>(call.sources.size()));
  for (const auto& state : call.states) {
    const auto* own = dynamic_cast<const GradientState*>(state.get());
    require<TypeError>(own != nullptr, class_name(),
                       ": destination_state must come from this kernel's result_state(), got a ",
                       state->class_name());
    const ForwardSnapshot& shot = own->snapshot();
    check_made_by(*this, shot, call.properties);
    check_made_for(*this, "source", {shot.source_width, shot.source_height, shot.source_channels},
                   call.sources);
    check_made_for(*this, "destination",
                   {shot.destination_width, shot.destination_height, shot.destination_channels},
                   call.destinations);
  }
  if (is_result_state_reused_across_batch()) {
    require_one_state(*this, call.states);
  }
}

void UnaryKernel::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                         const ImageBatch::Images& sources, const StateBatch& states,
                         const ImageBatch::Images& destinations, bool batch) {
  const UnaryProperties properties = current_properties();
  const UnaryCall call = prepare(*command_buffer, sources, destinations, states, batch, properties);
  Reads reads;
  reads.add(sources);
  reads.check();
  if (!call.clip.empty()) {
    encode_on_device(*command_buffer, call);
    command_buffer->note_encoded();
    note_uses(*command_buffer, sources, false);
    note_results(*command_buffer, destinations, call.clip,
                 call.properties.destination_channel_offset, call.produced_channels);
  }
  reads.spend();
}

Created UnaryKernel::make_destinations(const std::shared_ptr<CommandBuffer>& command_buffer,
                                       const ImageBatch::Images& sources, bool batch,
                                       ImageAllocator* allocator, const Sizing& sizing) {
  command_buffer->require_encodable_on(device(), class_name());
  check_operand(*this, *command_buffer, {"source", &sources, batch});
  require(sources.front()->descriptor().number_of_images == 1, class_name(),
          ": an encode that creates its destination takes images that hold one image, got ",
          sources.front()->descriptor().number_of_images);
  Reads reads;
  reads.add(sources);
  reads.check();
  const Index method = padding()->method();  // before callbacks that may set another
  const ImageDescriptor descriptor = size_destination({sources.front()}, sizing);
  return {allocator,
          this->allocator(),
          command_buffer,
          descriptor,
          *this,
          static_cast<Index>(sources.size()),
          leaves_gaps(properties_, method, *command_buffer)};
}

EncodeResult UnaryKernel::encode_creating(const std::shared_ptr<CommandBuffer>& command_buffer,
                                          const ImageBatch::Images& sources, bool batch,
                                          bool with_states, bool temporary_states,
                                          ImageAllocator* allocator, const Sizing& sizing) {
  PropertyGuard guard(properties_);
  Created result = make_destinations(command_buffer, sources, batch, allocator, sizing);
  if (with_states) {
    result.add(
        result_states(sources, result.images(), temporary_states ? command_buffer : nullptr));
  }
  encode(command_buffer, sources, result.states(), result.images(), batch);
  guard.keep();
  return result.take();
}

}  // namespace mpsgrad
