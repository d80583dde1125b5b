// Rules of the pooling kernels.
#include "kernels/pooling/pooling.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

const PoolingBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->pooling(), "pooling");
}

void store_zero_pad(const KernelBase& kernel, ZeroPad& zero_pad, bool vertical, Index value) {
  constexpr Index kMost = Index{1} << 53;  // sums with sizes and offsets stay far from overflow
  require(value >= 0 && value <= kMost, kernel.class_name(), ": zero_pad_size_",
          vertical ? "y" : "x", " must be 0 to ", kMost, ", got ", value);
  (vertical ? zero_pad.y : zero_pad.x) = value;
}

}  // namespace

Pooling::Pooling(std::shared_ptr<Device> device, const char* class_name, PoolingKind kind,
                 const Window& window)
    : UnaryKernel(std::move(device), class_name, window) {
  family_settings() = PoolingSettings{};
  set_device_encoder(backend_of(*this).make_forward(*this->device(), kind, window));
}

PoolingMax::PoolingMax(std::shared_ptr<Device> device, const Window& window)
    : Pooling(std::move(device), "PoolingMax", PoolingKind::Max, window) {}

PoolingAverage::PoolingAverage(std::shared_ptr<Device> device, const Window& window)
    : Pooling(std::move(device), "PoolingAverage", PoolingKind::Average, window) {}

void PoolingAverage::set_zero_pad(bool vertical, Index value) {
  store_zero_pad(*this, family_settings().as<PoolingSettings>().zero_pad, vertical, value);
}

void PoolingAverage::adjust_destination(const ImageBatch::Images&, Index method, ImageDescriptor&) {
  if ((method & padding_method::kExcludeEdges) == 0) {
    return;
  }
  const Offset& offset = properties().offset;
  set_edge_mode(EdgeMode::Clamp);
  set_zero_pad(false, std::max<Index>(0, window().extent_x() / 2 - offset.x));
  set_zero_pad(true, std::max<Index>(0, window().extent_y() / 2 - offset.y));
}

PoolingL2Norm::PoolingL2Norm(std::shared_ptr<Device> device, const Window& window)
    : Pooling(std::move(device), "PoolingL2Norm", PoolingKind::L2Norm, window) {}

DilatedPoolingMax::DilatedPoolingMax(std::shared_ptr<Device> device, const Window& window)
    : Pooling(std::move(device), "DilatedPoolingMax", PoolingKind::DilatedMax, window) {}

PoolingGradient::PoolingGradient(std::shared_ptr<Device> device, const char* class_name,
                                 const char* forward_class, PoolingKind kind, const Window& window)
    : GradientKernel(std::move(device), class_name, forward_class, window), window_(window) {
  properties_.settings = PoolingGradientSettings{};
  set_device_encoder(backend_of(*this).make_gradient(*this->device(), kind, window));
}

void PoolingGradient::set_source_size(const Size& size) {
  require(size.width >= 0 && size.height >= 0 && size.depth >= 0, class_name(),
          ": source_size must not be negative, got (", size.width, ", ", size.height, ", ",
          size.depth, ")");
  settings().source_size = size;
}

void PoolingGradient::apply_state(const GradientState& state) {
  const ForwardSnapshot& shot = state.snapshot();
  properties_.primary.offset = shot.clip.origin;
  properties_.secondary.offset = shot.properties.offset;
  // States of several encodes may serve one batch, so the images of one of them are no limit.
  set_source_size({shot.clip.size.width, shot.clip.size.height, kUnlimited});
  settings().zero_pad = pooling_settings(shot.properties).zero_pad;
}

void PoolingGradient::check_state(const GradientState& state) const {
  const Window& forward = state.snapshot().properties.window;
  const auto same = [&](const char* what, Index own_x, Index own_y, Index x, Index y) {
    require(own_x == x && own_y == y, class_name(), ": the kernel's ", what, " is (", own_x, ", ",
            own_y, "), but the state was made with (", x, ", ", y, ")");
  };
  same("kernel size", window_.kernel_width, window_.kernel_height, forward.kernel_width,
       forward.kernel_height);
  same("stride", window_.stride_x, window_.stride_y, forward.stride_x, forward.stride_y);
  same("dilation rate", window_.dilation_x, window_.dilation_y, forward.dilation_x,
       forward.dilation_y);
}

void PoolingGradient::check_call(const GradientCall& call) const {
  const BinaryProperties& p = call.properties;
  require_no_kernel_offset(call);
  const auto strides = [&](const char* name, const Window& window) {
    require(window.stride_x == window_.stride_x && window.stride_y == window_.stride_y,
            class_name(), ": ", name, "_stride_in_pixels is (", window.stride_x, ", ",
            window.stride_y, "), but the kernel was made with (", window_.stride_x, ", ",
            window_.stride_y, ")");
  };
  strides("primary", p.primary.window);
  strides("secondary", p.secondary.window);
  require_equal_channels(call);
  const ImageDescriptor& gradient = call.gradients.front()->descriptor();
  const ForwardSnapshot& shot = call.state().snapshot();
  if (call.creates_destination) {
    require_size(*this, "source_gradient", gradient, "the forward result was",
                 shot.destination_width, shot.destination_height);
  }
}

PoolingMaxGradient::PoolingMaxGradient(std::shared_ptr<Device> device, const Window& window)
    : PoolingGradient(std::move(device), "PoolingMaxGradient", "PoolingMax", PoolingKind::Max,
                      window) {}

PoolingAverageGradient::PoolingAverageGradient(std::shared_ptr<Device> device, const Window& window)
    : PoolingGradient(std::move(device), "PoolingAverageGradient", "PoolingAverage",
                      PoolingKind::Average, window) {}

void PoolingAverageGradient::set_zero_pad(bool vertical, Index value) {
  store_zero_pad(*this, settings().zero_pad, vertical, value);
}

PoolingL2NormGradient::PoolingL2NormGradient(std::shared_ptr<Device> device, const Window& window)
    : PoolingGradient(std::move(device), "PoolingL2NormGradient", "PoolingL2Norm",
                      PoolingKind::L2Norm, window) {}

DilatedPoolingMaxGradient::DilatedPoolingMaxGradient(std::shared_ptr<Device> device,
                                                     const Window& window)
    : PoolingGradient(std::move(device), "DilatedPoolingMaxGradient", "DilatedPoolingMax",
                      PoolingKind::DilatedMax, window) {}

}  // namespace mpsgrad
