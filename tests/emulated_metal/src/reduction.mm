// Reductions of rows, columns and feature channels, and sums of products of two images. What
// clipRectSource names is all that they read; offsets are ignored.
#include <algorithm>
#include <cmath>

#include "internal.hpp"

using namespace emulated_metal;

namespace {

enum class Axis { row, column, channels };
enum class Kind { minimum, maximum, mean, sum, argument_minimum, argument_maximum };

struct RegionField {
  MTLRegion region = MPSRectNoClip;
  void fields(Fields& f, const std::string& name) {
    f((name + ".x").c_str(), region.origin.x);
    f((name + ".y").c_str(), region.origin.y);
    f((name + ".z").c_str(), region.origin.z);
    f((name + ".width").c_str(), region.size.width);
    f((name + ".height").c_str(), region.size.height);
    f((name + ".depth").c_str(), region.size.depth);
  }
};

struct ReductionParams : ParamsOf<ReductionParams> {
  RegionField regions[2];
  float weight = 1;
  bool non_zero = false;
  NSUInteger window_x = 0, window_y = 0, stride_x = 1, stride_y = 1;
  void fields(Fields& f) override {
    regions[0].fields(f, "primary");
    regions[1].fields(f, "secondary");
    f("weight", weight);
    f("nonZero", non_zero);
    f("windowX", window_x);
    f("windowY", window_y);
    f("strideX", stride_x);
    f("strideY", stride_y);
  }
};

struct Rect {
  long x = 0, y = 0, w = 0, h = 0;
};

// The part of an image that a region names; nothing left is a broken precondition.
Rect read_rect(const MTLRegion& region, NSUInteger width, NSUInteger height, const Where& where) {
  const auto left = [](NSUInteger origin, NSUInteger size, NSUInteger limit) {
    return origin >= limit ? 0L : static_cast<long>(std::min(size, limit - origin));
  };
  const Rect rect{static_cast<long>(region.origin.x), static_cast<long>(region.origin.y),
                  left(region.origin.x, region.size.width, width),
                  left(region.origin.y, region.size.height, height)};
  REQUIRE(rect.w > 0 && rect.h > 0, reduction_region, where, "%ld x %ld pixels", rect.w, rect.h);
  return rect;
}

Rect rect_of(const KernelBody& kernel, size_t source, MPSImage* image, const Where& where) {
  const ImageBody& body = body_of(image, where);
  return read_rect(kernel.as<ReductionParams>().regions[source].region, body.shape.width,
                   body.shape.height, where);
}

void check_room(const KernelBody& kernel, const Call& call, long width, long height,
                const Where& where) {
  const ImageBody& target = body_of([call.destinations objectAtIndex:0], where);
  const auto written = [](NSUInteger origin, NSUInteger size, NSUInteger limit) {
    return origin >= limit ? 0L : static_cast<long>(std::min(size, limit - origin));
  };
  const MTLRegion& clip = kernel.clip;
  REQUIRE(written(clip.origin.x, clip.size.width, target.shape.width) <= width &&
              written(clip.origin.y, clip.size.height, target.shape.height) <= height,
          reduction_region, where, "the result is %ld x %ld pixels", width, height);
}

// Images are chosen by the region too.
void set_region(KernelBody& kernel, size_t source, const MTLRegion& region) {
  kernel.as<ReductionParams>().regions[source].region = region;
  kernel.sources[source].offset = {0, 0, static_cast<NSInteger>(region.origin.z)};
}

float join(Kind kind, const std::vector<float>& values, float weight) {
  const auto extreme = [&](bool largest) {
    size_t place = 0;
    for (size_t i = 1; i < values.size() && !std::isnan(values[place]); ++i) {
      const bool better = largest ? values[i] > values[place] : values[i] < values[place];
      if (better || std::isnan(values[i])) place = i;
    }
    return place;
  };
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value);
  switch (kind) {
    case Kind::minimum:
      return values[extreme(false)];
    case Kind::maximum:
      return values[extreme(true)];
    case Kind::argument_minimum:
      return static_cast<float>(extreme(false));
    case Kind::argument_maximum:
      return static_cast<float>(extreme(true));
    case Kind::mean:
      return static_cast<float>(sum / static_cast<double>(values.size()));
    case Kind::sum:
      break;
  }
  return static_cast<float>(static_cast<double>(weight) * sum);
}

Work reduce(const KernelBody& kernel, Axis axis, Kind kind) {
  return [region = kernel.as<ReductionParams>().regions[0].region,
          weight = kernel.as<ReductionParams>().weight, axis,
          kind](const std::vector<Tensor>& in, Tensor& out, size_t) {
    const Tensor& source = in[0];
    const Rect rect = read_rect(region, static_cast<NSUInteger>(source.w),
                                static_cast<NSUInteger>(source.h), FUNCTION);
    std::vector<float> values;
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          values.clear();
          const long count = axis == Axis::row ? rect.w : axis == Axis::column ? rect.h : source.c;
          for (long i = 0; i < count; ++i) {
            values.push_back(source.at(rect.y + (axis == Axis::column ? i : y),
                                       rect.x + (axis == Axis::row ? i : x),
                                       axis == Axis::channels ? i : k));
          }
          out.at(y, x, k) = join(kind, values, weight);
        }
      }
    }
  };
}

}  // namespace

@interface MPSCNNBinaryKernel (Emulated)
- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed;
@end

@interface MPSNNReduceUnary (Emulated)
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device;
- (Axis)emulatedAxis;
- (Kind)emulatedKind;
@end

@interface MPSNNReduceBinary (Emulated)
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device;
- (double)emulatedDivisor:(const Tensor&)weights y:(long)y x:(long)x;
@end

@implementation MPSNNReduceUnary
@dynamic offset;
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ReductionParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  return self;
}
- (void)setOffset:(MPSOffset)offset {
  (void)offset;
}
- (MTLRegion)clipRectSource {
  return body_->as<ReductionParams>().regions[0].region;
}
- (void)setClipRectSource:(MTLRegion)region {
  set_region(*body_, 0, region);
}
- (long)emulatedProducedChannels:(long)consumed {
  return [self emulatedAxis] == Axis::channels ? 1 : consumed;
}
- (void)emulatedAdjustDescriptor:(MPSImageDescriptor*)descriptor
                         sources:(NSArray<MPSImage*>*)sources {
  const Rect rect = rect_of(*body_, 0, [sources objectAtIndex:0], HERE);
  const auto size = [](bool one, long length) {
    return one ? NSUInteger{1} : static_cast<NSUInteger>(length);
  };
  descriptor.width = size([self emulatedAxis] == Axis::row, rect.w);
  descriptor.height = size([self emulatedAxis] == Axis::column, rect.h);
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  const Rect rect = rect_of(*body_, 0, [call.sources[0] objectAtIndex:0], where);
  check_room(*body_, call, [self emulatedAxis] == Axis::row ? 1 : rect.w,
             [self emulatedAxis] == Axis::column ? 1 : rect.h, where);
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return reduce(*body_, [self emulatedAxis], [self emulatedKind]);
}
@end

#define REDUCTION_COMMON(axis, kind)                                                 \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    return [self emulatedInitOnDevice:device];                                       \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(Axis)emulatedAxis {                                                              \
    return Axis::axis;                                                               \
  }                                                                                  \
  -(Kind)emulatedKind {                                                              \
    return Kind::kind;                                                               \
  }
#define REDUCTION(name, axis, kind) \
  @implementation name              \
  REDUCTION_COMMON(axis, kind)      \
  @end

REDUCTION(MPSNNReduceRowMin, row, minimum)
REDUCTION(MPSNNReduceRowMax, row, maximum)
REDUCTION(MPSNNReduceRowMean, row, mean)
REDUCTION(MPSNNReduceRowSum, row, sum)
REDUCTION(MPSNNReduceColumnMin, column, minimum)
REDUCTION(MPSNNReduceColumnMax, column, maximum)
REDUCTION(MPSNNReduceColumnMean, column, mean)
REDUCTION(MPSNNReduceColumnSum, column, sum)
REDUCTION(MPSNNReduceFeatureChannelsMin, channels, minimum)
REDUCTION(MPSNNReduceFeatureChannelsMax, channels, maximum)
REDUCTION(MPSNNReduceFeatureChannelsMean, channels, mean)
REDUCTION(MPSNNReduceFeatureChannelsArgumentMin, channels, argument_minimum)
REDUCTION(MPSNNReduceFeatureChannelsArgumentMax, channels, argument_maximum)

@implementation MPSNNReduceFeatureChannelsSum
REDUCTION_COMMON(channels, sum)
- (float)weight {
  return body_->as<ReductionParams>().weight;
}
- (void)setWeight:(float)weight {
  body_->as<ReductionParams>().weight = weight;
}
@end

@implementation MPSNNReduceBinary
@dynamic primaryOffset, secondaryOffset;
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<ReductionParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  (void)device;
  spring(Trap::init_unavailable, HERE);
}
- (instancetype)emulatedInitOnDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  return self;
}
- (void)setPrimaryOffset:(MPSOffset)offset {
  (void)offset;
}
- (void)setSecondaryOffset:(MPSOffset)offset {
  (void)offset;
}
- (MTLRegion)primarySourceClipRect {
  return body_->as<ReductionParams>().regions[0].region;
}
- (void)setPrimarySourceClipRect:(MTLRegion)region {
  set_region(*body_, 0, region);
}
- (MTLRegion)secondarySourceClipRect {
  return body_->as<ReductionParams>().regions[1].region;
}
- (void)setSecondarySourceClipRect:(MTLRegion)region {
  set_region(*body_, 1, region);
}
- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed {
  REQUIRE(consumed[0] == consumed[1], reduction_channels, HERE, "%ld and %ld", consumed[0],
          consumed[1]);
  return 1;
}
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  const Rect first = rect_of(*body_, 0, [call.sources[0] objectAtIndex:0], where);
  const Rect second = rect_of(*body_, 1, [call.sources[1] objectAtIndex:0], where);
  REQUIRE(first.w == second.w && first.h == second.h, reduction_region, where,
          "%ld x %ld and %ld x %ld pixels", first.w, first.h, second.w, second.h);
  check_room(*body_, call, first.w, first.h, where);
}
- (Work)emulatedBinaryWork {
  // The kernel as it is now: a command copies its parameters.
  const Strong<MPSNNReduceBinary*> frozen = adopt(static_cast<MPSNNReduceBinary*>([self copy]));
  return [frozen, first = self.primarySourceClipRect, second = self.secondarySourceClipRect](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const long rows[] = {y + static_cast<long>(first.origin.y),
                             y + static_cast<long>(second.origin.y)};
        const long columns[] = {x + static_cast<long>(first.origin.x),
                                x + static_cast<long>(second.origin.x)};
        double sum = 0;
        for (long k = 0; k < in[0].c; ++k) {
          sum += static_cast<double>(in[0].at(rows[0], columns[0], k)) *
                 static_cast<double>(in[1].at(rows[1], columns[1], k));
        }
        const double divisor = [frozen.get() emulatedDivisor:in[1] y:rows[1] x:columns[1]];
        out.at(y, x, 0) = divisor == 0.0 ? 0.0F : static_cast<float>(sum / divisor);
      }
    }
  };
}
- (double)emulatedDivisor:(const Tensor&)weights y:(long)y x:(long)x {
  (void)weights, (void)y, (void)x;
  spring(Trap::abstract_kernel, HERE);
}
@end

@implementation MPSNNReduceFeatureChannelsAndWeightsMean
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [self emulatedInitOnDevice:device];
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (double)emulatedDivisor:(const Tensor&)weights y:(long)y x:(long)x {
  (void)y, (void)x;
  return static_cast<double>(weights.c);
}
@end

@implementation MPSNNReduceFeatureChannelsAndWeightsSum
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [self initWithDevice:device doWeightedSumByNonZeroWeights:false];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
    doWeightedSumByNonZeroWeights:(bool)doWeightedSumByNonZeroWeights {
  self = [self emulatedInitOnDevice:device];
  body_->as<ReductionParams>().non_zero = doWeightedSumByNonZeroWeights;
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (bool)doWeightedSumByNonZeroWeights {
  return body_->as<ReductionParams>().non_zero;
}
- (double)emulatedDivisor:(const Tensor&)weights y:(long)y x:(long)x {
  if (!body_->as<ReductionParams>().non_zero) return 1.0;
  double count = 0;
  for (long k = 0; k < weights.c; ++k) count += weights.at(y, x, k) != 0.0F ? 1.0 : 0.0;
  return count;
}
@end

#define SETTING(getter, setter, member)          \
  -(NSUInteger)getter {                          \
    return body_->as<ReductionParams>().member;  \
  }                                              \
  -(void)setter : (NSUInteger)value {            \
    body_->as<ReductionParams>().member = value; \
  }

@implementation MPSNNLocalCorrelation
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  return [self initWithDevice:device windowInX:0 windowInY:0 strideInX:1 strideInY:1];
}
- (instancetype)initWithDevice:(id<MTLDevice>)device
                     windowInX:(NSUInteger)windowInX
                     windowInY:(NSUInteger)windowInY
                     strideInX:(NSUInteger)strideInX
                     strideInY:(NSUInteger)strideInY {
  self = [self emulatedInitOnDevice:device];
  self.windowInX = windowInX;
  self.windowInY = windowInY;
  self.strideInX = strideInX;
  self.strideInY = strideInY;
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
SETTING(windowInX, setWindowInX, window_x)
SETTING(windowInY, setWindowInY, window_y)
SETTING(strideInX, setStrideInX, stride_x)
SETTING(strideInY, setStrideInY, stride_y)
- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed {
  [super emulatedBinaryChannels:consumed];
  const auto& p = body_->as<ReductionParams>();
  REQUIRE(p.stride_x > 0 && p.stride_y > 0, kernel_parameters, HERE, "a stride is 0");
  return static_cast<long>((2 * p.window_x + 1) * (2 * p.window_y + 1));
}
- (Work)emulatedBinaryWork {
  return [p = body_->as<ReductionParams>(), edge = body_->sources[1].edge](
             const std::vector<Tensor>& in, Tensor& out, size_t) {
    const auto l = [](NSUInteger value) { return static_cast<long>(value); };
    const Rect b = read_rect(p.regions[1].region, static_cast<NSUInteger>(in[1].w),
                             static_cast<NSUInteger>(in[1].h), FUNCTION);
    const MTLOrigin& a = p.regions[0].region.origin;
    const auto shifted = [&](long y, long x, long z) {
      if (y < 0 || y >= b.h || x < 0 || x >= b.w) {
        if (edge == MPSImageEdgeModeZero) return 0.0;
        y = std::clamp(y, 0L, b.h - 1);
        x = std::clamp(x, 0L, b.w - 1);
      }
      return static_cast<double>(in[1].at(b.y + y, b.x + x, z));
    };
    const long columns = l(2 * p.window_x + 1);
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        for (long k = 0; k < out.c; ++k) {
          const long down = (k / columns - l(p.window_y)) * l(p.stride_y);
          const long right = (k % columns - l(p.window_x)) * l(p.stride_x);
          double sum = 0;
          for (long z = 0; z < in[0].c; ++z) {
            sum += static_cast<double>(in[0].at(y + l(a.y), x + l(a.x), z)) *
                   shifted(y + down, x + right, z);
          }
          out.at(y, x, k) = static_cast<float>(sum);
        }
      }
    }
  };
}
@end
