// Nodes that move elements: concatenation, reshape, padding; and reductions.
#include <algorithm>

#include "graph.hpp"

using namespace emulated_metal;

// ---------------------------------------------------------------- kernels that are not public

namespace {

NSUInteger in_whole_slices(NSUInteger channels) { return (channels + 3) / 4 * 4; }

// Where the parts of a concatenation start.
struct JoinParams : ParamsOf<JoinParams> {
  std::vector<NSUInteger> starts;
  NSUInteger total = 0;
};
struct SliceParams : ParamsOf<SliceParams> {
  size_t part = 0;
};
struct RegionParams : ParamsOf<RegionParams> {
  MTLRegion region = MPSRectNoClip;
};

struct Rect {
  long x, y, w, h;
};
Rect rect_of(const MTLRegion& region, long width, long height, const Where& where) {
  const auto l = [](NSUInteger value) { return static_cast<long>(value); };
  const auto left = [&](NSUInteger origin, NSUInteger size, long limit) {
    return l(origin) >= limit || origin == NSUIntegerMax
               ? 0L
               : l(std::min(size, static_cast<NSUInteger>(limit) - origin));
  };
  const Rect rect{l(region.origin.x), l(region.origin.y),
                  left(region.origin.x, region.size.width, width),
                  left(region.origin.y, region.size.height, height)};
  REQUIRE(rect.w > 0 && rect.h > 0, reduction_region, where, "%ld x %ld pixels", rect.w, rect.h);
  return rect;
}

}  // namespace

// Copies one source of a concatenation behind the others and fills its last slice with zeros.
@interface EmulatedJoin : MPSCNNKernel
@end
@implementation EmulatedJoin
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = std::make_shared<JoinParams>();
  return self;
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (long)emulatedProducedChannels:(long)consumed {
  return static_cast<long>(in_whole_slices(static_cast<NSUInteger>(consumed)));
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  [descriptor setFeatureChannels:body_->as<JoinParams>().total];
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [](const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) out.at(y, x, k) = k < in[0].c ? in[0].at(y, x, k) : 0.0F;
      }
    }
  };
}
@end

// The part of a gradient that belongs to one source of a concatenation.
@interface EmulatedSlice : MPSCNNGradientKernel
@end
@implementation EmulatedSlice
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = std::make_shared<SliceParams>();
  return self;
}
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return forward == [EmulatedJoin class];
}
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  const Snapshot& forward = *[[sourceStates objectAtIndex:0] emulatedBody]->snapshot;
  const auto& joined = forward.kernel.as<JoinParams>();
  MPSImage* gradient = [sourceImages objectAtIndex:0];
  MPSImage* source = [sourceImages objectAtIndex:1];
  REQUIRE([gradient featureChannels] == joined.total, gradient_shape, HERE, "%lu channels of %lu",
          static_cast<unsigned long>([gradient featureChannels]),
          static_cast<unsigned long>(joined.total));
  body_->sources[0].channel_offset = joined.starts[body_->as<SliceParams>().part];
  body_->sources[0].channel_max = [source featureChannels];
  return [MPSImageDescriptor imageDescriptorWithChannelFormat:[gradient featureChannelFormat]
                                                        width:[source width]
                                                       height:[source height]
                                              featureChannels:[source featureChannels]];
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [](const std::vector<Tensor>& in, Tensor& out, size_t) { out.data = in[0].data; };
}
@end

@interface EmulatedSpatialMean : MPSCNNKernel
@end
@implementation EmulatedSpatialMean
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = std::make_shared<RegionParams>();
  return self;
}
- (Class)emulatedStateClass {
  return [MPSNNGradientState class];
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  (void)sources;
  [descriptor setWidth:1];
  [descriptor setHeight:1];
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  const ImageBody& source = body_of([call.sources[0] objectAtIndex:0], where);
  rect_of(body_->as<RegionParams>().region, static_cast<long>(source.shape.width),
          static_cast<long>(source.shape.height), where);
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [region = body_->as<RegionParams>().region, where = Where{self, _cmd}](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Rect rect = rect_of(region, in[0].w, in[0].h, where);
    for (long k = 0; k < out.c; ++k) {
      double sum = 0;
      for (long y = 0; y < rect.h; ++y) {
        for (long x = 0; x < rect.w; ++x) {
          sum += static_cast<double>(in[0].at(rect.y + y, rect.x + x, k));
        }
      }
      out.at(0, 0, k) = static_cast<float>(sum / static_cast<double>(rect.w * rect.h));
    }
  };
}
@end

@interface EmulatedSpatialMeanGradient : MPSCNNGradientKernel
@end
@implementation EmulatedSpatialMeanGradient
- (bool)emulatedAcceptsForwardClass:(Class)forward {
  return forward == [EmulatedSpatialMean class];
}
- (Work)emulatedGradientWork:(NSArray<MPSState*>*)states {
  const Snapshot& forward = *[[states objectAtIndex:0] emulatedBody]->snapshot;
  return [region = forward.kernel.as<RegionParams>().region, where = Where{self, _cmd}](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Rect rect = rect_of(region, out.w, out.h, where);
    for (long y = 0; y < rect.h; ++y) {
      for (long x = 0; x < rect.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          out.at(rect.y + y, rect.x + x, k) =
              in[0].at(0, 0, k) / static_cast<float>(rect.w * rect.h);
        }
      }
    }
  };
}
@end

// ---------------------------------------------------------------- families

namespace {

template <class Kernel>
MPSKernel* plain(id<MTLDevice> device) {
  return [[[Kernel alloc] initWithDevice:device] autorelease];
}

struct ConcatenationFamily : FamilyOf<ConcatenationFamily> {
  Class gradient_node() const override { return [MPSNNConcatenationGradientNode class]; }
  bool has_singular() const override { return false; }
  std::vector<size_t> slots(const FilterBody& forward) const override {
    std::vector<size_t> all;
    for (size_t slot = 0; slot < forward.images.size(); ++slot) all.push_back(slot);
    return all;
  }
  MPSKernel* forward(id<MTLDevice> device) const override { return plain<EmulatedJoin>(device); }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    MPSKernel* kernel = plain<EmulatedSlice>(device);
    [kernel emulatedBody]->as<SliceParams>().part = slot;
    return kernel;
  }
  void encode_forward(Step& step) const override {
    auto* kernel = step.kernel<EmulatedJoin>();
    JoinParams& params = [kernel emulatedBody]->as<JoinParams>();
    params = {};
    MPSImage* first = [step.images[0] objectAtIndex:0];
    for (NSArray<MPSImage*>* images : step.images) {
      MPSImage* image = [images objectAtIndex:0];
      REQUIRE([image width] == [first width] && [image height] == [first height],
              graph_concatenation,
              (Where { kernel, @selector(encodeBatchToCommandBuffer:sourceImages:) }),
              "%lu x %lu and %lu x %lu", static_cast<unsigned long>([first width]),
              static_cast<unsigned long>([first height]), static_cast<unsigned long>([image width]),
              static_cast<unsigned long>([image height]));
      params.starts.push_back(params.total);
      params.total += in_whole_slices([image featureChannels]);
    }
    [kernel setDestinationFeatureChannelOffset:0];
    results_for(kernel, step);
    if (step.writes_state) make_states(kernel, step);
    for (size_t part = 0; part < step.images.size(); ++part) {
      [kernel setDestinationFeatureChannelOffset:params.starts[part]];
      if (part == 0 && step.writes_state) {
        [kernel encodeBatchToCommandBuffer:step.buffer
                              sourceImages:step.images[part]
                         destinationStates:step.state
                         destinationImages:step.result];
      } else {
        [kernel encodeBatchToCommandBuffer:step.buffer
                              sourceImages:step.images[part]
                         destinationImages:step.result];
      }
    }
    keep(step.state, step.state_reads);
  }
};

struct ReshapeFamily : FamilyOf<ReshapeFamily> {
  NSUInteger width = 1, height = 1, channels = 1;

  Class gradient_node() const override { return [MPSNNReshapeGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override { return plain<MPSNNReshape>(device); }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return plain<MPSNNReshapeGradient>(device);
  }
  void encode_forward(Step& step) const override {
    auto* kernel = step.kernel<MPSNNReshape>();
    if (!step.writes_state) {
      step.result = [kernel encodeBatchToCommandBuffer:step.buffer
                                          sourceImages:step.images[0]
                                         reshapedWidth:width
                                        reshapedHeight:height
                               reshapedFeatureChannels:channels];
      return;
    }
    MPSStateBatch* states = nil;
    step.result = [kernel encodeBatchToCommandBuffer:step.buffer
                                        sourceImages:step.images[0]
                                   destinationStates:&states
                         destinationStateIsTemporary:step.temporary_state
                                       reshapedWidth:width
                                      reshapedHeight:height
                             reshapedFeatureChannels:channels];
    step.state = states;
    keep(step.state, step.state_reads);
  }
};

struct PadFamily : FamilyOf<PadFamily> {
  MPSImageCoordinate before{}, after{};
  MPSImageEdgeMode edge = MPSImageEdgeModeZero;
  float fill = 0;

  Class gradient_node() const override { return [MPSNNPadGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    MPSNNPad* kernel = [[[MPSNNPad alloc] initWithDevice:device
                                       paddingSizeBefore:before
                                        paddingSizeAfter:after] autorelease];
    [kernel setEdgeMode:edge];
    [kernel setFillValue:fill];
    return kernel;
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return plain<MPSNNPadGradient>(device);
  }
};

struct ReductionFamily : FamilyOf<ReductionFamily> {
  Class kernel = Nil;
  MTLRegion region = MPSRectNoClip;
  float weight = 1;
  bool spatial = false;

  Class state_node() const override { return spatial ? [MPSNNGradientStateNode class] : Nil; }
  Class gradient_node() const override {
    return spatial ? [MPSNNReductionSpatialMeanGradientNode class] : Nil;
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    auto* made =
        [[static_cast<MPSNNReduceRowMin*>([kernel alloc]) initWithDevice:device] autorelease];
    if (spatial) {
      [made emulatedBody]->as<RegionParams>().region = region;
    } else {
      [made setClipRectSource:region];
    }
    if (kernel == [MPSNNReduceFeatureChannelsSum class]) {
      [static_cast<MPSNNReduceFeatureChannelsSum*>(static_cast<id>(made)) setWeight:weight];
    }
    return made;
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return plain<EmulatedSpatialMeanGradient>(device);
  }
};

}  // namespace

// ---------------------------------------------------------------- nodes

@implementation MPSNNConcatenationNode
- (instancetype)initWithSources:(NSArray<MPSNNImageNode*>*)sourceNodes {
  REQUIRE(sourceNodes != nil, nil_argument, HERE, "sourceNodes");
  REQUIRE([sourceNodes count] > 0, node_source_count, HERE, "none");
  return [self emulatedInitWithFamily:std::make_shared<ConcatenationFamily>()
                              sources:sourceNodes
                                where:HERE];
}
@end
@implementation MPSNNConcatenationGradientNode
@end

@implementation MPSNNReshapeNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                   resultWidth:(NSUInteger)resultWidth
                  resultHeight:(NSUInteger)resultHeight
         resultFeatureChannels:(NSUInteger)resultFeatureChannels {
  auto family = std::make_shared<ReshapeFamily>();
  family->width = resultWidth;
  family->height = resultHeight;
  family->channels = resultFeatureChannels;
  return [self emulatedInitWithFamily:family sources:single(source) where:HERE];
}
@end
@implementation MPSNNReshapeGradientNode
@end

@implementation MPSNNPadNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
             paddingSizeBefore:(MPSImageCoordinate)paddingSizeBefore
              paddingSizeAfter:(MPSImageCoordinate)paddingSizeAfter
                      edgeMode:(MPSImageEdgeMode)edgeMode {
  auto family = std::make_shared<PadFamily>();
  family->before = paddingSizeBefore;
  family->after = paddingSizeAfter;
  family->edge = edgeMode;
  return [self emulatedInitWithFamily:family sources:single(source) where:HERE];
}
NODE_VALUE(PadFamily, float, fillValue, setFillValue, fill)
@end
@implementation MPSNNPadGradientNode
@end

@implementation MPSNNUnaryReductionNode
- (Class)emulatedKernelClass {
  spring(Trap::abstract_kernel, HERE);
}
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  auto family = std::make_shared<ReductionFamily>();
  family->kernel = [self emulatedKernelClass];
  family->spatial = family->kernel == [EmulatedSpatialMean class];
  return [self emulatedInitWithFamily:family sources:single(sourceNode) where:HERE];
}
NODE_VALUE(ReductionFamily, MTLRegion, clipRectSource, setClipRectSource, region)
@end

#define REDUCTION_KERNEL(kernel) \
  -(Class)emulatedKernelClass {  \
    return [kernel class];       \
  }
#define REDUCTION(name)          \
  @implementation MPSNNReduction \
  ##name##Node REDUCTION_KERNEL(MPSNNReduce##name) @end
REDUCTION(RowMin)
REDUCTION(ColumnMin)
REDUCTION(FeatureChannelsMin)
REDUCTION(FeatureChannelsArgumentMin)
REDUCTION(RowMax)
REDUCTION(ColumnMax)
REDUCTION(FeatureChannelsMax)
REDUCTION(FeatureChannelsArgumentMax)
REDUCTION(RowMean)
REDUCTION(ColumnMean)
REDUCTION(FeatureChannelsMean)
REDUCTION(RowSum)
REDUCTION(ColumnSum)
@implementation MPSNNReductionFeatureChannelsSumNode
REDUCTION_KERNEL(MPSNNReduceFeatureChannelsSum)
NODE_VALUE(ReductionFamily, float, weight, setWeight, weight)
@end
@implementation MPSNNReductionSpatialMeanNode
REDUCTION_KERNEL(EmulatedSpatialMean)
@end
@implementation MPSNNReductionSpatialMeanGradientNode
@end
