// Nodes of the local and of the trained normalizations.
#include <cmath>

#include "graph.hpp"

using namespace emulated_metal;

// ---------------------------------------------------------------- local

namespace {

struct LocalFamily : FamilyOf<LocalFamily> {
  enum class Kind { spatial, contrast, channels } kind = Kind::spatial;
  NSUInteger width = 5, height = 5;  // across channels: width is the window
  float alpha = 1, beta = 5, delta = 1, p0 = 1, pm = 0, ps = 1;

  Class gradient_node() const override {
    return kind == Kind::spatial    ? [MPSCNNSpatialNormalizationGradientNode class]
           : kind == Kind::contrast ? [MPSCNNLocalContrastNormalizationGradientNode class]
                                    : [MPSCNNCrossChannelNormalizationGradientNode class];
  }
  template <class Kernel>
  MPSKernel* finish(Kernel* kernel) const {
    [kernel setAlpha:alpha];
    [kernel setBeta:beta];
    [kernel setDelta:delta];
    return [kernel autorelease];
  }
  template <class Kernel>
  MPSKernel* windowed(id<MTLDevice> device) const {
    return finish([[Kernel alloc] initWithDevice:device kernelWidth:width kernelHeight:height]);
  }
  template <class Spatial, class Contrast, class Channels>
  MPSKernel* made(id<MTLDevice> device) const {
    if (kind == Kind::channels) {
      return finish([[Channels alloc] initWithDevice:device kernelSize:width]);
    }
    if (kind == Kind::spatial) return windowed<Spatial>(device);
    auto* kernel = static_cast<Contrast*>(windowed<Contrast>(device));
    [kernel setP0:p0];
    [kernel setPm:pm];
    [kernel setPs:ps];
    return kernel;
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return made<MPSCNNSpatialNormalization, MPSCNNLocalContrastNormalization,
                MPSCNNCrossChannelNormalization>(device);
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    return made<MPSCNNSpatialNormalizationGradient, MPSCNNLocalContrastNormalizationGradient,
                MPSCNNCrossChannelNormalizationGradient>(device);
  }
};

std::shared_ptr<LocalFamily> local(LocalFamily::Kind kind, NSUInteger size) {
  auto family = std::make_shared<LocalFamily>();
  family->kind = kind;
  family->width = family->height = size;
  if (kind == LocalFamily::Kind::contrast) {
    family->beta = 0.5F;
    family->delta = 1.0F / 1024;
  }
  return family;
}

}  // namespace

#define SCALES                                           \
  NODE_VALUE(LocalFamily, float, alpha, setAlpha, alpha) \
  NODE_VALUE(LocalFamily, float, beta, setBeta, beta)    \
  NODE_VALUE(LocalFamily, float, delta, setDelta, delta)
#define POWERS                                  \
  NODE_VALUE(LocalFamily, float, p0, setP0, p0) \
  NODE_VALUE(LocalFamily, float, pm, setPm, pm) \
  NODE_VALUE(LocalFamily, float, ps, setPs, ps)
#define WINDOW                                                            \
  NODE_VALUE(LocalFamily, NSUInteger, kernelWidth, setKernelWidth, width) \
  NODE_VALUE(LocalFamily, NSUInteger, kernelHeight, setKernelHeight, height)
#define LOCAL_INITS(kind)                                                          \
  -(instancetype)initWithSource : (MPSNNImageNode*)sourceNode {                    \
    return [self initWithSource:sourceNode kernelSize:5];                          \
  }                                                                                \
  -(instancetype)initWithSource : (MPSNNImageNode*)sourceNode kernelSize           \
      : (NSUInteger)kernelSize {                                                   \
    return [self emulatedInitWithFamily:local(LocalFamily::Kind::kind, kernelSize) \
                                sources:single(sourceNode)                         \
                                  where:HERE];                                     \
  }

@implementation MPSCNNNormalizationNode
- (instancetype)initWithSource:(MPSNNImageNode*)sourceNode {
  (void)sourceNode;
  spring(Trap::abstract_kernel, HERE);
}
SCALES
@end

@implementation MPSCNNSpatialNormalizationNode
LOCAL_INITS(spatial)
WINDOW
@end
@implementation MPSCNNSpatialNormalizationGradientNode
SCALES
WINDOW
@end

@implementation MPSCNNLocalContrastNormalizationNode
LOCAL_INITS(contrast)
POWERS
WINDOW
@end
@implementation MPSCNNLocalContrastNormalizationGradientNode
SCALES
POWERS
NODE_READ(LocalFamily, NSUInteger, kernelWidth, width)
NODE_READ(LocalFamily, NSUInteger, kernelHeight, height)
@end

@implementation MPSCNNCrossChannelNormalizationNode
LOCAL_INITS(channels)
NODE_VALUE(LocalFamily, NSUInteger, kernelSizeInFeatureChannels, setKernelSizeInFeatureChannels,
           width)
@end
@implementation MPSCNNCrossChannelNormalizationGradientNode
NODE_READ(LocalFamily, NSUInteger, kernelSize, width)
@end

// ---------------------------------------------------------------- trained

namespace {

struct InstanceFamily : FamilyOf<InstanceFamily> {
  bool group = false;
  Strong<id> source;

  Class gradient_node() const override {
    return group ? [MPSCNNGroupNormalizationGradientNode class]
                 : [MPSCNNInstanceNormalizationGradientNode class];
  }
  MPSKernel* forward(id<MTLDevice> device) const override {
    if (group) {
      return [[[MPSCNNGroupNormalization alloc] initWithDevice:device
                                                    dataSource:source.get()] autorelease];
    }
    return [[[MPSCNNInstanceNormalization alloc] initWithDevice:device
                                                     dataSource:source.get()] autorelease];
  }
  MPSKernel* backward(id<MTLDevice> device, size_t slot) const override {
    (void)slot;
    const Class made = group ? [MPSCNNGroupNormalizationGradient class]
                             : [MPSCNNInstanceNormalizationGradient class];
    return [[static_cast<MPSCNNGradientKernel*>([made alloc]) initWithDevice:device] autorelease];
  }
  Update update() const override { return group ? Update::group : Update::instance; }
  id data_source() const override { return source.get(); }
};

// Statistics first where the state is used, over the whole batch.
struct BatchFamily : FamilyOf<BatchFamily> {
  MPSCNNBatchNormalizationFlags flags = MPSCNNBatchNormalizationFlagsDefault;
  Strong<id> source;

  Class gradient_node() const override { return [MPSCNNBatchNormalizationGradientNode class]; }
  MPSKernel* forward(id<MTLDevice> device) const override {
    return [[[MPSCNNBatchNormalization alloc] initWithDevice:device
                                                  dataSource:source.get()] autorelease];
  }
  std::vector<MPSKernel*> kernels(const FilterBody& filter, id<MTLDevice> device) const override {
    if (!filter.gradient) {
      return {forward(device),
              [[[MPSCNNBatchNormalizationStatistics alloc] initWithDevice:device] autorelease]};
    }
    return {[[[MPSCNNBatchNormalizationGradient alloc] initWithDevice:device
                                                fusedNeuronDescriptor:nil] autorelease],
            [[[MPSCNNBatchNormalizationStatisticsGradient alloc] initWithDevice:device
                                                          fusedNeuronDescriptor:nil] autorelease]};
  }
  bool statistics(bool state_used) const {
    const auto mode = flags & MPSCNNBatchNormalizationFlagsCalculateStatisticsMask;
    return mode == MPSCNNBatchNormalizationFlagsCalculateStatisticsAlways ||
           (mode == MPSCNNBatchNormalizationFlagsCalculateStatisticsAutomatic && state_used);
  }
  bool always_writes_state() const override { return statistics(false); }
  NSUInteger reads_of_image(bool gradient, bool writes_state) const override {
    return gradient || statistics(writes_state) ? 2 : 1;
  }
  NSUInteger reads_of_state(bool gradient) const override { return gradient ? 2 : 1; }
  void encode_forward(Step& step) const override {
    auto* kernel = step.kernel<MPSCNNBatchNormalization>();
    if (!step.writes_state) {
      step.result = [kernel encodeBatchToCommandBuffer:step.buffer sourceImages:step.images[0]];
      return;
    }
    results_for(kernel, step);
    make_states(kernel, step);
    auto* state = static_cast<MPSCNNBatchNormalizationState*>([step.state objectAtIndex:0]);
    keep(step.state, step.state_reads + 1);
    if (statistics(true)) {
      [step.kernel<MPSCNNBatchNormalizationStatistics>(1) encodeBatchToCommandBuffer:step.buffer
                                                                        sourceImages:step.images[0]
                                                             batchNormalizationState:state];
    }
    [kernel encodeBatchToCommandBuffer:step.buffer
                          sourceImages:step.images[0]
               batchNormalizationState:state
                     destinationImages:step.result];
  }
  void encode_gradient(Step& step) const override {
    auto* state = static_cast<MPSCNNBatchNormalizationState*>([step.states[0] objectAtIndex:0]);
    [step.kernel<MPSCNNBatchNormalizationStatisticsGradient>(1)
        encodeBatchToCommandBuffer:step.buffer
                   sourceGradients:step.images[0]
                      sourceImages:step.images[1]
           batchNormalizationState:state];
    step.result =
        [step.kernel<MPSCNNBatchNormalizationGradient>() encodeBatchToCommandBuffer:step.buffer
                                                                    sourceGradients:step.images[0]
                                                                       sourceImages:step.images[1]
                                                            batchNormalizationState:state];
  }
  Update update() const override { return Update::batch; }
  id data_source() const override { return source.get(); }
};

template <class F>
std::shared_ptr<F> trained(id source, const Where& where) {
  REQUIRE(source != nil, nil_argument, where, "dataSource");
  auto family = std::make_shared<F>();
  family->source = source;
  return family;
}

}  // namespace

@implementation MPSCNNInstanceNormalizationNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNInstanceNormalizationDataSource>)dataSource {
  return [self emulatedInitWithFamily:trained<InstanceFamily>(dataSource, HERE)
                              sources:single(source)
                                where:HERE];
}
NODE_STYLE
@end
@implementation MPSCNNInstanceNormalizationGradientNode
NODE_STYLE
@end

@implementation MPSCNNGroupNormalizationNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNGroupNormalizationDataSource>)dataSource {
  auto family = trained<InstanceFamily>(dataSource, HERE);
  family->group = true;
  return [self emulatedInitWithFamily:family sources:single(source) where:HERE];
}
NODE_STYLE
@end
@implementation MPSCNNGroupNormalizationGradientNode
NODE_STYLE
@end

@implementation MPSCNNBatchNormalizationNode
- (instancetype)initWithSource:(MPSNNImageNode*)source
                    dataSource:(id<MPSCNNBatchNormalizationDataSource>)dataSource {
  return [self emulatedInitWithFamily:trained<BatchFamily>(dataSource, HERE)
                              sources:single(source)
                                where:HERE];
}
NODE_STYLE
NODE_VALUE(BatchFamily, MPSCNNBatchNormalizationFlags, flags, setFlags, flags)
@end
@implementation MPSCNNBatchNormalizationGradientNode
NODE_STYLE
@end
