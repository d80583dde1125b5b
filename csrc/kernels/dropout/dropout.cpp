// Rules of the dropout kernels and their state.
#include "kernels/dropout/dropout.hpp"

#include <vector>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const DropoutBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->dropout(), "dropout");
}

void check_settings(const KernelBase& kernel, const DropoutSettings& settings) {
  // Nor is NaN between them.
  require(settings.keep_probability > 0.0F && settings.keep_probability < 1.0F, kernel.class_name(),
          ": keep_probability must lie between 0 and 1, both excluded, got ",
          settings.keep_probability);
  const auto is_flag = [](Index value) { return value == 0 || value == 1; };
  const MaskStride& stride = settings.stride;
  require(is_flag(stride.width) && is_flag(stride.height) && is_flag(stride.depth),
          kernel.class_name(), ": mask_stride_in_pixels must hold zeros and ones, got ", stride);
}

DropoutGradientState& own_of(State& state) { return dynamic_cast<DropoutGradientState&>(state); }

}  // namespace

MaskShape mask_shape(const MaskStride& stride, const Region& clip, Index channels) {
  return {clip.size.depth, stride.height == 0 ? 1 : clip.size.height,
          stride.width == 0 ? 1 : clip.size.width, stride.depth == 0 ? 1 : channels};
}

// ---- state

MaskShape DropoutGradientState::shape() const {
  return mask_shape(settings().stride, snapshot().clip, snapshot().produced_channels);
}

Index DropoutGradientState::resource_size() const {
  return GradientState::resource_size() + device()->dropout()->mask_bytes(*this);
}

void DropoutGradientState::note_forward(const CommandBuffer& command_buffer) {
  filled_.by(command_buffer.work());
  uses_.add(command_buffer.work(), true);
}

void DropoutGradientState::note_gradient(const CommandBuffer& command_buffer) {
  uses_.add(command_buffer.work(), false);
}

void DropoutGradientState::require_ordinary(const char* what) const {
  require<std::runtime_error>(!is_temporary(), class_name(), ": the mask of a temporary state ",
                              what, " by the CPU");
}

void DropoutGradientState::read_mask(float* out, void (*wait)(CommandBuffer&)) {
  require_ordinary("cannot be read");
  require<StateError>(is_filled(), class_name(),
                      ".mask: no forward encode has filled this state; encode Dropout with it "
                      "first");
  uses_.require_readable("DropoutGradientState.mask");
  if (device()->dropout()->read_mask(*this, out)) {
    return;
  }
  // What the gradient kernel makes of ones.
  const ForwardSnapshot& shot = snapshot();
  const Index channels = shot.produced_channels;
  const auto images = [&](Index width, Index height, Index of_source) {
    ImageDescriptor descriptor;
    descriptor.width = width;
    descriptor.height = height;
    descriptor.feature_channels = of_source;
    descriptor.channel_format = ChannelFormat::Float32;
    return ImageBatch::make(device(), descriptor, shot.clip.size.depth, true);
  };
  const auto ones = images(shot.destination_width, shot.destination_height, channels);
  const auto sources = images(shot.source_width, shot.source_height, channels);
  const auto results = images(shot.clip.size.width, shot.clip.size.height, channels);
  const std::vector<float> one(
      static_cast<std::size_t>(shot.destination_width * shot.destination_height * channels), 1.0F);
  for (const auto& image : ones->images()) {
    image->write(0, DataLayout::HeightWidthChannels, one.data());
  }
  const auto kernel = std::make_shared<DropoutGradient>(device(), settings());
  kernel->lay_over_mask(shot);
  const auto command_buffer = device()->make_queue()->try_make_command_buffer();
  const auto own = std::static_pointer_cast<State>(shared_from_this());
  kernel->encode(command_buffer, ones->images(), sources->images(),
                 StateBatch(static_cast<std::size_t>(ones->size()), own), results->images(), true,
                 true);
  mpsgrad::synchronize(results->images(), *command_buffer);
  command_buffer->commit();
  wait(*command_buffer);

  const MaskShape mask = shape();
  const Region& clip = shot.clip;
  std::vector<float> texels(
      static_cast<std::size_t>(clip.size.width * clip.size.height * channels));
  for (const auto& image : results->images()) {
    image->read(0, DataLayout::HeightWidthChannels, texels.data());
    for (Index y = 0; y < mask.height; ++y) {
      for (Index x = 0; x < mask.width; ++x) {
        for (Index c = 0; c < mask.channels; ++c) {
          const Index at = (y * clip.size.width + x) * channels + c;
          *out++ = texels[static_cast<std::size_t>(at)] != 0.0F ? 1.0F : 0.0F;
        }
      }
    }
  }
}

void DropoutGradientState::write_mask(const float* in) {
  require_ordinary("cannot be written");
  uses_.require_writable("DropoutGradientState.mask");
  require<UnsupportedError>(device()->dropout()->write_mask(*this, in), class_name(), ": device '",
                            device()->kind(),
                            "' draws its masks itself and takes none; give its mask to a state of "
                            "the CPU device instead");
  filled_.by_cpu();
}

// ---- forward

Dropout::Dropout(std::shared_ptr<Device> device, const DropoutSettings& settings)
    : UnaryKernel(std::move(device), "Dropout", {}) {
  check_settings(*this, settings);
  family_settings() = settings;
  set_device_encoder(backend_of(*this).make_forward(*this->device(), settings));
}

void Dropout::check_call(const UnaryCall& call) const {
  if (call.states.empty()) {
    return;
  }
  // One state, for all images.
  const auto& state = static_cast<const GradientState&>(*call.states.front());
  const ForwardSnapshot& shot = state.snapshot();
  require(shot.clip.size.depth == call.clip.size.depth, class_name(),
          ": destination_state was made for ", shot.clip.size.depth, " images, not ",
          call.clip.size.depth);
}

void Dropout::encode_on_device(CommandBuffer& command_buffer, const UnaryCall& call) {
  UnaryKernel::encode_on_device(command_buffer, call);
  if (!call.states.empty()) {
    own_of(*call.states.front()).note_forward(command_buffer);
  }
}

std::shared_ptr<GradientState> Dropout::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto state = std::make_shared<DropoutGradientState>(device(), temporary, std::move(snapshot));
  fill_payload(*state);
  return state;
}

// ---- gradient

DropoutGradient::DropoutGradient(std::shared_ptr<Device> device, const DropoutSettings& settings)
    : GradientKernel(std::move(device), "DropoutGradient", "Dropout", {}), settings_(settings) {
  check_settings(*this, settings_);
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), settings_));
}

void DropoutGradient::apply_state(const GradientState& state) {
  place_on_result(state);
  // Where that pixel went in the clipped forward result, which the mask lies over.
  const Offset& from = state.snapshot().properties.offset;
  properties_.secondary.offset.x = -from.x;
  properties_.secondary.offset.y = -from.y;
}

void DropoutGradient::lay_over_mask(const ForwardSnapshot& shot) {
  properties_.primary.offset = {shot.clip.origin.x, shot.clip.origin.y, 0};
  properties_.secondary.offset = {};
}

void DropoutGradient::check_state(const GradientState& state) const {
  const auto* own = dynamic_cast<const DropoutGradientState*>(&state);
  require<TypeError>(own != nullptr, class_name(), ": state must be a DropoutGradientState, got a ",
                     state.class_name());
  const DropoutSettings& forward = own->settings();
  require(forward.keep_probability == settings_.keep_probability, class_name(),
          ": keep_probability is ", settings_.keep_probability,
          ", but the state was made by a Dropout with ", forward.keep_probability);
  require(forward.stride == settings_.stride, class_name(), ": mask_stride_in_pixels is ",
          settings_.stride, ", but the state was made by a Dropout with ", forward.stride);
  require<StateError>(own->is_filled(), class_name(),
                      ": no forward encode has filled this state; encode Dropout with it first");
}

void DropoutGradient::check_call(const GradientCall& call) const {
  require_one_state(*this, call.states);
  require_single_steps(call);
  const ForwardSnapshot& shot = call.state().snapshot();
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  require_size(*this, "source_gradient", gradient, "the forward result was", shot.destination_width,
               shot.destination_height);
  require_equal_channels(call);
  require(call.images() <= shot.clip.size.depth, class_name(), ": the state has masks for ",
          shot.clip.size.depth, " images, not ", call.images());
}

void DropoutGradient::encode_on_device(CommandBuffer& command_buffer, const GradientCall& call) {
  GradientKernel::encode_on_device(command_buffer, call);
  own_of(*call.states.front()).note_gradient(command_buffer);
}

}  // namespace mpsgrad
