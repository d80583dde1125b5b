// Images in another size, parts of them, and images read where a grid says.
#include <algorithm>
#include <array>
#include <cmath>

#include "internal.hpp"

using namespace emulated_metal;

namespace emulated_metal {
namespace {

struct ResizeParams : ParamsOf<ResizeParams> {
  NSUInteger width = 1, height = 1;
  bool align_corners = false;
  MPSRegion region{{0, 0, 0}, {1, 1, 1}};
  void fields(Fields& f) override {
    f("width", width);
    f("height", height);
    f("align_corners", align_corners);
    f("region.x", region.origin.x);
    f("region.y", region.origin.y);
    f("region.width", region.size.width);
    f("region.height", region.size.height);
  }
};

struct GridParams : ParamsOf<GridParams> {
  bool positions = true;
  void fields(Fields& f) override { f("positions", positions); }
};

void check_size(NSUInteger width, NSUInteger height, const Where& where) {
  REQUIRE(width > 0 && height > 0, kernel_parameters, where, "resize to %lu x %lu",
          static_cast<unsigned long>(width), static_cast<unsigned long>(height));
}

// Between four pixels, those that have a weight; `next` says which lies behind another along an
// axis of so many.
template <class Next>
float between(const Tensor& source, double y, double x, long channel, MPSImageEdgeMode edge,
              const Next& next) {
  if (std::isnan(x) || std::isnan(y)) return std::nanf("");
  const auto split = [](double position) {
    const double bounded = std::clamp(position, -1e9, 1e9);
    return std::pair(static_cast<long>(std::floor(bounded)), bounded - std::floor(bounded));
  };
  const auto [row, down] = split(y);
  const auto [column, right] = split(x);
  const std::array<long, 2> rows{row, next(row, source.h)};
  const std::array<long, 2> columns{column, next(column, source.w)};
  double sum = 0;
  for (size_t a = 0; a < 2; ++a) {
    for (size_t b = 0; b < 2; ++b) {
      const double weight = (a == 1 ? down : 1 - down) * (b == 1 ? right : 1 - right);
      if (weight == 0) continue;
      sum += weight * static_cast<double>(fetch(source, rows[a], columns[b], channel, edge));
    }
  }
  return static_cast<float>(sum);
}

// Nothing lies behind the last pixel.
long next_within(long pixel, long length) { return pixel == length - 1 ? pixel : pixel + 1; }
long next_anywhere(long pixel, long /*length*/) { return pixel + 1; }

double resized(long i, long length, NSUInteger size, bool align_corners) {
  const auto results = static_cast<long>(size);
  if (!align_corners) {
    return static_cast<double>(i * length) / static_cast<double>(results);
  }
  return results == 1 ? 0.0
                      : static_cast<double>(i * (length - 1)) / static_cast<double>(results - 1);
}

double cropped(long i, double begin, double extent, long length, NSUInteger size) {
  const double part = size == 1 ? 0.5 : static_cast<double>(i) / (static_cast<double>(size) - 1.0);
  return (begin + extent * part) * static_cast<double>(length - 1);
}

}  // namespace
}  // namespace emulated_metal

#define RESIZE_COMMON                                                                \
  -(std::shared_ptr<Params>)emulatedParams {                                         \
    return std::make_shared<ResizeParams>();                                         \
  }                                                                                  \
  -(instancetype)initWithDevice : (id<MTLDevice>)device {                            \
    (void)device;                                                                    \
    spring(Trap::init_unavailable, HERE);                                            \
  }                                                                                  \
  -(instancetype)initWithCoder : (NSCoder*)aDecoder device : (id<MTLDevice>)device { \
    return [super initWithCoder:aDecoder device:device];                             \
  }                                                                                  \
  -(NSUInteger)resizeWidth {                                                         \
    return body_->as<ResizeParams>().width;                                          \
  }                                                                                  \
  -(NSUInteger)resizeHeight {                                                        \
    return body_->as<ResizeParams>().height;                                         \
  }                                                                                  \
  -(void)emulatedAdjustDescriptor : (MPSImageDescriptor*)descriptor sources          \
      : (NSArray<MPSImage*>*)sources {                                               \
    (void)sources;                                                                   \
    descriptor.width = body_->as<ResizeParams>().width;                              \
    descriptor.height = body_->as<ResizeParams>().height;                            \
  }

@implementation MPSNNResizeBilinear
RESIZE_COMMON
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   resizeWidth:(NSUInteger)resizeWidth
                  resizeHeight:(NSUInteger)resizeHeight
                  alignCorners:(BOOL)alignCorners {
  self = [super initWithDevice:device];
  check_size(resizeWidth, resizeHeight, HERE);
  body_->params = [self emulatedParams];
  auto& p = body_->as<ResizeParams>();
  p.width = resizeWidth;
  p.height = resizeHeight;
  p.align_corners = alignCorners;
  return self;
}
- (BOOL)alignCorners {
  return body_->as<ResizeParams>().align_corners;
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [s = body_->sources[0], p = body_->as<ResizeParams>()](const std::vector<Tensor>& in,
                                                                Tensor& out, size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const double down =
            static_cast<double>(s.offset.y) + resized(y, in[0].h, p.height, p.align_corners);
        const double right =
            static_cast<double>(s.offset.x) + resized(x, in[0].w, p.width, p.align_corners);
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = between(in[0], down, right, k, s.edge, next_within);
        }
      }
    }
  };
}
@end

@implementation MPSNNCropAndResizeBilinear
RESIZE_COMMON
- (instancetype)initWithDevice:(id<MTLDevice>)device
                   resizeWidth:(NSUInteger)resizeWidth
                  resizeHeight:(NSUInteger)resizeHeight
               numberOfRegions:(NSUInteger)numberOfRegions
                       regions:(const MPSRegion*)regions {
  self = [super initWithDevice:device];
  check_size(resizeWidth, resizeHeight, HERE);
  REQUIRE(regions != nullptr, nil_argument, HERE, "regions");
  REQUIRE(numberOfRegions == 1, resize_regions, HERE, "%lu",
          static_cast<unsigned long>(numberOfRegions));
  body_->params = [self emulatedParams];
  auto& p = body_->as<ResizeParams>();
  p.width = resizeWidth;
  p.height = resizeHeight;
  p.region = regions[0];
  return self;
}
- (NSUInteger)numberOfRegions {
  return 1;
}
- (const MPSRegion*)regions {
  return &body_->as<ResizeParams>().region;
}
- (void)emulatedCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  REQUIRE(body_->sources[0].edge == MPSImageEdgeModeZero, resize_edge, where);
}
- (Work)emulatedWork:(NSArray<MPSState*>*)states {
  (void)states;
  return [s = body_->sources[0], p = body_->as<ResizeParams>()](const std::vector<Tensor>& in,
                                                                Tensor& out, size_t) {
    const Tensor& source = in[0];
    const MPSRegion& r = p.region;
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const double down = static_cast<double>(s.offset.y) +
                            cropped(y, r.origin.y, r.size.height, source.h, p.height);
        const double right = static_cast<double>(s.offset.x) +
                             cropped(x, r.origin.x, r.size.width, source.w, p.width);
        const bool inside = down >= 0 && right >= 0 && down <= static_cast<double>(source.h - 1) &&
                            right <= static_cast<double>(source.w - 1);
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) =
              inside ? between(source, down, right, k, MPSImageEdgeModeZero, next_within) : 0.0F;
        }
      }
    }
  };
}
@end

@implementation MPSNNGridSample
- (std::shared_ptr<Params>)emulatedParams {
  return std::make_shared<GridParams>();
}
- (instancetype)initWithDevice:(id<MTLDevice>)device {
  self = [super initWithDevice:device];
  body_->params = [self emulatedParams];
  return self;
}
- (instancetype)initWithCoder:(NSCoder*)aDecoder device:(id<MTLDevice>)device {
  return [super initWithCoder:aDecoder device:device];
}
- (BOOL)useGridValueAsInputCoordinate {
  return body_->as<GridParams>().positions;
}
- (void)setUseGridValueAsInputCoordinate:(BOOL)value {
  body_->as<GridParams>().positions = value;
}
- (long)emulatedBinaryChannels:(const std::vector<long>&)consumed {
  REQUIRE(consumed[1] == 2, grid_channels, HERE, "%ld", consumed[1]);
  return consumed[0];
}
// Of the grid's size; its policy is for the image alone.
- (MPSImageDescriptor*)destinationImageDescriptorForSourceImages:(NSArray<MPSImage*>*)sourceImages
                                                    sourceStates:(NSArray<MPSState*>*)sourceStates {
  MPSImageDescriptor* descriptor = [super destinationImageDescriptorForSourceImages:sourceImages
                                                                       sourceStates:sourceStates];
  const ImageBody& grid = body_of([sourceImages objectAtIndex:1], HERE);
  descriptor.width = grid.shape.width;
  descriptor.height = grid.shape.height;
  return descriptor;
}
- (void)emulatedBinaryCheck:(const Call&)call where:(const Where&)where {
  (void)call;
  for (const Operand& source : body_->sources) {
    REQUIRE(source.stride_x == 1 && source.stride_y == 1, grid_stride, where, "%lu %lu",
            static_cast<unsigned long>(source.stride_x),
            static_cast<unsigned long>(source.stride_y));
  }
}
- (Work)emulatedBinaryWork {
  return [image = body_->sources[0], grid = body_->sources[1],
          positions = body_->as<GridParams>().positions](const std::vector<Tensor>& in, Tensor& out,
                                                         size_t) {
    for (long y = 0; y < out.h; ++y) {
      for (long x = 0; x < out.w; ++x) {
        const auto at = [&](long axis, long own, NSInteger offset) {
          const double given = static_cast<double>(
              fetch(in[1], grid.offset.y + y, grid.offset.x + x, axis, grid.edge));
          return given + static_cast<double>(offset) + (positions ? 0.0 : static_cast<double>(own));
        };
        const double right = at(0, x, image.offset.x), down = at(1, y, image.offset.y);
        for (long k = 0; k < out.c; ++k) {
          out.at(y, x, k) = between(in[0], down, right, k, image.edge, next_anywhere);
        }
      }
    }
  };
}
@end
