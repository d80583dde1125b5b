// Sizes and offsets that padding methods stand for, and the ready-made policies.
#include "core/padding.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "core/unary_kernel.hpp"

namespace mpsgrad {

namespace padding_method {

void check(Index method, const char* who) {
  require(method >= 0 && method <= 0xFFFF, who,
          ": padding method must be between 0 and 0xffff, got ", method);
  require((method & kAlignMask) != 0x3, who, ": alignment 3 is reserved");
  const Index size = method & kSizeMask;
  require(size == kSizeValidOnly || size == kSizeSame || size == kSizeFull, who, ": size bits ",
          size, " are reserved; use VALID_ONLY (0), SAME (16) or FULL (32)");
  require((method & kReserved) == 0, who, ": bits 0x1800 of the padding method are reserved");
}

int size_style(Index method) { return static_cast<int>((method & kSizeMask) >> 4) - 1; }

}  // namespace padding_method

AxisPlacement place_forward(Index source, Index kernel, Index stride, Index dilation, Index method,
                            bool remainder_far) {
  const Index extent = (kernel - 1) * dilation + 1;
  const Index span = source + padding_method::size_style(method) * (extent - 1) + stride - 1;
  const Index size = span < 0 ? 0 : span / stride;
  const Index missing = (size - 1) * stride + extent - source;
  Index near_share = 0;
  switch (method & padding_method::kAlignMask) {
    case padding_method::kAlignCentered:
      near_share = (missing + (remainder_far ? 0 : 1)) / 2;
      break;
    case padding_method::kAlignTopLeft:
      near_share = missing;
      break;
    default:
      break;
  }
  return {size, extent / 2 - near_share};
}

Index reverse_size(Index source, Index kernel, Index stride, Index dilation, Index method) {
  const Index extent = (kernel - 1) * dilation + 1;
  return (source - 1) * stride + 1 + padding_method::size_style(method) * (extent - 1);
}

ImageDescriptor Padding::customize(const ImageBatch::Images&, const StateBatch&, KernelBase&,
                                   const ImageDescriptor&) const {
  fail<TypeError>(
      "Padding: the CUSTOM bit is set, but the policy has no destination_descriptor method");
}

DefaultPadding::DefaultPadding(Index method) : method_(method) {
  padding_method::check(method, "DefaultPadding");
  require((method & padding_method::kCustom) == 0,
          "DefaultPadding: the CUSTOM bit needs a policy of your own; subclass Padding");
}

std::shared_ptr<DefaultPadding> DefaultPadding::tensorflow_average_pooling() {
  using namespace padding_method;
  auto policy = std::make_shared<DefaultPadding>(kSizeSame | kRemainderRight | kRemainderBottom);
  policy->method_ |= kCustom;
  return policy;
}

std::shared_ptr<DefaultPadding> DefaultPadding::tensorflow_average_pooling_valid_only() {
  using namespace padding_method;
  auto policy =
      std::make_shared<DefaultPadding>(kSizeValidOnly | kRemainderRight | kRemainderBottom);
  policy->method_ |= kCustom;
  return policy;
}

std::string DefaultPadding::label() const {
  constexpr const char* kSizes[] = {"valid only", "same", "full"};
  constexpr const char* kAligns[] = {"centered", "top left", "bottom right"};
  return text(kSizes[padding_method::size_style(method_) + 1], ", ",
              kAligns[method_ & padding_method::kAlignMask], ", remainder ",
              (method_ & padding_method::kRemainderBottom) ? "bottom" : "top", " ",
              (method_ & padding_method::kRemainderRight) ? "right" : "left");
}

std::shared_ptr<Padding> DefaultPadding::inverse() const {
  if (method_ & padding_method::kCustom) {
    return nullptr;
  }
  const Index size = method_ & padding_method::kSizeMask;
  const Index swapped = size == padding_method::kSizeSame ? size : padding_method::kSizeFull - size;
  return std::make_shared<DefaultPadding>((method_ & ~padding_method::kSizeMask) | swapped);
}

ImageDescriptor DefaultPadding::customize(const ImageBatch::Images&, const StateBatch&,
                                          KernelBase& kernel,
                                          const ImageDescriptor& suggested) const {
  if (auto* unary = dynamic_cast<UnaryKernel*>(&kernel)) {
    unary->set_edge_mode(EdgeMode::Clamp);
  }
  return suggested;
}

ExplicitPadding::ExplicitPadding(Index left_pixels, Index right_pixels, Index top_pixels,
                                 Index bottom_pixels)
    : left(left_pixels), right(right_pixels), top(top_pixels), bottom(bottom_pixels) {
  require(left >= 0 && top >= 0, "ExplicitPadding: left and top must not be negative, got ", left,
          " and ", top);
  require(std::max({left, right, top, bottom}) <= kMaximumImageSide &&
              std::min(right, bottom) >= -kMaximumImageSide,
          "ExplicitPadding: padding must lie between ", -kMaximumImageSide, " and ",
          kMaximumImageSide, ", got (", left, ", ", right, ", ", top, ", ", bottom, ")");
}

std::string ExplicitPadding::label() const {
  return text("explicit, left ", left, " right ", right, " top ", top, " bottom ", bottom);
}

ImageDescriptor ExplicitPadding::customize(const ImageBatch::Images& sources,
                                           const StateBatch& states, KernelBase& kernel,
                                           const ImageDescriptor& suggested) const {
  auto* unary = dynamic_cast<UnaryKernel*>(&kernel);
  require(unary != nullptr, kernel.class_name(),
          ": ExplicitPadding describes forward filters with one source only");
  const Window& window = unary->window();
  const ImageDescriptor& source = sources.front()->descriptor();
  if (unary->is_backwards()) {
    // A convolution that is undone has said where its source was.
    return states.empty() ? cut(*unary, source, suggested) : suggested;
  }
  require(right >= 0 && bottom >= 0, kernel.class_name(),
          ": the padding must not be negative, which is for transposed convolutions, got ", *this);
  const auto length = [](Index size, Index extent, Index stride) {
    return size < extent ? Index{0} : (size - extent) / stride + 1;
  };
  ImageDescriptor result = suggested;
  result.width = length(source.width + left + right, window.extent_x(), window.stride_x);
  result.height = length(source.height + top + bottom, window.extent_y(), window.stride_y);
  unary->set_offset(
      {window.extent_x() / 2 - left, window.extent_y() / 2 - top, unary->properties().offset.z});
  unary->adjust_destination(sources, method(), result);
  return result;
}

ImageDescriptor ExplicitPadding::cut(UnaryKernel& kernel, const ImageDescriptor& source,
                                     const ImageDescriptor& suggested) const {
  constexpr Index kWhole = padding_method::kSizeFull;
  const Window& w = kernel.window();
  ImageDescriptor result = suggested;
  result.width =
      reverse_size(source.width, w.kernel_width, w.stride_x, w.dilation_x, kWhole) - left - right;
  result.height =
      reverse_size(source.height, w.kernel_height, w.stride_y, w.dilation_y, kWhole) - top - bottom;
  kernel.cut_corner(left, top);
  return result;
}

}  // namespace mpsgrad
