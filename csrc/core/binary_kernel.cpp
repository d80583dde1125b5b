// Properties of binary kernels; sequence and checks of forward binary encodes.
#include "core/binary_kernel.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "core/forward_states.hpp"
#include "core/property_guard.hpp"

namespace mpsgrad {

void BinaryKernel::set_offset(bool secondary, const Offset& offset) {
  check_offset(*this, secondary ? "secondary_offset" : "primary_offset", offset,
               is_backwards() ? kFurthestBackwards : kFurthest);
  source_properties(secondary).offset = offset;
}

void BinaryKernel::set_edge_mode(bool secondary, EdgeMode mode) {
  if (secondary) {
    check_source_edge_mode(*this, "secondary_edge_mode", mode);
  } else {
    check_edge_mode(*this, "primary_edge_mode", mode);
  }
  source_properties(secondary).edge_mode = mode;
}

void BinaryKernel::set_channel_offset(bool secondary, Index value) {
  if (secondary) {
    check_source_channel_offset(*this, "secondary_source_feature_channel_offset", value);
  } else {
    check_channel_offset(*this, "primary_source_feature_channel_offset", value);
  }
  source_properties(secondary).channel_offset = value;
}

void BinaryKernel::set_channel_maximum(bool secondary, Index value) {
  require(value >= 1, class_name(), ": ", secondary ? "secondary" : "primary",
          "_source_feature_channel_max_count must be at least 1, got ", value);
  source_properties(secondary).channel_maximum = value;
}

void BinaryKernel::set_stride(bool secondary, bool vertical, Index value) {
  check_stride(
      secondary,
      text(secondary ? "secondary" : "primary", "_stride_in_pixels_", vertical ? "y" : "x").c_str(),
      value);
  Window& window = source_properties(secondary).window;
  (vertical ? window.stride_y : window.stride_x) = value;
}

void BinaryKernel::check_stride(bool, const char* property, Index value) const {
  check_step(class_name(), property, value);
}

ForwardBinaryKernel::ForwardBinaryKernel(std::shared_ptr<Device> device, const char* class_name,
                                         const Window& primary, const Window& secondary)
    : BinaryKernel(std::move(device), class_name) {
  check_window(class_name, primary);
  check_window(class_name, secondary);
  properties_.primary.window = primary;
  properties_.secondary.window = secondary;
}

void ForwardBinaryKernel::fill_payload(BinaryGradientState& state) const {
  state.payload = encoder_->make_payload(state.snapshot());
}

void ForwardBinaryKernel::encode_on_device(CommandBuffer& command_buffer, const BinaryCall& call) {
  encoder_->encode(command_buffer, call);
}

Index ForwardBinaryKernel::placed_size(bool vertical, Index primary, Index secondary) const {
  const char* axis = vertical ? "height" : "width";
  require(primary == secondary || primary == 0 || secondary == 0, class_name(), ": the primary ",
          axis, " is ", primary, ", but the secondary ", axis, " is ", secondary,
          "; a stride of 0 repeats one element, a size of 1 does not");
  return primary == 0 && secondary == 0 ? 1 : std::max(primary, secondary);
}

// Places both sources along one axis. Where a source does not move there is no window to place, and
// its offset stays what it is.
Index ForwardBinaryKernel::place(bool vertical, Index primary, Index secondary, Index method) {
  const auto place_one = [&](SourceProperties& source, Index length) {
    const Window& w = source.window;
    const Index stride = vertical ? w.stride_y : w.stride_x;
    if (stride == 0) {
      return Index{0};
    }
    const auto placed = place_forward(length, vertical ? w.kernel_height : w.kernel_width, stride,
                                      vertical ? w.dilation_y : w.dilation_x, method,
                                      (method & (vertical ? padding_method::kRemainderBottom
                                                          : padding_method::kRemainderRight)) != 0);
    (vertical ? source.offset.y : source.offset.x) = placed.offset;
    return placed.size;
  };
  const Index first = place_one(properties_.primary, primary);
  const Index second = place_one(properties_.secondary, secondary);
  return placed_size(vertical, first, second);
}

Index ForwardBinaryKernel::consumed(bool secondary, const ImageBatch::Images& images,
                                    bool batch) const {
  const SourceProperties& source = properties_.source(secondary);
  return consumed_channels(*this, {secondary ? "secondary" : "primary", &images, batch},
                           source.channel_offset, source.channel_maximum, 0);
}

ImageDescriptor ForwardBinaryKernel::result_descriptor(
    const ImageBatch::Images& primary_and_secondary) {
  PropertyGuard guard(properties_);
  return destination_descriptor(primary_and_secondary, {});
}

ImageDescriptor ForwardBinaryKernel::destination_descriptor(
    const ImageBatch::Images& primary_and_secondary, const StateBatch& source_states) {
  require(primary_and_secondary.size() == 2, class_name(),
          ": destination_descriptor takes [primary, secondary], got ", primary_and_secondary.size(),
          " images");
  PropertyGuard guard(properties_);
  const ImageBatch::Images primaries{primary_and_secondary.front()};
  const ImageBatch::Images secondaries{primary_and_secondary.back()};
  const ImageDescriptor& primary = primaries.front()->descriptor();
  const ImageDescriptor& secondary = secondaries.front()->descriptor();
  const Index method = padding()->method();
  padding_method::check(method, class_name());

  ImageDescriptor result;
  result.width = place(false, primary.width, secondary.width, method);
  result.height = place(true, primary.height, secondary.height, method);
  result.feature_channels =
      properties_.destination_channel_offset +
      produced_channels(consumed(false, primaries, false), consumed(true, secondaries, false));
  result.channel_format = primary.channel_format;
  if (method & padding_method::kCustom) {
    const auto own = padding();  // what it calls may set another
    result = own->customize(primary_and_secondary, source_states, *this, result);
  }
  require(result.width >= 1 && result.height >= 1, class_name(), ": sources of ", primary.width,
          "x", primary.height, " and ", secondary.width, "x", secondary.height,
          " are too small for their windows under padding '", *padding(), "'");
  result.check(class_name());
  guard.keep();
  return result;
}

StateBatch ForwardBinaryKernel::result_states(const ImageBatch::Images& primaries,
                                              const ImageBatch::Images& secondaries,
                                              const ImageBatch::Images& destinations,
                                              const std::shared_ptr<CommandBuffer>& temporary) {
  require(!primaries.empty(), class_name(), ": primary is an empty batch");
  require(primaries.size() == secondaries.size(), class_name(), ": primary has ", primaries.size(),
          " images, but secondary has ", secondaries.size());
  require(primaries.size() == destinations.size(), class_name(), ": primary has ", primaries.size(),
          " images, but destination has ", destinations.size());
  require(primaries.front()->device() == device() && secondaries.front()->device() == device() &&
              destinations.front()->device() == device(),
          class_name(), ": primary, secondary and destination must be on the kernel's device");
  require(!temporary || temporary->device() == device(), class_name(),
          ": the command buffer is on another device");
  const Operand destination{"destination", &destinations, primaries.size() > 1};
  const auto source = [&](bool secondary) {
    const ImageBatch::Images& images = secondary ? secondaries : primaries;
    const ImageDescriptor& image = images.front()->descriptor();
    return BinarySnapshot::Source{image.width, image.height, image.feature_channels,
                                  consumed(secondary, images, false)};
  };
  BinarySnapshot shot;
  shot.kernel_class = class_name();
  shot.properties = properties_;
  shot.primary = source(false);
  shot.secondary = source(true);
  shot.produced_channels =
      produced_channels(shot.primary.consumed_channels, shot.secondary.consumed_channels);
  shot.clip = effective_clip(properties_.clip_rect, destination);
  shot.destination_width = destination.descriptor().width;
  shot.destination_height = destination.descriptor().height;
  shot.destination_channels = destination.descriptor().feature_channels;
  shot.is_backwards = is_backwards();
  shot.padding = padding();
  return make_states(primaries.size(), is_result_state_reused_across_batch(),
                     [&] { return make_state(shot, temporary); });
}

void ForwardBinaryKernel::check_sources(const CommandBuffer& command_buffer,
                                        const ImageBatch::Images& primaries,
                                        const ImageBatch::Images& secondaries, bool batch) const {
  command_buffer.require_encodable_on(device(), class_name());
  check_operand(*this, command_buffer, {"primary", &primaries, batch});
  check_operand(*this, command_buffer, {"secondary", &secondaries, batch});
  require(primaries.size() == secondaries.size(), class_name(), ": primary has ", primaries.size(),
          " images, but secondary has ", secondaries.size());
}

BinaryCall ForwardBinaryKernel::prepare(const CommandBuffer& command_buffer,
                                        const ImageBatch::Images& primaries,
                                        const ImageBatch::Images& secondaries,
                                        const StateBatch& states,
                                        const ImageBatch::Images& destinations, bool batch) const {
  check_sources(command_buffer, primaries, secondaries, batch);
  const Operand primary{"primary", &primaries, batch};
  const Operand secondary{"secondary", &secondaries, batch};
  const Operand destination{"destination", &destinations, batch};
  check_destination(*this, command_buffer, destination);
  require(primaries.size() == destinations.size(), class_name(), ": primary has ", primaries.size(),
          " images, but destination has ", destinations.size());
  check_aliasing(*this, primary, destination);
  check_aliasing(*this, secondary, destination);
  BinaryCall call{primaries,
                  secondaries,
                  destinations,
                  states,
                  batch,
                  properties_,
                  effective_clip(properties_.clip_rect, destination),
                  properties_.primary.offset.z,
                  properties_.secondary.offset.z,
                  consumed(false, primaries, batch),
                  consumed(true, secondaries, batch),
                  0,
                  *this};
  check_depth(*this, primary, call.first_primary, call.images());
  check_depth(*this, secondary, call.first_secondary, call.images());
  call.produced_channels = produced_channels(call.primary_channels, call.secondary_channels);
  check_produced_channels(*this, properties_.destination_channel_offset, call.produced_channels,
                          destination);
  if (!states.empty()) {
    check_destination_states(command_buffer, call);
  }
  check_call(call);
  return call;
}

void ForwardBinaryKernel::check_destination_states(const CommandBuffer& command_buffer,
                                                   const BinaryCall& call) const {
  check_states(*this, command_buffer, "destination_states", call.states,
               static_cast<Index>(call.primaries.size()));
  for (const auto& state : call.states) {
    const auto* own = dynamic_cast<const BinaryGradientState*>(state.get());
    require<TypeError>(own != nullptr, class_name(),
                       ": destination_state must come from this kernel's result_state(), got a ",
                       state->class_name());
    const BinarySnapshot& shot = own->snapshot();
    check_made_by(*this, shot, call.properties);
    check_made_for(*this, "primary",
                   {shot.primary.width, shot.primary.height, shot.primary.channels},
                   call.primaries);
    check_made_for(*this, "secondary",
                   {shot.secondary.width, shot.secondary.height, shot.secondary.channels},
                   call.secondaries);
    check_made_for(*this, "destination",
                   {shot.destination_width, shot.destination_height, shot.destination_channels},
                   call.destinations);
  }
  if (is_result_state_reused_across_batch()) {
    require_one_state(*this, call.states);
  }
}

void ForwardBinaryKernel::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                                 const ImageBatch::Images& primaries,
                                 const ImageBatch::Images& secondaries, const StateBatch& states,
                                 const ImageBatch::Images& destinations, bool batch) {
  const BinaryCall call =
      prepare(*command_buffer, primaries, secondaries, states, destinations, batch);
  Reads reads;
  reads.add(primaries);
  reads.add(secondaries);
  reads.check();
  if (!call.clip.empty()) {
    encode_on_device(*command_buffer, call);
    command_buffer->note_encoded();
    note_uses(*command_buffer, primaries, false);
    note_uses(*command_buffer, secondaries, false);
    note_results(*command_buffer, destinations, call.clip,
                 call.properties.destination_channel_offset, call.produced_channels);
  }
  reads.spend();
}

Created ForwardBinaryKernel::make_destinations(const std::shared_ptr<CommandBuffer>& command_buffer,
                                               const ImageBatch::Images& primaries,
                                               const ImageBatch::Images& secondaries, bool batch,
                                               ImageAllocator* chosen) {
  check_sources(*command_buffer, primaries, secondaries, batch);
  require(primaries.front()->descriptor().number_of_images == 1 &&
              secondaries.front()->descriptor().number_of_images == 1,
          class_name(),
          ": an encode that creates its destination takes images that hold one image, got ",
          primaries.front()->descriptor().number_of_images, " and ",
          secondaries.front()->descriptor().number_of_images);
  Reads reads;
  reads.add(primaries);
  reads.add(secondaries);
  reads.check();
  const Index method = padding()->method();  // before callbacks that may set another
  const ImageDescriptor descriptor =
      destination_descriptor({primaries.front(), secondaries.front()}, {});
  return {chosen,
          allocator(),
          command_buffer,
          descriptor,
          *this,
          static_cast<Index>(primaries.size()),
          leaves_gaps(properties_, method, *command_buffer)};
}

EncodeResult ForwardBinaryKernel::encode_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& primaries,
    const ImageBatch::Images& secondaries, bool batch, bool with_states, bool temporary_states,
    ImageAllocator* chosen) {
  PropertyGuard guard(properties_);
  Created result = make_destinations(command_buffer, primaries, secondaries, batch, chosen);
  if (with_states) {
    result.add(result_states(primaries, secondaries, result.images(),
                             temporary_states ? command_buffer : nullptr));
  }
  encode(command_buffer, primaries, secondaries, result.states(), result.images(), batch);
  guard.keep();
  return result.take();
}

}  // namespace mpsgrad
