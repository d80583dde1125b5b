// Rules of the reductions.
#include "kernels/reduction/reduction.hpp"

#include <algorithm>
#include <string>

#include "base/errors.hpp"

namespace mpsgrad {
namespace {

void check_source_clip(const KernelBase& kernel, const char* property, const Region& clip) {
  require(clip.origin.x >= 0 && clip.origin.y >= 0 && clip.size.width >= 0 && clip.size.height >= 0,
          kernel.class_name(), ": ", property, " must not have negative parts, got origin ",
          clip.origin, " and size ", clip.size);
  require(clip.origin.z == 0 && clip.size.depth == kUnlimited, kernel.class_name(), ": ", property,
          " selects pixels; images are selected by clip_rect and the offset's z, so its z must be "
          "left out");
  for (const Index origin : {clip.origin.x, clip.origin.y}) {
    check_position(kernel, property, origin);
  }
}

// What an interval leaves of 0 to `length`.
Index cut(Index origin, Index size, Index length) {
  const Index rest = std::max<Index>(length - origin, 0);
  return std::min(size, rest);
}

void require_some(const KernelBase& kernel, const char* property, const char* what, Index size,
                  Index length) {
  require(size > 0, kernel.class_name(), ": ", property, " leaves nothing of a source that is ",
          length, " pixels ", what);
}

// Results are where the clip rectangle says, and there are not more than were made.
void require_room(const KernelBase& kernel, const Region& clip, Index width, Index height) {
  require(clip.size.width <= width && clip.size.height <= height, kernel.class_name(),
          ": the result is ", width, "x", height, " pixels, but clip_rect covers ", clip.size.width,
          "x", clip.size.height, " pixels of the destination");
}

const ReductionBackend& backend_of(const KernelBase& kernel) {
  return require_family(kernel, kernel.device()->reduction(), "reduction");
}

const char* clip_name(bool secondary) {
  return secondary ? "secondary_source_clip_rect" : "primary_source_clip_rect";
}

}  // namespace

Region source_region(const Region& clip, const ImageDescriptor& image) {
  Region region = clip;
  region.size.width = cut(clip.origin.x, clip.size.width, image.width);
  region.size.height = cut(clip.origin.y, clip.size.height, image.height);
  return region;
}

const char* reduction_name(ReductionAxis axis, ReductionKind kind) {
  constexpr const char* kNames[][6] = {
      {"ReduceRowMin", "ReduceRowMax", "ReduceRowMean", "ReduceRowSum"},
      {"ReduceColumnMin", "ReduceColumnMax", "ReduceColumnMean", "ReduceColumnSum"},
      {"ReduceFeatureChannelsMin", "ReduceFeatureChannelsMax", "ReduceFeatureChannelsMean",
       "ReduceFeatureChannelsSum", "ReduceFeatureChannelsArgumentMin",
       "ReduceFeatureChannelsArgumentMax"}};
  return kNames[static_cast<std::size_t>(axis)][static_cast<std::size_t>(kind)];
}

ReduceUnary::ReduceUnary(std::shared_ptr<Device> device, const char* class_name, ReductionAxis axis,
                         ReductionKind kind)
    : UnaryKernel(std::move(device), class_name, {}), axis_(axis) {
  set_device_encoder(backend_of(*this).make_unary(*this->device(), axis, kind));
  family_settings() = ReduceUnarySettings{};
}

void ReduceUnary::set_source_clip(const Region& clip) {
  check_source_clip(*this, "clip_rect_source", clip);
  family_settings().as<ReduceUnarySettings>().source_clip = clip;
}

Index ReduceUnary::produced_channels(Index consumed) const {
  return axis_ == ReductionAxis::FeatureChannels ? 1 : consumed;
}

Size ReduceUnary::result_size(const ImageDescriptor& source) const {
  const Region region = source_region(source_clip(), source);
  require_some(*this, "clip_rect_source", "wide", region.size.width, source.width);
  require_some(*this, "clip_rect_source", "high", region.size.height, source.height);
  return {axis_ == ReductionAxis::Row ? 1 : region.size.width,
          axis_ == ReductionAxis::Column ? 1 : region.size.height, 1};
}

void ReduceUnary::adjust_destination(const ImageBatch::Images& sources, Index /*method*/,
                                     ImageDescriptor& result) {
  const Size size = result_size(sources.front()->descriptor());
  result.width = size.width;
  result.height = size.height;
}

void ReduceUnary::check_call(const UnaryCall& call) const {
  const Size size = result_size(call.sources.front()->descriptor());
  require_room(*this, call.clip, size.width, size.height);
}

std::shared_ptr<GradientState> ReduceUnary::make_state(ForwardSnapshot,
                                                       const std::shared_ptr<CommandBuffer>&) {
  return nullptr;  // there is no gradient kernel
}

ReduceFeatureChannelsSum::ReduceFeatureChannelsSum(std::shared_ptr<Device> device)
    : ReduceUnary(std::move(device), "ReduceFeatureChannelsSum", ReductionAxis::FeatureChannels,
                  ReductionKind::Sum) {}

void ReduceFeatureChannelsSum::set_weight(float value) {
  family_settings().as<ReduceUnarySettings>().weight = value;
}

ReduceBinary::ReduceBinary(std::shared_ptr<Device> device, const char* class_name,
                           ProductReduction kind)
    : ForwardBinaryKernel(std::move(device), class_name, {}, {}) {
  set_device_encoder(backend_of(*this).make_binary(*this->device(), kind));
  properties_.settings = ReduceBinarySettings{};
}

void ReduceBinary::set_source_clip(bool secondary, const Region& clip) {
  check_source_clip(*this, clip_name(secondary), clip);
  (secondary ? settings().secondary_clip : settings().primary_clip) = clip;
}

void ReduceBinary::check_stride(bool, const char* property, Index value) const {
  require(value == 1, class_name(), ": ", property, " must be 1, got ", value);
}

Index ReduceBinary::produced_channels(Index primary, Index secondary) const {
  require(primary == secondary, class_name(), ": the primary offers ", primary,
          " feature channels, but the secondary ", secondary);
  return 1;
}

Index ReduceBinary::placed_size(bool vertical, Index primary, Index secondary) const {
  const auto left = [&](bool second, Index length) {
    const Region clip = source_clip(second);
    const Index size = vertical ? cut(clip.origin.y, clip.size.height, length)
                                : cut(clip.origin.x, clip.size.width, length);
    require_some(*this, clip_name(second), vertical ? "high" : "wide", size, length);
    return size;
  };
  const Index first = left(false, primary);
  const Index second = left(true, secondary);
  require(first == second, class_name(), ": the ", (vertical ? "height" : "width"),
          " read of the primary is ", first, ", but of the secondary ", second);
  return first;
}

void ReduceBinary::check_call(const BinaryCall& call) const {
  const ImageDescriptor& primary = call.primaries.front()->descriptor();
  const ImageDescriptor& secondary = call.secondaries.front()->descriptor();
  require_room(*this, call.clip, placed_size(false, primary.width, secondary.width),
               placed_size(true, primary.height, secondary.height));
}

ReduceFeatureChannelsAndWeightsMean::ReduceFeatureChannelsAndWeightsMean(
    std::shared_ptr<Device> device)
    : ReduceBinary(std::move(device), "ReduceFeatureChannelsAndWeightsMean",
                   ProductReduction::Mean) {}

ReduceFeatureChannelsAndWeightsSum::ReduceFeatureChannelsAndWeightsSum(
    std::shared_ptr<Device> device, bool by_non_zero_weights)
    : ReduceBinary(
          std::move(device), "ReduceFeatureChannelsAndWeightsSum",
          by_non_zero_weights ? ProductReduction::SumByNonZeroWeights : ProductReduction::Sum),
      by_non_zero_weights_(by_non_zero_weights) {}

LocalCorrelation::LocalCorrelation(std::shared_ptr<Device> device, const CorrelationWindow& window)
    : ReduceBinary(std::move(device), "LocalCorrelation", ProductReduction::LocalCorrelation) {
  set_window(false, window.window_x);
  set_window(true, window.window_y);
  set_stride_between(false, window.stride_x);
  set_stride_between(true, window.stride_y);
}

void LocalCorrelation::set_window(bool vertical, Index value) {
  const char* name = vertical ? "window_in_y" : "window_in_x";
  require(value >= 0, class_name(), ": ", name, " must not be negative, got ", value);
  require(value <= kMaximumWindow, class_name(), ": ", name, " must be at most ", kMaximumWindow,
          ", got ", value);
  CorrelationWindow& own = settings().correlation;
  (vertical ? own.window_y : own.window_x) = value;
}

void LocalCorrelation::set_stride_between(bool vertical, Index value) {
  const char* name = vertical ? "stride_in_y" : "stride_in_x";
  check_step(class_name(), name, value);
  CorrelationWindow& own = settings().correlation;
  (vertical ? own.stride_y : own.stride_x) = value;
}

Index LocalCorrelation::produced_channels(Index primary, Index secondary) const {
  ReduceBinary::produced_channels(primary, secondary);
  return correlation_window().shifts();
}

}  // namespace mpsgrad
