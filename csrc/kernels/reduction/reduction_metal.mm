// Reductions of the Metal device (MPSNNReduce..., MPSNNLocalCorrelation).
#include "kernels/reduction/reduction.hpp"
#include "metal/metal_calls.hpp"
#include "metal/metal_graph.hpp"

namespace mpsgrad {
namespace {

using metal::to_ns;

// The region within the image, and the images that our own rules have chosen.
MTLRegion to_mtl(const Region& region, Index first, Index images) {
  return MTLRegionMake3D(to_ns(region.origin.x), to_ns(region.origin.y), to_ns(first),
                         to_ns(region.size.width), to_ns(region.size.height), to_ns(images));
}

MPSNNReduceUnary* allocate(ReductionAxis axis, ReductionKind kind) {
  using Axis = ReductionAxis;
  const bool row = axis == Axis::Row;
  const bool column = axis == Axis::Column;
  switch (kind) {
    case ReductionKind::Min:
      return row      ? [MPSNNReduceRowMin alloc]
             : column ? static_cast<MPSNNReduceUnary*>([MPSNNReduceColumnMin alloc])
                      : [MPSNNReduceFeatureChannelsMin alloc];
    case ReductionKind::Max:
      return row      ? [MPSNNReduceRowMax alloc]
             : column ? static_cast<MPSNNReduceUnary*>([MPSNNReduceColumnMax alloc])
                      : [MPSNNReduceFeatureChannelsMax alloc];
    case ReductionKind::Mean:
      return row      ? [MPSNNReduceRowMean alloc]
             : column ? static_cast<MPSNNReduceUnary*>([MPSNNReduceColumnMean alloc])
                      : [MPSNNReduceFeatureChannelsMean alloc];
    case ReductionKind::Sum:
      return row      ? [MPSNNReduceRowSum alloc]
             : column ? static_cast<MPSNNReduceUnary*>([MPSNNReduceColumnSum alloc])
                      : [MPSNNReduceFeatureChannelsSum alloc];
    case ReductionKind::ArgumentMin:
      return [MPSNNReduceFeatureChannelsArgumentMin alloc];
    case ReductionKind::ArgumentMax:
      break;
  }
  return [MPSNNReduceFeatureChannelsArgumentMax alloc];
}

// The common base class declares no initialiser of its own.
MPSNNReduceUnary* initialise(MPSNNReduceUnary* kernel, id<MTLDevice> device) {
  return static_cast<MPSNNReduceUnary*>([static_cast<MPSCNNKernel*>(kernel) initWithDevice:device]);
}

class MetalReduceUnary final : public UnaryEncoder {
 public:
  MetalReduceUnary(id<MTLDevice> device, ReductionAxis axis, ReductionKind kind)
      : kernel_(metal::adopt_kernel(initialise(allocate(axis, kind), device), "MPSNNReduceUnary")) {
  }

  void encode(CommandBuffer& command_buffer, const UnaryCall& call) override {
    const metal::PoolScope pool;
    MPSNNReduceUnary* kernel = kernel_.get();
    kernel.clipRectSource = to_mtl(source_region(reduction_settings(call.properties).source_clip,
                                                 call.sources.front()->descriptor()),
                                   call.first_source, call.images());
    if ([kernel isKindOfClass:[MPSNNReduceFeatureChannelsSum class]]) {
      static_cast<MPSNNReduceFeatureChannelsSum*>(kernel).weight =
          reduction_settings(call.properties).weight;
    }
    metal::encode(command_buffer, kernel, call);
  }

 private:
  metal::Retained<MPSNNReduceUnary*> kernel_;
};

MPSNNReduceBinary* make(id<MTLDevice> device, ProductReduction kind) {
  switch (kind) {
    case ProductReduction::Mean:
      return [[MPSNNReduceFeatureChannelsAndWeightsMean alloc] initWithDevice:device];
    case ProductReduction::Sum:
    case ProductReduction::SumByNonZeroWeights:
      return [[MPSNNReduceFeatureChannelsAndWeightsSum alloc]
                         initWithDevice:device
          doWeightedSumByNonZeroWeights:kind == ProductReduction::SumByNonZeroWeights];
    case ProductReduction::LocalCorrelation:
      break;
  }
  return [[MPSNNLocalCorrelation alloc] initWithDevice:device];
}

class MetalReduceBinary final : public BinaryEncoder {
 public:
  MetalReduceBinary(id<MTLDevice> device, ProductReduction kind)
      : kernel_(metal::adopt_kernel(make(device, kind), "MPSNNReduceBinary")) {}

  void encode(CommandBuffer& command_buffer, const BinaryCall& call) override {
    const metal::PoolScope pool;
    MPSNNReduceBinary* kernel = kernel_.get();
    metal::set_properties(kernel, call);
    kernel.primarySourceClipRect = region_of(call, false);
    kernel.secondarySourceClipRect = region_of(call, true);
    if ([kernel isKindOfClass:[MPSNNLocalCorrelation class]]) {
      const CorrelationWindow window = reduction_settings(call.properties).correlation;
      auto* correlation = static_cast<MPSNNLocalCorrelation*>(kernel);
      correlation.windowInX = to_ns(window.window_x);
      correlation.windowInY = to_ns(window.window_y);
      correlation.strideInX = to_ns(window.stride_x);
      correlation.strideInY = to_ns(window.stride_y);
    }
    metal::encode_prepared(command_buffer, kernel, call);
  }

 private:
  static MTLRegion region_of(const BinaryCall& call, bool secondary) {
    const ImageBatch::Images& images = secondary ? call.secondaries : call.primaries;
    return to_mtl(source_region(reduction_settings(call.properties).source_clip(secondary),
                                images.front()->descriptor()),
                  secondary ? call.first_secondary : call.first_primary, call.images());
  }

  metal::Retained<MPSNNReduceBinary*> kernel_;
};

class MetalReductionBackend final : public ReductionBackend {
 public:
  std::unique_ptr<UnaryEncoder> make_unary(Device& device, ReductionAxis axis,
                                           ReductionKind kind) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalReduceUnary>(metal::mtl_device(device), axis, kind);
  }
  std::unique_ptr<BinaryEncoder> make_binary(Device& device, ProductReduction kind) const override {
    const metal::PoolScope pool;
    return std::make_unique<MetalReduceBinary>(metal::mtl_device(device), kind);
  }
};

}  // namespace

const ReductionBackend& metal_reduction() {
  static const MetalReductionBackend backend;
  return backend;
}

namespace metal {

namespace {

template <ReductionAxis kAxis, ReductionKind kKind>
bool is(const NodeRequest& request) {
  return request.kernel<Reduce<kAxis, kKind>>() != nullptr;
}

MPSNNUnaryReductionNode* allocate_node(const NodeRequest& r) {
  using Axis = ReductionAxis;
  using Kind = ReductionKind;
  if (is<Axis::Row, Kind::Min>(r)) return [MPSNNReductionRowMinNode alloc];
  if (is<Axis::Row, Kind::Max>(r)) return [MPSNNReductionRowMaxNode alloc];
  if (is<Axis::Row, Kind::Mean>(r)) return [MPSNNReductionRowMeanNode alloc];
  if (is<Axis::Row, Kind::Sum>(r)) return [MPSNNReductionRowSumNode alloc];
  if (is<Axis::Column, Kind::Min>(r)) return [MPSNNReductionColumnMinNode alloc];
  if (is<Axis::Column, Kind::Max>(r)) return [MPSNNReductionColumnMaxNode alloc];
  if (is<Axis::Column, Kind::Mean>(r)) return [MPSNNReductionColumnMeanNode alloc];
  if (is<Axis::Column, Kind::Sum>(r)) return [MPSNNReductionColumnSumNode alloc];
  if (is<Axis::FeatureChannels, Kind::Min>(r)) return [MPSNNReductionFeatureChannelsMinNode alloc];
  if (is<Axis::FeatureChannels, Kind::Max>(r)) return [MPSNNReductionFeatureChannelsMaxNode alloc];
  if (is<Axis::FeatureChannels, Kind::Mean>(r)) {
    return [MPSNNReductionFeatureChannelsMeanNode alloc];
  }
  if (is<Axis::FeatureChannels, Kind::ArgumentMin>(r)) {
    return [MPSNNReductionFeatureChannelsArgumentMinNode alloc];
  }
  if (is<Axis::FeatureChannels, Kind::ArgumentMax>(r)) {
    return [MPSNNReductionFeatureChannelsArgumentMaxNode alloc];
  }
  return r.kernel<ReduceFeatureChannelsSum>() != nullptr
             ? [MPSNNReductionFeatureChannelsSumNode alloc]
             : nil;
}

// As it was set: how large the images are is not known.
MTLRegion to_mtl(const Region& clip) {
  const MTLRegion whole = MPSRectNoClip;
  const auto size = [](Index value, NSUInteger all) {
    return value == kUnlimited ? all : to_ns(value);
  };
  return MTLRegionMake3D(to_ns(clip.origin.x), to_ns(clip.origin.y), 0,
                         size(clip.size.width, whole.size.width),
                         size(clip.size.height, whole.size.height), whole.size.depth);
}

}  // namespace

Node make_reduction_node(const NodeRequest& request) {
  const auto* kernel = request.kernel<ReduceUnary>();
  MPSNNUnaryReductionNode* allocated = kernel == nullptr ? nil : allocate_node(request);
  if (allocated == nil) {
    return {};
  }
  MPSNNUnaryReductionNode* made = [allocated initWithSource:request.source()];
  Node node = adopt_node(made);
  if (kernel->source_clip() != Region{}) {
    made.clipRectSource = to_mtl(kernel->source_clip());
  }
  if (const auto* sum = request.kernel<ReduceFeatureChannelsSum>()) {
    static_cast<MPSNNReductionFeatureChannelsSumNode*>(made).weight = sum->weight();
  }
  return node;
}

}  // namespace metal
}  // namespace mpsgrad
