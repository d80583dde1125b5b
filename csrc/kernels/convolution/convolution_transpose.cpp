// Rules of transposed convolution: sizes and offsets with and without a convolution to undo, and
// which states it takes.
#include "kernels/convolution/convolution_transpose.hpp"

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

// Of a forward convolution along one axis: what undoes it.
Index undoing_offset(Index forward_offset, Index extent) {
  return -forward_offset + (extent % 2 == 0 ? 1 : 0);
}

void require_one_object(const char* who, const StateBatch& states) {
  for (const auto& state : states) {
    require(state == states.front(), who,
            ": the convolution gradient states must be one and the same object");
  }
}

}  // namespace

TransposePlacement TransposePlacement::of(const UnaryProperties& p) {
  const ConvolutionSettings& own = convolution_settings(p);
  return {p.offset.x * p.window.stride_x + own.kernel_offset_x - p.window.kernel_width / 2,
          p.offset.y * p.window.stride_y + own.kernel_offset_y - p.window.kernel_height / 2};
}

// The states that a call was given, for the hooks that it reaches.
class ConvolutionTranspose::Undoing {
 public:
  Undoing(ConvolutionTranspose& kernel, const StateBatch& states)
      : kernel_(kernel), before_(kernel.undone_) {
    kernel_.undone_ = kernel.undone_by(states);
  }
  ~Undoing() { kernel_.undone_ = std::move(before_); }
  Undoing(const Undoing&) = delete;
  Undoing& operator=(const Undoing&) = delete;

 private:
  ConvolutionTranspose& kernel_;
  std::shared_ptr<ConvolutionGradientState> before_;  // of the call that this one is within
};

ConvolutionTranspose::ConvolutionTranspose(std::shared_ptr<Device> device,
                                           std::shared_ptr<ConvolutionDataSource> source)
    : Convolution(std::move(device), std::move(source), ConvolutionKind::Transpose) {}

void ConvolutionTranspose::set_kernel_offset_x(Index value) {
  check_position(*this, "kernel_offset_x", value);
  settings().kernel_offset_x = value;
}

void ConvolutionTranspose::set_kernel_offset_y(Index value) {
  check_position(*this, "kernel_offset_y", value);
  settings().kernel_offset_y = value;
}

std::shared_ptr<ConvolutionGradientState> ConvolutionTranspose::undone_by(
    const StateBatch& states) const {
  if (states.empty()) {
    return nullptr;
  }
  auto state = std::dynamic_pointer_cast<ConvolutionGradientState>(states.front());
  require<TypeError>(state && !std::dynamic_pointer_cast<ConvolutionTransposeGradientState>(state),
                     class_name(),
                     ": a convolution gradient state must come from Convolution, got ",
                     states.front() ? states.front()->class_name() : "None");
  require_one_object(class_name(), states);
  require(state->device() == device(), class_name(),
          ": the convolution gradient state is on another device");
  return state;
}

ImageDescriptor ConvolutionTranspose::destination_descriptor(const ImageBatch::Images& sources,
                                                             const StateBatch& convolution_states) {
  const Undoing scope(*this, convolution_states);
  return UnaryKernel::destination_descriptor(sources, convolution_states);
}

StateBatch ConvolutionTranspose::result_states(
    const ImageBatch::Images& sources, const ImageBatch::Images& destinations,
    const StateBatch& convolution_states, const std::shared_ptr<CommandBuffer>& command_buffer) {
  const Undoing scope(*this, convolution_states);
  return UnaryKernel::result_states(sources, destinations, command_buffer);
}

void ConvolutionTranspose::encode(const std::shared_ptr<CommandBuffer>& command_buffer,
                                  const ImageBatch::Images& sources, const StateBatch& states,
                                  const StateBatch& convolution_states,
                                  const ImageBatch::Images& destinations, bool batch) {
  require(states.empty() || convolution_states.empty(), class_name(),
          ": destination_state knows its convolution gradient state; give one of them");
  StateBatch read = convolution_states;
  const auto* stated =
      states.empty() ? nullptr
                     : dynamic_cast<const ConvolutionTransposeGradientState*>(states.front().get());
  if (stated != nullptr && stated->undone()) {
    read.assign(states.size(), stated->undone());
  }
  (void)undone_by(read);  // throws on states of another kind
  Reads reads;
  if (!read.empty()) {
    check_states(*this, *command_buffer, "convolution_gradient_states", read,
                 static_cast<Index>(sources.size()));
    reads.add(read);
    reads.check();
  }
  UnaryKernel::encode(command_buffer, sources, states, destinations, batch);
  reads.spend();
}

EncodeResult ConvolutionTranspose::encode_creating(
    const std::shared_ptr<CommandBuffer>& command_buffer, const ImageBatch::Images& sources,
    const StateBatch& convolution_states, bool batch, bool with_states, bool temporary_states,
    ImageAllocator* allocator) {
  const Undoing scope(*this, convolution_states);
  Reads reads;
  if (!convolution_states.empty()) {
    check_states(*this, *command_buffer, "convolution_gradient_states", convolution_states,
                 static_cast<Index>(sources.size()));
    reads.add(convolution_states);
    reads.check();
  }
  Sizing sizing;
  if (!convolution_states.empty()) {
    sizing.source_states.push_back(convolution_states.front());
  }
  EncodeResult result = UnaryKernel::encode_creating(command_buffer, sources, batch, with_states,
                                                     temporary_states, allocator, sizing);
  reads.spend();
  return result;
}

void ConvolutionTranspose::adjust_destination(const ImageBatch::Images& sources, Index method,
                                              ImageDescriptor& result) {
  set_offset({0, 0, properties().offset.z});
  if (undone_) {
    const ForwardSnapshot& shot = undone_->snapshot();
    const Window& w = shot.properties.window;
    // A fully connected window lies over the whole source, whatever its offset says.
    const bool full = shot.kernel_class == std::string_view("FullyConnected");
    set_kernel_offset_x(
        undoing_offset(full ? w.extent_x() / 2 : shot.properties.offset.x, w.extent_x()));
    set_kernel_offset_y(
        undoing_offset(full ? w.extent_y() / 2 : shot.properties.offset.y, w.extent_y()));
    result.width = shot.source_width;
    result.height = shot.source_height;
    return;
  }
  // The window passes over the source with zeros inserted at stride 1.
  const auto shift = [method](Index source, Index stride, Index kernel, Index far) {
    return place_forward((source - 1) * stride + 1, kernel, 1, 1, method, (method & far) != 0)
        .offset;
  };
  const ImageDescriptor& source = sources.front()->descriptor();
  const Window& w = window();
  set_kernel_offset_x(
      shift(source.width, w.stride_x, w.kernel_width, padding_method::kRemainderRight));
  set_kernel_offset_y(
      shift(source.height, w.stride_y, w.kernel_height, padding_method::kRemainderBottom));
}

void ConvolutionTranspose::cut_corner(Index left, Index top) {
  const auto first = [](Index kernel) { return kernel / 2 - kernel + 1; };
  set_kernel_offset_x(first(window().kernel_width) + left);
  set_kernel_offset_y(first(window().kernel_height) + top);
}

void ConvolutionTranspose::check_call(const UnaryCall& call) const {
  Convolution::check_call(call);
  require(call.properties.edge_mode == EdgeMode::Zero, class_name(),
          ": edge_mode must be ZERO: outside the source with zeros inserted there are zeros");
}

std::shared_ptr<GradientState> ConvolutionTranspose::make_state(
    ForwardSnapshot snapshot, const std::shared_ptr<CommandBuffer>& temporary) {
  auto contents = encoder().make_state(snapshot, temporary.get());
  return std::make_shared<ConvolutionTransposeGradientState>(
      device(), temporary, std::move(snapshot), descriptor().weight_shape(), shared_from_this(),
      descriptor().untrainable(), std::move(contents), undone_);
}

void ConvolutionTransposeGradient::apply_state(const GradientState&) {
  properties_.primary.offset = {};
  properties_.secondary.offset = {};
  properties_.kernel_offset_x = 0;
  properties_.kernel_offset_y = 0;
}

void ConvolutionTransposeGradient::check_call(const GradientCall& call) const {
  const BinaryProperties& p = call.properties;
  const auto is_zero = [](const Offset& offset) { return offset.x == 0 && offset.y == 0; };
  require(is_zero(p.primary.offset) && is_zero(p.secondary.offset) && p.kernel_offset_x == 0 &&
              p.kernel_offset_y == 0,
          class_name(),
          ": primary_offset, secondary_offset and kernel_offset must be 0: the state says where "
          "windows lie");
  require(p.primary.edge_mode == EdgeMode::Zero && p.secondary.edge_mode == EdgeMode::Zero,
          class_name(), ": primary_edge_mode and secondary_edge_mode must be ZERO");
  const Window& own = descriptor().window;
  require(p.secondary.window == own && p.primary.window.stride_x == own.stride_x &&
              p.primary.window.stride_y == own.stride_y,
          class_name(), ": strides must be those of the weights' descriptor, ", own.stride_x,
          " and ", own.stride_y);
  const ForwardSnapshot& shot = call.state().snapshot();
  const ImageDescriptor& destination = call.destinations.front()->descriptor();
  require_size(*this, "destination", destination, "the forward source was", shot.source_width,
               shot.source_height);
  ConvolutionGradient::check_call(call);
}

}  // namespace mpsgrad
