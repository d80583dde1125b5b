// Rules of the kernels that copy.
#include "kernels/reshape/reshape.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const ReshapeBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->reshape(), "copying");
}

void require_same_elements(const KernelBase& kernel, const char* name,
                           const ImageDescriptor& source, const ImageDescriptor& destination) {
  const Index before = source.elements_per_image();
  const Index after = destination.elements_per_image();
  require(before == after, kernel.class_name(), ": ", name, " is ", source.extent(), ", which is ",
          before, " elements, but destination is ", destination.extent(), ", which is ", after);
}

// Of kernels that take images whole.
void require_no_window(const KernelBase& kernel, const char* prefix, const Offset& offset,
                       Index channel_offset, bool all_channels) {
  require(offset == Offset{}, kernel.class_name(), ": ", prefix, "offset must be (0, 0, 0), got ",
          offset);
  require(channel_offset == 0 && all_channels, kernel.class_name(), ": ", prefix,
          "source_feature_channel_offset must be 0 and ", prefix,
          "source_feature_channel_max_count without effect: the image is taken whole");
}

void require_no_clip(const KernelBase& kernel, const Region& clip, Index channel_offset) {
  require(clip == Region{}, kernel.class_name(),
          ": clip_rect must be NO_CLIP: the destination is written whole");
  require(channel_offset == 0, kernel.class_name(),
          ": destination_feature_channel_offset must be 0, got ", channel_offset);
}

void require_forward_size(const GradientCall& call) {
  const ForwardSnapshot& shot = call.state().snapshot();
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  const ImageDescriptor& source = call.sources.front()->descriptor();
  require_size(call.kernel, "source_gradient", gradient, "the forward result was",
               shot.destination_width, shot.destination_height);
  require(source.feature_channels == shot.source_channels, call.kernel.class_name(),
          ": source has ", source.feature_channels,
          " channels, but the state was made for a forward source of ", shot.source_channels);
}

}  // namespace

Reshape::Reshape(std::shared_ptr<Device> device) : UnaryKernel(std::move(device), "Reshape", {}) {
  set_device_encoder(backend_of(*this).make_reshape(*this->device()));
}

EncodeResult Reshape::encode_reshaped(const std::shared_ptr<CommandBuffer>& command_buffer,
                                      const ImageBatch::Images& sources, bool batch,
                                      bool with_states, bool temporary_states,
                                      ImageAllocator* allocator, const Shape& shape) {
  require(
      shape.width >= 1 && shape.height >= 1 && shape.channels >= 1, class_name(),
      ": reshaped_width, reshaped_height and reshaped_feature_channels must be at least 1, got ",
      shape.width, ", ", shape.height, " and ", shape.channels);
  require(shape.width <= kFurthest && shape.height <= kFurthest && shape.channels <= kFurthest,
          class_name(), ": a shape of ", shape.width, "x", shape.height, "x", shape.channels,
          " is beyond any image");
  const auto take_shape = [&](ImageDescriptor& result) {
    result.width = shape.width;
    result.height = shape.height;
    result.feature_channels = shape.channels;
    result.check(class_name());
    require_same_elements(*this, "source", sources.front()->descriptor(), result);
  };
  return encode_creating(command_buffer, sources, batch, with_states, temporary_states, allocator,
                         {{}, take_shape});
}

void Reshape::adjust_destination(const ImageBatch::Images& sources, Index,
                                 ImageDescriptor& result) {
  result.feature_channels = sources.front()->descriptor().feature_channels;
}

void Reshape::check_call(const UnaryCall& call) const {
  const ImageDescriptor& source = call.sources.front()->descriptor();
  const UnaryProperties& p = call.properties;
  require_no_window(*this, "", p.offset, p.source_channel_offset,
                    call.consumed_channels == source.feature_channels);
  require_no_clip(*this, p.clip_rect, p.destination_channel_offset);
  require_same_elements(*this, "source", source, call.destinations.front()->descriptor());
}

void Reshape::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  UnaryCall whole = call;
  whole.produced_channels = call.destinations.front()->descriptor().feature_channels;
  UnaryKernel::encode_on_device(command_buffer, whole);
}

std::shared_ptr<GradientState> Reshape::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  ImageDescriptor source, destination;
  source.width = snapshot.source_width;
  source.height = snapshot.source_height;
  source.feature_channels = snapshot.source_channels;
  destination.width = snapshot.destination_width;
  destination.height = snapshot.destination_height;
  destination.feature_channels = snapshot.destination_channels;
  require_same_elements(*this, "source", source, destination);
  snapshot.produced_channels = snapshot.destination_channels;
  return UnaryKernel::make_state(std::move(snapshot), temporary);
}

ReshapeGradient::ReshapeGradient(std::shared_ptr<Device> device)
    : GradientKernel(std::move(device), "ReshapeGradient", "Reshape", {}) {
  set_device_encoder(backend_of(*this).make_reshape_gradient(*this->device()));
}

void ReshapeGradient::check_call(const GradientCall& call) const {
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  const ImageDescriptor& source = call.sources.front()->descriptor();
  const ImageDescriptor& destination = call.destinations.front()->descriptor();
  const BinaryProperties& p = call.properties;
  require_forward_size(call);
  require_single_steps(call);
  require(p.secondary.offset == Offset{}, class_name(),
          ": secondary_offset must be (0, 0, 0), got ", p.secondary.offset);
  require_no_window(*this, "primary_", p.primary.offset, p.primary.channel_offset,
                    p.primary.channel_maximum >= call.gradient_channels);
  require_no_clip(*this, p.clip_rect, p.destination_channel_offset);
  require(gradient.feature_channels == call.gradient_channels, class_name(),
          ": source_gradient has ", gradient.feature_channels,
          " channels, but the forward result had ", call.gradient_channels);
  require(destination.extent() == source.extent(), class_name(), ": destination is ",
          destination.extent(), ", but source is ", source.extent());
  require_same_elements(*this, "source_gradient", gradient, destination);
}

Slice::Slice(std::shared_ptr<Device> device) : UnaryKernel(std::move(device), "Slice", {}) {
  set_device_encoder(backend_of(*this).make_slice(*this->device()));
}

std::shared_ptr<ImageBatch> Slice::encode_box(const std::shared_ptr<CommandBuffer>& command_buffer,
                                              const ImageBatch::Images& sources, bool batch,
                                              ImageAllocator* allocator) {
  const auto keep_corner = [&, corner = properties().offset](ImageDescriptor& result) {
    set_offset(corner);
    end_with_box(sources.front()->descriptor(), result);
  };
  return encode_creating(command_buffer, sources, batch, false, false, allocator, {{}, keep_corner})
      .images;
}

void Slice::adjust_destination(const ImageBatch::Images& sources, Index, ImageDescriptor& result) {
  end_with_box(sources.front()->descriptor(), result);
}

void Slice::end_with_box(const ImageDescriptor& source, ImageDescriptor& result) const {
  const Region& clip = properties().clip_rect;
  const Offset corner = properties().offset;
  const auto end = [&](const char* what, Index origin, Index size, Index length, Index first) {
    const Index count = size == kUnlimited ? length - first : size;
    require(count >= 1, class_name(), ": offset ", corner, " and clip_rect leave no ", what,
            " of a source of ", source.width, "x", source.height);
    require(origin <= kFurthest && count <= kFurthest, class_name(), ": offset ", corner,
            " and clip_rect make a result beyond any image");
    return origin + count;
  };
  result.width = end("column", clip.origin.x, clip.size.width, source.width, corner.x);
  result.height = end("row", clip.origin.y, clip.size.height, source.height, corner.y);
}

void Slice::check_call(const UnaryCall& call) const {
  require(call.properties.destination_channel_offset == 0, class_name(),
          ": destination_feature_channel_offset must be 0: slices start at the destination's first "
          "channel, got ",
          call.properties.destination_channel_offset);
}

Pad::Pad(std::shared_ptr<Device> device, const PaddingSize& before, const PaddingSize& after,
         FillValues fill_values)
    : UnaryKernel(std::move(device), "Pad", {}), fill_values_(std::move(fill_values)) {
  family_settings() = PadSettings{};
  set_padding_size(false, before);
  set_padding_size(true, after);
  set_device_encoder(backend_of(*this).make_pad(*this->device(), fill_values_));
}

void Pad::set_padding_size(bool after, const PaddingSize& size) {
  const auto sane = [](Index part) { return part >= 0 && part <= kFurthest; };
  require(sane(size.x) && sane(size.y) && sane(size.channel), class_name(), ": padding_size_",
          after ? "after" : "before", " must not be negative, nor beyond ", kFurthest, ", got (",
          size.x, ", ", size.y, ", ", size.channel, ")");
  auto& own = family_settings().as<PadSettings>();
  (after ? own.after : own.before) = size;
}

void Pad::set_fill_value(float value) {
  family_settings().as<PadSettings>().fill_bits = std::bit_cast<std::uint32_t>(value);
}

Index Pad::produced_channels(Index consumed) const {
  const PadSettings& pad = settings();
  return pad.before.channel + consumed + pad.after.channel;
}

void Pad::adjust_destination(const ImageBatch::Images&, Index, ImageDescriptor& result) {
  const PadSettings& pad = settings();
  result.width += pad.before.x + pad.after.x;
  result.height += pad.before.y + pad.after.y;
  set_offset({-pad.before.x, -pad.before.y, properties().offset.z});
}

void Pad::check_call(const UnaryCall& call) const {
  require(fill_values_.empty() || std::ssize(fill_values_) >= call.produced_channels, class_name(),
          ": fill_value_array has ", fill_values_.size(), " values, but ", call.produced_channels,
          " channels are written");
}

PadGradient::PadGradient(std::shared_ptr<Device> device)
    : GradientKernel(std::move(device), "PadGradient", "Pad", {}) {
  set_device_encoder(backend_of(*this).make_pad_gradient(*this->device()));
}

ForwardPass PadGradient::forward_pass(const State* state) const {
  ForwardPass pass = GradientKernel::forward_pass(state);
  // Channels that the forward pass did not read get zeros.
  pass.result_channels = static_cast<const GradientState&>(*state).snapshot().source_channels;
  return pass;
}

void PadGradient::apply_state(const GradientState& state) {
  place_on_result(state);
  properties_.secondary.offset.x = properties_.secondary.offset.y = 0;
}

void PadGradient::check_call(const GradientCall& call) const {
  require_forward_size(call);
  require_single_steps(call);
  const Index channels = call.gradients.front()->descriptor().feature_channels;
  require(reads_a_window(call) || channels == call.gradient_channels, class_name(),
          ": source_gradient has ", channels, " channels, but the forward pass wrote ",
          call.gradient_channels);
}

}  // namespace mpsgrad
